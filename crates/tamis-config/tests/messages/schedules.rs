//! Rounds, limits and surplus.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn selectors() {
    assert_snapshot!(show_errors("schedule: {selector: {kind: posterior, floor: 0.1, correction: biased}}", &[]), @"");
    let alone = show_errors("schedule: {selector: {kind: posterior}}\nrollout: {n: 1}", &[]);
    assert!(
        alone.contains("error: `schedule.selector.kind: posterior` chooses by whether the members"),
        "{alone}"
    );
    assert!(alone.contains("hint: set `rollout.n: 2` or more"), "{alone}");
    let pools = |hard: &str, easy: &str| {
        let keys = format!("kind: difficulty_pools, hard_up_to: {hard}, easy_from: {easy}");
        show_errors(&format!("schedule: {{selector: {{{keys}}}}}"), &[])
    };
    assert_eq!(pools("0.25", "0.75"), "");
    assert!(pools("0.5", "0.5").contains("from 0.5"), "both pools have it");
    assert_snapshot!(pools("0.9", "0.1"), @r#"
error: prompts with a pass rate from 0.1 (`schedule.selector.easy_from`) to 0.9 (`schedule.selector.hard_up_to`) are in both the hard and the easy pool
  at run.yaml:1: schedule: {selector: {kind: difficulty_pools, hard_up_to: «0.9», easy_from: 0.1}}
  hint: set `schedule.selector.hard_up_to` below `schedule.selector.easy_from`: 0.25 and 0.75, say
"#);
    let floor = show_errors("schedule: {selector: {kind: posterior, floor: 0}}", &[]);
    assert!(floor.contains("`schedule.selector.floor`"), "{floor}");
    let memory = show_errors("schedule: {selector: {kind: zero_variance_skip, memory: 0.9}}", &[]);
    assert!(
        memory.contains("error: ") && memory.contains("memory") && memory.contains("posterior"),
        "{memory}"
    );
    let column = show_errors("data: {task: arithmetic, curriculum: {bands: 1}}", &[]);
    assert!(
        column.contains("`data.curriculum.column`") && column.contains("`data.curriculum.bands`"),
        "{column}"
    );
}

