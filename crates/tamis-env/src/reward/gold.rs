//! Does every verifier accept the dataset's own answers, and do functions from outside tell them from others? Asked before anything is
//! generated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use tamis_core::figure::shortest;
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::Prompt;

use super::combine::excerpt;
use super::{Listener, NamedReward, Nobody, Outcome, RewardError, RewardInput, Rewards, TrainerState};

/// Rejected answers that are kept as examples, for each function.
const NUM_EXAMPLES: usize = 3;

/// Prompts on which a gold answer is compared with what is no answer.
const NUM_RIVALS: usize = 100;

/// Data sources that are told one by one.
const NUM_SOURCES: usize = 10;

/// Prompts of the first block, which finds the form that a function expects.
const FIRST_BLOCK: usize = 64;

/// Prompts of a later block, scored in one call.
const BLOCK: usize = 1024;

/// How often a check that takes long says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// A gold answer that its verifier rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldExample {
    /// The prompt's id.
    pub prompt: u64,
    /// Its ground truth.
    pub ground_truth: String,
    /// The completion that said it.
    pub completion: String,
    /// What the function said.
    pub answer: String,
}

/// The scores that gold answers got.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Their mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    fn of(scores: &[f64]) -> Option<Self> {
        let (min, max) = scores
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), &score| (min.min(score), max.max(score)));
        (!scores.is_empty()).then(|| Self { mean: mean(scores), min, max })
    }
}

fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}

/// A completion that is no answer, and scores no less than the gold answer, or less by no more than luck explains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rival {
    /// What it is.
    pub what: &'static str,
    /// Prompts on which the two were compared.
    pub num_prompts: usize,
    /// Its mean score on them.
    pub score: f64,
    /// The gold answers' mean score on them.
    pub gold: f64,
}

/// One function on all gold answers: `checked = accepted + rejected + unanswered + failed`.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionGold {
    /// The function's name.
    pub name: String,
    /// Whether it comes from outside, so that nobody knows which score is the full one.
    pub is_external: bool,
    /// Prompts with a ground truth.
    pub checked: usize,
    /// Verifiers: `acc` at least 1 or, without an `acc`, `score` above 0. Functions from outside: scored and not rejected.
    pub accepted: usize,
    /// Scored, but not accepted in any of the forms tried; of functions from outside those with an `acc` of 0, where it is 0 or 1 throughout.
    pub rejected: usize,
    /// No answer in any form.
    pub unanswered: usize,
    /// The function failed in every form.
    pub failed: usize,
    /// `score` over the prompts that got one, each in the form that got most; `None` where none did.
    pub spread: Option<Spread>,
    /// What scores no less than the gold answers.
    pub rivals: Vec<Rival>,
    /// Accepted and checked prompts of each data source, in order of their names.
    pub by_source: Vec<(String, usize, usize)>,
    /// The first that were not accepted; where all were and there are rivals, the first of all.
    pub examples: Vec<GoldExample>,
}

impl FunctionGold {
    /// Whether every gold answer was accepted, and nothing else scores as much.
    pub fn is_clean(&self) -> bool {
        self.accepted == self.checked && self.rivals.is_empty()
    }
}

/// What [`check_gold`] found.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldReport {
    /// Functions that know what a right answer is, in order.
    pub functions: Vec<FunctionGold>,
    /// Prompts without a ground truth; they are not checked.
    pub without_ground_truth: usize,
    /// Prompts whose ground truth is a whole solution that ends as GSM8K's do.
    pub whole_solutions: usize,
    /// Names of all numbers seen or announced: what a filter's metric can be.
    pub score_names: BTreeSet<String>,
}

impl GoldReport {
    /// Whether every gold answer that was checked was accepted, and nothing else scores as much.
    pub fn is_clean(&self) -> bool {
        self.functions.iter().all(FunctionGold::is_clean)
    }

    /// Whether every function from outside has scored something, so that the names of its numbers are known.
    pub fn knows_names(&self, rewards: &Rewards) -> bool {
        let is_known = |name: &str| {
            self.functions.iter().any(|function| function.name == name && function.spread.is_some())
        };
        rewards.functions().iter().all(|named| !named.function.is_external() || is_known(&named.name))
    }
}

