//! The rewards by name, as a configuration chooses them: one line registers one.
//!
//! The keys of `by_source` stand here too, since they hold rewards of other kinds.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as Json};
use tamis_core::setting::{Described, ModelPlace, Shape};

use super::by_source::{BySource, refuse_unrouted};
use super::code::CodeSettings;
use super::command::CommandSettings;
use super::command::python::PythonSettings;
use super::cosine::CosineSettings;
use super::environment::EnvironmentReward;
use super::exact::Exact;
use super::format::FormatSettings;
use super::function::RewardFunction;
use super::gsm8k::Gsm8k;
use super::judge::JudgeSettings;
use super::length::LengthSettings;
use super::math::Math;
use super::math_dapo::MathDapo;
use super::math_verify::MathVerifySettings;
use super::model::ModelSettings;
use super::number::Number;
use super::repetition::Repetition;
use super::settings::{BuildError, Conflict, RewardContext, RewardFile, RewardSettings};
use super::soft_overlong::SoftOverlongSettings;
use super::think_format::ThinkFormat;

tamis_core::tagged! {
    /// The reward function. Each kind has keys of its own.
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
        /// The library math-verify, run in Python as TRL's `accuracy_reward` runs it: 1 or 0.
        MathVerify(MathVerifySettings) = "math_verify",
        /// The verifier of each row by its `data_source`, as verl routes it: `openai/gsm8k` → `gsm8k`;
        /// `lighteval/MATH`, `DigitalLearningGmbH/MATH-lighteval`, `HuggingFaceH4/MATH-500`, `numina_*` →
        /// `math`; `math`, `math_dapo`, `math_dapo_reasoning`, `aime*` → `math_dapo`. A source without a
        /// verifier is refused before anything is generated.
        BySource(BySourceSettings) = "by_source",
        /// What the prompt's environment gave (`environment`): the sum over the turns, each turn's as its part, with
        /// `acc` 1 where it is solved.
        Environment(EnvironmentReward) = "environment",
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
        /// Tests of the Python program in the completion, run in a sandbox: 1 where all pass, or the share that
        /// passes.
        Code(CodeSettings) = "code",
        /// A program that reads completions and writes scores, as JSON lines.
        Command(CommandSettings) = "command",
        /// A language model at a server with OpenAI's chat interface (`/v1/chat/completions`): it is shown
        /// each completion, and its score is found in what it answers.
        Judge(JudgeSettings) = "judge",
        /// A reward model: a transformer with a head for sequence classification, which reads prompt and
        /// completion and whose logit is the score. The run loads it in PyTorch, or servers have it.
        Model(ModelSettings) = "model",
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

tamis_core::settings! {
    /// The verifiers of [`BySource`] that are named beside the table.
    pub struct BySourceSettings {
        /// Verifiers by data source, which go before the built-in table:
        /// `my/source: {kind: gsm8k, method: last_number}`, or the kind alone (`my/source: math`). `"*"` is for
        /// sources that nobody names and for rows without one.
        sources: SourceVerifiers = SourceVerifiers::default();
    }
}

/// Verifiers by data source, in the order in which they were named.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceVerifiers(pub Vec<(String, RewardKind)>);

impl Serialize for SourceVerifiers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(source, kind)| (source, kind)))
    }
}

impl<'de> Deserialize<'de> for SourceVerifiers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sources = Map::<String, Json>::deserialize(deserializer)?;
        let read = |(source, kind)| Ok((source, serde_json::from_value(kind).map_err(D::Error::custom)?));
        sources.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl Described for SourceVerifiers {
    fn shape() -> Shape {
        let mut shape = RewardKind::shape();
        if let Shape::Tagged { doc, variants, .. } = &mut shape {
            *doc = "A verifier.";
            // A table in a table would say nothing more.
            let is_verifier = |name: &str| RewardKind::of_name(name).is_some_and(|kind| kind.is_verifier());
            variants.retain(|variant| variant.name != "by_source" && is_verifier(variant.name));
        }
        Shape::Named(Box::new(shape))
    }
}

impl RewardSettings for BySourceSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let mut own = Vec::with_capacity(self.sources.0.len());
        for (source, kind) in &self.sources.0 {
            let function = kind.build(&context.with_name(&format!("{}.{source}", context.name)))?;
            own.push((source.clone(), function));
        }
        let function = BySource::new(own);
        let unrouted = function.find_unrouted(context.prompts());
        if !unrouted.is_empty() {
            return Err(refuse_unrouted(context.name, &unrouted));
        }
        Ok(Box::new(function))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn is_external(&self) -> bool {
        self.sources.0.iter().any(|(_, kind)| kind.is_external())
    }

    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        self.sources.0.iter().try_for_each(|(source, kind)| {
            kind.check(&context.with_name(&format!("{}.{source}", context.name)))
        })
    }

    fn conflicts(&self, path: &str, limit: usize) -> Vec<Conflict> {
        let of = |(source, kind): &(String, RewardKind)| {
            kind.conflicts(&format!("{path}.sources.{source}"), limit)
        };
        self.sources.0.iter().flat_map(of).collect()
    }

    fn fill_lengths(&mut self, limit: usize) {
        for (_, kind) in &mut self.sources.0 {
            kind.fill_lengths(limit);
        }
    }

    fn files(&self) -> Vec<RewardFile> {
        let mut files = Vec::new();
        for (source, kind) in &self.sources.0 {
            let within =
                |file: RewardFile| RewardFile { key: format!("sources.{source}.{}", file.key), ..file };
            files.extend(kind.files().into_iter().map(within));
        }
        files
    }

    fn models(&mut self) -> Vec<(String, &mut ModelPlace)> {
        let mut models = Vec::new();
        for (source, kind) in &mut self.sources.0 {
            let within = |(key, place)| (format!("sources.{source}.{key}"), place);
            models.extend(kind.models().into_iter().map(within));
        }
        models
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let exact = Exact {};
        let verifier: (&str, &dyn RewardSettings) = ("exact", &exact);
        let context = RewardContext { verifier: Some(verifier), ..RewardContext::alone("r", 8) };
        let mut num_built = 0;
        // `code` can be built where there is a Python.
        let names = RewardKind::NAMES.iter().filter(|name| **name != "code");
        for kind in names.filter_map(|name| RewardKind::of_name(name)) {
            if let Ok(function) = kind.build(&context) {
                assert_eq!(function.is_shaping(), !kind.is_verifier(), "{kind}");
                num_built += 1;
            }
        }
        // All but those that need a program or a server.
        assert_eq!(num_built, RewardKind::NAMES.len() - 6);
    }
}
