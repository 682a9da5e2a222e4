//! `tamis filter`.

use tamis_core::filter::{
    Ends, GroupFilter, Mass as MassOf, MeanRange, MinP, OutcomeScale, Percentile, Pool, PoolScore,
    Prefer as PreferOf, Quota, Singleton as SingletonRule, TopK, TopP, Variance, WithinGroup,
};
use tamis_report::filter::{FilterOptions, Layout, filter_file};

use super::{print, show, warn};
use crate::arguments::{Bounds, Filter, Mass, Prefer, Score, Singleton, Strategy};
use crate::failure::{FAILED, Failure, USAGE};

/// What a strategy lacks, with an example.
fn lacking(strategy: &str, what: &str, hint: &str) -> Failure {
    Failure::told(USAGE, format!("error: --strategy {strategy} needs {what}\n  hint: {hint}"))
}

fn pool(arguments: &Filter) -> Pool {
    Pool {
        score: match arguments.score {
            None | Some(Score::Deviation) => PoolScore::Deviation,
            Some(Score::Variance) => PoolScore::Variance,
            Some(Score::Mean) => PoolScore::Mean,
            Some(Score::Sum) => PoolScore::Sum,
        },
        ddof: arguments.ddof.unwrap_or(0),
        prefer: match arguments.prefer {
            None | Some(Prefer::Largest) => PreferOf::Largest,
            Some(Prefer::Smallest) => PreferOf::Smallest,
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
            tolerance: arguments.tolerance.unwrap_or(0.0),
            singleton: match arguments.singleton {
                None | Some(Singleton::Keep) => SingletonRule::Keep,
                Some(Singleton::Drop) => SingletonRule::Drop,
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
                    None | Some(Bounds::Open) => Ends::Open,
                    Some(Bounds::Closed) => Ends::Closed,
                },
            })
        }
        Strategy::TopP => {
            let hint = "`--p 0.9` keeps the groups that hold nine tenths of the mass";
            let p = arguments.p.ok_or_else(|| lacking("top_p", "--p", hint))?;
            let mass = match arguments.mass {
                None | Some(Mass::Softmax) => MassOf::Softmax,
                Some(Mass::Linear) => MassOf::Linear,
                Some(Mass::Variance) => MassOf::Variance,
            };
            GroupFilter::TopP(TopP {
                p,
                mass,
                temperature: arguments.temperature.unwrap_or(1.0),
                slack: arguments.slack.unwrap_or(0.0),
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
    refuse_ignored(arguments)?;
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
    let summary = filter_file(&options).map_err(|error| {
        let code = if error.is_usage() { USAGE } else { FAILED };
        Failure::of(code, &error, error.hint())
    })?;
    for warning in &summary.warnings {
        warn(warning);
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&summary)
            .map_err(|error| Failure::told(FAILED, format!("error: failed to write the summary: {error}")))?;
        print(&format!("{json}\n"))?;
    } else {
        show(&format!("{summary}\n"))?;
    }
    Ok(0)
}

/// Refuses options that the chosen strategy or layout would not look at.
fn refuse_ignored(arguments: &Filter) -> Result<(), Failure> {
    use Strategy::{MeanRange, MinP, Percentile, TopK, TopP, Variance, WithinGroup};
    const POOL: &[Strategy] = &[TopP, TopK, MinP, Percentile];
    // Which strategies look at an option, the likeliest first.
    let options: [(&str, bool, &[Strategy]); 15] = [
        ("--tolerance", arguments.tolerance.is_some(), &[Variance]),
        ("--singleton", arguments.singleton.is_some(), &[Variance]),
        ("--low", arguments.low.is_some(), &[MeanRange, Percentile]),
        ("--high", arguments.high.is_some(), &[MeanRange, Percentile]),
        ("--bounds", arguments.bounds.is_some(), &[MeanRange]),
        ("--p", arguments.p.is_some(), &[TopP, MinP]),
        ("--k", arguments.k.is_some(), &[TopK, WithinGroup]),
        ("--fraction", arguments.fraction.is_some(), &[TopK, WithinGroup]),
        ("--score", arguments.score.is_some(), POOL),
        ("--ddof", arguments.ddof.is_some(), POOL),
        ("--prefer", arguments.prefer.is_some(), POOL),
        ("--exclude-zero", arguments.exclude_zero, &[TopP, TopK, MinP, Percentile, WithinGroup]),
        ("--mass", arguments.mass.is_some(), &[TopP]),
        ("--temperature", arguments.temperature.is_some(), &[TopP]),
        ("--slack", arguments.slack.is_some(), &[TopP]),
    ];
    let ignored: Vec<_> = options
        .iter()
        .filter(|(_, is_given, strategies)| *is_given && !strategies.contains(&arguments.strategy))
        .collect();
    if let Some((_, _, strategies)) = ignored.first() {
        let names: Vec<&str> = ignored.iter().map(|(name, _, _)| *name).collect();
        let other = strategies.first().map_or("variance", |strategy| strategy.name());
        return Err(Failure::told(
            USAGE,
            format!(
                "error: --strategy {} does not look at {}\n  hint: leave it out, or choose `--strategy {other}`",
                arguments.strategy.name(),
                names.join(" and ")
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
