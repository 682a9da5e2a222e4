//! TRL's batch sizes and lengths, which count completions and updates.

use crate::key::Rule;
use crate::owner::Owner;
use crate::translator::Translator;

const DEVICE: &str = "per_device_train_batch_size";

/// TRL's default of it.
const DEFAULT_DEVICE: &str = "8";

const ACCUMULATION: &str = "gradient_accumulation_steps";

const STEPS: &str = "steps_per_generation";

const GENERATION: &str = "generation_batch_size";

const PROCESSES: &str = "num_processes";

const SIZES: [&str; 5] = [GENERATION, DEVICE, ACCUMULATION, STEPS, PROCESSES];

/// TRL's sizes, which count completions, in prompts.
struct Sizes {
    /// Completions of one forward and backward pass of one device.
    device: f64,
    /// Completions of one generation, over all devices.
    generated: f64,
    /// Completions of one update, over all devices.
    update: f64,
    /// Completions of a group.
    group: f64,
    /// Passes over what was generated.
    passes: f64,
}

impl Sizes {
    fn of(t: &mut Translator) -> Self {
        let device = t.number(DEVICE).unwrap_or(8.0);
        let accumulation = t.number(ACCUMULATION).unwrap_or(1.0);
        let processes = t.number(PROCESSES).unwrap_or(1.0);
        let steps = t.number(STEPS).unwrap_or(accumulation);
        Self {
            device,
            generated: t.number(GENERATION).unwrap_or(device * processes * steps),
            update: device * processes * accumulation,
            group: t.number("num_generations").unwrap_or(8.0),
            passes: t.number("num_iterations").unwrap_or(1.0),
        }
    }

    /// Updates from one generation to the next: a step of ours is one generation, a step of TRL's is one
    /// update.
    fn updates_per_step(&self) -> f64 {
        (self.generated / self.update).max(1.0) * self.passes
    }
}

fn is_count(value: f64) -> bool {
    value >= 1.0 && value.fract() == 0.0
}

/// Batch sizes, which count completions.
pub(super) const BATCH: Rule = Rule::new(2, "batch", batch);

/// TRL counts completions; a step of its generation is ours, one of its optimizer is our mini-batch.
pub(crate) fn batch(t: &mut Translator) {
    let Some(key) = t.first_given(&SIZES).or_else(|| t.whole.then(|| DEVICE.to_owned())) else { return };
    if t.text(GENERATION).is_some() && t.text(STEPS).is_some() {
        t.refuse(STEPS, "generation_batch_size is given too, and TRL takes one of them");
        return;
    }
    let sizes = Sizes::of(t);
    let Sizes { generated, update, group, .. } = sizes;
    let (prompts, mini) = (generated / group, update / group);
    if !is_count(prompts) || !is_count(mini) {
        let reason = format!(
            "{generated} completions a generation and {update} an update are not whole groups of {group} (num_generations); a group is \
             never split here"
        );
        t.refuse_or_default(Owner::Trl, &key, DEFAULT_DEVICE, reason);
        return;
    }
    // Several generations for one update are sampled from the same weights: one generation of ours.
    let merged = mini > prompts;
    if merged && (!is_count(mini / prompts) || sizes.passes > 1.0) {
        let reason = format!(
            "an update of {update} completions is not made of whole generations of {generated}, each of them used once: set \
             steps_per_generation to a multiple of gradient_accumulation_steps"
        );
        t.refuse_or_default(Owner::Trl, &key, DEFAULT_DEVICE, reason);
        return;
    }
    let prompts = prompts.max(mini);
    if t.first_given(&SIZES).is_some() {
        t.set(&SIZES, "data.train_batch_size", &prompts.to_string());
        t.set(
            &[ACCUMULATION, DEVICE, GENERATION, STEPS, PROCESSES],
            "train.ppo_mini_batch_size",
            &mini.to_string(),
        );
    } else {
        let (prompts, mini) = (prompts.to_string(), mini.to_string());
        let sizes =
            [("data.train_batch_size", prompts.as_str()), ("train.ppo_mini_batch_size", mini.as_str())];
        t.defaults(Owner::Trl, DEVICE, &sizes);
        return;
    }
    if t.find(DEVICE).is_some() {
        t.set(&[DEVICE], "train.micro_batch_size", &sizes.device.to_string());
    }
    let remark = if merged {
        "TRL counts completions, prompts are counted by tamis; the generations of one update are one here: the same weights sample them"
    } else {
        "TRL counts completions; prompts are counted by tamis"
    };
    t.remark(&key, remark);
    for part in SIZES {
        t.part_of(part, &key);
    }
}

