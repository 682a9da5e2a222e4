//! `objective.advantage` and `objective.shaping`: from rewards to advantages.

use crate::define::{choice, section, tagged};
use crate::reader::Reader;
use crate::setting::Setting;
use crate::tree::Node;
use tamis_core::setting::Shape;

choice! {
    /// How advantages are estimated.
    pub enum Estimator {
        /// The reward against the mean of its group, over its deviation (DeepSeekMath, arXiv 2402.03300).
        Grpo = "grpo",
        /// The reward against the mean of its group (arXiv 2503.20783).
        DrGrpo = "dr_grpo",
        /// The lead of the best of a group over the second (arXiv 2503.19595).
        GrpoPassk = "grpo_passk",
        /// The reward against the mean of the others of its group (arXiv 2402.14740).
        Rloo = "rloo",
        /// Discounted rewards to go, whitened over the batch (arXiv 2501.03262).
        ReinforcePlusPlus = "reinforce_plus_plus",
        /// The reward against the mean of its group, whitened over the batch (arXiv 2501.03262).
        ReinforcePlusPlusBaseline = "reinforce_plus_plus_baseline",
        /// The reward against that of a greedy completion of the same prompt (arXiv 2310.10505).
        Remax = "remax",
        /// The reward against the length-weighted mean of its group (arXiv 2505.23585).
        Opo = "opo",
        /// The reward against the mean of its group, scaled by the share of groups with signal (arXiv 2504.02546).
        Gpg = "gpg",
        /// Each reward normalised in its group, summed, whitened over the batch (arXiv 2601.05242).
        Gdpo = "gdpo",
        /// The same as TRL has it (`multi_objective_aggregation: normalize_then_sum`).
        NormalizeThenSum = "normalize_then_sum",
        /// Rewards to go against the baseline of least variance at each token (arXiv 2602.07078).
        OptimalTokenBaseline = "optimal_token_baseline",
        /// The same for several turns: tool output does not count as a position.
        TirOptimalTokenBaseline = "tir_optimal_token_baseline",
        /// Generalised advantage estimation with a critic (arXiv 1506.02438).
        Gae = "gae",
        /// The same over turns, then over the tokens of each.
        BiLevelGae = "bi_level_gae",
        /// Beta normalisation with parameters fitted to all prompts of the step (arXiv 2506.02864).
        Bnpo = "bnpo",
        /// The reward against the success rate of recent steps.
        BnpoRunning = "bnpo_running",
        /// GRPO moved by the contrast with the policy that knows the answer.
        Cpo = "cpo",
    }
}

choice! {
    /// Over what the deviation that divides advantages is taken.
    pub enum AdvantageScale {
        /// Over the group.
        Group = "group",
        /// Over the whole batch.
        Batch = "batch",
        /// No division.
        None = "none",
    }
}

choice! {
    /// The advantage in a group of one trajectory.
    pub enum SingletonAdvantage {
        /// Zero: such a group has nothing to be compared with.
        Zero = "zero",
        /// The reward itself (mean 0, deviation 1), as verl's.
        Raw = "raw",
    }
}

choice! {
    /// What becomes of a reward that stands on a masked token.
    pub enum MaskedRewards {
        /// It belongs to the last token of the policy before it.
        Credited = "credited",
        /// It is lost, as in verl.
        Lost = "lost",
    }
}

choice! {
    /// What a token baseline does where one trajectory is left.
    pub enum BaselineTail {
        /// The advantage is 0 beyond the second longest trajectory of the group.
        Zeroed = "zeroed",
        /// As verl counts it.
        ZeroedByCount = "zeroed_by_count",
        /// The tail is kept.
        Kept = "kept",
    }
}

choice! {
    /// What GPG scales by.
    pub enum GpgAlpha {
        /// All trajectories over those in groups with signal (the paper).
        MixedGroups = "mixed_groups",
        /// All trajectories over those with a reward other than 0 (verl).
        NonzeroRewards = "nonzero_rewards",
    }
}

choice! {
    /// Where CPO takes the contrast with the gold answer.
    pub enum CpoWrap {
        /// One number per completion: the mean over its tokens.
        SeqKl = "seq_kl",
        /// One number per token.
        TokKl = "tok_kl",
    }
}

