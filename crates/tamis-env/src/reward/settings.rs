//! The interface of a reward kind's file: how its function is built, and what its keys mean.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use tamis_core::setting::ModelPlace;
use tamis_data::prompt::Prompt;
use thiserror::Error;

use super::command::SharedPools;
use super::error::RewardError;
use super::function::RewardFunction;
use super::judge_settings::JudgeSettings;
use super::listener::{Listener, Nobody};
use super::model_settings::ModelSettings;

/// The settings of one kind of reward, from which its function is built.
///
/// Their keys are written with [`settings!`](tamis_core::settings); every key has a default, which is empty
/// if the user must give the key.
pub trait RewardSettings {
    /// Builds the function.
    ///
    /// # Errors
    /// The settings, the rows or the machine lack something for it.
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError>;

    /// Begins what takes time before the function can be built, such as a process that imports a file. It is
    /// called for all rewards before the first is built; what fails is reported when the function is built.
    fn begin(&self, context: &RewardContext<'_>) {
        let _ = context;
    }

    /// Meaning and source of its score.
    fn nature(&self) -> Nature;

    /// Whether its score measures if an answer is right ([`Nature::is_verifier`]).
    fn is_verifier(&self) -> bool {
        self.nature().is_verifier
    }

    /// Whether the scores come from a program or server of the user ([`Nature::is_external`]).
    fn is_external(&self) -> bool {
        self.nature().is_external
    }

    /// Whether `acc` is the filter's metric if none is set.
    fn gives_outcome(&self) -> bool {
        self.is_verifier() && !self.is_external()
    }

    /// Builds the part of the function that needs no rows, programs or servers, for `tamis config check`. By
    /// default, an external function has no such part.
    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        if self.is_external() { Ok(()) } else { self.build(context).map(drop) }
    }

    /// Whether `tamis config check` builds it and asks it about gold answers. A model that must be loaded and
    /// a server that must answer are left to the run.
    fn is_tried(&self) -> bool {
        true
    }

    /// Conflicts between values that are each allowed. `path` is the place of the settings (`reward[0]`),
    /// `limit` is `rollout.max_response_length`.
    fn conflicts(&self, path: &str, limit: usize) -> Vec<Conflict> {
        let _ = (path, limit);
        Vec::new()
    }

    /// Sets null keys that mean `rollout.max_response_length`, which is `limit`.
    fn fill_lengths(&mut self, limit: usize) {
        let _ = limit;
    }

    /// The files that it reads or starts.
    fn files(&self) -> Vec<RewardFile> {
        Vec::new()
    }

    /// The models that it loads, each with the key that names it (`path`); names on a hub are resolved.
    fn models(&mut self) -> Vec<(String, &mut ModelPlace)> {
        Vec::new()
    }
}

/// Meaning and source of a reward's score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nature {
    /// The score measures if an answer is right, so it is a raw outcome. Otherwise it is a shaping term
    /// (length, format, ...): a filter on a sum with such a term keeps groups whose members are all wrong.
    /// External functions count as verifiers, because the meaning of their scores is not known.
    pub is_verifier: bool,
    /// The scores come from a program or server of the user. Their names are not known before it answers, and
    /// it may take long.
    pub is_external: bool,
    /// It is known in advance that it answers `acc` besides `score`.
    pub gives_acc: bool,
}

impl Nature {
    /// A function of tamis that judges answers ([`RewardOutcome::verified`](super::RewardOutcome::verified)).
    pub const VERIFIER: Self = Self { is_verifier: true, is_external: false, gives_acc: true };
    /// A function of tamis whose score does not measure correctness.
    pub const SHAPING: Self = Self { is_verifier: false, is_external: false, gives_acc: false };
    /// A program or a server of the user.
    pub const EXTERNAL: Self = Self { is_verifier: true, is_external: true, gives_acc: false };
}

/// Values of a reward that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The keys; the first one is shown.
    pub keys: Vec<String>,
    /// The fault.
    pub message: String,
    /// The fix.
    pub hint: String,
}

/// A file that a reward needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewardFile {
    /// The key that names it, without the reward (`path`).
    pub key: String,
    /// Path of the file.
    pub path: PathBuf,
    /// The fix if the file is missing; `None` for a program, which may be on `PATH`.
    pub hint: Option<&'static str>,
}

