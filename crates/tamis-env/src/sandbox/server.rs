//! A process of the harness, which waits for jobs and runs one at a time.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value as Json, json};
use tamis_process::{ChildSettings, Errors, GuardedFolder, LineChild, ProgramError, Reach, Silence};

use super::protection::Protection;
use super::settings::SandboxSettings;
use super::{Execution, Exit, Job, SandboxError};

/// The program that protects and runs.
const HARNESS: &str = concat!(
    include_str!("harness/protection.py"),
    include_str!("harness/processes.py"),
    include_str!("harness/worker.py"),
    include_str!("harness/server.py"),
);

/// Longest time of a start, on a busy machine.
const STARTUP: Duration = Duration::from_secs(120);

/// Time that a job may take beyond its own limit: namespaces are made, processes ended.
const GRACE: Duration = Duration::from_secs(60);

/// Time for it to end by itself once its input is closed.
const FAREWELL: Duration = Duration::from_millis(300);

/// Longest frame.
const FRAME_BYTES: usize = 1 << 24;

/// The path of an interpreter, and the parts that are left out of its protection (for tests of kernels that
/// lack them).
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) executable: PathBuf,
    pub(super) without: Vec<String>,
}

#[derive(Deserialize)]
struct Ended {
    ending: Option<Ending>,
    failure: Option<(String, String)>,
    cut: [u64; 3],
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ending {
    Exit(u8),
    Signal(i32),
    Timeout(IgnoredAny),
    Memory(IgnoredAny),
}

struct Frame {
    kind: u8,
    bytes: Vec<u8>,
}

/// Warnings of a sandbox's harnesses; each is reported once.
#[derive(Debug, Clone, Default)]
pub(super) struct Warnings(Arc<Mutex<Vec<String>>>);

/// Most warnings that are kept until they are taken; the first ones are enough.
const MOST_WARNINGS: usize = 16;

impl Warnings {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, warning: String) {
        let mut warnings = self.lock();
        if warnings.len() < MOST_WARNINGS && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Warnings since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock())
    }
}

/// The folder of a harness. If it cannot be removed, there is a warning: a job may have locked a part of it.
#[derive(Debug)]
struct Folder(GuardedFolder, Warnings);

impl Folder {
    fn make(warnings: &Warnings) -> Result<Self, SandboxError> {
        let parent = std::env::temp_dir();
        let folder = GuardedFolder::create_in(&parent, "tamis-sandbox-").map_err(|error| {
            let reason = format!("no folder in {}: {error}", parent.display());
            SandboxError::Start { python: String::new(), reason }
        })?;
        Ok(Self(folder, warnings.clone()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(self.0.path()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                self.1.push(format!("{} cannot be removed ({error})", self.0.path().display()));
            }
            _ => {}
        }
    }
}

/// A running harness. When it is dropped, it ends with its job.
pub(super) struct Server {
    child: LineChild,
    frames: Receiver<Frame>,
    _folder: Folder,
}

impl Server {
    /// Starts a harness and waits until it has tested its protection.
    pub(super) fn start(
        settings: &SandboxSettings,
        place: &Place,
        warnings: &Warnings,
    ) -> Result<(Self, Protection), SandboxError> {
        let folder = Folder::make(warnings)?;
        let fail =
            |reason: String| SandboxError::Start { python: place.executable.display().to_string(), reason };
        // The harness works in another folder.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let readable: Vec<PathBuf> = settings.readable.iter().map(absolute).collect();
        let options = json!({
            "memory_mb": settings.memory_mb,
            "folder_mb": settings.folder_mb,
            "max_processes": settings.max_processes,
            "readable": readable,
            "folder": folder.0.path(),
            "without": place.without,
        });
        let mut command = Command::new(&place.executable);
        // Not `-I`, because it would also ignore the seed of hashes, and then the order of a set differs from
        // run to run. There is no other variable of ours to ignore.
        command.args(["-s", "-B", "-c", HARNESS, &options.to_string()]).current_dir("/");
        command.env_clear().envs([
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
            ("PYTHONHASHSEED", "0"),
            ("PYTHONUTF8", "1"),
        ]);
        if let Some(libraries) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command.stderr(Stdio::null());
        let (sender, frames) = channel();
        let warnings = warnings.clone();
        let settings = ChildSettings {
            name: "sandbox",
            grace: FAREWELL,
            // Its jobs die with it.
            reach: Reach::Leader,
            errors: Errors::AsCommanded,
        };
        let child = LineChild::start(command, settings, move |stdout, _| {
            read_frames(stdout, &sender, &warnings);
        });
        let child = child.map_err(|error| fail(error.to_string()))?;
        let server = Self { child, frames, _folder: folder };
        let frame = match server.child.await_answer(&server.frames, STARTUP, &|_| true) {
            Ok(frame) => frame,
            Err(Silence::TimedOut { .. } | Silence::Interrupted) => {
                return Err(fail(format!("it was not ready within {} s", STARTUP.as_secs())));
            }
            Err(Silence::Ended { status, .. }) => {
                return Err(fail(format!("it ended at once ({status}); it must be Python 3.9 or newer")));
            }
        };
        let said: Json = serde_json::from_slice(&frame.bytes).unwrap_or_default();
        if let Some(error) = said["error"].as_str() {
            return Err(fail(error.to_owned()));
        }
        match serde_json::from_value(said) {
            Ok(protection) if frame.kind == b'h' => Ok((server, protection)),
            _ => Err(fail(String::from_utf8_lossy(&frame.bytes).into_owned())),
        }
    }

