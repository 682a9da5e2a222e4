//! Kernel: rollout groups, filters, advantages, losses and the scheduling machine, all of it pure.
//!
//! Nothing here does I/O, waits, reads a clock or uses a tensor framework. Data flows one way through the
//! modules: [`group`] (what was sampled) → [`filter`] (which groups carry signal) → [`schedule`] (what is
//! generated next, what is trained on) → [`advantage`] → [`correction`] (weights and masks) → [`objective`]
//! (a loss value and one derivative per token), shared out over ranks and micro-batches by [`balance`];
//! [`diagnostics`] measure a batch and [`early_stop`] says when a run goes on for nothing. [`random`] gives
//! every draw its own key; [`ragged`] is how per-token data is laid out; [`figure`] writes numbers for
//! people; [`weights`] has the words of the configuration for them; [`caught`] makes values of panics.
//!
//! Shape letters: P prompts, G group size, B trajectories (P·G), T tokens of one trajectory, N = ΣT (ragged),
//! V vocabulary.

pub mod advantage;
pub mod balance;
pub mod catalogue;
pub mod caught;
pub mod correction;
pub mod diagnostics;
pub mod early_stop;
pub mod entry;
pub mod fault;
pub mod figure;
pub mod filter;
pub mod group;
pub mod objective;
pub mod printable;
pub mod ragged;
pub mod random;
pub mod schedule;
pub mod setting;
pub mod weights;
pub mod whole_step;
