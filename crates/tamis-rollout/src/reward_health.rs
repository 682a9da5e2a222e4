//! Checks that rewards arrive at all. It counts rounds in a row in which a reward function failed on
//! every completion, or no completion had a reward other than shaping.
//!
//! Such a run generates, takes its steps and learns nothing. [`RewardHealth`] counts round by round
//! from only the scores, so that a run that is killed and reads its answers back from the journal
//! counts the same.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tamis_env::reward::combine::describe;
use tamis_env::reward::{NamedReward, RewardFunction, RewardInput, Rewards, Scored};

/// Number of rounds in a row without any score from a function after which the run ends: nothing suggests
/// that the next one would have one.
pub const MOST_FAILED_ROUNDS: u32 = 3;

/// A function that scores only the rows of some data sources must also fail on this many prompts: its
/// rounds may hold one prompt each, and a few in a row may be bad by chance.
const FEWEST_PROMPTS: u64 = 10;

/// A completion and its scores.
type Completion<'c> = (&'c RewardInput<'c>, &'c Scored);

/// Rounds in a row that went wrong in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    rounds: u32,
    prompts: u64,
    /// The failure on the first completion of the first of them.
    first: String,
}

impl Row {
    fn new(first: String) -> Self {
        Self { rounds: 0, prompts: 0, first }
    }

    fn grow(&mut self, completions: &[Completion<'_>]) {
        self.rounds = self.rounds.saturating_add(1);
        let prompts: BTreeSet<u64> = completions.iter().map(|(input, _)| input.prompt.id.0).collect();
        self.prompts = self.prompts.saturating_add(prompts.len() as u64);
    }
}

/// Counts a round under `name` if `function` failed on all of its completions (there is at least one);
/// ends the row otherwise. Returns whether it failed.
fn count(
    rows: &mut BTreeMap<String, Row>,
    name: &str,
    function: &str,
    completions: &[Completion<'_>],
) -> bool {
    let failures: Option<Vec<&String>> =
        completions.iter().map(|(_, scored)| scored.failures.get(function)).collect();
    let (Some(&(first, _)), Some(message)) =
        (completions.first(), failures.and_then(|all| all.first().copied()))
    else {
        rows.remove(name);
        return false;
    };
    let row = || Row::new(format!("{message}\n{}", describe(first)));
    rows.entry(name.to_owned()).or_insert_with(row).grow(completions);
    true
}

/// Record of a run's rounds in which rewards were missing. A checkpoint holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardHealth {
    /// Rounds with at least one completion.
    num_rounds: u64,
    /// By function: the latest rounds, if it failed on every completion of each.
    failing: BTreeMap<String, Row>,
    /// By function and by its part for some of the rows: the latest rounds with such rows, if it failed
    /// on each of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failing_parts: BTreeMap<String, BTreeMap<String, Row>>,
    /// The latest rounds, if no completion of any had a reward other than shaping.
    unrewarded: Option<Row>,
}

/// Rewards that do not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRewards {
    /// The function that fails on every completion; `None`: all functions together gave no completion a
    /// reward.
    pub function: Option<String>,
    /// The part of it that fails, if others do not: in `by_source` the entry of `sources`.
    pub part: Option<String>,
    /// Whether completions have scores all the same, from only shaping.
    pub is_shaped: bool,
    /// In how many rounds in a row.
    pub num_rounds: u32,
    /// The failure on the first such completion, and that completion.
    pub first: String,
    /// The function's own hint about the failure.
    pub hint: Option<String>,
}

