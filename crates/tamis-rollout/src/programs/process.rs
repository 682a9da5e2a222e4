//! The process of one episode: started with its task, supervised, killed with its group.

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tamis_process::{ProcessGroup, kill_marked};

use super::ProgramSettings;
use super::surroundings::variables;
use crate::launch::last_lines;

/// Length of the end of the output in which an outcome is looked for, in bytes.
const OUTCOME_BYTES: u64 = 1 << 16;

/// Interval at which the length of the output is looked at.
const MEASURE_EVERY: Duration = Duration::from_millis(100);

/// The variable with the path of the task, by which processes of an episode are known.
const MARK: &str = "TAMIS_TASK";

/// The file of the task, in the folder of its episode.
const TASK: &str = "task.json";

#[derive(Debug, Clone, Copy)]
pub(super) enum ProcessEnd {
    /// It exited by itself, or by a signal that was not ours.
    Exited(ExitStatus),
    /// It took too long.
    Late,
    /// It printed too much.
    Loud,
}

/// A process. Dropped, it is killed with its group, and its folder is removed.
pub(super) struct Process {
    group: ProcessGroup,
    folder: Folder,
    started_at: Instant,
    measure_at: Instant,
    is_over: bool,
}

/// A folder of an episode, removed with the value. If tamis is killed, the guard removes the host's
/// folder, which contains all of them.
struct Folder(PathBuf);

impl Folder {
    fn create(path: PathBuf) -> io::Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        // Tasks may hold answers.
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Process {
    /// Starts the program with a task, in a folder of this name.
    pub(super) fn start(
        settings: &ProgramSettings,
        folder: &str,
        task: &str,
        address: SocketAddr,
        token: &str,
    ) -> Result<Self, String> {
        let path = settings.scratch_dir.join(folder);
        let failed = |error: io::Error| format!("its folder {} cannot be created: {error}", path.display());
        let folder = Folder::create(path.clone()).map_err(failed)?;
        let task_file = path.join(TASK);
        std::fs::write(&task_file, format!("{task}\n")).map_err(failed)?;
        let append = |name: &str| {
            tamis_file::open_with(&path.join(name), OpenOptions::new().create(true).append(true))
        };
        let url = format!("http://{address}/e/{token}/v1");
        let own = [
            ("OPENAI_BASE_URL", url.clone()),
            ("OPENAI_API_BASE", url),
            ("OPENAI_API_KEY", token.to_owned()),
            ("TAMIS_MODEL", settings.model.clone()),
            (MARK, task_file.display().to_string()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let set = settings.environment.iter().cloned().chain(own).collect();
        let mut command = tamis_process::command(&settings.argv);
        command
            .env_clear()
            .envs(variables(std::env::vars_os(), set))
            .stdin(tamis_file::open(&task_file).map_err(failed)?)
            .stdout(append("stdout").map_err(failed)?)
            .stderr(append("stderr").map_err(failed)?);
        if let Some(folder) = &settings.working_dir {
            command.current_dir(folder);
        }
        let group = ProcessGroup::start(&mut command).map_err(|error| {
            format!("`{}` cannot be started: {error}", command.get_program().to_string_lossy())
        })?;
        let now = Instant::now();
        Ok(Self { group, folder, started_at: now, measure_at: now + MEASURE_EVERY, is_over: false })
    }

    /// How it ended, if it has; the rest of its group is then killed.
    pub(super) fn poll_end(&mut self, settings: &ProgramSettings) -> Option<ProcessEnd> {
        let end = self.find_end(settings)?;
        self.kill();
        Some(end)
    }

    fn find_end(&mut self, settings: &ProgramSettings) -> Option<ProcessEnd> {
        if let Ok(Some(status)) = self.group.try_wait() {
            return Some(ProcessEnd::Exited(status));
        }
        let now = Instant::now();
        if now.duration_since(self.started_at) >= settings.timeout {
            return Some(ProcessEnd::Late);
        }
        if now < self.measure_at {
            return None;
        }
        self.measure_at = now + MEASURE_EVERY;
        let length = |name| std::fs::metadata(self.folder.0.join(name)).map_or(0, |found| found.len());
        (length("stdout") + length("stderr") > settings.max_output_bytes).then_some(ProcessEnd::Loud)
    }

    /// Kills the group, and processes that have left it for a session of their own, once; it is reaped
    /// later.
    pub(super) fn kill(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.group.kill();
        kill_marked(MARK, &self.folder.0.join(TASK).display().to_string());
    }

    /// Whether nothing is left of the process itself.
    pub(super) fn is_reaped(&mut self) -> bool {
        !matches!(self.group.try_wait(), Ok(None))
    }

    /// The last lines of its standard error.
    pub(super) fn last_words(&self) -> String {
        last_lines(&self.folder.0.join("stderr"))
    }

    /// The end of its standard output, in whole lines.
    pub(super) fn output(&self) -> Result<String, String> {
        read_end(&self.folder.0.join("stdout"), OUTCOME_BYTES)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a file, from the beginning of a line.
fn read_end(path: &Path, most: u64) -> Result<String, String> {
    let read = tamis_file::read_end(path, most);
    let (bytes, is_cut) = read.map_err(|error| format!("its output cannot be read: {error}"))?;
    let text = String::from_utf8_lossy(&bytes);
    if !is_cut {
        return Ok(text.into_owned());
    }
    match text.trim_end().split_once('\n') {
        Some((_, lines)) => Ok(lines.to_owned()),
        None => Err(format!("the last line of its output is longer than {most} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_file_begins_with_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(read_end(&path, 100).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(read_end(&path, 9).unwrap(), "three");
        assert!(read_end(&path, 5).unwrap_err().contains("longer than 5 bytes"));
        assert!(read_end(&folder.path().join("none"), 5).unwrap_err().contains("cannot be read"));
    }
}
