//! Turns the tree of a sweep's file into typed values.

use std::path::{Path, PathBuf};

use tamis_config::Problem;
use tamis_config::reader::Reader;
use tamis_config::tree::{Node, Value};
use tamis_run::directory::is_name;

use super::{Argument, Axis, AxisValue, Case, Explicit, SweepFile, Values, Written, take_from};
use crate::sweep::name::Template;

const KEYS: [&str; 10] =
    ["name", "results", "base", "set", "axes", "baseline", "list", "seeds", "only", "parallel"];

/// A value as the text of an override; lists and mappings in YAML's flow style.
fn text_of(node: &Node) -> String {
    match &node.value {
        Value::Scalar { text, .. } => text.clone(),
        Value::List(_) | Value::Map(_) => node.to_json().to_string(),
    }
}

type AxisAndValue = (String, String);

/// The axis values of a listed point, even if they are wrong.
fn values_written(node: &Node) -> Vec<AxisAndValue> {
    let mut found = Vec::new();
    for part in ["at", "labels"] {
        let Some(Node { value: Value::Map(entries), .. }) = node.get(part) else { continue };
        for entry in entries {
            let value = match &entry.node.value {
                Value::List(items) => items.first(),
                _ => Some(&entry.node),
            };
            found.extend(value.map(|value| (entry.key.clone(), text_of(value))));
        }
    }
    found
}

fn is_empty_collection(node: &Node) -> bool {
    match &node.value {
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        Value::Scalar { .. } => false,
    }
}

/// Reads a sweep's tree and collects all errors.
pub(super) struct FileParser<'f> {
    pub(super) reader: Reader,
    pub(super) folder: &'f Path,
}

