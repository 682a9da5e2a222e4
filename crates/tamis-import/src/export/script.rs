//! Writes exported settings as a script of another system: a `GRPOConfig` or `SFTConfig` of TRL in Python, or
//! a command of verl in bash. Settings without a counterpart are listed in its heading.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value as Json;
use tamis_config::hub_name::{PREFIX, SplitName};
use tamis_config::render::flow;
use tamis_config::shell_word;

use super::difference::{ARGUMENTS_OF_TRL, is_in};
use super::search::function;
use super::{Export, Lost, value_of};
use crate::owner::Owner;

/// Settings that a script of TRL has elsewhere than in its `GRPOConfig`.
const OUTSIDE: [&str; 16] = [
    "model_name_or_path",
    "model_revision",
    "attn_implementation",
    "dataset_name",
    "dataset_config",
    "dataset_train_split",
    "num_processes",
    "dataset_test_split",
    "reward_funcs",
    "reward_weights",
    "use_peft",
    "lora_r",
    "lora_alpha",
    "lora_target_modules",
    "lora_dropout",
    "load_in_4bit",
];

/// Keys whose value a script of TRL has as it is, whatever a command can say.
const IN_SCRIPT: [&str; 4] = ["data.train", "data.val", "sft.data", "sft.val"];
/// What the sizes of a device's pass are in TRL changes no result.
const PASS: [&str; 2] = ["train.micro_batch_size", "train.micro_batch_tokens"];

/// Prefixes of keys that choose where a run computes.
const MACHINES: [&str; 6] =
    ["cluster.", "learner.", "publish.", "rollout.backend", "rollout.launch", "rollout.sleep_level"];

/// verl's keys of a reward function.
const FUNCTION_PATH: &str = "reward.custom_reward_function.path";
const FUNCTION_NAME: &str = "reward.custom_reward_function.name";

/// A file that calls a reward function as verl does not, and where it is written.
struct Adapter {
    path: String,
    text: String,
}

const ADAPTER: &str = include_str!("adapter.py");

impl Lost {
    /// The key with both values, on one line.
    fn line(&self, owner: Owner) -> String {
        let shown = |value: &Option<Json>| value.as_ref().map_or_else(|| "none".to_owned(), flow);
        let theirs = match self.key.as_str() {
            "rollout.n" if owner == Owner::Trl => {
                format!("{}, whose groups have two members or more", shown(&self.theirs))
            }
            "data.max_prompt_length" if owner == Owner::Trl => "no limit".to_owned(),
            key if owner == Owner::Verl
                && key.starts_with("reward[")
                && key.rsplit('.').next() == Some("style") =>
            {
                let fix = match self.ours.as_ref().and_then(Json::as_str) {
                    Some("simple") => "the script writes a file that calls yours",
                    _ => "write the function with these parameters if it has others",
                };
                format!(
                    "{}, called with data_source, solution_str, ground_truth and extra_info: {fix}",
                    shown(&self.theirs)
                )
            }
            _ => shown(&self.theirs),
        };
        format!("{}: {} (in {owner}: {theirs})", self.key, shown(&self.ours))
    }
}

impl Export {
    /// What the script does not have of the configuration, a line each.
    pub fn lost_lines(&self) -> Vec<String> {
        let is_in_script = |lost: &&Lost| {
            let is_there = |key: &&str| {
                if self.owner.is_sft() { is_in(&lost.key, key) } else { lost.key.starts_with(*key) }
            };
            self.is_of_trl() && IN_SCRIPT.iter().chain(&PASS).any(is_there)
        };
        let mut lines: Vec<String> = self
            .lost
            .iter()
            .filter(|lost| !is_in_script(lost) && !self.is_of_machines(lost))
            .map(|lost| lost.line(self.owner))
            .collect();
        if let Some(line) = self.machines_line() {
            lines.push(line);
        }
        let is_parquet = |file: &String| file.ends_with(".parquet");
        if self.owner == Owner::VerlSft {
            lines
                .push("sft.data, sft.val: verl reads Parquet files with conversations (messages)".to_owned());
        }
        if self.owner == Owner::Verl && !self.files("train").iter().chain(&self.files("val")).all(is_parquet)
        {
            lines.push("data.train, data.val: verl reads Parquet files with its own columns (prompt, data_source, reward_model)".to_owned());
        }
        if self.owner == Owner::Trl && lines.iter().any(|line| line.starts_with("filter")) {
            lines.push(
                "the filter: `tamis.trl.attach(trainer, filter=...)` before `trainer.train()` applies it in TRL".to_owned(),
            );
        }
        lines
    }

