//! Why nothing can be advised.

use std::path::PathBuf;

use crate::monitor::MonitorError;
use tamis_data::records::RecordError;
use tamis_run::directory::FolderError;
use thiserror::Error;

/// Nothing can be advised.
#[derive(Debug, Error)]
pub enum AdviseError {
    /// There is nothing at this path.
    #[error("there is no file or folder {}", path.display())]
    NothingThere {
        /// The path.
        path: PathBuf,
    },
    /// A folder cannot be listed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A row cannot be read.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// A log or a run cannot be followed.
    #[error(transparent)]
    Log(#[from] MonitorError),
    /// Nothing is in the file.
    #[error("{}: no group is in it", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// Nothing is in the file of the steps asked for.
    #[error("{}: no group is in it, of the steps that --steps asks for", path.display())]
    OtherSteps {
        /// The file or folder.
        path: PathBuf,
        /// The first and the last step that there is.
        steps: (u64, u64),
    },
    /// No row says which group it is of.
    #[error("{}: none of its {rows} rows says which group it is of", path.display())]
    NoGroup {
        /// The file or folder.
        path: PathBuf,
        /// Number of rows.
        rows: u64,
        /// What is wrong with the first row, where one cannot be read at all.
        fault: Option<String>,
    },
    /// No row says of which step it is, and steps were asked for.
    #[error("{}: no row says of which step it is", path.display())]
    NoSteps {
        /// The file or folder.
        path: PathBuf,
    },
    /// There are no rollouts where some are needed.
    #[error("no rollouts are in {}", path.display())]
    NoRollouts {
        /// The file or folder.
        path: PathBuf,
    },
    /// No row says what it came to.
    #[error("no row has an outcome{}", named(there))]
    NoOutcome {
        /// The numbers that there are.
        there: Vec<String>,
    },
    /// The metric that was asked for is not there.
    #[error("no row has a number `{metric}`{}", named(there))]
    NoMetric {
        /// Its name.
        metric: String,
        /// The numbers that there are.
        there: Vec<String>,
    },
    /// A log whose counts are of another filter than the one that advice is about.
    #[error("{}: its counts are of the run's filter `{filter}`, and no `all/frac_reward_zero_std` says in how many groups the rewards differ", path.display())]
    OtherFilter {
        /// The log.
        path: PathBuf,
        /// The run's filter.
        filter: String,
    },
    /// A log that tells of no step.
    #[error("{}: no step says how many groups were kept", path.display())]
    NoCounts {
        /// The log.
        path: PathBuf,
        /// What it lacks, where it is what verl prints.
        gap: Option<VerlGap>,
    },
}

/// Why nothing is known of the keep rate from what verl prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerlGap {
    /// No step took a second batch, or there was no filter.
    NoRefill,
    /// Steps took several batches, and what these kept is not there.
    NoLines,
    /// The number of prompts of a batch is not there.
    NoSize,
    /// What the buffer of verl's default trainer let go is counted, and how many groups a step trained on is not there.
    NoBatch,
    /// Batches of so many prompts cannot have come to what is printed of most steps.
    OtherSize {
        /// The first of them.
        step: u64,
        /// Prompts of a batch.
        generated: usize,
    },
    /// None of the steps that are asked for is there.
    OtherSteps {
        /// The first and the last step that there is.
        steps: (u64, u64),
    },
}

fn named(there: &[String]) -> String {
    if there.is_empty() {
        return String::new();
    }
    let names: Vec<String> = there.iter().map(|name| format!("`{name}`")).collect();
    format!("; there are {}", names.join(", "))
}

impl AdviseError {
    /// Whether what was asked for is wrong, rather than what the files hold.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NothingThere { .. }
            | Self::NoRollouts { .. }
            | Self::NoMetric { .. }
            | Self::NoSteps { .. }
            | Self::OtherSteps { .. } => true,
            Self::Records(error) => matches!(error, RecordError::Open { .. }),
            Self::Log(error) => error.is_usage(),
            Self::Folder(_)
            | Self::Empty { .. }
            | Self::NoGroup { .. }
            | Self::NoOutcome { .. }
            | Self::OtherFilter { .. }
            | Self::NoCounts { .. } => false,
        }
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoSteps { .. } => {
                "leave --steps out, or give rows a `step`; of a folder the last number of a file's name is its step".to_owned()
            }
            Self::OtherSteps { steps: (first, last), .. } if first == last => {
                format!("step {last} is there: ask for it, or leave --steps out")
            }
            Self::OtherSteps { steps: (first, last), .. } => {
                format!("steps {first} to {last} are there: ask for some of these, or leave --steps out")
            }
            Self::NoRollouts { .. } => "name a run directory, or a file of rollouts (JSONL or Parquet)".to_owned(),
            Self::NothingThere { .. } => {
                "name a run directory, a file of rollouts (JSONL or Parquet), or a log".to_owned()
            }
            Self::Log(error) => return error.hint(),
            Self::Empty { .. } => {
                "let the run finish a step, or name another file; a run writes rollouts unless `rollout.save` is `off`"
                    .to_owned()
            }
            Self::NoGroup { fault: Some(fault), .. } => format!("the first that cannot be read: {fault}"),
            Self::NoGroup { .. } => {
                "a group is read from `group_id`, `uid`, `group`, `prompt_id`, or from the text of `prompt` or `input`"
                    .to_owned()
            }
            Self::NoOutcome { .. } => {
                "an outcome is read from `acc`, `accuracy`, `success`, `score` or `reward`; name another with --metric"
                    .to_owned()
            }
            Self::NoMetric { .. } => "name one of them with --metric".to_owned(),
            Self::NoCounts { gap: Some(gap), .. } => {
                let why = match gap {
                    VerlGap::NoRefill | VerlGap::OtherSteps { .. } => {
                        "verl prints nothing of a batch that fills its step, and no step took a second one: most prompts are kept, or there was no filter".to_owned()
                    }
                    VerlGap::NoLines => {
                        "steps took several batches, and their lines (`num_prompt_in_batch=424 < prompt_bsz=1024`) are not there: give all that verl printed".to_owned()
                    }
                    VerlGap::NoSize => {
                        "say how many prompts a batch had (`data.gen_batch_size=N` behind it), which verl prints with its configuration".to_owned()
                    }
                    VerlGap::NoBatch => {
                        "say how many groups a step trains on (`data.train_batch_size=N` behind it), which verl prints with its configuration".to_owned()
                    }
                    VerlGap::OtherSize { step, generated } => {
                        format!("what is printed of step {step} and others cannot be of batches of {generated} prompts: check `data.gen_batch_size`")
                    }
                };
                format!("{why}; or give the rollouts that it dumps (`trainer.rollout_data_dir`)")
            }
            Self::OtherFilter { .. } => "name the run's rollouts".to_owned(),
            Self::NoCounts { .. } => {
                "name the run's rollouts, or a log with the lines that docs/monitor.md shows".to_owned()
            }
            Self::Folder(_) | Self::Records(_) => return None,
        })
    }
}