impl fmt::Display for FunctionGold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, checked, accepted, rejected, unanswered, failed, .. } = self;
        if self.is_external {
            let mut rest = Vec::new();
            for (number, what) in
                [(rejected, "with an `acc` of 0"), (unanswered, "without an answer"), (failed, "failed")]
            {
                if *number > 0 {
                    rest.push(format!("{number} {what}"));
                }
            }
            let rest = if rest.is_empty() { String::new() } else { format!(": {}", rest.join(", ")) };
            match self.spread {
                Some(Spread { mean, min, max }) => writeln!(
                    f,
                    "reward `{name}`: gold answers score {} on average, {} to {} ({checked} prompts{rest})",
                    rounded(mean),
                    rounded(min),
                    rounded(max)
                )?,
                None => writeln!(f, "reward `{name}` scores no gold answer ({checked} prompts{rest})")?,
            }
        } else if accepted == checked {
            writeln!(f, "reward `{name}` accepts all {checked} gold answers")?;
        } else {
            write!(f, "reward `{name}` accepts {accepted} of {checked} gold answers ({rejected} rejected")?;
            writeln!(f, ", {unanswered} without an answer, {failed} failed)")?;
        }
        for Rival { what, num_prompts, score, gold } in &self.rivals {
            writeln!(
                f,
                "  no better than {what}: that scores {} where the gold answer scores {} (means of {num_prompts} prompts{})",
                rounded(*score),
                rounded(*gold),
                if rounded(*gold) == rounded(*score) || gold < score {
                    ""
                } else {
                    ", which differ by less than two standard errors"
                }
            )?;
        }
        if !self.rivals.is_empty() {
            writeln!(
                f,
                "  it looks at something else than the answer, or for the answer in a form that was not tried"
            )?;
        }
        if accepted < checked && self.by_source.len() > 1 {
            let told = self.by_source.iter().take(NUM_SOURCES).map(|(source, accepted, checked)| {
                let source = if source.is_empty() { "none" } else { source };
                format!("{} {accepted} of {checked}", excerpt(source))
            });
            let more = if self.by_source.len() > NUM_SOURCES { ", ..." } else { "" };
            writeln!(f, "  by data source: {}{more}", told.collect::<Vec<_>>().join(", "))?;
        }
        for GoldExample { prompt, ground_truth, completion, answer } in &self.examples {
            let truth = excerpt(ground_truth);
            writeln!(
                f,
                "  prompt {prompt}, ground truth `{truth}`: `{}` gave {answer}",
                excerpt(completion)
            )?;
        }
        Ok(())
    }
}

/// Four digits are enough to be told.
fn rounded(score: f64) -> String {
    shortest(format!("{score:.3e}").parse().unwrap_or(score))
}

impl fmt::Display for GoldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.functions.iter().try_for_each(|function| function.fmt(f))?;
        self.notes().iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

impl GoldReport {
    /// What there is to say of the prompts themselves.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.whole_solutions > 0 {
            notes.push(format!(
                "the ground truth of {} prompts is a whole solution that ends in `#### ANSWER`, as in GSM8K: verifiers compare with the answer, \
                 functions from outside and `exact` get the whole",
                self.whole_solutions
            ));
        }
        if self.without_ground_truth > 0 {
            notes.push(format!(
                "{} prompts have no ground truth and were not checked",
                self.without_ground_truth
            ));
        }
        notes
    }
}

/// Scores the ground truth of every prompt with every function that has a notion of a right answer, in the forms that
/// [`super::RewardFunction::gold_completions`] names: until one is accepted, and of functions from outside, whose full score nobody knows, all of
/// them on the first prompts and then the one that got most. What is no answer is scored on some prompts too. Fails only where a function
/// broke down for good.
pub fn check_gold(prompts: &[Prompt], rewards: &Rewards) -> Result<GoldReport, RewardError> {
    check_gold_heard(prompts, rewards, &Nobody)
}

/// [`check_gold`], told to a listener: what is asked of an external function before it is asked, how far a check is that takes long. Gives
/// up between two blocks of prompts (and an external function within one) with [`RewardError::Interrupted`] where the listener wants that.
pub fn check_gold_heard(
    prompts: &[Prompt],
    rewards: &Rewards,
    listener: &dyn Listener,
) -> Result<GoldReport, RewardError> {
    let with_truth: Vec<&Prompt> = prompts.iter().filter(|prompt| prompt.ground_truth.is_some()).collect();
    let mut score_names = rewards.score_names();
    let mut functions = Vec::new();
    for named in rewards.functions() {
        let mut candidates: Vec<Vec<String>> = Vec::with_capacity(with_truth.len());
        for block in with_truth.chunks(BLOCK) {
            if listener.is_interrupted() {
                return Err(RewardError::Interrupted);
            }
            candidates.extend(block.iter().map(|prompt| named.function.gold_completions(prompt)));
        }
        let asked: Vec<usize> = (0..with_truth.len()).filter(|&row| !candidates[row].is_empty()).collect();
        if !asked.is_empty() {
            let check = Check {
                named,
                prompts: &with_truth,
                candidates,
                trainer_state: rewards.trainer_state(),
                listener,
            };
            functions.push(check.run(&asked, &mut score_names)?);
        }
    }
    let is_whole = |prompt: &&&Prompt| {
        let truth = prompt.ground_truth.as_deref().unwrap_or_default();
        super::gsm8k::answer_part(truth).is_some() && !truth.starts_with("####")
    };
    let whole_solutions = with_truth.iter().filter(is_whole).count();
    let without_ground_truth = prompts.len() - with_truth.len();
    Ok(GoldReport { functions, without_ground_truth, whole_solutions, score_names })
}

