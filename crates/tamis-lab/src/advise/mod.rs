//! `tamis advise` reads rollouts, a run or a log, and recommends settings for a run with a group filter.
//!
//! ```text
//! rollouts, run, log -> Evidence (read.rs, rows.rs)     configuration -> Plan (plan.rs)
//!                          -> keep_rate.rs: pass rates, keep rates by n, intervals
//!                          -> cost.rs: rounds, cost by mode, size of a round, limit
//!                          -> metric.rs, finding.rs: metric, verifier, diversity, truncation
//!                          -> lines.rs: configuration to paste    text.rs: the page a terminal shows
//!                          -> ended.rs: what to change after a run that learned nothing
//! training data -> data_column.rs: forecast from its pass rates at a run's start
//! ```
//! [`advise`] is a pure function of evidence and plan. The cost model is [`crate::cost`], which
//! `tamis simulate` uses too.

mod cost;
mod data_column;
mod ended;
mod evidence;
mod filled;
mod finding;
mod gold;
mod histogram;
mod keep_rate;
mod lines;
mod metric;
mod plan;
mod read;
mod rows;
mod text;

use std::collections::BTreeMap;

use serde::Serialize;
use tamis_core::figure::{agreed, counted, percent};
use tamis_core::schedule::yields::{PassRateSpread, Screening};

pub use cost::{CostBasis, Costs, LimitAdvice, ModeCost, RoundAdvice};
pub use data_column::start_lines_of_data;
pub use ended::{EndAdvice, Gains, end_advice};
pub use evidence::{
    Evidence, EvidenceGroup, FilledSteps, Groups, LoggedCounts, Member, RewardScale, Sampled,
};
pub(crate) use finding::of_pass_rates;
pub use finding::{AdviceFinding, Weight};
pub use gold::shows_gold;
pub use histogram::{Bin, Spread};
pub use keep_rate::{KeepEstimate, KeepRate, KeepRateSource, KeepRates, OutcomeCounts, spread_of};
pub use lines::ConfigLines;
pub use metric::{MetricAdvice, metrics};
pub use plan::AdvicePlan;
pub(crate) use read::read_groups;
pub use read::{EvidenceSource, read, read_with_notes};

use finding::{is_kept_alone, of_choice, of_counts, of_groups};
use lines::Values;
use plan::SCREENED;

/// Group sizes for which keep rates are shown.
const SIZES: [usize; 5] = [2, 4, 8, 16, 32];
/// Candidates for the number of first members.
const FIRSTS: [usize; 8] = [2, 3, 4, 6, 8, 12, 16, 24];
/// Pass rate above which filtering is not advised.
const SOLVED: f64 = 0.8;
/// Larger groups may cost at most this many times as many trajectories per kept group.
const DEARER: f64 = 1.2;
/// What stays open if only a lower bound on the keep rate of whole groups is known.
const WHOLE_GROUPS: &str =
    "whether to filter, and what whole groups cost: it is only known that these are kept at least as often";
/// From `NEARLY_ALL` almost nothing is dropped; below `DEAR` a kept group is expensive.
const NEARLY_ALL: f64 = 0.95;
const DEAR: f64 = 0.25;

/// Present if groups with alike first members ended with these: the other groups have more members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Screened {
    /// Number of first members, if known.
    pub first: Option<usize>,
    /// Number of groups that ended with them, if known.
    pub groups: Option<u64>,
}

/// Summary of the evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdviceSample {
    /// Rollouts, or only counts.
    pub kind: EvidenceSource,
    /// Number of groups.
    pub groups: u64,
    /// Number of prompts; `None` for counts.
    pub prompts: Option<usize>,
    /// Number of trajectories, if known.
    pub trajectories: Option<usize>,
    /// Number of groups by number of members.
    pub sizes: BTreeMap<usize, u64>,
    /// Set if groups ended with their first members. Figures are then those of the first members of every
    /// group.
    pub screened: Option<Screened>,
    /// First and last step.
    pub steps: Option<(u64, u64)>,
    /// Name of the number that decides what is correct.
    pub outcome: Option<String>,
    /// Mean completion tokens of all trajectories.
    pub mean_tokens: Option<f64>,
    /// Mean completion tokens of trajectories in groups whose members differ.
    pub mean_tokens_kept: Option<f64>,
}

