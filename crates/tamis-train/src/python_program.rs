//! The part of the Python package that is in this program: the PyTorch learner, reward models, environments,
//! loggers and the launcher are its modules.

use std::path::{Path, PathBuf};

use tamis_process::GuardedFolder;
pub use tamis_process::{DEFAULT_INTERPRETER, interpreter};
use tamis_rollout::launch::{LaunchError, LaunchLimits, LaunchedServers, Say, ServerPlace, ServerProcess};

use crate::interrupt::{Halt, Interrupt};

/// The Python files of the learner, by their path in the package.
const FILES: &[(&str, &str)] = &[
    ("__init__.py", include_str!("../../../python/tamis/__init__.py")),
    ("cluster/__init__.py", include_str!("../../../python/tamis/cluster/__init__.py")),
    ("cluster/__main__.py", include_str!("../../../python/tamis/cluster/__main__.py")),
    ("cluster/agent.py", include_str!("../../../python/tamis/cluster/agent.py")),
    ("cluster/channel.py", include_str!("../../../python/tamis/cluster/channel.py")),
    ("cluster/group.py", include_str!("../../../python/tamis/cluster/group.py")),
    ("cluster/local.py", include_str!("../../../python/tamis/cluster/local.py")),
    ("cluster/on_ray.py", include_str!("../../../python/tamis/cluster/on_ray.py")),
    ("cluster/request.py", include_str!("../../../python/tamis/cluster/request.py")),
    ("environments/__init__.py", include_str!("../../../python/tamis/environments/__init__.py")),
    ("environments/__main__.py", include_str!("../../../python/tamis/environments/__main__.py")),
    ("environments/board.py", include_str!("../../../python/tamis/environments/board.py")),
    ("environments/chat_harness.py", include_str!("../../../python/tamis/environments/chat_harness.py")),
    ("environments/of_gymnasium.py", include_str!("../../../python/tamis/environments/of_gymnasium.py")),
    ("environments/of_python.py", include_str!("../../../python/tamis/environments/of_python.py")),
    ("environments/of_tasksets.py", include_str!("../../../python/tamis/environments/of_tasksets.py")),
    ("environments/of_tools.py", include_str!("../../../python/tamis/environments/of_tools.py")),
    ("environments/of_verifiers.py", include_str!("../../../python/tamis/environments/of_verifiers.py")),
    ("environments/protocol.py", include_str!("../../../python/tamis/environments/protocol.py")),
    ("environments/rollout.py", include_str!("../../../python/tamis/environments/rollout.py")),
    ("environments/server.py", include_str!("../../../python/tamis/environments/server.py")),
    ("environments/spaces.py", include_str!("../../../python/tamis/environments/spaces.py")),
    ("environments/threads.py", include_str!("../../../python/tamis/environments/threads.py")),
    ("environments/tool_calls.py", include_str!("../../../python/tamis/environments/tool_calls.py")),
    ("learner/__init__.py", include_str!("../../../python/tamis/learner/__init__.py")),
    ("learner/__main__.py", include_str!("../../../python/tamis/learner/__main__.py")),
    ("learner/attention.py", include_str!("../../../python/tamis/learner/attention.py")),
    ("learner/checkpoint.py", include_str!("../../../python/tamis/learner/checkpoint.py")),
    ("learner/connections.py", include_str!("../../../python/tamis/learner/connections.py")),
    ("learner/continuous.py", include_str!("../../../python/tamis/learner/continuous.py")),
    ("learner/critic.py", include_str!("../../../python/tamis/learner/critic.py")),
    ("learner/device.py", include_str!("../../../python/tamis/learner/device.py")),
    ("learner/drawing.py", include_str!("../../../python/tamis/learner/drawing.py")),
    ("learner/four_bits.py", include_str!("../../../python/tamis/learner/four_bits.py")),
    ("learner/generate.py", include_str!("../../../python/tamis/learner/generate.py")),
    ("learner/handles.py", include_str!("../../../python/tamis/learner/handles.py")),
    ("learner/head.py", include_str!("../../../python/tamis/learner/head.py")),
    ("learner/learner.py", include_str!("../../../python/tamis/learner/learner.py")),
    ("learner/loading.py", include_str!("../../../python/tamis/learner/loading.py")),
    ("learner/logprob.py", include_str!("../../../python/tamis/learner/logprob.py")),
    ("learner/lora.py", include_str!("../../../python/tamis/learner/lora.py")),
    ("learner/messages.py", include_str!("../../../python/tamis/learner/messages.py")),
    ("learner/model.py", include_str!("../../../python/tamis/learner/model.py")),
    ("learner/moments.py", include_str!("../../../python/tamis/learner/moments.py")),
    ("learner/one_query.py", include_str!("../../../python/tamis/learner/one_query.py")),
    ("learner/one_query_kernel.py", include_str!("../../../python/tamis/learner/one_query_kernel.py")),
    ("learner/optimizer.py", include_str!("../../../python/tamis/learner/optimizer.py")),
    ("learner/packing.py", include_str!("../../../python/tamis/learner/packing.py")),
    ("learner/parts.py", include_str!("../../../python/tamis/learner/parts.py")),
    ("learner/protocol.py", include_str!("../../../python/tamis/learner/protocol.py")),
    ("learner/random_keys.py", include_str!("../../../python/tamis/learner/random_keys.py")),
    ("learner/ranks.py", include_str!("../../../python/tamis/learner/ranks.py")),
    ("learner/rotary.py", include_str!("../../../python/tamis/learner/rotary.py")),
    ("learner/row_cache.py", include_str!("../../../python/tamis/learner/row_cache.py")),
    ("learner/samples.py", include_str!("../../../python/tamis/learner/samples.py")),
    ("learner/server.py", include_str!("../../../python/tamis/learner/server.py")),
    ("learner/session.py", include_str!("../../../python/tamis/learner/session.py")),
    ("learner/sharding.py", include_str!("../../../python/tamis/learner/sharding.py")),
    ("learner/step_graphs.py", include_str!("../../../python/tamis/learner/step_graphs.py")),
    ("learner/tiles.py", include_str!("../../../python/tamis/learner/tiles.py")),
    ("learner/transfer.py", include_str!("../../../python/tamis/learner/transfer.py")),
    ("learner/vision.py", include_str!("../../../python/tamis/learner/vision.py")),
    ("learner/weights.py", include_str!("../../../python/tamis/learner/weights.py")),
    ("learner/work.py", include_str!("../../../python/tamis/learner/work.py")),
    ("loggers/__init__.py", include_str!("../../../python/tamis/loggers/__init__.py")),
    ("loggers/__main__.py", include_str!("../../../python/tamis/loggers/__main__.py")),
    ("loggers/to_mlflow.py", include_str!("../../../python/tamis/loggers/to_mlflow.py")),
    ("loggers/to_trackio.py", include_str!("../../../python/tamis/loggers/to_trackio.py")),
    ("loggers/to_wandb.py", include_str!("../../../python/tamis/loggers/to_wandb.py")),
    ("reward/__init__.py", include_str!("../../../python/tamis/reward/__init__.py")),
    ("reward/__main__.py", include_str!("../../../python/tamis/reward/__main__.py")),
    ("reward/scoring.py", include_str!("../../../python/tamis/reward/scoring.py")),
    ("reward/server.py", include_str!("../../../python/tamis/reward/server.py")),
];

