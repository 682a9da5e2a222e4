//! Values of keys that are more than a number, a text or a choice.

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;
use tamis_core::schedule::{OnEmptyRound, RoundLimit};
use tamis_core::setting::{Described, Form, PathKind, Shape};

use crate::tree::parse_float;

/// An amount of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Reads a number of bytes, with a unit if wanted: `512MiB`, `8GiB`, `1GB`. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        parse_bytes(text).map(Self)
    }
}

impl Described for ByteSize {
    fn shape() -> Shape {
        Shape::NumberOrText(Form {
            words: "number of bytes, with a unit if wanted (512MiB, 8GiB, 1GB)",
            read: |text, _| parse_bytes(text).map(Json::from),
        })
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.0 as f64]
    }
}

fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = (text.get(..digits)?, text.get(digits..)?.trim_start());
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    let bytes = parse_float(number)? * factor as f64;
    (1.0..=9_007_199_254_740_992.0).contains(&bytes).then_some(bytes as u64)
}

/// Tokenizer of a model with random weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerSource {
    /// The built-in character tokenizer (`char`).
    Character,
    /// A `tokenizer.json`, or the folder that holds one.
    File(PathBuf),
}

impl Serialize for TokenizerSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Character => serializer.serialize_str("char"),
            Self::File(path) => serializer.serialize_str(&path.to_string_lossy()),
        }
    }
}

impl<'de> Deserialize<'de> for TokenizerSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = PathBuf::deserialize(deserializer)?;
        Ok(if path.as_os_str() == "char" { Self::Character } else { Self::File(path) })
    }
}

impl Described for TokenizerSource {
    fn shape() -> Shape {
        Shape::Path(PathKind::OrCharacters)
    }
}

/// A mapping whose keys tamis does not check.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FreeMap(pub serde_json::Map<String, Json>);

impl Described for FreeMap {
    fn shape() -> Shape {
        Shape::Free
    }
}

/// Interval in training steps; 0 or a negative number means never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequency(pub Option<NonZeroU64>);

impl Frequency {
    /// Never.
    pub const NEVER: Self = Self(None);

    /// Every `steps` steps; 0 is never.
    pub fn every(steps: u64) -> Self {
        Self(NonZeroU64::new(steps))
    }

    /// Whether it is due after the step of this number, counted from 1.
    pub fn is_due(self, step: u64) -> bool {
        self.0.is_some_and(|steps| step > 0 && step.is_multiple_of(steps.get()))
    }
}

impl Serialize for Frequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.map_or(0, NonZeroU64::get))
    }
}

impl<'de> Deserialize<'de> for Frequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::every)
    }
}

impl Described for Frequency {
    fn shape() -> Shape {
        Shape::NumberOrText(Form {
            words: "whole number of steps (0 or negative: never)",
            read: |text, is_plain| {
                let steps = parse_float(text).filter(|value| is_plain && value.fract() == 0.0);
                // Saturating: a negative number becomes 0, which is never.
                steps.map(|value| Json::from(value as u64))
            },
        })
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.0.map_or(0, NonZeroU64::get) as f64]
    }
}

/// The limit on the rounds of a step: a number, `auto`, or null for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxRounds(pub RoundLimit);

impl Serialize for MaxRounds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            RoundLimit::None => serializer.serialize_none(),
            RoundLimit::Rounds(rounds) => serializer.serialize_u64(rounds),
            RoundLimit::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for MaxRounds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let limit = Json::deserialize(deserializer)?;
        Ok(Self(match limit.as_u64() {
            Some(rounds) => RoundLimit::Rounds(rounds),
            None if limit.is_null() => RoundLimit::None,
            None => RoundLimit::Auto,
        }))
    }
}

impl Described for MaxRounds {
    fn shape() -> Shape {
        Shape::Nullable(Box::new(Shape::NumberOrText(Form {
            words: "whole number, or `auto`",
            read: |text, is_plain| {
                if text == "auto" {
                    return Some(Json::from(text));
                }
                // A negative number becomes 0, which the key's check refuses.
                let rounds = parse_float(text).filter(|value| is_plain && value.fract() == 0.0);
                rounds.map(|rounds| Json::from(rounds as u64))
            },
        })))
    }

    fn numbers(&self) -> Vec<f64> {
        match self.0 {
            RoundLimit::Rounds(rounds) => vec![rounds as f64],
            RoundLimit::None | RoundLimit::Auto => Vec::new(),
        }
    }
}

/// What happens if a round keeps no group: `retry`, `retry:N`, `skip` or `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmptyRounds(pub OnEmptyRound);

impl EmptyRounds {
    fn parse(text: &str) -> Option<Self> {
        Some(Self(match text {
            "retry" => OnEmptyRound::Retry { times: None },
            "skip" => OnEmptyRound::Skip,
            "error" => OnEmptyRound::Error,
            // `retry: 3` inside braces is `retry:3` with an extra space.
            _ => {
                let times =
                    text.strip_prefix("retry:")?.trim().parse::<u64>().ok().filter(|&times| times > 0)?;
                // A run never reaches a limit above the counter's range.
                OnEmptyRound::Retry { times: Some(u32::try_from(times).unwrap_or(u32::MAX)) }
            }
        }))
    }
}

impl fmt::Display for EmptyRounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            OnEmptyRound::Retry { times: None } => formatter.write_str("retry"),
            OnEmptyRound::Retry { times: Some(times) } => write!(formatter, "retry:{times}"),
            OnEmptyRound::Skip => formatter.write_str("skip"),
            OnEmptyRound::Error => formatter.write_str("error"),
        }
    }
}

impl Serialize for EmptyRounds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EmptyRounds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not an action for such a round")))
    }
}

impl Described for EmptyRounds {
    fn shape() -> Shape {
        Shape::TextForm(Form {
            words: "text: retry, retry:N, skip or error",
            read: |text, _| Self::parse(text).map(|rounds| Json::from(rounds.to_string())),
        })
    }
}
