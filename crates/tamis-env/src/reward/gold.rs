//! Does every verifier accept the dataset's own answers, and do external functions distinguish them from
//! others? This is checked before anything is generated.

mod hopeless;
mod outside;
mod rivals;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use tamis_core::figure::{agreed, counted, shortest};
use tamis_data::prompt::Prompt;

use super::combine::excerpt;
use super::combine::{NamedReward, Rewards};
use super::error::RewardError;
use super::function::{RewardInput, RewardOutcome, TrainerState};
use super::listener::{Listener, Nobody};
use hopeless::{is_short_answer, number_column};
use outside::Outside;
pub use outside::SAMPLE;
pub use rivals::Rival;
use rivals::{NUM_RIVALS_OUTSIDE, best_form};

/// Rejected answers that are kept as examples, for each function.
const NUM_EXAMPLES: usize = 3;

/// Prompts that are listed by their ids.
const NUM_LISTED: usize = 10;

/// Number of data sources that are listed one by one.
const NUM_SOURCES: usize = 10;

/// Prompts of the first block, which finds the form that a function expects.
const FIRST_BLOCK: usize = 64;

/// Prompts of a later block, scored in one call.
const BLOCK: usize = 1024;

/// Interval between progress lines of a long check.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Which gold answers functions from outside are asked about. Verifiers of tamis are asked about all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GoldExtent {
    /// At most [`SAMPLE`], the same in every run.
    #[default]
    Sample,
    /// All.
    All,
}

/// A gold answer that its verifier rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldExample {
    /// The prompt, as [`Prompt::named`] names it.
    pub prompt: String,
    /// The ground truth.
    pub ground_truth: String,
    /// The completion with that score.
    pub completion: String,
    /// The function's answer.
    pub answer: String,
}

/// The scores that gold answers got.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoldSpread {
    /// Their mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl GoldSpread {
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

/// One function on all gold answers: `checked = accepted + rejected + unanswered + failed`.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionGold {
    /// The function's name.
    pub name: String,
    /// Whether it is external, so that its full score is unknown.
    pub is_external: bool,
    /// Whether its score depends on the ground truth; `None` if that is not known.
    pub reads_gold: Option<bool>,
    /// Whether the function uses the ground truth that it gets; `None` if that is not known.
    pub uses_gold: Option<bool>,
    /// Whether a higher score is rewarded: its weight is above 0.
    pub is_rewarded: bool,
    /// Whether no other function than shaping has a weight.
    pub is_alone: bool,
    /// Whether every ground truth asked about is a short answer, not tests, a list or a whole text.
    pub are_answers: bool,
    /// Prompts with a ground truth that were asked about.
    pub checked: usize,
    /// All prompts with a ground truth, if only a sample was asked about.
    pub sampled_from: Option<usize>,
    /// Verifiers: `acc` at least 1 or, without an `acc`, `score` above 0. Functions from outside: scored and
    /// not rejected.
    pub accepted: usize,
    /// Scored, but not accepted in any of the forms tried. For external functions: those with an `acc` of 0,
    /// if all are 0 or 1.
    pub rejected: usize,
    /// No answer in any form.
    pub unanswered: usize,
    /// The function failed in every form.
    pub failed: usize,
    /// `score` over the prompts that got one, each in its best form; `None` if none did.
    pub spread: Option<GoldSpread>,
    /// Texts without an answer that score no less than the gold answers, or may: see [`Rival::is_proven`].
    pub rivals: Vec<Rival>,
    /// Accepted and checked prompts of each data source, in order of their names.
    pub by_source: Vec<(String, usize, usize)>,
    /// The first that were not accepted. If all were and there are rivals, the first of all.
    pub examples: Vec<GoldExample>,
    /// Prompts that were not accepted.
    pub refused: Vec<u64>,
}

impl FunctionGold {
    /// Whether every gold answer was accepted, and nothing else scores as much.
    pub fn is_clean(&self) -> bool {
        self.accepted == self.checked && !self.is_rivalled()
    }

