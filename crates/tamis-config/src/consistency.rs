//! The rules between settings: what cannot work is an error, what will surprise is a warning.

mod critic;
mod filter;
mod readers;

use std::path::Path;

use crate::conflict::Conflict;
use crate::diagnostic::{Diagnostic, Severity};
use crate::reader::Reader;
use crate::schema::{
    AdvantageScale, Aggregation, BackendKind, Config, Estimator, ImportanceLevel, KlPlace, LossKind,
    LrScheduleKind, OnLimit, PromptFormat, RAW_OUTCOME, RewardKind, ScheduleMode, Surplus, TaskKind,
    ValidationMetric,
};
use crate::server_command::ServerCommand;
use crate::source::{Source, SourceKind};
use crate::table;
use crate::tree::Node;
use crate::value::{EmptyRound, Frequency, RoundLimit};
use crate::yaml;
use readers::{ADVANTAGE_READERS, LEVELLED, LOSS_READERS};

impl Config {
    /// Prompts of one generation round; without a filter the round is the batch, whatever `data.gen_batch_size` says.
    pub fn gen_batch_size(&self) -> usize {
        let own = self.data.gen_batch_size.filter(|_| self.filter.is_some());
        own.unwrap_or(self.data.train_batch_size)
    }

    /// Prompts of one optimizer update.
    pub fn mini_batch_size(&self) -> usize {
        self.train.ppo_mini_batch_size.unwrap_or(self.data.train_batch_size)
    }

    /// Whether there are validation prompts.
    pub fn has_validation_data(&self) -> bool {
        !self.data.val.is_empty()
            || (self.data.task == Some(TaskKind::Arithmetic) && self.data.arithmetic.val_size > 0)
    }

    /// Divisor of the aggregation `seq-mean-token-sum-norm`.
    pub fn loss_scale_factor(&self) -> f64 {
        self.objective.loss_scale_factor.unwrap_or(self.rollout.max_response_length as f64)
    }

    /// Whether advantages of `grpo` are divided by a deviation.
    pub fn divides_by_std(&self) -> bool {
        self.objective.advantage.norm_by_std && self.objective.advantage.scale != AdvantageScale::None
    }

    /// Whether a step may take more than one generation round.
    pub fn refills(&self) -> bool {
        self.schedule.mode == ScheduleMode::Streaming || (self.filter.is_some() && self.schedule.refill)
    }

    /// The metrics that a filter can look at, as far as they are known before anything is scored: what external rewards give beside their
    /// score is not.
    pub fn known_metrics(&self) -> Vec<String> {
        let mut metrics: Vec<String> = Vec::new();
        if self.reward.iter().any(|reward| reward.kind.is_verifier()) {
            metrics.push(RAW_OUTCOME.to_owned());
        }
        metrics.extend(COMPUTED.map(str::to_owned));
        let names = self.reward.iter().map(|reward| reward.name.as_str());
        metrics.extend(names.filter(|name| !COMPUTED.contains(name)).map(str::to_owned));
        metrics
    }
}

/// Numbers that every run has.
const COMPUTED: [&str; 6] =
    ["score", "seq_reward", "seq_final_reward", "token_level_rewards", "length", "entropy"];

/// Names that no score can have, beside that of the raw outcome.
const RESERVED: [&str; 5] = ["score", "reward", "seq_reward", "seq_final_reward", "token_level_rewards"];

/// What a configuration is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A whole run.
    Training,
    /// Measuring a policy on held-out prompts: nothing that only training reads is looked at.
    Evaluation,
}

/// Checks a configuration; values that are wrong in themselves, and so are not the user's, are left alone.
pub(crate) fn check(config: &Config, tree: &Node, reader: &Reader, purpose: Purpose) -> Vec<Diagnostic> {
    let mut checker = Checker { config, tree, reader, found: Vec::new() };
    checker.model();
    if purpose == Purpose::Training {
        checker.training_prompts();
    }
    checker.prompts();
    checker.rewards();
    if purpose == Purpose::Evaluation {
        checker.evaluation();
        checker.has_servers();
        return checker.found;
    }
    checker.servers();
    checker.filter();
    checker.schedule();
    checker.objective();
    checker.train();
    checker.critic();
    checker.lost_signal();
    checker.early_stop();
    checker.validation();
    checker.found
}

