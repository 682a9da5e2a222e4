//! The fields of TRL's `GRPOConfig`, of the `TrainingArguments` that it extends, and of its script, with
//! their defaults there. Includes fields of older versions.

mod distillation;
mod rewards;
mod rules;
mod servers;

pub(super) use distillation::{TEACHERS, distillation};
pub(super) use rewards::rewards;
pub(super) use rules::{data, generation, known_options, model, validates};
pub(super) use servers::beside_the_learner;

/// Fields with several words on the command line.
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

/// Older names of fields, with the new names.
pub(super) const OLDER: [(&str, &str); 3] = [
    ("evaluation_strategy", "eval_strategy"),
    ("max_seq_length", "max_length"),
    ("per_gpu_train_batch_size", "per_device_train_batch_size"),
];

/// Switches whose default only means "not given".
pub(super) const SWITCHES: [&str; 4] = ["bf16", "tf32", "activation_checkpointing", "disable_tqdm"];
