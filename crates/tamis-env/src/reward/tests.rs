//! Laws of all built-in reward functions.

use proptest::prelude::*;
use tamis_core::group::PromptId;
use tamis_core::setting::{Check, Described as _};
use tamis_data::prompt::Prompt;

use super::after_think::AfterThink;
use super::exact::Exact;
use super::format::Format;
use super::gsm8k::{Gsm8k, Gsm8kMethod};
use super::length::Length;
use super::math::Math;
use super::math_dapo::MathDapo;
use super::number::Number;
use super::repetition::Repetition;
use super::soft_overlong::{OverlongForm, SoftOverlong};
use super::*;

/// A function with its name.
type Named = (&'static str, Box<dyn RewardFunction>);

/// The registered kinds that score a completion by its text without a program of the user's, at their
/// defaults: those that answer `acc`, or the others. So the laws below hold for a new reward, too.
fn registered(gives_acc: bool) -> Vec<Named> {
    // `cosine` takes its verdict from a verifier.
    let context =
        RewardContext { verifier: Some(("number", &Number {})), ..RewardContext::alone("reward", 8) };
    let build = |name: &'static str| {
        let kind = RewardKind::of_name(name).unwrap();
        let nature = kind.nature();
        // These two score by the source of a row, and by an episode.
        if nature.is_external || nature.gives_acc != gives_acc || ["by_source", "environment"].contains(&name)
        {
            return None;
        }
        let keys = RewardKind::shape().keys_of_kind(name);
        let is_given = keys.iter().any(|spec| matches!(spec.check, Check::NotEmpty));
        match kind.build(&context) {
            Ok(function) => Some((name, function)),
            Err(_) if is_given => None,
            Err(error) => panic!("`{name}` at its defaults: {error}"),
        }
    };
    RewardKind::NAMES.iter().copied().filter_map(build).collect()
}

fn verifiers() -> Vec<Named> {
    let mut verifiers = registered(true);
    let further: [Named; 3] = [
        ("gsm8k strict", Box::new(Gsm8k { method: Gsm8kMethod::Strict, format_score: 0.1 })),
        ("gsm8k flexible", Box::new(Gsm8k { method: Gsm8kMethod::Flexible, format_score: 0.1 })),
        ("math after think", Box::new(AfterThink::new(Box::new(Math {})))),
    ];
    verifiers.extend(further);
    verifiers
}

fn shaping() -> Vec<Named> {
    let mut shaping = registered(false);
    let further: [Named; 5] = [
        ("format of a pattern", Box::new(Format::new("(a|aa)*<answer>.*").unwrap())),
        ("length", Box::new(Length::new(2, 5, 3).unwrap())),
        ("repetition", Box::new(Repetition { ngram_size: 2, max_penalty: -1.0 })),
        ("soft_overlong", Box::new(SoftOverlong::new(8, 4, 1.0, OverlongForm::Bounded).unwrap())),
        ("soft_overlong verl", Box::new(SoftOverlong::new(8, 4, 1.0, OverlongForm::Verl).unwrap())),
    ];
    shaping.extend(further);
    shaping
}

#[test]
fn the_laws_know_the_registered_rewards() {
    let names = |functions: Vec<Named>| functions.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let (verifiers, shaping) = (names(registered(true)), names(registered(false)));
    for name in ["exact", "number", "gsm8k", "math", "math_dapo", "cosine"] {
        assert!(verifiers.contains(&name), "{name}: {verifiers:?}");
    }
    for name in ["think_format", "length", "repetition", "soft_overlong"] {
        assert!(shaping.contains(&name), "{name}: {shaping:?}");
    }
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
            let outcome = function.score(&[input]).remove(0);
            prop_assert_eq!(outcome.get("acc"), None, "{}", name);
            let score = outcome.get("score");
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
