use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Map;
use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::schedule::Spent;
use tamis_env::environment::context::ContextMode;
use tamis_env::environment::{EpisodeEnd, TurnOutcome};

use super::*;
use crate::fake::{FakeFaults, FakeGenerator, FakeSettings};
use crate::generator::{Sample, SamplePurpose};
use crate::support;

/// Token of everything that an environment shows.
const SHOWN: u32 = 1000;
/// Turns of an environment that cannot be made.
const NO_WORLD: u64 = 1_000_000;

/// Lasts as many turns as the prompt asks for, earns the number of each, and breaks down if it is to.
struct Counting {
    lasts: u64,
    turn: u64,
    breaks: bool,
    luck: Key,
}

impl Environment for Counting {
    fn observe(&self) -> String {
        format!("turn {}", self.turn)
    }

    fn act(&mut self, _text: &str) -> TurnOutcome {
        assert!(!(self.breaks && self.turn == 1), "no such world");
        self.turn += 1;
        let end = (self.turn >= self.lasts).then_some(EpisodeEnd::Terminated);
        TurnOutcome {
            reward: Some(self.turn as f64),
            end,
            info: vec![("luck".into(), self.luck.uniform(0))],
            fault: None,
        }
    }

    fn is_success(&self) -> Option<bool> {
        Some(self.turn >= 3)
    }
}

#[derive(Default)]
struct CountingWorlds {
    breaks: bool,
    context: Context,
    is_slow: bool,
    /// Number of tokens between two turns.
    num_shown: usize,
    /// Bytes of the longest token; 0: unknown.
    longest_token: usize,
}

impl Worlds for CountingWorlds {
    fn begin(&self, prompt: &Prompt, luck: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        let Some(lasts) = prompt.columns.get("turns").and_then(serde_json::Value::as_u64) else {
            return Ok(None);
        };
        if lasts == NO_WORLD {
            return Err(EnvironmentFault::Broke("there is no such world".to_owned()));
        }
        Ok(Some(Box::new(Counting { lasts, turn: 0, breaks: self.breaks, luck })))
    }

    fn between(
        &self,
        _: &Prompt,
        conversation: &[Message],
        _sampled: &[u32],
        shown: &[Message],
    ) -> Result<Between, String> {
        assert_eq!(conversation.last().map(|last| last.role.as_str()), Some("assistant"));
        assert_eq!(self.longest_token, 0, "rendered in vain");
        Ok(Between { token_ids: vec![SHOWN; self.num_shown], text: format!("[{}]", shown[0].content) })
    }

    fn render(&self, _: &Prompt, conversation: &[Message]) -> Result<Between, String> {
        assert_eq!(self.longest_token, 0, "rendered in vain");
        let parts: Vec<String> =
            conversation.iter().map(|message| format!("[{}]", message.content)).collect();
        let text = parts.concat();
        Ok(Between { token_ids: vec![SHOWN; conversation.len()], text })
    }

    fn may_fit(&self, num_bytes: usize, num_tokens: usize) -> bool {
        self.longest_token == 0 || num_bytes <= num_tokens * self.longest_token
    }

    fn limits(&self, prompt: &Prompt) -> Option<TokenLimits> {
        let own = prompt.columns.get("max_tokens").and_then(serde_json::Value::as_u64);
        own.map(|own| TokenLimits::of(own as usize))
    }

    fn context(&self) -> Context {
        self.context
    }

    fn is_slow(&self) -> bool {
        self.is_slow
    }
}

pub(super) fn request(group: u64, turns: Option<u64>) -> SampleRequest {
    let columns = turns.map(|turns| ("turns".to_owned(), turns.into()));
    let prompt = Prompt { columns: Map::from_iter(columns), ..support::prompt(group, "go", "") };
    SampleRequest { prompt: Some(Arc::new(prompt)), ..support::request(group, 0, 5) }
}

