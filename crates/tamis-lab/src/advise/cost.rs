//! Cost of a batch in each mode, the recommended round size, and the recommended limit on rounds.

use serde::Serialize;
use tamis_core::schedule::yields::limit_for_pass_rate;

use super::keep_rate::KeepEstimate;
use super::plan::{AdvicePlan, SCREENED};
use crate::cost::generated_per_kept;
use crate::cost::rounds::{Rounds, below, deficit, filling_round, granularity};

/// Probability with which one round of the recommended size fills the batch.
const FILLED: f64 = 0.9;
/// Share of steps that may reach the limit on rounds if the keep rate falls to half.
const EXCEEDED: f64 = 1e-3;
/// Highest limit that is recommended. Above this, none is.
const MOST_ROUNDS: u64 = 200;

/// One way to fill a batch, and its cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModeCost {
    /// Its name: `no_filter`, `rounds`, `filling_round`, `deficit`, `carried`, `screened`.
    pub name: &'static str,
    /// A description.
    pub what: String,
    /// Rounds per step.
    pub rounds: Option<KeepEstimate>,
    /// Generated groups for each trained group whose members differ.
    pub generated_per_kept: KeepEstimate,
    /// Generated trajectories per step, if the group size is known.
    pub trajectories: Option<KeepEstimate>,
    /// Generated completion tokens per step, if completion lengths are known.
    pub tokens: Option<KeepEstimate>,
    /// Groups of the batch whose members differ.
    pub with_signal: f64,
}

/// A recommended round size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundAdvice {
    /// Prompts of a round.
    pub gen_batch_size: usize,
    /// Probability that one round fills the batch.
    pub fills: f64,
    /// Generated groups per trained group, if the surplus is thrown away.
    pub generated_per_kept: f64,
}

/// A limit on rounds, and how often steps reach it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LimitAdvice {
    /// Prompts of a round.
    pub gen_batch_size: usize,
    /// The limit.
    pub max_num_gen_batches: u64,
    /// Probability that a step reaches the limit before its batch is full.
    pub exceeded: f64,
    /// The same probability at half the keep rate.
    pub exceeded_at_half: f64,
}

impl LimitAdvice {
    fn of(rounds: Rounds, limit: u64) -> Self {
        let half = Rounds { keep: rounds.keep / 2.0, ..rounds };
        Self {
            gen_batch_size: rounds.generated,
            max_num_gen_batches: limit,
            exceeded: rounds.more_than(limit),
            exceeded_at_half: half.more_than(limit),
        }
    }
}

/// Costs of a batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Costs {
    /// Cost of each mode.
    pub modes: Vec<ModeCost>,
    /// The recommended round, for groups of the recommended size ([`Advice::group_size`](super::Advice)), or
    /// of the plan's size if none is recommended.
    pub round: Option<RoundAdvice>,
    /// The recommended limit for that round.
    pub limit: Option<LimitAdvice>,
    /// The limit of the current plan.
    pub planned_limit: Option<LimitAdvice>,
    /// The usual range of limits at this pass rate.
    #[serde(rename = "guide_limit")]
    pub usual_limit: Option<(u64, u64)>,
}

/// Inputs of the cost model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostBasis {
    /// Keep rate of groups of the plan's n. If unknown, only screened groups have a cost.
    pub keep: Option<KeepEstimate>,
    /// Keep rate of the plan's first members, if groups are screened: the share of drawn prompts that yield a
    /// kept group.
    pub keep_first: Option<KeepEstimate>,
    /// Mean tokens per completion.
    pub tokens: Option<f64>,
    /// Share of correct completions.
    pub pass_rate: Option<f64>,
}

impl CostBasis {
    /// A basis with only a keep rate.
    pub fn new(keep: KeepEstimate) -> Self {
        Self { keep: Some(keep), keep_first: None, tokens: None, pass_rate: None }
    }
}

