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
//! Figures are as in `metrics.jsonl`: NaN is null, infinities are texts. If the standard input ends
//! without `close`, the run was killed. The process ends by itself after either; otherwise it is
//! killed, with all that it has started, `finish_timeout` after the end of the run.

use std::io::Write;
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tamis_process::{
    ChildHandle, ChildSettings, Errors, GuardedFolder, LONGEST_LINE, Line, LineChild, Lines, Reach,
};

use crate::outbox::{CAPACITY, Deliveries, Outbox, Parcel, Undelivered};
use tamis_run::directory::LogPositions;
use tamis_run::durable::DiskError;
use tamis_run::log::details::{Histogram, StepDetails};
use tamis_run::log::jsonl::number;
use tamis_run::log::progress::Console;
use tamis_run::log::{Logger, RunEnding};
use tamis_run::metrics::Metrics;

const LOOK: Duration = Duration::from_millis(20);

const TOLD: Duration = Duration::from_secs(2);

/// Longest wait for the last output of a process that has ended: its children may hold the output open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Longest wait for the exit status of a process that has closed its output.
const STATUS: Duration = Duration::from_secs(1);

/// What is sent for each step, and the time limit at the end.
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

#[derive(Debug)]
enum Record {
    Figures(String),
    /// The end of the run. If it does not arrive, the end of the input has the same effect.
    Close(String),
}

impl Parcel for Record {
    fn num_bytes(&self) -> usize {
        let (Self::Figures(text) | Self::Close(text)) = self;
        text.len()
    }
}

/// Sends the records of a run to a process.
#[derive(Debug)]
pub struct SideProcessLogger {
    settings: SideProcessSettings,
    deliveries: Arc<Deliveries>,
    outbox: Outbox<Record>,
    /// `None` if there is none, or it has ended.
    process: Option<LineChild>,
    is_closing: Arc<AtomicBool>,
    /// Time limit, set at the end of the run.
    limit: Option<Instant>,
    is_closed: bool,
    #[expect(dead_code, reason = "it is dropped after the process whose program is in it")]
    program: Option<GuardedFolder>,
}

impl SideProcessLogger {
    /// Sends to the process of a command. One that cannot be started is reported, as is a lack of a command,
    /// for a reason in words. The run continues without it. `program`: the folder with the process's program.
    pub fn start(
        settings: SideProcessSettings,
        command: Result<Command, String>,
        program: Option<GuardedFolder>,
        voice: Console,
    ) -> Self {
        let deliveries = Deliveries::new(settings.name, voice);
        let is_closing = Arc::new(AtomicBool::new(false));
        let read = {
            let (deliveries, is_closing) = (deliveries.clone(), is_closing.clone());
            move |output: ChildStdout, process: &ChildHandle| {
                listen(output, &deliveries, &is_closing, process);
            }
        };
        let child = ChildSettings {
            name: "logger",
            grace: Duration::ZERO,
            reach: Reach::Group,
            errors: Errors::AsCommanded,
        };
        let started = command.and_then(|command| {
            let python = command.get_program().to_string_lossy().into_owned();
            LineChild::start(command, child, read).map_err(|error| {
                format!("`{python}` cannot be started: {error} (set its `python` to another interpreter)")
            })
        });
        let process = started.map_err(|reason| deliveries.warn(&reason)).ok();
        let input = process.as_ref().and_then(LineChild::take_input);
        let outbox = Outbox::start(CAPACITY, deliveries.clone(), deliver_to(input));
        Self { settings, deliveries, outbox, process, is_closing, limit: None, is_closed: false, program }
    }

