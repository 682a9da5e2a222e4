//! A satellite: loggers that pass the figures of a run on to other programs: Weights & Biases, MLflow and
//! Trackio ([`side_process`]), Prometheus ([`prometheus`]) and collectors of OpenTelemetry ([`otlp`]).
//!
//! They only warn: one that lacks a package, a port or a server costs its figures, never the run.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tamis_config::{Config, LoggerKind, MlflowSettings, without_secrets};
use tamis_process::{GuardedFolder, interpreter};
use tamis_run::directory::RunDirectory;
use tamis_run::log::Loggers;
use tamis_train::outside::{LoggedRun, OtherLoggers, SET_URI, is_place_open};
use tamis_train::python_program::{module_environment, write_program};

#[cfg(test)]
mod captured;
pub mod otlp;
mod outbox;
pub mod prometheus;
pub mod side_process;

use otlp::OtlpLogger;
use prometheus::PrometheusLogger;
use side_process::{SideProcessLogger, SideProcessSettings};

/// All loggers of this crate.
pub struct AllLoggers;

impl OtherLoggers for AllLoggers {
    fn lacks(&self, config: &Config) -> Vec<String> {
        lacks(config)
    }

    fn open(&self, kind: &LoggerKind, run: LoggedRun<'_>, loggers: &mut Loggers) -> bool {
        let (settings, python, keys, lack) = match kind {
            LoggerKind::Console(_) | LoggerKind::Jsonl(_) | LoggerKind::Tensorboard(_) => return false,
            LoggerKind::Prometheus(settings) => {
                loggers.add(PrometheusLogger::start(&settings.address, &run_name(run.directory), run.voice));
                return true;
            }
            LoggerKind::Otlp(settings) => {
                let voice = run.voice.clone();
                loggers.add(OtlpLogger::start(&settings.endpoint, &run_name(run.directory), voice));
                return true;
            }
            LoggerKind::Wandb(settings) => (
                SideProcessSettings {
                    name: "wandb",
                    histograms: settings.histograms,
                    num_samples: settings.num_samples,
                    finish_timeout: settings.finish_timeout.0,
                },
                &settings.python,
                serde_json::to_value(settings),
                None,
            ),
            LoggerKind::Mlflow(settings) => (
                SideProcessSettings {
                    name: "mlflow",
                    histograms: false,
                    num_samples: 0,
                    finish_timeout: settings.finish_timeout.0,
                },
                &settings.python,
                serde_json::to_value(settings),
                no_store(settings),
            ),
            LoggerKind::Trackio(settings) => (
                SideProcessSettings {
                    name: "trackio",
                    histograms: settings.histograms,
                    num_samples: settings.num_samples,
                    finish_timeout: settings.finish_timeout.0,
                },
                &settings.python,
                serde_json::to_value(settings),
                None,
            ),
        };
        let python = python.0.to_string_lossy().into_owned();
        let side = Side { settings, python, keys: keys.unwrap_or_default(), lack };
        loggers.add(side.open(run));
        true
    }
}

/// Longest time for an interpreter to list its packages. It takes a while from a cold network disk.
const LONGEST_LOOK: Duration = Duration::from_secs(180);

/// Why MLflow would keep no figure; `None` if it would, or if that is not known. The small package has no
/// database. It is asked before the run, not after its first step.
fn no_store(settings: &MlflowSettings) -> Option<String> {
    const IS_SMALL: &str = "
import importlib.metadata as packages
try:
    packages.version('mlflow')
except packages.PackageNotFoundError:
    print('mlflow-skinny', packages.version('mlflow-skinny'))
";
    if !is_place_open(settings) {
        return None;
    }
    let python = interpreter(&settings.python.0.to_string_lossy());
    let found = tamis_process::ask(Command::new(&python).args(["-c", IS_SMALL]), LONGEST_LOOK).ok()?;
    let is_small = found.starts_with("mlflow-skinny");
    is_small.then(|| format!("{python} has {}, which stores nothing by itself: {SET_URI}", found.trim()))
}

/// Prints what a package lacks, if it cannot be imported.
const LOOK: &str = "
import importlib.util, sys
name, installed_as = sys.argv[1:]
if importlib.util.find_spec(name) is None:
    fix = f'`{sys.executable} -m pip install {installed_as}`, or name another interpreter as the `python` of the logger'
    print(f'the package `{name}` is not installed: {fix}')
";

/// What the loggers in processes of their own lack, in the words of these processes. For a check, which
/// starts none of them.
fn lacks(config: &Config) -> Vec<String> {
    let of = |kind: &LoggerKind| {
        let (python, installed_as) = match kind {
            LoggerKind::Wandb(settings) => (&settings.python, "wandb"),
            LoggerKind::Mlflow(settings) => (&settings.python, "mlflow-skinny"),
            LoggerKind::Trackio(settings) => (&settings.python, "trackio"),
            _ => return None,
        };
        let python = interpreter(&python.0.to_string_lossy());
        let name = kind.as_str();
        let lack = match tamis_process::ask(
            Command::new(python).args(["-c", LOOK, name, installed_as]),
            LONGEST_LOOK,
        ) {
            Err(error) => Some(format!("{error} (set its `python` to another interpreter)")),
            Ok(lack) => Some(lack.trim().to_owned()).filter(|lack| !lack.is_empty()),
        };
        let lack = lack.or_else(|| match kind {
            LoggerKind::Mlflow(settings) => no_store(settings),
            _ => None,
        });
        Some(format!("the logger `{name}` loses metrics: {}", lack?))
    };
    config.run.loggers.iter().filter_map(of).collect()
}

