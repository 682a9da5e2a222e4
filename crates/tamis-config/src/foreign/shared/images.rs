//! Images of verl and EasyR1.

use crate::foreign::key::Rule;
use crate::foreign::translator::{Translator, quote};

/// Why a setting of the processor of images maps to nothing.
pub(in crate::foreign) const BY_PROCESSOR: &str =
    "how images become patches is said by the preprocessor_config.json of the model";
/// Why a number of images does.
pub(in crate::foreign) const LIMIT: &str =
    "a prompt has the images of its row; vLLM takes as many as its `--limit-mm-per-prompt` says";

/// The column of images.
pub(in crate::foreign) const COLUMN: Rule = Rule::new(2, "images", column);

fn column(t: &mut Translator) {
    const KEY: &str = "data.image_key";
    match t.text(KEY) {
        Some(name) if !matches!(name.as_str(), "images" | "image" | "") => {
            t.set(&[KEY], "data.columns.images", &quote(&name));
        }
        _ => t.no_effect(KEY, "columns `images` and `image` are found without it"),
    }
}

/// Whether the vision tower learns, by a key of its owner.
pub(in crate::foreign) fn freeze(t: &mut Translator, key: &str) {
    match t.text(key).as_deref() {
        Some("True" | "true") => t.set(&[key], "learner.freeze_vision", "true"),
        _ => t.no_effect(key, "the vision tower learns with the rest"),
    }
}
