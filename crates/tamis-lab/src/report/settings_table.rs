//! Settings as tables: what differs between runs, and what was chosen for each.

use std::fmt::Write as _;

use super::run::Run;
use super::settings::{Setting, Settings, differences};
use crate::html::{escape, head, row, text};

/// Characters of a value that are shown, at most.
const LONGEST: usize = 300;

fn value(setting: Option<&Setting>) -> String {
    let Some(setting) = setting else { return "<span class=\"missing\">not set</span>".to_owned() };
    let shown = tamis_core::printable::cut_middle(&setting.value, LONGEST);
    format!("<code title=\"{}\">{}</code>", text(&setting.origin), escape(&shown))
}

fn key(key: &str) -> String {
    // A key may be broken where its parts meet.
    format!("<code>{}</code>", escape(key).replace('.', ".<wbr>"))
}

pub(crate) fn of_runs(runs: &[Run]) -> String {
    let mut html = String::new();
    if runs.len() > 1 {
        let all: Vec<&Settings> = runs.iter().map(|run| &run.settings).collect();
        let found = differences(&all);
        if found.is_empty() {
            html.push_str("<p>No setting differs between the runs, but for their names.</p>");
        } else {
            let mut cells = vec!["key".to_owned()];
            cells.extend(runs.iter().map(|run| escape(&run.name)));
            let _ = write!(
                html,
                "<h3>Where the runs differ</h3><div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Differences\"><table class=\"settings\">{}",
                head(&cells)
            );
            for (name, settings) in found {
                let mut cells = vec![key(name)];
                cells.extend(settings.into_iter().map(value));
                html.push_str(&row(&cells));
            }
            html.push_str("</table></div>");
        }
    }
    for (place, run) in runs.iter().enumerate() {
        if run.settings.0.is_empty() {
            continue;
        }
        let chosen: Vec<_> = run.settings.0.iter().filter(|(_, setting)| setting.is_chosen()).collect();
        let title = if runs.len() == 1 { String::new() } else { format!("{}: ", escape(&run.name)) };
        let is_open = if runs.len() == 1 { " open" } else { "" };
        let _ = write!(
            html,
            "<details class=\"r{place}\"{is_open}><summary>{title}{} of {} settings were chosen; the others have their defaults</summary><div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Settings\"><table class=\"settings\">{}",
            chosen.len(),
            run.settings.0.len(),
            head(&["key", "value", "from"].map(str::to_owned))
        );
        for (name, setting) in chosen {
            html.push_str(&row(&[key(name), value(Some(setting)), text(&setting.origin)]));
        }
        html.push_str("</table></div></details>");
    }
    html
}
