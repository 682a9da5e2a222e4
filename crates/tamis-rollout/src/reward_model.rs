//! A reward model: a transformer that reads prompt and completion, and whose logit is the score. It is
//! reached over HTTP, in a process that the run started ([`ModelProcess`]) or at servers with vLLM's
//! `/classify` or `/pooling`.
//!
//! | server | a request | its answer |
//! |---|---|---|
//! | process | `POST /v1/score`: `{"texts": [TEXT or {"messages": [..]}, ..]}` | `{"scores": [{"score": 0.5, "truncated": false} or {"error": ".."}, ..]}` |
//! | `/classify` | `{"input": [TEXT, ..]}` or `{"messages": [..]}` | `{"data": [{"index": 0, "probs": [LOGIT, ..]}, ..]}` |
//! | `/pooling` | the same | `{"data": [{"index": 0, "data": [LOGIT, ..] or one list for each token}, ..]}` |
//!
//! Servers are asked for raw logits (`use_activation`), and this is tested at the start of a run: a
//! server that does not know the field would return probabilities instead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tamis_data::prompt::{Message, PromptContent};
use tamis_env::reward::model::{
    AUTO_TEMPLATE, CHAT_TEMPLATE, LogitActivation, ModelSettings, OverlongTexts, ScoreEndpoint,
};
use tamis_env::reward::{Listener, Logged, RewardFailure, RewardFunction, RewardInput, RewardOutcome};

use crate::asking::{AfterFault, AskLimits, ConnectError, ScoringServers};
use crate::http::{Address, Exchange};
use crate::prompt_template::PromptTemplate;
use crate::wire::{Call, Fault, FaultClass, HttpAnswer};

/// Text that a server scores as a test at the start of a run.
const PROBE: &str = "What is 2 + 2? It is 4.";
/// Pause between two looks at a server that does not answer yet.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A process that has the model loaded; it ends with the value.
pub trait ModelProcess: Send + Sync {
    /// How it ended, if it has ended and is not restarted.
    fn ended(&self) -> Option<String>;
}

/// Text that the model reads of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelInput {
    /// Messages if the prompt has messages, text if it is text.
    Auto,
    /// Messages always.
    Chat,
    /// A custom text.
    Text(PromptTemplate),
}

impl ModelInput {
    /// Reads the key `template`.
    pub fn parse(template: &str) -> Self {
        match template {
            AUTO_TEMPLATE => Self::Auto,
            CHAT_TEMPLATE => Self::Chat,
            text => Self::Text(PromptTemplate::new(text)),
        }
    }

    /// The text of a completion, or the name that its row has nothing for.
    fn of(&self, input: &RewardInput<'_>) -> Result<Text, String> {
        Ok(match (self, &input.prompt.content) {
            (Self::Text(template), _) => Text::Plain(template.fill(input)?),
            (Self::Auto, PromptContent::Text(prompt)) => Text::Plain(format!("{prompt}{}", input.completion)),
            (Self::Chat, PromptContent::Text(prompt)) => {
                let user = Message::new("user", prompt.clone());
                Text::Messages(conversation(&[user], input))
            }
            (_, PromptContent::Messages(messages)) => Text::Messages(conversation(messages, input)),
        })
    }
}

/// Prompt and completion as one conversation. A last message of the assistant is the beginning of the
/// completion, which has it in front.
fn conversation(prompt: &[Message], input: &RewardInput<'_>) -> Vec<Message> {
    let prompt = match prompt {
        [before @ .., last] if last.role == "assistant" => before,
        all => all,
    };
    let own = || vec![Message::new("assistant", input.completion)];
    let completion = input.messages.map_or_else(own, <[Message]>::to_vec);
    prompt.iter().cloned().chain(completion).collect()
}

