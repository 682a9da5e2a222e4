//! The named algorithms, one YAML file each. The comment at its head states its meaning, its formula, its
//! source and its differences from other implementations. The schema, the reference page and the catalogue
//! take their texts from there.

use std::fmt;
use std::sync::OnceLock;

use tamis_core::catalogue::{Entry, Family};
use tamis_core::setting::{Described, Shape};

use crate::source::{Origin, Source, SourceKind};
use crate::tree::{Node, Value};
use crate::yaml;

/// The table of presets: a name, and with it the file `presets/NAME.yaml`.
macro_rules! presets {
    ($($variant:ident = $name:literal,)*) => {
        /// A named algorithm. Its settings override the defaults, and the user's settings override them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Preset {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )*
        }

        impl Preset {
            /// Every preset, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in a configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The settings as commented YAML.
            pub const fn yaml(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!("../presets/", $name, ".yaml")),)* }
            }
        }
    };
}

presets! {
    Grpo = "grpo",
    Dapo = "dapo",
    DapoPaper = "dapo_paper",
    DrGrpo = "dr_grpo",
    Rloo = "rloo",
    ReinforcePlusPlus = "reinforce_plus_plus",
    ReinforcePlusPlusBaseline = "reinforce_plus_plus_baseline",
    FlashReinforce = "flash_reinforce",
    Remax = "remax",
    Opo = "opo",
    Gpg = "gpg",
    Bnpo = "bnpo",
    Gspo = "gspo",
    Gmpo = "gmpo",
    Cispo = "cispo",
    Sapo = "sapo",
    Ppo = "ppo",
}

struct Parsed {
    entry: Entry,
    settings: Node,
}

impl Preset {
    fn parsed(self) -> &'static Parsed {
        static PARSED: OnceLock<Vec<Parsed>> = OnceLock::new();
        let all = PARSED.get_or_init(|| Self::ALL.iter().map(|&preset| parse(preset)).collect());
        &all[self as usize]
    }

    /// The settings.
    pub fn settings(self) -> &'static Node {
        &self.parsed().settings
    }

    /// The entry of the catalogue.
    pub fn entry(self) -> &'static Entry {
        &self.parsed().entry
    }

    /// Whether the preset adds a soft overlong penalty to the rewards.
    pub fn adds_overlong(self) -> bool {
        self.settings().get("reward").is_some_and(|rewards| !overlong_rewards(rewards).is_empty())
    }
}

/// Reads a file of settings. Its first comment has a meaning, followed by `Formula:`, `Source:` and any
/// number of `Differs:`; continuation lines are indented.
fn parse(preset: Preset) -> Parsed {
    let mut parts: Vec<String> = Vec::new();
    for line in preset.yaml().lines().map_while(|line| line.strip_prefix("# ")) {
        match parts.last_mut().filter(|_| line.starts_with(' ')) {
            Some(part) => *part = format!("{part} {}", line.trim()),
            None => parts.push(line.to_owned()),
        }
    }
    let labelled = |label: &str| -> Vec<&'static str> {
        let texts = parts.iter().filter_map(|part| part.strip_prefix(label));
        texts.map(|text| &*text.trim().to_owned().leak()).collect()
    };
    let first = |texts: Vec<&'static str>| texts.first().copied().unwrap_or_default();
    let entry = Entry {
        name: preset.as_str(),
        family: Family::Preset,
        meaning: parts.first().map_or("", |meaning| meaning.clone().leak()),
        formula: first(labelled("Formula:")),
        source: first(labelled("Source:")),
        defaults: &[],
        degenerate: &["as its estimator and its loss"],
        known_as: &[],
        differences: labelled("Differs:").leak(),
    };
    let source = Source::new(SourceKind::Preset(preset.as_str()), preset.yaml());
    let settings = yaml::parse(&source).unwrap_or_else(|_| Node::empty_map(Origin::start_of(&source)));
    Parsed { entry, settings }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl serde::Serialize for Preset {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for Preset {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let preset = Self::ALL.iter().find(|preset| preset.as_str() == name);
        preset.copied().ok_or_else(|| serde::de::Error::custom(format!("there is no preset `{name}`")))
    }
}

impl Described for Preset {
    fn shape() -> Shape {
        Shape::Choice(Self::ALL.iter().map(|preset| (preset.as_str(), preset.entry().meaning)).collect())
    }
}

/// The indices of soft overlong penalties in a list of rewards.
pub fn overlong_rewards(rewards: &Node) -> Vec<usize> {
    let Value::List(items) = &rewards.value else { return Vec::new() };
    let is_overlong = |item: &Node| {
        item.get("kind")
            .is_some_and(|kind| matches!(&kind.value, Value::Scalar { text, .. } if text == "soft_overlong"))
    };
    items.iter().enumerate().filter(|(_, item)| is_overlong(item)).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_says_what_it_is_and_where_it_is_from() {
        for preset in Preset::ALL {
            let Entry { meaning, formula, source, .. } = preset.entry();
            assert!(meaning.ends_with('.') && !formula.is_empty() && !source.is_empty(), "{preset}");
            assert!(!meaning.contains(':') || !meaning.starts_with("Formula"), "{preset}");
            assert!(preset.settings().get("objective").is_some(), "{preset}");
        }
        let [grpo, ..] = Preset::ALL else { panic!("no presets") };
        assert!(grpo.entry().formula.ends_with("A = (r - mean)/(std + 1e-6)"), "lines are joined");
        assert_eq!(grpo.entry().differences.len(), 1);
    }
}
