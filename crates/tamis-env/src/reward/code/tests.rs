//! Right, wrong and cheating programs.

use std::sync::LazyLock;

use serde_json::Map;

use super::*;
use crate::reward::listener::Heard;
use crate::reward::test_prompt;

fn settings() -> CodeSettings {
    let sandbox = SandboxSettings { timeout: TimeSpan::seconds(120), ..SandboxSettings::default() };
    CodeSettings { total_timeout: TimeSpan::seconds(600), sandbox, ..CodeSettings::default() }
}

fn build(settings: &CodeSettings) -> Option<Box<dyn RewardFunction>> {
    match settings.build(&RewardContext::alone("code", 8)) {
        Ok(function) => Some(function),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn reward() -> Option<&'static dyn RewardFunction> {
    static REWARD: LazyLock<Option<Box<dyn RewardFunction>>> = LazyLock::new(|| build(&settings()));
    REWARD.as_deref()
}

fn fence(program: &str) -> String {
    format!("The program:\n```python\n{program}\n```\n")
}

fn judge(function: &dyn RewardFunction, truth: &str, program: &str) -> (Option<f64>, Option<f64>) {
    let prompt = test_prompt(truth);
    let completion = fence(program);
    let outcome = function.score(&[RewardInput::text(&prompt, &completion)]).remove(0);
    if let RewardOutcome::Failed(failure) = &outcome {
        panic!("{failure}");
    }
    (outcome.get("score"), outcome.get("acc"))
}

const RIGHT: (Option<f64>, Option<f64>) = (Some(1.0), Some(1.0));
const WRONG: (Option<f64>, Option<f64>) = (Some(0.0), Some(0.0));

#[test]
fn assertions() {
    let Some(reward) = reward() else { return };
    let truth = r#"{"tests": ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'", "assert math.isclose(add(0.1, 0.2), 0.3)"], "setup": "import math"}"#;
    assert_eq!(judge(reward, truth, "def add(a, b): return a + b"), RIGHT);
    assert_eq!(judge(reward, truth, "add = lambda a, b: math.fsum([a, b]) if a == 1 else a + b"), RIGHT);
    for wrong in
        ["def add(a, b): return a - b", "", "def add(a, b)", "import no_such_module", "add = 3", "1 / 0"]
    {
        assert_eq!(judge(reward, truth, wrong), WRONG, "{wrong}");
    }
    let nothing = RewardInput::text(&test_prompt(truth), "no program").prompt.clone();
    let outcome = reward.score(&[RewardInput::text(&nothing, "no program")]).remove(0);
    assert_eq!(outcome, RewardOutcome::verified(0.0, false));
    // Plain test code, of any form.
    let check =
        "def check(candidate):\n    for n in range(5):\n        assert candidate(n) == n * n\ncheck(square)";
    assert_eq!(judge(reward, check, "def square(n): return n ** 2"), RIGHT);
    assert_eq!(judge(reward, check, "def square(n): return 4"), WRONG);
    // Data are compared by Python's rules.
    let data = r#"["assert f(0) == [1, (2, 3.0), {'a': {4, 5}}]", "assert f(1) == True", "assert f(2) is None", "assert -0.5 == f(3)", "assert f(4) == b'x'"]"#;
    let program = "from collections import OrderedDict\n\
        def f(n): return [[True, (2.0, 3), OrderedDict(a=frozenset([5, 4]))], 1.0, None, -0.5, b'x'][n]";
    assert_eq!(judge(reward, data, program), RIGHT);
    let near = "def f(n): return [[1, [2, 3.0], {'a': {4, 5}}], 1.0, None, -0.5, b'x'][n]";
    assert_eq!(judge(reward, data, near), WRONG);
}

#[test]
fn outputs_and_calls() {
    let Some(reward) = reward() else { return };
    let truth = r#"{"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}"#;
    assert_eq!(judge(reward, truth, "print(sum(map(int, input().split())))"), RIGHT);
    assert_eq!(
        judge(reward, truth, "if __name__ == '__main__':\n    print(sum(map(int, input().split())))"),
        RIGHT
    );
    assert_eq!(judge(reward, truth, "print(3)"), WRONG);
    assert_eq!(judge(reward, truth, "print(sum(map(int, input().split())))\n1 / 0"), WRONG);
    assert_eq!(judge(reward, truth, "print(sum(map(int, input().split())), '!')"), WRONG);
    let truth =
        r#"{"fn_name": "both", "inputs": [[[1, 2], 3], "[4]\n5"], "outputs": [[[1, 2, 3]], "[4, 5]"]}"#;
    assert_eq!(judge(reward, truth, "def both(a, b): return (*a, b)"), RIGHT);
    let method =
        "class Solution:\n    def both(self, a: List[int], b: int) -> List[int]:\n        return a + [b]";
    assert_eq!(judge(reward, truth, method), RIGHT);
    assert_eq!(judge(reward, truth, "def both(a, b): return [1, 2, 3]"), WRONG);
    assert_eq!(judge(reward, truth, "def other(a, b): return a + [b]"), WRONG);
}

#[test]
fn cheats_score_nothing() {
    let Some(reward) = reward() else { return };
    let cheats = [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "quit()",
        "raise SystemExit",
        "print(3)\nprint('passed', 'OK', True)",
        "import builtins\nbuiltins.AssertionError = type('Fine', (Exception,), {})\ndef add(a, b): return 0",
        "def add(a, b):\n    import os\n    os._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 3\nadd = lambda a, b: Equal()",
        "class Equal(int):\n    def __eq__(self, other): return True\n    def __repr__(self): return '3'\nadd = lambda a, b: Equal(0)",
        "import os\nfor n in range(64):\n    try: os.write(n, b'\"passed\"')\n    except OSError: pass\nos._exit(0)",
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'\"n4\"')\n    except OSError: pass\nos._exit(0)",
        "import sys\nsys.modules['json'].dumps = lambda value, *rest: 'true'\ndef add(a, b): return 0",
        "import sys, json\nexec = eval = compile = lambda *a, **k: None\ndef add(a, b): return 0",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
        "import threading, os\nthreading.Timer(0.01, os._exit, (0,)).start()\ndef add(a, b): return 0",
        "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\n\
         def add(a, b):\n    while True: pass",
        "import builtins\ncode = compile('pass', 'x', 'exec')\nbuiltins.compile = lambda *a, **k: code\ndef add(a, b): return 0",
        "import builtins\nbuiltins.exec = builtins.eval = lambda *a, **k: 3\ndef add(a, b): return 0",
        "import json\njson.loads = json.JSONDecoder.decode = lambda *a: {'test': 'pass', 'token': 'x'}\ndef add(a, b): return 0",
        "import os\nos.read = lambda *a: b'{}'\nos.write = lambda *a: 0\ndef add(a, b): return 0",
        "import sys\nsys.excepthook = lambda *a: None\ndef add(a, b): return 0",
        "def trace(frame, event, argument): return trace\nimport sys\nsys.settrace(trace)\ndef add(a, b): return 0",
    ];
    for truth in [
        r#"{"tests": ["assert add(1, 2) == 3"]}"#,
        r#"{"tests": ["assert add(1, 2) < 4 and add(1, 2) > 2"]}"#,
        r#"{"inputs": ["1 2"], "outputs": ["3 3"]}"#,
        r#"{"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}"#,
    ] {
        for cheat in cheats {
            // A type with its own comparison could return anything.
            assert_eq!(judge(reward, truth, cheat), WRONG, "{truth}\n{cheat}");
        }
    }
}

