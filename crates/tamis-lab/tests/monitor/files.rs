//! Files in every state: empty, torn, cut back, replaced, missing, not text.

use tamis_lab::monitor::summary::WatchedState;
use tamis_lab::monitor::{Watch, WatchedRun};

use crate::Folder;

fn batch(number: u64, dropped: u64) -> String {
    let kept = 16 - dropped;
    let share = 100.0 * dropped as f64 / 16.0;
    format!(
        "Generated batch {number}, 16 prompts\nFiltered (std=0): {dropped} ({share:.1}%)\nKept (std>0): {kept} prompts\n"
    )
}

fn next(watch: &mut Watch) -> WatchedRun {
    watch.follow().unwrap();
    watch.summary()
}

fn has_note(summary: &WatchedRun, note: &str) -> bool {
    summary.notes.iter().any(|said| said.contains(note))
}

#[test]
fn an_empty_file_fills_line_by_line_and_a_torn_line_waits() {
    let folder = Folder::new();
    folder.write("train.log", "");
    let mut watch = Watch::open(&folder.path("train.log")).unwrap();
    watch.check_understood().unwrap();
    let empty = watch.summary();
    let figures = &empty.batch_figures;
    assert_eq!((figures.total_batches, figures.average_filter_rate), (0, None));
    assert!(empty.now.is_none() && has_note(&empty, "no step yet"));
    let text = batch(1, 12);
    let (first, rest) = text.split_at(text.len() - 9);
    folder.append("train.log", first);
    let torn = next(&mut watch);
    // `Kept (std>0): 4 pr` may go on.
    assert_eq!((torn.batch_figures.total_batches, torn.batch_figures.total_kept), (1, None));
    assert!(has_note(&torn, "not whole"));
    folder.append("train.log", rest);
    let whole = next(&mut watch);
    assert_eq!((whole.batch_figures.total_kept, has_note(&whole, "not whole")), (Some(4), false));
}

#[test]
fn a_log_that_is_rotated_or_emptied_is_followed_on() {
    let folder = Folder::new();
    folder.write("train.log", batch(1, 12));
    let mut watch = Watch::open(&folder.path("train.log")).unwrap();
    // What was written just before the exchange is not lost.
    folder.append("train.log", batch(2, 8));
    std::fs::rename(folder.path("train.log"), folder.path("train.log.1")).unwrap();
    let gone = next(&mut watch);
    assert_eq!(gone.batch_figures.total_batches, 2);
    assert!(has_note(&gone, "it no longer exists"));
    folder.write("train.log", "a first line\n".to_owned() + &batch(3, 4));
    let rotated = next(&mut watch);
    assert_eq!((rotated.batch_figures.total_batches, rotated.batch_figures.total_kept), (3, Some(24)));
    assert!(has_note(&rotated, "was replaced once"));
    // Emptied in place, and written on.
    folder.write("train.log", "another\n".to_owned() + &batch(1, 0));
    let emptied = next(&mut watch);
    assert_eq!((emptied.batch_figures.total_batches, emptied.batch_figures.total_kept), (4, Some(40)));
}

#[test]
fn a_run_that_is_cut_back_and_amended() {
    let folder = Folder::new();
    folder.write("config.yaml", "train:\n  total_steps: 4\n");
    let mut watch = Watch::open(folder.0.path()).unwrap();
    assert_eq!(watch.summary().state, WatchedState::Unfinished);
    let row = |step: u64, reward: f64| {
        format!(
            "{{\"step\":{step},\"all/critic/score/mean\":{reward},\"timing_s/step\":2.0,\"train/num_gen_batches\":2,\"train/num_kept_prompts\":5,\"train/filter_rate\":0.5,\"groups/dropped\":8}}\n"
        )
    };
    folder.write("metrics.jsonl", row(1, 0.1) + &row(2, 0.2) + &row(3, 0.3));
    folder.write("run.log", "2026-11-26T12:00:00.000Z info Generated batch 1, 8 prompts, 32 trajectories\n");
    let summary = next(&mut watch);
    assert_eq!((summary.step, summary.total_steps, summary.seconds.left), (Some(3), Some(4), Some(2.0)));
    assert_eq!(summary.batch_figures.total_batches, 7, "with that of the step in the making");
    // A resume cuts both back and continues.
    folder.write("metrics.jsonl", row(1, 0.1));
    folder.write("run.log", "");
    assert_eq!(next(&mut watch).step, Some(1));
    folder.write("metrics.jsonl", row(1, 0.1) + &row(2, 0.7));
    let resumed = next(&mut watch);
    assert_eq!(resumed.reward.unwrap().values, [0.1, 0.7]);
    // The last row is written anew, longer than before.
    let longer = row(2, 0.7).replace("}\n", ",\"val-core/a/acc/mean@1\":0.5}\n");
    folder.write("metrics.jsonl", row(1, 0.1) + &longer + &row(3, 0.8) + &row(4, 0.9));
    let done = next(&mut watch);
    assert_eq!((done.reward.unwrap().values, done.state), (vec![0.1, 0.7, 0.8, 0.9], WatchedState::Finished));
    assert_eq!(done.validation.unwrap().last, 0.5);
    assert_eq!((done.batch_figures.total_batches, done.batch_figures.total_kept), (8, Some(20)));
}

