use tamis_core::group::{FinishReason, Group, GroupId, PolicyVersion, PromptId, Score, Trajectory};

use super::*;
use crate::rollouts::{RolloutRow, write_rollouts_to};

/// A file of five trajectories with 0 to 4 tokens, the second of which has no reward.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let member = |number: u32| Trajectory {
        episode: None,
        sample_index: number,
        text: format!("text {number}"),
        token_ids: (0..number).collect(),
        logprobs: (0..number).map(|token| -(token as f32)).collect(),
        entropy: None,
        loss_mask: (0..number).map(|token| token % 2 == 0).collect(),
        finish_reason: FinishReason::Stop,
        versions: (PolicyVersion(3), PolicyVersion(3)),
        scores: [("acc".to_owned(), Score::of(f64::from(number)))].into(),
        reward: if number == 1 { f64::NAN } else { f64::from(number) / 2.0 },
    };
    let group = Group {
        id: GroupId(1),
        prompt: PromptId(2),
        epoch: 0,
        dispatched: PolicyVersion(3),
        prompt_token_ids: vec![7],
        images: Vec::new(),
        trajectories: (0..5).map(member).collect(),
    };
    let rows: Vec<RolloutRow<'_>> = group
        .trajectories
        .iter()
        .map(|trajectory| RolloutRow {
            step: 9,
            round: 0,
            group: &group,
            trajectory,
            inclusion: 1.0,
            data_source: "",
            prompt: "p",
            ground_truth: None,
            advantage: None,
            metric: "acc",
            metric_value: None,
            verdict: "trained",
            logged: None,
        })
        .collect();
    write_rollouts_to(std::fs::File::create(file.path()).unwrap(), &rows).unwrap();
    file
}

fn lists<T: Clone>(ragged: Option<Ragged<T>>) -> Vec<Vec<T>> {
    ragged.unwrap().rows().map(<[T]>::to_vec).collect()
}

#[test]
fn columns_of_all_rows_and_of_some() {
    let file = file();
    let columns = Columns::open(file.path()).unwrap();
    assert_eq!(columns.num_rows(), 5);
    let texts = |rows| lists(columns.texts("completion", rows).unwrap());
    assert_eq!(texts(None)[4], ["text 4"]);
    assert_eq!(texts(Some(&[1, 3, 4])), [["text 1"], ["text 3"], ["text 4"]]);
    assert_eq!(texts(Some(&[])), Vec::<Vec<String>>::new());
    let numbers = |name: &str, rows| lists(columns.numbers(name, rows).unwrap());
    assert_eq!(numbers("step", Some(&[2])), [[9.0]]);
    assert_eq!(numbers("reward", None), [vec![0.0], vec![], vec![1.0], vec![1.5], vec![2.0]]);
    assert_eq!(numbers("reward", Some(&[1, 2])), [vec![], vec![1.0]]);
    assert_eq!(numbers("loss_mask", Some(&[0, 3])), [vec![], vec![1.0, 0.0, 1.0]]);
    assert_eq!(numbers("token_ids", None).iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(lists(columns.texts("ground_truth", None).unwrap()), vec![Vec::<String>::new(); 5]);
}

#[test]
fn what_a_column_is() {
    let file = file();
    let columns = Columns::open(file.path()).unwrap();
    assert!(columns.names().iter().any(|name| name == "acc"));
    let kinds = ["acc", "step", "token_ids", "verdict", "nothing"].map(|name| columns.is_number(name));
    assert_eq!(kinds, [true, true, false, false, false]);
    assert_eq!(columns.numbers("verdict", None).unwrap(), None);
    assert_eq!(columns.texts("acc", None).unwrap(), None);
    assert_eq!(columns.numbers("nothing", None).unwrap(), None);
}

#[test]
fn a_damaged_file_is_refused() {
    let file = file();
    let bytes = std::fs::read(file.path()).unwrap();
    std::fs::write(file.path(), &bytes[..bytes.len() / 2]).unwrap();
    assert!(Columns::open(file.path()).is_err());
}
