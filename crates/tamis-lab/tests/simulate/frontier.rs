//! The simulation against closed forms: a binary reward with pass rates from Beta(a, b), n members per group,
//! T groups per step, G prompts per round, keep rate k.
//!
//! | law | closed form |
//! |---|---|
//! | keep rate | k = 1 - Π (a + j)/(a + b + j) - Π (b + j)/(a + b + j), j < n |
//! | refill group by group, or rounds that carry their surplus | 1 / k generated for each kept |
//! | rounds that drop their surplus | (G / T) Σ_m P(Bin(m G, k) < T) |
//! | n0 first members, and the rest if these differ | ((n - n0) + n0 / k(n0)) / n |
//! | the best rule that ends groups early | λ / n, with V(0) = 0 (Dinkelbach) |
//! | every prompt at the pass rate that is kept most often | 1 / (1 - 2^(1 - n)) |
//! | all n members are alike, given that the first j are | B(a + n, b) / B(a + j, b), for a symmetric law |
//! | members until the first that differs, given that one does | Σ j P(J = j) / k |
//! | mean lag of W groups in flight | k W / T (Little's law) |
//!
//! All agree within 1 %, and shares of hard and easy prompts within 3 %. Table E comes from another
//! simulation. `cargo test -p tamis-lab --test simulate frontier -- --nocapture --include-ignored` prints
//! each number beside the one it is compared with.

use tamis_config::{
    BetaRates, Config, HistogramRates, SimulateConfig, SimulatedDriftConfig, SimulatedLengthConfig,
    SimulatedPassRates, SimulatedPolicy, SimulatedServersConfig,
};
use tamis_core::schedule::yields::{PassRateSpread, keep_probability};
use tamis_lab::cost::rounds::{Rounds, below};
use tamis_lab::simulate::{Completions, PolicyResult, Population, SimulatedWorld, simulate, simulate_in};

const BATCH: usize = 128;

/// Counts only groups, without lengths.
fn config(a: f64, b: f64, n: usize, prompts: usize) -> Config {
    let mut config = Config::default();
    config.data.train_batch_size = BATCH;
    config.rollout.n = n;
    config.run.seed = 2;
    config.simulate = Some(SimulateConfig {
        pass_rate: SimulatedPassRates::Beta(BetaRates { a, b, prompts }),
        length: SimulatedLengthConfig { median: Some(100.0), sigma: 0.0, ..SimulatedLengthConfig::default() },
        servers: None,
        ..SimulateConfig::default()
    });
    config
}

/// One policy over `steps` steps, all of them measured.
fn run(config: &Config, policy: SimulatedPolicy, steps: u64, warm_up: u64) -> PolicyResult {
    let keys = config.simulate.clone().unwrap();
    let mut world = SimulatedWorld::new(config, &keys).unwrap();
    (world.steps, world.warm_up) = (steps, warm_up);
    let simulation = simulate_in(&world, config, &[policy]).unwrap();
    let result = simulation.policies.into_iter().next().unwrap();
    assert_eq!(result.ended, None);
    result
}

/// (G / T) E[M], and its relative standard deviation for one step.
fn rounds_cost(round: usize, keep: f64) -> (f64, f64) {
    let rounds = Rounds { train: BATCH, generated: round, keep };
    let (mean, cost) = rounds.mean().zip(rounds.cost()).unwrap();
    let square: f64 = (0..60).map(|m| (2 * m + 1) as f64 * rounds.more_than(m)).sum();
    (cost, (square - mean * mean).max(0.0).sqrt() / mean)
}

#[allow(clippy::print_stdout, reason = "the tables of studies/simulation.md are what the tests print")]
fn close(found: f64, expected: f64, share: f64, what: &str) {
    let difference = 100.0 * (found / expected - 1.0);
    println!("{what}: {found:.3}, expected {expected:.3}, {difference:+.1} %");
    assert!((found / expected - 1.0).abs() < share, "{what}: {found} instead of {expected}");
}

/// Table A, T = 128: a, b, n, k. Then groups generated for each kept one with streaming, with rounds of T, of
/// 1.5 T and of 3 T, and with the best screen and its n0.
type RowA = ((f64, f64, usize, f64), [f64; 4], (f64, usize));

