//! Runs that sample at servers, and `tamis serve` as a child process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command};

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
        ["~model.init", "+model.path=first/checkpoints/step_1", "warm_start.steps=0", "train.total_steps=4"]
            .map(str::to_owned)
            .to_vec();
    if !addresses.is_empty() {
        arguments.push("rollout.backend=vllm".to_owned());
        arguments.push(format!("rollout.servers=[{}]", addresses.join(", ")));
    }
    arguments
}

/// Runs `tamis train tiny.yaml` under a name with these arguments and further ones.
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

/// The metrics of a run, one row a step.
pub(crate) fn metrics(folder: &Folder, run: &str) -> Vec<serde_json::Value> {
    let lines = folder.read(&format!("runs/{run}/metrics.jsonl"));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A server, ended with the value.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn begin(folder: &Folder, arguments: &[&str]) -> Self {
        let mut child = folder.start(&[&["serve"], arguments, &["--port", "0", "--threads", "1"]].concat());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            let mut printed = String::new();
            child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
            panic!("{line:?}\n{printed}");
        };
        Self { address: address.to_owned(), child }
    }

    /// Sends a signal, and the exit code that it comes to.
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
