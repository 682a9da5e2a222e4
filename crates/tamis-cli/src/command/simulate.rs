//! `tamis simulate`: prints the table of a simulation, and writes its page.
//!
//! `tamis_lab` simulates. This module shows the progress of each policy in a line of its own on a terminal.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tamis_config::Severity;
use tamis_lab::simulate::{SimulationProgress, simulate_watched};
use tamis_run::durable::Disk;

use super::{print, refuse_others, show, warn};
use crate::arguments::SimulateArguments;
use crate::failure::{FAILED, Failure, USAGE};

/// The page, unless the user names another.
const PAGE: &str = "simulation.html";
/// How long a line of progress stays unchanged.
const PAUSE: Duration = Duration::from_millis(100);
const NAMES_PAGE: &str = "`--html FILE` names the page to write";

pub(crate) fn run(arguments: &SimulateArguments) -> Result<u8, Failure> {
    let loaded = arguments.layers.load_to_show()?;
    if loaded.config.is_sft_alone() {
        let text = "error: this is supervised fine-tuning alone (`train.total_steps: 0`): it samples nothing, so there is no \
                    schedule to simulate\n  hint: name a configuration of reinforcement learning, or add `train.total_steps=100`";
        return Err(Failure::new(USAGE, text.to_owned()));
    }
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
        refuse_others(out, NAMES_PAGE)?;
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(Failure::new(
                USAGE,
                format!("error: there is no folder {}\n  hint: {NAMES_PAGE}", folder.display()),
            ));
        }
    }
    if loaded.config.filter.is_none() {
        warn("there is no filter, but the policies need one: groups are judged by `filter.kind: variance`");
    }
    let mut lines = Lines::on_stderr();
    let simulation = simulate_watched(&loaded.config, &mut |progress| lines.show(progress));
    lines.end();
    let simulation = simulation.map_err(|fault| Failure::of_fault(&fault))?;
    let simulation = simulation.with_defaults(&loaded.config, |key| loaded.place(key).is_some());
    for warning in simulation.warnings() {
        warn(&warning);
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&simulation)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the result: {error}")))?;
        print(&format!("{json}\n"))?;
    }
    let code = if simulation.all_ended() { FAILED } else { 0 };
    let Some(out) = out else { return Ok(code) };
    let (files, _) = arguments.layers.split();
    let name = files.first().and_then(|file| file.file_stem()).and_then(|name| name.to_str());
    let html = simulation.html(&format!("Schedules for {}", name.unwrap_or("the defaults")));
    let html = html.map_err(|fault| Failure::of_fault(&fault))?;
    if out == Path::new("-") {
        print(&html)?;
        return Ok(code);
    }
    if !arguments.json {
        let table = if arguments.verbose { format!("{simulation:#}") } else { simulation.to_string() };
        show(&table)?;
    }
    Disk::new().write_shared_file(&out, html.as_bytes()).map_err(|error| {
        Failure::of(FAILED, &error, Some("name a file that can be written with `--html FILE`".to_owned()))
    })?;
    if !arguments.json {
        show(&format!("page: {}\n", out.display()))?;
    }
    Ok(code)
}

/// The progress of a simulation: a line for each policy, which is rewritten in place.
struct Lines {
    /// `None` if no terminal shows it.
    out: Option<Box<dyn Write>>,
    last: Option<SimulationProgress>,
    written: Instant,
}

impl Lines {
    /// It is shown on a terminal that can move its cursor, and nowhere else.
    fn on_stderr() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_watched = std::io::stderr().is_terminal() && !is_dumb;
        Self::new(is_watched.then(|| Box::new(std::io::stderr()) as Box<dyn Write>))
    }

    fn new(out: Option<Box<dyn Write>>) -> Self {
        Self { out, last: None, written: Instant::now() }
    }

    fn show(&mut self, progress: SimulationProgress) {
        if self.out.is_none() {
            return;
        }
        if self.last.is_some_and(|last| last.policy != progress.policy) {
            self.end();
        }
        let is_first = self.last.replace(progress).is_none();
        if is_first || self.written.elapsed() >= PAUSE {
            self.write("");
        }
    }

    fn write(&mut self, end: &str) {
        if let (Some(out), Some(SimulationProgress { policy, steps, of, groups })) =
            (&mut self.out, self.last)
        {
            // If the terminal has gone, the simulation continues all the same.
            let _ = write!(out, "\r\x1b[2K{policy}: step {steps} of {of}, {groups} groups started{end}");
            let _ = out.flush();
        }
        self.written = Instant::now();
    }

    /// The line of the present policy stays, with its last progress.
    fn end(&mut self) {
        self.write("\n");
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tamis_config::SimulatedPolicy;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_for_each_policy() {
        let screen = Screen::default();
        let mut lines = Lines::new(Some(Box::new(screen.clone())));
        let at = |policy, steps| SimulationProgress { policy, steps, of: 9, groups: 4 * steps };
        for steps in 0..9 {
            lines.show(at(SimulatedPolicy::Verl, steps));
        }
        lines.show(at(SimulatedPolicy::Slime, 1));
        lines.end();
        let said = String::from_utf8(screen.0.lock().unwrap().clone()).unwrap();
        let shown: Vec<&str> =
            said.lines().map(|line| line.rsplit("\x1b[2K").next().unwrap_or_default()).collect();
        assert_eq!(
            shown,
            ["verl: step 8 of 9, 32 groups started", "slime: step 1 of 9, 4 groups started"],
            "{said:?}"
        );
        assert!(said.starts_with("\r\x1b[2Kverl: step 0 of 9"), "{said:?}");
        // Nobody looks.
        Lines::new(None).show(at(SimulatedPolicy::Verl, 1));
    }
}
