//! SGLang's HTTP interface, written from the source of 0.5.23; tested only with fakes and recordings.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::parameters::{ParameterError, extend, not_supported, refuse_ours};
use super::{Ask, Call, Fault, FaultClass, Finish, HttpAnswer, LabelSpan, WireCompletion};
use crate::generator::{InFlight, Sampling};

/// Parameters beside `sampling_params`, not in it.
const BESIDE: [&str; 4] = ["lora_path", "priority", "custom_logit_processor", "session_params"];

/// Refuses what SGLang would not do, or not as meant.
pub fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError> {
    refuse_ours(sampling, extra, &["repetition_penalty"])?;
    if (sampling.repetition_penalty - 1.0).abs() > 0.0 {
        return Err(not_supported(
            "sglang",
            &format!("repetition_penalty {}", sampling.repetition_penalty),
            "it counts the tokens of the completion only, not those of the prompt; if that will do, leave \
             rollout.repetition_penalty at 1 and set it under rollout.server_parameters",
        ));
    }
    Ok(())
}

/// The request for one sample.
pub fn sample(ask: &Ask<'_>) -> Call {
    let Sampling { temperature, top_k, top_p, min_p, max_response_length, stop, regex, .. } = ask.sampling;
    let mut parameters = Map::new();
    parameters.insert("max_new_tokens".to_owned(), json!(max_response_length));
    parameters.insert("temperature".to_owned(), json!(temperature));
    parameters.insert("top_k".to_owned(), top_k.filter(|&k| k > 0).map_or(json!(-1), |k| json!(k)));
    parameters.insert("top_p".to_owned(), json!(top_p));
    parameters.insert("min_p".to_owned(), json!(min_p));
    parameters.insert("repetition_penalty".to_owned(), json!(1.0));
    parameters.insert("stop_token_ids".to_owned(), json!(ask.end_token_ids));
    if !stop.is_empty() {
        parameters.insert("stop".to_owned(), json!(stop));
    }
    if let Some(regex) = regex {
        parameters.insert("regex".to_owned(), json!(regex));
    }
    if let Some(seed) = ask.seed {
        // Used only by a server with --enable-deterministic-inference, as a signed 32-bit number.
        parameters.insert("sampling_seed".to_owned(), json!(seed >> 33));
    }
    extend(&mut parameters, ask.extra, |name| !BESIDE.contains(&name));
    let mut body = Map::new();
    extend(&mut body, ask.extra, |name| BESIDE.contains(&name));
    body.insert("rid".to_owned(), json!(ask.request_id));
    body.insert("input_ids".to_owned(), json!(ask.prompt));
    body.insert("sampling_params".to_owned(), Value::Object(parameters));
    body.insert("return_logprob".to_owned(), json!(true));
    Call::post("/generate", &Value::Object(body))
}

