//! Sampling with tamis's keys: exactly the samples of the engine by itself, whatever else the server does.

use serde_json::{Value, json};
use tamis_core::random::{Key, Purpose};
use tamis_model::{Sequence, Threads, Workspace, score, score_with_top};
use tamis_rollout::Sampling;
use tamis_text::regex_mask::WholeRegex;

use super::harness::*;

fn key(i: u64) -> Key {
    Key::new(7, Purpose::Rollout).with(i)
}

const FORM: &str = "[a-z\u{e9} ]{3,60}\\.";

fn sampling(i: u64) -> Sampling {
    let plain = Sampling::plain(40);
    match i % 6 {
        0 => plain,
        1 => Sampling { temperature: 0.7, top_p: 0.95, ..plain },
        2 => Sampling { top_k: Some(20), min_p: 0.02, repetition_penalty: 1.1, ..plain },
        3 => Sampling { temperature: 0.0, max_response_length: 25, ..plain },
        4 => Sampling { regex: Some(FORM.to_owned()), ..plain },
        _ => Sampling { temperature: 1.3, stop: vec!["e".to_owned(), "the ".to_owned()], ..plain },
    }
}

fn as_json(sampling: &Sampling) -> Value {
    json!({
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_response_length,
        "stop": sampling.stop,
        "structured_outputs": sampling.regex.as_ref().map(|regex| json!({"regex": regex})),
        "logprobs": 0,
    })
}

fn prompt(i: u64) -> Vec<u32> {
    (0..3 + i % 7).map(|t| (i / 2 * 31 + t * 17) as u32 % 300 + 5).collect()
}

/// Many clients at once, also with groups: tokens, log-probabilities and entropy are, bit for bit, those of
/// the engine by itself.
#[test]
fn by_our_keys_the_server_samples_what_the_engine_does_whatever_else_runs() {
    let server = serve(settings());
    let mut asked = Vec::new();
    for i in 0..48 {
        // Every second request shares its prompt with the previous one.
        let (prompt, sampling) = (prompt(i / 2 * 2), sampling(i / 2));
        let n = if i % 7 == 0 { 3 } else { 1 };
        let keys: Vec<Key> = (0..n).map(|sample| key(100 * i + sample)).collect();
        let texts: Vec<String> = keys.iter().map(Key::to_string).collect();
        let own = if n == 1 { json!({"key": texts[0]}) } else { json!({"keys": texts}) };
        let mut params = as_json(&sampling);
        params["n"] = json!(n);
        let body = json!({"token_ids": prompt, "sampling_params": params, "tamis": own});
        asked.push((server.later("/inference/v1/generate", body), alone(1, &prompt, keys, &sampling)));
    }
    for (i, (answer, expected)) in asked.into_iter().enumerate() {
        let answer = answer.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), expected.len());
        for (choice, (tokens, logprobs, entropy)) in choices.iter().zip(&expected) {
            assert_eq!(&choice_tokens(choice), tokens, "request {i}");
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&choice_logprobs(choice)), bits(logprobs), "request {i}");
            assert_eq!(choice["tamis"]["entropy"].as_f64(), Some(*entropy), "request {i}");
            let spans = json!([{"version": "default", "start": 0, "end": tokens.len()}]);
            assert_eq!(choice["weight_versions"], spans);
        }
    }
}

