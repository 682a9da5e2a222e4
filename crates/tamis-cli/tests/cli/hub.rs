//! Models and data sets by their names on a hub, as a person types them; the hub is one in this process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::fake_hub::{FakeHub, Fault, SIGNATURE, commit};
use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY, failures, soon, unfiltered, words};

const TOKEN: &str = "hf_very_secret";

/// A model and data as files in a folder (`model`, `train.jsonl`, `test.jsonl`), and the same on a hub.
struct OnHub {
    folder: Folder,
    hub: FakeHub,
}

fn rows(numbers: std::ops::Range<u32>) -> String {
    let row = |number: u32| {
        let (left, right) = (number % 10, number / 10);
        format!("{{\"question\": \"{left}+{right}=\", \"answer\": \"{}\"}}\n", left + right)
    };
    numbers.map(row).collect::<Vec<_>>().concat()
}

fn config(model: &str, train: &str, val: &str) -> String {
    let own = TINY.lines().filter(|line| !line.starts_with("sft") && !line.contains("arithmetic"));
    let own = own
        .map(|line| if line.starts_with("  init:") { format!("  path: {model}") } else { line.to_owned() });
    let own = own.collect::<Vec<_>>().join("\n") + "\n";
    unfiltered(&own)
        .replaced("data:\n", &format!("data:\n  train: {train}\n  val: {val}\n"))
        .replaced("total_steps: 6", "total_steps: 4")
}

impl OnHub {
    fn new() -> Self {
        let folder = Folder::tiny();
        folder.tamis(&["train", "tiny.yaml", "train.total_steps=1", "run.name=first"]).succeeds();
        folder.tamis(&["export", "runs/first", "model"]).succeeds();
        std::fs::remove_dir_all(folder.join("runs")).expect("removed");
        folder.write("train.jsonl", &rows(0..64));
        folder.write("test.jsonl", &rows(64..72));
        folder.write("names.yaml", &config("org/tiny", "org/sums", "org/sums"));
        folder.write("files.yaml", &config("model", "train.jsonl", "test.jsonl"));
        let this = Self { folder, hub: FakeHub::start() };
        this.put("main", 1, 2);
        this
    }

    /// Puts model and data at these commits of a branch.
    fn put(&self, branch: &str, model: u8, data: u8) {
        let read = |path: PathBuf| std::fs::read(path).expect("read");
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.folder.join("model")).expect("the model") {
            let entry = entry.expect("entry");
            files.push((entry.file_name().into_string().expect("a name"), read(entry.path())));
        }
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        self.hub.put("models/org/tiny", branch, &commit(model), &files);
        let (train, test) = (read(self.folder.join("train.jsonl")), read(self.folder.join("test.jsonl")));
        self.hub.put(
            "datasets/org/sums",
            branch,
            &commit(data),
            &[("README.md", b"---"), ("train.jsonl", &train), ("test.jsonl", &test)],
        );
    }

    fn start(&self, arguments: &[&str], environment: &[(&str, &str)]) -> std::process::Child {
        let mut all = vec![
            ("HF_HUB_OFFLINE", PathBuf::from("0")),
            ("HF_ENDPOINT", PathBuf::from(&self.hub.endpoint)),
            ("HF_TOKEN", PathBuf::from(TOKEN)),
        ];
        all.extend(environment.iter().map(|(name, value)| (*name, PathBuf::from(value))));
        self.folder.start_with(arguments, &all)
    }

    fn tamis_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
        let ended = self.folder.wait(self.start(arguments, environment));
        for secret in [TOKEN, SIGNATURE, "panicked"] {
            assert!(!ended.shown().contains(secret), "{}", ended.shown());
        }
        let hub = |text: &str| text.replace(&self.hub.endpoint, "HUB");
        Ended { stdout: hub(&ended.stdout), stderr: hub(&ended.stderr), ..ended }
    }

    fn tamis(&self, arguments: &[&str]) -> Ended {
        self.tamis_with(arguments, &[])
    }

    /// Files that were requested since the last call.
    fn files_asked(&self) -> Vec<String> {
        let requests = self.hub.requests().into_iter();
        let files = requests.filter(|request| request.method == "GET" && !request.path.starts_with("/api/"));
        files.map(|request| request.path).collect()
    }
}

