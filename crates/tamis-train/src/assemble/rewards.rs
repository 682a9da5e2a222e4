//! The reward functions of a run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tamis_config::{Config, Gsm8kMethod, OverlongForm, PythonStyle, RewardConfig, RewardKind};
use tamis_data::prompt::Prompt;
use tamis_env::reward::by_source::{BySource, Unrouted};
use tamis_env::reward::command::protocol::Introduction;
use tamis_env::reward::command::python::{self, Kind, PythonFunction};
use tamis_env::reward::command::{CommandConfig, CommandReward};
use tamis_env::reward::cosine::{Cosine, CosineSchedule};
use tamis_env::reward::exact::Exact;
use tamis_env::reward::format::Format;
use tamis_env::reward::gsm8k::{Gsm8k, Method};
use tamis_env::reward::length::Length;
use tamis_env::reward::math::Math;
use tamis_env::reward::math_dapo::MathDapo;
use tamis_env::reward::number::Number;
use tamis_env::reward::repetition::Repetition;
use tamis_env::reward::soft_overlong::{Form, SoftOverlong};
use tamis_env::reward::think_format::ThinkFormat;
use tamis_env::reward::{Listener, NamedReward, RewardError, RewardFailure, RewardFunction, Rewards};

use tamis_rollout::http::Address;
use tamis_rollout::judge::{Judge, JudgeError, JudgeSettings, Template};

use super::api_key::api_key;
use super::{AssembleError, RELATIVE};
use tamis_run::durable::Disk;

/// What reward functions are built with.
pub(super) struct Surroundings<'a> {
    /// Where programs that tamis ships are written.
    pub(super) folder: &'a Path,
    pub(super) disk: &'a Disk,
    /// Hears of what external functions keep waiting.
    pub(super) listener: &'a Arc<dyn Listener>,
    /// `rollout.max_response_length`.
    pub(super) max_length: usize,
    /// The rows that will be scored.
    pub(super) rows: &'a [&'a [Prompt]],
}

/// The schedule of the reward `cosine`; `None` of any other.
pub(super) fn cosine_schedule(kind: &RewardKind, limit: usize) -> Option<CosineSchedule> {
    let RewardKind::Cosine {
        min_value_wrong,
        max_value_wrong,
        min_value_correct,
        max_value_correct,
        max_length,
    } = kind
    else {
        return None;
    };
    Some(CosineSchedule {
        max_length: max_length.unwrap_or(limit) as u64,
        min_value_wrong: *min_value_wrong,
        max_value_wrong: *max_value_wrong,
        min_value_correct: *min_value_correct,
        max_value_correct: *max_value_correct,
    })
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
             docs/rewards.md lists the kinds",
        ));
    }
    let limit = config.rollout.max_response_length;
    let surroundings = Surroundings { folder, disk, listener, max_length: limit, rows };
    let mut functions = Vec::with_capacity(list.len());
    for reward in list {
        let function: Box<dyn RewardFunction> = match cosine_schedule(&reward.kind, limit) {
            Some(schedule) => {
                let verifier = list
                    .iter()
                    .find(|other| other.kind.is_verifier())
                    .ok_or_else(|| no_verifier(&reward.name))?;
                Box::new(Cosine::new(plain(verifier, &surroundings)?, schedule)?)
            }
            None => plain(reward, &surroundings)?,
        };
        functions.push(NamedReward { name: reward.name.clone(), weight: reward.weight, function });
    }
    Ok(Rewards::new(functions)?)
}

fn no_verifier(name: &str) -> AssembleError {
    AssembleError::setting(
        format!("reward `{name}` scores by correctness and length, and no verifier says what is correct"),
        "add a verifier before it, such as `{kind: gsm8k, weight: 0}`",
    )
}

/// `max_length` and `buffer` of `soft_overlong`, with what they are where they are null.
pub(super) fn overlong_lengths(max_length: Option<usize>, buffer: Option<usize>, limit: usize) -> (u64, u64) {
    let max_length = max_length.unwrap_or(limit) as u64;
    (max_length, buffer.map_or((max_length / 5).max(1), |buffer| buffer as u64))
}

