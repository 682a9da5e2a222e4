//! Simulates all policies in one world, and collects their results and warnings.

use serde::{Serialize, Serializer};
use tamis_config::{Config, SimulateConfig, SimulatedPassRates, SimulatedPolicy};
use tamis_core::figure::fixed;
use tamis_core::schedule::selector::Selector;
use tamis_core::schedule::{ScheduleError, SettingsError, Surplus};

use crate::Fault;
use crate::simulate::bound::{LowerBound, NoBound};
use crate::simulate::driver::{self, Played, Span};
use crate::simulate::facts::{Fact, facts, left_at_default};
use crate::simulate::measure::PolicyResult;
use crate::simulate::policy::{Policy, filter_of, max_in_flight, policy};
use crate::simulate::world::{MOST_IN_FLIGHT, SimulatedWorld};

/// With fewer steps, numbers have little meaning.
const FEW_STEPS: u64 = 10;
/// With fewer passes over the data, choosing prompts saves almost nothing.
const FEW_PASSES: f64 = 2.0;

/// Results of all policies. The JSON form is `{"policies": [...], "seed", "groups", "bound"}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Simulation {
    /// Results in the requested order.
    pub policies: Vec<PolicyResult>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Groups that each policy was to train on, including those before the first measured step.
    pub groups: u64,
    /// Steps that each policy was to train.
    #[serde(skip)]
    pub steps: u64,
    /// Lower bound for policies that do not choose prompts; `null` in JSON if there is none.
    #[serde(serialize_with = "bound_or_null")]
    pub bound: Result<LowerBound, NoBound>,
    /// Policies that this world cannot run, with the reason.
    #[serde(skip)]
    pub left_out: Vec<(SimulatedPolicy, String)>,
    /// Policies that choose prompts by their earlier results.
    #[serde(skip)]
    pub choosing: Vec<SimulatedPolicy>,
    /// Number of prompts in the rollouts that pass rates come from, if these represent the whole data.
    #[serde(skip)]
    pub sampled_prompts: Option<usize>,
    /// Notes about the world and the policies in it.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Description of the world.
    #[serde(skip)]
    pub world: Vec<Fact>,
    /// First measured step of a policy that reaches its last step.
    #[serde(skip)]
    pub first_measured: u64,
    /// Keys or sections of the world that the user did not set.
    #[serde(skip)]
    pub defaults: Vec<String>,
}

fn bound_or_null<S: Serializer>(
    bound: &Result<LowerBound, NoBound>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    bound.ok().serialize(serializer)
}

/// Progress of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulationProgress {
    /// The current policy.
    pub policy: SimulatedPolicy,
    /// Steps that it has trained.
    pub steps: u64,
    /// Steps that it will train.
    pub of: u64,
    /// Groups that it has started.
    pub groups: u64,
}

/// Simulates the policies of a configuration.
///
/// # Errors
/// Pass rates cannot be read, or a policy's settings contradict each other.
pub fn simulate(config: &Config) -> Result<Simulation, Fault> {
    simulate_watched(config, &mut |_| {})
}

/// As [`simulate`], and reports progress to `watch`.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_watched(
    config: &Config,
    watch: &mut dyn FnMut(SimulationProgress),
) -> Result<Simulation, Fault> {
    let keys = keys_of(config);
    let world = SimulatedWorld::new(config, &keys)?;
    let (names, are_all) = match &keys.policies[..] {
        [] => (SimulatedPolicy::ALL, true),
        named => (named, false),
    };
    play_all(&world, config, names, are_all, watch)
}

/// Simulates policies in a world.
///
/// # Errors
/// A policy's settings contradict each other.
pub fn simulate_in(
    world: &SimulatedWorld,
    config: &Config,
    names: &[SimulatedPolicy],
) -> Result<Simulation, Fault> {
    play_all(world, config, names, false, &mut |_| {})
}

