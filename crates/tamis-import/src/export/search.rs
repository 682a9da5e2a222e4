//! Settings of another system whose import comes nearest to a configuration.

use serde_json::Value as Json;
use tamis_config::hub_name::PREFIX;
use tamis_config::load::{Layers, LoadPurpose};
use tamis_config::override_argument::{Operation, Override};
use tamis_config::render::{flow, json_of};
use tamis_config::source::{Origin, Source, SourceKind};
use tamis_config::tree::{Node, join};
use tamis_core::advantage::Advantage;
use tamis_core::objective::PolicyLoss;

use super::Lost;
use super::difference::{differences, is_in, weight};
use crate::documents::flatten;
use crate::import::tree_of;
use crate::key::{Becomes, ForeignKey, Rule};
use crate::owner::Owner;
use crate::parse_argument;
use crate::steps::fill;
use crate::supervised;
use crate::table::columns;
use crate::translate::translate_whole;
use crate::translator::Translator;
use crate::words::OTHER_NAMES;

/// Values of a row that are looked for as those of a key without a row.
const AS_OTHERS: &str = "*";
/// Mark of a row whose key is tried from the start, with the others that are.
const FIRST: &str = "first";

/// Keys with several values.
const LISTS: &[&str] = &["report_to", "trainer.logger", REJECTIONS];
const REJECTIONS: &str = "algorithm.rollout_correction.rollout_rs";
const THRESHOLDS: &str = "algorithm.rollout_correction.rollout_rs_threshold";

/// Bound on the pairs that are tried when no single key helps.
const MOST_PAIRS: usize = 2_000;

/// Keys whose value names an algorithm, and the key of ours that does. An algorithm that nobody named is no
/// way to come nearer, so ours is written only if it is the wanted one. Estimators that verl does not have
/// are `grpo` there.
const NAMES_OF_LOSSES: &[&str] = &["loss_type", "actor_rollout_ref.actor.policy_loss.loss_mode"];
const NAMES_OF_ADVANTAGES: &[&str] = &["algorithm.adv_estimator", "multi_objective_aggregation"];

type Settings = Vec<(&'static ForeignKey, String)>;

pub(super) struct Search<'a> {
    owner: Owner,
    wanted: &'a Json,
    settings: Settings,
    /// The keys in which the import of the settings differs from the target.
    lost: Vec<Lost>,
    /// The values of the configuration, for the rows of the block `= export`.
    values: Translator,
}

impl<'a> Search<'a> {
    pub(super) fn new(owner: Owner, wanted: &'a Json) -> Self {
        let origin = Origin::start_of(&Source::new(SourceKind::Argument, ""));
        let mut leaves = Vec::new();
        push_leaves("", wanted, &mut leaves);
        // The first reward of each kind, by the kind in place of its number.
        for item in at(wanted, "reward").and_then(Json::as_array).into_iter().flatten().rev() {
            let Some((kind, keys)) = item.get("kind").and_then(Json::as_str).zip(item.as_object()) else {
                continue;
            };
            leaves.retain(|(path, _)| !path.starts_with(&format!("reward[{kind}].")));
            let is_given = |value: &Json| value.as_object().is_none_or(|entries| !entries.is_empty());
            let keys = keys.iter().filter(|(_, value)| is_given(value));
            leaves.extend(keys.map(|(name, value)| (format!("reward[{kind}].{name}"), value)));
        }
        // TRL's groups have two members or more.
        let group = Json::from(at(wanted, "rollout.n").and_then(Json::as_u64).unwrap_or(1).max(2));
        leaves.push(("size_of_group".to_owned(), &group));
        let of_leaf = |(path, value): (String, &Json)| Override {
            path,
            origin: origin.clone(),
            operation: Operation::Set(Node::plain(typed(value), origin.clone())),
        };
        let overrides = leaves.into_iter().filter(|(_, value)| !value.is_null()).map(of_leaf).collect();
        let values = Translator { overrides, ..Translator::default() };
        Self { owner, wanted, settings: Vec::new(), lost: Vec::new(), values }
    }

