//! A server's answer to a sample request, as read and as checked.

use super::{Fault, FaultClass};

/// The reason that a server reports for the end of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// An end token or a stop string.
    Stop,
    /// A limit on its length.
    Length,
    /// The request was aborted.
    Abort,
    /// An unknown reason.
    Other(String),
}

impl Finish {
    /// The finish reason of that name.
    pub fn from_name(name: &str) -> Self {
        match name {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "abort" => Self::Abort,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Tokens `start..end` were sampled by weights of this label.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct LabelSpan {
    /// The server's label of the weights.
    #[serde(rename = "version")]
    pub label: String,
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

/// One completion as a server answered it; nothing in it has been checked yet.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WireCompletion {
    /// Id of the request that it answers, in the server's spelling; `None` if there is none.
    pub request_id: Option<String>,
    /// Completion tokens; `None` if the server returns only text.
    pub token_ids: Option<Vec<i64>>,
    /// Log-probability of each; `None` if none were requested, or for a number that JSON lacks.
    pub logprobs: Option<Vec<Option<f64>>>,
    /// Text, if the server decodes.
    pub text: Option<String>,
    /// Why it ended; `None` if it has not.
    pub finish: Option<Finish>,
    /// Versions of the weights that sampled the tokens; `None` if the server does not report them.
    pub spans: Option<Vec<LabelSpan>>,
    /// Completion tokens by the server's own count.
    pub num_counted: Option<u64>,
    /// Mean entropy over the tokens, in nats; `tamis serve` reports it.
    pub entropy: Option<f64>,
    /// The prompt as the model read it, if that was requested.
    pub prompt_token_ids: Option<Vec<i64>>,
}

/// Facts that an answer must agree with.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The request's id in the server's spelling.
    pub request_id: &'a str,
    /// Number of token ids that there are.
    pub vocabulary: usize,
    /// Most completion tokens.
    pub limit: usize,
    /// Whether log-probabilities were requested.
    pub logprobs: bool,
}

/// A completion whose numbers agree with each other and with the request.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Completion tokens \[T\], at least one unless it was aborted.
    pub token_ids: Vec<u32>,
    /// Log-probability of each \[T\]; empty if none were requested.
    pub logprobs: Vec<f32>,
    /// `Stop`, `Length` or `Abort`.
    pub finish: Finish,
    /// Spans without gap from 0 to T; `None` if the server does not report them.
    pub spans: Option<Vec<LabelSpan>>,
    /// Mean entropy over the tokens, in nats; `None` if the server does not report it.
    pub entropy: Option<f64>,
}

/// Rounding above 0 that a log-probability may have: the logarithm of a probability that was summed in single
/// precision.
const LOGPROB_ROUNDING: f64 = 1e-6;

/// The number that vLLM's completions write for minus infinity.
const IMPOSSIBLE: f64 = -9999.0;

impl WireCompletion {
    /// Completion tokens that it cost, as far as it reports them.
    pub fn num_tokens(&self) -> u64 {
        let listed = self.token_ids.as_ref().map_or(0, Vec::len) as u64;
        self.num_counted.map_or(listed, |counted| counted.max(listed))
    }

    /// Checks it against the request.
    ///
    /// # Errors
    /// A [`Fault`] of the class of what does not hold, with the tokens that were spent.
    pub fn check(self, expected: &Expected<'_>) -> Result<Checked, Fault> {
        let spent = self.num_tokens();
        self.check_fields(expected).map_err(|fault| fault.with_tokens(spent))
    }

