//! `command`: an external program scores completions, over JSON lines.
//! A pool of processes is started once and kept. Each call of [`RewardFunction::score`] is cut into chunks
//! of `batch_size` completions in order; idle processes take the next chunk. To a process a chunk is that
//! many lines on its standard input; it answers each with one line on its standard output, in any order. What
//! the lines hold: [`protocol`]. Standard error is free: it is kept in a file of the run or passed on, and
//! its end is shown if the process fails.
//! **When a process misbehaves** (it ends, does not answer in time, answers a line that is too long or that
//! does not say whose answer it is) it is killed with its process group and started again, and the
//! completions of the chunk that it still owed are sent one at a time: the one that fails alone is reported
//! as [`RewardFailure`] and stays without this score, the others are scored. After `max_restarts` restarts
//! without an answer between them the function has broken down ([`RewardFailure::RestartLimit`]); before that
//! if it has never answered and two restarts for each process changed nothing
//! ([`RewardFailure::NeverAnswered`]): a program that cannot work is not started over and over, and a few
//! completions that hang do not end a run.
//!
//! **Every wait is visible.** The listener of [`CommandReward::heard_by`] gets a message about every restart,
//! and about an answer that takes longer than a few seconds. It can end the wait.
//!
//! **Numbers.** NaN (also as the bare word that Python writes) is no answer; an infinite score is a failure.

mod config;
mod pool;
mod printed;
mod process;
pub mod protocol;
pub mod python;
mod settings;

use std::sync::{Arc, Mutex, PoisonError};

use tamis_data::prompt::Prompt;

pub use self::config::CommandConfig;
pub use self::pool::SharedPools;
use self::pool::{Caller, Pool, Slot};
pub use self::printed::Printed;
use self::process::{RowRequest, lock};
use self::protocol::{FunctionIntroduction, Introduced, KnownRows, Reply};
pub use self::settings::{CommandSettings, ProcessPool};
use super::error::RewardError;
use super::failure::RewardFailure;
use super::function::{Logged, RewardFunction, RewardInput, RewardOutcome};
use super::listener::{Listener, Nobody};

/// An external reward function: one of those that its processes answer for.
pub struct CommandReward {
    pool: Arc<Pool>,
    caller: Arc<Caller>,
    /// What a Python function returned about itself.
    introduced: Mutex<Option<FunctionIntroduction>>,
}

impl CommandReward {
    /// Starts the processes. Fails if the program cannot be started or the configuration is out of range.
    pub fn new(config: CommandConfig) -> Result<Self, RewardError> {
        Self::printing_to(None, config)
    }

    /// The same, with a place for the output of the processes.
    pub(super) fn printing_to(
        printed: Option<Arc<Printed>>,
        config: CommandConfig,
    ) -> Result<Self, RewardError> {
        let name = config.argv.first().cloned().unwrap_or_default();
        let pool = Arc::new(Pool::start(config, printed)?);
        let caller = Caller::new(&pool.config, name, Arc::new(Nobody), None);
        Ok(Self::within(pool, caller))
    }

    /// A function that these processes answer for.
    fn within(pool: Arc<Pool>, caller: Caller) -> Self {
        Self { pool, caller: Arc::new(caller), introduced: Mutex::default() }
    }

    /// Reports restarts and long waits to a listener, under the function's name.
    #[must_use]
    pub fn heard_by(mut self, name: &str, listener: Arc<dyn Listener>) -> Self {
        self.caller = Arc::new(Caller::new(&self.pool.config, name, listener, self.caller.function.clone()));
        self
    }

    /// Asks the Python function of [`python::PythonSettings`] what it is, before it is asked anything else.
    ///
    /// # Errors
    /// The process cannot be started or ended, as when the file cannot be imported.
    pub fn introduce(&self, rows: &KnownRows<'_>) -> Result<Introduced, RewardFailure> {
        let introduced = self.pool.introduce(&self.caller, rows)?;
        if let Introduced::Function(introduction) = &introduced {
            *lock(&self.introduced) = Some(introduction.clone());
        }
        Ok(introduced)
    }

