//! Advice on what verl prints.

use std::fmt::Write as _;

use super::*;

const CONFIG: &str = "\
(TaskRunner pid=71) {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2}},
(TaskRunner pid=71)  'data': {'custom_cls': {'name': None},
(TaskRunner pid=71)           'gen_batch_size': 96,
(TaskRunner pid=71)           'train_batch_size': 64}}
";

/// Steps of 64 groups from batches of 96 prompts of which a given share is kept, as verl prints them.
fn printed(keep: f64) -> String {
    let key = tamis_core::random::Key::new(4, tamis_core::random::Purpose::Task);
    let mut text = String::new();
    for step in 1..=80_u64 {
        let (mut kept, mut batch) = (0, 0);
        loop {
            batch += 1;
            let key = key.with(step).with(batch);
            kept += (0..96).filter(|prompt| key.uniform(*prompt) < keep).count();
            if kept >= 64 {
                break;
            }
            writeln!(text, "(TaskRunner pid=71) num_prompt_in_batch={kept} < prompt_bsz=64").unwrap();
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

fn refused(text: &str, plan: &Plan) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.log");
    std::fs::write(&path, text).unwrap();
    read(&path, None, None, plan).unwrap_err().hint().unwrap()
}

#[test]
fn the_keep_rate_is_the_likeliest_one() {
    let text = CONFIG.to_owned() + &printed(0.42);
    let found = read_of(&[("train.log", text.clone())], "train.log", &Plan { n: 8, ..Plan::default() });
    let keep = found.keep_rate.unwrap();
    assert!((keep.value - 0.42).abs() < 0.02, "{keep:?}");
    assert!(keep.low.is_some_and(|low| low < 0.42) && keep.high.is_some_and(|high| high > 0.42), "{keep:?}");
    assert_eq!(
        (found.plan.train_batch_size, found.plan.gen_batch_size, found.sample.steps),
        (64, 96, Some((1, 80)))
    );
    assert!(found.to_string().contains("verl prints nothing of the batch that fills a step"), "{found}");
    // The steps that are asked for alone.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.log");
    std::fs::write(&path, text).unwrap();
    let Evidence::Counts(some) = read(&path, Some("5..24".parse().unwrap()), None, &Plan::default()).unwrap()
    else {
        panic!("no counts")
    };
    assert_eq!((some.steps.len(), some.range), (20, Some((5, 24))));
}

#[test]
fn the_size_of_a_batch_may_be_planned() {
    let plan = Plan { gen_batch_size: 96, is_round_known: true, ..Plan::default() };
    let found = read_of(&[("train.log", printed(0.42))], "train.log", &plan);
    assert!((found.keep_rate.unwrap().value - 0.42).abs() < 0.02, "{found}");
}

#[test]
fn what_is_missing_is_said() {
    let plan = |generated| Plan { gen_batch_size: generated, is_round_known: true, ..Plan::default() };
    for (text, plan, why) in [
        (printed(0.42), Plan::default(), "data.gen_batch_size=N"),
        (printed(0.42), plan(0), "data.gen_batch_size=N"),
        (printed(0.42), plan(usize::MAX), "data.gen_batch_size=N"),
        (printed(0.42), plan(16), "cannot be of batches of 16 prompts"),
        (printed(1.0), plan(96), "no step took a second one"),
        (
            CONFIG.to_owned() + "step:1 - critic/score/mean:0.5 - train/num_gen_batches:1\n",
            Plan::default(),
            "no step took",
        ),
    ] {
        let hint = refused(&text, &plan);
        assert!(hint.contains(why) && hint.contains("trainer.rollout_data_dir"), "{hint}");
    }
    // A damaged line costs its step alone.
    let text =
        CONFIG.to_owned() + &printed(0.42).replacen("num_prompt_in_batch=", "num_prompt_in_batch=99999", 1);
    let found = read_of(&[("train.log", text)], "train.log", &Plan::default());
    assert!((found.keep_rate.unwrap().value - 0.42).abs() < 0.02, "{found}");
}
