//! What schedules a simulated run: the scheduler of real runs, or the buffer of another system.

use tamis_core::schedule::{Command, Event, ScheduleError, ScheduleSettings, Scheduler};

use crate::simulate::replay_buffer::ReplayBuffer;

/// A scheduler or a buffer.
#[expect(clippy::large_enum_variant, reason = "a run has one")]
pub(crate) enum Machine {
    /// The scheduler of tamis-core.
    Scheduler(Scheduler),
    /// verl's buffer, which polls for ended groups.
    Polled(ReplayBuffer),
}

impl Machine {
    pub(crate) fn settings(&self) -> &ScheduleSettings {
        match self {
            Self::Scheduler(machine) => machine.settings(),
            Self::Polled(buffer) => buffer.settings(),
        }
    }

    pub(crate) fn set_num_prompts(&mut self, num_prompts: usize) {
        match self {
            Self::Scheduler(machine) => machine.set_num_prompts(num_prompts),
            Self::Polled(buffer) => buffer.set_num_prompts(num_prompts),
        }
    }

    /// Whether it needs an event for each member of a group.
    pub(crate) fn sees_members(&self) -> bool {
        matches!(self, Self::Scheduler(machine) if !machine.goes_by_rounds())
    }

    pub(crate) fn handle(&mut self, event: Event) -> Result<Vec<Command>, ScheduleError> {
        match self {
            Self::Scheduler(machine) => machine.handle(event),
            Self::Polled(buffer) => Ok(buffer.handle(event)),
        }
    }

    /// Whether it waits for a poll.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Polled(buffer) if buffer.is_waiting())
    }

    /// Polls for ended groups.
    pub(crate) fn poll(&mut self) -> Vec<Command> {
        match self {
            Self::Scheduler(_) => Vec::new(),
            Self::Polled(buffer) => buffer.poll(),
        }
    }

    /// Why the run would never end, if that is so.
    pub(crate) fn is_endless(&self) -> Option<String> {
        let Self::Polled(buffer) = self else { return None };
        let in_vain = buffer.in_vain()?;
        Some(format!(
            "none of {in_vain} groups in a row was kept, and verl has no limit: it would continue for ever"
        ))
    }
}
