//! Inference servers as child processes: started, waited for until they answer, started again where they end,
//! ended with the value.
//!
//! Each has a process group of its own, which is ended with it: an engine has workers. Its output goes to a
//! file, whose last lines a message shows. Where this process is killed, a [`Guard`] ends the group.

use std::error::Error as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tamis_env::reward::command::guard::Guard;
use thiserror::Error;

/// Interval at which processes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longest time for a server's answer to a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same of a server that has answered before, and the pause between two such checks: they hold up the look
/// at the others.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1);
const WATCH_EVERY: Duration = Duration::from_secs(3);
/// When it is first said that servers are waited for; then whenever that time has doubled.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest time for processes to end once they are asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Pause before a server is started again; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a server is started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Length of the end of an output file that a message shows, in bytes.
const LAST_BYTES: u64 = 4096;
const LAST_LINES: usize = 20;

/// Where a process answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A port of 127.0.0.1, on which it answers `GET /health`.
    Port(u16),
    /// A socket in the file system, which takes connections.
    Socket(PathBuf),
}

/// As clients write it.
impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(port) => write!(formatter, "http://127.0.0.1:{port}"),
            Self::Socket(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// A server to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerProcess {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Variables of the environment, beside those of this process.
    pub environment: Vec<(String, String)>,
    /// The command as a person reads it.
    pub shown: String,
    /// What it is, for messages: `server`.
    pub what: &'static str,
    /// Where it answers.
    pub place: Place,
    /// A folder for it alone, removed where this process is killed.
    pub folder: Option<PathBuf>,
    /// The file that its output is appended to; its folder exists.
    pub log: PathBuf,
}

/// Servers could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The program cannot be run.
    #[error("cannot start `{command}`")]
    Start {
        /// The command.
        command: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The file for its output cannot be written, or no port is free.
    #[error("cannot start `{command}`: {what}")]
    Surroundings {
        /// The command.
        command: String,
        /// The missing resource.
        what: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The process ended before it answered.
    #[error("the server `{command}` ended ({status}) before it answered{}", tail(output))]
    Ended {
        /// The command.
        command: String,
        /// Exit status in words.
        status: String,
        /// Whether a signal ended it, and not itself.
        by_signal: bool,
        /// The last lines of its output.
        output: String,
    },
    /// A launcher refuses to start it.
    #[error("{message}")]
    Refused {
        /// The reason.
        message: String,
        /// The fix, where it is known.
        hint: Option<String>,
    },
    /// The process did not answer in time.
    #[error("the server `{command}` did not answer within {} s{}", timeout.as_secs(), tail(output))]
    Late {
        /// The command.
        command: String,
        /// The time.
        timeout: Duration,
        /// The last lines of its output.
        output: String,
    },
}

fn tail(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!("; its output ends:\n{output}") }
}

/// Returns `count` different ports of 127.0.0.1 on which nothing listens now.
///
/// # Errors
/// There are none.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // Each is held until all are drawn: one that is given back may be drawn again.
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn pause_after(restarts: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << restarts.min(16)).min(LONGEST_PAUSE)
}

/// Hears what a person should know of servers.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

struct Running {
    process: ServerProcess,
    child: Child,
    // Nothing reads it: it is there to be dropped.
    #[cfg(unix)]
    guard: Option<Guard>,
    has_answered: bool,
    /// Nothing is left of its group, whose number may be another's.
    is_over: bool,
    /// Restarts so far.
    restarts: u32,
    /// When it is started again.
    again_at: Option<Instant>,
    /// When it last answered, and when it is asked next.
    heard_at: Instant,
    ask_at: Instant,
}

