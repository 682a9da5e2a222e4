//! Named algorithms as data: what their authors released, with paper and formula.

use serde::{Deserialize, Serialize};

use super::{Aggregation, Clip, KlController, KlEstimator, KlKind, KlTerm, Objective, PolicyLoss};
use crate::advantage::{Grpo, Scale, SingletonAdvantage};

/// A named algorithm: its advantage, its objective, and what it asks of reward shaping and sampling.
///
/// Everything may be overridden; what a user changes is no longer the algorithm of that name, and the run says so.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Preset {
    /// Advantage estimator.
    pub advantage: Grpo,
    /// Loss.
    pub objective: Objective,
    /// Whether DAPO's soft overlong punishment belongs to it: the last fifth of the response limit costs up to 1.
    pub soft_overlong: bool,
    /// Whether groups without signal are dropped and replaced.
    pub dynamic_sampling: bool,
}

/// A row of the table of presets.
#[derive(Debug, Clone, Copy)]
pub struct PresetEntry {
    /// The name in the configuration.
    pub name: &'static str,
    /// Where it was published.
    pub source: &'static str,
    /// The loss in one line.
    pub formula: &'static str,
    /// Builds it for a response limit in tokens.
    pub build: fn(max_response_length: usize) -> Preset,
}

/// All presets; help, documentation and lookup read this one table.
pub const PRESETS: &[PresetEntry] = &[
    PresetEntry {
        name: "grpo",
        source: "Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3 and 4",
        formula: "mean over trajectories of the token mean of the clipped loss (0.2) + 0.04·k3; A = (r - mean)/(std + 1e-6)",
        build: |_| Preset::grpo(),
    },
    PresetEntry {
        name: "dapo",
        source: "Yu et al., DAPO, arXiv 2503.14476, as released",
        formula: "token mean over the mini-batch of the clipped loss (0.2/0.28, dual 10), no KL; A = (r - mean)/(std + 1e-6)",
        build: |_| Preset::dapo(),
    },
    PresetEntry {
        name: "dapo_paper",
        source: "Yu et al., DAPO, arXiv 2503.14476, eq. 8",
        formula: "mean over groups of the token mean within the group of the clipped loss (0.2/0.28), no KL; A = (r - mean)/std",
        build: |_| Preset::dapo_paper(),
    },
    PresetEntry {
        name: "dr_grpo",
        source: "Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783, section 3.2 and listing 1",
        formula: "mean over trajectories of the token sum of the clipped loss (0.2) over the response limit, no KL; A = r - mean",
        build: Preset::dr_grpo,
    },
];

impl Preset {
    /// Looks a preset up by name; `None` where there is none.
    pub fn named(name: &str, max_response_length: usize) -> Option<Self> {
        PRESETS.iter().find(|entry| entry.name == name).map(|entry| (entry.build)(max_response_length))
    }

    /// GRPO as its paper writes it: symmetric clip 0.2, every trajectory the mean of its own tokens, k3 with coefficient 0.04 in the
    /// loss, rewards standardised within the group.
    ///
    /// The paper gives neither `ddof`, epsilon nor clip range; sample deviation, 1e-6 and 0.2 are verl's. So are the bounds on the
    /// log-ratio and on k3, which bind only where a token's probability has moved by a factor of 4.8e8, or its k3 exceeds 10.
    pub fn grpo() -> Self {
        Self {
            advantage: Grpo { singleton: SingletonAdvantage::Zero, ..Grpo::verl() },
            objective: Objective {
                kl: Some(KlTerm {
                    estimator: KlEstimator { clamped: true, ..KlEstimator::plain(KlKind::K3) },
                    controller: KlController::Fixed { coef: 0.04 },
                    bias_corrected: false,
                }),
                ..Objective::of(
                    PolicyLoss::Clip(Clip { log_ratio_limit: Some(20.0), ..Clip::symmetric(0.2) }),
                    Aggregation::SeqMeanTokenMean { length_epsilon: 0.0 },
                )
            },
            soft_overlong: false,
            dynamic_sampling: false,
        }
    }

    /// DAPO as its authors released it: clip 0.2/0.28 with dual clip 10, token mean over the mini-batch, no KL, no entropy bonus, soft
    /// overlong punishment, dynamic sampling.
    pub fn dapo() -> Self {
        Self {
            advantage: Grpo { singleton: SingletonAdvantage::Zero, ..Grpo::verl() },
            objective: Objective::of(PolicyLoss::Clip(Clip::verl(0.2, 0.28, 10.0)), Aggregation::TokenMean),
            soft_overlong: true,
            dynamic_sampling: true,
        }
    }

    /// DAPO as its paper writes it: eq. 8 divides by the tokens of each group, then averages over groups, and has no dual clip.
    pub fn dapo_paper() -> Self {
        let dapo = Self::dapo();
        Self {
            objective: Objective {
                policy: PolicyLoss::Clip(Clip {
                    high: 0.28,
                    log_ratio_limit: Some(20.0),
                    ..Clip::symmetric(0.2)
                }),
                aggregation: Aggregation::GroupMeanTokenMean,
                ..dapo.objective
            },
            ..dapo
        }
    }

    /// Dr. GRPO: no division by the group's deviation, and the constant response limit in place of each trajectory's length.
    pub fn dr_grpo(max_response_length: usize) -> Self {
        Self {
            advantage: Grpo { scale: Scale::None, singleton: SingletonAdvantage::Zero, ..Grpo::verl() },
            objective: Objective::of(
                PolicyLoss::Clip(Clip { log_ratio_limit: Some(20.0), ..Clip::symmetric(0.2) }),
                Aggregation::SeqMeanTokenSumNorm { scale: max_response_length as f64 },
            ),
            soft_overlong: false,
            dynamic_sampling: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_and_found_by_its_name() {
        for entry in PRESETS {
            let preset = (entry.build)(1024);
            assert_eq!(preset.objective.check(), Ok(()), "{}", entry.name);
            assert_eq!(Preset::named(entry.name, 1024), Some(preset));
        }
        assert_eq!(Preset::named("ppo", 1024), None);
    }

    #[test]
    fn dapo_and_its_paper_differ_in_aggregation_and_dual_clip_only() {
        let (PolicyLoss::Clip(clip), mut paper) = (Preset::dapo().objective.policy, Preset::dapo_paper())
        else {
            panic!("not the clipped ratio");
        };
        assert_eq!(clip.dual, Some(10.0));
        paper.objective.policy = PolicyLoss::Clip(clip);
        paper.objective.aggregation = Aggregation::TokenMean;
        assert_eq!(paper, Preset::dapo());
    }

    #[test]
    fn settings_survive_a_checkpoint() {
        for entry in PRESETS {
            let preset = (entry.build)(1024);
            let text = serde_json::to_string(&preset).expect("is data");
            assert!(text.contains(preset.objective.aggregation.name()), "{text}");
            assert_eq!(serde_json::from_str::<Preset>(&text).expect("is data"), preset);
        }
    }
}
