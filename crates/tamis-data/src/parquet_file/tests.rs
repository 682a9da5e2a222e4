use parquet::basic::{Encoding, GzipLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use serde_json::json;

use super::*;
use crate::columns::ColumnFile;
use crate::records::tests::{files, rows};
use crate::records::{Records, copy_rows};

/// The first error of a file, without the file's name.
fn error(path: &Path) -> String {
    let error = Records::open(path).and_then(|mut records| match records.find_map(Result::err) {
        Some(error) => Err(error),
        None => Ok(()),
    });
    error.unwrap_err().to_string().replace(&path.display().to_string(), "FILE")
}

/// A file of one column.
fn write<T: DataType>(
    schema: &str,
    properties: WriterPropertiesBuilder,
    values: &[T::T],
    levels: Option<(&[i16], &[i16])>,
) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let properties = Arc::new(properties.build());
    let mut writer = SerializedFileWriter::new(file.reopen().unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (definitions, repetitions) = levels.unzip();
    column.typed::<T>().write_batch(values, definitions, repetitions).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    file
}

fn texts(texts: impl Iterator<Item = String>) -> Vec<ByteArray> {
    texts.map(|text| ByteArray::from(text.into_bytes())).collect()
}

/// One row with a list of this many members.
fn one_list<T: DataType>(schema: &str, values: &[T::T]) -> tempfile::NamedTempFile {
    let definitions = vec![1; values.len()];
    let mut repetitions = vec![1; values.len()];
    repetitions[0] = 0;
    write::<T>(schema, WriterProperties::builder(), values, Some((&definitions, &repetitions)))
}

const NUMBERS: &str =
    "message m { required group x (LIST) { repeated group list { required int32 element; } } }";
const TEXTS: &str =
    "message m { required group x (LIST) { repeated group list { required binary element (UTF8); } } }";

#[test]
fn json_as_the_datasets_library_writes_uneven_rows() {
    let path = files().join("datasets.parquet");
    assert_eq!(
        rows(&path),
        [
            json!({
                "data_source": "a",
                "prompt": [{"role": "user", "content": "1/2?"}],
                "reward_model": {"style": "rule", "ground_truth": "1/2"},
                "extra_info": {"index": 0},
            }),
            json!({
                "data_source": "b",
                "prompt": [
                    {"role": "system", "content": "Sé breve."},
                    {"role": "user", "content": "2+3?", "name": "bob"},
                ],
                "reward_model": {"style": "rule", "ground_truth": 5},
                "extra_info": {"index": "x", "why": [1, 2.5]},
            }),
            json!({
                "data_source": "c",
                "prompt": [{"role": "user", "content": "?"}],
                "reward_model": {"style": "rule", "ground_truth": null},
                "extra_info": null,
            }),
        ]
    );
    let columns = ColumnFile::open(&path).unwrap();
    let infos = columns.texts("extra_info", None).unwrap().unwrap();
    assert_eq!(infos.rows().next().unwrap(), [r#"{"index":0}"#], "an object stays as it is");
    let prompts = crate::dataset::Dataset::read(&[&path], &crate::dataset::ReadOptions::default()).unwrap();
    let golds: Vec<_> = prompts.prompts().iter().map(|prompt| prompt.ground_truth.as_deref()).collect();
    assert_eq!(golds, [Some("1/2"), Some("5"), None]);
}

#[test]
fn text_in_a_column_of_json() {
    let schema = "message m { required binary x (JSON); }";
    let values = texts(["\"1\\/2\"", "{", "7"].map(str::to_owned).into_iter());
    let file = write::<ByteArrayType>(schema, WriterProperties::builder(), &values, None);
    let read: Vec<_> = Records::open(file.path()).unwrap().collect();
    assert_eq!(read[0].as_ref().unwrap().values["x"], "1/2");
    assert_eq!(read[2].as_ref().unwrap().values["x"], 7, "a broken row is one");
    let Err(RecordError::Row { place, fault }) = &read[1] else { panic!("{read:?}") };
    assert_eq!(place.row, 2);
    insta::assert_snapshot!(fault, @"column `x` holds invalid JSON, although the file declares JSON (EOF while parsing an object at line 1 column 1); write the column as text if it is");
    let columns = ColumnFile::open(file.path()).unwrap();
    let shown = columns.texts("x", None).unwrap().unwrap();
    assert_eq!(shown.rows().flatten().collect::<Vec<_>>(), ["1/2", "{", "7"]);
    let schema = "message m { required binary x (UTF8); }";
    let bytes = [ByteArray::from(vec![0xff_u8]), ByteArray::from("a")];
    let file = write::<ByteArrayType>(schema, WriterProperties::builder(), &bytes, None);
    let read: Vec<_> = Records::open(file.path()).unwrap().collect();
    let Err(RecordError::Row { fault, .. }) = &read[0] else { panic!("{read:?}") };
    assert!(fault.to_string().contains("holds bytes that are not UTF-8"), "{fault}");
    assert_eq!(read[1].as_ref().unwrap().values["x"], "a");
}

#[test]
fn times_have_a_zone_where_the_file_gives_one() {
    for (is_utc, text) in [(true, "1970-01-01 00:00:01.500 +00:00"), (false, "1970-01-01 00:00:01.500")] {
        let schema = format!("message m {{ required int64 x (TIMESTAMP(MILLIS,{is_utc})); }}");
        let file = write::<Int64Type>(&schema, WriterProperties::builder(), &[1500], None);
        assert_eq!(rows(file.path()), [json!({"x": text})]);
    }
}

/// Lists as old writers store them: without a group around each member, and without an annotation.
#[test]
fn old_lists() {
    let levels: (&[i16], &[i16]) = (&[1, 1, 0, 1], &[0, 1, 0, 0]);
    for schema in [
        "message m { required group x (LIST) { repeated int32 element; } }",
        "message m { required group x (LIST) { repeated group array { required int32 element; } } }",
        "message m { repeated int32 x; }",
    ] {
        let file = write::<Int32Type>(schema, WriterProperties::builder(), &[1, 2, 3], Some(levels));
        let inner =
            |value: i32| if schema.contains("array") { json!({"element": value}) } else { json!(value) };
        let expected = [json!({"x": [inner(1), inner(2)]}), json!({"x": []}), json!({"x": [inner(3)]})];
        assert_eq!(rows(file.path()), expected, "{schema}");
    }
}

#[test]
fn a_row_has_the_limit_of_a_line() {
    let fits = one_list::<Int32Type>(NUMBERS, &vec![7; 100_000]);
    assert_eq!(rows(fits.path())[0]["x"].as_array().unwrap().len(), 100_000);
    let long = one_list::<Int32Type>(NUMBERS, &vec![7; 8_500_000]);
    assert!(std::fs::metadata(long.path()).unwrap().len() < 10_000, "the input is small");
    insta::assert_snapshot!(error(long.path()), @"failed to read FILE as Parquet: Parquet error: a row has more than 8388608 values in column `x.list.element`");
    let columns = ColumnFile::open(long.path()).unwrap();
    assert!(columns.numbers("x", None).unwrap_err().to_string().contains("more than 8388608 values"));
    let target = tempfile::NamedTempFile::new().unwrap();
    let copied = copy_rows(&[long.path().to_owned()], |_, _| true, target.path());
    assert!(copied.unwrap_err().to_string().contains("more than 8388608 values"));
    // A text that the dictionary holds once.
    let wide = one_list::<ByteArrayType>(TEXTS, &texts((0..120).map(|_| "x".repeat(600_000))));
    assert!(std::fs::metadata(wide.path()).unwrap().len() < 4 << 20, "the input is small");
    insta::assert_snapshot!(error(wide.path()), @"failed to read FILE as Parquet: Parquet error: the next row takes more than 64.0 MiB");
    // JSON of many values. The text is no longer than a row may be.
    let values = format!("[{}0]", "0,".repeat(8_000_000));
    let schema = "message m { required binary x (JSON); }";
    let json =
        write::<ByteArrayType>(schema, WriterProperties::builder(), &texts([values].into_iter()), None);
    insta::assert_snapshot!(error(json.path()), @"failed to read FILE as Parquet: Parquet error: the next row takes more than 64.0 MiB");
    // Without its long column the row is short.
    let mut without = Records::open_with(wide.path(), |_| false).unwrap();
    assert!(without.next().unwrap().unwrap().values.is_empty());
}

#[test]
fn a_file_does_not_unpack_to_more_than_data_does() {
    let schema = "message m { required int32 x; }";
    let many = |number| write::<Int32Type>(schema, WriterProperties::builder(), &vec![7; number], None);
    assert_eq!(rows(many(100_000).path()).len(), 100_000);
    let claims = many(1_200_000);
    let length = std::fs::metadata(claims.path()).unwrap().len();
    assert!(length < 20_000, "the input is small: {length}");
    let message = error(claims.path());
    assert!(message.contains("it claims 1200000 rows in ") && message.contains("implausible"), "{message}");
    assert!(ColumnFile::open(claims.path()).is_err());
    // As many rows as a small file may have, each a text of 2 kB.
    let schema = "message m { required binary x (UTF8); }";
    let same = texts((0..200_000).map(|_| "x".repeat(2_000)));
    let same = write::<ByteArrayType>(schema, WriterProperties::builder(), &same, None);
    assert!(error(same.path()).contains("of rows, which is implausible"), "{}", error(same.path()));
    let columns = ColumnFile::open(same.path()).unwrap();
    assert!(columns.texts("x", None).unwrap_err().to_string().contains("of rows, which is implausible"));
    assert_eq!(columns.texts("x", Some(&[3, 100_000])).unwrap().unwrap().rows().count(), 2);
    let decoded = Decoded::new(1000);
    assert!(decoded.page(1 << 20).is_ok() && decoded.page(1 << 30).is_err());
}

#[test]
fn delta_encodings() {
    let of = |encoding, version| {
        let properties = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding);
        properties.set_writer_version(version)
    };
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let values: Vec<i32> = (0..1000).map(|value| value * value % 733 - 300).collect();
        let schema = "message m { required int32 x; }";
        let file = write::<Int32Type>(schema, of(Encoding::DELTA_BINARY_PACKED, version), &values, None);
        let read: Vec<_> = rows(file.path()).iter().map(|row| row["x"].as_i64().unwrap() as i32).collect();
        assert_eq!(read, values);
        for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
            let schema = "message m { required binary x (UTF8); }";
            let values: Vec<String> = (0..1000).map(|value| format!("text {}", value * 37 % 1001)).collect();
            let texts = texts(values.iter().cloned());
            let file = write::<ByteArrayType>(schema, of(encoding, version), &texts, None);
            let read: Vec<_> =
                rows(file.path()).iter().map(|row| row["x"].as_str().unwrap().to_owned()).collect();
            assert_eq!(read, values, "{encoding}");
        }
    }
    // Each text continues the previous one: 60,000 times 5 kB in a small file.
    let schema = "message m { required binary x (UTF8); }";
    let long = texts((0..60_000).map(|_| "x".repeat(5_000)));
    let file = write::<ByteArrayType>(
        schema,
        of(Encoding::DELTA_BYTE_ARRAY, WriterVersion::PARQUET_1_0),
        &long,
        None,
    );
    assert!(std::fs::metadata(file.path()).unwrap().len() < 100_000, "the input is small");
    assert!(error(file.path()).contains("of pages, which is implausible"), "{}", error(file.path()));
}

