//! Weights as folders: what a run publishes, the paths that servers read, and how long a folder stays.

use std::path::{Path, PathBuf};

use tamis_config::{Config, Intake, PublishVerify};
use tamis_core::group::PolicyVersion;
use tamis_rollout::server::{PROBE_FILE, Probe};
use tamis_rollout::{Publication, Weights};

use crate::checkpoint::{self, SummedFolder};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::{LearnerInfo, LearnerSequence, Network, Pass, RunLearner, SaveContent, Wave};
use crate::prompts::codec::Codec;
use tamis_run::checksum::crc32;
use tamis_run::durable::Disk;

/// Tokens of the text by which a server shows that it holds the published weights.
const PROBE_TOKENS: usize = 24;

/// Mean difference of log-probabilities, in nats, that a server of another precision may make on it.
const PROBE_TOLERANCE: f64 = 0.1;

/// Name of a run's folder among those of other runs: made of its name and its path.
fn shared_name(run: &Path) -> String {
    let name = run.file_name().unwrap_or(run.as_os_str()).to_string_lossy();
    // A folder's name has at most 255 bytes.
    let end = (0..=name.len().min(240)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    format!("{}-{:08x}", &name[..end], crc32(run.as_os_str().as_encoded_bytes()))
}

/// The folders of weights for servers, or for the native engine if the learner is elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct PublishedFolders {
    pub(super) disk: Disk,
    pub(super) run: PathBuf,
    /// Absolute, because servers have working directories of their own.
    root: PathBuf,
    /// A folder that is or contains `root`, and its path at the servers, if that differs.
    pub(super) seen_as: Option<(PathBuf, String)>,
    /// Number of versions kept on disk: the one that servers hold, and those before.
    keep: u64,
    /// Whether they are for servers, which reload an untied head.
    are_for_servers: bool,
    /// The form of weights that servers take.
    pub(super) intake: Intake,
    /// The model that the run began with, which servers put adapters onto.
    base: Option<PathBuf>,
    /// Whether servers show that they hold the weights.
    has_probe: bool,
    /// The temperature of the learner's log-probabilities.
    temperature: f64,
}

impl PublishedFolders {
    /// The folders for a run's published weights.
    pub(crate) fn of(disk: &Disk, run: &Path, config: &Config) -> Self {
        let publish = &config.publish;
        let are_for_servers = config.samples_at_servers();
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let run = absolute(run);
        let (shared, root) = match &publish.dir {
            Some(dir) => {
                let dir = absolute(dir);
                // Several runs may share it, even runs of one name.
                (dir.clone(), dir.join(shared_name(&run)))
            }
            None => (run.join("published"), run.join("published")),
        };
        Self {
            disk: disk.clone(),
            run,
            root,
            seen_as: publish.server_dir.clone().map(|there| (shared, there)),
            keep: publish.keep as u64,
            are_for_servers,
            intake: if are_for_servers { config.intake() } else { Intake::Folders },
            base: config.model.path.as_ref().map(|model| absolute(&model.folder())),
            has_probe: are_for_servers && publish.verify == PublishVerify::Probe,
            temperature: config.rollout.temperature,
        }
    }

    /// The same for whole weights, whatever the run's servers take.
    pub(super) fn of_whole_weights(self) -> Self {
        Self { intake: Intake::Folders, ..self }
    }

    fn folder(&self, version: u64) -> PathBuf {
        self.root.join(format!("version_{version}"))
    }

    fn write_weights(
        &self,
        learner: &mut dyn RunLearner,
        codec: &Codec,
        folder: &Path,
        content: SaveContent,
        probe: Option<&Probe>,
    ) -> Result<(), RunError> {
        self.disk.create_folder(&self.root)?;
        self.disk.remove_folder(folder)?;
        // Content that is not a complete model needs no tokenizer.
        let tokenizer = matches!(content, SaveContent::Weights { .. }).then(|| codec.tokenizer());
        checkpoint::write_folder(&self.disk, folder, tokenizer, |folder| {
            let mut out = SummedFolder::with(&self.disk, folder, learner.save(folder, content)?.files);
            if let Some(probe) = probe {
                out.file(PROBE_FILE, |file| file.write_all(&probe.to_json()))?;
            }
            Ok(out.into_files())
        })
    }

