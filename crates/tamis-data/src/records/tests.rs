use std::path::PathBuf;

use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::json;
use tamis_core::fault;

use super::*;

pub(crate) fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files")
}

pub(crate) fn rows(path: &Path) -> Vec<Value> {
    Records::open(path).unwrap().map(|record| Value::Object(record.unwrap().values)).collect()
}

/// The first error of a file, without the folder's name.
fn error(path: &Path) -> String {
    let error = match Records::open(path) {
        Err(error) => error,
        Ok(mut records) => records.find_map(Result::err).unwrap(),
    };
    describe(&error, path.parent().unwrap())
}

fn describe(error: &dyn std::error::Error, folder: &Path) -> String {
    fault::chain(error).replace(&folder.display().to_string(), "FOLDER")
}

#[test]
fn verl_rows_as_pyarrow_writes_them() {
    let path = files().join("verl.parquet");
    let rows = rows(&path);
    assert_eq!(rows.len(), 10);
    assert_eq!(
        rows[7],
        json!({
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "system", "content": "Sé breve."}, {"role": "user", "content": "7*7?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "49"},
            "extra_info": {"index": 7, "split": "train", "tags": ["b", "c"]},
        })
    );
    let tags: Vec<_> = rows.iter().take(4).map(|row| row["extra_info"]["tags"].clone()).collect();
    assert_eq!(tags, [json!(["a"]), json!([]), json!(null), json!(["b", "c"])]);
    let place = Records::open(&path).unwrap().nth(5).unwrap().unwrap().place;
    assert_eq!((place.row, place.is_line), (6, false));
}

#[test]
fn codecs() {
    let expected = &rows(&files().join("verl.parquet"))[..2];
    for codec in ["gzip", "lz4", "none"] {
        assert_eq!(rows(&files().join(format!("verl_{codec}.parquet"))), expected, "{codec}");
    }
    if cfg!(feature = "zstd") {
        assert_eq!(rows(&files().join("verl_zstd.parquet")), expected);
    } else {
        insta::assert_snapshot!(error(&files().join("verl_zstd.parquet")), @r#"column `data_source` of FOLDER/verl_zstd.parquet is compressed with zstd, which this build cannot read (it reads uncompressed, snappy, gzip and lz4); write the file again with snappy: python -c "import pandas as pd; pd.read_parquet('FOLDER/verl_zstd.parquet').to_parquet('FOLDER/verl_zstd.parquet', compression='snappy')""#);
    }
    assert!(error(&files().join("verl_brotli.parquet")).contains("is compressed with brotli"));
}

#[test]
fn pandas_rows() {
    assert_eq!(
        rows(&files().join("pandas.parquet")),
        [
            json!({"question": "a", "answer": 1.5, "level": 1, "__index_level_0__": 5}),
            json!({"question": "b", "answer": null, "level": null, "__index_level_0__": 6}),
            json!({"question": "c", "answer": 3.0, "level": 3, "__index_level_0__": 7}),
        ]
    );
}

#[test]
fn every_type_and_its_null() {
    let rows = rows(&files().join("types.parquet"));
    assert_eq!(
        rows[0],
        json!({
            "bool": true, "int8": -1, "int16": -300, "uint8": 255, "uint16": 65535, "uint32": 4_294_967_295_u32,
            "uint64": u64::MAX, "int64": i64::MIN, "half": 0.5, "float": 0.25, "double": null,
            "decimal": "-12.50", "fraction": "0.07", "text": "naïve", "large_text": "large", "category": "x", "binary": "/wA=",
            "date": "2024-02-29", "time_ms": "12:30:05.250", "time_us": "12:30:05.250000",
            "timestamp_ms": "2024-02-29 12:30:05.250", "timestamp_us": "2024-02-29 12:30:05.250000 +00:00",
            "timestamp_ns": 1_709_209_805_250_000_000_i64,
            "list": [1, null, 3], "lists": [[1], [], null], "structs": [{"a": 1, "b": null}, null],
            "map": {"k": 1, "l": null}, "fixed": "ab", "nothing": null,
        })
    );
    let nulls = rows[1].as_object().unwrap();
    for (name, value) in nulls {
        assert_eq!(value, &if name == "structs" { json!([]) } else { Value::Null }, "{name}");
    }
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    insta::assert_snapshot!(error(&folder.path().join("absent.jsonl")), @"failed to open \
         FOLDER/absent.jsonl: No such file or directory (os error 2)");
    insta::assert_snapshot!(describe(&Records::open(folder.path()).unwrap_err(), folder.path()), @"failed to open FOLDER: it is a folder, not a regular file");
    insta::assert_snapshot!(error(&write("a.parquet", b"{}")), @"FOLDER/a.parquet is not a Parquet file: it does not begin with PAR1");
    insta::assert_snapshot!(error(&write("b.parquet", b"PAR1 and no more")), @"failed to read \
         FOLDER/b.parquet as Parquet: Parquet error: Invalid Parquet file. Corrupt footer");
    insta::assert_snapshot!(error(&write("c.json", b" \n[{\"a\": 1}]")), @"FOLDER/c.json holds one JSON \
         array; write one object per line: jq -c '.[]' FOLDER/c.json > rows.jsonl");
    insta::assert_snapshot!(error(&write("d.jsonl", &[0x1f, 0x8b, 8, 0])), @"FOLDER/d.jsonl is compressed as \
         a whole (gzip or zstd); decompress it first");
    insta::assert_snapshot!(error(&write("e.jsonl", b"{\"a\": 1}\n{\"a\": \xff}\n")), @"FOLDER/e.jsonl, line 2: not valid JSON at column 7: expected value");
    insta::assert_snapshot!(error(&write("f.jsonl", "[".repeat(2).replace('[', "{\"a\":").as_bytes())), @"FOLDER/f.jsonl, line 1: not valid JSON at column 10: EOF while parsing a value");
    insta::assert_snapshot!(error(&write("i.jsonl", b"{\"a\": 1, \"b\": NaN}\n")), @"FOLDER/i.jsonl, line 1: not valid JSON at column 15: `NaN` is not a JSON number; write null if there is no value (Python: json.dumps(row, allow_nan=False) refuses such numbers)");
    insta::assert_snapshot!(error(&write("i.jsonl", b"{\"a\": [1, -Infinity]}\n")), @"FOLDER/i.jsonl, line 1: not valid JSON at column 11: `-Infinity` is not a JSON number; write null if there is no value (Python: json.dumps(row, allow_nan=False) refuses such numbers)");
    insta::assert_snapshot!(error(&write("i.jsonl", b"{\"a\":Infinity}\n")), @"FOLDER/i.jsonl, line 1: not valid JSON at column 6: `Infinity` is not a JSON number; write null if there is no value (Python: json.dumps(row, allow_nan=False) refuses such numbers)");
    insta::assert_snapshot!(error(&write("i.jsonl", b"{\"a\": \"NaN\", b: 1}\n")), @"FOLDER/i.jsonl, line 1: not valid JSON at column 14: key must be a string");
    let bytes = std::fs::read(files().join("verl.parquet")).unwrap();
    let mut broken = bytes.clone();
    broken[40..400].fill(0xa5);
    insta::assert_snapshot!(error(&write("g.parquet", &broken)), @"failed to read FOLDER/g.parquet as Parquet: Parquet error: a page has no valid header: a number is too long");
    insta::assert_snapshot!(error(&write("h.parquet", &bytes[..bytes.len() - 9])), @"failed to read FOLDER/h.parquet as Parquet: Parquet error: Invalid Parquet file. Corrupt footer");
}

#[test]
fn reading_goes_on_after_a_broken_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, "{\"a\": 1}\n\n{\"a\": }\n{\"a\": 3}").unwrap();
    let outcome: Vec<_> =
        Records::open(&path).unwrap().map(|record| record.map(|r| r.place.row).ok()).collect();
    assert_eq!(outcome, [Some(1), None, Some(4)]);
}

