//! Episodes of many turns, around a generator that samples one answer at a time.
//!
//! ```text
//! dispatcher, validation ── one request a trajectory ──> Episodes ── one request a turn ──> generator
//!                        <── one sample, all turns ────          <── one sample, one answer ──
//! ```
//!
//! A request for a sample is a request for a whole trajectory; the caller never sees a turn. Each
//! answer goes to the prompt's environment, the observation is rendered and appended to the tokens, and
//! the next answer is requested after all of that. The policy's own tokens are never tokenised again. A
//! prompt without an environment is an episode of one answer, and passes through.

mod agents;
mod play;
mod stage;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis_core::caught::catch;
use tamis_core::group::{Episode, Turn};
use tamis_core::random::Key;
use tamis_core::schedule::Spent;
use tamis_data::prompt::{Message, Prompt, PromptContent};
use tamis_env::environment::context::Context;
use tamis_env::environment::{Environment, EnvironmentFault};

use crate::generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication,
    SampleId, SampleRequest, Wait,
};
use crate::programs::RefusedCalls;
use crate::sample_journal::{Beginning, SampleJournal, SampleMemory};
use agents::Agent;
pub use agents::Agents;
use play::{Next, Play, broken};
use stage::Stage;

/// Longest wait for the generator while environments work; their results are polled after it.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Longest time without a return while environments work and the caller waits for ever.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Coordinate of the key by which an environment draws, and, counted down from it, of those of later turns:
/// no token has such a number.
const LUCK: u64 = u64::MAX;

/// The text between two answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Between {
    /// Its tokens, from behind the last one that was sampled to the beginning of the next answer.
    pub token_ids: Vec<u32>,
    /// The same as text.
    pub text: String,
}

/// Environments by prompt, and how what they show is rendered.
pub trait Worlds: Send + Sync {
    /// Makes the environment of a prompt; `luck` is the key of its random draws for this member only.
    /// `None` if the prompt is answered once.
    ///
    /// # Errors
    /// It cannot be made.
    fn begin(&self, prompt: &Prompt, luck: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault>;

    /// Renders what comes between an answer and the next one in an episode of this prompt:
    /// `conversation` ends in the answer, whose tokens are `sampled`, and `shown` follows it.
    ///
    /// # Errors
    /// A message, if it cannot be rendered.
    fn between(
        &self,
        prompt: &Prompt,
        conversation: &[Message],
        sampled: &[u32],
        shown: &[Message],
    ) -> Result<Between, String>;

    /// Renders a conversation of this prompt's episode from its start to the start of the next answer.
    ///
    /// # Errors
    /// A message, if it cannot be rendered.
    fn render(&self, prompt: &Prompt, conversation: &[Message]) -> Result<Between, String>;

    /// Whether a text of so many bytes can fit into so many tokens. A text that cannot is not rendered,
    /// which saves counting its tokens.
    fn may_fit(&self, _num_bytes: usize, _num_tokens: usize) -> bool {
        true
    }

    /// Token limits of a prompt's episode, if its environment has its own.
    fn limits(&self, _prompt: &Prompt) -> Option<TokenLimits> {
        None
    }

    /// The part of an episode that the policy sees.
    fn context(&self) -> Context {
        Context::default()
    }

    /// Whether its environments may be slow, so that callers should not wait for one.
    fn is_slow(&self) -> bool {
        false
    }

    /// Warnings about its environments since the last call, for the user.
    fn take_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the environment of a prompt runs elsewhere, so that its results are not a function of
    /// keys.
    fn is_elsewhere(&self, _prompt: &Prompt) -> bool {
        false
    }
}

/// Most tokens of a trajectory, those of its environment included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLimits {
    /// Limit of all its texts together, after the prompt.
    pub whole: usize,
    /// Limit of each text, beyond the length of the prompt.
    pub text: usize,
}

impl TokenLimits {
    /// Limits of trajectories with one text.
    pub fn of(whole: usize) -> Self {
        Self { whole, text: whole }
    }
}

/// A play, wanted or abandoned.
struct Slot {
    /// `None` while its environment works.
    play: Option<Play>,
    /// The turn whose answer is waited for, if any.
    turn: Option<u32>,
    /// Its cost with its last answer.
    spent: Spent,
    /// Tokens that were appended after it, for the next one.
    num_shown: u64,
    limits: TokenLimits,
    is_given_up: bool,
}

impl Slot {
    fn new(play: Option<Play>, turn: Option<u32>, limits: TokenLimits) -> Self {
        let mut slot = Self { play, turn, spent: Spent::default(), num_shown: 0, limits, is_given_up: false };
        slot.note_shown();
        slot
    }

