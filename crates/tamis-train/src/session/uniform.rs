//! Groups in the batch whose members all have the same reward, though a filter is on: told where the estimator compares within a group,
//! but not at every step.

use serde::{Deserialize, Serialize};
use tamis_core::group::Group;

use crate::batch_metrics::has_one_value;

/// How often such groups were trained on. A warning comes with the first of them, and again whenever there have been twice as many steps
/// with some as at the last warning, so that a run of any length is told of it a handful of times; `frac_reward_zero_std` has every step.
/// A checkpoint holds it: a resumed run counts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UniformGroups {
    /// The step from which on they were counted: 1, or the first after a checkpoint of an earlier build, which did not hold the count.
    since: u64,
    num_steps: u64,
    num_groups: u64,
    told_at: u64,
}

impl UniformGroups {
    /// Nothing was counted before this step.
    pub(super) fn since(step: u64) -> Self {
        Self { since: step, num_steps: 0, num_groups: 0, told_at: 0 }
    }

    /// Counts those of a step's batch; what to tell, where it is time to. Rewards of members that do not train are NaN.
    pub(super) fn see(&mut self, step: u64, groups: &[&Group], remedy: &str) -> Option<String> {
        let is_uniform =
            |group: &&&Group| has_one_value(group.trajectories.iter().map(|member| member.reward));
        let number = groups.iter().filter(is_uniform).count();
        if number == 0 {
            return None;
        }
        self.num_steps += 1;
        self.num_groups += number as u64;
        if self.num_steps < 2 * self.told_at {
            return None;
        }
        self.told_at = self.num_steps;
        let before = match (self.num_steps, self.since) {
            (1, _) => String::new(),
            (steps, 1) => format!("; {} groups in {steps} steps so far", self.num_groups),
            (steps, since) => format!("; {} groups in {steps} steps since step {since}", self.num_groups),
        };
        Some(format!(
            "step {step}: the filter kept groups whose members all have the same reward, {number} of the {} trained on{before}. A \
             group-relative advantage is 0 for all of them{remedy}",
            groups.len(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tamis_core::group::{FinishReason, GroupId, PolicyVersion, PromptId, Trajectory};

    use super::*;

    fn group(rewards: &[f64]) -> Group {
        let member = |reward: &f64| Trajectory {
            sample_index: 0,
            text: String::new(),
            token_ids: vec![1],
            logprobs: vec![0.0],
            entropy: None,
            loss_mask: vec![true],
            finish_reason: FinishReason::Stop,
            versions: (PolicyVersion(0), PolicyVersion(0)),
            scores: BTreeMap::new(),
            reward: *reward,
        };
        Group {
            id: GroupId(0),
            prompt: PromptId(0),
            epoch: 0,
            dispatched: PolicyVersion(0),
            prompt_token_ids: vec![1],
            trajectories: rewards.iter().map(member).collect(),
        }
    }

    #[test]
    fn told_with_its_count_and_seldom() {
        let (mixed, uniform) = (group(&[0.0, 1.0, f64::NAN]), group(&[1.0, 1.0, f64::NAN]));
        let mut seen = UniformGroups::since(1);
        assert_eq!(seen.see(1, &[&mixed, &mixed], ""), None);
        // One member has nothing to differ from.
        assert_eq!(seen.see(1, &[&group(&[1.0])], ""), None);
        insta::assert_snapshot!(seen.see(2, &[&mixed, &uniform], "; drop them").unwrap(), @"step 2: the filter kept groups whose members all have the same reward, 1 of the 2 trained on. A group-relative advantage is 0 for all of them; drop them");
        let told: Vec<u64> =
            (3..=100).filter(|step| seen.see(*step, &[&uniform, &uniform], "").is_some()).collect();
        assert_eq!(told, [3, 5, 9, 17, 33, 65]);
        let last = seen.see(101, &[&uniform], "");
        assert_eq!(last, None);
        // After a checkpoint that did not hold the count.
        let mut resumed = UniformGroups::since(40);
        let told = resumed.see(41, &[&uniform], "").unwrap();
        assert!(told.contains("1 of the 1 trained on. A"), "{told}");
        insta::assert_snapshot!(resumed.see(44, &[&uniform], "").unwrap(), @"step 44: the filter kept groups whose members all have the same reward, 1 of the 1 trained on; 2 groups in 2 steps since step 40. A group-relative advantage is 0 for all of them");
    }
}
