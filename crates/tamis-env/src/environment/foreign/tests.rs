use serde_json::Map;
use tamis_core::random::Purpose;

use super::process::{EnvironmentWorkers, WorkerCommand};
use super::*;
use crate::reward::listener::Heard;
use crate::reward::{Nobody, test_prompt};

/// A counter that ends at its level's number, and does what an answer demands: hang, die, print garbage, or
/// answer with other text.
const COUNTER: &str = r#"
import json, sys, time, os
print("ready", file=sys.stderr)
counts = {}
for line in sys.stdin:
    asked = json.loads(line)
    op, id = asked["op"], asked["id"]
    said = {"id": id}
    if op == "hello":
        said |= {"protocol": asked["settings"].get("protocol", "tamis-environment/1"), "name": "counter", "system": "count",
                 "scores_cut": asked["settings"].get("scores_cut", False)}
    elif op == "levels":
        said["levels"] = [{"level": n + 2, "prompt": f"to {n + 2}"} for n in range(min(asked["count"], 3))]
    elif op == "reset":
        counts[asked["episode"]] = [0, asked["level"]]
        said["messages"] = [{"role": "user", "content": "anew"}] if asked["level"] == 4 else None
    elif op == "step":
        if asked["action"] == "hang": continue
        if asked["action"] == "stop": time.sleep(600)
        if asked["action"] == "die": print("gave up", file=sys.stderr, flush=True); os._exit(3)
        if asked["action"] == "babble": print("what?\n" * 200, flush=True); continue
        if asked["action"] == "chatter": print('now\n[1]\n{"a": 1}', flush=True)
        count = counts[asked["episode"]]
        count[0] += 1
        if asked["action"] == "fail": said = {"id": id, "error": {"message": "no", "hint": "yes"}}
        elif asked["action"] == "nan": said |= {"reward": float("inf"), "terminated": True}
        elif asked["action"] == "numb": said |= {"reward": 0}
        else:
            said |= {"messages": [{"role": "tool", "content": f"at {count[0]}"}], "reward": 0.5,
                     "terminated": count[0] == count[1], "success": True if count[0] == count[1] else None,
                     "info": {"count": count[0], "words": "none", "unscored": 0.0, "two words": 1, "x" * 65: 1}}
    elif op == "cut":
        said |= {"reward": 10, "success": False, "info": {"cut": 1}}
    elif op == "close":
        counts.pop(asked["episode"], None)
    print(json.dumps(said), flush=True)
"#;

fn command(program: &str) -> WorkerCommand {
    WorkerCommand {
        name: Some("count".to_owned()),
        argv: ["python3", "-c", program].map(str::to_owned).to_vec(),
        working_dir: None,
        variables: Vec::new(),
        settings: json!({}),
        num_processes: 2,
        startup_timeout: Duration::from_secs(60),
        max_restarts: 3,
    }
}

fn counter(limit: Duration, max_turns: usize) -> Foreign {
    counter_heard(limit, max_turns).0
}

/// The same, with the messages for the user.
fn counter_heard(limit: Duration, max_turns: usize) -> (Foreign, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = Arc::clone(&heard) as Arc<dyn Listener>;
    (started(command(COUNTER), limit, max_turns, listener), heard)
}

fn started(
    command: WorkerCommand,
    limit: Duration,
    max_turns: usize,
    listener: Arc<dyn Listener>,
) -> Foreign {
    let (workers, introduction) = EnvironmentWorkers::start(command, Arc::clone(&listener)).expect("starts");
    Foreign::new(Arc::new(workers), introduction, "count", limit, max_turns, listener)
}

fn nobody() -> Arc<dyn Listener> {
    Arc::new(Nobody)
}

fn prompt(level: Option<&str>) -> Prompt {
    let columns = Map::from_iter(level.map(|level| (LEVEL.to_owned(), Value::from(level))));
    Prompt { columns, ..test_prompt("go") }
}

