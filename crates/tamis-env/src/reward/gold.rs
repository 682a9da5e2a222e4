//! Does every verifier accept the dataset's own answers? Asked before anything is generated.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use tamis_core::figure::shortest;
use tamis_data::prompt::Prompt;

use super::combine::excerpt;
use super::{Listener, Nobody, Outcome, RewardError, RewardInput, Rewards};

/// Rejected answers that are kept as examples, for each function.
const NUM_EXAMPLES: usize = 3;

/// Prompts of the first block, which finds the form that a function expects.
const FIRST_BLOCK: usize = 64;

/// Prompts of a later block, scored in one call.
const BLOCK: usize = 1024;

/// How often a check that takes long says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// A gold answer that its verifier rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldExample {
    /// The prompt's id.
    pub prompt: u64,
    /// Its ground truth.
    pub ground_truth: String,
    /// The completion that said it.
    pub completion: String,
    /// What the function said.
    pub answer: String,
}

/// One function on all gold answers: `checked = accepted + rejected + unanswered + failed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionGold {
    /// The function's name.
    pub name: String,
    /// Prompts with a ground truth.
    pub checked: usize,
    /// `acc` at least 1 or, without an `acc`, `score` above 0.
    pub accepted: usize,
    /// Scored, but not accepted in any of the forms tried.
    pub rejected: usize,
    /// No answer in any form.
    pub unanswered: usize,
    /// The function failed in every form.
    pub failed: usize,
    /// The first that were not accepted.
    pub examples: Vec<GoldExample>,
}

/// What [`check_gold`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldReport {
    /// Functions that know what a right answer is, in order.
    pub functions: Vec<FunctionGold>,
    /// Prompts without a ground truth; they are not checked.
    pub without_ground_truth: usize,
    /// Names of all numbers seen or announced: what a filter's metric can be.
    pub score_names: BTreeSet<String>,
}

impl GoldReport {
    /// Whether every gold answer that was checked was accepted.
    pub fn is_clean(&self) -> bool {
        self.functions.iter().all(|function| function.accepted == function.checked)
    }
}

impl fmt::Display for GoldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for function in &self.functions {
            let FunctionGold { name, checked, accepted, rejected, unanswered, failed, examples } = function;
            if accepted == checked {
                writeln!(f, "reward `{name}` accepts all {checked} gold answers")?;
                continue;
            }
            write!(f, "reward `{name}` accepts {accepted} of {checked} gold answers ({rejected} rejected")?;
            writeln!(f, ", {unanswered} without an answer, {failed} failed)")?;
            for GoldExample { prompt, ground_truth, completion, answer } in examples {
                let truth = excerpt(ground_truth);
                writeln!(
                    f,
                    "  prompt {prompt}, ground truth `{truth}`: `{}` gave {answer}",
                    excerpt(completion)
                )?;
            }
        }
        if self.without_ground_truth > 0 {
            writeln!(f, "{} prompts have no ground truth and were not checked", self.without_ground_truth)?;
        }
        Ok(())
    }
}

/// Scores the ground truth of every prompt with every function that has a notion of a right answer, in the forms that
/// [`super::RewardFunction::gold_completions`] names, until one is accepted. Fails only where a function broke down for good.
pub fn check_gold(prompts: &[Prompt], rewards: &Rewards) -> Result<GoldReport, RewardError> {
    check_gold_heard(prompts, rewards, &Nobody)
}

