//! Commands of other systems for GPUs, on a machine without one.

use crate::tamis::{Folder, TINY, unfiltered, words};

const COMMAND: &str = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=tiny data.train_files=t.jsonl \
    data.val_files=t.jsonl algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 data.train_batch_size=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 data.max_prompt_length=12 data.max_response_length=4 \
    data.val_batch_size=8 trainer.n_gpus_per_node=8 trainer.project_name=p trainer.experiment_name=e \
    trainer.logger=[console] trainer.val_before_train=False trainer.total_training_steps=1 trainer.resume_mode=auto";

const LINE: &str =
    "no GPU here: learning on the CPU; on the cluster this is learner.backend=torch, 8 ranks\n";

fn folder() -> Folder {
    let folder = Folder::new().with("tiny.yaml", &unfiltered(TINY));
    folder.tamis(&words("train tiny.yaml train.total_steps=1 validate.before_train=false")).succeeds();
    folder.tamis(&words("export runs/tiny tiny")).succeeds();
    let row = r#"{"prompt": "1+1=", "data_source": "math_dapo", "reward_model": {"style": "rule", "ground_truth": "2"}}"#;
    folder.write("t.jsonl", &format!("{row}\n").repeat(8));
    folder
}

#[test]
fn a_command_for_gpus_learns_on_the_cpu_and_says_so_first() {
    let folder = folder();
    let imported = folder.tamis(&words(&format!("config import -- {COMMAND}"))).succeeds();
    imported.prints("backend: torch  # verl: trainer.n_gpus_per_node=8");
    imported.prints("gpus_per_node: 8").prints("launcher: local");

    let ended = folder.tamis(&words(&format!("train -- {COMMAND}"))).succeeds();
    assert!(ended.stderr.starts_with(LINE), "{}", ended.shown());
    // Keys with an equal meaning are in the log; a terminal shows only their number.
    ended.says("18 more keys of verl: 16 mean the same here, 2 have no effect here; run.log lists them");
    let log = folder.read("runs/p/e/run.log");
    for line in ["data.max_response_length=4 -> rollout.max_response_length: 4", LINE.trim_end()] {
        assert!(log.contains(line), "{log}");
    }

    // The same command again continues the run; with more steps it trains those.
    let again = COMMAND.replace("total_training_steps=1", "total_training_steps=2");
    let ended = folder.tamis(&words(&format!("train -- {again}"))).succeeds();
    ended.says("resuming runs/p/e after step 1");
    assert_eq!(folder.steps("p/e").len(), 2);
    // Another mode uses another name, and a line reports it.
    let other = COMMAND.replace("resume_mode=auto", "resume_mode=disable");
    let ended = folder.tamis(&words(&format!("train -- {other}"))).succeeds();
    ended.says("runs/p/e exists, so this run takes another name").says("tamis train --resume runs/p/e");
    assert!(folder.join("runs/p/e-2").is_dir());
}

#[test]
fn an_imported_configuration_for_gpus_learns_on_the_cpu_too() {
    let folder = folder();
    let imported = folder.tamis(&words(&format!("config import -- {COMMAND}"))).succeeds();
    // What is printed names the folder by another name.
    folder.write("mine.yaml", &imported.stdout.replace("DIR/", ""));
    let ended = folder.tamis(&words("train mine.yaml run.name=mine run.dir=runs")).succeeds();
    assert!(ended.stderr.starts_with(LINE), "{}", ended.shown());
    let checked = folder.tamis(&words("config check mine.yaml --plan")).succeeds();
    checked.prints(LINE).prints("  learner: the built-in engine, on the CPU of this machine\n");
    // With named machines, the plan is that of the command.
    let planned = folder.tamis(&words("config check mine.yaml --plan --machines 8x80GiB")).succeeds();
    planned.prints("  learner: 8 ranks");
}

#[test]
fn weights_between_gpus_are_left_out_on_the_cpu() {
    let folder = folder();
    let keys = "~model.init model.path=tiny learner.backend=torch cluster.launcher=local learner.gpus_per_node=2 \
        rollout.backend=vllm rollout.launch.replicas=2 publish.mode=nccl";
    let checked = folder.tamis(&words(&format!("config check tiny.yaml {keys}"))).succeeds();
    checked.prints("no GPU here: learning on the CPU; on the cluster this is learner.backend=torch, 2 ranks");
}

#[test]
fn a_configuration_for_gpus_learns_on_the_cpu_with_and_without_a_launcher() {
    let folder = folder();
    let ranks = "~model.init model.path=tiny learner.backend=torch learner.gpus_per_node=8";
    let needs = LINE.replace('\n', "; there it also needs cluster.launcher=local (or ray)\n");
    for (launcher, line) in
        [("cluster.launcher=local", LINE), ("", &*needs), ("cluster.launcher=none", &*needs)]
    {
        let checked = folder.tamis(&words(&format!("config check tiny.yaml {ranks} {launcher}"))).succeeds();
        checked.prints(line);
    }
    let small = "train.total_steps=1 validate.before_train=false run.name=own";
    let ended = folder.tamis(&words(&format!("train tiny.yaml {ranks} {small}"))).succeeds();
    assert!(ended.stderr.starts_with("no GPU here: learning on the CPU; "), "{}", ended.shown());
    // What is wrong for another reason is refused as it is.
    let wrong = folder.tamis(&words(&format!("config check tiny.yaml {ranks} rollout.n=0"))).exits(2);
    wrong.says("learner.gpus_per_node");
}