const TABLE_A: [RowA; 9] = [
    ((2.0, 2.0, 8, 0.891), [1.12, 2.00, 1.50, 3.00], (1.12, 8)),
    ((1.0, 1.0, 8, 0.778), [1.29, 2.00, 1.50, 3.00], (1.29, 8)),
    ((0.5, 0.5, 8, 0.607), [1.65, 2.00, 2.92, 3.00], (1.60, 4)),
    ((0.3, 0.3, 8, 0.466), [2.15, 2.85, 3.00, 3.00], (1.96, 3)),
    ((0.3, 0.3, 16, 0.566), [1.77, 2.01, 3.00, 3.00], (1.48, 3)),
    ((0.2, 0.8, 8, 0.398), [2.51, 3.00, 3.01, 3.01], (2.19, 3)),
    ((0.2, 0.2, 8, 0.359), [2.78, 3.13, 3.20, 3.40], (2.37, 3)),
    ((0.1, 0.1, 8, 0.213), [4.70, 5.18, 5.55, 6.00], (3.63, 3)),
    ((0.1, 0.1, 16, 0.267), [3.75, 4.18, 4.51, 5.99], (2.31, 3)),
];

/// Rows of table A in the ordinary run: a high, a middle and a low keep rate.
const SOME: [RowA; 3] = [TABLE_A[1], TABLE_A[3], TABLE_A[7]];

#[test]
fn some_costs_of_table_a() {
    assert_costs_of_refilling(&SOME);
    assert_costs_of_rounds(&SOME);
    assert_costs_of_screening(&SOME);
}

#[test]
#[ignore = "long: .ci/all"]
fn table_a_costs() {
    assert_costs_of_refilling(&TABLE_A);
    assert_costs_of_rounds(&TABLE_A);
    assert_costs_of_screening(&TABLE_A);
}

fn assert_costs_of_refilling(rows: &[RowA]) {
    for &((a, b, n, k), [stream, ..], _) in rows {
        let keep = PassRateSpread::Beta { a, b }.keep_probability(n);
        assert!((keep - k).abs() < 6e-4, "Beta({a}, {b}), n {n}: k is {keep}");
        assert!((1.0 / keep - stream).abs() < 0.012, "Beta({a}, {b}), n {n}: {}", 1.0 / keep);
        let config = config(a, b, n, 60_000);
        // Rounds that carry their surplus cost the same as a stream.
        for policy in [SimulatedPolicy::StreamingCarry, SimulatedPolicy::RoundsCarry] {
            let found = run(&config, policy, 600, 100).generated_per_kept.unwrap();
            close(found, 1.0 / keep, 0.01, &format!("Beta({a}, {b}), n {n}, {policy}"));
        }
    }
}

fn assert_costs_of_rounds(rows: &[RowA]) {
    for &((a, b, n, _), [_, same, half_more, three], _) in rows {
        let keep = PassRateSpread::Beta { a, b }.keep_probability(n);
        let mut config = config(a, b, n, 60_000);
        for (round, listed) in [(BATCH, same), (BATCH * 3 / 2, half_more), (3 * BATCH, three)] {
            let what = format!("Beta({a}, {b}), n {n}, rounds of {round}");
            let (expected, of_a_step) = rounds_cost(round, keep);
            assert!((expected - listed).abs() < 0.012, "{what}: {expected} and {listed}");
            // Enough steps to make 1 % two and a half standard errors.
            let steps = (2.5 * of_a_step / 0.01).powi(2).max(100.0) as u64;
            config.data.gen_batch_size = Some(round);
            let found = run(&config, SimulatedPolicy::Verl, steps, 0).generated_per_kept.unwrap();
            close(found, expected, 0.01, &format!("{what}, {steps} steps"));
        }
    }
}

/// Groups with pass rates from a Beta distribution.
fn groups(a: f64, b: f64, n: usize, count: usize) -> Vec<Vec<bool>> {
    let config = config(a, b, n, count);
    let keys = config.simulate.clone().unwrap();
    let completions = Completions::new(&config, &keys.length);
    let rates: Vec<f64> = Population::new(&keys.pass_rate, 1).unwrap().rates().collect();
    rates
        .iter()
        .enumerate()
        .map(|(prompt, rate)| {
            completions.group(prompt, 0, *rate).iter().map(|member| member.is_correct).collect()
        })
        .collect()
}

