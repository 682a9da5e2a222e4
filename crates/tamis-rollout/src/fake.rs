//! A generator without a model, for tests of what drives generators. Its answers are fixed; their time
//! and number are not.
//!
//! The result of a request, and whether it fails, are functions only of its prompt and key. Everything
//! else follows from a seed: it delays, permutes, answers twice, hangs, answers after an abort, and
//! answers without a request. Its clock is virtual: a call of [`Generator::next`] that may wait
//! advances to the next event.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::Spent;

use crate::generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, VersionSpan, Wait,
};

/// Rates of a fake generator's faults: shares of all requests, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FakeFaults {
    /// Fail, and might not another time. A function of the request's key.
    pub transient: f64,
    /// Fail for good. A function of the request's key.
    pub permanent: f64,
    /// Are answered twice.
    pub duplicate: f64,
    /// Fraction that never ends, until aborted. If nothing else happens, such a request fails like a
    /// time-out.
    pub hang: f64,
    /// Fraction that is answered after its abort: instead of the abort's event, or after it.
    pub late: f64,
    /// Come with an event that belongs to no request.
    pub foreign: f64,
}

impl FakeFaults {
    /// Every kind of fault, each with this share of the requests.
    pub fn all(share: f64) -> Self {
        Self {
            transient: share,
            permanent: share,
            duplicate: share,
            hang: share,
            late: share,
            foreign: share,
        }
    }
}

/// Behaviour of a fake generator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FakeSettings {
    /// Seed of delays and faults; answers do not depend on it.
    pub seed: u64,
    /// Longest delay of an answer, in instants. 0: everything is answered at the next instant, in the order
    /// of submission.
    pub max_delay: u64,
    /// Rates of the faults.
    pub faults: FakeFaults,
}

impl FakeSettings {
    /// Prompt and without a fault.
    pub fn faultless(seed: u64) -> Self {
        Self { seed, max_delay: 0, faults: FakeFaults::default() }
    }
}

/// Function that answers a request: the text, or the reason why the request fails.
pub type FakeAnswer = dyn Fn(&SampleRequest) -> String + Send;

struct FakeFlight {
    request: SampleRequest,
    /// How many were submitted before it.
    place: u64,
    began: u64,
    ends: u64,
    /// The version that its tokens are sampled by, from which token on.
    spans: Vec<(PolicyVersion, u32)>,
}

/// A generator without a model. See [the module](self).
pub struct FakeGenerator {
    settings: FakeSettings,
    answer: Box<FakeAnswer>,
    /// Longest delay, if delays are a function of the key.
    longest: Option<u64>,
    /// Calls in which nothing happens before weights are there.
    lead: u64,
    num_waited: u64,
    now: u64,
    version: PolicyVersion,
    num_submitted: u64,
    num_begun: u64,
    in_flight: HashMap<SampleId, FakeFlight>,
    /// Events by the instant at which they happen, then by a number that permutes those of one instant.
    agenda: BTreeMap<(u64, u64), GeneratorEvent>,
    next_number: u64,
    /// The publication that waits for samples in flight.
    publishing: Option<PolicyVersion>,
    /// Requests since a publication began to wait.
    waiting: Vec<SampleRequest>,
}

/// Tokens of a vocabulary this large.
const VOCABULARY: u64 = 32;

impl FakeGenerator {
    /// Answers `x` or `y`, each prompt with a share of `x` of its own.
    pub fn new(settings: FakeSettings) -> Self {
        let answer = |request: &SampleRequest| {
            let of_prompt = request
                .prompt_token_ids
                .iter()
                .fold(Key::new(0, Purpose::Init), |key, &token| key.with(u64::from(token)));
            let is_right = request.key.uniform(0) < of_prompt.uniform(0);
            if is_right { "x".to_owned() } else { "y".to_owned() }
        };
        Self::answering(settings, Box::new(answer))
    }

