//! A child process that communicates in lines. Three threads serve its pipes, so a full pipe never blocks a
//! caller. One writes queued lines to its standard input. One runs the caller's reader on its standard
//! output. One keeps the end of its standard error. The threads end with the pipes. A grandchild may hold a
//! pipe open for longer, so no wait for them is without a limit.

use std::io::{self, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::group::{ProcessGroup, Reach};
use crate::tail::{Tail, last_lines};

/// Interval at which waits poll whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Longest wait for a killed process. One that hangs in a broken driver does not die at all.
const LONGEST_DEATH: Duration = Duration::from_secs(5);

/// Bytes of standard error that are kept.
const TAIL_BYTES: usize = 4096;

/// Receives all of a child's standard error, piece by piece.
pub type Copy = Box<dyn FnMut(&[u8]) + Send>;

/// Where the standard error of a child goes.
pub enum Errors {
    /// To where the command sends it.
    AsCommanded,
    /// Its end is kept for messages.
    Kept,
    /// As `Kept`, and a function receives all of it.
    Copied(Copy),
}

/// How a child is started and ended.
pub struct ChildSettings {
    /// Name of its threads.
    pub name: &'static str,
    /// Time for it to exit by itself after its input is closed.
    pub grace: Duration,
    /// What is signalled together with it.
    pub reach: Reach,
    /// Where its standard error goes.
    pub errors: Errors,
}

/// State that its owner and its reader share.
#[derive(Debug)]
pub struct ChildHandle {
    group: Mutex<ProcessGroup>,
    tail: Tail,
}

/// A child process. When it is dropped, its input is closed, and it is killed if it does not end within its
/// grace period.
#[derive(Debug)]
pub struct LineChild {
    /// Everything except its input.
    pub handle: Arc<ChildHandle>,
    input: Mutex<Input>,
    grace: Duration,
    reader: JoinHandle<()>,
}

#[derive(Debug)]
enum Input {
    /// Nothing has been sent yet.
    Pipe(ChildStdin),
    Queue(Sender<Vec<u8>>),
    Closed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: &str, pipe: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("{name}-{pipe}")).spawn(work)
}

/// The command of a program and its arguments. No shell is involved.
pub fn command(argv: &[String]) -> Command {
    let (program, arguments) =
        argv.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

impl ChildHandle {
    fn group(&self) -> MutexGuard<'_, ProcessGroup> {
        lock(&self.group)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.group().child().id()
    }

    /// Its exit status, once it has ended.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.group().try_wait()
    }

    /// Its exit status, if it ends within this time.
    pub fn wait_within(&self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let began = Instant::now();
        loop {
            match self.try_wait() {
                Ok(None) if began.elapsed() < patience => std::thread::sleep(LOOK_EVERY),
                ended => return ended,
            }
        }
    }

    /// The exit status, in words, of a child whose output has ended.
    pub fn status_within(&self, patience: Duration) -> String {
        match self.wait_within(patience) {
            Ok(Some(status)) => status.to_string(),
            _ => "it closed its output".to_owned(),
        }
    }

    /// Appends to the kept end of its standard error.
    pub fn note(&self, words: &[u8]) {
        self.tail.note(words);
    }

    /// Kills it, and everything in its reach.
    pub fn kill(&self) {
        self.group().kill();
    }
}

