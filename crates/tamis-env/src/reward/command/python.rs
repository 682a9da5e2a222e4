//! `python`: a user's Python function, run unchanged through a small program that is shipped inside tamis.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tamis_core::setting::Program;
use tamis_process::{interpreter, with_package};

use super::pool::{Caller, NamedFunction, Pool};
use super::protocol::{self, FunctionIntroduction, Introduced, KnownRows};
use super::settings::{place_of, unstarted};
use super::{CommandReward, Printed, ProcessPool};
use crate::reward::error::RewardError;
use crate::reward::failure::RewardFailure;
use crate::reward::function::RewardFunction;
use crate::reward::listener::Listener;
use crate::reward::settings::{BuildError, Nature, RELATIVE, RewardContext, RewardFile, RewardSettings};

/// The program: `python3 tamis_reward.py --path FILE`, which answers for the functions of a file.
pub const PROGRAM: &str = include_str!("../../../python/tamis_reward.py");

/// Name of the program's file.
pub const FILE: &str = "tamis_reward.py";

tamis_core::choice! {
    /// The calling convention of a Python reward function.
    pub enum PythonStyle {
        /// Parameters by name, one completion a call: `f(completion, answer)` gets the completion and the
        /// column `answer`; `prompt`, `ground_truth`, `data_source` and every column may be asked for.
        Simple = "simple",
        /// verl: `compute_score(data_source, solution_str, ground_truth, extra_info)`, one completion a call.
        Verl = "verl",
        /// TRL: `f(prompts, completions, completion_ids, **columns)`, a batch a call.
        Trl = "trl",
        /// EasyR1: `compute_score([{response, response_length, ground_truth}])`, a batch a call, or one
        /// completion if the file has `REWARD_TYPE = "sequential"`; `overall` is the score.
        EasyR1 = "easyr1",
        /// As `easyr1`, with one completion a call unless the file says otherwise (EasyR1's
        /// `reward_type: sequential`).
        EasyR1Sequential = "easyr1_sequential",
    }
}

tamis_core::settings! {
    /// A Python function as a reward, and how its processes are kept.
    pub struct PythonSettings {
        /// Python file with the function.
        path: PathBuf = PathBuf::new(), NotEmpty;
        /// The function's name.
        function: String = "compute_score".to_owned(), NotEmpty;
        /// Calling convention of the function. Null: the only one that its parameters fit, `verl` if they fit
        /// several. A function that does not fit is refused before anything is generated.
        style: Option<PythonStyle> = None;
        /// Further keyword arguments of every call.
        kwargs: Map<String, Json> = Map::new();
        /// Python interpreter; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Number of processes that score at the same time. Each imports the file and has its own globals.
        num_processes: usize = 1, Between(1.0, 1024.0), Free;
        ..pool: ProcessPool;
    }
}

