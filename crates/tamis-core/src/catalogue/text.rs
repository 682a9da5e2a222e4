//! An entry as text: for a terminal and for the page of algorithms.

use std::fmt::Write;

use crate::advantage::Advantage;
use crate::advantage::shaping::Shaping;
use crate::entry::{Entry, Family};
use crate::filter::GroupFilter;
use crate::objective::PolicyLoss;
use crate::setting::{Described, KeySpec};

/// The default of a configuration key, as text.
pub type DefaultOf<'a> = &'a dyn Fn(&str) -> String;

impl Entry {
    /// The configuration keys that it reads, each with the value that a run has where nobody sets it: those
    /// of its own description, where its family is a tagged section; the others' are `default_of`.
    fn settings(&self, default_of: DefaultOf<'_>) -> Vec<(String, String)> {
        let shape = match self.family {
            Family::Advantage => Advantage::shape(),
            Family::Shaping => Shaping::shape(),
            Family::PolicyLoss => PolicyLoss::shape(),
            Family::Filter => GroupFilter::shape(),
            _ => return self.defaults.iter().map(|&key| (key.to_owned(), default_of(key))).collect(),
        };
        let keys = shape.keys_of_kind(self.name);
        let text =
            |key: &KeySpec| if key.is_required() { "required".to_owned() } else { key.default.to_string() };
        // Shapings are items of a list, whose keys have no dotted name.
        let path =
            if self.family == Family::Shaping { String::new() } else { format!("{}.", self.family.key()) };
        keys.iter().map(|key| (format!("{path}{}", key.name), text(key))).collect()
    }

    /// The entry as lines for a terminal; `default_of` knows the keys of the configuration.
    pub fn plain(&self, default_of: DefaultOf<'_>) -> String {
        let mut text =
            format!("{} ({})\n{}\n\n    {}\n\n", self.name, self.family.key(), self.meaning, self.formula);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "source      {}", self.source);
        for (setting, value) in self.settings(default_of) {
            let _ = writeln!(text, "default     {setting}: {value}");
        }
        for (system, name) in self.known_as {
            let _ = writeln!(text, "known as    {name} ({system})");
        }
        for (title, sentences) in [("degenerate", self.degenerate), ("differs", self.differences)] {
            for sentence in sentences {
                let _ = writeln!(text, "{title:<12}{sentence}");
            }
        }
        text
    }

    /// The entry as a section of Markdown under a heading of the given level; `default_of` as in [`Self::plain`].
    pub fn markdown(&self, level: usize, default_of: DefaultOf<'_>) -> String {
        let mut page = format!("{} `{}`\n\n{}\n\n", "#".repeat(level), self.name, self.meaning);
        // Writing to a string cannot fail.
        let _ = write!(page, "    {}\n\n- source: {}\n", self.formula, self.source);
        let settings = self.settings(default_of);
        if !settings.is_empty() {
            let settings: Vec<_> =
                settings.iter().map(|(setting, value)| format!("`{setting}: {value}`")).collect();
            let _ = writeln!(page, "- defaults: {}", settings.join(", "));
        }
        if !self.known_as.is_empty() {
            let names: Vec<_> =
                self.known_as.iter().map(|(system, name)| format!("{system} `{name}`")).collect();
            let _ = writeln!(page, "- known as: {}", names.join(", "));
        }
        for (title, sentences) in [("degenerate", self.degenerate), ("differs", self.differences)] {
            for sentence in sentences {
                let _ = writeln!(page, "- {title}: {sentence}");
            }
        }
        page
    }
}
