//! Runs a user's Python reward function unchanged, through a small program that is shipped inside tamis.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The program: `python3 tamis_reward.py --path FILE --name FUNCTION [--kind
/// verl|trl|easyr1|easyr1_sequential] [--kwargs JSON]`.
pub const PROGRAM: &str = include_str!("../../../python/tamis_reward.py");

/// How the function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// verl: `compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs)` for each
    /// completion, returning a number or a dictionary with `score`.
    Verl,
    /// TRL: `f(prompts=, completions=, completion_ids=, **columns, trainer_state=, log_extra=, log_metric=)`
    /// for a list of completions, returning a list of numbers or None.
    Trl,
    /// EasyR1: `compute_score([{response, response_length, ground_truth}], **kwargs)` for a list of
    /// completions, or for one where the file says `REWARD_TYPE = "sequential"`, returning dictionaries whose
    /// `overall` is the score.
    #[serde(rename = "easyr1")]
    EasyR1,
    /// EasyR1, one completion a call where the file does not say otherwise.
    #[serde(rename = "easyr1_sequential")]
    EasyR1Sequential,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::Trl => "trl",
            Self::EasyR1 => "easyr1",
            Self::EasyR1Sequential => "easyr1_sequential",
        }
    }
}

/// A Python function as a reward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonFunction {
    /// The interpreter, `python3` unless another is wanted.
    pub interpreter: String,
    /// The user's file.
    pub path: PathBuf,
    /// The function in it (verl's default: `compute_score`).
    pub name: String,
    /// How it is called; `None`: as its parameters say.
    pub kind: Option<Kind>,
    /// Further keyword arguments (verl's `reward_kwargs`).
    pub kwargs: serde_json::Map<String, serde_json::Value>,
}

/// Name of the program's file.
pub const FILE: &str = "tamis_reward.py";

impl PythonFunction {
    /// Writes the shipped program into `folder` (as `tamis_reward.py`, replacing one that is there) and
    /// returns the command line for [`super::CommandConfig::argv`].
    pub fn argv(&self, folder: &Path) -> io::Result<Vec<String>> {
        let program = folder.join(FILE);
        std::fs::write(&program, PROGRAM)?;
        Ok(self.command_line(&program))
    }

    /// The command line, where the shipped program lies at `program`.
    pub fn command_line(&self, program: &Path) -> Vec<String> {
        let mut argv = vec![
            self.interpreter.clone(),
            program.display().to_string(),
            "--path".to_owned(),
            self.path.display().to_string(),
            "--name".to_owned(),
            self.name.clone(),
        ];
        argv.extend(self.kind.iter().flat_map(|kind| ["--kind".to_owned(), kind.as_str().to_owned()]));
        if !self.kwargs.is_empty() {
            argv.push("--kwargs".to_owned());
            argv.push(serde_json::Value::Object(self.kwargs.clone()).to_string());
        }
        argv
    }
}
