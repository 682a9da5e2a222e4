//! Parameters of a request: our sampling in the server's words, and parameters of its own.

use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::random::Key;

use crate::generator::Sampling;

/// One sample for a server.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Our id for it, unique among the requests of all clients of the server.
    pub request_id: &'a str,
    /// Prompt tokens.
    pub prompt: &'a [u32],
    /// Paths of the images that go with the prompt. Each has one token in `prompt`, which the server makes as
    /// many as the image needs.
    pub images: &'a [String],
    /// The prompt as text, for servers that take no tokens.
    pub prompt_text: &'a str,
    /// Sampling parameters.
    pub sampling: &'a Sampling,
    /// Seed of the server's random numbers; `None` leaves it to the server.
    pub seed: Option<u64>,
    /// Our own key, for `tamis serve`: its tokens are those of the engine in this process. Instead of a seed.
    pub key: Option<Key>,
    /// Tokens that end a completion.
    pub end_token_ids: &'a [u32],
    /// The model's name at the server; `None` for its only one.
    pub model: Option<&'a str>,
    /// Separates cached prefixes of different weights.
    pub cache_salt: Option<&'a str>,
    /// Whether log-probabilities are wanted.
    pub logprobs: bool,
    /// Parameters of the server, by name (`rollout.server_parameters`).
    pub extra: &'a Map<String, Value>,
}

/// Why a server cannot carry out a setting.
pub type ParameterError = tamis_core::fault::Fault;

/// The server has no such thing: why not, and what to do instead.
pub(super) fn not_supported(server: &str, what: &str, reason: &str) -> ParameterError {
    fault!("{server} cannot do {what}: {reason}")
}

/// The distribution of a server's log-probabilities. Ours are of `softmax(logits / temperature)`,
/// before penalty and truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobsOf {
    /// The same as ours: `tamis serve`.
    Ours,
    /// `softmax(logits)`: vLLM's `--logprobs-mode raw_logprobs`.
    Logits,
    /// `softmax(penalised logits / temperature)`, before truncation: SGLang.
    Tempered,
    /// The distribution that the token was drawn from, after penalty, temperature and truncation: vLLM's
    /// `--logprobs-mode processed_logprobs`.
    Drawn,
}

impl LogprobsOf {
    /// For messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Ours => "as ours",
            Self::Logits => "of the logits without temperature (raw_logprobs)",
            Self::Tempered => "after penalties and temperature, before truncation",
            Self::Drawn => "of the truncated distribution (processed_logprobs)",
        }
    }

    /// The setting for which this server's log-probabilities are not ours; `None` if they are.
    ///
    /// `alters` is a server parameter that changes the distribution, if there is one.
    pub fn differs(self, sampling: &Sampling, alters: Option<&str>) -> Option<String> {
        let is_greedy = sampling.temperature <= 0.0;
        let has_temperature = !is_greedy && (sampling.temperature - 1.0).abs() > 0.0;
        let has_penalty = (sampling.repetition_penalty - 1.0).abs() > 0.0;
        let temperature = || has_temperature.then(|| format!("temperature {}", sampling.temperature));
        let penalty = || has_penalty.then(|| format!("repetition_penalty {}", sampling.repetition_penalty));
        let altered = || alters.map(str::to_owned);
        // Every server masks the logits before it looks at them for anything else, its "raw"
        // log-probabilities included.
        let masked = || {
            let by_server = altered().filter(|name| FORMS.contains(&name.as_str()));
            sampling.regex.is_some().then(|| "regex".to_owned()).or(by_server)
        };
        let truncation = || {
            // Greedy decoding reports the distribution before truncation.
            let top_k = sampling.top_k.filter(|&k| k > 0).map(|k| format!("top_k {k}"));
            let top_p = (sampling.top_p < 1.0).then(|| format!("top_p {}", sampling.top_p));
            let min_p = (sampling.min_p > 0.0).then(|| format!("min_p {}", sampling.min_p));
            if is_greedy { None } else { top_k.or(top_p).or(min_p) }
        };
        match self {
            Self::Ours => None,
            Self::Logits => temperature().or_else(masked),
            Self::Tempered => penalty().or_else(masked).or_else(altered),
            Self::Drawn => penalty().or_else(masked).or_else(altered).or_else(truncation),
        }
    }
}

/// Parameters that change nothing about the distribution of a token.
const HARMLESS: [&str; 10] = [
    "cache_salt",
    "priority",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "no_stop_trim",
    "session_id",
    "user",
    "lora_path",
];

/// The first parameter that may change the distribution of tokens. A name that is not known to be harmless
/// may.
pub fn find_altering(extra: &Map<String, Value>) -> Option<&str> {
    extra.keys().map(String::as_str).find(|name| !HARMLESS.contains(name))
}

/// Parameters that bind completions to a form.
const FORMS: [&str; 5] = ["structured_outputs", "regex", "json_schema", "ebnf", "structural_tag"];

/// Parameters that our settings decide, with the setting.
const OURS: [(&str, &str); 29] = [
    ("temperature", "rollout.temperature"),
    ("top_k", "rollout.top_k"),
    ("top_p", "rollout.top_p"),
    ("min_p", "rollout.min_p"),
    ("repetition_penalty", "rollout.repetition_penalty"),
    ("max_tokens", "rollout.max_response_length"),
    ("max_new_tokens", "rollout.max_response_length"),
    ("max_completion_tokens", "rollout.max_response_length"),
    ("stop", "rollout.stop"),
    ("regex", "rollout.regex"),
    ("guided_regex", "rollout.regex"),
    ("n", "rollout.n"),
    ("seed", "run.seed"),
    ("sampling_seed", "run.seed"),
    ("stop_token_ids", "the model's end tokens"),
    ("ignore_eos", "the model's end tokens"),
    ("logprobs", "tamis"),
    ("prompt_logprobs", "tamis"),
    ("return_logprob", "tamis"),
    ("return_token_ids", "tamis"),
    ("token_ids", "tamis"),
    ("content_parts", "tamis"),
    ("input_ids", "tamis"),
    ("prompt", "tamis"),
    ("messages", "tamis"),
    ("request_id", "tamis"),
    ("rid", "tamis"),
    ("stream", "tamis"),
    ("model", "rollout.server_model"),
];

/// Refuses parameters that duplicate a setting of ours. `free` are names that our settings do not set at
/// this server, so that they are allowed. A completion has at most one form.
pub(super) fn refuse_ours(
    sampling: &Sampling,
    extra: &Map<String, Value>,
    free: &[&str],
) -> Result<(), ParameterError> {
    let clash = OURS.iter().find(|(name, _)| extra.contains_key(*name) && !free.contains(name));
    let form = FORMS.iter().find(|&&name| {
        let is_regex = |value: &Value| name == "structured_outputs" && !value["regex"].is_null();
        !free.contains(&name)
            && extra.get(name).is_some_and(|value| sampling.regex.is_some() || is_regex(value))
    });
    let clash = clash.copied().or(form.map(|&name| (name, "rollout.regex")));
    clash.map_or(Ok(()), |(name, by)| {
        Err(fault!("server parameter `{name}` is set by {by}; set that instead"))
    })
}

/// Adds the members of a map to another.
pub(super) fn extend(
    target: &mut Map<String, Value>,
    extra: &Map<String, Value>,
    which: impl Fn(&str) -> bool,
) {
    target.extend(
        extra.iter().filter(|(name, _)| which(name)).map(|(name, value)| (name.clone(), value.clone())),
    );
}
