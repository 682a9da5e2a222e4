//! One step: a complete batch becomes advantages, updates and the state after it.

use std::time::{Duration, Instant};

use tamis_core::correction::Agreement;
use tamis_core::group::Group;
use tamis_core::objective::ObjectiveState;
use tamis_core::ragged::Ragged;
use tamis_rollout::{
    Dependencies, GeneratorError, OnStop, OrderLog, Publication, PublicationEnd, Record, Reference, Weights,
};

use super::divergence::{POLICY_RATE, find_divergence, gives_numbers};
use super::early::Early;
use super::facts::{CriticFacts, StepFacts};
use super::state::{CriticState, LearningState, RunState, ScheduleState};
use super::updating::{Updating, old_logprobs};
use super::watch::Warnings;
use crate::assemble::recipe::Recipe;
use crate::credit::batch::{StepBatch, TrainedGroups, generated_records};
use crate::credit::columns::{CreditColumns, columns};
use crate::credit::members::{TrainedMember, TrainedMembers};
use crate::credit::passes::passes;
use crate::credit::reference::BeforeFilter;
use crate::credit::{Credit, CreditedBatch, assign};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::critic::{CriticBatch, update_critic};
use crate::learner::update::UpdateReport;
use crate::measure::batch_metrics::num_tokens;
use crate::measure::uniform_groups::warn_of_uniform_groups;
use crate::workers::Workers;
use tamis_run::metrics::timings::{Timings, UPDATE};

#[derive(Debug, Clone)]
pub(crate) struct TrainedGroup {
    /// The group as it was collected: the filter's metric of its members, rewards, logged values.
    pub(crate) record: Record,
    /// Its members, each with its advantage or the reason why it has no loss \[G\].
    pub(crate) members: Vec<TrainedMember>,
}

/// Result of a step: the next state and the facts.
pub(crate) struct Step {
    pub(crate) after: RunState,
    /// The groups that it trained on, in batch order.
    pub(crate) trained: Vec<TrainedGroup>,
    /// All other groups that left the scheduling machine, in all attempts at the step.
    pub(crate) others: Vec<Record>,
    /// Groups generated for the step and kept for a later one.
    pub(crate) carried_out: Vec<Record>,
    pub(crate) facts: StepFacts,
    /// Why the generator is lost, if it was lost when the weights were published. The step is complete all
    /// the same.
    pub(crate) lost: Option<GeneratorError>,
}

impl Step {
    /// The trained groups \[P\].
    pub(crate) fn groups(&self) -> Vec<&Group> {
        self.trained.iter().map(|trained| &trained.record.group).collect()
    }

    /// In batch order `[B]`.
    pub(crate) fn members(&self) -> impl Iterator<Item = &TrainedMember> {
        self.trained.iter().flat_map(|trained| &trained.members)
    }

    /// Everything whose generation ended in the step, in all of its attempts and before any filter.
    pub(crate) fn generated_records(&self) -> Vec<&Record> {
        let trained = self.trained.iter().map(|trained| &trained.record);
        generated_records(self.facts.step, trained.chain(&self.others).chain(&self.carried_out))
    }
}

/// Trains on a batch, of which the first groups may have been trained on early. All changes except those of
/// weights and moments are in what it returns. If an interruption ends it, nothing was changed, and weights
/// have moved only if [`crate::learner::progress::UpdateProgress::begin`] was called with the knowledge that
/// the state before is kept.
pub(crate) fn step(
    recipe: &Recipe,
    workers: &mut Workers,
    before: &RunState,
    batch: StepBatch,
    early: Early,
) -> Result<Step, Halt<RunError>> {
    batch.report.accounting.check()?;
    let mut facts = StepFacts::new(&batch, workers);
    facts.timings.append(&early.timings);
    let credited = credit(recipe, workers, &before.learning, &batch, &mut facts.timings)?;
    facts.uniform_groups = find_uniform_groups(recipe, &credited);
    let trains_critic = train_critic(recipe, workers, &credited, &mut facts)?;
    let updated = train_policy(recipe, workers, before, early, &credited, &mut facts)?;
    facts.diverged = find_divergence(&mut *workers.learner, POLICY_RATE)?;
    if facts.diverged.is_none() {
        facts.gives_numbers = gives_numbers(recipe, &mut *workers.learner, &batch.trained)?;
    }
    // Weights that are not trained are not published again: their samples are still on-policy.
    let is_news = updated.is_some() && facts.diverged.is_none();
    let publication = if is_news { Some(workers.next_publication()?) } else { None };

    let CreditedBatch { mut members, columns, credit, .. } = credited;
    let learning = learn(&before.learning, updated, &mut members, &columns, &credit, &mut facts);
    let without_loss = members.count_left_out();
    facts.report.leave_out(without_loss);
    facts.report.accounting.check()?;
    facts.warn_of_updates(&members);
    workers.dispatcher.note_trained(without_loss)?;
    let lost = publish(recipe, workers, before, publication.as_ref(), &mut facts)?;
    facts.note_workers(workers);
    let members = members.with_advantages(&credit.shaped.advantages);
    facts.note_credit(columns, credit);
    let generated: Vec<&Group> = batch.generated_records().into_iter().map(|record| &record.group).collect();
    let after = RunState {
        step: facts.step,
        version: workers.version,
        critic: before
            .critic
            .map(|critic| CriticState { version: critic.version + u64::from(trains_critic) }),
        num_tokens: before.num_tokens + num_tokens(&generated) as u64,
        schedule: ScheduleState::of(&workers.dispatcher, &workers.pool),
        learning,
        ..before.clone()
    };
    let trained = batch.trained.into_iter().zip(members);
    let trained = trained.map(|(record, members)| TrainedGroup { record, members }).collect();
    Ok(Step { after, trained, others: batch.others, carried_out: batch.carried_out, facts, lost })
}

