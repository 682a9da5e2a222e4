//! The order of prompts: a permutation per epoch and a position in it.

use serde::{Deserialize, Serialize};
use tamis_core::group::PromptId;
use tamis_core::random::{Key, Purpose};
use thiserror::Error;

/// Order of the prompts within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptOrder {
    /// A new permutation in each epoch. It depends only on the seed and the epoch.
    Shuffled {
        /// `run.seed`.
        seed: u64,
    },
    /// The given order, the same in every epoch.
    Sequential,
}

/// A position in the data: all that a checkpoint has to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DataPosition {
    /// Pass over the data, from 0.
    pub epoch: u64,
    /// Prompts already drawn in it.
    pub position: u64,
}

/// Prompts of one draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnRows {
    /// The prompts in order. There are fewer than requested only if the epoch ended.
    pub prompts: Vec<PromptId>,
    /// The epoch that they belong to.
    pub epoch: u64,
    /// Whether the epoch has none left after this draw.
    pub exhausted: bool,
}

/// A position that the data does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "position {position} of epoch {epoch} is beyond the {num_prompts} prompts of the data: the data has changed since it was saved"
)]
pub struct PositionError {
    /// Epoch of the position.
    pub epoch: u64,
    /// Index of the position within the epoch.
    pub position: u64,
    /// Number of prompts.
    pub num_prompts: usize,
}

/// Draws prompts epoch by epoch.
///
/// A draw never crosses the end of an epoch: the caller decides whether to start the next epoch, to train on
/// a smaller batch, or to stop.
///
/// # Differs from
/// verl's loader drops the last incomplete batch of every epoch (`drop_last`). So up to a batch of prompts,
/// different ones in each epoch, is never seen in it. Here an epoch holds every prompt exactly once.
#[derive(Debug, Clone)]
pub struct PromptSampler {
    prompts: Vec<PromptId>,
    order: PromptOrder,
    current: Vec<usize>,
    position: DataPosition,
    /// Rank of each prompt (the lowest comes first), and the number of epochs that use it. Empty: all are
    /// equal.
    ranks: Vec<usize>,
    ranked_epochs: Option<u64>,
}

impl PromptSampler {
    /// Starts at the beginning of epoch 0.
    pub fn new(prompts: Vec<PromptId>, order: PromptOrder) -> Self {
        Self::at(prompts, order, DataPosition::default())
    }

    /// Starts at a saved position. With the same prompts and order as before, the draws continue as if there
    /// had been no interruption.
    pub fn resume(
        prompts: Vec<PromptId>,
        order: PromptOrder,
        position: DataPosition,
    ) -> Result<Self, PositionError> {
        if position.position > prompts.len() as u64 {
            return Err(PositionError {
                epoch: position.epoch,
                position: position.position,
                num_prompts: prompts.len(),
            });
        }
        Ok(Self::at(prompts, order, position))
    }

    fn at(prompts: Vec<PromptId>, order: PromptOrder, position: DataPosition) -> Self {
        let (current, ranks) = (Vec::new(), Vec::new());
        let mut sampler = Self { prompts, order, current, position, ranks, ranked_epochs: None };
        sampler.arrange();
        sampler
    }

    /// Sets a rank for each prompt, in the order of the prompts. In the first `epochs` passes (`None`: in
    /// all) the lowest ranks come first, and prompts of the same rank keep the order that they have without
    /// ranks.
    #[must_use]
    pub fn with_ranks(mut self, ranks: Vec<usize>, epochs: Option<u64>) -> Self {
        (self.ranks, self.ranked_epochs) = (ranks, epochs);
        self.arrange();
        self
    }

    fn arrange(&mut self) {
        self.current = match self.order {
            PromptOrder::Shuffled { seed } => {
                Key::new(seed, Purpose::Shuffle).with(self.position.epoch).permutation(self.prompts.len())
            }
            PromptOrder::Sequential => (0..self.prompts.len()).collect(),
        };
        if self.ranked_epochs.is_none_or(|epochs| self.position.epoch < epochs) {
            self.current.sort_by_key(|&index| self.ranks.get(index).copied());
        }
    }

