//! Lines of configuration to paste, with the keys of each system.

use std::fmt::Write as _;

use serde::Serialize;
use tamis_config::ScheduleMode;
use tamis_config::render::scalar;
use tamis_core::figure::shortest;
use tamis_import::hydra_text;

use super::cost::Costs;
use super::finding::Changes;
use super::plan::AdvicePlan;

/// Lines for one system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigLines {
    /// `tamis`, `verl`, `easyr1`, `easyr1_dynamic_sampling` or `trl`.
    pub system: &'static str,
    /// Its name, and notes on the lines.
    pub title: String,
    /// The lines: YAML for tamis, command-line arguments for the others.
    pub lines: Vec<String>,
}

/// Values for all systems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Values<'a> {
    pub(super) plan: &'a AdvicePlan,
    pub(super) n: usize,
    /// Keep rate at the recommended n.
    pub(super) keep: f64,
    pub(super) costs: &'a Costs,
    pub(super) changes: Changes,
    pub(super) outcome: &'a str,
    /// The outcome's smaller and larger value, if it has two.
    pub(super) values: Option<(f64, f64)>,
    pub(super) filters: bool,
    /// Number of first members: a group ends with these if they are alike.
    pub(super) screen_first: Option<usize>,
}

/// From this group size one right answer lies outside EasyR1's window.
const WINDOW: usize = 100;

/// Names of a number in tamis, verl and EasyR1. `score` in verl's dumps is the sum of a trajectory's rewards.
fn metric(outcome: &str) -> [&str; 3] {
    match outcome {
        "reward" | "seq_reward" => ["seq_reward", "seq_reward", "overall"],
        "score" => ["score", "seq_reward", "overall"],
        "acc" | "accuracy" | "metric_value" | "" => ["acc", "acc", "accuracy"],
        other => [other, other, other],
    }
}

