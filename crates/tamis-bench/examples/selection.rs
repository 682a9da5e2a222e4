//! Cost and bias of prompt selection under drifting pass rates: generated groups per kept group, shares of
//! hard and easy prompts, effective share of the weights.
//!
//! ```text
//! cargo run --release -p tamis-bench --example selection
//! cargo run --release -p tamis-bench --example selection -- A B      pass rates from Beta(A, B); 0.3 0.3 by default
//! ```
//! 6000 prompts, groups of 8, 120 steps of 128 kept groups each, refilled group by group. Pass rates drift in
//! their logit by 0.006 a step, with a noise of 0.03. Five seeds; results are shown for the second half of
//! the steps and for all of them.

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use tamis_core::group::{PolicyVersion, PromptId};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::selector::{
    DifficultyPools, PassRatePrior, Posterior, PromptHistories, PromptSelection, Side, SkipRates,
    ZeroVarianceSkip, effective_share,
};

const PROMPTS: u64 = 6000;
const GROUPS: usize = 128;
const MEMBERS: u32 = 8;
const STEPS: u64 = 120;
const SEEDS: u64 = 5;

#[derive(Clone, Copy)]
enum Policy {
    Blind,
    Skip(ZeroVarianceSkip),
    Pools(DifficultyPools),
    Posterior(Posterior),
    /// With q proportional to sqrt(x / (1 - m x)), x = K / K*. Among all functions of K this one generates
    /// least at its effective share, if x is right: it minimises sum q at given sums of q K (the kept groups)
    /// and of K / q (their squared weights).
    CheapestForm(Posterior, f64),
}

#[derive(Default)]
struct Counts {
    generated: f64,
    kept: f64,
    weights: Vec<f64>,
    hard: f64,
    easy: f64,
}

impl Counts {
    fn keep(&mut self, rate: f64, weight: f64) {
        self.kept += 1.0;
        self.weights.push(weight);
        self.hard += if rate < 0.1 { weight } else { 0.0 };
        self.easy += if rate > 0.9 { weight } else { 0.0 };
    }

    fn shown(&self) -> String {
        let sum: f64 = self.weights.iter().sum();
        let share = effective_share(&self.weights).unwrap_or(1.0);
        format!(
            "{:>6.3} {:>6.4} {:>6.4} {:>5.3}",
            self.generated / self.kept,
            self.hard / sum,
            self.easy / sum,
            share
        )
    }
}