    fn ends(&self, limit: Instant) -> bool {
        let told = Instant::now() + TOLD;
        let mut is_told = false;
        loop {
            let process = self.process.as_ref();
            let is_running = process.is_some_and(|process| matches!(process.handle.try_wait(), Ok(None)));
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
                self.deliveries.say(&format!("waiting at most {longest} s for the last metrics to arrive"));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn send(&self, record: &Value) {
        self.outbox.send(Record::Figures(record.to_string() + "\n"));
    }
}

/// Writes lines to the process's input, if it has one.
fn deliver_to(mut input: Option<ChildStdin>) -> impl FnMut(Record) -> Result<(), Undelivered> + Send {
    move |record| {
        let (Record::Figures(text) | Record::Close(text)) = &record;
        let written =
            input.as_mut().map(|input| input.write_all(text.as_bytes()).and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => Ok(()),
            _ if matches!(record, Record::Close(_)) => Ok(()),
            Some(Err(error)) => {
                Err(Undelivered { reason: format!("its process does not read: {error}"), is_final: true })
            }
            None => Err(Undelivered { reason: "it has no process".to_owned(), is_final: true }),
        }
    }
}

/// Reads the process's lines until its output ends, and reports that end unless the logger is being
/// closed.
fn listen(output: ChildStdout, deliveries: &Deliveries, is_closing: &AtomicBool, process: &ChildHandle) {
    let mut lines = Lines::new(output, LONGEST_LINE);
    while let Some(Line::Ended(line) | Line::Unended(line)) = lines.next_line() {
        let Ok(Value::Object(said)) = serde_json::from_slice(line) else { continue };
        if let Some(text) = said.get("said").and_then(Value::as_str) {
            deliveries.say(text);
        }
        if let Some(reason) = said.get("failed").and_then(Value::as_str) {
            deliveries.warn(reason);
        }
        deliveries.note_arrived(said.get("arrived").and_then(Value::as_u64).unwrap_or(0));
    }
    if !is_closing.load(Ordering::Relaxed) {
        let status = match process.wait_within(STATUS) {
            Ok(Some(status)) => format!(" ({status})"),
            _ => String::new(),
        };
        deliveries.warn(&format!("its process ended{status}"));
    }
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
            self.outbox.end_with(Some(Record::Close(last)));
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
                "did not deliver its last metrics within {waited} s (its `finish_timeout`), and was stopped"
            ));
        }
        let process = self.process.take();
        if let Some(process) = &process {
            process.end();
        }
        // A process outside the group may hold the pipes open, which is not waited for.
        let last = Instant::now() + LAST_WORDS;
        self.outbox.wait(last);
        if let Some(process) = process {
            process.is_read_by(last);
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
    use super::*;
    use crate::captured::Captured;

    fn close(logger: &mut SideProcessLogger, ending: RunEnding) {
        logger.begin_close(ending);
        logger.finish_close();
    }

    fn start(script: &str, finish_timeout: Duration) -> (Captured, SideProcessLogger) {
        let screen = Captured::default();
        let voice = Console::plain(Box::new(screen.clone()), None, 0);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let settings =
            SideProcessSettings { name: "wandb", histograms: true, num_samples: 1, finish_timeout };
        (screen, SideProcessLogger::start(settings, Ok(command), None, voice))
    }

    fn metrics(value: f64) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", value);
        metrics
    }

    fn until(screen: &Captured, text: &str) {
        let began = Instant::now();
        while !screen.text().contains(text) {
            assert!(began.elapsed() < Duration::from_secs(60), "{text} is not in\n{}", screen.text());
            std::thread::sleep(LOOK);
        }
    }

    /// Takes every line, and confirms records; copies go to descriptor 4.
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
        assert_eq!(text.matches("loses metrics").count(), 1, "{text}");
        assert!(text.contains("the logger `wandb` loses metrics; the run continues without it: its process ended (exit status: 3)"), "{text}");
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
        let mut logger =
            SideProcessLogger::start(settings, Err("`python3` is not there".to_owned()), None, voice);
        logger.log(1, &metrics(0.5)).expect("log");
        close(&mut logger, RunEnding::Finished);
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `mlflow` loses metrics; the run continues without it: `python3` is not there
        warning: the logger `mlflow` lost 1 of 1 records; metrics.jsonl has them all if `jsonl` is a logger
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
        assert_eq!(text.matches("loses metrics").count(), 1, "{text}");
        assert!(text.contains("its queue is full") && text.contains(" of 700 records"), "{text}");
        let stopped =
            "did not deliver its last metrics within 0.05 s (its `finish_timeout`), and was stopped";
        assert!(text.contains(stopped), "{text}");
    }

    /// Like a process that a wrapper around the interpreter leaves behind.
    #[test]
    fn what_holds_the_pipes_of_a_process_that_is_gone_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("folder");
        let left = folder.path().join("left");
        // A shell gives a background process another input, so it has the pipe under another number. In
        // its own session it is not killed.
        let held = format!("setsid sh -c 'echo $$ > {}; exec sleep 1000' <&3 &", left.display());
        let script = format!("exec 3<&0 4> /dev/null; {held} {TAKE}");
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
