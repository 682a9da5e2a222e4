//! The fields of TRL's `GRPOConfig`, of the `TrainingArguments` under it and of its script, with their
//! defaults there; those that older versions had too.

mod batch;
mod optimizer;
mod rewards;
mod rules;
mod servers;

pub(super) use batch::{batch, in_steps_of_ours};
pub(super) use rules::validates;

use std::sync::LazyLock;

use super::key::Rule;
use super::owner::Owner;
use super::table::{self, Table};

/// Fields that take several words on the command line.
pub(super) const LISTS: [&str; 9] = [
    "reward_funcs",
    "reward_weights",
    "report_to",
    "include_for_metrics",
    "label_names",
    "lora_target_modules",
    "lora_target_parameters",
    "lora_modules_to_save",
    "stop_strings",
];

/// Older names of fields, with the newer ones.
pub(super) const OLDER: [(&str, &str); 2] =
    [("evaluation_strategy", "eval_strategy"), ("per_gpu_train_batch_size", "per_device_train_batch_size")];

/// Switches whose default says no more than "not given".
pub(super) const SWITCHES: [&str; 4] = ["bf16", "tf32", "activation_checkpointing", "disable_tqdm"];

/// Its table.
pub(super) fn table() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| table::read(Owner::Trl, include_str!("../../tables/trl.tsv"), RULES));
    &TABLE
}

/// The rules that its rows name and that are no rows.
const RULES: &[Rule] = &[
    batch::BATCH,
    batch::LENGTH,
    batch::INTERVALS,
    optimizer::LEARNING_RATE,
    rewards::REWARDS,
    rules::NAMES,
    rules::LOGGERS,
    rules::DATA,
    rules::MODEL,
    rules::GENERATION,
    servers::SERVERS,
];
