//! The way in which rows of a file make up groups.

/// Layout of groups in rows. Columns may be nested: `175b_finetuning.is_correct`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLayout {
    /// One row a trajectory; or, where the metric of the first row is a list and no group is named, one row a
    /// group with a number a trajectory.
    Long {
        /// Columns whose values together name the group; the rows of one need not stand together. Empty: the
        /// first there is of [`GroupLayout::GROUP_COLUMNS`].
        group_by: Vec<String>,
        /// The metric's column.
        metric: String,
    },
    /// One row a group.
    Wide {
        /// The metric's columns, one a trajectory.
        metrics: Vec<String>,
    },
}

impl GroupLayout {
    /// Columns that name the group in rollouts of tamis and verl.
    pub const GROUP_COLUMNS: [&'static str; 4] = ["group_id", "uid", "group", "prompt_id"];
}
