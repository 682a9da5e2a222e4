//! One step: a complete batch becomes advantages, updates, metrics.

use std::collections::BTreeMap;
use std::time::Instant;

use tamis_config::LoggerKind;
use tamis_core::advantage::shaping::GroupCounts;
use tamis_core::group::Group;
use tamis_core::objective::PolicyLoss;
use tamis_core::ragged::Ragged;
use tamis_env::reward::TrainerState;
use tamis_rollout::{Collected, GroupGenerator, Record};

use super::advantages::Credited;
use super::members::{counted, of_trained, of_trajectories, thinned};
use super::reference::{reference_column, reference_logprobs};
use super::save::{POLICY_RATE, TrainedRows};
use super::settings::{planned_steps, trainer_state};
use super::{MOST_SKIPPED_UPDATES, RunError, Session};
use crate::assemble::objective::Divergence;
use crate::assemble::schedule::is_group_relative;
use crate::batch_metrics::{
    Spread, Summary as BatchSummary, TrainedColumns, generated_metrics, trained_metrics,
};
use crate::diagnostics;
use crate::learner::Learner;
use crate::left_out::{left_out, reject};
use crate::logger::console;
use crate::metrics::Metrics;
use crate::micro_batch::{pass_over, sequences};
use crate::native::NativeCritic;
use crate::progress::StepView;
use crate::timings::{GENERATION, STEP, TokenCounts, UPDATE};
use crate::update::{TrainingBatch, UpdateReport, update};

/// What reward functions logged of the step's completions (TRL's `log_metric`): the mean of each number, in the order of the completions.
fn logged_metrics(records: &[&Record], metrics: &mut Metrics) {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    let logged = records.iter().flat_map(|record| &record.logged).flat_map(|logged| &logged.metrics);
    for (name, values) in logged {
        let (sum, count) = sums.entry(name).or_default();
        *sum += values.iter().sum::<f64>();
        *count += values.len();
    }
    for (name, (sum, count)) in sums {
        metrics.set(format!("reward_log/{name}"), sum / count as f64);
    }
}

impl Session {
    /// Trains on a complete batch, publishes, logs, validates and saves. Where an interrupt gave the step up, what it had moved beside
    /// weights is put back: weights have moved only if the state before the step is saved.
    pub(super) fn train(&mut self, step: u64, collected: &Collected) -> Result<(), RunError> {
        self.engine.begin_updates(self.saved == Some(step - 1));
        let before = (self.advantage_state.clone(), self.reward_kl, self.objective_state);
        let skipped_critic_updates = self.skipped_critic_updates;
        let critic_version = self.engine.critic().map(NativeCritic::version);
        let trained = self.train_whole(step, collected);
        if trained.as_ref().is_err_and(RunError::is_interruption) {
            (self.advantage_state, self.reward_kl, self.objective_state) = before;
            self.skipped_critic_updates = skipped_critic_updates;
            if let Some((critic, version)) = self.engine.critic_mut().zip(critic_version) {
                critic.set_version(version);
            }
        }
        trained
    }

