//! `filter`: the sieve of groups.

use tamis_core::filter::GroupFilter;
use tamis_core::settings;

settings! {
    /// Which groups are trained on, by one number of each trajectory. Null: all of them.
    pub struct FilterConfig {
        /// The number of each trajectory that the filter looks at: the name of a reward, `acc`, `score`,
        /// `seq_reward` (sum before KL), `seq_final_reward` (after KL), `token_level_rewards`, `length`
        /// (tokens of the policy), `entropy` (mean over the tokens, nats). A reward that is itself called
        /// `length` or `entropy` is `scores.length` or `scores.entropy`. Null: the raw outcome (`acc`,
        /// otherwise `score`).
        metric: Option<String> = None, NotEmpty;
        ..kind: GroupFilter;
    }
}
