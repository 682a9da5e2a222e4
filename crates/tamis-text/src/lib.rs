//! Kernel: tokenizers, chat templates and masks of regular expressions. Text to token ids and back,
//! conversations to text.
//!
//! [`tokenizer`] wraps a `tokenizer.json` with the special tokens that other files of its folder declare;
//! [`character`] makes the small built-in one. [`template`] renders conversations. [`decode`] and [`stop`]
//! turn sampled ids into text as they arrive, and find where to stop. [`image_tokens`] counts the tokens of
//! images. [`peers`] compares a tokenizer with the one that `transformers` builds.

pub mod character;
pub mod decode;
mod growth;
pub mod image_tokens;
pub mod peers;
pub mod regex_mask;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod transcript;
