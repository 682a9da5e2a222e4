//! A run that outlives its learner. If the learner is lost, another one continues from the last checkpoint.
//!
//! Everything generated and scored since the checkpoint is in the journals, so the same batches are trained
//! on once more and nothing is sampled twice. This is what `--resume` does, except that the process does not
//! end: servers that the run started keep running.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis_config::Config;
use tamis_core::fault::{Fault, chain};
use tamis_rollout::launch::{LaunchError, Launched};
use tamis_run::directory::RunDirectory;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

use super::start::{ConfigText, RunStart};
use super::{Opened, Run, RunSummary, not_resumed, sft_alone};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::launcher::{self, Launcher};
use crate::learner::LearnerError;
use crate::learner::wire::calls::wait_until_it_answers;
use crate::outside::Outside;
use crate::workers::servers::Pasts;

/// Pause before the second restart in a row; it doubles with each further one. There is none before the
/// first.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Interval between checks for an interrupt during a pause.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Result of [`train`].
pub enum TrainEnd {
    /// The run came to its end.
    Ended(Box<RunSummary>),
    /// Ctrl-C came before the run's first step.
    Interrupted(Fault),
}

/// What outlives a lost learner.
pub(super) struct Standing {
    pub(super) run: Option<PathBuf>,
    pub(super) servers: Option<Arc<dyn Launched>>,
    /// The state in which the loss left these servers, or those that the configuration names.
    pub(super) past: Pasts,
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) outside: Outside,
    /// The loss from which the run recovers.
    pub(super) recovery: Option<Recovery>,
}

impl Standing {
    pub(super) fn new(outside: Outside) -> Self {
        Self {
            run: None,
            servers: None,
            past: Pasts::default(),
            launcher: (outside.make_launcher)(),
            outside,
            recovery: None,
        }
    }

    pub(super) fn end_started(&mut self) {
        (self.servers, self.launcher) = (None, (self.outside.make_launcher)());
    }
}

/// A loss of the learner, until the run has caught up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    began: Instant,
    /// The last step that was finished then.
    step: u64,
    /// Time until the run was ready for its first step again.
    until_open: Option<Duration>,
}

impl Recovery {
    /// Records that `step` is the last finished one. Returns what the loss cost, once the run has caught up.
    pub(super) fn note(&mut self, step: u64) -> Option<String> {
        let so_far = self.began.elapsed();
        let until_open = *self.until_open.get_or_insert(so_far);
        (step >= self.step).then(|| {
            format!(
                "the run is back at step {step}, where the learner was lost: {:.1} s, {:.1} s of them until another one had loaded the \
                checkpoint",
                so_far.as_secs_f64(),
                until_open.as_secs_f64()
            )
        })
    }
}

/// Losses of the learner without a finished step in between.
#[derive(Default)]
struct Losses {
    /// The last finished step at the latest loss.
    step: u64,
    reasons: Vec<String>,
    /// When the latest loss came.
    came: Option<Instant>,
}

impl Losses {
    /// Counts a loss after which so many steps were finished. Returns whether these are more than at the loss
    /// before.
    fn add(&mut self, step: u64, reason: String) -> bool {
        let is_further = step > self.step;
        if is_further {
            self.reasons.clear();
        }
        self.step = self.step.max(step);
        self.reasons.push(reason);
        self.came = Some(Instant::now());
        is_further
    }

    /// Whether an error comes only from a launcher whose cluster is not back yet: for some time after a loss,
    /// a node or the head may accept connections and start nothing. No learner was lost by it.
    fn is_of_launcher(&self, error: &RunError, timeout: Duration) -> bool {
        let (RunError::Learner(LearnerError::Launch(error)) | RunError::Launch(error)) = error else {
            return false;
        };
        let is_launchers = match error {
            LaunchError::Refused { .. } => true,
            LaunchError::Ended { command, .. } => command == launcher::COMMAND,
            _ => false,
        };
        is_launchers && self.came.is_some_and(|came| came.elapsed() < timeout)
    }

    fn num(&self) -> usize {
        self.reasons.len()
    }

    /// The error of a run that ends with the latest loss.
    fn into_error(self, last: RunError) -> RunError {
        if self.num() == 1 {
            return last;
        }
        RunError::LostAgain { step: self.step, reasons: self.reasons, last: Box::new(last) }
    }

    fn pause(&self) -> Duration {
        match self.num() {
            0 | 1 => Duration::ZERO,
            num => FIRST_PAUSE.saturating_mul(1 << (num - 2).min(16)).min(LONGEST_PAUSE),
        }
    }
}

