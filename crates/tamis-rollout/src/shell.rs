//! The shell around the scheduling machine: carries out its commands and tells it what happened.

use std::collections::{BTreeMap, BTreeSet};

use tamis_core::filter::{
    AvailableMetrics, DropReason, ExtraColumns, FinalReward, Metric, MetricError, Verdict,
};
use tamis_core::group::{Group, GroupId, PolicyVersion, Trajectory};
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::{
    Command, Diagnosis, Event, FinishReason, GroupFacts, RoundReport, ScheduleError, Scheduler, SkipReason,
    StepReport,
};
use tamis_env::reward::{Logged, RewardError, RewardInput, Scored, TrainerState};
use thiserror::Error;

use crate::generator::Sampling;
use crate::group_generator::{
    GroupGenerator, GroupGeneratorError, GroupRequest, Outcome, Ticket, TicketPurpose,
};
use crate::reward_health::{MOST_FAILED_ROUNDS, MissingRewards, RewardHealth};
use crate::scorer::{ScoreError, Scorer};
use crate::source::{PreparedPrompt, PromptSource};

/// Where a generated group went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Into the step's batch.
    Trained,
    /// Out, by the filter's reason.
    Dropped(DropReason),
    /// Kept, not needed and thrown away.
    Surplus,
    /// Carried for too long and thrown away.
    Stale,
    /// Kept for the next step.
    Carried,
    /// A member's generation failed.
    Failed(String),
    /// Stopped while generating.
    Aborted,
}

impl Fate {
    /// The name in rollout files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Trained => "trained",
            Self::Dropped(reason) => reason.name(),
            Self::Surplus => "surplus",
            Self::Stale => "stale",
            Self::Carried => "carried",
            Self::Failed(_) => "failed",
            Self::Aborted => "aborted",
        }
    }
}

/// A group with everything known about it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The group; without trajectories where its generation failed.
    pub group: Group,
    /// Its prompt.
    pub prompt: PreparedPrompt,
    /// Step in which it was generated, from 1.
    pub step: u64,
    /// Round of that step, from 1.
    pub round: u64,
    /// The filter's metric of each member \[G\], NaN where it has none; empty where generation failed.
    pub values: Vec<f64>,
    /// Reward after the KL penalty of each member \[G\], where the filter looked at it.
    pub final_rewards: Option<Vec<f64>>,
    /// What the reward functions logged of each member \[G\]; empty where they logged nothing.
    pub logged: Vec<Logged>,
    /// Log-probability of each token under the reference `[G][T]`, where the filter needed them: they are not computed again.
    pub reference: Option<Ragged<f32>>,
    /// Where it went.
    pub fate: Fate,
}

/// The filter's metric of each member of a group \[G\], NaN where it has none; `final_rewards` are those after the KL penalty \[G\], where they
/// differ from the rewards.
///
/// # Errors
/// Where the metric needs a column that is not there.
pub fn metric_values(
    metric: &Metric,
    group: &Group,
    final_rewards: Option<&[f64]>,
) -> Result<Vec<f64>, MetricError> {
    let final_reward = final_rewards.map_or(FinalReward::IsReward, FinalReward::Column);
    metric.values(std::slice::from_ref(group), &ExtraColumns { final_reward, entropy: None })
}

/// How a collection ended.
#[derive(Debug)]
pub enum End {
    /// The batch is complete.
    Ready,
    /// Nothing is trained; the next call tries again.
    Skipped(SkipReason),
    /// The run is over.
    Finished(FinishReason),
    /// The run cannot go on for want of signal.
    Stopped(Box<Diagnosis>),
}

/// What one call of [`Shell::collect`] brought in.
#[derive(Debug)]
pub struct Collected {
    /// How it ended.
    pub end: End,
    /// Numbers of the step.
    pub report: StepReport,
    /// Groups to train on, in batch order.
    pub trained: Vec<Record>,
    /// Every other group that left the machine in this step (dropped, surplus, stale, failed, aborted).
    pub others: Vec<Record>,
    /// Groups generated in this step and carried on: they show up again in the step that trains them.
    pub carried_out: Vec<GroupId>,
}

