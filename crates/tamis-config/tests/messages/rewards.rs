//! The list of rewards.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn rewards() {
    assert_snapshot!([
        show_errors("reward: [{kind: gsm}]", &[]),
        show_errors("reward: [{kind: gsm8k, pattern: x}]", &[]),
        show_errors("reward: [{kind: exact, name: score}]", &[]),
        show_errors("reward: [{kind: exact, name: acc}]", &[]),
        show_errors("filter: {}", &["~data.task", "data.train=t", "reward=[{kind: length}]"]),
        show_errors("reward: [{kind: exact}, {kind: exact}]", &[]),
        show_errors("reward: [{kind: exact, weight: 0}]", &[]),
        show_errors("reward: [{kind: exact}, {kind: repetition, max_penalty: 0.5}]", &[]),
        show_errors("reward: [{kind: exact}, {kind: soft_overlong, buffer: 600}]", &[]),
    ].join("\n"), @r"
    error: `reward[0].kind` cannot be `gsm`: it is one of <every kind of reward>
      at run.yaml:1: reward: [{kind: «gsm»}]
      hint: did you mean `gsm8k`?
    error: unknown key `reward[0].pattern`: the kind here is `gsm8k`
      at run.yaml:1: reward: [{kind: gsm8k, «pattern»: x}]
      hint: `format` and `judge` have it; the keys here are name, weight, method, format_score
    error: a reward cannot be called `score`: tamis computes a metric of that name
      at run.yaml:1: reward: [{kind: exact, name: «score»}]
      hint: give each reward a `name` of its own
    warning: `reward[0].name` has no effect: `acc` already names the raw outcome of the first verifier; this score is named after its kind
      at run.yaml:1: reward: [{kind: exact, name: «acc»}] [remove it]
    warning: the filter looks at `score`, a sum that includes shaping (length): groups that are all wrong but differ in shaping are kept and trained on
      at run.yaml:1: «filter»: {}
      hint: filter on the raw outcome: `filter.metric: acc`
    error: two rewards are called `exact`
      at run.yaml:1: reward: [{kind: exact}, «{kind: exact}»]
      hint: give each reward a `name` of its own
    error: every weight in `reward` is 0: there is nothing to train on
      at run.yaml:1: reward: «[{kind: exact, weight: 0}]»
      hint: give the verifier `weight: 1.0`
    error: `reward[1].max_penalty` is 0.5: a penalty is 0 or less
      at run.yaml:1: reward: [{kind: exact}, {kind: repetition, max_penalty: «0.5»}]
      hint: write -0.5
    error: `reward[1].buffer` (600) is above the response limit (512)
      at run.yaml:1: reward: [{kind: exact}, {kind: soft_overlong, buffer: «600»}]
      hint: use 512 or less
    ");
}
