use super::rivals::NUM_RIVALS;
use super::*;
use crate::reward::by_source::BySource;
use crate::reward::exact::Exact;
use crate::reward::gsm8k::{Gsm8k, Gsm8kMethod};
use crate::reward::length::Length;
use crate::reward::math::Math;
use crate::reward::math_dapo::MathDapo;
use crate::reward::number::Number;
use crate::reward::{Nature, RewardFailure, RewardFunction, test_prompt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tamis_core::group::Score;

fn rewards(functions: Vec<(&str, Box<dyn RewardFunction>)>) -> Rewards {
    let named = functions.into_iter().map(|(name, function)| NamedReward::verifier(name, function));
    Rewards::new(named.collect()).unwrap()
}

/// The report on one function.
fn checked(name: &str, prompts: &[Prompt], function: impl RewardFunction + 'static) -> GoldReport {
    check_gold(prompts, &rewards(vec![(name, Box::new(function))])).unwrap()
}

/// A completion and its ground truth are judged.
type Judge = dyn Fn(&RewardInput<'_>, &str) -> RewardOutcome + Send + Sync;

/// A function made of a judgement. Gold answers are tried in these forms; completions are counted.
pub(super) struct Made {
    judge: Box<Judge>,
    forms: &'static [&'static str],
    num_calls: Arc<AtomicUsize>,
}

impl Made {
    pub(super) fn new(
        forms: &'static [&'static str],
        judge: impl Fn(&RewardInput<'_>, &str) -> RewardOutcome + Send + Sync + 'static,
    ) -> Self {
        Self { judge: Box::new(judge), forms, num_calls: Arc::default() }
    }

    /// As a function of the user.
    pub(super) fn outside(self) -> NamedReward {
        NamedReward { nature: Nature::EXTERNAL, ..NamedReward::verifier("mine", Box::new(self)) }
    }
}

impl RewardFunction for Made {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.num_calls.fetch_add(batch.len(), Ordering::Relaxed);
        let truth = |input: &RewardInput<'_>| input.prompt.ground_truth.clone().unwrap_or_default();
        batch.iter().map(|input| (self.judge)(input, &truth(input))).collect()
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        let forms =
            |truth: &String| self.forms.iter().map(|form| form.replace("{}", truth)).collect::<Vec<_>>();
        prompt.ground_truth.iter().flat_map(forms).collect()
    }
}

/// The report on one external function that scores a completion against a ground truth.
fn checked_outside(
    prompts: &[Prompt],
    forms: &'static [&'static str],
    judge: impl Fn(&str, &str) -> f64 + Send + Sync + 'static,
) -> GoldReport {
    let made = Made::new(forms, move |input, truth| RewardOutcome::score(judge(input.completion, truth)));
    check_gold(prompts, &Rewards::new(vec![made.outside()]).unwrap()).unwrap()
}

const FORMS: &[&str] = &["{}", "#### {}", "It is {}!"];

fn show(report: &GoldReport) -> String {
    format!("{}: {report}", if report.is_clean() { "clean" } else { "warns" })
}

fn numbers(range: std::ops::Range<u32>) -> Vec<Prompt> {
    range.map(|number| test_prompt(&number.to_string())).collect()
}

#[test]
fn built_in_verifiers_accept_their_gold() {
    let prompts: Vec<Prompt> = ["72", "-3", "0.5"].map(test_prompt).into();
    let report = check_gold(
        &prompts,
        &rewards(vec![
            ("exact", Box::new(Exact {})),
            ("number", Box::new(Number {})),
            ("strict", Box::new(Gsm8k { method: Gsm8kMethod::Strict, format_score: 0.0 })),
            ("flexible", Box::new(Gsm8k { method: Gsm8kMethod::Flexible, format_score: 0.0 })),
            ("math", Box::new(Math {})),
            ("dapo", Box::new(MathDapo {})),
            ("length", Box::new(Length::new(0, 1, 1).unwrap())),
        ]),
    )
    .unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.functions.len(), 6, "shaping has no notion of a right answer");
}

/// A gold answer is tried as a model would write it. One that is a whole number with a fraction of zeros in
/// the data never equals an answer as text.
#[test]
fn golds_are_written_as_a_model_would() {
    let prompts = [test_prompt("72.0")];
    let functions: Vec<(&str, Box<dyn RewardFunction>, usize)> = vec![
        ("exact", Box::new(Exact {}), 0),
        ("number", Box::new(Number {}), 1),
        ("gsm8k", Box::new(Gsm8k::default()), 0),
        ("last", Box::new(Gsm8k { method: Gsm8kMethod::LastNumber, format_score: 0.0 }), 1),
        ("dapo", Box::new(MathDapo {}), 0),
    ];
    for (name, function, accepted) in functions {
        let report = check_gold(&prompts, &rewards(vec![(name, function)])).unwrap();
        assert_eq!(report.functions[0].accepted, accepted, "{report}");
    }
}

