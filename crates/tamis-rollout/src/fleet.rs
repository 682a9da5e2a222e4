//! Several servers as one generator: routing, retries, health, and new weights for all of them.
//!
//! A request goes to the server of its group where that has room, else to the one with least in flight. What fails for a reason that may
//! pass is asked for again, elsewhere where possible, after a growing pause; what comes out has the id that went in. A server that stops
//! answering gets nothing more, what it had is asked for elsewhere, and it is looked at from time to time; before it is used again it is
//! given the current weights, and has shown that it holds them. Where no server is left the fleet waits and says so.
//!
//! A single server is a fleet of one.

pub mod limit;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tamis_core::group::PolicyVersion;

use crate::clock::{Bell, Clock};
use crate::generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication,
    SampleId, SamplePurpose, SampleRequest, Wait,
};
use crate::server::{Server, ServerEvent};
use crate::wire::{Fault, FaultClass};
use limit::Limit;

/// How a fleet behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetSettings {
    /// How often a sample is asked for before it has failed.
    pub max_attempts: u32,
    /// Pause before the second attempt; it doubles with each, and between half of it and all of it passes.
    pub first_pause: Duration,
    /// Longest pause before an attempt, and between looks at a server that does not answer.
    pub longest_pause: Duration,
    /// How often a server is looked at.
    pub check_every: Duration,
    /// Faults of a server one after the other after which it gets nothing more until a check has succeeded.
    pub most_faults: u32,
    /// Most samples in flight at one server; `None` to go by the servers' own figures, from [`limit::FIRST`] on.
    pub max_in_flight: Option<usize>,
    /// How long servers may take to answer at the start.
    pub start_timeout: Duration,
    /// How long to wait where no server is left; `None` for as long as it takes.
    pub give_up_after: Option<Duration>,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            check_every: Duration::from_secs(5),
            most_faults: 3,
            max_in_flight: None,
            start_timeout: Duration::from_secs(60),
            give_up_after: None,
        }
    }
}

/// Something about its servers that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetMessage {
    /// A server is not used for now.
    Lost {
        /// Which.
        server: String,
        /// Why.
        fault: Fault,
    },
    /// A server is used, again or for the first time.
    Back {
        /// Which.
        server: String,
    },
    /// A server that was to be taken out has nothing in flight any more.
    Drained {
        /// Which.
        server: String,
    },
    /// No server is left: what was tried. Said at once and then every minute.
    Waiting {
        /// Since when.
        for_so_long: Duration,
        /// Each server with what came of it.
        tried: Vec<String>,
    },
}

/// One line for a person.
impl std::fmt::Display for FleetMessage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { server, fault } => write!(formatter, "{server} is not used for now: {fault}"),
            Self::Back { server } => write!(formatter, "{server} is used"),
            Self::Drained { server } => write!(formatter, "{server} has nothing in flight any more"),
            Self::Waiting { for_so_long, tried } => write!(
                formatter,
                "waiting for a server since {} s ({}); the run can be stopped and resumed",
                for_so_long.as_secs(),
                tried.join("; ")
            ),
        }
    }
}

/// How often it is said that no server is left.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Longest sleep of [`Generator::next`], so that an interruption is heard.
const LOOK_UP_EVERY: Duration = Duration::from_millis(100);

/// What went wrong, by name, since the fleet began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Attempts at samples.
    pub samples: BTreeMap<FaultClass, u64>,
    /// Checks and publications.
    pub servers: BTreeMap<FaultClass, u64>,
    /// Events of no sample in flight, which were ignored.
    pub num_unknown: u64,
}

/// A server's standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It gets samples, where it holds the current weights.
    Usable,
    /// It gets nothing until a check, from then on, has succeeded.
    Out { until: Instant },
}

struct Member {
    server: Box<dyn Server>,
    state: State,
    limit: Limit,
    in_flight: usize,
    /// Faults of the server since its last success.
    faults: u32,
    /// How often it was taken out without a success since; the pause grows with it.
    times_out: u32,
    is_checking: bool,
    was_checked: bool,
    next_check: Instant,
    is_publishing: bool,
    /// The version that it has shown to hold; `None` before any was published to it.
    holds: Option<PolicyVersion>,
    is_draining: bool,
    last_fault: Option<Fault>,
}

