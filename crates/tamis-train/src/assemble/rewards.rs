//! The reward functions of a run. tamis-env builds them, with the files and the judges that this crate
//! provides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tamis_config::{Config, RewardConfig};
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::command::SharedPools;
use tamis_env::reward::judge::JudgeSettings;
use tamis_env::reward::model::{AUTO_TEMPLATE, CHAT_TEMPLATE, ModelSettings};
use tamis_env::reward::{
    BuildError, Listener, NamedReward, RewardContext, RewardError, RewardFunction, RewardHost,
    RewardSettings, Rewards,
};
use tamis_rollout::asking::ConnectError;
use tamis_rollout::http::Address;
use tamis_rollout::judge::{Judge, JudgeSetup};
use tamis_rollout::launch::{LaunchError, LaunchLimits, Say};
use tamis_rollout::prompt_template::PromptTemplate;
use tamis_rollout::reward_model::{ModelInput, RewardModel};
use tamis_run::durable::Disk;

use super::settings::threads;
use crate::api_key::api_key;
use crate::error::AssembleError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::torch::TorchProcess;

/// What a run provides for rewards.
pub(super) struct Host<'a> {
    pub(super) folder: RewardFolder<'a>,
    /// Threads of a process that computes on the CPU.
    pub(super) threads: usize,
    /// Ends the wait for a model that is being loaded.
    pub(super) interrupt: &'a Interrupt,
}

/// The first verifier of a configuration with its name.
pub(super) fn first_verifier(list: &[RewardConfig]) -> Option<(&str, &dyn RewardSettings)> {
    let verifier = list.iter().find(|reward| reward.kind.is_verifier())?;
    Some((&verifier.name, &*verifier.kind))
}

/// Where programs are, and where the output of rewards goes.
#[derive(Clone, Copy)]
pub struct RewardFolder<'a> {
    /// The folder. Programs that tamis ships are written there.
    pub path: &'a Path,
    /// How.
    pub disk: &'a Disk,
    /// Whether the folder is a run's, which keeps the output of rewards. Otherwise it is removed, and the
    /// listener gets the output.
    pub is_run: bool,
}

/// Refuses a configuration without a reward.
pub(crate) fn check_any(config: &Config) -> Result<(), AssembleError> {
    if config.reward.is_empty() {
        return Err(AssembleError::setting(
            "no reward function is set",
            "add one to `reward`, such as `reward: [{kind: gsm8k}]`, or `reward: [{kind: by_source}]` for the verifier of each row's `data_source`; \
             `tamis config explain reward` lists the kinds",
        ));
    }
    Ok(())
}

/// What the reward functions of a configuration are built with.
#[derive(Clone, Copy)]
pub struct RewardBuilder<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The place of programs.
    pub folder: RewardFolder<'a>,
    /// Hears of restarts and long waits of external functions.
    pub listener: &'a Arc<dyn Listener>,
    /// Ends the wait for a model that is loaded.
    pub interrupt: &'a Interrupt,
    /// The prompts whose completions will be scored.
    pub rows: &'a [&'a [Prompt]],
    /// The processes that rewards share. They end with the last reward that uses them.
    pub pools: &'a SharedPools,
}

impl RewardBuilder<'_> {
    /// Builds all reward functions.
    ///
    /// # Errors
    /// Among others a Python function that cannot be called in its style, and rows of a data source without a
    /// verifier.
    pub fn build_all(&self) -> Result<Rewards, AssembleError> {
        check_any(self.config)?;
        self.begin(|_| true);
        let all = (0..self.config.reward.len()).map(|index| self.build(index));
        Ok(Rewards::new(all.collect::<Result<_, _>>()?)?)
    }

    /// Begins what takes time before the functions can be built, for all at the same time: their files are
    /// imported. `is_wanted` chooses rewards by their index.
    pub(crate) fn begin(&self, is_wanted: impl Fn(usize) -> bool) {
        for (index, reward) in self.config.reward.iter().enumerate().filter(|(index, _)| is_wanted(*index)) {
            self.with_context(index, |context| reward.kind.begin(context));
        }
        if let Some(line) = self.pools.announcement() {
            self.listener.announce(&line);
        }
    }

    /// Builds one of the functions.
    ///
    /// # Errors
    /// As of [`Self::build_all`].
    pub(crate) fn build(&self, index: usize) -> Result<NamedReward, AssembleError> {
        let reward = &self.config.reward[index];
        let function = self.with_context(index, |context| reward.kind.build(context))?;
        Ok(NamedReward {
            name: reward.name.clone(),
            weight: reward.weight,
            nature: reward.kind.nature(),
            function,
        })
    }

    fn with_context<T>(&self, index: usize, act: impl FnOnce(&RewardContext<'_>) -> T) -> T {
        let Self { config, folder, listener, interrupt, rows, pools } = *self;
        act(&RewardContext {
            name: &config.reward[index].name,
            max_length: config.max_completion_length(),
            rows,
            verifier: first_verifier(&config.reward),
            listener,
            host: &Host { folder, threads: threads(config), interrupt },
            pools,
        })
    }
}

