//! Duration of a step under each schedule, at a server with long and short completions: the dispatcher,
//! the fleet and HTTP as in a run, against a fake server in its own process that takes the time of a
//! large model.
//!
//! ```text
//! cargo run --release -p tamis-bench --example step_time_http -- [STEPS] [MILLISECONDS]
//! ```
//!
//! The server decodes up to S = 256 samples at once, one token each an iteration. An iteration with b
//! of them takes `t0 (1 + ρ b / S)` with ρ = 0.5 and t0 in milliseconds (default 2). Lengths are
//! lognormal with σ = 1 (median 50 tokens, at most 1000), one batch of 128 groups of 8 fills the server
//! four times over, and the pass rates of the prompts follow Beta(0.3, 0.3). Lengths and scores are
//! functions of the prompt and the sample, so every schedule has the same ones. Weights are published
//! after every step, without waiting for samples in flight; training takes no time.
//! `tamis simulate examples/simulate.yaml` is the same on a virtual clock.
#![allow(clippy::print_stdout, reason = "a program whose result is printed")]
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

#[path = "../../tamis-rollout/tests/support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Map;
use support::decoder::{Decoder, Pace};
use support::fake_vllm::{Answer, Asked, Behaviour, FakeVllm, VOCABULARY};
use tamis_core::filter::Metric;
use tamis_core::group::{PolicyVersion, PromptId};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::{
    Members, OnLimit, RoundLimit, RoundReport, RoundSize, ScheduleSettings, Scheduler, StreamingSettings,
    Surplus,
};
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::{NamedReward, RewardFunction, RewardInput, RewardOutcome, Rewards};
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::{Fleet, FleetSettings};
use tamis_rollout::http::{Address, HttpClient, HttpSettings};
use tamis_rollout::server::{OtherLogprobs, ServerSettings, VllmServer};
use tamis_rollout::{
    Dependencies, Dispatcher, DispatcherSettings, DrawnPrompt, DrawnPrompts, End, InFlight, Next, Observer,
    OnStop, PreparedPrompt, PromptSource, Publication, Sampling, Scorer, Weights,
};
use tamis_text::tokenizer::Tokenizer;

const GROUPS: usize = 128;
const MEMBERS: usize = 8;
const SLOTS: usize = GROUPS * MEMBERS / 4;
const RHO: f64 = 0.5;
const MEDIAN: f64 = 50.0;
const LONGEST: usize = 1000;

/// First token of a right completion, of a wrong one, and the later tokens.
const RIGHT: u32 = 2;
const WRONG: u32 = 3;
const REST: u32 = 4;

/// A number of Beta(a, a) by Jöhnk's method.
fn beta(key: Key, a: f64) -> f64 {
    let mut counter = 0;
    loop {
        let [x, y] = [0, 1].map(|i| key.uniform(counter + i).powf(1.0 / a));
        if x + y > 0.0 && x + y <= 1.0 {
            return x / (x + y);
        }
        counter += 2;
    }
}

/// The number of a prompt as its tokens, and back.
fn tokens_of(prompt: u64) -> Arc<[u32]> {
    (0..4).map(|place| 2 + (prompt / 14_u64.pow(place) % 14) as u32).collect()
}

fn prompt_of(tokens: &[u32]) -> u64 {
    tokens.iter().rev().fold(0, |prompt, &token| prompt * 14 + u64::from(token - 2))
}

fn answer(asked: &Asked) -> Answer {
    let pass = beta(Key::new(1, Purpose::Rollout).with(prompt_of(&asked.prompt)), 0.3);
    let sample = Key::new(asked.seed, Purpose::Rollout);
    let length = (MEDIAN * sample.normal(0).exp()).round().clamp(1.0, asked.most as f64) as usize;
    let mut token_ids = vec![REST; length];
    token_ids[0] = if sample.with(1).uniform(0) < pass { RIGHT } else { WRONG };
    Answer { token_ids, delay: Duration::ZERO }
}

fn serve(iteration: Duration) {
    let decoder = Decoder::new(Pace { slots: SLOTS, iteration, load: RHO });
    let behaviour = Behaviour {
        answers: Some(Arc::new(answer)),
        decoder: Some(decoder),
        max_model_len: LONGEST + 8,
        ..Behaviour::default()
    };
    let vllm = FakeVllm::start(behaviour);
    println!("{}", vllm.server.url());
    // Ends with the process that started it.
    std::io::stdin().lines().for_each(drop);
}

