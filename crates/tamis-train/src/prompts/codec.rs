//! Between text and tokens: the tokenizer, the chat template and the end tokens of a policy.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::figure::counted;
use tamis_core::printable::cut_middle;
use tamis_data::overlong::{Fitted, OverlongError, OverlongPrompts};
use tamis_data::prompt::{Prompt, PromptContent, TOOLS_COLUMN, message_parts};
use tamis_rollout::PreparedPrompt;
use tamis_text::image_tokens::{ImageTokens, MODEL_TYPES, contract};
use tamis_text::peers::PeerDifference;
use tamis_text::template::{ChatTemplate, TemplateError};
use tamis_text::tokenizer::Tokenizer;
use thiserror::Error;

/// Text cannot become tokens.
#[derive(Debug, Error)]
pub enum CodecError {
    /// The chat template refused.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A chat template file cannot be read.
    #[error("failed to read the chat template {path}")]
    TemplateFile {
        /// The file.
        path: std::path::PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// A file of `data.prompt_template` cannot be read.
    #[error("failed to read data.prompt_template {path}")]
    PromptTemplateFile {
        /// The file.
        path: std::path::PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// A prompt is over the limit.
    #[error(transparent)]
    Overlong(#[from] OverlongError),
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl CodecError {
    /// Whether a template does not show where the assistant's turns are.
    pub(crate) fn is_answers_lost(&self) -> bool {
        matches!(self, Self::Template(TemplateError::AnswersLost { .. }))
    }
}

/// A prompt of a split cannot be prepared.
pub(crate) fn unprepared(prompt: &Prompt, split: &str, source: CodecError) -> CodecError {
    fault!("{} cannot be prepared", prompt.named_in(split)).with_source(source).into()
}

/// A template's output does not contain the right number of images.
fn images_shown(num_images: usize, num_shown: usize) -> CodecError {
    let why = if num_shown == 0 {
        "it is a template for text only; set model.chat_template to another"
    } else {
        "the text has the image token in it, or the template repeats or drops images"
    };
    fault!("the prompt has {num_images} images, and the model's chat template shows {num_shown}: {why}")
        .into()
}

fn has_tokens(ids: &[u32]) -> Result<(), CodecError> {
    if ids.is_empty() {
        return Err(fault!("the prompt has no tokens, and the model needs one to begin with: the chat template renders nothing for it, or its text is empty").into());
    }
    Ok(())
}

/// Tokenizer, chat template and end tokens of a policy.
#[derive(Debug, Clone)]
pub struct Codec {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    template_arguments: Map<String, Value>,
    /// Whether an environment has put its tools among them.
    has_tools: bool,
    end_token_ids: Vec<u32>,
    images: Option<ImageTokens>,
    folder: Option<PathBuf>,
}

/// Prompts of a split, ready to be generated from.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    /// The prompts, in data order.
    pub prompts: Vec<PreparedPrompt>,
    /// Prompts left out because they are over the limit.
    pub num_dropped: usize,
    /// Prompts cut to the limit.
    pub num_truncated: usize,
    /// Warnings about these prompts for the user.
    pub warnings: Vec<String>,
}

impl Prepared {
    /// Records what the tokenizer drops from the prompts, and whether all of them are the same to the
    /// model.
    fn look_through(&mut self, codec: &Codec, split: &str) {
        let num_prompts = self.prompts.len();
        let letters: BTreeSet<char> = self.prompts.iter().flat_map(|prompt| prompt.text.chars()).collect();
        let lost: BTreeSet<char> =
            letters.into_iter().filter(|&letter| codec.tokenizer.is_lost(letter)).collect();
        if !lost.is_empty() {
            let has_lost =
                |prompt: &&PreparedPrompt| prompt.text.chars().any(|letter| lost.contains(&letter));
            let shown: Vec<String> = lost
                .iter()
                .take(8)
                .map(|&letter| format!("{letter:?} (U+{:04X})", u32::from(letter)))
                .collect();
            let more = if lost.len() > shown.len() { ", ..." } else { "" };
            self.warnings.push(format!(
                "the tokenizer has no token for {}{more}, so the model does not see {} in {} of {num_prompts} {split} prompts: \
                 write the data in other characters, or take a model whose tokenizer knows all bytes",
                shown.join(", "),
                if lost.len() == 1 { "it" } else { "them" },
                self.prompts.iter().filter(has_lost).count(),
            ));
        }
        if let [first, rest @ ..] = &self.prompts[..]
            && rest.iter().any(|prompt| prompt.prompt.content != first.prompt.content)
            && rest.iter().all(|prompt| prompt.token_ids == first.token_ids)
        {
            self.warnings.push(format!(
                "all {num_prompts} {split} prompts are the same to the model, although their rows differ: the chat template does \
                 not show the messages, or data.max_prompt_length cuts off what differs"
            ));
        }
    }
}

impl Codec {
    /// From a tokenizer, an optional template file that replaces the tokenizer's own, and the folder of the
    /// model, which may name further end tokens ([`Tokenizer::end_token_ids`]).
    pub fn new(
        tokenizer: Tokenizer,
        template_file: Option<&Path>,
        template_arguments: Map<String, Value>,
        model: Option<&Path>,
    ) -> Result<Self, CodecError> {
        let template = match template_file {
            Some(path) => {
                let source = tamis_file::read_text(path, tamis_file::MAX_TEMPLATE)
                    .map_err(|source| CodecError::TemplateFile { path: path.to_owned(), source })?;
                Some(ChatTemplate::new(&source, tokenizer.special_tokens())?)
            }
            None => match tokenizer.chat_template() {
                Ok(template) => Some(template),
                Err(TemplateError::Missing) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let end_token_ids = match model {
            Some(folder) => tokenizer.end_token_ids(folder)?,
            None => tokenizer.eos_id().into_iter().collect(),
        };
        // A run that replays must render the same date: the beginning of 1970 is as good as any.
        Ok(Self {
            tokenizer,
            template,
            template_arguments,
            has_tools: false,
            end_token_ids,
            images: None,
            folder: None,
        })
    }

    /// Takes images like the model in a folder, if that takes any.
    pub fn with_images_of(mut self, folder: &Path) -> Result<Self, CodecError> {
        self.images = ImageTokens::read(folder)?;
        self.folder = Some(folder.to_owned());
        Ok(self)
    }

    /// A warning if `transformers` splits texts otherwise for this model.
    pub fn peer_warning(&self) -> Option<String> {
        PeerDifference::find(self.folder.as_ref()?, &self.tokenizer).map(|difference| difference.to_string())
    }

    /// Token that represents an image; `None` for a model without images.
    pub fn image_token_id(&self) -> Option<u32> {
        self.images.as_ref().map(ImageTokens::token_id)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens at which generation ends.
    pub fn end_token_ids(&self) -> &[u32] {
        &self.end_token_ids
    }

    /// The chat template.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Variables of the template that the configuration sets.
    pub fn template_arguments(&self) -> &Map<String, Value> {
        &self.template_arguments
    }

    /// The same with those that the row of a prompt sets, which come first.
    ///
    /// # Errors
    /// A column whose value the template cannot take.
    pub fn arguments_of(&self, prompt: &Prompt) -> Result<Map<String, Value>, CodecError> {
        let own = prompt.template_arguments()?;
        if self.has_tools && own.contains_key(TOOLS_COLUMN) {
            return Err(fault!("the row has a column `{TOOLS_COLUMN}`, but only the environment's own tools can be called: rename the \
                column, or remove it").into());
        }
        let mut arguments = self.template_arguments.clone();
        arguments.extend(own);
        Ok(arguments)
    }

    /// Whether conversations can be rendered.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Adds tools that templates write into every prompt, if there are any.
    #[must_use]
    pub fn with_tools(mut self, schemas: &[Value]) -> Self {
        if !schemas.is_empty() {
            self.template_arguments.insert(TOOLS_COLUMN.to_owned(), schemas.to_vec().into());
            self.has_tools = true;
        }
        self
    }

    /// Fixes the date that templates see, in seconds since 1970, so that a resumed run renders the same
    /// text as the first.
    #[must_use]
    pub fn with_now(mut self, seconds: i64) -> Self {
        self.template = self.template.map(|template| template.with_now(seconds));
        self
    }

    /// The text that the model sees and the continued assistant message.
    fn render(&self, prompt: &Prompt) -> Result<(String, String, bool), CodecError> {
        let num_images = prompt.images.len();
        if num_images > 0 && self.images.is_none() {
            return Err(fault!(
                "the prompt has {num_images} image{}, but the model does not support images ({} in its config.json); name \
                 a vision-language model in model.path, or set data.images=false to leave images out",
                if num_images == 1 { "" } else { "s" },
                MODEL_TYPES.map(|kind| format!("`model_type: {kind}`")).join(" or ")
            )
            .into());
        }
        match &prompt.content {
            PromptContent::Text(_) if num_images > 0 => Err(fault!(
                "the prompt has images but is bare text, and images need a \
                conversation: set data.prompt_format=chat, or write the prompt as messages"
            )
            .into()),
            PromptContent::Text(text) => Ok((text.clone(), String::new(), true)),
            PromptContent::Messages(messages) => {
                let template = self.template.as_ref().ok_or(TemplateError::Missing)?;
                let arguments = self.arguments_of(prompt)?;
                let rendered = if num_images == 0 {
                    template.prompt(messages, &arguments)?
                } else {
                    let parts =
                        message_parts(messages, num_images).ok_or_else(|| images_shown(num_images, 0))?;
                    template.prompt(&parts, &arguments)?
                };
                Ok((rendered.text, rendered.continued.unwrap_or_default(), false))
            }
        }
    }

    /// A conversation as the model sees it up to the beginning of the next answer, and its tokens.
    ///
    /// # Errors
    /// There is no template, or it refuses the messages.
    pub fn open_conversation<M: Serialize>(
        &self,
        messages: &[M],
        arguments: &Map<String, Value>,
    ) -> Result<(String, Vec<u32>), CodecError> {
        let template = self.template.as_ref().ok_or(TemplateError::Missing)?;
        let text = template.prompt(messages, arguments)?.text;
        let token_ids = self.tokenizer.encode(&text, false)?;
        Ok((text, token_ids))
    }

    /// The tokens that the model reads: those of the text, in which the one of each image comes as often as
    /// that image has tokens.
    fn with_images(&self, prompt: &Prompt, ids: Vec<u32>) -> Result<Vec<u32>, CodecError> {
        let Some(images) = &self.images else { return Ok(ids) };
        let num_images = prompt.images.len();
        let lengths: Vec<usize> =
            prompt.images.iter().map(|image| images.count(image.width, image.height)).collect();
        images.expand(&ids, &lengths).map_err(|num_shown| images_shown(num_images, num_shown))
    }

    /// Text of tokens, with one token for each image.
    fn text_of(&self, ids: &[u32]) -> Result<String, CodecError> {
        let short = self.image_token_id().map(|image| contract(ids, image));
        Ok(self.tokenizer.decode(short.as_deref().unwrap_or(ids), false)?)
    }

    pub(crate) fn check_rendering(&self, prompt: &Prompt) -> Result<(), CodecError> {
        self.render(prompt).map(|_| ())
    }

    /// Whether the rendered beginning of a prompt has tokens.
    pub(crate) fn check_tokens(&self, prompt: &Prompt) -> Result<(), CodecError> {
        const LONGEST: usize = 1 << 16;
        let (text, _, add_special) = self.render(prompt)?;
        let end = text.char_indices().map(|(at, _)| at).nth(LONGEST).unwrap_or(text.len());
        let ids = self.tokenizer.encode(&text[..end], add_special)?;
        if end == text.len() {
            self.with_images(prompt, ids.clone())?;
        }
        has_tokens(&ids)
    }

    /// A prompt as the model gets it, with the special tokens, on one line and shortened, to check
    /// before a run.
    pub fn introduction(&self, prompt: &PreparedPrompt) -> Result<String, CodecError> {
        const LONGEST: usize = 600;
        let form = match &prompt.prompt.content {
            PromptContent::Messages(_) => "by the chat template",
            PromptContent::Text(_) => "text without a chat template",
        };
        let tokens = counted(prompt.token_ids.len(), "token");
        let text = self.text_of(&prompt.token_ids)?;
        Ok(format!("first prompt ({tokens}, {form}): {}", cut_middle(&text, LONGEST)))
    }

    /// Prepares one prompt, and returns whether it was cut. An overlong prompt that is left out is
    /// returned as its length in tokens.
    fn prepare_one(
        &self,
        prompt: &Arc<Prompt>,
        overlong: OverlongPrompts,
        limit: usize,
    ) -> Result<Result<(PreparedPrompt, bool), usize>, CodecError> {
        let (text, continued, add_special) = self.render(prompt)?;
        let num_bytes = text.len();
        if overlong == OverlongPrompts::Error && !self.tokenizer.may_fit(num_bytes, limit) {
            return Err(fault!("the prompt has {num_bytes} bytes of text, which no {limit} tokens of this model hold; shorten it, raise \
         data.max_prompt_length, or set data.overlong_prompts to drop, left, right or middle").into());
        }
        let ids = self.with_images(prompt, self.tokenizer.encode(&text, add_special)?)?;
        has_tokens(&ids)?;
        let (ids, text, cut) = match overlong.fit(&ids, limit)? {
            Fitted::Whole => (ids, text, false),
            // An image is in a prompt whole or not at all, and a question about a missing image is useless.
            Fitted::Truncated(cut) if self.images.as_ref().is_some_and(|own| !own.are_kept(&ids, &cut)) => {
                return Ok(Err(ids.len()));
            }
            Fitted::Truncated(ids) => {
                let text = self.text_of(&ids)?;
                (ids, text, true)
            }
            Fitted::Dropped => return Ok(Err(ids.len())),
        };
        let prepared = PreparedPrompt {
            prompt: prompt.clone(),
            token_ids: ids.into(),
            images: prompt.images.iter().map(|image| image.path.clone()).collect(),
            text: text.into(),
            continued: continued.into(),
        };
        Ok(Ok((prepared, cut)))
    }

    /// Prepares all prompts of a split, applying the limit on their length.
    pub fn prepare(
        &self,
        prompts: Vec<Prompt>,
        split: &'static str,
        overlong: OverlongPrompts,
        limit: usize,
    ) -> Result<Prepared, CodecError> {
        let mut prepared = Prepared::default();
        let (mut shortest, mut longest) = (usize::MAX, 0);
        for prompt in prompts {
            let prompt = Arc::new(prompt);
            match self.prepare_one(&prompt, overlong, limit) {
                Ok(Ok((one, cut))) => {
                    prepared.num_truncated += usize::from(cut);
                    prepared.prompts.push(one);
                }
                Ok(Err(length)) => {
                    prepared.num_dropped += 1;
                    shortest = shortest.min(length);
                    longest = longest.max(length);
                }
                Err(source) => {
                    return Err(unprepared(&prompt, split, source));
                }
            }
        }
        match prepared.num_dropped {
            count if count > 0 && prepared.prompts.is_empty() => {
                Err(fault!("all {count} prompts of the {split} data are over the limit of {limit} tokens (they have {shortest} \
             to {longest}), and data.overlong_prompts: drop leaves them out; raise data.max_prompt_length to \
             {longest} for all of them").into())
            }
            _ => {
                prepared.look_through(self, split);
                Ok(prepared)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::PromptId;

    use super::*;
    use crate::support::prompt;

    #[test]
    fn prompts_that_are_all_overlong_are_told_with_their_lengths() {
        let tokenizer = Tokenizer::characters("ab").expect("a tokenizer");
        let codec = Codec::new(tokenizer, None, Map::new(), None).expect("a codec");
        let long = || vec![prompt(0, "abab"), prompt(1, "ababab")];
        for split in ["training", "validation"] {
            let error =
                codec.prepare(long(), split, OverlongPrompts::Drop, 3).expect_err("all are over the limit");
            let range = "over the limit of 3 tokens (they have 4 to 6)";
            assert!(error.to_string().contains(range) && error.to_string().contains(split), "{error}");
        }
        // If one overlong prompt is too many, a text of this size is refused without counting its
        // tokens.
        let book = vec![prompt(0, &"ab".repeat(1000))];
        let error = codec.prepare(book, "training", OverlongPrompts::Error, 4).expect_err("over the limit");
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(
            source.starts_with("the prompt has 2000 bytes of text, which no 4 tokens of this model hold"),
            "{source}"
        );
        let prepared = codec.prepare(long(), "training", OverlongPrompts::Drop, 4).expect("one fits");
        assert_eq!((prepared.prompts.len(), prepared.num_dropped), (1, 1));
        assert!(
            codec.prepare(Vec::new(), "validation", OverlongPrompts::Drop, 3).is_ok(),
            "no prompts, none overlong"
        );
    }

    const SEES: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}\
        {% if c.type == 'image' %}<s><i></s>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

    /// A codec of characters and of three tokens for images, each of 14 x 14 pixels.
    fn codec_with(template: &str, config: &serde_json::Value) -> Codec {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        Tokenizer::characters("abcd<imge>?").expect("a tokenizer").save(folder.path()).expect("saved");
        let text = std::fs::read_to_string(path("tokenizer.json")).expect("read");
        let mut tokenizer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for (id, content) in (100..).zip(["<s>", "<i>", "</s>"]) {
            tokenizer["model"]["vocab"][content] = id.into();
            let flags =
                ["single_word", "lstrip", "rstrip", "normalized"].map(|flag| (flag.to_owned(), false.into()));
            let mut token = Map::from_iter(flags);
            token.extend([
                ("id".to_owned(), id.into()),
                ("content".to_owned(), content.into()),
                ("special".to_owned(), true.into()),
            ]);
            tokenizer["added_tokens"].as_array_mut().expect("a list").push(token.into());
        }
        let files = [
            ("tokenizer.json", tokenizer.to_string()),
            ("chat_template.jinja", template.to_owned()),
            ("config.json", config.to_string()),
            ("preprocessor_config.json", r#"{"patch_size": 7, "min_pixels": 196}"#.to_owned()),
        ];
        for (name, content) in files {
            std::fs::write(path(name), content).expect("written");
        }
        let tokenizer = Tokenizer::load(folder.path()).expect("a tokenizer");
        let codec = Codec::new(tokenizer, None, Map::new(), None).expect("a codec");
        codec.with_images_of(folder.path()).expect("settings of images")
    }

    fn seeing() -> Codec {
        codec_with(
            SEES,
            &serde_json::json!({"model_type": "qwen2_5_vl", "image_token_id": 101, "vision_start_token_id": 100, "vision_end_token_id": 102}),
        )
    }

    fn shown(content: &str, sizes: &[(u32, u32)]) -> Vec<Prompt> {
        let image = |(at, &(width, height)): (usize, &(u32, u32))| tamis_data::image::PromptImage {
            path: format!("/data/{at}.png"),
            width,
            height,
        };
        let message = tamis_data::prompt::Message::new("user", content);
        vec![Prompt {
            content: PromptContent::Messages(vec![message]),
            images: sizes.iter().enumerate().map(image).collect(),
            ..prompt(0, "")
        }]
    }

    fn ids(codec: &Codec, text: &str) -> Vec<u32> {
        codec.tokenizer().encode(text, false).expect("tokens")
    }

    #[test]
    fn images_are_as_many_tokens_as_the_model_makes_of_them() {
        let codec = seeing();
        let of = |prompts| {
            codec
                .prepare(prompts, "training", OverlongPrompts::Error, 100)
                .expect("prepared")
                .prompts
                .remove(0)
        };
        let before = of(shown("ab?", &[(28, 14), (14, 14)]));
        assert_eq!(before.text.as_ref(), "<s><i></s><s><i></s>ab?", "one token for each in the text");
        assert_eq!(before.token_ids.to_vec(), ids(&codec, "<s><i><i></s><s><i></s>ab?"));
        assert_eq!(before.images.to_vec(), ["/data/0.png", "/data/1.png"]);
        let within = of(shown("a<image>b", &[(28, 28)]));
        assert_eq!(within.token_ids.to_vec(), ids(&codec, "a<s><i><i><i><i></s>b"));
        assert!(codec.introduction(&within).expect("text").ends_with("a<s><i></s>b"));
        let text = of(shown("a<image>", &[]));
        assert_eq!(text.token_ids.to_vec(), ids(&codec, "a<image>"), "without images it is a word");
        assert!(text.images.is_empty());
    }

    /// Nothing of an image is cut: a prompt in which it would be is left out, as any that is too long.
    #[test]
    fn a_cut_spares_images() {
        let codec = seeing();
        let prepare = |content: &str, overlong, limit| {
            codec.prepare(shown(content, &[(28, 14)]), "training", overlong, limit)
        };
        // Four tokens for the image, four of text.
        let right = prepare("abcd", OverlongPrompts::Right, 6).expect("cut");
        assert_eq!((right.num_truncated, right.num_dropped), (1, 0));
        assert_eq!(right.prompts[0].text.as_ref(), "<s><i></s>ab");
        assert_eq!(right.prompts[0].token_ids.to_vec(), ids(&codec, "<s><i><i></s>ab"));
        let left = prepare("abcd<image>", OverlongPrompts::Left, 6).expect("cut");
        assert_eq!(left.prompts[0].token_ids.to_vec(), ids(&codec, "cd<s><i><i></s>"));
        for (content, overlong) in [
            ("abcd", OverlongPrompts::Left),
            ("abcd", OverlongPrompts::Middle),
            ("abcd<image>", OverlongPrompts::Right),
            ("abcd", OverlongPrompts::Drop),
        ] {
            let error = prepare(content, overlong, 6).expect_err("left out").to_string();
            assert!(error.contains("over the limit of 6 tokens (they have 8 to 8)"), "{error}");
        }
        assert!(matches!(prepare("abcd", OverlongPrompts::Right, 3), Err(CodecError::Fault(_))));
        assert!(prepare("abcd", OverlongPrompts::Error, 6).is_err());
    }

    #[test]
    fn images_that_the_model_would_not_see_are_refused() {
        let refused = |codec: &Codec, prompts| {
            let error = codec.prepare(prompts, "training", OverlongPrompts::Error, 100).expect_err("refused");
            std::error::Error::source(&error).expect("a cause").to_string()
        };
        let text = codec_with(SEES, &serde_json::json!({"model_type": "qwen2"}));
        insta::assert_snapshot!(refused(&text, shown("a", &[(14, 14)])), @"the prompt has 1 image, but the model does not support images (`model_type: qwen2_vl` or `model_type: qwen2_5_vl` in its config.json); name a vision-language model in model.path, or set data.images=false to leave images out");
        let config = serde_json::json!({"model_type": "qwen2_vl", "image_token_id": 101});
        let blind = codec_with(
            "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}",
            &config,
        );
        insta::assert_snapshot!(refused(&blind, shown("a", &[(14, 14)])), @"the prompt has 1 images, and the model's chat template shows 0: it is a template for text only; set model.chat_template to another");
        insta::assert_snapshot!(refused(&seeing(), shown("<i>a", &[(14, 14)])), @"the prompt has 1 images, and the model's chat template shows 2: the text has the image token in it, or the template repeats or drops images");
        insta::assert_snapshot!(refused(&seeing(), shown("<i>a", &[])), @"the prompt has 0 images, and the model's chat template shows 1: the text has the image token in it, or the template repeats or drops images");
        let mut bare = shown("a", &[(14, 14)]);
        bare[0].content = PromptContent::Text("a".to_owned());
        insta::assert_snapshot!(refused(&seeing(), bare), @"the prompt has images but is bare text, and images need a conversation: set data.prompt_format=chat, or write the prompt as messages");
    }

    /// A row's `tools` and `chat_template_kwargs` reach the template, before what the run sets.
    #[test]
    fn a_row_sets_variables_of_the_template() {
        let source = "{% for t in tools or [] %}{{ t.name }}{% endfor %}{{ mode }}{{ messages[0].name }}";
        let mut codec = codec_with(source, &serde_json::json!({}));
        codec.template_arguments = Map::from_iter([("mode".to_owned(), "b".into())]);
        let fields = serde_json::json!({"role": "user", "content": "?", "name": "d"});
        let prompt = |columns: serde_json::Value| {
            let mut prompt = shown("?", &[]).remove(0);
            let message = tamis_data::prompt::Message::read(&fields, false).expect("a message");
            prompt.content = PromptContent::Messages(vec![message]);
            prompt.columns = columns.as_object().expect("columns").clone();
            prompt
        };
        let text = |codec: &Codec, columns| match codec.render(&prompt(columns)) {
            Ok((text, ..)) => text,
            Err(error) => error.to_string(),
        };
        let tools = serde_json::json!([{"name": "a"}]);
        assert_eq!(text(&codec, serde_json::json!({})), "bd");
        assert_eq!(text(&codec, serde_json::json!({"tools": tools})), "abd");
        assert_eq!(text(&codec, serde_json::json!({"chat_template_kwargs": {"mode": "c"}})), "cd");
        insta::assert_snapshot!(text(&codec, serde_json::json!({"tools": 1})), @"the column `tools` goes to the chat template and must be a list of tools as JSON objects (or that list as JSON text), got 1; rename it if it is something else");
        let playing = codec.clone().with_tools(&[serde_json::json!({"name": "c"})]);
        assert_eq!(text(&playing, serde_json::json!({})), "cbd");
        insta::assert_snapshot!(text(&playing, serde_json::json!({"tools": tools})), @"the row has a column `tools`, but only the environment's own tools can be called: rename the column, or remove it");
    }

    #[test]
    fn what_the_model_does_not_see_is_said() {
        let prompts = |contents: &[&str]| -> Vec<Prompt> {
            let one = |(id, content): (u64, &&str)| Prompt {
                id: PromptId(id),
                content: PromptContent::Messages(vec![tamis_data::prompt::Message::new("user", *content)]),
                ..shown(content, &[]).remove(0)
            };
            (0..).zip(contents).map(one).collect()
        };
        let warnings = |template: &str, contents: &[&str], limit: usize| {
            let mut codec = codec_with(template, &serde_json::json!({}));
            let folder = tempfile::tempdir().expect("a folder");
            let model = serde_json::json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
                "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "?": 2}, "merges": []},
            });
            std::fs::write(folder.path().join("tokenizer.json"), model.to_string()).expect("written");
            codec.tokenizer = Tokenizer::load(folder.path()).expect("a tokenizer");
            let prepared = codec.prepare(prompts(contents), "training", OverlongPrompts::Right, limit);
            prepared.expect("prepared").warnings.join("\n")
        };
        let plain = "{{ messages[0].content }}";
        assert_eq!(warnings(plain, &["a", "b"], 9), "");
        assert_eq!(warnings(plain, &["a", "a"], 9), "", "rows of one prompt are one prompt");
        insta::assert_snapshot!(warnings(plain, &["aé", "b", "ac"], 9), @"the tokenizer has no token for 'c' (U+0063), 'é' (U+00E9), so the model does not see them in 2 of 3 training prompts: write the data in other characters, or take a model whose tokenizer knows all bytes");
        insta::assert_snapshot!(warnings("a?", &["a", "b"], 9), @"all 2 training prompts are the same to the model, although their rows differ: the chat template does not show the messages, or data.max_prompt_length cuts off what differs");
        assert!(warnings(plain, &["aa", "ab"], 1).starts_with("all 2 training prompts are the same"));
    }
}