/// In version 2 of data pages, levels are not compressed, and a page of nulls has no compressed part.
#[test]
fn pages_of_the_second_version() {
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(GzipLevel::default())] {
        let properties = WriterProperties::builder().set_compression(codec);
        // Data that does not shrink is not compressed.
        let properties =
            properties.set_writer_version(WriterVersion::PARQUET_2_0).set_dictionary_enabled(false);
        let list = "message m { optional group x (LIST) { repeated group list { optional binary element (UTF8); } } }";
        let values = texts(["a", "b"].map(|text| text.repeat(1000)).into_iter());
        let levels: (&[i16], &[i16]) = (&[3, 2, 3, 0, 1], &[0, 1, 1, 0, 0]);
        let file = write::<ByteArrayType>(list, properties.clone(), &values, Some(levels));
        let expected =
            [json!({"x": ["a".repeat(1000), null, "b".repeat(1000)]}), json!({"x": null}), json!({"x": []})];
        assert_eq!(rows(file.path()), expected, "{codec}");
        let nulls = "message m { optional int32 x; }";
        let file = write::<Int32Type>(nulls, properties, &[], Some((&[0, 0], &[0, 0])));
        assert_eq!(rows(file.path()), [json!({"x": null}), json!({"x": null})], "{codec}");
    }
}

