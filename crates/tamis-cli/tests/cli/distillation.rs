//! On-policy distillation from the command line: teachers that the learner loads and at servers, alone and on
//! top of rewards, and what is refused.

use serde_json::Value;

use crate::listening::Listening;
use crate::tamis::{Folder, Replaced as _, TINY, unfiltered, words};

/// A policy that begins with random weights and has only the teacher to learn from.
const TAUGHT: &str = "objective: {advantage: {kind: on_policy_distillation}}\n";

/// A folder with `config.yaml`, and a run `teacher` that has imitated the gold answers.
fn with_a_teacher(rest: &str) -> Folder {
    let folder = Folder::new();
    let teacher =
        unfiltered(TINY).replaced("steps: 40", "steps: 200").replaced("total_steps: 6", "total_steps: 1");
    folder.write("teacher.yaml", &teacher);
    folder.tamis(&["train", "teacher.yaml", "run.name=teacher"]).succeeds();
    let student = unfiltered(TINY).replaced("sft: {steps: 40, batch_size: 32, learning_rate: 1e-2}\n", "");
    folder.write("config.yaml", &format!("{student}{rest}"));
    folder
}

const TEACHER: &str = "teacher=[{path: runs/teacher/checkpoints/step_1}]";

fn trained(folder: &Folder, run: &str) -> Vec<Value> {
    folder.rows(run).into_iter().filter(|row| row.get("loss").is_some()).collect()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"))
}

#[test]
fn a_policy_learns_from_a_teacher_alone() {
    let folder = with_a_teacher(TAUGHT);
    // One completion per prompt, and rewards that hardly ever differ: the teacher is all there is.
    let settings = words(
        "train config.yaml rollout.n=1 data.train_batch_size=16 train.ppo_mini_batch_size=16 \
         train.total_steps=80 train.optimizer.learning_rate=1e-2 validate.test_freq=0 checkpoint.save_freq=0",
    );
    let ended = folder.tamis(&[&settings[..], &[TEACHER]].concat());
    ended.succeeds().says("advantage on_policy_distillation");
    let rows = trained(&folder, "tiny");
    assert_eq!(rows.len(), 80);
    let mean = |rows: &[Value]| rows.iter().map(|row| number(row, "distillation/kl")).sum::<f64>() / 10.0;
    let (first, last) = (mean(&rows[..10]), mean(&rows[70..]));
    assert!(first > 0.5 && last < 0.6 * first, "{first} nats at first, {last} at last");
    assert!(rows.iter().all(|row| number(row, "timing_s/teacher") > 0.0));
}

#[test]
fn a_teacher_that_is_the_policy_teaches_nothing_until_the_policy_moves() {
    let folder = with_a_teacher(TAUGHT);
    let path = "+model.path=runs/teacher/checkpoints/step_1";
    let policy = ["~model.init", path, "train.total_steps=1", "train.ppo_mini_batch_size=4"];
    folder.tamis(&[&["train", "config.yaml", TEACHER][..], &policy].concat()).succeeds();
    // Generation and the teacher's pass agree to the bit.
    let rows = trained(&folder, "tiny");
    assert!(rows.iter().all(|row| number(row, "distillation/kl") == 0.0), "{rows:?}");
    assert!(rows.iter().all(|row| number(row, "critic/advantages/max") == 0.0), "{rows:?}");
}

#[test]
fn the_gain_is_added_to_rewards_and_groups_of_equal_rewards_learn() {
    let shaping =
        "objective: {advantage: {kind: dr_grpo}, shaping: [{kind: add_distillation, coefficient: 0.25}]}\n";
    let folder = with_a_teacher(shaping);
    folder.tamis(&["train", "config.yaml", TEACHER, "train.total_steps=2"]).succeeds();
    for row in trained(&folder, "tiny") {
        // A random policy is never right: all that there is to learn comes from the teacher.
        assert!(number(&row, "actor/grad_norm") > 0.0, "{row}");
        assert!(number(&row, "critic/advantages/min") < 0.0, "{row}");
    }
    // A group of one has nothing to be compared with, and a teacher all the same.
    let one = ["train", "config.yaml", TEACHER, "rollout.n=1", "train.total_steps=1", "run.name=one"];
    folder.tamis(&one).succeeds();
    let alone = ["train", "config.yaml", "objective.shaping=[]", "rollout.n=1", "run.name=two"];
    folder.tamis(&alone).fails_with("every advantage is 0 and nothing is learned");
}

