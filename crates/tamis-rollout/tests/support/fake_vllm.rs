//! A server that behaves like vLLM as far as a client can see, over a model that is a formula: every
//! token under weights w is known.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::decoder::Decoder;
use super::http::{Delivery, Handler, Reply, Request, TestServer};

/// Token ids that there are.
pub(crate) const VOCABULARY: u32 = 16;

/// The vLLM release that the fake server imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// Queues requests while it is paused.
    V032,
    /// Turns them away with 503 `engine_paused`, unless paused with `keep`.
    V033,
}

/// A requested completion.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) prompt: Vec<u32>,
    pub(crate) seed: u64,
    /// Most tokens.
    pub(crate) most: usize,
    /// Tokens that end it.
    pub(crate) ends: Vec<u32>,
    /// Label of the weights.
    pub(crate) label: String,
}

/// An answer and its delay.
pub(crate) struct Answer {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) delay: Duration,
}

/// Function that answers a request for a completion.
pub(crate) type Answers = Arc<dyn Fn(&Asked) -> Answer + Send + Sync>;

/// How a route of a transfer over a communicator is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Play {
    Works,
    Fails(&'static str),
    Hangs,
    /// The process is gone.
    Dies,
}

/// Routes of a transfer over a communicator, which may change on the way.
#[derive(Debug, Clone)]
pub(crate) struct Plays {
    pub(crate) init: Play,
    pub(crate) update: Play,
    /// Its workers hang, and with them all that asks for them, until it is started again.
    pub(crate) is_stuck: bool,
    /// It cannot end an update in which it was given nothing.
    pub(crate) wants_weights: bool,
}

#[derive(Clone)]
pub(crate) struct Behaviour {
    pub(crate) release: Release,
    /// Whether the generate route exists.
    pub(crate) scale_out: bool,
    /// Time of a completion.
    pub(crate) delay: Duration,
    /// Answers in place of the formula.
    pub(crate) answers: Option<Answers>,
    /// Decoder of the answers, a token an iteration; without one they take their delay.
    pub(crate) decoder: Option<Decoder>,
    /// Tokens of a prompt with its completion.
    pub(crate) max_model_len: usize,
    /// Log-probabilities of the logits instead of the sampled distribution.
    pub(crate) raw_logprobs: bool,
    /// Reloads do nothing: the surprise of tied embeddings.
    pub(crate) keeps_weights: bool,
    pub(crate) key: Option<String>,
    /// Was started with `VLLM_SERVER_DEV_MODE=1`.
    pub(crate) dev_mode: bool,
    /// Was started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`.
    pub(crate) takes_adapters: bool,
    /// Was started with `--weight-transfer-config '{"backend": "ipc"}'`.
    pub(crate) takes_handles: bool,
    /// Was started with `--weight-transfer-config '{"backend": "nccl"}'`.
    pub(crate) takes_transfers: Option<Arc<Mutex<Plays>>>,
    /// The version that it reports.
    pub(crate) version: &'static str,
    /// Was started with `--enable-sleep-mode`.
    pub(crate) sleeps: bool,
    /// Number of reloads that are refused, as if the folder was not seen yet.
    pub(crate) late_reloads: usize,
    /// Number of reloads that fail.
    pub(crate) failing_reloads: usize,
    /// Delay between the resume and its confirmation.
    pub(crate) resume_delay: Duration,
    /// It turns an image into so many of this token, and reports that.
    pub(crate) tokens_of_image: Option<(u32, usize)>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            release: Release::V032,
            scale_out: true,
            delay: Duration::from_millis(5),
            answers: None,
            decoder: None,
            max_model_len: 64,
            raw_logprobs: false,
            keeps_weights: false,
            key: None,
            dev_mode: true,
            takes_adapters: false,
            takes_handles: false,
            takes_transfers: None,
            version: "0.32.0",
            sleeps: false,
            late_reloads: 0,
            failing_reloads: 0,
            resume_delay: Duration::ZERO,
            tokens_of_image: None,
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// The weights, by the text of their folder's `config.json`.
    pub(crate) weights: String,
    pub(crate) label: String,
    /// The weights of each adapter by its name, by the text of its folder's `adapter_config.json`.
    pub(crate) adapters: HashMap<String, String>,
    /// The folder that was loaded last.
    folder: String,
    pub(crate) paused: Option<String>,
    /// Its workers' parameters of a communicator.
    pub(crate) init_info: Value,
    /// A begun update failed: what is loaded next is wrong, unless that update is ended first.
    pub(crate) has_parts: bool,
    /// Sleeping parts: `weights`, `kv_cache`.
    pub(crate) asleep: Vec<&'static str>,
    /// Every call but samples, in order.
    pub(crate) calls: Vec<String>,
    pub(crate) num_samples: u64,
    pub(crate) prompts: Vec<Value>,
    /// `content_parts` of the latest sample.
    pub(crate) content_parts: Value,
    running: HashMap<String, Arc<Notify>>,
}

