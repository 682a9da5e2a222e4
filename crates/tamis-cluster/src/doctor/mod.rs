//! `tamis doctor` reports what is here (machine, GPUs, Python environments, servers, Ray, disks), what can
//! run with it, and what a configuration still lacks.
//!
//! `machine`, `python` and `network` inspect. `ways` lists what each way of running lacks, and `needs` what
//! one configuration lacks. Nothing is changed, loaded or left running.

mod machine;
mod needs;
mod network;
mod python;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tamis_config::locate::Locate;
use tamis_config::{Config, LauncherKind, LearnerBackend};
use tamis_process::interpreter;
use tamis_train::interrupt::{Halt, Interrupt, Interrupted};

use crate::plan::machines::{Machine, find_gpus};
pub use python::Interpreter;
use python::{find_program, interpreter_of};

/// What a finding means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Good,
    /// Something to know.
    Note,
    /// Something is wrong or missing.
    Bad,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it means.
    pub state: State,
    /// A sentence.
    pub text: String,
    /// The fix, if there is one.
    pub hint: Option<String>,
}

/// What a run lacks on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// What is missing, and the fix.
    pub finding: Finding,
    /// The keys that need it.
    pub keys: [&'static str; 2],
}

/// Findings about one topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topic {
    /// The topic.
    pub title: String,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// A way of running, and what it lacks here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Way {
    /// What runs.
    pub name: &'static str,
    /// The keys that select it.
    pub keys: &'static str,
    /// What it lacks; empty if it can run.
    pub missing: Vec<String>,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What is there.
    pub sections: Vec<Topic>,
    /// What could run.
    pub ways: Vec<Way>,
    /// What a configuration needs, if one was given.
    pub needs: Option<Topic>,
}

impl Finding {
    fn good(text: String) -> Self {
        Self { state: State::Good, text, hint: None }
    }

    fn note(text: String) -> Self {
        Self { state: State::Note, text, hint: None }
    }

    fn bad(text: String, hint: &str) -> Self {
        Self { state: State::Bad, text, hint: Some(hint.to_owned()) }
    }
}

impl Topic {
    fn new(title: &str, findings: Vec<Finding>) -> Self {
        Self { title: title.to_owned(), findings }
    }
}

