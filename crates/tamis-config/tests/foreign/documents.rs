//! The examples of the documents that users of verl, EasyR1 and RAGEN follow, as they stand there.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;

use tamis_config::{BackendKind, Config, Import, Preset, import, load_sources};
use tamis_core::filter::{GroupFilter, MinP, Pool, TopK, TopP};
use tamis_core::schedule::{OnEmptyRound, OnLimit, RoundLimit};

use crate::{config, converted};

/// One of the documents, which lie beside the repository; `None`, with a notice, where they do not.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn document(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference/source").join(name);
    let text = std::fs::read_to_string(&path);
    if text.is_err() {
        eprintln!("skipped: no {}", path.display());
    }
    text.ok()
}

/// The blocks of code in a language.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let start = format!("```{language}\n");
    let of = |rest: &'t str| rest.split_once("\n```").map(|(block, _)| block);
    text.split(&start).skip(1).filter_map(of).collect()
}

/// The arguments that a script gives to Python, as the shell makes them.
fn arguments(script: &str) -> Vec<String> {
    // A comment behind a line's backslash, and the dots for what is left out, are the document's and no
    // shell's.
    let lines: Vec<String> = script
        .lines()
        .filter(|line| line.trim() != "...")
        .map(|line| line.split_once("\\  #").map_or_else(|| line.to_owned(), |(line, _)| format!("{line}\\")))
        .collect();
    let script = format!("python() {{ printf '%s\\0' \"$@\"; }}\n{}\n", lines.join("\n"));
    let output = Command::new("bash").arg("-c").arg(script).env("HOME", "/home/me").output().expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.split('\0').filter(|argument| !argument.is_empty()).map(str::to_owned).collect()
}

/// A block of YAML as a file.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("document-{name}.yaml"));
    std::fs::write(&path, text).expect("a file");
    path
}

fn of_file(name: &str, text: &str, more: &[&str]) -> Import {
    let path = file(name, text).to_str().expect("a path").to_owned();
    let arguments: Vec<String> =
        std::iter::once(path).chain(more.iter().map(|&argument| argument.to_owned())).collect();
    converted(&arguments)
}

/// The configuration that `check` makes of the same arguments, over nothing but rewards.
fn checked(arguments: &[String]) -> Config {
    let keys = arguments.iter().filter(|argument| argument.contains('=')).cloned();
    let arguments: Vec<String> = keys.chain(["reward=[{kind: by_source}]".to_owned()]).collect();
    load_sources(&[], &arguments).unwrap_or_else(|errors| panic!("{errors}")).config
}

#[test]
fn the_complete_command_of_the_guide_to_group_filters() {
    let Some(text) = document("filter-groups.md") else { return };
    let (_, appendix) = text.split_once("### A.").expect("the appendix");
    let arguments = arguments(blocks(appendix, "bash")[0]);
    assert!(arguments.len() > 20, "{arguments:?}");
    let import = converted(&arguments);
    for argument in arguments.iter().filter(|argument| argument.contains('=')) {
        let key = argument.split('=').next().expect("a value");
        assert!(import.notes.iter().any(|note| note.key == key), "{key} became nothing that is said");
    }
    let both = [config(&import), checked(&arguments)];
    for config in both {
        let filter = config.filter.as_ref().expect("a filter");
        assert_eq!((filter.kind.as_str(), filter.metric.as_deref()), ("variance", Some("acc")));
        assert_eq!(config.schedule.max_num_gen_batches, RoundLimit::Rounds(15));
        assert_eq!((config.preset, config.rollout.n), (Some(Preset::Dapo), 8));
        assert_eq!(config.rollout.backend, BackendKind::Vllm);
        assert!(config.rollout.launch.is_some(), "nothing says where vLLM is");
        assert_eq!((config.data.train_batch_size, config.data.max_prompt_length), (1024, 2048));
        assert_eq!((config.rollout.temperature, config.rollout.max_response_length), (0.7, 2048));
        assert_eq!((config.train.total_epochs, config.validate.test_freq.0), (Some(20), NonZeroU64::new(2)));
        assert_eq!(
            (config.run.name.as_str(), config.checkpoint.save_freq.0),
            ("qwen2_7b_filtergroups_enabled", NonZeroU64::new(5))
        );
        assert!(config.data.train.files()[0].ends_with("data/math/train.parquet"), "{:?}", config.data.train);
    }
    // Its eight GPUs are four servers, each over the two that verl takes by itself.
    let launch = config(&import).rollout.launch.expect("servers");
    assert_eq!((launch.replicas, launch.tensor_parallel), (4, 2));
}

