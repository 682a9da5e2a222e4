//! `tamis serve` over real sockets, with a tiny model: every route, every refusal, and misbehaving clients.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "what must be exact is compared exactly")]

mod harness;

mod client;
mod control;
mod hostile;
mod log;
mod refused;
mod sampled;
mod several;
mod wire;