/// Hears of progress while a step is collected.
pub trait Observer {
    /// A round of so many prompts begins.
    fn round_begins(&mut self, step: u64, round: u64, num_prompts: usize);

    /// So many of the round's groups are complete; so many tokens were generated since the last call.
    fn groups_finished(&mut self, finished: usize, num_tokens: u64);

    /// What was said of the round's trajectories.
    fn scored(&mut self, scored: &[Scored]);

    /// A round was judged.
    fn round_complete(&mut self, report: &RoundReport);

    /// The next pass over the data begins.
    fn epoch_begins(&mut self, epoch: u64);

    /// Something a person should know.
    fn warn(&mut self, message: &str);
}

/// What a reference pass over some groups gave, one row per trajectory in order.
#[derive(Debug, Clone)]
pub struct ReferencePass {
    /// Rewards after the KL penalty \[B\].
    pub final_rewards: Vec<f64>,
    /// Log-probabilities under the reference `[B][T]`.
    pub logprobs: Ragged<f32>,
}

/// What generates, and can say what the divergence from a reference costs.
pub trait Backend: GroupGenerator {
    /// A reference pass over the groups of a round, where the filter's metric needs rewards after the KL penalty before the filter. `None`
    /// where it does not.
    fn reference_pass(&mut self, groups: &[&Group]) -> Result<Option<ReferencePass>, ShellError> {
        let _ = groups;
        Ok(None)
    }
}

/// What a shell does at each step, apart from the machine's own settings.
#[derive(Debug, Clone)]
pub struct ShellSettings {
    /// Run seed.
    pub seed: u64,
    /// Group size n.
    pub group_size: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Whether the first rounds that are scored must show that the filter's metric is there at all: where its name could not be known before.
    /// How many did not is no part of a checkpoint: before the first step is trained a resume does all rounds again, after it the metric is
    /// proven.
    pub is_metric_unproven: bool,
}

/// What the shell works with during a step.
pub struct Dependencies<'a> {
    /// Prompts.
    pub source: &'a mut dyn PromptSource,
    /// Completions.
    pub backend: &'a mut dyn Backend,
    /// Scores.
    pub scorer: &'a mut Scorer,
    /// Listener.
    pub observer: &'a mut dyn Observer,
}

