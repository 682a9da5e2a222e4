//! What is known about sampled groups.
//!
//! Advice starts from one of two kinds of evidence: groups with their members, read from rollouts
//! ([`Groups`]), or the counts of a log ([`LoggedCounts`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::keep_rate::{KeepEstimate, OutcomeCounts};
use super::plan::AdvicePlan;

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Member {
    /// Its index in the group, from 0, if the row has one.
    pub place: Option<u64>,
    /// Its numbers, in the order of [`Groups::scores`]. A missing number is NaN, or absent at the end.
    pub scores: Vec<f64>,
    /// Hash of its completion: equal texts have equal numbers.
    pub text: Option<u64>,
    /// Completion tokens.
    pub tokens: Option<u64>,
    /// Whether it was cut at the length limit.
    pub is_truncated: Option<bool>,
    /// Whether the completion ends with the answer that rewards compare with. `None` without such an answer
    /// or without text.
    pub shows_gold: Option<bool>,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EvidenceGroup {
    /// Its name in the file. If only the prompt's text identifies the group: the place of its first row.
    pub id: String,
    /// Number of its prompt.
    pub prompt: usize,
    /// Its members.
    pub members: Vec<Member>,
    /// Whether it ended with its first members because they were alike.
    pub is_screened: bool,
    /// Probability with which its prompt was chosen, if the file has it.
    pub inclusion: Option<f64>,
}

impl EvidenceGroup {
    /// Number of groups of the data that this group counts for.
    pub fn weight(&self) -> f64 {
        self.inclusion.map_or(1.0, |inclusion| 1.0 / inclusion)
    }
}

/// How groups were sampled, as far as the run says. The plan may differ.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampled {
    /// Members of a group.
    pub n: Option<usize>,
    /// Limit of a completion in tokens.
    pub max_response_length: Option<usize>,
    /// Temperature.
    pub temperature: Option<f64>,
    /// Number of first members (`schedule.screen_first`): a group ended after these if they were alike.
    pub screen_first: Option<usize>,
}

/// Groups with their members.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Groups {
    /// Names of the numbers that members have.
    pub scores: Vec<String>,
    /// Index in [`Self::scores`] of the number that decides what is correct.
    pub outcome: usize,
    /// The groups, in the order of the files.
    pub groups: Vec<EvidenceGroup>,
    /// First and last step, if the files name steps.
    pub steps: Option<(u64, u64)>,
    /// Whether members were played in several turns.
    pub has_turns: bool,
    /// Whether it looks as if dropped groups were left out.
    pub has_kept_alone: bool,
    /// Rows that cannot be read or have no group.
    pub num_unread: u64,
    /// Prompts without a named group whose rows were cut into several groups.
    pub num_repeated: usize,
    /// Rows without a step. They are left out if steps were requested.
    pub num_without_step: u64,
    /// First and last step that was left out because other steps were requested.
    pub other_steps: Option<(u64, u64)>,
    /// Number of first members of every group, if groups with alike first members ended with these.
    pub first_members: Option<usize>,
    /// How the groups were sampled.
    pub sampled: Sampled,
}

/// How many values an outcome has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RewardScale {
    /// Two values. The larger one is correct.
    Binary {
        /// The smaller one.
        low: f64,
        /// The larger one.
        top: f64,
    },
    /// Only one value.
    Constant(f64),
    /// More than two values.
    Many,
    /// No member has a value.
    None,
}

/// If the larger of two values is below this, it may well be partial credit for a wrong answer.
const FULL: f64 = 0.9;
/// Dropped groups with less than this share of their members ended with their first members.
const SHORT: f64 = 0.9;
/// Number of values from which an outcome counts as [`RewardScale::Many`].
const MANY: usize = 3;

impl Groups {
    /// Groups from `(correct, members)` pairs, for tests and for callers that only have counts.
    pub fn of_counts(groups: &[(usize, usize)]) -> Self {
        let group = |(prompt, &(correct, n)): (usize, &(usize, usize))| EvidenceGroup {
            id: format!("group {prompt}"),
            prompt,
            members: (0..n)
                .map(|member| Member {
                    scores: vec![f64::from(u8::from(member < correct))],
                    ..Member::default()
                })
                .collect(),
            ..EvidenceGroup::default()
        };
        let groups = groups.iter().enumerate().map(group).collect();
        Self { scores: vec!["acc".to_owned()], groups, ..Self::default() }
    }

