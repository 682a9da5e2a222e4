//! The contract of programs that start learners and servers on the machines that a configuration names
//! (`cluster.launcher: local` and `ray`), and plan a run before anything is loaded. The kernel starts
//! processes on this machine by itself (`cluster.launcher: none`). For everything else, the caller that opens
//! the run passes a [`Launcher`]. `tamis-cluster` has one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tamis_config::{Config, LaunchConfig, ServerCommand};
use tamis_model::TransformerConfig;
use tamis_rollout::launch::{LaunchError, Launched, Say};

use crate::interrupt::{Halt, Interrupt};
use tamis_core::fault::Fault;

/// The command that a [`LaunchError::Ended`] names if the launcher itself ended, and nothing that it started.
pub const COMMAND: &str = "python -m tamis.cluster";

/// Interval of looks at what came.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Makes the launcher of a run. A run that begins anew takes another one.
pub type MakeLauncher = fn() -> Arc<dyn Launcher>;

/// Servers to be started, by a command in which what the place decides is not known yet.
pub struct ServersToStart<'a> {
    /// How many, and how long they may take.
    pub launch: &'a LaunchConfig,
    /// The command of each.
    pub command: &'a ServerCommand,
    /// What they ask their callers for.
    pub key: String,
}

/// What a plan is made from beside the configuration.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The checkpoint that the run resumes from.
    pub checkpoint: Option<&'a Path>,
    /// A policy that begins with random weights.
    pub native: Option<&'a TransformerConfig>,
    /// The folder of the run's logs; without one nothing is started to find the machines.
    pub logs: Option<&'a Path>,
}

/// What a run needs of which machines, before anything is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunPlan {
    /// Lines for a person.
    pub lines: Vec<String>,
    /// What may not fit, with the fix.
    pub warnings: Vec<String>,
    /// Why the run cannot be, and the fix.
    pub refusal: Option<(String, String)>,
}

/// Starts learners and servers, watches them, and ends them. It outlives a learner that is lost.
pub trait Launcher: Send + Sync {
    /// Starts the learner of a configuration in PyTorch, and waits until its first rank answers. Its output
    /// goes to `learner.log` in a folder, that of further ranks beside it; `key`: what it asks its callers
    /// for.
    ///
    /// # Errors
    /// If it does not start. Nothing of it is left running then.
    fn start_learner(
        &self,
        config: &Config,
        key: Option<&str>,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Arc<dyn Launched>, Halt<LaunchError>>;

    /// Starts servers and waits until all answer. Their output goes to files in `logs/servers`.
    ///
    /// # Errors
    /// If one does not start. None is left running then.
    fn start_servers(
        &self,
        config: &Config,
        servers: ServersToStart<'_>,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Arc<dyn Launched>, Halt<LaunchError>>;

    /// The key of the servers that this run starts, the same for all of them as long as it runs.
    ///
    /// # Errors
    /// If none can be drawn.
    fn server_key(&self) -> Result<String, Fault>;

    /// Plans the run: on the machines of the cluster if there are logs, otherwise on this one. Empty if all
    /// of the run is in this process.
    ///
    /// # Errors
    /// Only [`Halt::Interrupted`].
    fn plan(
        &self,
        config: &Config,
        input: PlanInput<'_>,
        interrupt: &Interrupt,
    ) -> Result<RunPlan, Halt<std::convert::Infallible>>;
}

/// The launcher of a program that was built without one.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLauncher;

impl NoLauncher {
    /// Makes it, as a [`MakeLauncher`].
    pub fn make() -> Arc<dyn Launcher> {
        Arc::new(Self)
    }

    fn refuse<T>(config: &Config) -> Result<T, Halt<LaunchError>> {
        Err(Halt::Failed(LaunchError::Refused {
            message: format!(
                "this program has no launcher for `cluster.launcher: {}`",
                config.cluster.launcher
            ),
            hint: Some("set `cluster.launcher: none`".to_owned()),
        }))
    }
}

impl Launcher for NoLauncher {
    fn start_learner(
        &self,
        config: &Config,
        _key: Option<&str>,
        _logs: &Path,
        _say: &Say,
        _interrupt: &Interrupt,
    ) -> Result<Arc<dyn Launched>, Halt<LaunchError>> {
        Self::refuse(config)
    }

    fn start_servers(
        &self,
        config: &Config,
        _servers: ServersToStart<'_>,
        _logs: &Path,
        _say: &Say,
        _interrupt: &Interrupt,
    ) -> Result<Arc<dyn Launched>, Halt<LaunchError>> {
        Self::refuse(config)
    }

    fn server_key(&self) -> Result<String, Fault> {
        crate::api_key::random_key()
    }

    fn plan(
        &self,
        _config: &Config,
        _input: PlanInput<'_>,
        _interrupt: &Interrupt,
    ) -> Result<RunPlan, Halt<std::convert::Infallible>> {
        Ok(RunPlan::default())
    }
}

/// Waits until processes whose launcher was lost are up again or have failed for good, or for an interrupt.
pub fn await_return(launched: &dyn Launched, interrupt: &Interrupt) {
    while launched.is_returning() && !interrupt.is_requested() {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Ends all servers if one of them has failed for good: new servers need the GPUs of those that live.
pub fn end_used_up(standing: &mut Option<Arc<dyn Launched>>) {
    drop(standing.take_if(|servers| servers.ended().is_some()));
}
