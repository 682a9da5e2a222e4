use serde_json::json;

use super::*;

fn round(message: &WireMessage) -> WireMessage {
    let (content_type, body) = message.to_body();
    WireMessage::read(content_type, &body).expect("read")
}

fn wave() -> Wave<'static> {
    let of =
        |prompt: &'static [u32], completion: &'static [u32]| LearnerSequence::of_text(prompt, completion);
    Wave {
        sequences: vec![of(&[1, 2], &[3]), of(&[1, 2], &[4, 5]), of(&[1, 2, 3], &[6]), of(&[1, 2], &[7])],
        ranks: vec![0, 0, 1, 1],
    }
}

#[test]
fn settings_and_columns_come_through_to_the_bit() {
    let settings = json!({"network": "policy", "learning_rate": 0.1 + 0.2, "least": f64::MIN_POSITIVE});
    assert_eq!(round(&WireMessage::new(&settings)), WireMessage::new(&settings));
    let odd = f32::from_bits(0x7fc0_1234);
    let message = WireMessage::new(&settings)
        .with("norm", WireColumn::F64(vec![f64::NAN]))
        .with("logprob", WireColumn::F32(vec![-0.0, odd, f32::INFINITY]))
        .with("none", WireColumn::I64(Vec::new()));
    let back = round(&message);
    assert_eq!(back.settings, settings);
    assert_eq!(back.to_body().1, message.to_body().1);
    let WireColumn::F32(values) = &back.columns["logprob"] else { panic!("f32") };
    assert_eq!(
        values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
        [1 << 31, 0x7fc0_1234, 0x7f80_0000]
    );
}

#[test]
fn images_of_each_prompt_are_named_and_tell_prompts_apart() {
    let (one, other) = (["/a.png".to_owned()], ["/b.png".to_owned()]);
    let of = |images, completion| LearnerSequence { images, ..LearnerSequence::of_text(&[1, 2], completion) };
    let sequences = [of(&one, &[3]), of(&one, &[4]), of(&other, &[5]), of(&[], &[6])];
    let message = round(&WireMessage::new(&json!({"network": "policy"})).with_wave(&Wave::of(&sequences)));
    assert_eq!(message.columns["prompt_of"], WireColumn::I32(vec![0, 0, 1, 2]));
    assert_eq!(message.settings["images"], json!([["/a.png"], ["/b.png"], []]));
    assert_eq!(WireMessage::new(&json!({})).with_wave(&wave()).settings, json!({}));
}

#[test]
fn a_wave_comes_through_and_names_a_shared_prompt_once() {
    let mut message = round(&WireMessage::new(&json!({})).with_wave(&wave()));
    assert_eq!(message.columns["prompt_token"], WireColumn::I32(vec![1, 2, 1, 2, 3, 1, 2]));
    assert_eq!(message.columns["prompt_of"], WireColumn::I32(vec![0, 0, 1, 2]));
    let owned = message.take_wave().expect("a wave");
    let (found, wanted) = (owned.wave(), wave());
    assert_eq!(found.ranks, wanted.ranks);
    let tokens = |wave: &Wave<'_>| -> Vec<(Vec<u32>, Vec<u32>)> {
        wave.sequences.iter().map(|one| (one.prompt.to_vec(), one.completion.to_vec())).collect()
    };
    assert_eq!(tokens(&found), tokens(&wanted));
}

#[test]
fn what_is_no_wave_is_refused_by_the_name_of_its_column() {
    let refused = |name: &str, column: WireColumn| {
        let message = WireMessage::new(&json!({})).with_wave(&wave()).with(name, column);
        round(&message).take_wave().err().expect("refused").0
    };
    insta::assert_snapshot!(refused("prompt_token", WireColumn::F32(vec![1.0])), @"column `prompt_token` is not of type i32");
    insta::assert_snapshot!(refused("completion_token", WireColumn::I32(vec![3, 4, -1, 6, 7])), @"column `completion_token` has a token below 0");
    insta::assert_snapshot!(refused("completion_offset", WireColumn::I64(vec![0, 1, 1, 4, 5])), @"column `completion_offset` must begin with 0, end with 5 and rise: every row has a token");
    insta::assert_snapshot!(refused("completion_offset", WireColumn::I64(vec![])), @"column `completion_offset` must begin with 0, end with 5 and rise: every row has a token");
    insta::assert_snapshot!(refused("prompt_of", WireColumn::I32(vec![0, 0, 1, 3])), @"column `prompt_of` must be below 3 and may not fall");
    insta::assert_snapshot!(refused("rank", WireColumn::I32(vec![0, 1, 0, 1])), @"column `rank` must be below 1048576 and may not fall");
    insta::assert_snapshot!(refused("rank", WireColumn::I32(vec![0])), @"column `rank` has 1 numbers for 4 sequences");
    let none = WireMessage::new(&json!({})).take_wave().err().expect("refused").0;
    insta::assert_snapshot!(none, @"there is no column `prompt_token`");
    let mut short = WireMessage::new(&json!({})).with("logprob", WireColumn::F32(vec![1.0]));
    insta::assert_snapshot!(short.take_token_columns((2, 0)).expect_err("refused"), @"column `logprob` has 1 numbers for 2 tokens");
}

fn drawing(max_tokens: usize) -> Drawing {
    Drawing {
        temperature: 0.7,
        top_k: 3,
        top_p: 0.9,
        min_p: 0.0,
        repetition_penalty: 1.1,
        max_tokens,
        end_tokens: vec![2, 5],
    }
}