/// The members of a batch with their advantages. `before` is the state before the step.
pub(super) fn credit<'a>(
    recipe: &Recipe,
    workers: &mut Workers,
    before: &LearningState,
    batch: &'a StepBatch,
    timings: &mut Timings,
) -> Result<CreditedBatch<'a>, Halt<RunError>> {
    let mut members = TrainedMembers::new(recipe, &batch.trained);
    let trained = TrainedGroups::new(&batch.trained, &members);
    let passes = passes(recipe, workers, batch.report.step, &trained, timings)?;
    let clock = Instant::now();
    let functions = workers.scorer.rewards().functions();
    let generated = batch.generated_records();
    let columns = columns(recipe, before.reward_kl, functions, &generated, &trained, passes)?;
    let credit = assign(recipe, &before.advantage, batch, &columns)?;
    timings.add("adv", clock.elapsed());
    members.leave_out(credit.shaped.kept.as_ref(), recipe.update.mask_truncated);
    Ok(CreditedBatch { batch, trained, members, columns, credit })
}

/// Warns about trained groups whose members all have the same reward, unless it did so before.
fn find_uniform_groups(recipe: &Recipe, credited: &CreditedBatch<'_>) -> Option<String> {
    if !recipe.tells_uniform_groups() {
        return None;
    }
    let kept = credited.trained.rewards.rows().zip(credited.trained.records);
    let kept = Ragged::from_rows(kept.filter(|(_, record)| record.is_trained()).map(|(row, _)| row));
    warn_of_uniform_groups(credited.batch.report.step, &kept, &recipe.sieve.remedy())
}

struct Updated {
    report: UpdateReport,
    objective: ObjectiveState,
}

/// What was learned: the states after the step's updates. Rejected members have no loss.
fn learn(
    before: &LearningState,
    updated: Option<Updated>,
    members: &mut TrainedMembers<'_>,
    columns: &CreditColumns,
    credit: &Credit,
    facts: &mut StepFacts,
) -> LearningState {
    let mut learning = before.clone();
    if let Some(Updated { report, objective }) = updated {
        members.reject(&report.rejected);
        learning.objective = objective;
        learning.untrained = learning.untrained.after(report.skipped.len(), members.first_left_out());
        facts.most_skipped = most_in_a_row(&mut learning.skipped_updates, &report.skipped);
        facts.update = Some(report);
    }
    if let Some(critic) = &facts.critic {
        facts.most_skipped_critic =
            most_in_a_row(&mut learning.skipped_critic_updates, &critic.report.skipped);
    }
    learning.advantage = credit.state.clone();
    if let Some(penalty) = &columns.reward_kl {
        learning.reward_kl = Some(penalty.next);
    }
    learning
}

/// Publishes new weights to the generator, if there are some. Groups that end meanwhile settle as usual.
/// Returns why the generator is lost, if it is. An interrupt abandons the step if updates may be abandoned,
/// too. Otherwise the step is finished, and so is what is in flight: a resume would sample it with other
/// weights.
fn publish(
    recipe: &Recipe,
    workers: &mut Workers,
    before: &RunState,
    publication: Option<&Publication>,
    facts: &mut StepFacts,
) -> Result<Option<GeneratorError>, Halt<RunError>> {
    // The native engine is drained all the same: a resume continues from a state with nothing in flight.
    let again = workers.sampler.is_native().then_some(workers.version);
    let again = again.map(|version| Publication { version, weights: Weights::InProcess });
    let mut time = Duration::ZERO;
    let may_give_up = workers.learner.progress().stop_flag().is_some();
    let on_stop = if may_give_up { OnStop::GiveUp } else { OnStop::Finish };
    let interrupt = &workers.interrupt;
    let _held_back = (!may_give_up).then(|| interrupt.hold_back());
    let mut before_filter =
        BeforeFilter::of(recipe, before.learning.reward_kl, &mut *workers.learner, &mut time);
    let with = Dependencies {
        source: &mut workers.pool,
        generator: &mut workers.plays.over(workers.sampler.generator()),
        scorer: &mut workers.scorer,
        reference: before_filter.as_mut().map(|pass| pass as &mut dyn Reference),
        observer: &mut Warnings(&mut workers.unsaid),
        order: workers.order.as_mut().map(|order| order as &mut dyn OrderLog),
        is_interrupted: &|| interrupt.was_requested(),
    };
    let dispatcher = &mut workers.dispatcher;
    let end = match publication.or(again.as_ref()) {
        Some(publication) => dispatcher.publish(publication, recipe.in_flight(), on_stop, with)?,
        None => dispatcher.publish_nothing(on_stop, with)?,
    };
    let lost = match end {
        PublicationEnd::Done => None,
        PublicationEnd::Lost(error) => Some(error),
        PublicationEnd::GivenUp => return Err(Halt::Interrupted),
    };
    facts.warnings.append(&mut workers.unsaid);
    Ok(lost)
}

