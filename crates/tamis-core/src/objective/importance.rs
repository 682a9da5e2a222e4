//! The level of importance ratios: a token, or a trajectory.

use crate::choice;

choice! {
    /// Whether the importance ratio is one of tokens or of trajectories.
    pub enum Importance {
        /// One ratio for each token: that of its probabilities.
        Token = "token",
        /// One ratio for the trajectory, moved by every one of its tokens: GSPO, arXiv 2507.18071 eq. 5 (TRL
        /// `importance_sampling_level: sequence`).
        Sequence = "sequence",
        /// The value of `sequence`, but each token answers for its own loss alone: GSPO-token, eq. 13 (TRL
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
