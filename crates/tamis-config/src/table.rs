//! The table of keys, flattened from the schema.
//!
//! A key is known by its dotted path. The table has each key once, with its type, default and description. It
//! answers what a path means, and which key is the most similar to an unknown one.

use std::sync::OnceLock;

use crate::diagnostic::Problem;
use crate::reader::OtherNames;
use crate::schema::Config;
use crate::suggest;
use crate::tree::{join, with_brackets};
use tamis_core::setting::{Described as _, KeySpec, Shape};

/// One key of the table, with its full path.
#[derive(Debug, Clone)]
pub struct ConfigKey {
    /// Dotted path. Keys inside list items have `[]` after the list's name; keys of only one kind have the
    /// kind in angle brackets (`reward[]<gsm8k>.method`).
    pub path: String,
    /// Specification of the key.
    pub spec: KeySpec,
    /// Shape of the section.
    pub shape: Shape,
}

/// The shape of a whole configuration.
pub fn root() -> &'static Shape {
    static ROOT: OnceLock<Shape> = OnceLock::new();
    ROOT.get_or_init(Config::shape)
}

/// Every key, in the order of definition; sections come before their keys.
pub fn keys() -> &'static [ConfigKey] {
    static KEYS: OnceLock<Vec<ConfigKey>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = Vec::new();
        collect("", root(), &mut keys);
        keys
    })
}

/// The paths that an unknown key may have meant.
pub(crate) fn suggestion_keys() -> &'static [String] {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    PATHS.get_or_init(|| {
        keys().iter().map(|key| key.path.clone()).filter(|path| !path.contains(['<', '['])).collect()
    })
}

fn collect(path: &str, shape: &Shape, keys: &mut Vec<ConfigKey>) {
    match shape {
        Shape::Section { keys: specs, .. } => collect_specs(path, specs, keys),
        Shape::Nullable(inner) | Shape::OrName(inner) => collect(path, inner, keys),
        Shape::List(inner) => collect(&format!("{path}[]"), inner, keys),
        Shape::Tagged { common, variants, .. } => {
            collect_specs(path, common, keys);
            for variant in variants {
                collect_specs(&format!("{path}<{}>", variant.name), &variant.keys, keys);
            }
        }
        Shape::Bool
        | Shape::Integer
        | Shape::Number
        | Shape::Text(_)
        | Shape::Path(_)
        | Shape::NumberOrText(_)
        | Shape::TextForm(_)
        | Shape::TimeSpan
        | Shape::Choice(_)
        | Shape::Tuple(..)
        | Shape::OneOrMany(_)
        | Shape::Free
        | Shape::Named(_) => {}
    }
}

fn collect_specs(path: &str, specs: &[KeySpec], keys: &mut Vec<ConfigKey>) {
    for spec in specs {
        let full = join(path, spec.name);
        let shape = (spec.shape)();
        keys.push(ConfigKey { path: full.clone(), spec: spec.clone(), shape: shape.clone() });
        collect(&full, &shape, keys);
    }
}

/// Content of a path.
#[derive(Debug, Clone)]
pub enum Place {
    /// A key of the table.
    Key(KeySpec),
    /// An item of a list.
    Item,
    /// Something inside a mapping that is not checked.
    Free,
}

/// A path that leads nowhere.
#[derive(Debug, Clone)]
pub struct Unknown {
    key: String,
    section: String,
    known: Vec<&'static str>,
    /// The same path within the first item of the list.
    item: Option<String>,
}

impl Unknown {
    pub(crate) fn into_problem(self, others: OtherNames) -> Problem {
        let owner = (others.owner_of)(&self.key);
        let is_value = self.known.is_empty() && !self.section.is_empty();
        let suggestion = self.item.map(|item| with_brackets(&item)).or_else(|| {
            let all = suggestion_keys();
            let nearest = || suggest::nearest_key(&self.key, &self.section, &self.known, all, others.ours_of);
            if is_value { None } else { nearest() }
        });
        let known = self.known.into_iter().map(str::to_owned).collect();
        Problem::UnknownKey { key: with_brackets(&self.key), suggestion, known, owner }
    }
}

/// Finds the content of a dotted path, with list items as numbers.
pub fn place(path: &str) -> Result<Place, Unknown> {
    let mut shape = root().clone();
    let mut place = Place::Item;
    let mut section = String::new();
    for part in path.split('.') {
        while let Shape::Nullable(inner) | Shape::OrName(inner) = shape {
            shape = *inner;
        }
        let unknown = |known: Vec<&'static str>| Unknown {
            key: path.to_owned(),
            section: section.clone(),
            known,
            item: None,
        };
        let spec = match shape {
            Shape::Section { keys, .. } => {
                let known = keys.iter().map(|spec| spec.name).collect();
                keys.into_iter().find(|spec| spec.name == part).ok_or_else(|| unknown(known))?
            }
            Shape::Tagged { common, variants, .. } => {
                let mut keys = common;
                keys.extend(variants.into_iter().flat_map(|variant| variant.keys));
                let mut known: Vec<&'static str> = Vec::new();
                for spec in &keys {
                    if !known.contains(&spec.name) {
                        known.push(spec.name);
                    }
                }
                keys.into_iter().find(|spec| spec.name == part).ok_or_else(|| unknown(known))?
            }
            Shape::List(item) | Shape::Tuple(item, _) | Shape::OneOrMany(item)
                if part.parse::<usize>().is_ok() =>
            {
                shape = *item;
                place = Place::Item;
                section = join(&section, part);
                continue;
            }
            Shape::Free | Shape::Named(_) => return Ok(Place::Free),
            Shape::List(_) | Shape::OneOrMany(_) => {
                // Items have no names.
                let rest = path[section.len()..].trim_start_matches('.').split_once('.');
                let item =
                    rest.map_or_else(|| format!("{section}.0"), |(_, rest)| format!("{section}.0.{rest}"));
                let is_one = self::place(&item).is_ok();
                return Err(Unknown { item: is_one.then_some(item), ..unknown(Vec::new()) });
            }
            _ => return Err(unknown(Vec::new())),
        };
        shape = (spec.shape)();
        place = Place::Key(spec);
        section = join(&section, part);
    }
    Ok(place)
}