fn begin(foreign: &Foreign, level: &str) -> Box<dyn Environment> {
    let key = Key::new(1, Purpose::Environment);
    foreign.begin(&prompt(Some(level)), key).expect("begun").expect("a level")
}

fn fault(outcome: TurnOutcome) -> String {
    outcome.fault.expect("failed").to_string()
}

#[test]
fn episodes_are_played_elsewhere_turn_by_turn() {
    let foreign = counter(Duration::from_secs(60), 3);
    assert_eq!((foreign.introduction().name.as_str(), foreign.introduction().max_turns), ("counter", None));
    let levels = foreign.levels(false, 10, 7).expect("levels");
    assert_eq!(levels.len(), 3);
    let messages = levels[0].messages(Some("count")).expect("messages");
    let told: Vec<(&str, &str)> =
        messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
    assert_eq!(told, [("system", "count"), ("user", "to 2")]);
    assert!(foreign.levels(true, 0, 7).expect("none").is_empty());

    // Two at the same time, in two workers.
    let (mut first, mut second) = (begin(&foreign, "2"), begin(&foreign, "4"));
    assert_eq!(
        (first.opening(), second.opening().map(|opening| opening[0].content.clone())),
        (None, Some("anew".to_owned()))
    );
    let outcome = first.act("one");
    let info = vec![("count".into(), 1.0), ("unscored".into(), 0.0)];
    assert_eq!((outcome.reward, outcome.end, outcome.info), (Some(0.5), None, info));
    assert_eq!((first.messages()[0].role.as_str(), first.observe().as_str()), ("tool", "at 1"));
    assert_eq!(second.act("one").end, None);
    assert_eq!(first.act("two").end, Some(EpisodeEnd::Terminated));
    assert!(first.is_success() == Some(true) && first.messages().is_empty());
    // No longer than the run allows.
    second.act("two");
    assert_eq!(second.act("three").end, Some(EpisodeEnd::Truncated));
    assert_eq!(second.is_success(), None);
    assert!(foreign.begin(&prompt(None), Key::new(1, Purpose::Environment)).expect("none").is_none());
}

/// If an environment declares it, it is asked for the reward of an episode that a limit of the run ends.
#[test]
fn an_episode_that_is_cut_is_scored_where_its_environment_can() {
    let scoring = WorkerCommand { settings: json!({"scores_cut": true}), ..command(COUNTER) };
    let limit = Duration::from_secs(60);
    let foreign = started(scoring, limit, 2, nobody());
    let mut by_turns = begin(&foreign, "4");
    assert_eq!(by_turns.act("one").reward, Some(0.5));
    let last = by_turns.act("two");
    assert_eq!((last.reward, last.end), (Some(10.5), Some(EpisodeEnd::Truncated)));
    assert_eq!(last.info.last(), Some(&("cut".into(), 1.0)));
    assert_eq!((by_turns.is_success(), by_turns.observe()), (Some(false), String::new()));
    // The same for a limit on tokens, which the environment does not know.
    let mut by_tokens = begin(&foreign, "4");
    by_tokens.act("one");
    assert_eq!(by_tokens.cut().expect("scored").reward, Some(10.0));
    let silent = counter(limit, 2);
    let mut cut = begin(&silent, "4");
    cut.act("one");
    assert_eq!((cut.cut(), cut.is_success()), (None, None));
}

#[test]
fn calls_of_tools_have_no_limit_of_turns() {
    let mut calls = counter(Duration::from_secs(60), 2)
        .begin_level(&json!(100), Key::new(1, Purpose::Environment))
        .map(ForeignCalls::over)
        .expect("begun");
    for count in 1..=5 {
        let (said, has_failed) = calls.call("count", &json!({})).expect("answered");
        assert_eq!((said, has_failed), (format!("at {count}"), false));
    }
}