    /// Whether something else is known to score as much as the gold answers.
    fn is_rivalled(&self) -> bool {
        self.rivals.iter().any(|rival| rival.is_proven)
    }
}

/// Result of [`check_gold`].
#[derive(Debug, Clone, PartialEq)]
pub struct GoldReport {
    /// Functions that know what a right answer is, in order.
    pub functions: Vec<FunctionGold>,
    /// Functions that compare with a ground truth, if no prompt has one.
    pub blind: Vec<String>,
    /// Prompts without a ground truth; they are not checked.
    pub without_ground_truth: Vec<u64>,
    /// Prompts whose ground truth is a whole solution that ends as GSM8K's do.
    pub whole_solutions: usize,
    /// The column that holds the ground truth of every prompt as a number; `None` if there is none.
    pub number_column: Option<String>,
    /// Names of all numbers seen or announced: what a filter's metric can be.
    pub score_names: BTreeSet<String>,
}

impl GoldReport {
    /// Whether every gold answer that was checked was accepted, and nothing else scores as much.
    pub fn is_clean(&self) -> bool {
        self.functions.iter().all(FunctionGold::is_clean)
    }

    /// Whether every external function has scored something, so that the names of its numbers are known.
    pub fn knows_names(&self, rewards: &Rewards) -> bool {
        let is_known = |name: &str| {
            self.functions.iter().any(|function| function.name == name && function.spread.is_some())
        };
        rewards.functions().iter().all(|named| !named.nature.is_external || is_known(&named.name))
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
            let prompts = match self.sampled_from {
                Some(all) => format!("a sample of {checked} of {all} prompts"),
                None => counted(checked, "prompt"),
            };
            match self.spread {
                Some(GoldSpread { mean, min, max }) => writeln!(
                    f,
                    "reward `{name}`: gold answers score {} on average, {} to {} ({prompts}{rest})",
                    format_score(mean),
                    format_score(min),
                    format_score(max)
                )?,
                None => writeln!(f, "reward `{name}` scores no gold answer ({prompts}{rest})")?,
            }
        } else if accepted == checked {
            let what =
                if *checked == 1 { "the only gold answer" } else { &format!("all {checked} gold answers") };
            writeln!(f, "reward `{name}` accepts {what}")?;
        } else {
            write!(f, "reward `{name}` accepts {accepted} of {checked} gold answers ({rejected} rejected")?;
            writeln!(f, ", {unanswered} without an answer, {failed} failed)")?;
        }
        self.rivals.iter().try_for_each(|rival| writeln!(f, "  {rival}"))?;
        if self.is_rivalled() {
            writeln!(
                f,
                "  it judges something other than the answer, or expects the answer in a form that was not tried"
            )?;
        }
        if accepted < checked && self.by_source.len() > 1 {
            let reported = self.by_source.iter().take(NUM_SOURCES).map(|(source, accepted, checked)| {
                let source = if source.is_empty() { "none" } else { source };
                format!("{} {accepted} of {checked}", excerpt(source))
            });
            let more = if self.by_source.len() > NUM_SOURCES { ", ..." } else { "" };
            writeln!(f, "  by data source: {}{more}", reported.collect::<Vec<_>>().join(", "))?;
        }
        if self.refused.len() > self.examples.len() && accepted > &0 {
            writeln!(f, "  not accepted: {}", list_prompts(&self.refused))?;
        }
        for GoldExample { prompt, ground_truth, completion, answer } in &self.examples {
            let truth = excerpt(ground_truth);
            writeln!(f, "  {prompt}, ground truth `{truth}`: `{}` gave {answer}", excerpt(completion))?;
        }
        Ok(())
    }
}

