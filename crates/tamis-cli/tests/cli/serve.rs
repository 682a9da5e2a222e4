//! `tamis serve` as a program: what it prints, how it ends, whom it refuses. Requests come from curl and from
//! OpenAI's Python client, if they are installed.
#![allow(clippy::print_stderr, reason = "a test says what it left out")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::listening::Listening;
use crate::tamis::{Folder, failures};
use serde_json::{Value, json};
use tamis_core::random::{Key, Purpose};
use tamis_model::{Architecture, Model, SaveDtype, TransformerConfig};
use tamis_text::tokenizer::Tokenizer;

/// A checkpoint in Hugging Face layout with random weights, a tokenizer and a chat template.
pub(crate) fn save_checkpoint(folder: &Path) {
    let tokenizer = Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).unwrap();
    let mut config = TransformerConfig::new(Architecture::Qwen2, tokenizer.num_rows(), 16, 24, 1, 2, 512);
    config.initializer_range = 0.4;
    std::fs::create_dir_all(folder).unwrap();
    Model::init(config, Key::new(1, Purpose::Init)).unwrap().save(folder, SaveDtype::F32).unwrap();
    tokenizer.save(folder).unwrap();
}

pub(crate) const JSON: &str = "Content-Type: application/json";

/// Sends a request with curl; `None` if it is not installed.
pub(crate) fn curl(arguments: &[&str]) -> Option<(String, String)> {
    let form = ["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"];
    let Ok(output) = Command::new("curl").args(form).args(arguments).output() else {
        eprintln!("skipped: there is no curl");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, code) = text.rsplit_once('\n').unwrap();
    Some((code.to_owned(), body.to_owned()))
}

#[test]
fn a_checkpoint_is_served_until_it_is_told_to_end() {
    let folder = Folder::new();
    save_checkpoint(&folder.join("checkpoint"));
    for signal in ["-INT", "-TERM"] {
        let serving = Listening::serve(&folder, &["checkpoint"]);
        let url = |path: &str| format!("{}{path}", serving.address);
        if let Some((code, body)) = curl(&[&url("/v1/models")]) {
            assert_eq!(code, "200");
            assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["data"][0]["id"], "checkpoint");
            let body = r#"{"prompt": "What is 1+1?", "max_tokens": 4, "ignore_eos": true}"#;
            let (code, body) = curl(&[&url("/v1/completions"), "--header", JSON, "--data", body]).unwrap();
            assert_eq!(code, "200", "{body}");
            assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["usage"]["completion_tokens"], 4);
            let body =
                r#"{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": true}"#;
            let (code, body) =
                curl(&["--no-buffer", &url("/v1/chat/completions"), "--header", JSON, "--data", body])
                    .unwrap();
            assert!(code == "200" && body.ends_with("data: [DONE]\n\n"), "{body}");
            assert_eq!(curl(&[&url("/health")]).unwrap(), ("200".to_owned(), String::new()));
            // Without the header, curl sends a form.
            let (code, body) = curl(&[&url("/v1/completions"), "--data", "{}"]).unwrap();
            assert!(code == "400" && body.contains("Content-Type: application/json"), "{body}");
        }
        assert_eq!(serving.end(signal), Some(0), "{signal}");
    }
}

#[test]
fn a_run_is_served_and_checkpoints_of_it_are_loaded() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml"]).succeeds();
    let serving = Listening::serve(&folder, &["runs/tiny", "--served-model-name", "tiny"]);
    let url = |path: &str| format!("{}{path}", serving.address);
    let generate = || {
        let body = r#"{"prompt": "1+1=", "max_tokens": 4, "temperature": 0, "logprobs": 0}"#;
        curl(&[&url("/v1/completions"), "--header", JSON, "--data", body]).map(|(code, body)| {
            assert_eq!(code, "200", "{body}");
            serde_json::from_str::<Value>(&body).unwrap()["choices"].clone()
        })
    };
    let Some(last) = generate() else { return };
    let checkpoints = folder.join("runs/tiny/checkpoints");
    let reload = |name: &str| {
        let path = checkpoints.join(name);
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": path}}).to_string();
        curl(&[&url("/collective_rpc"), "--header", JSON, "--data", &body]).unwrap()
    };
    let mut names: Vec<String> = std::fs::read_dir(&checkpoints)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step_"))
        .collect();
    names.sort();
    let (first, newest) = (names.first().unwrap(), names.last().unwrap());
    assert_ne!(first, newest);
    assert_eq!(reload(first).0, "200");
    let before = generate().unwrap();
    assert_ne!(before, last, "other weights");
    let file = checkpoints.join(newest).join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let good = bytes.clone();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (code, body) = reload(newest);
    assert!(code == "400" && body.contains("the old ones stay"), "{body}");
    assert_eq!(generate().unwrap(), before);
    std::fs::write(&file, good).unwrap();
    assert_eq!(reload(newest).0, "200");
    assert_eq!(generate().unwrap(), last);
    assert_eq!(serving.end("-TERM"), Some(0));
}

