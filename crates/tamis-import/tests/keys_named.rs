//! Every configuration key in a message, a hint, a comment or a page exists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use proc_macro2::{TokenStream, TokenTree};
use tamis_import::explain;

/// Texts that look like keys but are not: names that are wrong on purpose, and forms for several keys.
const NO_KEYS: &[&str] = &[
    "critic.optim.exp_avg_",
    "critic.optim.lr_wsd_",
    "critic.optim.muon_",
    "critic.profile_",
    // Tensors of a model.
    "model.embed_tokens.weight",
    "model.layers",
    "model.norm.weight",
    // A column of rollout files, a method of Rust, and a file.
    "reward.agg",
    "reward.is_nan",
    "run.lock",
];

/// Whether there is such a key. Most are named many times.
fn is_known(key: &str) -> bool {
    static KNOWN: LazyLock<Mutex<BTreeMap<String, bool>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().expect("no test panicked here");
    *known.entry(key.to_owned()).or_insert_with(|| explain(key).is_ok())
}

/// Names of files begin like keys.
const SUFFIXES: [&str; 13] =
    ["json", "jsonl", "log", "md", "parquet", "py", "rs", "safetensors", "sh", "tsv", "txt", "yaml", "zst"];

/// The first parts of keys.
static SECTIONS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let default = serde_json::to_value(tamis_config::Config::default()).expect("a configuration is JSON");
    default.as_object().expect("a mapping").keys().cloned().collect()
});

/// The visible parts of Rust source: strings, and backquoted text in lines of comments.
fn printed(source: &str) -> Vec<String> {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let (comments, code): (Vec<&str>, Vec<&str>) = source.lines().partition(is_comment);
    let mut texts: Vec<String> = comments.into_iter().flat_map(quoted).collect();
    literals(code.join("\n").parse().expect("the tokens of Rust"), &mut texts);
    texts
}

fn literals(tokens: TokenStream, texts: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => literals(group.stream(), texts),
            TokenTree::Literal(literal) => texts.push(literal.to_string()),
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Texts between backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The words of a text that look like keys but are neither ours nor another system's.
fn unknown(text: &str) -> Vec<String> {
    let is_of_a_key = |c: char| c.is_ascii_alphanumeric() || "_.[]{}".contains(c);
    let mut found = Vec::new();
    for word in text.split(|c: char| !is_of_a_key(c)) {
        // `reward[{index}].weight` is a key of every item, `critic.{name}` of several.
        let mut parts = Vec::new();
        for part in word.trim_matches('.').split(['.', '[', ']']).filter(|part| !part.is_empty()) {
            let is_item = part.chars().all(|c| c.is_ascii_digit()) || part == "{index}";
            if part.contains(['{', '}']) && !is_item {
                break;
            }
            if !is_item {
                parts.push(part);
            }
        }
        let is_key = parts.len() > 1
            && SECTIONS.iter().any(|section| section == parts[0])
            && parts
                .iter()
                .all(|part| part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'))
            && !parts.last().is_some_and(|last| SUFFIXES.contains(last));
        let key = parts.join(".");
        if is_key && !is_known(&key) && !NO_KEYS.contains(&key.as_str()) {
            found.push(key);
        }
    }
    found
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, suffix));
        } else if path.extension().is_some_and(|own| own == suffix) {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_key_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    let mut num_texts = 0;
    let mut look = |path: &Path, texts: Vec<String>| {
        num_texts += texts.len();
        let path = path.strip_prefix(&root).unwrap_or(path).display().to_string();
        let found = texts.iter().flat_map(|text| unknown(text));
        wrong.extend(found.map(|key| format!("{path}: {key}")));
    };
    for entry in std::fs::read_dir(root.join("crates")).expect("the crates") {
        let folder = entry.expect("an entry").path().join("src");
        // A crate of programs has none.
        let sources = if folder.is_dir() { files(&folder, "rs") } else { Vec::new() };
        for path in sources.into_iter().filter(|path| !path.ends_with("tests.rs")) {
            look(&path, printed(&std::fs::read_to_string(&path).expect("a text")));
        }
    }
    let pages =
        [files(&root.join("docs"), "md"), files(&root.join("configs"), "yaml"), vec![root.join("README.md")]];
    for path in pages.concat() {
        look(&path, quoted(&std::fs::read_to_string(&path).expect("a text")));
    }
    assert!(num_texts > 5000, "{num_texts} texts were read");
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "there are no such keys:\n{}", wrong.join("\n"));
}

/// The keys in commands `tamis config explain KEY` of a text, without forms such as `{key}`.
fn explained(text: &str) -> Vec<&str> {
    let is_of_a_key = |c: char| c.is_ascii_alphanumeric() || "_.[]<>".contains(c);
    let commands = text.split("tamis config explain ").skip(1);
    let keys = commands.map(|rest| &rest[..rest.find(|c| !is_of_a_key(c)).unwrap_or(rest.len())]);
    keys.filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

#[test]
fn every_printed_command_that_explains_a_key_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![root.join("README.md")];
    for (folder, suffixes) in [("crates", &["rs", "snap"][..]), ("docs", &["md"]), ("tests", &["rs", "snap"])]
    {
        paths.extend(suffixes.iter().flat_map(|suffix| files(&root.join(folder), suffix)));
    }
    let texts: Vec<String> =
        paths.iter().map(|path| std::fs::read_to_string(path).expect("a text")).collect();
    let keys: Vec<&str> = texts.iter().flat_map(|text| explained(text)).collect();
    assert!(keys.len() > 15, "{} commands were found", keys.len());
    let refused: Vec<String> =
        keys.iter().filter_map(|key| explain(key).err()).map(|error| error.to_string()).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn a_key_that_is_none_is_found() {
    let source = r##"
        // `data.nothing` in a comment, data.train_size in prose, `data.train`
        fn f<'a>(config: &'a C) { config.data.rows; "set `validate.kept` or `checkpoint.keep_last: 2`"; }
        let c = '"'; let key = format!("reward[{index}].wait"); let raw = r#"`run.nam`: "x" model.safetensors"#; '\'';
        "critic.{name} reward.0.weight actor_rollout_ref.rollout.n \" filter.metrics";
    "##;
    let found: Vec<String> = printed(source).iter().flat_map(|text| unknown(text)).collect();
    assert_eq!(found, ["data.nothing", "validate.kept", "reward.wait", "run.nam", "filter.metrics"]);
}