/// Number (from 1) of the first member that differs from the one before it; `None` if all are alike.
fn first_difference(group: &[bool]) -> Option<usize> {
    group.windows(2).position(|pair| pair[0] != pair[1]).map(|place| place + 2)
}

/// The best rule that ends a group by its members so far: its cost, and after how many members that are all
/// correct, or all wrong, it ends the group. A kept group is worth λ members, and λ makes a new group worth
/// 0.
fn best_rule(a: f64, b: f64, n: usize) -> (f64, [usize; 2]) {
    // Value of a group whose first member is of one kind, and the index at which it ends.
    let worth = |same: f64, other: f64, lambda: f64| {
        let (mut value, mut end) = (0.0_f64, n);
        for j in (1..n).rev() {
            let differs = other / (same + other + j as f64);
            value = differs * (lambda - (n - j) as f64) + (1.0 - differs) * (value - 1.0);
            if value <= 0.0 {
                (value, end) = (0.0, j);
            }
        }
        (value, end)
    };
    let begun = |lambda: f64| {
        let ((right, after_right), (wrong, after_wrong)) = (worth(a, b, lambda), worth(b, a, lambda));
        ((a * right + b * wrong) / (a + b) - 1.0, [after_right, after_wrong])
    };
    let (mut low, mut high) = (n as f64, 100.0 * n as f64);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if begun(middle).0 < 0.0 { low = middle } else { high = middle }
    }
    (high / n as f64, begun(high).1)
}

/// For an asymmetric law, the rule ends hard prompts after fewer members.
#[test]
fn the_best_rule_costs_what_its_equation_says() {
    for ((a, b, n, _), ..) in TABLE_A {
        let (expected, ends) = best_rule(a, b, n);
        let is_symmetric = (a - b).abs() < 1e-9;
        let (mut generated, mut kept) = (0, 0);
        for group in groups(a, b, n, 100_000) {
            let end = ends[usize::from(!group[0])];
            let is_kept = first_difference(&group).is_some_and(|differs| differs <= end || end == n);
            generated += if is_kept { n } else { end };
            kept += usize::from(is_kept);
        }
        let found = generated as f64 / (n * kept) as f64;
        close(found, expected, 0.01, &format!("Beta({a}, {b}), n {n}, given up after {ends:?}"));
        assert!(if is_symmetric { ends[0] == ends[1] } else { ends[1] < ends[0] }, "{ends:?}");
    }
}

/// A pass rate of 1/2 is kept most often. With known pass rates the cost would be exactly this.
#[test]
fn known_pass_rates_are_the_least_a_choice_of_prompts_can_cost() {
    for n in [2, 4, 8] {
        let mut config = config(1.0, 1.0, n, 6000);
        let cost = |config: &mut Config, rate: f64| {
            let rates = HistogramRates { rates: vec![rate], counts: vec![1.0], prompts: 6000 };
            config.simulate.as_mut().unwrap().pass_rate = SimulatedPassRates::Histogram(rates);
            run(config, SimulatedPolicy::StreamingCarry, 1100, 100).generated_per_kept.unwrap()
        };
        let least = 1.0 / (1.0 - 2.0_f64.powi(1 - n as i32));
        let error = (3.0 * ((1.0 - 1.0 / least) / (1000.0 * BATCH as f64)).sqrt()).min(0.01);
        close(cost(&mut config, 0.5), least, error, &format!("known pass rates, n {n}"));
        assert!(cost(&mut config, 0.3) > 1.02 * least, "n {n}");
    }
}

