//! Groups that are looked at together: a generation round, or as many groups of a stream.

use std::collections::BTreeMap;

use tamis_core::group::GroupId;
use tamis_env::reward::Scored;

use crate::scorer::MemberId;

#[derive(Debug, Clone)]
pub(super) struct ScoredMember {
    pub(super) scored: Scored,
    /// Whether reward functions were called now.
    pub(super) is_new: bool,
}

/// Groups whose rewards are examined together: whether they arrive, and whether they have the filter's
/// metric. If the schedule goes by rounds, it is one of its rounds. Reward functions that score several
/// completions then get the same ones together, whichever ends first.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) step: u64,
    pub(super) round: u64,
    /// Ids of the round's groups in dispatch order.
    pub(super) groups: Vec<GroupId>,
    /// Whether all its groups are drawn.
    pub(super) is_drawn: bool,
    pub(super) num_open: usize,
    /// The scores of the round's completions so far.
    pub(super) rows: BTreeMap<MemberId, ScoredMember>,
    /// Completions that have ended, by the batch in which they are scored.
    ended: BTreeMap<usize, usize>,
}

impl Round {
    pub(super) fn of(step: u64, round: u64) -> Self {
        Self { step, round, ..Self::default() }
    }

    /// Notes that the completion at a place has ended; the places of the batch that is whole with it, if one
    /// is.
    pub(super) fn end(&mut self, place: usize, batch_size: usize, group_size: usize) -> Option<Vec<usize>> {
        let batch = place / batch_size;
        *self.ended.entry(batch).or_default() += 1;
        self.whole(batch, batch_size, group_size)
    }

    /// Closes the round to new groups. Returns the places of the last batch if that completes it.
    pub(super) fn close(&mut self, batch_size: usize, group_size: usize) -> Option<Vec<usize>> {
        if std::mem::replace(&mut self.is_drawn, true) {
            return None;
        }
        let last = (self.groups.len() * group_size).checked_sub(1)? / batch_size;
        let is_partial = !(self.groups.len() * group_size).is_multiple_of(batch_size);
        if is_partial { self.whole(last, batch_size, group_size) } else { None }
    }

    fn whole(&self, batch: usize, batch_size: usize, group_size: usize) -> Option<Vec<usize>> {
        let num_places = self.groups.len() * group_size;
        let start = batch.saturating_mul(batch_size);
        let end = start.saturating_add(batch_size);
        if end > num_places && !self.is_drawn {
            return None;
        }
        let places = start..end.min(num_places);
        (self.ended.get(&batch) == Some(&places.len())).then(|| places.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batch of completions that a reward function gets does not depend on the order of ends, and
    /// is sent as soon as it is complete.
    #[test]
    fn batches_are_those_of_the_dispatch_order() {
        let mut round = Round::of(1, 1);
        round.groups = vec![GroupId(0), GroupId(1)];
        assert_eq!(round.end(4, 4, 3), None);
        assert_eq!(round.end(2, 4, 3), None);
        assert_eq!(round.end(0, 4, 3), None);
        assert_eq!(round.end(3, 4, 3), None);
        assert_eq!(round.end(1, 4, 3), Some(vec![0, 1, 2, 3]));
        // More groups may come.
        assert_eq!(round.end(5, 4, 3), None);
        assert_eq!(round.close(4, 3), Some(vec![4, 5]));
        assert_eq!(round.close(4, 3), None);
        // One by one, then all.
        let mut round = Round::of(1, 2);
        round.groups = vec![GroupId(2)];
        assert_eq!(round.end(1, 1, 2), Some(vec![1]));
        let mut round = Round::of(1, 3);
        round.groups = vec![GroupId(3)];
        assert_eq!(round.end(1, usize::MAX, 2), None);
        assert_eq!(round.end(0, usize::MAX, 2), None);
        assert_eq!(round.close(usize::MAX, 2), Some(vec![0, 1]));
    }
}
