//! The step loop.

use std::fmt::Write as _;
use std::time::Instant;

use tamis_core::advantage::shaping::GroupCounts;
use tamis_core::group::Group;
use tamis_core::objective::{KlController, KlEstimator, KlState, PolicyLoss, kl};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::Accounting;
use tamis_rollout::{
    Backend, Collected, Dependencies, End, Generator, GeneratorError, GroupRequest, Outcome, Record,
    Sampling, Shell, ShellError,
};

use super::advantages::{Credited, StepRewards};
use super::attempts::Attempts;
use super::members::{counted, of_trained, of_trajectories, thinned};
use super::save::TrainedRows;
use super::watch::Watch;
use super::{Between, Ending, MOST_SKIPPED_UPDATES, RunError, Session, Summary, UniformGroups};
use crate::assemble::objective::Divergence;
use crate::assemble::schedule::is_group_relative;
use crate::batch_metrics::{
    Spread, Summary as BatchSummary, TrainedColumns, generated_metrics, trained_metrics,
};
use crate::checkpoint::CarriedGroup;
use crate::diagnostics;
use crate::learner::{Learner, LearnerError};
use crate::left_out::{left_out, reject};
use crate::metrics::Metrics;
use crate::micro_batch::{MicroBatch, pass_over, sequences};
use crate::native::NativeEngine;
use crate::pool::PromptPool;
use crate::progress::StepView;
use crate::run_log::Level;
use crate::timings::{GENERATION, STEP, TokenCounts};
use crate::update::{TrainingBatch, update};

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
        let reference =
            reference_logprobs(self.engine, &groups, micro_batch).map_err(|error| match error {
                LearnerError::Interrupted => ShellError::Generator(GeneratorError::Interrupted),
                error => failed(RunError::Learner(error)),
            })?;
        let (rewards, ..) = penalised(estimator, coefficient, &groups, &reference).map_err(failed)?;
        Ok(Some(rewards))
    }
}

/// Log-probabilities of all trajectories under the reference, one row each `[B][T]`.
fn reference_logprobs(
    engine: &mut NativeEngine,
    groups: &[&Group],
    micro_batch: MicroBatch,
) -> Result<Ragged<f32>, LearnerError> {
    pass_over(&sequences(groups), micro_batch, |sequences| engine.reference_logprobs(sequences))
}