/// Whether to filter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterAdvice {
    /// `None` if something has to be checked first.
    pub filter: Option<bool>,
    /// The reasons, most important first.
    pub reasons: Vec<String>,
}

/// Whether to screen groups by their first members (`schedule.screen_first`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScreeningAdvice {
    /// Cost with the planned number of first members.
    pub planned: Option<Screening>,
    /// Cost with the cheapest number of first members.
    pub best: Option<Screening>,
}

impl ScreeningAdvice {
    /// Compares, for groups of n, the planned number of first members with the cheapest one of the known keep
    /// rates.
    fn of(n: usize, planned: Option<usize>, rates: &[KeepRate]) -> Option<Self> {
        let is_known = |rate: &&KeepRate| rate.source != KeepRateSource::AtLeast;
        let keep = |m: usize| Some(rates.iter().filter(is_known).find(|rate| rate.n == m)?.rate.value);
        let advice = Self {
            planned: planned.and_then(|first| Screening::with(n, first, keep)),
            best: Screening::best(n, keep).filter(Screening::pays),
        };
        (advice.planned.is_some() || advice.best.is_some()).then_some(advice)
    }

    /// What is advised for the planned first members; `None` if none are planned.
    fn of_planned(&self) -> Option<PlannedScreening> {
        let planned = self.planned?;
        let saves = |best: &Screening| best.cost <= (1.0 - Screening::LEAST_SAVED) * planned.cost;
        Some(match self.best.filter(saves) {
            Some(best) => PlannedScreening::Other(best),
            None if planned.cost > planned.whole => PlannedScreening::LeftOut,
            None => PlannedScreening::Kept,
        })
    }
}

/// Advice for planned first members.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PlannedScreening {
    /// Keep them: they cost less than whole groups.
    Kept,
    /// Use this number instead: it costs clearly less.
    Other(Screening),
    /// Remove the key: whole groups cost less.
    LeftOut,
}

/// All advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Name of the input.
    pub source: String,
    /// Summary of the evidence.
    pub sample: AdviceSample,
    /// The settings that the advice is for.
    pub plan: AdvicePlan,
    /// Share of correct trajectories.
    pub pass_rate: Option<KeepEstimate>,
    /// Groups by their share of correct members.
    pub histogram: Vec<Bin>,
    /// The distribution of pass rates over prompts, estimated from the groups.
    pub spread: Option<Spread>,
    /// Keep rates by group size.
    pub keep_rates: Vec<KeepRate>,
    /// Keep rate at the plan's group size, from which costs are computed. If the run continues to choose
    /// prompts, this is the keep rate of chosen prompts.
    pub keep_rate: Option<KeepEstimate>,
    /// Number of first members of screened groups, and the keep rate of that many.
    #[serde(skip)]
    pub keep_first: Option<(usize, KeepEstimate)>,
    /// Costs of a batch.
    pub costs: Option<Costs>,
    /// Recommended group size and the reason, if it differs from the plan's.
    pub group_size: Option<(usize, String)>,
    /// Whether to screen groups of that size by their first members. `None` if they should not be screened
    /// and are not.
    pub screening: Option<ScreeningAdvice>,
    /// Numbers that a filter could judge by.
    pub metrics: Vec<MetricAdvice>,
    /// Whether to filter.
    pub filter: FilterAdvice,
    /// What to look at.
    pub findings: Vec<AdviceFinding>,
    /// Questions that the input does not answer.
    pub unknown: Vec<String>,
    /// Lines of configuration for each system.
    pub lines: Vec<ConfigLines>,
}

