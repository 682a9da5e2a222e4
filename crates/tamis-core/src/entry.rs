//! One named thing of the field, described beside its code.

/// Family of an entry: the configuration key that takes its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// A whole algorithm (`preset`).
    Preset,
    /// A task that makes its own prompts (`data.task`).
    Task,
    /// A reward function (`reward`).
    Reward,
    /// An advantage estimator (`objective.advantage`).
    Advantage,
    /// A change to finished advantages (`objective.shaping`).
    Shaping,
    /// A policy loss (`objective.loss`).
    PolicyLoss,
    /// A loss of supervised fine-tuning (`sft`).
    Supervised,
    /// Aggregations of tokens into one number (`objective.aggregation`).
    Aggregation,
    /// A divergence from the reference (`objective.kl`).
    Divergence,
    /// Entropy bonus (`objective.entropy`).
    Entropy,
    /// Distillation in the loss (`objective.distillation`).
    Distillation,
    /// The critic (`critic`).
    Critic,
    /// Masks that leave tokens and sequences out of the loss (`objective.masks`).
    Mask,
    /// Correction for a sampler that is not the policy (`objective.correction`).
    Correction,
    /// A filter over groups (`filter`).
    Filter,
    /// A reason to end a run (`train.early_stop`).
    EarlyStop,
    /// A measurement of a batch.
    Diagnostic,
    /// Distribution of sequences over ranks and micro-batches.
    Balancing,
}

impl Family {
    /// All, in the order of the page.
    pub const ALL: [Self; 18] = [
        Self::Preset,
        Self::Task,
        Self::Reward,
        Self::Advantage,
        Self::Shaping,
        Self::PolicyLoss,
        Self::Supervised,
        Self::Aggregation,
        Self::Divergence,
        Self::Entropy,
        Self::Distillation,
        Self::Critic,
        Self::Mask,
        Self::Correction,
        Self::Filter,
        Self::EarlyStop,
        Self::Diagnostic,
        Self::Balancing,
    ];

    /// The configuration key that takes its names, or a word for it if there is none.
    pub fn key(self) -> &'static str {
        self.words().0
    }

    /// The heading of its section of the page.
    pub fn heading(self) -> &'static str {
        self.words().1
    }

    /// A member of the family with its article, as in "`dapo` is a preset".
    pub fn noun(self) -> &'static str {
        self.words().2
    }

    /// Key, heading and noun.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Preset => ("preset", "Presets", "a preset"),
            Self::Task => ("data.task", "Tasks", "a task"),
            Self::Reward => ("reward", "Rewards", "a reward"),
            Self::Advantage => ("objective.advantage", "Advantages", "an advantage estimator"),
            Self::Shaping => ("objective.shaping", "Advantage shaping", "a change to advantages"),
            Self::PolicyLoss => ("objective.loss", "Policy losses", "a policy loss"),
            Self::Supervised => ("sft", "Supervised fine-tuning", "a loss of supervised fine-tuning"),
            Self::Aggregation => ("objective.aggregation", "Aggregation", "an aggregation"),
            Self::Divergence => ("objective.kl", "Divergence from the reference", "a divergence"),
            Self::Entropy => ("objective.entropy", "Entropy", "an entropy bonus"),
            Self::Distillation => ("objective.distillation", "Distillation in the loss", "a distillation"),
            Self::Critic => ("critic", "Critic", "a part of the critic"),
            Self::Mask => ("objective.masks", "Masks", "a mask"),
            Self::Correction => ("objective.correction", "Correction for the sampler", "a correction"),
            Self::Filter => ("filter", "Filters", "a filter"),
            Self::EarlyStop => ("train.early_stop", "Early stopping", "an early stop"),
            Self::Diagnostic => ("metrics", "Diagnostics", "a diagnostic"),
            Self::Balancing => ("balancing", "Balancing", "a way of balancing"),
        }
    }
}

/// One named thing. Formulas use the notation of the code: `r` ratio, `d` log-ratio, `A` advantage, `R`
/// reward, `w_t` weight of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The name in the configuration.
    pub name: &'static str,
    /// The kind of thing.
    pub family: Family,
    /// Its effect, as one sentence on one line. Empty for a kind or value, whose text is the doc of the line
    /// that registers it; [`catalogue::entries`](crate::catalogue::entries) fills it in.
    pub meaning: &'static str,
    /// Formula, in one line of plain text; empty for tasks and rewards.
    pub formula: &'static str,
    /// Paper with its arXiv number and equation, or the package that introduced it; empty for tasks and
    /// rewards.
    pub source: &'static str,
    /// Configuration keys that it reads, by their full names (`objective.entropy.coefficient`); their
    /// defaults are the configuration's. Empty if it has none, and for a kind of a section, which has the
    /// keys itself (rewards, advantages, shapings, policy losses, filters).
    pub defaults: &'static [&'static str],
    /// Results for singletons, uniform groups, unscored members and empty batches, one sentence each.
    pub degenerate: &'static [&'static str],
    /// Names in other systems: `("verl", "algorithm.adv_estimator=rloo")`.
    pub known_as: &'static [(&'static str, &'static str)],
    /// Differences from those systems, each with the setting that gives their numbers, one sentence each.
    pub differences: &'static [&'static str],
}

impl Entry {
    /// Completes the entry of a kind or value, whose text and keys come from its registration.
    pub const REGISTERED: Self = Self {
        name: "",
        family: Family::Filter,
        meaning: "",
        formula: "",
        source: "",
        defaults: &[],
        degenerate: &[],
        known_as: &[],
        differences: &[],
    };
}
