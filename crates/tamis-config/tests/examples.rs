//! The shipped examples load without a warning, to the values that they describe.

use std::path::{Path, PathBuf};

use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, KlPlace, Preset, SurplusKind, load, load_sources};
use tamis_core::advantage::{Advantage, Grpo, Scale, SingletonAdvantage};
use tamis_core::filter::{GroupFilter, Singleton, Variance};
use tamis_core::objective::{Clip, ClipCov, KlCov, PolicyLoss};
use tamis_core::schedule::{OnEmptyRound, OnExhausted, OnLimit, RoundLimit};
use tamis_env::reward::RewardKind;
use tamis_env::reward::soft_overlong::OverlongForm;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/examples")
}

fn example(name: &str) -> Config {
    let path = folder().join(format!("{name}.yaml"));
    let loaded = load(&[path], &[]).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(loaded.warnings.is_empty(), "{name}: {:?}", loaded.warnings);
    assert_eq!(loaded.config.run.name, name);
    loaded.config
}

#[test]
fn every_example_loads() {
    let mut num_examples = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|suffix| suffix == "yaml") {
            example(path.file_stem().unwrap().to_str().unwrap());
            num_examples += 1;
        }
    }
    assert!(num_examples >= 14, "only {num_examples} examples");
}

#[test]
fn common_settings_of_the_filter() {
    // Setting, metric (none: no filter), limit, group size: the table of common configurations.
    let table = [
        ("dapo_math", Some("acc"), 15, 8),
        ("dapo_code", Some("acc"), 20, 16),
        ("entropy", Some("seq_reward"), 10, 8),
        ("clip_cov", Some("acc"), 10, 8),
        ("kl_cov", Some("acc"), 10, 8),
        ("dapo_7b", Some("acc"), 10, 16),
        ("grpo", None, 0, 8),
        ("cpo_math", None, 0, 8),
        ("hard_task", Some("acc"), 25, 12),
        ("easy_task", None, 0, 4),
    ];
    for (name, metric, limit, n) in table {
        let config = example(name);
        assert_eq!(config.rollout.n, n, "{name}");
        match (metric, &config.filter) {
            (None, None) => {}
            (Some(metric), Some(filter)) => {
                assert_eq!(filter.kind.as_str(), "variance", "{name}");
                assert_eq!(filter.metric.as_deref(), Some(metric), "{name}");
                assert_eq!(config.schedule.max_num_gen_batches.0, RoundLimit::Rounds(limit), "{name}");
                assert_eq!(config.schedule.on_limit, OnLimit::Error, "{name}");
                assert_eq!(config.schedule.surplus, SurplusKind::Discard, "{name}");
            }
            (expected, found) => panic!("{name}: filter {found:?}, expected {expected:?}"),
        }
    }
    assert_eq!(example("dapo_math").preset, Some(Preset::Dapo));
}

/// The presets of the common recipes set the values that their authors released.
#[test]
fn presets_are_the_released_recipes() {
    let divided = Grpo {
        scale: Scale::Group,
        ddof: 1,
        epsilon: 1e-6,
        singleton: SingletonAdvantage::Zero,
        ..Grpo::default()
    };
    let undivided = Grpo { scale: Scale::None, ..divided };
    let clip = |clip_high, dual_clip| {
        let log_ratio_limit = Some(20.0);
        PolicyLoss::Clip(Clip { clip_low: 0.2, clip_high, dual_clip, delta: None, log_ratio_limit })
    };
    for (preset, advantage, loss, aggregation, kl, is_dapo) in [
        ("grpo", divided, clip(0.2, None), "seq-mean-token-mean", Some(0.04), false),
        ("dapo", divided, clip(0.28, Some(10.0)), "token-mean", None, true),
        ("dapo_paper", divided, clip(0.28, None), "group-token-mean", None, true),
        ("dr_grpo", undivided, clip(0.2, None), "seq-mean-token-sum-norm", None, false),
    ] {
        let yaml = format!(
            "preset: {preset}\nmodel: {{path: m}}\ndata: {{task: arithmetic}}\nreward: [{{kind: number}}]\n\
             train: {{total_steps: 1}}\nrollout: {{max_response_length: 1000}}\n"
        );
        let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
        let config = load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}")).config;
        let objective = &config.objective;
        assert_eq!(objective.advantage, Advantage::Grpo(advantage), "{preset}");
        assert_eq!(objective.loss, loss, "{preset}");
        assert_eq!(objective.aggregation.to_string(), aggregation, "{preset}");
        let in_loss = (objective.kl.place == KlPlace::Loss).then_some(objective.kl.coefficient);
        assert_eq!((in_loss, objective.entropy.coefficient), (kl, 0.0), "{preset}");
        if in_loss.is_some() {
            assert_eq!(
                (objective.kl.estimator.to_string(), &objective.kl.adaptive),
                ("k3".to_owned(), &None)
            );
        }
        assert_eq!(objective.shaping, [], "{preset}");
        // Dynamic sampling on the raw outcome, and a length penalty over the last fifth of the response.
        let sampling = config.filter.as_ref().map(|filter| (filter.kind, filter.metric.as_deref()));
        let variance = GroupFilter::Variance(Variance { tolerance: 0.0, singleton: Singleton::Keep });
        assert_eq!(sampling, is_dapo.then_some((variance, Some("acc"))), "{preset}");
        let overlong = config.reward.iter().find_map(|reward| match &reward.kind {
            RewardKind::SoftOverlong(overlong) => Some((reward.weight, overlong)),
            _ => None,
        });
        let found = overlong.map(|(weight, overlong)| {
            (
                weight,
                overlong.form,
                overlong.penalty_factor,
                overlong.lengths(config.rollout.max_response_length),
            )
        });
        assert_eq!(found, is_dapo.then_some((1.0, OverlongForm::Bounded, 1.0, (1000, 200))), "{preset}");
        if is_dapo {
            let schedule = &config.schedule;
            assert!(schedule.refill, "{preset}");
            assert_eq!(schedule.max_num_gen_batches.0, RoundLimit::Rounds(10), "{preset}");
            assert_eq!(
                (schedule.on_limit, schedule.surplus),
                (OnLimit::Error, SurplusKind::Discard),
                "{preset}"
            );
        }
    }
}

