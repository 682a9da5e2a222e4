use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use tamis_core::group::Episode;
use tamis_core::random::Purpose;
use tamis_core::schedule::Spent;

use super::*;
use crate::episodes::Plays;
use crate::fake::{FakeGenerator, FakeSettings};
use crate::generator::{FailureKind, Generator as _, InFlight, Load, Publication, Wait};
use crate::programs::ProgramSettings;
use crate::support;

/// Rendered tokens are characters above this.
const SHOWN: u32 = 100_000;

/// Beginning of every program: a call to the policy with only the standard library.
const PRELUDE: &str = r#"
import json, os, sys, urllib.error, urllib.request
task = json.loads(sys.stdin.readline())
def ask(messages, **more):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, body, headers), timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]
"#;

struct TestAgents(ProgramHost);

fn tokens(text: &str) -> Between {
    let token_ids = text.chars().map(|letter| SHOWN + letter as u32).collect();
    Between { token_ids, text: text.to_owned() }
}

fn render(messages: &[Value]) -> String {
    let line = |message: &Value| {
        format!("{}:{};", message["role"].as_str().unwrap_or(""), message["content"].as_str().unwrap_or(""))
    };
    messages.iter().map(line).collect()
}

impl Agents for TestAgents {
    fn host(&self) -> &ProgramHost {
        &self.0
    }

    fn task(&self, prompt: &Prompt, _luck: Key) -> Value {
        json!({"number": prompt.id.0})
    }

    fn render_chat(&self, _: &Prompt, messages: &[Value], _tools: &[Value]) -> Result<Between, String> {
        Ok(tokens(&render(messages)))
    }

    fn continue_chat(
        &self,
        _: &Prompt,
        _: &[Value],
        _: &[u32],
        new: &[Value],
        _: &[Value],
    ) -> Result<Between, String> {
        Ok(tokens(&format!("|{}", render(new))))
    }

    fn token_texts(&self, tokens: &[u32]) -> Vec<String> {
        tokens.iter().map(u32::to_string).collect()
    }

    fn read_answer(&self, text: &str, _index: usize, _has_tools: bool) -> ChatAnswer {
        ChatAnswer::text(text, ChatFinish::Stop)
    }
}

fn request(group: u64, prompt: &str) -> SampleRequest {
    let prompt_token_ids = tokens(prompt).token_ids.into();
    let prompt = Some(Arc::new(support::prompt(group, prompt, "")));
    SampleRequest { prompt_token_ids, prompt, ..support::request(group, 0, 5) }
}

fn host(program: &str, change: impl FnOnce(&mut ProgramSettings)) -> Arc<TestAgents> {
    let program = format!("{PRELUDE}\n{program}");
    let mut settings = ProgramSettings::new(["python3", "-c", &program].map(str::to_owned).to_vec());
    settings.timeout = Duration::from_secs(120);
    change(&mut settings);
    Arc::new(TestAgents(ProgramHost::start(settings, || ()).expect("a host")))
}

/// The events of a program that plays this many trajectories.
fn play(agents: &Arc<TestAgents>, count: u64) -> Vec<GeneratorEvent> {
    let mut plays = Plays::of_agents(Arc::clone(agents) as Arc<dyn Agents>, TokenLimits::of(200), false);
    let mut generator = FakeGenerator::new(FakeSettings { max_delay: 3, ..FakeSettings::faultless(1) });
    let mut episodes = plays.over(&mut generator);
    for group in 0..count {
        episodes.submit(request(group, "user:hello;")).expect("taken");
    }
    let mut ended = Vec::new();
    while (ended.len() as u64) < count {
        let events = episodes.next(Wait::Forever).expect("goes on");
        ended.extend(events.into_iter().filter(|event| match event {
            GeneratorEvent::Sampled { id, .. } | GeneratorEvent::Failed { id, .. } => id.turn == 0,
            _ => false,
        }));
    }
    assert!(plays.is_idle());
    assert_eq!(agents.0.num_open(), 0);
    ended.sort_by_key(|event| match event {
        GeneratorEvent::Sampled { id, .. } | GeneratorEvent::Failed { id, .. } => *id,
        _ => unreachable!("filtered"),
    });
    ended
}