/// Log-probabilities of a prompt's tokens are those of the training pass, without the first. They do not
/// change the sampled tokens.
#[test]
fn a_prompt_is_told_with_its_log_probabilities() {
    let server = serve(settings());
    let prompt = prompt(6);
    let sequence = Sequence { tokens: &prompt, start: 1 };
    let scores = score(&Threads::new(1), &model(1), &mut Workspace::default(), &[sequence], 1.0).unwrap();
    let check = |answered: &Value| {
        let answered = answered.as_array().unwrap();
        assert_eq!(answered.len(), prompt.len());
        assert!(answered[0].is_null());
        for ((answered, token), expected) in
            answered[1..].iter().zip(&prompt[1..]).zip(scores.logprobs.values())
        {
            let logprob = answered[token.to_string()]["logprob"].as_f64().unwrap();
            assert_eq!((logprob as f32).to_bits(), expected.to_bits());
        }
    };
    // For any sampling temperature.
    let params = json!({"max_tokens": 4, "seed": 3, "temperature": 0.5});
    let mut scored = params.clone();
    scored["prompt_logprobs"] = json!(0);
    let generate = |params: &Value| {
        server.json("/inference/v1/generate", &json!({"token_ids": prompt, "sampling_params": params}))
    };
    let answer = generate(&scored);
    check(&answer["prompt_logprobs"]);
    assert_eq!(choice_tokens(&answer["choices"][0]), choice_tokens(&generate(&params)["choices"][0]));
    scored["prompt"] = json!([[10], prompt]);
    let answer = server.json("/v1/completions", &scored);
    assert_eq!(answer["choices"][0]["prompt_logprobs"], json!([null]));
    check(&answer["choices"][1]["prompt_logprobs"]);
    assert!(generate(&params)["prompt_logprobs"].is_null());

    // With the likeliest at every place, ranked, and the token itself wherever it ranks.
    scored["prompt_logprobs"] = json!(3);
    let answer = server.json("/v1/completions", &scored);
    let listed = &answer["choices"][1]["prompt_logprobs"];
    check(listed);
    let (_, top) =
        score_with_top(&Threads::new(1), &model(1), &mut Workspace::default(), &[sequence], 1.0, 3).unwrap();
    let mut num_others = 0;
    for (place, (tokens, logprobs)) in top.tokens.chunks(3).zip(top.logprobs.chunks(3)).enumerate() {
        let (own, listed) = (prompt[place + 1], listed[place + 1].as_object().unwrap());
        for ((rank, token), logprob) in (1..).zip(tokens).zip(logprobs) {
            let entry = &listed[&token.to_string()];
            assert_eq!((entry["logprob"].as_f64().unwrap() as f32).to_bits(), logprob.to_bits());
            assert_eq!(entry["rank"], json!(if *token == own { top.ranks[place] } else { rank }));
            assert!(entry["decoded_token"].is_string());
        }
        let is_other = !tokens.contains(&own);
        assert_eq!(listed.len(), 3 + usize::from(is_other));
        assert_eq!(listed[&own.to_string()]["rank"], json!(top.ranks[place]));
        assert!(!is_other || top.ranks[place] > 3);
        num_others += usize::from(is_other);
    }
    assert!(num_others > 0, "every token is among the likeliest");
}

/// On every route, whole and streamed: the text matches, or is the beginning of a match if it was cut.
#[test]
fn what_is_bound_to_an_expression_matches_it() {
    let server = serve(settings());
    let form = WholeRegex::new(FORM).unwrap();
    let check = |text: &str, finish: &str| {
        let fits = if finish == "stop" { form.matches(text) } else { form.may_begin(text) };
        assert!(fits, "{finish}: {text:?}");
    };
    let sampling = json!({"max_tokens": 90, "n": 3, "structured_outputs": {"regex": FORM}});
    for seed in 0..4 {
        let mut body = sampling.clone();
        body["seed"] = json!(seed);
        let mut chat = body.clone();
        body["prompt"] = json!([10, 20, 30]);
        chat["messages"] = json!([{"role": "user", "content": "Say a word."}]);
        for choice in server.json("/v1/completions", &body)["choices"].as_array().unwrap() {
            check(choice["text"].as_str().unwrap(), choice["finish_reason"].as_str().unwrap());
        }
        for choice in server.json("/v1/chat/completions", &chat)["choices"].as_array().unwrap() {
            let text = choice["message"]["content"].as_str().unwrap();
            check(text, choice["finish_reason"].as_str().unwrap());
        }
    }
}

/// The same request gets the same answer when sixty others run beside it, on every route and in every form.
#[test]
fn each_of_many_clients_gets_what_it_would_get_alone() {
    let server = serve(settings());
    let bodies: Vec<(&str, Value)> = (0..20)
        .flat_map(|i| {
            let prompt: Vec<u32> = prompt(i);
            let messages = json!([{"role": "user", "content": format!("What is {i} + {i}?")}]);
            [
                ("/v1/completions", json!({"prompt": prompt, "seed": i, "max_tokens": 20, "n": 1 + i % 3, "logprobs": i % 4, "return_token_ids": true})),
                ("/v1/chat/completions", json!({"messages": messages, "seed": i, "max_tokens": 15, "logprobs": true, "top_logprobs": i % 3})),
                ("/inference/v1/generate", json!({"token_ids": prompt, "sampling_params": {"seed": i, "logprobs": 1, "max_tokens": 30}})),
            ]
        })
        .collect();
    let without_ids = |mut value: Value| {
        for name in ["id", "request_id", "created"] {
            value.as_object_mut().unwrap().remove(name);
        }
        value
    };
    let one_by_one: Vec<Value> =
        bodies.iter().map(|(path, body)| without_ids(server.json(path, body))).collect();
    let together: Vec<_> = bodies.iter().map(|(path, body)| server.later(path, body.clone())).collect();
    for ((answer, expected), (path, body)) in together.into_iter().zip(one_by_one).zip(&bodies) {
        let answer = answer.join().unwrap();
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        assert_eq!(without_ids(answer.json()), expected, "{path} {body}");
    }
}

