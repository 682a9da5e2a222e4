//! Files of verifiers and prime-rl: `traces.jsonl` with one episode per line, and verifiers' older
//! `results.jsonl`.
//!
//! Read off and written with verifiers 0.4.0 and 0.3.1. prime-rl is not on a package index, so its folders
//! were read off its source (commit 559b447). Its file monitor saves each episode like verifiers, under the
//! step that is collecting when the episode ends. So the rollouts of one group may be in the files of several
//! steps. It saved single traces before August 2026, and rows as in `results.jsonl` before that.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Map, Value};
use tamis_data::dumped::DumpedRow;
use tamis_run::directory::{METRICS, ROLLOUTS};

use super::verl::{Lines, unread};
use super::{
    Found, SourceFile, Stamp, Trajectories, entries, prompt_number, put_into_groups, stamp, text_of,
};
use crate::Fault;

pub(super) const NAME: &str = "verifiers";
pub(super) const PRIME_RL: &str = "prime-rl";
const TRACES: &str = "traces.jsonl";
const RESULTS: &str = "results.jsonl";
/// Steps over which a group may be spread: prime-rl drops rollouts that are more steps off-policy.
const SPREAD: u64 = 8;
/// Numbers of a row of `results.jsonl` that are not scores.
const NO_SCORES: [&str; 5] = ["example_id", "reward", "generation_ms", "scoring_ms", "total_ms"];

/// Whether a row is an episode, a trace, or a row of `results.jsonl`.
fn is_row(row: &Map<String, Value>) -> bool {
    let is_list = |column: &str| row.get(column).is_some_and(Value::is_array);
    let has_task = row.get("task").is_some_and(Value::is_object);
    has_task && (is_list("traces") || is_list("nodes"))
        || row.contains_key("example_id") && row.contains_key("reward")
}

/// prime-rl's training files in a run folder, or in its `rollouts`.
fn steps(path: &Path) -> Vec<SourceFile> {
    let step_of = |folder: &Path| folder.file_name()?.to_str()?.strip_prefix("step_")?.parse().ok();
    let file_of = |folder: &Path| {
        let files = ["train/all/traces.jsonl", "train_rollouts.jsonl"].map(|file| folder.join(file));
        files.into_iter().find(|file| file.is_file())
    };
    let inside = path.join(ROLLOUTS);
    let folders = entries(if inside.is_dir() { &inside } else { path });
    let mut files: Vec<SourceFile> = folders
        .iter()
        .filter_map(|folder| Some(SourceFile { step: step_of(folder)?, path: file_of(folder)? }))
        .collect();
    files.sort_by_key(|file| file.step);
    files
}

/// The evaluation file at a path.
fn evaluation(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return [TRACES, RESULTS].iter().any(|name| path.ends_with(name)).then(|| path.to_owned());
    }
    [TRACES, RESULTS].map(|name| path.join(name)).into_iter().find(|file| file.is_file())
}

/// prime-rl's log of figures beside its rollouts.
fn metrics(path: &Path) -> PathBuf {
    if path.ends_with(ROLLOUTS) { path.with_file_name(METRICS) } else { path.join(METRICS) }
}

/// All files at a path that are read.
pub(super) fn files(path: &Path) -> Vec<Stamp> {
    let steps = steps(path);
    let figures = Some(metrics(path)).filter(|file| !steps.is_empty() && file.is_file());
    let evaluation = evaluation(path).filter(|_| steps.is_empty());
    steps
        .into_iter()
        .map(|file| file.path)
        .chain(figures)
        .chain(evaluation)
        .map(|file| stamp(&file))
        .collect()
}

/// Finds files of verifiers or prime-rl at a path.
pub(super) fn look(path: &Path) -> Option<Found> {
    let seen = files(path);
    let steps = steps(path);
    if let Some(last) = steps.last() {
        let mut notes = vec![
            "all rollouts are counted (`train/all`), trained on or not, and a group in the step in which its last rollout ended"
                .to_owned(),
        ];
        let is_done = last.path.ends_with("train_rollouts.jsonl")
            || last.path.ancestors().nth(2).is_some_and(|folder| folder.join("effective").is_dir());
        if !is_done {
            notes.push(format!("step {} is not done: its groups may lack rollouts", last.step));
        }
        let figures = figures(&metrics(path));
        return Some(Found {
            system: PRIME_RL,
            files: steps,
            figures,
            seen,
            notes,
            is_plain_sum: true,
            ..Found::default()
        });
    }
    let file = evaluation(path)?;
    let first = Lines::open(&file).ok()?.next()?.ok()?.1;
    let notes = vec!["an evaluation has no steps: all of it is shown as step 1".to_owned()];
    let files = vec![SourceFile { step: 1, path: file }];
    is_row(&first).then(|| Found { system: NAME, files, seen, notes, is_plain_sum: true, ..Found::default() })
}