/// Runs policies. Those that this world cannot run may be left out.
fn play_all(
    world: &SimulatedWorld,
    config: &Config,
    names: &[SimulatedPolicy],
    leaves_out: bool,
    watch: &mut dyn FnMut(SimulationProgress),
) -> Result<Simulation, Fault> {
    let (mut ready, mut left_out) = (Vec::new(), Vec::new());
    let mut notes = world.population.warnings().to_vec();
    if let Some(lengths) =
        world.population.lengths().filter(|_| keys_of(config).length == SimulateConfig::default().length)
    {
        notes.push(format!(
            "rollouts of `simulate.pass_rate.path` have lengths of completions, but the simulation uses the defaults of \
            `simulate.length`: set theirs with `{lengths}`"
        ));
    }
    let mut max_lag = 0;
    for &name in names {
        match checked(name, config, world) {
            Ok(policy) => {
                if let Surplus::Carry { max_lag: lag } = policy.machine.settings().surplus {
                    max_lag = max_lag.max(lag);
                }
                if name == SimulatedPolicy::Screening && policy.machine.settings().screen_first.is_none() {
                    notes.push(whole_groups(config));
                }
                ready.push((name, policy));
            }
            Err(Refused { reason: Some(reason), .. }) if leaves_out => left_out.push((name, reason)),
            Err(refused) => return Err(refused.fault),
        }
    }
    let is_choosing = |policy: &Policy| !matches!(policy.selector, Selector::Shuffle(_));
    let choosing = ready.iter().filter(|(_, policy)| is_choosing(policy)).map(|(name, _)| *name).collect();
    let stands_for_all = matches!(&keys_of(config).pass_rate, SimulatedPassRates::Rollouts(rollouts) if rollouts.prompts.is_none());
    let policies = ready
        .into_iter()
        .map(|(name, policy)| play(name, policy, config, world, watch))
        .collect::<Result<_, _>>()?;
    Ok(Simulation {
        policies,
        seed: world.seed,
        groups: world.steps * world.train_batch_size as u64,
        steps: world.steps,
        bound: LowerBound::new(world, filter_of(config), max_lag),
        left_out,
        notes,
        choosing,
        sampled_prompts: stands_for_all.then(|| world.population.len()),
        world: facts(config, world),
        first_measured: world.warm_up + 1,
        defaults: Vec::new(),
    })
}

/// Why `screening` starts whole groups.
fn whole_groups(config: &Config) -> String {
    let filter = filter_of(config);
    let why = if filter.is_certain(0.0, f64::MAX) {
        format!("groups of {} have no fewer first members that could differ", config.rollout.n)
    } else {
        format!("first members do not predict how the filter `{filter}` judges a whole group")
    };
    format!("the policy `screening` is `streaming_carry` here: {why}")
}

/// A policy that cannot run.
struct Refused {
    fault: Fault,
    /// Why it is left out, if other policies can run.
    reason: Option<String>,
}

/// The error for a policy whose settings contradict each other.
fn contradiction(name: SimulatedPolicy, source: ScheduleError) -> Fault {
    let hint = if is_pool(&source) {
        "name policies that have rounds with `simulate.policies`, such as `verl`, `nemo_rl`, `rounds_carry` and \
         `deficit`; an empty list takes all that have"
            .to_owned()
    } else {
        format!("name other policies than `{name}` with `simulate.policies`, or change its settings")
    };
    Fault::usage(format!("the policy `{name}` cannot be simulated")).with_hint(hint).with_source(source)
}

fn is_pool(error: &ScheduleError) -> bool {
    matches!(error, ScheduleError::Settings(SettingsError::PoolFilter { .. }))
}

/// The policy with a name, if the world can run it.
fn checked(name: SimulatedPolicy, config: &Config, world: &SimulatedWorld) -> Result<Policy, Refused> {
    let members = world.completions.group_size();
    let groups = max_in_flight(name, config, world);
    if groups.saturating_mul(members) > MOST_IN_FLIGHT {
        let message = format!(
            "the policy `{name}` has {groups} groups of {members} in flight, and a simulation at most {MOST_IN_FLIGHT} \
             completions"
        );
        let keys = match name {
            SimulatedPolicy::PrimeRl => "`simulate.servers.slots` or `simulate.servers.count`",
            SimulatedPolicy::Configured => "`schedule.rounds_in_flight`",
            _ => "`rollout.n`",
        };
        let hint = format!("lower {keys}, or name other policies than `{name}` with `simulate.policies`");
        return Err(Refused { fault: Fault::usage(&message).with_hint(hint), reason: Some(message) });
    }
    policy(name, config, world).map_err(|source| {
        let reason = is_pool(&source).then(|| source.to_string());
        Refused { fault: contradiction(name, source), reason }
    })
}

