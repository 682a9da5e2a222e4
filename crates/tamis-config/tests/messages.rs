//! Every message that a configuration can cause, as it is printed.

use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{ConfigErrors, Loaded, import, load, load_sources};

fn try_load(yaml: &str, arguments: &[&str]) -> Result<Loaded, ConfigErrors> {
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    load_sources(&[source], &arguments)
}

/// What is said about a text and overrides over a configuration that is sound.
fn said(yaml: &str, arguments: &[&str]) -> String {
    let base = ["model.path=m", "data.task=arithmetic", "train.total_steps=10"];
    let arguments: Vec<&str> = base.iter().chain(arguments).copied().collect();
    raw(yaml, &arguments)
}

/// What is said about a text and overrides alone.
fn raw(yaml: &str, arguments: &[&str]) -> String {
    match try_load(yaml, arguments) {
        Ok(loaded) => loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"),
        Err(errors) => errors.to_string(),
    }
}

fn imported(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    import(&arguments).map_or_else(|errors| errors.to_string(), |import| import.yaml)
}

#[test]
fn a_sound_configuration_says_nothing() {
    assert_eq!(said("", &[]), "");
}

#[test]
fn all_violations_are_reported_at_once() {
    let yaml = "
rollot: {n: 4}
rollout:
  n: many
  temprature: 0.7
  top_p: 1.5
train:
  ppo_mini_batch_size: 128
  optimizer: {learning_rate: -1}
objective:
\taggregation: token_mean
";
    assert_snapshot!(said(yaml, &["data.train_batch_size=64"]), @r#"
error: invalid YAML: tabs disallowed within this context (block indentation)
  --> run.yaml:11:2
   |
11 |  aggregation: token_mean
   |  ^
  hint: indent with spaces

1 error in the configuration
"#);
    assert_snapshot!(said(&yaml.replace('\t', "  "), &["data.train_batch_size=64", "rollout.m=3"]), @r#"
error: unknown key `rollout.m`
 --> command line
  |
1 | rollout.m=3
  | ^^^^^^^^^
  hint: did you mean `rollout.n`?

error: unknown key `rollot`
 --> run.yaml:2:1
  |
2 | rollot: {n: 4}
  | ^^^^^^
  hint: did you mean `rollout`?

error: unknown key `rollout.temprature`
 --> run.yaml:5:3
  |
5 |   temprature: 0.7
  |   ^^^^^^^^^^
  hint: did you mean `rollout.temperature`?

error: `rollout.n` must be a whole number, not the text "many"
 --> run.yaml:4:6
  |
4 |   n: many
  |      ^^^^
  hint: `tamis config explain rollout.n` says more

error: `rollout.top_p` must be greater than 0 and at most 1, got 1.5
 --> run.yaml:6:10
  |
6 |   top_p: 1.5
  |          ^^^
  hint: `tamis config explain rollout.top_p` says more

error: `objective.aggregation` cannot be `token_mean`: it is one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm, group-token-mean
  --> run.yaml:11:16
   |
11 |   aggregation: token_mean
   |                ^^^^^^^^^^
  hint: did you mean `token-mean`?

error: `train.optimizer.learning_rate` must be greater than 0, got -1
 --> run.yaml:9:30
  |
9 |   optimizer: {learning_rate: -1}
  |                              ^^
  hint: `tamis config explain train.optimizer.learning_rate` says more

error: `train.ppo_mini_batch_size` (128) is above `data.train_batch_size` (64); both count prompts
 --> run.yaml:8:24
  |
8 |   ppo_mini_batch_size: 128
  |                        ^^^
  hint: use 64 or less; null is one update a step

8 errors in the configuration
"#);
}

#[test]
fn syntax() {
    assert_snapshot!(said("run: [1, 2", &[]), @r#"
error: invalid YAML: unclosed bracket '['
 --> run.yaml:1:6
  |
1 | run: [1, 2
  |      ^

1 error in the configuration
"#);
    assert_snapshot!(said("run: {name: a}\nrun: {name: b}\n", &[]), @r#"
error: `run` is given twice, first on line 1
 --> run.yaml:2:1
  |
2 | run: {name: b}
  | ^^^
  hint: remove one of the two

1 error in the configuration
"#);
    assert_snapshot!(said("run:\n  name: a\n---\nrun: {}\n", &[]), @r#"
error: invalid YAML: a configuration is one document, and a second one starts here
 --> run.yaml:3:1
  |
3 | ---
  | ^^^

1 error in the configuration
"#);
    assert_snapshot!(said("[1]: 2\n", &[]), @r#"
error: invalid YAML: a key is a text, not a list or a mapping
 --> run.yaml:1:1
  |
1 | [1]: 2
  | ^

1 error in the configuration
"#);
    assert_snapshot!(said("just a text", &[]), @r#"
error: a configuration is a mapping of sections
 --> run.yaml:1:1
  |
1 | just a text
  | ^^^^^^^^^^^
  hint: for example: `rollout: {n: 8}`

1 error in the configuration
"#);
    assert_snapshot!(said("- 1\n", &[]), @r#"
error: a configuration is a mapping of sections
 --> run.yaml:1:1
  |
1 | - 1
  | ^
  hint: for example: `rollout: {n: 8}`

1 error in the configuration
"#);
    assert_snapshot!(said("run: *nobody\n", &[]), @r#"
error: invalid YAML: while parsing node, found unknown anchor
 --> run.yaml:1:6
  |
1 | run: *nobody
  |      ^

1 error in the configuration
"#);
    assert_snapshot!(said("\u{1}", &[]), @r#"
error: invalid YAML: unexpected character: `\u{1}'
 --> run.yaml:1:1
  |
1 |  
  | ^

1 error in the configuration
"#);
    let laughs = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d \
                  [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e]\n";
    assert_snapshot!(said(laughs, &[]), @r#"
error: invalid YAML: more than 100,000 values: aliases that multiply?
 --> run.yaml:5:29
  |
5 | e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]
  |                             ^^

1 error in the configuration
"#);
}

#[test]
fn files() {
    assert_snapshot!(load(&["no/such/file.yaml".into()], &[]).unwrap_err(), @r#"
error: failed to read no/such/file.yaml: No such file or directory (os error 2)

1 error in the configuration
"#);
}

#[test]
fn types_and_values() {
    assert_snapshot!(said("rollout: {n: 2.5}", &[]), @r#"
error: `rollout.n` must be a whole number, not the number 2.5
 --> run.yaml:1:14
  |
1 | rollout: {n: 2.5}
  |              ^^^
  hint: `tamis config explain rollout.n` says more

1 error in the configuration
"#);
    assert_snapshot!(said("rollout: 3", &[]), @r#"
error: `rollout` must be a section, not the number 3
 --> run.yaml:1:10
  |
1 | rollout: 3
  |          ^
  hint: `tamis config explain rollout` says more

1 error in the configuration
"#);
    assert_snapshot!(said("run: {loggers: console}", &[]), @r#"
error: `run.loggers` must be a list, each one of console, jsonl, tensorboard, not the text "console"
 --> run.yaml:1:16
  |
1 | run: {loggers: console}
  |                ^^^^^^^
  hint: write [console]

1 error in the configuration
"#);
    assert_snapshot!(said("data: {shuffle: maybe}", &[]), @r#"
error: `data.shuffle` must be true or false, not the text "maybe"
 --> run.yaml:1:17
  |
1 | data: {shuffle: maybe}
  |                 ^^^^^
  hint: `tamis config explain data.shuffle` says more

1 error in the configuration
"#);
    assert_snapshot!(said("model: {memory_limit: 4 parsecs}", &[]), @r#"
error: `model.memory_limit` must be a number of bytes, with a unit if wanted (512MiB, 8GiB, 1GB), not the text "4 parsecs"
 --> run.yaml:1:23
  |
1 | model: {memory_limit: 4 parsecs}
  |                       ^^^^^^^^^
  hint: `tamis config explain model.memory_limit` says more

1 error in the configuration
"#);
    assert_snapshot!(said("rollout: {temperature: .nan}", &[]), @r#"
error: `rollout.temperature` must be a number, not the text ".nan"
 --> run.yaml:1:24
  |
1 | rollout: {temperature: .nan}
  |                        ^^^^
  hint: `tamis config explain rollout.temperature` says more

1 error in the configuration
"#);
    assert_snapshot!(said("train: {optimizer: {betas: [0.9]}}", &[]), @r#"
error: `train.optimizer.betas` must be a list of 2, each a number, not a list of 1
 --> run.yaml:1:28
  |
1 | train: {optimizer: {betas: [0.9]}}
  |                            ^
  hint: `tamis config explain train.optimizer.betas` says more

1 error in the configuration
"#);
    assert_snapshot!(said("train: {optimizer: {betas: [0.9, 1.0]}}", &[]), @r#"
error: `train.optimizer.betas` must be from 0 to below 1, got [0.9,1.0]
 --> run.yaml:1:28
  |
1 | train: {optimizer: {betas: [0.9, 1.0]}}
  |                            ^
  hint: `tamis config explain train.optimizer.betas` says more

1 error in the configuration
"#);
    assert_snapshot!(said("data: {overlong_prompts: truncate}", &[]), @r#"
error: `data.overlong_prompts` cannot be `truncate`: it is one of error, drop, left, right, middle
 --> run.yaml:1:26
  |
1 | data: {overlong_prompts: truncate}
  |                          ^^^^^^^^
  hint: `tamis config explain data.overlong_prompts` says more

1 error in the configuration
"#);
    assert_snapshot!(said("objective: {aggregation: token_mean}", &[]), @r#"
error: `objective.aggregation` cannot be `token_mean`: it is one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm, group-token-mean
 --> run.yaml:1:26
  |
1 | objective: {aggregation: token_mean}
  |                          ^^^^^^^^^^
  hint: did you mean `token-mean`?

1 error in the configuration
"#);
    assert_snapshot!(said("schedule: {on_empty_round: 'retry:0'}", &[]), @r#"
error: `schedule.on_empty_round` must be a text: retry, retry:N, skip or error, not the text "retry:0"
 --> run.yaml:1:28
  |
1 | schedule: {on_empty_round: 'retry:0'}
  |                            ^^^^^^^^^
  hint: `tamis config explain schedule.on_empty_round` says more

1 error in the configuration
"#);
    assert_snapshot!(said("data: {train: {a: 1}}", &[]), @r#"
error: `data.train` must be a path or a list of such, not a mapping
 --> run.yaml:1:15
  |
1 | data: {train: {a: 1}}
  |               ^
  hint: `tamis config explain data.train` says more

1 error in the configuration
"#);
    assert_snapshot!(said("validate: {test_freq: often}", &[]), @r#"
error: `validate.test_freq` must be a whole number of steps (0 or negative: never), not the text "often"
 --> run.yaml:1:23
  |
1 | validate: {test_freq: often}
  |                       ^^^^^
  hint: `tamis config explain validate.test_freq` says more

1 error in the configuration
"#);
    assert_snapshot!(said("run: {name: ''}", &[]), @r#"
error: `run.name` must be non-empty, got ""
 --> run.yaml:1:13
  |
1 | run: {name: ''}
  |             ^^
  hint: `tamis config explain run.name` says more

1 error in the configuration
"#);
    assert_snapshot!(said("rollout: {max_num_seqs: 0}", &[]), @r#"
error: `rollout.max_num_seqs` must be at least 1, got 0
 --> run.yaml:1:25
  |
1 | rollout: {max_num_seqs: 0}
  |                         ^
  hint: `tamis config explain rollout.max_num_seqs` says more

1 error in the configuration
"#);
    assert_snapshot!(said("preset: ppo", &[]), @r#"
error: `preset` cannot be `ppo`: it is one of grpo, dapo, dapo_paper, dr_grpo
 --> run.yaml:1:9
  |
1 | preset: ppo
  |         ^^^
  hint: `tamis config explain preset` says more

1 error in the configuration
"#);
}

#[test]
fn rewards() {
    assert_snapshot!(said("reward: [{name: a}]", &[]), @r#"
error: `reward[0].kind` is missing: it is one of exact, number, gsm8k, math, math_dapo, format, think_format, length, cosine, repetition, soft_overlong, command, python
 --> run.yaml:1:10
  |
1 | reward: [{name: a}]
  |          ^
  hint: `tamis config explain reward.kind` says more

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: gsm}]", &[]), @r#"
error: `reward[0].kind` cannot be `gsm`: it is one of exact, number, gsm8k, math, math_dapo, format, think_format, length, cosine, repetition, soft_overlong, command, python
 --> run.yaml:1:17
  |
1 | reward: [{kind: gsm}]
  |                 ^^^
  hint: did you mean `gsm8k`?

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: gsm8k, pattern: x}]", &[]), @r#"
error: unknown key `reward[0].pattern`
 --> run.yaml:1:24
  |
1 | reward: [{kind: gsm8k, pattern: x}]
  |                        ^^^^^^^
  hint: the keys here are kind, name, weight, method, format_score

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: format}]", &[]), @r#"
error: `reward[0].pattern` is missing: a text
 --> run.yaml:1:10
  |
1 | reward: [{kind: format}]
  |          ^
  hint: `tamis config explain reward.pattern` says more

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: command, argv: [./score], timeout: soon}]", &[]), @r#"
error: `reward[0].timeout` must be a duration such as 500ms, 30s, 5m, 1h, or a number of seconds, not the text "soon"
 --> run.yaml:1:52
  |
1 | reward: [{kind: command, argv: [./score], timeout: soon}]
  |                                                    ^^^^
  hint: `tamis config explain reward.timeout` says more

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact, name: score}]", &[]), @r#"
error: a reward cannot be called `score`: tamis computes a number of that name
 --> run.yaml:1:30
  |
1 | reward: [{kind: exact, name: score}]
  |                              ^^^^^
  hint: give each reward a `name` of its own

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact, name: acc}]", &[]), @r#"
warning: `reward[0].name` has no effect: `acc` is the raw outcome of the first verifier anyway; this score is called by its kind
 --> run.yaml:1:30
  |
1 | reward: [{kind: exact, name: acc}]
  |                              ^^^
  hint: remove `reward[0].name`
"#);
    assert_snapshot!(said("rollout: {top_k: -1}", &[]), @r#"
error: `rollout.top_k` must be a whole number, not the number -1
 --> run.yaml:1:18
  |
1 | rollout: {top_k: -1}
  |                  ^^
  hint: `tamis config explain rollout.top_k` says what switches it off

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {}", &["~data.task", "data.train=t", "reward=[{kind: length}]"]), @r#"
warning: the filter looks at `score`, a sum with shaping in it (length): groups that are all wrong but differ in shaping are kept and trained on
 --> run.yaml:1:9
  |
1 | filter: {}
  |         ^
  hint: filter on the raw outcome: `filter.metric: acc`
"#);
    assert_snapshot!(said("reward: [{kind: exact}, {kind: exact}]", &[]), @r#"
error: two rewards are called `exact`
 --> run.yaml:1:25
  |
1 | reward: [{kind: exact}, {kind: exact}]
  |                         ^
  hint: give each reward a `name` of its own

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact, weight: 0}]", &[]), @r#"
error: every weight in `reward` is 0: there is nothing to train on
 --> run.yaml:1:9
  |
1 | reward: [{kind: exact, weight: 0}]
  |         ^
  hint: give the verifier `weight: 1.0`

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact}, {kind: repetition, max_penalty: 0.5}]", &[]), @r#"
error: `reward[1].max_penalty` is 0.5: a penalty is 0 or less
 --> run.yaml:1:57
  |
1 | reward: [{kind: exact}, {kind: repetition, max_penalty: 0.5}]
  |                                                         ^^^
  hint: write -0.5

1 error in the configuration
"#);
    assert_snapshot!(said("reward: [{kind: exact}, {kind: soft_overlong, buffer: 600}]", &[]), @r#"
error: `reward[1].buffer` (600) is above the response limit (512)
 --> run.yaml:1:55
  |
1 | reward: [{kind: exact}, {kind: soft_overlong, buffer: 600}]
  |                                                       ^^^
  hint: use 512 or less

1 error in the configuration
"#);
    assert_snapshot!(raw("", &["model.path=m", "data.train=t.jsonl", "train.total_steps=9", "preset=dapo"]), @r#"
error: there is no reward: `reward` is empty and there is no task that brings one
  hint: add one, such as `reward: [{kind: math}]`

error: there is no metric `acc`: there are score, seq_reward, seq_final_reward, token_level_rewards, length, overlong
  hint: a reward's score is a metric under its `name`; null takes the raw outcome

2 errors in the configuration
"#);
}

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
  hint: the keys here are preset, run, model, data, warm_start, rollout, reward, filter, schedule, objective, train, validate, checkpoint

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
  |                  ^
  hint: `tamis config explain rollout.stop` says more

1 error in the configuration
"#);
}

#[test]
fn model_and_data() {
    let end = "train.total_steps=9";
    assert_snapshot!(raw("", &[end, "data.task=arithmetic"]), @r#"
error: there is no model: neither `model.path` nor `model.init` is set
  hint: name a checkpoint with `model.path=DIR`, or describe a new model under `model.init`

1 error in the configuration
"#);
    assert_snapshot!(said("model: {init: {}}", &[]), @r#"
error: `model.path` and `model.init` are both set
 --> run.yaml:1:15
  |
1 | model: {init: {}}
  |               ^
  hint: remove one of the two

1 error in the configuration
"#);
    assert_snapshot!(said("model: {value_head: true}", &[]), @r#"
error: `model.value_head` is not there yet
 --> run.yaml:1:21
  |
1 | model: {value_head: true}
  |                     ^^^^
  hint: use a group-relative advantage (`objective.advantage.estimator: grpo`)

1 error in the configuration
"#);
    assert_snapshot!(said("", &["~model.path", "model.init.num_kv_heads=3"]), @r#"
error: `model.init.num_heads` (4) is not divisible by `model.init.num_kv_heads` (3)
 --> command line
  |
1 | model.init.num_kv_heads=3
  |                         ^
  hint: `model.init.num_kv_heads` is a divisor of 4

1 error in the configuration
"#);
    assert_snapshot!(said("", &["~model.path", "model.init.num_heads=3"]), @r#"
error: `model.init.hidden_size` (128) is not divisible by `model.init.num_heads` (3)
 --> command line
  |
1 | model.init.num_heads=3
  |                      ^
  hint: set `model.init.head_dim`, or change one of the two

1 error in the configuration
"#);
    assert_snapshot!(said("", &["~model.path", "model.init.head_dim=33"]), @r#"
error: the width of a head must be even, it is 33
 --> command line
  |
1 | model.init.head_dim=33
  |                     ^^
  hint: set `model.init.head_dim: 34`

1 error in the configuration
"#);
    assert_snapshot!(said("", &["~model.path", "model.init.max_position_embeddings=100"]), @r#"
error: `data.max_prompt_length` (512) and `rollout.max_response_length` (512) make 1024, above `model.init.max_position_embeddings` (100)
 --> command line
  |
1 | model.init.max_position_embeddings=100
  |                                    ^^^
  hint: set `model.init.max_position_embeddings: 1024`

1 error in the configuration
"#);
    assert_snapshot!(raw("", &[end, "model.path=m", "reward=[{kind: exact}]"]), @r#"
error: there are no training prompts: neither `data.train` nor the task `arithmetic` is set
  hint: set `data.train` to a JSONL or Parquet file, or `data.task: arithmetic`

1 error in the configuration
"#);
    assert_snapshot!(raw("", &[end, "model.path=m", "data.train=a.jsonl"]), @r#"
error: there is no reward: `reward` is empty and there is no task that brings one
  hint: add one, such as `reward: [{kind: math}]`

1 error in the configuration
"#);
    assert_snapshot!(said("warm_start: {steps: 5, target_accuracy: 0.5}", &["data.arithmetic.val_size=0"]), @r#"
error: `warm_start.target_accuracy` is measured on validation prompts, and there are none
 --> run.yaml:1:41
  |
1 | warm_start: {steps: 5, target_accuracy: 0.5}
  |                                         ^^^
  hint: set `data.val` to a file

1 error in the configuration
"#);
    assert_snapshot!(said("warm_start: {batch_size: 8}\ndata: {train: t, columns: {prompt: q}}", &[]), @r#"
warning: `data.train` has no effect: the task `arithmetic` makes its own prompts
 --> run.yaml:2:15
  |
2 | data: {train: t, columns: {prompt: q}}
  |               ^
  hint: remove `data.train`

warning: `data.columns.prompt` has no effect: the task knows its own columns
 --> run.yaml:2:36
  |
2 | data: {train: t, columns: {prompt: q}}
  |                                    ^
  hint: remove `data.columns.prompt`

warning: `warm_start.batch_size` has no effect: `warm_start.steps` is 0
 --> run.yaml:1:26
  |
1 | warm_start: {batch_size: 8}
  |                          ^
  hint: remove `warm_start.batch_size`
"#);
}

#[test]
fn batches() {
    assert_snapshot!(said("", &["train.ppo_mini_batch_size=128"]), @r#"
error: `train.ppo_mini_batch_size` (128) is above `data.train_batch_size` (64); both count prompts
 --> command line
  |
1 | train.ppo_mini_batch_size=128
  |                           ^^^
  hint: use 64 or less; null is one update a step

1 error in the configuration
"#);
    assert_snapshot!(said("", &["train.ppo_mini_batch_size=24"]), @r#"
warning: `data.train_batch_size` (64) is not divisible by `train.ppo_mini_batch_size` (24): the last of 3 updates of a step has 16 prompts
 --> command line
  |
1 | train.ppo_mini_batch_size=24
  |                           ^^
  hint: 16 or 32 divide 64
"#);
    assert_snapshot!(said("", &["train.ppo_mini_batch_size=16", "train.micro_batch_size=24"]), @r#"
error: a mini-batch of 16 prompts x 8 trajectories = 128 is not divisible by `train.micro_batch_size` (24)
 --> command line
  |
1 | train.micro_batch_size=24
  |                        ^^
  hint: use 16, or remove it: `train.micro_batch_tokens` needs no divisor

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {}", &["data.gen_batch_size=4"]), @r#"
error: 10 rounds of `data.gen_batch_size` (4) are 40 prompts at most, below `data.train_batch_size` (64): no step can ever be filled
 --> command line
  |
1 | data.gen_batch_size=4
  |                     ^
  hint: raise `schedule.max_num_gen_batches` to 16 or more, or `data.gen_batch_size`

1 error in the configuration
"#);
    assert_snapshot!(said("", &["data.gen_batch_size=128"]), @r#"
warning: with one round a step, a step trains on the 128 prompts of `data.gen_batch_size` at most, not on `data.train_batch_size` (64)
 --> command line
  |
1 | data.gen_batch_size=128
  |                     ^^^
  hint: set `data.train_batch_size: 128`, or remove `data.gen_batch_size`
"#);
    assert_snapshot!(said("", &["train.micro_batch_size=8", "train.micro_batch_tokens=10", "train.shuffle_mini_batches=true"]), @r#"
warning: `train.micro_batch_tokens` has no effect: `train.micro_batch_size` is set
 --> command line
  |
1 | train.micro_batch_tokens=10
  |                          ^^
  hint: remove `train.micro_batch_tokens`

warning: `train.shuffle_mini_batches` has no effect: a step is one mini-batch
 --> command line
  |
1 | train.shuffle_mini_batches=true
  |                            ^^^^
  hint: remove `train.shuffle_mini_batches`
"#);
}

#[test]
fn length_and_learning_rate() {
    assert_snapshot!(raw("", &["model.path=m", "data.task=arithmetic"]), @r#"
error: nothing says how long the run is: neither `train.total_steps` nor `train.total_epochs` is set
  hint: set `train.total_steps` or `train.total_epochs`

1 error in the configuration
"#);
    let cosine = ["~train.total_steps", "train.total_epochs=2", "train.lr_schedule.kind=cosine"];
    assert_snapshot!(said("filter: {}", &cosine), @r#"
error: `train.lr_schedule.kind: cosine` falls towards the last step, and the number of steps is not known (with a filter, epochs do not give it)
 --> command line
  |
1 | train.lr_schedule.kind=cosine
  |                        ^^^^^^
  hint: set `train.total_steps`, or `train.lr_schedule.kind: constant`

1 error in the configuration
"#);
    assert_eq!(said("", &cosine), "", "without a filter the number of steps follows from the epochs");
    assert_snapshot!(said("", &["train.lr_schedule.warmup_steps=10"]), @r#"
warning: `train.lr_schedule.warmup_steps` (10) is not below `train.total_steps` (10): the learning rate only rises
 --> command line
  |
1 | train.lr_schedule.warmup_steps=10
  |                                ^^
  hint: use fewer than 10 warm-up steps
"#);
    assert_snapshot!(said("", &["train.lr_schedule.min_ratio=0.1"]), @r#"
warning: `train.lr_schedule.min_ratio` has no effect: the learning rate is constant
 --> command line
  |
1 | train.lr_schedule.min_ratio=0.1
  |                             ^^^
  hint: remove `train.lr_schedule.min_ratio`
"#);
}

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

#[test]
fn schedules() {
    assert_snapshot!(said("schedule: {mode: streaming}", &[]), @r#"
error: `schedule.mode: streaming` is not there yet
 --> run.yaml:1:18
  |
1 | schedule: {mode: streaming}
  |                  ^^^^^^^^^
  hint: use `schedule.mode: rounds`

1 error in the configuration
"#);
    assert_snapshot!(said("schedule: {surplus: carry}\nfilter: {}", &[]), @r#"
error: `schedule.surplus: carry` needs `schedule.max_lag`
 --> run.yaml:1:21
  |
1 | schedule: {surplus: carry}
  |                     ^^^^^
  hint: set `schedule.max_lag: 1`

1 error in the configuration
"#);
    assert_snapshot!(said("schedule: {max_lag: 2}\nfilter: {}", &[]), @r#"
warning: `schedule.max_lag` has no effect: `schedule.surplus` is `discard`
 --> run.yaml:1:21
  |
1 | schedule: {max_lag: 2}
  |                     ^
  hint: remove `schedule.max_lag`
"#);
    assert_snapshot!(said("schedule: {refill: false, max_num_gen_batches: 3, on_limit: skip}\nfilter: {}", &[]), @r#"
warning: `schedule.max_num_gen_batches` has no effect: `schedule.refill` is false, so every step is one round
 --> run.yaml:1:48
  |
1 | schedule: {refill: false, max_num_gen_batches: 3, on_limit: skip}
  |                                                ^
  hint: remove `schedule.max_num_gen_batches`

warning: `schedule.on_limit` has no effect: `schedule.refill` is false, so every step is one round
 --> run.yaml:1:61
  |
1 | schedule: {refill: false, max_num_gen_batches: 3, on_limit: skip}
  |                                                             ^^^^
  hint: remove `schedule.on_limit`
"#);
    assert_snapshot!(said("schedule: {max_num_gen_batches: 3, on_empty_round: skip}", &[]), @r#"
warning: `schedule.max_num_gen_batches` has no effect: there is no filter, so every step is one round
 --> run.yaml:1:33
  |
1 | schedule: {max_num_gen_batches: 3, on_empty_round: skip}
  |                                 ^
  hint: remove `schedule.max_num_gen_batches`

warning: `schedule.on_empty_round` has no effect: there is no filter, so every step is one round
 --> run.yaml:1:52
  |
1 | schedule: {max_num_gen_batches: 3, on_empty_round: skip}
  |                                                    ^^^^
  hint: remove `schedule.on_empty_round`
"#);
}

#[test]
fn objectives() {
    assert_snapshot!(said("objective: {kl: {estimator: k1, coefficient: 0.1}}\nmodel: {reference: r}", &[]), @r#"
warning: `objective.kl.estimator` has no effect: `objective.kl.in` is `none`
 --> run.yaml:1:29
  |
1 | objective: {kl: {estimator: k1, coefficient: 0.1}}
  |                             ^^
  hint: remove `objective.kl.estimator`

warning: `objective.kl.coefficient` has no effect: `objective.kl.in` is `none`
 --> run.yaml:1:46
  |
1 | objective: {kl: {estimator: k1, coefficient: 0.1}}
  |                                              ^^^
  hint: remove `objective.kl.coefficient`

warning: `model.reference` has no effect: `objective.kl.in` is `none`
 --> run.yaml:2:20
  |
2 | model: {reference: r}
  |                    ^
  hint: remove `model.reference`
"#);
    assert_snapshot!(said("objective: {kl: {in: loss, coefficient: 0}}", &[]), @r#"
warning: `objective.kl.in: loss` with `objective.kl.coefficient: 0`: the reference is loaded and run for nothing but its metric
 --> run.yaml:1:41
  |
1 | objective: {kl: {in: loss, coefficient: 0}}
  |                                         ^
  hint: set `objective.kl.in: none`
"#);
    assert_snapshot!(said("objective: {kl: {in: loss, adaptive: {target: 0.1}}}", &[]), @r#"
error: `objective.kl.adaptive` adapts the coefficient of a KL in the reward, and it is `in: loss`
 --> run.yaml:1:38
  |
1 | objective: {kl: {in: loss, adaptive: {target: 0.1}}}
  |                                      ^
  hint: set `objective.kl.in: reward`

1 error in the configuration
"#);
    assert_snapshot!(said("objective: {loss_scale_factor: 100, advantage: {norm_by_std: false, ddof: 0}}", &[]), @r#"
warning: `objective.advantage.ddof` has no effect: advantages are not divided by a deviation
 --> run.yaml:1:75
  |
1 | objective: {loss_scale_factor: 100, advantage: {norm_by_std: false, ddof: 0}}
  |                                                                           ^
  hint: remove `objective.advantage.ddof`

warning: `objective.loss_scale_factor` has no effect: only the aggregation `seq-mean-token-sum-norm` has a divisor
 --> run.yaml:1:32
  |
1 | objective: {loss_scale_factor: 100, advantage: {norm_by_std: false, ddof: 0}}
  |                                ^^^
  hint: remove `objective.loss_scale_factor`
"#);
    assert_snapshot!(said("objective: {loss: {dual_clip: 1}}", &[]), @r#"
error: `objective.loss.dual_clip` must be greater than 1, got 1
 --> run.yaml:1:31
  |
1 | objective: {loss: {dual_clip: 1}}
  |                               ^
  hint: `tamis config explain objective.loss.dual_clip` says more

1 error in the configuration
"#);
}

#[test]
fn validation() {
    let files = ["~data.task", "data.train=t.jsonl", "reward=[{kind: exact}]"];
    assert_snapshot!(said("validate: {test_freq: 5}", &files), @r#"
error: `validate.test_freq` is set and there are no validation prompts
 --> run.yaml:1:23
  |
1 | validate: {test_freq: 5}
  |                       ^
  hint: set `data.val` to a file

1 error in the configuration
"#);
    assert_snapshot!(said("validate: {before_train: true, n: 4}", &files), @r#"
warning: `validate.before_train` has no effect: there are no validation prompts
 --> run.yaml:1:26
  |
1 | validate: {before_train: true, n: 4}
  |                          ^^^^
  hint: remove `validate.before_train`

warning: `validate.n` has no effect: there are no validation prompts
 --> run.yaml:1:35
  |
1 | validate: {before_train: true, n: 4}
  |                                   ^
  hint: remove `validate.n`

warning: `validate.n` is 4 with `validate.temperature: 0`: greedy samples of one prompt are all the same
 --> run.yaml:1:35
  |
1 | validate: {before_train: true, n: 4}
  |                                   ^
  hint: set `validate.temperature` above 0, or `validate.n: 1`
"#);
    assert_snapshot!(said("validate: {metrics: ['mean@k', 'pass@k', 'maj@k']}", &[]), @r#"
warning: `validate.metrics` has pass@k, maj@k, which with `validate.n: 1` are mean@1
 --> run.yaml:1:21
  |
1 | validate: {metrics: ['mean@k', 'pass@k', 'maj@k']}
  |                     ^
  hint: raise `validate.n`
"#);
    assert_snapshot!(said("validate: {n: 4}", &[]), @r#"
warning: `validate.n` is 4 with `validate.temperature: 0`: greedy samples of one prompt are all the same
 --> run.yaml:1:15
  |
1 | validate: {n: 4}
  |               ^
  hint: set `validate.temperature` above 0, or `validate.n: 1`
"#);
    assert_snapshot!(said("checkpoint: {keep_best: {}}", &[]), @r#"
error: `checkpoint.keep_best` compares validation figures, and `validate.test_freq` is off
 --> run.yaml:1:25
  |
1 | checkpoint: {keep_best: {}}
  |                         ^
  hint: set `validate.test_freq`

1 error in the configuration
"#);
}

#[test]
fn foreign_keys() {
    assert_snapshot!(said("algorithm: {filter_groups: {enable: true}}\nworker: {rollout: {n: 4}}", &[]), @r#"
error: unknown key `algorithm`
 --> run.yaml:1:1
  |
1 | algorithm: {filter_groups: {enable: true}}
  | ^^^^^^^^^
  hint: this is a key of verl: pass it as `key=value` on the command line, or convert the whole file with `tamis config import`

error: unknown key `worker`
 --> run.yaml:2:1
  |
2 | worker: {rollout: {n: 4}}
  | ^^^^^^
  hint: this is a key of EasyR1: pass it as `key=value` on the command line, or convert the whole file with `tamis config import`

2 errors in the configuration
"#);
    assert_snapshot!(said("", &["algorithm.filter_groups.enabled=True"]), @r#"
error: `algorithm.filter_groups.enabled` is no key of verl that tamis knows
 --> command line
  |
1 | algorithm.filter_groups.enabled=True
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: did you mean `algorithm.filter_groups.enable`?

1 error in the configuration
"#);
    assert_snapshot!(said("", &["algorithm.filter_groups.enable=yes"]), @r#"
error: `algorithm.filter_groups.enable` of verl must be true or false, not `yes`
 --> command line, verl key
  |
1 | algorithm.filter_groups.enable=yes
  |                                ^^^
  hint: `tamis config explain algorithm.filter_groups.enable` says what becomes of it

1 error in the configuration
"#);
    assert_snapshot!(said("", &["algorithm.adv_estimator=gae", "algorithm.keep_neg_ratio=0.5"]), @r#"
error: `algorithm.keep_neg_ratio=0.5` of EasyR1 cannot be followed: dropping single trajectories of a group is not there: groups are kept or dropped whole
 --> command line, EasyR1 key
  |
1 | algorithm.keep_neg_ratio=0.5
  |                          ^^^
  hint: `tamis config explain algorithm.keep_neg_ratio` says what becomes of it

error: `algorithm.adv_estimator=gae` of EasyR1 cannot be followed: it needs a critic, which is not there yet: use grpo
 --> command line, EasyR1 key
  |
1 | algorithm.adv_estimator=gae
  |                         ^^^
  hint: `tamis config explain algorithm.adv_estimator` says what becomes of it

2 errors in the configuration
"#);
    assert_snapshot!(said("", &["actor_rollout_ref.actor.loss_agg_mode=token-sum"]), @r#"
error: `objective.aggregation` cannot be `token-sum`: it is one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm, group-token-mean
 --> command line, verl key
  |
1 | actor_rollout_ref.actor.loss_agg_mode=token-sum
  |                                       ^^^^^^^^^
  hint: did you mean `token-mean`?

1 error in the configuration
"#);
    assert_snapshot!(said("", &["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"]), @r#"
error: `actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1` of verl cannot be followed: the number of steps is not known, and with a filter it cannot be: give the warm-up in steps
 --> command line, verl key
  |
1 | actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1
  |                                                     ^^^
  hint: `tamis config explain actor_rollout_ref.actor.optim.lr_warmup_steps_ratio` says what becomes of it

1 error in the configuration
"#);
    assert_snapshot!(said("", &["per_device_train_batch_size=3", "loss_type=sapo"]), @r#"
error: `per_device_train_batch_size=3` of TRL cannot be followed: 3 completions a generation and 3 an update are not whole groups of 8 (num_generations); a group is never split here
 --> command line, TRL key
  |
1 | per_device_train_batch_size=3
  |                             ^
  hint: `tamis config explain per_device_train_batch_size` says what becomes of it

error: `loss_type=sapo` of TRL cannot be followed: the losses are grpo, bnpo, dr_grpo and dapo
 --> command line, TRL key
  |
1 | loss_type=sapo
  |           ^^^^
  hint: `tamis config explain loss_type` says what becomes of it

2 errors in the configuration
"#);
    assert_snapshot!(said("", &["data.val_batchsize=3"]), @r#"
error: unknown key `data.val_batchsize`
 --> command line
  |
1 | data.val_batchsize=3
  | ^^^^^^^^^^^^^^^^^^
  hint: the keys here are task, arithmetic, train, val, train_batch_size, gen_batch_size, max_prompt_length, overlong_prompts, bad_rows, shuffle, check_gold, columns, chat_template_kwargs

1 error in the configuration
"#);
    assert_snapshot!(imported(&["rollout", "--config-name=x", "python3", "-m", "verl.trainer.main_ppo"]), @r#"
error: `rollout` is neither `key=value` nor a YAML file
 --> command line
  |
1 | rollout
  | ^
  hint: for example: tamis config import -- data.train_batch_size=512

1 error in the configuration
"#);
    assert_snapshot!(imported(&["critic.model.path=x", "trainer.nnodes=1", "nope=3", "algorithm.use_kl_in_reward=True", "actor_rollout_ref.actor.use_kl_loss=True"]), @r#"
error: `nope` is no key of verl that tamis knows
 --> command line
  |
1 | nope=3
  | ^^^^
  hint: remove it, and say what it was for in a native key

error: `algorithm.use_kl_in_reward=True` of verl cannot be followed: use_kl_loss is on too, and the KL enters in one place
 --> command line, verl key
  |
1 | algorithm.use_kl_in_reward=True
  |                            ^^^^
  hint: `tamis config explain algorithm.use_kl_in_reward` says what becomes of it

2 errors in the configuration
"#);
}

#[test]
fn pool_filters() {
    assert_snapshot!(said("filter: {kind: top_p}\nschedule: {refill: false}", &[]), @r#"
error: `filter.kind: top_p` needs `filter.p`
 --> run.yaml:1:16
  |
1 | filter: {kind: top_p}
  |                ^^^^^
  hint: set `filter.p: 0.9`

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: min_p}\nschedule: {refill: false}", &[]), @r#"
error: `filter.kind: min_p` needs `filter.p`
 --> run.yaml:1:16
  |
1 | filter: {kind: min_p}
  |                ^^^^^
  hint: set `filter.p: 0.5`

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: top_k}\nschedule: {refill: false}", &[]), @r#"
error: `filter.kind: top_k` needs `filter.k` or `filter.fraction`
 --> run.yaml:1:16
  |
1 | filter: {kind: top_k}
  |                ^^^^^
  hint: set `filter.fraction: 0.5`

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: top_k, k: 2, fraction: 0.5}\nschedule: {refill: false}", &[]), @r#"
error: `filter.k` and `filter.fraction` are both set
 --> run.yaml:1:26
  |
1 | filter: {kind: top_k, k: 2, fraction: 0.5}
  |                          ^
  hint: remove one of the two

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: within_group, k: 1}", &[]), @r#"
error: `filter.kind: within_group` with `filter.k: 1` leaves one member of each group, which has nothing to be compared with
 --> run.yaml:1:33
  |
1 | filter: {kind: within_group, k: 1}
  |                                 ^
  hint: set `filter.k: 2` or more

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: percentile, high: 25}\nschedule: {refill: false}", &[]), @r#"
error: `filter.low` (0) and `filter.high` (25) are shares of a ranking, from 0 to 1
 --> run.yaml:1:34
  |
1 | filter: {kind: percentile, high: 25}
  |                                  ^^
  hint: `low: 0, high: 0.25` is the best quarter

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: top_p, p: 0.5, mass: variance, score: mean}\nschedule: {refill: false}", &[]), @r#"
error: `filter.mass: variance` is the square of the deviation, and `filter.score` is `mean`
 --> run.yaml:1:37
  |
1 | filter: {kind: top_p, p: 0.5, mass: variance, score: mean}
  |                                     ^^^^^^^^
  hint: use `filter.score: deviation`, or `filter.mass: linear`

1 error in the configuration
"#);
    assert_snapshot!(said("filter: {kind: top_p, p: 0.5, slack: 0.1, tolerance: 1.0}\nschedule: {refill: false}", &[]), @r#"
warning: `filter.tolerance` has no effect: the filter's kind is `top_p`
 --> run.yaml:1:54
  |
1 | filter: {kind: top_p, p: 0.5, slack: 0.1, tolerance: 1.0}
  |                                                      ^^^
  hint: remove `filter.tolerance`

warning: `filter.slack` has no effect: the mass is `softmax`
 --> run.yaml:1:38
  |
1 | filter: {kind: top_p, p: 0.5, slack: 0.1, tolerance: 1.0}
  |                                      ^^^
  hint: remove `filter.slack`
"#);
    assert_snapshot!(said("filter: {kind: top_p, p: 0.5, mass: linear, temperature: 0.1, score: mean, ddof: 1}\nschedule: {refill: false}", &[]), @r#"
warning: `filter.temperature` has no effect: the mass is not `softmax`
 --> run.yaml:1:58
  |
1 | filter: {kind: top_p, p: 0.5, mass: linear, temperature: 0.1, score: mean, ddof: 1}
  |                                                          ^^^
  hint: remove `filter.temperature`

warning: `filter.ddof` has no effect: the filter's score is neither deviation nor variance
 --> run.yaml:1:82
  |
1 | filter: {kind: top_p, p: 0.5, mass: linear, temperature: 0.1, score: mean, ddof: 1}
  |                                                                                  ^
  hint: remove `filter.ddof`
"#);
    assert_snapshot!(said("filter: {kind: top_k, k: 2}", &[]), @r#"
warning: `filter.kind: top_k` selects among the groups of a round, and `schedule.refill` repeats rounds until 64 groups are kept: each round is selected by itself
 --> run.yaml:1:16
  |
1 | filter: {kind: top_k, k: 2}
  |                ^^^^^
  hint: `schedule.refill: false` trains on what one round leaves, as RAGEN does
"#);
    assert_snapshot!(said("filter: {kind: top_k, k: 2}\nschedule: {refill: false}", &["rollout.n=1", "objective.advantage.singleton=raw"]), @r#"
warning: `rollout.n` is 1: a group of one has nothing to be compared with, the advantage is the reward itself
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more

warning: `rollout.n` is 1: a group of one has no deviation, so the filter's ranking says nothing
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more
"#);
    assert_snapshot!(said("filter: {kind: within_group, k: 2}", &["rollout.n=1", "objective.advantage.singleton=raw"]), @r#"
warning: `rollout.n` is 1: a group of one has nothing to be compared with, the advantage is the reward itself
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more

warning: `rollout.n` is 1: there is nothing to choose from within a group
 --> command line
  |
1 | rollout.n=1
  |           ^
  hint: set `rollout.n` to 4 or more
"#);
    assert_eq!(said("filter: {kind: top_p, p: 0.9}\nschedule: {refill: false}", &[]), "");
    assert_eq!(said("filter: {kind: within_group, fraction: 0.5}", &[]), "");
}

#[test]
fn early_stops() {
    assert_snapshot!(said("train: {early_stop: {low_success: {}}}", &["data.arithmetic.val_size=0", "validate.test_freq=0"]), @r#"
error: `train.early_stop.low_success` looks at validation, and there is none
 --> run.yaml:1:35
  |
1 | train: {early_stop: {low_success: {}}}
  |                                   ^
  hint: set `data.val` and `validate.test_freq`

1 error in the configuration
"#);
    assert_snapshot!(said("train: {early_stop: {reward_collapse: {share: 1.0}}}", &[]), @r#"
error: `train.early_stop.reward_collapse.share` is 1: half of all runs would stop at once
 --> run.yaml:1:47
  |
1 | train: {early_stop: {reward_collapse: {share: 1.0}}}
  |                                               ^^^
  hint: use 0.1

1 error in the configuration
"#);
    assert_snapshot!(said("train: {early_stop: {reward_collapse: {window: 0}}}", &[]), @r#"
error: `train.early_stop.reward_collapse.window` must be at least 1, got 0
 --> run.yaml:1:48
  |
1 | train: {early_stop: {reward_collapse: {window: 0}}}
  |                                                ^
  hint: `tamis config explain train.early_stop.reward_collapse.window` says more

1 error in the configuration
"#);
    assert_eq!(said("train: {early_stop: {reward_collapse: {}, empty_steps: {patience: 3}}}", &[]), "");
}
