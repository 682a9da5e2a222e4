//! The program under test, run in a folder of its own, and what it leaves there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A model and a task so small that a whole run takes a fraction of a second.
pub(crate) const TINY: &str = "\
run: {name: tiny, seed: 3, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 4
  gen_batch_size: 8
sft: {steps: 40, batch_size: 32, learning_rate: 1e-2}
rollout: {n: 4, max_response_length: 4}
reward: [{kind: number}]
filter: {kind: variance}
schedule: {max_num_gen_batches: 50}
train:
  ppo_mini_batch_size: 2
  total_steps: 6
  optimizer: {learning_rate: 1e-3}
validate: {test_freq: 2, before_train: true, num_samples_shown: 1}
checkpoint: {save_freq: 2}
";

/// Changes to a configuration's text.
pub(crate) trait Replaced {
    /// Replaces every `from` by `to`. Fails if there is no `from`, because the test would then use the
    /// unchanged text.
    #[must_use]
    fn replaced(&self, from: &str, to: &str) -> String;
}

impl Replaced for str {
    #[track_caller]
    fn replaced(&self, from: &str, to: &str) -> String {
        assert!(self.contains(from), "`{from}` is not in\n{self}");
        self.replace(from, to)
    }
}

/// Exit code and output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Exit code and both streams, for a snapshot.
    pub(crate) fn shown(&self) -> String {
        let code = self.code.map_or_else(|| "killed".to_owned(), |code| code.to_string());
        let mut text = format!("exit code {code}\n");
        for (name, stream) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !stream.is_empty() {
                let _ = write!(text, "----- {name}\n{stream}");
            }
        }
        text
    }

    /// Exit code and the last printed failure (`error: ...` to the end).
    pub(crate) fn failure(&self) -> String {
        let from = self.stderr.rfind("\nerror: ").map_or(0, |at| at + 1);
        format!("exit code {}\n{}", self.code.unwrap_or(-1), &self.stderr[from..])
    }

    /// The last failure without blank lines, each place on one line. «» mark what is underlined.
    pub(crate) fn short(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        let mut excerpt = String::new();
        for line in self.failure().lines() {
            let is_gutter = |text: &str| text.trim().chars().all(|letter| letter.is_ascii_digit());
            if line.is_empty() || line.ends_with(" in the configuration") {
                continue;
            }
            if let Some(place) = line.trim_start().strip_prefix("--> ") {
                lines.push(format!("  at {place}: "));
            } else if let Some((gutter, rest)) = line.split_once(" |").filter(|(text, _)| is_gutter(text)) {
                let rest = rest.strip_prefix(' ').unwrap_or_default();
                let (before, carets) = rest.split_at(rest.find('^').unwrap_or(0));
                if !gutter.trim().is_empty() {
                    rest.clone_into(&mut excerpt);
                } else if let Some(line) = lines.last_mut().filter(|_| !carets.is_empty()) {
                    let marked: String = excerpt.chars().skip(before.len()).take(carets.len()).collect();
                    let rest: String = excerpt.chars().skip(before.len() + carets.len()).collect();
                    let start: String = excerpt.chars().take(before.len()).collect();
                    line.extend([start.as_str(), "«", &marked, "»", &rest]);
                }
            } else {
                lines.push(line.to_owned());
            }
        }
        lines.join("\n")
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.shown());
        self
    }

    /// A text is in standard error.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "no `{text}` in\n{}", self.shown());
        self
    }

    /// A text is not in standard error.
    #[track_caller]
    pub(crate) fn never_says(&self, text: &str) -> &Self {
        assert!(!self.stderr.contains(text), "`{text}` is in\n{}", self.shown());
        self
    }

    /// A text is in standard output.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) -> &Self {
        assert!(self.stdout.contains(text), "no `{text}` in\n{}", self.shown());
        self
    }

    /// A text is not in standard output.
    #[track_caller]
    pub(crate) fn never_prints(&self, text: &str) -> &Self {
        assert!(!self.stdout.contains(text), "`{text}` is in\n{}", self.shown());
        self
    }

    /// A text is in the last failure.
    #[track_caller]
    pub(crate) fn fails_with(&self, text: &str) -> &Self {
        assert!(self.failure().contains(text), "no `{text}` in the failure of\n{}", self.shown());
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.shown()))
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.short())
    }
}