/// Outcomes of requests whose prompts last so many turns, by their group.
fn play(
    generator: FakeSettings,
    worlds: CountingWorlds,
    max_tokens: usize,
    turns: &[Option<u64>],
) -> BTreeMap<u64, GeneratorEvent> {
    let mut plays = Plays::new(Arc::new(worlds), TokenLimits::of(max_tokens), false, 2);
    let mut generator = FakeGenerator::new(generator);
    let mut episodes = plays.over(&mut generator);
    for (group, turns) in turns.iter().enumerate() {
        episodes.submit(request(group as u64, *turns)).expect("taken");
    }
    let mut ended = BTreeMap::new();
    while ended.len() < turns.len() {
        let events = episodes.next(Wait::Forever).expect("goes on");
        assert!(!events.is_empty(), "{} of {} came to nothing", turns.len() - ended.len(), turns.len());
        for event in events {
            let id = match &event {
                GeneratorEvent::Sampled { id, .. }
                | GeneratorEvent::Failed { id, .. }
                | GeneratorEvent::Aborted { id, .. } => *id,
                GeneratorEvent::Published { .. } => panic!("nothing is published"),
            };
            // Events that the generator repeats, or that belong to no request, are for the caller to
            // sort out.
            if id.turn == 0 && id.attempt == 0 && id.group < turns.len() as u64 && id.member == 0 {
                ended.entry(id.group).or_insert(event);
            }
        }
    }
    assert!(plays.open.is_empty());
    ended
}

fn sample(event: &GeneratorEvent) -> &Sample {
    let GeneratorEvent::Sampled { sample, .. } = event else { panic!("{event:?}") };
    sample
}

proptest! {
    /// No token that an environment wrote has loss, turns cover the policy's tokens, and every array
    /// has one entry for each token, whatever the order of events.
    #[test]
    fn masks_turns_and_tokens_agree(
        turns in proptest::collection::vec(proptest::option::of(1_u64..6), 1..6),
        num_shown in 0_usize..4,
        seed in 0_u64..100,
    ) {
        let settings = FakeSettings { max_delay: 5, ..FakeSettings::faultless(seed) };
        let ended = play(settings, CountingWorlds { num_shown, ..CountingWorlds::default() }, 1000, &turns);
        for (lasts, event) in turns.iter().zip(ended.values()) {
            let sample = sample(event);
            let mask = sample.loss_mask();
            prop_assert_eq!((mask.len(), sample.logprobs.len()), (sample.token_ids.len(), sample.token_ids.len()));
            let is_shown = |(&token, &is_written): (&u32, &bool)| (token == SHOWN) != is_written;
            prop_assert!(sample.token_ids.iter().zip(&mask).all(is_shown));
            prop_assert!(sample.logprobs.iter().zip(&mask).all(|(&one, &is_written)| is_written || one == 0.0));
            let spans = &sample.versions;
            prop_assert_eq!(spans.last().map(|span| span.end as usize), Some(sample.token_ids.len()));
            let Some(lasts) = lasts else {
                prop_assert!(sample.episode.is_none());
                continue;
            };
            let episode = sample.episode.as_ref().expect("played");
            prop_assert_eq!(episode.turns.len() as u64, *lasts);
            prop_assert_eq!(episode.rewards(), (1..=*lasts).map(|turn| turn as f64).collect::<Vec<_>>());
            prop_assert_eq!((episode.is_success, episode.is_cut), (Some(*lasts >= 3), false));
            let written: usize = episode.turns.iter().map(|turn| (turn.end - turn.start) as usize).sum();
            prop_assert_eq!(written, mask.iter().filter(|&&is_written| is_written).count());
            let shown = |turn: &Turn| match turn.observation.as_str() {
                "" => String::new(),
                observation => format!("[{observation}]"),
            };
            let parts = episode.turns.iter().flat_map(|turn| [turn.text.clone(), shown(turn)]);
            let text: String = parts.collect();
            prop_assert_eq!(&text, &sample.text);
        }
    }

    /// Neither the arrival of answers nor other work changes anything; a fault costs only its own
    /// trajectory.
    #[test]
    fn episodes_are_functions_of_prompt_and_key(seed in 0_u64..100) {
        let turns = [Some(3), None, Some(1), Some(4)];
        let worlds = || CountingWorlds { num_shown: 2, ..CountingWorlds::default() };
        let calm = play(FakeSettings::faultless(0), worlds(), 1000, &turns);
        let faults = FakeFaults { duplicate: 0.5, foreign: 0.3, ..FakeFaults::default() };
        let wild = FakeSettings { seed, max_delay: 7, faults };
        prop_assert_eq!(play(wild, worlds(), 1000, &turns), calm);
        // Environments that take their time, beside generation.
        let worlds = |breaks| CountingWorlds { breaks, num_shown: 2, is_slow: true, ..CountingWorlds::default() };
        let turns = [Some(3), Some(2), Some(1), Some(4)];
        let quick = CountingWorlds { num_shown: 2, ..CountingWorlds::default() };
        let calm = play(FakeSettings::faultless(0), quick, 1000, &turns);
        prop_assert_eq!(play(wild, worlds(false), 1000, &turns), calm);
        let failed = play(FakeSettings::faultless(seed), worlds(true), 1000, &[Some(3), Some(1), Some(NO_WORLD)]);
        // It costs the same as a whole trajectory with this transcript, including all that was shown.
        let whole = play(FakeSettings::faultless(seed), worlds(false), 1000, &[Some(2)]);
        let of_whole = sample(&whole[&0]).spent();
        prop_assert_eq!(of_whole.turns, 2);
        let is_failed = matches!(failed[&0], GeneratorEvent::Failed { spent, .. } if spent == of_whole);
        let is_sampled = matches!(failed[&1], GeneratorEvent::Sampled { .. });
        let is_none = matches!(failed[&2], GeneratorEvent::Failed { spent: Spent { tokens: 0, turns: 0 }, .. });
        prop_assert!(is_failed && is_sampled && is_none);
    }

    /// If the policy does not see the whole history, each answer follows what it saw.
    #[test]
    fn answers_that_begin_anew_stand_after_what_was_shown(lasts in 1_u64..6, window in 1_usize..4, seed in 0_u64..20) {
        for mode in [ContextMode::LimitedMultiTurn, ContextMode::SingleTurn] {
            let context = Context { mode, window: Some(window) };
            let worlds = CountingWorlds { context, ..CountingWorlds::default() };
            let ended = play(FakeSettings::faultless(seed), worlds, 1000, &[Some(lasts)]);
            let sample = sample(&ended[&0]);
            let (mask, episode) = (sample.loss_mask(), sample.episode.as_ref().expect("played"));
            prop_assert!(sample.token_ids.iter().zip(&mask).all(|(&token, &written)| (token == SHOWN) != written));
            let parts = episode.parts(sample.token_ids.len());
            prop_assert_eq!(parts.len() as u64, if lasts == 1 { 0 } else { lasts });
            for (number, (part, turn)) in parts.iter().zip(&episode.turns).enumerate() {
                prop_assert_eq!((part.answer, part.end), (turn.start as usize, turn.end as usize));
                // One token for each message that is seen.
                let seen = if mode == ContextMode::SingleTurn { 1 } else { 2 * window.min(number + 1) - 1 };
                prop_assert_eq!(part.answer - part.start, if number == 0 { 0 } else { seen });
            }
        }
    }
}

