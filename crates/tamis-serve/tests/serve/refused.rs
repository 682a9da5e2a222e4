//! Refused requests, each with status and message.

use serde_json::{Value, json};
use tamis_serve::{NativeServer, ServeSettings};

use super::harness::*;

/// Asserts a refusal: its status, a part of its message, and the parameter if it names one.
#[track_caller]
fn refused(answer: &Answer, status: u16, param: Option<&str>, says: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let error = &answer.json()["error"];
    assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    assert!(error["type"].is_string() && !error["code"].is_null(), "{error}");
    assert_eq!(error["param"].as_str(), param, "{error}");
}

#[test]
fn bodies_that_make_no_request() {
    let server = serve(settings());
    let raw = |path: &str, form: &str, body: &str| {
        ask(server.address, "POST", path, &[("Content-Type", form)], body.as_bytes())
    };
    for path in
        ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/tokenize", "/abort_requests"]
    {
        for (body, says) in [
            ("{\"model\": \"tiny\", ", "Invalid JSON format: EOF"),
            ("", "Invalid JSON format"),
            ("\u{0}\u{1}", "Invalid JSON format"),
            ("[1]", "must be a JSON object"),
            (&"[".repeat(100_000), "recursion limit"),
        ] {
            refused(&raw(path, "application/json", body), 400, None, says);
        }
        refused(&raw(path, "text/plain", "{}"), 400, None, "Content-Type: application/json");
    }
    assert_eq!(raw("/tokenize", "application/json; charset=utf-8", "{\"prompt\": \"a\"}").status, 200);
}

#[test]
fn routes_and_methods_that_there_are_not() {
    let server = serve(settings());
    let answer = server.get("/nope");
    refused(&answer, 404, None, "Not Found");
    assert_eq!(answer.json()["detail"], "Not Found");
    let answer = server.get("/v1/completions");
    refused(&answer, 405, None, "Method Not Allowed");
    assert_eq!(answer.json()["detail"], "Method Not Allowed");
    refused(&server.post("/metrics", &json!({})), 405, None, "Method Not Allowed");
    refused(&ask(server.address, "DELETE", "/health", &[], b""), 405, None, "Method Not Allowed");
}

