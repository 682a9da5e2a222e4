//! The value loss of a critic that is a model of its own.

use proptest::prelude::*;
use tamis_core::objective::{
    Aggregation, CriticColumns, LengthDivisors, Normalisers, ObjectiveError, ValueColumns, ValueMetrics,
    ValueSums, ValueTerm, ValueToken, explained_variance,
};
use tamis_core::ragged::Ragged;

use crate::batch::aggregation;

/// Mask, value, old value and return of each token, by trajectory; two trajectories a group.
type Rows = Vec<Vec<(bool, f64, f64, f64)>>;

fn rows() -> impl Strategy<Value = Rows> {
    let number = || prop_oneof![-2.0..2.0_f64, Just(0.0), Just(0.5)];
    let token = (any::<bool>(), number(), number(), number());
    let row = prop::collection::vec(token, 0..6);
    prop::collection::vec((row.clone(), row), 1..5)
        .prop_map(|groups| groups.into_iter().flat_map(|(a, b)| [a, b]).collect())
}

/// Derivatives and sums of the trajectories in `range`, as one micro-batch.
fn part(term: &ValueTerm, rows: &Rows, range: std::ops::Range<usize>) -> (Vec<f64>, Vec<ValueSums>) {
    let sizes = vec![2; rows.len() / 2];
    let mask = Ragged::from_rows(rows.iter().map(|row| row.iter().map(|token| token.0).collect::<Vec<_>>()));
    let (normalisers, group_tokens) = Normalisers::of(&mask, &sizes).unwrap();
    let group_sequences = Normalisers::group_sequences(&mask, &sizes).unwrap();
    let flat = |of: fn(&(bool, f64, f64, f64)) -> f64| -> Vec<f64> {
        rows[range.clone()].iter().flatten().map(of).collect()
    };
    let (value, old, returns) = (flat(|token| token.1), flat(|token| token.2), flat(|token| token.3));
    let columns = CriticColumns {
        offsets: &mask.offsets()[range.start..=range.end],
        mask: &mask.values()[mask.offsets()[range.start]..mask.offsets()[range.end]],
        values: ValueColumns { value: &value, old: &old, returns: &returns },
        group_tokens: Some(&group_tokens[range.clone()]),
        group_sequences: Some(&group_sequences[range]),
    };
    let (mut derivatives, mut sums) = (vec![9.0; 3], vec![ValueSums::default()]);
    term.evaluate(&columns, &normalisers, &mut derivatives, &mut sums).unwrap();
    (derivatives, sums)
}

fn whole(term: &ValueTerm, rows: &Rows) -> (Vec<f64>, ValueMetrics) {
    let (derivatives, sums) = part(term, rows, 0..rows.len());
    (derivatives, ValueMetrics::of(&sums))
}

