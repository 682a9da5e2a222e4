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
    formula: "k = mean(lg - l), u = mean(H) over the completion; right: A + pos_alpha·u in a group of rights, else A + max(pos_alpha·u, -|A|/2); wrong: A + neg_alpha·k in a group of wrongs, else A + min(neg_alpha·k, |A|/2); per token, with m = exp(lg)·(lg - l), v = H scaled to [0, 1] in the completion and M = m·v where m >= 0, else m·(1 - v): right A + pos_alpha·v and wrong A + neg_alpha·x, where x is for tok_kl clamp(lg - l, ±10), bounded as above, for mi2 m, mi3 M, reverse_mi3 -M, addition_mi3 max(M, 0), and for the negonly forms the same in groups of wrongs alone; mi: A + alpha·M, pos_alpha where m >= 0, else neg_alpha; mi_accmask: right A + pos_alpha·m·(1 + v) where m >= 0, wrong A + neg_alpha·m·(2 - v) where m < 0; mi_unify: A + alpha·m·(1 - v), pos_alpha for rights, neg_alpha for wrongs; mi_clamp_unify: with min(m, 10); mi_clamp_unify_difficulty: pos_alpha in uniform groups, neg_alpha in mixed ones; naive: A + pos_alpha·H where exp(lg - l) >= ratio_bound and exp(lg) > 0.1, A - neg_alpha·(max H - H) where exp(lg - l) <= 1/ratio_bound and exp(l) > 0.1; naive_signed: the former for rights, the latter for wrongs; mi, mi_accmask, mi_unify, mi_clamp_unify, noaccmask (naive) and naive_signed keep the sign of a right at least 0, of a wrong at most 0",
    source: "the fork 26hzhang/verl (2025-12), algorithm.adv_estimator=cpo with actor.wrap_method; no paper, and neither of the published algorithms of that abbreviation",
    defaults: &[
        ("objective.advantage.wrap", "seq_kl"),
        ("objective.advantage.difficulty", "repaired"),
        ("objective.advantage.pos_alpha", "0"),
        ("objective.advantage.neg_alpha", "1"),
        ("objective.advantage.right", "1"),
        ("objective.advantage.ratio_bound", "2"),
        ("objective.advantage.gold_hint", "\"{prompt}\\n\\nThe right answer is {gold}.\\n\""),
        ("objective.advantage.norm_by_std", "true"),
        ("objective.advantage.ddof", "1"),
        ("objective.advantage.epsilon", "1e-6"),
        ("objective.advantage.scale", "group"),
        ("objective.advantage.singleton", "zero"),
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
        "the fork's `tok_kl` falls through to its last branch and is moved by `naive` (`naive_signed` for Qwen3) as well; here it is itself alone",
        "every other word of `wrap_method` is `naive` there, `naive_signed` where the model is a Qwen3; here both are asked for by name",
        "a wrong completion is one below `right` throughout; the fork's signed forms and `mi_accmask`, `mi_unify`, `mi_clamp_unify` take a reward of exactly -1",
        "the largest entropy in the naive forms is that of the completion; the fork's is over its padding too",
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
    /// Per token: wrongs as [`CpoWrap::SeqKl`] with `clamp(lg - l, ±10)` for k, rights always by `pos_alpha·v`, v the entropy scaled to `[0, 1]` within
    /// the completion.
    TokKl,
    /// As [`CpoWrap::NegonlySeqKl`] per token, with `clamp(lg - l, ±10)` for k and the scaled entropy for rights.
    NegonlyTokKl,
    /// Per token, m: rights by `pos_alpha·v`, wrongs by `neg_alpha·m`.
    Mi2,
    /// As [`CpoWrap::Mi2`], wrongs in groups of wrongs alone.
    NegonlyMi,
    /// As [`CpoWrap::Mi2`], wrongs by `neg_alpha·m·v` where m is not negative, else by `neg_alpha·m·(1 - v)`.
    Mi3,
    /// As [`CpoWrap::Mi3`], wrongs in groups of wrongs alone.
    NegonlyMi3,
    /// As [`CpoWrap::Mi3`], wrongs the other way.
    ReverseMi3,
    /// As [`CpoWrap::Mi3`], wrongs only where m is not negative.
    AdditionMi3,
    /// Rights and wrongs alike: by `pos_alpha·m·v` where m is not negative, else by `neg_alpha·m·(1 - v)`. No advantage changes its sign.
    Mi,
    /// Rights by `pos_alpha·m·(1 + v)` where m is not negative, wrongs by `neg_alpha·m·(2 - v)` where it is. No advantage changes its sign.
    MiAccmask,
    /// Rights by `pos_alpha·m·(1 - v)`, wrongs by `neg_alpha·m·(1 - v)`. No advantage changes its sign.
    MiUnify,
    /// As [`CpoWrap::MiUnify`] with m at most 10.
    MiClampUnify,
    /// By `pos_alpha·min(m, 10)·(1 - v)` in groups of rights and of wrongs, by `neg_alpha·min(m, 10)·(1 - v)` in mixed ones.
    MiClampUnifyDifficulty,
    /// Rights and wrongs alike: by `pos_alpha·H` where the ratio is at least the bound and `exp(lg)` above 0.1, by `-neg_alpha·(max H - H)` where it is
    /// at most 1 over the bound and `exp(l)` above 0.1.
    Naive,
    /// As [`CpoWrap::Naive`]; no advantage changes its sign.
    Noaccmask,
    /// As [`CpoWrap::Noaccmask`], the former for rights and the latter for wrongs alone.
    NaiveSigned,
}

