//! Settings that do not fit each other, each with the numbers and the fix.

use crate::schema::{
    Aggregation, BackendKind, Estimator, FilterKind, ImportanceLevel, KlPlace, LossKind, LrScheduleKind,
    PoolScore, SingletonAdvantage,
};
use crate::server_command::ServerCommand;

/// Settings that do not fit each other, or that the run will not do what one may think with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Conflict {
    /// Neither a checkpoint nor an initialisation.
    #[error("there is no model: neither `model.path` nor `model.init` is set")]
    NoModel,
    /// Both of them.
    #[error("`model.path` and `model.init` are both set")]
    TwoModels,
    /// A value head is wanted.
    #[error("`model.value_head`: the policy has no value head")]
    NoValueHead,
    /// Query heads do not divide among key and value heads.
    #[error(
        "`model.init.num_heads` ({num_heads}) is not divisible by `model.init.num_kv_heads` ({num_kv_heads})"
    )]
    HeadsDoNotDivide {
        /// Query heads.
        num_heads: usize,
        /// Key and value heads.
        num_kv_heads: usize,
    },
    /// The width does not divide among heads.
    #[error(
        "`model.init.hidden_size` ({hidden_size}) is not divisible by `model.init.num_heads` ({num_heads})"
    )]
    WidthDoesNotDivide {
        /// Width of the model.
        hidden_size: usize,
        /// Query heads.
        num_heads: usize,
    },
    /// A rotary embedding turns pairs.
    #[error("the width of a head must be even, it is {head_dim}")]
    OddHead {
        /// Width of a head.
        head_dim: usize,
    },
    /// Sequences that the model has no positions for.
    #[error(
        "`data.max_prompt_length` ({prompt}) and `rollout.max_response_length` ({response}) make {}, above \
         `model.init.max_position_embeddings` ({positions})", prompt.saturating_add(*response)
    )]
    SequenceTooLong {
        /// Longest prompt.
        prompt: usize,
        /// Longest response.
        response: usize,
        /// Positions.
        positions: usize,
    },
    /// No prompts.
    #[error("there are no training prompts: neither `data.train` nor the task `arithmetic` is set")]
    NoTrainingData,
    /// Nothing to measure a policy on.
    #[error("there are no validation prompts to evaluate on")]
    NothingToEvaluate,
    /// Nothing scores.
    #[error("there is no reward: `reward` is empty and there is no task that brings one")]
    NoReward,
    /// Every weight is zero.
    #[error("every weight in `reward` is 0: there is nothing to train on")]
    NoRewardWeight,
    /// Two rewards of one name.
    #[error("two rewards are called `{name}`")]
    DuplicateRewardName {
        /// The name.
        name: String,
    },
    /// A reward with the name of a number that tamis computes.
    #[error("a reward cannot be called `{name}`: tamis computes a number of that name")]
    ReservedRewardName {
        /// The name.
        name: String,
    },
    /// A penalty above zero is none.
    #[error("`{key}` is {value}: a penalty is 0 or less")]
    PositivePenalty {
        /// The key.
        key: String,
        /// Its value.
        value: f64,
    },
    /// A buffer beyond its limit.
    #[error("`{key}` ({buffer}) is above the response limit ({max_length})")]
    BufferTooLong {
        /// The key.
        key: String,
        /// Tokens of the buffer.
        buffer: usize,
        /// The limit.
        max_length: usize,
    },
    /// A mini-batch above the batch.
    #[error(
        "`train.ppo_mini_batch_size` ({mini}) is above `data.train_batch_size` ({train}); both count prompts"
    )]
    MiniBatchTooLarge {
        /// Prompts of a mini-batch.
        mini: usize,
        /// Prompts of the batch.
        train: usize,
    },
    /// The last mini-batch is smaller.
    #[error(
        "`data.train_batch_size` ({train}) is not divisible by `train.ppo_mini_batch_size` ({mini}): the last of {} updates of a \
         step has {} prompts", train.div_ceil(*mini), train % mini
    )]
    RaggedMiniBatch {
        /// Prompts of a mini-batch.
        mini: usize,
        /// Prompts of the batch.
        train: usize,
    },
    /// Micro-batches that do not fill a mini-batch.
    #[error(
        "a mini-batch of {mini} prompts x {n} trajectories = {} is not divisible by `train.micro_batch_size` ({micro})", mini.saturating_mul(*n)
    )]
    MicroBatchDoesNotDivide {
        /// Prompts of a mini-batch.
        mini: usize,
        /// Trajectories of a prompt.
        n: usize,
        /// Trajectories of a micro-batch.
        micro: usize,
    },
    /// A limit that full retention cannot meet.
    #[error(
        "{rounds} rounds of `data.gen_batch_size` ({generated}) are {} prompts at most, below `data.train_batch_size` ({train}): no \
         step can ever be filled", rounds.saturating_mul(*generated)
    )]
    LimitTooLow {
        /// Rounds.
        rounds: usize,
        /// Prompts of a round.
        generated: usize,
        /// Prompts of a batch.
        train: usize,
    },
    /// One round that can never fill the batch.
    #[error(
        "`schedule.refill` is false, so every step is one round of {generated} prompts (`data.gen_batch_size`), which can never fill \
         the {train} of `data.train_batch_size`"
    )]
    RoundTooSmall {
        /// Prompts of a round.
        generated: usize,
        /// Prompts of a batch.
        train: usize,
    },
    /// Nothing says when the run ends.
    #[error("nothing says how long the run is: neither `train.total_steps` nor `train.total_epochs` is set")]
    NoEnd,
    /// A falling learning rate with an unknown end.
    #[error("`train.lr_schedule.kind: {kind}` falls towards the last step, and the number of steps is not known{}",
        if *filtered { " (with a filter, epochs do not give it)" } else { "" })]
    NoHorizon {
        /// The schedule.
        kind: LrScheduleKind,
        /// Whether a filter makes epochs useless for it.
        filtered: bool,
    },
    /// A warm-up that does not end.
    #[error(
        "`train.lr_schedule.warmup_steps` ({warmup}) is not below `train.total_steps` ({total}): the learning rate only rises"
    )]
    WarmupTooLong {
        /// Warm-up steps.
        warmup: usize,
        /// All steps.
        total: usize,
    },
    /// A mini-batch of the critic above the batch.
    #[error(
        "`critic.ppo_mini_batch_size` ({mini}) is above `data.train_batch_size` ({train}); both count prompts"
    )]
    CriticMiniBatchTooLarge {
        /// Prompts of a mini-batch.
        mini: usize,
        /// Prompts of the batch.
        train: usize,
    },
    /// The critic's last mini-batch is smaller.
    #[error(
        "`data.train_batch_size` ({train}) is not divisible by `critic.ppo_mini_batch_size` ({mini}): the last of {} updates of the \
         critic in a step has {} prompts", train.div_ceil(*mini), train % mini
    )]
    CriticRaggedMiniBatch {
        /// Prompts of a mini-batch.
        mini: usize,
        /// Prompts of the batch.
        train: usize,
    },
    /// Micro-batches that do not make up a mini-batch of the critic.
    #[error(
        "`critic.ppo_mini_batch_size` ({mini}) times `rollout.n` ({n}) is not divisible by `train.micro_batch_size` ({micro})"
    )]
    CriticMicroBatch {
        /// Prompts of a mini-batch.
        mini: usize,
        /// Trajectories of a prompt.
        n: usize,
        /// Trajectories of a micro-batch.
        micro: usize,
    },
    /// A falling learning rate of the critic with an unknown end.
    #[error(
        "`critic.lr_schedule.kind: {kind}` falls towards the last step, and the number of steps is not known"
    )]
    CriticNoHorizon {
        /// The schedule.
        kind: LrScheduleKind,
    },
    /// A warm-up of the critic that does not end.
    #[error(
        "`critic.warmup_steps` ({warmup}) is not below `train.total_steps` ({total}): the policy would never be trained"
    )]
    CriticWarmupTooLong {
        /// Steps of the critic alone.
        warmup: usize,
        /// All steps.
        total: usize,
    },
    /// A filter of groups that are not what advantages are made of.
    #[error(
        "the filter drops groups {dropped}, which have signal here: `{estimator}` compares with {against}, not within the group"
    )]
    FilterDropsSignal {
        /// The estimator.
        estimator: Estimator,
        /// Which groups.
        dropped: &'static str,
        /// What it compares with.
        against: &'static str,
    },
    /// Servers are to generate, and none is named.
    #[error("`rollout.backend: {backend}`, and no server is named or to be started")]
    NoServers {
        /// What generates.
        backend: BackendKind,
        /// How one is started.
        command: Box<ServerCommand>,
    },
    /// Training on text without tokens and log-probabilities.
    #[error(
        "`rollout.backend: openai` gives text alone, of weights that the run does not have: without the sampled tokens and their log-probabilities, and \
         without a way to publish weights, nothing can be trained"
    )]
    TextTrains,
    /// A judge that is nowhere.
    #[error("`{key}` names no server of the judge")]
    NoJudge {
        /// The key.
        key: String,
    },
    /// Servers of a judge that are not told what to judge.
    #[error("`{key}` has no `{{completion}}` in it: the judge would not see what it is to judge")]
    JudgeWithoutCompletion {
        /// The key.
        key: String,
    },
    /// A command that would start no server that could be found.
    #[error("`rollout.launch.command` has no `{what}` in it: {}", if *what == "{port}" { "nothing says where the server is to answer" } else { "nothing says what it is to serve" })]
    LaunchWithout {
        /// What it lacks.
        what: &'static str,
    },
    /// No rounds, and a filter that compares what is in one.
    #[error(
        "`filter.kind: {kind}` compares the groups of a round, and `schedule.mode: streaming` judges each group by itself"
    )]
    StreamingWithPool {
        /// The filter.
        kind: FilterKind,
    },
    /// Rounds of what the batch lacks, several at once.
    #[error(
        "`schedule.rounds_in_flight: {rounds}` starts rounds before the ones before them are judged, and with `schedule.mode: deficit` how much a round \
         draws is known only then"
    )]
    DeficitInFlight {
        /// Rounds in flight.
        rounds: usize,
    },
    /// Rounds of changing size, and a filter that compares what is in a round.
    #[error(
        "`filter.kind: {kind}` compares the groups of a round, and `schedule.mode: deficit` gives rounds of any size: what it keeps would \
         depend on what the batch lacks"
    )]
    DeficitWithPool {
        /// The filter.
        kind: FilterKind,
    },
    /// Carrying without a bound.
    #[error("`schedule.surplus: carry` needs `schedule.max_lag`")]
    CarryWithoutLag,
    /// An empty range.
    #[error("`filter.low` ({low}) is not below `filter.high` ({high}): no group is ever kept")]
    EmptyRange {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// A filter without its parameter.
    #[error("`filter.kind: {kind}` needs {}", match kind {
        FilterKind::TopP | FilterKind::MinP => "`filter.p`",
        _ => "`filter.k` or `filter.fraction`",
    })]
    FilterNeeds {
        /// The filter.
        kind: FilterKind,
    },
    /// A count and a fraction.
    #[error("`filter.k` and `filter.fraction` are both set")]
    TwoQuotas,
    /// A group of one chosen out of a group.
    #[error(
        "`filter.kind: within_group` with `filter.k: 1` leaves one member of each group, which has nothing to be compared with"
    )]
    OneMember,
    /// A number of groups that no round exceeds.
    #[error(
        "`filter.k: {k}` keeps the {k} best groups of a round of {generated} (`{}`): none is ever left out for its rank",
        if *is_own { "data.gen_batch_size" } else { "data.train_batch_size" }
    )]
    SelectsEveryGroup {
        /// Groups to keep.
        k: usize,
        /// Groups of a round.
        generated: usize,
        /// Whether rounds have a size of their own.
        is_own: bool,
    },
    /// A number of members that no group exceeds.
    #[error(
        "`filter.kind: within_group` chooses {chosen} of the {n} members of a group (`rollout.n`): none is ever left out"
    )]
    SelectsEveryMember {
        /// Members to choose.
        chosen: usize,
        /// Members of a group.
        n: usize,
    },
    /// The whole of a round.
    #[error(
        "`filter.{key}: {value}` with `filter.kind: {kind}` keeps every scored group: nothing is filtered"
    )]
    SelectsAll {
        /// The filter.
        kind: FilterKind,
        /// The key that says how much.
        key: &'static str,
        /// Its value.
        value: f64,
    },
    /// A band beyond the ranking.
    #[error("`filter.low` ({low}) and `filter.high` ({high}) are shares of a ranking, from 0 to 1")]
    BandOutside {
        /// Where it begins.
        low: f64,
        /// Where it ends.
        high: f64,
    },
    /// Shares of the variance of something else.
    #[error("`filter.mass: variance` is the square of the deviation, and `filter.score` is `{score}`")]
    VarianceMass {
        /// The score.
        score: PoolScore,
    },
    /// A selection of each round, and rounds until the batch is full.
    #[error(
        "`filter.kind: {kind}` selects among the groups of a round, and `schedule.refill` repeats rounds until {train} groups are \
         kept: each round is selected by itself"
    )]
    PoolRefills {
        /// The filter.
        kind: FilterKind,
        /// Groups of a step.
        train: usize,
    },
    /// A metric that nothing computes.
    #[error("there is no metric `{metric}`: there are {}", known.join(", "))]
    NoSuchMetric {
        /// The metric.
        metric: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// A filter on a sum with shaping in it.
    #[error(
        "the filter looks at `{metric}`, a sum with shaping in it ({}): groups that are all wrong but differ in shaping are kept \
         and trained on", shaping.join(", ")
    )]
    FilterOnShapedSum {
        /// The metric.
        metric: String,
        /// Names of the shaping rewards.
        shaping: Vec<String>,
    },
    /// A filter on a number that always varies.
    #[error(
        "the filter looks at `seq_final_reward` with the KL in the reward: that varies in every group, so nothing is filtered"
    )]
    FilterSeesKl,
    /// Groups of one and a filter.
    #[error("{}", match kind {
        FilterKind::Variance if *kept => "`rollout.n` is 1: every group has one member and `filter.singleton: keep` keeps it, so nothing is filtered",
        FilterKind::Variance => "`rollout.n` is 1: every group has one member and `filter.singleton: drop` drops it, so no step is ever filled",
        FilterKind::MeanRange => "`rollout.n` is 1: the filter judges every group by a single trajectory",
        FilterKind::WithinGroup => "`rollout.n` is 1: there is nothing to choose from within a group",
        _ => "`rollout.n` is 1: a group of one has no deviation, so the filter's ranking says nothing",
    })]
    SingletonFilter {
        /// The filter.
        kind: FilterKind,
        /// Whether groups of one are kept.
        kept: bool,
    },
    /// Groups of one and a group-relative advantage.
    #[error("{}", match advantage {
        SingletonAdvantage::Zero => "`rollout.n` is 1: a group of one has nothing to be compared with, every advantage is 0 and nothing is learned",
        SingletonAdvantage::Raw => "`rollout.n` is 1: a group of one has nothing to be compared with, the advantage is the reward itself",
    })]
    SingletonGroups {
        /// What the advantage of a group of one is.
        advantage: SingletonAdvantage,
    },
    /// A KL term without weight.
    #[error(
        "`objective.kl.in: {place}` with `objective.kl.coefficient: 0`: the reference is loaded and run for nothing but its metric"
    )]
    KlWithoutWeight {
        /// Where the KL enters.
        place: KlPlace,
    },
    /// An adaptive coefficient where there is none.
    #[error("`objective.kl.adaptive` adapts the coefficient of a KL in the reward, and it is `in: {place}`")]
    AdaptiveKl {
        /// Where the KL enters.
        place: KlPlace,
    },
    /// An update that would turn the coefficient's sign.
    #[error(
        "`objective.kl.adaptive.horizon` is {horizon} with {trajectories} trajectories a step: a step may move the coefficient by a fifth of their ratio, which takes it to 0 or below"
    )]
    HorizonTooNear {
        /// The horizon.
        horizon: f64,
        /// Trajectories of a step.
        trajectories: usize,
    },
    /// A setting that the choice beside it does not read.
    #[error("`{key}` has no effect: the {what} `{chosen}` does not read it")]
    NotRead {
        /// The key.
        key: String,
        /// What was chosen: an estimator, a loss.
        what: &'static str,
        /// Its name.
        chosen: String,
    },
    /// LUSPO is a sum over tokens.
    #[error(
        "`objective.loss.kind: luspo` with `objective.aggregation: {aggregation}`: its length weighting is a sum over tokens"
    )]
    LuspoAggregation {
        /// The aggregation.
        aggregation: Aggregation,
    },
    /// DRO without its strength.
    #[error("`objective.loss.kind: dro` needs `objective.loss.beta`, the strength of its pull")]
    NoBeta,
    /// A prompt with its gold answer that lacks one of them.
    #[error("`objective.advantage.gold_hint` has no `{{{missing}}}` in it")]
    GoldHint {
        /// `prompt` or `gold`.
        missing: &'static str,
    },
    /// A filter that drops what CPO is for.
    #[error(
        "the filter drops groups without a right completion, from which `objective.advantage.estimator: cpo` learns by the contrast with the gold answer"
    )]
    FilterBeforeContrast,
    /// Rewards of right completions that are below what counts as right.
    #[error(
        "`objective.advantage.estimator: cpo` takes a completion for right from a reward of {right} on (`objective.advantage.right`), and {by} moves the rewards of right completions"
    )]
    RightMoved {
        /// The least reward of a right completion.
        right: f64,
        /// What moves it.
        by: &'static str,
    },
    /// The same where no reward gets there.
    #[error(
        "`objective.advantage.estimator: cpo` takes a completion for right from a reward of {right} on (`objective.advantage.right`), and the weight of the only reward is {weight}"
    )]
    NothingRight {
        /// The least reward of a right completion.
        right: f64,
        /// The weight.
        weight: f64,
    },
    /// A loss whose ratio has no such level.
    #[error(
        "`objective.importance: {importance}` has no meaning with `objective.loss.kind: {loss}`, which decides it itself"
    )]
    NoImportanceLevel {
        /// The loss.
        loss: LossKind,
        /// The level.
        importance: ImportanceLevel,
    },
    /// Validation without prompts.
    #[error("`validate.test_freq` is set and there are no validation prompts")]
    NoValidationData,
    /// Figures of several samples with one.
    #[error("`validate.metrics` has {metrics}, which with `validate.n: 1` are mean@1")]
    MetricsNeedSamples {
        /// The figures.
        metrics: String,
    },
    /// Equal samples.
    #[error(
        "`validate.n` is {n} with `validate.temperature: 0`: greedy samples of one prompt are all the same"
    )]
    GreedySamples {
        /// Samples a prompt.
        n: usize,
    },
    /// Best by a figure that is never computed.
    #[error("`checkpoint.keep_best` compares validation figures, and `validate.test_freq` is off")]
    BestWithoutValidation,
    /// A stop by a figure that is never computed.
    #[error("`train.early_stop.low_success` looks at validation, and there is none")]
    StopWithoutValidation,
    /// A threshold at the baseline itself.
    #[error("`train.early_stop.reward_collapse.share` is 1: half of all runs would stop at once")]
    ShareOfAll,
    /// Buckets that overlap.
    #[error("`train.gradient_analysis.edges` must ascend, and {edge} comes after {previous}")]
    EdgesOutOfOrder {
        /// An edge.
        previous: f64,
        /// The one after it.
        edge: f64,
    },
    /// A target that cannot be measured.
    #[error("`warm_start.target_accuracy` is measured on validation prompts, and there are none")]
    TargetWithoutValidation,
    /// A system message, and no conversation.
    #[error(
        "`data.system_prompt` has no place: `data.prompt_format` is `text`, which sends bare text without the chat template"
    )]
    SystemPromptWithoutChat,
    /// A setting that nothing looks at.
    #[error("`{key}` has no effect: {reason}")]
    Ignored {
        /// The key.
        key: String,
        /// Why.
        reason: &'static str,
    },
}

