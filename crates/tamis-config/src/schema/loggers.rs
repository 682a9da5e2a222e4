//! `run.loggers`: the places that metrics are written to, each by its name or as a section with settings.

use tamis_core::choice;
use tamis_core::setting::{Program, TimeSpan};

tamis_core::settings! {
    /// One line a step on the standard error stream.
    pub struct ConsoleSettings {}
}

tamis_core::settings! {
    /// `metrics.jsonl` in the run folder, one object a step.
    pub struct JsonlSettings {}
}

tamis_core::settings! {
    /// Event files for TensorBoard.
    pub struct TensorboardSettings {
        /// Histograms of each step beside the numbers: lengths, advantages, rewards and pass rates of groups.
        histograms: bool = true, Any, Free;
        /// Completions of each step that are written as text, each with its prompt, reward and verdict. 0:
        /// none.
        num_samples: usize = 4, Between(0.0, 1024.0), Free;
    }
}

choice! {
    /// How Weights & Biases is reached.
    pub enum WandbMode {
        /// As `WANDB_MODE` says; otherwise online where there is a key (`WANDB_API_KEY` or `wandb login`),
        /// and offline where there is none.
        Auto = "auto",
        /// Figures go to the server as they come.
        Online = "online",
        /// Figures go to `wandb/` in the run folder, for `wandb sync` later.
        Offline = "offline",
    }
}

tamis_core::settings! {
    /// Weights & Biases, through its own package.
    pub struct WandbSettings {
        /// Project. Null: what `WANDB_PROJECT` says, otherwise `tamis`.
        project: Option<String> = None, NotEmpty, Free;
        /// User or team that the project is of. Null: the one that the key belongs to.
        entity: Option<String> = None, NotEmpty, Free;
        /// Group that runs are shown in together. Null: none.
        group: Option<String> = None, NotEmpty, Free;
        /// Where figures go.
        mode: WandbMode = WandbMode::Auto, Any, Free;
        /// Histograms of each step beside the numbers.
        histograms: bool = true, Any, Free;
        /// Completions of each step that are written as a table. 0: none.
        num_samples: usize = 0, Between(0.0, 1024.0), Free;
        /// Python interpreter with the package `wandb`.
        python: Program = Program("python3".into()), NotEmpty, Free;
        /// Longest wait at the end of the run for what is not delivered yet.
        finish_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

tamis_core::settings! {
    /// MLflow, through its own package.
    pub struct MlflowSettings {
        /// Server or database (`http://HOST:PORT`, `sqlite:///PATH`). Null: what `MLFLOW_TRACKING_URI` says,
        /// otherwise MLflow's own default, a database. The package `mlflow-skinny` has no database: it needs
        /// a server.
        tracking_uri: Option<String> = None, NotEmpty, Free;
        /// Experiment; made where it is not there. Null: what `MLFLOW_EXPERIMENT_NAME` says, otherwise
        /// `tamis`.
        experiment: Option<String> = None, NotEmpty, Free;
        /// Python interpreter with the package `mlflow` or `mlflow-skinny`.
        python: Program = Program("python3".into()), NotEmpty, Free;
        /// Longest wait at the end of the run for what is not delivered yet.
        finish_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

tamis_core::settings! {
    /// Trackio, through its own package: figures stay on this machine.
    pub struct TrackioSettings {
        /// Project that the run is shown in (`trackio show --project tamis`).
        project: String = "tamis".to_owned(), NotEmpty, Free;
        /// Group that runs are shown in together. Null: none.
        group: Option<String> = None, NotEmpty, Free;
        /// Histograms of each step beside the numbers.
        histograms: bool = true, Any, Free;
        /// Completions of each step that are written as a table. 0: none.
        num_samples: usize = 0, Between(0.0, 1024.0), Free;
        /// Python interpreter with the package `trackio`.
        python: Program = Program("python3".into()), NotEmpty, Free;
        /// Longest wait at the end of the run for what is not delivered yet.
        finish_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

tamis_core::settings! {
    /// An HTTP endpoint, `/metrics`, that Prometheus scrapes.
    pub struct PrometheusSettings {
        /// Address that it listens at, `HOST:PORT`. Port 0 takes a free one, which is told. Whoever reaches
        /// the address can read the figures.
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
    /// A place that metrics are written to: its name, or a section with `kind` and settings.
    pub enum LoggerKind, or name {
        /// One line a step on the standard error stream.
        Console(ConsoleSettings) = "console",
        /// `metrics.jsonl` in the run folder, one object a step.
        Jsonl(JsonlSettings) = "jsonl",
        /// Event files for TensorBoard, under `tensorboard/` in the run folder.
        Tensorboard(TensorboardSettings) = "tensorboard",
        /// Weights & Biases, through its own package in a process beside the run.
        Wandb(WandbSettings) = "wandb",
        /// MLflow, through its own package in a process beside the run.
        Mlflow(MlflowSettings) = "mlflow",
        /// Trackio's store on this machine, through its own package in a process beside the run.
        Trackio(TrackioSettings) = "trackio",
        /// An HTTP endpoint, `/metrics`, that Prometheus scrapes.
        Prometheus(PrometheusSettings) = "prometheus",
        /// Each step and its stages as spans of OpenTelemetry (OTLP over HTTP); only in a build with the
        /// feature `otlp`.
        Otlp(OtlpSettings) = "otlp",
    }
}
