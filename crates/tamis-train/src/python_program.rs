//! The part of the Python package that is in this program: the PyTorch learner, reward models, environments,
//! loggers and the launcher are its modules.

use std::path::{Path, PathBuf};

use tamis_process::GuardedFolder;
pub use tamis_process::{DEFAULT_INTERPRETER, interpreter};
use tamis_rollout::launch::{LaunchError, LaunchLimits, LaunchedServers, Say, ServerPlace, ServerProcess};

use crate::interrupt::{Halt, Interrupt};

/// The package's files, which `build.rs` packed: path in the package and text.
const PACKAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/package.gz"));

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
    for (name, text) in tamis_file::unpack(PACKAGE) {
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

    /// The rest of the package is for use from Python, and needs the native module.
    #[test]
    fn every_file_of_the_learner_is_part_of_the_program() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tamis");
        let mut found = vec![package.join("__init__.py")];
        for folder in ["cluster", "environments", "learner", "loggers", "reward"] {
            let entries = std::fs::read_dir(package.join(folder)).expect("a folder");
            found.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
        found.retain(|path| path.extension().is_some_and(|ending| ending == "py"));
        found.sort();
        let known = tamis_file::unpack(PACKAGE);
        let files: Vec<_> = known.iter().map(|(name, _)| package.join(name)).collect();
        assert_eq!(found, files, "`touch crates/tamis-train/build.rs` packs a new file");
        for (file, (_, text)) in files.iter().zip(&known) {
            assert_eq!(*text, std::fs::read_to_string(file).expect("a file"), "{}", file.display());
        }
    }
}
