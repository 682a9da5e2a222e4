//! `tamis eval`: measures one or two checkpoints on validation prompts.
//!
//! The configuration is that of the checkpoint's run with the arguments on top, or only the arguments.
//! [`tamis_train::evaluate`] computes the figures; this module finds checkpoints, checks the output before
//! anything is generated, compares two of them prompt by prompt, and prints a table or JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tamis_cluster::Cluster;
use tamis_config::locate::Extent;
use tamis_config::{BackendKind, Config, DataSource, Diagnostic, Loaded, ModelSource};
use tamis_core::figure::{agreed, counted, fixed, percent};
use tamis_data::rollouts::RolloutRow;
use tamis_data::samples::{format_of, write_samples};
use tamis_import::load_for_evaluation;
use tamis_rollout::Record;
use tamis_run::directory::{held_by, keep_evaluation, step_of_checkpoint};
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;
use tamis_run::metrics::about_acc;
use tamis_train::assemble::check::{self, CheckPurpose, Placeholders};
use tamis_train::assemble::places::Places;
use tamis_train::error::AssembleError;
use tamis_train::error::RunError;
use tamis_train::evaluate::{EvaluateError, EvaluationReport, evaluate, fit_lengths};
use tamis_train::interrupt::{Halt, Interrupt, Interrupted};
use tamis_train::measure::validation::Shown;
use tamis_train::measure::validation_metrics::{NamedFigure, SourceResult};

use super::eval_two::{
    compare, find_second, gains, note_of_settings, note_of_training, refuse_twice, take_second,
};
use super::train::{exit_code, listen, shorten};
use super::{Needed, follow, new_errors, new_notes, notes, print, show, source_and_layers, with_findings};
use crate::arguments::EvalArguments;
use crate::failure::{FAILED, Failure, INTERRUPTED, UNREACHABLE, USAGE};