#[test]
fn lines_are_copied_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b, target) =
        (folder.path().join("a.jsonl"), folder.path().join("b.jsonl"), folder.path().join("t.jsonl"));
    std::fs::write(&a, "{\"x\":  1.10}\r\n\n{\"x\": 2}\nnot json\n").unwrap();
    std::fs::write(&b, "{\"y\": 1}\n{\"z\": \"é\"}").unwrap();
    let mut asked = Vec::new();
    let copied = copy_rows(
        &[a, b],
        |file, row| {
            asked.push((file, row));
            (file + row as usize).is_multiple_of(2)
        },
        &target,
    );
    assert_eq!(asked, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
    assert_eq!(copied.unwrap(), Copied { num_kept: 3, num_dropped: 2 });
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "{\"x\":  1.10}\r\nnot json\n{\"z\": \"é\"}\n");
}

#[test]
fn columns_that_are_not_wanted_are_left_out() {
    let path = files().join("verl.parquet");
    let all = rows(&path);
    let without = |columns: &[&str]| -> Vec<Value> {
        let records = Records::open_with(&path, |column| !columns.contains(&column.name)).unwrap();
        records.map(|record| Value::Object(record.unwrap().values)).collect()
    };
    let mut expected = all.clone();
    for row in expected.iter_mut().filter_map(Value::as_object_mut) {
        assert!(row.remove("data_source").is_some() && row.remove("prompt").is_some());
    }
    assert_eq!(without(&["data_source", "prompt", "nothing"]), expected);
    assert_eq!(without(&["nothing"]), all);
    let every: Vec<&str> = all[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(without(&every), vec![json!({}); 10], "rows without columns are counted all the same");
    let numbers: Vec<String> = {
        let found = std::cell::RefCell::new(Vec::new());
        let is_number = |column: FileColumn<'_>| {
            found.borrow_mut().extend(column.is_number.then(|| column.name.to_owned()));
            false
        };
        Records::open_with(&files().join("types.parquet"), is_number).unwrap();
        found.into_inner()
    };
    assert_eq!(numbers[..4], ["bool", "int8", "int16", "uint8"]);
    assert!(!numbers.contains(&"text".to_owned()) && !numbers.contains(&"list".to_owned()), "{numbers:?}");
}

