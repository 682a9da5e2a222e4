//! Episodes that programs play: a program calls the policy like any model, and the answers become one
//! trajectory.
//!
//! A call whose conversation continues an earlier one extends that one's text: what comes between is
//! appended as the template renders it, and the policy's tokens are never tokenised again. Any other
//! call begins its own text in the trajectory, which shares its reward. Texts are in the order of the
//! calls.
//!
//! All texts together share one token limit. A call under way reserves room for the longest answer that
//! it may get, and leaves the unused part to the calls behind it. A call that would get less room than
//! it asks for waits for the answers before it, and the calls behind wait for it. So the room of a call
//! depends only on the order of the calls, and not on how long answers take.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;
use tamis_core::group::FinishReason;
use tamis_core::random::Key;
use tamis_core::schedule::Spent;
use tamis_data::prompt::{Message, Prompt};

use super::told::{End, Told};
use super::{Between, Episodes, LUCK, TokenLimits};
use crate::generator::{
    AbortScope, FailureKind, GeneratorError, GeneratorEvent, Sample, SampleId, SampleRequest,
};
use crate::programs::{
    CallNumber, ChatAnswer, ChatCall, ChatError, ChatFinish, ChatLogprob, EpisodeNumber, ProgramEvent,
    ProgramFailure, ProgramHost, ProgramOutcome, RefusedCalls, for_template,
};

/// The programs of a run, and how their conversations are rendered.
pub trait Agents: Send + Sync {
    /// The host that runs the programs.
    fn host(&self) -> &ProgramHost;

    /// The task of a prompt's program. `luck` is the key of the random draws for this member only.
    fn task(&self, prompt: &Prompt, luck: Key) -> Value;

    /// Renders a conversation of a prompt's program from its start to the start of the next answer.
    ///
    /// # Errors
    /// A message, if it cannot be rendered.
    fn render_chat(&self, prompt: &Prompt, messages: &[Value], tools: &[Value]) -> Result<Between, String>;

    /// Renders what comes between an answer and the next one: `conversation` ends in the answer, whose
    /// tokens are `sampled`, and `new` follows it.
    ///
    /// # Errors
    /// A message, if it cannot be rendered.
    fn continue_chat(
        &self,
        prompt: &Prompt,
        conversation: &[Value],
        sampled: &[u32],
        new: &[Value],
        tools: &[Value],
    ) -> Result<Between, String>;

    /// The text that each token of an answer adds.
    fn token_texts(&self, tokens: &[u32]) -> Vec<String>;

    /// Reads the policy's text for a program, with tool calls separated; `index` is the number of the
    /// call in its episode.
    fn read_answer(&self, text: &str, index: usize, has_tools: bool) -> ChatAnswer;
}

struct Asked {
    call: CallNumber,
    chat: ChatCall,
    /// All tokens that the policy sees.
    context: Arc<[u32]>,
    /// The call whose text it extends, with what comes between; otherwise its own beginning.
    after: Option<usize>,
    more: Between,
    answer: Option<(Sample, ChatAnswer)>,
    is_abandoned: bool,
    /// Whether the generator is done with one that was abandoned.
    is_over: bool,
    /// Whether the program itself wanted no longer answer.
    is_short: bool,
    /// Tokens that its answer may have.
    most: usize,
}

impl Asked {
    /// Number of tokens of its answer; the most it may have if that is not known yet.
    fn num_answered(&self) -> usize {
        self.answer.as_ref().map_or(self.most, |(sample, _)| sample.token_ids.len())
    }

    /// Whether an answer may still come.
    fn is_under_way(&self) -> bool {
        self.answer.is_none() && !self.is_over
    }
}

/// How a call continues the trajectory.
enum Start {
    /// It continues the last answer, with what comes between.
    GoesOn,
    /// It is the prompt, which precedes the trajectory.
    Prompt,
    /// From the beginning of a text.
    Anew,
}

impl Start {
    /// Number of tokens before the answer to it.
    fn num_given(&self, more: &Between, context: &[u32]) -> usize {
        match self {
            Self::GoesOn => more.token_ids.len(),
            Self::Prompt => 0,
            Self::Anew => context.len(),
        }
    }
}

