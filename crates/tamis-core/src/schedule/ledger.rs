//! Where every group of a streaming run is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::{Accounting, Count, GroupSummary, Order, ScheduleError, Unbalanced};
use crate::group::{GroupId, PolicyVersion};

/// A group that is being generated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Flight {
    pub(super) version: PolicyVersion,
    pub(super) epoch: u64,
    /// Smallest and largest metric of the members scored so far.
    range: Option<(f64, f64)>,
    /// Whether the filter keeps it whatever its other members score.
    is_certain: bool,
}

/// A group that was kept and is not trained yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) id: GroupId,
    pub(super) version: PolicyVersion,
    pub(super) summary: GroupSummary,
}

/// The place of every group that is somewhere, and counts of all others. Nothing else moves a group.
///
/// ```text
///   dispatch ──▶ in flight ──keep──▶ waiting ──(all older ones settled)──▶ ready ──train──▶ trained
///                 │  │  └──drop, fail──▶ gone        └────────────surplus, stale──┴──▶ gone
///                 │  └──abort──▶ aborting ──(answered)──▶ gone
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ledger {
    group_size: usize,
    order: Order,
    in_flight: BTreeMap<GroupId, Flight>,
    /// How many of those in flight are certain to be kept.
    num_certain: usize,
    /// Kept, with an older one still in flight.
    waiting: BTreeMap<GroupId, Kept>,
    /// Kept, in the order in which they are trained.
    ready: VecDeque<Kept>,
    /// Dropped and failed in the step.
    gone: BTreeSet<GroupId>,
    /// Given up; their last word is still to come.
    aborting: BTreeSet<GroupId>,
    last_group: Option<GroupId>,
    step: Accounting,
    totals: Accounting,
}

impl Ledger {
    pub(super) fn new(group_size: usize, order: Order) -> Self {
        Self {
            group_size,
            order,
            in_flight: BTreeMap::new(),
            num_certain: 0,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            gone: BTreeSet::new(),
            aborting: BTreeSet::new(),
            last_group: None,
            step: Accounting::default(),
            totals: Accounting::default(),
        }
    }

    fn count(&self, groups: usize) -> Count {
        Count::of(groups, self.group_size)
    }

    /// Groups in flight that may still be dropped.
    pub(super) fn num_undecided(&self) -> usize {
        self.in_flight.len() - self.num_certain
    }

    /// Groups in flight.
    pub(super) fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Groups that are kept or certain to be.
    pub(super) fn num_secured(&self) -> usize {
        self.num_kept() + self.num_certain
    }