impl LineChild {
    /// Starts a command. `read` gets its standard output, in a separate thread.
    ///
    /// # Errors
    /// The system's errors.
    pub fn start(
        mut command: Command,
        settings: ChildSettings,
        read: impl FnOnce(ChildStdout, &ChildHandle) + Send + 'static,
    ) -> io::Result<Self> {
        let ChildSettings { name, grace, reach, errors } = settings;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let copy: Option<Copy> = match errors {
            Errors::AsCommanded => None,
            Errors::Kept => Some(Box::new(|_| {})),
            Errors::Copied(copy) => Some(copy),
        };
        if copy.is_some() {
            command.stderr(Stdio::piped());
        }
        let mut group = ProcessGroup::start_with(&mut command, reach)?;
        let child = group.child();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), stderr) = pipes else {
            return Err(io::Error::other("its pipes are missing"));
        };
        let handle = Arc::new(ChildHandle { group: Mutex::new(group), tail: Tail::new(TAIL_BYTES) });
        match copy.zip(stderr) {
            Some((copy, pipe)) => {
                let handle = Arc::clone(&handle);
                spawn(name, "stderr", move || handle.tail.follow(pipe, copy))?;
            }
            None => handle.tail.close(),
        }
        let shared = Arc::clone(&handle);
        let reader = spawn(name, "stdout", move || read(stdout, &shared))?;
        Ok(Self { handle, input: Mutex::new(Input::Pipe(stdin)), grace, reader })
    }

    /// Its standard input, for a caller that writes to it directly. `None` after [`Self::send`], or once it
    /// is closed.
    pub fn take_input(&self) -> Option<ChildStdin> {
        match std::mem::replace(&mut *lock(&self.input), Input::Closed) {
            Input::Pipe(pipe) => Some(pipe),
            Input::Queue(_) | Input::Closed => None,
        }
    }

    /// Queues a line, including its line break. If the child is gone, the line is lost; the reader notices
    /// the end.
    pub fn send(&self, line: Vec<u8>) {
        let mut input = lock(&self.input);
        if matches!(*input, Input::Pipe(_))
            && let Input::Pipe(mut pipe) = std::mem::replace(&mut *input, Input::Closed)
        {
            let (sender, queue) = channel::<Vec<u8>>();
            let write = move || {
                while let Ok(line) = queue.recv() {
                    if pipe.write_all(&line).and_then(|()| pipe.flush()).is_err() {
                        return;
                    }
                }
            };
            // If the thread cannot start, the input is closed, and so the child ends.
            *input = spawn("line-child", "stdin", write).map_or(Input::Closed, |_| Input::Queue(sender));
        }
        if let Input::Queue(queue) = &*input {
            let _ = queue.send(line);
        }
    }

    /// Closes its input once everything sent is written.
    pub fn close_input(&self) {
        *lock(&self.input) = Input::Closed;
    }

    /// Waits until `limit` for its reader to finish. Returns whether it has.
    pub fn is_read_by(&self, limit: Instant) -> bool {
        while !self.reader.is_finished() && Instant::now() < limit {
            std::thread::sleep(LOOK_EVERY);
        }
        self.reader.is_finished()
    }

    /// The last lines of its standard error, if they are kept. Does not wait for a grandchild's further
    /// output.
    pub fn last_words(&self, most_lines: usize) -> String {
        last_lines(&self.handle.tail.text(self.grace), most_lines, |_| true)
    }

    /// Time that it has to exit by itself.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Kills it and everything in its reach, at once.
    pub fn end(&self) {
        self.close_input();
        self.handle.kill();
        let _ = self.handle.wait_within(LONGEST_DEATH);
    }
}

impl Drop for LineChild {
    fn drop(&mut self) {
        // The end of its input asks it to exit.
        self.close_input();
        let _ = self.handle.wait_within(self.grace);
        self.end();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError};

