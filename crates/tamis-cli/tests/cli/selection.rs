//! Filters that compare the groups of a round or the members of a group, runs that are stopped early, and
//! which checkpoints are kept.

use std::collections::BTreeMap;

use crate::tamis::{Ended, Folder, Left, TINY, edited};

fn train(folder: &Folder, changes: &[(&str, &str)]) -> Ended {
    folder.write("config.yaml", &edited(TINY, changes));
    folder.tamis(&["train", "config.yaml"])
}

const ONE_ROUND: (&str, &str) = ("schedule: {max_num_gen_batches: 50}", "schedule: {refill: false}");

#[test]
fn a_selection_without_refill_trains_on_what_survived() {
    let folder = Folder::new();
    let filter = ("filter: {kind: variance}", "filter: {kind: top_k, fraction: 0.25}");
    let batch = ("train_batch_size: 4", "train_batch_size: 8");
    let ended = train(&folder, &[filter, batch, ONE_ROUND]).succeeds();
    ended.says(
        "filter on: top_k keeps 25% of the groups of each round, by the largest deviation of `acc`; \
                 one round of 8 groups a step, trained on those that the filter keeps",
    );
    let steps = folder.numbers("tiny");
    assert_eq!(steps.len(), 6);
    for step in steps {
        assert_eq!(
            (step["groups/generated"], step["groups/trained"], step["groups/dropped"]),
            (8.0, 2.0, 6.0)
        );
        let dropped = ["outside_pool", "all_correct", "all_wrong"]
            .map(|reason| step[&format!("train/num_dropped/{reason}")] as u64);
        assert_eq!(dropped.iter().sum::<u64>(), 6, "{dropped:?}");
        assert!(step["rollout/in_group_reward_std"] >= 0.0);
    }
}

/// 64 prompts in rounds of 24: the third round is drawn from two epochs, and is still one round to the
/// filter.
#[test]
fn a_round_over_the_end_of_an_epoch_is_judged_whole() {
    let folder = Folder::new();
    let filter = ("filter: {kind: variance}", "filter: {kind: top_k, k: 3}");
    let sizes =
        [("train_batch_size: 4", "train_batch_size: 24"), ("gen_batch_size: 8", "gen_batch_size: 24")];
    train(&folder, &[filter, sizes[0], sizes[1], ONE_ROUND]).succeeds();
    let steps = folder.numbers("tiny");
    assert_eq!(steps.len(), 6);
    for step in steps {
        assert_eq!((step["groups/generated"], step["groups/trained"]), (24.0, 3.0), "{step:?}");
    }
}

/// At the end of the data, what is in flight can no longer fill a batch: the run ends well.
#[test]
fn the_data_end_in_the_middle_of_a_round() {
    let folder = Folder::new();
    let ends = ("  total_steps: 6", "  total_epochs: 1");
    let sizes = [("train_batch_size: 4", "train_batch_size: 6"), ("gen_batch_size: 8", "gen_batch_size: 10")];
    train(&folder, &[ends, sizes[0], sizes[1]]).succeeds().prints("done: ");
}

#[test]
fn rollouts_say_with_what_probability_their_prompts_were_taken() {
    let folder = Folder::new();
    let more = [("total_steps: 6", "total_steps: 12"), ("train_size: 64", "train_size: 24")];
    train(&folder, &[("schedule: {", "schedule: {selector: {kind: posterior}, "), more[0], more[1]])
        .succeeds();
    let (mut least, mut squares, mut sum, mut step_share) = (1.0_f64, 0.0, 0.0, None);
    for row in folder.numbers("tiny") {
        let path = folder.join(&format!("runs/tiny/rollouts/step_{}.parquet", row["step"]));
        let mut weights = BTreeMap::new();
        for row in tamis_data::records::Records::open(&path).expect("rollouts") {
            let row = row.expect("a row").values;
            let taken = row.get("inclusion").map_or(1.0, |taken| taken.as_f64().expect("a number"));
            least = least.min(taken);
            if row["verdict"] == "trained" {
                weights.insert(row["group_id"].as_u64(), 1.0 / taken);
            }
        }
        (sum, squares) = weights.values().fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
        step_share = Some((row["selector/effective_share"], weights.len() as f64));
    }
    assert!(least < 1.0, "no prompt was taken by chance");
    let (share, groups) = step_share.expect("a step");
    assert!((share - sum * sum / (groups * squares)).abs() < 1e-6, "{share} {sum} {squares}");
}

