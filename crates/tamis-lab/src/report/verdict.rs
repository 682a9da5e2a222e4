//! One sentence that answers "is it learning?".
//!
//! It compares the first validation with the last by their standard error. Without a validation it compares
//! the rewards of everything generated at the beginning and at the end.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::path::Path;

use tamis_core::figure::{counted, fixed, percent};
use tamis_run::directory::CONFIG;
use tamis_run::metrics;
use tamis_run::metrics::summary::{Change, PairedDifference, is_clear};

use super::run::Run;
use crate::advise::{self, EndAdvice};
use crate::compare::measure::{Choice, source_of, standard_error};
use crate::compare::paired::{self, ValidationFacts};
use crate::compare::rewards::{reward, values};
use crate::compare::series::Series;
use crate::monitor::summary::WatchedState;

/// Truncation is mentioned from this share of cut completions on.
const MANY_CUT: f64 = 0.05;

/// The sentence; `None` if the run has no figure for it.
pub(crate) fn of_run(run: &Run) -> Option<String> {
    let mut text = of_series(&run.series, gains(&run.path), run.validations)?;
    if let Some((_, cut)) = values(&run.series, "response_length/clip_ratio").last()
        && *cut >= MANY_CUT
    {
        let limit = run.settings.get("rollout.max_response_length");
        let limit = limit.map_or_else(String::new, |limit| format!(" at {limit} tokens"));
        let _ = write!(text, " {} of the completions of the last step are cut{limit}.", percent(*cut));
    }
    Some(text)
}

fn gains(run: &Path) -> Option<PairedDifference> {
    paired::before_and_after(run).map(|(_, gains)| gains.difference)
}

/// What `acc` is, if the validation of the run has it.
pub(crate) fn about_acc(series: &Series) -> Option<&'static str> {
    let name = Choice::Validation.name(series)?;
    name.contains("/acc/").then(|| metrics::about_acc(series.is_graded()))
}

/// What the end of the run printed of what to change, if the run has ended and did not learn.
pub(crate) fn end_advice(run: &Run) -> Option<EndAdvice> {
    let has_ended = matches!(run.state, WatchedState::Finished | WatchedState::StoppedEarly);
    if !has_ended || run.other.is_some() {
        return None;
    }
    let config = tamis_config::load_of_run(&run.path.join(CONFIG), &[], &[]).ok()?.config;
    let mut validated =
        Choice::Validation.name(&run.series).map_or_else(Vec::new, |name| values(&run.series, &name));
    validated.retain(|(step, _)| *step >= run.validations.since);
    let held_out = paired::before_and_after(&run.path);
    // The end of a run compares two validations. Without both of them there would be other advice here.
    let is_compared = validated.first().is_some_and(|(step, _)| *step == 0);
    if is_compared && held_out.map(|(step, _)| step) != validated.last().map(|(step, _)| *step) {
        return None;
    }
    advise::end_advice(&run.path, &config, held_out.map(|(_, gains)| gains))
}

/// `gains` are those of the held-out prompts, prompt by prompt, if they are known.
fn of_series(series: &Series, gains: Option<PairedDifference>, facts: ValidationFacts) -> Option<String> {
    validation(series, gains, facts).or_else(|| {
        let (verdict, change) = reward(series)?;
        let verdict = match verdict {
            Ordering::Equal => "No clear change",
            Ordering::Greater => "The reward rises",
            Ordering::Less => "The reward falls",
        };
        Some(format!(
            "{verdict}: {change}. There is no validation: held-out prompts (`data.val`) would show what it has learned."
        ))
    })
}

