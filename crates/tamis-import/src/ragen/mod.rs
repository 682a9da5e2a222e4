//! RAGEN's own keys; the others are verl's.
//!
//! ```text
//! tags -> played: which environments, if any -> environments: kind and settings of each (env_type with its table, symbols)
//! n_groups -> shares: how many levels each environment has
//! ```

mod env_type;
mod environments;
mod played;
mod shares;
mod symbols;

pub(super) use environments::environment;
pub(super) use played::{Played, sections};
