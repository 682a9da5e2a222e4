//! A run that is killed or stopped at any instant and resumed ends like an undisturbed run, bit for bit.
//!
//! Each configuration is ended 5 times, or as often as `TAMIS_KILLS` says.

use std::time::{Duration, Instant};

use crate::kills::{Dice, Stop, begun, killed_when, num_kills, start_run, writes_a_checkpoint};
use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY, failures, soon, unfiltered, without_checksums};

/// Runs `config` to its end through kills and stops: half of them at a random instant, half as soon as (or
/// shortly after) a checkpoint is being written. Returns how many there were, how many of them hit a
/// checkpoint half written, and what the last process printed.
pub(crate) fn through_kills(
    folder: &Folder,
    most: usize,
    whole: Duration,
    dice: &mut Dice,
) -> (usize, usize, Ended) {
    let (mut kills, mut torn) = (0, 0);
    while kills < most {
        let begin = Instant::now();
        let at = whole.mul_f64(dice.roll());
        let at_a_checkpoint = dice.roll() < 0.5;
        let little = Duration::from_micros((3000.0 * dice.roll()) as u64);
        let stop = Stop::drawn(dice);
        let ended = killed_when(folder, &[], stop, || {
            let is_time = begin.elapsed() >= at
                && (!at_a_checkpoint || begun(folder).is_some_and(|run| writes_a_checkpoint(&run)));
            if is_time && at_a_checkpoint {
                std::thread::sleep(little);
            }
            is_time
        });
        if let Some(ended) = ended {
            return (kills, torn, ended);
        }
        kills += 1;
        torn += usize::from(begun(folder).is_some_and(|run| writes_a_checkpoint(&run)));
    }
    (kills, torn, folder.wait(start_run(folder, &[])))
}

/// A run that nothing disturbed: how it ended, what it left, and how long it took.
pub(crate) struct Undisturbed {
    pub(crate) folder: Folder,
    pub(crate) ended: Ended,
    pub(crate) left: Left,
    took: Duration,
}

impl Undisturbed {
    /// The run of `config.yaml` in a folder.
    pub(crate) fn of(folder: Folder) -> Self {
        let start = Instant::now();
        let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
        let took = start.elapsed();
        let left = Left::by(&folder.join("runs/tiny"));
        Self { folder, ended, left, took }
    }

    /// Runs in new folders that are killed so many times in all end the same.
    #[expect(clippy::print_stdout, reason = "a test that fails shows how many kills there were")]
    pub(crate) fn assert_same_through_kills(&self, num_kills: usize, new: impl Fn() -> Folder) {
        let (mut dice, mut kills, mut torn) = (Dice::new(), 0, 0);
        while kills < num_kills {
            let folder = new();
            let (more, torn_now, last) = through_kills(&folder, num_kills - kills, self.took, &mut dice);
            assert_eq!(last.code, Some(0), "{}", last.shown());
            assert_eq!(last.stdout, self.ended.stdout);
            self.left.assert_same(&Left::by(&folder.join("runs/tiny")));
            kills += more;
            torn += torn_now;
        }
        println!("{kills} kills, {torn} of them in the middle of a checkpoint");
    }
}

#[test]
fn a_run_killed_at_any_instant_ends_as_if_it_had_not_been() {
    let config = TINY
        .replaced("total_steps: 6", "total_steps: 12")
        .replaced("validate: {", "validate: {save_samples: true, ");
    let new = || Folder::new().with("config.yaml", &config);
    let undisturbed = Undisturbed::of(new());
    let left = &undisturbed.left;
    assert_eq!(left.metrics.lines().count(), 13, "the validation before, and twelve steps");
    let num_validations = left.files.keys().filter(|name| name.starts_with("validation/")).count();
    assert_eq!(num_validations, 7, "samples of the validation before and of those after every second step");
    undisturbed.assert_same_through_kills(num_kills(5), new);
}

/// Scores with noise, so that no answer comes twice.
const NOISE: &str = "\
import json, random, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({'id': request['id'], 'score': random.random() if random.random() < 0.9 else None}), flush=True)
";