/// prime-rl's figures by step, with our names for mean rewards. Several parts of prime-rl log rows of one
/// step.
fn figures(path: &Path) -> BTreeMap<u64, Map<String, Value>> {
    let mut figures: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    for (_, mut row) in Lines::open(path).into_iter().flatten().map_while(Result::ok) {
        if let Some(step) = row.remove("step").and_then(|step| step.as_u64()) {
            row.remove("time");
            figures.entry(step).or_default().extend(row);
        }
    }
    for row in figures.values_mut() {
        for (subset, ours) in [("all", "all/critic/score/mean"), ("effective", "critic/score/mean")] {
            let start = format!("train/agg/{subset}/");
            let is_mean =
                |name: &str| name.strip_prefix(&start).is_some_and(|rest| rest.ends_with("/reward/mean"));
            let mean = row.iter().find(|(name, _)| is_mean(name)).map(|(_, mean)| mean.clone());
            row.extend(mean.map(|mean| (ours.to_owned(), mean)));
        }
    }
    figures.retain(|_, row| row.contains_key("all/critic/score/mean"));
    figures
}

/// Group ids in files. Each file is searched once.
#[derive(Debug, Default)]
pub(super) struct GroupIds(RefCell<HashMap<Stamp, Rc<HashSet<String>>>>);

impl GroupIds {
    /// The ids in a file. Rows that cannot be read are reported by their readers.
    fn of(&self, path: &Path) -> Result<Rc<HashSet<String>>, Fault> {
        #[derive(Deserialize)]
        struct Row {
            group: Option<Group>,
            group_id: Option<String>,
        }
        #[derive(Deserialize)]
        struct Group {
            id: String,
        }
        let stamp = stamp(path);
        if let Some(known) = self.0.borrow().get(&stamp) {
            return Ok(Rc::clone(known));
        }
        let file = tamis_file::open(path).map_err(|cause| unread(path, cause))?;
        let mut ids = HashSet::new();
        for line in BufReader::new(file).split(b'\n') {
            let row = serde_json::from_slice(&line.map_err(|cause| unread(path, cause))?);
            ids.extend(row.ok().and_then(|row: Row| row.group.map(|group| group.id).or(row.group_id)));
        }
        let ids = Rc::new(ids);
        self.0.borrow_mut().insert(stamp, Rc::clone(&ids));
        Ok(ids)
    }
}

/// The group that prime-rl put an episode into.
fn group_id(row: &Map<String, Value>) -> Option<String> {
    let id = row.get("group").and_then(|group| group.get("id")).or_else(|| row.get("group_id"))?;
    id.as_str().map(ToOwned::to_owned)
}

/// Name of the task of an episode, a trace or a row of results.
fn task_of(row: &Map<String, Value>) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let env = ["/env/name", "/env/id", "/env_name"].iter().find_map(|path| pointer(row, path)).map(text);
    let names = [
        "/task/data/idx",
        "/task/data/id",
        "/task/key",
        "/task/hash",
        "/example_id",
        "/task/data/prompt",
        "/prompt",
    ];
    let name = names.iter().find_map(|path| pointer(row, path)).map(text);
    let kind =
        pointer(row, "/task/type").or_else(|| row.get("task").filter(|task| task.is_string())).map(text);
    [env, kind, name].into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// The value at a path in a row, unless it is null.
fn pointer<'row>(row: &'row Map<String, Value>, path: &str) -> Option<&'row Value> {
    let (first, rest) = path.strip_prefix('/')?.split_once('/').unwrap_or((path.get(1..)?, ""));
    let value = row.get(first)?;
    let found = if rest.is_empty() { Some(value) } else { value.pointer(&format!("/{rest}")) };
    found.filter(|value| !value.is_null())
}