/// Failures of commands, in the form of [`Ended::failure`] or [`Ended::short`], one below the other for a
/// snapshot: without blank lines, and with the exit code where it changes.
pub(crate) fn failures<T: std::fmt::Display, const N: usize>(failures: [T; N]) -> String {
    let (mut lines, mut code) = (Vec::new(), String::new());
    for failure in failures {
        let text = failure.to_string();
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        if first != code {
            lines.push(first.to_owned());
            first.clone_into(&mut code);
        }
        lines.extend(rest.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    }
    lines.join("\n")
}

/// The words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[track_caller]
pub(crate) fn soon(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// A configuration such as [`TINY`] without its filter, and what goes with that.
pub(crate) fn unfiltered(config: &str) -> String {
    let config = config.replaced("filter: {kind: variance}\n", "").replaced("  gen_batch_size: 8\n", "");
    config.replaced("schedule: {max_num_gen_batches: 50}\n", "")
}

/// A temporary folder in which the program runs.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// With `tiny.yaml`.
    pub(crate) fn tiny() -> Self {
        Self::new().with("tiny.yaml", TINY)
    }

    pub(crate) fn with(self, name: &str, content: &str) -> Self {
        self.write(name, content);
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        std::fs::write(path, content).expect("write");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The rows of a run's metrics.
    pub(crate) fn rows(&self, run: &str) -> Vec<Value> {
        let text = self.read(&format!("runs/{run}/metrics.jsonl"));
        text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
    }

    /// The rows of the steps that a run has tried to train.
    pub(crate) fn steps(&self, run: &str) -> Vec<Value> {
        self.rows(run).into_iter().filter(|row| row.get("groups/generated").is_some()).collect()
    }

    /// The numbers of these rows.
    pub(crate) fn numbers(&self, run: &str) -> Vec<BTreeMap<String, f64>> {
        let numbers = |row: &Value| {
            let row = row.as_object().expect("an object");
            row.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
        };
        self.steps(run).iter().map(numbers).collect()
    }

    /// Whether the run in a folder has so many rows of metrics by now.
    pub(crate) fn has_rows(&self, run: &str, num: usize) -> bool {
        let text = std::fs::read_to_string(self.join(run).join("metrics.jsonl"));
        text.is_ok_and(|text| text.lines().count() >= num)
    }

    /// The rows of a step's rollouts.
    pub(crate) fn rollouts(&self, run: &str, step: u64) -> Vec<Value> {
        let path = self.join(&format!("runs/{run}/rollouts/step_{step}.parquet"));
        let records = tamis_data::records::Records::open(&path).expect("rollouts");
        records.map(|record| Value::Object(record.expect("a row").values)).collect()
    }

    /// `tamis filter` over all rollouts of a run, by their groups.
    pub(crate) fn filter_rollouts(&self, run: &str, options: &[&str]) -> Ended {
        let files = std::fs::read_dir(self.join(&format!("runs/{run}/rollouts"))).expect("rollouts");
        let mut files: Vec<String> =
            files.map(|entry| entry.expect("entry").path().display().to_string()).collect();
        files.sort();
        let mut arguments = vec!["filter", "--group", "group_id"];
        arguments.extend(options);
        arguments.extend(files.iter().map(String::as_str));
        self.tamis(&arguments)
    }

    /// The policy's weights in a run's checkpoint.
    pub(crate) fn weights(&self, run: &str, step: u64) -> Vec<u8> {
        let path = format!("runs/{run}/checkpoints/step_{step}/model.safetensors");
        std::fs::read(self.join(&path)).expect("weights")
    }

    /// Copies files to another folder.
    pub(crate) fn copy(&self, from: &str, other: &Self, to: &str, files: &[&str]) {
        std::fs::create_dir_all(other.join(to)).expect("folder");
        for file in files {
            std::fs::copy(self.join(from).join(file), other.join(to).join(file)).expect("copied");
        }
    }

    fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tamis"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env_remove("RUST_BACKTRACE")
            .env("COLUMNS", "110")
            // No test uses the network, or reads its user's files: the tests of names have their own hub.
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", self.join("hf"))
            .env_remove("HF_TOKEN")
            .env_remove("VIRTUAL_ENV")
            .env_remove("CONDA_PREFIX")
            .env_remove("HF_HUB_CACHE")
            .env_remove("HTTP_PROXY")
            .env_remove("http_proxy")
            .env_remove("ALL_PROXY")
            .env_remove("all_proxy")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts `tamis` here.
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Child {
        self.command(arguments).spawn().expect("tamis starts")
    }

    /// Starts `tamis` here with further variables in its environment.
    pub(crate) fn start_with<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: &[S],
        environment: &[(&str, PathBuf)],
    ) -> Child {
        self.command(arguments).envs(environment.iter().cloned()).spawn().expect("tamis starts")
    }

    /// Waits for a started `tamis`.
    pub(crate) fn wait(&self, child: Child) -> Ended {
        let output = child.wait_with_output().expect("tamis ends");
        let text =
            |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&self.path().display().to_string(), "DIR");
        Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Runs `tamis` here with a text on standard input.
    pub(crate) fn tamis_reading<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S], input: &str) -> Ended {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().expect("tamis starts");
        // A program that ends at an error reads no further.
        let _ = child.stdin.take().expect("stdin").write_all(input.as_bytes());
        self.wait(child)
    }

    /// Runs `tamis` here; paths of this folder are shown as `DIR`.
    pub(crate) fn tamis<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Ended {
        let ended = self.wait(self.start(arguments));
        ended.never_says("panicked");
        ended
    }
}

