use std::io::sink;

use tamis_core::group::PolicyVersion;
use tamis_rollout::End;
use tempfile::TempDir;

use super::*;
use crate::interrupt::Interrupt;
use crate::learner::left_out::LeftOut;
use crate::learner::{RunLearner, SaveContent};
use crate::run::early::Early;
use crate::run::step_metrics::StepMetrics;
use crate::run::{ConfigText, Opened, Run, RunStart};
use crate::support::loaded;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

const TINY: &str = "\
run: {name: tiny, seed: 3, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 4
  gen_batch_size: 8
sft: {steps: 40, batch_size: 32, learning_rate: 1e-2}
rollout: {n: 4, max_response_length: 4}
reward: [{kind: number}]
filter: {kind: variance}
schedule: {max_num_gen_batches: 50}
train: {ppo_mini_batch_size: 2, total_steps: 6, optimizer: {learning_rate: 1e-3}}
validate: {test_freq: 0, before_train: false}
checkpoint: {save_freq: 0}
";

/// A run up to its first step; the folder is removed with it.
fn opened(overrides: &[&str]) -> (TempDir, Run) {
    let folder = tempfile::tempdir().expect("a folder");
    let here = format!("run.dir={}", folder.path().display());
    let loaded = loaded(TINY, &[overrides, &[here.as_str()]].concat());
    let begin = RunStart::New(ConfigText::of(loaded, Vec::new()));
    let progress = |total, done| Console::plain(Box::new(sink()), total, done);
    let begun = Run::open_on(&Disk::new(), begin, progress, Interrupt::new());
    match begun.unwrap_or_else(|error| panic!("{error}")) {
        Opened::Ready(run) => (folder, *run),
        Opened::Interrupted(unbegun) => panic!("{unbegun}"),
    }
}

fn batch(run: &mut Run) -> StepBatch {
    loop {
        let collected = run.collect().unwrap_or_else(|halt| panic!("{halt:?}"));
        match collected.end {
            End::Ready => return run.attempts.batch(collected, &run.workers.dispatcher).0,
            End::Skipped(_) => run.attempts.give_up(collected),
            end => panic!("no batch: {end:?}"),
        }
    }
}

/// Everything that a step leaves behind, in a form that can be compared: state, members, metrics, weights.
#[derive(Debug, PartialEq)]
struct Left {
    after: serde_json::Value,
    members: Vec<TrainedMember>,
    metrics: Vec<(String, u64)>,
    warnings: Vec<String>,
    weights: Vec<u8>,
}

fn weights(learner: &mut dyn RunLearner) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let content = SaveContent::Checkpoint { dtype: tamis_model::SaveDtype::F32 };
    let files = learner.save(folder.path(), content).expect("saved").files;
    let weights = files.iter().filter(|file| file.name.ends_with("model.safetensors"));
    weights.flat_map(|file| std::fs::read(folder.path().join(&file.name)).expect("written")).collect()
}

impl Left {
    fn by(run: &mut Run, step: &Step) -> Self {
        let metrics = StepMetrics::of(&run.recipe, step).metrics;
        Self {
            after: serde_json::to_value(&step.after).expect("JSON"),
            members: step.members().copied().collect(),
            metrics: metrics.iter().map(|(name, value)| (name.to_owned(), value.to_bits())).collect(),
            warnings: step.facts.warnings.clone(),
            weights: weights(&mut *run.workers.learner),
        }
    }
}

/// One step; weights may not move in a step that is abandoned.
fn one_step(run: &mut Run, batch: StepBatch) -> Result<Step, Halt<RunError>> {
    run.workers.learner.progress().begin(false);
    step(&run.recipe, &mut run.workers, &run.state, batch, Early::default())
}

