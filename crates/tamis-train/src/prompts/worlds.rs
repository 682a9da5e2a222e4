//! The environments of a run: how they are made from prompts, and how text between two answers is rendered.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};
use tamis_config::{Config, EnvironmentConfig};
use tamis_core::random::Key;
use tamis_data::prompt::{Message, Prompt, PromptContent, TOOLS_COLUMN};
use tamis_data::prompt_format::PromptFormat;
use tamis_env::environment::context::Context;
use tamis_env::environment::kind::{EnvironmentMaker, EnvironmentStyle, World};
use tamis_env::environment::program::ProgramEnvironmentSettings;
use tamis_env::environment::tools::{ToolSettings, Toolbox};
use tamis_env::environment::{Environment, EnvironmentFault};
use tamis_env::reward::Listener;
use tamis_env::task::environment::{begin, environment_of};
use tamis_env::tool::split_tool_calls;
use tamis_rollout::programs::{
    ChatAnswer, ChatFinish, ChatToolCall, ProgramHost, ProgramSettings, tool_call_id,
};
use tamis_rollout::{Agents, Between, Plays, TokenLimits, Worlds, conversation_of};
use tamis_text::decode::IncrementalDecoder;
use tamis_text::transcript::{Difference, TurnTemplate, check_template};

use super::codec::Codec;
use super::foreign::StartedEnvironment;
use tamis_core::fault::Fault;

/// Slow environments that work at the same time.
const ENVIRONMENT_THREADS: usize = 64;

enum Place {
    /// Here, in a built-in game.
    Here(Box<EnvironmentMaker>),
    /// In an environment elsewhere.
    Elsewhere(StartedEnvironment),
    /// With tools.
    Tools {
        toolbox: Arc<Toolbox>,
        /// The workers of its functions, kept to be dropped with it.
        _workers: Option<StartedEnvironment>,
    },
    /// By a program.
    Program(Arc<ProgramHost>),
}

/// The environment of `environment`. Its observations are rendered by the model's chat template, or as
/// plain text if its style is plain.
pub struct RunWorlds {
    codec: Codec,
    /// How a conversation continues; `None`: an observation is bare text.
    template: Option<TurnTemplate>,
    is_plain: bool,
    context: Context,
    /// By the number of a prompt's environment.
    places: Vec<Place>,
    /// Most tokens of an episode in each of them.
    limits: Vec<TokenLimits>,
}

impl RunWorlds {
    /// The environment of a configuration; `None` if its prompts are answered once. `listener` gets
    /// warnings for the user.
    ///
    /// # Errors
    /// A chat template by which a conversation cannot continue; an environment, tools or a program that do
    /// not start.
    pub fn of(config: &Config, codec: &Codec, listener: &Arc<dyn Listener>) -> Result<Option<Self>, Fault> {
        let Some(environment) = config.played() else { return Ok(None) };
        let start = |environment: &EnvironmentConfig| -> Result<Place, Fault> {
            let maker = environment.maker();
            Ok(match maker.kind.world() {
                World::Game(_) => Place::Here(Box::new(maker)),
                World::Foreign(spec) => {
                    Place::Elsewhere(StartedEnvironment::start(environment, &spec, listener)?)
                }
                World::Tools(settings) => start_tools(environment, settings, listener)?,
                World::Program(settings) => Place::Program(Arc::new(start_program(settings)?)),
            })
        };
        let places: Vec<Place> = config.environments().map(start).collect::<Result<_, _>>()?;
        let schemas: Vec<Value> = places.iter().flat_map(Place::schemas).cloned().collect();
        if places.len() > 1 && !schemas.is_empty() {
            return Err(Fault::new(
                "an environment with tools must be the only one, but there are `more_environments`",
            )
            .with_hint("its tools would appear in the prompts of all: use it in a separate run"));
        }
        let codec = codec.clone().with_tools(&schemas);
        // Bare text continues as bare text.
        let is_plain = environment.style == EnvironmentStyle::Plain;
        let is_text = config.data.prompt_format == PromptFormat::Text || is_plain;
        let template = match codec.template().filter(|_| !is_text) {
            Some(template) => Some(
                check_template(
                    template,
                    codec.tokenizer(),
                    codec.template_arguments(),
                    codec.end_token_ids(),
                )
                .map_err(|error| {
                    Fault::new("the model's chat template cannot be used turn by turn").with_source(error)
                })?,
            ),
            None => None,
        };
        let limits = config
            .environments()
            .map(|environment| TokenLimits {
                whole: config.max_episode_length(environment),
                text: config.max_episode_text_length(environment),
            })
            .collect();
        let worlds = Self { codec, template, is_plain, context: environment.context(), places, limits };
        if worlds.template.is_none() && (!schemas.is_empty() || worlds.speaks_in_chat()) {
            return Err(Fault::new(format!(
                    "`environment.kind` {} needs conversations, but the model has no chat template, or prompts are bare text",
                    environment.kind
                )).with_hint("name a chat model in `model.path` or a template in `model.chat_template`; `environment.style: plain` uses \
                    bare text if there are no tools"));
        }
        Ok(Some(worlds))
    }