    /// One score of every member of a group; NaN if a member lacks it.
    pub fn values(group: &EvidenceGroup, score: usize) -> Vec<f64> {
        let of = |member: &Member| member.scores.get(score).copied().unwrap_or(f64::NAN);
        group.members.iter().map(of).collect()
    }

    /// Name of the outcome.
    pub fn outcome_name(&self) -> &str {
        self.scores.get(self.outcome).map_or("", String::as_str)
    }

    /// Number of trajectories.
    pub fn num_trajectories(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }

    /// Number of prompts.
    pub fn num_prompts(&self) -> usize {
        let mut prompts: Vec<usize> = self.groups.iter().map(|group| group.prompt).collect();
        prompts.sort_unstable();
        prompts.dedup();
        prompts.len()
    }

    /// Number of groups by number of members.
    pub fn sizes(&self) -> BTreeMap<usize, u64> {
        let mut sizes = BTreeMap::new();
        for group in &self.groups {
            *sizes.entry(group.members.len()).or_default() += 1;
        }
        sizes
    }

    /// The most common number of members; the larger one if two are equally common. Only groups that were
    /// sampled beyond their first members count, if there are any.
    pub fn size(&self) -> usize {
        let first = self.first_members.unwrap_or(0);
        let went_on = |group: &&EvidenceGroup| !group.is_screened && group.members.len() > first;
        let commonest = |groups: &mut dyn Iterator<Item = &EvidenceGroup>| {
            let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
            for group in groups {
                *sizes.entry(group.members.len()).or_default() += 1;
            }
            sizes.into_iter().max_by_key(|(size, count)| (*count, *size)).map(|(size, _)| size)
        };
        let whole = commonest(&mut self.groups.iter().filter(went_on));
        whole.or_else(|| commonest(&mut self.groups.iter())).unwrap_or(0)
    }

    /// Whether prompts were chosen, so that groups have unequal weights.
    pub fn are_chosen(&self) -> bool {
        self.groups.iter().any(|group| group.inclusion.is_some_and(|inclusion| inclusion < 1.0))
    }

    /// Notes a step that was left out because other steps were requested.
    pub(super) fn leave_out(&mut self, step: u64) {
        let (first, last) = self.other_steps.unwrap_or((step, step));
        self.other_steps = Some((first.min(step), last.max(step)));
    }

    /// The groups, reduced to members that show without bias how often members differ. These are all members,
    /// or the first members of every group if groups were screened: only groups with unlike first members
    /// have more than these.
    pub fn unbiased(&self) -> Cow<'_, Self> {
        let Some(first) = self.first_members else { return Cow::Borrowed(self) };
        let mut groups = self.clone();
        for group in &mut groups.groups {
            group.members.retain(|member| member.place.is_none_or(|place| place < first as u64));
            group.members.truncate(first);
        }
        Cow::Owned(groups)
    }

    /// The different values of a score, at most [`MANY`].
    fn distinct(&self, score: usize) -> Vec<f64> {
        let mut found: Vec<f64> = Vec::new();
        for group in &self.groups {
            for value in Self::values(group, score) {
                // Compared as numbers: 0 and -0 are one value.
                let is_new = value.is_finite() && !found.contains(&value);
                if is_new {
                    found.push(value);
                    if found.len() == MANY {
                        return found;
                    }
                }
            }
        }
        found
    }

    /// How many values a score has.
    pub fn scale(&self, score: usize) -> RewardScale {
        match self.distinct(score).as_slice() {
            [] => RewardScale::None,
            [one] => RewardScale::Constant(*one),
            [one, other] => RewardScale::Binary { low: one.min(*other), top: one.max(*other) },
            _ => RewardScale::Many,
        }
    }

    /// The larger of two values, correct or not: it does not change which groups differ.
    pub fn larger(&self) -> Option<f64> {
        match self.scale(self.outcome) {
            RewardScale::Binary { top, .. } => Some(top),
            _ => self.top(),
        }
    }

    /// The smaller and the larger of two values, if even the larger one is less than a right answer is worth.
    pub fn doubtful(&self) -> Option<(f64, f64)> {
        match self.scale(self.outcome) {
            RewardScale::Binary { low, top } if top < FULL => Some((low, top)),
            _ => None,
        }
    }

    /// The value from which a member is correct; `None` if the outcome does not decide that.
    pub fn top(&self) -> Option<f64> {
        match self.scale(self.outcome) {
            RewardScale::Binary { top, .. } if top < FULL => None,
            RewardScale::Binary { top, .. } => Some(top),
            // A single value is correct if it is at least 1.
            RewardScale::Constant(_) => Some(1.0),
            RewardScale::Many | RewardScale::None => None,
        }
    }

    /// For each group with any value of a score: number of members by value.
    pub fn counts(&self, score: usize, top: Option<f64>) -> Vec<OutcomeCounts> {
        self.groups
            .iter()
            .filter_map(|group| {
                let counts = OutcomeCounts::of(group.prompt, &Self::values(group, score), top)?;
                Some(OutcomeCounts { weight: group.weight(), ..counts })
            })
            .collect()
    }

    /// Mean completion tokens of all members, and of the members of groups that differ in their outcome.
    pub fn mean_tokens(&self) -> Option<(f64, Option<f64>)> {
        let (mut all, mut kept) = ((0.0, 0.0), (0.0, 0.0));
        for group in &self.groups {
            let is_mixed = OutcomeCounts::of(0, &Self::values(group, self.outcome), None)
                .is_some_and(|counts| counts.by_value.len() > 1);
            let weight = group.weight();
            for tokens in group.members.iter().filter_map(|member| member.tokens) {
                let tokens = weight * tokens as f64;
                all = (all.0 + tokens, all.1 + weight);
                if is_mixed {
                    kept = (kept.0 + tokens, kept.1 + weight);
                }
            }
        }
        (all.1 > 0.0).then(|| (all.0 / all.1, (kept.1 > 0.0).then(|| kept.0 / kept.1)))
    }
}

