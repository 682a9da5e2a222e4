//! Every estimator, loss, shaping, mask and correction trains from the command line, or is refused with what to choose instead.

mod tamis;

use std::fmt::Write as _;

use tamis::{Folder, TINY};

/// Trains the tiny task with `objective` for three steps.
fn trained(objective: &str) -> (Folder, tamis::Ended) {
    let folder = Folder::new();
    let config = TINY
        .replace("total_steps: 6", "total_steps: 3")
        .replace("warm_start: {steps: 40", "warm_start: {steps: 60")
        .replace("max_num_gen_batches: 50", "max_num_gen_batches: 400");
    folder.write("config.yaml", &format!("{config}objective: {objective}\n"));
    let ended = folder.tamis(&["train", "config.yaml"]);
    (folder, ended)
}

/// The rows of the metrics file.
fn metrics(folder: &Folder) -> Vec<serde_json::Value> {
    let text =
        std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).expect("there is a metrics file");
    text.lines().map(|line| serde_json::from_str(line).expect("is JSON")).collect()
}

#[track_caller]
fn trains(objective: &str) -> Vec<serde_json::Value> {
    let (folder, ended) = trained(objective);
    assert_eq!(ended.code, Some(0), "{objective}: {}", ended.shown());
    let rows: Vec<_> = metrics(&folder).into_iter().filter(|row| row.get("loss").is_some()).collect();
    assert_eq!(rows.len(), 3, "{objective}");
    for row in &rows {
        assert!(row["loss"].as_f64().is_some_and(f64::is_finite), "{objective}: {row}");
        assert!(
            row["actor/grad_norm"].as_f64().is_some_and(|norm| norm.is_finite() && norm > 0.0),
            "{objective}: {row}"
        );
        assert_eq!(row["actor/num_skipped_updates"], 0.0, "{objective}");
    }
    rows
}