/// A function that stands alone.
pub(super) fn plain(
    reward: &RewardConfig,
    surroundings: &Surroundings<'_>,
) -> Result<Box<dyn RewardFunction>, AssembleError> {
    let limit = surroundings.max_length;
    Ok(match &reward.kind {
        RewardKind::Exact {} => Box::new(Exact),
        RewardKind::Number {} => Box::new(Number),
        RewardKind::Gsm8k { method, format_score } => Box::new(Gsm8k {
            method: match method {
                Gsm8kMethod::Strict => Method::Strict,
                Gsm8kMethod::Flexible => Method::Flexible,
            },
            format_score: *format_score,
        }),
        RewardKind::Math {} => Box::new(Math),
        RewardKind::MathDapo {} => Box::new(MathDapo { strict_box: false }),
        RewardKind::BySource { sources } => {
            let mut own = Vec::with_capacity(sources.0.len());
            for (source, kind) in &sources.0 {
                let named = RewardConfig {
                    name: format!("{}.{source}", reward.name),
                    weight: 1.0,
                    kind: kind.clone(),
                };
                own.push((source.clone(), plain(&named, surroundings)?));
            }
            let function = BySource::new(own);
            let unrouted = function.unrouted(surroundings.rows.iter().copied().flatten());
            if !unrouted.is_empty() {
                return Err(unrouted_rows(&reward.name, &unrouted));
            }
            Box::new(function)
        }
        RewardKind::Format { pattern } => Box::new(Format::new(pattern)?),
        RewardKind::ThinkFormat {} => Box::new(ThinkFormat),
        RewardKind::Length { min_length, max_length, scale } => {
            Box::new(Length::new(*min_length as u64, max_length.unwrap_or(limit) as u64, *scale as u64)?)
        }
        RewardKind::Cosine { .. } => return Err(no_verifier(&reward.name)),
        RewardKind::Repetition { ngram_size, max_penalty } => {
            Box::new(Repetition::new(*ngram_size, *max_penalty)?)
        }
        RewardKind::SoftOverlong { form, buffer, max_length, penalty_factor } => {
            let (max_length, buffer) = overlong_lengths(*max_length, *buffer, limit);
            Box::new(SoftOverlong::new(
                max_length,
                buffer,
                *penalty_factor,
                match form {
                    OverlongForm::Bounded => Form::Paper,
                    OverlongForm::Verl => Form::Verl,
                },
            )?)
        }
        RewardKind::Command { argv, working_dir, num_processes, timeout, startup_timeout, max_restarts } => {
            if let Some(folder) = working_dir.as_ref().filter(|folder| !folder.is_dir()) {
                return Err(AssembleError::setting(
                    format!(
                        "reward `{}`: there is no folder {} to start it in",
                        reward.name,
                        folder.display()
                    ),
                    format!("set its `working_dir`; {RELATIVE}"),
                ));
            }
            let pool = pool(*num_processes, *timeout, *startup_timeout, *max_restarts);
            let config = CommandConfig { argv: argv.clone(), working_dir: working_dir.clone(), ..pool };
            external(reward, config, surroundings)?
        }
        RewardKind::Judge { .. } => judge(reward, surroundings)?,
        RewardKind::Python {
            path,
            function,
            style,
            kwargs,
            python: interpreter,
            num_processes,
            timeout,
            startup_timeout,
            max_restarts,
        } => {
            if !path.is_file() {
                return Err(AssembleError::setting(
                    format!(
                        "reward `{}` is a Python file that is not there: {}",
                        reward.name,
                        path.display()
                    ),
                    format!("set its `path`; {RELATIVE}"),
                ));
            }
            let function = PythonFunction {
                interpreter: interpreter.display().to_string(),
                path: path.clone(),
                name: function.clone(),
                kind: style.map(|style| match style {
                    PythonStyle::Verl => Kind::Verl,
                    PythonStyle::Trl => Kind::Trl,
                    PythonStyle::EasyR1 => Kind::EasyR1,
                    PythonStyle::EasyR1Sequential => Kind::EasyR1Sequential,
                }),
                kwargs: kwargs.0.clone(),
            };
            let program = surroundings.folder.join(python::FILE);
            surroundings.disk.write_file(&program, python::PROGRAM.as_bytes())?;
            let argv = function.command_line(&program);
            let pool = pool(*num_processes, *timeout, *startup_timeout, *max_restarts);
            let command = external(reward, CommandConfig { argv, ..pool }, surroundings)?;
            introduce(reward, &command, *style, surroundings)?;
            command
        }
    })
}