/// Results from rollouts or a log, before the plan is applied.
struct Found {
    sample: AdviceSample,
    keep_rates: Vec<KeepRate>,
    /// Keep rates for costs, including those for candidate numbers of first members.
    cost_rates: Vec<KeepRate>,
    keep: Option<KeepEstimate>,
    pass_rate: Option<KeepEstimate>,
    spread: Option<PassRateSpread>,
    /// The smaller and the larger value of the outcome, if it has two.
    values: Option<(f64, f64)>,
    /// Whether the groups are only those that a filter kept.
    is_kept_alone: bool,
    histogram: Vec<Bin>,
    metrics: Vec<MetricAdvice>,
    findings: Vec<AdviceFinding>,
    changes: finding::Changes,
    unknown: Vec<String>,
}

/// The group sizes for which keep rates are computed.
fn sizes_with(others: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut sizes: Vec<usize> = SIZES.into_iter().chain(others).filter(|n| *n > 1).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Computes the advice for a plan from evidence.
pub fn advise(source: &str, evidence: &Evidence, plan: &AdvicePlan) -> Advice {
    match evidence {
        Evidence::Groups(groups) => of_rollouts(source, groups, plan),
        Evidence::Counts(counts) => of_log(source, counts, plan),
    }
}

fn of_rollouts(source: &str, groups: &Groups, plan: &AdvicePlan) -> Advice {
    let plan = AdvicePlan { n: if plan.n > 0 { plan.n } else { groups.size() }, ..plan.clone() };
    let top = groups.top();
    let unbiased = groups.unbiased();
    let counted = unbiased.counts(groups.outcome, groups.larger());
    let firsts = groups.first_members.into_iter().chain(plan.screen_first);
    let sizes = sizes_with(firsts.chain([plan.n]));
    let firsts = FIRSTS.into_iter().filter(|first| *first < plan.n);
    let all_sizes = sizes_with(firsts.chain(sizes.iter().copied()));
    let found = KeepRates::of(&counted, &all_sizes);
    let is_kept_alone = is_kept_alone(groups, &plan);
    let all_rates = if is_kept_alone { Vec::new() } else { found.rates };
    let told = all_rates.iter().filter(|rate| sizes.contains(&rate.n)).copied().collect();
    // A run that continues to choose prompts costs what its chosen prompts cost so far.
    let goes_on_choosing = groups.are_chosen() && plan.chooses_prompts && !is_kept_alone;
    let cost_rates = if goes_on_choosing {
        let as_chosen: Vec<OutcomeCounts> =
            counted.iter().cloned().map(|of| OutcomeCounts { weight: 1.0, ..of }).collect();
        KeepRates::of(&as_chosen, &all_sizes).rates
    } else {
        all_rates
    };
    let at_plan = cost_rates.iter().find(|rate| rate.n == plan.n).copied();
    // A lower bound on the keep rate of whole groups is no basis for costs.
    let is_bound =
        at_plan.is_some_and(|rate| groups.first_members.is_some() && rate.source == KeepRateSource::AtLeast);
    let keep = at_plan.map(|rate| rate.rate).filter(|_| !is_bound);
    let (mut findings, changes) = of_groups(groups, &plan);
    if groups.are_chosen() {
        findings.push(of_choice(keep.filter(|_| goes_on_choosing)));
    }
    let tokens = unbiased.mean_tokens();
    let sample = AdviceSample {
        kind: EvidenceSource::Rollouts,
        groups: groups.groups.len() as u64,
        prompts: Some(groups.num_prompts()),
        trajectories: Some(groups.num_trajectories()),
        sizes: groups.sizes(),
        screened: groups.first_members.map(|first| Screened {
            first: Some(first),
            groups: Some(groups.groups.iter().filter(|group| group.is_screened).count() as u64),
        }),
        steps: groups.steps,
        outcome: Some(groups.outcome_name().to_owned()),
        mean_tokens: tokens.map(|(all, _)| all),
        mean_tokens_kept: tokens.and_then(|(_, kept)| kept),
    };
    let mut unknown = Vec::new();
    if tokens.is_none() {
        unknown.push("cost in tokens: no row has the length of its completion".to_owned());
    }
    if groups.groups.iter().flat_map(|group| &group.members).all(|member| member.is_truncated.is_none()) {
        unknown.push("truncation: no row has a `finish_reason`".to_owned());
    }
    if groups.groups.iter().flat_map(|group| &group.members).all(|member| member.shows_gold.is_none()) {
        unknown.push(
            "right-looking answers among wrong ones: completions or gold answers are not in the file"
                .to_owned(),
        );
    }
    if is_bound {
        unknown.push(format!(
            "{WHOLE_GROUPS}: beyond the first members there is no fit to `{}`",
            groups.outcome_name()
        ));
    }
    unknown.push("entropy: rollouts do not have it; repeated texts are shown instead".to_owned());
    let facts = Found {
        sample,
        keep_rates: told,
        cost_rates,
        keep,
        pass_rate: found.pass_rate.filter(|_| top.is_some()),
        spread: found.spread.filter(|_| top.is_some() && !is_kept_alone),
        values: match groups.scale(groups.outcome) {
            RewardScale::Binary { low, top } => Some((low, top)),
            RewardScale::Constant(_) | RewardScale::Many | RewardScale::None => None,
        },
        is_kept_alone,
        histogram: if top.is_some() { histogram::bins(&counted) } else { Vec::new() },
        metrics: metrics(&unbiased),
        findings,
        changes,
        unknown,
    };
    finish(source, plan, facts)
}

fn of_log(source: &str, counts: &LoggedCounts, plan: &AdvicePlan) -> Advice {
    let mut plan = plan.clone();
    if let Some(size) = counts.train_batch_size.filter(|_| !plan.is_batch_known) {
        (plan.train_batch_size, plan.is_batch_known) = (size, true);
        if !plan.is_round_known {
            plan.gen_batch_size = counts.gen_batch_size.unwrap_or(size);
        }
    }
    // Members that were compared, which may differ from the plan: the first members of screened groups.
    let size = counts.sampled.n.unwrap_or(plan.n);
    let own = if counts.is_screened { counts.first_members.unwrap_or(0) } else { size };
    plan.n = if plan.n > 0 { plan.n } else { size };
    plan.screen_first = plan.screen_first.or(counts.first_members.filter(|_| counts.is_screened));
    // In a screened run mixed groups have more members than others, so the mean over trajectories is biased.
    let pass_rate = counts.pass_rate.filter(|_| !counts.is_screened);
    let counted = match counts.sums() {
        _ if counts.of_filled.is_some() => counts.of_filled.map(|filled| filled.keep_rate),
        (0, _) => counts.keep_rate.map(KeepEstimate::exact),
        _ => Some(keep_rate::of_steps(&counts.steps)),
    };
    let known = own > 1;
    let fit = |keep: f64| pass_rate.filter(|_| known).and_then(|rate| spread_of(rate, keep, own));
    let spread = counted.and_then(|keep| fit(keep.value));
    let mut keep_rates: Vec<KeepRate> = Vec::new();
    if let Some(counted) = counted.filter(|_| known) {
        let sizes = sizes_with([own, plan.n]);
        keep_rates.extend(sizes.into_iter().filter_map(|n| {
            let fitted = || counted.map(|keep| Some(fit(keep)?.keep_probability(n)));
            let (rate, source) = match fitted().filter(|_| n != own) {
                Some(rate) => (rate, KeepRateSource::Fitted),
                None if n == own => (counted, KeepRateSource::Counted),
                // Without a pass rate all that is known is that larger groups are kept at least as often.
                None if n == plan.n && n > own => (counted, KeepRateSource::AtLeast),
                None => return None,
            };
            Some(KeepRate { n, rate, source })
        }));
    }
    if let Some(counted) = counted.filter(|_| counts.is_screened && !known && plan.n > 1) {
        keep_rates.push(KeepRate { n: plan.n, rate: counted, source: KeepRateSource::AtLeast });
    }
    // A lower bound on the keep rate of whole groups is no basis for costs.
    let is_bound = |rate: &&KeepRate| counts.is_screened && rate.source == KeepRateSource::AtLeast;
    let keep = if known || counts.is_screened {
        keep_rates.iter().find(|rate| rate.n == plan.n).filter(|rate| !is_bound(rate)).map(|rate| rate.rate)
    } else {
        counted
    };
    let mut unknown = vec![
        "the histogram of pass rates, the metric to choose, texts and the verifier: counts have no single groups".to_owned(),
        "cost in tokens: counts have no lengths of groups".to_owned(),
    ];
    if counts.is_screened {
        let why = "groups that went on after their first members have more members in it than others";
        unknown.push(format!("the pass rate: {why}"));
        if keep.is_none() {
            unknown.push(WHOLE_GROUPS.to_owned());
        }
        if !known {
            unknown.push("keep rates by size: the log does not show with how many members groups were started (add `rollout.n=8 \
                schedule.screen_first=3` after it)".to_owned());
        }
    } else if !known {
        unknown.push("keep rates at other sizes: the log does not show how large groups are (add `rollout.n=8` after it)".to_owned());
    } else if spread.is_none() {
        unknown
            .push("keep rates at other sizes: the log has no pass rate of all generated groups".to_owned());
    }
    if counts.steps.is_empty() {
        unknown.push("intervals: the log has a mean filter rate, but no groups".to_owned());
    }
    if counts.entropy.is_none() {
        unknown.push("entropy: the log does not have it".to_owned());
    }
    let (judged, _) = counts.sums();
    let sample = AdviceSample {
        kind: EvidenceSource::Log,
        groups: judged,
        prompts: None,
        trajectories: None,
        sizes: BTreeMap::new(),
        screened: counts.is_screened.then(|| Screened {
            first: counts.first_members,
            groups: counts.dropped_by.get("screened").copied(),
        }),
        steps: counts.range,
        outcome: plan.metric.clone(),
        mean_tokens: None,
        mean_tokens_kept: None,
    };
    let (findings, changes) = of_counts(counts, &plan);
    let facts = Found {
        sample,
        cost_rates: keep_rates.clone(),
        keep_rates,
        keep,
        pass_rate: pass_rate.map(KeepEstimate::exact),
        spread,
        values: Some((0.0, 1.0)),
        is_kept_alone: false,
        histogram: Vec::new(),
        metrics: Vec::new(),
        findings,
        changes,
        unknown,
    };
    finish(source, plan, facts)
}

fn finish(source: &str, plan: AdvicePlan, found: Found) -> Advice {
    let Found { sample, keep_rates, cost_rates, keep, pass_rate, spread, values, is_kept_alone, .. } = found;
    let Found { histogram, metrics, findings, changes, mut unknown, .. } = found;
    if !plan.is_batch_known {
        unknown.push(format!(
            "the size of a batch: {} {} an example, which lines leave out (add `data.train_batch_size=N` after the file)",
            counted(plan.train_batch_size, "group"),
            agreed(plan.train_batch_size, "is", "are")
        ));
    }
    let keep = keep.filter(|keep| keep.value.is_finite());
    let keep_at = |n: usize| cost_rates.iter().find(|rate| rate.n == n).map(|rate| rate.rate);
    let basis = |keep: Option<KeepEstimate>| CostBasis {
        keep,
        keep_first: plan.screen_first.and_then(keep_at),
        tokens: sample.mean_tokens,
        pass_rate: pass_rate.map(|rate| rate.value),
    };
    let costs = Some(Costs::of(basis(keep), &plan)).filter(|costs| keep.is_some() || !costs.modes.is_empty());
    let mut filter = filter_advice(keep, pass_rate, &histogram, &plan, is_kept_alone);
    let group_size = match keep.filter(|_| filter.filter == Some(true)) {
        Some(keep) => match larger_groups(keep, &cost_rates, &plan) {
            Some(LargerGroups::Worth(n, why)) => Some((n, why)),
            Some(LargerGroups::Dearer(what)) => {
                filter.reasons.push(what);
                None
            }
            None => None,
        },
        None => None,
    };
    let n = group_size.as_ref().map_or(plan.n, |(n, _)| *n);
    let is_for_screening = filter.filter == Some(true) && plan.other_filter.is_none();
    let screening =
        is_for_screening.then(|| ScreeningAdvice::of(n, plan.screen_first, &cost_rates)).flatten();
    // The lines are for groups of the recommended size.
    let screen_first = match screening.as_ref().and_then(ScreeningAdvice::of_planned) {
        Some(PlannedScreening::Other(best)) => Some(best.first),
        Some(PlannedScreening::LeftOut) => None,
        Some(PlannedScreening::Kept) | None => plan.screen_first,
    };
    let there = if n == plan.n { keep } else { keep_at(n).or(keep) }.map(|keep| {
        let mode = if screen_first.is_some() { Some(SCREENED) } else { None };
        let basis = CostBasis { keep_first: screen_first.and_then(keep_at), ..basis(Some(keep)) };
        (keep, Costs::of(basis, &AdvicePlan { n, mode, screen_first, ..plan.clone() }))
    });
    // Show the round and the limit that the lines contain.
    let costs = costs.map(|costs| match &there {
        Some((_, there)) => Costs { round: there.round, limit: there.limit, ..costs },
        None => costs,
    });
    let outcome = sample.outcome.clone().or_else(|| plan.metric.clone()).unwrap_or_default();
    let lines = match &there {
        Some((keep, costs)) if n > 1 && keep.value > 0.0 => {
            let filters = filter.filter.unwrap_or(true);
            let keep = keep.value;
            Values { plan: &plan, n, keep, costs, changes, outcome: &outcome, values, filters, screen_first }
                .lines()
        }
        _ => Vec::new(),
    };
    Advice {
        source: source.to_owned(),
        pass_rate,
        histogram,
        spread: spread.and_then(Spread::of),
        keep_first: sample.screened.and_then(|screened| Some((screened.first?, keep_at(screened.first?)?))),
        sample,
        keep_rates,
        keep_rate: keep,
        costs,
        group_size,
        screening,
        metrics,
        filter,
        findings,
        unknown,
        lines,
        plan,
    }
}

/// Whether to filter, and why.
fn filter_advice(
    keep: Option<KeepEstimate>,
    pass_rate: Option<KeepEstimate>,
    histogram: &[Bin],
    plan: &AdvicePlan,
    is_kept_alone: bool,
) -> FilterAdvice {
    let mut reasons = Vec::new();
    let because = |filter, reason: &str| FilterAdvice { filter, reasons: vec![reason.to_owned()] };
    if let Some(baseline) = plan.baseline.filter(|_| !plan.has_critic) {
        let reason = format!(
            "advantages compare with {baseline}, not within the group: a group of equal rewards has signal"
        );
        return FilterAdvice { filter: Some(false), reasons: vec![reason] };
    }
    if plan.n == 1 {
        return because(
            Some(false),
            "a group of one member never differs from itself: nothing would be kept; `rollout.n` of 4 or more has something to compare",
        );
    }
    if is_kept_alone {
        return because(
            None,
            "the groups seem to be those that a filter kept: how many it drops is not known",
        );
    }
    let Some(keep) = keep else {
        return because(None, "it is not known how often the members of a group differ");
    };
    let times = |keep: f64| tamis_core::figure::fixed(1.0 / keep, 2);
    if keep.value <= 0.0 {
        let most = keep
            .high
            .map_or_else(String::new, |high| format!(" (at most {} of groups differ)", percent(high)));
        reasons.push(format!(
            "no group has members that differ{most}: nothing would be kept, and nothing is learnt without a filter either"
        ));
        return FilterAdvice { filter: None, reasons };
    }
    let solved = histogram.iter().find(|bin| bin.is_all).map(|bin| bin.share);
    let mut use_filter = true;
    if plan.has_critic {
        use_filter = false;
        reasons.push("if generated tokens are the limit: with a critic, advantages do not come from differences within a group, and a \
            uniform group still teaches it".to_owned());
        reasons.push("yes, if steps are the limit: PPO on FrozenLake gained as much from a filter as GRPO at equal training batches \
            (43.9 to 54.9 % success), and lost at equal generated tokens (40.5 to 31.9 %; studies/claims.md)".to_owned());
    }
    if let Some(rate) = pass_rate.filter(|rate| rate.value > SOLVED) {
        use_filter = false;
        let all = solved
            .map_or_else(String::new, |share| format!(", {} of groups are all correct", percent(share)));
        reasons.push(format!(
            "{} of the completions are correct{all}: a batch of kept groups costs {} times its size; harder prompts are worth more",
            percent(rate.value),
            times(keep.value)
        ));
    }
    if keep.value >= NEARLY_ALL {
        reasons.push(format!(
            "{} of groups are kept anyway: a filter costs little and changes little",
            percent(keep.value)
        ));
    } else if use_filter && keep.value < DEAR {
        reasons.push(format!(
            "{} of groups differ within, so without a filter {} of a batch teaches nothing",
            percent(keep.value),
            percent(1.0 - keep.value)
        ));
        let ways = if plan.chooses_prompts {
            "larger groups or easier prompts"
        } else {
            "larger groups, easier prompts or `schedule.selector: {kind: posterior}`"
        };
        reasons.push(format!(
            "it is expensive: {} groups are generated for each; try {ways} first if computing time is short",
            times(keep.value)
        ));
    } else if use_filter {
        reasons.push(format!(
            "{} of groups differ within, so without a filter {} of a batch teaches nothing; a batch of kept ones costs {} times its size",
            percent(keep.value),
            percent(1.0 - keep.value),
            times(keep.value)
        ));
    }
    if use_filter && keep.value < NEARLY_ALL {
        reasons.push(format!(
            "if computing time is short, leave it off: a batch of {} then holds about {} that differ, at the cost of one round",
            counted(plan.train_batch_size, "group"),
            tamis_core::figure::fixed(plan.train_batch_size as f64 * keep.value, 0)
        ));
    }
    FilterAdvice { filter: Some(use_filter), reasons }
}

enum LargerGroups {
    /// The recommended size, and why.
    Worth(usize, String),
    /// Larger groups keep more but cost more; the reason to print.
    Dearer(String),
}

/// Judges larger groups, if the plan's groups are kept too rarely and larger ones clearly more often.
fn larger_groups(keep: KeepEstimate, rates: &[KeepRate], plan: &AdvicePlan) -> Option<LargerGroups> {
    if plan.n < 2 || keep.value >= DEAR || keep.value <= 0.0 {
        return None;
    }
    let cost = |n: usize, keep: f64| n as f64 / keep;
    let own = cost(plan.n, keep.value);
    let is_dearer = |rate: &KeepRate| cost(rate.n, rate.rate.value) > DEARER * own;
    // Twice as many members that keep hardly more groups do not help.
    let is_better = |rate: &&KeepRate| {
        rate.n > plan.n && rate.source != KeepRateSource::AtLeast && rate.rate.value > 1.2 * keep.value
    };
    let better: Vec<&KeepRate> = rates.iter().filter(is_better).collect();
    let worth: Vec<&KeepRate> = better.iter().copied().filter(|rate| !is_dearer(rate)).collect();
    let is_enough = |rate: &&&KeepRate| rate.rate.value >= DEAR;
    let best = |of: &[&KeepRate]| of.iter().find(is_enough).or(of.last()).map(|rate| **rate);
    let says = |rate: KeepRate| {
        format!(
            "about {} of groups instead of {}; {} trajectories for each that is kept instead of {}",
            percent(rate.rate.value),
            percent(keep.value),
            tamis_core::figure::fixed(cost(rate.n, rate.rate.value), 0),
            tamis_core::figure::fixed(own, 0)
        )
    };
    if let Some(rate) = best(&worth) {
        return Some(LargerGroups::Worth(rate.n, format!("keeps {}", says(rate))));
    }
    best(&better).map(|rate| LargerGroups::Dearer(format!("groups of {} keep {}", rate.n, says(rate))))
}

#[cfg(test)]
mod tests;
