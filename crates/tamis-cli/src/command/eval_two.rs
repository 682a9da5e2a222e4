//! `tamis eval A B`: which words name the two checkpoints, whether they can be compared, and the comparison.
//!
//! Both are measured with one configuration: that of the first one's run, or of the second one's if the first
//! is in no run. What the other run would do differently is printed, and how many of the prompts are in the
//! training data of each run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tamis_config::{Config, Preset, json_of};
use tamis_core::figure::{counted, fixed};
use tamis_run::metrics::summary::{Change, PairedDifference};
use tamis_train::evaluate::{EvaluationReport, InTraining, in_training};

use super::eval::{Evaluated, find, name_on_hub};
use super::{follow_model, paired};
use crate::arguments::LayerArguments;
use crate::failure::{Failure, USAGE};

/// Keys that are named where two runs differ, at most.
const MOST_KEYS: usize = 6;

/// Takes the second checkpoint out of the words behind the first: a word that is no override, no preset and
/// no file of a configuration. There is no third.
pub(super) fn take_second(layers: &mut LayerArguments) -> Result<Option<PathBuf>, Failure> {
    let is_checkpoint = |word: &str| {
        let path = Path::new(word);
        let is_file =
            path.is_file() || path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        let is_preset = Preset::ALL.iter().any(|preset| preset.as_str() == word);
        let is_override = word.contains('=') || word.starts_with(['~', '+']);
        !(is_override || is_file || is_preset)
    };
    let mut named = layers.arguments.iter().enumerate().filter(|(_, word)| is_checkpoint(word));
    let Some((place, _)) = named.next() else { return Ok(None) };
    if let Some((_, third)) = named.next() {
        return Err(Failure::new(USAGE, message_of_third(third)));
    }
    Ok(Some(PathBuf::from(layers.arguments.remove(place))))
}

fn message_of_third(third: &str) -> String {
    let path = Path::new(third);
    if path.exists() {
        return format!(
            "error: `{third}` is a third checkpoint, and `tamis eval` compares two\n  \
             hint: evaluate them two by two: `tamis eval A B`, then `tamis eval A {third}`"
        );
    }
    let near = tamis_file::suggest(path).unwrap_or_else(|| {
        "after two checkpoints come files of a configuration (`my.yaml`), presets and overrides (`KEY=VALUE`)"
            .to_owned()
    });
    format!("error: there is no file or folder {third}\n  hint: {near}")
}

/// As [`find`], with the folder of a model on a hub.
pub(super) fn find_second(source: &Path) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    match name_on_hub(source) {
        Some(model) => Ok((follow_model(model)?, None)),
        None => find(source),
    }
}

/// Refuses one checkpoint that is named twice for a command: the difference would be that of nothing.
pub(super) fn refuse_twice(first: &Path, second: &Path, command: &str) -> Result<(), Failure> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if real(first).is_none_or(|first| Some(first) != real(second)) {
        return Ok(());
    }
    let others = first.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let others = others.flatten().map(|entry| entry.path());
    let mut others: Vec<PathBuf> =
        others.filter(|other| other.join("config.json").is_file() && real(other) != real(first)).collect();
    others.sort();
    let hint = match others.first() {
        Some(other) => {
            format!("name two, say `tamis {command} {} {}`", other.display(), first.display())
        }
        None => "name two checkpoints, or only this one".to_owned(),
    };
    Err(Failure::new(
        USAGE,
        format!("error: both names are of one checkpoint, {}\n  hint: {hint}", first.display()),
    ))
}

/// The settings of two runs by their keys, of what a measurement depends on.
fn settings(config: &Config) -> Vec<(String, Value)> {
    let rollout = json_of(&config.rollout);
    let of_rollout = ["max_response_length", "stop", "regex"];
    let mut found = Vec::new();
    flatten("data", json_of(&config.data), &mut found);
    flatten("reward", json_of(&config.reward), &mut found);
    flatten("environment", json_of(&config.environment), &mut found);
    flatten("validate", json_of(&config.validate), &mut found);
    for key in of_rollout {
        flatten(&format!("rollout.{key}"), rollout.get(key).cloned().unwrap_or_default(), &mut found);
    }
    let is_of_training = |key: &str| {
        let keys = [
            "train_batch_size",
            "gen_batch_size",
            "shuffle",
            "check_gold",
            "curriculum",
            "arithmetic.train_size",
        ];
        let rest = key.strip_prefix("data.");
        rest.is_some_and(|rest| keys.iter().any(|key| rest == *key || rest.starts_with(&format!("{key}."))))
            || ["validate.test_freq", "validate.before_train", "validate.save_samples"].contains(&key)
    };
    found.retain(|(key, _)| !is_of_training(key));
    found
}

fn flatten(key: &str, value: Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.into_iter().for_each(|(name, value)| flatten(&format!("{key}.{name}"), value, found));
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (place, value) in list.into_iter().enumerate() {
                flatten(&format!("{key}[{place}]"), value, found);
            }
        }
        value => found.push((key.to_owned(), value)),
    }
}