pub(crate) fn run(arguments: &EvalArguments) -> Result<u8, Failure> {
    let interrupt = Interrupt::new();
    listen(&interrupt, "no result is written; Ctrl-C again ends at once")?;
    let (source, mut layers) =
        source_and_layers(arguments.source.as_ref(), &arguments.layers, Needed::Checkpoint)?;
    let second = take_second(&mut layers)?;
    let (files, overrides) = layers.split();
    let on_hub = name_on_hub(&source);
    let (checkpoint, mut run_config) = match &on_hub {
        Some(name) => (PathBuf::from(name.to_string()), None),
        None => find(&source)?,
    };
    let second = second.map(|second| find_second(&second)).transpose()?;
    let mut of_others = None;
    if let Some((other, config)) = &second {
        refuse_twice(&checkpoint, other, "eval")?;
        // Both are measured in the same way.
        match run_config {
            Some(_) => of_others.clone_from(config),
            None => run_config.clone_from(config),
        }
    }
    if run_config.is_none() && files.is_empty() && overrides.is_empty() {
        let source = source.display();
        return Err(Failure::new(
            USAGE,
            format!(
                "error: {source} is a checkpoint outside a run: no configuration names its prompts and rewards\n  \
                 hint: name data and reward: `tamis eval {source} data.val=test.jsonl 'reward=[{{kind: \
                 math}}]'`, or a configuration that has them"
            ),
        ));
    }
    check_output(arguments, second.is_some())?;
    let names_prompts = overrides.iter().any(|one| one.starts_with("data.val=")) && run_config.is_some();
    let overrides: Vec<String> = std::iter::once(format!("model.path={}", checkpoint.display()))
        .chain(["model.init=null".to_owned()])
        // Prompts that the user names come before those that the run held out from its training data.
        .chain(names_prompts.then(|| "data.val_fraction=null".to_owned()))
        .chain(overrides)
        .collect();
    // Warnings about a run's own configuration were printed when the run began.
    let run_config = run_config.as_deref();
    let own = run_config.and_then(|own| load_for_evaluation(Some(own), &[], &[]).ok());
    let mut known = own.as_ref().map_or_else(Vec::new, |own| own.warnings.clone());
    let mut loaded =
        load_for_evaluation(run_config, &files, &overrides).map_err(|errors| new_errors(&known, errors))?;
    if let (Some(own), Some(run)) = (&own, run_config.and_then(Path::parent)) {
        check_servers(run, &own.config, &loaded.config)?;
        check_held_out(&own.config, &loaded.config)?;
    }
    let other = of_others.as_deref().and_then(|other| {
        Some((other.parent()?.to_owned(), load_for_evaluation(Some(other), &[], &[]).ok()?.config))
    });
    if let Some((run, other)) = &other {
        check_servers(run, other, &loaded.config)?;
    }
    let progress = Console::lines_on_stderr();
    for note in own.as_ref().map_or_else(|| notes(&loaded), |own| new_notes(own, &loaded)) {
        progress.say(&note);
    }
    known.extend(loaded.warnings.iter().cloned());
    let refuse = {
        let known = known.clone();
        move |errors| new_errors(&known, errors)
    };
    let follow_names = move || {
        follow(&mut loaded, CheckPurpose::Evaluate, Extent::Files, &refuse).map(|lines| (loaded, lines))
    };
    let interrupted = |interrupted: Interrupted| Failure::of(INTERRUPTED, &interrupted, None);
    let (mut loaded, lines) = interrupt.or_abandon(follow_names).map_err(interrupted)??;
    for line in lines {
        progress.say(&line);
    }
    // The name with the commit that is measured.
    let checkpoint = match (&on_hub, &loaded.config.model.path) {
        (Some(_), Some(model)) => PathBuf::from(model.to_string()),
        _ => checkpoint,
    };
    let lengths = ["data.max_prompt_length", "rollout.max_response_length"];
    if run_config.is_none()
        && lengths.iter().all(|key| loaded.place(key).is_none())
        && let Some(note) = fit_lengths(&mut loaded.config)
    {
        progress.say(&note);
    }
    let notes = match (own, run_config.and_then(Path::parent)) {
        (Some(own), Some(run)) => {
            let (run, measured) = (run.to_owned(), loaded.config.clone());
            let find = move || notes_of_runs((&run, &own.config), other.as_ref(), &measured);
            interrupt.or_abandon(find).map_err(interrupted)??
        }
        _ => Vec::new(),
    };
    for note in &notes {
        progress.warn(note);
    }
    let mut measured = vec![(checkpoint, loaded.clone())];
    if let Some((checkpoint, _)) = second {
        loaded.config.model.path = Some(ModelSource::Folder(checkpoint.clone()));
        measured.push((checkpoint, loaded));
    }
    let mut checked = Vec::new();
    for (checkpoint, loaded) in measured {
        let check = move || {
            let found = check::all(&loaded, CheckPurpose::Evaluate, Placeholders::Refused);
            with_findings(loaded, found)
        };
        let loaded = interrupt.or_abandon(check).map_err(interrupted)?;
        let loaded = loaded.map_err(|errors| new_errors(&known, errors))?;
        let is_new = |found: &&Diagnostic| !known.iter().any(|known| known.problem == found.problem);
        let new: Vec<Diagnostic> = loaded.warnings.iter().filter(is_new).cloned().collect();
        for warning in &new {
            progress.say(&warning.to_string());
        }
        known.extend(new);
        checked.push((checkpoint, loaded));
    }
    let keeps_samples = arguments.samples.is_some();
    let mut evaluations = Vec::new();
    for (checkpoint, loaded) in checked {
        let evaluation = measure(&loaded, &progress, &interrupt, keeps_samples)?;
        let json = as_json(&checkpoint, &loaded.config, &evaluation)?;
        evaluations.push(Evaluated { checkpoint, config: loaded.config, evaluation, json });
    }
    let printed = show_all(&evaluations, &notes, arguments.json);
    for one in evaluations {
        keep(one, arguments, &progress)?;
    }
    printed.map(|()| 0)
}

