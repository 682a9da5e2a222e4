//! Numbers that are not finite, or enormous: which rewards are accepted, and how their gradients are treated.

use std::collections::BTreeMap;

use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY, edited, unfiltered, words};

fn judge(answer: &str) -> String {
    format!(
        "import json, sys\nn = 0\nfor line in sys.stdin:\n    request = json.loads(line)\n    step = request['step']\n    n += 1\n    \
         print('{{\"id\": %d, \"score\": %s}}' % (request['id'], {answer}), flush=True)\n"
    )
}

fn train(folder: &Folder, answer: &str, changes: &[(&str, &str)]) -> Ended {
    let reward =
        "reward: [{kind: number}, {kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]";
    let config = edited(&TINY.replaced("reward: [{kind: number}]", reward), changes);
    folder.write("judge.py", &judge(answer));
    folder.write("config.yaml", &config);
    folder.tamis(&["train", "config.yaml"])
}

/// Metrics of the updates at every step, and no normalisation by the group's deviation, so that a reward
/// enters the gradient unchanged.
const PLAIN: (&str, &str) = ("train:\n", "objective: {advantage: {kind: dr_grpo}}\ntrain:\n");

#[test]
fn a_score_that_no_double_holds_leaves_its_row_without_it() {
    let folder = Folder::new();
    let ended = train(&folder, "'1e999' if n % 7 == 0 else '0.5'", &[]).succeeds();
    ended.says("gives them no score; the first: score `score` must be finite, got 1e999\n  prompt ");
    ended.says("reward function `judge` failed on ");
    assert!(!ended.stderr.contains("is restarted"), "nothing is wrong with the process: {}", ended.stderr);
    assert_eq!(folder.steps("tiny").len(), 6);
}

