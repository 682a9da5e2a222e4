//! Values that `tamis config show` filled in, read back.
//!
//! The `config.yaml` of a run says the value of every key that follows another, with a comment that names both:
//! `ppo_mini_batch_size: 64  # 64 follows data.train_batch_size`. Read as a configuration again, such a key
//! goes on following: a new run from the file with another batch size has another mini-batch size too, as the
//! first one would have had. The value within the comment tells whether the key was edited since.

use serde_json::Value as Json;
use tamis_core::setting::Shape;

use crate::derived::{Followed, RESPONSE_LENGTH};
use crate::render::flow;
use crate::source::Origin;
use crate::table;
use crate::tree::{Node, Value, join};

/// Between the values and the keys that they follow.
const FOLLOWS: [&str; 2] = [" follows ", " follow "];

/// The comment behind a value that follows other keys.
pub(crate) fn comment_of(value: &Json, leader: &str) -> String {
    format!("{}{}{leader}", flow(value), FOLLOWS[0])
}

/// The end of the comment of a reward, which stands on one line, about its keys that follow others; `None`
/// where none does.
pub(crate) fn comment_of_reward(reward: &Json, path: &str, followed: &[Followed]) -> Option<String> {
    let within = |followed: &Followed| {
        let name = followed.key.strip_prefix(path)?.strip_prefix('.')?;
        Some(format!("{name} {}", flow(reward.get(name)?)))
    };
    let values: Vec<String> = followed.iter().filter_map(within).collect();
    let follow = FOLLOWS[usize::from(values.len() > 1)];
    (!values.is_empty()).then(|| format!("{}{follow}{RESPONSE_LENGTH}", values.join(", ")))
}

/// Takes back the values of a file that are said to follow others: they are null again. One that was edited,
/// so that it is not what the comment says, stays.
pub(crate) fn release(file: &mut Node) {
    let mut paths = Vec::new();
    collect(file, "", &mut paths);
    for path in paths {
        let shape = path.split('.').fold(table::root().clone(), |shape, key| shape.of_key(key));
        if let (Shape::Nullable(_), Some(node)) = (shape, file.at_mut(&path)) {
            node.value = Node::plain("null", node.origin.clone()).value;
        }
    }
}

/// The paths of values whose comments say that they follow others.
fn collect(node: &Node, path: &str, paths: &mut Vec<String>) {
    let is = |node: Option<&Node>, text: &str| node.is_some_and(|node| flow(&node.to_json()) == text);
    match &node.value {
        Value::Map(entries) => {
            for entry in entries {
                collect(&entry.node, &join(path, &entry.key), paths);
            }
        }
        Value::List(items) if path == "reward" => {
            for (index, item) in items.iter().enumerate() {
                let values = comments(&item.origin)
                    .find_map(|comment| said_to_follow(comment.rsplit("; ").next().unwrap_or(comment)));
                for (name, value) in
                    values.unwrap_or_default().split(", ").filter_map(|value| value.split_once(' '))
                {
                    if is(item.get(name), value) {
                        paths.push(format!("{path}.{index}.{name}"));
                    }
                }
            }
        }
        Value::Scalar { .. } => {
            if comments(&node.origin).filter_map(said_to_follow).any(|value| is(Some(node), value)) {
                paths.push(path.to_owned());
            }
        }
        Value::List(_) => {}
    }
}

/// The values that a comment says to follow keys of a configuration.
fn said_to_follow(comment: &str) -> Option<&str> {
    let (values, leaders) = FOLLOWS.iter().find_map(|follows| comment.split_once(follows))?;
    let first = leaders.split([',', ' ']).next()?;
    let is_key = |key: &table::ConfigKey| key.path == first || key.spec.name == first;
    (first == "reward" || table::keys().iter().any(is_key)).then_some(values)
}

/// The comment behind a value, and the one that has the line above to itself.
fn comments(origin: &Origin) -> impl Iterator<Item = &str> {
    let behind = origin.excerpt().and_then(|line| line.rsplit_once("  # ")).map(|(_, comment)| comment);
    let above = origin.line.checked_sub(2).and_then(|line| origin.source.text.lines().nth(line));
    behind.into_iter().chain(above.and_then(|line| line.trim_start().strip_prefix("# ")))
}
