//! `tamis filter`, `tamis eval` and `tamis config` as a person types them.

use crate::tamis::{Folder, Replaced as _};

const ROLLOUTS: &str = "\
{\"uid\": \"a\", \"acc\": 1, \"text\": \"x\"}
{\"uid\": \"b\", \"acc\": 0, \"text\": \"y\"}
{\"uid\": \"a\", \"acc\": 0, \"text\": \"z\"}
{\"uid\": \"b\", \"acc\": 0, \"text\": \"u\"}
{\"uid\": \"c\", \"acc\": 1, \"text\": \"v\"}
{\"uid\": \"c\", \"acc\": 1, \"text\": \"w\"}
";

#[test]
fn filter_writes_kept_and_dropped_rows() {
    let folder = Folder::new().with("rollouts.jsonl", ROLLOUTS);
    let arguments =
        ["filter", "rollouts.jsonl", "--metric", "acc", "--kept", "kept.jsonl", "--dropped", "dropped.jsonl"];
    insta::assert_snapshot!(folder.tamis(&arguments).shown(), @r#"
    exit code 0
    ----- stdout
    Filter statistics (variance of acc):
      - Total prompts: 3 (6 trajectories, 2 a prompt)
      - Filtered (std=0): 2 (66.7%)
          all wrong: 1 (33.3%)
          all correct: 1 (33.3%)
      - Kept (std>0): 1 (33.3%)
      - Mean std: 0.167
      - Mean metric: 0.500
      - Pass rate: 50.0%
      - Wrote kept.jsonl (2 rows)
      - Wrote dropped.jsonl (4 rows)
    "#);
    let rows = |places: [usize; 2]| {
        let lines: Vec<&str> = ROLLOUTS.lines().collect();
        places.map(|place| format!("{}\n", lines[place])).concat()
    };
    assert_eq!(folder.read("kept.jsonl"), rows([0, 2]));
    assert_eq!(folder.read("dropped.jsonl").lines().count(), 4);
    // A second time it would overwrite.
    insta::assert_snapshot!(folder.tamis(&arguments).shown(), @r#"
    exit code 2
    ----- stderr
    error: kept.jsonl exists already
      hint: `--overwrite` replaces it
    "#);
    assert_eq!(folder.read("kept.jsonl"), rows([0, 2]));
    folder.tamis(&[&arguments[..], &["--overwrite"]].concat()).succeeds();

    let json = folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--json"]).succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("one JSON object");
    assert!(json.is_object());
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "mean_range", "--low", "0.25", "--high", "1", "--bounds", "closed"]).shown(), @r#"
    exit code 0
    ----- stdout
    Filter statistics (mean_range of acc):
      - Total prompts: 3 (6 trajectories, 2 a prompt)
      - Filtered (mean outside [0.25, 1]): 1 (33.3%)
          all wrong: 1 (33.3%)
          all correct: 0 (0.0%)
      - Kept (0.25<=mean<=1): 2 (66.7%)
          of these uniform: 1 (33.3%)
      - Mean std: 0.167
      - Mean metric: 0.500
      - Pass rate: 50.0%
    "#);
}

#[test]
fn filter_bounds_may_be_negative() {
    let rows = ROLLOUTS.replaced("\"acc\": 0", "\"acc\": -1");
    let folder = Folder::new().with("rollouts.jsonl", &rows);
    let bounds = ["--strategy", "mean_range", "--low", "-0.5", "--high", "0.5", "--json"];
    let ended =
        folder.tamis(&[&["filter", "rollouts.jsonl", "--metric", "acc"][..], &bounds].concat()).succeeds();
    let summary: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(summary["num_kept"], 1, "{summary}");
}

#[test]
fn filter_messages() {
    let folder = Folder::new().with("rollouts.jsonl", ROLLOUTS);
    insta::assert_snapshot!(folder.tamis(&["filter", "missing.jsonl", "--metric", "acc"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: failed to open missing.jsonl
      caused by: No such file or directory (os error 2)
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "accuracy"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: rollouts.jsonl has no metric column `accuracy` (did you mean `acc`?); it has `uid`, `acc`, `text`
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--group", "prompt"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: rollouts.jsonl has no group column `prompt`; it has `uid`, `acc`, `text`
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "text"]).shown(), @r#"
    exit code 1
    ----- stderr
    error: rollouts.jsonl, line 1: `text` must be a number, true, false or null, got the text "x"
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "top_p"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: --strategy top_p needs --p
      hint: say how much is kept: `--p 0.9`
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--tolerance", "-1"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: the variance filter's tolerance must be a finite number of at least 0, got -1
    "#);
    // Misspelt names are told together; options that nothing looks at are refused.
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "accuracy", "--group", "uuid"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: rollouts.jsonl has no metric column `accuracy` (did you mean `acc`?) and no group column `uuid` (did you mean `uid`?); it has `uid`, `acc`, `text`
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--low", "0.2", "--bounds", "closed"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: --strategy variance does not look at --low and --bounds
      hint: leave it out, or choose `--strategy mean_range`
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "mean_range", "--low", "0", "--high", "1", "--singleton", "drop"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: --strategy mean_range does not look at --singleton
      hint: leave it out, or choose `--strategy variance`
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--metric", "acc2", "--group", "uid"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: with several --metric each row is a group, so --group has nothing to do
      hint: leave out --group, or give one --metric
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--overwrite"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: --overwrite without an output to replace
      hint: name one with --kept or --dropped
    "#);
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--kept", "kept.parquet"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: kept.parquet would hold JSON lines, as rollouts.jsonl does
      hint: rows keep the format they come in: name it kept.jsonl
    "#);
    // A filter that chooses members has none to choose from where a row holds them all.
    folder.write("wide.jsonl", "{\"a\": 1, \"b\": 0, \"c\": 0, \"all\": [1, 0, 0]}\n");
    let within = ["filter", "wide.jsonl", "--strategy", "within_group", "--k", "2", "--kept", "kept.jsonl"];
    insta::assert_snapshot!(folder.tamis(&[&within[..], &["--metric", "a", "--metric", "b", "--metric", "c"]].concat()).shown(), @r#"
    exit code 2
    ----- stderr
    error: the within_group filter chooses among the members of a group, but a row of wide.jsonl holds a whole group
      hint: write one row a trajectory, with a column that names its group, or choose a strategy that keeps or drops whole groups
    "#);
    insta::assert_snapshot!(folder.tamis(&[&within[..], &["--metric", "all"]].concat()).shown(), @r#"
    exit code 2
    ----- stderr
    error: the within_group filter chooses among the members of a group, but a row of wide.jsonl holds a whole group
      hint: write one row a trajectory, with a column that names its group, or choose a strategy that keeps or drops whole groups
    "#);
    assert!(!folder.join("kept.jsonl").exists());
    folder.write("nan.jsonl", "{\"uid\": 1, \"acc\": 1.0}\n{\"uid\": 1, \"acc\": NaN}\n");
    insta::assert_snapshot!(folder.tamis(&["filter", "nan.jsonl", "--metric", "acc"]).shown(), @r#"
    exit code 1
    ----- stderr
    error: nan.jsonl, line 2: not valid JSON at column 19: `NaN` is no JSON number; write null where there is no value (Python: json.dumps(row, allow_nan=False) refuses such numbers)
    "#);
    folder.write("torn.jsonl", &ROLLOUTS[..ROLLOUTS.len() - 10]);
    insta::assert_snapshot!(folder.tamis(&["filter", "torn.jsonl", "--metric", "acc"]).shown(), @r#"
    exit code 1
    ----- stderr
    error: torn.jsonl, line 6: not valid JSON at column 26: EOF while parsing a string
    "#);
    folder.write("rows.csv", "uid,acc\n");
    insta::assert_snapshot!(folder.tamis(&["filter", "rows.csv", "--metric", "acc"]).shown(), @r#"
    exit code 1
    ----- stderr
    error: rows.csv, line 1: not valid JSON at column 1: expected value
      hint: rollouts are read as JSON lines (one object a line) or as Parquet
    "#);
}

#[test]
fn filter_of_parquet_in_every_usual_compression() {
    let files = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tamis-data/tests/files");
    let folder = Folder::new();
    for codec in ["none", "gzip", "lz4", "zstd"] {
        let name = format!("verl_{codec}.parquet");
        std::fs::copy(files.join(&name), folder.join(&name)).expect("copied");
        let arguments =
            ["filter", &name, "--metric", "extra_info.index", "--group", "ability", "--no-outcome", "--json"];
        let ended = folder.tamis(&[&arguments[..], &["--kept", &format!("{codec}.parquet")]].concat());
        if codec == "zstd" && !cfg!(feature = "zstd") {
            assert!(
                ended.stderr.contains("is compressed with zstd, which this build cannot read"),
                "{}",
                ended.shown()
            );
            continue;
        }
        let summary: serde_json::Value = serde_json::from_str(&ended.succeeds().stdout).expect("JSON");
        assert_eq!(
            (&summary["num_rows"], &summary["num_kept"]),
            (&2.into(), &1.into()),
            "{codec}: {summary}"
        );
        folder
            .tamis(&[
                "filter",
                &format!("{codec}.parquet"),
                "--metric",
                "extra_info.index",
                "--group",
                "ability",
            ])
            .succeeds();
    }
}

#[test]
fn filter_of_real_solutions() {
    let Some(data) = tamis_golden::data("gsm8k") else { return };
    let file = data.join("model_solutions.jsonl").display().to_string();
    let folder = Folder::new();
    let mut arguments = vec!["filter".to_owned(), file.clone()];
    for model in ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"] {
        arguments.extend(["--metric".to_owned(), format!("{model}.is_correct")]);
    }
    let shown = folder.tamis(&arguments).succeeds().shown().replace(&file, "model_solutions.jsonl");
    insta::assert_snapshot!(shown, @r#"
    exit code 0
    ----- stdout
    Filter statistics (variance of 6b_finetuning.is_correct, 6b_verification.is_correct, 175b_finetuning.is_correct, 175b_verification.is_correct):
      - Total prompts: 660 (2640 trajectories, 4 a prompt)
      - Filtered (std=0): 306 (46.4%)
          all wrong: 221 (33.5%)
          all correct: 85 (12.9%)
      - Kept (std>0): 354 (53.6%)
      - Mean std: 0.243
      - Mean metric: 0.373
      - Pass rate: 37.3%
    "#);
    arguments.extend([
        "--kept".to_owned(),
        "kept.jsonl".to_owned(),
        "--dropped".to_owned(),
        "dropped.jsonl".to_owned(),
    ]);
    folder.tamis(&arguments).succeeds();
    assert_eq!(folder.read("kept.jsonl").lines().count(), 354);
    assert_eq!(folder.read("dropped.jsonl").lines().count(), 221 + 85);
}

#[test]
fn filter_of_a_runs_own_rollouts() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let ended = folder
        .tamis(&["filter", "runs/tiny/rollouts/step_1.parquet", "--metric", "acc", "--json"])
        .succeeds();
    let summary: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let step: serde_json::Value =
        serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
    // Offline the same groups are kept as in the run.
    assert_eq!(summary["num_prompts"].as_f64(), step["groups/generated"].as_f64(), "{summary}");
    assert_eq!(summary["num_kept"].as_f64(), step["train/num_kept_prompts"].as_f64(), "{summary}");
}

#[test]
fn eval() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let ended = folder.tamis(&["eval", "runs/tiny"]).succeeds();
    insta::assert_snapshot!(ended.stdout, @r"
    checkpoint runs/tiny/checkpoints/step_2
    8 prompts, 1 sample each, greedy

    arithmetic (8 prompts, 8 completions)
                          acc, number, reward, score
      mean@1                                  0.0000
      mean tokens                                2.4
      cut at the limit                          0.0%

      9+8=
        answer  11 (wrong)
        gold    17
    ");
    let json =
        folder.tamis(&["eval", "runs/tiny", "--json", "validate.n=2", "validate.temperature=1"]).succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("one JSON object");
    assert_eq!(json["num_samples"], 2, "{json}");
    // The figures of the run's own validation after its last step.
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let step: serde_json::Value =
        serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
    let same = folder.tamis(&["eval", "runs/tiny/checkpoints/step_2", "--json"]).succeeds();
    let same: serde_json::Value = serde_json::from_str(&same.stdout).expect("JSON");
    let name = "val-aux/arithmetic/response_length/mean";
    assert!(step[name].is_number());
    assert_eq!(same["metrics"][name], step[name], "{same}");

    // What is wrong with an override is all that is told: the run's own configuration was talked about when
    // it began.
    insta::assert_snapshot!(folder.tamis(&["eval", "runs/tiny", "validate.temprature=1"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: unknown key `validate.temprature`
     --> command line
      |
    1 | validate.temprature=1
      | ^^^^^^^^^^^^^^^^^^^
      hint: did you mean `validate.temperature`?

    1 error in the configuration
    "#);
    insta::assert_snapshot!(folder.tamis(&["eval", "runs/tiny", "data.arithmetic.val_size=0", "validate.test_freq=-1"]).shown(), @r"
    exit code 2
    ----- stderr
    error: there are no validation prompts to evaluate on
     --> command line
      |
    1 | data.arithmetic.val_size=0
      |                          ^
      hint: set `data.val` to a JSONL or Parquet file (for the task `arithmetic`, `data.arithmetic.val_size` above 0)

    1 error in the configuration
    ");
    insta::assert_snapshot!(folder.tamis(&["config", "check", "runs/tiny/config.yaml"]).shown(), @r#"
    exit code 0
    ----- stdout
    the configuration is sound (0 warnings)
    "#);
    insta::assert_snapshot!(folder.tamis(&["eval", "nowhere"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: nowhere is neither a run directory nor a checkpoint folder
      hint: a run directory holds `checkpoints/`, a checkpoint `config.json`
    "#);
    std::fs::create_dir_all(folder.join("bare/checkpoints")).expect("folder");
    insta::assert_snapshot!(folder.tamis(&["eval", "bare"]).shown(), @r#"
    exit code 1
    ----- stderr
    error: bare has no checkpoint yet
      hint: continue it with `tamis train --resume bare`
    "#);
    std::fs::rename(folder.join("runs/tiny/checkpoints/step_2"), folder.join("alone")).expect("moved");
    insta::assert_snapshot!(folder.tamis(&["eval", "alone"]).shown(), @r"
    exit code 2
    ----- stderr
    error: alone is a checkpoint outside a run, so nothing says what to evaluate it on
      hint: name data and reward: `tamis eval alone data.val=test.jsonl 'reward=[{kind: math}]'`, or a configuration that has them
    ");
    folder.tamis(&["eval", "alone", "tiny.yaml"]).succeeds();
    assert!(!folder.join("evaluations").exists(), "a checkpoint outside a run has nowhere to keep it");
}

const SUMS: &str = "\
{\"question\": \"1+1=\", \"answer\": \"2\", \"data_source\": \"small\"}
{\"question\": \"2+3=\", \"answer\": \"5\", \"data_source\": \"small\"}
{\"question\": \"9+9=\", \"answer\": \"18\", \"data_source\": \"large\"}
";

#[test]
fn eval_of_a_checkpoint_that_is_in_no_run() {
    let folder = Folder::tiny().with("sums.jsonl", SUMS);
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    std::fs::rename(folder.join("runs/tiny/checkpoints/step_1"), folder.join("alone")).expect("moved");
    // Everything is said on the command line.
    let limits = ["data.max_prompt_length=12", "rollout.max_response_length=4"];
    let eval = |arguments: &[&str]| folder.tamis(&[&["eval", "alone"], &limits[..], arguments].concat());
    let said = ["data.val=sums.jsonl", "reward=[{kind: number}, {kind: length, weight: 0.5}]"];
    // The default lengths are more than such a model reads.
    let fitted = folder.tamis(&[&["eval", "alone"], &said[..]].concat()).succeeds();
    let told = "the model reads 32 tokens: data.max_prompt_length is 16 and rollout.max_response_length 16, as neither is set\n";
    assert!(fitted.stderr.contains(told), "{}", fitted.shown());
    let one = folder.tamis(&[&["eval", "alone", limits[0]], &said[..]].concat());
    assert!(one.failure().contains("rollout.max_response_length 512 make 524 tokens"), "{}", one.shown());
    insta::assert_snapshot!(eval(&said).shown(), @r"
    exit code 0
    ----- stdout
    checkpoint alone
    3 prompts, 1 sample each, greedy

    large (1 prompt, 1 completion)
                          acc, length, number, reward, score
      mean@1                                          0.0000
      mean tokens                                        3.0
      cut at the limit                                  0.0%

    small (2 prompts, 2 completions)
                          acc, length, number, reward, score
      mean@1                                          0.0000
      mean tokens                                        2.0
      cut at the limit                                  0.0%

      1+1=
        answer  1 (wrong)
        gold    2

      2+3=
        answer  1 (wrong)
        gold    5

      9+9=
        answer  11 (wrong)
        gold    18
    ----- stderr
    first prompt (4 tokens, text without a chat template): 1+1=
    evaluating 3 prompts, 1 sample of each
    ");
    // What is missing is told at once, and nothing that only training needs.
    insta::assert_snapshot!(eval(&["validate.n=2"]).shown(), @r"
    exit code 2
    ----- stderr
    error: there is no reward: `reward` is empty, and no task (`data.task`) brings a verifier
      hint: add one, such as `reward: [{kind: math}]`

    error: there are no validation prompts to evaluate on
      hint: set `data.val` to a JSONL or Parquet file (for the task `arithmetic`, `data.arithmetic.val_size` above 0)

    warning: `validate.n` is 2 with `validate.temperature: 0`: greedy samples of one prompt are all the same
     --> command line
      |
    1 | validate.n=2
      |            ^
      hint: set `validate.temperature` above 0, or `validate.n: 1`

    2 errors in the configuration
    ");
    // A run's data and reward may be replaced, its training data be gone.
    folder.tamis(&["train", "tiny.yaml", "run.name=other", "train.total_steps=1"]).succeeds();
    let other = ["eval", "runs/other", "data.task=null", "data.val=sums.jsonl", "--json"];
    let json: serde_json::Value =
        serde_json::from_str(&folder.tamis(&other).succeeds().stdout).expect("JSON");
    assert_eq!(json["num_prompts"], 3, "{json}");
}

#[test]
fn eval_writes_every_sample() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let eval = ["eval", "runs/tiny", "validate.n=3", "validate.temperature=1"];
    let json = folder.tamis(&[&eval[..], &["--json"]].concat()).succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    for name in ["samples.jsonl", "samples.parquet"] {
        folder.tamis(&[&eval[..], &["--samples", name]].concat()).succeeds();
        let rows: Vec<_> = tamis_data::records::Records::open(&folder.join(name))
            .expect("a file")
            .map(|row| row.expect("a row").values)
            .collect();
        assert_eq!(rows.len(), 8 * 3, "{name}");
        let mean = rows.iter().map(|row| row["acc"].as_f64().expect("scored")).sum::<f64>() / 24.0;
        let figure = json["metrics"]["val-core/arithmetic/acc/mean@3"].as_f64().expect("a figure");
        assert!((mean - figure).abs() < 1e-12, "{name}: {mean} {figure}");
        assert_eq!((&rows[4]["prompt_id"], &rows[4]["sample_index"]), (&1.into(), &1.into()), "{name}");
        assert_eq!(rows[0]["prompt"], json["samples"][0]["prompt"], "{name}");
        assert_eq!(rows[0]["completion"], json["samples"][0]["completion"], "{name}");
    }
    let again = |arguments: &[&str]| folder.tamis(&[&eval[..], arguments].concat());
    insta::assert_snapshot!(again(&["--samples", "samples.jsonl"]).shown(), @r"
    exit code 2
    ----- stderr
    error: samples.jsonl exists already
      hint: `--overwrite` replaces it
    ");
    again(&["--samples", "samples.jsonl", "--overwrite"]).succeeds();
    insta::assert_snapshot!(again(&["--samples", "samples.csv"]).shown(), @r"
    exit code 2
    ----- stderr
    error: samples.csv does not say how the samples are to be written: its name ends neither in .jsonl nor in .parquet
      hint: name it `samples.jsonl` or `samples.parquet`, say
    ");
    insta::assert_snapshot!(again(&["--samples", "nowhere/samples.jsonl"]).shown(), @r"
    exit code 2
    ----- stderr
    error: there is no folder nowhere for the samples
      hint: make it first
    ");
    insta::assert_snapshot!(again(&["--overwrite"]).shown(), @r"
    exit code 2
    ----- stderr
    error: --overwrite without a file to replace
      hint: name one with --samples
    ");

    // Every result is kept in the run.
    let kept = |name: &str| -> serde_json::Value {
        serde_json::from_str(&folder.read(&format!("runs/tiny/evaluations/{name}.json"))).expect("JSON")
    };
    assert_eq!(kept("step_2"), json);
    assert_eq!(kept("step_2-3")["metrics"], json["metrics"]);
    assert_eq!(kept("step_2")["settings"]["validate"]["n"], 3);
    let num_kept = std::fs::read_dir(folder.join("runs/tiny/evaluations")).expect("a folder").count();
    assert_eq!(num_kept, 4, "one a success, none a refusal");
}

#[test]
fn rollouts_of_a_run_are_shown() {
    let folder = Folder::tiny();
    folder
        .tamis(&[
            "train",
            "tiny.yaml",
            "train.total_steps=2",
            "validate.save_samples=true",
            "rollout.save=all",
        ])
        .succeeds();
    let shown = folder.tamis(&["rollouts", "runs/tiny", "--verdict", "trained", "--limit", "2"]).succeeds();
    let json = folder.tamis(&["rollouts", "runs/tiny", "--verdict", "trained", "--json"]).succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&json["num_matching"], &json["verdicts"]["trained"]), (&16.into(), &16.into()), "{json}");
    let row = &json["rows"][0];
    assert!(row["advantage"].is_number() && row["acc"].is_number(), "{row}");
    for column in ["prompt", "completion", "ground_truth"] {
        assert!(shown.stdout.contains(row[column].as_str().expect("text")), "{column}: {}", shown.stdout);
    }
    assert!(shown.stdout.contains("; 16 match; the first 2:"), "{}", shown.stdout);
    let samples = folder.tamis(&["rollouts", "runs/tiny/validation/step_2.jsonl", "--limit", "1"]).succeeds();
    assert!(samples.stdout.contains("8 trajectories; the first 1:"), "{}", samples.stdout);
    insta::assert_snapshot!(folder.tamis(&["rollouts", "runs/tiny", "--step", "7"]).shown(), @r"
    exit code 2
    ----- stderr
    error: no rollouts of step 7 are saved in runs/tiny/rollouts; there are those of steps 1 to 2
    ");
    folder
        .tamis(&["train", "tiny.yaml", "run.name=bare", "train.total_steps=1", "rollout.save=off"])
        .succeeds();
    insta::assert_snapshot!(folder.tamis(&["rollouts", "runs/bare"]).shown(), @r"
    exit code 2
    ----- stderr
    error: no rollouts are saved in runs/bare/rollouts
      hint: a run writes them after each step, unless `rollout.save` is `off` (`kept`: only trajectories of trained groups)
    ");
}

/// Measured before training and nowhere in between: measured after it too, or the first figure has nothing to
/// be compared with.
#[test]
fn a_run_that_is_measured_before_training_is_measured_after_it() {
    let folder = Folder::tiny();
    let train = ["train", "tiny.yaml", "train.total_steps=2", "validate.save_samples=true"];
    folder.tamis(&[&train[..], &["validate.test_freq=0"]].concat()).succeeds();
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let measured: Vec<bool> = metrics.lines().map(|line| line.contains("\"val-core/")).collect();
    assert_eq!(measured, [true, false, true], "{metrics}");
    for (step, is_there) in [(0, true), (1, false), (2, true)] {
        assert_eq!(
            folder.join(&format!("runs/tiny/validation/step_{step}.jsonl")).exists(),
            is_there,
            "{step}"
        );
    }
    folder
        .tamis(
            &[&train[..], &["validate.test_freq=0", "validate.before_train=false", "run.name=never"]]
                .concat(),
        )
        .succeeds();
    assert!(!folder.read("runs/never/metrics.jsonl").contains("\"val-core/"));
    assert!(!folder.join("runs/never/validation").exists());
}

/// The arguments of the complete command in the guide on filter groups.
const GUIDE: &[&str] = &[
    "algorithm.adv_estimator=dapo",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.metric=acc",
    "algorithm.filter_groups.max_num_gen_batches=15",
    "data.train_files=['/data/math/train.parquet']",
    "data.val_files=['/data/math/test.parquet']",
    "data.train_batch_size=1024",
    "data.max_prompt_length=2048",
    "data.max_response_length=2048",
    "actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.temperature=0.7",
    "actor_rollout_ref.rollout.name=vllm",
    "trainer.total_epochs=20",
    "trainer.n_gpus_per_node=8",
    "trainer.save_freq=5",
    "trainer.test_freq=2",
    r#"trainer.logger=["console","wandb"]"#,
    "trainer.project_name=math_dapo_experiment",
    "trainer.experiment_name=qwen2_7b_filtergroups_enabled",
];

#[test]
fn config_import_of_the_guides_command() {
    let folder = Folder::new();
    let ended = folder.tamis(&[&["config", "import", "--"], GUIDE].concat()).succeeds();
    for argument in GUIDE {
        let key = argument.split('=').next().expect("a key");
        assert!(ended.stdout.contains(key), "nothing says what {key} became:\n{}", ended.stdout);
    }
    assert!(ended.stdout.contains("wandb is not there yet"), "{}", ended.stdout);
    // What was printed is a configuration; only its files are not here.
    folder.write("imported.yaml", &ended.stdout);
    folder.tamis(&["config", "show", "imported.yaml"]).succeeds();
    let checked = folder.tamis(&["config", "check", "imported.yaml"]);
    let errors: Vec<&str> = checked.stderr.lines().filter(|line| line.starts_with("error")).collect();
    assert!(
        !errors.is_empty() && errors.iter().all(|error| error.contains("there is no ")),
        "{}",
        checked.shown()
    );
}

/// Commands of TRL and EasyR1 without a translation before: `check` and `train` take what `import` takes.
#[test]
fn commands_of_others_are_taken_as_they_are() {
    const TRL: [&str; 11] = [
        "--config",
        "grpo.yaml",
        "--reward_funcs",
        "accuracy_reward",
        "think_format_reward",
        "--num-generations",
        "4",
        "--no_shuffle_dataset",
        "--bf16",
        "--max_steps=3",
        "--use_vllm",
    ];
    let folder = Folder::new()
        .with("grpo.yaml", "model_name_or_path: m\ndataset_name: rows.jsonl\nlearning_rate: 1e-5\n")
        .with(
            "easyr1.yaml",
            "worker: {actor: {model: {model_path: m}}, rollout: {n: 4}, reward: {reward_function: 'r.py:f'}}\ndata: {train_files: rows.jsonl}\n",
        );
    for (arguments, found) in [
        (&TRL[..], ["n: 4", "total_steps: 3", "shuffle: false", "learning_rate: 1e-5"]),
        (
            &["config=easyr1.yaml", "data.max_response_length=64", "trainer.max_steps=3"],
            ["n: 4", "total_steps: 3", "max_response_length: 64", "prompt_format: chat"],
        ),
        (
            &["easyr1.yaml", "data.max_response_length=64", "trainer.max_steps=3"],
            ["n: 4", "total_steps: 3", "max_response_length: 64", "prompt_format: chat"],
        ),
    ] {
        let shown = folder.tamis(&[&["config", "show"], arguments].concat()).succeeds().stdout;
        let imported = folder.tamis(&[&["config", "import", "--"], arguments].concat()).succeeds().stdout;
        for text in found {
            assert!(shown.contains(text), "{arguments:?}: no {text} in {shown}");
            assert!(imported.contains(text), "{arguments:?}: no {text} in {imported}");
        }
    }
    // Without `--` too, and an option that nobody has is told to TRL.
    let plain = folder.tamis(&["config", "import", "--num_generations", "4"]).succeeds().stdout;
    assert!(plain.contains("n: 4"), "{plain}");
    insta::assert_snapshot!(folder.tamis(&["train", "--config", "grpo.yaml", "--num_generation", "4"]).failure(), @"
exit code 2
error: `num_generation` is no key of TRL that tamis knows
 --> command line
  |
1 | num_generation=4
  | ^^^^^^^^^^^^^^
  hint: did you mean `num_generations`?

1 error in the configuration
");
    // Options of `train` itself stay its own.
    insta::assert_snapshot!(folder.tamis(&["train", "--resume", "nowhere", "--num_generations", "4"]).failure(), @"
exit code 2
error: failed to open the run `nowhere`: there is no such folder
  hint: name the folder that a run printed at its start; it holds `config.yaml`
");
    insta::assert_snapshot!(folder.tamis(&["train", "--modle", "4"]).failure(), @"
exit code 2
error: unexpected argument '--modle' found

  tip: to pass '--modle' as a value, use '-- --modle'

Usage: tamis train [OPTIONS] [CONFIG.yaml | KEY=VALUE]...

For more information, try '--help'.
");
}

/// The command of those systems' own pages, from the root of a repository: what stands in its files is found
/// from there, by `check`, `train` and whatever reads what `import` has written, wherever that lies.
#[test]
fn paths_in_files_of_others_are_those_of_the_working_directory() {
    let folder = Folder::tiny()
        .with("data/sums.jsonl", "{\"question\": \"1+1=\", \"answer\": \"2\"}\n{\"question\": \"2+3=\", \"answer\": \"5\"}\n")
        .with("data/prompts.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"2+3=\"}\n")
        .with("examples/format.jinja", "{{ content }}")
        .with("examples/chat.jinja", "{{ messages[0]['content'] }}")
        .with(
            "examples/reward.py",
            "def score(inputs):\n    return [{'overall': float(len(i['response']) % 2)} for i in inputs]\n\n\n\
             def length(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n\n\n\
             def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return float(len(solution_str))\n",
        )
        .with(
            "examples/config.yaml",
            "data: {train_files: data/none.jsonl, prompt_key: question, answer_key: answer, rollout_batch_size: 2, max_prompt_length: 16, \
             max_response_length: 4, format_prompt: ./examples/format.jinja, override_chat_template: examples/chat.jinja}\n\
             algorithm: {disable_kl: true}\n\
             worker:\n  actor: {global_batch_size: 2, model: {model_path: models/mine}}\n  rollout: {n: 2}\n  \
             reward: {reward_function: './examples/reward.py:score'}\n\
             trainer: {max_steps: 1}\n",
        )
        .with(
            "examples/grpo.yaml",
            "{model_name_or_path: models/mine, dataset_name: data/prompts.jsonl, reward_funcs: examples.reward.length, max_prompt_length: 16, \
             max_completion_length: 4, num_generations: 2, per_device_train_batch_size: 2, max_steps: 1, output_dir: out/trl}\n",
        )
        .with(
            "examples/ppo.yaml",
            "actor_rollout_ref: {model: {path: models/mine}, rollout: {n: 2}}\n\
             data: {train_files: data/sums.jsonl, prompt_key: question, train_batch_size: 2, max_prompt_length: 16, max_response_length: 4}\n\
             algorithm: {adv_estimator: grpo}\ncustom_reward_function: {path: examples/reward.py}\ntrainer: {total_training_steps: 1}\n",
        );
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    std::fs::create_dir(folder.join("models")).expect("a folder");
    std::fs::rename(folder.join("runs/tiny/checkpoints/step_1"), folder.join("models/mine")).expect("moved");
    let easyr1 = ["config=examples/config.yaml", "data.train_files=data/sums.jsonl"];
    let hydra = ["--config-path", "examples", "--config-name", "ppo"];
    for (name, command, imported) in [
        ("easyr1", &easyr1[..], &easyr1[..]),
        ("trl", &["--config", "examples/grpo.yaml"], &["--config", "examples/grpo.yaml"]),
        // Hydra's own options are those of `import`.
        ("verl", &["examples/ppo.yaml"], &hydra),
    ] {
        folder.tamis(&[&["config", "check"], command].concat()).succeeds();
        let text = folder.tamis(&[&["config", "import", "--"], imported].concat()).succeeds().stdout;
        // The helper names the folder so.
        let text = text.replaced("DIR", folder.path().to_str().expect("a path in UTF-8"));
        let written = format!("elsewhere/{name}.yaml");
        folder.write(&written, &text);
        folder.tamis(&["config", "check", &written]).succeeds();
    }
    folder.tamis(&[&["train"], &easyr1[..]].concat()).succeeds();
    folder.tamis(&["train", "elsewhere/trl.yaml"]).succeeds();
    assert!(folder.join("out/trl/metrics.jsonl").exists(), "where TRL's command would have put it");
}

#[test]
fn every_shipped_configuration_is_sound() {
    let configs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut folders = vec![configs];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                // Data and a model that a script fetches may not be there: others stand in for them.
                let folder = Folder::new();
                folder
                    .write("rows.jsonl", "{\"question\": \"1 + 1?\", \"answer\": \"<<1+1=2>>2\\n#### 2\"}\n");
                let file = path.display().to_string();
                let mut arguments = vec!["config", "check", file.as_str()];
                let checked = folder.tamis(&arguments);
                if checked.stderr.contains("there is no file")
                    || checked.stderr.contains("there is no folder")
                {
                    arguments.extend(["data.train=rows.jsonl", "data.val=rows.jsonl"]);
                }
                if checked.stderr.contains("there is no folder") {
                    arguments.push("model.path=path/to/model");
                }
                let ended = folder.tamis(&arguments).succeeds();
                assert!(
                    ended.stdout.contains("the configuration is sound"),
                    "{}: {}",
                    path.display(),
                    ended.shown()
                );
                count += 1;
            }
        }
    }
    assert!(count >= 11, "{count} configurations");
}

#[test]
fn config_commands() {
    let folder = Folder::tiny();
    insta::assert_snapshot!(folder.tamis(&["config", "check", "tiny.yaml"]).shown(), @r#"
    exit code 0
    ----- stdout
    the configuration is sound (0 warnings)
    "#);
    insta::assert_snapshot!(folder.tamis(&["config", "explain", "schedule.on_limit"]).shown(), @r#"
exit code 0
----- stdout
schedule.on_limit

  What happens at that limit.

  type       one of error, use_partial, skip
  default    error
  on resume  must stay
  preset     dapo: error
  preset     dapo_paper: error
  preset     cispo: error
  values
    error: The run stops with a diagnosis, as in verl.
    use_partial: The groups there are get trained on, as in EasyR1's dynamic sampling.
    skip: The groups are given up and the next step starts.
  also known as
    algorithm.filter_groups.enable (verl, default False there)
    algorithm.use_dynamic_sample (EasyR1, default false there)
    algorithm.online_filtering (EasyR1, default false there)
"#);
    insta::assert_snapshot!(folder.tamis(&["config", "explain", "schedule.onlimit"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: there is no key `schedule.onlimit`; did you mean `schedule.on_limit`?
    "#);
    insta::assert_snapshot!(folder.tamis(&["config", "import", "--", "algorithm.no_such_key=1"]).shown(), @r#"
    exit code 2
    ----- stderr
    error: `algorithm.no_such_key` is no key of verl that tamis knows
     --> command line
      |
    1 | algorithm.no_such_key=1
      | ^^^^^^^^^^^^^^^^^^^^^
      hint: did you mean `algorithm.use_pf_ppo`?

    1 error in the configuration
    "#);
    let first = |name: &str| {
        let ended = folder.tamis(&["explain", name]);
        format!(
            "{} {}",
            ended.code.unwrap_or(-1),
            ended.stdout.lines().chain(ended.stderr.lines()).next().unwrap_or_default()
        )
    };
    insta::assert_snapshot!(
        ["TOP_K", "Dr.GRPO", "DAPO", "Clip-Higher", "vanilla", "algorithm.filter_groups", "REINFORCE++"].map(first).join("\n"),
        @r#"
0 top_k (filter)
0 dr_grpo (preset)
0 dapo (preset)
0 `Clip-Higher` is here: `clip`
0 `vanilla` is here: `clip`
0 `algorithm.filter_groups` is here: `variance`
0 reinforce_plus_plus (preset)
"#
    );
    // A whole algorithm is more than its clip.
    let ppo = folder.tamis(&["explain", "ppo"]).succeeds().stdout;
    assert!(ppo.contains("GAE") && ppo.contains("clip"), "{ppo}");
    insta::assert_snapshot!(folder.tamis(&["explain", "Dr.GPRO"]).shown(), @r#"
exit code 2
----- stderr
error: nothing is called `Dr.GPRO`
  hint: did you mean dr_grpo? `tamis explain` lists every name
"#);
    let schema = folder.tamis(&["config", "schema"]).succeeds().stdout;
    serde_json::from_str::<serde_json::Value>(&schema).expect("JSON");
    // What `show` prints loads to the same.
    let shown = folder.tamis(&["config", "show", "tiny.yaml"]).succeeds().stdout;
    folder.write("shown.yaml", &shown.replace("DIR", &folder.path().display().to_string()));
    let again = folder.tamis(&["config", "show", "shown.yaml"]).succeeds().stdout;
    let values = |text: &str| {
        text.lines().map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(&again), values(&shown));
}

/// Tied or not, in whatever type: what is exported is the policy, and says the same.
#[test]
fn export() {
    let folder = Folder::tiny().with("sums.jsonl", SUMS);
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let export = |arguments: &[&str]| folder.tamis(&[&["export", "runs/tiny"], arguments].concat());
    insta::assert_snapshot!(export(&["out/tied"]).shown(), @r"
    exit code 0
    ----- stdout
    wrote out/tied: 2656 weights of runs/tiny/checkpoints/step_1 in float32, output head tied to the embedding
    ");
    insta::assert_snapshot!(export(&["out/untied", "--untie"]).shown(), @r"
    exit code 0
    ----- stdout
    wrote out/untied: 2944 weights of runs/tiny/checkpoints/step_1 in float32, output head of its own
    ");
    insta::assert_snapshot!(export(&["out/half", "--untie", "--dtype", "bf16"]).shown(), @r"
    exit code 0
    ----- stdout
    wrote out/half: 2944 weights of runs/tiny/checkpoints/step_1 in bfloat16, output head of its own
    ");
    insta::assert_snapshot!(export(&["out/tied"]).shown(), @r"
    exit code 2
    ----- stderr
    error: out/tied exists already
      hint: name a folder that is not there yet
    ");
    insta::assert_snapshot!(folder.tamis(&["export", "out", "other"]).shown(), @r"
    exit code 2
    ----- stderr
    error: out is neither a run directory nor a checkpoint folder
      hint: a run directory holds `checkpoints/`, a checkpoint `config.json`
    ");
    let config: serde_json::Value =
        serde_json::from_str(&folder.read("out/half/config.json")).expect("one JSON object");
    assert_eq!((&config["tie_word_embeddings"], &config["dtype"]), (&false.into(), &"bfloat16".into()));
    let rest = [
        "data.val=sums.jsonl",
        "reward=[{kind: number}]",
        "data.max_prompt_length=12",
        "rollout.max_response_length=4",
        "validate.temperature=1",
        "validate.n=4",
        "--json",
    ];
    let found = |checkpoint: &str| -> serde_json::Value {
        let ended = folder.tamis(&[&["eval", checkpoint], &rest[..]].concat()).succeeds();
        let mut found: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
        found.as_object_mut().expect("an object").remove("checkpoint");
        found
    };
    let tied = found("out/tied");
    assert!(tied["samples"].as_array().is_some_and(|samples| !samples.is_empty()), "{tied}");
    assert_eq!(found("out/untied"), tied);
    // A run begins from it, and a damaged one is refused.
    folder
        .tamis(&[
            "train",
            "tiny.yaml",
            "~model.init",
            "+model.path=out/untied",
            "run.name=second",
            "train.total_steps=1",
        ])
        .succeeds();
    let weights = folder.join("out/half/model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(&weights, bytes).expect("written");
    insta::assert_snapshot!(folder.tamis(&["export", "out/half", "again"]).failure(), @r"
    exit code 1
    error: `model.safetensors` of the checkpoint out/half is damaged: its CRC-32 is 91ced907, and was e6c9e991 when it was saved
      hint: put back a copy of the file. Where the change was meant, remove out/half/checksums.json
    ");
}