/// A trajectory that a program plays.
pub(super) struct Agent {
    request: SampleRequest,
    episode: EpisodeNumber,
    calls: Vec<Asked>,
    /// Calls that wait until it is known how much room is left to them, in their order.
    queue: VecDeque<(CallNumber, ChatCall)>,
    /// Whether no call has changed since the first of them was examined.
    is_queue_known: bool,
    /// Tokens of answers that were not received.
    lost: Spent,
    /// Message to the last call that had no room or could not be rendered.
    refusal: Option<String>,
    /// The outcome of its program, while its remaining calls still run.
    ended: Option<(Result<ProgramOutcome, ProgramFailure>, RefusedCalls)>,
}

impl Agent {
    /// Tokens spent so far, counted as if it ended well, with the unreceived answers and the part of
    /// the answer to an unfinished call (by place).
    fn spent_with(&self, unanswered: Option<(usize, Spent)>) -> Spent {
        let unanswered = unanswered.filter(|(_, spent)| spent.turns > 0);
        let answer_of = |(place, asked): (usize, &Asked)| {
            let begun = unanswered.filter(|(of, _)| *of == place).map(|(_, spent)| spent.tokens as usize);
            let whole = asked.answer.as_ref().filter(|_| !asked.is_abandoned);
            whole.map(|(sample, _)| sample.token_ids.len()).or(begun)
        };
        let answered = self.calls.iter().enumerate().filter_map(answer_of).count() as u64;
        let (tokens, _) = self.num_tokens_of(answer_of);
        self.lost + Spent { tokens: tokens as u64, turns: answered }
    }

    fn new(request: SampleRequest, episode: EpisodeNumber) -> Self {
        Self {
            request,
            episode,
            calls: Vec::new(),
            queue: VecDeque::new(),
            is_queue_known: false,
            lost: Spent::default(),
            refusal: None,
            ended: None,
        }
    }

    /// How a call continues the trajectory; `last` is the call whose answer precedes it.
    fn start(&self, after: Option<usize>, context: &[u32], last: Option<usize>) -> Start {
        match after {
            Some(_) if last == after => Start::GoesOn,
            None if last.is_none() && *context == *self.request.prompt_token_ids => Start::Prompt,
            _ => Start::Anew,
        }
    }

    /// Number of tokens of the trajectory if all calls get their longest answers and one more call
    /// begins this way. There are no more if a call is aborted instead: nothing continues it.
    fn num_tokens_with(&self, after: Option<usize>, more: &Between, context: &[u32]) -> usize {
        let longest = |(_, asked): (usize, &Asked)| (!asked.is_abandoned).then(|| asked.num_answered());
        let (sum, last) = self.num_tokens_of(longest);
        sum + self.start(after, context, last).num_given(more, context)
    }

    /// Number of tokens of the trajectory with only the calls that have an answer (`answer` returns its
    /// length), and the last of these calls.
    fn num_tokens_of(&self, answer: impl Fn((usize, &Asked)) -> Option<usize>) -> (usize, Option<usize>) {
        let (mut sum, mut last) = (0, None);
        for (place, asked) in self.calls.iter().enumerate() {
            let Some(num_answered) = answer((place, asked)) else { continue };
            let start = self.start(asked.after, &asked.context, last);
            sum += start.num_given(&asked.more, &asked.context) + num_answered;
            last = Some(place);
        }
        (sum, last)
    }

    /// The request of the next call, which is recorded, or why it cannot be answered. `None` if no call
    /// waits, or if the next one waits for answers.
    fn ask_next(
        &mut self,
        agents: &dyn Agents,
        limits: TokenLimits,
    ) -> Option<(CallNumber, Result<SampleRequest, ChatError>)> {
        if self.is_queue_known {
            return None;
        }
        let (call, chat) = self.queue.pop_front()?;
        match self.ask(agents, call, chat, limits) {
            Ok(Ok(request)) => Some((call, Ok(request))),
            Ok(Err(waiting)) => {
                self.queue.push_front((call, waiting));
                self.is_queue_known = true;
                None
            }
            Err(error) => Some((call, Err(error))),
        }
    }

