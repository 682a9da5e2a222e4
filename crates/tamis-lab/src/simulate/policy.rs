//! The policies that a simulation compares, named after the systems that use them.
//!
//! Each one is the scheduler of tamis-core with settings that make it behave like that system. Only verl's
//! default trainer needs code of its own: no settings reproduce its replay buffer.

use tamis_config::{Config, ScheduleMode, SimulatedPolicy};
use tamis_core::filter::{GroupFilter, Metric};
use tamis_core::schedule::{
    Admission, FillOrder, OnExhausted, OnLimit, RoundLimit, RoundSize, ScheduleError, ScheduleSettings,
    Scheduler, StreamingSettings, Surplus,
};

use tamis_core::schedule::selector::{
    DifficultyPools, InclusionWeights, Posterior, Selector, ZeroVarianceSkip,
};

use crate::simulate::machine::Machine;
use crate::simulate::replay_buffer::{ReplayBuffer, VerlTrainer};
use crate::simulate::world::SimulatedWorld;

/// EasyR1's limit on rounds.
const EASYR1_LIMIT: i64 = 3;
/// Groups in flight, in batches, if a system has no limit of its own.
const MOST_BATCHES: usize = 8;
/// SkyRL's `max_staleness_steps` and `num_parallel_generation_workers`.
const SKYRL_STALENESS: u64 = 4;
const SKYRL_WORKERS: usize = 768;
/// AReaL's `max_head_offpolicyness` in its examples.
const AREAL_STALENESS: u64 = 2;
/// Number of first members for `screening` if the run gives none.
const FIRST_MEMBERS: usize = 4;
/// verl's `max_off_policy_threshold` of 8 versions in steps. The threshold includes the sampling version.
const VERL_STALENESS: u64 = 7;
/// prime-rl's `max_off_policy_steps`.
const PRIME_RL_STALENESS: u64 = 8;
/// prime-rl counts samples in flight and keeps the slots full while the last members of groups end. In
/// groups, that is about this many times what the slots hold.
const PRIME_RL_WAVES: usize = 4;

/// A policy at the start of a run.
pub(crate) struct Policy {
    pub(crate) machine: Machine,
    pub(crate) selector: Selector,
    /// Whether a chosen group is weighted by 1 / (its probability of being chosen).
    pub(crate) is_weighted: bool,
    /// Whether prompts of unused groups are drawn again.
    pub(crate) takes_back: bool,
}

/// The filter of every policy: the configuration's, or `variance` if it has none.
pub(crate) fn filter_of(config: &Config) -> GroupFilter {
    config.filter.as_ref().map(|filter| filter.kind).unwrap_or_default()
}

fn base(config: &Config) -> ScheduleSettings {
    ScheduleSettings {
        gen_batch_size: config.data.train_batch_size,
        filter: Some(filter_of(config)),
        ..ScheduleSettings::new(config.data.train_batch_size, config.rollout.n)
    }
}

