//! Divisors of advantages.

use crate::choice;

choice! {
    /// Rewards whose deviation divides the advantages.
    pub enum Scale {
        /// Rewards of the group (GRPO; TRL `scale_rewards="group"`, verl `norm_adv_by_std_in_grpo=True`).
        Group = "group",
        /// All scored rewards of the batch (TRL `scale_rewards="batch"`).
        Batch = "batch",
        /// None: no division (Dr. GRPO; TRL `scale_rewards="none"`, verl `norm_adv_by_std_in_grpo=False`).
        None = "none",
    }
}
