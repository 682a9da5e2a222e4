//! Validation: scored completions of held-out prompts, and the figures that measure the policy by them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tamis_config::ValidateConfig;
use tamis_core::figure::{counted, fixed, percent};
use tamis_core::group::{Trajectory, Turn};
use tamis_core::printable::{cut_middle, cut_start};
use tamis_data::prompt::PromptContent;
use tamis_env::reward::{Logged, RewardInput};
use tamis_rollout::{
    Beside, CompletionWorkers, DispatchError, DispatcherSettings, Fate, PreparedPrompt, Record,
    SamplePurpose, complete,
};

use crate::interrupt::{Halt, Interrupted};
use crate::measure::validation_metrics::{FigureName, PromptSamples, Quantity, REWARD, SourceResult};
use tamis_run::metrics::summary::{NumberSummary, PairedDifference};

/// Sampling of a validation's completions.
#[derive(Debug, Clone)]
pub struct ValidationSettings {
    /// Purpose of the samples.
    pub purpose: SamplePurpose,
    /// Its groups: their size, and how they are sampled.
    pub groups: DispatcherSettings,
    /// Samples kept as text.
    pub num_samples_shown: usize,
    /// Whether all samples are kept, to be written to a file.
    pub keeps_samples: bool,
}

/// One completion of a held-out prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// The prompt as the model got it.
    pub prompt: String,
    /// One line of the prompt to show: the user's last message, cut in its middle if it is long, or the
    /// end of a text.
    pub question: String,
    /// The policy's completion.
    pub completion: String,
    /// Its turns, if it was played in an environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// The ground truth.
    pub ground_truth: String,
    /// Whether it was right; `None` if no verifier decided.
    pub is_correct: Option<bool>,
}

/// The kinds of a mean outcome, which name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// A share of right answers: every outcome is a verifier's `acc`, 0 or 1.
    #[default]
    Accuracy,
    /// A mean of rewards.
    Score,
    /// Nothing was scored.
    Unscored,
}

impl OutcomeKind {
    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Score => "mean score",
            Self::Unscored => "no score",
        }
    }

    /// A mean of it: `51.6%` or `0.516`; `None` if nothing was scored.
    pub fn figure(self, mean: Option<f64>) -> Option<String> {
        match self {
            Self::Accuracy => Some(percent(mean?)),
            Self::Score => Some(fixed(mean?, 3)),
            Self::Unscored => None,
        }
    }

    /// Like [`Self::figure`], with its standard error: `51.6% ± 2.2%`.
    pub fn figure_within(self, mean: Option<f64>, error: Option<f64>) -> Option<String> {
        let error =
            error.and_then(|_| self.figure(error)).map_or_else(String::new, |error| format!(" ± {error}"));
        Some(self.figure(mean)? + &error)
    }

    /// Name, mean and standard error: `accuracy 51.6% ± 2.2%`, `mean score 0.516`, `no score`.
    ///
    /// ```
    /// use tamis_train::measure::validation::OutcomeKind;
    /// assert_eq!(OutcomeKind::Accuracy.describe_mean(Some(0.0312), Some(0.011)), "accuracy 3.1% ± 1.1%");
    /// assert_eq!(OutcomeKind::Score.describe_mean(Some(0.0312), None), "mean score 0.031");
    /// assert_eq!(OutcomeKind::Unscored.describe_mean(None, None), "no score");
    /// ```
    pub fn describe_mean(self, mean: Option<f64>, error: Option<f64>) -> String {
        match self.figure_within(mean, error) {
            Some(figure) => format!("{} {figure}", self.name()),
            None => Self::Unscored.name().to_owned(),
        }
    }
}

/// Results of a validation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValidationReport {
    /// Prompts.
    pub num_prompts: usize,
    /// Prompts that are in the training data too.
    pub num_in_training: usize,
    /// Prompts that could not be generated from.
    pub num_failed: usize,
    /// Why the first of them failed.
    #[serde(skip)]
    pub first_failure: Option<String>,
    /// Completions with an outcome: their `acc`, or `score` without one.
    pub num_scored: usize,
    /// Mean outcome over prompts and samples, the figure that runs are compared by; `None` if no
    /// completion has one.
    pub accuracy: Option<f64>,
    /// Success by data source: the mean over its prompts of the mean outcome of their samples. Sources
    /// without an outcome are not there.
    pub success_by_source: BTreeMap<String, f64>,
    /// Kind of the mean outcome.
    pub outcome: OutcomeKind,
    /// Mean outcome of each prompt, in their order; `None` if nothing was scored.
    pub outcomes: Vec<Option<f64>>,
    /// Mean length of the completions in tokens; `None` without completions.
    pub mean_length: Option<f64>,
    /// Some completions.
    pub shown: Vec<Shown>,
}

