//! How the trained distribution differs from that of the data, as far as the histories show.

use super::{InclusionWeights, Posterior, PromptSelector, effective_share};
use crate::group::{PolicyVersion, PromptId};

const HARD_BELOW: f64 = 0.2;

const EASY_ABOVE: f64 = 0.8;

/// Shares of hard and of easy prompts in a weighted set of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sides {
    hard: f64,
    easy: f64,
    all: f64,
}

impl Sides {
    fn add(&mut self, rate: f64, weight: f64) {
        self.all += weight;
        self.hard += if rate < HARD_BELOW { weight } else { 0.0 };
        self.easy += if rate > EASY_ABOVE { weight } else { 0.0 };
    }

    fn pairs(self, [hard, easy]: [&'static str; 2]) -> impl Iterator<Item = (&'static str, f64)> {
        let shares = [(hard, self.hard / self.all), (easy, self.easy / self.all)];
        shares.into_iter().filter(move |_| self.all > 0.0)
    }
}

/// Facts about the selection of a step, by name as logged. Unknown facts are left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SelectionReport {
    named: Vec<(&'static str, f64)>,
}

impl SelectionReport {
    /// Names as logged.
    pub fn to_pairs(&self) -> &[(&'static str, f64)] {
        &self.named
    }
}

impl PromptSelector {
    /// Report on a step that trained groups of these prompts at this version, each with the probability with
    /// which its prompt was taken.
    ///
    /// A prompt's pass rate is the mean of its posterior, the present step's groups included.
    /// `selector/..._share` is over the trained groups, and `_share_weighted` over the same weighted by 1/q.
    /// `_share_data` is over all prompts with a history, and `_share_blind` over these weighted by the
    /// probability that their next group is mixed: the distribution that would be trained on without
    /// selection.
    pub fn report(&mut self, trained: &[(PromptId, f64)], version: PolicyVersion) -> SelectionReport {
        let (num_considered, num_skipped) = self.take_counts();
        let mut named = Vec::new();
        if num_considered > 0 {
            named.push(("selector/skipped_share", num_skipped as f64 / num_considered as f64));
        }
        if self.settings().correction() == InclusionWeights::Off {
            return SelectionReport { named };
        }
        let weights: Vec<f64> = trained.iter().map(|(_, inclusion)| 1.0 / inclusion).collect();
        named.extend(effective_share(&weights).map(|share| ("selector/effective_share", share)));
        if !trained.is_empty() {
            let sum: f64 = trained.iter().map(|(_, inclusion)| inclusion).sum();
            named.push(("selector/inclusion/mean", sum / trained.len() as f64));
        }
        let (memory, state) = (self.memory(), self.state());
        let parameters = |prompt| state.prior.after(state.histories.get(prompt), version, memory);
        let [mut plain, mut weighted, mut data, mut blind] = [Sides::default(); 4];
        for ((prompt, _), weight) in trained.iter().zip(weights) {
            let rate = parameters(*prompt).mean();
            plain.add(rate, 1.0);
            weighted.add(rate, weight);
        }
        for (prompt, _) in state.histories.iter() {
            let rates = parameters(prompt);
            data.add(rates.mean(), 1.0);
            blind.add(rates.mean(), Posterior::mixed(rates.a, rates.b, self.group_size()));
        }
        named.extend(plain.pairs(["selector/hard_share", "selector/easy_share"]));
        named.extend(weighted.pairs(["selector/hard_share_weighted", "selector/easy_share_weighted"]));
        named.extend(data.pairs(["selector/hard_share_data", "selector/easy_share_data"]));
        named.extend(blind.pairs(["selector/hard_share_blind", "selector/easy_share_blind"]));
        named.push(("selector/pass_rate/mean", state.prior.parameters().mean()));
        SelectionReport { named }
    }
}