impl Member {
    fn takes(&self, current: Option<PolicyVersion>) -> bool {
        self.state == State::Usable && !self.is_publishing && !self.is_draining && self.holds == current
    }

    fn room(&self) -> usize {
        self.limit.get().saturating_sub(self.in_flight)
    }
}

/// A request that has not come to an end.
struct Task {
    request: SampleRequest,
    /// As it was submitted.
    id: SampleId,
    attempts: u32,
    /// Where it is; `None` while it waits.
    member: Option<usize>,
    /// Where it failed last.
    avoid: Option<usize>,
    /// Tokens of attempts that failed.
    spent: u64,
    is_given_up: bool,
}

/// A generator made of servers.
pub struct Fleet {
    members: Vec<Member>,
    settings: FleetSettings,
    clock: Box<dyn Clock>,
    bell: Bell,
    interrupted: Arc<AtomicBool>,
    say: Box<dyn FnMut(FleetMessage) + Send>,
    /// By the id of the attempt that is in flight or waits.
    tasks: HashMap<SampleId, Task>,
    /// The attempt of a submitted id.
    attempts: HashMap<SampleId, SampleId>,
    /// Attempts that wait for room, in order.
    queue: VecDeque<SampleId>,
    /// Attempts that wait for their time.
    pausing: BTreeMap<(Instant, u64), SampleId>,
    num_pauses: u64,
    /// Where the members of a group are, and how many of them are in flight there.
    homes: HashMap<(SamplePurpose, u64), (usize, usize)>,
    current: Option<(Publication, InFlight)>,
    unanswered: VecDeque<PolicyVersion>,
    events: Vec<GeneratorEvent>,
    counts: FaultCounts,
    num_generated_tokens: u64,
    lost_since: Option<(Instant, Instant)>,
}

impl Fleet {
    /// A fleet of these servers, once at least one of them answers.
    ///
    /// `bell` is rung by the servers' transports; `interrupted` ends waiting early; `say` hears what a person should know.
    ///
    /// # Errors
    /// [`GeneratorError::Unreachable`] where none answers within [`FleetSettings::start_timeout`], with what was tried.
    pub fn connect(
        servers: Vec<Box<dyn Server>>,
        settings: FleetSettings,
        clock: Box<dyn Clock>,
        bell: Bell,
        interrupted: Arc<AtomicBool>,
        say: Box<dyn FnMut(FleetMessage) + Send>,
    ) -> Result<Self, GeneratorError> {
        let now = clock.now();
        let member = |server| Member {
            server,
            state: State::Out { until: now },
            limit: Limit::new(settings.max_in_flight),
            in_flight: 0,
            faults: 0,
            times_out: 0,
            is_checking: false,
            was_checked: false,
            next_check: now,
            is_publishing: false,
            holds: None,
            is_draining: false,
            last_fault: None,
        };
        let mut fleet = Self {
            members: servers.into_iter().map(member).collect(),
            settings,
            clock,
            bell,
            interrupted,
            say,
            tasks: HashMap::new(),
            attempts: HashMap::new(),
            queue: VecDeque::new(),
            pausing: BTreeMap::new(),
            num_pauses: 0,
            homes: HashMap::new(),
            current: None,
            unanswered: VecDeque::new(),
            events: Vec::new(),
            counts: FaultCounts::default(),
            num_generated_tokens: 0,
            lost_since: None,
        };
        let end = now + settings.start_timeout;
        loop {
            let now = fleet.clock.now();
            fleet.advance(now)?;
            let is_usable = |member: &Member| member.state == State::Usable;
            let are_known = fleet.members.iter().all(|member| member.was_checked);
            if fleet.members.iter().any(is_usable) && (are_known || now >= end) {
                fleet.lost_since = None;
                return Ok(fleet);
            }
            if now >= end || fleet.members.is_empty() || fleet.interrupted.load(Ordering::Relaxed) {
                return Err(GeneratorError::Unreachable { tried: fleet.tried() });
            }
            fleet.sleep(now, end);
        }
    }

    /// What went wrong so far, by name.
    pub fn fault_counts(&self) -> &FaultCounts {
        &self.counts
    }

    /// Sends nothing more to a server; [`FleetMessage::Drained`] follows once what it has is done. False where there is no such server.
    pub fn drain(&mut self, name: &str) -> bool {
        let member = self.members.iter_mut().find(|member| member.server.name() == name);
        member.map(|member| member.is_draining = true).is_some()
    }

