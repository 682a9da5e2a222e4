//! Beginning a run, and resuming one.

use std::num::NonZeroUsize;
use std::time::{SystemTime, UNIX_EPOCH};

use tamis_config::{Config, GoldCheck, LoggerKind, LrScheduleKind, ResumeDifference, resume_differences};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::Rounds;
use tamis_data::sampler::{Order, Position};
use tamis_env::reward::gold::check_gold;
use tamis_model::{AdamWConfig, ModelConfig};
use tamis_rollout::{Fate, PreparedPrompt, Record, Sampling, Scorer, Shell, ShellSettings};

use super::{RunError, Session};
use crate::answers::RecordedAnswers;
use crate::assemble::objective::Divergence;
use crate::assemble::{data, objective, policy, rewards, schedule};
use crate::checkpoint::{self, RunState};
use crate::checksum::crc32;
use crate::durable::Disk;
use crate::interrupt::Interrupt;
use crate::learning_rate::{Decay, LearningRate};
use crate::logger::Loggers;
use crate::logger::console::ConsoleLogger;
use crate::logger::jsonl::JsonlLogger;
use crate::logger::tensorboard::TensorBoardLogger;
use crate::metrics::Metrics;
use crate::native::{EngineSettings, NativeEngine};
use crate::pool::PromptPool;
use crate::progress::Progress;
use crate::run_directory::{LogPositions, RunDirectory};
use crate::run_log::RunLog;
use crate::update::{MicroBatch, UpdateSettings};
use crate::validation::ValidationSettings;
use crate::warm_start::{WarmStartError, WarmStartSettings, warm_start};

/// A configuration with its text as `tamis config show` prints it.
#[derive(Debug, Clone)]
pub struct ConfigText {
    /// The values.
    pub config: Config,
    /// The text that goes into the run directory.
    pub text: String,
    /// What the run says about it at the start: warnings, what foreign keys became, what differs from the preset.
    pub notes: Vec<String>,
}

/// How a run begins.
pub enum Begin {
    /// In a new directory.
    New(ConfigText),
    /// From the last checkpoint of a directory that this process holds.
    Resume {
        /// The directory.
        directory: RunDirectory,
        /// The configuration it was begun with.
        was: Box<Config>,
        /// The configuration now.
        now: ConfigText,
    },
}

const STARTED: &str = "started";

impl Session {
    /// Prepares a run up to its first step: data, model, rewards, sieve, warm start; or the state of its last checkpoint.
    ///
    /// `progress` makes the display, given the run's steps and those already trained.
    pub fn begin(
        begin: Begin,
        progress: impl FnOnce(Option<u64>, u64) -> Progress,
        interrupt: Interrupt,
    ) -> Result<Self, RunError> {
        Self::begin_on(&Disk::new(), begin, progress, interrupt)
    }

