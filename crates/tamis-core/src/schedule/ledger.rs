//! Ledger of a run's groups: the present place of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::{Accounting, Count, FillOrder, GroupSummary, Members, Result, Spent, Unbalanced};
use crate::fault;
use crate::group::{GroupId, PolicyVersion};

/// A group that is being generated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Flight {
    pub(super) version: PolicyVersion,
    pub(super) epoch: u64,
    /// Members that are not begun yet: the results of the first ones decide whether they are.
    unbegun: usize,
    /// Smallest and largest metric of the members scored so far.
    range: Option<(f64, f64)>,
    /// Whether the filter keeps it whatever its other members score.
    is_certain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GroupOutcome {
    Scored(GroupSummary),
    /// The group failed for good.
    Failed(Spent),
}

impl GroupOutcome {
    fn spent(&self) -> Spent {
        match self {
            Self::Scored(summary) => summary.spent,
            Self::Failed(spent) => *spent,
        }
    }
}

/// A group that is complete but not settled: other groups of its round are not complete.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Finished {
    version: PolicyVersion,
    pub(super) epoch: u64,
    /// Number of members that were never begun.
    unbegun: usize,
    arrival: u64,
    pub(super) outcome: GroupOutcome,
}

/// A group that was kept and not yet trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) id: GroupId,
    pub(super) version: PolicyVersion,
    arrival: u64,
    pub(super) summary: GroupSummary,
}

/// Where a scored group goes once it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    Kept,
    Dropped,
    /// Dropped, and held in case the batch lacks groups.
    Spare,
}

/// A group that was aborted before it was settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct GivenUp {
    pub(super) id: GroupId,
    pub(super) epoch: u64,
    pub(super) num_members: usize,
    /// Result of the generation; `None` while it continues.
    pub(super) outcome: Option<GroupOutcome>,
}

/// The place of every live group, and counts of all others. Only the ledger moves a group.
///
/// ```text
///   dispatch ──▶ in flight ──finish──▶ finished ──keep──▶ waiting ──(all older ones settled)──▶ ready ──train──▶ trained
///                    │                   │  └──drop, fail──▶ gone   └───────surplus, stale───────┴──▶ gone
///                    │                   │  └──drop───▶ spare ──(batch lacks groups)──▶ trained, else gone
///                    │                   └──give up──▶ gone
///                    └──give up──▶ aborting ──(stopped)──▶ gone
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ledger {
    group_size: usize,
    order: FillOrder,
    in_flight: BTreeMap<GroupId, Flight>,
    /// Number of groups in flight that are certain to be kept.
    num_certain: usize,
    finished: BTreeMap<GroupId, Finished>,
    arrivals: u64,
    /// Kept; an older group is not settled.
    waiting: BTreeMap<GroupId, Kept>,
    /// Kept, in the order in which they are trained.
    ready: VecDeque<Kept>,
    /// Dropped and failed in the step.
    gone: BTreeSet<GroupId>,
    /// Dropped in the step; the batch takes some of them if it lacks groups.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    spare: BTreeMap<GroupId, Kept>,
    /// Aborted; their last event is still to come.
    aborting: BTreeSet<GroupId>,
    last_group: Option<GroupId>,
    step: Accounting,
    totals: Accounting,
}

impl Ledger {
    pub(super) fn new(group_size: usize, order: FillOrder) -> Self {
        Self {
            group_size,
            order,
            in_flight: BTreeMap::new(),
            num_certain: 0,
            finished: BTreeMap::new(),
            arrivals: 0,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            gone: BTreeSet::new(),
            spare: BTreeMap::new(),
            aborting: BTreeSet::new(),
            last_group: None,
            step: Accounting::default(),
            totals: Accounting::default(),
        }
    }

    /// One group with `unbegun` members that were not begun, and the amount generated for it.
    fn one(&self, unbegun: usize, spent: Spent) -> Count {
        Count::of(1, self.group_size.saturating_sub(unbegun), spent)
    }

