//! vLLM's HTTP interface: token ids in and out, and the routes that change its weights.
//!
//! Written against a real 0.32.0 server, whose answers the tests read. The differences of 0.33 come from its
//! source and were tested only with fakes: while it is paused with `abort` or `wait` it refuses new requests
//! (503 `engine_paused`), which 0.32 queues.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::parameters::{ParameterError, extend, not_supported, refuse_ours};
use super::{Ask, Call, Fault, FaultClass, Finish, HttpAnswer, LabelSpan, WireCompletion, prometheus};
use crate::generator::{InFlight, Sampling};

/// The two sampling interfaces of vLLM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// `/inference/v1/generate`: tokens in and out, with the versions of the weights. Needs
    /// `--enable-scale-out`.
    Generate,
    /// `/v1/completions` with token ids: does not report weights.
    Completions,
}

/// Parameters of the generate route beside `sampling_params`, not in it.
const BESIDE: [&str; 5] = ["cache_salt", "priority", "kv_transfer_params", "features", "lora_name"];

/// Lowest temperature that vLLM accepts unchanged; it silently raises lower ones to this.
const LOWEST_TEMPERATURE: f64 = 0.01;

/// Refuses what vLLM would not do, or not as meant.
pub fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError> {
    refuse_ours(sampling, extra, &[])?;
    if sampling.temperature > 0.0 && sampling.temperature < LOWEST_TEMPERATURE {
        let what = format!("temperature {}", sampling.temperature);
        return Err(not_supported("vllm", &what, "it samples at 0.01 instead; use 0 for greedy decoding"));
    }
    Ok(())
}

/// The request for one sample.
pub fn sample(interface: Interface, ask: &Ask<'_>) -> Call {
    let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, max_response_length, stop, regex } =
        ask.sampling;
    // All parameters, always: a server fills missing ones from the model's generation_config.json.
    let mut parameters = Map::new();
    parameters.insert("max_tokens".to_owned(), json!(max_response_length));
    parameters.insert("temperature".to_owned(), json!(temperature));
    parameters.insert("top_k".to_owned(), json!(top_k.unwrap_or(0)));
    parameters.insert("top_p".to_owned(), json!(top_p));
    parameters.insert("min_p".to_owned(), json!(min_p));
    parameters.insert("repetition_penalty".to_owned(), json!(repetition_penalty));
    parameters.insert("stop_token_ids".to_owned(), json!(ask.end_token_ids));
    if !stop.is_empty() {
        parameters.insert("stop".to_owned(), json!(stop));
    }
    if let Some(regex) = regex {
        parameters.insert("structured_outputs".to_owned(), json!({"regex": regex}));
    }
    if let Some(seed) = ask.seed {
        // A signed 64-bit number over there.
        parameters.insert("seed".to_owned(), json!(seed >> 1));
    }
    if ask.logprobs {
        parameters.insert("logprobs".to_owned(), json!(0));
    }
    let mut body = Map::new();
    if let Some(model) = ask.model {
        body.insert("model".to_owned(), json!(model));
    }
    body.insert("request_id".to_owned(), json!(ask.request_id));
    if let Some(salt) = ask.cache_salt {
        body.insert("cache_salt".to_owned(), json!(salt));
    }
    if let Some(key) = ask.key {
        body.insert("tamis".to_owned(), json!({"key": key.to_string()}));
    }
    match interface {
        Interface::Generate => {
            extend(&mut parameters, ask.extra, |name| !BESIDE.contains(&name));
            extend(&mut body, ask.extra, |name| BESIDE.contains(&name));
            body.insert("token_ids".to_owned(), json!(ask.prompt));
            if !ask.images.is_empty() {
                let part = |path: &String| json!({"type": "image_url", "url": file_url(path)});
                body.insert("content_parts".to_owned(), ask.images.iter().map(part).collect());
                // The tokens that it made of them are compared with those that are learned from.
                body.insert("return_token_ids".to_owned(), json!(true));
            }
            body.insert("sampling_params".to_owned(), Value::Object(parameters));
            Call::post("/inference/v1/generate", &Value::Object(body))
        }
        Interface::Completions => {
            body.append(&mut parameters);
            extend(&mut body, ask.extra, |_| true);
            body.insert("prompt".to_owned(), json!(ask.prompt));
            body.insert("return_token_ids".to_owned(), json!(true));
            Call::post("/v1/completions", &Value::Object(body))
        }
    }
}

/// Address of a file. A server opens it if `--allowed-local-media-path` permits.
fn file_url(path: &str) -> String {
    let mut url = "file://".to_owned();
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                url.push(char::from(byte));
            }
            _ => {
                url.push('%');
                url.extend(
                    [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])),
                );
            }
        }
    }
    url
}

