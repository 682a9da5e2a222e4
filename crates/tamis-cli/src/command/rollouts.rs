//! `tamis rollouts`.

use tamis_lab::rollouts::{RolloutQuery, read};

use super::{Needed, named_or_newest, print, show, warn};
use crate::arguments::RolloutsArguments;
use crate::failure::{FAILED, Failure};

pub(crate) fn run(arguments: &RolloutsArguments) -> Result<u8, Failure> {
    let source = named_or_newest(arguments.source.as_ref(), Needed::Rollouts)?;
    let query = RolloutQuery {
        source: source.clone(),
        step: arguments.step,
        verdict: arguments.verdict.clone(),
        group: arguments.group,
        prompt: arguments.prompt,
        limit: arguments.limit,
    };
    let view = read(&query).map_err(|fault| Failure::of_fault(&fault))?;
    for note in &view.notes {
        warn(&format!("{}: {note}", source.display()));
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&view)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the rows: {error}")))?;
        print(&format!("{json}\n"))?;
    } else {
        show(&view.to_string())?;
    }
    Ok(0)
}
