use std::path::Path;

use serde_json::{Value, json};
use tamis_core::fault;

use super::*;
use crate::decode::IncrementalDecoder;
use crate::stop::StopStrings;

fn golden() -> Tokenizer {
    Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The whole error chain, without the temporary folder's name.
fn chain(error: &dyn std::error::Error, folder: &Path) -> String {
    fault::chain(error).replace(&folder.display().to_string(), "FOLDER")
}

fn write(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), value.to_string()).unwrap();
}

/// A folder with a character tokenizer, for tests that damage it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Tokenizer::characters("ab").unwrap().save(folder.path()).unwrap();
    folder
}

#[test]
fn reference_ids_and_texts_at_once_and_one_by_one() {
    let tokenizer = golden();
    let expected = tamis_golden::load("hf/tokenizer/expected");
    let cases = expected["encode"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
        let decoded = case["decoded"].as_str().unwrap();
        assert_eq!(tokenizer.decode(&expected, false).unwrap(), decoded);
        let mut decoder = IncrementalDecoder::new(false);
        let mut pieces = String::new();
        for &id in &expected {
            pieces.push_str(decoder.push(&tokenizer, id).unwrap());
            assert!(!decoder.text().contains('\u{fffd}'));
        }
        pieces.push_str(decoder.finish(&tokenizer).unwrap());
        assert_eq!((pieces.as_str(), decoder.text()), (decoded, decoded));
    }
}

#[test]
fn special_tokens_of_the_reference() {
    let tokenizer = golden();
    assert_eq!(tokenizer.eos_id(), tokenizer.token_id("<|im_end|>"));
    assert_eq!(tokenizer.bos_id(), None);
    let text = "<|im_start|>user\nhi<|im_end|>";
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "user\nhi");
    assert_eq!(tokenizer.num_rows(), tokenizer.vocab_size());
    assert_eq!(tokenizer.token(2).as_deref(), Some("<|im_end|>"));
}

#[test]
fn files_are_saved_as_they_were() {
    let source = tamis_golden::folder().join("hf/tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("deep/er");
    golden().save(&target).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        assert_eq!(std::fs::read(source.join(name)).unwrap(), std::fs::read(target.join(name)).unwrap());
    }
    assert!(Tokenizer::load(&target).unwrap().chat_template().is_ok());
}

/// Random ids, including incomplete characters and special tokens.
#[test]
fn random_tokens_one_by_one_give_the_same_text() {
    let tokenizer = golden();
    let num = tokenizer.num_rows();
    for round in 0..200usize {
        let ids: Vec<u32> = (0..30usize)
            .map(|place| (((round * 7919 + place * 104_729) ^ (place << 9) ^ (round << 3)) % num) as u32)
            // Many bytes of characters beyond ASCII, so that many characters are incomplete.
            .map(|id| if id % 3 == 0 { 110 + id % 100 } else { id })
            .collect();
        for skip_special in [false, true] {
            let mut decoder = IncrementalDecoder::new(skip_special);
            for &id in &ids {
                decoder.push(&tokenizer, id).unwrap();
            }
            decoder.finish(&tokenizer).unwrap();
            assert_eq!(decoder.text(), tokenizer.decode(&ids, skip_special).unwrap(), "{ids:?}");
        }
    }
}

#[test]
fn a_cut_character_is_held_back_until_the_end() {
    let tokenizer = golden();
    let ids = tokenizer.encode("a😀", false).unwrap();
    assert!(ids.len() > 3, "the emoji must take several tokens for this test to mean something");
    let mut decoder = IncrementalDecoder::new(false);
    for &id in &ids[..ids.len() - 1] {
        decoder.push(&tokenizer, id).unwrap();
    }
    assert_eq!(decoder.text(), "a");
    decoder.finish(&tokenizer).unwrap();
    assert_eq!(decoder.text(), tokenizer.decode(&ids[..ids.len() - 1], false).unwrap());
    assert!(decoder.text().ends_with('\u{fffd}'));
}

