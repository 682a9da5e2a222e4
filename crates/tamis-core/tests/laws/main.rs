//! Laws that hold for every batch: of advantages, of the objective, and of how batches are cut.

#![expect(clippy::float_cmp, reason = "most laws here hold bit for bit")]
#![expect(clippy::unwrap_used, reason = "a generated batch that fails has failed")]

mod advantage;
mod batch;
mod losses;
mod objective;
mod oracle;
