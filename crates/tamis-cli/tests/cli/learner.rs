//! Runs whose policy learns in another process (`tamis learner`).

use std::io::Read as _;

use crate::listening::Listening;
use crate::lost_learner::train_with_followers;
use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY, failures, unfiltered};

fn train(folder: &Folder, arguments: &[&str]) -> Ended {
    folder.tamis(&[&["train", "config.yaml"], arguments].concat())
}

/// Kinds of runs that make different calls to a learner.
const KINDS: [&[&str]; 5] = [
    &["model.recompute_activations=true"],
    &["preset=ppo", "~filter", "data.gen_batch_size=4", "critic.warmup_steps=1"],
    &["objective.kl.in=reward", "objective.kl.coefficient=0.01", "filter.metric=seq_final_reward"],
    &["schedule.mode=streaming", "schedule.surplus=carry", "schedule.max_lag=1", "model.save_dtype=bf16"],
    &["objective.advantage.kind=optimal_token_baseline", "train.gradient_analysis={}"],
];

#[test]
fn a_run_through_the_wire_is_the_run_in_one_process_to_the_bit() {
    let folder = Folder::new().with("config.yaml", TINY);
    // One learner for all of them: a run does not depend on what an earlier one left in it.
    let over_a_port = Listening::learner(&folder, &["--listen", "127.0.0.1:0"]);
    let over_a_socket = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
    for (place, kind) in KINDS.into_iter().enumerate() {
        let learner = if place % 2 == 0 { &over_a_port } else { &over_a_socket };
        let url = format!("learner.url={}", learner.address);
        train(&folder, &[kind, &["run.name=here"]].concat()).succeeds();
        train(&folder, &[kind, &["run.name=there", &url]].concat()).succeeds();
        let (here, there) = (folder.join("runs/here"), folder.join("runs/there"));
        Left::by(&there).assert_same(&Left::by(&here));
        assert!(!there.join("initial").exists(), "random weights are read once");
        for run in [here, there] {
            std::fs::remove_dir_all(run).unwrap();
        }
    }
}

/// Kinds of runs that sample in other ways. If samples are in flight at a publication, the learner in this
/// process ends them with the old weights and one elsewhere with the new, so those runs differ.
const SAMPLED: [&[&str]; 4] = [
    &["rollout.top_k=5", "rollout.top_p=0.9", "rollout.min_p=0.01", "rollout.temperature=0.8"],
    &["rollout.stop=['1']", "rollout.repetition_penalty=1.3"],
    &["schedule.mode=streaming", "rollout.max_num_seqs=3"],
    &["objective.advantage.kind=remax", "objective.kl.in=reward", "objective.kl.coefficient=0.01"],
];

#[test]
fn a_learner_that_samples_elsewhere_samples_what_one_in_this_process_does() {
    let folder = Folder::new().with("config.yaml", TINY);
    let learner = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
    let url = format!("learner.url={}", learner.address);
    let samples = "rollout.backend=learner";
    train(&folder, &["run.name=here"]).succeeds();
    let here = Left::by(&folder.join("runs/here"));
    train(&folder, &["run.name=same", samples]).succeeds();
    Left::by(&folder.join("runs/same")).assert_same(&here);
    train(&folder, &["run.name=there", samples, &url]).succeeds();
    Left::by(&folder.join("runs/there")).assert_same(&here);
    assert!(!folder.join("runs/there/published").exists(), "nothing is published");
    for kind in SAMPLED {
        train(&folder, &[kind, &["run.name=in_process"]].concat()).succeeds();
        train(&folder, &[kind, &["run.name=through_it", samples, &url]].concat()).succeeds();
        let (one, other) = (folder.join("runs/in_process"), folder.join("runs/through_it"));
        without_order(Left::by(&other)).assert_same(&without_order(Left::by(&one)));
        for run in [one, other] {
            std::fs::remove_dir_all(run).unwrap();
        }
    }
}

/// Without the position in the record of the order of events, which a run keeps for external answers.
fn without_order(mut left: Left) -> Left {
    for (_, bytes) in left.files.iter_mut().filter(|(name, _)| name.ends_with("state.json")) {
        let mut state: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        state.as_object_mut().unwrap().remove("order");
        *bytes = serde_json::to_vec_pretty(&state).unwrap();
    }
    left
}