fn noisy() -> String {
    TINY.replaced("total_steps: 6", "total_steps: 10")
        .replaced(
            "reward: [{kind: number}]",
            "reward: [{kind: number}, {kind: command, name: noise, argv: [python3, noise.py], num_processes: 1, weight: 0.5}]",
        )
        .replaced("filter: {kind: variance}", "filter: {kind: variance, metric: seq_final_reward, tolerance: 0.35}")
        .replaced("schedule: {", "schedule: {surplus: carry, max_lag: 2, ")
        + "objective: {kl: {in: reward, estimator: k1, coefficient: 0.05, adaptive: {target: 0.05, horizon: \
             50}}, entropy: {coefficient: 0.001}}\n"
}

#[test]
fn answers_that_come_only_once_are_replayed_from_the_journal() {
    let config = noisy();
    let new = || Folder::new().with("config.yaml", &config).with("noise.py", NOISE);
    let mut dice = Dice::new();
    let mut whole = Duration::from_secs(1);
    let (mut kills, mut torn) = (0, 0);
    let mut earlier: Option<Left> = None;
    while kills < num_kills(5) {
        let folder = new();
        let (more, torn_now, last) = through_kills(&folder, num_kills(5) - kills, whole, &mut dice);
        assert_eq!(last.code, Some(0), "{}", last.shown());
        kills += more;
        torn += torn_now;
        let killed = Left::by(&folder.join("runs/tiny"));

        // A run that was never killed, with the same external answers.
        let replay = new();
        folder.copy("runs/tiny", &replay, "runs/tiny", &["config.yaml", "started", "journal.bin"]);
        let start = Instant::now();
        let replayed = replay.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        whole = start.elapsed();
        assert_eq!(last.stdout, replayed.stdout);
        killed.assert_same(&Left::by(&replay.join("runs/tiny")));

        // The answers do matter.
        if let Some(earlier) = &earlier {
            assert!(earlier.metrics != killed.metrics, "the noise changes nothing");
        }
        earlier = Some(killed);
    }
    println!("{kills} kills, {torn} of them in the middle of a checkpoint");
}

#[test]
fn a_run_with_a_critic_is_resumed_bit_for_bit() {
    // KL in the reward, at first only the critic learns, and it has more updates than the policy.
    let config = unfiltered(TINY).replaced("total_steps: 6", "total_steps: 8");
    let config = format!(
        "preset: ppo\n{config}  keep_last: null\ncritic: {{warmup_steps: 3, ppo_epochs: 2, optimizer: {{learning_rate: 1e-3}}}}\n"
    )
    .replaced("checkpoint: {save_freq: 2}\n  keep_last: null", "checkpoint: {save_freq: 2, keep_last: null}")
    .replaced("ppo_mini_batch_size: 2", "ppo_mini_batch_size: 2\n  shuffle_mini_batches: true");
    let new = || Folder::new().with("config.yaml", &config);
    let undisturbed = Undisturbed::of(new());
    let (folder, expected) = (&undisturbed.folder, &undisturbed.left);
    let run = folder.join("runs/tiny");
    for file in ["critic/model.safetensors", "critic/optimizer.safetensors", "critic/config.json"] {
        assert!(expected.files.contains_key(&format!("checkpoints/step_8/{file}")), "{file}");
    }
    assert!(
        expected.files["checkpoints/step_6/critic/model.safetensors"]
            != expected.files["checkpoints/step_8/critic/model.safetensors"]
    );

    // From every checkpoint, in the warm-up and after it.
    for lost in [vec![8], vec![6, 8], vec![4, 6, 8], vec![2, 4, 6, 8]] {
        for step in lost {
            std::fs::remove_dir_all(run.join(format!("checkpoints/step_{step}"))).expect("removed");
            if step == 0 {
                // As a kill before the first checkpoint leaves it.
                std::fs::remove_file(run.join("checkpointed")).expect("removed");
            }
        }
        folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        expected.assert_same(&Left::by(&run));
    }

    // On two threads, and through kills.
    folder.tamis(&["train", "config.yaml", "run.name=threads", "run.threads=2"]).succeeds();
    expected.assert_same(&Left::by(&folder.join("runs/threads")));
    undisturbed.assert_same_through_kills(num_kills(5), new);
}