    /// Each server with what came of it last.
    fn tried(&self) -> Vec<String> {
        let one = |member: &Member| match &member.last_fault {
            Some(fault) => format!("{}: {fault}", member.server.name()),
            None => format!("{}: no answer yet", member.server.name()),
        };
        if self.members.is_empty() {
            vec!["no server is configured".to_owned()]
        } else {
            self.members.iter().map(one).collect()
        }
    }

    fn version(&self) -> Option<PolicyVersion> {
        self.current.as_ref().map(|(publication, _)| publication.version)
    }

    /// Everything that can be done without waiting.
    fn advance(&mut self, now: Instant) -> Result<(), GeneratorError> {
        for place in 0..self.members.len() {
            let mut events = Vec::new();
            self.members[place].server.poll(now, &mut events);
            for event in events {
                self.take(place, event, now)?;
            }
        }
        self.look_after(now);
        self.answer_publications();
        while let Some((&(at, _), _)) = self.pausing.first_key_value()
            && at <= now
        {
            if let Some((_, attempt)) = self.pausing.pop_first() {
                self.queue.push_back(attempt);
            }
        }
        self.dispatch();
        self.complain(now)
    }

    fn take(&mut self, place: usize, event: ServerEvent, now: Instant) -> Result<(), GeneratorError> {
        match event {
            ServerEvent::Sampled { id, sample } => {
                let Some(task) = self.end_attempt(place, id) else { return Ok(()) };
                let member = &mut self.members[place];
                (member.faults, member.times_out) = (0, 0);
                self.num_generated_tokens += sample.token_ids.len() as u64;
                self.attempts.remove(&task.id);
                self.events.push(GeneratorEvent::Sampled { id: task.id, sample });
            }
            ServerEvent::Aborted { id, num_tokens } => {
                let Some(task) = self.end_attempt(place, id) else { return Ok(()) };
                self.num_generated_tokens += num_tokens;
                self.attempts.remove(&task.id);
                self.events
                    .push(GeneratorEvent::Aborted { id: task.id, num_tokens: task.spent + num_tokens });
            }
            ServerEvent::Failed { id, fault } => {
                let Some(task) = self.end_attempt(place, id) else { return Ok(()) };
                self.num_generated_tokens += fault.num_tokens;
                self.retry(task, place, &fault, now);
                self.doubt(place, fault, now);
            }
            ServerEvent::Published { version } => {
                let member = &mut self.members[place];
                member.is_publishing = false;
                member.holds = Some(version);
                member.times_out = 0;
                if Some(version) == self.version() {
                    self.welcome(place);
                }
            }
            ServerEvent::NotPublished { version, fault } => {
                *self.counts.servers.entry(fault.class).or_default() += 1;
                self.members[place].is_publishing = false;
                if fault.class == FaultClass::Refused && Some(version) == self.version() {
                    // Nothing that waiting would mend: the folder, or a server without the routes.
                    let reason = format!("{}: {}", self.members[place].server.name(), fault.detail);
                    return Err(GeneratorError::Broken { reason });
                }
                self.members[place].holds = None;
                self.lose(place, fault, now);
            }
            ServerEvent::Checked(result) => self.checked(place, result, now),
        }
        Ok(())
    }

    /// Takes the attempt from its server; `None` where there is no such attempt there.
    fn end_attempt(&mut self, place: usize, id: SampleId) -> Option<Task> {
        if self.tasks.get(&id).is_none_or(|task| task.member != Some(place)) {
            self.counts.num_unknown += 1;
            return None;
        }
        let task = self.tasks.remove(&id)?;
        self.members[place].in_flight -= 1;
        let home = (id.purpose, id.group);
        if let Some((at, num)) = self.homes.get_mut(&home)
            && *at == place
        {
            *num -= 1;
            if *num == 0 {
                self.homes.remove(&home);
            }
        }
        Some(task)
    }