/// A function of each style, to paste.
const TEMPLATES: &str = "
    # style: simple. One completion a call; parameters are columns of the row by their names.
    def reward(completion, answer):
        return 1.0 if completion.strip() == str(answer) else 0.0
    # style: verl. One completion a call.
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return 1.0 if solution_str.strip() == ground_truth else 0.0
    # style: trl. All completions of a batch; columns are lists.
    def reward(prompts, completions, **kwargs):
        return [float(len(completion) > 0) for completion in completions]
    # style: easyr1. All completions of a batch as dictionaries.
    def compute_score(reward_inputs):
        return [{\"overall\": float(one[\"response\"].strip() == one[\"ground_truth\"])} for one in reward_inputs]";

impl PythonSettings {
    /// The command line, where the shipped program lies at `program`. It is the same for all functions of a
    /// file.
    pub fn command_line(&self, program: &Path) -> Vec<String> {
        vec![
            interpreter(&self.python.to_string_lossy()),
            program.display().to_string(),
            "--path".to_owned(),
            self.path.display().to_string(),
        ]
    }

    /// The function in processes of its own file.
    pub(super) fn call_in(
        &self,
        pool: Arc<Pool>,
        name: &str,
        listener: Arc<dyn Listener>,
        place: impl FnOnce() -> Arc<Printed>,
    ) -> CommandReward {
        let id = pool.register(name, place);
        let style = self.style.map(PythonStyle::as_str);
        let line = protocol::name_function(id, &self.function, style, &self.kwargs);
        let caller = Caller::new(&pool.config, name, listener, Some(NamedFunction { id, line }));
        CommandReward::within(pool, caller)
    }

    /// The processes of the file, started if no function before this one needed them.
    fn open(&self, context: &RewardContext<'_>) -> Result<Arc<Pool>, BuildError> {
        if !self.path.is_file() {
            let message = format!(
                "the Python file of reward `{}` does not exist: {}",
                context.name,
                self.path.display()
            );
            return Err(BuildError::Setting { message, hint: format!("set its `path`; {RELATIVE}") });
        }
        let program = context.host.install(FILE, PROGRAM)?;
        let config = self.pool.config(self.command_line(&program), self.num_processes, None);
        let pool = context
            .pools
            .open(&self.path, config, |config| Pool::start(config, [place_of(&self.path, context)]));
        let pool = pool.map_err(|error| unstarted(error, context))?;
        pool.register(context.name, || place_of(&self.path, context));
        Ok(pool)
    }

    /// Refuses a function that cannot be called in its style, and prints which style was chosen if none was
    /// named.
    fn introduce(&self, command: &CommandReward, context: &RewardContext<'_>) -> Result<(), BuildError> {
        let name = context.name;
        if let Some(first) = command.pool.unusable_since(name) {
            let file = self.path.file_name().unwrap_or_default().to_string_lossy();
            return Err(BuildError::Setting {
                message: format!("reward `{name}` cannot be used: {file} fails as for reward `{first}`"),
                hint: format!("mend what reward `{first}` shows"),
            });
        }
        let introduction = match command.introduce(&KnownRows::of(context.prompts())) {
            Ok(Introduced::Function(introduction)) => introduction,
            Ok(Introduced::Missing(message)) => {
                return Err(context.fail(&message, "name one of them by `function`"));
            }
            Err(RewardFailure::Interrupted) => return Err(RewardError::Interrupted.into()),
            Err(failure) => {
                let message = format!("reward `{name}` cannot be used: {failure}");
                let python = interpreter(&self.python.to_string_lossy());
                let hint = with_package(&message, &python, "the reward's `python`").unwrap_or_else(|| {
                    "its file is imported by the interpreter `python` when a run starts, which must work without an error"
                        .to_owned()
                });
                return Err(BuildError::Setting { message, hint });
            }
        };
        let FunctionIntroduction { style: taken, fits, signature, problem, .. } = introduction;
        let Some(problem) = problem else {
            if self.style.is_none() && taken != PythonStyle::Verl.as_str() {
                context.listener.say(&format!(
                    "reward `{name}`: {signature} is called as `style: {taken}`, the only style that its parameters fit"
                ));
            }
            return Ok(());
        };
        let chosen = match self.style {
            Some(_) => "",
            None if taken == PythonStyle::Verl.as_str() => ", the default if no other fits,",
            None => ", which its parameters suggest,",
        };
        let others: Vec<String> =
            fits.iter().filter(|fit| **fit != taken).map(|fit| format!("`style: {fit}`")).collect();
        let hint = if fits.contains(&taken) {
            "give the rows that column, the parameter a default, or its value in `kwargs`".to_owned()
        } else if others.is_empty() {
            format!(
                "its parameters fit none of the styles; write it like one of these (see docs/rewards.md):{TEMPLATES}"
            )
        } else {
            format!("its parameters fit {}: write that", others.join(" and "))
        };
        let message = format!("{signature} cannot be called as `style: {taken}`{chosen} calls it: {problem}");
        Err(context.fail(&message, hint))
    }
}

impl RewardSettings for PythonSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let pool = self.open(context)?;
        let place = || place_of(&self.path, context);
        let command = self.call_in(pool, context.name, Arc::clone(context.listener), place);
        self.introduce(&command, context)?;
        Ok(Box::new(command))
    }

    fn begin(&self, context: &RewardContext<'_>) {
        // What is wrong is reported when the function is built.
        drop(self.open(context));
    }

    fn nature(&self) -> Nature {
        Nature::EXTERNAL
    }

    fn files(&self) -> Vec<RewardFile> {
        let hint = Some("name the Python file that holds the function");
        let file = RewardFile { key: "path".to_owned(), path: self.path.clone(), hint };
        vec![file, RewardFile { key: "python".to_owned(), path: self.python.0.clone(), hint: None }]
    }
}
