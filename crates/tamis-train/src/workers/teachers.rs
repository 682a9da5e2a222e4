//! The teachers of a run, and the log-probabilities that they have given.
//!
//! Answers of servers are journalled before they are used, because the same request may be answered with
//! other last bits. They are known by the text that was rated. Like the journal of samples
//! ([`crate::workers::samples`]), the journal is read back if an earlier process received answers after the
//! checkpoint.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_core::ragged::Ragged;
use tamis_rollout::Record;
use tamis_rollout::teacher::{NotRated, RatedText, TeacherServers};
use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, JournalError, SyncPolicy};

use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::micro_batch::MicroBatch;
use crate::learner::micro_batch::logprobs;
use crate::learner::texts::Texts;
use crate::learner::{Learner, LearnerSequence, Network, TokenColumns, Wave};

/// The place of a teacher.
#[expect(clippy::large_enum_variant, reason = "a run has few teachers")]
pub(crate) enum TeacherPlace {
    /// A network of the learner.
    Learner(Network),
    /// Servers.
    Servers(TeacherServers),
}

/// One teacher.
pub(crate) struct Teacher {
    /// The `data_source` of its prompts; `None`: every other.
    pub(crate) data_source: Option<String>,
    pub(crate) place: TeacherPlace,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    text: u64,
    step: u64,
    logprobs: Vec<f32>,
}

/// All teachers of a run.
#[derive(Default)]
pub(crate) struct Teachers {
    list: Vec<Teacher>,
    /// Of servers only.
    journal: Option<Journal>,
    /// Log-probabilities of texts, with their step: those of the present step, and those read back.
    known: HashMap<u64, (u64, Vec<f32>)>,
    /// Offset of each step's first answer that no checkpoint has settled.
    starts: BTreeMap<u64, u64>,
}

/// Identity of a text that a teacher rates.
fn identity(teacher: usize, sequence: &LearnerSequence<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (teacher, sequence.prompt, sequence.images, sequence.completion).hash(&mut hasher);
    for part in sequence.parts() {
        (part.start, part.answer, part.end).hash(&mut hasher);
    }
    hasher.finish()
}

impl Teachers {
    /// The teachers of a run that has no servers among them.
    pub(crate) fn new(list: Vec<Teacher>) -> Self {
        Self { list, ..Self::default() }
    }

    /// Whether one of them is at servers.
    pub(crate) fn asks_servers(&self) -> bool {
        self.list.iter().any(|teacher| matches!(teacher.place, TeacherPlace::Servers(_)))
    }

    /// With a journal for the answers of servers, whose entries are read from `from` on, the position that
    /// the checkpoint recorded (0 without one).
    ///
    /// # Errors
    /// A journal that ends before `from`, a file that is not a journal, the disk.
    pub(crate) fn with_journal(mut self, disk: &Disk, path: &Path, from: u64) -> Result<Self, JournalError> {
        let (journal, entries) = Journal::open_json::<Entry>(disk, path, SyncPolicy::OnDemand, from)?;
        for (start, Entry { text, step, logprobs }) in entries {
            self.starts.entry(step).or_insert(start);
            self.known.insert(text, (step, logprobs));
        }
        self.journal = Some(journal);
        Ok(self)
    }

    /// The teacher of a prompt; `None` if none is for its data source.
    fn of_source(&self, data_source: &str) -> Option<usize> {
        let named = self.list.iter().position(|teacher| teacher.data_source.as_deref() == Some(data_source));
        named.or_else(|| self.list.iter().position(|teacher| teacher.data_source.is_none()))
    }

