//! Datasets and rollout files: JSONL and Parquet.

pub mod prompt;
