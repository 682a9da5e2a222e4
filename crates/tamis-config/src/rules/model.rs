//! Rules about the model and the training prompts.

use tamis_core::random::{Key, Purpose};
use tamis_data::prompt_format::PromptFormat;
use tamis_env::environment::context::ContextMode;
use tamis_env::task::TaskKind;

use crate::schema::{EnvironmentConfig, two_of_one_name};

use super::Checker;
use crate::table;

pub(super) fn environment_paths() -> impl Iterator<Item = String> {
    std::iter::once("environment".to_owned()).chain((0..).map(|place| format!("more_environments[{place}]")))
}

impl Checker<'_> {
    pub(super) fn model(&mut self) {
        self.stop_texts();
        self.policy();
        self.positions();
    }

    /// The policy itself, whatever it is trained on.
    pub(super) fn policy(&mut self) {
        let model = &self.config.model;
        match (&model.path, &model.init) {
            (None, None) => self.missing(
                &["model.path", "model.init", "model"],
                "there is no model: neither `model.path` nor `model.init` is set",
                "set a checkpoint with `model.path=DIR`, or describe a new model under `model.init`",
            ),
            (Some(_), Some(_)) => self.error(
                &["model.init", "model.path"],
                "`model.path` and `model.init` are both set",
                "remove one of the two",
            ),
            _ => {}
        }
        if model.value_head {
            self.error(
                &["model.value_head"],
                "`model.value_head`: the policy has no value head",
                "a critic is a separate model: `preset: ppo`, or `objective.advantage.kind: gae`",
            );
        }
        let Some(init) = &model.init else { return };
        let (num_heads, hidden_size) = (init.num_heads, init.hidden_size);
        let num_kv_heads = init.num_kv_heads();
        if !num_heads.is_multiple_of(num_kv_heads) {
            self.error(
                &["model.init.num_kv_heads", "model.init.num_heads"],
                format!(
                    "`model.init.num_heads` ({num_heads}) is not divisible by `model.init.num_kv_heads` \
                     ({num_kv_heads})"
                ),
                format!("set `model.init.num_kv_heads` to a divisor of {num_heads}"),
            );
        }
        let keys = ["model.init.head_dim", "model.init.num_heads", "model.init.hidden_size"];
        let head_dim = init.head_dim();
        if init.head_dim.is_none() && !hidden_size.is_multiple_of(num_heads) {
            self.error(
                &keys,
                format!(
                    "`model.init.hidden_size` ({hidden_size}) is not divisible by `model.init.num_heads` \
                     ({num_heads})"
                ),
                "set `model.init.head_dim`, or change one of the two",
            );
        } else if !head_dim.is_multiple_of(2) {
            self.error(
                &keys,
                format!("the width of a head must be even, but it is {head_dim}"),
                format!("set `model.init.head_dim: {}`", head_dim.saturating_add(1)),
            );
        }
    }

    fn positions(&mut self) {
        let Some(init) = &self.config.model.init else { return };
        let prompt = self.config.data.max_prompt_length;
        let response = self.config.max_text_length();
        let key = self.config.text_length_key();
        let positions = init.max_position_embeddings;
        let sum = prompt.saturating_add(response);
        if sum > positions {
            self.error(
                &["model.init.max_position_embeddings", &key, "data.max_prompt_length"],
                format!(
                    "`data.max_prompt_length` ({prompt}) and `{key}` ({response}) make {sum}, \
                     above `model.init.max_position_embeddings` ({positions})"
                ),
                format!("set `model.init.max_position_embeddings: {sum}`"),
            );
        }
    }

    fn stop_texts(&mut self) {
        if self.config.rollout.stop.iter().any(String::is_empty) {
            self.error(
                &["rollout.stop"],
                "`rollout.stop` contains an empty text, which would end every completion at once",
                "remove it from `rollout.stop`",
            );
        }
    }

    pub(super) fn training_prompts(&mut self) {
        let config = self.config;
        if config.data.train.is_empty() && config.data.task.is_none_or(|task| task.reads_files()) {
            self.missing(
                &["data.train", "data.task"],
                "there are no training prompts: neither `data.train` nor the task `arithmetic` is set",
                "set `data.train` to a JSONL or Parquet file, or `data.task: arithmetic`",
            );
        }
    }

    /// Warns of settings of environments that nothing reads.
    fn environment_settings(&mut self) {
        let config = self.config;
        for (environment, path) in config.environments().zip(environment_paths()) {
            let (maker, kind) = (environment.maker(), environment.kind.as_str());
            let reason = if maker.is_game() {
                format!("`{path}.style` is plain: only the state is shown, and an answer is one action")
            } else {
                format!("`{path}.kind` {kind} writes its own prompts")
            };
            let names =
                table::keys().iter().filter_map(|key| key.path.strip_prefix("environment.prompting."));
            let unread: Vec<String> = names
                .filter(|name| !maker.reads_prompting(name))
                .map(|name| format!("{path}.prompting.{name}"))
                .collect();
            let unread: Vec<&str> = unread.iter().map(String::as_str).collect();
            self.warn_ignored(&unread, &reason);
            if maker.is_program() && environment.max_length.is_some() {
                let reason =
                    format!("`{path}.max_length` is set, and a program itself decides when an episode ends");
                self.warn_ignored(&[&format!("{path}.prompting.max_turns")], &reason);
            }
            if config.imitates() && maker.is_game() && !maker.has_expert() {
                let reason = format!("no script can solve `{kind}`, so `sft` imitates guesses");
                self.warn_ignored(&[&format!("{path}.expert_prob")], &reason);
            }
            if config.imitates() && environment.expert_prob >= 1.0 {
                let reason = format!("with `{path}.expert_prob` of 1 the script never guesses");
                self.warn_ignored(&[&format!("{path}.short_prob")], &reason);
            }
            if maker.foreign().is_some() {
                let reason = format!("no script plays `{path}.kind` {kind}");
                self.warn_ignored(&[&format!("{path}.expert_prob")], &reason);
            }
        }
    }

    /// Checks environments besides the first one.
    fn more_environments(&mut self) {
        let Some(first) =
            self.config.environment.as_ref().filter(|_| !self.config.more_environments.is_empty())
        else {
            if !self.config.more_environments.is_empty() {
                self.error(
                    &["more_environments", "environment"],
                    "`more_environments` needs `environment`, which is not set",
                    "move the first of them to `environment`",
                );
            }
            return;
        };
        if first.maker().plays_any_prompt() {
            let message = format!(
                "`environment.kind` {} plays the prompts of a task or a file, and allows no other environments",
                first.kind
            );
            self.error(&["more_environments", "environment.kind"], message, "remove `more_environments`");
        }
        // The names of external environments are known only when prompts are made.
        let mut names: Vec<String> =
            self.config.environments().filter_map(EnvironmentConfig::metric_name).collect();
        names.sort_unstable();
        if let Some((twice, _)) = names.iter().zip(names.iter().skip(1)).find(|(one, next)| one == next) {
            let (message, hint) = two_of_one_name(twice);
            self.error(&["more_environments"], message, hint);
        }
        let key = Key::new(self.config.run.seed, Purpose::Environment);
        for (place, environment) in self.config.more_environments.iter().enumerate() {
            let (maker, path) = (environment.maker(), format!("more_environments[{place}]"));
            if maker.plays_any_prompt() {
                let message = format!(
                    "`{}` plays the prompts of a task or a file, and must be the only environment",
                    environment.kind
                );
                self.error(&[&path], message, "write it as `environment`, without others");
            } else if let Some(Err(error)) = maker.is_game().then(|| maker.open(key)) {
                let message = format!("cannot create the environment `{}`: {error}", environment.kind);
                self.error(&[&path], message, "correct the setting that it names");
            }
            if (environment.style, environment.context()) != (first.style, first.context()) {
                let message = "all environments of a run need the same style and the same context";
                self.error(
                    &[&path, "environment"],
                    message,
                    "give them the same `style`, `context` and `max_context_window`",
                );
            }
        }
    }

    pub(super) fn prompts(&mut self) {
        let data = &self.config.data;
        if let Some(task) = data.task.filter(|task| !task.reads_files()) {
            let reason = format!("the task `{task}` makes its own prompts");
            self.warn_ignored(&["data.train", "data.val"], &reason);
        }
        if let (Some(task), Some(_)) = (data.task, data.val_fraction) {
            self.warn_ignored(
                &["data.val_fraction"],
                &format!("the task `{task}` has its own held-out prompts"),
            );
        } else if let Some(fraction) = data.val_fraction {
            if !data.val.is_empty() {
                self.error(
                    &["data.val_fraction", "data.val"],
                    "`data.val` names validation data, but `data.val_fraction` would take it from the training data",
                    "keep one of the two",
                );
            } else if fraction >= 1.0 {
                self.error(
                    &["data.val_fraction"],
                    "`data.val_fraction` is 1: nothing would be left to train on",
                    "set it to 0.1, say",
                );
            }
        }
        let environment = self.config.environment.as_ref();
        match (data.task, environment) {
            (Some(TaskKind::Environment), None) => self.error(
                &["data.task", "environment"],
                "`data.task` is environment, but `environment` is not set",
                "for example, set `environment: {kind: frozen_lake}`",
            ),
            (Some(TaskKind::Environment), Some(environment)) => {
                let key = Key::new(self.config.run.seed, Purpose::Environment);
                let maker = environment.maker();
                if maker.plays_any_prompt() {
                    let message = format!(
                        "`environment.kind` {} plays the prompts of a task or a file, and has none of its own",
                        environment.kind
                    );
                    let hint = "name the prompts in `data.train`, or set `data.task`";
                    self.error(&["data.task", "environment.kind"], message, hint);
                } else if let Some(Err(error)) = maker.is_game().then(|| maker.open(key)) {
                    let kind = &environment.kind;
                    let message = format!("cannot create the environment `{kind}`: {error}");
                    self.error(&["environment"], message, "correct the setting that it names");
                }
            }
            (_, Some(environment)) if environment.maker().plays_any_prompt() => {
                let kind = environment.kind.as_str();
                if environment.context != ContextMode::Full {
                    let message = format!(
                        "`environment.context` is {}, but `{kind}` continues the conversation from the question, so the policy sees all \
                        of it",
                        environment.context
                    );
                    self.error(
                        &["environment.context", "environment.kind"],
                        message,
                        "remove `environment.context`",
                    );
                }
                let keys = [
                    "environment.train_size",
                    "environment.val_size",
                    "environment.expert_prob",
                    "environment.max_context_window",
                ];
                self.warn_ignored(
                    &keys,
                    &format!("`environment.kind` {kind} plays the prompts of a task or a file"),
                );
            }
            (_, Some(_)) => self.error(
                &["environment", "data.task"],
                "`environment` describes a game, but `data.task` is not `environment`",
                "set `data.task: environment`, or remove `environment`",
            ),
            (_, None) => {}
        }
        self.environments();
        self.more_environments();
        self.environment_settings();
        if data.task != Some(TaskKind::Arithmetic) {
            let keys = ["data.arithmetic.levels", "data.arithmetic.train_size", "data.arithmetic.val_size"];
            self.warn_ignored(&keys, "`data.task` is not `arithmetic`");
        }
        if data.task.is_some() {
            let keys = [
                "data.columns.prompt",
                "data.columns.ground_truth",
                "data.columns.data_source",
                "data.columns.images",
                "data.columns.ability",
                "data.columns.extra_info",
            ];
            self.warn_ignored(&keys, "the task has its own columns");
        }
        if !data.images {
            let keys = ["data.columns.images", "data.image_folder"];
            self.warn_ignored(&keys, "`data.images` is false");
        }
        if data.prompt_format == PromptFormat::Text {
            let keys = ["model.chat_template", "data.chat_template_kwargs"];
            self.warn_ignored(&keys, "`data.prompt_format` is `text`");
            if data.system_prompt.is_some() {
                self.error(
                    &["data.system_prompt", "data.prompt_format"],
                    "`data.system_prompt` has no place: `data.prompt_format` is `text`, which sends bare text \
                     without the chat template",
                    "set `data.prompt_format: chat`, or remove `data.system_prompt`",
                );
            }
        }
    }
}
