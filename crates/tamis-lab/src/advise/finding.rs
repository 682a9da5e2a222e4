//! Findings in the sampled groups that a person should check: the verifier, the diversity of completions,
//! truncation, and what limits the figures themselves.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde::Serialize;
use tamis_core::figure::{counted, percent, shortest};

use super::evidence::{EvidenceGroup, Groups, LoggedCounts, RewardScale};
use super::keep_rate::KeepEstimate;
use super::plan::AdvicePlan;

/// Importance of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Check this before starting a run.
    Warning,
    /// Keep this in mind when reading the figures.
    Note,
}

/// Something to check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdviceFinding {
    /// Its topic: `verifier`, `diversity`, `truncation`, `metric`, `sample`.
    pub topic: &'static str,
    /// Its importance.
    pub weight: Weight,
    /// What was found.
    pub text: String,
    /// What to do.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Changes {
    pub(super) temperature: Option<f64>,
    pub(super) max_response_length: Option<usize>,
}

/// Share of groups with identical texts from which the temperature is to blame.
const ALIKE: f64 = 0.5;
/// Shares of truncated completions from which truncation matters, and from which the limit is too low.
const CUT: f64 = 0.02;
const OFTEN_CUT: f64 = 0.1;
/// Groups of a size that are needed to compare its pass rate with another's.
const OF_A_SIZE: usize = 20;
/// Prompts from which an interval is reliable.
const MANY_PROMPTS: usize = 30;

fn warning(topic: &'static str, text: String, fix: impl Into<String>) -> AdviceFinding {
    AdviceFinding { topic, weight: Weight::Warning, text, fix: Some(fix.into()) }
}

fn note(topic: &'static str, text: String, fix: Option<&str>) -> AdviceFinding {
    AdviceFinding { topic, weight: Weight::Note, text, fix: fix.map(ToOwned::to_owned) }
}

pub(super) fn of_groups(groups: &Groups, plan: &AdvicePlan) -> (Vec<AdviceFinding>, Changes) {
    let unbiased = groups.unbiased();
    let mut changes = Changes::default();
    let mut found = of_verifier(groups);
    found.extend(alike(&unbiased, plan, &mut changes));
    found.extend(cut(&unbiased, plan, &mut changes));
    found.extend(sample(groups, &unbiased, plan));
    found.extend(of_plan(plan, groups.are_chosen()));
    (found, changes)
}

/// Prompts were chosen, and rates are corrected to those of the data. `keep` is the keep rate of the chosen
/// prompts, if costs are computed from it.
pub(super) fn of_choice(keep: Option<KeepEstimate>) -> AdviceFinding {
    let goes_by = keep.map_or_else(String::new, |keep| {
        format!("; {} of the chosen ones are kept, which decides the cost of a batch", percent(keep.value))
    });
    let text = format!(
        "prompts were chosen with a probability q (`inclusion`): a group counts 1/q times, so rates are those of the data{goes_by}"
    );
    note("sample", text, None)
}

/// Findings that matter for pass rates of prompts.
pub(crate) fn of_pass_rates(groups: &Groups) -> Vec<AdviceFinding> {
    let plan = AdvicePlan::default();
    let mut found = of_verifier(groups);
    let of_sample = sample(groups, &groups.unbiased(), &plan).into_iter();
    found.extend(of_sample.filter(|finding| finding.weight == Weight::Warning));
    if groups.are_chosen() {
        found.push(note(
            "sample",
            "a selector chose the prompts (`inclusion`), and each sampled prompt counts once: prompts that it skips are \
            under-represented".to_owned(),
            Some("rollouts of a run with `schedule.selector: {kind: shuffle}` represent the data"),
        ));
    }
    found.extend(unread(groups));
    found
}

fn of_verifier(groups: &Groups) -> Vec<AdviceFinding> {
    [constant(groups), doubtful(groups), random(groups), right_looking(groups), unscored(groups)]
        .into_iter()
        .flatten()
        .collect()
}