#[test]
fn filled_batches() {
    for on_limit in ["keep_dropped", "duplicate"] {
        for mode in ["rounds", "deficit"] {
            let schedule = format!("schedule: {{mode: {mode}, on_limit: {on_limit}}}\nfilter: {{}}");
            assert_eq!(show_errors(&schedule, &[]), "");
        }
    }
    let endless = "schedule: {max_num_gen_batches: null, on_limit: duplicate}\nfilter: {}";
    // EasyR1 has a limit that can be switched off.
    assert_eq!(show_errors(&endless.replace("duplicate", "use_partial"), &[]), "");
    assert_snapshot!([
        show_errors("schedule: {mode: streaming, on_limit: keep_dropped}\nfilter: {}", &[]),
        show_errors(endless, &[]),
        show_errors("schedule: {on_limit: duplicate}", &[]),
    ].join("\n"), @r"
    error: `schedule.on_limit: keep_dropped` fills a batch after its last round, but `schedule.mode: streaming` hands out groups as they finish
      at run.yaml:1: schedule: {mode: streaming, on_limit: «keep_dropped»}
      hint: use `schedule.mode: rounds` or `deficit`, or `schedule.on_limit: use_partial`
    warning: `schedule.on_limit: duplicate` has no effect: `schedule.max_num_gen_batches` is null, so a step continues until its batch is full
      at run.yaml:1: schedule: {max_num_gen_batches: null, on_limit: «duplicate»}
      hint: set `schedule.max_num_gen_batches` (1, for example), or remove `schedule.on_limit`
    warning: `schedule.on_limit` has no effect: there is no filter, so every step is one round
      at run.yaml:1: schedule: {on_limit: «duplicate»} [remove it]
    ");
}

#[test]
fn schedules() {
    assert_eq!(show_errors("schedule: {mode: streaming, rounds_in_flight: 2}", &[]), "");
    assert_eq!(show_errors("schedule: {max_num_gen_batches: auto}\nfilter: {}", &[]), "");
    assert_snapshot!([
        show_errors("schedule: {mode: streaming, refill: true, margin: 2}\nfilter: {kind: top_p, p: 0.9}", &[]),
        show_errors("schedule: {mode: deficit, rounds_in_flight: 2}\nfilter: {}", &[]),
        show_errors("schedule: {rounds_in_flight: 2}", &[]),
        show_errors("schedule: {mode: deficit}\nfilter: {kind: top_p, p: 0.9}", &[]),
        show_errors("schedule: {granularity: 8}\nfilter: {}", &[]),
        show_errors("schedule: {max_num_gen_batches: often}\nfilter: {}", &[]),
        show_errors("schedule: {surplus: carry}\nfilter: {}", &[]),
        show_errors("schedule: {max_lag: 2}\nfilter: {}", &[]),
        show_errors("schedule: {refill: false, max_num_gen_batches: 3, on_limit: skip}\nfilter: {}", &[]),
        show_errors("schedule: {refill: false}\nfilter: {}\ndata: {gen_batch_size: 16}", &[]),
        show_errors("schedule: {max_num_gen_batches: 3, on_empty_round: skip}", &[]),
    ].join("\n"), @r#"
    warning: `filter.kind: top_p` selects among the groups of one round, but `schedule.refill` repeats rounds until 64 groups are kept: each round is selected by itself
      at run.yaml:2: filter: {kind: «top_p», p: 0.9}
      hint: `schedule.refill: false` trains on what one round leaves, as RAGEN does
    warning: `schedule.margin` has no effect: `schedule.mode` is `streaming`
      at run.yaml:1: schedule: {mode: streaming, refill: true, margin: «2»} [remove it]
    error: `filter.kind: top_p` compares the groups of a round, but `schedule.mode: streaming` judges each group by itself
      at run.yaml:1: schedule: {mode: «streaming», refill: true, margin: 2}
      hint: use `schedule.mode: rounds`, or a filter that judges each group alone (`filter.kind: variance`)
    error: `schedule.rounds_in_flight: 2` starts rounds before earlier ones are judged, but with `schedule.mode: deficit` the size of a round depends on their verdicts
      at run.yaml:1: schedule: {mode: deficit, rounds_in_flight: «2»}
      hint: use `schedule.mode: rounds` or `streaming`, or remove `schedule.rounds_in_flight`
    warning: `schedule.rounds_in_flight` has no effect: there is no filter, so every step is one round
      at run.yaml:1: schedule: {rounds_in_flight: «2»} [remove it]
    warning: `filter.kind: top_p` selects among the groups of one round, but `schedule.refill` repeats rounds until 64 groups are kept: each round is selected by itself
      at run.yaml:2: filter: {kind: «top_p», p: 0.9}
      hint: `schedule.refill: false` trains on what one round leaves, as RAGEN does
    error: `filter.kind: top_p` compares the groups of a round, but with `schedule.mode: deficit` rounds vary in size: what it keeps would depend on what the batch still lacks
      at run.yaml:1: schedule: {mode: «deficit»}
      hint: use `schedule.mode: rounds`, or a filter that judges each group alone (`filter.kind: variance`)
    warning: `schedule.granularity` has no effect: `schedule.mode` is `rounds`
      at run.yaml:1: schedule: {granularity: «8»} [remove it]
    error: `schedule.max_num_gen_batches` must be a whole number, or `auto` or null, not the text "often"
      at run.yaml:1: schedule: {max_num_gen_batches: «often»} [explain it]
    error: `schedule.surplus: carry` needs `schedule.max_lag`
      at run.yaml:1: schedule: {surplus: «carry»}
      hint: set `schedule.max_lag: 1`
    warning: `schedule.max_lag` has no effect: `schedule.surplus` is `discard`
      at run.yaml:1: schedule: {max_lag: «2»} [remove it]
    warning: `schedule.max_num_gen_batches` has no effect: `schedule.refill` is false, so every step is one round
      at run.yaml:1: schedule: {refill: false, max_num_gen_batches: «3», on_limit: skip} [remove it]
    warning: `schedule.on_limit` has no effect: `schedule.refill` is false, so every step is one round
      at run.yaml:1: schedule: {refill: false, max_num_gen_batches: 3, on_limit: «skip»} [remove it]
    error: `schedule.refill` is false, so every step is one round of 16 prompts (`data.gen_batch_size`), which can never fill the 64 of `data.train_batch_size`
      at run.yaml:3: data: {gen_batch_size: «16»}
      hint: set `data.gen_batch_size: 64` or more, or `data.train_batch_size: 16`
    warning: `schedule.max_num_gen_batches` has no effect: there is no filter, so every step is one round
      at run.yaml:1: schedule: {max_num_gen_batches: «3», on_empty_round: skip} [remove it]
    warning: `schedule.on_empty_round` has no effect: there is no filter, so every step is one round
      at run.yaml:1: schedule: {max_num_gen_batches: 3, on_empty_round: «skip»} [remove it]
    "#);
}

#[test]
fn first_members() {
    let of = |schedule: &str, rest: &str| {
        show_errors(&format!("schedule: {{screen_first: {schedule}}}\nrollout: {{n: 8}}\n{rest}"), &[])
    };
    assert_eq!(of("4, mode: streaming", "filter: {}"), "");
    assert_eq!(of("4, mode: streaming", "filter: {metric: seq_reward}"), "");
    let without = of("4, mode: streaming", "filter: null");
    assert!(without.contains("how the filter `null` judges"), "{without}");
    assert_snapshot!([
        of("8, mode: streaming", "filter: {}"),
        of("4, mode: deficit", "filter: {}"),
        of("4, mode: streaming", "filter: {kind: mean_range}"),
        of("4, mode: streaming", "filter: {metric: seq_final_reward}"),
    ].join("\n"), @r"
    error: `schedule.screen_first: 8` leaves none of the 8 members of a group (`rollout.n`)
      at run.yaml:1: schedule: {screen_first: «8», mode: streaming}
      hint: set it to less than 8, or remove `schedule.screen_first`
    error: `schedule.screen_first` starts groups with some of their members, but `schedule.mode: deficit` starts whole groups
      at run.yaml:1: schedule: {screen_first: «4», mode: deficit}
      hint: set `schedule.mode: streaming`, or remove `schedule.screen_first`
    error: `schedule.screen_first` checks whether the first members of a group differ, which does not predict how the filter `mean_range` judges the whole group
      at run.yaml:1: schedule: {screen_first: «4», mode: streaming}
      hint: set `filter.kind: variance`, or remove `schedule.screen_first`
    error: `filter.metric: seq_final_reward` needs the divergence of the whole group, but `schedule.screen_first` looks only at its first members
      at run.yaml:1: schedule: {screen_first: «4», mode: streaming}
      hint: set `filter.metric: seq_reward`, or remove `schedule.screen_first`
    ");
    let one = of("1, mode: streaming", "filter: {}");
    assert!(one.contains("`schedule.screen_first` must be at least 2, got 1"), "{one}");
}

#[test]
fn a_policy_is_simulated_once() {
    let shown = show_errors("simulate: {policies: [verl, slime, verl]}", &[]);
    assert!(shown.starts_with("error: `simulate.policies` names `verl` twice\n  at run.yaml"), "{shown}");
    assert_snapshot!(show_errors("simulate: {policies: [verl, slime]}", &[]), @"");
}

/// Advantages that compare beyond the group: what would leave nothing to learn, or pass over what teaches.
#[test]
fn one_completion_per_prompt() {
    let of = |yaml: &str| show_errors(yaml, &[]);
    let flash = "preset: flash_reinforce\n";
    assert_snapshot!(of(flash), @"");
    for (change, expected) in [
        ("data: {train_batch_size: 1}", "the mean reward of a batch of one trajectory is that reward"),
        ("train: {ppo_epochs: 3}", "a step has 3 updates, and `objective.loss.kind: reinforce` has no ratio"),
        (
            "objective: {shaping: [{kind: soft_reweight}]}",
            "and `soft_reweight` multiplies every advantage by it",
        ),
        ("train: {early_stop: {reward_collapse: {}}}", "the deviation within a group is always 0"),
    ] {
        let text = of(&format!("{flash}{change}"));
        assert!(text.contains(expected), "{change}: {text}");
    }
    let selected =
        of("objective: {advantage: {kind: batch_mean}}\nschedule: {selector: {kind: zero_variance_skip}}");
    assert!(
        selected.contains("passes over prompts whose groups score alike, but these have signal too"),
        "{selected}"
    );
}
