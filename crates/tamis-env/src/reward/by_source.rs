//! `by_source`: the verifier of each row by its `data_source`, as in verl. Reference:
//! `verl.utils.reward_score.default_compute_score`, 0.9.1. The table is [`STANDARD`]. The user's entries
//! override it, and `*` is for sources that neither names. [`BySource::find_unrouted`] finds rows without a
//! verifier before a run; verl raises on the first of them. Its keys hold rewards of other kinds, so they are
//! defined with the list of kinds ([`super::kind`]).

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use tamis_data::prompt::Prompt;

use super::combine::excerpt;
use super::failure::RewardFailure;
use super::function::{Logged, RewardFunction, RewardInput, RewardOutcome};
use super::gsm8k::{Gsm8k, Gsm8kMethod};
use super::math::Math;
use super::math_dapo::MathDapo;
use super::settings::BuildError;

/// verl's treatment of a data source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standard {
    /// [`Gsm8k`], strict.
    Gsm8k,
    /// [`Math`]; verl compares normalised text (`math_reward`) or by sympy (`prime_math`).
    Math,
    /// [`MathDapo`].
    MathDapo,
    /// A data source that tamis has no verifier for, with the reason.
    Lacking(&'static str),
}

const CODE: &str = "its answers are programs: `{kind: code}` in `sources` tests them, in the sandbox";
const GEOMETRY: &str = "its questions hold images";
const SEARCH: &str = "its answers come out of a search engine, over several turns";

/// The data sources that verl knows. One that ends in `*` is a prefix.
pub const STANDARD: [(&str, Standard); 27] = [
    ("openai/gsm8k", Standard::Gsm8k),
    ("lighteval/MATH", Standard::Math),
    ("DigitalLearningGmbH/MATH-lighteval", Standard::Math),
    ("HuggingFaceH4/MATH-500", Standard::Math),
    ("math_dapo", Standard::MathDapo),
    ("math", Standard::MathDapo),
    ("math_dapo_reasoning", Standard::MathDapo),
    ("aime*", Standard::MathDapo),
    ("numina_aops_forum", Standard::Math),
    ("numina_synthetic_math", Standard::Math),
    ("numina_amc_aime", Standard::Math),
    ("numina_synthetic_amc", Standard::Math),
    ("numina_cn_k12", Standard::Math),
    ("numina_olympiads", Standard::Math),
    ("codecontests", Standard::Lacking(CODE)),
    ("apps", Standard::Lacking(CODE)),
    ("codeforces", Standard::Lacking(CODE)),
    ("taco", Standard::Lacking(CODE)),
    ("hiyouga/geometry3k", Standard::Lacking(GEOMETRY)),
    ("searchR1_nq", Standard::Lacking(SEARCH)),
    ("searchR1_triviaqa", Standard::Lacking(SEARCH)),
    ("searchR1_popqa", Standard::Lacking(SEARCH)),
    ("searchR1_hotpotqa", Standard::Lacking(SEARCH)),
    ("searchR1_2wikimultihopqa", Standard::Lacking(SEARCH)),
    ("searchR1_musique", Standard::Lacking(SEARCH)),
    ("searchR1_bamboogle", Standard::Lacking(SEARCH)),
    // A row without a data source.
    ("", Standard::Lacking("the rows have no data source")),
];

/// verl's treatment of a data source; `None` if verl does not know that name.
///
/// ```
/// use tamis_env::reward::by_source::{Standard, standard};
/// assert_eq!(standard("openai/gsm8k"), Some(Standard::Gsm8k));
/// assert_eq!(standard("aime_2024"), Some(Standard::MathDapo));
/// assert_eq!(standard("my/source"), None);
/// ```
pub fn standard(source: &str) -> Option<Standard> {
    let is_named =
        |name: &str| name.strip_suffix('*').map_or(source == name, |start| source.starts_with(start));
    STANDARD.iter().find(|(name, _)| is_named(name)).map(|(_, standard)| *standard)
}

/// The user's name for the verifier of all sources that are not named.
pub const ANY: &str = "*";

/// Error for data sources without a verifier; it names the first.
pub(super) fn refuse_unrouted(name: &str, unrouted: &[Unrouted]) -> BuildError {
    const SHOWN: usize = 10;
    let mut message = format!("reward `{name}` has no verifier for some of the rows:");
    for source in unrouted.iter().take(SHOWN) {
        let _ = write!(message, "\n  {source}");
    }
    if unrouted.len() > SHOWN {
        let _ = write!(message, "\n  and {} more data sources", unrouted.len() - SHOWN);
    }
    let source = unrouted.iter().find(|unrouted| !unrouted.source.is_empty());
    let source = source.map_or("\"*\"", |unrouted| &unrouted.source);
    let hint = format!(
        "name one in its `sources`, such as `sources: {{{source}: {{kind: gsm8k, method: last_number}}}}`; \
         `\"*\"` there covers all other sources and rows without one (the column is data.columns.data_source)"
    );
    BuildError::Setting { message, hint }
}