#[test]
fn what_goes_wrong_costs_one_episode_and_says_why() {
    let foreign = counter(Duration::from_secs(60), 9);
    let mut episode = begin(&foreign, "5");
    assert_eq!(fault(episode.act("fail")), "its environment reports: no (hint: yes)");
    let told = fault(begin(&foreign, "5").act("nan"));
    assert!(told.contains("its answer is not JSON (") && told.contains("Infinity"), "{told}");
    assert!(fault(begin(&foreign, "5").act("numb")).contains("not a list of messages: null"));
    // If a worker dies, its episodes are lost and another worker is started.
    for (word, said) in [("die", "gave up"), ("babble", "what?")] {
        let mut episode = begin(&foreign, "5");
        let told = fault(episode.act(word));
        assert!(told.starts_with("the worker of its environment is gone (") && told.contains(said), "{told}");
        let told = fault(episode.act("one"));
        assert!(told.contains("its environment"), "{told}");
    }
    let (mut one, mut other) = (begin(&foreign, "5"), begin(&foreign, "5"));
    assert_eq!((one.act("one").fault, other.act("one").fault), (None, None));
}

#[test]
fn restarts_are_counted_from_the_last_episode_that_ended() {
    let foreign = counter(Duration::from_secs(60), 9);
    for round in 0..5 {
        let told = fault(begin(&foreign, "5").act("die"));
        assert!(told.contains("gave up"), "{round}: {told}");
        // The other worker is lost, too.
        let told = fault(begin(&foreign, "5").act("die"));
        assert!(told.contains("gave up"), "{round}: {told}");
        let mut episode = begin(&foreign, "2");
        assert_eq!((episode.act("one").fault, episode.act("two").end), (None, Some(EpisodeEnd::Terminated)));
    }
    let told: Vec<Option<EnvironmentFault>> = (0..8).map(|_| begin_or_fail(&foreign, "die").fault).collect();
    let Some(Some(EnvironmentFault::Lost(words))) = told.last() else { panic!("{told:?}") };
    assert!(
        words.starts_with(
            "its workers were lost 4 times in a row without a finished episode in between, and `environment.max_restarts` (3) allows no \
            more; the last time: the worker of its environment is gone (exit \
             status: 3)"
        ) && words.ends_with("gave up"),
        "{words}"
    );
}

#[test]
fn an_answered_call_forgives_lost_workers() {
    let foreign = counter(Duration::from_secs(60), 9);
    let key = Key::new(1, Purpose::Environment);
    for _ in 0..8 {
        let mut calls = foreign.begin_level(&json!(9), key).map(ForeignCalls).expect("begun");
        assert_eq!(calls.call("count", &json!({})).map(|(said, _)| said), Ok("at 1".to_owned()));
        assert!(fault(begin(&foreign, "5").act("die")).contains("gave up"));
        assert!(fault(begin(&foreign, "5").act("die")).contains("gave up"));
    }
}

#[test]
fn stray_lines_and_names_are_left_out_with_a_warning() {
    let (foreign, heard) = counter_heard(Duration::from_secs(60), 9);
    let (mut first, mut second) = (begin(&foreign, "5"), begin(&foreign, "5"));
    for episode in [&mut first, &mut second] {
        let outcome = episode.act("chatter");
        assert_eq!((outcome.fault, outcome.reward), (None, Some(0.5)));
        assert_eq!(episode.act("one").fault, None);
    }
    // Beside what its workers print.
    let mut lines: Vec<String> = heard.text().lines().map(str::to_owned).collect();
    lines.retain(|line| line.starts_with("warning"));
    lines.sort();
    let [line, number] = &lines[..] else { panic!("{lines:?}") };
    assert!(
        line.starts_with("warning: a worker of the environment `count` wrote a line")
            && line.ends_with(": now"),
        "{line}"
    );
    let named = "warning: the environment `count` gives a number the name \"two words\" in `info`";
    assert!(number.starts_with(named) && number.contains("it is left out"), "{number}");
}

/// The outcome of an answer in an episode of its own, or the fault of its beginning.
fn begin_or_fail(foreign: &Foreign, word: &str) -> TurnOutcome {
    match foreign.begin(&prompt(Some("5")), Key::new(1, Purpose::Environment)) {
        Ok(episode) => episode.expect("a level").act(word),
        Err(fault) => TurnOutcome::failed(fault),
    }
}

