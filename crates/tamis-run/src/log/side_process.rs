//! A logger in a process beside the run: records go to its standard input, a JSON object a line.
//!
//! | line to it | meaning |
//! |---|---|
//! | `{"step": 3, "metrics": {...}}` | figures of a step; more of the same step may follow |
//! | `{"step": 3, "histograms": {...}, "samples": [...]}` | its distributions and completions |
//! | `{"close": "finished"}` | the end of the run: `finished`, `interrupted` or `failed` |
//!
//! | line from it | meaning |
//! |---|---|
//! | `{"said": "..."}` | something for the user |
//! | `{"arrived": 1}` | so many further records arrived |
//! | `{"failed": "..."}` | the reason why one did not |
//!
//! Figures are as in `metrics.jsonl`: NaN is null, infinities are texts. The end of the standard input without
//! `close` is a run that was killed. The process ends by itself after either; one that does not is killed
//! `finish_timeout` after the end of the run, with all that it has started.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::details::{Histogram, StepDetails};
use super::jsonl::number;
use super::outbox::{CAPACITY, Deliveries, Outbox, Parcel, Undelivered};
use super::progress::Console;
use super::{Logger, RunEnding};
use crate::directory::LogPositions;
use crate::durable::DiskError;
use crate::metrics::Metrics;

/// Pause between two looks at a process that is ending.
const LOOK: Duration = Duration::from_millis(20);

/// Wait after which it is told that the run waits.
const TOLD: Duration = Duration::from_secs(2);

/// Longest wait for the last words of a process that has ended: what it left behind may hold its output open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A process that records go to, in the hands of whoever can end it with all that it has started. Its standard input
/// and output are pipes.
pub trait LoggerProcess: std::fmt::Debug + Send {
    /// The process itself.
    fn child(&mut self) -> &mut Child;

    /// Kills all of it that is left, and reaps it.
    fn end(&mut self);
}

type Held = Arc<Mutex<Option<Box<dyn LoggerProcess>>>>;

/// What is sent of a step, and how long its end is waited for.
#[derive(Debug, Clone, Copy)]
pub struct SideProcessSettings {
    /// Name of the logger, as in `run.loggers`.
    pub name: &'static str,
    /// Whether it shows histograms.
    pub histograms: bool,
    /// Completions of each step that it shows.
    pub num_samples: usize,
    /// Longest wait at the end of the run.
    pub finish_timeout: Duration,
}

/// A line for the process.
#[derive(Debug)]
enum Line {
    /// Figures or details of a step.
    Record(String),
    /// The end of the run: where it does not arrive, the end of the input says it.
    Close(String),
}

impl Parcel for Line {
    fn num_bytes(&self) -> usize {
        let (Self::Record(text) | Self::Close(text)) = self;
        text.len()
    }
}

/// Sends the records of a run to a process.
#[derive(Debug)]
pub struct SideProcessLogger {
    settings: SideProcessSettings,
    deliveries: Arc<Deliveries>,
    outbox: Outbox<Line>,
    process: Held,
    is_closing: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
    /// The end of its patience, once it is told of the end of the run.
    limit: Option<Instant>,
    is_closed: bool,
}

impl SideProcessLogger {
    /// Sends to a process that was started. One that could not be, for a reason in words, is told, and the run goes
    /// on without.
    pub fn start(
        settings: SideProcessSettings,
        started: Result<Box<dyn LoggerProcess>, String>,
        voice: Console,
    ) -> Self {
        let deliveries = Deliveries::new(settings.name, voice);
        let mut process = started.map_err(|reason| deliveries.warn(&reason)).ok();
        let pipes = process.as_mut().and_then(|process| {
            let child = process.child();
            child.stdin.take().zip(child.stdout.take())
        });
        let process = Arc::new(Mutex::new(process));
        let is_closing = Arc::new(AtomicBool::new(false));
        let (input, output) = pipes.unzip();
        let listener = output.and_then(|output| listen(output, &deliveries, &is_closing, &process));
        let outbox = Outbox::start(CAPACITY, deliveries.clone(), deliver_to(input));
        Self { settings, deliveries, outbox, process, is_closing, listener, limit: None, is_closed: false }
    }

