//! `model`: a reward model that scores. The [`RewardHost`](super::settings::RewardHost) loads it or asks the
//! servers that have it: nothing here computes.

use tamis_core::setting::ModelPlace;

use super::function::RewardFunction;
use super::settings::{BuildError, Conflict, Nature, RewardContext, RewardFile, RewardSettings};

pub use super::model_settings::{LogitActivation, ModelSettings, OverlongTexts, RewardDtype, ScoreEndpoint};

/// The template that takes the prompt's form: messages or text.
pub const AUTO_TEMPLATE: &str = "auto";
/// The template that is the model's own chat template.
pub const CHAT_TEMPLATE: &str = "chat";

impl ModelSettings {
    /// Whether `template` is a text to be filled in.
    pub fn has_own_text(&self) -> bool {
        ![AUTO_TEMPLATE, CHAT_TEMPLATE].contains(&self.template.as_str())
    }
}

impl RewardSettings for ModelSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        context.host.connect_model(self, context)
    }

    fn nature(&self) -> Nature {
        Nature { gives_acc: self.pass_score.is_some(), ..Nature::EXTERNAL }
    }

    fn is_tried(&self) -> bool {
        false
    }

    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        context.host.check_model(self, context)
    }

    fn conflicts(&self, path: &str, _limit: usize) -> Vec<Conflict> {
        let key = |name: &str| format!("{path}.{name}");
        let mut found = Vec::new();
        let mut conflict = |names: &[&str], message: String, hint: &str| {
            let keys = names.iter().map(|name| key(name)).collect();
            found.push(Conflict { keys, message, hint: hint.to_owned() });
        };
        let is_loaded = self.path.is_some();
        match (is_loaded, self.servers.is_empty()) {
            (false, true) => conflict(
                &["path", "kind"],
                format!(
                    "there is no reward model: neither `{}` nor `{}` is set",
                    key("path"),
                    key("servers")
                ),
                "name a folder or a model on a hub (`path: owner/name`), or servers that have it (`servers: [http://HOST:PORT]`)",
            ),
            (true, false) => conflict(
                &["servers", "path"],
                format!("`{}` and `{}` both name the reward model", key("path"), key("servers")),
                "keep one of them: a run loads the model of `path` itself",
            ),
            _ => {}
        }
        if self.has_own_text() && !self.template.contains("{completion}") {
            conflict(
                &["template", "kind"],
                format!(
                    "`{}` does not contain `{{completion}}`: the reward model would not see the completion",
                    key("template")
                ),
                "add `{completion}` for the policy's text, as in `{prompt}{completion}`, or set `auto` or `chat`",
            );
        }
        if is_loaded && self.activation == LogitActivation::AsServed {
            conflict(
                &["activation"],
                format!("`{}` is `as_served`, but no server has the model", key("activation")),
                "set `none`, `sigmoid` or `softmax`",
            );
        }
        if !is_loaded && self.max_length.is_some() && self.overlong == OverlongTexts::Unscored {
            conflict(
                &["max_length"],
                format!(
                    "`{}` has no effect: servers refuse longer texts by their own limit",
                    key("max_length")
                ),
                "set `overlong: left` or `right`, or give the servers the limit (`--max-model-len`)",
            );
        }
        if self.activation == LogitActivation::Softmax && self.endpoint == ScoreEndpoint::Pooling {
            conflict(
                &["activation", "endpoint"],
                format!("`{}` is `softmax`, but `/pooling` returns the logits of tokens", key("activation")),
                "set `endpoint: classify`, or another `activation`",
            );
        }
        found
    }

    fn files(&self) -> Vec<RewardFile> {
        let program = RewardFile { key: "python".to_owned(), path: self.python.0.clone(), hint: None };
        self.path.is_some().then_some(program).into_iter().collect()
    }

    fn models(&mut self) -> Vec<(String, &mut ModelPlace)> {
        self.path.iter_mut().map(|place| ("path".to_owned(), place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_model_is_is_said_once_and_its_text_has_the_completion() {
        let messages = |settings: &ModelSettings| -> Vec<String> {
            settings.conflicts("reward[0]", 8).into_iter().map(|conflict| conflict.message).collect()
        };
        let loaded = ModelSettings {
            path: Some(ModelPlace { named: "rm".into(), folder: None }),
            ..ModelSettings::default()
        };
        let served = ModelSettings { servers: vec!["http://a:1".to_owned()], ..ModelSettings::default() };
        assert_eq!(messages(&loaded), [""; 0]);
        assert_eq!(messages(&served), [""; 0]);
        assert_eq!(
            messages(&ModelSettings::default()),
            ["there is no reward model: neither `reward[0].path` nor `reward[0].servers` is set"]
        );
        let both = ModelSettings { servers: served.servers.clone(), ..loaded.clone() };
        assert!(messages(&both)[0].contains("both name"));
        let blind = ModelSettings { template: "Q: {prompt}".to_owned(), ..loaded.clone() };
        assert!(messages(&blind)[0].contains("would not see the completion"));
        let as_served = ModelSettings { activation: LogitActivation::AsServed, ..loaded };
        assert!(messages(&as_served)[0].contains("no server has the model"));
        let limited = ModelSettings { max_length: Some(8), ..served.clone() };
        assert!(messages(&limited)[0].contains("no effect"));
        let pooled = ModelSettings {
            activation: LogitActivation::Softmax,
            endpoint: ScoreEndpoint::Pooling,
            ..served
        };
        assert!(messages(&pooled)[0].contains("logits of tokens"));
    }
}
