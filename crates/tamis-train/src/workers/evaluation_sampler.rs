//! The sampler of an evaluation.

use std::sync::Arc;

use tamis_core::group::PolicyVersion;
use tamis_rollout::Generator;
use tamis_rollout::fleet::Fleet;
use tamis_rollout::launch::Launched;
use tamis_rollout::server::OtherLogprobs;

use super::published::PublishedFolders;
use super::servers::{How, connect_fleet, launch, publish_to};
use crate::assemble::settings::validation_settings;
use crate::assemble::startup::Startup;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::RunLearner;

/// The sampler of an evaluation. When it is dropped, servers that were started for it end, and weights that
/// were published for it are removed.
pub(crate) enum EvaluationSampler {
    /// The learner that holds the checkpoint.
    Learner {
        generator: Box<dyn Generator>,
        #[expect(dead_code, reason = "it is there to be held")]
        learner: Box<dyn RunLearner>,
    },
    /// Servers.
    Servers {
        fleet: Box<Fleet>,
        /// The servers that were started for it.
        #[expect(dead_code, reason = "it is there to be dropped")]
        launched: Option<Arc<dyn Launched>>,
        /// Folders in which the checkpoint was published; `None` if servers sample by weights of their
        /// own.
        folders: Option<Box<PublishedFolders>>,
    },
}

impl EvaluationSampler {
    /// At the servers of a configuration, which are given the checkpoint's weights; those of
    /// `rollout.backend: openai` have their own.
    pub(crate) fn new(
        startup: Startup<'_>,
        learner: Option<Box<dyn RunLearner>>,
    ) -> Result<Self, Halt<RunError>> {
        let Startup { config, codec, disk, folder, interrupt, .. } = startup;
        let sampling = &validation_settings(config).groups.sampling;
        // The evaluated weights are published as a folder.
        let how = How { sampling, other_logprobs: OtherLogprobs::Recompute, sends: None };
        let Some(mut learner) = learner else {
            let fleet = connect_fleet(startup, None, usize::MAX, how, None)?;
            return Ok(Self::Servers { fleet: Box::new(fleet), launched: None, folders: None });
        };
        let version = PolicyVersion(0);
        if !config.samples_at_servers()
            && let Some(generator) = learner.generator(version)
        {
            return Ok(Self::Learner { generator, learner });
        }
        // An evaluation publishes a checkpoint's whole weights.
        let folders = PublishedFolders::of(disk, folder, config).of_whole_weights();
        let begin = || {
            let launched = launch(startup, &mut *learner, &folders)?;
            let vocabulary = learner.info().policy.vocab_size;
            let fleet = connect_fleet(startup, launched.as_ref(), vocabulary, how, Some(&folders));
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            Ok((Box::new(fleet?), launched))
        };
        let (fleet, launched) = begin().inspect_err(|_: &Halt<RunError>| {
            // As in `drop`.
            let _ = folders.remove();
        })?;
        let mut sampler = Self::Servers { fleet, launched, folders: Some(Box::new(folders.clone())) };
        let publication = folders.write(&mut *learner, codec, version)?;
        publish_to(sampler.generator(), &publication, interrupt)?;
        Ok(sampler)
    }

    /// The generator that [`crate::measure::validation`] drives.
    pub(crate) fn generator(&mut self) -> &mut dyn Generator {
        match self {
            Self::Learner { generator, .. } => &mut **generator,
            Self::Servers { fleet, .. } => &mut **fleet,
        }
    }
}

impl Drop for EvaluationSampler {
    fn drop(&mut self) {
        if let Self::Servers { folders: Some(folders), .. } = self {
            // If that fails, a folder is left over, which is harmless.
            let _ = folders.remove();
        }
    }
}