/// [`check_gold`], told to a listener: what is asked of an external function before it is asked, how far a check is that takes long. Gives
/// up between two blocks of prompts (and an external function within one) with [`RewardError::Interrupted`] where the listener wants that.
pub fn check_gold_heard(
    prompts: &[Prompt],
    rewards: &Rewards,
    listener: &dyn Listener,
) -> Result<GoldReport, RewardError> {
    let with_truth: Vec<&Prompt> = prompts.iter().filter(|prompt| prompt.ground_truth.is_some()).collect();
    let mut score_names = rewards.score_names();
    let mut functions = Vec::new();
    for named in rewards.functions() {
        let candidates: Vec<Vec<String>> =
            with_truth.iter().map(|prompt| named.function.gold_completions(prompt)).collect();
        let asked: Vec<usize> = (0..with_truth.len()).filter(|&row| !candidates[row].is_empty()).collect();
        if asked.is_empty() {
            continue;
        }
        let checked = asked.len();
        let mut pace = Pace::begin(&named.name, checked, named.function.is_external(), listener);
        let mut said: Vec<Option<(usize, Outcome)>> = vec![None; with_truth.len()];
        let num_forms = candidates.iter().map(Vec::len).max().unwrap_or(0);
        // The form that was accepted most comes first in the next block: external functions are asked about once a prompt.
        let mut forms: Vec<(usize, usize)> = (0..num_forms).map(|form| (0, form)).collect();
        let (first, rest) = asked.split_at(checked.min(FIRST_BLOCK));
        for block in std::iter::once(first).chain(rest.chunks(BLOCK)) {
            if listener.is_interrupted() {
                return Err(RewardError::Interrupted);
            }
            let mut open = block.to_vec();
            for (num_accepted, form) in &mut forms {
                let form = *form;
                let rows: Vec<usize> =
                    open.iter().copied().filter(|&row| form < candidates[row].len()).collect();
                let inputs: Vec<RewardInput<'_>> = rows
                    .iter()
                    .map(|&row| RewardInput::text(with_truth[row], &candidates[row][form]))
                    .collect();
                if inputs.is_empty() {
                    continue;
                }
                for (row, outcome) in rows.into_iter().zip(named.function.score(&inputs)) {
                    match &outcome {
                        Outcome::Failed(failure) if failure.is_fatal() => {
                            return Err(RewardError::fatal(&named.name, failure));
                        }
                        Outcome::Scored(scores) => score_names.extend(scores.keys().cloned()),
                        Outcome::NoAnswer | Outcome::Failed(_) => {}
                    }
                    *num_accepted += usize::from(is_accepted(&outcome));
                    // What one form said is not hidden by another that said less.
                    if said[row].as_ref().is_none_or(|(_, before)| rank(&outcome) > rank(before)) {
                        said[row] = Some((form, outcome));
                    }
                }
                open.retain(|&row| !said[row].as_ref().is_some_and(|(_, outcome)| is_accepted(outcome)));
            }
            forms.sort_by_key(|&(num_accepted, form)| (std::cmp::Reverse(num_accepted), form));
            pace.advance(block.len());
        }
        let is_open = |row: &usize| !said[*row].as_ref().is_some_and(|(_, outcome)| is_accepted(outcome));
        let open: Vec<usize> = asked.into_iter().filter(is_open).collect();
        let mut function = FunctionGold {
            name: named.name.clone(),
            checked,
            accepted: checked - open.len(),
            rejected: 0,
            unanswered: 0,
            failed: 0,
            examples: Vec::new(),
        };
        for &row in &open {
            let (form, answer) = match &said[row] {
                Some((form, Outcome::Scored(scores))) => {
                    function.rejected += 1;
                    let numbers: Vec<String> = scores
                        .iter()
                        .map(|(name, score)| format!("{name} {}", shortest(score.value)))
                        .collect();
                    (*form, numbers.join(", "))
                }
                Some((form, Outcome::Failed(failure))) => {
                    function.failed += 1;
                    (*form, format!("a failure: {failure}"))
                }
                Some((form, Outcome::NoAnswer)) => {
                    function.unanswered += 1;
                    (*form, "no answer".to_owned())
                }
                None => {
                    function.unanswered += 1;
                    (0, "no answer".to_owned())
                }
            };
            if function.examples.len() < NUM_EXAMPLES {
                function.examples.push(GoldExample {
                    prompt: with_truth[row].id.0,
                    ground_truth: with_truth[row].ground_truth.clone().unwrap_or_default(),
                    completion: candidates[row].get(form).cloned().unwrap_or_default(),
                    answer,
                });
            }
        }
        functions.push(function);
    }
    Ok(GoldReport { functions, without_ground_truth: prompts.len() - with_truth.len(), score_names })
}

/// Says how far a long check is.
struct Pace<'a> {
    name: &'a str,
    done: usize,
    total: usize,
    told: Instant,
    listener: &'a dyn Listener,
}

impl<'a> Pace<'a> {
    fn begin(name: &'a str, total: usize, is_external: bool, listener: &'a dyn Listener) -> Self {
        if is_external {
            listener.say(&format!("checking {total} gold answers with reward `{name}`"));
        }
        Self { name, done: 0, total, told: Instant::now(), listener }
    }

    fn advance(&mut self, by: usize) {
        self.done += by;
        if self.told.elapsed() >= TELL_EVERY && self.done < self.total {
            self.told = Instant::now();
            let Self { name, done, total, .. } = self;
            self.listener.say(&format!("reward `{name}`: {done} of {total} gold answers checked"));
        }
    }
}

fn rank(outcome: &Outcome) -> u8 {
    match outcome {
        outcome if is_accepted(outcome) => 3,
        Outcome::Scored(_) => 2,
        Outcome::NoAnswer => 1,
        Outcome::Failed(_) => 0,
    }
}

