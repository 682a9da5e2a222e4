//! Findings in a form for snapshots.

use std::fmt::Write as _;

use tamis_config::Diagnostic;
use tamis_config::source::SourceKind;

/// Findings with their places, one a line. «» mark what is underlined when it is printed. Of the two hints
/// that most findings have, `[remove it]` and `[explain it]` at the end of a line stand for "remove KEY" and
/// "see `tamis config explain KEY`".
pub(crate) fn brief(findings: &[Diagnostic]) -> String {
    findings.iter().map(of).collect::<Vec<_>>().join("\n")
}

fn of(found: &Diagnostic) -> String {
    let mut text = format!("{}: {}", found.severity, found.problem);
    if let Some(origin) = found.origin.as_ref().filter(|origin| origin.source.kind != SourceKind::Default) {
        let excerpt: Vec<char> = origin.excerpt().unwrap_or_default().trim_end().chars().collect();
        let (before, rest) = excerpt.split_at(excerpt.len().min(origin.column - 1));
        let (marked, after) = rest.split_at(rest.len().min(origin.length));
        let [before, marked, after] = [before, marked, after].map(|part| part.iter().collect::<String>());
        let _ = write!(text, "\n  at {origin}: {before}«{marked}»{after}");
    }
    let Some(hint) = found.hint() else { return text };
    let key = text.split('`').nth(1).unwrap_or_default();
    let (name, _) = key.split_once('[').unwrap_or((key, ""));
    let explained = key.split_once("].").map_or(name.to_owned(), |(_, rest)| format!("{name}.{rest}"));
    if hint == format!("remove `{key}`") {
        text + " [remove it]"
    } else if hint == format!("see `tamis config explain {explained}`") {
        text + " [explain it]"
    } else {
        format!("{text}\n  hint: {hint}")
    }
}
