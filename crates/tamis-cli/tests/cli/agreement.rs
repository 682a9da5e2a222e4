//! `tamis config check` and `tamis train` refuse the same configurations with the same words, each with the
//! place of the key. Nothing is made from a refused configuration.

use crate::tamis::{Ended, Folder, failures};

/// Configurations that cannot run, as overrides of the tiny one, and the messages of both commands about
/// each.
const REFUSED: &[(&[&str], &str)] = &[
    // Files and folders.
    (&["run.name=../x"], "not a folder name"),
    (&["run.name=.."], "not a folder name"),
    (&["run.name=\"a\\nb\""], "not a folder name"),
    (&["model.init=null", "model.path=none"], "`model.path`: there is no folder none"),
    (
        &["model.init=null", "model.path=folder"],
        "folder has no config.json and no tokenizer.json and no model.safetensors",
    ),
    (&["model.init=null", "model.path=broken"], "broken cannot be used: "),
    (&["model.reference=none", "objective.kl.in=loss"], "`model.reference`: there is no folder none"),
    (
        &["objective.advantage.kind=gae", "filter=null", "critic.model.path=none"],
        "`critic.model.path`: there is no folder",
    ),
    (&["model.init.tokenizer=none"], "`model.init.tokenizer`: there is no file none"),
    (&["model.init.tokenizer=folder"], "`model.init.tokenizer`: there is no file folder/tokenizer.json"),
    (&["model.chat_template=none.jinja"], "`model.chat_template`: failed to read the template none.jinja"),
    (&["model.chat_template=bad.jinja"], "the chat template does not parse"),
    (&["model.chat_template=long.jinja"], "it has 1.0 MiB, and 1.0 MiB is the most that is read"),
    (&["reward=[{kind: python, path: none.py}]"], "`reward[0].path`: there is no file none.py"),
    (
        &["reward=[{kind: python, path: rows.jsonl, python: no-such-python}]"],
        "there is no program no-such-python",
    ),
    (&["reward=[{kind: command, argv: [no-such-program]}]"], "there is no program no-such-program"),
    (&["reward=[{kind: command, argv: [./none]}]"], "there is no program ./none"),
    (&["run.dir=rows.jsonl/runs"], "rows.jsonl is a file, not a folder"),
    (&["run.dir=/proc/tamis/runs"], "nothing can be made in /proc"),
    // The first rows of tasks.
    (
        &["model.chat_template=loops.jinja"],
        "prompt 0 of the training data cannot be prepared: the chat template needs too much work for one conversation",
    ),
    (&["data.prompt_template=doubles.jinja"], "`data.prompt_template`: "),
    (
        &["model.chat_template=tags.jinja"],
        "prompt 0 of the training data cannot be prepared: character '<' (at character 0 of",
    ),
    (&["data.task=gsm8k_calculator", "data.train=calculated.jsonl", "data.val=rows.jsonl"], "`data.val`: "),
    // Rewards.
    (&["reward=[{kind: number},{kind: format, pattern: '('}]"], "unclosed group"),
    (&["reward=[{kind: number},{kind: length, min_length: 9, max_length: 3}]"], "reward `length` needs"),
    // Losses, advantages, corrections.
    (&["objective.importance=sequence", "objective.loss.kind=gspo"], "importance"),
    (&["objective.shaping=[{kind: clip_advantage, low: 3}]"], "`low` is 3"),
    (&["objective.advantage.kind=gdpo", "objective.kl.in=reward"], "the KL cannot be in the reward: `gdpo`"),
    (&["objective.advantage.kind=bnpo", "objective.kl.in=reward"], "the KL cannot be in the reward: `bnpo`"),
    (
        &["objective.correction.rejections=[{statistic: nonsense, threshold: '1'}]"],
        "unknown rejection statistic",
    ),
    (&["objective.correction.rejections=[{statistic: seq_mean_k3, threshold: x}]"], "threshold `x`"),
    (&["objective.correction.weights={min: 5, max: 2}"], "the lower must be below the upper"),
    (&["objective.correction.preset=bypass_pg_is"], "weights the plain policy gradient"),
    (&["objective.loss.kind=decoupled", "objective.correction.preset=decoupled_token_is"], "weighted twice"),
    // Numbers that single precision does not hold.
    (
        &["rollout.top_p=1e-300"],
        "single precision (about 1e-45 to 3e38 in size, 7 digits): 1e-300 becomes 0 there",
    ),
    (&["train.optimizer.learning_rate=1e300"], "single precision"),
    (&["train.optimizer.betas=[0.9,0.999999999999]"], "single precision"),
    (&["objective.loss.dual_clip=1.000000000001"], "single precision"),
];