    /// Log-probabilities of the completions of a step's groups under their teachers, one row each `[B][T]`. A
    /// text is rated once per step.
    pub(crate) fn rate(
        &mut self,
        learner: &mut dyn Learner,
        step: u64,
        records: &[Record],
        sequences: &[LearnerSequence<'_>],
        micro_batch: MicroBatch,
    ) -> Result<Ragged<f32>, Halt<RunError>> {
        if self.journal.is_none() {
            self.known.retain(|_, (of, _)| *of == step);
        }
        let sources = records.iter().flat_map(|record| {
            std::iter::repeat_n(record.prompt.prompt.data_source.as_str(), record.group.trajectories.len())
        });
        let mut texts = Vec::with_capacity(sequences.len());
        for (source, sequence) in sources.zip(sequences) {
            let teacher = self.of_source(source).ok_or_else(|| Halt::Failed(no_teacher(source)))?;
            texts.push((teacher, identity(teacher, sequence)));
        }
        for teacher in 0..self.list.len() {
            let is_unrated = |text: &(usize, u64), sequence: &LearnerSequence<'_>| {
                let rated = self.known.get(&text.1).map(|(_, rated)| rated.len());
                text.0 == teacher && rated != Some(sequence.completion.len())
            };
            let unrated: Vec<usize> =
                (0..texts.len()).filter(|&place| is_unrated(&texts[place], &sequences[place])).collect();
            if unrated.is_empty() {
                continue;
            }
            let own: Vec<LearnerSequence<'_>> = unrated.iter().map(|&place| sequences[place]).collect();
            let rated = match &self.list[teacher].place {
                TeacherPlace::Learner(network) => logprobs(learner, *network, &own, micro_batch)?,
                TeacherPlace::Servers(servers) => at_servers(servers, &own)?,
            };
            let rated: Vec<(u64, Vec<f32>)> = unrated
                .iter()
                .zip(rated.rows())
                .map(|(&place, row)| (texts[place].1, row.to_vec()))
                .collect();
            if matches!(self.list[teacher].place, TeacherPlace::Servers(_)) {
                self.record(step, &rated)?;
            }
            self.known.extend(rated.into_iter().map(|(text, row)| (text, (step, row))));
        }
        let mut column = Ragged::default();
        for (_, text) in &texts {
            let row = self.known.get(text).map_or(&[][..], |(_, row)| row);
            column.push_row(row.iter().copied());
        }
        Ok(column)
    }

    fn record(&mut self, step: u64, rated: &[(u64, Vec<f32>)]) -> Result<(), RunError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        self.starts.entry(step).or_insert(journal.position());
        for (text, logprobs) in rated {
            let entry = Entry { text: *text, step, logprobs: logprobs.clone() };
            // Numbers and lists of numbers are always JSON.
            let Ok(payload) = serde_json::to_vec(&entry) else { continue };
            journal.append(&payload)?;
        }
        Ok(journal.sync()?)
    }

    /// Forgets the answers of steps before `next`. From the returned position (in bytes) on the journal holds
    /// all others, which a checkpoint needs; `None` without a journal.
    pub(crate) fn settle(&mut self, next: u64) -> Option<u64> {
        let journal = self.journal.as_ref()?;
        self.known.retain(|_, (step, _)| *step >= next);
        self.starts.retain(|step, _| *step >= next);
        Some(self.starts.values().copied().min().unwrap_or(journal.position()))
    }

    /// Removes everything before a position, which no checkpoint needs any more, if that is worth the effort.
    pub(crate) fn shorten(&mut self, position: u64) -> Result<(), JournalError> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.shorten(position))
    }
}

/// The error for a prompt that no teacher is for.
pub(crate) fn no_teacher(source: &str) -> RunError {
    crate::error::AssembleError::at(
        "teacher",
        format!("no teacher is for the prompts of `data_source` {source:?}"),
        "name one with this `data_source`, or one without `data_source`, which is for all others",
    )
    .into()
}

/// Log-probabilities from servers, one row for each sequence.
fn at_servers(
    servers: &TeacherServers,
    sequences: &[LearnerSequence<'_>],
) -> Result<Ragged<f32>, Halt<RunError>> {
    let wave = Wave::of(sequences);
    let parted = Texts::of(&wave);
    let texts = parted.as_ref().map_or(&wave, |parted| &parted.wave).sequences.iter();
    let texts = texts.map(|text| RatedText {
        token_ids: [text.prompt, text.completion].concat(),
        start: text.prompt.len(),
    });
    let rated = servers.rate(texts.collect()).map_err(|why| match why {
        NotRated::Interrupted => Halt::Interrupted,
        NotRated::Failed(message) => Halt::Failed(RunError::Teacher { message }),
    })?;
    let mut columns = TokenColumns { logprobs: rated.concat(), ..TokenColumns::default() };
    if let Some(parted) = &parted {
        columns = parted.places.spread(&columns);
    }
    let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.completion.len()).collect();
    Ok(Ragged::from_lengths(columns.logprobs, &lengths)?)
}