    pub(super) fn run(&mut self) {
        // With one key of its owner an import takes the owner's defaults.
        let first = self.rows().into_iter().find(|row| {
            is_same(
                row,
                if self.owner.is_sft() { "sft.learning_rate" } else { "train.optimizer.learning_rate" },
            )
        });
        if let Some(row) = first {
            let value = self.candidates(row).into_iter().next().unwrap_or_default();
            self.settings.push((row, value));
        }
        // Without rows nothing is trained, and no such configuration is taken.
        let rows =
            self.owner.keys().iter().find(|row| self.owner == Owner::VerlSft && is_same(row, "sft.data"));
        self.settings.extend(rows.zip(at(self.wanted, "sft.data").map(typed)));
        self.lost = self.differences(&self.settings).unwrap_or_default();
        let table = self.owner.table();
        let mut together = self.settings.clone();
        for row in self
            .rows()
            .into_iter()
            .filter(|row| table.back(row.key).is_some_and(|row| row[2].ends_with(FIRST)))
        {
            together.extend(self.candidates(row).into_iter().next().map(|value| (row, value)));
        }
        let all = self.with_same_values(&together);
        for settings in [all, self.with_same_values(&self.settings.clone()), together] {
            let settings = self.without_refused(settings);
            if self.accept(settings) {
                break;
            }
        }
        self.take_what_is_idle_alone();
        while self.improve() || self.improve_by_two() {}
        self.leave_out_what_changes_nothing();
        self.prefer_own_keys();
        for (unless, key, value) in needed(self.owner) {
            let is_set = |key: &str| self.settings.iter().any(|(own, _)| own.key == key);
            let row = self.owner.keys().iter().find(|row| row.key == *key);
            if let Some(row) = row.filter(|_| !is_set(unless)) {
                self.settings.push((row, (*value).to_owned()));
            }
        }
        self.add_manager();
        self.lost = self.differences(&self.settings).unwrap_or_default();
    }

    /// verl's manager `dapo` alone reads the overlong buffer, and wants the length that it is counted from.
    fn add_manager(&mut self) {
        const SWITCH: &str = "reward.reward_kwargs.overlong_buffer_cfg.enable";
        const PENALTY: &str = "soft_overlong";
        let is_set = |settings: &Settings, key: &str| settings.iter().any(|(row, _)| row.key == key);
        if !is_set(&self.settings, SWITCH) {
            return;
        }
        let length = self.values.value_of(&format!("reward[{PENALTY}].max_length"));
        let length = length.or_else(|| self.values.value_of("rollout.max_response_length"));
        let manager = Some("dapo".to_owned());
        for (key, value) in
            [("reward.reward_manager.name", manager), ("reward.reward_kwargs.max_resp_len", length)]
        {
            let row = self.owner.keys().iter().find(|row| row.key == key && !is_set(&self.settings, key));
            self.settings.extend(row.zip(value));
        }
    }

    pub(super) fn finish(self) -> (Vec<(&'static str, String)>, Vec<Lost>) {
        let place = |key: &str| self.owner.keys().iter().position(|row| written(row) == key);
        let mut settings: Vec<(&str, String)> =
            self.settings.into_iter().map(|(row, value)| (written(row), value)).collect();
        settings.sort_by_key(|(key, _)| place(key));
        (settings, self.lost)
    }

    /// The keys that may be written.
    fn rows(&self) -> Vec<&'static ForeignKey> {
        let table = self.owner.table();
        let is_written = |row: &&ForeignKey| match table.back(row.key) {
            Some([_, values, ..]) => !values.is_empty(),
            None => !row.key.ends_with('*'),
        };
        table.rows.iter().filter(is_written).collect()
    }

