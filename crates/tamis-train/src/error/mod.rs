//! Why a run cannot begin or continue, and what to do about it.

mod assemble;
mod run;

pub use assemble::AssembleError;
pub use run::RunError;
