//! Which losses read which of the settings.

use crate::schema::LossKind;

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

    /// `tamis explain` lists the keys of every loss: those that it reads, no more and no fewer.
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
        check(Family::PolicyLoss, LossKind::ALL, LOSS_READERS);
    }
}