#[test]
fn a_trajectory_has_no_more_tokens_than_it_may() {
    for max_tokens in 1..30 {
        let ended = play(
            FakeSettings::faultless(1),
            CountingWorlds { num_shown: 2, ..CountingWorlds::default() },
            max_tokens,
            &[Some(6)],
        );
        let sample = sample(&ended[&0]);
        let episode = sample.episode.as_ref().expect("played");
        assert!(sample.token_ids.len() <= max_tokens, "{} of {max_tokens}", sample.token_ids.len());
        assert_eq!(episode.is_cut, episode.turns.len() < 6);
        assert_eq!(sample.finish_reason == FinishReason::Length, episode.is_cut);
        assert_eq!(sample.loss_mask().last(), Some(&true), "nothing is shown for nobody");
    }
}

#[test]
fn the_limit_is_that_of_the_prompts_own_environment() {
    let worlds = CountingWorlds { num_shown: 2, ..CountingWorlds::default() };
    let mut plays = Plays::new(Arc::new(worlds), TokenLimits::of(1000), false, 2);
    let mut generator = FakeGenerator::new(FakeSettings::faultless(1));
    let mut episodes = plays.over(&mut generator);
    for (group, max_tokens) in [(0, Some(9)), (1, None)] {
        let mut request = request(group, Some(6));
        let prompt = Arc::make_mut(request.prompt.as_mut().expect("played"));
        prompt.columns.extend(max_tokens.map(|most: u64| ("max_tokens".to_owned(), most.into())));
        episodes.submit(request).expect("taken");
    }
    let mut ended = BTreeMap::new();
    while ended.len() < 2 {
        for event in episodes.next(Wait::Forever).expect("goes on") {
            let GeneratorEvent::Sampled { id, sample } = event else { panic!("{event:?}") };
            ended.insert(id.group, sample);
        }
    }
    let is_cut = |group: u64| ended[&group].episode.as_ref().map(|episode| episode.is_cut);
    assert_eq!((is_cut(0), is_cut(1)), (Some(true), Some(false)));
    assert!(ended[&0].token_ids.len() <= 9 && ended[&1].token_ids.len() > 9);
}