#[test]
fn every_estimator_trains() {
    for name in [
        "grpo, scale: batch",
        "dr_grpo",
        "grpo_passk",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "opo",
        "gpg",
        "gdpo",
        "normalize_then_sum",
        "bnpo",
        "bnpo_running",
    ] {
        trains(&format!("{{advantage: {{estimator: {name}}}}}"));
    }
    // The rewards of greedy completions are not trained on, and told apart.
    for row in trains("{advantage: {estimator: remax}}") {
        assert_eq!(row["greedy/num_completions"], 4.0);
        assert!(row["greedy/reward/mean"].is_number());
    }
    // Passes of their own: squared probabilities; the gold answer in the prompt, and entropies.
    for estimator in [
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
        "cpo, gold_hint: '{gold}={prompt}'",
        "cpo, wrap: tok_kl, pos_alpha: 0.1, gold_hint: '{gold}={prompt}'",
    ] {
        for row in trains(&format!("{{advantage: {{estimator: {estimator}}}}}")) {
            assert!(row["timing_s/advantage_passes"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        }
    }
    // With the divergence in the reward the token estimators credit each token with its own.
    trains(
        "{advantage: {estimator: reinforce_plus_plus, gamma: 0.9}, kl: {in: reward, estimator: k1, coefficient: 0.1}}",
    );
}

#[test]
fn every_loss_trains() {
    for loss in [
        "{kind: clip, delta: 4.0}",
        "{kind: gspo}",
        "{kind: gspo, form: token}",
        "{kind: decoupled, weight_cap: 2.0}",
        "{kind: reinforce}",
        "{kind: gpg}",
        "{kind: clip_cov, share: 0.1, cov_low: 0.0}",
        "{kind: kl_cov, share: 0.1}",
        "{kind: geo_mean}",
        "{kind: cispo}",
        "{kind: cispo, bound: absolute}",
        "{kind: sapo}",
        "{kind: dppo_tv}",
        "{kind: dppo_kl}",
        "{kind: dro, beta: 0.5}",
        "{kind: vespo}",
    ] {
        trains(&format!("{{loss: {loss}}}"));
    }
    trains("{loss: {kind: luspo}, aggregation: seq-mean-token-sum}");
    for importance in ["sequence", "sequence_token"] {
        trains(&format!("{{importance: {importance}}}"));
    }
}

#[test]
fn every_aggregation_divergence_and_entropy_term_trains() {
    for aggregation in [
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "group-token-mean",
        "group-seq-mean",
        "token-sum",
    ] {
        trains(&format!("{{aggregation: {aggregation}, zero_groups: mask}}"));
    }
    trains("{kl: {in: loss, estimator: k1, straight_through: true, bias_corrected: true}}");
    let rows = trains(
        "{entropy: {coefficient: 0.01, aggregation: token-sum, adaptive: {target: 3.0, delta: 0.01}}}",
    );
    // Two updates a step, each of which raises it while the entropy is below the target.
    assert_eq!(rows[0]["entropy_coef"].as_f64().map(|coef| (coef * 1e3).round()), Some(15.0));
    assert_eq!(rows[1]["entropy_coef"].as_f64().map(|coef| (coef * 1e3).round()), Some(35.0));
}

#[test]
fn shapings_masks_and_corrections_train() {
    trains(
        "{shaping: [{kind: soft_reweight}, {kind: length_weight}, {kind: keep_neg_ratio, ratio: 0.5}, {kind: keep_pos_ratio, ratio: 0.5}, \
         {kind: clip_advantage, low: -2.0, high: 2.0}, {kind: filter_loss_scaling, by: sqrt}]}",
    );
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
        // The engine samples from the policy that it trains: there is nothing to correct, to the last bit.
        assert_eq!(rows[0]["rollout_corr/kl"], 0.0, "{preset}");
    }
    trains("{loss: {kind: reinforce}, correction: {preset: bypass_pg_is}}");
    trains(
        "{correction: {weights: {level: sequence, max: 3.0, batch_normalize: true}, rejections: [{statistic: token_k1, threshold: '0.5_2.0'}]}}",
    );
}

#[test]
fn what_cannot_be_had_is_refused_at_start() {
    let mut told = String::new();
    for objective in [
        "{advantage: {estimator: gae}}",
        "{advantage: {estimator: bi_level_gae}}",
        "{advantage: {estimator: cpo}}",
        "{advantage: {estimator: cpo, gold_hint: 'the answer is {gold}'}}",
        "{advantage: {estimator: bnpo}, kl: {in: reward, coefficient: 0.1}}",
        "{loss: {kind: cispo, clip_low: 1.5}}",
        "{correction: {preset: bypass_pg_is}}",
        "{correction: {rejections: [{statistic: seq_max_k1, threshold: '0.5'}]}}",
    ] {
        let (_, ended) = trained(objective);
        let _ = writeln!(told, "{objective}\n{}", ended.failure());
    }
    insta::assert_snapshot!(told, @r#"
{advantage: {estimator: gae}}
exit code 2
error: objective.advantage.estimator: `gae` needs the column `values` (values of a critic at each token), which `tamis train` does not provide
  hint: there is no critic yet: choose an estimator without one, such as rloo, reinforce_plus_plus or grpo

{advantage: {estimator: bi_level_gae}}
exit code 2
error: objective.advantage.estimator: `bi_level_gae` needs the column `values` (values of a critic at each token), which `tamis train` does not provide
  hint: there is no critic yet: choose an estimator without one, such as rloo, reinforce_plus_plus or grpo

{advantage: {estimator: cpo}}
exit code 2
error: objective.advantage.gold_hint: the prompts cannot be given with their gold answers
  caused by: prompt 1 of the training data cannot be prepared
  caused by: character '\n' (at character 4 of "9+2=\n\nThe right answer is 11.\n") is not in the tokenizer's alphabet
  hint: set objective.advantage.gold_hint to a text that the tokenizer knows, with {prompt} and {gold} in it

{advantage: {estimator: cpo, gold_hint: 'the answer is {gold}'}}
exit code 2
error: `objective.advantage.gold_hint` has no `{prompt}` in it
  --> config.yaml:21:52
   |
21 | objective: {advantage: {estimator: cpo, gold_hint: 'the answer is {gold}'}}
   |                                                    ^^^^^^^^^^^^^^^^^^^^^^
  hint: write `{prompt}` where it belongs

warning: the filter drops groups without a right completion, from which `objective.advantage.estimator: cpo` learns by the contrast with the gold answer
  --> config.yaml:13:1
   |
13 | filter: {kind: variance}
   | ^^^^^^
  hint: set `filter: null`

1 error in the configuration

{advantage: {estimator: bnpo}, kl: {in: reward, coefficient: 0.1}}
exit code 2
error: objective.kl.in: reward has no place in `bnpo`, which reads the rewards before they are summed
  hint: set objective.kl.in=loss

{loss: {kind: cispo, clip_low: 1.5}}
exit code 2
error: objective setting `cispo.low` is 1.5; expected a number from 0 to 1

{correction: {preset: bypass_pg_is}}
exit code 2
error: objective.correction.preset: `bypass_pg_is` weights the plain policy gradient, and objective.loss.kind is `clip`
  hint: set objective.loss.kind=reinforce

{correction: {rejections: [{statistic: seq_max_k1, threshold: '0.5'}]}}
exit code 2
error: unknown rejection statistic `seq_max_k1`; known are token_k1, token_k2, token_k3, seq_sum_k1, seq_sum_k2, seq_sum_k3, seq_mean_k1, seq_mean_k2, seq_mean_k3, seq_max_k2, seq_max_k3
"#);
}
