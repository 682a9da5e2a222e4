//! One scheduler, whatever its mode.

use serde::{Deserialize, Serialize};

use super::{
    Accounting, Command, Event, Progress, Rounds, ScheduleError, ScheduleSettings, Streaming,
    StreamingSettings,
};
use crate::group::GroupId;

/// The scheduling machine of a run: [`Rounds`] or [`Streaming`]. What drives it, saves it and reports of it need not know which.
///
/// ```
/// use tamis_core::schedule::{Command, Event, ScheduleSettings, Scheduler};
///
/// let mut scheduler = Scheduler::rounds(ScheduleSettings::new(8, 4))?;
/// let commands = scheduler.handle(Event::BeginStep)?;
/// assert_eq!(commands, [Command::Draw { step: 1, round: 1, num_prompts: 8 }]);
/// assert_eq!((scheduler.settings().group_size, scheduler.progress().steps), (4, 0));
/// # Ok::<(), tamis_core::schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Whole generation rounds, of one size or of what the batch lacks.
    Rounds(Box<Rounds>),
    /// Group by group.
    Streaming(Box<Streaming>),
}

impl Scheduler {
    /// A scheduler of whole rounds at the start of a run.
    ///
    /// # Errors
    /// Where the settings contradict themselves.
    pub fn rounds(settings: ScheduleSettings) -> Result<Self, ScheduleError> {
        Ok(Self::Rounds(Box::new(Rounds::new(settings)?)))
    }

    /// A streaming scheduler at the start of a run.
    ///
    /// # Errors
    /// Where the settings contradict themselves, or the filter compares the groups of a round.
    pub fn streaming(settings: StreamingSettings) -> Result<Self, ScheduleError> {
        Ok(Self::Streaming(Box::new(Streaming::new(settings)?)))
    }

    /// Takes an event in and says what to do.
    ///
    /// # Errors
    /// Where the event does not fit; the machine is then as it was before.
    pub fn handle(&mut self, event: Event) -> Result<Vec<Command>, ScheduleError> {
        match self {
            Self::Rounds(machine) => machine.handle(event),
            Self::Streaming(machine) => machine.handle(event),
        }
    }

    /// The choices that every mode has: sizes, filter, limits, ends.
    pub fn settings(&self) -> &ScheduleSettings {
        match self {
            Self::Rounds(machine) => machine.settings(),
            Self::Streaming(machine) => &machine.settings().run,
        }
    }

    /// Changes how long the run goes on: the only settings that a resumed run may change.
    pub fn set_length(&mut self, total_steps: Option<u64>, total_epochs: Option<u64>) {
        match self {
            Self::Rounds(machine) => machine.set_length(total_steps, total_epochs),
            Self::Streaming(machine) => machine.set_length(total_steps, total_epochs),
        }
    }

    /// Steps, rounds, epochs and prompts so far.
    pub fn progress(&self) -> Progress {
        match self {
            Self::Rounds(machine) => machine.progress(),
            Self::Streaming(machine) => machine.progress(),
        }
    }

    /// Where the groups of all closed steps went.
    pub fn totals(&self) -> &Accounting {
        match self {
            Self::Rounds(machine) => machine.totals(),
            Self::Streaming(machine) => machine.totals(),
        }
    }

    /// Whether the run has finished or stopped.
    pub fn is_ended(&self) -> bool {
        match self {
            Self::Rounds(machine) => machine.is_ended(),
            Self::Streaming(machine) => machine.is_ended(),
        }
    }

    /// Groups whose trajectories the driver must still have: kept and not yet trained, or being generated.
    pub fn held(&self) -> Vec<GroupId> {
        match self {
            Self::Rounds(machine) => machine.held().collect(),
            Self::Streaming(machine) => machine.held().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::PolicyVersion;
    use crate::schedule::GroupFacts;

    /// Both modes are one type, say what they share in the same way, and come back from JSON as they were.
    #[test]
    fn either_mode_is_driven_and_saved_as_one_type() {
        let run = ScheduleSettings { total_steps: Some(1), ..ScheduleSettings::new(1, 2) };
        let streaming = StreamingSettings { run: run.clone(), mini_batch_size: 1, max_in_flight: 8 };
        for mut scheduler in [Scheduler::rounds(run).unwrap(), Scheduler::streaming(streaming).unwrap()] {
            let group = GroupId(0);
            let events = [
                Event::BeginStep,
                Event::Dispatched { groups: vec![group], version: PolicyVersion(0), exhausted: false },
                Event::Scored { group, values: vec![1.0, 0.0], facts: GroupFacts::default() },
                Event::Trained { left_out: 0 },
                Event::Published { version: PolicyVersion(1) },
            ];
            for event in events {
                if matches!(event, Event::Scored { .. }) {
                    assert_eq!(scheduler.held(), [group]);
                }
                scheduler.handle(event).unwrap();
                let text = serde_json::to_string(&scheduler).unwrap();
                assert_eq!(serde_json::from_str::<Scheduler>(&text).unwrap(), scheduler);
            }
            assert_eq!(scheduler.progress().steps, 1);
            assert_eq!(scheduler.totals().trained.groups, 1);
            assert!(scheduler.held().is_empty());
            // The end is set further off, and then comes.
            scheduler.set_length(Some(2), None);
            assert!(matches!(scheduler.handle(Event::BeginStep).unwrap()[..], [Command::Draw { .. }]));
            assert!(!scheduler.is_ended());
            scheduler.handle(Event::Cancelled).unwrap();
            assert!(scheduler.is_ended());
        }
    }
}
