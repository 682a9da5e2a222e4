//! Environments that live elsewhere, as a run starts them, and the prompts that are their levels.

use std::collections::HashSet;
use std::sync::Arc;
use tamis_core::figure::counted;

use serde_json::{Map, Value};
use tamis_config::{Config, EnvironmentConfig};
use tamis_core::group::PromptId;
use tamis_core::random::Key;
use tamis_data::prompt::{Message, Prompt, PromptContent};
use tamis_env::environment::foreign::process::{EnvironmentWorkers, WorkerCommand};
use tamis_env::environment::foreign::settings::{ForeignReach, ForeignSpec};
use tamis_env::environment::foreign::{EnvironmentLine, Foreign, Introduction, LEVEL, Level};
use tamis_env::environment::kind::EnvironmentStyle;
use tamis_env::environment::{Environment, EnvironmentFault};
use tamis_env::reward::{Listener, Nobody};
use tamis_env::task::TaskPrompts;
use tamis_process::{GuardedFolder, interpreter};
use tamis_rollout::environment_server::EnvironmentServer;

use crate::python_program::{module_environment, write_program};
use tamis_core::fault::Fault;

/// Variable with the key of an environment's server, if it wants one.
const KEY: &str = "TAMIS_ENVIRONMENT_API_KEY";

/// An environment elsewhere, and the processes started for it.
pub struct StartedEnvironment {
    name: String,
    foreign: Arc<Foreign>,
    _folder: Option<GuardedFolder>,
}

