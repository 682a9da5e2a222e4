//! A learner in another process, over the wire `tamis-learner/1`: HTTP with settings as JSON and columns as
//! safetensors.
//!
//! `docs/learner-protocol.md` describes the wire. [`client`] is a [`RunLearner`](super::RunLearner) whose
//! work is done at the other end; [`service`] answers such calls with any learner of this process.

pub mod calls;
pub mod client;
pub mod generator;
pub mod message;
pub mod service;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tamis_config::PublishMode;
use tamis_model::{AdamWConfig, SaveDtype};
use tamis_run::durable::DiskOperation;

use self::message::MessageError;
use super::generate::{Drawing, RefusedSample};
use crate::checkpoint::Hexadecimal;

use super::work::TrainingWork;
use super::{CopyTo, LearnerInfo, LoadContent, Network, NetworkSizes, NotFinite, SaveContent, Trained};

/// Name and version of the wire.
pub const PROTOCOL: &str = "tamis-learner/1";

/// Header with the state in the learner's memory that a call is meant for.
pub(crate) const INCARNATION: &str = "tamis-incarnation";
/// Header with the number of a call.
pub(crate) const SEQUENCE: &str = "tamis-seq";
/// Number in an answer's settings: the seconds that the learner computed.
pub(crate) const SECONDS: &str = "seconds";
/// Numbers in a pass's answer: the seconds that each rank computed.
pub(crate) const RANK_SECONDS: &str = "rank_seconds";

/// Constants of an optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireOptimizer {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay per unit of learning rate.
    pub weight_decay: f64,
    /// Whether norms and biases decay too.
    pub decay_norms_and_biases: bool,
    /// Largest norm of the gradient; `None`: no limit.
    pub max_grad_norm: Option<f64>,
}

impl WireOptimizer {
    /// Settings from the engine's constants and a largest norm.
    pub fn new(constants: AdamWConfig, max_grad_norm: Option<f64>) -> Self {
        let AdamWConfig { beta1, beta2, eps, weight_decay, decay_norms_and_biases } = constants;
        Self { beta1, beta2, epsilon: eps, weight_decay, decay_norms_and_biases, max_grad_norm }
    }

    fn check(&self) -> Result<(), MessageError> {
        let &Self { beta1, beta2, epsilon, weight_decay, max_grad_norm, .. } = self;
        let is_share = |value: f64| (0.0..1.0).contains(&value);
        let from_zero = |value: f64| value >= 0.0 && value.is_finite();
        let checks = [
            (is_share(beta1), "beta1", "from 0 to below 1"),
            (is_share(beta2), "beta2", "from 0 to below 1"),
            (from_zero(epsilon), "epsilon", "0 or above"),
            (from_zero(weight_decay), "weight_decay", "0 or above"),
            (
                max_grad_norm.is_none_or(|norm| norm > 0.0 && norm.is_finite()),
                "max_grad_norm",
                "above 0, or null",
            ),
        ];
        find_bad(&checks)
    }

    /// The engine's constants.
    pub fn constants(&self) -> AdamWConfig {
        let Self { beta1, beta2, epsilon, weight_decay, decay_norms_and_biases, .. } = *self;
        AdamWConfig { beta1, beta2, eps: epsilon, weight_decay, decay_norms_and_biases }
    }
}

/// A critic that a learner is to have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireCritic {
    /// Its weights; `None`: it begins with the policy's layers once they are copied.
    pub folder: Option<PathBuf>,
    /// Constants of its optimizer.
    pub optimizer: WireOptimizer,
}

/// Generation by a learner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireGeneration {
    /// Most sequences that are sampled at once.
    pub max_sequences: usize,
}

