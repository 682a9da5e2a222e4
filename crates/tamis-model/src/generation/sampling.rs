//! Drawing a token: repetition penalty, temperature, top-k, top-p, min-p, and an inverse CDF with a keyed
//! uniform.

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use thiserror::Error;

use crate::simd::SimdLevel;
use crate::vocabulary::{Statistics, powers, statistics};

/// Sampling parameters, and the conditions that end a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the k likeliest tokens (and all that tie with the last of them); 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all (Holtzman et al.
    /// 2020).
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all (Nguyen et al. 2024).
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens already in prompt or completion; 1 means no
    /// penalty (Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// Longest completion, including the end token; at least 1.
    pub max_new_tokens: usize,
    /// Tokens that end the completion; the end token is part of it.
    pub stop_token_ids: Vec<u32>,
    /// Take the likeliest token, and the lowest id among equals. Log-probabilities are then at temperature 1.
    pub greedy: bool,
    /// Return each token's rank and this many of the likeliest tokens. `None` returns neither and costs
    /// nothing.
    pub num_alternatives: Option<usize>,
}

/// Alternatives to a token, before penalty and truncation.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternatives {
    /// Rank of the drawn token; the likeliest has rank 1, and ties share the best rank.
    pub rank: usize,
    /// The likeliest tokens with their log-probabilities, best first, the lower id among equals first.
    pub likeliest: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: 256,
            stop_token_ids: Vec::new(),
            greedy: false,
            num_alternatives: None,
        }
    }
}

/// A sampling parameter is outside its range.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SamplingError {
    /// A number outside its range.
    #[error("{name} must be {range}, got {}", tamis_core::figure::shortest(*.value))]
    Range {
        /// The parameter.
        name: &'static str,
        /// The expected range.
        range: &'static str,
        /// The given value.
        value: f64,
    },
}

impl From<SamplingError> for Fault {
    fn from(error: SamplingError) -> Self {
        fault!("{error}")
    }
}

impl SamplingParams {
    /// Checks every range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let check = |name, range, value: f32, fits: bool| {
            if fits { Ok(()) } else { Err(SamplingError::Range { name, range, value: f64::from(value) }) }
        };
        let Self { temperature, top_p, min_p, repetition_penalty, .. } = *self;
        // A temperature whose inverse overflows would make every logit infinite.
        let fits = temperature == 0.0 || (1e-6..=1e6).contains(&temperature);
        check("temperature", "0 (greedy) or from 1e-6 to 1e6", temperature, fits)?;
        check("top_p", "above 0 and at most 1", top_p, top_p > 0.0 && top_p <= 1.0)?;
        check("min_p", "from 0 to 1", min_p, (0.0..=1.0).contains(&min_p))?;
        let fits = repetition_penalty > 0.0 && repetition_penalty.is_finite();
        check("repetition_penalty", "positive and finite", repetition_penalty, fits)?;
        check("max_new_tokens", "at least 1", self.max_new_tokens as f32, self.max_new_tokens > 0)
    }

    /// Whether sampling is greedy.
    pub fn is_greedy(&self) -> bool {
        self.greedy || self.temperature == 0.0
    }

    /// The temperature of the reported log-probabilities.
    pub fn logprob_temperature(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { self.temperature }
    }

    fn truncates(&self) -> bool {
        self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0
    }
}

#[derive(Debug, Default)]
pub(super) struct SamplingScratch {
    weights: Vec<f32>,
    /// Logits after penalty and mask.
    altered: Vec<f32>,
    order: Vec<u32>,
}

/// What decides the draw of a token beside the logits.
pub(super) struct Draw<'a> {
    pub params: &'a SamplingParams,
    /// The prompt, then the completion so far.
    pub history: [&'a [u32]; 2],
    /// A bit for each token that may be drawn; `None`: all.
    pub allowed: Option<&'a [u64]>,
    pub key: Key,
    /// Number of tokens of the completion so far.
    pub index: u64,
}

/// A drawn token.
#[derive(Debug, PartialEq)]
pub(super) struct Drawn {
    pub token: u32,
    /// Before penalty, mask and truncation, as the entropy.
    pub logprob: f32,
    pub entropy: f32,
}

