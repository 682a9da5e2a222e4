#!/usr/bin/env bash
# DAPO as people of verl write it: dynamic sampling, asymmetric clipping, a token mean, a soft penalty for
# overlong answers. `bash run_dapo.sh` starts verl, `tamis train run_dapo.sh` a run of tamis.
set -xeuo pipefail

project_name=${PROJECT_NAME:-DAPO}
exp_name=${EXP_NAME:-sums}
MODEL_PATH=${MODEL_PATH:-$HOME/models/Qwen2.5-0.5B-Instruct}
TRAIN_FILE=${TRAIN_FILE:-$HOME/data/sums_train.jsonl}
TEST_FILE=${TEST_FILE:-$HOME/data/sums_val.jsonl}
NNODES=${NNODES:-1}
NGPUS=${NGPUS:-8}

max_prompt_length=${MAX_PROMPT:-256}
max_response_length=${MAX_RESPONSE:-1024}
overlong_buffer_len=$((max_response_length / 4))
train_prompt_bsz=${BATCH:-64}
gen_prompt_bsz=$((train_prompt_bsz * 3))
train_prompt_mini_bsz=$((train_prompt_bsz / 2))
n_resp_per_prompt=${N:-16}
actor_max_tokens=$(((max_prompt_length + max_response_length) * 2))
infer_max_tokens=$((actor_max_tokens * 2))

DATA=(
    data.train_files="$TRAIN_FILE"
    data.val_files="$TEST_FILE"
    data.prompt_key=prompt
    data.truncation='left'
    data.shuffle=True
    data.filter_overlong_prompts=True
    data.max_prompt_length=$max_prompt_length
    data.max_response_length=$max_response_length
    data.gen_batch_size=$gen_prompt_bsz
    data.train_batch_size=$train_prompt_bsz
)

ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False
    algorithm.kl_ctrl.kl_coef=0.0
    algorithm.filter_groups.enable=True
    algorithm.filter_groups.metric=acc
    algorithm.filter_groups.max_num_gen_batches=10
)

ACTOR=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.kl_loss_coef=0.0
    actor_rollout_ref.actor.clip_ratio_low=0.2
    actor_rollout_ref.actor.clip_ratio_high=0.28
    actor_rollout_ref.actor.clip_ratio_c=10.0
    actor_rollout_ref.actor.loss_agg_mode=token-mean
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.grad_clip=1.0
    actor_rollout_ref.actor.ppo_epochs=1
    actor_rollout_ref.actor.ppo_mini_batch_size=$train_prompt_mini_bsz
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$actor_max_tokens
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=1
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.optim.lr_warmup_steps=10
    actor_rollout_ref.actor.optim.weight_decay=0.1
    actor_rollout_ref.actor.strategy=fsdp
    actor_rollout_ref.actor.fsdp_config.param_offload=True
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
    actor_rollout_ref.actor.fsdp_config.fsdp_size=-1
)

ROLLOUT=(
    actor_rollout_ref.rollout.name="${ROLLOUT_NAME:-vllm}"
    actor_rollout_ref.rollout.mode=async
    actor_rollout_ref.rollout.n=$n_resp_per_prompt
    actor_rollout_ref.rollout.temperature=1.0
    actor_rollout_ref.rollout.top_p=1.0
    actor_rollout_ref.rollout.top_k=-1
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.enable_chunked_prefill=True
    actor_rollout_ref.rollout.max_num_batched_tokens=$((max_prompt_length + max_response_length))
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$infer_max_tokens
    actor_rollout_ref.rollout.calculate_log_probs=True
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7
    actor_rollout_ref.rollout.val_kwargs.top_k=-1
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.n=1
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=$infer_max_tokens
    actor_rollout_ref.ref.fsdp_config.param_offload=True
    actor_rollout_ref.ref.ulysses_sequence_parallel_size=1
)

REWARD=(
    reward_model.reward_manager=dapo
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=$overlong_buffer_len
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
    +reward_model.reward_kwargs.overlong_buffer_cfg.log=False
    +reward_model.reward_kwargs.max_resp_len=$max_response_length
)

# Everything else of the script runs as it is.
mkdir -p "ckpts/$project_name"

python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" "${ALGORITHM[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${REWARD[@]}" \
    trainer.project_name="$project_name" \
    trainer.experiment_name="$exp_name" \
    trainer.logger='["console"]' \
    trainer.nnodes="$NNODES" \
    trainer.n_gpus_per_node="$NGPUS" \
    trainer.test_freq=5 \
    trainer.save_freq=10 \
    trainer.total_epochs=1 \
    trainer.resume_mode=auto "$@"
