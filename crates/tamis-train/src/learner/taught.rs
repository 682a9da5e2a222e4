//! What teachers found of a step's completions.

use tamis_core::ragged::Ragged;

/// Log-probabilities of completions under their teachers, and the teachers' likeliest tokens at every place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taught {
    /// Of the completions' tokens `[B][T]`, in nats.
    pub logprobs: Ragged<f32>,
    /// Number of likeliest tokens, k.
    pub per_token: usize,
    /// The likeliest tokens `[B][T k]`.
    pub candidates: Ragged<u32>,
    /// Their log-probabilities `[B][T k]`; -inf: there is no such token.
    pub top_logprobs: Ragged<f32>,
    /// Log-probabilities of the completions' tokens `[B][T]`, -inf for those that are among the likeliest.
    pub sampled: Ragged<f32>,
}

/// What a teacher found of one completion.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RatedCompletion {
    /// Log-probabilities of its tokens \[T\].
    pub(crate) logprobs: Vec<f32>,
    /// The likeliest tokens \[T k\].
    pub(crate) top: Vec<u32>,
    /// Their log-probabilities \[T k\].
    pub(crate) top_logprobs: Vec<f32>,
}

impl Taught {
    /// For `per_token` likeliest tokens; rows follow.
    pub(crate) fn new(per_token: usize) -> Self {
        Self { per_token, ..Self::default() }
    }

    /// Adds what was found of a completion. The policy has `vocab_size` tokens: others of a teacher, whose
    /// vocabulary may be padded further, are no candidates.
    pub(crate) fn push(&mut self, completion: &[u32], rated: &RatedCompletion, vocab_size: usize) {
        let k = self.per_token;
        let is_known = |token: u32| (token as usize) < vocab_size;
        let candidates = rated.top.iter().map(|&token| if is_known(token) { token } else { 0 });
        let logprobs = rated.top.iter().zip(&rated.top_logprobs);
        let logprobs =
            logprobs.map(|(&token, &logprob)| if is_known(token) { logprob } else { f32::NEG_INFINITY });
        let (candidates, logprobs) = (candidates.collect::<Vec<u32>>(), logprobs.collect::<Vec<f32>>());
        let sampled = completion.iter().zip(&rated.logprobs).enumerate().map(|(t, (token, &logprob))| {
            let own = t * k..(t + 1) * k;
            let of_token = candidates[own.clone()].iter().zip(&logprobs[own]);
            let is_candidate = of_token.into_iter().any(|(one, of)| one == token && *of != f32::NEG_INFINITY);
            if is_candidate { f32::NEG_INFINITY } else { logprob }
        });
        self.sampled.push_row(sampled.collect::<Vec<f32>>());
        self.logprobs.push_row(rated.logprobs.iter().copied());
        self.candidates.push_row(candidates);
        self.top_logprobs.push_row(logprobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampled_candidate_is_not_counted_twice_and_padding_is_no_candidate() {
        let mut taught = Taught::new(2);
        let rated = RatedCompletion {
            logprobs: vec![-0.5, -3.0],
            top: vec![7, 3, 12, 0],
            top_logprobs: vec![-0.5, -1.5, -0.25, -2.0],
        };
        taught.push(&[7, 4], &rated, 10);
        assert_eq!(taught.candidates.row(0), [7, 3, 0, 0]);
        assert_eq!(taught.top_logprobs.row(0), [-0.5, -1.5, f32::NEG_INFINITY, -2.0]);
        assert_eq!(taught.sampled.row(0), [f32::NEG_INFINITY, -3.0]);
        // Token 0 was sampled at the place where only the padding stands for it.
        let padded =
            RatedCompletion { logprobs: vec![-4.0], top: vec![11, 2], top_logprobs: vec![-0.1, -3.0] };
        taught.push(&[0], &padded, 10);
        assert_eq!(taught.sampled.row(1), [-4.0]);
    }
}
