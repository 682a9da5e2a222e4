//! Episodes of many turns, around a generator that samples one answer at a time.
//!
//! ```text
//! dispatcher, validation ── one request a trajectory ──> Episodes ── one request a turn ──> generator
//!                        <── one sample, all turns ────          <── one sample, one answer ──
//! ```
//!
//! Whoever asks for a sample asks for a whole trajectory and never sees a turn go by: an answer is handed to the
//! prompt's environment, what it shows is appended to the tokens as it is rendered, and the next answer is asked for
//! after all of that. What the policy wrote is never tokenised again. A prompt without an environment is the episode
//! that is over after one answer, and passes through.

use std::collections::BTreeMap;
use std::sync::Arc;

use tamis_core::caught::catch;
use tamis_core::group::{Episode, FinishReason, PolicyVersion, Turn};
use tamis_core::random::Key;
use tamis_data::prompt::{Message, Prompt, PromptContent};
use tamis_env::environment::{Environment, EpisodeEnd};

use crate::generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample,
    SampleId, SampleRequest, VersionSpan, Wait,
};

/// Coordinate of the key by which an environment draws, and, counted down from it, of those of later turns: no token
/// has such a number.
const LUCK: u64 = u64::MAX;

/// What stands between two answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Between {
    /// Its tokens, from behind the last one that was sampled to the beginning of the next answer.
    pub token_ids: Vec<u32>,
    /// The same as text.
    pub text: String,
}

/// Environments by prompt, and how what they show is rendered.
pub trait Worlds: Send + Sync {
    /// The environment of a prompt at its beginning; `luck`: the key of what it draws for this member alone. `None`
    /// where the prompt is answered once.
    ///
    /// # Errors
    /// In words, where it cannot be made.
    fn begin(&self, prompt: &Prompt, luck: Key) -> Result<Option<Box<dyn Environment>>, String>;

    /// What stands between an answer and the next one: `conversation` ends in the answer, whose tokens are
    /// `sampled`, and `observation` is shown after it.
    ///
    /// # Errors
    /// In words, where it cannot be rendered.
    fn between(
        &self,
        conversation: &[Message],
        sampled: &[u32],
        observation: &str,
    ) -> Result<Between, String>;
}

/// A trajectory that is being played.
struct Play {
    /// As it was asked for.
    request: SampleRequest,
    environment: Box<dyn Environment>,
    conversation: Vec<Message>,
    /// The turn whose answer is waited for.
    turn: u32,
    /// All turns so far, but for the prompt.
    sample: Sample,
    turns: Vec<Turn>,
    /// Tokens that the policy wrote, and the sum of their entropies where all are known.
    num_written: usize,
    entropy: Option<f64>,
    has_logprobs: bool,
    /// Whether nobody waits for it any more.
    is_given_up: bool,
}

/// What becomes of a play after an answer.
enum Next {
    Ask(SampleRequest),
    Over(Sample),
    Failed(String),
}

impl Play {
    fn new(request: SampleRequest, prompt: &Prompt, environment: Box<dyn Environment>) -> Self {
        let conversation = conversation_of(prompt);
        let sample = Sample {
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            entropy: None,
            text: String::new(),
            finish_reason: FinishReason::Stop,
            versions: Vec::new(),
            episode: None,
        };
        let (turns, entropy) = (Vec::new(), Some(0.0));
        Self {
            request,
            environment,
            conversation,
            turn: 0,
            sample,
            turns,
            num_written: 0,
            entropy,
            has_logprobs: true,
            is_given_up: false,
        }
    }

    /// Takes an answer in; whatever breaks down in the environment fails the trajectory.
    fn take(&mut self, answer: &Sample, worlds: &dyn Worlds, max_tokens: usize) -> Next {
        let taken = catch(|| self.play(answer, worlds, max_tokens));
        taken.unwrap_or_else(|panic| Next::Failed(format!("its environment broke down: {panic}")))
    }

