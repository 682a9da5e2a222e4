//! Scheduling state machines: what is generated next and what is trained on.
