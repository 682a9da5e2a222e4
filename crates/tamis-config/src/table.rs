//! The table of keys, flattened from the schema.

use std::sync::OnceLock;

use crate::schema::Config;
use crate::setting::{KeySpec, Setting, Shape, join};

/// One key of the table, with its full path.
#[derive(Debug, Clone)]
pub struct Key {
    /// Dotted path. Keys inside the items of a list have `[]` after the list's name; those of a kind only, the kind in angle brackets
    /// (`reward[]<gsm8k>.method`).
    pub path: String,
    /// Its entry.
    pub spec: KeySpec,
    /// Its type.
    pub shape: Shape,
}

/// Every key, in the order of definition, sections before what is in them.
pub fn keys() -> &'static [Key] {
    static KEYS: OnceLock<Vec<Key>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = Vec::new();
        collect("", &Config::shape(), &mut keys);
        keys
    })
}

/// The paths that an unknown key may have been meant for.
pub(crate) fn suggestion_keys() -> &'static [String] {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    PATHS.get_or_init(|| {
        keys().iter().map(|key| key.path.clone()).filter(|path| !path.contains(['<', '['])).collect()
    })
}

fn collect(path: &str, shape: &Shape, keys: &mut Vec<Key>) {
    match shape {
        Shape::Section { keys: specs, .. } => collect_specs(path, specs, keys),
        Shape::Nullable(inner) => collect(path, inner, keys),
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
        | Shape::NumberOrText(_)
        | Shape::Choice(_)
        | Shape::Tuple(..)
        | Shape::OneOrMany(_)
        | Shape::Free => {}
    }
}

fn collect_specs(path: &str, specs: &[KeySpec], keys: &mut Vec<Key>) {
    for spec in specs {
        let full = join(path, spec.name);
        let shape = (spec.shape)();
        keys.push(Key { path: full.clone(), spec: spec.clone(), shape: shape.clone() });
        collect(&full, &shape, keys);
    }
}
