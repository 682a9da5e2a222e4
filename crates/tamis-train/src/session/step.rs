//! The step loop.

use std::time::Instant;

use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Advantages};
use tamis_core::group::Group;
use tamis_core::objective::{KlController, KlEstimator, KlState, kl};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::RoundReport;
use tamis_data::rollouts::{RolloutRow, write_rollouts};
use tamis_rollout::{
    Backend, Collected, Dependencies, End, Generator, GeneratorError, GroupRequest, Observer, Outcome,
    Record, Sampling, Shell, ShellError,
};

use super::{Between, Ending, RunError, Session, Summary};
use crate::assemble::AssembleError;
use crate::assemble::objective::Divergence;
use crate::batch_metrics::{TrainedColumns, generated_metrics, trained_metrics};
use crate::checkpoint::{self, CarriedGroup, RunState};
use crate::learner::{Learner, LearnerError, LearnerSequence};
use crate::metrics::Metrics;
use crate::native::NativeEngine;
use crate::pool::PromptPool;
use crate::progress::{Progress, StepView};
use crate::run_directory::RUN_LOG;
use crate::timings::{GENERATION, STEP, Timings, TokenCounts};
use crate::update::{MicroBatch, TrainingBatch, micro_batches, update};
use crate::validation;

/// The engine during a collection: generates, and runs the reference pass where the filter wants rewards after KL.
struct WithReference<'a> {
    engine: &'a mut NativeEngine,
    penalty: Option<(KlEstimator, f64, MicroBatch)>,
}

impl Generator for WithReference<'_> {
    fn submit(&mut self, request: GroupRequest, sampling: &Sampling) -> Result<(), GeneratorError> {
        self.engine.submit(request, sampling)
    }

    fn poll(&mut self) -> Result<Vec<Outcome>, GeneratorError> {
        self.engine.poll()
    }

    fn abort(&mut self, ticket: u64) {
        self.engine.abort(ticket);
    }

    fn version(&self) -> tamis_core::group::PolicyVersion {
        self.engine.version()
    }

    fn take_num_generated_tokens(&mut self) -> u64 {
        self.engine.take_num_generated_tokens()
    }
}

impl Backend for WithReference<'_> {
    fn final_rewards(&mut self, groups: &[Group]) -> Result<Option<Vec<f64>>, ShellError> {
        let Some((estimator, coefficient, micro_batch)) = self.penalty else { return Ok(None) };
        let groups: Vec<&Group> = groups.iter().collect();
        let failed = |error: RunError| ShellError::Reference { reason: error.to_string() };
        let reference = reference_logprobs(self.engine, &groups, micro_batch)
            .map_err(|error| failed(RunError::Learner(error)))?;
        let (rewards, _) = penalised(estimator, coefficient, &groups, &reference).map_err(failed)?;
        Ok(Some(rewards))
    }
}

/// Log-probabilities of all trajectories under the reference, one row each `[B][T]`.
fn reference_logprobs(
    engine: &mut NativeEngine,
    groups: &[&Group],
    micro_batch: MicroBatch,
) -> Result<Ragged<f32>, LearnerError> {
    let sequences: Vec<LearnerSequence<'_>> = groups
        .iter()
        .flat_map(|group| {
            group.trajectories.iter().map(|trajectory| LearnerSequence {
                prompt: &group.prompt_token_ids,
                completion: &trajectory.token_ids,
            })
        })
        .collect();
    let lengths: Vec<usize> =
        sequences.iter().map(|sequence| sequence.prompt.len() + sequence.completion.len()).collect();
    let mut rows = Ragged::default();
    for range in micro_batches(&lengths, micro_batch) {
        let values = engine.reference_logprobs(&sequences[range.clone()])?;
        let mut rest = values.as_slice();
        for sequence in &sequences[range] {
            let (row, after) = rest.split_at(sequence.completion.len().min(rest.len()));
            rows.push_row(row.iter().copied());
            rest = after;
        }
    }
    Ok(rows)
}