    /// The request of a call, which is recorded; the call itself if it has to wait for other answers.
    fn ask(
        &mut self,
        agents: &dyn Agents,
        call: CallNumber,
        chat: ChatCall,
        limits: TokenLimits,
    ) -> Result<Result<SampleRequest, ChatCall>, ChatError> {
        let Some(prompt) = self.request.prompt.clone() else {
            return Err(ChatError::Request("its program has no prompt".to_owned()));
        };
        let earlier = self.calls.iter().enumerate().rev().find_map(|(place, asked)| {
            let (sample, answer) = asked.answer.as_ref()?;
            let new = chat.after(&asked.chat, answer)?;
            let of_template = |messages: &[Value]| messages.iter().map(for_template).collect::<Vec<_>>();
            let mut conversation = of_template(&asked.chat.messages);
            conversation.push(for_template(&answer.message()));
            let more = agents
                .continue_chat(&prompt, &conversation, &sample.token_ids, &of_template(new), &chat.tools)
                .ok()?;
            Some((place, more))
        });
        let (after, more, context) = if let Some((place, more)) = earlier {
            let asked = &self.calls[place];
            let sampled = asked.answer.as_ref().map_or(&[][..], |(sample, _)| &sample.token_ids);
            let context = [&asked.context, sampled, &more.token_ids].concat();
            (Some(place), more, context)
        } else {
            let messages: Vec<Value> = chat.messages.iter().map(for_template).collect();
            let refused =
                |reason| ChatError::Request(format!("the conversation cannot be rendered: {reason}"));
            let more = agents.render_chat(&prompt, &messages, &chat.tools).map_err(refused)?;
            let context = more.token_ids.clone();
            (None, more, context)
        };
        let most = self.request.prompt_token_ids.len() + limits.text;
        let mut sampling = Arc::clone(&self.request.sampling);
        let wanted = most
            .saturating_sub(context.len())
            .min(sampling.max_response_length)
            .min(chat.max_tokens.unwrap_or(usize::MAX).max(1));
        // All texts together have a bound, too: they pass through the learner as one trajectory.
        let left = limits.whole.saturating_sub(self.num_tokens_with(after, &more, &context));
        let is_waited_for = |asked: &Asked| asked.is_under_way() && !asked.is_abandoned;
        if left < wanted && self.calls.iter().any(is_waited_for) {
            return Ok(Err(chat));
        }
        let longest = wanted.min(left);
        if longest == 0 || context.is_empty() {
            return Err(ChatError::TooLong(format!(
                "the conversation has {} tokens; this model's maximum context length is {most} tokens, and all \
                 conversations of an episode have {} at most, of which {left} are left to an answer",
                context.len(),
                limits.whole
            )));
        }
        let is_short = chat.max_tokens.is_some_and(|most| most <= longest);
        if longest < sampling.max_response_length || !chat.stop.is_empty() {
            let own = Arc::make_mut(&mut sampling);
            own.max_response_length = longest;
            own.stop.extend(chat.stop.iter().cloned());
        }
        // A repeated call gets a new answer; otherwise the time of a call changes nothing.
        let context: Arc<[u32]> = context.into();
        let repeats = self.calls.iter().filter(|asked| asked.context == context).count() as u64;
        let key = self.request.key.with(LUCK - 1).with(repeats);
        let key = context.iter().fold(key, |key, &token| key.with(u64::from(token)));
        self.calls.push(Asked {
            call,
            chat,
            context: Arc::clone(&context),
            after,
            more,
            answer: None,
            is_abandoned: false,
            is_over: false,
            is_short,
            most: longest,
        });
        Ok(Ok(SampleRequest {
            id: SampleId { turn: self.calls.len() as u32, ..self.request.id },
            images: if *context == *self.request.prompt_token_ids {
                self.request.images.clone()
            } else {
                Arc::default()
            },
            prompt_token_ids: context,
            key,
            sampling,
            ..self.request.clone()
        }))
    }

    /// The trajectory of the answered calls; `None` if there are none.
    fn finish(&self, outcome: ProgramOutcome, refused: RefusedCalls) -> Option<Sample> {
        let (mut told, mut last, mut is_cut) = (Told::new(), None, false);
        for (place, asked) in self.calls.iter().enumerate() {
            let Some((sample, _)) = asked.answer.as_ref().filter(|_| !asked.is_abandoned) else { continue };
            match self.start(asked.after, &asked.context, last) {
                Start::GoesOn => {
                    told.append(&asked.more);
                    let before = asked.after.map_or(0, |after| self.calls[after].chat.messages.len() + 1);
                    let shown: Vec<Message> = asked.chat.messages[before..]
                        .iter()
                        .filter_map(|message| {
                            let of = |key: &str| message[key].as_str().map(str::to_owned);
                            Some(Message::new(of("role")?, of("content")?))
                        })
                        .collect();
                    told.note_shown(&shown);
                }
                Start::Prompt => {}
                Start::Anew => {
                    told.begin_anew();
                    // If it extended a text that is not the last one, its own text begins with all of
                    // that.
                    let text = if asked.after.is_none() { asked.more.text.clone() } else { String::new() };
                    told.append(&Between { token_ids: asked.context.to_vec(), text });
                }
            }
            told.hear(sample);
            is_cut |= sample.finish_reason == FinishReason::Length;
            last = Some(place);
        }
        let turn = told.turns.last_mut()?;
        turn.reward = outcome.reward.unwrap_or(0.0);
        turn.info.extend(outcome.info);
        turn.info.insert("num_calls_refused".to_owned(), refused.total() as f64);
        turn.info.insert("num_calls_too_long".to_owned(), refused.too_long as f64);
        let end = End {
            is_success: outcome.success.or(outcome.reward.map(|reward| reward > 0.0)),
            is_unscored: outcome.reward.is_none(),
            is_cut,
            is_full: is_cut,
        };
        Some(Sample { lost: self.lost, ..told.finish(end) })
    }
}

