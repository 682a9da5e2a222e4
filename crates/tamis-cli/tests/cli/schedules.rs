//! Several rounds at once, and group by group: what is trained and what is counted.
#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use crate::tamis::{Folder, Left, Replaced as _, TINY};

fn with_schedule(schedule: &str) -> String {
    TINY.replaced("max_num_gen_batches: 50", &format!("max_num_gen_batches: 50, {schedule}"))
}

/// In every step, the groups generated, carried in and in flight before are as many as those in all places.
fn check_identity(steps: &[serde_json::Value]) {
    let (mut carried, mut in_flight) = (0.0, 0.0);
    for step in steps {
        let of = |name: &str| {
            step.get(format!("groups/{name}")).and_then(serde_json::Value::as_f64).unwrap_or(0.0)
        };
        assert_eq!((of("carried_in"), of("in_flight_in")), (carried, in_flight), "{step:?}");
        (carried, in_flight) = (of("carried_out"), of("in_flight_out"));
        let went =
            ["trained", "dropped", "surplus", "stale", "failed", "aborted"].map(of).iter().sum::<f64>();
        assert_eq!(
            of("generated") + of("carried_in") + of("in_flight_in"),
            went + carried + in_flight,
            "{step:?}"
        );
    }
}

#[test]
fn rounds_in_flight_train_the_same() {
    let trained = |rounds: usize| {
        let config = with_schedule(&format!("rounds_in_flight: {rounds}"))
            .replaced("gen_batch_size: 8", "gen_batch_size: 4");
        let folder = Folder::new().with("config.yaml", &config);
        folder.tamis(&["train", "config.yaml"]).succeeds();
        let steps = folder.steps("tiny");
        check_identity(&steps);
        let aborted: f64 = steps.iter().filter_map(|step| step["groups/aborted"].as_f64()).sum();
        let weights =
            Left::by(&folder.join("runs/tiny")).files["checkpoints/step_6/model.safetensors"].clone();
        (weights, aborted)
    };
    let (one, wasted) = trained(1);
    assert!(wasted == 0.0);
    let (several, wasted) = trained(3);
    assert!(one == several, "other weights");
    assert!(wasted > 0.0, "nothing was drawn ahead");
}

#[test]
fn a_streaming_run_accounts_for_everything_and_is_resumed_as_it_was() {
    for (schedule, has_critic) in [
        ("mode: streaming", false),
        ("mode: streaming, surplus: carry, max_lag: 1", false),
        ("mode: streaming, surplus: carry, max_lag: 2, rounds_in_flight: 2, order: completion", false),
        ("mode: streaming, surplus: carry, max_lag: 3, rounds_in_flight: 3", false),
        // Some steps of the critic's warm-up publish nothing.
        ("mode: streaming, surplus: carry, max_lag: 2, order: completion", true),
    ] {
        let config = with_schedule(schedule).replaced("save_freq: 2", "save_freq: 2, keep_last: 9");
        let critic = "critic: {warmup_steps: 5, optimizer: {learning_rate: 1e-3}}\n";
        let config = if has_critic { format!("preset: ppo\n{config}{critic}") } else { config };
        let folder = Folder::new().with("config.yaml", &config);
        folder.tamis(&["train", "config.yaml"]).succeeds();
        let steps = folder.steps("tiny");
        assert_eq!(steps.len(), 6, "{schedule}");
        check_identity(&steps);
        assert!(steps.iter().all(|step| step["groups/trained"] == 4.0), "{schedule}");
        let in_flight = |step: &serde_json::Value| step.get("groups/in_flight_out").is_some();
        assert_eq!(steps.iter().any(in_flight), schedule.contains("carry"), "{schedule}");
        // Groups in flight at the end of a step are counted in the step in which they end.
        let places = ["trained", "dropped", "surplus", "stale"].map(|place| format!("tokens/{place}"));
        let went = |step: &serde_json::Value| -> f64 {
            places.iter().filter_map(|place| step.get(place)?.as_f64()).sum()
        };
        let (last, went) = (&steps[5], steps.iter().map(went).sum::<f64>());
        assert!(last["num_tokens"].as_f64().is_some_and(|all| all > went), "{schedule}: {went} {last:?}");
        let run = folder.join("runs/tiny");
        let expected = Left::by(&run);
        for step in [6, 4] {
            std::fs::remove_dir_all(run.join(format!("checkpoints/step_{step}"))).expect("removed");
            folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
            Left::by(&run).assert_same(&expected);
            if step == 6 {
                std::fs::remove_dir_all(run.join("checkpoints/step_6")).expect("removed");
            }
        }
    }
}
