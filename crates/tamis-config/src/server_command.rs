//! The command that starts an inference server, for a run that starts it and for messages that show it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::schema::{BackendKind, Config, LaunchConfig, LauncherKind, RolloutConfig};

/// Address of a server that only this machine can reach.
pub const LOOPBACK: &str = "127.0.0.1";

/// Highest rank of an adapter that vLLM accepts.
pub(crate) const MOST_ADAPTER_RANK: usize = 512;

/// Allowed values of vLLM's `--max-lora-rank`.
const ADAPTER_RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, MOST_ADAPTER_RANK];

/// Form of the new weights that a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// Folders with all weights.
    Folders,
    /// Adapters of this rank.
    Adapters(usize),
    /// Weights in the memory of its GPU.
    GpuMemory,
    /// Weights over a communicator with the learner (NCCL).
    Transfer,
}

/// A command line with environment variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCommand {
    /// Environment variables that are set for it, besides the inherited ones.
    pub environment: Vec<(&'static str, String)>,
    /// The program and its arguments.
    pub words: Vec<String>,
}

impl ServerCommand {
    /// The command that starts one server with a run's weights at a host and port, by `rollout.launch` or its
    /// defaults. It is empty if the backend needs no server or its program is not known.
    pub fn new(rollout: &RolloutConfig, intake: Intake, model: &Path, host: &str, port: &str) -> Self {
        let model = model.display().to_string();
        let launch = rollout.launch.as_ref();
        let own = launch.filter(|launch| !launch.command.is_empty());
        let words = match (own, rollout.backend) {
            (Some(launch), _) => {
                let fill = |word: &String| {
                    word.replace("{model}", &model).replace("{host}", host).replace("{port}", port)
                };
                launch.command.iter().map(fill).collect()
            }
            (None, BackendKind::Vllm) => vllm(rollout, launch, intake, &model, host, port),
            (None, BackendKind::Sglang) => sglang(rollout, launch, &model, host, port),
            (None, BackendKind::Native | BackendKind::Learner | BackendKind::OpenAi) => Vec::new(),
        };
        let mut environment = Vec::new();
        if rollout.backend == BackendKind::Vllm {
            environment.push(("VLLM_SERVER_DEV_MODE", "1".to_owned()));
            match intake {
                Intake::Folders | Intake::Transfer => {}
                Intake::Adapters(_) => {
                    environment.push(("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1".to_owned()));
                }
                // The handles are pickled.
                Intake::GpuMemory => {
                    environment.push(("VLLM_ALLOW_INSECURE_SERIALIZATION", "1".to_owned()));
                }
            }
        }
        Self { environment, words }
    }

    /// Makes a server that a launcher starts require an API key. vLLM reads it from its environment. SGLang
    /// reads it from a file, whose name the launcher substitutes for `{key_config}`, because anyone on the
    /// machine can read the arguments of a process.
    pub fn ask_for_key(&mut self, rollout: &RolloutConfig) {
        let is_own = rollout.launch.as_ref().is_some_and(|launch| !launch.command.is_empty());
        if rollout.backend == BackendKind::Sglang && !is_own {
            self.words.extend(words(&["--config", "{key_config}"]));
        }
    }

    /// Line about the servers that a run with this configuration starts before it samples; `None` if it
    /// starts no server.
    pub fn announcement(config: &Config) -> Option<String> {
        let rollout = &config.rollout;
        let is_of_servers = matches!(rollout.backend, BackendKind::Vllm | BackendKind::Sglang);
        let launch = rollout.launch.as_ref().filter(|_| is_of_servers && rollout.servers.is_empty())?;
        let run = config.run.dir.join(&config.run.name).join("published");
        let shared = |dir: &PathBuf| dir.join(format!("{}-ID", config.run.name));
        let intake = config.intake();
        let weights = match (&config.model.path, intake) {
            (Some(model), Intake::Adapters(_)) => model.for_server(),
            _ => config.publish.dir.as_ref().map_or(run, shared).join("start"),
        };
        let (host, place) = match config.cluster.launcher {
            LauncherKind::Ray => ("HOST", "on the nodes of the cluster"),
            LauncherKind::None | LauncherKind::Local => (LOOPBACK, "here"),
        };
        let command = Self::new(rollout, intake, &weights, host, "PORT");
        let num = launch.replicas;
        let plural = if num == 1 { "a server".to_owned() } else { format!("{num} servers") };
        Some(format!(
            "the run starts {plural} before it samples: `{command}`; install its program {place}, name running servers \
            (rollout.servers=[http://HOST:PORT]), or sample without servers (rollout.backend=native)"
        ))
    }
}

