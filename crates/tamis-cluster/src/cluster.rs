//! The launcher of a run (`python -m tamis.cluster`): a child process that starts the learner and the
//! servers, on this machine or on Ray, and watches them. The launcher ends them when its input closes, so
//! they end however this process does.
//!
//! Commands and events are lines of JSON; `python/tamis/cluster/__main__.py` lists them.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tamis_config::{BackendKind, Config, LauncherKind, LearnerBackend};
use tamis_core::fault::Fault;
use tamis_process::{DEFAULT_INTERPRETER, interpreter};
use tamis_rollout::launch::{LaunchError, Launched, Say};
use tamis_train::api_key::random_key;
use tamis_train::interrupt::{Halt, Interrupt};
use tamis_train::launcher::{Launcher, PlanInput, RunPlan, ServersToStart};

use crate::launcher::LauncherProcess;
use crate::plan::disks::{Shortages, shortages};
use crate::plan::machines::{Machine, Machines};
use crate::plan::{Plan, RunModels};
use crate::role::{Asked, Role, Standing, StartLauncher, State, is_late};

/// Interval between polls of the launcher's events.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time for the launcher to find a cluster's machines.
const LONGEST_LOOK: Duration = Duration::from_secs(120);
/// Most restarts of all servers together.
pub(crate) const MOST_RESTARTS: u32 = 8;

/// The launcher of a run. It starts on first use, and is replaced if it has died. It outlives a lost learner.
#[derive(Default, Clone)]
pub struct Cluster {
    current: Arc<Mutex<Option<Arc<LauncherProcess>>>>,
    server_key: Arc<OnceLock<String>>,
    pub(crate) times: Times,
}

/// Limits for a launcher that is alive but late. At a limit it is killed and replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Extra time for an answer, beyond the start-up time of what was requested.
    pub(crate) answer: Duration,
    /// For a role to end. This is longer than the launcher's own limit.
    pub(crate) end: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { answer: Duration::from_secs(60), end: Duration::from_secs(45) }
    }
}

/// A request to a launcher: a role, its number of groups, and its settings (`Request` in
/// `python/tamis/cluster/request.py`).
struct Up {
    role: &'static str,
    count: usize,
    settings: Map<String, Value>,
    startup_timeout: Duration,
    /// The key that clients must send.
    key: Option<String>,
    /// Whether a lost launcher is replaced and asked for them again.
    returns: bool,
}

impl Cluster {
    /// Makes one, as a [`MakeLauncher`](tamis_train::launcher::MakeLauncher).
    pub fn make() -> Arc<dyn Launcher> {
        Arc::new(Self::default())
    }

