//! Runs a plan, one run after another or several at once.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tamis_config::{load_of_run, resume_differences};
use tamis_run::durable::{DiskError, DiskOperation};

use super::child::{RunChild, Share, is_unbegun, last_words};
use super::plan::{PlannedRun, SweepPlan};
use super::progress;
use super::state::{LastEnd, StateFolder};
use crate::Fault;

/// Interval between polls of the processes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Shortest time between two lines about one run.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Lines of a failed run's output that are shown.
const LAST_LINES: usize = 5;
/// Exit code of a run that ended early and can be resumed.
const INTERRUPTED: i32 = 130;

/// Options for running a sweep.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Finds the GPUs of this machine by their numbers in `nvidia-smi`. Called only if several runs share
    /// them.
    pub find_gpus: fn() -> Vec<String>,
    /// Number of runs at the same time; `None`: the sweep's own.
    pub parallel: Option<usize>,
    /// Name and date of the sweep, stored for the next start.
    pub identity: Option<(String, String)>,
}

/// How one run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It had finished earlier.
    Before,
    /// It reached its end.
    Finished,
    /// It failed.
    Failed {
        /// The exit code; `None`: killed.
        code: Option<i32>,
        /// The last lines of its output.
        lines: Vec<String>,
    },
    /// It ended early and can be resumed (exit code 130), and the sweep had not asked it to.
    EndedEarly,
    /// The sweep was interrupted before its end.
    Interrupted,
}

/// The result of each run, in the order of the plan.
#[derive(Debug, Clone)]
pub struct SweepOutcome {
    /// Name and ending.
    pub runs: Vec<(String, Ended)>,
}

/// A run that failed.
#[derive(Debug, Clone, Copy)]
pub struct FailedRun<'a> {
    /// Its name.
    pub name: &'a str,
    /// Exit code, if it had one.
    pub code: Option<i32>,
    /// The end of its output.
    pub lines: &'a [String],
}

impl SweepOutcome {
    /// The runs that failed.
    pub fn failed(&self) -> impl Iterator<Item = FailedRun<'_>> {
        self.runs.iter().filter_map(|(name, ended)| match ended {
            Ended::Failed { code, lines } => Some(FailedRun { name, code: *code, lines }),
            _ => None,
        })
    }

    /// The names of the runs that ended early by themselves and can be resumed.
    pub fn ended_early(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().filter(|(_, ended)| *ended == Ended::EndedEarly).map(|(name, _)| name.as_str())
    }

    /// Whether the sweep was interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.runs.iter().any(|(_, ended)| *ended == Ended::Interrupted)
    }
}

/// How a run is started.
#[derive(Debug, Clone, PartialEq)]
enum Start {
    Finished,
    New,
    /// From its last checkpoint, with these overrides.
    Resume(Vec<String>),
}

/// Decides how each run is started.
fn starts(plan: &SweepPlan, state: &StateFolder) -> Result<Vec<Start>, Fault> {
    let mut mismatches = Vec::new();
    let mut starts = Vec::new();
    for run in &plan.runs {
        let config = [".config.yaml", "config.yaml"].map(|name| run.folder.join(name));
        let Some(config) = config.iter().find(|path| path.is_file()) else {
            starts.push(Start::New);
            continue;
        };
        let (mut overrides, mut is_longer) = (Vec::new(), false);
        // If the configuration cannot be read, the run itself reports it.
        if let Ok(was) = load_of_run(config, &[], &[]) {
            let differences = resume_differences(&was.config, &run.loaded.config);
            let refused: Vec<String> = differences
                .iter()
                .filter(|found| found.refused)
                .map(|found| format!("    {found}"))
                .collect();
            if !refused.is_empty() {
                mismatches.push(format!("  {}\n{}", run.folder.display(), refused.join("\n")));
            }
            let of_length = |key: &str| matches!(key, "train.total_steps" | "train.total_epochs");
            is_longer = differences.iter().any(|found| of_length(&found.key));
            // Name and folder of a run are the sweep's, and so is its share of the machine.
            let changed = differences.iter().filter(|found| !found.key.starts_with("run."));
            overrides = changed.map(|found| format!("{}={}", found.key, found.now)).collect();
        }
        let is_finished = state.run(&run.name) == Some(LastEnd::Finished) && !is_longer;
        starts.push(if is_finished { Start::Finished } else { Start::Resume(overrides) });
    }
    if mismatches.is_empty() {
        return Ok(starts);
    }
    let what = if mismatches.len() == 1 { "there is a run" } else { "there are runs" };
    let runs = mismatches.join("\n");
    Err(Fault::mismatch(format!("{what} with another configuration than the sweep has now:\n{runs}")).with_hint(
        "begin another sweep with `--date MMDD`, or move these folders away; `results` in the sweep's file names another place",
    ))
}

