//! Checks once what a chat template does with a conversation that continues.
//!
//! Probes are conversations with two answers, whose messages are words that can be found again. Each is
//! written twice: as a transcript grows (prompt, answer, continuation, answer, continuation), and as the
//! template renders the same messages at once. If the two differ, the nearest words show which message is
//! affected.

use std::fmt;
use std::ops::Range;

use serde_json::{Map, Value, json};
use tamis_core::fault;
use tamis_core::fault::Fault;

use super::continuation::{TurnTemplate, common_prefix, first_end, role_of};
use super::unrendered;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Characters shown of each text before and after the first difference.
const NUM_SHOWN: usize = 40;

/// A kind of conversation that templates may treat specially.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationForm {
    /// Answers of a single word.
    Plain,
    /// Answers with white space around them.
    Spaces,
    /// Answers with a `<think>` block in front.
    Reasoning,
    /// Answers that are followed by a tool's result.
    Tools,
}

impl fmt::Display for ConversationForm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Plain => "with plain answers",
            Self::Spaces => "with answers that have white space around them",
            Self::Reasoning => "with answers that begin with a <think> block",
            Self::Tools => "with results of tools",
        })
    }
}

/// A message that a template renders differently once others follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The kind of conversation.
    pub probe: ConversationForm,
    /// Index of the message in it, from 0.
    pub message: usize,
    /// Its role.
    pub role: String,
    /// The place in a transcript, with a little text around it.
    pub transcript: String,
    /// The same place as the template renders the whole conversation.
    pub template: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { probe, message, role, transcript, template } = self;
        write!(
            formatter,
            "message {message} ({role}) of a conversation {probe} is {transcript:?} in the transcript, but the template renders \
            {template:?} once other messages follow"
        )
    }
}

/// Finds how a template continues after an answer, and how it would render earlier answers differently.
/// `arguments` are the template's variables, the same as for prompts; if they have `tools`, tool results are
/// checked too. `end_token_ids` are those that end an answer ([`Tokenizer::end_token_ids`]). Differences that
/// only affect the assistant's own earlier text are listed in [`TurnTemplate::differences`]: the transcript
/// keeps what was sampled. All others are errors.
///
/// # Errors
/// The template refuses a conversation with two answers, does not show the assistant's message, or rewrites a
/// system, user or tool message once others follow (some templates move the system's text or the tools to the
/// last user message).
pub fn check_template(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    arguments: &Map<String, Value>,
    end_token_ids: &[u32],
) -> Result<TurnTemplate, Fault> {
    let mut checked = TurnTemplate {
        template: template.clone(),
        arguments: arguments.clone(),
        end_token_ids: end_token_ids.to_vec(),
        end_texts: end_token_ids.iter().filter_map(|&id| tokenizer.token(id)).collect(),
        between: String::new(),
        turn_end: String::new(),
        differences: Vec::new(),
    };
    checked.end_texts.retain(|text| !text.is_empty());
    let has_tools = arguments.get("tools").is_some_and(|tools| !tools.is_null());
    // Some templates do not accept system messages.
    let system = Conversation::new(ConversationForm::Plain, true);
    let with_system = checked.rendered(&system.messages[..2]).is_ok();
    checked.find_turn_end(&Conversation::new(ConversationForm::Plain, with_system))?;
    // If the generation prompt opens a `<think>` block, all answers begin in it.
    let opened =
        opens_block(&checked.rendered(&Conversation::new(ConversationForm::Plain, false).messages[..1])?);
    let probes = [
        ConversationForm::Plain,
        ConversationForm::Spaces,
        ConversationForm::Reasoning,
        ConversationForm::Tools,
    ];
    let probes = probes.into_iter().filter(|probe| match probe {
        ConversationForm::Plain | ConversationForm::Spaces => !opened,
        ConversationForm::Reasoning => true,
        ConversationForm::Tools => has_tools,
    });
    for probe in probes {
        let conversation = Conversation::new(probe, with_system);
        if probe == ConversationForm::Tools && !checked.shows_results(&conversation) {
            checked.find_result_of_call(conversation)?;
            continue;
        }
        let found = [checked.compare(&conversation, 1)?, checked.compare(&conversation, 2)?];
        checked.differences.extend(found.into_iter().flatten().next());
    }
    Ok(checked)
}

struct Conversation {
    probe: ConversationForm,
    messages: Vec<Value>,
    words: Vec<String>,
    /// Indices of the assistant's messages.
    answers: Vec<usize>,
}

