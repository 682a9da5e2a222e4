//! Tokens beside the ones of a sequence: the likeliest at each position, and log-probabilities of others that
//! a caller names. A distillation compares a teacher's likeliest tokens with the policy's log-probabilities
//! of them.

use tamis_core::fault;
use tamis_core::ragged::Ragged;

use super::batch::{PackedBatch, Target};
use super::head::{PassOptions, Upstream};
use super::sequence::{Sequence, SequenceError};
use super::workspace::Workspace;
use super::{
    Coefficients, Gradients, HeldPass, Pass, RawOutputs, TokenScores, backward_pass, check_head,
    forward_pass, hold,
};
use crate::config::OutputHead;
use crate::model::Model;
use crate::threads::Threads;

/// Candidates beside each scored token: k each, flat \[N k\], in the order of the sequences' scored tokens.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    /// k.
    pub per_token: usize,
    /// The tokens.
    pub tokens: &'a [u32],
}

/// The likeliest tokens at the place of each scored one, the likeliest first and of equal ones the first in
/// the vocabulary; flat \[N k\]. Also the rank of the scored one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopTokens {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their `log_softmax(logits / temperature)`, nats.
    pub logprobs: Vec<f32>,
    /// Ranks of the scored tokens \[N\]: 1 and the number of tokens that are likelier. Equal ones share the
    /// best rank.
    pub ranks: Vec<u32>,
}

/// What a pass computes beside the scored tokens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Beside<'a> {
    Nothing,
    Candidates(Candidates<'a>),
    Top(usize),
}

impl Beside<'_> {
    pub(super) fn num_candidates(self) -> usize {
        match self {
            Self::Candidates(candidates) => candidates.per_token,
            Self::Nothing | Self::Top(_) => 0,
        }
    }

    /// Number of likeliest tokens of a position.
    pub(super) fn num_top(self) -> usize {
        if let Self::Top(number) = self { number } else { 0 }
    }
}

/// As [`score`](crate::score), and the `number` likeliest tokens at the place of each scored token, from
/// 1 to the size of the vocabulary.
pub fn score_with_top(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
    temperature: f32,
    number: usize,
) -> Result<(TokenScores, TopTokens), SequenceError> {
    let vocab_size = model.config().vocab_size;
    if !(1..=vocab_size).contains(&number) {
        return Err(fault!("the {number} likeliest of {vocab_size} tokens").into());
    }
    let options = PassOptions { temperature, recompute: true, keep_logits_bytes: 0 };
    let pass = Pass { sequences, beside: Beside::Top(number), head: OutputHead::Vocabulary, options };
    let (outputs, _) = forward_pass(threads, model, workspace, pass, false)?;
    let RawOutputs { lengths, first, second, top, .. } = outputs;
    Ok((TokenScores::of(&lengths, first, second), top))
}

/// As [`forward_hold`](crate::forward_hold), and the log-probabilities of the candidates, flat
/// \[N k\].
pub fn forward_hold_beside(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
    candidates: Candidates<'_>,
    options: PassOptions,
) -> Result<(TokenScores, Vec<f32>, HeldPass), SequenceError> {
    check_candidates(model, sequences, candidates)?;
    let beside = Beside::Candidates(candidates);
    let pass = Pass { sequences, beside, head: OutputHead::Vocabulary, options };
    let (outputs, held) = hold(threads, model, workspace, pass)?;
    let RawOutputs { lengths, first, second, .. } = outputs;
    let stride = candidates.per_token + 1;
    let own = |values: Vec<f32>| values.into_iter().step_by(stride).collect::<Vec<f32>>();
    let others: Vec<f32> = first.chunks_exact(stride).flat_map(|row| &row[1..]).copied().collect();
    Ok((TokenScores::of(&lengths, own(first), own(second)), others, held))
}

