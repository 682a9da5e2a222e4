//! Translates arguments of other systems to our overrides, with a note on each.

use std::collections::HashMap;

use super::key::{Becomes, ForeignKey, Rule};
use super::owner::Owner;
use super::shared::learner::on_gpus;
use super::steps;
pub(crate) use super::translator::Lower;
use super::translator::{Given, Translator, no_effect_for, note_on, point, refusal, show};
use super::{entry, free_values, hydra, inside, section_owner, supervised, trl};
use tamis_config::diagnostic::{Diagnostic, Problem};
use tamis_config::hub_name::HubName;
use tamis_config::override_argument::Override;
use tamis_config::source::{Source, SourceKind};
use tamis_config::table::{self, Place};
use tamis_config::tree::{Node, Value, parse_bool, parse_float};
use tamis_config::{Note, NoteOutcome, Remark, suggest};
use tamis_core::setting::Shape;

#[derive(Debug, Default)]
pub(crate) struct Translation {
    pub(crate) overrides: Vec<Override>,
    pub(crate) notes: Vec<Note>,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

/// Translates arguments. Keys that were not given keep the value of lower layers.
pub(crate) fn translate(arguments: &[Override], lower: Lower) -> Translation {
    run(arguments, false, lower, None)
}

/// Translates arguments. Keys that were not given but matter get their system's default. `typed` are the
/// values of our own keys beside them, `trainer` the supervised trainer that the arguments are of, if any.
pub(crate) fn translate_whole(arguments: &[Override], typed: Node, trainer: Option<Owner>) -> Translation {
    run(arguments, true, Lower { tree: Some(typed), ..Lower::default() }, trainer)
}

type Rows = HashMap<String, &'static ForeignKey>;

fn run(arguments: &[Override], whole: bool, lower: Lower, trainer: Option<Owner>) -> Translation {
    let mut translator = Translator { whole, trainer, lower, ..Translator::default() };
    let arguments = hydra::resolve_all(arguments, &supervised::tables(trainer));
    let easyr1 = arguments.iter().any(|argument| {
        let has = |owner| entry(owner, &argument.path).is_some();
        has(Owner::EasyR1) && !has(Owner::Verl) && !has(Owner::Ragen)
    });
    let mut rows = Rows::new();
    for argument in &arguments {
        translator.take(argument, easyr1, &mut rows);
    }
    translator.refuse_unknown_values(&rows);
    translator.settle_single_keys(&rows);
    if whole {
        on_gpus(&mut translator);
    }
    // Names in a rule are local, except the sizes, which other rules use.
    let mut sizes = HashMap::new();
    for rule in translator.rules(&rows) {
        translator.variables.clone_from(&sizes);
        steps::apply(&rule, &mut translator);
        if rule.name == "sizes" {
            sizes.clone_from(&translator.variables);
        }
    }
    translator.variables = sizes;
    translator.same_values(&rows);
    if whole {
        translator.defaults_of_owner();
    }
    translator.sort_notes();
    for note in &mut translator.notes {
        note.is_change = changes(note, rows.get(&note.key).map_or("", |row| row.default));
    }
    let Translator { overrides, notes, diagnostics, .. } = translator;
    Translation { overrides, notes, diagnostics }
}

impl Translator {
    fn take(&mut self, argument: &Override, easyr1: bool, rows: &mut Rows) {
        let typed = argument.path.as_str();
        let newer = trl::OLDER.iter().find(|(older, _)| *older == typed);
        let key = newer.map_or(typed, |(_, newer)| *newer);
        let order = match self.trainer {
            Some(trainer) => vec![trainer],
            None if easyr1 => vec![Owner::EasyR1, Owner::Ragen, Owner::Verl, Owner::Trl],
            None => vec![Owner::Ragen, Owner::Verl, Owner::EasyR1, Owner::Trl],
        };
        // A named key takes precedence over a name with `*`.
        let named = order.iter().find_map(|&owner| {
            entry(owner, key).filter(|entry| !entry.key.ends_with('*')).map(|entry| (owner, entry, None))
        });
        let found = named
            .or_else(|| inside(&order, key))
            .or_else(|| order.iter().find_map(|&owner| entry(owner, key).map(|entry| (owner, entry, None))));
        let note_that = |owner: Owner, reason: &str| {
            note_on(owner, key, argument.value().map(show), no_effect_for(reason))
        };
        if found.is_none()
            && matches!(argument.value(), Some(Node { value: Value::Map(entries), .. }) if entries.is_empty())
            && let Some(&owner) = order.iter().find(|owner| hydra::is_section(**owner, key))
        {
            self.notes.push(note_that(owner, "it is empty"));
            return;
        }
        let Some((owner, entry, below)) = found else {
            self.report_unknown(argument, easyr1);
            return;
        };
        let is_typed = argument.origin.source.kind == SourceKind::Argument;
        if let Some(variable) = argument.value().filter(|_| is_typed).and_then(hydra::find_unfilled) {
            let problem = Problem::rule_about(
                &[key],
                format!("`{variable}` was not filled in by the shell, in the value of `{key}`"),
                "write its value, or use double quotes: the shell fills in nothing between single ones",
            );
            self.diagnostics.push(Diagnostic::error(problem, Some(argument.origin.clone())));
            return;
        }
        if let Some(reason) = argument.value().and_then(hydra::says_nothing) {
            self.notes.push(note_that(owner, reason));
            return;
        }
        let mut origin = argument.value().map_or(&argument.origin, |node| &node.origin).clone();
        if origin.source.kind == SourceKind::Argument {
            origin.source = Source::new(SourceKind::Translated(owner.as_str()), origin.source.text.clone());
        }
        let mut node =
            argument.value().cloned().unwrap_or_else(|| Node::plain(entry.default, origin.clone()));
        let is_free = below.is_some() || free_values::is_free(entry);
        if is_free {
            free_values::resolve(&mut node, owner, is_typed);
        }
        point(&mut node, &origin);
        if key == "hub_token" && !node.is_null() {
            node = Node::text("***", origin.clone());
        }
        // The last of several wins, as in all of these systems.
        self.given.retain(|given| given.key != key);
        let rule = match entry.becomes {
            Becomes::By(rule, _) => Some(rule.name),
            _ => None,
        };
        rows.insert(key.to_owned(), entry);
        self.given.push(Given { owner, key: key.to_owned(), rule, below, is_free, node, origin });
    }