#[test]
fn with_a_key_it_can_be_reached_from_elsewhere() {
    let folder = Folder::new().with("key", "a-secret\n");
    save_checkpoint(&folder.join("checkpoint"));
    let serving = Listening::serve(&folder, &["checkpoint", "--host", "0.0.0.0", "--api-key-file", "key"]);
    let url = format!("{}/v1/models", serving.address.replace("0.0.0.0", "127.0.0.1"));
    let Some((code, body)) = curl(&[&url]) else { return };
    assert_eq!(code, "401", "{body}");
    let (code, body) = curl(&[&url, "--header", "Authorization: Bearer a-secret"]).unwrap();
    assert_eq!(code, "200", "{body}");
}

#[test]
fn a_line_a_request_without_keys_or_texts() {
    let folder = Folder::new().with("key", "a-secret\n");
    save_checkpoint(&folder.join("checkpoint"));
    let mut serving = Listening::serve(&folder, &["checkpoint", "--api-key-file", "key", "-v"]);
    let url = |path: &str| format!("{}{path}", serving.address);
    let key = ["--header", "Authorization: Bearer a-secret"];
    let body = r#"{"prompt": "What is 1+1?", "max_tokens": 4, "ignore_eos": true}"#;
    let address = url("/v1/completions?why=a-secret");
    let asked = [&key[..], &["--header", JSON, "--data", body, &address]].concat();
    let Some((code, answer)) = curl(&asked) else { return };
    assert_eq!(code, "200", "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(curl(&[&url("/v1/models")]).unwrap().0, "401");
    let mut stderr = serving.child.stderr.take().unwrap();
    assert_eq!(serving.end("-TERM"), Some(0));
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut printed).unwrap();
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("seconds=")).collect();
    let [sampled, refused] = lines[..] else { panic!("{printed}") };
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let expected = format!(" POST /v1/completions 200 prompt_tokens={tokens} completion_tokens=4 seconds=");
    assert!(sampled.contains(&expected), "{printed}");
    assert!(
        refused.contains(" GET /v1/models 401 prompt_tokens=- completion_tokens=- seconds="),
        "{printed}"
    );
    for secret in ["a-secret", "1+1", answer["choices"][0]["text"].as_str().unwrap()] {
        assert!(!lines.concat().contains(secret), "{secret} in {printed}");
    }
}