#[test]
fn a_run_goes_on_with_another_kind_of_learner() {
    let folder = Folder::new().with("config.yaml", TINY);
    train(&folder, &["run.name=whole"]).succeeds();
    let whole = Left::by(&folder.join("runs/whole"));
    let learner = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
    let url = format!("learner.url={}", learner.address);
    for (first, second) in [(&*url, "learner.url=null"), ("learner.url=null", &*url)] {
        train(&folder, &["run.name=both", "train.total_steps=2", first]).succeeds();
        folder.tamis(&["train", "--resume", "runs/both", "train.total_steps=6", second]).succeeds();
        let both = Left::by(&folder.join("runs/both"));
        assert_eq!(both.metrics, whole.metrics);
        let last = "checkpoints/step_6/optimizer.safetensors";
        assert!(both.files[last] == whole.files[last]);
        std::fs::remove_dir_all(folder.join("runs/both")).unwrap();
    }
}

#[test]
fn a_learner_ends_when_its_run_is_gone_and_not_while_it_does_other_things() {
    // The run is silent for longer than the learner waits, because it scores.
    let slow = "\
import time
def score(completions, **kwargs):
    time.sleep(1.2)
    return [float(len(completion) % 3) for completion in completions]
";
    let config = unfiltered(TINY)
        .replaced("reward: [{kind: number}]", "reward: [{kind: python, path: slow.py, function: score}]")
        .replaced("total_steps: 6", "total_steps: 1")
        .replaced("validate: {test_freq: 2, before_train: true,", "validate: {");
    let folder = Folder::new().with("config.yaml", &config).with("slow.py", slow);
    let mut learner = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
    let url = format!("learner.url={}", learner.address);
    train(&folder, &[&url, "learner.orphan_timeout=600ms"]).succeeds();
    let began = std::time::Instant::now();
    let status = loop {
        if let Some(status) = learner.child.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed().as_secs() < 60, "the learner waits for ever");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    // Without `orphan_timeout` it waits for the next run.
    let mut patient = Listening::learner(&folder, &["--listen", "unix:p.sock"]);
    let url = format!("learner.url={}", patient.address);
    train(&folder, &[&url, "run.name=patient"]).succeeds();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(patient.child.try_wait().unwrap().is_none());
}

/// A run of two steps with a critic. It makes every kind of call except those of a resume, of early parts
/// (which `servers.rs` tests) and of the analysis of gradients.
fn short() -> String {
    TINY.replaced("total_steps: 6", "total_steps: 2")
        .replaced("sft: {steps: 40", "sft: {steps: 3")
        .replaced("save_freq: 2", "save_freq: 1")
        .replaced("filter: {kind: variance}", "preset: ppo\nfilter: null")
        .replaced("gen_batch_size: 8", "gen_batch_size: 4")
}

/// How long a run waits for a sign of life. It must not wait for a killed learner, and must not take one for
/// lost on a busy machine whose connections break.
fn lost_timeout(fault: &str) -> &'static str {
    match fault.split('-').next() {
        Some("killed") => "learner.lost_timeout=20ms",
        Some("silent") => "learner.lost_timeout=1s",
        _ => "learner.lost_timeout=20s",
    }
}

/// A fault at one call after the other, until one comes after the last call.
#[derive(Clone, Copy)]
struct Faults {
    fault: &'static str,
    /// The learner samples.
    samples: bool,
    /// Another learner replaces a killed one, and the run waits for it.
    goes_on: bool,
    /// Calls from one fault to the next: 1 for every call.
    stride: usize,
}

