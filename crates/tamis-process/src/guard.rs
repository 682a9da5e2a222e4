//! Cleans up after tamis is killed (`kill -9`), when it has no time to end what it has started. A process
//! that reads its standard input sees the end of it and exits, but a hanging one does not. So there are
//! guards: shells that wait on a pipe whose other end tamis holds. When the pipe closes, tamis is dead. A
//! guard exists before what it guards, so nothing is ever unguarded.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Ignores signals to the whole group, because the guard has to stay. The empty line reports that it is
/// ready.
const STAY: &str = "trap '' HUP INT QUIT PIPE TERM USR1 USR2 ALRM; echo; exec >/dev/null";

/// The shell leads the group. Lines on its pipe are the number of the process that it guards, which may have
/// created its own group.
const KILL_GROUP: &str = "own=; while read -r process; do own=$process; done; sleep 1; \
     [ -z \"$own\" ] || kill -s KILL -- \"-$own\"; kill -s KILL -- \"-$$\"";

/// `$1` is the folder. Processes that are just being killed may still write into it.
const REMOVE_FOLDER: &str =
    "read -r line; sleep 2; for again in 1 2 3 4 5 6 7 8; do rm -rf -- \"$1\" && exit; sleep 1; done";

/// A shell in a new group that waits for its pipe to close. Until it is dropped, no other group gets its
/// number.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Creates a group with only the guard in it; `None` if there is no shell.
    pub(crate) fn of_group() -> Option<Self> {
        Self::begin(KILL_GROUP, Path::new(""))
    }

    /// Guards a folder, whether or not it exists yet; `None` if there is no shell.
    pub(crate) fn of_folder(folder: &Path) -> Option<Self> {
        Self::begin(REMOVE_FOLDER, folder)
    }

    fn begin(script: &str, argument: &Path) -> Option<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", &format!("{STAY}; {script}"), "tamis-guard"])
            .arg(argument)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .ok()?;
        let mut guard = Self { shell };
        let said = guard.shell.stdout.take().map(|mut said| said.read_exact(&mut [0]));
        matches!(said, Some(Ok(()))).then_some(guard)
    }

    pub(crate) fn group(&self) -> u32 {
        self.shell.id()
    }

    /// Passes it the number of a process in its group. If that process creates its own group, this is killed,
    /// too.
    pub(crate) fn note_process(&mut self, process: u32) {
        if let Some(pipe) = &mut self.shell.stdin {
            // Fails if the shell is gone already.
            let _ = writeln!(pipe, "{process}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, killpg};

    use super::*;

    fn sleep_in(group: u32) -> std::io::Result<Child> {
        let group = i32::try_from(group).expect("a number");
        Command::new("sleep").arg("1000").process_group(group).spawn()
    }

    /// Closes the pipe, as if tamis were killed.
    fn close(guard: &mut Guard) {
        drop(guard.shell.stdin.take());
        guard.shell.wait().expect("it ends");
    }

    #[test]
    fn what_is_in_the_group_of_a_dead_process_is_killed() {
        let mut guard = Guard::of_group().expect("a shell");
        let number = nix::unistd::Pid::from_raw(i32::try_from(guard.group()).expect("a number"));
        // These signals ask the whole group to end, and the guard must survive them.
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            killpg(number, signal).expect("sent");
        }
        let mut children = [(); 2].map(|()| sleep_in(guard.group()).expect("sleep"));
        close(&mut guard);
        for child in &mut children {
            assert!(child.wait().expect("ended").code().is_none());
        }
    }

    #[test]
    fn a_process_that_comes_after_the_end_of_its_group_does_not_begin() {
        let mut guard = Guard::of_group().expect("a shell");
        let group = guard.group();
        close(&mut guard);
        assert!(sleep_in(group).is_err());
    }

    #[test]
    fn a_process_that_has_made_a_group_of_its_own_is_killed_too() {
        let mut guard = Guard::of_group().expect("a shell");
        let mut child = sleep_in(0).expect("sleep");
        guard.note_process(child.id());
        close(&mut guard);
        assert!(child.wait().expect("ended").code().is_none());
    }

    #[test]
    fn a_folder_is_removed_where_its_owner_is_dead() {
        for is_dead in [true, false] {
            let parent = tempfile::tempdir().expect("a folder");
            let folder = parent.path().join("folder");
            let mut guard = Guard::of_folder(&folder).expect("a shell");
            std::fs::create_dir(&folder).expect("made");
            std::fs::write(folder.join("file"), "x").expect("written");
            if is_dead {
                close(&mut guard);
            }
            drop(guard);
            assert_eq!(folder.exists(), !is_dead);
        }
    }
}