/// Before and after behind one address: the names are the paths as typed, or those that are given.
#[test]
fn two_models_are_served_by_their_names() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml"]).succeeds();
    let checkpoints = ["runs/tiny/checkpoints/step_4", "runs/tiny"];
    let serving = Listening::serve(&folder, &checkpoints);
    let url = |path: &str| format!("{}{path}", serving.address);
    let answer = |model: &str| {
        let body =
            json!({"model": model, "prompt": "1+1=", "max_tokens": 4, "temperature": 0, "logprobs": 0});
        let asked = curl(&[&url("/v1/completions"), "--header", JSON, "--data", &body.to_string()]);
        asked.map(|(code, body)| (code, serde_json::from_str::<Value>(&body).unwrap()))
    };
    let Some((code, first)) = answer(checkpoints[0]) else { return };
    let (_, second) = answer(checkpoints[1]).unwrap();
    assert_eq!((code.as_str(), &first["model"]), ("200", &json!(checkpoints[0])));
    assert_eq!(second["model"], checkpoints[1]);
    assert_ne!(first["choices"], second["choices"], "other weights");
    assert_eq!(answer("runs/tinny").unwrap().0, "404");
    assert_eq!(serving.end("-TERM"), Some(0));
    let named =
        [&checkpoints[..], &["--served-model-name", "before", "--served-model-name", "after"]].concat();
    let serving = Listening::serve(&folder, &named);
    let (_, body) = curl(&[&format!("{}/v1/models", serving.address)]).unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["data"][0]["id"], &body["data"][1]["id"]), (&json!("before"), &json!("after")));
    assert_eq!(serving.end("-TERM"), Some(0));
    let failure =
        |arguments: &[&str]| folder.tamis(&[&["serve", "--port", "0"], arguments].concat()).failure();
    insta::assert_snapshot!(failures([
        failure(&[checkpoints[0], checkpoints[1], "--served-model-name", "one"]),
        failure(&["runs/tiny", "runs/tiny/"]),
    ]), @r"
    exit code 2
    error: --served-model-name: 1 name for 2 models
      hint: give it once for each: `--served-model-name before --served-model-name after`
    error: both names are of one checkpoint, runs/tiny/checkpoints/step_6
      hint: name two, say `tamis serve runs/tiny/checkpoints/step_4 runs/tiny/checkpoints/step_6`
    ");
    let twice = ["--served-model-name", "one", "--served-model-name", "one"];
    insta::assert_snapshot!(failure(&[&checkpoints[..], &twice].concat()), @r"
    exit code 2
    error: two models are called `one`
      hint: name each: --served-model-name before --served-model-name after
    ");
}

#[test]
fn messages() {
    let folder = Folder::new().with("empty", "\n").with("words", "two words\n");
    save_checkpoint(&folder.join("checkpoint"));
    let failure = |arguments: &[&str]| folder.tamis(&[&["serve"], arguments].concat()).failure();
    insta::assert_snapshot!(failures([
        failure(&["checkpoint", "--host", "0.0.0.0"]),
        failure(&["nowhere"]),
        // An empty key would let everybody in.
        failure(&["checkpoint", "--api-key-file", "empty"]),
        failure(&["checkpoint", "--api-key-file", "words"]),
    ]), @r"
    exit code 2
    error: 0.0.0.0 can be reached from other machines, but no key is set
      hint: put a secret into a file and pass it with --api-key-file, or listen on 127.0.0.1
    error: there is no folder nowhere
      hint: a run directory holds `checkpoints/`, a checkpoint `config.json`
    error: --api-key-file empty: the file is empty
      hint: write one line with the key, of letters, digits and signs
    error: --api-key-file words: the key contains spaces or characters that are not allowed in a header
      hint: write one line with the key, of letters, digits and signs
    ");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let printed = failure(&["checkpoint", "--port", &port]).replace(&port, "PORT");
    insta::assert_snapshot!(printed, @"
    exit code 1
    error: failed to listen on 127.0.0.1:PORT
      caused by: Address already in use (os error 98)
      hint: something else listens on port PORT; choose another with --port, or 0 for any
    ");
    std::fs::remove_file(folder.join("checkpoint/tokenizer.json")).unwrap();
    assert!(failure(&["checkpoint"]).contains("no tokenizer.json"));
}

/// OpenAI's own Python client, which `scripts/test-openai-client` installs; OPENAI_PYTHON names
/// the interpreter of another place.
#[test]
fn openais_python_client_is_answered() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python =
        std::env::var_os("OPENAI_PYTHON").map_or_else(|| root.join(".venv-openai/bin/python"), PathBuf::from);
    if !python.exists() {
        eprintln!("skipped: the openai package is not installed; scripts/test-openai-client does it");
        return;
    }
    let folder = Folder::new().with("key", "sk-tiny");
    save_checkpoint(&folder.join("checkpoint"));
    let arguments = ["checkpoint", "--api-key-file", "key", "--max-body-bytes", "100000"];
    let serving = Listening::serve(&folder, &arguments);
    let program = root.join("crates/tamis-cli/tests/openai_client.py");
    let output = Command::new(python).arg(program).arg(&serving.address).arg("sk-tiny").output().unwrap();
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("all of it works"), "{printed}");
    eprint!("{printed}");
}
