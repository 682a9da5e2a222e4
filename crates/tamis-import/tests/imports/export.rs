//! The way back: what an export of an imported configuration imports as.

use std::path::Path;

use tamis_config::source::{Source, SourceKind};
use tamis_import::{Becomes, Export, Import, Owner, export, import, load_sources};

use super::{converted, loaded};

/// What a command of TRL 1.16 and of verl 0.9.1 cannot lack.
const TRL: &[&str] = &["model_name_or_path=m", "dataset_name=d.jsonl", "reward_funcs=accuracy_reward"];
const VERL: &[&str] = &[
    "actor_rollout_ref.model.path=m",
    "data.train_files=t.parquet",
    "data.val_files=v.parquet",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
    "trainer.n_gpus_per_node=8",
    "reward.custom_reward_function.path=r.py",
];

/// Keys of TRL's older versions, and keys that only its own script has: a script has the data set itself.
const TRL_ONLY_IN: &[&str] = &[
    "max_prompt_length",
    "chat_template_path",
    "vllm_dtype",
    "vllm_enable_prefix_caching",
    "dataset_test_split",
    // The name of a reward model is among the functions.
    "reward_model_name_or_path",
];
/// Keys of verl's older versions and forks, which have newer ones.
const VERL_ONLY_IN: &[&str] = &["actor_rollout_ref.actor.optim.eps"];

