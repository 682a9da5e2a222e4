//! The level of importance ratios: a token, or a trajectory.

use crate::choice;

choice! {
    /// Whether tokens or trajectories have an importance ratio.
    pub enum Importance {
        /// One ratio for each token, from its own probabilities.
        Token = "token",
        /// One ratio for the trajectory, to which all its tokens contribute: GSPO, arXiv 2507.18071 eq. 5
        /// (TRL `importance_sampling_level: sequence`).
        Sequence = "sequence",
        /// The value of `sequence`, but each token contributes only to its own loss: GSPO-token, eq. 13 (TRL
        /// `sequence_token`; verl's `gspo`).
        SequenceToken = "sequence_token",
    }
}

impl Importance {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        self.as_str()
    }
}
