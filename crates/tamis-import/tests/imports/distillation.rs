//! On-policy distillation of verl (`distillation.*`) and TRL (`DistillationConfig`).

use std::path::Path;

use serde_json::{Value, json};
use tamis_config::source::{Source, SourceKind};
use tamis_import::{import, load_sources};

use crate::split;

const VERL: [&str; 7] = [
    "actor_rollout_ref.model.path=m",
    "data.train_files=t.parquet",
    "data.val_files=v.parquet",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "distillation.enabled=True",
    "distillation.teacher_models.teacher_model.model_path=big",
];
const LOSS: &str = "distillation.distillation_loss";

/// A section of the converted configuration, or the errors.
fn converted(words: &[&str], more: &[String]) -> Result<Value, String> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).chain(more.to_vec()).collect();
    let import = import(&words, Path::new("")).map_err(|errors| errors.to_string())?;
    let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
    let loaded = load_sources(&[source], &[]).map_err(|errors| format!("{errors}\n{}", import.yaml))?;
    Ok(serde_json::to_value(&loaded.config).expect("a configuration is JSON"))
}

fn of_verl(more: &[&str]) -> Result<Value, String> {
    converted(&VERL, &more.iter().map(|word| format!("{LOSS}.{word}")).collect::<Vec<_>>())
}

#[test]
fn the_gradient_of_verls_k1_is_an_advantage() {
    let alone =
        of_verl(&["loss_mode=k1", "use_policy_gradient=True", "use_task_rewards=False", "loss_max_clamp=5"]);
    let alone = alone.unwrap();
    let expected = json!({"kind": "on_policy_distillation", "coefficient": 1.0, "discount": 0.0, "clip": 5.0, "estimator": "k1"});
    assert_eq!(alone["objective"]["advantage"], expected);
    assert_eq!(alone["teacher"][0]["path"], "big");
    assert_eq!(alone["objective"]["shaping"], json!([]));

    let added = of_verl(&["loss_mode=k1", "use_policy_gradient=True", "distillation_loss_coef=0.5"]).unwrap();
    assert_eq!(added["objective"]["advantage"]["kind"], "grpo");
    let expected = json!([{"kind": "add_distillation", "coefficient": 0.5, "discount": 0.0, "clip": null, "estimator": "k1"}]);
    assert_eq!(added["objective"]["shaping"], expected);
}

#[test]
fn verls_default_is_a_divergence_in_the_loss() {
    let found = of_verl(&["distillation_loss_coef=0.25"]).unwrap();
    let kl = &found["objective"]["kl"];
    assert_eq!(
        (&kl["in"], &kl["estimator"], &kl["coefficient"]),
        (&json!("loss"), &json!("k3"), &json!(0.25))
    );
    assert_eq!((&found["model"]["reference"], &found["teacher"]), (&json!("big"), &json!([])));
}

#[test]
fn several_teachers_of_verl_are_by_data_source() {
    let teachers = split(
        "+distillation.teacher_models.one.key=openai/gsm8k \
        +distillation.teacher_models.one.model_path=big +distillation.teacher_models.two.key=math \
        +distillation.teacher_models.two.model_path=bigger distillation.distillation_loss.loss_mode=k1 \
        distillation.distillation_loss.use_policy_gradient=True",
    );
    let words = [&VERL[..6], &teachers].concat();
    let found = converted(&words, &[]).unwrap();
    let of = |index: usize| {
        (found["teacher"][index]["path"].clone(), found["teacher"][index]["data_source"].clone())
    };
    assert_eq!(of(0), (json!("big"), json!("openai/gsm8k")));
    assert_eq!(of(1), (json!("bigger"), json!("math")));
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let refused = |more: &[&str]| of_verl(more).expect_err("refused");
    for (more, expected) in [
        (&["loss_mode=forward_kl_topk", "use_policy_gradient=True"][..], "is differentiated here"),
        (&["loss_mode=k1"], "verl refuses k1 without use_policy_gradient"),
        (&["use_task_rewards=False"], "the divergence is part of the loss, beside the rewards"),
        (&["loss_max_clamp=10"], "bounded only by its estimator"),
    ] {
        let found = refused(more);
        assert!(found.contains(expected), "{found}");
    }
    let words = [&VERL[..6], &["distillation.teacher_key=task"]].concat();
    let found = converted(&words, &[]).expect_err("refused");
    assert!(found.contains("a teacher is chosen by the data source of a prompt"), "{found}");
    let found = converted(&VERL[..6], &[]).expect_err("refused");
    assert!(found.contains("no teacher is named"), "{found}");
}

