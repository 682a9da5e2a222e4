//! Chooses the groups that a page shows in full, and reads their texts. The choice depends only on the run's
//! files, so the same files give the same page. Steps are evenly spaced, the first and the last among them;
//! several runs share some steps that all of them have. In a step every kind of verdict gets its turn, the
//! commonest first. Within a kind, an order of prompts decides that is the same in every run, so that runs of
//! the same prompts show the same ones if they can. Members of large groups are evenly spaced by reward.

use serde::Serialize;
use tamis_core::fault::chain;
use tamis_data::columns::ColumnFile;
use tamis_data::records::RecordError;
use tamis_data::rollouts::fixed_columns;

use super::groups::{GroupFacts, Groups, StepGroups, evenly};
use super::run::Run;

/// Number of groups that are shown in full by default: of a run, and of a step.
const USUAL: usize = 48;
const USUAL_OF_STEP: usize = 6;
/// Largest number of steps whose groups are shown.
const MOST_STEPS: usize = 12;
/// Largest number of members of a group that are shown.
pub(crate) const MOST_MEMBERS: usize = 8;
/// Largest number of groups of a step whose scores are listed.
pub(crate) const MOST_LISTED: usize = 24;
/// Largest number of members of a group whose scores are listed.
pub(crate) const MOST_SCORES: usize = 32;
/// Approximate number of bytes of sampled texts in a page.
const BUDGET: usize = 4 << 20;
/// Smallest and largest number of characters of one text.
const SHORTEST: usize = 240;
const LONGEST: usize = 4000;

/// One answer in an environment, and what followed it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SampledTurn {
    pub(crate) text: String,
    /// Its reward; NaN: unknown.
    pub(crate) reward: f64,
    /// The text shown after it.
    pub(crate) observation: String,
    /// The role of the message.
    pub(crate) role: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Member {
    /// Place in the group.
    pub(crate) index: u64,
    /// Where it ended.
    pub(crate) verdict: String,
    pub(crate) reward: f64,
    /// Advantage; NaN: it was not trained on.
    pub(crate) advantage: f64,
    /// The number by which groups are coloured; NaN: none.
    pub(crate) score: f64,
    pub(crate) scores: Vec<(String, f64)>,
    /// The answer that its reward read.
    pub(crate) pred: Option<String>,
    /// Values that reward functions logged, by name.
    pub(crate) logged: Vec<(String, String)>,
    /// Number of completion tokens, and of those that the policy wrote.
    pub(crate) num_tokens: (usize, usize),
    pub(crate) finish_reason: String,
    pub(crate) text: String,
    /// Its turns; empty if it has none, or the file lacks their texts.
    pub(crate) turns: Vec<SampledTurn>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SampledGroup {
    pub(crate) id: u64,
    pub(crate) prompt_id: u64,
    pub(crate) verdict: String,
    pub(crate) prompt: String,
    /// The answer that rewards compare with.
    pub(crate) truth: Option<String>,
    pub(crate) source: String,
    pub(crate) num_members: usize,
    pub(crate) members: Vec<Member>,
}

/// The scores of one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Listed {
    pub(crate) id: u64,
    pub(crate) verdict: String,
    pub(crate) mean: f64,
    pub(crate) scores: Vec<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SampledStep {
    pub(crate) step: u64,
    pub(crate) num_groups: usize,
    pub(crate) listed: Vec<Listed>,
    pub(crate) groups: Vec<SampledGroup>,
}

/// Number of characters of each text for which a page has room.
pub(crate) fn longest(samples: &[Vec<SampledStep>]) -> usize {
    let of_member = |member: &Member| member.turns.len().max(1) * 2;
    let of_group = |group: &SampledGroup| 1 + group.members.iter().map(of_member).sum::<usize>();
    let num_texts: usize = samples.iter().flatten().flat_map(|step| &step.groups).map(of_group).sum();
    (BUDGET / num_texts.max(1)).clamp(SHORTEST, LONGEST)
}

/// Steps for which every one of several runs has groups, evenly spaced. They are shown for each run, so that
/// the runs can be compared. None for a single run.
pub(crate) fn shared_steps(runs: &[Run]) -> Vec<u64> {
    let Some((first, others)) = runs.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Vec::new();
    };
    let has = |run: &Run, step: u64| run.groups.of_step(step).is_some_and(|step| !step.groups.is_empty());
    let steps = first.groups.steps.iter().filter(|step| !step.groups.is_empty()).map(|step| step.step);
    let shared: Vec<u64> = steps.filter(|step| others.iter().all(|run| has(run, *step))).collect();
    evenly(shared.len(), MOST_STEPS / 2).into_iter().filter_map(|place| shared.get(place).copied()).collect()
}

