//! Rules written as rows of a table. A rule is a list of steps, each with an optional condition.
//!
//! A rule begins with a line `= NAME`, with its stage in the second column. If the third column has prefixes
//! of keys, separated by `|`, the steps run once for each prefix, with `%` replaced by it. The steps have the
//! table's columns:
//!
//! | keys | default | becomes | condition | note |
//! |---|---|---|---|---|
//! | `a,b` | `v` | `ours=VALUE & ours=VALUE` | | sets ours, from the first key that is given; a note is a remark on it |
//! | `a` | | `same ours` | | sets ours to the unchanged value; null leaves the default |
//! | `a` | | `add ours=VALUE` | | appends to one of our lists |
//! | `a` | `v` | `default ours=VALUE & ...` | | uses the system's default `VALUE` if a whole configuration leaves `a` out |
//! | `a` | | `torch ours=VALUE` | | sets ours if PyTorch learns; the note says why the native engine needs no key |
//! | `a,b` | | | | notes that each key has no effect, for the reason in the note |
//! | `a,b` | | `part of c` | | notes that each key belongs to the translation of `c`; `first` is the first of them that is given |
//! | `a,b` | | `remark` | | adds the note as a remark to the first key that is given |
//! | `a,b` | `c=v` | `refuse` | | refuses the first that is given, or the default of `c`; ends the rule unless `too` follows |
//! | `a` | | `bad` | | reports that the value must be what the note says; ends the rule unless `too` follows |
//! | `a,b` | | `numbers` | | reports those that are no numbers |
//! | | | `let $name=VALUE & ...` | | names a value for the rest of the rule, or for all rules if this one is `sizes` |
//! | | | `stop` | | ends the rule |
//! | `a` | | `absent` | | notes that a default which was not requested is not followed |
//! | `a` | | `instead ours=VALUE` | | notes the translation of a key that was not given |
//! | | | `rest NAME` | | notes that all other keys of the rule have no effect |
//! | | | `rule NAME` | | runs the steps of another rule: of this table, of the one that it builds on, or of verl's |
//! | `a,b` | `v` | `call NAME` | | calls a named rule |
//!
//! In a `VALUE` and in a note, `<>` is the text of the first key, `<number>` its number, `<cut>` its number
//! but at least 0, `<limit>` its number as a limit (no limit unless it is above 0), `<flag>` its flag,
//! `<quote>` its text in quotes (`<trim>` without space around it), `<lower>` its text in lower case,
//! `<left>` and `<right>` the parts before and after the first `_`, `<parent>` and `<name>` the parts of a
//! path, and `<layers>` the names of layers. With a key and a default (`<number KEY 3>`), each is taken from
//! that key. `<ours KEY 3>` is a key of ours, `<kind KEY 3>` the kind of a section of ours. `<= KEY / OTHER?3
//! max 1>` is computed from left to right. A key without a value takes the default; without a default, the
//! step is skipped. `environment*` is the section of each environment.
//!
//! A condition has parts separated by `; `, which must all hold. `not ` before a part negates it. The parts
//! are: `on KEY` and `off KEY` (a flag, off or on unless it is given), `KEY=A|B` (one of these values; `null`
//! means none), `KEY>N`, `KEY<N`, `KEY~CHARS` (it has one of these characters; `\n` and `\s` are a line break
//! and a space), `given KEY,KEY` (any of them), `noted KEY` (it has a note), `number KEY`, `mapping KEY`,
//! `count KEY` (a whole number from 1), `whole` (a whole configuration), `set OURS`, `ours OURS=A|B` (the
//! value that was set), `all OURS=A|B` (the value over all layers), `layers KEY` (it names layers), `of
//! SYSTEM` (it has keys of that system), the named ones of [`named`], and `so` without an argument: the
//! condition of the previous step.

use crate::calls::{call, named};
use crate::key::Rule;
use crate::owner::Owner;
use crate::ragen::sections;
use crate::shared::learner::{layers, of_torch};
use crate::table::columns;
use crate::translator::{Translator, limit_text};
use tamis_config::render::scalar;
use tamis_config::tree::{Value, parse_float};

