//! One named thing of the field, described where its code stands.

use std::fmt::Write;

use crate::advantage::Advantage;
use crate::advantage::shaping::Shaping;
use crate::filter::GroupFilter;
use crate::objective::PolicyLoss;
use crate::setting::{Described, KeySpec};

/// What kind of thing an entry names: the configuration key that takes its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// A whole algorithm (`preset`).
    Preset,
    /// An advantage estimator (`objective.advantage`).
    Advantage,
    /// A change to finished advantages (`objective.shaping`).
    Shaping,
    /// A policy loss (`objective.loss`).
    PolicyLoss,
    /// How tokens become one number (`objective.aggregation`).
    Aggregation,
    /// A divergence from the reference (`objective.kl`).
    Divergence,
    /// Entropy bonus (`objective.entropy`).
    Entropy,
    /// The critic (`critic`).
    Critic,
    /// Which tokens and sequences are left out of the loss (`objective.masks`).
    Mask,
    /// Correction for a sampler that is not the policy (`objective.correction`).
    Correction,
    /// A filter over groups (`filter`).
    Filter,
    /// A reason to end a run (`train.early_stop`).
    EarlyStop,
    /// A measurement of a batch.
    Diagnostic,
    /// Sharing sequences out over ranks and micro-batches.
    Balancing,
}

impl Family {
    /// All, in the order of the page.
    pub const ALL: [Self; 14] = [
        Self::Preset,
        Self::Advantage,
        Self::Shaping,
        Self::PolicyLoss,
        Self::Aggregation,
        Self::Divergence,
        Self::Entropy,
        Self::Critic,
        Self::Mask,
        Self::Correction,
        Self::Filter,
        Self::EarlyStop,
        Self::Diagnostic,
        Self::Balancing,
    ];

    /// The configuration key that takes its names, or the word for it where there is none.
    pub fn key(self) -> &'static str {
        match self {
            Self::Preset => "preset",
            Self::Advantage => "objective.advantage",
            Self::Shaping => "objective.shaping",
            Self::PolicyLoss => "objective.loss",
            Self::Aggregation => "objective.aggregation",
            Self::Divergence => "objective.kl",
            Self::Entropy => "objective.entropy",
            Self::Critic => "critic",
            Self::Mask => "objective.masks",
            Self::Correction => "objective.correction",
            Self::Filter => "filter",
            Self::EarlyStop => "train.early_stop",
            Self::Diagnostic => "metrics",
            Self::Balancing => "balancing",
        }
    }

    /// The heading of its part of the page.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Preset => "Presets",
            Self::Advantage => "Advantages",
            Self::Shaping => "Advantage shaping",
            Self::PolicyLoss => "Policy losses",
            Self::Aggregation => "Aggregation",
            Self::Divergence => "Divergence from the reference",
            Self::Entropy => "Entropy",
            Self::Critic => "Critic",
            Self::Mask => "Masks",
            Self::Correction => "Correction for the sampler",
            Self::Filter => "Filters",
            Self::EarlyStop => "Early stopping",
            Self::Diagnostic => "Diagnostics",
            Self::Balancing => "Balancing",
        }
    }
}

/// One named thing. Formulas use the notation of the code: `r` ratio, `d` log-ratio, `A` advantage, `R`
/// reward, `w_t` weight of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The name in the configuration.
    pub name: &'static str,
    /// What it is.
    pub family: Family,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// How it is computed, in one line of plain text.
    pub formula: &'static str,
    /// Paper with its arXiv number and equation, or the package that introduced it.
    pub source: &'static str,
    /// Configuration keys that it reads, each with the value that a run has where nobody sets it:
    /// `("objective.loss.dual_clip", "3")`. `required`: it must be chosen. A remark in brackets may follow
    /// the value. Empty: it has none. Items of lists (shapings) and things without keys (diagnostics,
    /// balancing) have plain names.
    pub defaults: &'static [(&'static str, &'static str)],
    /// What it gives for singletons, uniform groups, unscored members, empty batches, one sentence each.
    pub degenerate: &'static [&'static str],
    /// Who calls it what: `("verl", "algorithm.adv_estimator=rloo")`.
    pub known_as: &'static [(&'static str, &'static str)],
    /// Where it departs from those, and by which setting their numbers are had, one sentence each.
    pub differences: &'static [&'static str],
}

impl Entry {
    /// The configuration keys that it reads, each with the value that a run has where nobody sets it: those
    /// of its own description, where its family is a tagged section.
    fn settings(&self) -> Vec<(String, String)> {
        let shape = match self.family {
            Family::Advantage => Advantage::shape(),
            Family::Shaping => Shaping::shape(),
            Family::PolicyLoss => PolicyLoss::shape(),
            Family::Filter => GroupFilter::shape(),
            _ => {
                let own = |text: &str| text.to_owned();
                return self.defaults.iter().map(|(key, default)| (own(key), own(default))).collect();
            }
        };
        let keys = shape.keys_of_kind(self.name);
        let text =
            |key: &KeySpec| if key.is_required() { "required".to_owned() } else { key.default.to_string() };
        // Shapings are items of a list, whose keys have no dotted name.
        let path =
            if self.family == Family::Shaping { String::new() } else { format!("{}.", self.family.key()) };
        keys.iter().map(|key| (format!("{path}{}", key.name), text(key))).collect()
    }

    /// The entry as lines for a terminal.
    pub fn plain(&self) -> String {
        let mut text =
            format!("{} ({})\n{}\n\n    {}\n\n", self.name, self.family.key(), self.meaning, self.formula);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "source      {}", self.source);
        for (setting, value) in self.settings() {
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
    pub fn markdown(&self, level: usize) -> String {
        let mut page = format!("{} `{}`\n\n{}\n\n", "#".repeat(level), self.name, self.meaning);
        // Writing to a string cannot fail.
        let _ = write!(page, "    {}\n\n- source: {}\n", self.formula, self.source);
        let settings = self.settings();
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