/// Rewards after the KL penalty \[B\], what each token was charged with \[N\], and the mean divergence.
fn penalised(
    estimator: KlEstimator,
    coefficient: f64,
    groups: &[&Group],
    reference: &Ragged<f32>,
) -> Result<(Vec<f64>, Vec<f64>, f64), RunError> {
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
    let token_penalties = penalty.token_rewards.iter().map(|reward| -reward).collect();
    Ok((rewards, token_penalties, penalty.mean_kl))
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
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// Writes an error into the run log; the command line prints it.
    pub(super) fn note_failure(&self, error: &RunError) {
        let mut text = format!("the run ends with an error: {error}");
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let _ = write!(text, "\n  caused by: {cause}");
            source = cause.source();
        }
        self.progress.note(Level::Error, &text);
    }

    fn steps(&mut self) -> Result<Ending, RunError> {
        // A kill may have come between a checkpoint and the removal of older ones.
        self.prune()?;
        match self.go_on() {
            Err(error) if error.is_interruption() => self.interrupted(),
            ended => ended,
        }
    }

    fn go_on(&mut self) -> Result<Ending, RunError> {
        if self.is_unmeasured {
            self.make_up_measurement()?;
        }
        self.attempts = Attempts::new();
        loop {
            if let Some(reason) = self.early_stop.stopped() {
                return self.stopped_early(reason);
            }
            let step = self.shell.machine().progress().steps + 1;
            if self.interrupt.is_requested() {
                return self.interrupted();
            }
            self.progress.groups(0, self.config.data.train_batch_size as u64);
            let first = self.shell.next_group();
            let collected = self.collect()?;
            collected.report.accounting.check()?;
            if matches!(collected.end, End::Ready | End::Skipped(_)) {
                self.observe_rounds(&collected, first, matches!(collected.end, End::Ready));
            }
            match &collected.end {
                // Nothing is changed yet: a resume collects the same batch.
                End::Ready if self.interrupt.is_requested() => return self.interrupted(),
                End::Ready => {
                    self.train(step, &collected)?;
                    self.attempts = Attempts::new();
                }
                End::Skipped(why) => {
                    self.progress
                        .warn(&format!("step {step} is skipped ({}) and tried again", skip_reason(*why)));
                    self.write_rollouts(step, &collected, TrainedRows::NONE)?;
                    self.attempts.give_up(collected);
                }
                End::Finished(why) => {
                    let why = *why;
                    if !collected.others.is_empty() {
                        self.progress.say(&format!("{}", collected.report));
                    }
                    self.write_rollouts(step, &collected, TrainedRows::NONE)?;
                    self.finish()?;
                    return Ok(Ending::Finished(why));
                }
                End::Stopped(diagnosis) => {
                    self.write_rollouts(step, &collected, TrainedRows::NONE)?;
                    self.finish()?;
                    return Err(RunError::Stopped {
                        diagnosis: diagnosis.clone(),
                        run: self.directory.path().to_owned(),
                    });
                }
            }
        }
    }

    /// Saves the state after the last trained step, where it is not saved yet. What was begun after it is done again by a resume.
    fn interrupted(&mut self) -> Result<Ending, RunError> {
        let steps = self.shell.machine().progress().steps;
        if self.saved != Some(steps) {
            self.save(steps)?;
        }
        Ok(Ending::Interrupted)
    }

    /// The last validation and checkpoint, where they have not been made.
    pub(super) fn finish(&mut self) -> Result<(), RunError> {
        let totals = self.shell.machine().totals();
        totals.check()?;
        self.progress.say(&told(totals));
        self.last_measurement()?;
        let steps = self.shell.machine().progress().steps;
        self.tell_untrained_policy(steps);
        if self.saved != Some(steps) {
            self.save(steps)?;
        }
        Ok(())
    }

    /// Where scheduling stands now, between two steps.
    pub(super) fn place(shell: &Shell, pool: &PromptPool, uniform_groups: UniformGroups) -> Between {
        Between {
            uniform_groups,
            machine: shell.machine().clone(),
            position: pool.position(),
            next_group: shell.next_group(),
            carried: shell.held().map(CarriedGroup::of).collect(),
        }
    }

    fn micro_batch(&self) -> MicroBatch {
        self.update.micro_batch
    }

    fn collect(&mut self) -> Result<Collected, RunError> {
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
        self.attempts.timings.add(GENERATION, began.elapsed());
        Ok(collected)
    }

    /// Trains on a complete batch, publishes, logs, validates and saves.
    fn train(&mut self, step: u64, collected: &Collected) -> Result<(), RunError> {
        let mut timings = std::mem::take(&mut self.attempts.timings);
        let whole_groups: Vec<&Group> = collected.trained.iter().map(|record| &record.group).collect();
        let chosen = self.chosen(&collected.trained);
        let thinned = chosen.as_ref().map(|chosen| thinned(&whole_groups, chosen));
        let groups = thinned.as_ref().map_or_else(|| whole_groups.clone(), |groups| groups.iter().collect());
        if self.sieve.filter.is_some()
            && is_group_relative(&self.config)
            && let Some(warning) = self.uniform_groups.see(step, &groups, self.sieve.remedy())
        {
            self.progress.warn(&warning);
        }
        let mut metrics = Metrics::new();
        metrics.set("training/global_step", step as f64);
        metrics.set("training/epoch", collected.report.epoch as f64);

        let clock = Instant::now();
        self.progress.stage("training");
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
        let greedy = self.greedy_rewards(step, collected, &mut metrics)?;
        if greedy.is_some() {
            timings.add("gen_max", clock.elapsed());
        }
        let clock = Instant::now();
        let mut passes = self.passes(&groups)?;
        if !passes.is_empty() {
            timings.add("advantage_passes", clock.elapsed());
        }
        passes.values = self.values(&groups, &mut timings)?;
        let clock = Instant::now();
        let mut whole = self.attempts.whole(&collected.report);
        whole.accounting.check()?;
        let (rewards, final_rewards) = self.final_rewards(&groups, reference.as_ref(), &mut metrics)?;
        let generated = self.generated(step, collected);
        let counts = GroupCounts { kept: whole.all.kept, generated: whole.all.groups };
        let Credited { shaped, returns, state } =
            self.credited(step, &groups, &generated, &rewards, (greedy.as_deref(), &passes), counts)?;
        self.advantage_state = state;
        metrics.extend(shaped.metrics.iter().copied());
        let dropped = self.dropped(collected)?;
        let mut left_out =
            left_out(&whole_groups, chosen.as_deref(), shaped.kept.as_ref(), self.update.mask_truncated);
        timings.add("adv", clock.elapsed());

        let old_values = passes.values.as_ref();
        let critic_in_a_row =
            self.train_critic(step, &groups, old_values, returns.as_ref(), &mut metrics, &mut timings)?;

        let clock = Instant::now();
        let old = self.old_logprobs(&groups)?;
        if old.is_some() {
            timings.add("old_log_prob", clock.elapsed());
        }

        let clock = Instant::now();
        let total = self.planned_steps();
        let learning_rate = self.learning_rate.rate(step - 1, total);
        let mut settings = self.update.clone();
        settings.shuffle = settings.shuffle.map(|key| key.with(step));
        settings.key = settings.key.with(step);
        let batch = TrainingBatch {
            groups: &groups,
            advantages: &shaped.advantages,
            kept: shaped.kept.as_ref(),
            policy_factor: shaped.policy_factor,
            old: old.as_ref(),
            dropped,
            reference: reference.as_ref().filter(|_| self.divergence == Divergence::InLoss),
        };
        // Weights that are not trained are not published anew: what they sampled is still theirs.
        let report = if self.trains_policy(step) {
            let state = &mut self.objective_state;
            let report = update(&mut self.engine, &self.objective, state, batch, &settings, learning_rate)?;
            self.engine.publish();
            timings.add("update_actor", clock.elapsed());
            Some(report)
        } else {
            None
        };
        if let Some(report) = &report {
            reject(&mut left_out, &report.rejected);
        }
        let (num_left_out, tokens_left_out) = counted(&whole_groups, &left_out);
        whole.leave_out(num_left_out, tokens_left_out);
        let num_members: usize = whole_groups.iter().map(|group| group.trajectories.len()).sum();
        if num_members > 0 && num_left_out as usize == num_members {
            self.progress.warn(&format!(
                "step {step}: none of its {num_members} trajectories bears any loss, so nothing is learned ({}); train/num_left_out/* counts them by reason",
                left_out.iter().flatten().next().map_or("left out", |reason| reason.name())
            ));
        }
        whole.accounting.check()?;
        self.shell.trained(self.engine.version(), num_left_out)?;
        self.between = Self::place(&self.shell, &self.pool, self.uniform_groups);
        let in_a_row =
            report.as_ref().map_or(0, |report| most_in_a_row(&mut self.skipped_updates, &report.skipped));
        if let Some(report) = report.as_ref().filter(|report| report.num_skipped > 0) {
            self.progress.warn(&format!(
                "step {step}: the gradient of {} of {} updates was not finite; these updates were left out",
                report.num_skipped,
                report.num_skipped + report.num_updates
            ));
        }

        if let Some(report) = &report {
            metrics.set("loss", report.loss);
            metrics.set("actor/grad_norm", report.grad_norm);
            metrics.set("actor/lr", learning_rate);
            metrics.set("actor/num_updates", report.num_updates as f64);
            metrics.set("actor/num_skipped_updates", report.num_skipped as f64);
            metrics.extend(report.metrics.iter().map(|(name, value)| (name.as_str(), *value)));
        }
        let credited = of_trained(&shaped.advantages, &whole_groups, &left_out);
        let columns = TrainedColumns {
            advantages: Some(Spread::from(&credited)),
            returns: returns.as_ref().map(Spread::PerToken),
            final_rewards: final_rewards.as_deref(),
            left_out: &left_out,
            max_prompt_length: Some(self.config.data.max_prompt_length),
        };
        trained_metrics(&whole_groups, &columns, &mut metrics);
        diagnostics::of_trained(&whole_groups, &shaped.advantages, &left_out, &mut metrics);
        let generated = self.generated(step, collected);
        generated_metrics(&generated, &mut metrics);
        diagnostics::of_generated(&generated, &mut metrics);
        let num_generated: usize = generated.iter().map(|group| group.num_tokens()).sum();
        metrics.extend(whole.metrics());
        if let Some(chosen) = &chosen {
            // The machine knows whole groups only; those that the filter did not choose are not trained on.
            metrics.set_some("train/filter_metric/mean", self.mean_of_chosen(&collected.trained, chosen));
        }
        metrics.set("dynamic_sampling/num_given_up_attempts", self.attempts.num_given_up as f64);
        for (reason, number) in whole.all.dropped_by() {
            let reason = reason.replace(' ', "_").replace("other_", "");
            metrics.set(format!("train/num_dropped/{reason}"), number as f64);
        }
        let position = self.pool.position();
        let share = position.position as f64 / self.pool.num_prompts().max(1) as f64;
        metrics.set("epoch", position.epoch as f64 + share);
        let num_tokens = metrics.get("perf/total_num_tokens").unwrap_or(0.0) as usize;
        let num_tokens_generated = crate::batch_metrics::num_tokens(&generated) as u64;
        self.num_tokens += num_tokens_generated;
        metrics.set("num_tokens", self.num_tokens as f64);

        let rows =
            TrainedRows { advantages: &of_trajectories(&credited, &whole_groups), left_out: &left_out };
        self.write_rollouts(step, collected, rows)?;
        self.progress.say(&whole.to_string());

        let is_last = collected.report.is_last;
        // Before validation, so that its figures come last even where they are added later.
        metrics.add_aliases();
        if self.measures_after(step, is_last) {
            let clock = Instant::now();
            match self.validate(step, &mut metrics) {
                Err(error) if error.is_interruption() => self.is_unmeasured = true,
                measured => {
                    measured?;
                    self.observe_validation(&metrics);
                }
            }
            timings.add("testing", clock.elapsed());
        }
        self.early_stop_between = self.early_stop.state().clone();
        timings.add(STEP, self.attempts.began.elapsed());
        timings.metrics(TokenCounts { generated: num_generated, trained: num_tokens }, &mut metrics);
        metrics.add_aliases();
        self.loggers.log(step, &metrics)?;
        self.progress.step(step, &StepView::of(&metrics));
        if self.config.checkpoint.save_freq.is_due(step) || is_last || self.is_unmeasured {
            self.save(step)?;
        }
        if in_a_row.max(critic_in_a_row) < MOST_SKIPPED_UPDATES {
            return Ok(());
        }
        if self.saved != Some(step) {
            self.save(step)?;
        }
        let run = self.directory.path().to_owned();
        // A critic without finite gradients has values that may be the policy's trouble, not the other way round.
        Err(if critic_in_a_row >= MOST_SKIPPED_UPDATES {
            RunError::CriticNotFinite { updates: critic_in_a_row, step, run }
        } else {
            RunError::NotFinite { updates: in_a_row, step, run }
        })
    }

    /// Steps that the run is to have, for schedules of the learning rate: as configured, or those that its epochs hold where every step
    /// is one round of the same number of prompts. 0 where neither says.
    pub(super) fn planned_steps(&self) -> u64 {
        let train = &self.config.train;
        let of_epochs =
            |epochs: usize| (epochs * self.pool.num_prompts()).div_ceil(self.config.gen_batch_size().max(1));
        train.total_steps.or_else(|| train.total_epochs.map(of_epochs)).unwrap_or(0) as u64
    }

    /// Everything that the step generated, in all of its attempts and before any filter.
    fn generated<'a>(&'a self, step: u64, collected: &'a Collected) -> Vec<&'a Group> {
        collected
            .trained
            .iter()
            .chain(&collected.others)
            .chain(&self.attempts.given_up)
            .filter(|record| record.step == step && !record.group.trajectories.is_empty())
            .map(|record| &record.group)
            .chain(
                self.shell
                    .held()
                    .filter(|record| record.step == step && collected.carried_out.contains(&record.group.id))
                    .map(|record| &record.group),
            )
            .collect()
    }

    /// Whether an earlier policy sampled some of it.
    pub(super) fn is_stale(&self, group: &Group) -> bool {
        let version = self.engine.version();
        group.trajectories.iter().any(|trajectory| trajectory.versions != (version, version))
    }

    /// Log-probabilities under the policy at the start of the step, where they are asked for and are not those of generation: this
    /// engine samples from the policy that it trains, so that only groups of an earlier version differ.
    fn old_logprobs(&mut self, groups: &[&Group]) -> Result<Option<Ragged<f32>>, RunError> {
        let is_decoupled = matches!(self.objective.policy, PolicyLoss::Decoupled(_))
            || self.update.correction.as_ref().is_some_and(|correction| !correction.mode.is_bypass());
        if !is_decoupled || !groups.iter().any(|group| self.is_stale(group)) {
            return Ok(None);
        }
        let rows = pass_over(&sequences(groups), self.update.micro_batch, |sequences| {
            self.engine.policy_scores(sequences, 1.0).map(|scores| scores.logprobs)
        })?;
        Ok(Some(rows))
    }

    /// Which members of the groups train `[P][G]`, where the filter chooses among them; `None`: all.
    fn chosen(&self, trained: &[Record]) -> Option<Vec<Vec<bool>>> {
        trained.iter().map(|record| self.sieve.chosen_of(record)).collect()
    }

    /// Mean of the filter's metric over the members that it chose.
    fn mean_of_chosen(&self, trained: &[Record], chosen: &[Vec<bool>]) -> Option<f64> {
        let members = trained.iter().zip(chosen).flat_map(|(record, chosen)| {
            let values = self.sieve.values_of(record).into_iter().zip(chosen);
            values.filter_map(|(value, chosen)| chosen.then_some(value))
        });
        BatchSummary::of(members).map(|summary| summary.mean)
    }

    /// Rewards `[P][G]` that advantages are made of, and those after KL where it is in the reward \[B\].
    fn final_rewards(
        &mut self,
        groups: &[&Group],
        reference: Option<&Ragged<f32>>,
        metrics: &mut Metrics,
    ) -> Result<(StepRewards, Option<Vec<f64>>), RunError> {
        let sizes: Vec<usize> = groups.iter().map(|group| group.trajectories.len()).collect();
        let plain: Vec<f64> =
            groups.iter().flat_map(|group| &group.trajectories).map(|trajectory| trajectory.reward).collect();
        let (values, finals, token_penalties) = match (self.divergence, reference) {
            (Divergence::InReward { estimator, controller }, Some(reference)) => {
                let state = self.reward_kl.unwrap_or_else(|| controller.initial());
                let (rewards, token_penalties, mean_kl) =
                    penalised(estimator, state.coef, groups, reference)?;
                metrics.set("actor/reward_kl_penalty", mean_kl);
                metrics.set("actor/reward_kl_penalty_coeff", state.coef);
                self.reward_kl = Some(moved(controller, state, mean_kl, plain.len()));
                (rewards.clone(), Some(rewards), Some(token_penalties))
            }
            _ => (plain, None, None),
        };
        let rows = Ragged::from_lengths(values, &sizes)
            .map_err(|error| RunError::Learner(LearnerError::Engine { reason: error.to_string() }))?;
        Ok((StepRewards { rewards: rows, token_penalties }, finals))
    }
}

