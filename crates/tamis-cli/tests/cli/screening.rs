//! Groups that begin with some of their members, and end if these are alike.

use std::collections::BTreeMap;

use tamis_data::records::Records;

use crate::kills::num_kills;
use crate::resume::Undisturbed;
use crate::tamis::{Folder, Replaced as _, TINY};

/// Members by group, with their completions, and the group's verdict.
type Groups = BTreeMap<u64, (String, BTreeMap<u64, String>)>;

fn config(screen: &str) -> String {
    TINY.replaced("max_num_gen_batches: 50", &format!("max_num_gen_batches: 50, mode: streaming{screen}"))
}

fn groups(folder: &Folder, step: u64) -> Groups {
    let mut groups = Groups::new();
    let path = folder.join(&format!("runs/tiny/rollouts/step_{step}.parquet"));
    for row in Records::open(&path).expect("rows") {
        let row = row.expect("a row").values;
        let text = |name: &str| row[name].as_str().expect("a text").to_owned();
        let number = |name: &str| row[name].as_u64().expect("a number");
        let (_, members) =
            groups.entry(number("group_id")).or_insert_with(|| (text("verdict"), BTreeMap::new()));
        assert_eq!(members.insert(number("sample_index"), text("completion")), None);
    }
    groups
}

#[test]
fn only_first_members_of_groups_that_are_alike_are_generated() {
    let plain = Folder::new().with("config.yaml", &config(""));
    plain.tamis(&["train", "config.yaml"]).succeeds();
    let text = config(", screen_first: 2");
    let new = || Folder::new().with("config.yaml", &text);
    let undisturbed = Undisturbed::of(new());
    let folder = &undisturbed.folder;

    let mut num_screened = 0;
    for step in 1..=6 {
        for (group, (verdict, members)) in groups(folder, step) {
            let indices: Vec<u64> = members.keys().copied().collect();
            match verdict.as_str() {
                "screened" => assert_eq!(indices, [0, 1], "group {group}"),
                "aborted" => {}
                _ => assert_eq!(indices, [0, 1, 2, 3], "group {group}, {verdict}"),
            }
            num_screened += u64::from(verdict == "screened");
        }
    }
    assert!(num_screened > 0, "{}", folder.read("runs/tiny/run.log"));
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let counted = metrics.lines().filter_map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).expect("JSON");
        row["train/num_dropped/screened"].as_f64()
    });
    assert_eq!(counted.sum::<f64>() as u64, num_screened);

    // The same weights give the same samples.
    let of_plain = groups(&plain, 1);
    let mut num_compared = 0;
    for (group, (_, members)) in groups(folder, 1) {
        let Some((_, others)) = of_plain.get(&group) else { continue };
        for (index, completion) in members.iter().filter(|(index, _)| others.contains_key(index)) {
            assert_eq!(completion, &others[index], "member {index} of group {group}");
            num_compared += 1;
        }
    }
    assert!(num_compared >= 8, "{num_compared} members of both runs");

    undisturbed.assert_same_through_kills(num_kills(2), new);
}
