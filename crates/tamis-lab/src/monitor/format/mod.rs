//! The formats of logs, one a file: a line in, facts out.

mod dynamic_sampling;
mod easyr1;
mod filter_groups;
mod rows;
mod tamis;
mod trl;
mod verl;

use serde::Serialize;

use super::fact::Fact;
use super::line::{Line, without_colours};

pub(super) use verl::COUNTS as VERL_COUNTS;

/// The program that wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// `metrics.jsonl` of tamis, or of the file loggers of verl and EasyR1.
    Metrics,
    /// The log of a run of tamis.
    Tamis,
    /// verl's filter-group log lines, with or without time.
    #[serde(rename = "guide")]
    FilterGroups,
    /// The lines that begin with `[Dynamic Sampling]`.
    DynamicSampling,
    /// What verl prints.
    Verl,
    /// What EasyR1 prints.
    Easyr1,
    /// What TRL prints, or its `trainer_state.json`.
    Trl,
    /// Episodes of verifiers.
    Verifiers,
    /// A run folder of prime-rl.
    PrimeRl,
}

impl LogFormat {
    /// The format of another trainer's files, by the trainer's name.
    pub(super) fn of_system(system: &str) -> Option<Self> {
        let all = [Self::Verl, Self::Trl, Self::Verifiers, Self::PrimeRl];
        all.into_iter().find(|format| format.name() == system)
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Tamis => "tamis",
            Self::FilterGroups => "verl's filter-group log lines",
            Self::DynamicSampling => "dynamic sampling",
            Self::Verl => "verl",
            Self::Easyr1 => "EasyR1",
            Self::Trl => "TRL",
            Self::Verifiers => "verifiers",
            Self::PrimeRl => "prime-rl",
        }
    }
}

/// Reads lines of any format. The state between lines is the indented block that EasyR1 prints, and the count
/// of TRL's steps.
#[derive(Debug, Default)]
pub(super) struct LineReader {
    block: easyr1::Block,
    trl: trl::Counter,
}

/// The facts of a line, and when it was written.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    /// The program that wrote it; `None` if nothing is understood.
    pub(super) format: Option<LogFormat>,
    pub(super) facts: Vec<Fact>,
    /// Seconds since an arbitrary day.
    pub(super) time: Option<f64>,
}

impl LineReader {
    pub(super) fn read(&mut self, line: &str) -> Told {
        let plain = without_colours(line);
        if plain.trim_start().starts_with('{') {
            let facts = self.trl.read(plain.trim());
            if !facts.is_empty() {
                return told(LogFormat::Trl, facts, None);
            }
            let facts = rows::read(plain.trim());
            if facts.is_empty() {
                // The configuration of verl, as Python prints it.
                return told(LogFormat::Verl, verl::read(&Line::of(&plain)), None);
            }
            return told(LogFormat::Metrics, facts, None);
        }
        self.trl.follow_bar(&plain);
        let line = Line::of(&plain);
        if line.is_stamped_by_tamis {
            let facts = tamis::read(&line);
            return Told { format: Some(LogFormat::Tamis), facts, time: line.time };
        }
        // A block ends at the first line that does not belong to it.
        let ended = self.block.read(line.text);
        if !ended.facts.is_empty() || ended.is_taken {
            let format = Some(LogFormat::Easyr1);
            let mut said = Told { format, facts: ended.facts, time: line.time };
            if !ended.is_taken {
                said.facts.extend(read_plain(&line).facts);
            }
            return said;
        }
        read_plain(&line)
    }

    /// The facts of the block that the last lines belong to, which may continue.
    pub(super) fn rest(&self) -> Vec<Fact> {
        self.block.facts()
    }
}

fn told(format: LogFormat, facts: Vec<Fact>, time: Option<f64>) -> Told {
    Told { format: (!facts.is_empty()).then_some(format), facts, time }
}

type Reader = fn(&Line<'_>) -> Vec<Fact>;

/// A line outside a block.
fn read_plain(line: &Line<'_>) -> Told {
    let readers: [(LogFormat, Reader); 4] = [
        (LogFormat::DynamicSampling, dynamic_sampling::read),
        (LogFormat::Verl, verl::read),
        (LogFormat::Easyr1, easyr1::read),
        (LogFormat::FilterGroups, filter_groups::read),
    ];
    for (format, read) in readers {
        let facts = read(line);
        if !facts.is_empty() {
            return told(format, facts, line.time);
        }
    }
    let facts = problems(line);
    Told { format: None, facts, time: line.time }
}

/// Errors and warnings, which look the same everywhere.
fn problems(line: &Line<'_>) -> Vec<Fact> {
    let text = line.text.trim();
    // `ValueError: ...`, `ray.exceptions.RayTaskError(ValueError): ...`: the last line of a traceback.
    let name = text.split_once(':').map_or("", |(name, _)| name);
    let is_exception = name.len() < 80
        && !name.contains(' ')
        && ["Error", "Exception", "Error)"].iter().any(|end| name.ends_with(end));
    if is_exception || line.level == Some("error") {
        return vec![Fact::Error(text.to_owned())];
    }
    if line.level == Some("warning") { vec![Fact::Warning(text.to_owned())] } else { Vec::new() }
}
