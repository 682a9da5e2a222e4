//! The PyTorch learner and the reward models that a run starts: their program, which is part of this one, and
//! the learner's settings.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use tamis_config::{LearnerConfig, LearnerDtype};
use tamis_env::process_group::GuardedFolder;
use tamis_rollout::launch::{LaunchError, LaunchLimits, LaunchedServers, Place, Say, ServerProcess};
use tamis_rollout::reward_model::ModelProcess;

use crate::cluster::{Role, Started};
use crate::interrupt::{Halt, Interrupt};
use crate::learner::LearnerError;

/// The Python files of the learner, by their path in the package.
const FILES: &[(&str, &str)] = &[
    ("__init__.py", include_str!("../../../../python/tamis/__init__.py")),
    ("cluster/__init__.py", include_str!("../../../../python/tamis/cluster/__init__.py")),
    ("cluster/__main__.py", include_str!("../../../../python/tamis/cluster/__main__.py")),
    ("cluster/agent.py", include_str!("../../../../python/tamis/cluster/agent.py")),
    ("cluster/channel.py", include_str!("../../../../python/tamis/cluster/channel.py")),
    ("cluster/group.py", include_str!("../../../../python/tamis/cluster/group.py")),
    ("cluster/local.py", include_str!("../../../../python/tamis/cluster/local.py")),
    ("cluster/on_ray.py", include_str!("../../../../python/tamis/cluster/on_ray.py")),
    ("cluster/request.py", include_str!("../../../../python/tamis/cluster/request.py")),
    ("environments/__init__.py", include_str!("../../../../python/tamis/environments/__init__.py")),
    ("environments/__main__.py", include_str!("../../../../python/tamis/environments/__main__.py")),
    ("environments/board.py", include_str!("../../../../python/tamis/environments/board.py")),
    ("environments/chat_harness.py", include_str!("../../../../python/tamis/environments/chat_harness.py")),
    ("environments/of_gymnasium.py", include_str!("../../../../python/tamis/environments/of_gymnasium.py")),
    ("environments/of_python.py", include_str!("../../../../python/tamis/environments/of_python.py")),
    ("environments/of_tasksets.py", include_str!("../../../../python/tamis/environments/of_tasksets.py")),
    ("environments/of_tools.py", include_str!("../../../../python/tamis/environments/of_tools.py")),
    ("environments/of_verifiers.py", include_str!("../../../../python/tamis/environments/of_verifiers.py")),
    ("environments/protocol.py", include_str!("../../../../python/tamis/environments/protocol.py")),
    ("environments/rollout.py", include_str!("../../../../python/tamis/environments/rollout.py")),
    ("environments/server.py", include_str!("../../../../python/tamis/environments/server.py")),
    ("environments/spaces.py", include_str!("../../../../python/tamis/environments/spaces.py")),
    ("environments/threads.py", include_str!("../../../../python/tamis/environments/threads.py")),
    ("environments/tool_calls.py", include_str!("../../../../python/tamis/environments/tool_calls.py")),
    ("learner/__init__.py", include_str!("../../../../python/tamis/learner/__init__.py")),
    ("learner/__main__.py", include_str!("../../../../python/tamis/learner/__main__.py")),
    ("learner/attention.py", include_str!("../../../../python/tamis/learner/attention.py")),
    ("learner/checkpoint.py", include_str!("../../../../python/tamis/learner/checkpoint.py")),
    ("learner/connections.py", include_str!("../../../../python/tamis/learner/connections.py")),
    ("learner/continuous.py", include_str!("../../../../python/tamis/learner/continuous.py")),
    ("learner/critic.py", include_str!("../../../../python/tamis/learner/critic.py")),
    ("learner/device.py", include_str!("../../../../python/tamis/learner/device.py")),
    ("learner/drawing.py", include_str!("../../../../python/tamis/learner/drawing.py")),
    ("learner/generate.py", include_str!("../../../../python/tamis/learner/generate.py")),
    ("learner/handles.py", include_str!("../../../../python/tamis/learner/handles.py")),
    ("learner/head.py", include_str!("../../../../python/tamis/learner/head.py")),
    ("learner/learner.py", include_str!("../../../../python/tamis/learner/learner.py")),
    ("learner/loading.py", include_str!("../../../../python/tamis/learner/loading.py")),
    ("learner/logprob.py", include_str!("../../../../python/tamis/learner/logprob.py")),
    ("learner/lora.py", include_str!("../../../../python/tamis/learner/lora.py")),
    ("learner/model.py", include_str!("../../../../python/tamis/learner/model.py")),
    ("learner/optimizer.py", include_str!("../../../../python/tamis/learner/optimizer.py")),
    ("learner/packing.py", include_str!("../../../../python/tamis/learner/packing.py")),
    ("learner/parts.py", include_str!("../../../../python/tamis/learner/parts.py")),
    ("learner/protocol.py", include_str!("../../../../python/tamis/learner/protocol.py")),
    ("learner/random_keys.py", include_str!("../../../../python/tamis/learner/random_keys.py")),
    ("learner/ranks.py", include_str!("../../../../python/tamis/learner/ranks.py")),
    ("learner/rotary.py", include_str!("../../../../python/tamis/learner/rotary.py")),
    ("learner/row_cache.py", include_str!("../../../../python/tamis/learner/row_cache.py")),
    ("learner/samples.py", include_str!("../../../../python/tamis/learner/samples.py")),
    ("learner/server.py", include_str!("../../../../python/tamis/learner/server.py")),
    ("learner/sharding.py", include_str!("../../../../python/tamis/learner/sharding.py")),
    ("learner/transfer.py", include_str!("../../../../python/tamis/learner/transfer.py")),
    ("learner/vision.py", include_str!("../../../../python/tamis/learner/vision.py")),
    ("learner/weights.py", include_str!("../../../../python/tamis/learner/weights.py")),
    ("loggers/__init__.py", include_str!("../../../../python/tamis/loggers/__init__.py")),
    ("loggers/__main__.py", include_str!("../../../../python/tamis/loggers/__main__.py")),
    ("loggers/to_mlflow.py", include_str!("../../../../python/tamis/loggers/to_mlflow.py")),
    ("loggers/to_wandb.py", include_str!("../../../../python/tamis/loggers/to_wandb.py")),
    ("reward/__init__.py", include_str!("../../../../python/tamis/reward/__init__.py")),
    ("reward/__main__.py", include_str!("../../../../python/tamis/reward/__main__.py")),
    ("reward/scoring.py", include_str!("../../../../python/tamis/reward/scoring.py")),
    ("reward/server.py", include_str!("../../../../python/tamis/reward/server.py")),
];