/// A selector leaves few groups of an epoch. If few prompts are ever kept, some epochs keep none, which is no
/// reason to end the run.
#[test]
fn a_selector_does_not_end_a_run_that_learns() {
    let folder = Folder::new();
    let more = [
        ("total_steps: 6", "total_steps: 10"),
        ("train_size: 64", "train_size: 24"),
        ("filter: {kind: variance}", "filter: {kind: mean_range, low: 0.1, high: 0.9}"),
    ];
    for kind in ["posterior", "zero_variance_skip", "difficulty_pools"] {
        let selector = format!("schedule: {{selector: {{kind: {kind}}}, ");
        let ended = train(&folder, &[("schedule: {", &selector), more[0], more[1], more[2]]).succeeds();
        assert!(ended.stdout.contains("done: "), "{kind}: {}", ended.shown());
        std::fs::remove_dir_all(folder.join("runs")).expect("the run's folder");
    }
}

#[test]
fn members_that_are_not_chosen_have_no_advantage() {
    let folder = Folder::new();
    let filter = ("filter: {kind: variance}", "filter: {kind: within_group, k: 2}");
    train(&folder, &[filter, ("gen_batch_size: 8", "gen_batch_size: 4")]).succeeds();
    let options = ["--metric", "advantage", "--no-outcome", "--json"];
    let summary = folder.filter_rollouts("tiny", &options).succeeds().json();
    assert_eq!((&summary["num_prompts"], &summary["num_trajectories"]), (&24.into(), &96.into()));
    assert_eq!(summary["num_unscored_trajectories"], 48, "{summary}");
    for step in folder.numbers("tiny") {
        assert_eq!((step["groups/trained"], step["trajectories/trained"]), (4.0, 8.0));
        assert_eq!((step["trajectories/left_out"], step["train/num_left_out/unchosen"]), (8.0, 8.0));
        assert_eq!(step["dynamic_sampling/num_trajectories_used"] as u64, 8);
        assert_eq!(step["train/num_unscored"] as u64, 0);
        // Every token is the policy's here.
        assert_eq!(step["train/num_loss_tokens"] as u64, step["tokens/trained"] as u64);
        assert!(step["tokens/trained"] < step["tokens/generated"], "{step:?}");
        // Two members that differ most, or that are all the same.
        assert!(step["response_length/max"] <= step["all/response_length/max"]);
    }
    let verdicts = verdicts(&folder);
    assert_eq!(verdicts, BTreeMap::from([("trained".to_owned(), 48), ("unchosen".to_owned(), 48)]));
}

fn verdicts(folder: &Folder) -> BTreeMap<String, u64> {
    let mut verdicts = BTreeMap::new();
    for entry in std::fs::read_dir(folder.join("runs/tiny/rollouts")).expect("rollouts") {
        let path = entry.expect("entry").path();
        for row in tamis_data::records::Records::open(&path).expect("rollouts") {
            let row = row.expect("a row");
            *verdicts.entry(row.values["verdict"].as_str().expect("text").to_owned()).or_default() += 1;
        }
    }
    verdicts
}

#[test]
fn every_trajectory_is_under_one_verdict_and_the_metrics_agree() {
    let folder = Folder::new();
    folder.write(
        "some.py",
        "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    text = \
             request['completion']\n    print(json.dumps({'id': request['id'], 'score': None if len(text) > \
             3 else len(text)}), flush=True)\n",
    );
    train(
        &folder,
        &[
            (
                "filter: {kind: variance}",
                "filter: {kind: within_group, k: 2, metric: len}\nobjective: {masks: {truncated: true}}",
            ),
            (
                "reward: [{kind: number}]",
                "reward: [{kind: command, name: len, argv: [python3, some.py], num_processes: 1}]",
            ),
            ("sft: {steps: 40,", "sft: {steps: 4,"),
            ("  arithmetic:", "  check_gold: off\n  arithmetic:"),
        ],
    )
    .succeeds();
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for step in folder.numbers("tiny") {
        let mut went = 0;
        for place in
            ["trained", "left_out", "dropped", "surplus", "stale", "failed", "aborted", "carried_out"]
        {
            let number = step[&format!("trajectories/{place}")] as u64;
            went += number;
            *total.entry(place.to_owned()).or_default() += number;
        }
        assert_eq!(step["trajectories/generated"] as u64, went);
        let mut left_out = 0;
        for reason in ["unscored", "unchosen", "truncated", "shaped", "masked", "rejected"] {
            let number = step[&format!("train/num_left_out/{reason}")] as u64;
            left_out += number;
            *total.entry(reason.to_owned()).or_default() += number;
        }
        assert_eq!(step["trajectories/left_out"] as u64, left_out);
    }
    let verdicts = verdicts(&folder);
    let of = |name: &str| verdicts.get(name).copied().unwrap_or(0);
    assert_eq!(of("trained"), total["trained"], "{verdicts:?}");
    assert_eq!(of("unchosen"), total["unchosen"], "{verdicts:?}");
    assert_eq!(of("truncated"), total["truncated"], "{verdicts:?}");
    // Groups without two scored members are dropped under the same name.
    assert_eq!(of("unscored"), total["unscored"] + total["dropped"], "{verdicts:?}");
    assert!(total["unscored"] > 0 && total["unchosen"] > 0, "shows nothing otherwise: {total:?}");
}