impl ValidationReport {
    /// Standard error of the mean outcome, over the prompts; `None` below two of them, and if all are
    /// equal.
    pub fn standard_error(&self) -> Option<f64> {
        NumberSummary::of(self.outcomes.iter().copied().flatten())?.standard_error()
    }

    /// By how much another validation of the same prompts is better, prompt by prompt over those that were
    /// scored both times; `None` if there is none.
    pub fn gains(&self, other: &Self) -> Option<PairedDifference> {
        PairedDifference::new(&self.outcomes, &other.outcomes)
    }

    /// Mean improvement of a later validation over this one on the same prompts, among those scored
    /// both times, with its standard error. The difference is taken prompt by prompt, so differences
    /// between prompts cancel. `None` with fewer than two such prompts, or if all gained the same.
    pub fn gain(&self, later: &Self) -> Option<(f64, f64)> {
        let gains = self.gains(later)?.summary;
        Some((gains.mean, gains.standard_error()?))
    }

    /// Prompts of which a completion was scored.
    pub fn num_scored_prompts(&self) -> usize {
        self.outcomes.iter().flatten().count()
    }

    /// Prompts that the figures include, with the number of all if some could not be generated from or were
    /// not scored: `8 prompts`, `4 of 8 prompts`.
    pub fn describe_prompts(&self) -> String {
        match self.num_scored_prompts() {
            scored if scored == self.num_prompts || self.num_scored == 0 => {
                counted(self.num_prompts, "prompt")
            }
            scored => format!("{scored} of {} prompts", self.num_prompts),
        }
    }
}

/// A validation with everything that it sampled.
#[derive(Debug, Clone, Default)]
pub struct Validation {
    /// Samples that the figures are computed from, prompt by prompt.
    pub prompts: Vec<PromptSamples>,
    /// Results of the validation.
    pub report: ValidationReport,
    /// The groups of all completions; empty unless [`ValidationSettings::keeps_samples`].
    pub samples: Vec<Record>,
}

/// A held-out prompt with its completions, which are scored.
struct ValidationGroup {
    record: Record,
    /// The answer of each completion for the majority vote, if a reward reads answers.
    votes: Option<Vec<String>>,
}

/// Completes and scores the prompts. `journal` is a prefix of the trajectories' journal keys, different for
/// every validation of a run; `progress` is given the number of prompts that are done.
pub fn sample(
    with: CompletionWorkers<'_>,
    prompts: &[PreparedPrompt],
    settings: &ValidationSettings,
    journal: String,
    step: u64,
    progress: &mut dyn FnMut(usize),
) -> Result<Validation, Halt<DispatchError>> {
    let CompletionWorkers { generator, inbox, scorer, is_interrupted } = with;
    let beside = Beside { purpose: settings.purpose, step, journal };
    let with = CompletionWorkers { generator, inbox, scorer: &mut *scorer, is_interrupted };
    let records = complete(with, prompts, settings.groups.clone(), beside, progress).map_err(Halt::Failed)?;
    let group = |record: Record| {
        let inputs: Vec<RewardInput<'_>> =
            record.group.trajectories.iter().map(|trajectory| record.input(trajectory)).collect();
        let pred = |i| record.logged.get(i).and_then(|logged: &Logged| logged.columns.get("pred").cloned());
        let preds: Vec<Option<String>> = (0..inputs.len()).map(pred).collect();
        let votes = scorer.rewards().votes(&inputs, &preds);
        ValidationGroup { record, votes }
    };
    let groups: Vec<ValidationGroup> = records.ok_or(Interrupted)?.into_iter().map(group).collect();
    Ok(Validation {
        report: report(&groups, settings.num_samples_shown),
        prompts: groups.iter().map(ValidationGroup::row).collect(),
        samples: if settings.keeps_samples {
            groups.into_iter().map(|group| group.record).collect()
        } else {
            Vec::new()
        },
    })
}

