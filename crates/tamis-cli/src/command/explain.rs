//! `tamis explain`.

use std::fmt::Write as _;

use tamis_config::catalogue;
use tamis_core::catalogue::{Family, is_own_name};
use tamis_import::OtherValue;

use super::print;
use crate::failure::{Failure, USAGE};

pub(crate) fn run(name: Option<&str>) -> Result<u8, Failure> {
    let Some(name) = name else {
        print(&list_names())?;
        return Ok(0);
    };
    let entries = catalogue::find(name);
    if entries.is_empty()
        && let Some(OtherValue { whose, key, value, .. }) = tamis_import::find_value(name)
        && let Ok(text) = tamis_import::explain(key)
    {
        // A value of a key, under another name.
        print(&format!("`{name}` ({whose}) is here: `{key}: {value}`\n\n{}\n", text.trim_end()))?;
        return Ok(0);
    }
    if entries.is_empty() {
        return Err(Failure::new(USAGE, describe_unknown(name)));
    }
    let mut text = String::new();
    if !entries.iter().any(|entry| is_own_name(name, entry)) {
        let mut names: Vec<String> = entries.iter().map(|entry| format!("`{}`", entry.name)).collect();
        names.dedup();
        let _ = writeln!(text, "`{name}` is here: {}\n", names.join(", "));
    }
    for entry in entries {
        let _ = writeln!(text, "{}", catalogue::plain(entry));
    }
    print(&format!("{}\n", text.trim_end()))?;
    Ok(0)
}

/// Every name with its meaning, family by family.
fn list_names() -> String {
    let width = catalogue::entries().map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for family in Family::ALL {
        let mut entries = catalogue::entries().filter(|entry| entry.family == family).peekable();
        if entries.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "{}{}", if text.is_empty() { "" } else { "\n" }, family.heading());
        for entry in entries {
            let _ = writeln!(text, "  {:width$}  {}", entry.name, catalogue::summarize(entry));
        }
    }
    text
}

fn describe_unknown(name: &str) -> String {
    let hint = match catalogue::nearest(name).as_slice() {
        _ if tamis_import::explain(name).is_ok() => {
            format!("`{name}` is a key: `tamis config explain {name}`")
        }
        [] => "`tamis explain` lists every name; `tamis config explain KEY` explains configuration keys"
            .to_owned(),
        near => format!("did you mean {}? `tamis explain` lists every name", near.join(" or ")),
    };
    format!("error: nothing is called `{name}`\n  hint: {hint}")
}