/// Kinds of runs whose steps make different passes.
const KINDS: [&[&str]; 5] = [
    &[],
    &["preset=ppo", "~filter"],
    &["objective.kl.in=reward", "objective.kl.coefficient=0.01", "filter.metric=seq_final_reward"],
    &["objective.advantage.kind=optimal_token_baseline", "train.gradient_analysis={}"],
    &[
        "objective.kl.in=loss",
        "objective.kl.coefficient=0.01",
        "schedule.surplus=carry",
        "schedule.max_lag=1",
    ],
];

#[test]
fn the_same_step_of_the_same_state_leaves_the_same() {
    for kind in KINDS {
        let left = [(); 2].map(|()| {
            let (_folder, mut run) = opened(kind);
            let mut left = Vec::new();
            for _ in 0..2 {
                let batch = batch(&mut run);
                let step = one_step(&mut run, batch).unwrap_or_else(|halt| panic!("{kind:?}: {halt:?}"));
                left.push(Left::by(&mut run, &step));
                run.state = step.after;
                run.attempts = crate::run::Attempts::new();
            }
            left
        });
        assert_eq!(left[0], left[1], "{kind:?}");
        assert_ne!(left[0][0].weights, left[0][1].weights, "{kind:?}: the second step trains");
    }
}

/// If a sampler does not report log-probabilities, the learner computes them before the first update. The
/// step equals that of a sampler that reports them.
#[test]
fn a_step_without_the_samplers_log_probabilities_is_the_step_with_them() {
    let read: [&[&str]; 3] = [
        &["objective.advantage.kind=reinforce_plus_plus", "objective.kl.in=reward", "~filter"],
        &["objective.shaping=[{kind: soft_reweight}]"],
        &["train.ppo_epochs=2"],
    ];
    for kind in KINDS.iter().chain(&read) {
        let left = [false, true].map(|is_silent| {
            let (_folder, mut run) = opened(kind);
            let mut given = batch(&mut run);
            if is_silent {
                for record in &mut given.trained {
                    for trajectory in &mut record.group.trajectories {
                        trajectory.logprobs.fill(f32::NAN);
                    }
                }
            }
            let step = one_step(&mut run, given).unwrap_or_else(|halt| panic!("{kind:?}: {halt:?}"));
            let silent = serde_json::to_value(step.groups()).expect("JSON");
            let read: Vec<Group> =
                serde_json::from_value(silent).expect("groups, as a checkpoint carries them");
            assert!(
                read.iter().flat_map(|group| &group.trajectories).all(|one| one.has_logprobs() != is_silent)
            );
            let mut left = Left::by(&mut run, &step);
            // The difference between sampler and trainer is not known.
            left.metrics.retain(|(name, _)| !name.starts_with("rollout_corr/"));
            left
        });
        assert_eq!(left[0], left[1], "{kind:?}");
    }
}

/// Ctrl-C comes at the first check in a step, then at the second, the third, and so on until a step is
/// complete. No abandoned step moved a weight, and the last step leaves what an undisturbed one leaves.
#[test]
fn what_a_step_leaves_does_not_depend_on_how_often_it_was_begun_and_dropped() {
    // Greedy completions are sampled within a step.
    let greedy: &[&str] = &["objective.advantage.kind=remax"];
    for kind in KINDS.into_iter().chain([greedy]) {
        let (_folder, mut undisturbed) = opened(kind);
        let given = batch(&mut undisturbed);
        let step = one_step(&mut undisturbed, given).unwrap_or_else(|halt| panic!("{kind:?}: {halt:?}"));
        let expected = Left::by(&mut undisturbed, &step);

        let (_folder, mut run) = opened(kind);
        let given = batch(&mut run);
        let (first_weights, first_state) =
            (weights(&mut *run.workers.learner), serde_json::to_value(&run.state).expect("JSON"));
        let mut num_dropped = 0;
        let step = loop {
            run.interrupt.request_at_look(num_dropped);
            match one_step(&mut run, given.clone()) {
                Ok(step) => break step,
                Err(halt) => assert!(matches!(halt, Halt::Interrupted), "{kind:?}: {halt:?}"),
            }
            num_dropped += 1;
            assert!(
                weights(&mut *run.workers.learner) == first_weights,
                "{kind:?}: dropped {num_dropped} times"
            );
            assert_eq!(serde_json::to_value(&run.state).expect("JSON"), first_state);
        };
        assert!(num_dropped >= 1, "{kind:?}: it was never given up");
        let mut left = Left::by(&mut run, &step);
        // What was abandoned ends late, in this process.
        left.metrics.retain(|(name, _)| name != "rollout/ignored/late");
        assert_eq!(left, expected, "{kind:?}: dropped {num_dropped} times");
    }
}