#[test]
fn the_scripts_of_the_guide_to_group_filters() {
    let Some(text) = document("filter-groups.md") else { return };
    let scripts: Vec<&str> =
        blocks(&text, "bash").into_iter().filter(|block| block.contains("verl.trainer.main_ppo")).collect();
    assert_eq!(scripts.len(), 5, "four examples and the appendix");
    let mut filters = Vec::new();
    for script in &scripts {
        let arguments = arguments(script);
        assert!(!arguments.is_empty(), "{script}");
        let filter = config_without_files(&converted(&arguments)).filter;
        assert_eq!(checked(&with_files(&arguments)).filter, filter, "{script}");
        filters.push(filter.map(|filter| filter.metric.unwrap_or_default()));
    }
    let metric = |name: &str| Some(name.to_owned());
    assert_eq!(filters, [metric("acc"), metric("acc"), metric("seq_final_reward"), None, metric("acc")]);
    // Every key that stands anywhere in a block, alone.
    let mut num_keys = 0;
    for line in blocks(&text, "bash").iter().flat_map(|block| block.lines()) {
        let argument = line.split_whitespace().next().unwrap_or_default();
        let is_key = ["data.", "algorithm.", "actor_rollout_ref.", "trainer."]
            .iter()
            .any(|start| argument.starts_with(start));
        if is_key && !argument.contains('$') {
            let argument = argument.trim_matches('"').to_owned();
            import(std::slice::from_ref(&argument), Path::new(""))
                .unwrap_or_else(|errors| panic!("{argument}: {errors}"));
            num_keys += 1;
        }
    }
    assert!(num_keys > 20, "only {num_keys} keys");
    // The templates of both recipes.
    let templates: Vec<&str> =
        blocks(&text, "yaml").into_iter().filter(|block| block.contains("filter_groups")).collect();
    assert_eq!(templates.len(), 2);
    for (index, template) in templates.into_iter().enumerate() {
        let import = of_file(&format!("recipe-{index}"), template, &["algorithm.adv_estimator=grpo"]);
        assert_eq!(config_without_files(&import).filter, None);
    }
}

/// Arguments with a model and data where they name none.
fn with_files(arguments: &[String]) -> Vec<String> {
    let given = |start: &str| arguments.iter().any(|argument| argument.starts_with(start));
    let mut all = arguments.to_vec();
    for (key, value) in [
        ("data.train_files", "t"),
        ("actor_rollout_ref.model.path", "m"),
        ("trainer.total_epochs", "1"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", "256"),
    ] {
        if !given(key) {
            all.push(format!("{key}={value}"));
        }
    }
    all
}

/// The imported configuration, over a model and prompts where it names none.
fn config_without_files(import: &Import) -> Config {
    let source = tamis_config::source::Source::new(
        tamis_config::source::SourceKind::File("imported.yaml".into()),
        import.yaml.clone(),
    );
    let mut more: Vec<String> =
        ["model.path=m", "data.train=t", "train.total_steps=1"].map(str::to_owned).into();
    // EasyR1 has no reward of its own.
    if !import.yaml.contains("\nreward:") {
        more.push("reward=[{kind: math}]".to_owned());
    }
    load_sources(&[source], &more).unwrap_or_else(|errors| panic!("{errors}\n{}", import.yaml)).config
}

#[test]
fn the_batch_sizes_of_the_7b_recipe() {
    let Some(text) = document("dapo-batch-size.md") else { return };
    let mut arguments =
        ["algorithm.adv_estimator=grpo", "algorithm.filter_groups.enable=True"].map(str::to_owned).to_vec();
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim_matches([' ', '*', '`'])).collect();
        // Names as they are short for in the table.
        let key = match cells[1] {
            "ppo_micro_batch_size_per_gpu" => "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
            name => name,
        };
        arguments.push(format!("{key}={}", cells[4 - 1]));
    }
    assert_eq!(arguments.len(), 7, "{arguments:?}");
    let config = config_without_files(&converted(&arguments));
    assert_eq!((config.data.train_batch_size, config.gen_batch_size()), (512, 1536));
    assert_eq!((config.rollout.n, config.mini_batch_size(), config.train.micro_batch_size), (16, 32, None));
    // The table calls 32 a share of one GPU: it counts prompts, over all of them.
    assert_eq!(config.train.ppo_mini_batch_size, Some(32));
}

