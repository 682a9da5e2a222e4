//! The catalogue of everything with a name in the field: presets, tasks, rewards, and the parts that
//! tamis-core describes.

use std::fmt::Write as _;
use std::sync::OnceLock;

use tamis_core::catalogue::{self, Entry, Family, is_own_name};
use tamis_core::objective::PolicyLoss;
use tamis_core::setting::{KeySpec, Shape, doc_text};
use tamis_env::reward::RewardKind;

use crate::preset::Preset;
use crate::reader::Elsewhere;
use crate::shape_text::{choice_values, kinds, opening};
use crate::suggest;
use crate::table::{self, Place};

/// All entries, the presets first.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    own_entries().chain(catalogue::entries())
}

/// The entries besides those of tamis-core.
fn own_entries() -> impl Iterator<Item = &'static Entry> {
    Preset::ALL.iter().map(|preset| preset.entry()).chain([&crate::schema::SFT_ENTRY]).chain(values())
}

/// Tasks and rewards. They are values of a key, which describes them.
fn values() -> &'static [Entry] {
    static VALUES: OnceLock<Vec<Entry>> = OnceLock::new();
    VALUES.get_or_init(|| {
        let entry = |family: Family, name: &'static str, doc: &str| {
            let mut meaning = doc_text(doc);
            if RewardKind::of_name(name).is_some_and(|kind| family == Family::Reward && kind.is_verifier()) {
                meaning.push_str(" A verifier: its score judges the answer.");
            }
            // It is leaked once per process, like a static text.
            let meaning = meaning.leak();
            Entry { name, family, meaning, ..Entry::REGISTERED }
        };
        let tasks = choice_values(&shape_of(Family::Task));
        let rewards = kinds(&shape_of(Family::Reward));
        let tasks = tasks.into_iter().map(|(name, doc)| entry(Family::Task, name, doc));
        tasks.chain(rewards.into_iter().map(|(name, doc)| entry(Family::Reward, name, doc))).collect()
    })
}

/// The shape of the key whose values are a family's names.
fn shape_of(family: Family) -> Shape {
    match table::place(family.key()) {
        Ok(Place::Key(spec)) => (spec.shape)(),
        _ => Shape::Free,
    }
}

/// The entries of a name, as [`catalogue::find`] finds them, and the preset, task or reward of that name.
pub fn find(name: &str) -> Vec<&'static Entry> {
    let mut found: Vec<&'static Entry> = own_entries().filter(|entry| is_own_name(name, entry)).collect();
    let is_own = !found.is_empty();
    found.extend(catalogue::find(name).into_iter().filter(|entry| !is_own || is_own_name(name, entry)));
    found
}

/// A hint for a name of the catalogue that was used as a configuration key, with the command that explains
/// the name; `None` for other names.
pub fn point_to(name: &str) -> Option<String> {
    let entry = find(name).into_iter().find(|entry| is_own_name(name, entry))?;
    Some(format!("`{}` is {}: `tamis explain {}`", entry.name, entry.family.noun(), entry.name))
}

/// Where a name belongs that a key does not take, with the settings that use it: the hint of a message. The
/// allowed value is returned instead if the name is another system's for one. `None` for a name of nothing.
pub(crate) fn elsewhere(name: &str, allowed: &[&'static str]) -> Option<Elsewhere> {
    let found = find(name);
    if let [entry] = found.as_slice()
        && allowed.contains(&entry.name)
    {
        return Some(Elsewhere::Here(entry.name));
    }
    let uses: Vec<String> =
        found.iter().map(|entry| format!("{} (`{}`)", entry.family.noun(), usage(entry))).collect();
    let first = found.first()?;
    let explained = if is_own_name(name, first) { first.name } else { name };
    Some(Elsewhere::There(format!("`{name}` is {} here: `tamis explain {explained}`", uses.join(" and "))))
}

/// The setting that uses an entry, as it is written on the command line.
fn usage(entry: &Entry) -> String {
    let (key, name) = (entry.family.key(), entry.name);
    match entry.family {
        Family::Preset | Family::Task | Family::Aggregation => format!("{key}={name}"),
        Family::Advantage | Family::PolicyLoss | Family::Filter => format!("{key}.kind={name}"),
        Family::Reward | Family::Shaping => format!("{key}=[{{kind: {name}}}]"),
        Family::Divergence => format!("{key}.estimator={name}"),
        _ => entry.defaults.first().map_or(key, |first| first).to_owned(),
    }
}

/// An entry in one line.
pub fn summarize(entry: &Entry) -> &'static str {
    // The first sentence. A preset keeps its whole meaning, because its contents come after a colon.
    if entry.family == Family::Preset { entry.meaning } else { opening(entry.meaning) }
}

