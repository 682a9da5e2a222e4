//! The protection that is in force on this machine, layer by layer.

use std::fmt;

use serde::Deserialize;

use super::settings::Required;

/// Something that code in a sandbox must not be able to do, and what prevents it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Layer {
    /// `limits`, `network`, `processes`, `files`, `system calls` or `user`.
    pub name: String,
    /// What prevents it; empty if nothing does.
    pub means: Vec<String>,
    /// What is missing, and why.
    pub reason: String,
}

impl Layer {
    /// Whether anything prevents it.
    pub fn is_in_force(&self) -> bool {
        !self.means.is_empty()
    }

    fn words(&self) -> &str {
        match self.name.as_str() {
            "network" => "no network",
            "processes" => "own processes",
            "files" => "read-only files",
            "system calls" => "fewer system calls",
            "user" => "not root",
            name => name,
        }
    }
}

/// The protection of a sandbox, as tested when it was made. Its display is one line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Protection {
    /// The layers, always the same six.
    pub layers: Vec<Layer>,
    /// Version of the interpreter.
    pub python: String,
}

impl Protection {
    /// Whether a layer is in force.
    pub fn has(&self, name: &str) -> bool {
        self.layers.iter().any(|layer| layer.name == name && layer.is_in_force())
    }

    /// Whether every layer is in force.
    pub fn is_whole(&self) -> bool {
        self.layers.iter().all(Layer::is_in_force)
    }

    /// Whether another one has the same means in force.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let means = |protection: &Self| -> Vec<Vec<String>> {
            protection.layers.iter().map(|layer| layer.means.clone()).collect()
        };
        means(self) == means(other)
    }

    /// Whether it has the required protection.
    pub fn fulfils(&self, required: Required) -> bool {
        match required {
            Required::None => true,
            Required::NoNetwork => self.has("network"),
            Required::All => self.is_whole(),
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |layer: &Layer| match layer.name.as_str() {
            "limits" => layer.words().to_owned(),
            // One of two means is missing.
            _ if !layer.reason.is_empty() => {
                format!("{} ({}; without {})", layer.words(), layer.means.join(", "), layer.reason)
            }
            _ => format!("{} ({})", layer.words(), layer.means.join(", ")),
        };
        let held: Vec<String> = self.layers.iter().filter(|layer| layer.is_in_force()).map(word).collect();
        write!(f, "sandbox (Python {}): {}", self.python, held.join(", "))?;
        let lacking = self.layers.iter().filter(|layer| !layer.is_in_force());
        let lacking: Vec<String> =
            lacking.map(|layer| format!("{} ({})", layer.words(), layer.reason)).collect();
        if !lacking.is_empty() {
            write!(f, "; NOT in force: {}", lacking.join(", "))?;
        }
        Ok(())
    }
}
