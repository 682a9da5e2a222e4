//! The command line as the user typed it: what clap parses, before anything is interpreted.

mod filter;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tamis_cluster::plan::machines::Machines;
use tamis_core::weights::SaveDtype;
use tamis_import::{is_foreign_option, join_options};
use tamis_lab::report::StepRange;

pub(crate) use self::filter::FilterArguments;
use self::filter::value_of;

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
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Train: sample groups, score them, drop those without signal, refill, learn.
    Train(TrainArguments),
    /// Run a grid of configurations, the baseline first, and compare them; or compare existing runs.
    Sweep(SweepArguments),
    /// Evaluate a run or a checkpoint on validation prompts: mean@k, pass@k, best@k, maj@k.
    Eval(EvalArguments),
    /// Serve a run or a checkpoint over HTTP, with vLLM's interface and OpenAI's.
    Serve(Box<ServeArguments>),
    /// Chat with a run or a checkpoint: a line is a message, and the answer is shown as it is sampled.
    Chat(ChatArguments),
    /// Learn for a run in another process (`learner.url`), on the native engine.
    Learner(LearnerArguments),
    /// Apply a group filter to rollouts that any program wrote (JSONL or Parquet).
    Filter(Box<FilterArguments>),
    /// Show what a run generated: prompts, completions, scores, verdicts.
    Rollouts(RolloutsArguments),
    /// Follow a run while it works, or the log of another system (verl, EasyR1).
    Monitor(MonitorArguments),
    /// Make one HTML page of a run, or of several side by side.
    Report(ReportArguments),
    /// Advise on the settings of a filtered run, from rollouts, a run or a log: keep rates, cost by schedule,
    /// round size, limit, metric, and what looks wrong; with lines to paste.
    Advise(AdviseArguments),
    /// Try schedules out on a virtual clock: what each policy costs, how long a step takes, what it trains
    /// on.
    Simulate(SimulateArguments),
    /// Write a run's model as a Hugging Face folder for vLLM, transformers and others.
    Export(ExportArguments),
    /// Explain a preset, reward, advantage, loss or filter: formula, source, defaults, names in other
    /// systems.
    Explain {
        /// Its name (`rloo`, `dapo`, `variance`); without one, all names are listed.
        name: Option<String>,
    },
    /// Examine this machine (GPUs, driver, Python environments, servers, Ray, disks), and print what can run
    /// with it and what a configuration lacks.
    Doctor(DoctorArguments),
    /// Print a page of the documentation; without a name, all names.
    Docs {
        /// Its name (`rewards`), or a link to it as pages write them (`../studies/claims.md`).
        page: Option<String>,
    },
    /// Write a first configuration, a reward and questions into a folder.
    Init {
        /// The folder.
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Show, check, explain and import configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// The command line. If a configuration is read, options of other systems (TRL's `--num_generations 8`)
/// become overrides (`num_generations=8`).
pub(crate) fn read_arguments() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some(texts) = words.iter().map(|word| word.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    else {
        return words;
    };
    if let Some(words) = own_options_before_script(&texts) {
        return words.into_iter().map(Into::into).collect();
    }
    let path: &[&str] = match texts.get(1).map(String::as_str) {
        Some("train") => &["train"],
        Some("doctor") => &["doctor"],
        Some("eval") => &["eval"],
        Some("sweep") => &["sweep"],
        Some("simulate") => &["simulate"],
        Some("advise") => &["advise"],
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
    // Without an option of another system, clap handles what is unknown.
    if !texts.iter().any(is_foreign) {
        return words;
    }
    join_options(&texts, |name| own.contains(&name)).into_iter().map(Into::into).collect()
}

/// Language of a script that replaces a configuration in `tamis train`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Shell,
    Python,
}

impl Language {
    /// By the ending of its name; `None` if a word names no script.
    pub(crate) fn of(word: &str) -> Option<Self> {
        let ending = Path::new(word).extension().filter(|_| !word.contains('='))?;
        match ending.to_str()? {
            "sh" | "bash" => Some(Self::Shell),
            "py" => Some(Self::Python),
            _ => None,
        }
    }
}

/// The command line of `tamis train SCRIPT ...`: the options of tamis first, then `--` and the script's own
/// arguments. `None` if it trains no script.
fn own_options_before_script(words: &[String]) -> Option<Vec<String>> {
    let [program, train, rest @ ..] = words else { return None };
    let (mut own, mut others) = (vec![program.clone(), train.clone()], Vec::new());
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-v" | "-q" | "--verbose" | "--quiet" | "--dry-run" => own.push(word.clone()),
            "--resume" => own.extend([word].into_iter().chain(rest.next()).cloned()),
            _ if word.starts_with("--resume=") => own.push(word.clone()),
            "--" => {
                others.push(word.clone());
                others.extend(rest.by_ref().cloned());
            }
            _ => others.push(word.clone()),
        }
    }
    let is_script = train == "train" && others.first().is_some_and(|first| Language::of(first).is_some());
    is_script.then(|| own.into_iter().chain(["--".to_owned()]).chain(others).collect())
}