/// Scores without a mean or deviation in floating point, and the largest ones that have both.
#[test]
fn no_score_makes_a_statistic_that_is_no_number() {
    let folder = Folder::new();
    let far = "['1e308', '-1e308', '1.7e308', '0.5', '1'][n % 5]";
    train(&folder, far, &[("  total_steps: 6", "  total_steps: 4")])
        .succeeds()
        .says("gives them no score; the first: score `score` must lie within plus and minus 1e100, got ");
    let largest = Folder::new();
    // Every estimator of deviations, and none.
    for (name, objective, is_scaled) in [
        ("grpo", "{advantage: {kind: grpo, scale: batch}}", true),
        ("whitened", "{advantage: {kind: reinforce_plus_plus}}", true),
        ("plain", "{advantage: {kind: dr_grpo}}", false),
    ] {
        let objective = format!("objective: {objective}\ntrain:\n");
        let run = format!("run: {{name: {name}");
        let changes = [
            ("train:\n", objective.as_str()),
            ("run: {name: tiny", &run),
            ("  total_steps: 6", "  total_steps: 2"),
        ];
        let ended = train(&largest, "['1e100', '-1e100', '1e100'][n % 3]", &changes);
        // Unchanged, they give no finite gradient, and a run without an update does not succeed.
        if is_scaled {
            ended.succeeds();
        } else {
            ended.fails_with("exit code 1\nerror: the 2 steps up to step 2 made no update of the policy: ");
        }
    }
    let of_largest = ["grpo", "whitened", "plain"].map(|run| format!("runs/{run}/metrics.jsonl"));
    let mut texts = vec![folder.read("runs/tiny/metrics.jsonl")];
    texts.extend(of_largest.map(|path| largest.read(&path)));
    let mut compared = 0;
    for line in texts.iter().flat_map(|text| text.lines()) {
        let row: BTreeMap<String, serde_json::Value> = serde_json::from_str(line).expect("JSON");
        for (name, value) in row {
            // An update whose gradient overflows f32 is left out, and has no loss.
            if ["loss", "grad_norm"].contains(&name.as_str()) || name.starts_with("actor/") {
                continue;
            }
            compared += usize::from(name.starts_with("critic/") || name.starts_with("rewards/"));
            assert!(value.as_f64().is_none_or(f64::is_finite) && !value.is_null(), "{name}: {value}");
        }
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn enormous_rewards_are_shown_as_a_person_reads_them() {
    let folder = Folder::new();
    let ended = train(&folder, "'1e90'", &[]).succeeds();
    let longest = |text: &str| text.split(|letter: char| !letter.is_ascii_digit()).map(str::len).max();
    assert_eq!(longest("a 12 b 345.6"), Some(3));
    assert!(longest(&ended.stderr) < Some(17), "{}", ended.stderr);
    assert!(longest(&ended.stdout) < Some(17), "{}", ended.stdout);
    ended.says("reward 1.000e90 ");
    let ended = folder.tamis(&["eval", "runs/tiny"]).succeeds();
    assert!(longest(&ended.stdout) < Some(17) && ended.stdout.contains("1.0000e90"), "{}", ended.stdout);
    let ended = folder.filter_rollouts("tiny", &["--metric", "reward"]).succeeds();
    assert!(longest(&ended.stdout) < Some(17), "{}", ended.stdout);
    ended.prints("Mean metric: 1.000e90");
}

#[test]
fn an_update_without_a_finite_gradient_is_left_out_and_the_run_goes_on() {
    let folder = Folder::new();
    train(&folder, "'1e90' if step == 3 and n % 2 else '0.5'", &[PLAIN]).succeeds().says(
        "warning: step 3: the gradient of 2 of 2 updates was not finite; these updates were left out\n",
    );
    let steps = folder.steps("tiny");
    let of = |name: &str| -> Vec<u64> {
        steps.iter().map(|step| step[name].as_f64().expect("a number") as u64).collect()
    };
    assert_eq!(of("actor/num_skipped_updates"), [0, 0, 2, 0, 0, 0]);
    assert_eq!(of("actor/num_updates"), [2, 2, 0, 2, 2, 2]);
    // The weights, the moments and the loss of later steps do not contain it.
    for step in [3, 4, 5] {
        assert!(steps[step]["loss"].as_f64().is_some_and(f64::is_finite), "{:?}", steps[step]);
        assert!(steps[step]["actor/grad_norm"].as_f64().is_some_and(|norm| norm > 0.0), "{:?}", steps[step]);
    }
    assert!(folder.join("runs/tiny/checkpoints/step_6").exists());
}

#[test]
fn ten_updates_in_a_row_without_a_finite_gradient_end_the_run() {
    let folder = Folder::new();
    // Two updates a step: the tenth of them in step 7.
    let long = ("  total_steps: 6", "  total_steps: 20");
    let ended = train(&folder, "'1e90' if step >= 3 and n % 2 else '0.5'", &[PLAIN, long]);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 1
    error: the gradients of 10 updates in a row were not finite, up to step 7: the run does not learn
      hint: the weights are those of the last update that could be made, in runs/tiny/checkpoints; look for a reward or an advantage without bound (critic/score/max, critic/advantages/max, actor/ratio_max in metrics.jsonl), and lower train.optimizer.learning_rate if there is none
    ");
    let steps = folder.steps("tiny");
    assert_eq!(steps.len(), 7);
    // What was learned before is kept, and a resume knows the number of left-out updates.
    assert!(folder.join("runs/tiny/checkpoints/step_7").exists());
    let left = Left::by(&folder.join("runs/tiny"));
    folder
        .tamis(&["train", "--resume", "runs/tiny"])
        .fails_with("the gradients of 12 updates in a row were not finite, up to step 8");
    assert!(left.metrics.len() < Left::by(&folder.join("runs/tiny")).metrics.len());
}

#[test]
fn ten_updates_of_the_critic_in_a_row_without_a_finite_gradient_end_the_run() {
    let folder = Folder::new();
    // Too large for the critic's f32, and harmless to the policy, whose advantages are whitened.
    let critic = [
        ("run: {name: tiny", "preset: ppo\nrun: {name: tiny"),
        ("filter: {kind: variance}\nschedule: {max_num_gen_batches: 50}\n", ""),
        ("  gen_batch_size: 8\n", ""),
        ("  total_steps: 6", "  total_steps: 20"),
    ];
    let ended = train(&folder, "'1e40' if step >= 3 and n % 2 else '0.5'", &critic);
    insta::assert_snapshot!(ended.failure(), @"
    exit code 1
    error: the gradients of 10 updates of the critic in a row were not finite, up to step 7: the critic does not learn, and the policy would follow its values
      hint: the critic's weights are those of its last update that could be made, in runs/tiny/checkpoints; look for a reward or a value without bound (critic/score/max, critic/returns/max, critic/values/max in metrics.jsonl), and lower critic.optimizer.learning_rate if there is none
    ");
    let steps = folder.steps("tiny");
    assert_eq!(steps.len(), 7);
    for (i, step) in steps.iter().enumerate() {
        let skipped = if i < 2 { 0.0 } else { 2.0 };
        assert_eq!(step["critic/num_skipped_updates"], skipped, "{step:?}");
        assert_eq!(step["actor/num_skipped_updates"], 0.0, "{step:?}");
        assert_eq!(step.get("critic/vf_loss").is_some(), i < 2, "{step:?}");
    }
    assert!(folder.join("runs/tiny/checkpoints/step_7").exists());
    let resumed = folder.tamis(&["train", "--resume", "runs/tiny"]);
    resumed.fails_with("the gradients of 12 updates of the critic in a row were not finite, up to step 8");
}

fn checkpoints(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("runs/tiny/checkpoints")).expect("checkpoints");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("entry").file_name().display().to_string()).collect();
    names.sort();
    names
}

#[test]
fn weights_that_diverge_end_the_run_and_are_saved_nowhere() {
    let folder = Folder::tiny();
    // The first step has a rate of 0, and the second one diverges.
    let rates = [
        "train.lr_schedule.warmup_steps=1",
        "train.optimizer.learning_rate=3e38",
        "train.optimizer.weight_decay=2",
    ];
    let keep = ["train", "tiny.yaml", "checkpoint.save_freq=1", "checkpoint.keep_last=1"];
    let ended = folder.tamis(&[&keep[..], &rates[..]].concat());
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 1
    error: the policy's weights hold numbers that are not finite after step 2, the first in tensor `model.embed_tokens.weight`: training has diverged
      hint: step not saved; runs/tiny/checkpoints/step_1 holds the state before it: begin a new run from its weights (`model.path: runs/tiny/checkpoints/step_1`) with a lower train.optimizer.learning_rate, and look for a reward or an advantage without bound
    ");
    // The row of the step shows what happened. Nothing was validated with such weights, or saved.
    assert_eq!(folder.steps("tiny").len(), 2);
    ended.never_says("validation after step 2");
    assert_eq!(checkpoints(&folder), ["step_1"]);
    let kept = Left::by(&folder.join("runs/tiny"));
    // However often it is tried.
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    assert_eq!(again.failure(), ended.failure());
    kept.assert_same(&Left::by(&folder.join("runs/tiny")));
    let other = words(
        "train tiny.yaml run.name=other model.path=runs/tiny/checkpoints/step_1 \
         sft.steps=0",
    );
    folder.tamis(&[&other[..], &["~model.init"]].concat()).succeeds().prints("done");
}

#[test]
fn a_critic_that_diverges_ends_the_run_too() {
    let folder = Folder::new();
    folder.write("ppo.yaml", &format!("preset: ppo\n{}", unfiltered(TINY)));
    let rates = "critic.optimizer.learning_rate=1e38 critic.optimizer.weight_decay=1000";
    let ended = folder.tamis(&words(&format!("train ppo.yaml {rates}"))).exits(1);
    ended.fails_with("error: the critic's weights hold numbers that are not finite after step 1, ");
    ended.fails_with("a lower critic.optimizer.learning_rate");
    assert_eq!(checkpoints(&folder), ["step_0"]);
}

#[test]
fn weights_beyond_half_precision_are_never_written_as_infinities() {
    let folder = Folder::tiny();
    let large = ["train.optimizer.learning_rate=1e5", "train.total_steps=1", "model.save_dtype=f16"];
    let ended = folder.tamis(&[&["train", "tiny.yaml"], &large[..]].concat()).exits(1);
    ended.fails_with("exit code 1\nerror: tensor `model.embed_tokens.weight` has weights of magnitude ");
    ended.fails_with(", which would be infinite in the float16 of model.save_dtype; nothing was written\n");
    ended.fails_with("hint: runs/tiny/checkpoints/step_1 holds the weights in 32 bits, so nothing is lost");
    // Everything that was trained is there, and the run is complete once the weights can be written.
    let config = folder.read("runs/tiny/checkpoints/step_1/config.json");
    assert!(config.contains("float32"), "{config}");
    let resume = ["train", "--resume", "runs/tiny", "model.save_dtype=bf16"];
    folder.tamis(&resume).succeeds().prints("done: 1 step");
}

#[test]
fn a_checkpoint_of_diverged_weights_is_not_called_damaged() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let checkpoint = folder.join("runs/tiny/checkpoints/step_2");
    let weights = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, &bytes).expect("write");
    let sums = checkpoint.join("checksums.json");
    let mut known: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&sums).expect("sums")).expect("JSON");
    known["crc32"]["model.safetensors"] = format!("{:08x}", tamis_run::checksum::crc32(&bytes)).into();
    std::fs::write(&sums, known.to_string()).expect("write");
    let refused = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=4"]);
    insta::assert_snapshot!(refused.failure(), @r"
    exit code 4
    error: tensor `model.norm.weight` in runs/tiny/checkpoints/step_2/model.safetensors holds numbers that are not finite: the file is damaged, or its training had diverged
      hint: training had diverged when this was saved: move its folder elsewhere and resume from the checkpoint before it, runs/tiny/checkpoints/step_0, or begin a new run from that one (`model.path=runs/tiny/checkpoints/step_0`) with a lower train.optimizer.learning_rate
    ");
}

