//! `reward`: the functions that score completions. Each kind describes its own keys in tamis-env.

use tamis_core::setting::{Check, Described, KeySpec, Shape, keys_of};
use tamis_env::reward::RewardKind;

use crate::reader::Reader;
use crate::reader::Setting;
use crate::tree::Node;

/// The raw outcome of a verifier: right (1) or wrong (0), whatever its score and its name.
pub(crate) const RAW_OUTCOME: &str = "acc";

tamis_core::settings! {
    /// The keys that every reward function has.
    pub struct RewardCommon {
        /// Name of this score; null: the kind. `acc` is reserved for the 0/1 outcome of the first verifier.
        name: Option<String> = None, NotEmpty;
        /// Weight of this score in the reward. 0: measured, not trained on.
        weight: f64 = 1.0;
    }
}

/// One reward function: its name, its weight in the sum, and what it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardConfig {
    /// Name of the score; unique in the list.
    pub name: String,
    /// Weight of this score in the reward. 0: measured, not trained on.
    pub weight: f64,
    /// Which reward function, with its parameters.
    pub kind: RewardKind,
}

impl serde::Serialize for RewardConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl Setting for RewardConfig {
    fn shape() -> Shape {
        let mut shape = RewardKind::shape();
        if let Shape::Tagged { doc, common, .. } = &mut shape {
            *doc = "One reward function.";
            let kind: Vec<KeySpec> = std::mem::replace(common, keys_of::<RewardCommon>());
            common.splice(1..1, kind);
        }
        shape
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let shape = Self::shape();
        let variant = reader.open_kind(node, path, &shape)?;
        let name = reader.key::<Option<String>>(node, path, "name", "null", Check::NotEmpty);
        let weight = reader.key::<f64>(node, path, "weight", "1.0", Check::Any);
        let kind = reader.kind::<RewardKind>(node, path, variant)?;
        let name = name?.filter(|name| name != RAW_OUTCOME).unwrap_or_else(|| kind.as_str().to_owned());
        Some(Self { name, weight: weight?, kind })
    }

    fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::Map::new();
        object.insert("name".to_owned(), self.name.to_json());
        object.insert("kind".to_owned(), serde_json::Value::String(self.kind.as_str().to_owned()));
        object.insert("weight".to_owned(), self.weight.to_json());
        if let Ok(serde_json::Value::Object(keys)) = serde_json::to_value(&self.kind) {
            object.extend(keys.into_iter().filter(|(key, _)| key != "kind"));
        }
        serde_json::Value::Object(object)
    }
}
