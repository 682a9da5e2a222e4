//! Servers with continuous batching on a virtual clock.
//!
//! An iteration gives each of b running samples one token and takes t₀ (1 + load b / slots + context C /
//! capacity). C is the number of tokens in the cache. Between two events b is constant and C grows by b per
//! iteration. Time is therefore a quadratic function of iterations, and no iteration is simulated by itself.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

use crate::simulate::completion::SimulatedCompletion;
use crate::simulate::window::Window;

/// Rounding tolerance between two sums of iterations.
const HAIR: f64 = 1e-6;

/// Settings of the servers, which are all alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetSettings {
    pub(crate) count: usize,
    pub(crate) slots: usize,
    pub(crate) iteration: f64,
    pub(crate) load: f64,
    pub(crate) context: f64,
    pub(crate) kv_tokens: Option<f64>,
    pub(crate) prefill_rate: Option<f64>,
    pub(crate) prompt: f64,
}

impl FleetSettings {
    pub(crate) fn num_slots(&self) -> usize {
        self.slots.saturating_mul(self.count)
    }

    /// Seconds of an iteration with `running` samples and `cached` tokens.
    pub(crate) fn iteration_time(&self, running: usize, cached: f64) -> f64 {
        let context = self.kv_tokens.map_or(0.0, |capacity| self.context * cached / capacity);
        self.iteration * (1.0 + self.load * running as f64 / self.slots as f64 + context)
    }

    /// Seconds that each cached token adds to an iteration.
    fn per_token(&self) -> f64 {
        self.kv_tokens.map_or(0.0, |capacity| self.iteration * self.context / capacity)
    }
}

/// A number with a total order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ordered(pub(crate) f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A sample that waits for a slot, and the tokens that it already has.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    group: u64,
    member: usize,
    length: f64,
    generated: f64,
}

/// A sample that decodes. It had no token at iteration `start` and has its last one at `end`.
#[derive(Debug, Clone, Copy)]
struct Running {
    group: u64,
    member: usize,
    start: f64,
    end: f64,
}

/// The server of a group.
#[derive(Debug, Clone, Copy)]
struct Home {
    server: usize,
    /// Members that decode. The prompt is in the cache from the first of them.
    running: usize,
}

#[derive(Debug, Default)]
struct Server {
    clock: f64,
    stall: f64,
    iterations: f64,
    /// In order of their start.
    running: Window<Running>,
    ends: BinaryHeap<Reverse<(Ordered, u64)>>,
    waiting: VecDeque<Waiting>,
    order: u64,
    /// Σ start over running samples.
    starts: f64,
    prompts: usize,
    /// Seconds of decoding, summed over samples.
    busy: f64,
    preempted: u64,
}

impl Server {
    fn cached(&self, settings: &FleetSettings) -> f64 {
        self.running.len() as f64 * self.iterations - self.starts + self.prompts as f64 * settings.prompt
    }

    /// Starts waiting samples while there is room.
    fn fill(&mut self, settings: &FleetSettings, homes: &mut Window<Home>) {
        while self.running.len() < settings.slots
            && let Some(&Waiting { group, member, length, generated }) = self.waiting.front()
        {
            let is_cached = homes.get(group).is_some_and(|home| home.running > 0);
            let prompt = if is_cached { 0.0 } else { settings.prompt };
            if let Some(capacity) = settings.kv_tokens
                && !self.running.is_empty()
                && self.cached(settings) + prompt + generated + (self.running.len() + 1) as f64 > capacity
            {
                return;
            }
            self.waiting.pop_front();
            if let Some(rate) = settings.prefill_rate {
                self.stall += (prompt + generated) / rate;
            }
            if let Some(home) = homes.get_mut(group) {
                home.running += 1;
                self.prompts += usize::from(!is_cached);
            }
            let start = self.iterations - generated;
            let end = start + length;
            self.starts += start;
            self.running.insert(self.order, Running { group, member, start, end });
            self.ends.push(Reverse((Ordered(end), self.order)));
            self.order += 1;
        }
    }

    /// Removes a running sample.
    fn remove(&mut self, order: u64, homes: &mut Window<Home>) -> Option<Running> {
        let running = self.running.remove(order)?;
        self.starts -= running.start;
        if let Some(home) = homes.get_mut(running.group) {
            home.running -= 1;
            self.prompts -= usize::from(home.running == 0);
        }
        if self.running.is_empty() {
            // Clears rounding errors.
            self.starts = 0.0;
        }
        Some(running)
    }

    /// Removes the ends of samples that are gone.
    fn drop_gone(&mut self) {
        while let Some(Reverse((_, order))) = self.ends.peek()
            && self.running.get(*order).is_none()
        {
            self.ends.pop();
        }
    }

