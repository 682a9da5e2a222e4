//! `simulate`: the world in which `tamis simulate` tries schedules out.

use std::path::PathBuf;

use tamis_core::schedule::InFlight;
use tamis_core::{choice, settings, tagged};

settings! {
    /// Pass rates that follow a Beta distribution.
    pub struct BetaRates {
        /// Pseudo-count of correct samples; below 1 most prompts are easy or hopeless.
        a: f64 = 0.3, Between(0.01, 1e4), Free;
        /// Pseudo-count of wrong samples.
        b: f64 = 0.3, Between(0.01, 1e4), Free;
        /// Number of prompts in the data, spread evenly over the distribution.
        prompts: usize = 6000, Between(1.0, 1e8), Free;
    }
}

settings! {
    /// Pass rates that were counted.
    pub struct HistogramRates {
        /// Pass rates, from 0 to 1.
        rates: Vec<f64>, Between(0.0, 1.0), Free;
        /// Number of prompts (or any weight in proportion) at each of them.
        counts: Vec<f64>, NonNegative, Free;
        /// Number of prompts in the data.
        prompts: usize = 6000, Between(1.0, 1e8), Free;
    }
}

settings! {
    /// Pass rates of the prompts of rollouts.
    pub struct RolloutRates {
        /// A run directory, or a file of rollouts (Parquet or JSONL) of any program; groups and what is right
        /// are read as `tamis advise` does it.
        path: PathBuf, NotEmpty, Free;
        /// Number of prompts in the data: as many rates are drawn, for each prompt of the rollouts about as
        /// often. Null: the prompts of the rollouts are all that there are.
        prompts: Option<usize> = None, Between(1.0, 1e8), Free;
    }
}

tagged! {
    /// Distribution of pass rates over the prompts.
    pub enum PassRates, default Beta {
        /// A Beta distribution.
        Beta(BetaRates) = "beta",
        /// Rates with the number of prompts at each.
        Histogram(HistogramRates) = "histogram",
        /// What the prompts of a run or of a file of rollouts came to. A prompt has the rate that is drawn
        /// from its posterior under a Beta distribution fitted to all of them: c of n right is not a rate of
        /// c/n.
        Rollouts(RolloutRates) = "rollouts",
    }
}

choice! {
    /// A policy of scheduling that is simulated.
    pub enum SimulatedPolicy {
        /// The run's own `schedule`.
        Configured = "configured",
        /// verl's DAPO recipe: rounds of `data.gen_batch_size` until the batch is full, surplus thrown away.
        Verl = "verl",
        /// verl's default trainer (0.9.1) with `filter_groups`: two prompts for each dropped group, what has
        /// ended is looked at every 2 s, surplus thrown away.
        VerlV1 = "verl_v1",
        /// The same in its asynchronous modes: one prompt for each dropped group, surplus kept, up to 7 steps
        /// stale.
        VerlV1Async = "verl_v1_async",
        /// EasyR1's fork with `use_dynamic_sample`: rounds of the batch, at most 3; what was kept is trained
        /// on at the limit or the end of the data.
        Easyr1 = "easyr1",
        /// NeMo-RL: rounds of the batch (`batch_multiplier: 1`), cut to the batch.
        NemoRl = "nemo_rl",
        /// SkyRL's `dynamic_sampling: filter`: rounds of the batch, cut to the batch.
        Skyrl = "skyrl",
        /// SkyRL's `dynamic_sampling: replace`: one round of the batch, whose dropped groups are replaced by
        /// copies of kept ones.
        SkyrlReplace = "skyrl_replace",
        /// SkyRL's asynchronous trainer with `sample_full_batch`: up to 4 steps stale, in order of
        /// completion.
        SkyrlAsync = "skyrl_async",
        /// OpenRLHF: each group that is dropped is replaced by one, and all are waited for.
        Openrlhf = "openrlhf",
        /// slime: another batch of prompts whenever fewer are left than the batch, the first kept groups make
        /// it, the rest is aborted.
        Slime = "slime",
        /// slime with `check_reward_nonzero_std_with_fallback`: one round, and dropped groups stay in the
        /// batch where too few are kept.
        SlimeFallback = "slime_fallback",
        /// AReaL: each group that is rejected is replaced by one, up to 2 steps stale, the oldest first.
        Areal = "areal",
        /// prime-rl with its zero-advantage gate: servers always full, batches in order of completion, up to
        /// 8 steps stale.
        PrimeRl = "prime_rl",
        /// `schedule.mode: rounds` with `surplus: carry`.
        RoundsCarry = "rounds_carry",
        /// `schedule.mode: deficit`.
        Deficit = "deficit",
        /// `schedule.mode: deficit` with `surplus: carry`.
        DeficitCarry = "deficit_carry",
        /// `schedule.mode: streaming`.
        Streaming = "streaming",
        /// `schedule.mode: streaming` with `surplus: carry`.
        StreamingCarry = "streaming_carry",
        /// The same in order of completion.
        StreamingCarryCompletion = "streaming_carry_completion",
        /// `streaming_carry` with `schedule.screen_first`: that of the run, or 4.
        Screening = "screening",
        /// `streaming_carry` with prompts passed over whose groups were uniform before (GRESO).
        ZeroVarianceSkip = "zero_variance_skip",
        /// `streaming_carry` with a fifth of the prompts whose latest group was uniform (prime-rl's pools),
        /// or by the run's own `difficulty_pools`.
        DifficultyPools = "difficulty_pools",
        /// `streaming_carry` with prompts chosen by the posterior of their pass rate, weighted by 1/q.
        Posterior = "posterior",
        /// The same without weights.
        PosteriorBiased = "posterior_biased",
    }
}

