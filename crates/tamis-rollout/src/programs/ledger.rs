//! Open episodes, the calls they may still make, waiting calls, and events for the owner.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tamis_env::environment::names::unnamed_warning;
use tokio::sync::oneshot;

use super::call::ChatCall;
use super::outcome::{ProgramFailure, ProgramOutcome};
use super::refused::{Refusal, RefusedCalls};
use super::reply::{ChatAnswer, ChatError};
use super::{CallNumber, EpisodeNumber, ProgramEvent, ProgramSettings};
use crate::api::BODIES_AT_ONCE;
use crate::body::BodyRoom;

/// Number of ended episodes whose URLs are remembered.
const MOST_ENDED: usize = 1 << 16;

/// Most fields of refused calls that are reported.
const MOST_TOLD: usize = 32;

/// Episodes all of whose calls were refused after which it is sure that those of all others are.
const ENOUGH_IN_VAIN: usize = 8;

type Answered = Result<ChatAnswer, ChatError>;

struct Episode {
    token: String,
    num_calls: usize,
    /// Number of those that wait.
    num_waiting: usize,
    refused: RefusedCalls,
    last_refusal: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) num_calls: usize,
    /// Calls that were refused, those that were handed on before included.
    pub(super) num_refused: u64,
    pub(super) last_refusal: Option<String>,
}

struct WaitingCall {
    episode: EpisodeNumber,
    answer: oneshot::Sender<Answered>,
}

#[derive(Default)]
struct Open {
    num_episodes: u64,
    num_calls: u64,
    episodes: HashMap<EpisodeNumber, Episode>,
    /// All tokens, also those of the last episodes that ended.
    tokens: HashMap<String, EpisodeNumber>,
    ended: VecDeque<String>,
    calls: BTreeMap<CallNumber, WaitingCall>,
    events: Vec<ProgramEvent>,
    refused: RefusedCalls,
    warnings: Vec<String>,
    /// Whether a number without a name was reported.
    has_unnamed: bool,
    /// Sampling fields that were reported.
    sampling: BTreeSet<&'static str>,
    /// Fields and routes of refused calls that were reported.
    refused_fields: BTreeSet<String>,
    /// Episodes that ended without a call that was handed on, and whose own calls were refused.
    num_in_vain: usize,
    /// Message of the last of those.
    last_in_vain: String,
}

impl Open {
    /// Removes an episode and closes its calls.
    fn close(&mut self, episode: EpisodeNumber) -> Option<(Episode, Vec<CallNumber>)> {
        let closed = self.episodes.remove(&episode)?;
        self.ended.push_back(closed.token.clone());
        if self.ended.len() > MOST_ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.tokens.remove(&oldest);
        }
        let mut calls = Vec::new();
        if closed.num_waiting > 0 {
            self.calls.retain(|&call, waiting| {
                let is_its = waiting.episode == episode;
                calls.extend(is_its.then_some(call));
                !is_its
            });
        }
        Some((closed, calls))
    }

    fn take(&mut self, call: CallNumber) -> Option<WaitingCall> {
        let taken = self.calls.remove(&call)?;
        if let Some(episode) = self.episodes.get_mut(&taken.episode) {
            episode.num_waiting -= 1;
        }
        Some(taken)
    }
}

/// State shared by the threads of a host.
pub(super) struct Ledger {
    pub(super) settings: Arc<ProgramSettings>,
    pub(super) room: BodyRoom,
    open: Mutex<Open>,
    bell: Box<dyn Fn() + Send + Sync>,
    random: RandomState,
}

