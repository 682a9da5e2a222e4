//! Examines rewards together: whether they arrive, and whether they have the filter's metric.

use std::collections::BTreeSet;

use tamis_core::filter::{AvailableMetrics, Metric};
use tamis_core::group::GroupId;
use tamis_env::reward::{RewardInput, Scored};

use super::round::{Round, ScoredMember};
use super::{Dependencies, DispatchError, Dispatcher, Observer};
use crate::reward_health::MOST_FAILED_ROUNDS;

impl Dispatcher {
    /// Takes the rewards of a round's complete groups in.
    pub(super) fn observe(
        &mut self,
        with: &mut Dependencies<'_>,
        round: &Round,
    ) -> Result<(), DispatchError> {
        let mut inputs = Vec::new();
        let mut rows: Vec<&ScoredMember> = Vec::new();
        for id in &round.groups {
            let of_group = || round.rows.range((*id, 0)..=(*id, u32::MAX));
            let Some(record) = self.held.get(id) else { continue };
            if of_group().count() != record.group.trajectories.len() {
                continue;
            }
            for (trajectory, (_, row)) in record.group.trajectories.iter().zip(of_group()) {
                inputs.push(record.input(trajectory));
                rows.push(row);
            }
        }
        if !self.is_by_rounds() && inputs.is_empty() {
            return Ok(());
        }
        self.has_observed = true;
        let scored: Vec<Scored> = rows.iter().map(|row| row.scored.clone()).collect();
        let is_missing = self.reward_health.observe(with.scorer.rewards(), &inputs, &scored);
        let new: Vec<(&RewardInput<'_>, &Scored)> = inputs
            .iter()
            .zip(&rows)
            .filter(|(_, row)| row.is_new)
            .map(|(input, row)| (input, &row.scored))
            .collect();
        let warnings = with.scorer.rewards().warnings(&new);
        drop(inputs);
        let proven = if is_missing { Ok(()) } else { self.prove_metric(&scored, with.observer) };
        for warning in warnings {
            with.observer.warn(&warning);
        }
        // After a failure here the scores are still available.
        proven
    }

    /// Fails if the completions of the first rounds were scored and none of them has the filter's
    /// metric. One round may by chance hold only sources without it, which is a warning.
    pub(super) fn prove_metric(
        &mut self,
        scored: &[Scored],
        observer: &mut dyn Observer,
    ) -> Result<(), DispatchError> {
        let Metric::Score(name) = &self.machine.settings().metric else { return Ok(()) };
        let answered = || scored.iter().filter(|scored| !scored.reward.value.is_nan());
        if !self.settings.is_metric_unproven {
            return Ok(());
        }
        if answered().any(|scored| scored.scores.contains_key(name)) {
            self.settings.is_metric_unproven = false;
            return Ok(());
        }
        let scores: BTreeSet<&String> = answered().flat_map(|scored| scored.scores.keys()).collect();
        let available = AvailableMetrics { scores: scores.into_iter().cloned().collect(), entropy: true };
        let (metric, names) = (self.machine.settings().metric.to_string(), available.names());
        self.rounds_without_metric += 1;
        if self.rounds_without_metric >= MOST_FAILED_ROUNDS {
            return Err(DispatchError::NoMetric { metric, names });
        }
        observer.warn(&format!(
            "the filter's metric `{metric}` is not among the scores of this round: {}; the run ends after \
             {MOST_FAILED_ROUNDS} such rounds in \
             a row",
            names.join(", ")
        ));
        Ok(())
    }

    /// Examines the rewards of a stream's settled groups at the end of a step, after which the groups
    /// are gone. The rest is examined with later groups.
    pub(super) fn observe_rest(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        let mut rest: Option<(u64, Round)> = None;
        for (serial, round) in std::mem::take(&mut self.rounds) {
            self.observe(with, &round)?;
            let is_open = |id: &GroupId| self.flights.get(id).is_some_and(|flight| !flight.is_settled);
            let open: Vec<GroupId> = round.groups.iter().copied().filter(is_open).collect();
            if open.is_empty() {
                continue;
            }
            let (serial, rest) = rest.get_or_insert_with(|| (serial, Round::of(round.step, round.round)));
            rest.rows.extend(round.rows.into_iter().filter(|((group, _), _)| open.contains(group)));
            for group in open {
                if let Some(flight) = self.flights.get_mut(&group) {
                    (flight.round, flight.place) = (*serial, rest.groups.len());
                }
                rest.groups.push(group);
                rest.num_open += 1;
            }
        }
        self.rounds.extend(rest);
        Ok(())
    }
}
