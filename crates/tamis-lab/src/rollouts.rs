//! `tamis rollouts`: prints what a run generated, trajectory by trajectory, from its rollout files.
//!
//! It also reads validation samples and dumps of verl (`input`, `output`, `gts`). Values that a row lacks are
//! left out.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};
use tamis_core::figure::{counted, shortest};
use tamis_core::filter::DropReason;
use tamis_data::records::Records;
use tamis_data::{rollouts, samples};
use tamis_run::directory::{ROLLOUTS, step_files};

use crate::Fault;
use crate::other_runs::{OtherRun, text_of};

/// Selection of trajectories to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutQuery {
    /// A run directory, or a file.
    pub source: PathBuf,
    /// The step of a run; `None`: the last one there is.
    pub step: Option<u64>,
    /// Verdict of the trajectories; `dropped` stands for everything that the filter dropped.
    pub verdict: Option<String>,
    /// Their `group_id`.
    pub group: Option<u64>,
    /// Their `prompt_id`.
    pub prompt: Option<u64>,
    /// Upper limit on the number of returned trajectories.
    pub limit: usize,
}

/// Verdicts other than the filter's reasons, with their meanings.
const VERDICTS: [(&str, &str); 11] = [
    ("trained", "trained on in step N"),
    ("kept_when_insufficient", "dropped by the filter, but in the batch because too few groups were kept"),
    ("surplus", "kept by the filter, beyond the batch"),
    ("stale", "carried over until it was too old"),
    ("aborted", "it was aborted, or the run ended during the step"),
    ("unscored", "no reward function answered"),
    ("unchosen", "the filter chose other members"),
    ("truncated", "`objective.masks.truncated`"),
    ("shaped", "a shaping left it out"),
    ("masked", "it has no token of the policy"),
    ("rejected", "`objective.correction` rejected all of its tokens"),
];

/// All verdicts that a query may name.
fn verdicts() -> Vec<&'static str> {
    let mut names: Vec<&str> = VERDICTS.iter().map(|(name, _)| *name).collect();
    names.push("dropped");
    names.extend(DropReason::ALL.map(DropReason::name));
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    names
}

/// Steps as text: `1 to 4, 7`.
fn ranges(steps: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &step in steps {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == step => *last = step,
            _ => runs.push((step, step)),
        }
    }
    let listed: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
        .collect();
    format!("step{} {}", if steps.len() == 1 { "" } else { "s" }, listed.join(", "))
}

/// The requested trajectories, and their number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RolloutView {
    /// The file.
    pub file: PathBuf,
    /// Trajectories in it.
    pub num_trajectories: u64,
    /// Number of trajectories by verdict, the most common first; empty if the file has no verdicts.
    #[serde(serialize_with = "as_object")]
    pub verdicts: Vec<(String, u64)>,
    /// Trajectories that match.
    pub num_matching: u64,
    /// The first of them, with all their columns.
    pub rows: Vec<Map<String, Value>>,
    /// Notes about a run of another trainer.
    #[serde(skip)]
    pub notes: Vec<String>,
}

fn as_object<S: serde::Serializer>(verdicts: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(verdicts.iter().map(|(name, count)| (name, count)))
}

/// Columns that a query looks at.
const QUERIED: [&str; 3] = ["verdict", "group_id", "prompt_id"];

