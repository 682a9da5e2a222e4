//! CPO: GRPO's advantage moved by what the gold answer, shown to the policy, does to the log-probability of what it wrote.

use serde::{Deserialize, Serialize};

use super::error::in_range;
use super::{
    AdvantageBatch, AdvantageError, AdvantageEstimator, AdvantageState, Advantages, Column, Estimate, Grpo,
};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "cpo",
    family: Family::Advantage,
    meaning: "GRPO's advantage moved by how much the gold answer in the prompt raises or lowers the log-probability of the completion",
    formula: "k = mean(lg - l), u = mean(H) over the completion; right: A + pos_alpha·u in a group of rights, else A + max(pos_alpha·u, -|A|/2); wrong: A + neg_alpha·k in a group of wrongs, else A + min(neg_alpha·k, |A|/2)",
    source: "the fork 26hzhang/verl (2025-12), algorithm.adv_estimator=cpo with actor.wrap_method; no paper, and neither of the published algorithms of that abbreviation",
    defaults: &[
        ("wrap", "seq_kl"),
        ("difficulty", "repaired"),
        ("pos_alpha", "0"),
        ("neg_alpha", "1"),
        ("right", "1"),
        ("grpo", "the defaults of grpo"),
    ],
    degenerate: &[
        "unscored members are outside and get 0; a completion without tokens is moved by nothing",
        "a group of wrongs has signal here although its rewards are uniform: a filter that drops it drops what the method is for",
        "a group of one is all right or all wrong",
    ],
    known_as: &[("26hzhang/verl", "algorithm.adv_estimator=cpo, +algorithm.gold_as_hint=True")],
    differences: &[
        "the fork compares a list with a number, so that no group is ever found all right or all wrong (`difficulty: fork`): wrong completions then fall under the bound |A|/2, which is 0 where all are wrong, and the `negonly` forms leave them alone",
        "the fork moves advantages inside the micro-batch of every epoch, in place, so that a second epoch moves them again; here they are moved once per step",
        "its wrappers `mi*`, `naive` and `addition_mi3` are not here",
    ],
};

/// How the contrast enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpoWrap {
    /// One number per completion, bounded in mixed groups so that the sign of A stays.
    #[default]
    SeqKl,
    /// One number per completion: rights always by `pos_alpha·k`, wrongs by `neg_alpha·k` in groups of wrongs alone.
    NegonlySeqKl,
    /// As [`CpoWrap::SeqKl`] per token, with `clamp(lg - l, ±10)` for k and the entropy scaled to `[0, 1]` within the completion for u.
    TokKl,
    /// As [`CpoWrap::NegonlySeqKl`] per token, with `clamp(lg - l, ±10)` for k and the scaled entropy for rights.
    NegonlyTokKl,
}

/// Whether groups of rights and of wrongs are told from mixed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpoDifficulty {
    /// By the rewards of the scored members.
    #[default]
    Repaired,
    /// Never: every group counts as mixed (the fork).
    Fork,
}

