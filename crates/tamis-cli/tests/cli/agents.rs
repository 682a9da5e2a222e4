//! Runs whose prompts are played elsewhere: in a user's Python class, by programs that call the policy, with
//! tools.

use crate::tamis::{Folder, Left, Replaced as _, soon};

/// A small policy of characters without a warm start, trained for a few steps.
const SMALL: &str = "\
run: {name: tiny, seed: 5, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 512}
data: {DATA, train_batch_size: 4, max_prompt_length: 64}
environment: {ENVIRONMENT}
sft: {WARM}
rollout: {n: 4, max_response_length: 6}
train: {total_steps: 3, optimizer: {learning_rate: 1e-2}}
validate: {test_freq: 1}
checkpoint: {save_freq: 1}
";

fn config(data: &str, environment: &str, warm: &str) -> String {
    SMALL.replaced("DATA", data).replaced("ENVIRONMENT", environment).replaced("WARM", warm)
}

fn assert_on_policy(folder: &Folder) {
    let kls: Vec<f64> = folder.rows("tiny").iter().filter_map(|row| row["actor/ppo_kl"].as_f64()).collect();
    assert_eq!(kls, [0.0; 3]);
}

/// Counts the length of answers, and ends after three.
const COUNTER: &str = r#"
import random

class Counter:
    is_deterministic = True
    def __init__(self, longest):
        self.longest = longest
    def reset(self, level, luck):
        self.turns, self.number = 0, random.Random(level).randint(1, 9)
        return f"go {self.number}"
    def step(self, text):
        self.turns += 1
        if text == "no such answer": raise ValueError
        return f"{len(text)} of {self.number}", min(len(text), self.longest) / 10, self.turns == 3
"#;

#[test]
fn a_python_class_is_played_in_workers_and_resumed() {
    let environment = "kind: python, path: counter.py:Counter, args: {longest: 5}, style: plain, train_size: 16, val_size: 4";
    let config = config("task: environment", environment, "steps: 0");
    let folder = Folder::new().with("config.yaml", &config).with("counter.py", COUNTER);
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    ended.says("Counter (python): 16 training and 4 held-out levels");
    assert_on_policy(&folder);
    for row in (1..=3).flat_map(|step| folder.rollouts("tiny", step)) {
        assert_eq!(row["turn_ends"].as_array().unwrap().len(), 3, "{row}");
        let rewards: f64 =
            row["turn_rewards"].as_array().unwrap().iter().map(|reward| reward.as_f64().unwrap()).sum();
        assert!((rewards - row["reward"].as_f64().unwrap()).abs() < 1e-6, "{row}");
    }
    // Interrupted after its first step and resumed, it ends as it would have.
    let expected = Left::by(&folder.join("runs/tiny"));
    let again = Folder::new().with("config.yaml", &config).with("counter.py", COUNTER);
    again.tamis(&["train", "config.yaml", "train.total_steps=1"]).succeeds();
    again.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).succeeds();
    expected.assert_same(&Left::by(&again.join("runs/tiny")));
    // Another class under the same name is not another data file.
    again.write("counter.py", &COUNTER.replaced("return f\"go {", "return f\"went {"));
    let changed = again.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=4"]).exits(4);
    let said =
        "started with: the environment (environment.path) has changed: its levels differ from those before\n";
    changed.says(said);
    // What it lacks is reported before anything is generated.
    for (setting, said) in [
        ("environment.path=counter.py:Nobody", "has no function or class `Nobody`"),
        ("environment.python=no-such-python", "its worker `no-such-python` cannot be started"),
    ] {
        folder.tamis(&["train", "config.yaml", "run.name=other", setting]).exits(2).says(said);
    }
}

