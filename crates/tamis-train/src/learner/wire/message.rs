//! Bodies of the wire: settings as JSON, columns as named tensors.

use std::collections::HashMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tamis_core::group::FinishReason;
use tamis_core::random::Key;
pub(crate) use tamis_rollout::call_server::SAFETENSORS;
use tamis_rollout::json_tree::{self, MOST_TREE_BYTES};

use super::{GenerateAnswer, GenerateRequest, find_bad};
use crate::learner::generate::{BeginningGroup, Drawing, Generate, GrownSamples, SampleGrowth};
use crate::learner::{LearnerSequence, Network, TokenColumns, TopColumns, Wave};

/// Media type of a body without columns.
pub(crate) const JSON: &str = "application/json";
/// The key of the settings in the metadata of a body with columns.
const SETTINGS: &str = "json";
/// Key of the settings with the paths of each prompt's images.
const IMAGES: &str = "images";

/// Numbers of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum WireColumn {
    /// Tokens, ranks and places.
    I32(Vec<i32>),
    /// Offsets.
    I64(Vec<i64>),
    /// Numbers per token.
    F32(Vec<f32>),
    /// Numbers that must come through to the last bit.
    F64(Vec<f64>),
}

impl WireColumn {
    fn parts(&self) -> (Dtype, Vec<u8>) {
        match self {
            Self::I32(values) => (Dtype::I32, bytes(values, i32::to_le_bytes)),
            Self::I64(values) => (Dtype::I64, bytes(values, i64::to_le_bytes)),
            Self::F32(values) => (Dtype::F32, bytes(values, f32::to_le_bytes)),
            Self::F64(values) => (Dtype::F64, bytes(values, f64::to_le_bytes)),
        }
    }

    fn read(dtype: Dtype, data: &[u8]) -> Option<Self> {
        Some(match dtype {
            Dtype::I32 => Self::I32(numbers(data, i32::from_le_bytes)),
            Dtype::I64 => Self::I64(numbers(data, i64::from_le_bytes)),
            Dtype::F32 => Self::F32(numbers(data, f32::from_le_bytes)),
            Dtype::F64 => Self::F64(numbers(data, f64::from_le_bytes)),
            _ => return None,
        })
    }
}

fn bytes<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

fn numbers<T, const N: usize>(data: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect()
}

/// A request or an answer: settings, and columns by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WireMessage {
    settings: serde_json::Value,
    columns: HashMap<String, WireColumn>,
}

/// A JSON object of settings, without repeated keys.
fn read_settings(text: &[u8], what: &str) -> Result<Value, MessageError> {
    let settings = json_tree::read(text, MOST_TREE_BYTES, true)
        .map_err(|error| MessageError(format!("no JSON{what}: {error}")))?;
    if settings.is_object() { Ok(settings) } else { Err(MessageError(format!("no JSON object{what}"))) }
}

/// A body that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MessageError(pub(crate) String);

impl WireMessage {
    /// A message with these settings and no columns.
    pub fn new(settings: &impl Serialize) -> Self {
        // Settings are structs of plain fields, so serialising cannot fail.
        Self { settings: serde_json::to_value(settings).unwrap_or_default(), columns: HashMap::new() }
    }

    /// Adds a column.
    #[must_use]
    pub fn with(mut self, name: &str, column: WireColumn) -> Self {
        self.columns.insert(name.to_owned(), column);
        self
    }

    /// Adds a number to the settings.
    #[must_use]
    pub fn with_number(mut self, key: &str, number: f64) -> Self {
        if let serde_json::Value::Object(settings) = &mut self.settings {
            settings.insert(key.to_owned(), json!(number));
        }
        self
    }

