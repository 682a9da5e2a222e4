//! Names the environment in a diagnosis. If a run stops for lack of training signal because groups failed,
//! the scheduling machine blames generation: it knows no environments.

use tamis_config::Config;
use tamis_core::figure::{agreed, counted};
use tamis_core::schedule::Diagnosis;
use tamis_rollout::FaultyEpisodes;

/// The setting that a diagnosis names if groups failed.
const GENERATION: &str = "rollout.backend";

/// Names the environment in place of generation if it has failed at least half as many trajectories as there
/// were failed groups. One failed trajectory is enough to fail a group.
pub(super) fn blame_environment(diagnosis: &mut Diagnosis, faults: FaultyEpisodes, config: &Config) {
    let num_faults = faults.num_timed_out + faults.num_broken;
    let blamed = diagnosis.recommendations.iter_mut().find(|change| change.setting == GENERATION);
    let Some(blamed) = blamed.filter(|_| num_faults > 0 && 2 * num_faults >= diagnosis.tally.failed) else {
        return;
    };
    let mut kinds: Vec<&str> = config.environments().map(|environment| environment.kind.as_str()).collect();
    kinds.dedup();
    let in_time = match faults.num_timed_out {
        0 => String::new(),
        num => format!(", {num} of them by taking too long"),
    };
    "environment".clone_into(&mut blamed.setting);
    blamed.change = format!("look at what fails in `{}`", kinds.join("`, `"));
    blamed.why = format!(
        "it failed {}{in_time}, and with {} the whole group: {}",
        counted(num_faults, "trajectory"),
        agreed(num_faults, "it", "each"),
        blamed.why
    );
}

#[cfg(test)]
mod tests {
    use tamis_core::filter::Metric;
    use tamis_core::schedule::{ScheduleSettings, StopCause, Tally};

    use super::*;
    use crate::support::loaded;

    fn diagnosed(faults: FaultyEpisodes) -> String {
        let yaml = "model: {path: m}\ndata: {task: environment}\ntrain: {total_steps: 1}\n\
                    environment: {kind: command, argv: [play]}\n";
        let config = loaded(yaml, &[]).config;
        let tally = Tally { groups: 8, failed: 8, ..Tally::default() };
        let settings = ScheduleSettings { metric: Metric::SeqReward, ..ScheduleSettings::verl(4, 8, 4, 2) };
        let mut diagnosis = Diagnosis::new(StopCause::LimitReached, 1, 0, 2, Some(2), tally, &settings);
        blame_environment(&mut diagnosis, faults, &config);
        let first = &diagnosis.recommendations[0];
        format!("{}: {} ({})", first.setting, first.change, first.why)
    }

    #[test]
    fn who_fails_groups_is_named() {
        insta::assert_snapshot!(diagnosed(FaultyEpisodes { num_timed_out: 3, num_broken: 7 }), @"environment: look at what fails in `command` (it failed 10 trajectories, 3 of them by taking too long, and with each the whole group: 8 of 8 groups failed for good; the log has their errors)");
        insta::assert_snapshot!(diagnosed(FaultyEpisodes { num_timed_out: 0, num_broken: 3 }), @"rollout.backend: check that generation works (8 of 8 groups failed for good; the log has their errors)");
    }
}
