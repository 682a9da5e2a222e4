use std::time::Duration;

use serde_json::{Map, json};
use tamis_core::group::{Episode, GroupId, PromptId};
use tamis_core::random::Purpose;
use tamis_core::schedule::Spent;
use tamis_data::prompt::PromptContent;

use super::*;
use crate::episodes::Plays;
use crate::fake::{FakeGenerator, FakeSettings, sampling};
use crate::generator::{FailureKind, Generator as _, Wait};
use crate::programs::ProgramSettings;

/// Tokens of what is rendered are characters above this.
const SHOWN: u32 = 100_000;

/// What every program begins with: a call to the policy with the standard library alone.
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

    fn render_chat(&self, messages: &[Value], _tools: &[Value]) -> Result<Between, String> {
        Ok(tokens(&render(messages)))
    }

    fn continue_chat(&self, _: &[Value], _: &[u32], new: &[Value], _: &[Value]) -> Result<Between, String> {
        Ok(tokens(&format!("|{}", render(new))))
    }

    fn read_answer(&self, text: &str, _index: usize, _has_tools: bool) -> ChatAnswer {
        ChatAnswer::text(text, ChatFinish::Stop)
    }
}

fn request(group: u64, prompt: &str) -> SampleRequest {
    let prompt_token_ids = tokens(prompt).token_ids.into();
    let prompt = Prompt {
        id: PromptId(group),
        content: PromptContent::Text(prompt.to_owned()),
        ground_truth: None,
        data_source: String::new(),
        columns: Map::new(),
        images: Vec::new(),
    };
    SampleRequest {
        id: SampleId::of_member(GroupId(group), 0),
        prompt_token_ids,
        images: Arc::default(),
        key: Key::new(3, Purpose::Rollout).with(group),
        sampling: sampling(5),
        prompt: Some(Arc::new(prompt)),
    }
}

fn host(program: &str, change: impl FnOnce(&mut ProgramSettings)) -> Arc<TestAgents> {
    let program = format!("{PRELUDE}\n{program}");
    let mut settings = ProgramSettings::new(["python3", "-c", &program].map(str::to_owned).to_vec());
    settings.timeout = Duration::from_secs(120);
    change(&mut settings);
    Arc::new(TestAgents(ProgramHost::start(settings, || ()).expect("a host")))
}

/// What comes of a program that plays so many trajectories.
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
        // It began as the prompt does, went on, and began anew.
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
        // Nothing that was rendered bears loss, and everything else does.
        let mask = sample.loss_mask();
        assert!(sample.token_ids.iter().zip(&mask).all(|(&token, &written)| (token >= SHOWN) != written));
        assert_eq!(sample.logprobs.len(), sample.token_ids.len());
        assert_eq!((episode.rewards(), episode.is_success), (vec![0.0, 0.0, 0.25], true));
        assert_eq!((turns[2].info["number"], turns[2].info["num_calls_refused"]), (group as f64, 0.0));
    }
}

#[test]
fn what_a_program_does_wrong_fails_its_trajectory_and_is_counted() {
    let hello = r#"[{"role": "user", "content": "hello"}]"#;
    let told = |event: &GeneratorEvent| match event {
        GeneratorEvent::Failed { reason, kind, .. } => {
            assert_eq!(*kind, FailureKind::EnvironmentBroke);
            reason.clone()
        }
        other => panic!("{other:?}"),
    };
    let crashed = play(&host(&format!("ask({hello})\nraise SystemError('no tools today')"), |_| ()), 1);
    assert!(told(&crashed[0]).contains("no tools today"), "{crashed:?}");
    let silent = play(&host("print(1.0)", |_| ()), 1);
    assert!(told(&silent[0]).starts_with("its program: "), "{silent:?}");
    // Over its limit it is refused, and what it had counts.
    let greedy = format!("ask({hello})\ntry: ask({hello})\nexcept urllib.error.HTTPError: pass\nprint(1.0)");
    let refused = play(&host(&greedy, |settings| settings.max_calls = 1), 1);
    let (_, episode) = sample(&refused[0]);
    assert_eq!((episode.turns.len(), episode.turns[0].info["num_calls_refused"]), (1, 1.0));
    assert_eq!(episode.turns[0].info["num_calls_too_long"], 0.0);
    // A conversation that leaves no room is told so, as programs know it.
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
    while episodes.plays.played.values().all(|agent| agent.written().tokens == 0) {
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
