//! Laws of all built-in reward functions.

use proptest::prelude::*;
use tamis_core::group::PromptId;
use tamis_data::prompt::Prompt;

use super::after_think::AfterThink;
use super::cosine::{Cosine, CosineSchedule};
use super::exact::Exact;
use super::format::Format;
use super::gsm8k::{Gsm8k, Gsm8kMethod};
use super::length::Length;
use super::math::Math;
use super::math_dapo::MathDapo;
use super::number::Number;
use super::repetition::Repetition;
use super::soft_overlong::{OverlongForm, SoftOverlong};
use super::think_format::ThinkFormat;
use super::*;

fn verifiers() -> Vec<(&'static str, Box<dyn RewardFunction>)> {
    vec![
        ("exact", Box::new(Exact {})),
        ("number", Box::new(Number {})),
        ("gsm8k strict", Box::new(Gsm8k { method: Gsm8kMethod::Strict, format_score: 0.1 })),
        ("gsm8k flexible", Box::new(Gsm8k { method: Gsm8kMethod::Flexible, format_score: 0.1 })),
        ("math", Box::new(Math {})),
        ("math after think", Box::new(AfterThink::new(Box::new(Math {})))),
        ("math_dapo", Box::new(MathDapo {})),
        ("cosine", Box::new(Cosine::new(Box::new(Number {}), CosineSchedule::with_max_length(8)).unwrap())),
    ]
}

fn shaping() -> Vec<(&'static str, Box<dyn RewardFunction>)> {
    vec![
        ("format", Box::new(Format::new("(a|aa)*<answer>.*").unwrap())),
        ("think_format", Box::new(ThinkFormat {})),
        ("length", Box::new(Length::new(2, 5, 3).unwrap())),
        ("repetition", Box::new(Repetition { ngram_size: 2, max_penalty: -1.0 })),
        ("soft_overlong", Box::new(SoftOverlong::new(8, 4, 1.0, OverlongForm::Bounded).unwrap())),
        ("soft_overlong verl", Box::new(SoftOverlong::new(8, 4, 1.0, OverlongForm::Verl).unwrap())),
    ]
}

#[test]
fn verifiers_by_hand() {
    let judge = |function: &dyn RewardFunction, completion: &str, truth: &str| {
        let prompt = test_prompt(truth);
        let outcome = function.score(&[RewardInput::text(&prompt, completion)]).remove(0);
        (outcome.get("score"), outcome.get("acc"))
    };
    let (right, wrong, none) = ((Some(1.0), Some(1.0)), (Some(0.0), Some(0.0)), (None, None));
    assert_eq!(judge(&Exact {}, " 12\n", "12"), right);
    assert_eq!(judge(&Exact {}, "0.5", ".5"), wrong);
    assert_eq!(judge(&Number {}, "0.50", ".5"), right);
    assert_eq!(judge(&Number {}, "1,200", "1200.0"), right);
    assert_eq!(judge(&Number {}, "24 apples", "24"), wrong);
    assert_eq!(judge(&Number {}, "", "24"), wrong);
    assert_eq!(judge(&Number {}, "24", "many"), none);
    assert_eq!(judge(&MathDapo::default(), "Answer: 5", "5"), (Some(1.0), Some(1.0)));
    assert_eq!(judge(&MathDapo::default(), "5", "5"), (Some(-1.0), Some(0.0)));
    let think = AfterThink::new(Box::new(Exact {}));
    assert_eq!(judge(&think, "<think>4</think>5", "5"), right);
    assert_eq!(judge(&think, "5", "5"), wrong);
    let no_truth = Prompt { ground_truth: None, ..test_prompt("") };
    for (name, function) in verifiers() {
        assert_eq!(function.score(&[RewardInput::text(&no_truth, "5")]), [RewardOutcome::NoAnswer], "{name}");
    }
}

/// With quadratic time in the length of a text, a function would never finish here.
#[test]
fn a_megabyte_is_scored() {
    let units = [
        "9", "9,", "#### ", "-", "Answer:", "\\boxed{", "}", "<think>", "</think>", "a", "é", "\n", "$",
        "\u{2028}", ".", "#",
    ];
    for (_, function) in verifiers().into_iter().chain(shaping()) {
        for unit in units {
            let text = unit.repeat(1_000_000 / unit.len());
            let ids = vec![7; 250_000];
            let prompt = test_prompt("72");
            let outcomes =
                function.score(&[RewardInput { completion_ids: &ids, ..RewardInput::text(&prompt, &text) }]);
            assert_eq!(outcomes.len(), 1);
            let prompt = test_prompt(&text);
            assert_eq!(function.score(&[RewardInput::text(&prompt, "72")]).len(), 1);
        }
    }
}

proptest! {
    #[test]
    fn every_text_is_scored(
        text in prop_oneof![
            "\\PC{0,60}",
            "(Answer:|#### |\\\\boxed\\{|\\}|\\$|=|[0-9]|,|\\.|-| |\n|\\\\text\\{|frac|sqrt|a |é|<think>|</think>){0,30}",
        ],
        truth in prop_oneof!["[0-9.,$-]{0,6}", "\\PC{0,10}"],
        ids in proptest::collection::vec(0u32..4, 0..12),
    ) {
        let prompt = test_prompt(&truth);
        let input = RewardInput { completion_ids: &ids, ..RewardInput::text(&prompt, &text) };
        for (name, function) in verifiers() {
            let outcome = function.score(&[input]).remove(0);
            if let Some(acc) = outcome.get("acc") {
                prop_assert!([0.0, 1.0].contains(&acc), "{} {}", name, acc);
                let wrong = function.score(&[RewardInput { completion: "certainly no answer", ..input }]).remove(0);
                prop_assert!(outcome.get("score") >= wrong.get("score") || acc == 0.0, "{}: right earns at least as much", name);
            } else {
                prop_assert_eq!(&outcome, &RewardOutcome::NoAnswer, "{}", name);
            }
            prop_assert!(!function.gold_completions(&prompt).is_empty(), "{}", name);
        }
        for (name, function) in shaping() {
            let score = function.score(&[input]).remove(0).get("score");
            prop_assert!(score.is_some_and(|score| (-2.0..=1.0).contains(&score)), "{} {:?}", name, score);
        }
    }

    #[test]
    fn a_batch_is_its_completions(texts in proptest::collection::vec("[0-9#. ]{0,8}", 1..5)) {
        let prompts: Vec<Prompt> =
            (0..texts.len()).map(|i| Prompt { id: PromptId(i as u64), ..test_prompt(&i.to_string()) }).collect();
        let inputs: Vec<RewardInput<'_>> =
            prompts.iter().zip(&texts).map(|(prompt, text)| RewardInput::text(prompt, text)).collect();
        for (name, function) in verifiers().into_iter().chain(shaping()) {
            let alone: Vec<RewardOutcome> = inputs.iter().flat_map(|input| function.score(&[*input])).collect();
            prop_assert_eq!(function.score(&inputs), alone, "{}", name);
        }
    }
}