#[test]
fn stop_strings_over_several_tokens() {
    let tokenizer = golden();
    let stops = StopStrings::new(vec!["€5 😀".to_owned(), "never".to_owned()]).unwrap();
    let ids = tokenizer.encode("naïve 價格 €5 😀 and more", false).unwrap();
    let mut decoder = IncrementalDecoder::new(true);
    let mut hit = None;
    for (i, &id) in ids.iter().enumerate() {
        let before = decoder.text().len();
        decoder.push(&tokenizer, id).unwrap();
        hit = stops.find(decoder.text(), before);
        if hit.is_some() {
            assert!(i + 1 < ids.len(), "found before the end");
            break;
        }
    }
    let hit = hit.unwrap();
    assert_eq!(&decoder.text()[..hit.start], "naïve 價格 ");
    assert_eq!(&decoder.text()[hit.start..hit.end], "€5 😀");
}

#[test]
fn characters_round_trip_and_load_again() {
    let tokenizer = Tokenizer::characters("0123456789+-*/=() \né😀").unwrap();
    let text = "12+(3*4)=24\né😀 ";
    let ids = tokenizer.encode(text, true).unwrap();
    assert_eq!(ids.len(), text.chars().count());
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    assert_eq!(tokenizer.encode("1<|end|>", false).unwrap(), [3, 1]);
    assert_eq!(tokenizer.decode(&[3, 1, 0], true).unwrap(), "1");
    assert_eq!(tokenizer.decode(&[3, 1], false).unwrap(), "1<|end|>");
    assert_eq!((tokenizer.eos_id(), tokenizer.bos_id()), (Some(1), None));
    assert_eq!(tokenizer.vocab_size(), 23);
    let folder = tempfile::tempdir().unwrap();
    tokenizer.save(folder.path()).unwrap();
    let loaded = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(loaded.encode(text, false).unwrap(), ids);
    assert_eq!(loaded.eos_id(), Some(1));
}