/// A function and what it is asked.
struct Check<'a> {
    named: &'a NamedReward,
    prompts: &'a [&'a Prompt],
    /// Forms of each prompt's answer.
    candidates: Vec<Vec<String>>,
    trainer_state: TrainerState,
    listener: &'a dyn Listener,
}

impl Check<'_> {
    fn run(&self, asked: &[usize], score_names: &mut BTreeSet<String>) -> Result<FunctionGold, RewardError> {
        let checked = asked.len();
        let is_external = self.named.function.is_external();
        let mut pace = Pace::begin(&self.named.name, checked, is_external, self.listener);
        let mut said: Vec<Option<(usize, Outcome)>> = vec![None; self.prompts.len()];
        let num_forms = self.candidates.iter().map(Vec::len).max().unwrap_or(0);
        // Scores of each form on the first block, on which functions from outside are asked about all of them.
        let mut form_scores: Vec<Vec<f64>> = vec![Vec::new(); num_forms];
        // The form that was best most often comes first in the next block: external functions are asked about once a prompt.
        let mut forms: Vec<(usize, usize)> = (0..num_forms).map(|form| (0, form)).collect();
        let (first, rest) = asked.split_at(checked.min(FIRST_BLOCK));
        for (block, rows) in std::iter::once(first).chain(rest.chunks(BLOCK)).enumerate() {
            let is_enough = |outcome: &Outcome| match outcome.get("acc") {
                _ if !is_external => is_accepted(outcome),
                Some(acc) => block > 0 && acc > 0.0,
                None => block > 0 && matches!(outcome, Outcome::Scored(_)),
            };
            let mut open = rows.to_vec();
            for &(_, form) in &forms {
                let tried: Vec<usize> =
                    open.iter().copied().filter(|&row| form < self.candidates[row].len()).collect();
                let pairs: Vec<(usize, &str)> =
                    tried.iter().map(|&row| (row, self.candidates[row][form].as_str())).collect();
                for (row, outcome) in tried.into_iter().zip(self.ask(&pairs)?) {
                    if let Outcome::Scored(scores) = &outcome {
                        score_names.extend(scores.keys().cloned());
                    }
                    if let Some((scores, score)) = form_scores.get_mut(form).zip(outcome.get("score"))
                        && block == 0
                    {
                        scores.push(score);
                    }
                    // What one form said is not hidden by another that said less.
                    let is_better =
                        |before: &Outcome| rank(&outcome, is_external) > rank(before, is_external);
                    if said[row].as_ref().is_none_or(|(_, before)| is_better(before)) {
                        said[row] = Some((form, outcome));
                    }
                }
                open.retain(|&row| !said[row].as_ref().is_some_and(|(_, outcome)| is_enough(outcome)));
            }
            for (form, outcome) in rows.iter().filter_map(|&row| said[row].as_ref()) {
                if matches!(outcome, Outcome::Scored(_)) && (is_external || is_accepted(outcome)) {
                    forms.iter_mut().filter(|(_, other)| other == form).for_each(|(wins, _)| *wins += 1);
                }
            }
            forms.sort_by_key(|&(wins, form)| (std::cmp::Reverse(wins), form));
            pace.advance(rows.len());
        }
        let mut function = self.judged(asked, &said);
        if is_external || function.accepted > 0 {
            let form = is_external.then(|| best_form(&form_scores));
            function.rivals = self.rivals(asked, &said, form)?;
        }
        if function.examples.is_empty() && !function.rivals.is_empty() {
            function.examples =
                asked.iter().take(NUM_EXAMPLES).map(|&row| self.example(row, said[row].as_ref())).collect();
        }
        Ok(function)
    }

    /// Scores completions of prompts, by their rows.
    fn ask(&self, pairs: &[(usize, &str)]) -> Result<Vec<Outcome>, RewardError> {
        if self.listener.is_interrupted() {
            return Err(RewardError::Interrupted);
        }
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let inputs: Vec<RewardInput<'_>> = pairs
            .iter()
            .map(|&(row, completion)| RewardInput {
                trainer_state: self.trainer_state,
                ..RewardInput::text(self.prompts[row], completion)
            })
            .collect();
        let outcomes = self.named.function.score(&inputs);
        let fatal = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Failed(failure) if failure.is_fatal() => Some(failure),
            _ => None,
        });
        match fatal {
            Some(failure) => Err(RewardError::fatal(&self.named.name, failure)),
            None => Ok(outcomes),
        }
    }

    fn judged(&self, asked: &[usize], said: &[Option<(usize, Outcome)>]) -> FunctionGold {
        let is_external = self.named.function.is_external();
        let outcome = |row: usize| said[row].as_ref().map(|(_, outcome)| outcome);
        let accs = || asked.iter().filter_map(|&row| outcome(row)?.get("acc"));
        let is_binary = accs().all(|acc| [0.0, 1.0].contains(&acc));
        let takes = |outcome: &Outcome| match outcome.get("acc") {
            _ if !is_external => is_accepted(outcome),
            Some(acc) => !is_binary || acc >= 1.0,
            None => matches!(outcome, Outcome::Scored(_)),
        };
        let scores: Vec<f64> = asked.iter().filter_map(|&row| outcome(row)?.get("score")).collect();
        let mut function = FunctionGold {
            name: self.named.name.clone(),
            is_external,
            checked: asked.len(),
            accepted: 0,
            rejected: 0,
            unanswered: 0,
            failed: 0,
            spread: Spread::of(&scores),
            rivals: Vec::new(),
            by_source: Vec::new(),
            examples: Vec::new(),
        };
        let mut sources: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for &row in asked {
            let (accepted, checked) = sources.entry(&self.prompts[row].data_source).or_default();
            *checked += 1;
            let place = match outcome(row) {
                Some(outcome) if takes(outcome) => {
                    *accepted += 1;
                    function.accepted += 1;
                    continue;
                }
                Some(Outcome::Scored(_)) => &mut function.rejected,
                Some(Outcome::Failed(_)) => &mut function.failed,
                Some(Outcome::NoAnswer) | None => &mut function.unanswered,
            };
            *place += 1;
            if function.examples.len() < NUM_EXAMPLES {
                function.examples.push(self.example(row, said[row].as_ref()));
            }
        }
        let counted =
            |(source, (accepted, checked)): (&str, (usize, usize))| (source.to_owned(), accepted, checked);
        function.by_source = sources.into_iter().map(counted).collect();
        function
    }

    fn example(&self, row: usize, said: Option<&(usize, Outcome)>) -> GoldExample {
        let (form, answer) = match said {
            Some((form, Outcome::Scored(scores))) => {
                let numbers: Vec<String> =
                    scores.iter().map(|(name, score)| format!("{name} {}", shortest(score.value))).collect();
                (*form, numbers.join(", "))
            }
            Some((form, Outcome::Failed(failure))) => (*form, format!("a failure: {failure}")),
            Some((form, Outcome::NoAnswer)) => (*form, "no answer".to_owned()),
            None => (0, "no answer".to_owned()),
        };
        GoldExample {
            prompt: self.prompts[row].id.0,
            ground_truth: self.prompts[row].ground_truth.clone().unwrap_or_default(),
            completion: self.candidates[row].get(form).cloned().unwrap_or_default(),
            answer,
        }
    }

    /// Scores what is no answer beside gold answers that have a score, on a sample of the prompts that is the same in every run. `form` is the
    /// one that all rows get, gold answers and others; the best form of each row would be better than another row's one form by luck alone.
    fn rivals(
        &self,
        asked: &[usize],
        said: &[Option<(usize, Outcome)>],
        form: Option<usize>,
    ) -> Result<Vec<Rival>, RewardError> {
        // Rows, the form of each, and what its gold answer scores.
        let mut golds: Vec<(usize, usize, f64)> = Key::new(0, Purpose::Bootstrap)
            .permutation(asked.len())
            .into_iter()
            .filter_map(|place| {
                let row = asked[place];
                let (best, outcome) = said[row].as_ref()?;
                let form = form.unwrap_or(*best);
                self.candidates[row].get(form)?;
                Some((row, form, outcome.get("score")?))
            })
            .take(NUM_RIVALS)
            .collect();
        if form.is_some() {
            let pairs: Vec<(usize, &str)> =
                golds.iter().map(|&(row, form, _)| (row, self.candidates[row][form].as_str())).collect();
            let scores = self.ask(&pairs)?;
            golds = golds
                .iter()
                .zip(&scores)
                .filter_map(|(&(row, form, _), outcome)| Some((row, form, outcome.get("score")?)))
                .collect();
        }
        let empty: Vec<(usize, &str, f64)> = golds.iter().map(|&(row, _, gold)| (row, "", gold)).collect();
        let others: Vec<(usize, &str, f64)> = self
            .exchanged(&golds)
            .into_iter()
            .filter_map(|((row, form, gold), other)| {
                Some((row, self.candidates[other].get(form)?.as_str(), gold))
            })
            .collect();
        let mut rivals = Vec::new();
        for (what, rows) in [("an empty completion", empty), ("the gold answer of another prompt", others)] {
            let pairs: Vec<(usize, &str)> =
                rows.iter().map(|&(row, completion, _)| (row, completion)).collect();
            let answers = self.ask(&pairs)?;
            let both = rows
                .iter()
                .zip(&answers)
                .filter_map(|(&(_, _, gold), answer)| Some((gold, answer.get("score")?)));
            let (golds, scores): (Vec<f64>, Vec<f64>) = both.unzip();
            let rival = Rival { what, num_prompts: scores.len(), score: mean(&scores), gold: mean(&golds) };
            // A verifier gives the same answer every time; what a function from outside says may be luck.
            let luck = if form.is_some() { 2.0 * standard_error(&golds, &scores) } else { 0.0 };
            let margin = luck.max(1e-9 * rival.gold.abs().max(rival.score.abs()));
            if rival.gold - rival.score <= margin {
                rivals.push(rival);
            }
        }
        Ok(rivals)
    }

    /// Rows and for each another one whose answer it gets: the same rows in another order, so that a function that looks at the completion
    /// alone has the same mean on both, and each with another ground truth than its own.
    fn exchanged(&self, golds: &[(usize, usize, f64)]) -> Vec<((usize, usize, f64), usize)> {
        let mut by_truth: BTreeMap<Option<&str>, Vec<(usize, usize, f64)>> = BTreeMap::new();
        for &gold in golds {
            by_truth.entry(self.prompts[gold.0].ground_truth.as_deref()).or_default().push(gold);
        }
        let largest = by_truth.values().map(Vec::len).max().unwrap_or(0);
        // Of a truth that more than half of the rows have, no more than there are others.
        let most = largest.min(golds.len() - largest);
        for rows in by_truth.values_mut() {
            rows.truncate(most);
        }
        let rows: Vec<(usize, usize, f64)> = by_truth.into_values().flatten().collect();
        let others = rows.iter().cycle().skip(most).map(|&(row, ..)| row);
        rows.iter().copied().zip(others).collect()
    }
}