impl Conversation {
    fn new(probe: ConversationForm, with_system: bool) -> Self {
        let after = if probe == ConversationForm::Tools { "tool" } else { "user" };
        let roles = ["system", "user", "assistant", after, "assistant", "user"];
        let roles = &roles[usize::from(!with_system)..];
        let words: Vec<String> = (0..roles.len()).map(|index| format!("Word{index}word")).collect();
        let message = |(role, word): (&&str, &String)| match (*role, probe) {
            ("assistant", ConversationForm::Spaces) => {
                json!({"role": role, "content": format!("\n {word} \n\n")})
            }
            ("assistant", ConversationForm::Reasoning) => {
                json!({"role": role, "content": format!("<think>\nI reason.\n</think>\n\n{word}")})
            }
            ("tool", _) => {
                json!({"role": role, "content": word, "name": "tool", "tool_call_id": "call00001"})
            }
            _ => json!({"role": role, "content": word}),
        };
        let messages = roles.iter().zip(&words).map(message).collect();
        let answers = (0..roles.len()).filter(|&index| roles[index] == "assistant").collect();
        Self { probe, messages, words, answers }
    }

    fn is_answer(&self, index: usize) -> bool {
        self.answers.contains(&index)
    }

    /// The difference between two texts of a message.
    fn difference(&self, message: usize, transcript: &str, template: &str) -> Difference {
        let part = common_prefix(transcript, template);
        Difference {
            probe: self.probe,
            message,
            role: role_of(&self.messages[message]),
            transcript: around(transcript, part),
            template: around(template, part),
        }
    }

    fn vanished(&self, index: usize) -> Fault {
        fault!(
            "the chat template does not show message {index} ({role}) as it was written, so what follows it cannot be \
         found",
            role = role_of(&self.messages[index])
        )
    }

    fn rewrites(&self, message: usize, transcript: &str, template: &str) -> Fault {
        let difference = self.difference(message, transcript, template);
        fault!(
            "the chat template rewrites earlier messages that are not the assistant's, so a conversation of many turns \
         cannot be a transcript: {difference}"
        )
    }
}

impl TurnTemplate {
    fn rendered(&self, messages: &[Value]) -> Result<String, Fault> {
        let mut arguments = self.arguments.clone();
        arguments.insert("add_generation_prompt".to_owned(), Value::Bool(true));
        self.template.render(messages, &arguments).map_err(unrendered)
    }

    fn find_turn_end(&mut self, plain: &Conversation) -> Result<(), Fault> {
        let answer = plain.answers[0];
        let (before, new) = (&plain.messages[..answer], &plain.messages[answer + 1..=answer + 1]);
        let tail = self.after_placeholder(before, None, new, true)?;
        let word = plain.words[answer + 1].as_str();
        self.between = tail.split_once(word).map_or(String::new(), |(between, _)| between.to_owned());
        // The text at the end of a conversation may lack the end of the turn.
        let last = self.after_placeholder(before, None, &[], false).unwrap_or_default();
        self.turn_end = if !last.is_empty() && self.between.starts_with(&last) {
            last
        } else {
            self.between[..first_end(&self.between, &self.end_texts).unwrap_or(0)].to_owned()
        };
        Ok(())
    }

    /// Whether a tool's result is shown although the assistant's message has no call.
    fn shows_results(&self, conversation: &Conversation) -> bool {
        let result = conversation.answers[0] + 1;
        let word = conversation.words[result].as_str();
        let shown =
            |num: usize| self.rendered(&conversation.messages[..num]).is_ok_and(|text| text.contains(word));
        shown(result + 1) && shown(conversation.messages.len())
    }

    /// For templates that show a tool's result only after a call. How the model spells calls is not known
    /// here, so this only checks that a continuation is found.
    fn find_result_of_call(&self, mut conversation: Conversation) -> Result<(), Fault> {
        let answer = conversation.answers[0];
        let call = json!({"name": "tool", "arguments": {}});
        conversation.messages[answer]["tool_calls"] =
            json!([{"type": "function", "id": "call00001", "function": call}]);
        let (messages, new) = conversation.messages.split_at(answer + 1);
        let refused = |source| {
            fault!("the text between an answer and a tool's result cannot be found in the chat template")
                .with_source(source)
        };
        let tail = self.tail(messages, &new[..1]).map_err(refused)?;
        if !tail.text.contains(conversation.words[answer + 1].as_str()) {
            return Err(refused(conversation.vanished(answer + 1)));
        }
        Ok(())
    }