#[test]
fn an_environment_that_breaks_down_fails_its_trajectory_alone() {
    let worlds = CountingWorlds { breaks: true, num_shown: 1, ..CountingWorlds::default() };
    let turns = [Some(3), None, Some(1), Some(NO_WORLD)];
    let ended = play(FakeSettings::faultless(1), worlds, 1000, &turns);
    let GeneratorEvent::Failed { reason, .. } = &ended[&3] else { panic!("{ended:?}") };
    assert_eq!(reason, "there is no such world");
    let GeneratorEvent::Failed { reason, spent, kind, .. } = &ended[&0] else { panic!("{ended:?}") };
    assert_eq!(
        (reason.as_str(), *kind),
        ("its environment crashed: no such world", FailureKind::EnvironmentBroke)
    );
    assert!(spent.tokens > 0 && spent.turns > 0);
    assert!(matches!(ended[&1], GeneratorEvent::Sampled { .. }));
    assert_eq!(sample(&ended[&2]).episode.as_ref().map(|episode| episode.turns.len()), Some(1));
}

#[test]
fn what_is_given_up_counts_the_tokens_of_all_turns_and_may_be_asked_for_again() {
    let mut plays = Plays::new(
        Arc::new(CountingWorlds { num_shown: 1, ..CountingWorlds::default() }),
        TokenLimits::of(1000),
        false,
        2,
    );
    let mut generator = FakeGenerator::new(FakeSettings::faultless(1));
    let mut episodes = plays.over(&mut generator);
    let first = request(0, Some(3));
    episodes.submit(first.clone()).expect("taken");
    assert_eq!(
        episodes.submit(first.clone()).unwrap_err().to_string(),
        format!("{} is in flight already", first.id)
    );
    // The first answer, by which the second turn begins.
    assert!(episodes.next(Wait::No).expect("goes on").is_empty());
    while episodes.plays.open.values().all(|slot| slot.turn == Some(0)) {
        let events = episodes.generator.next(Wait::Forever).expect("goes on");
        for event in events {
            assert_eq!(episodes.take(event).expect("taken"), None);
        }
    }
    let before = episodes.plays.open.values().map(|play| play.spent.tokens).sum::<u64>();
    let num_shown = episodes.plays.open.values().map(|play| play.num_shown).sum::<u64>();
    assert!(before > 0 && num_shown > 0);
    episodes.abort(AbortScope::Sample(first.id));
    let events = episodes.next(Wait::Forever).expect("goes on");
    let [GeneratorEvent::Aborted { id, spent }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*id, first.id);
    // The text shown before an answer counts with the first token of that answer.
    let is_begun = spent.turns > 1;
    assert!(if is_begun { spent.tokens > before + num_shown } else { spent.tokens == before }, "{spent:?}");
    episodes.submit(SampleRequest { id: first.id.again(), ..first }).expect("taken");
    let events = episodes.next(Wait::Forever).expect("goes on");
    assert_eq!(sample(&events[0]).episode.as_ref().map(|episode| episode.turns.len()), Some(3));
}

