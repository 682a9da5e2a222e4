//! Whether rewards arrive at all: rounds in a row in which a reward function failed on every completion, or no completion had a reward
//! other than shaping.
//!
//! Such a run generates, takes its steps and learns nothing. [`RewardHealth`] counts the rounds, round by round from the scores alone, so
//! that a run that is killed and reads its answers back from the journal counts the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tamis_env::reward::combine::describe;
use tamis_env::reward::{NamedReward, RewardInput, Rewards, Scored};

/// So many rounds in a row without any score from a function end the run: nothing says that the next one would have one.
pub const MOST_FAILED_ROUNDS: u32 = 3;

/// Rounds in a row that went wrong in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    rounds: u32,
    /// What was said of the first completion of the first of them.
    first: String,
}

impl Row {
    fn grow(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
    }
}

/// How the rewards of a run's rounds arrived so far. A checkpoint holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardHealth {
    /// Rounds with at least one completion.
    num_rounds: u64,
    /// By function: the latest rounds, where it failed on every completion of each.
    failing: BTreeMap<String, Row>,
    /// The latest rounds, where no completion of any had a reward other than shaping.
    unrewarded: Option<Row>,
}

/// Rewards that do not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRewards {
    /// The function that fails on every completion; `None`: all functions together gave no completion a reward.
    pub function: Option<String>,
    /// Whether completions have scores all the same, from shaping alone.
    pub is_shaped: bool,
    /// In how many rounds in a row.
    pub num_rounds: u32,
    /// What was said of the first such completion, and that completion.
    pub first: String,
    /// What the function itself knows about it.
    pub hint: Option<String>,
}

impl RewardHealth {
    /// Takes the scores of a round in; one without completions says nothing.
    pub(crate) fn observe(&mut self, rewards: &Rewards, inputs: &[RewardInput<'_>], scored: &[Scored]) {
        let Some((first_input, first)) = inputs.iter().zip(scored).next() else { return };
        self.num_rounds += 1;
        for named in rewards.weighed() {
            if scored.iter().all(|row| row.failures.contains_key(&named.name)) {
                let message = &first.failures[&named.name];
                self.failing
                    .entry(named.name.clone())
                    .or_insert_with(|| Row {
                        rounds: 0,
                        first: format!("{message}\n{}", describe(first_input)),
                    })
                    .grow();
            } else {
                self.failing.remove(&named.name);
            }
        }
        // Shaping scores whatever it is given: it says nothing of whether the task is rewarded.
        let of_task: Vec<&str> = task_functions(rewards).map(|named| named.name.as_str()).collect();
        let has_answer = |row: &Scored| {
            of_task.iter().any(|&name| row.scores.get(name).is_some_and(|score| !score.value.is_nan()))
        };
        if scored.iter().any(|row| !row.reward.value.is_nan() && has_answer(row)) {
            self.unrewarded = None;
        } else {
            self.unrewarded
                .get_or_insert_with(|| {
                    let messages =
                        first.failures.iter().map(|(name, message)| format!("`{name}`: {message}\n"));
                    Row { rounds: 0, first: messages.collect::<String>() + &describe(first_input) }
                })
                .grow();
        }
    }

    /// What is missing in at least so many of the latest rounds: the function that has failed for longest, or rewards altogether.
    pub fn missing_for(&self, num_rounds: u32, rewards: &Rewards) -> Option<MissingRewards> {
        let worst = rewards
            .weighed()
            .filter_map(|named| Some((named, self.failing.get(&named.name)?)))
            .filter(|(_, row)| row.rounds >= num_rounds)
            .reduce(|worst, other| if other.1.rounds > worst.1.rounds { other } else { worst });
        let of = |function: Option<String>, row: &Row, hint: Option<String>| MissingRewards {
            is_shaped: function.is_none() && task_functions(rewards).count() < rewards.weighed().count(),
            function,
            num_rounds: row.rounds,
            first: row.first.clone(),
            hint,
        };
        match worst {
            Some((named, row)) => Some(of(Some(named.name.clone()), row, named.function.failure_hint())),
            None => {
                self.unrewarded.as_ref().filter(|row| row.rounds >= num_rounds).map(|row| of(None, row, None))
            }
        }
    }

    /// What is missing for so long that the run should end.
    pub fn missing(&self, rewards: &Rewards) -> Option<MissingRewards> {
        self.missing_for(MOST_FAILED_ROUNDS, rewards)
    }

    /// What was missing in every round that there ever was, however few.
    pub fn always_missing(&self, rewards: &Rewards) -> Option<MissingRewards> {
        let all = u32::try_from(self.num_rounds).ok().filter(|&rounds| rounds > 0)?;
        self.missing_for(all, rewards)
    }
}

/// Functions that reward the task: those of the reward that are no shaping, or all of it where it is nothing but shaping.
fn task_functions(rewards: &Rewards) -> impl Iterator<Item = &NamedReward> {
    let all_shaping = rewards.weighed().all(|named| named.function.is_shaping());
    rewards.weighed().filter(move |named| all_shaping || !named.function.is_shaping())
}

#[cfg(test)]
mod tests {
    use tamis_core::group::{PromptId, Score};
    use tamis_data::prompt::{Prompt, PromptContent};
    use tamis_env::reward::{Outcome, RewardFailure, RewardFunction};

