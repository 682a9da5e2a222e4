//! Choice of the kept groups that are copied if too few were kept.

use crate::random::Key;

/// Indices of the groups to copy, one for each copy, among `num_groups` kept ones: a random order of them,
/// repeated. Numbers of copies differ by at most one, and the draw decides which groups get one more.
///
/// Empty if no group was kept: there is nothing to copy.
///
/// # Source
/// `get_bad_sample_replacements` of SkyRL (after POLARIS) if there are as many good groups as groups to
/// replace: it then picks some of them without repetition.
///
/// # Differs from
/// SkyRL if there are fewer good groups: it draws each copy independently, so by chance some groups may have
/// four times the weight of others. Evenly spread copies have the same expectation and use more of the
/// batch's groups.
pub(super) fn choose_copies(num_groups: usize, num_copies: usize, key: Key) -> Vec<usize> {
    key.permutation(num_groups).into_iter().cycle().take(num_copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;
    use proptest::prelude::*;

    #[test]
    fn by_hand() {
        let key = Key::new(1, Purpose::Copies);
        assert_eq!(choose_copies(0, 5, key), Vec::<usize>::new());
        assert_eq!(choose_copies(1, 3, key), [0, 0, 0]);
        assert_eq!(choose_copies(3, 0, key), Vec::<usize>::new());
        // Twice three, and one of them once more: the first of the order.
        let copies = choose_copies(3, 7, key);
        assert_eq!(copies[..3], copies[3..6]);
        assert_eq!(copies[0], copies[6]);
    }

    proptest! {
        #[test]
        fn copies_are_spread_evenly(num_groups in 1usize..40, num_copies in 0usize..200, seed in any::<u64>()) {
            let copies = choose_copies(num_groups, num_copies, Key::new(seed, Purpose::Copies));
            prop_assert_eq!(copies.len(), num_copies);
            let mut counts = vec![0; num_groups];
            for place in copies {
                counts[place] += 1;
            }
            let least = num_copies / num_groups;
            prop_assert!(counts.iter().all(|&count| count == least || count == least + 1));
        }
    }

    #[test]
    fn no_group_is_preferred() {
        let mut counts = [0_u32; 5];
        for step in 0..5000 {
            counts[choose_copies(5, 1, Key::new(3, Purpose::Copies).with(step))[0]] += 1;
        }
        // Five deviations of 28 about 1000.
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 142), "{counts:?}");
    }
}
