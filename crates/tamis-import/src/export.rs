//! The way back: a configuration of tamis as settings of TRL or verl.
//!
//! The import is the judge. [`export`] tries values of the owner's keys, from the same table, and keeps those
//! that bring the import of all settings nearer to the configuration. What still differs in the end has no
//! counterpart there.
//!
//! ```text
//! configuration -> keys of the table that become what differs -> values to try -> import -> nearer? -> settings + what is lost
//! ```
//!
//! Most values to try are in the configuration itself or in the conditions of the key's rule. The block
//! `= export` of a table has a row for every other key: its values, in the language of [`crate::steps`],
//! divided by `|`. A key without values is never written. `+` in the third column says that verl takes the
//! key only with a `+` before it.

mod difference;
mod script;
mod search;

use serde_json::Value as Json;
use tamis_config::Config;
use tamis_config::render::json_of;

use crate::owner::Owner;
use search::Search;

/// A configuration as another system's settings.
#[derive(Debug, Clone)]
pub struct Export {
    /// The system.
    pub owner: Owner,
    /// Its keys with their values, as they are typed, in the order of its table. What is left out has the
    /// system's default.
    pub settings: Vec<(&'static str, String)>,
    /// What has no counterpart there.
    pub lost: Vec<Lost>,
    wanted: Json,
}

/// A value that another system has no setting for.
#[derive(Debug, Clone, PartialEq)]
pub struct Lost {
    /// The key of tamis.
    pub key: String,
    /// Its value here; `None` if the other system's command has such a value and the configuration has none.
    pub ours: Option<Json>,
    /// The value that the import of the other system's command has.
    pub theirs: Option<Json>,
}

/// The settings of TRL or verl that import as a configuration, and what none of them can say. Those of their
/// supervised trainers only for a run of supervised fine-tuning alone.
pub fn export(config: &Config, owner: Owner) -> Export {
    let mut wanted = json_of(config);
    if owner.is_sft() {
        // Without a number it depends on the model, there on the trainer.
        wanted["sft"]["learning_rate"] = config.sft_learning_rate().into();
    }
    let mut search = Search::new(owner, &wanted);
    search.run();
    let (settings, lost) = search.finish();
    Export { owner, settings, lost, wanted }
}

impl Export {
    /// The settings as arguments of [`import`](crate::import()).
    pub fn arguments(&self) -> Vec<String> {
        self.settings.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(own, _)| *own == key).map(|(_, value)| value.as_str())
    }
}

/// The value of a setting, with its type.
fn value_of(key: &str, text: &str) -> Json {
    let parsed = crate::parse_argument(None, &format!("{key}={text}"));
    parsed
        .ok()
        .and_then(|argument| argument.value().map(tamis_config::tree::Node::to_json))
        .unwrap_or_default()
}
