//! The weighted sum of named reward functions.

use std::collections::{BTreeMap, BTreeSet};

use tamis_core::group::Score;
use tamis_data::prompt::{Prompt, PromptContent};

use super::{Outcome, RewardError, RewardFailure, RewardFunction, RewardInput, Scores};

/// Names that mean something else wherever scores are shown or filtered on.
const RESERVED: [&str; 6] =
    ["score", "acc", "reward", "seq_reward", "seq_final_reward", "token_level_rewards"];

/// Longest excerpt of a prompt or completion in a warning, in characters.
const EXCERPT_CHARS: usize = 200;

/// A function under a name and a weight.
pub struct NamedReward {
    /// Under which its score is stored and logged.
    pub name: String,
    /// Its factor in the sum; 0 scores without training on it.
    pub weight: f64,
    /// The function.
    pub function: Box<dyn RewardFunction>,
}

/// All scores of one completion.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// By name:
    /// - each function's `score` under the function's name, NaN where it had no answer;
    /// - each further number (`acc`, ...) under its own name where no function before it gave that name, else under `function.name`;
    /// - `score`: the weighted sum of the functions that are no shaping, NaN where none of those answered (of all functions, where all
    ///   are shaping).
    pub scores: Scores,
    /// Weighted sum over the functions that answered; NaN where none did. Carries numbers per token (or per turn) where a function with a
    /// weight other than 0 gave them; what others gave for the whole completion stands at the last token (turn).
    pub reward: Score,
}

/// What scoring a batch gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Scoring {
    /// One for each input, in order.
    pub rows: Vec<Scored>,
    /// What a person should know: functions that failed, completions that nothing scored; each with the content of the first such row.
    pub warnings: Vec<String>,
}

/// The reward functions of a run.
pub struct Rewards {
    functions: Vec<NamedReward>,
}

impl Rewards {
    /// Checks names (not empty, different, none of `score`, `acc`, `reward`, `seq_reward`, `seq_final_reward`, `token_level_rewards`)
    /// and weights (finite).
    pub fn new(functions: Vec<NamedReward>) -> Result<Self, RewardError> {
        if functions.is_empty() {
            return Err(RewardError::NoFunction);
        }
        let mut names = BTreeSet::new();
        for NamedReward { name, weight, .. } in &functions {
            let fail = |reason| Err(RewardError::Name { name: name.clone(), reason });
            if name.is_empty() {
                return fail("is empty");
            }
            if RESERVED.contains(&name.as_str()) {
                return fail("is taken by a number that tamis computes; choose another");
            }
            if !names.insert(name) {
                return fail("is used twice");
            }
            if !weight.is_finite() {
                return Err(RewardError::Weight { name: name.clone(), weight: *weight });
            }
        }
        Ok(Self { functions })
    }

    /// The functions, in order.
    pub fn functions(&self) -> &[NamedReward] {
        &self.functions
    }

    /// Names of shaping functions with a weight: a filter on `seq_reward` looks at them too.
    pub fn shaping_names(&self) -> Vec<&str> {
        let is_shaping = |named: &&NamedReward| named.function.is_shaping() && named.weight != 0.0;
        self.functions.iter().filter(is_shaping).map(|named| named.name.as_str()).collect()
    }

    /// Names of the numbers that a completion will have, as far as they are known before any is scored. [`super::gold::check_gold`] finds
    /// those of external functions.
    pub fn score_names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::from(["score".to_owned()]);
        for named in &self.functions {
            names.insert(named.name.clone());
            for extra in named.function.extra_names() {
                let key = self.place(&named.name, extra, |key| names.contains(key));
                names.insert(key);
            }
        }
        names
    }

    /// The name under which a function's further number is stored.
    fn place(&self, function: &str, extra: &str, is_taken: impl Fn(&str) -> bool) -> String {
        let is_reserved = RESERVED.contains(&extra) && extra != "acc";
        if is_reserved || is_taken(extra) || self.functions.iter().any(|named| named.name == extra) {
            format!("{function}.{extra}")
        } else {
            extra.to_owned()
        }
    }

    /// Scores a batch. Fails only where a function broke down for good; a failure on single completions is a warning.
    pub fn score(&self, batch: &[RewardInput<'_>]) -> Result<Scoring, RewardError> {
        let mut outcomes = Vec::with_capacity(self.functions.len());
        let mut warnings = Vec::new();
        for named in &self.functions {
            let checked = checked(named.function.score(batch), batch);
            let failures = checked.iter().zip(batch).filter_map(|(outcome, input)| match outcome {
                Outcome::Failed(failure) => Some((failure, input)),
                _ => None,
            });
            let failures: Vec<_> = failures.collect();
            if let Some((failure, _)) = failures.iter().find(|(failure, _)| failure.is_fatal()) {
                return Err(RewardError::BrokenDown {
                    name: named.name.clone(),
                    failure: (*failure).clone(),
                });
            }
            if let Some((failure, input)) = failures.first() {
                warnings.push(format!(
                    "reward function `{}` failed on {} of {} completions and gives them no score; the first: {failure}\n{}",
                    named.name,
                    failures.len(),
                    batch.len(),
                    describe(input),
                ));
            }
            outcomes.push(checked);
        }
        let rows: Vec<Scored> = batch
            .iter()
            .enumerate()
            .map(|(row, input)| self.combine(outcomes.iter().filter_map(|column| column.get(row)), input))
            .collect();
        let unscored: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].reward.value.is_nan()).collect();
        if let Some(&first) = unscored.first() {
            warnings.push(format!(
                "no reward function answered {} of {} completions; they stay unscored; the first:\n{}",
                unscored.len(),
                batch.len(),
                describe(&batch[first]),
            ));
        }
        Ok(Scoring { rows, warnings })
    }

    fn combine<'o>(&self, outcomes: impl Iterator<Item = &'o Outcome>, input: &RewardInput<'_>) -> Scored {
        let all_shaping = self.functions.iter().all(|named| named.function.is_shaping());
        let mut scores = Scores::new();
        let mut answered = Vec::with_capacity(self.functions.len());
        let mut raw = f64::NAN;
        for (named, outcome) in self.functions.iter().zip(outcomes) {
            let Outcome::Scored(given) = outcome else {
                scores.insert(named.name.clone(), Score::unanswered());
                continue;
            };
            for (extra, number) in given {
                if extra == "score" {
                    answered.push((named.weight, number));
                    if all_shaping || !named.function.is_shaping() {
                        raw = if raw.is_nan() { 0.0 } else { raw } + named.weight * number.value;
                    }
                    scores.insert(named.name.clone(), number.clone());
                } else {
                    let key = self.place(&named.name, extra, |key| scores.contains_key(key));
                    scores.insert(key, number.clone());
                }
            }
        }
        scores.insert("score".to_owned(), Score::of(raw));
        Scored { scores, reward: weighted_sum(&answered, input.completion_ids.len()) }
    }
}

