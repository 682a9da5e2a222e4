//! The resolved configuration as YAML, with the origin of every value.

use serde_json::Value as Json;

use crate::load::Loaded;
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
        section(&mut text, "", 0, table::root(), &self.values(), &|path| match self
            .followed
            .iter()
            .find(|followed| followed.key == path)
        {
            Some(followed) => format!("follows {}", followed.leader),
            None => self.tree.at(path).map_or_else(|| "default".to_owned(), describe),
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
