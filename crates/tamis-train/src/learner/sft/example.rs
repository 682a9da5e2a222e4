//! Examples that nobody wrote as rows: prompts with their gold answers, and episodes that a script plays.

use tamis_core::fault;
use tamis_core::printable::cut_middle;
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::Message;
use tamis_env::task::environment::{EnvironmentLevels, environment_of};
use tamis_rollout::{PreparedPrompt, Worlds as _, conversation_of};

use super::SftError;
use crate::learner::LearnerSequence;
use crate::prompts::codec::Codec;
use crate::prompts::worlds::RunWorlds;

/// A sequence to imitate in tokens: what comes before the first token with a loss, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    pub(super) prompt: Vec<u32>,
    pub(super) images: Vec<String>,
    pub(super) completion: Vec<u32>,
    /// Whether each token of the completion has a loss: what a user or an environment wrote in it has none.
    pub(super) mask: Vec<bool>,
}

impl Example {
    /// Number of tokens, of prompt and completion.
    pub fn num_tokens(&self) -> usize {
        self.prompt.len() + self.completion.len()
    }

    /// Number of tokens with a loss.
    pub fn num_learned(&self) -> usize {
        self.mask.iter().filter(|&&is_learned| is_learned).count()
    }

    /// The tokens before the first one with a loss.
    pub(crate) fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Number of tokens from the first one with a loss on.
    pub(crate) fn num_scored(&self) -> usize {
        self.completion.len()
    }

    /// Whether one of these tokens is among those with a loss.
    pub(crate) fn learns_any_of(&self, tokens: &[u32]) -> bool {
        self.completion.iter().zip(&self.mask).any(|(id, &is_learned)| is_learned && tokens.contains(id))
    }

    /// Its content, in bytes, by which rows are held out.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.prompt.iter().chain(&self.completion).flat_map(|id| id.to_le_bytes()).collect()
    }

    pub(super) fn sequence(&self) -> LearnerSequence<'_> {
        LearnerSequence { images: &self.images, ..LearnerSequence::of_text(&self.prompt, &self.completion) }
    }

    /// The examples to imitate, from at most `limit` prompts, in an order of their own: the gold
    /// answer, or for a level of a built-in game an episode that a script plays.
    ///
    /// # Errors
    /// [`SftError::Example`] for the first that the tokenizer refuses,
    /// [`SftError::NoExamples`] if there is none.
    pub fn all(
        codec: &Codec,
        games: Option<(&RunWorlds, &[EnvironmentLevels])>,
        prompts: &[PreparedPrompt],
        seed: u64,
        limit: Option<usize>,
    ) -> Result<Vec<Self>, SftError> {
        let key = Key::new(seed, Purpose::Sft);
        let mut examples = Vec::new();
        let mut num_taken = 0;
        for prompt in key.permutation(prompts.len()).into_iter().map(|row| &prompts[row]) {
            if limit.is_some_and(|limit| num_taken >= limit) {
                break;
            }
            let before = examples.len();
            match games.filter(|(worlds, _)| worlds.is_game(&prompt.prompt)) {
                Some((worlds, levels)) => Self::play(codec, worlds, levels, prompt, key, &mut examples)?,
                None => examples.extend(Self::of_answer(codec, prompt)?),
            }
            num_taken += usize::from(examples.len() > before);
        }
        if examples.is_empty() { Err(SftError::NoExamples) } else { Ok(examples) }
    }

    /// A prompt with its gold answer; `None` if it has none.
    fn of_answer(codec: &Codec, prompt: &PreparedPrompt) -> Result<Option<Self>, SftError> {
        let Some(gold) = prompt.prompt.ground_truth.as_deref() else { return Ok(None) };
        let mut completion = encode(codec, prompt, gold)?;
        completion.extend(codec.end_token_ids().first());
        let mask = vec![true; completion.len()];
        let (token_ids, images) = (prompt.token_ids.to_vec(), prompt.images.to_vec());
        Ok(Some(Self { prompt: token_ids, images, completion, mask }))
    }

    /// The episode that a script plays from a prompt: sometimes it acts like a perfect player,
    /// otherwise at random. `None` if the game lists no actions, or no answer has room.
    fn play(
        codec: &Codec,
        worlds: &RunWorlds,
        levels: &[EnvironmentLevels],
        prompt: &PreparedPrompt,
        key: Key,
        examples: &mut Vec<Self>,
    ) -> Result<(), SftError> {
        let key = key.with(2).with(prompt.prompt.id.0);
        let own = levels.get(environment_of(&prompt.prompt));
        let turns = own.map_or_else(Vec::new, |levels| levels.demonstrate(&prompt.prompt, key));
        let most_tokens = worlds.limits(&prompt.prompt).map_or(0, |limits| limits.whole);
        let end = codec.end_token_ids().first().copied();
        let mut example = Self {
            prompt: prompt.token_ids.to_vec(),
            images: Vec::new(),
            completion: Vec::new(),
            mask: Vec::new(),
        };
        let mut conversation = conversation_of(&prompt.prompt);
        for (answer, shown) in &turns {
            let mut sampled = encode(codec, prompt, answer)?;
            sampled.extend(end);
            if example.completion.len() + sampled.len() > most_tokens {
                break;
            }
            example.completion.extend(&sampled);
            example.mask.resize(example.completion.len(), true);
            conversation.push(Message::new("assistant", answer.clone()));
            let Some(shown) = shown else { break };
            let shown = Message::new("user", shown.clone());
            let failed =
                |reason| SftError::from(fault!("the episodes to imitate cannot be rendered: {reason}"));
            let context = worlds.context();
            if context.is_growing() {
                let shown = std::slice::from_ref(&shown);
                let between =
                    worlds.between(&prompt.prompt, &conversation, &sampled, shown).map_err(failed)?;
                example.completion.extend(&between.token_ids);
                example.mask.resize(example.completion.len(), false);
                conversation.extend_from_slice(shown);
            } else {
                // Each answer is an example, with the conversation as seen before it.
                conversation.push(shown);
                let prompt =
                    worlds.render(&prompt.prompt, &context.view(&conversation)).map_err(failed)?.token_ids;
                let next = Self { prompt, images: Vec::new(), completion: Vec::new(), mask: Vec::new() };
                examples.push(std::mem::replace(&mut example, next));
            }
        }
        if !example.completion.is_empty() {
            examples.push(example);
        }
        Ok(())
    }
}

fn encode(codec: &Codec, prompt: &PreparedPrompt, answer: &str) -> Result<Vec<u32>, SftError> {
    codec.tokenizer().encode(answer, false).map_err(|source| SftError::Example {
        name: prompt.prompt.named(),
        prompt: cut_middle(prompt.prompt.content.question(), 100),
        completion: cut_middle(answer, 100),
        source: Box::new(source),
    })
}
