mod python_functions;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tamis_core::group::PromptId;
use tamis_data::prompt::{Message, PromptContent};

use super::*;
use crate::reward::gold::GoldExtent;
use crate::reward::listener::Heard;
use crate::reward::{NamedReward, Rewards, has_python, test_prompt};

fn prompt(id: u64, truth: &str) -> Prompt {
    let columns = Map::from_iter([("level".to_owned(), json!(id))]);
    Prompt { id: PromptId(id), columns, ..test_prompt(truth) }
}

fn config(argv: &[&str]) -> CommandConfig {
    CommandConfig {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        num_processes: 1,
        timeout: Duration::from_secs(20),
        startup_timeout: Duration::ZERO,
        max_restarts: 100,
        ..CommandConfig::default()
    }
}

fn shell(script: &str) -> CommandReward {
    CommandReward::new(config(&["sh", "-c", script])).unwrap()
}

/// Outcomes of `num` completions "0", "1", ... whose truths are the same texts.
fn outcomes(command: &CommandReward, num: usize) -> Vec<RewardOutcome> {
    let texts: Vec<String> = (0..num).map(|i| i.to_string()).collect();
    let prompts: Vec<Prompt> = texts.iter().enumerate().map(|(i, text)| prompt(i as u64, text)).collect();
    let inputs: Vec<RewardInput<'_>> =
        prompts.iter().zip(&texts).map(|(prompt, text)| RewardInput::text(prompt, text)).collect();
    command.score(&inputs)
}

fn failure(command: &CommandReward) -> String {
    match outcomes(command, 1).remove(0) {
        RewardOutcome::Failed(failure) => failure.to_string(),
        outcome => panic!("no failure: {outcome:?}"),
    }
}

fn alone(command: CommandReward) -> Rewards {
    let named = NamedReward::verifier("judge", Box::new(command));
    Rewards::new(vec![named]).unwrap()
}