impl Report {
    /// Inspects this machine, and what a configuration needs.
    ///
    /// # Errors
    /// Only [`Halt::Interrupted`]: what cannot be determined is a finding.
    pub fn make(
        config: Option<&Config>,
        hub: Arc<dyn Locate>,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<std::convert::Infallible>> {
        let defaults = Config::default();
        let read = config.unwrap_or(&defaults);
        let run_dir = read.run.dir.clone();
        let (mut of_machine, here) = interrupt.or_abandon(move || machine::examine(&run_dir))?;
        of_machine.findings.extend(interrupt.or_abandon(network::ports)?);
        let named = interpreter(&read.learner.python);
        let python = {
            let named = named.clone();
            interrupt.or_abandon(move || Interpreter::ask(&named))?
        };
        let mut of_python = vec![match &python {
            Ok(found) => Finding::good(format!("learner.python: {}", found.describe())),
            Err(error) => Finding::bad(
                format!("learner.python: {error}"),
                "install Python 3.11 or newer, or name an interpreter (`tamis doctor learner.python=...`)",
            ),
        }];
        let servers = interrupt.or_abandon(|| {
            ["vllm", "sglang"].map(|name| {
                find_program(name).map(|path| {
                    let python = interpreter_of(&path).map(|python| Interpreter::ask(&python));
                    (path, python.and_then(Result::ok))
                })
            })
        })?;
        for (path, found) in servers.iter().flatten() {
            let with = found.as_ref().map_or_else(
                || "whose interpreter does not answer".to_owned(),
                |found| format!("of {}", found.describe()),
            );
            of_python.push(Finding::good(format!("{}, {with}", path.display())));
        }
        let vllm = servers[0].as_ref().and_then(|(_, found)| found.clone());
        // SGLang is started as a module.
        let has_sglang = interrupt.or_abandon(|| {
            find_program("python3")
                .and_then(|python| Interpreter::ask(&python.to_string_lossy()).ok())
                .is_some_and(|found| found.packages.contains_key("sglang"))
        })?;
        let ways = ways(&here, python.as_ref().ok(), servers[0].is_some(), has_sglang);
        let needs = match config {
            None => None,
            Some(config) => {
                let there = needs::There {
                    here: here.clone(),
                    python: python.as_ref().ok().cloned(),
                    named,
                    vllm,
                    hub,
                };
                let (config, asked) = (config.clone(), interrupt.clone());
                Some(interrupt.or_abandon(move || needs::examine(&config, &there, &asked))?)
            }
        };
        Ok(Self { sections: vec![of_machine, Topic::new("Python", of_python)], ways, needs })
    }

    /// Whether the given configuration lacks something.
    pub fn lacks(&self) -> bool {
        self.needs.iter().flat_map(|section| &section.findings).any(|finding| finding.state == State::Bad)
    }
}

/// What a run of this configuration would lack on this machine before its first step: packages of its
/// learner, programs of its servers. Nodes of Ray are not looked at.
///
/// # Errors
/// Ctrl-C.
pub fn missing(
    config: &Config,
    hub: Arc<dyn Locate>,
    interrupt: &Interrupt,
) -> Result<Vec<Lack>, Interrupted> {
    let starts = config.learner.backend == LearnerBackend::Torch && config.learner.url.is_none();
    if config.cluster.launcher == LauncherKind::Ray || !(starts || config.launches_servers()) {
        return Ok(Vec::new());
    }
    let config = config.clone();
    let find = move || {
        let named = interpreter(&config.learner.python);
        let python = Interpreter::ask(&named).ok();
        let here = Machine { gpus: find_gpus().unwrap_or_default(), ..Machine::here() };
        needs::missing(&config, &needs::There { here, python, named, vllm: None, hub })
    };
    interrupt.or_abandon(find)
}

/// Packages of a learner in PyTorch.
const LEARNER: [&str; 3] = ["torch", "transformers", "safetensors"];

/// Whether each way of running has what it needs, as far as that can be seen from outside.
fn ways(here: &Machine, python: Option<&Interpreter>, has_vllm: bool, has_sglang: bool) -> Vec<Way> {
    let lacks = |names: &[&str]| match python {
        Some(python) => python.lacks(names),
        None => vec!["a Python interpreter (`learner.python`)".to_owned()],
    };
    let sees = python.and_then(|python| python.torch.as_ref()).map_or(0, |torch| torch.devices.len());
    let gpus = |wanted: usize| {
        let mut missing = lacks(&LEARNER);
        if here.gpus.len() < wanted {
            missing.push(if wanted == 1 {
                "an NVIDIA GPU with its driver".to_owned()
            } else {
                format!("{wanted} GPUs")
            });
        } else if sees < wanted && missing.is_empty() {
            missing.push(
                "a PyTorch that can use the GPUs: one built for the CUDA of the driver or an older one \
                 (`TORCH_CUDA=1 scripts/install-torch`)"
                    .to_owned(),
            );
        }
        missing
    };
    let program = |is_there: bool, what: &str| if is_there { Vec::new() } else { vec![what.to_owned()] };
    let way = |name, keys, missing| Way { name, keys, missing };
    vec![
        way("the native engine", "learner.backend: native", Vec::new()),
        way("learning in PyTorch on the CPU", "learner.backend: torch, learner.device: cpu", lacks(&LEARNER)),
        way("learning in PyTorch on a GPU", "learner.backend: torch", gpus(1)),
        way("several GPUs of this machine", "cluster.launcher: local", gpus(2)),
        way(
            "a Ray cluster",
            "cluster.launcher: ray",
            lacks(&["torch", "transformers", "safetensors", "ray"]),
        ),
        way("an adapter (LoRA)", "learner.lora", lacks(&["torch", "transformers", "safetensors", "peft"])),
        way(
            "an adapter over 4-bit weights",
            "learner.lora.base: nf4",
            lacks(&["torch", "transformers", "safetensors", "peft", "bitsandbytes"]),
        ),
        way(
            "models that see images",
            "data.columns.images",
            lacks(&["torch", "transformers", "safetensors", "pillow"]),
        ),
        way("continuous batching in the learner", "learner.continuous_batching: true", {
            let mut missing = gpus(1);
            missing.extend(lacks(&["flash-attn"]).into_iter().filter(|what| what == "flash-attn"));
            missing
        }),
        way("vLLM servers that the run starts", "rollout.backend: vllm, rollout.launch", {
            program(has_vllm, "the program `vllm` on PATH (`pip install vllm` in an environment of its own)")
        }),
        way("SGLang servers that the run starts", "rollout.backend: sglang, rollout.launch", {
            program(has_sglang, "sglang in the `python3` of PATH (or rollout.launch.command)")
        }),
    ]
}

impl fmt::Display for Topic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.title)?;
        for Finding { state, text, hint } in &self.findings {
            let mark = match state {
                State::Good => "ok",
                State::Note => "--",
                State::Bad => "!!",
            };
            writeln!(formatter, "  {mark}  {text}")?;
            if let Some(hint) = hint {
                writeln!(formatter, "      hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(formatter, "{section}")?;
        }
        writeln!(formatter, "what can run here")?;
        let widest = self.ways.iter().map(|way| way.name.len()).max().unwrap_or(0);
        for Way { name, keys, missing } in &self.ways {
            if missing.is_empty() {
                writeln!(formatter, "  ok  {name:widest$}  {keys}")?;
            } else {
                writeln!(formatter, "  --  {name:widest$}  missing: {}", missing.join(", "))?;
            }
        }
        if let Some(needs) = &self.needs {
            write!(formatter, "\n{needs}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
