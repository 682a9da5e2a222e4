//! Rewards: functions that turn completions into named scores, and their weighted sum.
//!
//! A [`RewardFunction`] answers each completion of a batch with a [`RewardOutcome`]: named scores, no answer,
//! or a failure. [`Rewards`] holds the functions of a run under names and weights and combines their outcomes
//! into one [`Scored`] per completion; [`gold`] asks every function, before anything is generated, whether it
//! accepts the dataset's own answers.
//!
//! Verifiers answer `score` (which is trained on) and `acc` (1 correct, 0 wrong), so a filter can judge by
//! correctness while the trained reward is shaped. Functions that do not measure correctness (length, format,
//! repetition, ...) are [`Nature::SHAPING`].
//!
//! Each file of this folder is one reward: its keys ([`tamis_core::settings`]), how the function is built
//! from them ([`RewardSettings`]), and the function. Its `mod` line and its line of [`RewardKind`] register
//! it.

pub mod after_think;
pub mod as_written;
pub mod boxed;
pub mod by_source;
pub mod code;
pub mod combine;
pub mod command;
pub mod cosine;
pub mod environment;
mod error;
pub mod exact;
pub mod failure;
pub mod format;
mod function;
pub mod gold;
pub mod gsm8k;
pub mod judge;
mod judge_settings;
pub mod kind;
pub mod length;
pub mod listener;
pub mod math;
pub mod math_dapo;
pub mod math_verify;
pub mod model;
mod model_settings;
pub mod number;
pub mod repetition;
pub mod settings;
pub mod soft_overlong;
pub mod think_format;

pub use combine::{NamedReward, Rewards, Scored, Scoring};
pub use error::RewardError;
pub use failure::RewardFailure;
pub use function::{Logged, RewardFunction, RewardInput, RewardOutcome, Scores, TrainerState};
pub use listener::{Listener, Nobody};
pub use settings::{BuildError, Nature, RewardContext, RewardHost, RewardSettings};

tamis_core::tagged! {
    /// The reward function. Each kind has its own keys.
    pub enum RewardKind: RewardSettings {
        /// 1 if the trimmed completion is the ground truth, otherwise 0.
        Exact(exact::Exact) = "exact",
        /// 1 if the whole completion is one number that equals the ground truth (`.5` = `0.50`), otherwise 0.
        Number(number::Number) = "number",
        /// verl's GSM8K verifier: 1 or 0.
        Gsm8k(gsm8k::Gsm8k) = "gsm8k",
        /// The last `\boxed{}` compared by exact arithmetic: numbers, fractions, percentages, simple LaTeX. 1
        /// or 0.
        Math(math::Math) = "math",
        /// DAPO's verifier (`Answer: ...` in the last 300 characters): 1 or -1; `acc` is 1 or 0.
        MathDapo(math_dapo::MathDapo) = "math_dapo",
        /// The library math-verify, run in Python as in TRL's `accuracy_reward`: 1 or 0.
        MathVerify(math_verify::MathVerifySettings) = "math_verify",
        /// The verifier of each row by its `data_source`, as in verl: `openai/gsm8k` → `gsm8k`;
        /// `lighteval/MATH`, `DigitalLearningGmbH/MATH-lighteval`, `HuggingFaceH4/MATH-500`, `numina_*` →
        /// `math`; `math`, `math_dapo`, `math_dapo_reasoning`, `aime*` → `math_dapo`. A source without a
        /// verifier is refused before anything is generated.
        BySource(kind::BySourceSettings) = "by_source",
        /// The reward of the prompt's environment (`environment`): the sum over its turns, with the reward of
        /// each turn; `acc` is 1 if it is solved.
        Environment(environment::EnvironmentReward) = "environment",
        /// 1 if a regular expression matches the whole completion, otherwise 0.
        Format(format::FormatSettings) = "format",
        /// 1 for one `<think>...</think>` block followed by an answer, otherwise 0 (TRL's think format).
        ThinkFormat(think_format::ThinkFormat) = "think_format",
        /// 0 for completions of `min_length` to `max_length` tokens, falling outside to -1 at a distance of
        /// `scale` tokens.
        Length(length::LengthSettings) = "length",
        /// TRL's cosine schedule over length (Yeo et al., 2502.03373): short right answers score most, short
        /// wrong answers least.
        Cosine(cosine::CosineSettings) = "cosine",
        /// The share of repeated n-grams times `max_penalty` (Yeo et al., as in TRL).
        Repetition(repetition::Repetition) = "repetition",
        /// DAPO's soft penalty on overlong completions: 0 up to `max_length - buffer` tokens, then falling
        /// linearly.
        SoftOverlong(soft_overlong::SoftOverlongSettings) = "soft_overlong",
        /// Tests of the Python program in the completion, run in a sandbox: 1 if all pass, or the share that
        /// passes.
        Code(code::CodeSettings) = "code",
        /// A program that reads completions and writes scores, as JSON lines.
        Command(command::CommandSettings) = "command",
        /// A language model at a server with OpenAI's chat interface (`/v1/chat/completions`): it reads each
        /// completion, and its answer contains the score.
        Judge(judge::JudgeSettings) = "judge",
        /// A reward model: a transformer with a head for sequence classification. It reads prompt and
        /// completion, and its logit is the score. The run loads it in PyTorch, or servers serve it.
        Model(model::ModelSettings) = "model",
        /// A Python function, run unchanged in separate processes.
        Python(command::python::PythonSettings) = "python",
    }
}

#[cfg(test)]
mod tests;

/// Python programs are tested only if there is a Python.
#[cfg(test)]
fn has_python() -> bool {
    let found = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !found {
        println!("skipped: no python3");
    }
    found
}

/// A prompt with only a ground truth.
#[cfg(test)]
pub(crate) fn test_prompt(truth: &str) -> tamis_data::prompt::Prompt {
    tamis_data::prompt::Prompt {
        id: tamis_core::group::PromptId(0),
        content: tamis_data::prompt::PromptContent::Text(format!("{truth}?")),
        ground_truth: Some(truth.to_owned()),
        data_source: "test".to_owned(),
        columns: serde_json::Map::new(),
        images: Vec::new(),
        place: None,
    }
}
