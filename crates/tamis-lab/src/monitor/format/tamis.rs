//! Lines of `run.log`: `TIME KIND TEXT`. verl's filter-group log lines among them are read as such. Beside
//! them, `step 3 round 1: ...` has the reasons of the filter, and `step 3/100 reward 0.435 ...` the figures
//! of the step.

use std::collections::BTreeMap;

use super::filter_groups;
use crate::monitor::fact::{Batch, Fact};
use crate::monitor::line::{Line, number, number_after, share};

pub(super) fn read(line: &Line<'_>) -> Vec<Fact> {
    match line.level {
        Some("error") => return vec![Fact::Error(line.text.trim().to_owned())],
        Some("warning") => {
            let mut facts = vec![Fact::Warning(line.text.trim().to_owned())];
            if line.text.starts_with("step ") && line.text.contains(" is skipped (") {
                facts.push(Fact::Skipped);
            }
            return facts;
        }
        _ => {}
    }
    if let Some((step, rest)) = line.text.strip_prefix("step ").and_then(number) {
        if let Some((round, rest)) = rest.strip_prefix(" round ").and_then(number)
            && let Some(rest) = rest.strip_prefix(": ")
        {
            return of_round(step, round, rest);
        }
        if let Some(outcome) = rest.strip_prefix(' ')
            && ["batch complete:", "partial batch:", "not trained:"]
                .iter()
                .any(|said| outcome.starts_with(said))
        {
            return vec![Fact::Generated { step: Some(step) }];
        }
        return of_step(step, rest);
    }
    filter_groups::read(line)
}

/// `384 prompts, 1536 trajectories; dropped 136 (35.4%): 15 all correct, 121 all wrong; kept 248 (64.6%);
/// mean std 0.293; accumulated 248/256`.
fn of_round(step: u64, round: u64, text: &str) -> Vec<Fact> {
    let mut batch = Batch { groups: number(text).map(|(groups, _)| groups), ..Batch::default() };
    let mut facts = Vec::new();
    for part in text.split("; ") {
        if let Some((dropped, rest)) = part.strip_prefix("dropped ").and_then(number) {
            batch.dropped = Some(dropped);
            let reasons = rest.split_once("): ").map_or("", |(_, reasons)| reasons);
            batch.reasons = reasons
                .split(", ")
                .filter_map(number)
                .map(|(count, reason)| (reason.trim().replace(' ', "_"), count))
                .collect();
        } else if let Some((kept, _)) = part.strip_prefix("kept ").and_then(number) {
            batch.kept = Some(kept);
            batch.dropped = batch.dropped.or(Some(0));
        } else if let Some((ready, rest)) = part.strip_prefix("accumulated ").and_then(number) {
            let target = number_after(rest, "/");
            facts.push(Fact::Accumulated { ready, target, is_enough: false });
        }
    }
    facts.insert(0, Fact::Batch { step: Some(step), number: round, of: batch });
    facts
}

/// `/100  reward 0.435 (std 0.496)  of all generated: reward 0.307, accuracy 30.7%  rounds 2  ...`.
fn of_step(step: u64, rest: &str) -> Vec<Fact> {
    let (total, rest) = match rest.strip_prefix('/').and_then(number) {
        Some((total, rest)) => (Some(total), rest),
        None => (None, rest),
    };
    let Some(rest) = rest.strip_prefix("  ") else { return Vec::new() };
    let mut values = BTreeMap::new();
    let mut put = |name: &str, value: Option<f64>| {
        values.extend(value.map(|value| (name.to_owned(), value)));
    };
    let first = |text: &str| text.split([' ', ',', 's']).next().and_then(|word| word.parse::<f64>().ok());
    for part in rest.split("  ") {
        let Some((name, value)) = part.split_once(' ') else { continue };
        match name {
            "reward" => put("critic/score/mean", first(value)),
            "of" => {
                let reward = value.split_once("reward ").and_then(|(_, rest)| first(rest));
                put("all/critic/score/mean", reward);
                put("all/pass_rate", value.split_once("accuracy ").and_then(|(_, rest)| share(rest)));
                put("all/rewards/acc/mean", value.split_once("acc ").and_then(|(_, rest)| first(rest)));
            }
            "accuracy" => put("all/pass_rate", share(value)),
            "acc" => put("all/rewards/acc/mean", first(value)),
            "rounds" => put("train/num_gen_batches", first(value)),
            "dropped" => put("train/filter_rate", share(value)),
            "length" => put("response_length/mean", first(value)),
            "entropy" => put("actor/entropy", first(value)),
            "grad" => put("actor/grad_norm", first(value)),
            "time" => put("timing_s/step", first(value)),
            _ => {}
        }
    }
    let trained = Fact::Trained { step, values };
    total.map(Fact::TotalSteps).into_iter().chain([trained]).collect()
}