    /// The next `num` prompts of this epoch, or as many as are left.
    pub fn draw(&mut self, num: usize) -> DrawnRows {
        let start = self.position.position as usize;
        let rest = self.current.get(start..).unwrap_or_default();
        let prompts: Vec<PromptId> =
            rest.iter().take(num).filter_map(|&index| self.prompts.get(index).copied()).collect();
        self.position.position += prompts.len() as u64;
        DrawnRows { epoch: self.position.epoch, exhausted: self.num_left() == 0, prompts }
    }

    /// The prompts left in this epoch, in order.
    pub fn rest(&self) -> impl Iterator<Item = PromptId> {
        let start = self.position.position as usize;
        let rest = self.current.get(start..).unwrap_or_default();
        rest.iter().filter_map(|&index| self.prompts.get(index).copied())
    }

    /// Moves to the beginning of the next epoch. Prompts left in this one are skipped.
    pub fn next_epoch(&mut self) {
        self.position = DataPosition { epoch: self.position.epoch + 1, position: 0 };
        self.arrange();
    }

    /// Number of prompts left in this epoch.
    pub fn num_left(&self) -> usize {
        self.prompts.len().saturating_sub(self.position.position as usize)
    }

    /// Number of prompts in an epoch.
    pub fn num_prompts(&self) -> usize {
        self.prompts.len()
    }

    /// The position to save.
    pub fn position(&self) -> DataPosition {
        self.position
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prompts(num: u64) -> Vec<PromptId> {
        (0..num).map(|id| PromptId(id * 3)).collect()
    }

    #[test]
    fn sequential_draws_end_with_the_epoch() {
        let mut sampler = PromptSampler::new(prompts(5), PromptOrder::Sequential);
        let ids = |drawn: &DrawnRows| drawn.prompts.iter().map(|id| id.0).collect::<Vec<_>>();
        let drawn = sampler.draw(3);
        assert_eq!((ids(&drawn), drawn.exhausted), (vec![0, 3, 6], false));
        let drawn = sampler.draw(3);
        assert_eq!((ids(&drawn), drawn.exhausted, drawn.epoch), (vec![9, 12], true, 0));
        assert_eq!(sampler.draw(3), DrawnRows { prompts: vec![], epoch: 0, exhausted: true });
        sampler.next_epoch();
        assert_eq!(ids(&sampler.draw(1)), [0]);
        assert_eq!(sampler.position(), DataPosition { epoch: 1, position: 1 });
    }

    #[test]
    fn no_prompts_are_exhausted_at_once() {
        assert!(PromptSampler::new(vec![], PromptOrder::Shuffled { seed: 1 }).draw(1).exhausted);
    }

    #[test]
    fn a_place_beyond_the_data_is_refused() {
        let position = DataPosition { epoch: 2, position: 6 };
        let error = PromptSampler::resume(prompts(5), PromptOrder::Sequential, position).unwrap_err();
        insta::assert_snapshot!(error, @"position 6 of epoch 2 is beyond the 5 prompts of the data: the data \
             has changed since it was saved");
        assert!(PromptSampler::resume(prompts(6), PromptOrder::Sequential, position).is_ok());
    }

    proptest! {
        /// Every epoch holds every prompt once, and an interruption anywhere changes nothing.
        #[test]
        fn epochs_are_complete_and_resume_is_exact(
            num in 1u64..40, seed: u64, draws in prop::collection::vec((0usize..12, any::<bool>()), 1..40),
        ) {
            let order = PromptOrder::Shuffled { seed };
            let mut whole = PromptSampler::new(prompts(num), order);
            let mut cut = PromptSampler::new(prompts(num), order);
            let mut seen = Vec::new();
            for (count, interrupt) in draws {
                if interrupt {
                    let text = serde_json::to_string(&cut.position()).unwrap();
                    cut = PromptSampler::resume(prompts(num), order, serde_json::from_str(&text).unwrap()).unwrap();
                }
                let drawn = whole.draw(count);
                prop_assert_eq!(&drawn, &cut.draw(count));
                seen.extend(drawn.prompts.iter().copied());
                if drawn.exhausted {
                    seen.sort_unstable();
                    prop_assert_eq!(&seen, &prompts(num));
                    seen.clear();
                    whole.next_epoch();
                    cut.next_epoch();
                }
            }
        }
    }
}