impl Running {
    fn start(process: ServerProcess) -> Result<Self, LaunchError> {
        let surroundings = |what: &str, source| LaunchError::Surroundings {
            command: process.shown.clone(),
            what: what.to_owned(),
            source,
        };
        let open = || OpenOptions::new().create(true).append(true).open(&process.log);
        let mut log = open().map_err(|error| surroundings(&process.log.display().to_string(), error))?;
        let second = log.try_clone().map_err(|error| surroundings("its output has no place", error))?;
        // What it was started with is printed where its output is.
        let _ = writeln!(log, "$ {}", process.shown);
        let (program, arguments) =
            process.words.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut command = Command::new(program);
        command.args(arguments).envs(process.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(second);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command
            .spawn()
            .map_err(|source| LaunchError::Start { command: process.shown.clone(), source })?;
        Ok(Self {
            #[cfg(unix)]
            guard: Guard::over(child.id(), process.folder.as_deref()),
            child,
            process,
            has_answered: false,
            is_over: false,
            restarts: 0,
            again_at: None,
            heard_at: Instant::now(),
            ask_at: Instant::now(),
        })
    }

    /// Whether it has not answered for too long, since it first did. One that starts is not asked.
    fn is_silent(&mut self, longest: Duration) -> bool {
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
    fn poll_end(&mut self) -> Option<ExitStatus> {
        if self.is_over {
            return None;
        }
        let status = self.child.try_wait().ok().flatten()?;
        self.kill();
        Some(status)
    }

    #[cfg(unix)]
    fn signal(&self, signal: nix::sys::signal::Signal) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            // Where nothing is left of the group there is nothing to report.
            let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), signal);
        }
    }

    fn ask_to_end(&self) {
        #[cfg(unix)]
        if !self.is_over {
            self.signal(nix::sys::signal::Signal::SIGTERM);
        }
    }

    /// Has the group end at once; [`Self::poll_end`] finds that it did.
    fn end_group(&mut self) {
        #[cfg(unix)]
        self.signal(nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.kill();
        self.heard_at = Instant::now();
    }

    /// Ends what is left of the group at once.
    fn kill(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        #[cfg(unix)]
        {
            self.signal(nix::sys::signal::Signal::SIGKILL);
            self.guard = None;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long servers may take, and how often they are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchLimits {
    /// Longest time until all answer for the first time.
    pub startup: Duration,
    /// Longest time for which one that has answered may leave health checks unanswered; `None`: any.
    pub silence: Option<Duration>,
    /// Most restarts, of all of them together.
    pub restarts: u32,
}

impl LaunchLimits {
    /// Of servers that are started again where they end.
    pub fn of_servers(startup: Duration, silence: Option<Duration>) -> Self {
        Self { startup, silence, restarts: 8 }
    }

    /// Of a process that somebody else looks after.
    pub fn once(startup: Duration) -> Self {
        Self { startup, silence: None, restarts: 0 }
    }
}

/// What became of a process that ended and is not started again.
type Ended = Arc<Mutex<Option<String>>>;

/// Servers of this process, all of which have answered once. Dropped, they are ended.
pub struct LaunchedServers {
    addresses: Vec<String>,
    is_over: Arc<AtomicBool>,
    ended: Ended,
    watch: Option<JoinHandle<()>>,
}

impl LaunchedServers {
    /// Starts servers and waits until each answers `GET /health`; `None` where the wait is given up. Those that
    /// end later, or that a signal ends before, are started again.
    ///
    /// # Errors
    /// Where one cannot be started, ends by itself, or does not answer in time. None of them is left then.
    pub fn start(
        processes: Vec<ServerProcess>,
        limits: LaunchLimits,
        interrupted: &AtomicBool,
        say: Say,
    ) -> Result<Option<Self>, LaunchError> {
        let addresses = processes.iter().map(|process| process.place.to_string()).collect();
        let mut servers = Servers(Vec::with_capacity(processes.len()));
        for process in processes {
            say(&format!("starting a {}: {}", process.what, process.shown));
            servers.0.push(Running::start(process)?);
        }
        let Some(restarts) = servers.wait_until_they_answer(limits, interrupted, &say)? else {
            return Ok(None);
        };
        let (is_over, ended) = (Arc::new(AtomicBool::new(false)), Ended::default());
        let watch = {
            let (is_over, ended) = (is_over.clone(), ended.clone());
            let watch = move || servers.watch((limits, restarts), &is_over, &ended, &say);
            std::thread::Builder::new().name("launched".to_owned()).spawn(watch)
        };
        let watch = watch.map_err(|source| LaunchError::Surroundings {
            command: "servers".to_owned(),
            what: "nobody could look after them".to_owned(),
            source,
        })?;
        Ok(Some(Self { addresses, is_over, ended, watch: Some(watch) }))
    }

    /// Addresses of the servers, as clients write them.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// What became of one that ended and is not started again, with the end of its output.
    pub fn ended(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LaunchedServers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// Processes that end with the value.
struct Servers(Vec<Running>);

impl Servers {
    /// The number of restarts that it took until they did; `None` where the wait is given up.
    fn wait_until_they_answer(
        &mut self,
        limits: LaunchLimits,
        interrupted: &AtomicBool,
        say: &Say,
    ) -> Result<Option<u32>, LaunchError> {
        let (began, timeout) = (Instant::now(), limits.startup);
        let (mut patience, mut restarts) = (PATIENCE, 0);
        loop {
            for server in self.0.iter_mut().filter(|server| !server.has_answered) {
                let command = server.process.shown.clone();
                if interrupted.load(Ordering::SeqCst) {
                    return Ok(None);
                }
                if let Some(status) = server.poll_end() {
                    // A person or the system ended it; what ends by itself will do so again.
                    let by_signal = status.code().is_none();
                    if by_signal && restarts < limits.restarts {
                        restarts += 1;
                        let what = server.process.what;
                        say(&format!(
                            "the {what} `{command}` ended ({status}) before it answered, and is started again"
                        ));
                        *server = Running::start(server.process.clone())?;
                        continue;
                    }
                    let output = last_lines(&server.process.log);
                    return Err(LaunchError::Ended {
                        command,
                        status: status.to_string(),
                        by_signal,
                        output,
                    });
                }
                server.has_answered = answers(&server.process.place, HEALTH_TIMEOUT);
                server.heard_at = Instant::now();
                if !server.has_answered && began.elapsed() >= timeout {
                    let output = last_lines(&server.process.log);
                    return Err(LaunchError::Late { command, timeout, output });
                }
            }
            let Some(open) = self.0.iter().find(|server| !server.has_answered) else {
                return Ok(Some(restarts));
            };
            if began.elapsed() >= patience {
                patience *= 2;
                say(&format!(
                    "servers have not answered for {} s; the output of one is in {}",
                    began.elapsed().as_secs(),
                    open.process.log.display()
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts again what ends or hangs, each server after a pause that grows, until all is over; so many
    /// restarts were made before.
    fn watch(
        mut self,
        (limits, mut restarts): (LaunchLimits, u32),
        is_over: &AtomicBool,
        ended: &Ended,
        say: &Say,
    ) {
        let most_restarts = limits.restarts;
        while !is_over.load(Ordering::SeqCst) {
            for server in &mut self.0 {
                let hangs = limits.silence.filter(|&longest| server.is_silent(longest));
                if let Some(longest) = hangs {
                    let ServerProcess { what, shown, .. } = &server.process;
                    say(&format!(
                        "the {what} `{shown}` has not answered a health check for {} s, and is ended",
                        longest.as_secs()
                    ));
                    // The group keeps its number until this process has asked for its end.
                    server.end_group();
                }
                if let Some(status) = server.poll_end() {
                    let output = tail(&last_lines(&server.process.log));
                    let ServerProcess { what, shown, .. } = &server.process;
                    let what = format!("the {what} `{shown}` ended ({status}){output}");
                    if restarts == most_restarts {
                        *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.clone());
                        say(&format!(
                            "{what}\nthe server is not started again: {restarts} restarts were made"
                        ));
                        continue;
                    }
                    restarts += 1;
                    let pause = pause_after(server.restarts);
                    say(&format!(
                        "{what}\nthe server is started again in {} s, restart {restarts} of at most {most_restarts}",
                        pause.as_secs()
                    ));
                    server.again_at = Some(Instant::now() + pause);
                }
                if server.again_at.take_if(|at| *at <= Instant::now()).is_some() {
                    match Running::start(server.process.clone()) {
                        Ok(again) => *server = Running { restarts: server.restarts + 1, ..again },
                        Err(error) => {
                            server.restarts += 1;
                            let pause = pause_after(server.restarts);
                            server.again_at = Some(Instant::now() + pause);
                            let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
                            say(&format!(
                                "the server cannot be started again: {error}{cause}; next attempt in {} s",
                                pause.as_secs()
                            ));
                        }
                    }
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &self.0 {
            server.ask_to_end();
        }
        let began = Instant::now();
        while began.elapsed() < GRACE
            && self.0.iter_mut().any(|server| !server.is_over && server.poll_end().is_none())
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        for server in &mut self.0 {
            server.kill();
        }
    }
}

/// Whether something answers there in time.
fn answers(place: &Place, timeout: Duration) -> bool {
    let ask = || -> io::Result<bool> {
        let port = match place {
            Place::Port(port) => *port,
            #[cfg(unix)]
            Place::Socket(path) => return Ok(std::os::unix::net::UnixStream::connect(path).is_ok()),
            #[cfg(not(unix))]
            Place::Socket(_) => return Err(io::ErrorKind::Unsupported.into()),
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

/// The end of a file of output; empty where there is none.
pub fn last_lines(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.trim_end().lines().filter(|line| !line.starts_with("$ ")).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A program of the shell that answers on its port, once it has said something.
    fn server(folder: &Path, script: &str) -> ServerProcess {
        let port = free_ports(1).expect("a port")[0];
        std::fs::write(folder.join("health"), "").expect("a file");
        let serve =
            format!("exec python3 -m http.server {port} --bind 127.0.0.1 --directory {}", folder.display());
        ServerProcess {
            words: ["/bin/sh", "-c", &script.replace("SERVE", &serve)].map(str::to_owned).to_vec(),
            environment: vec![("GREETING".to_owned(), "hello".to_owned())],
            shown: "a server".to_owned(),
            what: "server",
            place: Place::Port(port),
            folder: None,
            log: folder.join("server.log"),
        }
    }

    fn listen() -> (Say, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let lines = heard.clone();
        (Arc::new(move |line: &str| lines.lock().expect("lock").push(line.to_owned())), heard)
    }

    fn limits(startup: u64) -> LaunchLimits {
        LaunchLimits::of_servers(Duration::from_secs(startup), None)
    }

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    fn is_alive(pid: &str) -> bool {
        let asked = Command::new("kill").args(["-0", pid.trim()]).stderr(Stdio::null()).status();
        asked.expect("kill").success()
    }

    /// Waits for something that takes a moment.
    fn soon(what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(30), "{what} did not come about");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_server_is_waited_for_and_ends_with_the_value_and_its_children_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let child = folder.path().join("child");
        let script = format!("echo $GREETING; sleep 1000 & echo $! > {}; SERVE", child.display());
        let servers =
            LaunchedServers::start(vec![server(folder.path(), &script)], limits(60), &never(), listen().0)
                .expect("it answers")
                .expect("waited for");
        assert!(servers.addresses()[0].starts_with("http://127.0.0.1:"));
        let child = std::fs::read_to_string(child).expect("a number");
        assert!(is_alive(&child));
        let log = std::fs::read_to_string(folder.path().join("server.log")).expect("a log");
        assert!(log.starts_with("$ a server\nhello\n"), "{log}");
        drop(servers);
        soon("the end of its child", || !is_alive(&child));
    }

    #[test]
    fn a_server_that_does_not_come_up_is_told_with_its_last_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = |script: &str, timeout: u64| {
            let process = server(folder.path(), script);
            let started = LaunchedServers::start(vec![process], limits(timeout), &never(), listen().0);
            started.err().expect("it does not come up").to_string()
        };
        assert_eq!(
            start("for i in $(seq 30); do echo line $i; done; exit 7", 60).replace('\n', "|"),
            format!(
                "the server `a server` ended (exit status: 7) before it answered; its output ends:|{}",
                (11..=30).map(|i| format!("line {i}")).collect::<Vec<_>>().join("|")
            )
        );
        let late = start("echo never; sleep 1000", 1);
        assert!(
            late.starts_with("the server `a server` did not answer within 1 s; its output ends:\n"),
            "{late}"
        );
        assert!(late.ends_with("never"), "{late}");
        let mut nothing = server(folder.path(), "");
        nothing.words = vec!["no-such-program".to_owned()];
        let error =
            LaunchedServers::start(vec![nothing], limits(5), &never(), listen().0).err().expect("none");
        assert!(
            matches!(&error, LaunchError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound),
            "{error}"
        );
        let interrupted = AtomicBool::new(true);
        let given_up = LaunchedServers::start(
            vec![server(folder.path(), "sleep 1000")],
            limits(5),
            &interrupted,
            listen().0,
        );
        assert!(given_up.is_ok_and(|servers| servers.is_none()));
    }

    #[test]
    fn no_two_servers_have_the_same_port() {
        let ports = free_ports(200).expect("ports");
        assert_eq!(std::collections::BTreeSet::from_iter(&ports).len(), 200, "{ports:?}");
    }

    #[test]
    fn pauses_before_restarts_double() {
        assert_eq!(
            [0, 1, 2, 5, 6, 40].map(|restarts| pause_after(restarts).as_secs()),
            [1, 2, 4, 32, 60, 60]
        );
    }

    /// Without a restart left its workers end too, and a pause holds up nobody.
    #[test]
    fn workers_of_a_server_that_ended_end_with_it() {
        for (most_restarts, last) in
            [(0, "the server is not started again: 0 restarts were made"), (1, "in 1 s")]
        {
            let folder = tempfile::tempdir().expect("a folder");
            let worker = folder.path().join("worker");
            let script = format!("sleep 1000 & echo $! > {}.new; mv {0}.new {0}; exit 1", worker.display());
            let running = Running::start(server(folder.path(), &script)).expect("started");
            let (say, heard) = listen();
            let is_over = AtomicBool::new(false);
            let began = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    Servers(vec![running]).watch(
                        (LaunchLimits { restarts: most_restarts, ..limits(0) }, 0),
                        &is_over,
                        &Ended::default(),
                        &say,
                    );
                });
                soon("its end", || !heard.lock().expect("lock").is_empty());
                soon("the end of its worker", || {
                    !is_alive(&std::fs::read_to_string(&worker).unwrap_or_default())
                });
                is_over.store(true, Ordering::SeqCst);
            });
            assert!(began.elapsed() < Duration::from_secs(20));
            let heard = heard.lock().expect("lock").join("\n");
            assert!(heard.contains(last), "{heard}");
        }
    }

    #[test]
    fn a_server_that_ends_is_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let pids = folder.path().join("pids");
        let script = format!("echo $$ >> {}; SERVE", pids.display());
        let (say, heard) = listen();
        let process = server(folder.path(), &script);
        let place = process.place.clone();
        let servers = LaunchedServers::start(vec![process], limits(60), &never(), say)
            .expect("up")
            .expect("waited for");
        let numbers = || std::fs::read_to_string(&pids).unwrap_or_default();
        let first = numbers();
        assert!(Command::new("kill").args(["-KILL", first.trim()]).status().expect("kill").success());
        soon("the second start", || numbers().lines().count() == 2 && answers(&place, HEALTH_TIMEOUT));
        drop(servers);
        let heard = heard.lock().expect("lock").join("\n");
        assert!(heard.contains("ended (signal: 9 (SIGKILL))"), "{heard}");
        assert!(heard.contains("the server is started again in 1 s, restart 1 of at most 8"), "{heard}");
        assert!(!is_alive(numbers().lines().nth(1).expect("two")));
    }

    /// A server starts once a resource comes back that was lacking: a disk that was full, a process too many.
    #[test]
    fn a_server_that_cannot_be_started_again_at_once_is_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, pids) = (folder.path().join("program"), folder.path().join("pids"));
        let appear = || std::os::unix::fs::symlink("/bin/sh", &program).expect("a program");
        appear();
        let mut process = server(folder.path(), &format!("echo $$ >> {}; SERVE", pids.display()));
        process.words[0] = program.display().to_string();
        let place = process.place.clone();
        let (say, heard) = listen();
        let servers = LaunchedServers::start(vec![process], limits(60), &never(), say);
        let servers = servers.expect("answers");
        std::fs::remove_file(&program).expect("gone");
        let first = std::fs::read_to_string(&pids).expect("a number");
        let killed = Command::new("kill").args(["-9", first.trim()]).status().expect("kill");
        assert!(killed.success());
        let has = |what: &str| heard.lock().expect("lock").iter().any(|line| line.contains(what));
        soon("the try that fails", || has("next attempt in 2 s"));
        assert!(has("the server cannot be started again: cannot start `a server`: No such file"));
        appear();
        soon("the next start", || answers(&place, HEALTH_TIMEOUT));
        drop(servers);
    }

    /// One that is stopped is there, takes connections, and says nothing.
    #[test]
    fn a_server_that_hangs_is_ended_and_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let pids = folder.path().join("pids");
        let process = server(folder.path(), &format!("echo $$ >> {}; SERVE", pids.display()));
        let place = process.place.clone();
        let (say, heard) = listen();
        let limits = LaunchLimits { silence: Some(Duration::from_secs(2)), ..limits(60) };
        let servers = LaunchedServers::start(vec![process], limits, &never(), say).expect("up");
        let numbers = || std::fs::read_to_string(&pids).unwrap_or_default();
        let stopped = Command::new("kill").args(["-STOP", numbers().trim()]).status().expect("kill");
        assert!(stopped.success());
        soon("the second start", || numbers().lines().count() == 2 && answers(&place, HEALTH_TIMEOUT));
        drop(servers);
        let heard = heard.lock().expect("lock").join("\n");
        assert!(heard.contains("has not answered a health check for 2 s, and is ended"), "{heard}");
        assert!(heard.contains("is started again in 1 s, restart 1 of at most 8"), "{heard}");
    }

    /// As where the system wants its memory back while models are loaded.
    #[test]
    fn a_server_that_is_killed_before_it_answers_is_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = folder.path().join("first");
        let script = format!("[ -e {0} ] || {{ touch {0}; kill -9 $$; }}; SERVE", first.display());
        let (say, heard) = listen();
        let process = server(folder.path(), &script);
        drop(
            LaunchedServers::start(vec![process], limits(60), &never(), say)
                .expect("up")
                .expect("waited for"),
        );
        let heard = heard.lock().expect("lock").join("\n");
        assert!(heard.contains("(signal: 9 (SIGKILL)) before it answered, and is started again"), "{heard}");
        // One that is looked after by somebody else is not.
        std::fs::remove_file(first).expect("gone");
        let limits = LaunchLimits::once(Duration::from_secs(60));
        let error =
            LaunchedServers::start(vec![server(folder.path(), &script)], limits, &never(), listen().0);
        let error = error.err().expect("ended");
        assert!(matches!(error, LaunchError::Ended { by_signal: true, .. }), "{error}");
    }
}