/// Applies a rule of a system's table.
pub(crate) fn apply(rule: &Rule, t: &mut Translator) {
    let mut held = true;
    for [keys, default, becomes, condition, note] in rule.steps.lines().map(columns) {
        if condition != "so" {
            held = condition.split("; ").all(|term| term.is_empty() || holds(term, rule.owner, t));
        }
        if held && !step(rule.owner, [keys, default, becomes, note], t) {
            return;
        }
    }
}

/// Runs one step. Returns whether the rule continues.
fn step(owner: Owner, [keys, default, becomes, note]: [&'static str; 4], t: &mut Translator) -> bool {
    let keys: Vec<&str> = keys.split(',').collect();
    let first = keys.first().copied().unwrap_or_default();
    let given = t.first_given(&keys);
    let given = given.as_deref().unwrap_or(first);
    let (verb, rest) = becomes.split_once(' ').unwrap_or((becomes, ""));
    // If the note names a value that does not exist, its text is used unchanged.
    let text = fill(note, given, "", t).unwrap_or_else(|| note.to_owned());
    match verb {
        "" => keys.iter().for_each(|key| t.no_effect(key, &text)),
        "part" => {
            let whole = rest.trim_start_matches("of ");
            for key in &keys {
                t.part_of(key, if whole == "first" { given } else { whole });
            }
        }
        "remark" => t.remark(given, &text),
        "refuse" => match default.split_once('=') {
            Some((key, default)) if t.find(given).is_none() => t.refuse_or_default(owner, key, default, text),
            _ => t.refuse(given, text),
        },
        "bad" => t.bad_value(first, note),
        "numbers" => keys.iter().for_each(|key| _ = t.number(key)),
        "absent" => t.absent_without_effect(owner, first, note),
        "rest" => t.rest_without_effect(rest, note),
        "rule" => {
            let found = [Some(owner), owner.base()]
                .into_iter()
                .flatten()
                .find_map(|owner| owner.table().rules.iter().find(|rule| rule.name == rest).copied());
            apply(&found.unwrap_or_else(|| Owner::Verl.table().rule(rest)), t);
        }
        "call" => call(rest, owner, &keys, [default, note], t),
        "same" => match t.find(first).map(|given| given.node.clone()) {
            Some(node) if node.is_null() && !rest.ends_with("max_grad_norm") => {
                t.no_effect(first, "null leaves the default");
            }
            Some(node) => t.set_node(&keys, rest, node),
            None => {}
        },
        "let" => {
            for (name, value) in rest.split(" & ").filter_map(|pair| pair.split_once('=')) {
                match fill(value, first, default, t) {
                    Some(value) => _ = t.variables.insert(name, value),
                    None => _ = t.variables.remove(name),
                }
            }
        }
        "default" | "instead" => {
            let pairs = filled_pairs(rest, first, default, t);
            let pairs: Vec<(&str, &str)> =
                pairs.iter().map(|(ours, value)| (ours.as_str(), value.as_str())).collect();
            if verb == "default" {
                t.defaults(owner, first, &pairs);
            } else {
                t.absent(owner, first, &pairs, &text);
            }
        }
        "stop" => {}
        _ => {
            let is_verb = matches!(verb, "add" | "torch");
            assert!(is_verb || verb.contains('='), "no verb `{verb}` in a step of {owner}");
            let sets = if is_verb { rest } else { becomes };
            for (ours, value) in filled_pairs(sets, first, default, t) {
                match verb {
                    "add" => t.append(&keys, &ours, &value),
                    "torch" => of_torch(first, &ours, &value, note, t),
                    _ => {
                        t.set(&keys, &ours, &value);
                        if !note.is_empty() && t.find(given).is_some() {
                            t.remark(given, &text);
                        }
                    }
                }
            }
        }
    }
    !matches!(becomes, "stop" | "refuse" | "bad")
}

/// `a=1 & b=2` as pairs, without those that have no value. `environment*` expands to each environment.
fn filled_pairs(text: &str, first: &str, default: &str, t: &mut Translator) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for pair in text.split(" & ") {
        let (ours, value) =
            pair.split_once('=').unwrap_or_else(|| unreachable!("no `=` in `{pair}` of a step"));
        let Some(value) = fill(value, first, default, t) else { continue };
        match ours.strip_prefix("environment*") {
            Some(name) => {
                pairs.extend(sections(t).into_iter().map(|section| (section + name, value.clone())));
            }
            None => pairs.push((ours.to_owned(), value)),
        }
    }
    pairs
}

