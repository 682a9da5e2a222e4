//! How the rows of a file form groups.

/// Layout of groups in rows. Columns may be nested: `175b_finetuning.is_correct`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLayout {
    /// One row per trajectory. If the first row's metric is a list and no group is named: one row per group,
    /// with one number per trajectory.
    Long {
        /// Columns whose values together name the group. The rows of a group may be anywhere in the file.
        /// Empty: the first of [`GroupLayout::GROUP_COLUMNS`] that exists.
        group_by: Vec<String>,
        /// The metric's column.
        metric: String,
    },
    /// One row per group.
    Wide {
        /// The metric's columns, one per trajectory.
        metrics: Vec<String>,
    },
}

impl GroupLayout {
    /// Columns that name the group in rollouts of tamis and verl.
    pub const GROUP_COLUMNS: [&'static str; 4] = ["group_id", "uid", "group", "prompt_id"];
}
