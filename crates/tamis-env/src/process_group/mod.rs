//! A process in a group of its own, which ends with all that it has started.
//!
//! Whoever holds a [`ProcessGroup`] holds its processes: dropped, it is killed, and a guard kills it where
//! tamis is. A process that leaves its group is not found by its number; [`kill_marked`] finds it by what it
//! has inherited.

#[cfg(unix)]
mod guard;
mod marked;

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

#[cfg(unix)]
use guard::Guard;
pub use marked::kill_marked;

/// A process, and all that it has started and that has not left its group.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    #[cfg(unix)]
    guard: Option<Guard>,
    /// Nothing is left of it, and its number may be another's.
    is_over: bool,
}

impl ProcessGroup {
    /// Starts a command in a group of its own; `folder` is removed where tamis is killed.
    ///
    /// # Errors
    /// As the system's.
    pub fn start(command: &mut Command, folder: Option<&Path>) -> io::Result<Self> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let child = command.spawn()?;
        #[cfg(not(unix))]
        let _ = folder;
        Ok(Self {
            #[cfg(unix)]
            guard: Guard::over(child.id(), folder),
            child,
            is_over: false,
        })
    }

    /// Its first process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status of its first process, once that has ended. What it has left of the group is still there.
    ///
    /// # Errors
    /// As the system's.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks its first process to end, as Ctrl-C does.
    pub fn ask_leader_to_end(&mut self) {
        #[cfg(unix)]
        if let Some(leader) = self.number() {
            let _ = nix::sys::signal::kill(leader, nix::sys::signal::Signal::SIGTERM);
        }
        #[cfg(not(unix))]
        let _ = self.child.kill();
    }

    /// Asks all of it to end.
    pub fn ask_to_end(&self) {
        #[cfg(unix)]
        self.signal(nix::sys::signal::Signal::SIGTERM);
    }

    /// Kills all of it, once; its first process is still to be reaped.
    pub fn kill(&mut self) {
        // The group has its number for as long as something of it is left, or its leader is not reaped. Where
        // the leader has been reaped (it ended by itself), what it left behind still holds the number, or
        // nothing does: it is killed as soon as that is found.
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.kill_watched();
        #[cfg(unix)]
        {
            self.guard = None;
        }
    }

    /// Kills all of it, and keeps the guard: whoever waits for its end has it found by [`Self::try_wait`].
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
    fn number(&self) -> Option<nix::unistd::Pid> {
        i32::try_from(self.child.id()).ok().map(nix::unistd::Pid::from_raw)
    }

    #[cfg(unix)]
    fn signal(&self, signal: nix::sys::signal::Signal) {
        if let Some(group) = self.number() {
            // Where nothing is left of the group there is nothing to report.
            let _ = nix::sys::signal::killpg(group, signal);
        }
    }
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

    /// Whether a process ends, which it is given time for.
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

    #[test]
    fn what_a_process_has_started_ends_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("started");
        let script = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; exit 0", file.display());
        let mut group =
            ProcessGroup::start(Command::new("/bin/sh").args(["-c", &script]), None).expect("started");
        group.child().wait().expect("it has ended");
        let left: u32 = std::fs::read_to_string(&file).expect("written").trim().parse().expect("a number");
        group.end();
        assert!(ends(left));
    }
}
