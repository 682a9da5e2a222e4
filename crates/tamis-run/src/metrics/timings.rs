//! Duration of a step's stages, and the rates per token and second.

use std::time::{Duration, Instant, SystemTime};

use crate::metrics::Metrics;

/// Times of the stages of one step, summed if a stage ran more than once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timings {
    stages: Vec<(&'static str, Duration)>,
    stretches: Vec<(&'static str, Instant, Duration)>,
}

/// A stretch of time in which a stage ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Name of the stage, as in `timing_s/{stage}`.
    pub stage: &'static str,
    /// When it began.
    pub began: SystemTime,
    /// Its length.
    pub time: Duration,
}

/// Tokens that times are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// Completion tokens of all trajectories generated for the step.
    pub generated: usize,
    /// Prompt and completion tokens of the trained batch.
    pub trained: usize,
}

/// The stage whose time is that of the whole step.
pub const STEP: &str = "step";
/// Generation.
pub const GENERATION: &str = "gen";
/// Log-probabilities at the start of the step, in a pass of their own.
pub const OLD_LOGPROBS: &str = "old_log_prob";
/// Log-probabilities under teachers.
pub const TEACHER: &str = "teacher";
/// Updates of the policy.
pub const UPDATE: &str = "update_actor";

/// A time and the tokens that were dealt with in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// Duration.
    pub time: Duration,
    /// Number of tokens.
    pub tokens: usize,
}

impl Pace {
    /// Tokens per second; `None` if no time passed.
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.time.as_secs_f64();
        (seconds > 0.0).then(|| self.tokens as f64 / seconds)
    }
}

impl Timings {
    /// No stage yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the time of a stage that ends now: `gen`, `ref`, `values`, `adv`, `update_critic`,
    /// `update_actor`, `testing`, [`STEP`], ...
    pub fn add(&mut self, stage: &'static str, time: Duration) {
        self.stretches.push((stage, Instant::now(), time));
        self.add_sum(stage, time);
    }

