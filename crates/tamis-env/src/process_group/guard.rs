//! A watch over a process that must not outlive tamis: `kill -9` leaves us no time to kill it.
//!
//! A process that reads its standard input sees the end of it and goes; one that hangs does not. So each has
//! a shell beside it, in a group of its own, that waits on a pipe of which tamis holds the other end.
//! Released by a line, it goes; where the pipe closes without one, tamis is dead, and the shell kills the
//! process group after a moment, and removes the folder that was its alone.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `$1` is the process group, `$2` its folder or nothing. What asks the shell to end asks tamis too, which then
/// releases it.
const SCRIPT: &str = "trap '' HUP INT TERM; read -r released || { sleep 1; kill -s KILL -- \"-$1\"; \
     [ -z \"$2\" ] || rm -rf -- \"$2\"; }";

/// The watch over one process group. Dropped, it is released: before the group's leader is reaped, for then
/// others may get its number.
#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
}

impl Guard {
    /// Watches over a group and a folder that goes with it; `None` where there is no shell to do so.
    pub(super) fn over(group: u32, folder: Option<&Path>) -> Option<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tamis-guard", &group.to_string()])
            .arg(folder.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .ok()?;
        Some(Self { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A shell that is gone already cannot be told.
            let _ = pipe.write_all(b"\n");
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_whose_process_is_dead_is_killed_and_its_folder_removed() {
        for is_released in [true, false] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().expect("sleep");
            let mut guard = Guard::over(child.id(), Some(folder.path())).expect("a shell");
            if is_released {
                drop(guard);
                assert!(matches!(child.try_wait(), Ok(None)) && folder.path().is_dir());
                child.kill().expect("killed");
            } else {
                // As where tamis is killed: the pipe closes, and nothing was said.
                drop(guard.shell.stdin.take());
                guard.shell.wait().expect("it ends");
                assert!(!folder.path().exists());
            }
            assert!(child.wait().expect("ended").code().is_none());
        }
    }
}
