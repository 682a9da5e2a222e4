//! Makes up a run directory of any size, and times the page of it.
//!
//! ```text
//! cargo run --release -p tamis-lab --example made_run -- FOLDER --steps 100 --groups 125 --members 8
//! cargo run --release -p tamis-lab --example made_run -- --page report.html FOLDER...
//! ```
//! 100 steps of 125 groups of 8 are 100,000 trajectories, of about 300 tokens each. Some completions are
//! hostile: they would set `window.hostile` in a browser that ran them.
#![allow(clippy::print_stdout, reason = "a program says what it measured")]

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tamis_core::group::{
    Episode, FinishReason, Group, GroupId, PolicyVersion, PromptId, Score, Trajectory, Turn,
};
use tamis_data::rollouts::{RolloutRow, write_rollouts_to};
use tamis_lab::report::{PageOptions, StepRange, page};

const HOSTILE: &str = "</pre></script><script>window.hostile=1</script><img src=x onerror=\"window.hostile=1\"><svg onload='window.hostile=1'>";
const WORDS: [&str; 16] = [
    "so", "we", "add", "the", "first", "number", "to", "second", "and", "check", "that", "result", "is",
    "right", "then", "answer",
];

/// What is made.
struct Plan {
    steps: u64,
    groups: u64,
    members: u64,
    seed: u64,
    has_turns: bool,
}