/// Rewards after the KL penalty \[B\], and the mean divergence.
fn penalised(
    estimator: KlEstimator,
    coefficient: f64,
    groups: &[&Group],
    reference: &Ragged<f32>,
) -> Result<(Vec<f64>, f64), RunError> {
    let trajectories: Vec<_> = groups.iter().flat_map(|group| &group.trajectories).collect();
    let token_scores =
        Ragged::from_rows(trajectories.iter().map(|trajectory| vec![0.0; trajectory.token_ids.len()]));
    let mask: Vec<bool> =
        trajectories.iter().flat_map(|trajectory| trajectory.loss_mask.iter().copied()).collect();
    let old: Vec<f32> =
        trajectories.iter().flat_map(|trajectory| trajectory.logprobs.iter().copied()).collect();
    let penalty = kl::in_reward(estimator, coefficient, &token_scores, &mask, &old, reference.values())?;
    let rewards = trajectories
        .iter()
        .zip(&penalty.penalties)
        .map(|(trajectory, penalty)| trajectory.reward - penalty)
        .collect();
    Ok((rewards, penalty.mean_kl))
}

/// Passes what the shell sees on to the person who watches.
struct Watch<'a> {
    progress: &'a Progress,
    target: u64,
}

impl Observer for Watch<'_> {
    fn round_begins(&mut self, _step: u64, _round: u64, _num_prompts: usize) {}

    fn groups_finished(&mut self, _finished: usize, _num_tokens: u64) {}

    fn round_complete(&mut self, report: &RoundReport) {
        self.progress.groups(report.num_accumulated as u64, self.target);
        if report.is_filtered {
            self.progress.say(&report.to_string());
        }
    }

    fn epoch_begins(&mut self, epoch: u64) {
        self.progress.say(&format!("epoch {} begins", epoch + 1));
    }

    fn warn(&mut self, message: &str) {
        self.progress.warn(message);
    }
}

impl Session {
    /// Trains until the run ends.
    pub fn run(mut self) -> Result<Summary, RunError> {
        let result = self.steps();
        self.progress.finish();
        match result {
            Ok(ending) => {
                let checkpoint = self.saved.map(|step| self.directory.checkpoint(step));
                Ok(Summary {
                    ending,
                    steps: self.shell.machine().progress().steps,
                    run: self.directory.path().to_owned(),
                    checkpoint,
                    before: self.before,
                    after: self.latest.map(|(_, report)| report),
                })
            }
            Err(error) => {
                self.progress.warn(&format!("the run ends with an error: {error}"));
                Err(error)
            }
        }
    }

    fn steps(&mut self) -> Result<Ending, RunError> {
        // A kill may have come between a checkpoint and the removal of older ones.
        self.prune()?;
        loop {
            if let Some(reason) = self.early_stop.stopped() {
                return self.stopped_early(reason);
            }
            let step = self.shell.machine().progress().steps + 1;
            if self.interrupt.is_requested() {
                return self.interrupted();
            }
            let began = Instant::now();
            let mut timings = Timings::new();
            self.progress.groups(0, self.config.data.train_batch_size as u64);
            let first = self.shell.next_group();
            let collected = self.collect(&mut timings)?;
            collected.report.accounting.check()?;
            if matches!(collected.end, End::Ready | End::Skipped(_)) {
                self.observe_rounds(&collected, first, matches!(collected.end, End::Ready));
            }
            match &collected.end {
                End::Ready => {
                    self.train(step, &collected, began, timings)?;
                    self.given_up.clear();
                }
                End::Skipped(why) => {
                    self.progress
                        .warn(&format!("step {step} is skipped ({}) and tried again", skip_reason(*why)));
                    self.write_rollouts(step, &collected, None)?;
                    if self.config.rollout.save == tamis_config::SaveRollouts::All {
                        self.given_up.extend(collected.others);
                    }
                }
                End::Finished(why) => {
                    let why = *why;
                    if !collected.others.is_empty() {
                        self.progress.say(&format!("{}", collected.report));
                    }
                    self.write_rollouts(step, &collected, None)?;
                    self.finish()?;
                    return Ok(Ending::Finished(why));
                }
                End::Stopped(diagnosis) => {
                    self.write_rollouts(step, &collected, None)?;
                    self.finish()?;
                    return Err(RunError::Stopped {
                        diagnosis: diagnosis.clone(),
                        run: self.directory.path().to_owned(),
                    });
                }
            }
        }
    }

