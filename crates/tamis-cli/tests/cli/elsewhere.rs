//! Servers for other purposes than the sampling of a run: evaluations of a checkpoint or of their own model,
//! and judges.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::listening::Listening;
use crate::tamis::{Folder, failures};

fn policies() -> Folder {
    let folder = Folder::tiny();
    for (name, seed) in [("mine", "run.seed=3"), ("other", "run.seed=4")] {
        let name = format!("run.name={name}");
        folder.tamis(&["train", "tiny.yaml", "run.dir=.", &name, seed, "train.total_steps=1"]).succeeds();
    }
    folder
}

fn evaluated(folder: &Folder, more: &[&str]) -> (serde_json::Value, String) {
    let ended = folder.tamis(&[&["eval", "mine", "--json"], more].concat()).succeeds();
    (serde_json::from_str(&ended.stdout).unwrap(), ended.stderr)
}

#[test]
fn a_checkpoint_is_evaluated_at_servers() {
    let folder = policies();
    let sampled = ["validate.temperature=1.0", "validate.n=2"];
    let (native, _) = evaluated(&folder, &sampled);
    let serving = Listening::serve(&folder, &["other"]);
    let servers = format!("rollout.servers=[{}]", serving.address);
    let (served, printed) = evaluated(&folder, &["rollout.backend=vllm", &servers, sampled[0], sampled[1]]);
    assert_eq!(native["metrics"], served["metrics"], "{printed}");
    assert_eq!(served["settings"]["rollout"]["servers"][0], serving.address.as_str());
    assert!(native["metrics"].as_object().unwrap().len() > 2, "{native}");
    // Or at a server that is started for it.
    let tamis = env!("CARGO_BIN_EXE_tamis");
    let launch =
        format!("rollout.launch.command=['{tamis}', serve, '{{model}}', --port, '{{port}}', --threads, '1']");
    let (launched, printed) = evaluated(&folder, &["rollout.backend=vllm", &launch, sampled[0], sampled[1]]);
    assert_eq!(native["metrics"], launched["metrics"], "{printed}");
    // A table shows the place.
    let ended = folder.tamis(&["eval", "mine", "rollout.backend=vllm", &servers]).succeeds();
    let first = ended.stdout.lines().next().unwrap().replace(&serving.address, "ADDRESS");
    insta::assert_snapshot!(first, @"checkpoint mine/checkpoints/step_1, sampled at ADDRESS");
    drop(serving);
    let vllm = ["eval", "mine", "rollout.backend=vllm"];
    let soon = ["rollout.server_startup_timeout=1s", &servers];
    folder.tamis(&[&vllm[..], &soon].concat()).fails_with("exit code 3\nerror: no server answers: ");
    // A failed one leaves nothing behind either.
    let none = "rollout.launch.command=[no-such-vllm, '{model}', '{port}']";
    let ended = folder.tamis(&[&vllm[..], &[none, "publish.dir=shared"]].concat());
    ended.fails_with("exit code 3\nerror: cannot start");
    assert_eq!(std::fs::read_dir(folder.join("shared")).map_or(0, Iterator::count), 0);
}