/// An entry as lines for a terminal. A preset includes the settings of its file.
pub fn plain(entry: &Entry) -> String {
    let mut text = entry.plain(&settings_of);
    if let Some(preset) = Preset::ALL.iter().find(|preset| std::ptr::eq(preset.entry(), entry)) {
        text.push_str("\nsets (any of it can be overridden)\n\n");
        let head = |line: &&str| line.starts_with('#');
        for line in preset.yaml().lines().skip_while(head) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// The configuration keys that an entry reads, each with its default: the keys that it names and, if its
/// family is a section with a `kind`, those of its kind.
pub fn settings_of(entry: &Entry) -> Vec<(String, String)> {
    let shape = shape_of(entry.family);
    let (items, shape) = match shape.without_null() {
        Shape::List(item) => ("[]", &**item),
        other => ("", other),
    };
    let own = shape.keys_of_kind(entry.name);
    let own = own.iter().map(|spec| {
        let key = format!("{}{items}.{}", entry.family.key(), spec.name);
        (key, default_of(spec))
    });
    let level = leaves_level_open(entry).then_some("objective.importance");
    let named = entry.defaults.iter().copied().chain(level).map(|key| match table::place(key) {
        Ok(Place::Key(spec)) => (key.to_owned(), default_of(&spec)),
        other => unreachable!("an entry names `{key}`: {other:?}"),
    });
    own.chain(named).collect()
}

/// Whether an entry is a loss whose level of the ratio the user can choose.
fn leaves_level_open(entry: &Entry) -> bool {
    let loss = serde_json::from_value(serde_json::json!({ "kind": entry.name }));
    entry.family == Family::PolicyLoss && loss.is_ok_and(|loss: PolicyLoss| loss.has_importance_levels())
}

fn default_of(spec: &KeySpec) -> String {
    if spec.is_required() { "required".to_owned() } else { spec.default.to_string() }
}

/// At most three names that `name` may have meant.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let own: Vec<&'static str> = own_entries().map(|entry| entry.name).collect();
    let near = suggest::nearest_value(name, &own);
    let mut names: Vec<&'static str> = own.into_iter().filter(|own| near.as_deref() == Some(own)).collect();
    names.extend(catalogue::nearest(name));
    names.dedup();
    names.truncate(3);
    names
}

/// The whole catalogue as a page of Markdown: the text of `docs/algorithms.md`.
pub fn markdown() -> String {
    catalogue::markdown(&entries().collect::<Vec<_>>(), &settings_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_keys_that_there_are() {
        for key in entries().flat_map(|entry| entry.defaults) {
            assert!(matches!(table::place(key), Ok(Place::Key(_))), "{key}");
        }
        let settings = |name: &str| settings_of(find(name)[0]);
        assert!(settings("k3").contains(&("objective.kl.coefficient".to_owned(), "0.001".to_owned())));
        let gsm8k = [("reward[].method", "strict"), ("reward[].format_score", "0.0")];
        assert_eq!(settings("gsm8k"), gsm8k.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(settings("format"), [("reward[].pattern".to_owned(), "required".to_owned())]);
        assert_eq!(settings("dro"), [("objective.loss.beta".to_owned(), "required".to_owned())]);
    }

    #[test]
    fn every_reward_and_task_is_an_entry() {
        let all: Vec<_> = entries().map(|entry| (entry.family, entry.name)).collect();
        for name in RewardKind::NAMES {
            assert!(all.contains(&(Family::Reward, name)), "{name}");
        }
        for task in tamis_env::task::TaskKind::ALL {
            assert!(all.contains(&(Family::Task, task.as_str())), "{task}");
        }
        assert_eq!(point_to("dapo").as_deref(), Some("`dapo` is a preset: `tamis explain dapo`"));
        assert_eq!(point_to("GSM8K").as_deref(), Some("`gsm8k` is a reward: `tamis explain gsm8k`"));
        assert_eq!(point_to("rollout.n"), None);
    }

    #[test]
    fn presets_and_parts_are_found_together() {
        let names = |name: &str| {
            find(name).into_iter().map(|entry| (entry.family.key(), entry.name)).collect::<Vec<_>>()
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