struct Checker<'c> {
    config: &'c Config,
    tree: &'c Node,
    reader: &'c Reader,
    found: Vec<Diagnostic>,
}

impl Checker<'_> {
    /// Reports a conflict between keys, shown at the first of them that the user wrote.
    fn report(&mut self, severity: Severity, keys: &[&str], conflict: Conflict) {
        if keys.iter().any(|key| self.reader.is_unsound(key)) {
            return;
        }
        let origin = keys
            .iter()
            .filter_map(|key| self.tree.place_of(&key.replace('[', ".").replace(']', "")))
            .find(|origin| origin.is_from_user())
            .cloned();
        self.found.push(Diagnostic { severity, problem: Box::new(conflict.into()), origin });
    }

    fn error(&mut self, keys: &[&str], conflict: Conflict) {
        self.report(Severity::Error, keys, conflict);
    }

    fn warn(&mut self, keys: &[&str], conflict: Conflict) {
        self.report(Severity::Warning, keys, conflict);
    }

    /// Warns of each of the keys that a user set although nothing looks at it. A default that is written out (as in a run's own
    /// `config.yaml`) asks for nothing.
    fn ignored(&mut self, keys: &[&str], reason: &'static str) {
        for key in keys {
            if self.is_asked_for(key) {
                self.warn(&[key], Conflict::Ignored { key: (*key).to_owned(), reason });
            }
        }
    }

    /// Warns of each key of a section that a user set and that the choice made there does not read.
    fn unread<C: Copy + PartialEq + std::fmt::Display>(
        &mut self,
        section: &str,
        what: &'static str,
        chosen: C,
        readers: &[(&str, &[C])],
    ) {
        for (key, readers) in readers {
            let key = format!("{section}.{key}");
            if !readers.contains(&chosen) && self.is_asked_for(&key) {
                let conflict = Conflict::NotRead { key: key.clone(), what, chosen: chosen.to_string() };
                self.warn(&[&key], conflict);
            }
        }
    }

    /// Whether a user set a key to something else than its default.
    fn is_asked_for(&self, key: &str) -> bool {
        let spec = table::keys().iter().find(|entry| entry.path == key).map(|entry| &entry.spec);
        let is_default = |node: &Node| {
            spec.and_then(|spec| yaml::parse(&Source::new(SourceKind::Default, spec.default)).ok())
                .is_some_and(|default| default.to_json() == node.to_json())
        };
        self.tree
            .at(key)
            .is_some_and(|node| node.origin.is_from_user() && !node.is_null() && !is_default(node))
    }

    fn model(&mut self) {
        let model = &self.config.model;
        match (&model.path, &model.init) {
            (None, None) => self.error(&["model.path", "model.init", "model"], Conflict::NoModel),
            (Some(_), Some(_)) => self.error(&["model.init", "model.path"], Conflict::TwoModels),
            _ => {}
        }
        if model.value_head {
            self.error(&["model.value_head"], Conflict::NoValueHead);
        }
        let Some(init) = &model.init else { return };
        let (num_heads, hidden_size) = (init.num_heads, init.hidden_size);
        let num_kv_heads = init.num_kv_heads.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            let keys = ["model.init.num_kv_heads", "model.init.num_heads"];
            self.error(&keys, Conflict::HeadsDoNotDivide { num_heads, num_kv_heads });
        }
        let keys = ["model.init.head_dim", "model.init.num_heads", "model.init.hidden_size"];
        let head_dim = init.head_dim.unwrap_or(hidden_size / num_heads);
        if init.head_dim.is_none() && !hidden_size.is_multiple_of(num_heads) {
            self.error(&keys, Conflict::WidthDoesNotDivide { hidden_size, num_heads });
        } else if !head_dim.is_multiple_of(2) {
            self.error(&keys, Conflict::OddHead { head_dim });
        }
        let (prompt, response) =
            (self.config.data.max_prompt_length, self.config.rollout.max_response_length);
        let positions = init.max_position_embeddings;
        if prompt.saturating_add(response) > positions {
            let keys = [
                "model.init.max_position_embeddings",
                "rollout.max_response_length",
                "data.max_prompt_length",
            ];
            self.error(&keys, Conflict::SequenceTooLong { prompt, response, positions });
        }
    }

    fn training_prompts(&mut self) {
        let data = &self.config.data;
        if data.train.is_empty() && data.task != Some(TaskKind::Arithmetic) {
            self.error(&["data.train", "data.task"], Conflict::NoTrainingData);
        }
        if self.config.warm_start.steps == 0 {
            let keys = [
                "warm_start.batch_size",
                "warm_start.learning_rate",
                "warm_start.warmup_steps",
                "warm_start.examples",
                "warm_start.target_accuracy",
                "warm_start.test_freq",
            ];
            self.ignored(&keys, "`warm_start.steps` is 0");
        } else if self.config.warm_start.target_accuracy.is_some() && !self.config.has_validation_data() {
            self.error(&["warm_start.target_accuracy"], Conflict::TargetWithoutValidation);
        }
    }

    fn prompts(&mut self) {
        let data = &self.config.data;
        if data.task != Some(TaskKind::Arithmetic) {
            let keys = ["data.arithmetic.levels", "data.arithmetic.train_size", "data.arithmetic.val_size"];
            self.ignored(&keys, "`data.task` is not `arithmetic`");
        }
        match data.task {
            Some(TaskKind::Arithmetic) => {
                self.ignored(&["data.train", "data.val"], "the task `arithmetic` makes its own prompts");
            }
            Some(TaskKind::Gsm8kCalculator) | None => {}
        }
        if data.task.is_some() {
            let keys = [
                "data.columns.prompt",
                "data.columns.ground_truth",
                "data.columns.data_source",
                "data.columns.ability",
                "data.columns.extra_info",
            ];
            self.ignored(&keys, "the task knows its own columns");
        }
        if data.prompt_format == PromptFormat::Text {
            let keys = ["model.chat_template", "data.chat_template_kwargs"];
            self.ignored(&keys, "`data.prompt_format` is `text`");
            if data.system_prompt.is_some() {
                self.error(&["data.system_prompt", "data.prompt_format"], Conflict::SystemPromptWithoutChat);
            }
        }
    }

    fn rewards(&mut self) {
        let config = self.config;
        let from_preset = |index: usize| {
            let node = self.tree.at(&format!("reward.{index}"));
            node.is_some_and(|node| matches!(node.origin.source.kind, SourceKind::Preset(_)))
        };
        if (0..config.reward.len()).all(from_preset) {
            self.error(&["reward"], Conflict::NoReward);
        } else if config.reward.iter().all(|reward| reward.weight == 0.0) {
            self.error(&["reward"], Conflict::NoRewardWeight);
        }
        for (index, reward) in config.reward.iter().enumerate() {
            let key = |name: &str| format!("reward[{index}].{name}");
            if RESERVED.contains(&reward.name.as_str()) {
                let problem = Conflict::ReservedRewardName { name: reward.name.clone() };
                self.error(&[&key("name")], problem);
            }
            let given = self.tree.at(&format!("reward.{index}.name")).map(crate::tree::Node::to_json);
            if given.is_some_and(|name| name == RAW_OUTCOME) {
                let reason =
                    "`acc` is the raw outcome of the first verifier anyway; this score is called by its kind";
                self.warn(&[&key("name")], Conflict::Ignored { key: key("name"), reason });
            }
            if config.reward.iter().take(index).any(|other| other.name == reward.name) {
                let at = format!("reward[{index}]");
                self.error(&[&key("name"), &at], Conflict::DuplicateRewardName { name: reward.name.clone() });
            }
            match &reward.kind {
                RewardKind::Repetition { max_penalty, .. } if *max_penalty > 0.0 => {
                    let key = key("max_penalty");
                    self.error(&[&key.clone()], Conflict::PositivePenalty { key, value: *max_penalty });
                }
                RewardKind::Judge { servers, prompt, .. } => {
                    if servers.is_empty() {
                        self.error(
                            &[&key("servers"), &key("kind")],
                            Conflict::NoJudge { key: key("servers") },
                        );
                    }
                    if !prompt.contains("{completion}") {
                        let conflict = Conflict::JudgeWithoutCompletion { key: key("prompt") };
                        self.error(&[&key("prompt"), &key("kind")], conflict);
                    }
                }
                RewardKind::SoftOverlong { buffer: Some(buffer), max_length, .. } => {
                    let max_length = max_length.unwrap_or(config.rollout.max_response_length);
                    if *buffer > max_length {
                        let key = key("buffer");
                        let keys = [key.as_str(), "rollout.max_response_length"];
                        self.error(
                            &keys,
                            Conflict::BufferTooLong { key: key.clone(), buffer: *buffer, max_length },
                        );
                    }
                }
                _ => {}
            }
        }
    }

    fn servers(&mut self) {
        let rollout = &self.config.rollout;
        if rollout.backend == BackendKind::Native {
            let keys = [
                "rollout.servers",
                "rollout.launch",
                "rollout.server_model",
                "rollout.server_parameters",
                "rollout.server_timeout",
                "rollout.max_in_flight",
                "rollout.server_startup_timeout",
                "rollout.server_lost_timeout",
                "rollout.api_key_file",
                "rollout.api_key_env",
                "publish.dir",
                "publish.server_dir",
                "publish.keep",
                "publish.pause",
                "publish.verify",
            ];
            self.ignored(&keys, "`rollout.backend` is `native`");
            return;
        }
        if rollout.backend == BackendKind::OpenAi {
            self.error(&["rollout.backend"], Conflict::TextTrains);
            return;
        }
        self.has_servers();
        if self.config.schedule.surplus == Surplus::Discard {
            self.ignored(
                &["publish.pause"],
                "nothing is in flight at a publication with `schedule.surplus: discard`",
            );
        }
    }

    /// Whether there are servers to sample at, or some can be started.
    fn has_servers(&mut self) {
        let rollout = &self.config.rollout;
        if rollout.backend == BackendKind::Native {
            return;
        }
        if rollout.servers.is_empty() {
            // Servers with a model of their own are started by whoever has them.
            match rollout.launch.as_ref().filter(|_| rollout.backend != BackendKind::OpenAi) {
                None => {
                    let model = self.config.model.path.as_deref().unwrap_or(Path::new("MODEL"));
                    let command = Box::new(ServerCommand::new(rollout, model, "8000"));
                    let conflict = Conflict::NoServers { backend: rollout.backend, command };
                    self.error(&["rollout.servers", "rollout.backend"], conflict);
                }
                Some(launch) if !launch.command.is_empty() => {
                    let lacks = |what: &str| !launch.command.iter().any(|word| word.contains(what));
                    for what in ["{port}", "{model}"].into_iter().filter(|what| lacks(what)) {
                        self.error(&["rollout.launch.command"], Conflict::LaunchWithout { what });
                    }
                    self.ignored(&["rollout.launch.args"], "`rollout.launch.command` is the whole command");
                }
                Some(_) => {}
            }
        } else {
            // What a key of another system started is not what this user asked for.
            let node = self.tree.at("rollout.launch");
            if node.is_some_and(|node| !matches!(node.origin.source.kind, SourceKind::Foreign(_))) {
                self.ignored(&["rollout.launch"], "`rollout.servers` names servers that are running already");
            }
        }
    }

    fn schedule(&mut self) {
        let config = self.config;
        let schedule = &config.schedule;
        let sizes = ["schedule.granularity", "schedule.margin"];
        match schedule.mode {
            ScheduleMode::Rounds => self.ignored(&sizes, "`schedule.mode` is `rounds`"),
            ScheduleMode::Deficit if !config.refills() => {
                let reason = "every step is one round";
                self.ignored(&["schedule.mode"], reason);
                self.ignored(&sizes, reason);
            }
            ScheduleMode::Deficit => {
                if let Some(filter) = config.filter.as_ref().filter(|filter| filter.kind.compares_groups()) {
                    let keys = ["schedule.mode", "filter.kind"];
                    self.error(&keys, Conflict::DeficitWithPool { kind: filter.kind });
                }
                if let Some(rounds) = schedule.rounds_in_flight.filter(|&rounds| rounds > 1) {
                    let keys = ["schedule.rounds_in_flight", "schedule.mode"];
                    self.error(&keys, Conflict::DeficitInFlight { rounds });
                }
            }
            ScheduleMode::Streaming => {
                let reason = "`schedule.mode` is `streaming`";
                self.ignored(&sizes, reason);
                self.ignored(&["schedule.refill"], reason);
                if let Some(filter) = config.filter.as_ref().filter(|filter| filter.kind.compares_groups()) {
                    let keys = ["schedule.mode", "filter.kind"];
                    self.error(&keys, Conflict::StreamingWithPool { kind: filter.kind });
                }
            }
        }
        match schedule.surplus {
            Surplus::Carry if schedule.max_lag.is_none() => {
                self.error(&["schedule.surplus"], Conflict::CarryWithoutLag);
            }
            Surplus::Carry => {}
            Surplus::Discard => self.ignored(&["schedule.max_lag"], "`schedule.surplus` is `discard`"),
        }
        let (generated, train) = (config.gen_batch_size(), config.data.train_batch_size);
        if config.refills() {
            if let Some(RoundLimit::Rounds(rounds)) = schedule.max_num_gen_batches
                && rounds.saturating_mul(generated) < train
            {
                let keys = ["schedule.max_num_gen_batches", "data.gen_batch_size", "data.train_batch_size"];
                self.error(&keys, Conflict::LimitTooLow { rounds, generated, train });
            }
        } else {
            let reason = if config.filter.is_none() {
                "there is no filter, so every step is one round"
            } else {
                "`schedule.refill` is false, so every step is one round"
            };
            let keys = [
                "schedule.max_num_gen_batches",
                "schedule.on_limit",
                "schedule.rounds_in_flight",
                "schedule.on_exhausted",
                "schedule.surplus",
            ];
            self.ignored(&keys[..3], reason);
            if generated <= train {
                self.ignored(&keys[4..], reason);
            }
            if config.filter.is_none() {
                self.ignored(&["schedule.on_empty_round", "schedule.refill"], reason);
                self.ignored(
                    &["data.gen_batch_size"],
                    "there is no filter, so every step is one round of `data.train_batch_size` prompts",
                );
            }
            if generated < train {
                let keys = ["data.gen_batch_size", "schedule.refill", "data.train_batch_size"];
                self.error(&keys, Conflict::RoundTooSmall { generated, train });
            }
        }
    }

    fn objective(&mut self) {
        let objective = &self.config.objective;
        let loss = objective.loss.kind;
        self.unread("objective.advantage", "estimator", objective.advantage.estimator, ADVANTAGE_READERS);
        self.unread("objective.loss", "loss", loss, LOSS_READERS);
        if loss == LossKind::Luspo && objective.aggregation != Aggregation::SeqMeanTokenSum {
            let keys = ["objective.aggregation", "objective.loss.kind"];
            self.error(&keys, Conflict::LuspoAggregation { aggregation: objective.aggregation });
        }
        if loss == LossKind::Dro && objective.loss.beta.is_none() {
            self.error(&["objective.loss.beta", "objective.loss.kind"], Conflict::NoBeta);
        }
        if objective.importance != ImportanceLevel::Token && !LEVELLED.contains(&loss) {
            let conflict = Conflict::NoImportanceLevel { loss, importance: objective.importance };
            self.error(&["objective.importance", "objective.loss.kind"], conflict);
        }
        if loss == LossKind::Vespo && !(objective.kl.place == KlPlace::Loss && objective.kl.bias_corrected) {
            let reason = "the weight of `vespo` is the trajectory's own; the level reaches a bias-corrected KL in the loss alone";
            self.ignored(&["objective.importance"], reason);
        }
        if objective.advantage.estimator == Estimator::Cpo {
            for (name, missing) in [("{prompt}", "prompt"), ("{gold}", "gold")] {
                if !objective.advantage.gold_hint.contains(name) {
                    self.error(&["objective.advantage.gold_hint"], Conflict::GoldHint { missing });
                }
            }
            if self.config.filter.is_some() {
                let keys = ["filter", "objective.advantage.estimator"];
                self.warn(&keys, Conflict::FilterBeforeContrast);
            }
            self.right_completions();
        }
        if objective.advantage.estimator == Estimator::Grpo && !self.config.divides_by_std() {
            let keys = ["objective.advantage.ddof", "objective.advantage.epsilon"];
            self.ignored(&keys, "advantages are not divided by a deviation");
        }
        if !objective.advantage.norm_by_std && objective.advantage.scale == AdvantageScale::Batch {
            self.ignored(&["objective.advantage.scale"], "`objective.advantage.norm_by_std` is false");
        }
        if self.config.filter.is_none() {
            self.ignored(&["objective.zero_groups"], "there is no filter that drops groups");
        }
        if objective.entropy.coefficient == 0.0 && objective.entropy.adaptive.is_none() {
            self.ignored(&["objective.entropy.aggregation"], "there is no entropy bonus");
        }
        if objective.aggregation != Aggregation::SeqMeanTokenSumNorm {
            let reason = "only the aggregation `seq-mean-token-sum-norm` has a divisor";
            self.ignored(&["objective.loss_scale_factor"], reason);
        }
        let kl = &objective.kl;
        if kl.place == KlPlace::None {
            let keys = [
                "objective.kl.estimator",
                "objective.kl.straight_through",
                "objective.kl.bias_corrected",
                "objective.kl.coefficient",
                "objective.kl.adaptive",
                "model.reference",
            ];
            self.ignored(&keys, "`objective.kl.in` is `none`");
            return;
        }
        if kl.coefficient == 0.0 {
            self.warn(&["objective.kl.coefficient"], Conflict::KlWithoutWeight { place: kl.place });
        }
        if kl.place == KlPlace::Reward {
            let keys = ["objective.kl.straight_through", "objective.kl.bias_corrected"];
            self.ignored(&keys, "the KL is in the reward, through which nothing is differentiated");
        }
        if kl.adaptive.is_some() && kl.place != KlPlace::Reward {
            self.error(&["objective.kl.adaptive"], Conflict::AdaptiveKl { place: kl.place });
        }
        let trajectories = self.config.data.train_batch_size.saturating_mul(self.config.rollout.n);
        if let Some(adaptive) = &kl.adaptive
            && trajectories as f64 >= 5.0 * adaptive.horizon
        {
            let keys = ["objective.kl.adaptive.horizon", "objective.kl.adaptive"];
            self.warn(&keys, Conflict::HorizonTooNear { horizon: adaptive.horizon, trajectories });
        }
    }

    /// Warns where `cpo` cannot tell a right completion by its reward.
    fn right_completions(&mut self) {
        let config = self.config;
        let right = config.objective.advantage.right;
        if config.objective.kl.place == KlPlace::Reward {
            let keys = ["objective.kl.in", "objective.advantage.right"];
            return self.warn(&keys, Conflict::RightMoved { right, by: "the KL in the reward" });
        }
        if config.reward.iter().any(|reward| !reward.kind.is_verifier() && reward.weight != 0.0) {
            let keys = ["reward", "objective.advantage.right"];
            return self.warn(&keys, Conflict::RightMoved { right, by: "what is no verifier in `reward`" });
        }
        if let [reward] = config.reward.as_slice()
            && reward.weight < right
        {
            let keys = ["objective.advantage.right", "reward[0].weight", "reward"];
            self.warn(&keys, Conflict::NothingRight { right, weight: reward.weight });
        }
    }

    fn train(&mut self) {
        let config = self.config;
        let train = &config.train;
        let (mini, batch, n) = (config.mini_batch_size(), config.data.train_batch_size, config.rollout.n);
        let keys = ["train.ppo_mini_batch_size", "data.train_batch_size"];
        if mini > batch {
            self.error(&keys, Conflict::MiniBatchTooLarge { mini, train: batch });
        } else if !batch.is_multiple_of(mini) {
            self.warn(&keys, Conflict::RaggedMiniBatch { mini, train: batch });
        }
        if let Some(micro) = train.micro_batch_size {
            let keys = ["train.micro_batch_tokens", "train.balance_micro_batches"];
            self.ignored(&keys, "`train.micro_batch_size` is set");
            if !mini.saturating_mul(n).is_multiple_of(micro) {
                let keys = ["train.micro_batch_size", "train.ppo_mini_batch_size", "rollout.n"];
                self.error(&keys, Conflict::MicroBatchDoesNotDivide { mini, n, micro });
            }
        }
        if mini == batch && train.shuffle_mini_batches {
            self.ignored(&["train.shuffle_mini_batches"], "a step is one mini-batch");
        }
        let length = ["train.total_steps", "train.total_epochs", "train"];
        if train.total_steps.is_none() && train.total_epochs.is_none() {
            self.error(&length, Conflict::NoEnd);
        }
        let kind = train.lr_schedule.kind;
        if kind == LrScheduleKind::Constant {
            self.ignored(&["train.lr_schedule.min_ratio"], "the learning rate is constant");
        } else if train.total_steps.is_none() && (train.total_epochs.is_none() || config.refills()) {
            let filtered = train.total_epochs.is_some();
            self.error(
                &["train.lr_schedule.kind", "train.total_steps"],
                Conflict::NoHorizon { kind, filtered },
            );
        }
        if let Some(total) = train.total_steps
            && train.lr_schedule.warmup_steps >= total
            && train.lr_schedule.warmup_steps > 0
        {
            let warmup = train.lr_schedule.warmup_steps;
            let keys = ["train.lr_schedule.warmup_steps", "train.total_steps"];
            self.warn(&keys, Conflict::WarmupTooLong { warmup, total });
        }
    }

    fn early_stop(&mut self) {
        let config = self.config;
        let early_stop = &config.train.early_stop;
        if early_stop.low_success.is_some()
            && (!config.has_validation_data() || config.validate.test_freq == Frequency::NEVER)
        {
            let keys = ["train.early_stop.low_success", "train.early_stop"];
            self.error(&keys, Conflict::StopWithoutValidation);
        }
        if early_stop.reward_collapse.as_ref().is_some_and(|stop| stop.share >= 1.0) {
            self.error(&["train.early_stop.reward_collapse.share"], Conflict::ShareOfAll);
        }
        let schedule = &config.schedule;
        let has_limit = config.refills() && schedule.max_num_gen_batches.is_some();
        let gives_up =
            schedule.on_empty_round == EmptyRound::Skip || (has_limit && schedule.on_limit != OnLimit::Error);
        if config.filter.is_none() || !gives_up {
            self.ignored(&["train.early_stop.empty_steps"], "no step is given up for want of groups");
        }
        let edges = config.train.gradient_analysis.as_ref().and_then(|analysis| analysis.edges.as_ref());
        if edges.is_some() {
            let key = "train.gradient_analysis.buckets";
            self.ignored(&[key], "`train.gradient_analysis.edges` are given");
        }
        let unordered = edges.and_then(|edges| edges.windows(2).find(|pair| pair[0] >= pair[1]));
        if let Some(&[previous, edge]) = unordered {
            let key = "train.gradient_analysis.edges";
            self.error(&[key], Conflict::EdgesOutOfOrder { previous, edge });
        }
    }

    fn validation(&mut self) {
        let config = self.config;
        let validate = &config.validate;
        let has_data = config.has_validation_data();
        let off = validate.test_freq == Frequency::NEVER;
        if !off && !has_data {
            self.error(&["validate.test_freq", "data.val"], Conflict::NoValidationData);
        }
        if !has_data {
            let keys = [
                "validate.before_train",
                "validate.n",
                "validate.metrics",
                "validate.max_prompts",
                "validate.save_samples",
            ];
            self.ignored(&keys, "there are no validation prompts");
        } else if !validate.is_made() {
            let reason = "`validate.test_freq` is 0 and `validate.before_train` false: nothing is validated";
            self.ignored(&["validate.save_samples"], reason);
        }
        self.samples();
        if config.checkpoint.keep_best.is_some() && off {
            self.error(&["checkpoint.keep_best", "validate.test_freq"], Conflict::BestWithoutValidation);
        }
    }

    /// What `tamis eval` reads.
    fn evaluation(&mut self) {
        if !self.config.has_validation_data() {
            self.error(&["data.arithmetic.val_size", "data.val", "data.task"], Conflict::NothingToEvaluate);
        }
        self.samples();
    }

    /// How validation samples.
    fn samples(&mut self) {
        let validate = &self.config.validate;
        let several: Vec<&str> = validate
            .metrics
            .iter()
            .filter(|&&metric| metric != ValidationMetric::MeanAtK)
            .map(|metric| metric.as_str())
            .collect();
        if validate.n == 1 && !several.is_empty() {
            let keys = ["validate.metrics", "validate.n"];
            self.warn(&keys, Conflict::MetricsNeedSamples { metrics: several.join(", ") });
        }
        if validate.n > 1 && validate.temperature == 0.0 {
            self.warn(&["validate.n", "validate.temperature"], Conflict::GreedySamples { n: validate.n });
        }
    }
}
