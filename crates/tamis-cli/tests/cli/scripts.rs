//! `tamis train SCRIPT`: a script of verl's or TRL's users, in which the trainer becomes a run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::tamis::{Ended, Folder, TINY, signal, soon, unfiltered, words};

/// A folder with a model in `tiny` and sums in `sums/train.jsonl` and `sums/test.jsonl`.
fn folder() -> Folder {
    let folder = Folder::new().with("tiny.yaml", &unfiltered(TINY));
    folder.tamis(&words("train tiny.yaml train.total_steps=1 validate.before_train=false")).succeeds();
    folder.tamis(&words("export runs/tiny tiny")).succeeds();
    std::fs::remove_dir_all(folder.join("runs")).unwrap();
    for (split, size) in [("train", 64), ("test", 4)] {
        let mut rows = String::new();
        for row in 0..size {
            let (left, right) = (row / 8, row % 8);
            let _ = writeln!(
                rows,
                r#"{{"question": "{left}+{right}=", "prompt": "{left}+{right}=", "data_source": "math_dapo", "reward_model": {{"style": "rule", "ground_truth": "{}"}}}}"#,
                left + right
            );
        }
        folder.write(&format!("sums/{split}.jsonl"), &rows);
    }
    folder
}

fn first_hour(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/first-hour").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn run(folder: &Folder, line: &str, variables: &[(&str, &str)]) -> Ended {
    let variables: Vec<(&str, PathBuf)> =
        variables.iter().map(|(name, value)| (*name, PathBuf::from(value))).collect();
    folder.wait(folder.start_with(&words(line), &variables))
}

/// What makes the DAPO script small.
const SMALL: [(&str, &str); 8] = [
    ("MODEL_PATH", "tiny"),
    ("TRAIN_FILE", "sums/train.jsonl"),
    ("TEST_FILE", "sums/test.jsonl"),
    ("N", "4"),
    ("BATCH", "4"),
    ("MAX_PROMPT", "12"),
    ("MAX_RESPONSE", "4"),
    ("NGPUS", "1"),
];

#[test]
fn a_dapo_script_becomes_a_run() {
    let folder = folder().with("run_dapo.sh", &first_hour("run_dapo.sh"));
    let score = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return float(ground_truth in solution_str)\n";
    folder.write("score.py", score);
    let small = "rollout.backend=native schedule.max_num_gen_batches=50 trainer.total_training_steps=2";
    // With an argument of the script's own, after `--`, too.
    let own = "actor_rollout_ref.actor.optim.lr_warmup_steps=1 custom_reward_function.path=score.py";
    let line = format!("train run_dapo.sh {small} -- {own}");
    let ended = run(&folder, &line, &SMALL).succeeds();
    ended.says("actor_rollout_ref.actor.clip_ratio_high=0.28 -> objective.loss.clip_high: 0.28");
    ended.says("actor_rollout_ref.actor.optim.lr_warmup_steps=1 -> train.lr_schedule.warmup_steps: 1");
    assert_eq!(folder.steps("DAPO/sums").len(), 2);
    assert!(folder.join("ckpts/DAPO").is_dir(), "what else the script does is real");
}

