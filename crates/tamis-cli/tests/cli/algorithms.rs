//! Every estimator, loss, shaping, mask and correction trains from the command line, or is refused with what
//! to choose instead.

use serde_json::Value as Json;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::advantage::{Advantage, Column};
use tamis_core::catalogue::{Family, entries};
use tamis_core::objective::PolicyLoss;
use tamis_core::setting::{Described as _, KeySpec};

use crate::tamis::{Ended, Folder, Replaced as _, TINY, unfiltered};

fn trained(objective: &str) -> (Folder, Ended) {
    let folder = Folder::new();
    let config = TINY
        .replaced("total_steps: 6", "total_steps: 3")
        .replaced("sft: {steps: 40", "sft: {steps: 60")
        .replaced("max_num_gen_batches: 50", "max_num_gen_batches: 400");
    folder.write("config.yaml", &format!("{config}objective: {objective}\n"));
    let ended = folder.tamis(&["train", "config.yaml"]);
    (folder, ended)
}

/// The rows of steps that updated the policy.
fn updates(folder: &Folder) -> Vec<serde_json::Value> {
    folder.rows("tiny").into_iter().filter(|row| row.get("loss").is_some()).collect()
}

/// A folder `narrow` with a checkpoint's configuration for a vocabulary of five tokens.
fn write_narrow(folder: &Folder, config: &str) {
    let of_five = |line| if str::contains(line, "\"vocab_size\"") { "  \"vocab_size\": 5," } else { line };
    folder.write("narrow/config.json", &config.lines().map(of_five).collect::<Vec<_>>().join("\n"));
    folder.write("narrow/model.safetensors", "");
}

#[track_caller]
fn trains(objective: &str) -> Vec<serde_json::Value> {
    let (folder, ended) = trained(objective);
    assert_eq!(ended.code, Some(0), "{objective}: {}", ended.shown());
    let rows = updates(&folder);
    assert_eq!(rows.len(), 3, "{objective}");
    for row in &rows {
        let norm = row["actor/grad_norm"].as_f64().unwrap_or(f64::NAN);
        assert!(row["loss"].as_f64().is_some_and(f64::is_finite), "{objective}: {row}");
        assert!(norm.is_finite() && norm > 0.0, "{objective}: {row}");
        assert_eq!(row["actor/num_skipped_updates"], 0.0, "{objective}");
    }
    rows
}

#[test]
fn every_estimator_trains() {
    // Distillation has tests of its own, with a teacher.
    let is_taught = |estimator: &Advantage| estimator.needs().contains(&Column::TeacherLogprobs);
    for estimator in Advantage::all().into_iter().filter(|estimator| !is_taught(estimator)) {
        let name = estimator.name();
        let keys = if name == "cpo" { ", gold_hint: '{gold}={prompt}'" } else { "" };
        let needs = estimator.needs();
        let rows = trains(&format!("{{advantage: {{kind: {name}{keys}}}}}"));
        for row in &rows {
            // Squared probabilities; the gold answer in the prompt, and entropies.
            let has_passes = name.ends_with("optimal_token_baseline") || name == "cpo";
            let time = row["timing_s/advantage_passes"].as_f64().unwrap_or(0.0);
            assert_eq!(time > 0.0, has_passes, "{name}: {row}");
            // Rewards of greedy completions are not trained on and have metrics of their own.
            let num_greedy = row.get("greedy/num_completions").and_then(serde_json::Value::as_f64);
            assert_eq!(num_greedy, needs.contains(&Column::GreedyRewards).then_some(4.0), "{name}");
            assert_eq!(row.get("greedy/reward/mean").is_some(), num_greedy.is_some(), "{name}");
        }
    }
    trains("{advantage: {kind: grpo, scale: batch}}");
    trains("{advantage: {kind: cpo, wrap: tok_kl, pos_alpha: 0.1, gold_hint: '{gold}={prompt}'}}");
    // With the divergence in the reward the token estimators credit each token with its own.
    trains(
        "{advantage: {kind: reinforce_plus_plus, gamma: 0.9}, kl: {in: reward, estimator: k1, coefficient: 0.1}}",
    );
}

