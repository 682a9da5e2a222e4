//! The selector in a run: it decides which prompts are taken, and learns from the results of their groups.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::posterior::PRIOR_MEMORY;
use super::{PassRatePrior, PromptHistories, PromptSelection, Selector, Side, SkipRates};
use crate::filter::{GroupStatistics, OutcomeScale};
use crate::group::{Group, PolicyVersion, PromptId};
use crate::random::{Key, Purpose};

/// The next prompt in a pass over the data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The pass, from 0.
    pub epoch: u64,
    /// The prompt.
    pub prompt: PromptId,
    /// Probability with which it was taken before, if it was taken and then given back: it is not decided on
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inclusion: Option<f64>,
}

impl Candidate {
    /// A candidate on which nothing has been decided.
    pub fn new(epoch: u64, prompt: PromptId) -> Self {
        Self { epoch, prompt, inclusion: None }
    }

    fn place(&self) -> (u64, PromptId) {
        (self.epoch, self.prompt)
    }
}

/// A decision since the last step was closed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Decided {
    candidate: Candidate,
    inclusion: f64,
    is_taken: bool,
}

/// The result of a judged group, as selection sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedGroup {
    /// Its prompt.
    pub prompt: PromptId,
    /// Version that dispatched it.
    pub version: PolicyVersion,
    /// Probability with which its prompt was taken.
    pub inclusion: f64,
    /// Members with a metric.
    pub num_scored: u32,
    /// Members that are correct. If the members of a group differ, at least one counts as correct and one as
    /// wrong, whatever the scale of the metric: the group has something to teach.
    pub num_correct: u32,
    /// Members with a metric among those with which the group was begun: all, unless it was begun with some
    /// of them ([`screen_first`](crate::schedule::ScheduleSettings::screen_first)). Every group has the same
    /// number of these, whatever its result.
    pub first_scored: u32,
    /// Those of them that are correct, counted in the same way.
    pub first_correct: u32,
}

/// Number of members with a metric, and number of correct ones.
fn count(values: &[f64], scale: Option<OutcomeScale>) -> (u32, u32) {
    let statistics = GroupStatistics::of(values, scale);
    let num_scored = statistics.num_scored as u32;
    let mut num_correct = statistics.num_correct.unwrap_or(0) as u32;
    if num_scored > 1 && statistics.max > statistics.min {
        num_correct = num_correct.clamp(1, num_scored - 1);
    }
    (num_scored, num_correct)
}

impl JudgedGroup {
    /// From the filter's metric of the group's members \[G\]; the group was begun with `first` of them.
    pub fn of(
        group: &Group,
        values: &[f64],
        first: usize,
        scale: Option<OutcomeScale>,
        inclusion: f64,
    ) -> Self {
        let (num_scored, num_correct) = count(values, scale);
        let (first_scored, first_correct) = count(values.get(..first).unwrap_or(values), scale);
        let (prompt, version) = (group.prompt, group.dispatched);
        Self { prompt, version, inclusion, num_scored, num_correct, first_scored, first_correct }
    }
}

/// Everything that a selector has learnt and decided between two steps: the part that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorState {
    /// Histories of the prompts that were generated from.
    pub histories: PromptHistories,
    /// Distribution of pass rates over prompts.
    pub prior: PassRatePrior,
    /// Rates of `zero_variance_skip`.
    pub rates: SkipRates,
    /// Prompts decided on since the last report.
    pub num_considered: u64,
    /// Those of them that were skipped.
    pub num_skipped: u64,
    /// Decisions since the last step was closed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ahead: Vec<Decided>,
}

/// Decides which prompts of an epoch are generated from.
///
/// It learns when a step is closed, from the groups that were judged in the step and whose prompts do not go
/// back, in the order of their dispatch. What is drawn within a step therefore does not depend on which group
/// ends first. Prompts that were drawn ahead and not used go back, together with the skipped ones among them,
/// and are decided on again.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptSelector {
    settings: Selector,
    seed: u64,
    group_size: u32,
    state: SelectorState,
}

impl PromptSelector {
    /// The selector of a run that has learnt this much; `None` if every prompt is taken. A group is kept if
    /// its first `group_size` members differ: n, or those with which it is begun.
    pub fn new(
        settings: Selector,
        seed: u64,
        group_size: usize,
        state: Option<SelectorState>,
    ) -> Option<Self> {
        let is_blind = matches!(settings, Selector::Shuffle(_));
        let (group_size, state) = (group_size as u32, state.unwrap_or_default());
        (!is_blind).then_some(Self { settings, seed, group_size, state })
    }

    /// Its settings.
    pub fn settings(&self) -> &Selector {
        &self.settings
    }

    /// Members that decide whether a group is kept: n, or those with which it is begun.
    pub fn group_size(&self) -> u32 {
        self.group_size
    }

    /// The state to save.
    pub fn state(&self) -> &SelectorState {
        &self.state
    }