/// Configuration files, left to right, and `key=value` overrides (`+key=value` adds, `~key` removes).
#[derive(Debug, Clone, Args)]
pub(crate) struct LayerArguments {
    /// Files (`a.yaml`) and overrides (`rollout.n=8`, `+rollout.stop=x`, `~filter`); keys and files of verl,
    /// TRL, EasyR1 and RAGEN are understood too (`config=easyr1.yaml`, `--num_generations 8`).
    #[arg(value_name = "CONFIG.yaml | KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// Overrides on top of all of them, for this machine.
    #[arg(skip)]
    pub(crate) of_machine: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) layers: LayerArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    pub(crate) layers: LayerArguments,
    /// Print the plan of the run, too: what runs where, and the memory of each GPU by part. Nothing is
    /// started or loaded; of a model on a hub only its config.json is read.
    #[arg(long)]
    pub(crate) plan: bool,
    /// Plan for these machines, such as 8x80GiB or 2x8x141GB [default: this machine; with
    /// `cluster.launcher: ray` the cluster's machines are unknown].
    #[arg(long, value_name = "[MACHINESx]GPUSxMEMORY", requires = "plan", value_parser = Machines::parse)]
    pub(crate) machines: Option<Machines>,
    /// Print the plan as one JSON object.
    #[arg(long, requires = "plan")]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArguments {
    #[command(flatten)]
    pub(crate) layers: LayerArguments,
    /// With a script (`tamis train run_dapo.sh`, `train_grpo.py`): print what would be trained, and start no
    /// run.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Continue the run in RUN_DIR from its last checkpoint. Keys that may change on resume can be
    /// overridden; `tamis config explain KEY` shows which.
    #[arg(long, value_name = "RUN_DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// Show everything on a terminal: rounds of generation, checkpoints, all figures of a step. `run.log` and
    /// a pipe get it in any case.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Show only warnings and the result. `run.log` gets everything.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SweepArguments {
    /// The sweep, and overrides of every run. With --compare: a sweep, or run directories and files of
    /// metrics (`metrics.jsonl`, of tamis or with verl's names), the first of which is the baseline.
    #[arg(value_name = "SWEEP.yaml | KEY=VALUE | RUN_DIR", required = true)]
    pub(crate) arguments: Vec<String>,
    /// Print a line for each run and end: its results folder, then its cost.
    #[arg(long, conflicts_with = "compare")]
    pub(crate) dry_run: bool,
    /// Compare the existing runs, and run nothing.
    #[arg(long)]
    pub(crate) compare: bool,
    /// The part of the sweep to run: a name of its `only`, or all.
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Month and day in the names of the runs [default: those of the sweep's first run, in UTC]. Another date
    /// begins the sweep anew.
    #[arg(long, value_name = "MMDD")]
    pub(crate) date: Option<String>,
    /// A file, or an override, in place of the sweep's `base`; may be given several times.
    #[arg(long, value_name = "CONFIG.yaml | KEY=VALUE")]
    pub(crate) base: Vec<String>,
    /// Number of concurrent runs, which share cores and GPUs [default: as the sweep says, otherwise 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) parallel: Option<u16>,
    /// A metric to compare by; may be given several times [default: accuracy at validations, and mean
    /// reward].
    #[arg(long, value_name = "NAME")]
    pub(crate) metric: Vec<String>,
    /// Folder of the comparison's .csv, .md and .html [default: the sweep's results; none for other runs].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    /// A run directory (for its last checkpoint), a model folder in Hugging Face layout, or the name of a
    /// model on a hub [default: the newest run with a checkpoint]. If a second one follows, both are
    /// measured on the same prompts with the same draws, as the first one's run validates, and compared
    /// prompt by prompt.
    #[arg(value_name = "RUN_DIR | CHECKPOINT")]
    pub(crate) source: Option<PathBuf>,
    /// Files and overrides on top of the run's own configuration (`validate.n=8`). A checkpoint outside a run
    /// has none: name at least data and reward (`data.val=test.jsonl 'reward=[{kind: math}]'`).
    #[command(flatten)]
    pub(crate) layers: LayerArguments,
    /// Write every sample here, with its scores: `x.jsonl` or `x.parquet`.
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// Overwrite an existing file of samples.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// A run directory (for its last checkpoint), or a model folder in Hugging Face layout.
    #[arg(value_name = "RUN_DIR | CHECKPOINT")]
    pub(crate) source: PathBuf,
    /// The folder to make.
    #[arg(value_name = "FOLDER")]
    pub(crate) target: PathBuf,
    /// Write an output head that is tied to the embedding as a tensor of its own. vLLM's build for CPUs needs
    /// it if its weights are reloaded: it silently keeps the old head of a tied model.
    #[arg(long)]
    pub(crate) untie: bool,
    /// Type of the weights in the folder.
    #[arg(long, value_parser = value_of::<SaveDtype>(), default_value_t)]
    pub(crate) dtype: SaveDtype,
}