#[test]
fn a_verifier_that_rejects_its_gold_is_reported() {
    let mut prompts: Vec<Prompt> = ["72", "seven apples", "1e3", "#### 1,000"].map(test_prompt).into();
    prompts.push(Prompt { ground_truth: None, ..test_prompt("") });
    let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
        ("gsm8k", Box::new(Gsm8k::default())),
        ("math", Box::new(Math {})),
        ("number", Box::new(Number {})),
    ];
    let report = check_gold(&prompts, &rewards(functions)).unwrap();
    assert!(!report.is_clean());
    insta::assert_snapshot!(report, @r"
    reward `gsm8k` accepts 2 of 4 gold answers (2 rejected, 0 without an answer, 0 failed)
      prompt 0, ground truth `seven apples`: `#### seven apples` gave acc 0, score 0
      prompt 0, ground truth `1e3`: `#### 1e3` gave acc 0, score 0
    reward `math` accepts 3 of 4 gold answers (0 rejected, 1 without an answer, 0 failed)
      prompt 0, ground truth `seven apples`: `\boxed{seven apples}` gave no answer
    reward `number` accepts 2 of 4 gold answers (0 rejected, 2 without an answer, 0 failed)
      prompt 0, ground truth `seven apples`: `seven apples` gave no answer
      prompt 0, ground truth `1e3`: `1e3` gave no answer
    1 prompt has no ground truth and cannot be scored against one (prompt 0)
    ");
    insta::assert_snapshot!(report.score_names.iter().cloned().collect::<Vec<_>>().join(" "), @"acc gsm8k math math.acc number number.acc score");
}

