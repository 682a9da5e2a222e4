//! One row of the table: a key of another system, its default there, and its translation.

use std::fmt;

use super::owner::Owner;

/// One entry of the table.
#[derive(Debug, Clone)]
pub struct ForeignKey {
    /// The key as its system writes it. A last part `*` matches everything below.
    pub key: &'static str,
    /// Its default in its system; empty if that does not matter here.
    pub default: &'static str,
    /// Translation of the key.
    pub becomes: Becomes,
}

/// The translations of a key.
#[derive(Debug, Clone)]
pub enum Becomes {
    /// One of our keys, with the same value.
    Key(&'static str),
    /// Our keys, computed by a rule from this key and related ones; the keys that the rule sets, for
    /// documentation.
    By(Rule, &'static str),
    /// Nothing, because it is not needed here, for a reason.
    NoEffect(&'static str),
    /// Refused, for a reason, unless it has one of these values, which request what tamis does anyway.
    Unless(Vec<&'static str>, &'static str),
}

impl fmt::Display for Becomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = |names: &mut dyn Iterator<Item = &str>, between: &str| {
            names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(between)
        };
        match self {
            Self::Key(ours) => write!(f, "`{ours}`"),
            Self::By(_, ours) => write!(f, "{}, with related keys", quote(&mut ours.split(' '), ", ")),
            Self::NoEffect(reason) => write!(f, "no effect: {reason}"),
            Self::Unless(allowed, reason) if allowed.is_empty() => write!(f, "refused: {reason}"),
            Self::Unless(allowed, reason) => {
                let allowed = quote(&mut allowed.iter().copied().filter(|value| !value.is_empty()), " or ");
                write!(f, "refused unless {allowed}: {reason}")
            }
        }
    }
}

/// The translation of keys that only have a meaning together.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub(super) owner: Owner,
    /// When the rule is applied: stages in order, and within a stage in the order of the tables.
    pub stage: u8,
    /// Name of the rule. Rows of one system's table share a rule by its name.
    pub name: &'static str,
    /// Rows for [`crate::steps::apply`].
    pub(super) steps: &'static str,
}
