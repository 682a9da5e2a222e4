//! `tamis monitor`.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis_lab::monitor::terminal::{Closed, follow};
use tamis_lab::monitor::view::Look;
use tamis_lab::monitor::{Watch, text};

use super::{Needed, named_or_newest, print, show};
use crate::arguments::MonitorArguments;
use crate::failure::{FAILED, Failure, INTERRUPTED};

pub(crate) fn run(arguments: &MonitorArguments) -> Result<u8, Failure> {
    let path = named_or_newest(arguments.path.as_ref(), Needed::Nothing)?;
    let mut watch = Watch::open(&path).map_err(|fault| Failure::of_fault(&fault))?;
    if arguments.json {
        watch.check_understood().map_err(|fault| Failure::of_fault(&fault))?;
        let object = serde_json::to_string(&watch.summary())
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the summary: {error}")))?;
        print(&(object + "\n"))?;
        return Ok(0);
    }
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if arguments.once || is_dumb || !std::io::stdout().is_terminal() {
        watch.check_understood().map_err(|fault| Failure::of_fault(&fault))?;
        show(&text::text(&watch.summary()))?;
        return Ok(0);
    }
    let no_colour = arguments.no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let look = if no_colour { Look::Plain } else { Look::Coloured };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    ctrlc::set_handler(move || stopped.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(FAILED, format!("error: failed to listen for signals: {error}")))?;
    match follow(watch, arguments.interval, look, &stop) {
        Ok(Closed::Quit) => Ok(0),
        Ok(Closed::Stopped) => Ok(INTERRUPTED),
        Err(error) => Err(Failure::new(
            FAILED,
            format!("error: failed to use the terminal: {error}\n  hint: `--once` prints the same as text"),
        )),
    }
}