/// Keys that the two runs set differently, and that no one has set for this measurement.
fn unlike(first: &Config, other: &Config, measured_config: &Config) -> Vec<String> {
    let (first, other, measured) = (settings(first), settings(other), settings(measured_config));
    let get = |of: &[(String, Value)], key: &str| {
        of.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    };
    let mut keys: Vec<String> = first.iter().chain(&other).map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys.dedup();
    // Training data is measured only if a part of it is held out.
    keys.retain(|key| !key.starts_with("data.train") || measured_config.holds_out());
    keys.retain(|key| get(&first, key) != get(&other, key) && get(&first, key) == get(&measured, key));
    keys
}

/// What the run of the other checkpoint would measure differently; `None` if it has the same settings.
pub(super) fn note_of_settings([first, other]: [(&Path, &Config); 2], measured: &Config) -> Option<String> {
    let keys = unlike(first.1, other.1, measured);
    let rest = keys.len().saturating_sub(MOST_KEYS);
    let mut named: Vec<String> = keys.into_iter().take(MOST_KEYS).map(|key| format!("`{key}`")).collect();
    if rest > 0 {
        named.push(format!("{rest} more"));
    }
    (!named.is_empty()).then(|| {
        format!(
            "{} has other settings ({}): both checkpoints are measured with those of {}",
            other.0.display(),
            named.join(", "),
            first.0.display()
        )
    })
}

/// How many of the measured prompts are in the training data of a run, in words; `None` if none is. `first`
/// is the run whose configuration is measured.
///
/// # Errors
/// Prompts that the measured run holds out of its training data, and that are in the data of another run.
pub(super) fn note_of_training(
    run: (&Path, &Config),
    first: &Path,
    measured: &Config,
) -> Result<Option<String>, Failure> {
    let (name, own) = (run.0.display(), run.1);
    // What a run holds out is not in its own training data.
    let is_same = json_of(&own.data) == json_of(&measured.data) && own.run.seed == measured.run.seed;
    // Supervised fine-tuning alone reads no prompts.
    if is_same && measured.holds_out() || own.is_sft_alone() {
        return Ok(None);
    }
    let found = match in_training(measured, own) {
        Ok(found) => found,
        Err(error) => {
            return Ok(Some(format!(
                "whether {name} has these prompts in its training data is not known: its training data cannot be read ({error})"
            )));
        }
    };
    let InTraining { num_prompts, num_in_training } = found;
    if num_in_training == 0 {
        return Ok(None);
    }
    let share = format!("{num_in_training} of the {}", counted(num_prompts, "prompt"));
    if measured.holds_out() {
        return Err(Failure::new(
            USAGE,
            format!(
                "error: {name} has {share} in its training data that {} holds out (data.val_fraction): they do not show what it \
                 learned\n  hint: name prompts that neither has in its training data: `data.val=FILE`",
                first.display()
            ),
        ));
    }
    Ok(Some(format!(
        "{name} has {share} in its training data: its figures are not those of held-out prompts"
    )))
}

/// The differences of the mean outcomes, prompt by prompt; `None` if the two were measured on other prompts.
pub(super) fn gains(one: &EvaluationReport, other: &EvaluationReport) -> Option<PairedDifference> {
    if one.prompts == other.prompts { one.validation.gains(&other.validation) } else { None }
}

/// Two checkpoints side by side.
pub(super) fn compare(
    one: &Evaluated,
    other: &Evaluated,
    gains: Option<PairedDifference>,
    notes: &[String],
) -> String {
    let (first, second) = (&one.evaluation.validation, &other.evaluation.validation);
    let mut text = format!("\nA  {}\nB  {}\n", one.checkpoint.display(), other.checkpoint.display());
    let Some(gains) = gains else {
        text.push_str(&no_difference(one, other));
        return text;
    };
    text.push_str(&paired::table(["A", "B"], &counted(gains.summary.count, "prompt"), first, second));
    let _ = match gains.summary.standard_error() {
        Some(_) => writeln!(text, "± is one standard error; the difference is B less A, prompt by prompt"),
        None => writeln!(
            text,
            "the difference is {} on {}, so its error is not known",
            fixed(gains.summary.mean, 4),
            if gains.summary.count == 1 { "the only prompt" } else { "every prompt" }
        ),
    };
    let _ = writeln!(text, "{}", verdict(&gains));
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Why there is no paired difference.
fn no_difference(one: &Evaluated, other: &Evaluated) -> String {
    let (first, second) = (&one.evaluation.validation, &other.evaluation.validation);
    if one.evaluation.prompts == other.evaluation.prompts {
        return format!(
            "there is no paired difference: no prompt was scored for both (of {}, {} for A and {} for B)\n",
            counted(first.num_prompts, "prompt"),
            first.num_scored_prompts(),
            second.num_scored_prompts()
        );
    }
    format!(
        "there is no paired difference: the tokenizers leave out different prompts as too long ({} and {} are left); raise \
         data.max_prompt_length\n",
        first.num_prompts, second.num_prompts
    )
}

/// Which of the two is better, by the rule that the end of a run goes by.
fn verdict(gains: &PairedDifference) -> String {
    let prompts = counted(gains.summary.count, "prompt");
    match gains.change() {
        Change::Better => "B is better".to_owned(),
        Change::Worse => "B is worse".to_owned(),
        Change::None => format!("none of {prompts} changed"),
        Change::Unclear => {
            format!(
                "no clear difference: it is within the noise ({} of {prompts} changed)",
                gains.num_changed
            )
        }
    }
}
