//! Arguments of the command line.

use insta::assert_snapshot;

use crate::said;

#[test]
fn overrides() {
    assert_snapshot!(said("", &["rollout.n"]), @r#"
error: `rollout.n` is not an override
 --> command line
  |
1 | rollout.n
  | ^^^^^^^^^
  hint: write `key=value`, `+key=value` to add to a list, or `~key` for the default

1 error in the configuration
"#);
    assert_snapshot!(said("", &["=4"]), @r#"
error: `=4` is not an override
 --> command line
  |
1 | =4
  | ^^
  hint: write `key=value`, `+key=value` to add to a list, or `~key` for the default

1 error in the configuration
"#);
    assert_snapshot!(said("", &["rollout.stop=['a'"]), @r#"
error: invalid YAML: unclosed bracket '['
 --> command line
  |
1 | rollout.stop=['a'
  |              ^^^^
  hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"

1 error in the configuration
"#);
    assert_snapshot!(said("", &["rollout.nn=4"]), @r#"
error: unknown key `rollout.nn`
 --> command line
  |
1 | rollout.nn=4
  | ^^^^^^^^^^
  hint: did you mean `rollout.n`?

1 error in the configuration
"#);
    assert_snapshot!(said("", &["temperature.x=4"]), @r#"
error: unknown key `temperature.x`
 --> command line
  |
1 | temperature.x=4
  | ^^^^^^^^^^^^^
  hint: the keys here are preset, run, model, data, warm_start, rollout, publish, reward, filter, schedule, objective, train, critic, validate, checkpoint

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact}]", &["reward[2].weight=4"]), @r#"
error: `reward` has no item 2: it has 1, counted from 0
 --> command line
  |
1 | reward[2].weight=4
  | ^^^^^^^^^^^^^^^^
  hint: `+reward=...` appends an item

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact}]", &["~reward[2]"]), @r#"
error: `reward` has no item 2: it has 1, counted from 0
 --> command line
  |
1 | ~reward[2]
  |  ^^^^^^^^^
  hint: `+reward=...` appends an item

1 error in the configuration
"#);
    assert_snapshot!(said("", &["rollout.n=four"]), @r#"
error: `rollout.n` must be a whole number, not the text "four"
 --> command line
  |
1 | rollout.n=four
  |           ^^^^
  hint: `tamis config explain rollout.n` says more

1 error in the configuration
"#);
    assert_snapshot!(said("", &["rollout.stop=[1, {a: 2}]"]), @"
error: `rollout.stop[1]` must be a text, not a mapping
 --> command line
  |
1 | rollout.stop=[1, {a: 2}]
  |                  ^^^^^^
  hint: put a text that begins with a bracket in quotes, such as '[0-9]+'

1 error in the configuration
");
}

/// What YAML takes for something else stands in quotes, and the error shows which.
#[test]
fn texts_that_look_like_something_else() {
    let of = |pattern: &str| {
        let said = said("", &["model.path=m", "data.task=arithmetic", "train.total_steps=1", pattern]);
        said.lines().filter(|line| !line.starts_with("warning")).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(of("reward=[{kind: format, pattern: [0-9]+}]"), @r#"
error: invalid YAML: while parsing a flow mapping, did not find expected ',' or '}'
 --> command line
  |
1 | reward=[{kind: format, pattern: [0-9]+}]
  |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"

1 error in the configuration
"#);
    assert_snapshot!(of("reward=[{kind: format, pattern: [ab]}]"), @"
error: `reward[0].pattern` must be a text, not a list of 1
 --> command line
  |
1 | reward=[{kind: format, pattern: [ab]}]
  |                                 ^^^^
  hint: put a text that begins with a bracket in quotes, such as '[0-9]+'

1 error in the configuration
");
    assert_snapshot!(of(r#"reward=[{kind: format, pattern: "\d+"}]"#), @r#"
error: invalid YAML: while parsing a quoted scalar, found unknown escape character
 --> command line
  |
1 | reward=[{kind: format, pattern: "\d+"}]
  |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: in single quotes a backslash stands for itself, such as '\d+'

1 error in the configuration
"#);
    assert_snapshot!(of(r"reward=[{kind: format, pattern: \d{1,3}}]"), @r#"
error: invalid YAML: while parsing a flow mapping, did not find expected ',' or '}'
 --> command line
  |
1 | reward=[{kind: format, pattern: \d{1,3}}]
  |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"

1 error in the configuration
"#);
    // As the hint has it, and a key of its own, which is a text whatever it begins with.
    for pattern in [
        "[{kind: number}, {kind: format, pattern: '[0-9]+'}]",
        r"[{kind: number}, {kind: format, pattern: '\d{1,3}, [ab]'}]",
    ] {
        assert!(!of(&format!("reward={pattern}")).contains("error"), "{pattern}");
    }
}
