//! Numbers and facts that follow from several keys of a configuration. Among them are the values of keys that
//! follow another key unless they are set.

use std::cmp::Reverse;

use serde_json::Value as Json;
use tamis_core::advantage::Column;
use tamis_core::correction::CorrectionPreset;
use tamis_core::objective::Aggregation;
use tamis_core::schedule::InFlight;
use tamis_env::reward::RewardKind;
use tamis_env::task::TaskKind;
use tamis_env::task::environment::EnvironmentLevels;

use crate::render::json_of;
use crate::schema::{
    BackendKind, Config, ContextMode, EnvironmentConfig, InitConfig, LearnerBackend, LearnerDtype, LoraBase,
    LoraConfig, PublishMode, RAW_OUTCOME, ScheduleMode, SurplusKind,
};
use crate::server_command::{Intake, shell_word};
use crate::tree::join;

/// Metrics of a trajectory that every run has, besides its scores.
const COMPUTED_METRICS: [&str; 6] =
    ["score", "seq_reward", "seq_final_reward", "token_level_rewards", "length", "entropy"];

impl InitConfig {
    /// Number of key and value heads.
    pub fn num_kv_heads(&self) -> usize {
        self.num_kv_heads.unwrap_or(self.num_heads)
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_heads.max(1))
    }
}

/// Default limit on the rounds of a stream in flight at servers. The schedule itself starts no more than it
/// expects to need.
const ROUNDS_OF_A_STREAM: usize = 8;

/// The key that the lengths of rewards follow.
pub(crate) const RESPONSE_LENGTH: &str = "rollout.max_response_length";

/// The keys that a key follows unless it is set, as the comment after its value names them; `None` for a key
/// that follows no other.
pub(crate) fn leader(key: &str) -> Option<&'static str> {
    Some(match key {
        "train.ppo_mini_batch_size" | "data.gen_batch_size" => "data.train_batch_size",
        "objective.loss_scale_factor" => RESPONSE_LENGTH,
        "objective.entropy.aggregation" | "critic.aggregation" => "objective.aggregation",
        "objective.correction.preset" | "publish.pause" => "schedule.mode, schedule.surplus, rollout.backend",
        "schedule.granularity" | "critic.ppo_mini_batch_size" => "train.ppo_mini_batch_size",
        "schedule.rounds_in_flight" => "schedule.mode, rollout.backend",
        "publish.mode" => "learner.lora, rollout.launch",
        "critic.ppo_epochs" => "train.ppo_epochs",
        "filter.metric" => "reward",
        "model.init.num_kv_heads" => "num_heads",
        "model.init.head_dim" => "hidden_size / num_heads",
        key if key.starts_with("reward.") => RESPONSE_LENGTH,
        _ => return None,
    })
}

/// Lists the keys that were null and have a value now.
fn list_filled(path: &str, before: &Json, after: &Json, filled: &mut Vec<String>) {
    match (before, after) {
        (Json::Object(before), Json::Object(after)) => {
            for (key, after) in after {
                list_filled(&join(path, key), before.get(key).unwrap_or(after), after, filled);
            }
        }
        (Json::Null, after) if !after.is_null() => {
            filled.push(path.to_owned());
        }
        _ => {}
    }
}

impl Config {
    /// Whether the policy learns in another process.
    pub fn learns_elsewhere(&self) -> bool {
        self.learner.url.is_some() || self.learner.backend == LearnerBackend::Torch
    }

    /// Whether servers are started for the run. Supervised fine-tuning alone samples nothing.
    pub fn launches_servers(&self) -> bool {
        let is_of_servers = matches!(self.rollout.backend, BackendKind::Vllm | BackendKind::Sglang);
        let is_launched = self.rollout.servers.is_empty() && self.rollout.launch.is_some();
        is_of_servers && is_launched && !self.is_sft_alone()
    }

    /// Number of GPUs of the servers that are started.
    pub fn num_server_gpus(&self) -> usize {
        let launch = self.rollout.launch.as_ref().filter(|_| self.launches_servers());
        launch.map_or(0, |launch| launch.replicas * launch.tensor_parallel)
    }

    /// Whether servers sample, in parallel with the learner.
    pub fn samples_at_servers(&self) -> bool {
        !matches!(self.rollout.backend, BackendKind::Native | BackendKind::Learner)
    }

