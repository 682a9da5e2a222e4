//! Servers as what a run samples with: the fleet that its configuration names, and the weights that are published to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tamis_config::{BackendKind, Config};
use tamis_core::objective::PolicyLoss;
use tamis_model::SaveDtype;
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::{Fleet, FleetSettings};
use tamis_rollout::http::{Address, HttpClient, HttpError, HttpSettings};
use tamis_rollout::server::{
    OtherLogprobs, Probe, Protocol as _, Server, ServerSettings, Sglang, SglangServer, Vllm, VllmServer,
};
use tamis_rollout::wire::FaultClass;
use tamis_rollout::{Beginning, Generator, Journalled, Publication, Weights};

use crate::assemble::{AssembleError, objective};
use crate::checkpoint;
use crate::durable::Disk;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::{Learner, LearnerSequence};
use crate::native::{NativeEngine, NativeGenerator};
use crate::progress::Progress;
use crate::run::{RunError, sampling};
use crate::samples::RecordedSamples;

/// Tokens of the text by which a server shows that it holds the published weights.
const PROBE_TOKENS: usize = 24;

/// Mean difference of log-probabilities, in nats, that a server of another precision may make on it.
const PROBE_TOLERANCE: f64 = 0.1;

/// Published weights that stay on disk: what servers hold, and what they held before.
const KEPT: u64 = 2;

/// What a run samples with.
pub(crate) enum Sampler {
    /// The engine that learns.
    Native(Box<NativeGenerator>),
    /// Servers.
    Servers {
        /// Their fleet, with a memory.
        generator: Box<Journalled<Fleet>>,
        /// Faults that the metrics have counted.
        told: BTreeMap<FaultClass, u64>,
    },
}

impl Sampler {
    /// As the dispatcher drives it.
    pub(crate) fn generator(&mut self) -> &mut dyn Generator {
        match self {
            Self::Native(generator) => &mut **generator,
            Self::Servers { generator, .. } => &mut **generator,
        }
    }

    /// From now on what comes belongs to this step.
    pub(crate) fn begin_step(&mut self, step: u64) {
        if let Self::Servers { generator, .. } = self {
            generator.set_step(step);
        }
    }

    /// Forgets samples of steps before `next`; from where on the journal holds the others, `None` where there is none.
    pub(crate) fn settle_journal(&mut self, next: u64) -> Option<u64> {
        match self {
            Self::Native(_) => None,
            Self::Servers { generator, .. } => Some(generator.settle(next)),
        }
    }

    /// Attempts at samples that went wrong at servers since the last call, by what went wrong.
    pub(crate) fn take_faults(&mut self) -> Vec<(&'static str, u64)> {
        let Self::Servers { generator, told } = self else { return Vec::new() };
        let counts = &generator.generator().fault_counts().samples;
        let new = counts.iter().map(|(class, &count)| {
            let before = told.insert(*class, count).unwrap_or(0);
            (class.name(), count - before)
        });
        new.filter(|(_, count)| *count > 0).collect()
    }
}

/// Whether the learner may say what a server does not say as we would: log-probabilities of the tokens that it sampled. Not where what the sampler
/// says is itself trained on, or weighed against the learner's.
pub(crate) fn recomputes_logprobs(config: &Config) -> Result<bool, AssembleError> {
    let (objective, _) = objective::objective(config)?;
    let is_read =
        matches!(objective.policy, PolicyLoss::Decoupled(_)) || objective::correction(config)?.is_some();
    Ok(config.rollout.backend != BackendKind::Native && !is_read)
}

