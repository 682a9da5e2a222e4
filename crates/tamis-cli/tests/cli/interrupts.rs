//! Ctrl-C at any instant: what a run saves, and that a resume ends like an uninterrupted run.

use std::time::{Duration, Instant};

use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, SyncPolicy};

use crate::kills::{Dice, begun, num_kills};
use crate::tamis::{Folder, Left, Replaced as _, TINY, signal, soon, unfiltered, words};

#[test]
fn ctrl_c_finishes_the_step_saves_and_says_how_to_go_on() {
    let folder = Folder::tiny();
    let long =
        TINY.replaced("total_steps: 6", "total_steps: 200").replaced("save_freq: 2", "save_freq: 1000");
    folder.write("long.yaml", &long);
    let child = folder.start(&["train", "long.yaml"]);
    soon("steps", || folder.has_rows("runs/tiny", 4));
    signal(&child, "-INT");
    let ended = folder.wait(child).exits(130);
    ended.says("stopping: saves the last finished step");
    let steps: usize = ended
        .stdout
        .split("interrupted after ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{}", ended.shown()));
    assert!(ended.stdout.ends_with(&format!(
        "interrupted after {steps} steps and saved, run directory runs/tiny\nnext: tamis train --resume runs/tiny\n"
    )));
    assert!(folder.join(&format!("runs/tiny/checkpoints/step_{steps}/state.json")).is_file());

    let total = format!("train.total_steps={}", steps + 3);
    folder.tamis(&["train", "--resume", "runs/tiny", &total]).succeeds();
    folder.tamis(&["train", "long.yaml", "run.name=whole", &total]).succeeds();
    let (resumed, whole) = (Left::by(&folder.join("runs/tiny")), Left::by(&folder.join("runs/whole")));
    assert_eq!(resumed.metrics, whole.metrics);
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let file = format!("checkpoints/step_{}/{file}", steps + 3);
        assert!(resumed.files[&file] == whole.files[&file], "{file}");
    }
}

/// Long before the first line of a run: its prompts are rendered once to see how long they are, and once to
/// be used.
#[test]
fn ctrl_c_is_heard_while_prompts_are_looked_at() {
    let template = "{% for i in range(1500) %}{% for j in range(1000) %}{% endfor %}{% endfor %}{{ messages[-1].content }}";
    let row = "{\"question\": \"1+1=\", \"answer\": \"2\"}\n";
    let folder = Folder::tiny().with("slow.jinja", template).with("rows.jsonl", &row.repeat(100));
    let child = folder.start(&words(
        "train tiny.yaml data.task=null ~data.arithmetic data.train=rows.jsonl \
         data.val=rows.jsonl model.chat_template=slow.jinja",
    ));
    std::thread::sleep(Duration::from_secs(2));
    let start = Instant::now();
    signal(&child, "-INT");
    let ended = folder.wait(child);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(ended.code, Some(130), "{}", ended.shown());
    assert!(!folder.join("runs/tiny").exists(), "{}", ended.shown());
}

/// Hangs at the place that the file `hang` names, and makes `hanging` there; otherwise scores.
const HANGS: &str = "\
import json, os, sys, time
def is_there(request):
    place = open('hang').read().strip() if os.path.exists('hang') else ''
    kind, _, step = place.partition(' ')
    gold = not os.path.exists('runs/tiny/metrics.jsonl')
    trained = os.path.exists('runs/tiny/rollouts/step_%s.parquet' % request['step']) or request['step'] == 0
    now = 'gold' if gold else 'validation' if trained else 'rollout'
    return now == kind and str(request['step']) == step
for line in sys.stdin:
    request = json.loads(line)
    if is_there(request):
        open('hanging', 'w').close()
        time.sleep(1000)
    print(json.dumps({'id': request['id'], 'score': len(request['completion']) % 3 / 10}), flush=True)
";

