//! A run with a teacher is killed in the middle and resumed, and equals a run that went through: teachers
//! that the learner loads, and teachers at servers, which are asked nothing twice.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kills::{Stop, killed_when};
use crate::support::http::{Delivery, Handler, Reply, Request, TestServer};
use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY, unfiltered};

fn with(rest: &str) -> Folder {
    let folder = Folder::new();
    // 64 prompts are more than 6 steps of 4 need: no step has texts of another.
    let config = unfiltered(TINY).replaced("rollout: {n: 4,", "rollout: {n: 2,");
    folder.write("config.yaml", &format!("{config}{rest}"));
    folder
}

fn finished(folder: &Folder, arguments: &[&str]) -> Ended {
    let mut last = None;
    while last.is_none() {
        last = killed_when(folder, arguments, Stop::Kill, || false);
    }
    last.expect("ended").succeeds()
}

fn left(folder: &Folder) -> Left {
    Left::by(&folder.join("runs/tiny"))
}

/// Both forms of a distillation.
const FORMS: [&str; 2] = [
    "objective: {advantage: {kind: on_policy_distillation}}\n",
    "objective: {distillation: {top_k: 3, beta: 0.5, sampled: true}}\n",
];

#[test]
fn a_killed_run_with_a_loaded_teacher_is_the_run_that_went_through() {
    for form in FORMS {
        let folder = with(form);
        folder
            .tamis(&[
                "train",
                "config.yaml",
                "run.name=teacher",
                "train.total_steps=1",
                "sft.steps=60",
                "objective.advantage.kind=grpo",
                "~objective.distillation",
            ])
            .succeeds();
        let other = with(form);
        let teacher = folder.join("runs/teacher/checkpoints/step_1");
        let teacher = format!("teacher=[{{path: {}}}]", teacher.display());
        // So many that it is killed before the last.
        let arguments = [&*teacher, "train.total_steps=60"];
        // The folder of the run that is killed holds no other run.
        other.tamis(&[&["train", "config.yaml"], &arguments[..]].concat()).succeeds();
        let killed = with(form);
        for rows in [3, 12] {
            let ended = killed_when(&killed, &arguments, Stop::Kill, || killed.has_rows("runs/tiny", rows));
            assert!(ended.is_none(), "it was killed");
        }
        finished(&killed, &arguments);
        left(&killed).assert_same(&left(&other));
    }
}

/// What a server does.
#[derive(Default)]
struct Doings {
    /// Texts that it has rated.
    rated: HashSet<String>,
    /// Texts that it had rated for an earlier process, which have other numbers now.
    before: HashSet<String>,
    /// Most texts that it rates; others wait for ever.
    most: Option<usize>,
}

/// A vLLM server whose numbers are a function of the text, and others for texts that an earlier process
/// asked.
fn server(doings: &Arc<Mutex<Doings>>) -> TestServer {
    let doings = Arc::clone(doings);
    let handler: Handler = Arc::new(move |request: Request| {
        let reply = if request.path == "/v1/models" {
            Reply::json(200, &json!({"object": "list", "data": [{"id": "teacher", "object": "model"}]}))
        } else {
            rated(&request, &mut doings.lock().expect("lock"))
        };
        Box::pin(async move { reply })
    });
    TestServer::start(None, handler)
}