impl From<BuildError> for AssembleError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Setting { message, hint } => Self::setting(message, hint),
            BuildError::Reward(error) => Self::Reward(error),
            BuildError::Host(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::setting(error.to_string(), "correct the reward"),
            },
        }
    }
}

/// An error of this crate, passed through the function that called it.
fn through(error: impl Into<AssembleError>) -> BuildError {
    BuildError::Host(Box::new(error.into()))
}

impl RewardHost for Host<'_> {
    fn install(&self, name: &str, program: &str) -> Result<PathBuf, BuildError> {
        let path = self.folder.path.join(name);
        // Several rewards use one program.
        if std::fs::read(&path).is_ok_and(|found| found == program.as_bytes()) {
            return Ok(path);
        }
        self.folder.disk.write_file(&path, program.as_bytes()).map_err(through)?;
        Ok(path)
    }

    fn log(&self, name: &str) -> Option<PathBuf> {
        self.folder.is_run.then(|| self.log_of(name))
    }

    fn check_judge(&self, judge: &JudgeSettings, context: &RewardContext<'_>) -> Result<(), BuildError> {
        setup(judge, context).map(drop)
    }

    fn connect_judge(
        &self,
        judge: &JudgeSettings,
        context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError> {
        let section = format!("reward `{}`: ", context.name);
        let key = api_key(&section, None, judge.api_key_env.as_deref()).map_err(through)?;
        let setup = JudgeSetup { key, ..setup(judge, context)? };
        let listener = Arc::clone(context.listener);
        let judge = Judge::connect(setup, judge.startup_timeout.0, context.name, listener);
        let judge = judge.map_err(|error| unconnected(error, context))?;
        Ok(Box::new(judge.ok_or(RewardError::Interrupted)?))
    }

    fn check_model(&self, model: &ModelSettings, context: &RewardContext<'_>) -> Result<(), BuildError> {
        addresses(&model.servers, context)?;
        if let ModelInput::Text(template) = ModelInput::parse(&model.template) {
            check_names("template", &template, context)?;
        }
        Ok(())
    }

    fn connect_model(
        &self,
        model: &ModelSettings,
        context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError> {
        self.check_model(model, context)?;
        let (name, listener) = (context.name, Arc::clone(context.listener));
        if model.path.is_some() {
            return self.load_model(model, context);
        }
        let section = format!("reward `{name}`: ");
        let key = api_key(&section, model.api_key_file.as_deref(), model.api_key_env.as_deref());
        let (key, addresses) = (key.map_err(through)?, addresses(&model.servers, context)?);
        let model = RewardModel::connect(model.clone(), addresses, key, name, listener);
        let model = model.map_err(|error| unconnected(error, context))?;
        Ok(Box::new(model.ok_or(RewardError::Interrupted)?))
    }
}

impl Host<'_> {
    /// The file for what a reward's processes print.
    fn log_of(&self, name: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        self.folder.path.join(format!("reward-{}.log", name.chars().map(plain).collect::<String>()))
    }

    /// A reward model in a process of its own.
    fn load_model(
        &self,
        model: &ModelSettings,
        context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError> {
        let folder = model.path.as_ref().map(|place| place.folder().to_owned()).unwrap_or_default();
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let has_messages =
            || context.prompts().any(|prompt| matches!(prompt.content, PromptContent::Messages(_)));
        let is_chat = model.template == CHAT_TEMPLATE || (model.template == AUTO_TEMPLATE && has_messages());
        let settings = json!({
            "folder": folder,
            "device": model.device,
            "dtype": model.dtype.to_string(),
            "label": model.label,
            "activation": model.activation.to_string(),
            "max_length": model.max_length,
            "overlong": model.overlong.to_string(),
            "add_special_tokens": model.add_special_tokens,
            "batch_size": model.batch_size,
            "chat": is_chat,
            "threads": self.threads,
        });
        let log = self.log_of(context.name);
        let listener = Arc::clone(context.listener);
        let say: Say = Arc::new(move |message: &str| listener.say(message));
        let restarts = u32::try_from(model.max_restarts).unwrap_or(u32::MAX);
        let limits = LaunchLimits { restarts, ..LaunchLimits::once(model.startup_timeout.0) };
        let process = TorchProcess::start_reward_model(
            &model.python.display().to_string(),
            &settings,
            log,
            limits,
            &say,
            self.interrupt,
        );
        let process = process.map_err(|halt| match halt {
            Halt::Interrupted => RewardError::Interrupted.into(),
            Halt::Failed(error) => unlaunched(&error, context),
        })?;
        let address = Address::parse(&process.address()).map_err(|error| {
            context.fail(&format!("its process cannot be reached: {error}"), "start again")
        })?;
        let (name, listener) = (context.name, Arc::clone(context.listener));
        let model = RewardModel::of_process(model.clone(), address, Box::new(process), name, listener);
        Ok(Box::new(model.map_err(|error| unconnected(error, context))?))
    }
}

/// What is wrong with a reward model's process. If the process reports the fault itself, its words are
/// enough.
fn unlaunched(error: &LaunchError, context: &RewardContext<'_>) -> BuildError {
    /// The last line of a process that reports its fault itself.
    #[derive(serde::Deserialize)]
    struct Ending {
        error: String,
        hint: Option<String>,
    }
    if let LaunchError::Ended { output, .. } = error
        && let Some(ending) = output.lines().rev().find_map(|line| serde_json::from_str::<Ending>(line).ok())
    {
        return context.fail(&ending.error, ending.hint.as_deref().unwrap_or("its `path` names the model"));
    }
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    context.fail(
        &format!("{error}{cause}"),
        "its `python` names an interpreter with PyTorch, transformers and safetensors, and `startup_timeout` the \
         time that loading may take",
    )
}

/// What is wrong with servers that score.
fn unconnected(error: ConnectError, context: &RewardContext<'_>) -> BuildError {
    match error {
        ConnectError::Servers(error) => through(AssembleError::Judge(error)),
        ConnectError::Http(error) => {
            context.fail(&format!("its `servers` cannot be used: {error}"), "correct them")
        }
    }
}

/// The addresses of servers.
fn addresses(servers: &[String], context: &RewardContext<'_>) -> Result<Vec<Address>, BuildError> {
    let read: Result<Vec<Address>, _> = servers.iter().map(|url| Address::parse(url)).collect();
    read.map_err(|error| context.fail(&format!("its `servers` cannot be used: {error}"), "correct them"))
}

/// Refuses names in a template that no row has. Without rows, all names are accepted.
fn check_names(key: &str, template: &PromptTemplate, context: &RewardContext<'_>) -> Result<(), BuildError> {
    let known = ["prompt", "completion", "ground_truth", "data_source"];
    let mut rows = context.prompts().peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let columns: BTreeSet<&str> =
        rows.flat_map(|prompt| prompt.columns.keys().map(String::as_str)).chain(known).collect();
    let Some(unknown) = template.names().find(|name| !columns.contains(name)) else { return Ok(()) };
    let what = format!("its `{key}` names `{{{unknown}}}`, which does not exist");
    let there = columns.into_iter().collect::<Vec<_>>().join(", ");
    Err(context.fail(&what, format!("available: {there}")))
}

/// Settings of a judge, without its key. No server is asked yet. Without rows, all names of columns are
/// accepted.
fn setup(judge: &JudgeSettings, context: &RewardContext<'_>) -> Result<JudgeSetup, BuildError> {
    let wrong = |key: &str, what: String, hint: &str| context.fail(&format!("its `{key}` {what}"), hint);
    let servers = addresses(&judge.servers, context)?;
    let template = PromptTemplate::new(&judge.prompt);
    check_names("prompt", &template, context)?;
    let pattern = regex::Regex::new(&judge.pattern)
        .map_err(|error| wrong("pattern", format!("is not a regular expression: {error}"), "correct it"))?;
    let mut verdicts = Vec::with_capacity(judge.verdicts.len());
    for (word, score) in &judge.verdicts {
        let score = score.as_f64().ok_or_else(|| {
            wrong("verdicts", format!("give `{word}` no number"), "write `{yes: 1, no: 0}`")
        })?;
        verdicts.push((word.clone(), score));
    }
    Ok(JudgeSetup {
        servers,
        model: judge.model.clone(),
        key: None,
        system: judge.system.clone(),
        template,
        pattern,
        verdicts,
        min_score: judge.min_score,
        max_score: judge.max_score,
        pass_score: judge.pass_score,
        temperature: judge.temperature,
        max_tokens: judge.max_tokens,
        parameters: judge.parameters.clone(),
        timeout: judge.timeout.0,
        max_attempts: u32::try_from(judge.max_attempts).unwrap_or(u32::MAX),
        concurrency: judge.concurrency,
    })
}
