//! What is generated from the table: the embedded defaults, the JSON Schema, the reference page, and the
//! explanation of one key.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use crate::foreign::{self, Becomes, Owner};
use crate::preset::Preset;
use crate::render::flow;
use crate::source::{Source, SourceKind};
use crate::suggest;
use crate::table;
use crate::tree::join;
use crate::yaml;
use tamis_core::setting::{Check, KeySpec, Resume, Shape, Variant};

/// Documentation without the indentation of its comment.
fn doc_text(doc: &str) -> String {
    doc.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut();
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A default as JSON.
fn default_json(spec: &KeySpec) -> Json {
    yaml::parse(&Source::new(SourceKind::Default, &*spec.default)).map_or(Json::Null, |node| node.to_json())
}

/// The defaults of every key as commented YAML: the text of `defaults.yaml`.
pub fn defaults_yaml() -> String {
    let mut text = String::from(
        "# Every key with its default. Generated from the definitions in src/schema: do not edit.\n# Regenerate: TAMIS_REGENERATE=1 \
         cargo test -p tamis-config generated\n",
    );
    if let Shape::Section { keys, .. } = table::root() {
        defaults_section(&mut text, keys, "", false);
    }
    text
}

fn defaults_section(text: &mut String, keys: &[KeySpec], indent: &str, commented: bool) {
    for spec in keys {
        if indent.is_empty() {
            text.push('\n');
        }
        if !commented {
            for line in wrap(&doc_text(spec.doc), 110 - indent.len()) {
                let _ = writeln!(text, "{indent}# {line}");
            }
        }
        match &(spec.shape)() {
            Shape::Nullable(inner) => {
                if let (Some(keys), false) = (default_keys(inner), commented) {
                    let _ = writeln!(text, "{indent}# {}:", spec.name);
                    defaults_section(text, &keys, &format!("{indent}#   "), true);
                }
                let _ = writeln!(text, "{indent}{}: {}", spec.name, spec.default);
            }
            shape => match default_keys(shape) {
                Some(keys) => {
                    let _ = writeln!(text, "{indent}{}:", spec.name);
                    defaults_section(text, &keys, &format!("{indent}  "), commented);
                }
                None => {
                    let _ = writeln!(text, "{indent}{}: {}", spec.name, spec.default);
                }
            },
        }
    }
}

/// The keys that a section has where nobody sets one: of a section with a `kind` those of the default kind.
fn default_keys(shape: &Shape) -> Option<Vec<KeySpec>> {
    match shape {
        Shape::Section { keys, .. } => Some(keys.clone()),
        Shape::Tagged { common, variants, default: Some(default), .. } => {
            let own = variants.iter().filter(|variant| variant.name == *default);
            Some(common.iter().chain(own.flat_map(|variant| &variant.keys)).cloned().collect())
        }
        _ => None,
    }
}

/// The JSON Schema of a configuration (draft 2020-12), for editors.
pub fn json_schema() -> Json {
    let mut schema = schema_of(table::root(), Check::Any);
    if let Json::Object(object) = &mut schema {
        object.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        object.insert("title".to_owned(), json!("tamis configuration"));
    }
    schema
}

fn schema_of(shape: &Shape, check: Check) -> Json {
    let mut schema = match shape {
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Integer => json!({"type": "integer", "minimum": 0}),
        Shape::Number => json!({"type": "number"}),
        Shape::Text(_) | Shape::Path(_) => json!({"type": "string"}),
        Shape::NumberOrText(_) => json!({"type": ["string", "number"]}),
        Shape::Choice(values) => json!({"enum": values.iter().map(|(name, _)| *name).collect::<Vec<_>>()}),
        Shape::List(item) => json!({"type": "array", "items": schema_of(item, check)}),
        Shape::Tuple(item, length) => {
            json!({"type": "array", "items": schema_of(item, check), "minItems": length, "maxItems": length})
        }
        Shape::OneOrMany(item) => {
            let item = schema_of(item, check);
            json!({"anyOf": [item, {"type": "array", "items": item}]})
        }
        Shape::Nullable(inner) => return json!({"anyOf": [schema_of(inner, check), {"type": "null"}]}),
        Shape::Free | Shape::Named(_) => json!({"type": "object"}),
        Shape::Section { doc, keys } => {
            json!({"type": "object", "description": doc_text(doc), "additionalProperties": false,
                   "properties": properties(keys)})
        }
        Shape::Tagged { doc, common, variants, default } => {
            let kinds: Vec<Json> = variants
                .iter()
                .map(|variant| schema_of_variant(common, variant, *default != Some(variant.name)))
                .collect();
            json!({"description": doc_text(doc), "oneOf": kinds})
        }
    };
    if let (Json::Object(object), false) = (&mut schema, matches!(shape, Shape::List(_) | Shape::Tuple(..))) {
        let mut bound = |name: &str, value: f64| {
            object.insert(name.to_owned(), json!(value));
        };
        match check {
            Check::Any => {}
            Check::NotEmpty => {
                if matches!(shape, Shape::Text(_) | Shape::Path(_)) {
                    object.insert("minLength".to_owned(), json!(1));
                }
            }
            Check::AtLeast(low) => bound("minimum", low),
            Check::GreaterThan(low) => bound("exclusiveMinimum", low),
            Check::Between(low, high) => {
                bound("minimum", low);
                bound("maximum", high);
            }
            Check::ZeroOrBetween(low, high) => {
                object.insert("anyOf".to_owned(), json!([{"const": 0}, {"minimum": low, "maximum": high}]));
            }
            Check::FromBelow(low, high) => {
                bound("minimum", low);
                bound("exclusiveMaximum", high);
            }
            Check::Positive => bound("exclusiveMinimum", 0.0),
            Check::NonNegative => bound("minimum", 0.0),
            Check::Probability => {
                bound("exclusiveMinimum", 0.0);
                bound("maximum", 1.0);
            }
        }
    }
    schema
}

fn properties(keys: &[KeySpec]) -> Json {
    let mut properties = serde_json::Map::new();
    for spec in keys {
        let shape = (spec.shape)();
        let mut schema = schema_of(&shape, spec.check);
        if let Json::Object(object) = &mut schema {
            object.insert("description".to_owned(), json!(doc_text(spec.doc)));
            if !matches!(shape, Shape::Section { .. }) && !spec.default.is_empty() {
                object.insert("default".to_owned(), default_json(spec));
            }
        }
        properties.insert(spec.name.to_owned(), schema);
    }
    Json::Object(properties)
}

fn schema_of_variant(common: &[KeySpec], variant: &Variant, is_named: bool) -> Json {
    let mut all = properties(common);
    if let (Json::Object(all), Json::Object(own)) = (&mut all, properties(&variant.keys)) {
        all.extend(own);
        all.insert("kind".to_owned(), json!({"const": variant.name}));
    }
    let asked = variant.keys.iter().filter(|spec| spec.default.is_empty()).map(|spec| spec.name);
    let required: Vec<&str> = is_named.then_some("kind").into_iter().chain(asked).collect();
    json!({"type": "object", "description": doc_text(variant.doc), "additionalProperties": false, "required": required,
           "properties": all})
}

/// The reference page of the configuration, in Markdown: the text of `docs/configuration.md`.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Configuration\n\nGenerated from the definitions in `crates/tamis-config/src/schema`: do not edit. Regenerate: `TAMIS_REGENERATE=1 cargo test -p \
         tamis-config generated`.\n\nLayers, from the bottom: the defaults below, `preset`, files from left to right, overrides from left to right. An override \
         is `a.b=v` (set), `+a.b=v` (append to a list), `~a.b` (back to the default); items of a list are `reward[0].weight=2`. Keys of \
         verl, EasyR1, RAGEN and TRL are taken as overrides too; the tables at the end say what becomes of them. *On resume*: whether a key may \
         differ when a run is resumed.\n\nA relative path in a file is taken from the folder of that file; one on the command line, in a file of verl, EasyR1, RAGEN or \
         TRL (as they have it), and the default of `run.dir`, from the folder in which tamis is started; `~/` is your own folder. A run's `config.yaml`, `tamis config show` and `tamis config import` hold absolute paths, so that a run is resumed and evaluated from \
         anywhere.\n",
    );
    if let Shape::Section { keys, .. } = table::root() {
        let (sections, plain): (Vec<&KeySpec>, Vec<&KeySpec>) =
            keys.iter().partition(|spec| has_keys(&(spec.shape)()));
        text.push_str("\n## Top level\n\n");
        reference_table(&mut text, "", &plain.into_iter().cloned().collect::<Vec<_>>());
        for spec in sections {
            reference_section(&mut text, spec.name, spec, &(spec.shape)(), 2);
        }
    }
    reference_presets(&mut text);
    text.push_str(OTHERS);
    for owner in Owner::ALL {
        reference_owner(&mut text, owner);
    }
    text
}

/// How keys of other systems are taken.
const OTHERS: &str = "
## Keys of other systems

`train`, `eval`, `config check` and `config show` take the keys of verl, EasyR1, RAGEN and TRL beside their own, and say what each became:

- `key=value`, and TRL's options: `--num_generations 8`, `--num-generations=8`, `--bf16`, `--no_shuffle_dataset`, `--reward_funcs a b`;
- whole files: a YAML file of theirs as a file, EasyR1's `config=FILE`, TRL's `--config FILE`. What is typed goes before what a file says.

Over a configuration of tamis such keys change what they name and nothing else. A file of another system is a whole configuration of it, and so
are its keys where there is no file of tamis and one of them names the model: what is left out then has that system's default, not that of
tamis. `config import` prints a whole configuration as one of tamis. A key that has no effect is told so, with the reason; one that cannot be
followed is refused with what to write instead; a value that a run would refuse is refused where it was typed.
";

fn has_keys(shape: &Shape) -> bool {
    match shape {
        Shape::Section { .. } | Shape::Tagged { .. } => true,
        Shape::Nullable(inner) | Shape::List(inner) => has_keys(inner),
        _ => false,
    }
}

fn reference_section(text: &mut String, path: &str, spec: &KeySpec, shape: &Shape, level: usize) {
    match shape {
        Shape::Nullable(inner) => reference_section(text, path, spec, inner, level),
        Shape::List(inner) => reference_section(text, &format!("{path}[]"), spec, inner, level),
        Shape::Section { keys, .. } => {
            let _ = write!(text, "\n{} `{path}`\n\n{}\n\n", "#".repeat(level), doc_text(spec.doc));
            reference_table(text, path, keys);
            for key in keys {
                let shape = (key.shape)();
                if has_keys(&shape) {
                    reference_section(text, &join(path, key.name), key, &shape, level + 1);
                }
            }
        }
        Shape::Tagged { common, variants, .. } => {
            let _ = write!(text, "\n{} `{path}`\n\n{}\n\n", "#".repeat(level), doc_text(spec.doc));
            reference_table(text, path, common);
            for variant in variants {
                let _ = write!(
                    text,
                    "\n{} `{path}` of kind `{}`\n\n{}\n\n",
                    "#".repeat(level + 1),
                    variant.name,
                    doc_text(variant.doc)
                );
                if !variant.keys.is_empty() {
                    reference_table(text, path, &variant.keys);
                }
            }
        }
        _ => {}
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn reference_table(text: &mut String, path: &str, keys: &[KeySpec]) {
    text.push_str("| key | type | default | on resume | |\n|---|---|---|---|---|\n");
    for spec in keys {
        let shape = (spec.shape)();
        let mut kind = shape.describe();
        if let Some(condition) = spec.check.describe() {
            let _ = write!(kind, ", {condition}");
        }
        let default = if default_keys(&shape).is_some() {
            "see below".to_owned()
        } else if spec.is_required() {
            "required".to_owned()
        } else {
            format!("`{}`", spec.default)
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            join(path, spec.name),
            cell(&kind),
            cell(&default),
            match spec.resume {
                Resume::Free => "may change",
                Resume::Fixed => "",
            },
            cell(&doc_with_values(&doc_text(spec.doc), &shape)),
        );
    }
}

fn doc_with_values(doc: &str, shape: &Shape) -> String {
    let mut text = doc.to_owned();
    for (name, doc) in choice_values(shape) {
        let _ = write!(text, " `{name}`: {}", doc_text(doc));
    }
    text
}

fn choice_values(shape: &Shape) -> Vec<(&'static str, &'static str)> {
    match shape {
        Shape::Choice(values) => values.clone(),
        Shape::Nullable(inner) | Shape::List(inner) => choice_values(inner),
        _ => Vec::new(),
    }
}

fn reference_presets(text: &mut String) {
    text.push_str("\n## Presets\n");
    for &preset in Preset::ALL {
        let _ = write!(text, "\n### `{preset}`\n\n```yaml\n{}```\n", preset.yaml());
    }
}

fn reference_owner(text: &mut String, owner: Owner) {
    let _ = write!(text, "\n## Keys of {owner}\n\n| key | its default | becomes |\n|---|---|---|\n");
    for entry in owner.keys() {
        let default = if entry.default.is_empty() { String::new() } else { format!("`{}`", entry.default) };
        let _ = writeln!(text, "| `{}` | {default} | {} |", entry.key, cell(&becomes_text(entry.becomes)));
    }
    let defaults = foreign::own_defaults(owner);
    if !defaults.is_empty() {
        let _ = write!(
            text,
            "\nDefaults that {owner} has of its own, taken by `tamis config import`:\n\n| key | its default | becomes |\n|---|---|---|\n"
        );
        for (key, default, ours) in defaults {
            let _ = writeln!(text, "| `{key}` | `{default}` | {} |", cell(&ours));
        }
    }
}

fn becomes_text(becomes: Becomes) -> String {
    match becomes {
        Becomes::Key(ours) => format!("`{ours}`"),
        Becomes::By(_, ours) => {
            let ours: Vec<String> = ours.split(' ').map(|key| format!("`{key}`")).collect();
            format!("{}, with related keys", ours.join(", "))
        }
        Becomes::NoEffect(reason) => format!("no effect: {reason}"),
        Becomes::Unless([], reason) => format!("refused: {reason}"),
        Becomes::Unless(allowed, reason) => {
            let allowed: Vec<String> =
                allowed.iter().filter(|value| !value.is_empty()).map(|value| format!("`{value}`")).collect();
            format!("refused unless {}: {reason}", allowed.join(" or "))
        }
    }
}

/// A key that `explain` does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no key `{key}`{}", match suggestion { Some(key) => format!("; did you mean `{key}`?"), None => String::new() })]
pub struct UnknownKey {
    /// The key.
    pub key: String,
    /// The key that was probably meant.
    pub suggestion: Option<String>,
}

/// Everything there is to say about one key: documentation, type, default, allowed values, whether it may
/// change on resume, what presets set it to, and which keys of other systems mean it. A key of another system
/// is explained too.
///
/// # Errors
/// A key that nobody has.
pub fn explain(key: &str) -> Result<String, UnknownKey> {
    let matching: Vec<&table::Key> = table::keys()
        .iter()
        .filter(|entry| {
            // `reward.method`, `reward[0].method` and `reward[]<gsm8k>.method` are the same key.
            let plain = |path: &str| {
                let mut text = String::new();
                let mut inside = false;
                for c in path.chars() {
                    match c {
                        '<' | '[' => inside = true,
                        '>' | ']' => inside = false,
                        c if !inside => text.push(c),
                        _ => {}
                    }
                }
                text
            };
            entry.path == key || plain(&entry.path) == plain(key)
        })
        .collect();
    if matching.is_empty() {
        return explain_foreign(key).ok_or_else(|| UnknownKey {
            key: key.to_owned(),
            suggestion: suggest::nearest_key(key, "", &[], table::suggestion_keys()),
        });
    }
    let mut text = String::new();
    for (index, entry) in matching.into_iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        explain_one(&mut text, entry);
    }
    Ok(text)
}

fn explain_one(text: &mut String, entry: &table::Key) {
    let spec = &entry.spec;
    let _ = writeln!(text, "{}\n", entry.path);
    for line in wrap(&doc_text(spec.doc), 90) {
        let _ = writeln!(text, "  {line}");
    }
    text.push('\n');
    let mut kind = entry.shape.describe();
    if let Some(condition) = spec.check.describe() {
        let _ = write!(kind, ", {condition}");
    }
    let _ = writeln!(text, "  type       {kind}");
    if let Shape::Section { keys, .. } = &entry.shape {
        let names: Vec<&str> = keys.iter().map(|spec| spec.name).collect();
        let _ = writeln!(text, "  keys       {}", names.join(", "));
    } else {
        let default = if spec.is_required() { "none: required" } else { &*spec.default };
        let _ = writeln!(text, "  default    {default}");
    }
    let _ = writeln!(
        text,
        "  on resume  {}",
        match spec.resume {
            Resume::Free => "may change",
            Resume::Fixed => "must stay",
        }
    );
    for &preset in Preset::ALL {
        if let Some(node) = preset.settings().at(&entry.path)
            && !matches!(entry.shape, Shape::Section { .. })
        {
            let _ = writeln!(text, "  preset     {preset}: {}", flow(&node.to_json()));
        }
    }
    let values = choice_values(&entry.shape);
    if !values.is_empty() {
        text.push_str("  values\n");
        for (name, doc) in values {
            let _ = writeln!(text, "    {name}: {}", doc_text(doc));
        }
    }
    let others = foreign::keys_for(&entry.path);
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
}

fn explain_foreign(key: &str) -> Option<String> {
    let mut text = String::new();
    for owner in Owner::ALL {
        if let Some(entry) = foreign::entry(owner, key) {
            let _ = writeln!(text, "{key}\n\n  A key of {owner}.\n");
            if !entry.default.is_empty() {
                let _ = writeln!(text, "  its default  {}", entry.default);
            }
            let _ = writeln!(text, "  becomes      {}", becomes_text(entry.becomes).replace('`', ""));
        }
    }
    if text.is_empty() {
        // A section of another system: what it holds.
        for owner in Owner::ALL {
            let within = |entry: &&foreign::ForeignKey| {
                entry.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
            };
            let keys: Vec<&foreign::ForeignKey> = owner.keys().iter().filter(within).collect();
            if !keys.is_empty() {
                let _ = writeln!(text, "{key}\n\n  A section of {owner}.\n");
                for entry in keys {
                    let _ = writeln!(
                        text,
                        "  {}  becomes {}",
                        entry.key,
                        becomes_text(entry.becomes).replace('`', "")
                    );
                }
            }
        }
    }
    (!text.is_empty()).then_some(text)
}