    fn play(&mut self, answer: &Sample, worlds: &dyn Worlds, max_tokens: usize) -> Next {
        let (start, num_tokens) = (self.sample.token_ids.len(), answer.token_ids.len());
        self.has_logprobs &= answer.logprobs.len() == num_tokens;
        if self.has_logprobs {
            self.sample.logprobs.extend(&answer.logprobs);
        } else {
            // They are the learner's to say, or nobody's.
            self.sample.logprobs.clear();
        }
        self.sample.token_ids.extend(&answer.token_ids);
        self.sample.text.push_str(&answer.text);
        self.sample.finish_reason = answer.finish_reason;
        for span in &answer.versions {
            self.extend_versions(span.version, start as u32 + span.end);
        }
        self.entropy = self.entropy.zip(answer.entropy).map(|(sum, mean)| sum + mean * num_tokens as f64);
        self.num_written += num_tokens;
        let outcome = self.environment.act(&answer.text);
        self.turns.push(Turn {
            start: start as u32,
            end: (start + num_tokens) as u32,
            text: answer.text.clone(),
            observation: String::new(),
            reward: outcome.reward,
            info: outcome.info.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        });
        if let Some(end) = outcome.end {
            return Next::Over(self.finish(end == EpisodeEnd::Truncated));
        }
        let observation = self.environment.observe();
        self.conversation.push(message("assistant", &answer.text));
        let between = match worlds.between(&self.conversation, &answer.token_ids, &observation) {
            Ok(between) => between,
            Err(reason) => {
                return Next::Failed(format!("what its environment shows cannot be given to it: {reason}"));
            }
        };
        let room = max_tokens.saturating_sub(self.sample.token_ids.len() + between.token_ids.len());
        if room == 0 {
            self.sample.finish_reason = FinishReason::Length;
            return Next::Over(self.finish(true));
        }
        self.append(&between, observation);
        Next::Ask(self.ask(room))
    }

    /// The last version goes on to this token, or another one does.
    fn extend_versions(&mut self, version: PolicyVersion, end: u32) {
        match self.sample.versions.last_mut() {
            Some(last) if last.version == version => last.end = end,
            last => {
                let start = last.map_or(0, |last| last.end);
                self.sample.versions.push(VersionSpan { version, start, end });
            }
        }
    }

    fn append(&mut self, between: &Between, observation: String) {
        self.sample.token_ids.extend(&between.token_ids);
        if self.has_logprobs {
            self.sample.logprobs.resize(self.sample.token_ids.len(), 0.0);
        }
        self.sample.text.push_str(&between.text);
        if let Some(last) = self.sample.versions.last_mut() {
            last.end = self.sample.token_ids.len() as u32;
        }
        self.conversation.push(message("user", &observation));
        if let Some(turn) = self.turns.last_mut() {
            turn.observation = observation;
        }
    }

    /// The request of the next answer, which has room for so many tokens.
    fn ask(&mut self, room: usize) -> SampleRequest {
        self.turn += 1;
        let mut sampling = Arc::clone(&self.request.sampling);
        if sampling.max_response_length > room {
            Arc::make_mut(&mut sampling).max_response_length = room;
        }
        // An answer that is journalled under this key is one to what stands before it, and to nothing else.
        let key = self.request.key.with(LUCK - u64::from(self.turn));
        let key = self.sample.token_ids.iter().fold(key, |key, &token| key.with(u64::from(token)));
        SampleRequest {
            id: SampleId { turn: self.turn, ..self.request.id },
            prompt_token_ids: [&*self.request.prompt_token_ids, &self.sample.token_ids].concat().into(),
            key,
            sampling,
            ..self.request.clone()
        }
    }

    fn finish(&mut self, is_cut: bool) -> Sample {
        let turns = std::mem::take(&mut self.turns);
        let is_success = self.environment.is_success();
        let num_written = self.num_written.max(1) as f64;
        let mut sample = self.sample.clone();
        sample.entropy = self.entropy.map(|sum| sum / num_written);
        sample.episode = Some(Episode { turns, is_success, is_cut });
        sample
    }
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: content.to_owned() }
}

/// The messages of a prompt; bare text is the user's.
pub fn conversation_of(prompt: &Prompt) -> Vec<Message> {
    match &prompt.content {
        PromptContent::Text(text) => vec![message("user", text)],
        PromptContent::Messages(messages) => messages.clone(),
    }
}

/// The messages of an episode: what the policy wrote, and what it was shown after that.
pub fn messages_of(episode: &Episode) -> Vec<Message> {
    let of_turn = |turn: &Turn| {
        let shown = (!turn.observation.is_empty()).then(|| message("user", &turn.observation));
        std::iter::once(message("assistant", &turn.text)).chain(shown)
    };
    episode.turns.iter().flat_map(of_turn).collect()
}