fn score_of(trajectory: &Trajectory, name: &str) -> Option<f64> {
    trajectory.scores.get(name).map(|score| score.value)
}

/// The `acc` of a completion, or its `score` if there is none; NaN if it is unscored.
fn outcome(trajectory: &Trajectory) -> f64 {
    score_of(trajectory, "acc").or_else(|| score_of(trajectory, "score")).unwrap_or(f64::NAN)
}

impl ValidationGroup {
    fn source(&self) -> &str {
        source_of(&self.record.prompt.prompt.data_source)
    }

    fn trajectories(&self) -> &[Trajectory] {
        &self.record.group.trajectories
    }

    /// Why one of them could not be generated.
    fn failure(&self) -> Option<&str> {
        match &self.record.fate {
            Fate::Failed(reason) => Some(reason),
            _ => None,
        }
    }

    fn row(&self) -> PromptSamples {
        let mut row = PromptSamples::of_group(self.source(), &self.record.group, self.votes.clone());
        row.is_failed = self.failure().is_some();
        // Rewards from only shaping are not a measurement: a completion that no other function scored
        // is unscored.
        for (reward, trajectory) in row.scores.get_mut(REWARD).into_iter().flatten().zip(self.trajectories())
        {
            if score_of(trajectory, "score").is_some_and(f64::is_nan) {
                *reward = f64::NAN;
            }
        }
        for (name, values) in self.record.logged.iter().flat_map(|logged| &logged.metrics) {
            row.logged.entry(name.clone()).or_default().extend(values);
        }
        row
    }

    fn shown(&self, trajectory: &Trajectory) -> Shown {
        let PreparedPrompt { prompt, text, .. } = &self.record.prompt;
        Shown {
            prompt: String::from(&**text),
            question: question(&prompt.content),
            completion: trajectory.text.clone(),
            turns: trajectory.episode.as_ref().map_or_else(Vec::new, |episode| episode.turns.clone()),
            ground_truth: prompt.ground_truth.clone().unwrap_or_default(),
            is_correct: score_of(trajectory, "acc").filter(|acc| !acc.is_nan()).map(|acc| acc >= 1.0),
        }
    }
}

fn report(groups: &[ValidationGroup], num_shown: usize) -> ValidationReport {
    let all = || groups.iter().flat_map(|group| group.trajectories().iter().map(move |one| (group, one)));
    let scored = || all().map(|(_, one)| (one, outcome(one))).filter(|(_, outcome)| !outcome.is_nan());
    let (num_samples, num_scored) = (all().count(), scored().count());
    let is_verified = |one: &Trajectory| score_of(one, "acc").is_some_and(|acc| [0.0, 1.0].contains(&acc));
    let mean = |values: Vec<f64>| NumberSummary::of(values).map(|summary| summary.mean);
    let mut successes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let of_group = |group: &ValidationGroup| mean(group.trajectories().iter().map(outcome).collect());
    let outcomes: Vec<Option<f64>> = groups.iter().map(of_group).collect();
    for (group, mean) in groups.iter().zip(&outcomes) {
        if let Some(mean) = mean {
            successes.entry(group.source()).or_default().push(*mean);
        }
    }
    let failures = || groups.iter().filter_map(|group| Some((group, group.failure()?)));
    let length: usize = all().map(|(_, one)| one.num_written()).sum();
    let sum = scored().fold(0.0, |sum, (_, outcome)| sum + outcome);
    ValidationReport {
        num_prompts: groups.len(),
        num_in_training: 0,
        num_failed: failures().count(),
        first_failure: failures().next().map(|(group, reason)| format!("{reason} (of `{}`)", group.source())),
        num_scored,
        accuracy: (num_scored > 0).then(|| sum / num_scored as f64),
        success_by_source: successes
            .into_iter()
            .map(|(source, of_prompts)| (source.to_owned(), mean(of_prompts).unwrap_or(f64::NAN)))
            .collect(),
        outcome: match num_scored {
            0 => OutcomeKind::Unscored,
            _ if scored().all(|(one, _)| is_verified(one)) => OutcomeKind::Accuracy,
            _ => OutcomeKind::Score,
        },
        outcomes,
        mean_length: (num_samples > 0).then(|| length as f64 / num_samples as f64),
        shown: different_prompts(all()).take(num_shown).map(|(group, one)| group.shown(one)).collect(),
    }
}

