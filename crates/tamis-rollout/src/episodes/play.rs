//! A trajectory while an environment plays it: an answer goes in, and the request of the next one comes out.

use std::sync::Arc;

use tamis_core::caught::catch;
use tamis_core::group::FinishReason;
use tamis_data::prompt::{Message, Prompt};
use tamis_env::environment::{Environment, EnvironmentFault, EpisodeEnd, TurnOutcome};

use super::told::{End, Told};
use super::{Between, LUCK, TokenLimits, Worlds, conversation_of, message};
use crate::generator::{Sample, SampleId, SampleRequest};

pub(super) struct Play {
    request: SampleRequest,
    prompt: Arc<Prompt>,
    environment: Box<dyn Environment>,
    conversation: Vec<Message>,
    /// The turn that is being answered.
    turn: u32,
    /// Whether an answer got a reward.
    is_scored: bool,
    pub(super) told: Told,
}

/// How a play continues after an answer.
pub(super) enum Next {
    Ask(SampleRequest),
    Over(Sample),
    Failed(EnvironmentFault),
}

impl Play {
    pub(super) fn new(
        request: SampleRequest,
        prompt: Arc<Prompt>,
        environment: Box<dyn Environment>,
    ) -> Self {
        Self {
            request,
            environment,
            conversation: conversation_of(&prompt),
            prompt,
            turn: 0,
            is_scored: false,
            told: Told::new(),
        }
    }

    /// The request of the first answer: after the prompt, or after the environment's own opening. If
    /// the opening has no system message, it begins with that of its prompt.
    pub(super) fn open(
        &mut self,
        worlds: &dyn Worlds,
        limits: TokenLimits,
    ) -> Result<SampleRequest, EnvironmentFault> {
        let opening = self.environment.opening().map(|opening| with_system_of(&self.conversation, opening));
        let Some(opening) = opening.filter(|opening| *opening != self.conversation) else {
            return Ok(self.request.clone());
        };
        let unseen = |reason| {
            EnvironmentFault::Broke(format!(
                "the first message of its environment cannot be given to the model: {reason}"
            ))
        };
        let (num_bytes, left) = (bytes_of(&opening), self.room(&Between::default(), limits, true));
        if !worlds.may_fit(num_bytes, left) {
            return Err(unseen(format!("its {num_bytes} bytes are more than {left} tokens hold")));
        }
        let more = worlds.render(&self.prompt, &opening).map_err(unseen)?;
        if more.token_ids == *self.request.prompt_token_ids {
            self.conversation = opening;
            return Ok(self.request.clone());
        }
        let room = self.room(&more, limits, true);
        if room == 0 {
            return Err(unseen(format!("its {} tokens leave no room for an answer", more.token_ids.len())));
        }
        self.told.begin_anew();
        self.told.append(&more);
        self.conversation = opening;
        let request = self.ask(room);
        self.turn = 0;
        Ok(SampleRequest { id: self.request.id, ..request })
    }

    /// Room for an answer after this text, which either begins a text or continues one.
    fn room(&self, more: &Between, limits: TokenLimits, is_new: bool) -> usize {
        let more = more.token_ids.len();
        let prompt = self.request.prompt_token_ids.len();
        let seen = if is_new { 0 } else { self.told.seen().len() };
        // The prompt is part of a text that was rendered anew; otherwise it is not among these tokens.
        let has_prompt = is_new || self.told.context_start.is_some();
        let of_text = limits.text + if has_prompt { prompt } else { 0 };
        let left = of_text.saturating_sub(seen + more);
        left.min(limits.whole.saturating_sub(self.told.token_ids().len() + more))
    }

    /// Takes an answer in; an error of the environment fails the trajectory.
    pub(super) fn take(&mut self, answer: &Sample, worlds: &dyn Worlds, limits: TokenLimits) -> Next {
        let taken = catch(|| {
            self.told.hear(answer);
            self.play(answer, worlds, limits)
        });
        match taken {
            Ok(Ok(next)) => next,
            Ok(Err(fault)) => Next::Failed(fault),
            Err(panic) => Next::Failed(broken(&panic)),
        }
    }

