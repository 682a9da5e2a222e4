//! Reads a request's sampling parameters: the fields of vLLM and OpenAI, and tamis's own random keys.

use std::sync::Arc;

use tamis_core::random::{Key, Purpose};
use tamis_model::{SamplingError, SamplingParams};
use tamis_text::regex_mask::RegexMask;
use tamis_text::tokenizer::Tokenizer;

use tamis_rollout::Sampling;
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::{Fields, Refused, is_empty, is_false, is_never, is_one, is_zero, read_stops};
use tamis_rollout::native::{StopText, engine_params};

/// Most samples of one prompt in one request.
pub(crate) const MOST_SAMPLES: usize = 1024;

/// Most stop tokens of a request.
const MOST_STOP_TOKENS: usize = 1024;

/// Most alternatives of a token that are returned (vLLM's limit).
pub(crate) const MOST_ALTERNATIVES: i64 = 20;

/// Source of a request's random numbers.
#[derive(Debug, Clone)]
enum Randomness {
    /// Keys from tamis, one for each sample. The tokens are those of the engine in a run with the same keys.
    Keys(Vec<Key>),
    /// A number from the client, or drawn by the server.
    Seed(u64),
}

/// Everything that determines the samples of a prompt and the end of their texts.
#[derive(Debug, Clone)]
pub(crate) struct HowSampled {
    pub(crate) n: usize,
    /// Not yet limited by the room after the prompt.
    pub(crate) params: SamplingParams,
    pub(crate) stop: Arc<StopText>,
    /// Pattern that texts must match.
    pub(crate) regex: Option<String>,
    /// The token mask of that pattern; set by [`App::how_sampled`](crate::App::how_sampled).
    pub(crate) mask: Option<Arc<RegexMask>>,
    /// Stop tokens of the client; they are returned as the reason.
    pub(crate) stop_token_ids: Vec<u32>,
    /// Whether the stop string stays in the text.
    pub(crate) includes_stop: bool,
    /// Whether special tokens stay out of the text.
    pub(crate) skips_special: bool,
    /// The prompt's tokens are returned with their log-probabilities, and so many of the likeliest tokens at
    /// their places.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Whether the request has keys of tamis.
    pub(crate) is_keyed: bool,
    randomness: Randomness,
}

/// The server's defaults for a request.
pub(crate) struct Defaults<'a> {
    /// Tokens at which a completion ends.
    pub(crate) end_token_ids: &'a [u32],
    /// Number of token ids.
    pub(crate) vocabulary: usize,
    /// For stop strings.
    pub(crate) tokenizer: &'a Arc<Tokenizer>,
    /// Default number of completion tokens.
    pub(crate) max_tokens: usize,
    pub(crate) seed: u64,
    /// Most of the likeliest tokens that are returned of a prompt's token.
    pub(crate) max_logprobs: usize,
}

/// Fields that would change the samples.
const REFUSED: [Refused; 14] = [
    ("presence_penalty", is_zero, "use `repetition_penalty`"),
    ("frequency_penalty", is_zero, "use `repetition_penalty`"),
    ("logit_bias", is_empty, "leave it out"),
    ("allowed_token_ids", is_empty, "leave it out"),
    ("bad_words", is_empty, "leave it out"),
    ("min_tokens", is_zero, "leave it out, or use `ignore_eos`"),
    ("use_beam_search", is_false, "sample with `n`"),
    ("best_of", is_one, "ask for `n` and choose"),
    ("guided_json", is_never, "leave it out"),
    ("guided_regex", is_never, "send `structured_outputs: {\"regex\": ...}`, as vLLM wants it since 0.12"),
    ("guided_choice", is_never, "leave it out"),
    ("guided_grammar", is_never, "leave it out"),
    ("logits_processors", is_empty, "leave it out"),
    ("truncate_prompt_tokens", is_never, "cut the prompt before it is sent"),
];

