//! Prompts that contain their gold answer, for estimators that contrast with it.

use std::collections::HashMap;
use std::sync::Arc;

use tamis_config::Config;
use tamis_core::advantage::Advantage;
use tamis_core::fault::Fault;
use tamis_core::figure::counted;
use tamis_core::group::PromptId;
use tamis_data::overlong::OverlongPrompts;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_rollout::PreparedPrompt;
use tamis_run::log::progress::Console;

use crate::error::AssembleError;
use crate::interrupt::{Halt, Interrupt};
use crate::prompts::codec::Codec;

/// Prompts with their gold answer, by prompt. A prompt without a gold answer is missing.
pub(crate) type Hints = HashMap<PromptId, Arc<[u32]>>;

/// The content with the gold answer in it. The text, or the last message of the user, goes into the template.
fn with_gold(content: &PromptContent, template: &str, gold: &str) -> PromptContent {
    let filled = |text: &str| {
        // Braces in the prompt itself are not placeholders.
        let mut parts = template.split("{prompt}");
        let first = parts.next().unwrap_or_default().replace("{gold}", gold);
        parts.fold(first, |filled, part| filled + text + &part.replace("{gold}", gold))
    };
    match content {
        PromptContent::Text(text) => PromptContent::Text(filled(text)),
        PromptContent::Messages(messages) => {
            let mut messages = messages.clone();
            if let Some(message) = messages.iter_mut().rev().find(|message| message.role == "user") {
                message.content = filled(&message.content);
            }
            PromptContent::Messages(messages)
        }
    }
}

/// Every training prompt with its gold answer, if the estimator contrasts with it. It is cut from the left so
/// that a completion has room in the policy's `positions`.
pub(crate) fn hints(
    config: &Config,
    advantage: &Advantage,
    codec: &Codec,
    positions: usize,
    prompts: &[PreparedPrompt],
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<Hints, Halt<AssembleError>> {
    let Some(template) = advantage.gold_hint() else { return Ok(Hints::new()) };
    let with_gold = |prepared: &PreparedPrompt| {
        let gold = prepared.prompt.ground_truth.as_ref()?;
        let content = with_gold(&prepared.prompt.content, template, gold);
        Some(Prompt { content, ..prepared.prompt.as_ref().clone() })
    };
    let golden: Vec<Prompt> = prompts.iter().filter_map(with_gold).collect();
    if golden.is_empty() {
        let message = format!(
            "objective.advantage.kind: `{}` contrasts with the gold answer, which no training prompt has",
            advantage.name()
        );
        let hint = "name the column of the answers in data.columns.ground_truth, or choose grpo";
        return Err(Halt::Failed(AssembleError::setting(message, hint)));
    }
    if golden.len() < prompts.len() {
        ui.warn(&format!(
            "{} of {} training prompts have no gold answer: nothing moves the advantages of their groups",
            prompts.len() - golden.len(),
            prompts.len()
        ));
    }
    let limit = positions.saturating_sub(config.max_completion_length()).max(1);
    let codec = codec.clone();
    let prepared = interrupt
        .or_abandon(move || codec.prepare(golden, "training", OverlongPrompts::Left, limit))?
        .map_err(|source| {
            let message = "objective.advantage.gold_hint: the prompts cannot be given with their gold answers";
            let hint =
                "set objective.advantage.gold_hint to a text that the tokenizer knows, with {prompt} and {gold} in it";
            Halt::Failed(AssembleError::from(Fault::new(message).with_hint(hint).with_source(source)))
        })?;
    if prepared.num_truncated > 0 {
        let prompts = counted(prepared.num_truncated, "prompt");
        ui.say(&format!("gold answers of {prompts} cut to {}", counted(limit, "token")));
    }
    Ok(prepared.prompts.into_iter().map(|one| (one.prompt.id, one.token_ids)).collect())
}

#[cfg(test)]
mod tests {
    use tamis_data::prompt::Message;

    use super::*;

    #[test]
    fn the_gold_answer_goes_where_the_template_says() {
        let text = PromptContent::Text("3+{gold}=".to_owned());
        assert_eq!(
            with_gold(&text, "[{gold}] {prompt}{gold}", "7"),
            PromptContent::Text("[7] 3+{gold}=7".to_owned())
        );
        let message = |role: &str, content: &str| Message::new(role, content);
        let chat = [
            message("user", "a"),
            message("assistant", "b"),
            message("user", "c"),
            message("assistant", "d"),
        ];
        let PromptContent::Messages(found) =
            with_gold(&PromptContent::Messages(chat.to_vec()), "{prompt} ({gold})", "7")
        else {
            panic!("messages stay messages")
        };
        assert_eq!(
            found.iter().map(|message| message.content.as_str()).collect::<Vec<_>>(),
            ["a", "b", "c (7)", "d"]
        );
    }
}
