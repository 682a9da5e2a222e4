//! Kernel: data sets and rollout files, as JSONL and Parquet.
//!
//! [`records`] reads either format as rows of JSON values with their file and row, and copies chosen rows
//! unchanged. [`columns`] reads single columns of a Parquet file. [`dataset`] turns rows into
//! [`prompt::Prompt`]s, [`sft_rows`] into examples to imitate, and [`prompt_format`] turns text into a
//! user's message if it should be one. [`image`] finds the images of prompts, and [`overlong`] handles
//! prompts over the token limit. [`sampler`] decides which prompt comes next, and [`curriculum`] can sort
//! them by a column. [`rollouts`] writes what was generated, [`dumped`] what another trainer kept of it,
//! and [`samples`] the samples of validation. [`whole_file`] makes a file appear complete or not at all.

pub mod columns;
pub mod curriculum;
mod data_record;
pub mod dataset;
pub mod dumped;
mod file_format;
pub mod image;
mod jsonl;
pub mod message;
pub mod overlong;
mod parquet_file;
pub mod prompt;
pub mod prompt_format;
mod record_error;
pub mod records;
pub mod rollouts;
pub mod sampler;
pub mod samples;
pub mod sft_rows;
mod table;
mod turns;
pub mod whole_file;
