//! The covariance of advantage and log-probability, by which `clip_cov` and `kl_cov` choose tokens.

use super::columns::{Columns, Real};

/// `(A_t - mean A)·(logprob_t - mean logprob)` of every unmasked token, in batch order: its index, its
/// advantage, and the covariance.
pub(super) fn covariances<T: Real>(columns: &Columns<'_, T>) -> impl Iterator<Item = (usize, f64, f64)> {
    let (mut advantages, mut logprobs, mut count) = (0.0, 0.0, 0_usize);
    for (t, advantage) in unmasked(columns) {
        advantages += advantage;
        logprobs += columns.logprob[t].into();
        count += 1;
    }
    let (advantages, logprobs) = (advantages / count as f64, logprobs / count as f64);
    unmasked(columns).map(move |(t, advantage)| {
        (t, advantage, (advantage - advantages) * (columns.logprob[t].into() - logprobs))
    })
}

/// `max(1, floor(share·N))` of the N unmasked tokens.
pub(super) fn share_of<T: Real>(share: f64, columns: &Columns<'_, T>) -> usize {
    let tokens = columns.mask.iter().filter(|&&on| on).count();
    ((share * tokens as f64) as usize).max(1)
}

/// The unmasked tokens of a batch, each with its advantage.
fn unmasked<T: Real>(columns: &Columns<'_, T>) -> impl Iterator<Item = (usize, f64)> + Clone {
    let rows = 0..columns.num_sequences();
    rows.flat_map(move |i| {
        let row = columns.row(i);
        let tokens = row.tokens.clone();
        tokens
            .enumerate()
            .filter(move |(t, _)| row.mask[*t])
            .map(move |(t, token)| (token, row.advantage.at(t)))
    })
}
