//! Corrections by the names under which verl and TRL offer them.

use super::importance::{ImportanceWeights, Level, Outside};
use super::rejection::{Rejection, RejectionScope, Statistic};
use super::{Correction, Mode};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "correction_presets",
    family: Family::Correction,
    meaning: "corrections by name: disabled, decoupled_* (weights and rejection beside the loss's own ratio), bypass_*, trl",
    formula: "each name says what it sets: token_is and seq_is weights up to 2, geo_rs seq_mean_k1 within 0.1 %, k3_rs seq_mean_k3 up to 0.01",
    source: "verl RolloutCorrectionConfig; TRL GRPOConfig",
    defaults: &[],
    degenerate: &[],
    known_as: &[
        ("verl", "RolloutCorrectionConfig.decoupled_token_is() and its siblings"),
        ("TRL", "vllm_importance_sampling_correction"),
    ],
    differences: &[
        "geo_rs bounds the geometric mean of the ratio to [0.999, 1.001], so that most trajectories of a sampler in another precision go; watch `rollout_corr/rollout_rs_seq_masked_fraction`",
    ],
};

/// The catalogue's entry of the modes without a forward pass of their own.
pub(super) const BYPASS: Entry = Entry {
    name: "bypass",
    family: Family::Correction,
    meaning: "the sampler's log-probabilities stand for the old ones, which saves a forward pass",
    formula: "old = behaviour; `bypass_clip`: the clipped loss without weights; `bypass_reinforce`: -w·A·logprob, w of the policy being trained",
    source: "verl algorithm.rollout_correction.bypass_mode, loss_type=ppo_clip|reinforce",
    defaults: &[],
    degenerate: &["with everything rejected the loss is 0, in verl NaN"],
    known_as: &[("verl", "rollout_correction.bypass_mode=True")],
    differences: &["an unknown behaviour log-probability has ratio 1"],
};

/// A row of the table of named corrections.
#[derive(Debug, Clone, Copy)]
pub struct CorrectionPreset {
    /// The name in the configuration.
    pub name: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// Builds it.
    pub build: fn() -> Correction,
}

/// All named corrections; lookup and documentation read this one table.
pub const CORRECTION_PRESETS: &[CorrectionPreset] = &[
    CorrectionPreset { name: "disabled", meaning: "nothing but metrics", build: Correction::default },
    CorrectionPreset {
        name: "decoupled_token_is",
        meaning: "token weights up to 2",
        build: || weighted(ImportanceWeights::truncated_tokens(2.0)),
    },
    CorrectionPreset {
        name: "decoupled_seq_is",
        meaning: "trajectory weights up to 2",
        build: || weighted(ImportanceWeights::truncated_sequences(2.0)),
    },
    CorrectionPreset {
        name: "decoupled_token_icepop",
        meaning: "token weights within 0.5 and 5, 0 outside",
        build: || weighted(icepop()),
    },
    CorrectionPreset {
        name: "decoupled_seq_is_rs",
        meaning: "trajectory weights up to 2; trajectories whose ratio is outside 0.5 and 2 rejected",
        build: || Correction {
            rejections: vec![k1(RejectionScope::SeqSum, 0.5, 2.0)],
            ..weighted(ImportanceWeights::truncated_sequences(2.0))
        },
    },
    CorrectionPreset {
        name: "decoupled_geo_rs",
        meaning: "trajectories whose geometric mean ratio is outside 0.999 and 1.001 rejected",
        build: || rejecting(geo()),
    },
    CorrectionPreset {
        name: "decoupled_geo_rs_seq_tis",
        meaning: "decoupled_geo_rs with trajectory weights up to 2",
        build: || Correction {
            importance: Some(ImportanceWeights::truncated_sequences(2.0)),
            ..rejecting(geo())
        },
    },
    CorrectionPreset {
        name: "decoupled_geo_rs_token_tis",
        meaning: "decoupled_geo_rs with token weights up to 2",
        build: || Correction {
            importance: Some(ImportanceWeights::truncated_tokens(2.0)),
            ..rejecting(geo())
        },
    },
    CorrectionPreset {
        name: "decoupled_k3_rs",
        meaning: "trajectories whose mean k3 is above 0.01 rejected",
        build: || rejecting(k3()),
    },
    CorrectionPreset {
        name: "decoupled_k3_rs_seq_tis",
        meaning: "decoupled_k3_rs with trajectory weights up to 2",
        build: || Correction {
            importance: Some(ImportanceWeights::truncated_sequences(2.0)),
            ..rejecting(k3())
        },
    },
    CorrectionPreset {
        name: "decoupled_k3_rs_token_tis",
        meaning: "decoupled_k3_rs with token weights up to 2",
        build: || Correction {
            importance: Some(ImportanceWeights::truncated_tokens(2.0)),
            ..rejecting(k3())
        },
    },
    CorrectionPreset {
        name: "bypass_ppo_clip",
        meaning: "the clipped loss over the sampler's log-probabilities",
        build: || Correction { mode: Mode::BypassClip, ..Correction::default() },
    },
    CorrectionPreset {
        name: "bypass_ppo_clip_geo_rs",
        meaning: "bypass_ppo_clip with the rejection of decoupled_geo_rs",
        build: || Correction { mode: Mode::BypassClip, ..rejecting(geo()) },
    },
    CorrectionPreset {
        name: "bypass_ppo_clip_k3_rs",
        meaning: "bypass_ppo_clip with the rejection of decoupled_k3_rs",
        build: || Correction { mode: Mode::BypassClip, ..rejecting(k3()) },
    },
    CorrectionPreset {
        name: "bypass_pg_is",
        meaning: "REINFORCE with trajectory weights up to 2",
        build: || reinforce(weighted(ImportanceWeights::truncated_sequences(2.0))),
    },
    CorrectionPreset {
        name: "bypass_pg_token_icepop",
        meaning: "REINFORCE with token weights within 0.5 and 5, 0 outside",
        build: || reinforce(weighted(icepop())),
    },
    CorrectionPreset {
        name: "bypass_pg_geo_rs",
        meaning: "REINFORCE with the rejection of decoupled_geo_rs",
        build: || reinforce(rejecting(geo())),
    },
    CorrectionPreset {
        name: "bypass_pg_geo_rs_seq_tis",
        meaning: "bypass_pg_geo_rs with trajectory weights up to 2",
        build: || Correction {
            importance: Some(ImportanceWeights::truncated_sequences(2.0)),
            ..reinforce(rejecting(geo()))
        },
    },
    CorrectionPreset {
        name: "bypass_pg_geo_rs_token_tis",
        meaning: "bypass_pg_geo_rs with token weights up to 2",
        build: || Correction {
            importance: Some(ImportanceWeights::truncated_tokens(2.0)),
            ..reinforce(rejecting(geo()))
        },
    },
    CorrectionPreset {
        name: "trl",
        meaning: "TRL's default: trajectory weights up to 3, 0 above, without a limit on log-ratios",
        build: || Correction {
            importance: Some(ImportanceWeights {
                level: Level::Sequence,
                outside: Outside::Mask,
                ..ImportanceWeights::truncated_sequences(3.0)
            }),
            log_ratio_limit: None,
            ..Correction::default()
        },
    },
];

