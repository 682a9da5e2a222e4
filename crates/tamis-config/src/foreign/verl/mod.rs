//! verl's keys (its PPO trainer and the DAPO recipe, 2025 to 2026), with its defaults.

mod asynchronous;
mod correction;
mod keys;
mod objective;
mod rewards;
mod rules;

pub(super) use asynchronous::{is_asynchronous, is_separate};
pub(super) use keys::keys;
pub(super) use rules::defaults;

use super::key::Becomes::NoEffect;
use super::key::{ForeignKey, key};

/// The class that Hydra makes of a section, in any of them.
pub(super) const TARGET: ForeignKey =
    key("*._target_", "", NoEffect("it names a class of verl's code, which tamis does not run"));