    /// Reports a key that is in no table.
    fn report_unknown(&mut self, argument: &Override, easyr1: bool) {
        let key = argument.path.as_str();
        // Only TRL's keys have no section.
        let owner = self.trainer.or_else(|| {
            section_owner(key).map(|owner| if easyr1 { Owner::EasyR1 } else { owner }).or_else(|| {
                let is_flat = !key.contains('.');
                (is_flat && self.has_key_of(Owner::Trl)).then_some(Owner::Trl)
            })
        });
        let owners = owner.map_or_else(|| Owner::ALL.to_vec(), |owner| vec![owner]);
        let names: Vec<&'static str> =
            owners.iter().flat_map(|owner| owner.keys()).map(|entry| entry.key).collect();
        let suggestion = suggest::nearest_value(key, &names).filter(|name| !name.ends_with('*'));
        let of = owner.map_or("verl, EasyR1, RAGEN or TRL", Owner::as_str);
        let of_supervised = || {
            let known = Owner::SFT.into_iter().find(|trainer| supervised::is_name_of(Some(*trainer), key));
            let command = match known.filter(|_| self.trainer.is_none())? {
                Owner::TrlSft => "trl sft",
                _ => "python3 -m verl.trainer.sft_trainer",
            };
            Some(format!(
                "it is a key of supervised training: give the command, `tamis train -- {command} ...`"
            ))
        };
        let hint = of_supervised().unwrap_or_else(|| {
            suggestion.map_or_else(
                || "remove it, or set the key of tamis that has its purpose".to_owned(),
                |suggestion| format!("did you mean `{suggestion}`?"),
            )
        });
        let problem =
            Problem::rule_about(&[key], format!("`{key}` is no key of {of} that tamis knows"), hint);
        self.diagnostics.push(Diagnostic::error(problem, Some(argument.origin.clone())));
    }