/// Draws the next token.
pub(super) fn draw(level: SimdLevel, logits: &[f32], draw: &Draw, scratch: &mut SamplingScratch) -> Drawn {
    let Draw { params, history, allowed, key, index } = *draw;
    let inverse = 1.0 / params.logprob_temperature();
    let drawn = |token: usize, row: Statistics| {
        let logprob = row.logprob(logits[token], inverse);
        Drawn { token: token as u32, logprob, entropy: row.entropy() }
    };
    let SamplingScratch { weights, altered, order } = scratch;
    let alters = (params.repetition_penalty - 1.0).abs() > 0.0 || allowed.is_some();
    if alters {
        penalise(logits, params.repetition_penalty, history, altered);
    }
    if let Some(allowed) = allowed {
        for (token, logit) in altered.iter_mut().enumerate() {
            if allowed.get(token / 64).is_none_or(|word| word >> (token % 64) & 1 == 0) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    let effective = if alters { &altered[..] } else { logits };
    if params.is_greedy() {
        let token =
            effective.iter().enumerate().fold(0, |best, (i, &x)| if x > effective[best] { i } else { best });
        let row = statistics(level, logits, inverse);
        return drawn(token, row);
    }
    weights.resize(logits.len(), 0.0);
    let mut row = powers(level, effective, inverse, weights);
    if params.truncates() {
        truncate(params, weights, order);
    }
    let token = inverse_cdf(weights, key.uniform(index));
    if alters {
        row = statistics(level, logits, inverse);
    }
    drawn(token, row)
}

/// The rank of the drawn token and the likeliest tokens.
pub(super) fn alternatives(
    level: SimdLevel,
    logits: &[f32],
    params: &SamplingParams,
    token: u32,
    count: usize,
) -> Alternatives {
    let drawn = logits[token as usize];
    let rank = 1 + logits.iter().filter(|&&logit| logit > drawn).count();
    if count == 0 {
        return Alternatives { rank, likeliest: Vec::new() };
    }
    let count = count.min(logits.len());
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    order.select_nth_unstable_by(count - 1, better);
    order.truncate(count);
    order.sort_unstable_by(better);
    let inverse = 1.0 / params.logprob_temperature();
    let row = statistics(level, logits, inverse);
    let logprob = |token: u32| (token, row.logprob(logits[token as usize], inverse));
    Alternatives { rank, likeliest: order.into_iter().map(logprob).collect() }
}

fn penalise(logits: &[f32], penalty: f32, history: [&[u32]; 2], out: &mut Vec<f32>) {
    out.clear();
    out.extend_from_slice(logits);
    for &token in history.into_iter().flatten() {
        // From the original logit, so that a token seen twice is penalised once.
        if let (Some(out), Some(&logit)) = (out.get_mut(token as usize), logits.get(token as usize)) {
            *out = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
    }
}

/// Sets the weight of every token to zero that is outside top-k, then outside top-p of the rest, then below
/// min-p.
fn truncate(params: &SamplingParams, weights: &mut [f32], order: &mut Vec<u32>) {
    let largest = weights.iter().fold(0.0f32, |max, &w| if w > max { w } else { max });
    let mut threshold = params.min_p * largest;
    order.clear();
    order.extend(0..weights.len() as u32);
    let by_weight = |&a: &u32, &b: &u32| weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b));
    if params.top_k > 0 && params.top_k < weights.len() {
        let (_, &mut last, _) = order.select_nth_unstable_by(params.top_k - 1, by_weight);
        let kth = weights[last as usize];
        order.retain(|&token| weights[token as usize] >= kth);
        threshold = threshold.max(kth);
    }
    if params.top_p < 1.0 {
        order.sort_unstable_by(by_weight);
        let total: f64 = order.iter().map(|&token| f64::from(weights[token as usize])).sum();
        let mut sum = 0.0;
        let reached = order.iter().position(|&token| {
            sum += f64::from(weights[token as usize]);
            sum >= f64::from(params.top_p) * total
        });
        for &token in &order[reached.map_or(order.len(), |last| last + 1)..] {
            weights[token as usize] = 0.0;
        }
    }
    for weight in weights {
        if *weight < threshold {
            *weight = 0.0;
        }
    }
}

/// The token at which the running sum of weights, in order of ids, exceeds `uniform` times the total.
fn inverse_cdf(weights: &[f32], uniform: f64) -> usize {
    const BLOCK: usize = 64;
    let sum = |block: &[f32]| {
        let mut lanes = [0.0f64; 8];
        let (chunks, tail) = block.as_chunks::<8>();
        for chunk in chunks {
            for i in 0..8 {
                lanes[i] += f64::from(chunk[i]);
            }
        }
        lanes.iter().sum::<f64>() + tail.iter().map(|&w| f64::from(w)).sum::<f64>()
    };
    let total: f64 = weights.chunks(BLOCK).map(sum).sum();
    let target = uniform * total;
    let mut before = 0.0;
    let mut chosen = None;
    for (i, block) in weights.chunks(BLOCK).enumerate() {
        let after = before + sum(block);
        if after > target {
            chosen = Some(i);
            break;
        }
        before = after;
    }
    let likely = |range: std::ops::Range<usize>| {
        weights[range.clone()].iter().rposition(|&w| w > 0.0).map(|at| range.start + at)
    };
    if let Some(i) = chosen {
        let range = i * BLOCK..weights.len().min((i + 1) * BLOCK);
        for at in range.clone() {
            before += f64::from(weights[at]);
            if before > target && weights[at] > 0.0 {
                return at;
            }
        }
        // The two sums of the block differ by rounding.
        if let Some(at) = likely(range) {
            return at;
        }
    }
    likely(0..weights.len()).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "what must be exact is compared exactly")]