#[test]
fn a_teacher_at_a_server_is_the_teacher_that_the_learner_loads() {
    let folder = with_a_teacher(TAUGHT);
    let server = Listening::serve(&folder, &["runs/teacher/checkpoints/step_1"]);
    let at = format!("teacher=[{{servers: [{}], path: runs/teacher/checkpoints/step_1}}]", server.address);
    let steps = ["train.total_steps=4", "checkpoint.save_freq=1"];
    folder.tamis(&[&["train", "config.yaml", TEACHER, "run.name=loaded"][..], &steps].concat()).succeeds();
    folder.tamis(&[&["train", "config.yaml", &at, "run.name=served"][..], &steps].concat()).succeeds();
    let (loaded, served) = (trained(&folder, "loaded"), trained(&folder, "served"));
    for (one, other) in loaded.iter().zip(&served) {
        let (a, b) = (number(one, "distillation/kl"), number(other, "distillation/kl"));
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    assert!(folder.join("runs/served/teachers.bin").exists());
    assert!(!folder.join("runs/loaded/teachers.bin").exists());
    let hot = folder.tamis(&["train", "config.yaml", &at, "rollout.temperature=0.7", "run.name=hot"]);
    hot.fails_with("a server gives a teacher's log-probabilities at temperature 1");
    // A run whose server is gone does not begin.
    let gone = format!("teacher=[{{servers: [{}], startup_timeout: 1s}}]", server.address);
    drop(server);
    let ended = folder.tamis(&["train", "config.yaml", &gone, "run.name=gone"]).exits(3);
    ended.fails_with("(teacher[0])");
}

#[test]
fn teachers_by_data_source_and_what_is_refused() {
    let folder = with_a_teacher(TAUGHT);
    let train = |teacher: &str| folder.tamis(&["train", "config.yaml", teacher, "train.total_steps=1"]);
    let path = "path: runs/teacher/checkpoints/step_1";
    // The prompts of the task have a data source of their own.
    train(&format!("teacher=[{{{path}, data_source: elsewhere}}, {{{path}}}]"))
        .succeeds()
        .says("a teacher is for the `data_source` \"elsewhere\", which no prompt has");
    for (teachers, said) in [
        (format!("{{{path}, data_source: elsewhere}}"), "no teacher is for the prompts of `data_source`"),
        (format!("{{{path}}}, {{{path}}}"), "two teachers have no `data_source`"),
        (String::new(), "`on_policy_distillation` needs a teacher, and `teacher` names none"),
        ("{}".to_owned(), "so it is the policy without its adapter, and there is no adapter"),
        ("{path: nowhere}".to_owned(), "there is no folder nowhere"),
    ] {
        train(&format!("teacher=[{teachers}]")).fails_with(said);
    }
    // Two digits exchanged: the same ids would be other tokens.
    let checkpoint = "runs/teacher/checkpoints/step_1";
    folder.copy(checkpoint, &folder, "other", &["config.json", "tokenizer_config.json", "model.safetensors"]);
    let tokenizer = folder.read(&format!("{checkpoint}/tokenizer.json"));
    let tokenizer =
        tokenizer.replaced("\"7\"", "\"x\"").replaced("\"8\"", "\"7\"").replaced("\"x\"", "\"8\"");
    folder.write("other/tokenizer.json", &tokenizer);
    train("teacher=[{path: other}]")
        .fails_with("is not the policy's: token 14 is \"8\" there and \"7\" here");
    let check =
        |settings: &[&str]| folder.tamis(&[&["config", "check", "config.yaml"][..], settings].concat());
    check(&["teacher=[{path: other}]"]).fails_with("is not the policy's: token 14 is");
    check(&[TEACHER, "objective.kl.in=reward"]).fails_with("reads no rewards, so a KL in them has no effect");
    check(&[TEACHER, "+objective.shaping={kind: add_distillation}"])
        .prints("the teacher's rating of a token counts twice");
    // A teacher from which nothing is computed is a warning.
    check(&[TEACHER, "objective.advantage.kind=grpo"]).prints("`teacher` has no effect");
}

/// A policy that learns from a teacher's likeliest tokens alone.
const LIKELIEST: &str = "objective: {distillation: {top_k: 6, advantages: false}}\n";

#[test]
fn a_policy_learns_from_the_likeliest_tokens_of_a_teacher() {
    let folder = with_a_teacher(LIKELIEST);
    let steps = ["train.total_steps=40", "train.optimizer.learning_rate=1e-2", "rollout.n=1"];
    let rest = ["validate.test_freq=0", "checkpoint.save_freq=0"];
    for (run, beta) in [("forward", "0"), ("reverse", "1"), ("between", "0.5")] {
        let own = [format!("run.name={run}"), format!("objective.distillation.beta={beta}")];
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let arguments = [&["train", "config.yaml", TEACHER][..], &steps, &rest, &own].concat();
        let ended = folder.tamis(&arguments);
        ended.succeeds().says("distillation alone over 6 likeliest tokens, beta");
        let rows = trained(&folder, run);
        let mean = |rows: &[Value]| {
            rows.iter().map(|row| number(row, "distillation/divergence")).sum::<f64>() / rows.len() as f64
        };
        let (first, last) = (mean(&rows[..5]), mean(&rows[35..]));
        assert!(last < 0.5 * first, "{run}: {first} nats at first, {last} at last");
        for row in &rows {
            assert_eq!(row["actor/pg_loss"], 0.0);
            let (loss, divergence) = (number(row, "loss"), number(row, "distillation/loss"));
            assert!((loss - divergence).abs() < 1e-12, "{row}");
            assert!(number(row, "distillation/teacher_mass") > 0.5, "{row}");
        }
    }
}

/// `tamis serve` gives the likeliest tokens of a prompt as the learner does.
#[test]
fn the_likeliest_tokens_of_a_server_are_those_of_the_teacher_that_the_learner_loads() {
    let folder = with_a_teacher(LIKELIEST);
    let server = Listening::serve(&folder, &["runs/teacher/checkpoints/step_1"]);
    let at = format!("teacher=[{{servers: [{}], path: runs/teacher/checkpoints/step_1}}]", server.address);
    for (name, teacher) in [("loaded", TEACHER), ("served", at.as_str())] {
        let name = format!("run.name={name}");
        folder.tamis(&["train", "config.yaml", teacher, &name, "train.total_steps=2"]).succeeds();
    }
    let (loaded, served) = (trained(&folder, "loaded"), trained(&folder, "served"));
    assert_eq!((loaded.len(), served.len()), (2, 2));
    for (one, other) in loaded.iter().zip(&served) {
        for name in ["distillation/divergence", "distillation/teacher_mass"] {
            let (a, b) = (number(one, name), number(other, name));
            assert!(a > 0.0 && (a - b).abs() < 1e-4, "{name}: {a} {b}");
        }
    }
}

#[test]
fn a_teacher_that_is_the_policy_has_no_divergence() {
    let folder = with_a_teacher(LIKELIEST);
    let path = "+model.path=runs/teacher/checkpoints/step_1";
    let policy = ["~model.init", path, "train.total_steps=1", "train.ppo_mini_batch_size=4"];
    for beta in ["0", "0.3", "1"] {
        let own = format!("objective.distillation.beta={beta}");
        let name = format!("run.name=beta{beta}");
        let arguments = [&["train", "config.yaml", TEACHER, &own, &name][..], &policy].concat();
        folder.tamis(&arguments).succeeds();
        for row in trained(&folder, &format!("beta{beta}")) {
            // One update, at the teacher. A second would differ by the first, which follows rounding.
            assert!(number(&row, "distillation/loss").abs() < 1e-4, "{row}");
            assert!(number(&row, "actor/grad_norm") < 1e-3, "{row}");
        }
    }
}

#[test]
fn settings_of_a_distillation_in_the_loss_that_mean_nothing_are_refused() {
    let folder = with_a_teacher(LIKELIEST);
    let check =
        |more: &[&str]| folder.tamis(&[&["config", "check", "config.yaml", TEACHER][..], more].concat());
    check(&[]).succeeds();
    check(&["objective.distillation.top_k=0"]).fails_with("no token is compared");
    let one = ["objective.distillation.top_k=1", "objective.distillation.rest=renormalized"];
    check(&one).fails_with("the divergence is always 0");
    let ignored = check(&["objective.distillation.min_logprob=-5"]);
    ignored.prints("`objective.distillation.min_logprob` has no effect");
    check(&["objective.advantage.kind=rloo"]).prints("has no effect");
    check(&["objective.distillation.beta=2"]).fails_with("objective.distillation.beta");
    let none = "`objective.distillation` needs a teacher, and `teacher` names none";
    folder.tamis(&["config", "check", "config.yaml", "teacher=[]"]).fails_with(none);
}

#[test]
fn a_learner_in_another_process_distils_alike() {
    let folder = with_a_teacher(LIKELIEST);
    let steps = ["train.total_steps=3", "objective.distillation.advantages=true"];
    folder.tamis(&[&["train", "config.yaml", TEACHER, "run.name=here"][..], &steps].concat()).succeeds();
    let learner = Listening::learner(&folder, &[]);
    let url = format!("learner.url={}", learner.address);
    let there = ["train", "config.yaml", TEACHER, "run.name=there", &url];
    folder.tamis(&[&there[..], &steps].concat()).succeeds();
    for (one, other) in trained(&folder, "here").iter().zip(&trained(&folder, "there")) {
        for name in ["loss", "distillation/loss", "distillation/student_mass", "actor/grad_norm"] {
            assert_eq!(one[name], other[name], "{name}");
        }
    }
}