/// Reads the trajectories of a query.
///
/// # Errors
/// Nothing can match the query, or a file cannot be read.
pub fn read(query: &RolloutQuery) -> Result<RolloutView, Fault> {
    let other = OtherRun::find(&query.source)?;
    let (file, shown) = match &other {
        Some(other) => file_of_another(other, query)?,
        None => file_of(query).map(|file| (file.clone(), file))?,
    };
    let mut view = RolloutView {
        file: shown,
        num_trajectories: 0,
        verdicts: Vec::new(),
        num_matching: 0,
        rows: Vec::new(),
        notes: other.as_ref().map_or_else(Vec::new, OtherRun::notes),
    };
    let mut wanted = BTreeSet::new();
    for (number, record) in (0_u64..).zip(Records::open_with(&file, |column| QUERIED.contains(&column.name))?)
    {
        let row = record?.values;
        view.num_trajectories += 1;
        if let Some(verdict) = row.get("verdict").and_then(Value::as_str) {
            match view.verdicts.iter_mut().find(|(name, _)| name == verdict) {
                Some((_, count)) => *count += 1,
                None => view.verdicts.push((verdict.to_owned(), 1)),
            }
        }
        if !matches(query, &row) {
            continue;
        }
        view.num_matching += 1;
        if wanted.len() < query.limit {
            wanted.insert(number);
        }
    }
    // All columns of the rows that are shown.
    if let Some(&last) = wanted.last() {
        for (number, record) in (0..=last).zip(Records::open(&file)?) {
            if wanted.contains(&number) {
                view.rows.push(record?.values);
            }
        }
    }
    // A file of another build may have other names.
    if let Some(wanted) = query.verdict.as_deref()
        && view.num_matching == 0
        && !verdicts().contains(&wanted)
        && !view.verdicts.iter().any(|(name, _)| name == wanted)
    {
        let message = format!("`{wanted}` is not a verdict; the verdicts are {}", verdicts().join(", "));
        return Err(Fault::usage(message).with_hint(
            "`dropped` stands for everything that the filter dropped; docs/rollouts.md explains each",
        ));
    }
    view.verdicts.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    Ok(view)
}

fn matches(query: &RolloutQuery, row: &Map<String, Value>) -> bool {
    let has = |column: &str, wanted: Option<u64>| {
        wanted.is_none_or(|wanted| row.get(column).and_then(Value::as_u64) == Some(wanted))
    };
    let ended = query.verdict.as_deref().is_none_or(|wanted| {
        let verdict = row.get("verdict").and_then(Value::as_str).unwrap_or_default();
        let is_dropped = || DropReason::ALL.iter().any(|reason| reason.name() == verdict);
        verdict == wanted || (wanted == "dropped" && is_dropped())
    });
    ended && has("group_id", query.group) && has("prompt_id", query.prompt)
}

fn file_of(query: &RolloutQuery) -> Result<PathBuf, Fault> {
    let source = &query.source;
    if !source.exists() {
        let hint = "name the folder that a run printed at its start, or a JSONL or Parquet file";
        return Err(Fault::nothing_there(source, hint));
    }
    if !source.is_dir() {
        return match query.step {
            Some(_) => {
                let source = source.display();
                let message = format!("--step chooses among the files of a run, but {source} is a file");
                Err(Fault::usage(message).with_hint("leave it out, or name the run"))
            }
            None => Ok(source.clone()),
        };
    }
    let inside = source.join(ROLLOUTS);
    let folder = if inside.is_dir() { inside } else { source.clone() };
    let files = step_files(&folder)?;
    let Some((_, last)) = files.last() else {
        let shown = folder.display();
        return Err(if folder == *source {
            Fault::usage(format!("{shown} is not a run directory: there is no `rollouts` folder in it"))
                .with_hint("name the folder that a run printed at its start, or a file")
        } else {
            Fault::usage(format!("no rollouts are saved in {shown}")).with_hint(
                "a run writes them after each step, unless `rollout.save` is `off` (`kept`: only \
                     trajectories of trained groups); supervised fine-tuning alone samples nothing",
            )
        });
    };
    let Some(step) = query.step else { return Ok(last.clone()) };
    if let Some((_, path)) = files.iter().find(|(of, _)| *of == step) {
        return Ok(path.clone());
    }
    let steps: Vec<u64> = files.into_iter().map(|(step, _)| step).collect();
    Err(not_of_step(&folder, step, &steps))
}

fn not_of_step(folder: &Path, step: u64, steps: &[u64]) -> Fault {
    let (folder, there) = (folder.display(), ranges(steps));
    Fault::usage(format!("no rollouts of step {step} are saved in {folder}; saved are those of {there}"))
}

/// The file of another trainer's run in our form, and the trainer's own file.
fn file_of_another(other: &OtherRun, query: &RolloutQuery) -> Result<(PathBuf, PathBuf), Fault> {
    let steps: Vec<u64> = other.steps().collect();
    let Some(step) = query.step.or(steps.last().copied()) else { return Err(other.no_rollouts()) };
    if let (Some(made), Some(own)) = (other.rollouts(step)?, other.source(step)) {
        return Ok((made, own.to_owned()));
    }
    let fault = not_of_step(&query.source, step, &steps);
    Err(match other.notes().into_iter().next() {
        Some(note) => fault.with_hint(note),
        None => fault,
    })
}