#[test]
fn a_seed_repeats_and_samples_of_one_seed_differ() {
    let server = serve(settings());
    let body = json!({"prompt": [10, 20, 30], "seed": 5, "n": 4, "max_tokens": 12, "return_token_ids": true, "ignore_eos": true});
    let all = |body: &Value| {
        let answer = server.json("/v1/completions", body);
        answer["choices"].as_array().unwrap().iter().map(choice_tokens).collect::<Vec<_>>()
    };
    let first = all(&body);
    assert_eq!(first, all(&body));
    for i in 0..4 {
        assert!((0..i).all(|j| first[i] != first[j]), "{first:?}");
    }
    let mut other = body.clone();
    other["seed"] = json!(6);
    assert_ne!(first, all(&other));
    let mut unseeded = body;
    unseeded.as_object_mut().unwrap().remove("seed");
    assert_ne!(all(&unseeded), all(&unseeded));
}

/// The parts of a stream add up to the answer in one piece.
#[test]
fn streams_add_up_to_the_whole() {
    let server = serve(settings());
    for (n, stop) in [(1, json!(null)), (3, json!(["e", "qu"]))] {
        for path in ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate"] {
            let common = json!({"max_tokens": 25, "n": n, "seed": 3, "stop": stop});
            let mut body = match path {
                "/v1/completions" => json!({"prompt": [10, 20, 30], "logprobs": 1}),
                "/v1/chat/completions" => {
                    json!({"messages": [{"role": "user", "content": "Hello"}], "logprobs": true, "top_logprobs": 2})
                }
                _ => {
                    json!({"token_ids": [10, 20, 30], "output_mode": "text", "sampling_params": common.clone()})
                }
            };
            let fields = body.as_object_mut().unwrap();
            fields.insert("return_token_ids".to_owned(), json!(true));
            match fields.get_mut("sampling_params") {
                Some(params) => params["logprobs"] = json!(2),
                None => fields.extend(common.as_object().unwrap().clone()),
            }
            let whole = server.json(path, &body);
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let mut events = answer.events();
            let usage = events.pop().unwrap();
            assert_eq!(usage["choices"], json!([]), "the usage comes in an event of its own");
            assert_eq!(usage["usage"], whole["usage"], "{path}");
            for (index, expected) in whole["choices"].as_array().unwrap().iter().enumerate() {
                let parts: Vec<&Value> = events
                    .iter()
                    .flat_map(|event| event["choices"].as_array().unwrap())
                    .filter(|choice| choice["index"] == json!(index))
                    .collect();
                let text: String = parts
                    .iter()
                    .filter_map(|part| part["text"].as_str().or_else(|| part["delta"]["content"].as_str()))
                    .collect();
                let expected_text =
                    expected["text"].as_str().or_else(|| expected["message"]["content"].as_str());
                assert_eq!(Some(text.as_str()), expected_text, "{path}");
                let ids: Vec<u32> = parts
                    .iter()
                    .filter(|part| part["token_ids"].is_array())
                    .flat_map(|part| choice_tokens(part))
                    .collect();
                assert_eq!(ids, choice_tokens(expected), "{path}");
                let last = parts.last().unwrap();
                for field in ["finish_reason", "stop_reason", "weight_versions"] {
                    assert_eq!(last.get(field), expected.get(field), "{path} {field}");
                }
                let unfinished = &parts[..parts.len() - 1];
                assert!(unfinished.iter().all(|part| part["finish_reason"].is_null()));
                for list in ["content", "tokens", "token_logprobs", "text_offset", "top_logprobs"] {
                    let joined: Vec<Value> = parts
                        .iter()
                        .filter_map(|part| part["logprobs"][list].as_array())
                        .flatten()
                        .cloned()
                        .collect();
                    let whole = expected["logprobs"][list].as_array().cloned().unwrap_or_default();
                    assert_eq!(joined, whole, "{path} {list}");
                }
            }
        }
    }
}

