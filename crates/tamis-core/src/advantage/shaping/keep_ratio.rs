//! Fewer negative or positive examples: only a share of a group's negative or positive trajectories is
//! trained on.

use super::{ShapeAdvantages, Shaped, ShapingBatch};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::settings;

pub(in crate::advantage) const NEG_ENTRY: Entry = Entry {
    name: "keep_neg_ratio",
    family: Family::Shaping,
    formula: "keep the max(1, floor(ratio·n)) most negative of the n negative ones of each group, none if ratio is 0",
    source: "the fork Coobiw/EasyR1-Brian (2025-10), algorithm.keep_neg_ratio",
    degenerate: &[
        "other trajectories get advantage 0 and are left out of the loss, including entropy and KL; trajectories of advantage 0 stay",
        "a keyed draw decides between equally bad ones",
    ],
    known_as: &[("EasyR1-Brian", "algorithm.keep_neg_ratio")],
    differences: &[
        "the fork chooses equally bad ones in the order of its sort, truncates ratio·n in floating point, and \
            does so only for GRPO; its `compute_new_adv`, which normalises the kept ones again, does not exist here",
    ],
    ..Entry::REGISTERED
};

pub(in crate::advantage) const POS_ENTRY: Entry = Entry {
    name: "keep_pos_ratio",
    family: Family::Shaping,
    formula: "keep the max(1, floor(ratio·n)) most positive of the n positive ones of each group, none if ratio is 0",
    source: "the fork Coobiw/EasyR1-Brian (2025-11), algorithm.keep_pos_ratio",
    degenerate: &[
        "other trajectories get advantage 0 and are left out of the loss, including entropy and KL; trajectories of advantage 0 stay",
        "a keyed draw decides between equally good ones",
    ],
    known_as: &[("EasyR1-Brian", "algorithm.keep_pos_ratio")],
    differences: &["as `keep_neg_ratio`"],
    ..Entry::REGISTERED
};

settings! {
    /// Keeps the `max(1, floor(ratio·n))` worst of the n negative trajectories of each group; none if the
    /// ratio is 0.
    ///
    /// With advantages per token the sum over a trajectory's tokens decides. A keyed draw decides between
    /// equally bad ones, so that the choice depends on neither their order nor the rest of the batch.
    ///
    /// Source: the fork Coobiw/EasyR1-Brian. Cost: sorting within groups.
    #[derive(Copy)]
    pub struct KeepNegRatio {
        /// Share of each group's trajectories of negative advantage that is kept.
        ratio: f64 = 1.0, Between(0.0, 1.0);
    }
}

settings! {
    /// Like [`KeepNegRatio`] for positive trajectories, the best first.
    #[derive(Copy)]
    pub struct KeepPosRatio {
        /// Share of each group's trajectories of positive advantage that is kept.
        ratio: f64 = 1.0, Between(0.0, 1.0);
    }
}

fn num_kept(ratio: f64, n: usize) -> usize {
    if ratio <= 0.0 || n == 0 {
        return 0;
    }
    // 0.29·100 is 28.999… in floating point; 29 is meant.
    ((ratio * n as f64 + 1e-9).floor() as usize).clamp(1, n)
}

/// Drops the least extreme of the trajectories whose advantage has the given sign.
fn keep(ratio: f64, sign: f64, purpose: u64, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
    let rewards = batch.batch.rewards;
    let mut kept = shaped.kept.take().unwrap_or_else(|| {
        let mut all = Ragged::default();
        for rewards_g in rewards.rows() {
            all.push_row(std::iter::repeat_n(true, rewards_g.len()));
        }
        all
    });
    // (extremity, draw, index in the group)
    let mut candidates: Vec<(f64, u64, usize)> = Vec::new();
    let mut dropped = vec![false; rewards.num_values()];
    for (group, offset) in rewards.offsets().iter().copied().take(rewards.num_rows()).enumerate() {
        let id = batch.group_ids.and_then(|ids| ids.get(group)).map_or(group as u64, |id| id.0);
        let key = batch.key.with(purpose).with(id);
        candidates.clear();
        for place in 0..rewards.row(group).len() {
            let extremity = sign * shaped.of_trajectory(offset + place);
            if extremity > 0.0 {
                candidates.push((extremity, key.bits(place as u64), place));
            }
        }
        let num_kept = num_kept(ratio, candidates.len());
        if num_kept < candidates.len() {
            candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
            for &(.., place) in &candidates[num_kept..] {
                kept.row_mut(group)[place] = false;
                dropped[offset + place] = true;
            }
        }
    }
    shaped.scale(|i| if dropped[i] { 0.0 } else { 1.0 });
    shaped.kept = Some(kept);
}

impl ShapeAdvantages for KeepNegRatio {
    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
        keep(self.ratio, -1.0, 1, shaped, batch);
    }
}

impl ShapeAdvantages for KeepPosRatio {
    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
        keep(self.ratio, 1.0, 2, shaped, batch);
    }
}

#[cfg(test)]
mod tests {
    use super::num_kept;

    #[test]
    fn at_least_one_unless_the_ratio_is_zero() {
        let kept = |ratio| [0, 1, 3, 4, 100].map(|n| num_kept(ratio, n));
        assert_eq!(kept(0.0), [0; 5]);
        assert_eq!(kept(0.29), [0, 1, 1, 1, 29]);
        assert_eq!(kept(0.5), [0, 1, 1, 2, 50]);
        assert_eq!(kept(1.0), [0, 1, 3, 4, 100]);
    }
}
