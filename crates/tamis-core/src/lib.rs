//! Kernel: rollout groups, filters, advantages, losses and the scheduling machine, all of it pure.
//!
//! Nothing here does I/O, waits, reads a clock or uses a tensor framework. Data flows one way through the
//! modules: [`group`] (what was sampled) → [`filter`] (which groups have a signal) → [`schedule`] (what is
//! generated next and what is trained on) → [`advantage`] → [`correction`] (weights and masks) →
//! [`objective`] (a loss value and one derivative per token). [`balance`] distributes the work over ranks and
//! micro-batches, [`diagnostics`] measure a batch, and [`early_stop`] detects runs that no longer make
//! progress. [`random`] gives every draw its own key, [`ragged`] defines the layout of per-token data,
//! [`figure`] formats numbers for people, [`weights`] has the configuration's words for weights, and
//! [`caught`] turns panics into values.
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
pub mod own_function;
pub mod printable;
pub mod ragged;
pub mod random;
pub mod schedule;
pub mod setting;
pub mod weights;
pub mod whole_step;
