//! Turns names on a hub into files on this machine, and adds the present commits to the names.
//!
//! What a purpose does not read is skipped, so nothing is downloaded in vain. The configuration is written
//! down with the commits. So a resume, or a new run of the same file, reads the same files even if the hub
//! has changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::locate::{Extent, Locate, LocateError, LocateFailure, WantedSplit};
use tamis_config::{Config, DataSource, DataSources, HubName, ModelSource};
use tamis_core::setting::ModelPlace;
use thiserror::Error;

use super::check_purpose::CheckPurpose;
use super::objective::{Divergence, objective};

/// Splits for training data without one: the first that exists is used.
const TRAIN: [&str; 1] = ["train"];
/// Splits for validation data without one.
const VALIDATION: [&str; 2] = ["validation", "test"];

/// A name cannot be followed.
#[derive(Debug, Error)]
#[error("`{key}`: {}", self.message())]
pub struct FollowError {
    /// The key that has it.
    pub key: String,
    /// The path that it would be if it is no name; nothing exists there.
    pub not_at: Option<PathBuf>,
    /// The reason.
    pub reason: LocateError,
}

impl FollowError {
    /// What is wrong, without the key.
    pub fn message(&self) -> String {
        let path = self.not_at.as_ref().filter(|_| self.reason.may_be_path);
        let path = path.map_or_else(String::new, |path| format!("; and nothing is at {}", path.display()));
        format!("{}{path}", self.reason)
    }

    /// The fix. A similar path comes before what the hub's reason suggests.
    pub fn hint(&self) -> Option<String> {
        let near = self.not_at.as_deref().and_then(tamis_file::suggest);
        near.or_else(|| self.reason.hint.clone())
    }
}

/// Names of one hub.
#[derive(Debug)]
pub struct Names {
    hub: Arc<dyn Locate>,
    extent: Extent,
    notes: Vec<String>,
}

impl Names {
    /// Names of this hub, none followed so far.
    pub fn new(hub: Arc<dyn Locate>, extent: Extent) -> Self {
        Self { hub, extent, notes: Vec::new() }
    }

    /// Follows every name that is read for this purpose. Returns a line for each.
    ///
    /// # Errors
    /// The first name that cannot be followed. If names are only looked up and the hub does not answer, this
    /// is no error: the name's line reports it.
    pub fn follow(
        mut self,
        config: &mut Config,
        purpose: CheckPurpose<'_>,
    ) -> Result<Vec<String>, FollowError> {
        let (trains, reads_model) = (purpose != CheckPurpose::Evaluate, purpose.reads_model());
        let has_reference = trains && objective(config).is_ok_and(|(_, kind)| kind != Divergence::None);
        let has_critic = trains && reads_model && config.has_critic();
        for (key, model, is_read) in [
            ("model.path", &mut config.model.path, reads_model),
            ("model.reference", &mut config.model.reference, has_reference),
            ("critic.model.path", &mut config.critic.model.path, has_critic),
        ] {
            if let Some(model) = model.as_mut().filter(|_| is_read) {
                self.model(key, model)?;
            }
        }
        let is_taught = trains && config.distillation().is_some();
        for (index, teacher) in config.teacher.iter_mut().enumerate().filter(|_| is_taught) {
            // Of one at servers only the tokenizer is read, from a folder.
            if let Some(model) = teacher.path.as_mut().filter(|_| teacher.servers.is_empty()) {
                self.model(&format!("teacher[{index}].path"), model)?;
            }
        }
        for (index, reward) in config.reward.iter_mut().enumerate() {
            for (key, place) in reward.kind.models() {
                self.reward_model(&format!("reward[{index}].{key}"), place)?;
            }
        }
        for (key, sources, usual) in [
            ("sft.data", &mut config.sft.data, &TRAIN[..]),
            ("sft.val", &mut config.sft.val, &VALIDATION[..]),
        ] {
            self.sources(key, sources, usual, reads_model && trains)?;
        }
        let task = config.data.task;
        if task.is_some_and(|task| !task.reads_files()) {
            return Ok(self.notes);
        }
        let reads_train = purpose.reads_train(config) || task.is_some();
        for (key, sources, usual, is_read) in [
            ("data.train", &mut config.data.train, &TRAIN[..], reads_train),
            ("data.val", &mut config.data.val, &VALIDATION[..], true),
        ] {
            self.sources(key, sources, usual, is_read)?;
        }
        Ok(self.notes)
    }

    fn sources(
        &mut self,
        key: &str,
        sources: &mut DataSources,
        usual: &[&str],
        is_read: bool,
    ) -> Result<(), FollowError> {
        let several = sources.0.len() > 1;
        for (index, source) in sources.0.iter_mut().enumerate().filter(|_| is_read) {
            let key = if several { format!("{key}[{index}]") } else { key.to_owned() };
            self.data(&key, source, usual)?;
        }
        Ok(())
    }