/// Kinds of runs that may train on mini-batches before their step is complete.
const EARLY_KINDS: [&[&str]; 4] = [
    &[],
    &["objective.kl.in=loss", "objective.kl.coefficient=0.01", "objective.loss.kind=clip_cov"],
    &["objective.kl.in=reward", "objective.kl.coefficient=0.01", "filter.metric=seq_final_reward"],
    &[
        "objective.advantage.kind=optimal_token_baseline",
        "schedule.mode=streaming",
        "schedule.surplus=carry",
        "schedule.max_lag=1",
        "objective.correction.preset=decoupled_geo_rs_token_tis",
    ],
];

/// Training on the first groups of a batch before the rest is looked at equals the step with the whole batch
/// in every number. If the step is abandoned in between, nothing has happened.
#[test]
fn a_step_trained_on_in_parts_is_the_step_trained_on_at_once() {
    for kind in EARLY_KINDS {
        let two_steps = |is_early: bool| {
            let (_folder, mut run) = opened(kind);
            let mut left = Vec::new();
            for _ in 0..2 {
                let mut given = batch(&mut run);
                let size = run.recipe.update.mini_batch_size.get();
                assert_eq!(given.trained.len(), 2 * size, "{kind:?}");
                let train = |run: &mut Run, given: &StepBatch, early: &mut Early| {
                    let part = given.trained[early.num_groups..][..size].to_vec();
                    let trained = early.train(&run.recipe, &mut run.workers, &run.state, part);
                    trained.unwrap_or_else(|halt| panic!("{kind:?}: {halt:?}"));
                };
                run.workers.learner.progress().begin(false);
                let mut early = Early::default();
                if is_early {
                    let before = weights(&mut *run.workers.learner);
                    train(&mut run, &given, &mut Early::default());
                    assert_ne!(weights(&mut *run.workers.learner), before, "{kind:?}: it trains");
                    run.workers.learner.restore().expect("restored");
                    assert!(weights(&mut *run.workers.learner) == before, "{kind:?}: it is given up");
                    train(&mut run, &given, &mut early);
                    early.give(&mut given.trained);
                }
                let step = step(&run.recipe, &mut run.workers, &run.state, given, early);
                let step = step.unwrap_or_else(|halt| panic!("{kind:?}: {halt:?}"));
                left.push(Left::by(&mut run, &step));
                run.state = step.after;
                run.attempts = crate::run::Attempts::new();
            }
            left
        };
        assert_eq!(two_steps(true), two_steps(false), "{kind:?}");
    }
}