    /// Asks again, or lets it fail.
    fn retry(&mut self, mut task: Task, place: usize, fault: &Fault, now: Instant) {
        *self.counts.samples.entry(fault.class).or_default() += 1;
        task.spent += fault.num_tokens;
        let is_last = task.attempts >= self.settings.max_attempts;
        if task.is_given_up || fault.class.kind() == FailureKind::Permanent || is_last {
            self.attempts.remove(&task.id);
            let (id, num_tokens) = (task.id, task.spent);
            self.events.push(if task.is_given_up {
                GeneratorEvent::Aborted { id, num_tokens }
            } else {
                let times = if task.attempts == 1 {
                    String::new()
                } else {
                    format!(" after {} attempts", task.attempts)
                };
                let reason = format!("{}{times}: {fault}", self.members[place].server.name());
                GeneratorEvent::Failed { id, kind: fault.class.kind(), reason, num_tokens }
            });
            return;
        }
        let doubled = self.settings.first_pause.saturating_mul(1 << (task.attempts - 1).min(20));
        // A draw of the request's own that no token uses.
        let share = 0.5 + 0.5 * task.request.key.uniform(u64::MAX - u64::from(task.attempts));
        let at = now + doubled.min(self.settings.longest_pause).mul_f64(share);
        let mut attempt = task.request.id.again();
        while self.tasks.contains_key(&attempt) {
            attempt = attempt.again();
        }
        task.request.id = attempt;
        task.member = None;
        task.avoid = Some(place);
        self.attempts.insert(task.id, attempt);
        self.tasks.insert(attempt, task);
        self.num_pauses += 1;
        self.pausing.insert((at, self.num_pauses), attempt);
    }

    /// Takes a server out where its faults are its own and too many.
    fn doubt(&mut self, place: usize, fault: Fault, now: Instant) {
        if !fault.class.is_of_server() {
            return;
        }
        let member = &mut self.members[place];
        member.faults += 1;
        if member.state != State::Usable {
            return;
        }
        if fault.class == FaultClass::StaleWeights {
            // What else it has in flight is of those weights too.
            member.holds = None;
            self.lose(place, fault, now);
        } else if member.faults >= self.settings.most_faults || fault.class == FaultClass::Connect {
            // What it has in flight may still come; a check decides.
            self.set_aside(place, fault, now);
        }
    }

    fn set_aside(&mut self, place: usize, fault: Fault, now: Instant) {
        let longest = self.settings.longest_pause;
        let member = &mut self.members[place];
        let pause = Duration::from_secs(1).saturating_mul(1 << member.times_out.min(20)).min(longest);
        member.times_out += 1;
        let was_used = member.state == State::Usable;
        member.state = State::Out { until: now + pause };
        let is_new = member.last_fault.as_ref().map(|last| last.class) != Some(fault.class);
        member.last_fault = Some(fault.clone());
        if was_used || is_new {
            let server = member.server.name().to_owned();
            (self.say)(FleetMessage::Lost { server, fault });
        }
    }

    /// Takes a server out, and what it had elsewhere.
    fn lose(&mut self, place: usize, fault: Fault, now: Instant) {
        let mut dropped = self.members[place].server.drop_all();
        dropped.sort_unstable();
        let member = &mut self.members[place];
        (member.is_checking, member.is_publishing) = (false, false);
        self.set_aside(place, fault.clone(), now);
        let fault = Fault { num_tokens: 0, ..fault };
        for id in dropped {
            if let Some(task) = self.end_attempt(place, id) {
                self.retry(task, place, &fault, now);
            }
        }
    }

    fn checked(&mut self, place: usize, result: Result<crate::server::Report, Fault>, now: Instant) {
        let current = self.version();
        let member = &mut self.members[place];
        (member.is_checking, member.was_checked) = (false, true);
        member.next_check = now + self.settings.check_every;
        match result {
            Ok(report) => {
                member.limit.learn(&report.figures, member.in_flight);
                let is_back = member.state != State::Usable;
                let is_other = report.holds_current == Some(false);
                // One that was away may have been restarted. Where it cannot say so itself, it is given the weights again.
                if is_other || (is_back && member.last_fault.is_some() && report.holds_current.is_none()) {
                    member.holds = None;
                }
                if is_back {
                    member.state = State::Usable;
                    member.faults = 0;
                } else if is_other {
                    let detail = "its weights are called otherwise: it was restarted or given others";
                    self.lose(place, Fault::new(FaultClass::StaleWeights, detail), now);
                    return;
                }
                if self.members[place].holds == current {
                    self.welcome(place);
                }
            }
            Err(fault) => {
                *self.counts.servers.entry(fault.class).or_default() += 1;
                member.faults += 1;
                // A busy server may be slow to say that it is well.
                let is_patient = fault.class == FaultClass::TimedOut
                    && member.state == State::Usable
                    && member.faults < self.settings.most_faults;
                if !is_patient {
                    self.lose(place, fault, now);
                }
            }
        }
    }