fn words(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

fn vllm(
    rollout: &RolloutConfig,
    launch: Option<&LaunchConfig>,
    intake: Intake,
    model: &str,
    host: &str,
    port: &str,
) -> Vec<String> {
    // Each of our modes gives what the other does not: the whole distribution, or the one at a temperature.
    let truncates = rollout.top_k > 0
        || rollout.top_p < 1.0
        || rollout.min_p > 0.0
        || (rollout.repetition_penalty - 1.0).abs() > 0.0;
    let is_raw = truncates && (rollout.temperature - 1.0).abs() == 0.0;
    let mode = if is_raw { "raw_logprobs" } else { "processed_logprobs" };
    let mut all = words(&["vllm", "serve", model, "--host", host, "--port", port]);
    all.extend(words(&["--logprobs-mode", mode, "--enable-scale-out"]));
    all.extend(["--max-num-seqs".to_owned(), rollout.max_num_seqs.to_string()]);
    if rollout.sleep_level > 0 {
        all.push("--enable-sleep-mode".to_owned());
    }
    match intake {
        Intake::Folders => {}
        Intake::Adapters(rank) => {
            let room = ADAPTER_RANKS.into_iter().find(|&room| room >= rank).unwrap_or(rank);
            // The adapter that samples, and the one before it for samples in flight.
            all.extend(words(&["--enable-lora", "--max-loras", "2", "--max-lora-rank", &room.to_string()]));
        }
        Intake::GpuMemory => all.extend(words(&["--weight-transfer-config", r#"{"backend": "ipc"}"#])),
        Intake::Transfer => all.extend(words(&["--weight-transfer-config", r#"{"backend": "nccl"}"#])),
    }
    if let Some(launch) = launch {
        if launch.tensor_parallel > 1 {
            all.extend(["--tensor-parallel-size".to_owned(), launch.tensor_parallel.to_string()]);
        }
        all.extend(launch.args.iter().cloned());
    }
    all
}

fn sglang(
    rollout: &RolloutConfig,
    launch: Option<&LaunchConfig>,
    model: &str,
    host: &str,
    port: &str,
) -> Vec<String> {
    let mut all = words(&["python3", "-m", "sglang.launch_server", "--model-path", model]);
    all.extend(words(&["--host", host, "--port", port]));
    all.extend(["--max-running-requests".to_owned(), rollout.max_num_seqs.to_string()]);
    if let Some(launch) = launch {
        if launch.tensor_parallel > 1 {
            all.extend(["--tp-size".to_owned(), launch.tensor_parallel.to_string()]);
        }
        all.extend(launch.args.iter().cloned());
    }
    all
}

/// Whether the value of a flag or a variable is secret (`--api-key`, `--hf_token`, `VLLM_API_KEY=`).
fn is_secret(name: &str) -> bool {
    let name = name.replace('_', "-").to_ascii_lowercase();
    name.ends_with("-key") || name.ends_with("-token")
}

/// Words of a command, with `...` instead of keys and tokens.
pub fn without_secrets(words: &[String]) -> Vec<String> {
    // A flag may have several values.
    let mut is_value = false;
    let shown = words.iter().map(|word| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let is_flag = word.starts_with("--");
        let shown = match () {
            () if is_secret(name) && !value.is_empty() => format!("{name}=..."),
            () if is_value && !is_flag => "...".to_owned(),
            () => word.clone(),
        };
        is_value = if is_flag { is_secret(name) && value.is_empty() } else { is_value };
        shown
    });
    shown.collect()
}

/// A word in the form for a shell, quoted if the shell would change it.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%{}".contains(c);
    // Bash makes several words of `{a,b}` and `{1..3}`.
    let is_several = word.contains('{') && (word.contains(',') || word.contains(".."));
    if !word.is_empty() && word.chars().all(is_plain) && !is_several {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// In the form for a shell, without secrets.
impl fmt::Display for ServerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = without_secrets(&self.words).into_iter().map(|word| shell_word(&word));
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={}", shell_word(value)));
        let all: Vec<String> = variables.chain(words).collect();
        f.write_str(&all.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn bash_reads_each_word_back() {
        let words = [
            "a",
            "",
            "a b",
            "it's",
            "k={a:1,b:2}",
            "{1..3}",
            "{model}",
            "~",
            "$HOME",
            "k=[1,2]",
            "a\nb",
            "\\",
            "é",
        ];
        let line = words.map(shell_word).join(" ");
        let read =
            std::process::Command::new("bash").args(["-c", &format!("printf '%s\\0' {line}")]).output();
        let read = String::from_utf8(read.unwrap().stdout).unwrap();
        assert_eq!(read.split_terminator('\0').collect::<Vec<_>>(), words);
        assert_eq!([words[0], words[6]].map(shell_word), ["a", "{model}"]);
    }

    fn command(change: impl FnOnce(&mut RolloutConfig)) -> String {
        command_with(Intake::Folders, change)
    }

    fn command_with(intake: Intake, change: impl FnOnce(&mut RolloutConfig)) -> String {
        let mut rollout = Config::default().rollout;
        rollout.backend = BackendKind::Vllm;
        change(&mut rollout);
        ServerCommand::new(&rollout, intake, Path::new("my model"), LOOPBACK, "8001").to_string()
    }

    fn launch() -> LaunchConfig {
        LaunchConfig {
            replicas: 1,
            tensor_parallel: 2,
            args: vec!["--dtype=bfloat16".to_owned()],
            command: Vec::new(),
            startup_timeout: tamis_core::setting::TimeSpan::seconds(1),
            lost_timeout: None,
        }
    }

    #[test]
    fn vllm_and_sglang_are_started_with_what_a_run_needs_of_them() {
        assert_snapshot!(
            command(|_| {}),
            @"VLLM_SERVER_DEV_MODE=1 vllm serve 'my model' --host 127.0.0.1 --port 8001 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256"
        );
        assert_snapshot!(
            command(|rollout| {
                rollout.top_k = 20;
                rollout.launch = Some(launch());
            }),
            @"VLLM_SERVER_DEV_MODE=1 vllm serve 'my model' --host 127.0.0.1 --port 8001 --logprobs-mode raw_logprobs --enable-scale-out --max-num-seqs 256 --tensor-parallel-size 2 --dtype=bfloat16"
        );
        assert_snapshot!(
            command(|rollout| {
                rollout.backend = BackendKind::Sglang;
                rollout.launch = Some(launch());
            }),
            @"python3 -m sglang.launch_server --model-path 'my model' --host 127.0.0.1 --port 8001 --max-running-requests 256 --tp-size 2 --dtype=bfloat16"
        );
    }

    #[test]
    fn a_server_that_takes_adapters_has_room_for_their_rank() {
        assert_snapshot!(command_with(Intake::Adapters(24), |rollout| rollout.sleep_level = 1), @"VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve 'my model' --host 127.0.0.1 --port 8001 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256 --enable-sleep-mode --enable-lora --max-loras 2 --max-lora-rank 32");
    }

    #[test]
    fn a_server_on_the_learners_gpu_takes_weights_there() {
        assert_snapshot!(command_with(Intake::GpuMemory, |_| {}), @r#"VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_INSECURE_SERIALIZATION=1 vllm serve 'my model' --host 127.0.0.1 --port 8001 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256 --weight-transfer-config '{"backend": "ipc"}'"#);
    }

    #[test]
    fn a_server_that_is_sent_weights_joins_the_learner() {
        assert_snapshot!(command_with(Intake::Transfer, |_| {}), @r#"VLLM_SERVER_DEV_MODE=1 vllm serve 'my model' --host 127.0.0.1 --port 8001 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256 --weight-transfer-config '{"backend": "nccl"}'"#);
    }

    #[test]
    fn secrets_are_not_shown() {
        let args = ["--api_key", "s3cret", "s3cret", "--hf-token=s3cret", "--seed", "1"];
        let args = args.map(str::to_owned).to_vec();
        let shown = command(|rollout| rollout.launch = Some(LaunchConfig { args, ..launch() }));
        assert!(
            shown.ends_with("--tensor-parallel-size 2 --api_key ... ... --hf-token=... --seed 1"),
            "{shown}"
        );
        let words = ["env", "VLLM_API_KEY=s3cret", "vllm", "--port", "{port}", "{model}"].map(str::to_owned);
        let shown = command(|rollout| {
            rollout.launch = Some(LaunchConfig { command: words.to_vec(), ..launch() });
        });
        assert!(shown.contains("env VLLM_API_KEY=... vllm --port"), "{shown}");
    }

    #[test]
    fn the_key_that_a_launcher_gives_a_server_is_no_argument() {
        let command = |backend, own: &[&str]| {
            let mut rollout = Config::default().rollout;
            rollout.backend = backend;
            let own = own.iter().map(|&word| word.to_owned()).collect();
            rollout.launch =
                Some(LaunchConfig { tensor_parallel: 1, args: vec![], command: own, ..launch() });
            let mut command =
                ServerCommand::new(&rollout, Intake::Folders, Path::new("m"), "{host}", "{port}");
            command.ask_for_key(&rollout);
            command.to_string()
        };
        assert_snapshot!(command(BackendKind::Sglang, &[]), @"python3 -m sglang.launch_server --model-path m --host {host} --port {port} --max-running-requests 256 --config {key_config}");
        assert!(!command(BackendKind::Vllm, &[]).contains("key"));
        let own = ["my-sglang", "{model}", "{port}"];
        assert_eq!(command(BackendKind::Sglang, &own), "my-sglang m {port}");
    }

    #[test]
    fn a_command_of_ones_own_is_filled_in() {
        let words = ["tamis", "serve", "{model}", "--port", "{port}"].map(str::to_owned).to_vec();
        let own = |rollout: &mut RolloutConfig| {
            rollout.launch = Some(LaunchConfig { command: words, ..launch() });
        };
        assert_snapshot!(command(own), @"VLLM_SERVER_DEV_MODE=1 tamis serve 'my model' --port 8001");
    }
}
