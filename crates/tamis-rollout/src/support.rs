//! Values that the tests of this crate begin with.

use std::sync::Arc;

use tamis_core::group::{GroupId, PromptId};
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::{Prompt, PromptContent};

use crate::fake::sampling;
use crate::generator::{SampleId, SampleRequest};

pub(crate) fn prompt(id: u64, text: &str, data_source: &str) -> Prompt {
    Prompt {
        id: PromptId(id),
        content: PromptContent::Text(text.to_owned()),
        ground_truth: None,
        data_source: data_source.to_owned(),
        columns: serde_json::Map::new(),
        images: Vec::new(),
        place: None,
    }
}

/// A request for a member of a group with the prompt token 1 and at most `most` tokens.
pub(crate) fn request(group: u64, member: u32, most: usize) -> SampleRequest {
    SampleRequest {
        id: SampleId::of_member(GroupId(group), member),
        prompt_token_ids: Arc::from([1]),
        images: Arc::default(),
        key: Key::new(1, Purpose::Rollout).with(group).with(u64::from(member)),
        sampling: sampling(most),
        prompt: None,
    }
}
