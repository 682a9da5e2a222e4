//! `simulate`: the simulated data, servers and learner of `tamis simulate`, which compares schedules.

use std::path::PathBuf;

use tamis_core::schedule::InFlight;
use tamis_core::{choice, settings, tagged};

settings! {
    /// Pass rates that follow a Beta distribution.
    pub struct BetaRates {
        /// Pseudo-count of correct samples. Below 1, most prompts are easy or hopeless.
        a: f64 = 0.3, Between(0.01, 1e4), Free;
        /// Pseudo-count of wrong samples.
        b: f64 = 0.3, Between(0.01, 1e4), Free;
        /// Number of prompts in the data, spread evenly over the distribution.
        prompts: usize = 6000, Between(1.0, 1e8), Free;
    }
}

settings! {
    /// Pass rates as a histogram.
    pub struct HistogramRates {
        /// Pass rates, from 0 to 1.
        rates: Vec<f64>, Between(0.0, 1.0), Free;
        /// Number of prompts at each of them, or any weights in proportion.
        counts: Vec<f64>, NonNegative, Free;
        /// Number of prompts in the data.
        prompts: usize = 6000, Between(1.0, 1e8), Free;
    }
}

settings! {
    /// Pass rates of prompts in rollouts.
    pub struct RolloutRates {
        /// A run directory, or a file of rollouts (Parquet or JSONL) of any program. Groups and outcomes are
        /// read as by `tamis advise`.
        path: PathBuf, NotEmpty, Free;
        /// Number of prompts in the data. This many rates are drawn, about equally many for each prompt of
        /// the rollouts. Null: the data are exactly the prompts of the rollouts.
        prompts: Option<usize> = None, Between(1.0, 1e8), Free;
    }
}

tagged! {
    /// Distribution of the prompts' pass rates.
    pub enum SimulatedPassRates, default Beta {
        /// A Beta distribution.
        Beta(BetaRates) = "beta",
        /// Rates with the number of prompts at each.
        Histogram(HistogramRates) = "histogram",
        /// Results of the prompts of a run or of a file of rollouts. The rate of a prompt is drawn from its
        /// posterior under a Beta distribution fitted to all prompts, because c of n right does not mean a
        /// rate of c/n.
        Rollouts(RolloutRates) = "rollouts",
    }
}

choice! {
    /// A scheduling policy that is simulated.
    pub enum SimulatedPolicy {
        /// The run's own `schedule`.
        Configured = "configured",
        /// verl's DAPO recipe: rounds of `data.gen_batch_size` until the batch is full; surplus is discarded.
        Verl = "verl",
        /// verl's default trainer (0.9.1) with `filter_groups`: two new prompts for each dropped group,
        /// finished groups are polled every 2 s, surplus is discarded.
        VerlV1 = "verl_v1",
        /// The same in its asynchronous modes: one new prompt for each dropped group; surplus is kept, up to
        /// 7 steps stale.
        VerlV1Async = "verl_v1_async",
        /// EasyR1's fork with `use_dynamic_sample`: at most 3 rounds of the batch size. At the limit or the
        /// end of the data it trains on the kept groups.
        Easyr1 = "easyr1",
        /// NeMo-RL: rounds of the batch size (`batch_multiplier: 1`), cut to the batch.
        NemoRl = "nemo_rl",
        /// SkyRL's `dynamic_sampling: filter`: rounds of the batch size, cut to the batch.
        Skyrl = "skyrl",
        /// SkyRL's `dynamic_sampling: replace`: one round of the batch size. Dropped groups are replaced by
        /// copies of kept ones.
        SkyrlReplace = "skyrl_replace",
        /// SkyRL's asynchronous trainer with `sample_full_batch`: up to 4 steps stale, in order of
        /// completion.
        SkyrlAsync = "skyrl_async",
        /// OpenRLHF: each dropped group is replaced by one new group, and the step waits for all.
        Openrlhf = "openrlhf",
        /// slime: another batch of prompts whenever fewer groups are left than the batch needs. The first
        /// kept groups form the batch; the rest is aborted.
        Slime = "slime",
        /// slime with `check_reward_nonzero_std_with_fallback`: one round. Dropped groups stay in the batch
        /// if too few are kept.
        SlimeFallback = "slime_fallback",
        /// AReaL: each rejected group is replaced by one new group; up to 2 steps stale, oldest first.
        Areal = "areal",
        /// prime-rl with its zero-advantage gate: servers are always full, batches fill in order of
        /// completion, up to 8 steps stale.
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
        /// `streaming_carry`, passing over prompts whose earlier groups were uniform (GRESO).
        ZeroVarianceSkip = "zero_variance_skip",
        /// `streaming_carry` with only a fifth of the prompts whose latest group was uniform (prime-rl's
        /// pools), or with the run's own `difficulty_pools`.
        DifficultyPools = "difficulty_pools",
        /// `streaming_carry` with prompts chosen by the posterior of their pass rate, weighted by 1/q.
        Posterior = "posterior",
        /// The same without weights.
        PosteriorBiased = "posterior_biased",
    }
}

