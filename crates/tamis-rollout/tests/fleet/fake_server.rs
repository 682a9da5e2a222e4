//! Servers without a network that fail at set rates, on a virtual clock.

use super::*;

/// A clock that only advances during a wait.
#[derive(Clone)]
pub(crate) struct TestClock(pub(crate) Arc<Mutex<Instant>>);

impl TestClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    fn wait(&self, _: &Bell, until: Instant) {
        // A step at least, so that nothing can spin without time passing.
        let mut now = self.0.lock().unwrap();
        *now = until.max(*now + Duration::from_millis(1));
    }
}

/// Rates of a fake server's faults, in thousandths.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// Answers with a fault that may pass.
    pub(crate) faulty: u64,
    /// Refuses permanently.
    pub(crate) refuses: u64,
    /// Repeats every event.
    pub(crate) repeats: u64,
    /// Dies at a sample; comes back after a while, with the weights that it was started with.
    pub(crate) dies: u64,
    /// Publications that fail.
    pub(crate) unpublished: u64,
    /// Answers at once with an invalid sample.
    pub(crate) spoils: u64,
}

pub(crate) const GOOD: Habits =
    Habits { faulty: 0, refuses: 0, repeats: 0, dies: 0, unpublished: 0, spoils: 0 };

#[derive(Default)]
pub(crate) struct Seen {
    /// Most samples at one time, by server.
    pub(crate) most: HashMap<String, usize>,
    /// Faults that were reported for samples.
    pub(crate) faults: BTreeMap<FaultClass, u64>,
    /// Groups by server.
    pub(crate) groups: HashMap<u64, BTreeSet<String>>,
    pub(crate) publications: u64,
}

pub(crate) struct FakeServer {
    pub(crate) name: String,
    pub(crate) habits: Habits,
    pub(crate) key: Key,
    pub(crate) draws: u64,
    pub(crate) started: Instant,
    pub(crate) in_flight: HashMap<SampleId, (Instant, PolicyVersion)>,
    pub(crate) due: Vec<(Instant, ServerEvent)>,
    pub(crate) version: PolicyVersion,
    pub(crate) published: Option<PolicyVersion>,
    pub(crate) dead_until: Option<Instant>,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) clock: TestClock,
    pub(crate) lives_until: Option<Duration>,
    /// Samples that it has room for; it turns others away.
    pub(crate) room: usize,
    /// The pause that it asks for then.
    pub(crate) retry_after: Option<Duration>,
    /// Whether it refuses to load weights.
    pub(crate) refuses_weights: bool,
    pub(crate) publish_takes: Duration,
}

impl FakeServer {
    fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        self.key.below(self.draws, bound)
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        self.draw(1000) < thousandths
    }

    fn is_dead(&self, now: Instant) -> bool {
        self.dead_until.is_some_and(|until| now < until)
            || self.lives_until.is_some_and(|life| now >= self.started + life)
    }

    fn tell(&self, event: &ServerEvent) {
        let mut seen = self.seen.lock().unwrap();
        if let ServerEvent::Failed { fault, .. } = event {
            *seen.faults.entry(fault.class).or_default() += 1;
        }
    }
}

impl Server for FakeServer {
    fn name(&self) -> &str {
        &self.name
    }

    fn submit(&mut self, request: SampleRequest) {
        let now = self.clock.now();
        let id = request.id;
        let is_spoiled = self.chance(self.habits.spoils);
        let after = Duration::from_millis(if is_spoiled { 5 } else { 10 + self.draw(2000) });
        if self.in_flight.len() >= self.room || is_spoiled {
            let class = if is_spoiled { FaultClass::LogprobOutOfRange } else { FaultClass::Busy };
            let fault = Fault { retry_after: self.retry_after, ..Fault::new(class, "no sample") };
            self.due.push((now + Duration::from_millis(5), ServerEvent::Failed { id, fault }));
            return;
        }
        assert!(self.in_flight.insert(id, (now + after, self.version)).is_none(), "{id} twice");
        let mut seen = self.seen.lock().unwrap();
        let most = seen.most.entry(self.name.clone()).or_default();
        *most = (*most).max(self.in_flight.len());
        seen.groups.entry(id.group).or_default().insert(self.name.clone());
    }

    fn abort(&mut self, what: AbortScope, now: Instant) {
        let meant: BTreeSet<SampleId> = self.in_flight.keys().filter(|id| what.holds(id)).copied().collect();
        for id in meant {
            // Half of them had ended.
            if self.chance(500) {
                self.in_flight.remove(&id);
                self.due.push((now + Duration::from_millis(5), ServerEvent::Aborted { id, num_tokens: 2 }));
            }
        }
    }

    fn drop_all(&mut self) -> Vec<SampleId> {
        let due = std::mem::take(&mut self.due).into_iter().filter_map(|(_, event)| match event {
            ServerEvent::Sampled { id, .. }
            | ServerEvent::Failed { id, .. }
            | ServerEvent::Aborted { id, .. } => Some(id),
            _ => None,
        });
        self.in_flight.drain().map(|(id, _)| id).chain(due).collect()
    }