/// The server's ids of one of our requests: in its answer, and for an abort.
pub fn server_id(interface: Interface, request_id: &str) -> (String, String) {
    match interface {
        Interface::Generate => {
            let id = format!("generate-tokens-{request_id}");
            (id.clone(), id)
        }
        // One answer may hold several prompts, and each of them is a request inside.
        Interface::Completions => (format!("cmpl-{request_id}"), format!("cmpl-{request_id}-0")),
    }
}

#[derive(Deserialize)]
struct Body {
    #[serde(alias = "id")]
    request_id: Option<String>,
    choices: Vec<Choice>,
    usage: Option<Usage>,
    /// Only at the generate route: the prompt as the model read it.
    prompt_token_ids: Option<Vec<i64>>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Choice {
    token_ids: Option<Vec<i64>>,
    text: Option<String>,
    finish_reason: Option<String>,
    weight_versions: Option<Vec<LabelSpan>>,
    logprobs: Option<Logprobs>,
    tamis: Option<OfTamis>,
}

/// Additional fields of `tamis serve`.
#[derive(Deserialize)]
struct OfTamis {
    entropy: Option<f64>,
}

/// Both spellings: a list of tokens (`generate`, chat) and lists of numbers (completions).
#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<TokenLogprob>>,
    token_logprobs: Option<Vec<Option<f64>>>,
}

#[derive(Deserialize)]
struct TokenLogprob {
    logprob: Option<f64>,
    token_id: Option<i64>,
}

/// Reads an answer to [`sample`], of either interface: one completion per choice.
pub fn read(answer: &HttpAnswer) -> Result<Vec<WireCompletion>, Fault> {
    let Body { request_id, choices, usage, prompt_token_ids } = answer.json()?;
    let is_only = choices.len() == 1;
    let num_counted = usage.and_then(|usage| usage.completion_tokens).filter(|_| is_only);
    let one = |choice: Choice| {
        if let Some(Logprobs { content: Some(listed), .. }) = &choice.logprobs {
            let ids = choice.token_ids.as_deref().unwrap_or_default();
            let other = ids.iter().zip(listed).position(|(&id, one)| one.token_id.is_some_and(|of| of != id));
            if let Some(place) = other {
                let detail = format!("the log-probability of token {place} is of another token");
                return Err(Fault::new(FaultClass::TokenCount, detail));
            }
        }
        let logprobs = choice.logprobs.and_then(|logprobs| match logprobs {
            Logprobs { content: Some(listed), .. } => {
                Some(listed.into_iter().map(|one| one.logprob).collect())
            }
            Logprobs { token_logprobs, .. } => token_logprobs,
        });
        Ok(WireCompletion {
            request_id: request_id.clone(),
            token_ids: choice.token_ids,
            logprobs,
            text: choice.text,
            finish: choice.finish_reason.as_deref().map(Finish::from_name),
            spans: choice.weight_versions,
            num_counted,
            entropy: choice.tamis.and_then(|of| of.entropy),
            prompt_token_ids: prompt_token_ids.clone(),
        })
    };
    choices.into_iter().map(one).collect()
}

/// The only completion of an answer to one sample.
pub fn only(completions: Vec<WireCompletion>) -> Result<WireCompletion, Fault> {
    let num = completions.len();
    let mut completions = completions.into_iter();
    match (completions.next(), completions.next()) {
        (Some(completion), None) => Ok(completion),
        _ => Err(Fault::new(FaultClass::BadShape, format!("{num} choices, one was asked for"))),
    }
}

/// Aborts requests, by the server's names for them. The server ignores unknown names.
pub fn abort(interface: Interface, server_ids: &[String]) -> Call {
    let body = json!({"request_ids": server_ids});
    match interface {
        Interface::Generate => Call::post("/inference/v1/abort_requests", &body),
        // Only the development route reaches completions; without VLLM_SERVER_DEV_MODE=1 closing the
        // connection does.
        Interface::Completions => Call::post("/abort_requests", &body),
    }
}

/// Stops generation. `keep` (running requests continue after [`resume`]), `wait` (they end first) or
/// `abort`.
pub fn pause(in_flight: InFlight) -> Call {
    Call::post_empty(&format!("/pause?mode={in_flight}"))
}

/// Resumes after [`pause`].
pub fn resume() -> Call {
    Call::post_empty("/resume")
}

