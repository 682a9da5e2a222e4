//! Calls a function on a made batch before anything is generated.
//!
//! A loss is called as a run will call it, and then with one log-probability moved at a time. This shows
//! whether the derivative is that of the value, whether tokens of a trajectory depend on each other, and
//! whether trajectories do, which they must not: a batch is cut into micro-batches.

use tamis_config::{Config, KlPlace};
use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator as _, Component, PythonAdvantage};
use tamis_core::objective::{AdvantageColumn, Columns};
use tamis_core::own_function::OwnFunction;
use tamis_core::ragged::Ragged;

use super::advantage::OwnAdvantage;
use super::error::FunctionError;
use super::loss::{LossNumbers, OwnLoss, describe};
use super::process::FunctionProcess;
use crate::interrupt::Halt;

/// Step of the central differences, in nats. A function in single precision is still resolved by it.
const STEP: f64 = 1e-3;
/// Largest difference between derivative and difference, relative to 1 plus their size.
const TOLERANCE: f64 = 2e-3;
/// Largest difference between numbers that should be the same, likewise.
const SAME: f64 = 1e-6;

/// What a function's columns will hold in a run, so that a function that reads more fails at once.
#[derive(Debug, Clone)]
pub(super) struct RunColumns {
    /// Whether a loss gets log-probabilities of the reference.
    pub(super) has_reference: bool,
    /// Whether an advantage may get a reward for each token.
    pub(super) has_token_rewards: bool,
    /// Name and weight of each reward that counts.
    pub(super) rewards: Vec<(String, f64)>,
}