pub(crate) struct FakeVllm {
    pub(crate) server: TestServer,
    pub(crate) state: Arc<Mutex<State>>,
}

impl FakeVllm {
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        Self::start_at(None, behaviour)
    }

    /// Like a restarted server: with the weights of its start.
    pub(crate) fn start_at(address: Option<SocketAddr>, behaviour: Behaviour) -> Self {
        let state = Arc::new(Mutex::new(State {
            weights: "initial".to_owned(),
            label: "default".to_owned(),
            ..State::default()
        }));
        let (shared, resumed) = (Arc::clone(&state), Arc::new(Notify::new()));
        let handler: Handler = Arc::new(move |request| {
            let (state, behaviour, resumed) = (Arc::clone(&shared), behaviour.clone(), Arc::clone(&resumed));
            Box::pin(async move { answer(request, state, behaviour, resumed).await })
        });
        Self { server: TestServer::start(address, handler), state }
    }
}

fn error(status: u16, kind: &str, message: &str) -> Reply {
    Reply::json(status, &json!({"error": {"message": message, "type": kind, "param": null, "code": status}}))
}

/// The log-probability of a token that a completion of weights has at a place: never the same for two
/// weights.
pub(crate) fn logprob(weights: &str, place: usize) -> f64 {
    let sum: usize = weights.bytes().map(usize::from).sum();
    -0.125 * ((sum + 3 * place) % 17 + 1) as f64
}

/// Log-probabilities of the probe text recorded in a folder of real weights; `None` if it has no text.
fn known(folder: &str) -> Option<Vec<f64>> {
    let probe = std::fs::read(format!("{folder}/{}", tamis_rollout::server::PROBE_FILE)).ok()?;
    let probe: Value = serde_json::from_slice(&probe).ok()?;
    probe["logprobs"].as_array()?.iter().map(Value::as_f64).collect()
}