#[test]
fn an_environment_that_always_dies_ends_a_run_by_name() {
    let environment = "kind: python, path: counter.py:Counter, args: {longest: 5}, style: plain, train_size: 16, val_size: 4";
    let config =
        config("task: environment", environment, "steps: 0").replaced("total_steps: 3", "total_steps: 1");
    let folder = Folder::new().with("config.yaml", &config).with("counter.py", COUNTER);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let dies = COUNTER
        .replaced("import random", "import os, random, sys")
        .replaced("self.turns += 1", "print('bye', file=sys.stderr, flush=True); os._exit(3)");
    folder.write("counter.py", &dies);
    let measured = folder.tamis(&["eval", "runs/tiny"]).exits(1);
    let said = "error: nothing was evaluated, and nothing is kept: no prompt could be generated from: the worker of its \
         environment is gone (exit status: 3)";
    measured.says(said);
    assert!(!folder.join("runs/tiny/evaluations").exists(), "{}", measured.shown());
    let resume = ["train", "--resume", "runs/tiny", "train.total_steps=3", "environment.max_restarts=1"];
    let ended = folder.tamis(&resume).exits(1);
    let said = "the environment is lost: its workers were lost 2 times in a row without a finished episode in between, and \
        `environment.max_restarts` (1) allows no more; the last time: the worker of its environment is gone (exit status: 3)";
    ended.says(said).says("hint: fix what it reports");
}

/// Calls twice, the second time with the result of the first. An episode's first call is its prompt.
const AGENT: &str = r#"
import json, os, sys, urllib.request

task = json.loads(sys.stdin.readline())
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["TAMIS_MODEL"], "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with opener.open(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["message"]

talk = list(task["messages"])
talk += [ask(talk), {"role": "user", "content": "again"}]
last = ask(talk)
right = task["ground_truth"] in last["content"]
print(json.dumps({"reward": float(right), "success": right, "info": {"length": len(last["content"])}}))
"#;

#[test]
fn a_program_is_answered_by_the_policy_and_its_calls_are_trained_on() {
    let row = |n| format!("{{\"prompt\": \"say {n}\", \"ground_truth\": \"{n}\"}}\n");
    let prompts = [0, 1, 2, 3].map(row).concat().repeat(4);
    let environment = "kind: program, argv: [python3, agent.py], style: plain, max_concurrent: 4, prompting: {max_turns: 2}";
    let config = config(
        "train: prompts.jsonl, val: prompts.jsonl, prompt_format: text",
        environment,
        "steps: 40, batch_size: 16, learning_rate: 1e-2",
    );
    let folder =
        Folder::new().with("config.yaml", &config).with("prompts.jsonl", &prompts).with("agent.py", AGENT);
    folder.tamis(&["train", "config.yaml"]).succeeds().says("programs ask the policy at http://127.0.0.1:");
    assert_on_policy(&folder);
    for row in (1..=3).flat_map(|step| folder.rollouts("tiny", step)) {
        assert_eq!(row["turn_ends"].as_array().unwrap().len(), 2, "{row}");
        assert_eq!(row["reward"], row["success"], "{row}");
        // What stands between bears no loss.
        assert!(row["loss_mask"].as_array().unwrap().iter().any(|is_written| *is_written == false), "{row}");
    }
    let steps = folder.rows("tiny");
    let last = steps.iter().rfind(|row| row["train/program/num_calls_refused"].is_number()).expect("counted");
    assert_eq!(last["train/program/num_calls_refused"], 0.0);
    // Programs do not affect what a seed determines.
    let expected = Left::by(&folder.join("runs/tiny"));
    let again =
        Folder::new().with("config.yaml", &config).with("prompts.jsonl", &prompts).with("agent.py", AGENT);
    again.tamis(&["train", "config.yaml", "train.total_steps=1"]).succeeds();
    again.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).succeeds();
    expected.assert_same(&Left::by(&again.join("runs/tiny")));
    // A program that crashes fails its group, with its last words.
    let crash = again.with("agent.py", "raise SystemExit('the agent is out')");
    let ended = crash.tamis(&["train", "config.yaml", "run.name=other"]);
    assert_ne!(ended.code, Some(0));
    ended.says("the agent is out");
    ended.says("environment: look at what fails in `program`");
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_run_leaves_no_program_and_no_folder() {
    let prompts = "{\"prompt\": \"say 1\", \"ground_truth\": \"1\"}\n".repeat(8);
    let agent = "import sys, time\nsys.stdin.readline()\ntime.sleep(300)\n";
    let folder =
        Folder::new().with("prompts.jsonl", &prompts).with("agent.py", agent).with("scratch/marker", "");
    let program = folder.join("agent.py").display().to_string();
    let environment =
        format!("kind: program, argv: [python3, {program}], style: plain, prompting: {{max_turns: 2}}");
    let config = config("train: prompts.jsonl, prompt_format: text", &environment, "steps: 0")
        .replaced("validate: {test_freq: 1}", "validate: {test_freq: 0, before_train: false}");
    folder.write("config.yaml", &config);
    let scratch = folder.join("scratch");
    let left = || std::fs::read_dir(&scratch).unwrap().flatten().map(|entry| entry.path());
    let is_program = |path: &std::path::Path| path.file_name().unwrap().to_string_lossy().contains("program");
    let is_running = || {
        let of = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut lines = std::fs::read_dir("/proc").unwrap().flatten().map(of);
        lines.any(|line| String::from_utf8_lossy(&line).contains(&program))
    };
    for episodes in [0, 1, 3] {
        let mut run = folder.start_with(&["train", "config.yaml"], &[("TMPDIR", scratch.clone())]);
        soon("the begin of a program", || {
            let of = |path: std::path::PathBuf| std::fs::read_dir(path).map_or(0, Iterator::count);
            left().any(|path| is_program(&path) && of(path) > episodes)
        });
        run.kill().unwrap();
        run.wait().unwrap();
        soon("the end of its folder", || !left().any(|path| is_program(&path)));
        soon("the end of the program", || !is_running());
        std::fs::remove_dir_all(folder.join("runs")).unwrap();
    }
}

