//! Words that people try as keys: arguments of other trainers, used where only our keys are accepted.

use tamis_config::reader::OtherNames;

use crate::key::Becomes;
use crate::owner::Owner;
use crate::owner_of_section;

/// What an unknown key may mean.
pub(crate) const OTHER_NAMES: OtherNames =
    OtherNames { owner_of: owner_of_section, ours_of, value_of, setting_of };

/// Common words that are an argument of none of the systems, or of one that has several counterparts there.
const WORDS: [(&str, &str); 57] = [
    ("batch_size", "data.train_batch_size"),
    ("beta", "objective.kl.coefficient"),
    ("data_seed", "run.seed"),
    ("dataset", "data.train"),
    ("epochs", "train.total_epochs"),
    ("epsilon_high", "objective.loss.clip_high"),
    ("eval.n", "validate.n"),
    ("eval.temperature", "validate.temperature"),
    ("eval_dataset", "data.val"),
    ("eval_n", "validate.n"),
    ("eval_temperature", "validate.temperature"),
    ("freq", "validate.test_freq"),
    ("grad_clip", "train.optimizer.max_grad_norm"),
    ("gradient_clipping", "train.optimizer.max_grad_norm"),
    ("group_size", "rollout.n"),
    ("kl_beta", "objective.kl.coefficient"),
    ("kl_coef", "objective.kl.coefficient"),
    ("kl_coeff", "objective.kl.coefficient"),
    ("load_best_model_at_end", "checkpoint.keep_best"),
    ("log_completions", "rollout.save"),
    ("loss_type", "objective.loss.kind"),
    ("max_length", "rollout.max_response_length"),
    ("max_new_tokens", "rollout.max_response_length"),
    ("max_response_len", "rollout.max_response_length"),
    ("max_seq_length", "rollout.max_response_length"),
    ("max_tokens", "rollout.max_response_length"),
    ("min_lr_ratio", "train.lr_schedule.min_ratio"),
    ("model_name", "model.path"),
    ("n_eval", "validate.n"),
    ("num_epochs", "train.total_epochs"),
    ("num_processes", "learner.gpus_per_node"),
    ("num_samples", "rollout.n"),
    ("num_steps", "train.total_steps"),
    ("optim", "train.optimizer"),
    ("optimizer", "train.optimizer"),
    ("output_dir", "run.dir"),
    ("per_device_eval_batch_size", "rollout.max_num_seqs"),
    ("per_device_train_batch_size", "train.micro_batch_size"),
    ("per_gpu_train_batch_size", "train.micro_batch_size"),
    ("rollouts_per_example", "rollout.n"),
    ("samples_per_prompt", "rollout.n"),
    ("scale_rewards", "objective.advantage.scale"),
    ("scheduler", "train.lr_schedule.kind"),
    ("steps", "train.total_steps"),
    ("temp", "rollout.temperature"),
    ("train_dataset", "data.train"),
    ("truncation_mode", "data.overlong_prompts"),
    ("use_adaptive_entropy", "objective.entropy.adaptive"),
    ("use_cpu", "learner.device"),
    ("use_vllm", "rollout.backend"),
    ("val.n", "validate.n"),
    ("val.temperature", "validate.temperature"),
    ("val_batch_size", "rollout.max_num_seqs"),
    ("val_dataset", "data.val"),
    ("val_kwargs.n", "validate.n"),
    ("val_max_samples", "validate.max_prompts"),
    ("warmup", "train.lr_schedule.warmup_steps"),
];

/// A word of another system or of a paper for a value of a key here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherValue {
    word: &'static str,
    /// Whose word it is.
    pub whose: &'static str,
    /// Our key.
    pub key: &'static str,
    /// Its value.
    pub value: &'static str,
}

const fn other(
    word: &'static str,
    whose: &'static str,
    key: &'static str,
    value: &'static str,
) -> OtherValue {
    OtherValue { word, whose, key, value }
}

