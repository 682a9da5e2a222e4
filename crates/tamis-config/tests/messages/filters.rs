//! Filters and their metrics.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn filters() {
    assert_snapshot!([
        show_errors("filter: {metric: accuracy}", &[]),
        show_errors("filter: {kind: mean_range, low: 0.9, high: 0.1, tolerance: 1e-3}", &[]),
        show_errors("filter: {low: 0.1}", &[]),
        show_errors("filter: {metric: seq_reward}\nreward: [{kind: number}, {kind: length}]", &[]),
        show_errors("filter: {metric: seq_final_reward}\nobjective: {kl: {in: reward}}", &[]),
        show_errors("filter: {}", &["rollout.n=1"]),
        show_errors("filter: {singleton: drop}", &["rollout.n=1", "objective.advantage.singleton=raw"]),
        show_errors("filter: {kind: mean_range}", &["rollout.n=1"]),
    ].join("\n"), @r"
    error: there is no metric `accuracy`: there are acc, score, seq_reward, seq_final_reward, token_level_rewards, length, entropy, number
      at run.yaml:1: filter: {metric: «accuracy»}
      hint: a reward's score is a metric under its `name`; null takes the raw outcome
    error: unknown key `filter.tolerance`: the kind here is `mean_range`
      at run.yaml:1: filter: {kind: mean_range, low: 0.9, high: 0.1, «tolerance»: 1e-3}
      hint: `variance` has it; the keys here are metric, low, high, bounds
    error: no group mean lies within the bounds of the mean_range filter, (0.9, 0.1)
      at run.yaml:1: filter: {kind: mean_range, low: «0.9», high: 0.1, tolerance: 1e-3}
      hint: swap `low` and `high`, or raise `high`
    error: unknown key `filter.low`: the kind here is `variance`
      at run.yaml:1: filter: {«low»: 0.1}
      hint: `mean_range` and `percentile` have it; the keys here are metric, tolerance, singleton
    warning: the filter looks at `seq_reward`, a sum that includes shaping (length): groups that are all wrong but differ in shaping are kept and trained on
      at run.yaml:1: filter: {metric: «seq_reward»}
      hint: filter on the raw outcome: `filter.metric: acc`
    warning: the filter looks at `seq_final_reward` with the KL in the reward: that varies in every group, so nothing is filtered
      at run.yaml:1: filter: {metric: «seq_final_reward»}
      hint: use `filter.metric: seq_reward`, the same before the KL, or `acc`
    error: `rollout.n` is 1: a group of one has nothing to compare with, every advantage is 0 and nothing is learned
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    warning: `rollout.n` is 1: every group has one member and `filter.singleton: keep` keeps it, so nothing is filtered
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    warning: `rollout.n` is 1: a group of one has nothing to compare with, the advantage is the reward itself
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    error: `rollout.n` is 1: every group has one member and `filter.singleton: drop` drops it, so no step is ever filled
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    error: `rollout.n` is 1: a group of one has nothing to compare with, every advantage is 0 and nothing is learned
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    error: no group can be kept, so no step is ever filled: the filter keeps only groups with 0 < mean < 1, and the `acc` of its one completion (`rollout.n`) is 0 or 1
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    ");
}

