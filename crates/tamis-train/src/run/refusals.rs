//! Reasons why a run cannot begin. A run ends with the first; a check of its configuration collects all.

use crate::error::RunError;
use crate::interrupt::Halt;

pub(super) struct Refusals {
    is_check: bool,
    /// Rewards that a check leaves to the run, by index.
    left: Vec<usize>,
    /// Whether the settings that a filter is made from are sound.
    is_sound: bool,
    found: Vec<RunError>,
}

impl Refusals {
    /// For a run: the first error ends the preparations.
    pub(super) fn of_run() -> Self {
        Self { is_check: false, left: Vec::new(), is_sound: true, found: Vec::new() }
    }

    /// For a check: an error is kept, and the check continues with what does not depend on the value. `left`
    /// are the rewards, by index, that are left to the run.
    pub(super) fn of_check(left: Vec<usize>, is_sound: bool) -> Self {
        Self { is_check: true, left, is_sound, found: Vec::new() }
    }

    /// Whether all settings except the rewards are known to be sound.
    pub(super) fn is_sound(&self) -> bool {
        self.is_sound
    }

    /// Whether a reward is left to the run.
    pub(super) fn leaves(&self, reward: usize) -> bool {
        self.left.contains(&reward)
    }

    /// The value; `None` if it was refused and the check continues.
    pub(super) fn take<T, E>(&mut self, result: Result<T, E>) -> Result<Option<T>, Halt<RunError>>
    where
        Halt<RunError>: From<E>,
    {
        match result.map_err(Halt::from) {
            Ok(value) => Ok(Some(value)),
            Err(Halt::Failed(error)) if self.is_check => {
                self.found.push(error);
                Ok(None)
            }
            Err(halt) => Err(halt),
        }
    }

    pub(super) fn into_found(self) -> Vec<RunError> {
        self.found
    }
}