mod tests {
    use proptest::prelude::*;
    use tamis_core::random::Purpose;

    use super::*;

    fn drawn(
        logits: &[f32],
        params: &SamplingParams,
        history: &[u32],
        allowed: Option<&[u64]>,
        index: u64,
    ) -> Drawn {
        let (level, key) = (SimdLevel::detect(), Key::new(5, Purpose::Rollout));
        let mut scratch = SamplingScratch::default();
        draw(level, logits, &Draw { params, history: [history, &[]], allowed, key, index }, &mut scratch)
    }

    fn take(logits: &[f32], params: &SamplingParams, history: &[u32], index: u64) -> (u32, f32) {
        let Drawn { token, logprob, .. } = drawn(logits, params, history, None, index);
        (token, logprob)
    }

    fn frequencies(logits: &[f32], params: &SamplingParams, history: &[u32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for index in 0..20_000 {
            counts[take(logits, params, history, index).0 as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[track_caller]
    fn assert_frequencies(actual: &[f64], expected: &[f64]) {
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() < 0.015 && (*e > 0.0 || *a == 0.0), "{actual:?}, expected {expected:?}");
        }
    }

    /// Probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1.
    fn halves() -> Vec<f32> {
        [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let plain = SamplingParams::default();
        assert_frequencies(&frequencies(&halves(), &plain, &[]), &[0.5, 0.25, 0.125, 0.125]);
        let cold = SamplingParams { temperature: 0.5, ..plain.clone() };
        let total = 0.25 + 0.0625 + 2.0 / 64.0;
        let squares = [0.25 / total, 0.0625 / total, 1.0 / 64.0 / total, 1.0 / 64.0 / total];
        assert_frequencies(&frequencies(&halves(), &cold, &[]), &squares);
        let top_k = SamplingParams { top_k: 2, ..plain.clone() };
        assert_frequencies(&frequencies(&halves(), &top_k, &[]), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        let ties = SamplingParams { top_k: 3, ..plain.clone() };
        assert_frequencies(&frequencies(&halves(), &ties, &[]), &[0.5, 0.25, 0.125, 0.125]);
        let top_p = SamplingParams { top_p: 0.6, ..plain.clone() };
        assert_frequencies(&frequencies(&halves(), &top_p, &[]), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        let tied = SamplingParams { top_p: 0.8, ..plain.clone() };
        assert_frequencies(&frequencies(&halves(), &tied, &[]), &[4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]);
        let min_p = SamplingParams { min_p: 0.3, ..plain };
        assert_frequencies(&frequencies(&halves(), &min_p, &[]), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    }

    #[test]
    fn logprob_is_before_penalty_and_truncation() {
        let params = SamplingParams { top_k: 1, repetition_penalty: 3.0, ..SamplingParams::default() };
        // Logits are negative: the penalty makes token 0 three times as negative, below token 1.
        let (token, logprob) = take(&halves(), &params, &[0, 0], 0);
        assert_eq!(token, 1);
        assert!((logprob - 0.25f32.ln()).abs() < 1e-6);
        let (token, _) =
            take(&[2.0, 1.0], &SamplingParams { greedy: true, repetition_penalty: 4.0, ..params }, &[0], 0);
        assert_eq!(token, 1);
    }

    /// Allowed tokens are drawn in proportion to their probabilities, however small. Reported
    /// log-probabilities are those of the full distribution.
    #[test]
    fn a_mask_is_a_truncation() {
        let drawn = |logits: &[f32], params: &SamplingParams, allowed: u64, index| {
            drawn(logits, params, &[], Some(&[allowed]), index)
        };
        let plain = SamplingParams::default();
        let mut counts = vec![0.0; 4];
        for index in 0..20_000 {
            let Drawn { token, logprob, entropy } = drawn(&halves(), &plain, 0b1010, index);
            counts[token as usize] += 1.0 / 20_000.0;
            assert!((logprob - halves()[token as usize]).abs() < 1e-6);
            assert!((entropy - 1.75 * 2f32.ln()).abs() < 1e-6);
        }
        assert_frequencies(&counts, &[0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]);
        // Weights relative to the likeliest of all would both be 0.
        let far = [0.0, -500.0, -501.0];
        assert!((0..50).all(|index| drawn(&far, &plain, 0b110, index).token > 0));
        let greedy = SamplingParams { greedy: true, ..plain.clone() };
        assert_eq!(drawn(&far, &greedy, 0b110, 0).token, 1);
        let top = SamplingParams { top_k: 1, ..plain };
        assert!(
            (0..50).all(|index| drawn(&far, &top, 0b110, index).token == 1),
            "truncated among the allowed"
        );
    }

    #[test]
    fn entropy_is_before_penalty_and_truncation() {
        // 1/2·ln 2 + 1/4·ln 4 + 2·1/8·ln 8.
        let expected = 1.75 * 2f32.ln();
        for params in [
            SamplingParams { top_k: 1, repetition_penalty: 3.0, ..SamplingParams::default() },
            SamplingParams { greedy: true, ..SamplingParams::default() },
        ] {
            let Drawn { entropy, .. } = drawn(&halves(), &params, &[0, 0], None, 0);
            assert!((entropy - expected).abs() < 1e-6, "{entropy}");
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_at_temperature_one() {
        for params in [
            SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            SamplingParams { temperature: 0.3, greedy: true, ..SamplingParams::default() },
        ] {
            let (token, logprob) = take(&[0.0, 1.0, 1.0], &params, &[], 0);
            assert_eq!(token, 1);
            assert!((f64::from(logprob) - (1.0 - (1.0 + 2.0 * 1f64.exp()).ln())).abs() < 1e-6);
        }
    }

    #[test]
    fn broken_logits_do_not_panic() {
        let params = SamplingParams { top_k: 2, top_p: 0.9, min_p: 0.1, ..SamplingParams::default() };
        for logits in [[f32::NAN; 3], [f32::INFINITY, 0.0, f32::NEG_INFINITY], [f32::NEG_INFINITY; 3]] {
            let (token, logprob) = take(&logits, &params, &[], 0);
            assert!(token < 3 && (logprob.is_nan() || logprob <= 0.0));
        }
    }

    proptest! {
        #[test]
        fn every_draw_is_possible(logits in proptest::collection::vec(-60f32..60.0, 1..200), index in 0u64..1000, top_k in 0usize..5, top_p in 0.01f32..1.0) {
            let params = SamplingParams { top_k, top_p, ..SamplingParams::default() };
            let (token, logprob) = take(&logits, &params, &[], index);
            let better = logits.iter().filter(|&&x| x > logits[token as usize]).count();
            prop_assert!(top_k == 0 || better < top_k);
            prop_assert!(logprob <= 0.0 && logprob.is_finite());
        }
    }

    #[test]
    fn messages() {
        let message = |params: SamplingParams| params.validate().unwrap_err().to_string();
        let plain = SamplingParams::default;
        insta::assert_snapshot!(message(SamplingParams { temperature: -1.0, ..plain() }), @"temperature must be 0 (greedy) or from 1e-6 to 1e6, got -1");
        insta::assert_snapshot!(message(SamplingParams { top_p: 0.0, ..plain() }), @"top_p must be above 0 and at most 1, got 0");
        insta::assert_snapshot!(message(SamplingParams { min_p: f32::NAN, ..plain() }), @"min_p must be from 0 to 1, got NaN");
        insta::assert_snapshot!(message(SamplingParams { repetition_penalty: 0.0, ..plain() }), @"repetition_penalty must be positive and finite, got 0");
        insta::assert_snapshot!(message(SamplingParams { max_new_tokens: 0, ..plain() }), @"max_new_tokens must be at least 1, got 0");
        assert!(plain().validate().is_ok());
    }
}
