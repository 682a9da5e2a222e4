//! Functions in files of a test, called by the `python3` of the machine.

use std::sync::Arc;

use tamis_core::advantage::{AdvantageBatch, Advantages};
use tamis_core::objective::{AdvantageColumn, Clip, Columns};
use tamis_core::own_function::OwnFunction;
use tamis_core::ragged::Ragged;
use tamis_env::reward::{Listener, Nobody};

use super::advantage::OwnAdvantage;
use super::check::RunColumns;
use super::loss::OwnLoss;
use super::process::FunctionProcess;
use super::{PROGRAMS, check};
use crate::interrupt::Halt;

/// Lists, so that no NumPy is needed: the clipped ratio with bounds 0.2.
const CLIPPED: &str = r#"
from math import exp

def loss(columns, low=0.2, high=0.2):
    losses, derivatives = [], []
    for new, old, advantage in zip(columns["logprobs"], columns["old_logprobs"], columns["advantages"]):
        ratio = exp(float(new) - float(old))
        free = -float(advantage) * ratio
        held = -float(advantage) * min(max(ratio, 1 - low), 1 + high)
        losses.append(max(free, held))
        derivatives.append(0.0 if held > free else free)
    return losses, derivatives
"#;

/// Columns of a run that has all of them, and a reward called `score`.
fn run() -> RunColumns {
    RunColumns { has_reference: true, has_token_rewards: true, rewards: vec![("score".to_owned(), 1.0)] }
}

struct Files(tempfile::TempDir);

impl Files {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, program) in PROGRAMS {
            std::fs::write(folder.path().join(name), program).expect("written");
        }
        std::fs::write(folder.path().join("my.py"), text).expect("written");
        Self(folder)
    }

    fn process(&self, section: &'static str, change: impl FnOnce(&mut OwnFunction)) -> FunctionProcess {
        let mut function = OwnFunction::of(self.0.path().join("my.py"));
        change(&mut function);
        let listener: Arc<dyn Listener> = Arc::new(Nobody);
        FunctionProcess::new(section, &function, self.0.path(), &listener)
    }

    fn loss(&self) -> OwnLoss {
        OwnLoss::new(self.process("loss", |_| {}))
    }

    /// A message without the folder of the test.
    fn shown<E: std::fmt::Display>(&self, error: E) -> String {
        error.to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

/// What the check of a loss says of a file.
fn refused(text: &str) -> String {
    let files = Files::new(text);
    let found = check::loss(&files.loss(), true, &run());
    files.shown(found.map(|_| "fine").expect_err("a refusal"))
}

fn of_row(row: usize) -> String {
    format!("member {row}")
}

const OFFSETS: [usize; 3] = [0, 2, 4];
const MASK: [bool; 4] = [true, true, false, true];
const OLD: [f64; 4] = [-2.0, -1.0, f64::NAN, -1.0];
const ADVANTAGES: [f64; 2] = [1.5, -0.5];

fn columns(logprobs: &[f64; 4]) -> Columns<'_, f64> {
    Columns {
        old: Some(&OLD),
        ..Columns::new(&OFFSETS, &MASK, logprobs, AdvantageColumn::PerTrajectory(&ADVANTAGES))
    }
}

#[test]
fn a_loss_gets_columns_and_gives_values_and_derivatives() {
    let files = Files::new(CLIPPED);
    let logprobs = [-2.0 + 2_f64.ln(), -1.0, f64::NAN, -1.0 + 0.5_f64.ln()];
    let found = files.loss().evaluate(&columns(&logprobs), None, &of_row).expect("numbers");
    // Ratios 2, 1 and 1/2; the masked token was 0 in every column, so its ratio is 1.
    let expected = [-1.8, -1.5, 0.0, 0.4];
    for (t, (value, expected)) in found.value.iter().zip(expected).enumerate() {
        assert!((value - expected).abs() < 1e-12, "token {t}: {value}");
    }
    assert_eq!(found.derivative, [0.0, -1.5, 0.0, 0.0]);
    // The built-in loss gives the same.
    for t in [0, 1, 3] {
        let built_in = Clip::symmetric(0.2).token(logprobs[t] - OLD[t], ADVANTAGES[t / 2]);
        assert!((built_in.loss - found.value[t]).abs() < 1e-12);
        assert!((built_in.dloss - found.derivative[t]).abs() < 1e-12);
    }
}

