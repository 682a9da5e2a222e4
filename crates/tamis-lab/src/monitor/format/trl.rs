//! What TRL prints: after a step its figures as a dictionary of Python,
//! `{'loss': '0.019', ..., 'reward': '0.125', ...}`, and a progress bar,
//! ` 5%|▌ | 3/60 [00:07<02:13, 2.3s/it]`. The figures lack their step: it is that of the bar, or without a
//! bar the number of the line.

use serde_json::{Map, Value};

use super::verl::total;
use crate::monitor::fact::Fact;
use crate::monitor::line::{number, python_number};
use crate::other_runs::add_our_names;

/// Counts the steps.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// The last step that has figures.
    last: u64,
    /// The latest step of the bar.
    bar: u64,
    /// Number of steps, from the first bar: that of an evaluation looks the same.
    total: Option<u64>,
}

impl Counter {
    /// Reads the progress bar of the training, which has no title.
    pub(super) fn follow_bar(&mut self, line: &str) {
        let text = line.trim_start();
        let Some((_, rest)) = number(text).filter(|(_, rest)| rest.starts_with("%|")) else { return };
        let Some(total) = total(rest, "%|") else { return };
        let done = rest.rsplit_once("| ").and_then(|(_, rest)| number(rest)).map_or(0, |(done, _)| done);
        if *self.total.get_or_insert(total) == total {
            if done < self.bar {
                // The run was started again.
                self.last = done;
            }
            self.bar = done;
        }
    }

    /// Reads the figures of a step, or of an evaluation after it.
    pub(super) fn read(&mut self, line: &str) -> Vec<Fact> {
        let Some(mut row) = dictionary(line) else { return Vec::new() };
        let is_evaluation = row.keys().any(|name| name.starts_with("eval_"));
        let is_step = row.contains_key("loss") && row.contains_key("learning_rate");
        if !(is_evaluation || is_step) {
            return Vec::new();
        }
        if !is_evaluation {
            self.last = self.bar.max(self.last + 1);
            add_our_names(&mut row);
        }
        let values = row.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect();
        let trained = Fact::Trained { step: self.last, values };
        self.total.map(Fact::TotalSteps).into_iter().chain([trained]).collect()
    }
}

/// A flat dictionary of numbers, as Python prints it: `{'a': 0.5, 'b': '1e-06'}`.
fn dictionary(line: &str) -> Option<Map<String, Value>> {
    let inner = line.strip_prefix("{'")?.strip_suffix('}')?;
    let mut row = Map::new();
    for part in inner.split(", '") {
        let (name, value) = part.split_once("': ")?;
        if let Some(number) = python_number(value.trim_matches('\'')) {
            row.insert(name.to_owned(), number.into());
        }
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(facts: &[Fact]) -> Option<(u64, f64)> {
        facts.iter().find_map(|fact| match fact {
            Fact::Trained { step, values } => Some((*step, *values.get("all/critic/score/mean")?)),
            _ => None,
        })
    }

    #[test]
    fn steps_are_those_of_the_bar_or_counted() {
        let line = "{'loss': '0.5', 'learning_rate': '1e-06', 'reward': '0.25', 'epoch': '0.1'}";
        let mut counter = Counter::default();
        assert_eq!(step(&counter.read(line)), Some((1, 0.25)));
        counter.follow_bar(" 50%|█████     | 10/20 [00:01<00:01,  9.67it/s]");
        assert_eq!(step(&counter.read(line)), Some((10, 0.25)));
        assert_eq!(
            step(&counter.read(line)),
            Some((11, 0.25)),
            "the bar is drawn ten times a second at most"
        );
        // An evaluation has a bar of its own, and other bars have titles.
        counter.follow_bar("100%|██████████| 64/64 [00:01<00:00, 99.67it/s]");
        counter.follow_bar("Map: 100%|██████████| 64/64 [00:00<00:00, 4000 examples/s]");
        // The run is started again from the checkpoint of step 8, and its output is appended.
        let mut again = Counter::default();
        for text in [
            "100%|█| 20/20 [00:02<00:00]",
            line,
            "  0%| | 0/20 [00:00<?]",
            " 45%|█| 9/20 [00:02<00:00]",
            line,
        ] {
            again.follow_bar(text);
            let facts = again.read(text);
            assert!(facts.is_empty() || step(&facts).is_some());
        }
        assert_eq!((again.last, again.bar), (9, 9));
        let facts = counter.read("{'eval_loss': 0.5, 'eval_reward': 0.75, 'epoch': 0.5}");
        let Fact::Trained { step: 11, values } = &facts[1] else { panic!("{facts:?}") };
        assert_eq!(values.get("eval_reward"), Some(&0.75));
        assert_eq!(facts[0], Fact::TotalSteps(20));
    }

    #[test]
    fn other_dictionaries_are_none_of_a_step() {
        let mut counter = Counter::default();
        for line in [
            "{'train_runtime': '1.2', 'train_loss': '0.1'}",
            "{'actor': {'optim': {'lr': 1e-06}}}",
            "{'loss': '0.5'",
            "{'loss'}",
            "{}",
        ] {
            assert_eq!(counter.read(line), [], "{line}");
        }
    }
}