/// Counts of groups in a log.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoggedCounts {
    /// Judged and kept groups of each step that logs both. Only the last steps.
    pub steps: Vec<(u64, u64)>,
    /// Whether the counts come from `all/frac_reward_zero_std`: a group counts as kept if its members differ
    /// in reward. This is so if the run had no filter, or one with another rule.
    pub is_by_rewards: bool,
    /// Whether the run has no filter, or one with another rule, and that share is missing: no group counts as
    /// kept.
    pub is_of_another_rule: bool,
    /// Share of kept groups, if no step logs both numbers.
    pub keep_rate: Option<f64>,
    /// Set if the log does not show how many groups the last batch of a step kept. [`Self::steps`] then holds
    /// expected numbers of kept groups.
    pub of_filled: Option<FilledSteps>,
    /// First and last step of the counts.
    pub range: Option<(u64, u64)>,
    /// Share of correct trajectories.
    pub pass_rate: Option<f64>,
    /// Groups dropped by reason, over the whole log.
    pub dropped_by: BTreeMap<String, u64>,
    /// Groups per training batch.
    pub train_batch_size: Option<usize>,
    /// Prompts of a round.
    pub gen_batch_size: Option<usize>,
    /// Mean rounds of a step.
    pub rounds: Option<f64>,
    /// Share of truncated completions.
    pub truncated: Option<f64>,
    /// Mean entropy of a token in the last step.
    pub entropy: Option<f64>,
    /// Generated groups, their trajectories, dropped groups and kept groups, of each step that logs all four.
    pub members: Vec<[u64; 4]>,
    /// Whether groups ended with their first members if these were alike.
    pub is_screened: bool,
    /// The number of first members, if known.
    pub first_members: Option<usize>,
    /// How the groups were sampled.
    pub sampled: Sampled,
}

/// Estimate from steps whose log shows only that their last batch filled them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FilledSteps {
    /// The keep rate of maximum likelihood.
    pub keep_rate: KeepEstimate,
    /// Steps with missing lines, or with lines that cannot be from one run.
    pub num_left_out: usize,
    /// Planned number of prompts per batch, if the log does not have it.
    pub planned_size: Option<usize>,
}

impl LoggedCounts {
    /// Sums of judged and of kept groups.
    pub fn sums(&self) -> (u64, u64) {
        self.steps.iter().fold((0, 0), |sum, step| (sum.0 + step.0, sum.1 + step.1))
    }

