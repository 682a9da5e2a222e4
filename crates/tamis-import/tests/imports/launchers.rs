//! Commands with words before and after the program: launchers, job submission, variables, and the shell's
//! own words.

use crate::{converted, import_errors, loaded, notes};

/// A TRL command with a launcher, and the number of prompts in a batch: 8 completions for each process, in
/// groups of 8.
fn prompts(command: &str) -> usize {
    let words: Vec<&str> = command.split_whitespace().collect();
    loaded(&converted(&[&words[..], &TRL].concat())).data.train_batch_size
}

const TRL: [&str; 8] = [
    "--model_name_or_path",
    "m",
    "--dataset_name",
    "t",
    "--reward_funcs",
    "accuracy_reward",
    "--max_steps",
    "3",
];

#[test]
fn launchers_say_how_many_processes_there_are() {
    for (command, expected) in [
        ("accelerate launch --num_processes 8 --config_file zero3.yaml train.py", 8),
        (
            "accelerate launch --multi_gpu --num_machines 2 --num_processes=16 --mixed_precision bf16 train.py",
            16,
        ),
        ("accelerate launch --num-processes 4 -m trl.scripts.grpo", 4),
        ("accelerate launch -m --num_processes 4 trl.scripts.grpo", 4),
        ("uv run --python 3.11 torchrun --nproc_per_node 4 --nnodes 2 train.py", 8),
        ("torchrun --standalone --nproc-per-node=4 train.py", 4),
        ("torchrun train.py", 1),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py", 2),
        ("deepspeed --num_gpus 4 --num_nodes=2 train.py", 8),
        ("A=b trl grpo --num_processes 4", 4),
        ("python3 -u train.py", 1),
    ] {
        assert_eq!(prompts(command), expected, "{command}");
    }
    // A value typed for the program takes precedence.
    assert_eq!(prompts("torchrun --nproc_per_node 4 train.py --num_processes 2"), 2);
    for (command, place) in [
        ("accelerate launch --config_file zero3.yaml train.py", "is in zero3.yaml, which was not read"),
        ("accelerate launch train.py", "is in accelerate's own configuration"),
        ("deepspeed train.py", "is that of the machine's devices"),
    ] {
        let words: Vec<&str> = command.split_whitespace().collect();
        let notes = notes(&converted(&[&words[..], &TRL].concat()));
        let printed =
            format!("num_processes is not given: warning: the number of processes {place}: 1 is assumed");
        assert!(notes.contains(&printed), "{notes}");
    }
    for command in ["torchrun --nproc_per_node gpu train.py", "torchrun --nnodes=1:4 train.py"] {
        let words: Vec<&str> = command.split_whitespace().collect();
        let printed = import_errors(&[&words[..], &TRL].concat());
        assert!(printed.contains("does not give the number of processes"), "{printed}");
        assert!(printed.contains("hint: write the number, such as `--n"), "{printed}");
    }
}

#[test]
fn a_file_after_a_launched_module() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("f.yaml");
    std::fs::write(&path, "model_name_or_path: m\nnum_generations: 4\n").expect("written");
    let path = path.to_str().expect("a path in UTF-8");
    let launch = ["accelerate", "launch", "--config_file", "z.yaml", "--num_processes", "2", "-m"];
    let rest =
        ["trl.scripts.grpo", "--config", path, "--dataset_name", "t", "--reward_funcs", "accuracy_reward"];
    let config = loaded(&converted(&[&launch[..], &rest].concat()));
    assert_eq!((config.rollout.n, config.data.train_batch_size), (4, 4));
}

#[test]
fn words_before_and_behind_the_program() {
    for command in [
        "ray job submit --runtime-env=env.yaml --working-dir X -- python3 -m verl.trainer.main_ppo KEYS",
        "uv run python -m verl.trainer.main_ppo KEYS",
        "python3 -m dapo.main_dapo KEYS 2>&1 | tee x.log",
        "set -x ; cd verl && CUDA_VISIBLE_DEVICES=0 nohup python3.11 -u -X dev recipe/dapo.py KEYS > x.log 2>&1 &",
        "PYTHONUNBUFFERED=1 /usr/bin/python3 train.py KEYS",
        "-m verl.trainer.main_ppo KEYS | tee x.log",
    ] {
        let command = command
            .replace("KEYS", "data.train_files=t actor_rollout_ref.rollout.n=6 algorithm.adv_estimator=grpo");
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(loaded_n(&words), 6, "{command}");
    }
    // A value is no program.
    let words =
        ["trainer.project_name=python3", "actor_rollout_ref.rollout.n=6", "algorithm.adv_estimator=grpo"];
    assert_eq!(loaded_n(&words), 6);
    let printed = import_errors(&["python3", "-m", "verl.trainer.main_ppo", "rollout"]);
    assert!(printed.contains("`rollout` is neither `key=value` nor a YAML file"), "{printed}");
}

