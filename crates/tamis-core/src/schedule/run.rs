//! State of a run in every mode: its groups, progress and epochs, the current step, and the ways in which a
//! step ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::copies::choose_copies;
use super::ledger::{GroupOutcome, Judged, Kept, Ledger};
use super::round_limit::adaptive;
use super::round_size::KeepRate;
use super::{
    Command, Count, Diagnosis, GroupSummary, Members, OnExhausted, OnLimit, Progress, Result, RoundLimit,
    RunEnd, ScheduleSettings, SkipReason, StepClose, StepReport, StopCause, Surplus, Tally,
};
use crate::fault;
use crate::filter::{DropReason, GroupStatistics, Verdict};
use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    Idle,
    Open,
    Training { trajectories: u64, turns: u64, tokens: u64 },
    Ended,
}

/// Prompts that go back to the source when a step closes and the run continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GoesBack {
    /// Those of groups that were aborted before they were judged, as if they had not been drawn, and of kept
    /// groups that became too old.
    GivenUp,
    /// Those of all groups that were not trained, except dropped ones. If surplus is discarded, also those of
    /// dropped groups that were dispatched after the last one of a full batch: only by chance did these
    /// settle before the batch was full.
    Untrained,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct OpenStep {
    /// Generation rounds begun; in streaming, as many groups as make one.
    pub(super) rounds: u64,
    /// The limit on rounds if it is adaptive: its greatest value in the step.
    adaptive_limit: u64,
    pub(super) parts: u64,
    pub(super) tally: Tally,
    batch: Tally,
    pub(super) trained: Vec<GroupId>,
    /// Those of them that the filter dropped.
    kept_when_insufficient: Vec<GroupId>,
    /// Copies of them, in batch order.
    duplicated: Vec<GroupId>,
    pub(super) stale: Vec<GroupId>,
    aborted: Vec<GroupId>,
    /// Aborted and failed groups that were not judged.
    pub(super) given_up: Vec<GroupId>,
    max_lag: u64,
}

impl OpenStep {
    fn under(settings: &ScheduleSettings, keep_rate: KeepRate) -> Self {
        Self { adaptive_limit: adaptive(settings, keep_rate), ..Self::default() }
    }
}

/// A pass over the data that still has groups in flight or prompts to come.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Epoch {
    pub(super) dispatched: u64,
    pub(super) settled: u64,
    /// Verdicts on them, without aborted ones.
    pub(super) tally: Tally,
    /// Rounds of the run that were complete when it began.
    pub(super) began: u64,
    pub(super) is_over: bool,
}

impl Epoch {
    /// Whether nothing of it is still to come.
    pub(super) fn is_done(&self) -> bool {
        self.is_over && self.settled >= self.dispatched
    }
}

pub(super) struct Drawn {
    /// Number of prompts missing from those that were requested.
    pub(super) missing: usize,
    /// Whether the epoch had no prompt at all.
    pub(super) is_empty_epoch: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleRun {
    pub(super) settings: ScheduleSettings,
    goes_back: GoesBack,
    pub(super) phase: Phase,
    pub(super) progress: Progress,
    pub(super) version: PolicyVersion,
    pub(super) ledger: Ledger,
    /// Number of prompts requested, while the answer is pending.
    pub(super) asked: Option<usize>,
    pub(super) step: OpenStep,
    pub(super) keep_rate: KeepRate,
    pub(super) epochs: BTreeMap<u64, Epoch>,
    /// The current epoch has no prompt left.
    pub(super) epoch_over: bool,
    skipped_in_a_row: u32,
    /// Groups since a step was last trained: for the diagnosis of a run that only skips.
    pub(super) since_trained: Tally,
    /// Rounds in it; in streaming, as many groups as make one.
    pub(super) rounds_since_trained: u64,
}

impl ScheduleRun {
    pub(super) fn new(settings: ScheduleSettings, goes_back: GoesBack) -> Self {
        Self {
            step: OpenStep::under(&settings, KeepRate::default()),
            ledger: Ledger::new(settings.group_size, settings.order),
            settings,
            goes_back,
            phase: Phase::Idle,
            progress: Progress::default(),
            version: PolicyVersion::default(),
            asked: None,
            keep_rate: KeepRate::default(),
            epochs: BTreeMap::from([(0, Epoch::default())]),
            epoch_over: false,
            skipped_in_a_row: 0,
            since_trained: Tally::default(),
            rounds_since_trained: 0,
        }
    }