section! {
    /// How advantages are made of rewards. A key that the estimator does not read has no effect, and is warned of.
    pub struct AdvantageConfig {
        /// Estimator.
        estimator: Estimator = "grpo", Any, Fixed;
        /// Divide by the deviation, in `grpo`, `grpo_passk` and `cpo`. False (Dr. GRPO) is the same as `scale: none`.
        norm_by_std: bool = "true", Any, Fixed;
        /// Delta degrees of freedom of the deviation, in `grpo`, `grpo_passk`, `cpo` and `bnpo`: 1 divides by n - 1 (verl, TRL), 0 by n. Null: 1; `bnpo` 0.
        ddof: Option<usize> = "null", Between(0.0, 1.0), Fixed;
        /// Added to the deviation (1e-6 in verl, 1e-4 in TRL), in `grpo`, `grpo_passk`, `cpo`, `gdpo`, `normalize_then_sum` and the token baselines. Null:
        /// 1e-6; `normalize_then_sum` 1e-4, token baselines 0.
        epsilon: Option<f64> = "null", NonNegative, Fixed;
        /// Over what the deviation is taken, in `grpo` and `cpo`.
        scale: AdvantageScale = "group", Any, Fixed;
        /// The advantage in a group of one trajectory, in group-relative estimators.
        singleton: SingletonAdvantage = "zero", Any, Fixed;
        /// Whiten over the batch, in `reinforce_plus_plus`, `reinforce_plus_plus_baseline`, `gdpo`, `gae` and `bi_level_gae`.
        whiten: bool = "true", Any, Fixed;
        /// Discount per token, in `reinforce_plus_plus`, `gae` and `bi_level_gae`.
        gamma: f64 = "1.0", Between(0.0, 1.0), Fixed;
        /// Decay of the trace, in `gae` and `bi_level_gae`.
        lambda: f64 = "1.0", Between(0.0, 1.0), Fixed;
        /// Discount per turn, in `bi_level_gae`.
        turn_gamma: f64 = "0.95", Between(0.0, 1.0), Fixed;
        /// What becomes of rewards on masked tokens, in the estimators that credit tokens.
        masked_rewards: MaskedRewards = "credited", Any, Fixed;
        /// What the token baselines do where one trajectory is left.
        tail: BaselineTail = "zeroed", Any, Fixed;
        /// What `gpg` scales by.
        gpg_alpha: GpgAlpha = "mixed_groups", Any, Fixed;
        /// What `gpg` divides by (verl's `f_norm`).
        divisor: f64 = "1.0", Positive, Fixed;
        /// Parameter alpha of `bnpo`. Null: fitted.
        alpha: Option<f64> = "null", Positive, Fixed;
        /// Parameter beta of `bnpo`. Null: fitted.
        beta: Option<f64> = "null", Positive, Fixed;
        /// Take fitted parameters of `bnpo` below 1 as 1.
        at_least_one: bool = "true", Any, Fixed;
        /// Largest weight of `bnpo`.
        max_weight: f64 = "1e6", Positive, Fixed;
        /// Reward of a failure, in `bnpo` and `bnpo_running`: all rewards lie between it and `high`.
        low: f64 = "0.0", Any, Fixed;
        /// Reward of a success, in `bnpo` and `bnpo_running`.
        high: f64 = "1.0", Any, Fixed;
        /// Steps that `bnpo_running` looks back on, this one included.
        window: usize = "10", AtLeast(1.0), Fixed;
        /// Successes and failures that `bnpo_running` takes for granted.
        prior: f64 = "1.0", Positive, Fixed;
        /// Added to the variance in `bnpo_running`.
        delta: f64 = "1e-4", NonNegative, Fixed;
        /// Where `cpo` takes the contrast with the gold answer.
        wrap: CpoWrap = "seq_kl", Any, Fixed;
        /// Factor of `cpo` for right completions.
        pos_alpha: f64 = "0.0", Any, Fixed;
        /// Factor of `cpo` for wrong completions.
        neg_alpha: f64 = "1.0", Any, Fixed;
        /// Least reward of a right completion, in `cpo`.
        right: f64 = "1.0", Any, Fixed;
        /// The prompt as the policy that knows the answer sees it, in `cpo`: `{prompt}` is the text, or the user's last message, `{gold}` its gold
        /// answer. Where it is too long it is cut from the left.
        gold_hint: String = r#""{prompt}\n\nThe right answer is {gold}.\n""#, Any, Fixed;
    }
}

choice! {
    /// How the kept share of groups scales the policy term.
    pub enum LossScaling {
        /// Not at all.
        None = "none",
        /// By the share.
        Linear = "linear",
        /// By its square root.
        Sqrt = "sqrt",
    }
}

tagged! {
    /// A change to finished advantages.
    pub enum ShapingConfig {
        /// Bounds on the advantage.
        ClipAdvantage = "clip_advantage" {
            /// Lower bound, 0 or less. Null: none.
            low: Option<f64> = "null", Any, Fixed;
            /// Upper bound, 0 or more. Null: none.
            high: Option<f64> = "null", NonNegative, Fixed;
        }
        /// Keep a share of each group's trajectories of negative advantage, the worst first; the others leave the loss.
        KeepNegRatio = "keep_neg_ratio" {
            /// The share.
            ratio: f64 = "1.0", Between(0.0, 1.0), Fixed;
        }
        /// Keep a share of each group's trajectories of positive advantage, the best first; the others leave the loss.
        KeepPosRatio = "keep_pos_ratio" {
            /// The share.
            ratio: f64 = "1.0", Between(0.0, 1.0), Fixed;
        }
        /// Scale the policy term by the share of generated groups that the filter kept.
        FilterLossScaling = "filter_loss_scaling" {
            /// How.
            by: LossScaling = "none", Any, Fixed;
        }
        /// Weigh groups by the deviation of their rewards over the largest of the batch.
        SoftReweight = "soft_reweight" {
            /// Delta degrees of freedom of the deviation.
            ddof: usize = "1", Between(0.0, 1.0), Fixed;
            /// Added to the largest deviation.
            epsilon: f64 = "1e-6", NonNegative, Fixed;
        }
        /// Weigh trajectories by the mean length over their own.
        LengthWeight = "length_weight" {}
    }
}

impl Setting for ShapingConfig {
    fn shape() -> Shape {
        Shape::Tagged {
            doc: "One change to finished advantages.",
            common: Vec::new(),
            variants: Self::variants(),
            default: None,
        }
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let shape = Self::shape();
        let variant = reader.open_kind(node, path, &shape)?;
        Self::read_kind(variant.name, node, path, reader)
    }

    fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::Map::new();
        object.insert("kind".to_owned(), serde_json::Value::String(self.as_str().to_owned()));
        object.extend(self.parameters().into_iter().map(|(name, value)| (name.to_owned(), value)));
        serde_json::Value::Object(object)
    }
}