    /// A number among the settings, if there is one of this key.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.settings.get(key)?.as_f64()
    }

    /// A list of numbers in the settings, if there is one.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.settings.get(key)?.as_array()?.iter().map(serde_json::Value::as_f64).collect()
    }

    /// The settings.
    pub fn settings<S: DeserializeOwned>(&self) -> Result<S, MessageError> {
        serde_json::from_value(self.settings.clone()).map_err(|error| MessageError(error.to_string()))
    }

    /// Media type and bytes.
    pub fn to_body(&self) -> (&'static str, Vec<u8>) {
        if self.columns.is_empty() {
            return (JSON, self.settings.to_string().into_bytes());
        }
        let parts: Vec<_> = self.columns.iter().map(|(name, column)| (name, column.parts())).collect();
        let views = parts.iter().filter_map(|(name, (dtype, data))| {
            // There are as many bytes as the numbers need, so this cannot fail.
            let len = data.len() * 8 / dtype.bitsize();
            Some((name.as_str(), TensorView::new(*dtype, vec![len], data).ok()?))
        });
        let notes = HashMap::from([(SETTINGS.to_owned(), self.settings.to_string())]);
        let body = safetensors::serialize(views, Some(notes)).unwrap_or_default();
        (SAFETENSORS, body)
    }

    /// Reads a body of this media type. An empty one has no settings.
    pub fn read(content_type: &str, body: &[u8]) -> Result<Self, MessageError> {
        let failed = |error: &dyn std::fmt::Display| MessageError(error.to_string());
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if kind != SAFETENSORS {
            let empty: &[u8] = b"{}";
            let settings = read_settings(if body.is_empty() { empty } else { body }, "")?;
            return Ok(Self { settings, columns: HashMap::new() });
        }
        let (header_bytes, header) =
            SafeTensors::read_metadata(body).map_err(|error| failed(&format!("no safetensors: {error}")))?;
        let text = header.metadata().as_ref().and_then(|notes| notes.get(SETTINGS).cloned());
        let settings =
            read_settings(text.as_deref().unwrap_or("{}").as_bytes(), &format!(" under `{SETTINGS}`"))?;
        // Eight bytes with the header's length come before it. Of columns of one name one would be lost.
        read_settings(&body[8..8 + header_bytes], " as header")?;
        let tensors =
            SafeTensors::deserialize(body).map_err(|error| failed(&format!("no safetensors: {error}")))?;
        let mut columns = HashMap::new();
        for (name, view) in tensors.iter() {
            if view.shape().len() != 1 {
                return Err(MessageError(format!("column `{name}` has {} dimensions", view.shape().len())));
            }
            let dtype = view.dtype();
            let column = WireColumn::read(dtype, view.data())
                .ok_or_else(|| MessageError(format!("column `{name}` is of type {dtype:?}")))?;
            columns.insert(name.to_owned(), column);
        }
        Ok(Self { settings, columns })
    }

    fn take(&mut self, name: &str) -> Result<WireColumn, MessageError> {
        self.columns.remove(name).ok_or_else(|| MessageError(format!("there is no column `{name}`")))
    }

    fn take_i32(&mut self, name: &str) -> Result<Vec<i32>, MessageError> {
        match self.take(name)? {
            WireColumn::I32(values) => Ok(values),
            _ => Err(MessageError(format!("column `{name}` is not of type i32"))),
        }
    }

    fn take_i64(&mut self, name: &str) -> Result<Vec<i64>, MessageError> {
        match self.take(name)? {
            WireColumn::I64(values) => Ok(values),
            _ => Err(MessageError(format!("column `{name}` is not of type i64"))),
        }
    }

    /// A column of one number per token, of length `len`; `None` if it is missing.
    fn take_tokens(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, MessageError> {
        match self.columns.remove(name) {
            None => Ok(None),
            Some(WireColumn::F32(values)) if values.len() == len => Ok(Some(values)),
            Some(WireColumn::F32(values)) => {
                let found = values.len();
                Err(MessageError(format!("column `{name}` has {found} numbers for {len} tokens")))
            }
            Some(_) => Err(MessageError(format!("column `{name}` is not of type f32"))),
        }
    }

    pub(crate) fn take_f64(&mut self, name: &str) -> Result<f64, MessageError> {
        match self.take(name)? {
            WireColumn::F64(values) if values.len() == 1 => Ok(values[0]),
            _ => Err(MessageError(format!("column `{name}` is not one number of type f64"))),
        }
    }

    /// Refuses columns that were not taken.
    pub(crate) fn refuse_columns(&self) -> Result<(), MessageError> {
        match self.columns.keys().min() {
            None => Ok(()),
            Some(name) => Err(MessageError(format!("the call has no column `{name}`"))),
        }
    }

    #[must_use]
    pub(crate) fn with_tokens(self, network: Network, columns: TokenColumns) -> Self {
        let TokenColumns { logprobs, entropies, values, candidates } = columns;
        match network {
            Network::Critic => self.with("value", WireColumn::F32(values)),
            _ => self
                .with("logprob", WireColumn::F32(logprobs))
                .with("entropy", WireColumn::F32(entropies))
                .with_some("candidate", candidates),
        }
    }

    /// Adds the derivatives by the columns of a pass through a network; entropies may be left out.
    #[must_use]
    pub(crate) fn with_derivatives(self, network: Network, derivatives: TokenColumns) -> Self {
        let TokenColumns { logprobs, entropies, values, candidates } = derivatives;
        match network {
            Network::Critic => self.with("value", WireColumn::F32(values)),
            _ => self
                .with("logprob", WireColumn::F32(logprobs))
                .with_some("entropy", entropies)
                .with_some("candidate", candidates),
        }
    }

    /// Adds a column if it has numbers.
    #[must_use]
    fn with_some(self, name: &str, values: Vec<f32>) -> Self {
        if values.is_empty() { self } else { self.with(name, WireColumn::F32(values)) }
    }

    /// Adds log-probabilities of tokens and the likeliest tokens at their places.
    #[must_use]
    pub(crate) fn with_top(self, top: TopColumns) -> Self {
        let tokens = top.tokens.iter().map(|&token| token as i32).collect();
        self.with("logprob", WireColumn::F32(top.logprobs))
            .with("top_token", WireColumn::I32(tokens))
            .with("top_logprob", WireColumn::F32(top.top_logprobs))
    }

    /// Log-probabilities of `num_tokens` tokens and the `number` likeliest at their places.
    pub(crate) fn take_top(&mut self, num_tokens: usize, number: usize) -> Result<TopColumns, MessageError> {
        let column = |found: Option<Vec<f32>>, name: &str| {
            found.ok_or_else(|| MessageError(format!("there is no column `{name}`")))
        };
        let logprobs = column(self.take_tokens("logprob", num_tokens)?, "logprob")?;
        let top_logprobs = column(self.take_tokens("top_logprob", num_tokens * number)?, "top_logprob")?;
        let tokens: Option<Vec<u32>> =
            self.take_i32("top_token")?.into_iter().map(|token| u32::try_from(token).ok()).collect();
        match tokens.filter(|tokens| tokens.len() == num_tokens * number) {
            Some(tokens) => Ok(TopColumns { logprobs, tokens, top_logprobs }),
            None => Err(MessageError(format!(
                "column `top_token` does not have {number} token ids for each of {num_tokens} tokens"
            ))),
        }
    }

    /// The derivatives by the columns of a pass of `num_tokens` tokens through a network.
    pub(crate) fn take_derivatives(
        &mut self,
        network: Network,
        (num_tokens, per_token): (usize, usize),
    ) -> Result<TokenColumns, MessageError> {
        let name = if network == Network::Critic { "value" } else { "logprob" };
        let needed = self.take_tokens(name, num_tokens)?;
        let needed = needed.ok_or_else(|| MessageError(format!("there is no column `{name}`")))?;
        let derivatives = if network == Network::Critic {
            TokenColumns { values: needed, ..TokenColumns::default() }
        } else {
            let entropies = self.take_tokens("entropy", num_tokens)?.unwrap_or_default();
            let candidates = self.take_tokens("candidate", num_tokens * per_token)?.unwrap_or_default();
            TokenColumns { logprobs: needed, entropies, candidates, values: Vec::new() }
        };
        self.refuse_columns()?;
        Ok(derivatives)
    }

    /// The columns of a pass over `num_tokens` tokens; those that are not there are empty.
    pub(crate) fn take_token_columns(
        &mut self,
        (num_tokens, per_token): (usize, usize),
    ) -> Result<TokenColumns, MessageError> {
        Ok(TokenColumns {
            candidates: self.take_tokens("candidate", num_tokens * per_token)?.unwrap_or_default(),
            logprobs: self.take_tokens("logprob", num_tokens)?.unwrap_or_default(),
            entropies: self.take_tokens("entropy", num_tokens)?.unwrap_or_default(),
            values: self.take_tokens("value", num_tokens)?.unwrap_or_default(),
        })
    }

    /// Adds a wave. Neighbours with the same prompt share one. If any has images, the settings name
    /// those of each prompt.
    #[must_use]
    pub(crate) fn with_wave(mut self, wave: &Wave<'_>) -> Self {
        let (mut prompt_tokens, mut prompt_offsets, mut prompt_of) = (Vec::new(), vec![0], Vec::new());
        let (mut tokens, mut offsets) = (Vec::new(), vec![0]);
        let ids = |tokens: &[u32]| tokens.iter().map(|&token| token as i32).collect::<Vec<i32>>();
        let mut last: Option<&LearnerSequence<'_>> = None;
        let mut images: Vec<&[String]> = Vec::new();
        for sequence in &wave.sequences {
            if last.is_none_or(|last| !last.shares_prompt(sequence)) {
                images.push(sequence.images);
                prompt_tokens.extend(ids(sequence.prompt));
                prompt_offsets.push(prompt_tokens.len() as i64);
                last = Some(sequence);
            }
            prompt_of.push(prompt_offsets.len() as i32 - 2);
            tokens.extend(ids(sequence.completion));
            offsets.push(tokens.len() as i64);
        }
        if images.iter().any(|of_prompt| !of_prompt.is_empty()) {
            self.settings[IMAGES] = json!(images);
        }
        let ranks = wave.ranks.iter().map(|&rank| rank as i32).collect();
        let others: Vec<i32> = wave.sequences.iter().flat_map(|sequence| ids(sequence.candidates)).collect();
        if !others.is_empty() {
            self = self.with("candidate_token", WireColumn::I32(others));
        }
        self.with("prompt_token", WireColumn::I32(prompt_tokens))
            .with("prompt_offset", WireColumn::I64(prompt_offsets))
            .with("prompt_of", WireColumn::I32(prompt_of))
            .with("completion_token", WireColumn::I32(tokens))
            .with("completion_offset", WireColumn::I64(offsets))
            .with("rank", WireColumn::I32(ranks))
    }

    pub(crate) fn take_wave(&mut self) -> Result<OwnedWave, MessageError> {
        let prompts = Rows::take(self, "prompt_token", "prompt_offset")?;
        let completions = Rows::take(self, "completion_token", "completion_offset")?;
        let (prompt_of, rank) = (self.take_i32("prompt_of")?, self.take_i32("rank")?);
        for (name, found) in [("prompt_of", prompt_of.len()), ("rank", rank.len())] {
            if found != completions.len() {
                let wanted = completions.len();
                return Err(MessageError(format!(
                    "column `{name}` has {found} numbers for {wanted} sequences"
                )));
            }
        }
        let of = |name: &str, values: Vec<i32>, end: usize| {
            let values: Option<Vec<usize>> =
                values.into_iter().map(|value| usize::try_from(value).ok()).collect();
            let is_good = |values: &Vec<usize>| values.is_sorted() && values.iter().all(|&value| value < end);
            values
                .filter(is_good)
                .ok_or_else(|| MessageError(format!("column `{name}` must be below {end} and may not fall")))
        };
        let prompt_of = of("prompt_of", prompt_of, prompts.len())?;
        let ranks = of("rank", rank, 1 << 20)?.into_iter().map(|rank| rank as u32).collect();
        let candidates = if self.columns.contains_key("candidate_token") {
            self.take_candidates(completions.tokens.len())?
        } else {
            Vec::new()
        };
        self.refuse_columns()?;
        Ok(OwnedWave { prompts, completions, prompt_of, ranks, candidates })
    }

    /// Candidates of a wave's tokens, the same number for each.
    fn take_candidates(&mut self, num_tokens: usize) -> Result<Vec<u32>, MessageError> {
        let tokens: Option<Vec<u32>> =
            self.take_i32("candidate_token")?.into_iter().map(|token| u32::try_from(token).ok()).collect();
        tokens.filter(|tokens| tokens.len().checked_rem(num_tokens) == Some(0)).ok_or_else(|| {
            MessageError(format!(
                "column `candidate_token` must hold as many token ids for each of the {num_tokens} tokens"
            ))
        })
    }
}