    fn train_whole(&mut self, step: u64, collected: &Collected) -> Result<(), RunError> {
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
                let (engine, micro_batch) = (&mut self.engine, self.update.micro_batch);
                let pass = |groups: &[&Group]| reference_logprobs(engine, groups, micro_batch);
                Some(reference_column(&collected.trained, pass)?)
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
        let generated: Vec<&Group> =
            self.generated(step, collected).into_iter().map(|record| &record.group).collect();
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
        if self.trains_policy(step) {
            self.analyse_gradients(step, batch, &settings, (&mut metrics, &mut timings))?;
        }
        let clock = Instant::now();
        // Weights that are not trained are not published anew: what they sampled is still theirs.
        let report = if self.trains_policy(step) {
            let state = &mut self.objective_state;
            let report = update(&mut self.engine, &self.objective, state, batch, &settings, learning_rate)?;
            timings.add(UPDATE, clock.elapsed());
            Some(report)
        } else {
            None
        };
        let diverged = self.check_finite(step, POLICY_RATE).err();
        if report.is_some() && diverged.is_none() {
            self.engine.publish();
        }
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
        self.shell.trained(num_left_out)?;
        self.shell.published(self.engine.version())?;
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

        let is_idle = report.as_ref().is_some_and(|report| {
            self.count_untrained(report.skipped.len(), left_out.iter().flatten().next().copied())
        });

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
        let trained = trained_metrics(&whole_groups, &columns, &mut metrics);
        let zero_advantage =
            diagnostics::of_trained(&whole_groups, &shaped.advantages, &left_out, &mut metrics);
        let records = self.generated(step, collected);
        logged_metrics(&records, &mut metrics);
        let generated: Vec<&Group> = records.into_iter().map(|record| &record.group).collect();
        let facts = generated_metrics(&generated, &mut metrics);
        let trains_on_all = generated.len() == whole_groups.len() && whole.accounting.carried_in.groups == 0;
        diagnostics::of_generated(&generated, &mut metrics);
        let num_generated: usize = generated.iter().map(|group| group.num_tokens()).sum();
        metrics.extend(whole.metrics());
        if let Some(chosen) = &chosen {
            // The machine knows whole groups only; those that the filter did not choose are not trained on.
            metrics.set_some("train/filter_metric/mean", Self::mean_of_chosen(&collected.trained, chosen));
        }
        metrics.set("dynamic_sampling/num_given_up_attempts", self.attempts.num_given_up as f64);
        for (reason, number) in whole.all.dropped_by() {
            metrics.set(format!("train/num_dropped/{reason}"), number as f64);
        }
        let position = self.pool.position();
        let share = position.position as f64 / self.pool.num_prompts().max(1) as f64;
        metrics.set("epoch", position.epoch as f64 + share);
        let num_tokens_generated = crate::batch_metrics::num_tokens(&generated) as u64;
        self.num_tokens += num_tokens_generated;
        metrics.set("num_tokens", self.num_tokens as f64);

        let rows =
            TrainedRows { advantages: &of_trajectories(&credited, &whole_groups), left_out: &left_out };
        self.write_rollouts(step, collected, rows)?;
        self.progress.say(&whole.to_string());

        let is_last = collected.report.is_last;
        for (name, time) in self.scorer.take_times() {
            timings.add("reward", time);
            metrics.set(format!("timing_s/reward/{name}"), time.as_secs_f64());
        }
        // Before validation, so that its figures come last even where they are added later.
        metrics.add_aliases();
        if diverged.is_none() && self.measures_after(step, is_last) {
            let clock = Instant::now();
            match self.validate(step, &mut metrics) {
                Err(error) if error.is_interruption() => self.is_unmeasured = true,
                measured => {
                    measured?;
                    self.observe_validation();
                }
            }
            timings.add("testing", clock.elapsed());
        }
        self.early_stop_between = self.early_stop.state().clone();
        timings.add(STEP, self.attempts.began.elapsed());
        timings.metrics(TokenCounts { generated: num_generated, trained: trained.num_tokens }, &mut metrics);
        metrics.add_aliases();
        self.loggers.log(step, &metrics)?;
        let view = StepView {
            reward: trained.rewards.map(|rewards| rewards.mean),
            reward_std: trained.rewards.and_then(|rewards| rewards.std),
            generated_reward: facts.rewards.filter(|_| !trains_on_all).map(|rewards| rewards.mean),
            accuracy: facts.accuracy,
            zero_advantage: (zero_advantage.groups > 0).then(|| zero_advantage.group_share()),
            rounds: whole.rounds,
            dropped: whole.all.filter_rate(),
            length: trained.mean_length,
            truncated: trained.truncated,
            entropy: report.as_ref().and_then(|report| report.entropy),
            kl: self.shown_kl(rewards.mean_kl, report.as_ref()),
            grad_norm: report.as_ref().map(|report| report.grad_norm),
            learning_rate: report.as_ref().map(|_| learning_rate),
            time: timings.get(STEP),
            generation: timings.pace(GENERATION, num_generated),
            update: timings.pace(UPDATE, trained.num_tokens),
        };
        self.progress.step(step, &view);
        if self.config.run.loggers.contains(&LoggerKind::Console) {
            let (total, left) = (self.progress.total_steps(), self.progress.time_left());
            self.progress.say(&console::line(step, total, &view, left.filter(|_| !is_last)));
        }
        // The step's figures are logged; its weights go nowhere.
        if let Some(diverged) = diverged {
            return Err(diverged);
        }
        if self.config.checkpoint.save_freq.is_due(step) || is_last || self.is_unmeasured {
            self.save(step)?;
        }
        if in_a_row.max(critic_in_a_row) < MOST_SKIPPED_UPDATES && !is_idle {
            return Ok(());
        }
        if self.saved != Some(step) {
            self.save(step)?;
        }
        let run = self.directory.path().to_owned();
        // A critic without finite gradients has values that may be the policy's trouble, not the other way round.
        Err(if critic_in_a_row >= MOST_SKIPPED_UPDATES {
            RunError::CriticNotFinite { updates: critic_in_a_row, step, run }
        } else if in_a_row >= MOST_SKIPPED_UPDATES {
            RunError::NotFinite { updates: in_a_row, step, run }
        } else {
            self.nothing_trained(u64::from(self.untrained.steps))
        })
    }

    /// The divergence that the run has by its settings: from the reference, in the loss or in the reward. Without one that from the policy
    /// at the start of the step, where more than one update let it move.
    fn shown_kl(&self, penalty: Option<f64>, report: Option<&UpdateReport>) -> Option<(&'static str, f64)> {
        match self.divergence {
            Divergence::InLoss => Some(("ref_kl", report?.reference_kl?)),
            Divergence::InReward { .. } => Some(("kl_penalty", penalty?)),
            Divergence::None => {
                let report = report.filter(|report| report.num_updates > 1)?;
                Some(("ppo_kl", report.old_kl?))
            }
        }
    }

    /// Steps that the run is to have, for schedules of the learning rate: as configured, or those that its epochs hold where every step
    /// is one round of the same number of prompts. 0 where neither says.
    pub(super) fn planned_steps(&self) -> u64 {
        planned_steps(&self.config, self.pool.num_prompts())
    }

    /// How far the training is between two steps, as reward functions are told.
    pub(super) fn trainer_state(&self) -> TrainerState {
        let done = self.shell.machine().progress().steps;
        trainer_state(&self.config, self.pool.num_prompts(), done, self.num_tokens)
    }

    /// Everything that the step generated, in all of its attempts and before any filter.
    fn generated<'a>(&'a self, step: u64, collected: &'a Collected) -> Vec<&'a Record> {
        collected
            .trained
            .iter()
            .chain(&collected.others)
            .chain(&self.attempts.given_up)
            .filter(|record| record.step == step && !record.group.trajectories.is_empty())
            .chain(
                self.shell
                    .held()
                    .filter(|record| record.step == step && collected.carried_out.contains(&record.group.id)),
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
    fn mean_of_chosen(trained: &[Record], chosen: &[Vec<bool>]) -> Option<f64> {
        let members = trained.iter().zip(chosen).flat_map(|(record, chosen)| {
            let values = record.values.iter().zip(chosen);
            values.filter_map(|(value, chosen)| chosen.then_some(*value))
        });
        BatchSummary::of(members).map(|summary| summary.mean)
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