    /// Whether a candidate is taken by the policy's present version: a function of the seed, the candidate
    /// and what was learnt.
    pub fn decide(&self, candidate: &Candidate, version: PolicyVersion) -> PromptSelection {
        if let Some(inclusion) = candidate.inclusion {
            return PromptSelection { is_taken: true, inclusion };
        }
        let SelectorState { histories, prior, rates, .. } = &self.state;
        let history = histories.get(candidate.prompt);
        let key = Key::new(self.seed, Purpose::Selection).with(candidate.epoch).with(candidate.prompt.0);
        match &self.settings {
            Selector::Shuffle(_) => PromptSelection::CERTAIN,
            Selector::ZeroVarianceSkip(skip) => skip.select(rates, history, key),
            Selector::DifficultyPools(pools) => pools.select(history, key),
            Selector::Posterior(posterior) => posterior.select(prior, history, version, self.group_size, key),
        }
    }

    /// Decides on the candidates of an epoch, in their order, until `n` of them are taken or none is left.
    /// Returns whether none is left. If none of the remaining candidates would be taken it also decides on
    /// these, so that an epoch ends with its last taken prompt. Without a selector every candidate is taken.
    /// If nothing in a whole epoch would be taken, the likeliest candidate is taken: otherwise the data would
    /// seem to have no prompts.
    pub fn decide_next(
        selector: Option<&Self>,
        candidates: impl Iterator<Item = Candidate>,
        n: usize,
        version: PolicyVersion,
        is_whole_epoch: bool,
    ) -> (Vec<(Candidate, PromptSelection)>, bool) {
        let mut decided = Vec::new();
        let (mut num_taken, mut until) = (0, 0);
        for candidate in candidates {
            let selection =
                selector.map_or(PromptSelection::CERTAIN, |selector| selector.decide(&candidate, version));
            if selection.is_taken && num_taken == n {
                decided.truncate(until);
                return (decided, false);
            }
            decided.push((candidate, selection));
            if selection.is_taken {
                num_taken += 1;
                until = decided.len();
            }
        }
        if num_taken == 0 && n > 0 && is_whole_epoch {
            let likelier = |most: usize, place: usize| {
                let inclusion = |place: usize| decided[place].1.inclusion;
                if inclusion(place) > inclusion(most) { place } else { most }
            };
            if let Some(likeliest) = (0..decided.len()).reduce(likelier) {
                decided[likeliest].1.is_taken = true;
            }
        }
        (decided, true)
    }

    /// Records decisions that are carried out, in the order of the candidates.
    pub fn note(&mut self, candidate: Candidate, selection: PromptSelection) {
        let PromptSelection { is_taken, inclusion } = selection;
        self.state.num_considered += 1;
        self.state.num_skipped += u64::from(!is_taken);
        self.state.ahead.push(Decided { candidate, inclusion, is_taken });
    }

    /// Returns the drawn and unused prompts, which are the next candidates, each with the probability with
    /// which it was taken. Decisions after the last one that stays are undone, including those on skipped
    /// prompts.
    pub fn give_back(&mut self, returned: &[Candidate]) -> Vec<Candidate> {
        let goes_back: BTreeSet<(u64, PromptId)> = returned.iter().map(Candidate::place).collect();
        let ahead = &mut self.state.ahead;
        let is_undone =
            |decided: &Decided| !decided.is_taken || goes_back.contains(&decided.candidate.place());
        let stays = ahead.iter().rposition(|decided| !is_undone(decided)).map_or(0, |last| last + 1);
        // Skipped ones at the end stay skipped: they end an epoch.
        let any_goes_back = ahead[stays..].iter().any(|decided| decided.is_taken);
        let undone = if any_goes_back { ahead.split_off(stays) } else { Vec::new() };
        let num_skipped = undone.iter().filter(|decided| !decided.is_taken).count();
        self.state.num_considered = self.state.num_considered.saturating_sub(undone.len() as u64);
        self.state.num_skipped = self.state.num_skipped.saturating_sub(num_skipped as u64);
        let anew: BTreeSet<(u64, PromptId)> =
            undone.iter().map(|decided| decided.candidate.place()).collect();
        let others = returned.iter().filter(|candidate| !anew.contains(&candidate.place())).copied();
        others.chain(undone.iter().map(|decided| decided.candidate)).collect()
    }

    /// Learns from the groups of a closed step, in the order of their dispatch.
    pub fn learn(&mut self, groups: &[JudgedGroup]) {
        let memory = self.settings.memory();
        let state = &mut self.state;
        let (mut num_easy, mut num_hard) = (0, 0);
        for group in groups {
            let JudgedGroup { prompt, version, inclusion, num_scored, num_correct, .. } = *group;
            // A posterior does not depend on why a group has its number of members; a fit of the prior by
            // moments does.
            state.histories.observe(prompt, num_correct, num_scored, version, memory);
            state.prior.observe(group.first_correct, group.first_scored, inclusion, PRIOR_MEMORY);
            match Side::of(num_correct, num_scored) {
                Some(Side::Easy) => num_easy += 1,
                Some(Side::Hard) => num_hard += 1,
                None => {}
            }
        }
        if let Selector::ZeroVarianceSkip(skip) = &self.settings {
            state.rates = state.rates.after(skip, groups.len() as u64, num_easy, num_hard);
        }
        state.ahead.clear();
    }

    /// Returns the counts of decisions and resets them.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        let state = &mut self.state;
        (std::mem::take(&mut state.num_considered), std::mem::take(&mut state.num_skipped))
    }

    /// Factor by which earlier results of a prompt fade with each policy version.
    pub(super) fn memory(&self) -> f64 {
        self.settings.memory()
    }
}
