use std::path::Path;

use serde_json::Value;

use super::*;
use crate::outside::Outside;
use crate::support::loaded;

const MODEL: &str = "\
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
";

/// Sums of one digit as rows.
fn rows(folder: &Path) -> PathBuf {
    let rows = (0..40)
        .map(|i| {
            let (a, b) = (i % 8, i / 8);
            format!("{{\"prompt\": \"{a}+{b}=\", \"completion\": \"{}\"}}\n", a + b)
        })
        .collect::<Vec<_>>()
        .concat();
    let path = folder.join("rows.jsonl");
    std::fs::write(&path, rows).expect("written");
    path
}

fn config(folder: &Path, more: &[&str]) -> ConfigText {
    let yaml = format!(
        "run: {{name: sft, dir: {folder:?}, seed: 3, threads: 1}}\n{MODEL}\
         sft: {{data: {:?}, val_fraction: 0.2, epochs: 6, batch_size: 8, learning_rate: 1e-2, test_freq: 10}}\n\
         train: {{total_steps: 0}}\ncheckpoint: {{save_freq: 10, keep_last: null}}\n",
        folder.join("rows.jsonl"),
    );
    ConfigText::of(loaded(&yaml, more), Vec::new())
}

fn ran(begin: RunStart) -> Result<Box<RunSummary>, RunError> {
    let console = |_, _| Console::keeping_warnings();
    match super::super::train(begin, console, Outside::NOTHING, &Interrupt::new())? {
        TrainEnd::Ended(summary) => Ok(summary),
        TrainEnd::Interrupted(_) => panic!("interrupted"),
    }
}

fn resume(run: &Path, config: ConfigText) -> RunStart {
    let directory = RunDirectory::open(&Disk::new(), run).expect("a run");
    RunStart::Resume { directory, was: Box::new(config.config.clone()), now: config }
}

fn metrics_of(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("checkpoints/step_24/model.safetensors")).expect("weights")
}

#[test]
fn it_learns_its_rows_and_a_resume_makes_the_same_updates() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    rows(folder);
    let whole = ran(RunStart::New(config(folder, &[]))).expect("a run");
    let report = whole.sft.expect("a report");
    // 32 rows are left of 40, six times, eight an update.
    assert_eq!((whole.steps, report.num_updates), (24, 24));
    assert_eq!(whole.checkpoint, Some(whole.run.join("checkpoints/step_24")));
    assert!(report.validation_loss < report.first_validation_loss, "{report:?}");
    let figures = metrics_of(&whole.run);
    let number = |row: usize, name: &str| figures[row][name].as_f64();
    assert_eq!((figures.len(), number(9, "step"), number(8, "sft/val_loss")), (24, Some(10.0), None));
    assert!(number(23, "sft/loss") < number(0, "sft/loss"), "{figures:?}");
    assert!(number(23, "sft/val_loss") < number(9, "sft/val_loss"), "{figures:?}");
    // Answers of one or two digits, with their end.
    assert!(number(0, "sft/num_tokens").is_some_and(|tokens| (16.0..=24.0).contains(&tokens)), "{figures:?}");

    let cut = ran(RunStart::New(config(folder, &["run.name=cut"]))).expect("a run").run;
    for step in [20, 24] {
        std::fs::remove_dir_all(cut.join(format!("checkpoints/step_{step}"))).expect("removed");
    }
    let resumed = ran(resume(&cut, config(folder, &["run.name=cut"]))).expect("a run");
    assert_eq!(resumed.sft.expect("a report"), report);
    assert_eq!(weights(&cut), weights(&whole.run));
    assert_eq!(metrics_of(&cut), figures);

    // Reinforcement learning is another run, and so are other rows.
    let more = [
        "run.name=cut",
        "train.total_steps=3",
        "data.task=arithmetic",
        "data.max_prompt_length=12",
        "rollout.max_response_length=4",
        "reward=[{kind: number}]",
    ];
    let was = Box::new(config(folder, &["run.name=cut"]).config);
    let directory = RunDirectory::open(&Disk::new(), &cut).expect("a run");
    let error =
        ran(RunStart::Resume { directory, was, now: config(folder, &more) }).expect_err("another run");
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.starts_with("begin a run from its checkpoint: `tamis train CONFIG.yaml model.path="),
        "{hint}"
    );
    let other = std::fs::read_to_string(folder.join("rows.jsonl")).expect("rows").replace("7+4=", "4+7=");
    std::fs::write(folder.join("rows.jsonl"), other).expect("written");
    let error = ran(resume(&cut, config(folder, &["run.name=cut"]))).expect_err("other rows");
    assert!(error.to_string().contains("a file of sft.data or sft.val has changed"), "{error}");
}

