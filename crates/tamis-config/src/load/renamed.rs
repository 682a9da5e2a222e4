//! Sections that had another name in earlier builds. Their old name is read, with a warning.

use crate::diagnostic::{Diagnostic, Problem};
use crate::override_argument::Override;
use crate::source::Origin;
use crate::tree::{Node, Value};

/// Old and new name.
const RENAMED: [(&str, &str); 1] = [("warm_start", "sft")];

fn warning(old: &str, new: &str, origin: &Origin) -> Diagnostic {
    let problem = Problem::rule_about(
        &[new],
        format!("`{old}` is called `{new}` now"),
        format!("write `{new}` in place of `{old}`"),
    );
    Diagnostic::warning(problem, Some(origin.clone()))
}

/// Gives the sections of a file their present names. A file that has both names keeps both, and the old one
/// is then refused as unknown.
pub(super) fn in_file(file: &mut Node, diagnostics: &mut Vec<Diagnostic>) {
    let Value::Map(entries) = &mut file.value else { return };
    for (old, new) in RENAMED {
        if entries.iter().any(|entry| entry.key == new) {
            continue;
        }
        if let Some(entry) = entries.iter_mut().find(|entry| entry.key == old) {
            new.clone_into(&mut entry.key);
            diagnostics.push(warning(old, new, &entry.origin));
        }
    }
}

/// Gives the section of an override its present name.
pub(super) fn in_override(argument: &mut Override, diagnostics: &mut Vec<Diagnostic>) {
    for (old, new) in RENAMED {
        let Some(rest) = argument.path.strip_prefix(old) else { continue };
        if rest.is_empty() || rest.starts_with('.') {
            diagnostics.push(warning(old, new, &argument.origin));
            argument.path = format!("{new}{rest}");
        }
    }
}
