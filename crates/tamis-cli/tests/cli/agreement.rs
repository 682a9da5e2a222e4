//! `tamis config check` and `tamis train` refuse the same configurations with the same words, each with the
//! place of the key. Nothing is made from a refused configuration.

use crate::tamis::Folder;

/// Configurations that cannot run, as overrides of the tiny one, and the messages of both commands about
/// each.
const REFUSED: &[(&[&str], &str)] = &[
    // Files and folders.
    (&["run.name=../x"], "not a folder name"),
    (&["run.name=a/b"], "not a folder name"),
    (&["run.name=.."], "not a folder name"),
    (&["run.name=/tmp"], "not a folder name"),
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
    (&["reward=[{kind: number},{kind: soft_overlong, penalty_factor: 1e300}]"], "single precision"),
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
    (&["rollout.repetition_penalty=1e300"], "single precision"),
    (&["rollout.min_p=1e-60"], "single precision"),
    (&["validate.top_p=1e-300"], "single precision"),
    (&["train.optimizer.learning_rate=1e300"], "single precision"),
    (&["train.optimizer.epsilon=1e-60"], "single precision"),
    (&["train.optimizer.weight_decay=1e60"], "single precision"),
    (&["train.optimizer.betas=[0.9,0.999999999999]"], "single precision"),
    (&["train.optimizer.max_grad_norm=1e-60"], "single precision"),
    (&["sft.learning_rate=1e60"], "single precision"),
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
    ("rows.jsonl", &["data.prompt_template=doubles.jinja"], "`data.prompt_template`: "),
    // The first rows of every file.
    ("[rows.jsonl,chat.jsonl]", &[], "prompt 0 of the training data (chat.jsonl, line 1) cannot be prepared"),
    (
        "rows.jsonl",
        &["data.val=[rows.jsonl,chat.jsonl]"],
        "prompt 0 of the validation data (chat.jsonl, line 1) cannot be prepared",
    ),
];

