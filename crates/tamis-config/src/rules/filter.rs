//! Rules about the filter: against its metric, the group size and the rounds.

use tamis_core::advantage::SingletonAdvantage;
use tamis_core::filter::{GroupFilter, Mass, Percentile, Singleton};
use tamis_core::whole_step::WholeStep;
use tamis_env::reward::RewardKind;

use super::{Checker, LoadPurpose};
use crate::schema::{FilterConfig, KlPlace, RAW_OUTCOME};

impl Checker<'_> {
    pub(super) fn filter(&mut self, purpose: LoadPurpose) {
        self.single_member(purpose);
        let config = self.config;
        let Some(filter) = &config.filter else { return };
        self.idle_keys(filter);
        self.settings(filter);
        if filter.kind.pool().is_some() && config.schedule.refill {
            self.warn(
                &["filter.kind", "schedule.refill"],
                format!(
                    "`filter.kind: {}` selects among the groups of one round, but `schedule.refill` repeats rounds until {} groups are \
                    kept: each round is selected by itself",
                    filter.kind.as_str(), config.data.train_batch_size
                ),
                "`schedule.refill: false` trains on what one round leaves, as RAGEN does",
            );
        }
        self.selection(filter);
        self.metric(filter);
        self.keeps_none(filter, purpose);
    }

    /// Whether the filter's metric is 0 or 1 for every completion that has one. The `acc` of a program, or of
    /// a function of the user's, may be graded.
    fn has_binary_metric(&self, filter: &FilterConfig) -> bool {
        let is_binary = |kind: &RewardKind| {
            let nature = kind.nature();
            !nature.is_external || nature.gives_acc && !matches!(kind, RewardKind::BySource(_))
        };
        // Without a metric it is filled in later.
        let has_outcome = || self.config.reward.iter().any(|reward| reward.kind.gives_outcome());
        let is_outcome = filter.metric.as_ref().map_or_else(has_outcome, |metric| metric == RAW_OUTCOME);
        is_outcome && self.config.reward.iter().all(|reward| is_binary(&reward.kind))
    }

    /// Refuses a filter that can keep no group, if every member's metric is 0 or 1.
    fn keeps_none(&mut self, filter: &FilterConfig, purpose: LoadPurpose) {
        let (config, n) = (self.config, self.config.rollout.n);
        // Of a group of one and a filter with a key for it, another rule speaks.
        let is_other = n == 1 && filter.kind.singleton().is_some();
        let is_possible = filter.kind.check().is_err() || filter.kind.may_keep_binary(n);
        if is_other || is_possible || !self.has_binary_metric(filter) {
            return;
        }
        let values = if n == 1 {
            format!("the `{RAW_OUTCOME}` of its one completion (`rollout.n`) is 0 or 1")
        } else {
            format!("`{RAW_OUTCOME}` is 0 or 1 for each of {n} completions (`rollout.n`)")
        };
        let message = format!(
            "no group can be kept, so no step is ever filled: the filter keeps only {}, and {values}",
            filter.kind.rule()
        );
        let larger = (n + 1..=GroupFilter::LARGEST_TRIED).find(|&n| filter.kind.may_keep_binary(n));
        let bounds = match filter.kind {
            GroupFilter::Variance(_) => "set `filter.tolerance` below 1",
            _ => "widen `filter.low` and `filter.high`",
        };
        let hint = match larger {
            _ if config.signal_beyond_group().is_some() => "set `filter: null`".to_owned(),
            Some(2) => "set `rollout.n` to 4 or more".to_owned(),
            Some(larger) => format!("set `rollout.n` to {larger} or more, or {bounds}"),
            None => bounds.to_owned(),
        };
        let keys = ["filter.low", "filter.high", "filter.tolerance", "rollout.n", "filter.kind"];
        if purpose == LoadPurpose::Showing {
            self.warn(&keys, message, hint);
        } else {
            self.error(&keys, message, hint);
        }
    }

    /// Warns of groups of one, which cannot be compared with anything. A run that learns nothing is refused.
    fn single_member(&mut self, purpose: LoadPurpose) {
        let config = self.config;
        if config.rollout.n != 1 {
            return;
        }
        let hint = "set `rollout.n` to 4 or more";
        // Estimators that compare within the group have a key for it.
        let singleton = serde_json::to_value(&config.objective.advantage).unwrap_or_default();
        if let Some(singleton) = singleton.get("singleton").and_then(|singleton| singleton.as_str())
            // A teacher's rating of each token needs no other member.
            && config.distillation().is_none()
        {
            let why = "`rollout.n` is 1: a group of one has nothing to compare with";
            if singleton == SingletonAdvantage::Zero.as_str() {
                let message = format!("{why}, every advantage is 0 and nothing is learned");
                if purpose == LoadPurpose::Showing {
                    self.warn(&["rollout.n"], message, hint);
                } else {
                    self.error(&["rollout.n", "objective.advantage"], message, hint);
                }
            } else {
                self.warn(&["rollout.n"], format!("{why}, the advantage is the reward itself"), hint);
            }
        }
        if config
            .objective
            .shaping
            .iter()
            .any(|shaping| matches!(shaping.whole_step(), Some(WholeStep::LargestDeviation)))
        {
            self.error(
                &["rollout.n", "objective.shaping"],
                "`rollout.n` is 1, so the deviation within a group is 0, and `soft_reweight` multiplies every advantage by it",
                "remove `soft_reweight`, or set `rollout.n` to 2 or more",
            );
        }
        if config.train.early_stop.reward_collapse.is_some() {
            let reason = "`rollout.n` is 1: the deviation within a group is always 0";
            self.warn_ignored(&["train.early_stop.reward_collapse"], reason);
        }
        let Some(filter) = &config.filter else { return };
        let outcome = match (filter.kind.singleton(), filter.kind.pool()) {
            (Some(Singleton::Keep), _) => {
                "every group has one member and `filter.singleton: keep` keeps it, so nothing is filtered"
            }
            (Some(Singleton::Drop), _) => {
                "every group has one member and `filter.singleton: drop` drops it, so no step is ever filled"
            }
            _ if filter.kind.chooses_members() => "there is nothing to choose from within a group",
            // Another rule refuses it.
            (None, None) if !filter.kind.may_keep_binary(1) && self.has_binary_metric(filter) => return,
            (None, None) => "the filter judges every group by a single trajectory",
            (None, Some(pool)) if pool.is_by_spread() => {
                "a group of one has no deviation, so the filter's ranking means nothing"
            }
            (None, Some(_)) => return,
        };
        let message = format!("`rollout.n` is 1: {outcome}");
        // Advantages that compare beyond the group need no group, and no filter of groups.
        let hint = if config.signal_beyond_group().is_some() { "set `filter: null`" } else { hint };
        if filter.kind.singleton() == Some(Singleton::Drop) && purpose != LoadPurpose::Showing {
            self.error(&["rollout.n", "filter"], message, hint);
        } else {
            self.warn(&["rollout.n"], message, hint);
        }
    }

    /// Refuses contradictory settings of the kind, by the filter's own check.
    fn settings(&mut self, filter: &FilterConfig) {
        let Err(error) = filter.kind.check() else { return };
        let keys: Vec<String> = error.keys().iter().map(|key| format!("filter.{key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).chain(["filter.kind"]).collect();
        let hint =
            error.hint().map_or_else(|| format!("see `tamis config explain {}`", keys[0]), str::to_owned);
        self.error(&keys, error.to_string(), hint);
    }

    /// Warns of a selection that keeps everything.
    fn selection(&mut self, filter: &FilterConfig) {
        let (kind, n, generated) =
            (filter.kind.as_str(), self.config.rollout.n, self.config.gen_batch_size());
        let whole = match &filter.kind {
            GroupFilter::TopK(best) if best.k.is_none() => {
                best.fraction.filter(|share| *share >= 1.0).map(|share| ("fraction", share))
            }
            GroupFilter::TopP(nucleus) if nucleus.p >= 1.0 && nucleus.mass == Mass::Softmax => {
                Some(("p", nucleus.p))
            }
            GroupFilter::MinP(best) if best.p <= 0.0 => Some(("p", best.p)),
            // Bounds beyond the ranking are an error.
            GroupFilter::Percentile(Percentile { low: 0.0, high: 1.0, .. }) => Some(("high", 1.0)),
            _ => None,
        };
        let all_compete = filter.kind.pool().is_some_and(|pool| pool.include_zero);
        if let Some((key, value)) = whole.filter(|_| all_compete) {
            self.warn(
                &[&format!("filter.{key}"), "filter.kind"],
                format!(
                    "`filter.{key}: {value}` with `filter.kind: {kind}` keeps every scored group: nothing is filtered"
                ),
                "use less, or `filter: null`; `filter.include_zero: false` leaves out groups whose score is 0",
            );
        }
        match &filter.kind {
            GroupFilter::TopK(best) if best.k.is_some_and(|k| k >= generated) => {
                let k = best.k.unwrap_or_default();
                let is_own = self.config.data.gen_batch_size.is_some();
                let size = if is_own { "data.gen_batch_size" } else { "data.train_batch_size" };
                self.warn(
                    &["filter.k", "data.gen_batch_size", "data.train_batch_size"],
                    format!(
                        "`filter.k: {k}` keeps the {k} best groups of a round of {generated} (`{size}`): no group is ever dropped"
                    ),
                    format!("use fewer than {generated}, such as {}", generated.div_ceil(2)),
                );
            }
            GroupFilter::WithinGroup(chosen)
                if n > 1 && (chosen.k.is_some() || chosen.fraction.is_some()) =>
            {
                let chosen = chosen.num_chosen(n);
                if chosen < n {
                    return;
                }
                let hint = if n > 2 {
                    format!("use fewer than {n}, such as `filter.k: {}`", n.div_ceil(2).max(2))
                } else {
                    "set `rollout.n` to 4 or more: at least two members are chosen".to_owned()
                };
                self.warn(
                    &["filter.k", "filter.fraction", "rollout.n"],
                    format!(
                        "`filter.kind: within_group` chooses {chosen} of the {n} members of a group (`rollout.n`): \
                         none is ever left out"
                    ),
                    hint,
                );
            }
            _ => {}
        }
    }

    fn idle_keys(&mut self, filter: &FilterConfig) {
        let (idle, reason) = filter.kind.idle_keys();
        for key in idle {
            self.warn_ignored(&[&format!("filter.{key}")], reason);
        }
        if filter.kind.pool().is_some_and(|pool| !pool.is_by_spread()) {
            self.warn_ignored(&["filter.ddof"], "the filter's score is neither deviation nor variance");
        }
    }

    fn metric(&mut self, filter: &FilterConfig) {
        let config = self.config;
        let metric = filter.metric.as_deref().unwrap_or("score");
        let known = config.known_metrics();
        // Another rule reports that there is no reward.
        let external = !self.has_own_reward() || config.reward.iter().any(|reward| reward.kind.is_external());
        // `math.acc` is a further number of the reward `math`, `scores.length` a score with the name of a
        // computed metric.
        if !external && !metric.contains('.') && !known.iter().any(|name| name == metric) {
            self.error(
                &["filter.metric"],
                format!("there is no metric `{metric}`: there are {}", known.join(", ")),
                "a reward's score is a metric under its `name`; null takes the raw outcome",
            );
            return;
        }
        if metric == "seq_final_reward" && config.objective.kl.place == KlPlace::Reward {
            self.warn(
                &["filter.metric", "objective.kl.in"],
                "the filter looks at `seq_final_reward` with the KL in the reward: that varies in every group, so \
                 nothing is filtered",
                "use `filter.metric: seq_reward`, the same before the KL, or `acc`",
            );
        }
        let shaping: Vec<&str> = config
            .reward
            .iter()
            .filter(|reward| !reward.kind.is_verifier() && reward.weight != 0.0)
            .map(|reward| reward.name.as_str())
            .collect();
        // `score` is the sum without shaping, unless there is only shaping.
        let is_sum = matches!(metric, "seq_reward" | "seq_final_reward" | "token_level_rewards")
            || metric == "score" && shaping.len() == config.reward.len();
        if is_sum && !shaping.is_empty() {
            self.warn(
                &["filter.metric", "filter"],
                format!(
                    "the filter looks at `{metric}`, a sum that includes shaping ({}): groups that are all wrong but differ in shaping \
                    are kept and trained on",
                    shaping.join(", ")
                ),
                "filter on the raw outcome: `filter.metric: acc`",
            );
        }
    }
}
