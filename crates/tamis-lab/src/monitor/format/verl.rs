//! What verl prints: `step:3 - critic/score/mean:0.41 - ...` after every step,
//! `num_prompt_in_batch=424 < prompt_bsz=1024` and `num_gen_batches=1. Keep generating...` if a batch does
//! not fill the step, `Total training steps: 435`, a progress bar, and its configuration at the start.
//! Verdicts are not printed: the number of groups that were kept of the batch that fills a step is unknown.
//! Its default trainer counts what its buffer dropped and discarded in the figures of the step ([`COUNTS`]).

use crate::monitor::fact::Fact;
use crate::monitor::line::{Line, number, number_after, python_number};

/// Groups that left the buffer of verl's default trainer (0.9.1) in a step, by our names of the places. A
/// count of 0 is left out.
pub(in crate::monitor) const COUNTS: [(&str, &str); 4] = [
    ("dropped", "training/filter_groups/evicted_samples"),
    ("surplus", "training/filter_groups/discarded_surplus_samples"),
    ("stale", "training/off_policy/evicted_samples"),
    ("failed", "training/rollout_failure/evicted_samples"),
];

pub(super) fn read(line: &Line<'_>) -> Vec<Fact> {
    let text = line.text.trim();
    if let Some((step, rest)) = text.strip_prefix("step:").and_then(number)
        && let Some(rest) = rest.strip_prefix(" - ")
    {
        let values = rest.split(" - ").filter_map(|part| {
            let (name, value) = part.split_once(':')?;
            Some((name.trim().to_owned(), python_number(value)?))
        });
        return vec![Fact::Trained { step, values: values.collect() }];
    }
    if let Some(ready) = number_after(text, "num_prompt_in_batch=") {
        let is_enough = text.contains(">=");
        return vec![Fact::Accumulated { ready, target: number_after(text, "prompt_bsz="), is_enough }];
    }
    if let Some(batches) = number_after(text, "num_gen_batches=") {
        if text.contains("Keep generating") || text.contains("Continue generating") {
            return vec![Fact::Refills(batches)];
        }
        if text.contains("max_num_gen_batches=") {
            return vec![Fact::Refills(batches), Fact::Error(text.to_owned())];
        }
    }
    if let Some(total) = total(text, "Training Progress:") {
        return vec![Fact::TotalSteps(total)];
    }
    let sizes = [
        number_after(text, "'gen_batch_size': ").map(Fact::GenBatchSize),
        number_after(text, "'train_batch_size': ").map(Fact::TrainBatchSize),
    ];
    sizes.into_iter().flatten().collect()
}

/// The number of steps, from the line `Total training steps` or from a progress bar:
/// `Training Progress: 10%|█ | 5/435 [`.
pub(super) fn total(text: &str, bar: &str) -> Option<u64> {
    if let Some(rest) = text.strip_prefix("Total training steps: ") {
        return number(rest).map(|(total, _)| total);
    }
    let (_, rest) = text.split_once(bar)?;
    let (_, rest) = rest.rsplit_once("| ")?;
    let (done, total) = rest.split_once('/')?;
    done.trim().parse::<u64>().ok()?;
    number(total).map(|(total, _)| total).filter(|total| *total > 0)
}