#[test]
fn ctrl_c_gives_up_what_hangs_and_a_resume_does_it_again() {
    let reward = "reward: [{kind: number}, {kind: command, name: judge, argv: [python3, judge.py], num_processes: 1, timeout: 600s}]";
    let config = TINY
        .replaced("reward: [{kind: number}]", reward)
        .replaced("total_steps: 6", "total_steps: 4")
        .replaced("save_freq: 2", "save_freq: 1, keep_last: null");
    let new = || Folder::new().with("config.yaml", &config).with("judge.py", HANGS);
    let whole = new();
    let uninterrupted = whole.tamis(&["train", "config.yaml"]).succeeds();
    let expected = Left::by(&whole.join("runs/tiny"));

    let folder = new();
    let mut arguments = vec!["train", "config.yaml"];
    // What was hanging, and the steps that are saved then; `None` if there is no run yet.
    for (place, steps) in [
        ("gold 0", None),
        ("validation 0", Some(0)),
        ("rollout 1", Some(0)),
        ("validation 2", Some(2)),
        ("rollout 4", Some(3)),
        ("validation 4", Some(4)),
    ] {
        let printed = steps.map_or_else(
            || "error: interrupted before the run began; nothing was changed\n".to_owned(),
            |steps| format!("interrupted after {steps} steps and saved, run directory runs/tiny\n"),
        );
        folder.write("hang", place);
        let _ = std::fs::remove_file(folder.join("hanging"));
        let child = folder.start(&arguments);
        soon(place, || folder.join("hanging").exists());
        let start = Instant::now();
        signal(&child, "-INT");
        let ended = folder.wait(child);
        assert!(start.elapsed() < Duration::from_secs(20), "{place}: {:?}", start.elapsed());
        assert_eq!(ended.code, Some(130), "{place}: {}", ended.shown());
        let message = format!("{}{}", ended.stderr, ended.stdout);
        assert!(message.contains(&printed), "{place}: {}", ended.shown());
        if steps.is_none() {
            assert!(!folder.join("runs/tiny").exists(), "{}", ended.shown());
        } else {
            assert!(ended.stdout.ends_with("next: tamis train --resume runs/tiny\n"), "{}", ended.shown());
            arguments = vec!["train", "--resume", "runs/tiny"];
        }
    }
    folder.write("hang", "");
    let ended = folder.tamis(&arguments).succeeds();
    assert_eq!(ended.stdout, uninterrupted.stdout);
    expected.assert_same(&Left::by(&folder.join("runs/tiny")));
}

#[test]
fn ctrl_c_gives_up_generation_between_two_tokens() {
    // One round takes seconds because of its many samples, so the interrupt comes long before its end.
    let long = TINY
        .replaced("sft: {steps: 40, batch_size: 32, learning_rate: 1e-2}\n", "")
        .replaced("rollout: {n: 4", "rollout: {n: 16384")
        .replaced("before_train: true", "before_train: false");
    let folder = Folder::new().with("config.yaml", &long);
    let child = folder.start(&["train", "config.yaml"]);
    let log = folder.join("runs/tiny/run.log");
    soon("a model", || std::fs::read_to_string(&log).is_ok_and(|message| message.contains("model: ")));
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    signal(&child, "-INT");
    let ended = folder.wait(child);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(ended.code, Some(130), "{}", ended.shown());
    ended.prints("interrupted after 0 steps");
}

/// Ctrl-C at any instant of runs that spend their time in updates. A step has many updates: begun work is
/// dropped whole or finished, and a resume ends like an uninterrupted run.
#[test]
fn ctrl_c_in_the_middle_of_updates_leaves_no_half_of_a_step() {
    let config = unfiltered(TINY)
        .replaced("hidden_size: 16, intermediate_size: 32", "hidden_size: 32, intermediate_size: 64")
        .replaced("ppo_mini_batch_size: 2", "ppo_mini_batch_size: 1\n  ppo_epochs: 15");
    let config = format!(
        "preset: ppo\n{config}critic: {{ppo_epochs: 15, ppo_mini_batch_size: 1, optimizer: {{learning_rate: 1e-3}}}}\n\
         objective: {{kl: {{in: reward, estimator: k1, coefficient: 0.05, adaptive: {{target: 0.05, horizon: 50}}}}}}\n"
    );
    let mut dice = Dice::new();
    // If every step is saved, a step is dropped in the middle. If none is, its updates are finished.
    for save_freq in [1, 1000] {
        let config = config.replaced("save_freq: 2", &format!("save_freq: {save_freq}, keep_last: 1"));
        let new = || Folder::new().with("config.yaml", &config);
        let folder = new();
        let start = Instant::now();
        folder.tamis(&["train", "config.yaml"]).succeeds();
        let whole = start.elapsed();
        let expected = Left::by(&folder.join("runs/tiny"));

        let folder = new();
        let mut num_interrupts = 0;
        let last = loop {
            let child = match begun(&folder) {
                None => folder.start(&["train", "config.yaml"]),
                Some(_) => folder.start(&["train", "--resume", "runs/tiny"]),
            };
            if num_interrupts == num_kills(5) {
                break folder.wait(child);
            }
            std::thread::sleep(whole.mul_f64(0.3 + 0.6 * dice.roll()));
            let start = Instant::now();
            let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).output();
            let ended = folder.wait(child);
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
            if sent.is_ok_and(|sent| sent.status.success()) && ended.code == Some(130) {
                num_interrupts += 1;
            } else {
                // It was faster.
                break ended;
            }
        };
        assert_eq!(last.code, Some(0), "{}", last.shown());
        println!("save_freq {save_freq}: {num_interrupts} interrupts");
        expected.assert_same(&Left::by(&folder.join("runs/tiny")));
    }
}

