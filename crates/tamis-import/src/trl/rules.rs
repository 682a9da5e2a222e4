//! TRL's data, model, validation and options of the generator.

use crate::owner::Owner;
use crate::translator::Translator;
use tamis_config::hub_name::{HubName, SplitName};
use tamis_config::render::scalar;

/// Data of a run: a data set on a hub with its configuration and splits, or a file. Supervised fine-tuning
/// has its rows under other keys.
pub(crate) fn data(owner: Owner, t: &mut Translator) {
    const NAME: &str = "dataset_name";
    const CONFIGURATION: &str = "dataset_config";
    const MIXTURE: &str = "datasets";
    const TRAIN: &str = "dataset_train_split";
    const TEST: &str = "dataset_test_split";
    const SPLIT: &str = "a file has no splits: write the rows of that one to a file of its own and name it";
    let is_sft = owner == Owner::TrlSft;
    let (train, val) = if is_sft { ("sft.data", "sft.val") } else { ("data.train", "data.val") };
    let paths: Vec<String> = match t.find(MIXTURE).map(|given| given.node.to_json()) {
        Some(serde_json::Value::Array(items)) => {
            let paths: Option<Vec<String>> = items.iter().map(path_of_mixture).collect();
            let Some(paths) = paths else {
                t.refuse(
                    MIXTURE,
                    "files have no configurations and splits, and nothing has columns and shares: give each one \
                     as `path` alone, one on a hub with its `name` and `split`",
                );
                return;
            };
            paths
        }
        _ => Vec::new(),
    };
    if !paths.is_empty() {
        let list: Vec<String> = paths.iter().map(|path| scalar(path)).collect();
        t.set(&[MIXTURE], train, &format!("[{}]", list.join(", ")));
        t.no_effect(NAME, "datasets are given, and go before it");
    }
    t.no_effect(MIXTURE, "no data is named by it");
    let name = t.text(NAME).filter(|_| paths.is_empty());
    let configuration = t.text(CONFIGURATION);
    let on_hub = name.clone().filter(|name| is_on_hub(name));
    let split = |key: &str, default: &str, t: &Translator| {
        let split = t.text(key).unwrap_or_else(|| default.to_owned());
        on_hub.as_ref().map(|name| split_name(name, configuration.as_deref(), &split))
    };
    match (&name, split(TRAIN, "train", t)) {
        (Some(_), Some(split)) => {
            t.set(&[NAME], train, &scalar(&split));
            t.part_of(TRAIN, train);
            t.part_of(CONFIGURATION, train);
        }
        (Some(name), None) => t.set(&[NAME], train, &scalar(name)),
        (None, _) => t.no_effect(NAME, "null leaves the default"),
    }
    match &configuration {
        None => t.no_effect(CONFIGURATION, "null leaves the default"),
        Some(_) if on_hub.is_some() => {}
        Some(_) => {
            t.refuse(
                CONFIGURATION,
                "a file has no configurations: give the file of that one in dataset_name",
            );
        }
    }
    match t.text(TRAIN).as_deref() {
        None | Some("train") => t.no_effect(TRAIN, "the rows of the file are those that are trained on"),
        Some(_) if on_hub.is_some() => {}
        Some(_) => t.refuse(TRAIN, format!("{SPLIT} in dataset_name")),
    }
    let is_validated = validates(t) || t.has_set("sft.test_freq");
    if is_validated && t.whole && !t.has_set(val) {
        let held_out = split(TEST, "test", t).map(|split| scalar(&split));
        let is_file = held_out.is_none();
        let held_out = held_out.unwrap_or_else(|| {
            let split = t.text(TEST).unwrap_or_else(|| "test".to_owned());
            let is_file =
                [".jsonl", ".ndjson", ".json", ".parquet"].iter().any(|ending| split.ends_with(ending));
            format!("PATH/TO/{split}{}", if is_file { "" } else { ".jsonl" })
        });
        if t.find(TEST).is_some() {
            t.set(&[TEST], val, &held_out);
            if is_file {
                t.remark(TEST, "TRL validates on that split of the data set: write its rows to a file");
            }
        } else {
            t.owner_default(owner, TEST, val, &held_out);
        }
    }
    let reason = format!("`{val}` is what is validated on");
    t.no_effect(TEST, if is_sft && !is_validated { "there is no validation" } else { &reason });
}