impl Episodes<'_> {
    /// Starts the program of a trajectory.
    pub(super) fn begin_agent(&mut self, request: SampleRequest) {
        let (Some(agents), Some(prompt)) = (&self.plays.agents, &request.prompt) else { return };
        let episode = agents.host().begin(&agents.task(prompt, request.key.with(LUCK)));
        self.plays.played.insert(request.id, Agent::new(request, episode));
    }

    /// Polls the programs' calls and ends.
    pub(super) fn hear_agents(&mut self) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        let Some(agents) = self.plays.agents.clone() else { return Ok(Vec::new()) };
        let mut told = Vec::new();
        for event in agents.host().take_events() {
            let episode = event.episode();
            let found = self.plays.played.iter_mut().find(|(_, agent)| agent.episode == episode);
            let Some((&id, agent)) = found else { continue };
            match event {
                ProgramEvent::Asked { call, chat, .. } => agent.queue.push_back((call, chat)),
                ProgramEvent::Abandoned { call, .. } => {
                    agent.queue.retain(|(waiting, _)| *waiting != call);
                    agent.is_queue_known = false;
                    if let Some(place) = agent.calls.iter().position(|asked| asked.call == call) {
                        agent.calls[place].is_abandoned = true;
                        let turn = place as u32 + 1;
                        self.generator.abort(AbortScope::Sample(SampleId { turn, ..id }));
                    }
                }
                ProgramEvent::Ended { outcome, refused, .. } => {
                    agent.ended = Some((outcome, refused));
                    agent.queue.clear();
                    for (turn, asked) in (1..).zip(&mut agent.calls).filter(|(_, asked)| asked.is_under_way())
                    {
                        if !std::mem::replace(&mut asked.is_abandoned, true) {
                            self.generator.abort(AbortScope::Sample(SampleId { turn, ..id }));
                        }
                    }
                    told.extend(self.finish_agent(id));
                }
            }
        }
        self.ask_for_agents(&*agents)?;
        match agents.host().all_refused() {
            Some(last) => Err(GeneratorError::Refused { last }),
            None => Ok(told),
        }
    }

    /// Hands on the calls that wait, as far as the room for them is known.
    fn ask_for_agents(&mut self, agents: &dyn Agents) -> Result<(), GeneratorError> {
        let limits = self.plays.limits;
        for agent in self.plays.played.values_mut() {
            while let Some((call, asked)) = agent.ask_next(agents, limits) {
                match asked {
                    Ok(request) => self.generator.submit(request)?,
                    Err(error) => {
                        agent.refusal = Some(error.to_string());
                        agents.host().answer(call, Err(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// The event of a trajectory whose program has ended, once all its remaining calls have ended: only
    /// then is their cost known.
    fn finish_agent(&mut self, id: SampleId) -> Option<GeneratorEvent> {
        let agent = self.plays.played.get_mut(&id)?;
        if agent.calls.iter().any(Asked::is_under_way) {
            return None;
        }
        let (outcome, refused) = agent.ended.take()?;
        let agent = self.plays.played.remove(&id)?;
        let finished = outcome.and_then(|outcome| {
            agent.finish(outcome, refused).ok_or_else(|| {
                let last = agent.refusal.as_ref().map(|last| format!("; the last one with: {last}"));
                format!("none of its calls was answered{}", last.unwrap_or_default()).into()
            })
        });
        Some(match finished {
            Ok(sample) => GeneratorEvent::Sampled { id, sample },
            Err(failure) => {
                let kind = if failure.is_late {
                    FailureKind::EnvironmentTimedOut
                } else {
                    FailureKind::EnvironmentBroke
                };
                let reason = format!("its program: {failure}");
                GeneratorEvent::Failed { id, kind, reason, spent: agent.spent_with(None) }
            }
        })
    }

    /// Aborts the calls that a program still waits for, except the call of a turn that has ended.
    fn abort_calls(&mut self, id: SampleId, agent: &Agent, ended: Option<u32>) {
        for (turn, asked) in (1..).zip(&agent.calls) {
            if asked.is_under_way() && Some(turn) != ended {
                let call = SampleId { turn, ..id };
                self.plays.late.insert(call);
                if !asked.is_abandoned {
                    self.generator.abort(AbortScope::Sample(call));
                }
            }
        }
    }

    /// Turns an event of a program's call into one of its trajectory; returns the event if it is no
    /// such call's.
    #[expect(clippy::result_large_err, reason = "it is handed on")]
    pub(super) fn take_for_agent(
        &mut self,
        event: GeneratorEvent,
    ) -> Result<Option<GeneratorEvent>, GeneratorEvent> {
        let (GeneratorEvent::Sampled { id, .. }
        | GeneratorEvent::Failed { id, .. }
        | GeneratorEvent::Aborted { id, .. }) = event
        else {
            return Err(event);
        };
        if self.plays.late.remove(&id) {
            return Ok(None);
        }
        let whole = SampleId { turn: 0, ..id };
        let place = (id.turn as usize).checked_sub(1);
        let found = self.plays.agents.clone().zip(place).zip(self.plays.played.get_mut(&whole));
        let Some(((agents, place), agent)) = found else { return Err(event) };
        agent.is_queue_known = false;
        let Some(asked) = agent.calls.get_mut(place).filter(|asked| asked.is_under_way()) else {
            return Ok(None);
        };
        if asked.is_abandoned {
            asked.is_over = true;
            // The program has abandoned it itself.
            agent.lost += match event {
                GeneratorEvent::Sampled { sample, .. } => Spent::on_answer(sample.token_ids.len() as u64),
                GeneratorEvent::Failed { spent, .. } | GeneratorEvent::Aborted { spent, .. } => spent,
                GeneratorEvent::Published { .. } => Spent::default(),
            };
            return Ok(self.finish_agent(whole));
        }
        if let GeneratorEvent::Sampled { mut sample, .. } = event {
            let mut said = agents.read_answer(&sample.text, place, !asked.chat.tools.is_empty());
            said.finish = match sample.finish_reason {
                FinishReason::Stop => ChatFinish::Stop,
                FinishReason::Length => ChatFinish::Length,
            };
            if asked.is_short {
                // As long as requested, so it is not cut off.
                sample.finish_reason = FinishReason::Stop;
            }
            (said.prompt_tokens, said.completion_tokens) = (asked.context.len(), sample.token_ids.len());
            if asked.chat.logprobs {
                let tokens = agents.token_texts(&sample.token_ids).into_iter().zip(&sample.logprobs);
                said.logprobs = tokens.map(|(token, &logprob)| ChatLogprob { token, logprob }).collect();
            }
            if agents.host().answer(asked.call, Ok(said.clone())) {
                asked.answer = Some((sample, said));
            } else {
                // It was not received.
                (asked.is_abandoned, asked.is_over) = (true, true);
                agent.lost += Spent::on_answer(sample.token_ids.len() as u64);
            }
            return Ok(None);
        }
        // A call that cannot be generated fails the trajectory; one aborted from above aborts it.
        let Some(agent) = self.plays.played.remove(&whole) else { return Ok(None) };
        agents.host().end(agent.episode);
        self.abort_calls(whole, &agent, Some(id.turn));
        let with = |answer| agent.spent_with(Some((place, answer)));
        Ok(Some(match event {
            GeneratorEvent::Failed { kind, reason, spent, .. } => {
                GeneratorEvent::Failed { id: whole, kind, reason, spent: with(spent) }
            }
            GeneratorEvent::Aborted { spent, .. } => {
                GeneratorEvent::Aborted { id: whole, spent: with(spent) }
            }
            other => other,
        }))
    }

    /// Ends the programs of abandoned trajectories.
    pub(super) fn end_agents(&mut self, is_meant: &dyn Fn(&SampleId) -> bool) {
        let Some(agents) = self.plays.agents.clone() else { return };
        let ids: Vec<SampleId> = self.plays.played.keys().filter(|id| is_meant(id)).copied().collect();
        for id in ids {
            let Some(agent) = self.plays.played.remove(&id) else { continue };
            agents.host().end(agent.episode);
            self.abort_calls(id, &agent, None);
            self.plays.told.push(GeneratorEvent::Aborted { id, spent: agent.spent_with(None) });
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;
