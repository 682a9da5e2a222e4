//! What a program prints, within a time.

pub use tamis_process::{ProgramError, ask};
