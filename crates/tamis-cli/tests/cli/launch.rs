//! Runs that start their servers themselves: `rollout.launch`, and the equivalent keys of other systems.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::tamis::{Ended, Folder, signal, soon, words};

/// A policy after a warm start, because servers serve a checkpoint.
pub(crate) const SERVED: [&str; 3] = ["~model.init", "+model.path=first/checkpoints/step_1", "sft.steps=0"];

pub(crate) fn first(folder: &Folder) {
    folder.tamis(&["train", "tiny.yaml", "run.dir=.", "run.name=first", "train.total_steps=1"]).succeeds();
}

/// A program `vllm` in `bin`. It writes its number and its arguments to files and becomes `tamis serve`.
pub(crate) fn vllm(folder: &Folder) -> (&'static str, PathBuf) {
    let script = format!(
        "#!/bin/sh\necho $$ >> '{pids}'\necho \"$VLLM_SERVER_DEV_MODE $CUDA_VISIBLE_DEVICES $*\" >> '{arguments}'\n\
         [ \"$1\" = serve ] || exit 9\nexec '{tamis}' serve \"$2\" --host \"$4\" --port \"$6\" --threads 1\n",
        pids = folder.join("pids").display(),
        arguments = folder.join("arguments").display(),
        tamis = env!("CARGO_BIN_EXE_tamis"),
    );
    folder.write("bin/vllm", &script);
    std::fs::set_permissions(folder.join("bin/vllm"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    ("PATH", PathBuf::from(format!("{}:{path}", folder.join("bin").display())))
}

fn run(folder: &Folder, arguments: &[&str], path: (&str, PathBuf)) -> Ended {
    let ended = folder.wait(folder.start_with(arguments, &[path]));
    ended.never_says("panicked");
    ended
}

pub(crate) fn pids(folder: &Folder) -> Vec<String> {
    std::fs::read_to_string(folder.join("pids")).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn is_alive(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid]).stderr(std::process::Stdio::null()).status().unwrap().success()
}

/// verl's keys for an engine are enough: two servers are started on the available GPUs, and the run equals
/// the one without servers.
#[test]
fn an_engine_that_verl_s_keys_name_is_started_and_ended() {
    let folder = Folder::tiny();
    first(&folder);
    folder
        .tamis(&[&["train", "tiny.yaml", "run.name=alone", "train.total_steps=4"], &SERVED[..]].concat())
        .succeeds();
    let path = vllm(&folder);
    let engine = words(
        "train tiny.yaml run.name=served train.total_steps=4 actor_rollout_ref.rollout.name=vllm \
         actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.8 trainer.n_gpus_per_node=4",
    );
    let ended = run(&folder, &[&engine, &SERVED[..]].concat(), path.clone()).succeeds();
    assert!(folder.weights("alone", 4) == folder.weights("served", 4), "{}", ended.shown());
    ended.says("starting a server: VLLM_SERVER_DEV_MODE=1 vllm serve");
    let mut arguments: Vec<String> = folder.read("arguments").lines().map(str::to_owned).collect();
    arguments.sort();
    for (line, gpus) in arguments.iter().zip(["0,1", "2,3"]) {
        assert!(line.starts_with(&format!("1 {gpus} serve ")), "{line}");
        assert!(line.ends_with("--tensor-parallel-size 2 --gpu-memory-utilization=0.8"), "{line}");
    }
    assert_eq!((arguments.len(), pids(&folder).len()), (2, 2));
    assert!(!pids(&folder).iter().any(|pid| is_alive(pid)), "a server is left");
    assert!(folder.read("runs/served/servers/server_2.log").contains("listening on"));
    // A resume starts them with its own weights.
    let more = ["train", "--resume", "runs/served", "train.total_steps=5"];
    run(&folder, &more, path).succeeds();
    assert_eq!(pids(&folder).len(), 4);
    assert!(!pids(&folder).iter().any(|pid| is_alive(pid)), "a server is left");
}

#[test]
fn servers_that_a_launcher_starts_end_with_the_run() {
    let folder = Folder::tiny();
    first(&folder);
    let train = ["train", "tiny.yaml", "train.total_steps=4"];
    folder.tamis(&[&train[..], &["run.name=alone"], &SERVED].concat()).succeeds();
    let (name, path) = vllm(&folder);
    let environment = [(name, path), ("CUDA_VISIBLE_DEVICES", PathBuf::from("4,5,6,7"))];
    let launched = [
        "run.name=launched",
        "rollout.backend=vllm",
        "rollout.launch={replicas: 2, tensor_parallel: 2}",
        "cluster.launcher=local",
    ];
    let arguments = [&train[..], &launched, &SERVED].concat();
    let ended = folder.wait(folder.start_with(&arguments, &environment)).succeeds();
    assert!(folder.weights("alone", 4) == folder.weights("launched", 4), "{}", ended.shown());
    let mut arguments: Vec<String> = folder.read("arguments").lines().map(str::to_owned).collect();
    arguments.sort();
    // One whose port was taken before it listened is started again.
    arguments.dedup_by_key(|line| line.split(" serve ").next().map(str::to_owned));
    assert_eq!(arguments.len(), 2, "{arguments:?}");
    for (line, gpus) in arguments.iter().zip(["4,5", "6,7"]) {
        assert!(line.starts_with(&format!("1 {gpus} serve ")), "{line}");
    }
    assert!(!pids(&folder).iter().any(|pid| is_alive(pid)), "a server is left");
    let log = folder.read("runs/launched/servers/server_2.log");
    assert!(log.starts_with("$ VLLM_SERVER_DEV_MODE=1 vllm serve ") && log.contains("listening on"), "{log}");
    assert_eq!(folder.read("runs/launched/cluster.log"), "");
    // With more servers than GPUs the run does not begin, and reports why.
    let too_many = ["run.name=more", "rollout.launch={replicas: 5}"];
    let arguments = [&train[..], &launched[1..2], &launched[3..], &too_many, &SERVED].concat();
    let refused = folder.wait(folder.start_with(&arguments, &environment));
    refused.says("is to have 1 GPUs: 4 are there, 0 of them free");
    assert!(refused.stderr.contains("hint: lower `learner.gpus_per_node` or `rollout.launch.replicas`"));
}

#[cfg(target_os = "linux")]
fn parent(pid: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    status.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().to_owned()
}

/// A run that learns in its own process outlives its launcher: another one starts the servers, at other
/// addresses. They require the key that the run drew, which no list of processes shows.
#[cfg(target_os = "linux")]
#[test]
fn a_launcher_that_is_killed_is_started_again_with_its_servers() {
    let folder = Folder::tiny();
    first(&folder);
    let train = ["train", "tiny.yaml", "train.total_steps=60", "run.threads=1"];
    folder.tamis(&[&train[..], &["run.name=alone"], &SERVED].concat()).succeeds();
    let script = format!(
        "#!/bin/sh\necho $$ >> '{pids}'\numask 077\nprintf '%s' \"$VLLM_API_KEY\" > '{key}'\n\
         exec '{tamis}' serve \"$2\" --host \"$4\" --port \"$6\" --threads 1 --api-key-file '{key}'\n",
        pids = folder.join("pids").display(),
        key = folder.join("key").display(),
        tamis = env!("CARGO_BIN_EXE_tamis"),
    );
    let path = vllm(&folder);
    folder.write("bin/vllm", &script);
    let launched = [
        "run.name=launched",
        "rollout.backend=vllm",
        "rollout.launch={replicas: 2}",
        "cluster.launcher=local",
    ];
    let run = folder.start_with(&[&train[..], &launched, &SERVED].concat(), std::slice::from_ref(&path));
    let is_logged = |step: &str| {
        let metrics = folder.join("runs/launched/metrics.jsonl");
        std::fs::read_to_string(metrics).is_ok_and(|text| text.contains(step))
    };
    soon("step 5", || is_logged("\"step\":5,"));
    let key = folder.read("key");
    assert!(key.len() == 32 && !folder.read("runs/launched/servers/server_1.log").contains(&key), "{key:?}");
    for pid in pids(&folder) {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(words.contains("serve") && !words.contains(&key), "{words}");
    }
    let launcher = parent(&parent(&pids(&folder)[0]));
    assert!(Command::new("kill").args(["-KILL", &launcher]).status().unwrap().success());
    let ended = folder.wait(run).succeeds();
    ended.says("another launcher starts its servers in 1 s, restart 1 of at most 8");
    assert_eq!(ended.stderr.matches(" was restarted and now answers at http://127.0.0.1:").count(), 2);
    // Two at first, and two from another launcher. On a busy machine a server may need more than one attempt
    // to start.
    assert!(pids(&folder).len() >= 4);
    assert_eq!(folder.read("key"), key);
    assert!(!pids(&folder).iter().any(|pid| is_alive(pid)), "a server is left");
    let last = |run: &str| folder.weights(run, 60);
    assert!(last("alone") == last("launched"), "{}", ended.shown());
}

#[test]
fn what_a_run_would_start_is_told_before() {
    let folder = Folder::tiny();
    let verl = words(
        "algorithm.adv_estimator=grpo data.train_files=t.parquet actor_rollout_ref.model.path=m \
         actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=8",
    );
    let imported = folder.tamis(&[&["config", "import"], &verl[..]].concat()).succeeds();
    let printed = "the run starts 4 servers before it samples: `VLLM_SERVER_DEV_MODE=1 vllm serve ";
    imported.prints(&format!("# {printed}"));
    let arguments = ["config", "check", "tiny.yaml", "rollout.backend=sglang", "rollout.launch={}"];
    let checked = folder.tamis(&arguments).succeeds();
    let last = checked.stdout.lines().last().unwrap_or_default();
    insta::assert_snapshot!(last, @"the run starts a server before it samples: `python3 -m sglang.launch_server --model-path runs/tiny/published/start --host 127.0.0.1 --port PORT --max-running-requests 256`; install its program here, name running servers (rollout.servers=[http://HOST:PORT]), or sample without servers (rollout.backend=native)");
}

#[test]
fn weights_are_published_where_servers_find_them() {
    let folder = Folder::tiny();
    first(&folder);
    folder
        .tamis(&[&["train", "tiny.yaml", "run.name=alone", "train.total_steps=4"], &SERVED[..]].concat())
        .succeeds();
    std::fs::create_dir(folder.join("shared")).unwrap();
    std::os::unix::fs::symlink(folder.join("shared"), folder.join("there")).unwrap();
    let there = format!("publish.server_dir={}", folder.join("there").display());
    let served = [
        "train",
        "tiny.yaml",
        "run.name=served",
        "train.total_steps=4",
        "rollout.backend=vllm",
        "rollout.launch={}",
        "publish.dir=shared",
        "publish.keep=3",
        &there,
    ];
    run(&folder, &[&served, &SERVED[..]].concat(), vllm(&folder)).succeeds();
    assert!(folder.weights("alone", 4) == folder.weights("served", 4));
    let names = |path: &str| {
        let entries = std::fs::read_dir(folder.join(path)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let runs = names("shared");
    assert!(runs.len() == 1 && runs[0].starts_with("served-"), "{runs:?}");
    let published = names(&format!("shared/{}", runs[0]));
    assert_eq!(published, ["start", "version_2", "version_3", "version_4"]);
    assert!(!folder.join("runs/served/published").exists());
}

#[test]
fn a_server_that_does_not_come_up_ends_the_run_with_its_last_words() {
    let folder = Folder::tiny();
    first(&folder);
    let failure = |launch: &str| {
        let arguments = ["train", "tiny.yaml", "rollout.backend=vllm", launch];
        let ended = folder.tamis(&[&arguments, &SERVED[..]].concat());
        assert!(!folder.join("runs/tiny").exists(), "{}", ended.shown());
        let failure = ended.failure();
        // A different one each time.
        let mut words: Vec<&str> = failure.split_inclusive([' ', '`']).collect();
        for word in &mut words {
            if word.trim_end_matches('`').parse::<u16>().is_ok_and(|port| port > 1024) {
                *word = "PORT`";
            }
        }
        words.concat()
    };
    let own =
        |script: &str| format!("rollout.launch.command=[/bin/sh, -c, '{script}', '{{model}}', '{{port}}']");
    insta::assert_snapshot!(failure(&own("echo no GPU; exit 5")), @r"
    exit code 3
    error: `VLLM_SERVER_DEV_MODE=1 /bin/sh -c 'echo no GPU; exit 5' DIR/runs/tiny/published/start PORT` ended (exit status: 5) before it answered; its output ends:
    no GPU
      hint: fix what its output says (rollout.launch.args are its arguments, rollout.launch.startup_timeout how long it may take), name servers that are running in rollout.servers, or sample in this process (`rollout.backend=native`)
    ");
    // Its other output can be read there.
    let log = std::fs::read_to_string(folder.join("runs/tiny.failed/server_1.log")).unwrap();
    assert!(log.contains("no GPU"), "{log}");
    insta::assert_snapshot!(failure("rollout.launch.command=[no-such-vllm, '{model}', '{port}']"), @r"
    exit code 3
    error: cannot start `VLLM_SERVER_DEV_MODE=1 no-such-vllm DIR/runs/tiny/published/start PORT`
      caused by: No such file or directory (os error 2)
      hint: install the server on this machine, name its program in rollout.launch.command, name servers that are running in rollout.servers, or sample in this process (`rollout.backend=native`)
    ");
}

#[test]
fn servers_end_with_the_run_however_that_ends() {
    let folder = Folder::tiny();
    first(&folder);
    let path = vllm(&folder);
    for (name, code) in [("-INT", Some(130)), ("-KILL", None)] {
        let _ = std::fs::remove_file(folder.join("pids"));
        let arguments =
            ["train", "tiny.yaml", "train.total_steps=100000", "rollout.backend=vllm", "rollout.launch={}"];
        let child = folder.start_with(&[&arguments, &SERVED[..]].concat(), std::slice::from_ref(&path));
        soon("a server", || !pids(&folder).is_empty());
        let server = pids(&folder)[0].clone();
        std::thread::sleep(Duration::from_secs(2));
        signal(&child, name);
        let ended = folder.wait(child);
        assert_eq!(ended.code, code, "{}", ended.shown());
        soon("the end of the server", || !is_alive(&server));
    }
}