#[test]
fn keys_of_a_function_are_its_arguments() {
    let files = Files::new(CLIPPED);
    let process = files.process("loss", |function| {
        function.kwargs.insert("high".to_owned(), 1.5.into());
    });
    let logprobs = [-2.0 + 2_f64.ln(), -1.0, 0.0, -1.0];
    let found = OwnLoss::new(process).evaluate(&columns(&logprobs), None, &of_row).expect("numbers");
    assert!((found.value[0] + 3.0).abs() < 1e-12, "{found:?}");
    let process = files.process("loss", |function| {
        function.kwargs.insert("nonsense".to_owned(), 1.into());
    });
    let refused = check::loss(&OwnLoss::new(process), true, &run()).expect_err("a refusal");
    assert_eq!(
        files.shown(refused),
        "objective.loss: `loss` (my.py:4) cannot be called: got an unexpected keyword argument 'nonsense'. It is \
         loss(columns, low=0.2, high=0.2), called as loss(columns, nonsense=...)"
    );
}

#[test]
fn a_right_loss_passes_and_says_whether_tokens_depend_on_each_other() {
    let files = Files::new(CLIPPED);
    let checked = check::loss(&files.loss(), true, &run()).expect("fine");
    assert!(!checked.couples_tokens && checked.note.is_none());
    // Each token's loss is the trajectory's sum of log-probabilities.
    let files = Files::new(
        "
def loss(columns):
    losses, derivatives = [], []
    offsets = [int(offset) for offset in columns.offsets]
    for row, (start, end) in enumerate(zip(offsets, offsets[1:])):
        total = sum(float(columns.logprobs[t]) for t in range(start, end) if columns.mask[t])
        losses += [total] * (end - start)
        derivatives += [float(columns.lengths[row])] * (end - start)
    return losses, derivatives
",
    );
    let checked = check::loss(&files.loss(), true, &run()).expect("fine");
    assert!(checked.couples_tokens);
    let message = files.shown(files.loss().process.coupled(true));
    assert!(
        message.contains("depend on other tokens of their trajectory, and objective.correction"),
        "{message}"
    );
}

#[test]
fn a_wrong_derivative_is_shown_with_its_token_and_both_numbers() {
    let wrong = CLIPPED.replace("0.0 if held > free else free", "free");
    let message = refused(&wrong);
    assert!(
        message.starts_with("objective.loss: `loss` (my.py:4) returns a wrong derivative for ")
            && message.contains("of trajectory 0 (logprobs -")
            && message.contains("central differences of its value give 0.000000"),
        "{message}"
    );
    // A weight that is meant to be constant.
    let files = Files::new(&wrong);
    assert!(check::loss(&files.loss(), false, &run()).is_ok());
}