    use super::*;

    /// Answers by the completion: `x` is a failure, `-` no answer, a number itself.
    struct Reads(&'static str);

    impl RewardFunction for Reads {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            let answer = |input: &RewardInput<'_>| match input.completion {
                "x" => Outcome::Failed(RewardFailure::Function { message: format!("{} broke", self.0) }),
                text => text.parse().map_or(Outcome::NoAnswer, Outcome::score),
            };
            batch.iter().map(answer).collect()
        }

        fn failure_hint(&self) -> Option<String> {
            Some(format!("mend {}", self.0))
        }
    }

    fn rewards(functions: Vec<(&'static str, f64)>) -> Rewards {
        let named = |(name, weight): (&'static str, f64)| NamedReward {
            name: name.to_owned(),
            weight,
            function: Box::new(Reads(name)),
        };
        Rewards::new(functions.into_iter().map(named).collect()).unwrap()
    }

    fn observe(health: &mut RewardHealth, rewards: &Rewards, completions: &[&str]) {
        let prompt = Prompt {
            id: PromptId(7),
            content: PromptContent::Text("2+3=".to_owned()),
            ground_truth: Some("5".to_owned()),
            data_source: "sums".to_owned(),
            columns: serde_json::Map::new(),
        };
        let inputs: Vec<RewardInput<'_>> =
            completions.iter().map(|completion| RewardInput::text(&prompt, completion)).collect();
        health.observe(rewards, &inputs, &rewards.score(&inputs).unwrap().rows);
    }

    #[test]
    fn a_function_that_fails_on_everything_is_named_with_its_first_failure() {
        let rewards = rewards(vec![("len", 1.0)]);
        let mut health = RewardHealth::default();
        for _ in 0..2 {
            observe(&mut health, &rewards, &["x", "x"]);
            assert_eq!(health.missing(&rewards), None);
        }
        // Nothing was asked: neither one more nor the end of the row.
        observe(&mut health, &rewards, &[]);
        observe(&mut health, &rewards, &["x"]);
        let missing = health.missing(&rewards).unwrap();
        assert_eq!((missing.function.as_deref(), missing.num_rounds), (Some("len"), 3));
        assert_eq!(missing.hint.as_deref(), Some("mend len"));
        assert_eq!(
            missing.first,
            "the function failed: len broke\n  prompt 7: `2+3=`\n  completion: `x`\n  ground truth: `5`, data source: `sums`"
        );
        // One score ends the row, and that nothing ever arrived.
        observe(&mut health, &rewards, &["x", "1"]);
        assert_eq!((health.missing(&rewards), health.always_missing(&rewards)), (None, None));
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
            };
            for _ in 0..MOST_FAILED_ROUNDS {
                let prompt = Prompt {
                    id: PromptId(0),
                    content: PromptContent::Text(String::new()),
                    ground_truth: None,
                    data_source: String::new(),
                    columns: serde_json::Map::new(),
                };
                health.observe(&rewards, &[RewardInput::text(&prompt, "1")], &[row(true)]);
            }
            let found = health.missing(&rewards).and_then(|missing| missing.function);
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
        let missing = health.missing(&rewards).unwrap();
        assert_eq!((missing.function, missing.num_rounds, missing.hint), (None, 3, None));
        assert!(missing.first.starts_with("  prompt 7: "), "{}", missing.first);
        observe(&mut health, &rewards, &["-", "0.5"]);
        assert_eq!(health.missing_for(1, &rewards), None);
    }

    /// Scores everything, and is shaping.
    struct Shapes;

    impl RewardFunction for Shapes {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            batch.iter().map(|_| Outcome::score(-0.5)).collect()
        }

        fn is_shaping(&self) -> bool {
            true
        }
    }

    #[test]
    fn shaping_does_not_hide_that_the_task_has_no_reward() {
        let named = |name: &str, weight, function| NamedReward { name: name.to_owned(), weight, function };
        let shaped = |weight: f64| {
            let (judge, long): (Box<dyn RewardFunction>, _) = (Box::new(Reads("judge")), Box::new(Shapes));
            Rewards::new(vec![named("judge", weight, judge), named("long", 1.0, long)]).unwrap()
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
            let missing = health.missing(&rewards);
            assert_eq!(missing.is_some(), expected, "weight {weight}, {completions:?}");
            assert!(missing.is_none_or(|missing| missing.is_shaped && missing.function.is_none()));
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

    #[test]
    fn a_checkpoint_holds_the_rows() {
        let rewards = rewards(vec![("len", 1.0)]);
        let mut health = RewardHealth::default();
        observe(&mut health, &rewards, &["x", "x"]);
        observe(&mut health, &rewards, &["x", "-"]);
        let saved = serde_json::to_string(&health).unwrap();
        assert_eq!(serde_json::from_str::<RewardHealth>(&saved).unwrap(), health);
    }
}
