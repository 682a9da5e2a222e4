//! Runs whose prompts are levels of a game, played turn by turn.

use serde_json::Value;

use crate::kills::num_kills;
use crate::resume::Undisturbed;
use crate::tamis::{Folder, Replaced as _, words};

/// A walk over a small lake. A step has one update, so the policy that learns is the one that played.
const LAKE: &str = "\
run: {name: tiny, seed: 5, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 256}
data: {task: environment, train_batch_size: 8, gen_batch_size: 8, max_prompt_length: 16}
environment:
  kind: frozen_lake
  size: 3
  is_slippery: true
  style: plain
  prompting: {max_turns: 5}
  train_size: 64
  val_size: 8
sft: {steps: 60, batch_size: 32, learning_rate: 1e-2}
rollout: {n: 4, max_response_length: 6}
filter: {kind: variance}
schedule: {max_num_gen_batches: 50}
train: {total_steps: 6, optimizer: {learning_rate: 1e-3}}
validate: {test_freq: 3, before_train: true, save_samples: true}
checkpoint: {save_freq: 2}
";

#[test]
fn episodes_are_trained_on_as_they_were_played() {
    let folder = Folder::new().with("config.yaml", LAKE);
    folder.tamis(&["train", "config.yaml"]).succeeds().says("frozen_lake: 64 training and 8 held-out levels");
    let steps = folder.rows("tiny");
    let mut num_updates = 0;
    for row in steps.iter().filter(|row| row["actor/ppo_kl"].is_number()) {
        // The log-probabilities of every turn equal those that training computes for the whole trajectory, to
        // the bit.
        assert_eq!(row["actor/ppo_kl"], 0.0, "{row}");
        num_updates += 1;
    }
    assert_eq!(num_updates, 6);
    let (mut num_turns, mut num_rows) = (0, 0);
    for row in (1..=6).flat_map(|step| folder.rollouts("tiny", step)) {
        let list = |name: &str| row[name].as_array().unwrap().clone();
        let (mask, logprobs, ends) = (list("loss_mask"), list("logprobs"), list("turn_ends"));
        assert_eq!((mask.len(), logprobs.len()), (list("token_ids").len(), list("token_ids").len()));
        // The text of the lake has no loss, and each answer ends at its recorded place.
        assert!(mask.iter().zip(&logprobs).all(|(is_written, one)| *is_written == true || *one == 0.0));
        for end in &ends {
            let end = end.as_u64().unwrap() as usize;
            assert!(mask[end - 1] == true && mask.get(end).is_none_or(|next| *next == false), "{row}");
        }
        let rewards: f64 = list("turn_rewards").iter().map(|reward| reward.as_f64().unwrap()).sum();
        assert!((rewards - row["reward"].as_f64().unwrap()).abs() < 1e-6, "{row}");
        assert_eq!(row["success"], row["acc"], "{row}");
        num_turns += ends.len();
        num_rows += 1;
    }
    assert!(num_turns > num_rows && num_rows > 0, "{num_turns} turns in {num_rows} episodes");
    // Every turn is accounted for.
    let told = steps.iter().filter_map(|row| row["turns/generated"].as_f64()).sum::<f64>();
    assert_eq!(told as usize, num_turns);
    // Boards are shown turn by turn, unchanged.
    let shown = folder.tamis(&["eval", "runs/tiny", "validate.num_samples_shown=8"]).succeeds().stdout;
    assert!(shown.contains("    turn 1   "), "{shown}");
    let board = |line: &str| line.trim().len() == 3 && line.trim().chars().all(|cell| "P_OG".contains(cell));
    let boards = shown.lines().filter(|line| line.starts_with("             ") && board(line));
    assert!(boards.count() >= 3, "{shown}");
}

#[test]
fn answers_to_a_window_are_trained_on_as_they_were_given() {
    let grpo = "filter: {kind: variance}";
    let ppo = "filter: null\nobjective: {advantage: {kind: bi_level_gae}}\ncritic: {optimizer: {learning_rate: 1e-3}}";
    for (context, algorithm) in
        [("limited_multi_turn", grpo), ("single_turn", grpo), ("limited_multi_turn", ppo), ("full", ppo)]
    {
        let window = format!("  style: plain\n  context: {context}\n  max_context_window: 2\n");
        let config = LAKE
            .replaced("  style: plain\n", &window)
            .replaced(grpo, algorithm)
            .replaced("total_steps: 6", "total_steps: 3")
            .replaced("max_prompt_length: 16", "max_prompt_length: 40")
            .replaced("max_position_embeddings: 256", "max_position_embeddings: 512");
        let folder = Folder::new().with("config.yaml", &config);
        folder.tamis(&["train", "config.yaml"]).succeeds();
        let rows = folder.rows("tiny");
        assert_eq!(rows.iter().filter_map(|row| row["actor/ppo_kl"].as_f64()).collect::<Vec<_>>(), [0.0; 3]);
        let anew = |row: Value| row["text_starts"].as_array().unwrap().len();
        let num_anew: usize = (1..=3).flat_map(|step| folder.rollouts("tiny", step)).map(anew).sum();
        assert_eq!(num_anew > 0, context != "full", "{context}: {num_anew}");
    }
}