#[derive(Debug, Args)]
pub(crate) struct RolloutsArguments {
    /// A run directory, a folder of TRL, verl, verifiers or prime-rl, or a file of rollouts or of validation
    /// samples (Parquet or JSONL) [default: the newest run with rollouts].
    #[arg(value_name = "RUN_DIR | FILE")]
    pub(crate) source: Option<PathBuf>,
    /// Step of the run [default: the last one whose rollouts were saved].
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
    /// Only trajectories with this verdict (`trained`, `surplus`, `all_wrong`, ...); `dropped` stands for
    /// every reason of the filter.
    #[arg(long, value_name = "NAME")]
    pub(crate) verdict: Option<String>,
    /// Only trajectories of this group (`group_id`).
    #[arg(long, value_name = "ID")]
    pub(crate) group: Option<u64>,
    /// Only trajectories of this prompt (`prompt_id`).
    #[arg(long, value_name = "ID")]
    pub(crate) prompt: Option<u64>,
    /// How many trajectories to show.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) limit: usize,
    /// Print one JSON object that holds the rows with all their columns.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MonitorArguments {
    /// A run directory, a folder of TRL, verl, verifiers or prime-rl, a `metrics.jsonl`, or a log: of tamis,
    /// verl, EasyR1 or TRL, or with verl's filter-group log lines [default: the newest run with a step].
    #[arg(value_name = "RUN_DIR|LOG")]
    pub(crate) path: Option<PathBuf>,
    /// Print the present state as text, and end. This is the default if stdout is no terminal.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the present state as one JSON object, and end.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds between two looks at the files.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Without colours, as with the variable `NO_COLOR`.
    #[arg(long, alias = "no-colour")]
    pub(crate) no_color: bool,
}