    /// Finds the number of members of a group if the configuration lacks it and all groups have the same
    /// number. Otherwise finds whether groups ended with their first members: the configuration says so, the
    /// filter has that reason, or dropped groups had fewer members than kept ones.
    pub(super) fn find_members(&mut self, plan: &AdvicePlan) {
        let has_reason = self.dropped_by.get("screened").is_some_and(|number| *number > 0);
        let size = self.sampled.n.unwrap_or(plan.n);
        if self.sampled.screen_first.is_none()
            && !has_reason
            && let Some(members) = self.members_of_all()
        {
            let first = self.first_members_of_all(size).filter(|first| *first < members);
            let is_planned = plan.screen_first.is_none_or(|planned| first == Some(planned));
            // The mean over some full groups and some that ended early can be the same whole number.
            let is_known = self.sampled.n.is_some() || size <= members;
            if is_known || first.is_none() || !is_planned {
                self.sampled.n = self.sampled.n.or(Some(members));
                return;
            }
            (self.is_screened, self.first_members) = (true, first);
            return;
        }
        let short = self.mean_of_dropped(size).filter(|members| *members < SHORT * size as f64);
        self.is_screened = self.sampled.screen_first.is_some() || has_reason || short.is_some();
        if self.is_screened {
            let counted =
                short.map(|members| members.round() as usize).filter(|first| (2..size).contains(first));
            self.first_members = self.sampled.screen_first.or(plan.screen_first).or(counted);
        }
    }

    /// Generated groups, trajectories, dropped and kept groups of each step in which every group was judged.
    fn whole_steps(&self) -> impl Iterator<Item = [u64; 4]> {
        self.members.iter().copied().filter(|[generated, _, dropped, kept]| {
            *generated > 0 && dropped.saturating_add(*kept) == *generated
        })
    }

    /// The number of members per group, if it is the same whole number in every step.
    fn members_of_all(&self) -> Option<usize> {
        let mut of_steps = self.whole_steps().map(|[groups, trajectories, ..]| {
            trajectories.is_multiple_of(groups).then_some(trajectories / groups)
        });
        let members = of_steps.next()??;
        let is_of_all = of_steps.all(|of_step| of_step == Some(members));
        usize::try_from(members).ok().filter(|_| is_of_all)
    }

    /// The number of members of dropped groups, if it is the same whole number of 2 or more in every step.
    /// Kept groups have `size` members.
    fn first_members_of_all(&self, size: usize) -> Option<usize> {
        let mut of_steps = self.whole_steps().filter(|[_, _, dropped, _]| *dropped > 0).map(
            |[_, trajectories, dropped, kept]| {
                let members = trajectories.checked_sub(kept.checked_mul(size as u64)?)?;
                members.is_multiple_of(dropped).then_some(members / dropped).filter(|first| *first > 1)
            },
        );
        let first = of_steps.next()??;
        let is_of_all = of_steps.all(|of_step| of_step == Some(first));
        usize::try_from(first).ok().filter(|_| is_of_all)
    }

    /// Mean members of dropped groups. Kept groups have `size` members.
    fn mean_of_dropped(&self, size: usize) -> Option<f64> {
        let (mut members, mut groups) = (0.0, 0.0);
        for [_, trajectories, dropped, kept] in self.whole_steps() {
            members += trajectories as f64 - kept as f64 * size as f64;
            groups += dropped as f64;
        }
        (size > 1 && groups > 0.0).then(|| members / groups).filter(|members| *members > 0.0)
    }
}

/// What advice is based on.
#[derive(Debug, Clone, PartialEq)]
pub enum Evidence {
    /// Groups with their members.
    Groups(Groups),
    /// Counts of a log.
    Counts(LoggedCounts),
}

/// Numbers prompts and groups in order of appearance.
#[derive(Debug, Default)]
pub(super) struct Numbers(HashMap<String, usize>);

