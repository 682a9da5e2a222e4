//! The learner of a run, with everything loaded that it begins with.

use std::path::Path;

use tamis_config::Config;
use tamis_core::group::PolicyVersion;
use tamis_rollout::Generator;
use tamis_run::durable::Disk;

use super::objective::Divergence;
use super::settings::engine_settings;
use super::{critic, policy};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::RunLearner;
use crate::native::{self, NativeModels};
use crate::prompts::codec::Codec;

/// The learner that goes on from a checkpoint, or begins as the configuration says: with its policy, the
/// reference that it names where there is a divergence, and the critic that it names. What it writes goes
/// through `disk`.
pub(crate) fn learner(
    config: &Config,
    checkpoint: Option<&Path>,
    divergence: Divergence,
    codec: &Codec,
    disk: &Disk,
    interrupt: &Interrupt,
) -> Result<Box<dyn RunLearner>, Halt<RunError>> {
    let models = {
        let (config, codec) = (config.clone(), codec.clone());
        let checkpoint = checkpoint.map(Path::to_owned);
        interrupt.or_abandon(move || -> Result<NativeModels, RunError> {
            let model = match &checkpoint {
                Some(folder) => native::read_model(folder)?,
                None => policy::model(&config, &codec)?,
            };
            let has_reference = divergence != Divergence::None;
            let reference = if has_reference { policy::reference(&config, model.config())? } else { None };
            let critic = if checkpoint.is_none() { critic::load_named(&config)? } else { None };
            Ok(NativeModels { policy: model, reference, critic })
        })??
    };
    let settings = engine_settings(config);
    Ok(match checkpoint {
        Some(folder) => native::resume(folder, models, codec.clone(), settings, disk, interrupt)?,
        None => native::learner(models, codec.clone(), settings, disk, interrupt),
    })
}

/// A learner that holds the configuration's policy alone, for what only samples from it.
pub(crate) fn holder(
    config: &Config,
    model: tamis_model::Model,
    codec: &Codec,
    interrupt: &Interrupt,
) -> Box<dyn RunLearner> {
    let models = NativeModels { policy: model, reference: None, critic: None };
    native::learner(models, codec.clone(), engine_settings(config), &Disk::new(), interrupt)
}

/// The native engine as a generator that reads published folders.
pub(crate) fn native_generator(
    config: &Config,
    codec: &Codec,
    version: PolicyVersion,
    interrupt: &Interrupt,
) -> Box<dyn Generator> {
    native::generator(codec, engine_settings(config), version, interrupt)
}
