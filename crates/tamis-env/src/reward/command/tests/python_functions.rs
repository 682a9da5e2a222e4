//! Functions of verl, TRL and EasyR1, run as they are.

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
fn a_function_says_which_style_it_fits() {
    if !has_python() {
        return;
    }
    let source = r#"
import functools

def reward_len(completions, **kwargs): return [float(len(c)) for c in completions]
def solved(prompts, completions, solution, **kwargs): return [1.0 for c in completions]
def closed(completions, level): return [1.0 for c in completions]
def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1.0
def bonus(solution_str, bonus, **kwargs): return bonus
def batch(data_sources, solution_strs, ground_truths, extra_infos): return [1.0]
def judge(reward_inputs, weight=0.1): return [{"overall": weight} for _ in reward_inputs]
def judge_one(reward_input): return {"overall": 1}
def anything(*args, **kwargs): return 1.0
class Callable:
    def __call__(self, completions, **kwargs): return [1.0 for c in completions]
instance = Callable()
part = functools.partial(solved, solution=None)
number = 3
built_in = max
"#;
    let tell = |name: &str, kind: Option<PythonStyle>, kwargs: &Value| {
        let (folder, command) = python(source, name, kind, kwargs);
        match command.introduce(&rows()) {
            Ok(Introduced::Missing(message)) => {
                message.replace(&folder.path().display().to_string(), "FOLDER")
            }
            Ok(Introduced::Function(found)) => {
                let style =
                    found.problem.map_or_else(|| "runs".to_owned(), |problem| format!("refused: {problem}"));
                format!("{} as {} {style}; fits {:?}", found.signature, found.style, found.fits)
            }
            Err(failure) => failure.to_string(),
        }
    };
    let names = [
        "reward_len",
        "solved",
        "closed",
        "compute_score",
        "bonus",
        "batch",
        "judge",
        "judge_one",
        "anything",
        "instance",
        "part",
        "built_in",
        "number",
        "absent",
    ];
    let warned: Vec<String> = names.iter().map(|name| tell(name, None, &Value::Null)).collect();
    insta::assert_snapshot!(warned.join("\n"), @r#"
    reward_len(completions, **kwargs) as trl runs; fits ["trl"]
    solved(prompts, completions, solution, **kwargs) as trl refused: missing a required argument: 'solution' (the columns of the rows: answer, level); fits ["trl"]
    closed(completions, level) as trl refused: got an unexpected keyword argument 'prompts': TRL passes everything that there is by name, so the parameters must end with **kwargs; fits []
    compute_score(data_source, solution_str, ground_truth, extra_info=None) as verl runs; fits ["verl"]
    bonus(solution_str, bonus, **kwargs) as verl refused: missing a required argument: 'bonus'; fits []
    batch(data_sources, solution_strs, ground_truths, extra_infos) as verl refused: missing a required argument: 'data_sources': it is written for verl's batch reward manager, and is called here for one completion at a time; fits []
    judge(reward_inputs, weight=0.1) as easyr1 runs; fits ["easyr1"]
    judge_one(reward_input) as easyr1_sequential runs; fits ["easyr1_sequential"]
    anything(*args, **kwargs) as verl runs; fits ["verl", "trl"]
    instance(completions, **kwargs) as trl runs; fits ["trl"]
    part(prompts, completions, *, solution=None, **kwargs) as trl runs; fits ["trl"]
    built_in(…) as verl runs; fits ["verl", "trl"]
    `number` of FOLDER/user.py is 3 (int), not a function
    FOLDER/user.py has no function `absent`; it has reward_len, solved, closed, compute_score, bonus, batch, judge, judge_one, anything, Callable, instance, part, built_in
    "#);
    insta::assert_snapshot!(tell("reward_len", Some(PythonStyle::Verl), &Value::Null), @r#"reward_len(completions, **kwargs) as verl refused: missing a required argument: 'completions'; fits ["trl"]"#);
    insta::assert_snapshot!(tell("compute_score", Some(PythonStyle::Trl), &Value::Null), @r#"compute_score(data_source, solution_str, ground_truth, extra_info=None) as trl refused: missing a required argument: 'data_source' (the columns of the rows: answer, level); fits ["verl"]"#);
    insta::assert_snapshot!(tell("compute_score", Some(PythonStyle::EasyR1), &Value::Null), @r#"compute_score(data_source, solution_str, ground_truth, extra_info=None) as easyr1 refused: missing a required argument: 'solution_str'; fits ["verl"]"#);
    insta::assert_snapshot!(tell("bonus", Some(PythonStyle::Verl), &json!({"bonus": 2})), @r#"bonus(solution_str, bonus, **kwargs) as verl runs; fits ["verl"]"#);
    insta::assert_snapshot!(tell("bonus", Some(PythonStyle::Verl), &json!({"bonus": 2, "extra_info": 3})), @r#"bonus(solution_str, bonus, **kwargs) as verl runs; fits ["verl"]"#);
    insta::assert_snapshot!(tell("solved", Some(PythonStyle::Trl), &json!({"solution": []})), @r#"solved(prompts, completions, solution, **kwargs) as trl runs; fits ["trl"]"#);
    // It is introduced, and then asked as its answer requires.
    let (_folder, command) = python(source, "reward_len", None, &Value::Null);
    assert_eq!(introduce(&command, &KnownRows::default()).style, "trl");
    insta::assert_snapshot!(show(&outcomes(&command, 2)), @"score=1; score=1");
    // `kwargs` take precedence over the arguments that are passed, as in verl.
    insta::assert_snapshot!(shown(source, "bonus", None, &json!({"bonus": 2, "extra_info": 3}), 1), @"acc=2 score=2");
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

#[test]
fn a_simple_function_asks_for_what_it_wants_by_name() {
    let source = r#"
def one(completion, level, missing=3): return {"right": level == 2, "long": len(completion) + missing}
def all(completion, **kwargs): return sorted(kwargs) == ["answer", "data_source", "ground_truth", "level", "prompt"]
def text(completion, prompt, ground_truth): return f"{len(prompt)}" if ground_truth else None
async def later(completion): return {"score": 0.5, "acc": 1, "pred": "x"}
def none(completion): return {"a": None}
def total(completion): return {"reward": 0.5, "acc": 1, "length": 3}
def parts(completion): return {"right": True, "acc": 1, "brief": 0.25}
def column(completion, colour): return 1
def positional(completion, /): return 1
"#;
    let said = |name: &str| {
        let (_folder, command) = python(source, name, None, &Value::Null);
        let found = introduce(&command, &rows());
        format!("{} {}", found.style, found.problem.unwrap_or_else(|| "runs".to_owned()))
    };
    for name in ["one", "all", "text", "later", "none"] {
        assert_eq!(said(name), "simple runs", "{name}");
    }
    assert_eq!(
        said("column"),
        "simple missing a required argument: 'colour' (the columns of the rows: answer, level)"
    );
    assert_ne!(said("positional"), "simple runs");
    insta::assert_snapshot!(
        ["later", "none", "total", "parts"].map(|name| shown(source, name, None, &Value::Null, 1)).join("; "),
        @"acc=1 score=0.5; no answer; acc=1 length=3 reward=0.5 score=0.5; acc=1 brief=0.25 right=1 score=1.25"
    );
}

#[test]
fn whether_a_function_takes_the_ground_truth_is_known() {
    let with = |columns: Value| Prompt {
        ground_truth: Some("7".to_owned()),
        columns: columns.as_object().cloned().unwrap_or_default(),
        ..crate::reward::test_prompt("7")
    };
    // The second row distinguishes the column of the truth from one that is equal by chance.
    let prompts =
        [with(json!({"label": 7, "size": "7", "text": "a"})), with(json!({"label": "7", "size": 3}))];
    let known = KnownRows::of(prompts.iter());
    assert_eq!(known.columns, Some(["label", "size", "text"].into()));
    assert_eq!(known.gold, ["label"].into());
    assert_eq!(KnownRows::of([].iter()), KnownRows::default());
    if !has_python() {
        return;
    }
    let source = "
def short(completion): return 1
def sized(completion, size): return 1
def labelled(completion, label): return 1
def answered(completion, answer): return 1
def of_trl(completions, **kwargs): return [1 for _ in completions]
def of_trl_solved(completions, solution, **kwargs): return [1 for _ in completions]
def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1
def compares(data_source, solution_str, ground_truth, extra_info=None): return float(solution_str == ground_truth)
def deletes(data_source, solution_str, ground_truth, extra_info=None):
    del ground_truth
    return -len(solution_str)
def of_trl_by_key(completions, **kwargs): return [float(c == a) for c, a in zip(completions, kwargs['answer'])]
class Called:
    def __call__(self, data_source, solution_str, ground_truth, extra_info=None): return 1
called = Called()
";
    // What a function takes, and what its code uses of that; a callable object shows no code.
    let facts = |name: &str| {
        let (_folder, command) = python(source, name, None, &Value::Null);
        introduce(&command, &known);
        (command.reads_gold(), command.uses_gold())
    };
    for (name, reads, uses) in [
        ("short", false, false),
        ("sized", false, false),
        ("labelled", true, false),
        ("answered", true, false),
        ("of_trl", false, false),
        ("of_trl_solved", true, false),
        ("of_trl_by_key", true, true),
        ("compute_score", true, false),
        ("compares", true, true),
        ("deletes", true, false),
        ("called", true, true),
    ] {
        assert_eq!(facts(name), (Some(reads), Some(uses)), "{name}");
    }
}

const COUNTED: &str = r#"
import os
calls, imports = [], os.path.join(os.path.dirname(__file__), "imports")
open(imports, "a").write("x")
print("imported")
def f(completion):
    print("f has", completion)
    if completion == "2": os._exit(9)
    calls.append("f")
    return len(calls)
def g(completion, by=1):
    print("g has", completion)
    calls.append("g")
    return len(calls) * by
"#;

/// Two functions of a file that ends its process at the completion `2` of `f`, with their messages and
/// what they print.
fn two_functions() -> (tempfile::TempDir, Arc<Heard>, [CommandReward; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user.py");
    std::fs::write(&path, COUNTED).unwrap();
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    let place = |name: &str| Arc::new(Printed::to(None, name, &listener));
    let named = |function: &str, kwargs: Value| PythonSettings {
        path: path.clone(),
        function: function.to_owned(),
        kwargs: kwargs.as_object().cloned().unwrap_or_default(),
        ..PythonSettings::default()
    };
    let (f, g) = (named("f", Value::Null), named("g", json!({"by": 100})));
    let program = folder.path().join(FILE);
    std::fs::write(&program, PROGRAM).unwrap();
    assert_eq!(f.command_line(&program), g.command_line(&program));
    let config = CommandConfig { max_restarts: 1, ..f.pool.config(f.command_line(&program), 1, None) };
    let pool = Arc::new(Pool::start(config, [place("f")]).unwrap());
    let called = |settings: &PythonSettings, name: &str| {
        settings.call_in(Arc::clone(&pool), name, Arc::clone(&listener), || place(name))
    };
    let functions = [called(&f, "f"), called(&g, "g")];
    (folder, heard, functions)
}

#[test]
fn functions_of_one_file_share_its_process() {
    if !has_python() {
        return;
    }
    let (folder, heard, [f, g]) = two_functions();
    assert!(matches!(f.introduce(&rows()), Ok(Introduced::Function(_))));
    assert_eq!(introduce(&g, &rows()).signature, "g(completion, by=1)");
    let scores = |command: &CommandReward, num: usize| show(&outcomes(command, num));
    assert_eq!(scores(&f, 1), "acc=1 score=1");
    assert_eq!(scores(&g, 1), "acc=200 score=200", "its own arguments, and the globals of the file");
    assert_eq!(scores(&f, 1), "acc=3 score=3");
    let imports = || std::fs::read_to_string(folder.path().join("imports")).unwrap();
    assert_eq!(imports(), "x");
    drop((f, g));
    let limit = Instant::now() + Duration::from_secs(60);
    while heard.text().lines().count() < 4 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heard.text(), "f: imported\nf: f has 0\ng: g has 0\nf: f has 0");
}

#[test]
fn a_lost_process_is_started_again_for_every_function_of_its_file() {
    if !has_python() {
        return;
    }
    let (folder, heard, [f, g]) = two_functions();
    let scores = |command: &CommandReward, num: usize| show(&outcomes(command, num));
    let of_f = scores(&f, 3);
    let expected = "acc=1 score=1; acc=2 score=2; the process ended (exit status: 9) before it answered";
    assert!(of_f.starts_with(expected) && of_f.ends_with("f has 2"), "{of_f}");
    assert_eq!(scores(&g, 1), "acc=100 score=100", "in a fresh process, whose globals are fresh too");
    // A restart is counted for the function that ended the process: `g` goes on when `f` is broken.
    let of_f = scores(&f, 1);
    assert!(of_f.starts_with("its processes were restarted 1 time in a row, which is the limit"), "{of_f}");
    assert_eq!(scores(&g, 1), "acc=200 score=200");
    assert_eq!(lock(&g.caller.health).restarts.in_a_row(), 0);
    let restarts = heard.text();
    let restarts: Vec<&str> =
        restarts.lines().filter(|line| line.contains("is restarted, restart")).collect();
    assert_eq!(restarts.len(), 1, "{restarts:?}");
    assert!(
        restarts[0].starts_with("warning: reward `f`: its process is restarted, restart 1"),
        "{restarts:?}"
    );
    assert_eq!(std::fs::read_to_string(folder.path().join("imports")).unwrap().len(), 3);
}

#[test]
fn a_file_of_other_settings_has_its_own_processes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.py");
    let pools = SharedPools::default();
    let open = |file: &std::path::Path, config: CommandConfig| {
        pools.open(file, config, |config| Pool::start(config, None)).unwrap()
    };
    let base = config(&["cat"]);
    let first = open(&file, base.clone());
    let around = folder.path().join("../").join(folder.path().file_name().unwrap()).join("a.py");
    assert!(Arc::ptr_eq(&first, &open(&around, base.clone())), "one file, whatever the path");
    let others = [
        (folder.path().join("b.py"), base.clone()),
        (file.clone(), CommandConfig { timeout: Duration::from_secs(9), ..base.clone() }),
        (file.clone(), CommandConfig { num_processes: 2, ..base.clone() }),
        (file.clone(), CommandConfig { argv: vec!["cat".to_owned(), "-u".to_owned()], ..base.clone() }),
    ];
    for (file, config) in others {
        assert!(!Arc::ptr_eq(&first, &open(&file, config)));
    }
    let place = || Arc::new(Printed::to(None, "f", &(Arc::new(Nobody) as Arc<dyn Listener>)));
    assert_eq!(
        (first.register("f", place), first.register("g", place), first.register("f", place)),
        (0, 1, 0)
    );
    assert_eq!(
        pools.announcement().unwrap(),
        "starting 6 reward processes: a.py (2 functions), b.py, a.py, a.py, a.py"
    );
}