    fn speaks_in_chat(&self) -> bool {
        self.host().is_some() && !self.is_plain
    }

    fn host(&self) -> Option<&Arc<ProgramHost>> {
        match &self.places[..] {
            [Place::Program(host)] => Some(host),
            _ => None,
        }
    }

    fn place(&self, prompt: &Prompt) -> Option<&Place> {
        self.places.get(if self.places.len() > 1 { environment_of(prompt) } else { 0 })
    }

    /// Messages as bare text, one after the other.
    fn encode(&self, messages: &[Message], is_beginning: bool) -> Result<Between, String> {
        // Each is a line at least.
        let line = |message: &Message| {
            let line_end = if message.content.ends_with('\n') { "" } else { "\n" };
            format!("{}{line_end}", message.content)
        };
        let text: String = messages.iter().map(line).collect();
        let token_ids =
            self.codec.tokenizer().encode(&text, is_beginning).map_err(|error| error.to_string())?;
        Ok(Between { token_ids, text })
    }

    /// How a conversation of a prompt continues, by the variables of its row; `None`: an observation is
    /// bare text.
    fn template_of(&self, prompt: &Prompt) -> Result<Option<Cow<'_, TurnTemplate>>, String> {
        let Some(template) = &self.template else { return Ok(None) };
        if prompt.template_columns().next().is_none() {
            return Ok(Some(Cow::Borrowed(template)));
        }
        let arguments = self.codec.arguments_of(prompt).map_err(|error| error.to_string())?;
        Ok(Some(Cow::Owned(template.with_arguments(arguments))))
    }

    /// Between text and tokens, the tools of the environment in every prompt.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Whether a prompt is a level of a built-in game.
    pub fn is_game(&self, prompt: &Prompt) -> bool {
        matches!(self.place(prompt), Some(Place::Here(_)))
    }

    /// Lines for the log.
    pub fn notes(&self) -> Vec<String> {
        let of = |place: &Place| match place {
            Place::Here(_) | Place::Elsewhere(_) => Vec::new(),
            Place::Tools { toolbox: tools, .. } => {
                let named = |schema: &Value| schema["function"]["name"].as_str().map(str::to_owned);
                let names: Vec<String> = tools.schemas().iter().filter_map(named).collect();
                let mut notes = vec![format!("tools: {}", names.join(", "))];
                notes.extend(tools.protection());
                notes
            }
            Place::Program(host) => vec![format!("programs ask the policy at http://{}", host.address())],
        };
        self.places.iter().flat_map(of).collect()
    }

    /// How the template would write earlier answers differently from a transcript.
    pub fn differences(&self) -> &[Difference] {
        self.template.as_ref().map_or(&[], |template| template.differences())
    }
}

impl Place {
    fn schemas(&self) -> &[Value] {
        match self {
            Self::Here(_) | Self::Program(_) => &[],
            Self::Elsewhere(started) => &started.introduction().tools,
            Self::Tools { toolbox, .. } => toolbox.schemas(),
        }
    }

    /// Whether its results are not a function of keys.
    fn is_elsewhere(&self) -> bool {
        !matches!(self, Self::Here(_))
    }

