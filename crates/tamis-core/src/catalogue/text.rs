//! An entry as text: for a terminal and for the page of algorithms.

use std::fmt::Write;

use crate::entry::Entry;

/// The configuration keys that an entry reads, each with its default value.
pub type SettingsOf<'a> = &'a dyn Fn(&Entry) -> Vec<(String, String)>;

impl Entry {
    /// The entry as lines for a terminal.
    pub fn plain(&self, settings_of: SettingsOf<'_>) -> String {
        let mut text = format!("{} ({})\n{}\n\n", self.name, self.family.key(), self.meaning);
        // Writing to a string cannot fail.
        if !self.formula.is_empty() {
            let _ = writeln!(text, "    {}\n", self.formula);
        }
        if !self.source.is_empty() {
            let _ = writeln!(text, "source      {}", self.source);
        }
        for (setting, value) in settings_of(self) {
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

    /// The entry as a section of Markdown under a heading of the given level.
    pub fn markdown(&self, level: usize, settings_of: SettingsOf<'_>) -> String {
        let mut page = format!("{} `{}`\n\n{}\n", "#".repeat(level), self.name, self.meaning);
        // Writing to a string cannot fail.
        if !self.formula.is_empty() {
            let _ = write!(page, "\n    {}\n", self.formula);
        }
        let settings = settings_of(self);
        if !self.source.is_empty() || !settings.is_empty() {
            page.push('\n');
        }
        if !self.source.is_empty() {
            let _ = writeln!(page, "- source: {}", self.source);
        }
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
