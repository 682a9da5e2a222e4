//! Rounds, limits and surplus.

use insta::assert_snapshot;

use crate::said;

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
    assert_snapshot!(said("schedule: {refill: false}\nfilter: {}\ndata: {gen_batch_size: 16}", &[]), @r#"
error: `schedule.refill` is false, so every step is one round of 16 prompts (`data.gen_batch_size`), which can never fill the 64 of `data.train_batch_size`
 --> run.yaml:3:24
  |
3 | data: {gen_batch_size: 16}
  |                        ^^
  hint: set `data.gen_batch_size: 64` or more, or `data.train_batch_size: 16`

1 error in the configuration
"#);
    assert_snapshot!(said("schedule: {refill: false}\nfilter: {}", &["data.gen_batch_size=63"]), @r#"
error: `schedule.refill` is false, so every step is one round of 63 prompts (`data.gen_batch_size`), which can never fill the 64 of `data.train_batch_size`
 --> command line
  |
1 | data.gen_batch_size=63
  |                     ^^
  hint: set `data.gen_batch_size: 64` or more, or `data.train_batch_size: 63`

1 error in the configuration
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
