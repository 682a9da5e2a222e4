//! A satellite: the native engine behind HTTP, with vLLM's interface and OpenAI's (`tamis serve`).
//!
//! A request is read and checked on the HTTP side (`sampling`). Its prompts go as jobs through a channel to a
//! worker thread that owns the engine (`engine`). The answer is built from the events that come back
//! (`running`, `answer`, `stream`), in the form of its route (`completion`, `chat`, `generate`). The HTTP
//! side is one thread of async tasks; all cores belong to the engine. Control routes (`control`) send
//! commands to the same worker, which executes them between two steps. A server may have several models
//! (`models`), each with its own worker.

mod answer;
mod chat;
mod completion;
mod control;
mod engine;
mod generate;
mod local;
mod log;
mod metrics;
mod models;
mod page;
mod route;
mod running;
mod sampling;
mod slow;
mod stream;
mod text;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Map, Value};
use tamis_model::{BatchGenerator, GeneratorSettings, Model, TransformerConfig, available_memory};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::Fields;
use tamis_rollout::api::{BODIES_AT_ONCE, off_thread, seconds};
use tamis_rollout::body::{self, BodyRoom};
use tamis_rollout::connections::{AnyListener, ConnectionLimits, accept, set_or};
use tamis_text::regex_mask::RegexMasks;
use tamis_text::template::ChatTemplate;
use tamis_text::tokenizer::Tokenizer;
use thiserror::Error;

use crate::engine::{EngineCommand, Setup, Worker};
pub use crate::local::{Answered, LocalEngine};
pub use crate::log::{RequestLine, RequestLog};
use crate::metrics::ServeMetrics;
use crate::models::Models;
use crate::running::Running;
use crate::sampling::{Defaults, HowSampled};
pub use crate::slow::SlowDown;
use crate::stream::Chunks;

/// Loads a folder of weights. The error is the reason why it cannot be used.
pub type WeightLoader = Box<dyn Fn(&Path) -> Result<Model, String> + Send + Sync>;

/// The policy to serve.
pub struct ServedPolicy {
    /// Model name that clients use.
    pub name: String,
    /// Folder of the checkpoint.
    pub folder: PathBuf,
    /// Weights of the model.
    pub model: Model,
    /// Tokenizer of the model.
    pub tokenizer: Tokenizer,
    /// Chat template, if the checkpoint has one.
    pub template: Option<ChatTemplate>,
    /// Variables of the template besides those of a request.
    pub template_arguments: Map<String, Value>,
    /// Tokens at which completions end.
    pub end_token_ids: Vec<u32>,
    /// Function that loads other weights.
    pub load: WeightLoader,
}

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    /// Name or address to listen on.
    pub host: String,
    /// Port; 0 picks any free one.
    pub port: u16,
    /// Key that clients must send, if any.
    pub api_key: Option<String>,
    /// Worker threads of the engine.
    pub threads: usize,
    /// Most samples that run at once.
    pub max_num_seqs: usize,
    /// Most positions cached at once; `None`: as many as fit into half of the free memory.
    pub max_cached_tokens: Option<usize>,
    /// Most samples in flight; further requests are refused with 429.
    pub max_queued: usize,
    /// Most of the likeliest tokens that are returned of a prompt's token (`prompt_logprobs`).
    pub max_logprobs: usize,
    /// Most bytes of a request's body.
    pub max_body_bytes: usize,
    /// Most connections at once; others wait to be accepted.
    pub max_connections: usize,
    /// Longest processing time of a request.
    pub request_timeout: Duration,
    /// Longest time for a client to send a request, to read a part of an answer, or to be idle between
    /// requests.
    pub idle_timeout: Duration,
    /// Whether requests are refused with 503 while paused with `abort` or `wait`, as in vLLM 0.33. Otherwise
    /// they wait, as in 0.32.
    pub refuses_while_paused: bool,
    /// For tests.
    pub slow_down: Option<SlowDown>,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            api_key: None,
            threads: 1,
            max_num_seqs: 256,
            max_cached_tokens: None,
            max_queued: 16_384,
            max_logprobs: 20,
            max_body_bytes: 16 << 20,
            max_connections: 1024,
            request_timeout: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(75),
            refuses_while_paused: false,
            slow_down: None,
        }
    }
}

