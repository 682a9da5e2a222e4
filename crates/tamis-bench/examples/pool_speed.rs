//! Times pool filters over 1,048,576 and 8,388,608 trajectories (groups of 16), including statistics. Prints
//! one JSON line each: `{"what": "pool filter", "form": "top_p softmax", "seconds": smallest, "kept": groups,
//! "trajectories": ...}`.
//!
//! `cargo run --release -p tamis-bench --example pool_speed`

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::hint::black_box;
use std::time::Instant;

use tamis_core::filter::{FilterError, GroupFilter, Mass, MinP, Percentile, Pool, TopK, TopP, judge_columns};

const SIZE: usize = 16;
const REPETITIONS: usize = 9;

/// Rewards without structure, in [0, 1).
fn rewards(groups: usize) -> Vec<f64> {
    let mut state = 1_u64;
    (0..groups * SIZE)
        .map(|_| {
            // A linear congruential step: any spread of deviations is suitable.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1_u64 << 24) as f64
        })
        .collect()
}

fn main() -> Result<(), FilterError> {
    let pool = Pool::default();
    let filters = [
        ("top_p softmax", GroupFilter::TopP(TopP { p: 0.5, ..TopP::of(0.9) })),
        ("top_p linear", GroupFilter::TopP(TopP { p: 0.5, mass: Mass::Linear, ..TopP::of(0.9) })),
        ("top_k", GroupFilter::TopK(TopK { k: None, fraction: Some(0.25), pool })),
        ("min_p", GroupFilter::MinP(MinP { p: 0.8, pool })),
        ("percentile", GroupFilter::Percentile(Percentile { low: 0.25, high: 0.75, pool })),
    ];
    for groups in [65_536, 524_288] {
        let column = rewards(groups);
        let offsets: Vec<usize> = (0..=groups).map(|group| group * SIZE).collect();
        for (form, filter) in filters {
            let (mut seconds, mut kept) = (f64::INFINITY, 0);
            for _ in 0..REPETITIONS {
                let begin = Instant::now();
                let (verdicts, statistics) =
                    judge_columns(&*filter, None, black_box(&column), black_box(&offsets))?;
                seconds = seconds.min(begin.elapsed().as_secs_f64());
                kept = verdicts.iter().filter(|verdict| verdict.is_kept()).count();
                black_box(statistics);
            }
            println!(
                "{{\"what\": \"pool filter\", \"form\": \"{form}\", \"seconds\": {seconds:e}, \"kept\": {kept}, \"trajectories\": {}}}",
                column.len()
            );
        }
    }
    Ok(())
}
