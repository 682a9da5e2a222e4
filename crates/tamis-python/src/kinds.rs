//! The part of `help()` that lists a class's kinds, each with its settings and their defaults, as the
//! program's pages have them.

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use tamis_config::catalogue::{entries, settings_of, summarize};
use tamis_core::catalogue::Family;

/// Adds the kinds of a family to a class's docstring.
pub(crate) fn describe<T: PyTypeInfo>(py: Python<'_>, family: Family) -> PyResult<()> {
    let class = py.get_type::<T>();
    let mut text: String = class.getattr("__doc__")?.extract()?;
    text.push_str("\n\nKinds, with their settings and defaults:\n");
    for entry in entries().filter(|entry| entry.family == family) {
        let own = |key: &str| {
            let rest = key.strip_prefix(family.key())?;
            rest.strip_prefix("[]").unwrap_or(rest).strip_prefix('.').map(str::to_owned)
        };
        let settings = settings_of(entry).into_iter().filter_map(|(key, value)| {
            let name = own(&key)?;
            Some(if value == "required" { name } else { format!("{name}={value}") })
        });
        let settings: Vec<String> = settings.collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n    {}({})\n        {}", entry.name, settings.join(", "), summarize(entry));
    }
    class.setattr("__doc__", text)
}