/// All findings in a log's counts.
pub(super) fn of_counts(counts: &LoggedCounts, plan: &AdvicePlan) -> (Vec<AdviceFinding>, Changes) {
    let mut changes = Changes::default();
    let limit = counts.sampled.max_response_length.or(plan.max_response_length);
    let mut found: Vec<AdviceFinding> = counts
        .truncated
        .and_then(|share| cut_share(share, None, limit, plan, &mut changes))
        .into_iter()
        .collect();
    if let Some(filled) = &counts.of_filled {
        let mut text = "verl prints nothing about the batch that fills a step: the keep rate is the maximum-likelihood estimate from \
            what it does print".to_owned();
        if let Some(size) = filled.planned_size {
            let _ = write!(
                text,
                "; batches are assumed to have the {size} prompts of `data.gen_batch_size`, because the log does not show how many"
            );
        }
        found.push(note("sample", text, None));
        if filled.num_left_out > 0 {
            let number = filled.num_left_out;
            found.push(warning(
                "sample",
                format!("the lines of {} are missing, or cannot come from one run: the keep rate leaves them out, and is too high if \
                    they took more batches", counted(number, "step")),
                "give a whole log, or the rollouts that verl dumps (`trainer.rollout_data_dir`)",
            ));
        }
    }
    // A filter with another rule gives no usable count.
    if counts.is_by_rewards {
        found.push(note(
            "sample",
            "groups whose rewards differ count as kept (`all/frac_reward_zero_std`), whatever the run itself kept".to_owned(),
            None,
        ));
        found.extend(of_plan(&AdvicePlan { other_filter: None, ..plan.clone() }, false));
    } else {
        found.extend(of_plan(plan, false));
    }
    (found, changes)
}

fn of_plan(plan: &AdvicePlan, is_weighted: bool) -> Vec<AdviceFinding> {
    let mut found = Vec::new();
    if plan.chooses_prompts && !is_weighted {
        found.push(note(
            "sample",
            "the run chooses prompts by their earlier results (`schedule.selector`): rates are those of the chosen ones".to_owned(),
            None,
        ));
    }
    if let Some(kind) = &plan.other_filter {
        found.push(note(
            "sample",
            format!("the run's filter is `{kind}`: rates here are those of `variance`, which keeps every group whose members differ"),
            Some("`tamis filter` applies any filter to the file"),
        ));
    }
    found
}

/// Only one score occurs.
fn constant(groups: &Groups) -> Option<AdviceFinding> {
    let RewardScale::Constant(value) = groups.scale(groups.outcome) else { return None };
    let (name, number) = (groups.outcome_name(), groups.num_trajectories());
    let all = if number == 1 {
        "the only trajectory".to_owned()
    } else {
        format!("every one of {number} trajectories")
    };
    let text = format!("{all} has `{name}` {}", shortest(value));
    let fix = if value < 1.0 {
        "score the gold answers (`data.check_gold: error` does so at the start of a run), look at completions with `tamis rollouts`, and \
        take easier prompts if both are fine"
    } else {
        "give the verifier a wrong answer to judge, and take harder prompts if it is right"
    };
    Some(warning("verifier", text, fix))
}

/// Two scores occur, and neither is that of a right answer.
fn doubtful(groups: &Groups) -> Option<AdviceFinding> {
    let (low, top) = groups.doubtful()?;
    let name = groups.outcome_name();
    Some(warning(
        "verifier",
        format!(
            "`{name}` is {} or {}, and nothing reaches 1: is {} right? No pass rate is reported",
            shortest(low),
            shortest(top),
            shortest(top)
        ),
        "if it is a failure too, groups that differ in it train on form: score the gold answers, look at completions, and take easier \
        prompts if both are fine",
    ))
}

/// The same completion of the same prompt has different scores.
fn random(groups: &Groups) -> Option<AdviceFinding> {
    let mut seen: HashMap<(usize, u64), (f64, bool)> = HashMap::new();
    let mut repeated = 0;
    for group in &groups.groups {
        for member in &group.members {
            let value = member.scores.get(groups.outcome).copied().filter(|value| value.is_finite());
            let (Some(text), Some(value)) = (member.text, value) else { continue };
            let first = seen.entry((group.prompt, text)).or_insert((f64::NAN, false));
            if first.0.is_nan() {
                first.0 = value;
            } else {
                repeated += 1;
                first.1 |= (value - first.0).abs() > 0.0;
            }
        }
    }
    let differing = seen.values().filter(|(_, differs)| *differs).count();
    (differing > 0 && !groups.has_turns).then(|| {
        warning(
            "verifier",
            format!(
                "{} judged in two ways when the same prompt gave the same text again ({repeated} repeats in all): the reward is not a \
                function of the text",
                if differing == 1 { "1 completion is".to_owned() } else { format!("{differing} completions are") }
            ),
            "a judge at a temperature, a time limit or a random draw makes equal completions differ: make the reward deterministic",
        )
    })
}

