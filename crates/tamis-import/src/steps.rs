//! Rules that are rows of a table: steps, one after the other, each if its condition holds.
//!
//! A rule begins with a line `= NAME`, with its stage in the second column; its steps have the table's columns:
//!
//! | keys | default | becomes | condition | note |
//! |---|---|---|---|---|
//! | `a,b` | `v` | `ours=VALUE & ours=VALUE` | | sets ours, from the first key that is given; a note is a remark on it |
//! | `a` | | `add ours=VALUE` | | appends to one of our lists |
//! | `a` | `v` | `default ours=VALUE & ...` | | takes the owner's default `VALUE` if a whole configuration leaves `a` out |
//! | `a` | | `torch ours=VALUE` | | sets ours if PyTorch learns; the note says why the native engine needs no key |
//! | `a,b` | | | | says of each key that it has no effect, for the reason in the note |
//! | `a,b` | | `part of c` | | says that each is part of what `c` became |
//! | `a` | | `remark` | | adds the note as a remark |
//! | `a` | | `refuse` | | refuses the value for the reason in the note, and ends the rule; `refuse too` goes on |
//! | `a` | | `bad` | | reports that the value must be what the note says, and ends the rule; `bad too` goes on |
//! | | | `stop` | | ends the rule |
//! | `a` | | `absent` | | says that a default which was not asked for is not followed |
//! | `a,b` | `v` | `call NAME` | | calls a named rule |
//!
//! In a `VALUE` stands `<>` for the text of the first key, `<number>` for it as a number, `<cut>` for one that is at least 0, `<limit>` for a
//! number that stands for no limit unless it is above 0, `<flag>` for a flag, `<quote>` for a quoted text and `<layers>`
//! for the names of layers; with a key and a default (`<number KEY 3>`) for that of the key, `<ours KEY 3>` for a key of ours. A key that has no
//! value takes the default; without one the step is left out.
//!
//! A condition is several, divided by `; `, of which all must hold, each with `not ` before it for the opposite:
//! `on KEY` and `off KEY` (a flag, off or on unless it is given), `KEY=A|B` (one of these values; `null` stands for none),
//! `KEY>N`, `KEY<N`, `KEY~CHARS` (it has one of these characters; `\n` and `\s` stand for a line's end and a space), `given KEY,KEY` (any of them), `whole` (a whole configuration), `set OURS`, `ours OURS=A|B` (what something set it to), `layers KEY` (it names layers), `of SYSTEM` (it
//! has keys of that system), the named ones of [`named`], and `so` alone: what the step before held.

use crate::calls::{call, named};
use crate::key::{Body, Rule};
use crate::owner::Owner;
use crate::shared::learner::{layers, of_torch};
use crate::table::columns;
use crate::translator::{Translator, limit_text, quote};

/// Applies a rule.
pub(crate) fn apply(rule: &Rule, t: &mut Translator) {
    match rule.body {
        Body::Function(function) => function(t),
        Body::Steps(owner, steps) => apply_steps(owner, steps, t),
    }
}

/// Applies the steps of a rule of a system's table.
fn apply_steps(owner: Owner, steps: &'static str, t: &mut Translator) {
    let mut held = true;
    for [keys, default, becomes, condition, note] in steps.lines().map(columns) {
        if condition != "so" {
            held = condition.split("; ").all(|term| term.is_empty() || holds(term, t));
        }
        if held && !step(owner, [keys, default, becomes, note], t) {
            return;
        }
    }
}

/// Takes one step; whether the rule goes on.
fn step(owner: Owner, [keys, default, becomes, note]: [&'static str; 4], t: &mut Translator) -> bool {
    let keys: Vec<&str> = keys.split(',').collect();
    let first = keys.first().copied().unwrap_or_default();
    let (verb, rest) = becomes.split_once(' ').unwrap_or((becomes, ""));
    match verb {
        "" => keys.iter().for_each(|key| t.no_effect(key, note)),
        "part" => {
            let whole = rest.trim_start_matches("of ");
            for key in &keys {
                t.part_of(key, whole);
            }
        }
        "remark" => t.remark(first, note),
        "refuse" => t.refuse(first, note),
        "bad" => t.bad_value(first, note),
        "absent" => t.absent_without_effect(owner, first, note),
        "call" => call(rest, owner, &keys, [default, note], t),
        "default" => {
            let filled: Vec<(&str, Option<String>)> =
                pairs(rest).map(|(ours, value)| (ours, fill(value, first, default, t))).collect();
            let pairs: Vec<(&str, &str)> =
                filled.iter().filter_map(|(ours, value)| Some((*ours, value.as_deref()?))).collect();
            t.defaults(owner, first, &pairs);
        }
        "add" | "torch" => {
            for (ours, value) in pairs(rest) {
                match fill(value, first, default, t) {
                    Some(value) if verb == "add" => t.append(&keys, ours, &value),
                    Some(value) => of_torch(first, ours, &value, note, t),
                    None => {}
                }
            }
        }
        "stop" => {}
        _ => {
            for (ours, value) in pairs(becomes) {
                if let Some(value) = fill(value, first, default, t) {
                    t.set(&keys, ours, &value);
                    if !note.is_empty()
                        && let Some(key) = t.first_given(&keys)
                    {
                        t.remark(&key, note);
                    }
                }
            }
        }
    }
    !matches!(becomes, "stop" | "refuse" | "bad")
}

/// `a=1 & b=2` as pairs.
fn pairs(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.split(" & ").filter_map(|pair| pair.split_once('='))
}

/// A value with what its placeholders stand for; `None` if one of them has no value.
fn fill(value: &str, first: &str, default: &str, t: &mut Translator) -> Option<String> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some((before, (placeholder, after))) =
        rest.split_once('<').and_then(|(before, rest)| Some((before, rest.split_once('>')?)))
    {
        let mut words = placeholder.splitn(3, ' ');
        let (form, key) = (words.next().unwrap_or_default(), words.next().unwrap_or(first));
        filled.push_str(before);
        filled.push_str(&stand_in(form, key, words.next().unwrap_or(default), t)?);
        rest = after;
    }
    Some(filled + rest)
}

