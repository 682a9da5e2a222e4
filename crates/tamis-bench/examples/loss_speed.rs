//! Tokens per second of the policy loss with its derivatives and metrics, over ragged trajectories of
//! lognormal length (mean about 1,000 tokens, cap 8,192), on one thread. For comparison a plain pass reads
//! the same columns and writes the same derivatives; the two take turns, so that a disturbance affects both.
//! `bench/` compares the results with verl's and TRL's functions on PyTorch. Prints one JSON line per size
//! and loss: `{"what": "policy_loss", "form": "tamis", "loss": name, "threads": 1, "seconds": median,
//! "seconds_min": ..., "tokens": ..., "trajectories": ..., "tokens_per_second": by the median,
//! "nanoseconds_per_token": least, "gigabytes_per_second": ..., "plain_gigabytes_per_second": ..., "share":
//! loss over plain (median of the turns), "share_of_least": quickest over quickest, "column_bytes": what is
//! read and written, "scratch_bytes": growth of the process beyond them (null if the system does not report
//! it), "scratch_share": ...}`.
//!
//! `cargo run --release -p tamis-bench --example loss_speed -- [TRAJECTORIES[,TRAJECTORIES...]] [LOSS...]`

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::hint::black_box;
use std::time::Instant;

use tamis_core::objective::{
    AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, Columns, DppoTv, Evaluation, Gspo, GspoForm,
    KlController, KlEstimator, KlKind, KlTerm, Normalisers, Objective, ObjectiveError, ObjectiveState,
    Outcome, PolicyLoss, Reinforce, Sapo,
};
use tamis_core::random::{Key, Purpose};

struct Batch {
    offsets: Vec<usize>,
    mask: Vec<bool>,
    logprob: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    advantage: Vec<f64>,
}

impl Batch {
    fn new(trajectories: usize) -> Self {
        let key = Key::new(3, Purpose::Bootstrap);
        let mut offsets = vec![0];
        for i in 0..trajectories as u64 {
            // Median 700, deviation 0.85 of the logarithm: mean about 1,000.
            let length = (6.55 + 0.85 * key.with(0).normal(i)).exp().clamp(1.0, 8192.0) as usize;
            offsets.push(offsets[i as usize] + length);
        }
        let tokens = *offsets.last().unwrap_or(&0);
        // A linear congruential step: any mixed numbers are suitable.
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 24) as f32
        };
        let logprob: Vec<f32> = (0..tokens).map(|_| -2.0 * uniform()).collect();
        let mut moved =
            |size: f32| logprob.iter().map(|&logprob| logprob + size * (uniform() - 0.5)).collect();
        let (old, reference) = (moved(0.4), moved(0.8));
        let advantage = (0..trajectories as u64).map(|i| key.with(4).normal(i)).collect();
        Self { mask: vec![true; tokens], offsets, logprob, old, reference, advantage }
    }

    fn columns(&self) -> Columns<'_, f32> {
        Columns {
            old: Some(&self.old),
            reference: Some(&self.reference),
            ..Columns::new(
                &self.offsets,
                &self.mask,
                &self.logprob,
                AdvantageColumn::PerTrajectory(&self.advantage),
            )
        }
    }
}

/// Reads and writes the same data as the loss, with one addition per token.
fn plain(batch: &Batch, with_reference: bool, out: &mut [f32]) {
    let mask = batch.mask.iter().map(|&on| f32::from(u8::from(on)));
    let columns = out.iter_mut().zip(&batch.logprob).zip(&batch.old).zip(mask);
    if with_reference {
        for ((((out, logprob), old), mask), reference) in columns.zip(&batch.reference) {
            *out = logprob + old + mask + reference;
        }
    } else {
        for (((out, logprob), old), mask) in columns {
            *out = logprob + old + mask;
        }
    }
}

/// The whole optimizer batch: derivatives, then loss and metrics.
fn loss(
    objective: &Objective,
    state: &ObjectiveState,
    columns: &Columns<'_, f32>,
    normalisers: &Normalisers,
    into: &mut Evaluation<f32>,
) -> Result<(), ObjectiveError> {
    objective.evaluate(black_box(columns), normalisers, state, into)?;
    black_box(Outcome::of(&into.sequences, objective, state));
    Ok(())
}

/// Bytes of this process in memory: now, and the most since the last call of [`forget_peak`].
fn resident() -> Option<[usize; 2]> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
    };
    Some([field("VmRSS:")?, field("VmHWM:")?])
}

fn forget_peak() -> Option<()> {
    std::fs::write("/proc/self/clear_refs", "5").ok()
}

/// Times of a call: least and median.
struct Times(Vec<f64>);

