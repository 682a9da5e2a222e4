//! What a run that has ended without learning was like, and what to change: for the end of `tamis train` and
//! for the page of `tamis report`.
//!
//! Whether it learned is a question of uncertainty: the held-out prompts must have gained more than the
//! noise, prompt by prompt ([`PairedDifference::change`]); without a validation the rewards of everything
//! generated must have moved. What to change is what [`advise`] finds in the run's rollouts.

use std::path::Path;

use serde::Serialize;
use tamis_config::{Config, length_may_change};
use tamis_core::figure::{counted, percent};
use tamis_run::metrics::summary::{Change, PairedDifference};

use super::finding::Weight;
use super::{Advice, AdvicePlan, advise, read};
pub use crate::compare::paired::Gains;
use crate::compare::rewards::reward_is_unclear;
use crate::compare::series::Series;

/// Changes that are named, at most.
const MOST_CHANGES: usize = 3;
/// So many held-out prompts show a gain of a few points.
const MANY_PROMPTS: usize = 200;
/// Factor by which a learning rate is changed.
const STEP_OF_RATE: f64 = 3.0;
/// Factor by which a run is made longer.
const LONGER: u64 = 4;

/// What to say of a run that has ended without learning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndAdvice {
    /// What was seen, with numbers.
    pub verdict: String,
    /// What to change, the weightiest first.
    pub changes: Vec<String>,
    /// How small a gain the held-out prompts can show, if that is what is missing.
    pub resolution: Option<String>,
}

impl EndAdvice {
    /// The lines of a console.
    pub fn lines(&self) -> Vec<String> {
        let rest = self.changes.iter().chain(&self.resolution).map(|line| format!("  {line}"));
        std::iter::once(self.verdict.clone()).chain(rest).collect()
    }
}

/// What to say at the end of a run in which nothing was learned. `None` if it learned, or if that cannot be
/// told: without a validation before and after of runs of a few steps.
pub fn end_advice(run: &Path, config: &Config, held_out: Option<Gains>) -> Option<EndAdvice> {
    let series = Series::read(run).unwrap_or_default();
    let plan = AdvicePlan::of_run(config);
    let advice = read(run, None, None, &plan).ok().map(|evidence| advise("", &evidence, &plan));
    let verdict = verdict(held_out, &series, advice.as_ref())?;
    let mut changes = changes(run, config, held_out, &series, advice.as_ref());
    changes.truncate(MOST_CHANGES);
    let resolution = held_out.and_then(|Gains { difference, is_share }| {
        let gains = difference.summary;
        let error = gains.standard_error().filter(|_| is_share && gains.count < MANY_PROMPTS)?;
        Some(format!(
            "on {} a gain below {} cannot be detected: more of them in data.val can show a smaller one",
            counted(gains.count, "prompt"),
            percent(2.0 * error)
        ))
    });
    Some(EndAdvice { verdict, changes, resolution })
}

/// That nothing was learned, or that the change is within the noise, with the numbers that show it.
fn verdict(held_out: Option<Gains>, series: &Series, advice: Option<&Advice>) -> Option<String> {
    let steps = counted(series.rows.iter().filter(|row| row.step > 0).count(), "step");
    if let Some(held_out) = held_out {
        let PairedDifference { summary, num_changed } = held_out.difference;
        let numbers = format!(
            "{} on {}, prompt by prompt",
            held_out.describe(),
            counted(summary.count, "validation prompt")
        );
        return match held_out.difference.change() {
            Change::Better => None,
            _ if summary.count < 2 => None,
            Change::Worse => Some(format!("nothing was learned in {steps}: it got worse ({numbers})")),
            Change::None => {
                Some(format!("nothing was learned in {steps}: no validation prompt changed ({numbers})"))
            }
            Change::Unclear => Some(format!(
                "no clear change in {steps}: the difference is within the noise ({numbers}; {num_changed} changed)"
            )),
        };
    }
    if advice.and_then(|advice| advice.keep_rate).is_some_and(|keep| keep.value <= 0.0) {
        return Some(format!("nothing was learned in {steps}: no group had members with different rewards"));
    }
    reward_is_unclear(series).map(|change| format!("nothing was learned in {steps}: {change}"))
}

/// What to change, the weightiest first.
fn changes(
    run: &Path,
    config: &Config,
    held_out: Option<Gains>,
    series: &Series,
    advice: Option<&Advice>,
) -> Vec<String> {
    let mut changes = Vec::new();
    let findings = advice.into_iter().flat_map(|advice| &advice.findings);
    for finding in findings.filter(|finding| finding.weight == Weight::Warning) {
        let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!("; {fix}"));
        changes.push(format!("{}: {}{fix}", finding.topic, finding.text));
    }
    if let Some(advice) = advice {
        if let Some((n, why)) = &advice.group_size {
            changes.push(format!("rollout.n: {} -> {n}, which {why}", advice.plan.n));
        }
        let keep = advice.keep_rate.map(|keep| keep.value);
        if changes.is_empty() && keep.is_some_and(|keep| keep <= 0.0) {
            changes.extend(advice.filter.reasons.first().cloned());
        }
    }
    let is_worse = held_out.is_some_and(|held_out| held_out.difference.change() == Change::Worse);
    if is_worse {
        let rate = config.train.optimizer.learning_rate;
        changes.push(format!(
            "train.optimizer.learning_rate: {rate:e} -> {}: the updates may be too large",
            rounded(rate / STEP_OF_RATE)
        ));
    } else if changes.is_empty() {
        // There is something to learn from.
        let steps = series.rows.last().map_or(0, |row| row.step);
        let (key, longer) = match (config.train.total_steps, config.train.total_epochs) {
            (None, Some(epochs)) => ("train.total_epochs", epochs as u64 * LONGER),
            _ => ("train.total_steps", steps * LONGER),
        };
        let run = run.display();
        let how = if length_may_change(config) {
            format!("`{} --resume {run} {key}={longer}` trains further", config.train_command())
        } else {
            format!("begin a new run with `{key}={longer}`, which the learning rate follows")
        };
        let keep = advice.and_then(|advice| advice.keep_rate).map_or_else(String::new, |keep| {
            format!(" ({} of groups have members that differ)", percent(keep.value))
        });
        changes.push(format!(
            "there is something to learn from{keep}, and {} may be too few: {how}",
            counted(steps, "step")
        ));
    }
    changes
}