/// The value of a key in a form.
fn stand_in(form: &str, key: &str, default: &str, t: &mut Translator) -> Option<String> {
    let number = |t: &mut Translator| t.number(key).or_else(|| default.parse().ok());
    Some(match form {
        "number" => number(t)?.to_string(),
        "cut" => number(t)?.max(0.0).to_string(),
        "limit" => limit_text(number(t)?),
        "flag" => t.flag(key, default == "true").to_string(),
        "quote" => quote(&t.text(key)?),
        "layers" => layers(key, default, t)?,
        "ours" => t.value_of(key).unwrap_or_else(|| default.to_owned()),
        _ => t.text(key).or_else(|| (!default.is_empty()).then(|| default.to_owned()))?,
    })
}

/// Whether a text is one of some, of which `null` stands for none.
fn is_one_of(text: Option<&str>, values: &str) -> bool {
    values.split('|').any(|value| text.map_or(value == "null", |text| text == value))
}

/// Whether a condition holds.
fn holds(term: &str, t: &mut Translator) -> bool {
    if let Some(term) = term.strip_prefix("not ") {
        return !holds(term, t);
    }
    if let Some((word, rest)) = term.split_once(' ') {
        match word {
            "on" => return t.flag(rest, false),
            "off" => return !t.flag(rest, true),
            "layers" => return layers(rest, "", t).is_some(),
            "given" => return rest.split(',').any(|key| t.find(key).is_some()),
            "set" => return t.has_set(rest),
            "ours" => {
                let (ours, values) = rest.split_once('=').unwrap_or((rest, ""));
                return is_one_of(t.value_of(ours).as_deref(), values);
            }
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
            let bound: f64 = bound.parse().unwrap_or_default();
            return t.number(key).is_some_and(|value| if is_above { value > bound } else { value < bound });
        }
    }
    if term == "whole" { t.whole } else { named(term, t) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translator::Lower;

    const TABLES: [(Owner, &str); 4] = [
        (Owner::Verl, include_str!("../tables/verl.tsv")),
        (Owner::EasyR1, include_str!("../tables/easyr1.tsv")),
        (Owner::Ragen, include_str!("../tables/ragen.tsv")),
        (Owner::Trl, include_str!("../tables/trl.tsv")),
    ];

    fn nothing_given() -> Translator {
        Translator {
            given: Vec::new(),
            whole: true,
            lower: Lower::default(),
            overrides: Vec::new(),
            notes: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    /// A name of a condition or of a rule that there is not would panic.
    #[test]
    fn every_step_names_what_there_is() {
        for (owner, table) in TABLES {
            let is_key = |key: &&str| Owner::ALL.iter().any(|owner| crate::entry(*owner, key).is_some());
            let steps = table.split("\n= ").skip(1).flat_map(|block| block.lines().skip(1));
            for [keys, default, becomes, condition, note] in steps.map(columns) {
                let mut t = nothing_given();
                for term in condition.split("; ").filter(|term| !matches!(*term, "" | "so")) {
                    holds(term, &mut t);
                }
                step(owner, [keys, default, becomes, note], &mut t);
                let (verb, rest) = becomes.split_once(' ').unwrap_or((becomes, ""));
                let is_set = verb.contains('=') || matches!(verb, "add" | "torch" | "default");
                let sets = if verb.contains('=') { becomes } else { rest };
                for (ours, _) in pairs(sets).filter(|_| is_set) {
                    assert!(tamis_config::explain(ours).is_ok(), "{owner}: {keys} becomes {ours}");
                }
                if !matches!(verb, "stop" | "call" | "default" | "absent") {
                    let unknown = keys.split(',').find(|key| !is_key(key));
                    assert_eq!(unknown, None, "{owner}: a step of {becomes}");
                    assert!(is_set || verb == "part" || !note.is_empty(), "{owner}: {keys} has no note");
                }
            }
        }
    }
}
