//! The differences between kinds of servers: requests, answers, and the way in which weights get there.

use serde_json::{Map, Value};

use crate::generator::{InFlight, Sampling};
use crate::wire::vllm::{Figures, Interface, ServedModel};
use crate::wire::{
    Ask, Call, Fault, FaultClass, HttpAnswer, LogprobsOf, ParameterError, WireCompletion, openai, sglang,
    vllm,
};

/// A request to a server other than for samples.
#[derive(Debug, Clone, PartialEq)]
pub enum Control<'a> {
    /// Whether it lives.
    Health,
    /// The server's program.
    Program,
    /// The models that it serves.
    Models,
    /// Whether it is paused.
    IsPaused,
    /// The distribution of its log-probabilities.
    LogprobsMode,
    /// The label of its weights.
    Label,
    /// Its load figures.
    Figures,
    /// Stop generating, and treat running samples like this.
    Pause(InFlight),
    /// Load a folder, under a label.
    Reload(&'a str, &'a str),
    /// Load the adapter in a folder, as a model of this name.
    LoadAdapter(&'a str, &'a str),
    /// Forget the adapter of this name.
    UnloadAdapter(&'a str),
    /// How many processes hold its weights.
    CountWorkers,
    /// Prepare for weights that come as described here.
    BeginTransfer(&'a str),
    /// Announce new weights.
    BeginUpdate,
    /// Take the weights that this describes.
    TakeWeights(&'a str),
    /// All new weights have come.
    EndUpdate,
    /// Free the GPU's memory, at this level.
    Sleep(u8),
    /// Whether it sleeps.
    IsSleeping,
    /// Take memory again, for these things (`weights`, `kv_cache`) or for all.
    Wake(Option<&'static str>),
    /// Forget cached prefixes.
    ResetCache,
    /// Call the weights so.
    SetLabel(&'a str),
    /// Generate again.
    Resume,
    /// Return the log-probabilities of these tokens.
    Score(&'a [u32]),
}

/// Reading of an answer to a control request.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlReply {
    /// The request is done.
    Done,
    /// Not yet: ask again soon.
    NotYet,
    /// The models.
    Models(Vec<ServedModel>),
    /// Whether it is paused.
    IsPaused(bool),
    /// Whether it sleeps.
    IsSleeping(bool),
    /// The distribution of its log-probabilities.
    Mode(LogprobsOf),
    /// The label of the weights.
    Label(String),
    /// The load figures.
    Figures(Figures),
    /// How many processes hold its weights.
    Workers(u64),
    /// The log-probabilities.
    Scores(Vec<f64>),
}

/// One kind of server.
pub trait Protocol: Default + Send {
    /// Name of the kind in the configuration.
    const KIND: &'static str;

    /// Whether answers are text only, without ids and log-probabilities.
    const IS_TEXT_ONLY: bool = false;

    /// Hint if the routes that change weights are refused.
    const NO_CONTROL: &'static str = "";

    /// Hint if the routes that load adapters are refused; `None` if this kind of server takes none.
    const NO_ADAPTERS: Option<&'static str> = None;

    /// Hint if handles of weights in the memory of the GPU are refused; `None` if this kind of server
    /// takes none.
    const NO_HANDLES: Option<&'static str> = None;

    /// Hint if weights over a communicator are refused; `None` if this kind of server takes none.
    const NO_TRANSFER: Option<&'static str> = None;

    /// Hint if it does not go to sleep.
    const NO_SLEEP: &'static str = "";

    /// Refuses settings that it cannot carry out as meant.
    fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError>;

    /// The request for one sample.
    fn sample(&self, ask: &Ask<'_>) -> Call;

    /// Why it cannot be given prompts with images; `None` if it can.
    fn refuses_images(&self) -> Option<&'static str> {
        Some("only vLLM samples prompts with images (rollout.backend: vllm)")
    }

    /// The server's id of one of our requests in its answer.
    fn answer_id(&self, request_id: &str) -> String;

    /// Reads an answer to [`Self::sample`].
    fn read(&self, answer: &HttpAnswer) -> Result<WireCompletion, Fault>;

    /// Requests that abort samples; empty if only closing the connection does.
    fn abort(&self, request_ids: &[String]) -> Vec<Call>;

    /// Whether answers report which weights sampled which tokens. If they do not, nothing is in flight
    /// while weights change.
    fn reports_spans(&self) -> bool;

    /// The request for another operation; `None` if this kind of server does not have it, or does it
    /// along with another.
    fn control(&self, control: &Control<'_>, model: Option<&str>, request_id: &str) -> Option<Call>;

    /// Reads an answer to [`Self::control`].
    fn read_control(&mut self, control: &Control<'_>, answer: &HttpAnswer) -> Result<ControlReply, Fault>;

    /// The distribution of its log-probabilities, if that is known without asking.
    fn known_mode(&self) -> Option<LogprobsOf>;

    /// The NCCL that this server comes with, if that is known; an error is why it takes no weights over
    /// a communicator.
    fn nccl(&self) -> Result<Option<&'static str>, String> {
        Ok(None)
    }

    /// Largest mean difference of log-probabilities, in nats, due to its rounding, if that is known.
    fn rounding(&self) -> Option<f64> {
        None
    }
}

/// vLLM, see [`vllm`].
#[derive(Debug, Clone)]
pub struct Vllm {
    interface: Interface,
    /// `tamis serve`, which takes our keys and reports log-probabilities as ours.
    is_tamis: bool,
    /// The release, once it has reported it.
    release: Option<String>,
}

impl Default for Vllm {
    fn default() -> Self {
        Self { interface: Interface::Generate, is_tamis: false, release: None }
    }
}

impl Vllm {
    /// The interface in use: the one with weight versions, until the server turned out not to offer it.
    pub fn interface(&self) -> Interface {
        self.interface
    }
}

impl Protocol for Vllm {
    const KIND: &'static str = "vllm";
    const NO_CONTROL: &'static str =
        " (vLLM has the routes that change weights only with VLLM_SERVER_DEV_MODE=1)";
    const NO_ADAPTERS: Option<&'static str> = Some(
        " (vLLM takes adapters only with --enable-lora, --max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and \
         `tamis serve` takes none: `publish.mode: folder` sends whole weights)",
    );

    const NO_HANDLES: Option<&'static str> = Some(
        " (vLLM takes weights of the same GPU only with --weight-transfer-config '{\"backend\": \"ipc\"}', \
         VLLM_ALLOW_INSECURE_SERIALIZATION=1 and VLLM_SERVER_DEV_MODE=1, and `tamis serve` takes none: \
         `publish.mode: folder` sends them through files)",
    );
    const NO_TRANSFER: Option<&'static str> = Some(
        " (vLLM takes weights over NCCL only with --weight-transfer-config '{\"backend\": \"nccl\"}' and \
         VLLM_SERVER_DEV_MODE=1)",
    );
    const NO_SLEEP: &'static str = " (vLLM sleeps on GPUs only, and only with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1; \
         `rollout.sleep_level: 0` leaves it awake)";

    fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError> {
        vllm::check(sampling, extra)
    }

    fn sample(&self, ask: &Ask<'_>) -> Call {
        // A key contains all that a seed could.
        let (seed, key) = if self.is_tamis { (None, ask.key) } else { (ask.seed, None) };
        vllm::sample(self.interface, &Ask { seed, key, ..*ask })
    }

    fn refuses_images(&self) -> Option<&'static str> {
        match self.interface {
            _ if self.is_tamis => Some("`tamis serve` does not support images: use vLLM"),
            Interface::Generate => None,
            Interface::Completions => Some(
                "vLLM takes tokens with images only at /inference/v1/generate, which needs --enable-scale-out",
            ),
        }
    }

    fn answer_id(&self, request_id: &str) -> String {
        vllm::server_id(self.interface, request_id).0
    }

    fn read(&self, answer: &HttpAnswer) -> Result<WireCompletion, Fault> {
        vllm::only(vllm::read(answer)?)
    }

    fn abort(&self, request_ids: &[String]) -> Vec<Call> {
        let ids: Vec<String> = request_ids.iter().map(|id| vllm::server_id(self.interface, id).1).collect();
        vec![vllm::abort(self.interface, &ids)]
    }

    fn reports_spans(&self) -> bool {
        self.interface == Interface::Generate
    }

    fn control(&self, control: &Control<'_>, model: Option<&str>, request_id: &str) -> Option<Call> {
        Some(match control {
            Control::Health => Call::get("/health"),
            Control::Program => vllm::program(),
            Control::Models => vllm::models(),
            Control::IsPaused => vllm::is_paused(),
            // Already known.
            Control::LogprobsMode if self.is_tamis => return None,
            Control::LogprobsMode => vllm::ask_mode(self.interface, model, request_id, 1),
            Control::Label => vllm::label(),
            Control::Figures => vllm::metrics(),
            Control::Pause(in_flight) => vllm::pause(*in_flight),
            Control::Reload(folder, _) => vllm::reload(folder),
            Control::LoadAdapter(folder, name) => vllm::load_adapter(folder, name),
            Control::UnloadAdapter(name) => vllm::unload_adapter(name),
            Control::CountWorkers => vllm::world_size(),
            Control::BeginTransfer(init_info) => vllm::begin_transfer(init_info),
            Control::BeginUpdate => vllm::begin_update(),
            Control::TakeWeights(update_info) => vllm::take_weights(update_info),
            Control::EndUpdate => vllm::end_update(),
            Control::Sleep(level) => vllm::sleep(*level),
            Control::IsSleeping => vllm::is_sleeping(),
            Control::Wake(what) => vllm::wake(*what),
            Control::ResetCache => vllm::reset_prefix_cache(),
            Control::SetLabel(label) => vllm::set_label(label),
            Control::Resume => vllm::resume(),
            Control::Score(tokens) => vllm::score(self.interface, model, request_id, tokens),
        })
    }

    fn read_control(&mut self, control: &Control<'_>, answer: &HttpAnswer) -> Result<ControlReply, Fault> {
        match control {
            Control::Program => {
                (self.is_tamis, self.release) = vllm::read_program(answer)?;
                Ok(if self.is_tamis { ControlReply::Mode(LogprobsOf::Ours) } else { ControlReply::Done })
            }
            Control::Models => vllm::read_models(answer).map(ControlReply::Models),
            Control::CountWorkers => vllm::read_world_size(answer).map(ControlReply::Workers),
            Control::IsPaused => vllm::read_is_paused(answer).map(ControlReply::IsPaused),
            // 403 if the server was started without --enable-scale-out, 404 if it is older than the
            // route.
            Control::LogprobsMode
                if self.interface == Interface::Generate && matches!(answer.status, 403..=405) =>
            {
                self.interface = Interface::Completions;
                Ok(ControlReply::NotYet)
            }
            Control::LogprobsMode => vllm::read_mode(answer).map(ControlReply::Mode),
            Control::IsSleeping => vllm::read_is_sleeping(answer).map(ControlReply::IsSleeping),
            Control::Label => vllm::read_label(answer).map(ControlReply::Label),
            Control::Figures => vllm::read_metrics(answer).map(ControlReply::Figures),
            Control::ResetCache => vllm::read_reset(answer)
                .map(|happened| if happened { ControlReply::Done } else { ControlReply::NotYet }),
            Control::Score(tokens) => vllm::read_scores(answer, tokens).map(ControlReply::Scores),
            _ => answer.success().map(|()| ControlReply::Done),
        }
    }

    fn known_mode(&self) -> Option<LogprobsOf> {
        None
    }

    fn nccl(&self) -> Result<Option<&'static str>, String> {
        if self.is_tamis {
            return Err("`tamis serve` takes no weights over NCCL: it gets them through a folder".to_owned());
        }
        vllm::nccl_of(self.release.as_deref())
    }

    /// The engine of this process, maybe on a processor that rounds otherwise.
    fn rounding(&self) -> Option<f64> {
        self.is_tamis.then_some(1e-4)
    }
}