#[test]
fn dynamic_sampling_of_the_fork() {
    let Some(text) = document("dynamic-sampling.md") else { return };
    let yaml = blocks(&text, "yaml");
    let is_file = |block: &&str| block.contains("algorithm:");
    let files: Vec<&str> = yaml.iter().copied().filter(is_file).collect();
    let found: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(index, block)| {
            let config = config_without_files(&of_file(&format!("dynamic-{index}"), block, &[]));
            (
                config.filter.is_some(),
                config.schedule.max_num_gen_batches,
                config.schedule.on_limit,
                config.rollout.n,
            )
        })
        .collect();
    assert_eq!(found.len(), 4);
    assert_eq!(found[0].1, RoundLimit::Rounds(3));
    assert_eq!(found[1], (true, RoundLimit::Rounds(3), OnLimit::UsePartial, 16));
    assert_eq!(found[2], (true, RoundLimit::None, OnLimit::UsePartial, 32));
    assert!(!found[3].0);
    // The settings alone.
    for line in yaml.iter().filter(|block| !is_file(block)).flat_map(|block| block.lines()) {
        if let Some((key, value)) = line.split('#').next().and_then(|line| line.split_once(": ")) {
            let arguments =
                ["algorithm.use_dynamic_sample=true".to_owned(), format!("algorithm.{key}={}", value.trim())];
            let limit = config_without_files(&converted(&arguments)).schedule.max_num_gen_batches;
            let printed = match limit {
                RoundLimit::None => 0,
                RoundLimit::Rounds(rounds) => rounds,
                RoundLimit::Auto => panic!("{line}"),
            };
            assert_eq!(printed.to_string(), value.trim(), "{line}");
        }
    }
}

#[test]
fn filters_of_ragen_s_document() {
    let Some(text) = document("ragen-filtering.md") else { return };
    let yaml = blocks(&text.replace("\n    ```", "\n```").replace("\n    ", "\n"), "yaml")
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    assert_eq!(yaml.len(), 3, "top_p, top_k and min_p");
    let base =
        ["model_path=m", "data.train_files=t", "agent_proxy.max_turn=1", "algorithm.adv_estimator=grpo"];
    let mut found = Vec::new();
    for (index, block) in yaml.iter().enumerate() {
        let import = of_file(&format!("ragen-{index}"), block, &base);
        let followed = config(&import);
        let filter = followed.filter.expect("a filter");
        assert_eq!(filter.kind.pool().expect("a pool").score.as_str(), "deviation");
        assert_eq!(followed.schedule.on_empty_round, OnEmptyRound::Retry { times: Some(9) });
        found.push(filter.kind);
        // Without a file of prompts it is in the document's game.
        let alone = of_file(&format!("ragen-game-{index}"), block, &["model_path=m"]);
        let played = config(&alone).environment.expect("an environment");
        assert_eq!((played.kind.as_str(), played.prompting.max_turns, played.val_size), ("sokoban", 5, 512));
        assert!(config(&alone).filter.is_some());
    }
    let pool = Pool { ddof: 1, ..Pool::default() };
    assert_eq!(
        found,
        [
            GroupFilter::TopP(TopP { pool, ..TopP::of(0.5) }),
            GroupFilter::TopK(TopK { k: Some(4), fraction: None, pool }),
            GroupFilter::MinP(MinP { p: 0.8, pool })
        ]
    );
    // The grid of the document's script, each with and without groups of no deviation.
    for (strategy, values) in [("top_p", ["0.7", "0.85"]), ("top_k", ["4", "6"]), ("min_p", ["0.5", "0.8"])] {
        for value in values {
            for zero in ["True", "False"] {
                for scaling in ["none", "linear", "sqrt"] {
                    let keys = [
                        format!("actor_rollout_ref.rollout.rollout_filter_strategy={strategy}"),
                        format!("actor_rollout_ref.rollout.rollout_filter_value={value}"),
                        "actor_rollout_ref.rollout.rollout_filter_type=largest".to_owned(),
                        format!("actor_rollout_ref.rollout.rollout_filter_include_zero={zero}"),
                        format!("actor_rollout_ref.actor.filter_loss_scaling={scaling}"),
                    ];
                    let arguments: Vec<String> =
                        base.iter().map(|&argument| argument.to_owned()).chain(keys).collect();
                    let config = config(&converted(&arguments));
                    let filter = config.filter.expect("a filter");
                    assert_eq!(filter.kind.as_str(), strategy);
                    assert_eq!(filter.kind.pool().expect("a pool").include_zero, zero == "True");
                    assert_eq!(config.objective.shaping.len(), usize::from(scaling != "none"));
                }
            }
        }
    }
    // Its early stop is always on there, in the later form unless the document's is asked for.
    let arguments: Vec<String> = base.map(str::to_owned).into();
    let stop = |more: &[&str]| {
        let arguments: Vec<String> =
            arguments.iter().cloned().chain(more.iter().map(|&argument| argument.to_owned())).collect();
        config(&converted(&arguments)).train.early_stop
    };
    let collapse = stop(&[]).reward_collapse.expect("a stop at collapsed rewards");
    assert_eq!(
        (collapse.form.as_str(), collapse.baseline_steps, collapse.window, collapse.share),
        ("steps", 10, 10, 0.1)
    );
    assert!(stop(&[]).low_success.is_none(), "there are no validation prompts");
    assert!(stop(&["data.val_files=v"]).low_success.is_some());
    let of_document =
        stop(&["train.early_stop.reward_collapse.form=attempts"]).reward_collapse.expect("a value");
    assert_eq!(of_document.form.as_str(), "attempts");
    assert!(stop(&["train.early_stop.reward_collapse=null"]).reward_collapse.is_none());
}
