//! Commands of the supervised trainers of TRL and verl, and every key that these have.

use std::path::Path;

use insta::assert_snapshot;
use tamis_config::{NoteOutcome, Severity};
use tamis_import::{Import, Owner, import};

use super::{converted, import_errors, loaded, notes, value_at};

/// Every key with its default, as `scripts/foreign-keys` lists them.
const TRL: &str = include_str!("keys/trl-sft.tsv");
const VERL: &str = include_str!("../foreign/verl-sft-0.9.1.keys");

/// The words that start a trainer, with a model and rows.
fn base(owner: Owner) -> Vec<String> {
    let words: &[&str] = match owner {
        Owner::TrlSft => &["trl", "sft", "model_name_or_path=m", "dataset_name=d.jsonl"],
        _ => &["python3", "-m", "verl.trainer.sft_trainer", "model.path=m", "data.train_files=d.jsonl"],
    };
    words.iter().map(|&word| word.to_owned()).collect()
}

fn with(owner: Owner, more: &[String]) -> Result<Import, String> {
    import(&[base(owner), more.to_vec()].concat(), Path::new("")).map_err(|errors| errors.to_string())
}

/// The keys of a trainer with their defaults, as they are typed.
fn keys_of(owner: Owner) -> Vec<(&'static str, String)> {
    let (table, is_json) = if owner == Owner::TrlSft { (TRL, false) } else { (VERL, true) };
    let typed = |text: &str| match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::String(text)) if is_json => text,
        _ => text.trim_matches('"').to_owned(),
    };
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('\t')).map(|(key, default)| (key, typed(default))).collect()
}

fn is_named(owner: Owner, key: &str) -> bool {
    base(owner).iter().any(|word| word.split_once('=').is_some_and(|(own, _)| own == key))
}

/// Keys whose default, if it is given, differs from not being given, or is not taken.
const TOLD_APART: [(&str, &str); 6] = [
    ("gradient_checkpointing", "memory only: it is not switched on if nobody asks"),
    ("model.enable_gradient_checkpointing", "memory only: it is not switched on if nobody asks"),
    ("report_to", "TensorBoard's files are written unless loggers are named"),
    ("trainer.logger", "TensorBoard's files are written unless loggers are named"),
    ("trainer.n_gpus_per_node", "a command that names its GPUs learns on them"),
    ("trainer.default_local_dir", "a reference to other keys, which the shell would fill in"),
];

