//! A satellite: commands, keys and files of verl, EasyR1, RAGEN and TRL. One table for each system, and one
//! for each supervised trainer, maps each key to ours with that system's default, or states that it has no
//! effect here and why, or refuses it.
//! [`load()`] and related functions translate before a configuration is loaded; [`import()`] prints the
//! translation of a whole command.
//!
//! ```text
//! arguments -> row of the table (by key and owner) -> rule (keys that mean something together) -> overrides + notes + problems
//! ```
//!
//! `tables/SYSTEM.tsv` holds the rows of a system (`table.rs`) and its rules (`steps.rs`). What a row cannot
//! express is a function that a row calls by name (`calls.rs`). It is in the folder of its system, or in
//! `shared` if several systems use it.

mod calls;
mod documents;
mod easyr1;
mod export;
mod free_values;
mod hydra;
mod import;
mod invocation;
mod key;
mod load;
mod options;
mod owner;
mod pages;
mod ragen;
mod shared;
mod shipped;
mod steps;
mod supervised;
mod table;
mod translate;
mod translator;
mod trl;
mod verl;
mod words;

use std::sync::LazyLock;

use hydra::Form;
use tamis_config::diagnostic::Diagnostic;
use tamis_config::override_argument::{self, Override, ValueForm};
use tamis_config::table::{Place, place};

use table::Table;

pub use export::{Export, Lost, export};
pub use hydra::text as hydra_text;
pub use import::{Import, import};
pub use invocation::{has_program, without_program};
pub use key::{Becomes, ForeignKey, Rule};
pub use load::{
    load, load_for_evaluation, load_of_run, load_run_to_show, load_sources, load_sources_to_show,
    load_to_check, load_to_show,
};
pub use options::{is_foreign_option, join_options};
pub use owner::Owner;
pub use pages::{explain, reference_markdown};
pub use shipped::SHIPPED;
pub use words::{OtherValue, find_value};

impl Owner {
    /// The rows of its table.
    pub fn keys(self) -> &'static [ForeignKey] {
        &self.table().rows
    }

    pub(crate) fn table(self) -> &'static Table {
        static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
            let mut tables: Vec<Table> = Vec::new();
            for owner in Owner::every() {
                let base = owner.base().map(|base| &tables[base as usize]);
                tables.push(table::read(owner, owner.text(), base));
            }
            tables
        });
        &TABLES[self as usize]
    }

    fn text(self) -> &'static str {
        match self {
            Self::Verl => include_str!("../tables/verl.tsv"),
            Self::EasyR1 => include_str!("../tables/easyr1.tsv"),
            Self::Ragen => include_str!("../tables/ragen.tsv"),
            Self::Trl => include_str!("../tables/trl.tsv"),
            Self::VerlSft => include_str!("../tables/verl-sft.tsv"),
            Self::TrlSft => include_str!("../tables/trl-sft.tsv"),
        }
    }
}

/// Defaults that a system sets in addition to its keys, in place of those of the system that it is built on:
/// the key, its default, and the translation of that.
pub(crate) fn own_defaults(owner: Owner) -> Vec<(&'static str, &'static str, String)> {
    if owner != Owner::Ragen {
        return Vec::new();
    }
    let of = |[key, default, becomes, ..]: [&'static str; 5]| {
        let (ours, value) = becomes.strip_prefix("default ")?.split_once('=')?;
        (!default.is_empty()).then(|| (key, default, format!("{}: {value}", ours.replace('*', ""))))
    };
    let mini = (
        "ppo_mini_batch_size",
        "32",
        "train.ppo_mini_batch_size: 2, which counts prompts (32 trajectories in groups of 16)".to_owned(),
    );
    owner.table().rule("defaults").steps.lines().map(table::columns).filter_map(of).chain([mini]).collect()
}

/// First parts of keys that only another system has.
const SECTIONS: &[(&str, Owner)] = &[
    ("actor_rollout_ref", Owner::Verl),
    ("algorithm", Owner::Verl),
    ("trainer", Owner::Verl),
    ("critic", Owner::Verl),
    ("reward_model", Owner::Verl),
    ("custom_reward_function", Owner::Verl),
    ("sandbox_fusion", Owner::Verl),
    ("ray_init", Owner::Verl),
    ("ray_kwargs", Owner::Verl),
    ("distillation", Owner::Verl),
    ("transfer_queue", Owner::Verl),
    ("async_training", Owner::Verl),
    ("global_profiler", Owner::Verl),
    ("worker", Owner::EasyR1),
    ("es_manager", Owner::Ragen),
    ("agent_proxy", Owner::Ragen),
    ("custom_envs", Owner::Ragen),
    ("ctx_manager", Owner::Ragen),
    ("collapse_detection", Owner::Ragen),
    ("output", Owner::Ragen),
];

