//! The command line as typed in: what clap parses, nothing interpreted yet.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tamis_config::foreign::{is_foreign_option, join_options};
use tamis_core::filter::{Bounds, GroupFilter, Mass, PoolScore, Prefer, Singleton};
use tamis_core::setting::{Described, Shape};

/// Trains language models by reinforcement learning with verifiable rewards.
#[derive(Debug, Parser)]
#[command(
    name = "tamis",
    version,
    about = "Trains language models by reinforcement learning with verifiable rewards",
    max_term_width = 110,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: 0 done, 1 run failed, 2 usage or configuration, 3 a backend cannot be reached, \
                        4 resume does not match, 130 interrupted.\nResults go to stdout, progress and logs to stderr."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train: generate groups, score them, sieve out those without signal, refill, learn.
    Train(Train),
    /// Evaluate a run's or a checkpoint's policy on its validation task: mean@k, pass@k, best@k, maj@k.
    Eval(Eval),
    /// Serve a run's or a checkpoint's policy over HTTP, with vLLM's interface and OpenAI's.
    Serve(Box<Serve>),
    /// Apply a group filter offline to rollouts that anyone produced (JSONL or Parquet).
    Filter(Box<Filter>),
    /// Show what a run generated: prompts, completions, scores, where each trajectory ended.
    Rollouts(Rollouts),
    /// Write a run's or a checkpoint's policy as a Hugging Face folder that other programs (vLLM, transformers) load.
    Export(Export),
    /// Say what an algorithm, estimator, loss or filter is: formula, source, defaults, what other systems call it.
    Explain {
        /// Its name (`rloo`, `dapo`, `variance`); without one, every name there is.
        name: Option<String>,
    },
    /// Show, check, explain and import configurations.
    #[command(subcommand)]
    Config(Config),
}

/// The command line, with options of other systems (TRL's `--num_generations 8`) as overrides (`num_generations=8`) where a configuration
/// is read.
pub(crate) fn typed() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some(texts) = words.iter().map(|word| word.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    else {
        return words;
    };
    let path: &[&str] = match texts.get(1).map(String::as_str) {
        Some("train") => &["train"],
        Some("eval") => &["eval"],
        Some("config") if texts.get(2).is_some_and(|word| word == "check") => &["config", "check"],
        Some("config") if texts.get(2).is_some_and(|word| word == "show") => &["config", "show"],
        _ => return words,
    };
    let root = Arguments::command();
    let Some(command) = path.iter().try_fold(&root, |command, name| command.find_subcommand(name)) else {
        return words;
    };
    let own: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).chain(["help"]).collect();
    let is_foreign = |word: &String| {
        let name = word.strip_prefix("--").map(|option| option.split('=').next().unwrap_or(option));
        name.is_some_and(|name| !own.contains(&name) && is_foreign_option(name))
    };
    // Without an option of theirs what nobody knows is left to clap.
    if !texts.iter().any(is_foreign) {
        return words;
    }
    join_options(&texts, |name| own.contains(&name)).into_iter().map(Into::into).collect()
}

/// Configuration files, left to right, and `key=value` overrides (`+key=value` adds, `~key` takes away).
#[derive(Debug, Clone, Args)]
pub(crate) struct Layers {
    /// Files (`a.yaml`) and overrides (`rollout.n=8`, `+rollout.stop=x`, `~filter`); keys and files of verl, TRL, EasyR1 and
    /// RAGEN are understood too (`config=easyr1.yaml`, `--num_generations 8`).
    #[arg(value_name = "CONFIG.yaml | KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) layers: Layers,
    /// Continue the run in RUN_DIR from its last checkpoint; overrides may change only what `config explain` says may change.
    #[arg(long, value_name = "RUN_DIR")]
    pub(crate) resume: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Eval {
    /// A run directory (its last checkpoint is taken) or a checkpoint folder in Hugging Face layout.
    #[arg(value_name = "RUN_DIR | CHECKPOINT")]
    pub(crate) source: PathBuf,
    /// Files and overrides on top of the run's own configuration (`validate.n=8`, `validate.temperature=1.0`); for a checkpoint that is
    /// in no run, all there is (`data.val=test.jsonl 'reward=[{kind: math}]'`).
    #[command(flatten)]
    pub(crate) layers: Layers,
    /// Write every sample here, with its scores: `x.jsonl` or `x.parquet`.
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// Replace the file of samples where it is there already.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// A run directory (its last checkpoint is taken) or a checkpoint folder in Hugging Face layout.
    #[arg(value_name = "RUN_DIR | CHECKPOINT")]
    pub(crate) source: PathBuf,
    /// The folder to make.
    #[arg(value_name = "FOLDER")]
    pub(crate) target: PathBuf,
    /// Write an output head that is tied to the embedding as a tensor of its own: a server whose weights are to be reloaded needs it where
    /// it keeps the old head of a tied model (vLLM's build for CPUs does, silently).
    #[arg(long)]
    pub(crate) untie: bool,
    /// Type of the weights in the folder.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    pub(crate) dtype: Dtype,
}

/// Type of saved weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// 32 bits: what was computed, exactly.
    F32,
    /// Brain float.
    Bf16,
    /// Half precision; refused where a weight is beyond it.
    F16,
}

