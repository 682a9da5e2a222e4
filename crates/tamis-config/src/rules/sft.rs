//! Rules about supervised fine-tuning.

use super::validation::validation_prompts;
use super::{Checker, model::environment_paths};
use crate::schema::KlPlace;
use crate::tree::{Node, join};

/// Keys, and whole sections, that supervised fine-tuning alone reads. `tamis simulate` reads its own.
const READ_ALONE: [&str; 27] = [
    "run",
    "model.path",
    "model.init",
    "model.value_head",
    "model.save_dtype",
    "model.chat_template",
    "model.recompute_activations",
    "model.memory_limit",
    "data.bad_rows",
    "data.prompt_format",
    "data.system_prompt",
    "data.prompt_template",
    "data.chat_template_kwargs",
    "sft",
    "learner",
    "cluster",
    "train.micro_batch_tokens",
    "train.balance_micro_batches",
    "train.total_steps",
    "train.optimizer.betas",
    "train.optimizer.epsilon",
    "train.optimizer.weight_decay",
    "train.optimizer.decay_norms_and_biases",
    "train.optimizer.max_grad_norm",
    "checkpoint.save_freq",
    "checkpoint.keep_last",
    "simulate",
];

impl Checker<'_> {
    /// Rules of `sft`; `is_alone` means that it is the whole run.
    pub(super) fn sft(&mut self, is_alone: bool) {
        let config = self.config;
        let sft = &config.sft;
        if !is_alone && config.train.total_steps == Some(0) {
            self.error(
                &["train.total_steps"],
                "`train.total_steps` is 0: nothing would be trained",
                "set it to 1 or more; 0 is for supervised fine-tuning alone, on rows of your own (`sft.data`, `sft.epochs`)",
            );
        }
        if !sft.is_on() {
            self.sft_is_off();
            return;
        }
        let has_rows = !sft.data.is_empty();
        if has_rows {
            self.own_rows(is_alone);
        } else {
            let keys =
                ["sft.loss_on", "sft.columns.prompt", "sft.columns.completion", "sft.columns.messages"];
            self.warn_ignored(&keys, "`sft.data` names no rows, so gold answers are imitated");
            for key in ["sft.val", "sft.val_fraction"] {
                if self.is_asked_for(key) {
                    self.error(
                        &[key],
                        format!("`{key}` needs rows to learn from, but `sft.data` names none"),
                        "name them in `sft.data`, or measure with `sft.target_accuracy`",
                    );
                }
            }
            if !is_alone {
                self.sft_in_environments();
            }
        }
        if !sft.val.is_empty() && sft.val_fraction.is_some() {
            self.error(
                &["sft.val_fraction", "sft.val"],
                "`sft.val` and `sft.val_fraction` are both set",
                "remove one of the two",
            );
        }
        if sft.val_fraction.is_some_and(|fraction| fraction >= 1.0) {
            self.error(
                &["sft.val_fraction"],
                "`sft.val_fraction` is 1, and no row is left to learn from",
                "use 0.1",
            );
        }
        if is_alone && sft.target_accuracy.is_some() {
            self.error(
                &["sft.target_accuracy", "train.total_steps"],
                "`sft.target_accuracy` is measured by the rewards of a run, and with `train.total_steps: 0` there is \
                 no such run",
                "remove it; `sft.val` or `sft.val_fraction` measures the validation loss",
            );
        } else if sft.target_accuracy.is_some() && !config.has_validation_data() {
            self.error(
                &["sft.target_accuracy"],
                "`sft.target_accuracy` is measured on validation prompts, but there are none",
                validation_prompts(config),
            );
        }
        self.sft_of_adapter(is_alone);
    }

    /// Warns of keys that only reinforcement learning reads, in one line.
    pub(super) fn unread_alone(&mut self) {
        const SHOWN: usize = 8;
        let mut keys = Vec::new();
        self.add_unread("", self.tree, &mut keys);
        let Some(first) = keys.first() else { return };
        let shown: Vec<String> = keys.iter().take(SHOWN).map(|key| format!("`{key}`")).collect();
        let more = keys.len().saturating_sub(SHOWN);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let verb = if keys.len() == 1 { "has" } else { "have" };
        let rate = "train.optimizer.learning_rate";
        let hint = if keys.iter().any(|key| key == rate) {
            format!(
                "the learning rate is `sft.learning_rate`; remove `{rate}` and what else is of reinforcement learning"
            )
        } else {
            "remove them, or set `train.total_steps` to 1 or more".to_owned()
        };
        self.warn(
            &[first],
            format!(
                "{}{more} {verb} no effect in a run of supervised fine-tuning alone (`train.total_steps: 0`)",
                shown.join(", ")
            ),
            hint,
        );
    }

    fn add_unread(&self, path: &str, node: &Node, keys: &mut Vec<String>) {
        for entry in node.entries() {
            let path = join(path, &entry.key);
            if READ_ALONE.contains(&path.as_str()) {
                continue;
            }
            if !entry.node.entries().is_empty() {
                self.add_unread(&path, &entry.node, keys);
            } else if self.is_asked_for(&path) {
                keys.push(path);
            }
        }
    }

    fn sft_is_off(&mut self) {
        let config = self.config;
        if !config.sft.data.is_empty() {
            self.error(
                &["sft.data", "sft.steps", "sft.epochs"],
                "`sft.data` names rows, but `sft.steps` is 0: nothing is learned from them",
                "set `sft.epochs: 1`, or a number of updates in `sft.steps`, or remove `sft.data`",
            );
            return;
        }
        let keys = [
            "sft.val",
            "sft.val_fraction",
            "sft.loss_on",
            "sft.max_length",
            "sft.batch_size",
            "sft.learning_rate",
            "sft.warmup_steps",
            "sft.lr_schedule",
            "sft.min_lr_ratio",
            "sft.examples",
            "sft.target_accuracy",
            "sft.test_freq",
        ];
        self.warn_ignored(&keys, "`sft.steps` is 0");
        let games = config.environments().zip(environment_paths());
        for (_, path) in games.filter(|(environment, _)| environment.maker().is_game()) {
            let keys = [format!("{path}.expert_prob"), format!("{path}.short_prob")];
            self.warn_ignored(&keys.each_ref().map(String::as_str), "`sft.steps` is 0");
        }
    }

    fn own_rows(&mut self, is_alone: bool) {
        let config = self.config;
        let columns = &config.sft.columns;
        let of_pair = [("prompt", &columns.prompt), ("completion", &columns.completion)]
            .into_iter()
            .find(|(_, name)| name.is_some());
        if let (Some((name, _)), Some(_)) = (of_pair, &columns.messages) {
            let key = format!("sft.columns.{name}");
            self.error(
                &[&key, "sft.columns.messages"],
                format!("`{key}` and `sft.columns.messages` are both set, but a row is a pair or a conversation"),
                "remove one of the two; train on rows of both layouts in two runs, or give them their usual columns",
            );
        }
        let temperature = config.rollout.temperature;
        if !is_alone && (temperature - 1.0).abs() > f64::EPSILON {
            self.warn(
                &["rollout.temperature", "sft.data"],
                format!(
                    "`sft` learns the rows as they are sampled at `rollout.temperature` {temperature}: its loss is that \
                     of the logits divided by it"
                ),
                "for the loss at temperature 1, train on the rows in a run of their own (`train.total_steps: 0`), and begin \
                 this one with its checkpoint (`model.path`)",
            );
        }
        let games = config.environments().zip(environment_paths());
        for (_, path) in games.filter(|(environment, _)| environment.maker().is_game()) {
            let keys = [format!("{path}.expert_prob"), format!("{path}.short_prob")];
            self.warn_ignored(
                &keys.each_ref().map(String::as_str),
                "`sft.data` names rows, so no script is imitated",
            );
        }
    }

    /// An adapter is compared with the policy without it, which SFT has not taught.
    fn sft_of_adapter(&mut self, is_alone: bool) {
        let config = self.config;
        let is_compared = config.objective.kl.place != KlPlace::None && config.model.reference.is_none();
        if config.learner.lora.is_some() && is_compared && !is_alone {
            self.error(
                &["sft.steps", "sft.epochs", "learner.lora"],
                "the reference would be the policy without its adapter, as it was before `sft`",
                "run `sft` alone (`train.total_steps: 0`), and begin this run with its checkpoint (`model.path`), or take the \
                 KL term out (`objective.kl.in: none`)",
            );
        }
    }

    /// Imitation in environments follows a script in built-in games, and gold answers in other levels.
    fn sft_in_environments(&mut self) {
        let config = self.config;
        let all = config.environments().zip(environment_paths());
        let trained = all.filter(|(environment, _)| environment.train_size > 0);
        let (shown, unshown): (Vec<_>, Vec<_>) =
            trained.partition(|(environment, _)| environment.maker().may_be_imitated());
        for (environment, path) in unshown {
            let kind = environment.kind.as_str();
            let nothing = "neither a script that plays it nor gold answers";
            let hint = "set `sft.steps: 0`, name rows in `sft.data`, or start from a model that can play";
            if shown.is_empty() {
                self.error(
                    &["sft.steps", &format!("{path}.kind")],
                    format!("`sft` has nothing to imitate: `{kind}` has {nothing}"),
                    hint,
                );
            } else {
                self.warn(
                    &["sft.steps", &format!("{path}.kind")],
                    format!("`sft` has no examples of `{kind}`, which has {nothing}"),
                    hint,
                );
            }
        }
    }
}
