//! Measurements of a batch that show whether it can teach, and whether the policy is collapsing.
//!
//! They are pure functions of rewards, advantages, completions and derivatives. The trainer calls them on
//! *all* generated groups or on the trained ones, and logs the results.

pub mod collapse;
pub mod pass_rates;
pub mod variance_buckets;
pub mod zero_advantage;

pub use collapse::{Diversity, VarianceShares};
pub use pass_rates::PassRates;
pub use variance_buckets::Buckets;
pub use zero_advantage::ZeroAdvantage;

use crate::entry::Entry;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[
    variance_buckets::ENTRY,
    zero_advantage::ENTRY,
    pass_rates::ENTRY,
    collapse::DIVERSITY,
    collapse::VARIANCE,
];