/// An endless supply of numbered prompts; returned ones come first.
#[derive(Default)]
struct Numbers {
    next: u64,
    given_back: VecDeque<DrawnPrompt>,
}

impl PromptSource for Numbers {
    fn draw(&mut self, n: usize, _version: PolicyVersion) -> DrawnPrompts {
        let mut prompts: Vec<DrawnPrompt> = Vec::with_capacity(n);
        while prompts.len() < n {
            prompts.push(self.given_back.pop_front().unwrap_or_else(|| {
                let row = self.next;
                self.next += 1;
                let prompt = Prompt {
                    id: PromptId(row),
                    content: PromptContent::Text(row.to_string()),
                    ground_truth: None,
                    data_source: String::new(),
                    columns: Map::new(),
                    images: Vec::new(),
                    place: None,
                };
                let prompt = PreparedPrompt {
                    prompt: Arc::new(prompt),
                    token_ids: tokens_of(row),
                    text: "".into(),
                    continued: "".into(),
                    images: Arc::default(),
                };
                DrawnPrompt { epoch: 0, prompt, inclusion: 1.0 }
            }));
        }
        DrawnPrompts { prompts, exhausted: false }
    }

    fn give_back(&mut self, prompts: Vec<DrawnPrompt>) {
        for prompt in prompts.into_iter().rev() {
            self.given_back.push_front(prompt);
        }
    }

    fn next_epoch(&mut self) {}
}

/// 1 if the first token is the right one.
struct FirstToken;

impl RewardFunction for FirstToken {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let is_right = |input: &RewardInput<'_>| input.completion_ids.first() == Some(&RIGHT);
        batch.iter().map(|input| RewardOutcome::score(f64::from(u8::from(is_right(input))))).collect()
    }
}

struct Nobody;

impl Observer for Nobody {
    fn round_begins(&mut self, _: u64, _: u64, _: usize) {}
    fn groups_finished(&mut self, _: usize) {}
    fn round_complete(&mut self, _: &RoundReport) {}
    fn epoch_begins(&mut self, _: u64) {}
    fn warn(&mut self, message: &str) {
        println!("{message}");
    }
}

fn connect(url: &str) -> Fleet {
    let bell = Bell::default();
    let mut client = HttpClient::start(HttpSettings::default(), false).unwrap();
    let settings = ServerSettings {
        name: url.to_owned(),
        model: None,
        vocabulary: VOCABULARY as usize,
        end_token_ids: vec![1],
        image_token_id: None,
        extra: Map::new(),
        answer_timeout: Duration::from_secs(600),
        check_timeout: Duration::from_secs(60),
        publish_timeout: Duration::from_secs(60),
        pause_grace: Duration::ZERO,
        sleep_level: 0,
        nonce: "bench".to_owned(),
        seeds: true,
        other_logprobs: OtherLogprobs::Refuse,
        seen_as: None,
    };
    let line = client.line(Address::parse(url).unwrap(), None, bell.clone()).unwrap();
    let tokenizer = Tokenizer::characters("abcdefghijklmn").unwrap();
    let server = VllmServer::new(Box::new(line), Arc::new(settings), tokenizer);
    let say = Box::new(|message| println!("{message}"));
    let settings = FleetSettings::default();
    Fleet::connect(vec![Box::new(server)], settings, Box::new(SystemClock), bell, Arc::default(), say)
        .unwrap()
}

/// Measurements of a schedule after the warm-up.
struct Found {
    step_time: f64,
    groups_a_step: f64,
    max_lag: u64,
}