#[derive(Debug, Args)]
pub(crate) struct Rollouts {
    /// A run directory, or a file of rollouts or of validation samples (Parquet or JSONL).
    #[arg(value_name = "RUN_DIR | FILE")]
    pub(crate) source: PathBuf,
    /// Of a run: the step [default: the last one whose rollouts were saved].
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
    /// Only trajectories that ended so (`trained`, `surplus`, `all_wrong`, ...); `dropped` stands for whatever the filter dropped.
    #[arg(long, value_name = "NAME")]
    pub(crate) verdict: Option<String>,
    /// Only those of this group (`group_id`).
    #[arg(long, value_name = "ID")]
    pub(crate) group: Option<u64>,
    /// Only those of this prompt (`prompt_id`).
    #[arg(long, value_name = "ID")]
    pub(crate) prompt: Option<u64>,
    /// Trajectories that are shown.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) limit: usize,
    /// Print one JSON object, rows with all their columns in it.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenPaused {
    /// They wait, as with vLLM 0.32.
    Queue,
    /// Status 503 with the code `engine_paused`, as with vLLM 0.33 (paused with `keep`, they wait).
    Refuse,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// A run directory (its last checkpoint), a checkpoint of it, or a folder in Hugging Face layout.
    #[arg(value_name = "RUN_DIR|CHECKPOINT")]
    pub(crate) source: PathBuf,
    /// Name or address to listen on; one that other machines reach needs a key.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes any free one, which is printed.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// File with the key that clients must send (`Authorization: Bearer KEY`); without one anybody on this machine may ask.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// What clients call the model [default: RUN_DIR|CHECKPOINT as typed].
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,
    /// Worker threads [default: one per core]; the answers do not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Samples that run at once, at most; small models run fewer, which is faster.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_seqs: u32,
    /// Tokens whose keys and values are held at once, at most [default: what half of the free memory holds].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_cached_tokens: Option<u64>,
    /// Samples in flight, at most; requests beyond are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_queued: u32,
    /// Bytes of a request, at most; larger ones are refused with status 413.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_body_bytes: u32,
    /// Connections at once, at most; others wait to be accepted.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_connections: u16,
    /// Longest time that a request is worked on; then it is given up, with status 504.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) request_timeout: u32,
    /// Longest time that a client may take to send a request, to take some of an answer, or to say nothing; then it is cut off.
    #[arg(long, value_name = "SECONDS", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_timeout: u32,
    /// What becomes of requests that come while generation is paused with `abort` or `wait`.
    #[arg(long, value_enum, default_value = "queue")]
    pub(crate) when_paused: WhenPaused,
    /// For tests: a step of the engine takes at least this long.
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    pub(crate) test_step_ms: Option<f64>,
    /// For tests: and this much longer for each sample that runs.
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    pub(crate) test_sample_ms: Option<f64>,
    /// For tests: completions have lognormal lengths of this median (tokens) and sigma, whatever the model says.
    #[arg(long, hide = true, num_args = 2, value_names = ["MEDIAN", "SIGMA"])]
    pub(crate) test_lengths: Option<Vec<f64>>,
}

/// The values of a key of the configuration, for an option that means the same.
fn values_of<T: Described>() -> PossibleValuesParser {
    let values = match T::shape() {
        Shape::Choice(values) => values,
        Shape::Tagged { variants, .. } => variants.iter().map(|kind| (kind.name, kind.doc)).collect(),
        _ => Vec::new(),
    };
    let words =
        |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned();
    PossibleValuesParser::new(values.into_iter().map(|(name, doc)| PossibleValue::new(name).help(words(doc))))
}