/// What the runs of the checkpoints would measure differently, and what is in the training data of each.
fn notes_of_runs(
    first: (&Path, &Config),
    other: Option<&(PathBuf, Config)>,
    measured: &Config,
) -> Result<Vec<String>, Failure> {
    let of_settings = other.and_then(|(run, config)| note_of_settings([first, (run, config)], measured));
    let mut notes: Vec<String> = of_settings.into_iter().collect();
    // A run's configuration names data on a hub without the commit, which is not fetched for a note.
    if other.is_some() || first.1.data.train.0.iter().all(DataSource::is_local) {
        notes.extend(note_of_training(first, first.0, measured)?);
    }
    if let Some((run, config)) = other {
        notes.extend(note_of_training((run, config), first.0, measured)?);
    }
    Ok(notes)
}

/// A checkpoint that was measured.
pub(super) struct Evaluated {
    pub(super) checkpoint: PathBuf,
    config: Config,
    pub(super) evaluation: EvaluationReport,
    json: serde_json::Value,
}

fn measure(
    loaded: &Loaded,
    progress: &Console,
    interrupt: &Interrupt,
    keeps_samples: bool,
) -> Result<EvaluationReport, Failure> {
    let places = Places::of(loaded);
    evaluate(&loaded.config, &places, progress, &*Cluster::make(), interrupt, keeps_samples).map_err(|halt| {
        let error = match halt {
            Halt::Interrupted => return Failure::of(INTERRUPTED, &Interrupted, None),
            Halt::Failed(error) => error,
        };
        let code = match &error {
            // A damaged file is no mistake in the configuration.
            EvaluateError::Assemble(AssembleError::Checksum(_)) => FAILED,
            EvaluateError::Assemble(AssembleError::Judge(_)) => UNREACHABLE,
            EvaluateError::Assemble(_) | EvaluateError::NoPrompts => USAGE,
            EvaluateError::Servers { error, .. } => exit_code(error),
            _ => FAILED,
        };
        Failure::of(code, &error, error.hint())
    })
}

/// Prints the results; for two also by how much the second is better.
fn show_all(evaluations: &[Evaluated], notes: &[String], is_json: bool) -> Result<(), Failure> {
    let pair = match evaluations {
        [one, other] => Some((one, other)),
        _ => None,
    };
    let gains = pair.and_then(|(one, other)| gains(&one.evaluation, &other.evaluation));
    if is_json {
        let json = match pair {
            None => evaluations.iter().map(|one| one.json.clone()).next().unwrap_or_default(),
            Some((one, other)) => serde_json::json!({
                "evaluations": [one.json, other.json],
                "difference": gains.map(|gains| serde_json::json!({
                    "num_prompts": gains.summary.count,
                    "num_changed": gains.num_changed,
                    "mean": gains.summary.mean,
                    "standard_error": gains.summary.standard_error(),
                })),
                "notes": notes,
            }),
        };
        return print(&as_text_of_json(&json)?);
    }
    let mut text = String::new();
    for (place, one) in evaluations.iter().enumerate() {
        let gap = if place > 0 { "\n" } else { "" };
        let _ = write!(text, "{gap}{}", as_text(&one.checkpoint, &one.config, &one.evaluation));
    }
    if let Some((one, other)) = pair {
        text.push_str(&compare(one, other, gains, notes));
    }
    show(&text)
}

