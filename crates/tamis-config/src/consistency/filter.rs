//! The filter against its metric, the group size and the rounds.

use super::Checker;
use crate::conflict::Conflict;
use crate::schema::{Estimator, FilterConfig, FilterKind, KlPlace, Mass, PoolScore, Singleton};

impl Checker<'_> {
    pub(super) fn filter(&mut self) {
        let config = self.config;
        let n = config.rollout.n;
        if n == 1
            && !matches!(
                config.objective.advantage.estimator,
                Estimator::ReinforcePlusPlus
                    | Estimator::Remax
                    | Estimator::Gae
                    | Estimator::BiLevelGae
                    | Estimator::Bnpo
                    | Estimator::BnpoRunning
            )
        {
            let advantage = config.objective.advantage.singleton;
            self.warn(&["rollout.n"], Conflict::SingletonGroups { advantage });
        }
        let Some(filter) = &config.filter else { return };
        let by_spread = matches!(filter.score, PoolScore::Deviation | PoolScore::Variance);
        if n == 1 && (by_spread || !filter.kind.is_pool()) {
            let kept = filter.singleton == Singleton::Keep;
            self.warn(&["rollout.n"], Conflict::SingletonFilter { kind: filter.kind, kept });
        }
        self.filter_keys(filter);
        match filter.kind {
            FilterKind::MeanRange | FilterKind::Percentile => {
                let (low, high) = (filter.low, filter.high);
                let keys = ["filter.low", "filter.high"];
                if filter.kind == FilterKind::Percentile && (low < 0.0 || high > 1.0) {
                    self.error(&keys, Conflict::BandOutside { low, high });
                } else if low >= high {
                    self.error(&keys, Conflict::EmptyRange { low, high });
                }
            }
            FilterKind::TopP | FilterKind::MinP if filter.p.is_none() => {
                self.error(&["filter.kind"], Conflict::FilterNeeds { kind: filter.kind });
            }
            FilterKind::TopP if filter.mass == Mass::Variance && filter.score != PoolScore::Deviation => {
                let keys = ["filter.mass", "filter.score"];
                self.error(&keys, Conflict::VarianceMass { score: filter.score });
            }
            FilterKind::TopK | FilterKind::WithinGroup => match (filter.k, filter.fraction) {
                (None, None) => self.error(&["filter.kind"], Conflict::FilterNeeds { kind: filter.kind }),
                (Some(_), Some(_)) => self.error(&["filter.k", "filter.fraction"], Conflict::TwoQuotas),
                (Some(1), None) if filter.kind == FilterKind::WithinGroup => {
                    self.error(&["filter.k"], Conflict::OneMember);
                }
                _ => {}
            },
            FilterKind::Variance | FilterKind::TopP | FilterKind::MinP => {}
        }
        if filter.kind.is_pool() && config.schedule.refill {
            let conflict = Conflict::PoolRefills { kind: filter.kind, train: config.data.train_batch_size };
            self.warn(&["filter.kind", "schedule.refill"], conflict);
        }
        self.selection(filter);
        self.metric(filter);
    }

    /// Warns of a selection that leaves nothing out.
    fn selection(&mut self, filter: &FilterConfig) {
        let (kind, n, generated) = (filter.kind, self.config.rollout.n, self.config.gen_batch_size());
        let mut all = |key: &'static str, value: f64| {
            if filter.include_zero {
                let keys = [format!("filter.{key}"), "filter.kind".to_owned()];
                self.warn(&keys.each_ref().map(String::as_str), Conflict::SelectsAll { kind, key, value });
            }
        };
        // Beyond that it is an error.
        let is_whole = (0.0..=0.0).contains(&filter.low) && (1.0..=1.0).contains(&filter.high);
        match (kind, filter.k, filter.fraction, filter.p) {
            (FilterKind::TopK, None, Some(share), _) if share >= 1.0 => all("fraction", share),
            (FilterKind::TopP, _, _, Some(share)) if share >= 1.0 && filter.mass == Mass::Softmax => {
                all("p", share);
            }
            (FilterKind::Percentile, ..) if is_whole => all("high", filter.high),
            (FilterKind::TopK, Some(k), None, _) if k >= generated => {
                let is_own = self.config.data.gen_batch_size.is_some();
                let keys = ["filter.k", "data.gen_batch_size", "data.train_batch_size"];
                self.warn(&keys, Conflict::SelectsEveryGroup { k, generated, is_own });
            }
            (FilterKind::WithinGroup, k, fraction, _) if n > 1 => {
                // As the filter rounds a fraction.
                let of = |fraction: f64| ((fraction * n as f64).round_ties_even() as usize).max(2);
                let Some(chosen) = k.or(fraction.map(of)).filter(|&chosen| chosen >= n) else { return };
                let keys = ["filter.k", "filter.fraction", "rollout.n"];
                self.warn(&keys, Conflict::SelectsEveryMember { chosen, n });
            }
            _ => {}
        }
    }

    /// Warns of the keys that the filter's kind does not look at.
    fn filter_keys(&mut self, filter: &FilterConfig) {
        const POOL: [&str; 4] = ["score", "ddof", "prefer", "include_zero"];
        let (own, reason): (&[&str], _) = match filter.kind {
            FilterKind::Variance => (&["tolerance", "singleton"], "the filter's kind is `variance`"),
            FilterKind::MeanRange => (&["low", "high", "bounds"], "the filter's kind is `mean_range`"),
            FilterKind::TopP => (&["p", "mass", "temperature", "slack"], "the filter's kind is `top_p`"),
            FilterKind::TopK => (&["k", "fraction"], "the filter's kind is `top_k`"),
            FilterKind::MinP => (&["p"], "the filter's kind is `min_p`"),
            FilterKind::Percentile => (&["low", "high"], "the filter's kind is `percentile`"),
            FilterKind::WithinGroup => {
                (&["k", "fraction", "include_zero"], "the filter's kind is `within_group`")
            }
        };
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
                self.ignored(&[&format!("filter.{key}")], reason);
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

    pub(super) fn metric(&mut self, filter: &FilterConfig) {
        let config = self.config;
        let metric = filter.metric.as_deref().unwrap_or("score");
        let known = config.known_metrics();
        // Where there is no reward, that is said already.
        let external =
            config.reward.is_empty() || config.reward.iter().any(|reward| reward.kind.is_external());
        // `math.acc` is a further number of the reward `math`, `scores.length` a score with the name of something else.
        if !external && !metric.contains('.') && !known.iter().any(|name| name == metric) {
            self.error(&["filter.metric"], Conflict::NoSuchMetric { metric: metric.to_owned(), known });
            return;
        }
        if metric == "seq_final_reward" && config.objective.kl.place == KlPlace::Reward {
            self.warn(&["filter.metric", "objective.kl.in"], Conflict::FilterSeesKl);
        }
        let shaping: Vec<String> = config
            .reward
            .iter()
            .filter(|reward| !reward.kind.is_verifier() && reward.weight != 0.0)
            .map(|reward| reward.name.clone())
            .collect();
        // `score` is the sum without shaping, where there is anything else.
        let is_sum = matches!(metric, "seq_reward" | "seq_final_reward" | "token_level_rewards")
            || metric == "score" && shaping.len() == config.reward.len();
        if is_sum && !shaping.is_empty() {
            let conflict = Conflict::FilterOnShapedSum { metric: metric.to_owned(), shaping };
            self.warn(&["filter.metric", "filter"], conflict);
        }
    }
}