impl Costs {
    /// Costs under the plan's batch size and n.
    pub fn of(basis: CostBasis, plan: &AdvicePlan) -> Self {
        let CostBasis { keep, keep_first, tokens, pass_rate } = basis;
        let train = plan.train_batch_size;
        let tokens = tokens.filter(|_| plan.n > 0);
        let of = |generated: usize| move |keep: f64| Rounds { train, generated, keep };
        let mode = |name,
                    what: String,
                    rounds: Option<KeepEstimate>,
                    cost: Option<KeepEstimate>,
                    with_signal: f64| {
            let generated_per_kept = cost?;
            let scale = |by: f64| {
                let of = |end: f64| end * with_signal * by;
                KeepEstimate {
                    value: of(generated_per_kept.value),
                    low: generated_per_kept.low.map(of),
                    high: generated_per_kept.high.map(of),
                }
            };
            let trajectories = (plan.n > 0).then(|| scale(plan.n as f64));
            let tokens = tokens.map(|tokens| scale(plan.n as f64 * tokens));
            Some(ModeCost { name, what, rounds, generated_per_kept, trajectories, tokens, with_signal })
        };
        let all = train as f64;
        let screened = plan.screen_first.zip(keep_first).filter(|(first, _)| *first < plan.n).and_then(
            |(first, keep)| {
                let cost = keep.map(|keep| generated_per_kept(plan.n, first, keep));
                mode(SCREENED, format!("streaming with screen_first: {first}"), None, cost, all)
            },
        );
        let usual_limit = pass_rate.and_then(limit_for_pass_rate);
        let planned = plan.gen_batch_size;
        // Share of drawn prompts that yield a group for the batch. If groups are screened, these are the
        // prompts whose first members differ.
        let of_prompts = if plan.screens() { keep_first } else { keep };
        let planned_limit = of_prompts
            .zip(plan.max_num_gen_batches)
            .map(|(keep, limit)| LimitAdvice::of(of(planned)(keep.value), limit));
        let Some(keep) = keep else {
            let modes = screened.into_iter().collect();
            return Self { modes, round: None, limit: None, planned_limit, usual_limit };
        };
        let grain = granularity(train);
        let filling = |keep: KeepEstimate| {
            let size = filling_round(train, keep.value, FILLED, grain)?;
            Some(RoundAdvice {
                gen_batch_size: size,
                fills: 1.0 - below(size, keep.value, train),
                generated_per_kept: of(size)(keep.value).cost()?,
            })
        };
        let round = of_prompts.and_then(filling);
        let inverse = keep.map(|keep| (keep > 0.0).then(|| 1.0 / keep));
        let of_rounds = |size: usize| {
            let (rounds, cost) =
                (keep.map(|keep| of(size)(keep).mean()), keep.map(|keep| of(size)(keep).cost()));
            (rounds, cost)
        };
        // Without a filter a batch is one round of its own size, even if many of its groups teach nothing.
        let modes = [
            mode(
                "no_filter",
                "no filter: all groups are trained on".to_owned(),
                Some(KeepEstimate::exact(1.0)),
                inverse,
                all * keep.value,
            )
            .map(|mode| ModeCost {
                trajectories: mode.trajectories.map(|all| KeepEstimate::exact(all.value)),
                tokens: mode.tokens.map(|tokens| KeepEstimate::exact(tokens.value)),
                ..mode
            }),
            {
                let (rounds, cost) = of_rounds(planned);
                mode("rounds", format!("rounds of {planned}, surplus thrown away"), rounds, cost, all)
            },
            filling(keep).filter(|round| round.gen_batch_size != planned).and_then(|round| {
                let (rounds, cost) = of_rounds(round.gen_batch_size);
                let what = format!("rounds of {}, surplus thrown away", round.gen_batch_size);
                mode("filling_round", what, rounds, cost, all)
            }),
            {
                let by = |keep: f64| deficit(train, keep, plan.margin, plan.granularity.unwrap_or(1));
                let rounds = keep.map(|keep| by(keep).map(|(rounds, _)| rounds));
                let cost = keep.map(|keep| by(keep).map(|(_, cost)| cost));
                mode("deficit", "rounds of what the batch lacks (deficit)".to_owned(), rounds, cost, all)
            },
            mode("carried", "any mode with surplus: carry, and streaming".to_owned(), None, inverse, all),
            screened,
        ];
        let limit = round.zip(of_prompts).and_then(|(round, keep)| {
            let half = of(round.gen_batch_size)(keep.value / 2.0);
            let limit = half.exceeded_with(EXCEEDED, MOST_ROUNDS)?;
            Some(LimitAdvice::of(of(round.gen_batch_size)(keep.value), limit))
        });
        Self { modes: modes.into_iter().flatten().collect(), round, limit, planned_limit, usual_limit }
    }

    /// The limit for rounds of `train` prompts, which EasyR1's fork draws. Returns 0, which means no limit,
    /// if the limit would be very high.
    pub(super) fn limit_of_whole_batches(keep: f64, train: usize) -> u64 {
        let half = Rounds { train, generated: train, keep: keep / 2.0 };
        half.exceeded_with(EXCEEDED, MOST_ROUNDS).unwrap_or(0)
    }

