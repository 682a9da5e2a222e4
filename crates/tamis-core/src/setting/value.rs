//! Values of keys that have a written form of their own.

use core::time::Duration;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Described, PathKind, Shape};

/// A program: its path, or a bare name that is looked up on `PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program(pub PathBuf);

/// The value of a key for an interpreter that takes the one of the key `run.python`.
pub const PYTHON_OF_RUN: &str = "run.python";

impl Program {
    /// The interpreter of the key `run.python`.
    pub fn of_run() -> Self {
        Self(PYTHON_OF_RUN.into())
    }
}

impl Deref for Program {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Described for Program {
    fn shape() -> Shape {
        Shape::Path(PathKind::OrProgram)
    }
}

/// A model: its folder, or its name on a hub.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelPlace {
    /// The folder as given, or the name (`hf://OWNER/NAME`), with the commit once the name was resolved.
    pub named: PathBuf,
    /// The folder with the files of a name, once they have been found.
    pub folder: Option<PathBuf>,
}

impl ModelPlace {
    /// The folder with the files; the name if its files have not been found.
    pub fn folder(&self) -> &Path {
        self.folder.as_deref().unwrap_or(&self.named)
    }
}

impl Serialize for ModelPlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.named.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ModelPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { named: PathBuf::deserialize(deserializer)?, folder: None })
    }
}

impl Described for ModelPlace {
    fn shape() -> Shape {
        Shape::Path(PathKind::OrModel)
    }
}

/// A length of time above 0, written `500ms`, `30s`, `5m`, `1h`, or as a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSpan(pub Duration);

impl TimeSpan {
    /// A duration in seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Reads the written form; `None` if the text is no length of time above 0.
    ///
    /// ```
    /// use tamis_core::setting::TimeSpan;
    /// assert_eq!(TimeSpan::parse("5m"), Some(TimeSpan::seconds(300)));
    /// assert_eq!([TimeSpan::parse("0s"), TimeSpan::parse("5 years")], [None, None]);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (number, unit) = (text.get(..digits)?, text.get(digits..)?);
        let seconds = match unit {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let value = number.parse::<f64>().ok()? * seconds;
        Duration::try_from_secs_f64(value).ok().filter(|duration| !duration.is_zero()).map(Self)
    }
}

impl std::fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.subsec_nanos() == 0 {
            write!(f, "{}s", self.0.as_secs())
        } else if self.0.subsec_nanos().is_multiple_of(1_000_000) {
            write!(f, "{}ms", self.0.as_millis())
        } else {
            write!(f, "{}s", self.0.as_secs_f64())
        }
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not a duration")))
    }
}

impl Described for TimeSpan {
    fn shape() -> Shape {
        Shape::TimeSpan
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.0.as_secs_f64()]
    }
}