/// The tests and their expected values are not there before the program has run, and neither are those of
/// other programs.
#[test]
fn expected_values_are_not_to_be_found() {
    let Some(reward) = reward() else { return };
    let search = "
import gc, sys
found = False
for thing in gc.get_objects():
    if isinstance(thing, dict):
        found = found or any(isinstance(value, str) and '98765' + '4321' in value for value in list(thing.values()))
frame = sys._getframe()
while frame:
    found = found or '98765' + '4321' in str(frame.f_locals)
    frame = frame.f_back
def f(): return 987 * 10**6 + 654321 if found else 0
if found: print(987 * 10**6 + 654321)
";
    for truth in [
        r#"{"tests": ["assert f() == 987654321"]}"#,
        r#"{"tests": ["assert f() in (987654321, 5)"]}"#,
        r#"{"inputs": [""], "outputs": ["987654321"]}"#,
        r#"{"inputs": [[]], "outputs": [987654321], "fn_name": "f"}"#,
    ] {
        assert_eq!(judge(reward, truth, search), WRONG, "{truth}");
    }
}

#[test]
fn shares_and_limits() {
    let truth = r#"["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9", "assert f(4) == 16"]"#;
    let Some(partial) = build(&CodeSettings { partial: true, ..settings() }) else { return };
    assert_eq!(judge(&*partial, truth, "def f(n): return n * n"), RIGHT);
    assert_eq!(judge(&*partial, truth, "def f(n): return n if n < 2 else 2 * n"), (Some(0.5), Some(0.0)));
    let sandbox =
        SandboxSettings { timeout: TimeSpan(Duration::from_millis(1500)), ..SandboxSettings::default() };
    let hurried = CodeSettings { partial: true, sandbox, ..settings() };
    let hurried = build(&hurried).unwrap();
    let hangs = "def f(n):\n    while n > 1: pass\n    return 1";
    let (score, acc) = judge(&*hurried, truth, hangs);
    assert!(score.unwrap() <= 0.25 && acc == Some(0.0), "{score:?}");
    // The rest is not awaited.
    let whole =
        CodeSettings { partial: true, total_timeout: TimeSpan(Duration::from_millis(1)), ..settings() };
    let whole = build(&whole).unwrap();
    assert_eq!(judge(&*whole, truth, "def f(n): return n * n").1, Some(0.0));
}