settings! {
    /// Lengths of completions in tokens: lognormal, truncated at `rollout.max_response_length`. A truncated
    /// completion is wrong.
    pub struct SimulatedLengthConfig {
        /// Median of the lengths of right completions. Null: a twentieth of `rollout.max_response_length`.
        median: Option<f64> = None, AtLeast(1.0), Free;
        /// Standard deviation of the logarithm of a length.
        sigma: f64 = 1.0, Between(0.0, 4.0), Free;
        /// Share of that variance that is common to the completions of a prompt.
        prompt_share: f64 = 0.0, Between(0.0, 1.0), Free;
        /// Median length of wrong completions divided by that of right ones.
        wrong_factor: f64 = 1.0, Between(0.01, 100.0), Free;
        /// Tokens of a prompt. A server computes them once for each group.
        prompt: usize = 0, Between(0.0, 1e7), Free;
    }
}

settings! {
    /// Servers with continuous batching. An iteration gives each running sample one token and takes
    /// `iteration` x (1 + `load` x running / slots + `context` x cached tokens / `kv_tokens`).
    pub struct SimulatedServersConfig {
        /// Number of servers; a group goes to the one with the fewest samples.
        count: usize = 1, Between(1.0, 1e5), Free;
        /// Number of samples that a server decodes at once. Null: `rollout.max_num_seqs`.
        slots: Option<usize> = None, Between(1.0, 1e6), Free;
        /// Seconds per iteration of an empty server.
        iteration: f64 = 0.02, Positive, Free;
        /// Share by which an iteration takes longer when all slots are running.
        load: f64 = 0.5, NonNegative, Free;
        /// Share by which an iteration takes longer when the cache is full. Needs `kv_tokens`.
        context: f64 = 0.0, NonNegative, Free;
        /// Tokens that the key-value cache of a server holds. If it is full, the sample that started last is
        /// preempted and computed again later. Null: no limit.
        kv_tokens: Option<usize> = None, AtLeast(1.0), Free;
        /// Tokens per second that a server computes of prompts and of preempted or aborted samples, while
        /// decoding waits. Null: at once.
        prefill_rate: Option<f64> = None, Positive, Free;
    }
}

settings! {
    /// Seconds of training per step: `step` + `token` x trained tokens.
    pub struct SimulatedTrainTimeConfig {
        /// Seconds per step, independent of its tokens.
        step: f64 = 0.0, NonNegative, Free;
        /// Seconds per trained token.
        token: f64 = 0.0, NonNegative, Free;
    }
}

settings! {
    /// New weights at the servers.
    pub struct SimulatedPublicationConfig {
        /// Seconds in which servers load new weights and do not decode.
        time: f64 = 0.0, NonNegative, Free;
        /// Action for samples in flight meanwhile. Null: the value of `publish.pause` if that is set,
        /// otherwise `keep`.
        in_flight: Option<InFlight> = None, Any, Free;
    }
}

settings! {
    /// Change of pass rates with training, in logits.
    pub struct SimulatedDriftConfig {
        /// Change of every prompt's logit per step.
        logit: f64 = 0.0, Any, Free;
        /// Standard deviation of each prompt's own change per step.
        noise: f64 = 0.0, NonNegative, Free;
    }
}

settings! {
    /// The simulated data, servers and learner of `tamis simulate`. A run does not read it.
    pub struct SimulateConfig {
        /// Distribution of the prompts' pass rates.
        pass_rate: SimulatedPassRates = SimulatedPassRates::default(), Any, Free;
        /// Number of kept groups that each policy trains on, rounded up to whole steps. The printed numbers
        /// are those of the second half. Null: 60 steps.
        groups: Option<usize> = None, Between(1.0, 1e9), Free;
        /// Policies that are compared, by name. Empty: all.
        policies: Vec<SimulatedPolicy> = Vec::new(), Any, Free;
        /// Lengths of completions.
        length: SimulatedLengthConfig = SimulatedLengthConfig::default(), Any, Free;
        /// Servers that sample. Null: only groups are counted, without a clock.
        servers: Option<SimulatedServersConfig> = Some(SimulatedServersConfig::default()), Any, Free;
        /// Seconds between the end of a completion and its score.
        reward_latency: f64 = 0.0, NonNegative, Free;
        /// Seconds of training per step.
        train_time: SimulatedTrainTimeConfig = SimulatedTrainTimeConfig::default(), Any, Free;
        /// New weights at the servers.
        publication: SimulatedPublicationConfig = SimulatedPublicationConfig::default(), Any, Free;
        /// Change of pass rates with training.
        drift: SimulatedDriftConfig = SimulatedDriftConfig::default(), Any, Free;
    }
}