/// The results of the run with each of these faults, and of a resume with a new learner if the run failed.
fn with_faults(faults: Faults, check: impl Fn(&Folder, &Ended)) {
    let Faults { fault, samples, goes_on, stride } = faults;
    let backend = if samples { "learner" } else { "native" };
    let config = short().replaced("rollout: {", &format!("rollout: {{backend: {backend}, "));
    let folder = Folder::new().with("config.yaml", &config);
    train(&folder, &["run.name=whole"]).succeeds();
    let whole = Left::by(&folder.join("runs/whole"));
    let mut places = std::collections::BTreeMap::new();
    for at in (stride..).step_by(stride) {
        let at = at.to_string();
        let arguments = ["--listen", "unix:l.sock", "--test-fault", fault, "--test-fault-at", &at];
        let mut learner = Listening::learner(&folder, &arguments);
        let restarts = if goes_on { "learner.max_restarts=1" } else { "learner.max_restarts=0" };
        let begin = ["run.name=run", "learner.url=unix:l.sock", lost_timeout(fault), restarts];
        let ended = if goes_on {
            train_with_followers(&folder, &mut learner, &[], &begin)
        } else {
            train(&folder, &begin)
        };
        let _ = learner.child.kill();
        let mut printed = String::new();
        learner.child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
        check(&folder, &ended);
        if ended.code != Some(0) {
            let _again = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
            let is_begun = folder.join("runs/run/checkpoints").is_dir();
            let resumed = if is_begun {
                folder.tamis(&["train", "--resume", "runs/run"])
            } else {
                let _ = std::fs::remove_dir_all(folder.join("runs/run"));
                train(&folder, &begin)
            };
            resumed.succeeds();
        }
        Left::by(&folder.join("runs/run")).assert_same(&whole);
        std::fs::remove_dir_all(folder.join("runs/run")).unwrap();
        match printed.split("a fault at ").nth(1).and_then(|text| text.split(',').next()) {
            Some(place) => *places.entry(place.to_owned()).or_insert(0) += 1,
            // It would come after the last call.
            None => break,
        }
    }
    if stride > 1 {
        assert!(places.len() > 1, "{places:?}");
        return;
    }
    let met: Vec<&str> = places.keys().map(String::as_str).collect();
    let calls = ["backward", "check", "copy", "forward", "forward_hold"];
    let calls = [&calls[..], if samples { &["generate"] } else { &[] }].concat();
    let calls = [&calls[..], &["open", "optim_step", "publish", "reset_optimizer", "save"]].concat();
    assert_eq!(met, calls.iter().map(|call| format!("/v1/{call}")).collect::<Vec<_>>(), "{places:?}");
}

/// A resumed run, which loads a checkpoint and measures the gradients of its groups, with each of these
/// faults at each call in turn.
fn resumed_with_faults(faults: [&str; 2], stride: usize) {
    let kind = ["objective.advantage.kind=optimal_token_baseline", "train.gradient_analysis={every: 1}"];
    let folder = Folder::new().with("config.yaml", TINY);
    train(&folder, &[&kind[..], &["run.name=whole", "train.total_steps=4"]].concat()).succeeds();
    train(&folder, &[&kind[..], &["run.name=begun", "train.total_steps=2"]].concat()).succeeds();
    let whole = Left::by(&folder.join("runs/whole"));
    let resume = |url: &str, timeout: &str| {
        let more = ["train.total_steps=4", "learner.max_restarts=0", url, timeout];
        folder.tamis(&[&["train", "--resume", "runs/run"][..], &more].concat())
    };
    let mut met = std::collections::BTreeSet::new();
    for fault in faults {
        for at in (stride..).step_by(stride) {
            let copied = std::process::Command::new("cp")
                .args(["-R", "runs/begun", "runs/run"])
                .current_dir(folder.path())
                .status();
            assert!(copied.unwrap().success());
            let at = at.to_string();
            let arguments = ["--listen", "unix:l.sock", "--test-fault", fault, "--test-fault-at", &at];
            let mut learner = Listening::learner(&folder, &arguments);
            let ended = resume("learner.url=unix:l.sock", lost_timeout(fault));
            let _ = learner.child.kill();
            let mut printed = String::new();
            learner.child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
            let place = printed.split("a fault at ").nth(1).and_then(|text| text.split(',').next());
            let expected = if place.is_some() && fault.starts_with("killed") { 3 } else { 0 };
            // The last answer may be unneeded.
            assert!(matches!(ended.code, Some(code) if code == 0 || code == expected), "{}", ended.shown());
            if ended.code != Some(0) {
                resume("learner.url=null", "learner.lost_timeout=20s").succeeds();
            }
            let run = Left::by(&folder.join("runs/run"));
            assert_eq!(run.metrics, whole.metrics, "{fault} at {place:?}");
            for file in ["model.safetensors", "optimizer.safetensors"] {
                let name = format!("checkpoints/step_4/{file}");
                assert!(run.files[&name] == whole.files[&name], "{fault} at {place:?}: {name}");
            }
            std::fs::remove_dir_all(folder.join("runs/run")).unwrap();
            match place {
                Some(place) => met.insert(place.to_owned()),
                // It would come after the last call.
                None => break,
            };
        }
    }
    assert!(!met.is_empty(), "no fault came at any call");
    for call in ["load", "grad_norm"].iter().filter(|_| stride == 1) {
        assert!(met.contains(&format!("/v1/{call}")), "{met:?}");
    }
}

