//! `tamis report`.

use std::path::{Path, PathBuf};

use tamis_core::figure;
use tamis_lab::report::{PageOptions, StepRange, page};
use tamis_run::directory::REPORT;
use tamis_run::durable::Disk;

use super::{Needed, named_or_newest, print, refuse_others, show, warn};
use crate::arguments::ReportArguments;
use crate::failure::{FAILED, Failure};

pub(crate) fn run(arguments: &ReportArguments) -> Result<u8, Failure> {
    let runs = if arguments.runs.is_empty() {
        vec![named_or_newest(None, Needed::Nothing)?]
    } else {
        arguments.runs.clone()
    };
    let out = out(arguments.out.as_deref(), &runs);
    let options = PageOptions {
        runs,
        steps: arguments.steps.unwrap_or(StepRange::ALL),
        num_samples: arguments.samples.map(usize::from),
        title: arguments.title.clone(),
    };
    if out != Path::new("-") {
        refuse_others(&out, "`--out FILE` names the page to write")?;
    }
    let made = page(&options).map_err(|fault| Failure::of_fault(&fault))?;
    for (run, note) in &made.notes {
        warn(&format!("{}: {note}", run.display()));
    }
    if out == Path::new("-") {
        print(&made.html)?;
        return Ok(0);
    }
    Disk::new().write_shared_file(&out, made.html.as_bytes()).map_err(|error| {
        Failure::of(FAILED, &error, Some("name a file that can be written with `--out FILE`".to_owned()))
    })?;
    show(&format!(
        "{}: {}, {}, {}\n",
        out.display(),
        figure::counted(made.num_steps, "step"),
        figure::counted(made.num_trajectories, "trajectory"),
        figure::bytes(made.html.len() as u64)
    ))?;
    Ok(0)
}

/// The file to write.
fn out(out: Option<&Path>, runs: &[PathBuf]) -> PathBuf {
    match (out, runs) {
        (Some(out), _) if out.is_dir() => out.join(REPORT),
        (Some(out), _) => out.to_owned(),
        (None, [run]) if run.is_dir() => run.join(REPORT),
        (None, _) => PathBuf::from(REPORT),
    }
}