fn is_anywhere(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).expect("a folder").flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return is_anywhere(&path, text);
        }
        let bytes = std::fs::read(&path).expect("read");
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn a_run_is_trained_from_names_as_from_files() {
    let place = OnHub::new();
    let ended = place.tamis(&["train", "names.yaml"]).succeeds();
    ended.says("downloading org/tiny (");
    ended.says("downloading org/sums (");
    place.folder.tamis(&["train", "files.yaml", "run.name=files"]).succeeds();
    let (names, files) =
        (Left::by(&place.folder.join("runs/tiny")), Left::by(&place.folder.join("runs/files")));
    assert_eq!(names.metrics, files.metrics);
    assert!(
        names.files["checkpoints/step_4/model.safetensors"]
            == files.files["checkpoints/step_4/model.safetensors"]
    );

    let written = place.folder.read("runs/tiny/config.yaml");
    let (model, data) = (commit(1), commit(2));
    for line in [
        format!("  path: \"hf://org/tiny@{model}\"  # names.yaml:3"),
        format!("hf://org/sums@{data}:default/train"),
        format!("hf://org/sums@{data}:default/test"),
    ] {
        assert!(written.contains(&line), "{line} is not in\n{written}");
    }
    let log = place.folder.read("runs/tiny/run.log");
    assert!(log.contains(&format!("`model.path` is hf://org/tiny@{model}, in ")), "{log}");
    let requests = place.hub.requests();
    assert!(requests.iter().any(|request| request.is_cdn), "weights come from another host");
    for request in requests {
        assert_eq!(request.headers.contains_key("authorization"), !request.is_cdn, "{}", request.path);
    }
    assert!(!is_anywhere(&place.folder.join("runs"), TOKEN), "in what the run wrote");
    assert!(!is_anywhere(&place.folder.join("hf"), TOKEN), "in the cache");
}

#[test]
fn a_resume_and_a_new_run_read_what_the_run_was_begun_with() {
    let place = OnHub::new();
    place.tamis(&["train", "names.yaml", "train.total_steps=2"]).succeeds();
    place.folder.tamis(&["train", "files.yaml", "run.name=whole"]).succeeds();
    // The hub changes: other data, and a model from which none of these runs could be resumed.
    place.folder.write("train.jsonl", &rows(20..84));
    place.folder.write("model/config.json", "{}");
    place.put("main", 3, 4);
    place.hub.requests();
    place.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=4"]).succeeds();
    assert_eq!(place.files_asked(), Vec::<String>::new());
    let (resumed, whole) =
        (Left::by(&place.folder.join("runs/tiny")), Left::by(&place.folder.join("runs/whole")));
    assert_eq!(resumed.metrics, whole.metrics);
    let last = "checkpoints/step_4/model.safetensors";
    assert!(resumed.files[last] == whole.files[last]);
    // Without a network, too, and with the names as they were typed.
    let offline = [("HF_HUB_OFFLINE", "1")];
    let again = words("train --resume runs/tiny train.total_steps=5 model.path=org/tiny data.train=org/sums");
    place.tamis_with(&again, &offline).succeeds();
    place.tamis(&["train", "--resume", "runs/tiny", "data.train=org/sums@main"]).exits(4);
    // A new run of the file that the run wrote.
    place.hub.requests();
    place.tamis(&["train", "runs/tiny/config.yaml", "run.name=second", "train.total_steps=4"]).succeeds();
    assert_eq!(place.hub.requests().len(), 0, "commits that are in the cache need nobody");
    assert_eq!(Left::by(&place.folder.join("runs/second")).metrics, whole.metrics);
    // The name without a revision means the new commit.
    place.tamis(&["train", "names.yaml", "run.name=third"]).exits(2).says(&commit(3));
}