/// Adds noise that sometimes keeps a group. While the file `hang` exists it keeps none in step 2, which
/// therefore has a second round, and hangs in that.
const HANGS_IN_A_STEP: &str = "\
import json, os, random, sys, time
seen = 0
for line in sys.stdin:
    request = json.loads(line)
    seen += request['step'] == 2 and os.path.exists('runs/tiny/rollouts/step_1.parquet')
    if seen == 33 and os.path.exists('hang'):
        open('hanging', 'w').close()
        time.sleep(1000)
    size = 0.5 if request['step'] == 2 and os.path.exists('hang') else 1
    print(json.dumps({'id': request['id'], 'score': size * random.random()}), flush=True)
";

#[test]
fn what_an_interrupted_step_was_answered_is_not_asked_again() {
    let reward = "reward: [{kind: number}, {kind: command, name: noise, argv: [python3, noise.py], num_processes: 1, timeout: 600s}]";
    let config = TINY
        .replaced("reward: [{kind: number}]", reward)
        .replaced("filter: {kind: variance}", "filter: {kind: variance, metric: noise, tolerance: 0.8}")
        .replaced("validate: {test_freq: 2", "validate: {test_freq: 3");
    let folder =
        Folder::new().with("config.yaml", &config).with("noise.py", HANGS_IN_A_STEP).with("hang", "");
    let child = folder.start(&["train", "config.yaml"]);
    soon("a hang", || folder.join("hanging").exists());
    signal(&child, "-INT");
    folder.wait(child).prints("interrupted after 1 step");
    std::fs::remove_file(folder.join("hang")).expect("removed");
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();

    // Every answer was requested once, and a run that gets all of them equals this one.
    let path = folder.join("runs/tiny/journal.bin");
    let (_, journal) = Journal::open(&Disk::new(), &path, SyncPolicy::OnDemand, 0).expect("a journal");
    let keys: Vec<String> = journal
        .records
        .iter()
        .map(|(_, record)| {
            serde_json::from_slice::<serde_json::Value>(record).expect("JSON")["key"].to_string()
        })
        .collect();
    let different: std::collections::BTreeSet<&String> = keys.iter().collect();
    assert!(keys.len() > 6 * 32 && different.len() == keys.len(), "{} of {}", different.len(), keys.len());
    let replay = Folder::new().with("config.yaml", &config).with("noise.py", "raise SystemExit('asked')\n");
    folder.copy("runs/tiny", &replay, "runs/tiny", &["config.yaml", "started", "journal.bin"]);
    replay.tamis(&["train", "--resume", "runs/tiny", "data.check_gold=off"]).succeeds();
    assert_eq!(Left::by(&folder.join("runs/tiny")).metrics, Left::by(&replay.join("runs/tiny")).metrics);
}

#[cfg(unix)]
#[test]
fn an_update_that_is_interrupted_is_finished() {
    // Updates take most of the time, and run the policy again and again.
    let config = TINY
        .replaced("total_steps: 6", "total_steps: 4\n  ppo_epochs: 500")
        .replaced("checkpoint: {save_freq: 2}", "checkpoint: {save_freq: 2, keep_last: null}")
        + "objective: {loss: {kind: clip_cov, share: 0.1, cov_low: 0.0}}\n";
    let whole = Folder::new().with("config.yaml", &config);
    let start = Instant::now();
    whole.tamis(&["train", "config.yaml"]).succeeds();
    let time = start.elapsed();
    let expected = Left::by(&whole.join("runs/tiny"));

    let mut dice = Dice::new();
    let mut interrupts = 0;
    // On a busy machine a run may end before it gets the signal; then the signal is sent sooner.
    for sooner in 0..6 {
        let folder = Folder::new().with("config.yaml", &config);
        for start in 0.. {
            assert!(start < 40, "the run does not end");
            let mut child = match begun(&folder) {
                None => folder.start(&["train", "config.yaml"]),
                Some(_) => folder.start(&["train", "--resume", "runs/tiny"]),
            };
            std::thread::sleep(time.mul_f64((0.1 + 0.3 * dice.roll()) / f64::from(1 << sooner)));
            if interrupts < 12 && child.try_wait().expect("status").is_none() {
                signal(&child, "-INT");
                interrupts += 1;
            }
            if folder.wait(child).code == Some(0) {
                break;
            }
        }
        let found = Left::by(&folder.join("runs/tiny"));
        assert_eq!(found.metrics, expected.metrics);
        let weights = "checkpoints/step_4/model.safetensors";
        assert!(found.files[weights] == expected.files[weights]);
        if interrupts > 2 {
            return;
        }
    }
    panic!("only {interrupts} interrupts in six runs");
}
