//! `filter`: which groups are trained on.

use tamis_core::filter::GroupFilter;
use tamis_core::settings;

settings! {
    /// Which groups are trained on, judged by one number of each trajectory. Null: all groups.
    pub struct FilterConfig {
        /// The number of each trajectory by which the filter judges: the name of a reward, `acc`, `score`,
        /// `seq_reward` (sum before KL), `seq_final_reward` (after KL), `token_level_rewards`, `length`
        /// (tokens of the policy), or `entropy` (mean over the tokens, nats). For a reward with the name
        /// `length` or `entropy`, write `scores.length` or `scores.entropy`. Null: the raw outcome (`acc`,
        /// otherwise `score`).
        metric: Option<String> = None, NotEmpty;
        ..kind: GroupFilter;
    }
}