    fn publish(&mut self, publication: &Publication, _: InFlight, now: Instant) {
        self.seen.lock().unwrap().publications += 1;
        let version = publication.version;
        let event = if self.refuses_weights {
            let fault = Fault::new(FaultClass::Refused, "/weights: no config.json");
            ServerEvent::NotPublished { version, fault }
        } else if self.is_dead(now) || self.chance(self.habits.unpublished) {
            ServerEvent::NotPublished { version, fault: Fault::new(FaultClass::ServerError, "no") }
        } else {
            ServerEvent::Published { version }
        };
        self.due.push((now + self.publish_takes, event));
    }

    fn sleep(&mut self) {
        let event = ServerEvent::Slept(Ok(()));
        self.due.push((self.clock.now() + Duration::from_millis(20), event));
    }

    fn check(&mut self) {
        let now = self.clock.now();
        let result = if self.is_dead(now) {
            Err(Fault::new(FaultClass::Connect, "refused"))
        } else {
            let holds_current = self.published.map(|published| published == self.version);
            Ok(ServerReport { holds_current, figures: Figures::default() })
        };
        self.due.push((now + Duration::from_millis(20), ServerEvent::Checked(result)));
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<ServerEvent>) {
        let ended: Vec<(SampleId, PolicyVersion)> = self
            .in_flight
            .iter()
            .filter(|(_, (at, _))| *at <= now)
            .map(|(&id, &(_, version))| (id, version))
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .collect();
        for (id, version) in ended {
            if self.is_dead(now) {
                break;
            }
            self.in_flight.remove(&id);
            if self.chance(self.habits.dies) {
                self.dead_until = Some(now + Duration::from_secs(1 + self.draw(20)));
                self.version = PolicyVersion(0);
            }
            let event = if self.chance(self.habits.refuses) {
                ServerEvent::Failed { id, fault: Fault::new(FaultClass::Refused, "too long") }
            } else if self.chance(self.habits.faulty) {
                let classes = [
                    FaultClass::HalfBody,
                    FaultClass::BadJson,
                    FaultClass::ServerError,
                    FaultClass::TimedOut,
                ];
                let class = classes[self.draw(4) as usize];
                let num_tokens = self.draw(3);
                ServerEvent::Failed { id, fault: Fault::new(class, "sometimes").with_tokens(num_tokens) }
            } else {
                let versions = vec![VersionSpan { version, start: 0, end: 3 }];
                let sample = Sample {
                    episode: None,
                    lost: tamis_core::schedule::Spent::default(),
                    token_ids: vec![1, 2, 3],
                    logprobs: vec![-0.5; 3],
                    entropy: None,
                    text: String::new(),
                    finish_reason: FinishReason::Stop,
                    versions,
                };
                ServerEvent::Sampled { id, sample }
            };
            if self.chance(self.habits.repeats) {
                events.push(event.clone());
            }
            self.tell(&event);
            events.push(event);
        }
        if self.is_dead(now) {
            for (id, _) in std::mem::take(&mut self.in_flight).into_iter().collect::<BTreeMap<_, _>>() {
                let event = ServerEvent::Failed { id, fault: Fault::new(FaultClass::Reset, "died") };
                self.tell(&event);
                events.push(event);
            }
        }
        let (now_due, later) = std::mem::take(&mut self.due).into_iter().partition(|(at, _)| *at <= now);
        self.due = later;
        let now_due: Vec<(Instant, ServerEvent)> = now_due;
        for (_, event) in now_due {
            if let ServerEvent::Published { version } = &event {
                (self.version, self.published) = (*version, Some(*version));
            }
            self.tell(&event);
            events.push(event);
        }
    }

    fn wake_at(&self, _: Instant) -> Option<Instant> {
        self.in_flight.values().map(|(at, _)| *at).chain(self.due.iter().map(|(at, _)| *at)).min()
    }

    fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

pub(crate) struct World {
    pub(crate) fleet: Fleet,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) messages: Arc<Mutex<Vec<FleetMessage>>>,
    pub(crate) clock: TestClock,
    pub(crate) interrupted: Arc<AtomicBool>,
}

impl FakeServer {
    /// The server at this place, and its own records.
    pub(crate) fn new(seed: u64, place: usize, habits: Habits, clock: &TestClock) -> Self {
        Self {
            name: format!("http://s{place}"),
            habits,
            key: Key::new(seed, Purpose::Shuffle).with(place as u64),
            draws: 0,
            started: clock.now(),
            in_flight: HashMap::new(),
            due: Vec::new(),
            version: PolicyVersion(0),
            published: None,
            dead_until: None,
            seen: Arc::default(),
            clock: clock.clone(),
            lives_until: None,
            room: usize::MAX,
            retry_after: None,
            refuses_weights: false,
            publish_takes: Duration::from_millis(300),
        }
    }
}