/// The trajectories of a step: all of the groups that end in it, including trajectories from earlier steps. A
/// group is the rollouts of one agent with one group id or, without an id, of one task.
pub(super) fn rows(files: &[SourceFile], place: usize, ids: &GroupIds) -> Result<Trajectories, Fault> {
    let step = files[place].step;
    let mut ends: HashSet<String> = ids.of(&files[place].path)?.as_ref().clone();
    for file in files[place + 1..].iter().take_while(|file| file.step <= step + SPREAD) {
        let later = ids.of(&file.path)?;
        ends.retain(|id| !later.contains(id));
    }
    let mut read = Trajectories::default();
    // The group or task of each row, and the agent if a trace names it.
    let mut names: Vec<(String, Option<String>)> = Vec::new();
    let first = files.partition_point(|file| file.step + SPREAD < step);
    for (number, file) in files.iter().enumerate().take(place + 1).skip(first) {
        if number < place && ids.of(&file.path)?.is_disjoint(&ends) {
            continue;
        }
        let mut lines = (0..).zip(Lines::open(&file.path)?).peekable();
        while let Some((line, row)) = lines.next() {
            let is_last = lines.peek().is_none();
            if row.is_err()
                && is_last
                && tamis_file::read_end(&file.path, 1).is_ok_and(|(end, _)| end != b"\n")
            {
                // The line is being written, or its writer was killed.
                break;
            }
            let (at, row) = row?;
            if !is_row(&row) {
                return Err(Fault::failed(format!(
                    "{at}: it is neither an episode, a trace nor a result of verifiers"
                ))
                .with_hint("remove the row, or the file"));
            }
            let id = group_id(&row);
            let is_of_step = id.as_ref().map_or(number == place, |id| ends.contains(id));
            if !is_of_step {
                continue;
            }
            let group = id.unwrap_or_else(|| task_of(&row));
            for (agent, trajectory) in trajectories(&row) {
                let prompt_id = prompt_number(&task_of(&row));
                read.rows.push(DumpedRow { step, prompt_id, ..trajectory });
                read.places.push(vec![(number, line)]);
                names.push((group.clone(), agent));
            }
        }
    }
    // An episode that failed before it had a trace belongs to the agent of the others.
    let agents: HashMap<String, String> =
        names.iter().rev().filter_map(|(group, agent)| Some((group.clone(), agent.clone()?))).collect();
    let whole = |(group, agent): (String, Option<String>)| {
        let agent = agent.or_else(|| agents.get(&group).cloned()).unwrap_or_default();
        format!("{group}/{agent}")
    };
    let names = names.into_iter().map(whole).collect();
    put_into_groups(&mut read.rows, names, false);
    Ok(read)
}

/// The trajectories of a row, each with its agent: those of trained agents, or all if none is trained.
fn trajectories(row: &Map<String, Value>) -> Vec<(Option<String>, DumpedRow)> {
    let traces = match row.get("traces").and_then(Value::as_array) {
        Some(traces) => traces.iter().filter_map(Value::as_object).collect(),
        None if row.contains_key("nodes") => vec![row],
        None => return vec![(None, of_result(row))],
    };
    let is_trained =
        |trace: &&Map<String, Value>| pointer(trace, "/agent/trainable") != Some(&Value::Bool(false));
    let trained: Vec<_> = traces.iter().copied().filter(is_trained).collect();
    let chosen = if trained.is_empty() { traces } else { trained };
    if chosen.is_empty() {
        let prompt = pointer(row, "/task/data/prompt").and_then(text_of).unwrap_or_default();
        let failed = DumpedRow { prompt, reward: f64::NAN, verdict: "failed", ..DumpedRow::default() };
        return vec![(None, failed)];
    }
    let agent = |trace: &Map<String, Value>| {
        pointer(trace, "/agent/name").and_then(Value::as_str).map(ToOwned::to_owned)
    };
    chosen.into_iter().map(|trace| (agent(trace), of_trace(trace))).collect()
}

