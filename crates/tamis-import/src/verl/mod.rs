//! verl's keys (its PPO trainer and the DAPO recipe, 2025 to 2026), with its defaults.

mod asynchronous;
mod correction;
mod distillation;
mod rewards;
mod rows;

pub(super) use asynchronous::{is_asynchronous, is_separate, rounds_in_flight};
pub(super) use correction::rejections;
pub(super) use distillation::distillation;
pub(super) use rewards::rewards;
pub(super) use rows::nested_columns;

use super::key::Becomes::NoEffect;
use super::key::ForeignKey;

/// The class that Hydra instantiates for a section; any section may have it.
pub(super) static TARGET: ForeignKey = ForeignKey {
    key: "*._target_",
    default: "",
    becomes: NoEffect("it names a class of verl's code, which tamis does not run"),
};