impl RewardHealth {
    /// Takes in the scores of a round; one without completions is ignored. Returns whether a function
    /// failed on all of its completions, or nothing had a reward: the names of the scores cannot be
    /// seen in such a round.
    pub(crate) fn observe(
        &mut self,
        rewards: &Rewards,
        inputs: &[RewardInput<'_>],
        scored: &[Scored],
    ) -> bool {
        let completions: Vec<Completion<'_>> = inputs.iter().zip(scored).collect();
        let Some(&(first_input, first)) = completions.first() else { return true };
        self.num_rounds += 1;
        let mut is_missing = false;
        for named in rewards.weighed_rewards() {
            is_missing |= count(&mut self.failing, &named.name, &named.name, &completions);
            let mut by_part: BTreeMap<&str, Vec<Completion<'_>>> = BTreeMap::new();
            for &(input, scored) in &completions {
                if let Some(part) = named.function.part_of(input.prompt) {
                    by_part.entry(part).or_default().push((input, scored));
                }
            }
            for (part, completions) in by_part {
                let rows = self.failing_parts.entry(named.name.clone()).or_default();
                is_missing |= count(rows, part, &named.name, &completions);
            }
        }
        self.failing_parts.retain(|_, rows| !rows.is_empty());
        // Shaping scores any completion: it does not show whether the task is rewarded.
        let of_task: Vec<&str> = task_functions(rewards).map(|named| named.name.as_str()).collect();
        let has_answer = |row: &Scored| {
            of_task.iter().any(|&name| row.scores.get(name).is_some_and(|score| !score.value.is_nan()))
        };
        if scored.iter().any(|row| !row.reward.value.is_nan() && has_answer(row)) {
            self.unrewarded = None;
            return is_missing;
        }
        let messages = || first.failures.iter().map(|(name, message)| format!("`{name}`: {message}\n"));
        let row = || Row::new(messages().collect::<String>() + &describe(first_input));
        self.unrewarded.get_or_insert_with(row).grow(&completions);
        true
    }

    /// The rewards missing in at least `num_rounds` of the latest rounds: the function that has failed for
    /// longest, or the part of one, or rewards altogether.
    pub fn missing_for(&self, num_rounds: u32, rewards: &Rewards) -> Option<MissingRewards> {
        self.missing_of(num_rounds, 0, rewards)
    }

    /// The same, for at least this many prompts.
    fn missing_of(&self, num_rounds: u32, num_prompts: u64, rewards: &Rewards) -> Option<MissingRewards> {
        let is_long = |row: &&Row| row.rounds >= num_rounds && row.prompts >= num_prompts;
        let of = |function: Option<&str>, row: &Row, hint: Option<String>| MissingRewards {
            function: function.map(str::to_owned),
            part: None,
            is_shaped: function.is_none()
                && task_functions(rewards).count() < rewards.weighed_rewards().count(),
            num_rounds: row.rounds,
            first: row.first.clone(),
            hint,
        };
        let whole = rewards.weighed_rewards().filter_map(|named| {
            let row = self.failing.get(&named.name).filter(is_long)?;
            Some(of(Some(&named.name), row, named.function.failure_hint()))
        });
        let parts = rewards.weighed_rewards().flat_map(|named| {
            let rows = self.failing_parts.get(&named.name).into_iter().flatten();
            rows.filter(|(_, row)| row.prompts >= FEWEST_PROMPTS && row.rounds >= num_rounds).map(
                |(part, row)| {
                    let hint = named.function.part(part).and_then(RewardFunction::failure_hint);
                    MissingRewards { part: Some(part.clone()), ..of(Some(&named.name), row, hint) }
                },
            )
        });
        let longer = |worst: MissingRewards, other: MissingRewards| {
            if other.num_rounds > worst.num_rounds { other } else { worst }
        };
        let altogether = || self.unrewarded.as_ref().filter(is_long).map(|row| of(None, row, None));
        let worst = whole.reduce(longer).or_else(|| parts.reduce(longer));
        worst.or_else(altogether)
    }

    /// The rewards missing for so long that the run should end: in [`MOST_FAILED_ROUNDS`] rounds, and in as
    /// many times `round_size` prompts, since the rounds counted here may be smaller.
    pub fn missing(&self, round_size: usize, rewards: &Rewards) -> Option<MissingRewards> {
        let num_prompts = u64::from(MOST_FAILED_ROUNDS).saturating_mul(round_size as u64);
        self.missing_of(MOST_FAILED_ROUNDS, num_prompts, rewards)
    }

    /// The rewards missing in every round that there ever was, however few.
    pub fn always_missing(&self, rewards: &Rewards) -> Option<MissingRewards> {
        let all = u32::try_from(self.num_rounds).ok().filter(|&rounds| rounds > 0)?;
        self.missing_for(all, rewards)
    }
}

/// Functions that reward the task: the reward's functions without shaping, or all of them if all are
/// shaping.
fn task_functions(rewards: &Rewards) -> impl Iterator<Item = &NamedReward> {
    let all_shaping = rewards.weighed_rewards().all(|named| !named.nature.is_verifier);
    rewards.weighed_rewards().filter(move |named| all_shaping || named.nature.is_verifier)
}

#[cfg(test)]
mod tests {
    use tamis_core::group::Score;
    use tamis_data::prompt::Prompt;
    use tamis_env::reward::by_source::{ANY, BySource};
    use tamis_env::reward::{Nature, RewardFailure, RewardOutcome, TrainerState};