settings! {
    /// Lengths of completions, in tokens: lognormal, cut at `rollout.max_response_length`. A completion that
    /// is cut is wrong.
    pub struct SimulatedLengthConfig {
        /// Median of the lengths of right completions. Null: a twentieth of `rollout.max_response_length`.
        median: Option<f64> = None, AtLeast(1.0), Free;
        /// Deviation of the logarithm of a length.
        sigma: f64 = 1.0, Between(0.0, 4.0), Free;
        /// Share of that variance which the completions of a prompt have in common.
        prompt_share: f64 = 0.0, Between(0.0, 1.0), Free;
        /// Factor by which wrong completions are longer than right ones, in the median.
        wrong_factor: f64 = 1.0, Between(0.01, 100.0), Free;
        /// Tokens of a prompt, which are computed once for a group and a server.
        prompt: usize = 0, Between(0.0, 1e7), Free;
    }
}

settings! {
    /// Servers with continuous batching. An iteration gives each running sample one token and takes
    /// `iteration` x (1 + `load` x running / slots + `context` x cached tokens / `kv_tokens`).
    pub struct SimulatedServersConfig {
        /// Number of servers; a group goes to the one with the fewest samples.
        count: usize = 1, Between(1.0, 1e5), Free;
        /// Samples that a server decodes at once. Null: `rollout.max_num_seqs`.
        slots: Option<usize> = None, Between(1.0, 1e6), Free;
        /// Seconds of an iteration of an empty server.
        iteration: f64 = 0.02, Positive, Free;
        /// Share by which an iteration takes longer when all slots are running.
        load: f64 = 0.5, NonNegative, Free;
        /// Share by which an iteration takes longer when the cache is full. Needs `kv_tokens`.
        context: f64 = 0.0, NonNegative, Free;
        /// Tokens that the key-value cache of a server holds; where they run out, the sample that was started
        /// last is preempted and computed again later. Null: no limit.
        kv_tokens: Option<usize> = None, AtLeast(1.0), Free;
        /// Tokens a second of prompts, and of what was preempted or aborted, that a server computes while
        /// decoding waits. Null: at once.
        prefill_rate: Option<f64> = None, Positive, Free;
    }
}

settings! {
    /// Seconds that a learner takes: `step` + `token` x trained tokens.
    pub struct SimulatedTrainTimeConfig {
        /// Seconds of a step, whatever is in it.
        step: f64 = 0.0, NonNegative, Free;
        /// Seconds of a trained token.
        token: f64 = 0.0, NonNegative, Free;
    }
}

settings! {
    /// New weights at the servers.
    pub struct SimulatedPublicationConfig {
        /// Seconds in which servers take new weights in and decode nothing.
        time: f64 = 0.0, NonNegative, Free;
        /// Treatment of samples in flight meanwhile. Null: that of `publish.pause`, where that is set,
        /// otherwise `keep`.
        in_flight: Option<InFlight> = None, Any, Free;
    }
}

settings! {
    /// Change of pass rates with training, in the logit.
    pub struct SimulatedDriftConfig {
        /// Change of every prompt's logit a step.
        logit: f64 = 0.0, Any, Free;
        /// Deviation of a prompt's own change a step.
        noise: f64 = 0.0, NonNegative, Free;
    }
}

settings! {
    /// The world in which `tamis simulate` tries schedules out. A run does not read it.
    pub struct SimulateConfig {
        /// Distribution of pass rates over the prompts.
        pass_rate: PassRates = PassRates::default(), Any, Free;
        /// Kept groups that each policy trains on, rounded up to whole steps; numbers are those of the second
        /// half. Null: 60 steps.
        groups: Option<usize> = None, Between(1.0, 1e9), Free;
        /// Policies that are set beside each other, by name. Empty: all.
        policies: Vec<SimulatedPolicy> = Vec::new(), Any, Free;
        /// Lengths of completions.
        length: SimulatedLengthConfig = SimulatedLengthConfig::default(), Any, Free;
        /// Servers that sample. Null: groups are counted alone, without a clock.
        servers: Option<SimulatedServersConfig> = Some(SimulatedServersConfig::default()), Any, Free;
        /// Seconds from the end of a completion to its score.
        reward_latency: f64 = 0.0, NonNegative, Free;
        /// Seconds that a learner takes.
        train_time: SimulatedTrainTimeConfig = SimulatedTrainTimeConfig::default(), Any, Free;
        /// New weights at the servers.
        publication: SimulatedPublicationConfig = SimulatedPublicationConfig::default(), Any, Free;
        /// Change of pass rates with training.
        drift: SimulatedDriftConfig = SimulatedDriftConfig::default(), Any, Free;
    }
}
