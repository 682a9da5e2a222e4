//! `tamis monitor`.

mod terminal;
mod view;

use std::io::IsTerminal as _;

use tamis_report::monitor::{MonitorError, Watch, text};

use super::{print, show};
use crate::arguments::MonitorArguments;
use crate::failure::{FAILED, Failure, USAGE};
use view::Look;

pub(crate) fn run(arguments: &MonitorArguments) -> Result<u8, Failure> {
    let mut watch = Watch::open(&arguments.path).map_err(|error| fail(&error))?;
    if arguments.json {
        watch.check_understood().map_err(|error| fail(&error))?;
        let object = serde_json::to_string(&watch.summary())
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the summary: {error}")))?;
        print(&(object + "\n"))?;
        return Ok(0);
    }
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if arguments.once || is_dumb || !std::io::stdout().is_terminal() {
        watch.check_understood().map_err(|error| fail(&error))?;
        show(&text::text(&watch.summary()))?;
        return Ok(0);
    }
    let no_colour = arguments.no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let look = if no_colour { Look::Plain } else { Look::Coloured };
    terminal::follow(watch, arguments.interval, look)
}

fn fail(error: &MonitorError) -> Failure {
    Failure::of(if error.is_usage() { USAGE } else { FAILED }, error, error.hint())
}