/// Writes the samples and keeps the result in the run of the checkpoint.
fn keep(evaluated: Evaluated, arguments: &EvalArguments, progress: &Console) -> Result<(), Failure> {
    let Evaluated { checkpoint, config, mut evaluation, json } = evaluated;
    let nothing = why_nothing(&evaluation);
    if let Some(step) = step_of_checkpoint(&checkpoint) {
        evaluation.all_samples.iter_mut().for_each(|sample| sample.step = step);
    }
    let samples: Vec<RolloutRow<'_>> = evaluation.all_samples.iter().flat_map(Record::rows).collect();
    if let Some(path) = arguments.samples.as_ref().filter(|_| !samples.is_empty()) {
        write_samples(path, &samples).map_err(|error| Failure::of(FAILED, &error, None))?;
        progress.say(&format!("wrote {} to {}", counted(samples.len(), "sample"), path.display()));
    }
    if let Some(reason) = nothing {
        return Err(Failure::new(
            FAILED,
            format!("error: nothing was evaluated, and nothing is kept: {reason}"),
        ));
    }
    // The result of a server's own model does not belong to the checkpoint.
    if config.rollout.backend == BackendKind::OpenAi {
        return Ok(());
    }
    match keep_evaluation(&Disk::new(), &checkpoint, as_text_of_json(&json)?.as_bytes()) {
        Ok(Some(path)) => progress.say(&format!("kept in {}", path.display())),
        Ok(None) => {}
        // The result has been printed, so a run that cannot be written to loses nothing.
        Err(error) => progress.warn(&format!("not kept in the run: failed to {error}: {}", error.cause)),
    }
    Ok(())
}

/// Why there is no figure at all; `None` if there is one.
fn why_nothing(evaluation: &EvaluationReport) -> Option<String> {
    let EvaluationReport { num_prompts, num_failed, .. } = evaluation;
    if evaluation.sources.iter().any(|source| !source.figures.is_empty()) {
        return None;
    }
    if num_failed < num_prompts {
        return Some("no reward function answered any completion".to_owned());
    }
    let reason = evaluation.first_failure.as_deref().unwrap_or("there were none");
    Some(format!("no prompt could be generated from: {reason}"))
}

/// Refuses to use the servers of a run that is sampling at them: they would get the weights of the
/// checkpoint.
fn check_servers(run: &Path, own: &Config, config: &Config) -> Result<(), Failure> {
    let publishes = matches!(config.rollout.backend, BackendKind::Vllm | BackendKind::Sglang);
    let same = |one: &str, other: &str| one.trim_end_matches('/') == other.trim_end_matches('/');
    let is_of_run = |server: &&String| own.rollout.servers.iter().any(|other| same(server, other));
    let Some(server) = config.rollout.servers.iter().filter(|_| publishes).find(is_of_run) else {
        return Ok(());
    };
    let Some(holder) = held_by(run) else { return Ok(()) };
    Err(Failure::new(
        USAGE,
        format!(
            "error: rollout.servers: the run `{}` samples at {server} now ({holder} holds it), but an evaluation would give that server \
            the weights of the checkpoint\n  \
             hint: name other servers (`rollout.servers=[http://HOST:PORT]`), sample in this process \
             (`rollout.backend=native`), or wait until the run has ended",
            run.display()
        ),
    ))
}

/// Refuses to hold out other prompts than the run did: it has trained on some of them.
fn check_held_out(own: &Config, config: &Config) -> Result<(), Failure> {
    let is_same = own.data.val_fraction == config.data.val_fraction && own.data.train == config.data.train;
    if !config.holds_out() || !own.holds_out() || is_same {
        return Ok(());
    }
    Err(Failure::new(
        USAGE,
        "error: data.val_fraction: with another share or other training data, the evaluation would include prompts that the run has \
        trained on\n  hint: leave both as they were, or name other prompts with `data.val=FILE`",
    ))
}

/// Refuses a file of samples that could not be written at the end, before anything is generated.
fn check_output(arguments: &EvalArguments, has_second: bool) -> Result<(), Failure> {
    let Some(path) = &arguments.samples else {
        if arguments.overwrite {
            return Err(Failure::new(
                USAGE,
                "error: --overwrite without a file to replace\n  hint: name one with --samples",
            ));
        }
        return Ok(());
    };
    if has_second {
        return Err(Failure::new(
            USAGE,
            "error: --samples names one file, and there are two checkpoints\n  hint: evaluate them one by one, or leave --samples out",
        ));
    }
    let hint = "name it `samples.jsonl` or `samples.parquet`, say".to_owned();
    format_of(path).map_err(|error| Failure::of(USAGE, &error, Some(hint)))?;
    if path.exists() && !arguments.overwrite {
        return Err(Failure::new(
            USAGE,
            format!("error: {} exists already\n  hint: `--overwrite` replaces it", path.display()),
        ));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(Failure::new(
            USAGE,
            format!("error: there is no folder {} for the samples\n  hint: make it first", folder.display()),
        ));
    }
    Ok(())
}