    /// Runs one job. After an error the server must be dropped.
    pub(super) fn run(&mut self, job: &Job, max_output: usize) -> Result<Execution, SandboxError> {
        let broken = |reason: &str| SandboxError::broken(reason);
        let late = job.late.as_ref().map(ToString::to_string).unwrap_or_default();
        let early = json!({
            "mode": job.mode,
            "timeout": job.timeout.as_secs_f64(),
            "setup": job.setup,
            "source": job.source,
            "stdin": job.stdin,
            "files": job.files,
        })
        .to_string();
        let milliseconds = u32::try_from(job.timeout.as_millis().max(1)).unwrap_or(u32::MAX);
        let limit = u32::try_from(max_output).unwrap_or(u32::MAX);
        let report_limit = u32::try_from(job.max_report).unwrap_or(u32::MAX);
        let mut message = Vec::with_capacity(20 + early.len() + late.len());
        for length in [early.len(), late.len()] {
            let length = u32::try_from(length).map_err(|_| broken("the job is larger than 4 GiB"))?;
            message.extend(length.to_le_bytes());
        }
        message.extend(milliseconds.to_le_bytes());
        message.extend(limit.to_le_bytes());
        message.extend(report_limit.to_le_bytes());
        message.extend(early.as_bytes());
        message.extend(late.as_bytes());
        self.child.send(message);
        let (mut stdout, mut stderr, mut report) = (Vec::new(), Vec::new(), Vec::new());
        let until = Instant::now() + job.timeout.saturating_add(GRACE);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let frame = match self.child.await_answer(&self.frames, left, &|_| true) {
                Ok(frame) => frame,
                Err(Silence::TimedOut { .. } | Silence::Interrupted) => {
                    return Err(broken("it did not finish its job in time"));
                }
                Err(Silence::Ended { .. }) => return Err(broken("it died")),
            };
            match frame.kind {
                b'o' => stdout.extend(frame.bytes),
                b'e' => stderr.extend(frame.bytes),
                b'r' => report.extend(frame.bytes),
                b'x' => {
                    let ended: Ended = serde_json::from_slice(&frame.bytes)
                        .map_err(|error| broken(&format!("it sent an invalid answer: {error}")))?;
                    if let Some((layer, reason)) = ended.failure {
                        return Err(broken(&format!("{layer}: {reason}")));
                    }
                    let exit = match ended.ending {
                        Some(Ending::Exit(code)) => Exit::Exited(code),
                        Some(Ending::Signal(signal)) => Exit::Killed(signal),
                        Some(Ending::Memory(_)) => Exit::OutOfMemory,
                        Some(Ending::Timeout(_)) | None => Exit::TimedOut,
                    };
                    return Ok(Execution {
                        stdout: String::from_utf8_lossy(&stdout).into_owned(),
                        stderr: String::from_utf8_lossy(&stderr).into_owned(),
                        exit,
                        truncated: ended.cut[0] + ended.cut[1],
                        is_stdout_whole: ended.cut[0] == 0,
                        report,
                    });
                }
                b'f' => return Err(broken(&String::from_utf8_lossy(&frame.bytes))),
                _ => return Err(broken("it sent an invalid answer")),
            }
        }
    }
}

#[cfg(test)]
impl Server {
    pub(super) fn number(&self) -> u32 {
        self.child.handle.id()
    }

    /// Kills the harness, as if it had died by itself.
    pub(super) fn kill(&mut self) {
        self.child.end();
    }
}

fn read_frames(mut stdout: impl Read, frames: &Sender<Frame>, warnings: &Warnings) {
    loop {
        let mut head = [0; 5];
        if stdout.read_exact(&mut head).is_err() {
            return;
        }
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_BYTES {
            return;
        }
        let mut bytes = vec![0; length];
        if stdout.read_exact(&mut bytes).is_err() {
            return;
        }
        if kind == b'w' {
            warnings.push(String::from_utf8_lossy(&bytes).into_owned());
        } else if frames.send(Frame { kind, bytes }).is_err() {
            return;
        }
    }
}

/// The interpreter itself, if a name is that of a script that finds one.
pub(super) fn find_executable(python: &Path) -> Result<PathBuf, SandboxError> {
    let fail = |reason: String| SandboxError::Start { python: python.display().to_string(), reason };
    let mut command = Command::new(tamis_process::interpreter(&python.to_string_lossy()));
    command.args(["-c", "import sys; sys.stdout.write(sys.executable)"]);
    let ran = tamis_process::run(&mut command, STARTUP).map_err(|error| {
        fail(match error {
            ProgramError::Start { source, .. } => source.to_string(),
            ProgramError::Late { timeout, .. } => {
                format!("it did not report its path within {} s", timeout.as_secs())
            }
            ProgramError::Failed { .. } => error.to_string(),
        })
    })?;
    let path = PathBuf::from(ran.output());
    if !ran.status.success() || !path.is_absolute() {
        let error = ran.errors();
        let error = error.trim().lines().last().unwrap_or_default();
        return Err(fail(format!("it is not a working Python interpreter ({}): {error}", ran.status)));
    }
    Ok(path)
}