    /// A generator that answers by this function of the request, which should use only prompt and key.
    pub fn answering(settings: FakeSettings, answer: Box<FakeAnswer>) -> Self {
        Self {
            settings,
            answer,
            longest: None,
            lead: 0,
            num_waited: 0,
            now: 0,
            version: PolicyVersion(0),
            num_submitted: 0,
            num_begun: 0,
            in_flight: HashMap::new(),
            agenda: BTreeMap::new(),
            next_number: 0,
            publishing: None,
            waiting: Vec::new(),
        }
    }

    /// Like the engine in this process: the time of a sample, too, is a function of its key, so that
    /// the order of the answers depends only on the order of the requests.
    #[must_use]
    pub fn by_keys(self, longest: u64) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// Like servers: weights arrive only after this many calls that waited for them.
    #[must_use]
    pub fn with_lead(self, lead: u64) -> Self {
        Self { lead, ..self }
    }

    /// Instants that have passed.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Number of requests so far.
    pub fn num_submitted(&self) -> u64 {
        self.num_submitted
    }

    /// The version that new requests are sampled by.
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// Whether a request fails, by only its key.
    pub fn fails(faults: &FakeFaults, key: Key) -> Option<FailureKind> {
        let draw = key.with(1).uniform(0);
        if draw < faults.permanent {
            Some(FailureKind::Permanent)
        } else if draw < faults.permanent + faults.transient {
            Some(FailureKind::Transient)
        } else {
            None
        }
    }

    /// Tokens of the completion of a request: 1 to the most that are allowed.
    fn length(request: &SampleRequest) -> u32 {
        let most = request.sampling.max_response_length.max(1) as u64;
        1 + request.key.with(2).below(0, most) as u32
    }

    fn sample(&self, flight: &FakeFlight) -> Sample {
        let FakeFlight { request, spans, .. } = flight;
        let length = Self::length(request);
        let ends = spans.iter().skip(1).map(|(_, start)| *start).chain([length]);
        Sample {
            episode: None,
            lost: Spent::default(),
            token_ids: (0..length)
                .map(|t| request.key.with(3).below(u64::from(t), VOCABULARY) as u32)
                .collect(),
            logprobs: (0..length).map(|t| -request.key.with(4).uniform(u64::from(t)) as f32).collect(),
            entropy: None,
            text: (self.answer)(request),
            finish_reason: FinishReason::Stop,
            versions: spans
                .iter()
                .zip(ends)
                .map(|(&(version, start), end)| VersionSpan { version, start, end })
                .collect(),
        }
    }

    /// Tokens of a flight that there are by now.
    fn progress(&self, flight: &FakeFlight) -> u32 {
        let length = u64::from(Self::length(&flight.request));
        let duration = flight.ends.saturating_sub(flight.began).max(1);
        let passed = self.now.saturating_sub(flight.began).min(duration);
        (length * passed / duration) as u32
    }

    /// A number in `0..1` for the n-th thing that is decided.
    fn draw(&mut self) -> f64 {
        self.next_number += 1;
        Key::new(self.settings.seed, Purpose::Rollout).uniform(self.next_number)
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.draw() < share
    }

    fn delay(&mut self) -> u64 {
        if self.settings.max_delay == 0 {
            return 0;
        }
        (self.draw() * (self.settings.max_delay + 1) as f64) as u64
    }

    fn schedule(&mut self, at: u64, event: GeneratorEvent) {
        self.next_number += 1;
        let number = if self.settings.max_delay == 0 {
            self.next_number
        } else {
            // A random order among the events of one instant.
            Key::new(self.settings.seed, Purpose::Shuffle).bits(self.next_number)
        };
        let mut place = (at, number);
        while self.agenda.contains_key(&place) {
            place.1 = place.1.wrapping_add(1);
        }
        self.agenda.insert(place, event);
    }

