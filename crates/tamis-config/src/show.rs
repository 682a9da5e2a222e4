//! The resolved configuration as YAML, with the origin of every value.

use serde_json::Value as Json;

use crate::derived::{Followed, RESPONSE_LENGTH};
use crate::load::Loaded;
use crate::load::followers::{FOLLOW, FOLLOWS};
use crate::path::{PathText as _, map_paths};
use crate::reader::Setting;
use crate::render::{describe, section};
use crate::table;

impl Loaded {
    /// The resolved configuration as YAML, paths absolute, each value with a comment that says where it is
    /// from. Loading it gives the same configuration, wherever the text is put.
    pub fn show(&self) -> String {
        let mut text = String::new();
        // Everything that the preset sets is in the values; naming it again lets a reader see what was meant.
        section(&mut text, "", 0, table::root(), &self.values(), &|path| {
            if let Some(followed) = self.followed.iter().find(|followed| followed.key == path) {
                return format!("{FOLLOWS}{}", followed.leader);
            }
            let origin = self.tree.at(path).map_or_else(|| "default".to_owned(), describe);
            // A reward stands on one line.
            let within = |followed: &Followed| {
                let name = followed.key.strip_prefix(path)?.strip_prefix('.')?.to_owned();
                path.starts_with("reward.").then_some(name)
            };
            let names: Vec<String> = self.followed.iter().filter_map(within).collect();
            if names.is_empty() {
                return origin;
            }
            format!("{origin}; {}{FOLLOW}{RESPONSE_LENGTH}", names.join(", "))
        });
        text
    }

    /// The value of every key, paths absolute: a relative one would mean something else in another folder.
    pub fn values(&self) -> Json {
        let mut values = self.config.to_json();
        map_paths(table::root(), "", &mut values, &|_, kind, path| kind.absolute(path));
        values
    }
}