/// A publication waits for trajectories if answers are to be finished by the old weights, or if a
/// resumed run would not find the generator's answers again. Requests that arrive meanwhile begin with
/// the new weights.
#[test]
fn weights_wait_for_the_trajectories_that_began_before() {
    for (in_flight, finishes, waits) in
        [(InFlight::Wait, false, true), (InFlight::Keep, true, true), (InFlight::Keep, false, false)]
    {
        let worlds = CountingWorlds { num_shown: 1, ..CountingWorlds::default() };
        let mut plays = Plays::new(Arc::new(worlds), TokenLimits::of(1000), finishes, 1);
        let mut generator = FakeGenerator::new(FakeSettings { max_delay: 3, ..FakeSettings::faultless(1) });
        let mut episodes = plays.over(&mut generator);
        episodes.submit(request(0, Some(4))).expect("taken");
        let publication = Publication { version: PolicyVersion(1), weights: crate::Weights::InProcess };
        episodes.publish(&publication, in_flight).expect("begun");
        episodes.submit(request(1, Some(2))).expect("taken");
        let mut order = Vec::new();
        while order.len() < 3 {
            for event in episodes.next(Wait::Forever).expect("goes on") {
                if let GeneratorEvent::Sampled { id, sample } = &event {
                    let (oldest, newest) = sample.version_range();
                    order.push(format!("{} {}-{}", id.group, oldest.0, newest.0));
                } else {
                    order.push("published".to_owned());
                }
            }
        }
        if waits {
            assert_eq!(order, ["0 0-0", "published", "1 1-1"], "{in_flight:?}");
        } else {
            assert!(order.contains(&"0 0-1".to_owned()), "{order:?}");
        }
        assert_eq!(episodes.load().in_flight, 0);
    }
}

/// An aborted trajectory plays no further turn, however far it had come.
#[test]
fn what_is_given_up_plays_no_further_turn() {
    for whole in [false, true] {
        let worlds = CountingWorlds { num_shown: 1, ..CountingWorlds::default() };
        let mut plays = Plays::new(Arc::new(worlds), TokenLimits::of(1000), false, 2);
        let faults = FakeFaults { late: 1.0, ..FakeFaults::default() };
        let mut generator = FakeGenerator::new(FakeSettings { faults, ..FakeSettings::faultless(1) });
        let mut episodes = plays.over(&mut generator);
        episodes.submit(request(0, Some(4))).expect("taken");
        if whole {
            let publication = Publication { version: PolicyVersion(1), weights: crate::Weights::InProcess };
            episodes.publish(&publication, InFlight::Abort).expect("begun");
        } else {
            episodes.abort(AbortScope::Group { purpose: SamplePurpose::Rollout, group: 0 });
        }
        let mut ends = Vec::new();
        while ends.is_empty() {
            let events = episodes.next(Wait::Forever).expect("goes on");
            ends.extend(
                events.into_iter().filter(|event| !matches!(event, GeneratorEvent::Published { .. })),
            );
        }
        assert!(matches!(&ends[..], [GeneratorEvent::Aborted { id, .. }] if id.turn == 0), "{ends:?}");
        assert!(episodes.plays.is_idle());
        assert_eq!(generator.num_submitted(), 1);
    }
}

/// Tokens of an aborted answer are counted, whatever surrounds it.
#[test]
fn tokens_of_what_is_given_up_are_told_as_they_were() {
    for mut plays in
        [Plays::none(), Plays::new(Arc::new(CountingWorlds::default()), TokenLimits::of(9), false, 1)]
    {
        let faults = FakeFaults { late: 1.0, ..FakeFaults::default() };
        let mut generator = FakeGenerator::new(FakeSettings { faults, ..FakeSettings::faultless(1) });
        let mut episodes = plays.over(&mut generator);
        let asked = request(0, None);
        episodes.submit(asked.clone()).expect("taken");
        let aborted = GeneratorEvent::Aborted { id: asked.id, spent: Spent::on_answer(512) };
        assert_eq!(episodes.take(aborted.clone()).expect("taken"), Some(aborted));
    }
}

/// A text that no remaining room can hold is not even rendered: the episode is cut as if its tokens
/// were counted.
#[test]
fn a_text_that_cannot_fit_is_not_rendered() {
    for mode in [ContextMode::Full, ContextMode::LimitedMultiTurn] {
        let worlds = || CountingWorlds {
            context: Context { mode, window: None },
            longest_token: 1,
            ..CountingWorlds::default()
        };
        // After an answer there is room for five tokens at most, and "turn 1" is six bytes.
        let ended = play(FakeSettings::faultless(0), worlds(), 6, &[Some(3)]);
        let sample = sample(&ended[&0]);
        let episode = sample.episode.as_ref().expect("played");
        assert_eq!((episode.turns.len(), episode.is_cut), (1, true));
        assert_eq!(sample.finish_reason, FinishReason::Length);
        assert_eq!(episode.turns[0].observation, "");
    }
}

/// An environment that begins with its own text, of so many bytes.
struct Opening(usize);

impl Environment for Opening {
    fn observe(&self) -> String {
        String::new()
    }

    fn opening(&self) -> Option<Vec<Message>> {
        Some(vec![message("user", &"x".repeat(self.0))])
    }

