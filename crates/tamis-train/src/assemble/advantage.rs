//! The advantage estimator with its shapings, and a check that the trainer has what the estimator needs.

use tamis_config::{Config, KlPlace};
use tamis_core::advantage::shaping::Shaping;
use tamis_core::advantage::{Advantage, Column};

use crate::error::AssembleError;

/// Columns that the trainer has for every estimator. Values come from a critic, which exists if they are
/// needed.
const PROVIDED: [Column; 13] = [
    Column::Lengths,
    Column::Mask,
    Column::TokenRewards,
    Column::OldLogprobs,
    Column::Entropy,
    Column::SumPiSquared,
    Column::GoldLogprobs,
    Column::TeacherLogprobs,
    Column::Components,
    Column::GreedyRewards,
    Column::Generated,
    Column::Values,
    Column::Given,
];

/// The estimator, if the trainer has what it needs.
pub fn advantage(config: &Config) -> Result<Advantage, AssembleError> {
    let advantage = config.objective.advantage.clone();
    advantage.check()?;
    if let Some(column) = advantage.needs().iter().find(|column| !PROVIDED.contains(column)) {
        return Err(AssembleError::at(
            "objective.advantage.kind",
            format!(
                "`{}` needs the column `{}` ({}), which `tamis train` does not provide",
                advantage.name(),
                column.name(),
                column.meaning()
            ),
            "choose another estimator, such as grpo",
        ));
    }
    // A function of the user's gets the rewards too.
    let is_own = matches!(advantage, Advantage::Python(_));
    let reads_scores =
        advantage.uses().contains(&Column::Components) || advantage.needs().contains(&Column::Generated);
    if reads_scores && !is_own && config.objective.kl.place == KlPlace::Reward {
        return Err(AssembleError::at(
            "objective.kl.in",
            format!(
                "the KL cannot be in the reward: `{}` reads the rewards before they are summed",
                advantage.name()
            ),
            "set objective.kl.in=loss",
        ));
    }
    Ok(advantage)
}

/// Shapings in their order.
pub fn shapings(config: &Config) -> Result<Vec<Shaping>, AssembleError> {
    let shapings = config.objective.shaping.clone();
    shapings.iter().try_for_each(|shaping| shaping.check())?;
    Ok(shapings)
}