#[test]
fn fields_that_cannot_be_meant() {
    let server = serve(settings());
    let completion = |more: Value| {
        let mut body = json!({"model": "tiny", "prompt": [10, 20, 30], "max_tokens": 3});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let form = |regex: Value| json!({"structured_outputs": {"regex": regex}});
    let keyed = json!({"key": "0123456789abcdef"});
    let cases = [
        (json!({"temperature": "hot"}), "temperature", "must be a number, got \"hot\""),
        (json!({"temperature": -1}), "temperature", "temperature must be non-negative, got -1"),
        (json!({"temperature": 1e9}), "temperature", "must be 0 (greedy) or from 1e-6 to 1e6"),
        (json!({"top_p": 0}), "top_p", "above 0 and at most 1, got 0"),
        (json!({"min_p": 2}), "min_p", "from 0 to 1, got 2"),
        (json!({"repetition_penalty": 0}), "repetition_penalty", "positive"),
        (json!({"top_k": 1.5}), "top_k", "a whole number"),
        (json!({"n": 0}), "n", "from 1 to 1024"),
        (json!({"n": 2000}), "n", "from 1 to 1024"),
        (json!({"max_tokens": 0}), "max_tokens", "from 1"),
        (json!({"max_tokens": -3}), "max_tokens", "from 1"),
        (json!({"logprobs": 100}), "logprobs", "from 0 to 20, got 100"),
        (json!({"logprobs": true}), "logprobs", "a whole number"),
        (json!({"stop": 3}), "stop", "a text or a list of texts"),
        (json!({"stop": ["a", ""]}), "stop", "has an empty text at place 1"),
        (json!({"stop": vec!["a"; 65]}), "stop", "at most 64 entries, got 65"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids", "a list of token ids"),
        (json!({"stop_token_ids": [9, 1 << 30]}), "stop_token_ids", "but the vocabulary has 640"),
        (json!({"stop_token_ids": vec![9; 1025]}), "stop_token_ids", "at most 1024 entries, got 1025"),
        (json!({"seed": "x"}), "seed", "a whole number"),
        (json!({"stream": "yes"}), "stream", "true or false"),
        (json!({"model": 3}), "model", "must be a text"),
        (json!({"prompt": 3}), "prompt", "a text, a list of token ids"),
        (json!({"prompt": [10, -1]}), "prompt", "a list of token ids"),
        (json!({"prompt": [10, "a"]}), "prompt", "a list of token ids"),
        (json!({"prompt": null}), "prompt", "`prompt` is missing"),
        (json!({"echo": true}), "echo", "not supported"),
        (json!({"suffix": "x"}), "suffix", "not supported"),
        (json!({"best_of": 3}), "best_of", "not supported"),
        (json!({"presence_penalty": 0.5}), "presence_penalty", "not supported"),
        (json!({"frequency_penalty": 0.5}), "frequency_penalty", "not supported"),
        (json!({"logit_bias": {"3": 1}}), "logit_bias", "not supported"),
        (json!({"min_tokens": 4}), "min_tokens", "not supported"),
        (json!({"guided_regex": "a+"}), "guided_regex", "send `structured_outputs"),
        (json!({"structured_outputs": {"json": {}}}), "structured_outputs.json", "`regex` is the only form"),
        (form(json!(3)), "structured_outputs.regex", "must be a text"),
        (form(json!("a)")), "structured_outputs.regex", "unsupported regular expression"),
        (form(json!("a$b")), "structured_outputs.regex", "no sequence of the tokenizer's tokens matches"),
        (
            json!({"prompt_logprobs": 21}),
            "prompt_logprobs",
            "from 0 to 20, got 21; `tamis serve --max-logprobs 21`",
        ),
        (json!({"prompt_logprobs": 0, "stream": true}), "prompt_logprobs", "not returned in a stream"),
        (json!({"tamis": {}}), "tamis", "either `key` or `keys`"),
        (json!({"tamis": {"key": "12"}}), "tamis", "sixteen hexadecimal digits"),
        (json!({"tamis": {"kee": "12"}}), "tamis.kee", "there is no `tamis.kee`"),
        (json!({"tamis": keyed, "n": 2}), "tamis", "1 keys for 2 samples"),
        (json!({"tamis": keyed, "seed": 2}), "tamis", "`seed` is not needed"),
        (json!({"tamis": keyed, "prompt": [[1], [2]]}), "tamis", "one prompt a request"),
    ];
    for (more, param, says) in cases {
        refused(&completion(more), 400, Some(param), says);
    }
    // Fields that ask for the default behaviour are accepted, and so are unknown ones.
    let harmless = json!({
        "presence_penalty": 0, "logit_bias": {}, "best_of": 1, "echo": false, "min_tokens": 0, "user": "me", "foo": 1, "top_k": -1,
        "temperature": null, "stop": null, "priority": -5, "cache_salt": "abc",
    });
    assert_eq!(completion(harmless).status, 200);

    let prompt = |prompt: Value| completion(json!({"prompt": prompt}));
    let unknown = "The model `nope` does not exist. Valid aliases: tiny.";
    refused(&completion(json!({"model": "nope"})), 404, Some("model"), unknown);
    refused(&prompt(json!([])), 400, None, "at least one prompt");
    refused(&prompt(json!([[]])), 400, None, "no tokens");
    refused(&prompt(json!("")), 400, None, "no tokens");
    refused(&prompt(json!([10, 99_999])), 400, None, "Token id 99999 is out of vocabulary");
    refused(&prompt(json!(vec![5; 600])), 400, Some("input_tokens"), "maximum context length is 512 tokens");
    refused(&prompt(json!(vec![5; 512])), 400, Some("input_tokens"), "512 input tokens");
    // A prompt that fits limits the completion to the remaining room: the rest is cut, as in vLLM.
    let answer = completion(json!({"prompt": vec![5; 510], "max_tokens": 100, "ignore_eos": true})).json();
    assert_eq!(answer["usage"], json!({"prompt_tokens": 510, "total_tokens": 512, "completion_tokens": 2}));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");

    let no = |path: &str, body: Value, param: &str, says: &str| {
        refused(&server.post(path, &body), 400, Some(param), says);
    };
    let generate = "/inference/v1/generate";
    no(generate, json!({"sampling_params": {}}), "token_ids", "missing");
    no(generate, json!({"token_ids": [1, 2]}), "sampling_params", "missing");
    no(generate, json!({"token_ids": "ab", "sampling_params": {}}), "token_ids", "a list of token ids");
    let hot = json!({"token_ids": [1], "sampling_params": {"temperature": "x"}});
    no(generate, hot, "sampling_params.temperature", "a number");
    let mode = json!({"token_ids": [1], "sampling_params": {}, "output_mode": "x"});
    no(generate, mode, "output_mode", "tokens");
    let of = |more: Value| server.post(generate, &more);
    refused(&of(json!({"token_ids": [], "sampling_params": {}})), 400, None, "no tokens");
    let other = of(json!({"token_ids": [1], "sampling_params": {}, "model": "x"}));
    refused(&other, 404, Some("model"), "Valid aliases: tiny");

    let chat = "/v1/chat/completions";
    no(chat, json!({}), "messages", "missing");
    no(chat, json!({"messages": []}), "messages", "empty");
    no(chat, json!({"messages": ["a"]}), "messages.0", "role");
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]});
    no(chat, json!({"messages": [image]}), "messages.0", "type `text`");
    for (field, value, says) in [
        ("tools", json!([{}]), "not supported"),
        ("response_format", json!({"type": "json_object"}), "not supported"),
        ("top_logprobs", json!(2), "needs `logprobs: true`"),
        ("continue_final_message", json!(true), "assistant"),
        ("chat_template", json!("x"), "not supported"),
    ] {
        no(chat, json!({"messages": [{"role": "user", "content": "Hello"}], field: value}), field, says);
    }

    no("/tokenize", json!({}), "prompt", "missing");
    no("/detokenize", json!({"tokens": "a"}), "tokens", "a list of token ids");
    no("/detokenize", json!({"tokens": [99_999]}), "tokens", "out of vocabulary");
    no("/pause?mode=bogus", json!({}), "query.mode", "'abort', 'wait' or 'keep'");
    no("/pause?clear_cache=perhaps", json!({}), "query.clear_cache", "true or false");
    no("/inference/v1/abort_requests", json!({}), "request_ids", "Missing");
    no("/update_weight_version", json!({}), "new_version", "Missing");
    no("/collective_rpc", json!({}), "method", "Missing 'method'");
    let call = server.post("/collective_rpc", &json!({"method": "nope"}));
    refused(&call, 500, None, "there is no method \"nope\"");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn only_who_knows_the_key_is_answered() {
    let server = serve(ServeSettings { api_key: Some("secret-1".to_owned()), ..settings() });
    assert_eq!(server.get("/health").status, 200, "a probe needs no key");
    let page = server.get("/");
    assert_eq!(page.status, 200, "the page asks for the key");
    let policy = page.header("content-security-policy").unwrap();
    let nonce = policy.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    assert!(page.text().contains(&format!("<script nonce=\"{nonce}\">")), "{policy}");
    assert_ne!(
        server.get("/").header("content-security-policy"),
        Some(policy),
        "each answer has its own nonce"
    );
    assert!(!page.text().contains("secret-1") && !page.text().contains("tiny"), "nothing of key or model");
    refused(&server.post("/", &json!({})), 405, None, "Method Not Allowed");
    for path in ["/v1/models", "/metrics", "/version", "/is_paused", "/nope"] {
        refused(&server.get(path), 401, None, "Authorization: Bearer KEY");
        for wrong in ["Bearer secret-2", "Bearer secret-", "secret-1", "Basic secret-1", "Bearer"] {
            refused(&ask(server.address, "GET", path, &[("Authorization", wrong)], b""), 401, None, "key");
        }
    }
    refused(&server.post("/pause", &json!({})), 401, None, "key");
    refused(&server.post("/v1/completions", &json!({"prompt": [1]})), 401, None, "key");
    let right = ("Authorization", "Bearer secret-1");
    assert_eq!(ask(server.address, "GET", "/v1/models", &[right], b"").status, 200);
    let answer = server.post_with("/v1/completions", &[right], &json!({"prompt": [1], "max_tokens": 1}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    // With the key, the server's host name does not matter.
    let named = [right, ("Host", "gpu7.example.org")];
    assert_eq!(ask(server.address, "GET", "/v1/models", &named, b"").status, 200);
}

#[test]
fn without_a_key_only_this_machine_is_answered() {
    let open = |host: &str| {
        NativeServer::begin(vec![policy(1)], &ServeSettings { host: host.to_owned(), ..settings() })
    };
    for host in ["0.0.0.0", "::"] {
        let error = open(host).err().expect("refused");
        assert!(
            error.is_usage() && error.to_string().contains("can be reached from other machines"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("--api-key-file"));
    }
    let error = open("no.such.host.invalid").err().expect("refused");
    assert!(error.is_usage() && error.to_string().contains("failed to find an address"), "{error}");
    let server = serve(settings());
    for host in ["localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000", "127.3.2.1"] {
        assert_eq!(ask(server.address, "GET", "/version", &[("Host", host)], b"").status, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:8000", "10.0.0.1", "127.0.0.1.evil.example"] {
        let answer = ask(server.address, "GET", "/version", &[("Host", host)], b"");
        refused(&answer, 403, None, "names of its own machine");
    }
    let from = |origin| ask(server.address, "POST", "/resume", &[("Origin", origin)], b"");
    refused(&from("https://evil.example"), 403, None, "web pages of other machines");
    refused(&from("null"), 403, None, "web pages");
    assert_eq!(from("http://localhost:3000").status, 200);
    // The message names a port that is in use.
    let taken = ServeSettings { port: server.address.port(), ..settings() };
    let error = NativeServer::begin(vec![policy(1)], &taken).err().expect("taken");
    assert!(!error.is_usage() && error.hint().unwrap().contains("choose another with --port"), "{error}");
}