fn is_all_wrong(groups: &Groups, group: &EvidenceGroup) -> bool {
    let top = groups.top();
    let values = Groups::values(group, groups.outcome);
    let mut known = values.iter().filter(|value| value.is_finite()).peekable();
    known.peek().is_some() && top.is_some_and(|top| known.all(|value| *value < top))
}

/// All members of a group are wrong although one ends with the answer.
fn right_looking(groups: &Groups) -> Option<AdviceFinding> {
    let failed: Vec<&EvidenceGroup> =
        groups.groups.iter().filter(|group| is_all_wrong(groups, group)).collect();
    let shows = |group: &&&EvidenceGroup| group.members.iter().any(|member| member.shows_gold == Some(true));
    let looking: Vec<&&EvidenceGroup> = failed.iter().filter(shows).collect();
    let is_enough = looking.len() >= 2 && looking.len() as f64 >= 0.05 * failed.len() as f64;
    if !is_enough {
        return None;
    }
    let ids: Vec<String> = looking.iter().take(3).map(|group| group.id.clone()).collect();
    Some(warning(
        "verifier",
        format!(
            "{} of {} whose members are all wrong hold a completion whose last answer is the right one ({})",
            looking.len(),
            counted(failed.len(), "group"),
            ids.join(", ")
        ),
        "look at their completions: the verifier may expect another form than the prompt asks for",
    ))
}

fn unscored(groups: &Groups) -> Option<AdviceFinding> {
    let all = groups.num_trajectories();
    let scored: usize = groups
        .groups
        .iter()
        .map(|group| Groups::values(group, groups.outcome).iter().filter(|value| value.is_finite()).count())
        .sum();
    let missing = all - scored;
    (missing * 100 >= all && missing > 0).then(|| {
        warning(
            "verifier",
            format!(
                "{missing} of {all} trajectories have no `{}`: they are not counted",
                groups.outcome_name()
            ),
            "look at the reward function's errors and time limits",
        )
    })
}

/// All members of a group wrote the same.
fn alike(groups: &Groups, plan: &AdvicePlan, changes: &mut Changes) -> Option<AdviceFinding> {
    let (mut with_texts, mut identical, mut distinct, mut wrong, mut wrong_alike) = (0, 0, 0.0, 0, 0);
    for group in groups.groups.iter().filter(|group| group.members.len() > 1) {
        let texts: Option<Vec<u64>> = group.members.iter().map(|member| member.text).collect();
        let Some(mut texts) = texts else { continue };
        texts.sort_unstable();
        texts.dedup();
        with_texts += 1;
        distinct += texts.len() as f64 / group.members.len() as f64;
        let is_alike = texts.len() == 1;
        identical += usize::from(is_alike);
        if is_all_wrong(groups, group) {
            wrong += 1;
            wrong_alike += usize::from(is_alike);
        }
    }
    if with_texts == 0 || identical == 0 {
        return None;
    }
    let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
    let mut text = format!(
        "{} of {} have only one text; {} of a group's members are different",
        identical,
        counted(with_texts, "group"),
        percent(distinct / with_texts as f64)
    );
    if wrong_alike > 0 {
        let _ = write!(text, "; of {wrong} all-wrong ones {wrong_alike} do");
    }
    if share(identical, with_texts) < ALIKE {
        return Some(note("diversity", text, None));
    }
    // The temperature of the sampled groups. The plan may already have a higher one.
    let was = groups.sampled.temperature.or(plan.temperature);
    if plan.temperature > was {
        return Some(note(
            "diversity",
            text,
            Some("they were sampled at a lower temperature than the planned one"),
        ));
    }
    let fix = match was {
        Some(temperature) if temperature >= 1.0 => {
            "more samples of such a policy are the same again: take harder prompts, leave top_p, top_k and min_p off, and raise `objective.entropy.coefficient` in a run from an earlier checkpoint".to_owned()
        }
        given => {
            changes.temperature = Some(1.0);
            let from = given.map_or_else(String::new, |given| format!(" from {given}"));
            format!("raise `rollout.temperature`{from} to 1.0, with top_p, top_k and min_p off")
        }
    };
    Some(warning("diversity", text, fix))
}

