//! Tokens per second of the policy loss with its derivatives and metrics over ragged trajectories of lognormal length (mean about
//! 1,000 tokens, cap 8,192), beside a plain pass that reads the same columns and writes the same derivatives: `bench/` sets it
//! against verl's and TRL's functions on PyTorch. Prints one JSON line per loss and number of threads:
//! `{"what": "policy_loss", "form": "tamis", "loss": name, "threads": ..., "seconds": median, "seconds_min": ..., "tokens": ...,
//! "trajectories": ..., "tokens_per_second": ..., "gigabytes_per_second": ..., "plain_gigabytes_per_second": ..., "share": loss over plain,
//! "scratch_bytes": ..., "column_bytes": ...}`.
//!
//! `cargo run --release -p tamis-core --example loss_speed -- [TRAJECTORIES] [LOSS...]`

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::hint::black_box;
use std::time::Instant;

use tamis_core::objective::{
    Accumulator, AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, Columns, Dppo, Evaluation, Gspo,
    GspoForm, KlController, KlEstimator, KlKind, KlTerm, Normalisers, Objective, ObjectiveError, PolicyLoss,
    Sapo,
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
        let logprob: Vec<f32> = (0..tokens as u64).map(|t| -(key.with(1).uniform(t) * 2.0) as f32).collect();
        let moved = |purpose: u64, size: f64| -> Vec<f32> {
            let of = |(t, &logprob): (usize, &f32)| {
                logprob + (size * (key.with(purpose).uniform(t as u64) - 0.5)) as f32
            };
            logprob.iter().enumerate().map(of).collect()
        };
        let (old, reference) = (moved(2, 0.4), moved(3, 0.8));
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

/// Reads what the loss reads and writes what it writes, with an addition per token in between.
fn plain(batch: &Batch, with_reference: bool, out: &mut [f64], threads: usize) {
    let chunk = out.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (part, out) in out.chunks_mut(chunk).enumerate() {
            scope.spawn(move || {
                let range = part * chunk..part * chunk + out.len();
                let (logprob, old) = (&batch.logprob[range.clone()], &batch.old[range.clone()]);
                let mask = &batch.mask[range.clone()];
                for (((out, &logprob), &old), &mask) in out.iter_mut().zip(logprob).zip(old).zip(mask) {
                    *out = f64::from(logprob + old) + f64::from(u8::from(mask));
                }
                if with_reference {
                    for (out, &reference) in out.iter_mut().zip(&batch.reference[range]) {
                        *out += f64::from(reference);
                    }
                }
            });
        }
    });
}

fn seconds(
    repetitions: usize,
    mut run: impl FnMut() -> Result<(), ObjectiveError>,
) -> Result<(f64, f64), ObjectiveError> {
    let mut seconds = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        let begin = Instant::now();
        run()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds[repetitions / 2], seconds[0]))
}

fn main() -> Result<(), ObjectiveError> {
    let mut arguments = std::env::args().skip(1);
    let trajectories: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2048);
    let wanted: Vec<String> = arguments.collect();
    let batch = Batch::new(trajectories);
    let tokens = batch.mask.len();
    let normalisers = Normalisers {
        tokens: tokens as f64,
        sequences: trajectories as f64,
        groups: trajectories as f64 / 16.0,
        dp_size: 1.0,
    };
    let clip = Clip::verl(0.2, 0.28, 3.0);
    let k3 = KlTerm {
        estimator: KlEstimator { clamped: true, ..KlEstimator::plain(KlKind::K3) },
        controller: KlController::Fixed { coef: 0.001 },
        bias_corrected: false,
    };
    let of = |policy| Objective::of(policy, Aggregation::TokenMean);
    let dppo = Dppo { low: 0.2, high: 0.2, ratio_cap: 20.0, log_ratio_limit: Some(20.0) };
    let objectives = [
        ("clip", of(PolicyLoss::Clip(clip))),
        ("clip+k3", Objective { kl: Some(k3), ..of(PolicyLoss::Clip(clip)) }),
        (
            "gspo",
            of(PolicyLoss::Gspo(Gspo {
                low: 3e-4,
                high: 4e-4,
                form: GspoForm::Sequence,
                log_ratio_limit: None,
            })),
        ),
        (
            "cispo",
            of(PolicyLoss::Cispo(Cispo {
                bound: CispoBound::Absolute { max: 5.0 },
                log_ratio_limit: Some(20.0),
            })),
        ),
        (
            "sapo",
            of(PolicyLoss::Sapo(Sapo { tau_positive: 1.0, tau_negative: 1.05, log_ratio_limit: Some(20.0) })),
        ),
        ("dppo_tv", of(PolicyLoss::DppoTv(dppo))),
        ("reinforce", of(PolicyLoss::Reinforce)),
    ];
    let repetitions = (200_000_000 / tokens.max(1)).clamp(5, 101);
    for threads in [1, 2] {
        for (name, objective) in &objectives {
            if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
                continue;
            }
            let mut evaluation = Evaluation::default();
            let state = objective.initial_state();
            let columns = batch.columns();
            let (median, least) = seconds(repetitions, || {
                objective.evaluate_on(threads, black_box(&columns), &normalisers, &state, &mut evaluation)?;
                let mut accumulator = Accumulator::new(trajectories);
                for (index, sums) in evaluation.sequences.iter().enumerate() {
                    accumulator.record(index, *sums)?;
                }
                black_box(accumulator.finish(objective, &state));
                Ok(())
            })?;
            let with_reference = objective.kl.is_some();
            let mut out = vec![0.0; tokens];
            let (plain_median, _) = seconds(repetitions, || {
                plain(black_box(&batch), with_reference, black_box(&mut out), threads);
                Ok(())
            })?;
            let column_bytes = tokens * (4 + 4 + 1 + 8 + if with_reference { 4 } else { 0 });
            // Sums per trajectory and their collection; the blocks of each thread are 16 KiB.
            let per_trajectory = 2 * size_of_val(&evaluation.sequences[..1]) + 8;
            let scratch = trajectories * per_trajectory + threads * 16_384;
            let rate = |seconds: f64| column_bytes as f64 / seconds / 1e9;
            println!(
                "{{\"what\": \"policy_loss\", \"form\": \"tamis\", \"loss\": \"{name}\", \"threads\": {threads}, \
                 \"seconds\": {median:e}, \"seconds_min\": {least:e}, \"tokens\": {tokens}, \"trajectories\": {trajectories}, \
                 \"tokens_per_second\": {:e}, \"gigabytes_per_second\": {:.2}, \"plain_gigabytes_per_second\": {:.2}, \
                 \"share\": {:.3}, \"scratch_bytes\": {scratch}, \"column_bytes\": {column_bytes}}}",
                tokens as f64 / median,
                rate(median),
                rate(plain_median),
                plain_median / median,
            );
        }
    }
    Ok(())
}
