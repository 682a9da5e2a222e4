//! Rules about environments that prompts are played in.

use tamis_env::environment::context::ContextMode;
use tamis_env::environment::kind::EnvironmentKind;
use tamis_env::environment::names::{NAME, is_name};
use tamis_env::reward::RewardKind;

use super::model::environment_paths;
use super::{Checker, table};
use crate::schema::EnvironmentConfig;

impl Checker<'_> {
    /// Each environment with the path of its section.
    fn sections(&self) -> Vec<(String, EnvironmentConfig)> {
        environment_paths().zip(self.config.environments().cloned()).collect()
    }

    pub(super) fn environments(&mut self) {
        for (section, environment) in self.sections() {
            if let Some(name) = environment.name.as_deref().filter(|name| !is_name(name)) {
                self.error(
                    &[&format!("{section}.name")],
                    format!("`{section}.name` is {name:?}, but metrics are named after it"),
                    format!("use {NAME}"),
                );
            }
            if environment.context == ContextMode::Full && !environment.maker().plays_any_prompt() {
                let reason = format!("`{section}.context` is full, which shows every turn");
                self.warn_ignored(&[&format!("{section}.max_context_window")], &reason);
            }
            if let EnvironmentKind::Tools(tools) = &environment.kind {
                let at =
                    |names: &[&str]| names.iter().map(|name| format!("{section}.{name}")).collect::<Vec<_>>();
                let mut ignored = vec![(at(&["timeout"]), format!("a call has `{section}.call_timeout`"))];
                if tools.functions.is_empty() {
                    let of_workers =
                        ["call_timeout", "python", "num_processes", "startup_timeout", "max_restarts"];
                    let reason = format!("`{section}.functions` is empty, so no process runs");
                    ignored.push((at(&of_workers), reason));
                }
                if !tools.interpreter {
                    // The keys are those of the kind, in any place of the environment.
                    let of_sandbox = |key: &'_ table::ConfigKey| {
                        let name = key.path.strip_prefix("environment<tools>.sandbox.")?;
                        Some(format!("{section}.sandbox.{name}"))
                    };
                    let keys = table::keys().iter().filter_map(of_sandbox).collect();
                    ignored.push((keys, format!("`{section}.interpreter` is false")));
                }
                for (keys, reason) in ignored {
                    self.warn_ignored(&keys.iter().map(String::as_str).collect::<Vec<_>>(), &reason);
                }
            }
            if matches!(environment.kind, EnvironmentKind::Tools(_)) && environment.prompting.max_turns == 1 {
                let key = format!("{section}.prompting.max_turns");
                self.warn(
                    &[&key, &section],
                    format!(
                        "`{key}` is 1: an episode ends with its first answer, so no tool that it calls is ever run"
                    ),
                    format!("set `{key}` to the number of answers with tool calls plus one"),
                );
            }
        }
    }

    /// Refuses advantages that are defined for a range of rewards if a game's penalty is outside it.
    pub(super) fn penalties(&mut self) {
        let advantage = &self.config.objective.advantage;
        let (name, Some((low, _))) = (advantage.name(), advantage.reward_range()) else { return };
        let mut counted = self.config.reward.iter().filter(|reward| reward.weight != 0.0);
        let (Some(reward), None) = (counted.next(), counted.next()) else { return };
        if !matches!(reward.kind, RewardKind::Environment(_)) {
            return;
        }
        for (section, environment) in self.sections() {
            let (key, penalty) = match &environment.kind {
                EnvironmentKind::Gymnasium(own) => ("invalid_penalty", own.invalid_penalty),
                _ if environment.maker().is_game() => {
                    ("prompting.format_penalty", environment.prompting.format_penalty)
                }
                _ => continue,
            };
            // An unusable turn may be the only one.
            if environment.train_size > 0 && penalty * reward.weight < low {
                let key = format!("{section}.{key}");
                self.error(
                    &[&key, "objective.advantage.low", "objective.advantage.kind", &section],
                    format!(
                        "`objective.advantage.kind: {name}` needs rewards of at least {low} (`objective.advantage.low`), but `{key}` \
                        gives {penalty} for an answer without an action"
                    ),
                    format!("set `{key}: 0`, or lower `objective.advantage.low` to the lowest reward of an episode"),
                );
            }
        }
    }
}
