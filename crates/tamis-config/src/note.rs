//! Translations of keys of other systems.

use std::fmt;

/// A note on the translation of a key that was given in another system's terms.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The system that the key belongs to.
    pub owner: &'static str,
    /// The key.
    pub key: String,
    /// Value of the key; `None` if it was not given and its owner's default was taken.
    pub value: Option<String>,
    /// Translation of the key.
    pub outcome: NoteOutcome,
    /// Something to know about it.
    pub remark: Option<Remark>,
    /// Whether something changes or is lost by it: what a run's console shows.
    pub is_change: bool,
}

/// Something to know about a translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// The key was not given, and this is its owner's default.
    OwnersDefault,
    /// Anything else.
    Text(String),
}

/// The translations of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum NoteOutcome {
    /// Our keys, with their values.
    Became(Vec<(String, String)>),
    /// Part of what another key became.
    PartOf(String),
    /// Nothing, for a reason.
    NoEffect(String),
    /// Nothing, for a reason that the user should see.
    Ignored(String),
}

impl Note {
    /// Removes one of our keys, or all keys of a section, from this translation, for a reason. Returns
    /// whether the note is still useful; a note on an unset default is not.
    pub fn forget(&mut self, ours: &str, reason: &str) -> bool {
        let NoteOutcome::Became(keys) = &mut self.outcome else { return true };
        let num_before = keys.len();
        keys.retain(|(key, _)| {
            key.strip_prefix(ours).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('.'))
        });
        if keys.len() == num_before || !keys.is_empty() {
            return true;
        }
        self.outcome = NoteOutcome::NoEffect(reason.to_owned());
        self.value.is_some()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key)?,
            None => write!(f, "{} is not given", self.key)?,
        }
        match &self.outcome {
            NoteOutcome::Became(ours) => {
                f.write_str(" -> ")?;
                for (index, (key, value)) in ours.iter().enumerate() {
                    write!(f, "{}{key}: {value}", if index == 0 { "" } else { ", " })?;
                }
            }
            NoteOutcome::PartOf(key) => write!(f, " is translated together with {key}")?,
            NoteOutcome::NoEffect(reason) if self.value.is_none() => write!(f, ": {reason}")?,
            NoteOutcome::NoEffect(reason) => write!(f, " has no effect: {reason}")?,
            NoteOutcome::Ignored(reason) if self.value.is_none() => write!(f, ": warning: {reason}")?,
            NoteOutcome::Ignored(reason) => write!(f, " has no effect: warning: {reason}")?,
        }
        match &self.remark {
            Some(Remark::OwnersDefault) => write!(f, " ({}'s default)", self.owner),
            Some(Remark::Text(remark)) => write!(f, " ({remark})"),
            None => Ok(()),
        }
    }
}
