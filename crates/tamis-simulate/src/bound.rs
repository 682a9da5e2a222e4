//! The least that a policy can do with which every prompt is as likely as any other.

use tamis_core::schedule::yields::keep_probability;

use crate::world::World;

/// Groups whose lengths give a mean.
const SAMPLES: usize = 20_000;

/// A bound from below for every policy that does not choose prompts, at the pass rates of the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowerBound {
    /// 1 / k, with the mean keep probability k.
    pub generated_per_kept: f64,
    /// Seconds of a step whose tokens, 1 / k times those that are trained on, are decoded with every slot full, or
    /// of training it, whichever is longer. None without servers.
    pub step_time: Option<f64>,
}

impl LowerBound {
    /// Of a world.
    pub fn new(world: &World) -> Self {
        let n = world.completions.group_size();
        let keep = world.population.rates().map(|rate| keep_probability(rate, n)).sum::<f64>()
            / world.population.len() as f64;
        let generated_per_kept = 1.0 / keep;
        let stride = world.population.len().div_ceil(SAMPLES).max(1);
        let (mut tokens, mut groups) = (0.0, 0.0);
        for (prompt, rate) in world.population.rates().enumerate().step_by(stride) {
            let members = world.completions.group(prompt, u32::MAX, rate);
            tokens += members.iter().map(|member| f64::from(member.length)).sum::<f64>();
            groups += 1.0;
        }
        let of_step = world.train_batch_size as f64 * tokens / groups;
        let step_time = world.servers.map(|fleet| {
            let a_second = (fleet.slots * fleet.count) as f64 / fleet.iteration_time(fleet.slots, 0.0);
            let training = world.train_time.step + world.train_time.token * of_step;
            (of_step * generated_per_kept / a_second).max(training)
        });
        Self { generated_per_kept, step_time }
    }
}