    use super::*;
    use crate::support;

    /// Answers by the completion: `x` is a failure, `-` no answer, a number itself.
    struct Reads(&'static str);

    impl RewardFunction for Reads {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
            let answer = |input: &RewardInput<'_>| match input.completion {
                "x" => {
                    RewardOutcome::Failed(RewardFailure::Function { message: format!("{} broke", self.0) })
                }
                text => text.parse().map_or(RewardOutcome::NoAnswer, RewardOutcome::score),
            };
            batch.iter().map(answer).collect()
        }

        fn failure_hint(&self) -> Option<String> {
            Some(format!("mend {}", self.0))
        }
    }

    fn rewards(functions: Vec<(&'static str, f64)>) -> Rewards {
        let named = |(name, weight): (&'static str, f64)| NamedReward {
            weight,
            ..NamedReward::verifier(name, Box::new(Reads(name)))
        };
        Rewards::new(functions.into_iter().map(named).collect()).unwrap()
    }

    fn prompt(id: u64, source: &str) -> Prompt {
        Prompt { ground_truth: Some("5".to_owned()), ..support::prompt(id, "2+3=", source) }
    }

    fn observe(health: &mut RewardHealth, rewards: &Rewards, completions: &[&str]) {
        let prompt = prompt(7, "sums");
        let inputs: Vec<RewardInput<'_>> =
            completions.iter().map(|completion| RewardInput::text(&prompt, completion)).collect();
        health.observe(rewards, &inputs, &rewards.answers(&inputs, TrainerState::default()).unwrap().rows);
        assert_saved(health);
    }

    fn assert_saved(health: &RewardHealth) {
        let saved = serde_json::to_string(health).unwrap();
        assert_eq!(serde_json::from_str::<RewardHealth>(&saved).unwrap(), *health);
    }

    #[test]
    fn a_function_that_fails_on_everything_is_named_with_its_first_failure() {
        let rewards = rewards(vec![("len", 1.0)]);
        let mut health = RewardHealth::default();
        for _ in 0..2 {
            observe(&mut health, &rewards, &["x", "x"]);
            assert_eq!(health.missing(0, &rewards), None);
        }
        // Nothing was asked: neither one more nor the end of the row.
        observe(&mut health, &rewards, &[]);
        observe(&mut health, &rewards, &["x"]);
        let missing = health.missing(0, &rewards).unwrap();
        assert_eq!((missing.function.as_deref(), missing.num_rounds), (Some("len"), 3));
        assert_eq!(missing.hint.as_deref(), Some("mend len"));
        assert_eq!(
            missing.first,
            "the function failed: len broke\n  prompt 7: `2+3=`\n  completion: `x`\n  ground truth: `5`, data source: `sums`"
        );
        // A stream examines few prompts at a time: one prompt each time is not a round of three.
        assert_eq!(health.missing(1, &rewards), Some(missing));
        assert_eq!(health.missing(2, &rewards), None);
        // One score ends the row, and that nothing ever arrived.
        observe(&mut health, &rewards, &["x", "1"]);
        assert_eq!((health.missing(0, &rewards), health.always_missing(&rewards)), (None, None));
    }

    #[test]
    fn one_of_two_functions_that_fails_is_enough_unless_it_weighs_nothing() {
        let both = |weight| rewards(vec![("right", 1.0), ("len", weight)]);
        for (weight, expected) in [(0.5, Some("len")), (0.0, None)] {
            let rewards = both(weight);
            let mut health = RewardHealth::default();
            let row = |failed: bool| Scored {
                scores: BTreeMap::from([("right".to_owned(), Score::of(1.0))]),
                reward: Score::of(1.0),
                failures: failed.then(|| ("len".to_owned(), "broke".to_owned())).into_iter().collect(),
                logged: tamis_env::reward::Logged::default(),
                is_beyond: false,
            };
            for _ in 0..MOST_FAILED_ROUNDS {
                health.observe(&rewards, &[RewardInput::text(&prompt(0, ""), "1")], &[row(true)]);
            }
            let found = health.missing(0, &rewards).and_then(|missing| missing.function);
            assert_eq!(found.as_deref(), expected, "weight {weight}");
        }
    }

    #[test]
    fn no_answer_from_anyone_counts_and_no_answer_from_one_does_not() {
        let rewards = rewards(vec![("first", 1.0), ("second", 1.0)]);
        let mut health = RewardHealth::default();
        for _ in 0..MOST_FAILED_ROUNDS {
            observe(&mut health, &rewards, &["-", "-"]);
        }
        let missing = health.missing(0, &rewards).unwrap();
        assert_eq!((missing.function, missing.num_rounds, missing.hint), (None, 3, None));
        assert!(missing.first.starts_with("  prompt 7: "), "{}", missing.first);
        observe(&mut health, &rewards, &["-", "0.5"]);
        assert_eq!(health.missing_for(1, &rewards), None);
    }

    /// Scores everything, and is shaping.
    struct Shapes;

    impl RewardFunction for Shapes {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
            batch.iter().map(|_| RewardOutcome::score(-0.5)).collect()
        }
    }