/// A module of the package, as a process.
struct ModuleProcess<'a> {
    python: &'a str,
    /// `tamis.learner`.
    module: &'a str,
    /// What it is, for messages: `learner`.
    what: &'static str,
    /// A file that it is given (`--settings`).
    settings: Option<&'a serde_json::Value>,
    log: PathBuf,
    limits: LaunchLimits,
}

/// A process of the PyTorch learner or of a reward model; it ends with the value.
pub struct TorchProcess {
    launched: Started,
    /// Program and socket of one that this process started.
    #[expect(dead_code, reason = "it is there to be dropped, after the process")]
    folder: Option<GuardedFolder>,
}

/// Writes the program into a folder for the user alone.
pub(crate) fn write_program() -> std::io::Result<GuardedFolder> {
    let folder = private_folder()?;
    for (name, text) in FILES {
        let path = folder.path().join("tamis").join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
        std::fs::write(&path, text)?;
    }
    Ok(folder)
}

/// Variables of a process whose program is in a folder.
pub(crate) fn module_environment(folder: &Path) -> Vec<(String, String)> {
    let mut paths = vec![folder.to_owned()];
    paths.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
    let paths = std::env::join_paths(paths).unwrap_or_else(|_| folder.as_os_str().to_owned());
    let mut environment = vec![("PYTHONPATH".to_owned(), paths.to_string_lossy().into_owned())];
    // A file of the working folder is no module of the package.
    environment.push(("PYTHONSAFEPATH".to_owned(), "1".to_owned()));
    // Threads that spin while this process samples would take its cores.
    if std::env::var_os("OMP_WAIT_POLICY").is_none() {
        environment.push(("OMP_WAIT_POLICY".to_owned(), "passive".to_owned()));
    }
    environment
}