/// Loads a folder in Hugging Face layout. Always with the path: without one the last path is loaded again. A
/// wrong path is answered with 500, and the next sample kills the server, so the folder is to be looked at
/// first.
pub fn reload(folder: &str) -> Call {
    let body = json!({"method": "reload_weights", "kwargs": {"weights_path": folder}});
    Call::post("/collective_rpc", &body)
}

/// Loads the adapter in a folder as a model of a name that none has yet. In place of another (`load_inplace`)
/// vLLM 0.32 would read its files again at every pass.
pub fn load_adapter(folder: &str, name: &str) -> Call {
    Call::post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": folder}))
}

/// Forgets the adapter of that name; samples in flight still end with it.
pub fn unload_adapter(name: &str) -> Call {
    Call::post("/v1/unload_lora_adapter", &json!({"lora_name": name}))
}

/// Forgets cached prefixes, which a reload does not; those of running requests too, which otherwise keep it
/// from happening.
pub fn reset_prefix_cache() -> Call {
    Call::post_empty("/reset_prefix_cache?reset_running_requests=true")
}

/// Reads the answer to [`reset_prefix_cache`]: whether it happened. A busy server answers 200 and
/// `false`.
pub fn read_reset(answer: &HttpAnswer) -> Result<bool, Fault> {
    #[derive(Deserialize)]
    struct Reset {
        success: bool,
    }
    answer.json::<Reset>().map(|reset| reset.success)
}

/// Names the weights; a reload does not.
pub fn set_label(label: &str) -> Call {
    Call::post("/update_weight_version", &json!({"new_version": label}))
}

/// Requests the name of the weights.
pub fn label() -> Call {
    Call::get("/weight_info")
}

/// Reads the answer to [`label`].
pub fn read_label(answer: &HttpAnswer) -> Result<String, Fault> {
    #[derive(Deserialize)]
    struct Info {
        weight_version: String,
    }
    answer.json::<Info>().map(|info| info.weight_version)
}

/// Requests the name of the server's program.
pub fn program() -> Call {
    Call::get("/version")
}

/// Reads the answer to [`program`]: whether it is `tamis serve`, which samples by our keys; and vLLM's
/// release.
pub fn read_program(answer: &HttpAnswer) -> Result<(bool, Option<String>), Fault> {
    #[derive(Deserialize)]
    struct Version {
        server: Option<String>,
        #[serde(default)]
        keys: bool,
        version: Option<String>,
    }
    let Version { server, keys, version } = answer.json()?;
    Ok((server.as_deref() == Some("tamis") && keys, version))
}

/// A model as a server describes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServedModel {
    /// Id of the model in requests.
    pub id: String,
    /// Longest prompt and completion together, in tokens; `None` if it is not reported.
    pub max_model_len: Option<usize>,
}

/// Requests the list of models.
pub fn models() -> Call {
    Call::get("/v1/models")
}

/// Reads the answer to [`models`].
pub fn read_models(answer: &HttpAnswer) -> Result<Vec<ServedModel>, Fault> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<ServedModel>,
    }
    answer.json::<Models>().map(|models| models.data)
}

/// Load figures that a server reports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    /// Requests being generated.
    pub running: Option<f64>,
    /// Requests that wait for room.
    pub waiting: Option<f64>,
}

/// Requests its load.
pub fn metrics() -> Call {
    Call::get("/metrics")
}

/// Reads the answer to [`metrics`]; a figure that is not there is `None`.
pub fn read_metrics(answer: &HttpAnswer) -> Result<Figures, Fault> {
    answer.success()?;
    let text = String::from_utf8_lossy(&answer.body);
    Ok(Figures {
        running: prometheus::sum(&text, "vllm:num_requests_running"),
        waiting: prometheus::sum(&text, "vllm:num_requests_waiting"),
    })
}

/// Asks for the log-probability of every token of a text, one more token being generated as there must be
/// one.
pub fn score(interface: Interface, model: Option<&str>, request_id: &str, token_ids: &[u32]) -> Call {
    score_with_top(interface, model, request_id, token_ids, 0)
}

/// As [`score`], and the `num_top` likeliest tokens at every place.
pub fn score_with_top(
    interface: Interface,
    model: Option<&str>,
    request_id: &str,
    token_ids: &[u32],
    num_top: usize,
) -> Call {
    let mut body = json!({"request_id": request_id});
    if let (Some(model), Some(body)) = (model, body.as_object_mut()) {
        body.insert("model".to_owned(), json!(model));
    }
    match interface {
        Interface::Generate => {
            body["token_ids"] = json!(token_ids);
            body["sampling_params"] = json!({"max_tokens": 1, "temperature": 0, "prompt_logprobs": num_top});
            Call::post("/inference/v1/generate", &body)
        }
        Interface::Completions => {
            body["prompt"] = json!(token_ids);
            body["max_tokens"] = json!(1);
            body["temperature"] = json!(0);
            body["prompt_logprobs"] = json!(num_top);
            Call::post("/v1/completions", &body)
        }
    }
}

