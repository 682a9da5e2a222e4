//! Configurations that former versions wrote are read as they were meant, or refused with the way on.

use std::path::{Path, PathBuf};

use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, Loaded, import, load, load_of_run, load_sources};

const BASE: &str = "model: {path: m}\ndata: {task: arithmetic}\ntrain: {total_steps: 10}\n";

/// Runs of before: the file that its `config.yaml` is kept in, and the same settings in the form of today.
const RUNS: [(&str, &str); 4] = [
    (
        "dapo",
        "preset: dapo\n\
         objective: {advantage: {kind: grpo, scale: none}, loss: {kind: gspo, clip_low: 0.2, clip_high: 0.01}}\n\
         filter: {kind: top_p, p: 0.9, metric: score}\n\
         train: {micro_batch_tokens: 8192, balance_micro_batches: false}",
    ),
    (
        "ppo",
        "preset: ppo\nobjective: {advantage: {lambda: 0.9}}\ntrain: {micro_batch_tokens: 8192, balance_micro_batches: false}",
    ),
    (
        "cpo",
        "objective: {advantage: {kind: cpo, wrap: tok_kl, gold_hint: '{prompt}{gold}'}, loss: {log_ratio_limit: null}}\n\
         train: {micro_batch_tokens: 8192, balance_micro_batches: false}",
    ),
    // A command of TRL as earlier builds imported it: no section names its kind.
    (
        "trl",
        "run: {seed: 42}\ndata: {task: arithmetic, train_batch_size: 4}\nrollout: {n: 4}\n\
         objective: {advantage: {epsilon: 1e-4}, loss: {clip_low: 0.2, clip_high: 0.28, dual_clip: null, log_ratio_limit: null}}\n\
         train: {ppo_mini_batch_size: 4, micro_batch_size: 16, optimizer: {weight_decay: 0.0}, lr_schedule: {kind: linear}, \
         total_steps: 10}\ncheckpoint: {save_freq: 500, keep_last: null}",
    ),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/older").join(format!("{name}.yaml"))
}

fn today(rest: &str) -> Config {
    let layers = [BASE, rest].map(|text| Source::new(SourceKind::File("run.yaml".into()), text));
    sound(load_sources(&layers, &[]))
}

fn sound(loaded: Result<Loaded, tamis_config::ConfigErrors>) -> Config {
    loaded.unwrap_or_else(|errors| panic!("{errors}")).config
}

/// Paths in files are taken from the folder of the file.
fn in_folder_of(read: &Config, config: Config) -> Config {
    let mut config = config;
    config.model.path.clone_from(&read.model.path);
    config.run.dir.clone_from(&read.run.dir);
    config
}

/// Compares two configurations, and shows the differences alone.
#[track_caller]
fn expect_same(name: &str, read: &Config, meant: Config) {
    let (read, meant) = (format!("{read:#?}"), format!("{:#?}", in_folder_of(read, meant)));
    let differing: Vec<_> = read.lines().zip(meant.lines()).filter(|(read, meant)| read != meant).collect();
    assert!(read == meant, "{name}: {differing:?}");
}

#[test]
fn the_configuration_of_a_run_is_read_as_it_was_meant() {
    for (name, meant) in RUNS {
        let read = sound(load_of_run(&fixture(name), &[], &[]));
        expect_same(name, &read, today(meant));
    }
}

#[test]
fn an_imported_file_is_the_configuration_that_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, meant) in RUNS {
        let file = fixture(name);
        let refused = load(std::slice::from_ref(&file), &[]).expect_err("an older form").to_string();
        assert!(refused.contains("tamis config import"), "{refused}");
        let imported = import(&[file.to_string_lossy().into_owned()], Path::new(""))
            .unwrap_or_else(|errors| panic!("{name}: {errors}"));
        let path = folder.path().join("today.yaml");
        std::fs::write(&path, &imported.yaml).expect("a file");
        let read = sound(load(&[path], &[]));
        expect_same(name, &read, today(meant));
    }
}

/// A setting of another kind is left out, as the build that wrote the file did with a warning.
#[test]
fn a_setting_of_another_kind_is_left_out_with_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("old.yaml");
    std::fs::write(&path, format!("{BASE}objective: {{advantage: {{singleton: raw, gamma: 0.9}}}}\n"))
        .expect("a file");
    let imported = import(&[path.to_string_lossy().into_owned()], Path::new("")).expect("sound");
    assert!(!imported.yaml.contains("gamma"), "{}", imported.yaml);
    let [found] = imported.remaining.as_slice() else { panic!("{:?}", imported.remaining) };
    let found = found.to_string();
    assert!(
        found.starts_with("warning: `objective.advantage.gamma` has no effect: the kind here is `grpo`"),
        "{found}"
    );
    assert!(found.contains("old.yaml:4:"), "{found}");
}

/// A file that says little stays one that says little: what another system's defaults are is not asked.
#[test]
fn a_file_of_tamis_is_imported_without_the_defaults_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let imported = |text: &str, more: &[&str]| {
        let path = folder.path().join("old.yaml");
        std::fs::write(&path, text).expect("a file");
        let mut arguments = vec![path.to_string_lossy().into_owned()];
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        import(&arguments, Path::new("")).map(|imported| {
            let settings = imported.yaml.lines().map(|line| line.split("  # ").next().unwrap_or_default());
            settings.collect::<Vec<_>>().join("\n")
        })
    };
    let text = "data: {task: arithmetic, train_batch_size: 512}\ntrain: {total_steps: 100}\n";
    let data = "data:\n  task: arithmetic\n  train_batch_size: 512\n";
    let steps = "train:\n  total_steps: 100";
    assert_eq!(
        imported(&format!("{text}objective: {{advantage: {{norm_by_std: false}}}}\n"), &[]).expect("sound"),
        format!("{data}objective:\n  advantage:\n    scale: none\n{steps}")
    );
    assert_eq!(
        imported(&format!("{text}rollout: {{n: 8}}\n"), &["rollout.n=4"]).expect("sound"),
        format!("{data}rollout:\n  n: 4\n{steps}")
    );
    for (text, expected) in [
        ("objective: {advantage: {norm_by_std: nope}}", "`objective.advantage.scale` cannot be `nope`"),
        (
            "objective: {advantage: {estimator: grpo, kind: rloo}}",
            "hint: did you mean `objective.advantage.kind`?",
        ),
        ("objective: {advantage: {estimator: cpo, difficulty: fork}}", "difficulty: fork` of `cpo` is gone"),
        ("objective: {advantage: {estimator: grpo, tpyo: 3}}", "unknown key `objective.advantage.tpyo`"),
        ("rollout: {n: 4}\nobjective: {advantage: {kind: cpo, wrap: naive}}", "wrap"),
    ] {
        let error = imported(text, &[]).expect_err(text).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error =
        imported("rollout: {n: 4}", &["objective.advantage.estimator=rloo"]).expect_err("a name of before");
    assert!(error.to_string().contains("it is called `objective.advantage.kind` now"), "{error}");
    let error = imported("rollout: {n: 4}", &["algorithm.adv_estimator=rloo"]).expect_err("two systems");
    assert!(error.to_string().contains("`algorithm.adv_estimator` is no key of tamis"), "{error}");
}