    /// Whether a learner in another process samples.
    pub fn samples_through_learner(&self) -> bool {
        self.rollout.backend == BackendKind::Learner && self.learns_elsewhere()
    }

    /// Sets every null key that follows other keys, if something reads it, and lists these keys. A key that
    /// is still null then has no value or no limit, or depends on data, servers, programs or the machine.
    pub(crate) fn fill_followers(&mut self) -> Vec<String> {
        let mut filled = Vec::new();
        macro_rules! follow {
            ($($part:ident).+ = $value:expr) => {
                let value = $value;
                let key = &mut self.$($part).+;
                if key.is_none() {
                    *key = Some(value);
                    filled.push(stringify!($($part).+).to_owned());
                }
            };
        }
        follow!(train.ppo_mini_batch_size = self.mini_batch_size());
        if self.filter.is_some() {
            follow!(data.gen_batch_size = self.gen_batch_size());
        }
        if self.objective.aggregation == Aggregation::SeqMeanTokenSumNorm {
            follow!(objective.loss_scale_factor = self.loss_scale_factor());
        }
        if self.objective.entropy.coefficient != 0.0 || self.objective.entropy.adaptive.is_some() {
            follow!(objective.entropy.aggregation = self.objective.aggregation);
        }
        if let Some(preset) = self.correction_preset() {
            follow!(objective.correction.preset = preset);
        }
        if self.refills() {
            if self.schedule.mode == ScheduleMode::Deficit {
                follow!(schedule.granularity = self.mini_batch_size());
            }
            follow!(schedule.rounds_in_flight = self.rounds_in_flight());
        }
        if self.samples_at_servers() {
            follow!(publish.mode = self.publish_mode());
        }
        let goes_on = self.samples_at_servers() || self.samples_through_learner();
        if goes_on && self.schedule.surplus == SurplusKind::Carry {
            follow!(publish.pause = self.publish_pause());
        }
        if self.has_critic() {
            follow!(critic.ppo_mini_batch_size = self.critic_mini_batch_size());
            follow!(critic.ppo_epochs = self.critic_epochs());
            follow!(critic.aggregation = self.objective.aggregation);
        }
        // The numbers of a program are known only when it answers.
        let has_outcome = self.reward.iter().any(|reward| reward.kind.gives_outcome());
        if let Some(filter) = self.filter.as_mut().filter(|filter| has_outcome && filter.metric.is_none()) {
            filter.metric = Some(RAW_OUTCOME.to_owned());
            filled.push("filter.metric".to_owned());
        }
        if let Some(init) = &mut self.model.init {
            let (num_kv_heads, head_dim) = (init.num_kv_heads(), init.head_dim());
            if init.num_kv_heads.replace(num_kv_heads).is_none() {
                filled.push("model.init.num_kv_heads".to_owned());
            }
            if init.head_dim.replace(head_dim).is_none() {
                filled.push("model.init.head_dim".to_owned());
            }
        }
        let limit = self.max_completion_length();
        for (index, reward) in self.reward.iter_mut().enumerate() {
            let before = json_of(reward);
            reward.kind.fill_lengths(limit);
            list_filled(&format!("reward.{index}"), &before, &json_of(reward), &mut filled);
        }
        filled
    }

    /// Rounds generated at once; in a stream, the groups in flight in units of a round.
    pub fn rounds_in_flight(&self) -> usize {
        let streams = self.schedule.mode == ScheduleMode::Streaming;
        self.schedule.rounds_in_flight.unwrap_or(if streams && self.samples_at_servers() {
            ROUNDS_OF_A_STREAM
        } else {
            1
        })
    }

    /// Form of the new weights that servers get.
    pub fn intake(&self) -> Intake {
        match (self.publish_mode(), &self.learner.lora) {
            (PublishMode::Adapter, Some(lora)) => Intake::Adapters(lora.rank),
            (PublishMode::Ipc, _) => Intake::GpuMemory,
            (PublishMode::Nccl, _) => Intake::Transfer,
            (PublishMode::Adapter | PublishMode::Folder, _) => Intake::Folders,
        }
    }

