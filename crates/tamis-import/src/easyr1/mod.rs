//! EasyR1's keys, those of its fork with dynamic sampling and of older versions among them, with their
//! defaults.

mod rules;

use std::sync::LazyLock;

use super::key::Rule;
use super::owner::Owner;
use super::table::{self, Table};

/// Its table.
pub(super) fn table() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| table::read(Owner::EasyR1, include_str!("../../tables/easyr1.tsv"), RULES));
    &TABLE
}

/// The rules that its rows name and that are no rows.
const RULES: &[Rule] =
    &[rules::ADVANTAGE, rules::REWARDS, rules::LOGGERS, rules::NAMES, rules::SERVERS, rules::CRITIC];