    /// A server is used.
    fn welcome(&mut self, place: usize) {
        let member = &mut self.members[place];
        let is_news = member.last_fault.take().is_some();
        if is_news {
            let server = member.server.name().to_owned();
            (self.say)(FleetMessage::Back { server });
        }
    }

    /// Checks that are due, weights that servers lack, servers that are drained.
    fn look_after(&mut self, now: Instant) {
        let current = self.current.clone();
        for member in &mut self.members {
            let is_due = match member.state {
                State::Usable => member.next_check <= now,
                State::Out { until } => until <= now,
            };
            if is_due && !member.is_checking && !member.is_publishing {
                member.is_checking = true;
                member.server.check();
            }
            if let Some((publication, in_flight)) = &current
                && member.state == State::Usable
                && !member.is_publishing
                && !member.is_checking
                && member.holds != Some(publication.version)
            {
                member.is_publishing = true;
                member.server.publish(publication, *in_flight, now);
            }
            if member.is_draining && member.in_flight == 0 && member.state == State::Usable {
                // Out for good.
                member.state = State::Out { until: now + Duration::from_secs(u64::from(u32::MAX)) };
                (self.say)(FleetMessage::Drained { server: member.server.name().to_owned() });
            }
        }
    }

    /// Says that weights are published once every server in use holds them, and there is one.
    fn answer_publications(&mut self) {
        let Some(version) = self.version().filter(|_| !self.unanswered.is_empty()) else { return };
        let in_use = |member: &&Member| member.state == State::Usable && !member.is_draining;
        let hold = |member: &Member| member.holds == Some(version) && !member.is_publishing;
        if self.members.iter().filter(in_use).any(hold) && self.members.iter().filter(in_use).all(hold) {
            let published = self.unanswered.drain(..).map(|version| GeneratorEvent::Published { version });
            self.events.extend(published);
        }
    }

    /// Sends what waits to servers with room.
    fn dispatch(&mut self) {
        let current = self.version();
        if !self.unanswered.is_empty() {
            // Submitted after the publication or not, it is sampled by the new weights.
            let may_begin = self.members.iter().any(|member| member.takes(current));
            if !may_begin {
                return;
            }
        }
        let mut room: usize =
            self.members.iter().filter(|member| member.takes(current)).map(Member::room).sum();
        while room > 0 {
            let Some(attempt) = self.queue.pop_front() else { return };
            // Given up while it waited, or asked for again under the same id and sent already.
            let Some(task) = self.tasks.get_mut(&attempt).filter(|task| task.member.is_none()) else {
                continue;
            };
            let fits =
                |place: usize, members: &[Member]| members[place].takes(current) && members[place].room() > 0;
            let home = self.homes.get(&(attempt.purpose, attempt.group)).map(|&(place, _)| place);
            let home = home.filter(|&place| fits(place, &self.members) && task.avoid != Some(place));
            let least = |avoid: Option<usize>| {
                (0..self.members.len())
                    .filter(|&place| fits(place, &self.members) && avoid != Some(place))
                    .min_by_key(|&place| self.members[place].in_flight)
            };
            let Some(place) = home.or_else(|| least(task.avoid)).or_else(|| least(None)) else {
                self.queue.push_front(attempt);
                return;
            };
            task.member = Some(place);
            task.attempts += 1;
            let home = self.homes.entry((attempt.purpose, attempt.group)).or_insert((place, 0));
            if home.0 == place {
                home.1 += 1;
            }
            let member = &mut self.members[place];
            member.in_flight += 1;
            member.server.submit(task.request.clone());
            room -= 1;
        }
    }

    /// Says that no server is left, and gives up in time.
    fn complain(&mut self, now: Instant) -> Result<(), GeneratorError> {
        let current = self.version();
        // One that lives and was taken out before is of no use until it holds the weights.
        let is_left = self.members.iter().any(|member| {
            let is_new = member.state == State::Usable && !member.is_draining && member.times_out == 0;
            is_new || member.takes(current)
        });
        let is_wanted = !self.tasks.is_empty() || !self.unanswered.is_empty();
        if is_left || !is_wanted {
            self.lost_since = None;
            return Ok(());
        }
        let (since, said) = *self.lost_since.get_or_insert((now, now));
        let for_so_long = now.saturating_duration_since(since);
        if self.settings.give_up_after.is_some_and(|limit| for_so_long >= limit) {
            return Err(GeneratorError::Unreachable { tried: self.tried() });
        }
        if said <= now {
            let tried = self.tried();
            (self.say)(FleetMessage::Waiting { for_so_long, tried });
            self.lost_since = Some((since, now + SAY_EVERY));
        }
        Ok(())
    }

