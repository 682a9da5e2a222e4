//! Findings in a form for snapshots.

use std::fmt::Write as _;

use tamis_config::Diagnostic;
use tamis_config::source::SourceKind;

/// Findings with their places, one a line. «» mark what is underlined when it is printed.
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
    if let Some(hint) = found.hint() {
        let _ = write!(text, "\n  hint: {hint}");
    }
    text
}