impl CpoWrap {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::SeqKl,
        Self::NegonlySeqKl,
        Self::TokKl,
        Self::NegonlyTokKl,
        Self::Mi2,
        Self::NegonlyMi,
        Self::Mi3,
        Self::NegonlyMi3,
        Self::ReverseMi3,
        Self::AdditionMi3,
        Self::Mi,
        Self::MiAccmask,
        Self::MiUnify,
        Self::MiClampUnify,
        Self::MiClampUnifyDifficulty,
        Self::Naive,
        Self::Noaccmask,
        Self::NaiveSigned,
    ];

    /// Whether a right completion keeps an advantage of at least 0 and a wrong one of at most 0.
    fn keeps_sign(self) -> bool {
        matches!(
            self,
            Self::Mi
                | Self::MiAccmask
                | Self::MiUnify
                | Self::MiClampUnify
                | Self::Noaccmask
                | Self::NaiveSigned
        )
    }

    fn is_per_token(self) -> bool {
        !matches!(self, Self::SeqKl | Self::NegonlySeqKl)
    }
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
    /// Ratio from which a token counts, and 1 over which, in the naive forms; at least 1 (the fork's `cpo_lambda`).
    pub ratio_bound: f64,
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
            ratio_bound: 2.0,
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

    /// What is added to the advantage of a completion with contrast k and mean entropy u.
    fn sequence_shift(&self, advantage: f64, is_right: bool, group: Difficulty, k: f64, u: f64) -> f64 {
        let bound = advantage.abs() / 2.0;
        match (self.wrap, is_right) {
            (CpoWrap::NegonlySeqKl, true) => self.pos_alpha * k,
            (CpoWrap::NegonlySeqKl, false) => self.among_wrongs(group, k),
            (_, true) if group == Difficulty::AllRight => self.pos_alpha * u,
            (_, true) => (self.pos_alpha * u).max(-bound),
            (_, false) => self.bounded_among_others(group, k, bound),
        }
    }

    /// Of a wrong completion: in a group of wrongs alone.
    fn among_wrongs(&self, group: Difficulty, k: f64) -> f64 {
        if group == Difficulty::AllWrong { self.neg_alpha * k } else { 0.0 }
    }

    /// Of a wrong completion: whole in a group of wrongs, bounded from above in others.
    fn bounded_among_others(&self, group: Difficulty, k: f64, bound: f64) -> f64 {
        let shift = self.neg_alpha * k;
        if group == Difficulty::AllWrong { shift } else { shift.min(bound) }
    }

    /// What is added to the advantage of one token.
    fn token_shift(&self, advantage: f64, is_right: bool, group: Difficulty, token: Token) -> f64 {
        let Token { old, gold, entropy, largest_entropy, scaled: v } = token;
        let m = gold.exp() * (gold - old);
        let by_sign = if m >= 0.0 { m * v } else { m * (1.0 - v) };
        match self.wrap {
            CpoWrap::Naive | CpoWrap::Noaccmask | CpoWrap::NaiveSigned => {
                let ratio = (gold - old).exp();
                let of_both = self.wrap != CpoWrap::NaiveSigned;
                let raises = ratio >= self.ratio_bound && gold.exp() > 0.1 && (of_both || is_right);
                let lowers = ratio <= 1.0 / self.ratio_bound && old.exp() > 0.1 && (of_both || !is_right);
                f64::from(raises) * self.pos_alpha * entropy
                    - f64::from(lowers) * self.neg_alpha * (largest_entropy - entropy)
            }
            CpoWrap::Mi => by_sign * if m >= 0.0 { self.pos_alpha } else { self.neg_alpha },
            CpoWrap::MiAccmask => match (is_right, m >= 0.0) {
                (true, true) => self.pos_alpha * m * (1.0 + v),
                (false, false) => self.neg_alpha * m * (2.0 - v),
                _ => 0.0,
            },
            CpoWrap::MiUnify => self.alpha(is_right) * m * (1.0 - v),
            CpoWrap::MiClampUnify => self.alpha(is_right) * m.min(10.0) * (1.0 - v),
            CpoWrap::MiClampUnifyDifficulty => {
                self.alpha(group != Difficulty::Mixed) * m.min(10.0) * (1.0 - v)
            }
            // The others raise rights by their scaled entropy.
            _ if is_right => self.pos_alpha * v,
            CpoWrap::NegonlyTokKl => self.among_wrongs(group, (gold - old).clamp(-10.0, 10.0)),
            CpoWrap::Mi2 => self.neg_alpha * m,
            CpoWrap::NegonlyMi => self.among_wrongs(group, m),
            CpoWrap::Mi3 => self.neg_alpha * by_sign,
            CpoWrap::NegonlyMi3 => self.among_wrongs(group, by_sign),
            CpoWrap::ReverseMi3 => -self.neg_alpha * by_sign,
            CpoWrap::AdditionMi3 => self.neg_alpha * by_sign.max(0.0),
            CpoWrap::TokKl | CpoWrap::SeqKl | CpoWrap::NegonlySeqKl => {
                let k = (gold - old).clamp(-10.0, 10.0);
                self.bounded_among_others(group, k, advantage.abs() / 2.0)
            }
        }
    }

    fn alpha(&self, is_positive: bool) -> f64 {
        if is_positive { self.pos_alpha } else { self.neg_alpha }
    }

    fn reads_entropy(&self) -> bool {
        match self.wrap {
            CpoWrap::NegonlySeqKl => false,
            CpoWrap::SeqKl | CpoWrap::TokKl | CpoWrap::NegonlyTokKl | CpoWrap::Mi2 | CpoWrap::NegonlyMi => {
                self.pos_alpha != 0.0
            }
            _ => self.pos_alpha != 0.0 || self.neg_alpha != 0.0,
        }
    }
}

