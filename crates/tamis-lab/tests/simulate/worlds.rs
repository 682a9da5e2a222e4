//! Extreme worlds: truncation, filters of all kinds, policies that end early, sizes that cannot be simulated.

use tamis_config::{
    BetaRates, Config, FilterConfig, HistogramRates, RolloutRates, ScheduleMode, SimulateConfig,
    SimulatedDriftConfig, SimulatedLengthConfig, SimulatedPassRates, SimulatedPolicy, SimulatedServersConfig,
    SurplusKind,
};
use tamis_core::filter::{GroupFilter, MeanRange, TopP};
use tamis_core::schedule::selector::{Posterior, Selector};
use tamis_core::schedule::{OnLimit, RoundLimit};
use tamis_lab::FaultKind;
use tamis_lab::simulate::{NoBound, Simulation, simulate};

const BATCH: usize = 64;

fn config(policies: &[SimulatedPolicy]) -> Config {
    let mut config = Config::default();
    config.data.train_batch_size = BATCH;
    config.rollout.n = 8;
    config.rollout.max_response_length = 4000;
    config.run.seed = 3;
    config.simulate = Some(SimulateConfig {
        length: SimulatedLengthConfig { median: Some(200.0), sigma: 1.0, ..SimulatedLengthConfig::default() },
        groups: Some(120 * BATCH),
        policies: policies.to_vec(),
        servers: None,
        ..SimulateConfig::default()
    });
    config
}

fn keys(config: &mut Config) -> &mut SimulateConfig {
    config.simulate.as_mut().unwrap()
}

/// Gives the configuration servers with `slots` slots.
fn with_slots(config: &mut Config, slots: usize) {
    let servers = SimulateConfig::default().servers.unwrap();
    keys(config).servers = Some(SimulatedServersConfig { slots: Some(slots), ..servers });
}

fn one_rate(rate: f64) -> SimulatedPassRates {
    SimulatedPassRates::Histogram(HistogramRates { rates: vec![rate], counts: vec![1.0], prompts: 6000 })
}

fn filter(kind: GroupFilter) -> FilterConfig {
    FilterConfig { kind, metric: None }
}

/// Policies that neither choose prompts nor end groups early.
const BLIND: [SimulatedPolicy; 5] = [
    SimulatedPolicy::Verl,
    SimulatedPolicy::RoundsCarry,
    SimulatedPolicy::Deficit,
    SimulatedPolicy::StreamingCarry,
    SimulatedPolicy::PrimeRl,
];

fn assert_bounded(simulation: &Simulation, what: &str) {
    let bound = simulation.bound.unwrap();
    let least = bound.generated_per_kept * (1.0 - bound.chance);
    for policy in &simulation.policies {
        let (generated, name) = (policy.generated_per_kept.unwrap(), policy.name);
        assert!(generated > least, "{what}: {name} generates {generated}, {bound:?}");
        if let (Some(time), Some(least)) = (policy.step_time, bound.step_time) {
            // For the kept groups of its batch.
            let least = least * policy.kept_share.unwrap() * (1.0 - bound.chance);
            assert!(time > least, "{what}: {name} takes {time}, {bound:?}");
        }
    }
    // And some policy comes close to it.
    let stream =
        simulation.policies.iter().find(|policy| policy.name == SimulatedPolicy::StreamingCarry).unwrap();
    let near = stream.generated_per_kept.unwrap() / bound.generated_per_kept - 1.0;
    assert!(near.abs() < bound.chance, "{what}: {near}, {bound:?}");
}