/// Everything a run left that must not depend on when it was interrupted.
#[derive(PartialEq)]
pub(crate) struct Left {
    /// `metrics.jsonl` without the clock.
    pub(crate) metrics: String,
    /// Files of the checkpoints and rollouts, by path.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Left {
    /// Reads a run directory.
    pub(crate) fn by(run: &Path) -> Self {
        let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
        let metrics = tamis_run::log::jsonl::without_wall_clock(&metrics).expect("lines");
        let mut files = BTreeMap::new();
        for folder in ["checkpoints", "rollouts", "validation"] {
            if run.join(folder).is_dir() {
                read_folder(run, &run.join(folder), &mut files);
            }
        }
        Self { metrics, files }
    }

    /// The steps of its checkpoints.
    fn checkpoints(&self) -> BTreeSet<u64> {
        self.files.keys().filter_map(|name| step_of(name)).collect()
    }

    /// Fails with the first difference.
    #[track_caller]
    pub(crate) fn assert_same(&self, other: &Self) {
        for (ours, theirs) in self.metrics.lines().zip(other.metrics.lines()) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(self.metrics, other.metrics);
        // A run that was asked to stop has saved other steps, too.
        let (ours, theirs) = (self.checkpoints(), other.checkpoints());
        assert_eq!(ours.last(), theirs.last());
        let is_common =
            |name: &&String| step_of(name).is_none_or(|step| ours.contains(&step) && theirs.contains(&step));
        let names = |left: &'_ Self| left.files.keys().filter(is_common).cloned().collect::<Vec<_>>();
        assert_eq!(names(self), names(other));
        for (name, ours) in self.files.iter().filter(|(name, _)| is_common(name)) {
            if name.ends_with("state.json") {
                assert_eq!(
                    String::from_utf8_lossy(ours),
                    String::from_utf8_lossy(&other.files[name]),
                    "{name}"
                );
            }
            assert!(*ours == other.files[name], "{name} differs");
        }
    }
}

fn step_of(file: &str) -> Option<u64> {
    file.strip_prefix("checkpoints/step_")?.split('/').next()?.parse().ok()
}

fn read_folder(run: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            read_folder(run, &path, files);
            continue;
        }
        let mut bytes = std::fs::read(&path).expect("read");
        let name = path.strip_prefix(run).expect("inside").display().to_string();
        if name.ends_with("state.json") {
            // Lengths of logs depend on the digits of the clock, those of the journals on what was answered
            // before a kill.
            let mut state: Value = serde_json::from_slice(&bytes).expect("state");
            for file in ["logs", "journal", "samples", "episodes", "teachers"] {
                state.as_object_mut().expect("an object").remove(file);
            }
            bytes = serde_json::to_vec_pretty(&state).expect("json");
        }
        if name.ends_with("checksums.json") {
            let mut sums: Value = serde_json::from_slice(&bytes).expect("checksums");
            sums["crc32"].as_object_mut().expect("an object").remove("state.json");
            bytes = serde_json::to_vec_pretty(&sums).expect("json");
        }
        files.insert(name, bytes);
    }
}

/// A text with each of these replaced. The text must contain each.
#[track_caller]
pub(crate) fn edited(text: &str, replacements: &[(&str, &str)]) -> String {
    replacements.iter().fold(text.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "`{old}` is not in\n{text}");
        text.replace(old, new)
    })
}

/// A message without checksums, which depend on the weights.
pub(crate) fn without_checksums(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let digits = word.trim_end_matches(',');
        let is_checksum = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_checksum { word.replace(digits, "N") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}
