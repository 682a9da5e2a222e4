//! Formats advice for a terminal, section by section, with the numbers rounded to what their intervals
//! justify.

use std::fmt::{self, Write as _};

use tamis_config::shell_word;
use tamis_core::figure::{counted, fixed, percent};
use tamis_core::schedule::yields::Screening;

use super::cost::{Costs, LimitAdvice};
use super::finding::Weight;
use super::keep_rate::{KeepEstimate, KeepRateSource};
use super::plan::AdvicePlan;
use super::read::EvidenceSource;
use super::{Advice, PlannedScreening, Screened, ScreeningAdvice};
use crate::chart::number::in_thousands;

/// Columns of a full bar.
const BAR: f64 = 30.0;
/// Columns of the names on the left.
const WIDTH: usize = 12;

/// How often steps reach a limit on rounds, now and at half the keep rate.
fn limit_text(limit: LimitAdvice) -> String {
    let rounds = counted(limit.max_num_gen_batches, "round");
    let at_half = format!("{} at half the keep rate", chance(limit.exceeded_at_half));
    let met = match (chance(limit.exceeded), chance(limit.exceeded_at_half)) {
        (now, half) if now == NEVER && half == NEVER => {
            "is never reached, nor would it be at half the keep rate".to_owned()
        }
        (now, _) if now == NEVER => format!("is never reached, and {at_half}"),
        (now, _) => format!("is reached {now}, and {at_half}"),
    };
    format!("of {rounds} of {} {met}", limit.gen_batch_size)
}

/// Text for a probability close to 0.
const NEVER: &str = "never";

/// A probability, possibly close to 0.
fn chance(share: f64) -> String {
    match share {
        none if none < 1e-9 => NEVER.to_owned(),
        small if small < 1e-4 => "in fewer than one of 10,000 steps".to_owned(),
        share => format!("in {} of steps", percent(share)),
    }
}

fn between(estimate: KeepEstimate, shown: impl Fn(f64) -> String) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => format!("{} to {}", shown(low), shown(high)),
        _ => "-".to_owned(),
    }
}

fn thousands(value: f64) -> String {
    in_thousands(&fixed(value.round(), 0))
}

fn named(f: &mut fmt::Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    writeln!(f, "{name:<WIDTH$}{text}")
}

/// A line that starts with `head` and gives the cost of a batch in the plan's mode. A second line follows if
/// the planned limit on rounds is too low.
pub(super) fn cost_lines(head: String, costs: Option<&Costs>, plan: &AdvicePlan) -> Vec<String> {
    let mut line = head;
    let mode = plan.mode.unwrap_or("rounds");
    if mode != "no_filter"
        && let Some(cost) = costs.and_then(|costs| costs.mode(mode))
    {
        line += ": about ";
        if let Some(rounds) = cost.rounds {
            let _ = write!(line, "{} rounds a step, ", fixed(rounds.value, 1));
        }
        let generated = fixed(cost.generated_per_kept.value, 2);
        let _ = write!(line, "{generated} groups generated for each that is trained on");
    }
    let mut lines = vec![line];
    let limit = costs.and_then(|costs| costs.planned_limit).filter(|_| mode != "no_filter");
    if let Some(limit) = limit.filter(|limit| limit.exceeded > 0.01) {
        lines.push(format!(
            "advice: {} (schedule.max_num_gen_batches) will be too few {}",
            counted(limit.max_num_gen_batches, "round"),
            chance(limit.exceeded)
        ));
    }
    lines
}

