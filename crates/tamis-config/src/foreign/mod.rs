//! Keys of verl, EasyR1, RAGEN and TRL: one table maps each to ours with the defaults that its owner gives it, or says that it has no
//! effect here and why, or refuses it.
//!
//! ```text
//! arguments -> entry of the table (by key and owner) -> rule (keys that mean something together) -> overrides + notes + problems
//! ```

mod critic_rules;
mod defaults;
mod easyr1;
mod easyr1_rules;
mod hydra;
mod import;
mod invocation;
mod objective_rules;
mod options;
mod ragen;
mod ragen_rules;
mod reward_rules;
mod rules;
mod server_rules;
mod translate;
mod trl;
mod trl_rules;
mod verl;

use std::fmt;

use crate::diagnostic::Problem;
use crate::table;

pub(crate) use hydra::spaced;
pub use import::{Import, import};
pub(crate) use import::{flatten, flatten_tree, is_foreign_tree};
pub use options::{is_foreign_option, join_options};
pub(crate) use translate::{Lower, MAY_BE_ON_A_HUB, is_hub_name, translate, translate_whole};
pub use translate::{Note, Outcome};

/// A system whose keys are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// verl, with its DAPO recipe.
    Verl,
    /// EasyR1, with the dynamic sampling of its fork.
    EasyR1,
    /// RAGEN; what it does not have of its own is verl's.
    Ragen,
    /// TRL's `GRPOConfig`.
    Trl,
}

