//! Advice from verl's output.

use std::fmt::Write as _;

use super::*;

const CONFIG: &str = "\
(TaskRunner pid=71) {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2}},
(TaskRunner pid=71)  'data': {'custom_cls': {'name': None},
(TaskRunner pid=71)           'gen_batch_size': 96,
(TaskRunner pid=71)           'train_batch_size': 64}}
";

/// Steps of 64 groups from batches of 96 prompts with a given keep rate, as verl prints them.
fn printed(keep: f64) -> String {
    printed_of(keep, 64, 1..=80)
}

fn printed_of(keep: f64, target: usize, steps: std::ops::RangeInclusive<u64>) -> String {
    let key = tamis_core::random::Key::new(4, tamis_core::random::Purpose::Task);
    let mut text = String::new();
    for step in steps {
        let (mut kept, mut batch) = (0, 0);
        loop {
            batch += 1;
            let key = key.with(step).with(batch);
            kept += (0..96).filter(|prompt| key.uniform(*prompt) < keep).count();
            if kept >= target {
                break;
            }
            writeln!(text, "(TaskRunner pid=71) num_prompt_in_batch={kept} < prompt_bsz={target}").unwrap();
            writeln!(text, "(TaskRunner pid=71) num_gen_batches={batch}. Keep generating...").unwrap();
        }
        writeln!(
            text,
            "(TaskRunner pid=71) step:{step} - critic/score/mean:0.4 - train/num_gen_batches:{batch} - timing_s/step:9.0"
        )
        .unwrap();
    }
    text
}

/// The advice of a log of this text.
fn of_log(text: impl Into<String>, plan: &AdvicePlan) -> Advice {
    read_of(&[("train.log", text.into())], "train.log", plan)
}

fn refused(text: &str, plan: &AdvicePlan) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.log");
    std::fs::write(&path, text).unwrap();
    read(&path, None, None, plan).unwrap_err().hint().unwrap()
}

#[test]
fn the_keep_rate_is_the_likeliest_one() {
    let text = CONFIG.to_owned() + &printed(0.42);
    let found = of_log(text.as_str(), &of_n(8));
    let keep = found.keep_rate.unwrap();
    assert!((keep.value - 0.42).abs() < 0.04, "{keep:?}");
    assert!(keep.low.is_some_and(|low| low < 0.42) && keep.high.is_some_and(|high| high > 0.42), "{keep:?}");
    assert_eq!((found.plan.train_batch_size, found.plan.gen_batch_size), (64, 96));
    assert_eq!(found.sample.steps.unwrap().1, 80);
    assert!(found.to_string().contains("verl prints nothing about the batch that fills a step"), "{found}");
    // Only the requested steps.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.log");
    std::fs::write(&path, text).unwrap();
    let Evidence::Counts(some) =
        read(&path, Some("5..24".parse().unwrap()), None, &AdvicePlan::default()).unwrap()
    else {
        panic!("no counts")
    };
    assert_eq!((some.steps.len(), some.range), (20, Some((5, 24))));
}

#[test]
fn the_size_of_a_batch_may_be_planned() {
    let plan = AdvicePlan { gen_batch_size: 96, is_round_known: true, ..AdvicePlan::default() };
    let found = of_log(printed(0.42), &plan);
    assert!((found.keep_rate.unwrap().value - 0.42).abs() < 0.04, "{found}");
}