    /// Refuses an event that does not fit what the run is doing.
    pub(super) fn expect(&self, fits: bool, event: &'static str) -> Result<()> {
        let phase = match self.phase {
            Phase::Idle => "between steps",
            Phase::Open if self.asked.is_some() => "waiting for prompts",
            Phase::Open => "waiting for groups",
            Phase::Training { .. } => "waiting for the step to be trained",
            Phase::Ended => "at its end",
        };
        if fits { Ok(()) } else { Err(fault!("event `{event}` came while the scheduler was {phase}").into()) }
    }

    fn check_version(&self, version: PolicyVersion) -> Result<()> {
        if version < self.version {
            return Err(fault!(
                "policy version {version} came after version {previous}",
                version = version.0,
                previous = self.version.0
            )
            .into());
        }
        Ok(())
    }

    pub(super) fn observe(&mut self, learn: impl FnOnce(&mut KeepRate)) {
        learn(&mut self.keep_rate);
        self.step.adaptive_limit = self.step.adaptive_limit.max(adaptive(&self.settings, self.keep_rate));
    }

    /// Rounds that the present step may take, if they are limited.
    pub(super) fn round_limit(&self) -> Option<u64> {
        match self.settings.max_num_gen_batches {
            RoundLimit::None => None,
            RoundLimit::Rounds(rounds) => Some(rounds),
            RoundLimit::Auto => Some(self.step.adaptive_limit),
        }
    }

    pub(super) fn max_lag(&self) -> u64 {
        match self.settings.surplus {
            Surplus::Discard => 0,
            Surplus::Carry { max_lag } => max_lag,
        }
    }

    fn carries(&self) -> bool {
        matches!(self.settings.surplus, Surplus::Carry { .. })
    }

    /// Opens a step: carried groups come in, stale ones are discarded.
    pub(super) fn open(&mut self, commands: &mut Vec<Command>) {
        self.phase = Phase::Open;
        if self.carries() {
            let oldest = PolicyVersion(self.version.0.saturating_sub(self.max_lag()));
            self.step.stale = self.ledger.discard_stale(oldest);
            self.give_up(|_, version, _| version < oldest, commands);
        }
    }

    pub(super) fn has_all_steps(&self) -> bool {
        self.settings.total_steps.is_some_and(|total| self.progress.steps >= total)
    }

    pub(super) fn draw(&mut self, step: u64, round: u64, num_prompts: usize, commands: &mut Vec<Command>) {
        self.asked = Some(num_prompts);
        commands.push(Command::Draw { step, round, num_prompts });
    }

    /// Records the answer to a draw.
    pub(super) fn note_dispatched(
        &mut self,
        groups: &[GroupId],
        version: PolicyVersion,
        exhausted: bool,
    ) -> Result<Drawn> {
        self.expect(self.asked.is_some(), "dispatched")?;
        let (asked, dispatched) = (self.asked.unwrap_or(0), groups.len());
        let may_be_fewer = exhausted || (dispatched > 0 && self.settings.takes_smaller_rounds());
        if dispatched > asked || (dispatched < asked && !may_be_fewer) {
            return Err(fault!(
                "{asked} prompts should have been drawn, but {dispatched} were dispatched and the epoch continues"
            )
            .into());
        }
        self.ledger.check_order(groups)?;
        self.check_version(version)?;
        self.asked = None;
        self.version = version;
        let number = self.progress.epoch;
        self.ledger.dispatch(groups, self.settings.num_first_members(), version, number);
        self.progress.prompts += dispatched as u64;
        self.progress.prompts_in_epoch += dispatched as u64;
        let epoch = self.epochs.entry(number).or_default();
        epoch.dispatched += dispatched as u64;
        epoch.is_over = exhausted;
        self.epoch_over = exhausted;
        let missing = if exhausted { asked - dispatched } else { 0 };
        Ok(Drawn { missing, is_empty_epoch: exhausted && epoch.dispatched == 0 })
    }

    /// Whether another epoch may begin: at the start of a step, or within one.
    pub(super) fn may_begin_epoch(&self, at_step: bool) -> bool {
        let is_left = self.settings.total_epochs.is_none_or(|total| self.progress.epoch + 1 < total);
        is_left
            && match self.settings.on_exhausted {
                OnExhausted::NextEpoch => true,
                OnExhausted::UsePartial => at_step,
                OnExhausted::Stop => false,
            }
    }

