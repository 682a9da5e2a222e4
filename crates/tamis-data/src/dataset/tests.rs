use serde_json::json;

use super::*;
use crate::image::tests::png;

fn file(folder: &tempfile::TempDir, name: &str, content: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Reads a file in the folder; messages name the folder `FOLDER`.
fn open(folder: &tempfile::TempDir, path: &Path, options: &ReadOptions) -> Result<Dataset, String> {
    Dataset::read(&[path], options)
        .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "FOLDER"))
}

fn read(content: &str, options: &ReadOptions) -> Result<Dataset, String> {
    let folder = tempfile::tempdir().unwrap();
    open(&folder, &file(&folder, "data.jsonl", content), options)
}

fn fault(row: &Value) -> String {
    read(&row.to_string(), &ReadOptions::default()).unwrap_err()
}

fn one(row: &Value, options: &ReadOptions) -> Prompt {
    read(&row.to_string(), options).unwrap().prompts().first().unwrap().clone()
}

#[test]
fn verl_layout() {
    let row = json!({
        "data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "6*7?"}], "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "42"}, "extra_info": {"index": 0, "answer": "6*7=42"},
        "answer": "not this",
    });
    let prompt = one(&row, &ReadOptions::default());
    assert_eq!(prompt.content, PromptContent::Messages(vec![Message::new("user", "6*7?")]));
    assert_eq!(prompt.ground_truth.as_deref(), Some("42"));
    assert_eq!(prompt.data_source, "openai/gsm8k");
    assert_eq!(prompt.columns["extra_info"]["answer"], "6*7=42");
    assert_eq!(Value::Object(prompt.columns), row);
}

#[test]
fn trl_and_plain_layouts() {
    let text = |text: &str| PromptContent::Text(text.to_owned());
    for (row, content, truth) in [
        (json!({"prompt": "2+2=", "solution": 4}), text("2+2="), Some("4")),
        (json!({"question": "q", "answer": "a #### 1", "ground_truth": null}), text("q"), None),
        (json!({"problem": "p"}), text("p"), None),
    ] {
        let prompt = one(&row, &ReadOptions::default());
        assert_eq!((prompt.content, prompt.ground_truth.as_deref()), (content, truth));
        assert_eq!(prompt.data_source, "");
    }
}