/// Collecting a step failed.
#[derive(Debug, Error)]
pub enum ShellError {
    /// The generator broke down.
    #[error(transparent)]
    Generator(#[from] GroupGeneratorError),
    /// Scoring broke down.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// The filter's metric is a score that no completion has.
    #[error("the filter's metric `{metric}` is not among the scores of the completions of the first rounds: {}", names.join(", "))]
    NoMetric {
        /// The metric.
        metric: String,
        /// What there is instead.
        names: Vec<String>,
    },
    /// The filter's metric could not be read.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// The machine and its driver disagree: a fault of tamis.
    #[error("the scheduler refused an event")]
    Schedule(#[from] ScheduleError),
    /// The machine named a group that is not held: a fault of tamis.
    #[error("the scheduler named group {0}, which is not held")]
    UnknownGroup(u64),
    /// Rewards do not arrive, and another round of the step would be generated for nothing.
    #[error("no rewards arrive")]
    MissingRewards(Box<MissingRewards>),
    /// The reference pass failed.
    #[error("the reference pass before the filter failed: {reason}")]
    Reference {
        /// Why.
        reason: String,
    },
}

impl ShellError {
    /// Whether it is no failure: something was given up because of Ctrl-C.
    pub fn is_interruption(&self) -> bool {
        matches!(
            self,
            Self::Generator(GroupGeneratorError::Interrupted)
                | Self::Score(ScoreError::Reward(RewardError::Interrupted))
        )
    }
}

impl From<RewardError> for ShellError {
    fn from(error: RewardError) -> Self {
        Self::Score(ScoreError::Reward(error))
    }
}

/// Whether a command ends the step.
fn is_end(command: &Command) -> bool {
    matches!(
        command,
        Command::StepReady(_) | Command::SkipStep { .. } | Command::Finish { .. } | Command::Stop { .. }
    )
}

/// Drives a [`Scheduler`] of whole rounds: one call of [`Shell::collect`] per step.
pub struct Shell {
    settings: ShellSettings,
    machine: Scheduler,
    held: BTreeMap<GroupId, Record>,
    next_group: u64,
    reward_health: RewardHealth,
    /// Rounds so far that had rewards and not the filter's metric.
    rounds_without_metric: u32,
}

impl Shell {
    /// Around a machine at its start.
    pub fn new(settings: ShellSettings, machine: Scheduler) -> Self {
        Self {
            settings,
            machine,
            held: BTreeMap::new(),
            next_group: 0,
            reward_health: RewardHealth::default(),
            rounds_without_metric: 0,
        }
    }

    /// Around a machine as it was saved, with the groups it held.
    pub fn resumed(
        settings: ShellSettings,
        machine: Scheduler,
        next_group: u64,
        held: Vec<Record>,
        reward_health: RewardHealth,
    ) -> Self {
        let held = held.into_iter().map(|record| (record.group.id, record)).collect();
        Self { settings, machine, held, next_group, reward_health, rounds_without_metric: 0 }
    }

    /// The machine.
    pub fn machine(&self) -> &Scheduler {
        &self.machine
    }

    /// Groups held for the next step.
    pub fn held(&self) -> impl Iterator<Item = &Record> {
        self.held.values()
    }

    /// The groups of an attempt at a step that ended with an error before the step was complete, each with its fate: dropped where the filter
    /// had said so, else aborted. They stay held.
    pub fn unfinished(&self, step: u64) -> Vec<Record> {
        let of_step = self.held().filter(|record| record.step == step).cloned();
        of_step
            .map(|mut record| {
                if record.fate == Fate::Carried {
                    record.fate = Fate::Aborted;
                }
                // Nobody has looked at the metric of what was not judged.
                record.values.resize(record.group.trajectories.len(), f64::NAN);
                record
            })
            .collect()
    }

    /// The id that the next dispatched group gets.
    pub fn next_group(&self) -> u64 {
        self.next_group
    }

    /// How the rewards of the rounds arrived so far.
    pub fn reward_health(&self) -> &RewardHealth {
        &self.reward_health
    }

    /// Tells the machine that the step it handed over was trained; so many members of its groups, with so many completion tokens, bore no loss.
    pub fn trained(&mut self, left_out: u64, tokens: u64) -> Result<(), ShellError> {
        // The machine has no command to give before the next step begins.
        self.machine.handle(Event::Trained { left_out, tokens })?;
        Ok(())
    }

    /// Tells the machine that weights were published.
    pub fn published(&mut self, version: PolicyVersion) -> Result<(), ShellError> {
        self.machine.handle(Event::Published { version })?;
        Ok(())
    }

    /// Ends the run between steps: says where the groups still held go.
    pub fn cancel(&mut self) -> Result<Collected, ShellError> {
        for command in self.machine.handle(Event::Cancelled)? {
            match command {
                Command::Judged { group, verdict } => self.judged(group, verdict)?,
                Command::Finish { why, close } => return self.close(End::Finished(why), *close),
                _ => {}
            }
        }
        Err(ShellError::UnknownGroup(self.next_group))
    }

    /// Generates, scores and judges rounds until the machine says how the step ends.
    pub fn collect(&mut self, mut with: Dependencies<'_>) -> Result<Collected, ShellError> {
        let mut commands = std::collections::VecDeque::from(self.machine.handle(Event::BeginStep)?);
        while let Some(command) = commands.pop_front() {
            match command {
                Command::NextEpoch { epoch } => {
                    with.source.next_epoch();
                    with.observer.epoch_begins(epoch);
                }
                Command::Draw { step, round, num_prompts } => {
                    // A first round may be the one in which they arrive again: a run that ended for want of them is resumed so.
                    if round > 1
                        && let Some(missing) = self.reward_health.missing(with.scorer.rewards())
                    {
                        return Err(ShellError::MissingRewards(Box::new(missing)));
                    }
                    commands.extend(self.round(&mut with, step, round, num_prompts)?);
                }
                Command::Judged { group, verdict } => self.judged(group, verdict)?,
                Command::RoundComplete(report) => with.observer.round_complete(&report),
                Command::StepReady(close) => return self.close(End::Ready, *close),
                Command::Abort { groups } => {
                    for group in groups {
                        with.backend.abort(Ticket::of_group(group));
                    }
                }
                // Of a schedule that this shell does not drive.
                Command::Train { .. } | Command::StepClosed(_) => break,
                Command::SkipStep { why, close } => return self.close(End::Skipped(why), *close),
                Command::Finish { why, close } => return self.close(End::Finished(why), *close),
                Command::Stop { diagnosis, close } => return self.close(End::Stopped(diagnosis), *close),
            }
        }
        Err(ShellError::Schedule(ScheduleError::Unexpected {
            event: "begin_step",
            phase: "waiting for an event that nobody sends",
        }))
    }

    /// One round: dispatch, generate, score, judge. Returns the machine's answers.
    fn round(
        &mut self,
        with: &mut Dependencies<'_>,
        step: u64,
        round: u64,
        num_prompts: usize,
    ) -> Result<Vec<Command>, ShellError> {
        let (mut ids, mut answers) = self.dispatch(with, step, round, num_prompts)?;
        // A round that goes over the end of an epoch is drawn in parts, and judged whole: a filter may compare all its groups.
        while let [Command::NextEpoch { epoch }, Command::Draw { step, round, num_prompts }] = answers[..] {
            with.source.next_epoch();
            with.observer.epoch_begins(epoch);
            let (more, next) = self.dispatch(with, step, round, num_prompts)?;
            ids.extend(more);
            answers = next;
        }
        if answers.iter().any(is_end) {
            return Ok(answers);
        }
        let mut waiting: BTreeSet<GroupId> = ids.iter().copied().collect();
        let mut finished = Vec::with_capacity(ids.len());
        while !waiting.is_empty() {
            let outcomes = with.backend.poll()?;
            if outcomes.is_empty() {
                return Err(GroupGeneratorError::Broken {
                    reason: format!("{} groups are in flight and none of them goes on", waiting.len()),
                }
                .into());
            }
            for outcome in outcomes {
                let ticket = outcome.ticket();
                let id = GroupId(ticket.index);
                if ticket.purpose != TicketPurpose::Rollout || !waiting.remove(&id) {
                    return Err(GroupGeneratorError::UnknownTicket { ticket }.into());
                }
                let record = self.held.get_mut(&id).ok_or(ShellError::UnknownGroup(id.0))?;
                match outcome {
                    Outcome::Finished { samples, .. } => {
                        record.group.trajectories = samples
                            .into_iter()
                            .enumerate()
                            .map(|(index, sample)| Trajectory {
                                versions: sample.version_range(),
                                sample_index: index as u32,
                                loss_mask: vec![true; sample.token_ids.len()],
                                text: sample.text,
                                token_ids: sample.token_ids,
                                logprobs: sample.logprobs,
                                entropy: sample.entropy,
                                finish_reason: sample.finish_reason,
                                scores: BTreeMap::new(),
                                reward: f64::NAN,
                            })
                            .collect();
                        finished.push(id);
                    }
                    Outcome::Failed { reason, .. } => {
                        with.observer.warn(&format!("group {} failed: {reason}", id.0));
                        record.fate = Fate::Failed(reason);
                    }
                }
            }
            let num_tokens = with.backend.take_num_generated_tokens();
            with.observer.groups_finished(ids.len() - waiting.len(), num_tokens);
        }
        self.score(with, step, &ids)?;
        self.pass_reference(with, &ids)?;
        // The machine hears of groups in the order in which they were completed; a synchronous generator's order is deterministic.
        let failed = ids.iter().copied().filter(|id| !finished.contains(id));
        for id in finished.iter().copied().chain(failed.collect::<Vec<_>>()) {
            let metric = &self.machine.settings().metric;
            let record = self.held.get_mut(&id).ok_or(ShellError::UnknownGroup(id.0))?;
            let event = if matches!(record.fate, Fate::Failed(_)) {
                Event::Failed { group: id, num_tokens: 0 }
            } else {
                record.values = metric_values(metric, &record.group, record.final_rewards.as_deref())?;
                Event::Scored {
                    group: id,
                    values: record.values.clone(),
                    facts: GroupFacts::of(&record.group),
                }
            };
            answers.extend(self.machine.handle(event)?);
        }
        Ok(answers)
    }

    /// Draws prompts and starts a group for each.
    fn dispatch(
        &mut self,
        with: &mut Dependencies<'_>,
        step: u64,
        round: u64,
        num_prompts: usize,
    ) -> Result<(Vec<GroupId>, Vec<Command>), ShellError> {
        let drawn = with.source.draw(num_prompts);
        with.observer.round_begins(step, round, drawn.prompts.len());
        let version = with.backend.version();
        let mut ids = Vec::with_capacity(drawn.prompts.len());
        for prompt in drawn.prompts {
            let id = GroupId(self.next_group);
            self.next_group += 1;
            ids.push(id);
            let key =
                Key::new(self.settings.seed, Purpose::Rollout).with(drawn.epoch).with(prompt.prompt.id.0);
            with.backend.submit(
                GroupRequest {
                    ticket: Ticket::of_group(id),
                    prompt_token_ids: prompt.token_ids.clone(),
                    keys: (0..self.settings.group_size as u64).map(|sample| key.with(sample)).collect(),
                },
                &self.settings.sampling,
            )?;
            let group = Group {
                id,
                prompt: prompt.prompt.id,
                epoch: drawn.epoch,
                dispatched: version,
                prompt_token_ids: prompt.token_ids.to_vec(),
                trajectories: Vec::new(),
            };
            self.held.insert(
                id,
                Record {
                    group,
                    prompt,
                    step,
                    round,
                    values: Vec::new(),
                    final_rewards: None,
                    logged: Vec::new(),
                    reference: None,
                    fate: Fate::Carried,
                },
            );
        }
        let answers = self.machine.handle(Event::Dispatched {
            groups: ids.clone(),
            version,
            exhausted: drawn.exhausted,
        })?;
        Ok((ids, answers))
    }

    fn score(&mut self, with: &mut Dependencies<'_>, step: u64, ids: &[GroupId]) -> Result<(), ShellError> {
        let mut inputs = Vec::new();
        let mut keys = Vec::new();
        let mut places = Vec::new();
        let texts: Vec<(GroupId, Vec<String>)> = ids
            .iter()
            .filter_map(|id| self.held.get(id).map(|record| (*id, record)))
            .map(|(id, record)| {
                let whole = |text: &str| format!("{}{text}", record.prompt.continued);
                (id, record.group.trajectories.iter().map(|trajectory| whole(&trajectory.text)).collect())
            })
            .collect();
        for (id, texts) in &texts {
            let Some(record) = self.held.get(id) else { continue };
            for (i, (trajectory, completion)) in record.group.trajectories.iter().zip(texts).enumerate() {
                inputs.push(RewardInput {
                    prompt: &record.prompt.prompt,
                    completion,
                    messages: None,
                    completion_ids: &trajectory.token_ids,
                    step,
                    epoch: record.group.epoch,
                    trainer_state: TrainerState::default(),
                });
                keys.push(format!("rollout/{}/{i}", id.0));
                places.push((*id, i));
            }
        }
        let scored = with.scorer.score(&inputs, &keys)?;
        let is_missing = self.reward_health.observe(with.scorer.rewards(), &inputs, &scored);
        drop(inputs);
        let proven = if is_missing { Ok(()) } else { self.prove_metric(&scored, with.observer) };
        with.observer.scored(&scored);
        for warning in with.scorer.take_warnings() {
            with.observer.warn(&warning);
        }
        for ((id, i), (scored, text)) in
            places.into_iter().zip(scored.into_iter().zip(texts.into_iter().flat_map(|(_, texts)| texts)))
        {
            let Some(record) = self.held.get_mut(&id) else { continue };
            if !scored.logged.is_empty() {
                record.logged.resize(record.group.trajectories.len(), Logged::default());
                record.logged[i] = scored.logged;
            }
            if let Some(trajectory) = record.group.trajectories.get_mut(i) {
                trajectory.text = text;
                trajectory.reward = scored.reward.value;
                trajectory.scores = scored.scores;
                // The trained reward's finer numbers (process rewards) travel under its own name.
                trajectory.scores.insert("reward".to_owned(), scored.reward);
            }
        }
        // What fails here can be looked at with its scores.
        proven
    }

    /// Fails where the completions of the first rounds were scored and none of them has the score that the filter looks at. One round may by
    /// chance hold only sources that do not give it, which is a warning.
    fn prove_metric(&mut self, scored: &[Scored], observer: &mut dyn Observer) -> Result<(), ShellError> {
        let Metric::Score(name) = &self.machine.settings().metric else { return Ok(()) };
        let answered = || scored.iter().filter(|scored| !scored.reward.value.is_nan());
        if !self.settings.is_metric_unproven {
            return Ok(());
        }
        if answered().any(|scored| scored.scores.contains_key(name)) {
            self.settings.is_metric_unproven = false;
            return Ok(());
        }
        let scores: BTreeSet<&String> = answered().flat_map(|scored| scored.scores.keys()).collect();
        let available = AvailableMetrics { scores: scores.into_iter().cloned().collect(), entropy: true };
        let (metric, names) = (self.machine.settings().metric.to_string(), available.names());
        self.rounds_without_metric += 1;
        if self.rounds_without_metric >= MOST_FAILED_ROUNDS {
            return Err(ShellError::NoMetric { metric, names });
        }
        observer.warn(&format!(
            "the filter's metric `{metric}` is not among the scores of this round: {}; the run ends after {MOST_FAILED_ROUNDS} such rounds in \
             a row",
            names.join(", ")
        ));
        Ok(())
    }

    /// Runs the reference pass over a round's complete groups, where the filter looks at rewards after the KL penalty.
    fn pass_reference(&mut self, with: &mut Dependencies<'_>, ids: &[GroupId]) -> Result<(), ShellError> {
        let groups: Vec<&Group> = ids
            .iter()
            .filter_map(|id| self.held.get(id))
            .filter(|record| !matches!(record.fate, Fate::Failed(_)))
            .map(|record| &record.group)
            .collect();
        if groups.is_empty() {
            return Ok(());
        }
        let Some(pass) = with.backend.reference_pass(&groups)? else { return Ok(()) };
        let passed: Vec<(GroupId, usize)> =
            groups.iter().map(|group| (group.id, group.trajectories.len())).collect();
        let mut first = 0;
        for (id, num_members) in passed {
            let rows = first..first + num_members;
            first = rows.end;
            let record = self.held.get_mut(&id).ok_or(ShellError::UnknownGroup(id.0))?;
            record.final_rewards = Some(pass.final_rewards[rows.clone()].to_vec());
            record.reference = Some(Ragged::from_rows(rows.map(|row| pass.logprobs.row(row))));
        }
        Ok(())
    }

    /// Notes what the filter said of a group; what becomes of a kept one is known when the step closes.
    fn judged(&mut self, group: GroupId, verdict: Verdict) -> Result<(), ShellError> {
        let record = self.held.get_mut(&group).ok_or(ShellError::UnknownGroup(group.0))?;
        if let Verdict::Dropped(reason) = verdict {
            record.fate = Fate::Dropped(reason);
        }
        Ok(())
    }

    /// Hands over the groups that leave the machine.
    fn close(&mut self, end: End, close: tamis_core::schedule::StepClose) -> Result<Collected, ShellError> {
        let mut take = |ids: &[GroupId], fate: &Fate| -> Result<Vec<Record>, ShellError> {
            ids.iter()
                .map(|id| {
                    let mut record = self.held.remove(id).ok_or(ShellError::UnknownGroup(id.0))?;
                    record.fate = fate.clone();
                    Ok(record)
                })
                .collect()
        };
        let trained = take(&close.trained, &Fate::Trained)?;
        let mut others = take(&close.surplus, &Fate::Surplus)?;
        others.extend(take(&close.stale, &Fate::Stale)?);
        others.extend(take(&close.aborted, &Fate::Aborted)?);
        // What is neither carried nor named above was dropped or failed, and says so itself.
        let carried: BTreeSet<GroupId> = close.carried.iter().copied().collect();
        let rest: Vec<GroupId> = self.held.keys().copied().filter(|id| !carried.contains(id)).collect();
        for id in rest {
            others.extend(self.held.remove(&id));
        }
        others.sort_by_key(|record| record.group.id);
        Ok(Collected { end, report: close.report, trained, others, carried_out: close.carried })
    }
}

#[cfg(test)]
mod tests;