impl Advice {
    /// The one or two lines that a run prints at its start: keep rate, cost, and the most important finding.
    pub fn start_lines(&self) -> Vec<String> {
        let steps = match self.sample.steps {
            Some((first, last)) if first == last => format!(" of step {last}"),
            Some((first, last)) => format!(" of steps {first} to {last}"),
            None => String::new(),
        };
        let groups = self.sample.groups;
        let head = match (self.keep_first, self.keep_rate) {
            (Some((n, rate)), _) => format!(
                "advice: in {} of {groups} groups{steps} the first {n} members differed, so the others were sampled",
                percent(rate.value)
            ),
            (None, Some(keep)) => {
                format!("advice: {} of {groups} groups{steps} had members that differ", percent(keep.value))
            }
            (None, None) => return Vec::new(),
        };
        let mut lines = cost_lines(head, self.costs.as_ref(), &self.plan);
        let warning = self.findings.iter().find(|finding| finding.weight == Weight::Warning);
        if lines.len() == 1
            && let Some(warning) = warning
        {
            lines.push(format!("advice: {}", warning.text));
        }
        lines
    }

    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sample = &self.sample;
        let mut text = format!("{}: ", self.source);
        match sample.kind {
            EvidenceSource::Rollouts => {
                let _ = write!(
                    text,
                    "{} of {}, {}",
                    counted(sample.groups, "group"),
                    sizes_text(sample.sizes.keys()),
                    counted(sample.prompts.unwrap_or(0), "prompt")
                );
            }
            EvidenceSource::Log if sample.groups > 0 => {
                let _ = write!(text, "a log, {} counted", counted(sample.groups, "group"));
            }
            EvidenceSource::Log => text += "a log",
        }
        if let Some((first, last)) = sample.steps {
            let _ = if first == last {
                write!(text, ", step {last}")
            } else {
                write!(text, ", steps {first} to {last}")
            };
        }
        if let Some(outcome) = sample.outcome.as_deref().filter(|outcome| !outcome.is_empty()) {
            let _ = write!(text, ", by `{outcome}`");
        }
        writeln!(f, "{text}\n")
    }

    /// Prints that groups ended with their first members, and the effect on the figures.
    fn screened(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Screened { first, groups }) = self.sample.screened else { return Ok(()) };
        let ended = match groups {
            Some(1) => "1 group ended with its".to_owned(),
            Some(groups) => format!("{groups} groups ended with their"),
            None => "groups ended with their".to_owned(),
        };
        let members =
            first.map_or_else(|| "first members".to_owned(), |first| format!("first {first} members"));
        let text = match (self.sample.kind, first) {
            (EvidenceSource::Rollouts, _) => format!(
                "{ended} {members}, all alike: everything here is about the {members} of every group, and larger groups come from the \
                fit to these"
            ),
            (EvidenceSource::Log, Some(first)) => format!(
                "{ended} {members} because these were alike: the counted keep rate is that of {first}, and larger groups are kept at \
                least as often"
            ),
            (EvidenceSource::Log, None) => format!(
                "{ended} {members} because these were alike: the counted keep rate is theirs, and that of whole groups is at least as high"
            ),
        };
        named(f, "screened", &text)
    }

    fn difficulty(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rate) = self.pass_rate {
            let interval = rate.low.map_or_else(String::new, |_| format!(" ({})", between(rate, percent)));
            named(f, "pass rate", &format!("{}{interval}", percent(rate.value)))?;
        }
        for (place, bin) in self.histogram.iter().enumerate() {
            let bar = "█".repeat((BAR * bin.share).round() as usize);
            let text = format!("{:<11}{:>6} {:>7}  {bar}", bin.range, percent(bin.share), bin.groups);
            named(f, if place == 0 { "groups" } else { "" }, text.trim_end())?;
        }
        if let Some(spread) = &self.spread {
            let what = match (spread.kind, spread.a, spread.b) {
                (_, Some(a), Some(b)) => format!("about Beta({}, {}) over prompts", fixed(a, 2), fixed(b, 2)),
                ("split", ..) => "every prompt is solved always or never".to_owned(),
                _ => "all prompts are about as hard".to_owned(),
            };
            let text = format!(
                "{what}: {} of them below 0.1, {} above 0.9",
                percent(spread.hard),
                percent(spread.easy)
            );
            named(f, "difficulty", &text)?;
        }
        Ok(())
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keep_rates.is_empty() {
            return match self.keep_rate {
                Some(keep) => named(
                    f,
                    "kept",
                    &format!("{} of groups ({})", percent(keep.value), between(keep, percent)),
                ),
                None => Ok(()),
            };
        }
        if self.pass_rate.is_some() {
            writeln!(f)?;
        }
        named(f, "keep rate", "   n     kept  90 % interval       samples a kept group")?;
        for rate in &self.keep_rates {
            let source = match rate.source {
                KeepRateSource::Counted => "",
                KeepRateSource::Fitted => "  by the fit",
                KeepRateSource::AtLeast => "  at least",
            };
            let cost = if rate.rate.value > 0.0 {
                fixed(rate.n as f64 / rate.rate.value, 1)
            } else {
                "-".to_owned()
            };
            let here = if rate.n == self.plan.n { "*" } else { " " };
            let text = format!(
                "{here}{:>3}  {:>7}  {:<18}  {cost:>6}{source}",
                rate.n,
                percent(rate.rate.value),
                between(rate.rate, percent)
            );
            named(f, "", text.trim_end())?;
        }
        if let Some((n, why)) = &self.group_size {
            named(f, "rollout.n", &format!("{} -> {n}: {why}", self.plan.n))?;
        }
        Ok(())
    }

    /// Prints whether to screen groups, if they should be screened or are.
    fn screening(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(advice) = self.screening else { return Ok(()) };
        let ScreeningAdvice { planned, best } = advice;
        let costs = |of: Screening| {
            format!(
                "`schedule.screen_first: {}` generates {} groups a kept one, in members, and whole groups {}",
                of.first,
                fixed(of.cost, 2),
                fixed(of.whole, 2)
            )
        };
        let price =
            "two waves of generation a group, and hard and easy prompts that are trained on less often";
        let text = match (planned.zip(advice.of_planned()), best) {
            (Some((planned, PlannedScreening::Other(best))), _) => {
                format!("{}; with {} first members it is {}", costs(planned), best.first, fixed(best.cost, 2))
            }
            (Some((planned, PlannedScreening::Kept)), _) if planned.pays() => costs(planned),
            (Some((planned, PlannedScreening::Kept)), _) => {
                format!("{}: it saves little, for {price}", costs(planned))
            }
            (Some((planned, PlannedScreening::LeftOut)), _) => format!("{}: leave it out", costs(planned)),
            (None, Some(best)) => {
                let filter =
                    if self.plan.has_filter == Some(true) { "" } else { " and `filter.kind: variance`" };
                format!("{}: with `schedule.mode: streaming`{filter}, for {price}", costs(best))
            }
            (None, None) => return Ok(()),
        };
        named(f, "first ones", &text)
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>, costs: &Costs) -> fmt::Result {
        if costs.modes.is_empty() {
            return Ok(());
        }
        let example = if self.plan.is_batch_known { "" } else { " (an example)" };
        writeln!(f)?;
        let of = if self.plan.n > 0 { format!(" of {}", self.plan.n) } else { String::new() };
        writeln!(f, "A step of {}{of}{example}:", counted(self.plan.train_batch_size, "group"))?;
        let known =
            |all: Option<KeepEstimate>| all.map_or_else(|| "-".to_owned(), |all| thousands(all.value));
        let width = costs.modes.iter().map(|mode| mode.what.chars().count()).max().unwrap_or(0);
        writeln!(f, "{:<width$}  rounds  generated a kept group    trajectories        tokens", "")?;
        for mode in &costs.modes {
            let rounds = mode.rounds.map_or_else(|| "-".to_owned(), |rounds| fixed(rounds.value, 2));
            let cost = mode.generated_per_kept;
            let interval = format!("({})", between(cost, |cost| fixed(cost, 2)));
            let interval = if cost.low.is_some() { interval } else { String::new() };
            writeln!(
                f,
                "{:<width$}  {rounds:>6}  {:>6} {interval:<17}  {:>12}  {:>12}",
                mode.what,
                fixed(cost.value, 2),
                known(mode.trajectories),
                known(mode.tokens)
            )?;
        }
        writeln!(f)?;
        let larger =
            self.group_size.as_ref().map_or_else(String::new, |(n, _)| format!(" for groups of {n}"));
        if let Some(round) = costs.round {
            let text = format!(
                "data.gen_batch_size {}{larger}: one round fills the batch in {} of steps",
                round.gen_batch_size,
                percent(round.fills)
            );
            named(f, "round", &text)?;
        }
        if let Some(advised) = costs.limit {
            let usual = costs.usual_limit.map_or_else(String::new, |(low, high)| {
                format!("; {low} to {high} are usual for this pass rate, in rounds of the batch")
            });
            named(f, "limit", &format!("one {}{usual}", limit_text(advised)))?;
        }
        if let Some(planned) = costs.planned_limit {
            named(f, "", &format!("the run's own, {}", limit_text(planned)))?;
        }
        Ok(())
    }

    fn metrics(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<_> = self.metrics.iter().filter(|metric| !metric.is_outcome).collect();
        let outcome = self.metrics.iter().find(|metric| metric.is_outcome);
        // In a group of one a filter has nothing to compare.
        let can_compare = self.keep_rate.is_some() || self.sample.screened.is_some();
        let Some(outcome) = outcome.filter(|_| can_compare) else { return Ok(()) };
        // The sampled sizes, which may differ from the planned one.
        let sizes = &self.sample.sizes;
        let of = match self.sample.screened.and_then(|screened| screened.first) {
            Some(first) => format!("of groups of {first}"),
            None if sizes.keys().eq([&self.plan.n]) => "of groups".to_owned(),
            None => format!("of groups of {}", sizes_text(sizes.keys())),
        };
        let chosen = match outcome.values {
            "many" => {
                format!("`{}` keeps {} {of}; it has many values", outcome.name, percent(outcome.keep_rate))
            }
            _ => format!("filter on `{}`, which keeps {} {of}", outcome.name, percent(outcome.keep_rate)),
        };
        named(f, "metric", &chosen)?;
        for metric in others {
            let what = match (metric.kept_for_other_reasons, metric.lost) {
                _ if metric.values == "constant" => "has one value, and separates nothing".to_owned(),
                (more, _) if more >= 0.005 => format!(
                    "keeps {}, of them {} whose members are all right or all wrong: it would train on their shape",
                    percent(metric.keep_rate),
                    percent(more / metric.keep_rate.max(1e-12))
                ),
                (_, lost) if lost >= 0.005 => {
                    format!(
                        "keeps {}, and drops {} that differ in the outcome",
                        percent(metric.keep_rate),
                        percent(lost)
                    )
                }
                _ => "keeps the same groups".to_owned(),
            };
            named(f, "", &format!("`{}` {what}", metric.name))?;
        }
        Ok(())
    }
}

