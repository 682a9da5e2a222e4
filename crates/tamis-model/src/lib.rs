//! The native CPU engine: Qwen2, Qwen3 and Llama forward, backward and generation.
