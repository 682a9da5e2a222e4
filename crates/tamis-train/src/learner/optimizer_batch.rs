//! The trajectories of one optimizer batch, gathered once for policy and critic: their groups, their
//! trained tokens, and their cut into waves.

use tamis_core::group::Group;
use tamis_core::objective::{Normalisers, ObjectiveError};
use tamis_core::ragged::Ragged;

use crate::learner::micro_batch::{Cut, sequences, waves};
use crate::learner::{LearnerSequence, Wave};

/// Mask of the tokens that are trained on: those of the policy, in scored trajectories (only
/// untruncated ones if `mask_truncated`).
pub(crate) fn mask_of(group: &Group, mask_truncated: bool) -> impl Iterator<Item = Vec<bool>> {
    group.trajectories.iter().map(move |trajectory| {
        if trajectory.is_scored() && !(mask_truncated && trajectory.is_truncated()) {
            trajectory.loss_mask.clone()
        } else {
            vec![false; trajectory.token_ids.len()]
        }
    })
}

/// Row of each group's first trajectory \[P\].
pub(crate) fn first_rows(groups: &[&Group]) -> Vec<usize> {
    groups
        .iter()
        .scan(0, |row, group| {
            let first = *row;
            *row += group.trajectories.len();
            Some(first)
        })
        .collect()
}

/// Some groups of a step's batch, trained on together.
pub(crate) struct OptimizerBatch<'a> {
    /// Row in the step's batch of each trajectory \[B\].
    pub(crate) rows: Vec<usize>,
    /// Each as a learner sequence \[B\].
    pub(crate) sequences: Vec<LearnerSequence<'a>>,
    /// Mask of the tokens that are trained on `[B][T]`.
    pub(crate) mask: Ragged<bool>,
    /// Trajectories of each group \[P\].
    sizes: Vec<usize>,
    /// Weight of each group's losses \[P\]; `None`: 1.
    weights: Option<Vec<f64>>,
}

/// A wave of an optimizer batch: the sequences that pass through the learner at once, with the columns
/// that a loss needs.
pub(crate) struct Micro<'m, 'a> {
    /// Places of its trajectories in the optimizer batch.
    pub(crate) places: &'m [usize],
    /// Its learner sequences.
    pub(crate) wave: &'m Wave<'a>,
    /// Mask of the tokens that are trained on, flat.
    pub(crate) mask: Vec<bool>,
    /// Offsets of the trajectories in the flat columns \[B+1\].
    pub(crate) offsets: Vec<usize>,
    /// Tokens trained on in the group of each trajectory.
    pub(crate) group_tokens: Vec<f64>,
    /// Trajectories trained on in the group of each trajectory.
    pub(crate) group_sequences: Vec<f64>,
    /// Weight of each trajectory's loss, if groups have weights.
    pub(crate) sequence_weights: Option<Vec<f64>>,
}

