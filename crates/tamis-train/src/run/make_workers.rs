//! What a prepared run works with: learner, teachers, pool, dispatcher, plays and servers.

use std::sync::Arc;

use tamis_config::BackendKind;
use tamis_core::figure::counted;
use tamis_core::schedule::selector::PromptSelector;
use tamis_data::sampler::{DataPosition, PromptOrder};
use tamis_env::reward::Listener;
use tamis_rollout::launch::Launched;
use tamis_rollout::{
    Beginning, DispatchError, Dispatcher, DispatcherSettings, Journalled, OrderLog as _, Plays,
    PreparedPrompt, Record, Scorer, Worlds, metric_values,
};

use super::prepare::{Preparation, journal_error};
use super::state::ScheduleState;
use crate::assemble::data::CurriculumOrder;
use crate::assemble::learner::native_generator;
use crate::assemble::objective::Divergence;
use crate::assemble::schedule::Sieve;
use crate::assemble::settings::dispatcher_settings;
use crate::assemble::{learner, schedule};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::launcher;
use crate::learner::{LearnerInfo, RunLearner};
use crate::prompts::codec::Codec;
use crate::prompts::pool::PromptPool;
use crate::prompts::worlds;
use crate::prompts::worlds::RunWorlds;
use crate::workers::listener::RunListener;
use crate::workers::order::RecordedOrder;
use crate::workers::published::PublishedFolders;
use crate::workers::samples::RecordedSamples;
use crate::workers::servers::{Pasts, RunSampler};
use crate::workers::teachers::Teachers;
use crate::workers::{servers, teacher_places};

