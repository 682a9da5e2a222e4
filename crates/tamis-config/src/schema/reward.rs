//! `reward`: the functions that score completions.

use std::path::PathBuf;
use std::time::Duration;

use crate::define::{choice, section, tagged};
use crate::reader::Reader;
use crate::setting::Setting;
use crate::tree::{MapEntry, Node, Value, join};
use crate::value::{FreeMap, Program};
use tamis_core::setting::{Check, KeySpec, Resume, Shape};

choice! {
    /// How a GSM8K answer is found in a completion.
    pub enum Gsm8kMethod {
        /// The last `#### number`.
        Strict = "strict",
        /// The last number.
        Flexible = "flexible",
    }
}

choice! {
    /// The form of the soft overlong punishment.
    pub enum OverlongForm {
        /// As in the paper and TRL: 0 up to `max_length - buffer`, then falling to -1, and -1 beyond
        /// `max_length`.
        Bounded = "bounded",
        /// As in verl: the same line, continued below -1 beyond `max_length`.
        Verl = "verl",
    }
}

choice! {
    /// Whose calling convention a Python reward function has.
    pub enum PythonStyle {
        /// verl: `compute_score(data_source, solution_str, ground_truth, extra_info)`, one completion a call.
        Verl = "verl",
        /// TRL: `f(prompts, completions, completion_ids, **columns)`, a batch a call.
        Trl = "trl",
        /// EasyR1: `compute_score([{response, response_length, ground_truth}])`, a batch a call, or one where
        /// the file says `REWARD_TYPE = "sequential"`; `overall` is the score.
        EasyR1 = "easyr1",
        /// As `easyr1`, one completion a call where the file does not say otherwise (EasyR1's
        /// `reward_type: sequential`).
        EasyR1Sequential = "easyr1_sequential",
    }
}

