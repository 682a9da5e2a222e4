//! Rules about mini-batches, micro-batches, the learning rate, the length of a run and its early stop.

use tamis_core::figure::counted;
use tamis_core::schedule::{OnEmptyRound, OnLimit, RoundLimit};

use super::Checker;
use crate::schema::LrScheduleKind;
use crate::value::Frequency;

impl Checker<'_> {
    pub(super) fn train(&mut self) {
        let config = self.config;
        let train = &config.train;
        self.mini_batches();
        if train.total_steps.is_none() && train.total_epochs.is_none() {
            self.missing(
                &["train.total_steps", "train.total_epochs", "train"],
                "the length of the run is not set: neither `train.total_steps` nor `train.total_epochs` is given",
                "set `train.total_steps` or `train.total_epochs`",
            );
        }
        let kind = train.lr_schedule.kind;
        if kind == LrScheduleKind::Constant {
            self.warn_ignored(&["train.lr_schedule.min_ratio"], "the learning rate is constant");
        } else if train.total_steps.is_none() && (train.total_epochs.is_none() || config.refills()) {
            let filtered = match train.total_epochs {
                Some(_) => " (with a filter, the number of epochs does not determine it)",
                None => "",
            };
            self.missing(
                &["train.lr_schedule.kind", "train.total_steps"],
                format!(
                    "`train.lr_schedule.kind: {kind}` falls towards the last step, but the number of steps is not known{filtered}"
                ),
                "set `train.total_steps`, or `train.lr_schedule.kind: constant`",
            );
        }
        let warmup = train.lr_schedule.warmup_steps;
        if let Some(total) = train.total_steps
            && warmup >= total
            && warmup > 0
        {
            self.warn(
                &["train.lr_schedule.warmup_steps", "train.total_steps"],
                format!(
                    "`train.lr_schedule.warmup_steps` ({warmup}) is not below `train.total_steps` ({total}): the \
                     learning rate only rises"
                ),
                format!("use fewer than {total} warm-up steps"),
            );
        }
    }

    fn mini_batches(&mut self) {
        let config = self.config;
        let train = &config.train;
        let (mini, batch, n) = (config.mini_batch_size(), config.data.train_batch_size, config.rollout.n);
        let keys = ["train.ppo_mini_batch_size", "data.train_batch_size"];
        if mini > batch {
            self.error(
                &keys,
                format!(
                    "`train.ppo_mini_batch_size` ({mini}) is above `data.train_batch_size` ({batch}); both count \
                     prompts"
                ),
                format!("use {batch} or less, or null for one update a step"),
            );
        } else if !batch.is_multiple_of(mini) {
            self.warn(
                &keys,
                format!(
                    "`data.train_batch_size` ({batch}) is not divisible by `train.ppo_mini_batch_size` ({mini}): \
                     the last of {} updates of a step has {}",
                    batch.div_ceil(mini),
                    counted(batch % mini, "prompt")
                ),
                divisors_near(batch, mini),
            );
        }
        if let Some(micro) = train.micro_batch_size {
            let keys = ["train.micro_batch_tokens", "train.balance_micro_batches"];
            self.warn_ignored(&keys, "`train.micro_batch_size` is set");
            let trajectories = mini.saturating_mul(n);
            if !trajectories.is_multiple_of(micro) {
                self.error(
                    &["train.micro_batch_size", "train.ppo_mini_batch_size", "rollout.n"],
                    format!(
                        "a mini-batch of {mini} prompts x {n} trajectories = {trajectories} is not divisible by \
                         `train.micro_batch_size` ({micro})"
                    ),
                    format!(
                        "use {}, or remove it: `train.micro_batch_tokens` needs no divisor",
                        divisor_below(trajectories, micro)
                    ),
                );
            }
        }
        if mini == batch && train.shuffle_mini_batches {
            self.warn_ignored(&["train.shuffle_mini_batches"], "a step is one mini-batch");
        }
    }

    pub(super) fn early_stop(&mut self) {
        let config = self.config;
        let early_stop = &config.train.early_stop;
        if early_stop.low_success.is_some()
            && (!config.has_validation_data() || config.validate.test_freq == Frequency::NEVER)
        {
            self.error(
                &["train.early_stop.low_success", "train.early_stop"],
                "`train.early_stop.low_success` looks at validation, but there is none",
                "set `data.val` and `validate.test_freq`",
            );
        }
        if early_stop.reward_collapse.as_ref().is_some_and(|stop| stop.share >= 1.0) {
            self.error(
                &["train.early_stop.reward_collapse.share"],
                "`train.early_stop.reward_collapse.share` is 1: half of all runs would stop at once",
                "use 0.1",
            );
        }
        let schedule = &config.schedule;
        let has_limit = config.refills() && schedule.max_num_gen_batches.0 != RoundLimit::None;
        let gives_up = schedule.on_empty_round.0 == OnEmptyRound::Skip
            || (has_limit && schedule.on_limit != OnLimit::Error);
        if config.filter.is_none() || !gives_up {
            self.warn_ignored(
                &["train.early_stop.empty_steps"],
                "no step is ever skipped or cut short for lack of groups",
            );
        }
        let analysis = config.train.gradient_analysis.as_ref();
        let Some(edges) = analysis.and_then(|analysis| analysis.edges.as_ref()) else { return };
        self.warn_ignored(&["train.gradient_analysis.buckets"], "`train.gradient_analysis.edges` is set");
        if let Some(&[previous, edge]) = edges.windows(2).find(|pair| pair[0] >= pair[1]) {
            self.error(
                &["train.gradient_analysis.edges"],
                format!("`train.gradient_analysis.edges` must ascend, but {edge} comes after {previous}"),
                "write the edges in ascending order",
            );
        }
    }
}

/// The hint of a mini-batch that does not divide its batch.
pub(super) fn divisors_near(batch: usize, mini: usize) -> String {
    format!("{} or {} divide {batch}", divisor_below(batch, mini), divisor_above(batch, mini))
}

/// The largest divisor of `whole` that is at most `near`.
fn divisor_below(whole: usize, near: usize) -> usize {
    divisors(whole).filter(|&part| part <= near).max().unwrap_or(1)
}

/// The smallest divisor of `whole` that is at least `near`.
fn divisor_above(whole: usize, near: usize) -> usize {
    divisors(whole).filter(|&part| part >= near).min().unwrap_or(whole)
}

/// The divisors of a number, in pairs. For a number above any batch size, only those near its ends, so
/// messages stay fast.
fn divisors(whole: usize) -> impl Iterator<Item = usize> {
    (1..=whole.isqrt().min(1 << 16))
        .filter(move |&part| whole.is_multiple_of(part))
        .flat_map(move |part| [part, whole / part])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_divisors() {
        let near = |whole, near| (divisor_below(whole, near), divisor_above(whole, near));
        assert_eq!(near(64, 48), (32, 64));
        assert_eq!(near(36, 7), (6, 9));
        assert_eq!(near(7, 3), (1, 7));
        assert_eq!(near(12, 12), (12, 12));
        // At once, and divisors all the same.
        let (below, above) = near(1_000_000_000_000_000, 900_000_000_000_000);
        assert_eq!((below, above), (500_000_000_000_000, 1_000_000_000_000_000));
        assert_eq!(near(usize::MAX, usize::MAX - 1), (usize::MAX / 3, usize::MAX));
    }
}
