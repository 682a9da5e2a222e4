//! The teachers of a run: those that the learner loads, and those at servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::{Config, ModelSource, TeacherConfig};
use tamis_env::reward::Listener;
use tamis_model::{Model, TransformerConfig};
use tamis_rollout::PreparedPrompt;
use tamis_rollout::asking::ConnectError;
use tamis_rollout::http::Address;
use tamis_rollout::teacher::{TeacherServers, TeacherSetup};
use tamis_text::tokenizer::Tokenizer;

use super::policy::{self, Limits};
use crate::api_key::api_key;
use crate::error::{AssembleError, RunError};
use crate::interrupt::{Halt, Interrupt};
use crate::learner::{LearnerInfo, Network};
use crate::prompts::codec::Codec;
use crate::workers::teachers::{Teacher, TeacherPlace, Teachers, no_teacher};

/// The teachers that a run uses; none if nothing is computed from them.
fn in_use(config: &Config) -> &[TeacherConfig] {
    if config.distillation().is_some() { &config.teacher } else { &[] }
}

/// Folders of the teachers that the learner loads, in their order.
pub(crate) fn folders(config: &Config) -> Vec<PathBuf> {
    config.loaded_teachers().filter_map(|teacher| teacher.path.as_ref().map(ModelSource::folder)).collect()
}

/// Sizes of the teachers that the learner loads, as far as they can be read.
pub(super) fn shapes(config: &Config) -> Vec<TransformerConfig> {
    folders(config).iter().filter_map(|folder| TransformerConfig::load_any(folder).ok()).collect()
}

/// Refuses a folder whose tokenizer is not the policy's: the same ids would be other tokens.
pub(super) fn check_tokenizer(folder: &Path, codec: &Codec) -> Result<(), AssembleError> {
    let teacher = Tokenizer::load(folder).map_err(crate::prompts::codec::CodecError::from)?;
    let policy = codec.tokenizer();
    for id in 0..u32::try_from(policy.num_rows()).unwrap_or(u32::MAX) {
        let Some(own) = policy.token(id) else { continue };
        let found = teacher.token(id);
        if found.as_ref() != Some(&own) {
            let found = found.map_or_else(|| "no token".to_owned(), |found| format!("{found:?}"));
            return Err(AssembleError::at(
                "teacher",
                format!(
                    "the tokenizer in {} is not the policy's: token {id} is {found} there and {own:?} here",
                    folder.display()
                ),
                "take a teacher with the policy's tokenizer: its log-probabilities are of the tokens that the policy \
                 sampled",
            ));
        }
    }
    Ok(())
}

/// Refuses a teacher that the learner could not load for this policy, before its weights are read.
pub(super) fn check(folder: &Path, config: &Config, codec: &Codec) -> Result<(), AssembleError> {
    if !folder.is_dir() {
        return Err(AssembleError::at(
            "teacher",
            format!("there is no folder {}", folder.display()),
            "name a folder with config.json, model.safetensors and tokenizer.json, or a model on a hub",
        ));
    }
    check_tokenizer(folder, codec)?;
    let limits = Limits::read(folder)?;
    limits.check_vocabulary(codec, &format!("the teacher in {}", folder.display()))?;
    limits.check_length(config, &format!("the teacher in {}", folder.display()))
}

/// The teachers that the native engine loads.
pub(super) fn load(config: &Config, codec: &Codec) -> Result<Vec<Model>, AssembleError> {
    let load = |folder: &PathBuf| {
        check(folder, config, codec)?;
        policy::load(folder)
    };
    folders(config).iter().map(load).collect()
}

/// The teachers of a run, once servers among them have answered.
pub(crate) fn teachers(
    config: &Config,
    codec: &Codec,
    learner: &LearnerInfo,
    prompts: &[PreparedPrompt],
    listener: &Arc<dyn Listener>,
    interrupt: &Interrupt,
) -> Result<Teachers, Halt<RunError>> {
    let teachers = in_use(config);
    let is_for = |teacher: &TeacherConfig, source: &str| {
        teacher.data_source.as_deref().is_none_or(|own| own == source)
    };
    if !teachers.is_empty() {
        let without = |prompt: &&PreparedPrompt| {
            !teachers.iter().any(|teacher| is_for(teacher, &prompt.prompt.data_source))
        };
        if let Some(prompt) = prompts.iter().find(without) {
            return Err(Halt::Failed(no_teacher(&prompt.prompt.data_source)));
        }
    }
    let (mut list, mut num_loaded) = (Vec::with_capacity(teachers.len()), 0);
    for (index, teacher) in teachers.iter().enumerate() {
        let place = if teacher.is_loaded() {
            num_loaded += 1;
            TeacherPlace::Learner(Network::Teacher(num_loaded - 1))
        } else if teacher.is_base() {
            if config.learner.lora.is_none() && !learner.weights_elsewhere {
                let message =
                    format!("teacher[{index}] is the policy without its adapter, and there is no adapter");
                let hint = "set its `path` or its `servers`, or train an adapter (`learner.lora`)";
                return Err(Halt::Failed(AssembleError::at("teacher", message, hint).into()));
            }
            TeacherPlace::Learner(Network::Base)
        } else {
            TeacherPlace::Servers(connect(index, teacher, codec, listener, interrupt)?)
        };
        list.push(Teacher { data_source: teacher.data_source.clone(), place });
    }
    Ok(Teachers::new(list))
}

/// A teacher at servers.
fn connect(
    index: usize,
    teacher: &TeacherConfig,
    codec: &Codec,
    listener: &Arc<dyn Listener>,
    interrupt: &Interrupt,
) -> Result<TeacherServers, Halt<RunError>> {
    let refuse = |message: String, hint: &str| {
        Halt::Failed(RunError::from(AssembleError::at("teacher", message, hint)))
    };
    let name = format!("teacher[{index}]");
    if codec.image_token_id().is_some() {
        let message =
            format!("{name} is at servers, and the policy sees images: only text is sent to a teacher");
        return Err(refuse(message, "have the learner load the teacher (`path` without `servers`)"));
    }
    if let Some(folder) = teacher.path.as_ref().map(ModelSource::folder) {
        check_tokenizer(&folder, codec).map_err(RunError::from)?;
    }
    let servers: Result<Vec<Address>, _> = teacher.servers.iter().map(|url| Address::parse(url)).collect();
    let servers = servers
        .map_err(|error| refuse(format!("the servers of {name} cannot be used: {error}"), "correct them"))?;
    let key = api_key(&format!("{name}."), teacher.api_key_file.as_deref(), teacher.api_key_env.as_deref());
    let setup = TeacherSetup {
        servers,
        key: key.map_err(RunError::from)?,
        model: teacher.model.clone(),
        name: name.clone(),
        timeout: teacher.timeout.0,
        max_attempts: u32::try_from(teacher.max_attempts).unwrap_or(u32::MAX),
        concurrency: teacher.concurrency,
    };
    let connected = TeacherServers::connect(setup, teacher.startup_timeout.0, Arc::clone(listener));
    match connected {
        Ok(Some(servers)) if !interrupt.is_requested() => Ok(servers),
        Ok(_) => Err(Halt::Interrupted),
        Err(ConnectError::Servers(error)) => Err(Halt::Failed(AssembleError::Teacher(error).into())),
        Err(ConnectError::Http(error)) => {
            Err(refuse(format!("the servers of {name} cannot be used: {error}"), "correct them"))
        }
    }
}