#[test]
fn estimators_with_a_critic_train() {
    for objective in [
        "{advantage: {kind: gae, lambda: 0.9}}",
        "{advantage: {kind: bi_level_gae}}",
        "{advantage: {kind: gae}, kl: {in: reward, estimator: k1, coefficient: 0.1}}",
        "{advantage: {kind: gae}, kl: {in: loss}, aggregation: group-token-mean}",
    ] {
        for (step, row) in trains(objective).iter().enumerate() {
            for name in ["critic/vf_loss", "critic/grad_norm", "critic/values/mean", "critic/vpred_mean"] {
                assert!(row[name].as_f64().is_some_and(f64::is_finite), "{objective} {name}: {row}");
            }
            assert_eq!(row["critic/num_updates"], 2.0, "{objective}");
            assert_eq!(row["critic/num_skipped_updates"], 0.0, "{objective}");
            // The head is zero at first.
            assert_eq!(row["critic/values/max"] == 0.0, step == 0, "{objective}: {row}");
            assert!(row["timing_s/values"].is_number() && row["timing_s/update_critic"].is_number());
        }
    }
}

/// A task with two kinds of prompts, one of them beyond the model: a critic can learn this.
const TWO_KINDS: &str = "\
run: {name: tiny, seed: 3, threads: 1}
preset: ppo
model:
  init: {architecture: qwen3, hidden_size: 32, intermediate_size: 64, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 3}, {digits: 2, operators: ['*'], terms: 2}], train_size: 512, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 32
sft: {steps: 900, batch_size: 32, learning_rate: 5e-3}
rollout: {n: 4, max_response_length: 6, save: off}
reward: [{kind: number}]
train:
  ppo_mini_batch_size: 8
  total_steps: 32
  optimizer: {learning_rate: 1e-3}
critic:
  optimizer: {learning_rate: 3e-3}
validate: {test_freq: 0}
";

#[test]
fn ppo_learns_and_so_does_its_critic() {
    let folder = Folder::new().with("config.yaml", TWO_KINDS);
    folder.tamis(&["train", "config.yaml"]).succeeds().says("critic: ");
    let rows = updates(&folder);
    assert_eq!(rows.len(), 32);
    let quarter = |name: &str, from: usize| {
        let values: Vec<f64> =
            rows[from..from + 8].iter().map(|row| row[name].as_f64().unwrap_or(0.0)).collect();
        values.iter().sum::<f64>() / 8.0
    };
    for (name, least) in [("all/critic/score/mean", 0.02), ("critic/vf_explained_var", 0.08)] {
        let (first, last) = (quarter(name, 0), quarter(name, 24));
        assert!(last > first + least, "{name}: {first} in the first quarter, {last} in the last");
    }
}

#[test]
fn in_its_warm_up_the_critic_learns_alone() {
    let folder = Folder::new();
    let config = unfiltered(TINY)
        .replaced("total_steps: 6", "total_steps: 3")
        .replaced("save_freq: 2", "save_freq: 1, keep_last: null");
    folder.write("config.yaml", &format!("preset: ppo\n{config}critic: {{warmup_steps: 2}}\n"));
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let rows = folder.rows("tiny");
    let steps: Vec<_> = rows.iter().filter(|row| row.get("critic/vf_loss").is_some()).collect();
    assert_eq!(steps.len(), 3);
    let trains = |row: &&serde_json::Value| (row.get("loss").is_some(), row.get("actor/lr").is_some());
    assert_eq!(steps.iter().map(trains).collect::<Vec<_>>(), [(false, false), (false, false), (true, true)]);
    let saved = |step: u64, file: &str| {
        std::fs::read(folder.join(&format!("runs/tiny/checkpoints/step_{step}/{file}"))).expect("saved")
    };
    let policy = |step| (saved(step, "model.safetensors"), saved(step, "optimizer.safetensors"));
    let critic = |step| saved(step, "critic/model.safetensors");
    assert!(policy(0) == policy(1) && policy(1) == policy(2) && policy(2) != policy(3));
    assert!(critic(0) != critic(1) && critic(1) != critic(2) && critic(2) != critic(3));
    for (step, versions) in [(0, (0, 0)), (1, (0, 1)), (2, (0, 2)), (3, (1, 3))] {
        let state: serde_json::Value = serde_json::from_slice(&saved(step, "state.json")).expect("JSON");
        assert_eq!(
            (&state["version"], &state["critic"]["version"]),
            (&versions.0.into(), &versions.1.into())
        );
    }
    // Its checkpoint is a folder that the next run can begin with; a policy's gives its layers.
    let of = |path: &str| format!("critic.model.path=runs/tiny/checkpoints/step_3/{path}");
    for path in ["critic", ""] {
        let next = folder.tamis(&["train", "config.yaml", "run.name=next", &of(path)]).succeeds();
        next.says("starts from runs/tiny/checkpoints/step_3");
    }
    folder.tamis(&["eval", "runs/tiny"]).succeeds().never_prints("critic");
}

