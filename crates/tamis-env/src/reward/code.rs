//! `code`: unit tests of the program in a completion, run in a [`Sandbox`].
//!
//! The program comes from the completion's code block ([`CodeExtract`]), the tests from the ground truth
//! (JSON text or test code). Each test runs in a fresh process. The assertions of one text are tests that
//! share a process, in their order. Expected values stay outside the program's process if possible:
//!
//! | form | the program's process gets | compared |
//! |---|---|---|
//! | standard input and output | the input | its output, here |
//! | a function's arguments and value | the arguments, after the program has been run | the value as plain data, here |
//! | `assert f(1) == 2`: one side plain data | the other side, after the program has been run | the value, here |
//! | any other test code | the test and a random word, after the program has been run | the word, which the process reports after the test |
//!
//! So in the first three forms a program gains nothing by printing results, `sys.exit(0)`, a redefined
//! `assert` helper, an object that equals everything, or a search for expected values. In the last form a
//! program passes if it searches its own process for the word, or returns an object that equals everything
//! when the test calls it.
//!
//! A program that fails, hangs or dies scores 0. There is no score only if the sandbox itself fails, twice in
//! a row.

mod answer;
mod compare;
mod truth;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tamis_core::figure::counted;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tamis_core::setting::TimeSpan;
use tamis_data::prompt::Prompt;

pub use self::answer::CodeExtract;
use self::truth::Truth;
use super::combine::excerpt;
use super::failure::RewardFailure;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::listener::Listener;
use super::settings::{BuildError, Nature, RewardContext, RewardFile, RewardSettings};
use crate::sandbox::{Exit, Job, Mode, Sandbox, SandboxError, SandboxSettings};

/// Number of ground truths whose parsed tests are cached.
const NUM_KEPT: usize = 4096;

/// Number of rows whose tests are parsed before a run, number of rows on which an empty program is tried, and
/// the longest time of these trials.
const NUM_READ: usize = 2048;
const NUM_TRIED: usize = 64;
const TRYING: Duration = Duration::from_secs(30);

/// Bytes of a report besides the expected values, and the most bytes of a report for one byte of those.
const REPORT_BYTES: usize = 1 << 20;
const REPORT_BYTES_PER_BYTE: usize = 16;

tamis_core::settings! {
    /// Tests of generated code. `score` is 1 if all pass, otherwise 0 (with `partial: true`, the share that
    /// passes); `acc` is 1 or 0. No answer if the prompt has no ground truth.
    pub struct CodeSettings {
        /// How the program is found in a completion.
        extract: CodeExtract = CodeExtract::Fenced;
        /// The score is the share of tests that pass. False: all or nothing, and the first failure ends the
        /// tests.
        partial: bool = false;
        /// Longest time of all tests of one completion; the remaining tests then count as failed. `timeout`
        /// is the limit of one test.
        total_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Largest difference of two non-integer numbers that count as equal, in outputs and in values of
        /// functions, absolute or relative to the expected number. Assertions compare as in Python.
        tolerance: f64 = 1e-6, NonNegative;
        /// Number of completions that are tested at the same time.
        num_processes: usize = 2, Between(1.0, 1024.0), Free;
        ..sandbox: SandboxSettings;
    }
}

impl RewardSettings for CodeSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let find = |prompt: &Prompt| {
            let truth = Truth::read(prompt.ground_truth.as_deref()?);
            truth.and_then(|truth| self.fit_outputs(&truth)).err()
        };
        let faults: Vec<(&Prompt, String)> =
            context.prompts().filter_map(|prompt| Some((prompt, find(prompt)?))).collect();
        refuse_faults(context, &faults)?;
        let sandbox = Sandbox::new(&self.sandbox).map_err(|error| {
            let hint = match &error {
                SandboxError::Unprotected { .. } => {
                    "run it on a machine with more, or set `required: none` if you trust the code"
                }
                _ => "set its `python` to a Python interpreter, 3.9 or newer",
            };
            context.fail(&error.to_string(), hint)
        })?;
        let line = format!("reward `{}`: {}", context.name, sandbox.protection());
        if sandbox.protection().is_whole() {
            context.listener.say(&line);
        } else {
            context.listener.warn(&line);
        }
        let reward = CodeReward {
            settings: self.clone(),
            sandbox,
            listener: Arc::clone(context.listener),
            kept: Mutex::default(),
        };
        refuse_faults(context, &reward.find_faults(context)?)?;
        Ok(Box::new(reward))
    }

    /// Scores depend on time limits, so they are journalled, like those of a program.
    fn nature(&self) -> Nature {
        Nature { gives_acc: true, ..Nature::EXTERNAL }
    }

    fn files(&self) -> Vec<RewardFile> {
        let path = self.sandbox.python.0.clone();
        vec![RewardFile { key: "python".to_owned(), path, hint: None }]
    }
}

