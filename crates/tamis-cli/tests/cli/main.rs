//! The binary as a person runs it: one test program, so that it is linked once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../tamis-hub/tests/support/mod.rs"]
mod fake_hub;
#[path = "../../../tamis-rollout/tests/support/mod.rs"]
mod support;

mod accounting;
mod advise;
mod agents;
mod agreement;
mod algorithms;
mod changed_inputs;
mod chat;
mod checks;
mod commands_for_gpus;
mod config_command;
mod data_messages;
mod distillation;
mod elsewhere;
mod environment_kills;
mod environments;
mod eval_command;
mod eval_two;
mod fills;
mod filter_command;
mod gradient_analysis;
mod hub;
mod interrupts;
mod kills;
mod launch;
mod learner;
mod learns_nothing;
mod listening;
mod lost_learner;
mod model_messages;
mod monitor;
mod not_finite;
mod other_trainers;
#[cfg(feature = "otlp")]
mod otlp;
mod own_functions;
mod plan;
mod regex;
mod report;
mod resume;
mod reward_messages;
mod rewards;
mod run_folder;
mod schedule_kills;
mod schedules;
mod screening;
mod scripts;
mod selection;
mod serve;
mod server_kills;
mod servers;
mod serving;
mod several_environments;
mod sft;
mod sft_scripts;
mod simulate;
mod sweep;
mod tamis;
mod teacher_kills;
mod train_messages;
mod what_is_shown;
mod write_errors;
