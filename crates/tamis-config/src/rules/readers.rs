//! Which estimators and losses read which of the settings.

use crate::schema::{Estimator, LossKind};

/// The estimators that read each setting of the advantage.
pub(super) const ADVANTAGE_READERS: &[(&str, &[Estimator])] = {
    use Estimator::{
        BiLevelGae, Bnpo, BnpoRunning, Cpo, DrGrpo, Gae, Gdpo, Gpg, Grpo, GrpoPassk, NormalizeThenSum, Opo,
        OptimalTokenBaseline, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax, Rloo,
        TirOptimalTokenBaseline,
    };
    &[
        ("norm_by_std", &[Grpo, GrpoPassk, Cpo]),
        ("ddof", &[Grpo, GrpoPassk, Cpo, Bnpo]),
        (
            "epsilon",
            &[Grpo, GrpoPassk, Cpo, Gdpo, NormalizeThenSum, OptimalTokenBaseline, TirOptimalTokenBaseline],
        ),
        ("scale", &[Grpo, Cpo]),
        (
            "singleton",
            &[
                Grpo,
                DrGrpo,
                GrpoPassk,
                Rloo,
                ReinforcePlusPlusBaseline,
                Opo,
                Gpg,
                Gdpo,
                NormalizeThenSum,
                OptimalTokenBaseline,
                TirOptimalTokenBaseline,
                Cpo,
            ],
        ),
        ("whiten", &[ReinforcePlusPlus, ReinforcePlusPlusBaseline, Gdpo, Gae, BiLevelGae]),
        ("gamma", &[ReinforcePlusPlus, Gae, BiLevelGae]),
        ("lambda", &[Gae, BiLevelGae]),
        ("turn_gamma", &[BiLevelGae]),
        (
            "masked_rewards",
            &[ReinforcePlusPlus, Remax, OptimalTokenBaseline, TirOptimalTokenBaseline, Gae, BiLevelGae],
        ),
        ("tail", &[OptimalTokenBaseline, TirOptimalTokenBaseline]),
        ("gpg_alpha", &[Gpg]),
        ("divisor", &[Gpg]),
        ("alpha", &[Bnpo]),
        ("beta", &[Bnpo]),
        ("at_least_one", &[Bnpo]),
        ("max_weight", &[Bnpo]),
        ("low", &[Bnpo, BnpoRunning]),
        ("high", &[Bnpo, BnpoRunning]),
        ("window", &[BnpoRunning]),
        ("prior", &[BnpoRunning]),
        ("delta", &[BnpoRunning]),
        ("gold_hint", &[Cpo]),
        ("wrap", &[Cpo]),
        ("pos_alpha", &[Cpo]),
        ("neg_alpha", &[Cpo]),
        ("right", &[Cpo]),
    ]
};

/// The losses that read each setting of the loss.
pub(super) const LOSS_READERS: &[(&str, &[LossKind])] = {
    use LossKind::{
        Cispo, Clip, ClipCov, Decoupled, DppoKl, DppoTv, Dro, GeoMean, Gspo, KlCov, Luspo, Sapo, Vespo,
    };
    &[
        ("clip_low", &[Clip, Gspo, Luspo, Decoupled, ClipCov, GeoMean, Cispo, DppoTv, DppoKl]),
        ("clip_high", &[Clip, Gspo, Luspo, Decoupled, ClipCov, GeoMean, Cispo, DppoTv, DppoKl]),
        ("dual_clip", &[Clip, Decoupled]),
        ("delta", &[Clip]),
        ("form", &[Gspo]),
        ("bound", &[Cispo]),
        ("max_ratio", &[Cispo, DppoTv, DppoKl]),
        ("weight_cap", &[Decoupled]),
        ("log_ratio_limit", &[Clip, Gspo, Luspo, Decoupled, Cispo, Sapo, DppoTv, DppoKl]),
        ("share", &[ClipCov, KlCov]),
        ("cov_low", &[ClipCov]),
        ("cov_high", &[ClipCov]),
        ("cov_coefficient", &[KlCov]),
        ("tau_positive", &[Sapo]),
        ("tau_negative", &[Sapo]),
        ("beta", &[Dro]),
        ("k_positive", &[Vespo]),
        ("lambda_positive", &[Vespo]),
        ("k_negative", &[Vespo]),
        ("lambda_negative", &[Vespo]),
    ]
};

/// The losses whose ratio may be the trajectory's.
pub(super) const LEVELLED: [LossKind; 6] =
    [LossKind::Clip, LossKind::Luspo, LossKind::Decoupled, LossKind::Cispo, LossKind::Sapo, LossKind::Vespo];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Display;

    use tamis_core::catalogue::{Family, entries};

    use super::*;

    /// `tamis explain` lists the keys of every estimator and loss: those that it reads, no more and no fewer.
    #[test]
    fn the_catalogue_lists_the_keys_that_are_read() {
        fn check<C: Display + Copy + PartialEq>(family: Family, all: &[C], readers: &[(&str, &[C])]) {
            for &kind in all {
                let read: BTreeSet<String> = readers
                    .iter()
                    .filter(|(_, readers)| readers.contains(&kind))
                    .map(|(key, _)| format!("{}.{key}", family.key()))
                    .collect();
                let entry = entries()
                    .find(|entry| entry.family == family && *entry.name == *kind.to_string())
                    .unwrap_or_else(|| panic!("{kind} is not in the catalogue"));
                let listed: BTreeSet<String> =
                    entry.defaults.iter().map(|(key, _)| (*key).to_owned()).collect();
                assert_eq!(listed, read, "{kind}");
            }
        }
        check(Family::Advantage, Estimator::ALL, ADVANTAGE_READERS);
        check(Family::PolicyLoss, LossKind::ALL, LOSS_READERS);
    }
}
