//! `tamis filter`, `tamis eval` and `tamis config` as a person types them.

mod tamis;

use tamis::Folder;

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
    insta::assert_snapshot!(folder.tamis(&arguments).shown(), @"");
    let rows = |places: [usize; 2]| {
        let lines: Vec<&str> = ROLLOUTS.lines().collect();
        places.map(|place| format!("{}\n", lines[place])).concat()
    };
    assert_eq!(folder.read("kept.jsonl"), rows([0, 2]));
    assert_eq!(folder.read("dropped.jsonl").lines().count(), 4);
    // A second time it would overwrite.
    insta::assert_snapshot!(folder.tamis(&arguments).shown(), @"");
    assert_eq!(folder.read("kept.jsonl"), rows([0, 2]));
    folder.tamis(&[&arguments[..], &["--overwrite"]].concat()).succeeds();

    let json = folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--json"]).succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("one JSON object");
    assert!(json.is_object());
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "mean_range", "--low", "0.25", "--high", "1", "--bounds", "closed"]).shown(), @"");
}

#[test]
fn filter_messages() {
    let folder = Folder::new().with("rollouts.jsonl", ROLLOUTS);
    insta::assert_snapshot!(folder.tamis(&["filter", "missing.jsonl", "--metric", "acc"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "accuracy"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--group", "prompt"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "text"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "mean_range"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--tolerance", "-1"]).shown(), @"");
    folder.write("torn.jsonl", &ROLLOUTS[..ROLLOUTS.len() - 10]);
    insta::assert_snapshot!(folder.tamis(&["filter", "torn.jsonl", "--metric", "acc"]).shown(), @"");
    folder.write("rows.csv", "uid,acc\n");
    insta::assert_snapshot!(folder.tamis(&["filter", "rows.csv", "--metric", "acc"]).shown(), @"");
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
    insta::assert_snapshot!(shown, @"");
    arguments.extend(["--kept".to_owned(), "kept.jsonl".to_owned(), "--dropped".to_owned(), "dropped.jsonl".to_owned()]);
    folder.tamis(&arguments).succeeds();
    assert_eq!(folder.read("kept.jsonl").lines().count(), 354);
    assert_eq!(folder.read("dropped.jsonl").lines().count(), 221 + 85);
}

#[test]
fn filter_of_a_runs_own_rollouts() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let ended = folder.tamis(&["filter", "runs/tiny/rollouts/step_1.parquet", "--metric", "acc", "--json"]).succeeds();
    let summary: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let step: serde_json::Value = serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
    // Offline the same groups are kept as in the run.
    assert_eq!(summary["num_groups"].as_f64(), step["groups/generated"].as_f64(), "{summary}");
    assert_eq!(summary["num_kept"].as_f64(), step["train/num_kept_prompts"].as_f64(), "{summary}");
}

#[test]
fn eval() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let ended = folder.tamis(&["eval", "runs/tiny"]).succeeds();
    insta::assert_snapshot!(ended.stdout, @"");
    let json = folder.tamis(&["eval", "runs/tiny", "--json", "validate.n=2", "validate.temperature=1"]).succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("one JSON object");
    assert_eq!(json["num_samples"], 2, "{json}");
    // The figures of the run's own validation after its last step.
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let step: serde_json::Value = serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
    let same = folder.tamis(&["eval", "runs/tiny/checkpoints/step_2", "--json"]).succeeds();
    let same: serde_json::Value = serde_json::from_str(&same.stdout).expect("JSON");
    let name = "val-aux/arithmetic/response_length/mean";
    assert!(step[name].is_number());
    assert_eq!(same["metrics"][name], step[name], "{same}");

    insta::assert_snapshot!(folder.tamis(&["eval", "nowhere"]).shown(), @"");
    std::fs::create_dir_all(folder.join("bare/checkpoints")).expect("folder");
    insta::assert_snapshot!(folder.tamis(&["eval", "bare"]).shown(), @"");
    std::fs::rename(folder.join("runs/tiny/checkpoints/step_2"), folder.join("alone")).expect("moved");
    insta::assert_snapshot!(folder.tamis(&["eval", "alone"]).shown(), @"");
    folder.tamis(&["eval", "alone", "tiny.yaml"]).succeeds();
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
    // What was printed is a configuration.
    folder.write("imported.yaml", &ended.stdout);
    folder.tamis(&["config", "check", "imported.yaml"]).succeeds();
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
                let ended = Folder::new().tamis(&["config", "check", &path.display().to_string()]).succeeds();
                assert!(ended.stdout.contains("the configuration is sound"), "{}: {}", path.display(), ended.shown());
                count += 1;
            }
        }
    }
    assert!(count >= 11, "{count} configurations");
}

#[test]
fn config_commands() {
    let folder = Folder::tiny();
    insta::assert_snapshot!(folder.tamis(&["config", "check", "tiny.yaml"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["config", "explain", "schedule.on_limit"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["config", "explain", "schedule.onlimit"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["config", "import", "--", "algorithm.no_such_key=1"]).shown(), @"");
    let schema = folder.tamis(&["config", "schema"]).succeeds().stdout;
    serde_json::from_str::<serde_json::Value>(&schema).expect("JSON");
    // What `show` prints loads to the same.
    let shown = folder.tamis(&["config", "show", "tiny.yaml"]).succeeds().stdout;
    folder.write("shown.yaml", &shown);
    let again = folder.tamis(&["config", "show", "shown.yaml"]).succeeds().stdout;
    let values = |text: &str| text.lines().map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    assert_eq!(values(&again), values(&shown));
}