impl Conflict {
    /// The fix.
    pub fn hint(&self) -> String {
        match self {
            Self::NoModel => {
                "name a checkpoint with `model.path=DIR`, or describe a new model under `model.init`"
                    .to_owned()
            }
            Self::TwoModels | Self::TwoQuotas => "remove one of the two".to_owned(),
            Self::NoValueHead => {
                "a critic is a model of its own: `preset: ppo`, or `objective.advantage.estimator: gae`"
                    .to_owned()
            }
            Self::HeadsDoNotDivide { num_heads, .. } => {
                format!("`model.init.num_kv_heads` is a divisor of {num_heads}")
            }
            Self::WidthDoesNotDivide { .. } => {
                "set `model.init.head_dim`, or change one of the two".to_owned()
            }
            Self::OddHead { head_dim } => {
                format!("set `model.init.head_dim: {}`", head_dim.saturating_add(1))
            }
            Self::SequenceTooLong { prompt, response, .. } => {
                format!("set `model.init.max_position_embeddings: {}`", prompt.saturating_add(*response))
            }
            Self::NoTrainingData => {
                "set `data.train` to a JSONL or Parquet file, or `data.task: arithmetic`".to_owned()
            }
            Self::NothingToEvaluate => {
                "set `data.val` to a JSONL or Parquet file (for the task `arithmetic`, `data.arithmetic.val_size` above 0)".to_owned()
            }
            Self::NoReward => "add one, such as `reward: [{kind: math}]`".to_owned(),
            Self::NoRewardWeight => "give the verifier `weight: 1.0`".to_owned(),
            Self::ReservedRewardName { .. } | Self::DuplicateRewardName { .. } => {
                "give each reward a `name` of its own".to_owned()
            }
            Self::PositivePenalty { value, .. } => format!("write {}", -value),
            Self::BufferTooLong { max_length, .. } => format!("use {max_length} or less"),
            Self::MiniBatchTooLarge { train, .. } => {
                format!("use {train} or less; null is one update a step")
            }
            Self::RaggedMiniBatch { train, mini } | Self::CriticRaggedMiniBatch { train, mini } => {
                format!("{} or {} divide {train}", divisor_below(*train, *mini), divisor_above(*train, *mini))
            }
            Self::MicroBatchDoesNotDivide { mini, n, micro } => format!(
                "use {}, or remove it: `train.micro_batch_tokens` needs no divisor",
                divisor_below(mini.saturating_mul(*n), *micro)
            ),
            Self::LimitTooLow { generated, train, .. } => format!(
                "raise `schedule.max_num_gen_batches` to {} or more, or `data.gen_batch_size`",
                train.div_ceil(*generated)
            ),
            Self::RoundTooSmall { generated, train } => {
                format!("set `data.gen_batch_size: {train}` or more, or `data.train_batch_size: {generated}`")
            }
            Self::NoEnd => "set `train.total_steps` or `train.total_epochs`".to_owned(),
            Self::NoHorizon { .. } => {
                "set `train.total_steps`, or `train.lr_schedule.kind: constant`".to_owned()
            }
            Self::WarmupTooLong { total, .. } => format!("use fewer than {total} warm-up steps"),
            Self::CriticMiniBatchTooLarge { train, .. } => {
                format!("use {train} or less; null is the policy's")
            }
            Self::CriticMicroBatch { .. } => {
                "remove `train.micro_batch_size`: `train.micro_batch_tokens` needs no divisor".to_owned()
            }
            Self::CriticNoHorizon { .. } => {
                "set `train.total_steps`, or `critic.lr_schedule.kind: constant`".to_owned()
            }
            Self::CriticWarmupTooLong { total, .. } => {
                format!("use fewer than {total} steps, or train for longer")
            }
            Self::NoJudge { .. } => "set it: `servers: [http://HOST:PORT]`, or `[https://HOST]`".to_owned(),
            Self::JudgeWithoutCompletion { .. } => {
                "write `{completion}` where the policy's text belongs; `{prompt}`, `{ground_truth}` and columns of the data may stand there too".to_owned()
            }
            Self::TextTrains => {
                "evaluate with it (`tamis eval`), let it score completions (a reward with `kind: judge`), or train with `rollout.backend: vllm`".to_owned()
            }
            Self::NoServers { command, .. } if command.words.is_empty() => {
                "set `rollout.servers: [http://HOST:PORT]`".to_owned()
            }
            Self::NoServers { command, .. } => format!(
                "let the run start one itself, `rollout.launch: {{}}`; or start it with `{command}` and set `rollout.servers: [http://127.0.0.1:8000]`"
            ),
            Self::LaunchWithout { what } => {
                format!("write `{what}` where it belongs, such as `[tamis, serve, '{{model}}', --port, '{{port}}']`")
            }
            Self::DeficitInFlight { .. } => {
                "use `schedule.mode: rounds` or `streaming`, or remove `schedule.rounds_in_flight`".to_owned()
            }
            Self::DeficitWithPool { .. } | Self::StreamingWithPool { .. } => {
                "use `schedule.mode: rounds`, or a filter that judges each group alone (`filter.kind: variance`)".to_owned()
            }
            Self::CarryWithoutLag => "set `schedule.max_lag: 1`".to_owned(),
            Self::EmptyRange { .. } => "exchange the two".to_owned(),
            Self::FilterNeeds { kind } => match kind {
                FilterKind::TopP => "set `filter.p: 0.9`".to_owned(),
                FilterKind::MinP => "set `filter.p: 0.5`".to_owned(),
                _ => "set `filter.fraction: 0.5`".to_owned(),
            },
            Self::OneMember => "set `filter.k: 2` or more".to_owned(),
            Self::SelectsEveryGroup { generated, .. } => {
                format!("use fewer than {generated}, such as {}", generated.div_ceil(2))
            }
            Self::SelectsEveryMember { n, .. } => {
                if *n > 2 {
                    format!("use fewer than {n}, such as `filter.k: {}`", n.div_ceil(2).max(2))
                } else {
                    "set `rollout.n` to 4 or more: at least two members are chosen".to_owned()
                }
            }
            Self::SelectsAll { .. } => {
                "use less, or `filter: null`; `filter.include_zero: false` leaves out groups whose score is 0"
                    .to_owned()
            }
            Self::BandOutside { .. } => "`low: 0, high: 0.25` is the best quarter".to_owned(),
            Self::VarianceMass { .. } => "use `filter.score: deviation`, or `filter.mass: linear`".to_owned(),
            Self::PoolRefills { .. } => {
                "`schedule.refill: false` trains on what one round leaves, as RAGEN does".to_owned()
            }
            Self::NoSuchMetric { .. } => {
                "a reward's score is a metric under its `name`; null takes the raw outcome".to_owned()
            }
            Self::FilterOnShapedSum { .. } => "filter on the raw outcome: `filter.metric: acc`".to_owned(),
            Self::FilterSeesKl => {
                "use `filter.metric: seq_reward`, the same before the KL, or `acc`".to_owned()
            }
            Self::SingletonFilter { .. } | Self::SingletonGroups { .. } => {
                "set `rollout.n` to 4 or more".to_owned()
            }
            Self::KlWithoutWeight { .. } => "set `objective.kl.in: none`".to_owned(),
            Self::AdaptiveKl { .. } => "set `objective.kl.in: reward`".to_owned(),
            Self::NoValidationData | Self::TargetWithoutValidation => "set `data.val` to a file".to_owned(),
            Self::MetricsNeedSamples { .. } => "raise `validate.n`".to_owned(),
            Self::GreedySamples { .. } => "set `validate.temperature` above 0, or `validate.n: 1`".to_owned(),
            Self::StopWithoutValidation => "set `data.val` and `validate.test_freq`".to_owned(),
            Self::ShareOfAll => "use 0.1".to_owned(),
            Self::EdgesOutOfOrder { .. } => "write the edges from the smallest to the greatest".to_owned(),
            Self::BestWithoutValidation => "set `validate.test_freq`".to_owned(),
            Self::LuspoAggregation { .. } => "set `objective.aggregation: seq-mean-token-sum`".to_owned(),
            Self::GoldHint { missing } => format!("write `{{{missing}}}` where it belongs"),
            Self::FilterBeforeContrast | Self::FilterDropsSignal { .. } => "set `filter: null`".to_owned(),
            Self::HorizonTooNear { trajectories, .. } => {
                format!("set `objective.kl.adaptive.horizon` above {}", *trajectories as f64 / 5.0)
            }
            Self::RightMoved { .. } | Self::NothingRight { .. } => {
                "set `objective.advantage.right` between the rewards of wrong and of right completions"
                    .to_owned()
            }
            Self::NoBeta => "set it, such as `objective.loss.beta: 0.5`".to_owned(),
            Self::NoImportanceLevel { .. } => "set `objective.importance: token`".to_owned(),
            Self::SystemPromptWithoutChat => {
                "set `data.prompt_format: chat`, or take `data.system_prompt` out".to_owned()
            }
            Self::Ignored { key, .. } | Self::NotRead { key, .. } => format!("remove `{key}`"),
        }
    }
}

