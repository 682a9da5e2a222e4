//! The PyTorch learner that a run starts: its program, which is part of this one, and its settings.

use std::path::Path;

use serde_json::{Map, json};
use tamis_config::{LearnerConfig, LearnerDtype};
use tamis_rollout::launch::{LaunchError, LaunchedServers, Place, Say, ServerProcess};
use tempfile::TempDir;

use crate::interrupt::{Halt, Interrupt};
use crate::learner::LearnerError;

/// The Python files of the package, by their path in it.
const FILES: &[(&str, &str)] = &[
    ("__init__.py", include_str!("../../../../python/tamis/__init__.py")),
    ("learner/__init__.py", include_str!("../../../../python/tamis/learner/__init__.py")),
    ("learner/__main__.py", include_str!("../../../../python/tamis/learner/__main__.py")),
    ("learner/attention.py", include_str!("../../../../python/tamis/learner/attention.py")),
    ("learner/checkpoint.py", include_str!("../../../../python/tamis/learner/checkpoint.py")),
    ("learner/critic.py", include_str!("../../../../python/tamis/learner/critic.py")),
    ("learner/head.py", include_str!("../../../../python/tamis/learner/head.py")),
    ("learner/learner.py", include_str!("../../../../python/tamis/learner/learner.py")),
    ("learner/loading.py", include_str!("../../../../python/tamis/learner/loading.py")),
    ("learner/logprob.py", include_str!("../../../../python/tamis/learner/logprob.py")),
    ("learner/lora.py", include_str!("../../../../python/tamis/learner/lora.py")),
    ("learner/model.py", include_str!("../../../../python/tamis/learner/model.py")),
    ("learner/optimizer.py", include_str!("../../../../python/tamis/learner/optimizer.py")),
    ("learner/packing.py", include_str!("../../../../python/tamis/learner/packing.py")),
    ("learner/protocol.py", include_str!("../../../../python/tamis/learner/protocol.py")),
    ("learner/server.py", include_str!("../../../../python/tamis/learner/server.py")),
    ("learner/vision.py", include_str!("../../../../python/tamis/learner/vision.py")),
    ("learner/weights.py", include_str!("../../../../python/tamis/learner/weights.py")),
];

/// A process of the PyTorch learner; it ends with the value.
pub struct TorchProcess {
    launched: LaunchedServers,
    /// Program and socket.
    #[expect(dead_code, reason = "it is there to be dropped, after the process")]
    folder: TempDir,
}

impl TorchProcess {
    /// Starts one, and waits until it takes connections. Its output goes to a file in `logs`, a folder that is
    /// there. A folder for the user alone, for temporary files, holds its program and its socket.
    ///
    /// # Errors
    /// Where it does not come up; none is left then.
    pub fn start(
        config: &LearnerConfig,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LearnerError>> {
        let surroundings = |what: &str, source| LaunchError::Surroundings {
            command: format!("{} -m tamis.learner", config.python),
            what: what.to_owned(),
            source,
        };
        let folder =
            private_folder().map_err(|error| surroundings("there is no place for its program", error))?;
        for (name, text) in FILES {
            let path = folder.path().join("tamis").join(name);
            let parent = path.parent().unwrap_or(folder.path());
            let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text));
            written.map_err(|error| surroundings("its program cannot be written", error))?;
        }
        let socket = folder.path().join("socket");
        let mut paths = vec![folder.path().to_owned()];
        paths.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
        let paths = std::env::join_paths(paths).unwrap_or_else(|_| folder.path().as_os_str().to_owned());
        let mut environment = vec![("PYTHONPATH".to_owned(), paths.to_string_lossy().into_owned())];
        // A file of the working folder is no module of the learner.
        environment.push(("PYTHONSAFEPATH".to_owned(), "1".to_owned()));
        // Threads that spin while this process samples would take its cores.
        if std::env::var_os("OMP_WAIT_POLICY").is_none() {
            environment.push(("OMP_WAIT_POLICY".to_owned(), "passive".to_owned()));
        }
        let listen = format!("unix:{}", socket.display());
        let words = [&config.python, "-m", "tamis.learner", "--listen", &listen].map(str::to_owned).to_vec();
        let process = ServerProcess {
            shown: words.join(" "),
            words,
            environment,
            what: "learner",
            place: Place::Socket(socket),
            log: logs.join("learner.log"),
        };
        let started = LaunchedServers::start_with(
            vec![process],
            config.startup_timeout,
            0,
            &interrupt.flag(),
            say.clone(),
        );
        match started.map_err(LearnerError::from)? {
            Some(launched) => Ok(Self { launched, folder }),
            None => Err(Halt::Interrupted),
        }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        self.launched.addresses().first().map_or("", String::as_str)
    }

    /// What became of it, where it ended.
    pub fn ended(&self) -> Option<String> {
        self.launched.ended()
    }
}

/// Longest path of a folder that a socket may be in: a socket's path has at most 107 bytes.
const LONGEST_FOLDER: usize = 90;

/// A folder of a name that nobody else can guess, for nobody else to read.
fn private_folder() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("tamis-learner-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    let folder = builder.tempdir()?;
    if folder.path().as_os_str().len() <= LONGEST_FOLDER {
        return Ok(folder);
    }
    builder.tempdir_in("/tmp")
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

    /// The program that a run starts is the whole package.
    #[test]
    fn every_file_of_the_package_is_part_of_the_program() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tamis");
        let mut found = Vec::new();
        for folder in ["", "learner"] {
            for entry in std::fs::read_dir(package.join(folder)).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.extension().is_some_and(|extension| extension == "py") {
                    let name = path.strip_prefix(&package).expect("inside").to_string_lossy().into_owned();
                    found.push(name);
                }
            }
        }
        found.sort();
        let mut known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
