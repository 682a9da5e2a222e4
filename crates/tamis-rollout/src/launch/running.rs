//! One process with its group: started, polled, ended.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tamis_process::ProcessGroup;

use super::{LaunchError, ServerPlace, ServerProcess};

/// Time limit of a health check of a process that has answered before, and the pause between two such
/// checks. A check delays those of the other processes.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1);
const WATCH_EVERY: Duration = Duration::from_secs(3);

/// A server as a child process.
pub(super) struct Running {
    pub(super) process: ServerProcess,
    group: ProcessGroup,
    pub(super) has_answered: bool,
    /// Nothing is left of its group, whose number may be another's.
    pub(super) is_over: bool,
    pub(super) started_at: Instant,
    /// Restarts since it last ran for long.
    pub(super) restarts: u32,
    pub(super) again_at: Option<Instant>,
    /// When it last answered, and when it is asked next.
    pub(super) heard_at: Instant,
    ask_at: Instant,
    /// It was found to be useless.
    pub(super) is_to_restart: Arc<AtomicBool>,
}

impl Running {
    pub(super) fn start(process: ServerProcess) -> Result<Self, LaunchError> {
        let surroundings = |what: &str, source| LaunchError::lacks(&process.shown, what, source);
        let open = || tamis_file::open_with(&process.log, OpenOptions::new().create(true).append(true));
        let mut log = open().map_err(|error| surroundings(&process.log.display().to_string(), error))?;
        let second = log.try_clone().map_err(|error| surroundings("its output has no place", error))?;
        // The command is printed at the head of its output.
        let _ = writeln!(log, "$ {}", process.shown);
        let mut command = tamis_process::command(&process.words);
        // Numbers of GPUs are those of `nvidia-smi`, here and in the plan: by default CUDA numbers the
        // fastest first.
        command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        command.envs(process.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(second);
        let group = ProcessGroup::start(&mut command)
            .map_err(|source| LaunchError::Start { command: process.shown.clone(), source })?;
        Ok(Self {
            group,
            process,
            has_answered: false,
            is_over: false,
            started_at: Instant::now(),
            restarts: 0,
            again_at: None,
            heard_at: Instant::now(),
            ask_at: Instant::now(),
            is_to_restart: Arc::default(),
        })
    }

    pub(super) fn start_again(&mut self) -> Result<(), LaunchError> {
        self.restarts += 1;
        let again = Self::start(self.process.clone())?;
        *self = Self { restarts: self.restarts, is_to_restart: Arc::clone(&self.is_to_restart), ..again };
        Ok(())
    }

    /// Whether it has not answered for too long, since it first did. One that starts is not asked.
    pub(super) fn is_silent(&mut self, longest: Duration) -> bool {
        if self.is_over || Instant::now() < self.ask_at {
            return false;
        }
        if answers(&self.process.place, WATCH_TIMEOUT) {
            (self.has_answered, self.heard_at) = (true, Instant::now());
        }
        self.ask_at = Instant::now() + WATCH_EVERY.min(longest / 4);
        self.has_answered && self.heard_at.elapsed() >= longest
    }

    /// Returns the process's exit status once, when it has ended. Its workers, which would keep their GPU,
    /// end with it: at once, while the group has its number.
    pub(super) fn poll_end(&mut self) -> Option<ExitStatus> {
        if self.is_over {
            return None;
        }
        let status = self.group.try_wait().ok().flatten()?;
        self.kill();
        Some(status)
    }

    pub(super) fn ask_to_end(&self) {
        if !self.is_over {
            self.group.ask_to_end();
        }
    }

    /// Has the group end at once; [`Self::poll_end`] finds that it did.
    pub(super) fn end_group(&mut self) {
        self.group.kill_watched();
        self.heard_at = Instant::now();
    }

    /// Ends the rest of the group at once.
    pub(super) fn kill(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.group.end();
    }
}

/// Whether something answers there in time.
pub(super) fn answers(place: &ServerPlace, timeout: Duration) -> bool {
    let ask = || -> io::Result<bool> {
        let port = match place {
            ServerPlace::Port(port) => *port,
            #[cfg(unix)]
            ServerPlace::Socket(path) => return Ok(std::os::unix::net::UnixStream::connect(path).is_ok()),
            #[cfg(not(unix))]
            ServerPlace::Socket(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        write!(stream, "GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")?;
        let mut line = [0; 12];
        stream.read_exact(&mut line)?;
        Ok(line.starts_with(b"HTTP/1.") && line.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}