/// The first of some prompts by their ids, and how many more there are.
fn list_prompts(prompts: &[u64]) -> String {
    let shown: Vec<String> = prompts.iter().take(NUM_LISTED).map(u64::to_string).collect();
    let more = prompts.len().saturating_sub(NUM_LISTED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let word = if prompts.len() == 1 { "prompt" } else { "prompts" };
    format!("{word} {}{more}", shown.join(", "))
}

/// Four digits are enough to identify a prompt.
fn format_score(score: f64) -> String {
    shortest(format!("{score:.3e}").parse().unwrap_or(score))
}

impl fmt::Display for GoldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.functions.iter().try_for_each(|function| function.fmt(f))?;
        let missing = self.describe_missing();
        self.notes().iter().chain(&missing).try_for_each(|note| writeln!(f, "{note}"))
    }
}

impl GoldReport {
    /// Notes on the prompts themselves.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.whole_solutions > 0 {
            notes.push(format!(
                "the ground truth of {} is a whole solution that ends in `#### ANSWER`, as in GSM8K: verifiers compare with the answer, \
                external functions and `exact` get the whole text",
                counted(self.whole_solutions, "prompt")
            ));
        }
        notes
    }

    /// Prompts without a ground truth, if a function may read it.
    pub fn describe_missing(&self) -> Option<String> {
        let rows = &self.without_ground_truth;
        let may_read = |function: &FunctionGold| function.reads_gold != Some(false);
        if rows.is_empty() || !self.functions.iter().any(may_read) {
            return None;
        }
        let (prompts, have) = (counted(rows.len(), "prompt"), agreed(rows.len(), "has", "have"));
        Some(format!(
            "{prompts} {have} no ground truth and cannot be scored against one ({})",
            list_prompts(rows)
        ))
    }
}

/// Scores the ground truth of every prompt with every function that has a notion of a right answer, in the
/// forms that [`super::RewardFunction::gold_completions`] names, until one is accepted. Functions from
/// outside, whose full score nobody knows, get all forms on a few prompts and then the one that got most, on
/// at most [`SAMPLE`] prompts ([`GoldExtent`]).
/// Texts that are no answer are scored on some prompts too. Fails only where a function broke down for good.
pub fn check_gold(prompts: &[Prompt], rewards: &Rewards) -> Result<GoldReport, RewardError> {
    check_gold_heard(prompts, rewards, GoldExtent::default(), &Nobody)
}

