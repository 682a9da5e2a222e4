//! The weighted sum of named reward functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tamis_core::group::{RESERVED_SCORES, Score};
use tamis_core::printable::one_line;
use tamis_data::prompt::{Prompt, PromptContent};

use super::failure::LARGEST_SCORE;
use super::{
    Logged, RewardError, RewardFailure, RewardFunction, RewardInput, RewardOutcome, Scores, TrainerState,
};

/// Columns of a row that a warning shows.
const MAX_COLUMNS: usize = 30;

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
    /// - each further number (`acc`, ...) under its own name where no function before it gave that name, else
    ///   under `function.name`;
    /// - `score`: the weighted sum of the functions that are no shaping, NaN where none of those answered (of
    ///   all functions, where all are shaping).
    pub scores: Scores,
    /// Weighted sum over the functions that answered; NaN where none did. Numbers per token or per turn stay
    /// with the scores of their functions: estimators that look at tokens place them.
    pub reward: Score,
    /// Message of each function that failed on the completion, by the function's name.
    pub failures: BTreeMap<String, String>,
    /// What the functions logged beside their scores.
    pub logged: Logged,
    /// Whether it stays unscored because its weighted sum is beyond what is held.
    pub is_beyond: bool,
}

impl Scored {
    /// Whether a weighted sum of scores is beyond [`LARGEST_SCORE`].
    fn overflows(&self) -> bool {
        let raw = self.scores.get("score").map_or(0.0, |score| score.value);
        // Opposite infinities sum to NaN, which the whole also is where nothing was answered.
        let is_answered = self.scores.iter().any(|(name, score)| name != "score" && !score.value.is_nan());
        let is_held = |value: f64| value.abs() <= LARGEST_SCORE;
        raw.abs() > LARGEST_SCORE || (is_answered && !is_held(self.reward.value))
    }
}

/// What scoring a batch gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Scoring {
    /// One for each input, in order.
    pub rows: Vec<Scored>,
    /// What a person should know: functions that failed, completions that nothing scored; each with the
    /// content of the first such row.
    #[cfg(test)]
    pub(crate) warnings: Vec<String>,
    /// How long each function took, in the order of the functions.
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
            return Err(RewardError::NoFunction);
        }
        let mut names = BTreeSet::new();
        for NamedReward { name, weight, .. } in &functions {
            let fail = |reason| Err(RewardError::Name { name: name.clone(), reason });
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
                return Err(RewardError::Weight { name: name.clone(), weight: *weight });
            }
        }
        Ok(Self { functions, trainer_state: TrainerState::default() })
    }

    /// Says how far the training is, to functions that ask.
    pub fn set_trainer_state(&mut self, state: TrainerState) {
        self.trainer_state = state;
    }

    /// How far the training is.
    pub fn trainer_state(&self) -> TrainerState {
        self.trainer_state
    }

    /// The functions, in order.
    pub fn functions(&self) -> &[NamedReward] {
        &self.functions
    }

    /// Functions that the reward is made of: those with a weight, or all where none has one.
    pub fn weighed(&self) -> impl Iterator<Item = &NamedReward> {
        let is_weighed = self.functions.iter().any(|named| named.weight != 0.0);
        self.functions.iter().filter(move |named| named.weight != 0.0 || !is_weighed)
    }

    /// How the first function that can is made to say what is right (`acc`); `None` where none can.
    pub fn how_to_give_acc(&self) -> Option<&'static str> {
        self.functions.iter().find_map(|named| named.function.how_to_give_acc())
    }

    /// Names of the numbers that a completion will have, as far as they are known before any is scored.
    /// [`super::gold::check_gold`] finds those of external functions.
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
        let is_reserved = RESERVED_SCORES.contains(&extra) && extra != "acc";
        if is_reserved || is_taken(extra) || self.functions.iter().any(|named| named.name == extra) {
            format!("{function}.{extra}")
        } else {
            extra.to_owned()
        }
    }

    /// Scores a batch. Fails only where a function broke down for good; a failure on single completions is a
    /// warning.
    #[cfg(test)]
    pub(crate) fn score(&self, batch: &[RewardInput<'_>]) -> Result<Scoring, RewardError> {
        let mut scoring = self.answers(batch, self.trainer_state)?;
        let rows: Vec<(&RewardInput<'_>, &Scored)> = batch.iter().zip(&scoring.rows).collect();
        scoring.warnings = self.warnings(&rows);
        Ok(scoring)
    }

    /// Scores a batch, or a part of one: [`Rewards::warnings`] then looks at the whole. Fails only where a
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
            let checked = checked(answers, batch);
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
        for row in rows.iter_mut().filter(|row| row.is_beyond || row.overflows()) {
            row.is_beyond = true;
            row.reward = Score::unanswered();
            row.scores.insert("score".to_owned(), Score::unanswered());
        }
        Ok(Scoring {
            rows,
            #[cfg(test)]
            warnings: Vec::new(),
            times,
        })
    }

    /// What a person should know of completions that were scored: functions that failed on some, sums beyond
    /// what is held, completions that nothing answered; each with the content of the first such row.
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
                "the weighted sum of the scores of {} of {} completions is beyond plus and minus {LARGEST_SCORE:e}; they stay unscored; the first:\n{}",
                beyond.len(),
                rows.len(),
                describe(first),
            ));
        }
        let unscored = inputs_of(|row| row.reward.value.is_nan() && !row.is_beyond);
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

    /// How many completions its functions should be given at once: what a function answers to one may depend
    /// on those beside it. 1 where none says so; as many as there are where one wants that.
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

    /// How many batches may be scored at the same time; 0 where no function waits for anything outside, so
    /// that it is of no use.
    pub fn concurrency(&self) -> usize {
        let external = self.functions.iter().filter(|named| named.function.is_external());
        external.map(|named| named.function.concurrency().max(1)).max().unwrap_or(0)
    }

    fn combine<'o>(&self, outcomes: impl Iterator<Item = &'o RewardOutcome>) -> Scored {
        let all_shaping = self.functions.iter().all(|named| named.function.is_shaping());
        // What weighs nothing only measures: its answer alone is no reward of 0.
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
                    if counts && (all_shaping || !named.function.is_shaping()) {
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
        let sum = answered.iter().map(|(weight, score)| weight * score.value).sum();
        let reward = if answered.is_empty() { Score::unanswered() } else { Score::of(sum) };
        // One part may be too large where the whole is not.
        let is_beyond = answered.iter().any(|(weight, score)| {
            let mut parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
            parts.any(|part| (weight * part).abs() > LARGEST_SCORE)
        });
        Scored { scores, reward, failures, logged: Logged::default(), is_beyond }
    }
}