#[test]
fn what_is_to_be_generated_comes_through() {
    let group = |prompt: &[u32], max_tokens, samples: &[u64]| BeginningGroup {
        prompt: prompt.to_vec(),
        drawing: drawing(max_tokens),
        samples: samples.iter().map(|&sample| (sample, Key::from_bits(u64::MAX - sample))).collect(),
    };
    let begin = vec![group(&[1, 2], 9, &[0, 1]), group(&[7], 4, &[2]), group(&[7, 8], 9, &[3, 1 << 63])];
    let asked = Generate { begin, abort: vec![11, u64::MAX], seconds: 0.25 };
    let mut message = round(&WireMessage::of_generate(&asked));
    assert_eq!(message.columns["prompt_drawing"], WireColumn::I32(vec![0, 1, 0]), "those alike once");
    assert_eq!(message.take_generate().expect("read"), asked);
    let nothing = Generate::default();
    assert_eq!(round(&WireMessage::of_generate(&nothing)).take_generate().expect("read"), nothing);
    let refused = |name: &str, column: WireColumn| {
        let message = WireMessage::of_generate(&asked).with(name, column);
        round(&message).take_generate().expect_err("refused").0
    };
    insta::assert_snapshot!(refused("prompt_drawing", WireColumn::I32(vec![0, 2, 0])), @"column `prompt_drawing` must be below 2");
    insta::assert_snapshot!(refused("prompt_of", WireColumn::I32(vec![0, 0, 1, 2, -1])), @"column `prompt_of` must be below 3");
    insta::assert_snapshot!(refused("key", WireColumn::I64(vec![1])), @"column `key` has 1 numbers for 5 samples");
}

#[test]
fn what_was_generated_comes_through_to_the_bit() {
    let grown = |sample, tokens: &[u32], end| SampleGrowth {
        sample,
        tokens: tokens.to_vec(),
        logprobs: tokens.iter().map(|&token| -1.0 / (token + 3) as f32).collect(),
        entropies: tokens.iter().map(|&token| 1.0 / (token + 7) as f32).collect(),
        end,
    };
    let generated = GrownSamples {
        grown: vec![
            grown(4, &[1, 2, 3], Some(FinishReason::Stop)),
            grown(u64::MAX, &[9], Some(FinishReason::Length)),
            grown(2, &[5, 6], None),
        ],
        refused: vec![crate::learner::generate::RefusedSample { sample: 7, reason: "no room".to_owned() }],
        num_open: 1,
    };
    let mut message = round(&WireMessage::of_generated(generated.clone()));
    assert_eq!(message.take_generated(true).expect("read"), generated);
    // A learner that returns no entropies.
    let mut message = round(&WireMessage::of_generated(generated.clone()));
    message.columns.remove("entropy");
    assert_eq!(message.clone().take_generated(true).expect_err("refused").0, "there is no column `entropy`");
    let without = message.take_generated(false).expect("read");
    assert_eq!(without.grown[0].logprobs, generated.grown[0].logprobs);
    assert!(without.grown.iter().flat_map(|grown| &grown.entropies).all(|entropy| entropy.is_nan()));
    let wrong = |name: &str, column: WireColumn| {
        let message = WireMessage::of_generated(generated.clone()).with(name, column);
        round(&message).take_generated(true).expect_err("refused").0
    };
    insta::assert_snapshot!(wrong("end", WireColumn::I32(vec![1, 2, 3])), @"column `end` holds 3, which is none of 0, 1 and 2");
    insta::assert_snapshot!(wrong("logprob", WireColumn::F32(vec![1.0])), @"column `logprob` has 1 numbers for 6 tokens");
    insta::assert_snapshot!(wrong("sample", WireColumn::I64(vec![1])), @"column `sample` has 1 numbers for 3 rows of tokens");
}

#[test]
fn a_body_that_is_neither_is_refused() {
    let error =
        |content_type: &str, body: &[u8]| WireMessage::read(content_type, body).expect_err("refused").0;
    assert!(error(JSON, b"{").starts_with("no JSON"), "{}", error(JSON, b"{"));
    assert!(error(SAFETENSORS, b"").starts_with("no safetensors"));
    assert!(error(SAFETENSORS, &[255; 64]).starts_with("no safetensors"));
    let (_, mut body) = WireMessage::new(&json!({})).with_wave(&wave()).to_body();
    body.truncate(body.len() - 1);
    assert!(error(SAFETENSORS, &body).starts_with("no safetensors"));
    assert_eq!(WireMessage::read("", b"").expect("nothing").settings, json!({}));
    insta::assert_snapshot!(error(JSON, b"[]"), @"no JSON object");
    insta::assert_snapshot!(error(JSON, br#"{"a": {"b": 1, "b": 2}}"#), @"no JSON: key `b` occurs twice in one object at line 1 column 18");
    let exact = [0.1, 1e-300, -0.0, 12_345_678_901_234_567.0, f64::MIN_POSITIVE];
    let body = json!({"all": exact, "large": u64::MAX, "negative": i64::MIN, "text": "\u{e9}", "none": null})
        .to_string();
    assert_eq!(WireMessage::read(JSON, body.as_bytes()).expect("JSON").settings.to_string(), body);
    let column = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let body = [&(column.len() as u64).to_le_bytes()[..], column.as_bytes(), &[0; 4]].concat();
    assert!(error(SAFETENSORS, &body).contains("key `a` occurs twice"), "{}", error(SAFETENSORS, &body));
}