/// A number of TRL's steps, which are updates, in steps of ours.
pub(crate) fn in_steps_of_ours(t: &mut Translator, steps: f64) -> f64 {
    (steps / Sizes::of(t).updates_per_step()).ceil()
}

/// Sets one of ours to a number of TRL's steps; says so where they are not ours.
pub(super) fn steps_of_ours(t: &mut Translator, keys: &[&str], ours: &str, steps: f64) {
    let updates = Sizes::of(t).updates_per_step();
    let steps = in_steps_of_ours(t, steps);
    t.set(keys, ours, &steps.to_string());
    if updates > 1.0
        && let Some(key) = t.first_given(keys)
    {
        t.remark(&key, &format!("TRL counts updates, and a step of tamis has {updates} of them"));
    }
}

/// `max_steps` and epochs.
pub(super) const LENGTH: Rule = Rule::new(2, "length", length);

/// Length of a run: `max_steps` counts updates and goes before the epochs.
fn length(t: &mut Translator) {
    const MAX: &str = "max_steps";
    const EPOCHS: &str = "num_train_epochs";
    match t.number(MAX) {
        Some(steps) if steps > 0.0 => {
            steps_of_ours(t, &[MAX], "train.total_steps", steps);
            t.no_effect(EPOCHS, "max_steps is given, and goes before it");
            return;
        }
        _ => t.no_effect(MAX, "num_train_epochs says how long the run is"),
    }
    match t.number(EPOCHS) {
        Some(epochs) if is_count(epochs) => t.set(&[EPOCHS], "train.total_epochs", &epochs.to_string()),
        Some(epochs) => {
            let reason = format!(
                "epochs are whole here: give max_steps, {epochs} times the prompts of the data, divided by the prompts of one step"
            );
            t.refuse(EPOCHS, reason);
        }
        None => t.no_effect(EPOCHS, "null leaves the default"),
    }
}

/// When TRL evaluates and saves.
pub(super) const INTERVALS: Rule = Rule::new(2, "intervals", intervals);

fn intervals(t: &mut Translator) {
    for (strategy, steps, ours) in [
        ("eval_strategy", "eval_steps", "validate.test_freq"),
        ("save_strategy", "save_steps", "checkpoint.save_freq"),
    ] {
        let by_steps = match t.text(strategy).as_deref() {
            Some("steps") => true,
            Some("no") => false,
            Some("epoch" | "best") => {
                t.refuse(strategy, "intervals are counted in steps: use `steps`");
                continue;
            }
            Some(_) => {
                t.bad_value(strategy, "no, steps or epoch");
                continue;
            }
            // Saving is by steps unless said otherwise, evaluation is off.
            None => strategy == "save_strategy",
        };
        if by_steps && t.first_given(&[steps, strategy]).is_some() {
            // What TRL takes where no interval is given; validation has that of the log.
            let default =
                if steps == "save_steps" { 500.0 } else { t.number("logging_steps").unwrap_or(10.0) };
            let mut every = t.number(steps).filter(|&every| every > 0.0).unwrap_or(default);
            if every < 1.0 {
                let Some(total) = t.number("max_steps").filter(|&total| total > 0.0) else {
                    t.refuse(steps, "a share of the run is steps only where max_steps is given: give steps");
                    continue;
                };
                every = (every * total).ceil();
            }
            steps_of_ours(t, &[steps, strategy], ours, every);
        } else if t.find(strategy).is_some() {
            t.set(&[strategy], ours, "0");
        }
        t.no_effect(steps, "its strategy is `no`");
        t.no_effect(strategy, "the interval is in steps");
    }
}