#[test]
fn an_sft_that_diverges_is_not_measured() {
    let folder = Folder::new();
    let changes = [
        ("data:\n", "data:\n  check_gold: off\n"),
        ("learning_rate: 1e-2}", "learning_rate: 1e38, target_accuracy: 0.9, test_freq: 1000}"),
        ("sft: {steps: 40,", "sft: {steps: 1000,"),
        ("optimizer: {learning_rate: 1e-3}", "optimizer: {learning_rate: 1e-3, weight_decay: 1000}"),
    ];
    let asks = "(open('asked', 'a').write('x'), '1')[1]";
    let ended = train(&folder, asks, &changes).exits(1);
    ended.fails_with("error: the policy's weights hold numbers that are not finite after step 0, ");
    ended.fails_with("  hint: nothing was saved: begin a new run with a lower sft.learning_rate\n");
    assert!(!folder.join("asked").exists(), "{}", ended.shown());
    // It ended soon after, not with its last update.
    ended.never_says("sft: update 900");
}

/// While updates are left out no checkpoint is removed, because the last one kept may be from before the
/// trouble. Afterwards they are removed.
#[test]
fn checkpoints_from_before_updates_that_are_left_out_are_kept() {
    let folder = Folder::new();
    let keep = ("checkpoint: {save_freq: 2}", "checkpoint: {save_freq: 1, keep_last: 1}");
    let short = ("  total_steps: 6", "  total_steps: 5");
    train(&folder, "'1e90' if 3 <= step <= 5 and n % 2 else '0.5'", &[PLAIN, keep, short]).succeeds();
    // Steps 3, 4 and 5 made no update: that of step 2 is the last from before.
    assert_eq!(checkpoints(&folder), ["step_2", "step_3", "step_4", "step_5"]);
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=6"]).succeeds();
    assert_eq!(checkpoints(&folder), ["step_6"]);
}