#[expect(clippy::print_stdout, reason = "the tables of studies/simulation.md are what the tests print")]
fn assert_costs_of_screening(rows: &[RowA]) {
    for &((a, b, n, _), _, (listed, first)) in rows {
        let groups = groups(a, b, n, 100_000);
        let kept = groups.iter().filter(|group| first_difference(&group[..first]).is_some()).count() as f64;
        let generated = first as f64 * groups.len() as f64 + (n - first) as f64 * kept;
        let screen = PassRateSpread::Beta { a, b }.keep_probability(first);
        let expected = ((n - first) as f64 + first as f64 / screen) / n as f64;
        // For a symmetric law, no rule beats the best number of first members.
        let (least, _) = best_rule(a, b, n);
        let is_symmetric = (a - b).abs() < 1e-9;
        println!("Beta({a}, {b}), n {n}: the best rule costs {least:.3}");
        assert!(
            if is_symmetric { (expected / least - 1.0).abs() < 1e-6 } else { expected > 1.01 * least },
            "{least}"
        );
        close(generated / (n as f64 * kept), expected, 0.01, &format!("Beta({a}, {b}), n {n}, n0 {first}"));
        assert!((expected - listed).abs() < 0.012, "Beta({a}, {b}), n {n}: {expected} and {listed}");
        // The scheduler uses that number. All members of a group would be no screen.
        let mut config = config(a, b, n, 60_000);
        config.schedule.screen_first = Some(first);
        let found = run(&config, SimulatedPolicy::Screening, 600, 100);
        close(found.generated_per_kept.unwrap(), expected, 0.01, &format!("Beta({a}, {b}), n {n}, machine"));
        assert_eq!(found.wasted.contains_key("screened"), first < n, "{found:?}");
    }
}

/// With n0 first members, a prompt is trained on in proportion to the probability that these n0 differ, not
/// all n.
#[test]
fn screening_trains_on_prompts_of_which_the_first_members_differ() {
    let mut config = config(0.3, 0.3, 8, 60_000);
    let keys = config.simulate.clone().unwrap();
    let rates: Vec<f64> = Population::new(&keys.pass_rate, 1).unwrap().rates().collect();
    let share = |members: usize, is_meant: fn(f64) -> bool| {
        let weigh = |rate: &f64| keep_probability(*rate, members);
        let meant: f64 = rates.iter().filter(|rate| is_meant(**rate)).map(weigh).sum();
        meant / rates.iter().map(weigh).sum::<f64>()
    };
    let is_hard = |rate: f64| rate < 0.1;
    for first in [2, 4, 6] {
        config.schedule.screen_first = Some(first);
        let found = run(&config, SimulatedPolicy::Screening, 1100, 100);
        close(found.hard_share.unwrap(), share(first, is_hard), 0.03, &format!("hard prompts, n0 {first}"));
        close(found.easy_share.unwrap(), share(first, |rate| rate > 0.9), 0.03, &format!("easy, n0 {first}"));
        assert!(share(first, is_hard) < 0.95 * share(8, is_hard));
    }
}

#[test]
fn table_b_groups_that_begin_alike() {
    let table = [(1.0, [0.33, 0.56, 0.78]), (0.3, [0.66, 0.81, 0.92]), (0.1, [0.86, 0.93, 0.97])];
    for (a, listed) in table {
        let groups = groups(a, a, 8, 200_000);
        for (j, listed) in [2, 4, 6].into_iter().zip(listed) {
            let alike = groups.iter().filter(|group| first_difference(&group[..j]).is_none()).count() as f64;
            let all = groups.iter().filter(|group| first_difference(group).is_none()).count() as f64;
            // B(a + n, a) / B(a + j, a).
            let expected: f64 = (j..8).map(|i| (a + i as f64) / (2.0 * a + i as f64)).product();
            close(all / alike, expected, 0.01, &format!("Beta({a}, {a}), {j} alike"));
            assert!((expected - listed).abs() < 0.012, "{expected} and {listed}");
        }
    }
}

#[test]
fn table_c_members_until_a_group_is_certain() {
    let table = [
        (0.02, 4.5, 0.15),
        (0.05, 4.4, 0.34),
        (0.1, 4.15, 0.57),
        (0.2, 3.7, 0.83),
        (0.3, 3.3, 0.94),
        (0.5, 2.9, 0.99),
    ];
    let keys = config(1.0, 1.0, 8, 1);
    let completions = Completions::new(&keys, &keys.simulate.clone().unwrap().length);
    for (rate, listed, keep) in table {
        let seen: Vec<usize> = (0..200_000)
            .filter_map(|prompt| {
                let group: Vec<bool> =
                    completions.group(prompt, 0, rate).iter().map(|member| member.is_correct).collect();
                first_difference(&group)
            })
            .collect();
        close(
            seen.len() as f64 / 200_000.0,
            keep_probability(rate, 8),
            0.01,
            &format!("keep rate at {rate}"),
        );
        assert!((keep_probability(rate, 8) - keep).abs() < 0.006);
        let alike = |j: i32| if j < 1 { 1.0 } else { rate.powi(j) + (1.0 - rate).powi(j) };
        let expected: f64 = (2..=8).map(|j| f64::from(j) * (alike(j - 1) - alike(j))).sum::<f64>()
            / keep_probability(rate, 8);
        let mean = seen.iter().sum::<usize>() as f64 / seen.len() as f64;
        close(mean, expected, 0.01, &format!("members at {rate}"));
        assert!((expected - listed).abs() < 0.06, "{expected} and {listed}");
    }
}