#[test]
fn a_run_killed_in_the_middle_of_episodes_ends_as_if_it_had_not_been() {
    killed(num_kills(1));
}

#[test]
#[ignore = "long: .ci/all"]
fn a_run_killed_in_the_middle_of_many_episodes_ends_as_if_it_had_not_been() {
    killed(num_kills(3));
}

fn killed(num_kills: usize) {
    let rounds = "schedule: {max_num_gen_batches: 50}";
    let streaming = "schedule: {mode: streaming, surplus: carry, max_lag: 2, max_num_gen_batches: 50}";
    for schedule in [rounds, streaming] {
        let config = LAKE.replaced(rounds, schedule);
        let new = || Folder::new().with("config.yaml", &config);
        Undisturbed::of(new()).assert_same_through_kills(num_kills, new);
    }
}

#[test]
fn every_kind_of_environment_is_played() {
    for (kind, keys) in [
        ("bandit", "names: legend"),
        ("countdown", ""),
        ("rubik_2x2", "scramble_moves: 1"),
        ("sokoban", "rows: 5\n  columns: 5"),
        ("sudoku", "size: 4x4"),
        ("twenty_forty_eight", "size: 2\n  target: 16"),
    ] {
        let config = LAKE
            .replaced("kind: frozen_lake", &format!("kind: {kind}"))
            .replaced("size: 3\n  is_slippery: true", if keys.is_empty() { "expert_prob: 0.5" } else { keys })
            .replaced("{max_turns: 5}", "{max_turns: 2}")
            .replaced("max_position_embeddings: 256", "max_position_embeddings: 2048")
            .replaced("max_prompt_length: 16", "max_prompt_length: 400")
            .replaced("steps: 60, batch_size: 32", "steps: 1, batch_size: 2")
            .replaced("filter: {kind: variance}\n", "")
            .replaced("total_steps: 6", "total_steps: 1");
        let folder = Folder::new().with("config.yaml", &config);
        folder.tamis(&["train", "config.yaml"]).succeeds().says(&format!("{kind}: 64 training"));
        let has_turns = |row: &Value| !row["turn_ends"].as_array().unwrap().is_empty();
        assert!(folder.rollouts("tiny", 1).iter().all(has_turns), "{kind}");
    }
}

#[test]
fn what_an_environment_lacks_is_told_before_anything_runs() {
    let folder = Folder::new().with("config.yaml", LAKE);
    for (change, said) in [
        ("~environment", "`data.task` is environment, but `environment` is not set"),
        ("data.task=arithmetic", "`environment` describes a game, but `data.task` is not `environment`"),
        ("environment.map=[SHG]", "cannot create the environment `frozen_lake`: setting `"),
        ("environment.kind=frozenlake", "frozen_lake"),
    ] {
        folder.tamis(&["config", "check", "config.yaml", change]).exits(2).says(said);
    }
}

#[test]
fn several_environments_are_played_in_one_run() {
    let config = LAKE
        .replaced(
            "sft: {steps: 60, batch_size: 32, learning_rate: 1e-2}\n",
            "more_environments:
- {kind: bandit, name: arms, style: plain, prompting: {max_turns: 1}, train_size: 32, val_size: 4}
- {kind: sokoban, rows: 5, columns: 5, style: plain, prompting: {max_turns: 2}, train_size: 0, val_size: 4}
sft: {steps: 20, batch_size: 32, learning_rate: 1e-2}
",
        )
        .replaced("filter: {kind: variance}\n", "")
        .replaced("max_prompt_length: 16", "max_prompt_length: 340")
        .replaced("max_position_embeddings: 256", "max_position_embeddings: 4096")
        .replaced("total_steps: 6", "total_steps: 3");
    let folder = Folder::new().with("config.yaml", &config);
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    ended.says("frozen_lake: 64 training").says("arms: 32 training and 4 held-out");
    ended.says("sokoban: 0 training and 4 held-out");
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    for name in words(
        "train/frozen_lake/success train/arms/num_turns val-core/sokoban/acc/mean@1 \
         val-core/arms/acc/mean@1 val-env/sokoban/success val-env/arms/num_turns",
    ) {
        assert!(metrics.contains(&format!("\"{name}\":")), "{name}: {metrics}");
    }
    assert!(!metrics.contains("\"train/sokoban/"), "it is validated in alone");
    // A further environment has the same style.
    let config = config.replaced("name: arms, style: plain,", "name: arms,");
    let ended = Folder::new().with("config.yaml", &config).tamis(&["config", "check", "config.yaml"]);
    assert!(ended.shown().contains("environments of a run need the same style"), "{}", ended.shown());
}