/// Settings beside a base that mean something only together.
const TOGETHER: &[(Owner, &str)] = &[
    (Owner::Trl, "loss_type=grpo"),
    (Owner::Trl, "loss_type=dr_grpo scale_rewards=none"),
    (Owner::Trl, "loss_type=cispo epsilon_high=5"),
    (Owner::Trl, "loss_type=sapo sapo_temperature_neg=1.2"),
    (Owner::Trl, "loss_type=luspo"),
    (Owner::Trl, "loss_type=vespo vespo_k_pos=1.5"),
    (Owner::Trl, "loss_type=bnpo scale_rewards=batch mask_truncated_completions=true"),
    (Owner::Trl, "beta=0.04 use_bias_correction_kl=false"),
    (Owner::Trl, "epsilon=0.1 epsilon_high=0.28 delta=4"),
    (Owner::Trl, "num_generations=16 per_device_train_batch_size=4 gradient_accumulation_steps=32"),
    (
        Owner::Trl,
        "num_generations=6 per_device_train_batch_size=3 gradient_accumulation_steps=8 steps_per_generation=16",
    ),
    (
        Owner::Trl,
        "num_generations=8 generation_batch_size=64 gradient_accumulation_steps=4 max_steps=100 warmup_steps=10",
    ),
    (
        Owner::Trl,
        "lr_scheduler_type=cosine_with_min_lr lr_scheduler_kwargs={min_lr_rate: 0.1} warmup_steps=5",
    ),
    (Owner::Trl, "lr_scheduler_type=constant max_steps=50"),
    (
        Owner::Trl,
        "eval_strategy=steps eval_steps=20 num_generations_eval=4 eval_on_start=true dataset_name=a/b",
    ),
    (Owner::Trl, "save_strategy=no"),
    (Owner::Trl, "save_steps=25 save_total_limit=3"),
    (Owner::Trl, "use_vllm=true vllm_gpu_memory_utilization=0.5 vllm_tensor_parallel_size=2"),
    (Owner::Trl, "use_vllm=true vllm_mode=server vllm_server_base_url=http://x:9000"),
    (
        Owner::Trl,
        "use_vllm=true vllm_importance_sampling_mode=token_truncate vllm_importance_sampling_clip_max=2",
    ),
    (Owner::Trl, "use_vllm=true vllm_importance_sampling_correction=false"),
    (Owner::Trl, "use_peft=true lora_r=8 lora_alpha=64 lora_target_modules=[q_proj, k_proj]"),
    (Owner::Trl, "use_peft=true lora_r=8 load_in_4bit=true optim=paged_adamw_8bit"),
    (Owner::Trl, "use_adaptive_entropy=true entropy_target=0.3"),
    (Owner::Trl, "multi_objective_aggregation=normalize_then_sum"),
    (
        Owner::Trl,
        "reward_funcs=[accuracy_reward, think_format_reward, mine.shorter] reward_weights=[1, 0.5, 2]",
    ),
    (Owner::Trl, "dataset_name=a/b dataset_config=main dataset_train_split=train[:10]"),
    (Owner::Trl, "model_name_or_path=a/b model_revision=v2"),
    (Owner::Trl, "output_dir=out/mine report_to=[wandb, tensorboard]"),
    (Owner::Trl, "adam_beta1=0.8 adam_beta2=0.99 weight_decay=0.1 max_grad_norm=0.5"),
    (Owner::Trl, "generation_kwargs={stop_strings: [END]} top_k=20 min_p=0.1"),
    (Owner::Verl, "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01"),
    (Owner::Verl, "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse"),
    (
        Owner::Verl,
        "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.target_kl=0.2",
    ),
    (
        Owner::Verl,
        "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc algorithm.filter_groups.max_num_gen_batches=10",
    ),
    (
        Owner::Verl,
        "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=seq_final_reward data.gen_batch_size=1536",
    ),
    (
        Owner::Verl,
        "actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.clip_ratio_c=10",
    ),
    (Owner::Verl, "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"),
    (
        Owner::Verl,
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.001",
    ),
    (Owner::Verl, "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov"),
    (
        Owner::Verl,
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm algorithm.norm_adv_by_std_in_grpo=False",
    ),
    (Owner::Verl, "algorithm.adv_estimator=gae algorithm.lam=0.95 critic.model.path=m critic.optim.lr=1e-5"),
    (Owner::Verl, "algorithm.adv_estimator=rloo"),
    (Owner::Verl, "algorithm.adv_estimator=reinforce_plus_plus"),
    (Owner::Verl, "algorithm.adv_estimator=remax"),
    (
        Owner::Verl,
        "actor_rollout_ref.actor.use_dynamic_bsz=False actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    ),
    (Owner::Verl, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768"),
    (
        Owner::Verl,
        "actor_rollout_ref.actor.optim.lr_warmup_steps=10 actor_rollout_ref.actor.optim.lr_scheduler_type=cosine actor_rollout_ref.actor.optim.min_lr_ratio=0.1",
    ),
    (
        Owner::Verl,
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.temperature=0.6 actor_rollout_ref.rollout.val_kwargs.n=4",
    ),
    (Owner::Verl, "actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=64"),
    (
        Owner::Verl,
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.gpu_memory_utilization=0.7",
    ),
    (
        Owner::Verl,
        "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=2.0",
    ),
    (Owner::Verl, "algorithm.rollout_correction.bypass_mode=True"),
    (Owner::Verl, "trainer.v1.trainer_mode=separate_async trainer.v1.sampler.max_off_policy_threshold=4"),
    (
        Owner::Verl,
        "trainer.project_name=p trainer.experiment_name=e trainer.logger=[console,wandb] trainer.test_freq=5 trainer.save_freq=20",
    ),
    (Owner::Verl, "trainer.nnodes=2 trainer.total_training_steps=100"),
    (Owner::Verl, "data.truncation=left data.filter_overlong_prompts=False"),
    (Owner::Verl, "reward.custom_reward_function.name=score"),
    (
        Owner::Verl,
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True +reward.reward_kwargs.overlong_buffer_cfg.len=512 +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 +reward.reward_kwargs.max_resp_len=2048",
    ),
];

/// The words of a text. What is between brackets stays one word.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        depth += i32::from("[{".contains(c)) - i32::from("]}".contains(c));
        match words.last_mut() {
            Some(word) if c != ' ' || depth > 0 => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words
}

/// A base with settings over it.
fn command(owner: Owner, more: &[String]) -> Vec<String> {
    let base = if owner == Owner::Trl { TRL } else { VERL };
    let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let is_replaced = |word: &str| more.iter().any(|other| key(other) == key(word));
    let kept = base.iter().filter(|word| !is_replaced(word)).map(|&word| word.to_owned());
    kept.chain(more.iter().cloned()).collect()
}

/// What is another value after an import, an export and an import.
fn lost(owner: Owner, more: &[String]) -> Option<(Export, Vec<String>)> {
    let imported = import(&command(owner, more), Path::new("")).ok()?;
    let config = loaded(&imported);
    let exported = export(&config, owner);
    let again = import(&exported.arguments(), Path::new(""))
        .unwrap_or_else(|errors| panic!("{more:?}\n{errors}\n{:?}", exported.arguments()));
    let mut found: Vec<String> = exported.lost.iter().map(|lost| format!("{lost:?}")).collect();
    if found.is_empty() && loaded(&again) != config {
        found.push(format!("it imports as another configuration: {:?}", exported.arguments()));
    }
    Some((exported, found))
}

/// Another value of the type of a default.
fn other_value(default: &str) -> Option<String> {
    match default.to_lowercase().as_str() {
        "true" => Some("False".to_owned()),
        "false" => Some("True".to_owned()),
        "null" | "" => Some("4".to_owned()),
        text => {
            let number: f64 = text.parse().ok()?;
            let is_share = number > 0.0 && number <= 1.0 && text.contains('.');
            Some(if is_share { number / 2.0 } else { number + 1.0 }.to_string())
        }
    }
}

/// Whether a run would take it.
fn is_sound(imported: &Import) -> bool {
    let source = Source::new(SourceKind::File("imported.yaml".into()), imported.yaml.clone());
    load_sources(&[source], &[]).is_ok()
}

#[test]
fn an_export_imports_as_the_configuration_that_it_is_of() {
    let trl = include_str!("keys/trl.tsv").lines().filter(|line| !line.starts_with('#'));
    let trl =
        trl.filter_map(|line| line.split_once('\t')).map(|(key, value)| (Owner::Trl, key, value.to_owned()));
    let verl = include_str!("../foreign/verl-0.9.1.keys").lines().filter_map(|line| line.split_once('\t'));
    let verl = verl.map(|(key, value)| (Owner::Verl, key, value.trim_matches('"').to_owned()));
    let excused = [TRL_ONLY_IN, VERL_ONLY_IN].concat();
    let (mut commands, mut same) = (Vec::new(), Vec::new());
    for (owner, key, value) in trl.chain(verl).filter(|(_, key, _)| !excused.contains(key)) {
        let row = owner.keys().iter().find(|row| row.key == key).map(|row| &row.becomes);
        let Some(value) = other_value(&value) else { continue };
        match row {
            Some(Becomes::By(..)) => commands.push((owner, vec![format!("{key}={value}")])),
            Some(Becomes::Key(_)) => same.push((owner, format!("{key}={value}"))),
            _ => {}
        }
    }
    // Keys of the same value are independent: many at once, without those that are refused.
    for owner in [Owner::Trl, Owner::Verl] {
        let accepts = |more: &[String]| {
            import(&command(owner, more), Path::new("")).is_ok_and(|imported| is_sound(&imported))
        };
        let mut all: Vec<String> = Vec::new();
        for (_, word) in same.iter().filter(|(own, _)| *own == owner) {
            all.push(word.clone());
            if !accepts(&all) {
                all.pop();
            }
        }
        assert!(all.len() > 15, "{owner}: {all:?}");
        commands.push((owner, all));
    }
    commands.extend(TOGETHER.iter().map(|(owner, text)| (*owner, words(text))));
    let (mut wrong, mut num) = (Vec::new(), 0);
    for (owner, more) in commands {
        let Some((exported, found)) = lost(owner, &more) else { continue };
        num += 1;
        if !found.is_empty() {
            wrong.push(format!(
                "{owner} {more:?}\n    {}\n    {:?}",
                found.join("\n    "),
                exported.arguments()
            ));
        }
    }
    assert!(num > 80, "{num} were compared");
    assert!(wrong.is_empty(), "{} of {num}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_has_no_counterpart_is_named() {
    let more = words("use_vllm=false");
    let imported = converted(&command(Owner::Trl, &more).iter().map(String::as_str).collect::<Vec<_>>());
    let mut config = loaded(&imported);
    config.schedule.max_lag = Some(3);
    let exported = export(&config, Owner::Trl);
    let lost: Vec<&str> = exported.lost.iter().map(|lost| lost.key.as_str()).collect();
    assert_eq!(lost, ["schedule.max_lag"]);
    assert!(exported.script().contains("#   schedule.max_lag: 3 (in TRL: "), "{}", exported.script());
}