#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Rollouts: one row a trajectory, or (with several --metric) one row a whole group.
    #[arg(value_name = "ROLLOUTS.{jsonl,parquet}", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Column of the metric, dotted where nested (`acc`, `175b_finetuning.is_correct`); booleans count 0 and 1. Given more than
    /// once, each row is a group and these columns are its members; so it is where the column holds a list.
    #[arg(long, value_name = "COLUMN", required = true)]
    pub(crate) metric: Vec<String>,
    /// The metric is no outcome (a length, say): uniform groups are not called all correct or all wrong.
    #[arg(long)]
    pub(crate) no_outcome: bool,
    /// Column (or columns) that say which group a row belongs to (default: `uid`, `group` and the like, the first there is); not
    /// needed where a row holds a whole group.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) group: Vec<String>,
    /// Which rule.
    #[arg(long, value_parser = values_of::<GroupFilter>(), default_value = "variance", alias = "kind")]
    pub(crate) strategy: String,
    /// variance: how far apart two members must be to differ (max - min > tolerance) [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) tolerance: Option<f64>,
    /// variance: what to do with a group of one [default: keep].
    #[arg(long, value_parser = values_of::<Singleton>())]
    pub(crate) singleton: Option<String>,
    /// mean_range: lower bound of the group's mean; percentile: where the band begins [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) low: Option<f64>,
    /// mean_range: upper bound of the group's mean; percentile: where the band ends [default: 1].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) high: Option<f64>,
    /// mean_range: whether the bounds themselves are kept (closed) or not (open) [default: open].
    #[arg(long, value_parser = values_of::<Bounds>())]
    pub(crate) bounds: Option<String>,
    /// top_p: share of the mass to keep; min_p: share of the best score that a group needs.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) p: Option<f64>,
    /// top_k: groups to keep; within_group: members of each group to keep.
    #[arg(long)]
    pub(crate) k: Option<usize>,
    /// The same as a part of all, in place of --k.
    #[arg(long, conflicts_with = "k", allow_negative_numbers = true)]
    pub(crate) fraction: Option<f64>,
    /// top_p, top_k, min_p, percentile (all files are one round): what groups are ranked by [default: deviation].
    #[arg(long, value_parser = values_of::<PoolScore>())]
    pub(crate) score: Option<String>,
    /// Likewise: 0 for deviations of a population, 1 for those of a sample [default: 0].
    #[arg(long)]
    pub(crate) ddof: Option<u8>,
    /// Likewise: which scores are the good ones [default: largest].
    #[arg(long, value_parser = values_of::<Prefer>())]
    pub(crate) prefer: Option<String>,
    /// Likewise: drop groups whose score is 0 first; within_group: drop uniform groups.
    #[arg(long)]
    pub(crate) exclude_zero: bool,
    /// top_p: what a group weighs [default: softmax].
    #[arg(long, value_parser = values_of::<Mass>())]
    pub(crate) mass: Option<String>,
    /// top_p with mass softmax: divides scores [default: 1].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// top_p with mass linear or variance: mass that may be missing [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) slack: Option<f64>,
    /// Write the rows of kept groups here, in the input's format.
    #[arg(long, value_name = "FILE")]
    pub(crate) kept: Option<PathBuf>,
    /// Write the rows of dropped groups here, in the input's format.
    #[arg(long, value_name = "FILE")]
    pub(crate) dropped: Option<PathBuf>,
    /// Replace output files that are there already.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print the resolved configuration, each value with where it comes from.
    Show(Layers),
    /// Report every violation and warning at once.
    Check(Layers),
    /// Say what a key means, its type, default and allowed values, and which foreign keys map to it.
    Explain {
        /// Dotted key (`schedule.on_limit`), or a section.
        key: String,
    },
    /// Print the JSON Schema of the configuration.
    Schema,
    /// Translate arguments of verl, TRL, EasyR1 or RAGEN: prints the equivalent configuration and what each key became.
    Import {
        /// The foreign command, or its arguments; after `--` where they are options.
        #[arg(
            value_name = "FOREIGN ARGUMENT",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        arguments: Vec<String>,
    },
    /// Print the reference page of all keys (the source of docs/configuration.md).
    #[command(hide = true)]
    Reference,
    /// Print the catalogue of algorithms (the source of docs/algorithms.md).
    #[command(hide = true)]
    Algorithms,
    /// Print the catalogue of metrics (the source of docs/metrics.md).
    #[command(hide = true)]
    Metrics,
    /// Print the columns of the files of rollouts and samples (the source of docs/rollouts.md).
    #[command(hide = true)]
    Rollouts,
}