impl Drawing {
    fn check(&self) -> Result<(), MessageError> {
        let &Self { temperature, top_p, min_p, repetition_penalty, max_tokens, .. } = self;
        let is_warm = temperature == 0.0 || (1e-6..=1e6).contains(&temperature);
        let is_penalty = repetition_penalty > 0.0 && repetition_penalty.is_finite();
        find_bad(&[
            (is_warm, "temperature", "0, or from 1e-6 to 1e6"),
            (top_p > 0.0 && top_p <= 1.0, "top_p", "above 0 and at most 1"),
            ((0.0..=1.0).contains(&min_p), "min_p", "from 0 to 1"),
            (is_penalty, "repetition_penalty", "above 0"),
            (max_tokens > 0, "max_tokens", "at least 1"),
        ])
    }
}

/// Numbers of samples and bits of keys, as the wire has them: those of a 64-bit integer.
fn as_i64(values: impl Iterator<Item = u64>) -> WireColumn {
    WireColumn::I64(values.map(|value| i64::from_le_bytes(value.to_le_bytes())).collect())
}

fn as_u64(values: Vec<i64>) -> impl Iterator<Item = u64> {
    values.into_iter().map(|value| u64::from_le_bytes(value.to_le_bytes()))
}

/// Tokens of rows one after the other, and the start of each row.
fn flat<'a>(rows: impl Iterator<Item = &'a [u32]>) -> (WireColumn, WireColumn) {
    let (mut tokens, mut offsets) = (Vec::new(), vec![0]);
    for row in rows {
        tokens.extend(row.iter().map(|&token| token as i32));
        offsets.push(tokens.len() as i64);
    }
    (WireColumn::I32(tokens), WireColumn::I64(offsets))
}

