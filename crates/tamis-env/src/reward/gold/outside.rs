//! Gold answers with a function from outside: nobody knows which form of an answer it expects, which score is
//! its full one, and how long a call takes.
//!
//! The form is found on a few prompts, which are asked about in every form. All others are asked about once,
//! in the form that was best for their data source. Of those that were not right then, a few in each block
//! are tried in the other forms, and at the end all of them in the forms that were right for others.

use std::collections::{BTreeMap, BTreeSet};

use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::Prompt;

use super::{Check, Pace, rank};
use crate::reward::error::RewardError;
use crate::reward::function::RewardOutcome;

/// Most gold answers that a function from outside is asked about, if a sample is enough.
pub const SAMPLE: usize = 512;

/// Prompts that are asked about in every form before the forms are compared, if all are of one data source.
const FORM_ROWS: usize = 8;

/// How often as many more are asked about, if nothing told the forms apart.
const FORM_TRIES: usize = 4;

/// Most prompts of one such try.
const MOST_FORM_ROWS: usize = 32;

/// Prompts of a block after that, scored in one call.
const BLOCK: usize = 64;

/// Prompts of a block that are tried in all forms, of those that were not right in the first.
const EXPLORED: usize = 4;

/// The prompts of a sample, in order; the same in every run.
pub(super) fn sample<'p>(prompts: &[&'p Prompt]) -> Vec<&'p Prompt> {
    if prompts.len() <= SAMPLE {
        return prompts.to_vec();
    }
    let places = Key::new(0, Purpose::Bootstrap).permutation(prompts.len());
    let mut chosen: Vec<usize> = places.into_iter().take(SAMPLE).collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|place| prompts[place]).collect()
}

/// About how many completions a function is called for, for so many gold answers in so many forms, and for
/// texts that are no answer.
pub(super) fn estimate(num_rows: usize, num_forms: usize, num_rivals: usize) -> usize {
    num_rows + num_rows.min(FORM_ROWS) * num_forms.saturating_sub(1) + 2 * num_rows.min(num_rivals)
}

/// The answers of a function from outside.
pub(super) struct Outside<'c> {
    check: &'c Check<'c>,
    /// The best answer of each row, and its form.
    pub(super) best: Vec<Option<(usize, RewardOutcome)>>,
    /// Scores by row and form, of everything that was asked.
    pub(super) scores: BTreeMap<(usize, usize), Option<f64>>,
    /// Scores of each form on the rows that were asked about in every form.
    pub(super) of_forms: Vec<Vec<f64>>,
    /// Rows that were right, by their form.
    right: Vec<usize>,
    /// Rows whose best answer has a form, by data source.
    wins: BTreeMap<&'c str, Vec<usize>>,
    names: BTreeSet<String>,
}

/// Whether a right answer may have this outcome. A score alone says nothing.
fn may_be_right(outcome: &RewardOutcome) -> bool {
    match outcome.get("acc") {
        Some(acc) => acc > 0.0,
        None => matches!(outcome, RewardOutcome::Scored(_)),
    }
}

impl<'c> Outside<'c> {
    /// Asks about rows of a check; the names of all numbers that were seen.
    pub(super) fn ask_all(
        check: &'c Check<'c>,
        asked: &[usize],
        pace: &mut Pace<'_>,
    ) -> Result<(Self, BTreeSet<String>), RewardError> {
        let num_forms = check.candidates.iter().map(Vec::len).max().unwrap_or(0);
        let mut outside = Self {
            check,
            best: vec![None; check.prompts.len()],
            scores: BTreeMap::new(),
            of_forms: vec![Vec::new(); num_forms],
            right: vec![0; num_forms],
            wins: BTreeMap::new(),
            names: BTreeSet::new(),
        };
        let in_all_forms = outside.find_form(asked, pace)?;
        let rest: Vec<usize> = asked.iter().copied().filter(|row| !in_all_forms.contains(row)).collect();
        for rows in rest.chunks(BLOCK) {
            let pairs: Vec<(usize, usize)> =
                rows.iter().filter_map(|&row| Some((row, outside.likely_form(row)?))).collect();
            outside.ask(&pairs)?;
            let open = rows.iter().copied().filter(|&row| !outside.is_right(row)).take(EXPLORED);
            let others: Vec<(usize, usize)> = open.flat_map(|row| outside.untried(row)).collect();
            outside.ask(&others)?;
            outside.count(rows);
            pace.advance(rows.len());
        }
        let mut useful: Vec<usize> = (0..num_forms).filter(|&form| outside.right[form] > 0).collect();
        useful.sort_by_key(|&form| std::cmp::Reverse(outside.right[form]));
        for form in useful {
            let open = asked.iter().copied().filter(|&row| !outside.is_right(row));
            let pairs: Vec<(usize, usize)> =
                open.filter(|&row| outside.can_try(row, form)).map(|row| (row, form)).collect();
            outside.ask(&pairs)?;
        }
        let names = std::mem::take(&mut outside.names);
        Ok((outside, names))
    }

