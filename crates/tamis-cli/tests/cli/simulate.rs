//! `tamis simulate` as a person types it.

use crate::tamis::{Folder, failures, words};

const WORLD: &str = "\
data: {train_batch_size: 16}
rollout: {n: 8, max_response_length: 400}
filter: {kind: variance}
simulate:
  pass_rate: {kind: beta, a: 0.3, b: 0.3, prompts: 600}
  groups: 320
  policies: [verl, streaming_carry]
  servers: {slots: 32}
";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("world.yaml", WORLD);
    folder
}

#[test]
fn a_table_and_a_page() {
    let folder = folder();
    let said = folder.tamis(&["simulate", "world.yaml"]).succeeds();
    let lines: Vec<&str> = said.stdout.lines().collect();
    let starts: Vec<&str> = lines.iter().take(4).filter_map(|line| line.split("  ").next()).collect();
    assert_eq!(starts, ["policy", "verl", "streaming_carry", "lower bound"], "{}", said.stdout);
    assert_eq!(words(lines[0]), ["policy", "generated", "step", "s", "slots", "%", "lag"]);
    let all = folder.tamis(&["simulate", "world.yaml", "-v"]).succeeds().stdout;
    let row = all.lines().nth(1).unwrap_or_default();
    assert!(row.contains("all_wrong") && row.contains("surplus"), "{all}");
    assert_eq!(said.stderr, "");
    // The simulated world, and the keys of it that the user did not set.
    insta::assert_snapshot!(lines[4..].join("\n"), @"

    The world of these numbers:
      Pass rates           Beta(0.3, 0.3), 600 prompts
      Filter               variance: groups with max > min
      Batch                16 groups of 8, rounds of 16
      Steps                20, the last 10 measured, seed 1
      Lengths              lognormal, cut at 400 tokens, median a twentieth of that, σ 1, 0 of the variance the prompt's, wrong ones × 1; prompts of 0 tokens
      Servers              1 of 32 slots, 0.02 s an iteration, 0.5 of it more when all slots run
      Scores               0 s after a completion
      Training             0 s a step and 0 s a token
      New weights          0 s, samples in flight continue
      Drift of the logits  0 a step, noise 0
    Left at their defaults, which are not measured on your system: `simulate.length`, `simulate.servers.{count, iteration, load, context, kv_tokens, prefill_rate}`, `simulate.reward_latency`, `simulate.train_time`, `simulate.publication`, `simulate.drift`.
    page: simulation.html
    ");
    let page = folder.read("simulation.html");
    assert!(page.starts_with("<!doctype html>") && page.contains("Schedules for world"));
    let defaults = "Left at their defaults, which are not measured on your system: `simulate.length`";
    assert!(page.contains(defaults));
    // The page is replaced; nothing else is overwritten.
    let slime = words("simulate world.yaml simulate.policies=[slime] --html simulation.html");
    folder.tamis(&slime).succeeds();
    assert!(folder.read("simulation.html").contains("<code>slime</code>"));
    let other = folder.tamis(&["simulate", "world.yaml", "--html", "world.yaml"]).exits(2);
    other.fails_with("world.yaml exists, but is not a page\n  hint: `--html FILE` names the page to write\n");
}

#[test]
fn one_object_for_programs() {
    let folder = folder();
    let said =
        folder.tamis(&["simulate", "world.yaml", "run.seed=7", "simulate.servers=null", "--json"]).succeeds();
    let json = said.json();
    assert_eq!((json["seed"].as_u64(), json["groups"].as_u64()), (Some(7), Some(320)));
    let names: Vec<&str> =
        json["policies"].as_array().unwrap().iter().filter_map(|of| of["name"].as_str()).collect();
    assert_eq!(names, ["verl", "streaming_carry"]);
    let verl = &json["policies"][0];
    assert!(verl["generated_per_kept"].as_f64() > Some(2.0) && verl["step_time"].is_null(), "{verl}");
    let bound = &json["bound"];
    assert!(bound["generated_per_kept"].as_f64() > Some(1.0) && bound["step_time"].is_null(), "{bound}");
    assert!(!folder.join("simulation.html").exists());
}

#[test]
fn what_cannot_be_simulated() {
    let folder = folder();
    let ended = folder.tamis(&["simulate", "world.yaml", "simulate.policies=[slyme]"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("slime"), "{ended:?}");
    // Names of papers and of recipes.
    for (name, meant) in [("greso", "zero_variance_skip"), ("dapo", "verl")] {
        let ended = folder.tamis(&["simulate", "world.yaml", &format!("simulate.policies=[{name}]")]);
        assert!(ended.stderr.contains(&format!("did you mean `{meant}`?")), "{ended:?}");
    }
    insta::assert_snapshot!(failures([
        folder.tamis(&["simulate", "world.yaml", "simulate.pass_rate={kind: rollouts, path: nothing}"]),
        folder.tamis(&["simulate", "world.yaml", "simulate.pass_rate={kind: histogram, rates: [0, 1], counts: [3]}"]),
        folder.tamis(&["simulate", "world.yaml", "filter={kind: top_p, p: 0.9}"]),
        folder.tamis(&["simulate", "world.yaml", "simulate.servers.kv_tokens=10"]),
    ]), @r"
    exit code 2
    error: there is no file or folder nothing
      hint: `simulate.pass_rate.path` names a run directory, or a file of rollouts (Parquet or JSONL)
    error: `simulate.pass_rate` has 2 rates and 1 counts, 3 prompts in all: each rate needs a count, and some must be above 0
      hint: write for example `pass_rate: {kind: histogram, rates: [0, 0.5, 1], counts: [20, 60, 20]}`
    error: the policy `streaming_carry` cannot be simulated
      caused by: the filter top_p compares the groups of a round, but a streaming schedule has none
      hint: name policies that have rounds with `simulate.policies`, such as `verl`, `nemo_rl`, `rounds_carry` and `deficit`; an empty list takes all that have
    error: `simulate.servers.kv_tokens` 10 cannot hold one completion: a prompt of 0 tokens and up to 400 tokens after it
      hint: set `simulate.servers.kv_tokens: 400` or more, or lower `rollout.max_response_length`
    ");
    let rounds = ["filter={kind: top_p, p: 0.9}", "simulate.policies=[configured]", "--json"];
    folder.tamis(&[&["simulate", "world.yaml"][..], &rounds].concat()).succeeds();
    // Before anything is simulated.
    folder.tamis(&["simulate", "world.yaml", "~filter", "--json"]).succeeds().says("there is no filter");
}

#[test]
fn policies_that_end_early() {
    let folder = folder();
    let rates = "simulate.pass_rate={kind: histogram, rates: [1], counts: [1]}";
    let never = ["simulate", "world.yaml", "simulate.length.sigma=0", rates];
    let ended = folder.tamis(&never).exits(1);
    ended.says("warning: the policy `verl` ended after 0 of 20 steps");
    ended.prints("ended after 0 of 20 steps").prints("none: the filter keeps no group");
    ended.prints("page: simulation.html").never_prints("-0");
    let json = folder.tamis(&[&never[..], &["--json"]].concat());
    let found = json.json();
    assert!(json.code == Some(1) && found["policies"][0]["ended"].is_string(), "{json:?}");
    // One step is too few.
    let one = folder.tamis(&["simulate", "world.yaml", "simulate.groups=16", "--json"]).succeeds();
    one.says("warning: one step of 16 groups");
}

#[test]
fn times_without_servers_are_warned_of() {
    let folder = folder();
    let times =
        ["simulate.reward_latency=3", "simulate.train_time.step=40", "simulate.publication={time: 5}"];
    let simulate = |more: &[&str]| {
        folder.tamis(&[&["simulate", "world.yaml", "--json"][..], &times, more].concat()).succeeds()
    };
    assert_eq!(simulate(&[]).stderr, "");
    let said = simulate(&["simulate.servers=null"]);
    for key in ["reward_latency", "train_time.step", "publication.time"] {
        let warning = format!("warning: `simulate.{key}` has no effect: `simulate.servers` is null");
        said.says(&warning);
    }
}

#[test]
fn a_command_of_another_system() {
    let folder = folder();
    let command = "HYDRA_FULL_ERROR=1 python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
                   data.train_batch_size=32 actor_rollout_ref.rollout.n=4";
    let words: Vec<&str> = command.split_whitespace().collect();
    let world = ["simulate", "--json", "world.yaml", "simulate.groups=64", "--"];
    let said = folder.tamis(&[&world[..], &words].concat()).succeeds();
    let json = said.json();
    assert_eq!(json["groups"], 64);
    said.says("warning: 2 steps of 32 groups");
    folder.tamis(&[&["config", "show", "--"][..], &words].concat()).succeeds().prints("n: 4");
    let launched = "accelerate launch --num_processes 8 grpo.py --num_generations 8";
    let words: Vec<&str> = launched.split_whitespace().collect();
    let said = folder.tamis(&[&["simulate", "--"][..], &words].concat());
    assert_eq!(said.code, Some(2));
    said.says("note: `tamis config import -- COMMAND > my.yaml`");
}