#[test]
#[ignore = "long: .ci/all"]
fn a_learner_that_is_killed_at_any_call_of_a_resumed_run_loses_nothing() {
    resumed_with_faults(["killed-before", "killed-after"], 1);
}

#[test]
#[ignore = "long: .ci/all"]
fn a_connection_that_breaks_at_any_call_of_a_resumed_run_loses_nothing() {
    resumed_with_faults(["broken-before", "broken-after"], 1);
}

/// Another learner replaces one that is killed after it carried out a call.
fn followed(stride: usize) {
    let faults = Faults { fault: "killed-after", samples: false, goes_on: true, stride };
    with_faults(faults, |folder, ended| {
        // What never began must be begun again by the user.
        if ended.code == Some(3) {
            assert!(!folder.join("runs/run").exists(), "{}", ended.shown());
            return;
        }
        assert_eq!(ended.code, Some(0), "{}", ended.shown());
        let was_lost = ended.stderr.contains("restart 1 of at most 1 in a row");
        let is_told = ended.stderr.contains(", where the learner was lost: ");
        assert_eq!(is_told, was_lost, "{}", ended.shown());
    });
}

/// Killed in this way at one call after the other, without another learner that replaces it.
fn killed_for_good(fault: &'static str, stride: usize) {
    with_faults(Faults { fault, samples: true, goes_on: false, stride }, |_, ended| {
        assert!(matches!(ended.code, Some(0 | 3)), "{}", ended.shown());
        if ended.code == Some(3) {
            ended.says("error: the learner at unix:l.sock ").says("hint: start one");
        }
    });
}

/// With this fault the run continues, and every call is carried out once.
fn carried_out_once(fault: &'static str, stride: usize) {
    with_faults(Faults { fault, samples: true, goes_on: false, stride }, |_, ended| {
        assert_eq!(ended.code, Some(0), "{}", ended.shown());
    });
}

#[test]
fn a_learner_or_a_connection_that_fails_at_some_calls_loses_nothing() {
    followed(13);
    killed_for_good("killed-before", 14);
    carried_out_once("broken-after", 15);
    carried_out_once("silent-before", 16);
    resumed_with_faults(["killed-after", "broken-before"], 12);
}

#[test]
#[ignore = "long: .ci/all"]
fn a_learner_that_is_killed_after_any_call_is_followed_by_another() {
    followed(1);
}

#[test]
#[ignore = "long: .ci/all"]
fn a_learner_that_is_killed_at_any_call_loses_nothing() {
    for fault in ["killed-before", "killed-after"] {
        killed_for_good(fault, 1);
    }
}

#[test]
#[ignore = "long: .ci/all"]
fn a_call_whose_connection_breaks_or_whose_answer_never_comes_is_carried_out_once() {
    for fault in ["broken-before", "broken-after", "silent-before", "silent-after"] {
        carried_out_once(fault, 1);
    }
}

