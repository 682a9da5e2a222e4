//! Programs that fail, hang, flood, are ended, or leave something behind.

use super::*;

#[test]
fn what_outlives_a_program_is_killed_or_refused() {
    // All children release what they inherited, and call until they are refused. One stays in the
    // group, and the others leave it, one of them without its original variables.
    let mut owner = Owner::of(
        r#"
daemon = """
import json, os, sys, time, urllib.error, urllib.request
name, url, key = sys.argv[1:]
if not name.endswith("stays"):
    os.setsid()
if os.fork():
    os._exit(0)
with open(name, "w") as file:
    file.write(str(os.getpid()) + "\\n")
began = time.monotonic()
while not os.path.exists(name + ".go"):
    # Nobody will say so any more.
    if time.monotonic() - began > 300: os._exit(1)
    time.sleep(0.01)
body = json.dumps({"messages": [{"role": "user", "content": name}]}).encode()
headers = {"Content-Type": "application/json", "Authorization": key}
request = urllib.request.Request(url + "/chat/completions", body, headers)
try:
    urllib.request.urlopen(request, timeout=60)
    said = "answered"
except urllib.error.HTTPError as error:
    said = str(error.code) + " " + json.load(error)["error"]["code"]
with open(name + ".said", "w") as file:
    file.write(said + "\\n")
"""
for name in ["stays", "escaped", "hidden"]:
    variables = {"PATH": os.environ["PATH"]} if name == "hidden" else None
    name = os.path.join(task["folder"], name)
    null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", daemon, name, url, key], check=True, env=variables, **null)
    while not os.path.exists(name) or not open(name).read().endswith("\n"):
        time.sleep(0.01)
ask("x")
print(1)
"#,
    );
    let folder = tempfile::tempdir().unwrap();
    owner.begin(&json!({"folder": folder.path()}));
    let (_, outcome, refused) = owner.ended_after("yes");
    assert_eq!((outcome, refused), (Ok(reward(1.0)), RefusedCalls::default()));
    let stays = written(&folder.path().join("stays"));
    soon("the end of what stayed", || !is_alive(&stays));
    let escaped = written(&folder.path().join("escaped"));
    let is_found = cfg!(target_os = "linux");
    if is_found {
        soon("the end of what has left the group", || !is_alive(&escaped));
    }
    let hidden = written(&folder.path().join("hidden"));
    assert!(is_alive(&hidden));
    for name in ["stays.go", "escaped.go", "hidden.go"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(written(&folder.path().join("hidden.said")), "410 episode_over\n");
    assert!(!folder.path().join("stays.said").exists());
    if is_found {
        assert!(!folder.path().join("escaped.said").exists());
        assert_eq!(owner.host.take_refused(), RefusedCalls { after_end: 1, ..RefusedCalls::default() });
    }
    assert_eq!(owner.host.take_events(), []);
}

/// A program that writes its process number and that of a child that sleeps, and then asks.
const WITH_CHILD: &str = r#"
child = subprocess.Popen(["sleep", "1000"])
with open(task["file"], "w") as file:
    file.write(f"{os.getpid()} {child.pid}\n")
"#;

fn assert_dead(pids: &str) {
    for pid in pids.split_whitespace() {
        soon("its end", || !is_alive(pid));
    }
}

#[test]
fn a_program_that_takes_too_long_is_killed_with_its_children_and_its_call_is_closed() {
    let script = format!("{WITH_CHILD}\nprint('waiting', file=sys.stderr, flush=True)\nask('x')");
    // On a busy machine an interpreter may start slowly: then it gets more time.
    for timeout in [4, 16, 64] {
        let mut owner =
            Owner::new(ProgramSettings { timeout: Duration::from_secs(timeout), ..settings(&script) });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let episode = owner.begin(&json!({"file": file}));
        let ProgramEvent::Asked { call, .. } = owner.next() else { continue };
        assert_eq!(owner.next(), ProgramEvent::Abandoned { episode, call });
        let (_, outcome, _) = owner.ended();
        let ProgramFailure { reason: error, is_late } = outcome.unwrap_err();
        assert!(is_late && error.contains(&format!("did not end within {timeout} s")), "{error}");
        assert!(error.ends_with("its standard error ends:\nwaiting"), "{error}");
        assert_dead(&written(&file));
        assert!(!owner.host.answer(call, Ok(ChatAnswer::text("x", ChatFinish::Stop))));
        return;
    }
    panic!("it never asked in time");
}

#[test]
fn a_program_that_fails_says_why() {
    let mut owner = Owner::of(
        r#"
if task == "silent":
    print(1)
elif task == "crash":
    ask("x")
    print(1)
    raise ValueError("no good")
elif task == "signal":
    ask("x")
    os.kill(os.getpid(), 9)
elif task == "wrong":
    ask("x")
    print('{"reward": "high"}')
elif task == "unscored":
    ask("x")
    print("done")
elif task == "unnamed":
    ask("x")
    print('{"reward": 1, "info": {"two words": 1}}')
"#,
    );
    for (task, parts) in [
        ("silent", ["ended without a call", "wrote nothing to its standard error"]),
        ("crash", ["failed (exit status: 1)", "ValueError: no good"]),
        ("signal", ["failed (signal: 9", "wrote nothing"]),
        ("wrong", ["`reward` must be a number", "got {\"reward\": \"high\"}"]),
    ] {
        owner.begin(&json!(task));
        let ProgramFailure { reason: error, is_late } = owner.ended_after("yes").1.expect_err(task);
        assert!(!is_late && parts.iter().all(|part| error.contains(part)), "{task}: {error}");
    }
    owner.begin(&json!("unscored"));
    assert_eq!(owner.ended_after("yes").1, Ok(ProgramOutcome::default()));
    assert_eq!(owner.host.take_warnings(), Vec::<String>::new());
    for _ in 0..2 {
        owner.begin(&json!("unnamed"));
        assert_eq!(owner.ended_after("yes").1, Ok(reward(1.0)));
    }
    let warnings = owner.host.take_warnings();
    let [said] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(said.starts_with("a program gives a number the name \"two words\" in `info`"), "{said}");

    let mut owner = Owner::new(ProgramSettings::new(vec!["/no/such/program".to_owned()]));
    let episode = owner.begin(&json!({}));
    let (ended, outcome, _) = owner.ended();
    let error = outcome.unwrap_err().reason;
    assert!(ended == episode && error.contains("`/no/such/program` cannot be started"), "{error}");
}

#[test]
fn a_program_that_floods_is_killed() {
    let script = "ask('x')\nwhile True:\n    print('x' * 10_000)";
    let mut owner = Owner::new(ProgramSettings { max_output_bytes: 1 << 20, ..settings(script) });
    owner.begin(&json!({}));
    let error = owner.ended_after("yes").1.unwrap_err().reason;
    assert!(error.contains("printed more than 1048576 bytes"), "{error}");
}

#[test]
fn an_episode_that_its_owner_ends_is_killed_and_not_heard_of_again() {
    let script = format!("{WITH_CHILD}\nask('x')");
    let mut owner = Owner::new(ProgramSettings { max_concurrent: 1, ..settings(&script) });
    let folder = tempfile::tempdir().unwrap();
    let files = ["one", "two", "three"].map(|name| folder.path().join(name));
    let episodes = files.each_ref().map(|file| owner.begin(&json!({"file": file})));
    let (asker, call, _) = owner.asked();
    assert_eq!(asker, episodes[0]);
    // One that has not been started, and one that runs.
    owner.host.end(episodes[1]);
    assert_eq!(owner.host.end(episodes[0]), RefusedCalls::default());
    assert!(!owner.host.answer(call, Ok(ChatAnswer::text("x", ChatFinish::Stop))));
    assert_dead(&written(&files[0]));
    let (asker, call, _) = owner.asked();
    assert_eq!(asker, episodes[2]);
    owner.say(call, "yes");
    let (ended, outcome, _) = owner.ended();
    assert_eq!((ended, outcome), (episodes[2], Ok(ProgramOutcome::default())));
    assert!(!files[1].exists());
    owner.host.end(episodes[2]);
    assert_eq!(owner.host.take_events(), []);
    // Waiting events are dropped.
    let episode = owner.begin(&json!({"file": files[1]}));
    assert!(owner.is_rung());
    owner.host.end(episode);
    assert_eq!(owner.host.take_events(), []);
    assert_eq!(owner.host.num_open(), 0);
}

#[test]
fn a_host_that_is_dropped_leaves_no_process_and_no_file() {
    let mut owner = Owner::of(&format!("{WITH_CHILD}\nask('x')"));
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..3).map(|i| folder.path().join(i.to_string())).collect();
    for file in &files {
        owner.begin(&json!({"file": file}));
    }
    for _ in &files {
        owner.asked();
    }
    let Owner { host, scratch, .. } = owner;
    assert_eq!((num_entries(scratch.path()), num_entries(&host_folder(scratch.path()))), (1, 3));
    drop(host);
    assert_eq!(num_entries(scratch.path()), 0);
    for file in &files {
        assert_dead(&written(file));
    }
}
