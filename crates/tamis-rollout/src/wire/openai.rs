//! The interface of any server that speaks OpenAI's completions: text in, text out.
//!
//! It has no token ids and no reliable log-probabilities, so its samples are not trained on.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::parameters::{ParameterError, extend, not_supported, refuse_ours};
use super::{Ask, Call, Fault, FaultClass, Finish, HttpAnswer, read_json, sse};
use crate::generator::Sampling;

/// Refuses settings that the interface cannot express.
pub fn check(sampling: &Sampling, extra: &Map<String, Value>) -> Result<(), ParameterError> {
    const FREE: [&str; 8] = [
        "top_k",
        "min_p",
        "repetition_penalty",
        "stop_token_ids",
        "ignore_eos",
        "structured_outputs",
        "regex",
        "guided_regex",
    ];
    refuse_ours(sampling, extra, &FREE)?;
    let reason = "OpenAI's interface has no such parameter; if the server accepts it anyway, set it under \
                  rollout.server_parameters";
    let not = |what: String| Err(not_supported("openai", &what, reason));
    match sampling {
        Sampling { top_k: Some(k), .. } if *k > 0 => not(format!("top_k {k}")),
        Sampling { min_p, .. } if *min_p > 0.0 => not(format!("min_p {min_p}")),
        Sampling { repetition_penalty, .. } if (repetition_penalty - 1.0).abs() > 0.0 => {
            not(format!("repetition_penalty {repetition_penalty}"))
        }
        Sampling { regex: Some(_), .. } => not("regex".to_owned()),
        Sampling { stop, .. } if stop.len() > 4 => {
            let what = format!("{} stop strings", stop.len());
            Err(not_supported("openai", &what, "OpenAI's interface takes four"))
        }
        _ => Ok(()),
    }
}

/// The request for one sample.
pub fn sample(ask: &Ask<'_>) -> Call {
    let Sampling { temperature, top_p, max_response_length, stop, .. } = ask.sampling;
    let mut body = Map::new();
    if let Some(model) = ask.model {
        body.insert("model".to_owned(), json!(model));
    }
    body.insert("prompt".to_owned(), json!(ask.prompt_text));
    body.insert("max_tokens".to_owned(), json!(max_response_length));
    body.insert("temperature".to_owned(), json!(temperature));
    body.insert("top_p".to_owned(), json!(top_p));
    if !stop.is_empty() {
        body.insert("stop".to_owned(), json!(stop));
    }
    if let Some(seed) = ask.seed {
        body.insert("seed".to_owned(), json!(seed >> 1));
    }
    extend(&mut body, ask.extra, |_| true);
    Call::post("/v1/completions", &Value::Object(body))
}

/// A completion in text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextCompletion {
    /// The text, stop strings left out.
    pub text: String,
    /// Why it ended; `None` if a stream broke off before its end.
    pub finish: Option<Finish>,
    /// Completion tokens by the server's own count.
    pub num_counted: Option<u64>,
}

#[derive(Deserialize)]
struct Body {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u64>,
}

/// Completions have `text`, chats `message`, parts of a chat `delta`.
#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: usize,
    text: Option<String>,
    #[serde(alias = "delta")]
    message: Option<Message>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
}

/// Reads an answer of `/v1/completions` or `/v1/chat/completions`, in one piece or in parts: the text of its
/// first choice.
pub fn read(answer: &HttpAnswer) -> Result<TextCompletion, Fault> {
    answer.success()?;
    let mut completion = TextCompletion { text: String::new(), finish: None, num_counted: None };
    let mut num_choices = 0;
    let mut absorb = |body: Body| {
        num_choices += body.choices.len();
        for choice in body.choices.into_iter().filter(|choice| choice.index == 0) {
            let text = choice.text.or_else(|| choice.message.and_then(|message| message.content));
            completion.text.push_str(&text.unwrap_or_default());
            completion.finish =
                choice.finish_reason.as_deref().map(Finish::from_name).or(completion.finish.take());
        }
        completion.num_counted =
            body.usage.and_then(|usage| usage.completion_tokens).or(completion.num_counted);
    };
    if answer.is_stream() {
        for event in sse::events(&answer.body).0 {
            absorb(read_json(event.as_bytes())?);
        }
    } else {
        absorb(read_json(&answer.body)?);
    }
    if num_choices == 0 {
        return Err(Fault::new(FaultClass::BadShape, "no choice in the answer"));
    }
    Ok(completion)
}