#[test]
fn what_a_selector_has_learnt_is_resumed_too() {
    let config =
        TINY.replaced("total_steps: 6", "total_steps: 12").replaced("train_size: 64", "train_size: 24");
    let config = config.replaced("checkpoint: {save_freq: 2}", "checkpoint: {save_freq: 2, keep_last: null}");
    for schedule in [
        "schedule: {selector: {kind: posterior}, ",
        "schedule: {selector: {kind: posterior, floor: 0.1}, mode: streaming, surplus: carry, max_lag: 2, ",
        "schedule: {selector: {kind: zero_variance_skip, correction: corrected}, mode: streaming, ",
    ] {
        let config = config.replaced("schedule: {", schedule);
        let new = || Folder::new().with("config.yaml", &config);
        let undisturbed = Undisturbed::of(new());
        let (folder, expected) = (&undisturbed.folder, &undisturbed.left);
        let run = folder.join("runs/tiny");
        let skips = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            line["selector/skipped_share"].as_f64().is_some_and(|share| share > 0.0)
        };
        assert!(expected.metrics.lines().any(skips), "no prompt was skipped with {schedule}");
        for step in [12, 10, 8] {
            std::fs::remove_dir_all(run.join(format!("checkpoints/step_{step}"))).expect("removed");
        }
        folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        expected.assert_same(&Left::by(&run));
        undisturbed.assert_same_through_kills(num_kills(2), new);
    }
}

#[test]
fn a_reference_in_the_loss_and_an_interrupted_start_are_resumed_too() {
    let config = TINY.replaced("total_steps: 6", "total_steps: 4")
        + "objective: {kl: {in: loss, estimator: k3, coefficient: 0.05}}\n";
    let config = config.replaced("model:\n", "model:\n  save_dtype: bf16\n");
    let folder = Folder::new().with("config.yaml", &config);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let run = folder.join("runs/tiny");
    let expected = Left::by(&run);

    // Without its last checkpoint, and then without any: the state that a kill before it was written leaves.
    std::fs::remove_dir_all(run.join("checkpoints/step_4")).expect("removed");
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    expected.assert_same(&Left::by(&run));
    std::fs::remove_dir_all(run.join("checkpoints")).expect("removed");
    std::fs::remove_file(run.join("checkpointed")).expect("removed");
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    expected.assert_same(&Left::by(&run));

    // A resume of a complete run reports that again, and changes nothing.
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    expected.assert_same(&Left::by(&run));
}

#[test]
fn more_steps_than_planned_equal_a_longer_run() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "run.name=short", "train.total_steps=4"]).succeeds();
    folder.tamis(&["train", "--resume", "runs/short", "train.total_steps=6"]).succeeds();
    folder.tamis(&["train", "tiny.yaml"]).succeeds();
    let (continued, planned) = (Left::by(&folder.join("runs/short")), Left::by(&folder.join("runs/tiny")));
    assert_eq!(continued.metrics, planned.metrics);
    for file in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        let file = format!("checkpoints/step_6/{file}");
        assert!(continued.files[&file] == planned.files[&file], "{file}");
    }
    // The change holds from then on.
    folder.tamis(&["train", "--resume", "runs/short"]).succeeds().prints("done: 6 steps");
}

#[test]
fn two_runs_are_the_same_and_so_are_one_and_two_threads() {
    let folder = Folder::tiny();
    let first = folder.tamis(&["train", "tiny.yaml", "run.name=first"]).succeeds();
    let second = folder.tamis(&["train", "tiny.yaml", "run.name=second"]).succeeds();
    folder.tamis(&["train", "tiny.yaml", "run.name=threads", "run.threads=2"]).succeeds();
    folder.tamis(&["train", "tiny.yaml", "run.name=batch", "rollout.max_num_seqs=3"]).succeeds();
    folder.tamis(&["train", "tiny.yaml", "run.name=seed", "run.seed=4"]).succeeds();
    assert_eq!(first.stdout, second.stdout.replace("second", "first"));
    let left = |name: &str| Left::by(&folder.join("runs").join(name));
    let first = left("first");
    first.assert_same(&left("second"));
    first.assert_same(&left("threads"));
    first.assert_same(&left("batch"));
    assert!(first.metrics != left("seed").metrics, "the seed changes the run");
}

