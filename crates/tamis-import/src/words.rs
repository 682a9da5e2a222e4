//! Words that people try as keys: arguments of other trainers, used where only our keys are accepted.

use tamis_config::reader::OtherNames;

use crate::key::Becomes;
use crate::owner::Owner;
use crate::owner_of_section;

/// What an unknown key may mean.
pub(crate) const OTHER_NAMES: OtherNames = OtherNames { owner_of: owner_of_section, ours_of };

/// Common words that are no argument of any system, or that mean different things in several.
const WORDS: [(&str, &str); 28] = [
    ("batch_size", "data.train_batch_size"),
    ("beta", "objective.kl.coefficient"),
    ("dataset", "data.train"),
    ("epochs", "train.total_epochs"),
    ("eval_dataset", "data.val"),
    ("freq", "validate.test_freq"),
    ("grad_clip", "train.optimizer.max_grad_norm"),
    ("gradient_clipping", "train.optimizer.max_grad_norm"),
    ("group_size", "rollout.n"),
    ("kl_beta", "objective.kl.coefficient"),
    ("kl_coef", "objective.kl.coefficient"),
    ("kl_coeff", "objective.kl.coefficient"),
    ("max_new_tokens", "rollout.max_response_length"),
    ("max_response_len", "rollout.max_response_length"),
    ("max_seq_length", "rollout.max_response_length"),
    ("max_tokens", "rollout.max_response_length"),
    ("model_name", "model.path"),
    ("num_epochs", "train.total_epochs"),
    ("num_samples", "rollout.n"),
    ("num_steps", "train.total_steps"),
    ("rollouts_per_example", "rollout.n"),
    ("samples_per_prompt", "rollout.n"),
    ("scheduler", "train.lr_schedule.kind"),
    ("steps", "train.total_steps"),
    ("temp", "rollout.temperature"),
    ("train_dataset", "data.train"),
    ("val_dataset", "data.val"),
    ("warmup", "train.lr_schedule.warmup_steps"),
];

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

    #[test]
    fn words_lead_to_keys_that_there_are() {
        for (word, ours) in WORDS {
            assert!(tamis_config::explain(ours).is_ok(), "{word}: {ours}");
            // TRL's argument has the same meaning.
            assert!(*word == *"beta" || entry(Owner::Trl, word).is_none(), "{word} is an argument of TRL");
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
        for word in ["fsdp_size", "lr_warmup_steps_ratio"] {
            assert_eq!(ours_of(word), None, "{word}");
        }
    }
}
