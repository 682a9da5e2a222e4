//! Why a run stopped for lack of signal, and what to change.

mod screening;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::yields::{PassRateSpread, expected_rounds, keep_probability, limit_for_pass_rate};
use super::{OnLimit, RoundLimit, ScheduleSettings, Tally, UNKNOWN_BATCHES};
use crate::figure::{counted, percent};

/// Why an attempt at a step ended without training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The rounds were used up.
    LimitReached,
    /// A round kept nothing.
    EmptyRound,
    /// The data ended and nothing was kept.
    DataExhausted,
}

/// Cause of a stopped run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The limit on rounds was reached, and the settings make that an error.
    LimitReached,
    /// A number of rounds in a row kept nothing.
    EmptyRounds {
        /// Number of rounds.
        rounds: u32,
    },
    /// A whole epoch kept nothing. If prompts were passed over: this epoch and those before it.
    EpochWithoutKept {
        /// Index of the epoch, from 0.
        epoch: u64,
        /// Number of epochs in a row, this one the last.
        #[serde(default = "one")]
        epochs: u64,
    },
    /// A number of attempts at the step in a row trained nothing.
    SkippedSteps {
        /// Number of attempts.
        steps: u32,
        /// Why the last one was skipped.
        why: SkipReason,
    },
    /// An epoch had no prompt at all.
    NoPrompts {
        /// Index of the epoch, from 0.
        epoch: u64,
    },
}

fn one() -> u64 {
    1
}

/// A setting to change, from what to what, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The configuration key.
    pub setting: String,
    /// The change to make (`15 -> 25`).
    pub change: String,
    /// The numbers that support it.
    pub why: String,
}

/// Prompts that a selector passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// The selector (`posterior`, ...).
    pub selector: String,
    /// Prompts that were decided on since a step was last trained.
    pub considered: u64,
    /// Those of them that were skipped.
    pub skipped: u64,
}

/// Observations of a run that stopped, and the changes to make. `Display` is the text for the user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Cause of the stop.
    pub cause: StopCause,
    /// The step that could not be trained, from 1.
    pub step: u64,
    /// Number of rounds that were examined.
    pub rounds: u64,
    /// Number of kept groups.
    pub num_accumulated: usize,
    /// Number of groups that the step needs.
    pub target: usize,
    /// The limit on rounds, if there was one.
    pub max_num_gen_batches: Option<u64>,
    /// Whether that limit came from the keep rate ([`RoundLimit::Auto`]).
    pub is_limit_adaptive: bool,
    /// Prompts of a round.
    pub gen_batch_size: usize,
    /// The filter's metric.
    pub metric: String,
    /// Verdicts on the groups.
    pub tally: Tally,
    /// Prompts without a group because a selector passed over them, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<PassedOver>,
    /// Changes to make, the likeliest remedy first.
    pub recommendations: Vec<Recommendation>,
}

const MOST_SAMPLES: usize = 64;
/// A greater limit on rounds is not a remedy.
const MOST_ROUNDS: u64 = 50;

impl Diagnosis {
    /// From the observations under these settings.
    pub fn new(
        cause: StopCause,
        step: u64,
        num_accumulated: usize,
        rounds: u64,
        limit: Option<u64>,
        tally: Tally,
        settings: &ScheduleSettings,
    ) -> Self {
        let advice = Advice { cause, tally: &tally, settings, limit, num_accumulated, list: Vec::new() };
        Self {
            cause,
            step,
            rounds,
            num_accumulated,
            target: settings.train_batch_size,
            max_num_gen_batches: limit,
            is_limit_adaptive: settings.max_num_gen_batches == RoundLimit::Auto,
            gen_batch_size: settings.gen_batch_size,
            metric: settings.metric.to_string(),
            tally,
            passed_over: None,
            recommendations: advice.all(),
        }
    }

    /// Names the selector that passed over prompts since a step was last trained, if it did.
    pub fn note_passed_over(&mut self, passed_over: PassedOver) {
        let PassedOver { selector, considered, skipped } = &passed_over;
        if *skipped == 0 {
            return;
        }
        if 2 * skipped >= *considered {
            self.recommendations.push(Recommendation {
                setting: "schedule.selector.kind".to_owned(),
                change: format!("{selector} -> shuffle"),
                why: format!(
                    "{skipped} of {considered} prompts were skipped because of their earlier groups; how they would do now is not known"
                ),
            });
        }
        self.passed_over = Some(passed_over);
    }
}

