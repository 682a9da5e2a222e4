//! The resolved configuration as YAML, with the origin of every value.

use serde_json::Value as Json;

use crate::derived::leader;
use crate::interpreters;
use crate::load::Loaded;
use crate::load::followers::{comment_of, comment_of_reward};
use crate::path::{PathText as _, map_paths};
use crate::render::{describe, json_of, section};
use crate::table;

impl Loaded {
    /// The resolved configuration as YAML with absolute paths, each value with a comment about its origin.
    /// Loading it gives the same configuration from any folder.
    pub fn show(&self) -> String {
        let mut text = String::new();
        // The values include everything that the preset sets. The preset is named again to show the
        // intention.
        let values = self.values();
        section(&mut text, "", 0, table::root(), &values, &|path| {
            let value = values.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&Json::Null);
            if self.followed.iter().any(|key| key == path) {
                return comment_of(value, leader(path).unwrap_or_default());
            }
            let origin = self.tree.at(path).map_or_else(|| "default".to_owned(), describe);
            let of_reward =
                path.starts_with("reward.").then(|| comment_of_reward(value, path, &self.followed)).flatten();
            of_reward.map_or_else(|| origin.clone(), |follow| format!("{origin}; {follow}"))
        });
        text
    }

    /// The value of every key, with absolute paths, because a relative path has another meaning in another
    /// folder.
    pub fn values(&self) -> Json {
        let mut values = json_of(&self.config);
        interpreters::unname(&mut values, &self.tree);
        map_paths(table::root(), &mut values, &|kind, path| kind.absolute(path));
        values
    }
}
