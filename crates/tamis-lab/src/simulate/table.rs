//! The table that a terminal shows.

use std::fmt;

use tamis_core::figure::{fixed, percent};

use crate::simulate::measure::PolicyResult;
use crate::simulate::simulation::Simulation;

/// Columns: heading, digits, value.
pub(crate) type Column = (&'static str, usize, fn(&PolicyResult) -> Option<f64>);

/// The columns that decide between policies: cost of a kept group, time of a step, use of the servers, age of
/// the training data.
const DECISIVE: [&str; 4] = ["generated", "step s", "slots %", "lag"];

/// The numbers of a policy, in display order.
pub(crate) const COLUMNS: [Column; 13] = [
    ("generated", 2, |policy| policy.generated_per_kept),
    ("tokens", 2, |policy| policy.tokens_per_kept),
    ("step s", 1, |policy| policy.step_time),
    ("slots %", 0, |policy| policy.utilisation.map(|share| 100.0 * share)),
    ("lag", 2, |policy| policy.lag_mean),
    ("max", 0, |policy| policy.lag_mean.map(|_| policy.lag_max as f64)),
    ("ESS", 2, |policy| policy.weight_ess),
    ("hard", 3, |policy| policy.hard_share),
    ("easy", 3, |policy| policy.easy_share),
    ("length KS", 3, |policy| policy.length_ks),
    ("passes", 1, |policy| Some(policy.passes)),
    // An empty sum would be -0.
    ("wasted", 2, |policy| {
        policy.generated_per_kept.map(|_| policy.wasted.values().fold(0.0, |sum, part| sum + part))
    }),
    ("kept", 2, |policy| policy.kept_share),
];

pub(crate) fn shown(policy: &PolicyResult, &(_, digits, value): &Column) -> String {
    value(policy).map_or_else(|| "-".to_owned(), |value| fixed(value, digits).clone())
}

/// Causes of waste, the largest first.
pub(crate) fn causes(policy: &PolicyResult) -> Vec<(&'static str, f64)> {
    let mut causes: Vec<(&str, f64)> = policy.wasted.iter().map(|(cause, share)| (*cause, *share)).collect();
    causes.sort_by(|one, other| other.1.total_cmp(&one.1));
    causes
}

/// Prints the decisive columns. The alternate form prints all columns, and waste by cause.
impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shows_all = f.alternate();
        let columns: Vec<&Column> =
            COLUMNS.iter().filter(|(heading, ..)| shows_all || DECISIVE.contains(heading)).collect();
        let width = self.policies.iter().map(|policy| policy.name.as_str().len()).max().unwrap_or(0).max(11);
        write!(f, "{:<width$}", "policy")?;
        for (heading, ..) in &columns {
            write!(f, "  {heading:>9}")?;
        }
        writeln!(f, "{}", if shows_all { "  by cause" } else { "" })?;
        for policy in &self.policies {
            write!(f, "{:<width$}", policy.name.as_str())?;
            for column in &columns {
                write!(f, "  {:>9}", shown(policy, column))?;
            }
            let causes = if shows_all { causes(policy) } else { Vec::new() };
            let listed: Vec<String> =
                causes.iter().map(|(cause, share)| format!("{cause} {}", fixed(*share, 2))).collect();
            let ended = policy
                .ended
                .as_ref()
                .map(|_| format!("ended after {} of {} steps", policy.steps, self.steps))
                .into_iter();
            let last = listed.into_iter().chain(ended).collect::<Vec<_>>().join(", ");
            writeln!(f, "{}{last}", if last.is_empty() { "" } else { "  " })?;
        }
        write!(f, "{:<width$}", "lower bound")?;
        let bound = match &self.bound {
            Ok(bound) => bound,
            Err(reason) => {
                writeln!(f, "  {:>9}  none: {reason}", "-")?;
                return self.world_lines(f);
            }
        };
        write!(f, "  {:>9}", fixed(bound.generated_per_kept, 2))?;
        if let Some(step_time) = bound.step_time {
            let between = columns.iter().skip(1).take_while(|(heading, ..)| *heading != "step s").count();
            write!(f, "{:>width$}  {:>9}", "", fixed(step_time, 1), width = 11 * between)?;
        }
        let steps = self.steps_of_bound();
        let batch = if bound.step_time.is_some() { ", a step for a batch that is all kept" } else { "" };
        let cuts = bound.of_cuts().map_or_else(String::new, |text| format!("; {text}"));
        writeln!(f, "  on average{steps}{batch}; by chance {} less{cuts}", percent(bound.chance))?;
        self.world_lines(f)
    }
}

impl Simulation {
    /// Prints the world, and which of its settings are defaults.
    fn world_lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nThe world of these numbers:")?;
        let width = self.world.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.world {
            writeln!(f, "  {name:<width$}  {value}")?;
        }
        match self.of_defaults() {
            Some(text) => writeln!(f, "{text}"),
            None => Ok(()),
        }
    }
}
