//! verl's keys (its PPO trainer and the DAPO recipe, 2025 to 2026), with its defaults.

mod asynchronous;
mod correction;
mod objective;
mod rewards;
mod rules;

pub(super) use asynchronous::{is_asynchronous, is_separate};
pub(super) use rules::rounds_in_flight;

use std::sync::LazyLock;

use super::key::Becomes::NoEffect;
use super::key::{ForeignKey, Rule};
use super::owner::Owner;
use super::table::{self, Table};

/// The class that Hydra makes of a section, in any of them.
pub(super) static TARGET: ForeignKey = ForeignKey {
    key: "*._target_",
    default: "",
    becomes: NoEffect("it names a class of verl's code, which tamis does not run"),
};

/// Its table.
pub(super) fn table() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| table::read(Owner::Verl, include_str!("../../tables/verl.tsv"), RULES));
    &TABLE
}

/// The rules that its rows name and that are no rows.
const RULES: &[Rule] = &[
    asynchronous::ASYNCHRONOUS,
    correction::CORRECTION,
    objective::ADVANTAGE,
    objective::POLICY_LOSS,
    rewards::REWARDS,
    rules::LOGGERS,
    rules::NAMES,
    rules::SERVERS,
    rules::CRITIC,
];
