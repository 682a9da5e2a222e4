//! `tamis filter`.

use tamis_core::filter::{
    Ends, GroupFilter, Mass as MassOf, MeanRange, MinP, OutcomeScale, Percentile, Pool, PoolScore,
    Prefer as PreferOf, Quota, Singleton as SingletonRule, TopK, TopP, Variance, WithinGroup,
};
use tamis_report::filter::{FilterOptions, Layout, filter_file};

use super::print;
use crate::arguments::{Bounds, Filter, Mass, Prefer, Score, Singleton, Strategy};
use crate::failure::{FAILED, Failure, USAGE};

/// What a strategy lacks, with an example.
fn lacking(strategy: &str, what: &str, hint: &str) -> Failure {
    Failure::told(USAGE, format!("error: --strategy {strategy} needs {what}\n  hint: {hint}"))
}

fn pool(arguments: &Filter) -> Pool {
    Pool {
        score: match arguments.score {
            Score::Deviation => PoolScore::Deviation,
            Score::Variance => PoolScore::Variance,
            Score::Mean => PoolScore::Mean,
            Score::Sum => PoolScore::Sum,
        },
        ddof: arguments.ddof,
        prefer: match arguments.prefer {
            Prefer::Largest => PreferOf::Largest,
            Prefer::Smallest => PreferOf::Smallest,
        },
        include_zero: !arguments.exclude_zero,
    }
}

fn quota(arguments: &Filter, strategy: &str) -> Result<Quota, Failure> {
    match (arguments.k, arguments.fraction) {
        (Some(k), _) => Ok(Quota::Count(k)),
        (None, Some(fraction)) => Ok(Quota::Fraction(fraction)),
        (None, None) => Err(lacking(
            strategy,
            "--k or --fraction",
            "`--k 4` keeps four, `--fraction 0.5` the better half",
        )),
    }
}

fn filter(arguments: &Filter) -> Result<GroupFilter, Failure> {
    let pool = pool(arguments);
    Ok(match arguments.strategy {
        Strategy::Variance => GroupFilter::Variance(Variance {
            tolerance: arguments.tolerance,
            singleton: match arguments.singleton {
                Singleton::Keep => SingletonRule::Keep,
                Singleton::Drop => SingletonRule::Drop,
            },
        }),
        Strategy::MeanRange => {
            let (Some(low), Some(high)) = (arguments.low, arguments.high) else {
                let hint = "`--low 0 --high 1` keeps groups whose mean lies between, bounds excluded";
                return Err(lacking("mean_range", "--low and --high", hint));
            };
            GroupFilter::MeanRange(MeanRange {
                low,
                high,
                ends: match arguments.bounds {
                    Bounds::Open => Ends::Open,
                    Bounds::Closed => Ends::Closed,
                },
            })
        }
        Strategy::TopP => {
            let hint = "`--p 0.9` keeps the groups that hold nine tenths of the mass";
            let p = arguments.p.ok_or_else(|| lacking("top_p", "--p", hint))?;
            let mass = match arguments.mass {
                Mass::Softmax => MassOf::Softmax,
                Mass::Linear => MassOf::Linear,
                Mass::Variance => MassOf::Variance,
            };
            GroupFilter::TopP(TopP {
                p,
                mass,
                temperature: arguments.temperature,
                slack: arguments.slack,
                pool,
            })
        }
        Strategy::TopK => GroupFilter::TopK(TopK { k: quota(arguments, "top_k")?, pool }),
        Strategy::MinP => {
            let hint = "`--p 0.5` keeps groups with at least half of the best score";
            GroupFilter::MinP(MinP { p: arguments.p.ok_or_else(|| lacking("min_p", "--p", hint))?, pool })
        }
        Strategy::Percentile => GroupFilter::Percentile(Percentile {
            low: arguments.low.unwrap_or(0.0),
            high: arguments.high.unwrap_or(1.0),
            pool,
        }),
        Strategy::WithinGroup => GroupFilter::WithinGroup(WithinGroup {
            k: quota(arguments, "within_group")?,
            include_zero: pool.include_zero,
        }),
    })
}

pub(crate) fn run(arguments: &Filter) -> Result<u8, Failure> {
    let filter = filter(arguments)?;
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