/// Seconds between two looks.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("between 0.1 and 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Run directories, finished or not, folders of TRL, verl, verifiers or prime-rl, or files of metrics
    /// (`metrics.jsonl`, of tamis or with verl's names) [default: the newest run].
    #[arg(value_name = "RUN_DIR")]
    pub(crate) runs: Vec<PathBuf>,
    /// The file to write; `-` for stdout [default: report.html in the run directory; for several runs in this
    /// folder].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The steps to show: 10..50, 10.., ..50 or 10 [default: all].
    #[arg(long, value_name = "STEPS", allow_hyphen_values = true)]
    pub(crate) steps: Option<StepRange>,
    /// Groups of each run to show with their completions, spread over at most 12 steps; 0 for none [default:
    /// 48, and 6 of a step].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=2000))]
    pub(crate) samples: Option<u16>,
    /// Title of the page [default: the names of the runs].
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AdviseArguments {
    /// Rollouts that any program wrote (JSONL or Parquet), a run directory, a folder of TRL, verl, verifiers
    /// or prime-rl, or a log: of tamis, verl, EasyR1 or TRL, or with verl's filter-group log lines [default:
    /// the newest run].
    #[arg(value_name = "ROLLOUTS | RUN_DIR | LOG")]
    pub(crate) source: Option<PathBuf>,
    /// The planned settings, on top of a run's own configuration: a configuration, or only the sizes
    /// (`data.train_batch_size=256 rollout.n=8`).
    #[command(flatten)]
    pub(crate) layers: LayerArguments,
    /// The number of a trajectory that means right [default: the first of acc, accuracy, success, score and
    /// reward].
    #[arg(long, value_name = "NAME")]
    pub(crate) metric: Option<String>,
    /// The steps to use: 10..50, 10.., ..50 or 10 [default: the last that have 1024 groups].
    #[arg(long, value_name = "STEPS", allow_hyphen_values = true)]
    pub(crate) steps: Option<StepRange>,
    /// Print one JSON object instead of a text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArguments {
    /// The run's own configuration and the simulated world (`simulate.pass_rate`, `simulate.servers`, ...).
    /// What a simulation does not need, such as a model and data, may be missing.
    #[command(flatten)]
    pub(crate) layers: LayerArguments,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show all columns, and what was wasted by cause; the page has them in any case.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The page to write; `-` for stdout [default: simulation.html in this folder; none with --json].
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenPaused {
    /// They wait, as in vLLM 0.32.
    Queue,
    /// They get status 503 with the code `engine_paused`, as in vLLM 0.33 (paused with `keep`, they wait).
    Refuse,
}

#[derive(Debug, Args)]
pub(crate) struct LearnerArguments {
    /// Address to listen on: HOST:PORT (port 0 takes a free one and prints it), or unix:PATH. One that other
    /// machines reach needs --api-key-file.
    #[arg(long, value_name = "HOST:PORT|unix:PATH", default_value = "127.0.0.1:8700")]
    pub(crate) listen: String,
    /// File with the key that a run must send (`learner.api_key_file`); without one every run on this machine
    /// is served.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Worker threads [default: one per core]; results do not depend on their number.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// For tests: a fault at the call of this number, counted from 1.
    #[arg(long, hide = true, value_name = "N", requires = "test_fault")]
    pub(crate) test_fault_at: Option<u64>,
    /// For tests: the fault.
    #[arg(long, hide = true, value_enum)]
    pub(crate) test_fault: Option<LearnerFault>,
}

/// A fault of a learner, for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LearnerFault {
    /// It is killed before it carries the call out.
    KilledBefore,
    /// It is killed after it has carried the call out, before it answers.
    KilledAfter,
    /// The connection breaks before it carries the call out.
    BrokenBefore,
    /// The connection breaks after it has carried the call out, before it answers.
    BrokenAfter,
    /// It does not carry the call out and never answers, and the connection stays.
    SilentBefore,
    /// It carries the call out and never answers, and the connection stays.
    SilentAfter,
}