/// Collects recommendations; each rule is a method.
struct Advice<'a> {
    cause: StopCause,
    tally: &'a Tally,
    settings: &'a ScheduleSettings,
    limit: Option<u64>,
    num_accumulated: usize,
    list: Vec<Recommendation>,
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Advice<'_> {
    fn all(mut self) -> Vec<Recommendation> {
        if let StopCause::NoPrompts { epoch } = self.cause {
            self.say(
                "data.train",
                "give it prompts",
                format!("epoch {} had none: every row may have been dropped as too long", epoch + 1),
            );
            return self.list;
        }
        if self.tally.groups == 0 {
            return self.list;
        }
        self.failures();
        self.scores();
        self.singletons();
        self.pool();
        self.screening();
        self.identical_texts();
        self.difficulty();
        self.group_size();
        self.rounds();
        self.batch();
        if self.list.is_empty() {
            let why = format!("none of the {} groups had contrast in it", self.tally.groups);
            self.say("filter.metric", format!("check what `{}` measures", self.settings.metric), why);
        }
        self.list
    }

    fn say(&mut self, setting: &str, change: impl Into<String>, why: String) {
        self.list.push(Recommendation { setting: setting.to_owned(), change: change.into(), why });
    }

    fn failures(&mut self) {
        let Tally { failed, groups, .. } = *self.tally;
        if share(failed, groups) >= 0.1 {
            let why = format!("{failed} of {groups} groups failed for good; the log has their errors");
            self.say("rollout.backend", "check that generation works", why);
        }
    }

    fn scores(&mut self) {
        let Tally { unscored, uniform, all_wrong, all_correct, groups, .. } = *self.tally;
        if share(unscored, groups) >= 0.1 {
            let why = format!(
                "{unscored} of {groups} groups have no `{}` for two members: the reward function gave no answer",
                self.settings.metric
            );
            self.say("reward", "check its inputs and results", why);
        }
        if uniform > all_wrong + all_correct && share(uniform, groups) >= 0.5 {
            let why = format!(
                "{uniform} of {groups} groups have the same `{}` for all members, neither 0 nor 1: does it tell right from wrong?",
                self.settings.metric
            );
            self.say("reward", "check that it separates answers", why);
        }
    }

    fn singletons(&mut self) {
        if self.tally.singleton > 0 {
            let why = "a group of one has nothing to compare".to_owned();
            if self.settings.group_size < 8 {
                self.say("rollout.n", format!("{} -> 8", self.settings.group_size), why);
            }
            // The filters that compare groups treat a group of one member as one without spread.
            if self.settings.filter.is_some_and(|filter| filter.singleton().is_some()) {
                let why = "trains on single samples as verl does".to_owned();
                self.say("filter.singleton", "drop -> keep", why);
            }
        }
    }

    /// Groups that a comparison within the round left out although they have signal.
    fn pool(&mut self) {
        let Tally { outside_pool, zero_score, kept, groups, .. } = *self.tally;
        if share(outside_pool, groups) >= 0.25 {
            let why = format!(
                "{outside_pool} of {groups} groups lost to better ones of their round, {kept} were kept: a selection may not fill a batch"
            );
            if self.settings.refill {
                self.say("schedule.refill", "true -> false: train on what a round leaves", why);
            } else {
                self.say("filter", "keep a larger share of a round", why);
            }
        }
        if share(zero_score, groups) >= 0.25 {
            let why = format!("{zero_score} of {groups} groups differ within but have a score of 0");
            self.say("filter.include_zero", "false -> true, or another filter.score", why);
        }
    }

    /// Share of correct trajectories, as it would be with whole groups.
    fn pass_rate(&self) -> Option<f64> {
        let by_first = self.settings.screen_first.and_then(|_| self.tally.mean_pass_rate());
        by_first.or(self.tally.pass_rate())
    }

    fn identical_texts(&mut self) {
        let Tally { identical_in_text, groups, .. } = *self.tally;
        if share(identical_in_text, groups) < 0.5 {
            return;
        }
        let times = self.settings.screen_first.map_or_else(
            || self.settings.group_size.to_string(),
            // Groups that ended early have this many members.
            |first| format!("{first} or more"),
        );
        let why = format!("{identical_in_text} of {groups} groups hold the same text {times} times");
        match self.settings.temperature {
            Some(temperature) if temperature < 1.0 => {
                self.say("rollout.temperature", format!("{temperature} -> 1.0"), why);
            }
            Some(temperature) if self.settings.cuts_sampling == Some(false) => {
                let why = format!(
                    "{why} at temperature {temperature}, and nothing cuts the sampling: the policy has collapsed"
                );
                self.say(
                    "objective.entropy.coefficient",
                    "raise it, or lower train.optimizer.learning_rate, in a run from an earlier checkpoint",
                    why,
                );
            }
            Some(temperature) => {
                let why = format!(
                    "{why} at temperature {temperature}: the policy has collapsed, or top_k, top_p or min_p leave it no choice"
                );
                self.say("rollout.top_p", "-> 1.0, and top_k, min_p off", why);
            }
            None => self.say("rollout.temperature", "raise it, to 1.0 say", why),
        }
    }

    fn difficulty(&mut self) {
        let Some(pass_rate) = self.pass_rate() else { return };
        let Tally { rated, correct, groups, .. } = *self.tally;
        let all_correct = self.tally.all_correct + self.tally.screened_correct;
        let all_wrong = self.tally.all_wrong + self.tally.screened_wrong;
        let metric = &self.settings.metric;
        let counted = match self.settings.screen_first {
            // Groups with more members are those whose first members differ.
            Some(first) => {
                format!("{} of the first {first} members of groups are correct", percent(pass_rate))
            }
            None => {
                format!("{correct} of {rated} trajectories are correct ({})", percent(share(correct, rated)))
            }
        };
        let so_far = self.settings.screen_first.map_or("", |_| " as far as they were sampled");
        if correct == 0 {
            // The rule of three: with no success in N, p < 3/N at 95 %.
            let bound = 3.0 / rated as f64;
            let why = format!(
                "none of {rated} trajectories is correct by `{metric}` (pass rate below {} at 95%): too hard \
                    for this policy, or the verifier accepts nothing",
                percent(bound.min(1.0))
            );
            self.say(
                "data",
                format!(
                    "take easier prompts in {}, or start from a policy that solves some",
                    self.settings.difficulty_in
                ),
                why,
            );
            let rejects = "a verifier that rejects its own gold rejects everything".to_owned();
            match self.settings.scores_gold {
                None => self.say("reward", "score the gold answers", rejects),
                Some(false) => self.say("data.check_gold", "off -> warn", rejects),
                Some(true) => self.say(
                    "reward",
                    "check in rollouts/ whether completions have the answer where the verifier looks for it",
                    "the gold answers themselves were scored at the start".to_owned(),
                ),
            }
        } else if pass_rate < 0.05 {
            let why = format!("{counted}, {all_wrong} of {groups} groups are all wrong{so_far}");
            self.say(
                "data",
                format!(
                    "take easier prompts in {}, or start from a policy that solves more",
                    self.settings.difficulty_in
                ),
                why,
            );
        } else if pass_rate > 0.95 {
            let why = format!("{counted}, {all_correct} of {groups} groups are all correct{so_far}");
            self.say("data", format!("take harder prompts in {}", self.settings.difficulty_in), why);
            if self.settings.filter.is_some() {
                self.say("filter", "-> null", "a task this easy is not worth refilling for".to_owned());
            }
        } else if matches!(PassRateSpread::fit(self.tally), Some(PassRateSpread::Split(_)))
            && self.tally.kept == 0
        {
            let why = match self.settings.screen_first {
                Some(first) => format!(
                    "the first {first} members are all right in {all_correct} groups and all wrong in {all_wrong}, and \
                        differ in none"
                ),
                None => format!(
                    "every prompt is solved always ({all_correct} groups) or never ({all_wrong}), though {} of \
                        trajectories are correct: more samples will not help",
                    percent(pass_rate)
                ),
            };
            self.say(
                "data",
                format!("take prompts of middling difficulty in {}", self.settings.difficulty_in),
                why,
            );
        }
    }

    /// Whether the rounds were used up, so that their number, size or yield has to change.
    fn ran_out(&self) -> bool {
        match self.cause {
            StopCause::LimitReached => true,
            StopCause::SkippedSteps { why, .. } => why == SkipReason::LimitReached,
            _ => false,
        }
    }

    /// The keep rate at which the batch would be full within the limit.
    fn keep_needed(&self) -> Option<f64> {
        let limit = self.limit?;
        Some(self.settings.train_batch_size as f64 / (self.settings.gen_batch_size as f64 * limit as f64))
    }

    fn group_size(&mut self) {
        let n = self.settings.group_size;
        let Some(fit) = PassRateSpread::fit(self.tally) else { return };
        let keep = self.tally.keep_rate().unwrap_or(0.0);
        let aim = match self.keep_needed() {
            Some(needed) if self.ran_out() => (needed * 1.1).min(0.95),
            _ => 0.25,
        };
        // A selection keeps a fixed share of its round whatever n is. Larger groups then serve to have
        // contrast from which it can choose.
        let selects = self.tally.outside_pool > 0;
        let keep = if selects { fit.keep_probability(n) } else { keep };
        // Groups that begin with some of their members are kept by these.
        if n <= 1 || keep >= aim || self.settings.screen_first.is_some() {
            return;
        }
        let most = fit.group_size_for(aim, n, MOST_SAMPLES);
        let size = most.unwrap_or(MOST_SAMPLES.min(n.saturating_mul(2)));
        let expected = fit.keep_probability(size);
        if size > n && expected > keep + 0.01 && expected > keep * 1.1 {
            let (expected, keep) = (percent(expected), percent(keep));
            let why = if selects {
                format!("about {expected} of groups then differ within, instead of {keep}")
            } else {
                format!("keeps about {expected} of groups instead of {keep}")
            };
            self.say("rollout.n", format!("{n} -> {size}"), why);
        } else if let (0, Some(pass_rate)) =
            (self.tally.kept, self.tally.pass_rate().filter(|p| *p > 0.0 && *p < 1.0))
        {
            let size = n.saturating_mul(2).min(MOST_SAMPLES);
            let expected = keep_probability(pass_rate, size);
            if size > n && expected > 0.05 && !matches!(fit, PassRateSpread::Split(_)) {
                let why = format!("would keep up to {} of groups at this pass rate", percent(expected));
                self.say("rollout.n", format!("{n} -> {size}"), why);
            }
        }
    }

    fn rounds(&mut self) {
        let settings = self.settings;
        if settings.is_one_round() {
            return;
        }
        let (Some(keep), Some(limit), true) =
            (self.tally.keep_rate().filter(|keep| *keep > 0.0), self.limit, self.ran_out())
        else {
            return;
        };
        let Some(needed) = expected_rounds(settings.train_batch_size, settings.gen_batch_size, keep) else {
            return;
        };
        // A quarter more than the mean, so that an unlucky step passes too; at least the usual limit for the
        // pass rate.
        let advised = self.pass_rate().and_then(limit_for_pass_rate).map_or(0, |(low, _)| low);
        let raised = (needed + needed.div_ceil(4)).max(advised).max(limit + 1);
        let at = format!(
            "at {} kept a batch of {} takes about {}",
            percent(keep),
            settings.train_batch_size,
            counted(needed, "round")
        );
        if raised <= MOST_ROUNDS {
            let now = match settings.max_num_gen_batches {
                RoundLimit::Auto => format!("auto (now {limit})"),
                RoundLimit::None | RoundLimit::Rounds(_) => limit.to_string(),
            };
            self.say("schedule.max_num_gen_batches", format!("{now} -> {raised}"), at);
        } else {
            let wanted = settings.train_batch_size as f64 / (keep * limit as f64) * 1.25;
            if wanted <= settings.gen_batch_size as f64 {
                // As many rounds of that size fill a batch on average: the step was unlucky, and neither
                // setting is the cause.
                return;
            }
            let why = format!(
                "{at}, too many for a higher limit alone; this many prompts a round fill it in {limit}"
            );
            self.say(
                "data.gen_batch_size",
                format!("{} -> {}", settings.gen_batch_size, wanted.ceil() as u64),
                why,
            );
        }
    }

    fn batch(&mut self) {
        let settings = self.settings;
        if !self.ran_out() || self.tally.kept == 0 {
            return;
        }
        let reachable = self.num_accumulated.max(1);
        let mut size = settings.train_batch_size;
        while size > reachable {
            size /= 2;
        }
        if size >= 1 && size < settings.train_batch_size && size * 16 >= settings.train_batch_size {
            let verb = if self.num_accumulated == 1 { "was" } else { "were" };
            let groups = counted(self.num_accumulated, "group");
            let why = format!("{groups} {verb} ready when the rounds were used up");
            self.say("data.train_batch_size", format!("{} -> {size}", settings.train_batch_size), why);
        }
        let now = match settings.on_limit {
            OnLimit::UsePartial | OnLimit::KeepDropped | OnLimit::Duplicate => return,
            OnLimit::Error => "error",
            OnLimit::Skip => "skip",
        };
        let why = "trains on what was kept instead of stopping".to_owned();
        self.say("schedule.on_limit", format!("{now} -> use_partial"), why);
    }
}