proptest! {
    #[test]
    fn the_derivative_is_the_central_difference(
        rows in rows(),
        aggregation in aggregation(),
        clip in prop_oneof![Just(None), (0.1..1.0_f64).prop_map(Some)],
        coef in 0.5..2.0_f64,
    ) {
        let divisors = LengthDivisors { loss_scale_factor: 7.0, length_epsilon: 0.0 };
        let term = ValueTerm { coef, clip, aggregation, divisors };
        let (derivatives, _) = whole(&term, &rows);
        let step = 1e-6;
        let places = rows.iter().enumerate().flat_map(|(i, row)| (0..row.len()).map(move |t| (i, t)));
        for ((i, t), &derivative) in places.zip(&derivatives) {
            let (on, value, old, target) = rows[i][t];
            if !on {
                prop_assert_eq!(derivative, 0.0);
                continue;
            }
            // Kinks: the bound begins to apply, or the two errors are equally large.
            let near_kink = clip.is_some_and(|clip| {
                let held = value.clamp(old - clip, old + clip);
                let same = ((value - target).abs() - (held - target).abs()).abs() < 1e-4;
                ((value - old).abs() - clip).abs() < 1e-4 || same && (held - value).abs() > 1e-9
            });
            if near_kink {
                continue;
            }
            let moved = |by: f64| {
                let mut rows = rows.clone();
                rows[i][t].1 += by;
                coef * whole(&term, &rows).1.loss
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            prop_assert!((difference - derivative).abs() < 1e-6, "{} {}", difference, derivative);
        }
    }

    #[test]
    fn micro_batches_give_the_same_bits(rows in rows(), aggregation in aggregation(), cut in 0..9_usize) {
        let term = ValueTerm::of(Some(0.3), aggregation);
        let cut = cut.min(rows.len());
        let (mut derivatives, mut sums) = part(&term, &rows, 0..cut);
        let (rest, rest_sums) = part(&term, &rows, cut..rows.len());
        derivatives.extend(rest);
        sums.extend(rest_sums);
        let (all, all_sums) = part(&term, &rows, 0..rows.len());
        prop_assert_eq!(derivatives, all);
        prop_assert_eq!(sums, all_sums);
    }

    #[test]
    fn masked_tokens_are_not_read(rows in rows(), aggregation in aggregation()) {
        let term = ValueTerm::of(Some(0.3), aggregation);
        let mut poisoned = rows.clone();
        for token in poisoned.iter_mut().flatten().filter(|token| !token.0) {
            (token.1, token.2, token.3) = (f64::NAN, f64::INFINITY, f64::NAN);
        }
        prop_assert_eq!(part(&term, &poisoned, 0..rows.len()), part(&term, &rows, 0..rows.len()));
    }

    #[test]
    fn explained_variance_is_at_most_one_and_ignores_a_shift_of_the_values(rows in rows(), shift in -3.0..3.0_f64) {
        let column = |of: fn(&(bool, f64, f64, f64)) -> f64| -> Vec<f64> { rows.iter().flatten().map(of).collect() };
        let mask: Vec<bool> = rows.iter().flatten().map(|token| token.0).collect();
        let (values, returns) = (column(|token| token.1), column(|token| token.3));
        let shifted: Vec<f64> = values.iter().map(|value| value + shift).collect();
        let [plain, moved] = [&values, &shifted].map(|values| explained_variance(values, &returns, &mask));
        prop_assert!(plain.is_nan() == moved.is_nan());
        if !plain.is_nan() {
            prop_assert!(plain <= 1.0);
            prop_assert!((plain - moved).abs() <= 1e-9 * (1.0 + plain.abs()), "{} {}", plain, moved);
            prop_assert!((explained_variance(&returns, &returns, &mask) - 1.0).abs() < 1e-12);
        }
    }
}

#[test]
fn returns_that_do_not_vary_explain_nothing() {
    // The sum of many equal numbers is no multiple of them.
    for (value, number) in [(0.1, 3), (0.1, 1000), (1e300, 1000), (1e-300, 7), (0.0, 5), (-2.7, 100_000)] {
        let (returns, mask) = (vec![value; number], vec![true; number]);
        let values: Vec<f64> = (0..number).map(|i| i as f64).collect();
        assert!(explained_variance(&values, &returns, &mask).is_nan(), "{value} {number}");
    }
    // Equal except for their last bits.
    let returns = [0.3, 0.1 + 0.2, 0.3, 0.6 - 0.3];
    assert!(returns[0] != returns[1]);
    assert!(explained_variance(&[0.0, 1.0, 2.0, 3.0], &returns, &[true; 4]).is_nan());
    // The one that differs is masked.
    assert!(explained_variance(&[0.0, 1.0], &[0.3, 9.0], &[true, false]).is_nan());
    assert!(explained_variance(&[0.0, 1.0], &[0.3, f64::INFINITY], &[true, true]).is_nan());
    // Small, or close together, but more than rounding: 1 - (3/4) / 1, whatever the unit and the offset.
    for (unit, place) in [(1.0, 0.0), (1e-100, 0.0), (1e-6, 1.0), (1e6, -1e9)] {
        let returns = [place - unit, place + unit];
        let explained =
            explained_variance(&[place - 0.5 * unit, place + 0.5 * unit], &returns, &[true, true]);
        assert!((explained - 0.75).abs() < 1e-6, "{unit} {place}: {explained}");
    }
}

#[test]
fn nothing_to_train_on_and_columns_that_do_not_fit() {
    let term = ValueTerm::of(Some(0.3), Aggregation::TokenMean);
    let (derivatives, metrics) = whole(&term, &vec![vec![(false, 1.0, 1.0, 1.0)], vec![]]);
    assert_eq!((derivatives, metrics.loss), (vec![0.0], 0.0));
    assert!(metrics.clip_share.is_nan() && metrics.value_mean.is_nan());

    let message =
        |term: ValueTerm, offsets: &[usize], value: &[f64], returns: &[f64], groups: Option<&[f64]>| {
            let values = ValueColumns { value, old: value, returns };
            let mask = [true, true];
            let columns =
                CriticColumns { offsets, mask: &mask, values, group_tokens: groups, group_sequences: None };
            let normalisers = Normalisers { tokens: 2.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
            let result: Result<(), ObjectiveError> =
                term.evaluate(&columns, &normalisers, &mut Vec::new(), &mut Vec::new());
            result.unwrap_err().to_string()
        };
    insta::assert_snapshot!(message(term, &[0, 2], &[1.0], &[1.0], None), @"column `value` has 1 values, expected 2");
    insta::assert_snapshot!(message(term, &[0, 2], &[1.0; 2], &[], None), @"column `returns` has 0 values, expected 2");
    insta::assert_snapshot!(message(term, &[0, 2, 1], &[1.0; 2], &[1.0; 2], None), @"offsets of trajectory 1 go backwards");
    insta::assert_snapshot!(message(term, &[0, 2], &[1.0; 2], &[1.0; 2], Some(&[])), @"column `group_tokens` has 0 values, expected 1");
    let of_groups = ValueTerm { aggregation: Aggregation::GroupTokenMean, ..term };
    insta::assert_snapshot!(message(of_groups, &[0, 2], &[1.0; 2], &[1.0; 2], None), @"column `group_tokens` is missing; aggregation `group-token-mean` needs it");
}

#[test]
fn explained_variance_by_hand() {
    // Returns 1, 4, 4 vary by 2; what is left of them, 0, 3, 0, varies by 2 too. The masked token does not
    // count.
    let (values, returns) = ([1.0, 1.0, 9.0, 4.0], [1.0, 4.0, -9.0, 4.0]);
    let explained = explained_variance(&values, &returns, &[true, true, false, true]);
    assert!(explained.abs() < 1e-15, "{explained}");
    // 1, 3, 5 vary by 8/3, the rest 0, 0, 1 by 2/9: 11/12 explained.
    let explained = explained_variance(&[1.0, 3.0, 4.0], &[1.0, 3.0, 5.0], &[true; 3]);
    assert!((explained - 11.0 / 12.0).abs() < 1e-15, "{explained}");
}

#[test]
fn the_value_loss_of_a_token_by_hand() {
    let term = ValueTerm::of(Some(1.0), Aggregation::TokenMean);
    for ((value, old, target), (loss, slope, is_clipped)) in [
        // Within the bound: (1/2)²/2.
        ((0.5, 0.0, 1.0), (0.125, -0.5, false)),
        // Clipped at 1, which is farther from the target than 3.
        ((3.0, 0.0, 4.0), (4.5, 0.0, true)),
        // Clipped at 1, which is nearer: the error of 3 counts.
        ((3.0, 0.0, 0.5), (3.125, 2.5, false)),
        // Both are 1 away, on either side: half of each derivative.
        ((3.0, 0.0, 2.0), (0.5, 0.5, false)),
        ((-3.0, 0.0, -2.0), (0.5, -0.5, false)),
    ] {
        let expected = ValueToken { loss, slope, is_clipped };
        assert_eq!(term.token(value, old, target), expected, "{value} {old} {target}");
    }
}

#[test]
fn what_a_critic_reports() {
    let rows = vec![vec![(true, 3.0, 0.0, 4.0), (true, 0.5, 0.0, 1.0), (false, 9.0, 9.0, 9.0)], vec![]];
    let term = ValueTerm { coef: 2.0, ..ValueTerm::of(Some(1.0), Aggregation::TokenMean) };
    let (_, metrics) = whole(&term, &rows);
    let expected = [("critic/vf_loss", 2.3125), ("critic/vf_clipfrac", 0.5), ("critic/vpred_mean", 1.75)];
    assert_eq!(metrics.to_pairs(), expected);
}

#[test]
fn no_batch_is_no_error() {
    let values = ValueColumns::<f64> { value: &[], old: &[], returns: &[] };
    let columns =
        CriticColumns { offsets: &[], mask: &[], values, group_tokens: None, group_sequences: None };
    let normalisers = Normalisers { tokens: 0.0, sequences: 0.0, groups: 0.0, dp_size: 1.0 };
    let (mut derivatives, mut sums) = (vec![1.0], vec![ValueSums::default()]);
    let term = ValueTerm::of(None, Aggregation::TokenMean);
    assert_eq!(term.evaluate(&columns, &normalisers, &mut derivatives, &mut sums), Ok(()));
    assert!(derivatives.is_empty() && sums.is_empty());
}