    /// The cost of a mode by its name.
    pub fn mode(&self, name: &str) -> Option<&ModeCost> {
        self.modes.iter().find(|mode| mode.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_end_with_their_first_members() {
        let plan = AdvicePlan { n: 8, screen_first: Some(2), ..AdvicePlan::default() };
        let first = KeepEstimate { value: 0.1, low: Some(0.05), high: Some(0.2) };
        let basis = CostBasis { keep_first: Some(first), ..CostBasis::new(KeepEstimate::exact(0.25)) };
        let cost = Costs::of(basis, &plan).mode("screened").unwrap().generated_per_kept;
        // Ten groups start with two members, and one of them gets all eight.
        assert_eq!((cost.value, cost.low, cost.high), (26.0 / 8.0, Some(16.0 / 8.0), Some(46.0 / 8.0)));
        assert_eq!(Costs::of(basis, &AdvicePlan { screen_first: None, ..plan }).mode("screened"), None);
    }

    /// The limit allows 400 prompts. They almost always hold 64 groups that are kept whole (a quarter of the
    /// prompts), and almost never 64 groups whose first two members differ (a tenth).
    #[test]
    fn limits_of_groups_that_end_early_go_by_their_first_members() {
        let screened = AdvicePlan {
            n: 8,
            screen_first: Some(2),
            mode: Some("screened"),
            gen_batch_size: 40,
            max_num_gen_batches: Some(10),
            ..AdvicePlan::default()
        };
        let basis = CostBasis {
            keep_first: Some(KeepEstimate::exact(0.1)),
            ..CostBasis::new(KeepEstimate::exact(0.25))
        };
        let of = |basis, plan: &AdvicePlan| Costs::of(basis, plan);
        let early = of(basis, &screened);
        assert!(early.planned_limit.unwrap().exceeded > 0.99, "{early:?}");
        let whole = of(basis, &AdvicePlan { mode: Some("carried"), ..screened.clone() });
        assert!(whole.planned_limit.unwrap().exceeded < 1e-3, "{whole:?}");
        // A screened round fills the batch from prompts whose first members differ. Rounds of whole groups
        // cost the same as before.
        let [early_round, whole_round] = [&early, &whole].map(|costs| costs.round.unwrap().gen_batch_size);
        assert!(early_round > 640 && whole_round < 400, "{early_round} {whole_round}");
        assert!(early.limit.unwrap().exceeded_at_half <= EXCEEDED);
        assert_eq!(early.mode("filling_round"), whole.mode("filling_round"));
        // Whole groups are not known to be kept more often.
        let alone = of(CostBasis { keep: None, ..basis }, &screened);
        assert_eq!((alone.planned_limit, alone.round), (early.planned_limit, None));
    }

    #[test]
    fn a_batch_at_a_keep_rate_of_a_half() {
        let plan = AdvicePlan {
            n: 8,
            train_batch_size: 64,
            gen_batch_size: 64,
            max_num_gen_batches: Some(2),
            ..AdvicePlan::default()
        };
        let keep = KeepEstimate { value: 0.5, low: Some(0.45), high: Some(0.55) };
        let basis = CostBasis { tokens: Some(100.0), pass_rate: Some(0.3), ..CostBasis::new(keep) };
        let costs = Costs::of(basis, &plan);
        let of = |name| costs.mode(name).unwrap();
        // Half of the time the first 128 prompts are enough.
        let rounds = of("rounds");
        assert!((2.4..2.6).contains(&rounds.rounds.unwrap().value), "{rounds:?}");
        assert_eq!(rounds.generated_per_kept, rounds.rounds.unwrap());
        assert!((rounds.trajectories.unwrap().value - rounds.generated_per_kept.value * 512.0).abs() < 1e-9);
        assert!((rounds.tokens.unwrap().value - 100.0 * rounds.trajectories.unwrap().value).abs() < 1e-6);
        let carried = of("carried").generated_per_kept;
        assert_eq!((carried.value, carried.low, carried.high), (2.0, Some(1.0 / 0.55), Some(1.0 / 0.45)));
        assert!(of("deficit").generated_per_kept.value < of("filling_round").generated_per_kept.value);
        assert_eq!((of("no_filter").trajectories.unwrap().value, of("no_filter").with_signal), (512.0, 32.0));
        let round = costs.round.unwrap();
        assert!(
            round.fills >= 0.9 && round.gen_batch_size.is_multiple_of(8) && round.gen_batch_size < 160,
            "{round:?}"
        );
        let limit = costs.limit.unwrap();
        assert!(limit.exceeded_at_half <= 1e-3 && limit.exceeded < 1e-9, "{limit:?}");
        // Half of the time two rounds of 64 are too few.
        assert!((0.4..0.6).contains(&costs.planned_limit.unwrap().exceeded));
        assert_eq!(costs.usual_limit, Some((10, 15)));
    }

    #[test]
    fn nothing_that_is_kept_costs_nothing_that_can_be_told() {
        let plan = AdvicePlan { n: 4, ..AdvicePlan::default() };
        let none = KeepEstimate { value: 0.0, low: Some(0.0), high: Some(0.1) };
        let costs = Costs::of(CostBasis::new(none), &plan);
        assert_eq!((costs.modes.len(), costs.round, costs.limit), (0, None, None));
        let all = Costs::of(CostBasis::new(KeepEstimate::exact(1.0)), &plan);
        assert!(all.modes.iter().all(|mode| (mode.generated_per_kept.value - 1.0).abs() < 1e-12), "{all:?}");
        assert_eq!(all.round.unwrap().gen_batch_size, 64);
        // The group size is unknown, and no limit is needed if it would be very high.
        let basis = CostBasis { tokens: Some(10.0), ..CostBasis::new(KeepEstimate::exact(0.5)) };
        let unknown = Costs::of(basis, &AdvicePlan::default());
        assert!(unknown.modes.iter().all(|mode| (mode.trajectories, mode.tokens) == (None, None)));
        assert_eq!(
            (Costs::limit_of_whole_batches(0.5, 64) > 1, Costs::limit_of_whole_batches(1e-4, 64)),
            (true, 0)
        );
    }
}
