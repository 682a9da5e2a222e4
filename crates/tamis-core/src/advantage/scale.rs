//! What advantages are divided by.

use crate::choice;

choice! {
    /// Which rewards the deviation that divides advantages is taken over.
    pub enum Scale {
        /// The group's (GRPO; TRL `scale_rewards="group"`, verl `norm_adv_by_std_in_grpo=True`).
        Group = "group",
        /// All scored ones of the batch (TRL `scale_rewards="batch"`).
        Batch = "batch",
        /// None: no division (Dr. GRPO; TRL `scale_rewards="none"`, verl `norm_adv_by_std_in_grpo=False`).
        None = "none",
    }
}