#[test]
fn what_is_wrong_with_a_learner_is_told() {
    let folder = Folder::new().with("config.yaml", TINY).with("key", "secret\n").with("other", "another\n");
    let nobody = train(&folder, &["learner.url=unix:nobody.sock", "learner.lost_timeout=20ms"]);
    insta::assert_snapshot!(last_lines(&nobody), @r#"
    Some(3) error: the learner at unix:nobody.sock cannot be reached: nothing answers there (client error (Connect): No such file or directory (os error 2))
      hint: start one (`tamis learner`) and name its address in learner.url, or learn in this process (`learner.url=null`); if the run had begun, continue it with --resume
    "#);
    let learner = Listening::learner(&folder, &["--listen", "127.0.0.1:0", "--api-key-file", "key"]);
    let url = format!("learner.url={}", learner.address);
    let refused = train(&folder, &[&url]);
    insta::assert_snapshot!(last_lines(&refused).replace(&learner.address, "URL"), @r#"
    Some(1) error: the learner at URL refused: a bearer token is missing, or wrong
      hint: set the token that it was started with in learner.api_key_file or learner.api_key_env
    "#);
    train(&folder, &[&url, "learner.api_key_file=other"]).exits(1);
    train(&folder, &[&url, "learner.api_key_file=key", "train.total_steps=1"]).succeeds();
    let other = train(&folder, &[&url, "learner.api_key_file=key", "learner.backend=torch"]);
    insta::assert_snapshot!(last_lines(&other).replace(&learner.address, "URL"), @r#"
Some(1) error: the learner at URL cannot be used: it is tamis 0.1.0 native, and takes no settings of PyTorch
  hint: set `learner.backend: native`, or name a learner that `python -m tamis.learner` started
"#);
    let open = folder.tamis(&["learner", "--listen", "0.0.0.0:0"]);
    insta::assert_snapshot!(open.shown(), @r#"
    exit code 2
    ----- stderr
    error: 0.0.0.0:0 can be reached from other machines, but no key is set
      hint: put a secret into a file and pass it with --api-key-file, or listen on 127.0.0.1
    "#);
    let wrong = folder.tamis(&["learner", "--listen", "nowhere"]);
    insta::assert_snapshot!(wrong.shown(), @r#"
    exit code 2
    ----- stderr
    error: --listen nowhere: there is no such address
      hint: write HOST:PORT or unix:PATH
    "#);
}

/// Exit code, and the output from the error on.
fn last_lines(ended: &Ended) -> String {
    let text = ended.shown();
    let begin = text.find("error:").unwrap_or(0);
    format!("{:?} {}", ended.code, &text[begin..])
}

/// A copy of a checkpoint's folder without its sums, so that it may be changed, or with a flipped bit in a
/// file.
fn copy_checkpoint(folder: &Folder, from: &str, to: &str) {
    let (from, to) = (folder.join(from), folder.join(to));
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

fn flip_bit(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[cfg(unix)]
#[test]
fn files_of_a_learner_elsewhere_fail_as_those_of_this_process() {
    let folder = Folder::new().with("config.yaml", &short());
    // Files may not grow, as if a quota were full.
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$0\" learner --listen unix:full.sock --threads 1";
    let limited = std::process::Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_tamis")])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let _full = Listening::of(limited);
    let full = train(&folder, &["run.name=full", "learner.url=unix:full.sock"]);
    insta::assert_snapshot!(full.failure(), @"
    exit code 1
    error: failed to write `DIR/runs/full/reference.tmp/model.safetensors`
      caused by: File too large (os error 27)
    ");
    let _learner = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
    train(&folder, &["run.name=run", "learner.url=unix:l.sock"]).succeeds();
    let last = "runs/run/checkpoints/step_2";
    std::fs::remove_file(folder.join(&format!("{last}/checksums.json"))).unwrap();
    let moments = folder.join(&format!("{last}/optimizer.safetensors"));
    std::fs::OpenOptions::new().write(true).open(moments).unwrap().set_len(100).unwrap();
    let resumed =
        |url: &str| folder.tamis(&["train", "--resume", "runs/run", "train.total_steps=3", url]).failure();
    let there = resumed("learner.url=unix:l.sock");
    insta::assert_snapshot!(there, @r#"
exit code 4
error: the learner at unix:l.sock cannot use the files: DIR/runs/run/checkpoints/step_2/optimizer.safetensors is not a valid safetensors file: invalid header length
  hint: the file was changed or damaged: restore a copy, or move DIR/runs/run/checkpoints/step_2 elsewhere to continue from the checkpoint before it, DIR/runs/run/checkpoints/step_1
"#);
    let here = resumed("learner.url=null");
    let ends = |failure: &str| {
        let hint = failure.find("  hint: ").map(|at| failure[at..].replace("DIR/", ""));
        (failure.lines().next().map(str::to_owned), hint)
    };
    assert_eq!(ends(&there), ends(&here), "{here}");
}

#[test]
fn a_damaged_reference_or_critic_is_told_where_the_learner_is_elsewhere() {
    let folder = Folder::new().with("config.yaml", &short());
    train(&folder, &["run.name=begun"]).succeeds();
    let begun = "runs/begun/checkpoints/step_2";
    copy_checkpoint(&folder, begun, "reference");
    copy_checkpoint(&folder, begun, "policy");
    copy_checkpoint(&folder, &format!("{begun}/critic"), "policy/critic");
    let learner = Listening::learner(&folder, &["--listen", "unix:l.sock"]);
    let url = format!("learner.url={}", learner.address);
    let start = ["model.init=null", "model.path=policy", &url];
    let with_reference =
        ["model.reference=reference", "objective.kl.in=reward", "objective.kl.coefficient=0.1"];
    train(&folder, &[&start[..], &with_reference].concat()).succeeds();
    flip_bit(&folder.join("reference/model.safetensors"));
    let damaged = train(&folder, &[&start[..], &with_reference].concat());
    assert_ne!(damaged.code, Some(0), "{}", damaged.shown());
    let told = "`model.safetensors` of the checkpoint reference is damaged";
    damaged.says(told);
    // The critic of a checkpoint is one of its files.
    let named = format!("critic.model.path={begun}/critic");
    train(&folder, &[&start[..], &[&named]].concat()).succeeds();
    flip_bit(&folder.join(&format!("{begun}/critic/model.safetensors")));
    let damaged = train(&folder, &[&start[..], &[&named]].concat());
    assert_ne!(damaged.code, Some(0), "{}", damaged.shown());
    damaged.says("is damaged");
}

/// A run `begun`, and in `other` its checkpoint as one of an architecture that the native engine does not
/// know.
fn with_gemma() -> Folder {
    let folder = Folder::new().with("config.yaml", &short());
    train(&folder, &["run.name=begun"]).succeeds();
    copy_checkpoint(&folder, "runs/begun/checkpoints/step_2", "other");
    std::fs::remove_file(folder.join("other/checksums.json")).unwrap();
    let config = folder.read("other/config.json").replaced("Qwen3ForCausalLM", "GemmaForCausalLM");
    folder.write("other/config.json", &config.replaced("\"qwen3\"", "\"gemma\""));
    folder
}

#[test]
fn other_architectures_pass_the_checks_where_the_native_engine_does_not_meet_them() {
    let folder = with_gemma();
    let check = |arguments: &[&str]| {
        let base = ["config", "check", "config.yaml", "model.init=null", "model.path=other", "~sft"];
        folder.tamis(&[&base[..], arguments].concat())
    };
    let torch = ["learner.backend=torch"];
    let servers = ["rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:9]", "publish.dir=weights"];
    check(&[&torch[..], &servers].concat()).succeeds();
    for arguments in [&torch[..], &servers, &[]] {
        let refused = check(arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.shown());
        assert!(refused.shown().contains("Gemma"), "{arguments:?}: {}", refused.shown());
    }
}

#[test]
fn commands_of_the_native_engine_tell_a_model_that_it_does_not_know() {
    let folder = with_gemma();
    insta::assert_snapshot!(failures([
        folder.tamis(&["export", "other", "exported"]),
        folder.tamis(&["serve", "other", "--port", "0"]),
        folder.tamis(&["eval", "other", "config.yaml"]),
    ]), @r"
    exit code 2
    error: failed to use the configuration in other
      caused by: architecture `GemmaForCausalLM` is not supported (supported: Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM)
      hint: the files are fine, but the native engine, which would rewrite them, supports only these architectures; other programs load the folder as it is
    error: failed to use the configuration in other
      caused by: architecture `GemmaForCausalLM` is not supported (supported: Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM)
      hint: `tamis serve` is the native engine: serve this model with vLLM or SGLang, and name them in rollout.servers
    error: `model.path`: other cannot be used: architecture `GemmaForCausalLM` is not supported (supported: Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM)
      at command line: model.path=«other»
      hint: others learn in PyTorch (`learner.backend=torch`), and are sampled from there (`rollout.backend=learner`) or at servers (`rollout.backend=vllm`)
    ");
    // For a run that PyTorch trained: its checkpoints have checksums.
    let sums = folder.read("runs/begun/checkpoints/step_2/checksums.json");
    let crc = |name: &str| tamis_run::checksum::crc32(&std::fs::read(folder.join(name)).unwrap());
    let (was, is) = (crc("runs/begun/checkpoints/step_2/config.json"), crc("other/config.json"));
    std::fs::copy(folder.join("other/config.json"), folder.join("runs/begun/checkpoints/step_2/config.json"))
        .unwrap();
    folder.write(
        "runs/begun/checkpoints/step_2/checksums.json",
        &sums.replaced(&format!("{was:08x}"), &format!("{is:08x}")),
    );
    let evaluated = folder.tamis(&["eval", "runs/begun"]).failure();
    insta::assert_snapshot!(evaluated, @r#"
exit code 2
error: architecture `GemmaForCausalLM` is not supported (supported: Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM)
  hint: others learn in PyTorch (`learner.backend=torch`), and are sampled from there (`rollout.backend=learner`) or at servers (`rollout.backend=vllm`)
"#);
    let resumed = folder.tamis(&["train", "--resume", "runs/begun", "train.total_steps=3"]);
    assert_eq!(resumed.failure(), evaluated);
}

#[test]
fn a_model_that_sees_images_is_not_sampled_from_in_the_learner() {
    let folder = Folder::new().with("config.yaml", &short());
    train(&folder, &["run.name=begun"]).succeeds();
    copy_checkpoint(&folder, "runs/begun/checkpoints/step_2", "text");
    copy_checkpoint(&folder, "runs/begun/checkpoints/step_2", "sees");
    for name in ["text", "sees"] {
        std::fs::remove_file(folder.join(&format!("{name}/checksums.json"))).unwrap();
    }
    let config = folder.read("sees/config.json").replaced("\"qwen3\"", "\"qwen2_5_vl\"");
    let config = config.replaced("Qwen3ForCausalLM", "Qwen2_5_VLForConditionalGeneration");
    folder.write("sees/config.json", &config.replacen('{', "{\"image_token_id\": 1, ", 1));
    folder.write("sees/preprocessor_config.json", "{}");
    let base = ["config.yaml", "model.init=null", "~sft", "learner.backend=torch", "~preset", "~critic"];
    let samples = ["model.path=sees", "rollout.backend=learner"];
    let command = |words: &[&str], further: &[&str]| folder.tamis(&[words, &base, further].concat());
    insta::assert_snapshot!(command(&["config", "check"], &samples).short(), @r#"
exit code 2
error: `rollout.backend`: the learner does not sample from models that see images
  at command line: rollout.backend=«learner»
  hint: sample at vLLM servers (rollout.backend: vllm)
not checked because of errors: the prompts as the model sees them; the filter, the memory and the machines
"#);
    let refused = command(&["train"], &[&samples[..], &["run.name=refused"]].concat());
    insta::assert_snapshot!(refused.failure().lines().nth(1).unwrap(), @"error: `rollout.backend`: the learner does not sample from models that see images");
    assert!(!folder.join("runs/refused").exists());
    // A model without a tower has none to freeze.
    let frozen = "learner.freeze_vision=true";
    let servers = ["rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:9]"];
    let seeing =
        command(&["config", "check"], &[&servers[..], &["model.path=sees", frozen]].concat()).succeeds();
    assert!(!seeing.shown().contains("freeze_vision"), "{}", seeing.shown());
    let text =
        command(&["config", "check"], &[&servers[..], &["model.path=text", frozen]].concat()).succeeds();
    text.prints(
        "warning: `learner.freeze_vision` has no effect: the model in text sees no images\n --> command line",
    );
}