    /// Adds time that is a sum over parallel work (`reward`) or over short calls (`wire`): it is not an
    /// interval of the step.
    pub fn add_sum(&mut self, stage: &'static str, time: Duration) {
        match self.stages.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, sum)) => *sum += time,
            None => self.stages.push((stage, time)),
        }
    }

    /// Adds the times of stages that were measured apart.
    pub fn append(&mut self, other: &Self) {
        for (stage, time) in &other.stages {
            self.add_sum(stage, *time);
        }
        self.stretches.extend(&other.stretches);
    }

    /// Intervals of the stages; among those that began together the longest comes first, so [`STEP`]
    /// precedes its stages.
    pub fn spans(&self) -> Vec<Span> {
        let (now, today) = (Instant::now(), SystemTime::now());
        let mut spans: Vec<Span> = (self.stretches.iter())
            .map(|&(stage, end, time)| {
                let ago = now.saturating_duration_since(end) + time;
                Span { stage, began: today.checked_sub(ago).unwrap_or(today), time }
            })
            .collect();
        spans.sort_by(|one, other| one.began.cmp(&other.began).then(other.time.cmp(&one.time)));
        spans
    }

    /// Time of a stage so far.
    pub fn get(&self, stage: &str) -> Option<Duration> {
        self.stages.iter().find(|(name, _)| *name == stage).map(|(_, time)| *time)
    }

    /// A stage with the number of its tokens; `None` if it did not run.
    pub fn pace(&self, stage: &str, tokens: usize) -> Option<Pace> {
        self.get(stage).map(|time| Pace { time, tokens })
    }

    /// `timing_s/*`, `timing_per_token_ms/*` and the throughputs. Generation is per generated token,
    /// other stages are per token of the trained batch. Without tokens or time, a quotient is left out.
    ///
    /// # Differs from
    /// verl divides the generation of dropped groups by the tokens of the kept ones.
    pub fn metrics(&self, tokens: TokenCounts, metrics: &mut Metrics) {
        for (stage, time) in &self.stages {
            metrics.set(format!("timing_s/{stage}"), time.as_secs_f64());
        }
        for (stage, time) in self.stages.iter().filter(|(stage, _)| *stage != STEP) {
            let count = if *stage == GENERATION { tokens.generated } else { tokens.trained };
            if count > 0 {
                metrics.set(format!("timing_per_token_ms/{stage}"), 1e3 * time.as_secs_f64() / count as f64);
            }
        }
        let per_second = |count: usize, stage: &str| self.pace(stage, count)?.rate();
        metrics.set_some("perf/throughput", per_second(tokens.trained, STEP));
        metrics.set_some("perf/gen_throughput", per_second(tokens.generated, GENERATION));
        metrics.set_some("perf/update_throughput", per_second(tokens.trained, UPDATE));
        metrics.set_some("perf/gen_share", self.share(GENERATION));
        metrics.set_some("perf/update_share", self.share(UPDATE));
    }

    /// Share of the step's time that a stage took; `None` if it did not run, or if no time passed.
    pub fn share(&self, stage: &str) -> Option<f64> {
        let whole = self.get(STEP)?.as_secs_f64();
        let part = self.get(stage)?.as_secs_f64();
        (whole > 0.0).then(|| part / whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::catalogue::is_wall_clock;

    #[test]
    fn a_span_ends_where_its_stage_did_and_sums_have_none() {
        let mut timings = Timings::new();
        timings.add(GENERATION, Duration::from_secs(2));
        timings.add_sum("reward", Duration::from_secs(9));
        let mut step = Timings::new();
        step.append(&timings);
        step.add(STEP, Duration::from_secs(5));
        let spans = step.spans();
        assert_eq!(spans.iter().map(|span| span.stage).collect::<Vec<_>>(), [STEP, GENERATION]);
        let later = spans[1].began.duration_since(spans[0].began).expect("later");
        assert!(later <= Duration::from_secs(3), "both end now, or one a moment before the other");
        assert_eq!(step.get("reward"), Some(Duration::from_secs(9)));
    }

    #[test]
    fn by_hand() {
        let mut timings = Timings::new();
        timings.add(GENERATION, Duration::from_millis(1500));
        timings.add("adv", Duration::from_millis(10));
        timings.add(UPDATE, Duration::from_secs(1));
        timings.add(GENERATION, Duration::from_millis(500));
        timings.add(STEP, Duration::from_secs(4));
        let mut metrics = Metrics::new();
        timings.metrics(TokenCounts { generated: 4000, trained: 1000 }, &mut metrics);
        metrics.add_aliases();
        assert!(metrics.iter().all(|(name, _)| is_wall_clock(name)), "{metrics:?}");
        let listed: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value}")).collect();
        insta::assert_snapshot!(listed.join("\n"), @"
        timing_s/gen 2
        timing_s/adv 0.01
        timing_s/update_actor 1
        timing_s/step 4
        timing_per_token_ms/gen 0.5
        timing_per_token_ms/adv 0.01
        timing_per_token_ms/update_actor 1
        perf/throughput 250
        perf/gen_throughput 2000
        perf/update_throughput 1000
        perf/gen_share 0.5
        perf/update_share 0.25
        step_time 4
        perf/time_per_step 4
        ");
    }

    #[test]
    fn no_tokens_and_no_time_give_no_quotients() {
        let mut timings = Timings::new();
        timings.add(GENERATION, Duration::ZERO);
        timings.add(STEP, Duration::ZERO);
        let mut metrics = Metrics::new();
        timings.metrics(TokenCounts::default(), &mut metrics);
        assert_eq!(metrics.get("timing_per_token_ms/gen"), None);
        assert_eq!((metrics.get("perf/gen_throughput"), metrics.get("perf/gen_share")), (None, None));
        assert_eq!(metrics.get("timing_s/gen"), Some(0.0));
    }
}