fn cut(groups: &Groups, plan: &AdvicePlan, changes: &mut Changes) -> Option<AdviceFinding> {
    let (mut known, mut cut, mut right, mut longest) = (0, 0, 0, 0);
    let top = groups.top();
    for member in groups.groups.iter().flat_map(|group| &group.members) {
        let Some(is_cut) = member.is_truncated else { continue };
        known += 1;
        if is_cut {
            cut += 1;
            longest = longest.max(member.tokens.unwrap_or(0));
            let value = member.scores.get(groups.outcome);
            right += usize::from(value.zip(top).is_some_and(|(value, top)| *value >= top));
        }
    }
    // The limit that truncated them, whatever the plan.
    let limit =
        usize::try_from(longest).ok().filter(|limit| *limit > 0).or(groups.sampled.max_response_length);
    let of_cut = (cut > 0 && top.is_some()).then(|| right as f64 / f64::from(cut));
    (known > 0).then(|| cut_share(f64::from(cut) / f64::from(known), of_cut, limit, plan, changes)).flatten()
}

fn cut_share(
    share: f64,
    right: Option<f64>,
    limit: Option<usize>,
    plan: &AdvicePlan,
    changes: &mut Changes,
) -> Option<AdviceFinding> {
    let is_raised = plan.max_response_length.zip(limit).is_some_and(|(planned, limit)| planned > limit);
    if share < CUT || is_raised {
        return None;
    }
    let of_them = right.map_or_else(String::new, |right| format!("; {} of these are right", percent(right)));
    let place = limit.map_or_else(String::new, |limit| format!(" at {limit} tokens"));
    let text = format!("{} of the completions are cut{place}{of_them}", percent(share));
    if share < OFTEN_CUT {
        return Some(note(
            "truncation",
            text,
            Some(
                "`objective.masks.truncated: true` keeps them out of the loss, a reward `soft_overlong` warns the policy before the limit",
            ),
        ));
    }
    let why = if right.is_some_and(|right| right > 0.0) { "" } else { ": cut completions count as wrong" };
    let fix = match limit {
        Some(limit) => {
            changes.max_response_length = Some(limit.saturating_mul(2));
            format!("raise `rollout.max_response_length` to {}{why}", limit.saturating_mul(2))
        }
        None => format!("raise `rollout.max_response_length`{why}"),
    };
    Some(warning("truncation", text, fix))
}

/// Whether dropped groups are missing from the files. A run without a filter drops none.
pub(super) fn is_kept_alone(groups: &Groups, plan: &AdvicePlan) -> bool {
    groups.has_kept_alone && plan.has_filter != Some(false)
}

/// Groups of one size are solved more often than those of another.
fn unlike(groups: &Groups) -> Option<AdviceFinding> {
    let top = groups.top()?;
    let mut rates: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for counts in groups.counts(groups.outcome, Some(top)) {
        let rate = counts.correct? as f64 / counts.n() as f64;
        rates.entry(counts.n()).or_default().push(rate);
    }
    let moments = |(size, rates): (usize, Vec<f64>)| {
        let n = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / n;
        let squares = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
        (size, mean, squares / (n * (n - 1.0)))
    };
    let all: Vec<(usize, f64, f64)> =
        rates.into_iter().filter(|(_, rates)| rates.len() >= OF_A_SIZE).map(moments).collect();
    let least = all.iter().min_by(|one, other| one.1.total_cmp(&other.1))?;
    let most = all.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    // Three standard deviations of the difference.
    (most.1 - least.1 > 3.0 * (most.2 + least.2).sqrt()).then(|| {
        warning(
            "sample",
            format!(
                "groups of {} are right in {} of their members, groups of {} in {}: groups of different sizes have different prompts",
                least.0,
                percent(least.1),
                most.0,
                percent(most.1)
            ),
            "sample every prompt equally often",
        )
    })
}

/// Rows that were left out, and repeated prompts.
fn unread(groups: &Groups) -> Option<AdviceFinding> {
    let rows = |number: u64| counted(number, "row");
    let mut parts = Vec::new();
    if groups.num_unread > 0 {
        parts.push(format!(
            "{} left out: not a JSON object (`NaN` is not JSON), or without a group",
            rows(groups.num_unread)
        ));
    }
    if groups.num_without_step > 0 {
        parts.push(format!("{} left out: without a step", rows(groups.num_without_step)));
    }
    if groups.num_repeated > 0 {
        parts.push(format!(
            "{} occurred more than once in a file, without a group id: its rows are cut into groups of one size",
            counted(groups.num_repeated, "prompt")
        ));
    }
    (!parts.is_empty()).then(|| note("sample", parts.join("; "), None))
}