/// The name under which a run is shown: that of its folder.
fn run_name(directory: &RunDirectory) -> String {
    directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What the process of a logger is made from.
struct Side {
    settings: SideProcessSettings,
    python: String,
    /// All keys of the logger, those with default values too.
    keys: Value,
    /// Why it could keep nothing, if that is known before it is started.
    lack: Option<String>,
}

impl Side {
    /// Starts `python -m tamis.loggers KIND`. If that is impossible, it reports the reason.
    fn open(self, run: LoggedRun<'_>) -> SideProcessLogger {
        let (command, program) = match self.command(run) {
            Ok((command, program)) => (Ok(command), Some(program)),
            Err(lack) => (Err(lack), None),
        };
        SideProcessLogger::start(self.settings, command, program, run.voice.clone())
    }

    /// The command, and the folder of its program.
    fn command(&self, run: LoggedRun<'_>) -> Result<(Command, GuardedFolder), String> {
        match &self.lack {
            Some(lack) => Err(lack.clone()),
            None => self.write(run).map_err(|error| format!("its program cannot be written: {error}")),
        }
    }

    fn write(
        &self,
        LoggedRun { config, directory, .. }: LoggedRun<'_>,
    ) -> std::io::Result<(Command, GuardedFolder)> {
        let name = self.settings.name;
        let folder = write_program()?;
        // Its own output goes to a file beside the run's logs.
        let logs = directory.path().join("loggers");
        std::fs::create_dir_all(&logs)?;
        let log = File::options().create(true).append(true).open(logs.join(format!("{name}.log")))?;
        let settings = json!({
            "run": run_name(directory),
            "folder": std::path::absolute(directory.path())?,
            "settings": self.keys,
            "config": shareable(serde_json::to_value(config).unwrap_or_default()),
        });
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, settings.to_string())?;
        let mut command = Command::new(interpreter(&self.python));
        command.args(["-m", "tamis.loggers", name]).arg(path).envs(module_environment(folder.path()));
        command.stderr(Stdio::from(log));
        Ok((command, folder))
    }
}

/// A configuration as it may leave this machine: without the keys of servers.
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

    /// The small package of MLflow has no database, and that is known before the run.
    #[cfg(unix)]
    #[test]
    fn a_package_that_keeps_nothing_is_found_before_the_run() {
        use std::os::unix::fs::PermissionsExt as _;

        if Command::new("python3").arg("--version").output().is_err() {
            println!("skipped: no python3");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let install = |name: &str| {
            let about = folder.path().join(format!("{}-3.17.2.dist-info", name.replace('-', "_")));
            std::fs::create_dir(&about).expect("made");
            let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 3.17.2\n");
            std::fs::write(about.join("METADATA"), text).expect("written");
        };
        let python = folder.path().join("python");
        // `-S`: without the packages of this machine.
        let script = format!("#!/bin/sh\nPYTHONPATH='{}' exec python3 -S \"$@\"\n", folder.path().display());
        std::fs::write(&python, script).expect("written");
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("set");
        let of = |uri: Option<&str>| {
            let settings = MlflowSettings {
                tracking_uri: uri.map(str::to_owned),
                python: tamis_core::setting::Program(python.clone()),
                ..MlflowSettings::default()
            };
            no_store(&settings)
        };
        // Another check reports that there is none at all.
        assert_eq!(of(None), None);
        install("mlflow-skinny");
        let found = of(None).expect("it keeps nothing");
        assert!(
            found.contains(" has mlflow-skinny 3.17.2, which stores nothing by itself: set `tracking_uri`"),
            "{found}"
        );
        assert_eq!(of(Some("http://127.0.0.1:5000")), None);
        install("mlflow");
        assert_eq!(of(None), None);
    }

    /// The look itself runs: for a package that is there it prints nothing, for another what to type.
    #[test]
    fn the_look_for_a_package_is_valid_python() {
        if Command::new("python3").arg("--version").output().is_err() {
            println!("skipped: no python3");
            return;
        }
        let look = |name: &str| {
            tamis_process::ask(Command::new("python3").args(["-c", LOOK, name, "its-name"]), LONGEST_LOOK)
                .expect("the look ends well")
        };
        assert_eq!(look("json"), "");
        let lack = look("no_such_package_at_all");
        assert!(lack.starts_with("the package `no_such_package_at_all` is not installed: `"), "{lack}");
        assert!(lack.contains(" -m pip install its-name`, or name another interpreter"), "{lack}");
    }

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