/// A column that must have this many numbers.
fn check_len(name: &str, found: usize, wanted: usize, what: &str) -> Result<(), MessageError> {
    if found == wanted {
        return Ok(());
    }
    Err(MessageError(format!("column `{name}` has {found} numbers for {wanted} {what}")))
}

/// Generation: samples to begin, to abort, and their growth.
impl WireMessage {
    pub(crate) fn of_generate(asked: &Generate) -> Self {
        let mut drawing: Vec<Drawing> = Vec::new();
        let mut drawn_by = Vec::new();
        for group in &asked.begin {
            let place = drawing.iter().position(|known| *known == group.drawing).unwrap_or_else(|| {
                drawing.push(group.drawing.clone());
                drawing.len() - 1
            });
            drawn_by.push(place as i32);
        }
        let groups = || asked.begin.iter();
        let (tokens, offsets) = flat(groups().map(|group| group.prompt.as_slice()));
        let prompt_of = groups().enumerate();
        let prompt_of =
            prompt_of.flat_map(|(place, group)| std::iter::repeat_n(place as i32, group.samples.len()));
        let samples = || groups().flat_map(|group| &group.samples);
        Self::new(&GenerateRequest { seconds: asked.seconds, drawing })
            .with("prompt_token", tokens)
            .with("prompt_offset", offsets)
            .with("prompt_drawing", WireColumn::I32(drawn_by))
            .with("prompt_of", WireColumn::I32(prompt_of.collect()))
            .with("sample", as_i64(samples().map(|(sample, _)| *sample)))
            .with("key", as_i64(samples().map(|(_, key)| key.to_bits())))
            .with("abort", as_i64(asked.abort.iter().copied()))
    }

