//! Completions of a list of prompts that are waited for together: validation, greedy baselines, evaluation.

use std::sync::Arc;

use tamis_core::random::Key;
use tamis_data::prompt::Prompt;

use crate::dispatcher::DispatchError;
use crate::generator::{
    AbortScope, Generator, GeneratorError, GeneratorEvent, Sample, SampleId, SamplePurpose, SampleRequest,
    Sampling, Wait,
};
use crate::inbox::{Inbox, Unexpected};

/// A prompt to be completed several times.
#[derive(Debug, Clone)]
pub struct Prompted {
    /// Token ids of the completion.
    pub token_ids: Arc<[u32]>,
    /// Paths of the images that go with them.
    pub images: Arc<[String]>,
    /// The prompt as data; see [`SampleRequest::prompt`].
    pub prompt: Option<Arc<Prompt>>,
    /// One key per completion \[n\].
    pub keys: Vec<Key>,
}

/// The completions of each prompt \[P\], or why they could not be generated.
pub type Completed = Vec<Result<Vec<Sample>, String>>;

/// The completions of each prompt \[P\]: all that were asked for, in key order, or why one of them could not
/// be generated (the others are then given up). `progress` hears how many prompts are done. `None` where
/// `is_interrupted`.
///
/// Whatever belongs to groups that generate at the same time is left in the `inbox`; what nobody waits for is
/// counted there. Where it ends with an error, nothing of it stays in flight.
///
/// # Errors
/// The generator breaks down.
pub fn complete(
    generator: &mut dyn Generator,
    inbox: &mut Inbox,
    purpose: SamplePurpose,
    prompts: &[Prompted],
    sampling: &Arc<Sampling>,
    is_interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize),
) -> Result<Option<Completed>, DispatchError> {
    let next = inbox.num_prompts.entry(purpose).or_default();
    let mut open = Open::new(prompts, *next);
    // Numbers are not given again: a late answer to one is never taken for another's.
    *next += prompts.len() as u64;
    let completed = run(generator, inbox, purpose, &mut open, sampling, is_interrupted, progress);
    if !matches!(completed, Ok(true)) {
        // What is given up may be asked for again.
        generator.abort(AbortScope::Purpose(purpose));
    }
    Ok(completed?.then(|| open.rows.into_iter().map(Row::outcome).collect()))
}

/// The prompts with what has come of them.
struct Open<'a> {
    prompts: &'a [Prompted],
    /// The number of the first among those of this purpose.
    first: u64,
    rows: Vec<Row>,
    num_open: usize,
}

/// The samples of one prompt, as far as they have arrived.
struct Row {
    samples: Vec<Option<Sample>>,
    /// Whether each sample is still to end \[n\].
    in_flight: Vec<bool>,
    failure: Option<String>,
}

impl Row {
    fn is_open(&self) -> bool {
        self.in_flight.contains(&true)
    }

    fn outcome(self) -> Result<Vec<Sample>, String> {
        match self.failure {
            Some(reason) => Err(reason),
            None => Ok(self.samples.into_iter().flatten().collect()),
        }
    }
}

impl<'a> Open<'a> {
    fn new(prompts: &'a [Prompted], first: u64) -> Self {
        let row = |prompt: &Prompted| Row {
            samples: vec![None; prompt.keys.len()],
            in_flight: vec![true; prompt.keys.len()],
            failure: None,
        };
        let rows: Vec<Row> = prompts.iter().map(row).collect();
        Self { prompts, first, num_open: rows.iter().filter(|row| row.is_open()).count(), rows }
    }

    /// The row and the completion that an event of this purpose is about, taken as ended.
    fn end(&mut self, id: SampleId) -> Result<&mut Row, Unexpected> {
        let row = id.group.checked_sub(self.first).ok_or(Unexpected::Late)?;
        let row = self.rows.get_mut(row as usize).filter(|_| id.turn == 0 && id.attempt == 0);
        let row = row.ok_or(Unexpected::Foreign)?;
        let in_flight = row.in_flight.get_mut(id.member as usize).ok_or(Unexpected::Foreign)?;
        if !std::mem::replace(in_flight, false) {
            return Err(Unexpected::Duplicate);
        }
        self.num_open -= usize::from(!row.in_flight.contains(&true));
        Ok(row)
    }
}

/// Whether it came to its end.
fn run(
    generator: &mut dyn Generator,
    inbox: &mut Inbox,
    purpose: SamplePurpose,
    open: &mut Open<'_>,
    sampling: &Arc<Sampling>,
    is_interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize),
) -> Result<bool, DispatchError> {
    for (row, prompt) in open.prompts.iter().enumerate() {
        for (member, key) in prompt.keys.iter().enumerate() {
            generator.submit(SampleRequest {
                id: SampleId {
                    purpose,
                    group: open.first + row as u64,
                    member: member as u32,
                    turn: 0,
                    attempt: 0,
                },
                prompt_token_ids: prompt.token_ids.clone(),
                images: prompt.images.clone(),
                key: *key,
                sampling: sampling.clone(),
                prompt: prompt.prompt.clone(),
            })?;
        }
    }
    while open.num_open > 0 {
        let before = open.num_open;
        let events = generator.next(Wait::Forever)?;
        if is_interrupted() {
            return Ok(false);
        }
        if events.is_empty() && generator.load().in_flight == 0 {
            let reason =
                format!("{} prompts are in flight and the generator returns none of them", open.num_open);
            return Err(GeneratorError::Broken { reason }.into());
        }
        for event in events {
            let (id, outcome) = match event {
                GeneratorEvent::Sampled { id, sample } if id.purpose == purpose => (id, Ok(sample)),
                GeneratorEvent::Failed { id, kind, reason, .. } if id.purpose == purpose => {
                    (id, Err((Some(kind), reason)))
                }
                GeneratorEvent::Aborted { id, .. } if id.purpose == purpose => {
                    (id, Err((None, "it was given up".to_owned())))
                }
                event => {
                    inbox.of_groups.push_back(event);
                    continue;
                }
            };
            let row = match open.end(id) {
                Ok(row) => row,
                Err(why) => {
                    inbox.ignored.count(why);
                    continue;
                }
            };
            match outcome {
                Ok(sample) => row.samples[id.member as usize] = Some(sample),
                Err((kind, reason)) => {
                    // A validation stands between two steps, and is no part of what either of them counts.
                    if let Some(kind) = kind.filter(|_| purpose != SamplePurpose::Validation) {
                        inbox.faults.count(kind);
                    }
                    if row.failure.is_none() && row.is_open() {
                        generator.abort(AbortScope::Group { purpose, group: id.group });
                    }
                    row.failure.get_or_insert(reason);
                }
            }
        }
        if open.num_open < before {
            progress(open.rows.len() - open.num_open);
        }
    }
    Ok(true)
}
