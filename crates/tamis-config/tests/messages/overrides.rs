//! Arguments of the command line.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn overrides() {
    assert_snapshot!([
        show_errors("", &["rollout.n"]),
        show_errors("", &["=4"]),
        show_errors("", &["rollout.stop=['a'"]),
        show_errors("", &["temperature.x=4"]),
        show_errors("reward: [{kind: exact}]", &["reward[2].weight=4"]),
        show_errors("reward: [{kind: exact}]", &["~reward[2]"]),
    ].join("\n"), @r#"
    error: `rollout.n` is not an override
      at command line: «rollout.n»
      hint: write `key=value`, `+key=value` to add to a list, or `~key` for the default
    error: `=4` is not an override
      at command line: «=4»
      hint: write `key=value`, `+key=value` to add to a list, or `~key` for the default
    error: invalid YAML: unclosed bracket '['
      at command line: rollout.stop=«['a'»
      hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"
    error: unknown key `temperature.x`
      at command line: «temperature.x»=4
      hint: the keys here are preset, run, model, data, environment, more_environments, sft, rollout, learner, cluster, publish, reward, filter, schedule, objective, teacher, train, critic, validate, checkpoint, simulate
    error: `reward` has no item 2: it has 1, counted from 0
      at command line: «reward[2].weight»=4
      hint: `+reward=...` appends an item
    error: `reward` has no item 2: it has 1, counted from 0
      at command line: ~«reward[2]»
      hint: `+reward=...` appends an item
    "#);
}

/// A text that YAML reads as something else needs quotes, and the error shows which.
#[test]
fn texts_that_look_like_something_else() {
    let of = |pattern: &str| {
        let errors =
            show_errors("", &["model.path=m", "data.task=arithmetic", "train.total_steps=1", pattern]);
        errors.lines().filter(|line| !line.starts_with("warning")).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!([
        of("reward=[{kind: format, pattern: [0-9]+}]"),
        of("reward=[{kind: format, pattern: [ab]}]"),
        of(r#"reward=[{kind: format, pattern: "\d+"}]"#),
        of(r"reward=[{kind: format, pattern: \d{1,3}}]"),
    ].join("\n"), @r#"
    error: invalid YAML: while parsing a flow mapping, did not find expected ',' or '}'
      at command line: reward=«[{kind: format, pattern: [0-9]+}]»
      hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"
    error: `reward[0].pattern` must be a text, not a list of 1
      at command line: reward=[{kind: format, pattern: «[ab]»}]
      hint: put a text that begins with a bracket in quotes, such as '[0-9]+'
    error: invalid YAML: while parsing a quoted scalar, found unknown escape character
      at command line: reward=«[{kind: format, pattern: "\d+"}]»
      hint: in single quotes a backslash stands for itself, such as '\d+'
    error: invalid YAML: while parsing a flow mapping, did not find expected ',' or '}'
      at command line: reward=«[{kind: format, pattern: \d{1,3}}]»
      hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"
    "#);
    // As the hint shows it, and as a key of its own, which is a text whatever it begins with.
    for pattern in [
        "[{kind: number}, {kind: format, pattern: '[0-9]+'}]",
        r"[{kind: number}, {kind: format, pattern: '\d{1,3}, [ab]'}]",
    ] {
        assert!(!of(&format!("reward={pattern}")).contains("error"), "{pattern}");
    }
}

/// An item of a list is written as in messages about files.
#[test]
fn items_of_lists_are_in_brackets() {
    for (argument, expected) in [
        ("reward.0.weigth=1", "unknown key `reward[0].weigth`"),
        ("~reward.0.weigth", "unknown key `reward[0].weigth`"),
        ("~reward.7", "`reward` has no item 7"),
    ] {
        let text = show_errors("reward: [{kind: number}]", &[argument]);
        assert!(text.starts_with(&format!("error: {expected}")), "{text}");
    }
}

/// An unknown key is compared with the kind that the section has, wherever it was written. A key of another
/// kind is shown at the place at which it was set.
#[test]
fn unknown_keys_of_sections_with_a_kind() {
    let of_filter = |unknown: &str| show_errors("filter: {kind: variance}", &[unknown]);
    assert_snapshot!([
        of_filter("filter.foo=1"),
        of_filter("~filter.foo"),
        of_filter("objective.advantage.tolerance=1"),
        show_errors("preset: dapo", &["objective.loss.dual_clip=3.0", "objective.loss.kind=gpg"]),
        // The section that the key itself names is no suggestion. Of keys with the same name, the most
        // similar one is.
        show_errors("", &["objective.loss.foo=1"]),
        show_errors("", &["objective.lss.kind=gspo"]),
    ].join("\n"), @r"
    error: unknown key `filter.foo`
      at command line: «filter.foo»=1
      hint: the keys here are kind, metric, tolerance, singleton
    error: unknown key `filter.foo`
      at command line: ~«filter.foo»
      hint: the keys here are kind, metric, tolerance, singleton, low, high, bounds, p, mass, temperature, slack, score, ddof, prefer, include_zero, k, fraction
    error: unknown key `objective.advantage.tolerance`
      at command line: «objective.advantage.tolerance»=1
      hint: the keys here are kind, scale, ddof, epsilon, singleton, statistics
    error: unknown key `objective.loss.dual_clip`: the kind here is `gpg`
      at command line: «objective.loss.dual_clip»=3.0
      hint: `clip` and `decoupled` have it
    error: unknown key `objective.loss.foo`
      at command line: «objective.loss.foo»=1
      hint: the keys here are kind, clip_low, clip_high, dual_clip, delta, log_ratio_limit
    error: unknown key `objective.lss.kind`
      at command line: «objective.lss.kind»=gspo
      hint: did you mean `objective.loss.kind`?
    ");
}

/// Dots are for the command line.
#[test]
fn dotted_keys_in_a_file() {
    assert_snapshot!(show_errors("objective.loss.kind: gspo\nobjective:\n  kl.in: loss", &[]), @"
    error: unknown key `objective.loss.kind`
      at run.yaml:1: «objective.loss.kind»: gspo
      hint: did you mean `objective: {loss: {kind: ...}}`?
    error: unknown key `objective.kl.in`
      at run.yaml:3:   «kl.in»: loss
      hint: did you mean `kl: {in: ...}`?
    ");
}

#[test]
fn what_switches_a_section_off() {
    assert_snapshot!([
        show_errors("schedule: {max_num_gen_batches: 3}", &["filter=off"]),
        show_errors("", &["objective.loss.log_ratio_limit=off"]),
        show_errors("", &["reward=math"]),
    ].join("\n"), @r#"
    error: `filter` must be a section with a `kind` or null, not the text "off"
      at command line: filter=«off»
      hint: write null (see `tamis config explain filter` for what that does)
    error: `objective.loss.log_ratio_limit` must be a number or null, not the text "off"
      at command line: objective.loss.log_ratio_limit=«off»
      hint: write null (see `tamis config explain objective.loss.log_ratio_limit` for what that does)
    error: `reward` must be a list, each a section with a `kind`, not the text "math"
      at command line: reward=«math»
      hint: write [{kind: math}]
    "#);
    // A list of sections without a `kind`: the key that takes the text.
    for (argument, hint) in [
        ("teacher=runs/big", "write [{path: runs/big}]"),
        ("teacher=http://gpu:8000", "write [{servers: [http://gpu:8000]}]"),
        ("teacher={path: big, model: m}", "write [{path: big, model: m}]"),
    ] {
        let error = show_errors("", &[argument]);
        assert!(error.contains(&format!("  hint: {hint}")), "{argument}: {error}");
    }
}

#[test]
fn a_section_is_not_null_on_the_command_line() {
    for key in ["objective", "objective.loss", "objective.advantage", "train"] {
        let error = show_errors("", &["preset=sapo", &format!("{key}=null")]);
        assert!(
            error.contains(&format!("`{key}` must be a section")) && error.contains("not null"),
            "{error}"
        );
    }
}

#[test]
fn parts_that_a_value_or_a_list_lacks() {
    for (argument, hint) in [
        ("rollout.n.x=3", "`rollout.n` has no keys: it is a value itself"),
        ("reward.length.weight=3", "did you mean `reward[0].weight`?"),
        ("filter.kind=none", "`filter=null` switches it off"),
        ("objective.loss.tau_postive=0.3", "did you mean `objective.loss.tau_positive`?"),
    ] {
        let error = show_errors("", &[argument]);
        assert!(error.contains(&format!("hint: {hint}")), "{error}");
    }
}
