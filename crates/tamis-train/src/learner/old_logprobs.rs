//! Log-probabilities under the policy at the start of a step.

use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;

/// Log-probabilities of a batch's tokens under the policy at the start of the step.
#[derive(Debug, Clone, PartialEq)]
pub enum OldLogprobs {
    /// Those that generation gave.
    AsSampled,
    /// The learner computed them, one row per trajectory `[B][T]`.
    Recomputed(Ragged<f32>),
}

impl OldLogprobs {
    /// Those that the learner computed.
    pub fn recomputed(&self) -> Option<&Ragged<f32>> {
        match self {
            Self::AsSampled => None,
            Self::Recomputed(rows) => Some(rows),
        }
    }

    /// One row per trajectory of the batch \[B\].
    pub fn rows<'a>(&'a self, groups: &'a [&Group]) -> impl Iterator<Item = &'a [f32]> {
        let trajectories = groups.iter().flat_map(|group| &group.trajectories).enumerate();
        trajectories.map(|(row, trajectory): (usize, &Trajectory)| match self {
            Self::AsSampled => trajectory.logprobs.as_slice(),
            Self::Recomputed(rows) => rows.row(row),
        })
    }
}