fn run(machine: Scheduler, steps: u64, iteration: &str, weights: &std::path::Path) -> Found {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["server", iteration])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let mut fleet = connect(url.trim());
    let sampling = Sampling {
        temperature: 1.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        max_response_length: LONGEST,
        stop: Vec::new(),
        regex: None,
    };
    let settings = DispatcherSettings {
        seed: 1,
        group_size: MEMBERS,
        sampling,
        is_metric_unproven: false,
        recomputes_logprobs: false,
        hands_out_parts: false,
    };
    let mut dispatcher = Dispatcher::new(settings, machine);
    let function = NamedReward::verifier("first", Box::new(FirstToken));
    let mut scorer = Scorer::new(Rewards::new(vec![function]).unwrap());
    let (mut source, warm_up) = (Numbers::default(), steps / 4);
    let (mut begun, mut found) = (Instant::now(), Found { step_time: 0.0, groups_a_step: 0.0, max_lag: 0 });
    for step in 0..=steps {
        macro_rules! with {
            () => {
                Dependencies {
                    source: &mut source,
                    generator: &mut fleet,
                    scorer: &mut scorer,
                    reference: None,
                    observer: &mut Nobody,
                    order: None,
                    is_interrupted: &|| false,
                }
            };
        }
        if step > 0 {
            let collected = loop {
                match dispatcher.next(with!()).unwrap() {
                    Next::Step(collected) => break collected,
                    Next::Part(_) => {}
                    Next::Interrupted => unreachable!("nobody asks to stop"),
                }
            };
            assert!(matches!(collected.end, End::Ready), "{:?}", collected.end);
            collected.report.accounting.check().unwrap();
            assert_eq!(collected.trained.len(), GROUPS);
            if step > warm_up {
                found.groups_a_step += collected.report.accounting.generated.groups as f64;
                found.max_lag = found.max_lag.max(collected.report.max_lag);
            }
            dispatcher.note_trained(Members::default()).unwrap();
        }
        if step == warm_up {
            begun = Instant::now();
        }
        let weights = Weights::Folder(weights.to_owned());
        let publication = Publication { version: PolicyVersion(step), weights };
        dispatcher.publish(&publication, InFlight::Keep, OnStop::GiveUp, with!()).unwrap();
    }
    let counted = (steps - warm_up) as f64;
    found.step_time = begun.elapsed().as_secs_f64() / counted;
    found.groups_a_step /= counted;
    assert!(fleet.fault_counts().samples.is_empty(), "{:?}", fleet.fault_counts());
    drop(server.stdin.take());
    let _ = server.wait();
    found
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "server") {
        return serve(Duration::from_secs_f64(arguments[1].parse::<f64>().unwrap() / 1000.0));
    }
    let steps: u64 = arguments.first().map_or(24, |text| text.parse().expect("a number of steps"));
    let iteration = arguments.get(1).map_or("2", String::as_str);
    let weights = tempfile::tempdir().unwrap();
    std::fs::write(weights.path().join("config.json"), "{}").unwrap();
    std::fs::write(weights.path().join("model.safetensors"), "").unwrap();
    let settings = ScheduleSettings {
        max_num_gen_batches: RoundLimit::None,
        on_limit: OnLimit::UsePartial,
        metric: Metric::SeqReward,
        ..ScheduleSettings::new(GROUPS, MEMBERS)
    };
    let carry = Surplus::Carry { max_lag: 1 };
    let rounds = |size: RoundSize, surplus| {
        Scheduler::rounds(ScheduleSettings { size, surplus, ..settings.clone() }).unwrap()
    };
    let stream = |surplus| {
        Scheduler::streaming(StreamingSettings {
            run: ScheduleSettings { surplus, ..settings.clone() },
            mini_batch_size: GROUPS / 4,
            max_in_flight: 8 * GROUPS,
        })
        .unwrap()
    };
    let deficit = RoundSize::Deficit { granularity: 1, margin: 1.0 };
    let cases = [
        ("rounds of 128", rounds(RoundSize::default(), Surplus::Discard)),
        ("deficit, carry", rounds(deficit, carry)),
        ("streaming, carry, lag 1", stream(carry)),
    ];
    println!(
        "{steps} steps, of which the first quarter does not count; an iteration takes {iteration} ms and more"
    );
    println!("{:<28} {:>9} {:>9} {:>12} {:>8}", "schedule", "step", "ratio", "groups/step", "max lag");
    let mut base = None;
    for (name, machine) in cases {
        let found = run(machine, steps, iteration, weights.path());
        let base = *base.get_or_insert(found.step_time);
        println!(
            "{name:<28} {:>7.2} s {:>9.2} {:>12.0} {:>8}",
            found.step_time,
            found.step_time / base,
            found.groups_a_step,
            found.max_lag
        );
    }
}