/// The finaliser of splitmix64: the same numbers everywhere.
fn random(seed: u64, number: u64) -> u64 {
    let mut bits = (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn share(seed: u64, number: u64) -> f64 {
    (random(seed, number) >> 11) as f64 / (1_u64 << 53) as f64
}

fn trajectory(plan: &Plan, group: u64, index: u64, pass_rate: f64) -> Trajectory {
    let key = random(plan.seed, group * 1000 + index);
    let passes = share(key, 1) < pass_rate;
    let num_tokens = 100 + (random(key, 2) % 400) as usize;
    let words = |number: u64| WORDS[(random(key, 10 + number) % 16) as usize];
    let mut text: Vec<&str> = (0..num_tokens as u64 * 3 / 4).map(words).collect();
    if random(key, 3).is_multiple_of(16) {
        text.insert(0, HOSTILE);
    }
    let mut text = text.join(" ");
    let _ = write!(text, ". The answer is {}.", if passes { 42 } else { random(key, 4) % 42 });
    let turns = (0..2 + random(key, 5) % 3).map(|place| Turn {
        start: 0,
        end: 10,
        text: format!(
            "I go {}. {}",
            ["up", "down", "left"][(random(key, 20 + place) % 3) as usize],
            if place == 1 { HOSTILE } else { "" }
        ),
        observation: "S.F\nFHF\n..G".to_owned(),
        role: if place % 2 == 1 { "tool".to_owned() } else { String::new() },
        reward: -0.1,
        ..Turn::default()
    });
    Trajectory {
        episode: plan.has_turns.then(|| Episode {
            turns: turns.collect(),
            is_success: Some(passes),
            ..Episode::default()
        }),
        sample_index: index as u32,
        text,
        token_ids: (0..num_tokens as u64).map(|token| (random(key, 100 + token) % 50_000) as u32).collect(),
        logprobs: (0..num_tokens as u64).map(|token| -(share(key, 100 + token) as f32)).collect(),
        entropy: None,
        loss_mask: vec![true; num_tokens],
        finish_reason: if random(key, 6).is_multiple_of(20) {
            FinishReason::Length
        } else {
            FinishReason::Stop
        },
        versions: (PolicyVersion(1), PolicyVersion(1)),
        scores: [("acc".to_owned(), Score::of(f64::from(u8::from(passes))))].into(),
        reward: f64::from(u8::from(passes)),
    }
}

fn write(plan: &Plan, folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder.join("rollouts"))?;
    let mut metrics = String::new();
    for step in 1..=plan.steps {
        let progress = step as f64 / plan.steps as f64;
        let groups: Vec<Group> = (0..plan.groups)
            .map(|number| {
                let id = step * plan.groups + number;
                let skill = share(plan.seed, 7 * id);
                let pass_rate = (skill * 1.4 - 0.5 + 0.6 * progress).clamp(0.0, 1.0);
                Group {
                    id: GroupId(id),
                    prompt: PromptId(id % 5000),
                    epoch: id / 5000,
                    dispatched: PolicyVersion(step),
                    prompt_token_ids: vec![7; 20],
                    images: Vec::new(),
                    trajectories: (0..plan.members)
                        .map(|index| trajectory(plan, id, index, pass_rate))
                        .collect(),
                }
            })
            .collect();
        let reward = |group: &Group| {
            group.trajectories.iter().map(|one| one.reward).sum::<f64>() / plan.members as f64
        };
        let verdict = |group: &Group| match reward(group) {
            mean if mean <= 0.0 => "all_wrong",
            mean if mean >= 1.0 => "all_correct",
            _ if group.id.0 % 10 == 9 => "surplus",
            _ => "trained",
        };
        let rows: Vec<RolloutRow<'_>> = groups
            .iter()
            .flat_map(|group| group.trajectories.iter().map(move |trajectory| (group, trajectory)))
            .map(|(group, trajectory)| RolloutRow {
                step,
                round: 0,
                group,
                trajectory,
                inclusion: 1.0,
                data_source: "made up",
                prompt: "What is six times seven? Think step by step.",
                ground_truth: Some("42"),
                advantage: (verdict(group) == "trained").then(|| trajectory.reward - reward(group)),
                metric: "acc",
                metric_value: Some(trajectory.reward),
                verdict: verdict(group),
                logged: None,
            })
            .collect();
        write_rollouts_to(File::create(folder.join(format!("rollouts/step_{step}.parquet")))?, &rows)?;
        let count = |name: &str| groups.iter().filter(|group| verdict(group) == name).count() as u64;
        let mean = groups.iter().map(reward).sum::<f64>() / plan.groups as f64;
        let kept: Vec<f64> = groups.iter().filter(|group| verdict(group) == "trained").map(reward).collect();
        let noise = |number: u64| share(plan.seed, step * 100 + number);
        let of_all = |number: u64| number * plan.members;
        let mut line = format!(
            "{{\"step\":{step},\"critic/score/mean\":{},\"all/critic/score/mean\":{mean},\"all/pass_rate\":{mean},\"train/pass_rate\":{}",
            kept.iter().sum::<f64>() / kept.len().max(1) as f64,
            kept.iter().sum::<f64>() / kept.len().max(1) as f64,
        );
        let dropped = count("all_wrong") + count("all_correct");
        for (name, value) in [
            ("train/filter_rate", dropped as f64 / plan.groups as f64),
            ("train/num_gen_batches", 1.0 + (noise(1) * 3.0).floor()),
            ("actor/entropy", 1.2 - 0.9 * progress + 0.1 * noise(2)),
            ("actor/ppo_kl", 0.01 * noise(3)),
            ("actor/pg_clipfrac", 0.02 * noise(4)),
            ("actor/grad_norm", 0.5 + noise(5)),
            ("actor/lr", 1e-6 * progress),
            ("schedule/max_lag", (noise(6) * 3.0).floor()),
            ("all/response_length/mean", 300.0 + 20.0 * noise(7)),
            ("all/response_length/min", 100.0),
            ("all/response_length/max", 499.0),
            ("response_length/mean", 290.0 + 20.0 * noise(8)),
            ("timing_s/gen", 10.0 + 4.0 * noise(9)),
            ("timing_s/reward", 1.0),
            ("timing_s/update_actor", 6.0 + noise(10)),
            ("timing_s/step", 18.0 + 5.0 * noise(9)),
            ("groups/generated", plan.groups as f64),
            ("groups/trained", count("trained") as f64),
            ("groups/dropped", dropped as f64),
            ("groups/surplus", count("surplus") as f64),
            ("train/num_dropped/all_wrong", count("all_wrong") as f64),
            ("train/num_dropped/all_correct", count("all_correct") as f64),
            ("trajectories/generated", of_all(plan.groups) as f64),
            ("trajectories/trained", of_all(count("trained")) as f64),
            ("trajectories/dropped", of_all(dropped) as f64),
            ("trajectories/surplus", of_all(count("surplus")) as f64),
            (
                "tokens/generated",
                groups
                    .iter()
                    .flat_map(|group| &group.trajectories)
                    .map(|one| one.token_ids.len())
                    .sum::<usize>() as f64,
            ),
        ] {
            let _ = write!(line, ",\"{name}\":{value}");
        }
        if step % 10 == 0 || step == plan.steps {
            let _ = write!(line, ",\"val-core/made up/acc/mean@4\":{}", 0.2 + 0.6 * progress);
        }
        if step == plan.steps / 2 {
            line = line.replace(
                &format!("\"actor/grad_norm\":{}", 0.5 + noise(5)),
                "\"actor/grad_norm\":\"Infinity\"",
            );
        }
        metrics += &line;
        metrics += "}\n";
    }
    std::fs::write(folder.join("metrics.jsonl"), metrics)?;
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let settings = format!(
        "run:\n  name: {name}  # command line: run.name={name}\n  seed: {}  # command line: run.seed={}\nrollout:\n  n: {}  # default\n  save: all  # default\ndata:\n  train_batch_size: {}  # my.yaml:7\ntrain:\n  total_steps: {}  # my.yaml:3\n",
        plan.seed, plan.seed, plan.members, plan.groups, plan.steps
    );
    std::fs::write(folder.join("config.yaml"), settings)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--page") {
        let [_, out, runs @ ..] = words.as_slice() else { return Err("--page FILE FOLDER...".into()) };
        let begin = Instant::now();
        let runs = runs.iter().map(PathBuf::from).collect();
        let made = page(&PageOptions { runs, steps: StepRange::ALL, num_samples: None, title: None })?;
        let seconds = begin.elapsed().as_secs_f64();
        std::fs::write(out, &made.html)?;
        println!(
            "{} trajectories of {} steps: {seconds:.2} s, {:.2} MB",
            made.num_trajectories,
            made.num_steps,
            made.html.len() as f64 / 1e6
        );
        return Ok(());
    }
    let mut plan = Plan { steps: 100, groups: 125, members: 8, seed: 1, has_turns: false };
    let mut folder = None;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut number =
            || words.next().ok_or("a number is missing")?.parse::<u64>().map_err(Box::<dyn Error>::from);
        match word.as_str() {
            "--steps" => plan.steps = number()?,
            "--groups" => plan.groups = number()?,
            "--members" => plan.members = number()?,
            "--seed" => plan.seed = number()?,
            "--turns" => plan.has_turns = true,
            _ => folder = Some(PathBuf::from(word)),
        }
    }
    write(&plan, &folder.ok_or("name a folder")?)
}
