//! Keys that mean something together with others: none of them is told to have no effect where it has one.

use tamis_config::foreign::{Becomes, Owner};
use tamis_config::{ForeignOutcome, Import};

use crate::{converted, import_errors, loaded};

const KL_IN_REWARD: &str = "algorithm.use_kl_in_reward=True";
const ACTOR: &str = "actor_rollout_ref.actor";

/// Every key of a rule of verl, with a value that is not its default and the keys without which it is read by
/// nobody.
fn verl_keys() -> Vec<(String, Vec<String>)> {
    let mut keys: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |argument: &str, others: &[&str]| {
        keys.push((argument.to_owned(), others.iter().map(|&other| other.to_owned()).collect()));
    };
    let loss = |mode: &str| format!("{ACTOR}.policy_loss.loss_mode={mode}");
    add("data.truncation=left", &[]);
    add("data.filter_overlong_prompts=True", &[]);
    add(&format!("{ACTOR}.ppo_micro_batch_size=4"), &[]);
    add(&format!("{ACTOR}.ppo_micro_batch_size_per_gpu=4"), &[]);
    let tokens = format!("{ACTOR}.ppo_max_token_len_per_gpu=4096");
    let dynamic = format!("{ACTOR}.use_dynamic_bsz=True");
    add(&dynamic, &[&tokens]);
    add(&tokens, &[&dynamic]);
    let (low, high) = (format!("{ACTOR}.clip_ratio_low=null"), format!("{ACTOR}.clip_ratio_high=null"));
    add(&format!("{ACTOR}.clip_ratio=0.3"), &[&low, &high]);
    add(&loss("gspo"), &[]);
    for (name, mode) in [
        ("policy_loss.clip_cov_ratio=0.001", "clip_cov"),
        ("policy_loss.clip_cov_lb=0.5", "clip_cov"),
        ("policy_loss.clip_cov_ub=4.0", "clip_cov"),
        ("policy_loss.kl_cov_ratio=0.002", "kl_cov"),
        ("policy_loss.ppo_kl_coef=1.0", "kl_cov"),
        ("policy_loss.dro_beta=0.5", "dro"),
        ("tau_pos=1.5", "sapo"),
        ("tau_neg=1.5", "sapo"),
    ] {
        add(&format!("{ACTOR}.{name}"), &[&loss(mode)]);
    }
    add(&format!("{ACTOR}.use_token_level_loss=False"), &[]);
    let in_loss = format!("{ACTOR}.use_kl_loss=True");
    add(&in_loss, &[]);
    add(&format!("{ACTOR}.kl_loss_coef=0.01"), &[&in_loss]);
    add(&format!("{ACTOR}.kl_loss_type=kl"), &[&in_loss]);
    add(KL_IN_REWARD, &[]);
    add("algorithm.kl_penalty=low_var_kl", &[KL_IN_REWARD]);
    add("algorithm.kl_ctrl.kl_coef=0.01", &[KL_IN_REWARD]);
    let adaptive = "algorithm.kl_ctrl.type=adaptive";
    add(adaptive, &[KL_IN_REWARD]);
    add("algorithm.kl_ctrl.horizon=500", &[KL_IN_REWARD, adaptive]);
    add("algorithm.kl_ctrl.target_kl=0.5", &[KL_IN_REWARD, adaptive]);
    for optimizer in [&format!("{ACTOR}.optim"), "critic.optim"] {
        let gae: &[&str] = if optimizer == "critic.optim" { &["algorithm.adv_estimator=gae"] } else { &[] };
        let steps = ["trainer.total_training_steps=100"];
        add(&format!("{optimizer}.lr_warmup_steps=10"), gae);
        add(&format!("{optimizer}.lr_warmup_steps_ratio=0.1"), &[gae, &steps].concat());
        add(&format!("{optimizer}.warmup_style=cosine"), &[gae, &steps].concat());
        add(&format!("{optimizer}.lr_scheduler_type=cosine"), &[gae, &steps].concat());
        add(&format!("{optimizer}.min_lr_ratio=0.1"), &[gae, &steps].concat());
        add(&format!("{optimizer}.lr_decay_style=linear"), &[gae, &steps].concat());
        add(&format!("{optimizer}.clip_grad=0.5"), gae);
        add(&format!("{optimizer}.eps=1e-6"), gae);
    }
    add("actor_rollout_ref.rollout.top_k=50", &[]);
    let sampled = "actor_rollout_ref.rollout.val_kwargs.do_sample=True";
    let temperature = "actor_rollout_ref.rollout.val_kwargs.temperature=0.7";
    add(sampled, &[temperature]);
    add(temperature, &[sampled]);
    add("trainer.validation_data_dir=samples", &[]);
    add("algorithm.adv_estimator=rloo", &[]);
    add("algorithm.norm_adv_by_std_in_grpo=False", &["algorithm.adv_estimator=grpo"]);
    let filter = "algorithm.filter_groups.enable=True";
    add(filter, &[]);
    add("algorithm.filter_groups.metric=acc", &[filter]);
    add("algorithm.filter_groups.max_num_gen_batches=5", &[filter]);
    add("algorithm.filter_groups.max_inflight_gen_batches=2", &[filter]);
    let corrected = |rest: &str| format!("algorithm.rollout_correction.{rest}");
    let (weights, rejections) = (corrected("rollout_is=token"), corrected("rollout_rs=seq_mean_k3"));
    let bounds = corrected("rollout_rs_threshold='0.01'");
    add(&weights, &[]);
    add(&corrected("rollout_is_threshold=3.0"), &[&weights]);
    add(&corrected("rollout_is_batch_normalize=True"), &[&weights]);
    add(&rejections, &[&bounds]);
    add(&bounds, &[&rejections]);
    let bypass = corrected("bypass_mode=True");
    add(&bypass, &[]);
    add(&corrected("loss_type=reinforce"), &[&bypass, &weights]);
    for prefix in ["reward.custom_reward_function", "custom_reward_function"] {
        let path = format!("{prefix}.path=score.py");
        add(&path, &[]);
        add(&format!("{prefix}.name=mine"), &[&path]);
        add(&format!("{prefix}.reward_kwargs.scale=2"), &[&path]);
    }
    let rank = "actor_rollout_ref.model.lora_rank=8";
    let without_critic = "algorithm.adv_estimator=grpo";
    add(rank, &[without_critic]);
    add("actor_rollout_ref.model.lora_alpha=8", &[rank, without_critic]);
    add("actor_rollout_ref.model.target_modules=[q_proj]", &[rank, without_critic]);
    let torch = "learner.backend=torch";
    add("actor_rollout_ref.model.override_config.attn_implementation=sdpa", &[torch]);
    add("actor_rollout_ref.ref.fsdp_config.param_offload=True", &[torch]);
    for (switch, path) in [
        ("reward.reward_model.enable=True", "reward.reward_model.model_path=rm"),
        ("reward_model.enable=True", "reward_model.model.path=rm"),
    ] {
        add(switch, &[path]);
        add(path, &[switch]);
        for tuned in ["micro_batch_size=4", "micro_batch_size_per_gpu=4", "max_length=64"] {
            add(&format!("reward_model.{tuned}"), &[switch, path]);
        }
    }
    let function = "reward.custom_reward_function.path=score.py";
    add("reward.num_workers=4", &[function]);
    add("reward_model.num_workers=4", &[function]);
    for prefix in [
        "reward.reward_kwargs.overlong_buffer_cfg",
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        "reward_model.overlong_buffer",
        "custom_reward_function.overlong_buffer",
    ] {
        let switch = format!("{prefix}.enable=True");
        let length = format!("{prefix}.len=64");
        let others = ["reward_model.reward_manager=dapo", &switch];
        add(&switch, &["reward_model.reward_manager=dapo", &length]);
        add(&length, &others);
        add(&format!("{prefix}.penalty_factor=0.5"), &[&others[..], &[&length]].concat());
    }
    for limit in [
        "reward.reward_kwargs.max_resp_len",
        "reward_model.reward_kwargs.max_resp_len",
        "reward_model.max_resp_len",
    ] {
        add(
            &format!("{limit}=256"),
            &["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=64"],
        );
    }
    add(&format!("{ACTOR}.tis_imp_ratio_cap=2.0"), &[]);
    let engine = "actor_rollout_ref.rollout.name=vllm";
    add(engine, &[]);
    add("trainer.n_gpus_per_node=4", &[engine]);
    add("trainer.nnodes=2", &["learner.backend=torch"]);
    let separate = "trainer.v1.trainer_mode=separate_async";
    add(separate, &[]);
    add("trainer.v1.sampler.max_off_policy_threshold=4", &[separate]);
    add("trainer.v1.sampler.max_off_policy_strategy=wait", &[separate]);
    let own = "actor_rollout_ref.rollout.n_gpus_per_node=4";
    add(own, &[engine, separate]);
    add("actor_rollout_ref.rollout.nnodes=2", &[engine, separate, own]);
    let shared = [engine, "learner.backend=torch", "trainer.n_gpus_per_node=4"];
    add("actor_rollout_ref.rollout.free_cache_engine=False", &shared);
    for option in [
        "tensor_model_parallel_size=4",
        "gpu_memory_utilization=0.8",
        "max_num_batched_tokens=8192",
        "max_model_len=4096",
        "enforce_eager=True",
        "enable_chunked_prefill=False",
        "enable_prefix_caching=False",
        "dtype=bfloat16",
        "quantization=fp8",
        "scheduling_policy=priority",
        "engine_kwargs.vllm.swap_space=8",
    ] {
        add(&format!("actor_rollout_ref.rollout.{option}"), &[engine]);
    }
    add("data.image_key=pictures", &[]);
    add("actor_rollout_ref.actor.freeze_vision_tower=True", &["actor_rollout_ref.rollout.name=vllm"]);
    add("trainer.logger=[console]", &[]);
    add("trainer.remove_previous_ckpt_in_save=True", &[]);
    add("trainer.project_name=p", &[]);
    add("trainer.experiment_name=e", &[]);
    let gae = "algorithm.adv_estimator=gae";
    for critic in [
        "trainer.critic_warmup=5",
        "critic.model.path=m",
        "critic.optim.lr=1e-4",
        "critic.optim.betas=[0.9, 0.95]",
        "critic.optim.weight_decay=0.1",
        "critic.grad_clip=0.5",
        "critic.ppo_mini_batch_size=64",
        "critic.ppo_epochs=2",
        "critic.cliprange_value=0.2",
        "critic.loss_agg_mode=seq-mean-token-mean",
    ] {
        add(critic, &[gae]);
    }
    add("actor_rollout_ref.actor.wrap_method=tok_kl", &["algorithm.adv_estimator=cpo"]);
    keys
}