/// Table E: a policy; its cost, its cost in the second half, hard and easy share if listed, and effective
/// share of the weights.
type RowE = (SimulatedPolicy, f64, Option<f64>, f64, Option<f64>, f64);

/// Table E by prior: a, b, rows.
const TABLE_E: [(f64, f64, &[RowE]); 3] = [
    (
        0.3,
        0.3,
        &[
            (SimulatedPolicy::StreamingCarry, 2.16, Some(2.18), 0.084, Some(0.099), 1.0),
            (SimulatedPolicy::Screening, 1.97, Some(1.99), 0.065, Some(0.076), 1.0),
            (SimulatedPolicy::ZeroVarianceSkip, 1.52, Some(1.33), 0.052, Some(0.042), 1.0),
            (SimulatedPolicy::Posterior, 1.58, Some(1.45), 0.080, Some(0.101), 0.76),
        ],
    ),
    (
        0.2,
        0.8,
        &[
            (SimulatedPolicy::StreamingCarry, 2.37, None, 0.145, None, 1.0),
            (SimulatedPolicy::ZeroVarianceSkip, 1.58, Some(1.34), 0.062, None, 1.0),
            (SimulatedPolicy::Posterior, 1.59, Some(1.41), 0.141, None, 0.66),
        ],
    ),
    (
        0.5,
        0.5,
        &[
            (SimulatedPolicy::StreamingCarry, 1.66, None, 0.066, None, 1.0),
            (SimulatedPolicy::ZeroVarianceSkip, 1.41, Some(1.31), 0.054, None, 1.0),
            (SimulatedPolicy::Posterior, 1.44, Some(1.38), 0.069, None, 0.88),
        ],
    ),
];

/// Results of a policy in the world of table E, as means over three seeds: 6000 prompts, T = 128, n = 8, 120
/// steps, logits that drift by 0.006 per step with a noise of 0.03.
struct Choice {
    cost: f64,
    late: f64,
    hard: f64,
    easy: f64,
    share: f64,
}

fn choose(a: f64, b: f64, policy: SimulatedPolicy) -> Choice {
    let mut config = config(a, b, 8, 6000);
    config.simulate.as_mut().unwrap().drift = SimulatedDriftConfig { logit: 0.006, noise: 0.03 };
    let mut found: [Vec<PolicyResult>; 2] = Default::default();
    for seed in 1..=3 {
        config.run.seed = seed;
        for (found, warm_up) in found.iter_mut().zip([0, 60]) {
            found.push(run(&config, policy, 120, warm_up));
        }
    }
    let [all, late] = &found;
    let mean = |results: &[PolicyResult], of: fn(&PolicyResult) -> Option<f64>| {
        results.iter().map(|result| of(result).unwrap()).sum::<f64>() / 3.0
    };
    Choice {
        cost: mean(all, |result| result.generated_per_kept),
        late: mean(late, |result| result.generated_per_kept),
        hard: mean(all, |result| result.hard_share),
        easy: mean(all, |result| result.easy_share),
        share: mean(all, |result| result.weight_ess),
    }
}

#[test]
fn choosing_prompts_of_one_prior() {
    assert_choices(&TABLE_E[1..2]);
}

#[test]
#[ignore = "long: .ci/all"]
fn table_e_choosing_prompts() {
    assert_choices(&TABLE_E);
}