/// Roles and contents in lines, and the names of tools at the top.
const TEMPLATE: &str = "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

const TOOLS: &str = r#"
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b
"#;

#[test]
fn answers_that_call_tools_go_on() {
    // A policy that has learned to write one call.
    let call = "<tool_call>{\\\"name\\\": \\\"add\\\", \\\"arguments\\\": {\\\"a\\\": 1, \\\"b\\\": 41}}</tool_call>";
    let prompts = format!("{{\"prompt\": \"sum\", \"ground_truth\": \"{call}\"}}\n").repeat(8);
    let environment = "kind: tools, name: sums, functions: [tools.py:add], prompting: {max_turns: 2}";
    let config =
        config("train: prompts.jsonl", environment, "steps: 150, batch_size: 8, learning_rate: 1e-2")
            .replaced("model:\n", "reward: [{kind: exact}]\nmodel:\n  chat_template: template.jinja\n")
            .replaced("max_response_length: 6", "max_response_length: 90")
            .replaced("validate: {test_freq: 1}\n", "");
    let folder = Folder::new()
        .with("config.yaml", &config)
        .with("prompts.jsonl", &prompts)
        .with("template.jinja", TEMPLATE)
        .with("tools.py", TOOLS);
    folder.tamis(&["train", "config.yaml"]).succeeds().says("tools: add");
    assert_on_policy(&folder);
    let called = (1..=3)
        .flat_map(|step| folder.rollouts("tiny", step))
        .filter(|row| row["turn_ends"].as_array().unwrap().len() == 2);
    let texts: Vec<String> = called.map(|row| row["completion"].as_str().unwrap().to_owned()).collect();
    assert!(!texts.is_empty());
    assert!(texts.iter().any(|text| text.contains("tool: 42")), "{texts:?}");
    // A reward function judges: the tools themselves do not know what is solved.
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    assert!(metrics.contains("\"train/sums/num_tool_calls\":"), "{metrics}");
    assert!(!metrics.contains("sums/success"), "{metrics}");
}