impl TorchProcess {
    /// Starts a learner, and waits until it takes connections. Its output goes to a file in `logs`, a folder
    /// that is there. A folder for the user alone, for temporary files, holds its program and its socket.
    ///
    /// # Errors
    /// Where it does not come up; none is left then.
    pub fn start(
        config: &LearnerConfig,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LearnerError>> {
        let process = ModuleProcess {
            python: &config.python,
            module: "tamis.learner",
            what: "learner",
            settings: None,
            log: logs.join("learner.log"),
            // Another one is not the one that was opened: the run looks after it.
            limits: LaunchLimits::once(config.startup_timeout),
        };
        Self::launch(&process, say, interrupt).map_err(|halt| halt.map(LearnerError::from))
    }

    /// A learner that a launcher started.
    pub fn through(role: Role) -> Self {
        Self { launched: Started::Through(Box::new(role)), folder: None }
    }

    /// Starts the process of a reward model, and waits until the model is loaded; `settings` are those of
    /// `python/tamis/reward`. It is started again where it ends, so many times at most.
    ///
    /// # Errors
    /// Where it does not come up, as when the model is refused; none is left then.
    pub fn start_reward_model(
        python: &str,
        settings: &serde_json::Value,
        log: PathBuf,
        (startup_timeout, most_restarts): (Duration, u32),
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LaunchError>> {
        let (module, what, settings) = ("tamis.reward", "reward model", Some(settings));
        let limits = LaunchLimits { restarts: most_restarts, ..LaunchLimits::once(startup_timeout) };
        let process = ModuleProcess { python, module, what, settings, log, limits };
        Self::launch(&process, say, interrupt)
    }

    fn launch(
        process: &ModuleProcess<'_>,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LaunchError>> {
        let python = interpreter(process.python, std::env::current_exe().ok().as_deref());
        let surroundings = |what: &str, source| LaunchError::Surroundings {
            command: format!("{python} -m {}", process.module),
            what: what.to_owned(),
            source,
        };
        let failed = |what: &'static str| move |error| Halt::Failed(surroundings(what, error));
        let folder = write_program().map_err(failed("its program cannot be written"))?;
        let socket = folder.path().join("socket");
        let environment = module_environment(folder.path());
        let listen = format!("unix:{}", socket.display());
        let mut words = [&python, "-m", process.module, "--listen", &listen].map(str::to_owned).to_vec();
        if let Some(settings) = process.settings {
            let path = folder.path().join("settings.json");
            std::fs::write(&path, settings.to_string()).map_err(failed("its settings cannot be written"))?;
            words.extend(["--settings".to_owned(), path.display().to_string()]);
        }
        let server = ServerProcess {
            shown: words.join(" "),
            words,
            environment,
            what: process.what,
            place: Place::Socket(socket),
            log: process.log.clone(),
        };
        let started = LaunchedServers::start(vec![server], process.limits, &interrupt.flag(), say.clone());
        match started.map_err(Halt::Failed)? {
            Some(launched) => Ok(Self { launched: Started::Here(launched), folder: Some(folder) }),
            None => Err(Halt::Interrupted),
        }
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.launched.addresses().into_iter().next().unwrap_or_default()
    }

    /// What became of it, where it ended.
    pub fn ended(&self) -> Option<String> {
        self.launched.ended()
    }

    /// What became of one that is lost, in its launcher's words, which may come a moment after the loss shows.
    pub fn find_end(&self) -> Option<String> {
        let Started::Through(role) = &self.launched else { return None };
        let began = Instant::now();
        loop {
            let ended = role.ended();
            if ended.is_some() || began.elapsed() >= NEWS {
                return ended;
            }
            std::thread::sleep(NEWS / 20);
        }
    }
}

/// Longest wait for the news of an end.
const NEWS: Duration = Duration::from_millis(500);

/// The interpreter that a run starts. A bare `python3`, which is the default, is the one beside the program where there is
/// one: the Python of the environment that the package is installed in, whether it is activated or not.
pub(crate) fn interpreter(python: &str, program: Option<&Path>) -> String {
    let beside = program.and_then(Path::parent).map(|folder| folder.join(python));
    match beside {
        Some(beside) if python == DEFAULT_INTERPRETER && beside.is_file() => {
            beside.to_string_lossy().into_owned()
        }
        _ => python.to_owned(),
    }
}

/// Default of `learner.python`.
const DEFAULT_INTERPRETER: &str = "python3";

/// The interpreter that nobody named.
pub(crate) fn default_interpreter() -> &'static str {
    DEFAULT_INTERPRETER
}

impl ModelProcess for TorchProcess {
    fn ended(&self) -> Option<String> {
        self.launched.ended()
    }
}

/// Longest path of a folder that a socket may be in: a socket's path has at most 107 bytes.
const LONGEST_FOLDER: usize = 90;

/// Beginning of the names of such folders.
const PREFIX: &str = "tamis-learner-";

/// A folder of a name that nobody else can guess, for nobody else to read.
fn private_folder() -> std::io::Result<GuardedFolder> {
    let folder = GuardedFolder::create_in(&std::env::temp_dir(), PREFIX)?;
    if folder.path().as_os_str().len() <= LONGEST_FOLDER {
        return Ok(folder);
    }
    GuardedFolder::create_in(Path::new("/tmp"), PREFIX)
}

/// The settings of a configuration that are PyTorch's alone, as the learner takes them.
pub fn options(config: &LearnerConfig, threads: usize, seed: u64) -> Map<String, serde_json::Value> {
    let dtype = match config.dtype {
        LearnerDtype::Auto => "auto",
        LearnerDtype::F32 => "f32",
        LearnerDtype::Bf16 => "bf16",
    };
    let mut options = Map::from_iter([
        ("device".to_owned(), json!(config.device)),
        ("dtype".to_owned(), json!(dtype)),
        ("attention".to_owned(), json!(config.attention)),
        ("threads".to_owned(), json!(threads)),
        ("offload_reference".to_owned(), json!(config.offload_reference)),
    ]);
    if config.continuous_batching {
        options.insert("continuous_batching".to_owned(), json!(true));
    }
    if config.freeze_vision {
        options.insert("freeze_vision".to_owned(), json!(true));
    }
    options.extend(config.logprob_chunk.map(|tokens| ("logprob_chunk".to_owned(), json!(tokens))));
    if let Some(lora) = &config.lora {
        let mut adapter = Map::from_iter([
            ("rank".to_owned(), json!(lora.rank)),
            ("alpha".to_owned(), json!(lora.alpha)),
            // A number of 53 bits is the same in every language.
            ("seed".to_owned(), json!(seed & ((1 << 53) - 1))),
        ]);
        adapter.extend(lora.targets.as_ref().map(|targets| ("targets".to_owned(), json!(targets))));
        options.insert("lora".to_owned(), adapter.into());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_beside_the_program_comes_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, beside) = (folder.path().join("tamis"), folder.path().join("python3"));
        assert_eq!(interpreter("python3", Some(&program)), "python3");
        std::fs::write(&beside, "").expect("written");
        assert_eq!(interpreter("python3", Some(&program)), beside.to_string_lossy());
        assert_eq!(interpreter("python3", None), "python3");
        // What somebody named is what is started.
        std::fs::write(folder.path().join("python3.12"), "").expect("written");
        for named in ["python3.12", "/usr/bin/python3", ".venv/bin/python"] {
            assert_eq!(interpreter(named, Some(&program)), named);
        }
        assert_eq!(tamis_config::Config::default().learner.python, DEFAULT_INTERPRETER);
    }

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