/// Counts updates that were left out one after the other, over steps; the most that there were in a row.
pub(super) fn most_in_a_row(count: &mut u32, skipped: &[bool]) -> u32 {
    let mut most = 0;
    for skipped in skipped {
        *count = if *skipped { *count + 1 } else { 0 };
        most = most.max(*count);
    }
    most
}

/// Where the groups of the whole run went, in one line.
fn told(totals: &Accounting) -> String {
    let [(_, generated), (_, carried_in), places @ ..] = totals.places();
    let went: Vec<String> = places
        .into_iter()
        .filter(|(_, count)| count.groups > 0)
        .map(|(place, count)| format!("{} {}", count.groups, place.replace('_', " ")))
        .collect();
    let went = if went.is_empty() { "0".to_owned() } else { went.join(" + ") };
    // Nothing is carried into a run.
    let mut told = format!("groups of the run: {} generated = {went}", generated.groups + carried_in.groups);
    if totals.left_out.trajectories > 0 {
        let _ = write!(
            told,
            "; {} trajectories of trained groups left out of the loss",
            totals.left_out.trajectories
        );
    }
    told
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

#[cfg(test)]
mod tests {
    use tamis_core::schedule::Count;

    use super::*;

    #[test]
    fn the_groups_of_a_run_in_one_line() {
        assert_eq!(told(&Accounting::default()), "groups of the run: 0 generated = 0");
        let mut totals = Accounting {
            generated: Count::of(10, 4),
            trained: Count::of(4, 4),
            dropped: Count::of(5, 4),
            surplus: Count::of(1, 4),
            ..Accounting::default()
        };
        assert_eq!(told(&totals), "groups of the run: 10 generated = 4 trained + 5 dropped + 1 surplus");
        totals.leave_out(7);
        assert_eq!(
            told(&totals),
            "groups of the run: 10 generated = 4 trained + 5 dropped + 1 surplus; 7 trajectories of trained groups left out of the loss"
        );
    }
}