#[derive(Debug, Clone, PartialEq)]
enum Text {
    Plain(String),
    Messages(Vec<Message>),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct TextScore {
    score: Option<f64>,
    #[serde(default)]
    truncated: bool,
    error: Option<String>,
}

impl TextScore {
    fn of(score: Result<f64, String>) -> Self {
        let (score, error) = match score {
            Ok(score) => (Some(score), None),
            Err(error) => (None, Some(error)),
        };
        Self { score, truncated: false, error }
    }
}

#[derive(Deserialize)]
struct ProcessAnswer {
    scores: Vec<TextScore>,
}

#[derive(Deserialize)]
struct ClassifyAnswer {
    data: Vec<Classified>,
}

#[derive(Deserialize)]
struct Classified {
    index: usize,
    probs: Vec<f64>,
}

#[derive(Deserialize)]
struct PoolingAnswer {
    data: Vec<Pooled>,
}

#[derive(Deserialize)]
struct Pooled {
    index: usize,
    data: Vec<Value>,
}

/// The logits of each text, in the order of the request.
fn read_logits(
    endpoint: ScoreEndpoint,
    answer: &HttpAnswer,
    num_texts: usize,
) -> Result<Vec<Vec<f64>>, Fault> {
    let wrong = |detail: String| Fault::new(FaultClass::BadShape, detail);
    let mut rows: Vec<(usize, Vec<f64>)> = match endpoint {
        ScoreEndpoint::Classify => {
            let ClassifyAnswer { data } = answer.json()?;
            data.into_iter().map(|row| (row.index, row.probs)).collect()
        }
        ScoreEndpoint::Pooling => {
            let PoolingAnswer { data } = answer.json()?;
            let logits = |row: Pooled| -> Option<(usize, Vec<f64>)> {
                // In a list with one entry for each token the last is of the whole text.
                let whole = match row.data.last()? {
                    Value::Array(last) => last.clone(),
                    _ => row.data,
                };
                Some((row.index, whole.iter().map(Value::as_f64).collect::<Option<_>>()?))
            };
            let rows = data.into_iter().map(logits).collect::<Option<_>>();
            rows.ok_or_else(|| wrong("`data` of an answer holds no numbers".to_owned()))?
        }
    };
    rows.sort_by_key(|(index, _)| *index);
    if rows.iter().map(|(index, _)| *index).eq(0..num_texts) {
        Ok(rows.into_iter().map(|(_, logits)| logits).collect())
    } else {
        Err(wrong(format!("{num_texts} texts were sent, but the answer has {} scores", rows.len())))
    }
}

fn score_of(settings: &ModelSettings, logits: &[f64]) -> Result<f64, String> {
    let Some(&logit) = logits.get(settings.label) else {
        return Err(format!("there is no label {}: the model has {}", settings.label, logits.len()));
    };
    Ok(match settings.activation {
        LogitActivation::Identity | LogitActivation::AsServed => logit,
        LogitActivation::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        // Differences to the label's logit: nothing overflows into NaN.
        LogitActivation::Softmax => 1.0 / logits.iter().map(|other| (other - logit).exp()).sum::<f64>(),
    })
}

enum Place {
    /// In a process of the run.
    Process(Box<dyn ModelProcess>),
    /// At servers, each with the model's name there.
    Servers(Vec<Option<String>>),
}

/// The reward function.
pub struct RewardModel {
    settings: ModelSettings,
    input: ModelInput,
    servers: ScoringServers,
    place: Place,
    name: String,
}

impl RewardModel {
    /// A model at servers, once each has answered with logits; waits as long as `startup_timeout` for
    /// them. `None` if the wait was abandoned.
    ///
    /// # Errors
    /// If a server does not answer, has no such model or label, or returns no logits.
    pub fn connect(
        settings: ModelSettings,
        addresses: Vec<Address>,
        key: Option<String>,
        name: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Option<Self>, ConnectError> {
        let servers =
            ScoringServers::new(addresses, key, format!("reward `{name}`"), "reward model", listener)?;
        let until = Instant::now() + settings.startup_timeout.0;
        let model_at = |server| servers.model_at(server, settings.model.as_deref(), until);
        let models = (0..servers.len()).map(model_at).collect::<Result<_, _>>()?;
        let input = ModelInput::parse(&settings.template);
        let model = Self { settings, input, servers, place: Place::Servers(models), name: name.to_owned() };
        for server in 0..model.servers.len() {
            if !model.try_server(server, until)? {
                return Ok(None);
            }
        }
        Ok(Some(model).filter(|model| !model.servers.is_interrupted()))
    }

    /// A model that a process has loaded, which answers at this address.
    ///
    /// # Errors
    /// If the client cannot be set up.
    pub fn of_process(
        settings: ModelSettings,
        address: Address,
        process: Box<dyn ModelProcess>,
        name: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, ConnectError> {
        let servers =
            ScoringServers::new(vec![address], None, format!("reward `{name}`"), "reward model", listener)?;
        let input = ModelInput::parse(&settings.template);
        Ok(Self { settings, input, servers, place: Place::Process(process), name: name.to_owned() })
    }

    /// Checks that a server returns logits with the label; false if the wait was abandoned.
    fn try_server(&self, server: usize, until: Instant) -> Result<bool, ConnectError> {
        let refuse =
            |detail: String| Err(self.servers.unreachable(server, &Fault::new(FaultClass::BadShape, detail)));
        let mut told = Vec::new();
        let ways: &[Option<bool>] = match self.settings.activation {
            LogitActivation::AsServed => &[None],
            _ => &[Some(false), Some(true)],
        };
        for activation in ways {
            let call = self.server_call(&[&Text::Plain(PROBE.to_owned())], server, *activation);
            let logits = loop {
                let Some(exchange) = self.servers.ask_one(server, call.clone(), until)? else {
                    return Ok(false);
                };
                match exchange.and_then(|answer| read_logits(self.settings.endpoint, &answer, 1)) {
                    Ok(mut logits) => break logits.pop().unwrap_or_default(),
                    Err(fault)
                        if matches!(
                            fault.class,
                            FaultClass::Refused | FaultClass::Unauthorized | FaultClass::BadShape
                        ) || Instant::now() >= until =>
                    {
                        return Err(self.servers.unreachable(server, &fault));
                    }
                    Err(_) => std::thread::sleep(LOOK_EVERY),
                }
            };
            if let Err(problem) = score_of(&self.settings, &logits) {
                return refuse(problem);
            }
            told.push(logits);
        }
        if let [raw, activated] = told.as_slice()
            && raw == activated
            && raw.iter().all(|value| (0.0..=1.0).contains(value))
        {
            return refuse(
                "it returns the same numbers with and without `use_activation`, so they may not be logits: vLLM supports the field since \
                0.11.1; `activation: as_served` uses the numbers as they are"
                    .to_owned(),
            );
        }
        Ok(true)
    }

    fn server_call(&self, texts: &[&Text], server: usize, use_activation: Option<bool>) -> Call {
        let settings = &self.settings;
        let mut body = Map::new();
        if let Place::Servers(models) = &self.place
            && let Some(Some(model)) = models.get(server)
        {
            body.insert("model".to_owned(), json!(model));
        }
        match texts {
            [Text::Messages(messages)] => {
                body.insert("messages".to_owned(), json!(messages));
            }
            texts => {
                let plain = texts.iter().filter_map(|text| match text {
                    Text::Plain(text) => Some(text.as_str()),
                    Text::Messages(_) => None,
                });
                body.insert("input".to_owned(), plain.collect());
                body.insert("add_special_tokens".to_owned(), json!(settings.add_special_tokens));
            }
        }
        body.extend(use_activation.map(|used| ("use_activation".to_owned(), json!(used))));
        if settings.overlong != OverlongTexts::Unscored {
            // -1 is as long as the model reads.
            let length = settings.max_length.map_or(json!(-1), |length| json!(length));
            body.insert("truncate_prompt_tokens".to_owned(), length);
            body.insert("truncation_side".to_owned(), json!(settings.overlong.to_string()));
        }
        let path = match settings.endpoint {
            ScoreEndpoint::Classify => "/classify",
            ScoreEndpoint::Pooling => "/pooling",
        };
        Call::post(path, &Value::Object(body))
    }

    fn call(&self, texts: &[&Text], server: usize) -> Call {
        match &self.place {
            Place::Process(_) => {
                let of = |text: &&Text| match text {
                    Text::Plain(text) => json!(text),
                    Text::Messages(messages) => json!({"messages": messages}),
                };
                Call::post("/v1/score", &json!({"texts": texts.iter().map(of).collect::<Vec<_>>()}))
            }
            Place::Servers(_) => {
                let is_as_served = self.settings.activation == LogitActivation::AsServed;
                self.server_call(texts, server, (!is_as_served).then_some(false))
            }
        }
    }

    fn read(&self, num_texts: usize, exchange: Exchange) -> Result<Vec<TextScore>, Fault> {
        let answer = exchange?;
        match &self.place {
            Place::Process(_) => {
                let ProcessAnswer { scores } = answer.json()?;
                if scores.len() == num_texts {
                    return Ok(scores);
                }
                let detail = format!("{num_texts} texts were sent, but {} scores came back", scores.len());
                Err(Fault::new(FaultClass::BadShape, detail))
            }
            Place::Servers(_) => {
                let rows = read_logits(self.settings.endpoint, &answer, num_texts)?;
                Ok(rows.iter().map(|logits| TextScore::of(score_of(&self.settings, logits))).collect())
            }
        }
    }

    /// The texts of each request: a server takes only one conversation at a time.
    fn requests(&self, texts: &[Text]) -> Vec<Vec<usize>> {
        let is_served = matches!(self.place, Place::Servers(_));
        let alone = |place: &usize| is_served && matches!(texts[*place], Text::Messages(_));
        let (singles, others): (Vec<usize>, Vec<usize>) = (0..texts.len()).partition(alone);
        let batches = others.chunks(self.settings.batch_size.max(1)).map(<[usize]>::to_vec);
        batches.chain(singles.into_iter().map(|place| vec![place])).collect()
    }

    fn ask(&self, texts: &[Text]) -> Result<Vec<TextScore>, RewardFailure> {
        let limits = AskLimits {
            timeout: self.settings.timeout.0,
            max_attempts: u32::try_from(self.settings.max_attempts).unwrap_or(u32::MAX),
            concurrency: self.settings.concurrency,
        };
        let mut found: Vec<Option<TextScore>> = vec![None; texts.len()];
        let mut requests = self.requests(texts);
        while !requests.is_empty() {
            let mut since = None;
            let of = |places: &Vec<usize>| places.iter().map(|&place| &texts[place]).collect::<Vec<_>>();
            let answers = self.servers.ask(
                requests.clone(),
                limits,
                |places, server| self.call(&of(places), server),
                |places, exchange| self.read(places.len(), exchange),
                |fault| self.after(fault, &mut since),
            )?;
            let mut again = Vec::new();
            for (places, answer) in requests.into_iter().zip(answers) {
                match answer {
                    Ok(scores) => {
                        for (place, score) in places.into_iter().zip(scores) {
                            found[place] = Some(score);
                        }
                    }
                    // One text may be to blame for what all were refused for.
                    Err(unanswered) if unanswered.is_refused && places.len() > 1 => {
                        again.extend(places.into_iter().map(|place| vec![place]));
                    }
                    Err(unanswered) => {
                        for place in places {
                            found[place] = Some(TextScore::of(Err(unanswered.message.clone())));
                        }
                    }
                }
            }
            requests = again;
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// A process that is being started again is waited for.
    fn after(&self, fault: &Fault, since: &mut Option<Instant>) -> AfterFault {
        let Place::Process(process) = &self.place else { return AfterFault::Counts };
        if let Some(message) = process.ended() {
            let limit = u32::try_from(self.settings.max_restarts).unwrap_or(u32::MAX);
            let last = Box::new(RewardFailure::Function { message });
            return AfterFault::Ends(RewardFailure::RestartLimit { limit, last });
        }
        let began = since.get_or_insert_with(Instant::now);
        if fault.class == FaultClass::Connect && began.elapsed() < self.settings.startup_timeout.0 {
            return AfterFault::Passes;
        }
        AfterFault::Counts
    }
}

impl RewardFunction for RewardModel {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.score_logged(batch).0
    }

    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        let failed = |message: String| RewardOutcome::Failed(RewardFailure::Function { message });
        let inputs: Vec<Result<Text, String>> = batch.iter().map(|input| self.input.of(input)).collect();
        let texts: Vec<Text> = inputs.iter().flatten().cloned().collect();
        let mut scores = match self.ask(&texts) {
            Ok(scores) => scores.into_iter(),
            Err(failure) => return (vec![RewardOutcome::Failed(failure); batch.len()], Vec::new()),
        };
        let counts_cuts =
            matches!(self.place, Place::Process(_)) && self.settings.overlong != OverlongTexts::Unscored;
        let mut rows = Vec::with_capacity(batch.len());
        for input in inputs {
            let mut logged = Logged::default();
            let outcome = match input.map(|_| scores.next()) {
                Err(name) => {
                    failed(format!("the row has no `{name}`, which the reward model's template needs"))
                }
                Ok(Some(TextScore { score: Some(score), truncated, .. })) => {
                    if counts_cuts {
                        let name = format!("{}_truncated", self.name);
                        logged.metrics = BTreeMap::from([(name, vec![f64::from(u8::from(truncated))])]);
                    }
                    RewardOutcome::judged(score, self.settings.pass_score)
                }
                Ok(Some(TextScore { error: Some(error), .. })) => failed(error),
                Ok(_) => RewardOutcome::NoAnswer,
            };
            rows.push((outcome, logged));
        }
        let (outcomes, logged) = rows.into_iter().unzip();
        (outcomes, if counts_cuts { logged } else { Vec::new() })
    }

    fn concurrency(&self) -> usize {
        self.settings.concurrency
    }

    fn failure_hint(&self) -> Option<String> {
        Some(match &self.place {
            Place::Process(_) => {
                "the reward model's own messages are in its log in the run folder; `max_length` and `overlong` control what happens to \
                long texts"
                    .to_owned()
            }
            Place::Servers(_) => format!("check that the server at {} answers", self.servers.addresses()),
        })
    }

    fn how_to_give_acc(&self) -> Option<&'static str> {
        Some("set its `pass_score`: completions with at least that score count as correct")
    }
}
