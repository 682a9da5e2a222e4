//! Texts that are not YAML, keys that occur twice, files that cannot be read.

use insta::assert_snapshot;
use tamis_config::load;

use crate::{BASE, printed, raw, show_errors};

#[test]
fn syntax() {
    assert_snapshot!(raw("run: {}\nrun: {}\nrun: {}\n", &[]).matches("`run` is given twice, first on line 1").count(), @"2");
    assert_snapshot!([
        show_errors("run: [1, 2", &[]),
        show_errors("run: {name: a}\nrun: {name: b}\n", &[]),
        // Other faults are reported with it, for the later value.
        show_errors("rollout: {n: 4, m: 1}\nrollout: {n: -1}\ndata: {shufle: true}\n", &["~rollout.n=8"]),
        show_errors("run:\n  name: a\n---\nrun: {}\n", &[]),
        show_errors("[1]: 2\n", &[]),
        show_errors("just a text", &[]),
        show_errors("- 1\n", &[]),
        show_errors("run: *nobody\n", &[]),
    ].join("\n"), @r"
    error: invalid YAML: unclosed bracket '['
      at run.yaml:1: run: «[»1, 2
    error: `run` is given twice, first on line 1
      at run.yaml:2: «run»: {name: b}
      hint: remove one of the two
    error: `rollout` is given twice, first on line 1
      at run.yaml:2: «rollout»: {n: -1}
      hint: remove one of the two
    error: `~rollout.n` resets a key to its default, and `=8` gives it a value
      at command line: «~rollout.n=8»
      hint: write `~rollout.n` for the default, or `rollout.n=8` for that value
    error: unknown key `data.shufle`
      at run.yaml:3: data: {«shufle»: true}
      hint: did you mean `data.shuffle`?
    error: `rollout.n` must be a whole number of 0 or more, not the number -1
      at run.yaml:2: rollout: {n: «-1»}
      hint: see `tamis config explain rollout.n` for what switches it off
    error: invalid YAML: a configuration is one document, and a second one starts here
      at run.yaml:3: «---»
    error: invalid YAML: a key is a text, not a list or a mapping
      at run.yaml:1: «[1]»: 2
    error: a configuration is a mapping of sections
      at run.yaml:1: «just a text»
      hint: for example: `rollout: {n: 8}`
    error: a configuration is a mapping of sections
      at run.yaml:1: «-» 1
      hint: for example: `rollout: {n: 8}`
    error: invalid YAML: while parsing node, found unknown anchor
      at run.yaml:1: run: «*»nobody
    ");
    assert_snapshot!(printed("\u{1}", &BASE), @r#"
error: invalid YAML: unexpected character: `\u{1}'
 --> run.yaml:1:1
  |
1 |  
  | ^

1 error in the configuration
"#);
    let laughs = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d \
                  [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e]\n";
    assert_snapshot!(show_errors(laughs, &[]), @r#"
error: invalid YAML: more than 100,000 values: aliases that multiply?
  at run.yaml:5: e: &e [*d,*d,*d,*d,*d,*d,*d,«*d»,*d,*d]
"#);
}

#[test]
fn a_line_that_a_tab_indents_has_a_hint_that_names_the_tab() {
    for text in [
        "run:\n\tname: a\n",
        "run:\n  name: a\n\tdir: b\n",
        "run:\n  name: a\n\tdir\n  seed: 1\n",
        "reward:\n\t- kind: math\n",
        "reward:\n  - kind: math\n\t  weight: 1\n",
    ] {
        let shown = show_errors(text, &[]);
        assert!(shown.contains("hint: YAML is indented with spaces: replace the tab"), "{text:?}: {shown}");
    }
    // Another fault of a file whose tabs are within lines.
    let shown = show_errors("run:\t{name: a}\n\t\nrun: [1, 2\n", &[]);
    assert!(shown.contains("unclosed bracket") && !shown.contains("tab"), "{shown}");
}

#[test]
fn files() {
    assert_snapshot!(load(&["no/such/file.yaml".into()], &[]).unwrap_err(), @"
error: failed to read no/such/file.yaml: No such file or directory (os error 2)
  hint: name a YAML file; a relative path is relative to the working directory

1 error in the configuration
");
}

/// A line in flow style holds many keys: the message shows the key or the value itself.
#[test]
fn places_in_flow_style() {
    assert_snapshot!(printed("{train: {lr_schedule: {kind: cosine}, total_steps: null, total_epochs: 2}, filter: {kind: mean_range, low: 0.9, high: 0.1}}", &[&BASE[..], &["train.total_steps=null"]].concat()), @r#"
error: no group mean lies within the bounds of the mean_range filter, (0.9, 0.1)
 --> run.yaml:1:108
  |
1 | ...s: 2}, filter: {kind: mean_range, low: 0.9, high: 0.1}}
  |                                           ^^^
  hint: swap `low` and `high`, or raise `high`

error: `train.lr_schedule.kind: cosine` falls towards the last step, but the number of steps is not known (with a filter, the number of epochs does not determine it)
 --> run.yaml:1:30
  |
1 | {train: {lr_schedule: {kind: cosine}, total_steps: null, total_epochs: 2}, filter: {kind: mean_range, low: 0.9, high: 0....
  |                              ^^^^^^
  hint: set `train.total_steps`, or `train.lr_schedule.kind: constant`

2 errors in the configuration
"#);
    assert_snapshot!([
        show_errors("reward: [{kind: format, weight: 0.5}, {weight: 1}]\nrollout: {n: {a: 1}, top_p: [1,\n  2], temprature: 1}", &[]),
        show_errors("reward:\n  - weight: 0.5\n    kind: format\n  - weight: 1\n", &[]),
        raw("run: {name: a}\nmodel: {}\ntrain: {total_steps: null, ppo_epochs: 2}\n", &[]),
    ].join("\n"), @r"
    error: unknown key `rollout.temprature`
      at run.yaml:3:   2], «temprature»: 1}
      hint: did you mean `rollout.temperature`?
    error: `rollout.n` must be a whole number, not a mapping
      at run.yaml:2: rollout: {n: «{a: 1}», top_p: [1, [explain it]
    error: `rollout.top_p` must be a number, not a list of 2
      at run.yaml:2: rollout: {n: {a: 1}, top_p: «[1,» [explain it]
    error: `reward[0].pattern` is missing: a text
      at run.yaml:1: reward: [{kind: «format», weight: 0.5}, {weight: 1}] [explain it]
    error: `reward[1].kind` is missing: it is one of <every kind of reward>
      at run.yaml:1: reward: [{kind: format, weight: 0.5}, «{weight: 1}»] [explain it]
    error: `reward[0].pattern` is missing: a text
      at run.yaml:3:     kind: «format» [explain it]
    error: `reward[1].kind` is missing: it is one of <every kind of reward>
      at run.yaml:4:   - «weight»: 1 [explain it]
    error: there is no model: neither `model.path` nor `model.init` is set
      at run.yaml:2: «model»: {}
      hint: set a checkpoint with `model.path=DIR`, or describe a new model under `model.init`
    error: there are no training prompts: neither `data.train` nor the task `arithmetic` is set
      hint: set `data.train` to a JSONL or Parquet file, or `data.task: arithmetic`
    error: there is no reward: `reward` is empty, and no task (`data.task`) provides a verifier
      hint: add one, such as `reward: [{kind: math}]`
    error: the length of the run is not set: neither `train.total_steps` nor `train.total_epochs` is given
      at run.yaml:3: train: {total_steps: «null», ppo_epochs: 2}
      hint: set `train.total_steps` or `train.total_epochs`
    ");
}