impl fmt::Display for RolloutView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed: Vec<String> =
            self.verdicts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        write!(f, "{}: {}", self.file.display(), counted(self.num_trajectories, "trajectory"))?;
        if !listed.is_empty() {
            write!(f, " ({})", listed.join(", "))?;
        }
        if self.num_matching != self.num_trajectories {
            write!(f, "; {} match", self.num_matching)?;
        }
        if self.num_matching > self.rows.len() as u64 && !self.rows.is_empty() {
            write!(f, "; the first {}:", self.rows.len())?;
        }
        writeln!(f)?;
        self.rows.iter().try_for_each(|row| show(row, f))
    }
}

/// Prints one trajectory: its ids and verdict, its numbers, its texts.
fn show(row: &Map<String, Value>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = |names: &[&str]| names.iter().find_map(|name| row.get(*name)?.as_str());
    let mut who = Vec::new();
    for (column, word) in [
        ("step", "step"),
        ("round", "round"),
        ("group_id", "group"),
        ("prompt_id", "prompt"),
        ("sample_index", "sample"),
    ] {
        if let Some(number) = row.get(column).filter(|value| value.is_number()) {
            who.push(format!("{word} {number}"));
        }
    }
    let mut how: Vec<String> = text(&["verdict"]).map(ToOwned::to_owned).into_iter().collect();
    how.extend(text(&["finish_reason"]).map(|reason| format!("ended by {reason}")));
    let num_tokens = match (row.get("token_ids"), row.get("num_tokens")) {
        (Some(Value::Array(ids)), _) => Some(ids.len() as u64),
        (_, number) => number.and_then(Value::as_u64),
    };
    how.extend(num_tokens.map(|count| counted(count, "token")));
    how.extend(
        text(&["data_source"]).filter(|source| !source.is_empty()).map(|source| format!("of {source}")),
    );
    let parts: Vec<String> =
        [who.join(", "), how.join(", ")].into_iter().filter(|part| !part.is_empty()).collect();
    writeln!(f, "\n{}", parts.join(": "))?;

    let fixed: Vec<&str> = rollouts::fixed_columns().into_iter().chain(samples::fixed_columns()).collect();
    let scores = row.keys().map(String::as_str).filter(|name| !fixed.contains(name));
    let mut numbers = Vec::new();
    for name in ["reward", "advantage"].into_iter().chain(scores) {
        match row.get(name) {
            Some(Value::Number(number)) => {
                numbers.push(format!("{name} {}", shortest(number.as_f64().unwrap_or(f64::NAN))));
            }
            // Most trajectories have no advantage, but a missing score matters.
            Some(Value::Null) if name != "advantage" => numbers.push(format!("{name} none")),
            _ => {}
        }
    }
    if !numbers.is_empty() {
        writeln!(f, "  {}", numbers.join("   "))?;
    }
    for (title, names) in [
        ("prompt", &["prompt", "input"][..]),
        ("completion", &["completion", "output"]),
        ("gold", &["ground_truth", "gts"]),
    ] {
        if title == "completion" && show_turns(row, f)? {
            continue;
        }
        // TRL's tables have messages there.
        if let Some(text) = names.iter().find_map(|name| text_of(row.get(*name)?)) {
            show_text(title, &text, f)?;
        }
    }
    // What reward functions logged.
    for (name, value) in row.iter().filter(|(name, _)| !fixed.contains(&name.as_str())) {
        if let (Value::String(text), false) = (value, ["input", "output", "gts"].contains(&name.as_str())) {
            writeln!(f, "  {name:<10}  {}", text.lines().collect::<Vec<_>>().join(" "))?;
        }
    }
    Ok(())
}

fn show_text(title: &str, text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut lines = text.lines();
    writeln!(f, "  {title:<10}  {}", lines.next().unwrap_or_default())?;
    lines.try_for_each(|line| writeln!(f, "  {:<10}  {line}", ""))
}

/// Prints the turns of a trajectory: each answer, its reward, and the text shown after it. Returns whether
/// there are any.
fn show_turns(row: &Map<String, Value>, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
    let list = |name: &str| row.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text = |name: &str, place: usize| list(name).get(place).and_then(Value::as_str).unwrap_or_default();
    let num_turns = list("turn_texts").len();
    for place in 0..num_turns {
        let reward = list("turn_rewards").get(place).and_then(Value::as_f64).filter(|reward| *reward != 0.0);
        let reward = reward.map_or_else(String::new, |reward| format!("  (reward {})", shortest(reward)));
        show_text(&format!("turn {}", place + 1), &(text("turn_texts", place).to_owned() + &reward), f)?;
        let observation = text("turn_observations", place);
        if !observation.is_empty() {
            let role = text("turn_roles", place);
            show_text(if role.is_empty() { "shown" } else { role }, observation, f)?;
        }
    }
    Ok(num_turns > 0)
}