fn key_of(argument: &str) -> &str {
    argument.split('=').next().unwrap_or(argument)
}

fn outcome<'i>(import: &'i Import, key: &str) -> &'i ForeignOutcome {
    let note = import.notes.iter().find(|note| note.key == key);
    &note.unwrap_or_else(|| panic!("nothing is said about {key}")).outcome
}

#[test]
fn a_key_beside_what_it_depends_on_has_an_effect() {
    let all = verl_keys();
    for (argument, others) in &all {
        let arguments: Vec<&str> = ["data.train_files=t"]
            .into_iter()
            .chain(others.iter().map(String::as_str))
            .chain([argument.as_str()])
            .collect();
        let import = converted(&arguments);
        let key = key_of(argument);
        assert!(
            !matches!(outcome(&import, key), ForeignOutcome::NoEffect(_)),
            "{arguments:?}: {key} is said to do nothing: {:?}",
            outcome(&import, key)
        );
        // And the other way round: what it depends on has one too.
        for other in others {
            let excused = ["reward_manager", "total_training_steps", "learner.backend"]
                .iter()
                .any(|end| key_of(other).ends_with(end));
            assert!(
                excused || !matches!(outcome(&import, key_of(other)), ForeignOutcome::NoEffect(_)),
                "{arguments:?}: {other} is said to do nothing"
            );
        }
    }
    // No key of a rule is left out; the managers of rewards do nothing by themselves, nor does a critic that
    // is needed anyway, and the components of `gdpo` and layers without an adapter are refused.
    let managers = [
        "reward.reward_manager.name",
        "reward_model.reward_manager",
        "critic.enable",
        "algorithm.gdpo_reward_keys",
        "algorithm.gdpo_reward_weights",
        "actor_rollout_ref.model.exclude_modules",
    ];
    for entry in Owner::Verl.keys() {
        if matches!(entry.becomes, Becomes::By(..)) && !managers.contains(&entry.key) {
            let key = entry.key.trim_end_matches('*');
            assert!(all.iter().any(|(argument, _)| argument.starts_with(key)), "{key} is not tried");
        }
    }
}

