//! Options in TRL's form, `--key value ...`, as `key=value`.

use tamis_config::render::scalar;

use super::owner::Owner;
use super::trl::{LISTS, SWITCHES};
use super::{entry, is_foreign_name};

struct Field {
    key: String,
    kind: Kind,
}

/// Number of words that follow an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    /// One or none: a switch.
    Switch,
    /// None: `--no_key`, which turns a switch off.
    Off,
    Many,
}

/// Joins options with their values: `--num_generations 8` and `--num-generations=8` become
/// `num_generations=8`, `--bf16` becomes `bf16=true`, `--no_shuffle_dataset` becomes `shuffle_dataset=false`,
/// `--reward_funcs a b` becomes `reward_funcs=[a, b]`. Other words are unchanged, and so are the command's
/// own options (`is_own`) and everything after a bare `--`.
pub fn join_options(words: &[String], is_own: impl Fn(&str) -> bool) -> Vec<String> {
    let mut joined = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").filter(|option| !option.is_empty());
        let Some(option) = option.filter(|option| !is_own(option.split('=').next().unwrap_or(option))) else {
            joined.push(word.clone());
            if word == "--" {
                joined.extend(words.by_ref().cloned());
            }
            continue;
        };
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let Field { key, kind } = field(name);
        let is_value = |next: &&String| !next.starts_with("--");
        let value = match (value, kind) {
            (Some(value), _) => value.to_owned(),
            (None, Kind::Off) => "false".to_owned(),
            (None, Kind::One) => words.next_if(is_value).map_or_else(|| "true".to_owned(), Clone::clone),
            (None, Kind::Switch) => {
                let is_flag = |next: &&String| {
                    let next = next.to_lowercase();
                    matches!(
                        next.as_str(),
                        "true" | "false" | "yes" | "no" | "t" | "f" | "y" | "n" | "1" | "0"
                    )
                };
                words.next_if(is_flag).map_or("true", |flag| as_flag(flag)).to_owned()
            }
            (None, Kind::Many) => {
                let mut items = Vec::new();
                while let Some(item) = words.next_if(|next| is_value(next) && !next.contains('=')) {
                    items.push(item.as_str());
                }
                match items.as_slice() {
                    [item] => (*item).to_owned(),
                    items => {
                        let items: Vec<String> = items.iter().map(|item| quote_item(item)).collect();
                        format!("[{}]", items.join(", "))
                    }
                }
            }
        };
        joined.push(format!("{key}={value}"));
    }
    joined
}

/// The tables of systems with such options.
const TABLES: [Owner; 2] = [Owner::Trl, Owner::TrlSft];

fn is_name(key: &str) -> bool {
    is_foreign_name(key) || Owner::TrlSft.keys().iter().any(|entry| entry.key == key)
}

/// The key of an option, by its name or with hyphens, and how many words follow it.
fn field(name: &str) -> Field {
    let is_switch = |key: &str| {
        SWITCHES.contains(&key)
            || TABLES.iter().any(|owner| {
                entry(*owner, key).is_some_and(|entry| matches!(entry.default, "True" | "False"))
            })
    };
    let underscored = name.replace('-', "_");
    let key = if is_name(name) { name.to_owned() } else { underscored };
    if let Some(key) = key.strip_prefix("no_").filter(|key| is_switch(key)) {
        return Field { key: key.to_owned(), kind: Kind::Off };
    }
    let kind = if LISTS.contains(&key.as_str()) {
        Kind::Many
    } else if is_switch(&key) {
        Kind::Switch
    } else {
        Kind::One
    };
    // An unknown option keeps its spelling, for the message.
    let key = if is_name(&key) || key == "config" { key } else { name.to_owned() };
    Field { key, kind }
}

/// Whether an option, without its hyphens, is a field of another system, or names a file with such fields.
pub fn is_foreign_option(name: &str) -> bool {
    let Field { key, .. } = field(name);
    key == "config" || is_foreign_name(&key)
}

fn as_flag(text: &str) -> &'static str {
    if matches!(text.to_lowercase().as_str(), "true" | "yes" | "t" | "y" | "1") { "true" } else { "false" }
}

/// An item of a flow list.
fn quote_item(item: &str) -> String {
    let is_plain =
        !item.is_empty() && item.chars().all(|c| c.is_ascii_alphanumeric() || "_./-+@".contains(c));
    if is_plain { item.to_owned() } else { scalar(item) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(command: &str) -> String {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        join_options(&words, |name| name == "resume").join(" | ")
    }

    #[test]
    fn options_take_what_their_fields_take() {
        assert_eq!(joined("--num_generations 8 --beta=0.04"), "num_generations=8 | beta=0.04");
        assert_eq!(joined("--num-generations 8 --max-steps -1"), "num_generations=8 | max_steps=-1");
        assert_eq!(joined("--bf16 my.yaml"), "bf16=true | my.yaml");
        assert_eq!(joined("--bf16 False x=1 --use_vllm"), "bf16=false | x=1 | use_vllm=true");
        assert_eq!(
            joined("--no_shuffle_dataset --no-log-multimodal"),
            "shuffle_dataset=false | log_multimodal=false"
        );
        assert_eq!(joined("--reward_funcs a b.c --beta 0"), "reward_funcs=[a, b.c] | beta=0");
        assert_eq!(joined("--reward_funcs a x=1"), "reward_funcs=a | x=1");
        assert_eq!(joined("--config f.yaml --resume RUN"), "config=f.yaml | --resume | RUN");
        assert_eq!(joined("--vllm_structured_outputs_regex [0-9]+"), "vllm_structured_outputs_regex=[0-9]+");
        assert_eq!(joined("--nothing-like-it 3"), "nothing-like-it=3");
        assert_eq!(joined("a.yaml -- --beta 1"), "a.yaml | -- | --beta | 1");
    }
}