    /// Takes the keys of a rule that are tried from the start if they do no harm: each may need another one
    /// that is not there yet. Those that stay idle are left out in the end.
    fn take_what_is_idle_alone(&mut self) {
        let table = self.owner.table();
        let is_first = |row: &&ForeignKey| table.back(row.key).is_some_and(|row| row[2].ends_with(FIRST));
        let rows: Vec<&ForeignKey> = self.rows().into_iter().filter(|row| is_first(row)).collect();
        let mut rules: Vec<Option<&str>> = rows.iter().map(|row| rule_of(row)).collect();
        rules.dedup();
        for rule in rules {
            let mut settings = self.settings.clone();
            for row in rows.iter().filter(|row| rule_of(row) == rule) {
                let value = self.candidates(row).into_iter().next();
                let is_set = settings.iter().any(|(other, _)| other.key == row.key);
                settings.extend(value.filter(|_| !is_set).map(|value| (*row, value)));
            }
            if let Some(lost) = self.differences(&settings).filter(|lost| weight(lost) <= weight(&self.lost))
            {
                (self.settings, self.lost) = (settings, lost);
            }
        }
    }

    /// Settings with the keys of equal values for everything that differs. Most of these keys are
    /// independent.
    fn with_same_values(&mut self, settings: &[(&'static ForeignKey, String)]) -> Settings {
        let mut settings = settings.to_vec();
        for row in self.rows() {
            let Becomes::Key(ours) = row.becomes else { continue };
            let is_taken = settings.iter().any(|(other, _)| other.key == row.key || is_same(other, ours));
            let value = self.candidates(row).into_iter().next();
            if let Some(value) = value.filter(|_| !is_taken && self.is_lost(ours)) {
                settings.push((row, value));
            }
        }
        settings
    }

    /// Settings without those for which the import refuses them together.
    fn without_refused(&self, settings: Settings) -> Settings {
        let is_taken = |settings: &Settings| self.differences(settings).is_some();
        if is_taken(&settings) {
            return settings;
        }
        let without = |index: usize| {
            let mut fewer = settings.clone();
            fewer.remove(index);
            fewer
        };
        if let Some(fewer) = (1..settings.len()).map(without).find(is_taken) {
            return fewer;
        }
        let (mut kept, mut left) = (settings[..1].to_vec(), settings[1..].to_vec());
        // One that was refused may be taken with those after it.
        for _ in 0..2 {
            left.retain(|setting| {
                kept.push(setting.clone());
                let is_refused = !is_taken(&kept);
                if is_refused {
                    kept.pop();
                }
                is_refused
            });
        }
        kept
    }

    /// Takes settings if they come nearer.
    fn accept(&mut self, settings: Settings) -> bool {
        let Some(lost) = self.differences(&settings) else { return false };
        let is_nearer = weight(&lost) < weight(&self.lost);
        if is_nearer {
            (self.settings, self.lost) = (settings, lost);
        }
        is_nearer
    }

    /// Goes through the keys once, and takes the best value of each.
    fn improve(&mut self) -> bool {
        let mut is_improved = false;
        for row in self.rows() {
            if !targets(row).iter().any(|ours| self.is_lost(ours)) {
                continue;
            }
            for value in self.candidates(row) {
                is_improved |= self.accept(self.with(&[(row, value)]));
            }
        }
        is_improved
    }

    /// Two keys of one rule that mean something only together.
    fn improve_by_two(&mut self) -> bool {
        let rows: Vec<_> = self
            .rows()
            .into_iter()
            .filter(|row| targets(row).iter().any(|ours| self.is_lost(ours)))
            .collect();
        let mut num_tried = 0;
        for (at, first) in rows.iter().enumerate() {
            for second in rows.iter().skip(at + 1).filter(|second| rule_of(second) == rule_of(first)) {
                for one in self.candidates(first) {
                    for two in self.candidates(second) {
                        num_tried += 1;
                        if num_tried > MOST_PAIRS {
                            return false;
                        }
                        if self.accept(self.with(&[(first, one.clone()), (second, two)])) {
                            return true;
                        }
                    }
                }
            }
        }
        false
    }

    /// Takes values that bring the first key of a row right, even if another one differs for it.
    fn prefer_own_keys(&mut self) {
        for row in self.rows() {
            let Some(&ours) = targets(row).first() else { continue };
            for value in self.candidates(row) {
                if !self.lost.iter().any(|lost| lost.key == ours) {
                    break;
                }
                let settings = self.with(&[(row, value)]);
                let lost = self.differences(&settings).filter(|lost| {
                    lost.len() == self.lost.len() && !lost.iter().any(|lost| lost.key == ours)
                });
                if let Some(lost) = lost {
                    (self.settings, self.lost) = (settings, lost);
                }
            }
        }
    }

    fn leave_out_what_changes_nothing(&mut self) {
        // The first is what the import takes its owner's defaults for.
        for row in self.settings.iter().skip(1).map(|(row, _)| *row).collect::<Vec<_>>() {
            let mut fewer = self.settings.clone();
            fewer.retain(|(other, _)| other.key != row.key);
            if let Some(lost) = self.differences(&fewer).filter(|lost| weight(lost) <= weight(&self.lost)) {
                (self.settings, self.lost) = (fewer, lost);
            }
        }
    }

    fn with(&self, more: &[(&'static ForeignKey, String)]) -> Settings {
        let is_replaced = |key: &str| more.iter().any(|(row, _)| row.key == key);
        let kept = self.settings.iter().filter(|(row, _)| !is_replaced(row.key));
        kept.chain(more).cloned().collect()
    }

    /// Whether one of ours differs, or something in it or around it.
    fn is_lost(&self, ours: &str) -> bool {
        self.lost.iter().any(|lost| is_in(&lost.key, ours) || is_in(ours, &lost.key))
    }

    /// Values that a key may have for the configuration, the likeliest first.
    fn candidates(&mut self, row: &ForeignKey) -> Vec<String> {
        let wanted = |key: &str| at(self.wanted, key).and_then(Json::as_str).unwrap_or_default().to_owned();
        let (loss, advantage) = (wanted("objective.loss.kind"), wanted("objective.advantage.kind"));
        let mut found = self.values_for(row);
        if let Some(known) = self.owner.table().values(row.key).filter(|_| !LISTS.contains(&row.key)) {
            found.retain(|value| known.taken.contains(&value.as_str()));
        }
        if NAMES_OF_LOSSES.contains(&row.key) {
            found.retain(|value| *value == loss || !PolicyLoss::NAMES.contains(&value.as_str()));
        }
        if NAMES_OF_ADVANTAGES.contains(&row.key) {
            let is_wanted = |value: &str| value == advantage || value == "grpo";
            found.retain(|value| is_wanted(value) || !Advantage::NAMES.contains(&value.as_str()));
        }
        found
    }

    fn values_for(&mut self, row: &ForeignKey) -> Vec<String> {
        let table = self.owner.table();
        let mut found: Vec<String> = Vec::new();
        match row.key {
            "reward_funcs" => return vec![flow(&self.of_items("reward", function))],
            "reward_weights" => {
                let weight = |item: &Json| function(item).and(item.get("weight").cloned());
                return vec![flow(&self.of_items("reward", weight))];
            }
            "report_to" | "trainer.logger" => {
                // Others would end the command.
                let kind = |item: &Json| {
                    item.get("kind").or(Some(item)).filter(|kind| self.is_taken(row.key, kind)).cloned()
                };
                return vec![flow(&self.of_items("run.loggers", kind))];
            }
            REJECTIONS => return self.of_rejections("statistic"),
            THRESHOLDS => return self.of_rejections("threshold"),
            _ => {}
        }
        if let Some([_, values, ..]) = table.back(row.key).filter(|row| row[1] != AS_OTHERS) {
            let filled = values.split('|').filter_map(|value| fill(value, row.key, "", &mut self.values));
            found.extend(filled.filter(|value| !value.is_empty()));
            return found;
        }
        let Some(rule) = rule_of(row) else {
            let value = targets(row).first().and_then(|ours| at(self.wanted, ours));
            return value.map(typed).into_iter().collect();
        };
        for ours in targets(row) {
            let mut leaves = Vec::new();
            if let Some(value) = at(self.wanted, ours) {
                found.push(typed(value));
                push_leaves("", value, &mut leaves);
            }
            for (_, leaf) in leaves {
                let text = typed(leaf);
                let parts = [':', '/', '@', '='].into_iter().filter_map(|sign| text.split_once(sign));
                let parts: Vec<String> =
                    parts.flat_map(|(before, after)| [before.to_owned(), after.to_owned()]).collect();
                found.push(text);
                found.extend(parts);
            }
        }
        push_conditions(self.owner, rule, row.key, &mut found);
        found.retain(|value| !value.is_empty());
        let mut known = Vec::new();
        found.retain(|value| {
            let is_new = !known.contains(value);
            known.push(value.clone());
            is_new
        });
        found
    }

    /// Whether the owner's key takes a value.
    fn is_taken(&self, key: &str, value: &Json) -> bool {
        let known = self.owner.table().values(key);
        value.as_str().is_some_and(|text| known.is_none_or(|known| known.taken.contains(&text)))
    }

    /// A key of the rejections that verl has, with commas between them.
    fn of_rejections(&self, key: &str) -> Vec<String> {
        let of =
            |item: &Json| item.get(key).filter(|_| self.is_taken(REJECTIONS, &item["statistic"])).map(typed);
        let items = at(self.wanted, "objective.correction.rejections").and_then(Json::as_array);
        let found: Vec<String> = items.into_iter().flatten().filter_map(of).collect();
        if found.is_empty() { Vec::new() } else { vec![found.join(",")] }
    }

    /// One value for each item of one of our lists.
    fn of_items(&self, ours: &str, value: impl Fn(&Json) -> Option<Json>) -> Json {
        let items = at(self.wanted, ours).and_then(Json::as_array);
        Json::Array(items.into_iter().flatten().filter_map(value).collect())
    }

    /// The keys in which the import of settings differs from the target; `None` if it refuses them.
    fn differences(&self, settings: &[(&'static ForeignKey, String)]) -> Option<Vec<Lost>> {
        let trainer = Some(self.owner).filter(|owner| owner.is_sft());
        let mut parsed = Vec::new();
        for (row, value) in settings {
            let argument = parse_argument(trainer, &format!("{}={value}", written(row))).ok()?;
            flatten(argument, &supervised::tables(trainer), &mut parsed);
        }
        let mut diagnostics = Vec::new();
        let empty = tree_of(None, std::iter::empty(), &mut Vec::new(), &mut diagnostics);
        let translation = translate_whole(&parsed, empty, trainer);
        diagnostics.extend(translation.diagnostics);
        // A script of TRL has the rows elsewhere.
        let rows = (trainer == Some(Owner::TrlSft)).then(|| {
            let text = format!("sft.data={}", flow(at(self.wanted, "sft.data")?));
            Override::parse(&text, tamis_config::override_argument::value_form).ok()
        });
        let overrides = translation.overrides.into_iter().chain(rows.flatten());
        let tree = tree_of(None, overrides, &mut Vec::new(), &mut diagnostics);
        if !diagnostics.is_empty() {
            return None;
        }
        let mut layers = Layers::new(OTHER_NAMES);
        layers.files.push(tree);
        let loaded = layers.assemble(LoadPurpose::Showing).ok()?;
        Some(differences(self.owner, self.wanted, &json_of(&loaded.config)))
    }
}

/// TRL's name of a reward function: one of its own, of a file of Python, of a model.
pub(super) fn function(item: &Json) -> Option<Json> {
    let is_name = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let text = |key: &str| item.get(key).and_then(Json::as_str);
    let name = match text("kind")? {
        "math_verify" => "accuracy_reward".to_owned(),
        "think_format" => "think_format_reward".to_owned(),
        "soft_overlong" => "get_soft_overlong_punishment".to_owned(),
        "cosine" => "get_cosine_scaled_reward".to_owned(),
        "repetition" => "get_repetition_penalty_reward".to_owned(),
        "model" => typed(item.get("path")?),
        "python" if text("style") == Some("trl") => {
            let (path, function) = (text("path")?.strip_suffix(".py")?, text("function")?);
            // A module of Python, from the folder of the script.
            if !path.split('/').chain([function]).all(is_name) {
                return None;
            }
            format!("{}.{function}", path.replace('/', "."))
        }
        _ => return None,
    };
    Some(name.into())
}

/// What a system's own command cannot do without unless another key is set: that one, the key and its value.
fn needed(owner: Owner) -> &'static [(&'static str, &'static str, &'static str)] {
    const SIZE: &str = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu";
    const TOKENS: &str = "actor_rollout_ref.actor.use_dynamic_bsz";
    match owner {
        Owner::Verl => &[
            ("actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.name", "vllm"),
            ("trainer.n_gpus_per_node", "trainer.n_gpus_per_node", "1"),
            (SIZE, TOKENS, "True"),
            (TOKENS, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", "True"),
            (TOKENS, "actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "True"),
        ],
        _ => &[],
    }
}

/// A key as it is written: one for everything below it is written as a mapping.
fn written(row: &ForeignKey) -> &'static str {
    row.key.trim_end_matches(".*")
}

fn rule_of(row: &ForeignKey) -> Option<&'static str> {
    match row.becomes {
        Becomes::By(rule, _) => Some(rule.name),
        _ => None,
    }
}

/// Whether a key has the same value as one of ours.
fn is_same(row: &ForeignKey, ours: &str) -> bool {
    matches!(row.becomes, Becomes::Key(own) if own == ours)
}

/// Our keys that a key sets.
fn targets(row: &ForeignKey) -> Vec<&'static str> {
    match row.becomes {
        Becomes::Key(ours) | Becomes::By(_, ours) => ours.split(' ').collect(),
        Becomes::NoEffect(_) | Becomes::Unless(..) => Vec::new(),
    }
}

/// The values that the conditions of a rule, and of those that it takes, name for a key.
fn push_conditions(owner: Owner, rule: &str, key: &str, found: &mut Vec<String>) {
    let rules = |owner: Owner| owner.table().rules.iter();
    let others = owner.base().into_iter().chain([Owner::Verl]).flat_map(|owner| owner.table().rules.iter());
    let Some(&Rule { steps, .. }) = rules(owner).chain(others).find(|own| own.name == rule) else {
        return;
    };
    for [_, _, becomes, condition, _] in steps.lines().map(columns) {
        for term in condition.split("; ") {
            let term = term.strip_prefix("not ").unwrap_or(term);
            if let Some(("on" | "off", of)) = term.split_once(' ') {
                if of == key {
                    found.extend(["True".to_owned(), "False".to_owned()]);
                }
            } else if let Some((of, values)) = term.split_once('=')
                && of == key
            {
                found.extend(values.split('|').map(str::to_owned));
            }
        }
        if let Some(other) = becomes.strip_prefix("rule ").filter(|other| *other != rule) {
            push_conditions(owner, other, key, found);
        }
    }
}

/// A value as it is typed: a text as it stands, a name on a hub without its mark.
fn typed(value: &Json) -> String {
    match value {
        Json::String(text) => text.strip_prefix(PREFIX).unwrap_or(text).to_owned(),
        other => flow(other).replace(PREFIX, ""),
    }
}

/// The value at a dotted path.
fn at<'a>(value: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

/// The values that are no mappings, with their paths; of lists their items too.
fn push_leaves<'a>(path: &str, value: &'a Json, leaves: &mut Vec<(String, &'a Json)>) {
    match value {
        Json::Object(entries) => {
            entries.iter().for_each(|(name, value)| push_leaves(&join(path, name), value, leaves));
        }
        Json::Array(items) => {
            leaves.push((path.to_owned(), value));
            for (index, value) in items.iter().enumerate() {
                push_leaves(&format!("{path}[{index}]"), value, leaves);
            }
        }
        leaf => leaves.push((path.to_owned(), leaf)),
    }
}
