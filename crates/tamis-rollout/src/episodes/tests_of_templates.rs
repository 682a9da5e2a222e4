//! Plays whose turns a real chat template joins: tokens, texts, mask and turns agree.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use tamis_core::group::FinishReason;
use tamis_env::environment::{EpisodeEnd, TurnOutcome};
use tamis_text::template::ChatTemplate;
use tamis_text::tokenizer::Tokenizer;
use tamis_text::transcript::{TurnTemplate, check_template};

use super::play::{Next, Play};
use super::tests::request;
use super::*;
use crate::generator::Sample;

/// Templates in the form of released models, each with the token that ends an answer.
const TEMPLATES: [(&str, &str); 3] = [
    ("qwen2_5", include_str!("../../../tamis-text/tests/chat_templates/qwen2_5.jinja")),
    ("qwen3", include_str!("../../../tamis-text/tests/chat_templates/qwen3.jinja")),
    ("smollm2", include_str!("../../../tamis-text/tests/chat_templates/smollm2.jinja")),
];

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).expect("the reference's tokenizer")
});

fn ids(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, false).expect("text")
}

fn decode(ids: &[u32]) -> String {
    TOKENIZER.decode(ids, false).expect("tokens")
}

fn end() -> u32 {
    TOKENIZER.token_id("<|im_end|>").expect("a token")
}

/// Token by token, as no tokenizer would write it.
fn odd_ids(text: &str) -> Vec<u32> {
    let mut buffer = [0; 4];
    text.chars().flat_map(|letter| ids(letter.encode_utf8(&mut buffer))).collect()
}

fn values(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(|message| json!({"role": message.role, "content": message.content})).collect()
}

/// Shows this after each answer, and is over then.
struct Script {
    shows: Vec<Vec<Message>>,
    turn: usize,
}

impl Environment for Script {
    fn observe(&self) -> String {
        String::new()
    }

    fn messages(&self) -> Vec<Message> {
        self.shows[self.turn - 1].clone()
    }

    fn act(&mut self, _text: &str) -> TurnOutcome {
        self.turn += 1;
        let end = (self.turn > self.shows.len()).then_some(EpisodeEnd::Terminated);
        TurnOutcome { reward: end.map(|_| 1.0), end, ..TurnOutcome::default() }
    }

    fn is_success(&self) -> Option<bool> {
        None
    }
}

struct Joined(TurnTemplate, ChatTemplate);

impl Worlds for Joined {
    fn begin(&self, _: &Prompt, _: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        Ok(None)
    }

    fn between(
        &self,
        _: &Prompt,
        conversation: &[Message],
        sampled: &[u32],
        shown: &[Message],
    ) -> Result<Between, String> {
        let joined = self.0.continuation(&TOKENIZER, &values(conversation), &values(shown), sampled);
        let joined = joined.map_err(|error| error.to_string())?;
        Ok(Between { token_ids: joined.token_ids, text: joined.text })
    }

    fn render(&self, _: &Prompt, conversation: &[Message]) -> Result<Between, String> {
        let text = self.1.prompt(&values(conversation), &Map::new()).map_err(|error| error.to_string())?.text;
        Ok(Between { token_ids: ids(&text), text })
    }
}