    /// Time of the next completion or preemption.
    fn next_time(&mut self, settings: &FleetSettings) -> Option<f64> {
        self.drop_gone();
        let Reverse((end, _)) = self.ends.peek()?;
        let (running, cached) = (self.running.len(), self.cached(settings));
        let mut iterations = (end.0 - self.iterations).max(0.0);
        if let Some(capacity) = settings.kv_tokens.filter(|_| running > 1) {
            iterations = iterations.min(((capacity - cached) / running as f64).max(0.0));
        }
        let grows = 0.5 * settings.per_token() * running as f64 * iterations * iterations;
        Some(self.clock + self.stall + iterations * settings.iteration_time(running, cached) + grows)
    }

    /// Whether a sample has its last token.
    fn has_ended(&mut self) -> bool {
        self.drop_gone();
        self.ends.peek().is_some_and(|Reverse((end, _))| end.0 <= self.iterations + HAIR)
    }

    /// Advances the clock to a time before which nothing happens.
    fn pass(&mut self, until: f64, settings: &FleetSettings) {
        let seconds = until - self.clock;
        let stalled = self.stall.min(seconds);
        self.stall -= stalled;
        self.clock = until;
        let (seconds, running) = (seconds - stalled, self.running.len());
        if seconds <= 0.0 || running == 0 {
            return;
        }
        self.busy += seconds * running as f64;
        let base = settings.iteration_time(running, self.cached(settings));
        let grows = settings.per_token() * running as f64;
        // The root of grows / 2 x² + base x = seconds, in the form without cancellation.
        self.iterations += 2.0 * seconds / (base + (base * base + 2.0 * grows * seconds).sqrt());
    }

    /// Processes the present time: returns a sample that has ended, or preempts one if the cache is full.
    fn settle(&mut self, settings: &FleetSettings, homes: &mut Window<Home>) -> Option<(u64, usize)> {
        let &Reverse((end, order)) = self.ends.peek()?;
        if end.0 <= self.iterations + HAIR {
            self.ends.pop();
            let ended = self.remove(order, homes)?;
            return Some((ended.group, ended.member));
        }
        if let Some(capacity) = settings.kv_tokens
            && self.running.len() > 1
            && self.cached(settings) >= capacity - HAIR * self.running.len() as f64
            && let Some(youngest) = self.running.last()
            && let Some(Running { group, member, start, end }) = self.remove(youngest, homes)
        {
            let generated = (self.iterations - start).floor().max(0.0);
            self.waiting.push_front(Waiting { group, member, length: end - start, generated });
            self.preempted += 1;
        }
        None
    }
}

/// All servers.
#[derive(Debug)]
pub(crate) struct Fleet {
    settings: FleetSettings,
    servers: Vec<Server>,
    /// Time of the next event at each server; infinite if there is none.
    next: Vec<f64>,
    homes: Window<Home>,
    is_open: bool,
}

impl Fleet {
    pub(crate) fn new(settings: FleetSettings) -> Self {
        let servers: Vec<Server> = (0..settings.count).map(|_| Server::default()).collect();
        let next = vec![f64::INFINITY; servers.len()];
        Self { settings, servers, next, homes: Window::default(), is_open: true }
    }

    /// Updates the time of a server's next event. Every change of a server ends with this.
    fn foresee(&mut self, place: usize) {
        self.next[place] = self.servers[place].next_time(&self.settings).unwrap_or(f64::INFINITY);
    }

    /// Starts waiting samples at a server, unless starting is suspended.
    fn fill(&mut self, place: usize) {
        if self.is_open {
            self.servers[place].fill(&self.settings, &mut self.homes);
        }
        self.foresee(place);
    }

    /// Submits members of a group, from `first` on. They go to the server of the group's other members, or to
    /// the one with the fewest samples.
    pub(crate) fn submit(&mut self, now: f64, group: u64, first: usize, members: &[SimulatedCompletion]) {
        let load = |server: &Server| server.running.len() + server.waiting.len();
        let home = self.homes.get(group).map(|home| home.server);
        let freest = || (0..self.servers.len()).min_by_key(|&place| load(&self.servers[place]));
        let Some(place) = home.or_else(freest) else { return };
        if home.is_none() {
            self.homes.insert(group, Home { server: place, running: 0 });
        }
        let server = &mut self.servers[place];
        server.waiting.extend(members.iter().enumerate().map(|(member, completion)| Waiting {
            group,
            member: first + member,
            length: f64::from(completion.length),
            generated: 0.0,
        }));
        server.pass(now, &self.settings);
        self.fill(place);
    }

    /// The server with the next event, and its time. The first one of several.
    fn earliest(&self) -> Option<(usize, f64)> {
        let mut earliest = (0, f64::INFINITY);
        for (place, &next) in self.next.iter().enumerate() {
            if next < earliest.1 {
                earliest = (place, next);
            }
        }
        earliest.1.is_finite().then_some(earliest)
    }

