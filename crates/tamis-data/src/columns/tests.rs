use tamis_core::group::Group;

use super::*;
use crate::rollouts::tests::{group, table, trajectory};
use crate::rollouts::write_rollouts_to;

/// A file of five trajectories with 0 to 4 tokens. The second has no reward.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let member = |number: u32| {
        let reward = if number == 1 { f64::NAN } else { f64::from(number) / 2.0 };
        trajectory(number, number as usize, &[("acc", f64::from(number))], reward)
    };
    let group = Group { trajectories: (0..5).map(member).collect(), ..group() };
    write_rollouts_to(file.reopen().unwrap(), &table(&group)).unwrap();
    file
}

fn lists<T: Clone>(ragged: Option<RaggedColumn<T>>) -> Vec<Vec<T>> {
    ragged.unwrap().rows().map(<[T]>::to_vec).collect()
}

#[test]
fn columns_of_all_rows_and_of_some() {
    let file = file();
    let columns = ColumnFile::open(file.path()).unwrap();
    assert_eq!(columns.num_rows(), 5);
    let texts = |rows| lists(columns.texts("completion", rows).unwrap());
    assert_eq!(texts(None)[4], ["réponse 4"]);
    assert_eq!(texts(Some(&[1, 3, 4])), [["réponse 1"], ["réponse 3"], ["réponse 4"]]);
    assert_eq!(texts(Some(&[])), Vec::<Vec<String>>::new());
    let numbers = |name: &str, rows| lists(columns.numbers(name, rows).unwrap());
    assert_eq!(numbers("step", Some(&[2])), [[2.0]]);
    assert_eq!(numbers("reward", None), [vec![0.0], vec![], vec![1.0], vec![1.5], vec![2.0]]);
    assert_eq!(numbers("reward", Some(&[1, 2])), [vec![], vec![1.0]]);
    assert_eq!(numbers("loss_mask", Some(&[0, 3])), [vec![], vec![1.0, 0.0, 1.0]]);
    assert_eq!(numbers("token_ids", None).iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(lists(columns.texts("ground_truth", Some(&[0, 1])).unwrap()), [vec![], vec!["2"]]);
}

#[test]
fn what_a_column_is() {
    let file = file();
    let columns = ColumnFile::open(file.path()).unwrap();
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
    assert!(ColumnFile::open(file.path()).is_err());
}