fn assert_choices(table: &[(f64, f64, &[RowE])]) {
    for &(a, b, rows) in table {
        let blind = choose(a, b, SimulatedPolicy::StreamingCarry);
        for &(policy, cost, late, hard, easy, share) in rows {
            let of = |number| format!("Beta({a}, {b}), {policy}, {number}");
            let found = choose(a, b, policy);
            // The table has one seed, another order of prompts and, for the posterior, another prior.
            let (of_cost, of_shares) =
                if policy == SimulatedPolicy::Posterior { (0.06, 0.12) } else { (0.015, 0.06) };
            close(found.cost, cost, of_cost, &of("cost"));
            if let Some(late) = late {
                close(found.late, late, of_cost, &of("cost of the second half"));
            }
            close(found.hard, hard, of_shares, &of("hard prompts"));
            if let Some(easy) = easy {
                close(found.easy, easy, of_shares, &of("easy prompts"));
            }
            close(found.share, share, of_shares, &of("effective share"));
            // Not below the cost with known pass rates.
            assert!(found.late > 1.0 / (1.0 - 0.5_f64.powi(7)), "{policy}");
            // Weighted prompts are as hard as prompts that are not chosen.
            if policy == SimulatedPolicy::Posterior {
                close(found.hard, blind.hard, 0.05, &of("hard prompts, against none chosen"));
                close(found.easy, blind.easy, 0.05, &of("easy prompts, against none chosen"));
            }
        }
        let biased = choose(a, b, SimulatedPolicy::PosteriorBiased);
        assert!(biased.hard < 0.9 * blind.hard, "{} and {}", biased.hard, blind.hard);
    }
}

/// With W groups in flight and T trained per step, a group is k W / T steps in flight.
#[test]
fn littles_law() {
    let mut config = config(1.0, 1.0, 8, 60_000);
    config.data.train_batch_size = 48;
    config.rollout.max_response_length = 4000;
    if let Some(keys) = &mut config.simulate {
        keys.length.sigma = 0.5;
        keys.servers = SimulateConfig::default()
            .servers
            .map(|servers| SimulatedServersConfig { slots: Some(256), ..servers });
    }
    let found = run(&config, SimulatedPolicy::PrimeRl, 1000, 100);
    // No group grows too old: that would leave the longest out.
    assert!(!["stale", "aborted"].iter().any(|cause| found.wasted.contains_key(cause)), "{found:?}");
    // Four times as many groups as the slots hold.
    let in_flight = 4.0 * 256.0 / 8.0;
    let expected = PassRateSpread::Beta { a: 1.0, b: 1.0 }.keep_probability(8) * in_flight / 48.0;
    close(found.lag_mean.unwrap(), expected, 0.01, "mean lag");
}

/// The systems in the order of their step times: streams are fastest, and rounds that wait for the longest
/// completion are slowest.
#[test]
fn step_times_are_in_the_order_of_the_systems() {
    let mut config = config(0.3, 0.3, 8, 6000);
    config.rollout.max_response_length = 4000;
    if let Some(keys) = &mut config.simulate {
        keys.length.median = Some(200.0);
        keys.length.sigma = 1.0;
        keys.servers = SimulateConfig::default().servers;
        keys.groups = Some(40 * BATCH);
    }
    let simulation = simulate(&config).unwrap();
    let of = |name| simulation.policies.iter().find(|policy| policy.name == name).unwrap();
    let seconds = |name| of(name).step_time.unwrap();
    let verl = seconds(SimulatedPolicy::Verl);
    // Four waves per slot; an iteration takes half longer if all slots run.
    assert!(seconds(SimulatedPolicy::StreamingCarry) < 0.45 * verl, "{simulation}");
    assert!(seconds(SimulatedPolicy::DeficitCarry) < 0.7 * verl, "{simulation}");
    assert!(seconds(SimulatedPolicy::Openrlhf) < verl, "{simulation}");
    let bound = simulation.bound.unwrap();
    for policy in &simulation.policies {
        let chooses = matches!(
            policy.name,
            SimulatedPolicy::Screening
                | SimulatedPolicy::ZeroVarianceSkip
                | SimulatedPolicy::DifficultyPools
                | SimulatedPolicy::Posterior
                | SimulatedPolicy::PosteriorBiased
        );
        // Only for the kept groups of a batch: copies and dropped groups need no extra time.
        let least = policy.kept_share.unwrap() * bound.step_time.unwrap() * (1.0 - bound.chance);
        assert!(chooses || policy.step_time.unwrap() > least, "{simulation}");
        assert!(policy.utilisation.unwrap() <= 1.0 + 1e-9);
    }
    assert_eq!(of(SimulatedPolicy::Streaming).lag_max, 0);
    assert!(
        of(SimulatedPolicy::SkyrlAsync).lag_mean > of(SimulatedPolicy::StreamingCarry).lag_mean,
        "{simulation}"
    );
}

