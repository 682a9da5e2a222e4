//! An advantage of your own: a Python function, whose results are the column `given`.

use super::{AdvantageBatch, AdvantageEstimator, AdvantageState, Advantages, Column, Estimate, Result};
use crate::entry::{Entry, Family};
use crate::fault;
use crate::own_function::OwnFunction;
use crate::ragged::Ragged;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "python",
    family: Family::Advantage,
    formula: "A of each trajectory, or of each token, is what the function returns",
    source: "your file; docs/objectives.md has the columns that it gets and what it returns",
    degenerate: &[
        "an unscored trajectory gets 0, whatever the function returns for it, and so does a masked token",
        "an advantage that is not finite ends the run with the trajectory and its reward",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=NAME with @register_adv_est"),
        ("prime-rl", "orchestrator.advantage.type=custom"),
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Advantages that are computed outside of this crate ([`AdvantageBatch::given`]), by a function that
    /// gets all groups of a step.
    pub struct PythonAdvantage {
        ..function: OwnFunction, named;
    }
}

impl AdvantageEstimator for PythonAdvantage {
    fn needs(&self) -> &'static [Column] {
        &[Column::Given]
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::Mask, Column::Lengths, Column::TokenRewards, Column::Components]
    }

    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::OwnFunction)
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let Some(given) = batch.given else { return Err(fault!("column `given` is missing").into()) };
        let advantages = match given {
            Advantages::PerTrajectory(values) => {
                check_rows("group", batch.rewards.offsets(), values.offsets())?;
                for (trajectory, (&reward, &value)) in
                    batch.rewards.values().iter().zip(values.values()).enumerate()
                {
                    if !reward.is_nan() && !value.is_finite() {
                        return Err(fault!(
                            "the advantage of trajectory {trajectory} is {value} (its reward is {reward}); expected a finite number"
                        )
                        .into());
                    }
                }
                return Ok(Estimate::per_trajectory(values.clone(), state));
            }
            Advantages::PerToken(values) => {
                let mask = batch.mask("python")?;
                check_rows("trajectory", mask.offsets(), values.offsets())?;
                let mut advantages = Ragged::default();
                let rows = mask.rows().zip(values.rows()).zip(batch.rewards.values());
                for (trajectory, ((mask_t, values_t), reward)) in rows.enumerate() {
                    let is_read = |t: usize| mask_t[t] && !reward.is_nan();
                    let broken = (0..mask_t.len()).find(|&t| is_read(t) && !values_t[t].is_finite());
                    if let Some(t) = broken {
                        let value = values_t[t];
                        return Err(fault!(
                            "the advantage of token {t} of trajectory {trajectory} is {value} (its reward is {reward}); expected a finite \
                             number"
                        )
                        .into());
                    }
                    let kept = values_t.iter().enumerate();
                    advantages.push_row(kept.map(|(t, &value)| if is_read(t) { value } else { 0.0 }));
                }
                advantages
            }
        };
        Ok(Estimate { advantages: Advantages::PerToken(advantages), returns: None, state: state.clone() })
    }
}

fn check_rows(unit: &str, expected: &[usize], actual: &[usize]) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    let num = |offsets: &[usize]| (offsets.len().saturating_sub(1), offsets.last().copied().unwrap_or(0));
    let ((rows, values), (other_rows, other_values)) = (num(expected), num(actual));
    Err(fault!(
        "column `given` has {other_rows} rows with {other_values} values; expected {rows} rows, one per {unit}, with {values} values"
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(batch: &AdvantageBatch<'_>) -> Result<Advantages> {
        let python = PythonAdvantage { function: OwnFunction::of("my.py") };
        Ok(python.estimate(batch, &AdvantageState::default())?.advantages)
    }

    /// Two groups, of two trajectories and of one; the second trajectory is unscored.
    #[test]
    fn what_is_given_per_trajectory_is_taken_but_for_the_unscored() {
        let rewards = Ragged::from_rows([vec![1.0, f64::NAN], vec![0.5]]);
        let given = Advantages::PerTrajectory(Ragged::from_rows([vec![2.0, f64::NAN], vec![-1.0]]));
        let batch = AdvantageBatch { given: Some(&given), ..AdvantageBatch::of_rewards(&rewards) };
        assert_eq!(estimate(&batch).unwrap().values(), [2.0, 0.0, -1.0]);
        let broken = Advantages::PerTrajectory(Ragged::from_rows([vec![2.0, 0.0], vec![f64::INFINITY]]));
        let error = estimate(&AdvantageBatch { given: Some(&broken), ..batch }).unwrap_err().to_string();
        assert_eq!(
            error,
            "the advantage of trajectory 2 is inf (its reward is 0.5); expected a finite number"
        );
        let short = Advantages::PerTrajectory(Ragged::from_rows([vec![2.0, 0.0]]));
        let error = estimate(&AdvantageBatch { given: Some(&short), ..batch }).unwrap_err().to_string();
        assert_eq!(
            error,
            "column `given` has 1 rows with 2 values; expected 2 rows, one per group, with 3 values"
        );
    }

    #[test]
    fn what_is_given_per_token_is_taken_where_the_policy_wrote() {
        let rewards = Ragged::from_rows([[1.0, f64::NAN]]);
        let mask = Ragged::from_rows([vec![true, false, true], vec![true]]);
        let given =
            Advantages::PerToken(Ragged::from_rows([vec![0.25, f64::NAN, -4.0], vec![f64::INFINITY]]));
        let plain = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
        let batch = AdvantageBatch { given: Some(&given), ..plain };
        assert_eq!(estimate(&batch).unwrap().values(), [0.25, 0.0, -4.0, 0.0]);
        let broken = Advantages::PerToken(Ragged::from_rows([vec![0.0, 0.0, f64::NAN], vec![0.0]]));
        let error = estimate(&AdvantageBatch { given: Some(&broken), ..plain }).unwrap_err().to_string();
        assert_eq!(
            error,
            "the advantage of token 2 of trajectory 0 is NaN (its reward is 1); expected a finite number"
        );
        let error = estimate(&plain).unwrap_err().to_string();
        assert!(error.starts_with("column `given` is missing; `python` needs it"), "{error}");
    }
}
