//! Scores texts that are no answer beside gold answers, to find functions that ignore the answer.

use std::collections::BTreeMap;
use std::fmt;

use tamis_core::figure::counted;
use tamis_core::random::{Key, Purpose};

use super::{Check, format_score, mean};
use crate::reward::error::RewardError;

/// Prompts on which a gold answer is compared with what is no answer.
pub(super) const NUM_RIVALS: usize = 100;

/// The same for functions from outside, whose calls may take long.
pub(super) const NUM_RIVALS_OUTSIDE: usize = 48;

/// Prompts that it takes to tell: fewer that score alike may be those that a right function misses.
const ENOUGH: usize = 10;

/// Description of the answers of other prompts.
pub(super) const ANOTHER: &str = "the gold answer of another prompt";

/// A completion that is no answer, and whose score is not below that of the gold answer, or not by more than
/// chance explains; or one that was tried on too few prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rival {
    /// Description of the text.
    pub what: &'static str,
    /// Prompts on which the two were compared.
    pub num_prompts: usize,
    /// Those of them on which the scores differ.
    pub num_different: usize,
    /// Mean score of the text over the prompts; NaN without prompts.
    pub score: f64,
    /// The gold answers' mean score on them; NaN without prompts.
    pub gold: f64,
    /// Whether enough prompts prove it: a right function that sometimes misses its gold answer has no better
    /// score on a few prompts.
    pub is_proven: bool,
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, num_prompts, num_different, score, gold, is_proven } = *self;
        if num_prompts == 0 {
            return write!(
                f,
                "too few prompts to tell gold answers from {what}: all have the same ground truth"
            );
        }
        let (is_less, score, gold) = (score < gold, format_score(score), format_score(gold));
        let what = if is_proven {
            format!("no better than {what}")
        } else {
            format!("too few prompts to tell gold answers from {what}")
        };
        write!(
            f,
            "{what}: that scores {score}, the gold answer {gold} (means of {}",
            counted(num_prompts, "prompt")
        )?;
        if !is_proven {
            write!(f, ", {num_different} of them with different scores")?;
        } else if is_less && score != gold {
            write!(f, ", which differ by less than two standard errors")?;
        }
        write!(f, ")")
    }
}

impl Check<'_> {
    /// Scores what is no answer beside gold answers that have a score, on a sample of the prompts that is the
    /// same in every run. `gold` gives the form of a row's gold answer and its score; other texts get the
    /// same form. Of functions from outside it is one form for all rows: the best form of each row would be
    /// better than another row's one form by luck alone.
    pub(super) fn rivals(
        &self,
        asked: &[usize],
        gold: impl Fn(usize) -> Option<(usize, f64)>,
        is_external: bool,
    ) -> Result<Vec<Rival>, RewardError> {
        // Rows, the form of each, and what its gold answer scores.
        let golds: Vec<(usize, usize, f64)> = Key::new(0, Purpose::Bootstrap)
            .permutation(asked.len())
            .into_iter()
            .filter_map(|place| {
                let row = asked[place];
                let (form, score) = gold(row)?;
                Some((row, form, score))
            })
            .take(if is_external { NUM_RIVALS_OUTSIDE } else { NUM_RIVALS })
            .collect();
        let is_scored = !golds.is_empty();
        let empty: Vec<(usize, &str, f64)> = golds.iter().map(|&(row, _, gold)| (row, "", gold)).collect();
        let others: Vec<(usize, &str, f64)> = self
            .exchange(&golds)
            .into_iter()
            .filter_map(|((row, form, gold), other)| {
                Some((row, self.candidates[other].get(form)?.as_str(), gold))
            })
            .collect();
        let mut rivals = Vec::new();
        for (what, rows) in [("an empty completion", empty), (ANOTHER, others)] {
            let pairs: Vec<(usize, &str)> =
                rows.iter().map(|&(row, completion, _)| (row, completion)).collect();
            let answers = self.ask(&pairs)?;
            let both = rows
                .iter()
                .zip(&answers)
                .filter_map(|(&(_, _, gold), answer)| Some((gold, answer.get("score")?)));
            let (golds, scores): (Vec<f64>, Vec<f64>) = both.unzip();
            let (score, gold, num_prompts) = (mean(&scores), mean(&golds), scores.len());
            let rounding = 1e-9 * gold.abs().max(score.abs());
            let num_different =
                golds.iter().zip(&scores).filter(|(gold, score)| (*gold - *score).abs() > rounding).count();
            // A verifier gives the same answer every time; an external function's answer may be chance.
            let luck = if is_external { 2.0 * standard_error(&golds, &scores) } else { 0.0 };
            // If gold is ahead, only the prompts with different scores show whether it is by chance.
            let telling = if gold - score <= rounding { num_prompts } else { num_different };
            let rival = Rival { what, num_prompts, num_different, score, gold, is_proven: telling >= ENOUGH };
            if gold - score <= luck.max(rounding) || (is_external && rows.is_empty() && is_scored) {
                rivals.push(rival);
            }
        }
        Ok(rivals)
    }

    /// Rows, each with another row whose answer it gets. They are the same rows in another order, so a
    /// function that reads only the completion has the same mean on both, and each answer belongs to another
    /// ground truth.
    fn exchange(&self, golds: &[(usize, usize, f64)]) -> Vec<((usize, usize, f64), usize)> {
        let mut by_truth: BTreeMap<Option<&str>, Vec<(usize, usize, f64)>> = BTreeMap::new();
        for &gold in golds {
            by_truth.entry(self.prompts[gold.0].ground_truth.as_deref()).or_default().push(gold);
        }
        let largest = by_truth.values().map(Vec::len).max().unwrap_or(0);
        // If more than half of the rows have one truth, only as many of them are used as there are others.
        let most = largest.min(golds.len() - largest);
        for rows in by_truth.values_mut() {
            rows.truncate(most);
        }
        let rows: Vec<(usize, usize, f64)> = by_truth.into_values().flatten().collect();
        let others = rows.iter().cycle().skip(most).map(|&(row, ..)| row);
        rows.iter().copied().zip(others).collect()
    }
}

/// The form with the best mean, among those that were scored at least half as often as the one that was
/// scored most often.
pub(super) fn best_form(scores: &[Vec<f64>]) -> usize {
    let most = scores.iter().map(Vec::len).max().unwrap_or(0);
    let mut best: Option<(f64, usize)> = None;
    for (form, scores) in scores.iter().enumerate().filter(|(_, scores)| scores.len() * 2 >= most.max(1)) {
        let mean = mean(scores);
        if best.is_none_or(|(before, _)| mean > before) {
            best = Some((mean, form));
        }
    }
    best.map_or(0, |(_, form)| form)
}

/// The standard error of the mean of paired differences; 0 of fewer than two.
fn standard_error(some: &[f64], others: &[f64]) -> f64 {
    let differences: Vec<f64> = some.iter().zip(others).map(|(one, other)| one - other).collect();
    if differences.len() < 2 {
        return 0.0;
    }
    let (center, count) = (mean(&differences), differences.len() as f64);
    let squares: f64 = differences.iter().map(|difference| (difference - center).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}