/// Truncation makes correct answers wrong, so easy prompts have mixed groups.
#[test]
fn the_bound_goes_by_what_is_cut() {
    for (rate, limit) in [(None, 4000), (None, 300), (Some(0.99), 4000), (Some(0.995), 4000)] {
        let mut config = config(&BLIND);
        config.rollout.max_response_length = limit;
        if let Some(rate) = rate {
            keys(&mut config).pass_rate = one_rate(rate);
        }
        assert_bounded(&simulate(&config).unwrap(), &format!("{rate:?} cut at {limit}"));
    }
    // The prompts' own lengths decide, if these differ.
    let mut config = config(&BLIND);
    config.rollout.max_response_length = 300;
    keys(&mut config).length.prompt_share = 0.8;
    assert_bounded(&simulate(&config).unwrap(), "lengths of prompts");
    // One completion in two million is that short.
    config.rollout.max_response_length = 1;
    let simulation = simulate(&config).unwrap();
    assert!(simulation.bound.unwrap().generated_per_kept > 1e6 && simulation.all_ended(), "{simulation}");
}

/// At a pass rate of 0.9, a group of 8 is mixed with probability 1 - 0.9^8 - 0.1^8 = 0.5695, and 1 / k is
/// 1.756. Truncation at 300 tokens, which 34 % of completions exceed, makes nearly all groups mixed.
#[test]
fn the_bound_without_cuts_is_shown_beside_that_with_them() {
    let mut config = config(&[SimulatedPolicy::StreamingCarry]);
    keys(&mut config).pass_rate = one_rate(0.9);
    config.rollout.max_response_length = 300;
    let before_cuts = 1.0 / (1.0 - 0.9_f64.powi(8) - 0.1_f64.powi(8));
    let cut = simulate(&config).unwrap();
    let bound = cut.bound.unwrap();
    assert!((bound.before_cuts / before_cuts - 1.0).abs() < 1e-6, "{bound:?}");
    assert!(bound.generated_per_kept < 1.1, "{bound:?}");
    let json = serde_json::to_value(&cut).unwrap();
    for (key, value) in [
        ("generated_per_kept", bound.generated_per_kept),
        ("before_cuts", bound.before_cuts),
        ("chance", bound.chance),
    ] {
        assert_eq!(json["bound"][key].as_f64(), Some(value), "{key}: {json}");
    }
    let shown = "1.756 generated if nothing were cut at rollout.max_response_length";
    assert!(cut.to_string().contains(shown), "{cut}");
    assert!(cut.html("").unwrap().contains(shown));

    // More than 1,000,000 tokens have a probability below 1e-16, so nothing changes.
    config.rollout.max_response_length = 1_000_000;
    let uncut = simulate(&config).unwrap();
    let bound = uncut.bound.unwrap();
    assert!((bound.generated_per_kept / before_cuts - 1.0).abs() < 1e-6, "{bound:?}");
    assert!(!uncut.to_string().contains("if nothing were cut"), "{uncut}");

    // Prompts that are always solved have mixed groups only because of truncation.
    config.rollout.max_response_length = 300;
    keys(&mut config).pass_rate = one_rate(1.0);
    let solved = simulate(&config).unwrap();
    assert!(solved.bound.unwrap().before_cuts.is_infinite(), "{:?}", solved.bound);
    assert!(solved.to_string().contains("; no group kept if nothing were cut"), "{solved}");
    assert!(serde_json::to_value(&solved).unwrap()["bound"]["before_cuts"].is_null());
}