/// Indices of the steps that are shown for a run: the shared ones, and others evenly spaced.
fn choose(steps: &[&StepGroups], shared: &[u64], most: usize) -> Vec<usize> {
    let place_of = |wanted: &u64| steps.iter().position(|step| step.step == *wanted);
    let mut chosen: Vec<usize> = shared.iter().filter_map(place_of).take(most).collect();
    chosen.extend(evenly(steps.len(), most - chosen.len()));
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// Reads what is shown for a run: so many groups in full, and the reasons for which steps are missing.
pub(crate) fn read(
    groups: &Groups,
    shared: &[u64],
    num_groups: Option<usize>,
) -> (Vec<SampledStep>, Vec<String>) {
    let with_groups: Vec<&StepGroups> = groups.steps.iter().filter(|step| !step.groups.is_empty()).collect();
    let most = num_groups.unwrap_or_else(|| USUAL.min(USUAL_OF_STEP * with_groups.len()));
    let chosen = choose(&with_groups, shared, MOST_STEPS.min(most));
    let (mut steps, mut failed) = (Vec::new(), Vec::new());
    for (number, &place) in chosen.iter().enumerate() {
        let Some(step) = with_groups.get(place) else { continue };
        // The remainder goes to the first steps.
        let share = most / chosen.len() + usize::from(number < most % chosen.len());
        match read_step(groups, step, share) {
            Ok(step) => steps.push(step),
            Err(error) => failed.push(chain(&error)),
        }
    }
    (steps, failed)
}

/// An order of prompts that does not depend on their numbers' order, and is the same in every run.
pub(crate) fn shuffled(prompt: u64) -> u64 {
    // The finaliser of splitmix64.
    let mut bits = prompt.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The groups of a step in the order in which they are chosen.
fn order(step: &StepGroups) -> Vec<&GroupFacts> {
    let mut kinds: Vec<(&str, Vec<&GroupFacts>)> = Vec::new();
    for group in &step.groups {
        let verdict = step.verdict_of(group);
        match kinds.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, groups)) => groups.push(group),
            None => kinds.push((verdict, vec![group])),
        }
    }
    for (_, groups) in &mut kinds {
        groups.sort_by_key(|group| (shuffled(group.prompt), group.id));
    }
    // Most readers look for what was trained on.
    kinds.sort_by_key(|(verdict, groups)| (*verdict != "trained", std::cmp::Reverse(groups.len()), *verdict));
    let longest = kinds.iter().map(|(_, groups)| groups.len()).max().unwrap_or(0);
    let turn = |number: usize| kinds.iter().filter_map(move |(_, groups)| groups.get(number).copied());
    (0..longest).flat_map(turn).collect()
}

fn read_step(all: &Groups, step: &StepGroups, most: usize) -> Result<SampledStep, RecordError> {
    let columns = ColumnFile::open(&step.path)?;
    let ids: Vec<u64> = numbers(&columns, "group_id", None)?.into_iter().map(|id| id as u64).collect();
    let order = order(step);
    let mut listed: Vec<&GroupFacts> = order.iter().copied().take(MOST_LISTED.max(most)).collect();
    let in_full: Vec<u64> = order.iter().take(most).map(|group| group.id).collect();
    // The table is sorted from the highest mean to the lowest.
    let mean = |group: &GroupFacts| all.score(group);
    listed.sort_by(|one, other| mean(other).total_cmp(&mean(one)).then(one.id.cmp(&other.id)));
    let mut rows: Vec<usize> = Vec::new();
    for (row, id) in ids.iter().enumerate() {
        if listed.iter().any(|group| group.id == *id) {
            rows.push(row);
        }
    }
    let score = if all.score_name() == "reward" { "reward" } else { "metric_value" };
    let scores = numbers(&columns, score, Some(&rows))?;
    let rewards = numbers(&columns, "reward", Some(&rows))?;
    let score_of = |place: usize| match scores.get(place).copied() {
        Some(score) if !score.is_nan() => score,
        _ => rewards.get(place).copied().unwrap_or(f64::NAN),
    };
    let of_group = |id: u64| {
        let with_id = |&(_, &row): &(usize, &usize)| ids.get(row) == Some(&id);
        rows.iter().enumerate().filter(with_id).map(|(place, &row)| (place, row)).collect::<Vec<_>>()
    };
    let listing = |group: &&GroupFacts| {
        let scores: Vec<f64> = of_group(group.id).into_iter().map(|(place, _)| score_of(place)).collect();
        let known: Vec<f64> = scores.iter().copied().filter(|score| !score.is_nan()).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        Listed { id: group.id, verdict: step.verdict_of(group).to_owned(), mean, scores }
    };
    let mut groups = Vec::new();
    for id in in_full {
        let members = of_group(id);
        let mut by_reward = members.clone();
        by_reward.sort_by(|one, other| {
            let reward = |place: usize| rewards.get(place).copied().unwrap_or(f64::NAN);
            reward(other.0).total_cmp(&reward(one.0)).then(one.1.cmp(&other.1))
        });
        let mut shown: Vec<(usize, usize)> = evenly(members.len(), MOST_MEMBERS)
            .into_iter()
            .filter_map(|place| by_reward.get(place).copied())
            .collect();
        shown.sort_by_key(|(_, row)| *row);
        let facts = step.groups.iter().find(|group| group.id == id);
        let of_rows: Vec<usize> = shown.iter().map(|(_, row)| *row).collect();
        let scores: Vec<f64> = shown.iter().map(|(place, _)| score_of(*place)).collect();
        let verdict = facts.map_or("", |facts| step.verdict_of(facts));
        groups.push(read_group(&columns, &of_rows, &scores, id, verdict, members.len())?);
    }
    Ok(SampledStep {
        step: step.step,
        num_groups: step.groups.len(),
        listed: listed.iter().map(listing).collect(),
        groups,
    })
}

