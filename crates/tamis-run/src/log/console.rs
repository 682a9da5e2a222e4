//! The console: one line a step with the numbers to follow.
//!
//! A line is made of the step's typed figures ([`StepView`]), not of the logged metrics: a log is never
//! read back.

use std::time::Duration;

use tamis_core::figure::{percent, short};

use crate::log::progress::duration;
use crate::metrics::timings::Pace;

/// Figures of a step on the console; those without a value are not shown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepView {
    /// Mean reward of the trained trajectories, before a KL penalty.
    pub reward: Option<f64>,
    /// Sample deviation of the rewards.
    pub reward_std: Option<f64>,
    /// Mean reward of all generated trajectories, if these differ from the trained ones.
    pub generated_reward: Option<f64>,
    /// Share of correct trajectories, by `acc`, among all generated.
    pub accuracy: Option<f64>,
    /// Mean `acc` of all generated trajectories, if it has other values than 0 and 1: it is shown instead.
    pub graded: Option<f64>,
    /// Share of the trained groups whose advantages are all zero.
    pub zero_advantage: Option<f64>,
    /// Generation rounds.
    pub rounds: u64,
    /// Share of the generated groups that the filter dropped.
    pub dropped: Option<f64>,
    /// Mean completion length of the trained trajectories, in tokens.
    pub length: Option<f64>,
    /// Share of them that reached the limit of their length.
    pub truncated: Option<f64>,
    /// Entropy of the policy, in nats per token.
    pub entropy: Option<f64>,
    /// The divergence that is configured, in nats per token, with its name.
    pub kl: Option<(&'static str, f64)>,
    /// Norm of the gradient.
    pub grad_norm: Option<f64>,
    /// Learning rate.
    pub learning_rate: Option<f64>,
    /// Time of the whole step.
    pub time: Option<Duration>,
    /// Generation, with the completion tokens of all that was generated.
    pub generation: Option<Pace>,
    /// Log-probabilities at the start of the step, if the learner computes them in a separate pass,
    /// with the prompt and completion tokens of the trained trajectories.
    pub old_logprobs: Option<Pace>,
    /// Updates of the policy, with the same tokens.
    pub update: Option<Pace>,
    /// Share of the device's peak that the updates took (MFU), if it is known.
    pub utilization: Option<f64>,
}

/// The line of a step; `left` is the time that the run will still take.
pub fn line(step: u64, total: Option<u64>, view: &StepView, left: Option<Duration>) -> String {
    let total = total.map_or_else(String::new, |total| format!("/{total}"));
    std::iter::once(format!("step {step}{total}")).chain(figures(view, left)).collect::<Vec<_>>().join("  ")
}

/// The line of a step for a terminal: the main figures, their cost, and the time left.
pub fn short_line(step: u64, total: Option<u64>, view: &StepView, left: Option<Duration>) -> String {
    let total = total.map_or_else(String::new, |total| format!("/{total}"));
    let mut shown = vec![format!("step {step}{total}")];
    shown.extend(view.generated_reward.or(view.reward).map(|reward| format!("reward {}", short(reward))));
    shown.extend(accuracy(view));
    shown
        .extend(view.dropped.filter(|share| *share > 0.0).map(|share| format!("dropped {}", percent(share))));
    let time = view.time.map(|time| {
        if time < Duration::from_secs(10) { format!("{:.1}s", time.as_secs_f64()) } else { duration(time) }
    });
    let left = left.map(|left| format!("about {} left", duration(left)));
    let times: Vec<String> = time.into_iter().chain(left).collect();
    shown.extend(Some(times.join(", ")).filter(|times| !times.is_empty()));
    shown.join("  ")
}

fn figures(view: &StepView, left: Option<Duration>) -> Vec<String> {
    let mut shown = Vec::new();
    if let Some(reward) = view.reward {
        let deviation = view.reward_std.map_or_else(String::new, |std| format!(" (std {})", short(std)));
        shown.push(format!("reward {}{deviation}", short(reward)));
    }
    match (view.generated_reward, accuracy(view)) {
        (Some(reward), accuracy) => {
            let accuracy = accuracy.map_or_else(String::new, |accuracy| format!(", {accuracy}"));
            shown.push(format!("of all generated: reward {}{accuracy}", short(reward)));
        }
        (None, accuracy) => shown.extend(accuracy),
    }
    if let Some(share) = view.zero_advantage.filter(|share| *share > 0.0) {
        shown.push(format!("zero advantage in {} of groups", percent(share)));
    }
    if view.rounds > 1 {
        shown.push(format!("rounds {}", view.rounds));
    }
    shown
        .extend(view.dropped.filter(|share| *share > 0.0).map(|share| format!("dropped {}", percent(share))));
    if let Some(length) = view.length {
        let truncated = view.truncated.filter(|share| *share > 0.0);
        let truncated =
            truncated.map_or_else(String::new, |share| format!(" ({} truncated)", percent(share)));
        shown.push(format!("length {}{truncated}", short(length)));
    }
    shown.extend(view.entropy.map(|entropy| format!("entropy {}", short(entropy))));
    shown.extend(view.kl.map(|(name, kl)| format!("{name} {}", power(kl))));
    shown.extend(view.grad_norm.map(|norm| format!("grad {}", short(norm))));
    shown.extend(view.learning_rate.map(|rate| format!("lr {}", power(rate))));
    if let Some(time) = view.time {
        let stages = [
            ("generation", view.generation),
            ("old log-probabilities", view.old_logprobs),
            ("update", view.update),
        ];
        let mut stages: Vec<String> =
            stages.into_iter().filter_map(|(name, pace)| pace.map(|pace| stage(name, pace, time))).collect();
        stages.extend(view.utilization.map(|share| format!("MFU {}", percent(share))));
        let stages = if stages.is_empty() { String::new() } else { format!(" ({})", stages.join(", ")) };
        shown.push(format!("time {:.1}s{stages}", time.as_secs_f64()));
    }
    shown.extend(left.map(|left| format!("{} left", duration(left))));
    shown
}