fn of_trace(trace: &Map<String, Value>) -> DumpedRow {
    let (before, after) = turns(trace);
    let text = |messages: Vec<Value>| text_of(&Value::Array(messages));
    let prompt = text(before).or_else(|| pointer(trace, "/task/data/prompt").and_then(text_of));
    let mut row = DumpedRow {
        prompt: prompt.unwrap_or_default(),
        completion: text(after).unwrap_or_default(),
        ground_truth: pointer(trace, "/task/data/answer").map(plain),
        reward: f64::NAN,
        num_tokens: trace.get("num_output_tokens").and_then(Value::as_u64).filter(|number| *number > 0),
        ..DumpedRow::default()
    };
    let calls = trace.get("calls").and_then(Value::as_array);
    let finish = calls.and_then(|calls| calls.last()?.get("finish_reason")?.as_str());
    row.finish_reason = finish.map(ToOwned::to_owned);
    let is_ok = trace.get("ok").and_then(Value::as_bool);
    let has_errors =
        || trace.get("errors").and_then(Value::as_array).is_some_and(|errors| !errors.is_empty());
    let is_failed = is_ok.map_or_else(has_errors, |is_ok| !is_ok);
    row.verdict = if is_failed { "failed" } else { "finished" };
    for (name, metric) in objects(trace, "metrics") {
        row.scores.insert(name.clone(), metric.as_f64().unwrap_or(f64::NAN));
    }
    let mut total = None;
    for (name, reward) in objects(trace, "rewards") {
        // Versions without weights have a bare number.
        let score = reward.get("score").unwrap_or(reward).as_f64().unwrap_or(f64::NAN);
        row.scores.insert(name.clone(), score);
        if !score.is_nan() {
            let weight = reward.get("weight").and_then(Value::as_f64).unwrap_or(1.0);
            total = Some(total.unwrap_or(0.0) + weight * score);
        }
    }
    row.reward = total.filter(|_| !is_failed).unwrap_or(f64::NAN);
    row
}

fn objects<'row>(
    row: &'row Map<String, Value>,
    column: &str,
) -> impl Iterator<Item = (&'row String, &'row Value)> {
    row.get(column).and_then(Value::as_object).into_iter().flatten()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// The messages of a trace's last branch: those before the first sampled message, and the others.
fn turns(trace: &Map<String, Value>) -> (Vec<Value>, Vec<Value>) {
    let nodes = trace.get("nodes").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (mut path, mut next) = (Vec::new(), nodes.len().checked_sub(1));
    while let Some(node) = next.and_then(|place| nodes.get(place)) {
        path.push(node);
        let parent =
            node.get("parent").and_then(Value::as_u64).and_then(|parent| usize::try_from(parent).ok());
        // A node comes after its parent.
        next = parent.filter(|parent| next.is_some_and(|place| *parent < place));
    }
    path.reverse();
    let is_sampled = |node: &&Value| node.get("sampled").and_then(Value::as_bool) == Some(true);
    let first = path.iter().position(is_sampled).unwrap_or(path.len());
    let messages = |nodes: &[&Value]| nodes.iter().filter_map(|node| node.get("message").cloned()).collect();
    (messages(&path[..first]), messages(&path[first..]))
}

/// A row of `results.jsonl`.
fn of_result(result: &Map<String, Value>) -> DumpedRow {
    let text = |column: &str| result.get(column).and_then(text_of).unwrap_or_default();
    let is_failed = result.get("error").is_some_and(|error| !error.is_null());
    let reward = result.get("reward").and_then(Value::as_f64).filter(|_| !is_failed);
    let is_cut = result.get("is_truncated").and_then(Value::as_bool);
    let mut row = DumpedRow {
        prompt: text("prompt"),
        completion: text("completion"),
        ground_truth: result.get("answer").filter(|answer| !answer.is_null()).map(plain),
        reward: reward.unwrap_or(f64::NAN),
        num_tokens: pointer(result, "/token_usage/output_tokens")
            .and_then(Value::as_f64)
            .map(|number| number as u64),
        finish_reason: is_cut.map(|is_cut| if is_cut { "length" } else { "stop" }.to_owned()),
        verdict: if is_failed { "failed" } else { "finished" },
        ..DumpedRow::default()
    };
    // Since 0.1.9 the numbers of reward functions are in `metrics` too.
    let own = result.iter().filter(|(name, value)| value.is_number() && !NO_SCORES.contains(&name.as_str()));
    for (name, score) in own.chain(objects(result, "metrics")) {
        row.scores.insert(name.clone(), score.as_f64().unwrap_or(f64::NAN));
    }
    row
}