/// All results, with the conditions under which they were measured.
fn as_json(
    checkpoint: &Path,
    config: &Config,
    evaluation: &EvaluationReport,
) -> Result<serde_json::Value, Failure> {
    let found = serde_json::to_value(evaluation).map_err(|error| unwritten(&error))?;
    let mut result = serde_json::Map::new();
    result.insert("checkpoint".to_owned(), checkpoint.display().to_string().into());
    let settings = serde_json::json!({
        "run": {"seed": config.run.seed},
        "data": tamis_config::json_of(&config.data),
        "rollout": {
            "backend": config.rollout.backend.as_str(),
            "servers": config.rollout.servers,
            "server_model": config.rollout.server_model,
            "max_response_length": config.rollout.max_response_length,
            "stop": config.rollout.stop,
        },
        "reward": tamis_config::json_of(&config.reward),
        "validate": tamis_config::json_of(&config.validate),
    });
    result.insert("settings".to_owned(), settings);
    if let serde_json::Value::Object(found) = found {
        result.extend(found);
    }
    Ok(result.into())
}

fn as_text_of_json(json: &serde_json::Value) -> Result<String, Failure> {
    Ok(format!("{}\n", serde_json::to_string_pretty(json).map_err(|error| unwritten(&error))?))
}

fn unwritten(error: &serde_json::Error) -> Failure {
    Failure::new(FAILED, format!("error: failed to write the result: {error}"))
}

/// One table for each data source, and some completions.
fn as_text(checkpoint: &Path, config: &Config, evaluation: &EvaluationReport) -> String {
    let validate = &config.validate;
    let how = if validate.temperature == 0.0 {
        "greedy".to_owned()
    } else {
        format!("temperature {}, top-p {}", validate.temperature, validate.top_p)
    };
    let servers = &config.rollout.servers;
    let whose = match config.rollout.backend {
        BackendKind::Native | BackendKind::Learner => format!("checkpoint {}", checkpoint.display()),
        BackendKind::OpenAi => format!(
            "{} at {}; tokenizer and template of {}",
            config
                .rollout
                .server_model
                .as_deref()
                .map_or_else(|| "their model".to_owned(), |name| format!("model {name}")),
            servers.join(", "),
            checkpoint.display()
        ),
        BackendKind::Vllm | BackendKind::Sglang if servers.is_empty() => {
            format!("checkpoint {}, sampled at servers of its own", checkpoint.display())
        }
        BackendKind::Vllm | BackendKind::Sglang => {
            format!("checkpoint {}, sampled at {}", checkpoint.display(), servers.join(", "))
        }
    };
    let mut text = format!(
        "{whose}\n{}, {} each, {how}\n",
        counted(evaluation.num_prompts, "prompt"),
        counted(evaluation.num_samples, "sample")
    );
    if evaluation.num_failed > 0 {
        let (count, reason) = (evaluation.num_failed, evaluation.first_failure.as_deref());
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let _ = writeln!(text, "{} could not be generated from{reason}", counted(count, "prompt"));
    }
    for source in &evaluation.sources {
        table(source, &mut text);
    }
    for sample in &evaluation.samples {
        show_sample(sample, &mut text);
    }
    text
}

