//! Distributions and completions of a step, for the loggers that show them.

use tamis_core::group::Group;
use tamis_rollout::Record;

use super::step::Step;
use crate::learner::left_out::LeftOut;
use tamis_run::log::Loggers;
use tamis_run::log::details::{Histogram, SampleText, StepDetails};

/// The details of a step that its loggers show. Its spans follow when its end is known.
pub(super) fn details(step: &Step, loggers: &Loggers) -> StepDetails {
    StepDetails {
        distributions: if loggers.shows_distributions() { distributions(step) } else { Vec::new() },
        samples: samples(step, loggers.num_samples()),
        spans: Vec::new(),
    }
}

fn distributions(step: &Step) -> Vec<(&'static str, Histogram)> {
    let records = step.generated_records();
    let groups: Vec<&Group> = records.iter().map(|record| &record.group).collect();
    let trajectories = || groups.iter().flat_map(|group| &group.trajectories);
    let mean = |values: &mut dyn Iterator<Item = f64>| -> Option<f64> {
        let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let rewards = groups.iter().filter_map(|group| {
        let scored = group.trajectories.iter().filter(|trajectory| trajectory.is_scored());
        mean(&mut scored.map(|trajectory| trajectory.reward))
    });
    let pass_rates = groups.iter().filter_map(|group| {
        let outcomes = group
            .trajectories
            .iter()
            .filter_map(|trajectory| trajectory.scores.get("acc"))
            .filter(|outcome| !outcome.value.is_nan());
        mean(&mut outcomes.map(|outcome| if outcome.value >= 1.0 { 1.0 } else { 0.0 }))
    });
    let lengths =
        trajectories().map(|trajectory| trajectory.loss_mask.iter().filter(|on| **on).count() as f64);
    let advantages = step.members().filter_map(|member| member.advantage);
    let distributions = [
        ("distribution/group_reward", Histogram::of(rewards)),
        ("distribution/group_pass_rate", Histogram::of(pass_rates)),
        ("distribution/response_length", Histogram::of(lengths)),
        ("distribution/advantage", Histogram::of(advantages)),
    ];
    distributions.into_iter().filter_map(|(name, histogram)| Some((name, histogram?))).collect()
}

/// The first member of each group, trained groups first, in the order of the batch.
fn samples(step: &Step, num_samples: usize) -> Vec<SampleText> {
    let of = |record: &Record, left_out: Option<LeftOut>| {
        let trajectory = record.group.trajectories.first()?;
        Some(SampleText {
            prompt: record.prompt.text.to_string(),
            completion: trajectory.text.clone(),
            reward: trajectory.is_scored().then_some(trajectory.reward),
            verdict: left_out.map_or(record.fate.name(), LeftOut::name).to_owned(),
        })
    };
    let trained = step.trained.iter().map(|trained| {
        let left_out = trained.members.first().and_then(|member| member.left_out);
        of(&trained.record, left_out)
    });
    let others = step.others.iter().map(|record| of(record, None));
    trained.chain(others).flatten().take(num_samples).collect()
}