    /// The machines of the cluster, to plan a run on.
    ///
    /// # Errors
    /// The launcher cannot be started, ends, or does not answer in time.
    pub fn look(
        &self,
        config: &Config,
        logs: &Path,
        interrupt: &Interrupt,
    ) -> Result<Vec<Machine>, Halt<LaunchError>> {
        let ask = || -> Result<_, Halt<LaunchError>> {
            let launcher = self.launcher(&StartLauncher::new(config, logs)).map_err(Halt::Failed)?;
            launcher.send(&json!({"command": "look"}));
            Ok(launcher)
        };
        let (mut launcher, mut restarts, mut began) = (ask()?, 0, Instant::now());
        loop {
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            match launcher.machines() {
                Some(Ok(machines)) => return Ok(machines),
                Some(Err(_)) if launcher.is_lost() && restarts < MOST_RESTARTS => {
                    (launcher, restarts, began) = (ask()?, restarts + 1, Instant::now());
                }
                Some(Err(failure)) => return Err(Halt::Failed(failure.into_error(LONGEST_LOOK))),
                None => {}
            }
            if let Some(error) = is_late(&launcher, began, LONGEST_LOOK, self.times.answer) {
                return Err(Halt::Failed(error));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn up(
        &self,
        config: &Config,
        up: Up,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Role, Halt<LaunchError>> {
        let Up { role: name, count, mut settings, startup_timeout, key, returns } = up;
        settings.extend([
            ("command".to_owned(), json!("up")),
            ("role".to_owned(), json!(name)),
            ("count".to_owned(), json!(count)),
            ("startup_timeout".to_owned(), json!(startup_timeout.as_secs_f64())),
            ("folder".to_owned(), json!(std::env::current_dir().ok())),
        ]);
        let start = StartLauncher::new(config, logs);
        let launcher = self.launcher(&start).map_err(Halt::Failed)?;
        let asked =
            Asked { name, count, command: Value::Object(settings), startup_timeout, say: say.clone() };
        let generation = asked.send_to(&launcher);
        // If this is dropped, everything that has come up so far ends.
        let standing = Mutex::new(Standing {
            launcher,
            generation,
            addresses: Vec::new(),
            state: State::Up { since: Instant::now() },
            restarts: 0,
        });
        let role = Role { cluster: self.clone(), start, asked, key, returns, standing };
        let began = Instant::now();
        loop {
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            let mut standing = role.standing();
            match role.asked.outcome(&standing.launcher, began, self.times.answer) {
                Some(Ok(addresses)) => {
                    standing.addresses = addresses;
                    drop(standing);
                    return Ok(role);
                }
                // The launcher was killed by the user or the system: another one may succeed.
                Some(Err(error)) if role.returns && standing.launcher.is_lost() => {
                    role.lose(&mut standing, error.to_string());
                    break;
                }
                Some(Err(error)) => {
                    drop(standing);
                    return Err(Halt::Failed(error));
                }
                None => {
                    drop(standing);
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
        while !interrupt.is_requested() {
            match role.fate() {
                None => std::thread::sleep(LOOK_EVERY),
                Some(Ok(())) => return Ok(role),
                Some(Err(message)) => return Err(Halt::Failed(LaunchError::Refused { message, hint: None })),
            }
        }
        Err(Halt::Interrupted)
    }

    /// The launcher that runs, or a new one.
    pub(crate) fn launcher(&self, start: &StartLauncher) -> Result<Arc<LauncherProcess>, LaunchError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(launcher) = current.as_ref().filter(|launcher| !launcher.is_over()) {
            return Ok(Arc::clone(launcher));
        }
        let arguments = ["--launcher", start.kind.as_str(), "--address", &start.address];
        // A cluster that was there may come back, so it is waited for. One that never was is reported at
        // once.
        let was_there =
            |launcher: &Arc<LauncherProcess>| launcher.connected_at().is_some() || !launcher.wait.is_zero();
        let wait = if current.as_ref().is_some_and(was_there) { start.wait } else { Duration::ZERO };
        let launcher = Arc::new(LauncherProcess::start(&start.python, &arguments, &start.log, wait)?);
        *current = Some(Arc::clone(&launcher));
        Ok(launcher)
    }

    /// Kills a launcher that does not end a role in time, and all that it started.
    pub(crate) fn give_up(&self, launcher: &LauncherProcess, role: &str) {
        launcher.kill(&match launcher.connected_at() {
            Some(_) => format!("it did not stop the {role} within {} s", self.times.end.as_secs()),
            None => format!("nothing waits for the {role} any more"),
        });
    }
}

impl Launcher for Cluster {
    fn start_learner(
        &self,
        config: &Config,
        key: Option<&str>,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Arc<dyn Launched>, Halt<LaunchError>> {
        let learner = &config.learner;
        let [heartbeat, startup, call] = [learner.heartbeat.0, learner.startup_timeout.0, learner.timeout.0]
            .map(|time| time.as_secs_f64().to_string());
        let mut argv =
            vec!["{python}", "-m", "tamis.learner", "--listen", "{listen}", "--heartbeat", &heartbeat];
        argv.extend(["--startup-timeout", &startup, "--call-timeout", &call]);
        if key.is_some() {
            argv.extend(["--api-key-file", "{key_file}"]);
        }
        let shares = config.cluster.colocate;
        let Value::Object(settings) = json!({
            "is_gang": true, "package": true, "argv": argv, "python": python(config), "key": key,
            "environment": {"OMP_WAIT_POLICY": std::env::var("OMP_WAIT_POLICY").unwrap_or("passive".to_owned())},
            "nodes": learner.nodes, "per_node": learner.gpus_per_node, "device": learner.device,
            "reserve": if shares { 0 } else { config.num_server_gpus() },
            "health": "/v1/health", "log": absolute(logs).join("learner.log"),
        }) else {
            unreachable!("an object")
        };
        let startup_timeout = learner.startup_timeout.0;
        let key = key.map(str::to_owned);
        let up = Up { role: "learner", count: 1, settings, startup_timeout, key, returns: false };
        Ok(Arc::new(self.up(config, up, logs, say, interrupt)?))
    }

    fn start_servers(
        &self,
        config: &Config,
        servers: ServersToStart<'_>,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Arc<dyn Launched>, Halt<LaunchError>> {
        let ServersToStart { launch, command, key } = servers;
        let mut environment: Map<String, Value> =
            command.environment.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        if config.rollout.backend == BackendKind::Vllm {
            // In the environment, because other users of the machine can read arguments.
            environment.insert("VLLM_API_KEY".to_owned(), json!(key));
        }
        let Value::Object(settings) = json!({
            "argv": command.words, "shown": command.to_string(), "environment": environment,
            "python": python(config), "per_node": launch.tensor_parallel,
            "share": config.cluster.colocate.then_some("learner"), "restarts": MOST_RESTARTS, "key": key,
            "silence": launch.lost_timeout.map(|time| time.0.as_secs_f64()),
            "log": absolute(logs).join("servers").join("server_{number}.log"),
        }) else {
            unreachable!("an object")
        };
        let (role, count, startup_timeout) = ("server", launch.replicas, launch.startup_timeout.0);
        // If the launcher also has the learner, both are started anew.
        let returns = config.learner.backend != LearnerBackend::Torch || config.learner.url.is_some();
        let up = Up { role, count, settings, startup_timeout, key: Some(key), returns };
        Ok(Arc::new(self.up(config, up, logs, say, interrupt)?))
    }

    fn server_key(&self) -> Result<String, Fault> {
        if let Some(key) = self.server_key.get() {
            return Ok(key.clone());
        }
        let drawn = random_key()?;
        Ok(self.server_key.get_or_init(|| drawn).clone())
    }

    fn plan(
        &self,
        config: &Config,
        input: PlanInput<'_>,
        interrupt: &Interrupt,
    ) -> Result<RunPlan, Halt<std::convert::Infallible>> {
        let models = RunModels::read(config, input.checkpoint, input.native, |model| Some(model.folder()));
        let short = models.policy.as_ref().map(|sizes| shortages(config, sizes, input.checkpoint));
        let Shortages { warnings, refusal } = short.unwrap_or_default();
        if !Plan::is_needed(config) {
            return Ok(RunPlan { warnings, refusal, ..RunPlan::default() });
        }
        let machines = match input.logs {
            None => {
                let device = config.learner.device.clone();
                interrupt.or_abandon(move || Machines::here(&device))?
            }
            Some(logs) => match self.look(config, logs, interrupt) {
                Ok(machines) if machines.is_empty() => {
                    Machines::Unknown("no node of the cluster has reported its machine".to_owned())
                }
                Ok(machines) => Machines::Known(machines),
                Err(Halt::Interrupted) => return Err(Halt::Interrupted),
                // A plan never ends a run: an error shows when something is started.
                Err(Halt::Failed(error)) => {
                    Machines::Unknown(format!("the machines of the cluster: {error}"))
                }
            },
        };
        let mut plan = Plan::new(config, &models, machines).for_run();
        plan.warnings.extend(warnings);
        plan.refusal = plan.refusal.or(refusal);
        Ok(plan)
    }
}

/// The interpreter for what a launcher starts. On other nodes the default is the one of Ray's workers.
fn python(config: &Config) -> String {
    let python = &config.learner.python;
    if config.cluster.launcher == LauncherKind::Ray && python == DEFAULT_INTERPRETER {
        return python.clone();
    }
    interpreter(python)
}

pub(crate) fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(all(test, unix))]
#[path = "tests.rs"]
mod tests;
