//! `code`: unit tests of the program in a completion, run in a [`Sandbox`].
//!
//! The completion's program is taken out of its code block ([`CodeExtract`]), the tests out of the ground
//! truth (JSON text or test code). Each test is an execution of its own in a fresh process. What a test
//! expects stays outside wherever it can:
//!
//! | form | the program's process gets | compared |
//! |---|---|---|
//! | standard input and output | the input | its output, here |
//! | a function's arguments and value | the arguments, after the program has been run | the value as plain data, here |
//! | `assert f(1) == 2`: one side plain data | the other side, after the program has been run | the value, here |
//! | any other test code | the test and a random word, after the program has been run | the word, which the process reports after the test |
//!
//! So printing results, `sys.exit(0)`, a redefined `assert` helper, an object that equals everything and a
//! search for expected values gain nothing in the first three. In the last form a program that searches its
//! own process for the word, or waits for the test to call it and answers with what is equal to everything,
//! passes.
//!
//! A program that fails, hangs or dies scores 0. Only where the sandbox itself fails, twice in a row, is
//! there no score.

mod answer;
mod compare;
mod truth;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
use super::settings::{BuildError, RewardContext, RewardFile, RewardSettings};
use crate::sandbox::{Exit, Job, Mode, Sandbox, SandboxError, SandboxSettings};

/// Ground truths whose tests are kept taken apart.
const NUM_KEPT: usize = 4096;

tamis_core::settings! {
    /// Tests of generated code. `score` is 1 where all pass and 0 otherwise (`partial: true`: the share that
    /// passes);
    /// `acc` is 1 or 0. No answer where the prompt has no ground truth.
    pub struct CodeSettings {
        /// Place of the program in a completion.
        extract: CodeExtract = CodeExtract::Fenced;
        /// Score the share of tests that pass; `false`: all or nothing, and the first failure ends the tests.
        partial: bool = false;
        /// Longest time of all tests of one completion; those that are left then have failed. `timeout` is
        /// that of one.
        total_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Largest difference of two numbers with a fraction that count as equal, in outputs and values of
        /// functions, absolute or relative to the one expected. Assertions compare as Python does.
        tolerance: f64 = 1e-6, NonNegative;
        /// Number of completions that are tested at the same time.
        num_processes: usize = 2, Between(1.0, 1024.0), Free;
        ..sandbox: SandboxSettings;
    }
}