/// What limits the figures. `unbiased` are the groups that the figures count.
fn sample(groups: &Groups, unbiased: &Groups, plan: &AdvicePlan) -> Vec<AdviceFinding> {
    let mut found = Vec::new();
    let prompts = groups.num_prompts();
    if prompts == 1 {
        found.push(warning(
            "sample",
            "all groups are of one prompt: nothing is known about others".to_owned(),
            "sample a few hundred prompts of the training data",
        ));
    } else if prompts < MANY_PROMPTS {
        found.push(note(
            "sample",
            format!("{prompts} prompts are few: intervals are too narrow"),
            Some("sample a few hundred prompts of the training data"),
        ));
    }
    let sizes = unbiased.sizes();
    if sizes.keys().all(|size| *size < 2) && plan.baseline.is_none() {
        found.push(warning(
            "sample",
            "every group has one member: how often members differ is not known".to_owned(),
            "sample each prompt at least 4 times; if rows of a prompt belong together, give them one `uid`",
        ));
    } else if sizes.len() > 1 {
        let listed: Vec<String> = sizes.iter().map(|(size, number)| format!("{number} of {size}")).collect();
        found.push(note(
            "sample",
            format!(
                "groups have several sizes ({}): keep rates are counted up to the size that at least half of them reach, and extended by \
                the gain of the larger ones",
                listed.join(", ")
            ),
            None,
        ));
        found.extend(unlike(unbiased));
    }
    if is_kept_alone(groups, plan) {
        found.push(warning(
            "sample",
            "the members of every group differ: the file may have only kept groups, without the dropped ones"
                .to_owned(),
            "name rollouts of an unfiltered run, which verl's DAPO recipe with its filter does not dump; of tamis, those with `rollout.save: all`, or the run itself, or its log",
        ));
    }
    if matches!(groups.scale(groups.outcome), RewardScale::Many) {
        found.push(note(
            "metric",
            format!("`{}` has more than two values: a group is kept if any two differ, and there is no pass rate; beyond the groups' own \
                size rates are at least those shown", groups.outcome_name()),
            Some("name a raw outcome with --metric, if the file has one"),
        ));
    }
    found.extend(unread(groups));
    if groups.has_turns {
        found.push(note(
            "sample",
            "members were played in turns: texts are whole episodes, and right-looking answers are not searched".to_owned(),
            None,
        ));
    }
    if plan.n > 0 && plan.n != groups.size() && groups.size() > 1 {
        found.push(note(
            "sample",
            format!(
                "groups are mostly of {}, the run's are of {}: rates are carried over",
                groups.size(),
                plan.n
            ),
            None,
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{Member, Sampled};
    use super::*;

    fn groups(of: &[&[(f64, &str, bool)]]) -> Groups {
        let member = |&(value, text, shows): &(f64, &str, bool)| Member {
            scores: vec![value],
            text: Some(text.bytes().map(u64::from).sum()),
            shows_gold: Some(shows),
            ..Member::default()
        };
        let group = |(prompt, members): (usize, &&[(f64, &str, bool)])| EvidenceGroup {
            id: format!("group {prompt}"),
            prompt,
            members: members.iter().map(member).collect(),
            ..EvidenceGroup::default()
        };
        Groups {
            scores: vec!["acc".to_owned()],
            groups: of.iter().enumerate().map(group).collect(),
            ..Groups::default()
        }
    }

    fn told(groups: &Groups, topic: &str) -> Vec<String> {
        let (found, _) = of_groups(groups, &AdvicePlan::default());
        found.into_iter().filter(|finding| finding.topic == topic).map(|finding| finding.text).collect()
    }

    #[test]
    fn a_verifier_that_looks_wrong() {
        // The same text, once right and once wrong.
        let random =
            groups(&[&[(1.0, "a", false), (0.0, "a", false)], &[(1.0, "b", false), (0.0, "c", false)]]);
        assert_eq!(told(&random, "verifier").len(), 1);
        assert!(told(&random, "verifier")[0].starts_with("1 completion is judged in two ways"));
        // All are wrong, with the answer at the end.
        let strict = groups(&[
            &[(0.0, "a", true), (0.0, "b", false)],
            &[(0.0, "c", true), (0.0, "d", true)],
            &[(1.0, "e", true), (0.0, "f", false)],
        ]);
        assert_eq!(
            told(&strict, "verifier"),
            [
                "2 of 2 groups whose members are all wrong hold a completion whose last answer is the right one (group 0, group 1)"
            ]
        );
        let fair = groups(&[&[(0.0, "a", false), (0.0, "b", false)], &[(1.0, "e", true), (0.0, "f", false)]]);
        assert_eq!(told(&fair, "verifier"), Vec::<String>::new());
        let one = groups(&[&[(0.0, "a", false), (0.0, "b", false)]]);
        assert_eq!(told(&one, "verifier"), ["every one of 2 trajectories has `acc` 0"]);
        let missing =
            groups(&[&[(0.0, "a", false), (f64::NAN, "b", false)], &[(1.0, "c", false), (1.0, "d", false)]]);
        assert!(told(&missing, "verifier")[0].starts_with("1 of 4 trajectories have no `acc`"));
    }

    #[test]
    fn too_little_diversity_and_cut_completions_change_settings() {
        let same =
            groups(&[&[(0.0, "a", false), (0.0, "a", false)], &[(1.0, "b", false), (0.0, "c", false)]]);
        let plan = AdvicePlan { temperature: Some(0.6), ..AdvicePlan::default() };
        let (found, changes) = of_groups(&same, &plan);
        let told = found.iter().find(|finding| finding.topic == "diversity").unwrap();
        assert!(
            told.text.contains("1 of 2 groups have only one text")
                && told.fix.as_deref().unwrap().contains("from 0.6")
        );
        assert_eq!(changes.temperature, Some(1.0));
        let (_, changes) = of_groups(&same, &AdvicePlan { temperature: Some(1.0), ..AdvicePlan::default() });
        assert_eq!(changes.temperature, None);

        let of_two = [(0.0, "a", false), (1.0, "b", false)];
        let mut cut = groups(&[&of_two[..]; 5]);
        for (number, member) in cut.groups.iter_mut().flat_map(|group| &mut group.members).enumerate() {
            (member.is_truncated, member.tokens) = (Some(number < 2), Some(64));
        }
        let (found, changes) = of_groups(&cut, &AdvicePlan::default());
        let told = found.iter().find(|finding| finding.topic == "truncation").unwrap();
        assert_eq!(told.text, "20.0% of the completions are cut at 64 tokens; 50.0% of these are right");
        assert_eq!(changes.max_response_length, Some(128));
        // Some truncated completions are right.
        assert!(!told.fix.as_deref().unwrap().contains("count as wrong"), "{told:?}");
        // A planned limit did not truncate them, and a larger one already answers the finding.
        let planned = |limit| AdvicePlan { max_response_length: Some(limit), ..AdvicePlan::default() };
        assert!(
            of_groups(&cut, &planned(32)).0.iter().any(|finding| finding.text.contains("cut at 64 tokens"))
        );
        assert!(of_groups(&cut, &planned(256)).0.iter().all(|finding| finding.topic != "truncation"));
        // The same for temperatures.
        let sampled = Sampled { temperature: Some(0.6), ..Sampled::default() };
        let (found, changes) = of_groups(
            &Groups { sampled, ..same },
            &AdvicePlan { temperature: Some(1.2), ..AdvicePlan::default() },
        );
        assert_eq!(changes.temperature, None);
        assert!(found.iter().all(|finding| finding.topic != "diversity" || finding.weight == Weight::Note));
    }

    #[test]
    fn groups_of_unlike_prompts_by_size() {
        let of = |large: usize| {
            let small = (0..30).map(|group| (1 + group % 3, 4));
            Groups::of_counts(
                &small.chain((0..30).map(|group| (large * (1 + group % 3), 8))).collect::<Vec<_>>(),
            )
        };
        let warns = |groups: &Groups| {
            told(groups, "sample").iter().any(|text| text.contains("have different prompts"))
        };
        assert!(warns(&of(0)) && !warns(&of(2)));
    }

    #[test]
    fn what_limits_the_figures() {
        let mixed = Groups { num_unread: 2, has_kept_alone: true, ..Groups::of_counts(&[(1, 4), (2, 8)]) };
        let told = told(&mixed, "sample");
        assert!(told[1].contains("several sizes (1 of 4, 1 of 8)"), "{told:?}");
        assert!(
            told[2].contains("the file may have only kept groups") && told[3].starts_with("2 rows left out")
        );
    }
}