#[test]
fn stop_strings_and_tokens_end_a_completion_and_are_told() {
    let server = serve(settings());
    let body = json!({"prompt": [10, 20, 30], "max_tokens": 60, "seed": 9, "ignore_eos": true, "return_token_ids": true});
    let free = server.json("/v1/completions", &body);
    let (text, ids) = (free["choices"][0]["text"].as_str().unwrap().to_owned(), tokens(&free));
    assert_eq!((ids.len(), &free["choices"][0]["finish_reason"]), (60, &json!("length")));
    // A piece from the middle of the text that does not occur earlier.
    let middle: Vec<char> = text.chars().skip(20).take(3).collect();
    let stop: String = middle.into_iter().collect();
    let before = text.split(&stop).next().unwrap();
    let with = |fields: Value| {
        let mut asked = body.clone();
        asked.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.json("/v1/completions", &asked)["choices"][0].clone()
    };
    let stopped = with(json!({"stop": stop}));
    assert_eq!((&stopped["finish_reason"], &stopped["stop_reason"]), (&json!("stop"), &json!(stop)));
    assert_eq!(stopped["text"], json!(before));
    assert!(ids.starts_with(&choice_tokens(&stopped)) && choice_tokens(&stopped).len() < 60);
    let including = with(json!({"stop": ["not in it at all", stop], "include_stop_str_in_output": true}));
    assert_eq!(including["text"], json!(format!("{before}{stop}")));
    let by_token = with(json!({"stop_token_ids": [ids[9]]}));
    let end = ids.iter().position(|id| *id == ids[9]).unwrap();
    assert_eq!((&by_token["finish_reason"], &by_token["stop_reason"]), (&json!("stop"), &json!(ids[9])));
    assert_eq!(choice_tokens(&by_token), ids[..=end]);
    // The model's own end token ends the text without a reason from the request.
    let eos = tokenizer().eos_id().unwrap();
    let mut ended = None;
    for seed in 0..200 {
        let asked =
            json!({"prompt": [10, 20, 30], "max_tokens": 400, "seed": seed, "return_token_ids": true});
        let choice = server.json("/v1/completions", &asked)["choices"][0].clone();
        if choice["finish_reason"] == "stop" {
            ended = Some(choice);
            break;
        }
    }
    let ended = ended.expect("some completion ends by itself");
    assert_eq!((ended["stop_reason"].clone(), choice_tokens(&ended).last()), (json!(null), Some(&eos)));
    assert!(!ended["text"].as_str().unwrap().contains(&tokenizer().token(eos).unwrap()));
}

/// `top_logprobs` and ranks use the same distribution as the log-probabilities.
#[test]
fn alternatives_are_ranked() {
    let server = serve(settings());
    let params = json!({"max_tokens": 10, "seed": 4, "logprobs": 5, "ignore_eos": true});
    let answer =
        server.json("/inference/v1/generate", &json!({"token_ids": [10, 20, 30], "sampling_params": params}));
    for token in answer["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 5);
        assert_eq!((&top[0]["token_id"], &top[0]["logprob"]), (&token["token_id"], &token["logprob"]));
        for other in &top[1..] {
            let better = other["logprob"].as_f64() >= token["logprob"].as_f64();
            assert_eq!(better, other["rank"].as_u64() <= token["rank"].as_u64(), "{token}");
        }
    }
    // Greedy sampling takes the first, at temperature 1.
    let params = json!({"max_tokens": 10, "temperature": 0, "logprobs": 1});
    let answer =
        server.json("/inference/v1/generate", &json!({"token_ids": [10, 20, 30], "sampling_params": params}));
    for token in answer["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        assert_eq!(token["rank"], 1);
    }
    let greedy = Sampling { temperature: 0.0, ..Sampling::plain(10) };
    let (expected, ..) = alone(1, &[10, 20, 30], vec![key(0)], &greedy).remove(0);
    assert!(expected.starts_with(&tokens(&answer)));
}
