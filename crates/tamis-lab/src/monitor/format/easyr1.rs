//! What EasyR1 prints: `Start generating batch...`, `current_batch_size=45 < rollout_batch_size=128`,
//! `num_try_make_batch=1. Continue generating...`, and after a step `Step 3` with its figures below it as
//! nested YAML.

use std::collections::BTreeMap;

use super::verl::total;
use crate::monitor::fact::Fact;
use crate::monitor::line::{Line, number, number_after, python_number};

pub(super) fn read(line: &Line<'_>) -> Vec<Fact> {
    let text = line.text.trim();
    if text.starts_with("Start generating batch") {
        return vec![Fact::StepBegins { step: None }];
    }
    if let Some(ready) = number_after(text, "current_batch_size=") {
        let target = number_after(text, "rollout_batch_size=");
        let is_enough = text.contains(">=");
        return vec![Fact::Accumulated { ready, target, is_enough }];
    }
    if let Some(batches) = number_after(text, "num_try_make_batch=") {
        let mut facts = vec![Fact::Refills(batches)];
        if text.contains("max_try_make_batch=") {
            facts.push(Fact::Error(text.to_owned()));
        }
        return facts;
    }
    total(text, "Running step:").map(|total| vec![Fact::TotalSteps(total)]).unwrap_or_default()
}

/// The figures of a step, which arrive line by line.
#[derive(Debug, Default)]
pub(super) struct Block {
    step: Option<u64>,
    /// Names below which the next line may be, with their indentation.
    path: Vec<(usize, String)>,
    values: BTreeMap<String, f64>,
}

/// What a line does to a block.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The facts of a block that has ended.
    pub(super) facts: Vec<Fact>,
    /// Whether the line belongs to a block.
    pub(super) is_taken: bool,
}

impl Block {
    /// Reads the next line.
    pub(super) fn read(&mut self, text: &str) -> Taken {
        let begins = text.strip_prefix("Step ").and_then(number).filter(|(_, rest)| rest.trim().is_empty());
        if let Some((step, _)) = begins {
            let facts = self.end();
            self.step = Some(step);
            return Taken { facts, is_taken: true };
        }
        if self.step.is_none() {
            return Taken::default();
        }
        if self.take(text) {
            return Taken { facts: Vec::new(), is_taken: true };
        }
        // Other processes print between the lines: only a line that cannot belong to a step ends it.
        let facts = if text.starts_with("Start generating") { self.end() } else { Vec::new() };
        Taken { facts, is_taken: false }
    }

    /// Reads `name:` or `name: number`.
    fn take(&mut self, text: &str) -> bool {
        let indent = text.len() - text.trim_start().len();
        let Some((name, value)) = text.trim_start().split_once(':') else { return false };
        let is_name = |part: char| part.is_alphanumeric() || "_-@.+/".contains(part);
        if name.is_empty() || !name.chars().all(is_name) {
            return false;
        }
        self.path.retain(|(above, _)| *above < indent);
        if value.trim().is_empty() {
            self.path.push((indent, name.to_owned()));
            return true;
        }
        let Some(value) = python_number(value).filter(|_| value.starts_with(' ')) else { return false };
        let above = self.path.iter().map(|(_, name)| name.as_str());
        let whole: Vec<&str> = above.chain([name]).collect();
        self.values.insert(whole.join("/"), value);
        true
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        match self.step {
            Some(step) if !self.values.is_empty() => {
                vec![Fact::Trained { step, values: self.values.clone() }]
            }
            _ => Vec::new(),
        }
    }

    fn end(&mut self) -> Vec<Fact> {
        std::mem::take(self).facts()
    }
}
