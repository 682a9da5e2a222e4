//! RAGEN's own keys; the others are verl's.
//!
//! ```text
//! tags -> played: which environments, if any -> environments: kind and settings of each (env_type with its table, symbols)
//! n_groups -> shares: how many levels each environment has
//! agent_proxy, es_manager -> episodes: turns, actions, rewards; context: what a turn sees
//! ```

mod context;
mod env_type;
mod environments;
mod episodes;
mod filter;
mod played;
mod rules;
mod shares;
mod symbols;

pub(super) use episodes::PLAYED_DEFAULTS;
pub(super) use rules::SIZES;

use std::sync::LazyLock;

use super::key::Rule;
use super::owner::Owner;
use super::table::{self, Table};

/// Defaults of RAGEN's base configuration that differ from verl's: its key, its default, ours, and the
/// value of ours.
pub(super) const DEFAULTS: &[(&str, &str, &str, &str)] = &[
    ("es_manager.train.env_groups", "8", "data.train_batch_size", "8"),
    ("es_manager.train.group_size", "16", "rollout.n", "16"),
    ("actor_rollout_ref.rollout.response_length", "400", "rollout.max_response_length", "400"),
    ("actor_rollout_ref.actor.clip_ratio_high", "0.28", "objective.loss.clip_high", "0.28"),
    ("actor_rollout_ref.actor.entropy_coeff", "0.001", "objective.entropy.coefficient", "0.001"),
    ("seed.train", "10000", "run.seed", "10000"),
    ("trainer.total_training_steps", "200", "train.total_steps", "200"),
    ("trainer.save_freq", "100", "checkpoint.save_freq", "100"),
];

/// As [`DEFAULTS`], if there are validation prompts.
pub(super) const VALIDATION_DEFAULTS: &[(&str, &str, &str, &str)] = &[
    ("trainer.test_freq", "10", "validate.test_freq", "10"),
    ("actor_rollout_ref.rollout.val_kwargs.temperature", "0.5", "validate.temperature", "0.5"),
];

/// Early stops that RAGEN always has; the second if there are validation prompts.
pub(super) const STOPS: [(&str, &str, &str, &str); 2] = [
    (
        "a stop where rewards no longer vary",
        "always on",
        "train.early_stop.reward_collapse",
        "{form: steps, baseline_steps: 10, window: 10, share: 0.1}",
    ),
    (
        "a stop where validation fails",
        "always on",
        "train.early_stop.low_success",
        "{floor: 0.01, patience: 5}",
    ),
];

/// Its table.
pub(super) fn table() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| table::read(Owner::Ragen, include_str!("../../tables/ragen.tsv"), RULES));
    &TABLE
}

/// The rules that its rows name and that are no rows.
const RULES: &[Rule] = &[
    Rule::new(5, "defaults", rules::defaults),
    environments::ENVIRONMENT,
    episodes::EPISODES,
    filter::ROLLOUT_FILTER,
    rules::BI_LEVEL_GAE,
    rules::SIZES,
];