impl Preparation<'_> {
    /// Makes room for a learner that replaces a lost one: servers on its GPU may be awake. All servers are
    /// ended if one of them has used up its restarts.
    pub(super) fn make_room(&self, standing: &mut Option<Arc<dyn Launched>>) -> Result<(), Halt<RunError>> {
        launcher::end_used_up(standing);
        servers::put_to_sleep(self.config, standing.as_deref(), self.interrupt, self.ui)
    }

    pub(super) fn load_learner(
        &self,
        codec: &Codec,
        divergence: Divergence,
    ) -> Result<Box<dyn RunLearner>, Halt<RunError>> {
        let checkpoint = self.saved.map(|(_, folder)| folder.as_path());
        learner::learner(self.startup(codec), checkpoint, divergence)
    }

    /// The teachers, with what servers among them answered a process before this one after the checkpoint.
    pub(super) fn make_teachers(
        &self,
        codec: &Codec,
        learner: &LearnerInfo,
    ) -> Result<Teachers, Halt<RunError>> {
        let Self { config, directory, ui, interrupt, .. } = *self;
        let listener: Arc<dyn Listener> = RunListener::new(ui, interrupt);
        let teachers = teacher_places::teachers(config, codec, learner, &listener, interrupt)?;
        if !teachers.asks_servers() {
            return Ok(teachers);
        }
        let from = self.state().and_then(|state| state.teachers).unwrap_or(0);
        let teachers = teachers.with_journal(directory.disk(), &directory.teachers_journal(), from);
        Ok(teachers.map_err(|error| journal_error(error, directory, |state| state.teachers))?)
    }

    pub(super) fn make_pool(
        &self,
        train: Vec<PreparedPrompt>,
        curriculum: Option<CurriculumOrder>,
    ) -> Result<PromptPool, RunError> {
        let order = if self.config.data.shuffle {
            PromptOrder::Shuffled { seed: self.config.run.seed }
        } else {
            PromptOrder::Sequential
        };
        let position = self.state().map_or(DataPosition::default(), |state| state.schedule.position);
        let given_back = self.state().into_iter().flat_map(|state| state.schedule.given_back.iter().copied());
        let (seed, schedule) = (self.config.run.seed, &self.config.schedule);
        // A group is kept with so many members.
        let first = schedule.screen_first.unwrap_or(self.config.rollout.n);
        let learnt = self.state().and_then(|state| state.schedule.selector.clone());
        let selector = PromptSelector::new(schedule.selector, seed, first, learnt);
        let mut pool = PromptPool::new(train, order, position)?;
        if let Some(curriculum) = curriculum {
            pool = pool.with_ranks(curriculum.ranks, curriculum.epochs);
        }
        Ok(pool.with_given_back(given_back).with_selector(selector))
    }

    /// The dispatcher, and whether the run will have another length than before.
    pub(super) fn make_dispatcher(
        &self,
        pool: &PromptPool,
        sieve: &Sieve,
        is_complete: bool,
    ) -> Result<(Dispatcher, bool), Halt<RunError>> {
        let config = self.config;
        let settings = DispatcherSettings {
            // In a later step of a resumed run a score may be missing by chance, although it was there
            // before. In the first step it was never there.
            is_metric_unproven: sieve.filter.is_some() && !is_complete && self.step() == 0,
            recomputes_logprobs: servers::recomputes_logprobs(config)?,
            hands_out_parts: schedule::trains_early(config, sieve)?,
            ..dispatcher_settings(config)
        };
        let Some(state) = self.state() else {
            let mut machine = schedule::scheduler(config, sieve)?;
            machine.set_num_prompts(pool.num_prompts());
            return Ok((Dispatcher::new(settings, machine), false));
        };
        let schedule = &state.schedule;
        let mut machine = schedule.machine.clone();
        let (fresh, was) = (schedule::settings(config, sieve), machine.settings());
        // How much is drawn ahead depends on how much is still to come.
        let is_longer = (was.total_steps, was.total_epochs) != (fresh.total_steps, fresh.total_epochs);
        machine.set_length(fresh.total_steps, fresh.total_epochs);
        machine.set_num_prompts(pool.num_prompts());
        let (carried, health) = (restore_carried(schedule, pool)?, schedule.reward_health.clone());
        let (next, version) = (schedule.next_group, state.version);
        let mut dispatcher = Dispatcher::resume(settings, machine, next, version, carried, health);
        dispatcher.ask_in_order(&schedule.in_flight);
        Ok((dispatcher, is_longer))
    }

    /// The record of the order in which events came, if batches may depend on it. The events of a step that
    /// was not finished are replayed.
    pub(super) fn open_order(
        &self,
        dispatcher: &mut Dispatcher,
        scorer: &Scorer,
        worlds: Option<&RunWorlds>,
        is_longer: bool,
    ) -> Result<Option<RecordedOrder>, RunError> {
        // The native engine repeats its samples in the same order. Servers and external rewards do not, and
        // samples that were read back come before those that a learner is asked for.
        let config = self.config;
        let is_timed = config.samples_at_servers()
            || config.samples_through_learner()
            || servers::journals_native_samples(config)
            || scorer.rewards().concurrency() > 0;
        // Only the order records which episodes an environment elsewhere failed, and what was abandoned
        // because of that.
        let is_played_elsewhere = worlds.is_some_and(Worlds::is_slow);
        if !((is_timed && dispatcher.machine().depends_on_timing()) || is_played_elsewhere) {
            return Ok(None);
        }
        let directory = self.directory;
        let from = self.state().and_then(|state| state.order).unwrap_or(0);
        let (mut order, taken) =
            RecordedOrder::open(directory.disk(), &directory.order(), from, self.step() + 1)
                .map_err(|error| journal_error(error, directory, |state| state.order))?;
        if is_longer {
            if !taken.is_empty() {
                self.ui.warn(&format!(
                    "the run is longer now, and draws ahead for the added steps: the recorded order of what was started after the \
                     checkpoint ({} of order.bin) is not followed",
                    counted(taken.len(), "entry")
                ));
            }
            order.forget(taken.len()).map_err(RunError::from)?;
        } else {
            dispatcher.follow(taken);
        }
        Ok(Some(order))
    }

    /// The trajectories that are played. Those in environments elsewhere have a memory, which holds what an
    /// earlier process played after the checkpoint.
    pub(super) fn make_plays(
        &self,
        worlds: Option<Arc<RunWorlds>>,
        dispatcher: &Dispatcher,
    ) -> Result<Plays, RunError> {
        let is_played_elsewhere = worlds.as_deref().is_some_and(Worlds::is_slow);
        let plays = worlds::plays(self.config, worlds);
        if !is_played_elsewhere {
            return Ok(plays);
        }
        let directory = self.directory;
        let from = self.state().and_then(|state| state.episodes).unwrap_or(0);
        let episodes = RecordedSamples::open(directory.disk(), &directory.episodes_journal(), from)
            .map_err(|error| journal_error(error, directory, |state| state.episodes))?;
        let next_group = dispatcher.next_group();
        let at = Beginning { version: self.version(), step: self.step() + 1, next_group };
        Ok(plays.journalled(Box::new(episodes), at))
    }

    /// The servers that sample, started if the configuration says so, and the folders in which weights are
    /// published for them. There are no folders if a learner elsewhere samples, and neither servers nor
    /// folders if one in this process does.
    pub(super) fn connect_servers(
        &self,
        learner: &mut dyn RunLearner,
        codec: &Codec,
        dispatcher: &Dispatcher,
        standing: &mut Option<Arc<dyn Launched>>,
        past: &Pasts,
    ) -> Result<(Option<RunSampler>, Option<PublishedFolders>), Halt<RunError>> {
        let Self { config, directory, interrupt, .. } = *self;
        let startup = self.startup(codec);
        let samples = || {
            let from = self.state().and_then(|state| state.samples).unwrap_or(0);
            RecordedSamples::open(directory.disk(), &directory.samples_journal(), from)
                .map_err(|error| journal_error(error, directory, |state| state.samples))
        };
        let (version, next_group) = (self.version(), dispatcher.next_group());
        let begin = Beginning { version, step: self.step() + 1, next_group };
        if let Some(generator) = learner.generator(version).filter(|_| !config.samples_at_servers()) {
            // A learner elsewhere may compute a sample differently beside other sequences.
            let sampler = if config.learns_elsewhere() {
                let generator = Box::new(Journalled::new(generator, Box::new(samples()?), begin));
                Some(RunSampler::LearnerElsewhere(generator))
            } else {
                None
            };
            return Ok((sampler, None));
        }
        let folders = PublishedFolders::of(directory.disk(), directory.path(), config);
        if config.rollout.backend == BackendKind::Native {
            if !servers::journals_native_samples(config) {
                return Ok((None, Some(folders)));
            }
            let generator = native_generator(config, codec, version, interrupt);
            let generator = Box::new(Journalled::new(generator, Box::new(samples()?), begin));
            return Ok((Some(RunSampler::NativeWithJournal(generator)), Some(folders)));
        }
        // Servers end with the launcher that started them.
        launcher::end_used_up(standing);
        if standing.is_none() {
            *standing = servers::launch(startup, learner, &folders)?;
        }
        if let Some(servers) = &*standing {
            launcher::await_return(&**servers, interrupt);
        }
        let (launched, past, samples) = (standing.clone(), Arc::clone(past), samples()?);
        let servers = servers::connect(startup, learner, launched, past, &folders, samples, begin);
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        Ok((Some(servers?), Some(folders)))
    }
}

fn restore_carried(schedule: &ScheduleState, pool: &PromptPool) -> Result<Vec<Record>, DispatchError> {
    let metric = &schedule.machine.settings().metric;
    let group_size = schedule.machine.settings().group_size;
    schedule
        .carried
        .iter()
        .filter_map(|carried| {
            let prompt: PreparedPrompt = pool.get(carried.group.prompt)?.clone();
            let final_rewards = carried.final_rewards();
            let values = if carried.is_in_flight(group_size) {
                Ok(Vec::new())
            } else {
                metric_values(metric, &carried.group, final_rewards.as_deref())
            };
            Some(values.map_err(DispatchError::from).map(|values| Record {
                group: carried.group.clone(),
                prompt,
                step: carried.step,
                round: carried.round,
                values,
                final_rewards,
                logged: carried.logged.clone(),
                reference: None,
                fate: carried.fate.clone(),
                kept_in: carried.kept_in,
                generation: carried.generation,
                inclusion: carried.inclusion,
            }))
        })
        .collect()
}
