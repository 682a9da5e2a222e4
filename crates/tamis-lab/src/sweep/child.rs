//! The `tamis train` process of one run. It has its own process group and a guard, so it cannot outlive the
//! sweep.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use tamis_process::ProcessGroup;
use tamis_run::durable::UNFINISHED;

/// The share of the machine that one of several parallel runs may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Share {
    /// Worker threads; `None`: the configuration decides.
    pub threads: Option<usize>,
    /// GPUs by their numbers in `nvidia-smi`; `None`: all.
    pub gpus: Option<Vec<String>>,
}

impl Share {
    /// Shares of a machine for `runs` parallel runs. A single run gets the whole machine. If there are more
    /// runs than GPUs, they share these.
    pub fn of_machine(cores: usize, gpus: &[String], runs: usize) -> Vec<Self> {
        if runs <= 1 {
            return vec![Self::default()];
        }
        let each = gpus.len() / runs;
        let of_slot = |slot: usize| match (gpus.is_empty(), each) {
            (true, _) => None,
            (false, 0) => Some(vec![gpus[slot % gpus.len()].clone()]),
            (false, each) => Some(gpus[slot * each..(slot + 1) * each].to_vec()),
        };
        (0..runs).map(|slot| Self { threads: Some((cores / runs).max(1)), gpus: of_slot(slot) }).collect()
    }
}

/// A running `tamis train`.
#[derive(Debug)]
pub struct RunChild {
    group: ProcessGroup,
}

impl RunChild {
    /// Starts the process. Its output is appended to `log`. Its standard input is the sweep's `lock`, so the
    /// lock is held until the process has ended.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(
        program: &Path,
        arguments: &[String],
        share: &Share,
        log: &Path,
        lock: &File,
    ) -> std::io::Result<Self> {
        let log = tamis_file::open_with(log, OpenOptions::new().create(true).append(true))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .stdin(Stdio::from(lock.try_clone()?))
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log));
        if let Some(gpus) = &share.gpus {
            command.env("CUDA_VISIBLE_DEVICES", gpus.join(","));
        }
        Ok(Self { group: ProcessGroup::start(&mut command)? })
    }

    /// Its exit status, if it has ended. The rest of its process group is then killed.
    pub fn poll_end(&mut self) -> Option<ExitStatus> {
        let status = self.group.try_wait().ok().flatten()?;
        self.group.end();
        Some(status)
    }

    /// Asks it to save and exit, as Ctrl-C does.
    pub fn ask_to_end(&mut self) {
        self.group.ask_leader_to_end();
    }
}

impl Drop for RunChild {
    fn drop(&mut self) {
        self.group.end();
    }
}

/// The end of a log from an offset: its last error with all lines, or its last lines.
pub fn last_words(log: &Path, from: u64, most: usize) -> Vec<String> {
    let bytes = tamis_file::read(log, u64::MAX).unwrap_or_default();
    let part = usize::try_from(from).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
    let text = String::from_utf8_lossy(part);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    // An error with its causes and its hint, if there is one.
    let error = lines.iter().rposition(|line| line.starts_with("error"));
    let from = error.unwrap_or_else(|| lines.len().saturating_sub(most));
    lines.iter().skip(from).take(2 * most).map(|&line| line.to_owned()).collect()
}

/// Whether a folder holds only what a run creates before it is complete, so that nothing is lost with it.
pub fn is_unbegun(folder: &Path) -> bool {
    let is_empty = |path: &PathBuf| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let Ok(mut entries) = std::fs::read_dir(folder) else { return false };
    entries.all(|entry| {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        match name.to_str() {
            Some("run.lock" | "started") => true,
            Some("checkpoints" | "rollouts") => is_empty(&entry.path()),
            Some(name) => name.ends_with(UNFINISHED),
            None => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_shared_out() {
        let gpus = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(Share::of_machine(8, &gpus(&["0"]), 1), [Share::default()]);
        let shares = Share::of_machine(8, &gpus(&["0", "1", "2", "3", "4"]), 2);
        assert_eq!(shares[0], Share { threads: Some(4), gpus: Some(gpus(&["0", "1"])) });
        assert_eq!(shares[1].gpus, Some(gpus(&["2", "3"])));
        let shares = Share::of_machine(2, &gpus(&["0", "1"]), 3);
        assert_eq!(shares[2], Share { threads: Some(1), gpus: Some(gpus(&["0"])) });
        assert_eq!(Share::of_machine(2, &[], 2)[1], Share { threads: Some(1), gpus: None });
    }

    /// A kill after a run's folder was created and before its configuration was.
    #[test]
    fn a_folder_of_a_run_that_was_never_one() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        std::fs::create_dir_all(run.join("checkpoints")).unwrap();
        for file in ["run.lock", "started", ".config.yaml.tmp"] {
            std::fs::write(run.join(file), "1").unwrap();
        }
        assert!(is_unbegun(&run));
        std::fs::write(run.join("checkpoints/step_1"), "1").unwrap();
        assert!(!is_unbegun(&run), "there is something to lose");
        assert!(!is_unbegun(&folder.path().join("nothing")));
    }

    #[test]
    fn what_a_log_ends_with() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(&log, "old\nerror: old\none\n\ntwo\nerror: failed\n  hint: mend it\n").unwrap();
        assert_eq!(last_words(&log, 0, 5), ["error: failed", "  hint: mend it"]);
        std::fs::write(&log, "old\none\ntwo\nthree\n").unwrap();
        assert_eq!(last_words(&log, 4, 2), ["two", "three"]);
    }
}
