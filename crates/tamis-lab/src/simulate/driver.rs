//! One policy's run: the scheduler, event by event, between simulated servers and a simulated learner.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use tamis_config::SimulatedPolicy;
use tamis_core::group::{GroupId, PolicyVersion, PromptId};
use tamis_core::schedule::selector::{JudgedGroup, PromptSelector};
use tamis_core::schedule::{Command, Event, GroupFacts, InFlight, OnLimit, ScheduleError, Spent, StepClose};

use crate::simulate::completion::SimulatedCompletion;
use crate::simulate::fleet::{Fleet, Ordered};
use crate::simulate::machine::Machine;
use crate::simulate::measure::{Measure, PlayedTime, PolicyResult};
use crate::simulate::pass_rates::Moving;
use crate::simulate::policy::Policy;
use crate::simulate::prompt_order::{Drawn, PromptOrder};
use crate::simulate::replay_buffer::POLL;
use crate::simulate::window::Window;
use crate::simulate::world::SimulatedWorld;

/// A group from its dispatch to its end.
struct Group {
    rate: f64,
    version: u64,
    members: Vec<SimulatedCompletion>,
    /// Members that have started: the first ones, or all.
    num_begun: usize,
    num_scored: usize,
    tokens_done: u64,
    tokens_lost: u64,
}

impl Group {
    /// Its result as a selector sees it, if every group starts with `num_first` members.
    fn judged(&self, drawn: &Drawn, num_first: usize) -> JudgedGroup {
        let count = |members: &[SimulatedCompletion]| {
            let right = members.iter().filter(|member| member.is_correct).count();
            (u32::try_from(members.len()).unwrap_or(u32::MAX), u32::try_from(right).unwrap_or(u32::MAX))
        };
        let (num_scored, num_correct) = count(&self.members[..self.num_begun]);
        let (first_scored, first_correct) = count(&self.members[..num_first]);
        JudgedGroup {
            prompt: PromptId(u64::from(drawn.prompt)),
            version: PolicyVersion(self.version),
            inclusion: drawn.inclusion,
            num_scored,
            num_correct,
            first_scored,
            first_correct,
        }
    }
}

/// Kind of a scheduled event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Scored(u64, usize),
    Trained,
    Published,
    Polled,
}

/// Length of a run in steps, and steps before the first measured one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) steps: u64,
    pub(crate) warm_up: u64,
}

/// Result of a run.
pub(crate) struct Played {
    pub(crate) result: PolicyResult,
    /// Why it ended before its last step, if it did.
    pub(crate) ended: Option<String>,
}

struct Driver<'world> {
    world: &'world SimulatedWorld,
    span: Span,
    machine: Machine,
    is_weighted: bool,
    takes_back: bool,
    prompts: PromptOrder,
    rates: Moving<'world>,
    visits: Vec<u32>,
    /// The prompt of every group so far.
    drawn: Vec<Drawn>,
    groups: Window<Group>,
    /// Groups judged since the last step was closed, if a selector learns from them.
    judged: Vec<(GroupId, JudgedGroup)>,
    /// Groups that the filter dropped in this step and that its batch may still use.
    dropped: Vec<GroupId>,
    /// Copies of groups in the batch for the learner.
    copies: HashMap<u64, u32>,
    events: VecDeque<Event>,
    fleet: Option<Fleet>,
    /// Groups in the order in which they end. Only without servers.
    done: VecDeque<u64>,
    due: BinaryHeap<Reverse<(Ordered, u64, Due)>>,
    num_due: u64,
    now: f64,
    /// Time at which the learner has finished its work so far.
    learner_free: f64,
    is_draining: bool,
    /// Whether the next poll is scheduled.
    is_polling: bool,
    version: u64,
    steps: u64,
    ended: Option<String>,
    measure: Measure,
    began: (f64, f64),
}

