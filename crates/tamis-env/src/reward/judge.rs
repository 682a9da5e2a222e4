//! `judge`: a language model that scores. The [`RewardHost`](super::settings::RewardHost) asks it: nothing
//! here speaks to a server.

use super::function::RewardFunction;
use super::settings::{BuildError, Conflict, Nature, RewardContext, RewardSettings};

pub use super::judge_settings::JudgeSettings;

impl RewardSettings for JudgeSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        context.host.connect_judge(self, context)
    }

    fn nature(&self) -> Nature {
        Nature { gives_acc: self.pass_score.is_some(), ..Nature::EXTERNAL }
    }

    fn is_tried(&self) -> bool {
        false
    }

    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        context.host.check_judge(self, context)
    }

    fn conflicts(&self, path: &str, _limit: usize) -> Vec<Conflict> {
        let key = |name: &str| format!("{path}.{name}");
        let mut found = Vec::new();
        if self.servers.is_empty() {
            found.push(Conflict {
                keys: vec![key("servers"), key("kind")],
                message: format!("`{}` is empty: the judge needs a server", key("servers")),
                hint: "set it: `servers: [http://HOST:PORT]`, or `[https://HOST]`".to_owned(),
            });
        }
        if !self.prompt.contains("{completion}") {
            found.push(Conflict {
                keys: vec![key("prompt"), key("kind")],
                message: format!(
                    "`{}` does not contain `{{completion}}`: the judge would not see the completion",
                    key("prompt")
                ),
                hint:
                    "add `{completion}` for the policy's text; `{prompt}`, `{ground_truth}` and columns of the data can be used too"
                        .to_owned(),
            });
        }
        found
    }
}