    /// Saves what is not saved yet and says how to go on.
    fn interrupted(&mut self) -> Result<Ending, RunError> {
        let steps = self.shell.machine().progress().steps;
        if self.saved != Some(steps) {
            self.save(steps)?;
        }
        Ok(Ending::Interrupted)
    }

    /// The last validation and checkpoint, where they have not been made.
    pub(super) fn finish(&mut self) -> Result<(), RunError> {
        let steps = self.shell.machine().progress().steps;
        let validates = self.config.validate.test_freq != tamis_config::Frequency::NEVER;
        if validates
            && !self.validation_prompts.is_empty()
            && self.latest.as_ref().is_none_or(|(at, _)| *at != steps)
        {
            let mut metrics = Metrics::new();
            self.validate(steps, &mut metrics)?;
            self.loggers.log(steps, &metrics)?;
        }
        if self.saved != Some(steps) {
            self.save(steps)?;
        }
        Ok(())
    }

    /// Where scheduling stands now, between two steps.
    pub(super) fn place(shell: &Shell, pool: &PromptPool) -> Between {
        Between {
            machine: shell.machine().clone(),
            position: pool.position(),
            next_group: shell.next_group(),
            carried: shell.held().map(CarriedGroup::of).collect(),
        }
    }

    fn micro_batch(&self) -> MicroBatch {
        self.update.micro_batch
    }

    fn collect(&mut self, timings: &mut Timings) -> Result<Collected, RunError> {
        let began = Instant::now();
        let micro_batch = self.micro_batch();
        // Before the filter only where the filter looks at rewards after KL: groups that are dropped cost no forward pass else.
        let penalty = match (self.divergence, &self.sieve.filter) {
            (Divergence::InReward { estimator, controller }, Some(_))
                if self.sieve.looks_at_final_reward() =>
            {
                Some((estimator, self.reward_kl.unwrap_or_else(|| controller.initial()).coef, micro_batch))
            }
            _ => None,
        };
        let mut backend = WithReference { engine: &mut self.engine, penalty };
        let mut watch = Watch { progress: &self.progress, target: self.config.data.train_batch_size as u64 };
        let collected = self.shell.collect(Dependencies {
            source: &mut self.pool,
            backend: &mut backend,
            scorer: &mut self.scorer,
            observer: &mut watch,
        })?;
        timings.add(GENERATION, began.elapsed());
        Ok(collected)
    }

