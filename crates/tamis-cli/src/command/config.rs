//! `tamis config`: shows, checks, explains, imports and exports configurations.
//!
//! Each subcommand loads the layers and prints a text that another crate makes. Only `check` reads data and
//! model, and starts reward functions and environments.

use std::fmt::Write as _;
use std::io::Write as _;

use tamis_config::locate::Extent;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{
    Diagnostic, LauncherKind, Loaded, ServerCommand, Severity, catalogue, json_schema, load_sources,
};
use tamis_core::figure::counted;
use tamis_core::printable::lines;
use tamis_import::{Owner, explain, export, import, reference_markdown};

use tamis_cluster::doctor::{self, Lack};
use tamis_cluster::plan::machines::Machines;
use tamis_cluster::plan::{Misfit, Plan, RunModels};
use tamis_train::assemble::hub::Names;
use tamis_train::assemble::policy;
use tamis_train::interrupt::Interrupt;

use super::{Rehearsed, notes, print, show, with_findings};
use crate::arguments::{CheckArguments, ConfigCommand};
use crate::failure::{FAILED, Failure, INTERRUPTED, USAGE};

/// Rewards that a check leaves to the run; empty if there are none.
fn list_untried(loaded: &Loaded, left: &[usize]) -> String {
    let rewards = left.iter().filter_map(|&index| {
        let reward = loaded.config.reward.get(index)?;
        (!reward.kind.is_tried()).then(|| format!("`{}` (reward[{index}])", reward.name))
    });
    let rewards: Vec<String> = rewards.collect();
    if rewards.is_empty() {
        return String::new();
    }
    format!(
        "not checked, because it needs a server or a model in memory: {}; `tamis train` checks it before it generates anything\n",
        rewards.join(", ")
    )
}

/// `tamis config check`.
fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let (layers, line) = match arguments.machines {
        None => arguments.layers.here(),
        Some(_) => (arguments.layers.clone(), None),
    };
    let interrupt = Interrupt::new();
    super::train::listen(&interrupt, "nothing was changed")?;
    let Rehearsed { loaded, lines: followed, left } =
        layers.load_rehearsed(arguments.machines.is_some(), &interrupt)?;
    let plan = arguments.plan.then(|| make_plan(&loaded, arguments.machines.as_ref()));
    let mut found = Vec::new();
    if let Some(plan) = &plan {
        let refuse = |misfit: &Misfit| loaded.refuse(&misfit.keys, &misfit.message, Some(&misfit.hint));
        found.extend(plan.misfits.iter().map(refuse));
        let warn = |doubt: &Misfit| Diagnostic { severity: Severity::Warning, ..refuse(doubt) };
        found.extend(plan.doubts.iter().map(warn));
    }
    if arguments.machines.is_none() {
        let missing = doctor::missing(&loaded.config, super::hub(), &interrupt)
            .map_err(|interrupted| Failure::of(INTERRUPTED, &interrupted, None))?;
        found.extend(missing.into_iter().map(|lack| lacks_here(&loaded, &lack)));
    }
    let told = if arguments.json {
        String::new()
    } else {
        plan.iter().flat_map(Plan::lines).fold(String::new(), |text, line| text + &line + "\n")
    };
    let is_refused = plan.as_ref().is_some_and(|plan| !plan.misfits.is_empty());
    if is_refused {
        // The numbers are read together with the faults in them.
        show(&told)?;
    }
    if let (Some(plan), true) = (&plan, arguments.json) {
        let text = serde_json::to_string_pretty(plan)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the plan: {error}")))?;
        print(&format!("{text}\n"))?;
    }
    let loaded = with_findings(loaded, found).map_err(|errors| Failure::new(USAGE, errors.to_string()))?;
    if arguments.json {
        return Ok(());
    }
    let mut text = line.map_or_else(String::new, |line| line + "\n");
    for note in notes(&loaded) {
        let _ = writeln!(text, "{note}");
    }
    let warnings = counted(loaded.warnings.len(), "warning");
    let _ = writeln!(text, "the configuration is sound ({warnings})");
    text.push_str(&list_untried(&loaded, &left));
    for line in followed {
        let _ = writeln!(text, "{line}");
    }
    if let Some(servers) = ServerCommand::announcement(&loaded.config) {
        let _ = writeln!(text, "{servers}");
    }
    text.push_str(&told);
    show(&text)
}

/// A warning of what a run would lack here. It is no error: a configuration may be checked elsewhere than it
/// is trained.
fn lacks_here(loaded: &Loaded, lack: &Lack) -> Diagnostic {
    let Lack { finding, keys } = lack;
    let message = format!("{}, so a run on this machine would end before its first step", finding.text);
    let refused = loaded.refuse(&keys.map(str::to_owned), &message, finding.hint.as_deref());
    Diagnostic { severity: Severity::Warning, ..refused }
}

/// The plan of a run on the named machines, or on this one.
fn make_plan(loaded: &Loaded, machines: Option<&Machines>) -> Plan {
    let config = &loaded.config;
    let names = Names::new(super::hub(), Extent::Look);
    let models = RunModels::read(config, None, policy::shape_before_data(config).as_ref(), |model| {
        names.configuration(model)
    });
    let machines = machines.cloned().unwrap_or_else(|| {
        if config.cluster.launcher == LauncherKind::Ray {
            let why = "the machines of the Ray cluster, which are read when a run begins (--machines 2x8x80GiB \
                       plans for such machines)";
            return Machines::Unknown(why.to_owned());
        }
        Machines::here(&config.learner.device)
    });
    Plan::new(config, &models, machines)
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
                    "the printed values are incomplete: a run also needs what these errors name"
                );
            }
        }
        ConfigCommand::Check(arguments) => check(arguments)?,
        ConfigCommand::Explain { key } => {
            let text = explain(key).map_err(|error| {
                // The last part of a key may be the name of an algorithm.
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
        ConfigCommand::Export { system, layers } => {
            let loaded = layers.load_to_show()?;
            let owner = match (system == "trl", loaded.config.is_sft_alone()) {
                (true, false) => Owner::Trl,
                (true, true) => Owner::TrlSft,
                (false, false) => Owner::Verl,
                (false, true) => Owner::VerlSft,
            };
            let exported = export(&loaded.config, owner);
            show(&exported.script())?;
            let lost = exported.lost_lines();
            if !lost.is_empty() {
                let text =
                    format!("no counterpart in {owner}, written at the top too:\n  {}", lost.join("\n  "));
                let _ = writeln!(std::io::stderr().lock(), "{}", lines(&text));
            }
        }
        ConfigCommand::Fits => print(&tamis_cluster::plan::table::page())?,
        ConfigCommand::Reference => print(&reference_markdown())?,
        ConfigCommand::Algorithms => print(&tamis_config::catalogue::markdown())?,
        ConfigCommand::Rollouts => print(&tamis_lab::rollouts::reference_markdown())?,
        ConfigCommand::Metrics => print(&tamis_run::metrics::catalogue::catalogue_markdown())?,
    }
    Ok(0)
}