/// Two steps of reinforcement learning after it.
const BEFORE: [&str; 12] = [
    "train.total_steps=2",
    "~sft.epochs",
    "sft.steps=12",
    "sft.test_freq=4",
    "data.task=arithmetic",
    "data.arithmetic.levels=[{digits: 1, operators: ['+'], terms: 2}]",
    "data.arithmetic.train_size=32",
    "data.arithmetic.val_size=4",
    "data.max_prompt_length=12",
    "data.train_batch_size=2",
    "rollout={n: 2, max_response_length: 4}",
    "reward=[{kind: number}]",
];

/// Before reinforcement learning its figures have a file of their own, as the steps of `metrics.jsonl` are
/// those of reinforcement learning.
#[test]
fn reinforcement_learning_goes_on_from_it() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    rows(folder);
    let summary = ran(RunStart::New(config(folder, &BEFORE))).expect("a run");
    assert_eq!((summary.steps, summary.sft), (2, None));
    let rows = std::fs::read_to_string(summary.run.join("sft.jsonl")).expect("figures");
    assert_eq!(rows.lines().count(), 12);
    let figures = metrics_of(&summary.run);
    assert!(!figures.is_empty() && figures.iter().all(|row| row.get("sft/loss").is_none()), "{figures:?}");
}

#[test]
fn what_cannot_be_learned_is_refused_and_leaves_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    rows(folder);
    let refused = |more: &[&str]| {
        let error = ran(RunStart::New(config(folder, more))).expect_err("refused");
        assert!(!folder.join("sft").exists(), "nothing was begun");
        tamis_core::fault::chain(&error).replace(&folder.display().to_string(), "DIR")
    };
    assert_eq!(refused(&["sft.max_length=33"]), "sft.max_length is 33, and the model reads 32 tokens");
    std::fs::write(
        folder.join("odd.jsonl"),
        "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\"}\n",
    )
    .expect("written");
    let odd = format!("sft.data={}", folder.join("odd.jsonl").display());
    let error = refused(&[&odd]);
    assert!(error.starts_with("DIR/odd.jsonl, line 2: expected `prompt` and `completion`"), "{error}");
    let chat = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"2\"}]}\n";
    std::fs::write(folder.join("odd.jsonl"), chat).expect("written");
    let error = refused(&[&odd, "sft.val_fraction=null"]);
    assert!(error.contains("line 1 cannot be prepared") && error.contains("no chat template"), "{error}");
}

/// Ctrl-C during it saves what was done, and a resume ends as a run that was not interrupted.
#[test]
fn interrupted_before_reinforcement_learning_it_goes_on_where_it_was() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    let rows = rows(folder);
    let with = |name: &str| {
        let name = format!("run.name={name}");
        config(folder, &[&BEFORE[..], &[name.as_str(), "sft.steps=60", "sft.target_accuracy=1"]].concat())
    };
    let figures = |run: &Path| std::fs::read_to_string(run.join("sft.jsonl")).unwrap_or_default();
    let last = |run: &Path| std::fs::read(run.join("checkpoints/step_2/model.safetensors")).expect("weights");
    let whole = ran(RunStart::New(with("whole"))).expect("a run").run;
    assert!(!whole.join("sft").exists(), "the first checkpoint of the run took its place");
    let mut num_saved = 0;
    for num_updates in [1, 15, 40] {
        let name = format!("cut-{num_updates}");
        let (run, interrupt) = (folder.join(&name), Interrupt::new());
        let watch = {
            let (interrupt, file) = (interrupt.clone(), run.join("sft.jsonl"));
            let count = move || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
            std::thread::spawn(move || {
                while count() < num_updates {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                interrupt.signal();
            })
        };
        let console = |_, _| Console::keeping_warnings();
        let begin = RunStart::New(with(&name));
        let ended = super::super::train(begin, console, Outside::NOTHING, &interrupt).expect("no error");
        watch.join().expect("a thread");
        // A slow machine may not stop it in time.
        let Ok(left) = std::fs::read_dir(run.join("sft")) else { continue };
        num_saved += 1;
        assert_eq!(left.count(), 1, "only the newest is kept");
        let TrainEnd::Interrupted(why) = ended else { panic!("interrupted") };
        assert!(why.to_string().starts_with("interrupted in supervised fine-tuning, after "), "{why}");
        // Other rows are another run.
        let own = std::fs::read_to_string(&rows).expect("rows");
        std::fs::write(&rows, own.replace("7+4=", "4+7=")).expect("written");
        let error = ran(resume(&run, with(&name))).expect_err("other rows");
        assert!(error.to_string().contains("a file of sft.data or sft.val"), "{error}");
        std::fs::write(&rows, own).expect("written");
        let resumed = ran(resume(&run, with(&name))).expect("a run").run;
        assert_eq!(figures(&resumed), figures(&whole), "{num_updates}");
        assert!(last(&resumed) == last(&whole), "{num_updates}");
        assert!(!resumed.join("sft").exists());
        let log = std::fs::read_to_string(resumed.join("run.log")).expect("a log");
        assert!(log.contains(" in supervised fine-tuning, after "), "{log}");
    }
    assert!(num_saved > 0, "nothing was interrupted in time");
}
