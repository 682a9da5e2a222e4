//! The reward functions of a run: tamis-env builds them, with the files and the judges that this crate has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::{Config, RewardConfig};
use tamis_data::prompt::Prompt;
use tamis_env::reward::judge::JudgeSettings;
use tamis_env::reward::{
    BuildError, Listener, NamedReward, RewardContext, RewardError, RewardFunction, RewardHost,
    RewardSettings, Rewards,
};
use tamis_rollout::http::Address;
use tamis_rollout::judge::{Judge, JudgeError, JudgeSetup, Template};
use tamis_run::durable::Disk;

use super::AssembleError;
use super::api_key::api_key;

/// The folder of a run, as rewards see it.
pub(super) struct Host<'a> {
    /// Folder for programs that tamis ships.
    pub(super) folder: &'a Path,
    pub(super) disk: &'a Disk,
}

/// The first verifier of a configuration with its name.
pub(super) fn first_verifier(list: &[RewardConfig]) -> Option<(&str, &dyn RewardSettings)> {
    let verifier = list.iter().find(|reward| reward.kind.is_verifier())?;
    Some((&verifier.name, &*verifier.kind))
}

/// Builds the reward functions; `folder` is where programs that tamis ships are written for the run,
/// `listener` hears of restarts and long waits of external functions, and `rows` are the prompts whose
/// completions will be scored.
///
/// # Errors
/// Among others a Python function that cannot be called in its style, and rows of a data source without a
/// verifier.
pub fn rewards(
    config: &Config,
    disk: &Disk,
    folder: &Path,
    listener: &Arc<dyn Listener>,
    rows: &[&[Prompt]],
) -> Result<Rewards, AssembleError> {
    let list = &config.reward;
    if list.is_empty() {
        return Err(AssembleError::setting(
            "no reward function is set",
            "add one to `reward`, such as `reward: [{kind: gsm8k}]`, or `reward: [{kind: by_source}]` for the verifier of each row's `data_source`; \
             `tamis config explain reward` lists the kinds",
        ));
    }
    let mut functions = Vec::with_capacity(list.len());
    for reward in list {
        let context = RewardContext {
            name: &reward.name,
            max_length: config.rollout.max_response_length,
            rows,
            verifier: first_verifier(list),
            listener,
            host: &Host { folder, disk },
        };
        let function = reward.kind.build(&context)?;
        functions.push(NamedReward { name: reward.name.clone(), weight: reward.weight, function });
    }
    Ok(Rewards::new(functions)?)
}

impl From<BuildError> for AssembleError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Setting { message, hint } => Self::Setting { message, hint },
            BuildError::Reward(error) => Self::Reward(error),
            BuildError::Host(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::setting(error.to_string(), "correct the reward"),
            },
        }
    }
}

/// An error of this crate, handed through the function that asked for it.
fn through(error: impl Into<AssembleError>) -> BuildError {
    BuildError::Host(Box::new(error.into()))
}

impl RewardHost for Host<'_> {
    fn install(&self, name: &str, program: &str) -> Result<PathBuf, BuildError> {
        let path = self.folder.join(name);
        self.disk.write_file(&path, program.as_bytes()).map_err(through)?;
        Ok(path)
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
        let judge = judge.map_err(|error| match error {
            JudgeError::Servers(error) => through(AssembleError::Judge(error)),
            JudgeError::Http(error) => {
                context.fail(&format!("its `servers` cannot be used: {error}"), "correct them")
            }
        })?;
        Ok(Box::new(judge.ok_or(RewardError::Interrupted)?))
    }
}

/// Settings of a judge, without its key: nothing is asked yet. Where there are no rows, names of columns are
/// taken as they are.
fn setup(judge: &JudgeSettings, context: &RewardContext<'_>) -> Result<JudgeSetup, BuildError> {
    let wrong = |key: &str, what: String, hint: &str| context.fail(&format!("its `{key}` {what}"), hint);
    let servers: Result<Vec<Address>, _> = judge.servers.iter().map(|url| Address::parse(url)).collect();
    let servers =
        servers.map_err(|error| wrong("servers", format!("cannot be used: {error}"), "correct them"))?;
    let template = Template::new(&judge.prompt);
    let known = ["prompt", "completion", "ground_truth", "data_source"];
    let mut rows = context.prompts().peekable();
    if rows.peek().is_some() {
        let columns: BTreeSet<&str> =
            rows.flat_map(|prompt| prompt.columns.keys().map(String::as_str)).chain(known).collect();
        if let Some(unknown) = template.names().find(|name| !columns.contains(name)) {
            let what = format!("names `{{{unknown}}}`, and there is nothing of that name");
            let there = columns.into_iter().collect::<Vec<_>>().join(", ");
            return Err(wrong("prompt", what, &format!("what there is: {there}")));
        }
    }
    let pattern = regex::Regex::new(&judge.pattern)
        .map_err(|error| wrong("pattern", format!("is no regular expression: {error}"), "correct it"))?;
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