fn sizes_text<'a>(sizes: impl Iterator<Item = &'a usize>) -> String {
    let all: Vec<&usize> = sizes.collect();
    match all.as_slice() {
        [] => "0".to_owned(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first} to {last}"),
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.screened(f)?;
        self.difficulty(f)?;
        self.rates(f)?;
        if let Some(costs) = &self.costs {
            self.costs(f, costs)?;
        }
        self.screening(f)?;
        self.metrics(f)?;
        let verdict = match self.filter.filter {
            Some(true) => "yes: ",
            Some(false) => "no: ",
            None => "look first: ",
        };
        for (place, reason) in self.filter.reasons.iter().enumerate() {
            let verdict = if place == 0 { verdict } else { "" };
            named(f, if place == 0 { "filter" } else { "" }, &format!("{verdict}{reason}"))?;
        }
        for finding in &self.findings {
            let name = match finding.weight {
                Weight::Warning => "warning",
                Weight::Note => "note",
            };
            let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!("; {fix}"));
            named(f, name, &format!("{}: {}{fix}", finding.topic, finding.text))?;
        }
        for unknown in &self.unknown {
            named(f, "not known", unknown)?;
        }
        for lines in &self.lines {
            writeln!(f, "\n{}:", lines.title)?;
            for line in &lines.lines {
                // tamis reads its lines from a file; the others are typed in a shell.
                let line = if lines.system == "tamis" { line.clone() } else { shell_word(line) };
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}