/// The form with the best mean, among those that were scored at least half as often as the one that was scored most often.
fn best_form(scores: &[Vec<f64>]) -> usize {
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

/// Says how far a long check is.
struct Pace<'a> {
    name: &'a str,
    done: usize,
    total: usize,
    told: Instant,
    listener: &'a dyn Listener,
}

impl<'a> Pace<'a> {
    fn begin(name: &'a str, total: usize, is_external: bool, listener: &'a dyn Listener) -> Self {
        if is_external {
            listener.say(&format!("checking {total} gold answers with reward `{name}`"));
        }
        Self { name, done: 0, total, told: Instant::now(), listener }
    }

    fn advance(&mut self, by: usize) {
        self.done += by;
        if self.told.elapsed() >= TELL_EVERY && self.done < self.total {
            self.told = Instant::now();
            let Self { name, done, total, .. } = self;
            self.listener.say(&format!("reward `{name}`: {done} of {total} gold answers checked"));
        }
    }
}

/// What is told of a prompt in preference to something else: of a function from outside the highest score.
fn rank(outcome: &Outcome, is_external: bool) -> (u8, f64) {
    match outcome {
        Outcome::Scored(_) if is_external => (2, outcome.get("score").unwrap_or(f64::NEG_INFINITY)),
        outcome if is_accepted(outcome) => (3, 0.0),
        Outcome::Scored(_) => (2, 0.0),
        Outcome::NoAnswer => (1, 0.0),
        Outcome::Failed(_) => (0, 0.0),
    }
}

