//! What a run takes from outside of the kernel: a launcher of learners and servers elsewhere, and loggers
//! that pass figures on to other programs. The kernel itself writes the files of a run. The caller that opens
//! the run passes the rest: `tamis-cluster` has a launcher, `tamis-loggers` the loggers.

use tamis_config::{Config, LoggerKind, MlflowSettings};
use tamis_run::directory::RunDirectory;
use tamis_run::log::Loggers;
use tamis_run::log::progress::Console;

use crate::launcher::{MakeLauncher, NoLauncher};

/// What a run takes from outside.
#[derive(Clone, Copy)]
pub struct Outside {
    /// Makes the launcher of learners and servers elsewhere.
    pub make_launcher: MakeLauncher,
    /// Opens the loggers that pass figures on.
    pub loggers: &'static dyn OtherLoggers,
}

impl Outside {
    /// Neither a launcher nor other loggers.
    pub const NOTHING: Self = Self { make_launcher: NoLauncher::make, loggers: &NoLoggers };
}

/// The run whose figures are passed on.
#[derive(Clone, Copy)]
pub struct LoggedRun<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// Its folder.
    pub directory: &'a RunDirectory,
    /// What a logger prints.
    pub voice: &'a Console,
}

/// Loggers that pass figures on to other programs. They never fail a run: they warn.
pub trait OtherLoggers: Sync {
    /// What the loggers of a configuration lack, one line each. No logger is started.
    fn lacks(&self, config: &Config) -> Vec<String>;

    /// Opens a logger and adds it. Returns whether there is one of this kind.
    fn open(&self, kind: &LoggerKind, run: LoggedRun<'_>, loggers: &mut Loggers) -> bool;
}

/// The loggers of a program that was built without them.
struct NoLoggers;

impl OtherLoggers for NoLoggers {
    fn lacks(&self, _config: &Config) -> Vec<String> {
        Vec::new()
    }

    fn open(&self, _kind: &LoggerKind, _run: LoggedRun<'_>, _loggers: &mut Loggers) -> bool {
        false
    }
}

/// Whether MLflow itself chooses where the figures go: a database beside the run.
pub fn is_place_open(settings: &MlflowSettings) -> bool {
    settings.tracking_uri.is_none()
        && std::env::var_os("MLFLOW_TRACKING_URI").is_none_or(|uri| uri.is_empty())
}

/// The fix for an MLflow without a database.
pub const SET_URI: &str = "set `tracking_uri` of the logger to a server (`http://HOST:PORT`), or install the whole package `mlflow`";
