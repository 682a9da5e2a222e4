//! Prompts: as tokens, and in the order in which they are drawn.

pub mod codec;
pub mod foreign;
pub(crate) mod overlap;
pub mod pool;
pub mod worlds;
