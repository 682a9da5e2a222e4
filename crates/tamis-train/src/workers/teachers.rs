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
use tamis_rollout::Record;
use tamis_rollout::teacher::{NotRated, RatedText, TeacherServers};
use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, JournalError, SyncPolicy};

use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::micro_batch::{MicroBatch, logprobs, top_all};
use crate::learner::taught::{RatedCompletion, Taught};
use crate::learner::texts::Texts;
use crate::learner::{Learner, LearnerSequence, Network, TopColumns, Wave};

#[expect(clippy::large_enum_variant, reason = "a run has few teachers")]
pub(crate) enum TeacherPlace {
    /// A network of the learner.
    Learner(Network),
    /// Servers.
    Servers(TeacherServers),
}

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
    /// The likeliest tokens, if a step compares with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    top: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<f32>,
}

/// Sizes of the passes that rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RatingSizes {
    /// Sequences of a pass.
    pub(crate) micro_batch: MicroBatch,
    /// Likeliest tokens of each position, at most the policy's vocabulary; `None`: none.
    pub(crate) num_top: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Teachers {
    list: Vec<Teacher>,
    /// Of servers only.
    journal: Option<Journal>,
    /// What was found of texts, with their step: those of the present step, and those read back.
    known: HashMap<u64, (u64, RatedCompletion)>,
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
        for (start, Entry { text, step, logprobs, top, top_logprobs }) in entries {
            self.starts.entry(step).or_insert(start);
            self.known.insert(text, (step, RatedCompletion { logprobs, top, top_logprobs }));
        }
        self.journal = Some(journal);
        Ok(self)
    }

    /// The teacher of a prompt; `None` if none is for its data source.
    fn of_source(&self, data_source: &str) -> Option<usize> {
        let named = self.list.iter().position(|teacher| teacher.data_source.as_deref() == Some(data_source));
        named.or_else(|| self.list.iter().position(|teacher| teacher.data_source.is_none()))
    }

    /// Log-probabilities of the completions of a step's groups under their teachers, and the teachers'
    /// likeliest tokens. A text is rated once per step.
    pub(crate) fn rate(
        &mut self,
        learner: &mut dyn Learner,
        step: u64,
        records: &[Record],
        sequences: &[LearnerSequence<'_>],
        RatingSizes { micro_batch, num_top }: RatingSizes,
    ) -> Result<Taught, Halt<RunError>> {
        let vocab_size = learner.info().policy.vocab_size;
        let number = num_top.unwrap_or(0).min(vocab_size);
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
                let num_tokens = sequence.completion.len();
                let rated = self.known.get(&text.1).map(|(_, rated)| (rated.logprobs.len(), rated.top.len()));
                text.0 == teacher && rated != Some((num_tokens, num_tokens * number))
            };
            let unrated: Vec<usize> =
                (0..texts.len()).filter(|&place| is_unrated(&texts[place], &sequences[place])).collect();
            if unrated.is_empty() {
                continue;
            }
            let own: Vec<LearnerSequence<'_>> = unrated.iter().map(|&place| sequences[place]).collect();
            let rated = match &self.list[teacher].place {
                TeacherPlace::Learner(network) if number == 0 => {
                    let logprobs = logprobs(learner, *network, &own, micro_batch)?;
                    TopColumns { logprobs: logprobs.values().to_vec(), ..TopColumns::default() }
                }
                TeacherPlace::Learner(network) => top_all(learner, *network, &own, micro_batch, number)?,
                TeacherPlace::Servers(servers) => at_servers(servers, &own)?,
            };
            let rated: Vec<(u64, RatedCompletion)> = unrated
                .iter()
                .zip(completions(&own, rated, number))
                .map(|(&place, rated)| (texts[place].1, rated))
                .collect();
            if matches!(self.list[teacher].place, TeacherPlace::Servers(_)) {
                self.record(step, &rated)?;
            }
            self.known.extend(rated.into_iter().map(|(text, rated)| (text, (step, rated))));
        }
        let mut taught = Taught::new(number);
        for ((_, text), sequence) in texts.iter().zip(sequences) {
            if let Some((_, rated)) = self.known.get(text) {
                taught.push(sequence.completion, rated, vocab_size);
            }
        }
        Ok(taught)
    }

    fn record(&mut self, step: u64, rated: &[(u64, RatedCompletion)]) -> Result<(), RunError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        self.starts.entry(step).or_insert(journal.position());
        for (text, rated) in rated {
            let RatedCompletion { logprobs, top, top_logprobs } = rated.clone();
            let entry = Entry { text: *text, step, logprobs, top, top_logprobs };
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

pub(crate) fn no_teacher(source: &str) -> RunError {
    crate::error::AssembleError::at(
        "teacher",
        format!("no teacher is for the prompts of `data_source` {source:?}"),
        "name one with this `data_source`, or one without `data_source`, which is for all others",
    )
    .into()
}

/// The columns of a pass, sequence by sequence.
fn completions<'a>(
    sequences: &'a [LearnerSequence<'_>],
    columns: TopColumns,
    number: usize,
) -> impl Iterator<Item = RatedCompletion> + 'a {
    let mut end = 0;
    sequences.iter().map(move |sequence| {
        let own = end..end + sequence.completion.len();
        end = own.end;
        let top = own.start * number..own.end * number;
        RatedCompletion {
            logprobs: columns.logprobs[own].to_vec(),
            top: columns.tokens[top.clone()].to_vec(),
            top_logprobs: columns.top_logprobs[top].to_vec(),
        }
    })
}

/// Log-probabilities from servers.
fn at_servers(
    servers: &TeacherServers,
    sequences: &[LearnerSequence<'_>],
) -> Result<TopColumns, Halt<RunError>> {
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
    let mut columns = TopColumns::default();
    for text in rated {
        columns.logprobs.extend(text.logprobs);
        columns.tokens.extend(text.top);
        columns.top_logprobs.extend(text.top_logprobs);
    }
    Ok(parted.as_ref().map_or_else(|| columns.clone(), |parted| parted.places.spread_top(&columns)))
}