fn rated(request: &Request, doings: &mut Doings) -> Reply {
    let body = request.json();
    let ids: Vec<u64> = body["prompt"].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
    let text = body["prompt"].to_string();
    // The text of the test at the start is of two tokens.
    let is_test = ids.len() == 2;
    if !is_test && doings.most.is_some_and(|most| doings.rated.len() >= most) {
        return Reply { delivery: Delivery::Hang, ..Reply::json(200, &json!({})) };
    }
    let shift = if doings.before.contains(&text) { 0.25 } else { 0.0 };
    if !is_test {
        doings.rated.insert(text);
    }
    let num_top = body["prompt_logprobs"].as_u64().expect("a number");
    let seen: Vec<Value> = (0..ids.len())
        .map(|place| {
            if place == 0 {
                return Value::Null;
            }
            let sum: u64 = ids[..=place].iter().zip(1..).map(|(id, weight)| id * weight).sum();
            let logprob = |rank: u64| -shift - 0.5 - (sum % 7) as f64 / 8.0 - rank as f64;
            let mut listed = serde_json::Map::new();
            for rank in 0..num_top {
                listed.insert(
                    ((sum + rank) % 12).to_string(),
                    json!({"logprob": logprob(rank), "rank": rank + 1}),
                );
            }
            listed.insert(ids[place].to_string(), json!({"logprob": logprob(sum % 5), "rank": 5}));
            Value::Object(listed)
        })
        .collect();
    let choice = json!({"index": 0, "text": "x", "logprobs": null, "finish_reason": "length",
        "prompt_logprobs": seen});
    Reply::json(
        200,
        &json!({"id": "cmpl-1", "model": "teacher", "choices": [choice],
        "usage": {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}}),
    )
}

#[test]
fn a_killed_run_asks_a_teacher_at_a_server_nothing_twice() {
    for form in FORMS {
        let doings = Arc::new(Mutex::new(Doings::default()));
        let server = server(&doings);
        let teacher = format!("teacher=[{{servers: [{}]}}]", server.url());
        let through = with(form);
        through.tamis(&["train", "config.yaml", &teacher]).succeeds();
        let num_asked = doings.lock().expect("lock").rated.len();

        // Checkpoints are of steps 2, 4 and 6. The third step's texts are rated, and none of the fourth's.
        // Two completions of a prompt may be alike.
        *doings.lock().expect("lock") = Doings::default();
        with(form).tamis(&["train", "config.yaml", &teacher, "train.total_steps=3"]).succeeds();
        let of_three = doings.lock().expect("lock").rated.len();
        *doings.lock().expect("lock") = Doings { most: Some(of_three), ..Doings::default() };
        let killed = with(form);
        let ended = killed_when(&killed, &[&teacher], Stop::Kill, || killed.has_rows("runs/tiny", 4));
        assert!(ended.is_none(), "it was killed");
        assert!(journal(&killed).metadata().expect("a journal").len() > 0);
        {
            let mut doings = doings.lock().expect("lock");
            assert_eq!(doings.rated.len(), of_three);
            *doings = Doings { before: std::mem::take(&mut doings.rated), ..Doings::default() };
        }
        finished(&killed, &[&teacher]);
        left(&killed).assert_same(&left(&through));
        let doings = doings.lock().expect("lock");
        assert!(doings.rated.is_disjoint(&doings.before), "asked again");
        assert_eq!(doings.rated.len() + doings.before.len(), num_asked);
    }
}

fn journal(folder: &Folder) -> std::path::PathBuf {
    folder.join("runs/tiny/teachers.bin")
}

/// The interpreter of the PyTorch learner, if `scripts/install-torch` has made it.
fn torch() -> Option<std::path::PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv-torch/bin/python");
    python.is_file().then_some(python)
}

#[test]
#[ignore = "long: .ci/all"]
fn a_killed_run_with_its_own_base_as_the_teacher_is_the_run_that_went_through() {
    let Some(python) = torch() else { return };
    let policy = with("");
    policy.tamis(&["train", "config.yaml", "run.name=policy", "train.total_steps=1"]).succeeds();
    let path = policy.join("runs/policy/checkpoints/step_1");
    let python = format!("learner.python={}", python.display());
    let model = format!("model={{path: {}}}", path.display());
    for form in FORMS {
        let arguments = [
            "teacher=[{}]",
            "learner.backend=torch",
            "learner.device=cpu",
            "learner.lora={rank: 2, alpha: 4}",
            "rollout.backend=learner",
            "~sft",
            &python,
            &model,
        ];
        let through = with(form);
        through.tamis(&[&["train", "config.yaml"], &arguments[..]].concat()).succeeds();
        let killed = with(form);
        let ended = killed_when(&killed, &arguments, Stop::Kill, || killed.has_rows("runs/tiny", 4));
        assert!(ended.is_none(), "it was killed");
        std::thread::sleep(Duration::from_millis(200));
        finished(&killed, &arguments);
        left(&killed).assert_same(&left(&through));
    }
}
