//! The weighted sum of named reward functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tamis_core::figure::counted;

use tamis_core::fault;
use tamis_core::group::{RESERVED_SCORES, Score};
use tamis_core::printable::one_line;
use tamis_data::prompt::{Prompt, PromptContent};

use super::error::RewardError;
use super::failure::LARGEST_SCORE;
use super::failure::RewardFailure;
use super::function::{Logged, RewardFunction, RewardInput, RewardOutcome, Scores, TrainerState};
use super::settings::Nature;

/// Most columns of a row in a warning.
const MAX_COLUMNS: usize = 30;

/// Longest excerpt of a prompt or completion in a warning, in characters.
const EXCERPT_CHARS: usize = 200;

/// A function with a name and a weight.
pub struct NamedReward {
    /// Name under which its score is stored and logged.
    pub name: String,
    /// Factor of the score in the sum; 0: reported, but not trained on.
    pub weight: f64,
    /// Meaning and source of its score.
    pub nature: Nature,
    /// The function.
    pub function: Box<dyn RewardFunction>,
}

impl NamedReward {
    /// A verifier of tamis, with weight 1.
    pub fn verifier(name: &str, function: Box<dyn RewardFunction>) -> Self {
        Self { name: name.to_owned(), weight: 1.0, nature: Nature::VERIFIER, function }
    }
}

/// All scores of one completion.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// By name:
    /// - each function's `score` under the function's name, NaN if it had no answer;
    /// - each further number (`acc`, ...) under its own name, or under `function.name` if an earlier function
    ///   has that name;
    /// - `score`: the weighted sum of the functions that are no shaping (of all functions, if all are
    ///   shaping), NaN if none of these answered.
    pub scores: Scores,
    /// Weighted sum over the functions that answered; NaN if none did. Numbers per token or per turn stay
    /// with the scores of their functions, for estimators that use tokens.
    pub reward: Score,
    /// Message of each function that failed on the completion, by the function's name.
    pub failures: BTreeMap<String, String>,
    /// Extra values that the functions logged besides their scores.
    pub logged: Logged,
    /// Whether it stays unscored because its weighted sum is out of range.
    pub is_beyond: bool,
}

/// Result of scoring a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Scoring {
    /// One for each input, in order.
    pub rows: Vec<Scored>,
    /// Duration of each function, in their order.
    pub times: Vec<(String, Duration)>,
}

/// The reward functions of a run.
pub struct Rewards {
    functions: Vec<NamedReward>,
    trainer_state: TrainerState,
}

impl Rewards {
    /// Checks names (not empty, different, none of [`RESERVED_SCORES`]) and weights (finite).
    pub fn new(functions: Vec<NamedReward>) -> Result<Self, RewardError> {
        if functions.is_empty() {
            return Err(fault!("a run needs at least one reward function").into());
        }
        let mut names = BTreeSet::new();
        for NamedReward { name, weight, .. } in &functions {
            let fail = |reason: &str| Err(fault!("reward function name `{name}` {reason}").into());
            if name.is_empty() {
                return fail("is empty");
            }
            if RESERVED_SCORES.contains(&name.as_str()) {
                return fail("is taken by a number that tamis computes; choose another");
            }
            if !names.insert(name) {
                return fail("is used twice");
            }
            if !weight.is_finite() {
                return Err(fault!(
                    "weight of reward function `{name}` must be a finite number, got {weight}"
                )
                .into());
            }
        }
        Ok(Self { functions, trainer_state: TrainerState::default() })
    }

    /// Sets the progress of the training for functions that use it.
    pub fn set_trainer_state(&mut self, state: TrainerState) {
        self.trainer_state = state;
    }

    /// Progress of the training.
    pub fn trainer_state(&self) -> TrainerState {
        self.trainer_state
    }

    /// The functions, in order.
    pub fn functions(&self) -> &[NamedReward] {
        &self.functions
    }

    /// Functions that the reward is made of: those with a weight, or all if none has one.
    pub fn weighed_rewards(&self) -> impl Iterator<Item = &NamedReward> {
        let is_weighed = self.functions.iter().any(|named| named.weight != 0.0);
        self.functions.iter().filter(move |named| named.weight != 0.0 || !is_weighed)
    }