    fn play(
        &mut self,
        answer: &Sample,
        worlds: &dyn Worlds,
        limits: TokenLimits,
    ) -> Result<Next, EnvironmentFault> {
        let outcome = self.environment.act(&answer.text);
        if let Some(fault) = outcome.fault {
            return Err(fault);
        }
        let end = outcome.end;
        self.note(outcome);
        if let Some(end) = end {
            // An answer without tool calls ends an episode, and is not judged; one that was cut may
            // have had calls later.
            let is_full = answer.finish_reason == FinishReason::Length && !self.is_scored;
            return Ok(Next::Over(self.finish(end == EpisodeEnd::Truncated || is_full, false)));
        }
        let shown = self.environment.messages();
        self.conversation.push(message("assistant", &answer.text));
        let context = worlds.context();
        let left = self.room(&Between::default(), limits, !context.is_growing());
        if !worlds.may_fit(bytes_of(&shown), left) {
            return self.cut();
        }
        let unseen = |reason| {
            EnvironmentFault::Broke(format!(
                "the message of its environment cannot be given to the model: {reason}"
            ))
        };
        let more = if context.is_growing() {
            worlds.between(&self.prompt, &self.conversation, &answer.token_ids, &shown).map_err(unseen)?
        } else {
            let view = context.view(&[&self.conversation[..], &shown[..]].concat());
            worlds.render(&self.prompt, &view).map_err(unseen)?
        };
        let room = self.room(&more, limits, !context.is_growing());
        if room == 0 {
            return self.cut();
        }
        if !context.is_growing() {
            self.told.begin_anew();
        }
        self.told.append(&more);
        self.told.note_shown(&shown);
        self.conversation.extend(shown);
        Ok(Next::Ask(self.ask(room)))
    }

    /// The request of the next answer, with this room.
    fn ask(&mut self, room: usize) -> SampleRequest {
        self.turn += 1;
        let mut sampling = Arc::clone(&self.request.sampling);
        if sampling.max_response_length > room {
            Arc::make_mut(&mut sampling).max_response_length = room;
        }
        // An answer that is journalled under this key fits only exactly these tokens before it.
        let key = self.request.key.with(LUCK - u64::from(self.turn));
        let key = self.told.token_ids().iter().fold(key, |key, &token| key.with(u64::from(token)));
        let prompt_token_ids = match self.told.context_start {
            Some(_) => Arc::from(self.told.seen()),
            None => [&*self.request.prompt_token_ids, self.told.seen()].concat().into(),
        };
        SampleRequest {
            id: SampleId { turn: self.turn, ..self.request.id },
            prompt_token_ids,
            // A text that was rendered anew has no images.
            images: if self.told.context_start.is_some() {
                Arc::default()
            } else {
                self.request.images.clone()
            },
            key,
            sampling,
            ..self.request.clone()
        }
    }

    /// Records the outcome of the last answer.
    fn note(&mut self, outcome: TurnOutcome) {
        self.is_scored |= outcome.reward.is_some();
        if let Some(turn) = self.told.turns.last_mut() {
            turn.reward += outcome.reward.unwrap_or(0.0);
            turn.info.extend(outcome.info.into_iter().map(|(name, value)| (name.into_owned(), value)));
        }
    }

    /// Ends it if there is no room for another answer.
    fn cut(&mut self) -> Result<Next, EnvironmentFault> {
        if let Some(mut outcome) = self.environment.cut() {
            if let Some(fault) = outcome.fault.take() {
                return Err(fault);
            }
            self.note(outcome);
        }
        Ok(Next::Over(self.finish(true, true)))
    }

    fn finish(&mut self, is_cut: bool, is_full: bool) -> Sample {
        let (is_success, is_unscored) = (self.environment.is_success(), !self.is_scored);
        self.told.finish(End { is_success, is_unscored, is_cut, is_full })
    }
}

/// The environment's opening, after the system messages of its prompt if it has none.
fn with_system_of(prompt: &[Message], mut opening: Vec<Message>) -> Vec<Message> {
    let num_system = prompt.iter().take_while(|message| message.is_system()).count();
    if !opening.first().is_some_and(Message::is_system) {
        opening.splice(..0, prompt[..num_system].iter().cloned());
    }
    opening
}

fn bytes_of(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.content.len()).sum()
}

pub(super) fn broken(panic: &str) -> EnvironmentFault {
    EnvironmentFault::Broke(format!("its environment crashed: {panic}"))
}