    use super::*;
    use crate::Silence;
    use crate::lines::{Line, Lines};

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, grace: Duration, errors: Errors) -> (LineChild, Receiver<String>) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let (sender, lines) = channel();
        let settings = ChildSettings { name: "test", grace, reach: Reach::Group, errors };
        let child = LineChild::start(command, settings, move |stdout, _| {
            let mut read = Lines::new(stdout, 1 << 20);
            while let Some(Line::Ended(line)) = read.next_line() {
                let _ = sender.send(String::from_utf8_lossy(line).into_owned());
            }
        });
        (child.expect("a shell"), lines)
    }

    fn is_gone(number: &str) -> bool {
        // A zombie that was not reaped counts as gone.
        std::fs::read_to_string(format!("/proc/{number}/stat"))
            .map_or(true, |state| state.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')))
    }

    fn until(is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < LONG, "it takes too long");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn lines_go_in_and_out_and_full_pipes_stop_nobody() {
        let (child, lines) = shell("cat", LONG, Errors::Kept);
        let line = format!("{}\n", "x".repeat(9_999));
        for _ in 0..1_000 {
            child.send(line.clone().into_bytes());
        }
        child.close_input();
        // Everything sent before the end of the input arrives.
        assert_eq!(lines.iter().map(|line| line.len() + 1).sum::<usize>(), 10_000_000);
        assert_eq!(child.handle.status_within(LONG), "exit status: 0");
    }

    #[test]
    fn an_answer_is_awaited_as_long_as_it_is_wanted() {
        let (child, lines) =
            shell("read -r line; echo $line; read -r line; echo why >&2", LONG, Errors::Kept);
        let soon = Duration::from_millis(100);
        assert_eq!(child.await_answer(&lines, LONG, &|_| false), Err(Silence::Interrupted));
        child.send(b"one\n".to_vec());
        assert_eq!(child.await_answer(&lines, LONG, &|_| true), Ok("one".to_owned()));
        child.send(b"two\n".to_vec());
        let ended = Silence::Ended { status: "exit status: 0".to_owned(), stderr: "why".to_owned() };
        assert_eq!(child.await_answer(&lines, LONG, &|wait| wait.allowed == LONG), Err(ended));
        let (child, lines) = shell("echo busy >&2; sleep 600", Duration::ZERO, Errors::Kept);
        let late = child.await_answer(&lines, soon, &|wait| !wait.is_long);
        assert!(matches!(late, Err(Silence::TimedOut { allowed, .. }) if allowed == soon), "{late:?}");
        assert!(is_gone(&child.handle.id().to_string()));
    }

    #[test]
    fn the_end_of_its_standard_error_is_kept_and_all_of_it_copied() {
        let copied = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&copied);
        let copy = Box::new(move |bytes: &[u8]| lock(&to).extend_from_slice(bytes));
        let script = "for i in $(seq 5000); do echo $i >&2; done; exit 3";
        let (child, _lines) = shell(script, LONG, Errors::Copied(copy));
        assert_eq!(child.handle.status_within(LONG), "exit status: 3");
        assert_eq!(child.last_words(2), "4999\n5000");
        assert!(child.last_words(10_000).len() <= 4096);
        assert!(lock(&copied).starts_with(b"1\n2\n") && lock(&copied).ends_with(b"\n5000\n"));
    }

    #[test]
    fn one_that_closes_its_output_and_goes_on_has_no_status() {
        let (child, lines) = shell("exec >&-; exec sleep 1000", Duration::ZERO, Errors::Kept);
        assert_eq!(lines.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        assert_eq!(child.handle.status_within(Duration::from_millis(20)), "it closed its output");
        child.end();
        assert_eq!(child.handle.status_within(LONG), "signal: 9 (SIGKILL)");
    }

    #[test]
    fn one_that_ends_with_its_input_is_not_killed_and_one_that_does_not_is() {
        for (script, ends) in [("trap '' TERM; cat; echo 'the end'", true), ("sleep 1000", false)] {
            let grace = if ends { LONG } else { Duration::from_millis(20) };
            let (child, lines) = shell(script, grace, Errors::Kept);
            let handle = Arc::clone(&child.handle);
            child.send(b"one\n".to_vec());
            drop(child);
            assert_eq!(lines.iter().any(|line| line == "the end"), ends);
            assert_eq!(handle.status_within(LONG) == "exit status: 0", ends);
        }
    }

    /// The process has exited, and its child, in the same group, holds all of its pipes.
    #[test]
    fn what_holds_its_pipes_ends_with_it() {
        let (child, lines) = shell("sleep 1000 <&0 & echo $!; exit 0", LONG, Errors::Kept);
        let left = lines.recv_timeout(LONG).expect("a number");
        assert_eq!(child.handle.status_within(LONG), "exit status: 0");
        assert!(!is_gone(&left) && !child.is_read_by(Instant::now()));
        drop(child);
        until(|| is_gone(&left));
        assert_eq!(lines.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    }

    /// A process in a new session is in no group that is killed.
    #[test]
    fn nobody_waits_for_a_pipe_that_a_grandchild_holds() {
        let (child, lines) = shell(
            "setsid sh -c 'echo $$; exec sleep 1000' & wait $!",
            Duration::from_millis(50),
            Errors::Kept,
        );
        let left = lines.recv_timeout(LONG).expect("a number");
        let began = Instant::now();
        child.end();
        assert_eq!(child.last_words(1), "");
        assert!(!child.is_read_by(Instant::now() + Duration::from_millis(20)));
        drop(child);
        assert!(began.elapsed() < LONG);
        Command::new("kill").arg(left).status().expect("killed");
    }

    /// The sandbox's harness and the launcher of a cluster are like this: they end what they have started.
    #[test]
    fn one_that_ends_its_own_is_killed_alone() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stderr(Stdio::null());
        let (sender, lines) = channel();
        let settings = ChildSettings {
            name: "test",
            grace: Duration::ZERO,
            reach: Reach::Leader,
            errors: Errors::AsCommanded,
        };
        let child = LineChild::start(command, settings, move |stdout, handle| {
            let mut read = Lines::new(stdout, 100);
            if let Some(Line::Ended(line)) = read.next_line() {
                let _ = sender.send(String::from_utf8_lossy(line).into_owned());
            }
            handle.kill();
        });
        let child = child.expect("a shell");
        let left = lines.recv_timeout(LONG).expect("a number");
        assert_eq!(child.handle.status_within(LONG), "signal: 9 (SIGKILL)");
        assert_eq!(child.last_words(1), "");
        drop(child);
        assert!(!is_gone(&left));
        Command::new("kill").arg(left).status().expect("killed");
    }
}