    fn begin(&mut self, request: SampleRequest) {
        let id = request.id;
        let faults = self.settings.faults;
        let delay = match self.longest {
            Some(longest) => request.key.with(5).below(0, longest + 1),
            None => self.delay(),
        };
        let ends = self.now + 1 + delay;
        let is_hanging = self.happens(faults.hang);
        self.num_begun += 1;
        let spans = vec![(self.version, 0)];
        let ends = if is_hanging { u64::MAX } else { ends };
        let place = self.num_begun;
        self.in_flight.insert(id, FakeFlight { request, place, began: self.now, ends, spans });
        if self.happens(faults.foreign) {
            let at = self.now + 1 + self.delay();
            let event = self.stranger(id);
            self.schedule(at, event);
        }
    }

    /// An event that belongs to nothing that was requested.
    fn stranger(&mut self, near: SampleId) -> GeneratorEvent {
        let id = match (self.draw() * 4.0) as u64 {
            0 => SampleId { purpose: SamplePurpose::Validation, group: near.group + (1 << 40), ..near },
            1 => SampleId { group: near.group + (1 << 40), ..near },
            2 => SampleId { member: near.member + 1000, ..near },
            _ => SampleId { attempt: near.attempt + 1000, ..near },
        };
        if self.draw() < 0.5 {
            return GeneratorEvent::Aborted { id, spent: Spent::on_answer(7) };
        }
        let sample = Sample {
            episode: None,
            lost: Spent::default(),
            token_ids: vec![0],
            logprobs: vec![0.0],
            entropy: None,
            text: "x".to_owned(),
            finish_reason: FinishReason::Stop,
            versions: vec![VersionSpan { version: self.version, start: 0, end: 1 }],
        };
        GeneratorEvent::Sampled { id, sample }
    }

    /// The last event of a request.
    fn outcome(&self, flight: &FakeFlight) -> GeneratorEvent {
        let id = flight.request.id;
        match Self::fails(&self.settings.faults, flight.request.key) {
            Some(kind) => GeneratorEvent::Failed {
                id,
                kind,
                reason: "the fake server says no".to_owned(),
                spent: Spent::on_answer(u64::from(Self::length(&flight.request) / 2)),
            },
            None => GeneratorEvent::Sampled { id, sample: self.sample(flight) },
        }
    }

    /// Advances to an instant: requests that end there become events, in the order of the agenda.
    fn go_to(&mut self, instant: u64) {
        self.now = instant;
        let ended = self.in_flight.iter().filter(|(_, flight)| flight.ends <= instant);
        // A map has no order, so this sorts by place.
        let mut ended: Vec<(u64, SampleId)> = ended.map(|(id, flight)| (flight.place, *id)).collect();
        ended.sort_unstable();
        for (_, id) in ended {
            let Some(flight) = self.in_flight.remove(&id) else { continue };
            let event = self.outcome(&flight);
            if self.happens(self.settings.faults.duplicate) {
                let at = instant + self.delay();
                self.schedule(at, event.clone());
            }
            self.schedule(instant, event);
        }
        if self.in_flight.is_empty() && self.publishing.is_some() {
            self.num_waited += 1;
        }
        if self.in_flight.is_empty()
            && self.num_waited > self.lead
            && let Some(version) = self.publishing.take()
        {
            self.num_waited = 0;
            self.version = version;
            // After everything that ended before it.
            self.agenda.insert((instant, u64::MAX), GeneratorEvent::Published { version });
            for request in std::mem::take(&mut self.waiting) {
                self.begin(request);
            }
        }
    }

    /// The next instant at which anything happens by itself.
    fn next_instant(&self) -> Option<u64> {
        let ends = self.in_flight.values().map(|flight| flight.ends).filter(|ends| *ends < u64::MAX).min();
        let due = self.agenda.first_key_value().map(|((at, _), _)| (*at).max(self.now));
        let publishing = self.publishing.filter(|_| self.in_flight.is_empty()).map(|_| self.now);
        [ends, due, publishing].into_iter().flatten().min()
    }

