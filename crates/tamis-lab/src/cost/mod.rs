//! The model of cost that [`advise`](crate::advise) and [`simulate`](crate::simulate) share.
//! A group is kept with probability k, which depends on its size and on the pass rates of the prompts (`kept`
//! for any filter, [`keep_probability`] for one that keeps groups whose members differ). The number of groups
//! generated for each trained one follows from k and from the way in which a batch is filled:
//!
//! | way | groups for each trained one |
//! |---|---|
//! | streaming, and rounds that carry their surplus | 1 / k |
//! | groups that begin with some of their members | [`generated_per_kept`] |
//! | rounds whose surplus is thrown away | [`rounds::Rounds::cost`] |
//! | rounds of what the batch lacks | [`rounds::deficit`] |
//! `advise` prints these numbers for the keep rate of rollouts. `simulate` plays the scheduling machine
//! instead, which adds lag, drift and time, and its tests compare it with them.

pub use tamis_core::schedule::yields::{generated_per_kept, keep_probability};

pub(crate) mod kept;
pub mod rounds;
