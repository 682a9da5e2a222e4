//! Where the teachers of a run are: networks of the learner, or servers, which must answer before the run
//! begins.

use std::sync::Arc;

use tamis_config::{Config, ModelSource, TeacherConfig};
use tamis_env::reward::Listener;
use tamis_rollout::asking::ConnectError;
use tamis_rollout::http::Address;
use tamis_rollout::teacher::{TeacherServers, TeacherSetup};

use super::teachers::{Teacher, TeacherPlace, Teachers};
use crate::api_key::api_key;
use crate::assemble::teacher::check_tokenizer;
use crate::error::{AssembleError, RunError};
use crate::interrupt::{Halt, Interrupt};
use crate::learner::{LearnerInfo, Network};
use crate::prompts::codec::Codec;

/// The teachers that a run uses; none if nothing is computed from them.
fn in_use(config: &Config) -> &[TeacherConfig] {
    if config.distillation().is_some() { &config.teacher } else { &[] }
}

/// The teachers of a run, once servers among them have answered.
pub(crate) fn teachers(
    config: &Config,
    codec: &Codec,
    learner: &LearnerInfo,
    listener: &Arc<dyn Listener>,
    interrupt: &Interrupt,
) -> Result<Teachers, Halt<RunError>> {
    let teachers = in_use(config);
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
            let number = config.objective.distillation.map_or(0, |distillation| distillation.top_k);
            let number = number.min(learner.policy.vocab_size);
            TeacherPlace::Servers(connect((index, teacher), number, codec, listener, interrupt)?)
        };
        list.push(Teacher { data_source: teacher.data_source.clone(), place });
    }
    Ok(Teachers::new(list))
}

fn connect(
    (index, teacher): (usize, &TeacherConfig),
    num_top: usize,
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
        num_top,
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
