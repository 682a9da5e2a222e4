//! The rewards by name, as a configuration chooses them: one line registers one.

use super::by_source::BySourceSettings;
use super::command::CommandSettings;
use super::command::python::PythonSettings;
use super::cosine::CosineSettings;
use super::exact::Exact;
use super::format::FormatSettings;
use super::gsm8k::Gsm8k;
use super::judge::JudgeSettings;
use super::length::LengthSettings;
use super::math::Math;
use super::math_dapo::MathDapo;
use super::number::Number;
use super::repetition::Repetition;
use super::settings::RewardSettings;
use super::soft_overlong::SoftOverlongSettings;
use super::think_format::ThinkFormat;

tamis_core::tagged! {
    /// Which reward function. Each kind has keys of its own.
    pub enum RewardKind: RewardSettings {
        /// 1 where the completion, trimmed, is the ground truth, otherwise 0.
        Exact(Exact) = "exact",
        /// 1 where the whole completion is one number that equals the ground truth (`.5` = `0.50`), otherwise
        /// 0.
        Number(Number) = "number",
        /// verl's GSM8K verifier: 1 or 0.
        Gsm8k(Gsm8k) = "gsm8k",
        /// The last `\boxed{}` compared by exact arithmetic: numbers, fractions, percentages, simple LaTeX. 1
        /// or 0.
        Math(Math) = "math",
        /// DAPO's verifier (`Answer: ...` in the last 300 characters): 1 or -1, with `acc` 1 or 0 beside it.
        MathDapo(MathDapo) = "math_dapo",
        /// The verifier of each row by its `data_source`, as verl routes it: `openai/gsm8k` → `gsm8k`;
        /// `lighteval/MATH`, `DigitalLearningGmbH/MATH-lighteval`, `HuggingFaceH4/MATH-500`, `numina_*` →
        /// `math`; `math`, `math_dapo`, `math_dapo_reasoning`, `aime*` → `math_dapo`. A source without a
        /// verifier is refused before anything is generated.
        BySource(BySourceSettings) = "by_source",
        /// 1 where a regular expression matches the whole completion, otherwise 0.
        Format(FormatSettings) = "format",
        /// 1 for one `<think>...</think>` block followed by an answer, otherwise 0 (TRL's think format).
        ThinkFormat(ThinkFormat) = "think_format",
        /// 0 for completions of `min_length` to `max_length` tokens, falling outside to -1 at a distance of
        /// `scale` tokens.
        Length(LengthSettings) = "length",
        /// TRL's cosine schedule over length (Yeo et al., 2502.03373): short right answers score most, short
        /// wrong answers least.
        Cosine(CosineSettings) = "cosine",
        /// The share of repeated n-grams times `max_penalty` (Yeo et al., as TRL has it).
        Repetition(Repetition) = "repetition",
        /// DAPO's soft overlong punishment: 0 up to `max_length - buffer` tokens, then falling in a line.
        SoftOverlong(SoftOverlongSettings) = "soft_overlong",
        /// A program that reads completions and writes scores, as JSON lines.
        Command(CommandSettings) = "command",
        /// A language model at a server with OpenAI's chat interface (`/v1/chat/completions`): it is shown
        /// each completion, and its score is found in what it answers.
        Judge(JudgeSettings) = "judge",
        /// A Python function, run unchanged in processes of their own.
        Python(PythonSettings) = "python",
    }
}

impl RewardKind {
    /// The kind of a name with its defaults; `None` where there is none of that name.
    ///
    /// ```
    /// use tamis_env::reward::RewardKind;
    /// assert!(RewardKind::of_name("gsm8k").is_some_and(|kind| kind.is_verifier()));
    /// assert!(RewardKind::of_name("length").is_some_and(|kind| !kind.is_verifier()));
    /// assert_eq!(RewardKind::of_name("gsm9k"), None);
    /// ```
    pub fn of_name(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::json!({ "kind": name })).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::settings::RewardContext;

    /// [`RewardKind::of_name`] rests on it: a key that must be given has an empty default.
    #[test]
    fn every_key_of_every_kind_has_a_default() {
        for name in RewardKind::NAMES {
            let kind =
                RewardKind::of_name(name).unwrap_or_else(|| panic!("`{name}` has a key without a default"));
            assert_eq!(kind.as_str(), *name);
        }
    }

    #[test]
    fn a_function_says_of_correctness_what_its_kind_says() {
        let exact = RewardKind::Exact(Exact {});
        let rewards = [("exact", &exact)];
        let context = RewardContext { rewards: &rewards, ..RewardContext::alone("r", 8) };
        let mut num_built = 0;
        for kind in RewardKind::NAMES.iter().filter_map(|name| RewardKind::of_name(name)) {
            if let Ok(function) = kind.build(&context) {
                assert_eq!(function.is_shaping(), !kind.is_verifier(), "{kind}");
                num_built += 1;
            }
        }
        // All but those that need a program or a server.
        assert_eq!(num_built, RewardKind::NAMES.len() - 3);
    }
}