    /// Trains on a complete batch, publishes, logs, validates and saves.
    fn train(
        &mut self,
        step: u64,
        collected: &Collected,
        began: Instant,
        mut timings: Timings,
    ) -> Result<(), RunError> {
        let thinned = self.thinned(&collected.trained);
        let groups: Vec<&Group> = match &thinned {
            Some(groups) => groups.iter().collect(),
            None => collected.trained.iter().map(|record| &record.group).collect(),
        };
        let mut metrics = Metrics::new();
        metrics.set("training/global_step", step as f64);
        metrics.set("training/epoch", collected.report.epoch as f64);

        let clock = Instant::now();
        let reference = match self.divergence {
            Divergence::None => None,
            Divergence::InLoss | Divergence::InReward { .. } => {
                Some(reference_logprobs(&mut self.engine, &groups, self.update.micro_batch)?)
            }
        };
        if reference.is_some() {
            timings.add("ref", clock.elapsed());
        }

        let clock = Instant::now();
        let (rewards, final_rewards) = self.final_rewards(&groups, reference.as_ref(), &mut metrics)?;
        let Advantages::PerTrajectory(advantages) =
            self.advantage.advantages(&AdvantageBatch::of_rewards(&rewards))?
        else {
            // The only estimator there is gives one number per trajectory.
            return Err(RunError::Learner(LearnerError::Engine {
                reason: "advantages per token are not supported by this estimator".to_owned(),
            }));
        };
        timings.add("adv", clock.elapsed());

        let clock = Instant::now();
        let total = self.config.train.total_steps.unwrap_or(0) as u64;
        let learning_rate = self.learning_rate.rate(step - 1, total);
        let mut settings = self.update.clone();
        settings.shuffle = settings.shuffle.map(|key| key.with(step));
        let report = update(
            &mut self.engine,
            &self.objective,
            &mut self.objective_state,
            TrainingBatch {
                groups: &groups,
                advantages: &advantages,
                reference: reference.as_ref().filter(|_| self.divergence == Divergence::InLoss),
            },
            &settings,
            learning_rate,
        )?;
        let version = self.engine.publish();
        self.shell.trained(version)?;
        self.between = Self::place(&self.shell, &self.pool);
        timings.add("update_actor", clock.elapsed());
        if report.num_skipped > 0 {
            self.progress.warn(&format!(
                "step {step}: the gradient of {} of {} updates was not finite; these updates were left out",
                report.num_skipped,
                report.num_skipped + report.num_updates
            ));
        }

        metrics.set("loss", report.loss);
        metrics.set("actor/grad_norm", report.grad_norm);
        metrics.set("actor/lr", learning_rate);
        metrics.set("actor/num_updates", report.num_updates as f64);
        metrics.set("actor/num_skipped_updates", report.num_skipped as f64);
        metrics.extend(report.metrics.iter().map(|(name, value)| (name.as_str(), *value)));
        // Members that the filter did not choose have no advantage; their scores are the group's all the same.
        let mut of_members = advantages.values().to_vec();
        let members = thinned.iter().flatten().flat_map(|group| &group.trajectories);
        for (advantage, _) in of_members.iter_mut().zip(members).filter(|(_, member)| !member.is_scored()) {
            *advantage = f64::NAN;
        }
        let groups: Vec<&Group> = collected.trained.iter().map(|record| &record.group).collect();
        let columns = TrainedColumns {
            advantages: Some(&of_members),
            returns: None,
            final_rewards: final_rewards.as_deref(),
            max_prompt_length: Some(self.config.data.max_prompt_length),
        };
        trained_metrics(&groups, &columns, &mut metrics);
        let generated: Vec<&Group> = collected
            .trained
            .iter()
            .chain(&collected.others)
            .filter(|record| record.step == step && !record.group.trajectories.is_empty())
            .map(|record| &record.group)
            .chain(
                self.shell
                    .held()
                    .filter(|record| record.step == step && collected.carried_out.contains(&record.group.id))
                    .map(|record| &record.group),
            )
            .collect();
        generated_metrics(&generated, &mut metrics);
        let num_generated: usize = generated.iter().map(|group| group.num_tokens()).sum();
        metrics.extend(collected.report.metrics());
        for (reason, number) in collected.report.all.dropped_by() {
            let reason = reason.replace(' ', "_").replace("other_", "");
            metrics.set(format!("train/num_dropped/{reason}"), number as f64);
        }
        let position = self.pool.position();
        let share = position.position as f64 / self.pool.num_prompts().max(1) as f64;
        metrics.set("epoch", position.epoch as f64 + share);
        let num_tokens = crate::batch_metrics::num_tokens(&groups);
        self.num_tokens += crate::batch_metrics::num_tokens(&generated) as u64;
        metrics.set("num_tokens", self.num_tokens as f64);

        let mut rest = of_members.as_slice();
        let advantages_of_trained: Vec<Vec<f64>> = advantages
            .rows()
            .map(|row| {
                let (own, after) = rest.split_at(row.len().min(rest.len()));
                rest = after;
                own.to_vec()
            })
            .collect();
        self.write_rollouts(step, collected, Some(&advantages_of_trained))?;
        self.progress.say(&collected.report.to_string());

        let is_last = collected.report.is_last;
        let frequency = self.config.validate.test_freq;
        if !self.validation_prompts.is_empty()
            && (frequency.is_due(step) || (is_last && frequency != tamis_config::Frequency::NEVER))
        {
            let clock = Instant::now();
            self.validate(step, &mut metrics)?;
            self.observe_validation(&metrics);
            timings.add("testing", clock.elapsed());
        }
        self.early_stop_between = self.early_stop.state().clone();
        timings.add(STEP, began.elapsed());
        timings.metrics(TokenCounts { generated: num_generated, trained: num_tokens }, &mut metrics);
        metrics.add_aliases();
        self.loggers.log(step, &metrics)?;
        self.progress.step(step, &StepView::of(&metrics));
        if self.config.checkpoint.save_freq.is_due(step) || is_last {
            self.save(step)?;
        }
        Ok(())
    }