#[test]
fn a_filter_that_can_keep_no_group_is_refused() {
    assert_snapshot!([
        show_errors("filter: {kind: mean_range, low: 0.8, high: 0.9}", &["rollout.n=4"]),
        show_errors("filter: {tolerance: 1}", &["rollout.n=4"]),
    ].join("\n"), @r"
    error: no group can be kept, so no step is ever filled: the filter keeps only groups with 0.8 < mean < 0.9, and `acc` is 0 or 1 for each of 4 completions (`rollout.n`)
      at run.yaml:1: filter: {kind: mean_range, low: «0.8», high: 0.9}
      hint: set `rollout.n` to 6 or more, or widen `filter.low` and `filter.high`
    error: no group can be kept, so no step is ever filled: the filter keeps only groups with max - min > 1, and `acc` is 0 or 1 for each of 4 completions (`rollout.n`)
      at run.yaml:1: filter: {tolerance: «1»}
      hint: set `filter.tolerance` below 1
    ");
    for (filter, n, expected) in [
        ("filter: {kind: mean_range, low: 0.4, high: 0.6}", "1", true),
        ("filter: {kind: mean_range, low: 0.4, high: 0.6}", "3", false),
        ("filter: {kind: mean_range, bounds: closed}", "1", false),
        ("filter: {kind: mean_range, low: 1.5, high: 2}", "8", true),
        ("filter: {kind: mean_range, low: 1.5, high: 2, metric: score}", "8", false),
        // What a function of the user's returns as `acc` may be any number.
        ("filter: {kind: mean_range, metric: acc}\nreward: [{kind: python, path: r.py}]", "1", false),
        ("filter: {kind: mean_range, metric: acc}\nreward: [{kind: code}]", "1", true),
    ] {
        let shown = show_errors(filter, &[&format!("rollout.n={n}"), "objective.advantage.singleton=raw"]);
        let is_refused = shown.contains("error: no group can be kept, so no step is ever filled: ");
        assert_eq!(is_refused, expected, "{filter}, {n}: {shown}");
    }
}

#[test]
fn pool_filters() {
    assert_snapshot!([
        show_errors("filter: {kind: top_p}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: min_p}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_k}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_k, k: 2, fraction: 0.5}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: percentile, high: 25}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_p, p: 0.5, mass: variance, score: mean}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_p, p: 0.5, slack: 0.1, tolerance: 1.0}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_p, p: 0.5, mass: linear, temperature: 0.1, score: mean, ddof: 1}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_k, k: 2}", &[]),
        show_errors("filter: {kind: top_k, k: 2}\nschedule: {refill: false}", &["rollout.n=1", "objective.advantage.singleton=raw"]),
        show_errors("filter: {kind: within_group, k: 2}", &["rollout.n=1", "objective.advantage.singleton=raw"]),
        show_errors("filter: {kind: top_k, k: 64}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_k, k: 200, include_zero: false}\nschedule: {refill: false}", &["data.gen_batch_size=128"]),
        show_errors("filter: {kind: top_k, fraction: 1.0}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: top_p, p: 1.0}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: percentile}\nschedule: {refill: false}", &[]),
        show_errors("filter: {kind: within_group, k: 8}", &[]),
        show_errors("filter: {kind: within_group, fraction: 0.5}", &["rollout.n=2"]),
    ].join("\n"), @r"
    error: `filter.p` is missing: a number, greater than 0 and at most 1
      at run.yaml:1: filter: {kind: «top_p»} [explain it]
    error: `filter.p` is missing: a number, from 0 to 1
      at run.yaml:1: filter: {kind: «min_p»} [explain it]
    error: the top_k filter needs one of `k` and `fraction`, but has neither
      at run.yaml:1: filter: {kind: «top_k»}
      hint: `fraction: 0.5` is half of them
    error: the top_k filter needs one of `k` and `fraction`, but has both
      at run.yaml:1: filter: {kind: top_k, k: 2, fraction: «0.5»}
      hint: remove `k` or `fraction`
    error: the percentile filter's band must satisfy 0 <= low < high <= 1, got 0 to 25
      at run.yaml:1: filter: {kind: percentile, high: «25»}
      hint: `low: 0, high: 0.25` is the best quarter
    error: the top_p filter's mass `variance` is the square of the deviation: it needs the score `deviation`, not `mean`
      at run.yaml:1: filter: {kind: top_p, p: 0.5, mass: «variance», score: mean}
      hint: use `score: deviation`, or `mass: linear`
    error: unknown key `filter.tolerance`: the kind here is `top_p`
      at run.yaml:1: filter: {kind: top_p, p: 0.5, slack: 0.1, «tolerance»: 1.0}
      hint: `variance` has it; the keys here are metric, p, mass, temperature, slack, score, ddof, prefer, include_zero
    warning: `filter.slack` has no effect: the mass is `softmax`
      at run.yaml:1: filter: {kind: top_p, p: 0.5, slack: «0.1», tolerance: 1.0} [remove it]
    warning: `filter.temperature` has no effect: the mass is not `softmax`
      at run.yaml:1: filter: {kind: top_p, p: 0.5, mass: linear, temperature: «0.1», score: mean, ddof: 1} [remove it]
    warning: `filter.ddof` has no effect: the filter's score is neither deviation nor variance
      at run.yaml:1: filter: {kind: top_p, p: 0.5, mass: linear, temperature: 0.1, score: mean, ddof: «1»} [remove it]
    warning: `filter.kind: top_k` selects among the groups of one round, but `schedule.refill` repeats rounds until 64 groups are kept: each round is selected by itself
      at run.yaml:1: filter: {kind: «top_k», k: 2}
      hint: `schedule.refill: false` trains on what one round leaves, as RAGEN does
    warning: `rollout.n` is 1: a group of one has nothing to compare with, the advantage is the reward itself
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    warning: `rollout.n` is 1: a group of one has no deviation, so the filter's ranking means nothing
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    warning: `rollout.n` is 1: a group of one has nothing to compare with, the advantage is the reward itself
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    warning: `rollout.n` is 1: there is nothing to choose from within a group
      at command line: rollout.n=«1»
      hint: set `rollout.n` to 4 or more
    warning: `filter.k: 64` keeps the 64 best groups of a round of 64 (`data.train_batch_size`): no group is ever dropped
      at run.yaml:1: filter: {kind: top_k, k: «64»}
      hint: use fewer than 64, such as 32
    warning: `filter.k: 200` keeps the 200 best groups of a round of 128 (`data.gen_batch_size`): no group is ever dropped
      at run.yaml:1: filter: {kind: top_k, k: «200», include_zero: false}
      hint: use fewer than 128, such as 64
    warning: `filter.fraction: 1` with `filter.kind: top_k` keeps every scored group: nothing is filtered
      at run.yaml:1: filter: {kind: top_k, fraction: «1.0»}
      hint: use less, or `filter: null`; `filter.include_zero: false` leaves out groups whose score is 0
    warning: `filter.p: 1` with `filter.kind: top_p` keeps every scored group: nothing is filtered
      at run.yaml:1: filter: {kind: top_p, p: «1.0»}
      hint: use less, or `filter: null`; `filter.include_zero: false` leaves out groups whose score is 0
    warning: `filter.high: 1` with `filter.kind: percentile` keeps every scored group: nothing is filtered
      at run.yaml:1: filter: {kind: «percentile»}
      hint: use less, or `filter: null`; `filter.include_zero: false` leaves out groups whose score is 0
    warning: `filter.kind: within_group` chooses 8 of the 8 members of a group (`rollout.n`): none is ever left out
      at run.yaml:1: filter: {kind: within_group, k: «8»}
      hint: use fewer than 8, such as `filter.k: 4`
    warning: `filter.kind: within_group` chooses 2 of the 2 members of a group (`rollout.n`): none is ever left out
      at run.yaml:1: filter: {kind: within_group, fraction: «0.5»}
      hint: set `rollout.n` to 4 or more: at least two members are chosen
    ");
    for sound in [
        "top_k, k: 63",
        "top_k, fraction: 1.0, include_zero: false",
        "top_p, p: 1.0, mass: linear",
        "percentile, high: 0.5",
    ] {
        assert_eq!(show_errors(&format!("filter: {{kind: {sound}}}\nschedule: {{refill: false}}"), &[]), "");
    }
    assert_eq!(show_errors("filter: {kind: within_group, k: 7}", &[]), "");
    assert_eq!(show_errors("filter: {kind: top_p, p: 0.9}\nschedule: {refill: false}", &[]), "");
    assert_eq!(show_errors("filter: {kind: within_group, fraction: 0.5}", &[]), "");
}
