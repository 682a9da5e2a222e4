//! A text with known log-probabilities under the published weights, by which a server proves that it
//! holds them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_core::fault;
use tamis_core::fault::Fault;

/// Name of the file that carries a probe, beside the weights that it is of.
pub const FILE: &str = "probe.json";

/// A text and its log-probabilities under the published weights.
///
/// The probe finds a server that did not load the weights at all, or only in part (vLLM's CPU build
/// keeps the old head of a model with tied embeddings). It cannot find differences below the server's
/// own rounding: `tolerance` has to leave room for that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The text's tokens \[T\], at least two.
    pub token_ids: Vec<u32>,
    /// `log_softmax(logits)`, at temperature 1, of each token but the first \[T - 1\].
    pub logprobs: Vec<f64>,
    /// Largest mean absolute difference that the server's rounding may make, in nats.
    pub tolerance: f64,
    /// Whether the log-probabilities themselves were computed in 16 bits: a server that rounds by less than
    /// that is then no nearer to them.
    #[serde(default)]
    pub is_rounded: bool,
}

impl Probe {
    /// Reads the probe of a folder of weights; `None` if the folder has none.
    pub fn read(folder: &Path) -> Result<Option<Self>, Fault> {
        let path = folder.join(FILE);
        let no_probe = |reason: String| fault!("{} is not a probe: {reason}", path.display());
        let text = match tamis_file::read(&path, u64::MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault!("{}: {error}", path.display())),
        };
        let probe: Self = serde_json::from_slice(&text).map_err(|error| no_probe(error.to_string()))?;
        if probe.token_ids.len() < 2 || probe.logprobs.len() + 1 != probe.token_ids.len() {
            let (tokens, logprobs) = (probe.token_ids.len(), probe.logprobs.len());
            return Err(no_probe(format!("{logprobs} log-probabilities of {tokens} tokens")));
        }
        Ok(Some(probe))
    }

    /// The content of the file that carries it.
    pub fn to_json(&self) -> Vec<u8> {
        // Lists of numbers: that cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Mean absolute difference of a server's log-probabilities from those expected, in nats; NaN if
    /// one of them is.
    ///
    /// ```
    /// use tamis_rollout::server::Probe;
    /// let probe = Probe { token_ids: vec![1, 2, 3], logprobs: vec![-1.0, -2.0], tolerance: 0.05, is_rounded: false };
    /// assert_eq!(probe.difference(&[-1.5, -2.0]), 0.25);
    /// ```
    pub fn difference(&self, logprobs: &[f64]) -> f64 {
        let sum: f64 = self.logprobs.iter().zip(logprobs).map(|(ours, theirs)| (ours - theirs).abs()).sum();
        sum / self.logprobs.len() as f64
    }

    /// Mean absolute distance of the expected log-probabilities from their mean, in nats: it grows with
    /// the logits, as rounding does. 0 if there is only one, or if they are all equal.
    ///
    /// ```
    /// use tamis_rollout::server::Probe;
    /// let probe = Probe { token_ids: vec![1, 2, 3], logprobs: vec![-1.0, -2.0], tolerance: 0.05, is_rounded: false };
    /// assert_eq!(probe.spread(), 0.5);
    /// ```
    pub fn spread(&self) -> f64 {
        let num = self.logprobs.len() as f64;
        let mean = self.logprobs.iter().sum::<f64>() / num;
        self.logprobs.iter().map(|logprob| (logprob - mean).abs()).sum::<f64>() / num
    }
}
