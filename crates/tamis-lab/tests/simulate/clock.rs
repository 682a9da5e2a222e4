//! The clock against closed forms. Completions have one length, a batch fills the slots once, and every group
//! is kept. The slots decode a batch in D seconds, its rewards take R more, the learner T and the publication
//! of weights P.
//!
//! | | seconds of a step |
//! |---|---|
//! | the servers wait until the batch is trained and published | D + R + T + P |
//! | the servers continue during training; samples in flight are kept or finished first | D + P |
//! | the same; samples in flight are aborted, which loses T of their work | D + T + P |
//! | the same, and the learner is slower than the servers | T + P |

use tamis_config::{
    Config, FilterConfig, SimulateConfig, SimulatedLengthConfig, SimulatedPolicy, SimulatedPublicationConfig,
    SimulatedServersConfig, SimulatedTrainTimeConfig,
};
use tamis_core::filter::{Bounds, GroupFilter, MeanRange};
use tamis_core::schedule::InFlight;
use tamis_lab::simulate::{PolicyResult, simulate};

const BATCH: usize = 8;
const MEMBERS: usize = 8;
const TOKENS: usize = 100;
/// Seconds of an iteration with all slots running.
const ITERATION: f64 = 0.03;
const DECODING: f64 = TOKENS as f64 * ITERATION;
const IN_FLIGHT: [InFlight; 3] = [InFlight::Keep, InFlight::Abort, InFlight::Wait];

/// Seconds in addition to the servers' own.
#[derive(Debug, Clone, Copy)]
struct Seconds {
    rewards: f64,
    step: f64,
    token: f64,
    publication: f64,
}

const NONE: Seconds = Seconds { rewards: 0.0, step: 0.0, token: 0.0, publication: 0.0 };

fn config(seconds: Seconds, in_flight: InFlight) -> Config {
    let mut config = Config::default();
    config.data.train_batch_size = BATCH;
    config.rollout.n = MEMBERS;
    config.rollout.max_response_length = 20 * TOKENS;
    config.run.seed = 4;
    // Accepts every mean.
    let all = MeanRange { bounds: Bounds::Closed, ..MeanRange::default() };
    config.filter = Some(FilterConfig { kind: GroupFilter::MeanRange(all), metric: None });
    config.simulate = Some(SimulateConfig {
        length: SimulatedLengthConfig {
            median: Some(TOKENS as f64),
            sigma: 0.0,
            ..SimulatedLengthConfig::default()
        },
        servers: SimulateConfig::default().servers.map(|servers| SimulatedServersConfig {
            slots: Some(BATCH * MEMBERS),
            iteration: ITERATION / 1.5,
            load: 0.5,
            ..servers
        }),
        reward_latency: seconds.rewards,
        train_time: SimulatedTrainTimeConfig { step: seconds.step, token: seconds.token },
        publication: SimulatedPublicationConfig { time: seconds.publication, in_flight: Some(in_flight) },
        groups: Some(40 * BATCH),
        ..SimulateConfig::default()
    });
    config
}

fn run(mut config: Config, policy: SimulatedPolicy) -> PolicyResult {
    config.simulate.as_mut().unwrap().policies = vec![policy];
    let result = simulate(&config).unwrap().policies.into_iter().next().unwrap();
    assert_eq!(result.ended, None);
    result
}

fn assert_equal(found: Option<f64>, expected: f64, what: &str) {
    let found = found.unwrap();
    assert!((found / expected - 1.0).abs() < 1e-9, "{what}: {found} instead of {expected}");
}

#[test]
fn a_step_is_its_decoding_its_rewards_its_training_and_its_publication() {
    let all = Seconds { rewards: 1.25, step: 2.0, token: 1e-4, publication: 0.75 };
    let cases = [
        (NONE, 0.0),
        (Seconds { rewards: 1.25, ..NONE }, 1.25),
        (Seconds { step: 2.0, ..NONE }, 2.0),
        (Seconds { token: 1e-4, ..NONE }, 0.64),
        (Seconds { publication: 0.75, ..NONE }, 0.75),
        (all, 4.64),
    ];
    for in_flight in IN_FLIGHT {
        for (seconds, beside) in cases {
            let what = format!("{seconds:?}, {in_flight:?}");
            let found = run(config(seconds, in_flight), SimulatedPolicy::Verl);
            assert_equal(found.step_time, DECODING + beside, &what);
            // Slots decode, and wait the rest of the time.
            assert_equal(found.utilisation, DECODING / (DECODING + beside), &what);
            // Nothing is in flight that could be lost.
            assert_eq!((found.tokens_per_kept, found.lag_max), (Some(1.0), 0), "{what}");
        }
    }
}

/// More groups are in flight than the slots hold, so the slots are always full.
#[test]
fn servers_go_on_while_the_learner_works() {
    let stream = |seconds, in_flight| run(config(seconds, in_flight), SimulatedPolicy::PrimeRl);
    // Rewards arrive and a step is trained while the next batch decodes.
    let seconds = Seconds { rewards: 0.5, step: 1.0, token: 0.0, publication: 0.75 };
    for in_flight in [InFlight::Keep, InFlight::Wait] {
        let found = stream(seconds, in_flight);
        assert_equal(found.step_time, DECODING + 0.75, in_flight.as_str());
        assert_equal(found.utilisation, DECODING / (DECODING + 0.75), in_flight.as_str());
        assert_equal(found.tokens_per_kept, 1.0, in_flight.as_str());
    }
    // Tokens decoded while rewards arrive and the step is trained are lost: whole iterations of every sample.
    let found = stream(seconds, InFlight::Abort);
    let lost: f64 = 0.5 + 1.0;
    assert_equal(found.step_time, DECODING + lost + 0.75, "abort");
    assert_equal(found.utilisation, (DECODING + lost) / (DECODING + lost + 0.75), "abort");
    assert_equal(found.tokens_per_kept, 1.0 + (lost / ITERATION).floor() / TOKENS as f64, "abort");
    // The servers wait for a learner that is slower than they are.
    let slow = Seconds { rewards: 0.5, step: 5.0, token: 1e-4, publication: 0.75 };
    let found = run(config(slow, InFlight::Keep), SimulatedPolicy::Areal);
    assert_equal(found.step_time, 5.0 + 0.64 + 0.75, "slow learner");
    assert_equal(found.utilisation, DECODING / (5.0 + 0.64 + 0.75), "slow learner");
}

/// If lengths differ, waiting for the longest leaves slots empty. That costs more than an abort. Keeping
/// samples costs nothing.
#[test]
fn samples_in_flight_are_best_kept_and_worst_waited_for() {
    let seconds = Seconds { rewards: 0.2, step: 1.0, token: 0.0, publication: 0.3 };
    let [keep, abort, wait] = IN_FLIGHT.map(|in_flight| {
        let mut config = config(seconds, in_flight);
        config.simulate.as_mut().unwrap().length.sigma = 1.0;
        run(config, SimulatedPolicy::Areal)
    });
    let [keep_time, abort_time, wait_time] = [&keep, &abort, &wait].map(|found| found.step_time.unwrap());
    assert!(
        1.1 * keep_time < abort_time && 1.1 * abort_time < wait_time,
        "{keep_time} {abort_time} {wait_time}"
    );
    let [keep, abort, wait] = [keep, abort, wait].map(|found| found.tokens_per_kept.unwrap());
    assert!(abort > 1.1 * keep && wait < 1.01 * keep, "{keep} {abort} {wait}");
}
