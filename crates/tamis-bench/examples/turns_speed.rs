//! How much time it saves to reuse the keys and values of the last turn: the same episodes with and without,
//! in turn. One JSON line per measurement, `{"what", "model", "turns", "kept_s", "anew_s", "ratio", ...}`.
//!
//! `cargo run --release -p tamis-bench --example turns_speed -- [threads] [repetitions] [turns,turns...]
//! [model]`
//!
//! Groups of 8 begin with a prompt of 100 tokens. Every turn is an answer of 30 tokens and an observation of
//! 100 tokens. `ratio` is the median of the repetitions' ratios. Both runs must give the same tokens,
//! otherwise this fails. On one thread, seconds are processor time, so that other programs disturb little.
#![allow(clippy::print_stdout, reason = "a program that prints its measurements")]
#![allow(missing_docs, reason = "a program")]

use std::collections::HashMap;
use std::time::Instant;

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, BatchGenerator, GenerationRequest, GeneratorSettings, Model, RequestId, SamplingParams,
    SequenceName, Threads, TransformerConfig, TurnPlace,
};

const PROMPT: usize = 100;
const ANSWER: usize = 30;
const SHOWN: usize = 100;
const MEMBERS: u64 = 8;

/// A model and the groups that are played at once.
struct Case {
    name: &'static str,
    config: TransformerConfig,
    groups: u64,
}

fn cases() -> [Case; 3] {
    let model = |architecture, vocab, hidden, intermediate, layers, heads| {
        TransformerConfig::new(architecture, vocab, hidden, intermediate, layers, heads, 4096)
    };
    let (llama, qwen) = (Architecture::Llama, Architecture::Qwen3);
    // The first one is similar to `configs/frozen_lake.yaml`, the others are those of `engine_speed`.
    [
        Case { name: "tiny", config: model(qwen, 96, 64, 192, 3, 4), groups: 16 },
        Case { name: "small", config: model(llama, 64, 128, 384, 4, 4), groups: 8 },
        Case { name: "mid", config: model(llama, 8192, 512, 1408, 8, 8), groups: 1 },
    ]
}

/// Seconds since any fixed point: on one thread, processor time if Linux reports it.
fn seconds(threads: &Threads, start: Instant) -> f64 {
    let ran = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let of_processor = if threads.num_threads() == 1 { ran() } else { None };
    of_processor.map_or_else(|| start.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

/// Tokens by a key.
fn draw(key: Key, len: usize, config: &TransformerConfig) -> Vec<u32> {
    (0..len as u64).map(|i| key.below(i, config.vocab_size as u64) as u32).collect()
}

/// Plays all episodes. Returns seconds, and a sum over the samples.
fn play(
    case: &Case,
    threads: &Threads,
    model: &Model,
    turns: u32,
    generator: &mut BatchGenerator,
) -> (f64, u64) {
    let start = Instant::now();
    let before = seconds(threads, start);
    let mut asked: HashMap<RequestId, (u64, Vec<u64>, u32, Vec<u32>)> = HashMap::new();
    let submit = |generator: &mut BatchGenerator,
                  asked: &mut HashMap<_, _>,
                  (group, members, turn, prompt): (u64, Vec<u64>, u32, Vec<u32>)| {
        let key = Key::new(1, Purpose::Rollout).with(group).with(u64::from(turn));
        let request = GenerationRequest {
            prompt: prompt.clone(),
            keys: members.iter().map(|&member| key.with(member)).collect(),
            params: SamplingParams { max_new_tokens: ANSWER, ..SamplingParams::default() },
            stop: None,
            mask: None,
        };
        let sequences =
            members.iter().map(|&member| SequenceName { kind: 0, group, member: member as u32 }).collect();
        let id = generator.submit_turn(request, TurnPlace { sequences, continues: turn > 0 });
        if let Ok(id) = id {
            asked.insert(id, (group, members, turn, prompt));
        }
    };
    let random = Key::new(1, Purpose::Task);
    for group in 0..case.groups {
        let prompt = draw(random.with(group), PROMPT, &case.config);
        submit(generator, &mut asked, (group, (0..MEMBERS).collect(), 0, prompt));
    }
    let (mut sum, mut num_answers) = (0, 0);
    while !generator.is_idle() {
        for done in generator.step(threads, model) {
            let Some((group, members, turn, prompt)) = asked.get(&done.request).cloned() else { continue };
            num_answers += 1;
            sum += done.logprobs.iter().map(|logprob| u64::from(logprob.to_bits())).sum::<u64>();
            if turn + 1 < turns {
                let member = members[done.sample];
                let shown = draw(random.with(group).with(member).with(u64::from(turn)), SHOWN, &case.config);
                let prompt = [prompt, done.tokens, shown].concat();
                submit(generator, &mut asked, (group, vec![member], turn + 1, prompt));
            }
        }
    }
    assert_eq!(num_answers, case.groups * MEMBERS * u64::from(turns));
    (seconds(threads, start) - before, sum)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let num_threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let repetitions = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5).max(1);
    let turns = arguments.next().unwrap_or_else(|| "2,4,8".to_owned());
    let filter = arguments.next().unwrap_or_default();
    let threads = Threads::new(num_threads);
    for case in cases().iter().filter(|case| case.name.contains(&filter)) {
        let Ok(model) = Model::init(case.config.clone(), Key::new(1, Purpose::Init)) else { continue };
        for turns in turns.split(',').filter_map(|text| text.parse::<u32>().ok()) {
            let settings = GeneratorSettings::default();
            let mut kept = BatchGenerator::new(&case.config, settings);
            let mut anew = BatchGenerator::new(&case.config, settings);
            anew.keep_at_most(0);
            let mut times: [Vec<f64>; 3] = Default::default();
            let before = |generator: &BatchGenerator| generator.num_reused_tokens();
            let mut reused = 0;
            // The first of each is to warm up.
            for repetition in 0..=repetitions {
                kept.forget(|_| true);
                let num_before = before(&kept);
                let (with, sum) = play(case, &threads, &model, turns, &mut kept);
                reused = before(&kept) - num_before;
                let (without, expected) = play(case, &threads, &model, turns, &mut anew);
                assert_eq!(sum, expected, "the same log-probabilities");
                if repetition > 0 {
                    for (times, time) in times.iter_mut().zip([with, without, without / with]) {
                        times.push(time);
                    }
                }
            }
            let [with, without, ratio] = times.map(median);
            // The most that can be reused: in every turn but the first, everything except the answer's last
            // token and the observation.
            let per_episode: usize =
                (1..turns as usize).map(|turn| PROMPT + turn * ANSWER + (turn - 1) * SHOWN - 1).sum();
            let could_be = case.groups * MEMBERS * per_episode as u64;
            println!(
                r#"{{"what":"turns","model":"{}","parameters":{},"threads":{num_threads},"turns":{turns},"episodes":{},"kept_s":{with:.3},"anew_s":{without:.3},"ratio":{ratio:.2},"reused_share":{:.3}}}"#,
                case.name,
                model.num_parameters(),
                case.groups * MEMBERS,
                reused as f64 / could_be as f64
            );
        }
    }
}
