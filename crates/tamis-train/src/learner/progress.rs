//! How far the updates of a step are, for an interrupt that comes between.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::interrupt::Interrupt;

/// Progress of a step's updates, and whether an interrupt may give them up.
#[derive(Debug, Clone, Default)]
pub struct UpdateProgress {
    interrupt: Interrupt,
    /// Weights have moved since the step began.
    has_moved: bool,
    /// The state before the step is lost with this process, and is worth keeping.
    must_end: bool,
    can_restore: bool,
}

impl UpdateProgress {
    /// Progress that this interrupt may stop.
    pub fn new(interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), ..Self::default() }
    }

    /// Begins the updates of a step. An interrupt abandons them, and nothing of the step may be used
    /// then. If weights have already moved, that is allowed only if the state before the step is kept
    /// elsewhere (`is_kept`; true until this is called). Otherwise only an older state would be left,
    /// so the rest of the step is finished.
    pub fn begin(&mut self, is_kept: bool) {
        (self.has_moved, self.must_end) = (false, !is_kept);
    }

    /// Records that the step of the updates is part of the run's state.
    pub fn end(&mut self) {
        self.has_moved = false;
    }

    /// Whether updates of a step that has not ended have moved weights, of the policy or of its critic.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Records that weights have moved.
    pub fn note_moved(&mut self) {
        self.has_moved = true;
    }

    /// Records whether the learner can return to the state before the step.
    pub fn note_kept(&mut self, can_restore: bool) {
        self.can_restore = can_restore;
    }

    /// Whether the learner can go back to the state before the step.
    pub fn can_restore(&self) -> bool {
        self.can_restore
    }

    /// Records that it returned.
    pub fn note_restored(&mut self) {
        (self.has_moved, self.can_restore) = (false, false);
    }

    /// The flag of the interrupt, if a pass may be abandoned now.
    pub fn stop_flag(&self) -> Option<Arc<AtomicBool>> {
        let may = !self.must_end || !self.has_moved || self.can_restore;
        may.then(|| self.interrupt.flag())
    }

    /// Whether a pass is abandoned now.
    pub fn gives_up(&self) -> bool {
        self.stop_flag().is_some() && self.interrupt.is_requested()
    }
}