/// The trajectories that are being played.
pub struct Plays {
    worlds: Option<Arc<dyn Worlds>>,
    /// Most tokens of a trajectory.
    max_tokens: usize,
    /// Whether trajectories are finished by the weights that they began with, also where answers need not be.
    finishes: bool,
    open: BTreeMap<SampleId, Play>,
    /// A publication that waits for what is open, and what was asked for meanwhile.
    publication: Option<(Publication, InFlight)>,
    waiting: Vec<SampleRequest>,
    /// To be told.
    told: Vec<GeneratorEvent>,
}

impl Plays {
    /// In these environments; `max_tokens`: most tokens of a trajectory, with what environments write in it;
    /// `finishes`: whether a trajectory is finished by the weights that it began with whatever a publication says, as
    /// it must be where a resumed run samples anew and finds no answers in a journal.
    pub fn new(worlds: Arc<dyn Worlds>, max_tokens: usize, finishes: bool) -> Self {
        Self { worlds: Some(worlds), max_tokens, finishes, ..Self::none() }
    }

    /// None: every prompt is answered once.
    pub fn none() -> Self {
        Self {
            worlds: None,
            max_tokens: 0,
            finishes: false,
            open: BTreeMap::new(),
            publication: None,
            waiting: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Whether no trajectory is in the middle.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// A generator of whole trajectories, over one of single answers.
    pub fn over<'a>(&'a mut self, generator: &'a mut dyn Generator) -> Episodes<'a> {
        Episodes { plays: self, generator }
    }

    /// The play that an event is about, where there is one and it waits for that; otherwise the id by which whoever
    /// asked for trajectories tells that it is none of theirs.
    fn play(&mut self, id: SampleId) -> Result<(SampleId, &mut Play), SampleId> {
        let whole = SampleId { turn: 0, ..id };
        match self.open.get_mut(&whole) {
            Some(play) if play.turn == id.turn => Ok((whole, play)),
            // Said twice: the answer of a turn is no end of a trajectory.
            Some(_) => Err(SampleId { turn: id.turn.max(1), ..id }),
            None => Err(id),
        }
    }

    /// Ends a play whose answer does not come; as which sample it was asked for, and the tokens of its turns before.
    fn give_up(&mut self, id: SampleId) -> (SampleId, u64) {
        match self.play(id) {
            Ok((whole, play)) => {
                let num_tokens = play.num_written as u64;
                self.open.remove(&whole);
                (whole, num_tokens)
            }
            Err(id) => (id, 0),
        }
    }
}

/// A generator of whole trajectories, whose prompts may be played in environments.
pub struct Episodes<'a> {
    plays: &'a mut Plays,
    generator: &'a mut dyn Generator,
}

impl Episodes<'_> {
    /// What is told of an event; `None` where a trajectory goes on.
    fn take(&mut self, event: GeneratorEvent) -> Result<Option<GeneratorEvent>, GeneratorError> {
        let (worlds, max_tokens) = (self.plays.worlds.clone(), self.plays.max_tokens);
        let event = match event {
            GeneratorEvent::Sampled { id, sample } => {
                let (whole, play) = match self.plays.play(id) {
                    Ok(found) => found,
                    Err(id) => return Ok(Some(GeneratorEvent::Sampled { id, sample })),
                };
                let Some(worlds) = worlds else {
                    return Ok(Some(GeneratorEvent::Sampled { id, sample }));
                };
                if play.is_given_up {
                    let num_tokens = (play.num_written + sample.token_ids.len()) as u64;
                    self.plays.open.remove(&whole);
                    return Ok(Some(GeneratorEvent::Aborted { id: whole, num_tokens }));
                }
                match play.take(&sample, &*worlds, max_tokens) {
                    Next::Ask(request) => {
                        self.generator.submit(request)?;
                        return Ok(None);
                    }
                    Next::Over(sample) => {
                        self.plays.open.remove(&whole);
                        GeneratorEvent::Sampled { id: whole, sample }
                    }
                    Next::Failed(reason) => {
                        let num_tokens = play.num_written as u64;
                        self.plays.open.remove(&whole);
                        GeneratorEvent::Failed { id: whole, kind: FailureKind::Permanent, reason, num_tokens }
                    }
                }
            }
            GeneratorEvent::Failed { id, kind, reason, num_tokens } => {
                let (id, before) = self.plays.give_up(id);
                GeneratorEvent::Failed { id, kind, reason, num_tokens: num_tokens + before }
            }
            GeneratorEvent::Aborted { id, num_tokens } => {
                let (id, before) = self.plays.give_up(id);
                GeneratorEvent::Aborted { id, num_tokens: num_tokens + before }
            }
            published @ GeneratorEvent::Published { .. } => published,
        };
        Ok(Some(event))
    }
}

