//! Run directories as a run leaves them.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use tamis_core::group::{
    Episode, FinishReason, Group, GroupId, PolicyVersion, PromptId, Score, Trajectory, Turn,
};
use tamis_data::rollouts::{RolloutRow, write_rollouts_to};
use tamis_lab::Fault;
use tamis_lab::report::{Page, PageOptions, StepRange, page};

/// A member with a text and an `acc`; NaN: unscored.
pub(crate) fn member(index: u32, text: &str, acc: f64) -> Trajectory {
    let tokens = text.len().max(1);
    Trajectory {
        episode: None,
        sample_index: index,
        text: text.to_owned(),
        token_ids: (0..tokens as u32).collect(),
        logprobs: vec![-0.5; tokens],
        entropy: None,
        loss_mask: vec![true; tokens],
        finish_reason: FinishReason::Stop,
        versions: (PolicyVersion(1), PolicyVersion(1)),
        scores: [("acc".to_owned(), Score::of(acc))].into(),
        reward: acc,
    }
}

/// A member that was played in turns: answers, with what was shown after each and whose message that was.
pub(crate) fn played(index: u32, turns: &[(&str, &str, &str)], won: bool) -> Trajectory {
    let mut trajectory = member(index, "", f64::from(u8::from(won)));
    let turn = |(place, (text, observation, role)): (usize, &(&str, &str, &str))| Turn {
        start: place as u32,
        end: place as u32 + 1,
        text: (*text).to_owned(),
        observation: (*observation).to_owned(),
        role: (*role).to_owned(),
        reward: if place + 1 == turns.len() { f64::from(u8::from(won)) } else { -0.1 },
        ..Turn::default()
    };
    trajectory.text = turns.iter().flat_map(|(text, observation, _)| [*text, *observation]).collect();
    trajectory.episode = Some(Episode {
        turns: turns.iter().enumerate().map(turn).collect(),
        is_success: Some(won),
        ..Episode::default()
    });
    trajectory
}

/// A group of a prompt with its verdict.
pub(crate) struct Made {
    /// Number of the group, and of its prompt.
    pub(crate) id: u64,
    /// The prompt.
    pub(crate) prompt: String,
    /// What became of it.
    pub(crate) verdict: &'static str,
    /// Its members.
    pub(crate) members: Vec<Trajectory>,
}

/// Writes the rollout file of a step.
pub(crate) fn write_rollouts(run: &Path, step: u64, made: &[Made]) {
    let folder = run.join("rollouts");
    std::fs::create_dir_all(&folder).unwrap();
    let groups: Vec<Group> = made
        .iter()
        .map(|made| Group {
            id: GroupId(made.id),
            prompt: PromptId(made.id),
            epoch: 0,
            dispatched: PolicyVersion(1),
            prompt_token_ids: vec![7],
            images: Vec::new(),
            trajectories: made.members.clone(),
        })
        .collect();
    let rows: Vec<RolloutRow<'_>> = groups
        .iter()
        .zip(made)
        .flat_map(|(group, made)| group.trajectories.iter().map(move |trajectory| (group, made, trajectory)))
        .map(|(group, made, trajectory)| RolloutRow {
            step,
            round: 0,
            group,
            trajectory,
            inclusion: 1.0,
            data_source: "sums",
            prompt: &made.prompt,
            ground_truth: Some("42"),
            advantage: (made.verdict == "trained").then_some(0.5),
            metric: "acc",
            metric_value: trajectory.scores.get("acc").map(|score| score.value),
            verdict: made.verdict,
            logged: None,
        })
        .collect();
    write_rollouts_to(File::create(folder.join(format!("step_{step}.parquet"))).unwrap(), &rows).unwrap();
}

/// A run of some steps: metrics, settings, and two groups a step, one of them dropped.
pub(crate) fn run(parent: &Path, name: &str, num_steps: u64) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut metrics = String::new();
    for step in 1..=num_steps {
        let share = step as f64 / num_steps as f64;
        let _ = writeln!(
            metrics,
            "{{\"step\":{step},\"critic/score/mean\":0.5,\"all/critic/score/mean\":{share},\"all/pass_rate\":{share},\
             \"train/pass_rate\":0.5,\"actor/entropy\":{},\"actor/grad_norm\":1.5,\"actor/pg_clipfrac\":0.01,\
             \"groups/generated\":2,\"groups/trained\":1,\"groups/dropped\":1,\"train/num_dropped/all_wrong\":1,\
             \"trajectories/generated\":4,\"trajectories/trained\":2,\"trajectories/dropped\":2,\
             \"tokens/generated\":40,\"tokens/trained\":20,\"timing_s/gen\":1,\"timing_s/update_actor\":2,\"timing_s/step\":3.5}}",
            1.0 - share / 2.0
        );
        let groups = [
            Made {
                id: 2 * step,
                prompt: format!("What is {step} times 2?"),
                verdict: "trained",
                members: vec![member(0, "It is 42.", 1.0), member(1, "I do not know.", 0.0)],
            },
            Made {
                id: 2 * step + 1,
                prompt: "What is the answer?".to_owned(),
                verdict: "all_wrong",
                members: vec![member(0, "41", 0.0), member(1, "43", f64::NAN)],
            },
        ];
        write_rollouts(&folder, step, &groups);
    }
    std::fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    let settings = format!(
        "run:\n  name: {name}  # command line: run.name={name}\n  seed: 1  # default\ntrain:\n  total_steps: {num_steps}  # my.yaml:3\nrollout:\n  save: all  # default\n"
    );
    std::fs::write(folder.join("config.yaml"), settings).unwrap();
    folder
}

/// The page of some runs.
pub(crate) fn made(runs: &[PathBuf]) -> Page {
    try_made(runs).unwrap()
}

/// As [`made`], or why there is none.
pub(crate) fn try_made(runs: &[PathBuf]) -> Result<Page, Fault> {
    page(&PageOptions { runs: runs.to_vec(), steps: StepRange::ALL, num_samples: None, title: None })
}

/// Changes a file of a run.
pub(crate) fn edit(run: &Path, name: &str, change: impl FnOnce(&str) -> String) {
    let path = run.join(name);
    std::fs::write(&path, change(&std::fs::read_to_string(&path).unwrap())).unwrap();
}

/// All of these are in a text.
#[track_caller]
pub(crate) fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
}
