//! Division of a step's groups into optimizer updates.

use std::num::NonZeroUsize;
use std::ops::Range;

/// Cuts `num_groups` groups, in batch order, into mini-batches of `mini_batch_size` groups. The last one is
/// smaller if `mini_batch_size` does not divide `num_groups`.
///
/// One range is one optimizer update. Nothing is dropped, repeated or padded: a partial batch of 45 groups
/// and mini-batches of 32 give updates over 32 and over 13 groups. The aggregation decides the weight of the
/// smaller update: its normalisers count the tokens or sequences of *that* mini-batch. With fewer tokens,
/// each of them has a greater weight, and both updates take a whole step of the learning rate. (verl's
/// `split` leaves the same smaller tail; with fixed micro-batches it fails instead.)
///
/// No groups give no mini-batches; fewer groups than `mini_batch_size` give one.
///
/// ```
/// use std::num::NonZeroUsize;
/// let size = NonZeroUsize::new(32).unwrap();
/// assert_eq!(tamis_core::schedule::mini_batches(45, size), [0..32, 32..45]);
/// ```
pub fn mini_batches(num_groups: usize, mini_batch_size: NonZeroUsize) -> Vec<Range<usize>> {
    (0..num_groups)
        .step_by(mini_batch_size.get())
        .map(|start| start..num_groups.min(start.saturating_add(mini_batch_size.get())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_size_beyond_every_sum_is_one_update() {
        assert_eq!(mini_batches(3, NonZeroUsize::MAX), [0..3; 1]);
    }

    proptest! {
        #[test]
        fn every_group_is_in_exactly_one_update(num_groups in 0usize..200, size in 1usize..64) {
            let cut = mini_batches(num_groups, NonZeroUsize::new(size).unwrap());
            let covered: Vec<usize> = cut.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..num_groups).collect::<Vec<_>>());
            for (i, range) in cut.iter().enumerate() {
                prop_assert!(range.len() == size || (i + 1 == cut.len() && !range.is_empty()));
            }
        }
    }
}