/// The completions in an order in which different prompts come first: one completion of each, then the second
/// ones.
fn different_prompts<'g>(
    all: impl Iterator<Item = (&'g ValidationGroup, &'g Trajectory)>,
) -> impl Iterator<Item = (&'g ValidationGroup, &'g Trajectory)> {
    let mut counts: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
    let mut ranked: Vec<_> = all
        .map(|(group, one)| {
            let PreparedPrompt { prompt, text, .. } = &group.record.prompt;
            let count = counts.entry((&**text, prompt.ground_truth.as_deref())).or_default();
            *count += 1;
            (*count, group, one)
        })
        .collect();
    ranked.sort_by_key(|(count, ..)| *count);
    ranked.into_iter().map(|(_, group, one)| (group, one))
}

/// A figure of a validation, if it has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Found {
    /// The figure's value.
    Value(f64),
    /// Nothing was scored that it could be made of.
    Unscored,
    /// No completion of its data source has such a score, though others were scored.
    NoSuchScore,
}

/// The value of a figure among what a validation found.
pub fn find(figure: &FigureName, rows: &[PromptSamples], results: &[SourceResult]) -> Found {
    let of_source = || rows.iter().filter(|row| row.source == figure.source);
    let value = results.iter().find(|result| result.source == figure.source);
    if let Some(value) = value.and_then(|result| result.value(&figure.quantity)) {
        return Found::Value(value);
    }
    let is_there = match &figure.quantity {
        Quantity::Of { score, .. } => of_source().any(|row| row.scores.contains_key(score)),
        _ => true,
    };
    let is_scored = of_source().any(|row| row.scores.values().flatten().any(|value| !value.is_nan()));
    if !is_there && is_scored { Found::NoSuchScore } else { Found::Unscored }
}

/// Names of the scores that reward functions gave to any completion.
pub fn score_names(rows: &[PromptSamples]) -> BTreeSet<&str> {
    rows.iter().flat_map(|row| row.scores.keys().map(String::as_str)).filter(|name| *name != REWARD).collect()
}

fn question(content: &PromptContent) -> String {
    const LONGEST: usize = 200;
    match content {
        PromptContent::Text(text) => cut_start(text, LONGEST),
        PromptContent::Messages(_) => cut_middle(content.question(), LONGEST),
    }
}

/// verl's name for a missing data source.
pub(crate) fn source_of(data_source: &str) -> &str {
    if data_source.is_empty() { "unknown" } else { data_source }
}