fn loaded_n(words: &[&str]) -> usize {
    let yaml = converted(words).yaml;
    let at = yaml.find("  n: ").unwrap_or_else(|| panic!("{yaml}"));
    let number = yaml[at + 5..].split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

#[test]
fn the_file_that_hydra_is_to_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "
hydra: {searchpath: ['file://verl/trainer/config']}
defaults: [ppo_trainer, _self_, mine, {model@actor_rollout_ref.model: hf_model}]
algorithm: {adv_estimator: grpo}
actor_rollout_ref: {rollout: {n: 6}, actor: {optim: {lr: 3.0e-6}}}
";
    std::fs::write(folder.path().join("multiturn.yaml"), text).expect("written");
    let path = folder.path().to_str().expect("a path in UTF-8");
    for words in [
        vec![format!("--config-path={path}"), "--config-name=multiturn".to_owned()],
        vec!["-cp".to_owned(), path.to_owned(), "-cn".to_owned(), "multiturn.yaml".to_owned()],
    ] {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.push("actor_rollout_ref.actor.optim.lr=1e-5");
        let import = converted(&words);
        assert!(import.yaml.contains("  n: 6  #"), "{}", import.yaml);
        // Typed values take precedence over the file.
        assert!(import.yaml.contains("learning_rate: 1e-5"), "{}", import.yaml);
        let notes = notes(&import);
        assert!(
            notes.contains("defaults=mine has no effect: warning: the file that it names was not read"),
            "{notes}"
        );
        assert_eq!(notes.matches("defaults=").count(), 1, "{notes}");
    }
    let missing =
        notes(&converted(&["--config-path=no/such", "--config-name", "mine", "data.train_files=t"]));
    assert!(
        missing.contains("warning: `--config-name=mine` was not read: give its file as an argument"),
        "{missing}"
    );
    for own in ["ppo_trainer", "ppo_megatron_trainer.yaml", "base"] {
        let notes = notes(&converted(&[&format!("--config-name={own}"), "data.train_files=t"]));
        let printed =
            format!("--config-name={own} has no effect: it is the owner's own, whose defaults are taken");
        assert!(notes.contains(&printed), "{notes}");
    }
}

/// A value with a launcher's name starts nothing, and the words before it are read.
#[test]
fn values_are_no_launchers() {
    for words in [
        &["data.train_files=x", "trainer.default_local_dir=/ckpt/deepspeed", "data.train_batch_size=48"][..],
        &["data.train_files=x", "data.train_batch_size=48", "trainer.experiment_name=torchrun"],
        &[
            "MODEL=/x/torchrun",
            "python3",
            "-m",
            "verl.trainer.main_ppo",
            "data.train_files=x",
            "data.train_batch_size=48",
        ],
    ] {
        assert!(converted(words).yaml.contains("train_batch_size: 48"), "{words:?}");
    }
    for name in ["torchrun", "org/deepspeed"] {
        let words =
            [&TRL[2..], &["--per_device_train_batch_size", "16", "--model_name_or_path", name]].concat();
        // A word that looks like a script does not make it one.
        let words = [&words[..], &["--run_name", "my.py"]].concat();
        // 16 completions in groups of 8; it would be 1 prompt if the words before the name were not read.
        assert_eq!(loaded(&converted(&words)).data.train_batch_size, 2, "{words:?}");
    }
}

#[test]
fn variables_that_nobody_filled_in() {
    let keys = ["actor_rollout_ref.actor.optim.lr=${lr}", "data.train_files=['${HOME_OF_DATA}/t']"];
    let printed = import_errors(&keys);
    assert!(
        printed.contains(
            "`${lr}` was not filled in by the shell, in the value of `actor_rollout_ref.actor.optim.lr`"
        ),
        "{printed}"
    );
    assert!(printed.contains("`${HOME_OF_DATA}` was not filled in"), "{printed}");
    // The form in which `check` and `train` take them.
    let arguments: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
    let printed =
        tamis_import::load(&[], &arguments).map_or_else(|errors| errors.to_string(), |_| String::new());
    assert!(printed.contains("`${lr}` was not filled in by the shell"), "{printed}");
    // Hydra's own resolvers have no value here. The shell's forms are not taken for them.
    let import = converted(&["trainer.experiment_name=x_${now:%H}", "hydra.run.dir=outputs/${now:%Y-%m-%d}"]);
    assert!(!import.yaml.contains("x_"), "{}", import.yaml);
    let printed = import_errors(&["trainer.experiment_name=${NAME:-x}"]);
    assert!(printed.contains("was not filled in by the shell"), "{printed}");
    // A key that is not given has verl's default.
    let import = converted(&["actor_rollout_ref.rollout.response_length=${data.max_response_length}"]);
    assert!(notes(&import).contains("refers to a key that is not given"), "{}", notes(&import));
    let import = converted(&["trainer.experiment_name=${oc.env:CARGO_PKG_NAME,foo}"]);
    assert!(import.yaml.contains("name: tamis-import"), "{}", import.yaml);
    let import = converted(&["trainer.experiment_name=${oc.env:TAMIS_NO_SUCH_NAME,foo}"]);
    assert!(import.yaml.contains("name: foo"), "{}", import.yaml);
}
