//! Outcomes of a step's episodes, by RAGEN's names: success, pass@k, and the numbers that an environment
//! gives for its turns.

use std::collections::BTreeMap;

use tamis_core::group::{Episode, Group};
use tamis_run::metrics::Metrics;

/// Numbers about turns that built-in environments give.
const KNOWN: [&str; 8] = [
    "num_actions",
    "action_is_valid",
    "action_is_effective",
    "format_penalty",
    "num_tool_calls",
    "num_failed_calls",
    "num_calls_refused",
    "num_calls_too_long",
];

/// Metrics of all episodes generated for the step, including dropped ones, under
/// `train/{environment}/...`; none if no trajectory was played.
///
/// Means are over episodes. An environment's per-turn numbers called `num_...` are summed over an
/// episode. The others are means over the turns that have them, and then over the episodes that have
/// any. So a number that is given once, for instance at the end, keeps its value, whatever else the
/// episode did.
///
/// # Differs from
/// RAGEN divides by the number of all turns, which is the same if every turn has the number, as in its
/// games.
pub fn episode_metrics(environment: &str, groups: &[&Group], metrics: &mut Metrics) {
    let of_group = |group: &&'_ Group| -> Vec<Episode> {
        group.trajectories.iter().filter_map(|one| one.episode.clone()).collect()
    };
    let groups: Vec<Vec<Episode>> = groups.iter().map(of_group).collect();
    let groups: Vec<Vec<&Episode>> = groups.iter().map(|group| group.iter().collect()).collect();
    for (name, value) in figures_of_episodes(&groups) {
        metrics.set(format!("train/{environment}/{name}"), value);
    }
}

pub(super) fn figures_of_episodes(groups: &[Vec<&Episode>]) -> impl Iterator<Item = (String, f64)> {
    let groups: Vec<&Vec<&Episode>> = groups.iter().filter(|group| !group.is_empty()).collect();
    let episodes: Vec<&Episode> = groups.iter().flat_map(|group| group.iter().copied()).collect();
    let mean = |of: &dyn Fn(&Episode) -> f64| {
        episodes.iter().map(|episode| of(episode)).sum::<f64>() / episodes.len() as f64
    };
    let mut figures = Vec::new();
    // An episode without this report counts as unsolved; if none has one, the metric is not set.
    if episodes.iter().any(|episode| episode.is_success.is_some()) {
        let is_solved = |episode: &Episode| episode.is_success == Some(true);
        figures.push(("success".to_owned(), mean(&|episode| f64::from(u8::from(is_solved(episode))))));
        let solved = groups.iter().filter(|group| group.iter().any(|episode| is_solved(episode))).count();
        let largest = groups.iter().map(|group| group.len()).max().unwrap_or(0);
        figures.push((format!("pass@{largest}"), solved as f64 / groups.len() as f64));
    }
    if !episodes.is_empty() {
        figures.push(("num_turns".to_owned(), mean(&|episode| episode.turns.len() as f64)));
        figures.push(("cut_ratio".to_owned(), mean(&|episode| f64::from(u8::from(episode.is_cut)))));
    }
    // By name: the sum over episodes, and the number of episodes that have it.
    let mut names: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for episode in &episodes {
        let mut own: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
        for (name, value) in episode.turns.iter().flat_map(|turn| &turn.info) {
            let (sum, num_turns) = own.entry(name).or_default();
            (*sum, *num_turns) = (*sum + value, *num_turns + 1);
        }
        for (name, (sum, num_turns)) in own {
            let (total, num_episodes) = names.entry(name).or_default();
            *total += if is_count(name) { sum } else { sum / num_turns as f64 };
            *num_episodes += 1;
        }
    }
    figures.extend(names.into_iter().map(|(name, (sum, num_episodes))| {
        let of = if is_count(name) { episodes.len() } else { num_episodes };
        // Names of an environment's own have a place of their own.
        let name = if KNOWN.contains(&name) { name.to_owned() } else { format!("info/{name}") };
        (name, sum / of as f64)
    }));
    figures.into_iter()
}

/// Whether a number is a count, so that a missing one is 0.
fn is_count(name: &str) -> bool {
    name.starts_with("num_")
}

#[cfg(test)]
mod tests {
    use tamis_core::group::{Trajectory, Turn};

    use super::*;
    use crate::support;

    fn group(episodes: &[Option<(&[f64], bool)>]) -> Group {
        let member = |(sample_index, episode): (usize, &Option<(&[f64], bool)>)| {
            let turn = |&actions: &f64| Turn {
                info: BTreeMap::from([
                    ("num_actions".to_owned(), actions),
                    ("action_is_valid".to_owned(), f64::from(actions > 0.0)),
                ]),
                ..Turn::default()
            };
            let episode = episode.map(|(turns, is_success)| Episode {
                turns: turns.iter().map(turn).collect(),
                is_success: Some(is_success),
                is_cut: !is_success,
                ..Episode::default()
            });
            Trajectory { episode, sample_index: sample_index as u32, ..support::trajectory(Vec::new(), 0.0) }
        };
        support::group(0, episodes.iter().enumerate().map(member).collect())
    }

    /// Programs and verifiers return numbers with the last turn.
    #[test]
    fn a_number_of_some_turns_is_the_mean_of_those() {
        let mut one = group(&[Some((&[1.0, 1.0, 1.0], true)), Some((&[1.0], true))]);
        let mut give = |member: usize, turn: usize, name: &str, value: f64| {
            let episode = one.trajectories[member].episode.as_mut().expect("played");
            episode.turns[turn].info.insert(name.to_owned(), value);
        };
        give(0, 2, "score", 3.0);
        give(1, 0, "score", 1.0);
        give(0, 0, "speed", 2.0);
        give(0, 2, "speed", 4.0);
        give(0, 2, "num_steps", 6.0);
        let mut metrics = Metrics::new();
        episode_metrics("p", &[&one], &mut metrics);
        for (name, expected) in [("score", 2.0), ("speed", 3.0), ("num_steps", 3.0)] {
            assert_eq!(metrics.get(&format!("train/p/info/{name}")), Some(expected), "{name}");
        }
    }

    #[test]
    fn episodes_are_counted_by_ragens_names() {
        let (won, lost) = ([2.0, 0.0].as_slice(), [1.0].as_slice());
        let groups = [group(&[Some((won, true)), Some((lost, false))]), group(&[Some((lost, false)); 2])];
        let mut metrics = Metrics::new();
        episode_metrics("sokoban", &groups.iter().collect::<Vec<_>>(), &mut metrics);
        for (name, expected) in [
            ("success", 0.25),
            ("num_turns", 1.25),
            ("cut_ratio", 0.75),
            ("pass@2", 0.5),
            ("num_actions", 1.25),
            ("action_is_valid", 0.875),
        ] {
            assert_eq!(metrics.get(&format!("train/sokoban/{name}")), Some(expected), "{name}");
        }
        let mut none = Metrics::new();
        episode_metrics("sokoban", &[&group(&[None])], &mut none);
        assert_eq!(none.iter().count(), 0);
    }
}