    /// Whether the process ends by the limit, or there is none.
    fn ends(&self, limit: Instant) -> bool {
        let told = Instant::now() + TOLD;
        let mut is_told = false;
        loop {
            let is_running = (self.process.lock().unwrap_or_else(PoisonError::into_inner).as_mut())
                .is_some_and(|process| matches!(process.child().try_wait(), Ok(None)));
            if !is_running {
                return true;
            }
            let now = Instant::now();
            if now >= limit {
                return false;
            }
            if !is_told && now >= told {
                is_told = true;
                let longest = self.settings.finish_timeout.as_secs_f64();
                self.deliveries.say(&format!("waiting for the last figures to arrive, {longest} s at most"));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn send(&self, record: &Value) {
        self.outbox.send(Line::Record(record.to_string() + "\n"));
    }
}

/// Writes lines to the process's input, where there is one.
fn deliver_to(mut input: Option<ChildStdin>) -> impl FnMut(Line) -> Result<(), Undelivered> + Send {
    move |line| {
        let (Line::Record(text) | Line::Close(text)) = &line;
        let written =
            input.as_mut().map(|input| input.write_all(text.as_bytes()).and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => Ok(()),
            _ if matches!(line, Line::Close(_)) => Ok(()),
            Some(Err(error)) => {
                Err(Undelivered { reason: format!("its process takes nothing: {error}"), is_final: true })
            }
            None => Err(Undelivered { reason: "it has no process".to_owned(), is_final: true }),
        }
    }
}

/// Reads what the process says until its output ends, which is told where nobody closes it.
fn listen(
    output: ChildStdout,
    deliveries: &Arc<Deliveries>,
    is_closing: &Arc<AtomicBool>,
    process: &Held,
) -> Option<JoinHandle<()>> {
    let (deliveries, is_closing, process) = (deliveries.clone(), is_closing.clone(), process.clone());
    let listen = move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let Ok(Value::Object(said)) = serde_json::from_str(&line) else { continue };
            if let Some(text) = said.get("said").and_then(Value::as_str) {
                deliveries.say(text);
            }
            if let Some(reason) = said.get("failed").and_then(Value::as_str) {
                deliveries.warn(reason);
            }
            deliveries.note_arrived(said.get("arrived").and_then(Value::as_u64).unwrap_or(0));
        }
        if !is_closing.load(Ordering::Relaxed) {
            deliveries.warn(&format!("its process ended{}", status(&process)));
        }
    };
    std::thread::Builder::new().name("logger-output".to_owned()).spawn(listen).ok()
}

/// How a process ended that has closed its output: `` (exit status: 1)``, or nothing where it does not say.
fn status(process: &Held) -> String {
    for _ in 0..50 {
        let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
        match process.as_mut().map(|process| process.child().try_wait()) {
            Some(Ok(Some(status))) => return format!(" ({status})"),
            Some(Ok(None)) => {}
            Some(Err(_)) | None => break,
        }
        drop(process);
        std::thread::sleep(LOOK);
    }
    String::new()
}

fn figures(metrics: &Metrics) -> Value {
    Value::Object(metrics.iter().map(|(name, value)| (name.to_owned(), number(value))).collect())
}

fn histogram(histogram: &Histogram) -> Value {
    json!({"edges": histogram.edges, "counts": histogram.counts})
}

impl Logger for SideProcessLogger {
    fn name(&self) -> &'static str {
        self.settings.name
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError> {
        self.send(&json!({"step": step, "metrics": figures(metrics)}));
        Ok(())
    }

    fn amend(&mut self, step: u64, added: &Metrics) -> Result<(), DiskError> {
        self.log(step, added)
    }

    fn shows_distributions(&self) -> bool {
        self.settings.histograms
    }

    fn num_samples(&self) -> usize {
        self.settings.num_samples
    }

    fn log_details(&mut self, step: u64, details: &StepDetails) -> Result<(), DiskError> {
        let mut record = Map::new();
        if self.settings.histograms && !details.distributions.is_empty() {
            let named = details.distributions.iter();
            let named = named.map(|(name, found)| ((*name).to_owned(), histogram(found)));
            record.insert("histograms".to_owned(), Value::Object(named.collect()));
        }
        let samples: Vec<Value> = (details.samples.iter().take(self.settings.num_samples))
            .map(|sample| {
                json!({"prompt": sample.prompt, "completion": sample.completion, "reward": sample.reward,
                       "verdict": sample.verdict})
            })
            .collect();
        if !samples.is_empty() {
            record.insert("samples".to_owned(), Value::Array(samples));
        }
        if !record.is_empty() {
            record.insert("step".to_owned(), step.into());
            self.send(&Value::Object(record));
        }
        Ok(())
    }