fn sample(event: &GeneratorEvent) -> (&Sample, &Episode) {
    let GeneratorEvent::Sampled { sample, .. } = event else { panic!("{event:?}") };
    (sample, sample.episode.as_ref().expect("played"))
}

#[test]
fn log_probabilities_that_a_program_asks_for_are_those_that_are_recorded() {
    let agents = host(
        r#"
url, headers = os.environ["OPENAI_BASE_URL"], {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "logprobs": True}).encode()
request = urllib.request.Request(url + "/chat/completions", body, headers)
told = json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["logprobs"]["content"]
info = {"count": len(told), "first": told[0]["logprob"], "token": float(told[0]["token"])}
print(json.dumps({"reward": 1, "info": info}))
"#,
        |_| (),
    );
    let events = play(&agents, 1);
    let (sample, episode) = sample(&events[0]);
    let info = &episode.turns.last().expect("a turn").info;
    assert_eq!(info["count"], sample.token_ids.len() as f64);
    assert_eq!(info["token"], f64::from(sample.token_ids[0]));
    assert_eq!(info["first"], f64::from(sample.logprobs[0]));
}

#[test]
fn a_run_all_of_whose_first_calls_are_refused_ends() {
    let program = r#"
try:
    ask([{"role": "user", "content": "hello"}], n=2)
except urllib.error.HTTPError:
    pass
print(1)
"#;
    let agents = host(program, |_| ());
    let mut plays = Plays::of_agents(Arc::clone(&agents) as Arc<dyn Agents>, TokenLimits::of(200), false);
    let mut generator = FakeGenerator::new(FakeSettings { max_delay: 3, ..FakeSettings::faultless(1) });
    let mut episodes = plays.over(&mut generator);
    for group in 0..12 {
        episodes.submit(request(group, "user:hello;")).expect("taken");
    }
    let mut num_failed = 0;
    let error = loop {
        match episodes.next(Wait::Forever) {
            Ok(events) => num_failed += events.len(),
            Err(error) => break error.to_string(),
        }
    };
    assert!(num_failed < 12, "it ends before all have failed");
    assert!(
        error.contains("first calls of all programs were refused; the last one with: `n` is not"),
        "{error}"
    );
    assert!(error.contains("make a call for each answer"), "{error}");
    let warnings = agents.0.take_warnings();
    let told: Vec<&String> = warnings.iter().filter(|told| told.contains("`n` is not supported")).collect();
    assert_eq!(told.len(), 1, "{warnings:?}");
}

