//! Seconds that sharing 65,536 sequences out over 256 ranks takes, and how evenly, against
//! `bench/peers/balance_verl.py` on the same lengths. Prints JSON lines `{"what": "balance", "form": "tamis",
//! "method": ..., "seconds": median, "seconds_min": ..., "spread": max - min cost of a rank, ...}`.
//!
//! `cargo run --release -p tamis-core --example balance_speed [sequences] [ranks]`

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::hint::black_box;
use std::time::Instant;

use tamis_core::balance::{BalanceError, Cost, Order, greedy, karmarkar_karp};

/// Long enough for a median, short enough to wait for.
const SECONDS: f64 = 1.0;

/// Products of three uniform numbers: heavy-tailed, about 1,050 tokens on average, at most 8,223. Integers
/// alone, so that the peer has the same.
fn lengths(sequences: usize) -> Vec<usize> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 54
    };
    (0..sequences).map(|_| 32 + ((uniform() * uniform() * uniform()) >> 17) as usize).collect()
}

/// A way to share costs out over ranks.
type Share = fn(&[u64], usize) -> Result<Vec<Vec<usize>>, BalanceError>;

fn main() -> Result<(), BalanceError> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (sequences, ranks) = (number(65_536), number(256));
    let lengths = lengths(sequences);
    let methods: [(&str, Share); 3] = [
        ("karmarkar_karp_equal", |costs, ranks| karmarkar_karp(costs, ranks, true)),
        ("karmarkar_karp_free", |costs, ranks| karmarkar_karp(costs, ranks, false)),
        ("greedy_longest_first", |costs, ranks| greedy(costs, ranks, false, Order::LongestFirst)),
    ];
    for (method, share) in methods {
        let mut seconds = Vec::new();
        let mut found = Vec::new();
        let mut costs = Vec::new();
        while seconds.len() < 3 || seconds.iter().sum::<f64>() < SECONDS {
            let begin = Instant::now();
            costs = black_box(&lengths).iter().map(|&length| Cost::VERL.of(length)).collect();
            found = black_box(share(&costs, ranks)?);
            seconds.push(begin.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let sums = || found.iter().map(|part: &Vec<usize>| part.iter().map(|&item| costs[item]).sum::<u64>());
        let (min, max) = (sums().min().unwrap_or(0), sums().max().unwrap_or(0));
        println!(
            "{{\"what\": \"balance\", \"form\": \"tamis\", \"method\": \"{method}\", \"sequences\": {sequences}, \"ranks\": {ranks}, \"tokens\": {}, \"seconds\": {:e}, \"seconds_min\": {:e}, \"spread\": {}, \"max_over_mean\": {:.9}}}",
            lengths.iter().sum::<usize>(),
            seconds[seconds.len() / 2],
            seconds[0],
            max - min,
            max as f64 * ranks as f64 / costs.iter().sum::<u64>() as f64,
        );
    }
    Ok(())
}
