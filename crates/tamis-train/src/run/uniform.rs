//! Groups in the batch whose members all have the same reward, though a filter is on: told where the estimator compares within a group,
//! but not at every step.

use serde::{Deserialize, Serialize};
use tamis_core::ragged::Ragged;

use tamis_run::metrics::summary::has_one_value;

/// How often such groups were trained on. A warning comes with the 1st, 2nd, 4th, 8th ... step that trains on some, so that a run of any length is
/// told of it a handful of times; `frac_reward_zero_std` has every step. A checkpoint holds it: a resumed run counts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UniformGroups {
    num_steps: u64,
    num_groups: u64,
    told_at: u64,
}

impl UniformGroups {
    /// Counts those of a step's batch; what to tell, where it is time to. `rewards` are those that are compared within a group `[P][G]`, NaN for
    /// a member that is not.
    pub(super) fn see(&mut self, step: u64, rewards: &Ragged<f64>, remedy: &str) -> Option<String> {
        let number = rewards.rows().filter(|row| has_one_value(row.iter().copied())).count();
        if number == 0 {
            return None;
        }
        self.num_steps += 1;
        self.num_groups += number as u64;
        if self.num_steps < 2 * self.told_at {
            return None;
        }
        self.told_at = self.num_steps;
        let before = match self.num_steps {
            1 => String::new(),
            steps => format!("; {} groups in {steps} steps so far", self.num_groups),
        };
        Some(format!(
            "step {step}: the filter kept groups whose members all have the same reward, {number} of the {} trained on{before}. A \
             group-relative advantage is 0 for all of them{remedy}",
            rewards.num_rows(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_with_its_count_and_seldom() {
        const MIXED: [f64; 3] = [0.0, 1.0, f64::NAN];
        const UNIFORM: [f64; 3] = [1.0, 1.0, f64::NAN];
        let mut seen = UniformGroups::default();
        assert_eq!(seen.see(1, &Ragged::from_rows([MIXED, MIXED]), ""), None);
        // One member has nothing to differ from.
        assert_eq!(seen.see(1, &Ragged::from_rows([[1.0]]), ""), None);
        insta::assert_snapshot!(seen.see(2, &Ragged::from_rows([MIXED, UNIFORM]), "; drop them").unwrap(), @"step 2: the filter kept groups whose members all have the same reward, 1 of the 2 trained on. A group-relative advantage is 0 for all of them; drop them");
        let both = Ragged::from_rows([UNIFORM, UNIFORM]);
        let told: Vec<u64> = (3..=100).filter(|step| seen.see(*step, &both, "").is_some()).collect();
        assert_eq!(told, [3, 5, 9, 17, 33, 65]);
        // The state is a value: of a step that was given up nothing is counted.
        let before = seen;
        assert_eq!(seen.see(101, &both, ""), None);
        assert_ne!(seen, before);
    }
}