    /// The time of the next event.
    pub(crate) fn next_time(&self) -> Option<f64> {
        self.earliest().map(|(_, next)| next)
    }

    /// Advances to the next event, and returns a sample that ends then.
    pub(crate) fn advance(&mut self) -> Option<(u64, usize)> {
        let settings = self.settings;
        let (place, until) = self.earliest()?;
        let due = &mut self.servers[place];
        due.pass(until.max(due.clock), &settings);
        // Rounding may leave a sample slightly short of its end.
        if let Some(Reverse((end, _))) = due.ends.peek()
            && (end.0 - due.iterations).abs() < HAIR * (1.0 + end.0.abs())
        {
            due.iterations = due.iterations.max(end.0);
        }
        let ended = due.settle(&settings, &mut self.homes);
        // Other samples that end in the same iteration end before a prompt is computed.
        if due.has_ended() {
            self.foresee(place);
        } else {
            self.fill(place);
        }
        ended
    }

    /// Aborts groups. Returns, by group, the tokens of members that had not ended.
    pub(crate) fn abort(&mut self, now: f64, groups: &[u64]) -> HashMap<u64, f64> {
        let gone: HashSet<u64> = groups.iter().copied().collect();
        let homes = groups.iter().filter_map(|group| self.homes.get(*group));
        let touched: HashSet<usize> = homes.map(|home| home.server).collect();
        let mut spent = HashMap::new();
        for place in touched {
            let server = &mut self.servers[place];
            server.pass(now, &self.settings);
            server.waiting.retain(|waiting| {
                let is_gone = gone.contains(&waiting.group);
                if is_gone {
                    *spent.entry(waiting.group).or_default() += waiting.generated;
                }
                !is_gone
            });
            let running = server.running.iter().filter(|(_, running)| gone.contains(&running.group));
            let orders: Vec<u64> = running.map(|(order, _)| order).collect();
            for order in orders {
                if let Some(running) = server.remove(order, &mut self.homes) {
                    *spent.entry(running.group).or_default() += (server.iterations - running.start).floor();
                }
            }
            self.fill(place);
        }
        for group in groups {
            self.homes.remove(*group);
        }
        spent
    }

    /// Whether nothing decodes.
    pub(crate) fn is_idle(&self) -> bool {
        self.servers.iter().all(|server| server.running.is_empty())
    }

    /// Suspends or resumes the start of waiting samples.
    pub(crate) fn set_open(&mut self, now: f64, is_open: bool) {
        self.is_open = is_open;
        if is_open {
            for place in 0..self.servers.len() {
                self.servers[place].pass(now, &self.settings);
                self.fill(place);
            }
        }
    }

    /// Pauses decoding for some seconds.
    pub(crate) fn stall(&mut self, now: f64, seconds: f64) {
        for place in 0..self.servers.len() {
            let server = &mut self.servers[place];
            server.pass(now, &self.settings);
            server.stall += seconds;
            self.foresee(place);
        }
    }

    /// Restarts all running samples from their first token, in their order and before waiting ones. Returns
    /// the tokens that each group loses.
    pub(crate) fn restart(&mut self, now: f64) -> HashMap<u64, f64> {
        let mut lost = HashMap::new();
        for place in 0..self.servers.len() {
            let server = &mut self.servers[place];
            server.pass(now, &self.settings);
            let orders: Vec<u64> = server.running.iter().rev().map(|(order, _)| order).collect();
            for order in orders {
                if let Some(Running { group, member, start, end }) = server.remove(order, &mut self.homes) {
                    *lost.entry(group).or_default() += (server.iterations - start).floor();
                    server.waiting.push_front(Waiting { group, member, length: end - start, generated: 0.0 });
                }
            }
            self.fill(place);
        }
        lost
    }

    pub(crate) fn forget(&mut self, group: u64) {
        self.homes.remove(group);
    }

    /// Seconds that slots decoded until a time.
    pub(crate) fn busy(&mut self, now: f64) -> f64 {
        for place in 0..self.servers.len() {
            self.servers[place].pass(now, &self.settings);
            self.foresee(place);
        }
        self.servers.iter().map(|server| server.busy).sum()
    }