impl<'a> OptimizerBatch<'a> {
    /// The groups at `places` of a step's batch; `first_row` is the first row of each. `kept` are the
    /// trajectories that stay in the loss `[P][G]`; `None`: all.
    pub(crate) fn of(
        groups: &[&'a Group],
        first_row: &[usize],
        places: &[usize],
        mask_truncated: bool,
        kept: Option<&Ragged<bool>>,
    ) -> Self {
        let own: Vec<&'a Group> = places.iter().map(|&place| groups[place]).collect();
        let mut mask = Ragged::default();
        for (&place, group) in places.iter().zip(&own) {
            for (i, mut mask_t) in mask_of(group, mask_truncated).enumerate() {
                if kept.is_some_and(|kept| !kept.row(place)[i]) {
                    mask_t.fill(false);
                }
                mask.push_row(mask_t);
            }
        }
        Self {
            rows: places
                .iter()
                .zip(&own)
                .flat_map(|(&place, group)| first_row[place]..first_row[place] + group.trajectories.len())
                .collect(),
            sequences: sequences(&own),
            mask,
            sizes: own.iter().map(|group| group.trajectories.len()).collect(),
            weights: None,
        }
    }

    /// Requests log-probabilities of candidates, rows of the step's batch `[B][T k]`.
    pub(crate) fn add_candidates(&mut self, candidates: &'a Ragged<u32>) {
        for (sequence, &row) in self.sequences.iter_mut().zip(&self.rows) {
            sequence.candidates = candidates.row(row);
        }
    }

    /// Sets a weight for each group's losses \[P\].
    #[must_use]
    pub(crate) fn with_weights(self, weights: Option<Vec<f64>>) -> Self {
        Self { weights, ..self }
    }

    /// Weight of each trajectory \[B\], if groups have weights.
    fn sequence_weights(&self) -> Option<Vec<f64>> {
        let of_group = self.weights.as_ref()?.iter().zip(&self.sizes);
        Some(of_group.flat_map(|(&weight, &size)| std::iter::repeat_n(weight, size)).collect())
    }

    /// Places of the trajectories with a token to train on; the others cost no pass.
    pub(crate) fn live(&self) -> Vec<usize> {
        (0..self.sequences.len()).filter(|&place| self.mask.row(place).contains(&true)).collect()
    }

    /// A column of the step's batch, one row per trajectory, in the order of this one: flat \[N\].
    pub(crate) fn gather<T: Copy>(&self, column: &Ragged<T>) -> Vec<T> {
        self.rows.iter().flat_map(|&row| column.row(row)).copied().collect()
    }

    /// The tokens of some trajectories in a flat column of this batch.
    pub(crate) fn cut<T: Copy>(&self, values: &[T], places: &[usize]) -> Vec<T> {
        let offsets = self.mask.offsets();
        places.iter().flat_map(|&place| &values[offsets[place]..offsets[place + 1]]).copied().collect()
    }

    /// As [`Self::cut`], of a column with `per_token` numbers for each token.
    pub(crate) fn cut_wide<T: Copy>(&self, values: &[T], per_token: usize, places: &[usize]) -> Vec<T> {
        let at = |place: usize| self.mask.offsets()[place] * per_token;
        places.iter().flat_map(|&place| &values[at(place)..at(place + 1)]).copied().collect()
    }

    /// Passes over the live trajectories, wave by wave, each with a micro-batch for every rank.
    /// Trajectories with a possible gradient (`teaches`) come first, the others in separate waves.
    /// `pass` also gets the denominators of means over the whole optimizer batch.
    pub(crate) fn for_each_wave<E: From<ObjectiveError>>(
        &self,
        cut: Cut,
        teaches: impl Fn(usize) -> bool,
        mut pass: impl FnMut(&Micro<'_, 'a>, &Normalisers) -> Result<(), E>,
    ) -> Result<(), E> {
        let (normalisers, group_tokens) =
            Normalisers::weighted(&self.mask, &self.sizes, self.weights.as_deref())?;
        let sequence_weights = self.sequence_weights();
        let group_sequences = Normalisers::group_sequences(&self.mask, &self.sizes)?;
        let (first, others): (Vec<usize>, Vec<usize>) =
            self.live().into_iter().partition(|&place| teaches(place));
        let of_part = |live: &[usize]| {
            let sequences: Vec<LearnerSequence<'a>> =
                live.iter().map(|&place| self.sequences[place]).collect();
            waves(&sequences, cut)
                .into_iter()
                .map(|(part, wave)| (part.iter().map(|&place| live[place]).collect(), wave))
                .collect::<Vec<(Vec<usize>, Wave<'a>)>>()
        };
        for (places, wave) in of_part(&first).into_iter().chain(of_part(&others)) {
            let mut offsets = vec![0];
            offsets.extend(places.iter().scan(0, |end, &place| {
                *end += self.mask.row(place).len();
                Some(*end)
            }));
            let micro = Micro {
                places: &places,
                wave: &wave,
                mask: self.cut(self.mask.values(), &places),
                offsets,
                group_tokens: places.iter().map(|&place| group_tokens[place]).collect(),
                group_sequences: places.iter().map(|&place| group_sequences[place]).collect(),
                sequence_weights: sequence_weights
                    .as_ref()
                    .map(|weights| places.iter().map(|&place| weights[place]).collect()),
            };
            pass(&micro, &normalisers)?;
        }
        Ok(())
    }
}