impl Values<'_> {
    fn round(&self) -> usize {
        self.costs.round.map_or(self.plan.gen_batch_size, |round| round.gen_batch_size)
    }

    fn limit(&self) -> Option<u64> {
        self.costs.limit.map(|limit| limit.max_num_gen_batches)
    }

    fn tamis(&self) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let mut rollout = format!("n: {}", self.n);
        if let Some(temperature) = temperature {
            let _ = write!(rollout, ", temperature: {temperature:?}");
        }
        if let Some(limit) = max_response_length {
            let _ = write!(rollout, ", max_response_length: {limit}");
        }
        let train = self.plan.train_batch_size;
        let rollout = format!("rollout: {{{rollout}}}");
        let mut lines = Vec::new();
        if !self.filters {
            lines.extend(self.plan.is_batch_known.then(|| format!("data: {{train_batch_size: {train}}}")));
            lines.extend([rollout, "filter: null".to_owned()]);
            // Screening needs a filter.
            lines.extend(self.plan.screen_first.map(|_| "schedule: {screen_first: null}".to_owned()));
            return lines;
        }
        let [metric, ..] = metric(self.outcome);
        // A stream keeps servers busy. If one engine samples and learns in turns, a step of lag gains
        // nothing.
        let is_stream = self.plan.schedule == Some(ScheduleMode::Streaming);
        let mut mode = match (self.plan.samples_at_servers, self.screen_first) {
            // Only if the user chose no mode: its lag is a choice that must not override another one.
            (true, _) if self.plan.schedule.is_none() => {
                format!("streaming, surplus: carry, max_lag: {}", self.plan.max_lag.unwrap_or(1))
            }
            // Rounds start whole groups.
            (_, Some(_)) => "streaming".to_owned(),
            _ if is_stream => "streaming".to_owned(),
            _ if self.plan.overlaps_rounds => "deficit, rounds_in_flight: null".to_owned(),
            _ => "deficit".to_owned(),
        };
        if self.plan.mode == Some("no_filter") && self.plan.schedule.is_some() && !is_stream {
            // Without it every step is one round.
            mode += ", refill: true";
        }
        match (self.screen_first, self.plan.screen_first) {
            (Some(first), _) => {
                let _ = write!(mode, ", screen_first: {first}");
            }
            (None, Some(_)) => mode += ", screen_first: null",
            (None, None) => {}
        }
        let limit = self.limit().map_or_else(|| "auto".to_owned(), |limit| limit.to_string());
        let round = self.round();
        lines.extend(
            self.plan
                .is_batch_known
                .then(|| format!("data: {{train_batch_size: {train}, gen_batch_size: {round}}}")),
        );
        let limit =
            if self.plan.is_batch_known { format!("max_num_gen_batches: {limit}, ") } else { String::new() };
        lines.extend([
            rollout,
            format!("filter: {{kind: variance, metric: {}}}", scalar(metric)),
            format!("schedule: {{mode: {mode}, {limit}on_limit: use_partial}}"),
        ]);
        lines
    }

    fn verl(&self) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let is_known = self.plan.is_batch_known;
        let mut lines = Vec::new();
        lines.extend(is_known.then(|| format!("data.train_batch_size={}", self.plan.train_batch_size)));
        if self.filters && is_known {
            lines.push(format!("data.gen_batch_size={}", self.round()));
        }
        lines.push(format!("actor_rollout_ref.rollout.n={}", self.n));
        lines.extend(temperature.map(|value| format!("actor_rollout_ref.rollout.temperature={value:?}")));
        lines.extend(max_response_length.map(|value| format!("data.max_response_length={value}")));
        if self.filters {
            let [_, metric, _] = metric(self.outcome);
            lines.push("algorithm.filter_groups.enable=True".to_owned());
            lines.push(format!("algorithm.filter_groups.metric={}", hydra_text(metric)));
            let limit = self.limit().unwrap_or(0);
            lines.extend(is_known.then(|| format!("algorithm.filter_groups.max_num_gen_batches={limit}")));
        }
        lines
    }

    fn easyr1(&self, is_dynamic: bool) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let train = self.plan.train_batch_size;
        let is_known = self.plan.is_batch_known;
        let mut lines = Vec::new();
        lines.extend(is_known.then(|| format!("data.rollout_batch_size={train}")));
        if self.filters && !is_dynamic && is_known {
            lines.push(format!("data.mini_rollout_batch_size={}", self.round()));
        }
        lines.push(format!("worker.rollout.n={}", self.n));
        lines.extend(temperature.map(|value| format!("worker.rollout.temperature={value:?}")));
        lines.extend(max_response_length.map(|value| format!("data.max_response_length={value}")));
        let window = self.window();
        if self.filters && !is_dynamic && window.is_none() {
            return lines;
        }
        let switch = if is_dynamic { "use_dynamic_sample" } else { "online_filtering" };
        lines.push(format!("algorithm.{switch}={}", self.filters));
        if !self.filters {
            return lines;
        }
        if is_dynamic {
            let limit = Costs::limit_of_whole_batches(self.keep, train);
            lines.extend(is_known.then(|| format!("algorithm.dynamic_sample_max_gen_batches={limit}")));
        } else if let Some((low, high)) = window {
            let [.., metric] = metric(self.outcome);
            lines.push(format!("algorithm.filter_key={}", hydra_text(metric)));
            lines.extend([format!("algorithm.filter_low={low}"), format!("algorithm.filter_high={high}")]);
            let limit = self.limit().unwrap_or(0);
            lines.extend(is_known.then(|| format!("trainer.max_try_make_batch={limit}")));
        }
        lines
    }

    /// The window of group means in which members differ: from 0.01 to 0.99 of the way between the smaller
    /// and the larger value. `None` if the mean does not decide it.
    fn window(&self) -> Option<(String, String)> {
        let (low, top) = self.values.filter(|_| self.n < WINDOW)?;
        let at = |share: f64| {
            let exact = low * (1.0 - share) + top * share;
            let rounded = (exact * 1e6).round() / 1e6;
            shortest(if rounded.is_finite() { rounded } else { exact })
        };
        Some((at(0.01), at(0.99)))
    }

    fn trl(&self) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let train = self.plan.train_batch_size;
        let n = self.n;
        let mut lines = vec![format!("num_generations={n}"), format!("per_device_train_batch_size={n}")];
        lines.extend(self.plan.is_batch_known.then(|| format!("gradient_accumulation_steps={train}")));
        lines.extend(temperature.map(|value| format!("temperature={value:?}")));
        lines.extend(max_response_length.map(|value| format!("max_completion_length={value}")));
        lines
    }

    pub(super) fn lines(&self) -> Vec<ConfigLines> {
        let lines = |system, title: &str, lines| ConfigLines { system, title: title.to_owned(), lines };
        let verl =
            if self.filters { "verl (`python -m recipe.dapo.main_dapo`)" } else { "verl, without a filter" };
        let tamis = if self.filters && !self.plan.samples_at_servers {
            "tamis, as a second file (`tamis train my.yaml advice.yaml`), for one engine that samples and learns in turns"
        } else {
            "tamis, as a second file (`tamis train my.yaml advice.yaml`)"
        };
        let easyr1 = match self.window() {
            None if self.filters && self.values.is_none() => {
                "EasyR1, without its filter: a window on the mean does not show whether the members of a group differ in a number with \
                many values"
            }
            None if self.filters => {
                "EasyR1, without its filter: one right answer in so large a group lies outside of its window, 0.01 to 0.99"
            }
            _ => "EasyR1",
        };
        vec![
            lines("tamis", tamis, self.tamis()),
            lines("verl", verl, self.verl()),
            lines("easyr1", easyr1, self.easyr1(false)),
            lines(
                "easyr1_dynamic_sampling",
                "EasyR1 with dynamic sampling (a fork), in rounds of the batch",
                self.easyr1(true),
            ),
            lines(
                "trl",
                if self.filters {
                    "TRL on one device, with the filter that `tamis.trl.attach(trainer)` gives it"
                } else {
                    "TRL"
                },
                self.trl(),
            ),
        ]
    }
}