    /// Why a run whose data have ended ends.
    pub(super) fn why_exhausted(&self) -> RunEnd {
        match self.settings.on_exhausted {
            OnExhausted::Stop => RunEnd::DataExhausted,
            OnExhausted::NextEpoch | OnExhausted::UsePartial => RunEnd::TotalEpochs,
        }
    }

    pub(super) fn begin_epoch(&mut self, commands: &mut Vec<Command>) {
        self.progress.epoch += 1;
        self.progress.prompts_in_epoch = 0;
        self.epoch_over = false;
        let epoch = self.progress.epoch;
        self.epochs.insert(epoch, Epoch { began: self.progress.rounds, ..Epoch::default() });
        commands.push(Command::NextEpoch { epoch });
    }

    /// The filter's verdicts on some finished groups, which it may compare. Without a filter all are kept.
    /// `None` for a group that failed: there is nothing to judge.
    ///
    /// # Errors
    /// A filter that gives more or fewer verdicts than groups were scored.
    pub(super) fn judge(&self, groups: &[GroupId]) -> Result<Vec<Option<Verdict>>> {
        let statistics = |group: &GroupId| self.ledger.scored(*group).map(GroupSummary::statistics);
        let scored: Vec<GroupStatistics> = groups.iter().filter_map(statistics).collect();
        let verdicts = match &self.settings.filter {
            Some(filter) => filter.judge(&scored, self.settings.metric.outcome_scale()),
            None => vec![Verdict::Kept; scored.len()],
        };
        if verdicts.len() != scored.len() {
            return Err(fault!(
                "the filter gave {actual} verdicts on {expected} groups",
                expected = scored.len(),
                actual = verdicts.len()
            )
            .into());
        }
        let mut verdicts = verdicts.into_iter();
        Ok(groups.iter().map(|group| self.ledger.scored(*group).and_then(|_| verdicts.next())).collect())
    }

    /// A member of a group in flight was scored. If the group is now certain to be kept, its other members
    /// are begun, unless they already are.
    pub(super) fn see(&mut self, group: GroupId, value: f64, commands: &mut Vec<Command>) {
        let filter = &self.settings.filter;
        let is_certain = |min, max| filter.as_ref().is_some_and(|filter| filter.is_certain(min, max));
        if self.ledger.see(group, value, is_certain) {
            self.begin_rest(group, commands);
        }
    }

    /// Begins the remaining members of a group.
    pub(super) fn begin_rest(&mut self, group: GroupId, commands: &mut Vec<Command>) {
        if self.ledger.begin_rest(group) {
            commands.push(Command::Continue { group });
        }
    }

    /// Moves a finished group to the place of its verdict or failure, and counts it in its epoch. Returns its
    /// tally, which the step has yet to count ([`ScheduleRun::count`]).
    pub(super) fn settle(
        &mut self,
        group: GroupId,
        verdict: Option<Verdict>,
        commands: &mut Vec<Command>,
    ) -> Tally {
        let mut alone = Tally::default();
        let Some(finished) = self.ledger.finished(group) else { return alone };
        let epoch = finished.epoch;
        match (finished.outcome, verdict) {
            (GroupOutcome::Scored(summary), Some(verdict)) => {
                commands.push(Command::Judged { group, verdict });
                alone.add_judged(verdict, &summary);
            }
            (GroupOutcome::Failed(spent), _) => {
                alone.add_failed(self.ledger.num_members(finished), spent);
            }
            // It stays unsettled until the filter has judged it.
            (GroupOutcome::Scored(_), None) => return alone,
        }
        let judged = match verdict {
            Some(Verdict::Kept) => Judged::Kept,
            // Without two scores there is nothing to compare and nothing to train on.
            Some(Verdict::Dropped(reason))
                if self.settings.on_limit == OnLimit::KeepDropped && reason != DropReason::Unscored =>
            {
                Judged::Spare
            }
            Some(Verdict::Dropped(_)) | None => Judged::Dropped,
        };
        self.ledger.settle(group, judged);
        self.count_in_epoch(epoch, &alone);
        alone
    }

    fn count_in_epoch(&mut self, epoch: u64, alone: &Tally) {
        let epoch = self.epochs.entry(epoch).or_default();
        epoch.settled += 1;
        epoch.tally.append(alone);
    }

    pub(super) fn count(&mut self, tally: &Tally) {
        self.step.tally.append(tally);
        self.since_trained.append(tally);
    }