impl Ledger {
    pub(super) fn new(settings: Arc<ProgramSettings>, bell: Box<dyn Fn() + Send + Sync>) -> Self {
        let room = BodyRoom::new(BODIES_AT_ONCE, settings.max_body_bytes);
        Self { settings, room, open: Mutex::default(), bell, random: RandomState::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unpredictable letters, from a number that is used once for each purpose.
    pub(super) fn random_word(&self, purpose: &str, number: u64) -> String {
        let half = |half: u8| {
            let mut hasher = self.random.build_hasher();
            hasher.write(purpose.as_bytes());
            hasher.write_u64(number);
            hasher.write_u8(half);
            hasher.finish()
        };
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// A new episode and the token of its URL.
    pub(super) fn open(&self) -> (EpisodeNumber, String) {
        let mut open = self.lock();
        let episode = EpisodeNumber(open.num_episodes);
        open.num_episodes += 1;
        let token = self.random_word("token", episode.0);
        open.tokens.insert(token.clone(), episode);
        let new = Episode {
            token: token.clone(),
            num_calls: 0,
            num_waiting: 0,
            refused: RefusedCalls::default(),
            last_refusal: None,
        };
        open.episodes.insert(episode, new);
        (episode, token)
    }

    pub(super) fn num_open(&self) -> usize {
        self.lock().episodes.len()
    }

    pub(super) fn take_refused(&self) -> RefusedCalls {
        std::mem::take(&mut self.lock().refused)
    }

    /// Records a number that cannot become a metric; only the first is reported to the user.
    pub(super) fn note_unnamed(&self, name: &str) {
        let mut open = self.lock();
        if !std::mem::replace(&mut open.has_unnamed, true) {
            open.warnings.push(unnamed_warning("a program", name));
        }
    }

    pub(super) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    /// The episode whose URL has this token, if the key is its own. A refusal is counted for the
    /// episode to blame, if that is known.
    pub(super) fn admit(&self, token: &str, key: &str) -> Result<EpisodeNumber, Refusal> {
        let mut open = self.lock();
        let (asked, caller) = (open.tokens.get(token).copied(), open.tokens.get(key).copied());
        let (refusal, charged) = match (asked, caller) {
            (None, _) => (Refusal::UnknownUrl, caller),
            (Some(asked), Some(caller)) if asked != caller => (Refusal::ForeignUrl, Some(caller)),
            (Some(asked), None) => (Refusal::WrongKey, Some(asked)),
            (Some(asked), _) if !open.episodes.contains_key(&asked) => (Refusal::AfterEnd, None),
            (Some(asked), _) => return Ok(asked),
        };
        Self::count(&mut open, charged, &refusal);
        Err(refusal)
    }

    fn count(open: &mut Open, charged: Option<EpisodeNumber>, refusal: &Refusal) {
        open.refused.count(refusal);
        if let Some(episode) = charged.and_then(|episode| open.episodes.get_mut(&episode)) {
            episode.refused.count(refusal);
            episode.last_refusal = Some(refusal.clone().into_error().message);
        }
    }

    /// Counts a refused call of an episode. The first of each field is reported to the user.
    pub(super) fn refuse(&self, episode: EpisodeNumber, refusal: &Refusal) {
        let mut open = self.lock();
        if let Refusal::Request(error) = refusal
            && open.refused_fields.len() < MOST_TOLD
            && open.refused_fields.insert(error.param().unwrap_or(&error.message).to_owned())
        {
            open.warnings.push(format!("a program's call was refused: {}", error.message));
        }
        Self::count(&mut open, Some(episode), refusal);
    }

    /// Why no program gets on, once that is sure.
    pub(super) fn all_refused(&self) -> Option<String> {
        let open = self.lock();
        let is_so = open.num_calls == 0 && open.num_in_vain >= ENOUGH_IN_VAIN;
        is_so.then(|| open.last_in_vain.clone())
    }

    /// Passes a call to the owner; returns the receiver of its answer.
    pub(super) fn ask(
        self: &Arc<Self>,
        episode: EpisodeNumber,
        mut chat: ChatCall,
    ) -> Result<Waiting, Refusal> {
        let (most, most_at_once) = (self.settings.max_calls, self.settings.max_calls_at_once);
        let mut open = self.lock();
        for name in &chat.sampling {
            if open.sampling.insert(name) {
                open.warnings.push(format!(
                    "a program's call sets `{name}`, which has no effect: a run samples all members of a group alike, by `rollout.*`"
                ));
            }
        }
        let call = CallNumber(open.num_calls);
        let refusal = match open.episodes.get_mut(&episode) {
            None => Refusal::AfterEnd,
            Some(asking) if asking.num_calls >= most => Refusal::OverLimit(most),
            Some(asking) if asking.num_waiting >= most_at_once => Refusal::AtOnce(most_at_once),
            Some(asking) => {
                chat.index = asking.num_calls;
                asking.num_calls += 1;
                asking.num_waiting += 1;
                let (answer, answered) = oneshot::channel();
                open.num_calls += 1;
                open.calls.insert(call, WaitingCall { episode, answer });
                open.events.push(ProgramEvent::Asked { episode, call, chat });
                drop(open);
                (self.bell)();
                return Ok(Waiting { ledger: Arc::clone(self), call, answered });
            }
        };
        Self::count(&mut open, Some(episode), &refusal);
        Err(refusal)
    }

    /// Answers a call; false if no program waits.
    pub(super) fn answer(&self, call: CallNumber, answer: Answered) -> bool {
        let taken = {
            let mut open = self.lock();
            let taken = open.take(call);
            if let (Some(taken), Err(error)) = (&taken, &answer) {
                let refusal = match error {
                    ChatError::TooLong(_) => Refusal::TooLong(error.clone().into()),
                    ChatError::Request(_) | ChatError::Failed(_) => {
                        Refusal::Unanswerable(error.clone().into())
                    }
                };
                Self::count(&mut open, Some(taken.episode), &refusal);
            }
            taken
        };
        taken.is_some_and(|call| call.answer.send(answer).is_ok())
    }

    pub(super) fn take_events(&self) -> Vec<ProgramEvent> {
        std::mem::take(&mut self.lock().events)
    }

    pub(super) fn calls(&self, episode: EpisodeNumber) -> Option<Calls> {
        self.lock().episodes.get(&episode).map(|episode| Calls {
            num_calls: episode.num_calls,
            num_refused: episode.refused.total(),
            last_refusal: episode.last_refusal.clone(),
        })
    }

    pub(super) fn close(&self, episode: EpisodeNumber, outcome: Result<ProgramOutcome, ProgramFailure>) {
        {
            let mut open = self.lock();
            let Some((closed, calls)) = open.close(episode) else { return };
            if closed.num_calls == 0 && closed.refused.invalid > 0 {
                open.num_in_vain += 1;
                open.last_in_vain = closed.last_refusal.clone().unwrap_or_default();
            }
            let abandoned = calls.into_iter().map(|call| ProgramEvent::Abandoned { episode, call });
            open.events.extend(abandoned);
            open.events.push(ProgramEvent::Ended { episode, outcome, refused: closed.refused });
        }
        (self.bell)();
    }

    /// Closes an abandoned episode.
    pub(super) fn forget(&self, episode: EpisodeNumber) -> RefusedCalls {
        let mut open = self.lock();
        let closed = open.close(episode);
        open.events.retain(|event| event.episode() != episode);
        closed.map_or_else(RefusedCalls::default, |(closed, _)| closed.refused)
    }

    /// Closes all episodes without events.
    pub(super) fn close_all(&self) {
        let mut open = self.lock();
        let episodes: Vec<EpisodeNumber> = open.episodes.keys().copied().collect();
        for episode in episodes {
            open.close(episode);
        }
        open.events.clear();
    }
}

/// A call that waits. Dropped before it is answered, it is abandoned.
pub(super) struct Waiting {
    ledger: Arc<Ledger>,
    pub(super) call: CallNumber,
    answered: oneshot::Receiver<Answered>,
}

impl Waiting {
    /// The answer, or that the episode has ended.
    pub(super) async fn answered(mut self) -> Result<Answered, Refusal> {
        (&mut self.answered).await.map_err(|_| {
            let refusal = Refusal::AfterEnd;
            Ledger::count(&mut self.ledger.lock(), None, &refusal);
            refusal
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let taken = {
            let mut open = self.ledger.lock();
            let taken = open.take(self.call);
            if let Some(WaitingCall { episode, .. }) = &taken {
                open.events.push(ProgramEvent::Abandoned { episode: *episode, call: self.call });
            }
            taken
        };
        if taken.is_some() {
            (self.ledger.bell)();
        }
    }
}