    fn act(&mut self, _text: &str) -> TurnOutcome {
        TurnOutcome { end: Some(EpisodeEnd::Terminated), ..TurnOutcome::default() }
    }

    fn is_success(&self) -> Option<bool> {
        Some(true)
    }
}

/// A replacement for the environments of a run.
struct Instead(fn() -> MaybeWorld);

type MaybeWorld = Result<Option<Box<dyn Environment>>, EnvironmentFault>;

impl Worlds for Instead {
    fn begin(&self, _: &Prompt, _: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        (self.0)()
    }

    fn between(&self, _: &Prompt, _: &[Message], _: &[u32], _: &[Message]) -> Result<Between, String> {
        Err("it never comes to that".to_owned())
    }

    fn render(&self, _: &Prompt, conversation: &[Message]) -> Result<Between, String> {
        assert!(conversation[0].content.len() < 100, "rendered in vain");
        Ok(Between { token_ids: vec![SHOWN], text: conversation[0].content.clone() })
    }

    fn may_fit(&self, num_bytes: usize, num_tokens: usize) -> bool {
        num_bytes <= num_tokens
    }
}

#[test]
fn a_beginning_that_cannot_fit_is_not_rendered() {
    let play = |worlds: Instead| {
        let mut plays = Plays::new(Arc::new(worlds), TokenLimits::of(9), false, 1);
        let mut generator = FakeGenerator::new(FakeSettings::faultless(1));
        let mut episodes = plays.over(&mut generator);
        episodes.submit(request(0, Some(1))).expect("taken");
        loop {
            if let Some(event) = episodes.next(Wait::Forever).expect("goes on").pop() {
                return event;
            }
        }
    };
    let event = play(Instead(|| Ok(Some(Box::new(Opening(1_000_000))))));
    let GeneratorEvent::Failed { reason, .. } = event else { panic!("{event:?}") };
    assert_eq!(
        reason,
        "the first message of its environment cannot be given to the model: its 1000000 bytes are more than 9 tokens hold"
    );
    assert!(matches!(play(Instead(|| Ok(Some(Box::new(Opening(2)))))), GeneratorEvent::Sampled { .. }));
}

/// If the environments are lost, no further group is tried.
#[test]
fn an_environment_that_is_lost_ends_the_generation() {
    let lost = Instead(|| Err(EnvironmentFault::Lost("its workers were lost".to_owned())));
    let mut plays = Plays::new(Arc::new(lost), TokenLimits::of(9), false, 1);
    let mut generator = FakeGenerator::new(FakeSettings::faultless(1));
    let ended = plays.over(&mut generator).submit(request(0, Some(1)));
    let error = ended.expect_err("it is lost").to_string();
    assert_eq!(error, "the environment is lost: its workers were lost");
}

/// During a slow environment the caller can still check whether the run is wanted.
#[test]
fn who_waits_for_ever_is_answered_now_and_then() {
    struct Slow;
    impl Worlds for Slow {
        fn begin(&self, _: &Prompt, _: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
            std::thread::sleep(Duration::from_secs(3));
            Err(EnvironmentFault::TimedOut { limit: Duration::from_secs(3) })
        }
        fn between(&self, _: &Prompt, _: &[Message], _: &[u32], _: &[Message]) -> Result<Between, String> {
            Err("it never comes to that".to_owned())
        }
        fn render(&self, _: &Prompt, _: &[Message]) -> Result<Between, String> {
            Err("it never comes to that".to_owned())
        }
        fn is_slow(&self) -> bool {
            true
        }
    }
    let mut plays = Plays::new(Arc::new(Slow), TokenLimits::of(9), false, 1);
    let mut generator = FakeGenerator::new(FakeSettings::faultless(1));
    let mut episodes = plays.over(&mut generator);
    episodes.submit(request(0, Some(1))).expect("taken");
    let mut num_waits = 0;
    loop {
        let events = episodes.next(Wait::Forever).expect("goes on");
        if let [GeneratorEvent::Failed { spent: Spent { tokens: 0, turns: 0 }, kind, .. }] = &events[..] {
            assert_eq!(*kind, FailureKind::EnvironmentTimedOut);
            break;
        }
        assert!(events.is_empty());
        num_waits += 1;
    }
    assert!(num_waits > 1, "{num_waits}");
}