    /// As [`Session::begin`], a new run's directory made on this disk; a resumed one stays on the disk that it was opened on.
    pub fn begin_on(
        disk: &Disk,
        begin: Begin,
        progress: impl FnOnce(Option<u64>, u64) -> Progress,
        interrupt: Interrupt,
    ) -> Result<Self, RunError> {
        let (given, existing) = match begin {
            Begin::New(config) => (config, None),
            Begin::Resume { directory, was, now } => {
                let (refused, changed): (Vec<_>, Vec<_>) = resume_differences(&was, &now.config)
                    .into_iter()
                    .partition(|difference: &ResumeDifference| difference.refused);
                if !refused.is_empty() {
                    let lines: Vec<String> = refused.iter().map(ResumeDifference::to_string).collect();
                    return Err(RunError::Mismatch {
                        run: directory.path().to_owned(),
                        differences: lines.join("\n"),
                    });
                }
                let mut now = now;
                now.notes.extend(changed.iter().map(|difference| format!("changed on resume: {difference}")));
                (now, Some(directory))
            }
        };
        let config = given.config;
        let state = match &existing {
            Some(directory) => match directory.list_checkpoints()?.last() {
                Some(folder) => Some((checkpoint::read_state(&folder.path)?, folder.path.clone())),
                None => None,
            },
            None => None,
        };
        // What needs no folder comes first, so that a mistake there leaves none behind.
        let prompts = data::prompts(&config)?;
        let codec = match &state {
            Some((_, folder)) => policy::codec_of(&config, folder)?,
            None => policy::codec(&config, || prompts.alphabet())?,
        };
        let from = state.as_ref().map(|(_, folder)| folder.as_path());
        let memory = memory(&config, &policy::shape(&config, &codec, from)?)?;
        let (objective, divergence) = objective::objective(&config)?;
        let is_new = existing.is_none();
        let directory = if let Some(directory) = existing {
            directory
        } else {
            let directory = RunDirectory::create(disk, &config.run.dir, &config.run.name)?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
            directory.disk().write_file(&directory.path().join(STARTED), now.to_string().as_bytes())?;
            directory.disk().write_file(&directory.config(), given.text.as_bytes())?;
            directory
        };
        // Templates that show the date show that of the first start, or a resumed run would see other prompts.
        let started = std::fs::read_to_string(directory.path().join(STARTED))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        let codec = codec.with_now(started);
        let (positions, at) = state
            .as_ref()
            .map_or((LogPositions::default(), 0), |(state, _)| (state.logs.clone(), state.step));
        if !is_new {
            directory.cut_back(&positions, at)?;
        }
        let ui = progress(config.train.total_steps.map(|steps| steps as u64), at);
        ui.copy_to(RunLog::open(directory.disk(), &directory.run_log())?);
        match (&state, is_new) {
            (Some((state, _)), false) => {
                ui.say(&format!("resuming {} after step {}", directory.path().display(), state.step));
            }
            (None, false) => {
                ui.say(&format!(
                    "resuming {} from its beginning: there is no checkpoint",
                    directory.path().display()
                ));
            }
            (_, true) => ui.say(&format!("run directory {}", directory.path().display())),
        }
        for note in given.notes.iter().chain(&prompts.notes) {
            ui.say(note);
        }
        ui.say(&memory);

        let assembled = rewards::rewards(&config, directory.path())?;
        let mut names = assembled.rewards.score_names();
        if config.data.check_gold != GoldCheck::Off {
            let report = check_gold(&prompts.train, &assembled.rewards)
                .map_err(crate::assemble::AssembleError::from)?;
            names.extend(report.score_names.iter().cloned());
            let text = report.to_string();
            if report.is_clean() {
                text.lines().for_each(|line| ui.say(line));
            } else if config.data.check_gold == GoldCheck::Error {
                return Err(RunError::Gold { report: text });
            } else {
                ui.warn(text.trim_end());
            }
        }
        let mut early_stop = super::early_stop::early_stop(&config.train.early_stop)?;
        if let Some((state, _)) = &state {
            early_stop = early_stop.resumed(state.early_stop.clone());
        }
        let sieve = schedule::sieve(&config, names)?;
        ui.say(&sieve.announcement);
        let mut scorer = Scorer::new(assembled.rewards);
        if assembled.is_external {
            let answers = RecordedAnswers::open(directory.disk(), &directory.journal())?;
            scorer = scorer.with_journal(Box::new(answers));
        }

        let pairs = prompts.supervised(config.run.seed, config.warm_start.examples);
        let limit = config.data.max_prompt_length;
        let overlong = data::overlong(config.data.overlong_prompts);
        let train = codec
            .prepare(prompts.train, "training", overlong, limit)
            .map_err(crate::assemble::AssembleError::from)?;
        let validation_prompts = codec
            .prepare(prompts.validation, "validation", overlong, limit)
            .map_err(crate::assemble::AssembleError::from)?;
        for (split, prepared) in [("training", &train), ("validation", &validation_prompts)] {
            if prepared.num_dropped + prepared.num_truncated > 0 {
                ui.say(&format!(
                    "{split}: {} prompts over {limit} tokens left out, {} cut",
                    prepared.num_dropped, prepared.num_truncated
                ));
            }
        }

        let data_crc32 = fingerprint(&train.prompts);
        if let Some((state, _)) = &state
            && state.data_crc32 != data_crc32
        {
            return Err(RunError::Mismatch {
                run: directory.path().to_owned(),
                differences: "the training prompts are not those that the run was begun with: a file of data.train has changed"
                    .to_owned(),
            });
        }
        let loaded = match &state {
            Some((_, folder)) => checkpoint::read_model(folder)?,
            None => policy::model(&config, &codec)?,
        };
        let mut engine = NativeEngine::new(loaded, codec, engine_settings(&config));
        let order =
            if config.data.shuffle { Order::Shuffled { seed: config.run.seed } } else { Order::Sequential };
        let position = state.as_ref().map_or(Position::default(), |(state, _)| state.position);
        let pool = PromptPool::new(train.prompts, order, position)?;
        ui.say(&format!(
            "model: {} parameters, {} training prompts, {} validation prompts, {} threads",
            engine.model().num_parameters(),
            pool.num_prompts(),
            validation_prompts.prompts.len(),
            engine.num_threads(),
        ));

        let settings = schedule::rounds(&config, &sieve);
        let shell_settings = shell_settings(&config, &sieve);
        let shell = match &state {
            Some((state, folder)) => {
                checkpoint::read_optimizer(folder, &mut engine)?;
                engine.set_version(state.version);
                let mut machine = state.machine.clone();
                machine.set_length(settings.total_steps, settings.total_epochs);
                Shell::resumed(shell_settings, machine, state.next_group, carried(state, &pool))
            }
            None => Shell::new(shell_settings, Rounds::new(settings)?),
        };
        let mut session = Session {
            between: Session::place(&shell, &pool),
            data_crc32,
            base_logs: positions,
            validation: validation_settings(&config),
            advantage: objective::advantage(&config),
            objective_state: state.as_ref().map_or(objective.initial_state(), |(state, _)| state.objective),
            reward_kl: state.as_ref().and_then(|(state, _)| state.reward_kl),
            update: update_settings(&config),
            learning_rate: learning_rate(&config),
            loggers: loggers(&config, &directory, at + 1, &ui)?,
            num_tokens: state.as_ref().map_or(0, |(state, _)| state.num_tokens),
            scores: state.as_ref().map(|(state, _)| state.scores.clone()).unwrap_or_default(),
            before: state.as_ref().and_then(|(state, _)| state.before.clone()),
            saved: state.as_ref().map(|(state, _)| state.step),
            latest: state.as_ref().and_then(|(state, _)| state.latest.clone()),
            early_stop_between: early_stop.state().clone(),
            early_stop,
            given_up: Vec::new(),
            validation_prompts: validation_prompts.prompts,
            config,
            directory,
            progress: ui,
            interrupt,
            engine,
            pool,
            scorer,
            sieve,
            shell,
            objective,
            divergence,
        };
        if state.is_none() {
            session.first_weights(&pairs)?;
        }
        session.keep_reference()?;
        if state.is_none() {
            session.first_measurement()?;
        }
        if !is_new {
            // What was changed holds from now on: a later resume without the override goes on with it.
            session.directory.disk().write_file(&session.directory.config(), given.text.as_bytes())?;
        }
        Ok(session)
    }

