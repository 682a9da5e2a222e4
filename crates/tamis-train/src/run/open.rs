//! Begins a run, or resumes one.
//!
//! Whatever needs no folder is checked before a new run's directory is made. A resumed run restores the state
//! of its last checkpoint and cuts its logs back to it, after it has checked everything that the checkpoint
//! needs.

use std::path::{Path, PathBuf};
use tamis_core::fault::Fault;
use tamis_core::figure::counted;

use tamis_config::{Config, LauncherKind};
use tamis_core::early_stop::EarlyStop;

use super::Run;
use super::attempts::Attempts;
use super::ending::{not_begun, not_resumed, saved_in_sft, unsaved};
use super::look::{Start, new_directory, settle_differences};
use super::measurement::Measurement;
use super::prepare::{Played, Preparation, Ready, Scoring};
use super::recorder::Recorder;
use super::recovery::Standing;
use super::refusals::Refusals;
use super::start::{ConfigText, RunStart};
use super::state::{Checksums, RunState, ScheduleState};
use crate::assemble::hints::hints;
use crate::assemble::learner::native_generator;
use crate::assemble::recipe::Recipe;
use crate::assemble::settings::validation_settings;
use crate::assemble::{advantage, loggers, objective};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::sft::SftExamples;
use crate::outside::Outside;
use crate::workers::servers::RunSampler;
use crate::workers::{Workers, logs_of_processes};
use tamis_run::directory::RunDirectory;
use tamis_run::durable::Disk;
use tamis_run::log::RunEnding;
use tamis_run::log::progress::Console;

/// Result of opening a run.
pub enum Opened {
    /// A run before its next step.
    Ready(Box<Run>),
    /// Ctrl-C came before.
    Interrupted(Fault),
}

/// Moves the process output in the folder of a run that has not begun to a folder beside it, and replaces
/// what an earlier start left there. Returns `None` if there is no output.
fn keep_logs(disk: &Disk, folder: &Path) -> Option<PathBuf> {
    let logs = logs_of_processes(folder);
    if logs.is_empty() {
        return None;
    }
    let kept = PathBuf::from(format!("{}.failed", folder.display()));
    // Anything else with that name belongs to the user.
    let mut there = std::fs::read_dir(&kept).into_iter().flatten().flatten();
    if there.any(|entry| entry.path().extension().is_none_or(|kind| kind != "log")) {
        return None;
    }
    disk.remove_folder(&kept).ok()?;
    disk.create_folder(&kept).ok()?;
    for log in logs {
        disk.rename(&log, &kept.join(log.file_name()?)).ok()?;
    }
    Some(kept)
}

impl Run {
    /// Prepares a run up to its first step: data, model, rewards, sieve, SFT; or the state of its last
    /// checkpoint.
    ///
    /// `progress` makes the display, given the run's steps and those already trained.
    pub fn open(
        begin: RunStart,
        progress: impl FnOnce(Option<u64>, u64) -> Console,
        interrupt: Interrupt,
    ) -> Result<Opened, RunError> {
        Self::open_on(&Disk::new(), begin, progress, interrupt)
    }

    /// As [`Run::open`], but makes a new run's directory on this disk. A resumed run stays on the disk that
    /// it was opened on.
    pub fn open_on(
        disk: &Disk,
        begin: RunStart,
        progress: impl FnOnce(Option<u64>, u64) -> Console,
        interrupt: Interrupt,
    ) -> Result<Opened, RunError> {
        Self::open_with(disk, begin, progress, interrupt, &mut Standing::new(Outside::NOTHING))
    }