fn folder() -> Folder {
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

/// What a run refuses only after it has read its data and called its rewards, with words of the message.
const REFUSED_LATE: &[(&[&str], &str)] = &[
    // Rewards.
    (&["reward=[{kind: python, path: reward.py, function: none}]"], "reward.py has no function `none`"),
    (
        &["reward=[{kind: python, path: reward.py, function: nothing}]"],
        "its parameters fit none of the styles",
    ),
    (&["reward=[{kind: python, path: reward.py, function: lacks}]"], "missing a required argument: 'label'"),
    (
        &["reward=[{kind: python, path: broken.py}]"],
        "-m pip install no_such_module`), or name an interpreter",
    ),
    (&["reward=[{kind: python, path: reward.py, function: imports}]"], "-m pip install no_such`), or name"),
    (&["reward=[{kind: by_source}]"], "reward `by_source` has no verifier for some of the rows"),
    // Gold answers.
    (&["data.train=words.jsonl"], "no gold answer is accepted:"),
    (&["data.train=fails.jsonl", "reward=[{kind: python, path: reward.py}]"], "invalid literal for int()"),
    (&["data.train=truthless.jsonl"], "reward `number` compares with a ground truth, and no training prompt"),
    (&["data.train=some.jsonl", "data.check_gold=error"], "gold answers are rejected by their own verifier"),
    // Data.
    (&["data.train=late.jsonl"], "late.jsonl, line 150: not valid JSON"),
    (&["data.train=one.jsonl", "data.val_fraction=0.5"], "1 training prompts cannot be split"),
    (&["data.train=equal.jsonl", "data.val_fraction=0.5"], "3 training prompts cannot be split"),
    (&["data.max_prompt_length=2"], "has 4 tokens"),
    (&["data.curriculum={column: level}"], "data.curriculum: "),
    // Requirements on scores and steps.
    (
        &["filter.metric=nonsense", "reward=[{kind: python, path: reward.py}]"],
        "no reward function gives a number of that name",
    ),
    (
        &["checkpoint.keep_best={metric: nonsense}", "data.val=rows.jsonl", "validate.test_freq=1"],
        "there is no metric `nonsense`",
    ),
    (
        &[
            "objective.advantage.kind=gae",
            "filter=null",
            "critic.warmup_steps=9",
            "train.total_steps=null",
            "train.total_epochs=1",
        ],
        "the policy would never be trained",
    ),
    (&["model.memory_limit=1MiB"], "of memory, 1.0 MiB is available"),
    (&["rollout.regex='[é]+'"], "rollout.regex"),
];

/// The base of [`REFUSED_LATE`].
fn late() -> Folder {
    let row = |question: &str, answer: &str| {
        format!("{{\"question\": \"{question}\", \"answer\": \"{answer}\"}}\n")
    };
    let rows = row("1+1=", "2") + &row("1+2=", "3");
    let late = row("1+1=", "2").repeat(149) + "{\n";
    let reward = "\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == str(int(ground_truth)))
def nothing():
    return 1.0
def lacks(completion, label):
    return 1.0
def imports(completion, answer):
    import no_such.part
";
    folder()
        .with("rows.jsonl", &rows)
        .with("words.jsonl", &row("1+1=", "two").replace("two\"", "1 or 2\""))
        .with("fails.jsonl", &row("1+1=", "two"))
        .with("truthless.jsonl", "{\"question\": \"1+1=\"}\n")
        .with("some.jsonl", &(rows.clone() + &row("1+3=", "four")))
        .with("late.jsonl", &late)
        .with("one.jsonl", &row("1+1=", "2"))
        .with("equal.jsonl", &row("1+1=", "2").repeat(3))
        .with("reward.py", reward)
        .with("broken.py", "import no_such_module\n")
}

const OF_ROWS: [&str; 8] = [
    "tiny.yaml",
    "data.task=null",
    "~data.arithmetic",
    "data.train=rows.jsonl",
    "validate.test_freq=0",
    "validate.before_train=false",
    "sft.steps=0",
    "data.train_batch_size=2",
];

#[test]
fn a_check_finds_what_a_run_refuses_before_it_samples() {
    let folder = late();
    let mut wrong = Vec::new();
    for (overrides, expected) in REFUSED_LATE {
        let checked = folder.tamis(&[&["config", "check"], &OF_ROWS[..], overrides].concat());
        let is_left = folder.join("runs").exists();
        let trained = folder.tamis(&[&["train"], &OF_ROWS[..], overrides].concat());
        let failure = trained.failure();
        let failure = failure.split_once('\n').map_or("", |(_, failure)| failure);
        let failure = failure.split("\nnote: ").next().unwrap_or_default().trim_end();
        let failure = failure.replace(&folder.join("").display().to_string(), "");
        // What is known about the end of a process depends on the time of the check.
        let [failure, printed] = [&failure, &checked.stderr]
            .map(|text| text.replace("(it closed its output)", "(exit status: 1)"));
        let is_same = checked.code == Some(2) && trained.code == Some(2) && printed.contains(&failure);
        if !is_same || !failure.contains(expected) || is_left {
            wrong.push(format!(
                "{overrides:?}, expected {expected:?}\n{}{}",
                checked.shown(),
                trained.shown()
            ));
        }
        let _ = std::fs::remove_dir_all(folder.join("runs"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_check_lists_all_of_it_at_once() {
    let folder = late();
    let overrides = [
        "reward=[{kind: python, name: a, path: reward.py, function: nothing}, {kind: python, name: b, path: broken.py}]",
        "data.max_prompt_length=2",
        "run.loggers=[{kind: wandb, python: no-such-python}]",
        "objective.shaping=[{kind: clip_advantage, low: 3}]",
    ];
    let checked = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &overrides[..3]].concat()).exits(2);
    for words in
        ["nothing() cannot be called", "reward `b` cannot be used", "has 4 tokens", "3 errors in the"]
    {
        checked.says(words);
    }
    checked.says("warning: the logger `wandb` loses metrics: `no-such-python` cannot be started");
    // With an error of the settings what depends on them is not looked at; rewards and prompts are.
    let checked = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &overrides[..]].concat()).exits(2);
    checked.says("`low` is 3").says("nothing() cannot be called").says("reward `b` cannot be used");
    checked.says("has 4 tokens");
    checked.says("not checked because of errors: the filter, the memory and the machines");
    assert!(!folder.join("runs").exists());
}

/// An error of one part hides nothing that can be found without it.
#[test]
fn an_error_hides_no_other() {
    let folder = late();
    let check =
        |overrides: &[&str]| folder.tamis(&[&["config", "check"], &OF_ROWS[..], overrides].concat()).exits(2);
    let number = "reward=[{kind: number}]";
    let blind = "reward `number` compares with a ground truth, and no training prompt";
    // Keys, rules and values.
    let checked = check(&["data.train=truthless.jsonl", number, "train.total_stesp=3", "rollout.n=abc"]);
    checked.says("unknown key `train.total_stesp`").says("`rollout.n` must be").says(blind);
    checked.says("3 errors in the configuration");
    // The validation data, its file or a row of it.
    for (val, words) in
        [("none.jsonl", "there is no file none.jsonl"), ("late.jsonl", "line 150: not valid JSON")]
    {
        let checked = check(&["data.train=truthless.jsonl", number, &format!("data.val={val}")]);
        checked.says(words).says(blind).says("2 errors in the configuration");
    }
    // The model.
    let checked = check(&["data.train=truthless.jsonl", number, "model.init=null", "model.path=nowhere"]);
    checked.says("there is no folder nowhere").says(blind);
    // The training data hides what needs it, and a line says so.
    let checked = check(&["data.train=none.jsonl", "reward=[{kind: python, path: broken.py}]"]);
    checked.says("there is no file none.jsonl").says("reward `python` cannot be used");
    checked.says("not checked because of errors: the rows of the training data, and whether rewards take their gold answers");
    assert!(!folder.join("runs").exists());
}

/// It is reported where it was written, once, however many use it; and one that a section names is another.
#[test]
fn an_interpreter_is_reported_where_it_was_named() {
    let folder = late().with("python.yaml", "run:\n  python: no-such-python\n");
    let check = |rewards: &str| {
        let reward = format!("reward=[{rewards}]");
        folder.tamis(&[&["config", "check", "tiny.yaml", "python.yaml"], &OF_ROWS[1..], &[&*reward]].concat())
    };
    let of = |name: &str, more: &str| format!("{{kind: python, name: {name}, path: more.py{more}}}");
    folder.write("more.py", "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return float(solution_str == ground_truth)\n");
    let ended = check(&[of("a", ""), of("b", "")].join(", ")).exits(2);
    ended.says("`run.python`: there is no program no-such-python\n --> python.yaml:2:11");
    ended.says("1 error in the configuration");
    check(&of("a", ", python: python3")).succeeds();
    let ended = check(&of("a", ", python: none-such")).exits(2);
    ended.says("`reward[0].python`: there is no program none-such");
}

/// A check tells before it calls a user's functions, and how often.
#[test]
fn a_check_announces_calls_of_functions() {
    let row = |at| format!("{{\"question\": \"{at}+0=\", \"answer\": \"{at}\"}}\n");
    let rows = (0..120).map(row).collect::<Vec<_>>().concat();
    let source = "\
import os
open('imports', 'a').write('x')
def f(completion, answer):
    with open('calls', 'a') as calls: calls.write('x')
    return float(completion == answer)
def g(completion, answer):
    return 0.5 * float(completion == answer)
";
    let folder = late().with("many.jsonl", &rows).with("two.py", source);
    let reward = "reward=[{kind: python, name: f, path: two.py, function: f}, {kind: python, name: g, path: two.py, function: g}]";
    let more = ["data.train=many.jsonl", reward, "filter.metric=f"];
    let ended = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &more].concat()).succeeds();
    ended.says("starting 1 reward process: two.py (2 functions)\n");
    ended.says("checking 120 gold answers with reward `f`: it is called for about 2");
    let num = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default().len();
    assert_eq!(num("imports"), 1, "the file is imported once");
    assert!((120..280).contains(&num("calls")), "{} calls", num("calls"));
}