/// The path of an entry of TRL's `datasets`; `None` if it needs more than a file or a split.
fn path_of_mixture(item: &serde_json::Value) -> Option<String> {
    let text = |key: &str| item.get(key).and_then(serde_json::Value::as_str);
    let path = text("path")?;
    let on_hub = is_on_hub(path);
    let is_known = |(key, value): (&String, &serde_json::Value)| match key.as_str() {
        "path" => true,
        "name" => on_hub || value.is_null(),
        "split" => on_hub || value.is_null() || value == "train",
        _ => value.is_null(),
    };
    item.as_object()?.iter().all(is_known).then(|| {
        if on_hub {
            split_name(path, text("name"), text("split").unwrap_or("train"))
        } else {
            path.to_owned()
        }
    })
}

/// Whether a name is on a hub: there is no file at that path.
fn is_on_hub(name: &str) -> bool {
    SplitName::parse(name).is_some() && !std::path::Path::new(name).exists()
}

fn split_name(name: &str, configuration: Option<&str>, split: &str) -> String {
    configuration
        .map_or_else(|| format!("{name}:{split}"), |configuration| format!("{name}:{configuration}/{split}"))
}

/// The model, and its revision if the model is on a hub.
pub(crate) fn model(t: &mut Translator) {
    const NAME: &str = "model_name_or_path";
    const REVISION: &str = "model_revision";
    let revision = t.text(REVISION).filter(|revision| revision != "main");
    match (t.text(NAME), &revision) {
        (Some(name), Some(revision))
            if HubName::parse(&name).is_some() && !std::path::Path::new(&name).exists() =>
        {
            t.set(&[NAME], "model.path", &scalar(&format!("{name}@{revision}")));
            t.part_of(REVISION, "model.path");
        }
        (Some(name), _) => t.set(&[NAME], "model.path", &scalar(&name)),
        (None, _) => t.no_effect(NAME, "null leaves the default"),
    }
    match revision {
        None => t.no_effect(REVISION, "it is the main branch that is taken"),
        Some(_) if t.is_noted(REVISION) => {}
        Some(_) => t.refuse(REVISION, "a folder has no revisions: name the folder of that one"),
    }
}

/// Whether there is validation.
pub(crate) fn validates(t: &Translator) -> bool {
    t.value_of("validate.test_freq").is_some_and(|every| every != "0")
}

/// Options of the generator. They come before fields that set the same.
pub(crate) fn generation(t: &mut Translator) {
    const KEY: &str = "generation_kwargs";
    let Some(given) = t.find(KEY) else { return };
    let options = match given.node.to_json() {
        serde_json::Value::Object(options) => options,
        serde_json::Value::Null => serde_json::Map::new(),
        _ => {
            t.bad_value(KEY, "a mapping");
            return;
        }
    };
    for (name, value) in &options {
        let ours = match name.as_str() {
            "temperature" | "top_p" | "top_k" | "min_p" | "repetition_penalty" | "stop" => name.as_str(),
            "stop_strings" => "stop",
            "max_new_tokens" | "max_tokens" => "max_response_length",
            "do_sample" if value == true => continue,
            // Options that vLLM accepts in addition.
            _ if t.flag("use_vllm", false) && !name.contains('.') => {
                t.set(&[KEY], &format!("rollout.server_parameters.{name}"), &value.to_string());
                continue;
            }
            _ => {
                t.refuse(
                    KEY,
                    format!(
                        "`{name}` has nothing in the native engine, which has temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens \
                         and stop_strings; with use_vllm it goes to the server"
                    ),
                );
                return;
            }
        };
        let text = match value {
            serde_json::Value::String(text) if ours == "stop" => format!("[{}]", scalar(text)),
            other => other.to_string(),
        };
        t.set(&[KEY], &format!("rollout.{ours}"), &text);
        let field = match ours {
            "max_response_length" => "max_completion_length",
            "stop" => "stop_strings",
            same => same,
        };
        t.no_effect(field, "generation_kwargs goes before it");
    }
    t.no_effect(KEY, "it is empty");
}

/// Refuses an unknown option of the schedule. If all are known, sets `$known`.
pub(crate) fn known_options(key: &str, known: &str, t: &mut Translator) {
    let options = t.find(key).map(|given| given.node.to_json());
    let names =
        options.as_ref().and_then(serde_json::Value::as_object).into_iter().flat_map(|map| map.keys());
    match names.into_iter().find(|name| !known.split('|').any(|known| known == name.as_str())) {
        Some(name) => {
            let kind = t.text("$kind").unwrap_or_default();
            t.refuse(key, format!("the schedule `{kind}` has no option `{name}`"));
        }
        None => _ = t.variables.insert("$known", "yes".to_owned()),
    }
}