    fn sync(&mut self, _: &mut LogPositions) -> Result<(), DiskError> {
        Ok(())
    }

    fn begin_close(&mut self, ending: RunEnding) {
        if self.limit.is_none() {
            self.limit = Some(Instant::now() + self.settings.finish_timeout);
            self.is_closing.store(true, Ordering::Relaxed);
            let last = json!({"close": ending.name()}).to_string() + "\n";
            self.outbox.end_with(Some(Line::Close(last)));
        }
    }

    fn finish_close(&mut self) {
        let Some(limit) = self.limit else { return };
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        if !self.ends(limit) {
            let waited = self.settings.finish_timeout.as_secs_f64();
            self.deliveries.tell_end(&format!(
                "did not deliver its last figures within {waited} s (its `finish_timeout`), and was stopped"
            ));
        }
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut process) = process {
            process.end();
        }
        // What has left its group may hold its pipes open, which is not waited for.
        let last = Instant::now() + LAST_WORDS;
        self.outbox.wait(last);
        if let Some(listener) = self.listener.take() {
            while !listener.is_finished() && Instant::now() < last {
                std::thread::sleep(LOOK);
            }
            if listener.is_finished() {
                let _ = listener.join();
            }
        }
        self.deliveries.tell_lost();
    }
}

impl Drop for SideProcessLogger {
    fn drop(&mut self) {
        self.begin_close(RunEnding::Failed);
        self.finish_close();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::log::captured::Captured;

    /// A process alone, without what it starts.
    #[derive(Debug)]
    struct Alone(Child);

    impl LoggerProcess for Alone {
        fn child(&mut self) -> &mut Child {
            &mut self.0
        }

        fn end(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn close(logger: &mut SideProcessLogger, ending: RunEnding) {
        logger.begin_close(ending);
        logger.finish_close();
    }

    fn start(script: &str, finish_timeout: Duration) -> (Captured, SideProcessLogger) {
        let screen = Captured::default();
        let voice = Console::plain(Box::new(screen.clone()), None, 0);
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let process: Box<dyn LoggerProcess> = Box::new(Alone(command.spawn().expect("a shell")));
        let settings =
            SideProcessSettings { name: "wandb", histograms: true, num_samples: 1, finish_timeout };
        (screen, SideProcessLogger::start(settings, Ok(process), voice))
    }

    fn metrics(value: f64) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", value);
        metrics
    }

    /// Waits for what another thread says.
    fn until(screen: &Captured, text: &str) {
        let began = Instant::now();
        while !screen.text().contains(text) {
            assert!(began.elapsed() < Duration::from_secs(60), "{text} is not in\n{}", screen.text());
            std::thread::sleep(LOOK);
        }
    }

    /// Takes every line, and says so of records; copies go to descriptor 4.
    const TAKE: &str = r#"while read -r line; do printf '%s\n' "$line" >&4; case $line in *close*) ;; *) echo '{"arrived": 1}'; esac; done"#;

    #[test]
    fn records_arrive_in_order_and_what_is_said_is_shown() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lines");
        let script = format!("echo '{{\"said\": \"run 7\"}}'; exec 4> {}; {TAKE}", path.display());
        let (screen, mut logger) = start(&script, Duration::from_secs(60));
        logger.log(1, &metrics(0.5)).expect("log");
        logger.log(2, &metrics(f64::INFINITY)).expect("log");
        let details = StepDetails {
            distributions: vec![("response_length", Histogram::of([2.0, 2.0]).expect("numbers"))],
            ..StepDetails::default()
        };
        logger.log_details(2, &details).expect("log");
        close(&mut logger, RunEnding::Interrupted);
        insta::assert_snapshot!(std::fs::read_to_string(&path).expect("lines"), @r#"
        {"step":1,"metrics":{"actor/lr":0.5}}
        {"step":2,"metrics":{"actor/lr":"Infinity"}}
        {"histograms":{"response_length":{"edges":[1.5,2.5],"counts":[2]}},"step":2}
        {"close":"interrupted"}
        "#);
        assert_eq!(screen.text(), "logger `wandb`: run 7\n");
    }

    #[test]
    fn a_process_that_dies_is_told_once_with_its_status_and_the_run_goes_on() {
        let (screen, mut logger) = start("exit 3", Duration::from_secs(60));
        until(&screen, "its process ended");
        for step in 1..=20 {
            logger.log(step, &metrics(0.5)).expect("a dead logger fails nothing");
        }
        close(&mut logger, RunEnding::Finished);
        let text = screen.text();
        assert_eq!(text.matches("loses figures").count(), 1, "{text}");
        assert!(text.contains("the logger `wandb` loses figures, and the run goes on without it: its process ended (exit status: 3)"), "{text}");
        assert!(text.contains("lost 20 of 20 records"), "{text}");
    }

    #[test]
    fn a_process_that_could_not_be_started_is_told() {
        let screen = Captured::default();
        let voice = Console::plain(Box::new(screen.clone()), None, 0);
        let settings = SideProcessSettings {
            name: "mlflow",
            histograms: false,
            num_samples: 0,
            finish_timeout: Duration::from_secs(60),
        };
        let mut logger = SideProcessLogger::start(settings, Err("`python3` is not there".to_owned()), voice);
        logger.log(1, &metrics(0.5)).expect("log");
        close(&mut logger, RunEnding::Finished);
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `mlflow` loses figures, and the run goes on without it: `python3` is not there
        warning: the logger `mlflow` lost 1 of 1 records; metrics.jsonl has every figure where it is a logger
        ");
    }

    #[test]
    fn one_that_hangs_is_stopped_at_the_end_and_slows_no_step() {
        let (screen, mut logger) = start("exec sleep 1000", Duration::from_millis(50));
        // More than the pipe and the queue hold.
        let long = (0..100).map(|i| (format!("timing_s/stage_{i}"), f64::from(i)));
        let mut many = Metrics::new();
        many.extend(long);
        for step in 1..=700 {
            logger.log(step, &many).expect("log");
        }
        close(&mut logger, RunEnding::Finished);
        let text = screen.text();
        assert_eq!(text.matches("loses figures").count(), 1, "{text}");
        assert!(text.contains("its queue is full") && text.contains(" of 700 records"), "{text}");
        let stopped =
            "did not deliver its last figures within 0.05 s (its `finish_timeout`), and was stopped";
        assert!(text.contains(stopped), "{text}");
    }

    /// What a wrapper around the interpreter leaves behind.
    #[test]
    fn what_holds_the_pipes_of_a_process_that_is_gone_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("folder");
        let left = folder.path().join("left");
        // In the background a shell gives it another input, so it has the pipe under another number.
        let script = format!("exec 3<&0 4> /dev/null; sleep 1000 <&3 & echo $! > {}; {TAKE}", left.display());
        let (screen, mut logger) = start(&script, Duration::from_secs(1000));
        let mut many = Metrics::new();
        many.extend((0..100).map(|i| (format!("timing_s/stage_{i}"), f64::from(i))));
        for step in 1..=3 {
            logger.log(step, &many).expect("log");
        }
        let began = Instant::now();
        close(&mut logger, RunEnding::Finished);
        assert!(began.elapsed() < Duration::from_secs(500), "it waits for its process alone");
        assert_eq!(screen.text(), "");
        let number = std::fs::read_to_string(left).expect("its number");
        Command::new("kill").arg(number.trim()).status().expect("ended");
    }

    #[test]
    fn failures_that_the_process_reports_are_counted() {
        let failed = r#"echo '{"failed": "no server at http://127.0.0.1:1"}'"#;
        let script = format!("exec 4> /dev/null; read line; {failed}; {TAKE}");
        let (screen, mut logger) = start(&script, Duration::from_secs(60));
        logger.log(1, &metrics(0.5)).expect("log");
        until(&screen, "no server at");
        logger.log(2, &metrics(0.5)).expect("log");
        close(&mut logger, RunEnding::Finished);
        assert!(screen.text().contains("lost 1 of 2 records"), "{}", screen.text());
    }
}
