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
      at command line, verl key: algorithm.filter_groups.enable=«yes»
      hint: `tamis config explain algorithm.filter_groups.enable` says what becomes of it
    error: `algorithm.compute_new_adv=true` of EasyR1 cannot be followed: advantages are those of the whole group: they are not computed anew once members are dropped
      at command line, EasyR1 key: algorithm.compute_new_adv=«true»
      hint: `tamis config explain algorithm.compute_new_adv` says what becomes of it
    error: `actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1` of verl cannot be followed: the number of steps is not known, and with a filter it cannot be: give the warm-up in steps
      at command line, verl key: actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=«0.1»
      hint: `tamis config explain actor_rollout_ref.actor.optim.lr_warmup_steps_ratio` says what becomes of it
    error: `per_device_train_batch_size=3` of TRL cannot be followed: 3 completions a generation and 3 an update are not whole groups of 8 (num_generations); a group is never split here
      at command line, TRL key: per_device_train_batch_size=«3»
      hint: `tamis config explain per_device_train_batch_size` says what becomes of it
    error: `loss_type=ppo` of TRL cannot be followed: the losses are grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo and vespo
      at command line, TRL key: loss_type=«ppo»
      hint: `tamis config explain loss_type` says what becomes of it
    error: `lora_r` of TRL must be a number, not `abc`
      at command line, TRL key: lora_r=«abc»
      hint: `tamis config explain lora_r` says what becomes of it
    error: `epsilon` of TRL must be a number, not `b`
      at command line, TRL key: epsilon=«b»
      hint: `tamis config explain epsilon` says what becomes of it
    error: unknown key `data.val_batchsize`
      at command line: «data.val_batchsize»=3
      hint: the keys here are task, arithmetic, train, val, val_fraction, train_batch_size, gen_batch_size, max_prompt_length, overlong_prompts, bad_rows, binary_columns, shuffle, curriculum, check_gold, images, image_folder, columns, prompt_format, system_prompt, prompt_template, chat_template_kwargs
    error: `rollout` is neither `key=value` nor a YAML file
      at command line: «r»ollout
      hint: for example: tamis config import -- data.train_batch_size=512
    error: `nope` is no key of verl, EasyR1, RAGEN or TRL that tamis knows
      at command line: «nope»=3
      hint: remove it, or set the key of tamis that has its purpose
    error: `algorithm.use_kl_in_reward=True` of verl cannot be followed: use_kl_loss is on too, and the KL enters in one place
      at command line, verl key: algorithm.use_kl_in_reward=«True»
      hint: `tamis config explain algorithm.use_kl_in_reward` says what becomes of it
    error: unknown key `critic.optim`
      at run.yaml:1: critic: {«optim»: {lr: 1e-5}}
      hint: this is a key of verl: pass it as `key=value` on the command line, or convert the whole file with `tamis config import`
    ");
}