/// A value with its placeholders filled in; `None` if one of them has no value.
pub(crate) fn fill(value: &str, first: &str, default: &str, t: &mut Translator) -> Option<String> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some((before, (placeholder, after))) =
        rest.split_once('<').and_then(|(before, rest)| Some((before, rest.split_once('>')?)))
    {
        filled.push_str(before);
        filled.push_str(&if let Some(expression) = placeholder.strip_prefix("= ") {
            evaluate(expression, t)?.to_string()
        } else {
            let mut words = placeholder.splitn(3, ' ');
            let (form, key) = (words.next().unwrap_or_default(), words.next().unwrap_or(first));
            stand_in(form, key, words.next().unwrap_or(default), t)?
        });
        rest = after;
    }
    Some(filled + rest)
}

fn stand_in(form: &str, key: &str, default: &str, t: &mut Translator) -> Option<String> {
    let text = |t: &Translator| t.text(key).or_else(|| (!default.is_empty()).then(|| default.to_owned()));
    let number = |t: &mut Translator| t.number(key).or_else(|| default.parse().ok());
    let part = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    Some(match form {
        "number" => number(t)?.to_string(),
        "cut" => number(t)?.max(0.0).to_string(),
        "limit" => limit_text(number(t)?),
        "flag" => t.flag(key, default == "true").to_string(),
        "quote" => scalar(&t.text(key)?),
        "trim" => scalar(t.text(key)?.trim()),
        "lower" => text(t)?.to_lowercase(),
        "left" => text(t)?.split_once('_')?.0.to_owned(),
        "right" => text(t)?.split_once('_')?.1.to_owned(),
        "parent" => {
            let parent = part(std::path::Path::new(&t.text(key)?).parent().map(std::path::Path::as_os_str));
            scalar(parent.as_deref().filter(|parent| !parent.is_empty()).unwrap_or("."))
        }
        "name" => {
            scalar(&part(std::path::Path::new(&t.text(key)?).file_name()).unwrap_or_else(|| "run".to_owned()))
        }
        "layers" => layers(key, default, t)?,
        "ours" => t.value_of(key).unwrap_or_else(|| default.to_owned()),
        "kind" => t.kind_of(key).unwrap_or_else(|| default.to_owned()),
        _ => text(t)?,
    })
}

/// The value of an expression, computed from left to right.
fn evaluate(expression: &str, t: &Translator) -> Option<f64> {
    let mut words = expression.split(' ');
    let mut value = operand(words.next()?, t)?;
    while let Some(word) = words.next() {
        value = match word {
            "ceil" => value.ceil(),
            "floor" => value.floor(),
            "round" => value.round(),
            _ => {
                let other = operand(words.next()?, t)?;
                match word {
                    "+" => value + other,
                    "-" => value - other,
                    "*" => value * other,
                    "/" => value / other,
                    "max" => value.max(other),
                    "min" => value.min(other),
                    _ => unreachable!("no operation `{word}` in `{expression}`"),
                }
            }
        };
    }
    Some(value)
}

/// A number, or a key's number; `KEY?OTHER` is `OTHER` if the key has none.
fn operand(text: &str, t: &Translator) -> Option<f64> {
    let (key, default) = text.split_once('?').map_or((text, None), |(key, other)| (key, Some(other)));
    let of_key = || match key.strip_prefix("ours:") {
        Some(ours) => t.value_of(ours)?.parse().ok(),
        None => parse_float(&t.text(key)?),
    };
    key.parse().ok().or_else(of_key).or_else(|| operand(default?, t))
}

