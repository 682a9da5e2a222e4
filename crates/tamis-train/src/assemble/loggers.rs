//! The loggers of a run, from its configuration.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};
use tamis_config::{Config, LoggerKind};
use tamis_run::directory::RunDirectory;
use tamis_run::durable::DiskError;
use tamis_run::log::Loggers;
use tamis_run::log::jsonl::JsonlLogger;
use tamis_run::log::progress::Console;
use tamis_run::log::prometheus::PrometheusLogger;
use tamis_run::log::side_process::{SideProcessLogger, SideProcessSettings};
use tamis_run::log::tensorboard::TensorBoardLogger;
use tempfile::TempDir;

use crate::learner::torch::{interpreter, module_environment, write_program};

/// Loggers, and the folder with the program of those in a process, which is there as long as they are.
pub(crate) struct RunLoggers {
    pub(crate) loggers: Loggers,
    pub(crate) program: Option<TempDir>,
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
                let side = SideProcessSettings {
                    name: "wandb",
                    histograms: settings.histograms,
                    num_samples: settings.num_samples,
                    finish_timeout: settings.finish_timeout.0,
                };
                let python = settings.python.0.to_string_lossy().into_owned();
                add_side_process(&mut loggers, &mut program, side, &python, (config, directory, kind), voice);
            }
            LoggerKind::Mlflow(settings) => {
                let side = SideProcessSettings {
                    name: "mlflow",
                    histograms: false,
                    num_samples: 0,
                    finish_timeout: settings.finish_timeout.0,
                };
                let python = settings.python.0.to_string_lossy().into_owned();
                add_side_process(&mut loggers, &mut program, side, &python, (config, directory, kind), voice);
            }
            LoggerKind::Otlp(settings) => add_otlp(&mut loggers, &settings.endpoint, directory, voice),
        }
    }
    Ok(RunLoggers { loggers, program })
}

/// The name that a run is shown by: that of its folder.
fn run_name(directory: &RunDirectory) -> String {
    directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Starts `python -m tamis.loggers KIND`; where that cannot be, it is told.
fn add_side_process(
    loggers: &mut Loggers,
    program: &mut Option<TempDir>,
    side: SideProcessSettings,
    python: &str,
    (config, directory, kind): (&Config, &RunDirectory, &LoggerKind),
    voice: &Console,
) {
    match side_process(program, side.name, python, (config, directory, kind)) {
        Ok(command) => loggers.add(SideProcessLogger::start(side, command, voice.clone())),
        Err(error) => voice.warn(&format!(
            "the logger `{}` cannot be started, and the run goes on without it: {error}",
            side.name
        )),
    }
}

fn side_process(
    program: &mut Option<TempDir>,
    name: &str,
    python: &str,
    (config, directory, kind): (&Config, &RunDirectory, &LoggerKind),
) -> std::io::Result<Command> {
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
        "settings": keys_of(kind),
        "config": serde_json::to_value(config).unwrap_or_default(),
    });
    let path = folder.path().join(format!("{name}.json"));
    std::fs::write(&path, settings.to_string())?;
    let python = interpreter(python, std::env::current_exe().ok().as_deref());
    let mut command = Command::new(python);
    command.args(["-m", "tamis.loggers", name]).arg(path).stderr(Stdio::from(log));
    command.envs(module_environment(folder.path()));
    Ok(command)
}

fn keys_of(kind: &LoggerKind) -> Map<String, Value> {
    match serde_json::to_value(kind) {
        Ok(Value::Object(keys)) => keys,
        _ => Map::new(),
    }
}

#[cfg(feature = "otlp")]
fn add_otlp(loggers: &mut Loggers, endpoint: &str, directory: &RunDirectory, voice: &Console) {
    let run = run_name(directory);
    loggers.add(tamis_run::log::otlp::OtlpLogger::start(endpoint, &run, voice.clone()));
}

#[cfg(not(feature = "otlp"))]
fn add_otlp(_: &mut Loggers, _: &str, _: &RunDirectory, voice: &Console) {
    voice.warn(
        "the logger `otlp` is not in this build, and the run goes on without it: build tamis with `--features otlp`",
    );
}