/// A module of the package, as a process.
pub struct ModuleProcess<'a> {
    /// The interpreter.
    pub python: &'a str,
    /// `tamis.learner`.
    pub module: &'a str,
    /// Its name in messages: `learner`.
    pub what: &'static str,
    /// A file with its settings (`--settings`).
    pub settings: Option<&'a serde_json::Value>,
    /// The file for its output.
    pub log: PathBuf,
    /// How long it may take to start, and how often it is restarted.
    pub limits: LaunchLimits,
}

impl ModuleProcess<'_> {
    /// Starts it, and waits until it accepts connections at a socket in a folder that also holds its program.
    ///
    /// # Errors
    /// If it does not start. Nothing is left running then.
    pub fn launch(
        &self,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<(LaunchedServers, GuardedFolder), Halt<LaunchError>> {
        let python = interpreter(self.python);
        let command = format!("{python} -m {}", self.module);
        let failed = |what: &'static str| {
            let command = &command;
            move |error| Halt::Failed(LaunchError::lacks(command, what, error))
        };
        let folder = write_program().map_err(failed("its program cannot be written"))?;
        let socket = folder.path().join("socket");
        let environment = module_environment(folder.path());
        let listen = format!("unix:{}", socket.display());
        let mut words = [&python, "-m", self.module, "--listen", &listen].map(str::to_owned).to_vec();
        if let Some(settings) = self.settings {
            let path = folder.path().join("settings.json");
            std::fs::write(&path, settings.to_string()).map_err(failed("its settings cannot be written"))?;
            words.extend(["--settings".to_owned(), path.display().to_string()]);
        }
        let server = ServerProcess {
            shown: words.join(" "),
            words,
            environment,
            what: self.what,
            place: ServerPlace::Socket(socket),
            log: self.log.clone(),
        };
        let started = LaunchedServers::start(vec![server], self.limits, &interrupt.flag(), say.clone());
        match started.map_err(Halt::Failed)? {
            Some(launched) => Ok((launched, folder)),
            None => Err(Halt::Interrupted),
        }
    }
}

