//! Engines of other systems, as the commands with which a run starts its servers.

use insta::assert_snapshot;
use tamis_config::{Intake, LOOPBACK, ServerCommand};

use crate::{converted, loaded};

fn command(words: &[&str]) -> String {
    let rollout = loaded(&converted(words)).rollout;
    ServerCommand::new(&rollout, Intake::Folders, std::path::Path::new("m"), LOOPBACK, "8000").to_string()
}

#[test]
fn engines_of_other_systems_become_servers() {
    let verl = |name: &str| {
        let name = format!("actor_rollout_ref.rollout.name={name}");
        let words = [
            "algorithm.adv_estimator=grpo",
            "data.train_files=t",
            "actor_rollout_ref.model.path=m",
            &name,
            "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.8",
            "actor_rollout_ref.rollout.max_num_seqs=64",
            "actor_rollout_ref.rollout.enforce_eager=True",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=8",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_cascade_attn=True",
            "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3",
        ];
        command(&words)
    };
    assert_snapshot!(verl("vllm"));
    assert_snapshot!(verl("sglang"));
}
