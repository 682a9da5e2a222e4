use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use serde_json::json;

use super::*;

mod ends;

/// Time limit of expected events.
const LONG: Duration = Duration::from_secs(300);

/// Beginning of all programs here.
const PRELUDE: &str = r#"
import json, os, subprocess, sys, time, urllib.error, urllib.request
task = json.loads(sys.stdin.readline())
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]

def send(route, body=None, url=url, key=key):
    """Status, body, headers."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + route, data, headers), timeout=120) as response:
            return response.status, response.read().decode(), response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers

def chat(messages, url=url, key=key, **more):
    return send("/chat/completions", {"model": "gpt", "messages": messages, **more}, url, key)

def ask(text):
    status, body, _ = chat([{"role": "user", "content": text}])
    assert status == 200, body
    return json.loads(body)["choices"][0]["message"]["content"]

def refused(answer, status, code, word=""):
    """That a call was refused in this way."""
    assert answer[0] == status, answer
    error = json.loads(answer[1])["error"]
    assert error["code"] == code and word in error["message"], error
    assert answer[2]["x-should-retry"] == ("true" if status == 429 else "false"), answer[2]
"#;

fn settings(script: &str) -> ProgramSettings {
    let argv = ["python3", "-c", &format!("{PRELUDE}\n{script}")].map(str::to_owned).to_vec();
    ProgramSettings { timeout: LONG, ..ProgramSettings::new(argv) }
}

struct Owner {
    host: ProgramHost,
    rung: Arc<(Mutex<bool>, Condvar)>,
    told: std::collections::VecDeque<ProgramEvent>,
    scratch: tempfile::TempDir,
}

impl Owner {
    fn new(mut settings: ProgramSettings) -> Self {
        let scratch = tempfile::tempdir().expect("a folder");
        scratch.path().clone_into(&mut settings.scratch_dir);
        let rung = Arc::new((Mutex::new(false), Condvar::new()));
        let bell = Arc::clone(&rung);
        let host = ProgramHost::start(settings, move || {
            *bell.0.lock().expect("lock") = true;
            bell.1.notify_all();
        });
        Self { host: host.expect("a host"), rung, told: std::collections::VecDeque::new(), scratch }
    }

    fn of(script: &str) -> Self {
        Self::new(settings(script))
    }

    fn begin(&self, task: &Value) -> EpisodeNumber {
        self.host.begin(task)
    }

    /// The next event. Only the bell wakes it, so that an event without one fails the test.
    fn next(&mut self) -> ProgramEvent {
        loop {
            if let Some(event) = self.told.pop_front() {
                return event;
            }
            assert!(self.is_rung(), "nothing happened");
            self.told.extend(self.host.take_events());
        }
    }

    /// Waits for the bell; false if it stays silent.
    fn is_rung(&self) -> bool {
        let guard = self.rung.0.lock().expect("lock");
        let (mut guard, waited) = self.rung.1.wait_timeout_while(guard, LONG, |rung| !*rung).expect("lock");
        *guard = false;
        !waited.timed_out()
    }

    fn asked(&mut self) -> (EpisodeNumber, CallNumber, ChatCall) {
        match self.next() {
            ProgramEvent::Asked { episode, call, chat } => (episode, call, chat),
            other => panic!("{other:?}"),
        }
    }

    fn ended(&mut self) -> (EpisodeNumber, Result<ProgramOutcome, ProgramFailure>, RefusedCalls) {
        match self.next() {
            ProgramEvent::Ended { episode, outcome, refused } => (episode, outcome, refused),
            other => panic!("{other:?}"),
        }
    }

    fn say(&self, call: CallNumber, text: &str) {
        assert!(self.host.answer(call, Ok(ChatAnswer::text(text, ChatFinish::Stop))));
    }

    /// Answers the same to all calls until an episode ends.
    fn ended_after(
        &mut self,
        text: &str,
    ) -> (EpisodeNumber, Result<ProgramOutcome, ProgramFailure>, RefusedCalls) {
        loop {
            match self.next() {
                ProgramEvent::Asked { call, .. } => self.say(call, text),
                ProgramEvent::Ended { episode, outcome, refused } => return (episode, outcome, refused),
                ProgramEvent::Abandoned { .. } => {}
            }
        }
    }
}

fn reward(reward: f64) -> ProgramOutcome {
    ProgramOutcome { reward: Some(reward), ..ProgramOutcome::default() }
}

fn is_alive(pid: &str) -> bool {
    // An unreaped zombie counts as dead.
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    state.is_ok_and(|state| !state.contains(") Z "))
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The file that a program writes, once it exists.
fn written(path: &Path) -> String {
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    soon("a file", || read().ends_with('\n'));
    read()
}

/// The folder of the one host that has its own in this one.
fn host_folder(scratch: &Path) -> PathBuf {
    let entries: Vec<_> = std::fs::read_dir(scratch).expect("a folder").flatten().collect();
    let [own] = &entries[..] else { panic!("{entries:?}") };
    own.path()
}

fn num_entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("a folder").count()
}

#[test]
fn a_program_gets_its_task_and_its_answers_and_says_what_came_of_it() {
    let script = r#"
assert os.environ["SEARCH_API_KEY"] == "mine" and os.path.samefile(os.getcwd(), task["folder"])
assert json.load(open(os.environ["TAMIS_TASK"])) == task and sys.stdin.read() == ""
assert os.environ["TAMIS_MODEL"] == "policy" and key in url and os.environ["OPENAI_API_BASE"] == url
assert json.loads(send("/models")[1])["data"][0]["id"] == "policy"
conversation = [{"role": "user", "content": task["question"]}]
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
status, body, headers = chat(conversation, tools=tools, max_tokens=9, user="me")
answer = json.loads(body)
choice = answer["choices"][0]
assert answer["object"] == "chat.completion" and answer["model"] == "policy" and answer["usage"]["total_tokens"] == 12
assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
called = choice["message"]["tool_calls"][0]
result = sum(json.loads(called["function"]["arguments"]).values())
conversation += [choice["message"], {"role": "tool", "tool_call_id": called["id"], "content": str(result)}]
status, body, headers = chat(conversation, tools=tools, stream=True, stream_options={"include_usage": True})
assert headers["content-type"].startswith("text/event-stream")
events = [event[len("data: "):] for event in body.strip().split("\n\n")]
assert events.pop() == "[DONE]"
chunks = [json.loads(event) for event in events]
text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
assert chunks[-2]["choices"][0]["finish_reason"] == "stop" and chunks[-1]["usage"]["total_tokens"] == 0
print("solved:", text)
print(json.dumps({"reward": 1.0 if text == task["answer"] else 0.0, "success": True, "info": {"calls": 2}}))
"#;
    let folder = tempfile::tempdir().unwrap();
    let mut owner = Owner::new(ProgramSettings {
        working_dir: Some(folder.path().to_owned()),
        environment: vec![("SEARCH_API_KEY".to_owned(), "mine".to_owned())],
        ..settings(script)
    });
    let task = json!({"question": "1+2?", "answer": "Three, ü\n", "folder": folder.path()});
    let episode = owner.begin(&task);
    let (asker, call, first) = owner.asked();
    assert_eq!(asker, episode);
    assert_eq!(first.messages, [json!({"role": "user", "content": "1+2?"})]);
    assert_eq!((first.index, first.tools.len(), first.max_tokens, first.stream), (0, 1, Some(9), false));
    assert_eq!(first.sampling, Vec::<&str>::new());
    let arguments = "{\"a\": 1, \"b\": 2}".to_owned();
    let tool_calls = vec![ChatToolCall { id: tool_call_id(0, 0), name: "add".to_owned(), arguments }];
    let answer = ChatAnswer {
        tool_calls,
        prompt_tokens: 5,
        completion_tokens: 7,
        ..ChatAnswer::text("", ChatFinish::Stop)
    };
    assert!(owner.host.answer(call, Ok(answer.clone())));
    assert!(!owner.host.answer(call, Ok(answer.clone())), "it was answered");
    let (_, call, second) = owner.asked();
    assert_eq!((second.index, second.stream), (1, true));
    let result = json!({"role": "tool", "content": "3", "tool_call_id": "000000000"});
    assert_eq!(second.after(&first, &answer), Some(&[result][..]));
    owner.say(call, "Three, ü\n");
    let (ended, outcome, refused) = owner.ended();
    let info = std::collections::BTreeMap::from([("calls".to_owned(), 2.0)]);
    let expected = ProgramOutcome { reward: Some(1.0), success: Some(true), info };
    assert_eq!((ended, outcome, refused), (episode, Ok(expected), RefusedCalls::default()));
    assert_eq!((owner.host.num_open(), owner.host.take_refused().total()), (0, 0));
    let scratch = host_folder(owner.scratch.path());
    soon("an empty folder", || num_entries(&scratch) == 0);
}

#[test]
fn errors_of_the_owner_reach_the_program() {
    let mut owner = Owner::of(
        r#"
refused(chat([{"role": "user", "content": "x"}]), 400, "context_length_exceeded", "600 tokens")
refused(chat([{"role": "user", "content": "x"}]), 400, 400, "no tools")
refused(chat([{"role": "user", "content": "x"}], stream=True), 500, 500, "broke")
print(1)
"#,
    );
    owner.begin(&json!({}));
    for error in [
        ChatError::TooLong("the conversation has 600 tokens".to_owned()),
        ChatError::Request("the template has no tools".to_owned()),
        ChatError::Failed("the generator broke".to_owned()),
    ] {
        let (_, call, _) = owner.asked();
        assert!(owner.host.answer(call, Err(error)));
    }
    assert_eq!(owner.ended().1, Ok(reward(1.0)));
}

#[test]
fn calls_that_cannot_be_answered_are_refused_by_name_and_counted() {
    let script = r#"
user = [{"role": "user", "content": "x"}]
refused(chat(user, n=2), 400, 400, "`n`")
refused(send("/chat/completions", b"{"), 400, 400, "JSON")
refused(send("/embeddings", {}), 404, 404, "POST v1/chat/completions")
refused(send("/completions", {"prompt": "x"}), 404, 404, "as a message of the role user")
refused(send("/responses", {"input": "x", "previous_response_id": "resp_1"}), 400, 400, "the whole conversation as `input`")
refused(send("/chat/completions"), 405, 405)
refused(chat([{"role": "user", "content": "x" * 100_000}]), 413, 413, "50000 bytes")
refused(chat([{"role": "user", "content": "x" * 3_000_000}]), 413, 413, "50000 bytes")
# Neither of them counts as a call that was made.
assert ask("one") == ask("two") == "yes"
refused(chat(user), 403, "call_limit", "2 calls")
refused(chat(user, stream=True), 403, "call_limit", "2 calls")
print(0)
"#;
    let mut owner = Owner::new(ProgramSettings { max_calls: 2, max_body_bytes: 50_000, ..settings(script) });
    owner.begin(&json!({}));
    let (_, outcome, refused) = owner.ended_after("yes");
    let expected = RefusedCalls { invalid: 6, too_large: 2, over_limit: 2, ..RefusedCalls::default() };
    assert_eq!((outcome, refused), (Ok(reward(0.0)), expected));
    assert_eq!(owner.host.take_refused(), expected);
    // Each field is reported once.
    let warnings = owner.host.take_warnings();
    let count = |word: &str| warnings.iter().filter(|told| told.contains(word)).count();
    for word in
        ["`n` is not", "`v1/completions`", "`previous_response_id` is not", "there is no `v1/embeddings`"]
    {
        assert_eq!(count(word), 1, "{word}: {warnings:?}");
    }
    assert!(owner.host.all_refused().is_none(), "others were answered");
}

#[test]
fn a_program_all_of_whose_calls_were_refused_is_told_why() {
    let script = r#"
user = [{"role": "user", "content": "x"}]
refused(chat(user, stop=[""]), 400, 400, "`stop`")
refused(chat(user, n=2), 400, 400, "`n`")
print(1)
"#;
    let mut owner = Owner::of(script);
    owner.begin(&json!({}));
    let error = owner.ended().1.unwrap_err().reason;
    assert!(error.contains("2 were refused, the last one with: `n` is not supported"), "{error}");
    assert_eq!(owner.host.take_refused().invalid, 2);
}

#[test]
fn a_body_is_json_whatever_its_content_type_says() {
    let script = r#"
body = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
request = urllib.request.Request(url + "/chat/completions", body, {"Authorization": "Bearer " + key})
assert request.get_header("Content-type") is None
with urllib.request.urlopen(request, timeout=120) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
"#;
    let mut owner = Owner::of(script);
    owner.begin(&json!({}));
    assert_eq!(owner.ended_after("3").1, Ok(reward(3.0)));
}

#[test]
fn a_program_that_uses_the_url_of_another_is_refused_and_blamed() {
    let mut owner = Owner::of(
        r#"
if task["is_victim"]:
    open(task["file"], "w").write(json.dumps([url, key]) + "\n")
    print(ask("victim"))
else:
    other, other_key = json.load(open(task["file"]))
    user = [{"role": "user", "content": "x"}]
    refused(chat(user, url=other), 401, "foreign_url", "different episodes")
    refused(chat(user, key=other_key), 401, "foreign_url", "different episodes")
    refused(chat(user, url=url.replace("/e/", "/e/0")), 401, "unknown_url")
    refused(chat(user, url=url.split("/e/")[0] + "/v1"), 401, "unknown_url")
    # A key that is nobody's opens no URL, its own neither.
    refused(chat(user, url=other, key="EMPTY"), 401, "wrong_key", "OPENAI_API_KEY")
    refused(chat(user, key="EMPTY"), 401, "wrong_key", "OPENAI_API_KEY")
    assert chat(user)[0] == 200
    print(2)
"#,
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let victim = owner.begin(&json!({"is_victim": true, "file": file}));
    let (_, call, _) = owner.asked();
    written(&file);
    let cheat = owner.begin(&json!({"is_victim": false, "file": file}));
    let (episode, outcome, refused) = owner.ended_after("1");
    // An episode is blamed for calls with its own key; the other one is for calls with the other key.
    let own = RefusedCalls { foreign_url: 1, unknown_url: 2, wrong_key: 1, ..RefusedCalls::default() };
    assert_eq!((episode, outcome, refused), (cheat, Ok(reward(2.0)), own));
    owner.say(call, "1");
    let other = RefusedCalls { foreign_url: 1, wrong_key: 1, ..RefusedCalls::default() };
    assert_eq!(owner.ended(), (victim, Ok(reward(1.0)), other));
    let all = owner.host.take_refused();
    assert_eq!(all.total(), 6);
    let of_keys = ("rollout/program_calls_refused/wrong_key".to_owned(), 2);
    assert!(all.by_metric().contains(&of_keys));
    assert_eq!(owner.host.take_refused().by_metric(), []);
}

#[test]
fn episodes_wait_while_as_many_programs_run_as_may_at_once() {
    let mut owner = Owner::new(ProgramSettings { max_concurrent: 2, ..settings("print(ask(task))") });
    let names = ["0", "1", "2", "3", "4"];
    let episodes: Vec<EpisodeNumber> = names.iter().map(|name| owner.begin(&json!(name))).collect();
    let scratch = host_folder(owner.scratch.path());
    let mut open = std::collections::VecDeque::new();
    let mut order = Vec::new();
    let mut num_ended = 0;
    while num_ended < names.len() {
        match owner.next() {
            ProgramEvent::Asked { episode, call, chat } => {
                open.push_back((episode, call));
                assert!(open.len() <= 2);
                order.push(chat.messages[0]["content"].as_str().unwrap().to_owned());
                // While two are open, no third is begun.
                if open.len() == 2 || order.len() == names.len() {
                    assert!(num_entries(&scratch) <= 3, "two that run, and one that was just killed");
                    let (episode, call) = open.pop_front().unwrap();
                    owner.say(call, &episode.0.to_string());
                }
            }
            ProgramEvent::Ended { episode, outcome, .. } => {
                assert_eq!(outcome, Ok(reward(episode.0 as f64)));
                num_ended += 1;
                if num_ended >= names.len() - 1
                    && let Some((episode, call)) = open.pop_front()
                {
                    owner.say(call, &episode.0.to_string());
                }
            }
            ProgramEvent::Abandoned { .. } => panic!("no call is abandoned"),
        }
    }
    // Those that wait are begun in their order, two at once.
    let places: Vec<usize> = order.iter().map(|name| name.parse().unwrap()).collect();
    assert!(places.iter().enumerate().all(|(i, &place)| place <= i + 1), "{places:?}");
    assert_eq!(episodes.len(), names.len());
}

#[test]
fn calls_may_be_under_way_at_once_but_not_too_many() {
    let script = r#"
import threading
said = []
threads = [threading.Thread(target=lambda i=i: said.append(ask(str(i)) == str(i))) for i in range(2)]
for thread in threads:
    thread.start()
while not os.path.exists(task["file"]):
    time.sleep(0.01)
late = chat([{"role": "user", "content": "late"}])
refused(late, 429, "too_many_at_once", "2 calls")
assert late[2]["retry-after"] == "1"
open(task["file"] + ".refused", "w").write("yes\n")
for thread in threads:
    thread.join()
assert said == [True, True] and ask("again") == "again"
print(1)
"#;
    let mut owner = Owner::new(ProgramSettings { max_calls_at_once: 2, ..settings(script) });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    owner.begin(&json!({"file": file}));
    let calls = [owner.asked(), owner.asked()];
    std::fs::write(&file, "").unwrap();
    written(&folder.path().join("go.refused"));
    // In reverse order.
    for (_, call, chat) in calls.iter().rev() {
        owner.say(*call, chat.messages[0]["content"].as_str().unwrap());
    }
    let (_, call, chat) = owner.asked();
    assert_eq!(chat.index, 2);
    owner.say(call, "again");
    let expected = RefusedCalls { at_once: 1, ..RefusedCalls::default() };
    let (_, outcome, refused) = owner.ended();
    assert_eq!((outcome, refused), (Ok(reward(1.0)), expected));
}

#[test]
fn a_call_that_is_given_up_is_told_and_takes_no_answer() {
    let mut owner = Owner::of(
        r#"
import http.client, urllib.parse
parts = urllib.parse.urlsplit(url)
connection = http.client.HTTPConnection(parts.netloc)
body = json.dumps({"messages": [{"role": "user", "content": "first"}]})
connection.request("POST", parts.path + "/chat/completions", body, {"Authorization": "Bearer " + key})
while not os.path.exists(task["file"]):
    time.sleep(0.01)
connection.close()
print(ask("second"))
"#,
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let episode = owner.begin(&json!({"file": file}));
    let (_, first, _) = owner.asked();
    std::fs::write(&file, "").unwrap();
    // The order of the two connections is open.
    let mut events = [owner.next(), owner.next()];
    events.sort_by_key(|event| matches!(event, ProgramEvent::Asked { .. }));
    assert_eq!(events[0], ProgramEvent::Abandoned { episode, call: first });
    assert!(!owner.host.answer(first, Ok(ChatAnswer::text("late", ChatFinish::Stop))));
    let ProgramEvent::Asked { call, .. } = events[1] else { panic!("{events:?}") };
    owner.say(call, "4");
    assert_eq!(owner.ended().1, Ok(reward(4.0)));
}

#[test]
fn settings_of_no_use_are_refused_by_name() {
    let good = || ProgramSettings::new(vec!["true".to_owned()]);
    let folder = PathBuf::from("/no/such/folder");
    for (settings, part) in [
        (ProgramSettings::new(Vec::new()), "`argv`"),
        (ProgramSettings { timeout: Duration::ZERO, ..good() }, "`timeout`"),
        (ProgramSettings { max_calls: 0, ..good() }, "`max_calls`"),
        (ProgramSettings { max_concurrent: 0, ..good() }, "`max_concurrent`"),
        (ProgramSettings { working_dir: Some(folder.clone()), ..good() }, "`working_dir`"),
        (ProgramSettings { scratch_dir: folder, ..good() }, "`scratch_dir`"),
        (ProgramSettings { environment: vec![("A=B".to_owned(), String::new())], ..good() }, "\"A=B\""),
    ] {
        let error = ProgramHost::start(settings, || {}).err().expect(part);
        assert!(error.contains(part), "{error}");
    }
}

/// A program with OpenAI's own Python client, which `scripts/test-openai-client` installs; OPENAI_PYTHON
/// names the interpreter of another place.
#[test]
fn openais_python_client_plays_an_episode() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("OPENAI_PYTHON")
        .map_or_else(|| root.join(".venv-openai/bin/python"), std::path::PathBuf::from);
    if !python.exists() {
        eprintln!("skipped: the openai package is not installed; scripts/test-openai-client does it");
        return;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_program.py");
    let argv = [&python, &program].map(|path| path.display().to_string()).to_vec();
    let mut owner =
        Owner::new(ProgramSettings { timeout: LONG, max_calls: 10, ..ProgramSettings::new(argv) });
    owner.begin(&json!({"a": 17, "b": 25}));
    let add = ChatToolCall {
        id: tool_call_id(0, 0),
        name: "add".to_owned(),
        arguments: "{\"a\": 17, \"b\": 25}".to_owned(),
    };
    let mut earlier: Option<(ChatCall, ChatAnswer)> = None;
    let (mut num_streamed, mut num_continued) = (0, 0);
    let (outcome, refused) = loop {
        match owner.next() {
            ProgramEvent::Asked { call, chat, .. } => {
                num_streamed += usize::from(chat.stream);
                num_continued += usize::from(
                    earlier.is_some_and(|(earlier, answer)| chat.after(&earlier, &answer).is_some()),
                );
                let last = chat.messages.last().unwrap();
                let logprobs = vec![ChatLogprob { token: "a".to_owned(), logprob: -0.5 }];
                let logprobs = if chat.logprobs { logprobs } else { Vec::new() };
                let answer = if last["role"] == "tool" {
                    ChatAnswer::text(last["content"].as_str().unwrap(), ChatFinish::Stop)
                } else {
                    let tool_calls = vec![add.clone()];
                    ChatAnswer {
                        tool_calls,
                        prompt_tokens: 3,
                        completion_tokens: 2,
                        logprobs,
                        ..ChatAnswer::text("", ChatFinish::Stop)
                    }
                };
                assert!(owner.host.answer(call, Ok(answer.clone())));
                earlier = Some((chat, answer));
            }
            ProgramEvent::Ended { outcome, refused, .. } => break (outcome, refused),
            ProgramEvent::Abandoned { .. } => panic!("no call is abandoned"),
        }
    };
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((outcome.reward, outcome.success), (Some(1.0), Some(true)));
    // In one piece, as a stream, and by the asynchronous client: what it sends back is recognised as
    // the answer that it got.
    assert_eq!((num_streamed, num_continued), (3, 4));
    // No refused call was retried.
    let expected =
        RefusedCalls { foreign_url: 0, unknown_url: 1, over_limit: 1, invalid: 2, ..RefusedCalls::default() };
    assert_eq!(refused, expected);
}