/// Keeps only the figures of `validate.metrics` in the results.
pub fn retain_configured(results: &mut [SourceResult], config: &ValidateConfig) {
    for result in results {
        result.figures.retain(|figure| config.metrics.contains(&figure.statistic.metric()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::support::{prepared, prompt};
    use tamis_data::prompt::{Message, Prompt};
    use tamis_env::reward::{NamedReward, RewardFunction, RewardOutcome as Answer, Rewards};
    use tamis_rollout::fake::{FakeGenerator, FakeSettings};
    use tamis_rollout::{Generator, Inbox, Plays, SampleRequest, Sampling, Scorer};

    /// Answers every prompt with its token and the number of the sample.
    fn counts() -> FakeGenerator {
        let answer = |request: &SampleRequest| format!("{}.{}", request.id.group, request.id.member);
        FakeGenerator::answering(FakeSettings::faultless(1), Box::new(answer))
    }

    /// Correct if the completion is one of these; no answer if it begins with `3`, or if the list is
    /// empty.
    struct Among(&'static [&'static str]);

    impl RewardFunction for Among {
        fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Answer> {
            let answer = |input: &RewardInput<'_>| {
                let is_correct = self.0.contains(&input.completion);
                if self.0.is_empty() || input.completion.starts_with('3') {
                    Answer::NoAnswer
                } else {
                    Answer::verified(0.5, is_correct)
                }
            };
            batch.iter().map(answer).collect()
        }

        fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
            let answer = |input: &RewardInput<'_>| input.completion.chars().skip(2).collect();
            (!self.0.is_empty()).then(|| batch.iter().map(answer).collect())
        }
    }

    /// The majority is one of answers, not of texts.
    #[test]
    fn votes_are_those_of_the_reward() {
        let (rows, _) = validated(&["sums", "sums"], &["0.0"]);
        assert_eq!(rows[1].answers, Some(vec!["0".to_owned(), "1".to_owned()]));
        let (rows, _) = validated(&["sums"], &[]);
        assert_eq!(rows[0].answers, None, "a function that reads no answers has no majority");
    }

    /// Two samples each of prompts of these sources, correct if they are among these.
    fn sampled(
        generator: &mut dyn Generator,
        is_interrupted: bool,
        sources: &[&str],
        correct: &'static [&'static str],
    ) -> Result<Validation, Halt<DispatchError>> {
        let prompt = |(id, source): (usize, &&str)| {
            prepared(Prompt { data_source: (*source).to_owned(), ..prompt(id as u64, "?") })
        };
        let prompts: Vec<PreparedPrompt> = sources.iter().enumerate().map(prompt).collect();
        sampled_of(generator, is_interrupted, &prompts, correct, 0)
    }

    /// Two samples each of these prompts, so many of which are shown.
    fn sampled_of(
        generator: &mut dyn Generator,
        is_interrupted: bool,
        prompts: &[PreparedPrompt],
        correct: &'static [&'static str],
        num_samples_shown: usize,
    ) -> Result<Validation, Halt<DispatchError>> {
        let function = NamedReward::verifier("among", Box::new(Among(correct)));
        let mut scorer = Scorer::new(Rewards::new(vec![function]).expect("a function"));
        let groups = DispatcherSettings {
            seed: 1,
            group_size: 2,
            sampling: Sampling::plain(2),
            is_metric_unproven: false,
            recomputes_logprobs: true,
            hands_out_parts: false,
        };
        let settings = ValidationSettings {
            purpose: SamplePurpose::Validation,
            groups,
            num_samples_shown,
            keeps_samples: false,
        };
        let interrupt = Interrupt::new();
        if is_interrupted {
            interrupt.signal();
        }
        let mut plays = Plays::none();
        let with = CompletionWorkers {
            generator: &mut plays.over(generator),
            inbox: &mut Inbox::default(),
            scorer: &mut scorer,
            is_interrupted: &|| interrupt.is_requested(),
        };
        sample(with, prompts, &settings, "validation/1".to_owned(), 1, &mut |_| {})
    }

    fn validated(
        sources: &[&str],
        correct: &'static [&'static str],
    ) -> (Vec<PromptSamples>, ValidationReport) {
        let validation = sampled(&mut counts(), false, sources, correct).expect("validates");
        (validation.prompts, validation.report)
    }

    /// A measurement that Ctrl-C aborts is made again: by a resume, or at once if the run ends.
    #[test]
    fn what_is_given_up_is_not_left_in_flight() {
        let mut generator = counts();
        for _ in 0..2 {
            let error = sampled(&mut generator, true, &["", ""], &[]).expect_err("interrupted");
            assert!(matches!(error, Halt::Interrupted), "{error}");
            assert_eq!(generator.load().in_flight, 0);
        }
    }

    /// `low_success` counts successes by data source, whatever is logged.
    #[test]
    fn success_is_counted_by_data_source() {
        // Three of four in `sums`, none in the unnamed source, nothing known of `proofs`.
        let (rows, report) = validated(&["sums", "", "sums", "proofs"], &["0.0", "0.1", "2.1"]);
        let successes: Vec<(&str, f64)> =
            report.success_by_source.iter().map(|(source, success)| (source.as_str(), *success)).collect();
        assert_eq!(successes, [("sums", 0.75), ("unknown", 0.0)]);
        assert_eq!((report.num_scored, report.accuracy), (6, Some(0.5)));
        // The same figures as the logged ones.
        let mut figures = tamis_run::metrics::Metrics::new();
        for result in crate::measure::validation_metrics::results_by_source(&rows) {
            result.put(&mut figures);
        }
        assert_eq!(figures.get("val-core/sums/acc/mean@2"), Some(0.75));
        assert_eq!(figures.get("val-core/unknown/acc/mean@2"), Some(0.0));
        assert_eq!(figures.get("val-core/proofs/acc/mean@2"), None);
    }

    #[test]
    fn a_validation_without_any_answer_has_no_success() {
        let (rows, report) = validated(&["sums", "sums"], &[]);
        assert_eq!((report.num_scored, report.success_by_source.len()), (0, 0));
        let lengths: Vec<usize> = rows.iter().flat_map(|row| row.lengths.clone()).collect();
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert_eq!((report.accuracy, report.mean_length), (None, Some(mean)));
        assert_eq!(report.outcome.describe_mean(report.accuracy, None), "no score");
    }

    /// Two samples each: three examples are of three prompts, and of five the last two are second samples.
    #[test]
    fn examples_are_of_different_prompts() {
        let shown = |num: usize| {
            let prompt = |id: u64| {
                let text = format!("{id}+1=");
                PreparedPrompt { text: text.as_str().into(), ..prepared(prompt(id, &text)) }
            };
            let prompts: Vec<PreparedPrompt> = (0..3).map(prompt).collect();
            let report = sampled_of(&mut counts(), false, &prompts, &["0.0"], num).expect("validates").report;
            report.shown.into_iter().map(|one| one.completion).collect::<Vec<_>>()
        };
        assert_eq!(shown(3), ["0.0", "1.0", "2.0"]);
        assert_eq!(shown(5), ["0.0", "1.0", "2.0", "0.1", "1.1"]);
    }

    #[test]
    fn what_is_shown_of_a_prompt_is_its_question() {
        let message = |role: &str, content: &str| Message::new(role, content);
        let long = format!("How many\napples {}remain?", "and pears ".repeat(40));
        let chat = [message("system", &"Think. ".repeat(90)), message("user", &long)];
        let shown = question(&PromptContent::Messages(chat.to_vec()));
        assert!(
            shown.starts_with(r"How many\napples and pears") && shown.ends_with("pears remain?"),
            "{shown}"
        );
        assert!(shown.contains('…') && !shown.contains("Think"), "{shown}");
        let few_shot = format!("Q: 1+1?\nA: 2\n{}Q: 3+4?\nA:", "Q: 2+2?\nA: 4\n".repeat(40));
        let shown = question(&PromptContent::Text(few_shot));
        assert!(shown.starts_with('…') && shown.ends_with(r"A: 4\nQ: 3+4?\nA:"), "{shown}");
        assert_eq!(question(&PromptContent::Text("3+4=".to_owned())), "3+4=");
    }

    #[test]
    fn a_gain_is_taken_prompt_by_prompt() {
        let report = |outcomes: &[Option<f64>]| ValidationReport {
            outcomes: outcomes.to_vec(),
            ..ValidationReport::default()
        };
        let before = report(&[Some(0.0), Some(0.5), Some(1.0), None]);
        let after = report(&[Some(1.0), Some(0.5), Some(1.0), Some(1.0)]);
        // Gains of 1, 0, 0: their deviation is 1 / sqrt(3), their error a third.
        let (gain, error) = before.gain(&after).expect("three prompts");
        assert!((gain - 1.0 / 3.0).abs() < 1e-12 && (error - 1.0 / 3.0).abs() < 1e-12, "{gain} {error}");
        // Each of the two is known worse: outcomes of 0, 1/2 and 1 have a deviation of 1/2.
        let error = before.standard_error().expect("three prompts");
        assert!((error - 0.5 / 3f64.sqrt()).abs() < 1e-12, "{error}");
        assert_eq!(before.gain(&before), None, "all gained the same");
        assert_eq!(report(&[Some(0.5)]).standard_error(), None);
        assert_eq!(before.gain(&report(&[])), None, "other prompts");
    }

    #[test]
    fn an_accuracy_and_a_mean_score_are_told_apart() {
        let describe_mean = |kind: OutcomeKind| kind.describe_mean(Some(0.031_25), None);
        assert_eq!(describe_mean(OutcomeKind::Accuracy), "accuracy 3.1%");
        assert_eq!(describe_mean(OutcomeKind::Score), "mean score 0.031");
        assert_eq!(describe_mean(OutcomeKind::Unscored), "no score");
        assert_eq!(OutcomeKind::Accuracy.describe_mean(None, None), "no score");
    }
}
