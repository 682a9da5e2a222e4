//! Batches that are short at the limit on rounds are filled, and the log reports it.
#![expect(clippy::float_cmp, reason = "counts are whole numbers")]

use std::collections::{BTreeMap, BTreeSet};

use tamis_data::records::Records;

use crate::kills::num_kills;
use crate::resume::Undisturbed;
use crate::tamis::{Folder, Replaced as _, TINY};

/// Groups of a batch, and of its one round.
const BATCH: f64 = 16.0;

fn config(on_limit: &str) -> String {
    TINY.replaced("train_batch_size: 4", "train_batch_size: 16")
        .replaced("gen_batch_size: 8", "gen_batch_size: 16")
        .replaced("max_num_gen_batches: 50", &format!("max_num_gen_batches: 1, on_limit: {on_limit}"))
}

fn verdicts(folder: &Folder, step: u64) -> BTreeMap<String, f64> {
    let path = folder.join(&format!("runs/tiny/rollouts/step_{step}.parquet"));
    let (mut verdicts, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for row in Records::open(&path).expect("rows") {
        let row = row.expect("a row").values;
        let id = (row["group_id"].as_u64(), row["sample_index"].as_u64());
        assert!(seen.insert(id), "written twice: {id:?}");
        *verdicts.entry(row["verdict"].as_str().expect("a text").to_owned()).or_default() += 1.0;
    }
    verdicts
}

#[test]
fn copies_fill_batches_and_are_counted() {
    let config = config("duplicate");
    let new = || Folder::new().with("config.yaml", &config);
    let undisturbed = Undisturbed::of(new());
    let folder = &undisturbed.folder;
    let (steps, mut copies) = (folder.numbers("tiny"), 0.0);
    assert_eq!(steps.len(), 6);
    let log = folder.read("runs/tiny/run.log");
    for row in &steps {
        let of = |name: &str| row[name];
        assert_eq!(of("groups/trained") + of("groups/duplicated"), BATCH, "{row:?}");
        assert_eq!(of("groups/trained"), of("train/num_kept_prompts"));
        assert_eq!(of("dynamic_sampling/num_prompts_used"), BATCH);
        assert_eq!(of("trajectories/duplicated"), 4.0 * of("groups/duplicated"));
        assert_eq!(of("groups/generated"), of("groups/trained") + of("groups/dropped"));
        // A full batch has the usual number of updates, of two groups each.
        assert_eq!(of("actor/num_updates"), BATCH / 2.0);
        assert!(!row.contains_key("groups/kept_when_insufficient"));
        let step = of("step") as u64;
        let told = format!("; {} duplicated", of("groups/duplicated"));
        let line =
            log.lines().find(|line| line.contains(&format!("step {step} batch complete"))).expect("a line");
        assert!(line.contains("training on 16 groups, 64 trajectories"), "{line}");
        assert!(of("groups/duplicated") == 0.0 || line.ends_with(&told), "{line}");
        let verdicts = verdicts(folder, step);
        assert_eq!(verdicts["trained"], of("trajectories/trained"));
        assert_eq!(verdicts.values().sum::<f64>(), of("trajectories/generated"));
        copies += of("groups/duplicated");
    }
    assert!(copies > 0.0, "no batch was short: {log}");
    let told = format!("; {copies} times a copy of a trained group was trained on");
    undisturbed.ended.says(&told);
    undisturbed.assert_same_through_kills(num_kills(2), new);
}

#[test]
fn dropped_groups_fill_batches_and_are_counted() {
    let folder = Folder::new().with("config.yaml", &config("keep_dropped"));
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let log = folder.read("runs/tiny/run.log");
    let (steps, mut filled) = (folder.numbers("tiny"), 0.0);
    assert_eq!(steps.len(), 6);
    for row in &steps {
        let of = |name: &str| row[name];
        // A round of the size of a batch is trained on whole, whatever the filter's verdicts, unless no group
        // was kept.
        assert_eq!(of("groups/trained") + of("groups/kept_when_insufficient"), BATCH, "{row:?}");
        assert_eq!(of("groups/dropped"), BATCH * of("dynamic_sampling/num_given_up_attempts"));
        let not_kept = of("groups/kept_when_insufficient") + of("groups/dropped");
        assert_eq!(of("groups/trained"), of("train/num_kept_prompts"));
        let reasons = row.iter().filter(|(name, _)| name.starts_with("train/num_dropped/"));
        assert_eq!(reasons.map(|(_, number)| number).sum::<f64>(), not_kept);
        assert_eq!(of("train/filter_rate"), not_kept / of("groups/generated"));
        let verdicts = verdicts(&folder, of("step") as u64);
        let count = |verdict: &str| verdicts.get(verdict).copied().unwrap_or(0.0);
        assert_eq!(count("trained"), of("trajectories/trained"));
        assert_eq!(count("kept_when_insufficient"), of("trajectories/kept_when_insufficient"));
        filled += of("groups/kept_when_insufficient");
    }
    assert!(filled > 0.0, "no batch was short: {log}");
    assert!(log.contains(" kept when insufficient"), "{log}");
    assert!(!log.contains("the filter kept groups whose members all have the same reward"), "{log}");
}
