//! One named thing of the field, described where its code stands.

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
    /// Configuration keys that it reads, by their whole names (`objective.entropy.coefficient`); their
    /// defaults are the configuration's. Empty where it has none, and where its own description has them
    /// (advantages, shapings, policy losses, filters).
    pub defaults: &'static [&'static str],
    /// What it gives for singletons, uniform groups, unscored members, empty batches, one sentence each.
    pub degenerate: &'static [&'static str],
    /// Who calls it what: `("verl", "algorithm.adv_estimator=rloo")`.
    pub known_as: &'static [(&'static str, &'static str)],
    /// Where it departs from those, and by which setting their numbers are had, one sentence each.
    pub differences: &'static [&'static str],
}