tagged! {
    /// What a reward function computes, with its parameters.
    pub enum RewardKind {
        /// 1 where the completion, trimmed, is the ground truth, else 0.
        Exact = "exact" {}
        /// 1 where the whole completion is one number that equals the ground truth (`.5` = `0.50`), else 0.
        Number = "number" {}
        /// verl's GSM8K verifier: 1 or 0.
        Gsm8k = "gsm8k" {
            /// How the answer is found.
            method: Gsm8kMethod = "strict", Any, Fixed;
            /// The score of a wrong answer in the right format.
            format_score: f64 = "0.0", Any, Fixed;
        }
        /// The last `\boxed{}` compared by exact arithmetic: numbers, fractions, percentages, simple LaTeX. 1
        /// or 0.
        Math = "math" {}
        /// DAPO's verifier (`Answer: ...` in the last 300 characters): 1 or -1, with `acc` 1 or 0 beside it.
        MathDapo = "math_dapo" {}
        /// The verifier of each row by its `data_source`, as verl routes it: `openai/gsm8k` → `gsm8k`;
        /// `lighteval/MATH`, `DigitalLearningGmbH/MATH-lighteval`, `HuggingFaceH4/MATH-500`, `numina_*` →
        /// `math`; `math`, `math_dapo`, `math_dapo_reasoning`, `aime*` → `math_dapo`. A source without a
        /// verifier is refused before anything is generated.
        BySource = "by_source" {
            /// Verifiers by data source, before the table and beyond it:
            /// `my/source: {kind: gsm8k, method: flexible}`, or the kind alone (`my/source: math`). `"*"` is
            /// for sources that nobody names and for rows without one.
            sources: SourceRewards = "{}", Any, Fixed;
        }
        /// 1 where a regular expression matches the whole completion, else 0.
        Format = "format" {
            /// The regular expression; `.` matches a line break too.
            pattern: String = "''", NotEmpty, Fixed;
        }
        /// TRL's think format: 1 for one `<think>...</think>` block followed by an answer, else 0.
        ThinkFormat = "think_format" {}
        /// 0 for completions of `min_length` to `max_length` tokens, falling outside to -1 at a distance of
        /// `scale` tokens.
        Length = "length" {
            /// Shortest length without punishment, in tokens.
            min_length: usize = "0", Any, Fixed;
            /// Longest length without punishment, in tokens. Null: `rollout.max_response_length`.
            max_length: Option<usize> = "null", AtLeast(1.0), Fixed;
            /// Tokens outside the range at which the full punishment is reached.
            scale: usize = "1", AtLeast(1.0), Fixed;
        }
        /// The cosine schedule over length of Yeo et al. (2502.03373), as TRL has it: short right answers
        /// score most, short wrong answers least.
        Cosine = "cosine" {
            /// The score of a wrong answer of no length.
            min_value_wrong: f64 = "-1.0", Any, Fixed;
            /// The score of a wrong answer at full length.
            max_value_wrong: f64 = "-0.5", Any, Fixed;
            /// The score of a right answer at full length.
            min_value_correct: f64 = "0.5", Any, Fixed;
            /// The score of a right answer of no length.
            max_value_correct: f64 = "1.0", Any, Fixed;
            /// The full length. Null: `rollout.max_response_length`.
            max_length: Option<usize> = "null", AtLeast(1.0), Fixed;
        }
        /// The share of repeated n-grams times `max_penalty` (Yeo et al., as TRL has it).
        Repetition = "repetition" {
            /// Tokens of an n-gram.
            ngram_size: usize = "3", AtLeast(1.0), Fixed;
            /// The score where everything repeats; not above 0.
            max_penalty: f64 = "-1.0", Any, Fixed;
        }
        /// DAPO's soft overlong punishment: 0 up to `max_length - buffer` tokens, then falling in a line.
        SoftOverlong = "soft_overlong" {
            /// How the punishment continues beyond `max_length`.
            form: OverlongForm = "bounded", Any, Fixed;
            /// Tokens before `max_length` over which the punishment grows. Null: a fifth of `max_length`.
            buffer: Option<usize> = "null", AtLeast(1.0), Fixed;
            /// The limit. Null: `rollout.max_response_length`.
            max_length: Option<usize> = "null", AtLeast(1.0), Fixed;
            /// Punishment at `max_length`.
            penalty_factor: f64 = "1.0", NonNegative, Fixed;
        }
        /// A program that speaks JSON lines.
        Command = "command" {
            /// The program and its arguments.
            argv: Vec<String> = "[]", NotEmpty, Fixed;
            /// Working directory of the program, from which relative paths in `argv` are taken. Null: the
            /// folder of the configuration file that holds `argv`, or the current one for the command line.
            working_dir: Option<PathBuf> = "null", NotEmpty, Free;
            /// Processes kept running.
            num_processes: usize = "2", Between(1.0, 1024.0), Free;
            /// How long an answer may take.
            timeout: Duration = "30s", Any, Free;
            /// Added to `timeout` for the first answer of a fresh process (imports, a model to load).
            startup_timeout: Duration = "60s", Any, Free;
            /// Restarts of crashed or late processes in a run, at most.
            max_restarts: usize = "10", Any, Free;
        }
        /// A language model at a server with OpenAI's chat interface (`/v1/chat/completions`): it is told of
        /// each completion, and its score is found in what it answers.
        Judge = "judge" {
            /// Addresses of servers, `http://HOST:PORT` or `https://HOST`; they are asked in turn.
            servers: Vec<String> = "[]", Any, Free;
            /// Name of the judge's model at the servers. Null: the first that a server has.
            model: Option<String> = "null", NotEmpty, Fixed;
            /// Message to the judge: a text in which `{prompt}`, `{completion}`, `{ground_truth}`,
            /// `{data_source}` and `{COLUMN}` of the data are filled in.
            prompt: String = "''", NotEmpty, Fixed;
            /// System message to the judge. Null: none.
            system: Option<String> = "null", NotEmpty, Fixed;
            /// Regular expression that finds the score in the judge's answer: the first group of the last
            /// match, or the whole match. By default the last number.
            pattern: String = "'-?[0-9]+(?:\\.[0-9]+)?'", NotEmpty, Fixed;
            /// Scores of verdicts in words: `{yes: 1, no: 0}`. Case is ignored.
            verdicts: FreeMap = "{}", Any, Fixed;
            /// Smallest number that is a score. Null: any.
            min_score: Option<f64> = "null", Any, Fixed;
            /// Largest number that is a score. Null: any.
            max_score: Option<f64> = "null", Any, Fixed;
            /// Score from which on a completion is right (`acc`). Null: the judge gives no `acc`.
            pass_score: Option<f64> = "null", Any, Fixed;
            /// Sampling temperature of the judge.
            temperature: f64 = "0.0", NonNegative, Fixed;
            /// Longest answer, in tokens.
            max_tokens: usize = "1024", AtLeast(1.0), Fixed;
            /// Further parameters of the request by the server's names; null leaves one of ours out
            /// (`{max_tokens: null, max_completion_tokens: 1024}`).
            parameters: FreeMap = "{}", Any, Fixed;
            /// Environment variable with the servers' key.
            api_key_env: Option<String> = "null", NotEmpty, Free;
            /// Longest time of one answer.
            timeout: Duration = "120s", Any, Free;
            /// Most attempts for one completion where servers are busy or do not answer.
            max_attempts: usize = "5", Between(1.0, 100.0), Free;
            /// Completions judged at once.
            concurrency: usize = "16", Between(1.0, 1024.0), Free;
            /// How long servers may take to answer at the start of a run.
            startup_timeout: Duration = "60s", Any, Free;
        }
        /// A Python function, run unchanged in processes of their own.
        Python = "python" {
            /// Python file with the function.
            path: PathBuf = "''", NotEmpty, Fixed;
            /// The function's name.
            function: String = "compute_score", NotEmpty, Fixed;
            /// Calling convention of the function. Null: the only one that its parameters fit, `verl` where
            /// several do. A function that does not fit is refused before anything is generated.
            style: Option<PythonStyle> = "null", Any, Fixed;
            /// Further keyword arguments of every call.
            kwargs: FreeMap = "{}", Any, Fixed;
            /// Python interpreter.
            python: Program = "python3", NotEmpty, Free;
            /// Processes kept running.
            num_processes: usize = "2", Between(1.0, 1024.0), Free;
            /// How long an answer may take.
            timeout: Duration = "30s", Any, Free;
            /// Added to `timeout` for the first answer of a fresh process (imports, a model to load).
            startup_timeout: Duration = "60s", Any, Free;
            /// Restarts of crashed or late processes in a run, at most.
            max_restarts: usize = "10", Any, Free;
        }
    }
}