    /// Follows the name of a model.
    ///
    /// # Errors
    /// As [`Names::follow`].
    pub fn model(&mut self, key: &str, model: &mut ModelSource) -> Result<(), FollowError> {
        let ModelSource::Hub { name, not_at, folder } = model else { return Ok(()) };
        let found = self.hub.model(&name.id, name.revision.as_deref(), self.extent);
        let Some(found) = self.answer(key, not_at.as_deref(), found)? else { return Ok(()) };
        name.revision = Some(found.commit);
        *folder = found.folder;
        let place = folder.as_ref().map(|folder| folder.display().to_string());
        self.note(key, &name.to_string(), place.as_deref());
        Ok(())
    }

    /// The folder with the `config.json` of a model that is not on this machine, or the model's own folder if
    /// it is. `None` if the hub does not answer.
    pub fn configuration(&self, model: &ModelSource) -> Option<PathBuf> {
        match model {
            ModelSource::Hub { name, folder: None, .. } => {
                self.hub.model_configuration(&name.id, name.revision.as_deref()).ok()
            }
            model => Some(model.folder()),
        }
    }

    fn reward_model(&mut self, key: &str, place: &mut ModelPlace) -> Result<(), FollowError> {
        let text = place.named.to_string_lossy();
        let Some(name) = HubName::parse(&text).filter(|_| HubName::is_marked(&place.named)) else {
            return Ok(());
        };
        let mut model = ModelSource::Hub { name, not_at: None, folder: None };
        self.model(key, &mut model)?;
        if let ModelSource::Hub { name, folder, .. } = model {
            *place = ModelPlace { named: name.to_string().into(), folder };
        }
        Ok(())
    }

    fn data(&mut self, key: &str, source: &mut DataSource, usual: &[&str]) -> Result<(), FollowError> {
        let DataSource::Hub { name, not_at, files } = source else { return Ok(()) };
        let wanted = WantedSplit {
            configuration: name.configuration.as_deref(),
            split: name.split.as_deref(),
            or: usual,
        };
        let repository = &name.repository;
        let found = self.hub.split(&repository.id, repository.revision.as_deref(), wanted, self.extent);
        let Some(found) = self.answer(key, not_at.as_deref(), found)? else { return Ok(()) };
        name.repository.revision = Some(found.commit);
        name.configuration = Some(found.configuration);
        name.split = Some(found.split);
        *files = found.files;
        let place = match files.as_deref() {
            Some([only]) => Some(only.display().to_string()),
            Some([first, others @ ..]) => Some(format!("{} and {} more", first.display(), others.len())),
            _ => None,
        };
        self.note(key, &name.to_string(), place.as_deref());
        Ok(())
    }

    /// What was found; `None`, with a note, if it was only looked up and the hub does not answer.
    fn answer<T>(
        &mut self,
        key: &str,
        not_at: Option<&Path>,
        found: Result<T, LocateError>,
    ) -> Result<Option<T>, FollowError> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(reason) => {
                let error = FollowError { key: key.to_owned(), not_at: not_at.map(Path::to_owned), reason };
                if self.extent == Extent::Look && error.reason.failure == LocateFailure::Unreachable {
                    self.notes.push(format!("not checked: {error}"));
                    return Ok(None);
                }
                Err(error)
            }
        }
    }

    fn note(&mut self, key: &str, name: &str, place: Option<&str>) {
        self.notes.push(match place {
            Some(place) => format!("`{key}` is {name}, in {place}"),
            None => format!("not checked: the files of `{key}`, {name}, which a run downloads"),
        });
    }
}

/// Gives names in `now` without a revision the revision that the run has.
pub fn keep_revisions(now: &mut Config, run: &Config) {
    for (now, run) in [
        (&mut now.model.path, &run.model.path),
        (&mut now.model.reference, &run.model.reference),
        (&mut now.critic.model.path, &run.critic.model.path),
    ] {
        if let (Some(ModelSource::Hub { name, .. }), Some(ModelSource::Hub { name: of_run, .. })) = (now, run)
            && name.revision.is_none()
            && name.id == of_run.id
        {
            name.clone_from(of_run);
        }
    }
    for (now, run) in now.reward.iter_mut().zip(&run.reward) {
        let mut of_run = run.kind.clone();
        for ((key, now), (key_of_run, run)) in now.kind.models().into_iter().zip(of_run.models()) {
            let name = |place: &ModelPlace| HubName::parse(&place.named.to_string_lossy());
            if let (Some(wanted), Some(had)) = (name(now), name(run))
                && HubName::is_marked(&now.named)
                && key == key_of_run
                && wanted.revision.is_none()
                && wanted.id == had.id
            {
                now.named.clone_from(&run.named);
            }
        }
    }
    for (now, run) in [
        (&mut now.data.train, &run.data.train),
        (&mut now.data.val, &run.data.val),
        (&mut now.sft.data, &run.sft.data),
        (&mut now.sft.val, &run.sft.val),
    ] {
        for (now, run) in now.0.iter_mut().zip(&run.0) {
            let (DataSource::Hub { name, .. }, DataSource::Hub { name: of_run, .. }) = (now, run) else {
                continue;
            };
            let may_be = |now: &Option<String>, run: &Option<String>| now.is_none() || now == run;
            if name.repository.revision.is_none()
                && name.repository.id == of_run.repository.id
                && may_be(&name.configuration, &of_run.configuration)
                && may_be(&name.split, &of_run.split)
            {
                name.clone_from(of_run);
            }
        }
    }
}
