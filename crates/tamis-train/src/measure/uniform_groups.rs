//! Groups in the batch whose members all have the same reward, though a filter is on.

use tamis_core::ragged::Ragged;
use tamis_run::metrics::summary::has_one_value;

/// The warning of a step that trains on such groups; `None` if it does not. `rewards` are those that
/// are compared within a group `[P][G]`, NaN for a member that is not.
pub(crate) fn warn_of_uniform_groups(step: u64, rewards: &Ragged<f64>, remedy: &str) -> Option<String> {
    let number = rewards.rows().filter(|row| has_one_value(row.iter().copied())).count();
    (number > 0).then(|| {
        format!(
            "step {step}: the filter kept groups whose members all have the same reward, {number} of the {} trained on. A \
             group-relative advantage is 0 for all of them{remedy}; `frac_reward_zero_std` counts them from now on",
            rewards.num_rows(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_with_one_reward_are_counted() {
        const MIXED: [f64; 3] = [0.0, 1.0, f64::NAN];
        const UNIFORM: [f64; 3] = [1.0, 1.0, f64::NAN];
        assert_eq!(warn_of_uniform_groups(1, &Ragged::from_rows([MIXED, MIXED]), ""), None);
        // One member has nothing to differ from.
        assert_eq!(warn_of_uniform_groups(1, &Ragged::from_rows([[1.0]]), ""), None);
        insta::assert_snapshot!(warn_of_uniform_groups(2, &Ragged::from_rows([MIXED, UNIFORM]), "; drop them").unwrap(), @"step 2: the filter kept groups whose members all have the same reward, 1 of the 2 trained on. A group-relative advantage is 0 for all of them; drop them; `frac_reward_zero_std` counts them from now on");
    }
}