#[test]
fn a_batch_is_its_completions() {
    let Some(function) = build(&CodeSettings { num_processes: 3, ..settings() }) else { return };
    let prompts: Vec<Prompt> = (0..7).map(|n| test_prompt(&format!("assert f() == {n}"))).collect();
    let completion = fence("def f(): return 4");
    let inputs: Vec<RewardInput<'_>> =
        prompts.iter().map(|prompt| RewardInput::text(prompt, &completion)).collect();
    let scores: Vec<Option<f64>> =
        function.score(&inputs).iter().map(|outcome| outcome.get("score")).collect();
    let expected: Vec<Option<f64>> = (0..7).map(|n| Some(f64::from(u8::from(n == 4)))).collect();
    assert_eq!(scores, expected);
    assert_eq!(function.concurrency(), 3);
    let no_truth = Prompt { ground_truth: None, ..test_prompt("") };
    assert_eq!(function.score(&[RewardInput::text(&no_truth, &completion)]), [RewardOutcome::NoAnswer]);
    let broken = test_prompt("assert assert");
    let outcome = function.score(&[RewardInput::text(&broken, &completion)]).remove(0);
    let RewardOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert!(
        failure
            .to_string()
            .starts_with("the function failed: the tests cannot be used: a test is no Python: "),
        "{failure}"
    );
}

#[test]
fn gold_programs_are_those_of_the_rows() {
    let Some(function) = reward() else { return };
    let mut prompt = test_prompt("assert f(3) == 9");
    assert!(function.gold_completions(&prompt).is_empty());
    let columns = serde_json::json!({"prompt": "def f(n):\n", "canonical_solution": "    return n * n\n"});
    prompt.columns = columns.as_object().cloned().unwrap_or_default();
    let forms = function.gold_completions(&prompt);
    let score =
        |prompt: &Prompt, form: &String| function.score(&[RewardInput::text(prompt, form)])[0].get("acc");
    let scores: Vec<Option<f64>> = forms.iter().map(|form| score(&prompt, form)).collect();
    assert_eq!(scores, [Some(1.0), Some(0.0)]);
    prompt.columns = Map::from_iter([("solutions".to_owned(), serde_json::json!(["f = lambda n: n ** 2"]))]);
    let forms = function.gold_completions(&prompt);
    assert_eq!((forms.len(), score(&prompt, &forms[0])), (1, Some(1.0)));
}

