//! The cut of a pass into chunks of rows and shards of gradients.

/// Most rows that go through the layers together, so that the output of one operation is still in a near
/// cache when the next reads it. With fewer rows, weights and gradients are read more often. (Measured on
/// AVX2: 1 M weights 1.15 times as fast as with 12,000 rows at once, 31 M weights 1.04 times as fast as with
/// 3,000.)
const NEAR_ROWS: usize = 512;
pub(crate) const FAR_ROWS: usize = 1536;

/// Rows that are worth a separate gradient sum, and the most such sums.
const SHARD_ROWS: usize = 256;
const SHARDS: usize = 8;

/// Whether this many weights stay in the caches: up to 16 MiB.
pub(crate) fn stay_near(num_parameters: usize) -> bool {
    num_parameters <= 4 << 20
}

/// Division of a pass into chunks of rows. It depends on model and rows, never on the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Gradient sums gathered side by side, each over consecutive chunks. One if weights are many: then the
    /// threads share each product. Otherwise each thread takes whole chunks and never waits.
    pub shards: usize,
    /// Total number of chunks.
    pub chunks: usize,
}

impl Cut {
    pub(crate) fn of(num_parameters: usize, rows: usize) -> Self {
        if !stay_near(num_parameters) {
            return Self { shards: 1, chunks: rows.div_ceil(FAR_ROWS) };
        }
        let shards = if rows < SHARD_ROWS / 2 { 1 } else { (rows / SHARD_ROWS).clamp(2, SHARDS) };
        Self { shards, chunks: shards * rows.div_ceil(shards * NEAR_ROWS) }
    }

    /// Most rows of any chunk of a pass with at most `rows` rows, if no group has more than `group`.
    ///
    /// Groups are not cut. A chunk has the groups whose middles lie within an even share of the rows. It is
    /// either one group, or several; then the first and the last reach beyond the share by at most half their
    /// rows each, and together by at most one group.
    pub(crate) fn most_rows(num_parameters: usize, rows: usize, group: usize) -> usize {
        let share = rows.min(if stay_near(num_parameters) { NEAR_ROWS } else { FAR_ROWS });
        group.max(share.saturating_add(group).min(2 * share)).min(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_evenly() {
        let cut = |rows| {
            let Cut { shards, chunks } = Cut::of(1 << 20, rows);
            (shards, chunks)
        };
        assert_eq!(
            [0, 100, 200, 1000, 1100, 9000].map(cut),
            [(1, 0), (1, 1), (2, 2), (3, 3), (4, 4), (8, 24)]
        );
        assert_eq!(Cut::of(1 << 25, 4000), Cut { shards: 1, chunks: 3 });
        let largest = |group| Cut::most_rows(1 << 25, 4000, group);
        assert_eq!([1, 100, 1536, 2000, 3500, 5000].map(largest), [1537, 1636, 3072, 3072, 3500, 4000]);
        assert_eq!([100, 600].map(|rows| Cut::most_rows(1 << 20, rows, 50)), [100, 562]);
    }
}
