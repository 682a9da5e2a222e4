//! The command line of `tamis filter`, and options whose values are those of a key of the configuration.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tamis_core::filter::{Bounds, GroupFilter, Mass, PoolScore, Prefer, Singleton};
use tamis_core::setting::{Described, Shape};

/// The values of a key of the configuration, for an option that means the same; `top-p` is taken as `top_p`.
fn values_of<T: Described>() -> impl TypedValueParser<Value = String> {
    let values = match T::shape() {
        Shape::Choice(values) => values,
        Shape::Tagged { variants, .. } => variants.iter().map(|kind| (kind.name, kind.doc)).collect(),
        _ => Vec::new(),
    };
    let words =
        |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned();
    let names: Vec<&'static str> = values.iter().map(|(name, _)| *name).collect();
    let value = |(name, doc): (&'static str, &str)| {
        // clap takes names that live as long as the program.
        let alias = name.contains('_').then(|| &*name.replace('_', "-").leak());
        PossibleValue::new(name).aliases(alias).help(words(doc))
    };
    PossibleValuesParser::new(values.into_iter().map(value)).map(move |typed| {
        let is_meant = |name: &&&str| name.replace('_', "-") == typed;
        names.iter().find(is_meant).map_or(typed.clone(), |name| (*name).to_owned())
    })
}

/// [`values_of`] a key, read as its type.
pub(super) fn value_of<T: Described + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    values_of::<T>().try_map(|name| serde_json::from_value(name.into()))
}

#[derive(Debug, Args)]
pub(crate) struct FilterArguments {
    /// Rollouts, one trajectory a row or one whole group a row (see --metric), or folders of TRL, verl,
    /// verifiers or prime-rl.
    #[arg(value_name = "ROLLOUTS.{jsonl,parquet}", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Column of the metric, with dots if nested (`acc`, `175b_finetuning.is_correct`); true counts 1, false
    /// 0. If each row is a whole group, give one column for each member, or one column that holds a list.
    /// Rollouts of tamis also have the names of `filter.metric` (`seq_reward`, `length`).
    #[arg(long, value_name = "COLUMN", required = true)]
    pub(crate) metric: Vec<String>,
    /// The metric is not a right-or-wrong outcome: uniform groups are reported as uniform, not as all correct
    /// or all wrong. `length` and `entropy` never are.
    #[arg(long)]
    pub(crate) no_outcome: bool,
    /// Column (or columns) that name a row's group [default: the first of `group_id`, `uid`, `group`,
    /// `prompt_id`]; not needed if a row is a whole group.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) group: Vec<String>,
    /// The filter.
    #[arg(long, value_parser = values_of::<GroupFilter>(), default_value = "variance", alias = "kind")]
    pub(crate) strategy: String,
    /// variance: how far apart two members must be to differ (max - min > tolerance) [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) tolerance: Option<f64>,
    /// variance: what to do with a group of one [default: keep].
    #[arg(long, value_parser = values_of::<Singleton>())]
    pub(crate) singleton: Option<String>,
    /// mean_range: lower bound of the group's mean; percentile: lower end of the band [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) low: Option<f64>,
    /// mean_range: upper bound of the group's mean; percentile: upper end of the band [default: 1].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) high: Option<f64>,
    /// mean_range: whether the bounds themselves are kept (closed) or not (open) [default: open].
    #[arg(long, value_parser = values_of::<Bounds>())]
    pub(crate) bounds: Option<String>,
    /// top_p: share of the mass to keep; min_p: share of the best score that a group needs.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) p: Option<f64>,
    /// top_k: groups to keep; within_group: members of each group to keep.
    #[arg(long)]
    pub(crate) k: Option<usize>,
    /// The share to keep, in place of --k.
    #[arg(long, conflicts_with = "k", allow_negative_numbers = true)]
    pub(crate) fraction: Option<f64>,
    /// top_p, top_k, min_p, percentile (all files are one round): what groups are ranked by [default:
    /// deviation].
    #[arg(long, value_parser = values_of::<PoolScore>())]
    pub(crate) score: Option<String>,
    /// top_p, top_k, min_p, percentile: 0 for population deviations, 1 for sample deviations [default: 0].
    #[arg(long)]
    pub(crate) ddof: Option<u8>,
    /// top_p, top_k, min_p, percentile: which scores are the good ones [default: largest].
    #[arg(long, value_parser = values_of::<Prefer>())]
    pub(crate) prefer: Option<String>,
    /// top_p, top_k, min_p, percentile: drop groups with score 0 first; within_group: drop uniform groups.
    #[arg(long)]
    pub(crate) exclude_zero: bool,
    /// top_p: what a group weighs [default: softmax].
    #[arg(long, value_parser = values_of::<Mass>())]
    pub(crate) mass: Option<String>,
    /// top_p with mass softmax: divides scores [default: 1].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// top_p with mass linear or variance: mass that may be missing [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) slack: Option<f64>,
    /// Write the rows of kept groups here, in the input's format.
    #[arg(long, value_name = "FILE")]
    pub(crate) kept: Option<PathBuf>,
    /// Write the rows of dropped groups here, in the input's format.
    #[arg(long, value_name = "FILE")]
    pub(crate) dropped: Option<PathBuf>,
    /// Overwrite existing output files.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