impl StartedEnvironment {
    /// Starts or finds the environment of a configuration; `listener` gets warnings for the user.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(
        environment: &EnvironmentConfig,
        spec: &ForeignSpec,
        listener: &Arc<dyn Listener>,
    ) -> Result<Self, Fault> {
        let kind = environment.kind.as_str();
        let failed = |error: &dyn std::fmt::Display, hint: &str| {
            Fault::new(format!("the environment `{kind}` does not start: {error}")).with_hint(hint)
        };
        let hint = match spec.reach {
            ForeignReach::Module { .. } => {
                "set `environment.python` to an interpreter that has its packages; its settings are those of `environment`"
            }
            ForeignReach::Program { .. } => "does the program of `environment.argv` run by itself?",
            ForeignReach::Server { .. } => "does the server of `environment.url` run?",
        };
        let (line, introduction, folder): (Arc<dyn EnvironmentLine>, _, _) = match &spec.reach {
            ForeignReach::Server { url } => {
                let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
                let connected = EnvironmentServer::connect(url, key, &spec.settings, spec.timeout);
                let (server, introduction) = connected.map_err(|error| failed(&error, hint))?;
                (Arc::new(server), introduction, None)
            }
            reach => {
                let (argv, variables, folder) = match reach {
                    ForeignReach::Program { argv } => (argv.clone(), Vec::new(), None),
                    ForeignReach::Module { python } => {
                        let folder = write_program()
                            .map_err(|error| failed(&error, "make room for temporary files"))?;
                        let python = interpreter(python);
                        let argv = vec![python, "-m".to_owned(), "tamis.environments".to_owned()];
                        let variables = module_environment(folder.path());
                        (argv, variables, Some(folder))
                    }
                    ForeignReach::Server { .. } => Default::default(),
                };
                let command = WorkerCommand {
                    name: environment.name.clone(),
                    argv,
                    working_dir: spec.workers.working_dir.clone(),
                    variables,
                    settings: spec.settings.clone(),
                    num_processes: spec.workers.num_processes,
                    startup_timeout: spec.workers.startup_timeout.0,
                    max_restarts: u32::try_from(spec.workers.max_restarts).unwrap_or(u32::MAX),
                };
                let (workers, introduction) = EnvironmentWorkers::start(command, Arc::clone(listener))
                    .map_err(|error| failed(&error, hint))?;
                (Arc::new(workers), introduction, folder)
            }
        };
        let max_turns = environment.prompting.max_turns;
        let name = introduction.metric_name(environment.name.as_deref());
        let listener = Arc::clone(listener);
        let foreign = Arc::new(Foreign::new(line, introduction, &name, spec.timeout, max_turns, listener));
        Ok(Self { name, foreign, _folder: folder })
    }

    /// Its description of itself.
    pub fn introduction(&self) -> &Introduction {
        self.foreign.introduction()
    }

    /// The environment.
    pub fn foreign(&self) -> Arc<Foreign> {
        Arc::clone(&self.foreign)
    }

    /// An episode of a prompt's level.
    ///
    /// # Errors
    /// It cannot be begun.
    pub fn begin(
        &self,
        prompt: &Prompt,
        luck: Key,
    ) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        self.foreign.begin(prompt, luck)
    }

    /// Levels of both sides as prompts, and messages about them.
    fn prompts(
        &self,
        config: &Config,
        environment: &EnvironmentConfig,
    ) -> Result<TaskPrompts, EnvironmentFault> {
        let introduction = self.foreign.introduction();
        let is_plain = environment.style == EnvironmentStyle::Plain;
        let name = &self.name;
        let side = |is_held_out, count| -> Result<Vec<Prompt>, EnvironmentFault> {
            let levels = self.foreign.levels(is_held_out, count, config.run.seed)?;
            let of_level = |(number, level): (usize, Level)| {
                let messages = level.messages(introduction.system.as_deref().filter(|_| !is_plain))?;
                let content = if is_plain {
                    let line = |message: &Message| format!("{}\n", message.content);
                    PromptContent::Text(messages.iter().map(line).collect())
                } else {
                    PromptContent::Messages(messages)
                };
                Ok(Prompt {
                    id: PromptId(number as u64),
                    content,
                    ground_truth: level.ground_truth,
                    data_source: name.clone(),
                    columns: Map::from_iter([(LEVEL.to_owned(), Value::String(level.level.to_string()))]),
                    images: Vec::new(),
                    place: None,
                })
            };
            levels.into_iter().enumerate().map(of_level).collect()
        };
        let train = side(false, environment.train_size)?;
        let held_out = side(true, environment.val_size)?;
        let mut notes = vec![format!(
            "{name} ({}): {} training and {}",
            environment.kind,
            train.len(),
            counted(held_out.len(), "held-out level")
        )];
        if environment.name.is_none() && *name != introduction.name {
            notes.push(format!(
                "metrics call {} `{name}`; `environment.name` gives it another name",
                introduction.name
            ));
        }
        let known: HashSet<String> = train.iter().map(|prompt| format!("{:?}", prompt.content)).collect();
        let num_known =
            held_out.iter().filter(|prompt| known.contains(&format!("{:?}", prompt.content))).count();
        if num_known > 0 {
            notes.push(format!("{num_known} of the held-out levels of {name} start like training levels"));
        }
        let max_turns = environment.prompting.max_turns;
        if introduction.max_turns.is_none_or(|own| own > max_turns) {
            let own = introduction
                .max_turns
                .map_or("no limit of its own".to_owned(), |own| format!("{} at most", counted(own, "turn")));
            notes.push(format!(
                "an episode ends after {} (`environment.prompting.max_turns`); {name} has {own}",
                counted(max_turns, "turn")
            ));
        }
        if !introduction.is_deterministic {
            notes.push(format!(
                "{name} does not declare that it is deterministic: a resumed run reads finished episodes from its journal, but an \
                episode that a kill cut off may go differently when it is played again"
            ));
        }
        Ok(TaskPrompts { train, held_out, notes, alphabet: String::new() })
    }
}

/// Gets the levels of an environment elsewhere, as prompts.
///
/// # Errors
/// It does not start, or has no levels.
pub fn levels(
    config: &Config,
    environment: &EnvironmentConfig,
    spec: &ForeignSpec,
) -> Result<TaskPrompts, Fault> {
    let refused = |error: EnvironmentFault| {
        let message = format!("the environment `{}` gives no levels: {error}", environment.kind);
        Fault::new(message).with_hint("`train_size` and `val_size` set how many are requested")
    };
    // Messages while levels are made come again when they are played.
    let nobody: Arc<dyn Listener> = Arc::new(Nobody);
    StartedEnvironment::start(environment, spec, &nobody)?.prompts(config, environment).map_err(refused)
}