    /// Aborts those of these groups that are not settled.
    pub(super) fn give_up(
        &mut self,
        is_unwanted: impl Fn(GroupId, PolicyVersion, Option<&GroupOutcome>) -> bool,
        commands: &mut Vec<Command>,
    ) {
        let mut stopping = Vec::new();
        for group in self.ledger.give_up(is_unwanted) {
            let mut alone = Tally::default();
            if let Some(GroupOutcome::Failed(spent)) = group.outcome {
                alone.add_failed(group.num_members, spent);
            } else {
                alone.add_aborted(group.num_members);
                self.step.aborted.push(group.id);
            }
            self.count(&alone);
            // Says nothing of its epoch: the prompt comes again.
            self.count_in_epoch(group.epoch, &Tally::default());
            self.step.given_up.push(group.id);
            if group.outcome.is_none() {
                stopping.push(group.id);
            }
        }
        if !stopping.is_empty() {
            commands.push(Command::Abort { groups: stopping });
        }
    }

    /// Takes the first ready groups into the batch, and returns them.
    pub(super) fn train(&mut self, groups: usize) -> Vec<GroupId> {
        let kept = self.ledger.train(groups);
        self.take(&kept)
    }

    /// Takes all ready groups into the batch, and fills it with groups that the filter dropped in this step,
    /// as far as there are any. They are sorted into the order that fills batches: at the end of the batch
    /// they would form optimizer updates of their own, without a gradient.
    pub(super) fn train_with_dropped(&mut self) {
        let mut batch = self.ledger.train(self.settings.train_batch_size);
        let spare = self.ledger.train_spare(self.settings.train_batch_size - batch.len());
        self.step.kept_when_insufficient = spare.iter().map(|group| group.id).collect();
        batch.extend(spare);
        self.ledger.sort(&mut batch);
        self.take(&batch);
    }

    /// Takes all ready groups into the batch, and fills it with copies of them.
    pub(super) fn train_with_copies(&mut self) {
        let kept = self.ledger.train(self.settings.train_batch_size);
        self.take(&kept);
        let missing = self.settings.train_batch_size - kept.len();
        let key = Key::new(self.settings.seed, Purpose::Copies).with(self.progress.steps + 1);
        let copies: Vec<Kept> =
            choose_copies(kept.len(), missing, key).into_iter().map(|place| kept[place]).collect();
        for copy in &copies {
            self.step.batch.add_judged(Verdict::Kept, &copy.summary);
        }
        self.step.duplicated = copies.iter().map(|copy| copy.id).collect();
        self.ledger.duplicate(copies.iter());
    }

    /// Adds groups to the batch, and returns them.
    fn take(&mut self, groups: &[Kept]) -> Vec<GroupId> {
        for group in groups {
            self.step.max_lag = self.step.max_lag.max(self.version.0 - group.version.0);
            self.step.batch.add_judged(Verdict::Kept, &group.summary);
        }
        let ids: Vec<GroupId> = groups.iter().map(|group| group.id).collect();
        self.step.trained.extend(&ids);
        ids
    }

    pub(super) fn close_trained(&mut self, commands: &mut Vec<Command>) -> Result<StepClose> {
        let close = self.close(true, commands)?;
        let Count { trajectories, turns, tokens, .. } = close.report.accounting.trained;
        self.phase = Phase::Training { trajectories, turns, tokens };
        Ok(close)
    }

    pub(super) fn note_trained(&mut self, members: Members) -> Result<()> {
        let Phase::Training { trajectories, turns, tokens } = self.phase else {
            return self.expect(false, "trained");
        };
        for (unit, left_out, trained) in [
            ("members", members.trajectories, trajectories),
            ("turns", members.spent.turns, turns),
            ("tokens", members.spent.tokens, tokens),
        ] {
            if left_out > trained {
                return Err(fault!("{left_out} {unit} were left out of a batch of {trained}").into());
            }
        }
        self.ledger.leave_out(members);
        self.progress.steps += 1;
        self.skipped_in_a_row = 0;
        self.since_trained = Tally::default();
        self.rounds_since_trained = 0;
        self.phase = Phase::Idle;
        Ok(())
    }

    pub(super) fn note_published(&mut self, version: PolicyVersion) -> Result<()> {
        self.expect(self.phase != Phase::Ended, "published")?;
        self.check_version(version)?;
        self.version = version;
        Ok(())
    }