impl Episodes<'_> {
    /// Begins a trajectory, or the answer that is all of one.
    fn begin(&mut self, mut request: SampleRequest) -> Result<(), GeneratorError> {
        let (id, luck, max_tokens) = (request.id, request.key.with(LUCK), self.plays.max_tokens);
        let begun = match (&self.plays.worlds, &request.prompt) {
            (Some(worlds), Some(prompt)) => catch(|| worlds.begin(prompt, luck))
                .unwrap_or_else(|panic| Err(format!("its environment broke down: {panic}"))),
            _ => Ok(None),
        };
        match (begun, request.prompt.clone()) {
            (Ok(Some(environment)), Some(prompt)) => {
                if request.sampling.max_response_length > max_tokens {
                    Arc::make_mut(&mut request.sampling).max_response_length = max_tokens;
                }
                let play = Play::new(request.clone(), &prompt, environment);
                self.generator.submit(request)?;
                self.plays.open.insert(id, play);
            }
            (Ok(_), _) => self.generator.submit(request)?,
            (Err(reason), _) => {
                let kind = FailureKind::Permanent;
                self.plays.told.push(GeneratorEvent::Failed { id, kind, reason, num_tokens: 0 });
            }
        }
        Ok(())
    }

    /// Gives weights that waited for what was open, once nothing is; then what was asked for meanwhile begins.
    fn publish_held(&mut self) -> Result<(), GeneratorError> {
        if !self.plays.open.is_empty() {
            return Ok(());
        }
        let Some((publication, in_flight)) = self.plays.publication.take() else { return Ok(()) };
        self.generator.publish(&publication, in_flight)?;
        for request in std::mem::take(&mut self.plays.waiting) {
            self.begin(request)?;
        }
        Ok(())
    }

    /// Nobody waits for these any more.
    fn give_up_all(&mut self, is_meant: impl Fn(&SampleId) -> bool) {
        for (id, play) in &mut self.plays.open {
            play.is_given_up |= is_meant(id);
        }
        let (gone, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.plays.waiting).into_iter().partition(|request| is_meant(&request.id));
        self.plays.waiting = stay;
        let aborted =
            gone.into_iter().map(|request| GeneratorEvent::Aborted { id: request.id, num_tokens: 0 });
        self.plays.told.extend(aborted);
    }
}

impl Generator for Episodes<'_> {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        let id = request.id;
        if self.plays.open.contains_key(&id) || self.plays.waiting.iter().any(|one| one.id == id) {
            return Err(GeneratorError::IdInUse { id });
        }
        if self.plays.publication.is_some() {
            self.plays.waiting.push(request);
            return Ok(());
        }
        self.begin(request)
    }

    fn abort(&mut self, what: AbortScope) {
        self.give_up_all(|id| what.holds(id));
        self.generator.abort(match what {
            AbortScope::Sample(id) => {
                let turn = self.plays.open.get(&id).map_or(id.turn, |play| play.turn);
                AbortScope::Sample(SampleId { turn, ..id })
            }
            other => other,
        });
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        if in_flight == InFlight::Abort {
            self.plays.publication = None;
            for play in self.plays.open.values_mut() {
                play.is_given_up = true;
            }
            self.generator.publish(weights, in_flight)?;
            for request in std::mem::take(&mut self.plays.waiting) {
                self.begin(request)?;
            }
            return Ok(());
        }
        if (in_flight == InFlight::Wait || self.plays.finishes) && !self.plays.open.is_empty() {
            self.plays.publication = Some((weights.clone(), in_flight));
            return Ok(());
        }
        self.generator.publish(weights, in_flight)
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        loop {
            let mut told = std::mem::take(&mut self.plays.told);
            let events = self.generator.next(if told.is_empty() { wait } else { Wait::No })?;
            let is_quiet = events.is_empty();
            for event in events {
                told.extend(self.take(event)?);
            }
            self.publish_held()?;
            told.append(&mut self.plays.told);
            if is_quiet || !told.is_empty() || wait == Wait::No {
                return Ok(told);
            }
        }
    }

    fn load(&self) -> Load {
        let load = self.generator.load();
        Load { in_flight: load.in_flight + self.plays.waiting.len() + self.plays.told.len(), ..load }
    }
}

#[cfg(test)]
mod tests;