/// The largest divisor of `whole` that is at most `near`.
fn divisor_below(whole: usize, near: usize) -> usize {
    divisors(whole).filter(|&part| part <= near).max().unwrap_or(1)
}

/// The smallest divisor of `whole` that is at least `near`.
fn divisor_above(whole: usize, near: usize) -> usize {
    divisors(whole).filter(|&part| part >= near).min().unwrap_or(whole)
}

/// The divisors of a number, in pairs; of one beyond any batch size those near its ends, so that no message takes long.
fn divisors(whole: usize) -> impl Iterator<Item = usize> {
    (1..=whole.isqrt().min(1 << 16))
        .filter(move |&part| whole.is_multiple_of(part))
        .flat_map(move |part| [part, whole / part])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_divisors() {
        let near = |whole, near| (divisor_below(whole, near), divisor_above(whole, near));
        assert_eq!(near(64, 48), (32, 64));
        assert_eq!(near(36, 7), (6, 9));
        assert_eq!(near(7, 3), (1, 7));
        assert_eq!(near(12, 12), (12, 12));
        // At once, and divisors all the same.
        let (below, above) = near(1_000_000_000_000_000, 900_000_000_000_000);
        assert_eq!((below, above), (500_000_000_000_000, 1_000_000_000_000_000));
        assert_eq!(near(usize::MAX, usize::MAX - 1), (usize::MAX / 3, usize::MAX));
    }
}
