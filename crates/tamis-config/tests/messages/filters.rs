//! Filters and their metrics.

use insta::assert_snapshot;

use crate::said;

#[test]
fn filters() {
    assert_snapshot!(said("filter: {metric: accuracy}", &[]), @r#"
error: there is no metric `accuracy`: there are acc, score, seq_reward, seq_final_reward, token_level_rewards, length, number
 --> run.yaml:1:18
  |
1 | filter: {metric: accuracy}
  |                  ^^^^^^^^
  hint: a reward's score is a metric under its `name`; null takes the raw outcome

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: mean_range, low: 0.9, high: 0.1, tolerance: 1e-3}", &[]), @r#"
warning: `filter.tolerance` has no effect: the filter's kind is `mean_range`
 --> run.yaml:1:60
  |
1 | filter: {kind: mean_range, low: 0.9, high: 0.1, tolerance: 1e-3}
  |                                                            ^^^^
  hint: remove `filter.tolerance`

error: `filter.low` (0.9) is not below `filter.high` (0.1): no group is ever kept
 --> run.yaml:1:33
  |
1 | filter: {kind: mean_range, low: 0.9, high: 0.1, tolerance: 1e-3}
  |                                 ^^^
  hint: exchange the two

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {low: 0.1}", &[]), @r#"
warning: `filter.low` has no effect: the filter's kind is `variance`
 --> run.yaml:1:15
  |
1 | filter: {low: 0.1}
  |               ^^^
  hint: remove `filter.low`
"#);
    assert_snapshot!(said("filter: {metric: seq_reward}\nreward: [{kind: number}, {kind: length}]", &[]), @r#"
warning: the filter looks at `seq_reward`, a sum with shaping in it (length): groups that are all wrong but differ in shaping are kept and trained on
 --> run.yaml:1:18
  |
1 | filter: {metric: seq_reward}
  |                  ^^^^^^^^^^
  hint: filter on the raw outcome: `filter.metric: acc`
"#);
    assert_snapshot!(said("filter: {metric: seq_final_reward}\nobjective: {kl: {in: reward}}", &[]), @r#"
warning: the filter looks at `seq_final_reward` with the KL in the reward: that varies in every group, so nothing is filtered
 --> run.yaml:1:18
  |
1 | filter: {metric: seq_final_reward}
  |                  ^^^^^^^^^^^^^^^^
  hint: use `filter.metric: seq_reward`, the same before the KL, or `acc`
"#);
    assert_snapshot!(said("filter: {}", &["rollout.n=1"]), @r#"
warning: `rollout.n` is 1: a group of one has nothing to be compared with, every advantage is 0 and nothing is learned
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more

warning: `rollout.n` is 1: every group has one member and `filter.singleton: keep` keeps it, so nothing is filtered
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more
"#);
    assert_snapshot!(said("filter: {singleton: drop}", &["rollout.n=1", "objective.advantage.singleton=raw"]), @r#"
warning: `rollout.n` is 1: a group of one has nothing to be compared with, the advantage is the reward itself
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more

warning: `rollout.n` is 1: every group has one member and `filter.singleton: drop` drops it, so no step is ever filled
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more
"#);
    assert_snapshot!(said("filter: {kind: mean_range}", &["rollout.n=1"]), @r#"
warning: `rollout.n` is 1: a group of one has nothing to be compared with, every advantage is 0 and nothing is learned
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more

warning: `rollout.n` is 1: the filter judges every group by a single trajectory
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more
"#);
}