#[test]
fn an_adaptive_kl_in_the_reward() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
        KL_IN_REWARD,
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.target_kl=0.5",
        "algorithm.kl_ctrl.horizon=500",
    ]);
    let adaptive = loaded(&import).objective.kl.adaptive.expect("an adaptation");
    assert_eq!((adaptive.target, adaptive.horizon), (0.5, 500.0));
    for key in ["algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"] {
        assert_eq!(*outcome(&import, key), ForeignOutcome::PartOf("algorithm.kl_ctrl.type".to_owned()));
    }
    // EasyR1's controller is the same code.
    let import = converted(&[
        "worker.actor.model.model_path=m",
        "data.train_files=t",
        "reward=[{kind: math}]",
        "algorithm.kl_type=adaptive",
        "algorithm.kl_target=0.5",
        "algorithm.kl_horizon=500",
    ]);
    let adaptive = loaded(&import).objective.kl.adaptive.expect("an adaptation");
    assert_eq!((adaptive.target, adaptive.horizon), (0.5, 500.0));
    assert_eq!(
        *outcome(&import, "algorithm.kl_target"),
        ForeignOutcome::PartOf("algorithm.kl_type".to_owned())
    );
    assert!(import_errors(&[KL_IN_REWARD, "algorithm.kl_ctrl.type=sometimes"]).contains("fixed or adaptive"));
}

/// A key of tamis beside one of another system takes its place in the notes where it takes its value, and
/// nowhere else.
#[test]
fn notes_follow_keys_of_tamis_given_beside_them() {
    let low = format!("{ACTOR}.clip_ratio_low=0.1");
    let notes = |arguments: &[&str]| {
        let imported = converted(arguments);
        imported.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert!(notes(&[&low, "objective.loss={clip_high: 0.3}"]).contains("objective.loss.clip_low: 0.1"));
    assert!(
        notes(&[&low, "objective.loss={clip_low: 0.3}"])
            .contains("has no effect: `objective.loss` beside it")
    );
    let filter = ["algorithm.filter_groups.enable=True", "filter=null"];
    assert!(!notes(&filter).contains("filter.kind"), "{}", notes(&filter));
}
