//! An advantage of the user's own: rewards of a step's groups go out, one number for each trajectory or token
//! comes back.

use tamis_core::advantage::{AdvantageBatch, Advantages};
use tamis_core::ragged::Ragged;

use super::error::FunctionError;
use super::process::FunctionProcess;
use super::request::Request;
use crate::interrupt::Halt;

/// The user's function, in its process.
#[derive(Debug)]
pub(crate) struct OwnAdvantage {
    pub(super) process: FunctionProcess,
}

/// Places of the scored trajectories of a batch, and the tokens that they have.
struct Scored {
    trajectories: Vec<usize>,
    num_tokens: usize,
}

impl OwnAdvantage {
    pub(super) fn new(process: FunctionProcess) -> Self {
        Self { process }
    }

    /// The advantages of a batch. The function sees the scored trajectories only; the others get 0. `name`
    /// names a trajectory of the batch, by its place among all, for messages.
    ///
    /// # Errors
    /// The function fails, or returns another number of numbers, or one that is not finite for a token that
    /// the policy wrote.
    pub(crate) fn advantages(
        &self,
        batch: &AdvantageBatch<'_>,
        name: &dyn Fn(usize) -> String,
    ) -> Result<Advantages, Halt<FunctionError>> {
        let Some(mask) = batch.mask else {
            return Err(self.process.error("has no mask of the tokens", "start again").into());
        };
        let rewards = batch.rewards.values();
        let trajectories: Vec<usize> = (0..rewards.len()).filter(|&place| !rewards[place].is_nan()).collect();
        if trajectories.is_empty() {
            return Ok(Advantages::PerTrajectory(batch.rewards.clone()));
        }
        let num_tokens = trajectories.iter().map(|&place| mask.row(place).len()).sum();
        let scored = Scored { trajectories, num_tokens };
        let answer = self.process.call(request(batch, mask, &scored))?;
        let numbers = answer.arrays.into_iter().next().unwrap_or_default();
        // A batch whose trajectories have one token each is the same either way.
        if numbers.len() == scored.trajectories.len() {
            let mut all = vec![0.0; rewards.len()];
            for (&place, number) in scored.trajectories.iter().zip(numbers) {
                if !number.is_finite() {
                    return Err(self.not_finite(number, &name(place), rewards[place]).into());
                }
                all[place] = number;
            }
            let mut rows = Ragged::default();
            for pair in batch.rewards.offsets().windows(2) {
                rows.push_row(all[pair[0]..pair[1]].iter().copied());
            }
            return Ok(Advantages::PerTrajectory(rows));
        }
        if numbers.len() != scored.num_tokens {
            let what = format!(
                "returned {} numbers; expected {} (one per trajectory) or {} (one per token)",
                numbers.len(),
                scored.trajectories.len(),
                scored.num_tokens
            );
            return Err(self.process.error(what, "return one number for each of `columns.rewards`").into());
        }
        let mut numbers = numbers.into_iter();
        let mut rows = Ragged::default();
        for (place, mask_t) in mask.rows().enumerate() {
            let is_scored = !rewards[place].is_nan();
            let row: Vec<f64> =
                mask_t.iter().map(|_| if is_scored { numbers.next().unwrap_or(0.0) } else { 0.0 }).collect();
            if let Some(t) = (0..row.len()).find(|&t| mask_t[t] && !row[t].is_finite()) {
                let token = format!("token {t} of {}", name(place));
                return Err(self.not_finite(row[t], &token, rewards[place]).into());
            }
            rows.push_row(row);
        }
        Ok(Advantages::PerToken(rows))
    }

    fn not_finite(&self, advantage: f64, of: &str, reward: f64) -> FunctionError {
        self.process.error(
            format!(
                "returned an advantage of {advantage} for {of} (its reward is {reward}); expected a finite number"
            ),
            "a group may have one member, and members with equal rewards: add a small number to what divides",
        )
    }
}

fn request(batch: &AdvantageBatch<'_>, mask: &Ragged<bool>, scored: &Scored) -> Request {
    let places = &scored.trajectories;
    let of = |column: &[f64]| places.iter().map(|&place| column[place]).collect::<Vec<_>>().into_iter();
    let mut request = Request::of_tokens(scored.num_tokens);
    request.floats("rewards", Some(of(batch.rewards.values())));
    let (mut groups, mut group_offsets) = (Vec::with_capacity(places.len()), vec![0]);
    for (group, pair) in batch.rewards.offsets().windows(2).enumerate() {
        groups.extend(places.iter().filter(|place| (pair[0]..pair[1]).contains(place)).map(|_| group));
        group_offsets.push(groups.len());
    }
    request.integers("groups", groups.into_iter());
    request.integers("group_offsets", group_offsets.into_iter());
    let lengths = places.iter().map(|&place| mask.row(place).iter().filter(|&&on| on).count());
    request.integers("lengths", lengths);
    let mut offsets = vec![0];
    let mut flags = Vec::with_capacity(scored.num_tokens);
    for &place in places {
        flags.extend_from_slice(mask.row(place));
        offsets.push(flags.len());
    }
    request.integers("offsets", offsets.into_iter());
    request.flags("mask", &flags);
    let token_rewards = batch.token_rewards.map(|rows| {
        let numbers: Vec<f64> = places.iter().flat_map(|&place| rows.row(place)).copied().collect();
        numbers.into_iter()
    });
    request.floats("token_rewards", token_rewards);
    match batch.components {
        Some(components) => {
            for component in components {
                let name = format!("scores.{}", component.name);
                request.floats(&name, Some(of(component.rewards.values())));
            }
        }
        None => request.floats("scores", None::<std::vec::IntoIter<f64>>),
    }
    request
}
