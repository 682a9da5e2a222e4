//! What stays when tamis is killed (`kill -9`), which leaves it no time to end what it has started.
//! A process that reads its standard input sees the end of it and goes; one that hangs does not. So there are
//! shells that wait on a pipe of which tamis holds the other end: where it closes, tamis is dead. Each is
//! there before what it guards, so that there is no moment in which nobody would.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What asks a group to end asks its guard too, which stays. Its first line says that it does.
const STAY: &str = "trap '' HUP INT QUIT PIPE TERM USR1 USR2 ALRM; echo; exec >/dev/null";

/// The shell leads the group; lines on its pipe are the number of the process that it is there for, which may
/// have made a group of its own.
const KILL_GROUP: &str = "own=; while read -r process; do own=$process; done; sleep 1; \
     [ -z \"$own\" ] || kill -s KILL -- \"-$own\"; kill -s KILL -- \"-$$\"";

/// `$1` is the folder, in which processes may write that are killed meanwhile.
const REMOVE_FOLDER: &str =
    "read -r line; sleep 2; for again in 1 2 3 4 5 6 7 8; do rm -rf -- \"$1\" && exit; sleep 1; done";

/// A shell in a group of its own that waits for the end of its pipe. For as long as it is not dropped, no
/// other group gets the number of its own.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Makes a group with nothing in it yet, which it leads; `None` where there is no shell to do so.
    pub(crate) fn of_group() -> Option<Self> {
        Self::begin(KILL_GROUP, Path::new(""))
    }

    /// Watches over a folder, whether or not it is there yet; `None` where there is no shell to do so.
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

    /// Tells it of a process in its group, whose own group is killed too where it makes one.
    pub(crate) fn note_process(&mut self, process: u32) {
        if let Some(pipe) = &mut self.shell.stdin {
            // A shell that is gone already cannot be told.
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

    /// As where tamis is killed: the pipe closes.
    fn close(guard: &mut Guard) {
        drop(guard.shell.stdin.take());
        guard.shell.wait().expect("it ends");
    }

    #[test]
    fn what_is_in_the_group_of_a_dead_process_is_killed() {
        let mut guard = Guard::of_group().expect("a shell");
        let number = nix::unistd::Pid::from_raw(i32::try_from(guard.group()).expect("a number"));
        // As all of a group is asked to end, which a process may not do.
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
