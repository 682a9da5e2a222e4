//! `reward`: the functions that score completions. Each kind describes its own keys in tamis-env.

use serde::de::Error as _;
use serde::ser::{Error as _, SerializeMap as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tamis_core::setting::{Described, KeySpec, Keys, Settings as _, Shape, keys_of};
use tamis_env::reward::RewardKind;

/// Name of a verifier's raw outcome: right (1) or wrong (0), independent of its score and name.
pub(crate) const RAW_OUTCOME: &str = "acc";

tamis_core::settings! {
    /// The keys that every reward function has.
    pub struct RewardCommon {
        /// Name of this score; null: the kind. `acc` is reserved for the 0/1 outcome of the first verifier.
        name: Option<String> = None, NotEmpty;
        /// Weight of this score in the reward. 0: reported, but not trained on.
        weight: f64 = 1.0;
    }
}

/// One reward function: its name, its weight in the sum, and what it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardConfig {
    /// Name of the score; unique in the list.
    pub name: String,
    /// Weight of this score in the reward. 0: reported, but not trained on.
    pub weight: f64,
    /// Which reward function, with its parameters.
    pub kind: RewardKind,
}

impl Serialize for RewardConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(None)?;
        keys.serialize_entry("name", &self.name)?;
        keys.serialize_entry("kind", self.kind.as_str())?;
        keys.serialize_entry("weight", &self.weight)?;
        let own = serde_json::to_value(&self.kind).map_err(S::Error::custom)?;
        for (key, value) in own.as_object().into_iter().flatten().filter(|(key, _)| *key != "kind") {
            keys.serialize_entry(key, value)?;
        }
        keys.end()
    }
}

impl<'de> Deserialize<'de> for RewardConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = Keys::deserialize(deserializer)?;
        let RewardCommon { name, weight } = RewardCommon::take_keys(&mut keys).map_err(D::Error::custom)?;
        let kind: RewardKind = serde_json::from_value(keys.into()).map_err(D::Error::custom)?;
        // A reward with the name of the raw outcome would hide it.
        let name = name.filter(|name| name != RAW_OUTCOME).unwrap_or_else(|| kind.as_str().to_owned());
        Ok(Self { name, weight, kind })
    }
}

impl Described for RewardConfig {
    fn shape() -> Shape {
        let mut shape = RewardKind::shape();
        if let Shape::Tagged { doc, common, .. } = &mut shape {
            *doc = "One reward function.";
            let kind: Vec<KeySpec> = std::mem::replace(common, keys_of::<RewardCommon>());
            common.splice(1..1, kind);
        }
        shape
    }
}
