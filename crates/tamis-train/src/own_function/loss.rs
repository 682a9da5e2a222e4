//! A loss of the user's own: columns of a micro-batch go out, values and derivatives come back.

use std::fmt::Write as _;

use tamis_core::objective::{AdvantageColumn, Columns, GivenLoss, Real};

use super::error::FunctionError;
use super::process::FunctionProcess;
use super::request::Request;
use crate::interrupt::Halt;

/// Values and derivatives of a batch, per token \[N\].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LossNumbers {
    pub(crate) value: Vec<f64>,
    pub(crate) derivative: Vec<f64>,
    /// Whether PyTorch has differentiated the value.
    pub(super) is_differentiated: bool,
}

impl LossNumbers {
    pub(crate) fn as_column(&self) -> GivenLoss<'_> {
        GivenLoss { value: &self.value, derivative: &self.derivative }
    }
}

/// The user's function, in its process.
#[derive(Debug)]
pub(crate) struct OwnLoss {
    pub(super) process: FunctionProcess,
}

impl OwnLoss {
    pub(super) fn new(process: FunctionProcess) -> Self {
        Self { process }
    }

    /// Values and derivatives for the tokens of a batch. `rollout`: log-probabilities as the sampler reported
    /// them \[N\], if it did. The function gets 0 in place of every number at a masked token, and what it
    /// returns for one is not looked at. `name` names a trajectory of the batch for messages.
    ///
    /// # Errors
    /// The function fails, or returns a number that is not finite for a token that is trained on.
    pub(crate) fn evaluate<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        rollout: Option<&[T]>,
        name: &dyn Fn(usize) -> String,
    ) -> Result<LossNumbers, Halt<FunctionError>> {
        let answer = self.process.call(request(columns, rollout))?;
        let num_tokens = columns.mask.len();
        let [value, derivative] = answer.arrays.try_into().unwrap_or_default();
        if [value.len(), derivative.len()] != [num_tokens; 2] {
            let what = format!(
                "gave {} values and {} derivatives for {num_tokens} tokens",
                value.len(),
                derivative.len()
            );
            return Err(self
                .process
                .error(what, "return one of each for every token, masked ones too")
                .into());
        }
        let numbers = LossNumbers { value, derivative, is_differentiated: answer.is_differentiated };
        for (what, column) in [("loss", &numbers.value), ("derivative", &numbers.derivative)] {
            let broken = (0..num_tokens).find(|&t| columns.mask[t] && !column[t].is_finite());
            if let Some(t) = broken {
                let what = format!(
                    "returned a {what} of {} for {}; expected a finite number",
                    column[t],
                    describe(columns, rollout, t, name)
                );
                let hint = "bound what can overflow, such as the log-ratio inside `exp`";
                return Err(self.process.error(what, hint).into());
            }
        }
        Ok(numbers)
    }
}

fn request<T: Real>(columns: &Columns<'_, T>, rollout: Option<&[T]>) -> Request {
    let mask = columns.mask;
    let base = columns.offsets.first().copied().unwrap_or(0);
    // A masked token's numbers may be anything, and a NaN would spread through the function's own sums.
    let masked = |column: &[T]| -> Vec<f64> {
        column.iter().zip(mask).map(|(&number, &on)| if on { number.into() } else { 0.0 }).collect()
    };
    let mut request = Request::of_tokens(mask.len());
    request.floats("logprobs", Some(masked(columns.logprob).into_iter()));
    for (name, column) in [
        ("old_logprobs", Some(columns.old.unwrap_or(columns.logprob))),
        ("rollout_logprobs", rollout),
        ("ref_logprobs", columns.reference),
        ("entropies", columns.entropy),
    ] {
        request.floats(name, column.map(|column| masked(column).into_iter()));
    }
    let advantages = advantages(columns).zip(mask).map(|(advantage, &on)| if on { advantage } else { 0.0 });
    request.floats("advantages", Some(advantages.collect::<Vec<_>>().into_iter()));
    request.flags("mask", mask);
    request.integers("offsets", columns.offsets.iter().map(|offset| offset - base));
    let lengths = columns
        .offsets
        .windows(2)
        .map(|pair| mask[pair[0] - base..pair[1] - base].iter().filter(|&&on| on).count());
    request.integers("lengths", lengths.collect::<Vec<_>>().into_iter());
    request
}

fn advantages<'a, T: Real>(columns: &'a Columns<'_, T>) -> Box<dyn Iterator<Item = f64> + 'a> {
    match columns.advantage {
        AdvantageColumn::PerToken(advantages) => Box::new(advantages.iter().copied()),
        AdvantageColumn::PerTrajectory(advantages) => {
            let rows = advantages.iter().zip(columns.offsets.windows(2));
            Box::new(rows.flat_map(|(&advantage, pair)| std::iter::repeat_n(advantage, pair[1] - pair[0])))
        }
    }
}

/// A token with its trajectory and numbers, for a message.
pub(super) fn describe<T: Real>(
    columns: &Columns<'_, T>,
    rollout: Option<&[T]>,
    token: usize,
    name: &dyn Fn(usize) -> String,
) -> String {
    let base = columns.offsets.first().copied().unwrap_or(0);
    let row = columns.offsets.windows(2).position(|pair| (pair[0] - base..pair[1] - base).contains(&token));
    let row = row.unwrap_or_default();
    let mut text = format!("token {} of {} (", token + base - columns.offsets[row], name(row));
    for (name, column) in [
        ("logprobs", Some(columns.logprob)),
        ("old_logprobs", columns.old),
        ("rollout_logprobs", rollout),
        ("ref_logprobs", columns.reference),
    ] {
        if let Some(column) = column {
            let number: f64 = column[token].into();
            let _ = write!(text, "{name} {number:.6}, ");
        }
    }
    let advantage = advantages(columns).nth(token).unwrap_or(f64::NAN);
    let _ = write!(text, "advantages {advantage:.6})");
    text
}
