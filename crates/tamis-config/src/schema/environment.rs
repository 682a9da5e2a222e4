//! `environment`: the game of `data.task: environment`. Each kind describes its own keys in tamis-env.

use tamis_core::settings;
use tamis_env::environment::context::{Context, ContextMode};
use tamis_env::environment::kind::{EnvironmentKind, EnvironmentMaker, EnvironmentStyle};
use tamis_env::environment::prompting::Prompting;
use tamis_env::task::environment::EnvironmentLevels;

settings! {
    /// The game of `data.task: environment`, which answers the policy turn by turn.
    pub struct EnvironmentConfig {
        /// Its name in metrics, and the data source of its levels: letters, digits, `_`, `-` and `.`. Null:
        /// that of the kind, or what an environment elsewhere calls itself.
        name: Option<String> = None, NotEmpty;
        /// How it speaks to the policy.
        style: EnvironmentStyle = EnvironmentStyle::Ragen;
        /// Its words, and how many turns and actions an episode may have.
        prompting: Prompting = Prompting::default();
        /// Part of an episode that the policy sees when it answers.
        context: ContextMode = ContextMode::Full;
        /// Turns that count where `context` is not full, the one to be answered included. Null: all of them.
        max_context_window: Option<usize> = None, AtLeast(1.0);
        /// Number of training levels.
        train_size: usize = 8192, Between(0.0, 1e7);
        /// Number of held-out levels.
        val_size: usize = 256, Between(0.0, 1e7);
        /// Most tokens of a trajectory after its prompt, those of the environment included. Null: as many as
        /// all turns may have, where each observation is no longer than `data.max_prompt_length`. Where there
        /// are several environments, each has its own; what follows the length of a completion elsewhere,
        /// such as the limit of `soft_overlong`, takes the largest.
        max_length: Option<usize> = None, AtLeast(1.0);
        /// How often the script that `warm_start` imitates does what a perfect player would, where the game
        /// knows that; otherwise it does anything.
        expert_prob: f64 = 0.5, Probability;
        ..kind: EnvironmentKind, named;
    }
}

/// That two environments have one name in metrics, which would make one of them, and what to do about it.
pub fn two_of_one_name(name: &str) -> (String, &'static str) {
    (format!("two environments are called `{name}` in metrics"), "give each a `name`")
}

impl EnvironmentConfig {
    /// What makes it.
    pub fn maker(&self) -> EnvironmentMaker {
        EnvironmentMaker { kind: self.kind.clone(), style: self.style, prompting: self.prompting.clone() }
    }

    /// Its name in metrics; `None` of an environment elsewhere that is given none: it is called as it calls
    /// itself.
    pub fn metric_name(&self) -> Option<String> {
        let of_kind = || self.maker().is_game().then(|| self.kind.to_string());
        self.name.clone().or_else(of_kind)
    }

    /// What is seen of it.
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