#[test]
fn keys_of_other_losses_have_no_effect() {
    let keys = [
        "distillation.distillation_loss.policy_loss_mode=vanilla",
        "distillation.distillation_loss.clip_ratio=0.3",
        "distillation.distillation_loss.clip_ratio_low=0.3",
        "distillation.distillation_loss.clip_ratio_high=0.3",
        "distillation.distillation_loss.topk=16",
        "distillation.distillation_loss.log_prob_min_clamp=-9",
        "distillation.distillation_loss.use_chunked_topk=True",
        "distillation.distillation_loss.chunked_topk_chunk_size=64",
        // verl's defaults.
        "distillation.distillation_loss.use_task_rewards=True",
        "distillation.distillation_loss.distillation_loss_coef=1.0",
        "distillation.distillation_loss.loss_max_clamp=null",
    ];
    let without = of_verl(&[]).unwrap();
    assert_eq!(converted(&VERL, &keys.map(str::to_owned)).unwrap(), without);
    let words = split(
        "model_name_or_path=m dataset_name=d.jsonl reward_funcs=accuracy_reward \
        teacher_model_name_or_path=org/big",
    );
    let of = |more: &str| converted(&words, &[more.to_owned()]).unwrap()["teacher"][0]["path"].clone();
    assert_eq!(of("teacher_model_revision=main"), json!("hf://org/big@main"));
    assert_eq!(of("teacher_model_init_kwargs={}"), json!("hf://org/big"));
}

#[test]
fn a_distillation_of_trl_has_one_completion_per_prompt() {
    let words = split(
        "model_name_or_path=m dataset_name=d.jsonl reward_funcs=accuracy_reward \
        teacher_model_name_or_path=big",
    );
    let found = converted(&words, &[]).unwrap();
    assert_eq!(found["objective"]["advantage"]["kind"], "on_policy_distillation");
    assert_eq!((&found["teacher"][0]["path"], &found["rollout"]["n"]), (&json!("big"), &json!(1)));
    assert_eq!(found["objective"]["kl"]["in"], "none");
    // There, beta is the divergence: 1.0 is the reverse one.
    assert!(converted(&words, &["beta=1.0".to_owned()]).is_ok());
    let found = converted(&words, &["beta=0.5".to_owned()]).unwrap();
    let expected = json!({"top_k": 128, "sampled": false, "beta": 0.5, "rest": "bucket", "min_logprob": null,
        "clip": null, "coefficient": 1.0, "advantages": false});
    assert_eq!(found["objective"]["distillation"], expected);
    assert_eq!((&found["teacher"][0]["path"], &found["rollout"]["n"]), (&json!("big"), &json!(1)));
}

#[test]
fn verls_likeliest_tokens_are_a_divergence_in_the_loss() {
    let settings = |more: &[&str]| {
        let words = [&["loss_mode=forward_kl_topk"], more].concat();
        let found = of_verl(&words).unwrap();
        assert_eq!(found["teacher"][0]["path"], "big");
        assert_eq!(found["objective"]["advantage"]["kind"], "grpo");
        found["objective"]["distillation"].clone()
    };
    let plain = json!({"top_k": 32, "sampled": false, "beta": 0.0, "rest": "ignored", "min_logprob": null,
        "clip": null, "coefficient": 1.0, "advantages": true});
    assert_eq!(settings(&[]), plain);
    let alone = settings(&split(
        "topk=64 log_prob_min_clamp=-10 loss_max_clamp=10 \
        use_task_rewards=False distillation_loss_coef=0.5 use_chunked_topk=True clip_ratio=0.3",
    ));
    // verl reads the coefficient with rewards only.
    let expected = json!({"top_k": 64, "sampled": false, "beta": 0.0, "rest": "ignored", "min_logprob": -10.0,
        "clip": 10.0, "coefficient": 1.0, "advantages": false});
    assert_eq!(alone, expected);
    assert_eq!(settings(&["distillation_loss_coef=0.5"])["coefficient"], 0.5);
}

#[test]
fn a_teacher_at_a_server_of_trl() {
    let words = split(
        "model_name_or_path=m dataset_name=d.jsonl reward_funcs=accuracy_reward \
        teacher_model_server_url=http://localhost:8000",
    );
    let of = |more: &[&str]| converted(&words, &more.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
    let settings = |more: &[&str]| {
        let found = of(more).unwrap();
        assert_eq!(found["teacher"][0]["servers"], json!(["http://localhost:8000"]));
        assert_eq!(found["rollout"]["n"], 1);
        let found = &found["objective"]["distillation"];
        assert_eq!(found["advantages"], false);
        (found["top_k"].clone(), found["sampled"].clone(), found["beta"].clone(), found["rest"].clone())
    };
    let expected = |top_k: u64, sampled: bool, beta: f64, rest: &str| {
        (json!(top_k), json!(sampled), json!(beta), json!(rest))
    };
    // Only the sampled token, and the rest.
    assert_eq!(settings(&[]), expected(0, true, 1.0, "bucket"));
    assert_eq!(settings(&["beta=0.5"]), expected(1, true, 0.5, "bucket"));
    let forward = ["beta=0.0", "loss_top_k=16", "loss_add_tail=False"];
    assert_eq!(settings(&forward), expected(16, false, 0.0, "renormalized"));
    for (more, wanted) in [
        (&["loss_top_k=4"][..], "TRL takes 1 with beta above 0"),
        (&["reverse_kl_top_1_mode=argmax"], "TRL takes only sampled"),
    ] {
        let found = of(more).expect_err("refused");
        assert!(found.contains(wanted), "{found}");
    }
}