pub(crate) fn policy(
    name: SimulatedPolicy,
    config: &Config,
    world: &SimulatedWorld,
) -> Result<Policy, ScheduleError> {
    let base = base(config);
    let (batch, n) = (base.train_batch_size, base.group_size);
    let carry = |max_lag| Surplus::Carry { max_lag };
    let policy_of =
        |machine| Policy { machine, selector: Selector::default(), is_weighted: false, takes_back: true };
    let plain = |machine| policy_of(Machine::Scheduler(machine));
    let of_others = |machine| Policy { takes_back: false, ..plain(machine) };
    let of_verl = |run: ScheduleSettings, trainer| -> Result<Policy, ScheduleError> {
        let machine = Machine::Polled(ReplayBuffer::new(run, trainer)?);
        Ok(Policy { takes_back: false, ..policy_of(machine) })
    };
    let rounds = |run: ScheduleSettings| Scheduler::rounds(run);
    let stream = |run: ScheduleSettings, max_in_flight: usize, admission: Admission| {
        Scheduler::streaming_with(StreamingSettings { run, mini_batch_size: batch, max_in_flight }, admission)
    };
    let in_flight = max_in_flight(name, config, world);
    let own_mini_batch = if config.schedule.early_updates { config.mini_batch_size() } else { batch };
    let own_stream = |surplus: Surplus, order: FillOrder| {
        Scheduler::streaming(StreamingSettings {
            run: ScheduleSettings { surplus, order, ..base.clone() },
            mini_batch_size: own_mini_batch,
            max_in_flight: in_flight,
        })
    };
    let deficit = RoundSize::Deficit {
        granularity: config.schedule.granularity.unwrap_or(1),
        margin: config.schedule.margin,
    };
    let one_by_one = Admission::Replace { chunk: 1 };
    let completion = ScheduleSettings { order: FillOrder::Completion, ..base.clone() };
    let one_round = |on_limit, gen_batch_size| ScheduleSettings {
        gen_batch_size,
        max_num_gen_batches: RoundLimit::Rounds(1),
        on_limit,
        seed: config.run.seed,
        ..base.clone()
    };
    Ok(match name {
        SimulatedPolicy::Configured => {
            choosing(plain(configured(config, in_flight)?), config.schedule.selector)
        }
        SimulatedPolicy::Verl => {
            let run = ScheduleSettings::verl(batch, config.data.gen_batch_size.unwrap_or(batch), n, 0);
            of_others(rounds(ScheduleSettings { filter: base.filter, ..run })?)
        }
        SimulatedPolicy::VerlV1 => {
            of_verl(base.clone(), VerlTrainer::Synchronous { max_in_flight: in_flight })?
        }
        SimulatedPolicy::VerlV1Async => {
            let max_lag = config.schedule.max_lag.map_or(VERL_STALENESS, |max_lag| max_lag as u64);
            let run = ScheduleSettings { surplus: carry(max_lag), ..base.clone() };
            of_verl(run, VerlTrainer::Asynchronous { max_lag })?
        }
        SimulatedPolicy::Easyr1 => {
            let run = ScheduleSettings::easyr1(batch, n, EASYR1_LIMIT);
            // The metric separates outcomes from other numbers.
            of_others(rounds(ScheduleSettings { filter: base.filter, metric: base.metric.clone(), ..run })?)
        }
        SimulatedPolicy::NemoRl | SimulatedPolicy::Skyrl => {
            let run = ScheduleSettings::verl(batch, batch, n, 0);
            of_others(rounds(ScheduleSettings { filter: base.filter, ..run })?)
        }
        SimulatedPolicy::SkyrlReplace => of_others(rounds(one_round(OnLimit::Duplicate, batch))?),
        SimulatedPolicy::SlimeFallback => {
            // Its `over_sampling_batch_size`.
            let over_sampling = config.data.gen_batch_size.unwrap_or(batch).max(batch);
            of_others(rounds(one_round(OnLimit::KeepDropped, over_sampling))?)
        }
        SimulatedPolicy::SkyrlAsync => {
            let run = ScheduleSettings { surplus: carry(SKYRL_STALENESS), ..completion };
            of_others(stream(run, in_flight, one_by_one)?)
        }
        SimulatedPolicy::Openrlhf => of_others(stream(completion, batch, one_by_one)?),
        SimulatedPolicy::Slime => {
            of_others(stream(completion, usize::MAX, Admission::Replace { chunk: batch })?)
        }
        SimulatedPolicy::Areal => {
            let run = ScheduleSettings { surplus: carry(AREAL_STALENESS), ..base.clone() };
            of_others(stream(run, batch, one_by_one)?)
        }
        SimulatedPolicy::PrimeRl => {
            let run = ScheduleSettings { surplus: carry(PRIME_RL_STALENESS), ..completion };
            of_others(stream(run, in_flight, Admission::Saturate)?)
        }
        SimulatedPolicy::RoundsCarry => {
            let gen_batch_size = config.data.gen_batch_size.unwrap_or(batch);
            plain(rounds(ScheduleSettings { surplus: carry(1), gen_batch_size, ..base.clone() })?)
        }
        SimulatedPolicy::Deficit => plain(rounds(ScheduleSettings { size: deficit, ..base.clone() })?),
        SimulatedPolicy::DeficitCarry => {
            plain(rounds(ScheduleSettings { size: deficit, surplus: carry(1), ..base.clone() })?)
        }
        SimulatedPolicy::Streaming => plain(own_stream(Surplus::Discard, FillOrder::Dispatch)?),
        SimulatedPolicy::StreamingCarry => plain(own_stream(carry(1), FillOrder::Dispatch)?),
        SimulatedPolicy::Screening => {
            let screen_first = first_members(config);
            plain(Scheduler::streaming(StreamingSettings {
                run: ScheduleSettings { surplus: carry(1), screen_first, ..base.clone() },
                mini_batch_size: own_mini_batch,
                max_in_flight: in_flight,
            })?)
        }
        SimulatedPolicy::StreamingCarryCompletion => plain(own_stream(carry(1), FillOrder::Completion)?),
        SimulatedPolicy::ZeroVarianceSkip
        | SimulatedPolicy::DifficultyPools
        | SimulatedPolicy::Posterior
        | SimulatedPolicy::PosteriorBiased => {
            let blind = plain(own_stream(carry(1), FillOrder::Dispatch)?);
            let policy = choosing(blind, selector_of(name, config));
            // The name decides whether groups are weighted.
            let is_weighted = name == SimulatedPolicy::Posterior
                || name != SimulatedPolicy::PosteriorBiased && policy.is_weighted;
            Policy { is_weighted, ..policy }
        }
    })
}

