//! The next process reads back what environments elsewhere returned to the process before it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tamis_core::group::PolicyVersion;
use tamis_core::random::Purpose;
use tamis_env::environment::{EpisodeEnd, TurnOutcome};

use super::*;
use crate::fake::{FakeGenerator, FakeSettings};
use crate::generator::SamplePurpose;
use crate::sample_journal::tests::{Disk, Memory};
use crate::support;

/// Never answers the same twice, and is over after two answers; breaks down in the second if its prompt
/// asks for it.
struct Noise {
    count: Arc<AtomicU64>,
    num_turns: u64,
    breaks: bool,
}

impl Environment for Noise {
    fn observe(&self) -> String {
        format!("{}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    fn act(&mut self, _text: &str) -> TurnOutcome {
        self.num_turns += 1;
        if self.breaks && self.num_turns == 2 {
            return TurnOutcome::failed(EnvironmentFault::Broke("it fell over".to_owned()));
        }
        TurnOutcome {
            reward: Some(self.count.fetch_add(1, Ordering::Relaxed) as f64),
            end: (self.num_turns == 2).then_some(EpisodeEnd::Terminated),
            info: vec![("number".into(), self.count.fetch_add(1, Ordering::Relaxed) as f64)],
            fault: None,
        }
    }

    fn is_success(&self) -> Option<bool> {
        Some(self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2))
    }
}

/// Prompts whose data source is `here` are played in a game.
#[derive(Default)]
struct NoisyWorlds {
    count: Arc<AtomicU64>,
    num_begun: AtomicU64,
}

impl Worlds for NoisyWorlds {
    fn begin(&self, prompt: &Prompt, _: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        self.num_begun.fetch_add(1, Ordering::SeqCst);
        let breaks = prompt.data_source == "breaks";
        Ok(Some(Box::new(Noise { count: Arc::clone(&self.count), num_turns: 0, breaks })))
    }

    fn between(&self, _: &Prompt, _: &[Message], _: &[u32], shown: &[Message]) -> Result<Between, String> {
        let text = shown[0].content.clone();
        Ok(Between { token_ids: text.bytes().map(u32::from).collect(), text })
    }

    fn render(&self, _: &Prompt, _: &[Message]) -> Result<Between, String> {
        Err("it begins with its prompt".to_owned())
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn is_elsewhere(&self, prompt: &Prompt) -> bool {
        prompt.data_source != "here"
    }
}

fn request(purpose: SamplePurpose, group: u64, source: &str) -> SampleRequest {
    let asked = support::request(group, 0, 5);
    SampleRequest {
        id: SampleId { purpose, ..asked.id },
        key: Key::new(3, Purpose::Rollout).with(purpose as u64).with(group),
        prompt: Some(Arc::new(support::prompt(group, "go", source))),
        ..asked
    }
}

/// A process that plays: its worlds are new, and its journal what the one before has left.
struct Process {
    worlds: Arc<NoisyWorlds>,
    plays: Plays,
    generator: FakeGenerator,
}

impl Process {
    fn start(disk: &Disk, count: &Arc<AtomicU64>) -> Self {
        let worlds = Arc::new(NoisyWorlds { count: Arc::clone(count), num_begun: AtomicU64::new(0) });
        let at = Beginning { version: PolicyVersion(0), step: 1, next_group: 0 };
        let plays = Plays::new(Arc::clone(&worlds) as Arc<dyn Worlds>, TokenLimits::of(1000), true, 2)
            .journalled(Box::new(Memory::open(disk, 0)), at);
        Self { worlds, plays, generator: FakeGenerator::new(FakeSettings::faultless(1)) }
    }

