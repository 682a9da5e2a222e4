//! `tamis filter`.

use tamis_core::filter::{Ends, MeanRange, OutcomeScale, PointFilter, Singleton as SingletonRule, Variance};
use tamis_report::filter::{FilterOptions, Layout, filter_file};

use super::print;
use crate::arguments::{Bounds, Filter, Singleton, Strategy};
use crate::failure::{FAILED, Failure, USAGE};

pub(crate) fn run(arguments: &Filter) -> Result<u8, Failure> {
    let filter = match arguments.strategy {
        Strategy::Variance => PointFilter::Variance(Variance {
            tolerance: arguments.tolerance,
            singleton: match arguments.singleton {
                Singleton::Keep => SingletonRule::Keep,
                Singleton::Drop => SingletonRule::Drop,
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
                    Bounds::Open => Ends::Open,
                    Bounds::Closed => Ends::Closed,
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
    let summary = filter_file(&options).map_err(|error| Failure::of(FAILED, &error, None))?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&summary)
            .map_err(|error| Failure::told(FAILED, format!("error: failed to write the summary: {error}")))?;
        print(&format!("{json}\n"))?;
    } else {
        print(&format!("{summary}\n"))?;
    }
    Ok(0)
}
