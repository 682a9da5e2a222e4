//! `tamis filter`: a group filter on files of rollouts.
//!
//! Options become the keys of the filter, which are checked as in a configuration. `tamis_lab` reads the
//! files, judges the groups and writes the rows.

use serde_json::{Map, Value};
use tamis_core::filter::{GroupFilter, Metric, OutcomeScale};
use tamis_core::setting::{Described, KeySpec, Shape, Variant};
use tamis_lab::filter::{FilterOptions, GroupLayout, filter_file};

use super::{print, show, warn};
use crate::arguments::FilterArguments;
use crate::failure::{FAILED, Failure, USAGE};

/// The keys of the filter that options set.
fn read_options(arguments: &FilterArguments) -> Map<String, Value> {
    let exclude_zero = arguments.exclude_zero.then_some(false);
    let options = [
        ("tolerance", arguments.tolerance.map(Value::from)),
        ("singleton", arguments.singleton.clone().map(Value::from)),
        ("low", arguments.low.map(Value::from)),
        ("high", arguments.high.map(Value::from)),
        ("bounds", arguments.bounds.clone().map(Value::from)),
        ("p", arguments.p.map(Value::from)),
        ("k", arguments.k.map(Value::from)),
        ("fraction", arguments.fraction.map(Value::from)),
        ("score", arguments.score.clone().map(Value::from)),
        ("ddof", arguments.ddof.map(Value::from)),
        ("prefer", arguments.prefer.clone().map(Value::from)),
        ("include_zero", exclude_zero.map(Value::from)),
        ("mass", arguments.mass.clone().map(Value::from)),
        ("temperature", arguments.temperature.map(Value::from)),
        ("slack", arguments.slack.map(Value::from)),
    ];
    options.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// The option that sets a key of the filter.
fn option_of(key: &str) -> String {
    if key == "include_zero" { "--exclude-zero".to_owned() } else { format!("--{key}") }
}

fn has(variant: &Variant, key: &str) -> bool {
    variant.keys.iter().any(|spec| spec.name == key)
}

/// The filter of the chosen strategy. Options that it would ignore are refused.
fn filter(arguments: &FilterArguments) -> Result<GroupFilter, Failure> {
    let strategy = arguments.strategy.as_str();
    let Shape::Tagged { variants, .. } = GroupFilter::shape() else { unreachable!("filters are tagged") };
    let mut given = read_options(arguments);
    let Some(variant) = variants.iter().find(|variant| variant.name == strategy) else {
        unreachable!("a parsed strategy has a name")
    };
    let ignored: Vec<&str> = given.keys().map(String::as_str).filter(|key| !has(variant, key)).collect();
    if let Some(key) = ignored.first() {
        let other =
            variants.iter().find(|variant| has(variant, key)).map_or("variance", |variant| variant.name);
        let options: Vec<String> = ignored.iter().map(|key| option_of(key)).collect();
        return Err(Failure::new(
            USAGE,
            format!(
                "error: --strategy {strategy} does not look at {}\n  hint: leave it out, or choose `--strategy {other}`",
                options.join(" and ")
            ),
        ));
    }
    let lacks = |options: &str, hint: &str| {
        Failure::new(USAGE, format!("error: --strategy {strategy} needs {options}\n  hint: {hint}"))
    };
    if has(variant, "k") && !given.contains_key("k") && !given.contains_key("fraction") {
        return Err(lacks("--k or --fraction", "`--k 4` keeps four, `--fraction 0.5` the better half"));
    }
    let is_missing = |spec: &&KeySpec| spec.is_required() && !given.contains_key(spec.name);
    if let Some(spec) = variant.keys.iter().find(is_missing) {
        let option = option_of(spec.name);
        let doc = spec.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        return Err(lacks(&option, &format!("`{option} 0.9`: {}", doc.trim_end_matches('.'))));
    }
    given.insert("kind".to_owned(), variant.name.into());
    serde_json::from_value(given.into())
        .map_err(|error| Failure::new(USAGE, format!("error: --strategy {error}")))
}

pub(crate) fn run(arguments: &FilterArguments) -> Result<u8, Failure> {
    refuse_ignored(arguments)?;
    let filter = filter(arguments)?;
    let layout = match arguments.metric.as_slice() {
        [metric] => GroupLayout::Long { group_by: arguments.group.clone(), metric: metric.clone() },
        metrics => GroupLayout::Wide { metrics: metrics.to_vec() },
    };
    // As in a run: a length or an entropy does not mean right or wrong.
    let scale = match arguments.metric.as_slice() {
        [metric] => Metric::from(metric.as_str()).outcome_scale(),
        _ => Some(OutcomeScale::default()),
    };
    let options = FilterOptions {
        inputs: arguments.files.clone(),
        layout,
        filter,
        scale: scale.filter(|_| !arguments.no_outcome),
        kept: arguments.kept.clone(),
        dropped: arguments.dropped.clone(),
        overwrite: arguments.overwrite,
    };
    let summary = filter_file(&options).map_err(|fault| Failure::of_fault(&fault))?;
    for warning in &summary.warnings {
        warn(warning);
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&summary)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the summary: {error}")))?;
        print(&format!("{json}\n"))?;
    } else {
        show(&format!("{summary}\n"))?;
    }
    Ok(0)
}

/// Refuses options that have no effect with this layout or these outputs.
fn refuse_ignored(arguments: &FilterArguments) -> Result<(), Failure> {
    if arguments.metric.len() > 1 && !arguments.group.is_empty() {
        return Err(Failure::new(
            USAGE,
            "error: with several --metric each row is a group, so --group has nothing to do\n  hint: leave \
                 out --group, or give one --metric",
        ));
    }
    if arguments.overwrite && arguments.kept.is_none() && arguments.dropped.is_none() {
        return Err(Failure::new(
            USAGE,
            "error: --overwrite without an output to replace\n  hint: name one with --kept or --dropped",
        ));
    }
    Ok(())
}