#[test]
fn losses_of_the_entropy_recipe() {
    let clip_cov = ClipCov { clip_low: 1.0, clip_high: 1.0, share: 2e-4, cov_low: 1.0, cov_high: 5.0 };
    assert_eq!(example("clip_cov").objective.loss, PolicyLoss::ClipCov(clip_cov));
    let kl_cov = KlCov { share: 2e-3, cov_coefficient: 1.0 };
    assert_eq!(example("kl_cov").objective.loss, PolicyLoss::KlCov(kl_cov));
    assert_eq!(example("entropy").objective.loss.as_str(), "clip");
}

/// Those of verl's `test_dapo_7b.sh`.
#[test]
fn batch_sizes_of_dapo() {
    let config = example("dapo_7b");
    assert_eq!((config.data.train_batch_size, config.gen_batch_size()), (512, 1536));
    assert_eq!((config.rollout.n, config.mini_batch_size()), (16, 32));
}

/// A shipped configuration may rely only on a clone: it names no place outside.
#[test]
fn no_configuration_points_out_of_the_clone() {
    for (folder, outside) in [(folder(), "../../../"), (folder().join(".."), "../../")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|suffix| suffix == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let settings = text.lines().filter(|line| !line.trim_start().starts_with('#'));
                for line in settings {
                    let is_absolute = [": ", "- ", "[", ", "].iter().any(|before| {
                        ["/", "'/", "\"/"].iter().any(|start| line.contains(&format!("{before}{start}")))
                    });
                    assert!(!line.contains(outside) && !is_absolute, "{}: {line}", path.display());
                }
            }
        }
    }
}

#[test]
fn dynamic_sampling_of_easyr1() {
    for (name, prompts, n, limit) in
        [("easyr1_standard", 128, 16, RoundLimit::Rounds(3)), ("easyr1_aggressive", 64, 32, RoundLimit::None)]
    {
        let config = example(name);
        assert_eq!((config.data.train_batch_size, config.rollout.n), (prompts, n), "{name}");
        assert_eq!(config.schedule.max_num_gen_batches.0, limit, "{name}");
        assert_eq!(config.schedule.on_limit, OnLimit::UsePartial, "{name}");
        assert_eq!(config.schedule.on_exhausted, OnExhausted::UsePartial, "{name}");
        assert_eq!(config.schedule.on_empty_round.0, OnEmptyRound::Retry { times: None }, "{name}");
        assert_eq!(config.filter.unwrap().metric.as_deref(), Some("seq_reward"), "{name}");
        assert_eq!(config.objective.kl.place, KlPlace::Reward, "{name}");
    }
    assert_eq!(example("easyr1_disabled").filter, None);
}

/// Every recipe of the page loads over its base without a warning, and has the name of its run.
#[test]
fn every_recipe_loads() {
    let page = std::fs::read_to_string(folder().join("../../docs/start.md")).unwrap();
    let (_, recipes) = page.split_once("## Recipes\n").unwrap();
    let mut blocks = recipes.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let base = blocks.next().unwrap();
    let mut names = Vec::new();
    for text in blocks {
        let sources = [base, text].map(|text| Source::new(SourceKind::File("recipe.yaml".into()), text));
        let loaded = load_sources(&sources, &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        assert!(loaded.warnings.is_empty(), "{text}\n{:?}", loaded.warnings);
        names.push(loaded.config.run.name);
    }
    assert_eq!(names, ["grpo", "dapo", "ppo", "gspo", "streaming", "own_reward"]);
}
