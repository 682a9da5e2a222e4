//! Runs that sample at servers: `tamis train` against `tamis serve`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod serving;
mod tamis;

use serving::{Serving, from_the_policy, metrics, train, with_a_policy};

/// The server samples by our keys, so that the batches, the metrics and the weights are those of the run that needs none; also where it is
/// killed on the way, and where the run is.
#[test]
fn a_run_over_servers_is_the_run_without() {
    let folder = with_a_policy();
    train(&folder, "alone", &from_the_policy(&[]), &[]).succeeds();
    let servers = [0, 1].map(|_| Serving::begin(&folder, &["first"]));
    let over = from_the_policy(&[&servers[0].address, &servers[1].address]);
    let ended = train(&folder, "served", &over, &[]).succeeds();
    let weights = |run: &str| {
        std::fs::read(folder.join(&format!("runs/{run}/checkpoints/step_4/model.safetensors"))).unwrap()
    };
    assert!(weights("alone") == weights("served"), "{}", ended.shown());
    for (alone, served) in metrics(&folder, "alone").iter().zip(metrics(&folder, "served")) {
        for name in ["critic/score/mean", "groups/generated", "groups/dropped", "loss", "actor/grad_norm"] {
            assert_eq!(alone[name], served[name], "{name} of {served}");
        }
        // The learner says the same of every token, bit for bit.
        if served["step"] != 0 {
            assert_eq!(served["training/rollout_probs_diff_valid"], 1.0, "{served}");
            for name in ["training/rollout_probs_diff_max", "sampling/sampling_logp_difference/max"] {
                assert_eq!(served[name], 0.0, "{name} of {served}");
                assert!(alone[name].is_null(), "{name} of {alone}");
            }
        }
    }
    // Two steps, then one server less, then the rest.
    train(&folder, "part", &over, &["train.total_steps=2"]).succeeds();
    let [gone, _left] = servers;
    assert_eq!(gone.end("-KILL"), None);
    folder.tamis(&["train", "--resume", "runs/part", "train.total_steps=4"]).succeeds();
    assert!(weights("alone") == weights("part"));
    // What servers read is not left to grow.
    let published = std::fs::read_dir(folder.join("runs/served/published")).unwrap().count();
    assert_eq!(published, 2);
}

/// Nothing answers: exit code 3 with what was tried, soon, and nothing is left behind.
#[test]
fn no_server_answers() {
    let folder = with_a_policy();
    let arguments = from_the_policy(&["http://127.0.0.1:9"]);
    let ended = train(&folder, "tiny", &arguments, &["rollout.server_startup_timeout=1s"]);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 3
    error: no server answers: http://127.0.0.1:9: connect: client error (Connect): tcp connect error: Connection refused (os error 111)
      hint: start the servers first (`tamis serve CHECKPOINT`, or vLLM with VLLM_SERVER_DEV_MODE=1), and name them in rollout.servers
    ");
    assert!(!folder.join("runs/tiny").exists());
}