    fn sleep(&self, now: Instant, end: Instant) {
        let mut until = end.min(now + LOOK_UP_EVERY);
        let timers = self.members.iter().flat_map(|member| {
            let due = match member.state {
                State::Usable => member.next_check,
                State::Out { until } => until,
            };
            let due = (!member.is_checking && !member.is_publishing).then_some(due);
            [due, member.server.wake_at(now)]
        });
        let pause = self.pausing.first_key_value().map(|(&(at, _), _)| at);
        for at in timers.flatten().chain(pause) {
            until = until.min(at);
        }
        self.clock.wait(&self.bell, until.max(now));
    }
}

impl Generator for Fleet {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        let id = request.id;
        if self.attempts.contains_key(&id) {
            return Err(GeneratorError::IdInUse { id });
        }
        let mut attempt = id;
        while self.tasks.contains_key(&attempt) {
            attempt = attempt.again();
        }
        let request = SampleRequest { id: attempt, ..request };
        let task = Task { request, id, attempts: 0, member: None, avoid: None, spent: 0, is_given_up: false };
        self.attempts.insert(id, attempt);
        self.tasks.insert(attempt, task);
        self.queue.push_back(attempt);
        self.dispatch();
        Ok(())
    }

    fn abort(&mut self, what: AbortScope) {
        let now = self.clock.now();
        let mut meant: Vec<SampleId> = match what {
            AbortScope::Sample(id) => self.attempts.get(&id).copied().into_iter().collect(),
            _ => {
                self.tasks.values().filter(|task| what.holds(&task.id)).map(|task| task.request.id).collect()
            }
        };
        meant.sort_unstable();
        let mut at = Vec::new();
        for attempt in meant {
            let Some(task) = self.tasks.get_mut(&attempt) else { continue };
            if let Some(place) = task.member {
                task.is_given_up = true;
                at.push((place, attempt));
            } else if let Some(task) = self.tasks.remove(&attempt) {
                // Places in the queues that lead nowhere are passed over.
                self.attempts.remove(&task.id);
                self.events.push(GeneratorEvent::Aborted { id: task.id, num_tokens: task.spent });
            }
        }
        if let AbortScope::Sample(_) = what {
            for (place, attempt) in at {
                self.members[place].server.abort(AbortScope::Sample(attempt), now);
            }
        } else {
            let places: BTreeSet<usize> = at.into_iter().map(|(place, _)| place).collect();
            for place in places {
                self.members[place].server.abort(what, now);
            }
        }
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        if in_flight == InFlight::Abort {
            for purpose in [SamplePurpose::Rollout, SamplePurpose::Validation, SamplePurpose::Greedy] {
                self.abort(AbortScope::Purpose(purpose));
            }
        }
        self.unanswered.push_back(weights.version);
        self.current = Some((weights.clone(), in_flight));
        let now = self.clock.now();
        self.look_after(now);
        Ok(())
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        loop {
            let now = self.clock.now();
            self.advance(now)?;
            let is_idle = self.tasks.is_empty() && self.unanswered.is_empty();
            let end = match wait {
                Wait::No => now,
                Wait::Until(end) => end,
                Wait::Forever if is_idle => now,
                Wait::Forever => now + SAY_EVERY,
            };
            let is_over = now >= end || self.interrupted.load(Ordering::Relaxed);
            if !self.events.is_empty() || is_over {
                return Ok(std::mem::take(&mut self.events));
            }
            self.sleep(now, end);
        }
    }

    fn load(&self) -> Load {
        let current = self.version();
        let room: usize = self.members.iter().filter(|member| member.takes(current)).map(Member::room).sum();
        let sent: usize = self.members.iter().map(|member| member.in_flight).sum();
        let waiting = self.tasks.len() - sent;
        Load {
            in_flight: self.tasks.len(),
            room: room.saturating_sub(waiting),
            num_generated_tokens: self.num_generated_tokens,
        }
    }
}