    /// Compares the transcript of the first answers with the template's rendering of them.
    fn compare(&self, conversation: &Conversation, num_answers: usize) -> Result<Vec<Difference>, Fault> {
        let Conversation { messages, words, answers, .. } = conversation;
        let mut transcript = self.rendered(&messages[..answers[0]])?;
        // For each answer, where the text after it begins.
        let mut observed = vec![0; messages.len()];
        let mut end = answers[0];
        for (turn, &answer) in answers.iter().enumerate().take(num_answers) {
            end = answers.get(turn + 1).copied().unwrap_or(messages.len());
            let content = messages[answer]["content"].as_str().unwrap_or_default();
            // If the generation prompt opens the block, the policy does not write its beginning.
            let opened = opens_block(&transcript);
            let sampled = content.strip_prefix("<think>\n").filter(|_| opened).unwrap_or(content);
            transcript.push_str(sampled);
            observed[answer] = transcript.len();
            transcript.push_str(&self.tail(&messages[..=answer], &messages[answer + 1..end])?.text);
        }
        let rendered = self.rendered(&messages[..end])?;

        let mut differences = Vec::new();
        // Positions after the last word that both texts contain.
        let (mut ours, mut theirs) = (0, 0);
        let mut previous = None;
        let mut pending = None;
        for (index, word) in words[..end].iter().enumerate() {
            let find = |text: &str, from: usize| text[from..].find(word.as_str()).map(|at| from + at);
            let (Some(our_place), their_place) = (find(&transcript, ours), find(&rendered, theirs)) else {
                // It was not shown when it was new, either. Some templates have no place for the system's
                // text.
                if messages[index]["role"] != "system" {
                    return Err(conversation.vanished(index));
                }
                continue;
            };
            let Some(their_place) = their_place else {
                if !conversation.is_answer(index) {
                    return Err(conversation.rewrites(index, &transcript[ours..], &rendered[theirs..]));
                }
                pending = Some(index);
                continue;
            };
            let (our_gap, their_gap) = (&transcript[ours..our_place], &rendered[theirs..their_place]);
            let answer = pending.or(if conversation.is_answer(index) { Some(index) } else { None });
            let answer = answer.or(previous.filter(|&previous| conversation.is_answer(previous)));
            let word_ends = (our_place + word.len(), their_place + word.len());
            if our_gap != their_gap {
                let shown = (&transcript[ours..word_ends.0], &rendered[theirs..word_ends.1]);
                let Some(answer) = answer else {
                    return Err(conversation.rewrites(index, shown.0, shown.1));
                };
                // The messages before and after the answer must not change.
                if let Some(before) = previous.filter(|&previous| !conversation.is_answer(previous))
                    && !their_gap.starts_with(&self.message_end(conversation, before)?)
                {
                    return Err(conversation.rewrites(before, shown.0, shown.1));
                }
                if index != answer && !their_gap.ends_with(&transcript[observed[answer]..our_place]) {
                    return Err(conversation.rewrites(index, shown.0, shown.1));
                }
                differences.push(conversation.difference(answer, shown.0, shown.1));
            }
            (ours, theirs) = word_ends;
            previous = Some(index);
            pending = None;
        }
        if transcript[ours..] != rendered[theirs..] {
            return Err(conversation.rewrites(end - 1, &transcript[ours..], &rendered[theirs..]));
        }
        Ok(differences)
    }

    /// What the template writes after a message's text to end that message, without the generation prompt.
    fn message_end(&self, conversation: &Conversation, index: usize) -> Result<String, Fault> {
        let messages = &conversation.messages[..=index];
        let after = |text: String| {
            let word = conversation.words[index].as_str();
            text.rsplit_once(word).map_or(String::new(), |(_, rest)| rest.to_owned())
        };
        let prompt = after(self.rendered(messages)?);
        let shown = after(self.template.render(messages, &self.arguments).map_err(unrendered)?);
        Ok(shown[..common_prefix(&shown, &prompt)].to_owned())
    }
}

fn opens_block(prompt: &str) -> bool {
    prompt.trim_end().ends_with("<think>")
}

fn around(text: &str, place: usize) -> String {
    let shown: Range<usize> = {
        let start = text[..place].char_indices().rev().take(NUM_SHOWN / 2).last();
        let end = text[place..].char_indices().nth(NUM_SHOWN);
        start.map_or(place, |(at, _)| at)..end.map_or(text.len(), |(at, _)| place + at)
    };
    let front = if shown.start > 0 { "…" } else { "" };
    let back = if shown.end < text.len() { "…" } else { "" };
    format!("{front}{}{back}", &text[shown])
}
