//! Values that `tamis config show` filled in, read back.
//!
//! The `config.yaml` of a run says the value of every key that follows another, with a comment that says so.
//! Read as a configuration again, such a key goes on following: a new run from the file with another batch
//! size has another mini-batch size too, as the first one would have had.

use super::defaults::default_tree;
use crate::preset_difference::is_same;
use crate::reader::{Reader, Setting};
use crate::schema::{Config, Preset};
use crate::source::Origin;
use crate::table;
use crate::tree::{Node, Value, join};

/// Beginning of the comment behind a value that follows other keys.
pub(crate) const FOLLOWS: &str = "follows ";

/// Part of a reward's comment behind its origin and the names of the keys that follow.
pub(crate) const FOLLOW: &str = " follow ";

/// Takes back the values of a file that are said to follow others: they are null again. One that was edited,
/// so that it is not what it would follow, stays.
pub(crate) fn release(file: &mut Node) {
    let mut paths = Vec::new();
    collect(file, "", &mut paths);
    if paths.is_empty() {
        return;
    }
    let null = |tree: &mut Node, path: &str| {
        if let Some(node) = tree.at_mut(path) {
            node.value = Node::plain("null", node.origin.clone()).value;
        }
    };
    let mut nulled = file.clone();
    for path in &paths {
        null(&mut nulled, path);
    }
    // The file alone, as it was when it was written.
    let mut alone = default_tree().clone();
    let preset = file.get("preset").and_then(|node| Preset::read(node, "preset", &mut Reader::default()));
    if let Some(preset) = preset {
        let mut layer = preset.settings().clone();
        layer.take("reward");
        alone.merge(layer, table::root());
    }
    alone.merge(nulled, table::root());
    let Some(mut config) = Config::read(&alone, "", &mut Reader::default()) else { return };
    let followed = config.fill_followers();
    let values = config.to_json();
    // A comment of the user's may begin alike behind a key that follows nothing.
    for path in paths.iter().filter(|path| followed.iter().any(|followed| followed.key == **path)) {
        let followed = values.pointer(&format!("/{}", path.replace('.', "/")));
        let own = file.at(path).map(Node::to_json);
        if let (Some(followed), Some(own)) = (followed, own)
            && is_same(followed, &own)
        {
            null(file, path);
        }
    }
}

/// The paths of values whose comments say that they follow others.
fn collect(node: &Node, path: &str, paths: &mut Vec<String>) {
    match &node.value {
        Value::Map(entries) => {
            for entry in entries {
                collect(&entry.node, &join(path, &entry.key), paths);
            }
        }
        Value::List(items) if path == "reward" => {
            for (index, item) in items.iter().enumerate() {
                let names = comment(&item.origin)
                    .and_then(|comment| comment.split_once(FOLLOW)?.0.rsplit("; ").next());
                let names = names.into_iter().flat_map(|names| names.split(", "));
                paths.extend(names.map(|name| format!("{path}.{index}.{name}")));
            }
        }
        Value::Scalar { .. } => {
            if comment(&node.origin).is_some_and(|comment| comment.starts_with(FOLLOWS)) {
                paths.push(path.to_owned());
            }
        }
        Value::List(_) => {}
    }
}

/// The comment of a value: behind it, or on the line above where it has that to itself.
fn comment(origin: &Origin) -> Option<&str> {
    let own = origin.excerpt()?;
    if let Some((_, comment)) = own.rsplit_once("  # ") {
        return Some(comment);
    }
    let above = origin.source.text.lines().nth(origin.line.checked_sub(2)?)?;
    above.trim_start().strip_prefix("# ")
}