/// [`check_gold`] with a listener, which gets a message before an external function is called, and the
/// progress of a long check. Ends between two blocks of prompts (and an external function within one) with
/// [`RewardError::Interrupted`] if the listener requests it.
pub fn check_gold_heard(
    prompts: &[Prompt],
    rewards: &Rewards,
    extent: GoldExtent,
    listener: &dyn Listener,
) -> Result<GoldReport, RewardError> {
    let all_with_truth: Vec<&Prompt> =
        prompts.iter().filter(|prompt| prompt.ground_truth.is_some()).collect();
    let mut score_names = rewards.score_names();
    let (mut functions, mut blind) = (Vec::new(), Vec::new());
    for named in rewards.functions() {
        let is_sampled = named.nature.is_external && extent == GoldExtent::Sample;
        let sampled = is_sampled.then(|| outside::sample(&all_with_truth));
        let with_truth = sampled.as_deref().unwrap_or(&all_with_truth);
        let mut candidates: Vec<Vec<String>> = Vec::with_capacity(with_truth.len());
        for block in with_truth.chunks(BLOCK) {
            if listener.is_interrupted() {
                return Err(RewardError::Interrupted);
            }
            candidates.extend(block.iter().map(|prompt| named.function.gold_completions(prompt)));
        }
        let asked: Vec<usize> = (0..with_truth.len()).filter(|&row| !candidates[row].is_empty()).collect();
        if asked.is_empty() && with_truth.is_empty() && is_blind(named, prompts) {
            blind.push(named.name.clone());
        }
        if !asked.is_empty() {
            let check = Check {
                named,
                is_alone: rewards
                    .functions()
                    .iter()
                    .filter(|other| other.weight != 0.0 && other.nature.is_verifier)
                    .count()
                    <= 1,
                prompts: with_truth,
                sampled_from: Some(all_with_truth.len()).filter(|&all| all > with_truth.len()),
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
    let whole_solutions = all_with_truth.iter().filter(is_whole).count();
    let without = prompts.iter().filter(|prompt| prompt.ground_truth.is_none());
    let without_ground_truth = without.map(|prompt| prompt.id.0).collect();
    let number_column = number_column(&all_with_truth);
    Ok(GoldReport { functions, blind, without_ground_truth, whole_solutions, number_column, score_names })
}

/// Whether a function of ours that is trained on compares with a ground truth. An external one may have the
/// parameter and ignore it.
fn is_blind(named: &NamedReward, prompts: &[Prompt]) -> bool {
    let with_truth = |prompt: &Prompt| Prompt { ground_truth: Some("1".to_owned()), ..prompt.clone() };
    let is_asked = |prompt: &Prompt| !named.function.gold_completions(&with_truth(prompt)).is_empty();
    let is_sure = !named.nature.is_external && named.function.reads_gold() == Some(true);
    named.weight > 0.0 && is_sure && prompts.first().is_some_and(is_asked)
}

struct Check<'a> {
    named: &'a NamedReward,
    /// Whether no other function than shaping has a weight.
    is_alone: bool,
    prompts: &'a [&'a Prompt],
    sampled_from: Option<usize>,
    /// Forms of each prompt's answer.
    candidates: Vec<Vec<String>>,
    trainer_state: TrainerState,
    listener: &'a dyn Listener,
}

impl Check<'_> {
    fn run(&self, asked: &[usize], score_names: &mut BTreeSet<String>) -> Result<FunctionGold, RewardError> {
        if self.named.nature.is_external {
            self.run_outside(asked, score_names)
        } else {
            self.run_own(asked, score_names)
        }
    }

    /// A function from outside.
    fn run_outside(
        &self,
        asked: &[usize],
        score_names: &mut BTreeSet<String>,
    ) -> Result<FunctionGold, RewardError> {
        let num_forms = self.candidates.iter().map(Vec::len).max().unwrap_or(0);
        let name = &self.named.name;
        let of = self.sampled_from.map_or_else(String::new, |all| format!(" of {all}"));
        self.listener.announce(&format!(
            "checking {}{of} gold answers with reward `{name}`: it is called for about {} completions",
            asked.len(),
            outside::estimate(asked.len(), num_forms, NUM_RIVALS_OUTSIDE),
        ));
        let mut pace = Pace::begin(name, asked.len(), self.listener);
        let (outside, names) = Outside::ask_all(self, asked, &mut pace)?;
        score_names.extend(names);
        let mut function = self.judge(asked, &outside.best);
        // A function that does not take the ground truth is not suspected of ignoring it.
        if function.reads_gold != Some(false) {
            let form = best_form(&outside.of_forms);
            let score = |row| outside.scores.get(&(row, form)).copied().flatten();
            function.rivals = self.rivals(asked, |row| Some((form, score(row)?)), true)?;
        }
        Ok(self.with_examples(function, asked, &outside.best))
    }

    /// A function of tamis: until it accepts one of the forms.
    fn run_own(
        &self,
        asked: &[usize],
        score_names: &mut BTreeSet<String>,
    ) -> Result<FunctionGold, RewardError> {
        let mut pace = Pace::begin(&self.named.name, asked.len(), self.listener);
        let mut answers: Vec<Option<(usize, RewardOutcome)>> = vec![None; self.prompts.len()];
        let num_forms = self.candidates.iter().map(Vec::len).max().unwrap_or(0);
        // The form that was accepted most often comes first in the next block.
        let mut forms: Vec<(usize, usize)> = (0..num_forms).map(|form| (0, form)).collect();
        let (first, rest) = asked.split_at(asked.len().min(FIRST_BLOCK));
        for rows in std::iter::once(first).chain(rest.chunks(BLOCK)) {
            let mut open = rows.to_vec();
            for &(_, form) in &forms {
                let tried: Vec<usize> =
                    open.iter().copied().filter(|&row| form < self.candidates[row].len()).collect();
                let pairs: Vec<(usize, &str)> =
                    tried.iter().map(|&row| (row, self.candidates[row][form].as_str())).collect();
                for (row, outcome) in tried.into_iter().zip(self.ask(&pairs)?) {
                    if let RewardOutcome::Scored(scores) = &outcome {
                        score_names.extend(scores.keys().cloned());
                    }
                    let is_better = |before: &RewardOutcome| rank(&outcome, false) > rank(before, false);
                    if answers[row].as_ref().is_none_or(|(_, before)| is_better(before)) {
                        answers[row] = Some((form, outcome));
                    }
                }
                open.retain(|&row| !answers[row].as_ref().is_some_and(|(_, outcome)| is_accepted(outcome)));
            }
            for (form, outcome) in rows.iter().filter_map(|&row| answers[row].as_ref()) {
                if is_accepted(outcome) {
                    forms.iter_mut().filter(|(_, other)| other == form).for_each(|(wins, _)| *wins += 1);
                }
            }
            forms.sort_by_key(|&(wins, form)| (std::cmp::Reverse(wins), form));
            pace.advance(rows.len());
        }
        let mut function = self.judge(asked, &answers);
        if function.reads_gold != Some(false) && function.accepted > 0 {
            let gold = |row: usize| {
                let (form, outcome) = answers[row].as_ref()?;
                Some((*form, outcome.get("score")?))
            };
            function.rivals = self.rivals(asked, gold, false)?;
        }
        Ok(self.with_examples(function, asked, &answers))
    }

    /// With the first gold answers as examples, if none was refused and something else scores as much.
    fn with_examples(
        &self,
        mut function: FunctionGold,
        asked: &[usize],
        answers: &[Option<(usize, RewardOutcome)>],
    ) -> FunctionGold {
        if function.examples.is_empty() && function.is_rivalled() {
            let first = asked.iter().take(NUM_EXAMPLES);
            function.examples = first.map(|&row| self.example(row, answers[row].as_ref())).collect();
        }
        function
    }

    /// Scores completions of prompts, by their rows.
    fn ask(&self, pairs: &[(usize, &str)]) -> Result<Vec<RewardOutcome>, RewardError> {
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
                completion_ids: if self.named.nature.is_external { placeholders(completion) } else { &[] },
                ..RewardInput::text(self.prompts[row], completion)
            })
            .collect();
        let outcomes = self.named.function.score(&inputs);
        let fatal = outcomes.iter().find_map(|outcome| match outcome {
            RewardOutcome::Failed(failure) if failure.is_fatal() => Some(failure),
            _ => None,
        });
        match fatal {
            Some(failure) => Err(RewardError::fatal(&self.named.name, failure)),
            None => Ok(outcomes),
        }
    }

    fn judge(&self, asked: &[usize], answers: &[Option<(usize, RewardOutcome)>]) -> FunctionGold {
        let is_external = self.named.nature.is_external;
        let outcome = |row: usize| answers[row].as_ref().map(|(_, outcome)| outcome);
        let accs = || asked.iter().filter_map(|&row| outcome(row)?.get("acc"));
        let is_binary = accs().all(|acc| [0.0, 1.0].contains(&acc));
        let reads_gold = self.named.function.reads_gold();
        let takes = |outcome: &RewardOutcome| match outcome.get("acc") {
            _ if reads_gold == Some(false) => matches!(outcome, RewardOutcome::Scored(_)),
            _ if !is_external => is_accepted(outcome),
            Some(acc) => !is_binary || acc >= 1.0,
            None => matches!(outcome, RewardOutcome::Scored(_)),
        };
        let scores: Vec<f64> = asked.iter().filter_map(|&row| outcome(row)?.get("score")).collect();
        let mut function = FunctionGold {
            name: self.named.name.clone(),
            is_external,
            reads_gold,
            uses_gold: self.named.function.uses_gold(),
            is_rewarded: self.named.weight > 0.0,
            is_alone: self.is_alone,
            are_answers: asked
                .iter()
                .all(|&row| self.prompts[row].ground_truth.as_deref().is_some_and(is_short_answer)),
            checked: asked.len(),
            sampled_from: self.sampled_from,
            accepted: 0,
            rejected: 0,
            unanswered: 0,
            failed: 0,
            spread: GoldSpread::of(&scores),
            rivals: Vec::new(),
            by_source: Vec::new(),
            examples: Vec::new(),
            refused: Vec::new(),
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
                Some(RewardOutcome::Scored(_)) => &mut function.rejected,
                Some(RewardOutcome::Failed(_)) => &mut function.failed,
                Some(RewardOutcome::NoAnswer) | None => &mut function.unanswered,
            };
            *place += 1;
            function.refused.push(self.prompts[row].id.0);
            if function.examples.len() < NUM_EXAMPLES {
                let example = self.example(row, answers[row].as_ref());
                // A traceback is shown once.
                let is_failure = matches!(outcome(row), Some(RewardOutcome::Failed(_)));
                if !is_failure || function.examples.iter().all(|other| other.answer != example.answer) {
                    function.examples.push(example);
                }
            }
        }
        let counted =
            |(source, (accepted, checked)): (&str, (usize, usize))| (source.to_owned(), accepted, checked);
        function.by_source = sources.into_iter().map(counted).collect();
        function
    }

    fn example(&self, row: usize, answers: Option<&(usize, RewardOutcome)>) -> GoldExample {
        let (form, answer) = match answers {
            Some((form, RewardOutcome::Scored(scores))) => {
                let numbers: Vec<String> =
                    scores.iter().map(|(name, score)| format!("{name} {}", shortest(score.value))).collect();
                (*form, numbers.join(", "))
            }
            Some((form, RewardOutcome::Failed(failure))) => (*form, format!("a failure: {failure}")),
            Some((form, RewardOutcome::NoAnswer)) => (*form, "no answer".to_owned()),
            None => (0, "no answer".to_owned()),
        };
        GoldExample {
            prompt: self.prompts[row].named(),
            ground_truth: self.prompts[row].ground_truth.clone().unwrap_or_default(),
            completion: self.candidates[row].get(form).cloned().unwrap_or_default(),
            answer,
        }
    }
}