/// The same policy with a selector.
fn choosing(policy: Policy, selector: Selector) -> Policy {
    let is_weighted = selector.correction() == InclusionWeights::Corrected;
    Policy { selector, is_weighted, ..policy }
}

/// The selector of a policy, with the run's settings if the run uses the same kind.
fn selector_of(name: SimulatedPolicy, config: &Config) -> Selector {
    let selector = match name {
        SimulatedPolicy::ZeroVarianceSkip => Selector::ZeroVarianceSkip(ZeroVarianceSkip::default()),
        SimulatedPolicy::DifficultyPools => Selector::DifficultyPools(DifficultyPools::default()),
        SimulatedPolicy::Posterior | SimulatedPolicy::PosteriorBiased => {
            Selector::Posterior(Posterior::default())
        }
        _ => Selector::default(),
    };
    let own = config.schedule.selector;
    if own.as_str() == selector.as_str() { own } else { selector }
}

/// Upper limit on a policy's groups in flight.
pub(crate) fn max_in_flight(name: SimulatedPolicy, config: &Config, world: &SimulatedWorld) -> usize {
    let batch = config.data.train_batch_size;
    match (name, config.schedule.rounds_in_flight) {
        (SimulatedPolicy::SkyrlAsync, _) => SKYRL_WORKERS,
        (SimulatedPolicy::PrimeRl, _) => {
            // Without servers, as many as a batch needs.
            let slots = world.servers.map_or(batch, |fleet| fleet.num_slots().div_ceil(config.rollout.n));
            slots.saturating_mul(PRIME_RL_WAVES).max(1)
        }
        // Its `max_inflight_gen_batches` is 1.
        (SimulatedPolicy::VerlV1, None) => batch,
        (SimulatedPolicy::VerlV1Async, _) => 2 * batch,
        (SimulatedPolicy::Configured | SimulatedPolicy::VerlV1, Some(rounds)) => {
            rounds.saturating_mul(config.data.gen_batch_size.unwrap_or(batch))
        }
        _ if world.servers.is_some() => MOST_BATCHES * batch,
        // Groups end in the order of their start, so more groups in flight would only be older.
        _ => batch,
    }
}

/// Number of first members: the run's, or [`FIRST_MEMBERS`] but less than n. `None` if first members do not
/// decide the filter's verdict on the whole group.
fn first_members(config: &Config) -> Option<usize> {
    let n = config.rollout.n;
    let first = config.schedule.screen_first.unwrap_or(FIRST_MEMBERS.min(n.saturating_sub(1)));
    let tells = filter_of(config).is_certain(0.0, f64::MAX);
    (tells && first > 1 && first < n).then_some(first)
}

/// The scheduler of the run's own schedule, without an end of its own.
fn configured(config: &Config, in_flight: usize) -> Result<Scheduler, ScheduleError> {
    let run = ScheduleSettings {
        total_steps: None,
        total_epochs: None,
        gen_batch_size: config.data.gen_batch_size.unwrap_or(config.data.train_batch_size),
        ..config.schedule_settings(Some(filter_of(config)), Metric::from("acc"))
    };
    let run = match (config.schedule.on_exhausted, run.max_num_gen_batches) {
        (OnExhausted::Stop, _) => ScheduleSettings { on_exhausted: OnExhausted::NextEpoch, ..run },
        (_, RoundLimit::None) => ScheduleSettings { on_limit: OnLimit::default(), ..run },
        _ => run,
    };
    if config.schedule.mode != ScheduleMode::Streaming {
        return Scheduler::rounds(run);
    }
    let early = config.schedule.early_updates;
    let mini_batch_size = if early { config.mini_batch_size() } else { run.train_batch_size };
    Scheduler::streaming(StreamingSettings { run, mini_batch_size, max_in_flight: in_flight })
}