/// In bypass mode the first mini-batch has the policy that sampled, the second one that moved away from it: a
/// bound that nothing satisfies rejects the whole second mini-batch.
#[test]
fn what_the_correction_rejects_whole_is_not_trained() {
    let bypass = |threshold: &str| {
        format!(
            "objective: {{correction: {{preset: bypass_ppo_clip, rejections: [{{statistic: seq_mean_k2, threshold: '{threshold}'}}]}}}}"
        )
    };
    let folder = Folder::new();
    let strict = bypass("1e-12");
    train(&folder, &[("filter: {kind: variance}", &format!("filter: {{kind: variance}}\n{strict}"))])
        .succeeds();
    let steps = folder.numbers("tiny");
    for step in &steps {
        let left_out = step["trajectories/left_out"];
        let trained = step["trajectories/trained"];
        // Nothing is learned from the second half: no update is made only with momentum.
        assert_eq!(
            (trained, left_out, step["train/num_left_out/rejected"], step["actor/num_updates"]),
            (8.0, 8.0, 8.0, 1.0),
            "{step:?}"
        );
        let others = step["trajectories/dropped"] + step["trajectories/surplus"];
        assert!(step["trajectories/generated"] as u64 == (others + 16.0) as u64, "{step:?}");
    }
    let of_rows = verdicts(&folder);
    assert_eq!((of_rows["trained"], of_rows["rejected"]), (48, 48), "{of_rows:?}");

    // A prompt that was trained on in one of two epochs counts as trained on.
    let folder = Folder::new();
    let twice = ("  ppo_mini_batch_size: 2", "  ppo_mini_batch_size: 4\n  ppo_epochs: 2");
    train(&folder, &[("filter: {kind: variance}", &format!("filter: {{kind: variance}}\n{strict}")), twice])
        .succeeds();
    let of_rows = verdicts(&folder);
    assert_eq!((of_rows["trained"], of_rows.get("rejected")), (96, None), "{of_rows:?}");
}

#[test]
fn a_selection_that_trains_on_uniform_groups_says_so() {
    let folder = Folder::new();
    let softmax = ("filter: {kind: variance}", "filter: {kind: top_p, p: 0.9}");
    // Without a warm start nearly every answer is wrong.
    let cold = ("sft: {steps: 40,", "sft: {steps: 1,");
    let batch = ("train_batch_size: 4", "train_batch_size: 8");
    let ended = train(&folder, &[softmax, cold, batch, ONE_ROUND]).succeeds();
    ended.says(
        "warning: filter top_p lets groups whose members all have the same `acc` into \
             the batch, where a group-relative advantage learns nothing from them; filter.include_zero=false \
             keeps them out\n",
    );
    let steps = folder.numbers("tiny");
    let uniform: f64 = steps.iter().map(|step| step["frac_reward_zero_std"] * step["groups/trained"]).sum();
    assert!(uniform > 0.0);
    let printed: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.contains("the filter kept groups whose members all have the same reward"))
        .collect();
    assert_eq!(printed.len(), 1, "said once: {printed:?}");
    assert!(printed[0].contains("; filter.include_zero=false keeps them out; "), "{printed:?}");
    // What is compared with a critic, the batch or a greedy completion needs no contrast.
    for estimator in ["gae", "bi_level_gae", "reinforce_plus_plus", "remax"] {
        let folder = Folder::new();
        let objective = format!("objective: {{advantage: {{kind: {estimator}}}}}\ntrain:\n");
        let ended = train(&folder, &[softmax, cold, batch, ONE_ROUND, ("train:\n", &objective)]).succeeds();
        for printed in ["have the same", "group-relative"] {
            assert!(!ended.stderr.contains(printed), "{estimator}: {}", ended.stderr);
        }
    }
    // With the key set, it does not compete any more.
    let folder = Folder::new();
    let strict = ("filter: {kind: variance}", "filter: {kind: top_p, p: 0.9, include_zero: false}");
    train(&folder, &[strict, ("train_batch_size: 4", "train_batch_size: 8"), ONE_ROUND])
        .succeeds()
        .never_says("have the same");
}