#[test]
fn every_key_has_a_row_and_its_default_changes_nothing() {
    let mut unused: Vec<&str> = TOLD_APART.iter().map(|(key, _)| *key).collect();
    let mut wrong = Vec::new();
    for owner in Owner::SFT {
        let plain = with(owner, &[]).expect("the command alone");
        assert_eq!(plain.remaining, [], "{owner}: the command lacks nothing");
        let expected = loaded(&plain);
        for (key, default) in keys_of(owner) {
            let row = owner.keys().iter().any(|row| {
                row.key == key || row.key.strip_suffix('*').is_some_and(|start| key.starts_with(start))
            });
            if !row && !key.ends_with("_target_") {
                wrong.push(format!("{owner}: no row for {key}"));
            }
            if is_named(owner, key) || default.contains("${") {
                unused.retain(|other| *other != key);
                continue;
            }
            match with(owner, &[format!("{key}={default}")]) {
                Err(errors) => wrong.push(format!("{owner}: {key}={default} is refused: {errors}")),
                Ok(given) if TOLD_APART.iter().any(|(other, _)| *other == key) => {
                    unused.retain(|other| *other != key);
                    assert!(loaded(&given) != expected, "{key}={default} changes nothing");
                }
                Ok(given) => {
                    if loaded(&given) != expected {
                        wrong.push(format!("{owner}: {key}={default} changes something\n{}", given.yaml));
                    }
                    let note = given.notes.iter().find(|note| note.key == key);
                    if note.is_none_or(|note| note.to_string().contains("warning") && default != "null") {
                        wrong.push(format!("{owner}: {key}={default}: {note:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(unused, [""; 0], "exceptions that no key needs");
}

#[test]
fn the_tables_have_the_trainers_defaults() {
    let plain = |text: &str| {
        let text = text.to_lowercase().replace(['"', '\'', ' '], "");
        text.parse::<f64>().map_or(text, |number| number.to_string())
    };
    let mut wrong = Vec::new();
    for owner in Owner::SFT {
        for (key, default) in keys_of(owner) {
            let Some(row) = owner.keys().iter().find(|row| row.key == key) else { continue };
            // Keys of engines besides fsdp have no default in the table.
            if !row.default.is_empty() && plain(row.default) != plain(&default) {
                wrong.push(format!("{owner}: {key} is {default} there, {} here", row.default));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// All of them at once, as in a configuration that a system writes.
#[test]
fn a_command_with_every_default_is_taken() {
    for owner in Owner::SFT {
        let all: Vec<String> = keys_of(owner)
            .iter()
            .filter(|(key, default)| !is_named(owner, key) && !default.contains("${"))
            .map(|(key, default)| format!("{key}={default}"))
            .collect();
        let import = with(owner, &all).unwrap_or_else(|errors| panic!("{owner}: {errors}"));
        assert_eq!(import.remaining, [], "{owner}");
        assert!(loaded(&import).is_sft_alone());
    }
}

/// Values that are no defaults are followed, or refused with a fix; what is printed a run takes.
#[test]
fn other_values_are_followed_or_refused() {
    for owner in Owner::SFT {
        for (key, _) in keys_of(owner) {
            for value in ["0", "1", "0.5", "-1", "True", "False", "null", "steps", "epoch", "cosine", "left"]
            {
                let words = [base(owner), vec![format!("{key}={value}")]].concat();
                match import(&words, Path::new("")) {
                    Ok(import) => {
                        let lacks = import.remaining.iter().any(|found| found.severity == Severity::Error);
                        assert!(!import.notes.is_empty(), "{key}={value} says nothing");
                        if !lacks {
                            loaded(&import);
                        }
                    }
                    Err(errors) => {
                        for found in &errors.diagnostics {
                            assert!(found.hint().is_some(), "{key}={value}: no fix in {found}");
                        }
                    }
                }
            }
        }
    }
}

/// The command at the top of TRL's own `sft.py`, with an adapter.
#[test]
fn a_command_of_trl() {
    let command = "python trl/scripts/sft.py --model_name_or_path Qwen/Qwen2-0.5B --dataset_name trl-lib/Capybara \
        --learning_rate 2.0e-4 --num_train_epochs 1 --packing --per_device_train_batch_size 2 \
        --gradient_accumulation_steps 8 --eval_strategy steps --eval_steps 100 --use_peft --lora_r 32 --lora_alpha 16 \
        --assistant_only_loss --warmup_steps 20 --output_dir Qwen2-0.5B-SFT";
    let words: Vec<&str> = command.split_whitespace().collect();
    let import = converted(&words);
    assert_snapshot!(import.yaml, @"");
    assert_snapshot!(notes(&import), @"");
    // An accelerate launcher multiplies the batch.
    let launched = command.replace("python", "accelerate launch --num_processes 4");
    let words: Vec<&str> = launched.split_whitespace().collect();
    assert_eq!(value_at(&loaded(&converted(&words)), "/sft/batch_size"), "64");
}

/// verl's example of SFT with an adapter on GSM8K, in the names of its older versions.
#[test]
fn a_command_of_verl() {
    let command = "torchrun --standalone --nnodes=1 --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer \
        data.train_files=gsm8k/train.parquet data.val_files=gsm8k/test.parquet data.prompt_key=extra_info \
        data.response_key=extra_info optim.lr=1e-4 data.prompt_dict_keys=['question'] \
        +data.response_dict_keys=['answer'] data.micro_batch_size_per_gpu=4 model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \
        trainer.default_local_dir=out trainer.project_name=gsm8k-sft trainer.experiment_name=qwen-peft \
        trainer.logger=console trainer.total_epochs=1 model.lora_rank=32 model.lora_alpha=16 model.target_modules=all-linear";
    let words: Vec<&str> = command.split_whitespace().collect();
    let import = converted(&words);
    assert_snapshot!(import.yaml, @"");
    assert_snapshot!(notes(&import), @"");
}

#[test]
fn an_epoch_is_so_many_updates() {
    let of = |more: &str| {
        let more: Vec<String> = more.split_whitespace().map(str::to_owned).collect();
        let config = with(Owner::TrlSft, &more).map(|import| loaded(&import))?;
        Ok::<_, String>(
            [config.sft.test_freq, config.checkpoint.save_freq, config.sft.warmup_steps].map(|n| n as u64),
        )
    };
    let strategies = "eval_strategy=epoch save_strategy=epoch warmup_ratio=0.1 per_device_train_batch_size=4";
    // 103 rows in batches of 4: 26 updates an epoch, 78 in three.
    assert_eq!(of(&format!("{strategies} num_rows=103")), Ok([26, 26, 8]));
    let errors = of(strategies).expect_err("the number of rows is not known");
    for key in ["eval_strategy=epoch", "save_strategy=epoch", "warmup_ratio=0.1"] {
        assert!(errors.contains(key), "{errors}");
    }
    assert!(errors.contains("add num_rows=N"), "{errors}");
    assert_eq!(of("max_steps=50 warmup_ratio=0.1 save_steps=0.2"), Ok([25, 10, 5]));
}

#[test]
fn the_tokens_with_a_loss() {
    for (flags, loss_on) in [
        ("", "completions"),
        ("assistant_only_loss=True", "answers"),
        ("completion_only_loss=True", "completions"),
        ("completion_only_loss=False", "all"),
        ("completion_only_loss=False assistant_only_loss=True", "answers"),
    ] {
        let more: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
        let import = with(Owner::TrlSft, &more).expect("taken");
        assert_eq!(value_at(&loaded(&import), "/sft/loss_on"), format!("{loss_on:?}"), "{flags}");
    }
}

#[test]
fn keys_that_no_trainer_has() {
    assert_snapshot!(import_errors(&["trl", "sft", "--model_name_or_path=m", "--packng", "--loss_type", "dft"]), @"");
    assert_snapshot!(import_errors(&["python3", "-m", "verl.trainer.sft_trainer", "data.train_batch=4", "optim.lrr=1"]), @"");
    // Without the command they would be taken for another trainer's.
    assert_snapshot!(import_errors(&["model_name_or_path=m", "packing=True"]), @"");
}

/// A file of TRL or verl beside the command, with the place of what is wrong in it.
#[test]
fn files_beside_a_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(
        path("trl.yaml"),
        "model_name_or_path: m\ndataset_name: d.jsonl\nmax_length: 64\nlr_schedulr_type: cosine\n",
    )
    .expect("written");
    let errors = import(&["trl", "sft", "--config", &path("trl.yaml")].map(str::to_owned), Path::new(""))
        .expect_err("a key with a typo")
        .to_string();
    assert!(
        errors.contains("trl.yaml:4:1") && errors.contains("did you mean `lr_scheduler_type`?"),
        "{errors}"
    );
    std::fs::write(
        path("verl.yaml"),
        "data: {train_files: d.jsonl, max_length: 64}\nmodel: {path: m}\noptim: {lr: 0.001}\n",
    )
    .expect("written");
    let words =
        ["python3", "-m", "verl.trainer.sft_trainer", "--config-path", &path(""), "--config-name", "verl"];
    let import = converted(&words);
    let config = loaded(&import);
    assert_eq!(value_at(&config, "/sft/max_length"), "64");
    assert_eq!(value_at(&config, "/sft/learning_rate"), "0.001");
    let of_model = import.notes.iter().find(|note| note.key == "model.path").expect("a note");
    assert!(
        matches!(&of_model.outcome, NoteOutcome::Became(pairs) if pairs[0].0 == "model.path"),
        "{of_model}"
    );
}
