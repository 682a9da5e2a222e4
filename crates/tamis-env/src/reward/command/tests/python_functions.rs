//! Functions of verl, TRL and EasyR1, run as they are.

mod introduced;
mod shared;

use super::super::python::{FILE, PROGRAM, PythonSettings, PythonStyle};
use super::*;
use crate::reward::TrainerState;

fn rows() -> KnownRows<'static> {
    KnownRows { columns: Some(["answer", "level"].into()), gold: ["answer"].into() }
}

fn python(
    source: &str,
    name: &str,
    style: impl Into<Option<PythonStyle>>,
    kwargs: &Value,
) -> (tempfile::TempDir, CommandReward) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user.py");
    std::fs::write(&path, source).unwrap();
    let kwargs = kwargs.as_object().cloned().unwrap_or_default();
    let function = PythonSettings {
        path,
        function: name.to_owned(),
        style: style.into(),
        kwargs,
        ..PythonSettings::default()
    };
    let pool = start_pool(&function, folder.path(), CommandConfig::default());
    (folder, call(&function, &pool, "python"))
}

/// The processes of a function's file.
fn start_pool(function: &PythonSettings, folder: &std::path::Path, config: CommandConfig) -> Arc<Pool> {
    let program = folder.join(FILE);
    std::fs::write(&program, PROGRAM).unwrap();
    let config = CommandConfig {
        argv: function.command_line(&program),
        num_processes: 1,
        timeout: Duration::from_secs(20),
        max_restarts: 0,
        ..config
    };
    Arc::new(Pool::start(config, None).unwrap())
}

fn call(function: &PythonSettings, pool: &Arc<Pool>, name: &str) -> CommandReward {
    let place = || Arc::new(Printed::to(None, name, &(Arc::new(Nobody) as Arc<dyn Listener>)));
    function.call_in(Arc::clone(pool), name, Arc::new(Nobody), place)
}

/// The introduction of a function that is there.
fn introduce(command: &CommandReward, rows: &KnownRows<'_>) -> FunctionIntroduction {
    match command.introduce(rows) {
        Ok(Introduced::Function(introduction)) => introduction,
        other => panic!("{other:?}"),
    }
}

/// Outcomes in short.
fn show(outcomes: &[RewardOutcome]) -> String {
    let short = |outcome: &RewardOutcome| match outcome {
        RewardOutcome::Scored(scores) => {
            let parts: Vec<String> =
                scores.iter().map(|(name, score)| format!("{name}={}", score.value)).collect();
            parts.join(" ")
        }
        RewardOutcome::NoAnswer => "no answer".to_owned(),
        RewardOutcome::Failed(RewardFailure::Function { message }) => {
            let last: String =
                message.trim_end().lines().last().unwrap_or_default().chars().take(150).collect();
            format!("error {last}")
        }
        RewardOutcome::Failed(failure) => failure.to_string(),
    };
    outcomes.iter().map(short).collect::<Vec<_>>().join("; ")
}

/// A function's answers to so many completions.
fn shown(
    source: &str,
    name: &str,
    style: impl Into<Option<PythonStyle>>,
    kwargs: &Value,
    num: usize,
) -> String {
    let (_folder, command) = python(source, name, style, kwargs);
    show(&outcomes(&command, num))
}

#[test]
fn verl_functions_run_unchanged() {
    if !has_python() {
        return;
    }
    let source = r#"
import os
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):
    print("printed to standard output")
    os.system("echo a child prints too")
    if solution_str == "1": return None
    if solution_str == "2": raise ValueError("two")
    if solution_str == "3": return {"score": 0.5 + bonus, "acc": True, "pred": "three"}
    if solution_str == "4": return float("nan")
    if solution_str == "5": return float("inf")
    if solution_str == "6": return {"acc": 1}
    return float(solution_str == ground_truth) if data_source == "test" and extra_info == {} else -1

async def slow(data_source, solution_str, ground_truth, extra_info):
    return len(solution_str)
"#;
    insta::assert_snapshot!(shown(source, "compute_score", PythonStyle::Verl, &json!({"bonus": 1}), 8), @r#"acc=1 score=1; no answer; error ValueError: two; acc=1 score=1.5; no answer; score `score` must be finite, got Infinity; error KeyError: "the function returned a dictionary without `score`: its keys are ['acc']"; acc=1 score=1"#);
    insta::assert_snapshot!(shown(source, "slow", PythonStyle::Verl, &Value::Null, 2), @"acc=1 score=1; acc=1 score=1");
    let message = shown(source, "fast", PythonStyle::Verl, &Value::Null, 1);
    assert!(message.contains("has no function `fast`; it has compute_score, slow"), "{message}");
}