/// Words that people write for a value: names of papers, and values of other systems whose key differs. The
/// catalogue has the names that are its entries' own, or are in their lists of other systems.
const VALUES: [OtherValue; 24] = [
    other("bypass_mode", "verl's", "objective.correction.preset", "bypass_ppo_clip"),
    other("check_reward_nonzero_std", "slime's", "filter.kind", "variance"),
    other("clip_higher", "DAPO's", "objective.loss.clip_high", "0.28"),
    other("dapo", "the recipe in verl", "simulate.policies", "verl"),
    other("dual_clip", "the paper's name", "objective.loss.dual_clip", "3.0"),
    other("dynamic_sampling", "DAPO's", "filter.kind", "variance"),
    other("dynamic_sampling.type=replace", "SkyRL's", "schedule.on_limit", "duplicate"),
    other("gmpo", "the paper's name", "objective.loss.kind", "geo_mean"),
    other("greso", "the paper's name", "schedule.selector.kind", "zero_variance_skip"),
    other("greso", "the paper's name", "simulate.policies", "zero_variance_skip"),
    other("grpo_vectorized", "verl's", "objective.advantage.kind", "grpo"),
    other("gspo_token", "the paper's name", "objective.importance", "sequence_token"),
    other("icepop", "the paper's name", "objective.correction.preset", "decoupled_token_icepop"),
    other("keep_when_insufficient", "slime's", "schedule.on_limit", "keep_dropped"),
    other("mis", "the usual name", "objective.correction.preset", "trl"),
    other("online_filtering", "EasyR1's", "filter.kind", "mean_range"),
    other("opd", "the usual name", "objective.advantage.kind", "on_policy_distillation"),
    other("ppo_clip", "verl's", "objective.loss.kind", "clip"),
    other("replace", "SkyRL's", "schedule.on_limit", "duplicate"),
    other("sequence_mask", "TRL's", "objective.correction.preset", "trl"),
    other("sequence_truncate", "TRL's", "objective.correction.preset", "decoupled_seq_is"),
    other("tis", "the usual name", "objective.correction.preset", "decoupled_token_is"),
    other("token_truncate", "TRL's", "objective.correction.preset", "decoupled_token_is"),
    other("use_dynamic_sample", "a fork of EasyR1's", "simulate.policies", "easyr1"),
];

/// Our key and value for a word of another system.
pub fn find_value(word: &str) -> Option<OtherValue> {
    VALUES.into_iter().find(|other| is_same(other.word, word))
}