/// Levels after the last value of a page, or between two values, do not begin a row.
#[test]
fn empty_runs_begin_no_row() {
    let schema = parquet::schema::parser::parse_message_type("message m { repeated int32 x; }").unwrap();
    let column = parquet::schema::types::SchemaDescriptor::new(Arc::new(schema)).column(0);
    let mut row = pages::RowLength::default();
    let mut check = |levels: &[u8], num_values| row.add(levels, num_values, &column);
    // A run of 1 at 0, then 8,388,607 at 1; in the next page an empty run at 0, then one more at 1.
    assert!(check(&[2, 0, 0xfe, 0xff, 0xff, 7, 1], 1 << 23).is_ok());
    let error = check(&[0, 0, 2, 1], 1).unwrap_err().to_string();
    assert!(error.contains("more than 8388608 values in column `x`"), "{error}");
    // Eight values in bits, of which one counts.
    let mut row = pages::RowLength::default();
    let mut check = |levels: &[u8], num_values| row.add(levels, num_values, &column);
    assert!(check(&[2, 0, 0xfe, 0xff, 0xff, 7, 1], 1 << 23).is_ok());
    assert!(check(&[3, 1], 1).is_err() && check(&[3, 0], 1).is_ok());
    let error = check(&[0x80, 0x80, 0x80, 0x80, 0x20, 0], 9).unwrap_err().to_string();
    assert!(error.contains("a run of levels is longer than any page"), "{error}");
}

#[test]
fn a_page_is_not_larger_than_its_header_says() {
    let bytes = std::fs::read(files().join("verl_gzip.parquet")).unwrap();
    let opened = ParquetFile::open(&files().join("verl_gzip.parquet")).unwrap();
    let (start, _) = opened.metadata().row_group(0).column(0).byte_range();
    // The second field of the page header, after the type, is the size. Reduce it by one.
    let place = start as usize + 3;
    let mut changed = bytes;
    assert_eq!(changed[place - 1], 0x15);
    changed[place] -= 2;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), changed).unwrap();
    insta::assert_snapshot!(error(file.path()), @"failed to read FILE as Parquet: Parquet error: a page is larger than its header says");
}
