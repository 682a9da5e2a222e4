//! CPO: GRPO's advantage, changed by the effect of the gold answer in the prompt on the log-probability of
//! the completion.

use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Advantages, Column, Estimate, Grpo, Result, Scale,
};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::setting::Named as _;
use crate::whole_step::WholeStep;
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "cpo",
    family: Family::Advantage,
    formula: "right: A + pos_alpha·u in a group of rights, A + max(pos_alpha·u, -|A|/2) in a mixed one; \
        wrong: A + neg_alpha·k in a group of wrongs, A + min(neg_alpha·k, |A|/2) in a mixed one. seq_kl: k = \
        mean(lg - l), u = mean(H) over the completion. tok_kl: per token, k = clamp(lg - l, -10, 10), u = (H \
        - min H)/(max H - min H) within the completion, and rights by pos_alpha·u unbounded",
    source: "the fork 26hzhang/verl (2025-12), algorithm.adv_estimator=cpo with actor.wrap_method; no paper, \
        and neither of the published algorithms of that abbreviation",
    degenerate: &[
        "unscored members are left out and get 0; a completion without tokens keeps GRPO's advantage",
        "a group of wrongs has a signal although its rewards are uniform: a filter that drops such groups defeats the method",
        "a group of one is all right or all wrong",
    ],
    known_as: &[("26hzhang/verl", "algorithm.adv_estimator=cpo, +algorithm.gold_as_hint=True")],
    differences: &[
        "the fork compares a list with a number, so that it never detects a group as all right or all wrong; \
            the bound |A|/2 then applies to wrong completions, and it is 0 if all are wrong. Here the \
            rewards distinguish groups, as the fork's text describes",
        "the fork changes advantages inside the micro-batch of every epoch, in place, so that a second epoch \
            changes them again; here they are changed once per step",
        "the fork's `tok_kl` falls through to its last branch and applies `naive` as well; here it applies only its own change",
        "the fork's sixteen other values of `wrap_method` do not exist here (`negonly_*`, `mi*`, `*_mi3`, \
            `naive`, `noaccmask`): none of its published scripts names one, the `negonly_*` forms do nothing \
            to wrong completions there, and every unknown word is silently `naive`",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// Unit over which the contrast with the gold answer is taken.
    pub enum CpoWrap {
        /// The completion: the mean over its tokens.
        SeqKl = "seq_kl",
        /// Each token by itself.
        TokKl = "tok_kl",
    }
}

settings! {
    /// GRPO's advantage, changed by the contrast between the policy with and without the gold answer.
    ///
    /// The contrast of a token is `lg - l`: its log-probability given the gold answer less the old one. A
    /// completion is right if its reward is at least `right`. Right completions are raised by `pos_alpha`
    /// times their entropy, wrong ones changed by `neg_alpha` times their contrast. In mixed groups both
    /// changes are bounded by `|A|/2`, so that the sign of A stays.
    ///
    /// Source: the fork 26hzhang/verl; no paper. The catalogue's entry has the formula and the differences.
    ///
    /// Shapes: rewards `[P][G]`, mask, old and gold log-probabilities and (for `pos_alpha` other than 0)
    /// entropy `[B][T]` to advantages `[P][G]`, or `[B][T]` for [`CpoWrap::TokKl`]. Linear in N.
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
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    pub struct Cpo {
        /// Unit over which the contrast with the gold answer is taken.
        wrap: CpoWrap = CpoWrap::SeqKl;
        /// Weight of the entropy by which right completions are raised.
        pos_alpha: f64 = 0.0;
        /// Weight of the contrast by which wrong completions are changed.
        neg_alpha: f64 = 1.0;
        /// Least reward of a right completion (the fork rewards with -1 and 1).
        right: f64 = 1.0;
        /// The prompt for the policy that knows the answer: `{prompt}` is the text, or the user's last
        /// message, and `{gold}` its gold answer. A text that is too long is cut from the left.
        gold_hint: String = "{prompt}\n\nThe right answer is {gold}.\n".to_owned();
        ..grpo: Grpo;
    }
}

/// One completion: its columns \[T\] and the facts from its rewards.
struct Completion<'a> {
    mask: &'a [bool],
    old: &'a [f64],
    gold: &'a [f64],
    /// Only if `pos_alpha` is not 0.
    entropy: Option<&'a [f64]>,
    /// GRPO's.
    advantage: f64,
    is_right: bool,
    /// Whether its group has right and wrong completions.
    is_mixed: bool,
}

