//! Model, data and the sizes of batches.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn model_and_data() {
    assert_snapshot!([
        show_errors("model: {init: {}}", &[]),
        show_errors("model: {value_head: true}", &[]),
        show_errors("", &["~model.path", "model.init.num_kv_heads=3"]),
        show_errors("", &["~model.path", "model.init.num_heads=3"]),
        show_errors("", &["~model.path", "model.init.head_dim=33"]),
        show_errors("", &["~model.path", "model.init.max_position_embeddings=100"]),
        show_errors("sft: {steps: 5, target_accuracy: 0.5}", &["data.arithmetic.val_size=0"]),
        show_errors("sft: {batch_size: 8}\ndata: {train: t, columns: {prompt: q}}", &[]),
    ].join("\n"), @r"
    error: `model.path` and `model.init` are both set
      at run.yaml:1: model: {«init»: {}}
      hint: remove one of the two
    error: `model.value_head`: the policy has no value head
      at run.yaml:1: model: {value_head: «true»}
      hint: a critic is a separate model: `preset: ppo`, or `objective.advantage.kind: gae`
    error: `model.init.num_heads` (4) is not divisible by `model.init.num_kv_heads` (3)
      at command line: model.init.num_kv_heads=«3»
      hint: set `model.init.num_kv_heads` to a divisor of 4
    error: `model.init.hidden_size` (128) is not divisible by `model.init.num_heads` (3)
      at command line: model.init.num_heads=«3»
      hint: set `model.init.head_dim`, or change one of the two
    error: the width of a head must be even, but it is 33
      at command line: model.init.head_dim=«33»
      hint: set `model.init.head_dim: 34`
    error: `data.max_prompt_length` (512) and `rollout.max_response_length` (512) make 1024, above `model.init.max_position_embeddings` (100)
      at command line: model.init.max_position_embeddings=«100»
      hint: set `model.init.max_position_embeddings: 1024`
    error: `sft.target_accuracy` is measured on validation prompts, but there are none
      at run.yaml:1: sft: {steps: 5, target_accuracy: «0.5»}
      hint: set `data.arithmetic.val_size` above 0
    warning: `sft.batch_size` has no effect: `sft.steps` is 0
      at run.yaml:1: sft: {batch_size: «8»} [remove it]
    warning: `data.train` has no effect: the task `arithmetic` makes its own prompts
      at run.yaml:2: data: {train: «t», columns: {prompt: q}} [remove it]
    warning: `data.columns.prompt` has no effect: the task has its own columns
      at run.yaml:2: data: {train: t, columns: {prompt: «q»}} [remove it]
    ");
}

#[test]
fn batches() {
    // More prompts than the batch takes are a margin for what the filter drops.
    assert_eq!(show_errors("filter: {}\nschedule: {refill: false}", &["data.gen_batch_size=128"]), "");
    assert_snapshot!([
        show_errors("", &["train.ppo_mini_batch_size=128"]),
        show_errors("", &["train.ppo_mini_batch_size=24"]),
        show_errors("", &["train.ppo_mini_batch_size=16", "train.micro_batch_size=24"]),
        show_errors("filter: {}", &["data.gen_batch_size=4"]),
        show_errors("", &["data.gen_batch_size=128"]),
        show_errors("", &["train.micro_batch_size=8", "train.micro_batch_tokens=10", "train.shuffle_mini_batches=true"]),
    ].join("\n"), @r"
    error: `train.ppo_mini_batch_size` (128) is above `data.train_batch_size` (64); both count prompts
      at command line: train.ppo_mini_batch_size=«128»
      hint: use 64 or less, or null for one update a step
    warning: `data.train_batch_size` (64) is not divisible by `train.ppo_mini_batch_size` (24): the last of 3 updates of a step has 16 prompts
      at command line: train.ppo_mini_batch_size=«24»
      hint: 16 or 32 divide 64
    error: a mini-batch of 16 prompts x 8 trajectories = 128 is not divisible by `train.micro_batch_size` (24)
      at command line: train.micro_batch_size=«24»
      hint: use 16, or remove it: `train.micro_batch_tokens` needs no divisor
    error: 10 rounds of `data.gen_batch_size` (4) are 40 prompts at most, below `data.train_batch_size` (64): no step can ever be filled
      at command line: data.gen_batch_size=«4»
      hint: raise `schedule.max_num_gen_batches` to 16 or more, or `data.gen_batch_size`
    warning: `data.gen_batch_size` has no effect: there is no filter, so every step is one round of `data.train_batch_size` prompts
      at command line: data.gen_batch_size=«128» [remove it]
    warning: `train.micro_batch_tokens` has no effect: `train.micro_batch_size` is set
      at command line: train.micro_batch_tokens=«10» [remove it]
    warning: `train.shuffle_mini_batches` has no effect: a step is one mini-batch
      at command line: train.shuffle_mini_batches=«true» [remove it]
    ");
}