/// Reads the answer to [`score`]: `log_softmax(logits)` of each token but the first, which has none \[T
/// - 1\].
pub fn read_scores(answer: &HttpAnswer, token_ids: &[u32]) -> Result<Vec<f64>, Fault> {
    let scores = read_scores_with_top(answer, token_ids, 0)?;
    Ok(scores.into_iter().map(|score| score.logprob).collect())
}

/// A token's score.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenScore {
    /// `log_softmax(logits)` of the token.
    pub logprob: f64,
    /// The likeliest tokens at its place with theirs, the likeliest first, of equal ones the first in the
    /// vocabulary.
    pub top: Vec<(u32, f64)>,
}

/// Reads the answer to [`score_with_top`]: the score of each token but the first, which has none \[T - 1\],
/// with `num_top` likeliest tokens.
pub fn read_scores_with_top(
    answer: &HttpAnswer,
    token_ids: &[u32],
    num_top: usize,
) -> Result<Vec<TokenScore>, Fault> {
    #[derive(Deserialize)]
    struct Scored {
        prompt_logprobs: Option<PromptLogprobs>,
        choices: Vec<ScoredChoice>,
    }
    #[derive(Deserialize)]
    struct ScoredChoice {
        prompt_logprobs: Option<PromptLogprobs>,
    }
    type Listed = Option<HashMap<String, OneLogprob>>;
    type PromptLogprobs = Vec<Listed>;
    #[derive(Deserialize)]
    struct OneLogprob {
        logprob: Option<f64>,
    }
    let scored: Scored = answer.json()?;
    let listed = scored
        .prompt_logprobs
        .or_else(|| scored.choices.into_iter().next().and_then(|choice| choice.prompt_logprobs))
        .ok_or_else(|| {
            Fault::new(FaultClass::BadShape, "no prompt_logprobs, although they were asked for")
        })?;
    if listed.len() != token_ids.len() {
        let detail = format!("{} prompt_logprobs of {} tokens", listed.len(), token_ids.len());
        return Err(Fault::new(FaultClass::TokenCount, detail));
    }
    let one = |(place, (id, listed)): (usize, (&u32, Listed))| {
        let listed = listed.unwrap_or_default();
        let logprob = listed.get(&id.to_string()).and_then(|one| one.logprob).ok_or_else(|| {
            Fault::new(FaultClass::LogprobOutOfRange, format!("no log-probability of prompt token {place}"))
        })?;
        let known = |(id, one): (&String, &OneLogprob)| Some((id.parse::<u32>().ok()?, one.logprob?));
        let mut top: Vec<(u32, f64)> = listed.iter().filter_map(known).collect();
        // The token itself is listed, too, wherever it ranks.
        top.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        if top.len() < num_top {
            let detail = format!(
                "{found} of the {num_top} likeliest tokens that were asked for, at prompt token {place}",
                found = top.len()
            );
            return Err(Fault::new(FaultClass::BadShape, detail));
        }
        top.truncate(num_top);
        Ok(TokenScore { logprob, top })
    };
    token_ids.iter().zip(listed).enumerate().skip(1).map(one).collect()
}

/// Requests one token with only one allowed: its log-probability is exactly 0 if a server reports the
/// distribution that the token was drawn from.
pub fn ask_mode(interface: Interface, model: Option<&str>, request_id: &str, token_id: u32) -> Call {
    let extra = json!({"allowed_token_ids": [token_id]});
    let sampling = Sampling::plain(1);
    let empty = Map::new();
    let ask = Ask {
        request_id,
        prompt: &[token_id],
        images: &[],
        prompt_text: "",
        sampling: &sampling,
        seed: None,
        key: None,
        end_token_ids: &[],
        model,
        cache_salt: None,
        logprobs: true,
        extra: extra.as_object().unwrap_or(&empty),
    };
    sample(interface, &ask)
}

/// Text for a server that takes weights in the memory of its GPU, one handle a tensor.
pub const OF_HANDLES: &str = r#"{"packed":false}"#;

/// Prepares it for weights that come as this text of an object describes.
pub fn begin_transfer(init_info: &str) -> Call {
    let body = format!("{{\"init_info\":{init_info}}}").into_bytes();
    Call { body, ..Call::post("/init_weight_transfer_engine", &Value::Null) }
}

