//! Times group-relative advantages, and the variance filter with its statistics, over 1,048,576 and
//! 10,485,760 trajectories in groups of 16. `bench/run.py` compares them with NumPy's vectorised forms and
//! verl's loops. Prints one JSON line each: `{"what": "advantage" | "statistics", "form": "tamis",
//! "trajectories": ..., "seconds": median, "seconds_min": ...}`.
//!
//! `cargo run --release -p tamis-bench --example advantage_speed`

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Grpo};
use tamis_core::filter::{OutcomeScale, Variance, judge_columns};
use tamis_core::ragged::Ragged;

const SIZE: usize = 16;

/// Rewards 0 and 1, a quarter of the groups all wrong, a quarter all right.
fn rewards(groups: usize) -> Vec<f64> {
    let mut state = 1_u64;
    let mut column = Vec::with_capacity(groups * SIZE);
    for group in 0..groups {
        // A linear congruential step: any mixed composition is suitable.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let right = match group % 4 {
            0 => 0,
            1 => SIZE,
            _ => 1 + (state >> 33) as usize % (SIZE - 1),
        };
        column.extend((0..SIZE).map(|member| if member * 7 % SIZE < right { 1.0 } else { 0.0 }));
    }
    column
}

fn report(
    what: &str,
    trajectories: usize,
    repetitions: usize,
    mut run: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    // The first call allocates the memory.
    run()?;
    let mut seconds = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        let begin = Instant::now();
        run()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    println!(
        "{{\"what\": \"{what}\", \"form\": \"tamis\", \"trajectories\": {trajectories}, \"seconds\": {:e}, \"seconds_min\": {:e}}}",
        seconds[repetitions / 2],
        seconds[0]
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let filter = Variance::default();
    for (groups, repetitions) in [(65_536, 51), (655_360, 21)] {
        let column = rewards(groups);
        let trajectories = column.len();
        let offsets: Vec<usize> = (0..=groups).map(|group| group * SIZE).collect();
        let batch = Ragged::from_lengths(column.clone(), &vec![SIZE; groups])?;
        report("advantage", trajectories, repetitions, || {
            black_box(Grpo::verl().advantages(&AdvantageBatch::of_rewards(black_box(&batch)))?);
            Ok(())
        })?;
        report("statistics", trajectories, repetitions, || {
            let scale = Some(OutcomeScale::default());
            let (metric, offsets) = (black_box(&column), black_box(&offsets));
            black_box(judge_columns(&filter, scale, metric, offsets)?);
            Ok(())
        })?;
    }
    Ok(())
}