    /// The groups as they are trained, where the filter chooses among their members: those that are not chosen are unscored to advantages and
    /// loss. `None` where all members train.
    fn thinned(&self, trained: &[Record]) -> Option<Vec<Group>> {
        let thin = |record: &Record| {
            let chosen = self.sieve.chosen_of(record)?;
            let mut group = record.group.clone();
            for (trajectory, _) in group.trajectories.iter_mut().zip(chosen).filter(|(_, chosen)| !chosen) {
                trajectory.reward = f64::NAN;
            }
            Some(group)
        };
        trained.iter().map(thin).collect()
    }

    /// Rewards `[P][G]` that advantages are made of, and those after KL where it is in the reward \[B\].
    fn final_rewards(
        &mut self,
        groups: &[&Group],
        reference: Option<&Ragged<f32>>,
        metrics: &mut Metrics,
    ) -> Result<(Ragged<f64>, Option<Vec<f64>>), RunError> {
        let sizes: Vec<usize> = groups.iter().map(|group| group.trajectories.len()).collect();
        let plain: Vec<f64> =
            groups.iter().flat_map(|group| &group.trajectories).map(|trajectory| trajectory.reward).collect();
        let (values, finals) = match (self.divergence, reference) {
            (Divergence::InReward { estimator, controller }, Some(reference)) => {
                let state = self.reward_kl.unwrap_or_else(|| controller.initial());
                let (rewards, mean_kl) = penalised(estimator, state.coef, groups, reference)?;
                metrics.set("actor/reward_kl_penalty", mean_kl);
                metrics.set("actor/reward_kl_penalty_coeff", state.coef);
                self.reward_kl = Some(moved(controller, state, mean_kl, plain.len()));
                (rewards.clone(), Some(rewards))
            }
            _ => (plain, None),
        };
        let rows = Ragged::from_lengths(values, &sizes)
            .map_err(|error| RunError::Learner(LearnerError::Engine { reason: error.to_string() }))?;
        Ok((rows, finals))
    }

    /// Measures the policy on the held-out prompts.
    pub(super) fn validate(&mut self, step: u64, metrics: &mut Metrics) -> Result<(), RunError> {
        let (rows, report) = validation::sample(
            &mut self.engine,
            &mut self.scorer,
            &self.validation_prompts,
            &self.validation,
            &format!("validation/{step}"),
            step,
        )?;
        for warning in self.scorer.take_warnings() {
            self.progress.warn(&warning);
        }
        validation::metrics(&rows, &self.config.validate, metrics);
        let score = match self.config.checkpoint.keep_best.as_ref().and_then(|keep| keep.metric.as_deref()) {
            Some(name) => metrics.get(name).ok_or_else(|| {
                let names: Vec<&str> =
                    metrics.iter().map(|(name, _)| name).filter(|name| name.starts_with("val-")).collect();
                AssembleError::setting(
                    format!("checkpoint.keep_best.metric: there is no figure `{name}` in this validation"),
                    format!("choose one of {}", names.join(", ")),
                )
            })?,
            None => report.accuracy,
        };
        self.scores.insert(step, score);
        if report.num_failed > 0 {
            self.progress
                .warn(&format!("{} validation prompts could not be generated from", report.num_failed));
        }
        self.progress.say(&format!(
            "validation after step {step}: {:.1}% of {} prompts, mean length {:.1} tokens",
            100.0 * report.accuracy,
            report.num_prompts,
            report.mean_length
        ));
        self.latest = Some((step, report));
        Ok(())
    }