#[test]
fn the_bound_goes_by_the_filter_the_drift_and_the_clock() {
    let mut config = config(&BLIND);
    config.filter =
        Some(filter(GroupFilter::MeanRange(MeanRange { low: 0.2, high: 0.8, ..MeanRange::default() })));
    let band = simulate(&config).unwrap();
    assert_bounded(&band, "mean_range");
    config.filter = None;
    let all = simulate(&config).unwrap();
    let [band, all] = [band, all].map(|simulation| simulation.bound.unwrap().generated_per_kept);
    assert!(band > 1.3 * all, "{band} {all}");

    keys(&mut config).drift = SimulatedDriftConfig { logit: 0.02, noise: 0.03 };
    assert_bounded(&simulate(&config).unwrap(), "drift");

    keys(&mut config).drift = SimulatedDriftConfig { logit: 0.0, noise: 0.0 };
    with_slots(&mut config, 128);
    assert_bounded(&simulate(&config).unwrap(), "servers");
    keys(&mut config).train_time.token = 1e-4;
    assert_bounded(&simulate(&config).unwrap(), "training");

    // A single member differs from none, and is kept by default.
    let mut config = config_of_one();
    let bound = simulate(&config).unwrap().bound.unwrap();
    assert!((bound.generated_per_kept - 1.0).abs() < 1e-12, "{bound:?}");
    config.filter = Some(filter(GroupFilter::TopP(TopP::of(0.9))));
    let pool = simulate(&config).unwrap();
    assert_eq!(pool.bound, Err(NoBound::Pool));
    assert!(pool.to_string().contains("compares the groups of a round"), "{pool}");
    assert!(serde_json::to_value(&pool).unwrap()["bound"].is_null(), "{pool}");
}

fn config_of_one() -> Config {
    let mut config = config(&[SimulatedPolicy::Verl]);
    config.rollout.n = 1;
    config
}

/// Nearly all prompts are solved. The few others drifted far, so all kept groups are in the tail.
#[test]
fn the_bound_goes_by_the_tails_of_pass_rates_that_go_their_own_ways() {
    let mut config = config(&BLIND);
    let rates = HistogramRates { rates: vec![0.9999], counts: vec![1.0], prompts: 50_000 };
    keys(&mut config).pass_rate = SimulatedPassRates::Histogram(rates);
    keys(&mut config).drift = SimulatedDriftConfig { logit: 0.0, noise: 0.3 };
    keys(&mut config).groups = Some(60 * BATCH);
    assert_bounded(&simulate(&config).unwrap(), "tails");
}

/// If copies or dropped groups fill part of a batch, only its kept groups need time.
#[test]
fn the_bound_goes_by_the_groups_that_a_batch_keeps() {
    let filled = [
        SimulatedPolicy::SkyrlReplace,
        SimulatedPolicy::SlimeFallback,
        SimulatedPolicy::Configured,
        SimulatedPolicy::StreamingCarry,
    ];
    for on_limit in [OnLimit::Duplicate, OnLimit::UsePartial] {
        let mut config = config(&filled);
        config.schedule.max_num_gen_batches = tamis_config::MaxRounds(RoundLimit::Rounds(1));
        config.schedule.on_limit = on_limit;
        // Hardly any group is kept, and a batch fills the servers many times over.
        keys(&mut config).pass_rate = SimulatedPassRates::Beta(BetaRates { a: 0.1, b: 0.1, prompts: 6000 });
        keys(&mut config).groups = Some(40 * BATCH);
        keys(&mut config).length.sigma = 0.3;
        with_slots(&mut config, 16);
        let simulation = simulate(&config).unwrap();
        assert_bounded(&simulation, "filled batches");
        let [replace, fallback, own, stream] = &simulation.policies[..] else { unreachable!() };
        assert!((stream.kept_share.unwrap() - 1.0).abs() < 1e-12, "{stream:?}");
        for policy in [replace, fallback, own] {
            // One round, of which a share k is kept, against as many rounds as a batch needs.
            let share = policy.kept_share.unwrap();
            assert!((share * stream.generated_per_kept.unwrap() - 1.0).abs() < 0.1, "{policy:?}");
            assert!(policy.step_time.unwrap() < 0.5 * stream.step_time.unwrap(), "{policy:?}");
            assert!(policy.step_time.unwrap() < simulation.bound.unwrap().step_time.unwrap());
        }
    }
}

