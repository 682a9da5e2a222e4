//! `filter`: the sieve of groups.

use tamis_core::filter::GroupFilter;

use crate::define::kinded;

kinded! {
    /// The sieve of groups. Null: every group is trained on.
    pub struct FilterConfig {
        /// How a group is judged, with the settings of that kind.
        kind: GroupFilter;
        /// The number per trajectory that is looked at: the name of a reward, `acc`, `score`, `seq_reward`
        /// (sum before KL), `seq_final_reward` (after KL), `token_level_rewards`, `length`, `entropy` (mean
        /// over the tokens, nats). Null: the raw outcome (`acc`, else `score`).
        metric: Option<String> = "null", NotEmpty, Fixed;
    }
}
