//! A policy whose logits are not finite.

use std::path::Path;

/// The fix for a policy whose logits are not finite, after so many steps, if the run knows.
pub(crate) fn logits_hint(step: Option<u64>, kept: Option<&Path>) -> String {
    match (step, kept) {
        (_, Some(kept)) => format!(
            "no later weights are saved; begin a new run from a checkpoint before it diverged (`model.path: {}`, or an earlier \
             one) with a lower train.optimizer.learning_rate, and look for a reward or an advantage without bound",
            kept.display()
        ),
        (None | Some(0), None) => "look at how these weights were made: begin from a checkpoint before they diverged, and \
             train with a lower learning rate (train.optimizer.learning_rate; that of supervised fine-tuning is \
             sft.learning_rate)"
            .to_owned(),
        (Some(_), None) => "nothing was saved: begin a new run with a lower train.optimizer.learning_rate; checkpoint.save_freq above \
             0 keeps states from before"
            .to_owned(),
    }
}