fn run(policy: Policy, (a, b): (f64, f64), seed: u64, all: &mut Counts, late: &mut Counts) {
    let key = Key::new(seed, Purpose::Rollout);
    let mut logits: Vec<f64> = (0..PROMPTS)
        .map(|prompt| {
            let (x, y) = (key.with(prompt).with(0).gamma(a), key.with(prompt).with(1).gamma(b));
            (x.max(1e-12) / y.max(1e-12)).ln()
        })
        .collect();
    let (mut histories, mut prior, mut rates) =
        (PromptHistories::default(), PassRatePrior::default(), SkipRates::default());
    let (mut epoch, mut place) = (0u64, 0usize);
    let mut order = Key::new(seed, Purpose::Shuffle).with(epoch).permutation(PROMPTS as usize);
    for step in 0..STEPS {
        let version = PolicyVersion(step);
        let (mut kept, mut generated, mut easy, mut hard) = (0, 0, 0, 0);
        while kept < GROUPS {
            if place == order.len() {
                (epoch, place) = (epoch + 1, 0);
                order = Key::new(seed, Purpose::Shuffle).with(epoch).permutation(PROMPTS as usize);
            }
            let prompt = order[place];
            place += 1;
            let id = PromptId(prompt as u64);
            let draw = key.with(7).with(epoch).with(prompt as u64);
            let PromptSelection { is_taken, inclusion } = match policy {
                Policy::Blind => PromptSelection::CERTAIN,
                Policy::Skip(skip) => skip.select(&rates, histories.get(id), draw),
                Policy::Pools(pools) => pools.select(histories.get(id), draw),
                Policy::Posterior(posterior) => {
                    posterior.select(&prior, histories.get(id), version, MEMBERS, draw)
                }
                Policy::CheapestForm(posterior, m) => {
                    let keep = posterior.keep_probability(&prior, histories.get(id), version, MEMBERS);
                    let x = keep / (1.0 - 0.5_f64.powi(MEMBERS as i32 - 1));
                    let inclusion = (x * (1.0 - m) / (1.0 - m * x)).sqrt().clamp(posterior.floor, 1.0);
                    PromptSelection::with_probability(inclusion, draw.uniform(0))
                }
            };
            if !is_taken {
                continue;
            }
            let rate = 1.0 / (1.0 + (-logits[prompt]).exp());
            let num_correct =
                (0..u64::from(MEMBERS)).filter(|&i| draw.with(9).uniform(i) < rate).count() as u32;
            let memory = match policy {
                Policy::Posterior(posterior) | Policy::CheapestForm(posterior, _) => posterior.memory,
                _ => 1.0,
            };
            histories.observe(id, num_correct, MEMBERS, version, memory);
            prior.observe(num_correct, MEMBERS, inclusion, 0.9998);
            generated += 1;
            match Side::of(num_correct, MEMBERS) {
                Some(Side::Easy) => easy += 1,
                Some(Side::Hard) => hard += 1,
                None => {
                    kept += 1;
                    let is_weighted = matches!(policy, Policy::Posterior(_) | Policy::CheapestForm(..));
                    let weight = if is_weighted { 1.0 / inclusion } else { 1.0 };
                    all.keep(rate, weight);
                    if step >= STEPS / 2 {
                        late.keep(rate, weight);
                    }
                }
            }
        }
        all.generated += generated as f64;
        late.generated += if step >= STEPS / 2 { generated as f64 } else { 0.0 };
        if let Policy::Skip(skip) = policy {
            rates = rates.after(&skip, generated, easy, hard);
        }
        for (prompt, logit) in logits.iter_mut().enumerate() {
            *logit += 0.006 + 0.03 * key.with(8).with(step).normal(prompt as u64);
        }
    }
}

fn main() {
    let given: Vec<f64> = std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    let shape = if let [a, b, ..] = given[..] { (a, b) } else { (0.3, 0.3) };
    let cases = [
        ("blind", Policy::Blind),
        ("zero_variance_skip", Policy::Skip(ZeroVarianceSkip::default())),
        ("difficulty_pools", Policy::Pools(DifficultyPools::default())),
        ("posterior", Policy::Posterior(Posterior::default())),
        (
            "posterior, nothing forgotten",
            Policy::Posterior(Posterior { memory: 1.0, ..Posterior::default() }),
        ),
        ("posterior, reference 1/2", Policy::Posterior(Posterior { reference: 0.5, ..Posterior::default() })),
        ("posterior, reference 1", Policy::Posterior(Posterior { reference: 1.0, ..Posterior::default() })),
        ("cheapest form, m 0.8", Policy::CheapestForm(Posterior::default(), 0.8)),
        ("cheapest form, m 0.85", Policy::CheapestForm(Posterior::default(), 0.85)),
        (
            "cheapest form, m 0.8, memory 1",
            Policy::CheapestForm(Posterior { memory: 1.0, ..Posterior::default() }, 0.8),
        ),
        (
            "cheapest form, m 0.85, memory 1",
            Policy::CheapestForm(Posterior { memory: 1.0, ..Posterior::default() }, 0.85),
        ),
    ];
    println!("{:<32} {:<26}   second half of the steps", "", "all steps");
    println!(
        "{:<32} {:>6} {:>6} {:>6} {:>5}   {:>6} {:>6} {:>6} {:>5}",
        "policy", "cost", "hard", "easy", "ESS", "cost", "hard", "easy", "ESS"
    );
    for (name, policy) in cases {
        let (mut all, mut late) = (Counts::default(), Counts::default());
        for seed in 1..=SEEDS {
            run(policy, shape, seed, &mut all, &mut late);
        }
        println!("{name:<32} {}   {}", all.shown(), late.shown());
    }
}