    /// Groups that are kept.
    pub(super) fn num_kept(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    /// Groups that may be trained on now.
    pub(super) fn num_ready(&self) -> usize {
        self.ready.len()
    }

    /// Groups dispatched in the step so far.
    pub(super) fn num_dispatched(&self) -> u64 {
        self.step.generated.groups
    }

    /// Where the groups of all closed steps went.
    pub(super) fn totals(&self) -> &Accounting {
        &self.totals
    }

    /// Groups whose trajectories the driver must have: in flight, or kept and not yet trained.
    pub(super) fn held(&self) -> impl Iterator<Item = GroupId> {
        let kept = self.ready.iter().map(|kept| kept.id).chain(self.waiting.keys().copied());
        kept.chain(self.in_flight.keys().copied())
    }

    /// Whether a group was given up and its last word is still to come.
    pub(super) fn is_aborting(&self, group: GroupId) -> bool {
        self.aborting.contains(&group)
    }

    /// The entry of a group in flight.
    pub(super) fn flight(&self, group: GroupId) -> Result<Flight, ScheduleError> {
        self.in_flight.get(&group).copied().ok_or(ScheduleError::UnknownGroup { group: group.0 })
    }

    /// Whether groups may be dispatched under these ids.
    pub(super) fn check_order(&self, groups: &[GroupId]) -> Result<(), ScheduleError> {
        let mut last = self.last_group;
        for &group in groups {
            if let Some(previous) = last.filter(|previous| *previous >= group) {
                return Err(ScheduleError::GroupOrder { group: group.0, previous: previous.0 });
            }
            last = Some(group);
        }
        Ok(())
    }

    /// New groups are in flight; their order was checked.
    pub(super) fn dispatch(&mut self, groups: &[GroupId], version: PolicyVersion, epoch: u64) {
        let flight = Flight { version, epoch, range: None, is_certain: false };
        self.in_flight.extend(groups.iter().map(|&group| (group, flight)));
        self.last_group = groups.last().copied().or(self.last_group);
        self.step.generated += self.count(groups.len());
    }

    /// A member of a group in flight was scored; `is_certain` says whether a smallest and a largest metric keep a group for certain.
    pub(super) fn see(&mut self, group: GroupId, value: f64, is_certain: impl Fn(f64, f64) -> bool) {
        let Some(flight) = self.in_flight.get_mut(&group) else { return };
        if !value.is_finite() {
            return;
        }
        let (min, max) = flight.range.map_or((value, value), |(min, max)| (min.min(value), max.max(value)));
        flight.range = Some((min, max));
        if !flight.is_certain && is_certain(min, max) {
            flight.is_certain = true;
            self.num_certain += 1;
        }
    }

    fn land(&mut self, group: GroupId) -> Option<Flight> {
        let flight = self.in_flight.remove(&group)?;
        self.num_certain -= usize::from(flight.is_certain);
        Some(flight)
    }

    /// A group in flight is kept.
    pub(super) fn keep(&mut self, group: GroupId, summary: GroupSummary) {
        let Some(flight) = self.land(group) else { return };
        let kept = Kept { id: group, version: flight.version, summary };
        match self.order {
            Order::Completion => self.ready.push_back(kept),
            Order::Dispatch => {
                self.waiting.insert(group, kept);
                self.release();
            }
        }
    }

    /// A group in flight is dropped by the filter.
    pub(super) fn drop(&mut self, group: GroupId) {
        self.land(group);
        self.gone.insert(group);
        self.step.dropped += self.count(1);
        self.release();
    }

    /// The generation of a group in flight failed for good.
    pub(super) fn fail(&mut self, group: GroupId) {
        self.land(group);
        self.gone.insert(group);
        self.step.failed += self.count(1);
        self.release();
    }

    /// Kept groups without an older one in flight are ready.
    fn release(&mut self) {
        let oldest = self.in_flight.keys().next().copied();
        while let Some(entry) = self.waiting.first_entry() {
            if oldest.is_some_and(|oldest| oldest < *entry.key()) {
                return;
            }
            self.ready.push_back(entry.remove());
        }
    }

    /// Takes the first ready groups to train on.
    pub(super) fn train(&mut self, groups: usize) -> Vec<Kept> {
        let trained: Vec<Kept> = self.ready.drain(..groups.min(self.ready.len())).collect();
        self.step.trained += self.count(trained.len());
        trained
    }

    /// Throws away kept groups of versions before `oldest`, and gives up those in flight; both in dispatch order, the latter with their epochs.
    pub(super) fn discard_stale(&mut self, oldest: PolicyVersion) -> (Vec<GroupId>, Vec<(GroupId, u64)>) {
        let is_stale = |version: PolicyVersion| version < oldest;
        let of_kept = |kept: &Kept| is_stale(kept.version).then_some(kept.id);
        let mut stale: Vec<GroupId> =
            self.ready.iter().chain(self.waiting.values()).filter_map(of_kept).collect();
        stale.sort_unstable();
        self.ready.retain(|kept| !is_stale(kept.version));
        self.waiting.retain(|_, kept| !is_stale(kept.version));
        self.step.stale += self.count(stale.len());
        (stale, self.abort(is_stale))
    }

    /// Throws all kept groups away, and names them in dispatch order.
    pub(super) fn discard_kept(&mut self) -> Vec<GroupId> {
        let mut surplus: Vec<GroupId> = self.ready.drain(..).map(|kept| kept.id).collect();
        surplus.extend(std::mem::take(&mut self.waiting).into_keys());
        surplus.sort_unstable();
        self.step.surplus += self.count(surplus.len());
        surplus
    }

    /// Gives up all groups in flight, and names them in dispatch order with their epochs.
    pub(super) fn abort_all(&mut self) -> Vec<(GroupId, u64)> {
        self.abort(|_| true)
    }

    fn abort(&mut self, is_unwanted: impl Fn(PolicyVersion) -> bool) -> Vec<(GroupId, u64)> {
        let unwanted = self.in_flight.iter().filter(|(_, flight)| is_unwanted(flight.version));
        let groups: Vec<(GroupId, u64)> = unwanted.map(|(id, flight)| (*id, flight.epoch)).collect();
        for &(group, _) in &groups {
            self.land(group);
            self.aborting.insert(group);
        }
        self.step.aborted += self.count(groups.len());
        self.release();
        groups
    }

    /// Groups dropped or failed in this step that were dispatched after one, in dispatch order.
    pub(super) fn gone_after(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        self.gone.range((Bound::Excluded(group), Bound::Unbounded)).copied()
    }

    /// The last word of a group that was given up.
    pub(super) fn end_abort(&mut self, group: GroupId) {
        self.aborting.remove(&group);
    }

    /// Closes the step: what is kept is carried into the next one, what is in flight stays so.
    pub(super) fn close(&mut self) -> Result<(Accounting, Vec<GroupId>), Unbalanced> {
        let carried: Vec<GroupId> =
            self.ready.iter().map(|kept| kept.id).chain(self.waiting.keys().copied()).collect();
        let (carried_out, in_flight_out) = (self.count(carried.len()), self.count(self.in_flight.len()));
        let closed = Accounting { carried_out, in_flight_out, ..self.step };
        closed.check()?;
        self.totals.append(&closed);
        self.gone.clear();
        self.step =
            Accounting { carried_in: carried_out, in_flight_in: in_flight_out, ..Accounting::default() };
        Ok((closed, carried))
    }

    /// Counts members of a closed step's batch as left out instead of trained.
    pub(super) fn leave_out(&mut self, trajectories: u64) {
        self.totals.leave_out(trajectories);
    }
}
