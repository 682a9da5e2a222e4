//! Runs a command to its end, within a time limit.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::tail::Tail;

/// Interval at which it is polled for its end.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for the output of a process that has ended: a child of it may hold the pipe.
const LAST: Duration = Duration::from_secs(2);

/// Why a program returned no answer.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// It does not exist, or cannot be started.
    #[error("`{program}` cannot be started: {}", source.kind())]
    Start {
        /// Its name.
        program: String,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// It did not end in time.
    #[error("`{program}` gave no answer within {} s", timeout.as_secs_f64())]
    Late {
        /// Its name.
        program: String,
        /// The time limit.
        timeout: Duration,
    },
    /// It failed.
    #[error("`{program}` failed ({status}){}", if said.is_empty() { String::new() } else { format!(": {said}") })]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        status: String,
        /// The last line that it wrote.
        said: String,
    },
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    output: Arc<Tail>,
    errors: Arc<Tail>,
}

impl Ran {
    /// What it wrote to its standard output.
    pub fn output(&self) -> String {
        self.output.text(LAST)
    }

    /// What it wrote to its standard error.
    pub fn errors(&self) -> String {
        self.errors.text(LAST)
    }
}

/// Reads a pipe in a separate thread, so that a program with much output does not block.
fn follow(pipe: Option<impl Read + Send + 'static>) -> Arc<Tail> {
    let written = Arc::new(Tail::new(usize::MAX));
    let to = Arc::clone(&written);
    std::thread::spawn(move || match pipe {
        Some(pipe) => to.follow(pipe, |_| {}),
        None => to.close(),
    });
    written
}

/// Runs a command to its end, without input. If it takes longer than `timeout`, it is killed.
///
/// # Errors
/// It cannot be started, or takes longer. A failing exit status is not an error: it is in the value.
pub fn run(command: &mut Command, timeout: Duration) -> Result<Ran, ProgramError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|source| ProgramError::Start { program: program.clone(), source })?;
    let (output, errors) = (follow(child.stdout.take()), follow(child.stderr.take()));
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Ran { status, output, errors }),
            Ok(None) if began.elapsed() < timeout => std::thread::sleep(LOOK_EVERY),
            _ => {
                let _ = child.kill();
                // A process that hangs in a broken driver does not even die.
                std::thread::spawn(move || child.wait());
                return Err(ProgramError::Late { program, timeout });
            }
        }
    }
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// It cannot be started, takes longer, or fails.
pub fn ask(command: &mut Command, timeout: Duration) -> Result<String, ProgramError> {
    let ran = run(command, timeout)?;
    if ran.status.success() {
        return Ok(ran.output());
    }
    let said = [ran.errors(), ran.output()];
    let said = said.iter().flat_map(|text| text.lines().rev()).find(|line| !line.trim().is_empty());
    Err(ProgramError::Failed {
        program: command.get_program().to_string_lossy().into_owned(),
        status: ran.status.to_string(),
        said: said.unwrap_or_default().trim().to_owned(),
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> Result<String, ProgramError> {
        ask(Command::new("sh").args(["-c", script]), timeout)
    }

    #[test]
    fn a_program_answers_fails_or_is_killed() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo one; echo two >&2", long).expect("an answer"), "one\n");
        // More than a pipe's buffer holds.
        assert_eq!(
            shell("head -c 1000000 /dev/zero | tr '\\0' x", long).expect("an answer").len(),
            1_000_000
        );
        let failed = shell("echo no driver >&2; exit 9", long).expect_err("it fails").to_string();
        assert_eq!(failed, "`sh` failed (exit status: 9): no driver");
        let began = Instant::now();
        let late = shell("exec sleep 100", Duration::from_millis(50)).expect_err("it is late").to_string();
        assert_eq!(late, "`sh` gave no answer within 0.05 s");
        assert!(began.elapsed() < Duration::from_secs(30));
        let missing = ask(&mut Command::new("no-such-program"), long).expect_err("it is not there");
        assert_eq!(missing.to_string(), "`no-such-program` cannot be started: entity not found");
    }

    #[test]
    fn a_child_that_holds_the_pipe_is_not_waited_for() {
        let said = shell("sleep 1000 & echo $!", Duration::from_secs(60)).expect("an answer");
        Command::new("kill").arg(said.trim()).status().expect("killed");
    }
}