/// Requests the number of processes that hold its weights.
pub fn world_size() -> Call {
    Call::get("/get_world_size")
}

/// Reads the answer to [`world_size`].
pub fn read_world_size(answer: &HttpAnswer) -> Result<u64, Fault> {
    #[derive(Deserialize)]
    struct World {
        world_size: u64,
    }
    answer.json::<World>().map(|world| world.world_size)
}

/// First release that takes a unique id (`nccl_unique_id_b64`).
const FIRST_WITH_UNIQUE_ID: (u32, u32) = (0, 30);

/// The NCCL of the PyTorch that each release is built with, by the first release that has it.
const NCCL_OF: [((u32, u32), &str); 2] = [((0, 33), "2.30.7"), (FIRST_WITH_UNIQUE_ID, "2.29.7")];

/// Last release with a known NCCL.
const LAST_KNOWN: (u32, u32) = (0, 33);

/// The NCCL that a release comes with, if that is known; an error is why it takes no weights over NCCL.
pub fn nccl_of(version: Option<&str>) -> Result<Option<&'static str>, String> {
    let release = version.and_then(|version| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    });
    match (version, release) {
        (Some(version), Some(release)) if release < FIRST_WITH_UNIQUE_ID => Err(format!(
            "vLLM {version} does not take a unique id of NCCL (0.30 and later do); it gets weights through a folder"
        )),
        (_, Some(release)) if release <= LAST_KNOWN => {
            Ok(NCCL_OF.iter().find(|(first, _)| release >= *first).map(|&(_, nccl)| nccl))
        }
        // A build of one's own, or a later release.
        _ => Ok(None),
    }
}

/// Announces new weights: layers are loaded anew from then on.
pub fn begin_update() -> Call {
    Call::post_empty("/start_weight_update")
}

/// Gives the tensors: the text of an object with `names`, `dtype_names`, `shapes` and, if they come as
/// handles, `ipc_handles_pickled`. Over a communicator it answers when all have come.
pub fn take_weights(update_info: &str) -> Call {
    let body = format!("{{\"update_info\":{update_info}}}").into_bytes();
    Call { body, ..Call::post("/update_weights", &Value::Null) }
}

/// Announces that all have come.
pub fn end_update() -> Call {
    Call::post("/finish_weight_update", &json!({}))
}

/// Frees the GPU's memory: the cache is gone, the weights go into main memory (level 1) or are gone too
/// (level 2). Until [`wake`] nothing can be sampled.
pub fn sleep(level: u8) -> Call {
    Call::post_empty(&format!("/sleep?level={level}"))
}

/// Takes the memory for `weights` or for the `kv_cache` again, or for both.
pub fn wake(what: Option<&str>) -> Call {
    Call::post_empty(&what.map_or_else(|| "/wake_up".to_owned(), |what| format!("/wake_up?tags={what}")))
}

/// Requests whether it sleeps.
pub fn is_sleeping() -> Call {
    Call::get("/is_sleeping")
}

/// Reads the answer to [`is_sleeping`].
pub fn read_is_sleeping(answer: &HttpAnswer) -> Result<bool, Fault> {
    #[derive(Deserialize)]
    struct Sleeping {
        is_sleeping: bool,
    }
    answer.json::<Sleeping>().map(|sleeping| sleeping.is_sleeping)
}

/// Requests whether it is paused.
pub fn is_paused() -> Call {
    Call::get("/is_paused")
}

/// Reads the answer to [`is_paused`].
pub fn read_is_paused(answer: &HttpAnswer) -> Result<bool, Fault> {
    #[derive(Deserialize)]
    struct State {
        is_paused: bool,
    }
    answer.json::<State>().map(|state| state.is_paused)
}

/// Reads the answer to [`ask_mode`].
pub fn read_mode(answer: &HttpAnswer) -> Result<super::LogprobsOf, Fault> {
    let completion = only(read(answer)?)?;
    match completion.logprobs.as_deref() {
        Some([Some(logprob)]) if logprob.abs() < 1e-6 => Ok(super::LogprobsOf::Drawn),
        Some([Some(logprob)]) if *logprob > 0.0 => {
            let detail = format!(
                "it reports {logprob} as a log-probability, which is a logit: start vLLM with --logprobs-mode processed_logprobs \
                 or raw_logprobs"
            );
            Err(Fault::new(FaultClass::Refused, detail))
        }
        Some([Some(_)]) => Ok(super::LogprobsOf::Logits),
        _ => Err(Fault::new(FaultClass::BadShape, "no log-probability of the one token that was asked for")),
    }
}