    /// Outcomes of requests, by their ids.
    fn play(&mut self, requests: &[SampleRequest]) -> BTreeMap<SampleId, GeneratorEvent> {
        let mut episodes = self.plays.over(&mut self.generator);
        for request in requests {
            episodes.submit(request.clone()).expect("taken");
        }
        let mut ended = BTreeMap::new();
        while ended.len() < requests.len() {
            for event in episodes.next(Wait::Forever).expect("goes on") {
                let (GeneratorEvent::Sampled { id, .. } | GeneratorEvent::Failed { id, .. }) = &event else {
                    panic!("{event:?}")
                };
                assert!(ended.insert(*id, event).is_none(), "told twice");
            }
        }
        assert!(self.plays.is_idle());
        ended
    }

    fn num_begun(&self) -> u64 {
        self.worlds.num_begun.load(Ordering::SeqCst)
    }
}

#[test]
fn episodes_that_came_to_an_end_are_read_back_and_others_played_anew() {
    let (disk, count) = (Disk::default(), Arc::new(AtomicU64::new(0)));
    let rollout = |group, source: &str| request(SamplePurpose::Rollout, group, source);
    let all =
        [rollout(0, ""), rollout(1, "breaks"), request(SamplePurpose::Validation, 0, ""), rollout(2, "here")];
    let mut first = Process::start(&disk, &count);
    let heard = first.play(&all);
    assert!(
        matches!(&heard[&all[1].id], GeneratorEvent::Failed { kind: FailureKind::EnvironmentBroke, reason, spent: Spent { tokens: 1.., turns: 1.. }, .. } if reason == "it fell over"),
        "{heard:?}"
    );
    // Killed with one in the middle: its first answer has been judged, and nothing of it is on disk.
    let half = rollout(3, "");
    let mut episodes = first.plays.over(&mut first.generator);
    episodes.submit(half.clone()).expect("taken");
    loop {
        // The generator runs only until its first answer.
        let wait = match episodes.plays.open.values().next().and_then(|slot| slot.turn) {
            Some(1) => break,
            Some(0) => Wait::Until(Instant::now()),
            _ => Wait::No,
        };
        assert_eq!(episodes.next(wait).expect("goes on"), []);
    }
    assert_eq!(disk.all().len(), 3, "all that ended elsewhere, and nothing of a game");
    drop(first);

    let mut second = Process::start(&disk, &count);
    let again = second.play(&all);
    for request in &all[..3] {
        assert_eq!(again[&request.id], heard[&request.id]);
    }
    assert_eq!(second.num_begun(), 1, "the game alone: it is a function of its key");
    let anew = second.play(std::slice::from_ref(&half));
    assert_eq!((second.num_begun(), disk.all().len()), (2, 4));
    assert_eq!(Process::start(&disk, &count).play(std::slice::from_ref(&half)), anew);
    // A result is used once: a prompt that is drawn again is another episode.
    let another = second.play(&all[..1]);
    assert_ne!(another[&all[0].id], heard[&all[0].id]);
}

#[test]
fn an_episode_is_that_of_its_weights() {
    let (disk, count) = (Disk::default(), Arc::new(AtomicU64::new(0)));
    let asked = request(SamplePurpose::Rollout, 0, "");
    let publication = Publication { version: PolicyVersion(1), weights: crate::Weights::InProcess };
    let mut first = Process::start(&disk, &count);
    first.plays.over(&mut first.generator).publish(&publication, InFlight::Wait).expect("begun");
    while first.plays.over(&mut first.generator).next(Wait::Forever).expect("goes on").is_empty() {}
    let by_later = first.play(std::slice::from_ref(&asked));
    let mut second = Process::start(&disk, &count);
    let by_first = second.play(std::slice::from_ref(&asked));
    assert_ne!(by_first, by_later);
    second.plays.over(&mut second.generator).publish(&publication, InFlight::Wait).expect("begun");
    while second.plays.over(&mut second.generator).next(Wait::Forever).expect("goes on").is_empty() {}
    assert_eq!(second.play(&[asked]), by_later);
    assert_eq!(second.num_begun(), 1);
}