impl Completion<'_> {
    /// Mean over unmasked tokens; 0 without any.
    fn mean(&self, value: impl Fn(usize) -> f64) -> f64 {
        let (mut sum, mut count) = (0.0, 0_usize);
        for t in (0..self.mask.len()).filter(|&t| self.mask[t]) {
            sum += value(t);
            count += 1;
        }
        if count == 0 { 0.0 } else { sum / count as f64 }
    }

    /// Least entropy of the unmasked tokens, and the width of their range.
    fn entropy_range(&self) -> (f64, f64) {
        let Some(entropy_t) = self.entropy else { return (0.0, 0.0) };
        let unmasked = entropy_t.iter().zip(self.mask).filter(|&(_, &on)| on).map(|(&entropy, _)| entropy);
        let (min, max) = unmasked.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), entropy| {
            (min.min(entropy), max.max(entropy))
        });
        (min, max - min)
    }
}

impl Cpo {
    fn reads_entropy(&self) -> bool {
        self.pos_alpha != 0.0
    }

    fn of_sequence(&self, completion: &Completion<'_>) -> f64 {
        let Completion { advantage, is_mixed, old, gold, .. } = *completion;
        let bound = if is_mixed { advantage.abs() / 2.0 } else { f64::INFINITY };
        let shift = if completion.is_right {
            let entropy = completion.entropy.map_or(0.0, |entropy_t| completion.mean(|t| entropy_t[t]));
            (self.pos_alpha * entropy).max(-bound)
        } else {
            (self.neg_alpha * completion.mean(|t| gold[t] - old[t])).min(bound)
        };
        advantage + shift
    }

    /// The advantage of each token of a completion; 0 if it is masked.
    fn of_tokens<'a>(&'a self, completion: &'a Completion<'a>) -> impl Iterator<Item = f64> + 'a {
        let Completion { advantage, is_mixed, old, gold, .. } = *completion;
        let bound = if is_mixed { advantage.abs() / 2.0 } else { f64::INFINITY };
        let (least, width) = completion.entropy_range();
        completion.mask.iter().enumerate().map(move |(t, &on)| {
            let shift = if completion.is_right {
                let scaled =
                    completion.entropy.map_or(0.0, |entropy_t| (entropy_t[t] - least) / (width + 1e-8));
                self.pos_alpha * scaled
            } else {
                (self.neg_alpha * (gold[t] - old[t]).clamp(-10.0, 10.0)).min(bound)
            };
            if on { advantage + shift } else { 0.0 }
        })
    }
}

impl AdvantageEstimator for Cpo {
    fn whole_step(&self) -> Option<WholeStep> {
        self.grpo.whole_step()
    }

    fn divisor(&self) -> Option<Scale> {
        self.grpo.divisor()
    }

    fn gold_hint(&self) -> Option<&str> {
        Some(&self.gold_hint)
    }

    fn needs(&self) -> &'static [Column] {
        if self.reads_entropy() {
            &[Column::Mask, Column::OldLogprobs, Column::GoldLogprobs, Column::Entropy]
        } else {
            &[Column::Mask, Column::OldLogprobs, Column::GoldLogprobs]
        }
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mask = batch.mask(self.name())?;
        let old = batch.tokens(Column::OldLogprobs, self.name())?;
        let gold = batch.tokens(Column::GoldLogprobs, self.name())?;
        let entropy =
            if self.reads_entropy() { Some(batch.tokens(Column::Entropy, self.name())?) } else { None };
        let mut advantages = self.grpo.of_batch(batch);
        let mut per_token = Ragged::default();
        let mut i = 0;
        for (group, rewards_g) in batch.rewards.rows().enumerate() {
            let is_right = |reward: &f64| *reward >= self.right;
            let mut scored = rewards_g.iter().filter(|reward| !reward.is_nan());
            let is_mixed = scored.clone().any(is_right) && !scored.all(is_right);
            for (advantage, reward) in advantages.row_mut(group).iter_mut().zip(rewards_g) {
                let completion = Completion {
                    mask: mask.row(i),
                    old: old.row(i),
                    gold: gold.row(i),
                    entropy: entropy.map(|entropy| entropy.row(i)),
                    advantage: *advantage,
                    is_right: is_right(reward),
                    is_mixed,
                };
                i += 1;
                match self.wrap {
                    CpoWrap::SeqKl if reward.is_nan() => {}
                    CpoWrap::SeqKl => *advantage = self.of_sequence(&completion),
                    CpoWrap::TokKl if reward.is_nan() => {
                        per_token.push_row(std::iter::repeat_n(0.0, completion.mask.len()));
                    }
                    CpoWrap::TokKl => per_token.push_row(self.of_tokens(&completion)),
                }
            }
        }
        let advantages = match self.wrap {
            CpoWrap::SeqKl => Advantages::PerTrajectory(advantages),
            CpoWrap::TokKl => Advantages::PerToken(per_token),
        };
        Ok(Estimate { advantages, returns: None, state: state.clone() })
    }
}
