//! Runs that sample at servers.

use crate::tamis::Folder;

/// A folder with `tiny.yaml`, and a run `first` of one step: a policy for servers to begin with.
pub(crate) fn with_a_policy() -> Folder {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "run.dir=.", "run.name=first", "train.total_steps=1"]).succeeds();
    folder
}

/// Arguments of a run that begins with that policy and trains four steps; with addresses it samples at
/// servers.
pub(crate) fn from_the_policy(addresses: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["~model.init", "+model.path=first/checkpoints/step_1", "sft.steps=0", "train.total_steps=4"]
            .map(str::to_owned)
            .to_vec();
    if !addresses.is_empty() {
        arguments.push("rollout.backend=vllm".to_owned());
        arguments.push(format!("rollout.servers=[{}]", addresses.join(", ")));
    }
    arguments
}

pub(crate) fn train(
    folder: &Folder,
    name: &str,
    arguments: &[String],
    further: &[&str],
) -> crate::tamis::Ended {
    let name = format!("run.name={name}");
    let mut all = vec!["train", "tiny.yaml", &name];
    all.extend(arguments.iter().map(String::as_str));
    all.extend(further);
    folder.tamis(&all)
}