/// Settings of a learner from its beginning on. Paths are absolute, on the learner's machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenRequest {
    /// Folder of the policy.
    pub policy: PathBuf,
    /// The temperature of log-probabilities.
    pub temperature: f64,
    /// Constants of the policy's optimizer.
    pub optimizer: WireOptimizer,
    /// The critic; `None` without one.
    #[serde(default)]
    pub critic: Option<WireCritic>,
    /// Folder of a reference policy, if it is not the initial policy.
    #[serde(default)]
    pub reference: Option<PathBuf>,
    /// Folders of the models that the policy is distilled from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teachers: Vec<PathBuf>,
    /// Compute activations again in the backward pass.
    #[serde(default)]
    pub recompute_activations: bool,
    /// Seconds without a call after which the learner ends; `None`: never.
    #[serde(default)]
    pub orphan_timeout: Option<f64>,
    /// How it generates; `None`: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<WireGeneration>,
    /// The incarnation that an earlier process of this run had of the learner: one that still is it may keep
    /// what it has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<String>,
    /// Settings that only one implementation has.
    #[serde(default)]
    pub options: serde_json::Map<String, serde_json::Value>,
}

impl OpenRequest {
    /// Refuses settings outside their ranges, and paths that mean something else on another machine.
    fn check(&self) -> Result<(), MessageError> {
        let is_positive = |value: f64| value > 0.0 && value.is_finite();
        find_bad(&[
            (is_positive(self.temperature), "temperature", "above 0"),
            (self.orphan_timeout.is_none_or(is_positive), "orphan_timeout", "above 0, or null"),
            (self.generation.is_none_or(|one| one.max_sequences > 0), "max_sequences", "at least 1"),
        ])?;
        self.optimizer.check()?;
        if let Some(critic) = &self.critic {
            critic.optimizer.check()?;
        }
        let critic = self.critic.as_ref().and_then(|critic| critic.folder.as_ref());
        let folders = [Some(&self.policy), self.reference.as_ref(), critic].into_iter().flatten();
        for path in folders.chain(&self.teachers) {
            check_absolute(path)?;
        }
        Ok(())
    }
}

/// The first of some settings that is not as it must be.
fn find_bad(checks: &[(bool, &str, &str)]) -> Result<(), MessageError> {
    match checks.iter().find(|(is_good, ..)| !is_good) {
        None => Ok(()),
        Some((_, name, range)) => Err(MessageError(format!("`{name}` must be {range}"))),
    }
}

fn check_absolute(path: &Path) -> Result<(), MessageError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(MessageError(format!("the path {} is not absolute", path.display())))
}

/// Sizes of a learner's networks, the steps of its policy's optimizer, and whether prompts are shared.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct NetworksAnswer {
    policy: NetworkSizes,
    critic: Option<NetworkSizes>,
    num_steps: u64,
    #[serde(default)]
    shares_prompts: bool,
}

impl NetworksAnswer {
    fn of(info: &LearnerInfo) -> Self {
        let &LearnerInfo { policy, critic, num_steps, shares_prompts, .. } = info;
        Self { policy, critic, num_steps, shares_prompts }
    }

