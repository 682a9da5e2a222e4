//! `tamis config check --plan`, the plan of a run as it begins, and `tamis doctor`. Programs on `PATH`
//! imitate the machines.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::launch::{SERVED, first};
use crate::tamis::{Ended, Folder, TINY, signal};

const TORCH: [&str; 2] = ["tiny.yaml", "learner.backend=torch"];

fn program(folder: &Folder, name: &str, script: &str) -> (&'static str, PathBuf) {
    let name = format!("bin/{name}");
    folder.write(&name, &format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(folder.join(&name), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    ("PATH", PathBuf::from(format!("{}:{path}", folder.join("bin").display())))
}

fn driver(folder: &Folder, mebibytes: u32) -> (&'static str, PathBuf) {
    let gpu = |number: u32| format!("{number}, GPU-{number}, {mebibytes}, 3, NVIDIA H100 80GB HBM3");
    let script =
        format!("case \"$1\" in *driver*) echo 580.95;; *) echo '{}'; echo '{}';; esac", gpu(0), gpu(1));
    program(folder, "nvidia-smi", &script)
}

fn run(folder: &Folder, arguments: &[&str], path: (&str, PathBuf)) -> Ended {
    let ended = folder.wait(folder.start_with(arguments, &[path, ("CUDA_VISIBLE_DEVICES", "0,1".into())]));
    ended.never_says("panicked");
    ended
}

#[test]
fn a_plan_is_printed_for_machines_that_are_not_here() {
    let folder = Folder::tiny();
    let check = |arguments: &[&str]| folder.tamis(&[&["config", "check"], &TORCH[..], arguments].concat());
    let plan = ["--plan", "--machines", "2x4x24GiB", "cluster.launcher=ray", "learner.nodes=2"];
    insta::assert_snapshot!(check(&plan).succeeds().stdout, @r"
    the configuration is sound (0 warnings)
    plan: 2 machines, each 4 GPUs with 24.0 GiB
      learner: 2 machines with 4 ranks each, on a GPU each; a wave has at most 8 x 28 tokens
        each GPU: 7.7 KiB of 24.0 GiB before a token is computed: weights 1.9 KiB, gradients 1.9 KiB, moments 3.8 KiB
    ");
    // Checkpoints that this machine's disk cannot hold do not hide the plan.
    let large =
        ["model.init.hidden_size=16384", "model.init.intermediate_size=65536", "model.init.num_layers=400"];
    let plan = check(&[&["--plan", "--machines", "8x80GiB"], &large[..]].concat()).exits(2);
    assert!(plan.stdout.starts_with("plan: machine 1, 8 GPUs"), "{}", plan.shown());
    assert!(!plan.stderr.contains("checkpoint"), "{}", plan.shown());
    // What is impossible is refused at the place of the key.
    let local = ["cluster.launcher=local", "learner.gpus_per_node=2"];
    let few = [&["--plan", "--machines", "1x24GiB", "learner.device=cuda"], &local[..]].concat();
    insta::assert_snapshot!(check(&few).shown(), @r"
    exit code 2
    ----- stdout
    plan: machine 1, 1 GPU with 24.0 GiB
      learner: 2 ranks on GPU 0; a wave has at most 2 x 28 tokens
        each GPU: 30.6 KiB of 24.0 GiB before a token is computed: weights 7.7 KiB, gradients 7.7 KiB, moments 15.3 KiB
    ----- stderr
    error: `learner.gpus_per_node`: the learner needs 2 GPUs; there are 1 of machine 1
     --> command line
      |
    1 | learner.gpus_per_node=2
      |                       ^
      hint: lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: true`); check `CUDA_VISIBLE_DEVICES`

    1 error in the configuration
    ");
    let ended = check(&["--plan", "--json", "--machines", "1x24GiB"]).succeeds();
    let plan = ended.json();
    assert_eq!(plan["learner"]["ranks_per_machine"], 1);
    assert_eq!(plan["misfits"], serde_json::json!([]));
    let of_ray = check(&["--plan", "cluster.launcher=ray"]).succeeds().stdout;
    assert!(
        of_ray.contains("plan: the machines of the Ray cluster, which are read when a run begins"),
        "{of_ray}"
    );
    assert!(of_ray.contains("learner: as many ranks as there are GPUs"), "{of_ray}");
    let wrong = check(&["--plan", "--machines", "8x80"]);
    assert_eq!(wrong.code, Some(2));
    wrong.says("is not [MACHINESx]GPUSxMEMORY");
}

#[test]
fn the_gpus_of_this_machine_are_those_of_its_driver() {
    let folder = Folder::tiny();
    let arguments = ["config", "check", TORCH[0], TORCH[1], "cluster.launcher=local", "--plan"];
    let plan = run(&folder, &arguments, driver(&folder, 81_559)).succeeds().stdout;
    assert!(plan.contains("this machine, 2 GPUs with 79.6 GiB (NVIDIA H100 80GB HBM3)"), "{plan}");
    assert!(plan.contains("  learner: 2 ranks on GPUs 0, 1; a wave has at most 2 x "), "{plan}");
    // A program that fails reports nothing.
    let path = program(&folder, "nvidia-smi", "echo no driver is loaded >&2; exit 9");
    let plan = run(&folder, &arguments, path).succeeds().stdout;
    assert!(plan.contains("plan: the GPUs of this machine are not known: `nvidia-smi` failed"), "{plan}");
}

#[test]
fn a_run_that_cannot_fit_is_refused_before_anything_is_loaded() {
    let folder = Folder::tiny();
    let python =
        program(&folder, "python3", &format!("echo $$ >> '{}'; exit 1", folder.join("asked").display()));
    assert_eq!(python, driver(&folder, 0));
    let train = ["train", TORCH[0], TORCH[1], "learner.device=cuda", "sft.steps=0"];
    let ended = run(&folder, &train, driver(&folder, 0)).exits(2);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 2
    error: the learner needs 46.7 KiB on each GPU before a token is computed, but has 0 B: weights 15.6 KiB, gradients 10.4 KiB, moments 20.8 KiB
      hint: to need less: `learner.offload_moments: true`: 25.9 KiB, more GPUs (`learner.gpus_per_node`, `learner.nodes`), a smaller model
    ");
    assert!(!folder.join("asked").exists(), "no learner was started");
    assert!(!folder.join("runs").exists());
    // If it fits, the plan is among the run's first lines, before a learner is started.
    let ended = run(&folder, &train, driver(&folder, 81_559)).exits(3);
    let (plan, start) =
        (ended.stderr.find("plan: this machine, 2 GPUs"), ended.stderr.find("starting a learner"));
    assert!(plan.is_some() && plan < start, "{}", ended.shown());
    assert!(folder.join("asked").exists());
}

/// Answers so many requests like vLLM without its routes for new weights.
fn server(requests: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().take(requests) {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let (status, body) = match line.split(' ').nth(1) {
                Some("/v1/models") => ("200 OK", "{}"),
                _ => ("404 Not Found", "{}"),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn the_doctor_tells_what_is_there_and_what_a_configuration_lacks() {
    let folder = Folder::tiny();
    let answer = r#"{"executable": "/venv/bin/python", "version": "3.12.4", "packages": {"torch": "2.15.0", "transformers": "5.23.0", "safetensors": "0.8.0"}, "torch": {"cuda": "13.2", "devices": ["H100", "H100"], "nccl": "2.30.7", "error": null}}"#;
    program(&folder, "python3", &format!("echo '{answer}'"));
    let ended = run(&folder, &["doctor"], driver(&folder, 81_559)).succeeds();
    let has = |text: &str| assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    has("  ok  NVIDIA driver 580.95\n");
    has("  ok  GPU 1: NVIDIA H100 80GB HBM3, 79.6 GiB\n");
    has("with safetensors 0.8.0, torch 2.15.0 (CUDA 13.2, NCCL 2.30.7, 2 GPUs), transformers 5.23.0\n");
    has("  ok  several GPUs of this machine");
    has("  --  an adapter (LoRA)                   missing: peft\n");
    assert!(!ended.stdout.contains("what this configuration needs"));
    // What the tiny configuration lacks: an adapter's package, and a server that takes weights.
    let server = server(2);
    first(&folder);
    let servers = format!("rollout.servers=[{server}]");
    let own = ["learner.lora={rank: 4}", "rollout.backend=vllm", &servers];
    let lacking = [&["doctor"], &TORCH[..], &SERVED[..], &own[..]].concat();
    let ended = run(&folder, &lacking, driver(&folder, 81_559)).exits(1);
    let needs = ended.stdout.split("what this configuration needs\n").nth(1).expect("its own part");
    let needs = needs.replace(&server, "SERVER");
    let needs: Vec<&str> = needs.lines().filter(|line| !line.contains(" free")).collect();
    insta::assert_snapshot!(needs.join("\n"), @r"
      !!  learner.python lacks peft
          hint: `/venv/bin/python -m pip install torch transformers safetensors peft`, or scripts/install-torch and learner.python=.venv-torch/bin/python
      !!  server SERVER: it takes no new weights: its routes for them are off
          hint: start it with VLLM_SERVER_DEV_MODE=1 in its environment
      --  learner: 1 rank on GPU 0; a micro-batch has at most 56 tokens
      --  each GPU: 23.2 KiB of 79.6 GiB before a token is computed: weights 11.2 KiB, gradients 4.0 KiB, moments 8.0 KiB
      --  policy: 2.66e3 parameters, of which 1.02e3 learn: 5.2 KiB in bf16, 1.9 KiB with its linear layers in 4 bits
      --  beside it: at least 15.8 KiB of activations in a micro-batch
      --  it would keep 17.2 KiB with `learner.moments: 8bit`, 15.2 KiB with `learner.offload_moments: true`, 19.9 KiB with 4-bit weights below the adapter (`learner.lora.base: nf4`)
    ");
    // A wrong configuration is reported as by other commands.
    assert_eq!(folder.tamis(&["doctor", "tiny.yaml", "rollout.m=3"]).code, Some(2));
    let json = run(&folder, &["doctor", "--json"], driver(&folder, 81_559)).succeeds().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON alone");
    assert_eq!(json["ways"][0]["missing"], serde_json::json!([]));
}

#[test]
fn the_doctor_gives_up_what_hangs() {
    let folder = Folder::tiny();
    let asked = folder.join("asked");
    program(&folder, "python3", &format!("echo $$ > '{}'; exec sleep 60", asked.display()));
    let path = program(&folder, "no-python", "exit 1");
    let began = Instant::now();
    let python = format!("learner.python={}", folder.join("bin/no-python").display());
    let child = folder.start_with(&["doctor", "tiny.yaml", &python], &[path]);
    while std::fs::read_to_string(&asked).map_or(true, |pid| pid.is_empty()) {
        assert!(began.elapsed() < Duration::from_secs(40), "it was not asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-INT");
    folder.wait(child).exits(130);
    assert!(began.elapsed() < Duration::from_secs(50), "it waited for the answer");
    let _ = Command::new("kill").arg(folder.read("asked").trim()).status();
}

#[test]
fn a_run_of_the_native_engine_needs_nothing_else() {
    let folder = Folder::new().with("tiny.yaml", TINY);
    folder.tamis(&["doctor", "tiny.yaml"]).succeeds().prints("  ok  the native engine");
    folder.tamis(&["config", "check", "tiny.yaml", "--plan"]).succeeds().prints("plan: this machine");
}