/// Runs a policy. If it ends early, it is run again up to its last step, so that the second half of its steps
/// is measured.
fn play(
    name: SimulatedPolicy,
    policy: Policy,
    config: &Config,
    world: &SimulatedWorld,
    watch: &mut dyn FnMut(SimulationProgress),
) -> Result<PolicyResult, Fault> {
    let failed = |source| contradiction(name, source);
    let of = world.steps;
    let mut tell = |steps, groups| watch(SimulationProgress { policy: name, steps, of, groups });
    let span = Span { steps: of, warm_up: world.warm_up };
    let Played { result, ended } = driver::run(name, policy, world, span, &mut tell).map_err(failed)?;
    let Some(why) = ended else { return Ok(result) };
    let steps = result.steps;
    let again = checked(name, config, world).map_err(|refused| refused.fault)?;
    let span = Span { steps, warm_up: steps / 2 };
    let Played { result, .. } = driver::run(name, again, world, span, &mut tell).map_err(failed)?;
    Ok(PolicyResult { ended: Some(why), ..result })
}

impl Simulation {
    /// Warnings for the reader of the numbers, in whole sentences.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.notes.clone();
        if self.steps < FEW_STEPS {
            warnings.push(format!(
                "{} of {} groups: the second half of so few steps means little, because servers have hardly filled and chance is large; \
                raise `simulate.groups`",
                if self.steps == 1 { "one step".to_owned() } else { format!("{} steps", self.steps) },
                self.groups / self.steps.max(1)
            ));
        }
        warnings.extend(self.warn_of_passes());
        let mut reasons: Vec<&str> = Vec::new();
        for (_, reason) in &self.left_out {
            if !reasons.contains(&&**reason) {
                reasons.push(reason);
            }
        }
        for reason in reasons {
            let names: Vec<String> = self
                .left_out
                .iter()
                .filter(|(_, why)| why == reason)
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            warnings.push(format!("left out: {}: {reason}", names.join(", ")));
        }
        for policy in &self.policies {
            if let Some(why) = &policy.ended {
                let PolicyResult { name, steps, .. } = policy;
                let numbers = if *steps == 0 { "it has no numbers" } else { "its numbers are of these" };
                warnings.push(format!(
                    "the policy `{name}` ended after {steps} of {} steps, and {numbers}: {why}",
                    self.steps
                ));
            }
        }
        warnings
    }

    /// The same simulation, which then names the keys of the world that the user did not set.
    #[must_use]
    pub fn with_defaults(self, config: &Config, is_given: impl Fn(&str) -> bool) -> Self {
        Self { defaults: left_at_default(config, is_given), ..self }
    }

    /// A note about keys that the user did not set, if there are any.
    pub(crate) fn of_defaults(&self) -> Option<String> {
        let names: Vec<String> = self.defaults.iter().map(|name| format!("`{name}`")).collect();
        (!names.is_empty()).then(|| {
            format!("Left at their defaults, which are not measured on your system: {}.", names.join(", "))
        })
    }

    /// The steps that the lower bound covers, if a policy that ended early covers others.
    pub(crate) fn steps_of_bound(&self) -> String {
        if self.policies.iter().all(|policy| policy.ended.is_none()) {
            return String::new();
        }
        format!(
            " over steps {} to {}, which are not those of a policy that ended early",
            self.first_measured, self.steps
        )
    }

    /// Warnings about numbers that depend on the amount of data, for policies that choose prompts.
    fn warn_of_passes(&self) -> Vec<String> {
        let choosing = || self.policies.iter().filter(|policy| self.choosing.contains(&policy.name));
        let list = |policies: Vec<&PolicyResult>| {
            let each: Vec<String> = policies
                .iter()
                .map(|policy| format!("`{}` ({})", policy.name, fixed(policy.passes, 1)))
                .collect();
            each.join(", ")
        };
        let mut warnings = Vec::new();
        let few: Vec<&PolicyResult> = choosing().filter(|policy| policy.passes < FEW_PASSES).collect();
        if !few.is_empty() {
            warnings.push(format!(
                "fewer than {FEW_PASSES} passes over the data: {}; prompts are chosen by their results in earlier passes, which saves \
                little in so few: raise `simulate.groups` to what your run trains on",
                list(few)
            ));
        }
        if let Some(prompts) = self.sampled_prompts
            && !self.choosing.is_empty()
        {
            warnings.push(format!(
                "the {prompts} prompts of the rollouts stand for all of the data, with this many passes over them: {}; of more prompts \
                fewer are known, and choosing saves less: set `simulate.pass_rate.prompts` to the number in your data",
                list(choosing().collect())
            ));
        }
        warnings
    }

    /// Whether no policy reached its last step.
    pub fn all_ended(&self) -> bool {
        self.policies.iter().all(|policy| policy.ended.is_some())
    }
}

/// The keys under `simulate`, or their defaults.
pub(crate) fn keys_of(config: &Config) -> SimulateConfig {
    config.simulate.clone().unwrap_or_default()
}