/// Uniform groups that were replaced are all wrong or all correct, and the advice is about the data.
#[test]
fn a_selection_that_keeps_nothing_is_diagnosed_by_what_its_groups_are() {
    let folder = Folder::new();
    let linear = ("filter: {kind: variance}", "filter: {kind: top_p, p: 0.9, mass: linear}");
    let cold = ("sft: {steps: 40,", "sft: {steps: 1,");
    let limit = ("schedule: {max_num_gen_batches: 50}", "schedule: {max_num_gen_batches: 2}");
    let ended = train(&folder, &[linear, cold, limit]).exits(1);
    let failure = ended.failure();
    assert!(failure.contains("100.0%  all wrong") && failure.contains("take easier prompts"), "{failure}");
    assert!(!failure.contains("outside pool") && !failure.contains("schedule.refill"), "{failure}");
}

#[test]
fn low_validation_success_stops_the_run_and_it_stays_stopped() {
    let folder = Folder::new();
    let stop =
        ("  total_steps: 6", "  total_steps: 6\n  early_stop: {low_success: {floor: 1.0, patience: 1}}");
    let ended = train(&folder, &[stop]).succeeds();
    ended.prints(
        "stopped early after 2 steps (low_success): validation success stayed \
         below 1 for 1 validation in a row, ",
    );
    assert!(folder.join("runs/tiny/checkpoints/step_2").exists());
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    assert!(metrics.lines().last().expect("a line").contains("\"train/early_stopped\":1"), "{metrics}");
    let left = Left::by(&folder.join("runs/tiny"));
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    assert_eq!(again.stdout, ended.stdout);
    left.assert_same(&Left::by(&folder.join("runs/tiny")));
    // With the stop switched off the run continues.
    let on =
        folder.tamis(&["train", "--resume", "runs/tiny", "train.early_stop.low_success=null"]).succeeds();
    on.prints("done: 6 steps");
}

#[test]
fn empty_steps_stop_the_run() {
    let folder = Folder::new();
    let changes = [
        ("filter: {kind: variance}", "filter: {kind: mean_range, low: 1.5, high: 2.0, metric: score}"),
        ("max_num_gen_batches: 50", "on_empty_round: skip"),
        ("  total_steps: 6", "  total_steps: 6\n  early_stop: {empty_steps: {patience: 2}}"),
    ];
    let ended = train(&folder, &changes).succeeds();
    ended.prints("stopped early after 0 steps (empty_steps): 2 steps in a row had no group to train on");
    let left = Left::by(&folder.join("runs/tiny"));
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    assert_eq!(again.stdout, ended.stdout);
    left.assert_same(&Left::by(&folder.join("runs/tiny")));
}

#[test]
fn a_collapse_of_the_reward_stops_the_run() {
    // A threshold so near to the first step's deviation that the second or third is below it.
    let stop =
        "  total_steps: 6\n  early_stop: {reward_collapse: {baseline_steps: 1, window: 1, share: 0.999}}";
    let folder = Folder::new();
    train(&folder, &[("  total_steps: 6", stop)])
        .succeeds()
        .prints("(reward_collapse): the reward's deviation within groups has collapsed: at most ");
}

#[test]
fn a_filter_may_look_at_entropies() {
    for score in ["mean", "deviation"] {
        let folder = Folder::new();
        let filter = format!("filter: {{kind: top_k, fraction: 0.25, metric: entropy, score: {score}}}");
        let batch = ("train_batch_size: 4", "train_batch_size: 8");
        train(&folder, &[("filter: {kind: variance}", &filter), batch, ONE_ROUND])
            .succeeds()
            .says("of `entropy`");
        for step in folder.numbers("tiny") {
            assert_eq!((step["groups/trained"], step["groups/dropped"]), (2.0, 6.0));
            // At most the logarithm of the vocabulary.
            assert!(step["all/filter_metric/mean"] > 0.0 && step["all/filter_metric/mean"] < 3.0, "{step:?}");
        }
    }
}

#[test]
fn the_best_checkpoint_may_go_by_a_figure_that_is_not_logged() {
    let folder = Folder::tiny();
    let keep = [
        "validate.n=2",
        "validate.metrics=[pass@k]",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best={k: 1, metric: val-core/arithmetic/acc/mean@2}",
    ];
    folder.tamis(&[&["train", "tiny.yaml"], &keep[..]].concat()).succeeds();
    assert!(!folder.read("runs/tiny/metrics.jsonl").contains("acc/mean@2"));
    let state = folder.read("runs/tiny/checkpoints/step_6/state.json");
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(
        state["validation"]["scores"].as_object().map(serde_json::Map::len),
        Some(4),
        "{}",
        state["validation"]["scores"]
    );
}
