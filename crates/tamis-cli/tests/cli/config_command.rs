//! `tamis config`, the commands of other systems, and the shipped configurations.

use crate::tamis::{Folder, Replaced as _, failures};

#[test]
fn commands_of_others_are_taken_as_they_are() {
    let folder = Folder::new().with("grpo.yaml", "model_name_or_path: m\n");
    // Without `--` too; an unknown option is passed to TRL.
    let plain = folder.tamis(&["config", "import", "--num_generations", "4"]).succeeds().stdout;
    assert!(plain.contains("n: 4"), "{plain}");
    insta::assert_snapshot!(failures([
        folder.tamis(&["train", "--config", "grpo.yaml", "--num_generation", "4"]),
        // Options of `train` itself stay its own.
        folder.tamis(&["train", "--resume", "nowhere", "--num_generations", "4"]),
        folder.tamis(&["train", "--modle", "4"]),
    ]), @r"
    exit code 2
    error: `num_generation` is no key of TRL that tamis knows
      at command line: «num_generation»=4
      hint: did you mean `num_generations`?
    error: failed to open the run `nowhere`: there is no such folder
      hint: name the folder that a run printed at its start; it holds `config.yaml`
    error: unexpected argument '--modle' found
      tip: to pass '--modle' as a value, use '-- --modle'
    Usage: tamis train [OPTIONS] [CONFIG.yaml | KEY=VALUE]...
    For more information, try '--help'.
    ");
}

#[test]
fn paths_in_files_of_others_are_those_of_the_working_directory() {
    let folder = Folder::tiny()
        .with("data/sums.jsonl", "{\"question\": \"1+1=\", \"answer\": \"2\"}\n{\"question\": \"2+3=\", \"answer\": \"5\"}\n")
        .with("data/prompts.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"2+3=\"}\n")
        .with("examples/format.jinja", "{{ content }}")
        .with("examples/chat.jinja", "{{ messages[0]['content'] }}")
        .with(
            "examples/reward.py",
            "def score(inputs):\n    return [{'overall': float(len(i['response']) % 2)} for i in inputs]\n\n\n\
             def length(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n\n\n\
             def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return float(len(solution_str))\n",
        )
        .with(
            "examples/config.yaml",
            "data: {train_files: data/none.jsonl, prompt_key: question, answer_key: answer, rollout_batch_size: 2, max_prompt_length: 16, \
             max_response_length: 4, format_prompt: ./examples/format.jinja, override_chat_template: examples/chat.jinja}\n\
             algorithm: {disable_kl: true}\n\
             worker:\n  actor: {global_batch_size: 2, model: {model_path: models/mine}}\n  rollout: {n: 2}\n  \
             reward: {reward_function: './examples/reward.py:score'}\n\
             trainer: {max_steps: 1}\n",
        )
        .with(
            "examples/grpo.yaml",
            "{model_name_or_path: models/mine, dataset_name: data/prompts.jsonl, reward_funcs: examples.reward.length, max_prompt_length: 16, \
             max_completion_length: 4, num_generations: 2, per_device_train_batch_size: 2, max_steps: 1, output_dir: out/trl}\n",
        )
        .with(
            "examples/ppo.yaml",
            "actor_rollout_ref: {model: {path: models/mine}, rollout: {n: 2}}\n\
             data: {train_files: data/sums.jsonl, prompt_key: question, train_batch_size: 2, max_prompt_length: 16, max_response_length: 4}\n\
             algorithm: {adv_estimator: grpo}\ncustom_reward_function: {path: examples/reward.py}\ntrainer: {total_training_steps: 1}\n",
        );
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    std::fs::create_dir(folder.join("models")).expect("a folder");
    std::fs::rename(folder.join("runs/tiny/checkpoints/step_1"), folder.join("models/mine")).expect("moved");
    let easyr1 = ["config=examples/config.yaml", "data.train_files=data/sums.jsonl"];
    let hydra = ["--config-path", "examples", "--config-name", "ppo"];
    for (name, command, imported) in [
        ("easyr1", &easyr1[..], &easyr1[..]),
        ("trl", &["--config", "examples/grpo.yaml"], &["--config", "examples/grpo.yaml"]),
        // Hydra's own options are those of `import`.
        ("verl", &["examples/ppo.yaml"], &hydra),
    ] {
        folder.tamis(&[&["config", "check"], command].concat()).succeeds();
        let text = folder.tamis(&[&["config", "import", "--"], imported].concat()).succeeds().stdout;
        // The helper names the folder like this.
        let text = text.replaced("DIR", folder.path().to_str().expect("a path in UTF-8"));
        let written = format!("elsewhere/{name}.yaml");
        folder.write(&written, &text);
        folder.tamis(&["config", "check", &written]).succeeds();
    }
    folder.tamis(&[&["train"], &easyr1[..]].concat()).succeeds();
    folder.tamis(&["train", "elsewhere/trl.yaml"]).succeeds();
    assert!(folder.join("out/trl/metrics.jsonl").exists(), "where TRL's command would have put it");
}

#[test]
fn every_shipped_configuration_is_sound() {
    let configs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut folders = vec![configs];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                if std::fs::read_to_string(&path).expect("a text").contains("\naxes:") {
                    // The command that it runs is checked like a configuration.
                    let sweep = path.display().to_string();
                    Folder::new().tamis(&["sweep", &sweep, "--dry-run"]).succeeds();
                    continue;
                }
                // Data and a model that a script downloads may be missing; others replace them.
                let folder = Folder::new();
                folder
                    .write("rows.jsonl", "{\"question\": \"1 + 1?\", \"answer\": \"<<1+1=2>>2\\n#### 2\"}\n");
                let file = path.display().to_string();
                let mut arguments = vec!["config", "check", file.as_str()];
                if folder.tamis(&arguments).stderr.contains("there is no folder") {
                    arguments.push("model.path=path/to/model");
                }
                if folder.tamis(&arguments).stderr.contains("there is no file") {
                    arguments.extend(["data.train=rows.jsonl", "data.val=rows.jsonl"]);
                }
                let ended = folder.tamis(&arguments);
                count += 1;
                if ended.stderr.contains("does not start") && ended.stderr.contains("No module named") {
                    println!("skipped: {} needs a package of Python that is not there", path.display());
                    continue;
                }
                assert!(
                    ended.code == Some(0) && ended.stdout.contains("the configuration is sound"),
                    "{}: {}",
                    path.display(),
                    ended.shown()
                );
            }
        }
    }
    assert!(count >= 11, "{count} configurations");
}

