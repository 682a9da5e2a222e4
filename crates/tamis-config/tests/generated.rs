//! The generated files equal what the definitions generate; `scripts/generate` writes them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use tamis_config::{catalogue, generate, table};

fn compare(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("TAMIS_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is out of date: run scripts/generate", path.display());
}

#[test]
fn generated_defaults() {
    compare("defaults.yaml", &generate::defaults_yaml());
}

/// `tamis config explain KEY` prints only a text. It begins with the thing, not with a question or a verb
/// whose subject is the key.
#[test]
fn texts_of_keys_stand_alone() {
    for key in table::keys() {
        for bare in ["Whether ", "What ", "And ", "It ", "Added ", "How long "] {
            assert!(!key.spec.doc.trim_start().starts_with(bare), "{}: {}", key.path, key.spec.doc);
        }
        assert!(key.spec.doc.split_whitespace().count() >= 2, "{}: {}", key.path, key.spec.doc);
    }
}

/// A preset or a lower file may choose the kind, so its keys may come without it.
#[test]
fn the_schema_takes_the_keys_of_any_kind_where_none_is_named() {
    let schema = generate::json_schema();
    let kinds = &schema["properties"]["objective"]["properties"]["advantage"]["oneOf"];
    let takes = |kind: &&serde_json::Value| {
        let is_asked = kind["required"].as_array().is_some_and(|required| required.contains(&"kind".into()));
        !is_asked && !kind["properties"]["lambda"].is_null() && kind["properties"]["kind"].is_null()
    };
    assert_eq!(kinds.as_array().unwrap().iter().filter(takes).count(), 1);
}

#[test]
fn generated_schema() {
    let schema = serde_json::to_string_pretty(&generate::json_schema()).unwrap() + "\n";
    compare("../../docs/configuration.schema.json", &schema);
}

/// Texts for readers of Rust (doctests, paths, links to items) are at types that are no keys.
#[test]
fn no_printed_text_is_rust() {
    let schema = serde_json::to_string_pretty(&generate::json_schema()).unwrap();
    let algorithms = catalogue::markdown();
    for page in [generate::defaults_yaml(), schema, algorithms] {
        let rust = page.lines().find(|line| ["```", "::", "[`"].iter().any(|code| line.contains(code)));
        assert_eq!(rust, None);
    }
}