/// One round per step, whatever it keeps: 1 / k generated for each kept group, and copies spread as evenly as
/// possible. A group weighs 1 / k rounded down, or one more.
#[test]
fn one_round_filled_with_copies_or_with_dropped_groups() {
    for ((a, b, n, _), ..) in SOME {
        let keep = PassRateSpread::Beta { a, b }.keep_probability(n);
        let config = config(a, b, n, 60_000);
        let copies = run(&config, SimulatedPolicy::SkyrlReplace, 1200, 0);
        let dropped = run(&config, SimulatedPolicy::SlimeFallback, 1200, 0);
        for found in [&copies, &dropped] {
            let what = format!("Beta({a}, {b}), one round of {}", found.name);
            close(found.generated_per_kept.unwrap(), 1.0 / keep, 0.01, &what);
            assert!(!found.wasted.contains_key("surplus"), "{found:?}");
        }
        // Both had the same rounds.
        assert_eq!(copies.generated_per_kept, dropped.generated_per_kept);
        assert_eq!(dropped.weight_ess, Some(1.0));
        // Each of m kept groups counts T / m times, rounded down or up.
        let mut at_most = 0.0;
        let (mut groups, mut squares) = (0.0, 0.0);
        for m in 1..=BATCH {
            let probability = below(BATCH, keep, m + 1) - at_most;
            at_most += probability;
            let (times, over) = (BATCH / m, BATCH % m);
            groups += probability * m as f64;
            squares += probability * ((m - over) * times * times + over * (times + 1) * (times + 1)) as f64;
        }
        let expected = (BATCH * BATCH) as f64 / (groups * squares);
        close(copies.weight_ess.unwrap(), expected, 0.01, &format!("Beta({a}, {b}), copies"));
    }
}

/// If half of the variance of lengths is common to a prompt's completions, whole groups are short, and those
/// end first. In order of dispatch no length is preferred.
#[test]
fn the_first_groups_to_end_are_short() {
    let mut config = config(0.3, 0.3, 8, 6000);
    config.rollout.max_response_length = 4000;
    if let Some(keys) = &mut config.simulate {
        (keys.length.median, keys.length.sigma, keys.length.prompt_share) = (Some(200.0), 1.0, 0.5);
        keys.servers = SimulateConfig::default().servers;
        keys.groups = Some(40 * BATCH);
        keys.policies =
            vec![SimulatedPolicy::Slime, SimulatedPolicy::Openrlhf, SimulatedPolicy::StreamingCarry];
    }
    let found: Vec<f64> =
        simulate(&config).unwrap().policies.iter().map(|policy| policy.length_ks.unwrap()).collect();
    assert!(found[0] > 0.03 && found[1] < 0.01 && found[2] < 0.01, "{found:?}");
}

#[test]
fn the_same_seed_gives_the_same_numbers_and_json_has_its_shape() {
    let mut config = config(0.5, 0.5, 4, 500);
    config.data.train_batch_size = 8;
    if let Some(keys) = &mut config.simulate {
        keys.groups = Some(101);
    }
    let simulation = simulate(&config).unwrap();
    assert_eq!(simulation, simulate(&config).unwrap());
    let json = serde_json::to_value(&simulation).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["policies", "seed", "groups", "bound"]);
    // Whole steps.
    assert_eq!((json["seed"].as_u64(), json["groups"].as_u64()), (Some(2), Some(104)));
    let policies = json["policies"].as_array().unwrap();
    assert_eq!(policies.len(), SimulatedPolicy::ALL.len());
    let keys: Vec<&str> = policies[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys.join(" "),
        "name steps ended kept_share passes generated_per_kept tokens_per_kept wasted step_time utilisation \
         lag_mean lag_max weight_ess hard_share easy_share length_ks"
    );
    assert!(policies[0]["step_time"].is_null() && policies[0]["wasted"]["all_wrong"].as_f64() > Some(0.0));
    let page = simulation.html("a <test>").unwrap();
    assert!(page.contains("a &lt;test&gt;") && page.contains("streaming_carry") && !page.contains("NaN"));
}
