//! The keys of `command`, and how its processes are started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_core::setting::TimeSpan;

use super::{CommandConfig, CommandReward, Printed};
use crate::reward::error::RewardError;
use crate::reward::function::RewardFunction;
use crate::reward::settings::{BuildError, Nature, RELATIVE, RewardContext, RewardFile, RewardSettings};

tamis_core::settings! {
    /// Lifetime of an external function's processes.
    pub struct ProcessPool {
        /// Longest time of one answer.
        timeout: TimeSpan = TimeSpan::seconds(30), Any, Free;
        /// Time that the first answer of a fresh process may take beyond `timeout` (imports, a model to
        /// load).
        startup_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Most restarts of crashed or late processes without an answer between them.
        max_restarts: usize = 10, Any, Free;
    }
}

impl ProcessPool {
    /// How the processes of a command line are run.
    pub(super) fn config(
        &self,
        argv: Vec<String>,
        num_processes: usize,
        working_dir: Option<PathBuf>,
    ) -> CommandConfig {
        CommandConfig {
            argv,
            working_dir,
            num_processes,
            timeout: self.timeout.0,
            startup_timeout: self.startup_timeout.0,
            max_restarts: u32::try_from(self.max_restarts).unwrap_or(u32::MAX),
            ..CommandConfig::default()
        }
    }

    /// Starts the processes of a command line, whose function is in a file; the listener hears of them under
    /// the reward's name.
    pub(in crate::reward) fn start(
        &self,
        argv: Vec<String>,
        num_processes: usize,
        file: &Path,
        working_dir: Option<PathBuf>,
        context: &RewardContext<'_>,
    ) -> Result<CommandReward, BuildError> {
        let config = self.config(argv, num_processes, working_dir);
        let command = CommandReward::printing_to(Some(place_of(file, context)), config);
        let command = command.map_err(|error| unstarted(error, context))?;
        Ok(command.heard_by(context.name, Arc::clone(context.listener)))
    }
}

/// The place for what a reward prints, whose function is in a file.
pub(super) fn place_of(file: &Path, context: &RewardContext<'_>) -> Arc<Printed> {
    let log = context.host.log(context.name);
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let source = format!("reward `{}` ({file})", context.name);
    Arc::new(Printed::to(log, &source, context.listener))
}

/// The error for processes that cannot be started.
pub(super) fn unstarted(error: RewardError, context: &RewardContext<'_>) -> BuildError {
    match error {
        RewardError::Start { failure } => BuildError::Setting {
            message: format!("reward `{}` {failure}", context.name),
            hint: "is the program installed and on PATH? A relative path is relative to `working_dir`, by default the folder of the \
                configuration file"
                .to_owned(),
        },
        error => error.into(),
    }
}

tamis_core::settings! {
    /// A program that scores, and how its processes are kept.
    pub struct CommandSettings {
        /// The program and its arguments.
        argv: Vec<String> = Vec::new(), NotEmpty;
        /// Working directory of the program, from which relative paths in `argv` are taken. Null: the folder
        /// of the configuration file that holds `argv`, or the current one for the command line.
        working_dir: Option<PathBuf> = None, NotEmpty, Free;
        /// Number of processes that score at the same time.
        num_processes: usize = 2, Between(1.0, 1024.0), Free;
        ..pool: ProcessPool;
    }
}

/// The file of a script's run that passes reward requests on to the script, beside the run's folder.
const BRIDGE: &str = ".script/reward.py";

/// Names the socket at which a script that runs answers for its rewards.
const ANSWERS: &str = "TAMIS_SCRIPT_REWARDS";

impl CommandSettings {
    /// The script whose own process answers for this reward, and its arguments: `tamis train SCRIPT.py`
    /// writes such a command.
    pub fn script(&self) -> Option<&[String]> {
        self.of_script().map(|(_, script)| script)
    }

    /// The run that the script began, and the script with its arguments.
    fn of_script(&self) -> Option<(&Path, &[String])> {
        let [_, bridge, _, script @ ..] = self.argv.as_slice() else { return None };
        let run = bridge.strip_suffix(BRIDGE).filter(|_| !script.is_empty())?;
        Some((Path::new(run), script))
    }

    /// Whether the process that answers runs, if a script's does.
    fn check_script(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        let Some((run, script)) = self.of_script().filter(|_| std::env::var_os(ANSWERS).is_none()) else {
            return Ok(());
        };
        let here = std::env::current_dir().unwrap_or_default();
        let run = run.strip_prefix(here).unwrap_or(run).display();
        let command = script.join(" ");
        Err(context.fail(
            &format!("it is a function of {}, and only a run of that script can call it", script[0]),
            format!(
                "`tamis train {command} --resume {run}` continues the run, `tamis train {command}` begins another; anything else needs a \
                reward in place of it: `reward=[...]`"
            ),
        ))
    }
}

impl RewardSettings for CommandSettings {
    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        self.check_script(context)
    }

    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        if let Some(folder) = self.working_dir.as_ref().filter(|folder| !folder.is_dir()) {
            let message = format!("there is no folder {} to start it in", folder.display());
            return Err(context.fail(&message, format!("set its `working_dir`; {RELATIVE}")));
        }
        self.check_script(context)?;
        // `python3 score.py` is named by its second word.
        let is_file = |word: &&String| word.contains('.') && !word.starts_with('-');
        let file = self.argv.iter().skip(1).find(is_file).or(self.argv.first());
        let file = file.map(PathBuf::from).unwrap_or_default();
        let (argv, folder) = (self.argv.clone(), self.working_dir.clone());
        Ok(Box::new(self.pool.start(argv, self.num_processes, &file, folder, context)?))
    }

    fn nature(&self) -> Nature {
        Nature::EXTERNAL
    }

    fn files(&self) -> Vec<RewardFile> {
        let path = self.argv.first().map(PathBuf::from).unwrap_or_default();
        vec![RewardFile { key: "argv".to_owned(), path, hint: None }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_script_names_it() {
        let with = |argv: &[&str]| CommandSettings {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            ..CommandSettings::default()
        };
        let own = with(&["python3", "/runs/mine.script/reward.py", "near", "train.py", "--lr", "1"]);
        let words: Vec<String> = ["train.py", "--lr", "1"].map(str::to_owned).into();
        assert_eq!(own.of_script(), Some((Path::new("/runs/mine"), words.as_slice())));
        // Commands of the user.
        assert_eq!(with(&["python3", "reward.py", "near", "train.py"]).script(), None);
        assert_eq!(with(&["python3", "/runs/mine.script/reward.py", "near"]).script(), None);
    }
}