pub(crate) fn entry(owner: Owner, key: &str) -> Option<&'static ForeignKey> {
    if matches!(owner, Owner::Verl | Owner::VerlSft) && key.rsplit('.').next() == Some("_target_") {
        return Some(&verl::TARGET);
    }
    let keys = owner.keys();
    keys.iter().find(|entry| entry.key == key).or_else(|| {
        keys.iter().find(|entry| {
            entry
                .key
                .strip_suffix('*')
                .is_some_and(|prefix| key.starts_with(prefix) && key.len() > prefix.len())
        })
    })
}

/// Whether a key that is not ours belongs to another system.
pub(crate) fn is_foreign(key: &str) -> bool {
    // `data` is a section of theirs and of ours.
    let is_ours = place(key).is_ok();
    let is_of = |&owner: &Owner| entry(owner, key).is_some() || !is_ours && hydra::is_section(owner, key);
    owner_of_section(key).is_some() || Owner::ALL.iter().any(is_of) || inside(&Owner::ALL, key).is_some()
}

/// Parses an argument of the command line, also in Hydra's syntax; `trainer` is the supervised trainer that
/// the keys are of, if they are.
pub(crate) fn parse_argument(trainer: Option<Owner>, argument: &str) -> Result<Override, Diagnostic> {
    hydra::parse(argument, |key| supervised::value_form(trainer, key))
}

/// The form of a key's value on the command line.
pub(crate) fn value_form(key: &str) -> Form {
    match override_argument::value_form(key) {
        _ if key.ends_with("_regex") => Form::Text,
        ValueForm::Yaml if is_foreign_name(key) || place(key).is_err() && is_foreign(key) => Form::Hydra,
        ValueForm::Yaml => Form::Yaml,
        ValueForm::Text => Form::Text,
    }
}

/// Whether a key, which may also be ours, is the full name of another system's key.
pub(crate) fn is_foreign_name(key: &str) -> bool {
    Owner::ALL.iter().any(|owner| owner.keys().iter().any(|entry| entry.key == key))
}

/// Whether a key of another system names the model.
pub(crate) fn names_model(key: &str) -> bool {
    let is_model = |entry: &&ForeignKey| {
        matches!(entry.becomes, Becomes::Key("model.path") | Becomes::By(_, "model.path"))
    };
    Owner::ALL.iter().any(|owner| owner.keys().iter().filter(is_model).any(|entry| entry.key == key))
}

/// The system that a key seems to belong to, by its first part.
pub(crate) fn owner_of_section(key: &str) -> Option<&'static str> {
    section_owner(key).map(Owner::as_str)
}

fn section_owner(key: &str) -> Option<Owner> {
    let first = key.split('.').next().unwrap_or(key);
    SECTIONS.iter().find(|(section, _)| *section == first).map(|(_, owner)| *owner)
}

/// The keys of other systems that set one of ours, with their systems.
pub(crate) fn keys_for(ours: &str) -> Vec<(Owner, &'static ForeignKey)> {
    let sets = |targets: &str| targets.split([' ', ',']).any(|target| target == ours);
    Owner::every()
        .flat_map(|owner| owner.keys().iter().map(move |entry| (owner, entry)))
        .filter(|(_, entry)| match entry.becomes {
            Becomes::Key(key) => key == ours,
            Becomes::By(_, targets) => sets(targets),
            Becomes::NoEffect(_) | Becomes::Unless(..) => false,
        })
        .collect()
}

/// For a key inside a mapping that is passed on unchanged: the entry of the mapping, and our key.
fn inside(order: &[Owner], key: &str) -> Option<(Owner, &'static ForeignKey, Option<String>)> {
    key.match_indices('.').rev().find_map(|(at, _)| {
        let (above, rest) = (key.get(..at)?, key.get(at + 1..)?);
        order.iter().find_map(|&owner| {
            let entry = owner.keys().iter().find(|entry| entry.key == above)?;
            let Becomes::Key(ours) = entry.becomes else { return None };
            let below = format!("{ours}.{rest}");
            matches!(place(&below), Ok(Place::Free)).then_some((owner, entry, Some(below)))
        })
    })
}
