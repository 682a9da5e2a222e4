//! `tamis completions`.

use clap_complete::{Shell, generate};

use super::print;
use crate::failure::{FAILED, Failure};
use crate::help;

pub(crate) fn run(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    generate(shell, &mut help::command(), "tamis", &mut script);
    let script = String::from_utf8(script)
        .map_err(|error| Failure::new(FAILED, format!("error: failed to write the completions: {error}")))?;
    print(&script)?;
    Ok(0)
}
