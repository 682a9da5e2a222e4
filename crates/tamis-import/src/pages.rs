//! The text about keys of other systems, for the pages and `tamis config explain`.

use std::fmt::Write as _;

use tamis_config::table::place;
use tamis_config::{UnknownKey, explain_with, suggest};

use crate::key::ForeignKey;
use crate::owner::Owner;
use crate::{entry, keys_for, own_defaults};

/// The reference page of the configuration, in Markdown: our keys, then those of other systems.
pub fn reference_markdown() -> String {
    let mut text = tamis_config::reference_markdown();
    text.push_str(OTHERS);
    for owner in Owner::every() {
        push_owner(&mut text, owner);
    }
    text
}

/// Translation of other systems' keys, for the reference page.
const OTHERS: &str = "
## Keys of other systems

`train`, `eval`, `config check` and `config show` take the keys of verl, EasyR1, RAGEN and TRL beside their
own, and say what each became:

- `key=value`, and TRL's options: `--num_generations 8`, `--num-generations=8`, `--bf16`,
  `--no_shuffle_dataset`, `--reward_funcs a b`;
- whole files: a YAML file of theirs as a file, EasyR1's `config=FILE`, TRL's `--config FILE`. What is typed
  goes before what a file says.

Over a configuration of tamis such keys change what they name and nothing else. A file of another system is
a whole configuration of it, and so are its keys where there is no file of tamis and one of them names the
model: what is left out then has that system's default, not that of tamis. `config import` prints a whole
configuration as one of tamis. tamis prints which keys have no effect, and why. A key that cannot be
followed is refused with the key to write instead; a value that a run would refuse is refused where it was
typed.

The keys of the supervised trainers of verl and TRL count only in a command that starts one (`tamis train --
trl sft --config FILE`, `tamis train -- python3 -m verl.trainer.sft_trainer ...`), which becomes a run of
supervised fine-tuning alone ([SFT first](sft.md)).
";

fn push_owner(text: &mut String, owner: Owner) {
    let _ = write!(text, "\n## Keys of {owner}\n\nEach with its default there and what it becomes.\n\n");
    for entry in owner.keys() {
        let default =
            if entry.default.is_empty() { String::new() } else { format!(" (`{}`)", entry.default) };
        let _ = writeln!(text, "- `{}`{default}: {}", entry.key, entry.becomes);
    }
    let defaults = own_defaults(owner);
    if !defaults.is_empty() {
        let _ = write!(text, "\nDefaults that {owner} has of its own, taken by `tamis config import`:\n\n");
        for (key, default, ours) in defaults {
            let _ = writeln!(text, "- `{key}` (`{default}`): `{ours}`");
        }
    }
}

/// The full explanation of one key, as from [`tamis_config::explain`], with the keys of other systems that
/// mean it. Also explains keys of other systems.
///
/// # Errors
/// No system has this key.
pub fn explain(key: &str) -> Result<String, UnknownKey> {
    explain_with(key, &names_of).or_else(|unknown| {
        explain_foreign(key).ok_or_else(|| {
            // Options may be written with hyphens.
            let key = key.trim_start_matches('-').replace('-', "_");
            let theirs: Vec<String> =
                Owner::every().flat_map(Owner::keys).map(|row| row.key.to_owned()).collect();
            let suggestion = || suggest::nearest_key(&key, "", &[], &theirs, |_| None);
            UnknownKey { suggestion: unknown.suggestion.clone().or_else(suggestion), ..unknown }
        })
    })
}

/// Lists the keys of other systems that set one of our keys.
fn names_of(key: &str) -> String {
    let mut text = String::new();
    let others = keys_for(key);
    if !others.is_empty() {
        text.push_str("  also known as\n");
        for (owner, other) in others {
            let default = if other.default.is_empty() {
                String::new()
            } else {
                format!(", default {} there", other.default)
            };
            let _ = writeln!(text, "    {} ({owner}{default})", other.key);
        }
    }
    text
}

/// Whether a row stands for every key of a section that is also ours, such as `checkpoint.*`. An unknown key
/// of the section is rather a misspelt key of ours.
fn is_around_ours(entry: &ForeignKey) -> bool {
    entry.key.strip_suffix(".*").is_some_and(|section| place(section).is_ok())
}

fn explain_foreign(key: &str) -> Option<String> {
    let mut text = String::new();
    for owner in Owner::every() {
        if let Some(entry) = entry(owner, key).filter(|entry| !is_around_ours(entry)) {
            let _ = writeln!(text, "{key}\n\n  A key of {owner}.\n");
            if !entry.default.is_empty() {
                let _ = writeln!(text, "  its default  {}", entry.default);
            }
            let _ = writeln!(text, "  becomes      {}", entry.becomes.to_string().replace('`', ""));
        }
    }
    if text.is_empty() {
        // A section of another system: what it holds.
        for owner in Owner::every() {
            let within =
                |entry: &&ForeignKey| entry.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
            let keys: Vec<&ForeignKey> = owner.keys().iter().filter(within).collect();
            if !keys.is_empty() {
                let _ = writeln!(text, "{key}\n\n  A section of {owner}.\n");
                for entry in keys {
                    let _ = writeln!(
                        text,
                        "  {}  becomes {}",
                        entry.key,
                        entry.becomes.to_string().replace('`', "")
                    );
                }
            }
        }
    }
    (!text.is_empty()).then_some(text)
}
