//! What `tamis explain` calls a default is what a run has where nobody sets the key.

use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, load_sources};
use tamis_core::catalogue::{Entry, Family, entries};

use super::{critic, objective, schedule};
use crate::learner::micro_batch::MicroBatch;

/// Values of which at least one differs from any default.
const OTHERS: [&str; 28] = [
    "'{prompt} {gold}'",
    "[{}]",
    "token-sum",
    "0",
    "0.37",
    "7",
    "1",
    "true",
    "false",
    "null",
    "loss",
    "batch",
    "raw",
    "lost",
    "kept",
    "token",
    "absolute",
    "nonzero_rewards",
    "tok_kl",
    "fork",
    "closed",
    "drop",
    "variance",
    "smallest",
    "linear",
    "sequence",
    "mask",
    "steps",
];

/// Settings under which an entry's keys are read.
fn base(entry: &Entry, key: &str) -> Vec<String> {
    let name = entry.name;
    let mut settings: Vec<String> = match entry.family {
        Family::Advantage => vec![format!("objective.advantage.kind={name}")],
        Family::PolicyLoss => vec![format!("objective.loss.kind={name}")],
        Family::Divergence => vec![format!("objective.kl.estimator={name}")],
        Family::Critic => vec!["objective.advantage.kind=gae".to_owned()],
        Family::Filter => vec![format!("filter.kind={name}"), "schedule.refill=false".to_owned()],
        Family::EarlyStop => vec![format!("train.early_stop.{name}={{}}")],
        _ => Vec::new(),
    };
    let mut add = |setting: &str| settings.push(setting.to_owned());
    match (name, key) {
        ("luspo", _) => add("objective.aggregation=seq-mean-token-sum"),
        ("cispo", "objective.loss.max_ratio") => add("objective.loss.bound=absolute"),
        ("dro", _) => add("objective.loss.beta=1"),
        ("top_p", "filter.slack") => {
            add("filter.p=0.9");
            add("filter.mass=linear");
        }
        ("top_p" | "min_p", _) => add("filter.p=0.9"),
        ("top_k" | "within_group", "filter.fraction") => add("filter.fraction=0.3"),
        ("top_k" | "within_group", _) => add("filter.k=2"),
        ("entropy_bonus", "objective.entropy.aggregation") => add("objective.entropy.coefficient=0.01"),
        ("adaptive_entropy", _) => add("objective.entropy.adaptive={}"),
        ("token_is", _) => add("objective.correction.weights={}"),
        ("variance_buckets", _) => add("train.gradient_analysis={}"),
        ("k1" | "k2" | "k3" | "abs", key) if key != "objective.kl.in" => add("objective.kl.in=loss"),
        ("low_success", _) => add("validate.test_freq=1"),
        ("empty_steps", _) => add("schedule.on_empty_round=skip"),
        _ => {}
    }
    if entry.family == Family::EarlyStop && name == "empty_steps" {
        settings.push("filter={}".to_owned());
    }
    settings
}

fn load(settings: &[String]) -> Result<Config, String> {
    let yaml = "model: {path: m}\ndata: {task: arithmetic}\ntrain: {total_steps: 10}\n";
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
    load_sources(&[source], settings).map(|loaded| loaded.config).map_err(|errors| errors.to_string())
}

/// Everything that the keys of the catalogue become.
fn assembled(settings: &[String]) -> Result<String, String> {
    let config = load(settings)?;
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let scores = ["acc", "score", "number"].map(str::to_owned);
    Ok(format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        objective::objective(&config).map_err(|error| told(&error))?,
        objective::correction(&config).map_err(|error| told(&error))?,
        schedule::sieve(&config, scores, true, None, None).map_err(|error| told(&error))?.filter,
        critic::plan(&config, MicroBatch::Tokens(8)),
        config.train.early_stop,
        config.train.gradient_analysis,
        config.objective.masks.truncated,
    ))
}

#[test]
fn a_default_that_is_printed_is_what_a_run_has() {
    let (mut num_checked, mut wrong) = (0, Vec::new());
    for entry in entries() {
        // Presets are files of their own; items of lists and things without keys have plain names.
        if matches!(entry.family, Family::Preset | Family::Shaping | Family::Balancing) {
            continue;
        }
        for (key, printed) in entry.defaults.iter().filter(|(key, _)| key.contains('.')) {
            let name = entry.name;
            let value = printed.split(" (").next().unwrap_or_default();
            let base = base(entry, key);
            let plain = match assembled(&base) {
                Ok(plain) => plain,
                Err(error) => {
                    wrong.push(format!("{name}, {key}: {error}"));
                    continue;
                }
            };
            let with = |value: &str| {
                let mut settings = base.clone();
                settings.push(format!("{key}={value}"));
                assembled(&settings)
            };
            if value != "required" && with(value).as_ref() != Ok(&plain) {
                wrong.push(format!("{name}: {key} is not {value} in a run"));
            }
            // The key is one that matters here.
            if !OTHERS.iter().any(|other| with(other).is_ok_and(|set| set != plain)) {
                wrong.push(format!("{name} does not read {key}"));
            }
            num_checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(num_checked > 40, "only {num_checked} defaults");
}