impl FileParser<'_> {
    fn refuse(&mut self, node: &Node, key: &str, message: &str, hint: &str) {
        let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
        self.reader.report(node, Problem::Refused { key: key.to_owned(), message: message.to_owned(), hint });
    }

    /// The whole sweep. Errors are collected in the reader.
    pub(super) fn sweep(&mut self, path: &Path, tree: &Node) -> SweepFile {
        if matches!(tree.value, Value::Map(_)) {
            let _ = self.reader.open(tree, "", &KEYS);
        } else {
            let hint = "for example: `axes: {rollout.n: [4, 8]}`";
            self.refuse(tree, "SWEEP.yaml", "a sweep is a mapping", hint);
        }
        let stem =
            path.file_stem().map_or_else(|| "sweep".to_owned(), |stem| stem.to_string_lossy().into_owned());
        let mut written = tree.get("baseline").map(values_written).unwrap_or_default();
        let axes = tree.get("axes").map(|node| self.axes(node, &written)).unwrap_or_default();
        // Without a template, names consist of the date, the file's name and every axis.
        let default = axes.iter().fold(format!("{{date}}_{stem}"), |name, axis| {
            // An axis may be a dotted key, and may have no value at a point.
            format!("{name}_{{{}}}", axis.name.text)
        });
        let name_text = tree.get("name").map_or(Some(default.clone()), |node| self.text(node, "name"));
        let name_node = tree.get("name").unwrap_or(tree).clone();
        let name = Template::parse(&name_text.unwrap_or(default)).unwrap_or_else(|message| {
            self.refuse(&name_node, "name", &message, "for example: `name: '{date}_{algo}'`");
            Template::parse("run").unwrap_or_else(|_| unreachable!("a text without braces is a template"))
        });
        let known: Vec<String> = ["date", "seed"]
            .map(str::to_owned)
            .into_iter()
            .chain(axes.iter().map(|axis| axis.name.text.clone()))
            .collect();
        let unknown: Vec<String> =
            name.names().filter(|name| !known.iter().any(|known| known == name)).map(str::to_owned).collect();
        for unknown in unknown {
            let message = format!("`{{{unknown}}}` names no axis");
            self.refuse(&name_node, "name", &message, &format!("there are {}", known.join(", ")));
        }
        let results = tree.get("results").and_then(|node| self.text(node, "results"));
        let mut base = tree.get("base").map(|node| self.arguments(node, "base")).unwrap_or_default();
        for argument in &mut base {
            argument.text = if argument.is_override() {
                take_from(self.folder, &argument.text)
            } else {
                self.folder.join(&argument.text).to_string_lossy().into_owned()
            };
        }
        base.extend(tree.get("set").map(|node| self.overrides(node, "set")).unwrap_or_default());
        let baseline = tree.get("baseline").and_then(|node| self.explicit(node, "baseline", &axes));
        if let Some(baseline) = &baseline {
            self.check_set(baseline, &axes);
        }
        let list = self.items(tree.get("list"), "list");
        written.extend(list.iter().flat_map(|(node, _)| values_written(node)));
        let list = list.iter().filter_map(|(node, path)| self.explicit(node, path, &axes)).collect();
        let seeds = self.items(tree.get("seeds"), "seeds");
        let seeds = seeds.iter().filter_map(|(node, path)| self.number(node, path, 0)).collect();
        let only = tree.get("only").map(|node| self.only(node, &axes, &written)).unwrap_or_default();
        let parallel = tree.get("parallel").and_then(|node| self.number(node, "parallel", 1)).unwrap_or(1);
        SweepFile {
            path: path.to_owned(),
            name,
            name_origin: name_node.origin,
            results: PathBuf::from(results.unwrap_or_else(|| "results".to_owned())),
            base,
            axes,
            baseline,
            list,
            seeds,
            only,
            parallel: usize::try_from(parallel).unwrap_or(usize::MAX),
        }
    }

    fn text(&mut self, node: &Node, key: &str) -> Option<String> {
        match &node.value {
            Value::Scalar { text, .. } if !text.is_empty() => Some(text.clone()),
            _ => {
                self.refuse(node, key, "must be a text", "");
                None
            }
        }
    }

    fn number(&mut self, node: &Node, key: &str, least: u64) -> Option<u64> {
        let number = node.as_text().and_then(|text| text.parse().ok()).filter(|&number| number >= least);
        if number.is_none() {
            self.refuse(node, key, &format!("must be a whole number, {least} or more"), "");
        }
        number
    }

    /// The items of a list, with the path of each; empty if there is no list.
    fn items<'n>(&mut self, node: Option<&'n Node>, key: &str) -> Vec<(&'n Node, String)> {
        match node.map(|node| (node, &node.value)) {
            None => Vec::new(),
            Some((_, Value::List(items))) => {
                items.iter().enumerate().map(|(at, item)| (item, format!("{key}[{at}]"))).collect()
            }
            Some((node, _)) => {
                self.refuse(node, key, "must be a list", &format!("write [{}]", text_of(node)));
                Vec::new()
            }
        }
    }

    /// Files and overrides: one, or a list of them.
    fn arguments(&mut self, node: &Node, key: &str) -> Vec<Argument> {
        let nodes = match &node.value {
            Value::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        let mut found = Vec::new();
        for node in nodes {
            if let Some(text) = self.text(node, key) {
                found.push(Argument { text, origin: Some(node.origin.clone()) });
            }
        }
        found
    }

    /// Overrides: `key=value` texts, or a mapping of keys to values.
    fn overrides(&mut self, node: &Node, key: &str) -> Vec<Argument> {
        if let Value::Map(entries) = &node.value {
            let of = |entry: &tamis_config::tree::MapEntry| {
                let text = format!("{}={}", entry.key, text_of(&entry.node));
                Argument::written(&text, &entry.origin, self.folder)
            };
            return entries.iter().map(of).collect();
        }
        let mut found = self.arguments(node, key);
        for argument in found.iter().filter(|argument| !argument.is_override()) {
            let place = argument.origin.clone().unwrap_or_else(|| node.origin.clone());
            let node = Node { value: node.value.clone(), origin: place };
            let message = format!("`{}` is not an override", argument.text);
            self.refuse(&node, key, &message, "write `key=value`, or `~key` for the default");
        }
        for argument in &mut found {
            argument.text = take_from(self.folder, &argument.text);
        }
        found
    }

    /// The axes. `written` are values that the baseline gives to them.
    fn axes(&mut self, node: &Node, written: &[AxisAndValue]) -> Vec<Axis> {
        let Value::Map(entries) = &node.value else {
            self.refuse(
                node,
                "axes",
                "must be a mapping of names to values",
                "for example: `axes: {rollout.n: [4, 8]}`",
            );
            return Vec::new();
        };
        let mut axes: Vec<Axis> = Vec::new();
        for entry in entries {
            let name = Written { text: entry.key.clone(), origin: entry.origin.clone() };
            let path = format!("axes.{}", entry.key);
            if matches!(entry.key.as_str(), "date" | "seed" | "set" | "at" | "labels") {
                self.refuse(&entry.node, &path, "has a name that means something else", "rename the axis");
            }
            axes.push(self.axis(name, &entry.node, &path));
        }
        // A condition refers to earlier axes, whose values are known.
        for (at, axis) in axes.iter().enumerate() {
            for case in &axis.cases {
                let path = format!("axes.{}.when", axis.name.text);
                self.check_values(&case.when, &axes[..at], &path, Some(written));
            }
        }
        axes
    }

    /// Reports unknown axes, and values that are neither in the axis nor in `written`. With `None` for
    /// `written`, an axis may have any value.
    fn check_values(&mut self, values: &Values, axes: &[Axis], path: &str, written: Option<&[AxisAndValue]>) {
        for (name, wanted) in values {
            let node = |written: &Written| Node::text(written.text.clone(), written.origin.clone());
            let Some(axis) = axes.iter().find(|axis| axis.name.text == name.text) else {
                let names: Vec<&str> = axes.iter().map(|axis| axis.name.text.as_str()).collect();
                let message = format!("there is no axis `{}` before", name.text);
                let message =
                    if written.is_some() { message } else { format!("there is no axis `{}`", name.text) };
                let hint =
                    if names.is_empty() { String::new() } else { format!("there are {}", names.join(", ")) };
                self.refuse(&node(name), path, &message, &hint);
                continue;
            };
            let Some(written) = written else { continue };
            let own = axis.cases.iter().flat_map(|case| &case.values).map(|value| value.label.text.as_str());
            let others = written.iter().filter(|(axis, _)| *axis == name.text);
            let mut labels: Vec<&str> = Vec::new();
            for label in own.chain(others.map(|(_, value)| value.as_str())) {
                if !labels.contains(&label) {
                    labels.push(label);
                }
            }
            for value in wanted.iter().filter(|value| !labels.contains(&value.text.as_str())) {
                let message = format!("the axis `{}` has no value `{}`", name.text, value.text);
                self.refuse(&node(value), path, &message, &format!("it has {}", labels.join(", ")));
            }
        }
    }

    fn axis(&mut self, name: Written, node: &Node, path: &str) -> Axis {
        match &node.value {
            Value::List(items) => {
                let key = name.text.clone();
                if items.is_empty() {
                    self.refuse(node, path, "has no values", "write a value, or remove the axis");
                }
                let values = self.values(Some(node), path, &key);
                Axis { name, key: Some(key), cases: vec![Case { when: Vec::new(), values }] }
            }
            Value::Map(_) => {
                let _ = self.reader.open(node, path, &["key", "values", "sets", "cases", "when"]);
                let key = node.get("key").and_then(|key| self.text(key, &format!("{path}.key")));
                let own = key.clone().unwrap_or_else(|| name.text.clone());
                let mut cases = Vec::new();
                if node.get("values").or(node.get("sets")).is_some() {
                    cases.push(self.case(node, path, &own));
                }
                for (item, path) in self.items(node.get("cases"), &format!("{path}.cases")) {
                    let _ = self.reader.open(item, &path, &["values", "sets", "when"]);
                    cases.push(self.case(item, &path, &own));
                }
                if cases.is_empty() {
                    self.refuse(
                        node,
                        path,
                        "has no values",
                        "write `values: [...]`, `sets: {name: [key=value]}`, or a list of `cases`",
                    );
                }
                let has_sets = |node: &Node| node.get("sets").is_some();
                let is_sets = has_sets(node)
                    || matches!(node.get("cases").map(|cases| &cases.value), Some(Value::List(items)) if items.iter().any(has_sets));
                Axis { name, key: Some(own).filter(|_| !is_sets), cases }
            }
            Value::Scalar { .. } => {
                self.refuse(
                    node,
                    path,
                    "must be a list of values, or a mapping",
                    &format!("write [{}]", text_of(node)),
                );
                Axis { name, key: None, cases: Vec::new() }
            }
        }
    }

    fn case(&mut self, node: &Node, path: &str, key: &str) -> Case {
        let when =
            node.get("when").map(|when| self.named_values(when, &format!("{path}.when"))).unwrap_or_default();
        let mut values = self.values(node.get("values"), &format!("{path}.values"), key);
        match node.get("sets").map(|sets| (sets, &sets.value)) {
            None => {}
            Some((_, Value::Map(entries))) => {
                for entry in entries {
                    let set = if entry.node.is_null() {
                        Vec::new()
                    } else {
                        self.overrides(&entry.node, &format!("{path}.sets.{}", entry.key))
                    };
                    let label = Written { text: entry.key.clone(), origin: entry.origin.clone() };
                    values.push(AxisValue { label, set });
                }
            }
            Some((node, _)) => {
                let hint = "for example: `sets: {small: [rollout.n=4], large: [rollout.n=8]}`";
                self.refuse(node, &format!("{path}.sets"), "must be a mapping of names to overrides", hint);
            }
        }
        let is_empty =
            |name: &str| node.get(name).is_some_and(|given| given.is_null() || is_empty_collection(given));
        if is_empty("values") || is_empty("sets") || node.get("values").or(node.get("sets")).is_none() {
            self.refuse(node, path, "has no values", "write `values: [...]` or `sets: {name: [key=value]}`");
        }
        Case { when, values }
    }

    fn values(&mut self, node: Option<&Node>, path: &str, key: &str) -> Vec<AxisValue> {
        let folder = self.folder;
        let of = |node: &Node| {
            let label = Written { text: text_of(node), origin: node.origin.clone() };
            let text = format!("{key}={}", label.text);
            AxisValue { label, set: vec![Argument::written(&text, &node.origin, folder)] }
        };
        self.items(node, path).into_iter().map(|(node, _)| of(node)).collect()
    }

    /// A mapping of axes to a value, or to several.
    fn named_values(&mut self, node: &Node, path: &str) -> Values {
        let Value::Map(entries) = &node.value else {
            self.refuse(
                node,
                path,
                "must be a mapping of axes to values",
                "for example: `{strategy: top_p}`",
            );
            return Vec::new();
        };
        let written = |node: &Node| Written { text: text_of(node), origin: node.origin.clone() };
        let values = |node: &Node| match &node.value {
            Value::List(items) => items.iter().map(written).collect(),
            _ => vec![written(node)],
        };
        let of = |entry: &tamis_config::tree::MapEntry| {
            (Written { text: entry.key.clone(), origin: entry.origin.clone() }, values(&entry.node))
        };
        entries.iter().map(of).collect()
    }

    fn explicit(&mut self, node: &Node, path: &str, axes: &[Axis]) -> Option<Explicit> {
        if !matches!(node.value, Value::Map(_)) {
            let hint =
                "for example: `{at: {rollout.n: 4}}` or `{labels: {strategy: none}, set: [filter=null]}`";
            self.refuse(node, path, "must be a mapping with `at`, `labels` and `set`", hint);
            return None;
        }
        let _ = self.reader.open(node, path, &["at", "labels", "set"]);
        let mut values = |name: &str| {
            let path = format!("{path}.{name}");
            let found = node.get(name).map(|values| self.named_values(values, &path)).unwrap_or_default();
            self.check_values(&found, axes, &path, None);
            found
        };
        let (at, labels) = (values("at"), values("labels"));
        for (axis, value) in &at {
            let Some(axis) = axes.iter().find(|known| known.name.text == axis.text) else { continue };
            let names: Vec<&str> = axis
                .cases
                .iter()
                .flat_map(|case| &case.values)
                .map(|value| value.label.text.as_str())
                .collect();
            let Some(value) =
                value.first().filter(|value| axis.key.is_none() && !names.contains(&value.text.as_str()))
            else {
                continue;
            };
            let message = format!("the axis `{}` has no set `{}`", axis.name.text, value.text);
            let hint = format!("it has {}; a value that sets nothing goes to `labels`", names.join(", "));
            let place = Node::text(value.text.clone(), value.origin.clone());
            self.refuse(&place, &format!("{path}.at"), &message, &hint);
        }
        let set = node.get("set").map(|set| self.overrides(set, &format!("{path}.set"))).unwrap_or_default();
        Some(Explicit { at, labels, set, origin: node.origin.clone() })
    }

    /// If an axis depends on one that the baseline names, the grid sets it at the baseline. The baseline's
    /// `set` must not set it, too.
    fn check_set(&mut self, baseline: &Explicit, axes: &[Axis]) {
        let named: Vec<_> = baseline.at.iter().chain(&baseline.labels).collect();
        let of = |axis: &str| {
            named.iter().find(|(name, _)| name.text == axis).and_then(|(_, values)| values.first())
        };
        let may_hold = |case: &Case| {
            let mut conditions =
                case.when.iter().filter_map(|(axis, wanted)| Some((of(&axis.text)?, wanted))).peekable();
            conditions.peek().is_some()
                && conditions.all(|(value, wanted)| wanted.iter().any(|wanted| wanted.text == value.text))
        };
        for axis in axes.iter().filter(|axis| of(&axis.name.text).is_none()) {
            let keys: Vec<&str> = axis
                .cases
                .iter()
                .filter(|case| may_hold(case))
                .flat_map(|case| &case.values)
                .flat_map(|value| &value.set)
                .map(Argument::key)
                .collect();
            let Some(argument) = baseline.set.iter().find(|argument| keys.contains(&argument.key())) else {
                continue;
            };
            let (key, name) = (argument.key(), &axis.name.text);
            let place = Node::text(key, argument.origin.clone().unwrap_or_else(|| baseline.origin.clone()));
            let message = format!("the axis `{name}`, which has values at the baseline, sets `{key}`, too");
            let hint = format!(
                "give the axis its value in `baseline.labels`, for example `{{{name}: none}}`, or remove it here"
            );
            self.refuse(&place, "baseline.set", &message, &hint);
        }
    }

    /// Parts of the sweep. `written` are values of listed points.
    fn only(&mut self, node: &Node, axes: &[Axis], written: &[AxisAndValue]) -> Vec<(Written, Values)> {
        let Value::Map(entries) = &node.value else {
            let hint = "for example: `only: {grpo: {algo: grpo}}`";
            self.refuse(node, "only", "must be a mapping of names to values of axes", hint);
            return Vec::new();
        };
        let mut groups = Vec::new();
        for entry in entries {
            let path = format!("only.{}", entry.key);
            if entry.key == "all" {
                self.refuse(&entry.node, &path, "`all` is every run", "rename the group");
            }
            if !is_name(&entry.key) {
                let message = "is not a valid name of a part, which becomes part of file names";
                self.refuse(&entry.node, &path, message, "a name has no `/`");
            }
            let values = self.named_values(&entry.node, &path);
            self.check_values(&values, axes, &path, Some(written));
            groups.push((Written { text: entry.key.clone(), origin: entry.origin.clone() }, values));
        }
        groups
    }
}