    fn begin(&self, prompt: &Prompt, luck: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        match self {
            Self::Here(maker) => begin(maker, prompt, luck).map_err(|error| {
                EnvironmentFault::Broke(format!("its environment cannot be created: {error}"))
            }),
            Self::Elsewhere(started) => started.begin(prompt, luck),
            Self::Tools { toolbox, .. } => Ok(Some(toolbox.begin(luck))),
            Self::Program(_) => Ok(None),
        }
    }
}

fn start_tools(
    environment: &EnvironmentConfig,
    settings: &ToolSettings,
    listener: &Arc<dyn Listener>,
) -> Result<Place, Fault> {
    let start = |spec| StartedEnvironment::start(environment, &spec, listener);
    let started = settings.spec().map(start).transpose()?;
    let elsewhere = started.as_ref().map(StartedEnvironment::foreign);
    let tools = Toolbox::new(settings, elsewhere, environment.prompting.max_turns).map_err(|error| {
        Fault::new(format!("the tools of `environment` cannot be used: {error}")).with_hint(
            "`environment.functions` and \
            `environment.interpreter` define them, `environment.sandbox` their protection",
        )
    })?;
    Ok(Place::Tools { toolbox: Arc::new(tools), _workers: started })
}

fn start_program(settings: &ProgramEnvironmentSettings) -> Result<ProgramHost, Fault> {
    let ProgramEnvironmentSettings { argv, working_dir, timeout, max_calls, max_concurrent, model } =
        settings.clone();
    let settings = ProgramSettings {
        working_dir,
        model,
        timeout: timeout.0,
        max_calls,
        max_concurrent,
        ..ProgramSettings::new(argv)
    };
    // The caller polls, so no bell is needed.
    ProgramHost::start(settings, || ()).map_err(|error| {
        Fault::new(format!("the programs of `environment` cannot be run: {error}"))
            .with_hint("correct the setting that it names")
    })
}

impl Worlds for RunWorlds {
    fn begin(&self, prompt: &Prompt, luck: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        match self.place(prompt) {
            Some(place) => place.begin(prompt, luck),
            None => Ok(None),
        }
    }

    fn between(
        &self,
        prompt: &Prompt,
        conversation: &[Message],
        sampled: &[u32],
        shown: &[Message],
    ) -> Result<Between, String> {
        let tokenizer = self.codec.tokenizer();
        let Some(template) = self.template_of(prompt)? else { return self.encode(shown, false) };
        let continuation = template.continuation(tokenizer, conversation, shown, sampled);
        let continuation = continuation.map_err(|error| error.to_string())?;
        Ok(Between { token_ids: continuation.token_ids, text: continuation.text })
    }

    fn render(&self, prompt: &Prompt, conversation: &[Message]) -> Result<Between, String> {
        if self.template.is_none() {
            return self.encode(conversation, true);
        }
        let arguments = self.codec.arguments_of(prompt).map_err(|error| error.to_string())?;
        let rendered = self.codec.open_conversation(conversation, &arguments);
        let (text, token_ids) = rendered.map_err(|error| error.to_string())?;
        Ok(Between { token_ids, text })
    }

    fn may_fit(&self, num_bytes: usize, num_tokens: usize) -> bool {
        self.codec.tokenizer().may_fit(num_bytes, num_tokens)
    }

    fn limits(&self, prompt: &Prompt) -> Option<TokenLimits> {
        // The only one of a run plays every prompt.
        self.limits.get(environment_of(prompt)).or(self.limits.first()).copied()
    }

    fn context(&self) -> Context {
        self.context
    }

    fn is_slow(&self) -> bool {
        self.places.iter().any(Place::is_elsewhere)
    }

    fn take_warnings(&self) -> Vec<String> {
        let of = |place: &Place| match place {
            Place::Tools { toolbox, .. } => toolbox.take_warnings(),
            Place::Here(_) | Place::Elsewhere(_) | Place::Program(_) => Vec::new(),
        };
        self.places.iter().flat_map(of).collect()
    }

    fn is_elsewhere(&self, prompt: &Prompt) -> bool {
        self.place(prompt).is_some_and(Place::is_elsewhere)
    }
}

/// The role and text of a message of OpenAI's form.
fn plain(message: &Value) -> Message {
    let of = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    Message::new(of("role"), of("content"))
}