    fn note(self, info: &mut LearnerInfo) {
        let Self { policy, critic, num_steps, shares_prompts } = self;
        *info = LearnerInfo { shares_prompts, policy, critic, num_steps, ..std::mem::take(info) };
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct OpenAnswer {
    incarnation: String,
    /// Number format that passes compute in.
    dtype: String,
    /// Whether it kept its loaded state.
    #[serde(default)]
    adopted: bool,
    /// If it holds a checkpoint unchanged, the CRC-32 of its files by name.
    #[serde(default)]
    holds: Option<BTreeMap<String, Hexadecimal>>,
    /// Operations of training, and the peak of a rank's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    work: Option<TrainingWork>,
    #[serde(flatten)]
    networks: NetworksAnswer,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct InfoAnswer {
    protocol: String,
    implementation: String,
    incarnation: Option<String>,
    seq: u64,
    num_ranks: usize,
    device: String,
    capabilities: Capabilities,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Capabilities {
    critic: bool,
    lora: bool,
    publish: Vec<String>,
    generate: bool,
    dtypes: Vec<String>,
    max_body_bytes: u64,
    /// Whether it knows the whole distribution that a token is drawn from.
    #[serde(default = "yes")]
    entropy: bool,
    /// Whether its saved files hold weights.
    #[serde(default = "yes")]
    weights: bool,
    /// Whether it gives a network's likeliest tokens, and learns from log-probabilities of given ones.
    #[serde(default)]
    candidates: bool,
}

fn yes() -> bool {
    true
}

impl InfoAnswer {
    /// Why a learner with these capabilities cannot be opened for a run that publishes this way, and
    /// the fix. `entropy`: the key of the run that needs entropies; `distills`: its loss compares with a
    /// teacher's likeliest tokens.
    fn find_unfit(
        &self,
        request: &OpenRequest,
        publish: Option<PublishMode>,
        entropy: Option<&str>,
        distills: bool,
    ) -> Option<(String, String)> {
        let Self { implementation, capabilities, .. } = self;
        let unfit = |message: &str, hint: &str| Some((message.to_owned(), hint.to_owned()));
        if self.protocol != PROTOCOL {
            let message = format!("it speaks {}, this build {PROTOCOL}", self.protocol);
            return unfit(&message, "take the learner from the same build as `tamis`");
        }
        if !request.options.is_empty() && implementation.ends_with(" native") {
            return unfit(
                &format!("it is {implementation}, and takes no settings of PyTorch"),
                "set `learner.backend: native`, or name a learner that `python -m tamis.learner` started",
            );
        }
        if request.generation.is_some() && !capabilities.generate {
            return unfit(
                &format!("it does not sample ({implementation}), as `rollout.backend: learner` asks"),
                "sample on the built-in engine (`rollout.backend: native`) or at servers (`rollout.backend: vllm`)",
            );
        }
        if request.critic.is_some() && !capabilities.critic {
            return unfit(
                &format!("it trains no critic ({implementation}), which `objective.advantage.kind` needs"),
                "choose an advantage without a critic, such as `grpo`, or another learner",
            );
        }
        if !request.teachers.is_empty() && !capabilities.weights {
            return unfit(
                &format!("it loads no teacher ({implementation}), as `teacher` asks"),
                "take the policy without its adapter as the teacher (`teacher: [{}]`), or one at `servers`",
            );
        }
        if let Some(key) = entropy.filter(|_| !capabilities.entropy) {
            return unfit(
                &format!("it gives no entropies ({implementation}), which `{key}` needs"),
                &format!("choose another `{key}`, or another learner"),
            );
        }
        if distills && !capabilities.candidates {
            return unfit(
                &format!(
                    "it gives no log-probabilities of a teacher's likeliest tokens ({implementation}), which \
                     `objective.distillation` needs"
                ),
                "compare the sampled tokens (`objective.advantage.kind: on_policy_distillation`), or take another learner",
            );
        }
        let peft = "install peft beside its PyTorch (scripts/install-torch does)";
        if request.options.contains_key("lora") && !capabilities.lora {
            return unfit(
                &format!("it trains no adapters ({implementation}), as `learner.lora` asks"),
                &format!("{peft}, or remove `learner.lora`"),
            );
        }
        let mode = publish.filter(|mode| !capabilities.publish.contains(&mode.to_string()))?;
        let message = format!("it does not publish as `publish.mode: {mode}` asks ({implementation})");
        match mode {
            PublishMode::Folder => unfit(&message, "sample in it (`rollout.backend: learner`)"),
            PublishMode::Adapter => unfit(&message, &format!("{peft}, or set `publish.mode: folder`")),
            PublishMode::Ipc | PublishMode::Nccl => {
                unfit(&message, "set `publish.mode: folder`, or start it where PyTorch finds a GPU")
            }
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardRequest {
    network: Network,
    #[serde(default = "one")]
    sharpness: f64,
    /// Number of likeliest tokens that are wanted at every place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    top: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    images: Option<Vec<Vec<String>>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldRequest {
    network: Trained,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    images: Option<Vec<Vec<String>>>,
}

fn one() -> f64 {
    1.0
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkRequest {
    network: Trained,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackwardRequest {
    #[serde(default)]
    discard: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRequest {
    network: Trained,
    learning_rate: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct StepAnswer {
    skipped: bool,
    num_steps: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CopyRequest {
    to: CopyTo,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyRequest {}

#[derive(Debug, Default, Serialize, Deserialize)]
struct CheckAnswer {
    not_finite: Option<NotFinite>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishRequest {
    version: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SaveRequest {
    folder: PathBuf,
    content: WireSaveContent,
    #[serde(default)]
    dtype: SaveDtype,
    #[serde(default)]
    untied: bool,
}

/// [`SaveContent`] without its fields, which lie beside it on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireSaveContent {
    Weights,
    Adapter,
    Handles,
    Transfer,
    Checkpoint,
}

impl SaveRequest {
    fn new(folder: &Path, content: SaveContent) -> Self {
        let (content, dtype, untied) = match content {
            SaveContent::Weights { untied, dtype } => (WireSaveContent::Weights, dtype, untied),
            SaveContent::Adapter => (WireSaveContent::Adapter, SaveDtype::F32, false),
            SaveContent::Handles { untied } => (WireSaveContent::Handles, SaveDtype::F32, untied),
            SaveContent::Transfer { untied, dtype } => (WireSaveContent::Transfer, dtype, untied),
            SaveContent::Checkpoint { dtype } => (WireSaveContent::Checkpoint, dtype, false),
        };
        Self { folder: folder.to_owned(), content, dtype, untied }
    }

    fn content(&self) -> SaveContent {
        let Self { dtype, untied, .. } = *self;
        match self.content {
            WireSaveContent::Weights => SaveContent::Weights { untied, dtype },
            WireSaveContent::Adapter => SaveContent::Adapter,
            WireSaveContent::Handles => SaveContent::Handles { untied },
            WireSaveContent::Transfer => SaveContent::Transfer { untied, dtype },
            WireSaveContent::Checkpoint => SaveContent::Checkpoint { dtype },
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadRequest {
    folder: PathBuf,
    content: LoadContent,
}

/// Settings of `generate`; samples are in columns.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GenerateRequest {
    seconds: f64,
    /// How samples are drawn; each prompt names one of these.
    #[serde(default)]
    drawing: Vec<Drawing>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct GenerateAnswer {
    num_open: usize,
    #[serde(default)]
    refused: Vec<RefusedSample>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ErrorAnswer {
    error: ErrorBody,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ErrorBody {
    kind: String,
    message: String,
    #[serde(default)]
    hint: Option<String>,
    /// The number of the call that was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expected: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    /// The operation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<DiskOperation>,
    /// Number that Linux has for the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn a_learner_is_refused_for_what_it_cannot_do() {
        let can = Capabilities {
            critic: true,
            lora: true,
            publish: ["folder", "adapter", "ipc", "nccl"].map(str::to_owned).to_vec(),
            generate: true,
            dtypes: vec!["f32".to_owned()],
            max_body_bytes: 1 << 30,
            entropy: true,
            weights: true,
            candidates: true,
        };
        let constants = WireOptimizer::new(AdamWConfig::default(), None);
        let request = OpenRequest {
            policy: PathBuf::from("/p"),
            temperature: 1.0,
            optimizer: constants,
            critic: Some(WireCritic { folder: None, optimizer: constants }),
            reference: None,
            teachers: Vec::new(),
            recompute_activations: false,
            orphan_timeout: None,
            generation: Some(WireGeneration { max_sequences: 1 }),
            adopt: None,
            options: Map::from_iter([("lora".to_owned(), json!({"rank": 1}))]),
        };
        let unfit = |implementation: &str, capabilities: &Capabilities, publish| {
            let known = InfoAnswer {
                protocol: PROTOCOL.to_owned(),
                implementation: implementation.to_owned(),
                incarnation: None,
                seq: 0,
                num_ranks: 1,
                device: "here".to_owned(),
                capabilities: capabilities.clone(),
            };
            known
                .find_unfit(&request, publish, Some("filter.metric"), true)
                .map(|(message, hint)| format!("{message}\n  hint: {hint}"))
        };
        for mode in [PublishMode::Folder, PublishMode::Adapter, PublishMode::Ipc, PublishMode::Nccl] {
            assert_eq!(unfit("mine 1", &can, Some(mode)), None);
        }
        let of =
            |capabilities: Capabilities, publish| unfit("mine 1", &capabilities, publish).unwrap_or_default();
        let found = [
            unfit("tamis 0.1.0 native", &can, None).unwrap_or_default(),
            of(Capabilities { generate: false, ..can.clone() }, None),
            of(Capabilities { critic: false, ..can.clone() }, None),
            of(Capabilities { entropy: false, ..can.clone() }, None),
            of(Capabilities { candidates: false, ..can.clone() }, None),
            of(Capabilities { lora: false, ..can.clone() }, None),
            of(Capabilities { publish: Vec::new(), ..can.clone() }, Some(PublishMode::Folder)),
            of(
                Capabilities { publish: vec!["folder".to_owned()], ..can.clone() },
                Some(PublishMode::Adapter),
            ),
            of(Capabilities { publish: vec!["folder".to_owned()], ..can.clone() }, Some(PublishMode::Ipc)),
            of(Capabilities { publish: vec!["folder".to_owned()], ..can.clone() }, Some(PublishMode::Nccl)),
        ];
        // A learner that does not list these capabilities has them, but no candidates.
        let silent = json!({"critic": true, "lora": true, "publish": [], "generate": true, "dtypes": ["f32"],
            "max_body_bytes": 1});
        let silent: Capabilities = serde_json::from_value(silent).expect("capabilities");
        assert!(silent.entropy && silent.weights && !silent.candidates);
        // A learner that samples itself publishes nothing.
        assert_eq!(unfit("mine 1", &Capabilities { publish: Vec::new(), ..can }, None), None);
        insta::assert_snapshot!(found.join("\n"), @r#"
it is tamis 0.1.0 native, and takes no settings of PyTorch
  hint: set `learner.backend: native`, or name a learner that `python -m tamis.learner` started
it does not sample (mine 1), as `rollout.backend: learner` asks
  hint: sample on the built-in engine (`rollout.backend: native`) or at servers (`rollout.backend: vllm`)
it trains no critic (mine 1), which `objective.advantage.kind` needs
  hint: choose an advantage without a critic, such as `grpo`, or another learner
it gives no entropies (mine 1), which `filter.metric` needs
  hint: choose another `filter.metric`, or another learner
it gives no log-probabilities of a teacher's likeliest tokens (mine 1), which `objective.distillation` needs
  hint: compare the sampled tokens (`objective.advantage.kind: on_policy_distillation`), or take another learner
it trains no adapters (mine 1), as `learner.lora` asks
  hint: install peft beside its PyTorch (scripts/install-torch does), or remove `learner.lora`
it does not publish as `publish.mode: folder` asks (mine 1)
  hint: sample in it (`rollout.backend: learner`)
it does not publish as `publish.mode: adapter` asks (mine 1)
  hint: install peft beside its PyTorch (scripts/install-torch does), or set `publish.mode: folder`
it does not publish as `publish.mode: ipc` asks (mine 1)
  hint: set `publish.mode: folder`, or start it where PyTorch finds a GPU
it does not publish as `publish.mode: nccl` asks (mine 1)
  hint: set `publish.mode: folder`, or start it where PyTorch finds a GPU
"#);
    }
}