#[test]
fn the_answer_that_a_function_read_is_a_column() {
    if !has_python() {
        return;
    }
    let source = r#"
class Silent:
    def __str__(self): raise RuntimeError("no text")
def verl(data_source, solution_str, ground_truth, extra_info):
    preds = {"0": "zero", "1": 1, "2": None, "3": Silent()}
    return {"score": 1, "pred": preds[solution_str]}
def easyr1(items):
    return [{"overall": 1, "pred": item["response"] + "!"} for item in items]
"#;
    let preds = |name: &str, style| -> Vec<Option<String>> {
        let (_folder, command) = python(source, name, style, &Value::Null);
        let texts: Vec<String> = (0..4).map(|i| i.to_string()).collect();
        let prompt = prompt(0, "7");
        let inputs: Vec<RewardInput<'_>> =
            texts.iter().map(|text| RewardInput::text(&prompt, text)).collect();
        let (outcomes, logged) = command.score_logged(&inputs);
        assert!(outcomes.iter().all(|outcome| outcome.get("score") == Some(1.0)), "{outcomes:?}");
        logged.iter().map(|logged| logged.columns.get("pred").cloned()).collect()
    };
    let texts = |texts: [&str; 4]| texts.map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()));
    assert_eq!(preds("verl", PythonStyle::Verl), texts(["zero", "1", "", ""]));
    assert_eq!(preds("easyr1", PythonStyle::EasyR1), texts(["0!", "1!", "2!", "3!"]));
}