    /// How the first function that could report correctness (`acc`) can do so; `None` if none can.
    pub fn how_to_give_acc(&self) -> Option<&'static str> {
        self.functions.iter().find_map(|named| named.function.how_to_give_acc())
    }

    /// Names of a completion's numbers that are known before any is scored. [`super::gold::check_gold`] finds
    /// those of external functions.
    pub fn score_names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::from(["score".to_owned()]);
        for named in &self.functions {
            names.insert(named.name.clone());
            if named.nature.gives_acc {
                let key = self.place(&named.name, "acc", |key| names.contains(key));
                names.insert(key);
            }
        }
        names
    }

    /// The name under which a function's further number is stored.
    fn place(&self, function: &str, extra: &str, is_taken: impl Fn(&str) -> bool) -> String {
        let is_reserved = RESERVED_SCORES.contains(&extra) && extra != "acc";
        if is_reserved || is_taken(extra) || self.functions.iter().any(|named| named.name == extra) {
            format!("{function}.{extra}")
        } else {
            extra.to_owned()
        }
    }

    /// The answers of completions of one prompt, as votes ([`RewardFunction::votes`]): those of the first
    /// function that reads answers. For an external function they are the values that it returned as `pred`,
    /// or logged in a column of that name. `None` if no function reads answers.
    pub fn votes(&self, batch: &[RewardInput<'_>], preds: &[Option<String>]) -> Option<Vec<String>> {
        let has_preds = preds.iter().any(Option::is_some);
        let returned = || preds.iter().map(|pred| pred.clone().unwrap_or_default()).collect();
        self.functions.iter().find_map(|named| {
            if named.nature.is_external && has_preds {
                return Some(returned());
            }
            named.function.votes(batch)
        })
    }

    /// Scores a batch, or a part of one; [`Rewards::warnings`] then needs the whole batch. Fails only if a
    /// function broke down for good; a failure on single completions is a warning.
    pub fn answers(
        &self,
        batch: &[RewardInput<'_>],
        trainer_state: TrainerState,
    ) -> Result<Scoring, RewardError> {
        let mut outcomes = Vec::with_capacity(self.functions.len());
        let mut times = Vec::with_capacity(self.functions.len());
        let batch: Vec<RewardInput<'_>> =
            batch.iter().map(|input| RewardInput { trainer_state, ..*input }).collect();
        let batch = batch.as_slice();
        let mut logged = vec![Logged::default(); batch.len()];
        for named in &self.functions {
            let start = Instant::now();
            let (answers, own) = named.function.score_logged(batch);
            times.push((named.name.clone(), start.elapsed()));
            for (all, own) in logged.iter_mut().zip(own) {
                all.extend(&named.name, own);
            }
            let checked = check_outcomes(answers, batch);
            let is_fatal = |outcome: &&RewardOutcome| matches!(outcome, RewardOutcome::Failed(failure) if failure.is_fatal());
            if let Some(RewardOutcome::Failed(failure)) = checked.iter().find(is_fatal) {
                return Err(RewardError::fatal(&named.name, failure));
            }
            outcomes.push(checked);
        }
        let mut rows: Vec<Scored> = logged
            .into_iter()
            .enumerate()
            .map(|(row, logged)| Scored {
                logged,
                ..self.combine(outcomes.iter().filter_map(|column| column.get(row)))
            })
            .collect();
        for row in rows.iter_mut().filter(|row| row.is_beyond) {
            row.reward = Score::unanswered();
            row.scores.insert("score".to_owned(), Score::unanswered());
        }
        Ok(Scoring { rows, times })
    }

    /// Warnings about scored completions: functions that failed on some, sums out of range, and completions
    /// without any answer although no function failed. Each has the content of the first such row.
    pub fn warnings(&self, rows: &[(&RewardInput<'_>, &Scored)]) -> Vec<String> {
        let mut warnings = Vec::new();
        for NamedReward { name, .. } in &self.functions {
            let failures: Vec<(&String, &RewardInput<'_>)> =
                rows.iter().filter_map(|(input, row)| Some((row.failures.get(name)?, *input))).collect();
            if let Some((failure, input)) = failures.first() {
                warnings.push(format!(
                    "reward function `{name}` failed on {} of {} completions and gives them no score; the first: {failure}\n{}",
                    failures.len(),
                    rows.len(),
                    describe(input),
                ));
            }
        }
        let inputs_of = |is_meant: fn(&Scored) -> bool| -> Vec<&RewardInput<'_>> {
            rows.iter().filter(|(_, row)| is_meant(row)).map(|(input, _)| *input).collect()
        };
        let beyond = inputs_of(|row| row.is_beyond);
        if let Some(first) = beyond.first() {
            warnings.push(format!(
                "the weighted sum of the scores of {} of {} completions is beyond plus and minus \
                    {LARGEST_SCORE:e}; they stay unscored; the first:\n{}",
                beyond.len(),
                rows.len(),
                describe(first),
            ));
        }
        // Warnings about failed functions already name those rows.
        let is_unscored =
            |row: &Scored| row.reward.value.is_nan() && !row.is_beyond && row.failures.is_empty();
        let unscored = inputs_of(is_unscored);
        if let Some(first) = unscored.first() {
            warnings.push(format!(
                "no reward function answered {} of {} completions; they stay unscored; the first:\n{}",
                unscored.len(),
                rows.len(),
                describe_whole(first),
            ));
        }
        warnings
    }

    /// Number of completions to pass to the functions at once, because a function's answer to one may depend
    /// on the others. 1 if no function needs more; all if one needs all.
    pub fn batch_size(&self) -> usize {
        let sizes = self.functions.iter().map(|named| named.function.batch_size().max(1));
        sizes.fold(1, |whole, size| {
            let (mut a, mut b) = (whole, size);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            (whole / a).saturating_mul(size)
        })
    }

    /// Number of batches that may be scored at the same time; 0 if no function waits for anything external,
    /// so concurrency is useless.
    pub fn concurrency(&self) -> usize {
        let external = self.functions.iter().filter(|named| named.nature.is_external);
        external.map(|named| named.function.concurrency().max(1)).max().unwrap_or(0)
    }

    fn combine<'o>(&self, outcomes: impl Iterator<Item = &'o RewardOutcome>) -> Scored {
        let all_shaping = self.functions.iter().all(|named| !named.nature.is_verifier);
        // A function with weight 0 only measures: if it is the only one with an answer, there is no reward.
        let is_weighed = self.functions.iter().any(|named| named.weight != 0.0);
        let mut scores = Scores::new();
        let mut failures = BTreeMap::new();
        let mut answered = Vec::with_capacity(self.functions.len());
        let mut raw = f64::NAN;
        for (named, outcome) in self.functions.iter().zip(outcomes) {
            let RewardOutcome::Scored(given) = outcome else {
                scores.insert(named.name.clone(), Score::unanswered());
                if let RewardOutcome::Failed(failure) = outcome {
                    failures.insert(named.name.clone(), failure.to_string());
                }
                continue;
            };
            for (extra, number) in given {
                if extra == "score" {
                    let counts = named.weight != 0.0 || !is_weighed;
                    if counts {
                        answered.push((named.weight, number));
                    }
                    if counts && (all_shaping || named.nature.is_verifier) {
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
        let sum: f64 = answered.iter().map(|(weight, score)| weight * score.value).sum();
        let reward = if answered.is_empty() { Score::unanswered() } else { Score::of(sum) };
        // Opposite infinities sum to NaN; one part may be too large if the whole is not.
        let is_held = |value: f64| value.abs() <= LARGEST_SCORE;
        let sums_overflow = !answered.is_empty() && !(is_held(sum) && (raw.is_nan() || is_held(raw)));
        let is_beyond = sums_overflow
            || answered.iter().any(|(weight, score)| {
                let mut parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
                parts.any(|part| !is_held(weight * part))
            });
        Scored { scores, reward, failures, logged: Logged::default(), is_beyond }
    }
}

/// Replaces outcomes that break the contract of [`RewardOutcome::Scored`]: NaN becomes no answer; infinities
/// and wrong lengths become failures.
fn check_outcomes(mut outcomes: Vec<RewardOutcome>, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
    let expected = batch.len();
    if outcomes.len() != expected {
        let actual = outcomes.len();
        let failure = fault!("answers: expected {expected} for {expected} completions, got {actual}");
        return vec![RewardOutcome::Failed(failure.into()); expected];
    }
    for (outcome, input) in outcomes.iter_mut().zip(batch) {
        if let RewardOutcome::Scored(scores) = outcome {
            match check_scores(scores, input.completion_ids.len(), input.num_turns()) {
                Ok(true) => {}
                Ok(false) => *outcome = RewardOutcome::NoAnswer,
                Err(failure) => *outcome = RewardOutcome::Failed(failure),
            }
        }
    }
    outcomes
}

/// Whether `score` is a number; further numbers that are NaN are removed.
fn check_scores(scores: &mut Scores, num_tokens: usize, num_turns: usize) -> Result<bool, RewardFailure> {
    for (name, score) in scores.iter() {
        let parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
        if let Some(value) = std::iter::once(&score.value).chain(parts).find(|value| value.is_infinite()) {
            return Err(RewardFailure::not_finite(name, &value.to_string()));
        }
        let parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
        if let Some(&value) =
            std::iter::once(&score.value).chain(parts).find(|value| value.abs() > LARGEST_SCORE)
        {
            let bound = format!("within plus and minus {LARGEST_SCORE:e}");
            return Err(fault!("score `{name}` must lie {bound}, got {value:e}").into());
        }
        if let Some(per_token) = &score.per_token
            && per_token.len() != num_tokens
        {
            let actual = per_token.len();
            let expected = format!("{num_tokens} numbers, one for each completion token");
            return Err(fault!("score `{name}` per token: expected {expected}, got {actual}").into());
        }
        if let Some(per_turn) = &score.per_turn
            && per_turn.len() != num_turns
        {
            let actual = per_turn.len();
            let expected =
                format!("{num_turns} numbers, one for each turn of the assistant in the completion");
            return Err(fault!("score `{name}` per turn: expected {expected}, got {actual}").into());
        }
    }
    scores.retain(|_, score| {
        let parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
        !std::iter::once(&score.value).chain(parts).any(|value| value.is_nan())
    });
    Ok(scores.contains_key("score"))
}

/// The content of a row, shortened, for a warning.
pub fn describe(input: &RewardInput<'_>) -> String {
    let Prompt { content, ground_truth, data_source, .. } = input.prompt;
    let prompt = match content {
        PromptContent::Text(text) => excerpt(text),
        PromptContent::Messages(messages) => excerpt(messages.last().map_or("", |message| &message.content)),
    };
    let truth =
        ground_truth.as_deref().map_or_else(|| "none".to_owned(), |truth| format!("`{}`", excerpt(truth)));
    format!(
        "  {}: `{prompt}`\n  completion: `{}`\n  ground truth: {truth}, data source: `{}`",
        input.prompt.named(),
        excerpt(input.completion),
        excerpt(data_source),
    )
}

/// As [`describe`], with every further column of the row, because a function may have missed one. Columns
/// beyond [`MAX_COLUMNS`] are only counted.
fn describe_whole(input: &RewardInput<'_>) -> String {
    let mut text = describe(input);
    let columns = &input.prompt.columns;
    for (name, value) in columns.iter().take(MAX_COLUMNS) {
        let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let _ = write!(text, "\n  column {}: `{}`", excerpt(name), excerpt(&value));
    }
    if columns.len() > MAX_COLUMNS {
        let _ = write!(text, "\n  and {}", counted(columns.len() - MAX_COLUMNS, "more column"));
    }
    text
}

/// At most [`EXCERPT_CHARS`] characters on one line.
pub(crate) fn excerpt(text: &str) -> String {
    let cut: String = text.chars().take(EXCERPT_CHARS).collect();
    let mut shortened = one_line(&cut);
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        shortened.push('…');
    }
    shortened
}

/// Totals by name over rows without NaN: (sum, count). For logs.
pub fn totals(rows: &[Scored]) -> BTreeMap<&str, (f64, usize)> {
    let mut totals: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (name, score) in rows.iter().flat_map(|row| &row.scores).filter(|(_, score)| !score.value.is_nan()) {
        let (sum, count) = totals.entry(name).or_default();
        *sum += score.value;
        *count += 1;
    }
    totals
}

#[cfg(test)]
mod tests;