impl Diagnosis {
    /// The limit on rounds, with its derivation if it came from the keep rate.
    fn limit(&self) -> String {
        let limit = self.max_num_gen_batches.unwrap_or(0);
        if !self.is_limit_adaptive {
            return limit.to_string();
        }
        let (train, generated) = (self.target, self.gen_batch_size);
        format!(
            "auto: {limit}, the largest value of {train} / ({generated} x keep rate) + 2 in this step; {UNKNOWN_BATCHES} times the \
            rounds without a filter while nothing is kept"
        )
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        let groups = tally.groups;
        match self.cause {
            StopCause::LimitReached => write!(
                formatter,
                "stopped in step {}: {} of {} groups kept after {} (max_num_gen_batches = {})",
                self.step,
                self.num_accumulated,
                self.target,
                counted(self.rounds, "round"),
                self.limit()
            )?,
            StopCause::EmptyRounds { rounds: 1 } => {
                write!(formatter, "stopped in step {}: a round kept no group", self.step)?;
            }
            StopCause::EmptyRounds { rounds } => {
                write!(formatter, "stopped in step {}: {rounds} rounds in a row kept no group", self.step)?;
            }
            StopCause::EpochWithoutKept { epoch, epochs } => {
                write!(formatter, "stopped in step {}: no group was kept in all of ", self.step)?;
                let last = epoch.saturating_add(1);
                match last.saturating_sub(epochs) + 1 {
                    first if first < last => write!(formatter, "epochs {first} to {last}")?,
                    _ => write!(formatter, "epoch {last}")?,
                }
                write!(formatter, " ({})", counted(self.rounds, "round"))?;
            }
            StopCause::SkippedSteps { steps, .. } => write!(
                formatter,
                "stopped in step {}: {} in a row trained nothing ({})",
                self.step,
                counted(steps, "attempt"),
                counted(self.rounds, "round")
            )?,
            StopCause::NoPrompts { epoch } => {
                write!(formatter, "stopped in step {}: epoch {} has no prompts", self.step, epoch + 1)?;
            }
        }
        if groups > 0 {
            writeln!(formatter)?;
            writeln!(
                formatter,
                "  by `{}`, of {} ({}) generated:",
                self.metric,
                counted(groups, "group"),
                counted(tally.trajectories, "trajectory")
            )?;
            let mut lines: Vec<(&str, u64)> = vec![("kept", tally.kept)];
            lines.extend(
                tally
                    .dropped_by()
                    .into_iter()
                    .enumerate()
                    .filter(|(i, (_, number))| *i < 4 || *number > 0)
                    .map(|(_, (reason, number))| (reason.in_words(), number)),
            );
            lines.push(("identical in text", tally.identical_in_text));
            lines.extend([("failed", tally.failed)].into_iter().filter(|(_, number)| *number > 0));
            for (what, number) in lines {
                writeln!(formatter, "  {number:>9}  {:>6}  {what}", percent(share(number, groups)))?;
            }
            if let Some(pass_rate) = tally.pass_rate() {
                write!(
                    formatter,
                    "  {} of {} trajectories correct ({})",
                    tally.correct,
                    tally.rated,
                    percent(pass_rate)
                )?;
                if let (Some(first), true) = (tally.mean_pass_rate(), tally.screened > 0) {
                    write!(formatter, "; of those that groups begin with {}", percent(first))?;
                }
            } else if tally.scored == 0 {
                write!(formatter, "  no trajectory has a score `{}`", self.metric)?;
            } else {
                write!(formatter, "  `{}` does not show what is correct", self.metric)?;
            }
        }
        if let Some(PassedOver { selector, considered, skipped }) = &self.passed_over {
            write!(
                formatter,
                "\n  the selector `{selector}` skipped {skipped} of {considered} prompts since a step was trained"
            )?;
        }
        if !self.recommendations.is_empty() {
            write!(formatter, "\n  what to change, the most likely remedy first:")?;
            for recommendation in &self.recommendations {
                write!(
                    formatter,
                    "\n  - {}: {} ({})",
                    recommendation.setting, recommendation.change, recommendation.why
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