    fn ask(
        &self,
        slot: &mut Slot,
        requests: &[RowRequest<'_>],
        answered: &mut dyn FnMut(usize, Reply),
    ) -> Result<(), RewardFailure> {
        self.pool.ask(&self.caller, slot, requests, answered)
    }

    fn run_chunk(&self, slot: &mut Slot, requests: &[RowRequest<'_>], replies: &Mutex<Vec<Option<Reply>>>) {
        let failed = |failure| Reply { outcome: RewardOutcome::Failed(failure), logged: Logged::default() };
        let mut open: Vec<bool> = vec![true; requests.len()];
        let first_row = requests.first().map_or(0, |request| request.row);
        let mut set = |row: usize, reply: Reply| {
            if let Some(flag) = open.get_mut(row - first_row) {
                *flag = false;
            }
            if let Some(place) = lock(replies).get_mut(row) {
                *place = Some(reply);
            }
        };
        let Err(failure) = self.ask(slot, requests, &mut set) else { return };
        let owed: Vec<&RowRequest<'_>> =
            requests.iter().zip(&open).filter(|(_, is_open)| **is_open).map(|(request, _)| request).collect();
        if requests.len() == 1 || failure == RewardFailure::Interrupted {
            for request in owed {
                lock(replies)[request.row] = Some(failed(failure.clone()));
            }
            return;
        }
        for request in owed {
            let mut set = |row: usize, reply: Reply| {
                if let Some(place) = lock(replies).get_mut(row) {
                    *place = Some(reply);
                }
            };
            let alone = request.alone();
            if let Err(failure) = self.ask(slot, std::slice::from_ref(&alone), &mut set) {
                set(request.row, failed(failure));
            }
        }
    }
}

impl RewardFunction for CommandReward {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.score_logged(batch).0
    }

    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        let replies: Mutex<Vec<Option<Reply>>> = Mutex::new(vec![None; batch.len()]);
        self.pool.each_chunk(batch.len(), &|slot, rows, first_id| {
            let request = |row: usize| RowRequest {
                row,
                id: first_id + row as u64,
                remaining: rows.end - 1 - row,
                input: &batch[row],
            };
            let requests: Vec<RowRequest<'_>> = rows.clone().map(request).collect();
            self.run_chunk(slot, &requests, &replies);
        });
        let replies = replies.into_inner().unwrap_or_else(PoisonError::into_inner);
        let none = || Reply { outcome: RewardOutcome::NoAnswer, logged: Logged::default() };
        replies
            .into_iter()
            .map(|reply| reply.unwrap_or_else(none))
            .map(|reply| (reply.outcome, reply.logged))
            .unzip()
    }

    fn batch_size(&self) -> usize {
        self.pool.config.batch_size
    }

    fn concurrency(&self) -> usize {
        self.pool.slots.len()
    }

    fn how_to_give_acc(&self) -> Option<&'static str> {
        let style = lock(&self.introduced).as_ref().map(|introduction| introduction.style.clone());
        match style.as_deref() {
            None => Some("let the program answer `scores` with `score` and `acc`"),
            Some("verl" | "simple") => Some("let the function return a dictionary with `score` and `acc`"),
            // TRL's return a number for each completion.
            Some("trl") => None,
            Some(_) => Some("let the function return dictionaries with `overall` and `accuracy`"),
        }
    }

    fn failure_hint(&self) -> Option<String> {
        let style = lock(&self.introduced);
        let FunctionIntroduction { style, signature, .. } = style.as_ref()?;
        Some(format!(
            "reward `{}` calls {signature} as `style: {style}` does (docs/rewards.md); its last message shows the error",
            self.caller.name
        ))
    }

    fn reads_gold(&self) -> Option<bool> {
        lock(&self.introduced).as_ref()?.reads_gold
    }

    fn uses_gold(&self) -> Option<bool> {
        lock(&self.introduced).as_ref()?.uses_gold
    }

    /// Gold completions in every common form, since the program's format is not known: the unchanged ground
    /// truth, after `#### `, in `\boxed{}`, after `Answer: `, in `<answer>` tags, and the dataset's own
    /// solution text (column `answer` or `solution`).
    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        let Some(truth) = &prompt.ground_truth else { return Vec::new() };
        let short = super::gsm8k::gold(truth);
        let short = super::as_written::as_written(&short);
        let mut forms = vec![
            truth.clone(),
            format!("#### {short}"),
            format!("\\boxed{{{short}}}"),
            format!("Answer: {short}"),
            format!("<think>\n</think>\n<answer>{short}</answer>"),
        ];
        for column in ["answer", "solution"] {
            if let Some(text) = prompt.columns.get(column).and_then(serde_json::Value::as_str) {
                forms.push(text.to_owned());
            }
        }
        forms
    }
}

#[cfg(test)]
mod tests;
