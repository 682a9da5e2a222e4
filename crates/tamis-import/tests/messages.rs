//! Messages about keys of other systems.

#[path = "../../tamis-config/tests/support/brief.rs"]
mod brief;

use std::path::Path;

use brief::brief;
use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_import::{import, load_sources};

/// The warnings and errors of a text and overrides, over a valid configuration.
fn show_errors(yaml: &str, arguments: &[&str]) -> String {
    let base = ["model.path=m", "data.task=arithmetic", "train.total_steps=10"];
    let arguments: Vec<String> = base.iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
    match load_sources(&[source], &arguments) {
        Ok(loaded) => brief(&loaded.warnings),
        Err(errors) => brief(&errors.diagnostics),
    }
}

fn imported(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    import(&arguments, Path::new("")).map_or_else(|errors| brief(&errors.diagnostics), |import| import.yaml)
}

#[test]
fn foreign_keys() {
    // A file that also has keys of ours.
    let mixed = "algorithm: {filter_groups: {enable: true}}\nworker: {rollout: {n: 4}}\nrollout: {n: 4}";
    assert_snapshot!([
        show_errors(mixed, &[]),
        show_errors("", &["algorithm.filter_groups.enabled=True"]),
        show_errors("", &["algorithm.filter_groups.enable=yes"]),
        show_errors("", &["algorithm.adv_estimator=gae", "algorithm.compute_new_adv=true"]),
        show_errors("", &["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"]),
        show_errors("", &["per_device_train_batch_size=3", "loss_type=ppo"]),
        // Values without effect must still be numbers.
        show_errors("", &["lora_r=abc", "loss_type=cispo", "epsilon=b", "epsilon_high=3"]),
        show_errors("", &["data.val_batchsize=3"]),
        imported(&["python3", "-m", "verl.trainer.main_ppo", "rollout", "--config-name=x"]),
        imported(&["critic.model.path=x", "trainer.nnodes=1", "nope=3", "algorithm.use_kl_in_reward=True", "actor_rollout_ref.actor.use_kl_loss=True"]),
        show_errors("critic: {optim: {lr: 1e-5}}", &[]),
    ].join("\n"), @r"
error: unknown key `algorithm`
  at run.yaml:1: «algorithm»: {filter_groups: {enable: true}}
  hint: this is a key of verl: pass it as `key=value` on the command line, or convert the whole file with `tamis config import`
error: unknown key `worker`
  at run.yaml:2: «worker»: {rollout: {n: 4}}
  hint: this is a key of EasyR1: pass it as `key=value` on the command line, or convert the whole file with `tamis config import`
error: `algorithm.filter_groups.enabled` is no key of verl that tamis knows
  at command line: «algorithm.filter_groups.enabled»=True
  hint: did you mean `algorithm.filter_groups.enable`?
error: `algorithm.filter_groups.enable` of verl must be true or false, not `yes`
  at command line, verl key: algorithm.filter_groups.enable=«yes» [explain it]
error: `algorithm.compute_new_adv=true` of EasyR1 cannot be followed: advantages are those of the whole group: they are not computed again after members are dropped
  at command line, EasyR1 key: algorithm.compute_new_adv=«true»
  hint: see `tamis config explain algorithm.compute_new_adv`
error: `actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1` of verl cannot be followed: the number of steps is not known, and with a filter it cannot be: give the warm-up in steps
  at command line, verl key: actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=«0.1»
  hint: see `tamis config explain actor_rollout_ref.actor.optim.lr_warmup_steps_ratio`
error: `per_device_train_batch_size=3` of TRL cannot be followed: 3 completions a generation and 3 an update are not whole groups of 8 (num_generations); a group is never split here
  at command line, TRL key: per_device_train_batch_size=«3»
  hint: see `tamis config explain per_device_train_batch_size`
error: `loss_type=ppo` of TRL cannot be followed: the losses are grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo and vespo
  at command line, TRL key: loss_type=«ppo»
  hint: see `tamis config explain loss_type`
error: `lora_r` of TRL must be a number, not `abc`
  at command line, TRL key: lora_r=«abc» [explain it]
error: `epsilon` of TRL must be a number, not `b`
  at command line, TRL key: epsilon=«b» [explain it]
error: unknown key `data.val_batchsize`
  at command line: «data.val_batchsize»=3
  hint: the keys here are task, arithmetic, train, val, val_fraction, train_batch_size, gen_batch_size, max_prompt_length, overlong_prompts, bad_rows, binary_columns, shuffle, curriculum, check_gold, images, image_folder, columns, prompt_format, system_prompt, prompt_template, chat_template_kwargs
error: `rollout` is neither `key=value` nor a YAML file
  at command line: «r»ollout
  hint: for example: tamis config import -- data.train_batch_size=512
error: `nope` is no key of verl, EasyR1, RAGEN or TRL that tamis knows
  at command line: «nope»=3
  hint: remove it, or set the key of tamis that has its purpose
error: `algorithm.use_kl_in_reward=True` of verl cannot be followed: use_kl_loss is on too, and the KL can be in only one place
  at command line, verl key: algorithm.use_kl_in_reward=«True»
  hint: see `tamis config explain algorithm.use_kl_in_reward`
error: unknown key `critic.optim`
  at run.yaml:1: critic: {«optim»: {lr: 1e-5}}
  hint: this is a key of verl: pass it as `key=value` on the command line, or convert the whole file with `tamis config import`
");
}

/// Names of papers and of other systems that people write for a loss, an advantage or a filter.
#[test]
fn a_name_of_something_else_points_to_its_key() {
    for (argument, expected) in [
        (
            "objective.loss.kind=icepop",
            "`icepop` is `objective.correction.preset=decoupled_token_icepop` here",
        ),
        ("objective.loss=icepop", "`icepop` is `objective.correction.preset=decoupled_token_icepop` here"),
        ("objective.loss.kind=TIS", "`TIS` is `objective.correction.preset=decoupled_token_is` here"),
        ("objective.loss.kind=mis", "`mis` is `objective.correction.preset=trl` here"),
        ("filter.kind=bypass_mode", "`bypass_mode` is `objective.correction.preset=bypass_ppo_clip` here"),
        ("objective.loss.kind=opd", "`opd` is `objective.advantage.kind=on_policy_distillation` here"),
        ("objective.advantage.kind=opd", "did you mean `on_policy_distillation`?"),
        ("objective.loss.kind=clip-higher", "`clip-higher` is `objective.loss.clip_high=0.28` here"),
        ("objective.advantage.kind=dynamic_sampling", "`dynamic_sampling` is `filter.kind=variance` here"),
        ("filter.kind=dynamic_sampling", "did you mean `variance`?"),
        ("filter=online_filtering", "did you mean `mean_range`?"),
        ("objective.loss.kind=gspo_token", "`gspo_token` is `objective.importance=sequence_token` here"),
        ("objective.loss.kind=dapo", "`dapo` is a preset (`preset=dapo`) here: `tamis explain dapo`"),
        ("objective.advantage.kind=dapo", "`dapo` is a preset (`preset=dapo`) here"),
        ("filter.kind=dapo", "`dapo` is a preset (`preset=dapo`) here"),
        (
            "objective.loss.kind=dr_grpo",
            "`dr_grpo` is a preset (`preset=dr_grpo`) and an advantage estimator (`objective.advantage.kind=dr_grpo`) here",
        ),
        (
            "objective.loss.kind=grpo",
            "`grpo` is a preset (`preset=grpo`) and an advantage estimator (`objective.advantage.kind=grpo`) here",
        ),
        ("objective.loss.kind=reinforce++", "(`objective.advantage.kind=reinforce_plus_plus`) here"),
        ("objective.loss.kind=ppo", "`ppo` is a preset (`preset=ppo`) here"),
        ("objective.loss.kind=vanilla", "did you mean `clip`?"),
        ("objective.loss.kind=ppo_clip", "did you mean `clip`?"),
        ("objective.loss.kind=gmpo", "did you mean `geo_mean`?"),
        ("objective.loss.kind=gae", "`gae` is an advantage estimator (`objective.advantage.kind=gae`) here"),
        ("objective.advantage.kind=gspo", "a policy loss (`objective.loss.kind=gspo`) here"),
        ("objective.advantage.kind=cispo", "a policy loss (`objective.loss.kind=cispo`) here"),
        ("objective.advantage.kind=rloo_vectorized", "did you mean `rloo`?"),
        ("objective.advantage.kind=grpo_vectorized", "did you mean `grpo`?"),
        (
            "objective.loss.kind=token_mean",
            "`token_mean` is an aggregation (`objective.aggregation=token-mean`) here",
        ),
        ("objective.loss.kind=k3", "`k3` is a divergence (`objective.kl.estimator=k3`) here"),
        ("objective.loss.kind=top_entropy", "`top_entropy` is a mask (`objective.masks.top_entropy`) here"),
        ("objective.loss.kind=sft", "`sft` is a loss of supervised fine-tuning (`sft."),
        ("filter.kind=gsm8k", "`gsm8k` is a reward (`reward=[{kind: gsm8k}]`) here"),
        // Misspelt names stay with their key, and unknown ones list what there is.
        ("objective.loss.kind=cispoo", "did you mean `cispo`?"),
        ("objective.loss.kind=luffy", "«luffy» [explain it]"),
        ("rollout.backend=vlm", "did you mean `vllm`?"),
    ] {
        let text = show_errors("", &[argument]);
        assert!(text.contains(expected), "{argument}: {text}");
    }
}