/// A temperature from 0.
fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a temperature is a number from 0".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct ChatArguments {
    /// A run directory (for its last checkpoint), a model folder in Hugging Face layout, or the name of
    /// a model on a hub [default: the newest run with a checkpoint]. A second one answers after it, with the
    /// same seed.
    #[arg(value_name = "RUN_DIR|CHECKPOINT", num_args = 0..=2)]
    pub(crate) sources: Vec<PathBuf>,
    /// Message of the system before every conversation; needs a model with a chat template.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    pub(crate) temperature: f64,
    /// Most tokens of an answer; the model's context may end it earlier.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// For tests: a step of the engine takes at least this long.
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    pub(crate) test_step_ms: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// A run directory (for its last checkpoint), a model folder in Hugging Face layout, or the name of
    /// a model on a hub [default: the newest run with a checkpoint]. A second one is served beside it:
    /// requests choose by `model`, and the chat page shows both answers side by side.
    #[arg(value_name = "RUN_DIR|CHECKPOINT", num_args = 0..=2)]
    pub(crate) sources: Vec<PathBuf>,
    /// Name or address to listen on; an address that other machines reach needs --api-key-file.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// File with the key that clients must send (`Authorization: Bearer KEY`); without one anybody on this
    /// machine is served.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Name of the model for clients [default: RUN_DIR|CHECKPOINT as typed]; of two models given twice.
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// Worker threads [default: one per core]; answers do not depend on their number.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Most samples computed at once; small models run fewer, which is faster.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_seqs: u32,
    /// Most tokens in the key-value cache of a model [default: what half of the free memory holds, shared
    /// by the models].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_cached_tokens: Option<u64>,
    /// Most samples in flight; requests beyond are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_queued: u32,
    /// Most of the likeliest tokens that a request gets for a token of its prompt (`prompt_logprobs`).
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) max_logprobs: u32,
    /// Largest request; larger ones are refused with status 413.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_body_bytes: u32,
    /// Most connections at once; others wait to be accepted.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_connections: u16,
    /// Longest time for a request; it then ends with status 504.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) request_timeout: u32,
    /// Longest silence of a client while it sends a request or reads an answer; the connection is then
    /// closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_timeout: u32,
    /// Print a line on stderr for each request: time, method, path, status, tokens and seconds. Keys, prompts
    /// and completions are never printed.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Treatment of requests that arrive while generation is paused with `abort` or `wait`.
    #[arg(long, value_enum, default_value = "queue")]
    pub(crate) when_paused: WhenPaused,
    /// For tests: a step of the engine takes at least this long.
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    pub(crate) test_step_ms: Option<f64>,
    /// For tests: additional time of a step for each sample that runs.
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    pub(crate) test_sample_ms: Option<f64>,
    /// For tests: completions have lognormal lengths of this median (tokens) and sigma, whatever the model
    /// says.
    #[arg(long, hide = true, num_args = 2, value_names = ["MEDIAN", "SIGMA"])]
    pub(crate) test_lengths: Option<Vec<f64>>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective configuration, each value with its origin.
    Show(LayerArguments),
    /// Print all errors and warnings at once, and what a run needs of which machines.
    Check(CheckArguments),
    /// Explain a key: meaning, type, default, allowed values, and equivalent keys of other systems.
    Explain {
        /// Dotted key (`schedule.on_limit`), or a section.
        key: String,
    },
    /// Print the JSON Schema of the configuration.
    Schema,
    /// Translate a command of verl, TRL, EasyR1 or RAGEN into a configuration of tamis, and print what each
    /// key became.
    Import {
        /// The foreign command, or its arguments (after `--` if they are options).
        #[arg(value_name = "ARGUMENT", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write a configuration as a script of TRL or a command of verl, with what has no counterpart there. The
    /// opposite of `import`.
    Export {
        /// `trl` (a script of Python with its `GRPOConfig`, or `SFTConfig` for supervised fine-tuning
        /// alone) or `verl` (a script of the shell).
        #[arg(long = "as", value_name = "SYSTEM", value_parser = ["trl", "verl"])]
        system: String,
        #[command(flatten)]
        layers: LayerArguments,
    },
    /// Print which models fit into which GPUs.
    #[command(hide = true)]
    Fits,
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