#[test]
fn what_a_loss_returns_is_looked_at() {
    let of = |body: &str| refused(&format!("def loss(columns):\n    {body}\n"));
    for (body, expected) in [
        ("return columns.logprobs", "expected the losses and their derivatives: return both"),
        ("pass", "the function returned None (NoneType)"),
        ("return [1.0], [1.0]", "the loss is list of 1; expected 13 (one per token) numbers"),
        ("return ['x'] * 13, [0.0] * 13", "the loss is list of 13, not numbers"),
        ("return 1.0, 0.0", "the loss is 1.0 (float)"),
        (
            "return [float('nan')] * 13, [0.0] * 13",
            "returned a loss of NaN for token 0 of trajectory 0 (logprobs -",
        ),
        (
            "return [0.0] * 13, [float('-inf')] * 13",
            "returned a derivative of -inf for token 0 of trajectory 0",
        ),
        (
            "return columns.old_logprob",
            "AttributeError: there is no column `old_logprob`; there are logprobs, ",
        ),
        ("return [0.0] * 13, [1 / 0] * 13", "my.py\", line 2, in loss"),
        ("raise SystemExit(3)", "failed: Traceback (most recent call last):"),
        (
            "return [float(sum(columns.logprobs))] * len(columns.mask), [11.0] * len(columns.mask)",
            "a loss that depends on other trajectories of the batch",
        ),
        (
            "import random; return [random.random()] * 13, [0.0] * 13",
            "returned other numbers for the same columns",
        ),
    ] {
        let message = of(body);
        assert!(message.contains(expected), "{body}: {message}");
        assert!(message.starts_with("objective.loss: `loss` (my.py:1) "), "{body}: {message}");
    }
}

