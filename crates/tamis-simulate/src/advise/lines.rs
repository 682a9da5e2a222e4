//! Lines of configuration to paste, in the keys of each system.

use std::fmt::Write as _;

use serde::Serialize;

use super::cost::Costs;
use super::finding::Changes;
use super::plan::Plan;

/// Lines for one system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigLines {
    /// `tamis`, `verl`, `easyr1`, `easyr1_dynamic_sampling` or `trl`.
    pub system: &'static str,
    /// Its name, and what is to know of the lines.
    pub title: &'static str,
    /// The lines: YAML for tamis, arguments of the command for the others.
    pub lines: Vec<String>,
}

/// Values that every system gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Values<'a> {
    pub(super) plan: &'a Plan,
    pub(super) n: usize,
    /// Keep rate at that n.
    pub(super) keep: f64,
    pub(super) costs: &'a Costs,
    pub(super) changes: Changes,
    /// Name of the outcome.
    pub(super) outcome: &'a str,
    pub(super) filters: bool,
}

/// Names of a number in tamis and verl, and in EasyR1.
fn metric(outcome: &str) -> (&str, &str) {
    match outcome {
        "reward" | "seq_reward" => ("seq_reward", "overall"),
        "acc" | "accuracy" | "metric_value" | "" => ("acc", "accuracy"),
        other => (other, other),
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
        if !self.filters {
            return vec![
                format!("data: {{train_batch_size: {train}}}"),
                format!("rollout: {{{rollout}}}"),
                "filter: null".to_owned(),
            ];
        }
        let (metric, _) = metric(self.outcome);
        // At servers a stream keeps them full; where one engine samples and learns in turns a step that lags
        // by one buys nothing.
        let mode =
            if self.plan.samples_at_servers { "streaming, surplus: carry, max_lag: 1" } else { "deficit" };
        let limit = self.limit().map_or_else(|| "auto".to_owned(), |limit| limit.to_string());
        vec![
            format!("data: {{train_batch_size: {train}, gen_batch_size: {}}}", self.round()),
            format!("rollout: {{{rollout}}}"),
            format!("filter: {{kind: variance, metric: {metric}}}"),
            format!("schedule: {{mode: {mode}, max_num_gen_batches: {limit}, on_limit: use_partial}}"),
        ]
    }

    fn verl(&self) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let mut lines = vec![format!("data.train_batch_size={}", self.plan.train_batch_size)];
        if self.filters {
            lines.push(format!("data.gen_batch_size={}", self.round()));
        }
        lines.push(format!("actor_rollout_ref.rollout.n={}", self.n));
        lines.extend(temperature.map(|value| format!("actor_rollout_ref.rollout.temperature={value:?}")));
        lines.extend(max_response_length.map(|value| format!("data.max_response_length={value}")));
        lines.push(format!("algorithm.filter_groups.enable={}", if self.filters { "True" } else { "False" }));
        if self.filters {
            let (metric, _) = metric(self.outcome);
            lines.push(format!("algorithm.filter_groups.metric={metric}"));
            let limit = self.limit().unwrap_or(0);
            lines.push(format!("algorithm.filter_groups.max_num_gen_batches={limit}"));
        }
        lines
    }

    fn easyr1(&self, is_dynamic: bool) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let train = self.plan.train_batch_size;
        let mut lines = vec![format!("data.rollout_batch_size={train}")];
        if self.filters && !is_dynamic {
            lines.push(format!("data.mini_rollout_batch_size={}", self.round()));
        }
        lines.push(format!("worker.rollout.n={}", self.n));
        lines.extend(temperature.map(|value| format!("worker.rollout.temperature={value:?}")));
        lines.extend(max_response_length.map(|value| format!("data.max_response_length={value}")));
        let switch = if is_dynamic { "use_dynamic_sample" } else { "online_filtering" };
        lines.push(format!("algorithm.{switch}={}", self.filters));
        if !self.filters {
            return lines;
        }
        if is_dynamic {
            let limit = Costs::limit_of_whole_batches(self.keep, train);
            lines.push(format!("algorithm.dynamic_sample_max_gen_batches={limit}"));
        } else {
            let (_, metric) = metric(self.outcome);
            lines.push(format!("algorithm.filter_key={metric}"));
            lines.extend(["algorithm.filter_low=0.01".to_owned(), "algorithm.filter_high=0.99".to_owned()]);
            let limit = self.limit().unwrap_or(0);
            lines.push(format!("trainer.max_try_make_batch={limit}"));
        }
        lines
    }

    /// TRL has no filter: as many more prompts in a step as leave a batch whose groups differ.
    fn trl(&self) -> Vec<String> {
        let Changes { temperature, max_response_length } = self.changes;
        let train = self.plan.train_batch_size;
        let prompts = if self.filters { (train as f64 / self.keep).ceil().min(1e6) as usize } else { train };
        let n = self.n;
        let mut lines = vec![
            format!("num_generations={n}"),
            format!("per_device_train_batch_size={n}"),
            format!("gradient_accumulation_steps={prompts}"),
        ];
        lines.extend(temperature.map(|value| format!("temperature={value:?}")));
        lines.extend(max_response_length.map(|value| format!("max_completion_length={value}")));
        lines
    }

    pub(super) fn lines(&self) -> Vec<ConfigLines> {
        let lines = |system, title, lines| ConfigLines { system, title, lines };
        vec![
            lines("tamis", "tamis", self.tamis()),
            lines("verl", "verl", self.verl()),
            lines("easyr1", "EasyR1", self.easyr1(false)),
            lines(
                "easyr1_dynamic_sampling",
                "EasyR1 with dynamic sampling (a fork), in rounds of the batch",
                self.easyr1(true),
            ),
            lines(
                "trl",
                "TRL, which has no filter: on one device, so many groups that a batch of them differs",
                self.trl(),
            ),
        ]
    }
}