impl RewardSettings for CodeSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let faults: Vec<(&Prompt, String)> = context
            .prompts()
            .filter_map(|prompt| Some((prompt, Truth::read(prompt.ground_truth.as_deref()?).err()?)))
            .collect();
        if let Some((prompt, fault)) = faults.first() {
            let message = format!(
                "the tests of {} rows cannot be read, as of prompt {} (`{}`): {fault}",
                faults.len(),
                prompt.id.0,
                excerpt(prompt.ground_truth.as_deref().unwrap_or_default())
            );
            return Err(context.fail(&message, "docs/tools.md shows the forms of a ground truth"));
        }
        let sandbox = Sandbox::new(&self.sandbox).map_err(|error| {
            let hint = match &error {
                SandboxError::Unprotected { .. } => {
                    "run it on a machine with more, or set `required: none` where you trust the code"
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
        Ok(Box::new(CodeReward {
            settings: self.clone(),
            sandbox,
            listener: Arc::clone(context.listener),
            kept: Mutex::default(),
        }))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    /// Scores depend on time limits, so they are journalled as those of a program are.
    fn is_external(&self) -> bool {
        true
    }

    fn check(&self, _context: &RewardContext<'_>) -> Result<(), BuildError> {
        Ok(())
    }

    fn files(&self) -> Vec<RewardFile> {
        let path = self.sandbox.python.0.clone();
        vec![RewardFile { key: "python".to_owned(), path, hint: None }]
    }
}

/// One test as the harness takes it apart.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Assertion {
    setup: String,
    /// Test code; `None` where an expression is compared.
    #[serde(default)]
    test: Option<String>,
    #[serde(default)]
    expression: String,
    #[serde(default)]
    expected: Json,
}

/// The tests of a ground truth.
enum Tests {
    Programs(Vec<(String, String)>),
    Calls { function: String, setup: String, cases: Vec<(Vec<Json>, Json)> },
    Assertions { setup: String, tests: Vec<Assertion> },
}

impl Tests {
    fn len(&self) -> usize {
        match self {
            Self::Programs(cases) => cases.len(),
            Self::Calls { cases, .. } => cases.len(),
            Self::Assertions { tests, .. } => tests.len(),
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
    /// The tests of a ground truth.
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
                let job = Job {
                    mode: Mode::Split,
                    // It runs no code of anybody.
                    timeout: Duration::from_secs(60),
                    setup: "",
                    source: "",
                    stdin: "",
                    files: None,
                    late: Some(json!(tests)),
                };
                let split = self.sandbox.execute(&job).map_err(|error| unusable(error.to_string()))?;
                let tests = serde_json::from_slice(&split.report)
                    .map_err(|_| unusable(format!("the tests cannot be used: {}", split.stderr.trim())))?;
                Tests::Assertions { setup, tests }
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
        let (mut num_passed, total) = (0, tests.len());
        for number in 0..total {
            if self.listener.is_interrupted() {
                return RewardOutcome::Failed(RewardFailure::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.passes(&source, &tests, number, left.min(self.settings.sandbox.timeout.0)) {
                Ok(true) => num_passed += 1,
                Ok(false) if self.settings.partial => {}
                Ok(false) => break,
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

    /// Whether a program passes one test.
    fn passes(
        &self,
        source: &str,
        tests: &Tests,
        number: usize,
        timeout: Duration,
    ) -> Result<bool, SandboxError> {
        let tolerance = self.settings.tolerance;
        let job = Job { mode: Mode::Test, timeout, setup: "", source, stdin: "", files: None, late: None };
        let reported = |job: &Job<'_>| -> Result<Option<Json>, SandboxError> {
            let execution = self.sandbox.execute(job)?;
            let is_over = execution.exit == Exit::Exited(0);
            Ok(if is_over { serde_json::from_slice(&execution.report).ok() } else { None })
        };
        match tests {
            Tests::Programs(cases) => {
                let (stdin, expected) = &cases[number];
                let execution = self.sandbox.execute(&Job { mode: Mode::Script, stdin, ..job })?;
                Ok(execution.exit == Exit::Exited(0)
                    && execution.truncated == 0
                    && compare::is_same_output(&execution.stdout, expected, tolerance))
            }
            Tests::Calls { function, setup, cases } => {
                let (arguments, expected) = &cases[number];
                let late = json!({"function": function, "arguments": arguments});
                let value = reported(&Job { mode: Mode::Call, setup, late: Some(late), ..job })?;
                Ok(value.is_some_and(|value| compare::is_same_value(&value, expected, tolerance)))
            }
            Tests::Assertions { setup, tests } => {
                let Assertion { setup: first, test, expression, expected } = &tests[number];
                let word = random_word();
                let (late, expected) = match test {
                    Some(test) => (json!({"setup": first, "test": test, "token": word}), json!(word)),
                    None => (json!({"setup": first, "expression": expression}), expected.clone()),
                };
                let value = reported(&Job { setup, late: Some(late), ..job })?;
                // What is not plain data is equal to nothing.
                let is_data = !expected.as_str().is_some_and(|text| text.starts_with('?'));
                Ok(is_data && value.is_some_and(|value| value == expected))
            }
        }
    }
}

/// A word that cannot be guessed. It decides nothing but whether a test was passed, so that scores stay the
/// same.
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
        outcomes
    }

    fn is_external(&self) -> bool {
        true
    }

    fn extra_names(&self) -> &[&str] {
        &["acc"]
    }

    fn concurrency(&self) -> usize {
        self.settings.num_processes
    }

    /// The dataset's own program: of the columns `solution`, `solutions` (the first), `canonical_solution`
    /// (also behind the prompt, as in HumanEval), `code` and `answer`.
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
