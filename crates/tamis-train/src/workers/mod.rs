//! Workers of a run: prompts, generation, scores, learning.

use tamis_core::group::Group;
use tamis_rollout::{Dispatcher, Publication, Scorer};

pub mod answers;
pub mod listener;
pub mod order;
pub mod samples;
pub(crate) mod servers;

use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::measure::validation;
use crate::native::NativeEngine;
use crate::prompts::pool::PromptPool;
use order::RecordedOrder;
use servers::{PublishedFolders, RunSampler, publish_to};

/// Everything that a step drives. Weights, and the progress of generation, are the workers'; every number of
/// the run is in its state.
pub(crate) struct Workers {
    /// The learner.
    pub(crate) engine: NativeEngine,
    /// The sampler; the native one shares the weights of the learner.
    pub(crate) sampler: RunSampler,
    /// Servers that are to sample from the first published weights on: a warm start is measured without them.
    pub(crate) servers: Option<RunSampler>,
    /// Folders in which weights are published for servers; `None` without servers.
    pub(crate) published: Option<PublishedFolders>,
    /// The training prompts.
    pub(crate) pool: PromptPool,
    /// The reward functions.
    pub(crate) scorer: Scorer,
    /// The dispatcher, which brings a step's groups in.
    pub(crate) dispatcher: Dispatcher,
    /// Record of the order in which the dispatcher takes events in, where batches may depend on it.
    pub(crate) order: Option<RecordedOrder>,
    /// Whether the run is to stop soon.
    pub(crate) interrupt: Interrupt,
}

impl Workers {
    /// From now on what comes belongs to this step.
    pub(crate) fn begin_step(&mut self, step: u64) {
        self.sampler.begin_step(step);
        self.scorer.begin_step(step);
        if let Some(order) = &mut self.order {
            order.begin_step(step);
        }
    }

    /// The workers that complete and score a list of prompts.
    pub(crate) fn validation_workers(&mut self) -> validation::ValidationWorkers<'_> {
        validation::ValidationWorkers {
            generator: self.sampler.generator(),
            inbox: self.dispatcher.inbox(),
            scorer: &mut self.scorer,
            interrupt: &self.interrupt,
        }
    }

    /// Gives the weights as they are the next version, and puts them where the generator finds them.
    pub(crate) fn next_publication(&mut self) -> Result<Publication, Halt<RunError>> {
        let publication = self.engine.publish();
        match &self.published {
            Some(folders) => folders.write(&mut self.engine),
            None => Ok(publication),
        }
    }

    /// Has the servers sample from now on, where there are some, once they hold the weights as they are.
    pub(crate) fn hand_over_to_servers(&mut self) -> Result<(), Halt<RunError>> {
        let (Some(mut servers), Some(folders)) = (self.servers.take(), &self.published) else {
            return Ok(());
        };
        let publication = folders.write(&mut self.engine)?;
        publish_to(servers.generator(), &publication, &self.interrupt)?;
        self.sampler = servers;
        Ok(())
    }

    /// Whether an earlier policy sampled some of one of the groups.
    pub(crate) fn any_is_stale(&self, groups: &[&Group]) -> bool {
        let version = self.engine.version();
        groups
            .iter()
            .flat_map(|group| &group.trajectories)
            .any(|trajectory| trajectory.versions != (version, version))
    }
}