#[test]
fn config_commands() {
    let folder = Folder::tiny();
    let sound = folder.tamis(&["config", "check", "tiny.yaml"]).succeeds();
    assert_eq!((&*sound.stdout, &*sound.stderr), ("the configuration is sound (0 warnings)\n", ""));
    insta::assert_snapshot!(folder.tamis(&["config", "explain", "schedule.on_limit"]).shown(), @r#"
exit code 0
----- stdout
schedule.on_limit

  Action if a step's batch is not full when `max_num_gen_batches` is reached. A step that
  kept no group at all is skipped, unless this is `error`.

  type       one of error, use_partial, skip, keep_dropped, duplicate
  default    error
  on resume  must stay
  preset     dapo: error
  preset     dapo_paper: error
  preset     cispo: error
  values
    error: The run stops with a diagnosis, as in verl.
    use_partial: The step trains on the groups that it has, as in EasyR1's dynamic sampling.
    skip: The step discards its groups, and the next step starts.
    keep_dropped: The step trains on the groups that it has, and fills the rest of the batch with groups that the filter dropped in this step, first dispatched first (slime's `keep_when_insufficient`); never with unscored ones. They are counted as `kept_when_insufficient`. Not with `mode: streaming`.
    duplicate: The step trains on the groups that it has, and fills the rest of the batch with copies of them; numbers of copies differ by at most one (SkyRL's `dynamic_sampling.type: replace`). They are counted as `duplicated`. Not with `mode: streaming`.
  also known as
    algorithm.filter_groups.enable (verl, default False there)
    algorithm.use_dynamic_sample (EasyR1, default false there)
    algorithm.online_filtering (EasyR1, default false there)
"#);
    insta::assert_snapshot!(failures([
        folder.tamis(&["config", "explain", "schedule.onlimit"]),
        folder.tamis(&["config", "import", "--", "algorithm.no_such_key=1"]),
    ]), @r"
    exit code 2
    error: there is no key `schedule.onlimit`
      hint: did you mean `schedule.on_limit`?
    error: `algorithm.no_such_key` is no key of verl that tamis knows
      at command line: «algorithm.no_such_key»=1
      hint: did you mean `algorithm.use_pf_ppo`?
    ");
    let first = |name: &str| {
        let ended = folder.tamis(&["explain", name]);
        let line = ended.stdout.lines().chain(ended.stderr.lines()).next().unwrap_or_default().to_owned();
        format!("{} {line}", ended.code.unwrap_or(-1))
    };
    insta::assert_snapshot!(
        ["TOP_K", "Dr.GRPO", "DAPO", "vanilla", "algorithm.filter_groups", "REINFORCE++", "dynamic_filtering", "keep_when_insufficient", "GRESO"].map(first).join("\n"),
        @r#"
0 top_k (filter)
0 dr_grpo (preset)
0 dapo (preset)
0 `vanilla` is here: `clip`
0 `algorithm.filter_groups` is here: `variance`
0 reinforce_plus_plus (preset)
0 `dynamic_filtering` is here: `mean_range`
0 `keep_when_insufficient` (slime's) is here: `schedule.on_limit: keep_dropped`
0 `GRESO` (the paper's name) is here: `schedule.selector.kind: zero_variance_skip`
"#
    );
    // A whole algorithm is more than its clip.
    let ppo = folder.tamis(&["explain", "ppo"]).succeeds().stdout;
    assert!(ppo.contains("GAE") && ppo.contains("clip"), "{ppo}");
    // A name that is no key, and a key that is no name.
    insta::assert_snapshot!(failures([
        folder.tamis(&["config", "explain", "dapo"]),
        folder.tamis(&["explain", "rollout.n"]),
    ]), @r"
    exit code 2
    error: there is no key `dapo`
      hint: `dapo` is a preset: `tamis explain dapo`
    error: nothing is called `rollout.n`
      hint: `rollout.n` is a key: `tamis config explain rollout.n`
    ");
    insta::assert_snapshot!(folder.tamis(&["explain", "gsm8k"]).shown(), @"
    exit code 0
    ----- stdout
    gsm8k (reward)
    verl's GSM8K verifier: 1 or 0. A verifier: its score judges the answer.

    default     reward[].method: strict
    default     reward[].format_score: 0.0
    ");
    // Every reward and every task is listed.
    let all = folder.tamis(&["explain"]).succeeds().stdout;
    for (heading, first) in [("Rewards", "exact"), ("Tasks", "arithmetic")] {
        let listed = all.split_once(&format!("\n{heading}\n  ")).expect("a heading").1;
        assert!(listed.starts_with(first), "{all}");
    }
    // The hint names the most similar file.
    for command in [&["train", "tny.yaml"][..], &["config", "check", "tiny.yml"], &["config", "show", "tiny"]]
    {
        folder.tamis(command).exits(2).says("  hint: did you mean `tiny.yaml`?");
    }
    let nothing =
        "nothing is called `Dr.GPRO`\n  hint: did you mean dr_grpo? `tamis explain` lists every name\n";
    folder.tamis(&["explain", "Dr.GPRO"]).exits(2).fails_with(nothing);
    let schema = folder.tamis(&["config", "schema"]).succeeds().stdout;
    serde_json::from_str::<serde_json::Value>(&schema).expect("JSON");
    // What `show` prints loads to the same.
    let shown = folder.tamis(&["config", "show", "tiny.yaml"]).succeeds().stdout;
    folder.write("shown.yaml", &shown.replace("DIR", &folder.path().display().to_string()));
    let again = folder.tamis(&["config", "show", "shown.yaml"]).succeeds().stdout;
    let values = |text: &str| {
        text.lines().map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(&again), values(&shown));
}

#[test]
fn a_preset_is_shown_without_a_model() {
    let folder = Folder::tiny();
    let shown = folder.tamis(&["config", "show", "preset=dapo"]).succeeds();
    shown.prints("clip_high: 0.28  # preset dapo");
    let lacking = &shown.stderr;
    let is_whole = lacking.starts_with("error: there is no model")
        && lacking.ends_with("a run also needs what these errors name\n");
    assert!(is_whole, "{lacking}");
    assert_eq!(folder.tamis(&["config", "check", "preset=dapo"]).code, Some(2));
}

#[test]
fn configurations_and_pages_come_with_the_program() {
    let folder = Folder::new();
    for (name, text) in tamis_import::SHIPPED {
        let file =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../configs/{name}.yaml"));
        assert_eq!(std::fs::read_to_string(file).expect("a configuration"), text, "{name}");
        let shown = folder.tamis(&["config", "show", name]).succeeds().stdout;
        assert!(shown.contains(&format!("# {name}:")), "{name}: {shown}");
    }
    folder.tamis(&["config", "check", "quickstart"]).succeeds();
    folder.tamis(&["config", "show", "dr_grpo"]).succeeds().prints("preset: dr_grpo");
    folder.tamis(&["config", "show", "quickstrat"]).exits(2).says("did you mean `quickstart`?");
    folder.tamis(&["config", "show", "dapoo"]).exits(2).says("did you mean `dapo`?");
    // A file of that name takes precedence, a folder does not.
    std::fs::create_dir(folder.join("sokoban")).expect("a folder");
    folder.tamis(&["config", "show", "sokoban"]).succeeds();
    folder.write("quickstart", "run: {name: mine}\n");
    folder.tamis(&["config", "show", "quickstart"]).succeeds().prints("name: mine");

    folder.tamis(&["docs"]).succeeds().prints("rewards ");
    folder.tamis(&["docs", "rewards"]).succeeds().prints("# ");
    folder.tamis(&["docs", "docs/rewards.md"]).succeeds().prints("# ");
    folder.tamis(&["docs", "../README.md#what-is-tested"]).succeeds().prints("## What is tested");
    folder.tamis(&["docs", "claims"]).succeeds().prints("# Published claims");
    folder.tamis(&["docs", "what-fits"]).exits(2).says("`tamis docs cluster`");
    folder.tamis(&["docs", "reward"]).exits(2).says("`tamis docs rewards`");
    folder.tamis(&["docs", "real-vllm"]).exits(2).says("`tamis docs studies/vllm`");
    folder.tamis(&["docs", "monitor"]).exits(2).says("`tamis docs reading-a-run`");
    folder.tamis(&["docs", "rewrads"]).exits(2).says("did you mean `tamis docs rewards`?");
    for word in ["actor_rollout_ref.rollout.n", "num_generations", "rollout.n"] {
        folder
            .tamis(&["docs", word])
            .exits(2)
            .says(&format!("`tamis config explain {word}` explains the key"));
    }
    for word in ["icepop", "TIS", "opd"] {
        folder.tamis(&["docs", word]).exits(2).says(&format!("`tamis explain {word}` explains the name"));
    }
    folder.tamis(&["docs", "nothing-like-it"]).exits(2).says("`tamis docs` lists them");
}

#[test]
fn a_first_configuration_is_written_and_is_sound() {
    let folder = Folder::new();
    let said = folder.tamis(&["init", "first"]).succeeds();
    said.prints("wrote first/my.yaml").prints("next: tamis config check first/my.yaml --plan");
    // A check downloads nothing, and only the model is missing.
    folder.write("model/config.json", "{}");
    let shown = folder.tamis(&["config", "show", "first/my.yaml"]).succeeds().stdout;
    assert!(shown.contains("style: simple") && shown.contains("val_fraction: 0.2"), "{shown}");
    folder.tamis(&["init", "first"]).exits(2).fails_with("first/my.yaml already exists, and existing files are not overwritten\n  hint: `tamis init first-2` writes into another folder");
    let trained = folder.tamis(&[
        "train",
        "first/my.yaml",
        "model.path=null",
        "model.init={architecture: qwen2, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 32}",
        "train.total_steps=1",
        "rollout.max_response_length=4",
        "data.max_prompt_length=64",
    ]);
    trained.succeeds().says("19 training prompts, 5 validation prompts");
}