/// A server cannot start, or cannot continue.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct Fault {
    message: String,
    hint: Option<String>,
    is_usage: bool,
    #[source]
    source: Option<io::Error>,
}

impl Fault {
    fn new(message: String, source: Option<io::Error>) -> Self {
        Self { message, hint: None, is_usage: false, source }
    }

    /// No thread or event loop could be started.
    fn begin(source: io::Error) -> Self {
        Self::new("failed to begin serving".to_owned(), Some(source))
    }

    fn host(host: &str, source: Option<io::Error>) -> Self {
        Self { is_usage: true, ..Self::new(format!("failed to find an address of {host}"), source) }
    }

    /// Without a key, everybody in the network could use the server and load weights into it.
    fn open(host: &str) -> Self {
        let hint = "put a secret into a file and pass it with --api-key-file, or listen on 127.0.0.1";
        let message = format!("{host} can be reached from other machines, but no key is set");
        Self { hint: Some(hint.to_owned()), is_usage: true, ..Self::new(message, None) }
    }

    fn no_model() -> Self {
        Self { is_usage: true, ..Self::new("there is no model to serve".to_owned(), None) }
    }

    fn two_of_one_name(name: &str) -> Self {
        let hint = "name each: --served-model-name before --served-model-name after";
        let message = format!("two models are called `{name}`");
        Self { hint: Some(hint.to_owned()), is_usage: true, ..Self::new(message, None) }
    }

    fn listen(address: SocketAddr, source: io::Error) -> Self {
        let hint = (source.kind() == io::ErrorKind::AddrInUse).then(|| {
            let port = address.port();
            format!("something else listens on port {port}; choose another with --port, or 0 for any")
        });
        Self { hint, ..Self::new(format!("failed to listen on {address}"), Some(source)) }
    }

    /// Whether the command line caused it.
    pub fn is_usage(&self) -> bool {
        self.is_usage
    }

    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

/// Bytes of a typical long token.
const USUAL_TOKEN_BYTES: usize = 16;

/// A model with its engine, shared by all connections.
struct App {
    settings: ServeSettings,
    name: String,
    created: u64,
    /// Shape of the weights.
    model: TransformerConfig,
    tokenizer: Arc<Tokenizer>,
    /// Bytes of the longest text whose tokens the model may read.
    most_text_bytes: usize,
    room: BodyRoom,
    masks: RegexMasks,
    template: Option<ChatTemplate>,
    template_arguments: Map<String, Value>,
    end_token_ids: Vec<u32>,
    load: WeightLoader,
    /// Folder of the current weights.
    folder: Mutex<PathBuf>,
    /// Held while other weights are loaded.
    reloading: tokio::sync::Mutex<()>,
    metrics: Arc<ServeMetrics>,
    commands: Sender<EngineCommand>,
    number: AtomicU64,
    random: RandomState,
}

/// A server that has its port and its engines. It answers once it [runs](NativeServer::run).
pub struct NativeServer {
    listener: TcpListener,
    address: SocketAddr,
    models: Models,
    workers: Vec<JoinHandle<()>>,
}

impl NativeServer {
    /// Binds the port and starts an engine for each policy.
    ///
    /// # Errors
    /// The port or an engine cannot be started. No policies, and two of one name. An address that other
    /// machines can reach is refused without a key.
    pub fn begin(policies: Vec<ServedPolicy>, settings: &ServeSettings) -> Result<Self, Fault> {
        let (listener, address) = listen(settings)?;
        let (models, workers) = Models::begin(policies, settings)?;
        Ok(Self { listener, address, models, workers })
    }

