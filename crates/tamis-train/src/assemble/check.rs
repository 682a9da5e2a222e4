//! Checks a configuration before anything is made from it: for `tamis config check`, for a run that begins or
//! continues, and for an evaluation.
//!
//! [`settings`] builds everything that needs only the settings, by the constructors that the run itself uses.
//! [`files`] checks that the named files exist and reads the first rows of the data. Each finding has the key
//! that is to blame and the place at which it was written.
//!
//! No program is started here. The run itself asks reward functions what they take and return, before it
//! generates anything.

mod paths;

use std::path::Path;
use std::sync::Arc;

use tamis_config::{Config, Diagnostic, Loaded, Problem, Severity};
use tamis_core::advantage::AdvantageError;
use tamis_core::correction::CorrectionError;
use tamis_core::figure::shortest;
use tamis_core::objective::ObjectiveError;
use tamis_core::printable::cut_middle;
use tamis_core::setting::OutOfRange;
use tamis_env::reward::command::SharedPools;
use tamis_env::reward::{Listener, Nobody, RewardContext, RewardError};
use tamis_run::directory;
use tamis_run::durable::Disk;

pub use super::check_purpose::CheckPurpose;
use super::settings::{sampling, threads, validation_settings};
use super::{advantage, data, loggers, objective, rewards, schedule};
use crate::error::AssembleError;
use crate::interrupt::Interrupt;

/// Treatment of a path that is a placeholder, as in the shipped examples (`PATH/TO/train.parquet`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholders {
    /// Reported, so that an example can be checked as it is.
    Warned,
    /// Refused: nothing can be read there.
    Refused,
}

/// Everything that is wrong with a configuration: [`settings`], then [`files`].
pub fn all(loaded: &Loaded, purpose: CheckPurpose<'_>, placeholders: Placeholders) -> Vec<Diagnostic> {
    let mut found = settings(loaded, purpose);
    found.extend(files(loaded, purpose, placeholders));
    found
}

/// Collects findings with the place of the key that is to blame.
struct Checker<'c> {
    loaded: &'c Loaded,
    config: &'c Config,
    purpose: CheckPurpose<'c>,
    placeholders: Placeholders,
    found: Vec<Diagnostic>,
}

/// Finds the faults of the settings. Nothing is read and nothing is started.
pub fn settings(loaded: &Loaded, purpose: CheckPurpose<'_>) -> Vec<Diagnostic> {
    let mut checker = Checker::new(loaded, purpose, Placeholders::Refused);
    if checker.is_sft_alone() {
        checker.run();
        return checker.found;
    }
    if purpose != CheckPurpose::Evaluate {
        checker.run();
        checker.objective();
    }
    checker.task();
    checker.sampling();
    checker.rewards();
    if purpose != CheckPurpose::Evaluate {
        checker.schedule();
    }
    checker.found
}

/// Finds the faults of the named files and folders: that they exist, that they are files, that a model is
/// one, that the first rows of data are prompts that the templates render. No reward function is started.
pub fn files(loaded: &Loaded, purpose: CheckPurpose<'_>, placeholders: Placeholders) -> Vec<Diagnostic> {
    let mut checker = Checker::new(loaded, purpose, placeholders);
    if !checker.is_sft_alone() {
        checker.data_files();
    }
    checker.sft_files();
    checker.model_files();
    checker.reward_files();
    if purpose != CheckPurpose::Evaluate {
        checker.function_files();
    }
    if purpose == CheckPurpose::Begin {
        checker.run_folder();
    }
    if !checker.is_sft_alone() && checker.found.iter().all(|finding| finding.severity != Severity::Error) {
        checker.first_rows();
    }
    checker.found
}

impl<'c> Checker<'c> {
    fn new(loaded: &'c Loaded, purpose: CheckPurpose<'c>, placeholders: Placeholders) -> Self {
        Self { loaded, config: &loaded.config, purpose, placeholders, found: Vec::new() }
    }

