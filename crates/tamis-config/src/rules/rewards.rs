//! Rules about the list of rewards.

use tamis_core::group::RESERVED_SCORES;
use tamis_env::reward::settings::Conflict;

use super::Checker;
use crate::schema::{RAW_OUTCOME, RewardConfig};
use crate::source::SourceKind;
use crate::tree::Node;

impl Checker<'_> {
    /// Whether there is a reward besides those that a preset adds.
    pub(super) fn has_own_reward(&self) -> bool {
        let from_preset = |index: usize| {
            let node = self.tree.at(&format!("reward.{index}"));
            node.is_some_and(|node| matches!(node.origin.source.kind, SourceKind::Preset(_)))
        };
        !(0..self.config.reward.len()).all(from_preset)
    }

    pub(super) fn rewards(&mut self) {
        let config = self.config;
        if !self.has_own_reward() {
            self.missing(
                &["reward"],
                "there is no reward: `reward` is empty, and no task (`data.task`) provides a verifier",
                "add one, such as `reward: [{kind: math}]`",
            );
        } else if config.reward.iter().all(|reward| reward.weight == 0.0) {
            self.error(
                &["reward"],
                "every weight in `reward` is 0: there is nothing to train on",
                "give the verifier `weight: 1.0`",
            );
        }
        for (index, reward) in config.reward.iter().enumerate() {
            self.reward_name(index, reward);
            let limit = config.max_completion_length();
            for Conflict { keys, message, hint } in reward.kind.conflicts(&format!("reward[{index}]"), limit)
            {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                self.error(&keys, message, hint);
            }
        }
    }

    fn reward_name(&mut self, index: usize, reward: &RewardConfig) {
        let (name, key) = (&reward.name, format!("reward[{index}].name"));
        let hint = "give each reward a `name` of its own";
        if RESERVED_SCORES.contains(&name.as_str()) && name != RAW_OUTCOME {
            let message = format!("a reward cannot be called `{name}`: tamis computes a metric of that name");
            self.error(&[&key], message, hint);
        }
        let given = self.tree.at(&format!("reward.{index}.name")).map(Node::to_json);
        if given.is_some_and(|name| name == RAW_OUTCOME) {
            self.warn(
                &[&key],
                format!(
                    "`{key}` has no effect: `acc` already names the raw outcome of the first verifier; this \
                     score is named after its kind"
                ),
                format!("remove `{key}`"),
            );
        }
        if self.config.reward.iter().take(index).any(|other| other.name == *name) {
            self.error(
                &[&key, &format!("reward[{index}]")],
                format!("two rewards are called `{name}`"),
                hint,
            );
        }
    }
}