impl CodeSettings {
    /// Whether a right program can print the expected output.
    fn fit_outputs(&self, truth: &Truth) -> Result<(), String> {
        let (Truth::Programs(cases), most) = (truth, self.sandbox.max_output) else { return Ok(()) };
        match cases.iter().find(|(_, output)| output.len() > most) {
            None => Ok(()),
            Some((_, output)) => {
                Err(format!("an output of {} bytes is expected, and `max_output` is {most}", output.len()))
            }
        }
    }
}

/// Rows whose tests cannot be used, the first by name.
fn refuse_faults(context: &RewardContext<'_>, faults: &[(&Prompt, String)]) -> Result<(), BuildError> {
    let Some((prompt, fault)) = faults.first() else { return Ok(()) };
    let message = format!(
        "the tests of {} cannot be used, for example of {} with `{}`: {fault}",
        counted(faults.len(), "row"),
        prompt.named(),
        excerpt(prompt.ground_truth.as_deref().unwrap_or_default())
    );
    Err(context
        .fail(&message, "correct or remove these rows; docs/rewards.md shows the forms of a ground truth"))
}

/// A step of a test, as the harness parses it: code, a test that passes if it reaches its end, or an
/// expression whose value is compared.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
struct Step {
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    test: Option<String>,
    #[serde(default)]
    expression: String,
    #[serde(default)]
    expected: Json,
}

/// A row's tests, as the harness parses them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Split {
    Scripts(Vec<Vec<Step>>),
    Fault(String),
}

enum Tests {
    Programs(Vec<(String, String)>),
    Calls { function: String, setup: String, cases: Vec<(Vec<Json>, Json)> },
    Assertions { setup: String, scripts: Vec<Vec<Step>> },
}

impl Tests {
    /// Number of tests in each process.
    fn sizes(&self) -> Vec<usize> {
        match self {
            Self::Programs(cases) => vec![1; cases.len()],
            Self::Calls { cases, .. } => vec![1; cases.len()],
            Self::Assertions { scripts, .. } => {
                let size = |steps: &Vec<Step>| steps.iter().filter(|step| step.run.is_none()).count();
                scripts.iter().map(size).collect()
            }
        }
    }
}

struct CodeReward {
    settings: CodeSettings,
    sandbox: Sandbox,
    listener: Arc<dyn Listener>,
    kept: Mutex<HashMap<String, Arc<Tests>>>,
}

