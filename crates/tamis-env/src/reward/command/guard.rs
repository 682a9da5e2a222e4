//! A watch over a process that must not outlive tamis: `kill -9` leaves us no time to kill it.
//!
//! A process that reads its standard input sees the end of it and goes; one that hangs does not. So each has
//! a shell beside it, in a group of its own, that waits on a pipe of which tamis holds the other end.
//! Released by a line, it goes; where the pipe closes without one, tamis is dead, and the shell kills the
//! process group after a moment.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// `$1` is the process group. What asks the shell to end asks tamis too, which then releases it.
const SCRIPT: &str = "trap '' HUP INT TERM; read -r released || { sleep 1; kill -s KILL -- \"-$1\"; }";

/// The watch over one process group. Dropped, it is released: before the group's leader is reaped, for then
/// others may get its number.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Watches over a group; `None` where there is no shell to do so.
    pub fn over(group: u32) -> Option<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tamis-guard", &group.to_string()])
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