    /// The warm start, where there is one.
    fn first_weights(&mut self, pairs: &[tamis_env::task::Supervised]) -> Result<(), RunError> {
        let config = &self.config.warm_start;
        if config.steps == 0 {
            return Ok(());
        }
        let settings = WarmStartSettings {
            steps: config.steps,
            batch_size: config.batch_size,
            learning_rate: config.learning_rate,
            warmup_steps: config.warmup_steps,
            target_accuracy: config.target_accuracy,
            test_freq: config.test_freq,
            seed: self.config.run.seed,
        };
        let codec = self.engine.codec().clone();
        let (progress, scorer, prompts, validation) =
            (&self.progress, &mut self.scorer, &self.validation_prompts, &self.validation);
        let mut measured = 0;
        let mut failed = None;
        let interrupt = self.interrupt.clone();
        let report = warm_start(
            &mut self.engine,
            &codec,
            pairs,
            &settings,
            &interrupt,
            |engine| {
                measured += 1;
                let journal = format!("warm_start/{measured}");
                if failed.is_some() {
                    return None;
                }
                match crate::validation::sample(engine, scorer, prompts, validation, &journal, 0) {
                    Ok((_, report)) => Some(report.accuracy),
                    Err(error) => {
                        failed = Some(error);
                        None
                    }
                }
            },
            |update, loss, accuracy| {
                let measured = accuracy
                    .map_or_else(String::new, |accuracy| format!(", accuracy {:.1}%", 100.0 * accuracy));
                if update % 50 == 0 || update == settings.steps {
                    progress.say(&format!(
                        "warm start: update {update} of {}, cross-entropy {loss:.3}{measured}",
                        settings.steps
                    ));
                }
            },
        )
        .map_err(|error| match error {
            WarmStartError::Interrupted => RunError::Interrupted { run: self.directory.path().to_owned() },
            error => error.into(),
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        self.progress.say(&format!(
            "warm start: {} updates of {} examples, cross-entropy {:.3}",
            report.num_updates, settings.batch_size, report.loss
        ));
        // Reinforcement learning begins with moments of its own.
        self.engine.reset_optimizer(optimizer(&self.config));
        Ok(())
    }

    /// The reference policy, where a divergence needs it.
    fn keep_reference(&mut self) -> Result<(), RunError> {
        if self.divergence == Divergence::None {
            return Ok(());
        }
        let kept = self.directory.path().join("reference");
        let reference = match policy::reference_path(&self.config) {
            Some(path) => policy::load(path)?,
            None if kept.is_dir() => policy::load(&kept)?,
            None => {
                let initial = self.engine.model().clone();
                checkpoint::write_reference(self.directory.disk(), &kept, &initial)?;
                initial
            }
        };
        self.engine.set_reference(reference);
        Ok(())
    }

    /// Validation before the first step and the checkpoint of step 0.
    fn first_measurement(&mut self) -> Result<(), RunError> {
        if self.config.validate.before_train && !self.validation_prompts.is_empty() {
            let mut metrics = Metrics::new();
            self.validate(0, &mut metrics)?;
            self.loggers.log(0, &metrics)?;
            self.before = self.latest.take().map(|(_, report)| report);
        }
        self.save(0)
    }
}

fn loggers(
    config: &Config,
    directory: &RunDirectory,
    first_step: u64,
    progress: &Progress,
) -> Result<Loggers, RunError> {
    let mut loggers = Loggers::new();
    for kind in &config.run.loggers {
        match kind {
            LoggerKind::Console => loggers.add(ConsoleLogger::new(progress.clone())),
            LoggerKind::Jsonl => loggers.add(JsonlLogger::open(directory.disk(), &directory.metrics())?),
            LoggerKind::Tensorboard => {
                loggers.add(TensorBoardLogger::open(directory.disk(), &directory.tensorboard(), first_step)?);
            }
        }
    }
    Ok(loggers)
}

fn carried(state: &RunState, pool: &PromptPool) -> Vec<Record> {
    state
        .carried
        .iter()
        .filter_map(|carried| {
            let prompt: PreparedPrompt = pool.get(carried.group.prompt)?.clone();
            Some(Record {
                group: carried.group.clone(),
                prompt,
                step: carried.step,
                round: carried.round,
                judgement: None,
                final_rewards: carried.final_rewards(),
                fate: Fate::Carried,
            })
        })
        .collect()
}

fn optimizer(config: &Config) -> AdamWConfig {
    let optimizer = &config.train.optimizer;
    AdamWConfig {
        beta1: optimizer.betas[0],
        beta2: optimizer.betas[1],
        eps: optimizer.epsilon,
        weight_decay: optimizer.weight_decay,
        decay_norms_and_biases: optimizer.decay_norms_and_biases,
    }
}

/// Worker threads of the run.
pub(crate) fn threads(config: &Config) -> usize {
    config.run.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

pub(crate) fn engine_settings(config: &Config) -> EngineSettings {
    EngineSettings {
        threads: threads(config),
        temperature: config.rollout.temperature,
        max_grad_norm: config.train.optimizer.max_grad_norm,
        recompute_activations: config.model.recompute_activations,
        max_num_seqs: config.rollout.max_num_seqs,
        optimizer: optimizer(config),
    }
}

fn sampling(config: &Config) -> Sampling {
    let rollout = &config.rollout;
    Sampling {
        temperature: rollout.temperature,
        top_k: (rollout.top_k > 0).then_some(rollout.top_k as u32),
        top_p: rollout.top_p,
        min_p: rollout.min_p,
        repetition_penalty: rollout.repetition_penalty,
        max_response_length: rollout.max_response_length,
        stop: rollout.stop.clone(),
    }
}

/// How validation samples: the rollout's limits with the temperature and the cut of its own.
pub(crate) fn validation_settings(config: &Config) -> ValidationSettings {
    ValidationSettings {
        seed: config.run.seed,
        n: config.validate.n,
        sampling: Sampling {
            temperature: config.validate.temperature,
            top_p: config.validate.top_p,
            top_k: None,
            min_p: 0.0,
            ..sampling(config)
        },
        num_samples_shown: config.validate.num_samples_shown,
    }
}

fn shell_settings(config: &Config, sieve: &schedule::Sieve) -> ShellSettings {
    ShellSettings {
        seed: config.run.seed,
        group_size: config.rollout.n,
        sampling: sampling(config),
        filter: sieve.filter,
        metric: sieve.metric.clone(),
    }
}

fn update_settings(config: &Config) -> UpdateSettings {
    let train = &config.train;
    let mini = train.ppo_mini_batch_size.unwrap_or(config.data.train_batch_size);
    UpdateSettings {
        mini_batch_size: NonZeroUsize::new(mini).unwrap_or(NonZeroUsize::MIN),
        epochs: train.ppo_epochs,
        shuffle: train.shuffle_mini_batches.then(|| Key::new(config.run.seed, Purpose::MiniBatch)),
        micro_batch: match train.micro_batch_size {
            Some(size) => MicroBatch::Sequences(size),
            None => MicroBatch::Tokens(train.micro_batch_tokens),
        },
        mask_truncated: config.objective.mask_truncated,
    }
}

fn learning_rate(config: &Config) -> LearningRate {
    let schedule = &config.train.lr_schedule;
    LearningRate {
        peak: config.train.optimizer.learning_rate,
        warm_up: schedule.warmup_steps as u64,
        decay: match schedule.kind {
            LrScheduleKind::Constant => Decay::Constant,
            LrScheduleKind::Linear => Decay::Linear,
            LrScheduleKind::Cosine => Decay::Cosine,
        },
        min_ratio: schedule.min_ratio,
    }
}

/// CRC-32 of prompts as the model sees them, with their ground truths.
fn fingerprint(prompts: &[PreparedPrompt]) -> u32 {
    let mut bytes = Vec::new();
    for prompt in prompts {
        bytes.extend(prompt.prompt.id.0.to_le_bytes());
        bytes.extend(prompt.token_ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(prompt.prompt.ground_truth.iter().flat_map(|truth| truth.bytes()));
    }
    crc32(&bytes)
}

/// Estimates the memory and refuses what cannot fit; the line that the run prints.
fn memory(config: &Config, model: &ModelConfig) -> Result<String, RunError> {
    let estimate = crate::memory::estimate(config, model);
    let rollouts = crate::memory::rollouts(config);
    let needed = estimate.total().saturating_add(rollouts);
    let limit = config.model.memory_limit.map(|limit| limit.0).or_else(tamis_model::available_memory);
    let rollouts = crate::memory::human(rollouts);
    if let Some(limit) = limit
        && needed > limit
    {
        return Err(RunError::Memory {
            needed: crate::memory::human(needed),
            limit: crate::memory::human(limit),
            breakdown: format!("{estimate}, and the trajectories of a round {rollouts}"),
        });
    }
    Ok(format!("memory: {estimate}, and the trajectories of a round {rollouts}"))
}
