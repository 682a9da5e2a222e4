//! Scripts and commands of other systems that train on rows: TRL's `SFTTrainer`, verl's `sft_trainer`.

use std::fmt::Write as _;

use crate::tamis::{Folder, TINY, unfiltered, words};

/// A folder with a model in `tiny`, and sums with a question and an answer in `sums.jsonl`.
fn folder() -> Folder {
    let folder = Folder::new().with("tiny.yaml", &unfiltered(TINY));
    folder.tamis(&words("train tiny.yaml train.total_steps=1 validate.before_train=false")).succeeds();
    folder.tamis(&words("export runs/tiny tiny")).succeeds();
    std::fs::remove_dir_all(folder.join("runs")).expect("removed");
    let mut rows = String::new();
    for row in 0..40 {
        let (left, right) = (row / 8, row % 8);
        let nested = format!(r#"{{"question": "{left}+{right}=", "answer": "{}"}}"#, left + right);
        let _ = writeln!(
            rows,
            r#"{{"extra_info": {nested}, "prompt": "{left}+{right}=", "completion": "{}"}}"#,
            left + right
        );
    }
    folder.with("sums.jsonl", &rows)
}

/// A script without TRL, whose names the stand-ins give.
fn script(config: &str, trainer: &str) -> String {
    format!(
        "import json\nfrom trl import SFTConfig, SFTTrainer\nfrom peft import LoraConfig\n\n\
         rows = [json.loads(line) for line in open('sums.jsonl')]\n\
         args = SFTConfig(output_dir='out/sft', max_length=16, {config})\n\
         trainer = SFTTrainer(model='tiny', args=args, train_dataset=rows[:32], eval_dataset=rows[32:], {trainer})\n\
         result = trainer.train()\nprint('steps', result.global_step, result.training_loss > 0)\ntrainer.save_model('model')\n"
    )
}

#[test]
fn a_script_with_an_sft_trainer_becomes_a_run_of_sft_alone() {
    let arguments = "per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2, learning_rate=1e-2, \
                     eval_strategy='epoch', save_strategy='epoch', warmup_ratio=0.25, packing=True";
    let folder = folder().with("train_sft.py", &script(arguments, ""));
    let shown = folder.tamis(&words("train train_sft.py --dry-run")).succeeds();
    shown
        .prints("total_steps: 0")
        .prints("batch_size: 8")
        .prints("warmup_steps: 2")
        .prints("test_freq: 4")
        .prints("epochs: 2");
    shown.prints("# packing=true has no effect: warning: TRL's batch is 8 packed sequences of 16 tokens");
    let ended = folder.tamis(&words("train train_sft.py")).succeeds();
    ended.prints("steps 8 True").says("sft.data: 32 rows from 1 file").says("sft.val: 8 rows from 1 file");
    let metrics = folder.read("out/sft/metrics.jsonl");
    assert_eq!(metrics.lines().filter(|line| line.contains("sft/val_loss")).count(), 2, "{metrics}");
    assert!(folder.join("model/model.safetensors").exists());
    assert!(folder.join("out/sft/checkpoints/step_4").exists(), "one of each epoch");
    // The columns that TRL does not read are no rows of ours.
    assert!(!folder.read("out/sft.script/train.jsonl").contains("extra_info"));
    // Another value, of TRL's or ours.
    let ended = folder.tamis(&words("train train_sft.py max_steps=1 sft.batch_size=4")).succeeds();
    ended.prints("steps 1 True");
}

#[test]
fn what_an_sft_trainer_is_given_is_followed_or_refused() {
    let folder = folder();
    let refused = |config: &str, trainer: &str| {
        folder.write("train_sft.py", &script(config, trainer));
        folder.tamis(&words("train train_sft.py")).exits(2)
    };
    refused("", "callbacks=[print], data_collator=print")
        .says("SFTTrainer(data_collator=...) is not followed: rows are packed");
    refused("loss_type='dft'", "")
        .says("`loss_type=dft` of TRL SFT cannot be followed: the loss is the cross-entropy");
    refused("packing_strategy='wrapped', packing=True", "").says("take packing_strategy=bfd");
    refused("mx_length=3", "")
        .says("`mx_length` is no key of TRL SFT that tamis knows")
        .says("did you mean `max_length`?");
    refused("completion_only_loss=True", "formatting_func=str")
        .says("formatting_func makes texts, which have no completion");
    folder.write("train_sft.py", &script("", "").replace("rows[:32]", "[{'input_ids': [1, 2]}]"));
    folder.tamis(&words("train train_sft.py")).exits(2).says("it has input_ids");
    folder.write(
        "train_sft.py",
        &script("", "").replace("eval_dataset=rows[32:], ", "").replace("16, ", "16, eval_strategy='steps'"),
    );
    folder.tamis(&words("train train_sft.py")).exits(2).says("there is no eval_dataset");
    // Texts that a function makes, and a text column of another name.
    let formatted = script("max_steps=1", "formatting_func=lambda row: row['prompt'] + row['completion']");
    folder.write("train_sft.py", &formatted);
    folder.tamis(&words("train train_sft.py")).succeeds();
    assert!(folder.read("out/sft.script/train.jsonl").starts_with("{\"text\": \"0+0=0\"}\n"));
    let renamed = script("max_steps=1, dataset_text_field='question'", "")
        .replace("rows[:32]", "[row['extra_info'] for row in rows]");
    folder.write("train_sft.py", &renamed);
    folder.tamis(&words("train train_sft.py")).succeeds();
    assert!(folder.read("out/sft-2.script/train.jsonl").starts_with("{\"text\": \"0+0=\"}\n"));
    let adapter =
        script("max_steps=1", "peft_config=LoraConfig(r=4, lora_alpha=8, target_modules='all-linear')");
    folder.write("train_sft.py", &adapter);
    let shown = folder.tamis(&words("train train_sft.py --dry-run")).succeeds();
    shown.prints("backend: torch").prints("rank: 4");
}

#[test]
fn a_command_of_a_shell_script_becomes_a_run() {
    let folder = folder();
    folder.write(
        "run.sh",
        "set -x\nnproc_per_node=$1\nshift\n\
         torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \\\n    -m verl.trainer.fsdp_sft_trainer \\\n    \
         data.train_files=sums.jsonl data.prompt_key=extra_info data.response_key=extra_info \\\n    \
         +data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer'] data.train_batch_size=8 \\\n    \
         model.partial_pretrain=tiny data.max_length=16 trainer.project_name=sums trainer.experiment_name=verl \\\n    \
         trainer.total_epochs=1 optim.lr=1e-2 \"$@\"\n\
         trl sft --model_name_or_path tiny --dataset_name sums.jsonl --max_length 16 --max_steps 1 --output_dir out/trl\n",
    );
    let shown = folder.tamis(&words("train run.sh --dry-run")).succeeds();
    shown
        .prints("# run.sh:4:")
        .prints("fsdp_sft_trainer")
        .prints("# run.sh:")
        .prints("trl sft --model_name_or_path");
    let ended = folder.tamis(&words("train run.sh -- 1 trainer.save_freq=2")).succeeds();
    ended.says("data.prompt_key=extra_info -> sft.columns.prompt: extra_info.question");
    assert_eq!(folder.read("runs/sums/verl/metrics.jsonl").lines().count(), 5);
    assert!(
        folder.join("runs/sums/verl/checkpoints/step_2").exists()
            || folder.join("runs/sums/verl/checkpoints/step_4").exists()
    );
    assert_eq!(folder.read("out/trl/metrics.jsonl").lines().count(), 1);
    // Without a shell.
    let line = "config check -- python3 -m verl.trainer.sft_trainer model.path=tiny data.train_files=sums.jsonl data.max_length=16";
    folder.tamis(&words(line)).succeeds().prints("the configuration is sound");
    let line = "train -- python3 -m verl.trainer.sft_trainer model.path=tiny data.train_files=sums.jsonl model.lora_rnk=3";
    folder.tamis(&words(line)).exits(2).says("did you mean `model.lora_rank`?");
}