/// Reads an answer to [`sample`].
pub fn read(answer: &HttpAnswer) -> Result<WireCompletion, Fault> {
    #[derive(Deserialize)]
    struct Body {
        text: Option<String>,
        output_ids: Option<Vec<i64>>,
        meta_info: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        id: Option<String>,
        finish_reason: Option<FinishReason>,
        completion_tokens: Option<u64>,
        weight_version: Option<Value>,
        output_token_logprobs: Option<Vec<TokenLogprob>>,
    }
    #[derive(Deserialize)]
    struct FinishReason {
        #[serde(rename = "type")]
        kind: String,
    }
    /// Log-probability, token id, text.
    #[derive(Deserialize)]
    struct TokenLogprob(Option<f64>, i64, #[expect(dead_code, reason = "the third place of the list")] Value);

    let body: Body = answer.json()?;
    let listed = body.meta_info.output_token_logprobs;
    let ids = listed.as_ref().map(|listed| listed.iter().map(|one| one.1).collect::<Vec<_>>());
    if let (Some(ids), Some(output)) = (&ids, &body.output_ids)
        && ids != output
    {
        let detail = "the log-probabilities are of other tokens than the completion's";
        return Err(Fault::new(FaultClass::TokenCount, detail).with_tokens(output.len() as u64));
    }
    let token_ids = body.output_ids.or(ids);
    let num_tokens = token_ids.as_ref().map_or(0, Vec::len) as u32;
    let label = body.meta_info.weight_version.map(|label| match label {
        Value::String(label) => label,
        other => other.to_string(),
    });
    Ok(WireCompletion {
        request_id: body.meta_info.id,
        token_ids,
        logprobs: listed.map(|listed| listed.into_iter().map(|one| one.0).collect()),
        text: body.text,
        finish: body.meta_info.finish_reason.map(|reason| Finish::from_name(&reason.kind)),
        spans: label.map(|label| vec![LabelSpan { label, start: 0, end: num_tokens }]),
        num_counted: body.meta_info.completion_tokens,
        entropy: None,
        prompt_token_ids: None,
    })
}

/// Aborts one request.
pub fn abort(request_id: &str) -> Call {
    Call::post("/abort_request", &json!({"rid": request_id}))
}

/// Stops generation: running requests return to the queue, or are aborted.
pub fn pause(in_flight: InFlight) -> Call {
    let mode = if in_flight == InFlight::Abort { "abort" } else { "retract" };
    Call::post("/pause_generation", &json!({"mode": mode}))
}

/// Resumes after [`pause`]. SGLang refuses an empty body.
pub fn resume() -> Call {
    Call::post("/continue_generation", &json!({}))
}

/// Loads a folder in Hugging Face layout, forgets cached prefixes and names the weights.
pub fn reload(folder: &str, label: &str) -> Call {
    let body = json!({"model_path": folder, "flush_cache": true, "weight_version": label});
    Call::post("/update_weights_from_disk", &body)
}

/// Reads the answer to [`reload`], which may be 200 and still report a failure.
pub fn read_reload(answer: &HttpAnswer) -> Result<(), Fault> {
    #[derive(Deserialize)]
    struct Reloaded {
        success: bool,
        message: Option<String>,
    }
    let reloaded: Reloaded = answer.json()?;
    if reloaded.success {
        return Ok(());
    }
    Err(Fault::new(FaultClass::ServerError, reloaded.message.unwrap_or_else(|| "no message".to_owned())))
}

/// Forgets cached prefixes.
pub fn flush_cache() -> Call {
    Call::post("/flush_cache", &json!({}))
}

/// Requests the name of the weights.
pub fn label() -> Call {
    Call::get("/model_info")
}

/// Asks for the log-probability of every token of a text.
pub fn score(request_id: &str, token_ids: &[u32]) -> Call {
    let body = json!({
        "rid": request_id, "input_ids": token_ids, "return_logprob": true, "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    });
    Call::post("/generate", &body)
}

/// Reads the answer to [`score`]: `log_softmax(logits)` of each token but the first \[T - 1\].
pub fn read_scores(answer: &HttpAnswer, token_ids: &[u32]) -> Result<Vec<f64>, Fault> {
    #[derive(Deserialize)]
    struct Body {
        meta_info: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        input_token_logprobs: Vec<(Option<f64>, u32, Value)>,
    }
    let listed = answer.json::<Body>()?.meta_info.input_token_logprobs;
    if !listed.iter().map(|one| &one.1).eq(token_ids) {
        return Err(Fault::new(
            FaultClass::TokenCount,
            "log-probabilities of other tokens than the prompt's",
        ));
    }
    let one = |(place, (logprob, ..)): (usize, (Option<f64>, u32, Value))| {
        logprob.ok_or_else(|| {
            Fault::new(FaultClass::LogprobOutOfRange, format!("no log-probability of prompt token {place}"))
        })
    };
    listed.into_iter().enumerate().skip(1).map(one).collect()
}