/// A language model that scores, once it answers.
fn judge(
    reward: &RewardConfig,
    surroundings: &Surroundings<'_>,
) -> Result<Box<dyn RewardFunction>, AssembleError> {
    let RewardKind::Judge { api_key_env, startup_timeout, .. } = &reward.kind else {
        return Err(no_verifier(&reward.name));
    };
    let key = api_key(&format!("reward `{}`: ", reward.name), None, api_key_env.as_deref())?;
    let settings = JudgeSettings { key, ..judge_settings(reward, surroundings)? };
    let listener = Arc::clone(surroundings.listener);
    let judge = Judge::connect(settings, *startup_timeout, &reward.name, listener);
    let judge = judge.map_err(|error| match error {
        JudgeError::Servers(error) => AssembleError::Judge(error),
        JudgeError::Http(error) => {
            let message = format!("reward `{}`: its `servers` cannot be used: {error}", reward.name);
            AssembleError::setting(message, "correct them")
        }
    })?;
    Ok(Box::new(judge.ok_or(RewardError::Interrupted)?))
}

/// What a judge is asked and how, without a key: nothing is asked yet. Where there are no rows, names of
/// columns are taken as they are.
pub(super) fn judge_settings(
    reward: &RewardConfig,
    surroundings: &Surroundings<'_>,
) -> Result<JudgeSettings, AssembleError> {
    let RewardKind::Judge {
        servers,
        model,
        prompt,
        system,
        pattern,
        verdicts,
        min_score,
        max_score,
        pass_score,
        temperature,
        max_tokens,
        parameters,
        timeout,
        max_attempts,
        concurrency,
        ..
    } = &reward.kind
    else {
        return Err(no_verifier(&reward.name));
    };
    let wrong = |key: &str, what: String, hint: &str| {
        AssembleError::setting(format!("reward `{}`: its `{key}` {what}", reward.name), hint)
    };
    let addresses: Result<Vec<Address>, _> = servers.iter().map(|url| Address::parse(url)).collect();
    let addresses =
        addresses.map_err(|error| wrong("servers", format!("cannot be used: {error}"), "correct them"))?;
    let template = Template::new(prompt);
    let known = ["prompt", "completion", "ground_truth", "data_source"];
    let mut rows = surroundings.rows.iter().copied().flatten().peekable();
    if rows.peek().is_some() {
        let columns: BTreeSet<&str> =
            rows.flat_map(|prompt| prompt.columns.keys().map(String::as_str)).chain(known).collect();
        if let Some(unknown) = template.names().find(|name| !columns.contains(name)) {
            let what = format!("names `{{{unknown}}}`, and there is nothing of that name");
            let there = columns.into_iter().collect::<Vec<_>>().join(", ");
            return Err(wrong("prompt", what, &format!("what there is: {there}")));
        }
    }
    let pattern = regex::Regex::new(pattern)
        .map_err(|error| wrong("pattern", format!("is no regular expression: {error}"), "correct it"))?;
    let mut scores = Vec::with_capacity(verdicts.0.len());
    for (word, score) in &verdicts.0 {
        let score = score.as_f64().ok_or_else(|| {
            wrong("verdicts", format!("give `{word}` no number"), "write `{yes: 1, no: 0}`")
        })?;
        scores.push((word.clone(), score));
    }
    Ok(JudgeSettings {
        servers: addresses,
        model: model.clone(),
        key: None,
        system: system.clone(),
        template,
        pattern,
        verdicts: scores,
        min_score: *min_score,
        max_score: *max_score,
        pass_score: *pass_score,
        temperature: *temperature,
        max_tokens: *max_tokens,
        parameters: parameters.0.clone(),
        timeout: *timeout,
        max_attempts: u32::try_from(*max_attempts).unwrap_or(u32::MAX),
        concurrency: *concurrency,
    })
}