    /// Refuses values that a key's system does not know, which tamis may know.
    fn refuse_unknown_values(&mut self, rows: &Rows) {
        let mut refused = Vec::new();
        for given in &self.given {
            let Some(known) = given.owner.table().values(&given.key) else { continue };
            let texts: Vec<String> = match &given.node.value {
                Value::List(items) => items.iter().map(show).collect(),
                _ if given.node.is_null() => Vec::new(),
                _ => show(&given.node).split(',').map(|text| text.trim().to_owned()).collect(),
            };
            let is_known = |text: &&String| {
                let is = |value: &&str| *value == text.as_str();
                matches!(text.as_str(), "" | "None" | "null")
                    || known.taken.iter().chain(&known.others).any(is)
            };
            let Some(unknown) = texts.iter().find(|text| !is_known(text)) else { continue };
            let message = format!("{} has no `{unknown}` for `{}`", given.owner, given.key);
            let meant = suggest::nearest_value(unknown, &known.taken);
            let own = targets(&rows[&given.key].becomes).into_iter().find(|ours| is_value_of(ours, unknown));
            let meant = meant.map_or_else(String::new, |meant| format!("did you mean `{meant}`? "));
            let own = own.map_or_else(String::new, |ours| {
                format!("; `{ours}={unknown}` is tamis's own, and needs no key of {}", given.owner)
            });
            let hint = format!("{meant}{} takes {}{own}", given.owner, list(&known.taken));
            let problem = Problem::rule_about(&[&given.key], message, hint);
            self.diagnostics.push(Diagnostic::error(problem, Some(given.origin.clone())));
            refused.push(given.key.clone());
        }
        // Nothing else is wrong with them.
        self.given.retain(|given| !refused.contains(&given.key));
    }

    /// Notes keys without effect and refuses unsupported ones, key by key.
    fn settle_single_keys(&mut self, rows: &Rows) {
        for given in &self.given {
            let value = show(&given.node);
            let outcome = match &rows[&given.key].becomes {
                Becomes::Key(_) | Becomes::By(..) => continue,
                &Becomes::NoEffect(reason) => reason,
                Becomes::Unless(allowed, reason) => {
                    let is_allowed = allowed.contains(&value.as_str())
                        || given.node.is_null() && allowed.contains(&"null");
                    if !is_allowed {
                        let problem = refusal(&given.key, &value, given.owner, reason);
                        self.diagnostics.push(Diagnostic::error(problem, Some(given.origin.clone())));
                        continue;
                    }
                    "this is how tamis works without the key"
                }
            };
            let outcome = no_effect_for(outcome);
            self.notes.push(note_on(given.owner, &given.key, Some(value), outcome));
        }
    }

    /// The rules of the given keys, in the order in which they are applied.
    fn rules(&self, rows: &Rows) -> Vec<Rule> {
        let mut rules: Vec<(u8, _, Rule)> = Vec::new();
        for given in &self.given {
            let Becomes::By(rule, _) = rows[&given.key].becomes else { continue };
            let is_of = |row: &ForeignKey| matches!(row.becomes, Becomes::By(of, _) if of.name == rule.name);
            let place = (
                Owner::every().position(|owner| owner == given.owner),
                given.owner.keys().iter().position(is_of),
            );
            rules.push((rule.stage, place, rule));
        }
        // The sizes of these are computed even if no key sets one, after the other rules of their stage.
        for owner in [Owner::Ragen, Owner::Trl, Owner::VerlSft, Owner::TrlSft] {
            let sizes = owner.table().rule("sizes");
            if self.has_key_of(owner)
                && !rules.iter().any(|(_, _, rule)| (rule.owner, rule.name) == (owner, sizes.name))
            {
                rules.push((sizes.stage, (Some(usize::MAX), None), sizes));
            }
        }
        rules.sort_by_key(|(stage, place, _)| (*stage, *place));
        rules.dedup_by_key(|(stage, place, _)| (*stage, *place));
        rules.into_iter().map(|(_, _, rule)| rule).collect()
    }

    /// Sets our keys that have the same value as theirs.
    fn same_values(&mut self, rows: &Rows) {
        let ours = |given: &Given| match rows[&given.key].becomes {
            Becomes::Key(ours) => {
                Some((given.key.clone(), given.below.clone().unwrap_or_else(|| ours.to_owned())))
            }
            _ => None,
        };
        let simple: Vec<(String, String)> = self.given.iter().filter_map(ours).collect();
        for (key, ours) in simple {
            let Some(given) = self.find(&key) else { continue };
            // A rule of another key has handled it.
            if self.notes.iter().any(|note| note.key == key) {
                continue;
            }
            let (is_free, is_inside) = (given.is_free, given.below.is_some());
            let mut node = if is_free { given.node.clone() } else { unquote(given.node.clone()) };
            // In the other systems null means no value, and so does our default. Inside a mapping, null is a
            // value.
            if node.is_null()
                && !is_inside
                && !ours.ends_with("dual_clip")
                && !ours.ends_with("max_grad_norm")
            {
                self.no_effect(&key, "null leaves the default");
                continue;
            }
            // A single value is a list of one, as in their argument parsers.
            if is_list(&ours) && matches!(node.value, Value::Scalar { .. }) {
                let origin = node.origin.clone();
                node = Node { value: Value::List(vec![given.node.clone()]), origin };
            }
            if matches!(ours.as_str(), "data.train" | "data.val") {
                name_splits(&mut node);
            }
            self.set_node(&[&key], &ours, node);
        }
    }

