//! The keys of external environments.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tamis_core::setting::{Program, TimeSpan};

/// How an external environment is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum ForeignReach {
    /// A module of tamis's Python package, in workers.
    Module {
        /// The interpreter.
        python: String,
    },
    /// A program, in workers.
    Program {
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// An HTTP server.
    Server {
        /// Its address.
        url: String,
    },
}

/// An external environment, from its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignSpec {
    /// How it is reached.
    pub reach: ForeignReach,
    /// The settings that it gets.
    pub settings: Value,
    /// Longest time of an answer.
    pub timeout: Duration,
    /// Number and lifetime of its workers.
    pub workers: WorkerPool,
}

tamis_core::settings! {
    /// Number and lifetime of the processes that run environments.
    pub struct WorkerPool {
        /// Number of processes. Each plays many episodes.
        num_processes: usize = 2, Between(1.0, 256.0), Free;
        /// Longest time of one answer. If an environment takes longer, its group fails.
        timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Longest time until a new process is ready (imports, data).
        startup_timeout: TimeSpan = TimeSpan::seconds(120), Any, Free;
        /// Most restarts of lost processes without a finished episode in between. After that the run stops.
        max_restarts: usize = 10, Any, Free;
        /// Working directory of the processes, for relative paths. Null: the folder of the configuration file
        /// that names the environment, or the current folder for the command line.
        working_dir: Option<PathBuf> = None, NotEmpty, Free;
    }
}

tamis_core::settings! {
    /// An environment of Gymnasium whose observations and actions can be written as text.
    pub struct GymnasiumSettings {
        /// Its id for `gymnasium.make`.
        id: String = String::new(), NotEmpty;
        /// Keyword arguments of `gymnasium.make`.
        make_args: Map<String, Value> = Map::new();
        /// Function that makes further keyword arguments from a level's seed, `FILE.py:NAME` or `MODULE:NAME`
        /// (for example another map for each level). Null: none.
        level_args: Option<String> = None, NotEmpty;
        /// Module that registers it and is imported first. Null: none.
        import: Option<String> = None, NotEmpty;
        /// Names of its actions, in their order. Empty: the known names, or numbers.
        actions: Vec<String> = Vec::new();
        /// Function that turns an observation into text, `MODULE:FUNCTION`. `ansi`: the environment's own
        /// drawing. `space`: the numbers. Null: the drawing, if there is one.
        observation: Option<String> = None, NotEmpty;
        /// System message. Null: a message that names environment and actions.
        instruction: Option<String> = None;
        /// Reward of an answer that names no action.
        invalid_penalty: f64 = -0.1, Between(-1e6, 0.0);
        /// Python interpreter with Gymnasium; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        ..workers: WorkerPool;
    }
}

tamis_core::settings! {
    /// An environment of the package verifiers, as on the Environments Hub.
    pub struct VerifiersSettings {
        /// Its id for `verifiers.load_environment`, or `FILE.py:NAME` of a function that makes one. From
        /// verifiers 0.4 on it is the id of a taskset.
        id: String = String::new(), NotEmpty;
        /// Keyword arguments for it. From verifiers 0.4 on they are the keys of its configuration `[env]`.
        args: Map<String, Value> = Map::new();
        /// Python interpreter with verifiers and the environment; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        ..workers: WorkerPool;
    }
}

tamis_core::settings! {
    /// The user's own Python class with `reset(level, luck)` and `step(text)`.
    pub struct PythonEnvironmentSettings {
        /// The class, `FILE.py:NAME` or `MODULE:NAME`.
        path: String = String::new(), NotEmpty;
        /// Keyword arguments for it.
        args: Map<String, Value> = Map::new();
        /// Python interpreter; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        ..workers: WorkerPool;
    }
}

tamis_core::settings! {
    /// A program that speaks `tamis-environment/1` in JSON lines.
    pub struct CommandEnvironmentSettings {
        /// The program and its arguments.
        argv: Vec<String> = Vec::new(), NotEmpty;
        /// Settings that it gets.
        settings: Map<String, Value> = Map::new();
        ..workers: WorkerPool;
    }
}

tamis_core::settings! {
    /// A server that speaks `tamis-environment/1` over HTTP.
    pub struct HttpEnvironmentSettings {
        /// Base address of the server's `/hello`, `/levels`, `/reset`, `/step` and `/close`.
        url: String = String::new(), NotEmpty, Free;
        /// Settings that it gets.
        settings: Map<String, Value> = Map::new();
        /// Longest time of one answer. If an environment takes longer, its group fails.
        timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

/// The settings of an external environment.
pub trait ForeignSettings {
    /// How it is reached, and the settings that it gets.
    fn spec(&self) -> ForeignSpec;
}

fn of_module(python: &Program, settings: Value, workers: &WorkerPool) -> ForeignSpec {
    let reach = ForeignReach::Module { python: python.display().to_string() };
    ForeignSpec { reach, settings, timeout: workers.timeout.0, workers: workers.clone() }
}

impl ForeignSettings for GymnasiumSettings {
    fn spec(&self) -> ForeignSpec {
        let mut settings = json!({
            "kind": "gymnasium",
            "id": self.id,
            "make_args": self.make_args,
            "invalid_penalty": self.invalid_penalty,
        });
        for (name, value) in [
            ("level_args", &self.level_args),
            ("import", &self.import),
            ("observation", &self.observation),
            ("instruction", &self.instruction),
        ] {
            if let Some(value) = value {
                settings[name] = json!(value);
            }
        }
        if !self.actions.is_empty() {
            settings["actions"] = json!(self.actions);
        }
        of_module(&self.python, settings, &self.workers)
    }
}

impl ForeignSettings for VerifiersSettings {
    fn spec(&self) -> ForeignSpec {
        of_module(&self.python, json!({"kind": "verifiers", "id": self.id, "args": self.args}), &self.workers)
    }
}

impl ForeignSettings for PythonEnvironmentSettings {
    fn spec(&self) -> ForeignSpec {
        of_module(
            &self.python,
            json!({"kind": "python", "path": self.path, "args": self.args}),
            &self.workers,
        )
    }
}

impl ForeignSettings for CommandEnvironmentSettings {
    fn spec(&self) -> ForeignSpec {
        ForeignSpec {
            reach: ForeignReach::Program { argv: self.argv.clone() },
            settings: Value::Object(self.settings.clone()),
            timeout: self.workers.timeout.0,
            workers: self.workers.clone(),
        }
    }
}

impl ForeignSettings for HttpEnvironmentSettings {
    fn spec(&self) -> ForeignSpec {
        ForeignSpec {
            reach: ForeignReach::Server { url: self.url.clone() },
            settings: Value::Object(self.settings.clone()),
            timeout: self.timeout.0,
            workers: WorkerPool::default(),
        }
    }
}
