//! Workers of a run: prompts, generation, scores, learning.
//!
//! A step drives them, and they hold what cannot be a value: connections, processes, weights. The numbers of
//! the run are in its state, not here.

use std::path::{Path, PathBuf};

use tamis_core::group::{Group, PolicyVersion};
use tamis_rollout::{
    CompletionWorkers, DispatchError, Dispatcher, Plays, PreparedPrompt, Publication, Scorer, Weights,
};

pub mod answers;
pub(crate) mod evaluation_sampler;
pub mod listener;
pub mod order;
pub(crate) mod published;
pub mod samples;
pub(crate) mod servers;
pub(crate) mod teacher_places;
pub(crate) mod teachers;

use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::RunLearner;
use crate::measure::validation::{self, Validation, ValidationSettings};
use crate::prompts::codec::Codec;
use crate::prompts::pool::PromptPool;
use order::RecordedOrder;
use published::PublishedFolders;
use servers::{RunSampler, publish_to};
use tamis_run::directory::RUN_LOG;
use teachers::Teachers;

/// Everything that a step drives. Weights, and the progress of generation, are the workers'; every number of
/// the run is in its state.
pub(crate) struct Workers {
    pub(crate) learner: Box<dyn RunLearner>,
    pub(crate) codec: Codec,
    /// Version of the weights that the sampler has, or is being given.
    pub(crate) version: PolicyVersion,
    /// The sampler; that of the learner shares its weights.
    pub(crate) sampler: RunSampler,
    /// The environments, and the trajectories that are being played in them.
    pub(crate) plays: Plays,
    /// Servers that sample from the first published weights on: a warm start is measured without them.
    pub(crate) servers: Option<RunSampler>,
    /// Folders in which weights are published for samplers outside the learner; `None` if there are
    /// none.
    pub(crate) published: Option<PublishedFolders>,
    pub(crate) pool: PromptPool,
    pub(crate) scorer: Scorer,
    /// The models that the policy is distilled from; empty without teachers.
    pub(crate) teachers: Teachers,
    /// The dispatcher, which collects a step's groups.
    pub(crate) dispatcher: Dispatcher,
    /// Record of the order in which the dispatcher takes events in, if batches may depend on it.
    pub(crate) order: Option<RecordedOrder>,
    /// Whether the run is to stop soon.
    pub(crate) interrupt: Interrupt,
    /// Warnings of a step that was discarded. They hold for the run all the same.
    pub(crate) unsaid: Vec<String>,
}

impl Workers {
    /// From now on events belong to this step.
    pub(crate) fn begin_step(&mut self, step: u64) {
        for memory in [self.sampler.memory(), self.plays.memory()].into_iter().flatten() {
            memory.set_step(step);
        }
        self.scorer.begin_step(step);
        if let Some(order) = &mut self.order {
            order.begin_step(step);
        }
    }

    /// Completes and scores a list of prompts, as [`validation::sample`] does.
    pub(crate) fn sample(
        &mut self,
        prompts: &[PreparedPrompt],
        settings: &ValidationSettings,
        journal: String,
        step: u64,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Validation, Halt<DispatchError>> {
        let with = CompletionWorkers {
            generator: &mut self.plays.over(self.sampler.generator()),
            inbox: self.dispatcher.inbox(),
            scorer: &mut self.scorer,
            is_interrupted: &|| self.interrupt.is_requested(),
        };
        validation::sample(with, prompts, settings, journal, step, progress)
    }

    /// Makes the present weights the next version, and publishes them to the generator.
    pub(crate) fn next_publication(&mut self) -> Result<Publication, Halt<RunError>> {
        self.version = PolicyVersion(self.version.0 + 1);
        self.learner.publish(self.version)?;
        self.write_publication()
    }

    /// Writes the present weights to the generator's location.
    fn write_publication(&mut self) -> Result<Publication, Halt<RunError>> {
        match &self.published {
            Some(folders) => folders.write(&mut *self.learner, &self.codec, self.version),
            None => Ok(Publication { version: self.version, weights: Weights::InProcess }),
        }
    }

    /// Has the servers sample from now on, if there are any; a sampler outside the learner gets the
    /// present weights.
    pub(crate) fn hand_over(&mut self) -> Result<(), Halt<RunError>> {
        if let Some(servers) = self.servers.take() {
            self.sampler = servers;
        }
        if matches!(self.sampler, RunSampler::Learner(_) | RunSampler::LearnerElsewhere(_)) {
            return Ok(());
        }
        let publication = self.write_publication()?;
        publish_to(self.sampler.generator(), &publication, &self.interrupt)
    }

    /// Whether the sampler computes differently from the learner: at servers, or in another number
    /// format. Its log-probabilities then differ from the learner's by more than the last bits.
    pub(crate) fn samples_elsewise(&self) -> bool {
        match self.sampler {
            RunSampler::Learner(_) => false,
            RunSampler::LearnerElsewhere(_) | RunSampler::Native(_) | RunSampler::NativeWithJournal(_) => {
                self.learner.info().dtype != "f32"
            }
            RunSampler::Servers { .. } => true,
        }
    }

    /// Whether an earlier policy sampled some of one of the groups.
    pub(crate) fn any_is_stale(&self, groups: &[&Group]) -> bool {
        let current = (self.version, self.version);
        groups.iter().flat_map(|group| &group.trajectories).any(|trajectory| trajectory.versions != current)
    }
}

/// The output of processes that a run or an evaluation has started, in its folder.
pub(crate) fn logs_of_processes(folder: &Path) -> Vec<PathBuf> {
    let in_folder = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let is_log = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "log") && !path.ends_with(RUN_LOG)
        };
        entries.map(|entry| entry.path()).filter(is_log).collect()
    };
    [in_folder(folder), in_folder(&folder.join("servers"))].concat()
}
