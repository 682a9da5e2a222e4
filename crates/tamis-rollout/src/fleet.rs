//! Several servers as one generator: routing, retries, health, and new weights for all of them.
//!
//! A request goes to its group's server if that has room, otherwise to the server with the least in
//! flight. A sample that fails for a reason that may pass is retried after a growing pause, at another
//! server if possible; its id stays the same. A server without room is sent fewer requests at once,
//! which is not a failure.
//!
//! A server that stops answering, or whose answers are not samples, gets no more requests, and its
//! samples are retried elsewhere. It is checked from time to time. Before it is used again it gets the
//! current weights and must prove that it holds them. If no server is left, the fleet waits and reports
//! it.
//!
//! A single server is a fleet of one.

mod health;
pub mod limit;
mod member;
mod routing;
mod settings;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tamis_core::group::PolicyVersion;
use tamis_core::schedule::Spent;

use crate::clock::{Bell, Clock};
use crate::generator::{
    AbortScope, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, SampleId,
    SamplePurpose, SampleRequest, Sampling, Wait,
};
use crate::server::{Server, ServerEvent};
use crate::wire::{FaultClass, ParameterError};
use member::{FleetMember, SampleJob, State};
pub use settings::{FaultCounts, FleetMessage, FleetSettings};

/// Interval between messages that no server is left.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Longest sleep of [`Generator::next`], so that an interruption is noticed.
const LOOK_UP_EVERY: Duration = Duration::from_millis(100);

/// Returns the servers that were restarted at another address since the last call: their places in the
/// fleet, and the new servers.
pub type Moves = Box<dyn FnMut() -> Vec<(usize, Box<dyn Server>)> + Send>;

/// A generator made of servers.
pub struct Fleet {
    members: Vec<FleetMember>,
    settings: FleetSettings,
    clock: Box<dyn Clock>,
    bell: Bell,
    interrupted: Arc<AtomicBool>,
    say: Box<dyn FnMut(FleetMessage) + Send>,
    /// Tasks by the id of the attempt that is in flight or waits.
    tasks: HashMap<SampleId, SampleJob>,
    /// The attempt of a submitted id.
    attempts: HashMap<SampleId, SampleId>,
    /// Attempts that wait for room, in order.
    queue: VecDeque<SampleId>,
    /// Attempts that wait for their time.
    pausing: BTreeMap<(Instant, u64), SampleId>,
    num_pauses: u64,
    /// Server of each group's members, and how many of them are in flight there.
    homes: HashMap<(SamplePurpose, u64), (usize, usize)>,
    /// Groups with none in flight, the latest last.
    left_homes: VecDeque<(SamplePurpose, u64)>,
    current: Option<(Publication, InFlight)>,
    unanswered: VecDeque<PolicyVersion>,
    events: Vec<GeneratorEvent>,
    counts: FaultCounts,
    lost_since: Option<(Instant, Instant)>,
    /// A file that names servers to be drained, and when it is read next.
    drain_file: Option<(PathBuf, Instant)>,
    /// Entries of the drain file that were already reported as unknown.
    said_of_drain: BTreeSet<String>,
    /// The source of moved servers, and when it is polled next.
    moves: Option<(Moves, Instant)>,
}

impl Fleet {
    /// A fleet of these servers, once at least one of them answers.
    ///
    /// `bell` is rung by the servers' transports; `interrupted` ends waiting early; `say` receives
    /// messages for the user.
    ///
    /// # Errors
    /// [`GeneratorError::Unreachable`] if none answers within [`FleetSettings::start_timeout`], with
    /// what was tried.
    pub fn connect(
        servers: Vec<Box<dyn Server>>,
        settings: FleetSettings,
        clock: Box<dyn Clock>,
        bell: Bell,
        interrupted: Arc<AtomicBool>,
        say: Box<dyn FnMut(FleetMessage) + Send>,
    ) -> Result<Self, GeneratorError> {
        Self::connect_moving(servers, None, settings, clock, bell, interrupted, say)
    }