#[test]
fn parquet_rows_are_copied_with_their_schema() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("t.parquet");
    for name in ["verl", "types", "pandas", "verl_gzip"] {
        let source = files().join(format!("{name}.parquet"));
        let all = rows(&source);
        for keep in [|_: u64| true, |row: u64| row % 3 == 1, |_: u64| false, |row: u64| row >= 8] {
            let expected: Vec<_> =
                all.iter().enumerate().filter(|(i, _)| keep(*i as u64)).map(|(_, row)| row.clone()).collect();
            let copied = copy_rows(std::slice::from_ref(&source), |_, row| keep(row), &target).unwrap();
            assert_eq!(copied.num_kept, expected.len() as u64);
            assert_eq!(copied.num_kept + copied.num_dropped, all.len() as u64);
            assert_eq!(rows(&target), expected, "{name}");
        }
    }
    let verl = files().join("verl.parquet");
    copy_rows(&[verl.clone(), files().join("verl_gzip.parquet")], |_, row| row == 1, &target).unwrap();
    assert_eq!(rows(&target).len(), 2);
}

#[test]
fn copies_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("t");
    let lines = folder.path().join("a.jsonl");
    std::fs::write(&lines, "{}\n").unwrap();
    let verl = files().join("verl.parquet");
    let error = |sources: &[PathBuf], target: &Path| {
        let error = copy_rows(sources, |_, _| true, target).unwrap_err();
        describe(&error, folder.path()).replace(&files().display().to_string(), "FILES")
    };
    insta::assert_snapshot!(error(&[verl.clone(), lines.clone()], &target), @"FILES/verl.parquet and \
         FOLDER/a.jsonl differ in format, so their rows cannot go into one file");
    insta::assert_snapshot!(error(&[verl, files().join("pandas.parquet")], &target), @"FILES/verl.parquet and FILES/pandas.parquet differ in columns, so their rows cannot go into one file");
    insta::assert_snapshot!(error(&[lines], &folder.path().join("no/such/folder")), @"failed to write FOLDER/no/such/folder: No such file or directory (os error 2)");
    assert!(!target.exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

/// Bytes changed, removed or doubled anywhere give rows or errors, never a panic, and reading ends. In two
/// halves, so that they run in parallel.
#[test]
fn mutated_files_never_panic() {
    mutate_files(5000, [7; 32]);
}

#[test]
fn more_mutated_files_never_panic() {
    mutate_files(5000, [8; 32]);
}

fn mutate_files(num_mutants: usize, seed: [u8; 32]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant");
    let target = folder.path().join("copy");
    let lines = b"{\"prompt\": \"a\", \"answer\": 1.5}\n\n{\"prompt\": \
         [{\"role\": \"user\", \"content\": \"\\u00e9\"}], \"reward_model\": \
         {\"ground_truth\": \"4\"}}\n{\"question\": null}\n"
        .to_vec();
    let mut sources = vec![lines];
    for name in ["verl", "types", "pandas", "verl_gzip", "verl_lz4"] {
        sources.push(std::fs::read(files().join(format!("{name}.parquet"))).unwrap());
    }
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut below = |bound: usize| rand_below(&mut random, bound);
    let mut num_errors = 0;
    for round in 0..num_mutants {
        let mut bytes = sources[below(sources.len())].clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(4) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes[at] = below(256) as u8,
                2 => drop(bytes.drain(at..(at + 1 + below(16)).min(bytes.len()))),
                _ => {
                    let end = (at + 1 + below(16)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        let options =
            crate::dataset::ReadOptions { bad_rows: crate::dataset::BadRows::Skip, ..Default::default() };
        num_errors += usize::from(crate::dataset::Dataset::read(&[&path], &options).is_err());
        // Each copy waits for the disk, so only some mutants are copied.
        if round % 32 == 0 {
            let _ = copy_rows(std::slice::from_ref(&path), |_, row| row % 2 == 0, &target);
        }
    }
    assert!(num_errors > 100, "mutations must hurt: {num_errors}");
}

fn rand_below(random: &mut impl proptest::prelude::Rng, bound: usize) -> usize {
    (random.next_u64() % bound.max(1) as u64) as usize
}
