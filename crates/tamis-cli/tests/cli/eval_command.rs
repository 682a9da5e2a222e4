//! `tamis eval`, `tamis rollouts` and `tamis export` as a person types them.

use crate::tamis::{Folder, Replaced as _, failures, words};

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
    let json = json.json();
    assert_eq!(json["num_samples"], 2, "{json}");
    // The figures of the run's own validation after its last step.
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let step: serde_json::Value =
        serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
    let same = folder.tamis(&["eval", "runs/tiny/checkpoints/step_2", "--json"]).succeeds();
    let same = same.json();
    let name = "val-aux/arithmetic/response_length/mean";
    assert!(step[name].is_number());
    assert_eq!(same["metrics"][name], step[name], "{same}");

    // A warning is printed once, together with the others.
    let greedy = ["eval", "runs/tiny", "validate.n=2", "validate.temperature=0"];
    for more in ["data.val=absent.jsonl", "run.name=x"] {
        let ended = folder.tamis(&[&greedy[..], &[more]].concat());
        let told = ended.stderr.matches("greedy samples of one prompt are identical").count();
        assert_eq!(told, 1, "{}", ended.shown());
    }

    // Only the fault in the override is reported: warnings about the run's own configuration were printed
    // when it began.
    insta::assert_snapshot!(folder.tamis(&["eval", "runs/tiny", "data.arithmetic.val_size=0", "validate.test_freq=-1"]).short(), @r"
    exit code 2
    error: there are no validation prompts to evaluate on
      at command line: data.arithmetic.val_size=«0»
      hint: set `data.arithmetic.val_size` above 0
    ");
    let checked = folder.tamis(&["config", "check", "runs/tiny/config.yaml"]).succeeds();
    assert_eq!(checked.stdout, "the configuration is sound (0 warnings)\n");
    let nowhere = "error: there is no folder nowhere\n  hint: the only run here is `runs/tiny`\n";
    folder.tamis(&["eval", "nowhere"]).exits(2).fails_with(nowhere);
    std::fs::create_dir_all(folder.join("bare/checkpoints")).expect("folder");
    let neither = "error: bare/checkpoints is neither a run directory nor a checkpoint folder\n  hint: a run directory holds";
    folder.tamis(&["eval", "bare/checkpoints"]).exits(2).says(neither);
    let none = "error: bare has no checkpoint yet\n  hint: continue it with `tamis train --resume bare`\n";
    folder.tamis(&["eval", "bare"]).exits(1).fails_with(none);
    std::fs::rename(folder.join("runs/tiny/checkpoints/step_2"), folder.join("alone")).expect("moved");
    insta::assert_snapshot!(folder.tamis(&["eval", "alone"]).shown(), @r"
    exit code 2
    ----- stderr
    error: alone is a checkpoint outside a run: no configuration names its prompts and rewards
      hint: name data and reward: `tamis eval alone data.val=test.jsonl 'reward=[{kind: math}]'`, or a configuration that has them
    ");
    folder.tamis(&["eval", "alone", "tiny.yaml"]).succeeds();
    assert!(!folder.join("evaluations").exists(), "a checkpoint outside a run has nowhere to keep it");
}

/// The native engine does not know every model that PyTorch trains, so PyTorch holds the weights for servers,
/// too.
#[test]
fn eval_of_what_pytorch_trained_asks_pytorch_where_servers_sample() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let servers = ["rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:9]"];
    let eval = |further: &[&str]| folder.tamis(&[&["eval", "runs/tiny"], further].concat());
    let torch = ["learner.backend=torch", "learner.python=no-such-python"];
    for samples in [&servers[..], &["rollout.backend=learner"]] {
        let failure = eval(&[&torch[..], samples].concat()).failure();
        assert!(failure.starts_with("exit code 3\nerror: cannot start `no-such-python"), "{failure}");
    }
    let natively = eval(&[&servers[..], &["rollout.server_startup_timeout=1s"]].concat()).failure();
    assert!(natively.starts_with("exit code 3\nerror: no server answers"), "{natively}");
    eval(&torch).succeeds();
    // Whole weights in place of the model below the adapters would make the servers useless for a run.
    let adapters = ["learner.lora={rank: 4}", "publish.mode=adapter"];
    insta::assert_snapshot!(eval(&[&torch[..], &servers, &adapters].concat()).failure(), @"
    exit code 2
    error: rollout.servers: an evaluation would replace the model under the run's adapters with its whole weights
      hint: evaluate without these servers: rollout.backend=native or learner, or rollout.servers=[] with rollout.launch={}
    ");
}

#[cfg(unix)]
#[test]
fn eval_keeps_the_output_of_a_learner_that_failed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    // A learner that is not PyTorch's, and is recognised as such.
    let tamis = env!("CARGO_BIN_EXE_tamis");
    folder
        .write("python", &format!("#!/bin/sh\necho a line of it\nexec '{tamis}' learner --listen \"$4\"\n"));
    let python = folder.join("python");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(folder.join("temporary")).unwrap();
    let python = format!("learner.python={}", python.display());
    let arguments = ["eval", "runs/tiny", "learner.backend=torch", "rollout.backend=learner", &python];
    let ended = folder.wait(folder.start_with(&arguments, &[("TMPDIR", folder.join("temporary"))]));
    let failure = ended.failure();
    assert!(failure.contains("takes no settings of PyTorch"), "{failure}");
    let kept: Vec<std::path::PathBuf> =
        std::fs::read_dir(folder.join("temporary")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [kept] = &kept[..] else { panic!("{kept:?} is left") };
    let name = kept.file_name().unwrap().to_string_lossy();
    assert!(failure.ends_with(&format!("is kept in DIR/temporary/{name}\n")), "{failure}");
    let log = std::fs::read_to_string(kept.join("learner.log")).unwrap();
    assert!(log.contains("a line of it"), "{log}");
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
    // Everything is set on the command line.
    let limits = ["data.max_prompt_length=12", "rollout.max_response_length=4"];
    let eval = |arguments: &[&str]| folder.tamis(&[&["eval", "alone"], &limits[..], arguments].concat());
    let message = ["data.val=sums.jsonl", "reward=[{kind: number}, {kind: length, weight: 0.5}]"];
    // The default lengths exceed such a model's positions.
    let fitted = folder.tamis(&[&["eval", "alone"], &message[..]].concat()).succeeds();
    let printed = "the model reads 32 tokens: data.max_prompt_length is 16 and rollout.max_response_length 16, as neither is set\n";
    fitted.says(printed);
    let one = folder.tamis(&[&["eval", "alone", limits[0]], &message[..]].concat());
    one.fails_with("rollout.max_response_length 512 make 524 tokens");
    insta::assert_snapshot!(eval(&message).shown(), @r"
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
    // What is missing is reported at once, but nothing that only training needs.
    insta::assert_snapshot!(eval(&["validate.n=2"]).shown(), @r"
    exit code 2
    ----- stderr
    error: there is no reward: `reward` is empty, and no task (`data.task`) provides a verifier
      hint: add one, such as `reward: [{kind: math}]`

    error: there are no validation prompts to evaluate on
      hint: name a JSONL or Parquet file: `data.val=FILE`

    warning: `validate.n` is 2 with `validate.temperature: 0`: greedy samples of one prompt are identical
     --> command line
      |
    1 | validate.n=2
      |            ^
      hint: set `validate.temperature` above 0, or `validate.n: 1`

    2 errors in the configuration
    ");
    // A run's data and reward may be replaced, and its training data may be missing.
    folder.tamis(&["train", "tiny.yaml", "run.name=other", "train.total_steps=1"]).succeeds();
    let other = ["eval", "runs/other", "data.task=null", "data.val=sums.jsonl", "--json"];
    let json = folder.tamis(&other).succeeds().json();
    assert_eq!(json["num_prompts"], 3, "{json}");
}

#[test]
fn eval_writes_every_sample() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let eval = ["eval", "runs/tiny", "validate.n=3", "validate.temperature=1"];
    let json = folder.tamis(&[&eval[..], &["--json"]].concat()).succeeds();
    let json = json.json();
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
        assert_eq!(rows[0]["step"], 2, "{name}: of the checkpoint");
    }
    let again = |arguments: &[&str]| folder.tamis(&[&eval[..], arguments].concat());
    insta::assert_snapshot!(again(&["--samples", "samples.jsonl"]).shown(), @r"
    exit code 2
    ----- stderr
    error: samples.jsonl exists already
      hint: `--overwrite` replaces it
    ");
    again(&["--samples", "samples.jsonl", "--overwrite"]).succeeds();
    insta::assert_snapshot!(failures([
        again(&["--samples", "samples.csv"]),
        again(&["--samples", "nowhere/samples.jsonl"]),
        again(&["--overwrite"]),
    ]), @r"
    exit code 2
    error: the format of samples.csv is unknown: its name ends neither in .jsonl nor in .parquet
      hint: name it `samples.jsonl` or `samples.parquet`, say
    error: there is no folder nowhere for the samples
      hint: make it first
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
    let train = words("train tiny.yaml train.total_steps=2 validate.save_samples=true rollout.save=all");
    folder.tamis(&train).succeeds();
    let shown = folder.tamis(&["rollouts", "runs/tiny", "--verdict", "trained", "--limit", "2"]).succeeds();
    let json = folder.tamis(&["rollouts", "runs/tiny", "--verdict", "trained", "--json"]).succeeds();
    let json = json.json();
    assert_eq!((&json["num_matching"], &json["verdicts"]["trained"]), (&16.into(), &16.into()), "{json}");
    let row = &json["rows"][0];
    assert!(row["advantage"].is_number() && row["acc"].is_number(), "{row}");
    for column in ["prompt", "completion", "ground_truth"] {
        assert!(shown.stdout.contains(row[column].as_str().expect("text")), "{column}: {}", shown.stdout);
    }
    shown.prints("; 16 match; the first 2:");
    let one = folder.tamis(&["rollouts", "runs/tiny/validation/step_2.jsonl", "--limit", "1"]).succeeds();
    one.prints("8 trajectories; the first 1:");
    let none =
        "error: no rollouts of step 7 are saved in runs/tiny/rollouts; saved are those of steps 1 to 2\n";
    folder.tamis(&["rollouts", "runs/tiny", "--step", "7"]).exits(2).fails_with(none);
    folder.tamis(&words("train tiny.yaml run.name=bare train.total_steps=1 rollout.save=off")).succeeds();
    folder
        .tamis(&["rollouts", "runs/bare"])
        .exits(2)
        .fails_with("no rollouts are saved in runs/bare/rollouts\n");
}

#[test]
fn a_run_that_is_measured_before_training_is_measured_after_it() {
    let folder = Folder::tiny();
    let train = ["train", "tiny.yaml", "train.total_steps=2", "validate.save_samples=true"];
    folder.tamis(&[&train[..], &["validate.test_freq=0"]].concat()).succeeds();
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let measured: Vec<bool> = metrics.lines().map(|line| line.contains("\"val-core/")).collect();
    assert_eq!(measured, [true, false, true], "{metrics}");
    for (step, is_there) in [(0, true), (1, false), (2, true)] {
        let file = folder.join(&format!("runs/tiny/validation/step_{step}.jsonl"));
        assert_eq!(file.exists(), is_there, "{step}");
    }
    let never = ["validate.test_freq=0", "validate.before_train=false", "run.name=never"];
    folder.tamis(&[&train[..], &never].concat()).succeeds();
    assert!(!folder.read("runs/never/metrics.jsonl").contains("\"val-core/"));
    assert!(!folder.join("runs/never/validation").exists());
}

#[test]
fn export() {
    let folder = Folder::tiny().with("sums.jsonl", SUMS);
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let export = |arguments: &[&str]| folder.tamis(&[&["export", "runs/tiny"], arguments].concat());
    let written =
        [&["out/tied"][..], &["out/untied", "--untie"], &["out/half", "--untie", "--dtype", "bf16"]];
    insta::assert_snapshot!(written.map(|arguments| export(arguments).succeeds().stdout).concat(), @r"
    wrote out/tied: 2656 weights of runs/tiny/checkpoints/step_1 in float32, output head tied to the embedding
    wrote out/untied: 2944 weights of runs/tiny/checkpoints/step_1 in float32, output head of its own
    wrote out/half: 2944 weights of runs/tiny/checkpoints/step_1 in bfloat16, output head of its own
    ");
    let exists = "error: out/tied exists already\n  hint: name a folder that is not there yet\n";
    export(&["out/tied"]).exits(2).fails_with(exists);
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
    // A run begins with it, and a damaged one is refused.
    folder
        .tamis(&words(
            "train tiny.yaml ~model.init +model.path=out/untied run.name=second \
            train.total_steps=1",
        ))
        .succeeds();
    let weights = folder.join("out/half/model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(&weights, bytes).expect("written");
    insta::assert_snapshot!(folder.tamis(&["export", "out/half", "again"]).failure(), @r"
    exit code 1
    error: `model.safetensors` of the checkpoint out/half is damaged: its CRC-32 is 91ced907, and was e6c9e991 when it was saved
      hint: restore a copy of the file. If the change was intended, remove out/half/checksums.json
    ");
}

#[test]
fn a_head_of_its_own_beside_a_tied_configuration_is_used_by_all() {
    let folder = Folder::tiny().with("sums.jsonl", SUMS);
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    folder.tamis(&["export", "runs/tiny", "start", "--untie"]).succeeds();
    let train = |name: &str, model: &str| {
        let (name, model) = (format!("run.name={name}"), format!("+model.path={model}"));
        let more = ["~model.init", &model, &name, "sft.steps=0", "train.total_steps=1"];
        folder.tamis(&[&["train", "tiny.yaml"], &more[..]].concat()).succeeds()
    };
    // After training, its head differs.
    train("own", "start").never_says("tie_word_embeddings");
    folder.tamis(&["export", "runs/own", "untied"]).succeeds();
    folder.tamis(&["export", "runs/own", "tied"]).succeeds();
    let config = folder
        .read("tied/config.json")
        .replaced("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    folder.write("tied/config.json", &config);
    std::fs::remove_file(folder.join("tied/checksums.json")).expect("removed");
    let warned = |ended: &crate::tamis::Ended, times: usize| {
        let found = ended.stderr.matches("has `tie_word_embeddings: true`, but").count();
        assert_eq!(found, times, "{}", ended.shown());
    };
    let rest = [
        "data.val=sums.jsonl",
        "reward=[{kind: number}]",
        "data.max_prompt_length=12",
        "rollout.max_response_length=4",
        "validate.temperature=1",
        "validate.n=4",
    ];
    let found = |model: &str, times: usize| {
        let ended = folder.tamis(&[&["eval", model], &rest[..]].concat()).succeeds();
        warned(&ended, times);
        ended.stdout.replace(model, "MODEL")
    };
    assert_eq!(found("tied", 1), found("untied", 0));
    let exported = folder.tamis(&["export", "tied", "again"]).succeeds();
    warned(&exported, 1);
    exported.prints("output head of its own");
    let weights = |name: &str| std::fs::read(folder.join(name).join("model.safetensors")).expect("weights");
    assert!(weights("again") == weights("untied"));
    // Training continues from it as from the other, and a resume finds what was saved.
    warned(&train("of_tied", "tied"), 1);
    train("of_untied", "untied");
    let resumed = folder.tamis(&["train", "--resume", "runs/of_tied", "train.total_steps=2"]).succeeds();
    warned(&resumed, 0);
    folder.tamis(&["train", "--resume", "runs/of_untied", "train.total_steps=2"]).succeeds();
    for step in [1, 2] {
        let of = |name: &str| weights(&format!("runs/{name}/checkpoints/step_{step}"));
        assert!(of("of_tied") == of("of_untied"), "step {step}");
    }
}
