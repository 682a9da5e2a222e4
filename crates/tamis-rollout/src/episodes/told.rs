//! A trajectory as it grows: answers of the policy, and what comes between them.

use tamis_core::group::{Episode, FinishReason, PolicyVersion, Turn};
use tamis_core::schedule::Spent;
use tamis_data::prompt::Message;

use super::Between;
use crate::generator::{Sample, VersionSpan};

/// All turns so far, but for the prompt.
pub(super) struct Told {
    sample: Sample,
    pub(super) turns: Vec<Turn>,
    /// Index of the first token that the policy sees, if it does not see the prompt.
    pub(super) context_start: Option<usize>,
    /// Number of tokens that the policy wrote, and the sum of their entropies if all are known.
    num_written: usize,
    entropy: Option<f64>,
    has_logprobs: bool,
}

#[derive(Clone, Copy)]
pub(super) struct End {
    /// Whether its task was solved, if that is known.
    pub(super) is_success: Option<bool>,
    pub(super) is_unscored: bool,
    /// Whether a limit ended it, and not its environment.
    pub(super) is_cut: bool,
    /// Whether that was a limit of tokens.
    pub(super) is_full: bool,
}

impl Told {
    pub(super) fn new() -> Self {
        let sample = Sample {
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            entropy: None,
            text: String::new(),
            finish_reason: FinishReason::Stop,
            versions: Vec::new(),
            episode: None,
            lost: Spent::default(),
        };
        let (turns, entropy) = (Vec::new(), Some(0.0));
        Self { sample, turns, context_start: None, num_written: 0, entropy, has_logprobs: true }
    }

    pub(super) fn token_ids(&self) -> &[u32] {
        &self.sample.token_ids
    }

    /// The tokens that the policy sees, with the prompt unless `context_start` is set.
    pub(super) fn seen(&self) -> &[u32] {
        &self.sample.token_ids[self.context_start.unwrap_or(0)..]
    }

    /// From here on the policy sees only what is appended.
    pub(super) fn begin_anew(&mut self) {
        self.context_start = Some(self.sample.token_ids.len());
    }

    pub(super) fn hear(&mut self, answer: &Sample) {
        let (start, num_tokens) = (self.sample.token_ids.len(), answer.token_ids.len());
        self.has_logprobs &= answer.logprobs.len() == num_tokens;
        if self.has_logprobs {
            self.sample.logprobs.extend(&answer.logprobs);
        } else {
            // The learner computes them, if anybody does.
            self.sample.logprobs.clear();
        }
        self.sample.token_ids.extend(&answer.token_ids);
        self.sample.text.push_str(&answer.text);
        self.sample.finish_reason = answer.finish_reason;
        for span in &answer.versions {
            self.extend_versions(span.version, start as u32 + span.end);
        }
        self.entropy = self.entropy.zip(answer.entropy).map(|(sum, mean)| sum + mean * num_tokens as f64);
        self.num_written += num_tokens;
        // If an answer began anew, the text before it was appended for it.
        let is_new =
            self.turns.last().is_none_or(|last| self.context_start.is_some_and(|at| at >= last.end as usize));
        self.turns.push(Turn {
            start: start as u32,
            end: (start + num_tokens) as u32,
            context_start: self.context_start.filter(|_| is_new).map(|at| at as u32),
            text: answer.text.clone(),
            ..Turn::default()
        });
    }

    /// Extends the last version's span to this token, or begins another version's.
    fn extend_versions(&mut self, version: PolicyVersion, end: u32) {
        match self.sample.versions.last_mut() {
            Some(last) if last.version == version => last.end = end,
            last => {
                let start = last.map_or(0, |last| last.end);
                self.sample.versions.push(VersionSpan { version, start, end });
            }
        }
    }

    /// Appends text that the policy did not write.
    pub(super) fn append(&mut self, between: &Between) {
        self.sample.token_ids.extend(&between.token_ids);
        if self.has_logprobs {
            self.sample.logprobs.resize(self.sample.token_ids.len(), 0.0);
        }
        self.sample.text.push_str(&between.text);
        if let Some(last) = self.sample.versions.last_mut() {
            last.end = self.sample.token_ids.len() as u32;
        }
    }

    /// Records what was shown after the last answer.
    pub(super) fn note_shown(&mut self, shown: &[Message]) {
        if let (Some(turn), Some(first)) = (self.turns.last_mut(), shown.first()) {
            let contents: Vec<&str> = shown.iter().map(|message| message.content.as_str()).collect();
            turn.observation = contents.join("\n");
            turn.role = if first.role == "user" { String::new() } else { first.role.clone() };
        }
    }

    pub(super) fn finish(&mut self, end: End) -> Sample {
        let End { is_success, is_unscored, is_cut, is_full } = end;
        let turns = std::mem::take(&mut self.turns);
        let num_written = self.num_written.max(1) as f64;
        let mut sample = self.sample.clone();
        if is_full {
            sample.finish_reason = FinishReason::Length;
        }
        sample.entropy = self.entropy.map(|sum| sum / num_written);
        sample.episode = Some(Episode { turns, is_success, is_cut, is_unscored });
        sample
    }
}