#[test]
fn a_file_that_is_no_function_is_refused() {
    for (text, expected) in [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def other(columns):\n    pass\n", "my.py has no function `loss`; it has other"),
        ("loss = 3\n", "`loss` of my.py is 3 (int), not a function"),
        ("def loss(columns, more):\n    pass\n", "cannot be called: missing a required argument: 'more'"),
        ("async def loss(columns):\n    pass\n", "cannot be called: it is `async`"),
        ("def loss(:\n", "SyntaxError"),
    ] {
        let message = refused(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_missing_package_is_named_with_the_interpreter() {
    for (text, expected) in [
        ("import numpy as np\n\ndef loss(columns):\n    pass\n", "No module named 'numpy'"),
        ("def loss(columns):\n    import numpy\n", "No module named 'numpy'"),
        // Written for arrays, and called with lists.
        (
            "def loss(columns):\n    return columns.logprobs * columns.advantages, None\n",
            "can't multiply sequence by non-int of type 'list'\nThe columns are lists, because NumPy is missing",
        ),
    ] {
        let files = Files::new(text);
        std::fs::write(
            files.0.path().join("numpy.py"),
            "raise ModuleNotFoundError(\"No module named 'numpy'\")\n",
        )
        .unwrap();
        let Err(Halt::Failed(error)) = check::loss(&files.loss(), true, &run()) else { panic!("{text}") };
        assert!(error.what.contains(expected), "{error}");
        let hint = error.hint().unwrap_or_default();
        let fix = "python3 -m pip install numpy`), or name an interpreter that has it: objective.loss.python, or run.python for everything";
        assert!(hint.contains(fix), "{hint}");
    }
    // What tamis finds in the result is no fault of the interpreter.
    let files = Files::new("def loss(columns):\n    return None\n");
    std::fs::write(files.0.path().join("numpy.py"), "raise ImportError('none')\n").unwrap();
    assert!(!files.shown(check::loss(&files.loss(), true, &run()).unwrap_err()).contains("NumPy"));
}

#[test]
fn a_process_that_ends_is_started_again_and_one_that_hangs_is_given_up() {
    let files = Files::new(&format!(
        "{CLIPPED}\nimport os, pathlib\nmark = pathlib.Path(__file__).with_name('mark')\nclipped = loss\n\n\
         def loss(columns):\n    if not mark.exists():\n        mark.touch()\n        os._exit(7)\n    \
         return clipped(columns)\n"
    ));
    let loss = files.loss();
    loss.process.introduce().expect("a function");
    let found = loss.evaluate(&columns(&[-1.0, -1.0, -1.0, -1.0]), None, &of_row);
    assert!(found.is_ok(), "{found:?}");
    let files = Files::new("import os\ndef loss(columns):\n    os._exit(7)\n");
    let loss = files.loss();
    loss.process.introduce().expect("a function");
    let error = loss.evaluate(&columns(&[-1.0; 4]), None, &of_row).expect_err("it ends");
    let message = files.shown(error);
    assert!(message.contains("the process ended (exit status: 7) before it answered"), "{message}");
    let files = Files::new("import time\ndef loss(columns):\n    time.sleep(60)\n");
    let process = files.process("loss", |function| {
        function.timeout = tamis_core::setting::TimeSpan(std::time::Duration::from_millis(50));
        function.startup_timeout = function.timeout;
    });
    let error = OwnLoss::new(process).evaluate(&columns(&[-1.0; 4]), None, &of_row).expect_err("it hangs");
    let Halt::Failed(error) = error else { panic!("no interrupt") };
    assert!(error.what.contains("no answer within 0.1 s"), "{error}");
    assert_eq!(
        error.hint().as_deref(),
        Some(
            "objective.loss.timeout is the time of one call, objective.loss.startup_timeout that of the import"
        )
    );
}

fn advantage(text: &str) -> (Files, OwnAdvantage) {
    let files = Files::new(text);
    let advantage = OwnAdvantage::new(files.process("advantage", |_| {}));
    (files, advantage)
}

/// The reward less the mean of its group, over the scored.
const CENTRED: &str = "
def advantage(columns):
    result = []
    offsets = [int(offset) for offset in columns.group_offsets]
    for start, end in zip(offsets, offsets[1:]):
        rewards = [float(reward) for reward in columns.rewards[start:end]]
        result += [reward - sum(rewards) / len(rewards) for reward in rewards]
    return result
";

#[test]
fn an_advantage_gets_the_scored_and_gives_one_number_each() {
    let (_files, own) = advantage(CENTRED);
    check::advantage(&own, &run()).expect("fine");
    let rewards = Ragged::from_rows([vec![1.0, f64::NAN, 0.0], vec![0.5]]);
    let mask = Ragged::from_rows([vec![true], vec![true; 2], vec![true; 3], vec![false, true]]);
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    let found = own.advantages(&batch, &of_row).expect("numbers");
    assert_eq!(found, Advantages::PerTrajectory(Ragged::from_rows([vec![0.5, 0.0, -0.5], vec![0.0]])));
}

#[test]
fn an_advantage_may_be_of_tokens() {
    let (_files, own) = advantage(
        "
def advantage(columns):
    result = []
    for row, reward in enumerate(columns.rewards):
        start, end = int(columns.offsets[row]), int(columns.offsets[row + 1])
        result += [float(reward) * (t - start + 1) for t in range(start, end)]
    return result
",
    );
    check::advantage(&own, &run()).expect("fine");
    let rewards = Ragged::from_rows([vec![1.0, f64::NAN], vec![-2.0]]);
    let mask = Ragged::from_rows([vec![true; 3], vec![true; 2], vec![true; 2]]);
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    let found = own.advantages(&batch, &of_row).expect("numbers");
    let rows = [vec![1.0, 2.0, 3.0], vec![0.0, 0.0], vec![-2.0, -4.0]];
    assert_eq!(found, Advantages::PerToken(Ragged::from_rows(rows)));
}

#[test]
fn what_an_advantage_returns_is_looked_at() {
    for (body, expected) in [
        ("return [1.0]", "expected 8 (one per trajectory) or 18 (one per token) numbers"),
        ("return [float('nan')] * 8", "returned an advantage of NaN for trajectory 0 (its reward is 1)"),
        (
            "return [0.0] * 4 + [float('inf')] + [0.0] * 13",
            "of inf for token 0 of trajectory 2 (its reward is 0.5)",
        ),
        ("pass", "what the function returned is None"),
        ("return columns.reward", "there is no column `reward`; there are rewards, groups, group_offsets,"),
    ] {
        let (files, own) = advantage(&format!("def advantage(columns):\n    {body}\n"));
        let message = files.shown(check::advantage(&own, &run()).expect_err("a refusal"));
        assert!(message.contains(expected), "{body}: {message}");
        assert!(message.starts_with("objective.advantage: `advantage` (my.py:1) "), "{body}: {message}");
    }
}