#[test]
fn a_check_downloads_nothing_and_showing_asks_nobody() {
    let place = OnHub::new();
    let shown = place.tamis(&["config", "show", "names.yaml"]).succeeds();
    shown.prints("  path: \"hf://org/tiny\"  # names.yaml:3");
    assert_eq!(place.hub.requests().len(), 0);
    insta::assert_snapshot!(place.tamis(&["config", "check", "names.yaml"]).shown(), @r#"
exit code 0
----- stdout
the configuration is sound (0 warnings)
not checked: the files of `model.path`, hf://org/tiny@0101010101010101010101010101010101010101, which a run downloads
not checked: the files of `data.train`, hf://org/sums@0202020202020202020202020202020202020202:default/train, which a run downloads
not checked: the files of `data.val`, hf://org/sums@0202020202020202020202020202020202020202:default/test, which a run downloads
"#);
    assert_eq!(place.files_asked(), Vec::<String>::new());
    assert!(!place.folder.join("hf").exists());
    let gone = [("HF_ENDPOINT", "http://127.0.0.1:9")];
    let checked = place.tamis_with(&["config", "check", "names.yaml"], &gone).succeeds();
    checked.prints("not checked: `model.path`: the hub http://127.0.0.1:9 cannot be reached");
    let checked = place.tamis(&["config", "check", "names.yaml", "data.val=org/sums:dev"]);
    insta::assert_snapshot!(checked.short(), @r#"
exit code 2
error: `data.val`: `org/sums` has no split `dev` in `default`; it has `test`, `train`
  at command line: data.val=«org/sums:dev»
  hint: a split is written `owner/name:configuration/split`
not checked because of errors: the rows of the validation data; the prompts as the model sees them; the filter, the memory and the machines
"#);
    // Cached files are checked like others.
    place.tamis(&["train", "names.yaml", "train.total_steps=1"]).succeeds();
    place
        .tamis(&["config", "check", "names.yaml", "data.columns.prompt=nothing"])
        .says("expected a column `nothing`");
}

#[test]
fn offline_says_what_is_missing_and_how_to_get_it() {
    let place = OnHub::new();
    let offline = [("HF_HUB_OFFLINE", "1")];
    insta::assert_snapshot!(place.tamis_with(&["train", "names.yaml"], &offline).short(), @r#"
exit code 2
error: `model.path`: `org/tiny` is not in the cache DIR/hf/hub, and HF_HUB_OFFLINE forbids downloads; and nothing is at org/tiny
  at names.yaml:3:9:   path: «org/tiny»
  hint: run `hf download org/tiny` with network access, or unset HF_HUB_OFFLINE
"#);
    place.tamis(&["train", "names.yaml", "train.total_steps=1", "run.name=filled"]).succeeds();
    place.hub.requests();
    place.tamis_with(&["train", "names.yaml"], &offline).succeeds();
    place.tamis_with(&["train", "names.yaml", "run.name=other"], &[("TRANSFORMERS_OFFLINE", "1")]).succeeds();
    assert_eq!(place.hub.requests().len(), 0);
}

#[test]
fn a_folder_goes_before_a_name_and_a_misspelt_path_is_told() {
    let place = OnHub::new();
    // It has the depth of a name.
    std::fs::create_dir(place.folder.join("org")).expect("made");
    std::fs::rename(place.folder.join("model"), place.folder.join("org/tiny")).expect("moved");
    place.folder.write("org/sums", &rows(0..64));
    place.tamis(&["train", "names.yaml", "train.total_steps=1", "run.name=local"]).succeeds();
    assert_eq!(place.hub.requests().len(), 0);
    let written = place.folder.read("runs/local/config.yaml");
    assert!(!written.contains("hf://"), "{written}");
    // Unless it is marked as a name.
    let marked = ["train", "names.yaml", "train.total_steps=1", "model.path=hf://org/tiny"];
    place.tamis(&marked).succeeds();
    assert!(place.folder.read("runs/tiny/config.yaml").contains("hf://org/tiny@"));
    insta::assert_snapshot!(failures([
        place.tamis(&["train", "names.yaml", "model.path=org/tinny"]),
        place.tamis(&["eval", "runs/tinny"]),
    ]), @r"
    exit code 2
    error: `model.path`: there is no model `org/tinny` on HUB, or this token has no access to it; and nothing is at org/tinny
      at command line: model.path=«org/tinny»
      hint: did you mean `org/tiny`?
    error: there is no folder runs/tinny
      hint: did you mean `runs/tiny`? (a model of that name on a hub is `hf://runs/tinny`)
    ");
}

#[test]
fn a_hub_that_fails() {
    let place = OnHub::new();
    place.hub.fault("/api/", 99, Fault::Status(500, Vec::new()));
    insta::assert_snapshot!(place.tamis(&["train", "names.yaml"]).failure(), @r#"
exit code 3
error: `model.path`: the hub answers HUB/api/models/org/tiny/revision/main with status 500
  hint: try again later; what was downloaded is kept
"#);
    assert!(!place.folder.join("runs/tiny").exists());
}

#[test]
fn a_reference_is_found_where_it_is_read() {
    let place = OnHub::new();
    place.folder.write("names.yaml", &config("model", "train.jsonl", "test.jsonl"));
    let reference = "model.reference=org/tiny";
    place.tamis(&["train", "names.yaml", "run.name=without", "train.total_steps=1", reference]).succeeds();
    assert_eq!(place.hub.requests().len(), 0, "no KL term reads it");
    place
        .tamis(&["train", "names.yaml", "train.total_steps=1", reference, "objective.kl.in=loss"])
        .succeeds();
    let written = place.folder.read("runs/tiny/config.yaml");
    assert!(written.contains(&format!("reference: \"hf://org/tiny@{}\"", commit(1))), "{written}");
    let critic = ["critic.model.path=org/tiny@main", "objective.advantage.kind=gae"];
    let ended = [&["train", "names.yaml", "run.name=critic", "train.total_steps=1"], &critic[..]].concat();
    place.tamis(&ended).succeeds();
    let written = place.folder.read("runs/critic/config.yaml");
    assert!(written.contains(&format!("path: \"hf://org/tiny@{}\"", commit(1))), "{written}");
}

#[test]
fn a_name_is_evaluated_and_served() {
    let place = OnHub::new();
    let arguments = ["eval", "org/tiny", "data.val=org/sums:test", "reward=[{kind: number}]", "--json"];
    let ended = place.tamis(&arguments).succeeds();
    let result = ended.json();
    assert_eq!(result["checkpoint"], format!("hf://org/tiny@{}", commit(1)));
    assert_eq!(result["settings"]["data"]["val"][0], format!("hf://org/sums@{}:default/test", commit(2)));
    assert_eq!(result["num_prompts"], 8);

    let mut child = place.start(&["serve", "org/tiny", "--port", "0"], &[]);
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("stdout");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    let address = line.trim_end().strip_prefix("listening on http://").expect("an address").to_owned();
    let mut stream = std::net::TcpStream::connect(address).expect("connected");
    std::io::Write::write_all(
        &mut stream,
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    .expect("sent");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
    assert!(answer.contains("\"id\":\"org/tiny\""), "{answer}");
    child.kill().expect("killed");
    child.wait().expect("ended");
}

#[test]
fn a_download_can_be_interrupted_and_killed() {
    let place = OnHub::new();
    let weights = std::fs::read(place.folder.join("model/model.safetensors")).expect("weights");
    let blobs = place.folder.join("hf/hub/models--org--tiny/blobs");
    for signal in ["-INT", "-KILL"] {
        place.hub.fault("/blob/", 1, Fault::Late(Duration::from_secs(60)));
        let child = place.start(&["train", "names.yaml"], &[]);
        soon("a download", || place.hub.requests().iter().any(|request| request.is_cdn));
        let start = Instant::now();
        crate::tamis::signal(&child, signal);
        let ended = place.folder.wait(child);
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert_eq!(ended.code, if signal == "-INT" { Some(130) } else { None }, "{}", ended.shown());
        assert!(!place.folder.join("runs/tiny").exists());
        assert!(!blobs.join(crate::fake_hub::sha256(&weights)).exists());
        place.tamis_with(&["train", "names.yaml"], &[("HF_HUB_OFFLINE", "1")]).exits(2);
    }
    place.tamis(&["train", "names.yaml", "train.total_steps=1"]).succeeds();
}
