//! The rows of the table, in files by section of verl's configuration.

mod actor;
mod algorithm;
mod data;
mod reward;
mod rollout;
mod trainer;

use std::sync::LazyLock;

use crate::foreign::key::ForeignKey;

const DEVICES: &str = "devices and machines are set up by the sections `learner` and `cluster`";
const RAGGED: &str = "it is about padding, and tamis keeps every sequence at its own length";
const KEPT: &str = "the native engine's log-probabilities are the learner's, bit for bit; of what servers \
    sampled the learner computes them in its own micro-batches";
const CRITIC_ADAPTERS: &str = "a critic is trained whole: adapters are the policy's";
const NO_OFFLOAD: &str = "weights and moments that learn stay on their device: a reference alone can wait elsewhere (`learner.offload_reference`)";
const MEGATRON_ADAPTERS: &str = "Megatron names layers its own way: give actor_rollout_ref.model.lora_rank, lora_alpha and target_modules instead";
const NO_TOOLS: &str = "tools and turns are those of the section `environment`, such as `kind: tools`";
const ROUTERS: &str =
    "it is about the routers of a mixture of experts, and what they chose is neither recorded nor replayed";
const ROUTER_REPLAY: &str = "what the routers of a mixture chose at a server is not replayed: the learner routes anew, and \
    `objective.correction` weighs the difference. Leave it out; a model without experts does not need it";
const NO_MTP: &str = "there are no heads that predict several tokens";
const NO_CACHE: &str = "rollouts are generated, never read from a cache";
const NO_REPLAY: &str = "nothing is read from a cache of rollouts";
const SAME_RESULT: &str = "it saves computation or memory in verl and changes no result";
const SEEDED: &str = "`run.seed` keys every draw";
const ADAMW: &str = "the optimizer is AdamW, in f32";
const SCHEDULES: &str =
    "give lr_scheduler_type (constant, linear or cosine), lr_warmup_steps and min_lr_ratio";
const SHARED: &str =
    "the native engine shares the weights with the learner, and servers read them from a folder (`publish`)";
const NULL: &[&str] = &["null", "None", "", "{}"];
const FALSE: &[&str] = &["False", "false"];
const RESUME: &str = "a run is resumed with `tamis train --resume RUN_DIR`";
const EXTERNAL: &str = "models and data are read as they are; nothing in them is run";

/// Every row.
pub(in crate::foreign) fn keys() -> &'static [ForeignKey] {
    static KEYS: LazyLock<Vec<ForeignKey>> = LazyLock::new(|| {
        [data::KEYS, actor::KEYS, rollout::KEYS, algorithm::KEYS, reward::KEYS, trainer::KEYS].concat()
    });
    &KEYS
}