impl RunColumns {
    pub(super) fn of(config: &Config) -> Self {
        let weighted = config.reward.iter().filter(|reward| reward.weight != 0.0);
        let is_charged = config.objective.kl.place == KlPlace::Reward;
        Self {
            has_reference: config.objective.kl.place == KlPlace::Loss,
            // Functions of others and environments may score tokens and turns.
            has_token_rewards: is_charged
                || config.environment.is_some()
                || weighted.clone().any(|reward| !reward.kind.is_verifier()),
            rewards: weighted.map(|reward| (reward.name.clone(), reward.weight)).collect(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct CheckedLoss {
    /// Whether a token's loss depends on the log-probabilities of other tokens of its trajectory.
    pub(super) couples_tokens: bool,
    /// Something to tell the user.
    pub(super) note: Option<String>,
}

/// A made batch: four trajectories, two masked tokens, ratios from 0.5 to 2, advantages of both signs and 0.
#[derive(Clone)]
struct MadeBatch {
    offsets: Vec<usize>,
    mask: Vec<bool>,
    logprobs: Vec<f64>,
    old: Vec<f64>,
    rollout: Vec<f64>,
    reference: Vec<f64>,
    entropies: Vec<f64>,
    advantages: Vec<f64>,
    has_reference: bool,
}

impl MadeBatch {
    fn new(has_reference: bool) -> Self {
        let offsets = vec![0, 4, 5, 10, 13];
        let num_tokens = 13;
        // Numbers without a pattern that a kink of a usual loss could lie on.
        let spread = |from: f64, to: f64, seed: f64| -> Vec<f64> {
            let unit = |t: usize| ((t as f64 + 1.0) * 0.754_877_666 + seed).fract();
            (0..num_tokens).map(|t| from + (to - from) * unit(t)).collect()
        };
        let logprobs = spread(-3.1, -0.07, 0.13);
        let moved = |by: f64, seed: f64| -> Vec<f64> {
            logprobs
                .iter()
                .zip(spread(-by, by, seed))
                .map(|(&logprob, by)| f64::min(logprob + by, -0.01))
                .collect()
        };
        let (old, rollout, reference) = (moved(0.67, 0.31), moved(0.71, 0.47), moved(0.53, 0.83));
        let mut mask = vec![true; num_tokens];
        (mask[2], mask[11]) = (false, false);
        Self {
            offsets,
            mask,
            old,
            rollout,
            reference,
            entropies: spread(0.2, 2.3, 0.59),
            advantages: vec![1.37, -0.83, 0.0, -1.91],
            logprobs,
            has_reference,
        }
    }

    fn columns(&self) -> Columns<'_, f64> {
        Columns {
            old: Some(&self.old),
            reference: self.has_reference.then_some(&*self.reference),
            entropy: Some(&self.entropies),
            ..Columns::new(
                &self.offsets,
                &self.mask,
                &self.logprobs,
                AdvantageColumn::PerTrajectory(&self.advantages),
            )
        }
    }

    fn evaluate(&self, loss: &OwnLoss) -> Result<LossNumbers, Halt<FunctionError>> {
        loss.evaluate(&self.columns(), Some(&self.rollout), &made)
    }

    /// With the log-probability of a token moved.
    fn with_moved(&self, token: usize, by: f64) -> Self {
        let mut logprobs = self.logprobs.clone();
        logprobs[token] += by;
        Self { logprobs, ..self.clone() }
    }
}

/// The name of a trajectory of a made batch.
fn made(row: usize) -> String {
    format!("trajectory {row}")
}

fn is_near(one: f64, other: f64, tolerance: f64) -> bool {
    (one - other).abs() <= tolerance * (1.0 + one.abs().max(other.abs()))
}

/// Refuses a function whose parameters do not fit.
fn introduce(process: &FunctionProcess) -> Result<(), Halt<FunctionError>> {
    let found = process.introduce()?;
    let Some(problem) = found.problem else { return Ok(()) };
    let what = format!("cannot be called: {problem}. It is {}, called as {}", found.signature, found.called);
    let name = found.called.split('(').next().unwrap_or_default();
    let hint = format!("write `def {name}(columns):`, and a parameter for each key of its `kwargs`");
    Err(process.error(what, hint).into())
}

/// Checks a loss; `with_derivative`: its derivative too, unless PyTorch has made it.
pub(super) fn loss(
    loss: &OwnLoss,
    with_derivative: bool,
    run: &RunColumns,
) -> Result<CheckedLoss, Halt<FunctionError>> {
    introduce(&loss.process)?;
    let batch = MadeBatch::new(run.has_reference);
    let whole = batch.evaluate(loss)?;
    let again = batch.evaluate(loss)?;
    let is_same = |t: usize| {
        !batch.mask[t]
            || (again.value[t].to_bits(), again.derivative[t].to_bits())
                == (whole.value[t].to_bits(), whole.derivative[t].to_bits())
    };
    if !(0..batch.mask.len()).all(is_same) {
        let what = "returned other numbers for the same columns in a second call: a resumed run would differ from one that was never \
                    interrupted";
        return Err(loss.process.error(what, "seed what it draws by its columns").into());
    }
    check_apart(loss, &batch, &whole)?;
    let mut checked = CheckedLoss::default();
    let mut wrong = Vec::new();
    let mut is_constant = true;
    for (row, pair) in batch.offsets.windows(2).enumerate() {
        for token in (pair[0]..pair[1]).filter(|&token| batch.mask[token]) {
            let [above, below] = [STEP, -STEP].map(|by| batch.with_moved(token, by).evaluate(loss));
            let (above, below) = (above?, below?);
            let moved = |other: usize| !is_near(above.value[other], whole.value[other], 1e-7);
            is_constant &= whole.derivative[token] == 0.0 && !(pair[0]..pair[1]).any(&moved);
            let elsewhere = (0..batch.mask.len())
                .find(|other| !(pair[0]..pair[1]).contains(other) && batch.mask[*other] && moved(*other));
            if let Some(other) = elsewhere {
                return Err(depends(loss, &batch, other, Some(row)).into());
            }
            checked.couples_tokens |=
                (pair[0]..pair[1]).any(|other| other != token && batch.mask[other] && moved(other));
            let sum = |numbers: &LossNumbers| -> f64 {
                (pair[0]..pair[1]).filter(|&other| batch.mask[other]).map(|other| numbers.value[other]).sum()
            };
            let [upper, middle, lower] = [&above, &whole, &below].map(sum);
            let slopes = [(upper - middle) / STEP, (middle - lower) / STEP];
            let numeric = (upper - lower) / (2.0 * STEP);
            let analytic = whole.derivative[token];
            // At a kink either side is right.
            let is_right =
                [slopes[0], slopes[1], numeric].iter().any(|&slope| is_near(slope, analytic, TOLERANCE));
            if !is_right {
                wrong.push((token, analytic, numeric));
            }
        }
    }
    if is_constant && with_derivative {
        let what = "returns a loss that does not depend on `columns.logprobs`: nothing would be learned";
        return Err(loss.process.error(what, "compute it from `columns.logprobs`").into());
    }
    let Some(&(token, analytic, numeric)) = wrong.first() else { return Ok(checked) };
    let place = describe(&batch.columns(), Some(&batch.rollout), token, &made);
    let found =
        format!("its derivative is {analytic:.6}, and central differences of its value give {numeric:.6}");
    if whole.is_differentiated {
        checked.note = Some(format!(
            "{}: {} has constant parts: for {} of {} tokens of a made batch PyTorch's derivative is not that of the value; for {place} \
             {found}. That is right if something is detached on purpose",
            loss.process.key,
            loss.process.place(),
            wrong.len(),
            batch.mask.iter().filter(|&&on| on).count()
        ));
        return Ok(checked);
    }
    if !with_derivative {
        return Ok(checked);
    }
    let what = format!(
        "returns a wrong derivative for {} of {} tokens of a made batch: for {place} {found}",
        wrong.len(),
        batch.mask.iter().filter(|&&on| on).count()
    );
    let hint = "return the derivative of the summed losses of a trajectory by each of its `logprobs`; if a weight of your formula is meant to \
                be constant, set objective.loss.check_derivative=false";
    Err(loss.process.error(what, hint).into())
}

/// Refuses a loss that depends on which trajectories are in the batch.
fn check_apart(loss: &OwnLoss, batch: &MadeBatch, whole: &LossNumbers) -> Result<(), Halt<FunctionError>> {
    for row in 0..batch.advantages.len() {
        let tokens = batch.offsets[row]..batch.offsets[row + 1];
        let alone = loss.evaluate(
            &batch.columns().sequences(row..row + 1),
            Some(&batch.rollout[tokens.clone()]),
            &made,
        )?;
        for (at, token) in tokens.enumerate().filter(|(_, token)| batch.mask[*token]) {
            let is_same = is_near(alone.value[at], whole.value[token], SAME)
                && is_near(alone.derivative[at], whole.derivative[token], SAME);
            if !is_same {
                return Err(depends(loss, batch, token, None).into());
            }
        }
    }
    Ok(())
}

fn depends(loss: &OwnLoss, batch: &MadeBatch, token: usize, on: Option<usize>) -> FunctionError {
    let place = describe(&batch.columns(), Some(&batch.rollout), token, &made);
    let on =
        on.map_or_else(|| "other trajectories of the batch".to_owned(), |row| format!("trajectory {row}"));
    loss.process.error(
        format!("returns for {place} a loss that depends on {on}: the result would depend on how the batch is cut into micro-batches"),
        "compute each trajectory by itself (`columns.offsets`), and leave sums and means to objective.aggregation",
    )
}

pub(super) fn advantage(advantage: &OwnAdvantage, run: &RunColumns) -> Result<(), Halt<FunctionError>> {
    introduce(&advantage.process)?;
    let rewards = Ragged::from_rows([vec![1.0, 0.0, 0.5, 1.0], vec![0.0, f64::NAN, 0.25], vec![1.0, 1.0]]);
    let lengths = [3, 1, 4, 2, 2, 5, 3, 1, 2];
    let on = |length: usize| (0..length).map(|t| t != 1 || length == 2).collect::<Vec<bool>>();
    let mask = Ragged::from_rows(lengths.iter().map(|&length| on(length)));
    let last =
        |place: usize, length: usize, t: usize| if t + 1 == length { rewards.values()[place] } else { 0.0 };
    let token_rewards = Ragged::from_rows(
        lengths
            .iter()
            .enumerate()
            .map(|(place, &length)| (0..length).map(move |t| last(place, length, t)).collect::<Vec<_>>()),
    );
    let named = run.rewards.iter();
    let components: Vec<Component<'_>> =
        named.map(|(name, weight)| Component { name, weight: *weight, rewards: &rewards }).collect();
    let batch = AdvantageBatch {
        mask: Some(&mask),
        token_rewards: run.has_token_rewards.then_some(&token_rewards),
        components: Some(&components),
        ..AdvantageBatch::of_rewards(&rewards)
    };
    let first = advantage.advantages(&batch, &made)?;
    let again = advantage.advantages(&batch, &made)?;
    let mut pairs = first.values().iter().zip(again.values());
    if first.values().len() != again.values().len()
        || pairs.any(|(one, other)| one.to_bits() != other.to_bits())
    {
        let what = "returned other numbers for the same columns in a second call: a resumed run would differ from one that was never \
                    interrupted";
        return Err(advantage.process.error(what, "seed what it draws by its columns").into());
    }
    let estimator = PythonAdvantage { function: OwnFunction::of("") };
    if let Err(error) = estimator.advantages(&AdvantageBatch { given: Some(&first), ..batch }) {
        let what = format!("returned something else than numbers for a made batch: {error}");
        return Err(advantage
            .process
            .error(what, "a group may have one member, and members with equal rewards")
            .into());
    }
    Ok(())
}
