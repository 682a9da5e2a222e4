//! What a program prints, within a time.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Interval of looks at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest time for what it printed to arrive when it has ended: a child of its own may hold the pipe.
const LAST: Duration = Duration::from_secs(2);

/// Why a program told nothing.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// It is not there, or cannot be started.
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
        /// The time that it had.
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

/// Runs a command to its end and gives what it printed; one that takes longer is killed.
///
/// # Errors
/// Where it cannot be started, takes longer, or fails.
pub fn ask(command: &mut Command, timeout: Duration) -> Result<String, ProgramError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|source| ProgramError::Start { program: program.clone(), source })?;
    let (output, errors) = (listen(child.stdout.take()), listen(child.stderr.take()));
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < timeout => std::thread::sleep(LOOK_EVERY),
            _ => {
                let _ = child.kill();
                // One that waits for a broken driver does not even die.
                std::thread::spawn(move || child.wait());
                return Err(ProgramError::Late { program, timeout });
            }
        }
    };
    let text = |heard: mpsc::Receiver<Vec<u8>>| {
        String::from_utf8_lossy(&heard.recv_timeout(LAST).unwrap_or_default()).into_owned()
    };
    if !status.success() {
        let said = [text(errors), text(output)];
        let said = said.iter().flat_map(|text| text.lines().rev()).find(|line| !line.trim().is_empty());
        let said = said.unwrap_or_default().trim().to_owned();
        return Err(ProgramError::Failed { program, status: status.to_string(), said });
    }
    Ok(text(output))
}

/// Reads a pipe to its end beside what goes on, so that a program that prints much does not stand still.
fn listen(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (tell, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = tell.send(bytes);
    });
    heard
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> Result<String, ProgramError> {
        ask(Command::new("sh").args(["-c", script]), timeout)
    }

    #[test]
    fn a_program_tells_fails_or_is_killed() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo one; echo two >&2", long).expect("told"), "one\n");
        // More than a pipe holds.
        assert_eq!(shell("head -c 1000000 /dev/zero | tr '\\0' x", long).expect("told").len(), 1_000_000);
        let failed = shell("echo no driver >&2; exit 9", long).expect_err("it fails").to_string();
        assert_eq!(failed, "`sh` failed (exit status: 9): no driver");
        let began = Instant::now();
        let late = shell("exec sleep 100", Duration::from_millis(50)).expect_err("it is late").to_string();
        assert_eq!(late, "`sh` gave no answer within 0.05 s");
        assert!(began.elapsed() < Duration::from_secs(30));
        let missing = ask(&mut Command::new("no-such-program"), long).expect_err("it is not there");
        assert_eq!(missing.to_string(), "`no-such-program` cannot be started: entity not found");
    }
}
