//! Rules about the filter: against its metric, the group size and the rounds.

use super::Checker;
use crate::schema::{
    Estimator, FilterConfig, FilterKind, KlPlace, Mass, PoolScore, Singleton, SingletonAdvantage,
};

impl Checker<'_> {
    pub(super) fn filter(&mut self) {
        self.single_member();
        let config = self.config;
        let Some(filter) = &config.filter else { return };
        self.filter_keys(filter);
        self.quota(filter);
        if filter.kind.is_pool() && config.schedule.refill {
            self.warn(
                &["filter.kind", "schedule.refill"],
                format!(
                    "`filter.kind: {}` selects among the groups of a round, and `schedule.refill` repeats rounds \
                     until {} groups are kept: each round is selected by itself",
                    filter.kind, config.data.train_batch_size
                ),
                "`schedule.refill: false` trains on what one round leaves, as RAGEN does",
            );
        }
        self.selection(filter);
        self.metric(filter);
    }

    /// Warns of groups of one, which have nothing to be compared with.
    fn single_member(&mut self) {
        let config = self.config;
        if config.rollout.n != 1 {
            return;
        }
        let hint = "set `rollout.n` to 4 or more";
        if !matches!(
            config.objective.advantage.estimator,
            Estimator::ReinforcePlusPlus
                | Estimator::Remax
                | Estimator::Gae
                | Estimator::BiLevelGae
                | Estimator::Bnpo
                | Estimator::BnpoRunning
        ) {
            let outcome = match config.objective.advantage.singleton {
                SingletonAdvantage::Zero => "every advantage is 0 and nothing is learned",
                SingletonAdvantage::Raw => "the advantage is the reward itself",
            };
            let message =
                format!("`rollout.n` is 1: a group of one has nothing to be compared with, {outcome}");
            self.warn(&["rollout.n"], message, hint);
        }
        let Some(filter) = &config.filter else { return };
        let by_spread = matches!(filter.score, PoolScore::Deviation | PoolScore::Variance);
        if !by_spread && filter.kind.is_pool() {
            return;
        }
        let outcome = match (filter.kind, filter.singleton) {
            (FilterKind::Variance, Singleton::Keep) => {
                "every group has one member and `filter.singleton: keep` keeps it, so nothing is filtered"
            }
            (FilterKind::Variance, Singleton::Drop) => {
                "every group has one member and `filter.singleton: drop` drops it, so no step is ever filled"
            }
            (FilterKind::MeanRange, _) => "the filter judges every group by a single trajectory",
            (FilterKind::WithinGroup, _) => "there is nothing to choose from within a group",
            _ => "a group of one has no deviation, so the filter's ranking says nothing",
        };
        self.warn(&["rollout.n"], format!("`rollout.n` is 1: {outcome}"), hint);
    }

    /// Rules about how much a filter keeps.
    fn quota(&mut self, filter: &FilterConfig) {
        let kind = filter.kind;
        match kind {
            FilterKind::MeanRange | FilterKind::Percentile => {
                let (low, high) = (filter.low, filter.high);
                let keys = ["filter.low", "filter.high"];
                if kind == FilterKind::Percentile && (low < 0.0 || high > 1.0) {
                    self.error(
                        &keys,
                        format!(
                            "`filter.low` ({low}) and `filter.high` ({high}) are shares of a ranking, from 0 to 1"
                        ),
                        "`low: 0, high: 0.25` is the best quarter",
                    );
                } else if low >= high {
                    self.error(
                        &keys,
                        format!(
                            "`filter.low` ({low}) is not below `filter.high` ({high}): no group is ever kept"
                        ),
                        "exchange the two",
                    );
                }
            }
            FilterKind::TopP | FilterKind::MinP if filter.p.is_none() => {
                let share = if kind == FilterKind::TopP { 0.9 } else { 0.5 };
                self.error(
                    &["filter.kind"],
                    format!("`filter.kind: {kind}` needs `filter.p`"),
                    format!("set `filter.p: {share}`"),
                );
            }
            FilterKind::TopP if filter.mass == Mass::Variance && filter.score != PoolScore::Deviation => {
                self.error(
                    &["filter.mass", "filter.score"],
                    format!(
                        "`filter.mass: variance` is the square of the deviation, and `filter.score` is `{}`",
                        filter.score
                    ),
                    "use `filter.score: deviation`, or `filter.mass: linear`",
                );
            }
            FilterKind::TopK | FilterKind::WithinGroup => match (filter.k, filter.fraction) {
                (None, None) => self.error(
                    &["filter.kind"],
                    format!("`filter.kind: {kind}` needs `filter.k` or `filter.fraction`"),
                    "set `filter.fraction: 0.5`",
                ),
                (Some(_), Some(_)) => self.error(
                    &["filter.k", "filter.fraction"],
                    "`filter.k` and `filter.fraction` are both set",
                    "remove one of the two",
                ),
                (Some(1), None) if kind == FilterKind::WithinGroup => self.error(
                    &["filter.k"],
                    "`filter.kind: within_group` with `filter.k: 1` leaves one member of each group, which has \
                     nothing to be compared with",
                    "set `filter.k: 2` or more",
                ),
                _ => {}
            },
            FilterKind::Variance | FilterKind::TopP | FilterKind::MinP => {}
        }
    }

    /// Warns of a selection that leaves nothing out.
    fn selection(&mut self, filter: &FilterConfig) {
        let (kind, n, generated) = (filter.kind, self.config.rollout.n, self.config.gen_batch_size());
        // Bounds beyond the ranking are an error.
        let is_whole = (0.0..=0.0).contains(&filter.low) && (1.0..=1.0).contains(&filter.high);
        let whole = match (kind, filter.k, filter.fraction, filter.p) {
            (FilterKind::TopK, None, Some(share), _) if share >= 1.0 => Some(("fraction", share)),
            (FilterKind::TopP, _, _, Some(share)) if share >= 1.0 && filter.mass == Mass::Softmax => {
                Some(("p", share))
            }
            (FilterKind::Percentile, ..) if is_whole => Some(("high", filter.high)),
            _ => None,
        };
        if let Some((key, value)) = whole.filter(|_| filter.include_zero) {
            self.warn(
                &[&format!("filter.{key}"), "filter.kind"],
                format!(
                    "`filter.{key}: {value}` with `filter.kind: {kind}` keeps every scored group: nothing is filtered"
                ),
                "use less, or `filter: null`; `filter.include_zero: false` leaves out groups whose score is 0",
            );
        }
        match (kind, filter.k, filter.fraction) {
            (FilterKind::TopK, Some(k), None) if k >= generated => {
                let is_own = self.config.data.gen_batch_size.is_some();
                let size = if is_own { "data.gen_batch_size" } else { "data.train_batch_size" };
                self.warn(
                    &["filter.k", "data.gen_batch_size", "data.train_batch_size"],
                    format!(
                        "`filter.k: {k}` keeps the {k} best groups of a round of {generated} (`{size}`): none is \
                         ever left out for its rank"
                    ),
                    format!("use fewer than {generated}, such as {}", generated.div_ceil(2)),
                );
            }
            (FilterKind::WithinGroup, k, fraction) if n > 1 => {
                // As the filter rounds a fraction.
                let of = |fraction: f64| ((fraction * n as f64).round_ties_even() as usize).max(2);
                let Some(chosen) = k.or(fraction.map(of)).filter(|&chosen| chosen >= n) else { return };
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

    /// Warns of the keys that the filter's kind does not read.
    fn filter_keys(&mut self, filter: &FilterConfig) {
        const POOL: [&str; 4] = ["score", "ddof", "prefer", "include_zero"];
        let own: &[&str] = match filter.kind {
            FilterKind::Variance => &["tolerance", "singleton"],
            FilterKind::MeanRange => &["low", "high", "bounds"],
            FilterKind::TopP => &["p", "mass", "temperature", "slack"],
            FilterKind::TopK => &["k", "fraction"],
            FilterKind::MinP => &["p"],
            FilterKind::Percentile => &["low", "high"],
            FilterKind::WithinGroup => &["k", "fraction", "include_zero"],
        };
        let reason = format!("the filter's kind is `{}`", filter.kind);
        for key in [
            "tolerance",
            "singleton",
            "low",
            "high",
            "bounds",
            "score",
            "ddof",
            "prefer",
            "include_zero",
            "p",
            "mass",
            "temperature",
            "slack",
            "k",
            "fraction",
        ] {
            let is_used = own.contains(&key) || filter.kind.is_pool() && POOL.contains(&key);
            if !is_used {
                self.ignored(&[&format!("filter.{key}")], &reason);
            }
        }
        if filter.kind == FilterKind::TopP && filter.mass == Mass::Softmax {
            self.ignored(&["filter.slack"], "the mass is `softmax`");
        } else if filter.kind == FilterKind::TopP {
            self.ignored(&["filter.temperature"], "the mass is not `softmax`");
        }
        if filter.kind.is_pool() && matches!(filter.score, PoolScore::Mean | PoolScore::Sum) {
            self.ignored(&["filter.ddof"], "the filter's score is neither deviation nor variance");
        }
    }

    fn metric(&mut self, filter: &FilterConfig) {
        let config = self.config;
        let metric = filter.metric.as_deref().unwrap_or("score");
        let known = config.known_metrics();
        // Another rule reports that there is no reward.
        let external =
            config.reward.is_empty() || config.reward.iter().any(|reward| reward.kind.is_external());
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
        // `score` is the sum without shaping, where there is anything else.
        let is_sum = matches!(metric, "seq_reward" | "seq_final_reward" | "token_level_rewards")
            || metric == "score" && shaping.len() == config.reward.len();
        if is_sum && !shaping.is_empty() {
            self.warn(
                &["filter.metric", "filter"],
                format!(
                    "the filter looks at `{metric}`, a sum with shaping in it ({}): groups that are all wrong but \
                     differ in shaping are kept and trained on",
                    shaping.join(", ")
                ),
                "filter on the raw outcome: `filter.metric: acc`",
            );
        }
    }
}