/// Opens a run and trains until it ends. If its learner is lost, another one is started, or the run waits for
/// the one at `learner.url`, at most `learner.max_restarts` times in a row. `progress` makes the display, as
/// for [`Run::open`].
/// [`RunError::LostAgain`] if the learner is lost more often than that.
pub fn train(
    mut begin: RunStart,
    progress: impl Fn(Option<u64>, u64) -> Console,
    outside: Outside,
    interrupt: &Interrupt,
) -> Result<TrainEnd, RunError> {
    let disk = Disk::new();
    let (given, is_new) = (begin.config().clone(), matches!(begin, RunStart::New(_)));
    let most = given.config.learner.max_restarts;
    let (mut standing, mut losses, mut console) = (Standing::new(outside), Losses::default(), None);
    loop {
        let show = |total, done| console.get_or_insert_with(|| progress(total, done)).clone();
        let (lost_at, error) = match attempt(&disk, begin, show, interrupt, &mut standing) {
            Ok(trained) => return Ok(trained),
            Err(lost) => *lost,
        };
        let timeout = given.config.learner.startup_timeout.0;
        let is_launchers = losses.is_of_launcher(&error, timeout);
        if !is_launchers && !may_go_on(&error, &losses) {
            return Err(error);
        }
        let (Some(run), Some(ui)) = (&standing.run, &console) else { return Err(error) };
        // A run that did not begin leaves no folder, and begins anew.
        let is_begun = !is_new || run.is_dir();
        let directory = if is_begun { Some(RunDirectory::open(&disk, run)?) } else { None };
        let step = directory.as_ref().and_then(RunDirectory::last_logged_step).unwrap_or(0);
        let reason = chain(&error);
        let is_further = !is_launchers && losses.add(step, reason.clone());
        if losses.num() > most {
            return Err(losses.into_error(error));
        }
        ui.warn(&reason);
        let (num, pause) = (losses.num(), losses.pause());
        let (again, pause) = if is_launchers {
            let again =
                format!("the launcher's failures are not counted for {} s after a loss", timeout.as_secs());
            (again, pause.max(FIRST_PAUSE))
        } else {
            (format!("restart {num} of at most {most} in a row"), pause)
        };
        match wait(&given.config, pause, &again, ui, interrupt) {
            Ok(true) => {}
            Ok(false) => return Err(error),
            Err(Halt::Interrupted) => return Ok(TrainEnd::Interrupted(not_resumed())),
            Err(Halt::Failed(error)) => return Err(error.into()),
        }
        if standing.recovery.is_none() || is_further {
            standing.recovery = Some(Recovery { began: lost_at, step: losses.step, until_open: None });
        }
        begin = match directory {
            None => RunStart::New(given.clone()),
            Some(directory) => {
                let reason = reason.lines().next().unwrap_or("");
                let note = format!("the learner was lost after step {} ({reason}): {again}", losses.step);
                let now = ConfigText { notes: vec![note], ..given.clone() };
                RunStart::Resume { directory, was: Box::new(given.config.clone()), now }
            }
        };
    }
}

/// Opens a run and trains once. An error comes with its time.
fn attempt(
    disk: &Disk,
    begin: RunStart,
    progress: impl FnOnce(Option<u64>, u64) -> Console,
    interrupt: &Interrupt,
    standing: &mut Standing,
) -> Result<TrainEnd, Box<(Instant, RunError)>> {
    if begin.config().config.is_sft_alone() {
        let ended = sft_alone::train(disk, begin, progress, interrupt, standing);
        return ended.map_err(|error| Box::new((Instant::now(), error)));
    }
    let opened = Run::open_with(disk, begin, progress, interrupt.clone(), standing);
    let mut run = match opened.map_err(|error| Box::new((Instant::now(), error)))? {
        Opened::Ready(run) => run,
        Opened::Interrupted(unbegun) => return Ok(TrainEnd::Interrupted(unbegun)),
    };
    // It is dropped only then, and a learner that hangs takes seconds to end.
    let ended = run.run().map_err(|error| Box::new((Instant::now(), error)));
    ended.map(|summary| TrainEnd::Ended(Box::new(summary)))
}

/// Whether another learner may succeed after this error.
fn may_go_on(error: &RunError, losses: &Losses) -> bool {
    match error {
        RunError::Learner(
            LearnerError::Lost { is_own: true, .. }
            | LearnerError::Lost { has_answered: true, .. }
            | LearnerError::Launch(LaunchError::Ended { by_signal: true, .. }),
        ) => true,
        // A launcher that was killed while it started servers has taken the learner with it.
        RunError::Launch(LaunchError::Ended { command, by_signal: true, .. }) => command == launcher::COMMAND,
        // A learner that cannot be started at all, or never was there, is not lost.
        RunError::Learner(LearnerError::Launch(_) | LearnerError::Lost { .. }) => losses.num() > 0,
        _ => false,
    }
}

