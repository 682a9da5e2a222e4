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
  hint: the keys here are preset, run, model, data, warm_start, rollout, reward, filter, schedule, objective, train, critic, validate, checkpoint

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
    assert_snapshot!(said("", &["rollout.stop=[1, {a: 2}]"]), @r#"
error: `rollout.stop[1]` must be a text, not a mapping
 --> command line
  |
1 | rollout.stop=[1, {a: 2}]
  |                  ^^^^^^
  hint: `tamis config explain rollout.stop` says more

1 error in the configuration
"#);
}
