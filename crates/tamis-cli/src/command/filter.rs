//! `tamis filter`.

use tamis_core::filter::{Ends, MeanRange, OutcomeScale, PointFilter, Singleton as SingletonRule, Variance};
use tamis_report::filter::{FilterOptions, Layout, filter_file};

use super::print;
use crate::arguments::{Bounds, Filter, Singleton, Strategy};
use crate::failure::{FAILED, Failure, USAGE};

pub(crate) fn run(arguments: &Filter) -> Result<u8, Failure> {
    refuse_ignored(arguments)?;
    let filter = match arguments.strategy {
        Strategy::Variance => PointFilter::Variance(Variance {
            tolerance: arguments.tolerance.unwrap_or(0.0),
            singleton: match arguments.singleton {
                None | Some(Singleton::Keep) => SingletonRule::Keep,
                Some(Singleton::Drop) => SingletonRule::Drop,
            },
        }),
        Strategy::MeanRange => {
            let (Some(low), Some(high)) = (arguments.low, arguments.high) else {
                return Err(Failure::told(
                    USAGE,
                    "error: --strategy mean_range needs --low and --high\n  hint: `--low 0 --high 1` keeps groups whose mean lies between, bounds excluded",
                ));
            };
            PointFilter::MeanRange(MeanRange {
                low,
                high,
                ends: match arguments.bounds {
                    None | Some(Bounds::Open) => Ends::Open,
                    Some(Bounds::Closed) => Ends::Closed,
                },
            })
        }
    };
    let layout = match arguments.metric.as_slice() {
        [metric] => Layout::Long { group_by: arguments.group.clone(), metric: metric.clone() },
        metrics => Layout::Wide { metrics: metrics.to_vec() },
    };
    let options = FilterOptions {
        inputs: arguments.files.clone(),
        layout,
        filter,
        scale: (!arguments.no_outcome).then(OutcomeScale::default),
        kept: arguments.kept.clone(),
        dropped: arguments.dropped.clone(),
        overwrite: arguments.overwrite,
    };
    let summary = filter_file(&options).map_err(|error| {
        let code = if error.is_usage() { USAGE } else { FAILED };
        Failure::of(code, &error, error.hint())
    })?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&summary)
            .map_err(|error| Failure::told(FAILED, format!("error: failed to write the summary: {error}")))?;
        print(&format!("{json}\n"))?;
    } else {
        print(&format!("{summary}\n"))?;
    }
    Ok(0)
}

/// Refuses options that the chosen strategy or layout would not look at.
fn refuse_ignored(arguments: &Filter) -> Result<(), Failure> {
    let of_variance =
        [("--tolerance", arguments.tolerance.is_some()), ("--singleton", arguments.singleton.is_some())];
    let of_mean_range = [
        ("--low", arguments.low.is_some()),
        ("--high", arguments.high.is_some()),
        ("--bounds", arguments.bounds.is_some()),
    ];
    let named = |options: &[(&'static str, bool)]| -> Vec<&'static str> {
        options.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect()
    };
    let (chosen, other, ignored) = match arguments.strategy {
        Strategy::Variance => ("variance", "mean_range", named(&of_mean_range)),
        Strategy::MeanRange => ("mean_range", "variance", named(&of_variance)),
    };
    if !ignored.is_empty() {
        let ignored = ignored.join(" and ");
        return Err(Failure::told(
            USAGE,
            format!(
                "error: --strategy {chosen} does not look at {ignored}\n  hint: leave it out, or choose `--strategy {other}`"
            ),
        ));
    }
    if arguments.metric.len() > 1 && !arguments.group.is_empty() {
        return Err(Failure::told(
            USAGE,
            "error: with several --metric each row is a group, so --group has nothing to do\n  hint: leave out --group, or give one --metric",
        ));
    }
    if arguments.overwrite && arguments.kept.is_none() && arguments.dropped.is_none() {
        return Err(Failure::told(
            USAGE,
            "error: --overwrite without an output to replace\n  hint: name one with --kept or --dropped",
        ));
    }
    Ok(())
}