    /// An error at the first of these keys that the user wrote.
    fn refuse(&mut self, keys: &[String], message: &str, hint: Option<&str>) {
        self.found.push(self.loaded.refuse(keys, message, hint));
    }

    fn run(&mut self) {
        let name = &self.config.run.name;
        if !directory::is_name(name) {
            let message = format!(
                "`{}` is not a folder name, which is one part of a path of at most 255 bytes, without `/` and \
                     control characters and not `.` or `..`",
                cut_middle(&name.escape_debug().to_string(), 100)
            );
            self.refuse(&["run.name".to_owned()], &message, Some("the folder around it is `run.dir`"));
        }
        if let Err(error) = loggers::check(self.config) {
            self.refuse(&["run.loggers".to_owned()], &error.to_string(), error.hint().as_deref());
        }
    }

    fn objective(&mut self) {
        let config = self.config;
        for (section, error) in [
            ("objective", objective::objective(config).err()),
            ("objective.correction", objective::correction(config).err()),
            ("objective.advantage", advantage::advantage(config).err()),
            ("objective.shaping", advantage::shapings(config).err()),
        ] {
            if let Some(error) = error {
                self.report_assembly(&error, section);
            }
        }
        if let Some(init) = &config.model.init
            && let Err(error) = super::policy::shape_of_sizes(init).validate()
        {
            self.refuse(&["model.init".to_owned()], &error.to_string(), Some("make the model smaller"));
        }
    }

    fn task(&mut self) {
        let Some(task) = self.config.data.task.filter(|task| !task.reads_files()) else { return };
        if let Err(error) =
            task.prompts(&data::task_source(self.config, &data::TaskFiles::of(&self.config.data)), 0)
        {
            let keys: Vec<String> = task.keys().iter().map(|&key| key.to_owned()).collect();
            self.refuse(&keys, &error.fault.to_string(), None);
        }
    }

    /// Shows an error of a constructor at the key that it names, otherwise at its section.
    fn report_assembly(&mut self, error: &AssembleError, section: &str) {
        let blamed = Blamed::by(error);
        let mut keys = blamed.setting.map_or_else(Vec::new, |setting| keys_of(section, setting));
        let message = match error {
            AssembleError::At { key, fault } => {
                keys.insert(0, (*key).to_owned());
                fault.to_string()
            }
            error => error.to_string(),
        };
        keys.push(section.to_owned());
        self.refuse(&keys, &message, error.hint().as_deref());
        // The key that is blamed is the name by which the setting was written.
        if let (Some(setting), Some(found), Some(finding)) =
            (blamed.setting, blamed.found, self.found.last_mut())
            && let Problem::Refused { key, message, hint } = &mut *finding.problem
        {
            hint.get_or_insert_with(|| format!("see `tamis config explain {key}`"));
            *message = match key.rsplit_once('.') {
                Some((around, name)) if key != section && name != "kind" => {
                    // What is expected may name another key of the section.
                    format!("it is {}", found.replacen('`', &format!("`{around}."), 1))
                }
                _ => format!("`{setting}` is {found}"),
            };
        }
    }

    fn sampling(&mut self) {
        for (section, sampling) in [
            ("rollout", sampling(self.config)),
            ("validate", validation_settings(self.config).groups.sampling),
        ] {
            let params = tamis_rollout::native::engine_params(&sampling, Vec::new());
            if let Err(error) = params.validate() {
                let tamis_model::SamplingError::Range { name, .. } = &error;
                self.refuse(&[format!("{section}.{name}"), section.to_owned()], &error.to_string(), None);
            }
        }
    }