#[test]
fn a_step_that_has_moved_weights_is_dropped_only_where_the_state_before_is_kept() {
    let in_flight = [
        "sft.steps=0",
        "schedule={mode: streaming, surplus: carry, max_lag: 2, screen_first: 2, max_num_gen_batches: 50}",
        "rollout.max_response_length=12",
        "reward=[{kind: format, pattern: '[^5]*5[^5]*'}]",
        "filter.metric=seq_reward",
    ];
    for (overrides, is_carried) in [(&["train.ppo_epochs=2"][..], false), (&in_flight, true)] {
        let at_look = |look: usize, is_kept: bool| {
            let (_folder, mut run) = opened(overrides);
            let given = batch(&mut run);
            let before = weights(&mut *run.workers.learner);
            run.interrupt.request_at_look(look);
            run.workers.learner.progress().begin(is_kept);
            let step = step(&run.recipe, &mut run.workers, &run.state, given, Early::default());
            let has_moved = weights(&mut *run.workers.learner) != before;
            match step {
                Ok(step) => (false, has_moved, Some(Left::by(&mut run, &step))),
                Err(Halt::Interrupted) => (true, has_moved, None),
                Err(halt) => panic!("{halt}"),
            }
        };
        let undisturbed = at_look(usize::MAX, true);
        assert!(!undisturbed.0 && undisturbed.1);
        let after = &undisturbed.2.as_ref().expect("a step").after["schedule"];
        assert_eq!(after["carried"].as_array().is_some_and(|carried| !carried.is_empty()), is_carried);
        let dropped =
            (0..).map(|look| (look, at_look(look, true))).take_while(|(_, (is_dropped, ..))| *is_dropped);
        let moved = dropped.filter(|(_, (_, has_moved, _))| *has_moved).map(|(look, _)| look);
        let moved: Vec<usize> = moved.collect();
        assert!(at_look(0, false).0 && !at_look(0, false).1, "nothing has moved at the first look");
        assert!(!moved.is_empty(), "a look after the first update");
        for look in moved.iter().step_by((moved.len() / 8).max(1)) {
            assert_eq!(at_look(*look, false), undisturbed, "finished");
        }
    }
}

#[test]
fn members_that_the_filter_did_not_choose_are_left_out_and_keep_their_rewards() {
    let (_folder, mut run) = opened(&["filter={kind: within_group, k: 2}"]);
    let given = batch(&mut run);
    let rewards = |groups: &[&Group]| -> Vec<f64> {
        groups.iter().flat_map(|group| &group.trajectories).map(|one| one.reward).collect()
    };
    let trained: Vec<&Group> = given.trained.iter().map(|record| &record.group).collect();
    let before = rewards(&trained);
    let step = one_step(&mut run, given).expect("a step");
    assert_eq!(rewards(&step.groups()), before);
    assert!(before.iter().all(|reward| !reward.is_nan()));
    let unchosen = |member: &&TrainedMember| member.left_out == Some(LeftOut::Unchosen);
    assert_eq!((step.members().count(), step.members().filter(unchosen).count()), (16, 8));
    for member in step.members() {
        assert_eq!(member.advantage.is_none(), member.left_out.is_some());
    }
    let accounting = step.facts.report.accounting;
    assert!(accounting.check().is_ok());
    let left_out = step.members().filter(|member| member.left_out.is_some()).count() as u64;
    assert_eq!(
        (accounting.left_out.trajectories, accounting.trained.trajectories),
        (left_out, 16 - left_out)
    );
    let metrics = StepMetrics::of(&run.recipe, &step).metrics;
    assert_eq!(metrics.get("train/num_left_out/unchosen"), Some(8.0));
    let generated: Vec<&Group> = step.generated_records().into_iter().map(|record| &record.group).collect();
    assert_eq!(step.after.num_tokens, num_tokens(&generated) as u64);
    assert_eq!(step.after.step, 1);
}

/// That weights are not finite is a fact of the step: they are not published, and the run ends.
#[test]
fn diverged_weights_are_not_published() {
    let (_folder, mut run) = opened(&["train.optimizer.learning_rate=3e38"]);
    let mut version = run.state.version;
    for _ in 0..4 {
        let given = batch(&mut run);
        let step = one_step(&mut run, given).expect("a step");
        if step.facts.diverged.is_some() {
            assert_eq!(step.after.version, version);
            return;
        }
        assert_eq!(step.after.version, PolicyVersion(version.0 + 1));
        version = step.after.version;
        run.state = step.after;
        run.attempts = crate::run::Attempts::new();
    }
    panic!("it did not diverge");
}
