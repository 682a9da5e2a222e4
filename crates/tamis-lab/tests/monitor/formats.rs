//! What each system prints, and what is made of it.

use tamis_lab::monitor::LogFormat;
use tamis_lab::monitor::summary::WatchedState;
use tamis_lab::monitor::text::text as text_of;

use crate::{batches_of, of_log, told};

const PLAIN: &str = "\
INFO: Generated batch 1, 16 prompts, 64 trajectories
INFO: Filtered: 12 prompts with std=0 (75.0%)
INFO: Kept: 4 prompts with std>0
INFO: num_prompt_in_batch=4 < prompt_bsz=8
INFO: num_gen_batches=1. Keep generating...

INFO: Generated batch 2, 16 prompts, 64 trajectories
INFO: Filtered: 8 prompts with std=0 (50.0%)
INFO: Kept: 8 prompts with std>0
INFO: Accumulated: 12 prompts
INFO: num_prompt_in_batch=12 >= prompt_bsz=8
INFO: Starting training iteration...
INFO: Generated batch 1, 16 prompts, 64 trajectories
INFO: Filtered: 4 prompts with std=0 (25.0%)
INFO: Kept: 12 prompts with std>0
";

const STAMPED: &str = "\
[2024-02-28 23:59:00] INFO: Generated batch 1, 16 prompts
[2024-02-28 23:59:01] INFO: Filter statistics:
  - Total prompts: 16
  - Filtered (std=0): 12 (75.0%)
  - Kept (std>0): 4 (25.0%)
  - Mean std: 0.246
[2024-02-28 23:59:01] INFO: Accumulated prompts: 4 / 8
[2024-02-28 23:59:01] INFO: num_gen_batches=1. Continue generating...
[2024-02-28 23:59:30] INFO: Generated batch 2, 16 prompts
[2024-02-28 23:59:31] INFO: Filtered (std=0): 8 (50.0%)
[2024-02-28 23:59:31] INFO: Kept (std>0): 8 (50.0%)
[2024-02-28 23:59:31] INFO: Accumulated prompts: 12 / 8 ✓
[2024-02-28 23:59:31] INFO: Enough data collected. Taking first 32 trajectories.
[2024-02-28 23:59:32] INFO: train/num_gen_batches: 2
[2024-02-28 23:59:32] INFO: Starting training iteration...
[2024-02-29 00:00:30] INFO: Generated batch 1, 16 prompts
[2024-02-29 00:00:31] INFO: Filtered (std=0): 4 (25.0%)
[2024-02-29 00:00:31] INFO: Kept (std>0): 12 (75.0%)
[2024-02-29 00:00:31] INFO: Accumulated prompts: 12 / 8 ✓
[2024-02-29 00:00:32] INFO: Starting training iteration...
[2024-02-29 00:01:32] INFO: Generated batch 1, 16 prompts
";

#[test]
fn the_lines_of_the_guide_without_time_and_with() {
    let plain = of_log(PLAIN);
    assert_eq!(batches_of(&plain), told(3, "50.00", 24, "8.0"));
    assert_eq!((plain.groups.generated, plain.groups.dropped), (Some(48), Some(24)));
    let now = plain.now.unwrap();
    assert_eq!((plain.num_steps, now.batches, now.is_training), (1, 1, false));
    let stamped = of_log(STAMPED);
    let batches = (stamped.batch_figures.total_batches, stamped.batch_figures.total_kept, stamped.num_steps);
    assert_eq!(batches, (4, Some(24), 2));
    let rate = stamped.batch_figures.average_filter_rate;
    assert_eq!(rate, Some(0.5), "a batch without verdicts is none of it");
    assert_eq!(stamped.seconds.last, Some(60.0), "from the end of one step to that of the next");
    assert_eq!(stamped.now.unwrap().batches, 1);
}

