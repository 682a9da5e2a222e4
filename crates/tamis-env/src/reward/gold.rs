//! Does every verifier accept the dataset's own answers? Asked before anything is generated.

use std::collections::BTreeSet;
use std::fmt;

use tamis_data::prompt::Prompt;

use super::combine::excerpt;
use super::{Outcome, RewardError, RewardInput, Rewards};

/// Rejected answers that are kept as examples, for each function.
const NUM_EXAMPLES: usize = 3;

/// Completions scored in one call.
const BATCH: usize = 1024;

/// A gold answer that its verifier rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldExample {
    /// The prompt's id.
    pub prompt: u64,
    /// Its ground truth.
    pub ground_truth: String,
    /// The completion that was scored last.
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
    let with_truth: Vec<&Prompt> = prompts.iter().filter(|prompt| prompt.ground_truth.is_some()).collect();
    let mut score_names = rewards.score_names();
    let mut functions = Vec::new();
    for named in rewards.functions() {
        let candidates: Vec<Vec<String>> =
            with_truth.iter().map(|prompt| named.function.gold_completions(prompt)).collect();
        let mut open: Vec<usize> = (0..with_truth.len()).filter(|&row| !candidates[row].is_empty()).collect();
        if open.is_empty() {
            continue;
        }
        let checked = open.len();
        let mut last: Vec<Option<Outcome>> = vec![None; with_truth.len()];
        let mut form = 0;
        loop {
            let asked: Vec<usize> =
                open.iter().copied().filter(|&row| candidates[row].len() > form).collect();
            if asked.is_empty() {
                break;
            }
            for rows in asked.chunks(BATCH) {
                let inputs: Vec<RewardInput<'_>> = rows
                    .iter()
                    .map(|&row| RewardInput::text(with_truth[row], &candidates[row][form]))
                    .collect();
                for (&row, outcome) in rows.iter().zip(named.function.score(&inputs)) {
                    if let Outcome::Failed(failure) = &outcome
                        && failure.is_fatal()
                    {
                        let failure = failure.clone();
                        return Err(RewardError::BrokenDown { name: named.name.clone(), failure });
                    }
                    if let Outcome::Scored(scores) = &outcome {
                        score_names.extend(scores.keys().cloned());
                    }
                    // A later form must not hide what an earlier one said: a score outweighs no answer, no answer a failure.
                    if last[row].as_ref().is_none_or(|before| rank(&outcome) >= rank(before)) {
                        last[row] = Some(outcome);
                    }
                }
            }
            open.retain(|&row| !last[row].as_ref().is_some_and(is_accepted));
            form += 1;
        }
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
            let answer = match &last[row] {
                Some(Outcome::Scored(scores)) => {
                    function.rejected += 1;
                    let numbers: Vec<String> =
                        scores.iter().map(|(name, score)| format!("{name} {}", score.value)).collect();
                    numbers.join(", ")
                }
                Some(Outcome::Failed(failure)) => {
                    function.failed += 1;
                    format!("a failure: {failure}")
                }
                Some(Outcome::NoAnswer) | None => {
                    function.unanswered += 1;
                    "no answer".to_owned()
                }
            };
            if function.examples.len() < NUM_EXAMPLES {
                function.examples.push(GoldExample {
                    prompt: with_truth[row].id.0,
                    ground_truth: with_truth[row].ground_truth.clone().unwrap_or_default(),
                    completion: candidates[row].last().cloned().unwrap_or_default(),
                    answer,
                });
            }
        }
        functions.push(function);
    }
    Ok(GoldReport { functions, without_ground_truth: prompts.len() - with_truth.len(), score_names })
}

fn rank(outcome: &Outcome) -> u8 {
    match outcome {
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