    /// Writes a checkpoint of the state between two steps.
    pub(super) fn save(&mut self, step: u64) -> Result<(), RunError> {
        // A logger that is switched off keeps what it wrote before.
        let mut logs = self.base_logs.clone();
        self.loggers.sync(&mut logs)?;
        logs.record(RUN_LOG, self.progress.sync()?);
        let state = RunState {
            format: RunState::FORMAT,
            step,
            version: self.engine.version(),
            position: self.between.position,
            machine: self.between.machine.clone(),
            next_group: self.between.next_group,
            carried: self.between.carried.clone(),
            data_crc32: self.data_crc32,
            objective: self.objective_state,
            reward_kl: self.reward_kl,
            logs,
            num_tokens: self.num_tokens,
            scores: self.scores.clone(),
            before: self.before.clone(),
            latest: self.latest.clone(),
            early_stop: self.early_stop_between.clone(),
        };
        let pending = self.directory.begin_checkpoint(step)?;
        let dtype = match self.config.model.save_dtype {
            tamis_config::SaveDtype::F32 => tamis_model::SaveDtype::F32,
            tamis_config::SaveDtype::Bf16 => tamis_model::SaveDtype::Bf16,
            tamis_config::SaveDtype::F16 => tamis_model::SaveDtype::F16,
        };
        checkpoint::write(self.directory.disk(), pending.path(), &self.engine, &state, dtype)?;
        let folder = pending.commit()?;
        self.saved = Some(step);
        self.progress.say(&format!("checkpoint {}", folder.path.display()));
        self.prune()
    }

    /// Removes the checkpoints that need not be kept.
    fn prune(&self) -> Result<(), RunError> {
        let keep = &self.config.checkpoint;
        self.directory.prune(
            crate::run_directory::Keep {
                last: keep.keep_last.unwrap_or(usize::MAX),
                best: keep.keep_best.as_ref().map_or(0, |best| best.k),
            },
            &self.scores,
        )?;
        Ok(())
    }

    /// Writes what was generated in the step, as far as the configuration wants it.
    fn write_rollouts(
        &mut self,
        step: u64,
        collected: &Collected,
        advantages: Option<&[Vec<f64>]>,
    ) -> Result<(), RunError> {
        use tamis_config::SaveRollouts;
        let metric = if self.sieve.filter.is_some() { self.sieve.metric.to_string() } else { String::new() };
        let mut rows = Vec::new();
        let others: &[Record] =
            if self.config.rollout.save == SaveRollouts::All { &collected.others } else { &[] };
        if self.config.rollout.save == SaveRollouts::Off {
            return Ok(());
        }
        // Attempts at this step that were skipped before are in the same file, which is written anew.
        for (place, record) in collected.trained.iter().chain(others).chain(&self.given_up).enumerate() {
            for (i, trajectory) in record.group.trajectories.iter().enumerate() {
                let advantage = advantages
                    .filter(|_| place < collected.trained.len())
                    .and_then(|rows| rows.get(place)?.get(i).copied())
                    .filter(|advantage| !advantage.is_nan());
                rows.push(RolloutRow {
                    step: record.step,
                    round: record.round,
                    group: &record.group,
                    trajectory,
                    data_source: &record.prompt.prompt.data_source,
                    prompt: &record.prompt.text,
                    ground_truth: record.prompt.prompt.ground_truth.as_deref(),
                    advantage,
                    metric: &metric,
                    metric_value: self.sieve.value_of(record, i),
                    verdict: record.fate.name(),
                });
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        write_rollouts(&self.directory.rollout(step), &rows)?;
        Ok(())
    }
}

fn moved(controller: KlController, state: KlState, mean_kl: f64, num_trajectories: usize) -> KlState {
    controller.updated(state, mean_kl, num_trajectories as f64)
}

fn skip_reason(why: tamis_core::schedule::SkipReason) -> &'static str {
    match why {
        tamis_core::schedule::SkipReason::LimitReached => "the limit on rounds was reached",
        tamis_core::schedule::SkipReason::EmptyRound => "a round kept no group",
        tamis_core::schedule::SkipReason::DataExhausted => "the data ended and nothing was kept",
    }
}