#[test]
fn dynamic_sampling() {
    let line = |step, batch, kept, sum| {
        format!(
            "[Dynamic Sampling] Step {step}, Gen batch {batch}: Kept {kept}/16 prompts (filtered {} trajectories), \
             Accumulated: {sum}/8\n",
            (16 - kept) * 4
        )
    };
    let text = line(41, 1, 2, 2)
        + "[Dynamic Sampling] Need more prompts, fetching next batch...\n"
        + &line(41, 2, 10, 12)
        + "[Dynamic Sampling] Accumulated enough prompts, proceeding with 32 trajectories\n"
        + &line(42, 1, 4, 4);
    let summary = of_log(text);
    assert_eq!(batches_of(&summary), told(3, "66.67", 16, "5.3"));
    assert_eq!((summary.step, summary.formats), (Some(41), vec![LogFormat::DynamicSampling]));
    let now = summary.now.unwrap();
    assert_eq!((now.step, now.ready, now.target), (Some(42), Some(4), Some(8)));
}

#[test]
fn what_verl_prints() {
    let text = "\
\u{1b}[36m(TaskRunner pid=71)\u{1b}[0m Total training steps: 435
\u{1b}[36m(TaskRunner pid=71)\u{1b}[0m step:0 - val-core/math/acc/mean@1:0.25
(TaskRunner pid=71) num_prompt_in_batch=5 < prompt_bsz=8
(TaskRunner pid=71) num_gen_batches=1. Keep generating...
(WorkerDict pid=99) something else: entirely
(TaskRunner pid=71) step:1 - global_seqlen/min:12 - critic/score/mean:np.float64(0.5) - critic/rewards/mean:-0.5 - train/num_gen_batches:2 - timing_s/step:10.0 - actor/pg_loss:nan
Training Progress:   0%|          | 1/435 [00:10<1:12:20, 10.00s/it]\rTraining Progress:   1%|          | 2/435 [00:20<1:12:10, 10.00s/it]
(TaskRunner pid=71) step:2 - critic/score/mean:0.75 - train/num_gen_batches:1 - timing_s/step:20.0 - val-core/math/acc/mean@1:0.5
(TaskRunner pid=71) num_prompt_in_batch=3 < prompt_bsz=8
";
    let summary = of_log(text);
    assert_eq!((summary.step, summary.total_steps, summary.num_steps), (Some(2), Some(435), 2));
    let figures = &summary.batch_figures;
    assert_eq!((figures.total_batches, figures.average_filter_rate, figures.is_kept_least), (4, None, true));
    let reward = summary.reward.as_ref().unwrap();
    assert_eq!((&reward.values[..], reward.over), (&[0.5, 0.75][..], "trained batch"));
    assert_eq!(summary.validation.as_ref().unwrap().last, 0.5);
    assert_eq!((summary.seconds.per_step, summary.seconds.left), (Some(15.0), Some(433.0 * 15.0)));
    let now = summary.now.unwrap();
    assert_eq!((now.step, now.batches, now.ready, now.target), (Some(3), 1, Some(3), Some(8)));
    assert!(text_of(&summary).contains("verl prints no verdicts"), "{}", text_of(&summary));
    let error = "(TaskRunner pid=71) Traceback (most recent call last):\n\
        ValueError: num_gen_batches=15 >= max_num_gen_batches=15. Generated too many.\n";
    let ended = of_log(text.to_owned() + error);
    assert_eq!(ended.state, WatchedState::Failed);
    assert!(ended.error.unwrap().starts_with("ValueError: num_gen_batches=15"));
}

/// verl's default trainer counts what its buffer dropped and threw away, and leaves out a count that is 0.
#[test]
fn what_verl_s_default_trainer_counts() {
    let config = "(TaskRunner pid=7)  'data': {'gen_batch_size': 1, 'train_batch_size': 16}\n";
    let steps = "\
(TaskRunner pid=7) step:0 - val-core/math/acc/mean@1:0.25
(TaskRunner pid=7) step:1 - critic/rewards/mean:0.5 - training/global_step:1 - timing_s/step:10.0
(TaskRunner pid=7) step:2 - critic/rewards/mean:0.5 - training/filter_groups/evicted_samples:24 - training/filter_groups/discarded_surplus_samples:4 - timing_s/step:10.0
(TaskRunner pid=7) step:3 - critic/rewards/mean:0.5 - training/filter_groups/evicted_samples:16 - training/rollout_failure/evicted_samples:1 - timing_s/step:10.0
";
    let summary = of_log(config.to_owned() + steps);
    let groups = summary.groups;
    assert_eq!((groups.trained, groups.dropped, groups.surplus), (Some(48), Some(40), Some(4)));
    assert_eq!((groups.generated, groups.failed, groups.stale), (Some(93), Some(1), Some(0)));
    // 0 of 16, 24 of 44, 16 of 32.
    let rate = summary.batch_figures.average_filter_rate.unwrap();
    assert!((rate - (24.0 / 44.0 + 0.5) / 3.0).abs() < 1e-12, "{rate}");
    assert_eq!((summary.batch_figures.total_kept, summary.batch_figures.is_kept_least), (Some(52), false));
    let of_steps: Vec<_> = summary.history.iter().map(|step| (step.kept, step.dropped)).collect();
    assert_eq!(of_steps, [(Some(16), Some(0)), (Some(20), Some(24)), (Some(16), Some(16))]);
    let shown = text_of(&summary);
    let line = "groups     93 generated, 40 dropped, 52 kept, 48 trained, 4 surplus, 1 failed\n";
    assert!(shown.contains(line) && !shown.contains("no verdicts"), "{shown}");
    // Its rows in a file have no configuration beside them.
    let rows = "{\"step\":1,\"data\":{\"training/global_step\":1,\"training/filter_groups/evicted_samples\":24,\"training/off_policy/evicted_samples\":2}}\n";
    let summary = of_log(rows);
    let shown = text_of(&summary);
    assert!(shown.contains("groups     24 dropped, 2 stale\n"), "{shown}");
    assert!(shown.contains("what was kept is not known"), "{shown}");
}

#[test]
fn what_easyr1_prints() {
    let text = "\
(Runner pid=8) Start generating batch...
(Runner pid=8) current_batch_size=5 < rollout_batch_size=8
(Runner pid=8) num_try_make_batch=1. Continue generating...
(Runner pid=8) current_batch_size=11 >= rollout_batch_size=8. Finish generating.
(Runner pid=8) Step 1
(Runner pid=8) actor:
(Runner pid=8)   entropy_loss: 0.2
(Runner pid=9) Loading weights
(Runner pid=8)   grad_norm: 1.5
(Runner pid=8) critic:
(Runner pid=8)   score:
(Runner pid=8)     max: 1.0
(Runner pid=8)     mean: 0.625
(Runner pid=8) reward:
(Runner pid=8)   accuracy: 0.25
(Runner pid=8)   overall: 0.375
(Runner pid=8) timing_s:
(Runner pid=8)   step: 12.5
(Runner pid=8)
Running step:  10%|█         | 1/10 [00:12<01:52, 12.50s/it]
(Runner pid=8) Start generating batch...
(Runner pid=8) current_batch_size=8 >= rollout_batch_size=8. Finish generating.
";
    let summary = of_log(text);
    assert_eq!((summary.step, summary.total_steps, summary.num_steps), (Some(1), Some(10), 1));
    assert_eq!(batches_of(&summary), (3, None, Some(19), Some("6.3".to_owned())));
    assert_eq!(summary.reward.as_ref().unwrap().last, 0.625);
    assert_eq!(summary.pass_rate.as_ref().unwrap().last, 0.25);
    assert_eq!((summary.figures["actor/grad_norm"], summary.seconds.last), (1.5, Some(12.5)));
    let now = summary.now.unwrap();
    assert_eq!((now.step, now.batches, now.is_training), (Some(2), 1, true));
    assert_eq!(summary.formats, [LogFormat::Easyr1]);
}

#[test]
fn rows_of_metrics_of_anyone() {
    let text = "{\"step\":1,\"data\":{\"critic/score/mean\":0.5,\"train/num_gen_batches\":2}}\n\
                {\"step\":2,\"critic\":{\"score\":{\"mean\":0.75}},\"train/num_gen_batches\":1}\n\
                {\"step\":3,\"critic/score/mean\":\"Infinity\",\"train/num_gen_batches\":1}\n";
    let summary = of_log(text);
    assert_eq!((summary.step, summary.batch_figures.total_batches), (Some(3), 4));
    assert_eq!(summary.reward.unwrap().values, [0.5, 0.75], "what is not finite is no point of a line");
}

const RUN_LOG: &str = "\
2026-11-26T12:00:00.000Z info filter on: variance keeps groups with max > min of acc
2026-11-26T12:00:01.000Z info Generated batch 1, 8 prompts, 32 trajectories
2026-11-26T12:00:01.000Z info Filtered (std=0): 6 (75.00%)
2026-11-26T12:00:01.000Z info Kept (std>0): 2 prompts
2026-11-26T12:00:01.000Z info step 1 round 1: 8 prompts, 32 trajectories; dropped 6 (75.0%): 2 all correct, 4 all wrong; kept 2 (25.0%); mean std 0.123; accumulated 2/4
2026-11-26T12:00:02.000Z info Generated batch 2, 8 prompts, 32 trajectories
2026-11-26T12:00:02.000Z info Filtered (std=0): 4 (50.00%)
2026-11-26T12:00:02.000Z info Kept (std>0): 4 prompts
2026-11-26T12:00:02.000Z info step 1 round 2: 8 prompts, 32 trajectories; dropped 4 (50.0%): 4 all wrong; kept 4 (50.0%); mean std 0.123; accumulated 6/4
2026-11-26T12:00:03.000Z info step 1 batch complete: 2 rounds, 16 prompts generated, 6 kept (37.5%); training on 4 groups, 16 trajectories, 70 tokens; 2 surplus
2026-11-26T12:00:04.000Z info step 1/6  reward 0.435 (std 0.496)  of all generated: reward 0.307, accuracy 30.7%  rounds 2  dropped 62.5%  length 3.502  grad 1.749  lr 1.0e-6  time 4.0s (generation 2.0s at 850 tok/s)
2026-11-26T12:00:05.000Z info Generated batch 1, 8 prompts, 32 trajectories
2026-11-26T12:00:05.000Z info Filtered (std=0): 8 (100.00%)
2026-11-26T12:00:05.000Z info Kept (std>0): 0 prompts
2026-11-26T12:00:05.000Z info step 2 round 1: 8 prompts, 32 trajectories; dropped 8 (100.0%): 8 all wrong; kept 0 (0.0%); mean std 0.000; accumulated 0/4
2026-11-26T12:00:05.000Z warning step 2 is skipped (the limit on rounds was reached) and tried again
2026-11-26T12:00:06.000Z info Generated batch 1, 8 prompts, 32 trajectories
2026-11-26T12:00:06.000Z info Filtered (std=0): 3 (37.50%)
2026-11-26T12:00:06.000Z info Kept (std>0): 5 prompts
2026-11-26T12:00:06.000Z info step 2 round 1: 8 prompts, 32 trajectories; dropped 3 (37.5%): 3 all wrong; kept 5 (62.5%); mean std 0.123; accumulated 5/4
";

#[test]
fn the_log_of_a_run() {
    let summary = of_log(RUN_LOG);
    assert_eq!(batches_of(&summary), told(4, "65.62", 11, "2.8"));
    assert_eq!((summary.step, summary.total_steps), (Some(1), Some(6)));
    let dropped: Vec<_> = summary.dropped_by.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(dropped, [("all_correct", 2), ("all_wrong", 19)]);
    assert_eq!(summary.reward.as_ref().unwrap().last, 0.307);
    assert_eq!(summary.pass_rate.as_ref().unwrap().last, 0.307);
    assert_eq!((summary.seconds.last, summary.figures["actor/grad_norm"]), (Some(4.0), 1.749));
    let now = summary.now.unwrap();
    assert_eq!((now.step, now.batches, now.ready, now.target), (Some(2), 2, Some(5), Some(4)));
    assert_eq!(summary.warnings.len(), 1);
    // Without verl's filter-group log lines, as earlier versions wrote it, the same is known.
    let is_older = |line: &&str| {
        !["info Generated", "info Filtered", "info Kept"].iter().any(|said| line.contains(said))
    };
    let without: String = RUN_LOG.lines().filter(is_older).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(batches_of(&of_log(without)), batches_of(&summary));
    let error = "2026-11-26T12:00:07.000Z error the run ends with an error: x\n\
        2026-11-26T12:00:07.000Z error   caused by: y\n";
    let failed = of_log(RUN_LOG.to_owned() + error);
    assert_eq!(failed.state, WatchedState::Failed);
    assert_eq!(failed.error.as_deref(), Some("the run ends with an error: x\ncaused by: y"));
}

#[test]
fn a_summary_as_text() {
    let mut summary = of_log(RUN_LOG);
    (summary.path, summary.written_ago) = ("run.log".to_owned(), Some(3.0));
    insta::assert_snapshot!(text_of(&summary));
}

/// Counts that no batch has are left out of every figure, and that is said.
#[test]
fn counts_that_cannot_be() {
    let damaged = of_log(
        "Generated batch 1, 10 prompts\nFiltered (std=0): 15 (150%)\nKept (std>0): 18446744073709551615 (39.5%)\n",
    );
    assert_eq!(batches_of(&damaged), (1, None, None, None));
    assert_eq!((damaged.groups.generated, damaged.groups.dropped), (Some(10), None));
    let are_left_out = |note: &String| note.starts_with("the counts of 1 batch are left out");
    assert!(damaged.notes.iter().any(are_left_out), "{:?}", damaged.notes);
}

/// Thousands may be separated by commas, and a number that is too large is ignored.
#[test]
fn counts_as_people_write_them() {
    let text = "Generated batch 1, 1,024 prompts, 8,192 trajectories\nFiltered: 600 prompts with std=0 (58.6%)\nKept: 424 prompts with std>0\n";
    let summary = of_log(text);
    assert_eq!(batches_of(&summary), told(1, "58.60", 424, "424.0"));
    assert_eq!(summary.groups.generated, Some(1024));
    let damaged = of_log(text.replace("1,024", "99999999999999999999999"));
    assert_eq!((batches_of(&damaged), damaged.groups.generated), ((1, None, None, None), None));
    assert!(damaged.notes.iter().any(|note| note.starts_with("the counts of 1 batch are left out")));
}

/// A run that has diverged shows no other figure as its last without a word.
#[test]
fn what_is_not_finite_is_said() {
    let of = |score: &str, norm: &str| {
        format!(
            "step:1 - critic/score/mean:0.5 - actor/grad_norm:1.0\nstep:2 - critic/score/mean:{score} - actor/grad_norm:{norm}\n"
        )
    };
    assert_eq!(of_log(of("0.25", "2.0")).notes.iter().filter(|note| note.contains("finite")).count(), 0);
    let said =
        |score, norm| of_log(of(score, norm)).notes.into_iter().find(|note| note.contains("finite")).unwrap();
    assert_eq!(said("nan", "1.0"), "critic/score/mean is not a finite number once (first in step 2)");
    assert_eq!(
        said("nan", "1e309"),
        "actor/grad_norm is not a finite number once (first in step 2), nor is another metric"
    );
}

/// A row with Python's spelling of NaN or an infinity is not left out.
#[test]
fn rows_with_words_of_python() {
    let row = "{\"step\":1,\"critic/score/mean\":NaN,\"train/num_gen_batches\":3}\n";
    let summary = of_log(row);
    assert_eq!((summary.step, summary.batch_figures.total_batches, summary.reward), (Some(1), 3, None));
    assert_eq!(summary.notes, ["critic/score/mean is not a finite number once (first in step 1)"]);
}