impl CodeReward {
    fn tests(&self, truth: &str) -> Result<Arc<Tests>, RewardFailure> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tests) = kept().get(truth) {
            return Ok(Arc::clone(tests));
        }
        let unusable = |message: String| RewardFailure::Function { message };
        let tests = match Truth::read(truth).map_err(unusable)? {
            Truth::Programs(cases) => Tests::Programs(cases),
            Truth::Calls { function, setup, cases } => Tests::Calls { function, setup, cases },
            Truth::Assertions { setup, tests } => {
                let split = self.split(&[tests]).map_err(|error| unusable(error.to_string()))?;
                match split.into_iter().next() {
                    Some(Split::Scripts(scripts)) => Tests::Assertions { setup, scripts },
                    Some(Split::Fault(fault)) => {
                        return Err(unusable(format!("the tests cannot be used: {fault}")));
                    }
                    None => return Err(unusable("the tests could not be split".to_owned())),
                }
            }
        };
        let tests = Arc::new(tests);
        let mut kept = kept();
        if kept.len() >= NUM_KEPT {
            kept.clear();
        }
        kept.insert(truth.to_owned(), Arc::clone(&tests));
        Ok(tests)
    }

    /// Parses the tests of rows.
    fn split(&self, rows: &[Vec<String>]) -> Result<Vec<Split>, SandboxError> {
        let late = json!(rows);
        let num_bytes: usize = rows.iter().flatten().map(String::len).sum();
        let job = Job {
            mode: Mode::Split,
            // It runs no foreign code.
            timeout: Duration::from_secs(60),
            setup: "",
            source: "",
            stdin: "",
            files: None,
            late: Some(late),
            max_report: REPORT_BYTES + REPORT_BYTES_PER_BYTE * num_bytes,
        };
        let execution = self.sandbox.execute(&job)?;
        serde_json::from_slice(&execution.report).map_err(|_| {
            let (exit, stderr) = (execution.exit, execution.stderr.trim());
            SandboxError::broken(format_args!("it could not split the tests: {exit}, {stderr}"))
        })
    }

    /// Rows whose tests are not valid Python, or assert so little that an empty program passes. If there are
    /// many rows, a sample is checked.
    fn find_faults<'a>(&self, context: &RewardContext<'a>) -> Result<Vec<(&'a Prompt, String)>, BuildError> {
        let until = Instant::now() + TRYING;
        let is_over = || Instant::now() >= until || self.listener.is_interrupted();
        let fail = |error: &SandboxError| context.fail(&error.to_string(), "try it again, or report this");
        let mut known = HashSet::new();
        let rows: Vec<(&Prompt, &str)> = context
            .prompts()
            .filter_map(|prompt| Some((prompt, prompt.ground_truth.as_deref()?)))
            .filter(|(_, truth)| known.insert(*truth))
            .collect();
        let codes: Vec<(&Prompt, Vec<String>)> = some_of(&rows, NUM_READ)
            .filter_map(|(prompt, truth)| match Truth::read(truth) {
                Ok(Truth::Assertions { tests, .. }) => Some((*prompt, tests)),
                _ => None,
            })
            .collect();
        let mut faults = Vec::new();
        for part in codes.chunks(64) {
            if is_over() {
                break;
            }
            let tests: Vec<Vec<String>> = part.iter().map(|(_, tests)| tests.clone()).collect();
            for ((prompt, _), split) in part.iter().zip(self.split(&tests).map_err(|error| fail(&error))?) {
                if let Split::Fault(fault) = split {
                    faults.push((*prompt, fault));
                }
            }
        }
        if !faults.is_empty() {
            return Ok(faults);
        }
        for (prompt, truth) in some_of(&rows, NUM_TRIED) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let Ok(tests) = self.tests(truth) else { continue };
            let sizes = tests.sizes();
            let limit = left.min(self.settings.sandbox.timeout.0);
            let mut passes_all = true;
            for (number, size) in sizes.iter().enumerate() {
                let num_passed = if is_over() {
                    0
                } else {
                    self.count_passed("", &tests, number, limit).map_err(|error| fail(&error))?
                };
                if num_passed < *size {
                    passes_all = false;
                    break;
                }
            }
            if passes_all {
                let fault =
                    "an empty program passes, so they test nothing; call the test function, as in `check(f)`";
                faults.push((*prompt, fault.to_owned()));
            }
        }
        Ok(faults)
    }

    fn judge(&self, input: &RewardInput<'_>) -> RewardOutcome {
        let Some(truth) = &input.prompt.ground_truth else { return RewardOutcome::NoAnswer };
        let tests = match self.tests(truth) {
            Ok(tests) => tests,
            Err(failure) => return RewardOutcome::Failed(failure),
        };
        let Some(source) = answer::extract(input.completion, self.settings.extract) else {
            return RewardOutcome::verified(0.0, false);
        };
        let until = Instant::now() + self.settings.total_timeout.0;
        let sizes = tests.sizes();
        let (mut num_passed, total) = (0, sizes.iter().sum::<usize>());
        for (number, size) in sizes.into_iter().enumerate() {
            if self.listener.is_interrupted() {
                return RewardOutcome::Failed(RewardFailure::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.count_passed(&source, &tests, number, left.min(self.settings.sandbox.timeout.0)) {
                Ok(passed) => {
                    num_passed += passed;
                    if passed < size && !self.settings.partial {
                        break;
                    }
                }
                Err(error) => {
                    return RewardOutcome::Failed(RewardFailure::Function { message: error.to_string() });
                }
            }
        }
        let is_correct = num_passed == total;
        let share = if self.settings.partial {
            num_passed as f64 / total as f64
        } else {
            f64::from(u8::from(is_correct))
        };
        RewardOutcome::verified(share, is_correct)
    }

    /// Number of tests of one process that a program passes.
    fn count_passed(
        &self,
        source: &str,
        tests: &Tests,
        number: usize,
        timeout: Duration,
    ) -> Result<usize, SandboxError> {
        let tolerance = self.settings.tolerance;
        let job = Job {
            mode: Mode::Test,
            timeout,
            setup: "",
            source,
            stdin: "",
            files: None,
            late: None,
            max_report: REPORT_BYTES,
        };
        let reported = |job: &Job<'_>| -> Result<Option<Json>, SandboxError> {
            let execution = self.sandbox.execute(job)?;
            let is_over = execution.exit == Exit::Exited(0);
            Ok(if is_over { serde_json::from_slice(&execution.report).ok() } else { None })
        };
        let max_report = |expected: &Json| REPORT_BYTES + REPORT_BYTES_PER_BYTE * expected.to_string().len();
        match tests {
            Tests::Programs(cases) => {
                let (stdin, expected) = &cases[number];
                let execution = self.sandbox.execute(&Job { mode: Mode::Script, stdin, ..job })?;
                Ok(usize::from(
                    execution.exit == Exit::Exited(0)
                        && execution.is_stdout_whole
                        && compare::is_same_output(&execution.stdout, expected, tolerance),
                ))
            }
            Tests::Calls { function, setup, cases } => {
                let (arguments, expected) = &cases[number];
                let late = Some(json!({"function": function, "arguments": arguments}));
                let max_report = max_report(expected);
                let value = reported(&Job { mode: Mode::Call, setup, late, max_report, ..job })?;
                Ok(usize::from(
                    value.is_some_and(|value| compare::is_same_value(&value, expected, tolerance)),
                ))
            }
            Tests::Assertions { setup, scripts } => {
                let word = random_word();
                let steps: Vec<Json> = scripts[number].iter().map(Step::without_expected).collect();
                let checked = scripts[number].iter().filter(|step| step.run.is_none());
                let expected: Vec<Json> = checked
                    .map(|step| if step.test.is_some() { json!(word) } else { step.expected.clone() })
                    .collect();
                let max_report = max_report(&json!(expected));
                let late = Some(json!({"steps": steps, "token": word}));
                let values = match reported(&Job { setup, late, max_report, ..job })? {
                    Some(Json::Array(values)) if values.len() == expected.len() => values,
                    _ => return Ok(0),
                };
                Ok(values.iter().zip(&expected).filter(|(value, expected)| value == expected).count())
            }
        }
    }
}

