//! Weights are published between two steps. This module decides what happens to samples in flight
//! meanwhile, and what the state after the step contains.

use tamis_core::group::PolicyVersion;
use tamis_core::schedule::Event;

use super::flight::Course;
use super::replay::Taken;
use super::{Dependencies, DispatchError, Dispatcher};
use crate::generator::{GeneratorError, InFlight, Publication, Wait};

/// What happens to a publication if the run is to stop meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStop {
    /// It is abandoned, with the step that made these weights: the earlier state is saved elsewhere.
    GiveUp,
    /// It is finished, and so are the samples in flight: the state after it is to be saved.
    Finish,
}

/// Result of a publication.
#[derive(Debug)]
pub enum PublicationEnd {
    /// Groups are sampled by these weights from now on.
    Done,
    /// The same, but the generator is lost: a resume publishes again.
    Lost(GeneratorError),
    /// The run is to stop: nothing of the step may be used.
    GivenUp,
}

/// Separates the error of a lost generator, after which the run can be resumed from its present state.
fn or_lost(result: Result<(), DispatchError>) -> Result<Option<GeneratorError>, DispatchError> {
    match result {
        Ok(()) => Ok(None),
        Err(DispatchError::Generator(lost @ GeneratorError::Unreachable { .. })) => Ok(Some(lost)),
        Err(error) => Err(error),
    }
}

impl Dispatcher {
    /// Publishes new weights to the generator, and waits until it samples from them. Groups that end
    /// meanwhile settle as usual; the machine's new draws wait for the new weights.
    ///
    /// The weights are those of a trained step. So a checkpoint after it holds that step, and all that
    /// an undisturbed run has at that point. If the run is to stop, `on_stop` decides whether to wait
    /// for the publication. If the generator is lost meanwhile, a resume publishes again. All events
    /// that arrived until then are in the state, so a checkpoint misses nothing that was journalled.
    ///
    /// # Errors
    /// Every error that a resume does not repair; and a lost generator if a followed order has more
    /// entries and the step may be abandoned.
    pub fn publish(
        &mut self,
        publication: &Publication,
        in_flight: InFlight,
        on_stop: OnStop,
        mut with: Dependencies<'_>,
    ) -> Result<PublicationEnd, DispatchError> {
        self.publishing = Some(publication.version);
        // When sampling is over, the generator's confirmation is not waited for.
        let is_ending = with.is_interrupted;
        if on_stop == OnStop::Finish {
            with.is_interrupted = &|| false;
        }
        let mut lost = or_lost(with.generator.publish(publication, in_flight).map_err(DispatchError::from))?;
        while self.publishing.is_some() && lost.is_none() {
            lost = or_lost(self.pump(&mut with, is_ending))?;
            if (with.is_interrupted)() {
                return Ok(PublicationEnd::GivenUp);
            }
        }
        if let Some(lost) = self.give_up_lost(on_stop, &mut lost) {
            return Err(lost);
        }
        if self.publishing.take().is_some() {
            self.stop_following(&mut with)?;
            self.note(&mut with, &Taken::Published { version: publication.version })?;
            self.note_published(publication.version)?;
        }
        self.end_step(on_stop, &mut with, lost)
    }

    /// The same for a step that left the weights unchanged: groups are sampled by this version from now
    /// on, too.
    ///
    /// # Errors
    /// As there.
    pub fn publish_nothing(
        &mut self,
        on_stop: OnStop,
        mut with: Dependencies<'_>,
    ) -> Result<PublicationEnd, DispatchError> {
        self.note_published(self.version)?;
        if on_stop == OnStop::Finish {
            with.is_interrupted = &|| false;
        }
        self.end_step(on_stop, &mut with, None)
    }

    /// Groups are sampled by this version from now on.
    pub(super) fn note_published(&mut self, version: PolicyVersion) -> Result<(), DispatchError> {
        self.version = version;
        self.tell(Event::Published { version })
    }

    /// The error of a lost generator, if the step may be abandoned because of it, so that a resume
    /// follows the rest of a recorded order.
    fn give_up_lost(&self, on_stop: OnStop, lost: &mut Option<GeneratorError>) -> Option<DispatchError> {
        let gives_up = on_stop == OnStop::GiveUp && !self.replay.is_over();
        if gives_up { lost.take().map(DispatchError::from) } else { None }
    }

    /// Takes in all events that have arrived, and carries out the resulting commands. If an order is
    /// followed, takes in only what the first process had taken in by then.
    fn end_step(
        &mut self,
        on_stop: OnStop,
        with: &mut Dependencies<'_>,
        mut lost: Option<GeneratorError>,
    ) -> Result<PublicationEnd, DispatchError> {
        // Aborted groups end before the state is saved.
        while lost.is_none() && self.flights.values().any(|flight| flight.course == Course::Aborted) {
            lost = or_lost(self.hear_out(with))?;
            if (with.is_interrupted)() {
                return Ok(PublicationEnd::GivenUp);
            }
        }
        loop {
            if let Some(lost) = self.give_up_lost(on_stop, &mut lost) {
                return Err(lost);
            }
            if lost.is_some() {
                self.stop_following(with)?;
                self.hear_no_more_of_aborted(with)?;
            }
            // Commands that waited for the weights. Between two steps nothing ends.
            self.run(with, false)?;
            self.scored.extend(with.scorer.next(Wait::No)?);
            if let Some(arrival) = self.next_arrival() {
                self.take(with, arrival)?;
            } else if self.replay.pass_step_end() {
                break;
            } else if self.replay.is_over() {
                self.note(with, &Taken::StepEnd)?;
                break;
            } else if (with.is_interrupted)() {
                return Ok(PublicationEnd::GivenUp);
            } else {
                self.ask_again(with)?;
                lost = or_lost(self.wait(with, &|| false))?;
            }
        }
        if !self.is_by_rounds() {
            // A resumed run has the groups, but neither their scores nor which were dispatched
            // together.
            self.observe_rest(with)?;
        }
        if (with.is_interrupted)() {
            // Scores or a reference pass may have been abandoned.
            return Ok(PublicationEnd::GivenUp);
        }
        let mut asked = std::mem::take(&mut self.asked);
        asked.retain(|id| self.expect(*id).is_ok());
        self.asked = asked;
        Ok(lost.map_or(PublicationEnd::Done, PublicationEnd::Lost))
    }
}