    /// As [`Run::open_on`], with learners and servers that are running already.
    pub(super) fn open_with(
        disk: &Disk,
        begin: RunStart,
        progress: impl FnOnce(Option<u64>, u64) -> Console,
        interrupt: Interrupt,
        standing: &mut Standing,
    ) -> Result<Opened, RunError> {
        let (given, existing) = settle_differences(begin)?;
        let is_new = existing.is_none();
        let interrupted = if is_new { not_begun() } else { not_resumed() };
        let start = match Start::look(&given, existing.as_ref(), standing, &interrupt) {
            Ok(start) => start,
            Err(Halt::Interrupted) => return Ok(Opened::Interrupted(interrupted)),
            Err(Halt::Failed(error)) => return Err(error),
        };
        let directory = match existing {
            Some(directory) => directory,
            None => new_directory(disk, &given)?,
        };
        let path = directory.path().to_owned();
        standing.run = Some(path.clone());
        let at = start.state.as_ref().map_or(0, |(state, _)| state.step);
        let ui = progress(given.config.train.total_steps.map(|steps| steps as u64), at);
        let text = given.text.clone();
        let prepared = Self::prepare(given, start, directory, is_new, ui.clone(), interrupt, standing);
        let (mut run, first) = match prepared {
            Ok(prepared) => prepared,
            Err(halt) => {
                if is_new {
                    // Running processes write their logs into the folder that goes.
                    standing.end_started();
                    let logs = matches!(halt, Halt::Failed(_)).then(|| keep_logs(disk, &path)).flatten();
                    if disk.remove_folder(&path).is_ok() {
                        let kept = logs.map_or_else(String::new, |logs| {
                            format!("; the logs of what had been started are in {}", logs.display())
                        });
                        ui.say(&format!(
                            "nothing was trained: the run directory {} is removed again{kept}",
                            path.display()
                        ));
                    }
                }
                return match halt {
                    Halt::Interrupted => Ok(Opened::Interrupted(interrupted)),
                    Halt::Failed(error) => Err(error),
                };
            }
        };
        match run.first_state(first.as_ref()) {
            Ok(()) => {}
            Err(Halt::Interrupted) => {
                let phase = run.recorder.directory.last_sft_checkpoint()?;
                let unbegun = match (run.recorder.saved, phase) {
                    (Some(_), _) => not_resumed(),
                    (None, Some(last)) => saved_in_sft(&run.recipe.config, &path, last.step),
                    (None, None) => unsaved(&run.recipe.config, &path),
                };
                run.recorder.loggers.close(RunEnding::Interrupted);
                run.note_failure(&unbegun);
                return Ok(Opened::Interrupted(unbegun));
            }
            Err(Halt::Failed(error)) => {
                run.note_failure(&error);
                return Err(error);
            }
        }
        if !is_new {
            // The change is permanent: a later resume without the override keeps it.
            for path in [run.recorder.directory.config(), run.recorder.directory.config_in_force()] {
                run.recorder.directory.disk().write_file(&path, text.as_bytes())?;
            }
        }
        Ok(Opened::Ready(Box::new(run)))
    }