/// Scores each completion with the verifier of its row's data source.
#[derive(Default)]
pub struct BySource {
    own: BTreeMap<String, Box<dyn RewardFunction>>,
}

/// Rows of a data source without a verifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrouted {
    /// The source; empty if the rows have none.
    pub source: String,
    /// Number of rows.
    pub num_rows: usize,
    /// Why there is none.
    pub reason: &'static str,
}

impl fmt::Display for Unrouted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, num_rows, reason } = self;
        let rows = if *num_rows == 1 { "row" } else { "rows" };
        if source.is_empty() {
            write!(f, "{num_rows} {rows} without a data source")
        } else {
            write!(f, "`{}`, {num_rows} {rows}: {reason}", excerpt(source))
        }
    }
}

impl BySource {
    /// The user's entries by data source, followed by verl's table; [`ANY`] is for every source that neither
    /// names, and for rows without one.
    pub fn new(own: impl IntoIterator<Item = (String, Box<dyn RewardFunction>)>) -> Self {
        Self { own: own.into_iter().collect() }
    }

    /// The name of the user's entry for a source; `None` if the table decides.
    fn entry(&self, source: &str) -> Option<&str> {
        let goes_to_any = match standard(source) {
            None => true,
            // `*` does not apply to sources that are known to need another verifier.
            Some(Standard::Lacking(_)) => source.is_empty(),
            Some(_) => false,
        };
        let named = self.own.get_key_value(source).filter(|_| source != ANY);
        let entry = named.or_else(|| self.own.get_key_value(ANY).filter(|_| goes_to_any));
        entry.map(|(name, _)| name.as_str())
    }

    /// The verifier of a source, or why there is none.
    fn route(&self, source: &str) -> Result<&dyn RewardFunction, &'static str> {
        static GSM8K: Gsm8k = Gsm8k { method: Gsm8kMethod::Strict, format_score: 0.0 };
        static MATH: Math = Math {};
        static MATH_DAPO: MathDapo = MathDapo {};
        if let Some(own) = self.entry(source).and_then(|entry| self.part(entry)) {
            return Ok(own);
        }
        match standard(source) {
            Some(Standard::Gsm8k) => Ok(&GSM8K),
            Some(Standard::Math) => Ok(&MATH),
            Some(Standard::MathDapo) => Ok(&MATH_DAPO),
            Some(Standard::Lacking(reason)) => Err(reason),
            None => Err("verl has no verifier for it, and `sources` names none"),
        }
    }

    /// The sources of these rows that have no verifier, in order of their names.
    pub fn find_unrouted<'p>(&self, prompts: impl IntoIterator<Item = &'p Prompt>) -> Vec<Unrouted> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for prompt in prompts {
            *counts.entry(&prompt.data_source).or_default() += 1;
        }
        let unrouted = |(source, num_rows): (&str, usize)| {
            let reason = self.route(source).err()?;
            Some(Unrouted { source: source.to_owned(), num_rows, reason })
        };
        counts.into_iter().filter_map(unrouted).collect()
    }
}

