//! Filter and scheduling machine.

use tamis_config::{
    Bounds, Config, EmptyRound, FillOrder, FilterKind, OnExhausted as ConfigExhausted,
    OnLimit as ConfigLimit, Singleton as ConfigSingleton, Surplus as ConfigSurplus,
};
use tamis_core::filter::{
    AvailableMetrics, Ends, ExtraColumns, MeanRange, Metric, PointFilter, Singleton, Variance,
};
use tamis_core::schedule::{OnEmptyRound, OnExhausted, OnLimit, Order, RoundsSettings, Surplus};

use tamis_rollout::Record;

use super::AssembleError;

/// The sieve with the metric it looks at, checked against the scores that the run will have.
#[derive(Debug, Clone)]
pub struct Sieve {
    /// The filter; `None`: every group is trained on.
    pub filter: Option<PointFilter>,
    /// What it looks at, and what reports are about.
    pub metric: Metric,
    /// What the run says about it at the start.
    pub announcement: String,
}

impl Sieve {
    /// Whether the filter looks at rewards after the KL penalty.
    pub fn looks_at_final_reward(&self) -> bool {
        matches!(self.metric, Metric::SeqFinalReward | Metric::TokenLevelRewards)
    }

    /// The metric of a member of a group; `None` where it has none.
    pub fn value_of(&self, record: &Record, member: usize) -> Option<f64> {
        if self.looks_at_final_reward()
            && let Some(rewards) = &record.final_rewards
        {
            return rewards.get(member).copied();
        }
        let group = std::slice::from_ref(&record.group);
        let values = self.metric.values(group, &ExtraColumns::NONE).ok()?;
        values.get(member).copied().filter(|value| !value.is_nan())
    }
}

/// Builds the filter. `scores` are the names of the scores that the rewards give.
pub fn sieve(config: &Config, scores: impl IntoIterator<Item = String>) -> Result<Sieve, AssembleError> {
    let available = AvailableMetrics { scores: scores.into_iter().collect(), entropy: false };
    let Some(filter) = &config.filter else {
        let metric = Metric::default_of(&available).unwrap_or(Metric::SeqReward);
        return Ok(Sieve {
            filter: None,
            metric,
            announcement: "filter off: one round a step, every trajectory is trained on".to_owned(),
        });
    };
    let (metric, chosen) = match &filter.metric {
        Some(name) => (Metric::from(name.as_str()), ""),
        None => (Metric::default_of(&available)?, " (no metric was set: the raw outcome)"),
    };
    metric.check(&available)?;
    let (built, rule) = match filter.kind {
        FilterKind::Variance => {
            let singleton = match filter.singleton {
                ConfigSingleton::Keep => Singleton::Keep,
                ConfigSingleton::Drop => Singleton::Drop,
            };
            let rule = if filter.tolerance > 0.0 {
                format!("max - min > {}", filter.tolerance)
            } else {
                "max > min".to_owned()
            };
            (PointFilter::Variance(Variance::new(filter.tolerance, singleton)?), rule)
        }
        FilterKind::MeanRange => {
            let (ends, relation) = match filter.bounds {
                Bounds::Open => (Ends::Open, "<"),
                Bounds::Closed => (Ends::Closed, "<="),
            };
            let rule = format!("{} {relation} mean {relation} {}", filter.low, filter.high);
            (PointFilter::MeanRange(MeanRange::new(filter.low, filter.high, ends)?), rule)
        }
    };
    let limit = match config.schedule.max_num_gen_batches {
        Some(limit) => format!("at most {limit} rounds a step"),
        None => "no limit on rounds".to_owned(),
    };
    let announcement = format!(
        "filter on: {} keeps groups with {rule} of `{metric}`{chosen}; {limit}, {} groups a step",
        filter.kind, config.data.train_batch_size
    );
    Ok(Sieve { filter: Some(built), metric, announcement })
}

/// The machine's settings.
pub fn rounds(config: &Config, sieve: &Sieve) -> RoundsSettings {
    let schedule = &config.schedule;
    RoundsSettings {
        gen_batch_size: config.data.gen_batch_size.unwrap_or(config.data.train_batch_size),
        filter: sieve.filter.is_some(),
        refill: schedule.refill,
        max_num_gen_batches: schedule.max_num_gen_batches.map_or(0, |limit| limit as i64),
        on_limit: match schedule.on_limit {
            ConfigLimit::Error => OnLimit::Error,
            ConfigLimit::UsePartial => OnLimit::UsePartial,
            ConfigLimit::Skip => OnLimit::Skip,
        },
        on_empty_round: match schedule.on_empty_round {
            EmptyRound::Retry { limit } => {
                OnEmptyRound::Retry { times: limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)) }
            }
            EmptyRound::Skip => OnEmptyRound::Skip,
            EmptyRound::Error => OnEmptyRound::Error,
        },
        on_exhausted: match schedule.on_exhausted {
            ConfigExhausted::NextEpoch => OnExhausted::NextEpoch,
            ConfigExhausted::UsePartial => OnExhausted::UsePartial,
            ConfigExhausted::Stop => OnExhausted::Stop,
        },
        surplus: match schedule.surplus {
            ConfigSurplus::Discard => Surplus::Discard,
            ConfigSurplus::Carry => Surplus::Carry { max_lag: schedule.max_lag.unwrap_or(1) as u64 },
        },
        order: match schedule.order {
            FillOrder::Dispatch => Order::Dispatch,
            FillOrder::Completion => Order::Completion,
        },
        total_steps: config.train.total_steps.map(|steps| steps as u64),
        total_epochs: config.train.total_epochs.map(|epochs| epochs as u64),
        metric: sieve.metric.to_string(),
        temperature: Some(config.rollout.temperature),
        ..RoundsSettings::new(config.data.train_batch_size, config.rollout.n)
    }
}
