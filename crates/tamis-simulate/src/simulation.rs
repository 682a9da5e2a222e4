//! All policies in one world.

use serde::Serialize;
use tamis_config::{Config, SimulateConfig, SimulatedPolicy};

use crate::bound::LowerBound;
use crate::driver;
use crate::error::SimulateError;
use crate::measure::PolicyResult;
use crate::policy::policy;
use crate::world::World;

/// What the policies came to. As JSON it is `{"policies": [...], "seed", "groups"}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Simulation {
    /// The policies, in the order that was asked for.
    pub policies: Vec<PolicyResult>,
    /// Seed of whatever was random.
    pub seed: u64,
    /// Groups that each policy trained on, those before the first that is measured included.
    pub groups: u64,
    /// The least that is possible without choosing prompts.
    #[serde(skip)]
    pub bound: LowerBound,
    /// Policies that ended before their last step, with the reason.
    #[serde(skip)]
    pub notes: Vec<(SimulatedPolicy, String)>,
    /// What a person should know of the rollouts that pass rates are of.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// Simulates the policies of a configuration.
///
/// # Errors
/// Pass rates that cannot be read, settings of a policy that contradict themselves.
pub fn simulate(config: &Config) -> Result<Simulation, SimulateError> {
    let keys = keys_of(config);
    let world = World::new(config, &keys)?;
    let names = if keys.policies.is_empty() { SimulatedPolicy::ALL } else { &keys.policies };
    simulate_in(&world, config, names)
}

/// Simulates policies in a world.
///
/// # Errors
/// Settings of a policy that contradict themselves.
pub fn simulate_in(
    world: &World,
    config: &Config,
    names: &[SimulatedPolicy],
) -> Result<Simulation, SimulateError> {
    let (mut policies, mut notes) = (Vec::new(), Vec::new());
    for &name in names {
        let failed = |source| SimulateError::Schedule { policy: name, source };
        let (result, ended) =
            driver::run(name, policy(name, config, world).map_err(failed)?, world).map_err(failed)?;
        policies.push(result);
        notes.extend(ended.map(|ended| (name, ended)));
    }
    let groups = world.steps * world.train_batch_size as u64;
    let warnings = world.population.warnings().to_vec();
    Ok(Simulation { policies, seed: world.seed, groups, bound: LowerBound::new(world), notes, warnings })
}

/// The keys under `simulate`, or their defaults.
pub(crate) fn keys_of(config: &Config) -> SimulateConfig {
    config.simulate.clone().unwrap_or_default()
}
