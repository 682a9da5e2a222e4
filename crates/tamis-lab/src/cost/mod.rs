//! The cost model that [`advise`](crate::advise) and [`simulate`](crate::simulate) share.
//!
//! A group is kept with probability k, which depends on its size and on the pass rates of the prompts (`kept`
//! for any filter, [`keep_probability`] for a filter that keeps groups whose members differ). The number of
//! generated groups per trained one follows from k and from the way in which a batch is filled:
//!
//! | way | groups per trained one |
//! |---|---|
//! | streaming, and rounds that carry their surplus | 1 / k |
//! | groups that start with some of their members | [`generated_per_kept`] |
//! | rounds that drop their surplus | [`rounds::Rounds::cost`] |
//! | rounds of what the batch lacks | [`rounds::deficit`] |
//!
//! `advise` prints these numbers for the keep rate of rollouts. `simulate` runs the scheduler instead, which
//! adds lag, drift and time. Its tests compare it with these numbers.

pub use tamis_core::schedule::yields::{generated_per_kept, keep_probability};

pub(crate) mod kept;
pub mod rounds;