#[test]
fn a_conversation_that_goes_on_is_one_text_and_another_is_its_own() {
    let agents = host(
        r#"
talk = [{"role": "user", "content": "hello"}]
talk += [ask(talk), {"role": "tool", "content": "42", "tool_call_id": "x"}]
talk += [ask(talk)]
other = ask([{"role": "system", "content": "judge"}, {"role": "user", "content": "well?"}], max_tokens=2)
print("done")
print(json.dumps({"reward": 0.25, "success": True, "info": {"number": task["number"]}}))
"#,
        |_| (),
    );
    for (group, event) in play(&agents, 3).iter().enumerate() {
        let (sample, episode) = sample(event);
        let turns = &episode.turns;
        assert_eq!(turns.len(), 3);
        // It began like the prompt, continued, and began a new conversation.
        assert_eq!(
            turns.iter().map(|turn| turn.context_start.is_some()).collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(turns[0].start, 0);
        assert_eq!((turns[0].observation.as_str(), turns[0].role.as_str()), ("42", "tool"));
        let of = |from: u32, to: u32| &sample.token_ids[from as usize..to as usize];
        assert_eq!(of(turns[0].end, turns[1].start), tokens("|tool:42;").token_ids);
        assert_eq!(turns[2].context_start, Some(turns[1].end));
        assert_eq!(of(turns[1].end, turns[2].start), tokens("system:judge;user:well?;").token_ids);
        assert!(turns[2].end - turns[2].start <= 2);
        // Nothing that was rendered is in the loss, and everything else is.
        let mask = sample.loss_mask();
        assert!(sample.token_ids.iter().zip(&mask).all(|(&token, &written)| (token >= SHOWN) != written));
        assert_eq!(sample.logprobs.len(), sample.token_ids.len());
        assert_eq!((episode.rewards(), episode.is_success), (vec![0.0, 0.0, 0.25], Some(true)));
        assert_eq!((turns[2].info["number"], turns[2].info["num_calls_refused"]), (group as f64, 0.0));
    }
}

#[test]
fn what_a_program_does_wrong_fails_its_trajectory_and_is_counted() {
    let hello = r#"[{"role": "user", "content": "hello"}]"#;
    let failed = |event: &GeneratorEvent| match event {
        GeneratorEvent::Failed { reason, kind, .. } => (*kind, reason.clone()),
        other => panic!("{other:?}"),
    };
    let told = |event: &GeneratorEvent| {
        let (kind, reason) = failed(event);
        assert_eq!(kind, FailureKind::EnvironmentBroke);
        reason
    };
    let crashed = play(&host(&format!("ask({hello})\nraise SystemError('no tools today')"), |_| ()), 1);
    assert!(told(&crashed[0]).contains("no tools today"), "{crashed:?}");
    let silent = play(&host("print(1.0)", |_| ()), 1);
    assert!(told(&silent[0]).starts_with("its program: "), "{silent:?}");
    let late = host("import time\ntime.sleep(300)", |settings| settings.timeout = Duration::from_secs(1));
    let (kind, reason) = failed(&play(&late, 1)[0]);
    assert_eq!(kind, FailureKind::EnvironmentTimedOut, "{reason}");
    assert!(reason.starts_with("its program: the program did not end within 1 s"), "{reason}");
    // A call over the limit is refused, and its earlier calls count.
    let greedy = format!("ask({hello})\ntry: ask({hello})\nexcept urllib.error.HTTPError: pass\nprint(1.0)");
    let refused = play(&host(&greedy, |settings| settings.max_calls = 1), 1);
    let (_, episode) = sample(&refused[0]);
    assert_eq!((episode.turns.len(), episode.turns[0].info["num_calls_refused"]), (1, 1.0));
    assert_eq!(episode.turns[0].info["num_calls_too_long"], 0.0);
    // A conversation that leaves no room gets the usual error.
    let long = r#"
ask([{"role": "user", "content": "hello"}])
try: ask([{"role": "user", "content": "x" * 1000}])
except urllib.error.HTTPError as error: print(json.dumps({"info": {"status": error.code}}))
"#;
    let long = play(&host(long, |_| ()), 1);
    let (_, episode) = sample(&long[0]);
    let of = |name: &str| episode.turns[0].info[name];
    assert_eq!((of("status"), of("num_calls_refused"), of("num_calls_too_long")), (400.0, 1.0, 1.0));
    // It gave no reward: a reward function has to.
    assert!(episode.is_unscored);
}

#[test]
fn trajectories_that_are_given_up_end_their_programs() {
    let agents = host("import time\nask([{'role': 'user', 'content': 'hello'}])\ntime.sleep(300)", |_| ());
    let mut plays = Plays::of_agents(Arc::clone(&agents) as Arc<dyn Agents>, TokenLimits::of(200), false);
    let mut generator = FakeGenerator::new(FakeSettings::faultless(1));
    let mut episodes = plays.over(&mut generator);
    let first = request(0, "user:hello;");
    episodes.submit(first.clone()).expect("taken");
    let began = std::time::Instant::now();
    while episodes.plays.played.values().all(|agent| agent.spent_with(None).tokens == 0) {
        assert!(
            episodes
                .next(Wait::Until(std::time::Instant::now() + Duration::from_millis(20)))
                .expect("goes on")
                .is_empty()
        );
        assert!(began.elapsed() < Duration::from_secs(120));
    }
    episodes.abort(AbortScope::Sample(first.id));
    let events = episodes.next(Wait::No).expect("goes on");
    assert!(
        matches!(&events[..], [GeneratorEvent::Aborted { id, spent: Spent { tokens: 1.., turns: 1.. } }] if *id == first.id),
        "{events:?}"
    );
    assert!(plays.is_idle());
    assert_eq!(agents.0.num_open(), 0);
}

/// A policy's answer to a request: its length is a function of the request's key, within the limit.
fn answer_to(request: &SampleRequest) -> Sample {
    let most = request.sampling.max_response_length;
    let length = 1 + request.key.below(0, most as u64) as usize;
    // Letters enough that no two answers are the same.
    let letter = |at| char::from_u32(0x4e00 + request.key.below(1 + at, 20_000) as u32);
    let text: String = (0..length as u64).filter_map(letter).collect();
    Sample {
        token_ids: text.chars().map(|letter| letter as u32).collect(),
        logprobs: vec![-1.0; length],
        entropy: None,
        text,
        finish_reason: FinishReason::Stop,
        versions: Vec::new(),
        episode: None,
        lost: Spent::default(),
    }
}

/// A call of a random tree: a new conversation, the prompt's own, or one that continues any answer.
fn call_of_tree(agent: &Agent, key: Key, number: u64) -> ChatCall {
    let user = |length: u64| json!({"role": "user", "content": "x".repeat(length as usize)});
    let answered: Vec<&Asked> = agent.calls.iter().filter(|asked| asked.answer.is_some()).collect();
    let max_tokens = [None, Some(1 + key.below(4, 9) as usize)][key.below(3, 2) as usize];
    let messages = match key.below(0, 4) {
        0 => vec![json!({"role": "user", "content": "hello"})],
        1 => vec![user(1 + key.below(1, 12))],
        _ if answered.is_empty() => vec![user(number % 5)],
        _ => {
            let from = answered[key.below(2, answered.len() as u64) as usize];
            let said = from.answer.as_ref().expect("answered").1.message();
            [&from.chat.messages[..], &[said, user(key.below(1, 6))]].concat()
        }
    };
    ChatCall { messages, max_tokens, ..ChatCall::default() }
}

/// Calls under way: their place, their request and their answer.
type UnderWay = Vec<(usize, SampleRequest)>;

/// Plays a program's random calls, answering and aborting by `timing`. Returns the trajectory and the
/// answer to each call.
fn play_tree(agents: &TestAgents, tree: Key, timing: Key, whole: usize) -> (Option<Sample>, Vec<String>) {
    let limits = TokenLimits { whole, text: 60 };
    let mut agent = Agent::new(request(0, "user:hello;"), EpisodeNumber(0));
    let (mut under_way, mut got) = (UnderWay::new(), Vec::new());
    let ask = |agent: &mut Agent, under_way: &mut UnderWay, got: &mut Vec<String>| {
        while let Some((call, asked)) = agent.ask_next(agents, limits) {
            got.push(match &asked {
                Ok(request) => format!("{}: at most {}", call.0, request.sampling.max_response_length),
                Err(error) => format!("{}: {error}", call.0),
            });
            if let Ok(request) = asked {
                under_way.push((agent.calls.len() - 1, request));
            }
        }
    };
    let answer = |agent: &mut Agent, (place, request): (usize, SampleRequest)| {
        let sample = answer_to(&request);
        let said = ChatAnswer::text(&sample.text, ChatFinish::Stop);
        agent.calls[place].answer = Some((sample, said));
        agent.is_queue_known = false;
    };
    for batch in 0..6 {
        // The calls of a batch come one after the other, and answers to them between; the next batch begins
        // when all are answered.
        let chats = (0..tree.with(batch).below(0, 5))
            .map(|number| (number, call_of_tree(&agent, tree.with(batch).with(number), number)));
        let mut chats: VecDeque<(u64, ChatCall)> = chats.collect();
        let mut moment = 0;
        loop {
            ask(&mut agent, &mut under_way, &mut got);
            moment += 2;
            let is_next_call = under_way.is_empty() || timing.with(batch).below(moment, 2) == 0;
            if is_next_call && let Some((number, chat)) = chats.pop_front() {
                agent.queue.push_back((CallNumber(batch * 10 + number), chat));
            } else if under_way.is_empty() {
                break;
            } else {
                let next = timing.with(batch).below(moment + 1, under_way.len() as u64) as usize;
                answer(&mut agent, under_way.swap_remove(next));
            }
        }
        assert!(agent.queue.is_empty(), "nothing is under way, and a call waits");
    }
    let sample = agent.finish(ProgramOutcome::default(), RefusedCalls::default());
    // It costs the same if it fails.
    assert_eq!(sample.as_ref().map_or_else(Spent::default, Sample::spent), agent.spent_with(None));
    (sample, got)
}

#[test]
fn an_episode_keeps_its_limit_of_tokens_whatever_is_asked_at_once_or_branches() {
    let agents =
        TestAgents(ProgramHost::start(ProgramSettings::new(vec!["true".to_owned()]), || ()).expect("a host"));
    let (mut num_full, mut num_refused) = (0, 0);
    for seed in 0..300 {
        let (tree, timing) = (Key::new(seed, Purpose::Rollout), Key::new(seed, Purpose::Served));
        let whole = 40 + (seed as usize % 7) * 30;
        let (sample, got) = play_tree(&agents, tree, timing, whole);
        let len = sample.as_ref().map_or(0, |sample| sample.token_ids.len());
        assert!(len <= whole, "seed {seed}: {len} of {whole}");
        num_full += usize::from(len + 10 > whole);
        num_refused += got.iter().filter(|got| got.contains("are left to an answer")).count();
        // In which order answers come changes nothing.
        for other in 1..4 {
            assert_eq!(play_tree(&agents, tree, timing.with(other), whole), (sample.clone(), got.clone()));
        }
    }
    assert!(num_full > 50 && num_refused > 50, "{num_full} {num_refused}: the limit was hardly met");
}

/// Answers the second call of a trajectory, and no call before it is aborted: three tokens of those
/// were sampled.
struct SecondAlone {
    asked: Arc<Mutex<Vec<u32>>>,
    events: Vec<GeneratorEvent>,
}

impl crate::generator::Generator for SecondAlone {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        self.asked.lock().expect("lock").push(request.id.turn);
        if request.id.turn == 2 {
            self.events.push(GeneratorEvent::Sampled { id: request.id, sample: answer_to(&request) });
        }
        Ok(())
    }

    fn abort(&mut self, what: AbortScope) {
        let AbortScope::Sample(id) = what else { return };
        self.events.push(GeneratorEvent::Aborted { id, spent: Spent::on_answer(3) });
    }

    fn publish(&mut self, _: &Publication, _: InFlight) -> Result<(), GeneratorError> {
        Ok(())
    }

    fn next(&mut self, _: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        Ok(std::mem::take(&mut self.events))
    }

    fn load(&self) -> Load {
        Load { in_flight: 0, room: 1 }
    }
}

