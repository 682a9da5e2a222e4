//! Completions of a list of prompts that are waited for together: validation, greedy baselines, evaluation.
//!
//! They are the groups of one round without a filter, of a dispatcher of their own beside that of the run.

use std::collections::BTreeMap;

use tamis_core::filter::Metric;
use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::schedule::{OnEmptyRound, RoundReport, ScheduleSettings, Scheduler};

use crate::dispatcher::{
    Beside, Dependencies, DispatchError, Dispatcher, DispatcherSettings, Next, Observer,
};
use crate::generator::{AbortScope, Generator};
use crate::inbox::Inbox;
use crate::record::Record;
use crate::reward_health::RewardHealth;
use crate::scorer::Scorer;
use crate::source::{DrawnPrompt, DrawnPrompts, PreparedPrompt, PromptSource};

/// The parts that complete and score a list of prompts.
pub struct CompletionWorkers<'a> {
    /// Completions.
    pub generator: &'a mut dyn Generator,
    /// Keeps the events of groups that generate at the same time.
    pub inbox: &'a mut Inbox,
    /// Scores.
    pub scorer: &'a mut Scorer,
    /// Whether the run is to stop soon.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Returns a group for each prompt, in their order. If a sample of a group could not be generated, the
/// group has failed and has no trajectories. `progress` gets the number of finished prompts. `None` if
/// the run is to stop.
///
/// The scorer collects warnings of reward functions. After an error nothing stays in flight.
///
/// # Errors
/// The generator, a reward function or the journal breaks down.
pub fn complete(
    with: CompletionWorkers<'_>,
    prompts: &[PreparedPrompt],
    settings: DispatcherSettings,
    beside: Beside,
    progress: &mut dyn FnMut(usize),
) -> Result<Option<Vec<Record>>, DispatchError> {
    if prompts.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let CompletionWorkers { generator, inbox, scorer, is_interrupted } = with;
    let (purpose, step) = (beside.purpose, beside.step);
    let next = inbox.num_prompts.entry(purpose).or_default();
    let first = *next;
    // Numbers are not reused, so a late answer never belongs to another sample.
    *next += prompts.len() as u64;
    let machine = Scheduler::rounds(ScheduleSettings {
        filter: None,
        on_empty_round: OnEmptyRound::Skip,
        metric: Metric::SeqReward,
        ..ScheduleSettings::new(prompts.len(), settings.group_size)
    })?;
    let health = RewardHealth::default();
    let group_size = settings.group_size;
    let mut dispatcher =
        Dispatcher::resume(settings, machine, first, PolicyVersion(0), Vec::new(), health).beside(beside);
    let mut watch = Watch { progress, group_size, ended: BTreeMap::new(), num_done: 0, warnings: Vec::new() };
    let ended = scorer.beside(step, |scorer| {
        dispatcher.next(Dependencies {
            source: &mut Listed(prompts),
            generator,
            scorer,
            reference: None,
            observer: &mut watch,
            order: None,
            is_interrupted,
        })
    });
    if !matches!(ended, Ok(Next::Step(_))) {
        // Aborted samples may be requested again.
        generator.abort(AbortScope::Purpose(purpose));
    }
    scorer.add_warnings(watch.warnings);
    inbox.take_over(dispatcher.inbox(), purpose);
    let Next::Step(collected) = ended? else { return Ok(None) };
    let mut records: Vec<Record> = collected.trained.into_iter().chain(collected.others).collect();
    records.sort_by_key(|record| record.group.id);
    Ok(Some(records))
}

struct Listed<'a>(&'a [PreparedPrompt]);

impl PromptSource for Listed<'_> {
    fn draw(&mut self, _n: usize, _version: PolicyVersion) -> DrawnPrompts {
        let drawn =
            |prompt: &PreparedPrompt| DrawnPrompt { epoch: 0, prompt: prompt.clone(), inclusion: 1.0 };
        DrawnPrompts { prompts: self.0.iter().map(drawn).collect(), exhausted: false }
    }

    fn give_back(&mut self, _prompts: Vec<DrawnPrompt>) {}

    fn next_epoch(&mut self) {}
}

struct Watch<'a> {
    progress: &'a mut dyn FnMut(usize),
    group_size: usize,
    /// Members that have ended, by group.
    ended: BTreeMap<GroupId, usize>,
    num_done: usize,
    warnings: Vec<String>,
}

impl Observer for Watch<'_> {
    fn round_begins(&mut self, _step: u64, _round: u64, _num_prompts: usize) {}

    fn member_ended(&mut self, group: GroupId) {
        let ended = self.ended.entry(group).or_default();
        *ended += 1;
        if *ended == self.group_size {
            self.num_done += 1;
            (self.progress)(self.num_done);
        }
    }

    fn groups_finished(&mut self, _finished: usize) {}

    fn round_complete(&mut self, _report: &RoundReport) {}

    fn group_failed(&mut self, _group: u64, _source: &str, _reason: &str) {}

    fn epoch_begins(&mut self, _epoch: u64) {}

    fn warn(&mut self, message: &str) {
        self.warnings.push(message.to_owned());
    }
}