/// Data files that cannot be used, with further overrides, and the messages of both commands about each.
const REFUSED_FILES: &[(&str, &[&str], &str)] = &[
    ("none.jsonl", &[], "`data.train`: there is no file none.jsonl"),
    ("[rows.jsonl,none.jsonl]", &[], "`data.train[1]`: there is no file none.jsonl"),
    ("folder", &[], "it is a folder, not a regular file"),
    ("/dev/zero", &[], "it is a device, not a regular file"),
    ("rows.jsonl", &["data.val=none.jsonl"], "`data.val`: there is no file"),
    ("none.jsonl", &["data.task=gsm8k_calculator"], "`data.train`: there is no file"),
    ("rows.jsonl", &["data.task=gsm8k_calculator"], "`data.train`: "),
    ("empty.jsonl", &[], "`data.train`: no prompts in empty.jsonl"),
    (
        "rows.jsonl",
        &["data.columns.prompt=text"],
        "`data.columns.prompt`: rows.jsonl, line 1: expected a column `text`",
    ),
    (
        "rows.jsonl",
        &["data.columns.ground_truth=gold"],
        "`data.columns.ground_truth`: rows.jsonl, line 1: expected a column `gold`",
    ),
    ("[rows.jsonl,other.jsonl]", &[], "other.jsonl, line 1: expected a column `prompt`"),
    ("rows.jsonl", &["data.val=lines.jsonl"], "lines.jsonl, line 2: not valid JSON"),
    ("no.parquet", &[], "no.parquet is not a Parquet file: it does not begin with PAR1"),
    ("broken.parquet", &[], "failed to read broken.parquet as Parquet"),
    ("chat.jsonl", &[], "the tokenizer has no chat template"),
    ("chat.jsonl", &["model.chat_template=doubles.jinja"], "`model.chat_template`: "),
    (
        "chat.jsonl",
        &["model.chat_template=loops.jinja"],
        "the chat template needs too much work for one conversation",
    ),
    // The first rows of every file.
    ("[rows.jsonl,chat.jsonl]", &[], "prompt 0 of the training data (chat.jsonl, line 1) cannot be prepared"),
    (
        "rows.jsonl",
        &["data.val=[rows.jsonl,chat.jsonl]"],
        "prompt 0 of the validation data (chat.jsonl, line 1) cannot be prepared",
    ),
];

pub(crate) fn folder() -> Folder {
    let folder = Folder::tiny()
        .with("rows.jsonl", "{\"question\": \"1+1=\", \"answer\": \"2\"}\n")
        .with("calculated.jsonl", "{\"answer\": \"<<1+1=2>>2\"}\n")
        .with("empty.jsonl", "\n")
        .with("other.jsonl", "{\"text\": \"1+1=\"}\n")
        .with("lines.jsonl", "{\"question\": \"1+1=\", \"answer\": \"2\"}\n{\n")
        .with("chat.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+1=\"}], \"answer\": \"2\"}\n")
        .with("no.parquet", "question,answer\n")
        .with("broken.parquet", "PAR1 and no more")
        .with("doubles.jinja", "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}")
        .with("loops.jinja", "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}")
        .with("bad.jinja", "{% if %}")
        .with("tags.jinja", "<|user|>{{ messages[-1].content }}")
        .with("long.jinja", &" ".repeat((1 << 20) + 1))
        .with("folder/note", "")
        .with("broken/config.json", "{\"architectures\": [\"GPT2LMHeadModel\"]}")
        .with("broken/tokenizer.json", "{}");
    folder.write("broken/model.safetensors", "");
    folder
}

