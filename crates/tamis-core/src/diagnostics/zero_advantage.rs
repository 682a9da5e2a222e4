//! Share of a batch that has no advantage, and so no policy gradient.

use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

pub(super) const ENTRY: Entry = Entry {
    name: "zero_advantage",
    family: Family::Diagnostic,
    meaning: "Share of tokens, trajectories and groups whose advantage is exactly 0: computed in vain, \
        and still in the loss's denominator.",
    formula: "Σ m_t [A_t = 0] / Σ m_t",
    source: "what a token-mean loss is diluted by; DAPO, arXiv 2503.14476, section 3.2",
    defaults: &[],
    degenerate: &[
        "fully masked trajectories and groups are not counted",
        "shares without tokens are NaN",
        "-0 counts as 0; NaN does not",
    ],
    known_as: &[("TRL", "frac_reward_zero_std, by groups")],
    differences: &["counts exact zeros; TRL tests whether a deviation in floating point is close to 0"],
};

/// Counts of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroAdvantage {
    /// Unmasked tokens.
    pub tokens: usize,
    /// Number of those with advantage 0.
    pub zero_tokens: usize,
    /// Trajectories with an unmasked token.
    pub trajectories: usize,
    /// Number of those with advantage 0.
    pub zero_trajectories: usize,
    /// Groups with an unmasked token.
    pub groups: usize,
    /// Number of those in which every trajectory with an unmasked token has advantage 0.
    pub zero_groups: usize,
}

impl ZeroAdvantage {
    /// From advantages `[P][G]` and the unmasked tokens of each trajectory \[B\]; trajectories without a
    /// count have none.
    ///
    /// ```
    /// use tamis_core::diagnostics::ZeroAdvantage;
    /// use tamis_core::ragged::Ragged;
    /// let advantages = Ragged::from_rows([vec![1.0, -1.0], vec![0.0, 0.0]]);
    /// let found = ZeroAdvantage::of(&advantages, &[10, 20, 30, 40]);
    /// assert_eq!((found.token_share(), found.group_share()), (0.7, 0.5));
    /// ```
    pub fn of(advantages: &Ragged<f64>, tokens: &[usize]) -> Self {
        let mut found = Self::default();
        let mut tokens = tokens.iter();
        for advantages_g in advantages.rows() {
            let (mut trained, mut zero) = (0, 0);
            for (advantage, &tokens) in advantages_g.iter().zip(tokens.by_ref()) {
                if tokens == 0 {
                    continue;
                }
                trained += 1;
                found.tokens += tokens;
                if *advantage == 0.0 {
                    zero += 1;
                    found.zero_tokens += tokens;
                }
            }
            found.trajectories += trained;
            found.zero_trajectories += zero;
            found.groups += usize::from(trained > 0);
            found.zero_groups += usize::from(trained > 0 && zero == trained);
        }
        found
    }

    /// From advantages and mask per token `[B][T]` and the number of trajectories in each group \[P\]. A
    /// trajectory has advantage 0 if all of its unmasked tokens have.
    ///
    /// ```
    /// use tamis_core::diagnostics::ZeroAdvantage;
    /// use tamis_core::ragged::Ragged;
    /// let advantages = Ragged::from_rows([vec![0.5, 0.0], vec![0.0, 3.0]]);
    /// let mask = Ragged::from_rows([vec![true, true], vec![true, false]]);
    /// let found = ZeroAdvantage::of_tokens(&advantages, &mask, &[2]);
    /// assert_eq!((found.tokens, found.zero_tokens, found.zero_trajectories, found.zero_groups), (3, 2, 1, 0));
    /// ```
    pub fn of_tokens(advantages: &Ragged<f64>, mask: &Ragged<bool>, group_sizes: &[usize]) -> Self {
        let mut found = Self::default();
        let mut rows = advantages.rows().zip(mask.rows());
        for &size in group_sizes {
            let (mut trained, mut all_zero) = (0, 0);
            for (advantages_t, mask_t) in rows.by_ref().take(size) {
                let unmasked = || advantages_t.iter().zip(mask_t).filter(|&(_, &on)| on);
                let tokens = unmasked().count();
                let zero = unmasked().filter(|&(&advantage, _)| advantage == 0.0).count();
                found.tokens += tokens;
                found.zero_tokens += zero;
                trained += usize::from(tokens > 0);
                all_zero += usize::from(tokens > 0 && zero == tokens);
            }
            found.trajectories += trained;
            found.zero_trajectories += all_zero;
            found.groups += usize::from(trained > 0);
            found.zero_groups += usize::from(trained > 0 && all_zero == trained);
        }
        found
    }

    /// Share of tokens; NaN without tokens.
    pub fn token_share(&self) -> f64 {
        self.zero_tokens as f64 / self.tokens as f64
    }

    /// Share of groups; NaN without groups.
    pub fn group_share(&self) -> f64 {
        self.zero_groups as f64 / self.groups as f64
    }

    /// Names as logged.
    pub fn to_pairs(&self) -> [(&'static str, f64); 3] {
        [
            ("diagnostics/zero_advantage/tokens", self.token_share()),
            (
                "diagnostics/zero_advantage/trajectories",
                self.zero_trajectories as f64 / self.trajectories as f64,
            ),
            ("diagnostics/zero_advantage/groups", self.group_share()),
        ]
    }
}
