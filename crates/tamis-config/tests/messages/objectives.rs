//! Advantages, losses and the KL.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn the_bound_on_log_ratios() {
    let loss = |setting: &str| show_errors(&format!("objective: {{loss: {setting}}}"), &[]);
    for sound in ["{log_ratio_limit: 5.0}", "{kind: gspo, log_ratio_limit: 10}", "{log_ratio_limit: null}"] {
        assert_eq!(loss(sound), "");
    }
    // Two kinds have this key; a list of all with `log_ratio_limit` would grow with every loss.
    assert_snapshot!(loss("{kind: geo_mean, share: 5}"), @"
error: unknown key `objective.loss.share`: the kind here is `geo_mean`
  at run.yaml:1: objective: {loss: {kind: geo_mean, «share»: 5}}
  hint: `clip_cov` and `kl_cov` have it; the keys here are clip_low, clip_high, length_epsilon, weight_epsilon
");
}

#[test]
fn objectives() {
    assert_snapshot!([
        show_errors("objective: {kl: {estimator: k1, coefficient: 0.1}}\nmodel: {reference: r}", &[]),
        show_errors("objective: {kl: {in: loss, coefficient: 0}}", &[]),
        show_errors("objective: {kl: {in: loss, adaptive: {target: 0.1}}}", &[]),
        show_errors("objective: {loss_scale_factor: 100, advantage: {scale: none, ddof: 0}}", &[]),
    ].join("\n"), @r"
    warning: `objective.kl.estimator` has no effect: `objective.kl.in` is `none`
      at run.yaml:1: objective: {kl: {estimator: «k1», coefficient: 0.1}} [remove it]
    warning: `objective.kl.coefficient` has no effect: `objective.kl.in` is `none`
      at run.yaml:1: objective: {kl: {estimator: k1, coefficient: «0.1»}} [remove it]
    warning: `model.reference` has no effect: `objective.kl.in` is `none`
      at run.yaml:2: model: {reference: «r»} [remove it]
    warning: `objective.kl.in: loss` with `objective.kl.coefficient: 0`: the reference is loaded and run only for its metric
      at run.yaml:1: objective: {kl: {in: loss, coefficient: «0»}}
      hint: set `objective.kl.in: none`
    error: `objective.kl.adaptive` adapts the coefficient of a KL in the reward, but `objective.kl.in` is `loss`
      at run.yaml:1: objective: {kl: {in: loss, «adaptive»: {target: 0.1}}}
      hint: set `objective.kl.in: reward`
    warning: `objective.advantage.ddof` has no effect: advantages are not divided by a deviation
      at run.yaml:1: objective: {loss_scale_factor: 100, advantage: {scale: none, ddof: «0»}} [remove it]
    warning: `objective.loss_scale_factor` has no effect: only the aggregation `seq-mean-token-sum-norm` has a divisor
      at run.yaml:1: objective: {loss_scale_factor: «100», advantage: {scale: none, ddof: 0}} [remove it]
    ");
}

#[test]
fn contrasts_with_the_gold_answer() {
    let yaml =
        "objective: {advantage: {kind: cpo, gold_hint: 'the answer is {gold}'}}\nfilter: {kind: variance}";
    assert_snapshot!(show_errors(yaml, &[]), @"
error: `objective.advantage.gold_hint` does not contain `{prompt}`
  at run.yaml:1: objective: {advantage: {kind: cpo, gold_hint: «'the answer is {gold}'»}}
  hint: add `{prompt}` to it
warning: the filter drops groups without a right completion, but `objective.advantage.kind: cpo` learns from them by contrast with the gold answer
  at run.yaml:2: «filter»: {kind: variance}
  hint: set `filter: null`
");
}

#[test]
fn settings_that_the_choice_does_not_read() {
    let yaml = "objective: {advantage: {kind: rloo, tail: kept, ddof: 0}, loss: {kind: gspo, dual_clip: 5.0, beta: 0.1}}";
    assert_snapshot!(show_errors(yaml, &[]), @"
error: unknown key `objective.advantage.tail`: the kind here is `rloo`
  at run.yaml:1: objective: {advantage: {kind: rloo, «tail»: kept, ddof: 0}, loss: {kind: gspo, dual_clip: 5.0, beta: 0.1}}
  hint: `optimal_token_baseline` and `tir_optimal_token_baseline` have it; the keys here are singleton
error: unknown key `objective.advantage.ddof`: the kind here is `rloo`
  at run.yaml:1: objective: {advantage: {kind: rloo, tail: kept, «ddof»: 0}, loss: {kind: gspo, dual_clip: 5.0, beta: 0.1}}
  hint: `grpo`, `grpo_passk`, `bnpo` and `cpo` have it; the keys here are singleton
error: unknown key `objective.loss.dual_clip`: the kind here is `gspo`
  at run.yaml:1: objective: {advantage: {kind: rloo, tail: kept, ddof: 0}, loss: {kind: gspo, «dual_clip»: 5.0, beta: 0.1}}
  hint: `clip` and `decoupled` have it; the keys here are clip_low, clip_high, form, log_ratio_limit
error: unknown key `objective.loss.beta`: the kind here is `gspo`
  at run.yaml:1: objective: {advantage: {kind: rloo, tail: kept, ddof: 0}, loss: {kind: gspo, dual_clip: 5.0, «beta»: 0.1}}
  hint: `dro` has it; the keys here are clip_low, clip_high, form, log_ratio_limit
");
}

#[test]
fn losses_that_need_something() {
    assert_snapshot!([
        show_errors("objective: {loss: {kind: dro}}", &[]),
        show_errors("objective: {loss: {kind: luspo}}", &[]),
        show_errors("objective: {loss: {kind: gspo}, importance: sequence}", &[]),
    ].join("\n"), @r"
    error: `objective.loss.beta` is missing: a number, 0 or more
      at run.yaml:1: objective: {loss: {kind: «dro»}} [explain it]
    error: `objective.loss.kind: luspo` with `objective.aggregation: token-mean`: the loss is defined only with `seq-mean-token-sum`
      at run.yaml:1: objective: {loss: {kind: «luspo»}}
      hint: set `objective.aggregation: seq-mean-token-sum`
    error: `objective.importance: sequence` has no effect with `objective.loss.kind: gspo`: this loss fixes the level itself
      at run.yaml:1: objective: {loss: {kind: gspo}, importance: «sequence»}
      hint: set `objective.importance: token`
    ");
}

/// The messages about an objective, line by line without the excerpts.
fn lines(objective: &str, overrides: &[&str]) -> String {
    let errors = show_errors(&format!("objective: {objective}"), overrides);
    let is_line = |line: &&str| line.starts_with("error:") || line.starts_with("warning:");
    errors.lines().filter(is_line).collect::<Vec<_>>().join("\n")
}

#[test]
fn settings_that_another_choice_takes_the_effect_of() {
    let corrected = "{loss: {kind: vespo}, importance: sequence, kl: {in: loss, bias_corrected: true}}";
    assert_eq!(lines(corrected, &[]), "");
    assert_eq!(lines("{zero_groups: mask}", &["filter.kind=variance"]), "");
    assert_eq!(lines("{entropy: {aggregation: token-sum, coefficient: 0.1}}", &[]), "");
    assert_snapshot!([
        lines("{loss: {kind: vespo}, importance: sequence}", &[]),
        lines("{zero_groups: mask}", &[]),
        lines("{entropy: {aggregation: token-sum}}", &[]),
        lines("{}", &["train.gradient_analysis={buckets: 3, edges: [0.0, 0.5]}"]),
    ].join("\n"), @r"
    warning: `objective.importance` has no effect: `vespo` weights whole trajectories; the level affects only a bias-corrected KL in the loss
    warning: `objective.zero_groups` has no effect: there is no filter that drops groups
    warning: `objective.entropy.aggregation` has no effect: there is no entropy bonus
    warning: `train.gradient_analysis.buckets` has no effect: `train.gradient_analysis.edges` is set
    ");
}

#[test]
fn a_stop_that_nothing_can_bring_about() {
    let show_errors = |overrides: &[&str]| {
        let stop = ["train.early_stop.empty_steps={patience: 2}"];
        lines("{}", &stop.iter().chain(overrides).copied().collect::<Vec<_>>())
    };
    let unused = "warning: `train.early_stop.empty_steps` has no effect: no step is ever skipped or cut short for lack of groups";
    assert_eq!(show_errors(&[]), unused);
    assert_eq!(show_errors(&["filter.kind=variance"]), unused);
    assert_eq!(show_errors(&["filter.kind=variance", "schedule.on_empty_round=skip"]), "");
    let limit = ["filter.kind=variance", "schedule.max_num_gen_batches=3"];
    assert_eq!(show_errors(&limit), unused);
    assert_eq!(show_errors(&[limit[0], limit[1], "schedule.on_limit=use_partial"]), "");
}

#[test]
fn a_horizon_that_turns_the_coefficient() {
    let horizon = |trajectories: &str, horizon: &str| {
        let adaptive = format!("{{kl: {{in: reward, adaptive: {{horizon: {horizon}}}}}}}");
        lines(&adaptive, &[&format!("data.train_batch_size={trajectories}"), "rollout.n=4"])
    };
    assert_snapshot!(horizon("10", "8"), @"warning: `objective.kl.adaptive.horizon` is 8 with 40 trajectories a step: one step can change the coefficient by a fifth of their ratio, which takes it to 0 or below");
    assert_eq!(horizon("10", "8.5"), "");
}

#[test]
fn right_completions_of_cpo() {
    let cpo =
        |rest: &str, overrides: &[&str]| lines(&format!("{{advantage: {{kind: cpo{rest}}}}}"), overrides);
    assert_eq!(cpo("", &[]), "");
    assert_eq!(cpo(", right: 0.5", &["reward=[{kind: number, weight: 0.5}]"]), "");
    assert_snapshot!([
        cpo("", &["objective.kl.in=reward"]),
        cpo("", &["reward=[{kind: number, weight: 0.5}]"]),
        cpo("", &["reward=[{kind: number}, {kind: soft_overlong, buffer: 2}]"]),
    ].join("\n"), @r"
    warning: `objective.advantage.kind: cpo` counts a completion as right if its reward is at least 1 (`objective.advantage.right`), but the KL in the reward changes the rewards of right completions
    warning: `objective.advantage.kind: cpo` counts a completion as right if its reward is at least 1 (`objective.advantage.right`), but the weight of the only reward is 0.5
    warning: `objective.advantage.kind: cpo` counts a completion as right if its reward is at least 1 (`objective.advantage.right`), but a reward that is not a verifier changes the rewards of right completions
    ");
}
