//! `environment`: the game of `data.task: environment`. Each kind describes its own keys in tamis-env.

use tamis_core::settings;
use tamis_env::environment::context::{Context, ContextMode};
use tamis_env::environment::kind::{EnvironmentKind, EnvironmentMaker, EnvironmentStyle};
use tamis_env::environment::prompting::Prompting;
use tamis_env::task::environment::EnvironmentLevels;

settings! {
    /// The game of `data.task: environment`, which answers the policy turn by turn.
    pub struct EnvironmentConfig {
        /// Its name in metrics and the data source of its levels: letters, digits, `_`, `-` and `.`. Null:
        /// the name of the kind, or the name that an external environment reports.
        name: Option<String> = None, NotEmpty;
        /// Format of its messages to the policy.
        style: EnvironmentStyle = EnvironmentStyle::Ragen;
        /// Texts of its messages, and limits on the turns and actions of an episode.
        prompting: Prompting = Prompting::default();
        /// Part of an episode that the policy sees when it answers.
        context: ContextMode = ContextMode::Full;
        /// Number of turns that count if `context` is not full, including the one to be answered. Null: all
        /// turns.
        max_context_window: Option<usize> = None, AtLeast(1.0);
        /// Number of training levels.
        train_size: usize = 8192, Between(0.0, 1e7);
        /// Number of held-out levels.
        val_size: usize = 256, Between(0.0, 1e7);
        /// Most tokens of a trajectory after its prompt, including those of the environment. Null: enough for
        /// all turns if no observation is longer than `data.max_prompt_length`. If there are several
        /// environments, each has its own limit. Other keys that follow the length of a completion, such as
        /// the limit of `soft_overlong`, then use the largest.
        max_length: Option<usize> = None, AtLeast(1.0);
        /// Probability that the script that `sft` imitates takes a perfect player's action, if the
        /// game knows it. Otherwise the script guesses.
        expert_prob: f64 = 0.5, Probability;
        ..kind: EnvironmentKind, named;
    }
}

/// Error and hint for two environments with the same name, which metrics could not distinguish.
pub fn two_of_one_name(name: &str) -> (String, &'static str) {
    (format!("two environments are called `{name}` in metrics"), "give each a `name`")
}

impl EnvironmentConfig {
    /// Its maker.
    pub fn maker(&self) -> EnvironmentMaker {
        EnvironmentMaker { kind: self.kind.clone(), style: self.style, prompting: self.prompting.clone() }
    }

    /// Its name in metrics. `None` for an external environment without a name in the configuration, which
    /// reports its own.
    pub fn metric_name(&self) -> Option<String> {
        let of_kind = || self.maker().is_game().then(|| self.kind.to_string());
        self.name.clone().or_else(of_kind)
    }

    /// The part of an episode that the policy sees.
    pub fn context(&self) -> Context {
        Context { mode: self.context, window: self.max_context_window }
    }

    /// Its levels, as the only environment of a run.
    pub fn levels(&self) -> EnvironmentLevels {
        EnvironmentLevels {
            maker: self.maker(),
            name: self.name.clone(),
            number: 0,
            context: self.context(),
            train_size: self.train_size,
            val_size: self.val_size,
            expert_prob: self.expert_prob,
        }
    }
}