fn weighted(importance: ImportanceWeights) -> Correction {
    Correction { importance: Some(importance), ..Correction::default() }
}

fn rejecting(rejection: Rejection) -> Correction {
    Correction { rejections: vec![rejection], ..Correction::default() }
}

fn reinforce(correction: Correction) -> Correction {
    Correction { mode: Mode::BypassReinforce, ..correction }
}

fn icepop() -> ImportanceWeights {
    ImportanceWeights { outside: Outside::Mask, min: Some(0.5), ..ImportanceWeights::truncated_tokens(5.0) }
}

fn k1(scope: RejectionScope, low: f64, high: f64) -> Rejection {
    Rejection { statistic: Statistic::K1, scope, min: Some(low.ln()), max: Some(high.ln()) }
}

fn geo() -> Rejection {
    k1(RejectionScope::SeqMean, 0.999, 1.001)
}

fn k3() -> Rejection {
    Rejection { statistic: Statistic::K3, scope: RejectionScope::SeqMean, min: None, max: Some(0.01) }
}

impl Correction {
    /// Looks a correction up by name; `None` where there is none.
    ///
    /// ```
    /// use tamis_core::correction::Correction;
    /// assert!(Correction::named("decoupled_token_is").is_some_and(|correction| correction.importance.is_some()));
    /// assert_eq!(Correction::named("tis"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        CORRECTION_PRESETS.iter().find(|preset| preset.name == name).map(|preset| (preset.build)())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_and_survives_a_checkpoint() {
        for preset in CORRECTION_PRESETS {
            let correction = (preset.build)();
            assert_eq!(correction.check(), Ok(()), "{}", preset.name);
            assert_eq!(correction.mode.is_bypass(), preset.name.starts_with("bypass"), "{}", preset.name);
            let text = serde_json::to_string(&correction).expect("is data");
            assert_eq!(serde_json::from_str::<Correction>(&text).expect("is data"), correction, "{text}");
        }
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> =
            CORRECTION_PRESETS.iter().map(|preset| preset.name).collect();
        assert_eq!(names.len(), CORRECTION_PRESETS.len());
    }
}