#[test]
fn whatever_a_function_does_costs_its_completion_only() {
    if !has_python() {
        return;
    }
    let source = r#"
import asyncio, sys

class Unspeakable(Exception):
    def __str__(self): raise RuntimeError("no text")

class Odd:
    def __repr__(self): return "odd"

def deep(n): return deep(n + 1)

def answer(text):
    if text == "1": raise ValueError("half a pair: \ud800")
    if text == "2": raise Unspeakable()
    if text == "3": raise ValueError("x" * 3_000_000)
    if text == "4": sys.exit(3)
    if text == "5": raise KeyboardInterrupt
    if text == "6": deep(0)
    if text == "7": return 10 ** 400
    if text == "8": return "many"
    if text == "9": return [[1], 2]
    if text == "10": return Odd()
    if text == "11": return "1e999"
    if text == "12": raise asyncio.CancelledError
    if text == "13": return float
    if text == "14": print("{\"id\": 14, \"score\": 7}"); return "0.5"
    if text == "15": raise SystemExit("\udfff")
    return True

def verl(data_source, solution_str, ground_truth, extra_info):
    result = answer(solution_str)
    return {"score": result} if extra_info == {} and solution_str == "8" else result

def trl(completions, **kwargs):
    return [answer(text) for text in completions]

def names(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "0": return {"score": "1.0", "acc": "1", "pred": "42", "parts": [1], "none": None}
    if solution_str == "1": return {"score": 1, "n" * 1_000_000: 1}
    if solution_str == "2": return {"score": 1, **{f"name_{i}": i for i in range(100_000)}}
    if solution_str == "3": return {"score": 1, "acc": "yes"}
    if solution_str == "4": return {"score": None, "acc": 1}
    if solution_str == "5": return {"score": 1, "half \ud800": 2}
    if solution_str == "6": return {"score": 1, "bonus": float("inf")}
    return {"score": {"score": 1}}

async def escapes(data_source, solution_str, ground_truth, extra_info):
    async def task(): return answer(solution_str)
    return await asyncio.create_task(task())
"#;
    let lines = |shown: String| shown.replace("; ", "\n");
    let verl = shown(source, "verl", PythonStyle::Verl, &Value::Null, 17);
    insta::assert_snapshot!(lines(verl.clone()), @r"
    acc=1 score=1
    error ValueError: half a pair: \ud800
    error tamis_user_reward.Unspeakable: <exception str() failed>
    error ValueError: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
    error SystemExit: 3
    error KeyboardInterrupt
    error RecursionError: maximum recursion depth exceeded
    error ValueError: the function returned 1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 … 0000000000000
    error ValueError: the function returned a dictionary whose `score` is 'many' (str), which is no number
    error ValueError: the function returned [1] (list), which is no number
    error ValueError: the function returned odd (Odd), which is no number
    score `score` must be finite, got Infinity
    error asyncio.exceptions.CancelledError
    error ValueError: the function returned <class 'float'> (type), which is no number
    acc=0.5 score=0.5
    error SystemExit: \udfff
    acc=1 score=1
    ");
    // Each completion of a batch and of a coroutine gets the same.
    for (name, style) in [("trl", PythonStyle::Trl), ("escapes", PythonStyle::Verl)] {
        let shown = shown(source, name, style, &Value::Null, 17);
        let failed = |shown: &str| shown.split("; ").map(|one| one.starts_with("error")).collect::<Vec<_>>();
        assert_eq!(failed(&shown), failed(&verl), "{shown}");
        assert!(
            style != PythonStyle::Trl
                || shown.contains("the function returned, for this completion, 'many' (str)")
        );
    }
    let names = shown(source, "names", PythonStyle::Verl, &Value::Null, 8);
    insta::assert_snapshot!(lines(names), @r"
    acc=1 score=1
    error ValueError: the function returned a name of 1000000 characters, nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn … nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn: a
    error the answer takes 2277815 bytes, more than 500000
    error ValueError: the function returned a dictionary whose `acc` is 'yes' (str), which is no number
    no answer
    half \ud800=2 score=1
    score `bonus` must be finite, got Infinity
    error ValueError: the function returned a dictionary whose `score` is {'score': 1} (dict), which is no number
    ");
}

#[test]
fn an_unusable_answer_costs_one_completion() {
    let script = r#"
        while read -r line; do
            id=${line#*\"id\":}; id=${id%%,*}
            case $id in
                1) echo "{\"id\": $id, \"score\": 1, \"per_token\": {\"score\": [0.25, 0.5]}}" ;;
                2) echo "{\"id\": $id, \"error\": \"\\ud800\"}" ;;
                *) echo "{\"id\": $id, \"score\": \"0.5\"}" ;;
            esac
        done"#;
    let command =
        CommandReward::new(CommandConfig { max_restarts: 0, ..config(&["sh", "-c", script]) }).unwrap();
    let shown = show(&outcomes(&command, 4));
    insta::assert_snapshot!(shown.replace("; ", "\n"), @r#"
    score=0.5
    its answer is not usable: `per_token` of `score` sums to 0.75, not to its value 1
    it answered `{"id": 1, "score": 1, "per_token": {"score": [0.25, 0.5]}}`
    error �
    score=0.5
    "#);
    assert_eq!(lock(&command.caller.health).restarts.in_a_row(), 0);
}

#[test]
fn trl_functions_find_what_trl_gives_them() {
    if !has_python() {
        return;
    }
    let source = r#"
def reward(prompts, completions, trainer_state, log_extra, log_metric, **kwargs):
    state = trainer_state
    assert state.log_history == [] and state.is_world_process_zero and state.best_metric is None
    log_extra("length", [len(completion) for completion in completions])
    log_extra("half", ["\ud800" if completion == "1" else None for completion in completions])
    log_metric("progress", state.global_step / state.max_steps)
    log_metric("not a number", float("nan"))
    return [state.num_train_epochs + state.num_input_tokens_seen + state.epoch for _ in completions]

def wrong(completions, log_extra, log_metric, **kwargs):
    if "0" in completions: log_extra("few", [])
    log_metric("bad", "x")
    return [1.0] * len(completions)
"#;
    let (_folder, command) = python(source, "reward", None, &Value::Null);
    let mut rewards = alone(command);
    rewards.set_trainer_state(TrainerState {
        global_step: 3,
        max_steps: 12,
        num_train_epochs: 2,
        num_input_tokens_seen: 500,
        train_batch_size: 4,
    });
    let prompts = [prompt(0, "1"), prompt(1, "2")];
    let inputs = [RewardInput::text(&prompts[0], "1"), RewardInput::text(&prompts[1], "22")];
    let scored = rewards.score(&inputs).unwrap();
    assert_eq!(scored.warnings, Vec::<String>::new());
    let warned: Vec<String> = scored
        .rows
        .iter()
        .map(|row| format!("{} {}", row.reward.value, serde_json::to_string(&row.logged).unwrap()))
        .collect();
    insta::assert_snapshot!(warned.join("\n"), @r#"
    502 {"columns":{"half":"\\ud800","length":"1"},"metrics":{"progress":[0.25]}}
    502 {"columns":{"length":"2"}}
    "#);
    insta::assert_snapshot!(shown(source, "wrong", None, &Value::Null, 2), @"error ValueError: log_extra('few', ...) was given 0 values for 1 completions; error ValueError: log_metric('bad', ...) was given 'x' (str), which is no number");
}

#[test]
fn trl_functions_run_unchanged() {
    if !has_python() {
        return;
    }
    let source = r#"
def reward(prompts, completions, completion_ids, level, trainer_state, **kwargs):
    assert len(prompts) == len(completions) == len(completion_ids) == len(level)
    assert trainer_state.global_step == 0 and "log_metric" in kwargs
    print("printed")
    if "3" in completions: raise RuntimeError("three")
    return [None if row == 1 else len(completions) + row for row in level]

async def slow(completions, **kwargs):
    return [float(len(completion)) for completion in completions]

def short(completions, **kwargs):
    return [1.0]
"#;
    let (_folder, command) = python(source, "reward", PythonStyle::Trl, &Value::Null);
    insta::assert_snapshot!(show(&outcomes(&command, 3)), @"score=3; no answer; score=5");
    insta::assert_snapshot!(show(&outcomes(&command, 5)), @"score=1; no answer; score=3; error RuntimeError: three; score=5");
    insta::assert_snapshot!(shown(source, "slow", PythonStyle::Trl, &Value::Null, 2), @"score=1; score=1");
    insta::assert_snapshot!(shown(source, "short", PythonStyle::Trl, &Value::Null, 2), @"error the function returned 1 rewards for 2 completions; error the function returned 1 rewards for 2 completions");
}

#[test]
fn easyr1_functions_run_unchanged() {
    if !has_python() {
        return;
    }
    let batch = r#"
REWARD_NAME = "test"
REWARD_TYPE = "batch"

def compute_score(reward_inputs, format_weight=0.1):
    print("printed")
    scores = []
    for item in reward_inputs:
        if item["response"] == "2": raise ValueError("two")
        if item["response"] == "3": scores.append({"accuracy": 1.0}); continue
        accuracy = 1.0 if item["response"] == item["ground_truth"] and item["response"] != "1" else -1.0
        scores.append({"overall": accuracy + format_weight * 1.0, "format": 1.0, "accuracy": accuracy, "accuracy_normalized": 0.5 * (accuracy + 1.0)})
    return scores

def lengths(reward_inputs):
    return [{"overall": item["response_length"]} for item in reward_inputs]

def numbers(reward_inputs):
    return [1.0 for item in reward_inputs]

def main(reward_inputs):
    return []
"#;
    insta::assert_snapshot!(shown(batch, "compute_score", PythonStyle::EasyR1, &json!({"format_weight": 0.5}), 4), @r#"acc=1 accuracy=1 accuracy_normalized=1 format=1 score=1.5; acc=0 accuracy=-1 accuracy_normalized=0 format=1 score=-0.5; error ValueError: two; error ValueError: an EasyR1 function returns dictionaries with `overall`, this one has ['accuracy']"#);
    let (_folder, command) = python(batch, "lengths", PythonStyle::EasyR1, &Value::Null);
    let first = prompt(0, "1");
    let input = RewardInput { completion_ids: &[4, 2, 7], ..RewardInput::text(&first, "1") };
    insta::assert_snapshot!(show(&command.score(&[input])), @"score=3");
    insta::assert_snapshot!(shown(batch, "numbers", PythonStyle::EasyR1, &Value::Null, 1), @"error ValueError: an EasyR1 function returns dictionaries with `overall`, this one has float");
    insta::assert_snapshot!(shown(batch, "main", PythonStyle::EasyR1, &Value::Null, 1), @"error the function returned 0 rewards for 1 completions");

    let sequential = r#"
REWARD_TYPE = "sequential"

def compute_score(reward_input):
    return {"overall": float(reward_input["response"] == reward_input["ground_truth"]), "format": None}
"#;
    insta::assert_snapshot!(shown(sequential, "compute_score", PythonStyle::EasyR1, &Value::Null, 2), @"score=1; score=1");
    let line = "REWARD_TYPE = \"sequential\"";
    assert!(sequential.contains(line));
    let unsaid = sequential.replace(line, "");
    insta::assert_snapshot!(shown(&unsaid, "compute_score", PythonStyle::EasyR1Sequential, &Value::Null, 2), @"score=1; score=1");
    let wrong = sequential.replace(line, "REWARD_TYPE = \"single\"");
    insta::assert_snapshot!(shown(&wrong, "compute_score", PythonStyle::EasyR1, &Value::Null, 1), @r#"error REWARD_TYPE must be "batch" or "sequential", not 'single'"#);
}

#[test]
fn conversations_reach_trl_functions_as_messages() {
    if !has_python() {
        return;
    }
    let source = r#"
def reward(prompts, completions, answer, scale, **kwargs):
    assert prompts[0] == [{"role": "user", "content": "1?"}], prompts
    return [scale * (c[-1]["content"] == a and c[-1]["role"] == "assistant") for c, a in zip(completions, answer)]
"#;
    let (_folder, command) = python(source, "reward", PythonStyle::Trl, &json!({"scale": 3}));
    let mut prompt = prompt(0, "1");
    prompt.content = PromptContent::Messages(vec![Message::new("user", "1?")]);
    prompt.columns =
        Map::from_iter([("answer".to_owned(), json!("one")), ("prompt".to_owned(), json!("left out"))]);
    let turns = ["tool", "assistant"].map(|role| Message::new(role, "one"));
    let several = RewardInput { messages: Some(&turns), ..RewardInput::text(&prompt, "all turns") };
    let inputs = [RewardInput::text(&prompt, "one"), RewardInput::text(&prompt, "two"), several];
    insta::assert_snapshot!(show(&command.score(&inputs)), @"score=3; score=0; score=3");
}