/// Trains the critic on the step's returns, if there are any. Returns whether it did.
fn train_critic(
    recipe: &Recipe,
    workers: &mut Workers,
    credited: &CreditedBatch<'_>,
    facts: &mut StepFacts,
) -> Result<bool, Halt<RunError>> {
    let CreditedBatch { trained, members, columns, credit, .. } = credited;
    let (Some(plan), Some(old), Some(returns)) = (recipe.critic, &columns.passes.values, &credit.returns)
    else {
        return Ok(false);
    };
    let clock = Instant::now();
    let learning_rate = plan.learning_rate.rate(facts.step - 1, recipe.planned_steps());
    let mut settings = plan.settings;
    settings.shuffle = settings.shuffle.map(|key| key.with(facts.step));
    let compared = members.comparison_mask();
    let batch = CriticBatch { groups: &trained.groups, old, returns, kept: Some(&compared) };
    let report = update_critic(&mut *workers.learner, batch, &settings, learning_rate)?;
    facts.timings.add("update_critic", clock.elapsed());
    facts.critic = Some(CriticFacts::of(report, learning_rate, &trained.groups, &compared, old, returns));
    Ok(true)
}

/// Trains the policy on what was not trained on early; `None` if the step trains only the critic.
fn train_policy(
    recipe: &Recipe,
    workers: &mut Workers,
    before: &RunState,
    early: Early,
    credited: &CreditedBatch<'_>,
    facts: &mut StepFacts,
) -> Result<Option<Updated>, Halt<RunError>> {
    let old = old_logprobs(recipe, workers, credited, &early.old, &mut facts.timings)?;
    let updating = Updating::new(recipe, credited, old)?;
    if let Some(old) = updating.old.recomputed().filter(|_| workers.samples_elsewise()) {
        facts.agreement = agreement(&credited.trained.groups, old);
    }
    if !recipe.trains_policy(facts.step) {
        return Ok(None);
    }
    facts.learning_rate = updating.learning_rate;
    let training = updating.batch(recipe, credited);
    let mut objective = early.objective.unwrap_or(before.learning.objective);
    if let Some(analysis) = recipe.gradient_analysis.as_ref().filter(|analysis| analysis.is_due(facts.step)) {
        let clock = Instant::now();
        let rewards = &credited.trained.rewards;
        let plan = updating.plan(recipe);
        facts.gradients = analysis.measure(&mut *workers.learner, plan, &objective, training, rewards)?;
        facts.timings.add("gradient_analysis", clock.elapsed());
    }
    let clock = Instant::now();
    let (learner, plan) = (&mut *workers.learner, updating.plan(recipe));
    let report = early.updates.train(learner, plan, &mut objective, training, early.num_groups)?;
    facts.timings.add(UPDATE, clock.elapsed());
    Ok(Some(Updated { report, objective }))
}

/// Difference between the sampler's log-probabilities and the learner's. Tokens without log-probabilities
/// from the servers are left out.
fn agreement(groups: &[&Group], old: &Ragged<f32>) -> Option<Agreement> {
    let members = groups.iter().flat_map(|group| &group.trajectories).zip(old.rows());
    let tokens = members.flat_map(|(member, old)| {
        let both = member.logprobs.iter().zip(old).zip(&member.loss_mask);
        both.filter(|((sampler, _), on)| **on && !sampler.is_nan())
            .map(|((&sampler, &policy), _)| (f64::from(sampler), f64::from(policy)))
    });
    Agreement::of(&tokens.collect::<Vec<_>>())
}

/// Counts updates in a row that were left out, across steps. Returns the largest number in a row.
fn most_in_a_row(count: &mut u32, skipped: &[bool]) -> u32 {
    let mut most = 0;
    for skipped in skipped {
        *count = if *skipped { *count + 1 } else { 0 };
        most = most.max(*count);
    }
    most
}

#[cfg(test)]
mod tests;
