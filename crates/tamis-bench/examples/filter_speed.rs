//! Times the variance filter over 65,536 trajectories (4096 groups of 16, half of them uniform).
//! `bench/run.py` compares it with verl's logic in Python. Prints one JSON line `{"what": "filter", "form":
//! "tamis", "seconds": median, "seconds_min": ..., "kept": trajectories, "trajectories": ...}`.
//!
//! `cargo run --release -p tamis-bench --example filter_speed`

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::hint::black_box;
use std::time::Instant;

use tamis_core::filter::{FilterError, OutcomeScale, Variance, Verdict, judge_columns};

const GROUPS: usize = 4096;
const SIZE: usize = 16;
const REPETITIONS: usize = 501;

/// The metric `acc`, flat: a quarter of the groups all wrong, a quarter all right, half mixed.
fn accuracies() -> Vec<f64> {
    let mut state = 1_u64;
    let mut column = Vec::with_capacity(GROUPS * SIZE);
    for group in 0..GROUPS {
        // A linear congruential step: any mixed composition is suitable.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let right = match group % 4 {
            0 => 0,
            1 => SIZE,
            _ => 1 + (state >> 33) as usize % (SIZE - 1),
        };
        // 7 is coprime to 16, so the right ones are scattered.
        column.extend((0..SIZE).map(|member| if member * 7 % SIZE < right { 1.0 } else { 0.0 }));
    }
    column
}

/// The same result as verl's: the indices of the trajectories that stay.
fn kept_trajectories(verdicts: &[Verdict], offsets: &[usize]) -> Vec<usize> {
    let mut kept = Vec::with_capacity(offsets.last().copied().unwrap_or(0));
    for (verdict, ends) in verdicts.iter().zip(offsets.windows(2)) {
        if verdict.is_kept() {
            kept.extend(ends[0]..ends[1]);
        }
    }
    kept
}

fn main() -> Result<(), FilterError> {
    let column = accuracies();
    let offsets: Vec<usize> = (0..=GROUPS).map(|group| group * SIZE).collect();
    let filter = Variance::default();
    let mut seconds = Vec::with_capacity(REPETITIONS);
    let mut kept = 0;
    for _ in 0..REPETITIONS {
        let begin = Instant::now();
        let (verdicts, statistics) =
            judge_columns(&filter, Some(OutcomeScale::default()), black_box(&column), black_box(&offsets))?;
        let indices = kept_trajectories(&verdicts, &offsets);
        seconds.push(begin.elapsed().as_secs_f64());
        kept = black_box(indices).len();
        black_box(statistics);
    }
    seconds.sort_by(f64::total_cmp);
    println!(
        "{{\"what\": \"filter\", \"form\": \"tamis\", \"seconds\": {:e}, \"seconds_min\": {:e}, \"kept\": {kept}, \"trajectories\": {}}}",
        seconds[REPETITIONS / 2],
        seconds[0],
        column.len()
    );
    Ok(())
}