/// SGLang, see [`sglang`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Sglang;

impl Protocol for Sglang {
    const KIND: &'static str = "sglang";

    fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError> {
        sglang::check(sampling, extra)
    }

    fn sample(&self, ask: &Ask<'_>) -> Call {
        sglang::sample(ask)
    }

    fn answer_id(&self, request_id: &str) -> String {
        request_id.to_owned()
    }

    fn read(&self, answer: &HttpAnswer) -> Result<WireCompletion, Fault> {
        sglang::read(answer)
    }

    fn abort(&self, request_ids: &[String]) -> Vec<Call> {
        request_ids.iter().map(|id| sglang::abort(id)).collect()
    }

    /// One label per answer, that of its end.
    fn reports_spans(&self) -> bool {
        false
    }

    fn control(&self, control: &Control<'_>, _: Option<&str>, request_id: &str) -> Option<Call> {
        match control {
            Control::Health => Some(Call::get("/health")),
            Control::Models => Some(vllm::models()),
            Control::Label => Some(sglang::label()),
            Control::Pause(in_flight) => Some(sglang::pause(*in_flight)),
            Control::Reload(folder, label) => Some(sglang::reload(folder, label)),
            Control::ResetCache => Some(sglang::flush_cache()),
            Control::Resume => Some(sglang::resume()),
            Control::Score(tokens) => Some(sglang::score(request_id, tokens)),
            // The label goes with the reload; its metrics are off unless it was started with
            // --enable-metrics.
            Control::SetLabel(_)
            | Control::LoadAdapter(..)
            | Control::UnloadAdapter(_)
            | Control::CountWorkers
            | Control::BeginTransfer(_)
            | Control::BeginUpdate
            | Control::TakeWeights(_)
            | Control::EndUpdate
            | Control::Sleep(_)
            | Control::IsSleeping
            | Control::Wake(_)
            | Control::LogprobsMode
            | Control::Figures
            | Control::IsPaused
            | Control::Program => None,
        }
    }

