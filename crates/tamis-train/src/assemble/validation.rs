//! Compares the configuration with the validation's results: the figure for the best checkpoint, and pass@k.

use std::collections::BTreeSet;

use tamis_config::{Config, GoldCheck, ValidationMetric};
use tamis_env::reward::Rewards;
use tamis_rollout::PreparedPrompt;

use super::places::Places;
use crate::error::AssembleError;
use crate::measure::validation::source_of;
use crate::measure::validation_metrics::FigureName;

/// The figure that `checkpoint.keep_best` uses; `None` if it is the mean outcome, or if there is nothing to
/// validate on.
///
/// # Errors
/// A name that no figure of the run's validation has, as far as that can be known: the scores of external
/// functions are known only if the gold answers were checked.
pub(crate) fn best_figure(
    config: &Config,
    prompts: &[PreparedPrompt],
    score_names: &BTreeSet<String>,
) -> Result<Option<FigureName>, AssembleError> {
    let Some(name) = config.checkpoint.keep_best.as_ref().and_then(|keep| keep.metric.as_deref()) else {
        return Ok(None);
    };
    if prompts.is_empty() {
        return Ok(None);
    }
    let sources: BTreeSet<&str> =
        prompts.iter().map(|prompt| source_of(&prompt.prompt.data_source)).collect();
    let are_scores_known = config.data.check_gold != GoldCheck::Off
        || config.reward.iter().all(|reward| !reward.kind.is_external());
    let all = FigureName::all(&sources, config.validate.n, score_names);
    let found = all.iter().find(|figure| figure.to_string() == name).cloned();
    let guessed =
        || if are_scores_known { None } else { FigureName::read(name, &sources, config.validate.n) };
    found.or_else(guessed).map(Some).ok_or_else(|| no_figure(name, all))
}

/// Warning if pass@k is wanted and no score is called `acc`; `None` if pass@k is not wanted, or there is such
/// a score.
pub(crate) fn no_pass<'a>(
    config: &Config,
    places: &Places,
    rewards: &Rewards,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let names: Vec<&str> = names.into_iter().collect();
    if !config.validate.metrics.contains(&ValidationMetric::PassAtK) || names.contains(&"acc") {
        return None;
    }
    let place = places.validate_metrics.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let more = rewards.how_to_give_acc().map_or_else(String::new, |how| format!(", or {how}"));
    Some(format!(
        "`validate.metrics`{place} asks for pass@k, which counts completions whose `acc` is 1, and no \
         reward function gives `acc`: there are {}; \
         there will be no pass@k. Write `best@k` for the best of k scores{more}",
        names.join(", ")
    ))
}

pub(crate) fn no_figure(name: &str, figures: impl IntoIterator<Item = FigureName>) -> AssembleError {
    let names: Vec<String> = figures.into_iter().map(|figure| figure.to_string()).collect();
    AssembleError::setting(
        format!("checkpoint.keep_best.metric: there is no metric `{name}` in this run's validation"),
        format!("choose one of {}", names.join(", ")),
    )
}