#[test]
fn an_evaluation_does_not_take_the_servers_of_a_run_that_goes_on() {
    let folder = policies();
    let serving = Listening::serve(&folder, &["other"]);
    let servers = format!("rollout.servers=[{}]", serving.address);
    let from = ["~model.init", "+model.path=mine/checkpoints/step_1", "sft.steps=0"];
    let train = ["train", "tiny.yaml", "run.dir=.", "run.name=served", "train.total_steps=1"];
    folder.tamis(&[&train[..], &from, &["rollout.backend=vllm", &servers]].concat()).succeeds();
    let eval = |more: &[&str]| folder.tamis(&[&["eval", "served"], more].concat());
    // As in the run's own process.
    let lock = std::fs::File::open(folder.join("served/run.lock")).unwrap();
    lock.lock().unwrap();
    let named = format!("rollout.servers=[{}/]", serving.address);
    for more in [&[][..], &[named.as_str()]] {
        let failure =
            eval(more).failure().replace(&serving.address, "ADDRESS").replace("ADDRESS/ ", "ADDRESS ");
        let (before, after) = failure.split_once("(process ").unwrap();
        let after = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
        insta::allow_duplicates! {
            insta::assert_snapshot!(format!("{before}(process N{after}"), @r"
            exit code 2
            error: rollout.servers: the run `served` samples at ADDRESS now (process N holds it), but an evaluation would give that server the weights of the checkpoint
              hint: name other servers (`rollout.servers=[http://HOST:PORT]`), sample in this process (`rollout.backend=native`), or wait until the run has ended
            ");
        }
    }
    eval(&["rollout.backend=native"]).succeeds();
    drop(lock);
    eval(&[]).succeeds();
}

#[test]
fn what_an_evaluation_cannot_do_is_told_before_it_begins() {
    let folder = policies();
    let eval = |more: &[&str]| folder.tamis(&[&["eval", "mine"], more].concat()).failure();
    let nobody =
        ["rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:9]", "rollout.server_startup_timeout=1s"];
    insta::assert_snapshot!(eval(&[&nobody[..], &["publish.server_dir=/there"]].concat()), @r"
    exit code 2
    error: publish.server_dir: an evaluation publishes its weights to a temporary folder, which servers do not find in `/there`
      hint: set publish.dir to the folder that servers know as `/there`, or remove publish.server_dir
    ");
    // A server applies an expression by its own means.
    let printed = eval(&[&nobody[..], &["rollout.regex=[0-9]+x"]].concat());
    assert!(printed.starts_with("exit code 3\nerror: no server answers: "), "{printed}");
    let printed = eval(&[&nobody[..], &["rollout.regex=(1|2"]].concat());
    let refused = "exit code 2\nerror: rollout.regex (command line): unsupported regular expression";
    assert!(printed.contains(refused), "{printed}");
}

/// Text in, text out, by the server's own model.
#[test]
fn a_server_s_own_model_is_evaluated() {
    let folder = policies();
    let (native, _) = evaluated(&folder, &[]);
    let serving = Listening::serve(&folder, &["mine"]);
    let servers = format!("rollout.servers=[{}/v1]", serving.address);
    let (text, printed) = evaluated(&folder, &["rollout.backend=openai", &servers]);
    let accuracy = |found: &serde_json::Value| found["sources"][0]["figures"].clone();
    assert_eq!(accuracy(&native), accuracy(&text), "{printed}");
    assert!(!printed.contains("kept in"), "another model's is no figure of the checkpoint:\n{printed}");
    let ended = folder.tamis(&["eval", "mine", "rollout.backend=openai", &servers]).succeeds();
    let first = ended.stdout.lines().next().unwrap().replace(&serving.address, "ADDRESS");
    insta::assert_snapshot!(first, @"their model at ADDRESS/v1; tokenizer and template of mine/checkpoints/step_1");
    let ended = folder.tamis(&["eval", "mine", "rollout.backend=openai"]).exits(2);
    ended.says("error: `rollout.backend: openai` needs a server: ");
    ended.says("\n  hint: set `rollout.servers: [http://HOST:PORT]`\n");
}

/// OpenAI's chat interface over a judge that compares two texts, for clients with its key.
const JUDGE: &str = r#"
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Judge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def reply(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply(200, {"data": [{"id": "grader"}]})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != "Bearer secret":
            return self.reply(401, {"error": {"message": "no key"}})
        _, completion, truth = body["messages"][-1]["content"].split("|")
        verdict = "RIGHT" if completion.strip() == truth else "WRONG"
        text = f"The sum is {truth}.\nVerdict: {verdict}"
        self.reply(200, {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]})
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

struct Judging(Child, String);

impl Judging {
    fn begin() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", JUDGE])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self(child, format!("http://127.0.0.1:{}", port.trim()))
    }
}

impl Drop for Judging {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_whose_completions_are_judged() {
    let folder = Folder::tiny();
    let judging = Judging::begin();
    let judge = |name: &str, reward: String| {
        let name = format!("run.name={name}");
        let arguments = ["train", "tiny.yaml", &name, "train.total_steps=3", "data.check_gold=off", &reward];
        folder.wait(folder.start_with(&arguments, &[("JUDGE_KEY", PathBuf::from("secret"))]))
    };
    let reward = |server: &str, key: &str| {
        format!(
            "reward=[{{kind: judge, servers: ['{server}'], prompt: \
             '{{prompt}}|{{completion}}|{{ground_truth}}', pattern: 'Verdict: (\\w+)', \
             verdicts: {{right: 1, wrong: 0}}, pass_score: 1, api_key_env: {key}, startup_timeout: 1s}}]"
        )
    };
    judge("verified", "reward=[{kind: exact}]".to_owned()).succeeds();
    let ended = judge("judged", reward(&judging.1, "JUDGE_KEY")).succeeds();
    let weights = |run: &str| folder.weights(run, 3);
    assert!(weights("verified") == weights("judged"), "{}", ended.shown());
    // Its answers are stored, its key is not.
    assert!(std::fs::metadata(folder.join("runs/judged/journal.bin")).unwrap().len() > 1000);
    assert!(!folder.read("runs/judged/config.yaml").contains("secret"));
    let failure = |reward: String| judge("none", reward).failure().replace(&judging.1, "ADDRESS");
    insta::assert_snapshot!(failures([
        failure(reward("http://127.0.0.1:9", "JUDGE_KEY")),
        failure(reward(&judging.1, "NO_SUCH_KEY")),
        failure(reward(&judging.1, "JUDGE_KEY").replace("{prompt}|", "{question}|")),
    ]), @r"
    exit code 3
    error: no server answers: http://127.0.0.1:9 (reward `judge`): connect: client error (Connect): tcp connect error: Connection refused (os error 111)
      hint: start the server first, and name it in the `servers` of the reward
    exit code 2
    error: reward `judge`: api_key_env: the environment variable `NO_SUCH_KEY` is not set, or empty
      hint: set it before the command, as in `export NO_SUCH_KEY=...`
    error: reward `judge`: its `prompt` names `{question}`, which does not exist
      hint: available: answer, completion, data_source, digits, ground_truth, level, operations, prompt
    ");
}