#[test]
fn what_is_missing_is_said() {
    let plan =
        |generated| AdvicePlan { gen_batch_size: generated, is_round_known: true, ..AdvicePlan::default() };
    let of_steps = |line: &&str| line.contains("step:");
    let steps: String = printed(0.42).lines().filter(of_steps).flat_map(|line| [line, "\n"]).collect();
    let unfiltered = CONFIG.to_owned() + "step:1 - critic/score/mean:0.5 - train/num_gen_batches:1\n";
    for (text, plan, why) in [
        (printed(0.42), AdvicePlan::default(), "data.gen_batch_size=N"),
        (printed(0.42), plan(0), "data.gen_batch_size=N"),
        (printed(0.42), plan(usize::MAX), "data.gen_batch_size=N"),
        (printed(0.42), plan(16), "does not fit batches of 16 prompts"),
        (printed(1.0), plan(96), "no step took a second one"),
        (steps, plan(96), "their lines"),
        (unfiltered, AdvicePlan::default(), "no step took"),
    ] {
        let hint = refused(&text, &plan);
        assert!(hint.contains(why) && hint.contains("trainer.rollout_data_dir"), "{hint}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.log");
    std::fs::write(&path, CONFIG.to_owned() + &printed(0.42)).unwrap();
    let other = read(&path, Some("1000..2000".parse().unwrap()), None, &AdvicePlan::default()).unwrap_err();
    assert!(other.hint().unwrap().starts_with("steps 1 to 80 are there"), "{other}");
}

/// A line with a damaged number costs only its step, and the advice reports it.
#[test]
fn damaged_lines_cost_their_steps() {
    for (of, damaged) in [
        ("num_prompt_in_batch=", "num_prompt_in_batch=99999"),
        ("prompt_bsz=64", "prompt_bsz=18446744073709551615"),
        ("prompt_bsz=64", "prompt_bsz=640"),
        ("train/num_gen_batches:", "train/num_gen_batches:99999999999"),
    ] {
        let text = printed(0.42);
        // In one of the last steps.
        let at = text.rfind("step:76 ").unwrap();
        let at = if of.starts_with("train") { at } else { text[..at].rfind(of).unwrap() };
        let text = CONFIG.to_owned() + &text[..at] + &text[at..].replacen(of, damaged, 1);
        let found = of_log(text, &AdvicePlan::default());
        assert!((found.keep_rate.unwrap().value - 0.42).abs() < 0.05, "{damaged}: {found}");
    }
    let lost = (CONFIG.to_owned() + &printed(0.3)).replacen("num_prompt_in_batch=", "lost", 40);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.log"), lost).unwrap();
    let all = Some("1..80".parse().unwrap());
    let some = read(&folder.path().join("train.log"), all, None, &AdvicePlan::default()).unwrap();
    let found = advise("train.log", &some, &AdvicePlan::default()).to_string();
    assert!(found.contains("the lines of") && found.contains("are missing"), "{found}");
}

/// Only the last steps, with their own batch sizes.
#[test]
fn a_run_that_changed_is_read_from_its_end() {
    let falls = (0..8).map(|part| printed_of(0.8 - 0.06 * part as f64, 64, part * 10 + 1..=part * 10 + 10));
    let text = CONFIG.to_owned() + &falls.collect::<String>();
    let found = of_log(text, &AdvicePlan::default());
    assert!((found.keep_rate.unwrap().value - 0.38).abs() < 0.04, "{found}");
    assert!(found.sample.groups < 1024 + 4 * 96, "{found}");
    // The run resumed with twice the batch, and the end of the log quotes another size.
    let text = CONFIG.to_owned() + &printed_of(0.42, 32, 1..=40) + CONFIG + &printed_of(0.42, 64, 41..=80);
    let found = of_log(text.clone(), &AdvicePlan::default());
    assert!(
        (found.keep_rate.unwrap().value - 0.42).abs() < 0.04 && found.plan.train_batch_size == 64,
        "{found}"
    );
    let quoted = text + "(TaskRunner pid=71) {'gen_batch_size': 512}\n";
    assert_eq!(of_log(quoted, &AdvicePlan::default()).keep_rate, found.keep_rate);
}

/// If another process generates a step again, what the first process gathered does not count.
#[test]
fn attempts_that_died_are_not_counted() {
    let whole = CONFIG.to_owned() + &printed(0.42);
    let expected = of_log(whole.clone(), &AdvicePlan::default()).keep_rate;
    let attempt = "num_prompt_in_batch=63 < prompt_bsz=64\nnum_gen_batches=1. Keep generating...\n";
    let low = attempt.replace("=63", "=1");
    let first = whole.rfind("(TaskRunner pid=71) step:79 ").unwrap();
    let first = first + whole[first..].find('\n').unwrap() + 1;
    assert!(whole[first..].contains("num_prompt_in_batch"), "a step of one batch shows nothing");
    for died in [attempt.to_owned(), attempt.to_owned() + CONFIG, low.clone(), low + CONFIG] {
        let text = whole[..first].to_owned() + &died + &whole[first..];
        let found = of_log(text, &AdvicePlan::default()).keep_rate;
        assert_eq!(found, expected, "{died}");
    }
}

/// verl's default trainer prints the groups that its buffer dropped, in its log and in rows of a file.
#[test]
fn the_counts_of_the_default_trainer_are_read() {
    let config = "(TaskRunner pid=7)  'data': {'gen_batch_size': 1, 'train_batch_size': 64}\n";
    let key = tamis_core::random::Key::new(9, tamis_core::random::Purpose::Task);
    let (mut log, mut rows) = (String::new(), String::new());
    for step in 1..=40 {
        let of_step = key.with(step);
        let (mut kept, mut dropped) = (0, 0);
        while kept < 72 {
            let is_kept = of_step.uniform(kept + dropped) < 0.38;
            kept += u64::from(is_kept);
            dropped += u64::from(!is_kept);
        }
        let counts = [
            ("training/filter_groups/evicted_samples", dropped),
            ("training/filter_groups/discarded_surplus_samples", 8),
        ];
        let printed = counts.map(|(name, count)| format!(" - {name}:{count}")).concat();
        let line = format!("step:{step} - critic/rewards/mean:0.4{printed} - timing_s/step:9.0");
        writeln!(log, "(TaskRunner pid=7) {line}").unwrap();
        let named = counts.map(|(name, count)| format!("\"{name}\":{count}")).join(",");
        let data = format!("{{\"training/global_step\":{step},{named}}}");
        writeln!(rows, "{{\"step\":{step},\"data\":{data}}}").unwrap();
    }
    let is_found = |found: &Advice| {
        let keep = found.keep_rate.unwrap();
        assert!((keep.value - 0.38).abs() < 0.03, "{keep:?}\n{found}");
    };
    let found = of_log(config.to_owned() + &log, &of_n(8));
    is_found(&found);
    assert_eq!(found.plan.train_batch_size, 64);
    let plan = AdvicePlan { n: 8, is_batch_known: true, ..AdvicePlan::default() };
    is_found(&of_log(log.clone(), &plan));
    is_found(&read_of(&[("gsm8k.jsonl", rows.clone())], "gsm8k.jsonl", &plan));
    // Without the configuration the user must give the batch size.
    let hint = refused(&log, &AdvicePlan::default());
    assert!(hint.contains("data.train_batch_size=N"), "{hint}");
}