    pub(crate) fn take_generate(&mut self) -> Result<Generate, MessageError> {
        let GenerateRequest { seconds, drawing } = self.settings()?;
        if !(seconds >= 0.0 && seconds.is_finite()) {
            return Err(MessageError(format!("seconds is {seconds}, and must not be below 0")));
        }
        for drawing in &drawing {
            drawing.check()?;
        }
        let prompts = Rows::take(self, "prompt_token", "prompt_offset")?;
        let (drawn_by, prompt_of) = (self.take_i32("prompt_drawing")?, self.take_i32("prompt_of")?);
        let samples: Vec<u64> = as_u64(self.take_i64("sample")?).collect();
        let keys: Vec<u64> = as_u64(self.take_i64("key")?).collect();
        check_len("prompt_drawing", drawn_by.len(), prompts.len(), "prompts")?;
        check_len("prompt_of", prompt_of.len(), samples.len(), "samples")?;
        check_len("key", keys.len(), samples.len(), "samples")?;
        let places = |name: &str, values: Vec<i32>, end: usize| {
            let places: Option<Vec<usize>> =
                values.into_iter().map(|value| usize::try_from(value).ok()).collect();
            places
                .filter(|places| places.iter().all(|&place| place < end))
                .ok_or_else(|| MessageError(format!("column `{name}` must be below {end}")))
        };
        let mut numbers = samples.clone();
        numbers.sort_unstable();
        if let Some((twice, _)) = numbers.iter().zip(numbers.iter().skip(1)).find(|(one, next)| one == next) {
            return Err(MessageError(format!("sample {twice} occurs twice")));
        }
        let drawn_by = places("prompt_drawing", drawn_by, drawing.len())?;
        let prompt_of = places("prompt_of", prompt_of, prompts.len())?;
        let mut begin: Vec<BeginningGroup> = drawn_by
            .into_iter()
            .enumerate()
            .map(|(place, drawn_by)| BeginningGroup {
                prompt: prompts.row(place).to_vec(),
                drawing: drawing[drawn_by].clone(),
                samples: Vec::new(),
            })
            .collect();
        for ((prompt, sample), key) in prompt_of.into_iter().zip(samples).zip(keys) {
            begin[prompt].samples.push((sample, Key::from_bits(key)));
        }
        begin.retain(|group| !group.samples.is_empty());
        let abort = as_u64(self.take_i64("abort")?).collect();
        self.refuse_columns()?;
        Ok(Generate { begin, abort, seconds })
    }