/// Replaces what breaks the contract of [`RewardOutcome::Scored`]: NaN is no answer, infinities and wrong
/// lengths are failures.
fn checked(mut outcomes: Vec<RewardOutcome>, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
    let expected = batch.len();
    if outcomes.len() != expected {
        let failure = RewardFailure::Shape {
            what: "answers".to_owned(),
            expected: format!("{expected} for {expected} completions"),
            actual: outcomes.len().to_string(),
        };
        return vec![RewardOutcome::Failed(failure); expected];
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
            return Err(RewardFailure::NotFinite { name: name.clone(), value: value.to_string() });
        }
        let parts = [&score.per_token, &score.per_turn].into_iter().flatten().flatten();
        if let Some(&value) =
            std::iter::once(&score.value).chain(parts).find(|value| value.abs() > LARGEST_SCORE)
        {
            return Err(RewardFailure::TooLarge { name: name.clone(), value: format!("{value:e}") });
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
        if let Some(per_turn) = &score.per_turn
            && per_turn.len() != num_turns
        {
            return Err(RewardFailure::Shape {
                what: format!("score `{name}` per turn"),
                expected: format!(
                    "{num_turns} numbers, one for each turn of the assistant in the completion"
                ),
                actual: per_turn.len().to_string(),
            });
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
    let Prompt { id, content, ground_truth, data_source, .. } = input.prompt;
    let prompt = match content {
        PromptContent::Text(text) => excerpt(text),
        PromptContent::Messages(messages) => excerpt(messages.last().map_or("", |message| &message.content)),
    };
    let truth =
        ground_truth.as_deref().map_or_else(|| "none".to_owned(), |truth| format!("`{}`", excerpt(truth)));
    format!(
        "  prompt {}: `{prompt}`\n  completion: `{}`\n  ground truth: {truth}, data source: `{}`",
        id.0,
        excerpt(input.completion),
        excerpt(data_source),
    )
}

/// As [`describe`], with every further column of the row: what a function may have looked for and not found.
/// Columns beyond [`MAX_COLUMNS`] are only counted.
fn describe_whole(input: &RewardInput<'_>) -> String {
    let mut text = describe(input);
    let columns = &input.prompt.columns;
    for (name, value) in columns.iter().take(MAX_COLUMNS) {
        let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let _ = write!(text, "\n  column {}: `{}`", excerpt(name), excerpt(&value));
    }
    if columns.len() > MAX_COLUMNS {
        let _ = write!(text, "\n  and {} more columns", columns.len() - MAX_COLUMNS);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::test_prompt;
    use proptest::prelude::*;
    use tamis_data::prompt::Message;

    /// Says what it is told, whatever it is asked.
    struct Says(Vec<RewardOutcome>, bool);

    impl RewardFunction for Says {
        fn score(&self, _batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
            self.0.clone()
        }

        fn is_shaping(&self) -> bool {
            self.1
        }
    }

    fn named(name: &str, weight: f64, outcomes: Vec<RewardOutcome>, is_shaping: bool) -> NamedReward {
        NamedReward { name: name.to_owned(), weight, function: Box::new(Says(outcomes, is_shaping)) }
    }

    fn scoring(functions: Vec<NamedReward>, num_tokens: usize) -> Scoring {
        scoring_of(functions, num_tokens, None)
    }

    fn scoring_of(functions: Vec<NamedReward>, num_tokens: usize, messages: Option<&[Message]>) -> Scoring {
        let prompt = test_prompt("1");
        let ids = vec![0; num_tokens];
        let rewards = Rewards::new(functions).unwrap();
        let num = rewards.functions()[0].function.score(&[]).len();
        let input = RewardInput { completion_ids: &ids, messages, ..RewardInput::text(&prompt, "a\nb") };
        rewards.score(&vec![input; num]).unwrap()
    }

    /// `name=value` of all scores, then the reward.
    fn row(scored: &Scored) -> String {
        let scores: Vec<String> =
            scored.scores.iter().map(|(name, score)| format!("{name}={}", score.value)).collect();
        format!("{} -> {}", scores.join(" "), scored.reward.value)
    }

    #[test]
    fn sums_by_hand() {
        let scoring = scoring(
            vec![
                named(
                    "right",
                    2.0,
                    vec![
                        RewardOutcome::verified(-1.0, false),
                        RewardOutcome::NoAnswer,
                        RewardOutcome::NoAnswer,
                    ],
                    false,
                ),
                named(
                    "other",
                    1.0,
                    vec![
                        RewardOutcome::verified(0.5, true),
                        RewardOutcome::verified(1.0, true),
                        RewardOutcome::NoAnswer,
                    ],
                    false,
                ),
                named(
                    "short",
                    0.5,
                    vec![RewardOutcome::score(-1.0), RewardOutcome::score(-0.5), RewardOutcome::NoAnswer],
                    true,
                ),
            ],
            2,
        );
        let rows: Vec<String> = scoring.rows.iter().map(row).collect();
        insta::assert_snapshot!(rows.join("\n"), @r"
acc=0 other=0.5 other.acc=1 right=-1 score=-1.5 short=-1 -> -2
acc=1 other=1 right=NaN score=1 short=-0.5 -> 0.75
other=NaN right=NaN score=NaN short=NaN -> NaN
");
        insta::assert_snapshot!(scoring.warnings.join("\n"), @r"
no reward function answered 1 of 3 completions; they stay unscored; the first:
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        let totals = totals(&scoring.rows);
        assert_eq!(totals["other"], (1.5, 2));
        assert_eq!(totals["short"], (-1.5, 2));
        assert!(!totals.contains_key("reward"));
    }

    #[test]
    fn shaping_alone_is_the_raw_outcome_only_where_there_is_nothing_else() {
        let alone = scoring(vec![named("short", 0.5, vec![RewardOutcome::score(-1.0)], true)], 0);
        assert_eq!(row(&alone.rows[0]), "score=-0.5 short=-1 -> -0.5");
        let shaped = scoring(
            vec![
                named("right", 1.0, vec![RewardOutcome::NoAnswer], false),
                named("short", 0.5, vec![RewardOutcome::score(-1.0)], true),
            ],
            0,
        );
        assert_eq!(row(&shaped.rows[0]), "right=NaN score=NaN short=-1 -> -0.5");
    }

    #[test]
    fn what_weighs_nothing_is_no_reward() {
        let judged = |answer: RewardOutcome| {
            let measured = named("length", 0.0, vec![RewardOutcome::score(12.0)], false);
            scoring(vec![measured, named("judge", 1.0, vec![answer], false)], 0)
        };
        let unanswered = judged(RewardOutcome::NoAnswer);
        assert_eq!(row(&unanswered.rows[0]), "judge=NaN length=12 score=NaN -> NaN");
        assert_eq!(unanswered.warnings.len(), 1, "{:?}", unanswered.warnings);
        assert_eq!(row(&judged(RewardOutcome::score(-3.0)).rows[0]), "judge=-3 length=12 score=-3 -> -3");
        // Where nothing weighs, what was measured is all there is.
        let all = scoring(vec![named("length", 0.0, vec![RewardOutcome::score(12.0)], false)], 0);
        assert_eq!(row(&all.rows[0]), "length=12 score=0 -> 0");
    }

    #[test]
    fn finer_numbers_stay_with_their_functions() {
        let fine = |per_token: Option<Vec<f64>>, per_turn: Option<Vec<f64>>| {
            let value = per_token.as_ref().or(per_turn.as_ref()).map_or(1.0, |parts| parts.iter().sum());
            vec![RewardOutcome::Scored(Scores::from([(
                "score".to_owned(),
                Score { value, per_token, per_turn },
            )]))]
        };
        let message = |role: &str| Message { role: role.to_owned(), content: "x".to_owned() };
        let turns = ["assistant", "tool", "assistant"].map(message);
        let functions = vec![
            named("steps", 2.0, fine(Some(vec![0.5, 0.0, -1.0]), None), false),
            named("turns", 1.0, fine(None, Some(vec![3.0, 4.0])), false),
            named("whole", 10.0, vec![RewardOutcome::score(1.0)], false),
        ];
        let scoring = scoring_of(functions, 3, Some(&turns));
        let reward = &scoring.rows[0].reward;
        assert!((reward.value - (-1.0 + 7.0 + 10.0)).abs() < 1e-12);
        assert_eq!((&reward.per_token, &reward.per_turn), (&None, &None));
        let scores = &scoring.rows[0].scores;
        assert_eq!(scores["steps"].per_token.as_deref(), Some(&[0.5, 0.0, -1.0][..]));
        assert_eq!(scores["turns"].per_turn.as_deref(), Some(&[3.0, 4.0][..]));
    }

    #[test]
    fn broken_answers_are_failures() {
        let parts = |per_token: Vec<f64>| {
            RewardOutcome::Scored(Scores::from([(
                "score".to_owned(),
                Score { value: 1.0, per_token: Some(per_token), per_turn: None },
            )]))
        };
        let extra = |value: f64| {
            RewardOutcome::Scored(Scores::from([
                ("score".to_owned(), Score::of(1.0)),
                ("bonus".to_owned(), Score::of(value)),
            ]))
        };
        let say = |outcome: RewardOutcome| {
            let scoring = scoring(vec![named("f", 1.0, vec![outcome], false)], 2);
            format!("{}\n{}", row(&scoring.rows[0]), scoring.warnings.first().cloned().unwrap_or_default())
        };
        insta::assert_snapshot!(say(RewardOutcome::score(f64::NAN)), @r"
f=NaN score=NaN -> NaN
no reward function answered 1 of 1 completions; they stay unscored; the first:
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        insta::assert_snapshot!(say(RewardOutcome::score(f64::NEG_INFINITY)), @r"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` must be finite, got -inf
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        let turns = Score { per_turn: Some(vec![0.5, 0.5]), ..Score::of(1.0) };
        insta::assert_snapshot!(say(RewardOutcome::Scored(Scores::from([("score".to_owned(), turns)]))), @r#"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` per turn: expected 1 numbers, one for each turn of the assistant in the completion, got 2
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
"#);
        insta::assert_snapshot!(say(extra(f64::INFINITY)), @r"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `bonus` must be finite, got inf
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        insta::assert_snapshot!(say(RewardOutcome::score(-1e308)), @r#"
        f=NaN score=NaN -> NaN
        reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` must lie within plus and minus 1e100, got -1e308
          prompt 0: `1?`
          completion: `a\nb`
          ground truth: `1`, data source: `test`
        "#);
        insta::assert_snapshot!(say(parts(vec![1.0, 1.1e100])).lines().nth(1).unwrap(), @"reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` must lie within plus and minus 1e100, got 1.1e100");
        insta::assert_snapshot!(say(extra(f64::NAN)), @"f=1 score=1 -> 1");
        insta::assert_snapshot!(say(parts(vec![1.0])), @r"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` per token: expected 2 numbers, one for each completion token, got 1
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        insta::assert_snapshot!(say(parts(vec![1.0, f64::NAN])), @r"
f=NaN score=NaN -> NaN
no reward function answered 1 of 1 completions; they stay unscored; the first:
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        let huge = |second: f64| {
            let functions = vec![
                named("f", 2.0, vec![RewardOutcome::verified(1e100, true)], false),
                named("g", 2.0, vec![RewardOutcome::score(second)], false),
            ];
            let scoring = scoring(functions, 0);
            format!(
                "{}\n{}",
                row(&scoring.rows[0]).replace(&"0".repeat(92), "..."),
                scoring.warnings.join("\n")
            )
        };
        insta::assert_snapshot!(huge(1e100), @r"
acc=1 f=1...00000000 g=1...00000000 score=NaN -> NaN
the weighted sum of the scores of 1 of 1 completions is beyond plus and minus 1e100; they stay unscored; the first:
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        // Opposite ones have a sum like any others.
        assert!(huge(-1e100).ends_with("score=0 -> 0\n"), "{}", huge(-1e100));
        let two = scoring(
            vec![
                named("f", 1.0, vec![RewardOutcome::score(1.0); 2], false),
                named("g", 1.0, vec![RewardOutcome::score(1.0)], false),
            ],
            0,
        );
        insta::assert_snapshot!(two.warnings[0], @r"
reward function `g` failed on 2 of 2 completions and gives them no score; the first: answers: expected 2 for 2 completions, got 1
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
        let excerpted = excerpt(&"x".repeat(1000));
        assert_eq!(excerpted.chars().count(), EXCERPT_CHARS + 1);
    }

    /// As TRL shows them: what a function looked for may be in a column.
    #[test]
    fn the_columns_of_a_row_that_nobody_answered_are_shown() {
        let mut prompt = test_prompt("1");
        prompt.columns.insert("level".to_owned(), serde_json::json!({"of": [1, 2]}));
        prompt.columns.insert("solution".to_owned(), "long\n".repeat(100).into());
        let rewards = Rewards::new(vec![named("f", 1.0, vec![RewardOutcome::NoAnswer], false)]).unwrap();
        let warned =
            |prompt: &Prompt| rewards.score(&[RewardInput::text(prompt, "a")]).unwrap().warnings.remove(0);
        let shown = warned(&prompt).replace(r"long\n", "L");
        assert!(
            shown.ends_with(&format!(
                "\n  column level: `{{\"of\":[1,2]}}`\n  column solution: `{}…`",
                "L".repeat(40)
            )),
            "{shown}"
        );
        prompt.columns.extend((0..100).map(|number| (format!("z{number}"), number.into())));
        assert!(warned(&prompt).ends_with(&format!("\n  and {} more columns", 102 - MAX_COLUMNS)));
    }

    #[test]
    fn set_up_errors() {
        let error = |functions| Rewards::new(functions).err().unwrap().to_string();
        let of = |name: &str, weight| named(name, weight, vec![], false);
        insta::assert_snapshot!(error(vec![]), @"a run needs at least one reward function");
        insta::assert_snapshot!(error(vec![of("", 1.0)]), @"reward function name `` is empty");
        insta::assert_snapshot!(error(vec![of("acc", 1.0)]), @"reward function name `acc` is taken by a number that tamis computes; choose another");
        insta::assert_snapshot!(error(vec![of("a", 1.0), of("a", 1.0)]), @"reward function name `a` is used twice");
        insta::assert_snapshot!(error(vec![of("a", f64::INFINITY)]), @"weight of reward function `a` must be a finite number, got inf");
    }

    proptest! {
        #[test]
        fn the_reward_is_the_weighted_sum_of_what_was_answered(
            answers in proptest::collection::vec((proptest::option::of(-2.0f64..2.0), -3.0f64..3.0), 1..6),
        ) {
            let functions = answers.iter().enumerate().map(|(i, (score, weight))| {
                let outcome = score.map_or(RewardOutcome::NoAnswer, RewardOutcome::score);
                named(&format!("f{i}"), *weight, vec![outcome], i % 2 == 1)
            });
            let scoring = scoring(functions.collect(), 0);
            let answered: Vec<f64> = answers.iter().filter_map(|(score, weight)| Some((*score)? * weight)).collect();
            let reward = scoring.rows[0].reward.value;
            prop_assert_eq!(reward.is_nan(), answered.is_empty());
            prop_assert_eq!(scoring.warnings.is_empty(), !answered.is_empty());
            if !answered.is_empty() {
                prop_assert!((reward - answered.iter().sum::<f64>()).abs() < 1e-12);
            }
        }
    }
}