impl RewardFunction for BySource {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.score_logged(batch).0
    }

    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        let mut rows_of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (row, input) in batch.iter().enumerate() {
            rows_of.entry(&input.prompt.data_source).or_default().push(row);
        }
        let mut outcomes = vec![RewardOutcome::NoAnswer; batch.len()];
        let mut logged = vec![Logged::default(); batch.len()];
        for (source, rows) in rows_of {
            let (answers, logs) = match self.route(source) {
                Ok(function) => {
                    let inputs: Vec<RewardInput<'_>> = rows.iter().map(|&row| batch[row]).collect();
                    function.score_logged(&inputs)
                }
                Err(reason) => {
                    let message = format!("data source `{}` has no verifier: {reason}", excerpt(source));
                    (vec![RewardOutcome::Failed(RewardFailure::Function { message }); rows.len()], Vec::new())
                }
            };
            for (&row, answer) in rows.iter().zip(answers) {
                outcomes[row] = answer;
            }
            for (&row, log) in rows.iter().zip(logs) {
                logged[row] = log;
            }
        }
        (outcomes, logged)
    }

    fn batch_size(&self) -> usize {
        // Each gets its own rows of a batch.
        if self.own.values().any(|own| own.batch_size() > 1) { usize::MAX } else { 1 }
    }

    fn concurrency(&self) -> usize {
        self.own.values().map(|own| own.concurrency()).max().unwrap_or(1)
    }

    fn how_to_give_acc(&self) -> Option<&'static str> {
        self.own.values().find_map(|own| own.how_to_give_acc())
    }

    fn part_of(&self, prompt: &Prompt) -> Option<&str> {
        self.entry(&prompt.data_source)
    }

    fn part(&self, name: &str) -> Option<&dyn RewardFunction> {
        self.own.get(name).map(|own| &**own)
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        self.route(&batch.first()?.prompt.data_source).ok()?.votes(batch)
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        self.route(&prompt.data_source)
            .map_or_else(|_| Vec::new(), |function| function.gold_completions(prompt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::number::Number;
    use crate::reward::test_prompt;

    fn prompt(source: &str, truth: &str) -> Prompt {
        Prompt { data_source: source.to_owned(), ..test_prompt(truth) }
    }

    fn own(source: &str) -> BySource {
        BySource::new([(source.to_owned(), Box::new(Number {}) as Box<dyn RewardFunction>)])
    }

    #[test]
    fn each_row_has_the_verifier_of_its_source() {
        let cases = [
            ("openai/gsm8k", "so #### 72", (1.0, 1.0)),
            ("openai/gsm8k", "\\boxed{72}", (0.0, 0.0)),
            ("HuggingFaceH4/MATH-500", "\\boxed{72}", (1.0, 1.0)),
            ("numina_olympiads", "\\boxed{144/2}", (1.0, 1.0)),
            ("aime_2025", "Answer: 72", (1.0, 1.0)),
            ("math_dapo", "#### 73", (-1.0, 0.0)),
            ("mine", "72.0", (1.0, 1.0)),
            ("mine", "#### 72", (0.0, 0.0)),
        ];
        let prompts: Vec<Prompt> = cases.iter().map(|(source, ..)| prompt(source, "72")).collect();
        let inputs: Vec<RewardInput<'_>> = prompts
            .iter()
            .zip(&cases)
            .map(|(prompt, (_, completion, _))| RewardInput::text(prompt, completion))
            .collect();
        let function = own("mine");
        for (outcome, (source, completion, (score, acc))) in function.score(&inputs).iter().zip(cases) {
            let found = (outcome.get("score"), outcome.get("acc"));
            assert_eq!(found, (Some(score), Some(acc)), "{source}: {completion}");
        }
        assert!(function.find_unrouted(&prompts).is_empty());
        assert_eq!(function.gold_completions(&prompts[2]), ["\\boxed{72}"]);
        let parts: Vec<Option<&str>> = prompts[5..].iter().map(|prompt| function.part_of(prompt)).collect();
        assert_eq!(parts, [None, Some("mine"), Some("mine")]);
        assert_eq!([own(ANY).part_of(&prompts[0]), own(ANY).part_of(&prompts[6])], [None, Some(ANY)]);
        // The user's entries override the table.
        let replaced = own("openai/gsm8k");
        assert_eq!(replaced.score(&inputs[..1])[0].get("acc"), Some(0.0));
    }

    /// Answers to MATH-500 that verl's comparison of texts judges otherwise; the page names them with verl's
    /// verdicts.
    #[test]
    fn texts_that_verl_judges_otherwise_are_on_the_page() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rewards.md")).unwrap();
        for (truth, answer, acc, of_verl) in [
            ("10,080", "10080", 1.0, "wrong"),
            (r"\frac{1}{2}", r"\frac{2}{4}", 1.0, "wrong"),
            (r"50\%", "50", 0.0, "right"),
        ] {
            let prompt = prompt("HuggingFaceH4/MATH-500", truth);
            let completion = format!(r"\boxed{{{answer}}}");
            let outcome = BySource::default().score(&[RewardInput::text(&prompt, &completion)]).remove(0);
            assert_eq!(outcome.get("acc"), Some(acc), "{truth} {answer}");
            let ours = if acc > 0.0 { "right" } else { "wrong" };
            let row = format!("| `{truth}` | `{answer}` | {of_verl} | {ours} |");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn sources_without_a_verifier_are_named_and_counted() {
        let sources = ["taco", "my/source", "", "taco", "openai/gsm8k"];
        let prompts: Vec<Prompt> = sources.iter().map(|source| prompt(source, "72")).collect();
        let found = |function: &BySource| -> String {
            let lines: Vec<String> =
                function.find_unrouted(&prompts).iter().map(Unrouted::to_string).collect();
            lines.join("\n")
        };
        insta::assert_snapshot!(found(&BySource::default()), @r"
        1 row without a data source
        `my/source`, 1 row: verl has no verifier for it, and `sources` names none
        `taco`, 2 rows: its answers are programs: `{kind: code}` in `sources` tests them, in the sandbox
        ");
        // `*` is for unnamed sources, not for those that are known to need another verifier.
        insta::assert_snapshot!(found(&own(ANY)), @"`taco`, 2 rows: its answers are programs: `{kind: code}` in `sources` tests them, in the sandbox");
        assert_eq!(found(&own("taco")).lines().count(), 2);
        let input = RewardInput::text(&prompts[0], "print()");
        assert!(matches!(BySource::default().score(&[input])[0], RewardOutcome::Failed(_)));
    }
}