#[test]
fn what_is_sent() {
    let mut prompt = prompt(3, "5");
    let line = |input: &RewardInput<'_>| String::from_utf8(protocol::request(7, 1, None, input)).unwrap();
    let input = RewardInput {
        completion_ids: &[4, 2],
        step: 9,
        epoch: 1,
        ..RewardInput::text(&prompt, "a \"quoted\"\nline")
    };
    insta::assert_snapshot!(line(&input), @r#"{"id":7,"remaining":1,"prompt_id":3,"prompt":"5?","completion":"a \"quoted\"\nline","messages":null,"completion_ids":[4,2],"ground_truth":"5","data_source":"test","columns":{"level":3},"step":9,"epoch":1,"trainer_state":{"global_step":0,"max_steps":0,"num_train_epochs":0,"num_input_tokens_seen":0,"train_batch_size":0}}"#);
    let whole = json!({"role": "user", "content": [{"type": "text", "text": "5?"}], "name": "bob"});
    prompt.content = PromptContent::Messages(vec![Message::read(&whole, false).unwrap()]);
    prompt.ground_truth = None;
    insta::assert_snapshot!(line(&RewardInput::text(&prompt, "five")), @r#"{"id":7,"remaining":1,"prompt_id":3,"prompt":[{"role":"user","content":[{"type":"text","text":"5?"}],"name":"bob"}],"completion":"five","messages":[{"role":"assistant","content":"five"}],"completion_ids":[],"ground_truth":null,"data_source":"test","columns":{"level":3},"step":0,"epoch":0,"trainer_state":{"global_step":0,"max_steps":0,"num_train_epochs":0,"num_input_tokens_seen":0,"train_batch_size":0}}"#);
}

#[test]
fn the_page_on_rewards_names_every_field() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rewards.md")).unwrap();
    let prompt = prompt(3, "5");
    let line = protocol::request(7, 1, None, &RewardInput::text(&prompt, "5"));
    let sent: Map<String, Value> = serde_json::from_slice(&line).unwrap();
    let understood = ["id", "score", "scores", "per_token", "per_turn", "error", "log_extra", "log_metric"];
    for field in sent.keys().map(String::as_str).chain(understood) {
        assert!(page.contains(&format!("\n| `{field}` |")), "`{field}` is not in docs/rewards.md");
    }
    let startup = CommandConfig::default().startup_timeout.as_secs();
    assert!(
        page.contains(&format!("`startup_timeout` more, {startup} s,")),
        "the start-up time-out is {startup} s"
    );
}

#[test]
fn what_is_understood() {
    let read = |line: &str| match protocol::answer(line).map(|(id, reply)| (id, reply.outcome)) {
        Ok((id, RewardOutcome::Scored(scores))) => {
            let scores: Vec<String> = scores
                .iter()
                .map(|(name, score)| {
                    format!("{name}={} {:?} {:?}", score.value, score.per_token, score.per_turn)
                })
                .collect();
            format!("{id}: {}", scores.join(", "))
        }
        Ok((id, RewardOutcome::NoAnswer)) => format!("{id}: no answer"),
        Ok((id, RewardOutcome::Failed(failure))) => format!("{id}: {failure}"),
        Err(failure) => failure.to_string(),
    };
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 0.5}"#), @"1: score=0.5 None None");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": true, "other": "ignored"}"#), @"1: score=1 None None");
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": {"score": -1, "acc": false, "none": null}}"#), @"1: acc=0 None None, score=-1 None None");
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": {"acc": 1}, "score": 2}"#), @"1: acc=1 None None, score=2 None None");
    insta::assert_snapshot!(read(r#"{"id": 1, "per_token": {"score": [0.25, 0.5]}, "per_turn": {"score": [0.75]}}"#), @"1: score=0.75 Some([0.25, 0.5]) Some([0.75])");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": null}"#), @"1: no answer");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": NaN, "note": "NaN \" NaN"}"#), @"1: no answer");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": -Infinity}"#), @"1: score `score` must be finite, got -Infinity");
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": {"score": 1, "bonus": Infinity}}"#), @"1: score `bonus` must be finite, got Infinity");
    // A number that no double holds is a fault of this completion only, and no reason to end the process.
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 1e999}"#), @"1: score `score` must be finite, got 1e999");
    insta::assert_snapshot!(read(r#"{"score": -1E+400, "id": 1, "note": "1e999 \" 1e999"}"#), @"1: score `score` must be finite, got -1E+400");
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": {"score": 1, "bonus": 2e308}}"#), @"1: score `bonus` must be finite, got 2e308");
    insta::assert_snapshot!(read(r#"{"id": 1, "per_token": {"score": [1e308, 1e308]}}"#), @"1: score `score` must be finite, got per_token that sum to inf");
    let digits = "9".repeat(400);
    let long = read(&format!(r#"{{"id": 1, "score": {digits}}}"#));
    assert!(
        long.starts_with("1: score `score` must be finite, got 999") && long.chars().count() < 200,
        "{long}"
    );
    insta::assert_snapshot!(read(r#"{"id": 1, "error": "division by zero"}"#), @"1: the function failed: division by zero");
    // Half a surrogate pair, as Python writes a text that holds one. Whole pairs are unchanged.
    insta::assert_snapshot!(read(r#"{"id": 1, "error": "a \\ \ud83d\ude00 \ud800 \udc00 \ud800\u0041 \u00e9"}"#), @r"1: the function failed: a \ 😀 � � �A é");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 1, "note": "\ud800"}"#), @"1: score=1 None None");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": " 1.5 ", "scores": {"score": "0.5", "acc": "1e0"}}"#), @"1: acc=1 None None, score=1.5 None None");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": "nan"}"#), @"1: no answer");
    insta::assert_snapshot!(read(r#"{"id": 1, "score": "-inf"}"#), @"1: score `score` must be finite, got -inf");
    insta::assert_snapshot!(read("hello"), @"expected one JSON object with `id` and `score` a line, got `hello`: not JSON (expected value at line 1 column 1); the process was killed");
    insta::assert_snapshot!(read("[1]"), @"expected one JSON object with `id` and `score` a line, got `[1]`: not an object; the process was killed");
    insta::assert_snapshot!(read(r#"{"score": 1}"#), @r#"expected one JSON object with `id` and `score` a line, got `{"score": 1}`: no `id`; the process was killed"#);
    insta::assert_snapshot!(read(r#"{"id": 1}"#), @r#"1: its answer is not usable: it has neither `score`, `scores`, `per_token`, `per_turn` nor `error`; it answered `{"id": 1}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "score": "one"}"#), @r#"1: its answer is not usable: `score` is not a number; it answered `{"id": 1, "score": "one"}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 1, "log_extra": [1]}"#), @r#"1: its answer is not usable: `log_extra` is not an object; it answered `{"id": 1, "score": 1, "log_extra": [1]}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 1, "log_metric": {"m": "x"}}"#), @r#"1: its answer is not usable: `m` is not a number; it answered `{"id": 1, "score": 1, "log_metric": {"m": "x"}}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": [1]}"#), @r#"1: its answer is not usable: `scores` is not an object; it answered `{"id": 1, "scores": [1]}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": {"score": 1, "": 3}}"#), @r#"1: its answer is not usable: `scores` holds a score without a name (`""`); it answered `{"id": 1, "scores": {"score": 1, "": 3}}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "scores": {"score": 1, " ": null}}"#), @r#"1: its answer is not usable: `scores` holds a score without a name (`" "`); it answered `{"id": 1, "scores": {"score": 1, " ": null}}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 1, "per_token": {"": [0.5]}}"#), @r#"1: its answer is not usable: `per_token` holds a score without a name (`""`); it answered `{"id": 1, "score": 1, "per_token": {"": [0.5]}}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "error": 3}"#), @r#"1: its answer is not usable: `error` is not text; it answered `{"id": 1, "error": 3}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "score": 1, "per_token": {"score": [0.25, 0.5]}}"#), @r#"1: its answer is not usable: `per_token` of `score` sums to 0.75, not to its value 1; it answered `{"id": 1, "score": 1, "per_token": {"score": [0.25, 0.5]}}`"#);
    insta::assert_snapshot!(read(r#"{"id": 1, "per_turn": {"score": [0.25, null]}}"#), @r#"1: its answer is not usable: `per_turn` of `score` holds a null; it answered `{"id": 1, "per_turn": {"score": [0.25, null]}}`"#);
}

#[test]
fn failures_are_told() {
    insta::assert_snapshot!(failure(&shell("echo 'cannot import torch' >&2; exit 3")), @r"
the process ended (exit status: 3) before it answered; its standard error ends:
cannot import torch
");
    insta::assert_snapshot!(failure(&shell("kill -9 $$")), @"the process ended (signal: 9 (SIGKILL)) before it answered");
    let hangs = CommandConfig {
        timeout: Duration::from_millis(1500),
        ..config(&["sh", "-c", "echo 'still loading' >&2; cat > /dev/null"])
    };
    insta::assert_snapshot!(failure(&CommandReward::new(hangs).unwrap()), @r"
no answer within 1.5 s; the process was killed; its standard error ends:
still loading
");
    insta::assert_snapshot!(failure(&shell("head -c 100000000 /dev/zero")), @"an answer is longer than 1048576 bytes; the process was killed");
    insta::assert_snapshot!(failure(&shell("yes '{\"id\": 99, \"score\": 1}'")), @r#"expected one JSON object with `id` and `score` a line, got `{"id": 99, "score": 1}`: no completion with id 99 is waiting for an answer; the process was killed"#);
    let nan = shell("read line; echo '{\"id\": 0, \"score\": NaN}'; cat");
    assert_eq!(outcomes(&nan, 1), [RewardOutcome::NoAnswer]);
    let error = |argv: &[&str]| CommandReward::new(config(argv)).err().unwrap().to_string();
    insta::assert_snapshot!(error(&["no-such-program-of-this-name"]), @"reward `command` cannot start `no-such-program-of-this-name`: No such file or directory (os error 2); is the program installed and on PATH?");
    insta::assert_snapshot!(error(&[]), @"reward `command` needs a program in argv, got none");
    let zero = CommandConfig { num_processes: 0, ..config(&["cat"]) };
    insta::assert_snapshot!(CommandReward::new(zero).err().unwrap(), @"reward `command` needs num_processes and batch_size of at least 1, got 0");
    let zero = CommandConfig { timeout: Duration::ZERO, ..config(&["cat"]) };
    insta::assert_snapshot!(CommandReward::new(zero).err().unwrap(), @"reward `command` needs a timeout above 0 s, got 0 s");
}

#[test]
fn the_restart_limit_ends_it() {
    let command = CommandReward::new(CommandConfig { max_restarts: 2, ..config(&["false"]) }).unwrap();
    let answers = outcomes(&command, 5);
    insta::assert_snapshot!(
        answers.iter().map(|outcome| format!("{outcome:?}")).collect::<Vec<_>>().join("\n"),
        @r#"
Failed(Ended { status: "exit status: 1", stderr: "" })
Failed(Ended { status: "exit status: 1", stderr: "" })
Failed(RestartLimit { limit: 2, last: Ended { status: "exit status: 1", stderr: "" } })
Failed(RestartLimit { limit: 2, last: Ended { status: "exit status: 1", stderr: "" } })
Failed(RestartLimit { limit: 2, last: Ended { status: "exit status: 1", stderr: "" } })
"#
    );
    assert_eq!(lock(&command.caller.health).restarts.in_a_row(), 2);
    let rewards = alone(command);
    let prompt = prompt(0, "1");
    let error = rewards.score(&[RewardInput::text(&prompt, "1")]).unwrap_err();
    insta::assert_snapshot!(error, @"reward function `judge` cannot continue: its processes were restarted 2 times in a row, which is the limit; the last failure: the process ended (exit status: 1) before it answered");
}

/// A raw program that scores 1 for a right completion, dies at "3" and hangs at "5".
const FRAGILE: &str = r#"
import json, sys, time, os
for line in sys.stdin:
    request = json.loads(line)
    if request["completion"] == "3": os._exit(9)
    if request["completion"] == "5": time.sleep(100)
    print(json.dumps({"id": request["id"], "score": float(request["completion"] == request["ground_truth"])}), flush=True)
"#;

#[test]
fn one_bad_completion_does_not_cost_the_others() {
    if !has_python() {
        return;
    }
    let config = CommandConfig {
        num_processes: 2,
        batch_size: 4,
        timeout: Duration::from_secs(1),
        startup_timeout: Duration::from_secs(3),
        ..config(&["python3", "-c", FRAGILE])
    };
    let command = CommandReward::new(config).unwrap();
    // Both processes are warm, so that the hang is noticed after the short time-out.
    let answers = outcomes(&command, 3);
    assert!(answers.iter().all(|outcome| outcome.get("score") == Some(1.0)), "{answers:?}");
    let answers = outcomes(&command, 12);
    for (i, outcome) in answers.iter().enumerate() {
        match i {
            3 => {
                assert!(matches!(outcome, RewardOutcome::Failed(RewardFailure::Ended { .. })), "{outcome:?}");
            }
            5 => assert!(
                matches!(outcome, RewardOutcome::Failed(RewardFailure::TimedOut { .. })),
                "{outcome:?}"
            ),
            _ => assert_eq!(outcome.get("score"), Some(1.0), "{i}"),
        }
    }
}

#[test]
fn completions_that_end_their_process_one_by_one_do_not_use_up_the_restarts() {
    if !has_python() {
        return;
    }
    let config = CommandConfig { batch_size: 1, max_restarts: 2, ..config(&["python3", "-c", FRAGILE]) };
    let command = CommandReward::new(config).unwrap();
    let prompts = [prompt(0, "3"), prompt(1, "4")];
    let texts = ["3", "4"];
    let inputs: Vec<RewardInput<'_>> =
        (0..12).map(|row| RewardInput::text(&prompts[row % 2], texts[row % 2])).collect();
    for (row, outcome) in command.score(&inputs).iter().enumerate() {
        match row % 2 {
            0 => {
                assert!(matches!(outcome, RewardOutcome::Failed(RewardFailure::Ended { .. })), "{outcome:?}");
            }
            _ => assert_eq!(outcome.get("score"), Some(1.0), "{row}"),
        }
    }
}

#[test]
fn what_it_prints_is_kept_or_passed_on() {
    const PRINTS: &str =
        "while read line; do echo 'looking at it' >&2; printf 'no end' >&2; echo nonsense; done";
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reward-mine.log");
    let run = |log: Option<std::path::PathBuf>, is_heard: &dyn Fn() -> bool| {
        let printed = Arc::new(Printed::to(log, "reward `mine` (mine.sh)", &listener));
        let command = CommandReward::printing_to(Some(printed), config(&["sh", "-c", PRINTS])).unwrap();
        assert!(matches!(outcomes(&command, 1)[0], RewardOutcome::Failed(_)));
        drop(command);
        // A thread of its own reads its words, and a busy machine may delay it.
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        while !is_heard() && std::time::Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let printed = "looking at it\nno end";
    let both = "reward `mine` (mine.sh): looking at it\nreward `mine` (mine.sh): no end";
    let named = format!("reward `mine` (mine.sh) prints: see {}\n{both}", path.display());
    run(Some(path.clone()), &|| read() == printed && heard.text() == named);
    run(Some(path.clone()), &|| read() == printed.repeat(2) && heard.text() == format!("{named}\n{named}"));
    assert_eq!(read(), printed.repeat(2));
    assert_eq!(heard.text(), format!("{named}\n{named}"));
    heard.lines.lock().unwrap().clear();
    run(None, &|| heard.text() == both);
    assert_eq!(heard.text(), both);
    heard.lines.lock().unwrap().clear();
    run(Some(folder.path().join("absent/reward-mine.log")), &|| !heard.text().is_empty());
    assert!(
        heard.text().starts_with("warning: reward `mine` (mine.sh): what it prints cannot be saved in "),
        "{}",
        heard.text()
    );
}

/// It is slow on the first completion that it gets.
const SLOW_TO_START: &str = "
import json, sys, time
time.sleep(6)
for line in sys.stdin:
    print(json.dumps({'id': json.loads(line)['id'], 'score': 1}), flush=True)
";

#[test]
fn a_long_wait_is_told() {
    if !has_python() {
        return;
    }
    let heard = Arc::new(Heard::default());
    let config = CommandConfig {
        num_processes: 2,
        batch_size: 1,
        startup_timeout: Duration::from_secs(60),
        timeout: Duration::from_millis(1500),
        ..config(&["python3", "-c", SLOW_TO_START])
    };
    let command = CommandReward::new(config).unwrap().heard_by("judge", heard.clone());
    let answers = outcomes(&command, 4);
    assert!(answers.iter().all(|outcome| outcome.get("score") == Some(1.0)), "{answers:?}");
    let warned = heard.text().replace(SLOW_TO_START, "SLOW");
    // Both processes waited as long, and one line reports it.
    insta::assert_snapshot!(warned, @"reward `judge`: no answer yet from `python3 -c SLOW` for 5 s; it times out after 61.5 s (a fresh process; `startup_timeout` is part of that)");
}

#[test]
fn a_program_that_never_answers_is_not_started_over_and_over() {
    let heard = Arc::new(Heard::default());
    let command = shell("echo broken >&2; exit 3").heard_by("judge", heard.clone());
    let answers = outcomes(&command, 40);
    let last = answers.last().and_then(|outcome| match outcome {
        RewardOutcome::Failed(failure) => Some(failure.to_string()),
        _ => None,
    });
    insta::assert_snapshot!(last.unwrap(), @r"
    none of its processes ever answered, in 2 restarts; the last failure: the process ended (exit status: 3) before it answered; its standard error ends:
    broken
    ");
    insta::assert_snapshot!(heard.text(), @r"
    warning: reward `judge`: its process is restarted, restart 1 of at most 100 in a row: the process ended (exit status: 3) before it answered; its standard error ends:
    broken
    warning: reward `judge`: its process is restarted, restart 2 of at most 100 in a row: the same failure
    ");
}

#[test]
fn a_wait_can_be_given_up() {
    let heard = Arc::new(Heard::default());
    let command = shell("cat > /dev/null").heard_by("judge", heard.clone());
    let later = Arc::clone(&heard);
    let stop = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        later.interrupted.store(true, Ordering::SeqCst);
    });
    let start = Instant::now();
    let rewards = alone(command);
    let prompts: Vec<Prompt> = (0..40).map(|id| prompt(id, &id.to_string())).collect();
    let inputs: Vec<RewardInput<'_>> = prompts.iter().map(|prompt| RewardInput::text(prompt, "1")).collect();
    assert!(matches!(rewards.score(&inputs), Err(RewardError::Interrupted)));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    stop.join().unwrap();
    // And nothing is asked or started again after that.
    let gold = crate::reward::gold::check_gold_heard(&prompts, &rewards, GoldExtent::All, &*heard);
    assert!(matches!(gold, Err(RewardError::Interrupted)));
    assert_eq!(heard.text(), "");
}

#[test]
fn full_pipes_do_not_stop_it() {
    // `cat` answers before it has read everything. Its echoes are no answers, so the first line is garbage.
    // If sed adds ids and scores to the requests, they are answers.
    let command = CommandReward::new(CommandConfig {
        batch_size: 1000,
        ..config(&["sed", "-u", "s/,.*/, \"score\": 1}/"])
    })
    .unwrap();
    let text = "x".repeat(2000);
    let prompt = prompt(0, "1");
    let inputs = vec![RewardInput::text(&prompt, &text); 1000];
    let answers = command.score(&inputs);
    assert!(answers.iter().all(|outcome| outcome.get("score") == Some(1.0)));
    assert_eq!(lock(&command.caller.health).restarts.in_a_row(), 0);
}

#[test]
fn nothing_is_left_running() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("children");
    let script = format!("sleep 1000 & echo $! > '{}'; cat > /dev/null", file.display());
    let command = shell(&script);
    let start = Instant::now();
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
        assert!(start.elapsed().as_secs() < 10);
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(command);
    let child = std::fs::read_to_string(&file).unwrap();
    // A killed process may take a moment to go, and stays a zombie if nothing reaps orphans.
    let is_gone = || match std::fs::read_to_string(format!("/proc/{}/stat", child.trim())) {
        Ok(state) => state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    let start = Instant::now();
    while !is_gone() {
        assert!(start.elapsed().as_secs() < 10, "the child of a dropped command still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

proptest! {
    #[test]
    fn any_answer_is_read_without_panic(line in "[ -~]{0,40}", name in "[a-z\"\\\\é]{0,6}", number in any::<f64>()) {
        let _ = protocol::answer(&line);
        let _ = protocol::answer(&json!({"id": 1, "scores": {(name): number}}).to_string());
        let _ = protocol::answer(&format!("{{\"id\": 1, \"score\": {number:?}, {line}"));
    }
}