    /// Notes what its play has appended since the last answer.
    fn note_shown(&mut self) {
        let num_tokens = self.play.as_ref().map_or(0, |play| play.told.token_ids().len() as u64);
        self.num_shown = num_tokens.saturating_sub(self.spent.tokens);
    }

    /// Its cost with an answer, as far as that came.
    fn spent_with(&self, answer: Spent) -> Spent {
        let num_shown = if answer.turns > 0 { self.num_shown } else { 0 };
        self.spent + answer + Spent { tokens: num_shown, turns: 0 }
    }
}

/// An environment's result for its play.
struct Worked {
    id: SampleId,
    /// `None` if it broke down on the way.
    play: Option<Play>,
    next: Next,
}

fn message(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

/// The messages of a prompt; bare text is the user's.
pub fn conversation_of(prompt: &Prompt) -> Vec<Message> {
    match &prompt.content {
        PromptContent::Text(text) => vec![message("user", text)],
        PromptContent::Messages(messages) => messages.clone(),
    }
}

/// The messages of an episode: the policy's, each followed by what it was shown.
pub fn messages_of(episode: &Episode) -> Vec<Message> {
    let of_turn = |turn: &Turn| {
        let role = if turn.role.is_empty() { "user" } else { &turn.role };
        let shown = (!turn.observation.is_empty()).then(|| message(role, &turn.observation));
        std::iter::once(message("assistant", &turn.text)).chain(shown)
    };
    episode.turns.iter().flat_map(of_turn).collect()
}

/// The trajectories that are being played.
pub struct Plays {
    worlds: Option<Arc<dyn Worlds>>,
    limits: TokenLimits,
    /// Whether a trajectory is finished by the weights that it began with, even if single answers need
    /// not be.
    finishes: bool,
    open: BTreeMap<SampleId, Slot>,
    /// Programs that play, instead of environments.
    agents: Option<Arc<dyn Agents>>,
    played: BTreeMap<SampleId, Agent>,
    /// Abandoned calls whose end the generator has not reported yet.
    late: BTreeSet<SampleId>,
    stage: Stage<Worked>,
    /// Trajectories that are not functions of their keys, which a process before this one may have come to
    /// the end of.
    memory: Option<SampleMemory>,
    /// A publication that waits for open plays, and the requests since then.
    publication: Option<(Publication, InFlight)>,
    waiting: Vec<SampleRequest>,
    told: Vec<GeneratorEvent>,
}

impl Plays {
    /// Episodes in these environments. `limits` apply to an episode whose environment has none of its
    /// own. `finishes`: a trajectory is finished by the weights that it began with, whatever a
    /// publication asks for. That is necessary if a resumed run samples again and finds no answers in a
    /// journal. `num_threads` slow environments work at the same time.
    pub fn new(worlds: Arc<dyn Worlds>, limits: TokenLimits, finishes: bool, num_threads: usize) -> Self {
        let stage = Stage::new(num_threads);
        Self { worlds: Some(worlds), limits, finishes, stage, ..Self::none() }
    }

    /// Episodes played by programs that call the policy themselves; otherwise like [`Self::new`].
    pub fn of_agents(agents: Arc<dyn Agents>, limits: TokenLimits, finishes: bool) -> Self {
        Self { agents: Some(agents), limits, finishes, ..Self::none() }
    }

    /// None: every prompt is answered once.
    pub fn none() -> Self {
        Self {
            worlds: None,
            limits: TokenLimits::of(0),
            finishes: false,
            open: BTreeMap::new(),
            agents: None,
            played: BTreeMap::new(),
            late: BTreeSet::new(),
            stage: Stage::new(1),
            memory: None,
            publication: None,
            waiting: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Journals the end of every trajectory that is played elsewhere before it is returned. A process
    /// that continues the run reads it back, with all that its environment returned, and plays nothing
    /// twice. A trajectory without an end is played again from its beginning: nothing of it was used.
    #[must_use]
    pub fn journalled(self, journal: Box<dyn SampleJournal>, at: Beginning) -> Self {
        Self { memory: Some(SampleMemory::new(journal, at)), ..self }
    }

    /// The memory of trajectories that are played elsewhere; `None` if nothing is journalled.
    pub fn memory(&mut self) -> Option<&mut SampleMemory> {
        self.memory.as_mut()
    }

    /// Whether the outcome of a request is not a function of its key, because another program takes
    /// part in it.
    fn is_played_elsewhere(&self, request: &SampleRequest) -> bool {
        let Some(prompt) = &request.prompt else { return false };
        self.agents.is_some() || self.worlds.as_ref().is_some_and(|worlds| worlds.is_elsewhere(prompt))
    }

    /// Warnings about the environments since the last call, for the user.
    pub fn take_warnings(&self) -> Vec<String> {
        let of_worlds = self.worlds.iter().flat_map(|worlds| worlds.take_warnings());
        of_worlds.chain(self.agents.iter().flat_map(|agents| agents.host().take_warnings())).collect()
    }

    /// The calls of programs that were refused since this was asked last.
    pub fn take_refused_calls(&mut self) -> RefusedCalls {
        self.agents.as_ref().map_or_else(RefusedCalls::default, |agents| agents.host().take_refused())
    }

    /// Whether no trajectory is in the middle.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.played.is_empty()
    }

    /// A generator of whole trajectories, over one of single answers.
    pub fn over<'a>(&'a mut self, generator: &'a mut dyn Generator) -> Episodes<'a> {
        Episodes { plays: self, generator }
    }

    /// The play that an event belongs to, if it waits for that event; otherwise an id that the caller
    /// recognises as none of its trajectories.
    fn find(&mut self, id: SampleId) -> Result<(SampleId, &mut Slot), SampleId> {
        let whole = SampleId { turn: 0, ..id };
        match self.open.get_mut(&whole) {
            Some(slot) if slot.turn == Some(id.turn) => Ok((whole, slot)),
            // A repeated event: the answer of a turn is not the end of a trajectory.
            Some(_) => Err(SampleId { turn: id.turn.max(1), ..id }),
            None => Err(id),
        }
    }

    /// Ends a play whose answer will not continue. Returns the id that it was requested under, and its
    /// whole cost.
    fn give_up(&mut self, id: SampleId, answer: Spent) -> (SampleId, Spent) {
        match self.find(id) {
            Ok((whole, slot)) => {
                let spent = slot.spent_with(answer);
                self.open.remove(&whole);
                (whole, spent)
            }
            Err(id) => (id, answer),
        }
    }

    /// Ends a play that its environment has failed.
    ///
    /// # Errors
    /// No other would fare better.
    fn fail(
        &mut self,
        id: SampleId,
        spent: Spent,
        fault: &EnvironmentFault,
    ) -> Result<GeneratorEvent, GeneratorError> {
        let reason = fault.to_string();
        let kind = match fault {
            EnvironmentFault::TimedOut { .. } | EnvironmentFault::NotStarted { .. } => {
                FailureKind::EnvironmentTimedOut
            }
            EnvironmentFault::Broke(_) => FailureKind::EnvironmentBroke,
            EnvironmentFault::Lost(_) => return Err(GeneratorError::Environment { reason }),
        };
        self.open.remove(&id);
        Ok(GeneratorEvent::Failed { id, kind, reason, spent })
    }
}

/// A generator of whole trajectories, whose prompts may be played in environments.
pub struct Episodes<'a> {
    plays: &'a mut Plays,
    generator: &'a mut dyn Generator,
}

impl Episodes<'_> {
    /// Turns an event of a turn into one of its trajectory; `None` if the trajectory continues.
    fn take(&mut self, event: GeneratorEvent) -> Result<Option<GeneratorEvent>, GeneratorError> {
        let event = match self.take_for_agent(event) {
            Ok(told) => return Ok(told),
            Err(event) => event,
        };
        let worlds = self.plays.worlds.clone();
        let event = match event {
            GeneratorEvent::Sampled { id, sample } => {
                let (whole, slot) = match self.plays.find(id) {
                    Ok(found) => found,
                    Err(id) => return Ok(Some(GeneratorEvent::Sampled { id, sample })),
                };
                let (Some(worlds), Some(mut play)) = (worlds, slot.play.take()) else {
                    return Ok(Some(GeneratorEvent::Sampled { id, sample }));
                };
                slot.turn = None;
                slot.spent = slot.spent_with(Spent { tokens: sample.token_ids.len() as u64, turns: 1 });
                let limits = slot.limits;
                if !worlds.is_slow() || slot.is_given_up {
                    let next =
                        if slot.is_given_up { None } else { Some(play.take(&sample, &*worlds, limits)) };
                    return self.go_on(whole, Some(play), next);
                }
                self.plays.stage.work(move || {
                    let next = play.take(&sample, &*worlds, limits);
                    Worked { id: whole, play: Some(play), next }
                });
                return Ok(None);
            }
            GeneratorEvent::Failed { id, kind, reason, spent } => {
                let (id, spent) = self.plays.give_up(id, spent);
                GeneratorEvent::Failed { id, kind, reason, spent }
            }
            GeneratorEvent::Aborted { id, spent } => {
                let (id, spent) = self.plays.give_up(id, spent);
                GeneratorEvent::Aborted { id, spent }
            }
            published @ GeneratorEvent::Published { .. } => published,
        };
        Ok(Some(event))
    }

    /// Continues a play after its environment has worked. `next` is `None` if no caller waits for it.
    fn go_on(
        &mut self,
        id: SampleId,
        play: Option<Play>,
        next: Option<Next>,
    ) -> Result<Option<GeneratorEvent>, GeneratorError> {
        let Some(slot) = self.plays.open.get_mut(&id) else { return Ok(None) };
        let spent = slot.spent;
        Ok(match next {
            Some(Next::Failed(fault)) => Some(self.plays.fail(id, spent, &fault)?),
            Some(Next::Ask(request)) if !slot.is_given_up => {
                (slot.play, slot.turn) = (play, Some(request.id.turn));
                slot.note_shown();
                self.generator.submit(request)?;
                None
            }
            Some(Next::Over(sample)) if !slot.is_given_up => {
                self.plays.open.remove(&id);
                Some(GeneratorEvent::Sampled { id, sample })
            }
            _ => {
                self.plays.open.remove(&id);
                Some(GeneratorEvent::Aborted { id, spent })
            }
        })
    }

    /// Begins a trajectory, or a single answer without an environment.
    fn begin(&mut self, mut request: SampleRequest) -> Result<(), GeneratorError> {
        let id = request.id;
        if self.plays.is_played_elsewhere(&request)
            && let Some(memory) = &mut self.plays.memory
            && let Some(recorded) = memory.recall(&request)
        {
            self.plays.told.push(recorded);
            return Ok(());
        }
        if self.plays.agents.is_some() && request.prompt.is_some() {
            self.begin_agent(request);
            return Ok(());
        }
        let (Some(worlds), Some(prompt)) = (self.plays.worlds.clone(), request.prompt.clone()) else {
            return self.generator.submit(request);
        };
        let luck = request.key.with(LUCK);
        let limits = worlds.limits(&prompt).unwrap_or(self.plays.limits);
        let make = move |worlds: &dyn Worlds, prompt: &Arc<Prompt>, request: &mut SampleRequest| {
            let begin = || -> Result<Option<Play>, EnvironmentFault> {
                let Some(environment) = worlds.begin(prompt, luck)? else { return Ok(None) };
                let most = limits.whole.min(limits.text);
                if request.sampling.max_response_length > most {
                    Arc::make_mut(&mut request.sampling).max_response_length = most;
                }
                let mut play = Play::new(request.clone(), Arc::clone(prompt), environment);
                *request = play.open(worlds, limits)?;
                Ok(Some(play))
            };
            catch(begin).unwrap_or_else(|panic| Err(broken(&panic)))
        };
        if worlds.is_slow() {
            self.plays.open.insert(id, Slot::new(None, None, limits));
            self.plays.stage.work(move || match make(&*worlds, &prompt, &mut request) {
                Ok(Some(play)) => Worked { id, play: Some(play), next: Next::Ask(request) },
                Ok(None) => {
                    let reason = "its prompt is none of its environment".to_owned();
                    Worked { id, play: None, next: Next::Failed(EnvironmentFault::Broke(reason)) }
                }
                Err(fault) => Worked { id, play: None, next: Next::Failed(fault) },
            });
            return Ok(());
        }
        match make(&*worlds, &prompt, &mut request) {
            Ok(Some(play)) => {
                self.generator.submit(request)?;
                self.plays.open.insert(id, Slot::new(Some(play), Some(0), limits));
            }
            Ok(None) => self.generator.submit(request)?,
            Err(fault) => {
                let failed = self.plays.fail(id, Spent::default(), &fault)?;
                self.plays.told.push(failed);
            }
        }
        Ok(())
    }

    /// Polls the finished work of environments, in the order of the trajectories.
    fn hear_stage(&mut self, wait: Option<Duration>) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        let mut worked = self.plays.stage.take(wait);
        worked.sort_by_key(|worked| worked.id);
        let mut told = Vec::new();
        for Worked { id, play, next } in worked {
            told.extend(self.go_on(id, play, Some(next))?);
        }
        Ok(told)
    }

    /// Publishes weights that waited for open plays, once there are none. Then the waiting requests
    /// begin.
    fn publish_held(&mut self) -> Result<(), GeneratorError> {
        if !self.plays.is_idle() {
            return Ok(());
        }
        let Some((publication, in_flight)) = self.plays.publication.take() else { return Ok(()) };
        self.publish_now(&publication, in_flight)?;
        for request in std::mem::take(&mut self.plays.waiting) {
            self.begin(request)?;
        }
        Ok(())
    }

    /// Publishes weights to the generator; trajectories that begin from now on use them.
    fn publish_now(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        self.generator.publish(weights, in_flight)?;
        if let Some(memory) = &mut self.plays.memory {
            memory.set_version(weights.version);
        }
        Ok(())
    }

    /// Returns the ends of trajectories, after they are recorded.
    fn tell(&mut self) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        if let Some(memory) = &mut self.plays.memory {
            memory.record(&self.plays.told)?;
        }
        Ok(std::mem::take(&mut self.plays.told))
    }

    /// Abandons these plays.
    fn give_up_all(&mut self, is_meant: impl Fn(&SampleId) -> bool) {
        for (id, slot) in &mut self.plays.open {
            slot.is_given_up |= is_meant(id);
        }
        self.end_agents(&is_meant);
        let (gone, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.plays.waiting).into_iter().partition(|request| is_meant(&request.id));
        self.plays.waiting = stay;
        let aborted = gone
            .into_iter()
            .map(|request| GeneratorEvent::Aborted { id: request.id, spent: Spent::default() });
        self.plays.told.extend(aborted);
    }
}