#[test]
fn both_commands_refuse_the_same_with_the_same_words_and_the_place() {
    let folder = folder();
    let long = format!("run.name={}", "a".repeat(260));
    let mut cases: Vec<(Vec<&str>, &str)> = vec![(vec![&long], "not a folder name")];
    cases.extend(REFUSED.iter().map(|(overrides, expected)| (overrides.to_vec(), *expected)));
    let files: Vec<String> = REFUSED_FILES.iter().map(|(file, ..)| format!("data.train={file}")).collect();
    for (file, (_, more, expected)) in files.iter().zip(REFUSED_FILES) {
        cases.push(([&["data.task=null", "validate.test_freq=0", file], *more].concat(), expected));
    }
    let mut wrong = Vec::new();
    for (overrides, expected) in cases {
        let checked = folder.tamis(&[&["config", "check", "tiny.yaml"], &overrides[..]].concat());
        let trained = folder.tamis(&[&["train", "tiny.yaml"], &overrides[..]].concat());
        // A check adds what it did not check.
        let (same, _) =
            checked.stderr.split_once("not checked because of errors: ").unwrap_or((&checked.stderr, ""));
        let is_refused = (checked.code, trained.code) == (Some(2), Some(2)) && same == trained.stderr;
        let is_told = checked.stderr.contains(expected) && checked.stderr.contains("--> ");
        if !is_refused || !is_told || folder.join("runs").exists() {
            let [checked, trained] = [checked, trained].map(|ended| ended.shown());
            wrong.push(format!("{overrides:?}, expected {expected:?}\n{checked}{trained}"));
            let _ = std::fs::remove_dir_all(folder.join("runs"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn what_is_not_there_comes_with_what_to_do() {
    let folder = folder();
    for (overrides, hint) in [
        (
            &["model.init=null", "model.path=none"][..],
            "name a folder with config.json, model.safetensors and tokenizer.json, or a model on a hub (`owner/name`)",
        ),
        (
            &["model.init=null", "model.path=folder"],
            "the folder of a model is what `save_pretrained(..., safe_serialization=True)` of model and tokenizer writes",
        ),
        (&["model.chat_template=none.jinja"], "name a file with a Jinja template, or leave it out"),
        (&["reward=[{kind: python, path: none.py}]"], "name the Python file that holds the function"),
        (
            &["reward=[{kind: command, argv: [no-such-program]}]"],
            "is it installed and on PATH? A name without `/` is looked for there",
        ),
        (
            &["run.dir=/proc/tamis/runs"],
            "name a folder that can be made and written to, such as `run.dir=runs`",
        ),
        (&["objective.advantage.kind=bnpo", "objective.kl.in=reward"], "set objective.kl.in=loss"),
        (&["objective.correction.preset=bypass_pg_is"], "set objective.loss.kind=reinforce"),
    ] {
        let checked = folder.tamis(&[&["config", "check", "tiny.yaml"], overrides].concat()).exits(2);
        checked.says(&format!("\n  hint: {hint}\n"));
    }
}

#[test]
fn a_name_that_is_taken_has_room_for_a_number_or_is_refused() {
    let folder = folder();
    let name = "n".repeat(255);
    let named = format!("run.name={name}");
    let short = ["train.total_steps=1", "sft.steps=1", "filter=null", "data.gen_batch_size=null"];
    folder.tamis(&[&["train", "tiny.yaml", &named], &short[..]].concat()).succeeds();
    for command in [&["config", "check"][..], &["train"]] {
        let ended = folder.tamis(&[command, &["tiny.yaml", &named], &short[..]].concat()).exits(2);
        let printed = ended.stderr.replace(&name, "NAME");
        assert!(
            printed.contains(
                "`run.name`: failed to make a folder for the run `NAME` in `runs`: it exists, \
                 and `NAME-2` has 257 bytes, more than the 255"
            ),
            "{printed}"
        );
        assert!(printed.contains("hint: take a shorter `run.name`"), "{printed}");
    }
    assert_eq!(std::fs::read_dir(folder.join("runs")).expect("runs").count(), 1);
}

#[test]
fn a_resume_and_an_evaluation_are_checked_too() {
    let folder = folder().with(
        "reward.py",
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n",
    );
    folder.write("plain.jinja", "{{ messages[-1].content }}");
    let begin = [
        "train",
        "tiny.yaml",
        "data.task=null",
        "data.train=rows.jsonl",
        "data.val=rows.jsonl",
        "train.total_steps=1",
        "data.train_batch_size=1",
        "data.gen_batch_size=null",
        "filter=null",
        "train.ppo_mini_batch_size=1",
        "reward=[{kind: python, path: reward.py}]",
        "model.chat_template=plain.jinja",
        "data.prompt_format=chat",
        "objective.kl.in=loss",
    ];
    folder.tamis(&begin).succeeds();
    let resume = ["train", "--resume", "runs/tiny", "train.total_steps=2"];
    let eval = ["eval", "runs/tiny"];
    let run = folder.join("runs/tiny");
    for (file, key) in
        [("rows.jsonl", "data."), ("reward.py", "`reward[0].path`"), ("plain.jinja", "`model.chat_template`")]
    {
        let aside = folder.join("aside");
        std::fs::rename(folder.join(file), &aside).expect("moved");
        for command in [&resume[..], &eval[..]] {
            let ended = folder.tamis(command);
            assert_eq!(ended.code, Some(2), "{command:?} without {file}: {}", ended.shown());
            ended.says(key).says(file);
            ended.says("--> ").says("config.yaml:");
            ended.never_says("resuming");
        }
        std::fs::rename(&aside, folder.join(file)).expect("back");
    }
    // A template that fails on the rows, and invalid rows.
    folder
        .write("plain.jinja", "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}");
    for command in [&resume[..], &eval[..]] {
        folder.tamis(command).exits(2).says("the chat template needs too much work");
    }
    folder.write("plain.jinja", "{{ messages[-1].content }}");
    let ended = folder.tamis(&[&eval[..], &["data.val=empty.jsonl"]].concat());
    assert!(ended.failure().contains("no prompts in") && ended.code == Some(2), "{}", ended.shown());
    // An evaluation does not need the training prompts, and a resume does not need the folder of the run's
    // original model.
    folder.tamis(&[&eval[..], &["data.train=none.jsonl"]].concat()).succeeds();
    let before: Vec<u8> = std::fs::read(run.join("metrics.jsonl")).expect("metrics");
    folder.tamis(&resume).succeeds();
    assert_ne!(before, std::fs::read(run.join("metrics.jsonl")).expect("metrics"));
    let own = "run.name=own";
    let checkpoint = folder.join("runs/tiny/checkpoints/step_2");
    let model = format!("model.path={}", checkpoint.display());
    folder.tamis(&[&begin[..], &[own, &model, "model.init=null", "sft.steps=0"]].concat()).succeeds();
    std::fs::remove_dir_all(&checkpoint).expect("removed");
    folder.tamis(&["train", "--resume", "runs/own", "train.total_steps=2"]).succeeds();
}

#[test]
fn a_finding_in_a_file_has_its_line() {
    let folder =
        folder().with("data.yaml", "data:\n  task: null\n  train:\n    - rows.jsonl\n    - none.jsonl\n");
    insta::assert_snapshot!(with_rows(&folder, &["train"], "data.yaml"), @r"
    exit code 2
    error: `data.train[1]`: there is no file none.jsonl
      at data.yaml:5:7:     - «none.jsonl»
      hint: name JSONL or Parquet files, or a data set on a hub (`owner/name:split`); a relative path in a configuration is relative to that file's folder, one on the command line to the working directory
    ");
}

/// A command with `tiny.yaml`, prompts from the rows of a file, and without validation.
fn with_rows(folder: &Folder, command: &[&str], file: &str) -> Ended {
    let rest = ["tiny.yaml", file, "~data.arithmetic", "validate.test_freq=0"];
    folder.tamis(&[command, &rest].concat())
}

#[test]
fn a_placeholder_is_told_by_a_check_and_refused_by_a_run() {
    let folder = folder().with("example.yaml", "data: {task: null, train: PATH/TO/train.parquet}\n");
    insta::assert_snapshot!(with_rows(&folder, &["config", "check"], "example.yaml").shown(), @r"
    exit code 0
    ----- stdout
    warning: `data.train` is `PATH/TO/train.parquet`, a placeholder
     --> example.yaml:1:27
      |
    1 | data: {task: null, train: PATH/TO/train.parquet}
      |                           ^^^^^^^^^^^^^^^^^^^^^
      hint: replace it with your own path
    the configuration is sound (1 warning)
    ");
    insta::assert_snapshot!(with_rows(&folder, &["train"], "example.yaml"), @r"
    exit code 2
    error: `data.train` is `PATH/TO/train.parquet`, a placeholder
      at example.yaml:1:27: data: {task: null, train: «PATH/TO/train.parquet»}
      hint: replace it with your own path
    ");
}

#[test]
fn what_is_no_file_of_text_is_no_configuration() {
    let folder = folder();
    std::fs::write(folder.join("latin.yaml"), b"run:\n  name: caf\xe9\n").expect("write");
    let utf16: Vec<u8> =
        [0xff, 0xfe].into_iter().chain("run: {}\n".encode_utf16().flat_map(u16::to_le_bytes)).collect();
    std::fs::write(folder.join("utf16.yaml"), utf16).expect("write");
    std::fs::File::create(folder.join("large.yaml"))
        .expect("create")
        .set_len((16 << 20) + 1)
        .expect("length");
    folder.write("tag.yaml", "run: !!python/object:os.system\n  name: x\n");
    folder.write("mine.yaml", "run:\n  name: !mine x\n");
    let message = |files: &[&str]| folder.tamis(&[&["config", "check"], files].concat());
    insta::assert_snapshot!(failures([
        message(&["latin.yaml"]),
        message(&["utf16.yaml"]),
        message(&["large.yaml"]),
        message(&["folder"]),
        message(&["tiny.yaml", "tag.yaml"]),
        message(&["tiny.yaml", "mine.yaml"]),
    ]), @r"
    exit code 2
    error: the file is not UTF-8: byte 16 does not belong to a character
      at latin.yaml:2:12:   name: caf«�»
      hint: save the file as UTF-8 (`iconv -f LATIN1 -t UTF-8` if it is Latin-1)
    error: the file is UTF-16, not UTF-8
      at utf16.yaml:1:1: «�»�r u n :   { } 
      hint: save the file as UTF-8 (`iconv -f UTF-16 -t UTF-8`)
    error: failed to read large.yaml: it has 16.0 MiB, and 16.0 MiB is the most that is read
    error: failed to read folder: it is a folder, not a regular file
      hint: name a YAML file in this folder
    error: `!!python/object:os.system` is a YAML tag, and tags are not supported: every key has a fixed type
      at tag.yaml:2:3:   «n»ame: x
      hint: remove the tag; put a text in quotes
    not checked because of errors: the filter, the memory and the machines
    error: `!mine` is a YAML tag, and tags are not supported: every key has a fixed type
      at mine.yaml:2:15:   name: !mine «x»
      hint: remove the tag; put a text in quotes
    not checked because of errors: the filter, the memory and the machines
    ");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_at_once() {
    let folder = folder();
    let pipe = folder.join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    for arguments in [
        &["config", "check", "/dev/zero"][..],
        &["config", "check", "pipe.yaml"],
        &["config", "import", "--", "pipe.yaml"],
        &["train", "/dev/zero"],
        &["train", "tiny.yaml", "data.task=null", "validate.test_freq=0", "data.train=pipe.yaml"],
        &["train", "tiny.yaml", "model.chat_template=pipe.yaml"],
        &["train", "tiny.yaml", "reward=[{kind: python, path: pipe.yaml}]"],
        &["filter", "/dev/zero", "--metric", "acc", "--strategy", "variance"],
        &["filter", "pipe.yaml", "--metric", "acc", "--strategy", "variance"],
    ] {
        let begun = std::time::Instant::now();
        let ended = folder.tamis(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.shown());
        assert!(ended.stderr.contains("not a regular file"), "{arguments:?}: {}", ended.shown());
        assert!(begun.elapsed().as_secs() < 20, "{arguments:?}");
    }
}
