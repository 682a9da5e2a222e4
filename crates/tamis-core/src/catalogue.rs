//! What there is, by its name in the field: one entry per estimator, loss, filter and correction.
//!
//! Every module states its own entries beside the code that they describe ([`entries`] chains them). Help texts, `tamis explain NAME`
//! and the generated page `docs/algorithms.md` read this table and nothing else.

use std::fmt::Write;

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
    /// The critic (`train.critic`).
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

/// One named thing. Formulas use the notation of the code: `r` ratio, `d` log-ratio, `A` advantage, `R` reward, `w_t` weight of a token.
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
    /// Settings with their defaults: `("epsilon", "1e-6")`. Empty: it has none.
    pub defaults: &'static [(&'static str, &'static str)],
    /// What it gives for singletons, uniform groups, unscored members, empty batches, one sentence each.
    pub degenerate: &'static [&'static str],
    /// Who calls it what: `("verl", "algorithm.adv_estimator=rloo")`.
    pub known_as: &'static [(&'static str, &'static str)],
    /// Where it departs from those, and by which setting their numbers are had, one sentence each.
    pub differences: &'static [&'static str],
}

impl Entry {
    /// The entry as a section of Markdown under a heading of the given level.
    pub fn markdown(&self, level: usize) -> String {
        let mut page = format!("{} `{}`\n\n{}\n\n", "#".repeat(level), self.name, self.meaning);
        // Writing to a string cannot fail.
        let _ = write!(page, "    {}\n\n- source: {}\n", self.formula, self.source);
        if !self.defaults.is_empty() {
            let settings: Vec<_> =
                self.defaults.iter().map(|(setting, value)| format!("`{setting}: {value}`")).collect();
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

/// All entries, family by family in the order of the modules.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    let tables: [&[Entry]; 4] = [
        crate::advantage::ENTRIES,
        crate::objective::ENTRIES,
        crate::filter::ENTRIES,
        crate::early_stop::ENTRIES,
    ];
    tables.into_iter().flatten()
}

/// The entries of a name: usually one, several where families share it (`grpo` is a preset and an advantage).
pub fn named(name: &str) -> Vec<&'static Entry> {
    entries().filter(|entry| entry.name == name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_within_a_family_and_every_entry_says_what_it_is() {
        let mut seen = HashSet::new();
        for entry in entries() {
            assert!(seen.insert((entry.family, entry.name)), "{} twice", entry.name);
            assert!(Family::ALL.contains(&entry.family));
            for text in [entry.meaning, entry.formula, entry.source] {
                assert!(!text.is_empty() && !text.contains('\n'), "{}", entry.name);
            }
        }
    }

    #[test]
    fn an_entry_is_found_by_its_name() {
        assert!(named("grpo").iter().any(|entry| entry.family == Family::Advantage));
        assert!(named("nothing of that name").is_empty());
    }
}