    /// Address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is set. Requests in flight are then aborted, and answered with what they have.
    /// `log` gets every request when it has been answered.
    ///
    /// # Errors
    /// An engine failed.
    pub fn run(self, stop: &AtomicBool, log: Option<RequestLog>) -> Result<(), Fault> {
        let Self { listener, models, workers, .. } = self;
        let models = Arc::new(models);
        let runtime = runtime()?;
        let settings = &models.first().settings;
        let limits = ConnectionLimits {
            max_connections: settings.max_connections,
            idle_timeout: settings.idle_timeout,
        };
        let served: io::Result<()> = runtime.block_on(async {
            let listener = AnyListener::Tcp(tokio::net::TcpListener::from_std(listener)?);
            let answered = models.clone();
            let answer = move |request| route::answer(answered.clone(), request, log.clone());
            let ended = set_or(stop, || workers.iter().any(JoinHandle::is_finished));
            accept(listener, limits, answer, ended, || models.stop()).await;
            Ok(())
        });
        runtime.shutdown_background();
        served.map_err(Fault::begin)?;
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let reason = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
                Fault::new(format!("the engine broke off: {reason}"), None)
            })
        })
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Fault> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().build().map_err(Fault::begin)
}

fn listen(settings: &ServeSettings) -> Result<(TcpListener, SocketAddr), Fault> {
    let found = (settings.host.as_str(), settings.port).to_socket_addrs();
    let addresses: Vec<SocketAddr> =
        found.map_err(|source| Fault::host(&settings.host, Some(source)))?.collect();
    // If a name has several addresses, the first local one is used, otherwise the first.
    let address = addresses.iter().find(|address| address.ip().is_loopback()).or(addresses.first());
    let address = *address.ok_or_else(|| Fault::host(&settings.host, None))?;
    if !address.ip().is_loopback() && settings.api_key.is_none() {
        return Err(Fault::open(&settings.host));
    }
    let failed = |source| Fault::listen(address, source);
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Positions that fit into half of the free memory.
fn affordable(config: &TransformerConfig) -> usize {
    let bytes = BatchGenerator::new(config, GeneratorSettings::default()).bytes_per_cached_token().max(1);
    available_memory().map_or(usize::MAX, |free| (free / 2) as usize / bytes)
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// In the prompts.
    pub prompt_tokens: usize,
    /// In the completions.
    pub completion_tokens: usize,
}

/// An answer before it is put into HTTP.
enum Reply {
    /// 200 without a body.
    Empty,
    Json(Value),
    Written(String),
    /// Sampled output, written as JSON.
    Sampled(String, Usage),
    /// The page for a browser.
    Page,
    /// Prometheus's text.
    Text(String),
    /// Server-sent events.
    Stream(Running, Box<dyn Chunks>),
}

impl App {
    /// Starts the engine, one of `num_engines` that share the memory.
    fn begin(
        policy: ServedPolicy,
        settings: ServeSettings,
        num_engines: usize,
    ) -> Result<(Arc<Self>, JoinHandle<()>), Fault> {
        let ServedPolicy {
            name,
            folder,
            model,
            tokenizer,
            template,
            template_arguments,
            end_token_ids,
            load,
        } = policy;
        let metrics = Arc::new(ServeMetrics::default());
        metrics.set_version("default".into());
        let config = model.config().clone();
        let engine = GeneratorSettings {
            max_sequences: settings.max_num_seqs,
            max_cached_tokens: settings
                .max_cached_tokens
                .unwrap_or_else(|| affordable(&config) / num_engines.max(1)),
            shares_prompts: true,
        };
        metrics.max_cached_tokens.store(engine.max_cached_tokens, Ordering::Relaxed);
        let (commands, received) = channel();
        let setup = Setup {
            threads: settings.threads,
            model: Box::new(model),
            settings: engine,
            metrics: metrics.clone(),
            version: metrics.version(),
            slow_down: settings.slow_down,
        };
        let worker = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || Worker::new(setup, received).run())
            .map_err(Fault::begin)?;
        let tokenizer = Arc::new(tokenizer);
        let longest = tokenizer.longest_token().max(USUAL_TOKEN_BYTES);
        let app = Self {
            room: BodyRoom::new(BODIES_AT_ONCE, settings.max_body_bytes),
            most_text_bytes: config.max_position_embeddings.saturating_mul(longest),
            settings,
            name,
            created: seconds(),
            model: config,
            masks: RegexMasks::new(tokenizer.clone()),
            tokenizer,
            template,
            template_arguments,
            end_token_ids,
            load,
            folder: Mutex::new(folder),
            reloading: tokio::sync::Mutex::new(()),
            metrics,
            commands,
            number: AtomicU64::new(0),
            random: RandomState::new(),
        };
        Ok((Arc::new(app), worker))
    }

    fn max_model_len(&self) -> usize {
        self.model.max_position_embeddings
    }

    /// Folder of the current weights.
    fn folder(&self) -> MutexGuard<'_, PathBuf> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that was not returned before.
    fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// An unpredictable number.
    fn random_number(&self) -> u64 {
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.next_number());
        hasher.finish()
    }

    /// Sampling parameters of a request. `max_tokens` falls back to the route's default; `body` is the whole
    /// request.
    async fn how_sampled(
        self: &Arc<Self>,
        fields: Fields<'_>,
        body: Fields<'_>,
        max_tokens: Option<usize>,
        default_max_tokens: usize,
    ) -> Result<HowSampled, ApiError> {
        let defaults = Defaults {
            end_token_ids: &self.end_token_ids,
            vocabulary: self.model.vocab_size,
            tokenizer: &self.tokenizer,
            max_tokens: default_max_tokens,
            seed: self.random_number(),
            max_logprobs: self.settings.max_logprobs,
        };
        let mut how = HowSampled::read(fields, body, max_tokens, &defaults)?;
        if let Some(regex) = how.regex.clone() {
            let (app, ends) = (self.clone(), how.params.stop_token_ids.clone());
            let mask = off_thread(move || app.masks.get(&regex, &ends)).await?;
            how.mask = Some(mask.map_err(|error| {
                ApiError::field(fields.name("structured_outputs.regex"), error.to_string())
            })?);
        }
        Ok(how)
    }

    /// The client's id of its request, without the route's prefix: from the header, otherwise from the body,
    /// otherwise a new one.
    fn request_id(&self, fields: Fields<'_>, header: Option<&str>) -> Result<String, ApiError> {
        const LONGEST: usize = 256;
        let given = header.map_or_else(|| fields.text("request_id"), |header| Ok(Some(header)))?;
        match given {
            Some(id) if id.len() > LONGEST => {
                Err(ApiError::field("request_id", format!("`request_id` must have at most {LONGEST} bytes")))
            }
            Some(id) => Ok(id.to_owned()),
            None => Ok(format!("{:016x}", self.random_number())),
        }
    }

    /// Refuses new work while the server is stopping or paused.
    fn check_open(&self) -> Result<(), ApiError> {
        if self.metrics.is_stopping.load(Ordering::SeqCst) {
            return Err(ApiError::stopping());
        }
        if self.settings.refuses_while_paused && self.metrics.is_drained.load(Ordering::SeqCst) {
            return Err(ApiError::paused());
        }
        Ok(())
    }

    /// Tokens of a text.
    async fn encode(self: &Arc<Self>, text: String, add_special: bool) -> Result<Vec<u32>, ApiError> {
        let (app, is_short) = (self.clone(), text.len() <= SHORT);
        let work = move || app.encode_now("prompt", &text, add_special);
        if is_short { work() } else { off_thread(work).await? }
    }

    /// Tokens of the text of a field, in this thread. A text that is certainly too long for the model is
    /// refused before it is tokenised: tokenising takes 140 times its memory.
    fn encode_now(&self, field: &str, text: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        let failed = |error: tamis_core::fault::Fault| ApiError::field(field, error.to_string());
        let limit = self.max_model_len();
        let usual = limit.saturating_mul(USUAL_TOKEN_BYTES).max(body::SHORT);
        if text.len() > usual {
            // Its tokens may be long, for example of blanks. So the beginning is tokenised to find out.
            let begins = (0..=usual).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
            let fits = text.len() <= self.most_text_bytes.max(body::SHORT)
                && self.tokenizer.encode(&text[..begins], false).map_err(failed)?.len() <= limit * 2;
            if !fits {
                let message = format!(
                    "This model's maximum context length is {limit} tokens. However, your text has {} bytes, which \
                     are more tokens than that. Please reduce the length of the input.",
                    text.len()
                );
                return Err(ApiError::field(field, message));
            }
        }
        self.tokenizer.encode(text, add_special).map_err(failed)
    }
}

/// Shorter texts and lists take less time than handing them to another thread.
const SHORT: usize = 4096;