/// The raw outcome of a verifier: right (1) or wrong (0), whatever its score and its name.
pub(crate) const RAW_OUTCOME: &str = "acc";

/// The kinds that say whether an answer is right. Of external functions it is not known: they count as
/// verifiers.
const VERIFIERS: [&str; 9] =
    ["exact", "number", "gsm8k", "math", "math_dapo", "by_source", "command", "python", "judge"];

impl RewardKind {
    /// Whether the function says if an answer is right, so that its score is a raw outcome (`acc`) and not a
    /// shaping term.
    pub fn is_verifier(&self) -> bool {
        Self::is_verifier_name(self.as_str())
    }

    pub(crate) fn is_verifier_name(kind: &str) -> bool {
        VERIFIERS.contains(&kind)
    }

    /// Whether the scores come from a program of the user, whose names are not known before it answers.
    pub fn is_external(&self) -> bool {
        match self {
            Self::Command { .. } | Self::Python { .. } | Self::Judge { .. } => true,
            Self::BySource { sources } => sources.0.iter().any(|(_, kind)| kind.is_external()),
            _ => false,
        }
    }
}

/// Verifiers by data source: each a section with a `kind`, or the name of a kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceRewards(pub Vec<(String, RewardKind)>);

impl Setting for SourceRewards {
    fn shape() -> Shape {
        Shape::Named(Box::new(Shape::Tagged {
            doc: "A verifier.",
            common: Vec::new(),
            variants: RewardKind::variants(),
            default: None,
        }))
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        if !matches!(node.value, Value::Map(_)) && !node.is_null() {
            reader.wrong_type(node, path, &Self::shape());
            return None;
        }
        // A table in a table would say nothing more.
        let is_allowed = |name: &str| VERIFIERS.contains(&name) && name != "by_source";
        let variants =
            RewardKind::variants().into_iter().filter(|variant| is_allowed(variant.name)).collect();
        let shape = Shape::Tagged { doc: "A verifier.", common: Vec::new(), variants, default: None };
        let mut all = Some(Vec::new());
        for entry in node.entries() {
            let path = join(path, &entry.key);
            let named = match &entry.node.value {
                Value::Scalar { .. } if !entry.node.is_null() => Node {
                    value: Value::Map(vec![MapEntry {
                        key: "kind".to_owned(),
                        origin: entry.origin.clone(),
                        node: entry.node.clone(),
                    }]),
                    origin: entry.node.origin.clone(),
                },
                _ => entry.node.clone(),
            };
            let kind = reader
                .open_kind(&named, &path, &shape)
                .and_then(|variant| RewardKind::read_kind(variant.name, &named, &path, reader));
            // What is wrong with the others is reported too.
            match (&mut all, kind) {
                (Some(all), Some(kind)) => all.push((entry.key.clone(), kind)),
                _ => all = None,
            }
        }
        all.map(Self)
    }