    fn is_of_trl(&self) -> bool {
        matches!(self.owner, Owner::Trl | Owner::TrlSft)
    }

    /// Whether a value chooses where a run computes, which verl decides by itself.
    fn is_of_machines(&self, lost: &Lost) -> bool {
        !self.is_of_trl() && MACHINES.iter().chain(&PASS).any(|key| lost.key.starts_with(key))
    }

    fn machines_line(&self) -> Option<String> {
        let keys: Vec<&str> =
            self.lost.iter().filter(|lost| self.is_of_machines(lost)).map(|lost| lost.key.as_str()).collect();
        (!keys.is_empty()).then(|| {
            format!(
                "where it computes ({}): verl learns on GPUs and samples with an engine there",
                keys.join(", ")
            )
        })
    }

    /// The script, which names what is lost at its top: a script of Python for TRL, of the shell for verl.
    pub fn script(&self) -> String {
        match self.owner {
            Owner::Trl | Owner::TrlSft => self.python(),
            _ => self.shell(),
        }
    }

    fn heading(&self, version: &str) -> String {
        let mut text = format!("# For {version}, written {}.\n", crate::documents::WRITTEN_BY);
        let lost = self.lost_lines();
        if !lost.is_empty() {
            let _ = writeln!(text, "# No counterpart in {}:", self.owner);
        }
        for line in lost {
            let _ = writeln!(text, "#   {}", line.replace('\n', " "));
        }
        text
    }

    fn shell(&self) -> String {
        let mut text = format!("#!/usr/bin/env bash\n{}set -euo pipefail\n\n", self.heading("verl 0.9.1"));
        let adapter = self.adapter();
        if let Some(Adapter { path, text: file }) = &adapter {
            let _ = write!(text, "cat > {} <<'PYTHON'\n{file}PYTHON\n\n", shell_word(path));
        }
        text.push_str(match self.owner {
            Owner::VerlSft => {
                "torchrun --standalone --nproc_per_node=\"${GPUS:-1}\" -m verl.trainer.sft_trainer"
            }
            _ => "python3 -m verl.trainer.main_ppo",
        });
        for (key, value) in &self.settings {
            let table = self.owner.table();
            let row = table.back(key).or_else(|| table.back(&format!("{key}.*")));
            let plus = row.map_or("", |row| if row[2].starts_with('+') { "+" } else { "" });
            let value = match (&adapter, *key) {
                (Some(adapter), FUNCTION_PATH) => hydra(&adapter.path.as_str().into()),
                (Some(_), FUNCTION_NAME) => continue,
                _ => hydra(&value_of(key, value)),
            };
            let _ = write!(text, " \\\n    {}", shell_word(&format!("{plus}{key}={value}")));
        }
        if let Some((key, kinds)) = self.loggers() {
            let _ = write!(text, " \\\n    {}", shell_word(&format!("{key}={}", hydra(&kinds))));
        }
        text.push_str(" \\\n    \"$@\"\n");
        text
    }

