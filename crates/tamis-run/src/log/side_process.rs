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
//! | `{"failed": "...", "records": 1}` | the reason why so many records did not arrive |
//!
//! Figures are as in `metrics.jsonl`: NaN is null, infinities are texts. The end of the standard input without
//! `close` is a run that was killed. The process ends by itself after either.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::details::{Histogram, StepDetails};
use super::jsonl::number;
use super::outbox::{CAPACITY, Deliveries, Outbox, Undelivered};
use super::progress::Console;
use super::{Logger, RunEnding};
use crate::directory::LogPositions;
use crate::durable::DiskError;
use crate::metrics::Metrics;

/// Pause between two looks at a process that is ending.
const LOOK: Duration = Duration::from_millis(20);

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

/// Sends the records of a run to a process.
#[derive(Debug)]
pub struct SideProcessLogger {
    settings: SideProcessSettings,
    deliveries: Arc<Deliveries>,
    outbox: Outbox<Line>,
    process: Arc<Mutex<Option<Child>>>,
    is_closing: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl SideProcessLogger {
    /// Starts the process. One that cannot be started is told, and the run goes on without.
    pub fn start(settings: SideProcessSettings, mut command: Command, voice: Console) -> Self {
        let deliveries = Deliveries::new(settings.name, voice);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C is for the run, which then closes its loggers in order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let started = command.spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        let (process, pipes) = match started {
            Ok(mut child) => {
                let pipes = child.stdin.take().zip(child.stdout.take());
                (Some(child), pipes)
            }
            Err(error) => {
                deliveries.warn(&format!("`{program}` cannot be started: {error}"));
                (None, None)
            }
        };
        let process = Arc::new(Mutex::new(process));
        let is_closing = Arc::new(AtomicBool::new(false));
        let (input, output) = pipes.unzip();
        let listener = output.and_then(|output| listen(output, &deliveries, &is_closing, &process));
        let outbox = Outbox::start(CAPACITY, deliveries.clone(), deliver_to(input));
        Self { settings, deliveries, outbox, process, is_closing, listener, is_closed: false }
    }

    /// Closes once: waits for what is under way, and takes the process away where it does not end.
    fn end(&mut self, ending: &str) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.is_closing.store(true, Ordering::Relaxed);
        let limit = Instant::now() + self.settings.finish_timeout;
        self.outbox.send_uncounted(Line::Close(json!({"close": ending}).to_string() + "\n"));
        let is_sent = self.outbox.close(self.settings.finish_timeout);
        while is_sent && !self.has_ended() && Instant::now() < limit {
            std::thread::sleep(LOOK);
        }
        if let Some(mut child) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take()
            && !matches!(child.try_wait(), Ok(Some(_)))
        {
            let waited = self.settings.finish_timeout.as_secs_f64();
            self.deliveries.warn(&format!("its process did not end within {waited} s and was stopped"));
            // One that is gone already needs no signal.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.outbox.join();
        if let Some(listener) = self.listener.take() {
            // What it started may hold its output open, which is not waited for.
            if listener.is_finished() {
                let _ = listener.join();
            }
        }
        self.deliveries.tell_dropped();
    }

    fn has_ended(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let is_heard = self.listener.as_ref().is_none_or(JoinHandle::is_finished);
        process.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)) && is_heard)
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
    process: &Arc<Mutex<Option<Child>>>,
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
                deliveries.drop_records(said.get("records").and_then(Value::as_u64).unwrap_or(0));
            }
        }
        if !is_closing.load(Ordering::Relaxed) {
            deliveries.warn(&format!("its process ended{}", status(&process)));
        }
    };
    std::thread::Builder::new().name("logger-output".to_owned()).spawn(listen).ok()
}

/// How a process ended that has closed its output: `` (exit status: 1)``, or nothing where it does not say.
fn status(process: &Mutex<Option<Child>>) -> String {
    for _ in 0..50 {
        let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
        match process.as_mut().map(Child::try_wait) {
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

    fn close(&mut self, ending: RunEnding) {
        self.end(ending.name());
    }
}

impl Drop for SideProcessLogger {
    fn drop(&mut self) {
        self.end(RunEnding::Failed.name());
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::log::captured::Captured;

    fn start(script: &str, finish_timeout: Duration) -> (Captured, SideProcessLogger) {
        let screen = Captured::default();
        let voice = Console::plain(Box::new(screen.clone()), None, 0);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let settings =
            SideProcessSettings { name: "wandb", histograms: true, num_samples: 1, finish_timeout };
        (screen, SideProcessLogger::start(settings, command, voice))
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

    #[test]
    fn records_arrive_in_order_and_what_is_said_is_shown() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lines");
        let script = format!("echo '{{\"said\": \"run 7\"}}'; cat > {}", path.display());
        let (screen, mut logger) = start(&script, Duration::from_secs(60));
        logger.log(1, &metrics(0.5)).expect("log");
        logger.log(2, &metrics(f64::INFINITY)).expect("log");
        let details = StepDetails {
            distributions: vec![("response_length", Histogram::of([2.0, 2.0]).expect("numbers"))],
            ..StepDetails::default()
        };
        logger.log_details(2, &details).expect("log");
        logger.close(RunEnding::Interrupted);
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
        logger.close(RunEnding::Finished);
        let text = screen.text();
        assert_eq!(text.matches("loses figures").count(), 1, "{text}");
        assert!(text.contains("the logger `wandb` loses figures, and the run goes on without it: its process ended (exit status: 3)"), "{text}");
        assert!(text.contains("lost 20 of 20 records"), "{text}");
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let screen = Captured::default();
        let voice = Console::plain(Box::new(screen.clone()), None, 0);
        let settings = SideProcessSettings {
            name: "mlflow",
            histograms: false,
            num_samples: 0,
            finish_timeout: Duration::from_secs(60),
        };
        let mut logger = SideProcessLogger::start(settings, Command::new("/no/such/python3"), voice);
        logger.log(1, &metrics(0.5)).expect("log");
        logger.close(RunEnding::Finished);
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `mlflow` loses figures, and the run goes on without it: `/no/such/python3` cannot be started: No such file or directory (os error 2)
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
        logger.close(RunEnding::Finished);
        let text = screen.text();
        assert_eq!(text.matches("loses figures").count(), 1, "{text}");
        assert!(text.contains("its queue is full") && text.contains(" of 700 records"), "{text}");
    }

    #[test]
    fn failures_that_the_process_reports_are_counted() {
        let script = r#"read line; echo '{"failed": "no server at http://127.0.0.1:1", "records": 1}'; cat > /dev/null"#;
        let (screen, mut logger) = start(script, Duration::from_secs(60));
        logger.log(1, &metrics(0.5)).expect("log");
        until(&screen, "no server at");
        logger.log(2, &metrics(0.5)).expect("log");
        logger.close(RunEnding::Finished);
        assert!(screen.text().contains("lost 1 of 2 records"), "{}", screen.text());
    }
}