/// Ids for a function from outside, about as many as the text has tokens. There is no tokenizer here, and a
/// function that divides by their number must not fail.
fn placeholders(completion: &str) -> &'static [u32] {
    const CHARACTERS: usize = 4;
    static IDS: [u32; 4096] = [0; 4096];
    let num = completion.chars().count().div_ceil(CHARACTERS).clamp(1, IDS.len());
    &IDS[..num]
}

/// Prints the progress of a long check.
struct Pace<'a> {
    name: &'a str,
    done: usize,
    total: usize,
    reported: Instant,
    listener: &'a dyn Listener,
}

impl<'a> Pace<'a> {
    fn begin(name: &'a str, total: usize, listener: &'a dyn Listener) -> Self {
        Self { name, done: 0, total, reported: Instant::now(), listener }
    }

    fn advance(&mut self, by: usize) {
        self.done += by;
        if self.reported.elapsed() >= TELL_EVERY && self.done < self.total {
            self.reported = Instant::now();
            let Self { name, done, total, .. } = self;
            self.listener.progress(&format!("reward `{name}`: {done} of {total} gold answers checked"));
        }
    }
}

/// Rank of an outcome in a report: for an external function the highest score comes first.
fn rank(outcome: &RewardOutcome, is_external: bool) -> (u8, f64) {
    match outcome {
        RewardOutcome::Scored(_) if is_external => (2, outcome.get("score").unwrap_or(f64::NEG_INFINITY)),
        outcome if is_accepted(outcome) => (3, 0.0),
        RewardOutcome::Scored(_) => (2, 0.0),
        RewardOutcome::NoAnswer => (1, 0.0),
        RewardOutcome::Failed(_) => (0, 0.0),
    }
}

fn is_accepted(outcome: &RewardOutcome) -> bool {
    match outcome.get("acc") {
        Some(acc) => acc >= 1.0,
        None => outcome.get("score").is_some_and(|score| score > 0.0),
    }
}

#[cfg(test)]
mod tests;