/// Replaces what breaks the contract of [`Outcome::Scored`]: NaN is no answer, infinities and wrong lengths are failures.
fn checked(mut outcomes: Vec<Outcome>, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
    let expected = batch.len();
    if outcomes.len() != expected {
        let failure = RewardFailure::Shape {
            what: "answers".to_owned(),
            expected: format!("{expected} for {expected} completions"),
            actual: outcomes.len().to_string(),
        };
        return vec![Outcome::Failed(failure); expected];
    }
    for (outcome, input) in outcomes.iter_mut().zip(batch) {
        if let Outcome::Scored(scores) = outcome {
            match check_scores(scores, input.completion_ids.len()) {
                Ok(true) => {}
                Ok(false) => *outcome = Outcome::NoAnswer,
                Err(failure) => *outcome = Outcome::Failed(failure),
            }
        }
    }
    outcomes
}

/// Whether `score` is a number; further numbers that are NaN are removed.
fn check_scores(scores: &mut Scores, num_tokens: usize) -> Result<bool, RewardFailure> {
    for (name, score) in scores.iter() {
        let parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
        if let Some(value) = std::iter::once(&score.value).chain(parts).find(|value| value.is_infinite()) {
            return Err(RewardFailure::NotFinite { name: name.clone(), value: value.to_string() });
        }
        if let Some(per_token) = &score.per_token
            && per_token.len() != num_tokens
        {
            return Err(RewardFailure::Shape {
                what: format!("score `{name}` per token"),
                expected: format!("{num_tokens} numbers, one for each completion token"),
                actual: per_token.len().to_string(),
            });
        }
    }
    scores.retain(|_, score| {
        let parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
        !std::iter::once(&score.value).chain(parts).any(|value| value.is_nan())
    });
    Ok(scores.contains_key("score"))
}

fn weighted_sum(answered: &[(f64, &Score)], num_tokens: usize) -> Score {
    if answered.is_empty() {
        return Score::unanswered();
    }
    let value = answered.iter().map(|(weight, score)| weight * score.value).sum();
    let weighted = || answered.iter().filter(|(weight, _)| *weight != 0.0);
    let num_turns = weighted().filter_map(|(_, score)| score.per_turn.as_ref().map(Vec::len)).max();
    let has_tokens = weighted().any(|(_, score)| score.per_token.is_some());
    let spread = |length: usize, parts_of: fn(&Score) -> Option<&Vec<f64>>| {
        let mut total = vec![0.0; length];
        for (weight, score) in answered {
            match parts_of(score) {
                Some(parts) => total.iter_mut().zip(parts).for_each(|(sum, part)| *sum += weight * part),
                None => total.iter_mut().rev().take(1).for_each(|sum| *sum += weight * score.value),
            }
        }
        total
    };
    Score {
        value,
        per_token: has_tokens.then(|| spread(num_tokens, |score| score.per_token.as_ref())),
        per_turn: num_turns.map(|length| spread(length, |score| score.per_turn.as_ref())),
    }
}

/// The content of a row, shortened, for a warning.
pub(crate) fn describe(input: &RewardInput<'_>) -> String {
    let Prompt { id, content, ground_truth, data_source, .. } = input.prompt;
    let prompt = match content {
        PromptContent::Text(text) => excerpt(text),
        PromptContent::Messages(messages) => excerpt(messages.last().map_or("", |message| &message.content)),
    };
    let truth =
        ground_truth.as_deref().map_or_else(|| "none".to_owned(), |truth| format!("`{}`", excerpt(truth)));
    format!(
        "  prompt {}: `{prompt}`\n  completion: `{}`\n  ground truth: {truth}, data source: `{data_source}`",
        id.0,
        excerpt(input.completion),
    )
}

/// At most [`EXCERPT_CHARS`] characters on one line.
pub(crate) fn excerpt(text: &str) -> String {
    let mut shortened: String = text.chars().take(EXCERPT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        shortened.push('…');
    }
    shortened.replace("\\\"", "\"").replace("\\'", "'").replace("\\\\", "\\")
}

/// Totals by name over rows, NaN left out: (sum, count). For logs.
pub fn totals(rows: &[Scored]) -> BTreeMap<&str, (f64, usize)> {
    let mut totals: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (name, score) in rows.iter().flat_map(|row| &row.scores).filter(|(_, score)| !score.value.is_nan()) {
        let (sum, count) = totals.entry(name).or_default();
        *sum += score.value;
        *count += 1;
    }
    totals
}