    fn count<'a>(&self, kept: impl Iterator<Item = &'a Kept>) -> Count {
        let (mut groups, mut spent) = (0, Spent::default());
        for kept in kept {
            groups += 1;
            spent += kept.summary.spent;
        }
        Count::of(groups, self.group_size, spent)
    }

    /// Groups in flight that may still be dropped.
    pub(super) fn num_undecided(&self) -> usize {
        self.in_flight.len() - self.num_certain
    }

    pub(super) fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Groups that are kept or certain to be.
    pub(super) fn num_secured(&self) -> usize {
        self.num_kept() + self.num_certain
    }

    pub(super) fn num_kept(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    pub(super) fn num_ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn num_dispatched(&self) -> u64 {
        self.step.generated.groups
    }

    /// Accounting of the groups of all closed steps.
    pub(super) fn totals(&self) -> &Accounting {
        &self.totals
    }

    /// Groups whose trajectories the driver must hold: in flight, complete, or kept and not yet trained.
    pub(super) fn held(&self) -> impl Iterator<Item = GroupId> {
        let kept = self.ready.iter().map(|kept| kept.id).chain(self.waiting.keys().copied());
        kept.chain(self.finished.keys().copied()).chain(self.in_flight.keys().copied())
    }

    pub(super) fn is_in_flight(&self, group: GroupId) -> bool {
        self.in_flight.contains_key(&group)
    }

    /// Whether a group was aborted and its last event is still to come.
    pub(super) fn is_aborting(&self, group: GroupId) -> bool {
        self.aborting.contains(&group)
    }

    pub(super) fn flight(&self, group: GroupId) -> Result<Flight> {
        self.in_flight.get(&group).copied().ok_or_else(|| {
            let is_finished = self.finished.contains_key(&group);
            let what = if is_finished { "was settled before" } else { "is not being generated" };
            fault!("group {} {what}", group.0).into()
        })
    }

    /// The entry of a group that is complete and not settled.
    pub(super) fn finished(&self, group: GroupId) -> Option<&Finished> {
        self.finished.get(&group)
    }

    /// Summary of such a group, unless it failed.
    pub(super) fn scored(&self, group: GroupId) -> Option<&GroupSummary> {
        match &self.finished(group)?.outcome {
            GroupOutcome::Scored(summary) => Some(summary),
            GroupOutcome::Failed(_) => None,
        }
    }

    /// Whether groups may be dispatched under these ids.
    pub(super) fn check_order(&self, groups: &[GroupId]) -> Result<()> {
        let mut last = self.last_group;
        for &group in groups {
            if let Some(previous) = last.filter(|previous| *previous >= group) {
                return Err(fault!("group {group} was dispatched after group {previous}; ids must increase in dispatch order", group = group.0, previous = previous.0).into());
            }
            last = Some(group);
        }
        Ok(())
    }

    /// New groups are in flight, each with the given number of begun members. Their order was checked.
    pub(super) fn dispatch(
        &mut self,
        groups: &[GroupId],
        num_members: usize,
        version: PolicyVersion,
        epoch: u64,
    ) {
        let unbegun = self.group_size.saturating_sub(num_members);
        let flight = Flight { version, epoch, unbegun, range: None, is_certain: false };
        self.in_flight.extend(groups.iter().map(|&group| (group, flight)));
        self.last_group = groups.last().copied().or(self.last_group);
        self.step.generated += Count::of(groups.len(), num_members, Spent::default());
    }

    pub(super) fn num_begun(&self, group: GroupId) -> Option<usize> {
        let flight = self.in_flight.get(&group)?;
        Some(self.group_size.saturating_sub(flight.unbegun))
    }

    pub(super) fn is_certain(&self, group: GroupId) -> bool {
        self.in_flight.get(&group).is_some_and(|flight| flight.is_certain)
    }

    /// Begins the members of a group in flight that were not begun; false if all of them were.
    pub(super) fn begin_rest(&mut self, group: GroupId) -> bool {
        let Some(flight) = self.in_flight.get_mut(&group) else { return false };
        let begun = std::mem::take(&mut flight.unbegun);
        self.step.generated.trajectories += begun as u64;
        begun > 0
    }

    /// A member of a group in flight was scored. `is_certain` decides whether a smallest and a largest metric
    /// make it certain that the group is kept. Returns true if that becomes certain with this member.
    pub(super) fn see(&mut self, group: GroupId, value: f64, is_certain: impl Fn(f64, f64) -> bool) -> bool {
        let Some(flight) = self.in_flight.get_mut(&group) else { return false };
        if !value.is_finite() {
            return false;
        }
        let (min, max) = flight.range.map_or((value, value), |(min, max)| (min.min(value), max.max(value)));
        flight.range = Some((min, max));
        let is_new = !flight.is_certain && is_certain(min, max);
        flight.is_certain |= is_new;
        self.num_certain += usize::from(is_new);
        is_new
    }

    /// Number of begun members of a complete, unsettled group.
    pub(super) fn num_members(&self, finished: &Finished) -> usize {
        self.group_size.saturating_sub(finished.unbegun)
    }

    fn land(&mut self, group: GroupId) -> Option<Flight> {
        let flight = self.in_flight.remove(&group)?;
        self.num_certain -= usize::from(flight.is_certain);
        Some(flight)
    }

    pub(super) fn finish(&mut self, group: GroupId, outcome: GroupOutcome) {
        let Some(Flight { version, epoch, unbegun, .. }) = self.land(group) else { return };
        self.step.generated += outcome.spent();
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.finished.insert(group, Finished { version, epoch, unbegun, arrival, outcome });
    }

    /// A finished group is kept, dropped, or counted as failed: its verdict applies if it was scored.
    pub(super) fn settle(&mut self, group: GroupId, judged: Judged) {
        let Some(Finished { version, unbegun, arrival, outcome, .. }) = self.finished.remove(&group) else {
            return;
        };
        match outcome {
            GroupOutcome::Scored(summary) if judged == Judged::Kept => {
                let kept = Kept { id: group, version, arrival, summary };
                match self.order {
                    FillOrder::Completion => {
                        let place = self.ready.partition_point(|other| other.arrival < arrival);
                        self.ready.insert(place, kept);
                    }
                    FillOrder::Dispatch => {
                        self.waiting.insert(group, kept);
                    }
                }
            }
            GroupOutcome::Scored(summary) => {
                self.gone.insert(group);
                self.step.dropped += self.one(unbegun, summary.spent);
                if judged == Judged::Spare {
                    self.spare.insert(group, Kept { id: group, version, arrival, summary });
                }
            }
            GroupOutcome::Failed(spent) => {
                self.gone.insert(group);
                self.step.failed += self.one(unbegun, spent);
            }
        }
        self.release();
    }

    /// Kept groups become ready if they are older than all unsettled ones.
    fn release(&mut self) {
        let oldest = [self.in_flight.keys().next(), self.finished.keys().next()];
        let oldest = oldest.into_iter().flatten().min().copied();
        while let Some(entry) = self.waiting.first_entry() {
            if oldest.is_some_and(|oldest| oldest < *entry.key()) {
                return;
            }
            self.ready.push_back(entry.remove());
        }
    }

    pub(super) fn train(&mut self, groups: usize) -> Vec<Kept> {
        let trained: Vec<Kept> = self.ready.drain(..groups.min(self.ready.len())).collect();
        self.step.trained += self.count(trained.iter());
        trained
    }

    /// Takes up to `groups` groups to train on among those that the filter dropped in the step, first
    /// dispatched first.
    pub(super) fn train_spare(&mut self, groups: usize) -> Vec<Kept> {
        let spare: Vec<Kept> = std::mem::take(&mut self.spare).into_values().take(groups).collect();
        for kept in &spare {
            self.gone.remove(&kept.id);
        }
        let count = self.count(spare.iter());
        self.step.keep_dropped(count);
        spare
    }

    /// Sorts groups into the order in which they fill the batch.
    pub(super) fn sort(&self, groups: &mut [Kept]) {
        groups.sort_by_key(|kept| match self.order {
            FillOrder::Dispatch => kept.id.0,
            FillOrder::Completion => kept.arrival,
        });
    }

    pub(super) fn duplicate<'a>(&mut self, copies: impl Iterator<Item = &'a Kept>) {
        self.step.duplicated += self.count(copies);
    }

    /// Discards kept groups of versions before `oldest`, and returns them in dispatch order.
    pub(super) fn discard_stale(&mut self, oldest: PolicyVersion) -> Vec<GroupId> {
        let all = self.ready.iter().chain(self.waiting.values());
        let stale: Vec<Kept> = all.filter(|kept| kept.version < oldest).copied().collect();
        self.ready.retain(|kept| kept.version >= oldest);
        self.waiting.retain(|_, kept| kept.version >= oldest);
        self.step.stale += self.count(stale.iter());
        in_order(&stale)
    }

    /// Discards all kept groups, and returns them in dispatch order.
    pub(super) fn discard_kept(&mut self) -> Vec<GroupId> {
        let mut surplus: Vec<Kept> = self.ready.drain(..).collect();
        surplus.extend(std::mem::take(&mut self.waiting).into_values());
        self.step.surplus += self.count(surplus.iter());
        in_order(&surplus)
    }

    /// Aborts the unwanted groups that are not settled, and returns them in dispatch order. Failed ones count
    /// as failed.
    pub(super) fn give_up(
        &mut self,
        is_unwanted: impl Fn(GroupId, PolicyVersion, Option<&GroupOutcome>) -> bool,
    ) -> Vec<GivenUp> {
        let flying = self.in_flight.iter().filter(|(id, flight)| is_unwanted(**id, flight.version, None));
        let num_members = |unbegun: usize| self.group_size.saturating_sub(unbegun);
        let flying = flying.map(|(&id, flight)| GivenUp {
            id,
            epoch: flight.epoch,
            num_members: num_members(flight.unbegun),
            outcome: None,
        });
        let finished = self.finished.iter();
        let finished = finished.filter(|(id, group)| is_unwanted(**id, group.version, Some(&group.outcome)));
        let finished = finished.map(|(&id, group)| GivenUp {
            id,
            epoch: group.epoch,
            num_members: num_members(group.unbegun),
            outcome: Some(group.outcome),
        });
        let mut given_up: Vec<GivenUp> = flying.chain(finished).collect();
        given_up.sort_unstable_by_key(|group| group.id);
        for group in &given_up {
            match group.outcome {
                None => {
                    self.land(group.id);
                    self.aborting.insert(group.id);
                    self.step.aborted += Count::of(1, group.num_members, Spent::default());
                }
                Some(outcome) => {
                    self.finished.remove(&group.id);
                    let one = Count::of(1, group.num_members, outcome.spent());
                    let is_failed = matches!(outcome, GroupOutcome::Failed(_));
                    *(if is_failed { &mut self.step.failed } else { &mut self.step.aborted }) += one;
                }
            }
        }
        self.release();
        given_up
    }

    /// Groups dropped or failed in this step that were dispatched after `group`, in dispatch order.
    pub(super) fn gone_after(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        self.gone.range((Bound::Excluded(group), Bound::Unbounded)).copied()
    }

    /// Counts attempts that were aborted and retried.
    pub(super) fn spend(&mut self, spent: Spent) {
        self.step.stop_aborted(spent);
    }

    /// The last event of an aborted group, with its cost. The cost counts in the present step, or in the run
    /// if it has ended.
    pub(super) fn end_abort(&mut self, group: GroupId, spent: Spent, is_ended: bool) {
        if self.aborting.remove(&group) {
            let accounting = if is_ended { &mut self.totals } else { &mut self.step };
            accounting.stop_aborted(spent);
        }
    }

    /// Closes the step: kept groups are carried into the next one, unsettled groups stay in flight.
    pub(super) fn close(&mut self) -> Result<(Accounting, Vec<GroupId>), Unbalanced> {
        let all = || self.ready.iter().chain(self.waiting.values());
        let carried: Vec<GroupId> = all().map(|kept| kept.id).collect();
        let carried_out = self.count(all());
        let spent = self.finished.values().map(|group| group.outcome.spent()).sum();
        let mut in_flight_out = Count::of(self.in_flight.len() + self.finished.len(), self.group_size, spent);
        let unbegun = self.in_flight.values().map(|flight| flight.unbegun);
        let unbegun: usize = unbegun.chain(self.finished.values().map(|group| group.unbegun)).sum();
        in_flight_out.trajectories = in_flight_out.trajectories.saturating_sub(unbegun as u64);
        let closed = Accounting { carried_out, in_flight_out, ..self.step };
        closed.check()?;
        self.totals.append(&closed);
        self.gone.clear();
        self.spare.clear();
        self.step =
            Accounting { carried_in: carried_out, in_flight_in: in_flight_out, ..Accounting::default() };
        Ok((closed, carried))
    }

    /// Counts members of a closed step's batch as left out instead of trained.
    pub(super) fn leave_out(&mut self, members: Members) {
        self.totals.leave_out(members);
    }
}

fn in_order(kept: &[Kept]) -> Vec<GroupId> {
    let mut ids: Vec<GroupId> = kept.iter().map(|kept| kept.id).collect();
    ids.sort_unstable();
    ids
}
