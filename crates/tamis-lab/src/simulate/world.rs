//! The world of a simulation, which is the same for every policy.

use tamis_config::{
    Config, SimulateConfig, SimulatedDriftConfig, SimulatedPublicationConfig, SimulatedServersConfig,
    SimulatedTrainTimeConfig,
};
use tamis_core::schedule::InFlight;

use crate::Fault;
use crate::simulate::completion::Completions;
use crate::simulate::fleet::FleetSettings;
use crate::simulate::pass_rates::Population;

/// Steps of a policy if the user gives no number of groups.
const STEPS: usize = 60;
/// Upper limit on completions of a batch: policies have up to eight batches in flight.
const MOST_COMPLETIONS: usize = 1 << 22;
/// Upper limit on completions in flight.
pub(crate) const MOST_IN_FLIGHT: usize = 8 * MOST_COMPLETIONS;

/// Prompts, completions, servers and a learner. All policies of a simulation share them.
#[derive(Debug, Clone)]
pub struct SimulatedWorld {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Groups of a step.
    pub train_batch_size: usize,
    /// Steps of each policy.
    pub steps: u64,
    /// Steps before the first measured one.
    pub warm_up: u64,
    /// Prompts.
    pub population: Population,
    /// Completions.
    pub completions: Completions,
    /// Change of the pass rates.
    pub drift: SimulatedDriftConfig,
    pub(crate) servers: Option<FleetSettings>,
    pub(crate) reward_latency: f64,
    pub(crate) train_time: SimulatedTrainTimeConfig,
    pub(crate) publication: SimulatedPublicationConfig,
    pub(crate) in_flight: InFlight,
}

impl SimulatedWorld {
    /// Builds the world of a configuration.
    ///
    /// # Errors
    /// Pass rates cannot be read, or sizes are too large to simulate.
    pub fn new(config: &Config, keys: &SimulateConfig) -> Result<Self, Fault> {
        let train_batch_size = config.data.train_batch_size;
        let (groups, members) = (config.gen_batch_size().max(train_batch_size), config.rollout.n);
        if groups.saturating_mul(members) > MOST_COMPLETIONS {
            let message = format!(
                "a batch of {groups} groups of {members} is {} completions, and a simulation has at most \
                 {MOST_COMPLETIONS} in a batch",
                groups.saturating_mul(members)
            );
            return Err(Fault::usage(message).with_hint(
                "lower `data.train_batch_size` or `rollout.n`: costs of a batch an eighth as large are nearly the same",
            ));
        }
        let (prompt, longest) = (keys.length.prompt, config.rollout.max_response_length);
        if let Some(kv_tokens) = keys.servers.as_ref().and_then(|servers| servers.kv_tokens)
            && kv_tokens < prompt.saturating_add(longest)
        {
            let message = format!(
                "`simulate.servers.kv_tokens` {kv_tokens} cannot hold one completion: a prompt of {prompt} tokens and up to \
                 {longest} tokens after it"
            );
            return Err(Fault::usage(message).with_hint(format!(
                "set `simulate.servers.kv_tokens: {}` or more, or lower `rollout.max_response_length`",
                prompt + longest
            )));
        }
        let groups = keys.groups.unwrap_or(STEPS * train_batch_size);
        let steps = groups.div_ceil(train_batch_size) as u64;
        let completions = Completions::new(config, &keys.length);
        let fleet = |servers: &SimulatedServersConfig| FleetSettings {
            count: servers.count,
            slots: servers.slots.unwrap_or(config.rollout.max_num_seqs),
            iteration: servers.iteration,
            load: servers.load,
            context: servers.context,
            kv_tokens: servers.kv_tokens.map(|tokens| tokens as f64),
            prefill_rate: servers.prefill_rate,
            prompt: completions.prompt,
        };
        Ok(Self {
            seed: config.run.seed,
            train_batch_size,
            steps,
            warm_up: steps / 2,
            population: Population::new(&keys.pass_rate, config.run.seed)?,
            servers: keys.servers.as_ref().map(fleet),
            completions,
            drift: keys.drift.clone(),
            reward_latency: keys.reward_latency,
            train_time: keys.train_time.clone(),
            publication: keys.publication.clone(),
            in_flight: keys.publication.in_flight.or(config.publish.pause).unwrap_or(InFlight::Keep),
        })
    }
}
