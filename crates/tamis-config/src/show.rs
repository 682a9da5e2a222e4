//! The resolved configuration as YAML, with the origin of every value.

use serde_json::Value as Json;

use crate::derived::leader;
use crate::load::Loaded;
use crate::load::followers::{comment_of, comment_of_reward};
use crate::path::{PathText as _, map_paths};
use crate::render::{describe, json_of, section};
use crate::table;

impl Loaded {
    /// The resolved configuration as YAML, paths absolute, each value with a comment that says where it is
    /// from. Loading it gives the same configuration, wherever the text is put.
    pub fn show(&self) -> String {
        let mut text = String::new();
        // Everything that the preset sets is in the values; naming it again lets a reader see what was meant.
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

    /// The value of every key, paths absolute: a relative one would mean something else in another folder.
    pub fn values(&self) -> Json {
        let mut values = json_of(&self.config);
        map_paths(table::root(), &mut values, &|kind, path| kind.absolute(path));
        values
    }
}