    /// Abandons the attempt at the step; after too many in a row, stops the run.
    pub(super) fn skip(&mut self, why: SkipReason, commands: &mut Vec<Command>) -> Result<()> {
        self.skipped_in_a_row += 1;
        if self.skipped_in_a_row > self.settings.max_skipped_steps {
            let cause = StopCause::SkippedSteps { steps: self.skipped_in_a_row, why };
            return self.stop(cause, self.since_trained, self.rounds_since_trained, commands);
        }
        self.progress.skipped_steps += 1;
        let close = self.close(true, commands)?;
        self.phase = Phase::Idle;
        commands.push(Command::SkipStep { why, close: Box::new(close) });
        Ok(())
    }

    /// Finishes the run. Unsettled groups are aborted, kept ones are surplus.
    pub(super) fn finish(&mut self, why: RunEnd, commands: &mut Vec<Command>) -> Result<()> {
        let close = self.close(false, commands)?;
        commands.push(Command::Finish { why, close: Box::new(close) });
        Ok(())
    }

    /// Ends the run for lack of signal, with a tally of so many rounds as evidence.
    pub(super) fn stop(
        &mut self,
        cause: StopCause,
        tally: Tally,
        rounds: u64,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let step = self.progress.steps + 1;
        let num_kept = self.step.trained.len() + self.ledger.num_kept();
        let limit = self.round_limit();
        let mut diagnosis = Diagnosis::new(cause, step, num_kept, rounds, limit, tally, &self.settings);
        // Only a stream gives untrained prompts back.
        if self.goes_back == GoesBack::Untrained {
            diagnosis.recommend_first_members(&self.settings);
        }
        let close = self.close(false, commands)?;
        commands.push(Command::Stop { diagnosis: Box::new(diagnosis), close: Box::new(close) });
        Ok(())
    }

    /// Counts where every group went. Kept groups and groups in flight stay for the next step if the run
    /// continues and surplus is carried.
    fn close(&mut self, goes_on: bool, commands: &mut Vec<Command>) -> Result<StepClose> {
        let keeps = goes_on && self.carries();
        let of_dropped = self.step.kept_when_insufficient.len();
        let num_accumulated = self.step.trained.len() - of_dropped + self.ledger.num_kept();
        let mut surplus = Vec::new();
        if !keeps {
            surplus = self.ledger.discard_kept();
            self.give_up(|_, _, _| true, commands);
        }
        if !goes_on {
            self.asked = None;
            self.phase = Phase::Ended;
        }
        let OpenStep {
            rounds,
            tally,
            batch,
            trained,
            kept_when_insufficient,
            duplicated,
            stale,
            aborted,
            given_up,
            max_lag,
            ..
        } = std::mem::replace(&mut self.step, OpenStep::under(&self.settings, self.keep_rate));
        let mut returned = Vec::new();
        if goes_on {
            returned = given_up;
            returned.extend(&stale);
            if self.goes_back == GoesBack::Untrained {
                returned.extend(&surplus);
                let is_full = trained.len() == self.settings.train_batch_size;
                if let Some(last) = trained.last().filter(|_| is_full && !keeps) {
                    returned.extend(self.ledger.gone_after(*last));
                }
            }
            returned.sort_unstable();
        }
        let (accounting, carried) = self.ledger.close()?;
        self.take_back(returned.len() as u64);
        let step = self.progress.steps + 1;
        let report = StepReport {
            step,
            epoch: self.progress.epoch,
            rounds,
            target: self.settings.train_batch_size,
            num_accumulated,
            all: tally,
            batch,
            accounting,
            max_lag,
            is_filtered: self.settings.filter.is_some(),
            on_limit: self.settings.on_limit,
            is_last: !trained.is_empty() && self.settings.total_steps == Some(step),
            may_stay_in_flight: self.carries()
                && (self.goes_back == GoesBack::Untrained || self.settings.rounds_in_flight > 1),
        };
        Ok(StepClose {
            trained,
            kept_when_insufficient,
            duplicated,
            surplus,
            stale,
            carried,
            aborted,
            returned,
            report,
        })
    }

    /// Prompts go back to the source: the present epoch has them to come again.
    fn take_back(&mut self, prompts: u64) {
        if prompts == 0 {
            return;
        }
        self.epoch_over = false;
        self.progress.prompts = self.progress.prompts.saturating_sub(prompts);
        self.progress.prompts_in_epoch = self.progress.prompts_in_epoch.saturating_sub(prompts);
        let began = self.progress.rounds;
        let epoch = self.epochs.entry(self.progress.epoch);
        epoch.or_insert(Epoch { began, ..Epoch::default() }).is_over = false;
    }
}