#[test]
fn a_character_outside_the_alphabet_is_named() {
    let tokenizer = Tokenizer::characters("0123456789+= ").unwrap();
    let error = tokenizer.encode("<|end|>1+1=x", false).unwrap_err();
    insta::assert_snapshot!(error, @r#"character 'x' (at character 11 of "<|end|>1+1=x") is not in the tokenizer's alphabet"#);
    let error = tokenizer.encode(&format!("{}\t{}", "1".repeat(50), "2".repeat(50)), false).unwrap_err();
    insta::assert_snapshot!(error, @r#"character '\t' (at character 50 of "…11111111111111111111\t2222222222222222222…") is not in the tokenizer's alphabet"#);
    let error = Tokenizer::characters("abca").unwrap_err();
    insta::assert_snapshot!(error, @"the alphabet has 'a' twice");
}

#[test]
fn end_tokens_of_both_files() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::characters("ab").unwrap();
    let model = folder.path();
    assert_eq!(tokenizer.end_token_ids(model).unwrap(), [1]);
    // As long as there is no generation_config.json, config.json counts.
    let path = model.join("config.json");
    for (declared, expected) in [
        (json!({"eos_token_id": [3, 0]}), vec![0, 1, 3]),
        (json!({"eos_token_id": 3}), vec![1, 3]),
        (json!({"text_config": {"eos_token_id": [0]}}), vec![0, 1]),
        (json!({"model_type": "llama"}), vec![1]),
    ] {
        std::fs::write(&path, declared.to_string()).unwrap();
        assert_eq!(tokenizer.end_token_ids(model).unwrap(), expected);
    }
    std::fs::write(&path, r#"{"eos_token_id": "</s>"}"#).unwrap();
    let error = tokenizer.end_token_ids(model).unwrap_err();
    insta::assert_snapshot!(chain(&error, model), @r#"`eos_token_id` in FOLDER/config.json must be a token id or a list of them, got "</s>""#);
    let path = model.join("generation_config.json");
    for (declared, expected) in [
        (json!({"eos_token_id": 3}), vec![1, 3]),
        (json!({"eos_token_id": [3, 1, 0]}), vec![0, 1, 3]),
        (json!({"eos_token_id": null}), vec![1]),
        (json!({}), vec![1]),
    ] {
        std::fs::write(&path, declared.to_string()).unwrap();
        assert_eq!(tokenizer.end_token_ids(model).unwrap(), expected);
    }
    std::fs::write(&path, r#"{"eos_token_id": [1, "2"]}"#).unwrap();
    let error = tokenizer.end_token_ids(model).unwrap_err();
    insta::assert_snapshot!(chain(&error, folder.path()), @r#"`eos_token_id` in FOLDER/generation_config.json must be a token id or a list of them, got [1,"2"]"#);
    std::fs::write(&path, "{").unwrap();
    let error = tokenizer.end_token_ids(model).unwrap_err();
    insta::assert_snapshot!(chain(&error, folder.path()), @"FOLDER/generation_config.json is not valid JSON: \
         EOF while parsing an object at line 1 column 1");
}

#[test]
fn special_tokens_as_objects_and_from_the_map() {
    let folder = folder();
    write(
        folder.path(),
        "tokenizer_config.json",
        &json!({"pad_token": {"content": "<|pad|>", "special": true}, "add_bos_token": true}),
    );
    write(
        folder.path(),
        "special_tokens_map.json",
        &json!({"eos_token": "b", "pad_token": "a", "additional_special_tokens": []}),
    );
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(tokenizer.eos_id(), Some(3));
}

#[test]
fn tokens_declared_in_the_configuration_are_added() {
    let folder = folder();
    let declare = |id: &str| json!({"added_tokens_decoder": {"0": {"content": "<|pad|>", "special": true}, id: {"content": "<new>", "special": true}}});
    write(folder.path(), "tokenizer_config.json", &declare("4"));
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(tokenizer.encode("a<new>b", false).unwrap(), [2, 4, 3]);
    write(folder.path(), "tokenizer_config.json", &declare("9"));
    let error = Tokenizer::load(folder.path()).unwrap_err();
    insta::assert_snapshot!(error, @r#"added token "<new>" is declared with id 9, but tokenizer.json gives it 4"#);
}

#[test]
fn errors_of_loading() {
    let folder = folder();
    let at = folder.path();
    let load = || chain(&Tokenizer::load(at).unwrap_err(), at);
    write(at, "tokenizer_config.json", &json!({"eos_token": "<eos>"}));
    insta::assert_snapshot!(load(), @r#"`eos_token` is "<eos>", which tokenizer.json does not have"#);
    write(at, "tokenizer_config.json", &json!({"eos_token": 7}));
    insta::assert_snapshot!(load(), @"`eos_token` in FOLDER/tokenizer_config.json must be a text or an object with `content`, got 7");
    write(at, "tokenizer_config.json", &json!({"added_tokens_decoder": {"x": {}}}));
    insta::assert_snapshot!(load(), @"`added_tokens_decoder.x` in FOLDER/tokenizer_config.json must be an \
         object with `content` under a token id, got {}");
    std::fs::write(at.join("tokenizer.json"), r#"{"model": {"type": "Nonsense"}}"#).unwrap();
    insta::assert_snapshot!(load(), @"FOLDER/tokenizer.json does not describe a tokenizer: data did not \
         match any variant of untagged enum ModelUntagged at line 1 column 31");
    std::fs::write(at.join("tokenizer.json"), "{").unwrap();
    insta::assert_snapshot!(load(), @"FOLDER/tokenizer.json is not valid JSON: EOF while parsing an object at line 1 column 1");
    std::fs::remove_file(at.join("tokenizer.json")).unwrap();
    insta::assert_snapshot!(load(), @"no tokenizer.json in FOLDER; save it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`");
    std::fs::create_dir(at.join("tokenizer.json")).unwrap();
    insta::assert_snapshot!(load(), @"failed to read FOLDER/tokenizer.json: it is a folder, not a regular file");
    let absent = Tokenizer::load(&at.join("Qwen/Qwen2-7B")).unwrap_err();
    insta::assert_snapshot!(chain(&absent, at), @"there is no folder FOLDER/Qwen/Qwen2-7B: a model is read from disk; download one from a hub first (`hf download NAME --local-dir FOLDER`)");
}

#[test]
fn a_folder_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Tokenizer::characters("a").unwrap().save(&file).unwrap_err();
    insta::assert_snapshot!(chain(&error, folder.path()), @"failed to write FOLDER/file/tokenizer.json: File exists (os error 17)");
}

/// Bytes of tokenizer files changed anywhere: a tokenizer or an error, never a panic.
#[test]
fn mutated_tokenizers_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let small = Tokenizer::characters("0123456789+-*/= ab").unwrap();
    small.save(folder.path()).unwrap();
    let key = |round: usize, place: usize| (round * 7919 + place * 104_729) ^ (round << 7);
    let mut num_errors = 0;
    for round in 0..500 {
        let name = ["tokenizer.json", "tokenizer_config.json"][usize::from(round % 4 == 3)];
        let whole = small.files[name].clone();
        let mut bytes = whole.clone();
        for place in 0..=(round % 3) {
            let at = key(round, place) % bytes.len();
            match key(round, place + 10) % 3 {
                0 => bytes[at] ^= 1 << (key(round, place + 20) % 7),
                1 => drop(bytes.remove(at)),
                _ => bytes[at] = b"{}[]\",:0"[key(round, place + 30) % 8],
            }
        }
        std::fs::write(folder.path().join(name), &bytes).unwrap();
        match Tokenizer::load(folder.path()) {
            Ok(tokenizer) => {
                if let Ok(ids) = tokenizer.encode("12+3=15<|end|>\nx", true) {
                    let _ = tokenizer.decode(&ids, false);
                }
            }
            Err(_) => num_errors += 1,
        }
        std::fs::write(folder.path().join(name), &whole).unwrap();
    }
    assert!(num_errors > 50, "mutations must hurt: {num_errors}");
}

/// A `tokenizer.json` over letters with this normaliser, pre-tokenizer and decoder.
fn letters(parts: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut model = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "post_processor": null,
        "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2}, "merges": []},
    });
    model.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    write(folder.path(), "tokenizer.json", &model);
    folder
}

#[test]
fn steps_that_grow_a_text_without_end_are_refused() {
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let steps: Vec<Value> = (0..8).map(|_| replace("a", "aa")).collect();
    let grows = letters(&json!({"normalizer": {"type": "Sequence", "normalizers": steps}}));
    let tokenizer = Tokenizer::load(grows.path()).unwrap();
    assert_eq!(tokenizer.encode(&"b".repeat(10_000), false).unwrap().len(), 10_000);
    assert_eq!(tokenizer.encode("ab", false).unwrap().len(), 257);
    let error = tokenizer.encode(&"a".repeat(10_000), false).unwrap_err();
    insta::assert_snapshot!(error, @r#"the normaliser in tokenizer.json makes more than 16 times its length of "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…" (at its step `Replace`): is the file damaged?"#);

    let steps: Vec<Value> = (0..7).map(|_| replace("a", "aa")).collect();
    let grows = letters(&json!({"decoder": {"type": "Sequence", "decoders": steps}}));
    let error = Tokenizer::load(grows.path()).unwrap_err();
    insta::assert_snapshot!(chain(&error, grows.path()), @"`decoder` in FOLDER/tokenizer.json may make a text 128 times as long, step by step, which no real tokenizer does: is the file damaged?");
}

#[test]
fn characters_without_a_token_are_known() {
    let folder = letters(&json!({}));
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(tokenizer.encode("abc", false).unwrap(), [0, 1], "the library leaves it out");
    let lost: Vec<char> = "a bcé\n".chars().filter(|&letter| tokenizer.is_lost(letter)).collect();
    assert_eq!(lost, ['c', 'é']);
    let model = json!({"type": "BPE", "vocab": {"a": 0, "<unk>": 1}, "merges": [], "unk_token": "<unk>"});
    let folder = letters(&json!({"model": model}));
    write(folder.path(), "tokenizer_config.json", &json!({"unk_token": "<unk>"}));
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert!(tokenizer.is_lost('b') && !tokenizer.is_lost('a'));
    let golden = golden();
    assert!(!"aé墙\u{301}😀".chars().any(|letter| golden.is_lost(letter)));
}