    fn check_fields(self, expected: &Expected<'_>) -> Result<Checked, Fault> {
        if let Some(id) = self.request_id.filter(|id| id != expected.request_id) {
            let detail = format!("asked as {}, answered {id}", expected.request_id);
            return Err(Fault::new(FaultClass::WrongRequest, detail));
        }
        let finish = match self.finish {
            Some(finish @ (Finish::Stop | Finish::Length | Finish::Abort)) => finish,
            Some(Finish::Other(name)) => {
                return Err(Fault::new(FaultClass::FinishReason, format!("finish reason {name:?}")));
            }
            None => {
                return Err(Fault::new(FaultClass::HalfBody, "the answer came before the completion's end"));
            }
        };
        let Some(token_ids) = self.token_ids else {
            return Err(Fault::new(FaultClass::BadShape, "no token ids (an answer in text only)"));
        };
        let num_tokens = token_ids.len();
        if num_tokens == 0 && finish != Finish::Abort {
            return Err(Fault::new(FaultClass::TokenCount, "a completion without a token"));
        }
        if let Some(counted) = self.num_counted.filter(|&counted| counted != num_tokens as u64) {
            let detail = format!("{num_tokens} token ids, {counted} tokens by the server's own count");
            return Err(Fault::new(FaultClass::TokenCount, detail));
        }
        if num_tokens > expected.limit {
            let detail = format!("{num_tokens} tokens, at most {} were asked for", expected.limit);
            return Err(Fault::new(FaultClass::TooLong, detail));
        }
        if finish == Finish::Length && num_tokens < expected.limit {
            let detail = format!(
                "ended at {num_tokens} of {} tokens for its length: the server's context (max_model_len) is too short",
                expected.limit
            );
            return Err(Fault::new(FaultClass::Clamped, detail));
        }
        let token_ids = token_ids
            .into_iter()
            .enumerate()
            .map(|(place, id)| {
                u32::try_from(id).ok().filter(|&id| (id as usize) < expected.vocabulary).ok_or_else(|| {
                    let detail = format!("token {place} is {id}, the vocabulary has {}", expected.vocabulary);
                    Fault::new(FaultClass::TokenOutOfVocabulary, detail)
                })
            })
            .collect::<Result<Vec<u32>, Fault>>()?;
        let logprobs =
            if expected.logprobs { check_logprobs(self.logprobs, num_tokens)? } else { Vec::new() };
        if let Some(spans) = &self.spans {
            check_spans(spans, num_tokens as u32)?;
        }
        let entropy = self.entropy.filter(|entropy| entropy.is_finite() && *entropy >= 0.0);
        Ok(Checked { token_ids, logprobs, finish, spans: self.spans, entropy })
    }
}

fn check_logprobs(logprobs: Option<Vec<Option<f64>>>, num_tokens: usize) -> Result<Vec<f32>, Fault> {
    // A server that gave up before the first token has none to list.
    let logprobs = logprobs.or_else(|| (num_tokens == 0).then(Vec::new));
    let Some(logprobs) = logprobs else {
        return Err(Fault::new(FaultClass::TokenCount, "no log-probabilities, although they were asked for"));
    };
    if logprobs.len() != num_tokens {
        let detail = format!("{num_tokens} token ids, {} log-probabilities", logprobs.len());
        return Err(Fault::new(FaultClass::TokenCount, detail));
    }
    let one = |(place, value): (usize, Option<f64>)| match value {
        Some(value) if value > IMPOSSIBLE && value <= LOGPROB_ROUNDING => Ok(value.min(0.0) as f32),
        Some(value) => Err((place, value.to_string())),
        None => Err((place, "missing".to_owned())),
    };
    logprobs.into_iter().enumerate().map(one).collect::<Result<_, _>>().map_err(|(place, value)| {
        Fault::new(FaultClass::LogprobOutOfRange, format!("the log-probability of token {place} is {value}"))
    })
}

fn check_spans(spans: &[LabelSpan], num_tokens: u32) -> Result<(), Fault> {
    let mut reached = 0;
    for span in spans {
        if span.start != reached || span.end < span.start {
            let detail =
                format!("tokens {}..{} by {:?} after token {reached}", span.start, span.end, span.label);
            return Err(Fault::new(FaultClass::Versions, detail));
        }
        reached = span.end;
    }
    if reached != num_tokens {
        let detail = format!("weight versions of {reached} of {num_tokens} tokens");
        return Err(Fault::new(FaultClass::Versions, detail));
    }
    Ok(())
}