#[test]
fn a_run_within_the_warm_up_of_its_critic_is_refused_or_told() {
    let folder = Folder::new();
    let config = TINY.replaced("total_steps: 6", "total_epochs: 1");
    folder.write("config.yaml", &format!("preset: ppo\n{config}critic: {{warmup_steps: 15}}\n"));
    let refused = folder.tamis(&["train", "config.yaml", "critic.warmup_steps=16"]);
    insta::assert_snapshot!(refused.failure(), @"
exit code 2
error: `critic.warmup_steps` (16) is not below the number of steps, at most 16 with `train.total_epochs` (1) of 64 prompts: the policy would never be trained
  hint: use fewer than 16 steps, or train for longer (`train.total_epochs`)
");
    assert!(!folder.join("runs/tiny").exists());
    // Eight prompts a round, and the filter drops some: fewer steps than there are batches of four.
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    let steps = folder.rows("tiny").iter().filter(|row| row.get("critic/vf_loss").is_some()).count();
    assert!((1..15).contains(&steps), "{}", ended.shown());
    let printed = format!(
        "warning: the policy was never trained: all {steps} steps of the run are the critic's warm-up (critic.warmup_steps is 15); set \
         fewer, or train for longer\n"
    );
    ended.says(&printed);
    assert!(folder.rows("tiny").iter().all(|row| row.get("actor/lr").is_none()));
    // A warm-up that is one step longer is not reported.
    folder
        .tamis(&["train", "config.yaml", "run.name=next", "critic.warmup_steps=1"])
        .succeeds()
        .never_says("never trained");
}

#[test]
fn critics_that_do_not_fit_are_refused_at_start() {
    let folder = Folder::new();
    let config = unfiltered(TINY).replaced("total_steps: 6", "total_steps: 1");
    folder.write("config.yaml", &format!("preset: ppo\n{config}"));
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let printed = |arguments: &[&str]| folder.tamis(&[&["train"], arguments].concat()).failure();
    write_narrow(&folder, &folder.read("runs/tiny/checkpoints/step_1/critic/config.json"));
    insta::assert_snapshot!(printed(&["config.yaml", "critic.model.path=narrow"]), @"
exit code 2
error: critic.model.path: the critic has 5 tokens, but the policy has 18
  hint: take a critic with the policy's tokenizer
");
    let long = ["config.yaml", "model.init.max_position_embeddings=64", "data.max_prompt_length=40"];
    let path = "critic.model.path=runs/tiny/checkpoints/step_1/critic";
    insta::assert_snapshot!(printed(&[&long[..], &[path]].concat()), @"
exit code 2
error: `rollout.max_response_length`: `data.max_prompt_length` (40) and `rollout.max_response_length` (4) make 44 tokens, and the model in runs/tiny/checkpoints/step_1/critic reads 32
  --> config.yaml:11:38
   |
11 | rollout: {n: 4, max_response_length: 4}
   |                                      ^
  hint: lower one of them so that they sum to at most 32

1 error in the configuration
");
    let refused = folder.tamis(&["train", "config.yaml", "model.memory_limit=100KiB"]);
    refused
        .fails_with("\nerror: the run needs about ")
        .fails_with(" MiB of memory, 100.0 KiB is available:\n");
    // A checkpoint without its critic.
    std::fs::remove_file(folder.join("runs/tiny/checkpoints/step_1/critic/model.safetensors"))
        .expect("removed");
    insta::assert_snapshot!(printed(&["--resume", "runs/tiny", "train.total_steps=2"]), @r#"
    exit code 4
    error: `critic/model.safetensors` of the checkpoint runs/tiny/checkpoints/step_1 is missing
      hint: restore a copy of the file, or move runs/tiny/checkpoints/step_1 elsewhere to resume from the checkpoint before it, runs/tiny/checkpoints/step_0
    "#);
}

/// The section `objective` with a loss: each key that it requires is 0.5, and the aggregation is the one that
/// it needs.
fn with_loss(name: &str) -> String {
    let keys = PolicyLoss::shape().keys_of_kind(name).into_iter();
    let required = keys.filter(KeySpec::is_required).map(|spec| (spec.name.to_owned(), Json::from(0.5)));
    let loss: Json = required.chain([("kind".to_owned(), Json::from(name))]).collect();
    let policy: PolicyLoss = serde_json::from_value(loss.clone()).expect("a loss");
    let aggregation =
        policy.needed_aggregation().map(|needed| ("aggregation".to_owned(), Json::from(needed.as_str())));
    [("loss".to_owned(), loss)].into_iter().chain(aggregation).collect::<Json>().to_string()
}

#[test]
fn every_loss_trains() {
    // A loss in Python needs a file: see `own_functions.rs`.
    for name in PolicyLoss::NAMES.iter().filter(|name| **name != "python") {
        trains(&match *name {
            // The default takes none of so few tokens.
            "clip_cov" => "{loss: {kind: clip_cov, share: 0.1, cov_low: 0.0}}".to_owned(),
            "kl_cov" => "{loss: {kind: kl_cov, share: 0.1}}".to_owned(),
            name => with_loss(name),
        });
    }
    for loss in [
        "{kind: clip, delta: 4.0}",
        "{kind: gspo, form: token}",
        "{kind: decoupled, weight_cap: 2.0}",
        "{kind: cispo, bound: absolute}",
    ] {
        trains(&format!("{{loss: {loss}}}"));
    }
    for importance in ["sequence", "sequence_token"] {
        trains(&format!("{{importance: {importance}}}"));
    }
}

#[test]
fn every_aggregation_divergence_and_entropy_term_trains() {
    let of_family = |family| entries().filter(move |entry| entry.family == family).map(|entry| entry.name);
    for aggregation in of_family(Family::Aggregation) {
        trains(&format!("{{aggregation: {aggregation}, zero_groups: mask}}"));
    }
    trains("{kl: {in: loss, estimator: k1, straight_through: true, bias_corrected: true}}");
    let rows = trains(
        "{entropy: {coefficient: 0.01, aggregation: token-sum, adaptive: {target: 3.0, delta: 0.01}}}",
    );
    // Two updates a step. Each raises the coefficient while the entropy is below the target.
    assert_eq!(rows[0]["entropy_coef"].as_f64().map(|coef| (coef * 1e3).round()), Some(15.0));
    assert_eq!(rows[1]["entropy_coef"].as_f64().map(|coef| (coef * 1e3).round()), Some(35.0));
}

#[test]
fn shapings_masks_and_corrections_train() {
    let shapings: Vec<String> = Shaping::NAMES
        .iter()
        .filter(|name| **name != "add_distillation")
        .map(|name| match *name {
            "keep_neg_ratio" | "keep_pos_ratio" => format!("{{kind: {name}, ratio: 0.5}}"),
            "clip_advantage" => format!("{{kind: {name}, low: -2.0, high: 2.0}}"),
            "filter_loss_scaling" => format!("{{kind: {name}, by: sqrt}}"),
            name => format!("{{kind: {name}}}"),
        })
        .collect();
    trains(&format!("{{shaping: [{}]}}", shapings.join(", ")));
    trains("{masks: {truncated: true, top_entropy: 0.5, off_policy: 0.1}}");
    for preset in [
        "disabled",
        "decoupled_token_is",
        "decoupled_seq_is",
        "decoupled_token_icepop",
        "decoupled_seq_is_rs",
        "decoupled_geo_rs",
        "decoupled_k3_rs_token_tis",
        "bypass_ppo_clip",
        "trl",
    ] {
        let rows = trains(&format!("{{correction: {{preset: {preset}}}}}"));
        // The engine samples from the policy that it trains, so there is nothing to correct, to the last bit.
        assert_eq!(rows[0]["rollout_corr/kl"], 0.0, "{preset}");
    }
    trains("{loss: {kind: reinforce}, correction: {preset: bypass_pg_is}}");
    trains(
        "{correction: {weights: {level: sequence, max: 3.0, batch_normalize: true}, rejections: [{statistic: \
             token_k1, threshold: '0.5_2.0'}]}}",
    );
}

#[test]
fn gold_answers_that_the_tokenizer_does_not_know_are_refused_at_start() {
    insta::assert_snapshot!(trained("{advantage: {kind: cpo}}").1.failure(), @r#"
exit code 2
error: objective.advantage.gold_hint: the prompts cannot be given with their gold answers
  caused by: prompt 0 of the training data cannot be prepared
  caused by: character '\n' (at character 4 of "9+2=\n\nThe right answer is 11.\n") is not in the tokenizer's alphabet
  hint: set objective.advantage.gold_hint to a text that the tokenizer knows, with {prompt} and {gold} in it
"#);
}

/// A schedule of the learning rate knows its end if epochs define it: every step of a run without a filter is
/// one round.
#[test]
fn a_schedule_over_epochs_ends_with_them() {
    let folder = Folder::new();
    let config =
        unfiltered(TINY).replaced("total_steps: 6", "total_epochs: 1\n  lr_schedule: {kind: linear}");
    folder.write("config.yaml", &config);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let rates: Vec<f64> = folder.rows("tiny").iter().filter_map(|row| row["actor/lr"].as_f64()).collect();
    // 64 prompts in rounds of 4.
    assert_eq!(rates.len(), 16);
    assert!((rates[0] - 1e-3).abs() < 1e-12 && rates.windows(2).all(|pair| pair[1] < pair[0]), "{rates:?}");
    assert!((rates[15] - 1e-3 / 16.0).abs() < 1e-12, "{rates:?}");
}

#[test]
fn balanced_micro_batches_train_on_the_same() {
    let rows = |train: &str| {
        let folder = Folder::new();
        let train = format!("  micro_batch_tokens: 60\n  ppo_mini_batch_size: 4\n{train}");
        let config =
            TINY.replaced("  ppo_mini_batch_size: 2\n", &train).replaced("total_steps: 6", "total_steps: 2");
        folder.write("config.yaml", &config);
        folder.tamis(&["train", "config.yaml"]).succeeds();
        folder.rows("tiny").into_iter().filter(|row| row.get("loss").is_some()).collect::<Vec<_>>()
    };
    let (plain, balanced) = (rows(""), rows("  balance_micro_batches: true\n"));
    assert_eq!(plain.len(), 2);
    for name in ["loss", "tokens/trained", "actor/entropy", "train/num_loss_tokens"] {
        assert_eq!(plain[0][name], balanced[0][name], "{name}");
    }
    let norm = |rows: &[serde_json::Value]| rows[0]["actor/grad_norm"].as_f64().expect("a norm");
    assert!((norm(&plain) - norm(&balanced)).abs() <= 1e-5 * norm(&plain), "{plain:?} {balanced:?}");
}

#[test]
fn references_that_do_not_fit_are_refused_before_the_sft() {
    let folder = Folder::new();
    let config = format!(
        "{}objective: {{kl: {{in: loss, coefficient: 0.1}}}}\n",
        TINY.replaced("total_steps: 6", "total_steps: 1")
    );
    folder.write("config.yaml", &config);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let checkpoint = "runs/tiny/checkpoints/step_1";
    let printed = |reference: &str| {
        let reference = format!("model.reference={reference}");
        let ended = folder.tamis(&["train", "config.yaml", "run.name=other", &reference]);
        ended.never_says("sft:");
        ended.failure()
    };
    write_narrow(&folder, &folder.read(&format!("{checkpoint}/config.json")));
    insta::assert_snapshot!(printed("narrow"), @"
exit code 2
error: model.reference: the reference has 5 tokens, but the policy has 18
  hint: take a reference with the policy's tokenizer
");
    // A valid reference is compared with from the first step on.
    let fits = ["train", "config.yaml", "run.name=fits", &format!("model.reference={checkpoint}")];
    folder.tamis(&fits).succeeds().says("sft:");
}
