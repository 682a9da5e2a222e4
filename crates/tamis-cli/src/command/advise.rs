//! `tamis advise`.

use std::path::Path;

use tamis_config::{Config, Loaded};
use tamis_import::{load_of_run, load_to_show};
use tamis_lab::advise::{self, AdvicePlan, advise, read, read_with_notes};
use tamis_run::directory::CONFIG;

use super::{Needed, new_errors, print, show, source_and_layers, warn};
use crate::arguments::{AdviseArguments, LayerArguments};
use crate::failure::{FAILED, Failure, USAGE};

pub(crate) fn run(arguments: &AdviseArguments) -> Result<u8, Failure> {
    let (source, layers) = source_and_layers(arguments.source.as_ref(), &arguments.layers, Needed::Steps)?;
    let plan = plan(&source, &layers)?;
    let metric = arguments.metric.as_deref();
    let (evidence, notes) = read_with_notes(&source, arguments.steps, metric, &plan)
        .map_err(|fault| Failure::of_fault(&fault))?;
    for note in notes {
        warn(&format!("{}: {note}", source.display()));
    }
    let advice = advise(&source.display().to_string(), &evidence, &plan);
    if arguments.json {
        let json = serde_json::to_string_pretty(&advice)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the advice: {error}")))?;
        print(&format!("{json}\n"))?;
    } else {
        show(&advice.to_string())?;
    }
    Ok(0)
}

/// The settings that the advice is for: those of a run with the arguments on top, or only the arguments.
fn plan(source: &Path, layers: &LayerArguments) -> Result<AdvicePlan, Failure> {
    let own = source.join(CONFIG);
    if !own.is_file() {
        return Ok(if layers.is_empty() {
            AdvicePlan::default()
        } else {
            AdvicePlan::of_layers(&layers.load_to_show()?)
        });
    }
    let (files, overrides) = layers.split();
    let known = load_of_run(&own, &[], &[]).ok();
    if known.as_ref().is_some_and(|known| known.config.is_sft_alone()) {
        let text = format!(
            "error: {} is supervised fine-tuning alone: it has no groups to advise on\n  hint: name a run of reinforcement \
             learning, its rollouts or a log",
            source.display()
        );
        return Err(Failure::new(USAGE, text));
    }
    // Even if no run could begin with a configuration, it has the size of the batches.
    let shown = || -> Option<Loaded> {
        let files: Vec<_> = std::iter::once(own.clone()).chain(files.iter().cloned()).collect();
        load_to_show(&files, &overrides).ok()
    };
    match load_of_run(&own, &files, &overrides) {
        Ok(loaded) => Ok(AdvicePlan::of_run(&loaded.config)),
        Err(errors) => match shown() {
            Some(loaded) => Ok(AdvicePlan::of_layers(&loaded)),
            None => Err(new_errors(known.as_ref().map_or(&[], |known| &known.warnings), errors)),
        },
    }
}

/// The advice from a run's own rollouts in a line or two; nothing if they cannot be read.
pub(crate) fn start_lines(run: &Path, config: &Config) -> Vec<String> {
    let plan = AdvicePlan::of_run(config);
    let evidence = read(run, None, None, &plan);
    evidence.map_or_else(|_| Vec::new(), |evidence| advise("", &evidence, &plan).start_lines())
}

/// The advice from pass rates in the training data in a line or two; nothing if the data has none.
pub(crate) fn start_lines_of_data(config: &Config) -> Vec<String> {
    advise::start_lines_of_data(&config.data.train.files(), &AdvicePlan::of_run(config))
}