/// The reference page of everything that a run writes about single completions: the source of
/// docs/rollouts.md.
pub fn reference_markdown() -> String {
    let listed = |verdicts: &[(&str, &str)]| {
        verdicts.iter().map(|(name, meaning)| format!("`{name}`: {meaning}")).collect::<Vec<_>>().join("; ")
    };
    format!(
        "# Rollouts, validation samples, evaluations\n\n\
         <!-- Generated from the tables in crates/tamis-data and crates/tamis-lab by scripts/generate; do not edit. -->\n\n\
         ## `rollouts/step_N.parquet`\n\n\
         Every trajectory that step N generated, trained or not, one row each. A step that was retried has the rows of all attempts. \
         `rollout.save: kept` writes only the trajectories of trained groups, `off` \
         nothing. A resumed run writes the files after its checkpoint again.\n\n\
         `tamis rollouts RUN` shows them (`--step N`, `--verdict trained`, `--group ID`, `--prompt ID`, \
         `--limit 5`, `--json`), `tamis filter` judges them by any filter, and pandas, polars and DuckDB read \
         them:\n\n\
         ```python\n\
         import pandas as pd\n\
         rows = pd.read_parquet(\"runs/quickstart/rollouts/step_100.parquet\")\n\
         rows[rows.verdict == \"trained\"].groupby(\"group_id\").reward.agg([\"mean\", \"std\"])\n\
         ```\n\n\
         A number column has null, never NaN, for what is missing: write `WHERE acc IS NULL` in DuckDB. \
         `logprobs` can hold NaN: `list_filter(logprobs, lambda x: NOT isnan(x))` in DuckDB 2 leaves it out.\n\n\
         {}\n\
         A column that a reward function logs (TRL's `log_extra`) follows the scores, as nullable text, with \
         `extra_` in front if its name is taken.\n\n\
         `verdict` is one of:\n\n\
         - {};\n\
         - why the filter dropped its group: {};\n\
         - {};\n\
         - why a member of a trained group bore no loss: {}.\n\n\
         A failed group has no trajectories, and so no row. A copy of a trained group has none either.\n\n\
         ## `validation/step_N.jsonl`\n\n\
         With `validate.save_samples: true` (verl's `trainer.validation_data_dir`) every sample of the \
         validation after step N, one JSON object a line; step 0 is before training. `tamis eval RUN --samples \
         FILE` writes the same columns, as `.jsonl` or `.parquet`. `tamis rollouts FILE` shows either.\n\n\
         {}\n\
         What a reward function logs (`log_extra`) follows the scores here too.\n\n\
         ## `evaluations/step_N.json`\n\n\
         What `tamis eval` found for the checkpoint of step N: the JSON object that `--json` prints. A second \
         evaluation is `step_N-2.json`, and so on. For a checkpoint outside of a run nothing is kept.\n\n\
         | key | |\n|---|---|\n\
         | `checkpoint` | the folder that was evaluated |\n\
         | `settings` | the settings that decide the result: seed, `data`, `reward`, `validate`, response limit |\n\
         | `num_prompts`, `num_samples`, `num_failed` | prompts, samples of each, prompts that failed to generate |\n\
         | `metrics` | every figure by its name in `metrics.jsonl` ([metrics](metrics.md)) |\n\
         | `sources` | the same figures by data source; `num_prompts` counts prompts that generated, `num_failed` the others |\n\
         | `samples` | the completions that are shown (`validate.num_samples_shown`) |\n",
        rollouts::markdown(),
        listed(&VERDICTS[..2]),
        DropReason::ALL.map(|reason| format!("`{}`", reason.name())).join(", "),
        listed(&VERDICTS[2..5]),
        VERDICTS[5..]
            .iter()
            .map(|(name, meaning)| format!("`{name}` ({meaning})"))
            .collect::<Vec<_>>()
            .join(", "),
        samples::markdown()
    )
}

#[cfg(test)]
mod tests;