/// Context in which a reward is built, beyond its settings.
#[derive(Clone, Copy)]
pub struct RewardContext<'a> {
    /// The reward's name in the configuration.
    pub name: &'a str,
    /// `rollout.max_response_length`.
    pub max_length: usize,
    /// The rows that will be scored; empty if they are not known yet.
    pub rows: &'a [&'a [Prompt]],
    /// The first verifier of the configuration with its name, if there is one.
    pub verifier: Option<(&'a str, &'a dyn RewardSettings)>,
    /// Gets the messages of external functions.
    pub listener: &'a Arc<dyn Listener>,
    /// The program that the reward runs in.
    pub host: &'a dyn RewardHost,
    /// The processes that the rewards of a run share.
    pub pools: &'a SharedPools,
}

impl<'a> RewardContext<'a> {
    /// A context without rows, verifier, programs and servers, for tests of one reward.
    pub fn alone(name: &'a str, max_length: usize) -> Self {
        static NOBODY: LazyLock<Arc<dyn Listener>> = LazyLock::new(|| Arc::new(Nobody));
        static POOLS: LazyLock<SharedPools> = LazyLock::new(SharedPools::default);
        Self { name, max_length, rows: &[], verifier: None, listener: &NOBODY, host: &NoHost, pools: &POOLS }
    }

    /// The same for a reward of another name.
    #[must_use]
    pub fn with_name<'b>(&self, name: &'b str) -> RewardContext<'b>
    where
        'a: 'b,
    {
        RewardContext { name, ..*self }
    }

    /// Every row that will be scored.
    pub fn prompts(&self) -> impl Iterator<Item = &'a Prompt> {
        self.rows.iter().copied().flatten()
    }

    /// A failure of this reward: `reward NAME: MESSAGE`.
    pub fn fail(&self, message: &str, hint: impl Into<String>) -> BuildError {
        BuildError::Setting { message: format!("reward `{}`: {message}", self.name), hint: hint.into() }
    }
}

/// Services of the host program for rewards.
pub trait RewardHost {
    /// Writes a program that tamis ships to a place for the processes of a run.
    fn install(&self, name: &str, program: &str) -> Result<PathBuf, BuildError>;

    /// The file that keeps what a reward's processes print; `None`: the listener gets it, line by line.
    fn log(&self, name: &str) -> Option<PathBuf> {
        let _ = name;
        None
    }

    /// Checks a judge's settings without calling it.
    fn check_judge(&self, judge: &JudgeSettings, context: &RewardContext<'_>) -> Result<(), BuildError>;

    /// Connects to a judge that answers.
    fn connect_judge(
        &self,
        judge: &JudgeSettings,
        context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError>;

    /// Checks a reward model's settings without loading or calling it.
    fn check_model(&self, model: &ModelSettings, context: &RewardContext<'_>) -> Result<(), BuildError>;

    /// Connects to a reward model that is loaded, or whose servers answer.
    fn connect_model(
        &self,
        model: &ModelSettings,
        context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError>;
}

/// A host without files and servers for rewards.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHost;

impl NoHost {
    fn lacks(what: &str) -> BuildError {
        let hint = "score with a reward that needs none".to_owned();
        BuildError::Setting { message: format!("there is no {what} for rewards here"), hint }
    }
}

impl RewardHost for NoHost {
    fn install(&self, _name: &str, _program: &str) -> Result<PathBuf, BuildError> {
        Err(Self::lacks("folder of programs"))
    }

    fn check_judge(&self, _judge: &JudgeSettings, _context: &RewardContext<'_>) -> Result<(), BuildError> {
        Err(Self::lacks("server"))
    }

    fn connect_judge(
        &self,
        _judge: &JudgeSettings,
        _context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError> {
        Err(Self::lacks("server"))
    }

    fn check_model(&self, _model: &ModelSettings, _context: &RewardContext<'_>) -> Result<(), BuildError> {
        Err(Self::lacks("reward model"))
    }

    fn connect_model(
        &self,
        _model: &ModelSettings,
        _context: &RewardContext<'_>,
    ) -> Result<Box<dyn RewardFunction>, BuildError> {
        Err(Self::lacks("reward model"))
    }
}

/// A reward cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// Settings lack something, which only shows with the rows, programs or servers.
    #[error("{message}")]
    Setting {
        /// The fault.
        message: String,
        /// The fix.
        hint: String,
    },
    /// The function refuses its settings.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// An error of the [`RewardHost`].
    #[error(transparent)]
    Host(Box<dyn Error + Send + Sync>),
}

/// The rule for relative paths of a configuration.
pub const RELATIVE: &str = "a relative path in a file is relative to that file's folder, one on the command line to the working directory";