#[test]
fn a_run_without_metrics_is_told_by_its_log() {
    let folder = Folder::new();
    folder.write("config.yaml", "train:\n  total_steps: 6\n");
    folder.write(
        "run.log",
        "2026-11-26T12:00:01.000Z info Generated batch 1, 8 prompts, 32 trajectories\n\
         2026-11-26T12:00:01.000Z info Filtered (std=0): 6 (75.00%)\n\
         2026-11-26T12:00:01.000Z info Kept (std>0): 2 prompts\n\
         2026-11-26T12:00:03.000Z info step 1 batch complete: 1 round, 8 prompts generated\n\
         2026-11-26T12:00:04.000Z info step 1/6  reward 0.5  time 4.0s\n",
    );
    let summary = Watch::open(folder.0.path()).unwrap().summary();
    assert_eq!((summary.step, summary.batch_figures.total_kept), (Some(1), Some(2)));
    assert_eq!(summary.reward.unwrap().last, 0.5);
}

/// A row counts what was in flight when it was written; in the log those groups belong to the next step.
#[test]
fn groups_in_flight_are_counted_once_and_a_finished_run_makes_no_step() {
    let folder = Folder::new();
    folder.write("config.yaml", "train:\n  total_steps: 2\n");
    let row = |step: u64| {
        format!(
            "{{\"step\":{step},\"groups/generated\":10,\"groups/dropped\":6,\"train/num_dropped/all_wrong\":6,\"train/num_gen_batches\":1}}\n"
        )
    };
    folder.write("metrics.jsonl", row(1));
    let begun = "2026-11-26T12:00:05.000Z info step 2 round 1: 4 prompts, 16 trajectories; dropped 1 (25.0%): 1 all wrong; kept 3 (75.0%); mean std 0.123; accumulated 3/4\n";
    folder.write("run.log", begun);
    let mut watch = Watch::open(folder.0.path()).unwrap();
    let summary = watch.summary();
    let groups = &summary.groups;
    assert_eq!((groups.generated, groups.dropped, groups.unjudged), (Some(10), Some(6), None));
    assert_eq!(summary.dropped_by["all_wrong"], 6);
    assert_eq!(summary.now.map(|now| (now.step, now.dropped)), Some((Some(2), Some(1))));
    folder.append("metrics.jsonl", row(2));
    let ends = "2026-11-26T12:00:06.000Z info step 3 not trained: the run ends\n";
    folder.append("run.log", begun.replace("step 2", "step 3") + ends);
    let done = next(&mut watch);
    assert_eq!((done.state, done.now, done.groups.generated), (WatchedState::Finished, None, Some(20)));
}