    fn rewards(&mut self) {
        let config = self.config;
        let disk = Disk::new();
        let listener: Arc<dyn Listener> = Arc::new(Nobody);
        let (interrupt, pools) = (Interrupt::default(), SharedPools::default());
        for (index, reward) in config.reward.iter().enumerate() {
            let context = RewardContext {
                name: &reward.name,
                max_length: config.max_completion_length(),
                rows: &[],
                verifier: rewards::first_verifier(&config.reward),
                listener: &listener,
                host: &rewards::Host {
                    folder: rewards::RewardFolder { path: Path::new(""), disk: &disk, is_run: false },
                    threads: threads(config),
                    interrupt: &interrupt,
                },
                pools: &pools,
            };
            let Err(error) = reward.kind.check(&context) else { continue };
            let error = AssembleError::from(error);
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            let cause = cause.lines().last().unwrap_or_default().trim();
            let message = if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") };
            let mut keys = vec![format!("reward[{index}]"), "reward".to_owned()];
            if !reward.kind.is_external() {
                let is_pattern = matches!(error, AssembleError::Reward(RewardError::Pattern { .. }));
                let key = if is_pattern { "pattern" } else { "kind" };
                keys.insert(0, format!("reward[{index}].{key}"));
            }
            self.refuse(&keys, &message, error.hint().as_deref());
        }
    }

    fn schedule(&mut self) {
        let filter = match schedule::filter(self.config) {
            Ok(filter) => filter,
            Err(error) => {
                self.refuse(&["filter".to_owned()], &error.to_string(), None);
                return;
            }
        };
        let sieve = schedule::Sieve::of_filter(filter);
        // Faults of the objective are found where it is checked.
        if let Err(AssembleError::Schedule(error)) = schedule::scheduler(self.config, &sieve) {
            self.refuse(&["schedule".to_owned()], &error.to_string(), None);
        }
        if let Err(error @ AssembleError::Fault(_)) = schedule::trains_early(self.config, &sieve) {
            self.refuse(&["schedule.early_updates".to_owned()], &error.to_string(), error.hint().as_deref());
        }
    }
}

/// The setting that an error of a pure object blames.
#[derive(Default)]
struct Blamed {
    setting: Option<&'static str>,
    /// Its value, and what was expected.
    found: Option<String>,
}

impl Blamed {
    fn by(error: &AssembleError) -> Self {
        let named = |setting| Self { setting: Some(setting), found: None };
        match error {
            AssembleError::Objective(ObjectiveError::Setting { setting, value, expected })
            | AssembleError::Advantage(AdvantageError::Setting { setting, value, expected })
            | AssembleError::Correction(CorrectionError::Setting { setting, value, expected }) => {
                Self { found: Some(format!("{}; expected {expected}", shortest(*value))), ..named(setting) }
            }
            AssembleError::Objective(ObjectiveError::Range(OutOfRange { key: setting, .. }))
            | AssembleError::Advantage(AdvantageError::Range(OutOfRange { key: setting, .. }))
            | AssembleError::Correction(CorrectionError::Bounds { setting, .. }) => named(setting),
            AssembleError::Objective(ObjectiveError::Importance { .. }) => named("importance"),
            AssembleError::Objective(ObjectiveError::Aggregation { .. }) => named("aggregation"),
            AssembleError::Correction(
                CorrectionError::Threshold { .. } | CorrectionError::UnknownStatistic { .. },
            ) => named("rejections"),
            _ => Self::default(),
        }
    }
}

/// The keys from which a setting of a pure object may come, the likeliest first. Keys that do not exist are
/// skipped.
fn keys_of(section: &str, setting: &str) -> Vec<String> {
    let (part, name) = setting.rsplit_once('.').unwrap_or(("", setting));
    let name = match (part, name) {
        (_, "coef") => "coefficient",
        (_, "off_policy") => "off_policy",
        (_, name) => name,
    };
    let mut keys = vec![format!("{section}.{name}")];
    if !part.is_empty() {
        keys.push(format!("{section}.{part}.{name}"));
    }
    if section == "objective" {
        keys.extend([format!("objective.loss.{name}"), format!("objective.kl.{name}")]);
        keys.push("objective.loss.kind".to_owned());
    }
    keys
}