    /// Asks about a few rows in every form, more if they do not tell the forms apart; those rows.
    fn find_form(&mut self, asked: &[usize], pace: &mut Pace<'_>) -> Result<BTreeSet<usize>, RewardError> {
        let mut by_source: BTreeMap<&str, std::collections::VecDeque<usize>> = BTreeMap::new();
        for &row in asked {
            by_source.entry(&self.check.prompts[row].data_source).or_default().push_back(row);
        }
        let size = (2 * by_source.len()).clamp(FORM_ROWS, MOST_FORM_ROWS);
        let most = (size * FORM_TRIES).min(asked.len());
        // Some of each data source first.
        let mut order: Vec<usize> = Vec::with_capacity(most);
        while order.len() < most {
            order.extend(by_source.values_mut().filter_map(std::collections::VecDeque::pop_front));
        }
        let mut done = BTreeSet::new();
        for rows in order.chunks(size).take(FORM_TRIES) {
            let pairs: Vec<(usize, usize)> = rows.iter().flat_map(|&row| self.untried(row)).collect();
            self.ask(&pairs)?;
            for &(row, form) in &pairs {
                self.of_forms[form].extend(self.scores.get(&(row, form)).copied().flatten());
            }
            self.count(rows);
            pace.advance(rows.len());
            done.extend(rows);
            if self.tells_forms_apart(&done) {
                break;
            }
        }
        Ok(done)
    }

    /// Whether one form scores more than another, or every row scores something, so that more rows would say
    /// no more.
    fn tells_forms_apart(&self, rows: &BTreeSet<usize>) -> bool {
        let means =
            self.of_forms.iter().filter(|scores| !scores.is_empty()).map(|scores| super::mean(scores));
        let (min, max) =
            means.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), mean| (min.min(mean), max.max(mean)));
        let scores = |row: &usize| {
            let best = self.best[*row].as_ref();
            best.is_some_and(|(_, outcome)| outcome.get("score").is_some_and(|score| score > 0.0))
        };
        max - min > 1e-9 * max.abs().max(min.abs()) || rows.iter().all(scores)
    }

    fn is_right(&self, row: usize) -> bool {
        self.best[row].as_ref().is_some_and(|(_, outcome)| may_be_right(outcome))
    }

    fn can_try(&self, row: usize, form: usize) -> bool {
        form < self.check.candidates[row].len() && !self.scores.contains_key(&(row, form))
    }

    fn untried(&self, row: usize) -> Vec<(usize, usize)> {
        let forms = 0..self.check.candidates[row].len();
        forms.filter(|&form| self.can_try(row, form)).map(|form| (row, form)).collect()
    }

    /// The form that was best for rows of the same data source, or for all; the first if none was.
    fn likely_form(&self, row: usize) -> Option<usize> {
        let own = self.wins.get(self.check.prompts[row].data_source.as_str());
        let wins = |form: usize| {
            let of_all: usize = self.wins.values().map(|wins| wins[form]).sum();
            (own.map_or(0, |wins| wins[form]), of_all, std::cmp::Reverse(form))
        };
        (0..self.check.candidates[row].len()).max_by_key(|&form| wins(form))
    }

    /// Counts the forms of the rows' best answers.
    fn count(&mut self, rows: &[usize]) {
        for &row in rows {
            if let Some((form, RewardOutcome::Scored(_))) = &self.best[row] {
                let source = self.check.prompts[row].data_source.as_str();
                let wins = self.wins.entry(source).or_insert_with(|| vec![0; self.right.len()]);
                wins[*form] += 1;
            }
        }
    }

    fn ask(&mut self, pairs: &[(usize, usize)]) -> Result<(), RewardError> {
        let texts: Vec<(usize, &str)> =
            pairs.iter().map(|&(row, form)| (row, self.check.candidates[row][form].as_str())).collect();
        for (&(row, form), outcome) in pairs.iter().zip(self.check.ask(&texts)?) {
            self.scores.insert((row, form), outcome.get("score"));
            if let RewardOutcome::Scored(scores) = &outcome {
                self.names.extend(scores.keys().cloned());
            }
            self.right[form] += usize::from(may_be_right(&outcome));
            // What one form was given is not hidden by another that was given less.
            let is_better = |before: &RewardOutcome| rank(&outcome, true) > rank(before, true);
            if self.best[row].as_ref().is_none_or(|(_, before)| is_better(before)) {
                self.best[row] = Some((form, outcome));
            }
        }
        Ok(())
    }
}