/// Writes the program into a folder that only the user can open.
pub fn write_program() -> std::io::Result<GuardedFolder> {
    let folder = private_folder(PREFIX)?;
    for (name, text) in FILES {
        let path = folder.path().join("tamis").join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
        std::fs::write(&path, text)?;
    }
    Ok(folder)
}

/// Variables of a process whose program is in a folder.
pub fn module_environment(folder: &Path) -> Vec<(String, String)> {
    let mut paths = vec![folder.to_owned()];
    paths.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
    let paths = std::env::join_paths(paths).unwrap_or_else(|_| folder.as_os_str().to_owned());
    let mut environment = vec![("PYTHONPATH".to_owned(), paths.to_string_lossy().into_owned())];
    // A file in the working folder must not hide a module of the package.
    environment.push(("PYTHONSAFEPATH".to_owned(), "1".to_owned()));
    // Threads that spin while this process samples would take its cores.
    if std::env::var_os("OMP_WAIT_POLICY").is_none() {
        environment.push(("OMP_WAIT_POLICY".to_owned(), "passive".to_owned()));
    }
    environment
}

/// Longest path of a folder that a socket may be in: a socket's path has at most 107 bytes.
const LONGEST_FOLDER: usize = 90;

/// Beginning of the names of such folders.
const PREFIX: &str = "tamis-learner-";

/// A folder whose name begins so and cannot be guessed. Others cannot read it, and a socket's path has room
/// in it.
///
/// # Errors
/// As the system's.
pub fn private_folder(prefix: &str) -> std::io::Result<GuardedFolder> {
    let folder = GuardedFolder::create_in(&std::env::temp_dir(), prefix)?;
    if folder.path().as_os_str().len() <= LONGEST_FOLDER {
        return Ok(folder);
    }
    GuardedFolder::create_in(Path::new("/tmp"), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program that a run starts is the whole learner.
    #[test]
    fn every_file_of_the_learner_is_part_of_the_program() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tamis");
        let mut found = Vec::new();
        for folder in ["cluster", "environments", "learner", "loggers", "reward"] {
            for entry in std::fs::read_dir(package.join(folder)).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.extension().is_some_and(|extension| extension == "py") {
                    let name = path.strip_prefix(&package).expect("inside").to_string_lossy().into_owned();
                    found.push(name);
                }
            }
        }
        // The rest of the package is for use from Python, and needs the native module.
        found.push("__init__.py".to_owned());
        found.sort();
        let mut known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