    /// Everything up to the first weights, so whatever is wrong with the configuration shows here. If the run
    /// begins, it also returns the examples of supervised fine-tuning (none without it).
    fn prepare(
        given: ConfigText,
        start: Start,
        directory: RunDirectory,
        is_new: bool,
        ui: Console,
        interrupt: Interrupt,
        standing: &mut Standing,
    ) -> Result<(Self, Option<SftExamples>), Halt<RunError>> {
        let ConfigText { config, notes, headline, details, places, .. } = given;
        let Start { state, prompts, codec, resources, native } = start;
        let of = Preparation {
            config: &config,
            directory: &directory,
            saved: state.as_ref(),
            ui: &ui,
            interrupt: &interrupt,
            launcher: &*standing.launcher,
        };
        let (_, divergence) = objective::objective(&config)?;
        // What a checkpoint relies on is checked before anything is cut.
        let answers = of.open_answers()?;
        let logs = of.begin_logs(
            is_new,
            headline.as_deref(),
            &details,
            notes.iter().chain(&prompts.notes),
            &prompts.warnings,
            &resources,
        )?;
        // Only a check continues without a part.
        let ready = of.make_ready(prompts, codec, &places, answers, &mut Refusals::of_run())?;
        let ready = ready.ok_or(Halt::<RunError>::Interrupted)?;
        let Ready { scoring, played, best_figure, functions } = ready;
        let Scoring { mut scorer, is_complete, sieve, .. } = scoring;
        let Played { codec, worlds, train, validation, num_in_training, examples, curriculum } = played;
        let data_crc32 = of.check_prompts(&train)?;
        let base_crc32 = of.check_base()?;
        let (inputs, changes) = of.read_inputs(&validation);

        if standing.recovery.is_none() && config.cluster.launcher == LauncherKind::Ray {
            of.plan_on_cluster(native.as_ref())?;
        }
        if standing.recovery.is_some() {
            of.make_room(&mut standing.servers)?;
        }
        let mut learner = of.load_learner(&codec, divergence)?;
        let advantage = advantage::advantage(&config)?;
        let positions = learner.info().policy.max_positions.unwrap_or(usize::MAX);
        let hints = hints(&config, &advantage, &codec, positions, &train, &ui, &interrupt)
            .map_err(|halt| halt.map(RunError::from))?;
        let teachers = of.make_teachers(&codec, learner.info())?;
        let pool = of.make_pool(train, curriculum)?;
        ui.say(&format!(
            "model: {} parameters, {}, {}, {}",
            learner.info().policy.num_parameters,
            counted(pool.num_prompts(), "training prompt"),
            counted(validation.len(), "validation prompt"),
            learner.info().device,
        ));
        if validation.is_empty() {
            ui.say("no validation: data.val, or data.val_fraction=0.1, would show what the run learns");
        }
        let (mut dispatcher, is_longer) = of.make_dispatcher(&pool, &sieve, is_complete)?;
        let order = of.open_order(&mut dispatcher, &scorer, worlds.as_deref(), is_longer)?;
        let (servers, published) =
            of.connect_servers(&mut *learner, &codec, &dispatcher, &mut standing.servers, &standing.past)?;

        let plays = of.make_plays(worlds, &dispatcher)?;
        let next_step = of.step() + 1;
        scorer.begin_step(next_step);
        let workers = Workers {
            sampler: match learner.generator(of.version()) {
                Some(generator) => RunSampler::Learner(generator),
                None => RunSampler::Native(native_generator(&config, &codec, of.version(), &interrupt)),
            },
            plays,
            servers,
            published,
            learner,
            codec,
            version: of.version(),
            pool,
            scorer,
            teachers,
            dispatcher,
            order,
            interrupt: interrupt.clone(),
            unsaid: Vec::new(),
        };
        let (num_prompts, learner) = (workers.pool.num_prompts(), workers.learner.info());
        let recipe = Recipe::new(&config, sieve, hints, functions, num_prompts, learner)?;
        let state = state.map(|(state, folder)| (state.with_inputs(inputs.clone(), &changes), folder));
        let saved = state.as_ref().map(|(state, _)| state.step);
        let early_stop = make_early_stop(&config, state.as_ref().map(|(state, _)| state));
        let schedule = ScheduleState::of(&workers.dispatcher, &workers.pool);
        let state = if let Some((state, _)) = state {
            // Only the length that the run is to have and the logs that were cut have changed.
            RunState { base_crc32, schedule, logs, ..state }
        } else {
            let objective = recipe.objective.initial_state();
            let checksums = Checksums { data: data_crc32, base: base_crc32 };
            RunState::first(schedule, objective, checksums, inputs, recipe.critic.is_some())
        };
        let last_row = state.logs.last_row.as_deref();
        let others = standing.outside.loggers;
        let loggers = loggers::open(&config, &directory, next_step, last_row, &ui, others)?;
        let run = Run {
            recorder: Recorder::new(&config, &recipe.sieve, directory, loggers, ui, saved),
            measurement: Measurement {
                prompts: validation,
                num_in_training,
                settings: validation_settings(&config),
                best_figure,
                is_pass_unproven: !is_complete,
                places,
                early_stop,
            },
            first_group: workers.dispatcher.next_group(),
            attempts: Attempts::new(),
            has_warned_of_uniform_groups: false,
            gives_numbers: true,
            recovery: standing.recovery,
            recipe,
            workers,
            state,
            interrupt,
        };
        Ok((run, examples))
    }
}

fn make_early_stop(config: &Config, saved: Option<&RunState>) -> EarlyStop {
    let early_stop = EarlyStop::new(config.train.early_stop);
    match saved {
        Some(state) => early_stop.resume(state.early_stop.clone()),
        None => early_stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_a_start_that_failed_take_the_place_of_older_ones_and_of_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let (run, kept) = (folder.path().join("tiny"), folder.path().join("tiny.failed"));
        let fail = |text: &str| {
            std::fs::create_dir_all(run.join("servers")).expect("made");
            std::fs::write(run.join("servers/server_1.log"), text).expect("written");
            keep_logs(&Disk::new(), &run)
        };
        for text in ["first", "second"] {
            assert_eq!(fail(text), Some(kept.clone()));
            assert_eq!(std::fs::read_to_string(kept.join("server_1.log")).expect("kept"), text);
        }
        std::fs::write(kept.join("notes"), "mine").expect("written");
        assert_eq!(fail("third"), None);
        assert_eq!(std::fs::read_to_string(kept.join("server_1.log")).expect("kept"), "second");
    }
}