#[test]
fn only_the_trainer_of_verl_is_caught() {
    let folder = folder();
    // An environment that the script activates does not take precedence over the stand-ins.
    folder.write("venv/bin/python3", "#!/bin/sh\necho \"real: $*\"\n");
    folder.write(
        "run.sh",
        "chmod +x venv/bin/python3; export PATH=$PWD/venv/bin:$PATH\n\
         python3 -c 'print(1)' & wait\n\
         nohup python3 -m verl.model_merger merge\n\
         command -p echo \"$1, $#\"\n\
         env A=1 python3 -u -m verl.trainer.main_ppo --config-name=ppo_trainer 'data.x=a b' 2>&1 | tee log\n\
         bash -c 'python3 -m recipe.dapo.main_dapo y=2'\n\
         ray job submit --no-wait --runtime-env=r.yaml -- python3 -m verl.trainer.main_ppo z=3 | cat\n\
         ray status\n\
         /usr/bin/python3 -u -m verl.trainer.main_ppo w=4\n\
         uv run --with x python -m verl.trainer.main_ppo v=5\n\
         trl grpo --nothing=6\n\
         accelerate launch --config_file a.yaml --num_processes 2 mine.py --own 7\n\
         exit 0\n",
    );
    folder.write("mine.py", "from trl import GRPOTrainer\n");
    // A pipe does not hide that the run failed.
    let ended = run(&folder, "train run.sh -- own word", &[]).exits(2);
    ended.prints("real: -c print(1)\nreal: -m verl.model_merger merge\nown, 2\n");
    ended.prints("unknown key `data.x`").prints("1 | data.x=a b\n");
    ended.says("unknown key `y`").says("unknown key `z`").never_prints("real: -u");
    ended.says("unknown key `w`").says("unknown key `v`").says("unknown key `nothing`");
    // The interpreter of the script's own environment is this one.
    ended.prints("/tamis_script.py\n");
    assert_eq!(ended.stderr.matches("\nray: command not found").count(), 1, "{}", ended.shown());
}

#[test]
fn a_dry_run_reads_a_shell_script_and_runs_nothing() {
    let folder = Folder::new();
    folder
        .write("run.sh", "touch was_run\nexport N=8\npython3 -m verl.trainer.main_ppo \\\n  rollout.n=$N\n");
    insta::assert_snapshot!("a_dry_run", folder.tamis(&words("train run.sh --dry-run")).shown());
    folder.write("other.sh", "touch was_run\npython3 main.py a=1\n");
    insta::assert_snapshot!(
        "nothing_in_the_text",
        folder.tamis(&words("train other.sh --dry-run")).failure()
    );
    assert!(!folder.join("was_run").exists());
    // Running it is an error, too, whatever it did.
    insta::assert_snapshot!("nothing_caught", folder.tamis(&words("train --quiet other.sh")).failure());
    assert!(folder.join("was_run").exists());
    for line in ["train run.sh --resume runs/x", "train --dry-run tiny.yaml", "train gone.sh"] {
        insta::assert_snapshot!(line.replace([' ', '/', '.'], "_"), folder.tamis(&words(line)).failure());
    }
}

#[test]
fn the_import_of_a_script_is_never_empty() {
    let folder = Folder::new();
    for line in ["train_grpo.py", "python3 train_grpo.py", "accelerate launch train_grpo.py"] {
        let ended = folder.tamis(&words(&format!("config import -- {line}"))).exits(2);
        ended.says("hint: `tamis train train_grpo.py --dry-run` runs it");
    }
    for line in ["run_dapo.sh", "bash run_dapo.sh trainer.total_epochs=1"] {
        let ended = folder.tamis(&words(&format!("config import -- {line}"))).exits(2);
        ended.says("hint: `tamis train run_dapo.sh --dry-run` finds the command");
    }
    // A script that was exported holds one command.
    let exported = folder
        .tamis(&words("config export --as verl dapo model.path=m data.train=t.parquet data.val=v.parquet"));
    folder.write("exported.sh", &exported.succeeds().stdout);
    let ended = folder.tamis(&words("config import exported.sh")).exits(2);
    ended.says("it was written by `tamis config export`").says("python3 -m verl.trainer.main_ppo");
    folder.tamis(&words("config import -- python3 -m verl.trainer.main_ppo")).exits(2);
    // A command that starts a script contains nothing to train either.
    let ended = folder.tamis(&words("train python3 train_grpo.py learning_rate=1e-6")).exits(2);
    ended.says("note: `tamis train train_grpo.py` trains what");
}

/// A script in the shape of TRL's own examples, whose arguments TRL's parser reads.
const SUMS: &str = r#"
from dataclasses import dataclass, field

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config
from trl.rewards import think_format_reward


@dataclass
class SumArguments(ScriptArguments):
    bonus: float = field(default=0.5, metadata={"help": "what a short answer is worth"})