impl Step {
    /// The part of a test that its process may know.
    fn without_expected(&self) -> Json {
        match (&self.run, &self.test) {
            (Some(code), _) => json!({"run": code}),
            (None, Some(code)) => json!({"test": code}),
            (None, None) => json!({"expression": self.expression}),
        }
    }
}

/// A sample of many items, spread evenly.
fn some_of<T>(items: &[T], most: usize) -> impl Iterator<Item = &T> {
    items.iter().step_by(items.len().div_ceil(most).max(1))
}

/// A word that cannot be guessed. It only shows that a test was passed, so scores do not depend on it.
fn random_word() -> String {
    let number = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", number(), number())
}

impl RewardFunction for CodeReward {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let row = next.fetch_add(1, Ordering::Relaxed);
                let Some(input) = batch.get(row) else { return done };
                let outcome = if self.listener.is_interrupted() {
                    RewardOutcome::Failed(RewardFailure::Interrupted)
                } else {
                    self.judge(input)
                };
                done.push((row, outcome));
            }
        };
        let num_workers = self.settings.num_processes.clamp(1, batch.len().max(1));
        let mut outcomes = vec![RewardOutcome::NoAnswer; batch.len()];
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..num_workers).map(|_| scope.spawn(work)).collect();
            let own = work();
            let others = workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default());
            for (row, outcome) in own.into_iter().chain(others) {
                outcomes[row] = outcome;
            }
        });
        for warning in self.sandbox.take_warnings() {
            self.listener.warn(&format!("the sandbox of a `code` reward: {warning}"));
        }
        outcomes
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        let program = |input: &RewardInput<'_>| {
            answer::extract(input.completion, self.settings.extract).unwrap_or_default()
        };
        Some(batch.iter().map(program).collect())
    }

    fn concurrency(&self) -> usize {
        self.settings.num_processes
    }

    /// The dataset's own program, from the columns `solution`, `solutions` (the first), `canonical_solution`
    /// (also appended to the prompt, as in HumanEval), `code` and `answer`.
    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        if prompt.ground_truth.is_none() {
            return Vec::new();
        }
        let column = |name: &str| match prompt.columns.get(name) {
            Some(Json::String(text)) => Some(text.clone()),
            Some(Json::Array(items)) => items.first()?.as_str().map(str::to_owned),
            _ => None,
        };
        let mut programs = Vec::new();
        for name in ["solution", "solutions", "canonical_solution", "code", "answer"] {
            let Some(program) = column(name) else { continue };
            if name == "canonical_solution"
                && let Some(beginning) = column("prompt")
            {
                programs.push(beginning + &program);
            }
            programs.push(program);
        }
        programs.into_iter().map(|program| answer::write(&program, self.settings.extract)).collect()
    }
}

#[cfg(test)]
mod tests;