impl HowSampled {
    /// From the fields that all routes share. `body` is the whole request, with our own field in it.
    pub(crate) fn read(
        fields: Fields<'_>,
        body: Fields<'_>,
        max_tokens: Option<usize>,
        defaults: &Defaults<'_>,
    ) -> Result<Self, ApiError> {
        fields.refuse(&REFUSED)?;
        let n = fields.count("n", 1, MOST_SAMPLES as i64)?.unwrap_or(1);
        let temperature = fields.number("temperature")?.unwrap_or(1.0);
        if temperature < 0.0 {
            let name = fields.name("temperature");
            return Err(ApiError::field(&name, format!("{name} must be non-negative, got {temperature}")));
        }
        // Limited, because they are checked for each token.
        let bounded = |name: &str, count: usize, most: usize| {
            let name = fields.name(name);
            let message = || format!("`{name}` must have at most {most} entries, got {count}");
            if count <= most { Ok(()) } else { Err(ApiError::field(&name, message())) }
        };
        let top_k = fields.integer("top_k")?.filter(|&k| k > 0);
        let sampling = Sampling {
            temperature,
            top_k: top_k.map(|k| u32::try_from(k).unwrap_or(u32::MAX)),
            top_p: fields.number("top_p")?.unwrap_or(1.0),
            min_p: fields.number("min_p")?.unwrap_or(0.0),
            repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(1.0),
            max_response_length: max_tokens.unwrap_or(defaults.max_tokens),
            stop: read_stops(fields)?,
            regex: regex(fields)?,
        };
        let stop_token_ids = fields.token_ids("stop_token_ids")?.unwrap_or_default();
        bounded("stop_token_ids", stop_token_ids.len(), MOST_STOP_TOKENS)?;
        if let Some(id) = stop_token_ids.iter().find(|&&id| id as usize >= defaults.vocabulary) {
            let name = fields.name("stop_token_ids");
            let message =
                format!("`{name}` has the token id {id}, but the vocabulary has {}", defaults.vocabulary);
            return Err(ApiError::field(&name, message));
        }
        let mut ends = stop_token_ids.clone();
        if !fields.flag("ignore_eos")? {
            ends.extend_from_slice(defaults.end_token_ids);
        }
        let params = engine_params(&sampling, ends);
        params.validate().map_err(|error| {
            let SamplingError::Range { name, .. } = error;
            ApiError::field(fields.name(name), error.to_string())
        })?;
        let stop = StopText::new(sampling.stop, defaults.tokenizer.clone())
            .map_err(|error| ApiError::field(fields.name("stop"), error.to_string()))?;
        let seed = fields.integer("seed")?;
        let keys = keys(body, n)?;
        if keys.is_some() && seed.is_some() {
            return Err(ApiError::field(
                "tamis",
                "`tamis` has a key for each sample, so `seed` is not needed",
            ));
        }
        Ok(Self {
            n,
            params,
            stop: Arc::new(stop),
            regex: sampling.regex,
            mask: None,
            stop_token_ids,
            includes_stop: fields.flag("include_stop_str_in_output")?,
            skips_special: fields.optional_flag("skip_special_tokens")?.unwrap_or(true),
            prompt_logprobs: prompt_logprobs(fields, defaults.max_logprobs)?,
            is_keyed: keys.is_some(),
            randomness: match keys {
                Some(keys) => Randomness::Keys(keys),
                None => Randomness::Seed(seed.map_or(defaults.seed, |seed| seed as u64)),
            },
        })
    }

    /// The keys of the samples of a prompt, given the prompt's index in the request.
    pub(crate) fn keys(&self, prompt: usize) -> Vec<Key> {
        match &self.randomness {
            Randomness::Keys(keys) => keys.clone(),
            Randomness::Seed(seed) => {
                let key = Key::new(*seed, Purpose::Served).with(prompt as u64);
                (0..self.n as u64).map(|sample| key.with(sample)).collect()
            }
        }
    }
}

/// Number of the likeliest tokens that are wanted of each token of the prompt.
fn prompt_logprobs(fields: Fields<'_>, most: usize) -> Result<Option<usize>, ApiError> {
    let wanted = fields.count("prompt_logprobs", 0, i64::MAX)?;
    match wanted.filter(|&wanted| wanted > most) {
        None => Ok(wanted),
        Some(wanted) => {
            let name = fields.name("prompt_logprobs");
            let message = format!(
                "`{name}` must be from 0 to {most}, got {wanted}; `tamis serve --max-logprobs {wanted}` allows it"
            );
            Err(ApiError::field(&name, message))
        }
    }
}

/// `structured_outputs: {"regex": ...}`; its other forms are refused.
fn regex(fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(form) = fields.object("structured_outputs", "structured_outputs.")? else { return Ok(None) };
    if let Some(other) =
        form.names().find(|&name| name != "regex" && form.get(name).is_some_and(|value| !is_false(value)))
    {
        return Err(ApiError::unsupported(&form.name(other), "`regex` is the only form here"));
    }
    Ok(form.text("regex")?.map(str::to_owned))
}

/// Our own field: `{"key": "16 hexadecimal digits"}`, or `{"keys": [...]}` with one for each of n samples.
fn keys(body: Fields<'_>, n: usize) -> Result<Option<Vec<Key>>, ApiError> {
    let Some(own) = body.object("tamis", "tamis.")? else { return Ok(None) };
    if let Some(unknown) = own.names().find(|name| !["key", "keys"].contains(name)) {
        let name = own.name(unknown);
        return Err(ApiError::field(&name, format!("there is no `{name}`: `tamis` has `key`, or `keys`")));
    }
    let texts = match (own.text("key")?, own.texts("keys")?) {
        (Some(key), keys) if keys.is_empty() => vec![key.to_owned()],
        (None, keys) if !keys.is_empty() => keys,
        _ => return Err(ApiError::field("tamis", "`tamis` must have either `key` or `keys`")),
    };
    if texts.len() != n {
        let message = format!("`tamis` has {} keys for {n} samples", texts.len());
        return Err(ApiError::field("tamis", message));
    }
    let keys: Result<Vec<Key>, ApiError> = texts
        .iter()
        .map(|text| text.parse().map_err(|error| ApiError::field("tamis", format!("{error}, got {text:?}"))))
        .collect();
    keys.map(Some)
}