impl Owner {
    /// The systems, in the order in which their tables are looked through.
    pub const ALL: [Self; 4] = [Self::Verl, Self::EasyR1, Self::Ragen, Self::Trl];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::EasyR1 => "EasyR1",
            Self::Ragen => "RAGEN",
            Self::Trl => "TRL",
        }
    }

    /// Its keys.
    pub const fn keys(self) -> &'static [ForeignKey] {
        match self {
            Self::Verl => verl::KEYS,
            Self::EasyR1 => easyr1::KEYS,
            Self::Ragen => ragen::KEYS,
            Self::Trl => trl::KEYS,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One entry of the table.
#[derive(Debug, Clone, Copy)]
pub struct ForeignKey {
    /// The key as its owner writes it; a last part `*` stands for everything below.
    pub key: &'static str,
    /// The default that its owner gives it; empty where that says nothing here.
    pub default: &'static str,
    /// What becomes of it.
    pub becomes: Becomes,
}

/// Defaults that a system has beside its own keys, instead of those of the system it is built on: its key, its default, and what that
/// becomes.
pub(crate) fn own_defaults(owner: Owner) -> Vec<(&'static str, &'static str, String)> {
    if owner != Owner::Ragen {
        return Vec::new();
    }
    let of = |(key, default, ours, value): &(&'static str, &'static str, &'static str, &'static str)| {
        (*key, *default, format!("{ours}: {value}"))
    };
    let mini = (
        "ppo_mini_batch_size",
        "32",
        "train.ppo_mini_batch_size: 2, which counts prompts (32 trajectories in groups of 16)".to_owned(),
    );
    ragen::DEFAULTS
        .iter()
        .chain(ragen::VALIDATION_DEFAULTS)
        .chain(&ragen::STOPS)
        .map(of)
        .chain([mini])
        .collect()
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy)]
pub enum Becomes {
    /// One of ours, with the same value.
    Key(&'static str),
    /// Ours together with related keys, by a rule; the keys it sets, for documentation.
    Rule(Rule, &'static str),
    /// Nothing: there is no need for it, for a reason.
    NoEffect(&'static str),
    /// Refused, for a reason, unless it has one of these values, which ask for what is done anyway.
    Unless(&'static [&'static str], &'static str),
}

/// Keys that mean something only together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// The advantage estimator, which may be a whole algorithm. Before all others.
    Advantage,
    /// verl's group filter.
    FilterGroups,
    /// The dynamic sampling of EasyR1's fork.
    DynamicSample,
    /// EasyR1's online filtering.
    OnlineFiltering,
    /// RAGEN's rollout filter.
    RolloutFilter,
    /// RAGEN's group size, and its mini-batches, which count trajectories.
    RagenSizes,
    /// KL in the loss or in the reward (verl).
    Kl,
    /// KL in the loss or in the reward (EasyR1).
    EasyKl,
    /// Reward functions and overlong punishment (verl).
    Rewards,
    /// Reward functions (EasyR1).
    EasyRewards,
    /// Reward functions (TRL).
    TrlRewards,
    /// Micro-batches by tokens or by number.
    MicroBatch,
    /// Learning-rate schedule and warm-up.
    LrSchedule,
    /// What happens to long prompts.
    LongPrompts,
    /// Top-k, which others switch off with -1.
    TopK,
    /// Greedy or sampled validation.
    Validation,
    /// Loggers.
    Loggers,
    /// Project and experiment.
    Names,
    /// EasyR1's mean over tokens or sequences.
    LossAverage,
    /// TRL's batch sizes, which count completions.
    TrlBatch,
    /// TRL's `max_steps` and epochs.
    TrlLength,
    /// TRL's `max_prompt_length`.
    TrlPrompts,
    /// The engine that generates, as servers (verl, RAGEN, EasyR1).
    Servers,
    /// TRL's vLLM.
    TrlServers,
    /// Options of TRL's generator. After the fields that they go before.
    TrlGeneration,
    /// Settings of TRL's optimizer.
    TrlOptimizer,
    /// How many checkpoints are kept.
    KeepLast,
    /// EasyR1's epochs and steps.
    EasyLength,
    /// A chat template of EasyR1.
    ChatTemplate,
    /// EasyR1's template around prompts.
    FormatPrompt,
    /// TRL's `beta`.
    TrlKl,
    /// TRL's clip range.
    TrlClip,
    /// TRL's `loss_type`.
    TrlLoss,
    /// TRL's `scale_rewards`.
    TrlScale,
    /// verl's policy loss with its parameters.
    PolicyLoss,
    /// Where the contrast of verl's CPO fork is taken.
    CpoWrap,
    /// verl's rollout correction.
    Correction,
    /// EasyR1's shares of trajectories.
    KeepRatios,
    /// RAGEN's weights on advantages.
    RagenShapings,
    /// RAGEN's gradients by reward deviation.
    GradientAnalysis,
    /// EasyR1's `loss_type`.
    EasyLoss,
    /// TRL's adaptive entropy bonus.
    AdaptiveEntropy,
    /// TRL's normalisation of several rewards.
    SeveralRewards,
    /// TRL's masks by entropy and divergence.
    Masks,
    /// When TRL evaluates and saves.
    TrlIntervals,
    /// How TRL validates. After the intervals.
    TrlValidation,
    /// TRL's data sets and their splits. After the intervals.
    TrlData,
    /// RAGEN's GAE over turns. After the estimator.
    BiLevelGae,
    /// The critic, which is there for some estimators.
    Critic,
}

/// What is wrong with a key of another system.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ForeignProblem {
    /// The key is not in the table.
    #[error("`{key}` is no key of {} that tamis knows", owner.map_or("verl, EasyR1, RAGEN or TRL", Owner::as_str))]
    Unknown {
        /// The key.
        key: String,
        /// Whose it seems to be, where its name says so.
        owner: Option<Owner>,
        /// The key that was probably meant.
        suggestion: Option<String>,
    },
    /// It asks for something that is not there, or that would mean something else.
    #[error("`{key}={value}` of {owner} cannot be followed: {reason}")]
    Refused {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Its owner.
        owner: Owner,
        /// Why.
        reason: String,
    },
    /// A value that its owner would not take either.
    #[error("`{key}` of {owner} must be {expected}, not `{value}`")]
    BadValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Its owner.
        owner: Owner,
        /// What it must be.
        expected: &'static str,
    },
    /// A variable of the shell, or one of the environment, that has no value.
    #[error("`{variable}` was not filled in by the shell, in the value of `{key}`")]
    Unfilled {
        /// The key.
        key: String,
        /// The variable as it stands in the value.
        variable: String,
    },
    /// A launcher's number of processes that is none.
    #[error("`--{option}={value}` does not say how many processes there are, and the batch depends on it")]
    Processes {
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// An argument of `import` that is none.
    #[error("`{argument}` is neither `key=value` nor a YAML file")]
    NoArgument {
        /// The argument.
        argument: String,
    },
}

impl From<ForeignProblem> for Problem {
    fn from(problem: ForeignProblem) -> Self {
        Self::Rule { message: problem.to_string(), hint: problem.hint(), is_missing: false }
    }
}

impl ForeignProblem {
    fn hint(&self) -> String {
        match self {
            Self::Unknown { suggestion: Some(suggestion), .. } => format!("did you mean `{suggestion}`?"),
            Self::Unknown { .. } => "remove it, and say what it was for in a native key".to_owned(),
            Self::NoArgument { .. } => {
                "for example: tamis config import -- data.train_batch_size=512".to_owned()
            }
            Self::Unfilled { .. } => {
                "write its value, or use double quotes: the shell fills in nothing between single ones"
                    .to_owned()
            }
            Self::Processes { option, .. } => format!("write the number, such as `--{option}=8`"),
            Self::Refused { key, .. } | Self::BadValue { key, .. } => {
                format!("`tamis config explain {key}` says what becomes of it")
            }
        }
    }
}

/// First parts of keys that only another system has.
const SECTIONS: &[(&str, Owner)] = &[
    ("actor_rollout_ref", Owner::Verl),
    ("algorithm", Owner::Verl),
    ("trainer", Owner::Verl),
    ("critic", Owner::Verl),
    ("reward_model", Owner::Verl),
    ("custom_reward_function", Owner::Verl),
    ("sandbox_fusion", Owner::Verl),
    ("ray_init", Owner::Verl),
    ("ray_kwargs", Owner::Verl),
    ("distillation", Owner::Verl),
    ("transfer_queue", Owner::Verl),
    ("async_training", Owner::Verl),
    ("global_profiler", Owner::Verl),
    ("worker", Owner::EasyR1),
    ("es_manager", Owner::Ragen),
    ("agent_proxy", Owner::Ragen),
    ("custom_envs", Owner::Ragen),
    ("ctx_manager", Owner::Ragen),
    ("collapse_detection", Owner::Ragen),
    ("output", Owner::Ragen),
];

/// The entry of a key in an owner's table.
pub(crate) fn entry(owner: Owner, key: &str) -> Option<&'static ForeignKey> {
    if owner == Owner::Verl && key.rsplit('.').next() == Some("_target_") {
        return Some(&verl::TARGET);
    }
    let keys = owner.keys();
    keys.iter().find(|entry| entry.key == key).or_else(|| {
        keys.iter().find(|entry| {
            entry
                .key
                .strip_suffix('*')
                .is_some_and(|prefix| key.starts_with(prefix) && key.len() > prefix.len())
        })
    })
}

