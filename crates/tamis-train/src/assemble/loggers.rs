//! The loggers of a run, from its configuration.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tamis_config::{Config, LoggerKind, without_secrets};
use tamis_env::process_group::{GuardedFolder, ProcessGroup};
use tamis_run::directory::RunDirectory;
use tamis_run::durable::DiskError;
use tamis_run::log::Loggers;
use tamis_run::log::jsonl::JsonlLogger;
use tamis_run::log::otlp::{self, OtlpLogger};
use tamis_run::log::progress::Console;
use tamis_run::log::prometheus::PrometheusLogger;
use tamis_run::log::side_process::{LoggerProcess, SideProcessLogger, SideProcessSettings};
use tamis_run::log::tensorboard::TensorBoardLogger;

use super::AssembleError;
use crate::learner::torch::{interpreter, module_environment, write_program};

/// Loggers, and the folder with the program of those in a process, which is there as long as they are.
pub(crate) struct RunLoggers {
    pub(crate) loggers: Loggers,
    pub(crate) program: Option<GuardedFolder>,
}

/// The process of a logger, which goes with all that it has started, wherever tamis is killed.
#[derive(Debug)]
struct Guarded(ProcessGroup);

impl LoggerProcess for Guarded {
    fn child(&mut self) -> &mut Child {
        self.0.child()
    }

    fn end(&mut self) {
        self.0.end();
    }
}

/// Refuses loggers that this build does not have.
pub(crate) fn check(config: &Config) -> Result<(), AssembleError> {
    let is_otlp = |logger: &LoggerKind| matches!(logger, LoggerKind::Otlp(_));
    if !otlp::IS_BUILT && config.run.loggers.iter().any(is_otlp) {
        return Err(AssembleError::setting(
            "`run.loggers` names `otlp`, which this build does not have",
            "build tamis with `--features otlp`, or take it out",
        ));
    }
    Ok(())
}

/// Opens the loggers of a run for steps from `first_step` on. Those that hand figures to somebody else fail
/// nothing: they warn.
pub(crate) fn open(
    config: &Config,
    directory: &RunDirectory,
    first_step: u64,
    last_row: Option<&str>,
    voice: &Console,
) -> Result<RunLoggers, DiskError> {
    let mut loggers = Loggers::new();
    let mut program = None;
    for kind in &config.run.loggers {
        match kind {
            // It says what the step found, not what is logged.
            LoggerKind::Console(_) => {}
            LoggerKind::Jsonl(_) => {
                let logger = JsonlLogger::open(directory.disk(), &directory.metrics())?;
                loggers.add(logger.continue_after(last_row));
            }
            LoggerKind::Tensorboard(settings) => {
                let logger = TensorBoardLogger::open(directory.disk(), &directory.tensorboard(), first_step)?;
                loggers.add(logger.with_details(settings.histograms, settings.num_samples));
            }
            LoggerKind::Prometheus(settings) => {
                loggers.add(PrometheusLogger::start(&settings.address, &run_name(directory), voice));
            }
            LoggerKind::Wandb(settings) => {
                let side = Side {
                    settings: SideProcessSettings {
                        name: "wandb",
                        histograms: settings.histograms,
                        num_samples: settings.num_samples,
                        finish_timeout: settings.finish_timeout.0,
                    },
                    python: &settings.python.0.to_string_lossy(),
                    keys: kind,
                };
                loggers.add(side.open(&mut program, (config, directory), voice));
            }
            LoggerKind::Mlflow(settings) => {
                let side = Side {
                    settings: SideProcessSettings {
                        name: "mlflow",
                        histograms: false,
                        num_samples: 0,
                        finish_timeout: settings.finish_timeout.0,
                    },
                    python: &settings.python.0.to_string_lossy(),
                    keys: kind,
                };
                loggers.add(side.open(&mut program, (config, directory), voice));
            }
            LoggerKind::Otlp(settings) => {
                loggers.add(OtlpLogger::start(&settings.endpoint, &run_name(directory), voice.clone()));
            }
        }
    }
    Ok(RunLoggers { loggers, program })
}

/// The name that a run is shown by: that of its folder.
fn run_name(directory: &RunDirectory) -> String {
    directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What the process of a logger is made from.
struct Side<'r> {
    settings: SideProcessSettings,
    python: &'r str,
    keys: &'r LoggerKind,
}

impl Side<'_> {
    /// Starts `python -m tamis.loggers KIND`; where that cannot be, the reason is told.
    fn open(
        self,
        program: &mut Option<GuardedFolder>,
        (config, directory): (&Config, &RunDirectory),
        voice: &Console,
    ) -> SideProcessLogger {
        let python = interpreter(self.python, std::env::current_exe().ok().as_deref());
        let started = self
            .command(&python, program, (config, directory))
            .map_err(|error| format!("its program cannot be written: {error}"))
            .and_then(|mut command| {
                ProcessGroup::start(&mut command).map_err(|error| {
                    format!("`{python}` cannot be started: {error} (its `python` names another interpreter)")
                })
            });
        let held = started.map(|group| Box::new(Guarded(group)) as Box<dyn LoggerProcess>);
        SideProcessLogger::start(self.settings, held, voice.clone())
    }

    fn command(
        &self,
        python: &str,
        program: &mut Option<GuardedFolder>,
        (config, directory): (&Config, &RunDirectory),
    ) -> std::io::Result<Command> {
        let name = self.settings.name;
        let folder = match program {
            Some(folder) => folder,
            None => program.insert(write_program()?),
        };
        // What it says itself: a file beside the run's own logs.
        let logs = directory.path().join("loggers");
        std::fs::create_dir_all(&logs)?;
        let log = File::options().create(true).append(true).open(logs.join(format!("{name}.log")))?;
        let settings = json!({
            "run": run_name(directory),
            "folder": std::path::absolute(directory.path())?,
            "settings": serde_json::to_value(self.keys).unwrap_or_default(),
            "config": shareable(serde_json::to_value(config).unwrap_or_default()),
        });
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, settings.to_string())?;
        let mut command = Command::new(python);
        command.args(["-m", "tamis.loggers", name]).arg(path).envs(module_environment(folder.path()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(log));
        Ok(command)
    }
}

/// A configuration as it may leave this machine: without the keys that are given to servers.
fn shareable(config: Value) -> Value {
    match config {
        Value::Object(keys) => keys.into_iter().map(|(key, value)| (key, shareable(value))).collect(),
        Value::Array(items) => {
            let words: Option<Vec<String>> =
                items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            match words {
                Some(words) => without_secrets(&words).into(),
                None => items.into_iter().map(shareable).collect(),
            }
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_servers_do_not_leave_the_machine() {
        let config = json!({
            "rollout": {"launch": {"args": ["--api-key", "s3cret", "--seed", "1"]}, "servers": null},
            "reward": [{"command": ["env", "JUDGE_TOKEN=s3cret", "judge"]}, {"weight": 0.5}],
        });
        let expected = json!({
            "rollout": {"launch": {"args": ["--api-key", "...", "--seed", "1"]}, "servers": null},
            "reward": [{"command": ["env", "JUDGE_TOKEN=...", "judge"]}, {"weight": 0.5}],
        });
        assert_eq!(shareable(config), expected);
    }
}