/// The share that is right, or the mean of a graded `acc`, which is no such share.
fn accuracy(view: &StepView) -> Option<String> {
    let graded = view.graded.map(|mean| format!("acc {}", short(mean)));
    graded.or_else(|| view.accuracy.map(|accuracy| format!("accuracy {}", percent(accuracy))))
}

/// A stage's time, its share of the step's, and its pace: `update 1.0s = 30.8% at 850 tok/s`.
fn stage(name: &str, pace: Pace, step: Duration) -> String {
    let rate = pace.rate().map_or_else(String::new, |tokens| format!(" at {}", rate(tokens)));
    let (part, whole) = (pace.time.as_secs_f64(), step.as_secs_f64());
    let share =
        if part > 0.0 && whole > 0.0 { format!(" = {}", percent(part / whole)) } else { String::new() };
    format!("{name} {part:.1}s{share}{rate}")
}

/// `850 tok/s`, `12.3k tok/s`, `1.2M tok/s`.
fn rate(tokens_per_second: f64) -> String {
    match tokens_per_second {
        value if value >= 1e6 => format!("{:.1}M tok/s", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k tok/s", value / 1e3),
        value => format!("{value:.0} tok/s"),
    }
}

/// A number with a power of ten: `1.0e-6`; 0 stays `0`.
fn power(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!([850.4, 12_345.0, 1.25e6].map(rate), ["850 tok/s", "12.3k tok/s", "1.2M tok/s"]);
    }

    #[test]
    fn a_line_shows_what_is_there() {
        let line = |view: &StepView, left| super::line(3, Some(100), view, left);
        insta::assert_snapshot!(super::line(3, None, &StepView::default(), None), @"step 3");
        let pace = |seconds, tokens| Some(Pace { time: Duration::from_millis(seconds), tokens });
        let mut view = StepView {
            reward: Some(0.531_25),
            reward_std: Some(0.499),
            generated_reward: Some(0.4),
            accuracy: Some(0.468_75),
            graded: None,
            zero_advantage: Some(0.25),
            rounds: 2,
            dropped: Some(0.598),
            length: Some(24.1),
            truncated: Some(0.031),
            entropy: Some(1.25),
            kl: Some(("ref_kl", -0.000_031)),
            grad_norm: Some(f64::NAN),
            learning_rate: Some(1e-6),
            time: Some(Duration::from_millis(3250)),
            generation: pace(2000, 24_690),
            old_logprobs: None,
            update: pace(1000, 850),
            utilization: Some(0.2514),
        };
        insta::assert_snapshot!(line(&view, Some(Duration::from_secs(185))), @"step 3/100  reward 0.531 (std \
             0.499)  of all generated: reward 0.400, accuracy 46.9%  zero advantage in 25.0% of groups  \
             rounds 2  dropped 59.8%  length 24.100 (3.1% truncated)  entropy 1.250  ref_kl -3.1e-5  grad \
             NaN  lr 1.0e-6  time 3.2s (generation 2.0s = 61.5% at 12.3k tok/s, update 1.0s = 30.8% at 850 tok/s, \
             MFU 25.1%)  3m 05s left");
        let short = |view: &StepView, left| super::short_line(3, Some(100), view, left);
        assert_eq!(
            short(&view, Some(Duration::from_secs(185))),
            "step 3/100  reward 0.400  accuracy 46.9%  dropped 59.8%  3.2s, about 3m 05s left"
        );
        let graded = StepView { graded: Some(0.612), ..view };
        assert_eq!(short(&graded, None), "step 3/100  reward 0.400  acc 0.612  dropped 59.8%  3.2s");
        assert!(line(&graded, None).contains("of all generated: reward 0.400, acc 0.612"));
        view.old_logprobs = pace(250, 850);
        let text = line(&view, None);
        assert!(
            text.contains(
                "at 12.3k tok/s, old log-probabilities 0.2s = 7.7% at 3400 tok/s, update 1.0s = 30.8%"
            ),
            "{text}"
        );
        view.old_logprobs = None;
        view.learning_rate = Some(0.0);
        // Zeros are left out, and so is a population equal to the other.
        view.generated_reward = None;
        (view.zero_advantage, view.dropped, view.truncated, view.rounds) =
            (Some(0.0), Some(0.0), Some(0.0), 1);
        (view.generation, view.update, view.kl) = (pace(0, 10), None, None);
        insta::assert_snapshot!(line(&view, None), @"step 3/100  reward 0.531 (std 0.499)  accuracy 46.9%  \
             length 24.100  entropy 1.250  grad NaN  lr 0  time 3.2s (generation 0.0s, MFU 25.1%)");
        assert_eq!(short(&view, None), "step 3/100  reward 0.531  accuracy 46.9%  3.2s");
        assert_eq!(short(&StepView::default(), None), "step 3/100");
        let large = StepView {
            reward: Some(1e300),
            reward_std: Some(-2.5e299 / 3.0),
            length: Some(1.234_567_8e12),
            grad_norm: Some(f64::INFINITY),
            zero_advantage: Some(1.0),
            ..StepView::default()
        };
        insta::assert_snapshot!(line(&large, None), @"step 3/100  reward 1.000e300 (std -8.333e298)  zero \
             advantage in 100.0% of groups  length 1.235e12  grad inf");
    }
}