/// Whether a key that is not ours is another system's.
pub(crate) fn is_foreign(key: &str) -> bool {
    // `data` is a section of theirs, and of ours.
    let is_ours = table::place(key).is_ok();
    let is_of = |&owner: &Owner| entry(owner, key).is_some() || !is_ours && hydra::is_section(owner, key);
    owner_of_section(key).is_some()
        || Owner::ALL.iter().any(is_of)
        || translate::inside(&Owner::ALL, key).is_some()
}

/// Whether a value is written in Hydra's form, and not in ours.
pub(crate) fn is_hydra(key: &str) -> bool {
    is_foreign_name(key) || table::place(key).is_err() && is_foreign(key)
}

/// Whether a key, which may be ours too, is another system's by its full name.
pub(crate) fn is_foreign_name(key: &str) -> bool {
    Owner::ALL.iter().any(|owner| owner.keys().iter().any(|entry| entry.key == key))
}

/// Whether a key of another system says where the model is.
pub(crate) fn names_model(key: &str) -> bool {
    let is_model = |entry: &&ForeignKey| matches!(entry.becomes, Becomes::Key("model.path"));
    Owner::ALL.iter().any(|owner| owner.keys().iter().filter(is_model).any(|entry| entry.key == key))
}

/// The system that a key seems to be of, by its first part.
pub(crate) fn owner_of_section(key: &str) -> Option<&'static str> {
    section_owner(key).map(Owner::as_str)
}

fn section_owner(key: &str) -> Option<Owner> {
    let first = key.split('.').next().unwrap_or(key);
    SECTIONS.iter().find(|(section, _)| *section == first).map(|(_, owner)| *owner)
}

/// The keys of other systems that set one of ours, with their owners.
pub fn keys_for(ours: &str) -> Vec<(Owner, &'static ForeignKey)> {
    let sets = |targets: &str| targets.split([' ', ',']).any(|target| target == ours);
    Owner::ALL
        .iter()
        .flat_map(|&owner| owner.keys().iter().map(move |entry| (owner, entry)))
        .filter(|(_, entry)| match entry.becomes {
            Becomes::Key(key) => key == ours,
            Becomes::Rule(_, targets) => sets(targets),
            Becomes::NoEffect(_) | Becomes::Unless(..) => false,
        })
        .collect()
}