    #[test]
    fn shaping_does_not_hide_that_the_task_has_no_reward() {
        let shaped = |weight: f64| {
            let judge = NamedReward { weight, ..NamedReward::verifier("judge", Box::new(Reads("judge"))) };
            let long = NamedReward::verifier("long", Box::new(Shapes));
            Rewards::new(vec![judge, NamedReward { nature: Nature::SHAPING, ..long }]).unwrap()
        };
        // A judge that only measures leaves a reward that is shaping by choice.
        for (weight, completions, expected) in
            [(1.0, ["-", "-"], true), (1.0, ["-", "1"], false), (0.0, ["-", "-"], false)]
        {
            let rewards = shaped(weight);
            let mut health = RewardHealth::default();
            for _ in 0..MOST_FAILED_ROUNDS {
                observe(&mut health, &rewards, &completions);
            }
            let missing = health.missing(0, &rewards);
            assert_eq!(missing.is_some(), expected, "weight {weight}, {completions:?}");
            assert!(missing.is_none_or(|missing| missing.is_shaped && missing.function.is_none()));
        }
    }

    /// Rounds of `sums` and, every second time, as many prompts of `mine`, which has a function of its own.
    #[test]
    fn a_function_that_fails_on_all_rows_of_its_source_is_found_once_they_are_many() {
        for (entry, num_prompts, num_rounds) in [("mine", 1, 10), ("mine", 4, 3), (ANY, 20, 3)] {
            let own = |source: &str, reads: &'static str| -> (String, Box<dyn RewardFunction>) {
                (source.to_owned(), Box::new(Reads(reads)))
            };
            let function = Box::new(BySource::new([own("sums", "sums"), own(entry, "broken")]));
            let named = NamedReward::verifier("by_source", function);
            let rewards = Rewards::new(vec![named]).unwrap();
            let mut health = RewardHealth::default();
            let mut next = 0;
            let mut round = |source: &str, completion: &str, health: &mut RewardHealth| {
                let prompts: Vec<Prompt> = (0..num_prompts).map(|row| prompt(next + row, source)).collect();
                next += num_prompts;
                let sums = prompt(1000, "sums");
                let mut inputs: Vec<RewardInput<'_>> =
                    prompts.iter().flat_map(|prompt| [RewardInput::text(prompt, completion); 2]).collect();
                inputs.push(RewardInput::text(&sums, "1"));
                health.observe(
                    &rewards,
                    &inputs,
                    &rewards.answers(&inputs, TrainerState::default()).unwrap().rows,
                )
            };
            for failed in 0..num_rounds {
                assert_eq!(health.missing(0, &rewards), None, "{entry}: {failed}");
                assert!(round("mine", "x", &mut health), "it says nothing of names");
                // A function without rows neither grows the row nor ends it.
                assert!(!round("sums", "1", &mut health));
            }
            let missing = health.missing(0, &rewards).unwrap();
            assert_eq!(
                (missing.function.as_deref(), missing.part.as_deref()),
                (Some("by_source"), Some(entry))
            );
            assert_eq!((missing.num_rounds, missing.hint.as_deref()), (num_rounds, Some("mend broken")));
            assert!(missing.first.starts_with("the function failed: broken broke\n"), "{}", missing.first);
            assert_saved(&health);
            round("mine", "1", &mut health);
            assert_eq!(health.missing(0, &rewards), None);
        }
    }

    #[test]
    fn a_short_run_without_any_score_is_found_at_its_end() {
        let rewards = rewards(vec![("len", 1.0)]);
        let mut health = RewardHealth::default();
        assert_eq!(health.always_missing(&rewards), None, "nothing was generated");
        observe(&mut health, &rewards, &["x", "x"]);
        assert_eq!(health.always_missing(&rewards).map(|missing| missing.num_rounds), Some(1));
    }
}