    pub(crate) fn of_generated(generated: GrownSamples) -> Self {
        let GrownSamples { grown, refused, num_open } = generated;
        let (tokens, offsets) = flat(grown.iter().map(|grown| grown.tokens.as_slice()));
        let end = grown.iter().map(|grown| match grown.end {
            None => 0,
            Some(FinishReason::Stop) => 1,
            Some(FinishReason::Length) => 2,
        });
        let per_token =
            |of: fn(&SampleGrowth) -> &[f32]| WireColumn::F32(grown.iter().flat_map(of).copied().collect());
        Self::new(&GenerateAnswer { num_open, refused })
            .with("sample", as_i64(grown.iter().map(|grown| grown.sample)))
            .with("end", WireColumn::I32(end.collect()))
            .with("token", tokens)
            .with("token_offset", offsets)
            .with("logprob", per_token(|grown| &grown.logprobs))
            .with("entropy", per_token(|grown| &grown.entropies))
    }

    /// Takes the generated tokens, at least one for each sample. Entropies are NaN if the learner
    /// returns none.
    pub(crate) fn take_generated(&mut self, gives_entropy: bool) -> Result<GrownSamples, MessageError> {
        let GenerateAnswer { num_open, refused } = self.settings()?;
        let rows = Rows::take(self, "token", "token_offset")?;
        let (samples, ends) = (self.take_i64("sample")?, self.take_i32("end")?);
        check_len("sample", samples.len(), rows.len(), "rows of tokens")?;
        check_len("end", ends.len(), rows.len(), "rows of tokens")?;
        let num_tokens = rows.tokens.len();
        let mut per_token = |name: &str| {
            let column = self.take_tokens(name, num_tokens)?;
            column.ok_or_else(|| MessageError(format!("there is no column `{name}`")))
        };
        let logprobs = per_token("logprob")?;
        let entropies = if gives_entropy { per_token("entropy")? } else { vec![f32::NAN; num_tokens] };
        let mut grown = Vec::with_capacity(rows.len());
        for (place, (sample, end)) in as_u64(samples).zip(ends).enumerate() {
            let end = match end {
                0 => None,
                1 => Some(FinishReason::Stop),
                2 => Some(FinishReason::Length),
                other => {
                    return Err(MessageError(format!(
                        "column `end` holds {other}, which is none of 0, 1 and 2"
                    )));
                }
            };
            let range = rows.offsets[place]..rows.offsets[place + 1];
            grown.push(SampleGrowth {
                sample,
                tokens: rows.row(place).to_vec(),
                logprobs: logprobs[range.clone()].to_vec(),
                entropies: entropies[range].to_vec(),
                end,
            });
        }
        Ok(GrownSamples { grown, refused, num_open })
    }
}

