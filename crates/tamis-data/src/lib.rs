//! Datasets and rollout files: JSONL and Parquet.