    /// The same for servers that may move. A server that has moved is treated as restarted: its samples
    /// are retried elsewhere, and it gets the weights before it is used.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_moving(
        servers: Vec<Box<dyn Server>>,
        moves: Option<Moves>,
        settings: FleetSettings,
        clock: Box<dyn Clock>,
        bell: Bell,
        interrupted: Arc<AtomicBool>,
        say: Box<dyn FnMut(FleetMessage) + Send>,
    ) -> Result<Self, GeneratorError> {
        let now = clock.now();
        let member = |server| FleetMember::new(server, settings.max_in_flight, now);
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
            left_homes: VecDeque::new(),
            current: None,
            unanswered: VecDeque::new(),
            events: Vec::new(),
            counts: FaultCounts::default(),
            lost_since: None,
            drain_file: None,
            said_of_drain: BTreeSet::new(),
            moves: moves.map(|moves| (moves, now)),
        };
        let end = now + settings.start_timeout;
        loop {
            let now = fleet.clock.now();
            fleet.advance(now)?;
            let is_usable = |member: &FleetMember| member.state == State::Usable;
            let are_known = fleet.members.iter().all(|member| member.was_checked);
            if fleet.members.iter().any(is_usable) && (are_known || now >= end) {
                fleet.lost_since = None;
                // Faults before its first answer do not count.
                for member in fleet.members.iter_mut().filter(|member| is_usable(member)) {
                    member.times_out = 0;
                }
                return Ok(fleet);
            }
            if now >= end || fleet.members.is_empty() || fleet.interrupted.load(Ordering::Relaxed) {
                return Err(GeneratorError::Unreachable { tried: fleet.describe_servers() });
            }
            fleet.sleep(now, end);
        }
    }

    /// Number of faults so far, by name.
    pub fn fault_counts(&self) -> &FaultCounts {
        &self.counts
    }

    /// The servers whose log-probabilities are known to differ from those that are trained on, each
    /// with the reason.
    pub fn other_logprobs(&self, sampling: &Sampling) -> Vec<(&str, ParameterError)> {
        let servers = self.members.iter().map(|member| &member.server);
        servers.filter_map(|server| Some((server.name(), server.other_logprobs(sampling)?))).collect()
    }

    /// From now on the servers listed in a file, one a line, get no more requests;
    /// [`FleetMessage::Drained`] follows once their samples have ended. A server that is no longer
    /// listed gets the weights and is used again, as all are if the file is deleted. If the file cannot
    /// be read, nothing changes. An address of no server is reported once, by
    /// [`FleetMessage::NotDrained`].
    pub fn drain_by(&mut self, file: PathBuf) {
        self.drain_file = Some((file, self.clock.now()));
    }

    fn look_whom_to_drain(&mut self, now: Instant) {
        let Some((file, next)) = self.drain_file.as_mut().filter(|(_, next)| *next <= now) else { return };
        *next = now + self.settings.check_every;
        let mut not_drained = Vec::new();
        match tamis_file::read_text(file, tamis_file::MAX_CONFIGURATION) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                not_drained.push((
                    file.display().to_string(),
                    format!("it cannot be read, so nothing changes: {error}"),
                ));
            }
            text => {
                let text = text.unwrap_or_default();
                let lines = text.lines().map(|line| line.trim().trim_end_matches('/'));
                let named: BTreeSet<&str> = lines.filter(|line| !line.is_empty()).collect();
                let mut of_nobody = named.clone();
                for member in &mut self.members {
                    let name = member.server.name().trim_end_matches('/');
                    let is_named = named.contains(name);
                    of_nobody.remove(name);
                    if member.is_draining && !is_named {
                        // It is checked, and gets the weights, before it is used.
                        (member.state, member.holds) = (State::Out { until: now }, None);
                    }
                    member.is_draining = is_named;
                }
                let no_server =
                    |name: &str| (name.to_owned(), "no server of this run has this address".to_owned());
                not_drained.extend(of_nobody.into_iter().map(no_server));
            }
        }
        for (what, why) in not_drained {
            if self.said_of_drain.insert(what.clone()) {
                (self.say)(FleetMessage::NotDrained { what, why });
            }
        }
    }

    fn version(&self) -> Option<PolicyVersion> {
        self.current.as_ref().map(|(publication, _)| publication.version)
    }

    /// Has the servers in use free their GPUs until weights are published or something is to be
    /// sampled, and waits until they have. What is in flight ends first.
    ///
    /// # Errors
    /// [`GeneratorError::stopped`] if a server reports that it does not sleep.
    pub fn put_to_sleep(&mut self) -> Result<(), GeneratorError> {
        let in_use = |member: &FleetMember| member.state == State::Usable && !member.is_draining;
        let mut awake: BTreeSet<usize> = (0..self.members.len())
            .filter(|&place| in_use(&self.members[place]) && self.members[place].holds.is_some())
            .collect();
        while !awake.is_empty() && !self.interrupted.load(Ordering::Relaxed) {
            let now = self.clock.now();
            for &place in &awake {
                let member = &mut self.members[place];
                let is_busy = member.in_flight > 0 || member.is_checking || member.is_publishing;
                if !is_busy && !member.is_asleep {
                    member.is_asleep = true;
                    member.server.sleep();
                }
            }
            self.hear(now)?;
            // One that was lost is found asleep, or awake, when it is looked at.
            awake.retain(|&place| {
                let member = &self.members[place];
                in_use(member) && !(member.is_asleep && member.holds.is_none())
            });
            if !awake.is_empty() {
                self.clock.wait(&self.bell, now + LOOK_UP_EVERY);
            }
        }
        for member in &mut self.members {
            member.is_asleep = false;
        }
        Ok(())
    }

    /// Takes in the servers' events.
    fn hear(&mut self, now: Instant) -> Result<(), GeneratorError> {
        for place in 0..self.members.len() {
            let mut events = Vec::new();
            self.members[place].server.poll(now, &mut events);
            for event in events {
                self.take(place, event, now)?;
            }
        }
        Ok(())
    }

    /// Everything that can be done without waiting.
    fn advance(&mut self, now: Instant) -> Result<(), GeneratorError> {
        self.hear(now)?;
        self.look_who_moved(now);
        self.look_whom_to_drain(now);
        self.look_after(now);
        self.answer_publications();
        for member in &mut self.members {
            member.quiet_until = member.quiet_until.filter(|&until| now < until);
        }
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
                (member.faults, member.bad_answers, member.times_out) = (0, 0, 0);
                member.says_other = false;
                if !self.queue.is_empty() {
                    member.limit.succeed();
                }
                self.attempts.remove(&task.id);
                self.events.push(GeneratorEvent::Sampled { id: task.id, sample });
            }
            ServerEvent::Aborted { id, num_tokens } => {
                let Some(task) = self.end_attempt(place, id) else { return Ok(()) };
                self.attempts.remove(&task.id);
                self.events.push(GeneratorEvent::Aborted {
                    id: task.id,
                    spent: task.spent + Spent::on_answer(num_tokens),
                });
            }
            ServerEvent::Failed { id, fault } => {
                let Some(task) = self.end_attempt(place, id) else { return Ok(()) };
                self.retry(task, place, &fault, now);
                self.doubt(place, fault, now);
            }
            ServerEvent::Published { version } => {
                let member = &mut self.members[place];
                member.is_publishing = false;
                member.holds = Some(version);
                member.refused = None;
                if Some(version) == self.version() {
                    self.welcome(place);
                }
            }
            ServerEvent::NotPublished { version, fault } => {
                *self.counts.servers.entry(fault.class).or_default() += 1;
                let is_refused = fault.class == FaultClass::Refused && Some(version) == self.version();
                let member = &mut self.members[place];
                (member.is_publishing, member.holds) = (false, None);
                member.refused = is_refused.then_some(version);
                self.lose(place, fault, now);
                let refuses = |member: &FleetMember| member.refused == Some(version) || member.is_draining;
                if is_refused && self.members.iter().all(refuses) {
                    // Nothing that waiting would mend: the folder, or servers without the routes.
                    return Err(GeneratorError::Unreachable { tried: self.describe_servers() });
                }
            }
            ServerEvent::ByFolder { fault } => {
                *self.counts.servers.entry(fault.class).or_default() += 1;
                let server = self.members[place].server.name().to_owned();
                (self.say)(FleetMessage::ByFolder { server, fault });
            }
            // Weights are published to it before it samples, which wakes it.
            ServerEvent::Slept(Ok(())) => self.members[place].holds = None,
            ServerEvent::Slept(Err(fault)) => {
                *self.counts.servers.entry(fault.class).or_default() += 1;
                if matches!(fault.class, FaultClass::Refused | FaultClass::ServerError) {
                    let reason = format!("{}: {}", self.members[place].server.name(), fault.detail);
                    return Err(GeneratorError::stopped(reason));
                }
                self.lose(place, fault, now);
            }
            ServerEvent::Checked(result) => self.note_check(place, result, now),
        }
        Ok(())
    }

    /// Reports that weights are published once every server in use holds them, and there is at least
    /// one. Servers that were taken out and have not sampled since are not waited for.
    fn answer_publications(&mut self) {
        let Some(version) = self.version().filter(|_| !self.unanswered.is_empty()) else { return };
        let in_use = |member: &&FleetMember| member.state == State::Usable && !member.is_draining;
        let hold = |member: &FleetMember| member.holds == Some(version) && !member.is_publishing;
        let is_awaited = |member: &FleetMember| member.times_out == 0 && !hold(member);
        let in_use = || self.members.iter().filter(in_use);
        if in_use().any(hold) && !in_use().any(is_awaited) {
            let published = self.unanswered.drain(..).map(|version| GeneratorEvent::Published { version });
            self.events.extend(published);
        }
    }

    fn sleep(&self, now: Instant, end: Instant) {
        let mut until = end.min(now + LOOK_UP_EVERY);
        let timers = self.members.iter().flat_map(|member| {
            let due = match member.state {
                State::Usable => member.next_check,
                State::Out { until } => until,
            };
            let due = (!member.is_checking && !member.is_publishing).then_some(due);
            [due, member.quiet_until, member.server.wake_at(now)]
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
            return Err(GeneratorError::id_in_use(id));
        }
        let mut attempt = id;
        while self.tasks.contains_key(&attempt) {
            attempt = attempt.again();
        }
        let request = SampleRequest { id: attempt, ..request };
        let task = SampleJob {
            request,
            id,
            attempts: 0,
            turned_away: None,
            member: None,
            avoid: None,
            spent: Spent::default(),
            is_given_up: false,
        };
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
                self.events.push(GeneratorEvent::Aborted { id: task.id, spent: task.spent });
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
        let room: usize =
            self.members.iter().filter(|member| member.takes(current)).map(FleetMember::room).sum();
        let sent: usize = self.members.iter().map(|member| member.in_flight).sum();
        let waiting = self.tasks.len() - sent;
        Load { in_flight: self.tasks.len(), room: room.saturating_sub(waiting) }
    }
}