/// A discarded attempt counts toward the next trained step.
#[test]
fn attempts_that_are_given_up_are_no_steps() {
    let mut config = config(&[SimulatedPolicy::Configured, SimulatedPolicy::Verl]);
    config.data.gen_batch_size = Some(BATCH + 2);
    config.schedule.max_num_gen_batches = tamis_config::MaxRounds(RoundLimit::Rounds(2));
    config.schedule.on_limit = OnLimit::Skip;
    keys(&mut config).groups = Some(40 * BATCH);
    keys(&mut config).servers = SimulateConfig::default().servers;
    let simulation = simulate(&config).unwrap();
    let [skips, whole] = &simulation.policies[..] else { unreachable!() };
    let [skips_cost, whole_cost] = [skips, whole].map(|policy| policy.generated_per_kept.unwrap());
    assert!(skips.ended.is_none() && skips_cost > 1.3 * whole_cost, "{simulation}");
    assert!((skips.kept_share.unwrap() - 1.0).abs() < 1e-12, "{skips:?}");
    // Generating in vain takes time.
    let [skips_time, whole_time] = [skips, whole].map(|policy| policy.step_time.unwrap());
    assert!(skips_time > 1.2 * whole_time, "{simulation}");
}

/// Truncated completions are wrong: a prompt counts as easy by the rate that its groups show.
#[test]
fn prompts_are_easy_by_what_their_groups_show() {
    let mut config = config(&[SimulatedPolicy::StreamingCarry]);
    keys(&mut config).pass_rate = one_rate(0.95);
    let share = |config: &Config| simulate(config).unwrap().policies[0].easy_share.unwrap();
    assert!((share(&config) - 1.0).abs() < 1e-12);
    config.rollout.max_response_length = 300;
    assert!(share(&config) < 1e-12);
}

/// Waste in groups, plus trained groups, is everything that was generated.
#[test]
fn what_is_wasted_and_what_is_trained_on_is_all() {
    let mut config =
        config(&[SimulatedPolicy::Screening, SimulatedPolicy::StreamingCarry, SimulatedPolicy::Slime]);
    config.schedule.screen_first = Some(2);
    keys(&mut config).groups = Some(400 * BATCH);
    for policy in simulate(&config).unwrap().policies {
        let wasted: f64 = policy.wasted.values().sum();
        let generated = policy.generated_per_kept.unwrap();
        assert!((1.0 + wasted - generated).abs() < 0.03 * generated, "{policy:?}");
    }
}

/// Rounds of 20 for a batch of 16. One round in nine keeps too few groups.
#[test]
fn a_policy_that_ends_early_has_the_numbers_of_its_steps() {
    let mut config = config(&[SimulatedPolicy::Configured, SimulatedPolicy::StreamingCarry]);
    config.data.train_batch_size = 16;
    config.data.gen_batch_size = Some(20);
    config.schedule.max_num_gen_batches = tamis_config::MaxRounds(RoundLimit::Rounds(1));
    keys(&mut config).groups = Some(50 * 16);
    keys(&mut config).pass_rate = SimulatedPassRates::Beta(BetaRates { a: 2.0, b: 2.0, prompts: 6000 });
    let mut whole = config.clone();
    keys(&mut whole).policies = vec![SimulatedPolicy::StreamingCarry];
    let simulation = simulate(&config).unwrap();
    let [ended, other] = &simulation.policies[..] else { unreachable!() };
    assert!(ended.ended.is_some() && (2..50).contains(&ended.steps), "{ended:?}");
    assert_eq!((&other.ended, other.steps), (&None, 50));
    let generated = ended.generated_per_kept.unwrap();
    assert!((generated - 1.25).abs() < 1e-9, "{ended:?}");
    assert!(!simulation.all_ended());
    let json = serde_json::to_value(&simulation).unwrap();
    assert!(json["policies"][0]["ended"].is_string() && json["policies"][1]["ended"].is_null());
    let said = format!("ended after {} of 50 steps", ended.steps);
    assert!(simulation.to_string().contains(&said), "{simulation}");
    assert!(simulation.warnings()[0].contains(&said), "{:?}", simulation.warnings());
    assert!(simulation.html("t").unwrap().contains("ended after"));
    // The bound covers the steps of the other policies.
    let steps = "average over steps 26 to 50, which are not those of a policy that ended early";
    assert!(
        simulation.to_string().contains(steps) && simulation.html("t").unwrap().contains(steps),
        "{simulation}"
    );
    assert!(!simulate(&whole).unwrap().to_string().contains("over steps"));

    // Nothing is ever kept.
    keys(&mut config).pass_rate = one_rate(1.0);
    keys(&mut config).length.sigma = 0.0;
    let simulation = simulate(&config).unwrap();
    assert!(simulation.all_ended());
    assert_eq!(simulation.bound, Err(NoBound::NothingKept));
    assert!(
        simulation.policies.iter().all(|policy| policy.steps == 0 && policy.generated_per_kept.is_none())
    );
    assert!(!simulation.to_string().contains("-0"), "{simulation}");
}