/// GRPO's advantage moved by the contrast between the policy with and without the gold answer.
///
/// `k = (1/T)·Σ_t (lg_t - l_t)` over unmasked tokens, `lg` the log-probability given the gold answer, `l` the old one; `u` the mean entropy. A
/// completion is right where its reward is at least `right`. With [`CpoWrap::SeqKl`]:
/// right in a group of rights `A + pos_alpha·u`, right elsewhere `A + max(pos_alpha·u, -|A|/2)`; wrong in a group of wrongs `A + neg_alpha·k`,
/// wrong elsewhere `A + min(neg_alpha·k, |A|/2)`.
///
/// Source: the fork 26hzhang/verl; no paper. [`CpoDifficulty::Fork`] is what it computes, the default what its text describes.
///
/// Shapes: rewards `[P][G]`, mask, old and gold log-probabilities and (for `pos_alpha` other than 0) entropy `[B][T]` to advantages `[P][G]`, or
/// `[B][T]` for the token forms. Linear in N. Degenerate cases: see the catalogue's entry.
///
/// ```
/// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Cpo};
/// use tamis_core::ragged::Ragged;
/// let rewards = Ragged::from_rows([[-1.0, -1.0]]);
/// let mask = Ragged::from_rows([vec![true, true], vec![true, true]]);
/// let old = Ragged::from_rows([vec![-1.0, -1.0], vec![-1.0, -1.0]]);
/// let gold = Ragged::from_rows([vec![-2.0, -3.0], vec![-1.0, -0.5]]);
/// let batch = AdvantageBatch {
///     mask: Some(&mask),
///     old_logprobs: Some(&old),
///     gold_logprobs: Some(&gold),
///     ..AdvantageBatch::of_rewards(&rewards)
/// };
/// assert_eq!(Cpo::default().advantages(&batch)?.values(), [-1.5, 0.25]);
/// // The fork takes no group for all wrong: only what lowers comes through.
/// assert_eq!(Cpo::fork().advantages(&batch)?.values(), [-1.5, 0.0]);
/// # Ok::<(), tamis_core::advantage::AdvantageError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cpo {
    /// How the contrast enters.
    pub wrap: CpoWrap,
    /// How groups of rights and of wrongs are found.
    pub difficulty: CpoDifficulty,
    /// Factor for right completions.
    pub pos_alpha: f64,
    /// Factor for wrong completions.
    pub neg_alpha: f64,
    /// The least reward of a right completion (the fork rewards with -1 and 1).
    pub right: f64,
    /// The advantage that is moved.
    pub grpo: Grpo,
}

impl Default for Cpo {
    fn default() -> Self {
        Self {
            wrap: CpoWrap::SeqKl,
            difficulty: CpoDifficulty::Repaired,
            pos_alpha: 0.0,
            neg_alpha: 1.0,
            right: 1.0,
            grpo: Grpo::default(),
        }
    }
}

/// The group that a completion is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difficulty {
    AllRight,
    AllWrong,
    Mixed,
}

impl Cpo {
    /// What the fork computes, its mask broken as it is there.
    pub fn fork() -> Self {
        Self { difficulty: CpoDifficulty::Fork, grpo: Grpo::verl(), ..Self::default() }
    }

    fn difficulty(&self, rewards_g: &[f64]) -> Difficulty {
        let mut scored = rewards_g.iter().filter(|reward| !reward.is_nan()).peekable();
        if self.difficulty == CpoDifficulty::Fork || scored.peek().is_none() {
            return Difficulty::Mixed;
        }
        let rights = scored.clone().filter(|&&reward| reward >= self.right).count();
        match rights {
            0 => Difficulty::AllWrong,
            _ if rights == scored.count() => Difficulty::AllRight,
            _ => Difficulty::Mixed,
        }
    }

    /// What is added to the advantage for a contrast k and an uncertainty u.
    fn shift(&self, advantage: f64, is_right: bool, group: Difficulty, k: f64, u: f64) -> f64 {
        let bound = advantage.abs() / 2.0;
        match (self.wrap, is_right) {
            (CpoWrap::SeqKl | CpoWrap::TokKl, true) => {
                let shift = self.pos_alpha * u;
                if group == Difficulty::AllRight { shift } else { shift.max(-bound) }
            }
            (CpoWrap::SeqKl | CpoWrap::TokKl, false) => {
                let shift = self.neg_alpha * k;
                if group == Difficulty::AllWrong { shift } else { shift.min(bound) }
            }
            (CpoWrap::NegonlySeqKl, true) => self.pos_alpha * k,
            (CpoWrap::NegonlyTokKl, true) => self.pos_alpha * u,
            (CpoWrap::NegonlySeqKl | CpoWrap::NegonlyTokKl, false) => {
                if group == Difficulty::AllWrong {
                    self.neg_alpha * k
                } else {
                    0.0
                }
            }
        }
    }

    fn is_per_token(&self) -> bool {
        matches!(self.wrap, CpoWrap::TokKl | CpoWrap::NegonlyTokKl)
    }

