//! `tamis eval`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tamis_config::load;
use tamis_core::figure::fixed;
use tamis_train::assemble::AssembleError;
use tamis_train::evaluate::{EvaluateError, evaluate};
use tamis_train::progress::Progress;
use tamis_train::session::RunError;

use super::{new_errors, new_notes, notes, print};
use crate::arguments::Eval;
use crate::failure::{FAILED, Failure, USAGE};

pub(crate) fn run(arguments: &Eval) -> Result<u8, Failure> {
    let (mut files, overrides) = arguments.layers.split();
    let (checkpoint, own) = find(&arguments.source)?;
    let belongs_to_run = own.is_some();
    if let Some(own) = own {
        files.insert(0, own);
    } else if files.is_empty() {
        return Err(Failure::told(
            USAGE,
            format!(
                "error: {} is a checkpoint outside a run, so nothing says what to evaluate it on\n  hint: name a configuration with data and reward: `tamis eval {} my.yaml`",
                arguments.source.display(),
                arguments.source.display()
            ),
        ));
    }
    let overrides: Vec<String> = std::iter::once(format!("model.path={}", checkpoint.display()))
        .chain(["model.init=null".to_owned()])
        .chain(overrides)
        .collect();
    // A run's own configuration was talked about when the run began.
    let own =
        files.first().filter(|_| belongs_to_run).and_then(|own| load(std::slice::from_ref(own), &[]).ok());
    let loaded = load(&files, &overrides).map_err(|errors| new_errors(own.as_ref(), errors))?;
    let progress = Progress::lines_on_stderr();
    for note in own.as_ref().map_or_else(|| notes(&loaded), |own| new_notes(own, &loaded)) {
        progress.say(&note);
    }
    let evaluation = evaluate(&loaded.config, &progress).map_err(|error| {
        let (code, hint) = match &error {
            // A damaged file is no mistake in the configuration.
            EvaluateError::Assemble(error @ AssembleError::Checksum(_)) => (FAILED, error.hint()),
            EvaluateError::Assemble(error) => (USAGE, error.hint()),
            EvaluateError::NoPrompts => (USAGE, None),
            _ => (FAILED, None),
        };
        Failure::of(code, &error, hint)
    })?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&evaluation)
            .map_err(|error| Failure::told(FAILED, format!("error: failed to write the result: {error}")))?;
        print(&format!("{json}\n"))?;
        return Ok(0);
    }
    let mut text = format!("checkpoint {}\n", checkpoint.display());
    let _ = writeln!(text, "{} prompts, {} samples each", evaluation.num_prompts, evaluation.num_samples);
    for (name, value) in &evaluation.metrics {
        let _ = writeln!(text, "{name:<48} {}", fixed(*value, 4));
    }
    print(&text)?;
    Ok(0)
}

/// The checkpoint folder, and the configuration of the run that it belongs to.
fn find(source: &Path) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    if source.join("checkpoints").is_dir() {
        let last = tamis_train::run_directory::last_checkpoint(source).map_err(|error| {
            let error = RunError::from(error);
            Failure::of(FAILED, &error, error.hint())
        })?;
        let Some(last) = last else {
            let run = source.display();
            let told = if tamis_train::run_directory::had_checkpoint(source) {
                format!(
                    "error: {run} has no checkpoint left\n  hint: put its checkpoints back into {run}/checkpoints"
                )
            } else {
                format!(
                    "error: {run} has no checkpoint yet\n  hint: continue it with `tamis train --resume {run}`"
                )
            };
            return Err(Failure::told(FAILED, told));
        };
        return Ok((last, Some(source.join("config.yaml"))));
    }
    if source.join("config.json").is_file() {
        let run = source.parent().and_then(Path::parent).map(|run| run.join("config.yaml"));
        return Ok((source.to_owned(), run.filter(|config| config.is_file())));
    }
    Err(Failure::told(
        USAGE,
        format!(
            "error: {} is neither a run directory nor a checkpoint folder\n  hint: a run directory holds `checkpoints/`, a checkpoint `config.json`",
            source.display()
        ),
    ))
}