#[test]
fn screening_that_is_none_is_told() {
    let mut config = config(&[SimulatedPolicy::StreamingCarry, SimulatedPolicy::Screening]);
    keys(&mut config).groups = Some(20 * BATCH);
    assert_eq!(simulate(&config).unwrap().warnings(), Vec::<String>::new());
    let said = |config: &Config| {
        let simulation = simulate(config).unwrap();
        let [carry, screening] = &simulation.policies[..] else { unreachable!() };
        assert_eq!(carry.generated_per_kept, screening.generated_per_kept);
        simulation.warnings().concat()
    };
    let mut banded = config.clone();
    let band = MeanRange { low: 0.2, high: 0.8, ..MeanRange::default() };
    banded.filter = Some(filter(GroupFilter::MeanRange(band)));
    let told = said(&banded);
    assert!(
        told.contains("`screening` is `streaming_carry` here") && told.contains("`mean_range`"),
        "{told}"
    );
    config.rollout.n = 2;
    let told = said(&config);
    assert!(told.contains("groups of 2 have no fewer first members"), "{told}");
}

#[test]
fn few_steps_are_warned_of() {
    let mut config = config(&[SimulatedPolicy::StreamingCarry]);
    assert_eq!(simulate(&config).unwrap().warnings(), Vec::<String>::new());
    keys(&mut config).groups = Some(BATCH);
    let warnings = simulate(&config).unwrap().warnings();
    assert!(warnings.len() == 1 && warnings[0].starts_with("one step of 64 groups"), "{warnings:?}");
}

/// Filters that compare the groups of a round need policies with rounds.
#[test]
fn filters_of_rounds_are_simulated_where_there_are_rounds() {
    let rounds = [
        SimulatedPolicy::Configured,
        SimulatedPolicy::Verl,
        SimulatedPolicy::NemoRl,
        SimulatedPolicy::RoundsCarry,
        SimulatedPolicy::Deficit,
    ];
    let mut config = config(&rounds);
    config.filter = Some(filter(GroupFilter::TopP(TopP::of(0.5))));
    keys(&mut config).groups = Some(20 * BATCH);
    let simulation = simulate(&config).unwrap();
    assert!(
        simulation.policies.iter().all(|policy| policy.wasted.contains_key("outside_pool")),
        "{simulation}"
    );
    keys(&mut config).policies = vec![SimulatedPolicy::Verl, SimulatedPolicy::Streaming];
    let refused = simulate(&config).unwrap_err();
    assert!(refused.to_string().contains("`streaming`") && refused.kind() == FaultKind::Usage, "{refused}");
    // All policies that can run.
    keys(&mut config).policies = Vec::new();
    let simulation = simulate(&config).unwrap();
    let names: Vec<SimulatedPolicy> = simulation.policies.iter().map(|policy| policy.name).collect();
    assert!(rounds.iter().all(|name| names.contains(name)), "{names:?}");
    assert!(!names.contains(&SimulatedPolicy::PrimeRl));
    let warnings = simulation.warnings().concat();
    assert!(
        warnings.contains("`prime_rl`") && warnings.contains("compares the groups of a round"),
        "{warnings}"
    );
}