/// Runs a policy. At every turn `watch` gets the number of trained steps and of started groups.
pub(crate) fn run(
    name: SimulatedPolicy,
    policy: Policy,
    world: &SimulatedWorld,
    span: Span,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Played, ScheduleError> {
    let mut driver = Driver::new(policy, world, span);
    driver.events.push_back(Event::BeginStep);
    driver.obey_all()?;
    while driver.version < span.steps && driver.ended.is_none() {
        watch(driver.version, driver.drawn.len() as u64);
        if !driver.go_on()? {
            driver.ended = Some("nothing is left to wait for".to_owned());
        }
    }
    let now = driver.now;
    let (began, busy_before) = driver.began;
    let time = driver.fleet.as_mut().map(|fleet| PlayedTime {
        seconds: now - began,
        busy: fleet.busy(now) - busy_before,
        slots: fleet.slots(),
    });
    let result = driver.measure.result(name, driver.version, driver.prompts.passes(), time);
    Ok(Played { result, ended: driver.ended })
}

impl<'world> Driver<'world> {
    fn new(policy: Policy, world: &'world SimulatedWorld, span: Span) -> Self {
        let Policy { mut machine, selector, is_weighted, takes_back } = policy;
        let num_prompts = world.population.len();
        machine.set_num_prompts(num_prompts);
        let num_first = machine.settings().num_first_members();
        let screened_share = num_first as f64 / world.completions.group_size() as f64;
        // The number of members by which a group is judged.
        let selector = PromptSelector::new(selector, world.seed, num_first, None);
        Self {
            world,
            span,
            machine,
            is_weighted,
            takes_back,
            prompts: PromptOrder::new(num_prompts, world.seed, selector),
            rates: Moving::new(&world.population, &world.drift, world.seed),
            visits: vec![0; num_prompts],
            drawn: Vec::new(),
            groups: Window::default(),
            judged: Vec::new(),
            dropped: Vec::new(),
            copies: HashMap::new(),
            events: VecDeque::new(),
            fleet: world.servers.map(Fleet::new),
            done: VecDeque::new(),
            due: BinaryHeap::new(),
            num_due: 0,
            now: 0.0,
            learner_free: 0.0,
            is_draining: false,
            is_polling: false,
            version: 0,
            steps: 0,
            ended: None,
            measure: Measure::new(world.train_batch_size, screened_share),
            began: (0.0, 0.0),
        }
    }

    fn is_measured(&self) -> bool {
        self.steps >= self.span.warm_up
    }

    fn plan(&mut self, at: f64, due: Due) {
        self.due.push(Reverse((Ordered(at), self.num_due, due)));
        self.num_due += 1;
    }

    /// Processes the next event. Returns false if there is none.
    fn go_on(&mut self) -> Result<bool, ScheduleError> {
        if self.is_draining && self.fleet.as_ref().is_none_or(Fleet::is_idle) {
            self.is_draining = false;
            self.take_weights_in();
            return Ok(true);
        }
        let due = self.due.peek().map(|Reverse((at, ..))| at.0);
        let next = self.fleet.as_ref().and_then(Fleet::next_time);
        match (due, next) {
            (Some(due), next) if next.is_none_or(|next| due <= next) => {
                self.now = due;
                if let Some(Reverse((_, _, due))) = self.due.pop() {
                    match due {
                        Due::Scored(group, member) => self.score(group, member),
                        Due::Trained => self.trained(),
                        Due::Published => self.published(),
                        Due::Polled => self.poll(),
                    }
                }
            }
            (_, Some(next)) => {
                self.now = next;
                if let Some((group, member)) = self.fleet.as_mut().and_then(Fleet::advance) {
                    self.end(group, member);
                    if self.world.reward_latency > 0.0 {
                        self.plan(next + self.world.reward_latency, Due::Scored(group, member));
                    } else {
                        self.score(group, member);
                    }
                }
            }
            (_, None) => {
                let Some(group) = self.done.pop_front() else { return Ok(false) };
                let members = self.groups.get(group).map(|group| group.num_scored..group.num_begun);
                for member in members.unwrap_or_default() {
                    self.end(group, member);
                    self.score(group, member);
                }
            }
        }
        self.obey_all()?;
        Ok(true)
    }

    /// A member has its last token.
    fn end(&mut self, id: u64, member: usize) {
        if let Some(group) = self.groups.get_mut(id) {
            group.tokens_done += u64::from(group.members[member].length);
        }
    }

    /// A member was scored. The last one completes its group.
    fn score(&mut self, id: u64, member: usize) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let value = |member: &SimulatedCompletion| f64::from(u8::from(member.is_correct));
        group.num_scored += 1;
        if group.num_scored < group.num_begun {
            if self.fleet.is_some() && self.machine.sees_members() {
                let value = Some(value(&group.members[member]));
                self.events.push_back(Event::Sampled { group: GroupId(id), value });
            }
            return;
        }
        let members = &group.members[..group.num_begun];
        let turns = members.len() as u64;
        let facts = GroupFacts {
            spent: Spent { tokens: group.tokens_done, turns },
            num_lost_tokens: group.tokens_lost,
            ..GroupFacts::default()
        };
        let values = members.iter().map(value).collect();
        if group.num_begun < group.members.len() {
            self.events.push_back(Event::Screened { group: GroupId(id), values, facts });
            return;
        }
        if let Some(fleet) = &mut self.fleet {
            fleet.forget(id);
        }
        self.events.push_back(Event::Scored { group: GroupId(id), values, facts });
    }

    fn obey_all(&mut self) -> Result<(), ScheduleError> {
        while let Some(event) = self.events.pop_front() {
            for command in self.machine.handle(event)? {
                self.obey(command);
            }
        }
        // Without a clock, every started group has ended before the poll.
        if self.machine.is_waiting() && !self.is_polling && (self.fleet.is_some() || self.done.is_empty()) {
            self.is_polling = true;
            self.plan(self.now + POLL, Due::Polled);
        }
        Ok(())
    }

    /// The machine polls for ended groups.
    fn poll(&mut self) {
        self.is_polling = false;
        for command in self.machine.poll() {
            self.obey(command);
        }
        self.ended = self.machine.is_endless();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::NextEpoch { epoch } => self.prompts.begin_epoch(epoch),
            Command::Draw { num_prompts, .. } => self.draw(num_prompts),
            Command::Judged { group, verdict } => self.note_verdict(group, verdict.is_kept()),
            Command::Continue { group } => self.begin_rest(group.0),
            Command::RoundComplete(_) => {}
            Command::Abort { groups } => self.abort(&groups),
            Command::Train { groups, .. } => self.train(&groups),
            Command::StepReady(close) => {
                self.fill(&close);
                self.train(&close.trained);
                self.close(&close, true);
                self.plan(self.learner_free.max(self.now) + self.world.train_time.step, Due::Trained);
            }
            Command::StepClosed(close) => {
                self.close(&close, true);
                self.plan(self.learner_free.max(self.now) + self.world.train_time.step, Due::Trained);
            }
            Command::SkipStep { close, .. } => {
                self.close(&close, false);
                self.events.push_back(Event::BeginStep);
            }
            Command::Finish { .. } => self.ended = Some("its data ended".to_owned()),
            Command::Stop { diagnosis, .. } => {
                self.ended = diagnosis.to_string().lines().next().map(str::to_owned);
            }
        }
    }

    fn note_verdict(&mut self, id: GroupId, is_kept: bool) {
        if self.prompts.learns()
            && let Some(group) = self.groups.get(id.0)
        {
            let num_first = self.machine.settings().num_first_members();
            self.judged.push((id, group.judged(&self.drawn[id.0 as usize], num_first)));
        }
        if is_kept {
            return;
        }
        // A step that lacks groups may still use it.
        if self.machine.settings().on_limit == OnLimit::KeepDropped {
            self.dropped.push(id);
        } else {
            self.groups.remove(id.0);
        }
        if let Some(fleet) = &mut self.fleet {
            fleet.forget(id.0);
        }
    }

    fn draw(&mut self, num_prompts: usize) {
        let version = PolicyVersion(self.version);
        let first = self.drawn.len() as u64;
        let (drawn, exhausted) = self.prompts.draw(num_prompts, version);
        for prompt in drawn {
            self.dispatch(prompt);
        }
        let groups = (first..self.drawn.len() as u64).map(GroupId).collect();
        self.events.push_back(Event::Dispatched { groups, version, exhausted });
    }

    fn dispatch(&mut self, drawn: Drawn) {
        let id = self.drawn.len() as u64;
        self.drawn.push(drawn);
        let prompt = drawn.prompt as usize;
        let rate = self.rates.rate(prompt, self.steps);
        let visit = self.visits[prompt];
        self.visits[prompt] = visit.wrapping_add(1);
        let members = self.world.completions.group(prompt, visit, rate);
        let first = members.first().is_some_and(|member| member.is_correct);
        if self.is_measured() && members.iter().any(|member| member.is_correct != first) {
            self.measure.start(&members, drawn.inclusion);
        }
        let num_begun = self.machine.settings().num_first_members();
        match &mut self.fleet {
            Some(fleet) => fleet.submit(self.now, id, 0, &members[..num_begun]),
            None => self.done.push_back(id),
        }
        let version = self.version;
        let group =
            Group { rate, version, members, num_begun, num_scored: 0, tokens_done: 0, tokens_lost: 0 };
        self.groups.insert(id, group);
    }

    /// Starts the other members of a group whose first members have been judged.
    fn begin_rest(&mut self, id: u64) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let first = std::mem::replace(&mut group.num_begun, group.members.len());
        match &mut self.fleet {
            Some(fleet) => fleet.submit(self.now, id, first, &group.members[first..]),
            // Older groups end first.
            None => self.done.push_front(id),
        }
    }

    fn abort(&mut self, groups: &[GroupId]) {
        let ids: Vec<u64> = groups.iter().map(|group| group.0).collect();
        let open = self.fleet.as_mut().map(|fleet| fleet.abort(self.now, &ids)).unwrap_or_default();
        for id in ids {
            let done = self.groups.remove(id).map_or(0, |group| group.tokens_done + group.tokens_lost);
            let tokens = done + open.get(&id).map_or(0, |tokens| *tokens as u64);
            self.events.push_back(Event::Aborted { group: GroupId(id), spent: Spent::on_answer(tokens) });
        }
    }

    /// Gives the learner the groups that fill the batch besides kept ones. This takes time. A copy adds to
    /// the weight of its original, and dropped groups are not measured.
    fn fill(&mut self, close: &StepClose) {
        let tokens_of = |group: &Group| group.tokens_done;
        let mut tokens = 0;
        for id in &close.duplicated {
            tokens += self.groups.get(id.0).map_or(0, tokens_of);
            *self.copies.entry(id.0).or_default() += 1;
        }
        for id in &close.kept_when_insufficient {
            tokens += self.groups.remove(id.0).as_ref().map_or(0, tokens_of);
        }
        self.give(tokens);
    }

    fn give(&mut self, tokens: u64) {
        self.learner_free = self.learner_free.max(self.now) + self.world.train_time.token * tokens as f64;
    }

    fn train(&mut self, groups: &[GroupId]) {
        let mut tokens = 0;
        for id in groups {
            let Some(group) = self.groups.remove(id.0) else { continue };
            tokens += group.tokens_done;
            if self.is_measured() {
                let times = 1 + self.copies.remove(&id.0).unwrap_or(0);
                let Drawn { prompt, inclusion, .. } = self.drawn[id.0 as usize];
                let weight = if self.is_weighted { 1.0 / inclusion } else { 1.0 };
                let weight = weight * f64::from(times);
                let lag = self.version - group.version;
                let rate = self.world.completions.rate_with_cuts(prompt as usize, group.rate);
                self.measure.train(&group.members, rate, lag, weight);
            }
        }
        self.give(tokens);
        self.copies.clear();
    }

    fn close(&mut self, close: &StepClose, is_trained: bool) {
        if self.is_measured() {
            self.measure.close(&close.report, is_trained);
        }
        let dropped = std::mem::take(&mut self.dropped);
        for id in close.surplus.iter().chain(&close.stale).chain(&close.aborted).chain(&dropped) {
            self.groups.remove(id.0);
        }
        if self.takes_back {
            let drawn = &self.drawn;
            self.prompts.give_back(close.returned.iter().map(|id| drawn[id.0 as usize]));
        }
        self.learn(&close.returned);
    }

    /// Passes judged groups to the selector in order of dispatch, except those whose prompts are returned.
    fn learn(&mut self, returned: &[GroupId]) {
        if !self.prompts.learns() {
            return;
        }
        let mut judged = std::mem::take(&mut self.judged);
        // `returned` is sorted.
        judged.retain(|(id, _)| returned.binary_search(id).is_err());
        judged.sort_unstable_by_key(|(id, _)| *id);
        let judged: Vec<JudgedGroup> = judged.into_iter().map(|(_, judged)| judged).collect();
        self.prompts.learn(&judged);
    }

    /// A step is trained, and its weights go to the servers.
    fn trained(&mut self) {
        self.steps += 1;
        self.events.push_back(Event::Trained { left_out: 0, tokens: 0, turns: 0 });
        let Some(fleet) = &mut self.fleet else { return self.take_weights_in() };
        match self.world.in_flight {
            InFlight::Wait => {
                fleet.set_open(self.now, false);
                self.is_draining = true;
            }
            InFlight::Keep => self.take_weights_in(),
            InFlight::Abort => {
                for (id, tokens) in fleet.restart(self.now) {
                    if let Some(group) = self.groups.get_mut(id) {
                        group.tokens_lost += tokens as u64;
                    }
                }
                self.take_weights_in();
            }
        }
    }

    fn take_weights_in(&mut self) {
        let seconds = self.world.publication.time;
        if let Some(fleet) = &mut self.fleet {
            fleet.stall(self.now, seconds);
            fleet.set_open(self.now, true);
        }
        self.plan(self.now + seconds, Due::Published);
    }

    fn published(&mut self) {
        self.version += 1;
        if self.steps == self.span.warm_up {
            let now = self.now;
            self.began = (now, self.fleet.as_mut().map_or(0.0, |fleet| fleet.busy(now)));
        }
        let version = PolicyVersion(self.version);
        self.events.push_back(Event::Published { version });
        // A step after the last one would be closed at once if its groups are there, and would count without
        // its time.
        if self.version < self.span.steps {
            self.events.push_back(Event::BeginStep);
        }
    }
}
