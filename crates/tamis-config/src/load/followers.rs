//! Values that `tamis config show` filled in, read back.
//!
//! The `config.yaml` of a run has the value of every key that follows another, and a comment with both:
//! `ppo_mini_batch_size: 64  # 64 follows data.train_batch_size`. If the file is read as a configuration
//! again, such a key still follows the other: a new run from it with another batch size has another
//! mini-batch size too, as the first run would have had. The value in the comment shows whether the key was
//! edited since.

use serde_json::Value as Json;

use crate::derived::{RESPONSE_LENGTH, leader};
use crate::render::flow;
use crate::source::Origin;
use crate::tree::{Node, Value, join};

/// Between the values and the keys that they follow.
const FOLLOWS: [&str; 2] = [" follows ", " follow "];

/// The comment after a value that follows other keys.
pub(crate) fn comment_of(value: &Json, leader: &str) -> String {
    format!("{}{}{leader}", flow(value), FOLLOWS[0])
}

/// The end of the comment of a reward, which is on one line, about its keys that follow others; `None` if
/// none does.
pub(crate) fn comment_of_reward(reward: &Json, path: &str, followed: &[String]) -> Option<String> {
    let within = |key: &String| {
        let name = key.strip_prefix(path)?.strip_prefix('.')?;
        Some(format!("{name} {}", flow(reward.get(name)?)))
    };
    let values: Vec<String> = followed.iter().filter_map(within).collect();
    let follow = FOLLOWS[usize::from(values.len() > 1)];
    (!values.is_empty()).then(|| format!("{}{follow}{RESPONSE_LENGTH}", values.join(", ")))
}

/// Resets values of a file to null if their comment shows that they follow others. An edited value, which
/// differs from the comment, stays.
pub(crate) fn release(file: &mut Node) {
    let mut paths = Vec::new();
    collect(file, "", &mut paths);
    for path in paths {
        if let Some(node) = file.at_mut(&path) {
            node.value = Node::plain("null", node.origin.clone()).value;
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
                let Some(comment) = comment(&item.origin) else { continue };
                let end = comment.rsplit("; ").next().unwrap_or(comment);
                let values = FOLLOWS.iter().find_map(|follows| end.split_once(follows));
                let Some((values, _)) = values.filter(|(_, leader)| *leader == RESPONSE_LENGTH) else {
                    continue;
                };
                for (name, value) in values.split(", ").filter_map(|value| value.split_once(' ')) {
                    if item.get(name).is_some_and(|node| flow(&node.to_json()) == value) {
                        paths.push(format!("{path}.{index}.{name}"));
                    }
                }
            }
        }
        Value::Scalar { .. } => {
            let follows = leader(path).map(|leader| comment_of(&node.to_json(), leader));
            if follows.is_some_and(|follows| comment(&node.origin) == Some(&*follows)) {
                paths.push(path.to_owned());
            }
        }
        Value::List(_) => {}
    }
}

/// The comment of a value: after it, otherwise on the line above, if there is only the comment.
fn comment(origin: &Origin) -> Option<&str> {
    if let Some((_, comment)) = origin.excerpt().and_then(|line| line.rsplit_once("  # ")) {
        return Some(comment);
    }
    let above = origin.source.text.lines().nth(origin.line.checked_sub(2)?)?;
    above.trim_start().strip_prefix("# ")
}
