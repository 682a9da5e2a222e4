//! `tamis chat`: conversations through a pipe and in a terminal.
#![allow(clippy::print_stderr, reason = "a test says what it left out")]

use std::process::Command;

use serde_json::{Value, json};

use crate::listening::Listening;
use crate::serve::{JSON, curl, save_checkpoint};
use crate::tamis::Folder;

const GREEDY: [&str; 5] = ["checkpoint", "--temperature", "0", "--max-tokens", "8"];

fn chat(folder: &Folder, arguments: &[&str], input: &str) -> String {
    let ended = folder.tamis_reading(&[&["chat"], arguments].concat(), input).succeeds();
    ended.never_says("each line is a prompt of its own");
    ended.stdout
}

#[test]
fn a_conversation_is_kept_until_it_begins_again() {
    let folder = Folder::new();
    save_checkpoint(&folder.join("checkpoint"));
    let hello = chat(&folder, &GREEDY, "Hello\n");
    let again = chat(&folder, &GREEDY, "And again");
    let both = chat(&folder, &GREEDY, "Hello\n\nAnd again\n/new\nHello\n/quit\nnever\n");
    let second = both.strip_prefix(&hello).and_then(|rest| rest.strip_suffix(&hello));
    let second = second.unwrap_or_else(|| panic!("{hello:?} {both:?}"));
    assert!(!second.is_empty() && second != again, "{second:?} knows what was said before");
    let system = [&GREEDY[..], &["--system", "Be brief."]].concat();
    assert_ne!(chat(&folder, &system, "Hello\n"), hello);

    // The same as over HTTP, and nothing else on stdout.
    let serving = Listening::serve(&folder, &["checkpoint"]);
    let said = [("user", "Hello"), ("assistant", hello.strip_suffix('\n').unwrap()), ("user", "And again")];
    let said: Vec<Value> =
        said.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    let body = json!({"messages": said, "temperature": 0, "max_tokens": 8}).to_string();
    let url = format!("{}/v1/chat/completions", serving.address);
    let Some((code, body)) = curl(&[&url, "--header", JSON, "--data", &body]) else { return };
    assert_eq!(code, "200", "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(format!("{}\n", body["choices"][0]["message"]["content"].as_str().unwrap()), second);
}

/// Before and after: the same prompts and the same seeds, so that only the model differs.
#[test]
fn two_models_answer_the_same_prompts() {
    let folder = Folder::new();
    save_checkpoint(&folder.join("checkpoint"));
    save_checkpoint(&folder.join("same"));
    let said = chat(&folder, &["checkpoint", "same", "--max-tokens", "8"], "Hello\nAnd again\n/new\nHello\n");
    let answers: Vec<&str> = said.split("[checkpoint]\n").skip(1).collect();
    assert_eq!(answers.len(), 3, "{said}");
    for both in &answers {
        let (one, other) = both.split_once("[same]\n").unwrap_or_else(|| panic!("{both}"));
        assert_eq!(one, other, "equal models give equal answers");
    }
    assert_ne!(answers[0], answers[1]);
    folder.tamis(&["chat", "a", "b", "c"]).exits(2);
    folder
        .tamis_reading(&["chat", "checkpoint", "nowhere"], "")
        .exits(2)
        .fails_with("there is no folder nowhere");
}

#[test]
fn without_a_template_each_line_is_a_prompt_of_its_own() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let ask = |input: &str| folder.tamis_reading(&["chat", "--temperature", "0"], input).succeeds();
    let (one, other) = (ask("1+1=\n"), ask("2+3=\n"));
    let both = ask("1+1=\n2+3=\n");
    assert_eq!(both.stdout, one.stdout + &other.stdout);
    assert_eq!(both.stderr.matches("each line is a prompt of its own").count(), 1, "{}", both.shown());
    both.says("the newest run: runs/tiny");
    let refused = folder.tamis(&["chat", "runs/tiny", "--system", "Be brief."]).exits(2);
    refused.fails_with("--system needs a chat template");
}

/// The first of three answers is never read: the others are not generated.
#[cfg(unix)]
#[test]
fn chat_ends_when_nobody_reads_its_answers() {
    let folder = Folder::new();
    save_checkpoint(&folder.join("checkpoint"));
    folder.write("questions", &"Hello\n".repeat(3));
    let tamis = env!("CARGO_BIN_EXE_tamis");
    // Each answer is 400 tokens of 20 ms: all of them would take 24 seconds.
    let script = format!(
        "'{tamis}' chat checkpoint --max-tokens 400 --test-step-ms 20 <questions 2>errors | true; echo \"${{PIPESTATUS[0]}}\""
    );
    let ended = Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output();
    let Ok(ended) = ended else { return eprintln!("there is no bash") };
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "0\n");
    let errors = folder.read("errors");
    assert!(!errors.contains("cut at"), "no answer came to its end: {errors}");
}

#[test]
fn messages() {
    let folder = Folder::new();
    save_checkpoint(&folder.join("checkpoint"));
    let long = "one two three ".repeat(200);
    let ended = folder.tamis_reading(&["chat", "checkpoint"], &format!("{long}\nnever\n"));
    insta::assert_snapshot!(ended.failure(), @"
    exit code 1
    error: This model's maximum context length is 512 tokens. However, your prompt contains 638 input tokens, which leaves no room for output tokens. Please reduce the length of the input prompt.
      hint: `/new` begins again
    ");
    assert_eq!(ended.stdout, "");
    let refused = folder.tamis(&["chat", "checkpoint", "--temperature=-1"]).exits(2);
    refused.says("a temperature is a number from 0");
    folder.tamis(&["chat", "nowhere"]).exits(2).fails_with("there is no folder nowhere");
}

/// Types into a terminal: a message, Ctrl-C while it is answered, another message that is stopped, and Ctrl-C
/// once more. Prints what the terminal shows, and the exit code.
const TERMINAL: &str = r"
import os, pty, signal, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
signal.alarm(100)
shown = b''
def until(text, times):
    global shown
    while shown.count(text) < times:
        shown += os.read(terminal, 4096)
def type_in(text):
    os.write(terminal, text)
def some_answer(after):
    global shown
    start = shown.rindex(after) + len(after)
    while len(shown[start:].strip()) < 3:
        shown += os.read(terminal, 4096)
until(b'> ', 1)
type_in(b'Hello\n')
until(b'Hello', 1)
some_answer(b'Hello')
type_in(b'\x03')
until(b'> ', 2)
type_in(b'Once more\n')
until(b'Once more', 1)
some_answer(b'Once more')
type_in(b'\x03')
until(b'> ', 3)
type_in(b'\x03')
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(shown.decode(errors='replace'), code)
";

#[test]
fn ctrl_c_stops_an_answer_and_a_second_one_ends() {
    let folder = Folder::new();
    save_checkpoint(&folder.join("checkpoint"));
    let slow = ["chat", "checkpoint", "--temperature", "0", "--test-step-ms", "200"];
    let arguments = [&["-c", TERMINAL, env!("CARGO_BIN_EXE_tamis")], &slow[..]].concat();
    let Ok(output) = Command::new("python3").args(arguments).current_dir(folder.path()).output() else {
        eprintln!("skipped: there is no python3");
        return;
    };
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("/new begins again, /quit or Ctrl-D ends, Ctrl-C stops an answer"), "{shown}");
    assert_eq!(shown.matches("> ").count(), 3, "{shown}");
    assert!(shown.trim_end().ends_with(" 130"), "{shown}");
}
