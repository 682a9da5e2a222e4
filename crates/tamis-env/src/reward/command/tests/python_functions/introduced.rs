//! What a function says of itself before a run: its style, what it lacks, and whether it takes the truth.

use super::*;

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
    let names = "reward_len solved closed compute_score bonus batch judge judge_one \
        anything instance part built_in number absent";
    let warned: Vec<String> = names.split(' ').map(|name| tell(name, None, &Value::Null)).collect();
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
