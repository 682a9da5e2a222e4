//! Values that the tests of this crate begin with.

use std::collections::BTreeMap;
use std::sync::Arc;

use tamis_config::source::{Source, SourceKind};
use tamis_config::{Loaded, load_sources};
use tamis_core::group::{FinishReason, Group, GroupId, PolicyVersion, PromptId, Trajectory};
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_model::{Architecture, Model, TransformerConfig};
use tamis_rollout::PreparedPrompt;

use crate::learner::generate::Drawing;

/// A completion with a token for each entry of its mask, each of log-probability -0.5; NaN: unscored.
pub(crate) fn trajectory(loss_mask: Vec<bool>, reward: f64) -> Trajectory {
    let num_tokens = loss_mask.len();
    Trajectory {
        episode: None,
        sample_index: 0,
        text: String::new(),
        token_ids: vec![7; num_tokens],
        logprobs: vec![-0.5; num_tokens],
        entropy: None,
        loss_mask,
        finish_reason: FinishReason::Stop,
        versions: (PolicyVersion(0), PolicyVersion(0)),
        scores: BTreeMap::new(),
        reward,
    }
}

/// A group of a prompt of one token.
pub(crate) fn group(id: u64, trajectories: Vec<Trajectory>) -> Group {
    Group {
        id: GroupId(id),
        prompt: PromptId(id),
        epoch: 0,
        dispatched: PolicyVersion(0),
        prompt_token_ids: vec![1],
        images: Vec::new(),
        trajectories,
    }
}

pub(crate) fn prompt(id: u64, text: &str) -> Prompt {
    Prompt {
        id: PromptId(id),
        content: PromptContent::Text(text.to_owned()),
        ground_truth: None,
        data_source: String::new(),
        columns: serde_json::Map::new(),
        images: Vec::new(),
        place: None,
    }
}

pub(crate) fn prepared(prompt: Prompt) -> PreparedPrompt {
    PreparedPrompt {
        prompt: Arc::new(prompt),
        token_ids: Arc::from([1]),
        text: "".into(),
        continued: "".into(),
        images: Arc::default(),
    }
}

/// A configuration file with overrides.
pub(crate) fn loaded(yaml: &str, overrides: &[&str]) -> Loaded {
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml.to_owned());
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    load_sources(&[source], &overrides).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A model of eight tokens and texts of 16.
pub(crate) fn model() -> Model {
    let config = TransformerConfig::new(Architecture::Qwen3, 8, 16, 32, 1, 2, 16);
    Model::init(config, Key::new(1, Purpose::Init)).expect("a model")
}

/// From the whole distribution, to the length that is requested.
pub(crate) fn drawing(max_tokens: usize) -> Drawing {
    Drawing {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        max_tokens,
        end_tokens: Vec::new(),
    }
}