#[test]
fn a_check_says_what_it_leaves_to_a_run() {
    let folder = late();
    let judge = "reward=[{kind: number}, {kind: judge, name: mine, servers: ['http://127.0.0.1:9'], model: m, prompt: '{completion}'}]";
    let ended = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &[judge]].concat()).succeeds();
    let expected = "not checked, because it needs a server or a model in memory: `mine` (reward[1]); `tamis train` checks it before it \
        generates anything\n";
    assert!(ended.stdout.contains(expected), "{}", ended.shown());
    let ended = folder.tamis(&[&["config", "check"], &OF_ROWS[..]].concat()).succeeds();
    ended.never_prints("not tried");
    assert!(!folder.join("runs").exists());
}

#[test]
fn a_function_that_takes_no_gold_answer_is_not_suspected() {
    let folder = late().with(
        "more.py",
        "def short(completion):\n    return float(len(completion) < 9)\n\
         def ignores(completion, answer):\n    return 1.0\n\
         def of_trl(completions, **kwargs):\n    return [0.0 for _ in completions]\n",
    );
    let rows = (0..20).map(|at| format!("{{\"question\": \"{at}+1=\", \"answer\": \"{}\"}}\n", at + 1));
    folder.write("many.jsonl", &rows.collect::<String>());
    let with = |function: &str, more: &[&str]| {
        let reward = format!("reward=[{{kind: python, path: more.py, function: {function}}}]");
        folder
            .tamis(&[&["config", "check"], &OF_ROWS[..], &["data.train=many.jsonl", &reward], more].concat())
    };
    let metric = ["filter.metric=score"];
    for function in ["short", "of_trl"] {
        let ended = with(function, &metric).succeeds();
        assert!(!ended.stdout.contains("no better than"), "{}", ended.shown());
    }
    with("ignores", &metric).succeeds().prints("no better than an empty completion");
    // Without a ground truth, a function that does not ask for one is valid, too.
    with("short", &["data.train=truthless.jsonl", "filter.metric=score"]).succeeds();
}