/// Rows of tokens, each with at least one.
struct Rows {
    tokens: Vec<u32>,
    offsets: Vec<usize>,
}

impl Rows {
    fn take(message: &mut WireMessage, tokens: &str, offsets: &str) -> Result<Self, MessageError> {
        let (ids, ends) = (message.take_i32(tokens)?, message.take_i64(offsets)?);
        let ids: Option<Vec<u32>> = ids.into_iter().map(|token| u32::try_from(token).ok()).collect();
        let ids = ids.ok_or_else(|| MessageError(format!("column `{tokens}` has a token below 0")))?;
        let ends: Option<Vec<usize>> = ends.into_iter().map(|end| usize::try_from(end).ok()).collect();
        let rises = |ends: &Vec<usize>| ends.is_sorted_by(|one, next| one < next);
        let is_good =
            |ends: &Vec<usize>| ends.first() == Some(&0) && ends.last() == Some(&ids.len()) && rises(ends);
        let ends = ends.filter(is_good).ok_or_else(|| {
            let wanted = format!("begin with 0, end with {} and rise", ids.len());
            MessageError(format!("column `{offsets}` must {wanted}: every row has a token"))
        })?;
        Ok(Self { tokens: ids, offsets: ends })
    }

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn row(&self, place: usize) -> &[u32] {
        &self.tokens[self.offsets[place]..self.offsets[place + 1]]
    }
}

pub(crate) struct OwnedWave {
    prompts: Rows,
    completions: Rows,
    prompt_of: Vec<usize>,
    ranks: Vec<u32>,
    candidates: Vec<u32>,
}

impl OwnedWave {
    pub(crate) fn wave(&self) -> Wave<'_> {
        let per_token = self.candidates.len() / self.completions.tokens.len().max(1);
        let sequences = self.prompt_of.iter().enumerate().map(|(place, &prompt)| {
            let (begin, end) = (self.completions.offsets[place], self.completions.offsets[place + 1]);
            LearnerSequence {
                candidates: &self.candidates[begin * per_token..end * per_token],
                ..LearnerSequence::of_text(self.prompts.row(prompt), self.completions.row(place))
            }
        });
        Wave { sequences: sequences.collect(), ranks: self.ranks.clone() }
    }
}

#[cfg(test)]
mod tests;