#[test]
fn weights_whose_logits_are_not_finite_end_the_run() {
    let folder = Folder::tiny();
    let explodes =
        ["train.optimizer.learning_rate=1e13", "validate.test_freq=0", "validate.before_train=false"];
    let train = |more: &[&str]| folder.tamis(&[&["train", "tiny.yaml"], &explodes[..], more].concat());
    // The next step samples from them.
    let ended = train(&["run.name=sampled", "checkpoint.save_freq=0"]);
    let diverged = "exit code 1\nerror: the policy's logits are NaN or infinite";
    ended.fails_with(diverged).fails_with(": its training has diverged, or its weights are damaged (group ");
    let hint = "hint: nothing was saved: begin a new run with a lower train.optimizer.learning_rate";
    ended.fails_with(&format!(", after step 1)\n  {hint}"));
    // No step comes after them.
    for (name, freq) in [("last", "0"), ("saved", "1")] {
        let (name, freq) = (format!("run.name={name}"), format!("checkpoint.save_freq={freq}"));
        let ended = train(&[&name, &freq, "train.total_steps=1"]);
        ended.fails_with(diverged).fails_with("(on a trajectory of the last batch, after step 1)");
        ended.never_prints("done");
    }
    let left = |name: &str| folder.join("runs").join(name).join("checkpoints/step_1").exists();
    assert!(!left("last") && !left("saved"));
    // They are measured before they would be saved, and belong to that step, too.
    let measured = words(
        "train tiny.yaml run.name=measured train.optimizer.learning_rate=1e13 \
         train.total_steps=1 checkpoint.save_freq=0 validate.before_train=false validate.test_freq=1",
    );
    let ended = folder.tamis(&measured);
    ended.fails_with("(validation prompt ").fails_with(", after step 1)\n  hint: nothing was saved");
    // The last checkpoint before them is named.
    let rates = ["train.lr_schedule.warmup_steps=1", "checkpoint.save_freq=1", "run.name=kept"];
    let ended = train(&rates);
    ended.fails_with("(on a trajectory of the last batch, after step 2)");
    ended.fails_with("(`model.path: runs/kept/checkpoints/step_1`, or an earlier one)");
}

#[test]
fn an_evaluation_of_weights_whose_logits_are_not_finite_is_an_error() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let checkpoint = folder.join("runs/tiny/checkpoints/step_2");
    let mut model = tamis_model::Model::load(&checkpoint).expect("a model");
    assert!(model.nudge("model.norm.weight", |_| 3e38));
    model.save(&checkpoint, tamis_model::SaveDtype::F32).expect("saved");
    std::fs::remove_file(checkpoint.join("checksums.json")).expect("removed");
    let ended = folder.tamis(&["eval", "runs/tiny"]);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 1
    error: the policy's logits are NaN or infinite: its training has diverged, or its weights are damaged (validation prompt 0, member 0, token 0)
      hint: look at how these weights were made: begin from a checkpoint before they diverged, and train with a lower learning rate (train.optimizer.learning_rate; that of supervised fine-tuning is sft.learning_rate)
    ");
    assert!(!ended.stdout.contains('%'), "{}", ended.shown());
}