/// One call is closed by the program, and one is under way when it ends.
#[test]
fn what_was_generated_for_calls_that_are_given_up_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = format!(
        r#"
import http.client, time, urllib.parse
parts = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
body = json.dumps({{"messages": [{{"role": "user", "content": "hello"}}]}})
def begin(name):
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request("POST", parts.path + "/chat/completions", body, headers)
    while not os.path.exists(os.path.join({:?}, name)): time.sleep(0.01)
    return connection
begin("first").close()
ask([{{"role": "user", "content": "hello"}}])
begin("third")
print(1)
"#,
        folder.path()
    );
    let agents = host(&program, |_| ());
    let mut plays = Plays::of_agents(Arc::clone(&agents) as Arc<dyn Agents>, TokenLimits::of(200), false);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut generator = SecondAlone { asked: Arc::clone(&asked), events: Vec::new() };
    let mut episodes = plays.over(&mut generator);
    episodes.submit(request(0, "user:hello;")).expect("taken");
    let began = std::time::Instant::now();
    let event = loop {
        assert!(began.elapsed() < Duration::from_secs(120));
        let soon = std::time::Instant::now() + Duration::from_millis(20);
        if let Some(event) = episodes.next(Wait::Until(soon)).expect("goes on").pop() {
            break event;
        }
        for (turn, name) in [(1, "first"), (3, "third")] {
            if asked.lock().expect("lock").contains(&turn) {
                std::fs::write(folder.path().join(name), "").expect("written");
            }
        }
    };
    let (sample, episode) = sample(&event);
    assert_eq!((episode.turns.len(), sample.lost), (1, Spent { tokens: 6, turns: 2 }));
    let own = Spent { tokens: sample.token_ids.len() as u64, turns: 1 };
    assert_eq!(sample.spent(), own + sample.lost);
    assert!(plays.is_idle());
}