/// If the full score of a function is unknown, the report does not claim that it accepts anything.
#[test]
fn functions_outside_get_the_distribution() {
    let prompts: Vec<Prompt> = numbers(0..200);
    let check = |right: f64, other: f64| {
        let judge = move |answer: &str, truth: &str| {
            if answer.strip_prefix("Answer: ") == Some(truth) { right } else { other }
        };
        show(&checked_outside(&prompts, &["{}", "Answer: {}"], judge))
    };
    // A tenth for the wrong form is not taken for the score of the right one.
    insta::assert_snapshot!(check(1.0, 0.1), @"clean: reward `mine`: gold answers score 1 on average, 1 to 1 (200 prompts)");
    insta::assert_snapshot!(check(0.1, 0.1), @r"
    warns: reward `mine`: gold answers score 0.1 on average, 0.1 to 0.1 (200 prompts)
      no better than an empty completion: that scores 0.1, the gold answer 0.1 (means of 48 prompts)
      no better than the gold answer of another prompt: that scores 0.1, the gold answer 0.1 (means of 48 prompts)
      it judges something other than the answer, or expects the answer in a form that was not tried
      prompt 0, ground truth `0`: `0` gave score 0.1
      prompt 0, ground truth `1`: `1` gave score 0.1
      prompt 0, ground truth `2`: `2` gave score 0.1
    ");
    insta::assert_snapshot!(check(-1.0, -2.0), @"clean: reward `mine`: gold answers score -1 on average, -1 to -1 (200 prompts)");
}

/// The best of several forms is no sign that a function uses the answer, and rounding is none.
#[test]
fn functions_outside_that_look_at_the_completion_alone_are_reported() {
    let prompts: Vec<Prompt> = (0..150).map(|number| test_prompt(&(number * 7).to_string())).collect();
    let few: Vec<Prompt> = (0..40).map(|row| test_prompt(if row % 8 == 0 { "no" } else { "yes" })).collect();
    let is_clean =
        |prompts: &[Prompt], judge: fn(&str, &str) -> f64| checked_outside(prompts, FORMS, judge).is_clean();
    let blind: [fn(&str, &str) -> f64; 4] = [
        |answer, _| answer.len() as f64 / 7.0,
        |answer, _| (answer.len() % 2) as f64,
        |answer, _| -(answer.len() as f64) / 3.0,
        |answer, _| f64::from(answer.bytes().map(u32::from).sum::<u32>() % 3),
    ];
    for (place, judge) in blind.into_iter().enumerate() {
        assert!(!is_clean(&prompts, judge), "{place}");
        assert!(!is_clean(&few, judge), "{place}");
    }
    let looking: [fn(&str, &str) -> f64; 2] = [
        |answer, truth| f64::from(u8::from(answer == format!("#### {truth}"))),
        |answer, truth| f64::from(u8::from(answer.contains(truth))) - 3.0,
    ];
    for (place, judge) in looking.into_iter().enumerate() {
        assert!(is_clean(&prompts, judge), "{place}");
        assert!(is_clean(&few, judge), "{place}");
    }
    // Half of the right answers are missed.
    assert!(is_clean(&prompts, |answer, truth| {
        f64::from(u8::from(answer.contains(truth) && truth.len() != 2)) + answer.len() as f64 / 100.0
    }));
}

/// A right function that misses its gold answer gives the same score, 0, to everything else. A few prompts do
/// not distinguish it from one that reads nothing.
#[test]
fn a_few_prompts_are_too_few_to_tell() {
    /// Finds the answer in every third prompt.
    fn often_misses(answer: &str, truth: &str) -> f64 {
        f64::from(u8::from(
            answer.contains(truth) && truth.parse::<u32>().is_ok_and(|number| number % 3 == 0),
        ))
    }
    fn blind(_: &str, _: &str) -> f64 {
        0.1
    }
    let report = |num_prompts: u32, judge: fn(&str, &str) -> f64| {
        let prompts: Vec<Prompt> = numbers(100..100 + num_prompts);
        show(&checked_outside(&prompts, FORMS, judge))
    };
    for num_prompts in [1, 2, 3, 9, 10, 20, 40, 100] {
        let of_right = report(num_prompts, often_misses);
        assert!(of_right.starts_with("clean"), "{of_right}");
        let of_blind = report(num_prompts, blind);
        assert_eq!(of_blind.starts_with("warns"), num_prompts >= 10, "{of_blind}");
    }
    insta::assert_snapshot!(report(1, often_misses), @r"
    clean: reward `mine`: gold answers score 0 on average, 0 to 0 (1 prompt)
      too few prompts to tell gold answers from an empty completion: that scores 0, the gold answer 0 (means of 1 prompt, 0 of them with different scores)
      too few prompts to tell gold answers from the gold answer of another prompt: all have the same ground truth
    ");
    insta::assert_snapshot!(report(3, often_misses), @r"
    clean: reward `mine`: gold answers score 0.3333 on average, 0 to 1 (3 prompts)
      too few prompts to tell gold answers from an empty completion: that scores 0, the gold answer 0.3333 (means of 3 prompts, 1 of them with different scores)
      too few prompts to tell gold answers from the gold answer of another prompt: that scores 0, the gold answer 0.3333 (means of 3 prompts, 1 of them with different scores)
    ");
    insta::assert_snapshot!(report(3, blind), @r"
    clean: reward `mine`: gold answers score 0.1 on average, 0.1 to 0.1 (3 prompts)
      too few prompts to tell gold answers from an empty completion: that scores 0.1, the gold answer 0.1 (means of 3 prompts, 0 of them with different scores)
      too few prompts to tell gold answers from the gold answer of another prompt: that scores 0.1, the gold answer 0.1 (means of 3 prompts, 0 of them with different scores)
    ");

    // Many prompts with one ground truth: no other to compare with.
    let same: Vec<Prompt> = (0..30).map(|_| test_prompt("yes")).collect();
    let contains: fn(&str, &str) -> f64 = |answer, truth| f64::from(u8::from(answer.contains(truth)));
    let report = checked_outside(&same, FORMS, contains);
    assert!(report.is_clean());
    insta::assert_snapshot!(report, @r"
    reward `mine`: gold answers score 1 on average, 1 to 1 (30 prompts)
      too few prompts to tell gold answers from the gold answer of another prompt: all have the same ground truth
    ");

    // A verifier that takes two ground truths for equal, as it should.
    let equal = ["72", "72.0"].map(test_prompt);
    assert!(checked("number", &equal, Number {}).is_clean());
}

#[test]
fn a_function_that_does_not_look_at_the_answer_is_reported() {
    let long = Made::new(&["{}"], |input, _| {
        RewardOutcome::score(f64::from(u8::from(!input.completion.is_empty())))
    });
    let report = checked("long", &numbers(10..20), long);
    insta::assert_snapshot!(report, @r"
    reward `long` accepts all 10 gold answers
      no better than the gold answer of another prompt: that scores 1, the gold answer 1 (means of 10 prompts)
      it judges something other than the answer, or expects the answer in a form that was not tried
      prompt 0, ground truth `10`: `10` gave score 1
      prompt 0, ground truth `11`: `11` gave score 1
      prompt 0, ground truth `12`: `12` gave score 1
    ");
    assert!(!report.is_clean());
}

#[test]
fn whole_solutions_are_told_and_compared_by_their_answer() {
    let solution =
        |number: usize| format!("It is <<{number}+0={number}>>{number}.\nSo, by hand:\n#### {number}");
    let prompts: Vec<Prompt> = (1000..1020).map(|number| test_prompt(&solution(number))).collect();
    let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
        ("gsm8k", Box::new(Gsm8k::default())),
        ("math", Box::new(Math {})),
        ("dapo", Box::new(MathDapo::default())),
        ("number", Box::new(Number {})),
    ];
    let report = check_gold(&prompts, &rewards(functions)).unwrap();
    insta::assert_snapshot!(report, @r"
    reward `gsm8k` accepts all 20 gold answers
    reward `math` accepts all 20 gold answers
    reward `dapo` accepts all 20 gold answers
    reward `number` accepts all 20 gold answers
    the ground truth of 20 prompts is a whole solution that ends in `#### ANSWER`, as in GSM8K: verifiers compare with the answer, external functions and `exact` get the whole text
    ");
    let judge = |function: &dyn RewardFunction, completion: &str| {
        function.score(&[RewardInput::text(&prompts[7], completion)])[0].get("acc")
    };
    assert_eq!((judge(&Number {}, "1007"), judge(&Number {}, "1008")), (Some(1.0), Some(0.0)));
    assert_eq!((judge(&Math {}, "\\boxed{1{,}007}"), judge(&Math {}, "\\boxed{7}")), (Some(1.0), Some(0.0)));
    assert_eq!(judge(&MathDapo::default(), "Answer: 1007"), Some(1.0));
}

#[test]
fn gsm8k_as_it_is_released() {
    let Some(folder) = tamis_golden::data("gsm8k") else { return };
    let text = std::fs::read_to_string(folder.join("test.jsonl")).unwrap();
    let prompt = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        Prompt { data_source: "openai/gsm8k".to_owned(), ..test_prompt(row["answer"].as_str().unwrap()) }
    };
    let prompts: Vec<Prompt> = text.lines().map(prompt).collect();
    let functions: Vec<(&str, Box<dyn RewardFunction>)> = vec![
        ("by_source", Box::new(BySource::default())),
        ("math", Box::new(Math {})),
        ("math_dapo", Box::new(MathDapo::default())),
        ("number", Box::new(Number {})),
    ];
    let report = check_gold(&prompts, &rewards(functions)).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((prompts.len(), report.whole_solutions), (1319, 1319));
}

#[test]
fn gold_is_told_by_source() {
    let of = |source: &str, truth: &str| Prompt { data_source: source.to_owned(), ..test_prompt(truth) };
    let prompts =
        [of("openai/gsm8k", "72"), of("openai/gsm8k", "seven"), of("aime_2025", "5"), of("math", "6")];
    let report = checked("by_source", &prompts, BySource::default());
    insta::assert_snapshot!(report, @r"
    reward `by_source` accepts 3 of 4 gold answers (1 rejected, 0 without an answer, 0 failed)
      by data source: aime_2025 1 of 1, math 1 of 1, openai/gsm8k 1 of 2
      prompt 0, ground truth `seven`: `#### seven` gave acc 0, score 0
    ");
}

#[test]
fn the_expected_form_is_learnt() {
    let mut prompts: Vec<Prompt> = numbers(0..2000);
    prompts.push(test_prompt("bad"));
    // Accepts only `#### x`, returns a number of its own, and fails on "bad".
    let external = Made::new(&["{}", "#### {}"], |input, _| {
        if input.completion.contains("bad") {
            return RewardOutcome::Failed(RewardFailure::Function { message: "bad".to_owned() });
        }
        let score = Score::of(f64::from(u8::from(input.completion.starts_with("#### "))));
        RewardOutcome::Scored([("score".to_owned(), score), ("fluency".to_owned(), Score::of(0.5))].into())
    });
    let num_calls = Arc::clone(&external.num_calls);
    let report = checked("external", &prompts, external);
    assert_eq!((report.functions[0].accepted, report.functions[0].failed), (2000, 1));
    assert!(report.score_names.contains("fluency"));
    assert_eq!(num_calls.load(Ordering::Relaxed), 2001 + FIRST_BLOCK + 1 + 2 * NUM_RIVALS);
    insta::assert_snapshot!(report, @r"
    reward `external` accepts 2000 of 2001 gold answers (0 rejected, 0 without an answer, 1 failed)
      no better than the gold answer of another prompt: that scores 1, the gold answer 1 (means of 100 prompts)
      it judges something other than the answer, or expects the answer in a form that was not tried
      prompt 0, ground truth `bad`: `#### bad` gave a failure: the function failed: bad
    ");
}

#[test]
fn a_function_that_takes_no_gold_answer_at_all_is_hopeless() {
    let prompts = ["seven", "eight"].map(test_prompt);
    let of = |prompts: &[Prompt], weight: f64| {
        let named = NamedReward { weight, ..NamedReward::verifier("number", Box::new(Number {})) };
        check_gold(prompts, &Rewards::new(vec![named]).unwrap()).unwrap()
    };
    assert!(of(&prompts, 1.0).functions[0].is_hopeless());
    // A reward that is only logged costs nothing, and a function that accepts some gold answers is right
    // about those.
    assert!(!of(&prompts, 0.0).functions[0].is_hopeless());
    let some = of(&["7", "eight"].map(test_prompt), 1.0);
    assert!(!some.functions[0].is_hopeless() && !some.is_clean());
    assert_eq!(some.functions[0].refused, [0]);
    // Without any ground truth there is nothing to compare with.
    let bare = ["7", "8"].map(|truth| Prompt { ground_truth: None, ..test_prompt(truth) });
    let report = of(&bare, 1.0);
    assert_eq!((report.blind.clone(), report.functions.len()), (vec!["number".to_owned()], 0));
    assert!(of(&bare, 0.0).blind.is_empty() && of(&prompts, 1.0).blind.is_empty());
}

/// The report on a function that takes a box for prompts of one data source and `#### x` for the others, and
/// its calls.
fn two_forms(num: u32, extent: GoldExtent) -> (GoldReport, usize) {
    let of = |number: u32| {
        let source = if number.is_multiple_of(2) { "boxed" } else { "marked" };
        Prompt { data_source: source.to_owned(), ..test_prompt(&number.to_string()) }
    };
    let prompts: Vec<Prompt> = (0..num).map(of).collect();
    let forms = &["{}", "#### {}", "\\boxed{{}}", "Answer: {}", "<answer>{}</answer>"];
    let function = Made::new(forms, |input, truth| {
        let boxed = input.prompt.data_source == "boxed";
        let form = if boxed { format!("\\boxed{{{truth}}}") } else { format!("#### {truth}") };
        let is_right = input.completion == form && truth != "13";
        RewardOutcome::verified(f64::from(u8::from(is_right)), is_right)
    });
    let num_calls = Arc::clone(&function.num_calls);
    let rewards = Rewards::new(vec![function.outside()]).unwrap();
    let heard = crate::reward::listener::Heard::default();
    let report = check_gold_heard(&prompts, &rewards, extent, &heard).unwrap();
    let calls = num_calls.load(Ordering::Relaxed);
    let announced: usize = {
        let text = heard.text();
        let number = text.split("for about ").nth(1).unwrap().split(' ').next().unwrap();
        number.parse().unwrap()
    };
    assert!(calls.abs_diff(announced) <= announced / 5, "{calls} calls, announced were {announced}");
    (report, calls)
}

/// A user's function may take long: it is asked about each gold answer once, and about a few in every form.
#[test]
fn a_function_outside_is_asked_about_each_gold_answer_once() {
    let (report, calls) = two_forms(120, GoldExtent::Sample);
    let function = &report.functions[0];
    assert_eq!((function.checked, function.accepted, function.rejected), (120, 119, 1));
    // 8 rows in 5 forms, 112 in one, `13` in all, and 48 empty texts and answers of others each.
    assert_eq!(calls, 8 * 5 + 112 + 4 + 2 * 48);
    assert!(report.to_string().contains("(120 prompts: 1 with an `acc` of 0)"), "{report}");
}

#[test]
fn of_many_gold_answers_a_function_outside_is_asked_about_a_sample() {
    let (report, calls) = two_forms(20_000, GoldExtent::Sample);
    let function = &report.functions[0];
    assert_eq!((function.checked, function.sampled_from), (SAMPLE, Some(20_000)));
    assert!(report.to_string().contains("(a sample of 512 of 20000 prompts)"), "{report}");
    assert!(calls < SAMPLE + 240, "{calls}");
    let (report, _) = two_forms(1000, GoldExtent::All);
    assert_eq!((report.functions[0].checked, report.functions[0].sampled_from), (1000, None));
    // A function of tamis costs next to nothing.
    let own = checked("exact", &numbers(0..20_000), Exact {});
    assert_eq!(own.functions[0].checked, 20_000);
}