    /// Log-probabilities of a text under the present weights.
    fn probe(&self, learner: &mut dyn RunLearner) -> Pass<Probe> {
        let vocabulary = learner.info().policy.vocab_size;
        let token_ids: Vec<u32> =
            (0..PROBE_TOKENS).map(|place| (place * vocabulary / PROBE_TOKENS) as u32).collect();
        let sequence = LearnerSequence::of_text(&token_ids[..1], &token_ids[1..]);
        // At temperature 1, whatever the temperature of the rollouts.
        let scores = learner.forward(Network::Policy, &Wave::of(&[sequence]), self.temperature)?;
        let logprobs = scores.logprobs.iter().map(|&logprob| f64::from(logprob)).collect();
        let is_rounded = learner.info().is_rounded();
        Ok(Probe { token_ids, logprobs, tolerance: PROBE_TOLERANCE, is_rounded })
    }

    fn whole(&self, info: &LearnerInfo) -> SaveContent {
        SaveContent::Weights { untied: self.are_for_servers, dtype: info.published_dtype() }
    }

    /// The published content: what the learner writes, and its form for servers.
    fn content(&self, info: &LearnerInfo) -> (SaveContent, fn(PathBuf) -> Weights) {
        match self.intake {
            Intake::Folders => (self.whole(info), Weights::Folder),
            Intake::Adapters(_) => (SaveContent::Adapter, Weights::Adapter),
            Intake::Transfer => {
                let content = SaveContent::Transfer { untied: true, dtype: info.published_dtype() };
                (content, Weights::Transfer)
            }
            Intake::GpuMemory => (SaveContent::Handles { untied: true }, Weights::Handles),
        }
    }

    pub(super) fn start(&self) -> PathBuf {
        self.root.join("start")
    }

    /// Writes the weights that servers of the run are started with. They are kept, for a server that
    /// has to be restarted. If adapters are published, their base weights are already on the disk.
    pub(super) fn write_start(
        &self,
        learner: &mut dyn RunLearner,
        codec: &Codec,
    ) -> Result<PathBuf, RunError> {
        if let (Intake::Adapters(_), Some(base)) = (self.intake, &self.base) {
            return Ok(base.clone());
        }
        let folder = self.start();
        let content = self.whole(learner.info());
        self.write_weights(learner, codec, &folder, content, None)?;
        Ok(folder)
    }

    pub(crate) fn remove(&self) -> Result<(), RunError> {
        Ok(self.disk.remove_folder(&self.root)?)
    }

    /// Writes the present weights, whole, under their version. They include a separate head, which
    /// every server reloads, and a probe text by which the server proves that it did. Older ones are
    /// removed.
    pub(crate) fn write(
        &self,
        learner: &mut dyn RunLearner,
        codec: &Codec,
        version: PolicyVersion,
    ) -> Result<Publication, Halt<RunError>> {
        let folder = self.folder(version.0);
        let (content, weights) = self.content(learner.info());
        let probe = if self.has_probe {
            Some(self.probe(learner).map_err(|halt| halt.map(RunError::from))?)
        } else {
            None
        };
        self.write_weights(learner, codec, &folder, content, probe.as_ref())?;
        if let Some(old) = version.0.checked_sub(self.keep) {
            self.disk.remove_folder(&self.folder(old))?;
        }
        Ok(Publication { version, weights: weights(folder) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_weights_lie_where_servers_look() {
        let publish_of = |run: &str, dir: Option<&str>, server_dir: Option<&str>| {
            let mut config = Config::default();
            config.publish.dir = dir.map(PathBuf::from);
            config.publish.server_dir = server_dir.map(str::to_owned);
            let folders = PublishedFolders::of(&Disk::new(), Path::new(run), &config);
            (folders.folder(3), folders.seen_as)
        };
        let publish = |dir, server_dir| publish_of("/runs/mine", dir, server_dir);
        assert_eq!(publish(None, None), (PathBuf::from("/runs/mine/published/version_3"), None));
        let seen = Some((PathBuf::from("/shared"), "/mnt".to_owned()));
        let shared = PathBuf::from(format!("/shared/mine-{:08x}/version_3", crc32(b"/runs/mine")));
        assert_eq!(publish(Some("/shared"), Some("/mnt")), (shared.clone(), seen));
        // A run of the same name elsewhere has another folder.
        assert_ne!(publish_of("/other/mine", Some("/shared"), None).0, shared);
        let long = publish_of(&format!("/runs/{}", "é".repeat(127)), Some("/shared"), None).0;
        assert!(long.iter().all(|part| part.len() <= 255), "{}", long.display());
        let seen = Some((PathBuf::from("/runs/mine/published"), "/mnt".to_owned()));
        assert_eq!(publish(None, Some("/mnt")), (PathBuf::from("/runs/mine/published/version_3"), seen));
    }
}
