//! The catalogue of everything with a name in the field: the presets, and the parts that tamis-core
//! describes.

use std::fmt::Write as _;

use tamis_core::catalogue::{self, Entry, is_own_name};

use crate::preset::Preset;
use crate::suggest;
use crate::table::{self, Place};

/// All entries, the presets first.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    Preset::ALL.iter().map(|preset| preset.entry()).chain(catalogue::entries())
}

/// The entries of a name, as [`catalogue::named`] finds them, and the preset of that name.
pub fn named(name: &str) -> Vec<&'static Entry> {
    let presets = Preset::ALL.iter().map(|preset| preset.entry());
    let mut found: Vec<&'static Entry> = presets.filter(|entry| is_own_name(name, entry)).collect();
    let is_preset = !found.is_empty();
    found.extend(catalogue::named(name).into_iter().filter(|entry| !is_preset || is_own_name(name, entry)));
    found
}

/// An entry as lines for a terminal; a preset with what it sets, as its file has it.
pub fn plain(entry: &Entry) -> String {
    let mut text = entry.plain(&default_of);
    if let Some(preset) = Preset::ALL.iter().find(|preset| std::ptr::eq(preset.entry(), entry)) {
        text.push_str("\nsets (any of it can be overridden)\n\n");
        let head = |line: &&str| line.starts_with('#');
        for line in preset.yaml().lines().skip_while(head) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// The default of a key.
fn default_of(key: &str) -> String {
    match table::place(key) {
        Ok(Place::Key(spec)) if spec.is_required() => "required".to_owned(),
        Ok(Place::Key(spec)) => spec.default.to_string(),
        other => unreachable!("an entry names `{key}`: {other:?}"),
    }
}

/// Names that `name` may have been meant for; at most three.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let presets: Vec<&'static str> = Preset::ALL.iter().map(|preset| preset.as_str()).collect();
    let preset = suggest::nearest_value(name, &presets);
    let mut names: Vec<&'static str> =
        presets.into_iter().filter(|own| preset.as_deref() == Some(own)).collect();
    names.extend(catalogue::nearest(name));
    names.dedup();
    names.truncate(3);
    names
}

/// The whole catalogue as a page of Markdown: the text of `docs/algorithms.md`.
pub fn markdown() -> String {
    catalogue::markdown(&entries().collect::<Vec<_>>(), &default_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_keys_that_there_are() {
        for key in entries().flat_map(|entry| entry.defaults) {
            assert!(matches!(table::place(key), Ok(Place::Key(_))), "{key}");
        }
        assert_eq!(default_of("objective.kl.coefficient"), "0.001");
    }

    #[test]
    fn presets_and_parts_are_found_together() {
        let names = |name: &str| {
            named(name).into_iter().map(|entry| (entry.family.key(), entry.name)).collect::<Vec<_>>()
        };
        assert_eq!(names("Dr.GRPO"), [("preset", "dr_grpo"), ("objective.advantage", "dr_grpo")]);
        assert_eq!(names("DAPO"), [("preset", "dapo")]);
        assert_eq!(names("ppo"), [("preset", "ppo")]);
        assert_eq!(names("vanilla"), [("objective.loss", "clip")]);
        assert!(names("nothing of that name").is_empty());
        assert_eq!(nearest("drgpro"), ["dr_grpo"]);
        assert_eq!(nearest("dapo_papr"), ["dapo_paper"]);
    }
}
