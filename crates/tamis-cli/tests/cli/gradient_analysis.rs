//! `train.gradient_analysis`: it measures, and changes nothing.

#![expect(clippy::float_cmp, reason = "counts and exact zeros are compared exactly")]

use crate::tamis::{Folder, Replaced as _, TINY};

type Row = serde_json::Value;

/// Trains the tiny task in one update a step, with further keys of `train`. Returns the last weights and the
/// steps' metrics.
fn run(analysis: &str, rest: &str) -> (Vec<u8>, Vec<Row>) {
    let config = TINY
        .replaced("total_steps: 6", &format!("total_steps: 4\n  {analysis}"))
        .replaced("ppo_mini_batch_size: 2", "ppo_mini_batch_size: 4");
    let folder = Folder::new().with("config.yaml", &format!("{config}{rest}"));
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let rows = folder.rows("tiny").into_iter().filter(|row| row.get("loss").is_some());
    (folder.weights("tiny", 4), rows.collect())
}

fn number(row: &Row, name: &str) -> f64 {
    row.get(name).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{name}: {row:?}"))
}

#[test]
fn it_measures_every_so_many_steps_and_changes_nothing() {
    let (plain, rows) = run("", "");
    let is_analysed = |row: &Row| row.as_object().unwrap().keys().any(|name| name.starts_with("grad_norm/"));
    assert!(!rows.iter().any(is_analysed));
    let (analysed, analysed_rows) = run("gradient_analysis: {every: 2, buckets: 2}", "");
    assert_eq!(plain, analysed, "the weights are the same to the last bit");
    let mut num_measured = 0;
    for (row, analysed) in rows.iter().zip(&analysed_rows) {
        let is_measured = number(row, "step") as u64 % 2 == 1;
        assert_eq!(analysed.get("grad_norm/all/task").is_some(), is_measured, "{analysed:?}");
        if !is_measured {
            continue;
        }
        num_measured += 1;
        // One update a step, and no other term in the loss: it is that update's own gradient.
        assert_eq!(analysed["grad_norm/all/task"], row["actor/grad_norm"]);
        let others = ["grad_norm/all/kl", "grad_norm/all/entropy"];
        assert!(others.iter().all(|name| analysed.get(name).is_none()), "{analysed:?}");
        let [low, high] = ["grad_norm/bucket_0", "grad_norm/bucket_1"];
        for bucket in [low, high] {
            assert_eq!(number(analysed, &format!("{bucket}/num_groups")), 2.0);
            assert!(number(analysed, &format!("{bucket}/task")) > 0.0);
        }
        let deviation = |bucket: &str, end: &str| number(analysed, &format!("{bucket}/reward_std_{end}"));
        assert!(deviation(low, "max") <= deviation(high, "min") && deviation(low, "min") > 0.0);
    }
    assert_eq!(num_measured, 2);
}

#[test]
fn terms_are_measured_apart_and_groups_without_deviation_teach_nothing() {
    // Without a filter, uniform groups are in the batch, in a bucket of their own.
    let rest = "objective: {kl: {in: loss, coefficient: 0.1}, entropy: {coefficient: 0.01}}\n";
    let config = "gradient_analysis: {every: 1, edges: [0.0, 1e-9]}";
    let folder_of = |text: &str| text.replaced("filter: {kind: variance}\n", "");
    let config = folder_of(&TINY.replaced("total_steps: 6", &format!("total_steps: 3\n  {config}")));
    let folder = Folder::new().with("config.yaml", &format!("{config}{rest}"));
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let rows = folder.rows("tiny");
    let mut num_uniform = 0;
    for row in rows.iter().filter(|row| row.get("loss").is_some()) {
        for part in ["task", "kl", "entropy"] {
            assert!(number(row, &format!("grad_norm/all/{part}")).is_finite(), "{part}: {row:?}");
        }
        assert!(number(row, "grad_norm/all/entropy") > 0.0);
        if row.get("grad_norm/bucket_0/num_groups").is_some() {
            num_uniform += 1;
            assert_eq!(number(row, "grad_norm/bucket_0/task"), 0.0, "{row:?}");
            assert_eq!(number(row, "grad_norm/bucket_0/reward_std_max"), 0.0, "{row:?}");
            assert!(number(row, "grad_norm/bucket_0/entropy") > 0.0, "{row:?}");
        }
    }
    assert!(num_uniform > 0, "no step had a uniform group: {rows:?}");
}