struct RunAgents {
    worlds: Arc<RunWorlds>,
    host: Arc<ProgramHost>,
}

impl Agents for RunAgents {
    fn host(&self) -> &ProgramHost {
        &self.host
    }

    /// `{"messages", "text" if the prompt is one, "ground_truth", "data_source", "luck", ...}` with the
    /// columns of its row.
    fn task(&self, prompt: &Prompt, luck: Key) -> Value {
        let mut task = prompt.columns.clone();
        let messages: Vec<Value> = conversation_of(prompt).iter().map(Message::to_value).collect();
        task.insert("messages".to_owned(), messages.into());
        if let PromptContent::Text(text) = &prompt.content {
            task.insert("text".to_owned(), text.as_str().into());
        }
        task.insert("ground_truth".to_owned(), json!(prompt.ground_truth));
        task.insert("data_source".to_owned(), json!(prompt.data_source));
        // A number that every language reads as one.
        task.insert("luck".to_owned(), (luck.bits(0) >> 32).into());
        Value::Object(task)
    }

    fn render_chat(&self, prompt: &Prompt, messages: &[Value], tools: &[Value]) -> Result<Between, String> {
        let worlds = &self.worlds;
        if worlds.template.is_none() {
            let messages: Vec<Message> = messages.iter().map(plain).collect();
            return worlds.encode(&messages, true);
        }
        let mut arguments = worlds.codec.arguments_of(prompt).map_err(|error| error.to_string())?;
        // A call lists its own tools.
        arguments.shift_remove(TOOLS_COLUMN);
        if !tools.is_empty() {
            arguments.insert(TOOLS_COLUMN.to_owned(), tools.to_vec().into());
        }
        let rendered = worlds.codec.open_conversation(messages, &arguments);
        let (text, token_ids) = rendered.map_err(|error| error.to_string())?;
        Ok(Between { token_ids, text })
    }

    fn continue_chat(
        &self,
        prompt: &Prompt,
        conversation: &[Value],
        sampled: &[u32],
        new: &[Value],
        _tools: &[Value],
    ) -> Result<Between, String> {
        let Some(template) = self.worlds.template_of(prompt)? else {
            let new: Vec<Message> = new.iter().map(plain).collect();
            return self.worlds.encode(&new, false);
        };
        let continuation = template.continuation(self.worlds.codec.tokenizer(), conversation, new, sampled);
        let continuation = continuation.map_err(|error| error.to_string())?;
        Ok(Between { token_ids: continuation.token_ids, text: continuation.text })
    }

    fn token_texts(&self, tokens: &[u32]) -> Vec<String> {
        let (tokenizer, mut decoder) = (self.worlds.codec.tokenizer(), IncrementalDecoder::new(false));
        let text = |&token: &u32| decoder.push(tokenizer, token).unwrap_or_default().to_owned();
        tokens.iter().map(text).collect()
    }

    fn read_answer(&self, text: &str, index: usize, has_tools: bool) -> ChatAnswer {
        let mut answer = ChatAnswer::text(text, ChatFinish::Stop);
        if !has_tools {
            return answer;
        }
        // A program gets the calls that can be parsed; it sees the rest as text.
        let (rest, calls) = split_tool_calls(text);
        answer.text = rest;
        answer.tool_calls = calls
            .into_iter()
            .enumerate()
            .map(|(place, call)| ChatToolCall {
                id: tool_call_id(index, place),
                name: call.name,
                arguments: call.arguments.to_string(),
            })
            .collect();
        answer
    }
}

/// The trajectories that a run plays.
pub fn plays(config: &Config, worlds: Option<Arc<RunWorlds>>) -> Plays {
    // The engine's samples are not journalled.
    let finishes = !config.samples_at_servers();
    let most = TokenLimits { whole: config.max_completion_length(), text: config.max_text_length() };
    let Some(worlds) = worlds else { return Plays::none() };
    match worlds.host().cloned() {
        Some(host) => Plays::of_agents(Arc::new(RunAgents { worlds, host }), most, finishes),
        None => Plays::new(worlds, most, finishes, ENVIRONMENT_THREADS),
    }
}
