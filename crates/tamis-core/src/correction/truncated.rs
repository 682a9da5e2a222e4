//! Truncated completions stay out of the loss: a truncated text does not show how it would have ended.

use crate::entry::{Entry, Family};
use crate::fault::Fault;
use crate::ragged::{Ragged, check_length};

pub(super) const ENTRY: Entry = Entry {
    name: "truncated",
    family: Family::Mask,
    meaning: "Leaves completions that the response limit truncated out of the loss; their reward still counts in the group's advantage.",
    formula: "m_t = 0 for every token of a trajectory whose finish reason is the length",
    source: "overlong filtering: DAPO, arXiv 2503.14476, section 3.4",
    defaults: &["objective.masks.truncated"],
    degenerate: &[
        "a batch of truncated completions has loss and gradient 0",
        "an empty completion is not truncated; TRL raises an error",
    ],
    known_as: &[("TRL", "mask_truncated_completions")],
    differences: &[
        "TRL looks for an end or padding token at the end of the ids, so that a completion ended by a stop \
            string counts as truncated; here the finish reason decides, and `ends_with` is for ids without \
            one",
        "TRL leaves the masked tokens out of the denominator too, and so does tamis",
    ],
};

/// Whether ids end in one of the end (or padding) tokens: TRL's test of a finished completion, for data
/// without a finish reason. Empty ids are finished.
///
/// ```
/// use tamis_core::correction::truncated::ends_with;
/// assert!(ends_with(&[7, 8, 2], &[2, 0]) && ends_with(&[], &[2]));
/// assert!(!ends_with(&[2, 7], &[2, 0]));
/// ```
pub fn ends_with(token_ids: &[u32], end_ids: &[u32]) -> bool {
    token_ids.last().is_none_or(|last| end_ids.contains(last))
}

/// Masks every token of truncated trajectories: mask `[B][T]`, truncated \[B\].
///
/// # Errors
/// There is not one flag per trajectory; the mask is then unchanged.
pub fn mask_truncated(mask: &mut Ragged<bool>, truncated: &[bool]) -> Result<(), Fault> {
    check_length("truncated", mask.num_rows(), truncated.len())?;
    for (row, &truncated) in truncated.iter().enumerate() {
        if truncated {
            mask.row_mut(row).fill(false);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_truncated_ones_go() {
        let mut mask = Ragged::from_rows([vec![true, false], vec![true], vec![]]);
        mask_truncated(&mut mask, &[false, true, true]).expect("fits");
        assert_eq!(mask, Ragged::from_rows([vec![true, false], vec![false], vec![]]));
        insta::assert_snapshot!(
            mask_truncated(&mut mask, &[true]).unwrap_err(),
            @"column `truncated` has 1 values, expected 3"
        );
    }
}