/// The figures of a data source: a line for each figure, a column for each score. Scores that agree in every
/// figure share a column.
fn table(source: &SourceResult, text: &mut String) {
    let mut figures: Vec<&str> = Vec::new();
    let mut scores: Vec<&str> = Vec::new();
    for figure in &source.figures {
        for (names, name) in [(&mut figures, figure.name.as_str()), (&mut scores, figure.score.as_str())] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let figure = |score: &str, name: &str| source.figures.iter().find(|f| f.score == score && f.name == name);
    let value = |score: &str, name: &str| figure(score, name).map(|figure| figure.value);
    // A figure that only one score has (pass@k of `acc`) does not separate it from the others.
    let agree = |one: &str, other: &str| {
        figures.iter().all(|name| match (value(one, name), value(other, name)) {
            (Some(one), Some(other)) => one.to_bits() == other.to_bits(),
            _ => true,
        })
    };
    let mut columns: Vec<Vec<&str>> = Vec::new();
    for &score in &scores {
        match columns.iter_mut().find(|column| column.iter().all(|other| agree(score, other))) {
            Some(column) => column.push(score),
            None => columns.push(vec![score]),
        }
    }
    let _ = writeln!(
        text,
        "\n{} ({}, {}{})",
        source.source,
        counted(source.num_prompts, "prompt"),
        counted(source.num_completions, "completion"),
        if source.num_failed > 0 { format!("; {} failed", source.num_failed) } else { String::new() }
    );
    if figures.is_empty() {
        text.push_str("  nothing was scored: no reward function answered any completion\n");
    }
    let headings: Vec<String> = columns.iter().map(|column| column.join(", ")).collect();
    let has_errors = source.figures.iter().any(|figure| figure.standard_error.is_some());
    let narrowest = if has_errors { 15 } else { 10 };
    let width = |heading: &String| heading.chars().count().max(narrowest);
    if !figures.is_empty() {
        let _ = write!(text, "  {:<18}", "");
        for heading in &headings {
            let _ = write!(text, "  {heading:>narrowest$}");
        }
        text.push('\n');
    }
    for name in &figures {
        let _ = write!(text, "  {:<18}", name.trim_end_matches("/mean"));
        for (column, heading) in columns.iter().zip(&headings) {
            let cell = column.iter().find_map(|score| figure(score, name)).map(|figure| {
                let error = figure.standard_error.map(|error| format!(" ± {}", fixed(error, 4)));
                fixed(figure.value, 4) + &error.unwrap_or_default()
            });
            let cell = cell.unwrap_or_else(|| "-".to_owned());
            let _ = write!(text, "  {cell:>width$}", width = width(heading));
        }
        text.push('\n');
    }
    // A figure of all scores alike is in the first column.
    let unscored = (source.num_unscored > 0).then(|| source.num_unscored.to_string());
    let length = source.mean_length.map(|length| fixed(length, 1));
    let truncated = source.truncated_share.map(percent);
    for (name, cell) in [("unscored", unscored), ("mean tokens", length), ("cut at the limit", truncated)] {
        if let Some(cell) = cell {
            let _ =
                writeln!(text, "  {name:<18}  {cell:>width$}", width = headings.first().map_or(10, width));
        }
    }
    text.push_str(&legend(source));
}

/// Notes on the figures: their errors, and what `acc` and `pass` count.
fn legend(source: &SourceResult) -> String {
    let mut text = String::new();
    if source.figures.iter().any(|figure| figure.standard_error.is_some()) {
        text.push_str("  ± is one standard error over the prompts\n");
    }
    let of = |statistic: &str| {
        let is_it = |figure: &&NamedFigure| figure.score == "acc" && figure.name.starts_with(statistic);
        source.figures.iter().find(is_it)
    };
    if let (Some(mean), Some(pass)) = (of("mean@"), of("pass@1")) {
        let _ = writeln!(text, "  {}", about_acc((mean.value - pass.value).abs() > 1e-9));
    }
    text
}

fn show_sample(sample: &Shown, text: &mut String) {
    let mark = match sample.is_correct {
        Some(true) => " (right)",
        Some(false) => " (wrong)",
        None => "",
    };
    if !sample.turns.is_empty() {
        let _ = writeln!(text, "\n  {}{mark}", sample.question);
        show_turns(sample, text);
        return;
    }
    let _ = write!(
        text,
        "\n  {}\n    answer  {}{mark}\n    gold    {}\n",
        sample.question,
        shorten(&sample.completion),
        shorten(&sample.ground_truth)
    );
}

/// An episode turn by turn: each answer with its reward, and below it the text that was shown next,
/// unchanged.
fn show_turns(sample: &Shown, text: &mut String) {
    for (number, turn) in sample.turns.iter().enumerate() {
        let reward = fixed(turn.reward, 2);
        let _ = writeln!(text, "    turn {:<3} {} (reward {reward})", number + 1, shorten(&turn.text));
        for line in turn.observation.trim_matches('\n').lines() {
            let _ = writeln!(text, "             {}", shorten(line));
        }
    }
}

/// The name of a model on a hub, if a source is one. It is not if it is a path, even the misspelt one of a
/// run.
pub(crate) fn name_on_hub(source: &Path) -> Option<ModelSource> {
    match ModelSource::parse(source.to_str()?) {
        // `runs` holds the runs of this machine, even if it is not there yet.
        ModelSource::Hub { .. } if source.starts_with("runs") => None,
        model @ ModelSource::Hub { .. } => {
            let near = tamis_file::nearest(source);
            let is_model =
                |near: PathBuf| near.join("checkpoints").is_dir() || near.join("config.json").is_file();
            // `runs/mine` is no owner's model if there is a folder `runs`.
            let has_folder = source.parent().is_some_and(Path::is_dir);
            Some(model).filter(|_| !has_folder && !near.is_some_and(is_model))
        }
        ModelSource::Folder(_) => None,
    }
}

/// The checkpoint folder, and the configuration of the run that it belongs to.
pub(crate) fn find(source: &Path) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    if source.join("checkpoints").is_dir() {
        let last = tamis_run::directory::last_checkpoint(source).map_err(|error| {
            let error = RunError::from(error);
            Failure::of(FAILED, &error, error.hint())
        })?;
        let Some(last) = last else {
            let run = source.display();
            let printed = if tamis_run::directory::had_checkpoint(source) {
                format!(
                    "error: {run} has no checkpoint left\n  hint: put its checkpoints back into {run}/checkpoints"
                )
            } else {
                format!(
                    "error: {run} has no checkpoint yet\n  hint: continue it with `tamis train --resume {run}`"
                )
            };
            return Err(Failure::new(FAILED, printed));
        };
        return Ok((last, Some(source.join("config.yaml"))));
    }
    if source.join("config.json").is_file() {
        // The user may be inside the run's folder, too.
        let folder = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
        let run = folder.parent().and_then(Path::parent).map(|run| run.join("config.yaml"));
        return Ok((source.to_owned(), run.filter(|config| config.is_file())));
    }
    let shown = &*source.to_string_lossy();
    let hint = "a run directory holds `checkpoints/`, a checkpoint `config.json`";
    let text = if source.exists() {
        format!("error: {shown} is neither a run directory nor a checkpoint folder\n  hint: {hint}")
    } else {
        // A misspelt checkpoint means a checkpoint, not its run.
        let checkpoint = tamis_file::nearest(source).filter(|near| near.join("config.json").is_file());
        let checkpoint = checkpoint.map(|near| format!("did you mean `{}`?", near.display()));
        let near = checkpoint.or_else(|| tamis_run::directory::suggest(source)).or_else(list_runs);
        let near = near.unwrap_or_else(|| hint.to_owned());
        let near = match ModelSource::parse(shown) {
            ModelSource::Hub { .. } => format!("{near} (a model of that name on a hub is `hf://{shown}`)"),
            ModelSource::Folder(_) => near,
        };
        format!("error: there is no folder {shown}\n  hint: {near}")
    };
    Err(Failure::new(USAGE, text))
}

/// The runs that are here, for a name that is like none of them.
fn list_runs() -> Option<String> {
    const MOST: usize = 5;
    let runs = tamis_run::directory::in_runs();
    let shown: Vec<String> = runs.iter().take(MOST).map(|run| format!("`{}`", run.display())).collect();
    let more = if runs.len() > MOST { ", ..." } else { "" };
    let are = agreed(runs.len(), "only run here is", "runs here are");
    (!shown.is_empty()).then(|| format!("the {are} {}{more}", shown.join(", ")))
}