    fn to_json(&self) -> serde_json::Value {
        let section = |kind: &RewardKind| {
            let mut object = serde_json::Map::new();
            object.insert("kind".to_owned(), serde_json::Value::String(kind.as_str().to_owned()));
            object.extend(kind.parameters().into_iter().map(|(name, value)| (name.to_owned(), value)));
            serde_json::Value::Object(object)
        };
        self.0.iter().map(|(source, kind)| (source.clone(), section(kind))).collect()
    }
}

section! {
    /// The keys that every reward function has.
    pub struct RewardCommon {
        /// Name of this score; null: the kind. `acc` is reserved for the 0/1 outcome of the first verifier.
        name: Option<String> = "null", NotEmpty, Fixed;
        /// Weight of this score in the reward. 0: measured, not trained on.
        weight: f64 = "1.0", Any, Fixed;
    }
}

/// One reward function: its name, its weight in the sum, and what it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardConfig {
    /// Name of the score; unique in the list.
    pub name: String,
    /// Weight of this score in the reward. 0: measured, not trained on.
    pub weight: f64,
    /// Which reward function, with its parameters.
    pub kind: RewardKind,
}

impl serde::Serialize for RewardConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl RewardConfig {
    fn common() -> Vec<KeySpec> {
        match RewardCommon::shape() {
            Shape::Section { keys, .. } => keys,
            _ => Vec::new(),
        }
    }
}

impl Setting for RewardConfig {
    fn shape() -> Shape {
        let mut common = Self::common();
        common.insert(
            1,
            KeySpec {
                name: "kind",
                doc: "Which reward function. Each kind has keys of its own.",
                default: "".into(),
                check: Check::Any,
                resume: Resume::Fixed,
                shape: || Shape::Text("name of a kind"),
            },
        );
        Shape::Tagged { doc: "One reward function.", common, variants: RewardKind::variants(), default: None }
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let shape = Self::shape();
        let variant = reader.open_kind(node, path, &shape)?;
        let name = reader.key::<Option<String>>(node, path, "name", "null", Check::NotEmpty);
        let weight = reader.key::<f64>(node, path, "weight", "1.0", Check::Any);
        let kind = RewardKind::read_kind(variant.name, node, path, reader)?;
        let name = name?.filter(|name| name != RAW_OUTCOME).unwrap_or_else(|| kind.as_str().to_owned());
        Some(Self { name, weight: weight?, kind })
    }

    fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::Map::new();
        object.insert("name".to_owned(), self.name.to_json());
        object.insert("kind".to_owned(), serde_json::Value::String(self.kind.as_str().to_owned()));
        object.insert("weight".to_owned(), self.weight.to_json());
        for (name, value) in self.kind.parameters() {
            object.insert(name.to_owned(), value);
        }
        serde_json::Value::Object(object)
    }
}