    /// A file for verl that calls the reward of the command as tamis does; `None` unless that is of the style
    /// `simple`.
    fn adapter(&self) -> Option<Adapter> {
        let path = self.setting(FUNCTION_PATH)?;
        let rewards = self.wanted.get("reward")?.as_array()?;
        let is = |item: &Json, key: &str, value: &str| item.get(key).and_then(Json::as_str) == Some(value);
        let reward = rewards.iter().find(|item| is(item, "kind", "python") && is(item, "path", path))?;
        let name = reward.get("function").filter(|_| is(reward, "style", "simple"))?;
        let own = Path::new(path).file_name()?.to_string_lossy().into_owned();
        let text = ADAPTER.replace("OWN_FILE", &python(&own.into())).replace("OWN_FUNCTION", &python(name));
        Some(Adapter { path: format!("{}_verl.py", path.strip_suffix(".py").unwrap_or(path)), text })
    }

    /// The files or names of a data set, without the mark of names.
    fn files(&self, set: &str) -> Vec<String> {
        let text = |item: &Json| item.as_str().map(str::to_owned);
        let place = match (self.owner.is_sft(), set) {
            (true, "train") => "/sft/data".to_owned(),
            (true, _) => "/sft/val".to_owned(),
            (false, _) => format!("/data/{set}"),
        };
        match self.wanted.pointer(&place) {
            Some(Json::Array(items)) => items.iter().filter_map(text).collect(),
            Some(item) => text(item).into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn python(&self) -> String {
        let mut imports = vec!["from datasets import concatenate_datasets, load_dataset".to_owned()];
        let mut own = String::new();
        let is_sft = self.owner.is_sft();
        let functions = if is_sft { Vec::new() } else { self.functions(&mut imports, &mut own) };
        let (kind, file) = if is_sft { ("SFT", "train_sft.py") } else { ("GRPO", "train_grpo.py") };
        imports.push(format!("from trl import {kind}Config, {kind}Trainer"));
        let adapter = self.setting("use_peft").map(|_| {
            imports.push("from peft import LoraConfig".to_owned());
            let of = |key: &str, default: &str| python(&value_of(key, self.setting(key).unwrap_or(default)));
            format!(
                "LoraConfig(r={}, lora_alpha={}, lora_dropout=0.0, target_modules={}, task_type=\"CAUSAL_LM\")",
                of("lora_r", "16"),
                of("lora_alpha", "32"),
                of("lora_target_modules", "[q_proj, v_proj]")
            )
        });
        if self.setting("load_in_4bit").is_some() {
            imports.push("from transformers import BitsAndBytesConfig".to_owned());
        }
        imports.sort();
        let start = match self.setting("num_processes") {
            Some(number) => format!("accelerate launch --num_processes {number} {file}"),
            None => format!("python {file}"),
        };
        let mut text =
            format!("{}# Start: {start}\n\n{}\n{own}\n", self.heading("TRL 1.16"), imports.join("\n"));
        text.push_str("\ndef load(*sets):\n");
        text.push_str("    parts = [load_dataset(path, **options) for path, options in sets]\n");
        text.push_str("    return concatenate_datasets(parts)\n\n\n");
        let _ = writeln!(text, "args = {kind}Config(");
        for (key, value) in self.settings.iter().filter(|(key, _)| !OUTSIDE.contains(key)) {
            let _ = writeln!(text, "    {key}={},", python(&value_of(key, value)));
        }
        if let Some((key, kinds)) = self.loggers() {
            let _ = writeln!(text, "    {key}={},", python(&kinds));
        }
        if let Some(weights) = self.weights().filter(|_| !is_sft) {
            let _ = writeln!(text, "    reward_weights={},", python(&weights));
        }
        if let Some(size) = self.evaluation_batch().filter(|_| !is_sft) {
            let _ = writeln!(text, "    per_device_eval_batch_size={size},  # whole groups");
        }
        let mut options: Vec<String> =
            [("revision", "model_revision"), ("attn_implementation", "attn_implementation")]
                .iter()
                .filter_map(|(name, key)| {
                    Some(format!("\"{name}\": {}", python(&value_of(key, self.setting(key)?))))
                })
                .collect();
        if self.setting("load_in_4bit").is_some() {
            let config = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=True)";
            options.push(format!("\"quantization_config\": {config}"));
        }
        if !options.is_empty() {
            let _ = writeln!(text, "    model_init_kwargs={{{}}},", options.join(", "));
        }
        let model = self.setting("model_name_or_path").unwrap_or("PATH/TO/MODEL");
        let _ = writeln!(text, ")\ntrainer = {kind}Trainer(\n    model={},", python(&Json::from(model)));
        text.push_str("    args=args,\n");
        if !is_sft {
            let _ = writeln!(text, "    reward_funcs=[{}],", functions.join(", "));
        }
        let _ = writeln!(text, "    train_dataset={},", loaded(&self.files("train")));
        if self.setting("eval_strategy").is_some() {
            let _ = writeln!(text, "    eval_dataset={},", loaded(&self.files("val")));
        }
        if let Some(adapter) = adapter {
            let _ = writeln!(text, "    peft_config={adapter},");
        }
        text.push_str(")\ntrainer.train()\n");
        text
    }

    /// The reward functions as a script names them, in the order of the configuration, with what it imports
    /// and defines for them. One that TRL does not have raises until it is written.
    fn functions(&self, imports: &mut Vec<String>, own: &mut String) -> Vec<String> {
        let nothing = Json::Array(vec![serde_json::json!({"name": "reward"})]);
        let rewards =
            self.wanted.get("reward").filter(|items| items.as_array().is_some_and(|items| !items.is_empty()));
        let is_named = self.setting("reward_funcs").is_some();
        let mut taken: Vec<String> = Vec::new();
        let mut functions = Vec::new();
        for item in rewards.unwrap_or(&nothing).as_array().into_iter().flatten() {
            let name = function(item).filter(|_| is_named);
            let name = name.as_ref().and_then(Json::as_str);
            functions.push(match name {
                Some(name) if name.contains('/') => python(&Json::from(name)),
                Some(name) => {
                    let (module, function) = name.rsplit_once('.').unwrap_or(("trl.rewards", name));
                    let alias = free_name(function, &mut taken);
                    let renamed = if alias == function { String::new() } else { format!(" as {alias}") };
                    imports.push(format!("from {module} import {function}{renamed}"));
                    format!("{alias}{}", self.arguments_of(item))
                }
                None => {
                    let label = item.get("name").and_then(Json::as_str).unwrap_or("reward");
                    let name = free_name(label, &mut taken);
                    let _ = write!(
                        own,
                        "\n\ndef {name}(completions, **columns):\n    raise NotImplementedError({})\n",
                        python(&format!("write the reward `{label}` of the configuration here").into())
                    );
                    name
                }
            });
        }
        imports.sort();
        imports.dedup();
        functions
    }

    /// The call that makes a reward function of TRL with the sizes of the configuration; empty if it is one
    /// already.
    fn arguments_of(&self, item: &Json) -> String {
        let kind = item.get("kind").and_then(Json::as_str).unwrap_or_default();
        let Some((_, arguments)) = ARGUMENTS_OF_TRL.iter().find(|(own, _)| *own == kind) else {
            return String::new();
        };
        let limit = self.wanted.pointer("/rollout/max_response_length").and_then(Json::as_u64).unwrap_or(512);
        let length = item.get("max_length").and_then(Json::as_u64).unwrap_or(limit);
        let argument = |(theirs, ours): &(&str, &str)| {
            let value = match item.get(*ours).filter(|value| !value.is_null()) {
                Some(value) => value.clone(),
                None if *ours == "max_length" => length.into(),
                None if *ours == "buffer" => (length / 5).max(1).into(),
                None => return None,
            };
            Some(format!("{theirs}={}", python(&value)))
        };
        format!("({})", arguments.iter().filter_map(argument).collect::<Vec<_>>().join(", "))
    }

    /// The loggers of the configuration, if the settings leave them to the owner's default. An import takes
    /// tamis's default for that.
    fn loggers(&self) -> Option<(&'static str, Json)> {
        let (key, least) = match self.owner {
            Owner::Trl | Owner::TrlSft => ("report_to", None),
            _ => ("trainer.logger", Some("console")),
        };
        let known = self.owner.table().values(key).filter(|_| self.setting(key).is_none())?;
        let items = self.wanted.pointer("/run/loggers")?.as_array()?;
        let kind = |item: &Json| item.get("kind").unwrap_or(item).as_str().map(str::to_owned);
        let mut kinds: Vec<String> =
            items.iter().filter_map(kind).filter(|kind| known.taken.contains(&kind.as_str())).collect();
        if kinds.is_empty() {
            kinds.extend(least.map(str::to_owned));
        }
        (!kinds.is_empty()).then(|| (key, Json::from(kinds)))
    }

    /// The weights of all rewards; `None` if each is 1.
    fn weights(&self) -> Option<Json> {
        let items = self.wanted.get("reward")?.as_array()?;
        let weights: Vec<Json> = items.iter().filter_map(|item| item.get("weight").cloned()).collect();
        weights.iter().any(|weight| weight.as_f64() != Some(1.0)).then(|| Json::Array(weights))
    }

    /// The size of an evaluation batch that holds whole groups, if TRL's default does not.
    fn evaluation_batch(&self) -> Option<u64> {
        let number = |key: &str| self.setting(key).and_then(|text| text.parse::<u64>().ok());
        self.setting("eval_strategy")?;
        let group = number("num_generations_eval").or_else(|| number("num_generations")).unwrap_or(8);
        let in_one = 8 * number("num_processes").unwrap_or(1);
        (group > 0 && in_one % group != 0).then_some(group)
    }
}

/// A name of Python that is not taken yet, like this one.
fn free_name(label: &str, taken: &mut Vec<String>) -> String {
    let letters = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let mut name: String = label.chars().map(letters).collect();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    if taken.contains(&name) {
        let numbered =
            (2..taken.len() + 3).map(|number| format!("{name}_{number}")).find(|name| !taken.contains(name));
        name = numbered.unwrap_or(name);
    }
    taken.push(name.clone());
    name
}

/// A call that loads files and data sets of a hub.
fn loaded(files: &[String]) -> String {
    let one = |file: &String| {
        let is_marked = file.starts_with(PREFIX);
        let name = SplitName::parse(file).filter(|_| is_marked);
        if let Some((name, split)) = name.as_ref().and_then(|_| file[PREFIX.len()..].split_once(':')) {
            let (configuration, split) =
                split.split_once('/').map_or((None, split), |(own, split)| (Some(own), split));
            let configuration = configuration.map(|own| format!("\"name\": {}, ", python(&own.into())));
            let configuration = configuration.unwrap_or_default();
            return format!(
                "({}, {{{configuration}\"split\": {}}})",
                python(&name.into()),
                python(&split.into())
            );
        }
        let kind = if file.ends_with(".parquet") { "parquet" } else { "json" };
        format!(
            "(\"{kind}\", {{\"data_files\": {}, \"split\": \"train\"}})",
            python(&Json::from(file.as_str()))
        )
    };
    format!("load({})", files.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// A value of Python.
fn python(value: &Json) -> String {
    match value {
        Json::Null => "None".to_owned(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        Json::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Json::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", python(&key.as_str().into()), python(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Json::Number(_) => flow(value),
        Json::String(text) => Json::from(text.as_str()).to_string(),
    }
}

/// A value of Hydra's overrides.
fn hydra(value: &Json) -> String {
    match value {
        Json::Bool(value) => if *value { "True" } else { "False" }.to_owned(),
        Json::Array(items) => format!("[{}]", items.iter().map(hydra).collect::<Vec<_>>().join(",")),
        Json::Object(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{key}:{}", hydra(value))).collect();
            format!("{{{}}}", entries.join(","))
        }
        Json::String(text) => crate::hydra::text(text),
        other => flow(other),
    }
}
