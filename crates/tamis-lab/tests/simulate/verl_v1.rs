//! The policies `verl_v1` and `verl_v1_async` beside verl's own replay buffer.
//!
//! The numbers of verl's buffer were measured with verl 0.9.1 (4,000 steps of 16 groups of 8 at seed 1):
//!
//! ```text
//! pip download verl==0.9.1 --no-deps -d /tmp/verl
//! python3 bench/peers/verl_buffer.py /tmp/verl/verl-0.9.1-py3-none-any.whl --steps 4000
//! ```

use tamis_config::{
    Config, HistogramRates, SimulateConfig, SimulatedLengthConfig, SimulatedPassRates, SimulatedPolicy,
    SimulatedServersConfig,
};
use tamis_lab::simulate::{PolicyResult, simulate};

const BATCH: usize = 16;

/// Measured results of verl's buffer.
struct Measured {
    policy: SimulatedPolicy,
    pass_rate: f64,
    /// Generated groups per trained group.
    generated: f64,
    /// Polls per step, two seconds apart.
    polls: f64,
    /// Surplus groups per trained group.
    surplus: f64,
}

const fn measured(policy: SimulatedPolicy, pass_rate: f64, numbers: [f64; 3]) -> Measured {
    let [generated, polls, surplus] = numbers;
    Measured { policy, pass_rate, generated, polls, surplus }
}

/// At keep rates of 0.2, 0.38 and 0.7.
const MEASURED: [Measured; 6] = [
    measured(SimulatedPolicy::VerlV1, 0.027_51, [5.790, 20.07, 0.158]),
    measured(SimulatedPolicy::VerlV1, 0.058_00, [3.393, 12.97, 0.291]),
    measured(SimulatedPolicy::VerlV1, 0.139_72, [1.798, 9.19, 0.259]),
    measured(SimulatedPolicy::VerlV1Async, 0.027_51, [5.004, 10.00, 0.0]),
    measured(SimulatedPolicy::VerlV1Async, 0.058_00, [2.631, 5.15, 0.0]),
    measured(SimulatedPolicy::VerlV1Async, 0.139_72, [1.429, 2.80, 0.0]),
];

fn world(policy: SimulatedPolicy, pass_rate: f64) -> Config {
    let mut config = Config::default();
    config.data.train_batch_size = BATCH;
    config.rollout.n = 8;
    config.rollout.max_response_length = 1_000_000;
    config.run.seed = 5;
    let rates = HistogramRates { rates: vec![pass_rate], counts: vec![1.0], prompts: 6000 };
    let servers = SimulateConfig::default().servers.unwrap();
    let length = SimulateConfig::default().length;
    config.simulate = Some(SimulateConfig {
        pass_rate: SimulatedPassRates::Histogram(rates),
        length: SimulatedLengthConfig { median: Some(100.0), sigma: 0.6, ..length },
        // Every token of every sample takes 20 ms.
        servers: Some(SimulatedServersConfig { slots: Some(1_000_000), load: 0.0, ..servers }),
        groups: Some(4000 * BATCH),
        policies: vec![policy],
        ..SimulateConfig::default()
    });
    config
}

fn simulated(config: &Config) -> PolicyResult {
    simulate(config).unwrap().policies.remove(0)
}

#[test]
fn the_buffer_generates_what_verl_s_own_does() {
    for Measured { policy, pass_rate, generated, polls, surplus } in MEASURED {
        let found = simulated(&world(policy, pass_rate));
        let ratio = found.generated_per_kept.unwrap() / generated;
        assert!((ratio - 1.0).abs() < 0.03, "{policy} at {pass_rate}: {ratio} of {generated}");
        let ratio = found.step_time.unwrap() / (2.0 * polls);
        assert!((ratio - 1.0).abs() < 0.03, "{policy} at {pass_rate}: {ratio} of {polls} looks");
        let wasted = found.wasted.get("surplus").copied().unwrap_or(0.0);
        assert!((wasted - surplus).abs() < 0.03 * generated, "{policy} at {pass_rate}: surplus {wasted}");
        assert!(found.ended.is_none() && (found.kept_share.unwrap() - 1.0).abs() < 1e-12, "{found:?}");
    }
}

/// Two batches in flight waste more: 3.86 to 3.88 groups per trained group, compared to 3.36 with one batch.
/// Without servers, a poll comes when every started group has ended.
#[test]
fn more_in_flight_costs_more_and_no_clock_is_needed() {
    let mut config = world(SimulatedPolicy::VerlV1, 0.058);
    let of = |config: &Config| simulated(config).generated_per_kept.unwrap();
    let one = of(&config);
    config.schedule.rounds_in_flight = Some(2);
    let two = of(&config);
    assert!((two / one - 3.87 / 3.36).abs() < 0.04, "{two} {one}");
    config.schedule.rounds_in_flight = None;
    for policy in [SimulatedPolicy::VerlV1, SimulatedPolicy::VerlV1Async] {
        let mut config = world(policy, 0.058);
        config.simulate.as_mut().unwrap().servers = None;
        let found = simulated(&config);
        assert!(found.ended.is_none() && found.step_time.is_none(), "{found:?}");
        assert!((2.5..3.7).contains(&found.generated_per_kept.unwrap()), "{found:?}");
    }
}

/// verl has no limit and runs forever if no group is kept. Here that ends the policy with a reason.
#[test]
fn data_that_teach_nothing_end_the_policy() {
    for policy in [SimulatedPolicy::VerlV1, SimulatedPolicy::VerlV1Async] {
        let found = simulated(&world(policy, 0.0));
        let why = found.ended.unwrap();
        assert!(found.steps == 0 && why.contains("continue for ever"), "{why}");
    }
}
