//! Rules about the list of rewards.

use tamis_core::group::RESERVED_SCORES;

use super::Checker;
use crate::schema::{RAW_OUTCOME, RewardConfig, RewardKind};
use crate::source::SourceKind;
use crate::tree::Node;

impl Checker<'_> {
    pub(super) fn rewards(&mut self) {
        let config = self.config;
        let from_preset = |index: usize| {
            let node = self.tree.at(&format!("reward.{index}"));
            node.is_some_and(|node| matches!(node.origin.source.kind, SourceKind::Preset(_)))
        };
        if (0..config.reward.len()).all(from_preset) {
            self.missing(
                &["reward"],
                "there is no reward: `reward` is empty, and no task (`data.task`) brings a verifier",
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
            self.reward_kind(index, &reward.kind);
        }
    }

    fn reward_name(&mut self, index: usize, reward: &RewardConfig) {
        let (name, key) = (&reward.name, format!("reward[{index}].name"));
        let hint = "give each reward a `name` of its own";
        if RESERVED_SCORES.contains(&name.as_str()) && name != RAW_OUTCOME {
            let message = format!("a reward cannot be called `{name}`: tamis computes a number of that name");
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

    fn reward_kind(&mut self, index: usize, kind: &RewardKind) {
        let key = |name: &str| format!("reward[{index}].{name}");
        match kind {
            RewardKind::Repetition { max_penalty: value, .. } if *value > 0.0 => {
                let key = key("max_penalty");
                let message = format!("`{key}` is {value}: a penalty is 0 or less");
                self.error(&[&key], message, format!("write {}", -value));
            }
            RewardKind::Judge { servers, prompt, .. } => {
                if servers.is_empty() {
                    self.error(
                        &[&key("servers"), &key("kind")],
                        format!("`{}` is empty: the judge needs a server", key("servers")),
                        "set it: `servers: [http://HOST:PORT]`, or `[https://HOST]`",
                    );
                }
                if !prompt.contains("{completion}") {
                    self.error(
                        &[&key("prompt"), &key("kind")],
                        format!(
                            "`{}` has no `{{completion}}` in it: the judge would not see the completion",
                            key("prompt")
                        ),
                        "write `{completion}` where the policy's text belongs; `{prompt}`, `{ground_truth}` and \
                         columns of the data may stand there too",
                    );
                }
            }
            RewardKind::SoftOverlong { buffer: Some(buffer), max_length, .. } => {
                let max_length = max_length.unwrap_or(self.config.rollout.max_response_length);
                if *buffer > max_length {
                    let key = key("buffer");
                    self.error(
                        &[&key, "rollout.max_response_length"],
                        format!("`{key}` ({buffer}) is above the response limit ({max_length})"),
                        format!("use {max_length} or less"),
                    );
                }
            }
            _ => {}
        }
    }
}