/// Refuses a Python function that cannot be called in its style, and says which style was taken where none
/// was named.
fn introduce(
    reward: &RewardConfig,
    command: &CommandReward,
    style: Option<PythonStyle>,
    surroundings: &Surroundings<'_>,
) -> Result<(), AssembleError> {
    let rows = || surroundings.rows.iter().copied().flatten();
    let columns: BTreeSet<&str> =
        rows().flat_map(|prompt| prompt.columns.keys().map(String::as_str)).collect();
    let name = &reward.name;
    let introduction = match command.introduce(rows().next().is_some().then_some(&columns)) {
        Ok(introduction) => introduction,
        Err(RewardFailure::Interrupted) => return Err(RewardError::Interrupted.into()),
        Err(failure) => {
            return Err(AssembleError::setting(
                format!("reward `{name}` cannot be used: {failure}"),
                "its file is imported by `python` (the interpreter) when a run begins, and must end without an error by itself",
            ));
        }
    };
    let Introduction { style: taken, fits, signature, problem } = introduction;
    let Some(problem) = problem else {
        if style.is_none() && taken != PythonStyle::Verl.as_str() {
            surroundings.listener.say(&format!(
                "reward `{name}`: {signature} is called as `style: {taken}`, the only style that its parameters fit"
            ));
        }
        return Ok(());
    };
    let chosen = match style {
        Some(_) => "",
        None if taken == PythonStyle::Verl.as_str() => ", which is taken where no other fits,",
        None => ", which its parameters suggest,",
    };
    let others: Vec<String> =
        fits.iter().filter(|fit| **fit != taken).map(|fit| format!("`style: {fit}`")).collect();
    let hint = if fits.contains(&taken) {
        "give the rows that column, the parameter a default, or its value in `kwargs`".to_owned()
    } else if others.is_empty() {
        "its parameters fit none of the styles verl, trl and easyr1; docs/rewards.md shows how each calls a function".to_owned()
    } else {
        format!("its parameters fit {}: write that", others.join(" and "))
    };
    Err(AssembleError::setting(
        format!(
            "reward `{name}`: {signature} cannot be called as `style: {taken}`{chosen} calls it: {problem}"
        ),
        hint,
    ))
}

/// Data sources without a verifier, the first of them by name.
fn unrouted_rows(name: &str, unrouted: &[Unrouted]) -> AssembleError {
    const SHOWN: usize = 10;
    let mut message = format!("reward `{name}` has no verifier for some of the rows:");
    for source in unrouted.iter().take(SHOWN) {
        let _ = write!(message, "\n  {source}");
    }
    if unrouted.len() > SHOWN {
        let _ = write!(message, "\n  and {} more data sources", unrouted.len() - SHOWN);
    }
    let source = unrouted.iter().find(|unrouted| !unrouted.source.is_empty());
    let source = source.map_or("\"*\"", |unrouted| &unrouted.source);
    AssembleError::setting(
        message,
        format!(
            "name one in its `sources`, such as `sources: {{{source}: {{kind: gsm8k, method: flexible}}}}`; `\"*\"` there is for sources that \
             nobody names and for rows without one (the column is data.columns.data_source)"
        ),
    )
}

/// How the processes of an external function are kept.
fn pool(
    num_processes: usize,
    timeout: Duration,
    startup_timeout: Duration,
    max_restarts: usize,
) -> CommandConfig {
    CommandConfig {
        num_processes,
        timeout,
        startup_timeout,
        max_restarts: u32::try_from(max_restarts).unwrap_or(u32::MAX),
        ..CommandConfig::default()
    }
}

/// A function whose processes are started, heard under its name.
fn external(
    reward: &RewardConfig,
    config: CommandConfig,
    surroundings: &Surroundings<'_>,
) -> Result<Box<CommandReward>, AssembleError> {
    let command = CommandReward::new(config, false).map_err(|error| match error {
        RewardError::Start { failure } => AssembleError::setting(
            format!("reward `{}` {failure}", reward.name),
            "is the program installed and on PATH? A relative path is taken from `working_dir`, the folder of the configuration file unless set",
        ),
        error => error.into(),
    })?;
    Ok(Box::new(command.heard_by(&reward.name, Arc::clone(surroundings.listener))))
}
