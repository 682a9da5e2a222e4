//! A small HTTP server for tests, a fake vLLM on it, and a proxy that spoils answers.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod decoder;
pub(crate) mod fake_vllm;
pub(crate) mod http;
pub(crate) mod proxy;
