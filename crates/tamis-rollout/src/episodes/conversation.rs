//! Episodes as the messages of a conversation.

use tamis_core::group::{Episode, Turn};
use tamis_data::prompt::{Message, Prompt, PromptContent};

/// Bytes of what is shown.
pub(super) fn bytes_of(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.content.len()).sum()
}

pub(super) fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: content.to_owned() }
}

/// The messages of a prompt; bare text is the user's.
pub fn conversation_of(prompt: &Prompt) -> Vec<Message> {
    match &prompt.content {
        PromptContent::Text(text) => vec![message("user", text)],
        PromptContent::Messages(messages) => messages.clone(),
    }
}

/// The messages of an episode: what the policy wrote, and what it was shown after that.
pub fn messages_of(episode: &Episode) -> Vec<Message> {
    let of_turn = |turn: &Turn| {
        let role = if turn.role.is_empty() { "user" } else { &turn.role };
        let shown = (!turn.observation.is_empty()).then(|| message(role, &turn.observation));
        std::iter::once(message("assistant", &turn.text)).chain(shown)
    };
    episode.turns.iter().flat_map(of_turn).collect()
}