fn said(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

#[test]
fn what_is_played_reads_as_the_template_renders_it_and_the_policy_s_tokens_alone_bear_loss() {
    for (name, source) in TEMPLATES {
        let template = ChatTemplate::new(source, TOKENIZER.special_tokens()).expect("a template");
        let checked =
            check_template(&template, &TOKENIZER, &Map::new(), &[end()]).expect("it can be continued");
        let worlds = Joined(checked, template);
        let answers = [
            ("Up, then é left.", true),
            // Cut short.
            ("Down", false),
            ("", true),
            ("There. 墙", true),
        ];
        let shows = vec![
            vec![said("user", "A wall. 墙")],
            vec![said("user", "Free."), said("user", "Go on.")],
            vec![said("user", "Again.")],
        ];
        let opening = vec![said("system", "Be brief."), said("user", "Where?")];
        let mut request = request(0, None);
        let mut prompt = Prompt::clone(request.prompt.as_ref().expect("a prompt"));
        prompt.content = PromptContent::Messages(opening.clone());
        let begun = worlds.render(&prompt, &opening).expect("rendered");
        request.prompt_token_ids = begun.token_ids.into();
        let limits = TokenLimits::of(10_000);
        let mut play =
            Play::new(request, Arc::new(prompt.clone()), Box::new(Script { shows: shows.clone(), turn: 0 }));
        let mut asked = play.open(&worlds, limits).expect("asked");
        let mut whole = opening;
        let mut written = Vec::new();
        let mut sample = None;
        for (place, (text, has_end)) in answers.iter().enumerate() {
            let token_ids = [odd_ids(text), has_end.then(end).into_iter().collect()].concat();
            // The policy sees the template's rendering, with its own text unchanged.
            let seen = worlds.render(&prompt, &whole).expect("rendered").text;
            assert_eq!(decode(&asked.prompt_token_ids), seen, "{name} {place}");
            let start = asked.prompt_token_ids.len();
            written.push((start, token_ids.clone()));
            let answer = Sample {
                logprobs: vec![-0.5; token_ids.len()],
                token_ids,
                entropy: Some(1.0),
                text: (*text).to_owned(),
                finish_reason: if *has_end { FinishReason::Stop } else { FinishReason::Length },
                versions: Vec::new(),
                episode: None,
                lost: Spent::default(),
            };
            whole.push(said("assistant", text));
            match play.take(&answer, &worlds, limits) {
                Next::Ask(next) => asked = next,
                Next::Over(over) => sample = Some(over),
                Next::Failed(fault) => panic!("{name}: {fault}"),
            }
            whole.extend(shows.get(place).into_iter().flatten().cloned());
        }
        let sample = sample.expect("it is over");
        let episode = sample.episode.as_ref().expect("played");
        assert_eq!((episode.turns.len(), episode.is_success, episode.is_unscored), (4, None, false));
        let prompt_length = written[0].0;
        let mut mask = vec![false; sample.token_ids.len()];
        for (turn, (start, token_ids)) in episode.turns.iter().zip(&written) {
            let range = start - prompt_length..start - prompt_length + token_ids.len();
            assert_eq!((turn.start as usize, turn.end as usize), (range.start, range.end), "{name}");
            assert_eq!(&sample.token_ids[range.clone()], token_ids, "{name}: never tokenised again");
            mask[range].fill(true);
        }
        assert_eq!(episode.loss_mask(sample.token_ids.len()), mask, "{name}");
        for (is_written, logprob) in mask.iter().zip(&sample.logprobs) {
            assert_eq!(logprob.abs() > 0.4, *is_written, "{name}");
        }
    }
}

/// An environment that begins with these messages.
struct Begins(Vec<Message>);

impl Environment for Begins {
    fn observe(&self) -> String {
        String::new()
    }

    fn opening(&self) -> Option<Vec<Message>> {
        Some(self.0.clone())
    }

    fn act(&mut self, _text: &str) -> TurnOutcome {
        TurnOutcome { end: Some(EpisodeEnd::Terminated), ..TurnOutcome::default() }
    }

    fn is_success(&self) -> Option<bool> {
        None
    }
}

/// The policy sees the system message of the prompt.
#[test]
fn an_environment_without_a_system_message_begins_with_that_of_its_prompt() {
    let (_, source) = TEMPLATES[0];
    let template = ChatTemplate::new(source, TOKENIZER.special_tokens()).expect("a template");
    let checked = check_template(&template, &TOKENIZER, &Map::new(), &[end()]).expect("it can be continued");
    let worlds = Joined(checked, template);
    let rules = said("system", "Be brief.");
    let developer = said("developer", "Be brief.");
    let (guess, other) = (said("user", "Guess."), said("user", "Where?"));
    for (shown, opening, seen, is_anew) in [
        (vec![&rules, &guess], vec![&guess], vec![&rules, &guess], false),
        (vec![&rules, &guess], vec![&rules, &guess], vec![&rules, &guess], false),
        (vec![&rules, &guess], vec![&other], vec![&rules, &other], true),
        (vec![&developer, &guess], vec![&other], vec![&developer, &other], true),
        (vec![&rules, &guess], vec![&developer, &other], vec![&developer, &other], true),
        (vec![&guess], vec![&other], vec![&other], true),
    ] {
        let [shown, opening, seen] =
            [shown, opening, seen].map(|messages| messages.into_iter().cloned().collect::<Vec<_>>());
        let mut request = request(0, None);
        let mut prompt = Prompt::clone(request.prompt.as_ref().expect("a prompt"));
        prompt.content = PromptContent::Messages(shown.clone());
        request.prompt_token_ids = worlds.render(&prompt, &shown).expect("rendered").token_ids.into();
        let seen = worlds.render(&prompt, &seen).expect("rendered").text;
        let mut play = Play::new(request, Arc::new(prompt), Box::new(Begins(opening)));
        let asked = play.open(&worlds, TokenLimits::of(10_000)).expect("asked");
        assert_eq!(decode(&asked.prompt_token_ids), seen);
        assert_eq!(play.told.context_start.is_some(), is_anew, "{seen}");
    }
}
