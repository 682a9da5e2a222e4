//! Values of keys that are more than a number, a text or a choice.

use std::num::NonZeroU64;
use std::path::PathBuf;

use serde_json::Value as Json;

use crate::path::PathText as _;
use crate::reader::Reader;
use crate::reader::Setting;
use crate::tree::{Node, Value, parse_float};
use tamis_core::schedule::{OnEmptyRound, RoundLimit};
use tamis_core::setting::{PathKind, Shape};

/// An amount of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Reads a number of bytes, with a unit if wanted: `512MiB`, `8GiB`, `1GB`. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        parse_bytes(text).map(Self)
    }
}

impl Setting for ByteSize {
    fn shape() -> Shape {
        Shape::NumberOrText("number of bytes, with a unit if wanted (512MiB, 8GiB, 1GB)")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let size = match &node.value {
            Value::Scalar { text, .. } => parse_bytes(text),
            Value::List(_) | Value::Map(_) => None,
        };
        if size.is_none() {
            reader.wrong_type(node, path, &Self::shape());
        }
        size.map(Self)
    }

    fn to_json(&self) -> Json {
        Json::from(self.0)
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

impl Setting for TokenizerSource {
    fn shape() -> Shape {
        Shape::Path(PathKind::OrCharacters)
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = String::read(node, path, reader)?;
        let path = PathKind::OrCharacters.resolve(&text, &node.origin);
        Some(if text == "char" { Self::Character } else { Self::File(path) })
    }

    fn to_json(&self) -> Json {
        match self {
            Self::Character => Json::String("char".to_owned()),
            Self::File(path) => path.to_json(),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::File(path) if path.as_os_str().is_empty())
    }
}

/// A mapping whose keys tamis does not look at.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FreeMap(pub serde_json::Map<String, Json>);

impl Setting for FreeMap {
    fn shape() -> Shape {
        Shape::Free
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        match node.to_json() {
            Json::Object(map) => Some(Self(map)),
            Json::Null => Some(Self::default()),
            _ => {
                reader.wrong_type(node, path, &Self::shape());
                None
            }
        }
    }

    fn to_json(&self) -> Json {
        Json::Object(self.0.clone())
    }
}

/// Interval in training steps; never, where it is written as 0 or a negative number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequency(pub Option<NonZeroU64>);

impl Frequency {
    /// Never.
    pub const NEVER: Self = Self(None);

    /// Every so many steps; 0 is never.
    pub fn every(steps: u64) -> Self {
        Self(NonZeroU64::new(steps))
    }

    /// Whether it is due after the step of this number, counted from 1.
    pub fn is_due(self, step: u64) -> bool {
        self.0.is_some_and(|steps| step > 0 && step.is_multiple_of(steps.get()))
    }
}

impl Setting for Frequency {
    fn shape() -> Shape {
        Shape::NumberOrText("whole number of steps (0 or negative: never)")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let steps = match &node.value {
            Value::Scalar { text, plain: true } => parse_float(text).filter(|value| value.fract() == 0.0),
            _ => None,
        };
        if steps.is_none() {
            reader.wrong_type(node, path, &Self::shape());
        }
        // Saturating: a negative number becomes 0, which is never.
        steps.map(|value| Self::every(value as u64))
    }

    fn to_json(&self) -> Json {
        Json::from(self.0.map_or(0, NonZeroU64::get))
    }

    fn numbers(&self) -> Vec<f64> {
        self.0.map_or(0, NonZeroU64::get).numbers()
    }
}

impl Setting for RoundLimit {
    fn shape() -> Shape {
        Shape::Nullable(Box::new(Shape::NumberOrText("whole number, or `auto`")))
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let limit = match &node.value {
            _ if node.is_null() => Some(Self::None),
            Value::Scalar { text, .. } if text == "auto" => Some(Self::Auto),
            // What is below 0 becomes 0, which the key's check refuses.
            Value::Scalar { text, plain: true } => {
                let rounds = parse_float(text).filter(|value| value.fract() == 0.0);
                rounds.map(|rounds| Self::Rounds(rounds as u64))
            }
            _ => None,
        };
        if limit.is_none() {
            reader.wrong_type(node, path, &Self::shape());
        }
        limit
    }

    fn to_json(&self) -> Json {
        match self {
            Self::None => Json::Null,
            Self::Rounds(rounds) => rounds.to_json(),
            Self::Auto => Json::String("auto".to_owned()),
        }
    }

    fn numbers(&self) -> Vec<f64> {
        match self {
            Self::Rounds(rounds) => rounds.numbers(),
            Self::None | Self::Auto => Vec::new(),
        }
    }
}

impl Setting for OnEmptyRound {
    fn shape() -> Shape {
        Shape::Text("text: retry, retry:N, skip or error")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = match &node.value {
            Value::Scalar { text, .. } => Some(text.as_str()),
            // `retry: 3` inside braces is what `retry:3` looks like with a space too many.
            Value::Map(entries) => match entries.as_slice() {
                [entry] if entry.key == "retry" => match &entry.node.value {
                    Value::Scalar { text, .. } => return retry_times(text, node, path, reader),
                    Value::List(_) | Value::Map(_) => None,
                },
                _ => None,
            },
            Value::List(_) => None,
        };
        match text {
            Some("retry") => Some(Self::Retry { times: None }),
            Some("skip") => Some(Self::Skip),
            Some("error") => Some(Self::Error),
            Some(text) if text.starts_with("retry:") => {
                retry_times(text.trim_start_matches("retry:").trim(), node, path, reader)
            }
            Some(_) | None => {
                reader.wrong_type(node, path, &Self::shape());
                None
            }
        }
    }

    fn to_json(&self) -> Json {
        Json::String(match self {
            Self::Retry { times: None } => "retry".to_owned(),
            Self::Retry { times: Some(times) } => format!("retry:{times}"),
            Self::Skip => "skip".to_owned(),
            Self::Error => "error".to_owned(),
        })
    }
}

fn retry_times(text: &str, node: &Node, path: &str, reader: &mut Reader) -> Option<OnEmptyRound> {
    // More than the machine counts is no limit that a run reaches.
    let times = text.parse::<u64>().ok().filter(|&times| times > 0);
    let times = times.map(|times| u32::try_from(times).unwrap_or(u32::MAX));
    if times.is_none() {
        reader.wrong_type(node, path, &OnEmptyRound::shape());
    }
    times.map(|times| OnEmptyRound::Retry { times: Some(times) })
}