impl Times {
    fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// One size and loss.
fn measure(name: &str, objective: &Objective, batch: &Batch, out: &mut [f32]) -> Result<(), ObjectiveError> {
    let (tokens, trajectories) = (batch.mask.len(), batch.advantage.len());
    let normalisers = Normalisers {
        tokens: tokens as f64,
        sequences: trajectories as f64,
        groups: trajectories as f64 / 16.0,
        dp_size: 1.0,
    };
    let (columns, state) = (batch.columns(), objective.initial_state());
    let with_reference = objective.kl.is_some();
    // When the first call begins, only the outputs are in memory, page by page.
    let mut evaluation = Evaluation::default();
    evaluation.derivatives.logprob.resize(tokens, 1.0);
    let before = resident().zip(forget_peak());
    loss(objective, &state, &columns, &normalisers, &mut evaluation)?;
    let scratch = before.zip(resident()).map(|(([before, _], ()), [_, peak])| peak.saturating_sub(before));

    let mut times = (Times(Vec::new()), Times(Vec::new()));
    for _ in 0..(200_000_000 / tokens.max(1)).clamp(5, 101) {
        let begin = Instant::now();
        loss(objective, &state, &columns, &normalisers, &mut evaluation)?;
        times.0.0.push(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        plain(black_box(batch), with_reference, black_box(&mut *out));
        times.1.0.push(begin.elapsed().as_secs_f64());
    }
    let (ours, plain) = times;
    let shares = Times(plain.0.iter().zip(&ours.0).map(|(plain, ours)| plain / ours).collect());
    let column_bytes = tokens * (4 + 4 + 1 + 4 + if with_reference { 4 } else { 0 });
    let rate = |seconds: f64| column_bytes as f64 / seconds / 1e9;
    println!(
        "{{\"what\": \"policy_loss\", \"form\": \"tamis\", \"loss\": \"{name}\", \"threads\": 1, \
         \"seconds\": {:e}, \"seconds_min\": {:e}, \"tokens\": {tokens}, \"trajectories\": {trajectories}, \
         \"tokens_per_second\": {:e}, \"nanoseconds_per_token\": {:.3}, \"gigabytes_per_second\": {:.2}, \
         \"plain_gigabytes_per_second\": {:.2}, \"share\": {:.3}, \"share_of_least\": {:.3}, \
         \"column_bytes\": {column_bytes}, \"scratch_bytes\": {}, \"scratch_share\": {}}}",
        ours.median(),
        ours.least(),
        tokens as f64 / ours.median(),
        ours.least() * 1e9 / tokens as f64,
        rate(ours.least()),
        rate(plain.least()),
        shares.median(),
        plain.least() / ours.least(),
        scratch.map_or("null".to_owned(), |bytes| bytes.to_string()),
        scratch.map_or("null".to_owned(), |bytes| format!("{:.4}", bytes as f64 / column_bytes as f64)),
    );
    Ok(())
}

fn main() -> Result<(), ObjectiveError> {
    let mut arguments = std::env::args().skip(1);
    let sizes = arguments.next().unwrap_or_else(|| "2048".to_owned());
    let wanted: Vec<String> = arguments.collect();
    let clip = Clip::verl(0.2, 0.28, 3.0);
    let k3 = KlTerm {
        estimator: KlEstimator { clamped: true, ..KlEstimator::plain(KlKind::K3) },
        controller: KlController::Fixed { coef: 0.001 },
        bias_corrected: false,
    };
    let of = |policy| Objective::of(policy, Aggregation::TokenMean);
    let dppo = DppoTv { clip_low: 0.2, clip_high: 0.2, max_ratio: 20.0, log_ratio_limit: Some(20.0) };
    let objectives = [
        ("clip", of(PolicyLoss::Clip(clip))),
        ("clip+k3", Objective { kl: Some(k3), ..of(PolicyLoss::Clip(clip)) }),
        (
            "gspo",
            of(PolicyLoss::Gspo(Gspo {
                clip_low: 3e-4,
                clip_high: 4e-4,
                form: GspoForm::Sequence,
                log_ratio_limit: None,
            })),
        ),
        (
            "cispo",
            of(PolicyLoss::Cispo(Cispo {
                bound: CispoBound::Absolute,
                clip_low: 0.2,
                clip_high: 0.2,
                max_ratio: 5.0,
                log_ratio_limit: Some(20.0),
            })),
        ),
        (
            "sapo",
            of(PolicyLoss::Sapo(Sapo { tau_positive: 1.0, tau_negative: 1.05, log_ratio_limit: Some(20.0) })),
        ),
        ("dppo_tv", of(PolicyLoss::DppoTv(dppo))),
        ("reinforce", of(PolicyLoss::Reinforce(Reinforce {}))),
    ];
    for trajectories in sizes.split(',').filter_map(|size| size.parse().ok()) {
        let batch = Batch::new(trajectories);
        let mut out = vec![1.0; batch.mask.len()];
        for (name, objective) in &objectives {
            if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
                measure(name, objective, &batch, &mut out)?;
            }
        }
    }
    Ok(())
}