/// As [`backward`](crate::backward), for a pass with candidates: `of_candidates` are the derivatives by
/// their log-probabilities, flat \[N k\], or nothing if all are 0.
pub fn backward_beside(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    held: HeldPass,
    coefficients: Coefficients,
    of_candidates: &[f32],
    gradients: &mut Gradients,
) -> Result<(), SequenceError> {
    check_head(held.head, OutputHead::Vocabulary)?;
    let (stride, Coefficients { logprob, entropy }) = (held.num_candidates + 1, coefficients);
    let expected = logprob.len() * held.num_candidates;
    if !of_candidates.is_empty() && of_candidates.len() != expected {
        let found = of_candidates.len();
        workspace.chunks = held.chunks;
        return Err(fault!(
            "expected {expected} coefficients of candidates, {per_token} per scored token, got {found}",
            per_token = stride - 1
        )
        .into());
    }
    let spread = |own: &[f32], others: &dyn Fn(usize) -> f32| {
        let at = |place: usize| match place % stride {
            0 => own[place / stride],
            other => others(place / stride * (stride - 1) + other - 1),
        };
        (0..own.len() * stride).map(at).collect::<Vec<f32>>()
    };
    let first = spread(&logprob, &|place| of_candidates.get(place).copied().unwrap_or(0.0));
    let second = entropy.map(|entropy| spread(&entropy, &|_| 0.0));
    backward_pass(threads, model, workspace, held, &Upstream { first, second }, gradients)
}

impl HeldPass {
    /// Candidates of each scored token.
    pub fn num_candidates(&self) -> usize {
        self.num_candidates
    }
}

fn check_candidates(
    model: &Model,
    sequences: &[Sequence],
    Candidates { per_token, tokens }: Candidates<'_>,
) -> Result<(), SequenceError> {
    let num_scored: usize =
        sequences.iter().map(|sequence| sequence.tokens.len().saturating_sub(sequence.start)).sum();
    if tokens.len() != num_scored * per_token {
        let found = tokens.len();
        return Err(fault!("{found} candidates for {num_scored} scored tokens, {per_token} each").into());
    }
    let vocab_size = model.config().vocab_size;
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(token) => Err(fault!("the candidate {token} is not one of {vocab_size} tokens").into()),
        None => Ok(()),
    }
}

impl TokenScores {
    pub(super) fn of(lengths: &[usize], logprobs: Vec<f32>, entropies: Vec<f32>) -> Self {
        let ragged = |values: Vec<f32>| Ragged::from_lengths(values, lengths).unwrap_or_default();
        Self { logprobs: ragged(logprobs), entropies: ragged(entropies) }
    }
}

impl PackedBatch {
    /// Makes the candidates of every token targets of its row, after the token itself. Places in the flat
    /// order are then those of tokens with their candidates.
    pub(super) fn add_candidates(&mut self, Candidates { per_token, tokens }: Candidates<'_>) {
        let stride = per_token + 1;
        let with_own = |target: &Target| {
            let begin = (self.first_flat + target.flat as usize) * per_token;
            let flat = target.flat * stride as u32;
            let others = tokens[begin..begin + per_token].iter().zip(flat + 1..);
            std::iter::once(Target { token: target.token, flat })
                .chain(others.map(|(&token, flat)| Target { token, flat }))
                .collect::<Vec<_>>()
        };
        self.targets = self.targets.iter().flat_map(with_own).collect();
        self.first_target.iter_mut().for_each(|first| *first *= stride);
        self.first_flat *= stride;
    }
}

/// Places of the `number` largest of a row, the largest first, of equal ones the first; of a row with NaN
/// there may be fewer.
pub(super) fn largest(row: &[f32], number: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(number + 1);
    for (place, &value) in (0..).zip(row) {
        let is_full = best.len() == number;
        if is_full && best.last().is_none_or(|&last| value <= row[last as usize]) || value.is_nan() {
            continue;
        }
        let at = best.partition_point(|&other| row[other as usize] >= value);
        best.insert(at, place);
        best.truncate(number);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_equal_ones_in_order() {
        let row = [1.0, 3.0, f32::NAN, 3.0, -1.0, 2.0, f32::NEG_INFINITY];
        assert_eq!(largest(&row, 3), [1, 3, 5]);
        assert_eq!(largest(&row, 1), [1]);
        assert_eq!(largest(&row, 7), [1, 3, 5, 0, 4, 6]);
    }
}