async fn answer(
    request: Request,
    state: Arc<Mutex<State>>,
    behaviour: Behaviour,
    resumed: Arc<Notify>,
) -> Reply {
    let path = request.path.split('?').next().unwrap_or_default().to_owned();
    if let Some(key) = &behaviour.key
        && request.key.as_deref() != Some(&format!("Bearer {key}"))
    {
        return error(401, "Unauthorized", "a key, please");
    }
    let samples = ["/inference/v1/generate", "/v1/completions"].contains(&path.as_str());
    if !samples {
        state.lock().unwrap().calls.push(request.path.clone());
    }
    let body = request.json();
    let plays = behaviour.takes_transfers.as_ref().map(|plays| plays.lock().unwrap().clone());
    let plays_as = |is_so: fn(&Plays) -> bool| plays.as_ref().is_some_and(is_so);
    match path.as_str() {
        "/health" => Reply::empty(),
        "/init_weight_transfer_engine"
        | "/start_weight_update"
        | "/update_weights"
        | "/finish_weight_update"
        | "/collective_rpc"
            if plays_as(|plays| plays.is_stuck) =>
        {
            Reply { delivery: Delivery::Hang, ..Reply::empty() }
        }
        "/version" => Reply::json(200, &json!({"version": behaviour.version})),
        "/get_world_size" => Reply::json(200, &json!({"world_size": 2})),
        "/init_weight_transfer_engine" | "/update_weights" if plays.is_some() => {
            let plays = plays.expect("it has some");
            let is_init = path == "/init_weight_transfer_engine";
            match if is_init { plays.init } else { plays.update } {
                Play::Works if is_init => {
                    state.lock().unwrap().init_info = body["init_info"].clone();
                    Reply::json(200, &json!({"message": "done"}))
                }
                Play::Works => {
                    let mut state = state.lock().unwrap();
                    state.weights = if std::mem::take(&mut state.has_parts) {
                        "parts".to_owned()
                    } else {
                        body["update_info"]["names"][0].as_str().unwrap_or_default().to_owned()
                    };
                    Reply::json(200, &json!({"message": "Weights updated"}))
                }
                Play::Fails(why) => {
                    state.lock().unwrap().has_parts |= !is_init;
                    error(500, "InternalServerError", why)
                }
                Play::Hangs => {
                    if let Some(plays) = &behaviour.takes_transfers {
                        plays.lock().unwrap().is_stuck = true;
                    }
                    Reply { delivery: Delivery::Hang, ..Reply::empty() }
                }
                Play::Dies => Reply { delivery: Delivery::Reset, ..Reply::empty() },
            }
        }
        "/v1/models" => {
            Reply::json(200, &json!({"data": [{"id": "tiny", "max_model_len": behaviour.max_model_len}]}))
        }
        "/weight_info" => Reply::json(200, &json!({"weight_version": state.lock().unwrap().label})),
        "/metrics" => {
            let all = state.lock().unwrap().running.len();
            let waiting = behaviour.decoder.as_ref().map_or(0, Decoder::num_waiting).min(all);
            let running = all - waiting;
            let text = format!(
                "vllm:num_requests_running{{e=\"0\"}} {running}\nvllm:num_requests_waiting{{e=\"0\"}} {waiting}\n"
            );
            Reply { content_type: "text/plain", body: text.into_bytes(), ..Reply::empty() }
        }
        "/pause" if behaviour.dev_mode => {
            let mode = request.path.split("mode=").nth(1).unwrap_or("abort").to_owned();
            let state = &mut state.lock().unwrap();
            if mode == "abort" {
                state.running.values().for_each(|running| running.notify_one());
            }
            state.paused = Some(mode);
            Reply::json(200, &json!({"status": "paused"}))
        }
        "/resume" => {
            state.lock().unwrap().paused = None;
            resumed.notify_waiters();
            tokio::time::sleep(behaviour.resume_delay).await;
            Reply::json(200, &json!({"status": "resumed"}))
        }
        "/init_weight_transfer_engine" if !behaviour.takes_handles => {
            error(500, "InternalServerError", "Weight transfer not configured")
        }
        "/finish_weight_update"
            if plays_as(|plays| plays.wants_weights)
                && state.lock().unwrap().calls.iter().rev().nth(1).map(String::as_str)
                    == Some("/start_weight_update") =>
        {
            error(500, "InternalServerError", "no weights were given")
        }
        "/init_weight_transfer_engine" | "/start_weight_update" | "/finish_weight_update" => {
            state.lock().unwrap().has_parts &= path != "/finish_weight_update";
            Reply::json(200, &json!({"message": "done"}))
        }
        // The only name is that of the weights.
        "/update_weights" => {
            let name = body["update_info"]["names"][0].as_str().unwrap_or_default();
            name.clone_into(&mut state.lock().unwrap().weights);
            Reply::json(200, &json!({"message": "Weights updated"}))
        }
        "/sleep" if behaviour.sleeps => {
            let state = &mut state.lock().unwrap();
            (state.asleep, state.paused) = (vec!["weights", "kv_cache"], Some("keep".to_owned()));
            if request.path.ends_with("level=2") {
                "gone".clone_into(&mut state.weights);
            }
            Reply::json(200, &json!({"status": "sleeping"}))
        }
        "/sleep" => error(500, "InternalServerError", "Sleep mode is not enabled"),
        // As in vLLM, also true of a server that is only paused.
        "/is_sleeping" => {
            let state = state.lock().unwrap();
            Reply::json(200, &json!({"is_sleeping": !state.asleep.is_empty() || state.paused.is_some()}))
        }
        "/wake_up" => {
            let state = &mut state.lock().unwrap();
            let tag = request.path.split("tags=").nth(1);
            state.asleep.retain(|sleeps| tag.is_some_and(|tag| tag != *sleeps));
            if state.asleep.is_empty() {
                state.paused = None;
                resumed.notify_waiters();
            }
            Reply::json(200, &json!({"status": "awake"}))
        }
        // A sleeping server has no memory to load into.
        "/collective_rpc" if state.lock().unwrap().asleep.contains(&"weights") => {
            error(500, "InternalServerError", "no memory")
        }
        "/reset_prefix_cache" => {
            let tries = state.lock().unwrap().calls.iter().filter(|call| call.starts_with("/reset")).count();
            // The first is in vain.
            Reply::json(200, &json!({"success": tries > 1}))
        }
        "/is_paused" if behaviour.dev_mode => {
            Reply::json(200, &json!({"is_paused": state.lock().unwrap().paused.is_some()}))
        }
        "/collective_rpc" => {
            let tries = state.lock().unwrap().calls.iter().filter(|call| *call == "/collective_rpc").count();
            if tries <= behaviour.late_reloads {
                return error(400, "BadRequestError", "there is no such folder");
            }
            if tries <= behaviour.failing_reloads {
                return error(500, "InternalServerError", "out of memory");
            }
            let folder = body["kwargs"]["weights_path"].as_str().unwrap_or_default().to_owned();
            match std::fs::read_to_string(format!("{folder}/config.json")) {
                Ok(weights) if !behaviour.keeps_weights => {
                    let mut state = state.lock().unwrap();
                    let weights =
                        if std::mem::take(&mut state.has_parts) { "parts".to_owned() } else { weights };
                    (state.weights, state.folder) = (weights, folder);
                    Reply::json(200, &json!({"results": [null]}))
                }
                Ok(_) => Reply::json(200, &json!({"results": [null]})),
                Err(cause) => error(500, "InternalServerError", &cause.to_string()),
            }
        }
        "/v1/load_lora_adapter" if behaviour.takes_adapters => {
            let [name, folder] = ["lora_name", "lora_path"].map(|key| body[key].as_str().unwrap_or_default());
            let adapters = &mut state.lock().unwrap().adapters;
            match std::fs::read_to_string(format!("{folder}/adapter_config.json")) {
                Ok(_) if adapters.contains_key(name) => error(400, "InvalidUserInput", "already loaded"),
                Ok(weights) => {
                    adapters.insert(name.to_owned(), weights);
                    Reply { content_type: "text/plain", body: b"Success".to_vec(), ..Reply::empty() }
                }
                Err(cause) => error(404, "NotFoundError", &cause.to_string()),
            }
        }
        "/v1/unload_lora_adapter" if behaviour.takes_adapters => {
            let name = body["lora_name"].as_str().unwrap_or_default();
            match state.lock().unwrap().adapters.remove(name) {
                Some(_) => Reply::empty(),
                None => error(404, "NotFoundError", "no such adapter"),
            }
        }
        "/update_weight_version" => {
            let label = body["new_version"].as_str().unwrap_or_default().to_owned();
            state.lock().unwrap().label.clone_from(&label);
            Reply::json(200, &json!({"success": true, "new_version": label}))
        }
        "/abort_requests" | "/inference/v1/abort_requests" => {
            let state = state.lock().unwrap();
            for id in body["request_ids"].as_array().into_iter().flatten() {
                if let Some(running) = state.running.get(id.as_str().unwrap_or_default()) {
                    running.notify_one();
                }
            }
            Reply::empty()
        }
        "/inference/v1/generate" if !behaviour.scale_out => {
            error(403, "Forbidden", "start with --enable-scale-out")
        }
        "/inference/v1/generate" | "/v1/completions" => {
            sample(&path, &body, state, &behaviour, &resumed).await
        }
        _ => Reply::json(404, &json!({"detail": "Not Found"})),
    }
}

