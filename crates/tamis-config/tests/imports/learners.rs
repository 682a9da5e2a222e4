//! Adapters, number formats, attention and reward models of verl, EasyR1, RAGEN and TRL.

use insta::assert_snapshot;

use super::{converted, import_errors, loaded, notes, value_at};

/// A configuration of each system that trains, but for what a test adds.
const VERL: [&str; 5] = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=m",
    "data.train_files=t",
    "actor_rollout_ref.rollout.n=4",
    "reward=[{kind: math}]",
];
const TRL: [&str; 4] =
    ["model_name_or_path=m", "dataset_name=t", "reward_funcs=accuracy_reward", "max_steps=3"];

/// The lines of a conversion's notes that begin with one of these.
fn notes_of(words: &[&str], keys: &[&str]) -> String {
    let notes = notes(&converted(words));
    let is_of = |line: &&str| keys.iter().any(|key| line.starts_with(key));
    notes.lines().filter(is_of).collect::<Vec<_>>().join("\n")
}

#[test]
fn adapters_become_ours_with_their_owners_defaults() {
    for (words, lora) in [
        (vec!["actor_rollout_ref.model.lora_rank=32"], r#"{"rank":32,"alpha":16.0,"targets":null}"#),
        (
            vec![
                "actor_rollout_ref.model.lora_rank=8",
                "actor_rollout_ref.model.lora_alpha=8",
                "actor_rollout_ref.model.target_modules=[q_proj,v_proj]",
                "actor_rollout_ref.model.exclude_modules=null",
            ],
            r#"{"rank":8,"alpha":8.0,"targets":["q_proj","v_proj"]}"#,
        ),
        (
            vec!["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=all-linear"],
            r#"{"rank":8,"alpha":16.0,"targets":null}"#,
        ),
    ] {
        let config = loaded(&converted(&[&VERL[..], &words].concat()));
        assert_eq!(value_at(&config, "/learner/lora"), lora, "{words:?}");
        assert_eq!(value_at(&config, "/learner/backend"), r#""torch""#);
    }
    let none = loaded(&converted(&[&VERL[..], &["actor_rollout_ref.model.lora_rank=0"]].concat()));
    assert_eq!(value_at(&none, "/learner/lora"), "null");
    assert_eq!(value_at(&none, "/learner/backend"), r#""native""#);
    // TRL's switch; without a list, peft's own layers.
    let peft = loaded(&converted(&[&TRL[..], &["use_peft=True", "lora_r=8"]].concat()));
    assert_eq!(value_at(&peft, "/learner/lora"), r#"{"rank":8,"alpha":32.0,"targets":["q_proj","v_proj"]}"#);
    let all = ["use_peft=True", "lora_target_modules=all-linear", "lora_alpha=16", "lora_dropout=0.1"];
    let all = loaded(&converted(&[&TRL[..], &all].concat()));
    assert_eq!(value_at(&all, "/learner/lora"), r#"{"rank":16,"alpha":16.0,"targets":null}"#);
    assert_snapshot!(notes_of(
        &[&TRL[..], &["lora_r=8", "use_peft=False"]].concat(),
        &["lora_r", "use_peft"]
    ));
    assert_snapshot!(notes_of(
        &[&TRL[..], &["use_peft=True", "lora_r=8", "lora_dropout=0.1", "use_dora=False"]].concat(),
        &["lora_", "use_"]
    ));
}

#[test]
fn what_an_adapter_of_ours_has_not_is_refused() {
    for (words, reason) in [
        (&["use_peft=True", "use_dora=True"][..], "the product of two matrices alone"),
        (&["use_peft=True", "use_rslora=True"], "multiply `lora_alpha` by the root of `lora_r`"),
        (&["use_peft=True", "lora_modules_to_save=[lm_head]"], "nothing but the adapter is trained"),
        (&["use_peft=True", "lora_target_modules=.*proj"], "named by the ends of their names"),
        (
            &["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.exclude_modules=[lm_head]"],
            "layers with an adapter are named",
        ),
        (&["actor_rollout_ref.model.lora.rank=8"], "Megatron names layers its own way"),
        (&["actor_rollout_ref.model.lora_adapter_path=a"], "merge the one that is there"),
        (&["critic.model.lora_rank=8"], "a critic is trained whole"),
        (&["worker.actor.model.lora.rank=8", "worker.actor.model.lora.exclude_modules=[x]"], "are named"),
    ] {
        let errors = import_errors(words);
        assert!(errors.contains(reason), "{words:?}: {errors}");
    }
}

/// Where the native engine learns they change nothing, and it is said what would read them.
#[test]
fn number_formats_and_attention_are_pytorch_s() {
    let words = ["bf16=True", "attn_implementation=sdpa", "fp16=False"];
    let keys = ["bf16", "fp16", "attn"];
    assert_snapshot!(notes_of(&[&TRL[..], &words].concat(), &keys));
    let torch = [&TRL[..], &words, &["learner.backend=torch"]].concat();
    assert_snapshot!(notes_of(&torch, &keys));
    let config = loaded(&converted(&torch));
    assert_eq!(value_at(&config, "/learner/dtype"), r#""bf16""#);
    assert_eq!(value_at(&config, "/learner/attention"), r#""sdpa""#);
    let off = loaded(&converted(&[&TRL[..], &["bf16=False", "use_peft=True"]].concat()));
    assert_eq!(value_at(&off, "/learner/dtype"), r#""f32""#);
    let auto = loaded(&converted(&[&TRL[..], &["use_peft=True"]].concat()));
    assert_eq!(value_at(&auto, "/learner/dtype"), r#""auto""#);
    assert!(import_errors(&["fp16=True", "learner.backend=torch"]).contains("a scale of the loss"));
    let verl = [
        "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    ];
    let native = loaded(&converted(&[&VERL[..], &verl].concat()));
    assert_eq!(value_at(&native, "/learner/attention"), r#""auto""#);
    let torch = loaded(&converted(&[&VERL[..], &verl, &["learner.backend=torch"]].concat()));
    assert_eq!(value_at(&torch, "/learner/attention"), r#""flash_attention_2""#);
    assert_eq!(value_at(&torch, "/learner/offload_reference"), "true");
    let easyr1 = ["worker.ref.offload.offload_params=true", "learner.backend=torch"];
    let easyr1 = converted(
        &[
            &[
                "worker.actor.model.model_path=m",
                "reward=[{kind: math}]",
                "data.train_files=t",
                "worker.rollout.n=4",
            ][..],
            &easyr1,
        ]
        .concat(),
    );
    assert_eq!(value_at(&loaded(&easyr1), "/learner/offload_reference"), "true");
}

#[test]
fn reward_models_of_verl() {
    let base = &VERL[..4];
    for words in [
        &["reward.reward_model.enable=True", "reward.reward_model.model_path=org/rm"][..],
        &["reward_model.enable=True", "reward_model.model.path=org/rm"],
    ] {
        let config = loaded(&converted(&[base, words].concat()));
        assert_eq!(config.reward.len(), 1);
        assert_eq!(value_at(&config, "/reward/0/kind"), r#""model""#);
        assert_eq!(value_at(&config, "/reward/0/path"), r#""hf://org/rm""#);
    }
    let tuned = [
        "reward_model.enable=True",
        "reward_model.model.path=./rm",
        "reward_model.model.input_tokenizer=m",
        "reward_model.micro_batch_size_per_gpu=8",
        "reward_model.max_length=2048",
        "reward_model.strategy=fsdp",
    ];
    let words = [base, &tuned].concat();
    let config = loaded(&converted(&words));
    assert_eq!(value_at(&config, "/reward/0/batch_size"), "8");
    assert_eq!(value_at(&config, "/reward/0/max_length"), "2048");
    assert_eq!(value_at(&config, "/reward/0/overlong"), r#""right""#);
    assert_snapshot!(notes_of(&words, &["reward_model"]));
    let both = import_errors(&[&tuned[..], &["custom_reward_function.path=score.py"]].concat());
    assert!(both.contains("write both under `reward`"), "{both}");
    let off =
        loaded(&converted(&[base, &["reward_model.enable=False", "reward_model.model.path=rm"]].concat()));
    assert_eq!(value_at(&off, "/reward/0/kind"), r#""by_source""#);
}

#[test]
fn reward_models_of_trl() {
    let base = ["model_name_or_path=m", "dataset_name=t", "max_steps=3"];
    let words =
        [&base[..], &["reward_funcs=[accuracy_reward, org/My-RM]", "reward_weights=[1.0, 0.5]"]].concat();
    let config = loaded(&converted(&words));
    assert_eq!(value_at(&config, "/reward/1/name"), r#""My-RM""#);
    assert_eq!(value_at(&config, "/reward/1/path"), r#""hf://org/My-RM""#);
    assert_eq!(value_at(&config, "/reward/1/weight"), "0.5");
    let words = [
        &base[..],
        &["reward_model_name_or_path=org/My-RM", "reward_funcs=accuracy_reward", "reward_weights=[0.5, 1.0]"],
    ]
    .concat();
    let config = loaded(&converted(&words));
    assert_eq!(value_at(&config, "/reward/0/path"), r#""hf://org/My-RM""#);
    assert_eq!(
        (value_at(&config, "/reward/0/weight"), value_at(&config, "/reward/1/weight")),
        ("0.5".into(), "1.0".into())
    );
    assert_snapshot!(notes_of(&words, &["reward"]));
    let alone = loaded(&converted(&[&base[..], &["reward_model_name_or_path=./rm"]].concat()));
    assert_eq!(value_at(&alone, "/reward/0/name"), r#""rm""#);
    let wrong = import_errors(&[
        "reward_model_name_or_path=org/rm",
        "reward_funcs=accuracy_reward",
        "reward_weights=[1.0]",
    ]);
    assert!(wrong.contains("1 weights for 2 functions"), "{wrong}");
}