#[test]
fn a_journal_that_lost_what_a_checkpoint_counts_on_is_refused() {
    let config = noisy().replaced("total_steps: 10", "total_steps: 4");
    let folder = Folder::new().with("config.yaml", &config).with("noise.py", NOISE);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let journal = folder.join("runs/tiny/journal.bin");
    let whole = std::fs::read(&journal).expect("read");
    let longer = ["train", "--resume", "runs/tiny", "train.total_steps=5"];

    let cut = &whole[..whole.len() - 5];
    std::fs::write(&journal, cut).expect("write");
    let refused = folder.tamis(&longer);
    let printed =
        refused.failure().replace(&whole.len().to_string(), "ALL").replace(&cut.len().to_string(), "SOME");
    insta::assert_snapshot!(printed, @r"
    exit code 4
    error: the run cannot be resumed: failed to read `runs/tiny/journal.bin`: it ends at byte SOME, but had ALL bytes when the checkpoint was written
      hint: restore the file, or move the checkpoints after runs/tiny/checkpoints/step_2 elsewhere: the run then resumes from that one
    ");
    assert_eq!(std::fs::read(&journal).expect("read"), cut, "nothing more is cut");
    std::fs::remove_file(&journal).expect("removed");
    insta::assert_snapshot!(folder.tamis(&longer).failure().replace(&whole.len().to_string(), "ALL"), @r"
    exit code 4
    error: the run cannot be resumed: failed to read `runs/tiny/journal.bin`: it ends at byte 0, but had ALL bytes when the checkpoint was written
      hint: journal.bin holds the answers of your reward program, and without it no checkpoint can be continued: put the file back as it was, or begin a new run
    ");

    // Damage before the last record is no torn tail: whole records follow, and nothing is requested again.
    folder.copy("runs/tiny", &folder, "early/runs/tiny", &["config.yaml", "started"]);
    let mut damaged = whole.clone();
    damaged[30] ^= 1;
    std::fs::write(folder.join("early/runs/tiny/journal.bin"), &damaged).expect("write");
    let refused = folder.tamis(&["train", "--resume", "early/runs/tiny"]);
    insta::assert_snapshot!(refused.failure(), @r"
    exit code 4
    error: the run cannot be resumed: failed to read `early/runs/tiny/journal.bin`: the record at byte 8 is damaged, and whole records follow it
      hint: nothing was changed: restore a copy of the file, or truncate it there (`truncate -s 8 early/runs/tiny/journal.bin`): that record and all later ones are then requested again
    ");
    assert_eq!(std::fs::read(folder.join("early/runs/tiny/journal.bin")).expect("read"), damaged);

    // A torn tail after it is cut, what the checkpoint holds is not read again, and the run continues.
    let mut damaged = whole.clone();
    damaged[30] ^= 1;
    std::fs::write(&journal, [&damaged[..], &[9; 20]].concat()).expect("write");
    folder.tamis(&longer).succeeds();
}

#[test]
fn what_estimators_and_coefficients_carry_is_resumed_too() {
    let objective = "objective: {advantage: {kind: bnpo_running, window: 3}, loss: {kind: clip_cov, share: 0.2, cov_low: -1.0}, \
                     entropy: {coefficient: 0.01, adaptive: {target: 3.0}}, masks: {top_entropy: 0.5}, \
                     shaping: [{kind: keep_neg_ratio, ratio: 0.5}]}\n";
    let config = TINY
        .replaced("total_steps: 6", "total_steps: 4")
        .replaced("max_num_gen_batches: 50", "max_num_gen_batches: 400")
        + objective;
    for config in [config.clone(), config.replaced("bnpo_running, window: 3", "remax")] {
        let folder = Folder::new().with("config.yaml", &config);
        folder.tamis(&["train", "config.yaml"]).succeeds();
        let run = folder.join("runs/tiny");
        let expected = Left::by(&run);
        // The state that a kill before the last checkpoint leaves.
        std::fs::remove_dir_all(run.join("checkpoints/step_4")).expect("removed");
        folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        expected.assert_same(&Left::by(&run));
    }
}

#[test]
fn a_run_without_its_checkpoints_is_left_as_it_is() {
    let folder = Folder::new().with("config.yaml", TINY);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let run = folder.join("runs/tiny");
    let moved = folder.join("moved");
    std::fs::rename(run.join("checkpoints"), &moved).expect("moved");
    let before =
        ["metrics.jsonl", "run.log", "config.yaml"].map(|name| folder.read(&format!("runs/tiny/{name}")));
    let refused = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=8"]);
    insta::assert_snapshot!(refused.failure(), @r"
    exit code 4
    error: the run in runs/tiny cannot be resumed: it was saved before (metrics.jsonl goes up to step 6), and no checkpoint is left in runs/tiny/checkpoints
      hint: nothing was changed: put the checkpoints back where they were, or begin a new run (`tamis train` with another run.name)
    ");
    let after =
        ["metrics.jsonl", "run.log", "config.yaml"].map(|name| folder.read(&format!("runs/tiny/{name}")));
    assert_eq!(before, after);
    assert!(!run.join("run.superseded.log").exists());
    assert_eq!(std::fs::read_dir(run.join("rollouts")).expect("rollouts").count(), 6);
    insta::assert_snapshot!(folder.tamis(&["eval", "runs/tiny"]).failure(), @r"
    exit code 1
    error: runs/tiny has no checkpoint left
      hint: put its checkpoints back into runs/tiny/checkpoints
    ");
    // Once it is restored, the run continues.
    std::fs::remove_dir_all(run.join("checkpoints")).expect("an empty folder");
    std::fs::rename(moved, run.join("checkpoints")).expect("moved back");
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=8"]).succeeds();
    assert_eq!(folder.read("runs/tiny/metrics.jsonl").lines().count(), 9);
}

/// Every sampled row of a run's steps, without the numbers that rounding moves.
fn sampled(folder: &Folder, num_steps: u64) -> Vec<serde_json::Value> {
    let mut rows = Vec::new();
    for step in 1..=num_steps {
        for mut row in folder.rollouts("tiny", step) {
            row.as_object_mut().expect("an object").remove("logprobs").expect("log-probabilities");
            rows.push(row);
        }
    }
    rows
}

#[test]
fn micro_batches_may_be_others_after_a_kill() {
    let config = TINY
        .replaced("total_steps: 6", "total_steps: 8")
        .replaced("save_freq: 2", "save_freq: 1")
        .replaced("ppo_mini_batch_size: 2", "ppo_mini_batch_size: 4");
    let rows = |folder: &Folder| -> Vec<serde_json::Value> {
        let is_update = |row: &serde_json::Value| row.get("actor/grad_norm").is_some();
        folder.rows("tiny").into_iter().filter(is_update).collect()
    };
    let whole = Folder::new().with("config.yaml", &config);
    whole.tamis(&["train", "config.yaml"]).succeeds();
    for change in [
        &["train.micro_batch_tokens=40", "train.balance_micro_batches=true"][..],
        &["train.micro_batch_size=2"],
        &["train.micro_batch_tokens=1", "model.recompute_activations=true"],
    ] {
        let killed = Folder::new().with("config.yaml", &config);
        let ended = killed_when(&killed, &[], Stop::Kill, || {
            begun(&killed).is_some_and(|run| run.join("checkpoints/step_1").is_dir())
        });
        assert!(ended.is_none(), "it ended before it was killed: {ended:?}");
        killed
            .tamis(&[&["train", "--resume", "runs/tiny"], change].concat())
            .succeeds()
            .says("changed on resume: train.micro_batch_");
        assert_eq!(sampled(&killed, 8), sampled(&whole, 8), "{change:?}");
        let (ours, theirs) = (rows(&killed), rows(&whole));
        assert_eq!((ours.len(), theirs.len()), (8, 8));
        let norm = |row: &serde_json::Value| row["actor/grad_norm"].as_f64().expect("a norm");
        for (one, other) in ours.iter().zip(&theirs) {
            for name in ["tokens/trained", "train/num_loss_tokens", "num_tokens"] {
                assert_eq!(one[name], other[name], "{name}");
            }
            assert!((norm(one) - norm(other)).abs() <= 1e-3 * norm(other), "{} {}", norm(one), norm(other));
        }
        let bits =
            |rows: &[serde_json::Value]| rows.iter().map(|row| norm(row).to_bits()).collect::<Vec<_>>();
        assert_ne!(bits(&ours), bits(&theirs), "{change:?} cut nothing otherwise");
    }
}

#[test]
fn what_an_editor_changed_is_compared_too() {
    let folder = Folder::new().with("config.yaml", TINY);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let own = folder.read("runs/tiny/config.yaml");
    assert!(own.contains("learning_rate: 0.001"), "{own}");
    folder.write("runs/tiny/config.yaml", &own.replaced("learning_rate: 0.001", "learning_rate: 0.5"));
    folder
        .tamis(&["train", "--resume", "runs/tiny", "train.total_steps=8"])
        .exits(4)
        .says("0.001")
        .says("0.5");
    folder.write("runs/tiny/config.yaml", &own.replaced("total_steps: 6", "total_steps: 8"));
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds().says("changed on resume");
    assert!(folder.read("runs/tiny/.config.yaml").contains("total_steps: 8"));
}

#[test]
fn a_flipped_bit_in_a_checkpoint_is_found_and_the_one_before_goes_on() {
    let folder = Folder::new().with(
        "config.yaml",
        &(TINY.replaced("total_steps: 6", "total_steps: 4")
            + "objective: {kl: {in: loss, estimator: k3, coefficient: 0.05}}\n"),
    );
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let run = folder.join("runs/tiny");
    let expected = Left::by(&run);
    let flip = |file: &str| {
        let path = run.join(file);
        let mut bytes = std::fs::read(&path).expect("read");
        // The lowest bit of the last number: it stays finite.
        let at = bytes.len() - 4;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).expect("write");
    };
    let printed = |arguments: &[&str]| without_checksums(&folder.tamis(arguments).failure());

    flip("checkpoints/step_4/optimizer.safetensors");
    insta::assert_snapshot!(printed(&["train", "--resume", "runs/tiny"]), @r#"
    exit code 4
    error: `optimizer.safetensors` of the checkpoint runs/tiny/checkpoints/step_4 is damaged: its CRC-32 is N, and was N when it was saved
      hint: restore a copy of the file, or move runs/tiny/checkpoints/step_4 elsewhere to resume from the checkpoint before it, runs/tiny/checkpoints/step_2. If the change was intended, remove runs/tiny/checkpoints/step_4/checksums.json
    "#);
    // An evaluation does not need the moments, but the weights.
    folder.tamis(&["eval", "runs/tiny"]).succeeds();
    flip("checkpoints/step_4/model.safetensors");
    let begin = ["train", "config.yaml", "model.init=null", "model.path=runs/tiny/checkpoints/step_4"];
    let begin = printed(&begin).lines().take(2).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(failures([printed(&["eval", "runs/tiny"]), begin]), @r"
    exit code 1
    error: `model.safetensors` of the checkpoint runs/tiny/checkpoints/step_4 is damaged: its CRC-32 is N, and was N when it was saved
      hint: restore a copy of the file, or move runs/tiny/checkpoints/step_4 elsewhere to resume from the checkpoint before it, runs/tiny/checkpoints/step_2. If the change was intended, remove runs/tiny/checkpoints/step_4/checksums.json
    error: `model.safetensors` of the checkpoint runs/tiny/checkpoints/step_4 is damaged: its CRC-32 is N, and was N when it was saved
    ");

    // As the hint tells the user.
    std::fs::rename(run.join("checkpoints/step_4"), folder.join("damaged")).expect("moved");
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    expected.assert_same(&Left::by(&run));

    std::fs::rename(run.join("reference"), folder.join("reference")).expect("moved");
    insta::assert_snapshot!(printed(&["train", "--resume", "runs/tiny"]), @r#"
    exit code 4
    error: the run cannot be resumed: its reference policy runs/tiny/reference is gone
      hint: nothing was trained: put the folder back where it was, or begin a new run; model.reference names one of its own
    "#);
    std::fs::rename(folder.join("reference"), run.join("reference")).expect("moved");
    flip("reference/model.safetensors");
    insta::assert_snapshot!(printed(&["train", "--resume", "runs/tiny"]), @r#"
    exit code 4
    error: `model.safetensors` of the checkpoint runs/tiny/reference is damaged: its CRC-32 is N, and was N when it was saved
      hint: restore a copy of the file. If the change was intended, remove runs/tiny/reference/checksums.json
    "#);
}

#[cfg(target_os = "linux")]
#[test]
fn a_hung_reward_program_does_not_outlive_a_killed_tamis() {
    let judge = "trap '' HUP TERM; sleep 1000 & echo $$ $! > pids.tmp; mv pids.tmp pids; while :; do sleep 1000; done";
    let reward = format!(
        "reward: [{{kind: number}}, {{kind: command, name: judge, argv: [sh, -c, \"{judge}\"], num_processes: 1, timeout: 1000}}]"
    );
    let config = TINY.replaced("reward: [{kind: number}]", &reward);
    let folder = Folder::new().with("config.yaml", &config);
    let mut tamis = folder.start(&["train", "config.yaml"]);
    soon("the program", || folder.join("pids").exists());
    tamis.kill().expect("killed");
    folder.wait(tamis);
    let pids: Vec<String> = folder.read("pids").split_whitespace().map(str::to_owned).collect();
    assert_eq!(pids.len(), 2);
    // A process that is not reaped is dead all the same.
    let is_alive = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    };
    soon("the end of the program", || !pids.iter().any(is_alive));
}

#[test]
fn a_checkpoint_under_another_name_is_refused() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=4"]).succeeds();
    let path = |name: &str| folder.join("runs/tiny/checkpoints").join(name);
    let longer = ["train", "--resume", "runs/tiny", "train.total_steps=6"];
    std::fs::rename(path("step_4"), path("step_9")).expect("renamed");
    insta::assert_snapshot!(folder.tamis(&longer).failure(), @r"
    exit code 4
    error: runs/tiny/checkpoints/step_9/state.json is the state after step 4, but its folder is that of step 9
      hint: if the folder was renamed, give it back its name: `mv runs/tiny/checkpoints/step_9 runs/tiny/checkpoints/step_4`; otherwise put back the files that were saved in it
    ");
    std::fs::rename(path("step_9"), path("step_4")).expect("renamed");
    let own = std::fs::read_to_string(path("step_4").join("state.json")).expect("read");
    std::fs::remove_file(path("step_4").join("checksums.json")).expect("removed");
    std::fs::copy(path("step_2").join("state.json"), path("step_4").join("state.json")).expect("copied");
    insta::assert_snapshot!(folder.tamis(&longer).failure(), @r"
    exit code 4
    error: runs/tiny/checkpoints/step_4/state.json is the state after step 2, but its folder is that of step 4
      hint: the file was changed or damaged: restore a copy, or move runs/tiny/checkpoints/step_4 elsewhere to continue from the checkpoint before it, runs/tiny/checkpoints/step_2
    ");
    let misspelt = own.replaced("\"next_group\"", "\"next_groups\": 7, \"next_group\"");
    std::fs::write(path("step_4").join("state.json"), misspelt).expect("written");
    insta::assert_snapshot!(folder.tamis(&longer).failure(), @r"
    exit code 4
    error: runs/tiny/checkpoints/step_4/state.json has an unknown key `schedule.next_groups`
      hint: the file was changed or damaged: restore a copy, or move runs/tiny/checkpoints/step_4 elsewhere to continue from the checkpoint before it, runs/tiny/checkpoints/step_2
    ");
    std::fs::write(path("step_4").join("state.json"), own).expect("written");
    folder.tamis(&longer).succeeds();
}