    /// Fails the requests that hang if nothing else happens, as after a long wait.
    fn time_out(&mut self) {
        let mut hanging: Vec<SampleId> = self.in_flight.keys().copied().collect();
        hanging.sort_unstable();
        self.now += 1000;
        for id in hanging {
            let Some(flight) = self.in_flight.remove(&id) else { continue };
            let spent = Spent::on_answer(u64::from(Self::length(&flight.request) / 2));
            let reason = "no answer in time".to_owned();
            self.schedule(
                self.now,
                GeneratorEvent::Failed { id, kind: FailureKind::Transient, reason, spent },
            );
        }
    }

    fn give_up(&mut self, id: SampleId) {
        let Some(flight) = self.in_flight.remove(&id) else { return };
        let spent = Spent::on_answer(u64::from(self.progress(&flight)));
        if self.happens(self.settings.faults.late) {
            let (event, at) = (self.outcome(&flight), self.now + 1 + self.delay());
            self.schedule(at, event);
            if self.draw() < 0.5 {
                // It had ended before the abort reached it.
                return;
            }
        }
        self.schedule(self.now, GeneratorEvent::Aborted { id, spent });
    }
}

impl Generator for FakeGenerator {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        let id = request.id;
        if self.in_flight.contains_key(&id) || self.waiting.iter().any(|waiting| waiting.id == id) {
            return Err(GeneratorError::id_in_use(id));
        }
        self.num_submitted += 1;
        if self.publishing.is_some() {
            self.waiting.push(request);
        } else {
            self.begin(request);
        }
        Ok(())
    }

    fn abort(&mut self, what: AbortScope) {
        let mut meant: Vec<SampleId> = self.in_flight.keys().copied().filter(|id| what.holds(id)).collect();
        meant.sort_unstable();
        for id in meant {
            self.give_up(id);
        }
        let (given_up, kept) =
            std::mem::take(&mut self.waiting).into_iter().partition(|request| what.holds(&request.id));
        self.waiting = kept;
        let given_up: Vec<SampleRequest> = given_up;
        for request in given_up {
            self.schedule(self.now, GeneratorEvent::Aborted { id: request.id, spent: Spent::default() });
        }
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        match in_flight {
            InFlight::Wait => self.publishing = Some(weights.version),
            InFlight::Keep => {
                let mut ids: Vec<SampleId> = self.in_flight.keys().copied().collect();
                ids.sort_unstable();
                for id in ids {
                    let start = self.in_flight.get(&id).map_or(0, |flight| self.progress(flight));
                    if let Some(flight) = self.in_flight.get_mut(&id) {
                        flight.spans.push((weights.version, start));
                    }
                }
                self.version = weights.version;
                self.schedule(self.now, GeneratorEvent::Published { version: weights.version });
            }
            InFlight::Abort => {
                for purpose in [SamplePurpose::Rollout, SamplePurpose::Validation, SamplePurpose::Greedy] {
                    self.abort(AbortScope::Purpose(purpose));
                }
                self.publishing = Some(weights.version);
            }
        }
        Ok(())
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        if wait != Wait::No {
            match self.next_instant() {
                Some(instant) => self.go_to(instant),
                None if !self.in_flight.is_empty() => self.time_out(),
                None => {}
            }
        }
        let later = self.agenda.split_off(&(self.now + 1, 0));
        Ok(std::mem::replace(&mut self.agenda, later).into_values().collect())
    }

    fn load(&self) -> Load {
        Load { in_flight: self.in_flight.len() + self.waiting.len(), room: usize::MAX }
    }
}

/// Sampling with at most this many tokens.
pub fn sampling(max_response_length: usize) -> Arc<crate::generator::Sampling> {
    Arc::new(crate::generator::Sampling::plain(max_response_length))
}