/// One token of a completion.
#[derive(Debug, Clone, Copy)]
struct Token {
    old: f64,
    gold: f64,
    entropy: f64,
    /// The largest of the completion.
    largest_entropy: f64,
    /// The entropy scaled to `[0, 1]` within the completion.
    scaled: f64,
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
        let bound = self.ratio_bound;
        in_range("ratio_bound", bound, bound.is_finite() && bound >= 1.0, "a finite number of at least 1")?;
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
                if self.wrap.is_per_token() {
                    let (least, width) = completion.entropy_range();
                    per_token.push_row(completion.mask.iter().enumerate().map(|(t, &on)| {
                        if !on || reward.is_nan() {
                            return 0.0;
                        }
                        let entropy = completion.entropy.map_or(0.0, |entropy_t| entropy_t[t]);
                        let has_entropy = completion.entropy.is_some();
                        let token = Token {
                            old: completion.old[t],
                            gold: completion.gold[t],
                            entropy,
                            largest_entropy: if has_entropy { least + width } else { 0.0 },
                            scaled: if has_entropy { (entropy - least) / (width + 1e-8) } else { 0.0 },
                        };
                        let moved = *advantage + self.token_shift(*advantage, is_right, difficulty, token);
                        match (self.wrap.keeps_sign(), is_right) {
                            (false, _) => moved,
                            (true, true) => moved.max(0.0),
                            (true, false) => moved.min(0.0),
                        }
                    }));
                } else if !reward.is_nan() {
                    let (k, u) = (completion.contrast(), completion.uncertainty());
                    *advantage += self.sequence_shift(*advantage, is_right, difficulty, k, u);
                }
            }
        }
        let advantages = if self.wrap.is_per_token() {
            Advantages::PerToken(per_token)
        } else {
            Advantages::PerTrajectory(advantages)
        };
        Ok(Estimate { advantages, returns: None, state: state.clone() })
    }
}
