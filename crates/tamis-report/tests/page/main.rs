//! The page of `tamis report`, over made-up runs.

mod fixture;
mod hostile;
mod large;
mod structure;
mod unusual;