#[test]
fn ground_truths_become_text() {
    for (value, text) in [
        (json!(72), "72"),
        (json!(0.5), "0.5"),
        (json!(72.0), "72"),
        (json!(-1000.0), "-1000"),
        (json!(-0.0), "0"),
        (json!(1e9), "1000000000"),
        (json!(9_007_199_254_740_993_i64), "9007199254740993"),
        (json!(1e300), "1e+300"),
        (json!([72.0]), "[72.0]"),
        (json!(true), "true"),
        (json!({"target": 24, "numbers": [1, 2]}), r#"{"target":24,"numbers":[1,2]}"#),
    ] {
        let prompt = one(&json!({"question": "q", "answer": value}), &ReadOptions::default());
        assert_eq!(prompt.ground_truth.as_deref(), Some(text));
    }
    // pandas writes an integer column with a missing value as a column of doubles.
    let pandas = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/files/pandas.parquet");
    let dataset = Dataset::read(&[pandas], &ReadOptions::default()).unwrap();
    let truths: Vec<_> = dataset.prompts().iter().map(|prompt| prompt.ground_truth.as_deref()).collect();
    assert_eq!(truths, [Some("1.5"), None, Some("3")]);
}

#[test]
fn columns_by_name_and_path() {
    let columns = ColumnNames {
        prompt: Some("task.text".into()),
        ground_truth: Some("task.meta.gold".into()),
        data_source: Some("kind".into()),
        images: None,
    };
    let options = ReadOptions { columns, ..ReadOptions::default() };
    let row = json!({"task": {"text": "t", "meta": {"gold": 3}}, "kind": "k", "prompt": "other"});
    let prompt = one(&row, &options);
    assert_eq!(prompt.content, PromptContent::Text("t".into()));
    assert_eq!((prompt.ground_truth.as_deref(), prompt.data_source.as_str()), (Some("3"), "k"));
    let error = read(r#"{"task": {"text": "t"}, "kind": "k"}"#, &options).unwrap_err();
    insta::assert_snapshot!(error, @"FOLDER/data.jsonl, line 1: expected a column `task.meta.gold` \
         (data.columns.ground_truth), but the row has `task`, `kind`");
}

/// Every field of a message is kept as the row has it. The fingerprint of the same file does not change.
#[test]
fn messages_keep_their_fields() {
    let row = json!({"prompt": [
        {"role": "user", "content": "a", "name": "bob"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "b", "reasoning_content": "because", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]});
    let options = ReadOptions::default();
    let PromptContent::Messages(messages) = one(&row, &options).content else { panic!("messages") };
    assert_eq!(serde_json::to_value(&messages).unwrap(), row["prompt"]);
    let fingerprint = |row: &Value| read(&row.to_string(), &options).unwrap().fingerprint();
    let mut other = row.clone();
    other["prompt"][3]["reasoning_content"] = json!("or not");
    assert_ne!(fingerprint(&row), fingerprint(&other));
    let mut other = row.clone();
    other["chat_template_kwargs"] = json!({"enable_thinking": false});
    assert_ne!(fingerprint(&row), fingerprint(&other));
}

#[test]
fn columns_for_the_template() {
    let arguments = |columns: Value| {
        let mut row = json!({"prompt": [{"role": "user", "content": "a"}]});
        row.as_object_mut().unwrap().extend(columns.as_object().unwrap().clone());
        let arguments = one(&row, &ReadOptions::default()).template_arguments();
        arguments.map_or_else(|fault| fault.to_string(), |all| Value::Object(all).to_string())
    };
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let both = json!({"tools": [tool], "chat_template_kwargs": {"enable_thinking": false}});
    let expected = json!({"tools": [tool], "enable_thinking": false}).to_string();
    assert_eq!(arguments(both), expected);
    let texts =
        json!({"tools": json!([tool]).to_string(), "chat_template_kwargs": "{\"enable_thinking\": false}"});
    assert_eq!(arguments(texts), expected);
    for none in [json!({}), json!({"tools": null, "chat_template_kwargs": null}), json!({"tools": " "})] {
        assert_eq!(arguments(none), "{}");
    }
    insta::assert_snapshot!(arguments(json!({"tools": ["hammer"]})), @r#"the column `tools` goes to the chat template and must be a list of tools as JSON objects (or that list as JSON text), got ["hammer"]; rename it if it is something else"#);
    insta::assert_snapshot!(arguments(json!({"tools": "hammer"})), @r#"the column `tools` goes to the chat template and must be a list of tools as JSON objects (or that list as JSON text), got "hammer"; rename it if it is something else"#);
    insta::assert_snapshot!(arguments(json!({"chat_template_kwargs": 3})), @"the column `chat_template_kwargs` goes to the chat template and must be an object (or one as JSON text), got 3; rename it if it is something else");
    insta::assert_snapshot!(arguments(json!({"chat_template_kwargs": {"add_generation_prompt": true}})), @"the column `chat_template_kwargs` sets `add_generation_prompt`, which cannot be set there; remove it");
}

#[test]
fn rows_that_are_no_prompts() {
    insta::assert_snapshot!(fault(&json!({"text": "x", "label": 1})), @"FOLDER/data.jsonl, line 1: expected \
         a column `prompt` (text or messages), `question` or `problem`, but the row has `text`, `label`; \
         name it with data.columns.prompt");
    insta::assert_snapshot!(fault(&json!({})), @"FOLDER/data.jsonl, line 1: expected a column `prompt` (text \
         or messages), `question` or `problem`, but the row has no columns; name it with data.columns.prompt");
    insta::assert_snapshot!(fault(&json!({"prompt": 3})), @"FOLDER/data.jsonl, line 1: `prompt` must be text \
         or a list of messages, got a number");
    insta::assert_snapshot!(fault(&json!({"question": null})), @"FOLDER/data.jsonl, line 1: `question` must \
         be text or a list of messages, got null");
    insta::assert_snapshot!(fault(&json!({"prompt": ""})), @"FOLDER/data.jsonl, line 1: `prompt` is empty");
    insta::assert_snapshot!(fault(&json!({"prompt": []})), @"FOLDER/data.jsonl, line 1: `prompt` is empty");
    insta::assert_snapshot!(fault(&json!({"prompt": [{"role": "user", "content": "a"}, {"content": "a"}]})), @r#"FOLDER/data.jsonl, line 1: message 1 of `prompt` must be an object with `role` as text and `content` as text, a list of text parts or null, got {"content":"a"}"#);
    insta::assert_snapshot!(fault(&json!({"prompt": ["x".repeat(200)]})), @r#"FOLDER/data.jsonl, line 1: message 0 of `prompt` must be an object with `role` as text and `content` as text, a list of text parts or null, got "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"#);
    insta::assert_snapshot!(fault(&json!({"prompt": [{"role": "user", "content": [{"type": "image", "image": "x"}]}]})), @"FOLDER/data.jsonl, line 1: message 0 of `prompt` holds a block of type `image`, but only text is supported");
    insta::assert_snapshot!(fault(&json!({"prompt": "x", "data_source": 7})), @"FOLDER/data.jsonl, line 1: \
         `data_source` must be text, got a number");
    insta::assert_snapshot!(read("{\"prompt\": \"a\"}\n\n{\"prompt\": \"a\"\n", &ReadOptions::default()).unwrap_err(), @"FOLDER/data.jsonl, line 3: not valid JSON at column 14: EOF while parsing an object");
    insta::assert_snapshot!(read("3", &ReadOptions::default()).unwrap_err(), @"FOLDER/data.jsonl, line 1: \
         expected a JSON object, got a number");
}

#[test]
fn broken_rows_are_skipped_and_counted_where_asked() {
    let options = ReadOptions { bad_rows: BadRows::Skip, ..ReadOptions::default() };
    let dataset =
        read("{\"question\": \"a\"}\n\n{nonsense}\n{\"other\": 1}\n{\"question\": \"b\"}\n", &options)
            .unwrap();
    assert_eq!(dataset.ids(), [PromptId(0), PromptId(3)]);
    assert_eq!(dataset.skipped_rows().len(), 2);
    assert_eq!(dataset.get(PromptId(3)).unwrap().content, PromptContent::Text("b".into()));
    assert_eq!(dataset.get(PromptId(1)), None);
    insta::assert_snapshot!(read("{\"other\": 1}", &options).unwrap_err(), @"no prompts in FOLDER/data.jsonl \
         (1 row was skipped as broken)");
    insta::assert_snapshot!(read("\n", &options).unwrap_err(), @"no prompts in FOLDER/data.jsonl");
}

#[test]
fn several_files_and_none() {
    let folder = tempfile::tempdir().unwrap();
    let first = file(&folder, "a.jsonl", "{\"question\": \"a\"}\r\n{\"question\": \"b\"}");
    let second = file(&folder, "b.json", "\u{feff}{\"question\": \"c\"}\n");
    let dataset = Dataset::read(&[first, second.clone()], &ReadOptions::default()).unwrap();
    assert_eq!(dataset.ids(), [PromptId(0), PromptId(1), PromptId(2)]);
    assert_eq!(dataset.get(PromptId(2)).unwrap().content, PromptContent::Text("c".into()));
    let named = |id| {
        dataset
            .get(PromptId(id))
            .map(|prompt| prompt.named().replace(&folder.path().display().to_string(), "DIR"))
    };
    assert_eq!(named(1).as_deref(), Some("prompt 1 (DIR/a.jsonl, line 2)"));
    assert_eq!(named(2).as_deref(), Some("prompt 2 (DIR/b.json, line 1)"));
    assert_eq!(named(3), None);
    let other = Dataset::read(&[second], &ReadOptions::default()).unwrap();
    assert_ne!(dataset.fingerprint(), other.fingerprint());
    let none: [PathBuf; 0] = [];
    insta::assert_snapshot!(Dataset::read(&none, &ReadOptions::default()).unwrap_err(), @"no data file is named");
}

#[test]
fn a_fingerprint_sees_every_change() {
    let of = |content: &str| read(content, &ReadOptions::default()).unwrap().fingerprint();
    let base = of("{\"question\": \"a\", \"answer\": 1}\n{\"question\": \"b\"}");
    for changed in [
        "{\"question\": \"a\", \"answer\": 2}\n{\"question\": \"b\"}",
        "{\"question\": \"ab\", \"answer\": 1}\n{\"question\": \"\u{200b}\"}",
        "{\"question\": \"b\"}\n{\"question\": \"a\", \"answer\": 1}",
        "{\"question\": \"a\", \"answer\": 1}",
    ] {
        assert_ne!(base, of(changed), "{changed}");
    }
}

#[test]
fn gsm8k() {
    let Some(folder) = tamis_golden::data("gsm8k") else { return };
    let dataset = Dataset::read(&[folder.join("train.jsonl")], &ReadOptions::default()).unwrap();
    assert_eq!(dataset.prompts().len(), 7473);
    let first = &dataset.prompts()[0];
    assert!(matches!(&first.content, PromptContent::Text(text) if text.starts_with("Natalia sold clips")));
    assert!(first.ground_truth.as_deref().unwrap().ends_with("#### 72"));
}

/// A Parquet file with one column of bytes each, not declared as text. Some writers store text this way.
fn bytes_file(folder: &tempfile::TempDir, rows: &[(&[u8], &[u8])]) -> PathBuf {
    bytes_file_with(folder, "bytes.parquet", rows, &[0xff, 0xd8])
}

fn bytes_file_with(
    folder: &tempfile::TempDir,
    name: &str,
    rows: &[(&[u8], &[u8])],
    image: &'static [u8],
) -> PathBuf {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    let path = folder.path().join(name);
    let schema = "message m { required binary prompt; required binary answer; required binary image; }";
    let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, std::sync::Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let columns: [Vec<&[u8]>; 3] = [
        rows.iter().map(|row| row.0).collect(),
        rows.iter().map(|row| row.1).collect(),
        rows.iter().map(|_| image).collect(),
    ];
    for values in columns {
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<_> = values.into_iter().map(|value| ByteArray::from(value.to_vec())).collect();
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    path
}

#[test]
fn bytes_are_a_prompt_only_where_they_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let printed = |path: &Path, options: &ReadOptions| open(&folder, path, options).unwrap_err();
    let path = bytes_file(&folder, &[("6*7? é".as_bytes(), b"42"), (b"1+1?", b"2")]);
    let base64 = ReadOptions { binary_columns: BinaryColumns::Base64, ..ReadOptions::default() };
    let dataset = Dataset::read(&[&path], &base64).unwrap();
    assert_eq!(dataset.prompts()[0].content, PromptContent::Text("6*7? é".to_owned()));
    assert_eq!(dataset.prompts()[0].ground_truth.as_deref(), Some("42"));
    assert_eq!(dataset.prompts()[0].columns["image"], "/9g=");
    let path = bytes_file(&folder, &[(b"6*7?", b"42"), (b"\xff\xfe6*7?", b"42")]);
    insta::assert_snapshot!(printed(&path, &base64), @"FOLDER/bytes.parquet, row 2: `prompt` holds bytes that are not text (not UTF-8); write the column as text, or name another with data.columns.prompt");
    let path = bytes_file(&folder, &[(b"6*7?", b"42"), (b"1+1?", b"\x80")]);
    insta::assert_snapshot!(printed(&path, &base64), @"FOLDER/bytes.parquet, row 2: `answer` holds bytes that are not text (not UTF-8); write the column as text, or name another with data.columns.ground_truth");
    let columns = ColumnNames { prompt: Some("image".to_owned()), ..ColumnNames::default() };
    insta::assert_snapshot!(printed(&path, &ReadOptions { columns, ..base64.clone() }), @"FOLDER/bytes.parquet, row 1: `image` holds bytes that are not text (not UTF-8); write the column as text, or name another with data.columns.prompt");
    let skipping = ReadOptions { bad_rows: BadRows::Skip, ..base64 };
    assert_eq!(Dataset::read(&[&path], &skipping).unwrap().skipped_rows().len(), 1);
}

/// Bytes beside the prompt are refused with their row, or are base64 in every row. They are never text in one
/// row and base64 in another.
#[test]
fn bytes_beside_the_prompt_are_refused_or_encoded_throughout() {
    let folder = tempfile::tempdir().unwrap();
    let path = bytes_file(&folder, &[(b"6*7?", b"ab"), (b"1+1?", b"\xff")]);
    let columns = ColumnNames { ground_truth: Some("image".to_owned()), ..ColumnNames::default() };
    // `image` is the ground truth, so that `answer` is an extra column.
    let images = bytes_file_with(&folder, "text.parquet", &[(b"6*7?", b"ab"), (b"1+1?", b"\xff")], b"42");
    let options = ReadOptions { columns, ..ReadOptions::default() };
    insta::assert_snapshot!(open(&folder, &images, &options).unwrap_err(), @"FOLDER/text.parquet, row 2: `answer` holds bytes that are not text (not UTF-8), but reward functions get every column of a row as JSON; set data.binary_columns=base64 to pass such columns in base64, or remove the column from the file");
    let error = open(&folder, &path, &options).unwrap_err();
    assert!(error.contains("row 1: `image` holds bytes"), "the ground truth first: {error}");

    let base64 = ReadOptions { binary_columns: BinaryColumns::Base64, ..options.clone() };
    let dataset = Dataset::read(&[&images], &base64).unwrap();
    let answers: Vec<&Value> = dataset.prompts().iter().map(|prompt| &prompt.columns["answer"]).collect();
    assert_eq!(answers, ["YWI=", "/w=="]);
    assert_eq!(dataset.prompts()[0].columns["prompt"], "6*7?", "what is read as text is text");
    assert_eq!(dataset.prompts()[0].ground_truth.as_deref(), Some("42"));
    let skipping = ReadOptions { bad_rows: BadRows::Skip, ..options };
    assert_eq!(Dataset::read(&[&images], &skipping).unwrap().skipped_rows().len(), 1);
}

#[test]
fn a_line_without_end_is_refused_at_once() {
    let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    file.as_file().set_len(tamis_file::MAX_LINE + 10).unwrap();
    let error = Dataset::read(&[file.path()], &ReadOptions::default()).unwrap_err().to_string();
    assert!(
        error.ends_with(", line 1: the line has more than 64.0 MiB; write one object per line"),
        "{error}"
    );
}

fn seeing() -> ReadOptions {
    ReadOptions { images: Some(ImagePlaces::default()), ..ReadOptions::default() }
}

#[test]
fn rows_with_images() {
    let folder = tempfile::tempdir().unwrap();
    for (name, side) in [("a.png", 10), ("b.png", 20)] {
        std::fs::write(folder.path().join(name), png(side, side)).unwrap();
    }
    let read = |rows: &[Value], options: &ReadOptions| {
        let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
        open(&folder, &file(&folder, "rows.jsonl", &lines.join("\n")), options)
    };
    let user = |content: &str| json!([{"role": "user", "content": content}]);
    let rows = [
        json!({"prompt": user("<image> or <image>?"), "images": ["a.png", "b.png"], "answer": "1"}),
        json!({"question": "how many?", "image": "b.png"}),
        json!({"prompt": [{"role": "user", "content": [{"type": "text", "text": "see "}, {"type": "image"}]}], "image": {"path": "a.png"}}),
        json!({"prompt": user("<image> is a word here"), "images": null}),
    ];
    let dataset = read(&rows, &seeing()).unwrap();
    let prompts = dataset.prompts();
    let names = |prompt: &Prompt| prompt.images.iter().map(PromptImage::name).collect::<Vec<_>>().join(" ");
    assert_eq!(prompts.iter().map(names).collect::<Vec<_>>(), ["a.png b.png", "b.png", "a.png", ""]);
    assert_eq!(prompts[2].content.question(), "see <image>");
    assert_eq!(prompts[0].columns["images"], json!(["a.png", "b.png"]), "rewards see the row as it is");
    let fingerprint = dataset.fingerprint();
    let mut other = rows.clone();
    other[1]["image"] = json!("a.png");
    assert_ne!(read(&other, &seeing()).unwrap().fingerprint(), fingerprint);

    // Without image handling they are columns like any other.
    let plain = read(&rows[..2], &ReadOptions::default()).unwrap();
    assert!(plain.prompts().iter().all(|prompt| prompt.images.is_empty()));

    let refused = |row: Value| read(&[rows[1].clone(), row], &seeing()).unwrap_err();
    insta::assert_snapshot!(refused(json!({"prompt": user("<image>?"), "images": ["a.png", "b.png"]})), @"FOLDER/rows.jsonl, line 2: `prompt` has 1 `<image>` for 2 images; write one for each, or none: then they go before the text of the user's first message, which must be there");
    insta::assert_snapshot!(refused(json!({"prompt": [{"role": "system", "content": "x"}], "image": "a.png"})), @"FOLDER/rows.jsonl, line 2: `prompt` has 0 `<image>` for 1 images; write one for each, or none: then they go before the text of the user's first message, which must be there");
    insta::assert_snapshot!(refused(json!({"question": "?", "images": ["a.png", "c.png"]})), @"FOLDER/rows.jsonl, line 2: image 2 of `images`: FOLDER/c.png cannot be read: No such file or directory (os error 2); paths are relative to the data's file, or to data.image_folder; data.images=false skips such columns");

    let columns = ColumnNames { images: Some("picture".to_owned()), ..ColumnNames::default() };
    let named = ReadOptions { columns, ..seeing() };
    insta::assert_snapshot!(read(&rows[..2], &named).unwrap_err(), @"no row has the column `picture` that data.columns.images names for images; correct the name, or remove the setting");
    let mixed = [json!({"question": "?", "picture": "a.png"}), json!({"question": "!"})];
    let dataset = read(&mixed, &named).unwrap();
    assert_eq!(dataset.prompts().iter().map(|prompt| prompt.images.len()).collect::<Vec<_>>(), [1, 0]);
    let skipping = ReadOptions { bad_rows: BadRows::Skip, ..seeing() };
    let broken = [rows[1].clone(), json!({"question": "?", "image": "c.png"})];
    assert_eq!(read(&broken, &skipping).unwrap().skipped_rows().len(), 1);
}

/// Bytes of a Parquet column become a file, and a reward function gets its path.
#[test]
fn images_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let rows: [(&[u8], &[u8]); 2] = [(b"how many?", b"1"), (b"and here?", b"2")];
    let path = bytes_file_with(&folder, "images.parquet", &rows, png(30, 20).leak());
    let store = folder.path().join("images");
    let places = ImagePlaces { folder: None, store: Some(store.clone()) };
    let options = ReadOptions { images: Some(places), ..ReadOptions::default() };
    let dataset = open(&folder, &path, &options).unwrap();
    let image = &dataset.prompts()[0].images[0];
    assert_eq!((image.width, image.height, dataset.prompts()[1].images[0].clone()), (30, 20, image.clone()));
    assert_eq!(std::fs::read(&image.path).unwrap(), png(30, 20));
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 1);
    assert_eq!(dataset.prompts()[0].columns["image"], json!([image.path]));
    assert_eq!(dataset.prompts()[0].columns["answer"], "1");
}