/// A column with one number a row; NaN if there is none.
fn numbers(columns: &ColumnFile, name: &str, rows: Option<&[usize]>) -> Result<Vec<f64>, RecordError> {
    let count = rows.map_or_else(|| columns.num_rows(), <[usize]>::len);
    let found = columns.numbers(name, rows)?;
    let values =
        found.map(|found| found.rows().map(|row| row.first().copied().unwrap_or(f64::NAN)).collect());
    Ok(values.unwrap_or_else(|| vec![f64::NAN; count]))
}

/// A column of lists; empty lists if there is none.
fn number_lists(columns: &ColumnFile, name: &str, rows: &[usize]) -> Result<Vec<Vec<f64>>, RecordError> {
    let found = columns.numbers(name, Some(rows))?;
    Ok(found
        .map_or_else(|| vec![Vec::new(); rows.len()], |found| found.rows().map(<[f64]>::to_vec).collect()))
}

fn text_lists(columns: &ColumnFile, name: &str, rows: &[usize]) -> Result<Vec<Vec<String>>, RecordError> {
    let found = columns.texts(name, Some(rows))?;
    Ok(found
        .map_or_else(|| vec![Vec::new(); rows.len()], |found| found.rows().map(<[String]>::to_vec).collect()))
}

fn read_group(
    columns: &ColumnFile,
    rows: &[usize],
    score: &[f64],
    id: u64,
    verdict: &str,
    num_members: usize,
) -> Result<SampledGroup, RecordError> {
    let number = |name: &str| numbers(columns, name, Some(rows));
    let list = |name: &str| number_lists(columns, name, rows);
    let texts = |name: &str| text_lists(columns, name, rows);
    let (indices, rewards, advantages) = (number("sample_index")?, number("reward")?, number("advantage")?);
    let prompt_ids = number("prompt_id")?;
    let (mask, turn_rewards) = (list("loss_mask")?, list("turn_rewards")?);
    let (turns, observations, roles) =
        (texts("turn_texts")?, texts("turn_observations")?, texts("turn_roles")?);
    let (prompt, truth, source) = (texts("prompt")?, texts("ground_truth")?, texts("data_source")?);
    let (verdicts, finish, completions) = (texts("verdict")?, texts("finish_reason")?, texts("completion")?);
    let fixed = fixed_columns();
    let others: Vec<String> =
        columns.names().into_iter().filter(|name| !fixed.contains(&name.as_str())).collect();
    let mut scores: Vec<(String, Vec<f64>)> = Vec::new();
    let mut logged: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    for name in others {
        if columns.is_number(&name) {
            scores.push((name.clone(), number(&name)?));
        } else {
            logged.push((name.clone(), texts(&name)?));
        }
    }
    let at = |values: &[f64], place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    let first = |lists: &[Vec<String>], place: usize| lists.get(place).and_then(|list| list.first()).cloned();
    let members = (0..rows.len()).map(|place| {
        let mask = mask.get(place).map_or(&[][..], Vec::as_slice);
        let turn = |number: usize, text: &String| {
            let of = |lists: &[Vec<String>]| lists.get(place).and_then(|list| list.get(number)).cloned();
            SampledTurn {
                text: text.clone(),
                reward: turn_rewards.get(place).map_or(f64::NAN, |rewards| at(rewards, number)),
                observation: of(&observations).unwrap_or_default(),
                role: of(&roles).unwrap_or_default(),
            }
        };
        let of_member = turns.get(place).map_or(&[][..], Vec::as_slice);
        Member {
            index: at(&indices, place) as u64,
            verdict: first(&verdicts, place).unwrap_or_default(),
            reward: at(&rewards, place),
            advantage: at(&advantages, place),
            score: at(score, place),
            scores: scores.iter().map(|(name, values)| (name.clone(), at(values, place))).collect(),
            pred: logged.iter().find(|(name, _)| name == "pred").and_then(|(_, lists)| first(lists, place)),
            logged: logged
                .iter()
                .filter_map(|(name, lists)| Some((name.clone(), first(lists, place)?)))
                .collect(),
            num_tokens: (mask.len(), mask.iter().filter(|flag| **flag > 0.0).count()),
            finish_reason: first(&finish, place).unwrap_or_default(),
            text: first(&completions, place).unwrap_or_default(),
            turns: of_member.iter().enumerate().map(|(number, text)| turn(number, text)).collect(),
        }
    });
    Ok(SampledGroup {
        id,
        prompt_id: at(&prompt_ids, 0) as u64,
        verdict: verdict.to_owned(),
        prompt: first(&prompt, 0).unwrap_or_default(),
        truth: first(&truth, 0),
        source: first(&source, 0).unwrap_or_default(),
        num_members,
        members: members.collect(),
    })
}