#[test]
fn one_that_hangs_is_not_waited_for_and_holds_up_nobody() {
    let foreign = counter(Duration::from_secs(1), 9);
    let mut episode = begin(&foreign, "5");
    assert_eq!(episode.act("hang").fault, Some(EnvironmentFault::TimedOut { limit: Duration::from_secs(1) }));
    drop(episode);
    let foreign = counter(Duration::from_secs(60), 9);
    let mut episode = begin(&foreign, "5");
    let waits = std::thread::spawn(move || {
        let outcome = episode.act("one");
        (episode, outcome)
    });
    assert_eq!(begin(&foreign, "5").act("one").fault, None);
    assert_eq!(waits.join().expect("joined").1.fault, None);
}

#[test]
fn a_worker_that_hangs_is_started_again() {
    let one = WorkerCommand { num_processes: 1, ..command(COUNTER) };
    let (workers, introduction) = EnvironmentWorkers::start(one, nobody()).expect("starts");
    let workers = Arc::new(workers);
    let line: Arc<dyn EnvironmentLine> = workers;
    let patient =
        Foreign::new(Arc::clone(&line), introduction.clone(), "count", Duration::from_secs(60), 9, nobody());
    let mut episode = begin(&patient, "5");
    let hasty = Foreign::new(Arc::clone(&line), introduction, "count", Duration::from_secs(1), 9, nobody());
    let mut stopped = begin(&hasty, "5");
    let timed_out =
        |fault: Option<EnvironmentFault>| matches!(fault, Some(EnvironmentFault::TimedOut { .. }));
    assert!(timed_out(stopped.act("stop").fault));
    // The worker is busy for ten minutes and answers nothing.
    for _ in 0..3 {
        assert!(timed_out(begin_or_fail(&hasty, "one").fault));
    }
    let told = fault(episode.act("one"));
    assert!(!told.is_empty());
    assert_eq!(begin(&patient, "5").act("one").fault, None);
}

#[test]
fn nobody_waits_longer_for_a_worker_than_one_may_take_to_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let slow = format!(
        "import os, time\nif os.path.exists('once'): time.sleep(600)\nopen('once', 'w').close()\n{COUNTER}"
    );
    let command = WorkerCommand {
        working_dir: Some(folder.path().to_owned()),
        num_processes: 1,
        max_restarts: 100,
        ..command(&slow)
    };
    let limit = Duration::from_secs(10);
    let command = WorkerCommand { startup_timeout: limit, ..command };
    let foreign = started(command, Duration::from_secs(600), 9, nobody());
    assert!(fault(begin(&foreign, "5").act("die")).contains("gave up"));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let refused = begin_or_fail(&foreign, "one").fault;
                assert_eq!(refused, Some(EnvironmentFault::NotStarted { limit }));
            });
        }
    });
}

#[test]
fn a_worker_that_does_not_come_up_is_told() {
    let refused = |command: WorkerCommand| {
        EnvironmentWorkers::start(command, nobody()).map(|_| ()).expect_err("refused").to_string()
    };
    let program = |text: &str| refused(command(text));
    let told = program("import sys; print('no such module', file=sys.stderr); sys.exit(1)");
    assert!(told.contains("exit status: 1") && told.contains("no such module"), "{told}");
    let missing = WorkerCommand { argv: vec!["no-such-program".to_owned()], ..command("") };
    assert!(refused(missing).contains("its worker `no-such-program` cannot be started"));
    let other = WorkerCommand { settings: json!({"protocol": "other/2"}), ..command(COUNTER) };
    assert!(refused(other).contains("speaks \"other/2\", and tamis tamis-environment/1"));
    let slow = WorkerCommand {
        startup_timeout: Duration::from_millis(50),
        ..command("import time; time.sleep(60)")
    };
    assert!(
        refused(slow)
            .contains("no worker of its environment was ready within 0.05 s (`environment.startup_timeout`)")
    );
}