async fn sample(
    path: &str,
    body: &Value,
    state: Arc<Mutex<State>>,
    behaviour: &Behaviour,
    resumed: &Notify,
) -> Reply {
    let generates = path == "/inference/v1/generate";
    let parameters = if generates { &body["sampling_params"] } else { body };
    let prompt = if generates { &body["token_ids"] } else { &body["prompt"] };
    let ours = body["request_id"].as_str().unwrap_or("none").to_owned();
    let (answered, inside) = if generates {
        (format!("generate-tokens-{ours}"), format!("generate-tokens-{ours}"))
    } else {
        (format!("cmpl-{ours}"), format!("cmpl-{ours}-0"))
    };
    let model = body["model"].as_str().unwrap_or("tiny");
    let adapter = state.lock().unwrap().adapters.get(model).cloned();
    if model != "tiny" && adapter.is_none() {
        return error(404, "NotFoundError", &format!("The model `{model}` does not exist."));
    }
    let abort = Arc::new(Notify::new());
    loop {
        let waiting = resumed.notified();
        {
            let mut state = state.lock().unwrap();
            match (&state.paused, behaviour.release) {
                (Some(mode), Release::V033) if mode != "keep" => {
                    return error(503, "engine_paused", "paused for new weights");
                }
                (Some(_), _) => {}
                (None, _) => {
                    state.running.insert(inside.clone(), Arc::clone(&abort));
                    state.num_samples += 1;
                    state.prompts.push(prompt.clone());
                    state.content_parts = body["content_parts"].clone();
                    break;
                }
            }
        }
        waiting.await;
    }
    let (before, label_before, folder) = {
        let state = state.lock().unwrap();
        (adapter.clone().unwrap_or_else(|| state.weights.clone()), state.label.clone(), state.folder.clone())
    };
    let most = parameters["max_tokens"].as_u64().unwrap_or(16) as usize;
    let seed = parameters["seed"].as_u64().unwrap_or(0) as usize;
    // Questions about one token are quick.
    let is_question = most == 1;
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().into_iter().flatten().filter_map(|id| Some(id.as_u64()? as u32)).collect()
    };
    let answer = behaviour.answers.as_ref().filter(|_| !is_question).map(|answers| {
        let (prompt, ends) = (ids(prompt), ids(&parameters["stop_token_ids"]));
        answers(&Asked { prompt, seed: seed as u64, most, ends, label: label_before.clone() })
    });
    let decoded = async {
        match (&behaviour.decoder, &answer) {
            (Some(decoder), Some(answer)) => decoder.decode(answer.token_ids.len()).await,
            (_, Some(answer)) => tokio::time::sleep(answer.delay).await,
            (_, None) if is_question => {}
            (_, None) => tokio::time::sleep(behaviour.delay).await,
        }
    };
    let is_aborted = tokio::select! {
        () = decoded => false,
        () = abort.notified() => true,
    };
    let (after, label_after) = {
        let mut state = state.lock().unwrap();
        state.running.remove(&inside);
        (adapter.unwrap_or_else(|| state.weights.clone()), state.label.clone())
    };
    let most = if is_aborted { most.min(2) } else { most };
    // With an odd seed, ends half-way by the end token.
    let length = if seed % 2 == 1 { (most / 2).max(1) } else { most };
    let answer = answer.map(|answer| answer.token_ids);
    let length = answer.as_ref().map_or(length, |answer| answer.len().min(most));
    let forced = parameters["allowed_token_ids"][0].as_u64();
    let half = if label_before == label_after { length } else { length / 2 };
    let mut tokens = Vec::new();
    let mut logprobs = Vec::new();
    for place in 0..length {
        let is_last = place + 1 == length;
        let token = match (forced, &answer) {
            (Some(forced), _) => forced,
            (None, Some(answer)) => u64::from(answer[place]),
            (None, None) if is_last && length < most => 1,
            (None, None) => 2 + (seed + place) as u64 % 14,
        };
        tokens.push(token);
        let weights = if place < half { &before } else { &after };
        logprobs.push(if forced.is_some() && !behaviour.raw_logprobs {
            0.0
        } else {
            logprob(weights, place)
        });
    }
    let finish = if is_aborted {
        "abort"
    } else if length < most {
        "stop"
    } else {
        "length"
    };
    let usage = json!({"prompt_tokens": 1, "completion_tokens": length});
    let probe = known(&folder);
    let scored: Vec<Value> = prompt
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(place, id)| {
            if place == 0 {
                Value::Null
            } else {
                let known = probe.as_ref().and_then(|known| known.get(place - 1)).copied();
                json!({id.to_string(): {"logprob": known.unwrap_or_else(|| logprob(&after, place))}})
            }
        })
        .collect();
    let scored = if parameters["prompt_logprobs"].is_null() { Value::Null } else { json!(scored) };
    let read =
        behaviour.tokens_of_image.filter(|_| body["return_token_ids"] == true).map(|(image, times)| {
            let of = |id: u32| std::iter::repeat_n(id, if id == image { times } else { 1 });
            ids(prompt).into_iter().flat_map(of).collect::<Vec<u32>>()
        });
    if generates {
        let mut spans = vec![json!({"version": label_before, "start": 0, "end": half})];
        if half < length {
            spans.push(json!({"version": label_after, "start": half, "end": length}));
        }
        let content: Vec<Value> = tokens
            .iter()
            .zip(&logprobs)
            .map(|(token, logprob)| json!({"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}))
            .collect();
        Reply::json(
            200,
            &json!({
                "request_id": answered, "usage": usage, "prompt_logprobs": scored, "prompt_token_ids": read,
                "choices": [{
                    "index": 0, "finish_reason": finish, "token_ids": tokens, "weight_versions": spans,
                    "logprobs": {"content": content},
                }],
            }),
        )
    } else {
        Reply::json(
            200,
            &json!({
                "id": answered, "usage": usage,
                "choices": [{
                    "index": 0, "text": "", "finish_reason": finish, "token_ids": tokens, "prompt_logprobs": scored,
                    "logprobs": {"token_logprobs": logprobs},
                }],
            }),
        )
    }
}
