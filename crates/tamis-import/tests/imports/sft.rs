//! Commands of the supervised trainers of TRL and verl, and every key that these have.

use std::path::Path;

use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{NoteOutcome, Severity};
use tamis_import::{Import, Owner, export, import, load_sources};

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
                    if note.is_none_or(
                        |note| matches!(&note.outcome, NoteOutcome::Ignored(_) if default != "null"),
                    ) {
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
    assert_snapshot!(import.yaml, @r#"
run:
  name: Qwen2-0.5B-SFT  # TRL SFT: output_dir=Qwen2-0.5B-SFT
  dir: "."  # TRL SFT: output_dir=Qwen2-0.5B-SFT
  seed: 42  # TRL SFT: seed (default)
model:
  path: Qwen/Qwen2-0.5B  # TRL SFT: model_name_or_path=Qwen/Qwen2-0.5B
sft:
  epochs: 1  # TRL SFT: num_train_epochs=1
  data: "trl-lib/Capybara:train"  # TRL SFT: dataset_name=trl-lib/Capybara
  val: "trl-lib/Capybara:test"  # TRL SFT: dataset_test_split (default)
  loss_on: answers  # TRL SFT: assistant_only_loss=true
  max_length: 1024  # TRL SFT: max_length (default)
  batch_size: 16  # TRL SFT: per_device_train_batch_size=2
  learning_rate: 2e-4  # TRL SFT: learning_rate=2.0e-4
  warmup_steps: 20  # TRL SFT: warmup_steps=20
  lr_schedule: linear  # TRL SFT: lr_scheduler_type (default)
  min_lr_ratio: 0  # TRL SFT: the end of the schedule (default)
  test_freq: 100  # TRL SFT: eval_steps=100
learner:
  backend: torch  # TRL SFT: use_peft=true
  lora:
    rank: 32  # TRL SFT: use_peft=true
    alpha: 16  # TRL SFT: use_peft=true
    targets: [q_proj, v_proj]  # TRL SFT: use_peft=true
train:
  optimizer:
    weight_decay: 0.0  # TRL SFT: weight_decay (default)
  total_steps: 0  # TRL SFT: reinforcement learning (default)
checkpoint:
  save_freq: 500  # TRL SFT: save_steps (default)
  keep_last: null  # TRL SFT: save_total_limit (default)
"#);
    assert_snapshot!(notes(&import), @r#"
model_name_or_path=Qwen/Qwen2-0.5B -> model.path: Qwen/Qwen2-0.5B
dataset_name=trl-lib/Capybara -> sft.data: "trl-lib/Capybara:train"
learning_rate=2.0e-4 -> sft.learning_rate: 2e-4
num_train_epochs=1 -> sft.epochs: 1
packing=true has no effect: warning: TRL's batch is 16 packed sequences of 1024 tokens, and `sft.batch_size` counts rows: for as many tokens set it to 16384, divided by the mean length of a row in tokens
per_device_train_batch_size=2 -> sft.batch_size: 16
gradient_accumulation_steps=8 is translated together with per_device_train_batch_size
eval_strategy=steps has no effect: the interval is in steps
eval_steps=100 -> sft.test_freq: 100
use_peft=true -> learner.backend: torch, learner.lora: {rank: 32, alpha: 16, targets: [q_proj, v_proj]} (an adapter is trained in PyTorch, which `learner.python` must have (`scripts/install-torch`))
lora_r=32 is translated together with use_peft
lora_alpha=16 is translated together with use_peft
assistant_only_loss=true -> sft.loss_on: answers
warmup_steps=20 -> sft.warmup_steps: 20
output_dir=Qwen2-0.5B-SFT -> run.dir: ".", run.name: Qwen2-0.5B-SFT
dataset_test_split is not given -> sft.val: "trl-lib/Capybara:test" (TRL SFT's default)
reinforcement learning is not given -> train.total_steps: 0 (TRL SFT's default)
seed is not given -> run.seed: 42 (TRL SFT's default)
lr_scheduler_type is not given -> sft.lr_schedule: linear (TRL SFT's default)
the end of the schedule is not given -> sft.min_lr_ratio: 0 (TRL SFT's default)
weight_decay is not given -> train.optimizer.weight_decay: 0.0 (TRL SFT's default)
max_length is not given -> sft.max_length: 1024 (TRL SFT's default)
save_steps is not given -> checkpoint.save_freq: 500 (TRL SFT's default)
save_total_limit is not given -> checkpoint.keep_last: null (TRL SFT's default)
"#);
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
    assert_snapshot!(import.yaml, @r#"
run:
  name: qwen-peft  # verl SFT: trainer.experiment_name=qwen-peft
  dir: runs/gsm8k-sft  # verl SFT: trainer.project_name=gsm8k-sft
  seed: 1  # verl SFT: trainer.seed (default)
  loggers: [console, jsonl]  # verl SFT: trainer.logger=console
model:
  path: Qwen/Qwen2.5-0.5B-Instruct  # verl SFT: model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct
sft:
  epochs: 1  # verl SFT: trainer.total_epochs=1
  data: gsm8k/train.parquet  # verl SFT: data.train_files=gsm8k/train.parquet
  val: gsm8k/test.parquet  # verl SFT: data.val_files=gsm8k/test.parquet
  columns:
    prompt: extra_info.question  # verl SFT: data.prompt_key=extra_info
    completion: extra_info.answer  # verl SFT: data.response_key=extra_info
  max_length: 1024  # verl SFT: data.max_length (default)
  batch_size: 256  # verl SFT: data.train_batch_size (default)
  learning_rate: 1e-4  # verl SFT: optim.lr=1e-4
  warmup_steps: 0  # verl SFT: optim.lr_warmup_steps_ratio (default)
  lr_schedule: constant  # verl SFT: optim.lr_scheduler_type (default)
learner:
  backend: torch  # verl SFT: model.lora_rank=32
  gpus_per_node: 2  # verl SFT: num_processes=2
  lora:
    rank: 32  # verl SFT: model.lora_rank=32
    alpha: 16  # verl SFT: model.lora_rank=32
    targets: null  # verl SFT: model.lora_rank=32
cluster:
  launcher: local  # verl SFT: num_processes=2
train:
  micro_batch_tokens: 8192  # verl SFT: data.max_token_len_per_gpu (default)
  optimizer:
    weight_decay: 0.01  # verl SFT: optim.weight_decay (default)
  total_steps: 0  # verl SFT: reinforcement learning (default)
checkpoint:
  save_freq: 0  # verl SFT: trainer.save_freq (default)
  keep_last: null  # verl SFT: trainer.max_ckpt_to_keep (default)
"#);
    assert_snapshot!(notes(&import), @r#"
data.train_files=gsm8k/train.parquet -> sft.data: gsm8k/train.parquet
data.val_files=gsm8k/test.parquet -> sft.val: gsm8k/test.parquet
data.prompt_key=extra_info -> sft.columns.prompt: extra_info.question
data.response_key=extra_info -> sft.columns.completion: extra_info.answer
optim.lr=1e-4 -> sft.learning_rate: 1e-4
data.prompt_dict_keys=["question"] is translated together with data.prompt_key
data.response_dict_keys=["answer"] is translated together with data.response_key
data.micro_batch_size_per_gpu=4 has no effect: rows are always packed into passes of `train.micro_batch_tokens`
model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct -> model.path: Qwen/Qwen2.5-0.5B-Instruct
trainer.default_local_dir=out has no effect: checkpoints are in the run folder, `run.dir/run.name`
trainer.project_name=gsm8k-sft -> run.dir: runs/gsm8k-sft
trainer.experiment_name=qwen-peft -> run.name: qwen-peft
trainer.logger=console -> run.loggers: [console, jsonl]
trainer.total_epochs=1 -> sft.epochs: 1
model.lora_rank=32 -> learner.backend: torch, learner.lora: {rank: 32, alpha: 16, targets: null} (an adapter is trained in PyTorch, which `learner.python` must have (`scripts/install-torch`))
model.lora_alpha=16 is translated together with model.lora_rank
model.target_modules=all-linear is translated together with model.lora_rank
num_processes=2 -> learner.backend: torch, learner.gpus_per_node: 2, cluster.launcher: local
reinforcement learning is not given -> train.total_steps: 0 (verl SFT's default)
data.train_batch_size is not given -> sft.batch_size: 256 (verl SFT's default)
data.max_length is not given -> sft.max_length: 1024 (verl SFT's default)
data.max_token_len_per_gpu is not given -> train.micro_batch_tokens: 8192 (verl SFT's default)
trainer.seed is not given -> run.seed: 1 (verl SFT's default)
trainer.save_freq is not given -> checkpoint.save_freq: 0 (verl SFT's default)
trainer.max_ckpt_to_keep is not given -> checkpoint.keep_last: null (verl SFT's default)
optim.lr_warmup_steps_ratio is not given -> sft.warmup_steps: 0 (verl SFT's default)
optim.lr_scheduler_type is not given -> sft.lr_schedule: constant (verl SFT's default)
optim.weight_decay is not given -> train.optimizer.weight_decay: 0.01 (verl SFT's default)
"#);
}

#[test]
fn an_epoch_is_so_many_updates() {
    let of = |more: &str| {
        let more: Vec<String> = more.split_whitespace().map(str::to_owned).collect();
        let config = with(Owner::TrlSft, &more).map(|import| loaded(&import))?;
        let pointers = ["/sft/test_freq", "/checkpoint/save_freq", "/sft/warmup_steps"];
        Ok::<_, String>(pointers.map(|pointer| value_at(&config, pointer)).join(" "))
    };
    let strategies = "eval_strategy=epoch save_strategy=epoch warmup_ratio=0.1 per_device_train_batch_size=4";
    // 103 rows in batches of 4: 26 updates an epoch, 78 in three.
    assert_eq!(of(&format!("{strategies} num_rows=103")), Ok("26 26 8".to_owned()));
    let errors = of(strategies).expect_err("the number of rows is not known");
    for key in ["eval_strategy=epoch", "save_strategy=epoch", "warmup_ratio=0.1"] {
        assert!(errors.contains(key), "{errors}");
    }
    assert!(errors.contains("add num_rows=N"), "{errors}");
    assert_eq!(of("max_steps=50 warmup_ratio=0.1 save_steps=0.2"), Ok("25 10 5".to_owned()));
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
    assert_snapshot!(import_errors(&["trl", "sft", "--model_name_or_path=m", "--packng", "--loss_type", "dft"]), @r#"
error: `packng` is no key of TRL SFT that tamis knows
  at command line: «packng»=true
  hint: did you mean `packing`?
error: `loss_type=dft` of TRL SFT cannot be followed: the loss is the cross-entropy
  at command line, TRL SFT key: loss_type=«dft»
  hint: see `tamis config explain loss_type`
"#);
    assert_snapshot!(import_errors(&["python3", "-m", "verl.trainer.sft_trainer", "data.train_batch=4", "optim.lrr=1"]), @r#"
error: `data.train_batch` is no key of verl SFT that tamis knows
  at command line: «data.train_batch»=4
  hint: did you mean `data.train_batch_size`?
error: `optim.lrr` is no key of verl SFT that tamis knows
  at command line: «optim.lrr»=1
  hint: did you mean `optim.lr`?
"#);
    // Without the command they would be taken for another trainer's.
    assert_snapshot!(import_errors(&["model_name_or_path=m", "packing=True"]), @r#"
error: `packing` is no key of TRL that tamis knows
  at command line: «packing»=True
  hint: it is a key of supervised training: give the command, `tamis train -- trl sft ...`
"#);
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
    let here = path("");
    let words =
        ["python3", "-m", "verl.trainer.sft_trainer", "--config-path", &here, "--config-name", "verl"];
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

/// What is exported imports as the configuration again, and what does not is listed.
#[test]
fn the_way_back() {
    let yaml = "model: {path: m}\nsft: {data: d.jsonl, epochs: 2, batch_size: 32, learning_rate: 1e-4, lr_schedule: constant, \
                warmup_steps: 0, min_lr_ratio: 0, max_length: 512, loss_on: answers, val_fraction: 0.1}\n\
                train: {total_steps: 0}\ncheckpoint: {save_freq: 50}\n";
    let source = Source::new(SourceKind::File("sft.yaml".into()), yaml.to_owned());
    let config = load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}")).config;
    for owner in Owner::SFT {
        let exported = export(&config, owner);
        let imported =
            with(owner, &exported.arguments()).unwrap_or_else(|errors| panic!("{owner}: {errors}"));
        let back = loaded(&imported).sft;
        assert_eq!(
            (back.epochs, back.batch_size, back.max_length, back.learning_rate),
            (Some(2.0), 32, Some(512), Some(1e-4)),
            "{owner}: {:?}",
            exported.settings
        );
        let lost = exported.lost_lines().join("\n");
        assert!(lost.contains("sft.val_fraction: 0.1"), "{owner}: {lost}");
    }
}