if __name__ == "__main__":
    parser = TrlParser((SumArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = dict(revision=model_args.model_revision, dtype=model_args.dtype)
    if (quantization := get_quantization_config(model_args)) is not None:
        training_args.model_init_kwargs["quantization_config"] = quantization
    dataset = load_dataset(script_args.dataset_name)

    def right(completions, reward_model, **kwargs):
        return [float(text == gold["ground_truth"]) for text, gold in zip(completions, reward_model)]

    async def brief(completions, completion_ids, **kwargs):
        return [script_args.bonus / len(ids) for ids in completion_ids]

    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        reward_funcs=[right, brief, think_format_reward],
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
        peft_config=get_peft_config(model_args),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
    trainer.accelerator.print("saved")
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
"#;

/// What the library of data sets does with a local folder, without that library.
const DATASETS: &str = r#"
import json, os

def load_dataset(name):
    return {file.removesuffix(".jsonl"): [json.loads(line) for line in open(os.path.join(name, file))] for file in os.listdir(name)}
"#;

#[test]
fn a_script_of_trl_becomes_a_run_that_calls_its_functions() {
    let folder = folder().with("train_grpo.py", &first_hour("train_grpo.py"));
    let variables =
        [("MODEL", "tiny"), ("MAX_STEPS", "2"), ("MAX_RESPONSE", "4"), ("OUTPUT_DIR", "runs/mine")];
    let ended = run(&folder, "train train_grpo.py data.max_prompt_length=12", &variables).succeeds();
    ended.says("tamis: wrote the model to runs/mine").prints("done: 2 steps, run directory runs/mine");
    // An evaluation by itself would lack the script's functions.
    ended.prints("next: tamis report runs/mine\n").never_prints("tamis eval");
    let step = &folder.steps("mine")[0];
    for name in ["correct", "brief", "novelty"] {
        assert!(step.get(format!("rewards/{name}/mean")).is_some(), "{name} in {step}");
    }
    // The third one counts its calls, which only the script's own process can.
    let novelty = |step: usize| folder.steps("mine")[step]["rewards/novelty/mean"].as_f64().unwrap();
    assert!(novelty(1) < 1.0, "{}", novelty(1));
    assert!(folder.join("runs/mine/model.safetensors").is_file());
    // The run's input is beside the run; the next run does not enter its folder.
    assert_eq!(folder.read("runs/mine.script/train.jsonl").lines().count(), 100);
    assert_eq!(folder.read("runs/mine.script/eval.jsonl").lines().count(), 16);
    run(&folder, "train train_grpo.py data.max_prompt_length=12 train.total_steps=1", &variables).succeeds();
    assert_eq!(folder.steps("mine-2").len(), 1);
}

#[test]
fn a_script_with_arguments_of_trl() {
    let folder = folder().with("grpo_sums.py", SUMS).with("datasets.py", DATASETS);
    let line = "train grpo_sums.py data.max_prompt_length=12 --model_name_or_path tiny --dataset_name sums \
        --output_dir out/sums --num_generations 4 --max_completion_length 4 --max_steps 1 --bonus 0.25 \
        --eval_strategy steps --eval_steps 1 --learning_rate 1e-4";
    // A dry run prints only the configuration, and the files that it names exist.
    let dry = run(&folder, &format!("{line} --dry-run"), &[]).succeeds();
    dry.prints("rollout:\n  n: 4  #").prints("  learning_rate: 1e-4  # out/sums.script/grpo.yaml:");
    dry.prints("kind: command").never_prints("saved");
    assert!(dry.stdout.starts_with("run:\n  name: sums"), "{}", dry.shown());
    assert!(folder.join("out/sums.script/train.jsonl").is_file() && !folder.join("out/sums").exists());
    let ended = run(&folder, line, &[]).succeeds();
    ended.prints("saved\n");
    assert!(folder.join("out/sums/model.safetensors").is_file());
    // An adapter needs PyTorch, with the targets that the script named.
    let adapter = run(
        &folder,
        &format!("{line} --use_peft --lora_r 4 --lora_target_modules q_proj k_proj --dry-run"),
        &[],
    );
    adapter.succeeds().prints("lora: {rank: 4, alpha: 32, targets: [q_proj, k_proj]}");
    // Over weights in 4 bits, by the function that makes TRL's BitsAndBytesConfig of the arguments.
    let four_bits = run(&folder, &format!("{line} --use_peft --load_in_4bit --dry-run"), &[]);
    four_bits.succeeds().prints("base: nf4");
}

/// A model with an adapter, as PEFT's `get_peft_model` returns one.
const ADAPTED: &str = "\
import types
from peft import LoraConfig
from trl import GRPOTrainer


class Adapted:
    config = types.SimpleNamespace(_name_or_path='tiny')
    peft_config = {'default': LoraConfig(r=4, lora_alpha=8, target_modules=['q_proj', 'v_proj'])}

    def named_parameters(self):
        class Weight:
            def __ne__(self, other):
                return types.SimpleNamespace(any=lambda: LEARNED)

        return [('model.q_proj.lora_A.weight', Weight()), ('model.q_proj.lora_B.weight', Weight())]


GRPOTrainer(model=Adapted(), train_dataset=[{'prompt': '1'}], reward_funcs='m/judge').train()
";

#[test]
fn a_model_with_an_adapter_is_its_base_and_the_adapter() {
    let folder = Folder::new().with("train.py", &format!("LEARNED = False\n{ADAPTED}"));
    let dry = folder.tamis(&words("train train.py --dry-run")).succeeds();
    dry.prints("lora: {rank: 4, alpha: 8, targets: [q_proj, v_proj]}").prints("path: tiny");
    folder.write("train.py", &format!("LEARNED = True\n{ADAPTED}"));
    let refused = folder.tamis(&words("train train.py --dry-run")).exits(2);
    refused.says("the adapter of `model` has learned something, and a run begins a new one");
}

#[test]
fn what_a_script_cannot_have_is_refused_by_name() {
    let folder = Folder::new();
    let refused = |text: &str| {
        folder.write("train.py", &format!("from trl import *\nrows = [{{'prompt': '1'}}]\n{text}\n"));
        folder.tamis(&words("train train.py")).exits(2).failure()
    };
    let trainer = "GRPOTrainer(model='tiny', train_dataset=rows, reward_funcs=";
    insta::assert_snapshot!(
        "a_subclass",
        refused(
            "from trl import GRPOTrainer\nclass Mine(GRPOTrainer):\n    def compute_loss(self): pass\n    def __init__(self): pass\n\
         Mine.__init__ = GRPOTrainer.__init__\nMine(model='tiny', train_dataset=rows, reward_funcs=len, callbacks=[1], beta=2)"
        )
    );
    let plain = format!("from trl import GRPOTrainer\n{trainer}");
    insta::assert_snapshot!(
        "a_function",
        refused(&format!("def near(completions, wanted): pass\n{plain}[near]).train()"))
    );
    insta::assert_snapshot!(
        "a_replaced_method",
        refused(&format!(
            "from trl import GRPOTrainer\nGRPOTrainer._prepare_inputs = print\nmine = {trainer}'m/reward')\nmine.compute_loss = print\nmine.train()"
        ))
    );
    insta::assert_snapshot!(
        "a_row",
        refused(
            "from trl import GRPOTrainer\nGRPOTrainer(model='tiny', train_dataset=[{'prompt': '1', 'image': object()}], \
         reward_funcs='m/reward').train(resume_from_checkpoint=True)"
        )
    );
    insta::assert_snapshot!("the_sieve", refused("import tamis.trl\ntamis.trl.attach(None)"));
    insta::assert_snapshot!("nothing", refused("print('no trainer')"));
    for (name, call) in [
        ("the_hub", "push_to_hub()"),
        ("nothing_to_save", "save_model('x')"),
        ("a_callback", "add_callback(print)"),
    ] {
        insta::assert_snapshot!(name, refused(&format!("{plain}'m/reward').{call}")));
    }
    insta::assert_snapshot!(
        "another_trainer",
        refused("from trl import RLOOTrainer\nRLOOTrainer(model='tiny')")
    );
    // What is wrong with the script itself is shown as Python shows it.
    folder.write("train.py", "import json\n\njson.loads('{')\n");
    let ended = folder.tamis(&words("train train.py")).exits(1);
    ended.says("Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n");
}

#[test]
fn the_interpreter_of_a_run_runs_its_script() {
    let folder = Folder::new().with("train.py", "print('a script')\n");
    folder.write("venv/bin/python3", "#!/bin/sh\necho an interpreter of my own >&2\nexec python3 \"$@\"\n");
    let path = folder.join("venv/bin/python3");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let ended = folder.tamis(&words("train train.py run.python=venv/bin/python3")).exits(2);
    ended.says("an interpreter of my own").prints("a script");
    let missing = folder.tamis(&words("train train.py run.python=venv/bin/gone"));
    assert_ne!(missing.code, Some(0));
    missing.says("venv/bin/gone");
}

/// A script that looks at its trainer when it has trained.
const LOOKS: &str = r#"
from trl import GRPOConfig, GRPOTrainer

rows = [{"prompt": f"{x}+{y}=", "answer": x + y} for x in range(4) for y in range(4)]


def right(completions, answer, **kwargs):
    return [float(text == str(gold)) for text, gold in zip(completions, answer)]


def main():
    args = GRPOConfig("out", num_generations=4, per_device_train_batch_size=8, max_completion_length=4, max_steps=2, EVAL)
    trainer = GRPOTrainer("tiny", right, args, rows, rows[:4])
    print("before", trainer.state.global_step, trainer.state.log_history)
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    history = trainer.state.log_history
    print("steps", trainer.state.global_step, [row["step"] for row in history if "loss" in row])
    trainer.log({"mine": 3})
    print("mine", history[-1])
    found = trainer.evaluate()
    print("validated", 0.0 <= found["eval_reward"] <= 1.0, found["eval_rewards/right/mean"] == found["eval_reward"])
    if args.push_to_hub:
        trainer.push_to_hub()


main()
"#;

#[test]
fn a_script_reads_its_trainer_after_the_run() {
    let folder = folder();
    for (settings, num_lines) in [("eval_strategy='steps', eval_steps=1", 2), ("eval_strategy='no'", 1)] {
        folder.write("train.py", &LOOKS.replace("EVAL", settings));
        let ended = run(&folder, "train train.py data.max_prompt_length=12", &[]).succeeds();
        ended.prints("before 0 []\n").prints("steps 2 [1, 2]\n").prints("mine {'mine': 3, 'step': 2}\n");
        ended.prints("validated True True\n");
        // Without a validation in the run, the last checkpoint is measured on the rows.
        let has_measured = folder.join("out-2.script/evaluated.jsonl").is_file();
        assert_eq!(has_measured, num_lines == 1, "{}", ended.shown());
    }
}

#[test]
fn what_a_script_reads_of_its_trainer_later_is_refused_before_it_trains() {
    let folder = Folder::new();
    let with = |after: &str| {
        format!(
            "from trl import GRPOConfig, GRPOTrainer\nrows = [{{'prompt': '1', 'gold': '2'}}]\n\
             trainer = GRPOTrainer(model='tiny', train_dataset=rows, reward_funcs='m/judge')\n\
             trainer.train()\n{after}\n"
        )
    };
    for (after, what) in [
        ("trainer.model.save_pretrained('x')", "trainer.model (line 5) is not there: train(), evaluate()"),
        ("print(trainer.state.save_to_json('x'))", "trainer.state.save_to_json (line 5) is not there"),
        ("trainer.push_to_hub()", "trainer.push_to_hub() (line 5) is not followed"),
        ("if __name__ == '__main__':\n    trainer.model.eval()", "trainer.model (line 6) is not there"),
    ] {
        folder.write("train.py", &with(after));
        folder.tamis(&words("train train.py --dry-run")).exits(2).says(what);
    }
    // What a branch or a function that is not called reads may never be read.
    for after in [
        "if trainer.args.push_to_hub: trainer.push_to_hub()",
        "def later():\n    trainer.model.eval()",
        "trainer.state.best_metric; trainer.save_metrics('train', {}); trainer.mine = 1; trainer.mine",
    ] {
        folder.write("train.py", &with(after));
        folder.tamis(&words("train train.py --dry-run")).succeeds();
    }
}

#[test]
fn a_script_without_rows_or_with_a_broken_reward_is_refused() {
    let folder = folder();
    let with = |rows: &str, body: &str| {
        format!(
            "from trl import GRPOConfig, GRPOTrainer\n\
             def right(completions, answer, **kwargs):\n    {body}\n\
             args = GRPOConfig('out', num_generations=4, per_device_train_batch_size=8, max_completion_length=4, max_steps=1)\n\
             GRPOTrainer('tiny', right, args, {rows}).train()\n"
        )
    };
    folder.write("train.py", &with("[]", "return [0.0 for _ in completions]"));
    let ended = run(&folder, "train train.py data.max_prompt_length=12", &[]).exits(2);
    ended.says("train_dataset has no rows").never_says("cannot be called");
    let rows = "[{'prompt': f'{x}+0=', 'answer': x} for x in range(8)]";
    folder.write("train.py", &with(rows, "return undefined(answer)"));
    let ended = run(&folder, "train train.py data.max_prompt_length=12", &[]).exits(2);
    ended.says("no gold answer is accepted:").says("(8 prompts: 8 failed)");
    assert_eq!(ended.stderr.matches("NameError").count(), 1, "{}", ended.shown());
    assert!(!folder.join("out").exists());
}

#[test]
fn a_script_that_python_cannot_read_is_shown_as_python_shows_it() {
    let folder = Folder::new().with("helper.py", "def right(:\n    pass\n");
    let syntax = |file: &str, line: &str| format!("  File \"{file}\", line {line}\n");
    for (name, text, expected) in [
        ("open.py", "from trl import GRPOTrainer\nprint((1\n", syntax("open.py", "2")),
        ("tab.py", "if True:\n    a = 1\n\tb = 2\n", syntax("tab.py", "3")),
        ("null.py", "a = '\0'\n", "null bytes\n".to_owned()),
        ("lacks.py", "import no_such.part\n", "  hint: install it there (`".to_owned()),
        // The line of the script that imports it, and the place in the other file.
        ("imports.py", "import helper\n", syntax("DIR/helper.py", "1")),
    ] {
        folder.write(name, text);
        let ended = run(&folder, &format!("train {name}"), &[]).exits(1);
        ended.says(&expected).says(&format!("File \"{name}\""));
        let is_ours = |line: &&str| line.contains("runpy") || line.contains("tamis_script");
        assert_eq!(ended.stderr.lines().find(is_ours), None, "{}", ended.shown());
        let has_run = ["imports.py", "lacks.py"].contains(&name);
        assert_eq!(ended.stderr.contains("Traceback"), has_run, "{}", ended.shown());
        assert_eq!(
            ended.stderr.contains("-m pip install no_such`)"),
            name == "lacks.py",
            "{}",
            ended.shown()
        );
    }
}

/// A script whose trainer is given `ARGUMENTS`, and what is before it.
fn with_trainer(before: &str, arguments: &str) -> String {
    format!(
        "import functools, types\nfrom trl import GRPOConfig, GRPOTrainer\nrows = [{{'prompt': '1', 'gold': '2'}}]\n\
         class Weight:\n    requires_grad = True\n    def __ne__(self, other):\n        return types.SimpleNamespace(any=lambda: False)\n\
         class Loaded:\n    config = types.SimpleNamespace(_name_or_path='tiny')\n    weights = [Weight(), Weight()]\n    \
         def named_parameters(self):\n        return [(str(at), weight) for at, weight in enumerate(self.weights)]\n\
         {before}\nGRPOTrainer(**{{'model': 'tiny', 'train_dataset': rows, 'reward_funcs': 'm/judge', {arguments}}}).train()\n"
    )
}

#[test]
fn shapes_of_scripts_become_the_run_that_they_mean() {
    let folder = Folder::new();
    let dry = |before: &str, arguments: &str| {
        folder.write("train.py", &with_trainer(before, arguments));
        folder.tamis(&words("train train.py --dry-run")).succeeds()
    };
    // Functions of every form, two of one name, names that tamis has itself, and the name of a model.
    let functions = "def score(completions, **columns): pass\ndef reward(completions, gold, **columns): pass\n\
        async def later(completions, **columns): pass\nclass Judge:\n    def __call__(self, completions, **columns): pass\n\
        part = functools.partial(score, bonus=1)";
    let ended = dry(
        functions,
        "'reward_funcs': [score, reward, later, Judge(), part, 'm/judge'], \
         'args': GRPOConfig('out', reward_weights=[1, 0.5, 2, 1, 1, 3])",
    );
    for name in ["score_reward", "reward_2", "later", "Judge", "score_reward_2", "judge"] {
        ended.prints(&format!("name: {name}, kind: "));
    }
    ended.prints("kind: model, path: m/judge, weight: 3}").prints("weight: 0.5");
    // An evaluation set may have the name of the training data, and signs that a file name cannot have.
    let sets = "'eval_dataset': {'train': rows * 3, 'math/500': rows}, 'args': GRPOConfig('out', eval_strategy='steps', eval_steps=5)";
    dry("", sets).prints("eval-train.jsonl").prints("eval-math_500.jsonl").prints("test_freq: 5");
    assert_eq!(folder.read("out.script/train.jsonl").lines().count(), 1);
    assert_eq!(folder.read("out.script/eval-train.jsonl").lines().count(), 3);
    // The tokenizer of the model, by another spelling of its folder, or inside a processor.
    dry("", "'model': './tiny', 'processing_class': types.SimpleNamespace(name_or_path='tiny/', chat_template='{{ 1 }}')")
        .prints("chat_template: ");
    dry(
        "",
        "'processing_class': types.SimpleNamespace(tokenizer=types.SimpleNamespace(name_or_path='tiny'), chat_template=None)",
    );
    dry("", "'model': Loaded()").prints("path: tiny").says("the model is read from tiny anew");
    // An adapter freezes what it is added to anyway.
    dry(
        "from peft import LoraConfig\nLoaded.weights[0].requires_grad = False",
        "'model': Loaded(), 'peft_config': LoraConfig(r=2, target_modules='all-linear')",
    )
    .prints("lora: {rank: 2, ");
    // Weights in 4 bits below it.
    dry(
        "from peft import LoraConfig\n\
         class BitsAndBytesConfig:\n    def __init__(self, **given):\n        self.__dict__.update(given)",
        "'quantization_config': BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4'), \
         'peft_config': LoraConfig(r=2, target_modules='all-linear')",
    )
    .prints("base: nf4");
    // A subclass that only prepares its arguments.
    dry(
        "class Mine(GRPOTrainer):\n    _tag_names = ['mine']\n    def __init__(self, **given):\n        super().__init__(**given)\n\
         GRPOTrainer = Mine",
        "",
    );
}

#[test]
fn what_a_run_would_ignore_of_a_script_is_refused() {
    let folder = Folder::new();
    let refused = |before: &str, arguments: &str, what: &str| {
        folder.write("train.py", &with_trainer(before, arguments));
        folder.tamis(&words("train train.py")).exits(2).says(what);
    };
    let mine =
        |body: &str| format!("class Mine(GRPOTrainer):\n    {body}\nBefore, GRPOTrainer = GRPOTrainer, Mine");
    refused(
        &mine("compute_loss = functools.partialmethod(print)"),
        "",
        "Mine.compute_loss is a method of a subclass",
    );
    refused(&mine("state = functools.cached_property(print)"), "", "Mine.state is a method of a subclass");
    refused(
        "class Mixin:\n    def log(self, logs): pass\nclass Mine(Mixin, GRPOTrainer): pass\nGRPOTrainer = Mine",
        "",
        "Mixin.log is a method of a subclass",
    );
    let later = "class Mine(GRPOTrainer): pass\nmine = Mine(model='tiny', train_dataset=rows, reward_funcs='m/judge')\n";
    refused(&format!("{later}Mine.compute_loss = print\nmine.train()"), "", "Mine.compute_loss is a method");
    let object =
        format!("{later}class Call:\n    def __call__(self): pass\nmine.save_model = Call()\nmine.train()");
    refused(&object, "", "methods of GRPOTrainer are replaced (save_model)");
    refused(
        "Loaded.weights[0].requires_grad = False",
        "'model': Loaded()",
        "1 of the 2 tensors of `model` do not learn",
    );
    refused("Loaded.config.quantization_config = {}", "'model': Loaded()", "`model` is quantized");
    let of_4_bits = "'model': 'tiny', 'args': GRPOConfig('out', model_init_kwargs={'load_in_4bit': True})";
    refused("", of_4_bits, "only an adapter over weights in 4 bits: use_peft=True");
    refused("", "'optimizers': (object(), None)", "GRPOTrainer(optimizers=...) is not followed");
    refused("", "'callbacks': [print]", "GRPOTrainer(callbacks=...) is not followed");
    refused(
        "",
        "'optimizer_cls_and_kwargs': (print, {})",
        "GRPOTrainer has no argument optimizer_cls_and_kwargs here",
    );
    refused(
        "",
        "'args': GRPOConfig('out', optim='adafactor')",
        "`optim=adafactor` of TRL cannot be followed",
    );
    refused(
        "",
        "'processing_class': types.SimpleNamespace(name_or_path='other')",
        "processing_class=...) is that of other",
    );
    refused(
        "",
        "'reward_funcs': ['m/judge', types.SimpleNamespace(parameters=1)]",
        "give a function, or the name of a reward model",
    );
    refused(
        "",
        "'args': GRPOConfig('out', reward_weights=[1, 2])",
        "reward_weights has 2 weights for 1 functions",
    );
}

#[cfg(unix)]
#[test]
fn an_interrupted_script_is_continued_by_the_script() {
    let folder = folder().with("train_grpo.py", &first_hour("train_grpo.py"));
    let variables =
        [("MODEL", "tiny"), ("MAX_STEPS", "60"), ("MAX_RESPONSE", "4"), ("OUTPUT_DIR", "runs/mine")];
    let owned: Vec<(&str, PathBuf)> =
        variables.iter().map(|(name, value)| (*name, PathBuf::from(value))).collect();
    let line = "train train_grpo.py data.max_prompt_length=12 validate.test_freq=0";
    let child = folder.start_with(&words(line), &owned);
    soon("the third step", || folder.has_rows("runs/mine", 3));
    signal(&child, "-INT");
    folder.wait(child).exits(130).prints("next: tamis train train_grpo.py --resume runs/mine\n");
    let num_steps = folder.steps("mine").len();
    assert!(num_steps < 60, "it was interrupted: {num_steps}");
    // Its rewards are functions of the script: what would call them without it is refused.
    for line in ["train --resume runs/mine", "eval runs/mine", "train runs/mine/config.yaml run.name=other"] {
        let alone = folder.tamis(&words(line)).exits(2);
        alone.says("is a function of train_grpo.py, and only a run of that script can call it");
        alone.says("`tamis train train_grpo.py --resume ").never_says("does not run");
    }
    run(&folder, "train train_grpo.py --resume runs/mine", &variables).succeeds();
    assert_eq!(folder.steps("mine").len(), 60);
}
