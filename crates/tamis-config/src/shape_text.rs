//! Descriptions of shapes in words, for the reference page, the schema and `explain`.

use tamis_core::setting::{KeySpec, Shape};

/// The keys of a section by default. If it has a `kind`, these are the keys of the default kind.
pub(crate) fn default_keys(shape: &Shape) -> Option<Vec<KeySpec>> {
    match shape {
        Shape::Section { keys, .. } => Some(keys.clone()),
        Shape::Tagged { common, variants, default: Some(default), .. } => {
            let own = variants.iter().filter(|variant| variant.name == *default);
            Some(common.iter().chain(own.flat_map(|variant| &variant.keys)).cloned().collect())
        }
        _ => None,
    }
}

/// A text up to its first full stop or colon outside code and parentheses.
pub(crate) fn opening(text: &str) -> &str {
    let (mut is_code, mut depth) = (false, 0);
    let mut ends = text.char_indices().filter_map(|(place, c)| {
        is_code ^= c == '`';
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        let rest = text.get(place + 1..).unwrap_or_default();
        (matches!(c, '.' | ':') && !is_code && depth == 0 && (rest.is_empty() || rest.starts_with(' ')))
            .then_some(place)
    });
    ends.next().and_then(|end| text.get(..end)).unwrap_or(text)
}

/// The kinds of a section, each with its documentation; empty if it has no `kind`.
pub(crate) fn kinds(shape: &Shape) -> Vec<(&'static str, &'static str)> {
    match shape {
        Shape::Nullable(inner) | Shape::List(inner) | Shape::OrName(inner) => kinds(inner),
        Shape::Tagged { variants, .. } => variants.iter().map(|kind| (kind.name, kind.doc)).collect(),
        _ => Vec::new(),
    }
}

/// The named values of a type, each with its documentation; empty if it has none.
pub(crate) fn choice_values(shape: &Shape) -> Vec<(&'static str, &'static str)> {
    match shape {
        Shape::Choice(values) => values.clone(),
        Shape::Nullable(inner) | Shape::List(inner) => choice_values(inner),
        _ => Vec::new(),
    }
}
