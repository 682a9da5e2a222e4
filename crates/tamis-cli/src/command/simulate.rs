//! `tamis simulate`.

use std::path::{Path, PathBuf};

use tamis_config::Severity;
use tamis_core::filter::Scope;
use tamis_run::durable::Disk;
use tamis_simulate::simulate;

use super::{print, refuse_others, show, warn};
use crate::arguments::SimulateArguments;
use crate::failure::{FAILED, Failure, USAGE};

/// The page, where nobody names another.
const PAGE: &str = "simulation.html";

pub(crate) fn run(arguments: &SimulateArguments) -> Result<u8, Failure> {
    let loaded = arguments.layers.load_to_show()?;
    for warning in loaded.warnings.iter().filter(|found| found.severity == Severity::Warning) {
        warn(&warning.problem.to_string());
    }
    let out = match &arguments.html {
        Some(out) if out.is_dir() => Some(out.join(PAGE)),
        Some(out) => Some(out.clone()),
        None if arguments.json => None,
        None => Some(PathBuf::from(PAGE)),
    };
    if let Some(out) = out.as_deref().filter(|out| *out != Path::new("-")) {
        refuse_others(out, "`--html FILE` names the page to write")?;
    }
    let filter = loaded.config.filter.as_ref();
    if filter.is_none() {
        warn(
            "there is no filter, and the policies are those of one: groups are judged by `filter.kind: variance`",
        );
    } else if let Some(kind) = filter.map(|filter| filter.kind).filter(|kind| kind.scope() == Scope::Pool) {
        return Err(Failure::new(
            USAGE,
            format!(
                "error: `filter.kind: {kind}` compares the groups of a round, and most policies have none\n  hint: \
                 `filter.kind=variance` simulates them all"
            ),
        ));
    }
    let simulation = simulate(&loaded.config).map_err(|error| {
        let code = if error.is_usage() { USAGE } else { FAILED };
        Failure::of(code, &error, error.hint())
    })?;
    for warning in &simulation.warnings {
        warn(warning);
    }
    for (name, note) in &simulation.notes {
        warn(&format!("the policy `{name}` ended early: {note}"));
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&simulation)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the result: {error}")))?;
        print(&format!("{json}\n"))?;
    }
    let Some(out) = out else { return Ok(0) };
    let (files, _) = arguments.layers.split();
    let name = files.first().and_then(|file| file.file_stem()).and_then(|name| name.to_str());
    let html = simulation.html(&format!("Schedules for {}", name.unwrap_or("the defaults")));
    if out == Path::new("-") {
        print(&html)?;
        return Ok(0);
    }
    Disk::new().write_file(&out, html.as_bytes()).map_err(|error| {
        Failure::of(FAILED, &error, Some("name a file that can be written with `--html FILE`".to_owned()))
    })?;
    if !arguments.json {
        show(&format!("{simulation}page: {}\n", out.display()))?;
    }
    Ok(0)
}
