//! Which number a filter should judge by.

use serde::Serialize;

use super::evidence::{Groups, RewardScale};

/// Numbers that are listed at most.
const MOST: usize = 8;

/// One number of the trajectories, as a filter would see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricAdvice {
    /// Its name.
    pub name: String,
    /// Share of the groups whose members differ in it.
    pub keep_rate: f64,
    /// Share of the groups that differ in it but not in their outcome.
    pub kept_for_other_reasons: f64,
    /// Share of the groups that differ in their outcome but not in it.
    pub lost: f64,
    /// `binary`, `constant` or `many`: how many values it has.
    pub values: &'static str,
    /// Whether it is the outcome, which decides what is correct.
    pub is_outcome: bool,
}

/// All numbers of the trajectories, the outcome first.
pub fn metrics(groups: &Groups) -> Vec<MetricAdvice> {
    let is_mixed = |score: usize| -> Vec<Option<bool>> {
        let of = |group| {
            let values = Groups::values(group, score);
            let mut known = values.into_iter().filter(|value| value.is_finite());
            let first = known.next()?;
            // A group of one has nothing to compare.
            Some(known.any(|value| (value - first).abs() > 0.0))
        };
        groups.groups.iter().map(of).collect()
    };
    let by_outcome = is_mixed(groups.outcome);
    let mut places: Vec<usize> = (0..groups.scores.len()).collect();
    places.sort_by_key(|place| *place != groups.outcome);
    let of = |place: usize| {
        let values = match groups.scale(place) {
            RewardScale::Binary { .. } => "binary",
            RewardScale::Constant(_) => "constant",
            RewardScale::Many => "many",
            RewardScale::None => return None,
        };
        let is_outcome = place == groups.outcome;
        // The filter's own number also has a column under its name.
        if !is_outcome && groups.scores.get(place).is_some_and(|name| name == "metric_value") {
            return None;
        }
        let own = is_mixed(place);
        let share = |of: &dyn Fn(bool, bool) -> bool| {
            let (mut all, mut counted) = (0.0, 0.0);
            for ((own, outcome), group) in own.iter().zip(&by_outcome).zip(&groups.groups) {
                let (Some(own), Some(outcome)) = (*own, *outcome) else { continue };
                all += group.weight();
                counted += if of(own, outcome) { group.weight() } else { 0.0 };
            }
            if all > 0.0 { counted / all } else { 0.0 }
        };
        Some(MetricAdvice {
            name: groups.scores.get(place)?.clone(),
            keep_rate: share(&|own, _| own),
            kept_for_other_reasons: share(&|own, outcome| own && !outcome),
            lost: share(&|own, outcome| !own && outcome),
            values,
            is_outcome,
        })
    };
    places.into_iter().filter_map(of).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{EvidenceGroup, Member};
    use super::*;

    #[test]
    fn a_shaped_reward_keeps_groups_of_one_outcome() {
        let group = |members: &[[f64; 2]]| EvidenceGroup {
            id: String::new(),
            prompt: 0,
            members: members.iter().map(|of| Member { scores: of.to_vec(), ..Member::default() }).collect(),
            ..EvidenceGroup::default()
        };
        let groups = Groups {
            scores: vec!["reward".to_owned(), "acc".to_owned()],
            outcome: 1,
            groups: vec![
                group(&[[0.0, 0.0], [-0.5, 0.0]]),
                group(&[[1.0, 1.0], [0.0, 0.0]]),
                group(&[[0.5, 1.0], [0.5, 0.0]]),
                group(&[[1.0, 1.0], [1.0, 1.0]]),
            ],
            ..Groups::default()
        };
        let found = metrics(&groups);
        assert_eq!(found.iter().map(|metric| metric.name.as_str()).collect::<Vec<_>>(), ["acc", "reward"]);
        assert_eq!(
            (found[0].keep_rate, found[0].kept_for_other_reasons, found[0].values),
            (0.5, 0.0, "binary")
        );
        assert_eq!((found[1].keep_rate, found[1].kept_for_other_reasons, found[1].lost), (0.5, 0.25, 0.25));
        assert_eq!(found[1].values, "many");
    }
}