/// Waits until another learner may be opened. Returns whether one may, as far as can be known.
fn wait(
    config: &Config,
    pause: Duration,
    again: &str,
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<bool, Halt<LearnerError>> {
    let timeout = config.learner.startup_timeout.0;
    match &config.learner.url {
        None => ui.say(&format!("another learner is started: {again}")),
        Some(url) => ui.say(&format!(
            "waiting for the learner at {url} to restart, at most {} s: {again}",
            timeout.as_secs()
        )),
    }
    let began = Instant::now();
    while began.elapsed() < pause {
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    match &config.learner.url {
        None => Ok(true),
        Some(url) => wait_until_it_answers(url, timeout, interrupt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(reason: &str) -> RunError {
        let (url, reason) = ("unix:l.sock".to_owned(), reason.to_owned());
        let backend = tamis_config::LearnerBackend::Torch;
        RunError::Learner(LearnerError::Lost { url, reason, is_own: true, has_answered: true, backend })
    }

    #[test]
    fn losses_are_counted_until_a_step_more_is_finished() {
        let mut losses = Losses::default();
        losses.add(4, "a".to_owned());
        assert_eq!((losses.num(), losses.pause()), (1, Duration::ZERO));
        // A loss while the steps since the checkpoint are trained again.
        assert!(!losses.add(3, "b".to_owned()));
        assert!(!losses.add(4, "c".to_owned()));
        assert_eq!((losses.num(), losses.pause()), (3, Duration::from_secs(2)));
        assert!(losses.add(5, "d".to_owned()));
        assert_eq!((losses.num(), losses.step), (1, 5));
    }

    #[test]
    fn a_launcher_that_fails_after_a_loss_is_none() {
        let refused =
            || LaunchError::Refused { message: "the agent cannot be started".to_owned(), hint: None };
        let ended = |command: &str| LaunchError::Ended {
            command: command.to_owned(),
            status: "exit status: 1".to_owned(),
            by_signal: false,
            output: String::new(),
        };
        let long = Duration::from_secs(300);
        let mut losses = Losses::default();
        let of = |losses: &Losses, error, timeout| {
            losses.is_of_launcher(&RunError::Learner(LearnerError::Launch(error)), timeout)
        };
        assert!(!of(&losses, refused(), long), "nothing was lost: it is an error of the run");
        losses.add(4, "a".to_owned());
        assert!(of(&losses, refused(), long) && of(&losses, ended(launcher::COMMAND), long));
        assert!(losses.is_of_launcher(&RunError::Launch(refused()), long));
        assert!(!of(&losses, ended("rank 0"), long), "a rank that ends is a loss");
        assert!(!of(&losses, refused(), Duration::ZERO), "it was waited for");
        assert!(!losses.is_of_launcher(&lost("it hangs"), long));
    }

    #[test]
    fn losses_time_after_time_end_with_a_diagnosis() {
        let other = "ended; its output ends:\nKilled";
        let mut losses = Losses::default();
        for reason in ["one", other, other] {
            losses.add(2, chain(&lost(reason)));
        }
        let error = losses.into_error(lost(other));
        insta::assert_snapshot!(error, @r"
        the learner was lost 3 times in a row after step 2, so the run ends:
          1. the learner at unix:l.sock one
          2. the learner at unix:l.sock ended; its output ends:
          3. the learner at unix:l.sock ended; its output ends:
             Killed
        ");
        insta::assert_snapshot!(error.hint().unwrap_or_default(), @"learner.max_restarts sets how often this is tried; its output is in learner.log in the run folder; if the run had begun, continue it with --resume, which starts another");
        // With `learner.max_restarts: 0` there was one loss.
        let mut first = Losses::default();
        first.add(2, chain(&lost("one")));
        assert_eq!(first.into_error(lost("one")).to_string(), lost("one").to_string());
    }

    #[test]
    fn what_a_loss_cost_is_said_where_the_run_has_caught_up() {
        let mut recovery = Recovery { began: Instant::now(), step: 4, until_open: None };
        assert_eq!(recovery.note(2), None);
        assert_eq!(recovery.note(3), None);
        let said = recovery.note(4).expect("caught up");
        assert!(said.starts_with("the run is back at step 4, where the learner was lost: 0."), "{said}");
    }
}
