//! Puts the steps of a run together from the facts of its lines.

use std::collections::BTreeSet;

use super::fact::{Batch, Fact};
use super::format::{LineReader, LogFormat};
use super::step::Step;

/// Number of warnings, and of lines of an error, that are kept.
const MOST_MESSAGES: usize = 12;

#[derive(Debug, Default)]
pub(super) struct Reading {
    reader: LineReader,
    pub(super) steps: Vec<Step>,
    pub(super) open: Option<Step>,
    pub(super) total_steps: Option<u64>,
    /// Groups of a batch, by the latest configuration in the log.
    gen_batch_size: Option<u64>,
    /// Groups that a step trains on, from the same place.
    train_batch_size: Option<u64>,
    /// Whether some step has counts of verl's default trainer.
    has_verl_counts: bool,
    pub(super) formats: BTreeSet<LogFormat>,
    pub(super) warnings: Vec<String>,
    /// The lines of an error, if nothing came after it.
    pub(super) error: Vec<String>,
    pub(super) num_lines: u64,
    last_time: Option<f64>,
}

impl Reading {
    pub(super) fn read(&mut self, line: &str) {
        self.num_lines += 1;
        let told = self.reader.read(line);
        self.formats.extend(told.format);
        self.last_time = told.time.or(self.last_time);
        for fact in told.facts {
            self.take(fact);
        }
    }

    /// Reads the facts of the last lines, whose block might have continued.
    pub(super) fn settle(&mut self) {
        for fact in self.reader.rest() {
            self.take(fact);
        }
    }

    fn take(&mut self, fact: Fact) {
        match &fact {
            Fact::Error(_)
            | Fact::Warning(_)
            | Fact::TotalSteps(_)
            | Fact::GenBatchSize(_)
            | Fact::TrainBatchSize(_)
            | Fact::Refills(_) => {}
            // The run continues.
            _ => self.error.clear(),
        }
        match fact {
            Fact::StepBegins { step } => {
                self.close();
                self.open = Some(Step { number: step, ..Step::default() });
            }
            Fact::Batch { step, number, of } => self.batch(step, number, of),
            Fact::Verdicts(of) => {
                let open = self.open.get_or_insert_default();
                let last = open.batches.len();
                open.batch(last).merge(of);
            }
            Fact::Accumulated { ready, target, is_enough } => self.accumulated(ready, target, is_enough),
            Fact::Refills(batches) => {
                let open = self.open.get_or_insert_default();
                let number = usize::try_from(batches).unwrap_or(usize::MAX);
                if !open.names_batches && number == 1 && open.batches.len() > 1 {
                    open.begin_again();
                }
                open.batch(number.saturating_add(open.given_up));
            }
            Fact::Skipped => {
                if let Some(open) = &mut self.open {
                    open.given_up = open.batches.len();
                }
            }
            Fact::Generated { step } => {
                let number = self.open.as_ref().and_then(|open| open.number);
                if step.is_some() && number.is_some() && number != step {
                    self.close();
                }
                if step.is_some() && self.open.is_none() {
                    self.open = Some(Step::default());
                }
                if let Some(open) = &mut self.open {
                    open.number = step.or(open.number);
                    open.is_generated = true;
                    open.ended = self.last_time;
                }
            }
            Fact::Trained { step, values } => self.trained(step, values),
            Fact::Figure(name, value) => {
                if let Some(step) = self.open.as_mut().or(self.steps.last_mut()) {
                    step.add([(name, value)].into());
                }
            }
            Fact::TotalSteps(total) => self.total_steps = Some(total),
            Fact::GenBatchSize(groups) => {
                // A process begins: what another one had not finished is void.
                if self.open.as_ref().is_some_and(|open| !open.names_batches) {
                    self.open = None;
                }
                self.gen_batch_size = Some(groups);
            }
            Fact::TrainBatchSize(groups) => self.train_batch_size = Some(groups),
            Fact::Warning(text) => push(&mut self.warnings, text),
            Fact::Error(text) => push(&mut self.error, text),
        }
    }

    fn batch(&mut self, step: Option<u64>, number: u64, of: Batch) {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(open) = &self.open {
            let is_other = step.is_some() && open.number.is_some() && open.number != step;
            // Without a step number, a batch number that repeats belongs to the next step.
            let is_again = step.is_none()
                && open.names_batches
                && number.saturating_add(open.given_up) <= open.batches.len();
            if is_other || is_again || open.is_generated {
                self.close();
            }
        }
        let open = self.open.get_or_insert_default();
        if !open.names_batches {
            // What was counted without names is repeated with them.
            open.batches.truncate(open.given_up);
            open.names_batches = true;
        }
        open.number = step.or(open.number);
        let place = number.saturating_add(open.given_up);
        open.batch(place).merge(of);
    }

    fn accumulated(&mut self, ready: u64, target: Option<u64>, is_enough: bool) {
        if self.open.as_ref().is_some_and(|open| open.is_generated) {
            self.close();
        }
        let open = self.open.get_or_insert_default();
        if !open.names_batches {
            // A smaller number comes from a process that was started again.
            if open.ready.is_some_and(|before| before > ready) {
                (open.batches, open.ready) = (Vec::new(), None);
            }
            let kept = ready.checked_sub(open.ready.unwrap_or(0));
            let place = open.batches.len() + 1;
            open.batch(place).merge(Batch { kept, ..Batch::default() });
        }
        open.ready = Some(ready);
        open.target = target.or(open.target);
        open.is_generated |= is_enough;
    }

    fn trained(&mut self, step: u64, values: std::collections::BTreeMap<String, f64>) {
        if let Some(last) = self.steps.last_mut().filter(|last| last.number == Some(step)) {
            // Later figures of a step that has ended: its validation.
            last.add(values);
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.number.is_some_and(|number| number != step)) {
            self.close();
        }
        let mut open = self.open.take().unwrap_or_default();
        open.number = Some(step);
        open.gen_batch_size = self.gen_batch_size;
        // Step 0 is the validation before the first step.
        open.train_batch_size = self.train_batch_size.filter(|_| step > 0);
        open.add(values);
        if !self.has_verl_counts && open.names_verl_counts() {
            self.has_verl_counts = true;
            // Earlier steps had nothing to count.
            for before in &mut self.steps {
                before.has_verl_counts = true;
            }
        }
        open.has_verl_counts = self.has_verl_counts;
        open.ended = self.last_time.or(open.ended);
        let num_batches = open.num_batches();
        if !open.names_batches && num_batches > open.batches.len() as u64 && !open.batches.is_empty() {
            // Nothing was printed about the batch that filled the step.
            open.batch(usize::try_from(num_batches).unwrap_or(usize::MAX));
        }
        self.push(open);
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take().filter(|open| !open.is_blank()) {
            self.push(open);
        }
    }

    /// A step that repeats replaces everything after its first time: the run was resumed.
    fn push(&mut self, step: Step) {
        if let Some(number) = step.number {
            while self.steps.last().is_some_and(|last| last.number.is_some_and(|last| last >= number)) {
                self.steps.pop();
            }
        }
        self.steps.push(step);
    }
}

fn push(messages: &mut Vec<String>, text: String) {
    if messages.last() == Some(&text) {
        return;
    }
    if messages.len() == MOST_MESSAGES {
        messages.remove(0);
    }
    messages.push(text);
}