#[test]
fn sizes_that_cannot_be_simulated() {
    let servers = |config: &mut Config, change: fn(&mut SimulatedServersConfig)| {
        let mut servers = SimulateConfig::default().servers.unwrap();
        change(&mut servers);
        keys(config).servers = Some(servers);
    };
    let mut cached = config(&[SimulatedPolicy::Verl]);
    servers(&mut cached, |servers| servers.kv_tokens = Some(4099));
    keys(&mut cached).length.prompt = 100;
    let refused = simulate(&cached).unwrap_err();
    assert!(refused.to_string().contains("cannot hold one completion"), "{refused}");
    assert!(refused.hint().unwrap().contains("4100"), "{refused}");

    let mut large = config(&[SimulatedPolicy::Verl]);
    (large.data.train_batch_size, large.rollout.n) = (1000, 65_536);
    let refused = simulate(&large).unwrap_err();
    assert!(refused.to_string().contains("65536000 completions"), "{refused}");

    let mut many = config(&[SimulatedPolicy::PrimeRl]);
    servers(&mut many, |servers| (servers.slots, servers.count) = (Some(1_000_000), 1000));
    let refused = simulate(&many).unwrap_err();
    assert!(refused.to_string().contains("`prime_rl` has 500000000 groups of 8 in flight"), "{refused}");
    assert!(refused.hint().unwrap().contains("simulate.servers.slots"));
    // Any policy with that many in flight.
    let mut wide = config(&[SimulatedPolicy::SkyrlAsync]);
    (wide.data.train_batch_size, wide.rollout.n) = (8, 50_000);
    let refused = simulate(&wide).unwrap_err();
    assert!(refused.to_string().contains("`skyrl_async` has 768 groups of 50000 in flight"), "{refused}");
    let mut deep = config(&[SimulatedPolicy::Configured]);
    deep.schedule.rounds_in_flight = Some(100_000);
    let refused = simulate(&deep).unwrap_err();
    assert!(
        refused.to_string().contains("6400000 groups of 8") && refused.kind() == FaultKind::Usage,
        "{refused}"
    );
    assert!(refused.hint().unwrap().contains("schedule.rounds_in_flight"));
}

/// Prompts whose groups were uniform are drawn a fifth as often, and are trained on less.
#[test]
fn pools_are_cheaper_and_biased() {
    let mut config = config(&[SimulatedPolicy::StreamingCarry, SimulatedPolicy::DifficultyPools]);
    keys(&mut config).groups = Some(200 * BATCH);
    let simulation = simulate(&config).unwrap();
    let [blind, pools] = &simulation.policies[..] else { unreachable!() };
    assert!(pools.generated_per_kept.unwrap() < 0.9 * blind.generated_per_kept.unwrap(), "{simulation}");
    assert!(pools.hard_share.unwrap() < 0.95 * blind.hard_share.unwrap(), "{simulation}");
}

/// If a pass over the data would skip every prompt, it takes the most promising one, as in a run.
#[test]
fn a_selector_leaves_no_epoch_empty() {
    let selectors = [SimulatedPolicy::ZeroVarianceSkip, SimulatedPolicy::DifficultyPools];
    let mut config = config(&selectors);
    config.rollout.n = 4;
    config.data.train_batch_size = 4;
    keys(&mut config).groups = Some(400);
    keys(&mut config).pass_rate =
        SimulatedPassRates::Histogram(HistogramRates { rates: vec![0.3], counts: vec![1.0], prompts: 8 });
    for policy in simulate(&config).unwrap().policies {
        assert_eq!((policy.ended.as_deref(), policy.steps), (None, 100), "{}", policy.name);
    }
}