    /// How servers get new weights.
    pub fn publish_mode(&self) -> PublishMode {
        let rollout = &self.rollout;
        let starts_vllm = rollout.backend == BackendKind::Vllm
            && rollout.servers.is_empty()
            && rollout.launch.as_ref().is_some_and(|launch| launch.command.is_empty());
        let is_whole = |lora: &LoraConfig| lora.base == LoraBase::Dtype;
        let takes_adapter = self.learner.lora.as_ref().is_some_and(is_whole) && starts_vllm;
        self.publish.mode.unwrap_or(if takes_adapter { PublishMode::Adapter } else { PublishMode::Folder })
    }

    /// What happens to samples in flight when weights are published. A learner that samples has changed its
    /// own weights by then, so its samples cannot finish with the old ones.
    pub fn publish_pause(&self) -> InFlight {
        let schedule = &self.schedule;
        let streams = schedule.mode == ScheduleMode::Streaming && schedule.surplus == SurplusKind::Carry;
        let default = if streams || self.samples_through_learner() { InFlight::Keep } else { InFlight::Wait };
        self.publish.pause.unwrap_or(default)
    }

    /// The name of the correction. If none is set, it is token weights up to 2 in two cases: groups of older
    /// weights are common (a stream that carries them), or nothing else would correct for their age (carried
    /// groups of servers). A loss that weights them itself needs no correction.
    pub fn correction_preset(&self) -> Option<CorrectionPreset> {
        let settings = &self.objective.correction;
        let is_unset = settings.weights.is_none() && settings.rejections.is_empty();
        // The old log-probabilities of the native engine's carried groups are those that they were sampled
        // with, so the loss's ratio reflects their age. With servers, and with a learner in another number
        // format than its sampler's, they are computed at the start of the step. `learner.device` may change
        // on resume, so it is not used here.
        let is_rounded =
            self.learner.backend == LearnerBackend::Torch && self.learner.dtype != LearnerDtype::F32;
        let lags = self.schedule.surplus == SurplusKind::Carry
            && (self.schedule.mode == ScheduleMode::Streaming || self.samples_at_servers() || is_rounded);
        let is_wanted = is_unset && lags && !self.objective.loss.weighs_behaviour();
        settings.preset.or(is_wanted.then_some(CorrectionPreset::DecoupledTokenIs))
    }

    /// Prompts of one generation round. Without a filter it is the batch, independent of
    /// `data.gen_batch_size`.
    pub fn gen_batch_size(&self) -> usize {
        let own = self.data.gen_batch_size.filter(|_| self.filter.is_some());
        own.unwrap_or(self.data.train_batch_size)
    }

    /// Prompts of one optimizer update.
    pub fn mini_batch_size(&self) -> usize {
        self.train.ppo_mini_batch_size.unwrap_or(self.data.train_batch_size)
    }

    /// Tokens of a micro-batch. The default is the learner's `own`, or 8192.
    pub fn micro_batch_tokens(&self, own: Option<usize>) -> usize {
        self.train.micro_batch_tokens.or(own).unwrap_or(8192)
    }

    /// The environment that prompts are played in, if there is one.
    pub fn played(&self) -> Option<&EnvironmentConfig> {
        let has_levels = self.data.task == Some(TaskKind::Environment);
        self.environment.as_ref().filter(|environment| has_levels || environment.maker().plays_any_prompt())
    }

    /// All environments that prompts are played in.
    pub fn environments(&self) -> impl Iterator<Item = &EnvironmentConfig> {
        let more = self.played().map_or(&[][..], |_| &self.more_environments);
        self.played().into_iter().chain(more)
    }

    /// The levels of each environment.
    pub fn levels(&self) -> Vec<EnvironmentLevels> {
        let number = |(number, environment): (usize, &EnvironmentConfig)| EnvironmentLevels {
            number,
            ..environment.levels()
        };
        self.environments().enumerate().map(number).collect()
    }

    /// The key that bounds [`Self::max_text_length`].
    pub fn text_length_key(&self) -> String {
        let lengths = self.environments().map(|environment| self.max_episode_text_length(environment));
        // The first of the longest.
        let longest = lengths.enumerate().min_by_key(|&(_, length)| Reverse(length));
        match longest {
            None => "rollout.max_response_length".to_owned(),
            Some((0, _)) => "environment.max_length".to_owned(),
            Some((number, _)) => format!("more_environments[{}].max_length", number - 1),
        }
    }