fn validation(series: &Series, gains: Option<PairedDifference>, facts: ValidationFacts) -> Option<String> {
    let ValidationFacts { since, num_in_training, .. } = facts;
    let name = Choice::Validation.name(series)?;
    let values_of = |name: &str| values(series, name);
    let mut all = values_of(&name);
    all.retain(|(step, _)| *step >= since);
    let changed = (since > 0).then(|| {
        format!("validations before step {since} are left out, because what they measure changed on a resume")
    });
    if let (true, Some(changed)) = (all.is_empty(), &changed) {
        return Some(format!("No comparable validation so far: {changed}."));
    }
    let changed = changed.map_or_else(String::new, |changed| format!(" ({changed})"));
    let (&(first_step, first), &(last_step, last)) = (all.first()?, all.last()?);
    let is_share = all.iter().all(|(_, value)| (0.0..=1.0).contains(value));
    let shown = |value: f64| if is_share { percent(value) } else { fixed(value, 3) };
    let num_prompts = source_of(&name).map(|source| values_of(&format!("val-aux/{source}/num_prompts")));
    let prompts =
        num_prompts.and_then(|numbers| numbers.last().copied()).map_or_else(String::new, |(_, number)| {
            match num_in_training {
                0 => format!(" of {}", counted(number, "held-out prompt")),
                trained => {
                    format!(" of {} ({trained} in the training data)", counted(number, "validation prompt"))
                }
            }
        });
    let what = match name.contains("/acc/") {
        true if series.is_graded() => "the mean of `acc`",
        true => "accuracy",
        false => "the mean score",
    };
    if all.len() == 1 {
        return Some(format!("One validation so far: {what}{prompts} is {}{changed}.", shown(last)));
    }
    let last_error = standard_error(series, &name, last_step, last);
    let change = last - first;
    let paired = gains.filter(|gains| (gains.summary.mean - change).abs() < paired::SAME);
    let error = paired.and_then(|gains| gains.summary.standard_error()).or_else(|| {
        let errors = standard_error(series, &name, first_step, first).zip(last_error);
        errors.map(|(one, other)| (one.powi(2) + other.powi(2)).sqrt())
    });
    let within = error.map_or_else(String::new, |error| format!(" (± {})", shown(error)));
    let judged = match (paired, error) {
        (Some(gains), _) => gains.change(),
        (None, Some(error)) if is_clear(change, error) && change > 0.0 => Change::Better,
        (None, Some(error)) if is_clear(change, error) => Change::Worse,
        (None, _) => Change::Unclear,
    };
    let verdict = match judged {
        Change::Better => "It learns",
        Change::Worse => "It gets worse",
        Change::None | Change::Unclear if error.is_none() => {
            "There are too few prompts to tell whether it learns"
        }
        Change::None if num_in_training > 0 => "No validation prompt changed",
        Change::None => "No held-out prompt changed",
        Change::Unclear => "No clear change, the difference is within the noise",
    };
    let trend = last_error.and_then(|error| trend(&all, error));
    let trend = trend.map_or_else(String::new, |trend| format!(", {trend}"));
    Some(format!(
        "{verdict}: {what}{prompts} went from {} to {}{within} in {}{trend}{changed}.",
        shown(first),
        shown(last),
        counted(last_step - first_step, "step")
    ))
}

