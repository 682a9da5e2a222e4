//! One sampled completion of a run with its reward. The key `s` shows it.

use std::path::Path;

use tamis_core::fault::chain;
use tamis_core::printable::lines;
use tamis_data::columns::ColumnFile;
use tamis_data::records::RecordError;
use tamis_run::directory::step_files;

/// Number of characters shown of a prompt, and of a completion.
const MOST_OF_PROMPT: usize = 400;
const MOST_OF_COMPLETION: usize = 2000;

/// A completion, with texts that a terminal can show.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) step: u64,
    /// Its place in the file, from 1, and the number of completions there.
    pub(super) place: (usize, usize),
    /// NaN: unscored.
    pub(super) reward: f64,
    pub(super) verdict: String,
    pub(super) prompt: String,
    pub(super) completion: String,
}

/// A completion of the newest rollout file of a run. Numbers beyond the last start over.
///
/// # Errors
/// Why there is none, for the reader of the view.
pub(super) fn read(run: &Path, number: usize) -> Result<Sample, String> {
    let mut files = step_files(run).map_err(|error| chain(&error))?;
    files.retain(|(_, path)| path.extension().is_some_and(|ending| ending == "parquet"));
    let Some((step, path)) = files.pop() else {
        return Err("there is no rollout file yet (`rollout.save` decides what is saved)".to_owned());
    };
    let read = || -> Result<Option<Sample>, RecordError> {
        let columns = ColumnFile::open(&path)?;
        let num_rows = columns.num_rows();
        let Some(row) = number.checked_rem(num_rows) else { return Ok(None) };
        let text = |name: &str| -> Result<String, RecordError> {
            let found = columns.texts(name, Some(&[row]))?;
            Ok(found.and_then(|found| found.rows().next()?.first().cloned()).unwrap_or_default())
        };
        let reward = columns.numbers("reward", Some(&[row]))?;
        Ok(Some(Sample {
            step,
            place: (row + 1, num_rows),
            reward: reward.and_then(|found| found.rows().next()?.first().copied()).unwrap_or(f64::NAN),
            verdict: lines(&text("verdict")?.replace('_', " ")),
            prompt: bounded(&text("prompt")?, MOST_OF_PROMPT),
            completion: bounded(&text("completion")?, MOST_OF_COMPLETION),
        }))
    };
    let of_step = format!("the rollouts of step {step}");
    read()
        .map_err(|error| format!("{of_step} cannot be read: {}", chain(&error)))?
        .ok_or_else(|| format!("{of_step} are empty"))
}

/// A text as a terminal can show it; of a long one, its start and its end.
fn bounded(text: &str, most: usize) -> String {
    let num_characters = text.chars().count();
    if num_characters <= most {
        return lines(text);
    }
    let start: String = text.chars().take(most / 2).collect();
    let end: String = text.chars().skip(num_characters - most / 2).collect();
    format!("{} [… {} characters …] {}", lines(&start), num_characters - 2 * (most / 2), lines(&end))
}

#[cfg(test)]
pub(super) mod tests {
    use tamis_core::group::{FinishReason, Group, GroupId, PolicyVersion, PromptId, Trajectory};
    use tamis_data::rollouts::{RolloutRow, write_rollouts_to};

    use super::*;

    /// Writes the rollout file of a step: one group with these completions.
    pub(in crate::monitor) fn write(run: &Path, step: u64, completions: &[&str]) {
        let member = |(index, text): (usize, &&str)| Trajectory {
            episode: None,
            sample_index: index as u32,
            text: (*text).to_owned(),
            token_ids: vec![1],
            logprobs: vec![-0.5],
            entropy: None,
            loss_mask: vec![true],
            finish_reason: FinishReason::Stop,
            versions: (PolicyVersion(1), PolicyVersion(1)),
            scores: [].into(),
            reward: 0.5,
        };
        let group = Group {
            id: GroupId(1),
            prompt: PromptId(1),
            epoch: 0,
            dispatched: PolicyVersion(1),
            prompt_token_ids: vec![7],
            images: Vec::new(),
            trajectories: completions.iter().enumerate().map(member).collect(),
        };
        let row = |trajectory| RolloutRow {
            step,
            round: 0,
            group: &group,
            trajectory,
            inclusion: 1.0,
            data_source: "sums",
            prompt: "Which?",
            ground_truth: None,
            advantage: None,
            metric: "",
            metric_value: None,
            verdict: "all_wrong",
            logged: None,
        };
        let rows: Vec<RolloutRow<'_>> = group.trajectories.iter().map(row).collect();
        let folder = run.join("rollouts");
        std::fs::create_dir_all(&folder).expect("folder");
        let file = std::fs::File::create(folder.join(format!("step_{step}.parquet"))).expect("file");
        write_rollouts_to(file, &rows).expect("rollouts");
    }

    #[test]
    fn long_texts_keep_their_ends() {
        assert_eq!(bounded("a\u{1b}b", 3), "a\\u{1b}b");
        assert_eq!(bounded("abcdefgh", 4), "ab [… 4 characters …] gh");
    }

    #[test]
    fn the_newest_step_is_shown() {
        let folder = tempfile::tempdir().expect("folder");
        write(folder.path(), 2, &["old"]);
        write(folder.path(), 10, &["one", "two"]);
        let found = [0, 1, 2].map(|number| read(folder.path(), number).expect("a sample"));
        assert_eq!(found.each_ref().map(|sample| sample.completion.as_str()), ["one", "two", "one"]);
        assert_eq!((found[1].step, found[1].place, found[1].reward), (10, (2, 2), 0.5));
        std::fs::write(folder.path().join("rollouts/step_11.parquet"), "broken").expect("file");
        let failure = read(folder.path(), 0).expect_err("a damaged file");
        assert!(failure.starts_with("the rollouts of step 11 cannot be read: "), "{failure}");
    }
}