/// Connects to the servers of a configuration, in the name of one start of the run.
///
/// # Errors
/// Where an address or a parameter is wrong, and [`RunError::Servers`] where none answers.
pub(crate) fn connect(
    config: &Config,
    engine: &NativeEngine,
    samples: RecordedSamples,
    at: Beginning,
    interrupt: &Interrupt,
    ui: &Progress,
) -> Result<Sampler, RunError> {
    let rollout = &config.rollout;
    let recomputes = recomputes_logprobs(config)?;
    let extra = &rollout.server_parameters.0;
    let check = match rollout.backend {
        BackendKind::Sglang => Sglang::check,
        _ => Vllm::check,
    };
    check(&sampling(config), extra).map_err(|error| {
        AssembleError::setting(format!("rollout.backend: {error}"), "change the setting that it names")
    })?;
    let key = rollout.api_key_file.as_deref().map(|path| {
        let read = tamis_file::read_text(path, 1 << 16);
        read.map(|key| key.trim().to_owned()).map_err(|error| {
            let problem = format!("rollout.api_key_file: failed to read {}: {error}", path.display());
            AssembleError::setting(problem, "name a file that holds the key and nothing else")
        })
    });
    let key = key.transpose()?;
    let refused = |error: HttpError| {
        AssembleError::setting(format!("rollout.servers: {error}"), "correct it and start again")
    };
    let addresses: Vec<Address> =
        rollout.servers.iter().map(|url| Address::parse(url)).collect::<Result<_, _>>().map_err(refused)?;
    let encrypted = addresses.iter().any(Address::is_encrypted);
    let mut client = HttpClient::start(HttpSettings::default(), encrypted).map_err(refused)?;
    let bell = Bell::default();
    let tokenizer = engine.codec().tokenizer();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nonce = format!("{:x}-{:x}", since.as_nanos(), std::process::id());
    let mut servers: Vec<Box<dyn Server>> = Vec::new();
    for (url, address) in rollout.servers.iter().zip(addresses) {
        let line = client.line(address, key.as_deref(), bell.clone()).map_err(refused)?;
        let settings = Arc::new(ServerSettings {
            name: url.clone(),
            model: rollout.server_model.clone(),
            vocabulary: engine.model().config().vocab_size,
            end_token_ids: engine.codec().end_token_ids().to_vec(),
            extra: extra.clone(),
            answer_timeout: rollout.server_timeout,
            check_timeout: rollout.server_startup_timeout,
            publish_timeout: rollout.server_timeout,
            nonce: nonce.clone(),
            seeds: true,
            stream: false,
            logprobs_of: None,
            other_logprobs: if recomputes { OtherLogprobs::Recompute } else { OtherLogprobs::Refuse },
        });
        servers.push(match rollout.backend {
            BackendKind::Sglang => Box::new(SglangServer::new(Box::new(line), settings, tokenizer.clone())),
            _ => Box::new(VllmServer::new(Box::new(line), settings, tokenizer.clone())),
        });
    }
    let settings =
        FleetSettings { start_timeout: rollout.server_startup_timeout, ..FleetSettings::default() };
    let say = {
        let ui = ui.clone();
        Box::new(move |message: tamis_rollout::fleet::FleetMessage| ui.warn(&message.to_string()))
    };
    let fleet = Fleet::connect(servers, settings, Box::new(SystemClock), bell, interrupt.flag(), say)?;
    if let Some((server, other)) = fleet.other_logprobs(&sampling(config)).into_iter().next() {
        if !recomputes {
            let hint = "turn that off, start vLLM with the --logprobs-mode that fits (raw_logprobs at temperature 1, processed_logprobs without \
                        truncation), or leave objective.correction and the decoupled loss out: the learner then computes them again";
            return Err(AssembleError::setting(format!("rollout.servers: {server}: {other}"), hint).into());
        }
        ui.say(&format!("{server}: {other}: the learner computes them again"));
    }
    let generator = Box::new(Journalled::new(fleet, Box::new(samples), at));
    Ok(Sampler::Servers { generator, told: BTreeMap::new() })
}

/// The folders of weights that servers read.
#[derive(Debug, Clone)]
pub(crate) struct PublishedFolders {
    disk: Disk,
    /// Absolute, for servers have working directories of their own.
    root: PathBuf,
}

impl PublishedFolders {
    /// In a run directory.
    pub(crate) fn of(disk: &Disk, run: &std::path::Path) -> Self {
        let run = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
        Self { disk: disk.clone(), root: run.join("published") }
    }

    fn folder(&self, version: u64) -> PathBuf {
        self.root.join(format!("version_{version}"))
    }

    /// Writes the weights as they are, whole, under their version: with a head of their own, which every server reloads, and a text by which
    /// the server shows that it did. Older ones but the one before go.
    pub(crate) fn write(&self, engine: &mut NativeEngine) -> Result<Publication, Halt<RunError>> {
        let version = engine.version();
        let folder = self.folder(version.0);
        let untied = engine.model().untied();
        let written = || -> Result<(), RunError> {
            self.disk.create_folder(&self.root)?;
            self.disk.remove_folder(&folder)?;
            checkpoint::write_folder(
                &self.disk,
                &folder,
                &untied,
                Some(engine.codec().tokenizer()),
                SaveDtype::F32,
            )?;
            if let Some(old) = version.0.checked_sub(KEPT) {
                self.disk.remove_folder(&self.folder(old))?;
            }
            Ok(())
        };
        written().map_err(Halt::Failed)?;
        let vocabulary = engine.model().config().vocab_size;
        let token_ids: Vec<u32> =
            (0..PROBE_TOKENS).map(|place| (place * vocabulary / PROBE_TOKENS) as u32).collect();
        let sequence = LearnerSequence { prompt: &token_ids[..1], completion: &token_ids[1..] };
        // At temperature 1, whatever that of the rollouts is.
        let temperature = engine.temperature();
        let scores =
            engine.policy_scores(&[sequence], temperature).map_err(|halt| halt.map(RunError::from))?;
        let logprobs = scores.logprobs.iter().map(|&logprob| f64::from(logprob)).collect();
        let probe = Probe { token_ids, logprobs, tolerance: PROBE_TOLERANCE };
        probe
            .write(&folder)
            .map_err(|error| Halt::Failed(RunError::Publish { reason: error.to_string() }))?;
        Ok(Publication { version, weights: Weights::Folder(folder) })
    }
}
