//! `tamis config`.

use std::fmt::Write as _;
use std::io::Write as _;

use tamis_config::source::{Source, SourceKind};
use tamis_config::{
    Diagnostic, Loaded, ServerCommand, Severity, catalogue, explain, import, json_schema, load_sources,
    reference_markdown,
};
use tamis_core::printable::lines;
use tamis_hub::Extent;

use tamis_train::assemble::check::Placeholders;

use super::{notes, print, show};
use crate::arguments::ConfigCommand;
use crate::failure::{FAILED, Failure, USAGE};

/// Checks that a run makes beyond these, since no program is started here; empty where there is none to
/// start.
fn list_unchecked(loaded: &Loaded) -> String {
    let rewards = loaded.config.reward.iter().enumerate();
    let external: Vec<String> = rewards
        .filter(|(_, reward)| reward.kind.is_external())
        .map(|(index, reward)| format!("`{}` (reward[{index}])", reward.name))
        .collect();
    if external.is_empty() {
        return String::new();
    }
    format!(
        "not checked, as a check starts no program: what {} takes and returns; `tamis train` asks before it generates anything\n",
        external.join(", ")
    )
}

pub(crate) fn run(arguments: &ConfigCommand) -> Result<u8, Failure> {
    match arguments {
        ConfigCommand::Show(layers) => {
            let loaded = layers.load_to_show()?;
            print(&loaded.show())?;
            let lacking: Vec<&Diagnostic> =
                loaded.warnings.iter().filter(|found| found.severity == Severity::Error).collect();
            let num_lacking = lacking.len();
            let mut stderr = std::io::stderr().lock();
            for found in lacking {
                let _ = writeln!(stderr, "{}\n", lines(&found.to_string()));
            }
            if num_lacking > 0 {
                let _ = writeln!(
                    stderr,
                    "the values printed are those so far; a run needs what these errors name as well"
                );
            }
        }
        ConfigCommand::Check(layers) => {
            let (loaded, followed) = layers.load_checked(Placeholders::Warned, Extent::Look)?;
            let mut text = String::new();
            for note in notes(&loaded) {
                let _ = writeln!(text, "{note}");
            }
            let num_warnings = loaded.warnings.len();
            let plural = if num_warnings == 1 { "" } else { "s" };
            let _ = writeln!(text, "the configuration is sound ({num_warnings} warning{plural})");
            text.push_str(&list_unchecked(&loaded));
            for line in followed {
                let _ = writeln!(text, "{line}");
            }
            if let Some(servers) = ServerCommand::announcement(&loaded.config) {
                let _ = writeln!(text, "{servers}");
            }
            show(&text)?;
        }
        ConfigCommand::Explain { key } => {
            let text = explain(key).map_err(|error| {
                // Its last part may be the name of an algorithm.
                let last = key.rsplit('.').next().unwrap_or(key);
                let hint = catalogue::point_to(last).unwrap_or_else(|| error.hint());
                Failure::of(USAGE, &error, Some(hint))
            })?;
            print(&format!("{}\n", text.trim_end()))?;
        }
        ConfigCommand::Schema => {
            let text = serde_json::to_string_pretty(&json_schema()).map_err(|error| {
                Failure::new(FAILED, format!("error: failed to write the schema: {error}"))
            })?;
            print(&format!("{text}\n"))?;
        }
        ConfigCommand::Import { arguments } => {
            let folder = std::env::current_dir().unwrap_or_default();
            let imported =
                import(arguments, &folder).map_err(|errors| Failure::new(USAGE, errors.to_string()))?;
            let mut text = imported.yaml.trim_end().to_owned();
            text.push_str("\n\n");
            if !imported.notes.is_empty() {
                text.push_str("# What each key became:\n");
            }
            for note in &imported.notes {
                let _ = writeln!(text, "# {note}");
            }
            let source = Source::new(SourceKind::File("imported.yaml".into()), imported.yaml.clone());
            let loaded = load_sources(&[source], &[]).ok();
            if let Some(servers) = loaded.and_then(|loaded| ServerCommand::announcement(&loaded.config)) {
                let _ = writeln!(text, "#\n# {servers}");
            }
            let (missing, warnings): (Vec<_>, Vec<_>) =
                imported.remaining.iter().partition(|found| found.severity == Severity::Error);
            for (heading, found) in [("Still missing", missing), ("Warnings", warnings)] {
                if !found.is_empty() {
                    let _ = writeln!(text, "#\n# {heading}:");
                }
                for line in found
                    .iter()
                    .flat_map(|found| found.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
                {
                    let _ = writeln!(text, "# {line}");
                }
            }
            print(&text)?;
        }
        ConfigCommand::Reference => print(&reference_markdown())?,
        ConfigCommand::Algorithms => print(&tamis_config::catalogue::markdown())?,
        ConfigCommand::Rollouts => print(&tamis_report::rollouts::reference_markdown())?,
        ConfigCommand::Metrics => print(&tamis_run::metrics::catalogue::catalogue_markdown())?,
    }
    Ok(0)
}