    fn reads_entropy(&self) -> bool {
        self.pos_alpha != 0.0 && self.wrap != CpoWrap::NegonlySeqKl
    }
}

/// One completion's columns \[T\].
struct Completion<'a> {
    mask: &'a [bool],
    old: &'a [f64],
    gold: &'a [f64],
    entropy: Option<&'a [f64]>,
}

impl Completion<'_> {
    fn mean(&self, value: impl Fn(usize) -> f64) -> f64 {
        let (mut sum, mut count) = (0.0, 0_usize);
        for t in (0..self.mask.len()).filter(|&t| self.mask[t]) {
            sum += value(t);
            count += 1;
        }
        if count == 0 { 0.0 } else { sum / count as f64 }
    }

    fn contrast(&self) -> f64 {
        self.mean(|t| self.gold[t] - self.old[t])
    }

    fn uncertainty(&self) -> f64 {
        self.entropy.map_or(0.0, |entropy_t| self.mean(|t| entropy_t[t]))
    }

    /// Least entropy and the width of its range.
    fn entropy_range(&self) -> (f64, f64) {
        let Some(entropy_t) = self.entropy else { return (0.0, 0.0) };
        let unmasked = entropy_t.iter().zip(self.mask).filter(|&(_, &on)| on).map(|(&entropy, _)| entropy);
        let (min, max) = unmasked.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), entropy| {
            (min.min(entropy), max.max(entropy))
        });
        (min, max - min)
    }
}

impl AdvantageEstimator for Cpo {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn needs(&self) -> &'static [Column] {
        if self.reads_entropy() {
            &[Column::Mask, Column::OldLogprobs, Column::GoldLogprobs, Column::Entropy]
        } else {
            &[Column::Mask, Column::OldLogprobs, Column::GoldLogprobs]
        }
    }

    fn check(&self) -> Result<(), AdvantageError> {
        for (setting, value) in
            [("pos_alpha", self.pos_alpha), ("neg_alpha", self.neg_alpha), ("right", self.right)]
        {
            in_range(setting, value, value.is_finite(), "a finite number")?;
        }
        self.grpo.check()
    }

    fn compute(
        &self,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate, AdvantageError> {
        let mask = batch.mask(self.name())?;
        let old = batch.tokens(Column::OldLogprobs, self.name())?;
        let gold = batch.tokens(Column::GoldLogprobs, self.name())?;
        let entropy =
            if self.reads_entropy() { Some(batch.tokens(Column::Entropy, self.name())?) } else { None };
        let mut advantages = self.grpo.of(batch.rewards);
        let mut per_token = Ragged::default();
        let mut i = 0;
        for (group, rewards_g) in batch.rewards.rows().enumerate() {
            let difficulty = self.difficulty(rewards_g);
            for (advantage, &reward) in advantages.row_mut(group).iter_mut().zip(rewards_g) {
                let completion = Completion {
                    mask: mask.row(i),
                    old: old.row(i),
                    gold: gold.row(i),
                    entropy: entropy.map(|entropy| entropy.row(i)),
                };
                i += 1;
                let is_right = reward >= self.right;
                if self.is_per_token() {
                    let (least, width) = completion.entropy_range();
                    per_token.push_row(completion.mask.iter().enumerate().map(|(t, &on)| {
                        if !on || reward.is_nan() {
                            return 0.0;
                        }
                        let k = (completion.gold[t] - completion.old[t]).clamp(-10.0, 10.0);
                        let u = completion
                            .entropy
                            .map_or(0.0, |entropy_t| (entropy_t[t] - least) / (width + 1e-8));
                        *advantage + self.shift(*advantage, is_right, difficulty, k, u)
                    }));
                } else if !reward.is_nan() {
                    let (k, u) = (completion.contrast(), completion.uncertainty());
                    *advantage += self.shift(*advantage, is_right, difficulty, k, u);
                }
            }
        }
        let advantages = if self.is_per_token() {
            Advantages::PerToken(per_token)
        } else {
            Advantages::PerTrajectory(advantages)
        };
        Ok(Estimate { advantages, returns: None, state: state.clone() })
    }
}
