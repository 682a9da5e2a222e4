//! A run of any schedule that is killed or stopped at any instant ends like an undisturbed run: with the
//! engine of this process, with answers and with games. Servers: [`crate::server_kills`].
//!
//! One of each way to end a run for each case; `TAMIS_KILLS=40` for more, `TAMIS_KILL_SEED=N` to repeat them.

use std::time::Instant;

use crate::kills::{Dice, Stop, begun, killed_when, num_kills, start_run};
use crate::tamis::{Folder, Left, Replaced as _};

/// Samples are so long that some are in flight whenever weights are published, and groups whose members are
/// alike are about as frequent as others.
const CONFIG: &str = "\
run: {name: r, seed: 7, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 256}
data:
  max_prompt_length: 16
  train_batch_size: 4
  gen_batch_size: 8
  TASK
filter: {kind: variance, metric: seq_reward}
schedule: {max_num_gen_batches: 50, SCHEDULE}
train: {ppo_mini_batch_size: 2, total_steps: 8, optimizer: {learning_rate: 1e-3}}
checkpoint: {save_freq: 3}
";

const ANSWERS: &str = "\
task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
rollout: {n: 4, max_response_length: 20}
reward: [{kind: format, pattern: '[^5]*5[^5]*'}]";

const GAMES: &str = "\
task: environment
environment: {kind: frozen_lake, size: 3, is_slippery: true, style: plain, prompting: {max_turns: 5}, train_size: 64, val_size: 2}
rollout: {n: 4, max_response_length: 6}
reward: [{kind: environment}]
sft: {steps: 60, batch_size: 32, learning_rate: 1e-2}";

const SCHEDULES: [&str; 8] = [
    "mode: rounds, surplus: discard",
    "mode: rounds, surplus: carry, max_lag: 2",
    "mode: deficit, surplus: discard",
    "mode: deficit, surplus: carry, max_lag: 2",
    "mode: streaming, surplus: discard",
    "mode: streaming, surplus: discard, screen_first: 2",
    "mode: streaming, surplus: carry, max_lag: 2",
    "mode: streaming, surplus: carry, max_lag: 2, screen_first: 2",
];

#[test]
fn a_run_of_some_schedules_ends_as_if_nobody_had_touched_it() {
    untouched(5);
}

#[test]
#[ignore = "long: .ci/all"]
fn a_run_of_any_schedule_ends_as_if_nobody_had_touched_it() {
    untouched(1);
}

/// Kills runs of every `stride`-th combination of task and schedule.
fn untouched(stride: usize) {
    let mut dice = Dice::new();
    let cases = [ANSWERS, GAMES].iter().flat_map(|task| SCHEDULES.map(|schedule| (task, schedule)));
    for (task, schedule) in cases.skip(stride - 1).step_by(stride) {
        let config = CONFIG.replaced("TASK", task).replaced("SCHEDULE", schedule);
        let whole = Folder::new().with("config.yaml", &config);
        let start = Instant::now();
        whole.tamis(&["train", "config.yaml"]).succeeds();
        let whole_time = start.elapsed();
        let expected = Left::by(&whole.join("runs/r"));
        let ways = [Stop::Kill, Stop::Term, Stop::TermTwice];
        let mut ways = ways.into_iter().cycle().take(num_kills(3));
        let mut num_done = 0;
        while num_done < num_kills(3) {
            let folder = Folder::new().with("config.yaml", &config);
            let last = loop {
                let Some(stop) = ways.next() else { break folder.wait(start_run(&folder, &[])) };
                let (begin, at) = (Instant::now(), whole_time.mul_f64(0.9 * dice.roll()));
                num_done += 1;
                if let Some(ended) = killed_when(&folder, &[], stop, || begin.elapsed() >= at) {
                    break ended;
                }
            };
            assert_eq!(last.code, Some(0), "{schedule}: {}", last.shown());
            expected.assert_same(&Left::by(&begun(&folder).expect("a run")));
        }
    }
}
