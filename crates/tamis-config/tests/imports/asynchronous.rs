//! verl's asynchronous modes, and what else its trainers promise or replay.

use tamis_config::{Config, ScheduleMode, SurplusKind, load_sources};

use crate::{converted, import_errors, loaded, notes};

const BASE: [&str; 6] = [
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=m",
    "data.train_files=a.jsonl",
];

/// By `import`, and by `train` over nothing.
fn both(arguments: &[&str]) -> [Config; 2] {
    let import = converted(&[&BASE, arguments].concat());
    let owned: Vec<String> = BASE[3..].iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    let own = ["reward=[{kind: exact}]", "train.total_epochs=1"].map(str::to_owned);
    let found =
        load_sources(&[], &[owned, own.to_vec()].concat()).unwrap_or_else(|errors| panic!("{errors}"));
    [loaded(&import), found.config]
}

#[test]
fn asynchronous_modes_are_a_stream_that_carries() {
    for mode in ["colocate_async", "separate_async"] {
        let mode = format!("trainer.v1.trainer_mode={mode}");
        for (sampler, max_lag) in [
            (None, 7),
            (Some("trainer.v1.sampler.max_off_policy_threshold=4"), 3),
            (Some("trainer.v1.sampler.max_off_policy_strategy=wait"), 7),
        ] {
            let arguments: Vec<&str> = [mode.as_str()].into_iter().chain(sampler).collect();
            for config in both(&arguments) {
                let schedule = &config.schedule;
                assert_eq!((schedule.mode, schedule.surplus), (ScheduleMode::Streaming, SurplusKind::Carry));
                assert_eq!(schedule.max_lag, Some(max_lag), "{arguments:?}");
            }
        }
        // The group filter leaves the surplus to the mode, in whatever order they are typed.
        let filter = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"];
        for arguments in [[&[mode.as_str()], &filter[..]].concat(), [&filter[..], &[mode.as_str()]].concat()]
        {
            for config in both(&arguments) {
                assert_eq!(config.schedule.surplus, SurplusKind::Carry);
                assert!(config.filter.is_some());
            }
        }
        // A group that may span one version is one of the step.
        for config in both(&[&mode, "trainer.v1.sampler.max_off_policy_threshold=1"]) {
            assert_eq!((config.schedule.surplus, config.schedule.max_lag), (SurplusKind::Discard, None));
        }
        for wrong in ["null", "0", "1.5", "many"] {
            let threshold = format!("trainer.v1.sampler.max_off_policy_threshold={wrong}");
            let errors = import_errors(&[&BASE[..], &[&mode, &threshold]].concat());
            assert!(errors.contains("max_off_policy_threshold") && !errors.contains("not there"), "{errors}");
        }
    }
}

#[test]
fn what_differs_is_named() {
    let import = converted(
        &[
            &BASE[..],
            &[
                "trainer.v1.trainer_mode=colocate_async",
                "trainer.v1.sampler.max_off_policy_threshold=4",
                "trainer.v1.sampler.max_off_policy_strategy=wait",
                "trainer.v1.colocate_async.num_warmup_batches=2",
                "algorithm.filter_groups.enable=True",
                "algorithm.filter_groups.max_inflight_gen_batches=2",
            ],
        ]
        .concat(),
    );
    let notes = notes(&import);
    let of = |key: &str| {
        notes.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {notes}"))
    };
    for (key, parts) in [
        ("trainer.v1.trainer_mode", ["in the order of dispatch", "here they go on sampling"]),
        ("trainer.v1.sampler.max_off_policy_threshold", ["schedule.max_lag: 3", "its own included"]),
        ("trainer.v1.sampler.max_off_policy_strategy", ["drops none", "thrown away and counted as stale"]),
        ("trainer.v1.colocate_async.num_warmup_batches", ["has no effect", "schedule.max_lag"]),
        ("algorithm.filter_groups.max_inflight_gen_batches", ["has no effect", "synchronous trainer alone"]),
    ] {
        let note = of(key);
        assert!(parts.iter().all(|part| note.contains(part)), "{note}");
    }
    assert!(!of("algorithm.filter_groups.enable").contains("surplus"), "{notes}");
}

