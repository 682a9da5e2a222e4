//! The environments of a run: made from prompts, and rendered between two answers.

use std::sync::Arc;

use tamis_config::Config;
use tamis_core::random::Key;
use tamis_data::prompt::{Message, Prompt};
use tamis_data::prompt_format::PromptFormat;
use tamis_env::environment::context::Context;
use tamis_env::environment::kind::EnvironmentMaker;
use tamis_env::environment::{Environment, EnvironmentFault};
use tamis_env::task::environment::begin;
use tamis_rollout::{Between, Plays, Worlds};
use tamis_text::transcript::{Difference, TurnTemplate, check_template};

use super::codec::Codec;
use super::foreign::StartedEnvironment;
use crate::assemble::AssembleError;

/// Slow environments that work at the same time.
const ENVIRONMENT_THREADS: usize = 64;

/// The environment of `data.task: environment`, whose observations are rendered by the model's chat template, or as
/// they are where the environment speaks plainly.
#[derive(Clone)]
pub struct RunWorlds {
    maker: EnvironmentMaker,
    codec: Codec,
    /// How a conversation goes on; `None`: an observation is bare text.
    template: Option<TurnTemplate>,
    context: Context,
    /// Where it is played elsewhere.
    elsewhere: Option<Arc<StartedEnvironment>>,
}

impl RunWorlds {
    /// Of a configuration; `None` where its prompts are answered once.
    ///
    /// # Errors
    /// A chat template by which a conversation cannot go on; an environment elsewhere that does not come up.
    pub fn of(config: &Config, codec: &Codec) -> Result<Option<Self>, AssembleError> {
        let Some(environment) = config.played() else { return Ok(None) };
        // Bare text goes on as bare text.
        let is_text = config.data.prompt_format == PromptFormat::Text;
        let template = match codec.template().filter(|_| !is_text) {
            Some(template) => Some(check_template(
                template,
                codec.tokenizer(),
                codec.template_arguments(),
                codec.end_token_ids(),
            )?),
            None => None,
        };
        let (maker, context) = (environment.maker(), environment.context());
        let start = |spec| StartedEnvironment::start(environment, &spec).map(Arc::new);
        let elsewhere = maker.foreign().map(start).transpose()?;
        Ok(Some(Self { maker, codec: codec.clone(), template, context, elsewhere }))
    }

    /// Messages as bare text, one after the other.
    fn encode(&self, messages: &[Message], is_beginning: bool) -> Result<Between, String> {
        let line_end = if self.elsewhere.is_some() { "\n" } else { "" };
        let text: String = messages.iter().map(|message| format!("{}{line_end}", message.content)).collect();
        let token_ids =
            self.codec.tokenizer().encode(&text, is_beginning).map_err(|error| error.to_string())?;
        Ok(Between { token_ids, text })
    }

    /// What makes its environments.
    pub fn maker(&self) -> &EnvironmentMaker {
        &self.maker
    }

    /// What the template would write otherwise about earlier answers than a transcript has it.
    pub fn differences(&self) -> &[Difference] {
        self.template.as_ref().map_or(&[], |template| template.differences())
    }
}

impl Worlds for RunWorlds {
    fn begin(&self, prompt: &Prompt, luck: Key) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        if let Some(elsewhere) = &self.elsewhere {
            return elsewhere.begin(prompt, luck);
        }
        begin(&self.maker, prompt, luck)
            .map_err(|error| EnvironmentFault::Broke(format!("its environment cannot be made: {error}")))
    }

    fn between(
        &self,
        conversation: &[Message],
        sampled: &[u32],
        shown: &[Message],
    ) -> Result<Between, String> {
        let tokenizer = self.codec.tokenizer();
        let Some(template) = &self.template else { return self.encode(shown, false) };
        let continuation = template.continuation(tokenizer, conversation, shown, sampled);
        let continuation = continuation.map_err(|error| error.to_string())?;
        Ok(Between { token_ids: continuation.token_ids, text: continuation.text })
    }

    fn render(&self, conversation: &[Message]) -> Result<Between, String> {
        if self.template.is_none() {
            return self.encode(conversation, true);
        }
        let (text, token_ids) =
            self.codec.open_conversation(conversation).map_err(|error| error.to_string())?;
        Ok(Between { token_ids, text })
    }

    fn context(&self) -> Context {
        self.context
    }

    fn is_slow(&self) -> bool {
        self.elsewhere.is_some()
    }
}

/// The trajectories that a run plays.
pub fn plays(config: &Config, worlds: Option<Arc<RunWorlds>>) -> Plays {
    match worlds {
        // What the engine sampled is in no journal.
        Some(worlds) => Plays::new(
            worlds,
            config.max_completion_length(),
            !config.samples_at_servers(),
            ENVIRONMENT_THREADS,
        ),
        None => Plays::none(),
    }
}