/// With one digit: 1e-6 / 3 is 3e-7.
fn rounded(rate: f64) -> String {
    format!("{rate:.0e}")
}

#[cfg(test)]
mod tests {
    use tamis_config::source::{Source, SourceKind};

    use super::*;

    fn held_out(gains: &[f64]) -> Gains {
        let after: Vec<Option<f64>> = gains.iter().copied().map(Some).collect();
        let difference = PairedDifference::new(&vec![Some(0.0); after.len()], &after).expect("prompts");
        Gains { difference, is_share: true }
    }

    fn series(rewards: &[f64]) -> Series {
        let row = |(at, reward): (usize, &f64)| {
            format!("{{\"step\":{},\"all/critic/score/mean\":{reward}}}\n", at + 1)
        };
        Series::parse(&rewards.iter().enumerate().map(row).collect::<String>())
    }

    /// Gains of 1, -1, 1, 0 have a mean of 1/4 and a deviation of sqrt(11/12), so an error of 0.479.
    #[test]
    fn a_change_within_the_noise_is_no_verdict() {
        let two = series(&[0.1, 0.2]);
        let said = |gains: &[f64]| verdict(Some(held_out(gains)), &two, None);
        let unclear = said(&[1.0, -1.0, 1.0, 0.0]).expect("no clear change");
        insta::assert_snapshot!(unclear, @"no clear change in 2 steps: the difference is within the noise (+25.0% ± 47.9% on 4 validation prompts, prompt by prompt; 3 changed)");
        assert_eq!(said(&[1.0, 0.0, 1.0, 1.0]), None, "0.75 ± 0.25");
        let worse = said(&[-1.0, 0.0, -1.0, -1.0]).expect("nothing learned");
        assert!(worse.contains("it got worse (-75.0% ± 25.0%"), "{worse}");
        let same = said(&[0.0, 0.0]).expect("nothing learned");
        assert!(same.contains("no validation prompt changed (+0.0% on 2 validation prompts"), "{same}");
        assert_eq!(said(&[0.0]), None, "one prompt says nothing");
    }

    /// One prompt that flips is as many standard errors as it is of any number of prompts: one.
    #[test]
    fn one_prompt_that_flips_decides_nothing() {
        let two = series(&[0.1, 0.2]);
        for (flip, shown) in [(1.0, "+3.1% ± 3.1%"), (-1.0, "-3.1% ± 3.1%")] {
            let mut gains = [0.0; 32];
            gains[7] = flip;
            let said = verdict(Some(held_out(&gains)), &two, None).expect("no clear change");
            let numbers =
                format!("within the noise ({shown} on 32 validation prompts, prompt by prompt; 1 changed)");
            assert!(said.starts_with("no clear change in 2 steps: ") && said.ends_with(&numbers), "{said}");
        }
    }

    #[test]
    fn without_a_validation_the_rewards_must_have_moved() {
        let flat: Vec<f64> = (0..20).map(|at| if at % 2 == 0 { 0.1 } else { 0.12 }).collect();
        let text = verdict(None, &series(&flat), None).expect("nothing learned");
        assert!(text.starts_with("nothing was learned in 20 steps: the mean reward"), "{text}");
        let rising: Vec<f64> = (0..20).map(|at| f64::from(at) / 20.0).collect();
        assert_eq!(verdict(None, &series(&rising), None), None);
        assert_eq!(verdict(None, &series(&[0.1, 0.1]), None), None, "two steps say nothing");
    }

    #[test]
    fn what_to_change_has_its_value() {
        let yaml = "train: {total_steps: 2, optimizer: {learning_rate: 1.0e-6}}\n";
        let source = Source::new(SourceKind::File("a.yaml".into()), yaml);
        let config = tamis_config::load_sections(&source).expect("a configuration");
        let steps = series(&[0.1, 0.2]);
        let of = |gains: &[f64]| changes(Path::new("runs/a"), &config, Some(held_out(gains)), &steps, None);
        assert_eq!(
            of(&[-1.0, 0.0, -1.0, -1.0]),
            ["train.optimizer.learning_rate: 1e-6 -> 3e-7: the updates may be too large"]
        );
        // Only what is really worse has too large updates.
        for unclear in [&[0.0, 0.0][..], &[-1.0, 0.0, 0.0, 0.0], &[1.0, 0.0, 0.0, 0.0]] {
            assert_eq!(
                of(unclear),
                [
                    "there is something to learn from, and 2 steps may be too few: `tamis train --resume runs/a train.total_steps=8` trains further"
                ]
            );
        }
    }
}
