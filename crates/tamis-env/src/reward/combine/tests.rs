use super::*;
use crate::reward::RewardOutcome::NoAnswer;
use crate::reward::after_think::AfterThink;
use crate::reward::math::Math;
use crate::reward::{RewardContext, RewardKind, test_prompt};
use proptest::prelude::*;
use tamis_data::prompt::Message;

/// A scored batch with the warnings about it.
#[derive(Debug)]
pub(crate) struct ScoredBatch {
    pub(crate) rows: Vec<Scored>,
    pub(crate) warnings: Vec<String>,
}

impl Rewards {
    /// Scores a whole batch, as a run does.
    pub(crate) fn score(&self, batch: &[RewardInput<'_>]) -> Result<ScoredBatch, RewardError> {
        let rows = self.answers(batch, self.trainer_state)?.rows;
        let warnings = self.warnings(&batch.iter().zip(&rows).collect::<Vec<_>>());
        Ok(ScoredBatch { rows, warnings })
    }
}

/// Returns fixed outcomes, whatever the input.
struct Says(Vec<RewardOutcome>);

impl RewardFunction for Says {
    fn score(&self, _batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.0.clone()
    }
}

fn named(name: &str, weight: f64, outcomes: &[RewardOutcome]) -> NamedReward {
    NamedReward { weight, ..NamedReward::verifier(name, Box::new(Says(outcomes.to_vec()))) }
}

fn shaping(name: &str, weight: f64, outcomes: &[RewardOutcome]) -> NamedReward {
    NamedReward { nature: Nature::SHAPING, ..named(name, weight, outcomes) }
}

fn score(value: f64) -> RewardOutcome {
    RewardOutcome::score(value)
}

fn scoring(functions: Vec<NamedReward>, num_tokens: usize) -> ScoredBatch {
    scoring_of(functions, num_tokens, None)
}

fn scoring_of(functions: Vec<NamedReward>, num_tokens: usize, messages: Option<&[Message]>) -> ScoredBatch {
    let prompt = test_prompt("1");
    let ids = vec![0; num_tokens];
    let rewards = Rewards::new(functions).unwrap();
    let num = rewards.functions()[0].function.score(&[]).len();
    let input = RewardInput { completion_ids: &ids, messages, ..RewardInput::text(&prompt, "a\nb") };
    rewards.score(&vec![input; num]).unwrap()
}

/// `name=value` of all scores, then the reward.
fn row(scored: &Scored) -> String {
    let scores: Vec<String> =
        scored.scores.iter().map(|(name, score)| format!("{name}={}", score.value)).collect();
    format!("{} -> {}", scores.join(" "), scored.reward.value)
}

#[test]
fn sums_by_hand() {
    let scoring = scoring(
        vec![
            named("right", 2.0, &[RewardOutcome::verified(-1.0, false), NoAnswer, NoAnswer]),
            named(
                "other",
                1.0,
                &[RewardOutcome::verified(0.5, true), RewardOutcome::verified(1.0, true), NoAnswer],
            ),
            shaping("short", 0.5, &[score(-1.0), score(-0.5), NoAnswer]),
        ],
        2,
    );
    let rows: Vec<String> = scoring.rows.iter().map(row).collect();
    insta::assert_snapshot!(rows.join("\n"), @r"
acc=0 other=0.5 other.acc=1 right=-1 score=-1.5 short=-1 -> -2
acc=1 other=1 right=NaN score=1 short=-0.5 -> 0.75
other=NaN right=NaN score=NaN short=NaN -> NaN
");
    insta::assert_snapshot!(scoring.warnings.join("\n"), @r"
no reward function answered 1 of 3 completions; they stay unscored; the first:
  prompt 0: `1?`
  completion: `a\nb`
  ground truth: `1`, data source: `test`
");
    let totals = totals(&scoring.rows);
    assert_eq!(totals["other"], (1.5, 2));
    assert_eq!(totals["short"], (-1.5, 2));
    assert!(!totals.contains_key("reward"));
}

#[test]
fn shaping_alone_is_the_raw_outcome_only_where_there_is_nothing_else() {
    let alone = scoring(vec![shaping("short", 0.5, &[score(-1.0)])], 0);
    assert_eq!(row(&alone.rows[0]), "score=-0.5 short=-1 -> -0.5");
    let shaped = scoring(vec![named("right", 1.0, &[NoAnswer]), shaping("short", 0.5, &[score(-1.0)])], 0);
    assert_eq!(row(&shaped.rows[0]), "right=NaN score=NaN short=-1 -> -0.5");
}

#[test]
fn what_weighs_nothing_is_no_reward() {
    let judged = |answer: RewardOutcome| {
        let measured = named("length", 0.0, &[score(12.0)]);
        scoring(vec![measured, named("judge", 1.0, &[answer])], 0)
    };
    let unanswered = judged(NoAnswer);
    assert_eq!(row(&unanswered.rows[0]), "judge=NaN length=12 score=NaN -> NaN");
    assert_eq!(unanswered.warnings.len(), 1, "{:?}", unanswered.warnings);
    // A failure is reported once, and there is no message about a missing sum.
    let failed = judged(RewardOutcome::Failed(RewardFailure::Function { message: "no good".to_owned() }));
    assert_eq!(row(&failed.rows[0]), "judge=NaN length=12 score=NaN -> NaN");
    assert_eq!(failed.warnings.len(), 1, "{:?}", failed.warnings);
    assert!(failed.warnings[0].contains("the first: the function failed: no good"), "{:?}", failed.warnings);
    assert_eq!(row(&judged(score(-3.0)).rows[0]), "judge=-3 length=12 score=-3 -> -3");
    // If all weights are 0, the reward is 0, and the scores are still there.
    let all = scoring(vec![named("length", 0.0, &[score(12.0)])], 0);
    assert_eq!(row(&all.rows[0]), "length=12 score=0 -> 0");
}

#[test]
fn finer_numbers_stay_with_their_functions() {
    let fine = |per_token: Option<Vec<f64>>, per_turn: Option<Vec<f64>>| {
        let value = per_token.as_ref().or(per_turn.as_ref()).map_or(1.0, |parts| parts.iter().sum());
        vec![RewardOutcome::Scored(Scores::from([(
            "score".to_owned(),
            Score { value, per_token, per_turn },
        )]))]
    };
    let message = |role: &str| Message::new(role, "x");
    let turns = ["assistant", "tool", "assistant"].map(message);
    let functions = vec![
        named("steps", 2.0, &fine(Some(vec![0.5, 0.0, -1.0]), None)),
        named("turns", 1.0, &fine(None, Some(vec![3.0, 4.0]))),
        named("whole", 10.0, &[score(1.0)]),
    ];
    let scoring = scoring_of(functions, 3, Some(&turns));
    let reward = &scoring.rows[0].reward;
    assert!((reward.value - (-1.0 + 7.0 + 10.0)).abs() < 1e-12);
    assert_eq!((&reward.per_token, &reward.per_turn), (&None, &None));
    let scores = &scoring.rows[0].scores;
    assert_eq!(scores["steps"].per_token.as_deref(), Some(&[0.5, 0.0, -1.0][..]));
    assert_eq!(scores["turns"].per_turn.as_deref(), Some(&[3.0, 4.0][..]));
}

/// The first line of the warning, without its completion.
fn first_line(scored: &ScoredBatch) -> &str {
    scored.warnings.first().and_then(|warning| warning.lines().next()).unwrap_or_default()
}

#[test]
fn broken_answers_are_failures() {
    let parts = |per_token: Vec<f64>| {
        RewardOutcome::Scored(Scores::from([(
            "score".to_owned(),
            Score { value: 1.0, per_token: Some(per_token), per_turn: None },
        )]))
    };
    let extra = |value: f64| {
        RewardOutcome::Scored(Scores::from([
            ("score".to_owned(), Score::of(1.0)),
            ("bonus".to_owned(), Score::of(value)),
        ]))
    };
    let say = |outcome: RewardOutcome| {
        let scoring = scoring(vec![named("f", 1.0, &[outcome])], 2);
        format!("{}\n{}", row(&scoring.rows[0]), first_line(&scoring))
    };
    insta::assert_snapshot!(say(score(f64::NAN)), @r"
f=NaN score=NaN -> NaN
no reward function answered 1 of 1 completions; they stay unscored; the first:
");
    insta::assert_snapshot!(say(score(f64::NEG_INFINITY)), @r"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` must be finite, got -inf
");
    let turns = Score { per_turn: Some(vec![0.5, 0.5]), ..Score::of(1.0) };
    insta::assert_snapshot!(say(RewardOutcome::Scored(Scores::from([("score".to_owned(), turns)]))), @r#"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` per turn: expected 1 numbers, one for each turn of the assistant in the completion, got 2
"#);
    insta::assert_snapshot!(say(extra(f64::INFINITY)), @r"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `bonus` must be finite, got inf
");
    insta::assert_snapshot!(say(score(-1e308)), @r#"
    f=NaN score=NaN -> NaN
    reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` must lie within plus and minus 1e100, got -1e308
    "#);
    insta::assert_snapshot!(say(parts(vec![1.0, 1.1e100])).lines().nth(1).unwrap(), @"reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` must lie within plus and minus 1e100, got 1.1e100");
    insta::assert_snapshot!(say(extra(f64::NAN)), @"f=1 score=1 -> 1");
    insta::assert_snapshot!(say(parts(vec![1.0])), @r"
f=NaN score=NaN -> NaN
reward function `f` failed on 1 of 1 completions and gives them no score; the first: score `score` per token: expected 2 numbers, one for each completion token, got 1
");
    insta::assert_snapshot!(say(parts(vec![1.0, f64::NAN])), @r"
f=NaN score=NaN -> NaN
no reward function answered 1 of 1 completions; they stay unscored; the first:
");
    let huge = |second: f64| {
        let functions =
            vec![named("f", 2.0, &[RewardOutcome::verified(1e100, true)]), named("g", 2.0, &[score(second)])];
        let scoring = scoring(functions, 0);
        format!("{}\n{}", row(&scoring.rows[0]).replace(&"0".repeat(92), "..."), first_line(&scoring))
    };
    insta::assert_snapshot!(huge(1e100), @r"
acc=1 f=1...00000000 g=1...00000000 score=NaN -> NaN
the weighted sum of the scores of 1 of 1 completions is beyond plus and minus 1e100; they stay unscored; the first:
");
    // Scores of opposite sign have a sum like any others.
    assert!(huge(-1e100).ends_with("score=0 -> 0\n"), "{}", huge(-1e100));
    let two = scoring(vec![named("f", 1.0, &[score(1.0), score(1.0)]), named("g", 1.0, &[score(1.0)])], 0);
    insta::assert_snapshot!(first_line(&two), @r"
reward function `g` failed on 2 of 2 completions and gives them no score; the first: answers: expected 2 for 2 completions, got 1
");
    let excerpted = excerpt(&"x".repeat(1000));
    assert_eq!(excerpted.chars().count(), EXCERPT_CHARS + 1);
}

/// As TRL shows it: the value that a function compares with may be in a column.
#[test]
fn the_columns_of_a_row_that_nobody_answered_are_shown() {
    let mut prompt = test_prompt("1");
    prompt.columns.insert("level".to_owned(), serde_json::json!({"of": [1, 2]}));
    prompt.columns.insert("solution".to_owned(), "long\n".repeat(100).into());
    let rewards = Rewards::new(vec![named("f", 1.0, &[NoAnswer])]).unwrap();
    let warned =
        |prompt: &Prompt| rewards.score(&[RewardInput::text(prompt, "a")]).unwrap().warnings.remove(0);
    let shown = warned(&prompt).replace(r"long\n", "L");
    assert!(
        shown.ends_with(&format!(
            "\n  column level: `{{\"of\":[1,2]}}`\n  column solution: `{}…`",
            "L".repeat(40)
        )),
        "{shown}"
    );
    prompt.columns.extend((0..100).map(|number| (format!("z{number}"), number.into())));
    assert!(warned(&prompt).ends_with(&format!("\n  and {} more columns", 102 - MAX_COLUMNS)));
}

#[test]
fn set_up_errors() {
    let error = |functions| Rewards::new(functions).err().unwrap().to_string();
    let of = |name: &str, weight| named(name, weight, &[]);
    insta::assert_snapshot!(error(vec![]), @"a run needs at least one reward function");
    insta::assert_snapshot!(error(vec![of("", 1.0)]), @"reward function name `` is empty");
    insta::assert_snapshot!(error(vec![of("acc", 1.0)]), @"reward function name `acc` is taken by a number that tamis computes; choose another");
    insta::assert_snapshot!(error(vec![of("a", 1.0), of("a", 1.0)]), @"reward function name `a` is used twice");
    insta::assert_snapshot!(error(vec![of("a", f64::INFINITY)]), @"weight of reward function `a` must be a finite number, got inf");
}

proptest! {
    #[test]
    fn the_reward_is_the_weighted_sum_of_what_was_answered(
        answers in proptest::collection::vec((proptest::option::of(-2.0f64..2.0), -3.0f64..3.0), 1..6),
    ) {
        let functions = answers.iter().enumerate().map(|(i, (score, weight))| {
            let outcome = score.map_or(NoAnswer, RewardOutcome::score);
            let kind = if i % 2 == 1 { shaping } else { named };
            kind(&format!("f{i}"), *weight, &[outcome])
        });
        let scoring = scoring(functions.collect(), 0);
        let answered: Vec<f64> = answers.iter().filter_map(|(score, weight)| Some((*score)? * weight)).collect();
        let reward = scoring.rows[0].reward.value;
        prop_assert_eq!(reward.is_nan(), answered.is_empty());
        prop_assert_eq!(scoring.warnings.is_empty(), !answered.is_empty());
        if !answered.is_empty() {
            prop_assert!((reward - answered.iter().sum::<f64>()).abs() < 1e-12);
        }
    }
}

#[test]
fn votes_are_answers() {
    let by_source = || RewardKind::of_name("by_source").expect("a kind");
    let cases: [(&str, &str, &[&str], &[&str]); 8] = [
        (
            "math",
            "",
            &["so \\boxed{0.5}", "\\boxed{\\frac12}", "\\boxed{2}", "none"],
            &["0.5", "0.5", "2", ""],
        ),
        ("gsm8k", "", &["so #### 7", "well #### 7", "#### 8", "9"], &["7", "7", "8", ""]),
        ("math_dapo", "", &["so Answer: 7", "Answer: $7$", "8"], &["7", "7", "[INVALID]"]),
        ("exact", "", &[" 7", "7", "so 7"], &["7", "7", "so 7"]),
        ("number", "", &[".5", "0.50", "so 7"], &["0.5", "0.5", ""]),
        ("by_source", "openai/gsm8k", &["so #### 7", "#### 7"], &["7", "7"]),
        ("by_source", "lighteval/MATH", &["\\boxed{7}", "\\boxed{x = 7}"], &["7", "7"]),
        ("after_think", "", &["<think>a</think>\\boxed{7}", "\\boxed{7}"], &["7", ""]),
    ];
    for (kind, source, completions, expected) in cases {
        let context = RewardContext::alone("r", 8);
        let function: Box<dyn RewardFunction> = match kind {
            "after_think" => Box::new(AfterThink::new(Box::new(Math {}))),
            "by_source" => by_source().build(&context).expect("built"),
            kind => RewardKind::of_name(kind).expect("a kind").build(&context).expect("built"),
        };
        let prompt = Prompt { data_source: source.to_owned(), ..test_prompt("7") };
        let batch: Vec<RewardInput<'_>> =
            completions.iter().map(|completion| RewardInput::text(&prompt, completion)).collect();
        let votes = function.votes(&batch);
        assert_eq!(
            votes.as_deref(),
            Some(expected.iter().map(|vote| (*vote).to_owned()).collect::<Vec<_>>().as_slice()),
            "{kind}"
        );
    }
}

/// Returns only scores.
struct Outside;

impl RewardFunction for Outside {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        vec![score(1.0); batch.len()]
    }
}

#[test]
fn a_function_from_outside_votes_with_its_pred() {
    let outside =
        || NamedReward { nature: Nature::EXTERNAL, ..NamedReward::verifier("mine", Box::new(Outside)) };
    let prompt = test_prompt("7");
    let batch = [RewardInput::text(&prompt, "#### 7"), RewardInput::text(&prompt, "#### 8")];
    let preds = [Some("seven".to_owned()), None];
    let gsm8k =
        || RewardKind::of_name("gsm8k").expect("a kind").build(&RewardContext::alone("r", 8)).expect("built");
    let both = Rewards::new(vec![outside(), NamedReward::verifier("gsm8k", gsm8k())]).expect("functions");
    assert_eq!(both.votes(&batch, &preds), Some(vec!["seven".to_owned(), String::new()]));
    assert_eq!(both.votes(&batch, &[None, None]), Some(vec!["7".to_owned(), "8".to_owned()]));
    let other = Rewards::new(vec![NamedReward::verifier("gsm8k", gsm8k()), outside()]).expect("functions");
    assert_eq!(other.votes(&batch, &preds), Some(vec!["7".to_owned(), "8".to_owned()]));
    let alone = Rewards::new(vec![outside()]).expect("a function");
    assert_eq!(alone.votes(&batch, &[None, None]), None, "no answer was read");
}
