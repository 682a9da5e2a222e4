//! How uneven ranks are, before and after sharing out.

/// Tokens of the ranks of an optimizer batch (verl `global_seqlen/*`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Imbalance {
    /// Fewest of a rank, were the batch cut in order.
    pub min: usize,
    /// Most of a rank, were it cut in order.
    pub max: usize,
    /// Fewest of a rank as shared out.
    pub balanced_min: usize,
    /// Most of a rank as shared out.
    pub balanced_max: usize,
    /// Tokens over ranks.
    pub mean: f64,
}

impl Imbalance {
    /// Of lengths \[B\] and the indices of each rank. Cut in order means slices of `B / ranks` sequences,
    /// what is left over not counted, as verl does. Indices outside the batch count 0; without ranks
    /// everything is 0 and the mean NaN.
    pub fn of(lengths: &[usize], shares: &[Vec<usize>]) -> Self {
        let size = lengths.len() / shares.len().max(1);
        let slices =
            (0..shares.len()).map(|rank| lengths[rank * size..(rank + 1) * size].iter().sum::<usize>());
        let tokens = shares
            .iter()
            .map(|share| share.iter().filter_map(|&item| lengths.get(item)).sum::<usize>())
            .collect::<Vec<_>>();
        Self {
            min: slices.clone().min().unwrap_or(0),
            max: slices.max().unwrap_or(0),
            balanced_min: tokens.iter().copied().min().unwrap_or(0),
            balanced_max: tokens.iter().copied().max().unwrap_or(0),
            mean: lengths.iter().sum::<usize>() as f64 / shares.len() as f64,
        }
    }

    /// Names as logged, verl's.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("global_seqlen/min", self.min as f64),
            ("global_seqlen/max", self.max as f64),
            ("global_seqlen/minmax_diff", (self.max - self.min) as f64),
            ("global_seqlen/balanced_min", self.balanced_min as f64),
            ("global_seqlen/balanced_max", self.balanced_max as f64),
            ("global_seqlen/mean", self.mean),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_and_after_by_hand() {
        let found = Imbalance::of(&[1, 2, 3, 4], &[vec![0, 3], vec![1, 2]]);
        assert_eq!((found.min, found.max, found.balanced_min, found.balanced_max), (3, 7, 5, 5));
        assert!((found.mean - 5.0).abs() < 1e-15);
        assert_eq!(Imbalance::of(&[1], &[]).max, 0);
    }
}