struct Working<'p> {
    place: usize,
    run: &'p PlannedRun,
    child: RunChild,
    slot: usize,
    /// Length of the log when the run started.
    log_from: u64,
    said: (Instant, u64),
}

struct Runner<'p> {
    plan: &'p SweepPlan,
    state: StateFolder,
    lock: File,
    program: PathBuf,
    shares: Vec<Share>,
    say: &'p mut dyn FnMut(&str),
}

/// Runs everything that has not finished. If a run fails, the sweep continues. `interrupt` ends its runs,
/// which save first.
///
/// # Errors
/// Before the first run starts: another sweep is at work, or there are runs of another configuration. Later:
/// the disk is full.
pub fn run(
    plan: &SweepPlan,
    options: &RunOptions,
    interrupt: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<SweepOutcome, Fault> {
    let state = StateFolder::of(&plan.results);
    state.create()?;
    let lock = state.lock(&plan.results)?;
    if let Some((name, date)) = &options.identity {
        state.keep_date(name, date)?;
    }
    let starts = starts(plan, &state)?;
    let num_left = starts.iter().filter(|start| **start != Start::Finished).count();
    let parallel = options.parallel.unwrap_or(plan.parallel).clamp(1, num_left.max(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let gpus = if parallel > 1 { (options.find_gpus)() } else { Vec::new() };
    let program = std::env::current_exe().map_err(|cause| {
        Fault::failed("find the program that runs, to start it for each run").with_source(cause)
    })?;
    let shares = Share::of_machine(cores, &gpus, parallel);
    let mut runner = Runner { plan, state, lock, program, shares, say };
    runner.run(&starts, interrupt)
}

impl<'p> Runner<'p> {
    fn run(&mut self, starts: &[Start], interrupt: &AtomicBool) -> Result<SweepOutcome, Fault> {
        let plan: &'p SweepPlan = self.plan;
        let mut endings: Vec<Option<Ended>> = vec![None; plan.runs.len()];
        for (place, _) in starts.iter().enumerate().filter(|(_, start)| **start == Start::Finished) {
            endings[place] = Some(Ended::Before);
            self.tell(place, "finished before");
        }
        let mut waiting = starts.iter().enumerate().filter(|(_, start)| **start != Start::Finished);
        let mut working: Vec<Working<'p>> = Vec::new();
        let mut is_ending = false;
        loop {
            if interrupt.load(Ordering::SeqCst) && !is_ending {
                is_ending = true;
                for working in &mut working {
                    working.child.ask_to_end();
                }
            }
            while !is_ending && working.len() < self.shares.len() {
                let Some((place, start)) = waiting.next() else { break };
                let used: Vec<usize> = working.iter().map(|working| working.slot).collect();
                let slot = (0..self.shares.len()).find(|slot| !used.contains(slot)).unwrap_or(0);
                match self.begin(place, start, slot)? {
                    Ok(begun) => working.push(begun),
                    Err(failed) => endings[place] = Some(failed),
                }
            }
            if working.is_empty() {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
            let mut at = 0;
            while at < working.len() {
                if let Some(status) = working[at].child.poll_end() {
                    let done = working.remove(at);
                    endings[done.place] = Some(self.end(&done, status.code(), is_ending)?);
                } else {
                    self.follow(&mut working[at]);
                    at += 1;
                }
            }
        }
        let runs = plan.runs.iter().zip(endings);
        let runs = runs.map(|(run, ended)| (run.name.clone(), ended.unwrap_or(Ended::Interrupted))).collect();
        Ok(SweepOutcome { runs })
    }

    fn tell(&mut self, place: usize, text: &str) {
        let (name, number) = (&self.plan.runs[place].name, place + 1);
        (self.say)(&format!("[{number}/{}] {name}: {text}", self.plan.runs.len()));
    }

    /// Starts a run; `Err` if it has already failed.
    fn begin(
        &mut self,
        place: usize,
        start: &Start,
        slot: usize,
    ) -> Result<Result<Working<'p>, Ended>, Fault> {
        let plan: &'p SweepPlan = self.plan;
        let run = &plan.runs[place];
        let share = self.shares[slot].clone();
        let mut arguments = vec!["train".to_owned()];
        match start {
            Start::Resume(overrides) => {
                arguments.extend(["--resume".to_owned(), run.folder.display().to_string()]);
                arguments.extend(overrides.iter().cloned());
            }
            Start::New | Start::Finished => {
                if run.folder.symlink_metadata().is_ok() && !clear_unbegun(&run.folder)? {
                    let lines = vec![format!(
                        "there is a folder `{}` that is not a run: move it away",
                        run.folder.display()
                    )];
                    self.tell(place, &lines[0]);
                    return Ok(Err(Ended::Failed { code: None, lines }));
                }
                arguments.extend(run.arguments.iter().cloned());
            }
        }
        if let Some(threads) = share.threads {
            arguments.push(format!("run.threads={threads}"));
        }
        self.state.forget_run(&run.name)?;
        let log = self.state.log(&run.name);
        let log_from = std::fs::metadata(&log).map_or(0, |found| found.len());
        match RunChild::start(&self.program, &arguments, &share, &log, &self.lock) {
            Ok(child) => {
                let how = if matches!(start, Start::Resume(_)) { "resumed" } else { "begun" };
                let gpus = share.gpus.map_or_else(String::new, |gpus| format!(" on GPU {}", gpus.join(", ")));
                self.tell(place, &format!("{how}{gpus}"));
                Ok(Ok(Working { place, run, child, slot, log_from, said: (Instant::now(), 0) }))
            }
            Err(error) => {
                let lines = vec![format!("failed to start `{}`: {error}", self.program.display())];
                self.tell(place, &lines[0]);
                Ok(Err(Ended::Failed { code: None, lines }))
            }
        }
    }

    /// Reports the progress of a run from time to time.
    fn follow(&mut self, working: &mut Working<'p>) {
        if working.said.0.elapsed() < SAY_EVERY {
            return;
        }
        working.said.0 = Instant::now();
        if let Some(found) = progress::read(&working.run.folder)
            && found.step != working.said.1
        {
            working.said.1 = found.step;
            let steps = working.run.loaded.config.train.total_steps.map(|steps| steps as u64);
            self.tell(working.place, &found.line(steps));
        }
    }

    fn end(&mut self, done: &Working<'p>, code: Option<i32>, is_ending: bool) -> Result<Ended, Fault> {
        let steps = done.run.loaded.config.train.total_steps.map(|steps| steps as u64);
        let reached = progress::read(&done.run.folder)
            .map_or_else(|| "before its first step".to_owned(), |found| found.line(steps));
        if code == Some(0) {
            self.state.keep_run(&done.run.name, &LastEnd::Finished)?;
            self.tell(done.place, &format!("finished, {reached}"));
            return Ok(Ended::Finished);
        }
        if is_ending && matches!(code, Some(INTERRUPTED) | None) {
            self.tell(done.place, &format!("interrupted, {reached}"));
            return Ok(Ended::Interrupted);
        }
        if code == Some(INTERRUPTED) {
            self.tell(done.place, &format!("ended early (exit code 130), {reached}"));
            return Ok(Ended::EndedEarly);
        }
        self.state.keep_run(&done.run.name, &LastEnd::Failed { code })?;
        let how = code.map_or_else(|| "killed".to_owned(), |code| format!("exit code {code}"));
        self.tell(done.place, &format!("failed ({how}), {reached}"));
        let lines = last_words(&self.state.log(&done.run.name), done.log_from, LAST_LINES);
        for line in &lines {
            (self.say)(&format!("    {line}"));
        }
        Ok(Ended::Failed { code, lines })
    }
}

/// Removes the folder of a run that was killed before the folder was complete. Returns whether the run can
/// start.
fn clear_unbegun(folder: &Path) -> Result<bool, DiskError> {
    if !is_unbegun(folder) {
        return Ok(false);
    }
    std::fs::remove_dir_all(folder).map_err(|cause| DiskError::new(DiskOperation::Remove, folder, cause))?;
    Ok(true)
}