#[test]
fn the_account_adds_up_within_a_step() {
    let folder = Folder::new();
    folder.write("train.log", batch(1, 12));
    let mut watch = Watch::open(&folder.path("train.log")).unwrap();
    let of = |run: &WatchedRun| {
        let groups = &run.groups;
        [groups.generated, groups.dropped, groups.kept, groups.unjudged]
    };
    assert_eq!(of(&watch.summary()), [Some(16), Some(12), Some(4), None]);
    // The second batch is generated, and not judged yet.
    folder.append("train.log", "Generated batch 2, 16 prompts\n");
    let summary = next(&mut watch);
    assert_eq!(of(&summary), [Some(16), Some(12), Some(4), Some(16)]);
    let text = tamis_lab::monitor::text::text(&summary);
    let line = "groups     16 generated, 12 dropped, 4 kept, 16 without a verdict yet\n";
    assert!(text.contains(line), "{text}");
    assert_eq!(summary.batch_figures.total_batches, 2);
    folder.append("train.log", "Filtered (std=0): 8 (50.0%)\nKept (std>0): 8 prompts\n");
    assert_eq!(of(&next(&mut watch)), [Some(32), Some(20), Some(12), None]);
}

#[test]
fn a_validation_before_the_first_step_counts() {
    let line = |step: u64, rest: &str| format!("step:{step} - {rest}\n");
    let text = line(0, "val-core/openai/gsm8k/acc/mean@1:0.700")
        + &line(1, "critic/score/mean:0.500")
        + &line(2, "critic/score/mean:0.400 - val-core/openai/gsm8k/acc/mean@1:0.600");
    let summary = crate::of_log(&text);
    assert_eq!((summary.num_steps, summary.step), (2, Some(2)), "step 0 is none");
    let found = summary.validation.unwrap();
    assert_eq!((found.values, found.most), (vec![0.7, 0.6], 0.7));
    // So in a run directory.
    let run = Folder::new();
    run.write("config.yaml", "train:\n  total_steps: 2\n");
    run.write("metrics.jsonl", "{\"step\":0,\"val-core/a/acc/mean@1\":0.7}\n");
    run.write("run.log", "");
    let mut watch = Watch::open(run.0.path()).unwrap();
    assert_eq!(watch.summary().validation.map(|found| found.first), Some(0.7));
    run.append("metrics.jsonl", "{\"step\":1,\"val-core/a/acc/mean@1\":0.8}\n");
    assert_eq!(next(&mut watch).validation.map(|found| found.values), Some(vec![0.7, 0.8]));
}

#[test]
fn garbage_is_refused_by_name_and_passed_over_within_a_log() {
    let folder = Folder::new();
    let garbage: Vec<u8> =
        (0..60_000u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    folder.write("core", &garbage);
    let watch = Watch::open(&folder.path("core")).unwrap();
    let error = watch.check_understood().unwrap_err();
    assert!(error.to_string().ends_with("is not a log: it has bytes that are not text"), "{error}");
    folder.write("prose.txt", "One line.\nAnother: of words.\n");
    let error = Watch::open(&folder.path("prose.txt")).unwrap().check_understood().unwrap_err();
    assert!(error.to_string().starts_with("none of the 2 lines of"), "{error}");
    let mut mixed = batch(1, 12).into_bytes();
    mixed.extend(&garbage);
    mixed.push(b'\n');
    mixed.extend(vec![b'x'; 3 << 20]);
    mixed.push(b'\n');
    mixed.extend(batch(2, 8).into_bytes());
    folder.write("train.log", mixed);
    let mut watch = Watch::open(&folder.path("train.log")).unwrap();
    watch.check_understood().unwrap();
    assert_eq!(watch.summary().batch_figures.total_kept, Some(12));
}

#[test]
fn numbers_that_nobody_can_mean_do_no_harm() {
    let text = "Generated batch 18446744073709551615, 18446744073709551615 prompts\n\
                Kept (std>0): 18446744073709551615 prompts\n\
                Filtered (std=0): 99999999999999999999 (100.0%)\n\
                [Dynamic Sampling] Step 18446744073709551615, Gen batch 2: Kept 9/3 prompts, Accumulated: 1/0\n\
                num_gen_batches=18446744073709551615. Keep generating...\n\
                step:3 - train/num_gen_batches:1e300 - timing_s/step:1e300\n\
                {\"step\":1e300,\"train/num_kept_prompts\":1e300}\n\
                step:1 -\nstep:1 - \nStep 5\n  a:\n b: 1\nTotal training steps: 18446744073709551615\n";
    let summary = crate::of_log(text);
    assert!(!tamis_lab::monitor::text::text(&summary).is_empty());
    assert!(serde_json::to_string(&summary).is_ok());
}