    /// Most tokens after a prompt: of an answer, or of all turns including the environment's texts, in the
    /// environment with the longest episodes.
    pub fn max_completion_length(&self) -> usize {
        let of_answer = self.rollout.max_response_length;
        self.environments().map(|environment| self.max_episode_length(environment)).max().unwrap_or(of_answer)
    }

    /// Most tokens that the policy sees at once, beyond those of a prompt, over all environments.
    pub fn max_text_length(&self) -> usize {
        let of_answer = self.rollout.max_response_length;
        let lengths = self.environments().map(|environment| self.max_episode_text_length(environment));
        lengths.max().unwrap_or(of_answer)
    }

    /// Most tokens of an episode that the policy sees at once, beyond those of a prompt. If it sees a window
    /// of turns, these are fewer than all.
    pub fn max_episode_text_length(&self, environment: &EnvironmentConfig) -> usize {
        let whole = self.max_episode_length(environment);
        if environment.context == ContextMode::Full {
            return whole;
        }
        let max_turns = environment.prompting.max_turns;
        let num_seen = environment.max_context_window.unwrap_or(max_turns).min(max_turns);
        let of_turn = self.rollout.max_response_length.saturating_add(self.data.max_prompt_length);
        whole.min(num_seen.saturating_mul(of_turn))
    }

    /// Most tokens of an episode after its prompt.
    pub fn max_episode_length(&self, environment: &EnvironmentConfig) -> usize {
        let of_answer = self.rollout.max_response_length;
        let of_turn = of_answer.saturating_add(self.data.max_prompt_length);
        let of_turns = environment.prompting.max_turns.saturating_mul(of_turn);
        environment.max_length.unwrap_or(of_turns)
    }

    /// The script whose process computes rewards of this run, and its arguments.
    pub fn script(&self) -> Option<&[String]> {
        self.reward.iter().find_map(|reward| match &reward.kind {
            RewardKind::Command(command) => command.script(),
            _ => None,
        })
    }

    /// How a command that trains with these rewards begins: `tamis train`, or `tamis train SCRIPT.py` for a
    /// run of a script.
    pub fn train_command(&self) -> String {
        let words = self.script().unwrap_or_default().iter().map(|word| shell_word(word));
        std::iter::once("tamis train".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Whether a part of the training data is held out for validation.
    pub fn holds_out(&self) -> bool {
        self.data.val_fraction.is_some() && self.data.task.is_none()
    }

    /// Whether there are validation prompts.
    pub fn has_validation_data(&self) -> bool {
        !self.data.val.is_empty()
            || self.holds_out()
            || (self.data.task == Some(TaskKind::Environment)
                && self.environments().any(|environment| environment.val_size > 0))
            || (self.data.task == Some(TaskKind::Arithmetic) && self.data.arithmetic.val_size > 0)
    }

    /// Divisor of the aggregation `seq-mean-token-sum-norm`.
    pub fn loss_scale_factor(&self) -> f64 {
        self.objective.loss_scale_factor.unwrap_or(self.max_completion_length() as f64)
    }

    /// Whether a step may take more than one generation round.
    pub fn refills(&self) -> bool {
        self.schedule.mode == ScheduleMode::Streaming || (self.filter.is_some() && self.schedule.refill)
    }

    /// Whether there is a critic. Only some advantage estimators need one.
    pub fn has_critic(&self) -> bool {
        self.objective.advantage.needs().contains(&Column::Values)
    }

    /// Prompts of one update of the critic.
    pub fn critic_mini_batch_size(&self) -> usize {
        self.critic.ppo_mini_batch_size.unwrap_or_else(|| self.mini_batch_size())
    }

    /// The critic's passes over a batch.
    pub fn critic_epochs(&self) -> usize {
        self.critic.ppo_epochs.unwrap_or(self.train.ppo_epochs)
    }

    /// The metrics for a filter that are known before anything is scored. The further numbers that external
    /// rewards return besides their score are not known.
    pub fn known_metrics(&self) -> Vec<String> {
        let mut metrics: Vec<String> = Vec::new();
        if self.reward.iter().any(|reward| reward.kind.is_verifier()) {
            metrics.push(RAW_OUTCOME.to_owned());
        }
        metrics.extend(COMPUTED_METRICS.map(str::to_owned));
        let names = self.reward.iter().map(|reward| reward.name.as_str());
        metrics.extend(names.filter(|name| !COMPUTED_METRICS.contains(name)).map(str::to_owned));
        metrics
    }
}
