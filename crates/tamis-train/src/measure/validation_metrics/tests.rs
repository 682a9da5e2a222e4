use proptest::prelude::*;
use tamis_golden::{assert_close, cases, numbers};

use super::*;
use crate::support;

/// All subsets (or all sequences) of k of n places.
fn draws(n: usize, k: usize, draw: Draw) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..k {
        all = all
            .into_iter()
            .flat_map(|begun| {
                (0..n)
                    .filter(|place| draw == Draw::WithReplacement || !begun.contains(place))
                    .map(|place| [begun.clone(), vec![place]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    all
}

/// Mean and deviation of a function over all draws in order: what the formulas must give.
fn enumerated(n: usize, k: usize, draw: Draw, of: impl Fn(&[usize]) -> f64) -> [f64; 2] {
    let results: Vec<f64> = draws(n, k, draw).iter().map(|places| of(places)).collect();
    let mean = results.iter().sum::<f64>() / results.len() as f64;
    let variance = results.iter().map(|result| (result - mean).powi(2)).sum::<f64>() / results.len() as f64;
    [mean, variance.sqrt()]
}

/// verl's vote: the first drawn of the answers with the highest count, and its first drawn score.
fn vote(places: &[usize], values: &[f64], answers: &[String]) -> f64 {
    let count = |place: &usize| places.iter().filter(|other| answers[**other] == answers[*place]).count();
    let most = places.iter().map(count).max().expect("one place at least");
    let winner = places.iter().find(|place| count(place) == most).expect("the winner");
    values[*winner]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn closed_forms_equal_the_enumeration(
        samples in prop::collection::vec((-2.0..2.0_f64, 0..3_u8), 1..=5),
        k in 1..=4_usize,
        with_replacement: bool,
    ) {
        let draw = if with_replacement { Draw::WithReplacement } else { Draw::WithoutReplacement };
        let values: Vec<f64> = samples.iter().map(|sample| sample.0).collect();
        let answers: Vec<String> = samples.iter().map(|sample| sample.1.to_string()).collect();
        let n = values.len();
        if !with_replacement && k > n {
            prop_assert_eq!(best_at(&values, k, draw), None);
            prop_assert_eq!(majority(&values, &answers, k, draw), None);
            return Ok(());
        }
        let pick = |places: &[usize], better: fn(f64, f64) -> f64| {
            places.iter().map(|&place| values[place]).reduce(better).expect("k > 0")
        };
        let (mean, std) = best_at(&values, k, draw).expect("k fits");
        assert_close("best", &[mean, std], &enumerated(n, k, draw, |places| pick(places, f64::max)), 1e-9, 1e-9);
        let (mean, std) = worst_at(&values, k, draw).expect("k fits");
        assert_close("worst", &[mean, std], &enumerated(n, k, draw, |places| pick(places, f64::min)), 1e-9, 1e-9);
        let (mean, std) = majority(&values, &answers, k, draw).expect("k fits");
        let expected = enumerated(n, k, draw, |places| vote(places, &values, &answers));
        assert_close("majority", &[mean, std], &expected, 1e-9, 1e-7);
        if !with_replacement {
            let correct: Vec<f64> = values.iter().map(|value| f64::from(*value > 0.0)).collect();
            let num_correct = correct.iter().filter(|&&value| value > 0.0).count();
            let pass = pass_at(n, num_correct, k).expect("k fits");
            assert_close("pass", &[pass], &[best_at(&correct, k, draw).expect("k fits").0], 1e-12, 1e-12);
        }
    }

    #[test]
    fn more_samples_never_make_the_best_worse(values in prop::collection::vec(-1.0..1.0_f64, 2..40)) {
        for k in 1..values.len() {
            let best = |k| best_at(&values, k, Draw::WithoutReplacement).expect("k fits").0;
            prop_assert!(best(k) <= best(k + 1) + 1e-12);
            let with = best_at(&values, k, Draw::WithReplacement).expect("fits").0;
            prop_assert!(with <= best(k) + 1e-12, "with replacement is biased low");
        }
    }
}

#[test]
fn many_samples_stay_exact_and_quick() {
    let values: Vec<f64> = (0..2000).map(|i| f64::from(i % 2)).collect();
    assert!((best_at(&values, 1, Draw::WithoutReplacement).expect("fits").0 - 0.5).abs() < 1e-9);
    assert!(
        (pass_at(2000, 1000, 3).expect("fits") - (1.0 - 1000.0 * 999.0 * 998.0 / (2000.0 * 1999.0 * 1998.0)))
            .abs()
            < 1e-12
    );
    // 128 answers, all different: each wins with an even share, whatever k.
    let answers: Vec<String> = (0..128).map(|i| i.to_string()).collect();
    for k in [1, 7, 64, 128] {
        let (mean, _) = majority(&values[..128], &answers, k, Draw::WithoutReplacement).expect("fits");
        assert!((mean - 0.5).abs() < 1e-9, "{k}: {mean}");
    }
    // All samples drawn: no chance is left.
    let (mean, std) =
        majority(&[1.0, 1.0, 0.0], &["a", "a", "b"], 3, Draw::WithoutReplacement).expect("fits");
    assert_eq!((mean, std), (1.0, 0.0));
}

fn prompt(source: &str, acc: &[f64], answers: &[&str]) -> PromptSamples {
    PromptSamples {
        episodes: Vec::new(),
        source: source.to_owned(),
        num_samples: acc.len(),
        is_failed: false,
        scores: BTreeMap::from([
            ("acc".to_owned(), acc.to_vec()),
            ("reward".to_owned(), acc.iter().map(|acc| 2.0 * acc - 1.0).collect()),
        ]),
        answers: Some(answers.iter().map(|&answer| answer.to_owned()).collect()),
        logged: BTreeMap::from([("tokens".to_owned(), vec![acc.len() as f64, 1.0])]),
        lengths: vec![10; acc.len()],
        num_truncated: 1,
    }
}

#[test]
fn by_hand() {
    let prompts = [
        prompt("gsm8k", &[1.0, 0.0, 1.0, 1.0], &["4", "5", "4", "4"]),
        prompt("gsm8k", &[0.0, 0.0, f64::NAN, 1.0], &["1", "2", "", "3"]),
        prompt("openai/math", &[1.0], &["7"]),
    ];
    let mut metrics = Metrics::new();
    for result in results_by_source(&prompts) {
        result.put(&mut metrics);
    }
    let listed: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value:.6}")).collect();
    insta::assert_snapshot!(listed.join("\n"), @"
    val-core/gsm8k/acc/mean@4 0.541667
    val-aux/gsm8k/acc/std@4 0.452209
    val-aux/gsm8k/acc/pass@1 0.541667
    val-aux/gsm8k/acc/pass@2 0.833333
    val-core/gsm8k/acc/pass@4 1.000000
    val-aux/gsm8k/acc/best@2/mean 0.833333
    val-aux/gsm8k/acc/worst@2/mean 0.250000
    val-aux/gsm8k/acc/maj@2/mean 0.541667
    val-core/gsm8k/acc/best@4/mean 1.000000
    val-aux/gsm8k/acc/worst@4/mean 0.000000
    val-core/gsm8k/acc/maj@4/mean 1.000000
    val-aux/gsm8k/reward/mean@4 0.083333
    val-aux/gsm8k/reward/std@4 0.904417
    val-aux/gsm8k/reward/best@2/mean 0.666667
    val-aux/gsm8k/reward/worst@2/mean -0.500000
    val-aux/gsm8k/reward/maj@2/mean 0.083333
    val-aux/gsm8k/reward/best@4/mean 1.000000
    val-aux/gsm8k/reward/worst@4/mean -1.000000
    val-aux/gsm8k/reward/maj@4/mean 1.000000
    val-aux/gsm8k/num_prompts 2.000000
    val-aux/gsm8k/num_failed 0.000000
    val-aux/gsm8k/num_unscored 1.000000
    val-aux/gsm8k/response_length/mean 10.000000
    val-aux/gsm8k/response_length/clip_ratio 0.250000
    val-aux/gsm8k/acc/mean@4/standard_error 0.208333
    val-aux/gsm8k/reward_log/tokens 2.500000
    val-core/openai/math/acc/mean@1 1.000000
    val-core/openai/math/acc/pass@1 1.000000
    val-aux/openai/math/reward/mean@1 1.000000
    val-aux/openai/math/num_prompts 1.000000
    val-aux/openai/math/num_failed 0.000000
    val-aux/openai/math/num_unscored 0.000000
    val-aux/openai/math/response_length/mean 10.000000
    val-aux/openai/math/response_length/clip_ratio 1.000000
    val-aux/openai/math/reward_log/tokens 1.000000
    ");
    let get = |name: &str| metrics.get(&format!("val-core/gsm8k/acc/{name}"));
    assert_close("mean", &[get("mean@4").expect("set")], &[f64::midpoint(0.75, 1.0 / 3.0)], 1e-12, 0.0);
    // (3/4 - 1/3) / 2, for two prompts.
    assert_close(
        "error",
        &[metrics.get("val-aux/gsm8k/acc/mean@4/standard_error").expect("set")],
        &[5.0 / 24.0],
        1e-12,
        0.0,
    );
    assert_eq!(get("maj@4/mean"), Some(1.0), "the second prompt has three scored samples only");
    let aux = |name: &str| metrics.get(&format!("val-aux/gsm8k/acc/{name}")).expect("set");
    // Two of the second prompt's pairs of three samples hold the correct one; none of the first's six misses.
    assert_close("pass@2", &[aux("pass@2")], &[f64::midpoint(1.0, 2.0 / 3.0)], 1e-12, 0.0);
}

#[test]
fn a_group_as_samples() {
    use tamis_core::group::{FinishReason, Score, Trajectory};
    let member = |acc: Option<f64>, finish_reason| Trajectory {
        finish_reason,
        scores: acc.map(|acc| ("acc".to_owned(), Score::of(acc))).into_iter().collect(),
        ..support::trajectory(vec![true; 2], acc.unwrap_or(f64::NAN))
    };
    let group =
        support::group(0, vec![member(Some(1.0), FinishReason::Stop), member(None, FinishReason::Length)]);
    let samples = PromptSamples::of_group("s", &group, None);
    assert_eq!((samples.num_samples, samples.num_truncated), (2, 1));
    assert!((samples.scores["acc"][0] - 1.0).abs() < 1e-15);
    assert!(samples.scores["acc"][1].is_nan() && samples.scores["reward"][1].is_nan());
    let mut metrics = Metrics::new();
    for result in results_by_source(&[samples]) {
        result.put(&mut metrics);
    }
    assert_eq!(metrics.get("val-core/s/acc/mean@2"), Some(1.0), "the unscored one is no zero");
    assert_eq!(metrics.get("val-core/s/acc/maj@2/mean"), None, "no answers were read");
    assert_eq!(metrics.get("val-aux/s/num_unscored"), Some(1.0));
}

/// Scores and answers of the samples of a prompt.
type Column<'a> = (Vec<f64>, Vec<&'a str>);

/// mean and std coincide with verl's exactly. Its bootstrap's 1000 resamples scatter around the exact
/// expectation with replacement: by 6 standard errors at most, and always below or at the expectation without
/// replacement for the best.
#[test]
fn metrics_of_verl() {
    let mut compared = 0;
    for case in cases("verl_validation_metrics") {
        let name = case["name"].as_str().expect("name");
        let resamples = case["params"]["n_bootstrap"].as_f64().expect("number");
        let texts = |key: &str| -> Vec<String> {
            let items = case["inputs"][key].as_array().expect("array");
            items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        };
        let (sources, uids, answers) = (texts("data_source"), texts("uid"), texts("pred"));
        for (source, variables) in case["outputs"]["metrics"].as_object().expect("sources") {
            for (variable, expected) in variables.as_object().expect("variables") {
                let column = numbers(&case["inputs"][variable]);
                let mut prompts: BTreeMap<&str, Column> = BTreeMap::new();
                for place in (0..column.len()).filter(|&place| &sources[place] == source) {
                    let prompt = prompts.entry(&uids[place]).or_default();
                    prompt.0.push(column[place]);
                    prompt.1.push(&answers[place]);
                }
                let size = prompts.values().map(|prompt| prompt.0.len()).max().expect("a prompt");
                if prompts.values().any(|prompt| prompt.0.len() != size) {
                    println!("{name} {source}: prompts of different sizes, which verl names each by its own");
                    continue;
                }
                let over = |of: &dyn Fn(&Column) -> Option<f64>| {
                    let results: Option<Vec<f64>> = prompts.values().map(of).collect();
                    results.map(|results| results.iter().sum::<f64>() / results.len() as f64)
                };
                for (metric, value) in expected.as_object().expect("metrics") {
                    let value = value.as_f64().expect("a number");
                    let what = format!("{name} {source} {variable} {metric}");
                    let (kind, rest) = metric.split_once('@').expect("a number of samples");
                    let (k, part) = rest.split_once('/').unwrap_or((rest, ""));
                    let k: usize = k.parse().expect("a number of samples");
                    let draw = Draw::WithReplacement;
                    let of = |prompt: &Column<'_>| match kind {
                        "best" => best_at(&prompt.0, k, draw),
                        "worst" => worst_at(&prompt.0, k, draw),
                        "maj" => majority(&prompt.0, &prompt.1, k, draw),
                        _ => None,
                    };
                    match (kind, part) {
                        ("mean", "") => {
                            let mean =
                                over(&|prompt| Some(NumberSummary::of(prompt.0.iter().copied())?.mean));
                            assert_close(&what, &[mean.expect("values")], &[value], 1e-9, 1e-11);
                        }
                        ("std", "") => {
                            let std = over(&|prompt| deviation_of(&prompt.0));
                            assert_close(&what, &[std.expect("values")], &[value], 1e-9, 1e-11);
                        }
                        (_, "mean") => {
                            let exact = over(&|prompt| Some(of(prompt)?.0)).expect("values");
                            let error =
                                over(&|prompt| Some(of(prompt)?.1)).expect("values") / resamples.sqrt();
                            assert!(
                                (value - exact).abs() <= 6.0 * error + 1e-9,
                                "{what}: {value}, exact {exact} +- {error}"
                            );
                        }
                        (_, "std") => {
                            let exact = over(&|prompt| Some(of(prompt)?.1)).expect("values");
                            assert!(
                                (value - exact).abs() <= 0.25 * exact + 0.05,
                                "{what}: {value}, exact {exact}"
                            );
                        }
                        _ => {
                            println!("{what}: not a metric of ours");
                            continue;
                        }
                    }
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 0);
}