/// The change in the last quarter of the validations, against the quarter before it.
fn trend(values: &[(u64, f64)], error: f64) -> Option<String> {
    let quarter = values.len() / 4;
    if quarter == 0 {
        return None;
    }
    let mean = |values: &[(u64, f64)]| values.iter().map(|(_, value)| value).sum::<f64>() / quarter as f64;
    let (before, last) = values.split_at(values.len() - quarter);
    let change = mean(last) - mean(before.split_at(before.len() - quarter).1);
    let is_clear = is_clear(change, error * (2.0 / quarter as f64).sqrt());
    Some(match change {
        change if is_clear && change > 0.0 => "still rising".to_owned(),
        _ if is_clear => "falling at the end".to_owned(),
        _ => format!("with no clear change since step {}", before.last().map_or(0, |(step, _)| *step)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rows: impl Iterator<Item = String>) -> Series {
        Series::parse(&rows.map(|row| row + "\n").collect::<String>())
    }

    fn accuracies(values: &[f64], prompts: usize) -> Option<String> {
        let row = |(at, value): (usize, &f64)| {
            format!(
                "{{\"step\":{},\"val-core/gsm8k/acc/mean@4\":{value},\"val-aux/gsm8k/num_prompts\":{prompts}}}",
                at * 10
            )
        };
        of_series(&series(values.iter().enumerate().map(row)), None, ValidationFacts::default())
    }

    #[test]
    fn a_change_is_named_with_its_uncertainty() {
        // Shares of 10 and 37 in 102: sqrt((0.098 * 0.902 + 0.363 * 0.637) / 100).
        insta::assert_snapshot!(accuracies(&[0.09, 0.2, 0.2, 0.36], 100).expect("a sentence"), @"It learns: accuracy of 100 held-out prompts went from 9.0% to 36.0% (± 5.7%) in 30 steps, still rising.");
        let level = accuracies(&[0.09, 0.3, 0.36, 0.36], 100).expect("a sentence");
        assert!(level.ends_with("in 30 steps, with no clear change since step 20."), "{level}");
        let worse = accuracies(&[0.5, 0.4, 0.3, 0.1], 400).expect("a sentence");
        assert!(worse.starts_with("It gets worse") && worse.ends_with(", falling at the end."), "{worse}");
        let unclear = accuracies(&[0.3, 0.35], 50).expect("a sentence");
        insta::assert_snapshot!(unclear, @"No clear change, the difference is within the noise: accuracy of 50 held-out prompts went from 30.0% to 35.0% (± 9.4%) in 10 steps.");
        let one = accuracies(&[0.3, 0.9], 1).expect("a sentence");
        assert!(one.starts_with("There are too few prompts to tell whether it learns"), "{one}");
        insta::assert_snapshot!(accuracies(&[0.3], 50).expect("a sentence"), @"One validation so far: accuracy of 50 held-out prompts is 30.0%.");
    }

    /// Of 32 prompts one is right after and was wrong before: its gain is one standard error.
    #[test]
    fn one_prompt_that_flips_decides_nothing() {
        let said = |first: f64, last: f64, before: &[f64], after: &[f64]| {
            let row = |(step, value): (usize, f64)| {
                format!("{{\"step\":{step},\"val-core/a/acc/mean@1\":{value},\"val-aux/a/num_prompts\":32}}")
            };
            let of = |outcomes: &[f64]| -> Vec<_> {
                (0..32).map(|at| outcomes.get(at).copied().or(Some(0.0))).collect()
            };
            let gains = PairedDifference::new(&of(before), &of(after));
            of_series(
                &series([(0, first), (9, last)].into_iter().map(row)),
                gains,
                ValidationFacts::default(),
            )
            .expect("a sentence")
        };
        insta::assert_snapshot!(said(0.0, 1.0 / 32.0, &[], &[1.0]), @"No clear change, the difference is within the noise: accuracy of 32 held-out prompts went from 0.0% to 3.1% (± 3.1%) in 9 steps.");
        let worse = said(1.0 / 32.0, 0.0, &[1.0], &[]);
        assert!(worse.starts_with("No clear change, the difference is within the noise: "), "{worse}");
        let learns = said(0.0, 5.0 / 32.0, &[], &[1.0; 5]);
        assert!(learns.starts_with("It learns: "), "{learns}");
        let same = said(1.0 / 32.0, 1.0 / 32.0, &[1.0], &[1.0]);
        assert!(same.starts_with("No held-out prompt changed: "), "{same}");
        // One is right that was wrong, and the reverse.
        let both = said(1.0 / 32.0, 1.0 / 32.0, &[1.0], &[0.0, 1.0]);
        assert!(both.starts_with("No clear change"), "{both}");
    }

    /// Half of the completions have an `acc` of 1/2 and none is right: that is no accuracy.
    #[test]
    fn a_graded_acc_is_no_accuracy() {
        let rows = [(0, 0.2), (5, 0.25)].map(|(step, value)| {
            format!(
                "{{\"step\":{step},\"val-core/a/acc/mean@1\":{value},\"all/pass_rate\":0.0,\"all/rewards/acc/mean\":0.25}}"
            )
        });
        let text =
            of_series(&series(rows.into_iter()), None, ValidationFacts::default()).expect("a sentence");
        assert!(text.contains("the mean of `acc` went from") && !text.contains("accuracy"), "{text}");
    }

    #[test]
    fn validations_before_a_change_are_left_out() {
        let rows = || {
            let row = |(step, value): (usize, f64)| {
                format!("{{\"step\":{step},\"val-core/a/acc/mean@1\":{value}}}")
            };
            series([(0, 0.0), (3, 0.1), (6, 1.0)].into_iter().map(row))
        };
        let of = |since| {
            let facts = ValidationFacts { since, ..ValidationFacts::default() };
            of_series(&rows(), None, facts).expect("a sentence")
        };
        assert!(of(0).contains("went from 0.0% to 100.0%"), "{}", of(0));
        insta::assert_snapshot!(of(4), @"One validation so far: accuracy is 100.0% (validations before step 4 are left out, because what they measure changed on a resume).");
        assert!(of(7).starts_with("No comparable validation so far: validations before step 7"), "{}", of(7));
    }

    #[test]
    fn prompts_in_the_training_data_are_not_called_held_out() {
        let rows = [(0, 0.1), (6, 0.9)].map(|(step, value)| {
            format!("{{\"step\":{step},\"val-core/a/acc/mean@1\":{value},\"val-aux/a/num_prompts\":20}}")
        });
        let facts = ValidationFacts { num_in_training: 20, ..ValidationFacts::default() };
        let text = of_series(&series(rows.into_iter()), None, facts).expect("a sentence");
        assert!(
            text.contains("accuracy of 20 validation prompts (20 in the training data) went from"),
            "{text}"
        );
        assert!(!text.contains("held-out"), "{text}");
    }

    #[test]
    fn a_logged_standard_error_goes_before_the_bound() {
        let rows = [(0, 0.2), (5, 0.4)].map(|(step, value)| {
            format!(
                "{{\"step\":{step},\"val-core/a/b/reward/mean@2\":{value},\"val-aux/a/b/reward/mean@2/standard_error\":0.03}}"
            )
        });
        insta::assert_snapshot!(of_series(&series(rows.into_iter()), None, ValidationFacts::default()).expect("a sentence"), @"It learns: the mean score went from 20.0% to 40.0% (± 4.2%) in 5 steps.");
    }

    #[test]
    fn without_a_validation_the_rewards_speak() {
        let rewards = |from: f64, rise: f64| {
            let row = |step: usize| {
                let noise = if step.is_multiple_of(2) { 0.01 } else { -0.01 };
                let value = from + rise * step as f64 + noise;
                format!("{{\"step\":{},\"all/critic/score/mean\":{value}}}", step + 1)
            };
            of_series(&series((0..20).map(row)), None, ValidationFacts::default())
        };
        let rising = rewards(0.2, 0.01).expect("a sentence");
        assert!(
            rising.starts_with("The reward rises: the mean reward (`all/critic/score/mean`) was 0.215"),
            "{rising}"
        );
        assert!(rising.contains("There is no validation"), "{rising}");
        assert!(rewards(0.2, 0.0).expect("a sentence").starts_with("No clear change"));
        assert!(rewards(0.9, -0.01).expect("a sentence").starts_with("The reward falls"));
        assert_eq!(
            of_series(
                &series(std::iter::once("{\"step\":1,\"loss\":2}".to_owned())),
                None,
                ValidationFacts::default()
            ),
            None
        );
    }
}
