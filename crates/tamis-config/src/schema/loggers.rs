//! `run.loggers`: the loggers that metrics are written to, each by its name or as a section with settings.

use tamis_core::choice;
use tamis_core::setting::{Program, TimeSpan};

tamis_core::settings! {
    /// One line per step on standard error.
    pub struct ConsoleSettings {}
}

tamis_core::settings! {
    /// `metrics.jsonl` in the run folder, one object per step.
    pub struct JsonlSettings {}
}

tamis_core::settings! {
    /// Event files for TensorBoard.
    pub struct TensorboardSettings {
        /// Write histograms of each step as well: lengths, advantages, rewards and pass rates of groups.
        histograms: bool = true, Any, Free;
        /// Number of completions per step that are written as text, each with its prompt, reward and verdict.
        /// 0: none.
        num_samples: usize = 4, Between(0.0, 1024.0), Free;
    }
}

choice! {
    /// How Weights & Biases is reached.
    pub enum WandbMode {
        /// As set by `WANDB_MODE`; otherwise online if there is a key (`WANDB_API_KEY` or `wandb login`), and
        /// offline if there is none.
        Auto = "auto",
        /// Metrics are sent to the server at once.
        Online = "online",
        /// Metrics are written to `wandb/` in the run folder, for a later `wandb sync`.
        Offline = "offline",
    }
}

tamis_core::settings! {
    /// Weights & Biases, through its own package.
    pub struct WandbSettings {
        /// Project. Null: the value of `WANDB_PROJECT`, otherwise `tamis`.
        project: Option<String> = None, NotEmpty, Free;
        /// User or team that owns the project. Null: the owner of the key.
        entity: Option<String> = None, NotEmpty, Free;
        /// Group in which runs are shown together. Null: none.
        group: Option<String> = None, NotEmpty, Free;
        /// Delivery of metrics: to the server at once, or to a folder.
        mode: WandbMode = WandbMode::Auto, Any, Free;
        /// Write histograms of each step as well.
        histograms: bool = true, Any, Free;
        /// Number of completions per step that are written as a table. 0: none.
        num_samples: usize = 0, Between(0.0, 1024.0), Free;
        /// Python interpreter with the package `wandb`; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Longest wait at the end of the run for metrics that are not delivered yet.
        finish_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

tamis_core::settings! {
    /// MLflow, through its own package.
    pub struct MlflowSettings {
        /// Server or database (`http://HOST:PORT`, `sqlite:///PATH`). Null: the value of
        /// `MLFLOW_TRACKING_URI`, otherwise MLflow's own default, a database. The package `mlflow-skinny` has
        /// no database and needs a server.
        tracking_uri: Option<String> = None, NotEmpty, Free;
        /// Experiment. It is created if it does not exist. Null: the value of `MLFLOW_EXPERIMENT_NAME`,
        /// otherwise `tamis`.
        experiment: Option<String> = None, NotEmpty, Free;
        /// Python interpreter with the package `mlflow` or `mlflow-skinny`; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Longest wait at the end of the run for metrics that are not delivered yet.
        finish_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

tamis_core::settings! {
    /// Trackio, through its own package. Metrics stay on this machine.
    pub struct TrackioSettings {
        /// Project that the run is shown in (`trackio show --project tamis`).
        project: String = "tamis".to_owned(), NotEmpty, Free;
        /// Group in which runs are shown together. Null: none.
        group: Option<String> = None, NotEmpty, Free;
        /// Write histograms of each step as well.
        histograms: bool = true, Any, Free;
        /// Number of completions per step that are written as a table. 0: none.
        num_samples: usize = 0, Between(0.0, 1024.0), Free;
        /// Python interpreter with the package `trackio`; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Longest wait at the end of the run for metrics that are not delivered yet.
        finish_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

tamis_core::settings! {
    /// An HTTP endpoint, `/metrics`, that Prometheus scrapes.
    pub struct PrometheusSettings {
        /// Address that it listens on, `HOST:PORT`. Port 0 takes a free port, which the run prints. Anyone
        /// who can reach the address can read the metrics.
        address: String = "127.0.0.1:9464".to_owned(), NotEmpty, Free;
    }
}

tamis_core::settings! {
    /// Each step and its stages as spans of OpenTelemetry.
    pub struct OtlpSettings {
        /// Collector that takes OTLP over HTTP with JSON.
        endpoint: String = "http://127.0.0.1:4318/v1/traces".to_owned(), NotEmpty, Free;
    }
}

tamis_core::tagged! {
    /// A logger that metrics are written to: its name, or a section with `kind` and settings.
    pub enum LoggerKind, or name {
        /// One line per step on standard error.
        Console(ConsoleSettings) = "console",
        /// `metrics.jsonl` in the run folder, one object per step.
        Jsonl(JsonlSettings) = "jsonl",
        /// Event files for TensorBoard, under `tensorboard/` in the run folder.
        Tensorboard(TensorboardSettings) = "tensorboard",
        /// Weights & Biases, through its own package in a separate process.
        Wandb(WandbSettings) = "wandb",
        /// MLflow, through its own package in a separate process.
        Mlflow(MlflowSettings) = "mlflow",
        /// Trackio's store on this machine, through its own package in a separate process.
        Trackio(TrackioSettings) = "trackio",
        /// An HTTP endpoint, `/metrics`, that Prometheus scrapes.
        Prometheus(PrometheusSettings) = "prometheus",
        /// Each step and its stages as spans of OpenTelemetry (OTLP over HTTP); only in a build with the
        /// feature `otlp`.
        Otlp(OtlpSettings) = "otlp",
    }
}

impl LoggerKind {
    /// The interpreter of a logger that a package in Python writes.
    pub fn python_mut(&mut self) -> Option<&mut Program> {
        match self {
            Self::Wandb(settings) => Some(&mut settings.python),
            Self::Mlflow(settings) => Some(&mut settings.python),
            Self::Trackio(settings) => Some(&mut settings.python),
            Self::Console(_)
            | Self::Jsonl(_)
            | Self::Tensorboard(_)
            | Self::Prometheus(_)
            | Self::Otlp(_) => None,
        }
    }
}
