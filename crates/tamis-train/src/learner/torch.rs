//! The PyTorch learner and the reward models that a run starts, and the learner's settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, json};
use tamis_config::{LearnerConfig, LearnerDtype, LoraBase, MomentFormat};
use tamis_process::GuardedFolder;
use tamis_rollout::launch::{LaunchError, LaunchLimits, Launched, Say};
use tamis_rollout::reward_model::ModelProcess;

use crate::interrupt::{Halt, Interrupt};
use crate::learner::LearnerError;
use crate::python_program::ModuleProcess;

/// A process of the PyTorch learner or of a reward model; it ends with the value.
pub struct TorchProcess {
    launched: Arc<dyn Launched>,
    /// Program and socket of one that this process started.
    #[expect(dead_code, reason = "it is there to be dropped, after the process")]
    folder: Option<GuardedFolder>,
}

impl TorchProcess {
    /// Starts a learner, and waits until it takes connections. Its output goes to a file in `logs`, an
    /// existing folder. A temporary folder that only the user can read holds its program and its
    /// socket. If it does not come up, it is ended.
    pub fn start(
        config: &LearnerConfig,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LearnerError>> {
        let process = ModuleProcess {
            python: &config.python,
            module: "tamis.learner",
            what: "learner",
            settings: None,
            log: logs.join("learner.log"),
            // A restarted process has no open learner: the run itself handles its end.
            limits: LaunchLimits::once(config.startup_timeout.0),
        };
        Self::launch(&process, say, interrupt).map_err(|halt| halt.map(LearnerError::from))
    }

    /// A learner that a launcher started.
    pub fn through(launched: Arc<dyn Launched>) -> Self {
        Self { launched, folder: None }
    }

    /// Starts the process of a reward model, and waits until the model is loaded; `settings` are those
    /// of `python/tamis/reward`. If it ends it is restarted, up to a number of times.
    ///
    /// # Errors
    /// If it does not start, for instance because the model is refused. It is then ended.
    pub fn start_reward_model(
        python: &str,
        settings: &serde_json::Value,
        log: PathBuf,
        limits: LaunchLimits,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LaunchError>> {
        let (module, what, settings) = ("tamis.reward", "reward model", Some(settings));
        let process = ModuleProcess { python, module, what, settings, log, limits };
        Self::launch(&process, say, interrupt)
    }

    fn launch(
        process: &ModuleProcess<'_>,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LaunchError>> {
        let (launched, folder) = process.launch(say, interrupt)?;
        Ok(Self { launched: Arc::new(launched), folder: Some(folder) })
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.launched.addresses().into_iter().next().unwrap_or_default()
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.launched.ended()
    }

    /// Its end, if it is lost, in its launcher's words. The report may come a moment after the loss is
    /// noticed.
    pub fn find_end(&self) -> Option<String> {
        self.launched.find_end()
    }
}

impl ModelProcess for TorchProcess {
    fn ended(&self) -> Option<String> {
        self.launched.ended()
    }
}

/// The settings of a configuration that only PyTorch has, in the learner's form.
pub fn options(config: &LearnerConfig, threads: usize, seed: u64) -> Map<String, serde_json::Value> {
    let dtype = match config.dtype {
        LearnerDtype::Auto => "auto",
        LearnerDtype::F32 => "f32",
        LearnerDtype::Bf16 => "bf16",
    };
    let mut options = Map::from_iter([
        ("device".to_owned(), json!(config.device)),
        ("dtype".to_owned(), json!(dtype)),
        ("attention".to_owned(), json!(config.attention)),
        ("threads".to_owned(), json!(threads)),
        ("offload_reference".to_owned(), json!(config.offload_reference)),
    ]);
    if config.continuous_batching {
        options.insert("continuous_batching".to_owned(), json!(true));
    }
    if config.moments == MomentFormat::EightBits {
        options.insert("moments".to_owned(), json!("8bit"));
    }
    if config.offload_moments {
        options.insert("offload_moments".to_owned(), json!(true));
    }
    if config.exact {
        options.insert("exact".to_owned(), json!(true));
    }
    if config.freeze_vision {
        options.insert("freeze_vision".to_owned(), json!(true));
    }
    options.extend(config.logprob_chunk.map(|tokens| ("logprob_chunk".to_owned(), json!(tokens))));
    if let Some(lora) = &config.lora {
        let mut adapter = Map::from_iter([
            ("rank".to_owned(), json!(lora.rank)),
            ("alpha".to_owned(), json!(lora.alpha)),
            // A number of 53 bits is the same in every language.
            ("seed".to_owned(), json!(seed & ((1 << 53) - 1))),
        ]);
        adapter.extend(lora.targets.as_ref().map(|targets| ("targets".to_owned(), json!(targets))));
        if lora.base == LoraBase::Nf4 {
            adapter.insert("base".to_owned(), json!("nf4"));
        }
        options.insert("lora".to_owned(), adapter.into());
    }
    options
}