/// Whether a text is one of the values; `null` matches a missing text.
fn is_one_of(text: Option<&str>, values: &str) -> bool {
    values.split('|').any(|value| text.map_or(value == "null", |text| text == value))
}

/// Whether a condition holds.
fn holds(term: &str, owner: Owner, t: &mut Translator) -> bool {
    if let Some(term) = term.strip_prefix("not ") {
        return !holds(term, owner, t);
    }
    if let Some((word, rest)) = term.split_once(' ') {
        let (ours, values) = rest.split_once('=').unwrap_or((rest, ""));
        match word {
            "on" => return t.flag(rest, false),
            "off" => return !t.flag(rest, true),
            "layers" => return layers(rest, "", t).is_some(),
            "given" => return rest.split(',').any(|key| t.find(key).is_some()),
            "noted" => return t.is_noted(rest),
            "number" => return t.number(rest).is_some(),
            "mapping" => return t.find(rest).is_some_and(|given| matches!(given.node.value, Value::Map(_))),
            "count" => return t.number(rest).is_some_and(|value| value >= 1.0 && value.fract() == 0.0),
            "set" => return t.has_set(rest),
            "ours" => return is_one_of(t.value_of(ours).as_deref(), values),
            "all" => return is_one_of(t.text_of(ours).as_deref(), values),
            "of" => return Owner::ALL.iter().any(|owner| owner.as_str() == rest && t.has_key_of(*owner)),
            _ => {}
        }
    }
    if let Some((key, values)) = term.split_once('=') {
        return is_one_of(t.text(key).as_deref(), values);
    }
    if let Some((key, characters)) = term.split_once('~') {
        let characters = characters.replace("\\n", "\n").replace("\\s", " ");
        return t.text(key).is_some_and(|text| text.contains(|c| characters.contains(c)));
    }
    for (sign, is_above) in [('>', true), ('<', false)] {
        if let Some((key, bound)) = term.split_once(sign) {
            let Some(bound) = operand(bound, t) else { return false };
            return t.number(key).is_some_and(|value| if is_above { value > bound } else { value < bound });
        }
    }
    if term == "whole" { t.whole } else { named(term, owner, t) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unknown verb, condition or rule would panic.
    #[test]
    fn every_step_names_what_there_is() {
        for owner in Owner::every() {
            let is_key = |key: &&str| Owner::every().any(|owner| crate::entry(owner, key).is_some());
            let steps = owner.table().rules.iter().flat_map(|rule| rule.steps.lines());
            for [keys, default, becomes, condition, note] in steps.map(columns) {
                let mut t = Translator { whole: true, ..Translator::default() };
                for term in condition.split("; ").filter(|term| !matches!(*term, "" | "so")) {
                    holds(term, owner, &mut t);
                }
                step(owner, [keys, default, becomes, note], &mut t);
                let (verb, rest) = becomes.split_once(' ').unwrap_or((becomes, ""));
                let is_set =
                    verb.contains('=') || matches!(verb, "add" | "torch" | "default" | "instead" | "same");
                let sets = if verb.contains('=') { becomes } else { rest };
                for pair in sets.split(" & ").filter(|_| is_set) {
                    let ours = pair.split_once('=').map_or(pair, |(ours, _)| ours).replace('*', "");
                    assert!(tamis_config::explain(&ours).is_ok(), "{owner}: {keys} becomes {ours}");
                }
                if matches!(verb, "" | "part" | "remark" | "refuse" | "bad" | "numbers" | "same") {
                    // A name with a space is not a key, but the name of a default.
                    let unknown = keys.split(',').find(|key| !is_key(key) && !key.contains(' '));
                    assert_eq!(unknown, None, "{owner}: a step of {becomes}");
                    assert!(
                        matches!(verb, "part" | "numbers" | "same") || !note.is_empty(),
                        "{owner}: {keys} has no note"
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "no verb `prat` in a step of verl")]
    fn a_misspelt_verb_panics() {
        step(Owner::Verl, ["a", "", "prat of b", ""], &mut Translator::default());
    }
}