#[test]
fn a_finding_in_a_file_has_its_line() {
    let folder =
        folder().with("data.yaml", "data:\n  task: null\n  train:\n    - rows.jsonl\n    - none.jsonl\n");
    insta::assert_snapshot!(with_rows(&folder, &["train"], "data.yaml"), @r#"
exit code 2
----- stderr
error: `data.train[1]`: there is no file none.jsonl
 --> data.yaml:5:7
  |
5 |     - none.jsonl
  |       ^^^^^^^^^^
  hint: name JSONL or Parquet files, or a data set on a hub (`owner/name:split`); a relative path in a configuration is relative to that file's folder, one on the command line to the working directory

1 error in the configuration
"#);
}

/// Output of a command with `tiny.yaml`, prompts from the rows of a file, and without validation.
fn with_rows(folder: &Folder, command: &[&str], file: &str) -> String {
    let rest = ["tiny.yaml", file, "~data.arithmetic", "validate.test_freq=0"];
    folder.tamis(&[command, &rest].concat()).shown()
}

#[test]
fn a_placeholder_is_told_by_a_check_and_refused_by_a_run() {
    let folder = folder().with("example.yaml", "data: {task: null, train: PATH/TO/train.parquet}\n");
    insta::assert_snapshot!(with_rows(&folder, &["config", "check"], "example.yaml"), @"
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
    insta::assert_snapshot!(with_rows(&folder, &["train"], "example.yaml"), @"
exit code 2
----- stderr
error: `data.train` is `PATH/TO/train.parquet`, a placeholder
 --> example.yaml:1:27
  |
1 | data: {task: null, train: PATH/TO/train.parquet}
  |                           ^^^^^^^^^^^^^^^^^^^^^
  hint: replace it with your own path

1 error in the configuration
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
    let message = |file: &str| folder.tamis(&["config", "check", file]).shown();
    insta::assert_snapshot!(message("latin.yaml"), @"
exit code 2
----- stderr
error: the file is not UTF-8: byte 16 does not belong to a character
 --> latin.yaml:2:12
  |
2 |   name: caf�
  |            ^
  hint: save the file as UTF-8 (`iconv -f LATIN1 -t UTF-8` if it is Latin-1)

1 error in the configuration
");
    insta::assert_snapshot!(message("utf16.yaml"), @"
exit code 2
----- stderr
error: the file is UTF-16, not UTF-8
 --> utf16.yaml:1:1
  |
1 | ��r u n :   { } 
  | ^
  hint: save the file as UTF-8 (`iconv -f UTF-16 -t UTF-8`)

1 error in the configuration
");
    insta::assert_snapshot!(message("large.yaml"), @"
exit code 2
----- stderr
error: failed to read large.yaml: it has 16.0 MiB, and 16.0 MiB is the most that is read

1 error in the configuration
");
    insta::assert_snapshot!(message("folder"), @"
exit code 2
----- stderr
error: failed to read folder: it is a folder, not a regular file
  hint: name a YAML file in this folder

1 error in the configuration
");
    let folder = folder.with("tags.yaml", "run: !!python/object:os.system\n  name: !mine x\n");
    insta::assert_snapshot!(folder.tamis(&["config", "check", "tiny.yaml", "tags.yaml"]).shown(), @"
exit code 2
----- stderr
error: `!!python/object:os.system` is a YAML tag, and tags are not supported: every key has a fixed type
 --> tags.yaml:2:3
  |
2 |   name: !mine x
  |   ^
  hint: remove the tag; put a text in quotes

error: `!mine` is a YAML tag, and tags are not supported: every key has a fixed type
 --> tags.yaml:2:15
  |
2 |   name: !mine x
  |               ^
  hint: remove the tag; put a text in quotes

2 errors in the configuration
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

/// A configuration may be checked elsewhere than it is trained, so what this machine lacks is a warning.
#[test]
fn a_check_warns_of_packages_and_programs_that_are_not_here() {
    let folder = folder();
    let answer = r#"{"executable": "own", "version": "3.11.7", "packages": {}, "torch": null}"#;
    folder.write("venv/bin/python3", &format!("#!/bin/sh\necho '{answer}'\n"));
    let path = folder.join("venv/bin/python3");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
    let check = |overrides: &[&str]| {
        folder.tamis(&[&["config", "check", "tiny.yaml"], overrides].concat()).succeeds()
    };
    let torch = ["learner.backend=torch", "learner.device=cpu", "learner.python=venv/bin/python3"];
    check(&torch)
        .prints("learner.python lacks torch, transformers, safetensors, so a run on this machine would end");
    let servers = ["rollout.backend=vllm", "rollout.launch={command: [no-such-server, '{port}', '{model}']}"];
    check(&servers).prints("there is no program `no-such-server`, so a run on this machine would end");
    check(&[]).never_prints("on this machine");
}