/// The allowed value that another system, or a paper, calls `word`.
fn value_of(word: &str, allowed: &[&'static str]) -> Option<&'static str> {
    let mut meant = VALUES.iter().filter(|other| allowed.contains(&other.value));
    meant.find(|other| is_same(other.word, word)).map(|other| other.value)
}

/// Our setting that another system, or a paper, calls `word`. Simulations have names of their own.
fn setting_of(word: &str) -> Option<String> {
    let mut meant = VALUES.iter().filter(|other| !other.key.starts_with("simulate."));
    meant.find(|other| is_same(other.word, word)).map(|other| format!("{}={}", other.key, other.value))
}

/// Whether two words are the same up to case and the kind of separator.
fn is_same(one: &str, other: &str) -> bool {
    let fold = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    fold(one) == fold(other)
}

/// Our key for a word: one of [`WORDS`], an argument of TRL's trainers, or a key of verl's `data` or
/// optimizer. `None` if there is no single counterpart.
fn ours_of(word: &str) -> Option<&'static str> {
    let word = &word.to_lowercase();
    if let Some((_, ours)) = WORDS.iter().find(|(known, _)| known == word) {
        return Some(ours);
    }
    // A share of the steps is not a number of steps.
    if word.ends_with("_ratio") {
        return None;
    }
    let theirs = [
        (Owner::Trl, word.clone()),
        (Owner::Verl, format!("data.{word}")),
        (Owner::Verl, format!("actor_rollout_ref.actor.optim.{word}")),
        (Owner::Verl, format!("trainer.{word}")),
        (Owner::Verl, format!("actor_rollout_ref.rollout.{word}")),
    ];
    theirs.iter().find_map(|(owner, key)| {
        let row = owner.keys().iter().find(|row| row.key == key)?;
        match row.becomes {
            Becomes::Key(ours) | Becomes::By(_, ours) => Some(ours).filter(|ours| !ours.contains(' ')),
            Becomes::NoEffect(_) | Becomes::Unless(..) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry;
    use crate::key::ForeignKey;

    #[test]
    fn words_lead_to_keys_that_there_are() {
        for (word, ours) in WORDS {
            assert!(tamis_config::explain(ours).is_ok(), "{word}: {ours}");
            if OF_SEVERAL.contains(&word) {
                continue;
            }
            // TRL's argument has the same meaning.
            let theirs = entry(Owner::Trl, word).map_or(Becomes::NoEffect(""), |row| row.becomes.clone());
            if let Becomes::Key(targets) | Becomes::By(_, targets) = theirs {
                assert!(targets.split(' ').any(|target| target == ours), "{word} becomes {targets} of TRL");
            }
        }
        for (word, ours) in [
            ("lr", "train.optimizer.learning_rate"),
            ("learning_rate", "train.optimizer.learning_rate"),
            ("clip_grad", "train.optimizer.max_grad_norm"),
            ("num_generations", "rollout.n"),
            ("max_completion_length", "rollout.max_response_length"),
            ("num_train_epochs", "train.total_epochs"),
            ("max_steps", "train.total_steps"),
            ("train_files", "data.train"),
            ("weight_decay", "train.optimizer.weight_decay"),
        ] {
            assert_eq!(ours_of(word), Some(ours), "{word}");
        }
        assert_eq!(ours_of("LR"), ours_of("lr"));
        assert_eq!(ours_of("optimizer"), Some("train.optimizer"));
        assert_eq!(ours_of("eval.n"), Some("validate.n"));
        for word in ["fsdp_size", "lr_warmup_steps_ratio"] {
            assert_eq!(ours_of(word), None, "{word}");
        }
    }

    #[test]
    fn words_of_others_stand_for_values_that_there_are() {
        for OtherValue { word, key, value, .. } in VALUES {
            let explained = tamis_config::explain(key).unwrap_or_default();
            assert!(explained.contains(value), "{word}: {key}: {explained}");
        }
        let policies = ["verl", "zero_variance_skip", "posterior"];
        assert_eq!(value_of("GRESO", &policies), Some("zero_variance_skip"));
        assert_eq!(value_of("dapo", &policies), Some("verl"));
        assert_eq!(value_of("replace", &["use_partial", "duplicate"]), Some("duplicate"));
        assert_eq!(value_of("replace", &policies), None);
        let kept = other("keep_when_insufficient", "slime's", "schedule.on_limit", "keep_dropped");
        assert_eq!(find_value("keep-when-insufficient"), Some(kept));
        assert_eq!(find_value("keep_dropped"), None);
    }

    /// Those that fit no one key.
    const OF_SEVERAL: [&str; 12] = [
        "epsilon",
        "generation_kwargs",
        "gradient_accumulation_steps",
        "lr_warmup_steps_ratio",
        "optim",
        "steps_per_generation",
        "teacher_model_name_or_path",
        "teacher_model_server_url",
        "use_peft",
        "vllm_mode",
        "warmup_ratio",
        "clip_ratio",
    ];

    #[test]
    fn every_argument_with_a_counterpart_leads_to_one() {
        let of = |owner: Owner, prefix: &'static str| {
            let is_set = |row: &&ForeignKey| matches!(row.becomes, Becomes::Key(_) | Becomes::By(..));
            owner.keys().iter().filter(is_set).filter_map(move |row| row.key.strip_prefix(prefix))
        };
        let words = of(Owner::Trl, "")
            .chain(of(Owner::Verl, "data."))
            .chain(of(Owner::Verl, "actor_rollout_ref.actor.optim."));
        let without: Vec<&str> =
            words.filter(|word| ours_of(word).is_none() && !OF_SEVERAL.contains(word)).collect();
        assert!(without.is_empty(), "no key for {without:?}");
    }
}