impl Numbers {
    /// The number of a name, and whether the name is new.
    pub(super) fn of(&mut self, name: String) -> (usize, bool) {
        let next = self.0.len();
        let number = *self.0.entry(name).or_insert(next);
        (number, number == next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_an_outcome_say_what_is_correct() {
        let of = |values: &[f64]| {
            let member = |value: &f64| Member { scores: vec![*value], ..Member::default() };
            let members = values.iter().map(member).collect();
            let group = EvidenceGroup { members, ..EvidenceGroup::default() };
            Groups { scores: vec!["x".to_owned()], groups: vec![group], ..Groups::default() }
        };
        assert_eq!(of(&[0.0, 1.0, f64::NAN]).scale(0), RewardScale::Binary { low: 0.0, top: 1.0 });
        // The scores of verl's math verifier, and a wrong answer that scores above 0.
        assert_eq!([of(&[-1.0, 1.0]).top(), of(&[0.1, 1.1]).top()], [Some(1.0), Some(1.1)]);
        assert_eq!(
            [of(&[0.0]).top(), of(&[0.0, 0.5, 1.0]).top(), of(&[f64::NAN]).top()],
            [Some(1.0), None, None]
        );
        assert_eq!(of(&[0.0, 0.5, 1.0, 2.0]).scale(0), RewardScale::Many);
        // Zero has no sign. Neither the absence of a penalty nor a right format is a right answer.
        assert_eq!(of(&[0.0, -0.0]).scale(0), RewardScale::Constant(0.0));
        for (low, top) in [(-0.5, 0.0), (0.0, 0.1)] {
            let doubtful = of(&[top, low]);
            assert_eq!(
                (doubtful.doubtful(), doubtful.top(), doubtful.larger()),
                (Some((low, top)), None, Some(top))
            );
        }
        let sizes = Groups::of_counts(&[(1, 4), (2, 8), (3, 8)]);
        assert_eq!((sizes.size(), sizes.num_trajectories(), sizes.num_prompts()), (8, 20, 3));
    }

    /// The first members are those with the lowest places, whatever the order of rows.
    #[test]
    fn first_members_are_those_that_every_group_has() {
        let mut groups = Groups::of_counts(&[(0, 2), (0, 2), (2, 4)]);
        for group in &mut groups.groups {
            group.is_screened = group.members.len() == 2;
            let last = group.members.len() as u64 - 1;
            // The correct members have the last two places, and their rows come first.
            for (row, member) in (0..).zip(&mut group.members) {
                member.place = Some(last - row);
            }
        }
        assert_eq!(groups.unbiased().num_trajectories(), 8);
        let groups = Groups { first_members: Some(2), ..groups };
        let first = groups.unbiased();
        assert_eq!((first.num_trajectories(), first.scale(0)), (6, RewardScale::Constant(0.0)));
        // Whole groups have four members, although most groups have two.
        assert_eq!((groups.size(), first.size()), (4, 2));
        // A group that lost two rows, and so has as many as the first members, does not count.
        let mut torn = groups.clone();
        torn.groups.extend(Groups::of_counts(&[(1, 2)]).groups);
        assert_eq!(torn.size(), 4);
        // Neither do five screened groups of three.
        torn.groups.extend(Groups::of_counts(&[(1, 3), (1, 4), (1, 4)]).groups);
        let of_three = EvidenceGroup { is_screened: true, ..torn.groups[4].clone() };
        torn.groups.extend(vec![of_three; 5]);
        assert_eq!(torn.size(), 4);
    }

    /// Four groups with eight members and 16 that ended with three have four members in the mean.
    #[test]
    fn a_mean_of_one_step_is_no_size_where_the_plan_says_otherwise() {
        let counts = |steps: &[[u64; 4]]| LoggedCounts { members: steps.to_vec(), ..LoggedCounts::default() };
        let found = |steps: &[[u64; 4]], plan: &AdvicePlan| {
            let mut counts = counts(steps);
            counts.find_members(plan);
            (counts.sampled.n, counts.is_screened, counts.first_members)
        };
        let eight = AdvicePlan { n: 8, ..AdvicePlan::default() };
        let three = AdvicePlan { screen_first: Some(3), ..eight.clone() };
        let step = [20, 80, 16, 4];
        assert_eq!(found(&[step], &AdvicePlan::default()), (Some(4), false, None));
        assert_eq!(found(&[step], &eight), (None, true, Some(3)));
        assert_eq!(found(&[step], &three), (None, true, Some(3)));
        // Not with two first members, nor with a step that contradicts three first members.
        assert_eq!(
            found(&[step], &AdvicePlan { screen_first: Some(2), ..eight.clone() }),
            (Some(4), false, None)
        );
        assert_eq!(found(&[step, [20, 80, 15, 5]], &eight), (Some(4), false, None));
        assert_eq!(found(&[step, [25, 100, 20, 5]], &eight), (None, true, Some(3)));
    }
}