/// If groups start with two members, prompts are chosen by the probability that these two differ. By that of
/// eight members, prompts that are nearly always solved would be chosen as often as others.
#[test]
fn a_screened_run_chooses_by_its_first_members() {
    let mut config = config(&[SimulatedPolicy::Configured]);
    config.schedule.mode = ScheduleMode::Streaming;
    config.schedule.surplus = SurplusKind::Carry;
    config.schedule.selector = Selector::Posterior(Posterior::default());
    keys(&mut config).pass_rate = SimulatedPassRates::Histogram(HistogramRates {
        rates: vec![0.5, 0.85],
        counts: vec![1.0, 1.0],
        prompts: 600,
    });
    let ess = |config: &Config| simulate(config).unwrap().policies[0].weight_ess.unwrap();
    // With eight members both kinds nearly always differ: 0.99 and 0.73 of groups, and all are chosen.
    let whole = ess(&config);
    assert!(whole > 0.99, "{whole}");
    // With two members 0.5 and 0.25.
    config.schedule.screen_first = Some(2);
    let screened = ess(&config);
    assert!(screened < 0.97, "{screened}");
}

/// Savings from choosing prompts depend on the number of passes over the data, and a warning reports it.
#[test]
fn few_passes_over_the_data_are_warned_of() {
    let policies = [SimulatedPolicy::StreamingCarry, SimulatedPolicy::Posterior];
    let mut config = config(&policies);
    let found = |config: &Config| {
        let simulation = simulate(config).unwrap();
        (simulation.policies[1].passes, simulation.warnings())
    };
    // 120 steps of 64 groups, half of which are kept.
    let (passes, warnings) = found(&config);
    assert!((2.0..5.0).contains(&passes) && warnings.is_empty(), "{passes}: {warnings:?}");
    let blind = simulate(&config).unwrap().policies[0].passes;
    // A pass over 6000 prompts keeps 0.466 of them.
    assert!((blind - 7680.0 / 0.466 / 6000.0).abs() < 0.1, "{blind}");
    keys(&mut config).pass_rate = SimulatedPassRates::Beta(BetaRates { a: 0.3, b: 0.3, prompts: 60_000 });
    let (passes, warnings) = found(&config);
    assert!(passes < 1.0, "{passes}");
    let few = format!("fewer than 2 passes over the data: `posterior` ({passes:.1}); ");
    assert!(warnings.len() == 1 && warnings[0].starts_with(&few), "{warnings:?}");
    // If prompts are not chosen, their number does not matter.
    keys(&mut config).policies = vec![SimulatedPolicy::StreamingCarry];
    assert_eq!(simulate(&config).unwrap().warnings(), Vec::<String>::new());
}

/// Prompts of rollouts are a sample of the data. By default they count as all of it.
#[test]
fn rollouts_say_how_many_prompts_there_are_or_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rollouts.jsonl");
    let rows = (0..200).map(|group| {
        let right = group % 9;
        let row = |member| format!("{{\"uid\": {group}, \"acc\": {}}}", u8::from(member < right));
        (0..8).map(row).collect::<Vec<_>>().join("\n") + "\n"
    });
    std::fs::write(&path, rows.collect::<String>()).unwrap();
    let mut config = config(&[SimulatedPolicy::Posterior]);
    let of = |config: &mut Config, prompts| {
        keys(config).pass_rate = SimulatedPassRates::Rollouts(RolloutRates { path: path.clone(), prompts });
        simulate(config).unwrap()
    };
    let sampled = of(&mut config, None);
    let warnings = sampled.warnings();
    assert!(
        warnings[0].starts_with("the 200 prompts of the rollouts stand for all of the data"),
        "{warnings:?}"
    );
    assert!(warnings[0].contains("`simulate.pass_rate.prompts`"), "{warnings:?}");
    let whole = of(&mut config, Some(4000));
    assert_eq!(whole.warnings(), Vec::<String>::new());
    let passes = |simulation: &Simulation| simulation.policies[0].passes;
    let ratio = passes(&sampled) / passes(&whole);
    assert!((14.0..26.0).contains(&ratio), "{ratio}");
    assert!(whole.world[0].1.ends_with("4000 prompts"), "{:?}", whole.world[0]);
}