#[test]
fn synchronous_keys_and_the_older_trainer_have_no_stream() {
    for arguments in [
        &["trainer.v1.trainer_mode=sync"][..],
        &["trainer.use_v1=False", "trainer.v1.trainer_mode=separate_async"],
        &["trainer.v1.sampler.max_off_policy_threshold=4"],
        &["async_training.staleness_threshold=0.5", "async_training.trigger_parameter_sync_step=4"],
    ] {
        for config in both(arguments) {
            assert_eq!((config.schedule.mode, config.schedule.max_lag), (ScheduleMode::Rounds, None));
        }
        let notes = notes(&converted(&[&BASE[..], arguments].concat()));
        assert!(!notes.contains("not there yet"), "{notes}");
        assert!(arguments.iter().all(|argument| notes.contains(argument)), "{notes}");
    }
    let errors = import_errors(&[&BASE[..], &["trainer.v1.trainer_mode=colocate"]].concat());
    assert!(errors.contains("sync, colocate_async and separate_async"), "{errors}");
}

/// In `separate_async` servers have GPUs of their own; in `colocate_async` they share those of the learner
/// and do not sleep, for they sample while it learns.
#[test]
fn servers_have_the_gpus_that_the_mode_gives_them() {
    let servers =
        ["learner.backend=torch", "actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=8"];
    let cut = "actor_rollout_ref.rollout.tensor_model_parallel_size=2";
    let separate = [
        "trainer.v1.trainer_mode=separate_async",
        "actor_rollout_ref.rollout.nnodes=2",
        "actor_rollout_ref.rollout.n_gpus_per_node=4",
        cut,
    ];
    for config in both(&[&servers[..], &separate].concat()) {
        let launch = config.rollout.launch.as_ref().expect("servers that the run starts");
        assert_eq!((launch.replicas, launch.tensor_parallel), (4, 2));
        assert_eq!((config.cluster.colocate, config.rollout.sleep_level), (false, 0));
    }
    let colocate = ["trainer.v1.trainer_mode=colocate_async", cut];
    for config in both(&[&servers[..], &colocate].concat()) {
        assert_eq!(config.rollout.launch.as_ref().map(|launch| launch.replicas), Some(4));
        assert_eq!((config.cluster.colocate, config.rollout.sleep_level), (true, 0));
    }
    // Without one of these modes the keys of separate servers say nothing.
    let notes = notes(&converted(&[&BASE[..], &servers, &separate[1..]].concat()));
    assert!(notes.contains("separate_async alone gives servers GPUs of their own"), "{notes}");
}

#[test]
fn equal_runs_are_not_promised_at_servers_and_routers_are_not_replayed() {
    for key in
        ["actor_rollout_ref.rollout.full_determinism", "actor_rollout_ref.actor.fsdp_config.full_determinism"]
    {
        let notes = notes(&converted(&[&BASE[..], &[&format!("{key}=True")]].concat()));
        assert!(notes.contains("servers and GPUs promise nothing of the kind"), "{notes}");
    }
    let notes_of_trl = notes(&converted(&["trl", "grpo", "--full_determinism", "True"]));
    assert!(notes_of_trl.contains("servers and GPUs promise nothing of the kind"), "{notes_of_trl}");
    for replay in [
        "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
        "actor_rollout_ref.actor.router_replay.mode=R3",
        "actor_rollout_ref.actor.megatron.router_replay.mode=R2",
    ] {
        let errors = import_errors(&[&BASE[..], &["learner.backend=torch", replay]].concat());
        assert!(errors.contains("is not replayed"), "{errors}");
    }
    converted(&[&BASE[..], &["actor_rollout_ref.rollout.enable_rollout_routing_replay=False"]].concat());
    let errors = import_errors(&["trl", "grpo", "--router_aux_loss_coef", "0.001"]);
    assert!(errors.contains("balances the routers"), "{errors}");
}