impl Generator for Episodes<'_> {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        let id = request.id;
        let is_open = self.plays.open.contains_key(&id) || self.plays.played.contains_key(&id);
        if is_open || self.plays.waiting.iter().any(|one| one.id == id) {
            return Err(GeneratorError::id_in_use(id));
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
                let turn = self.plays.open.get(&id).and_then(|slot| slot.turn);
                AbortScope::Sample(SampleId { turn: turn.unwrap_or(id.turn), ..id })
            }
            other => other,
        });
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        if in_flight == InFlight::Abort {
            self.plays.publication = None;
            for slot in self.plays.open.values_mut() {
                slot.is_given_up = true;
            }
            self.end_agents(&|_| true);
            self.publish_now(weights, in_flight)?;
            for request in std::mem::take(&mut self.plays.waiting) {
                self.begin(request)?;
            }
            return Ok(());
        }
        if (in_flight == InFlight::Wait || self.plays.finishes) && !self.plays.is_idle() {
            self.plays.publication = Some((weights.clone(), in_flight));
            return Ok(());
        }
        self.publish_now(weights, in_flight)
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        let began = Instant::now();
        loop {
            // If the generator is lost, no event is lost with it.
            let heard = self.hear_stage(None)?;
            self.plays.told.extend(heard);
            let heard = self.hear_agents()?;
            self.plays.told.extend(heard);
            // A wait for the generator does not notice environments: it is polled repeatedly while any
            // works.
            let is_staged = self.plays.stage.is_busy() || !self.plays.played.is_empty();
            let soon = Instant::now() + LOOK_EVERY;
            let of_generator = match wait {
                _ if !self.plays.told.is_empty() => Wait::No,
                Wait::Until(end) if is_staged => Wait::Until(end.min(soon)),
                Wait::Forever if is_staged => Wait::Until(soon),
                wait => wait,
            };
            let events = self.generator.next(of_generator)?;
            let is_quiet = events.is_empty();
            for event in events {
                let told = self.take(event)?;
                self.plays.told.extend(told);
            }
            let is_over = match wait {
                Wait::No => true,
                Wait::Until(end) => Instant::now() >= end,
                // The caller checks now and then whether it should still wait.
                Wait::Forever => began.elapsed() >= LONGEST_WAIT,
            };
            if is_quiet && is_staged && self.plays.told.is_empty() && !is_over {
                // A generator that is idle or asked to end has not waited.
                let pause = soon.saturating_duration_since(Instant::now());
                if self.plays.stage.is_busy() {
                    let heard = self.hear_stage(Some(pause))?;
                    self.plays.told.extend(heard);
                } else {
                    std::thread::sleep(pause);
                }
                if self.plays.told.is_empty() {
                    continue;
                }
            }
            self.publish_held()?;
            if is_quiet || !self.plays.told.is_empty() || is_over {
                return self.tell();
            }
        }
    }

    fn load(&self) -> Load {
        let load = self.generator.load();
        let own = self.plays.waiting.len() + self.plays.told.len() + self.plays.stage.num_working();
        let own = own + self.plays.played.len();
        Load { in_flight: load.in_flight + own, ..load }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_memory;
#[cfg(test)]
mod tests_of_templates;