    fn read_control(&mut self, control: &Control<'_>, answer: &HttpAnswer) -> Result<ControlReply, Fault> {
        match control {
            Control::Models => vllm::read_models(answer).map(ControlReply::Models),
            Control::Label => vllm::read_label(answer).map(ControlReply::Label),
            Control::Reload(..) => sglang::read_reload(answer).map(|()| ControlReply::Done),
            // 400 while something is running.
            Control::ResetCache if answer.status == 400 => Ok(ControlReply::NotYet),
            Control::Score(tokens) => sglang::read_scores(answer, tokens).map(ControlReply::Scores),
            _ => answer.success().map(|()| ControlReply::Done),
        }
    }

    fn known_mode(&self) -> Option<LogprobsOf> {
        Some(LogprobsOf::Tempered)
    }
}

/// Any server with OpenAI's completions, see [`openai`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenAi;

impl Protocol for OpenAi {
    const KIND: &'static str = "openai";
    const IS_TEXT_ONLY: bool = true;

    fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError> {
        openai::check(sampling, extra)
    }

    fn sample(&self, ask: &Ask<'_>) -> Call {
        openai::sample(ask)
    }

    fn answer_id(&self, request_id: &str) -> String {
        request_id.to_owned()
    }

    fn read(&self, answer: &HttpAnswer) -> Result<WireCompletion, Fault> {
        let read = openai::read(answer)?;
        Ok(WireCompletion {
            text: Some(read.text),
            finish: read.finish,
            num_counted: read.num_counted,
            ..WireCompletion::default()
        })
    }

    fn abort(&self, _: &[String]) -> Vec<Call> {
        Vec::new()
    }

    fn reports_spans(&self) -> bool {
        false
    }

    fn control(&self, control: &Control<'_>, _: Option<&str>, _: &str) -> Option<Call> {
        // For many servers this is the only route that shows whether they are alive.
        matches!(control, Control::Models).then(vllm::models)
    }

    fn read_control(&mut self, control: &Control<'_>, answer: &HttpAnswer) -> Result<ControlReply, Fault> {
        match control {
            Control::Models => vllm::read_models(answer).map(ControlReply::Models),
            _ => Err(Fault::new(FaultClass::Refused, "OpenAI's interface has no such request")),
        }
    }

    fn known_mode(&self) -> Option<LogprobsOf> {
        None
    }
}