fn is_accepted(outcome: &Outcome) -> bool {
    match outcome.get("acc") {
        Some(acc) => acc >= 1.0,
        None => outcome.get("score").is_some_and(|score| score > 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::by_source::BySource;
    use crate::reward::exact::Exact;
    use crate::reward::gsm8k::{Gsm8k, Method};
    use crate::reward::length::Length;
    use crate::reward::math::Math;
    use crate::reward::math_dapo::MathDapo;
    use crate::reward::number::Number;
    use crate::reward::{RewardFailure, RewardFunction, test_prompt};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn rewards(functions: Vec<(&str, Box<dyn RewardFunction>)>) -> Rewards {
        let named = functions.into_iter().map(|(name, function)| NamedReward {
            name: name.to_owned(),
            weight: 1.0,
            function,
        });
        Rewards::new(named.collect()).unwrap()
    }

    #[test]
    fn built_in_verifiers_accept_their_gold() {
        let prompts: Vec<Prompt> = ["72", "-3", "0.5"].map(test_prompt).into();
        let report = check_gold(
            &prompts,
            &rewards(vec![
                ("exact", Box::new(Exact)),
                ("number", Box::new(Number)),
                ("strict", Box::new(Gsm8k { method: Method::Strict, format_score: 0.0 })),
                ("flexible", Box::new(Gsm8k { method: Method::Flexible, format_score: 0.0 })),
                ("math", Box::new(Math)),
                ("dapo", Box::new(MathDapo { strict_box: false })),
                ("dapo_box", Box::new(MathDapo { strict_box: true })),
                ("length", Box::new(Length::new(0, 1, 1).unwrap())),
            ]),
        )
        .unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.functions.len(), 7, "shaping has no notion of a right answer");
    }

    #[test]
    fn a_verifier_that_rejects_its_gold_is_reported() {
        let mut prompts: Vec<Prompt> = ["72", "seven apples", "1e3", "#### 1,000"].map(test_prompt).into();
        prompts.push(Prompt { ground_truth: None, ..test_prompt("") });
        let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
            ("gsm8k", Box::new(Gsm8k::default())),
            ("math", Box::new(Math)),
            ("number", Box::new(Number)),
        ];
        let report = check_gold(&prompts, &rewards(functions)).unwrap();
        assert!(!report.is_clean());
        insta::assert_snapshot!(report, @r"
        reward `gsm8k` accepts 2 of 4 gold answers (2 rejected, 0 without an answer, 0 failed)
          prompt 0, ground truth `seven apples`: `#### seven apples` gave acc 0, score 0
          prompt 0, ground truth `1e3`: `#### 1e3` gave acc 0, score 0
        reward `math` accepts 3 of 4 gold answers (0 rejected, 1 without an answer, 0 failed)
          prompt 0, ground truth `seven apples`: `\boxed{seven apples}` gave no answer
        reward `number` accepts 2 of 4 gold answers (0 rejected, 2 without an answer, 0 failed)
          prompt 0, ground truth `seven apples`: `seven apples` gave no answer
          prompt 0, ground truth `1e3`: `1e3` gave no answer
        1 prompts have no ground truth and were not checked
        ");
        insta::assert_snapshot!(report.score_names.iter().cloned().collect::<Vec<_>>().join(" "), @"acc gsm8k math math.acc number number.acc score");
    }

    /// Accepts `#### x` only, names a number of its own, counts how often it is asked, and fails on "bad".
    struct External(AtomicUsize);

    impl RewardFunction for External {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            self.0.fetch_add(batch.len(), Ordering::Relaxed);
            let judge = |input: &RewardInput<'_>| {
                if input.completion.contains("bad") {
                    let message = "bad".to_owned();
                    return Outcome::Failed(RewardFailure::Function { message });
                }
                let score = f64::from(u8::from(input.completion.starts_with("#### ")));
                let mut outcome = Outcome::score(score);
                if let Outcome::Scored(scores) = &mut outcome {
                    scores.insert("fluency".to_owned(), tamis_core::group::Score::of(0.5));
                }
                outcome
            };
            batch.iter().map(judge).collect()
        }

        fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
            prompt.ground_truth.iter().flat_map(|truth| [truth.clone(), format!("#### {truth}")]).collect()
        }
    }

    /// From outside: scores the end of a completion against the ground truth, and something for whatever it is given.
    struct Judge {
        right: f64,
        other: f64,
    }

    impl RewardFunction for Judge {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            let judge = |input: &RewardInput<'_>| {
                let truth = input.prompt.ground_truth.as_deref().unwrap_or_default();
                let is_right = input.completion.strip_prefix("Answer: ") == Some(truth);
                Outcome::score(if is_right { self.right } else { self.other })
            };
            batch.iter().map(judge).collect()
        }

        fn is_external(&self) -> bool {
            true
        }

        fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
            prompt.ground_truth.iter().flat_map(|truth| [truth.clone(), format!("Answer: {truth}")]).collect()
        }
    }

    /// A function whose full score nobody knows is not said to accept anything.
    #[test]
    fn functions_from_outside_get_the_distribution() {
        let prompts: Vec<Prompt> = (0..200).map(|number| test_prompt(&number.to_string())).collect();
        let check = |right: f64, other: f64| {
            let report =
                check_gold(&prompts, &rewards(vec![("mine", Box::new(Judge { right, other }))])).unwrap();
            format!("{}: {report}", if report.is_clean() { "clean" } else { "warns" })
        };
        // A tenth for the wrong form is not taken for the score of the right one.
        insta::assert_snapshot!(check(1.0, 0.1), @"clean: reward `mine`: gold answers score 1 on average, 1 to 1 (200 prompts)");
        insta::assert_snapshot!(check(0.1, 0.1), @r"
        warns: reward `mine`: gold answers score 0.1 on average, 0.1 to 0.1 (200 prompts)
          no better than an empty completion: that scores 0.1 where the gold answer scores 0.1 (means of 100 prompts)
          no better than the gold answer of another prompt: that scores 0.1 where the gold answer scores 0.1 (means of 100 prompts)
          it looks at something else than the answer, or for the answer in a form that was not tried
          prompt 0, ground truth `0`: `0` gave score 0.1
          prompt 0, ground truth `1`: `1` gave score 0.1
          prompt 0, ground truth `2`: `2` gave score 0.1
        ");
        insta::assert_snapshot!(check(-1.0, -2.0), @"clean: reward `mine`: gold answers score -1 on average, -1 to -1 (200 prompts)");
    }

    /// From outside: whatever a function makes of the completion and the ground truth.
    struct Made(fn(&str, &str) -> f64);

    impl RewardFunction for Made {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            let truth = |input: &RewardInput<'_>| input.prompt.ground_truth.clone().unwrap_or_default();
            batch.iter().map(|input| Outcome::score((self.0)(input.completion, &truth(input)))).collect()
        }

        fn is_external(&self) -> bool {
            true
        }

        fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
            let forms = |truth: &String| [truth.clone(), format!("#### {truth}"), format!("It is {truth}!")];
            prompt.ground_truth.iter().flat_map(forms).collect()
        }
    }

    /// The best of several forms is no sign that a function looks at the answer, and rounding is none.
    #[test]
    fn functions_from_outside_that_look_at_the_completion_alone_are_reported() {
        let prompts: Vec<Prompt> = (0..150).map(|number| test_prompt(&(number * 7).to_string())).collect();
        let few: Vec<Prompt> =
            (0..40).map(|row| test_prompt(if row % 20 == 0 { "no" } else { "yes" })).collect();
        let is_clean = |prompts: &[Prompt], judge: fn(&str, &str) -> f64| {
            check_gold(prompts, &rewards(vec![("mine", Box::new(Made(judge)))])).unwrap().is_clean()
        };
        let blind: [fn(&str, &str) -> f64; 4] = [
            |said, _| said.len() as f64 / 7.0,
            |said, _| (said.len() % 2) as f64,
            |said, _| -(said.len() as f64) / 3.0,
            |said, _| f64::from(said.bytes().map(u32::from).sum::<u32>() % 3),
        ];
        for (place, judge) in blind.into_iter().enumerate() {
            assert!(!is_clean(&prompts, judge), "{place}");
            assert!(!is_clean(&few, judge), "{place}");
        }
        let looking: [fn(&str, &str) -> f64; 3] = [
            |said, truth| f64::from(u8::from(said == format!("#### {truth}"))),
            |said, truth| f64::from(u8::from(said.contains(truth))) - 3.0,
            // Half of the right answers are missed.
            |said, truth| {
                f64::from(u8::from(said.contains(truth) && truth.len() != 2)) + said.len() as f64 / 100.0
            },
        ];
        for (place, judge) in looking.into_iter().enumerate() {
            assert!(is_clean(&prompts, judge), "{place}");
            assert!(is_clean(&few, judge) || place == 2, "{place}");
        }
    }

    #[test]
    fn a_function_that_does_not_look_at_the_answer_is_reported() {
        /// The length of the completion: any answer will do.
        struct Long;
        impl RewardFunction for Long {
            fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
                batch
                    .iter()
                    .map(|input| Outcome::score(f64::from(u8::from(!input.completion.is_empty()))))
                    .collect()
            }
            fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
                prompt.ground_truth.iter().cloned().collect()
            }
        }
        let prompts: Vec<Prompt> = (10..20).map(|number| test_prompt(&number.to_string())).collect();
        let report = check_gold(&prompts, &rewards(vec![("long", Box::new(Long))])).unwrap();
        insta::assert_snapshot!(report, @r"
        reward `long` accepts all 10 gold answers
          no better than the gold answer of another prompt: that scores 1 where the gold answer scores 1 (means of 10 prompts)
          it looks at something else than the answer, or for the answer in a form that was not tried
          prompt 0, ground truth `10`: `10` gave score 1
          prompt 0, ground truth `11`: `11` gave score 1
          prompt 0, ground truth `12`: `12` gave score 1
        ");
        assert!(!report.is_clean());
    }

    #[test]
    fn whole_solutions_are_told_and_compared_by_their_answer() {
        let solution =
            |number: usize| format!("It is <<{number}+0={number}>>{number}.\nSo, by hand:\n#### {number}");
        let prompts: Vec<Prompt> = (1000..1020).map(|number| test_prompt(&solution(number))).collect();
        let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
            ("gsm8k", Box::new(Gsm8k::default())),
            ("math", Box::new(Math)),
            ("dapo", Box::new(MathDapo::default())),
            ("number", Box::new(Number)),
        ];
        let report = check_gold(&prompts, &rewards(functions)).unwrap();
        insta::assert_snapshot!(report, @r"
        reward `gsm8k` accepts all 20 gold answers
        reward `math` accepts all 20 gold answers
        reward `dapo` accepts all 20 gold answers
        reward `number` accepts all 20 gold answers
        the ground truth of 20 prompts is a whole solution that ends in `#### ANSWER`, as in GSM8K: verifiers compare with the answer, functions from outside and `exact` get the whole
        ");
        let judge = |function: &dyn RewardFunction, completion: &str| {
            function.score(&[RewardInput::text(&prompts[7], completion)])[0].get("acc")
        };
        assert_eq!((judge(&Number, "1007"), judge(&Number, "1008")), (Some(1.0), Some(0.0)));
        assert_eq!((judge(&Math, "\\boxed{1{,}007}"), judge(&Math, "\\boxed{7}")), (Some(1.0), Some(0.0)));
        assert_eq!(judge(&MathDapo::default(), "Answer: 1007"), Some(1.0));
    }

    /// The rows of GSM8K as they are released.
    #[test]
    fn gsm8k_as_it_is_released() {
        let Some(folder) = tamis_golden::data("gsm8k") else { return };
        let text = std::fs::read_to_string(folder.join("test.jsonl")).unwrap();
        let prompt = |line: &str| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            Prompt { data_source: "openai/gsm8k".to_owned(), ..test_prompt(row["answer"].as_str().unwrap()) }
        };
        let prompts: Vec<Prompt> = text.lines().map(prompt).collect();
        let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
            ("by_source", Box::new(BySource::default())),
            ("math", Box::new(Math)),
            ("math_dapo", Box::new(MathDapo::default())),
            ("number", Box::new(Number)),
        ];
        let report = check_gold(&prompts, &rewards(functions)).unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!((prompts.len(), report.whole_solutions), (1319, 1319));
    }

    #[test]
    fn gold_is_told_by_source() {
        let of = |source: &str, truth: &str| Prompt { data_source: source.to_owned(), ..test_prompt(truth) };
        let prompts =
            [of("openai/gsm8k", "72"), of("openai/gsm8k", "seven"), of("aime_2025", "5"), of("math", "6")];
        let report =
            check_gold(&prompts, &rewards(vec![("by_source", Box::new(BySource::default()))])).unwrap();
        insta::assert_snapshot!(report, @r"
        reward `by_source` accepts 3 of 4 gold answers (1 rejected, 0 without an answer, 0 failed)
          by data source: aime_2025 1 of 1, math 1 of 1, openai/gsm8k 1 of 2
          prompt 0, ground truth `seven`: `#### seven` gave acc 0, score 0
        ");
    }

    /// The same one after it was handed over, to look at its count.
    struct Shared(std::sync::Arc<External>);
    impl RewardFunction for Shared {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
            self.0.score(batch)
        }
        fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
            self.0.gold_completions(prompt)
        }
    }

    #[test]
    fn the_expected_form_is_learnt() {
        let mut prompts: Vec<Prompt> = (0..2000).map(|number| test_prompt(&number.to_string())).collect();
        prompts.push(test_prompt("bad"));
        let external = std::sync::Arc::new(External(AtomicUsize::new(0)));
        let report =
            check_gold(&prompts, &rewards(vec![("external", Box::new(Shared(external.clone())))])).unwrap();
        assert_eq!((report.functions[0].accepted, report.functions[0].failed), (2000, 1));
        assert!(report.score_names.contains("fluency"));
        assert_eq!(external.0.load(Ordering::Relaxed), 2001 + FIRST_BLOCK + 1 + 2 * NUM_RIVALS);
        insta::assert_snapshot!(report, @r"
        reward `external` accepts 2000 of 2001 gold answers (0 rejected, 0 without an answer, 1 failed)
          no better than the gold answer of another prompt: that scores 1 where the gold answer scores 1 (means of 100 prompts)
          it looks at something else than the answer, or for the answer in a form that was not tried
          prompt 0, ground truth `bad`: `#### bad` gave a failure: the function failed: bad
        ");
    }
}
