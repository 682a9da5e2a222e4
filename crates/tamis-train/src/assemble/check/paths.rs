//! Checks of the files and folders that a configuration names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tamis_config::{
    BackendKind, DataSources, HubName, LauncherKind, LearnerBackend, ModelSource, TokenizerSource,
    is_placeholder,
};
use tamis_core::advantage::Advantage;
use tamis_core::fault::chain;
use tamis_core::objective::PolicyLoss;
use tamis_core::setting::ModelPlace;
use tamis_env::reward::settings::RewardFile;
use tamis_model::{ConfigError, TransformerConfig, weights_elsewhere};
use tamis_run::directory;
use tamis_text::template::ChatTemplate;

use super::super::check_purpose::CheckPurpose;
use super::super::policy::Limits;
use super::super::{data, policy};
use super::{Checker, Placeholders};
use crate::checkpoint::{CHECKSUMS, OTHER_ARCHITECTURE, WEIGHTS_ELSEWHERE};
use crate::error::AssembleError;

impl Checker<'_> {
    /// Whether a path is to be checked. A placeholder is reported.
    fn is_real(&mut self, key: &str, path: &Path) -> bool {
        if !is_placeholder(path) {
            return true;
        }
        let text = path.to_string_lossy();
        let refused = self.placeholders == Placeholders::Refused;
        self.found.push(self.loaded.placeholder(key, &text, refused));
        false
    }

    /// Refuses a path that is no regular file.
    fn file(&mut self, key: &str, path: &Path, hint: &str) -> bool {
        if !self.is_real(key, path) {
            return false;
        }
        let Err(error) = tamis_file::open(path) else { return true };
        let near = tamis_file::suggest(path);
        let hint = near.as_deref().unwrap_or(hint);
        let path = path.display();
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no file {path}"),
            _ => format!("failed to open {path}: {error}"),
        };
        self.refuse(&[key.to_owned()], &message, Some(hint));
        false
    }

    /// Whether the check is for a run that is supervised fine-tuning alone, which reads no prompts.
    pub(super) fn is_sft_alone(&self) -> bool {
        self.config.is_sft_alone() && self.purpose != CheckPurpose::Evaluate
    }

    pub(super) fn sft_files(&mut self) {
        if self.purpose == CheckPurpose::Evaluate || !self.config.sft.is_on() {
            return;
        }
        let splits = [("sft.data", &self.config.sft.data), ("sft.val", &self.config.sft.val)];
        for (key, sources) in splits {
            self.sources(key, sources);
        }
    }

    fn sources(&mut self, key: &str, DataSources(sources): &DataSources) {
        const HINT: &str = "name JSONL or Parquet files, or a data set on a hub (`owner/name:split`); a relative path in a configuration \
            is relative to that file's folder, one on the command line to the working directory";
        let several = sources.len() > 1;
        for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.is_local()) {
            let key = if several { format!("{key}[{index}]") } else { key.to_owned() };
            for path in source.files() {
                self.file(&key, &path, HINT);
            }
        }
    }

    pub(super) fn data_files(&mut self) {
        if self.config.data.task.is_some_and(|task| !task.reads_files()) {
            return;
        }
        let splits = [("data.train", &self.config.data.train), ("data.val", &self.config.data.val)];
        // The task `gsm8k_calculator` holds out what its training data lacks.
        let reads_train = self.purpose.reads_train(self.config) || self.config.data.task.is_some();
        for (key, sources) in splits.into_iter().skip(usize::from(!reads_train)) {
            self.sources(key, sources);
        }
    }

    /// Refuses data whose first rows are no prompts, and a template that fails on them.
    pub(super) fn first_rows(&mut self) {
        let Err(data::Unfit { keys, error }) =
            data::check_first_rows(self.config, self.purpose, |path| !is_placeholder(path))
        else {
            return;
        };
        self.refuse(&keys, &chain(&error), error.hint().as_deref());
    }

    /// Refuses a `run.dir` that cannot be made.
    pub(super) fn run_folder(&mut self) {
        let (dir, name) = (&self.config.run.dir, &self.config.run.name);
        if directory::is_name(name)
            && let Err(error) = directory::free_name(dir, name)
        {
            let message = format!("failed to {error}");
            self.refuse(&["run.name".to_owned()], &message, error.hint().as_deref());
            return;
        }
        let keys = ["run.dir".to_owned()];
        let hint = Some("name a folder that can be made and written to, such as `run.dir=runs`");
        for folder in dir.ancestors() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let cause = match std::fs::metadata(folder) {
                Ok(found) if found.is_dir() => {
                    // Permissions do not show that a file system is read-only, so something is made and
                    // removed.
                    match tempfile::Builder::new().prefix(".tamis-check-").tempdir_in(folder) {
                        Ok(_) => return,
                        // The error itself names the folder that was tried, a different one each time.
                        Err(error) => {
                            format!("nothing can be made in {}: {}", folder.display(), error.kind())
                        }
                    }
                }
                Ok(_) => format!("{} is a file, not a folder", folder.display()),
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                    ) =>
                {
                    continue;
                }
                Err(error) => format!("{}: {error}", folder.display()),
            };
            self.refuse(
                &keys,
                &format!("failed to make a run directory in {}: {cause}", dir.display()),
                hint,
            );
            return;
        }
    }

    pub(super) fn model_files(&mut self) {
        let model = &self.config.model;
        // Supervised fine-tuning alone reads no other model than the policy.
        let trains = self.purpose != CheckPurpose::Evaluate && !self.is_sft_alone();
        let reads_model = self.purpose.reads_model();
        if let Some(path) = model.path.as_ref().filter(|_| reads_model) {
            self.model("model.path", path, true);
        }
        if let Some(reference) = model.reference.as_ref().filter(|_| trains) {
            self.model("model.reference", reference, false);
        }
        let has_critic = trains && reads_model && self.config.has_critic();
        if let Some(path) = self.config.critic.model.path.as_ref().filter(|_| has_critic) {
            self.model("critic.model.path", path, false);
        }
        let is_taught = trains && self.config.distillation().is_some();
        for (index, teacher) in self.config.teacher.iter().enumerate().filter(|_| is_taught) {
            if let Some(path) = teacher.path.as_ref().filter(|_| teacher.is_loaded()) {
                self.model(&format!("teacher[{index}].path"), path, false);
            }
        }
        let init = model.init.as_ref().filter(|_| reads_model);
        if let Some(TokenizerSource::File(path)) = init.map(|init| &init.tokenizer)
            && self.is_real("model.init.tokenizer", path)
        {
            let file = if path.is_dir() { path.join("tokenizer.json") } else { path.clone() };
            self.file(
                "model.init.tokenizer",
                &file,
                "name a `tokenizer.json` or the folder that holds one, or `char`",
            );
        }
        for (key, path) in [
            ("model.chat_template", &model.chat_template),
            ("data.prompt_template", &self.config.data.prompt_template),
        ] {
            if let Some(path) = path {
                self.template(key, path);
            }
        }
    }

    /// Refuses a file that is no template.
    fn template(&mut self, key: &str, path: &Path) {
        if !self.is_real(key, path) {
            return;
        }
        let keys = [key.to_owned()];
        match tamis_file::read_text(path, tamis_file::MAX_TEMPLATE) {
            Ok(source) => {
                if let Err(error) = ChatTemplate::new(&source, &BTreeMap::new()) {
                    self.refuse(&keys, &format!("{}: {error}", path.display()), None);
                }
            }
            Err(error) => {
                let message = format!("failed to read the template {}: {error}", path.display());
                self.refuse(&keys, &message, Some("name a file with a Jinja template, or leave it out"));
            }
        }
    }

    /// Refuses a folder without a model in a layout that can be read. The policy needs a tokenizer, too.
    fn model(&mut self, key: &str, model: &ModelSource, with_tokenizer: bool) {
        // If the name is only looked up, the hub has reported that it is a model.
        if !model.is_local() {
            return;
        }
        let path = &*model.folder();
        if !self.is_real(key, path) {
            return;
        }
        let keys = [key.to_owned()];
        let folder = path.display();
        if !path.is_dir() {
            let message = format!("there is no folder {folder}");
            let hint = "name a folder with config.json, model.safetensors and tokenizer.json, or a model on a \
                hub (`owner/name`)";
            let near = tamis_file::suggest(path);
            self.refuse(&keys, &message, Some(near.as_deref().unwrap_or(hint)));
            return;
        }
        let mut needed = vec!["config.json"];
        if with_tokenizer {
            needed.push("tokenizer.json");
        }
        let has = |name: &str| path.join(name).is_file();
        // The checksums of a checkpoint of tamis show whether it is as it was saved.
        if self.purpose == CheckPurpose::Evaluate && has(CHECKSUMS) {
            return;
        }
        if let Some(place) = weights_elsewhere(path) {
            let message = format!("{folder} holds no weights: they are {place}");
            self.refuse(&keys, &message, Some(WEIGHTS_ELSEWHERE));
            return;
        }
        let mut missing: Vec<&str> = needed.into_iter().filter(|name| !has(name)).collect();
        if !has("model.safetensors") && !has("model.safetensors.index.json") {
            missing.push("model.safetensors");
        }
        if !missing.is_empty() {
            let message = format!("{folder} has no {}", missing.join(" and no "));
            let hint = "the folder of a model is what `save_pretrained(..., safe_serialization=True)` of model and tokenizer writes";
            self.refuse(&keys, &message, Some(hint));
            return;
        }
        if with_tokenizer {
            self.vision(path);
        }
        // The native engine knows its own architectures; PyTorch and servers may know another.
        let has_native =
            !self.config.learns_elsewhere() || self.config.rollout.backend == BackendKind::Native;
        if !has_native {
            let limits = Limits::read(path).ok();
            return self.length(key, path, limits.and_then(|limits| limits.max_positions));
        }
        let limit = match if with_tokenizer {
            TransformerConfig::load(path)
        } else {
            TransformerConfig::load_any(path)
        } {
            Ok(config) => config.max_position_embeddings,
            // The checksums of a checkpoint of tamis show whether it is as it was saved.
            Err(_) if has(CHECKSUMS) => return,
            Err(error) => {
                let cause =
                    std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
                let hint = matches!(error, ConfigError::Architecture { .. }).then_some(OTHER_ARCHITECTURE);
                self.refuse(&keys, &format!("{folder} cannot be used: {error}{cause}"), hint);
                return;
            }
        };
        self.length(key, path, Some(limit));
    }

    /// Refuses what a policy that sees images cannot do, and warns if a setting of such policies has no
    /// effect.
    fn vision(&mut self, folder: &Path) {
        let sees = policy::sees_images(folder);
        if let Err(AssembleError::Fault(fault)) = policy::check_sampling_of_images(self.config, sees) {
            self.refuse(
                &["rollout.backend", "model.path"].map(str::to_owned),
                &fault.to_string(),
                fault.hint(),
            );
        }
        let learner = &self.config.learner;
        let learns_whole = learner.backend == LearnerBackend::Torch && learner.lora.is_none();
        if learner.freeze_vision && learns_whole && !sees {
            let reason = format!("the model in {} sees no images", folder.display());
            self.found.push(self.loaded.ignore("learner.freeze_vision", &reason));
        }
    }

    /// Refuses prompts and completions that are longer together than the model's positions. Supervised
    /// fine-tuning alone has neither: `sft.max_length` is compared when its rows are read.
    fn length(&mut self, key: &str, folder: &Path, limit: Option<usize>) {
        if self.is_sft_alone() {
            return;
        }
        let (prompt, response) = (self.config.data.max_prompt_length, self.config.max_text_length());
        let longest = prompt.saturating_add(response);
        let Some(limit) = limit.filter(|&limit| longest > limit) else { return };
        let of_completion = self.config.text_length_key();
        let message = format!(
            "`data.max_prompt_length` ({prompt}) and `{of_completion}` ({response}) make \
                 {longest} tokens, and the model in {} reads {limit}",
            folder.display()
        );
        let keys = [of_completion, "data.max_prompt_length".to_owned(), key.to_owned()];
        self.refuse(&keys, &message, Some(&format!("lower one of them so that they sum to at most {limit}")));
    }

    pub(super) fn reward_files(&mut self) {
        let of_run = self.loaded.interpreters_of_run();
        let mut takes_python_of_run = false;
        for (index, reward) in self.config.reward.iter().enumerate() {
            let mut kind = reward.kind.clone();
            for (key, place) in kind.models() {
                self.reward_model(&format!("reward[{index}].{key}"), place);
            }
            for RewardFile { key, path, hint } in reward.kind.files() {
                let follows = of_run.contains(&format!("reward.{index}.{key}"));
                let key = format!("reward[{index}].{key}");
                match hint {
                    Some(hint) => {
                        self.file(&key, &path, hint);
                    }
                    None if follows => takes_python_of_run = true,
                    None => self.program(&key, &path),
                }
            }
        }
        if takes_python_of_run || self.starts_python_of_run(&of_run) {
            self.program("run.python", &self.config.run.python.0);
        }
    }

    /// Whether something beside rewards starts the interpreter of `run.python`, if the user named one.
    fn starts_python_of_run(&self, of_run: &[String]) -> bool {
        let (config, trains) = (self.config, self.purpose != CheckPurpose::Evaluate);
        let is_named =
            self.loaded.origin("run.python").is_some_and(tamis_config::source::Origin::is_from_user);
        let learns_here = config.learner.backend == LearnerBackend::Torch
            && config.learner.url.is_none()
            && config.cluster.launcher != LauncherKind::Ray;
        let is_started = |key: &String| match key.split('.').next() {
            Some("learner") => trains && learns_here,
            Some("environment" | "more_environments") => true,
            _ => false,
        };
        is_named && of_run.iter().any(is_started)
    }

    /// Refuses a loss or an advantage in Python whose file or interpreter is not there.
    pub(super) fn function_files(&mut self) {
        let objective = &self.config.objective;
        let loss = match &objective.loss {
            PolicyLoss::Python(python) => Some(("objective.loss", &python.function)),
            _ => None,
        };
        let advantage = match &objective.advantage {
            Advantage::Python(python) => Some(("objective.advantage", &python.function)),
            _ => None,
        };
        for (section, function) in loss.into_iter().chain(advantage) {
            let hint =
                "name the Python file that holds the function, and behind a colon the function: `my.py:name`";
            if self.file(&format!("{section}.path"), &function.file(), hint) {
                self.program(&format!("{section}.python"), &function.python);
            }
        }
    }

    /// Refuses a folder without a model. Whether it is a reward model is found when it is loaded.
    fn reward_model(&mut self, key: &str, place: &ModelPlace) {
        let path = place.folder();
        // If the name is only looked up, the hub has reported that it is a model.
        if HubName::is_marked(&place.named) && place.folder.is_none() || !self.is_real(key, path) {
            return;
        }
        let (keys, folder) = ([key.to_owned()], path.display());
        if !path.is_dir() {
            let near = tamis_file::suggest(path);
            let hint = "name the folder of a reward model, or a model on a hub (`owner/name`)";
            self.refuse(
                &keys,
                &format!("there is no folder {folder}"),
                Some(near.as_deref().unwrap_or(hint)),
            );
        } else if !path.join("config.json").is_file() {
            let hint = "the folder of a model is what `save_pretrained` of model and tokenizer writes";
            self.refuse(&keys, &format!("{folder} has no config.json"), Some(hint));
        }
    }

    /// Refuses a program that is neither a file nor on `PATH`.
    fn program(&mut self, key: &str, program: &Path) {
        if !self.is_real(key, program) {
            return;
        }
        let program = &*PathBuf::from(tamis_process::interpreter(&program.to_string_lossy()));
        let is_there = if program.components().count() > 1 {
            program.is_file()
        } else {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
        };
        if !is_there {
            let message = format!("there is no program {}", program.display());
            let hint = "is it installed and on PATH? A name without `/` is looked for there";
            let around = key.starts_with("reward").then(|| key.rsplit_once('.')).flatten();
            let keys: Vec<String> =
                [key].into_iter().chain(around.map(|(reward, _)| reward)).map(str::to_owned).collect();
            self.refuse(&keys, &message, Some(hint));
        }
    }
}