fn is_accepted(outcome: &Outcome) -> bool {
    match outcome.get("acc") {
        Some(acc) => acc >= 1.0,
        None => outcome.get("score").is_some_and(|score| score > 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::exact::Exact;
    use crate::reward::gsm8k::{Gsm8k, Method};
    use crate::reward::length::Length;
    use crate::reward::math::Math;
    use crate::reward::math_dapo::MathDapo;
    use crate::reward::number::Number;
    use crate::reward::{NamedReward, RewardFailure, RewardFunction, test_prompt};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn rewards(functions: Vec<(&str, Box<dyn RewardFunction>)>) -> Rewards {
        let named = functions.into_iter().map(|(name, function)| NamedReward {
            name: name.to_owned(),
            weight: 1.0,
            function,
        });
        Rewards::new(named.collect()).unwrap()
    }

    #[test]
    fn built_in_verifiers_accept_their_gold() {
        let prompts: Vec<Prompt> = ["72", "-3", "0.5"].map(test_prompt).into();
        let report = check_gold(
            &prompts,
            &rewards(vec![
                ("exact", Box::new(Exact)),
                ("number", Box::new(Number)),
                ("strict", Box::new(Gsm8k { method: Method::Strict, format_score: 0.0 })),
                ("flexible", Box::new(Gsm8k { method: Method::Flexible, format_score: 0.0 })),
                ("math", Box::new(Math)),
                ("dapo", Box::new(MathDapo { strict_box: false })),
                ("dapo_box", Box::new(MathDapo { strict_box: true })),
                ("length", Box::new(Length::new(0, 1, 1).unwrap())),
            ]),
        )
        .unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.functions.len(), 7, "shaping has no notion of a right answer");
    }

    #[test]
    fn a_verifier_that_rejects_its_gold_is_reported() {
        let mut prompts: Vec<Prompt> = ["72", "seven apples", "1e3", "#### 1,000"].map(test_prompt).into();
        prompts.push(Prompt { ground_truth: None, ..test_prompt("") });
        let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
            ("gsm8k", Box::new(Gsm8k::default())),
            ("math", Box::new(Math)),
            ("number", Box::new(Number)),
        ];
        let report = check_gold(&prompts, &rewards(functions)).unwrap();
        assert!(!report.is_clean());
        insta::assert_snapshot!(report, @r"
reward `gsm8k` accepts 2 of 4 gold answers (2 rejected, 0 without an answer, 0 failed)
  prompt 0, ground truth `seven apples`: `#### seven apples` gave acc 0, score 0
  prompt 0, ground truth `1e3`: `#### 1e3` gave acc 0, score 0
reward `math` accepts 3 of 4 gold answers (0 rejected, 1 without an answer, 0 failed)
  prompt 0, ground truth `seven apples`: `\boxed{seven apples}` gave no answer
reward `number` accepts 1 of 4 gold answers (0 rejected, 3 without an answer, 0 failed)
  prompt 0, ground truth `seven apples`: `seven apples` gave no answer
  prompt 0, ground truth `1e3`: `1e3` gave no answer
  prompt 0, ground truth `#### 1,000`: `#### 1,000` gave no answer
1 prompts have no ground truth and were not checked
");
        insta::assert_snapshot!(report.score_names.iter().cloned().collect::<Vec<_>>().join(" "), @"acc gsm8k math math.acc number number.acc score");
    }

    /// Accepts `#### x` only, names a number of its own, counts how often it is asked, and fails on "bad".
    struct External(AtomicUsize);

    impl RewardFunction for External {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            self.0.fetch_add(batch.len(), Ordering::Relaxed);
            let judge = |input: &RewardInput<'_>| {
                if input.completion.contains("bad") {
                    let message = "bad".to_owned();
                    return Outcome::Failed(RewardFailure::Function { message });
                }
                let score = f64::from(u8::from(input.completion.starts_with("#### ")));
                let mut outcome = Outcome::score(score);
                if let Outcome::Scored(scores) = &mut outcome {
                    scores.insert("fluency".to_owned(), tamis_core::group::Score::of(0.5));
                }
                outcome
            };
            batch.iter().map(judge).collect()
        }

        fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
            prompt.ground_truth.iter().flat_map(|truth| [truth.clone(), format!("#### {truth}")]).collect()
        }
    }

    /// The same one after it was handed over, to look at its count.
    struct Shared(std::sync::Arc<External>);
    impl RewardFunction for Shared {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            self.0.score(batch)
        }
        fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
            self.0.gold_completions(prompt)
        }
    }

    #[test]
    fn the_expected_form_is_learnt() {
        let mut prompts: Vec<Prompt> = (0..2000).map(|number| test_prompt(&number.to_string())).collect();
        prompts.push(test_prompt("bad"));
        let external = std::sync::Arc::new(External(AtomicUsize::new(0)));
        let report =
            check_gold(&prompts, &rewards(vec![("external", Box::new(Shared(external.clone())))])).unwrap();
        assert_eq!((report.functions[0].accepted, report.functions[0].failed), (2000, 1));
        assert!(report.score_names.contains("fluency"));
        assert_eq!(external.0.load(Ordering::Relaxed), 2001 + FIRST_BLOCK + 1);
        insta::assert_snapshot!(report, @r"
reward `external` accepts 2000 of 2001 gold answers (0 rejected, 0 without an answer, 1 failed)
  prompt 0, ground truth `bad`: `#### bad` gave a failure: the function failed: bad
");
    }
}
