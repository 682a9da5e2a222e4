//! Countdown tasks of a file, read once in a process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_data::records::Records;

use super::{CountdownOperator, CountdownRow};

/// Tasks of a file that have a solution with some operators.
type Key = (PathBuf, Vec<CountdownOperator>);

static READ: LazyLock<Mutex<HashMap<Key, Arc<Vec<CountdownRow>>>>> = LazyLock::new(Mutex::default);

/// The tasks of a file (JSONL or Parquet, `target` and `nums`) that have a solution with these operators, as
/// RAGEN's filter keeps them.
pub(super) fn rows(path: &Path, operators: &[CountdownOperator]) -> Result<Arc<Vec<CountdownRow>>, Fault> {
    let key = (path.to_owned(), operators.to_vec());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(rows) = read.get(&key) {
        return Ok(Arc::clone(rows));
    }
    let refused = |reason: String| fault!("setting `file` names {}: {reason}", path.display());
    let mut rows = Vec::new();
    for record in Records::open(path).map_err(|error| refused(error.to_string()))? {
        let record = record.map_err(|error| refused(error.to_string()))?;
        let row = CountdownRow::from_columns(&record.values)
            .map_err(|error| fault!("setting `file`: {}: {error}", record.place))?;
        if row.has_solution(operators) {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Err(refused("it has no task with a solution by `operators`".to_owned()));
    }
    let rows = Arc::new(rows);
    read.insert(key, Arc::clone(&rows));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::{Countdown, CountdownSettings};
    use crate::environment::game::Game as _;
    use tamis_core::random::{Key as Start, Purpose};

    #[test]
    fn tasks_come_from_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tasks.jsonl");
        let lines = "{\"target\": 3, \"nums\": [1, 2]}\n{\"target\": 50, \"nums\": [1, 2]}\n{\"target\": 9, \"nums\": [4, 5]}\n";
        std::fs::write(&path, lines).expect("written");
        let settings = CountdownSettings { file: Some(path.clone()), ..CountdownSettings::default() };
        let key = |n| Start::new(1, Purpose::Environment).with(n);
        let shown = |n| Countdown::new(&settings, key(n)).expect("a task").observe();
        let mut all: Vec<String> = (0..40).map(shown).collect();
        assert_eq!(all[3], shown(3), "the same start, the same task");
        all.sort();
        all.dedup();
        // Rows without a solution are left out.
        assert_eq!(all, ["Target: 3, nums: [1, 2]", "Target: 9, nums: [4, 5]"]);

        let broken = folder.path().join("broken.jsonl");
        std::fs::write(&broken, "{\"target\": 3}\n").expect("written");
        for (file, said) in [
            (broken, "broken.jsonl, line 1: field `nums` is missing"),
            (folder.path().join("none.jsonl"), "none.jsonl"),
        ] {
            let settings = CountdownSettings { file: Some(file), ..CountdownSettings::default() };
            let error = Countdown::new(&settings, key(0)).expect_err("refused").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
