//! A process in its own process group, which ends together with everything it has started. Dropping a
//! [`ProcessGroup`] kills its processes, and a guard kills them if tamis is killed. A process that leaves the
//! group is not reached in this way; [`kill_marked`](crate::kill_marked) finds it by an environment variable
//! that it inherited. Files of processes belong into a [`GuardedFolder`](crate::GuardedFolder), which is
//! removed in the same way.

use std::io;
use std::process::{Child, Command, ExitStatus};

#[cfg(unix)]
use crate::guard::Guard;

/// What is signalled together with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everything that it has started and that has not left its group, under a guard.
    Group,
    /// Only the process. When its input ends, it ends what it has started, which takes some time.
    Leader,
}

/// A process, and everything that it has started and that has not left its group.
///
/// A guard leads the group. It exists before the process, so no process is left even if tamis is killed.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    /// `None` if there is no shell to guard it. The process then leads its group.
    #[cfg(unix)]
    guard: Option<Guard>,
    #[cfg(unix)]
    reach: Reach,
    /// Whether nothing of it is left. Its number may then belong to another group.
    is_over: bool,
}

impl ProcessGroup {
    /// Starts a command in a new group.
    ///
    /// # Errors
    /// The system's errors.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Self::start_with(command, Reach::Group)
    }

    /// As [`Self::start`], with a given reach.
    #[cfg_attr(not(unix), expect(unused_variables, reason = "there are no groups"))]
    pub(crate) fn start_with(command: &mut Command, reach: Reach) -> io::Result<Self> {
        #[cfg(unix)]
        let mut guard = if reach == Reach::Group { Guard::of_group() } else { None };
        #[cfg(unix)]
        let group = guard.as_ref().and_then(|guard| i32::try_from(guard.group()).ok()).unwrap_or(0);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, group);
        let child = command.spawn()?;
        #[cfg(unix)]
        if let Some(guard) = &mut guard {
            guard.note_process(child.id());
        }
        Ok(Self {
            #[cfg(unix)]
            guard,
            #[cfg(unix)]
            reach,
            child,
            is_over: false,
        })
    }

    /// Its first process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status of its first process, once that has ended. Other processes of the group may still run.
    ///
    /// # Errors
    /// The system's errors.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks its first process to end, with SIGTERM.
    pub fn ask_leader_to_end(&mut self) {
        #[cfg(unix)]
        if let Some(first) = number(self.child.id()) {
            let _ = nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGTERM);
        }
        #[cfg(not(unix))]
        let _ = self.child.kill();
    }

    /// Asks all of it to end.
    pub fn ask_to_end(&self) {
        #[cfg(unix)]
        self.signal(nix::sys::signal::Signal::SIGTERM);
    }

    /// Kills all of it, once. Its first process still has to be reaped.
    pub fn kill(&mut self) {
        // The group keeps its number until its guard is reaped; without a guard, as long as one of its
        // processes is left.
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.kill_watched();
        #[cfg(unix)]
        {
            self.guard = None;
        }
    }

    /// Kills all of it, and keeps its number. Use [`Self::try_wait`] to wait for the end.
    pub fn kill_watched(&mut self) {
        #[cfg(unix)]
        self.signal(nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.kill();
    }

    /// Kills all of it, and reaps its first process.
    pub fn end(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }

    #[cfg(unix)]
    fn signal(&self, signal: nix::sys::signal::Signal) {
        if self.reach == Reach::Leader {
            return;
        }
        // The process's own group if it has created one, otherwise the guard's.
        let groups = [self.guard.as_ref().map(Guard::group), Some(self.child.id())];
        for group in groups.into_iter().flatten().filter_map(number) {
            // An error means that nothing is left of the group.
            let _ = nix::sys::signal::killpg(group, signal);
        }
    }
}

#[cfg(unix)]
fn number(process: u32) -> Option<nix::unistd::Pid> {
    i32::try_from(process).ok().map(nix::unistd::Pid::from_raw)
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::GuardedFolder;

    /// Whether a process ends within some time.
    fn ends(process: u32) -> bool {
        let process = nix::unistd::Pid::from_raw(i32::try_from(process).expect("a number"));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(60) {
            if nix::sys::signal::kill(process, None).is_err() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// The number that a script has written into a file.
    fn written(file: &std::path::Path) -> u32 {
        let began = Instant::now();
        loop {
            match std::fs::read_to_string(file) {
                Ok(text) => return text.trim().parse().expect("a number"),
                Err(_) if began.elapsed() < Duration::from_secs(60) => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn what_a_process_has_started_ends_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("started");
        let script = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; exit 0", file.display());
        let mut group = ProcessGroup::start(Command::new("/bin/sh").args(["-c", &script])).expect("started");
        group.child().wait().expect("it has ended");
        let left = written(&file);
        group.end();
        assert!(ends(left));
    }

    /// Runs in a child process for [`a_process_that_is_killed_leaves_nothing`]: starts one process after
    /// another, and is killed meanwhile.
    #[test]
    #[ignore = "it is the process that is killed"]
    fn start_a_process_again_and_again() {
        let Some(folder) = std::env::var_os("TAMIS_TEST_FOLDER").map(std::path::PathBuf::from) else {
            return;
        };
        for number in 0..100 {
            let _folder = GuardedFolder::create_in(&folder, "folder").expect("a folder");
            let script = format!("echo $$ > {}; exec sleep 1000", folder.join(format!("{number}")).display());
            let group = ProcessGroup::start(Command::new("/bin/sh").args(["-c", &script]));
            std::mem::forget(group.expect("started"));
        }
    }

    #[test]
    fn a_process_that_is_killed_leaves_nothing() {
        for most in [0, 1, 3] {
            let parent = tempfile::tempdir().expect("a folder");
            let test = "group::tests::start_a_process_again_and_again";
            let mut child = Command::new(std::env::current_exe().expect("the tests"))
                .args(["--ignored", "--exact", test])
                .env("TAMIS_TEST_FOLDER", parent.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("started");
            // In the middle of starting the next one.
            let entries = || std::fs::read_dir(parent.path()).expect("a folder").flatten();
            while entries().count() <= 2 * most && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_micros(100));
            }
            child.kill().expect("killed");
            child.wait().expect("ended");
            let began = Instant::now();
            let is_folder = |entry: &std::fs::DirEntry| entry.path().is_dir();
            while entries().any(|entry| is_folder(&entry)) {
                assert!(began.elapsed() < Duration::from_secs(60), "a folder is left");
                std::thread::sleep(Duration::from_millis(10));
            }
            for entry in entries() {
                // If it was killed before it had written its number, the file has none.
                let text = std::fs::read_to_string(entry.path()).expect("read");
                assert!(text.trim().parse().map_or(true, ends), "a process is left");
            }
        }
    }
}