#[test]
fn what_is_in_force_is_said_and_bad_settings_are_refused() {
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    let context = RewardContext { listener: &listener, ..RewardContext::alone("tests", 8) };
    if settings().build(&context).is_ok() {
        let text = heard.text();
        assert!(
            text.trim_start_matches("warning: ").starts_with("reward `tests`: sandbox (Python 3."),
            "{text}"
        );
    }
    let python = tamis_core::setting::Program("no-such-python".into());
    let sandbox = SandboxSettings { python, ..SandboxSettings::default() };
    let error = CodeSettings { sandbox, ..settings() }.build(&context).err().unwrap();
    insta::assert_snapshot!(error, @"reward `tests`: the sandbox cannot use `no-such-python`: No such file or directory (os error 2)");
    let rows = [test_prompt("assert f(1)"), test_prompt(r#"{"input": "1"}"#)];
    let rows: &[&[Prompt]] = &[&rows];
    let error = settings().build(&RewardContext { rows, ..context }).err().unwrap();
    insta::assert_snapshot!(error, @r#"reward `tests`: the tests of 1 row cannot be used, for example of prompt 0 with `{"input": "1"}`: it has neither `tests` nor `inputs` and `outputs`"#);
}

/// Tests that would accept every program, or none.
#[test]
fn rows_that_test_nothing_are_refused() {
    let refusal = |truth: &str| {
        let rows = [test_prompt("assert f(1) == 2"), test_prompt(truth)];
        let rows: &[&[Prompt]] = &[&rows];
        let error = settings().build(&RewardContext { rows, ..RewardContext::alone("tests", 8) }).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    if reward().is_none() {
        return;
    }
    for truth in [
        "42",
        "# tests",
        "def check(candidate):\n    assert candidate(1) == 2\n",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\n",
        "def test_f():\n    assert f(1) == 2\n",
        r#"{"inputs": ["1"], "outputs": [""]}"#,
    ] {
        let error = refusal(truth);
        assert!(
            error.starts_with(
                "reward `tests`: the tests of 1 row cannot be used, for example of prompt 0 with `"
            ) && error.contains("an empty program passes, so they test nothing; call the test function"),
            "{truth}: {error}"
        );
    }
    let error = refusal("assert f(1) =! 2");
    assert!(
        error.contains("cannot be used") && error.contains(": a test is no Python: invalid syntax"),
        "{error}"
    );
    let error = refusal(&format!(r#"{{"inputs": ["1"], "outputs": ["{}"]}}"#, "x".repeat(1_048_577)));
    assert!(error.contains("an output of 1048577 bytes is expected, and `max_output` is 1048576"), "{error}");
    assert_eq!(refusal("def check(f):\n    assert f(1) == 2\ncheck(f)"), "");
}

#[test]
fn assertions_are_taken_in_their_order() {
    let Some(partial) = build(&CodeSettings { partial: true, ..settings() }) else { return };
    let sorts = "a = [3, 1]\nassert sort_it(a) is None\nassert a == [1, 3]";
    assert_eq!(judge(&*partial, sorts, "def sort_it(a): a.sort()"), RIGHT);
    assert_eq!(judge(&*partial, sorts, "def sort_it(a): pass"), (Some(0.5), Some(0.0)));
    let counts = "c = C()\nassert c.inc() == 1\nassert c.inc() == 2\nc.inc()\nassert c.inc() == 4";
    let counter = "class C:\n    n = 0\n    def inc(self):\n        self.n += 1\n        return self.n";
    assert_eq!(judge(&*partial, counts, counter), RIGHT);
    let stuck = "class C:\n    def inc(self): return 4";
    assert_eq!(judge(&*partial, counts, stuck), (Some(1.0 / 3.0), Some(0.0)));
    let raises = "def f(n): return 1 // n";
    let shares = "assert f(0) == 1\nassert f(1) == 1\nassert f(0) == None\nassert f(1) in (1, 2)";
    assert_eq!(judge(&*partial, shares, raises), (Some(0.5), Some(0.0)));
    let breaks = "assert f(1) == 1\nf(0)\nassert f(1) == 1";
    assert_eq!(judge(&*partial, breaks, raises), WRONG);
}

#[test]
fn large_and_rare_values() {
    let Some(reward) = reward() else { return };
    let long = (100_000..300_000).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let all = "def f(): return list(range(100000, 300000))";
    assert_eq!(judge(reward, &format!("assert f() == [{long}]"), all), RIGHT);
    let call = format!(r#"{{"fn_name": "f", "inputs": [[]], "outputs": [[{long}]]}}"#);
    assert_eq!(judge(reward, &call, all), RIGHT);
    let digits = format!("assert f() == 1{}", "0".repeat(5000));
    assert_eq!(judge(reward, &digits, "def f(): return 10 ** 5000"), RIGHT);
    // Other values are compared by Python, wherever they are.
    assert_eq!(judge(reward, "assert f() == 1j", "def f(): return 1j"), RIGHT);
    assert_eq!(judge(reward, "assert f() == [1j, -1j]", "def f(): return [1j, -1j]"), RIGHT);
    assert_eq!(judge(reward, "assert f() == [1j, -1j]", "def f(): return [5j, 9 + 9j]"), WRONG);
    // Output to stderr does not make a right answer wrong.
    let talks = "import sys\nprint('x' * 2_000_000, file=sys.stderr)\nprint(3)";
    assert_eq!(judge(reward, r#"{"inputs": [""], "outputs": ["3"]}"#, talks), RIGHT);
}

#[test]
fn an_interrupted_batch_is_given_up() {
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    let context = RewardContext { listener: &listener, ..RewardContext::alone("tests", 8) };
    let Ok(function) = settings().build(&context) else { return };
    heard.interrupted.store(true, Ordering::SeqCst);
    let prompt = test_prompt("assert f()");
    let outcomes = function.score(&[RewardInput::text(&prompt, "```python\nf = print\n```")]);
    assert_eq!(outcomes, [RewardOutcome::Failed(RewardFailure::Interrupted)]);
}