    /// Sets the defaults of the system of a whole configuration.
    fn defaults_of_owner(&mut self) {
        let is_there = |owner: &Owner| self.given.iter().any(|given| given.owner == *owner);
        // One system's table may be the base of another's: the most specific one's defaults apply.
        let order = [Owner::EasyR1, Owner::Trl, Owner::Ragen, Owner::Verl];
        if let Some(owner) = self.trainer.or_else(|| order.into_iter().find(is_there)) {
            steps::apply(&owner.table().rule("defaults"), self);
        }
    }

    /// Sorts the notes by the order of the arguments. Notes on keys that were not given come last.
    fn sort_notes(&mut self) {
        let given = &self.given;
        let position =
            |note: &Note| given.iter().position(|given| given.key == note.key).unwrap_or(usize::MAX);
        self.notes.sort_by_key(position);
    }
}

/// Whether something changes or is lost by what a key became: a number that is another one here, a remark, or
/// no effect of a value that is not its owner's default.
fn changes(note: &Note, default: &str) -> bool {
    let is_other = |left: &str, right: &str| match (parse_float(left), parse_float(right)) {
        (Some(left), Some(right)) => left.to_bits() != right.to_bits(),
        _ => !left.eq_ignore_ascii_case(right),
    };
    let Some(value) = &note.value else {
        // A default of its owner's is what the command means.
        return match &note.outcome {
            NoteOutcome::NoEffect(_) | NoteOutcome::Ignored(_) => true,
            _ => matches!(note.remark, Some(Remark::Text(_))),
        };
    };
    match &note.outcome {
        _ if note.remark.is_some() => true,
        NoteOutcome::Became(pairs) => match pairs.as_slice() {
            [(_, ours)] if parse_float(value).is_some() && parse_float(ours).is_some() => {
                is_other(value, ours)
            }
            _ => false,
        },
        NoteOutcome::PartOf(_) => false,
        NoteOutcome::Ignored(_) => true,
        NoteOutcome::NoEffect(_) => !default.is_empty() && is_other(value, default),
    }
}

/// Our keys that a row sets.
fn targets(becomes: &Becomes) -> Vec<&'static str> {
    match becomes {
        Becomes::Key(ours) | Becomes::By(_, ours) => ours.split(' ').collect(),
        Becomes::NoEffect(_) | Becomes::Unless(..) => Vec::new(),
    }
}

/// Whether one of our keys has a value or a kind of this name.
fn is_value_of(ours: &str, value: &str) -> bool {
    let (section, name) = ours.rsplit_once('.').unwrap_or((ours, ""));
    let shape = |key: &str| match table::place(key) {
        Ok(Place::Key(spec)) => Some((spec.shape)()),
        _ => None,
    };
    name == "kind" && shape(section).is_some_and(|shape| shape.has_kind(value))
        || shape(ours).is_some_and(|shape| shape.without_null().doc_of(value).is_some())
}

/// Words in quotes: `a`, `b` and `c`.
fn list(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}

/// Whether one of our keys is a list of any length.
fn is_list(ours: &str) -> bool {
    let Ok(Place::Key(spec)) = table::place(ours) else { return false };
    let mut shape = (spec.shape)();
    while let Shape::Nullable(inner) = shape {
        shape = *inner;
    }
    matches!(shape, Shape::List(_))
}

/// To other systems, a number or boolean in quotes is a number or boolean.
fn unquote(node: Node) -> Node {
    match node.value {
        Value::Scalar { text, plain: false }
            if parse_bool(&text).is_some() || parse_float(&text).is_some() =>
        {
            Node::plain(text, node.origin)
        }
        value => Node { value, origin: node.origin },
    }
}

/// Converts splits of data sets on a hub to our form. In EasyR1 `owner/name@split` is a split, and
/// `owner/name` means the split `train`, even for validation data.
fn name_splits(node: &mut Node) {
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(name_splits),
        Value::Scalar { text, .. } => {
            let (name, split) = text.split_once('@').unwrap_or((text.as_str(), "train"));
            if HubName::parse(name).is_some() && !std::path::Path::new(text).exists() {
                *text = format!("{name}:{split}");
            }
        }
        Value::Map(_) => {}
    }
}