    pub(crate) fn slots(&self) -> usize {
        self.settings.num_slots()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> FleetSettings {
        FleetSettings {
            count: 1,
            slots: 2,
            iteration: 1.0,
            load: 1.0,
            context: 0.0,
            kv_tokens: None,
            prefill_rate: None,
            prompt: 0.0,
        }
    }

    fn group(lengths: &[u32]) -> Vec<SimulatedCompletion> {
        lengths.iter().map(|&length| SimulatedCompletion { length, is_correct: true }).collect()
    }

    /// All completions with their times.
    fn play(fleet: &mut Fleet) -> Vec<(f64, u64, usize)> {
        let mut ended = Vec::new();
        while let Some(next) = fleet.next_time() {
            if let Some((group, member)) = fleet.advance() {
                ended.push(((next * 1e6).round() / 1e6, group, member));
            }
        }
        ended
    }

    /// Two slots. An iteration takes 1.5 s with one sample and 2 s with two.
    #[test]
    fn by_hand() {
        let mut fleet = Fleet::new(settings());
        fleet.submit(0.0, 7, 0, &group(&[2, 4, 3]));
        // 2 iterations of two; the third starts; 2 more end the second; the third needs 1 more by itself.
        assert_eq!(play(&mut fleet), [(4.0, 7, 0), (8.0, 7, 1), (9.5, 7, 2)]);
        assert!((fleet.busy(9.5) - (2.0 * 8.0 + 1.5)).abs() < 1e-9);
    }

    /// The closed form of the makespan: t₀ L for the slot with the most tokens, plus t₀ load / slots per
    /// token.
    #[test]
    fn the_makespan_of_full_slots_is_its_closed_form() {
        let settings = FleetSettings { slots: 4, load: 0.5, ..settings() };
        let mut fleet = Fleet::new(settings);
        let lengths = [50, 40, 60, 70, 20, 30, 10, 5];
        fleet.submit(0.0, 0, 0, &group(&lengths));
        let end = play(&mut fleet).last().unwrap().0;
        // Each sample starts as soon as a slot is free: 50 + 30, 40 + 20, 60 + 10 and 70; then 5 after 40 +
        // 20 = 60, which ends first.
        let longest = 80.0;
        let tokens: u32 = lengths.iter().sum();
        assert!((end - (longest + 0.5 / 4.0 * f64::from(tokens))).abs() < 1e-6, "{end}");
    }

    #[test]
    fn a_prompt_is_computed_once_for_a_group_and_decoding_waits_for_it() {
        let mut fleet =
            Fleet::new(FleetSettings { prompt: 10.0, prefill_rate: Some(5.0), load: 0.0, ..settings() });
        fleet.submit(0.0, 0, 0, &group(&[3, 3]));
        fleet.submit(0.0, 1, 0, &group(&[1]));
        // 2 s for the first prompt and 3 iterations, then 2 s for the second prompt and 1 iteration.
        assert_eq!(play(&mut fleet), [(5.0, 0, 0), (5.0, 0, 1), (8.0, 1, 0)]);
    }

    #[test]
    fn an_iteration_slows_down_with_the_cache() {
        let settings = FleetSettings { load: 0.0, context: 1.0, kv_tokens: Some(100.0), ..settings() };
        let mut fleet = Fleet::new(settings);
        fleet.submit(0.0, 0, 0, &group(&[10]));
        // Σ (1 + i / 100) over a growing cache; in the continuous limit 10 + 10² / 200.
        assert_eq!(play(&mut fleet), [(10.5, 0, 0)]);
    }

    /// A cache of six tokens for two samples of four: the younger one is preempted and computed again.
    #[test]
    fn a_full_cache_preempts_the_youngest() {
        let settings =
            FleetSettings { load: 0.0, kv_tokens: Some(6.0), prefill_rate: Some(1.0), ..settings() };
        let mut fleet = Fleet::new(settings);
        fleet.submit(0.0, 0, 0, &group(&[4, 4]));
        let ended = play(&mut fleet);
        // 3 iterations of both and the fourth of the first; then 3 s to recompute the second's tokens, and
        // its fourth.
        assert_eq!(ended, [(4.0, 0, 0), (8.0, 0, 1)]);
        assert_eq!(fleet.servers[0].preempted, 1);
    }

    #[test]
    fn what_is_aborted_or_restarted_is_counted() {
        let mut fleet = Fleet::new(FleetSettings { load: 0.0, ..settings() });
        fleet.submit(0.0, 0, 0, &group(&[9]));
        fleet.submit(0.0, 1, 0, &group(&[9]));
        fleet.submit(0.0, 2, 0, &group(&[2]));
        assert_eq!(fleet.abort(3.0, &[0]), HashMap::from([(0, 3.0)]));
        assert_eq!(fleet.restart(4.0), HashMap::from([(1, 4.0), (2, 1.0)]));
        fleet.stall(4.0, 10.0);
        assert_eq!(play(&mut fleet), [(16.0, 2, 0), (23.0, 1, 0)]);
        fleet.set_open(23.0, false);
        fleet.submit(23.0, 3, 0, &group(&[1]));
        assert!(fleet.is_idle() && fleet.next_time().is_none());
        fleet.set_open(24.0, true);
        assert_eq!(play(&mut fleet), [(25.0, 3, 0)]);
    }
}
