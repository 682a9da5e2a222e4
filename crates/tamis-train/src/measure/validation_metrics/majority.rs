//! The answer that most of k samples give, in expectation over the draw.

use std::collections::BTreeMap;

use super::{Draw, moments};

/// Mean and deviation (ddof 0) of the score of the most common answer of k samples, over all draws of
/// k.
///
/// Each answer a has nₐ of the n samples. It wins with the chance that it is drawn more often than
/// every other, plus its even share of its ties (verl takes the tied answer that was drawn first, which
/// is the same chance). A winner's score is that of a sample drawn evenly from those that gave it
/// (verl: the first drawn). The chances are exact: the answers are added one by one, with the number of
/// draws left and the number of ties as the state.
///
/// `None` if k is 0, or more than n without replacement, or there is no value, or the lengths differ.
///
/// ```
/// use tamis_train::measure::validation_metrics::{Draw, majority};
/// // 4 three times (correct), 5 twice: any three of them have a majority of 4 in 7 of 10 subsets.
/// let (mean, _) = majority(&[1.0, 1.0, 1.0, 0.0, 0.0], &["4", "4", "4", "5", "5"], 3, Draw::WithoutReplacement).expect("k <= 5");
/// assert!((mean - 0.7).abs() < 1e-12);
/// ```
pub fn majority<A: AsRef<str>>(values: &[f64], answers: &[A], k: usize, draw: Draw) -> Option<(f64, f64)> {
    let n = values.len();
    if n == 0 || k == 0 || answers.len() != n || (draw == Draw::WithoutReplacement && k > n) {
        return None;
    }
    let mut members: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (answer, &value) in answers.iter().zip(values) {
        members.entry(answer.as_ref()).or_default().push(value);
    }
    let sizes: Vec<usize> = members.values().map(Vec::len).collect();
    // Answers that are equally frequent win equally often.
    let mut chance_of: BTreeMap<usize, f64> = BTreeMap::new();
    for (place, &size) in sizes.iter().enumerate() {
        chance_of.entry(size).or_insert_with(|| {
            let others: Vec<usize> = sizes
                .iter()
                .enumerate()
                .filter(|&(other, _)| other != place)
                .map(|(_, &size)| size)
                .collect();
            chance_to_win(size, &others, k, draw)
        });
    }
    let outcomes: Vec<(f64, f64)> = members
        .values()
        .flat_map(|given| {
            let chance = chance_of.get(&given.len()).copied().unwrap_or(0.0) / given.len() as f64;
            given.iter().map(move |&value| (value, chance))
        })
        .collect();
    Some(moments(outcomes.iter().copied()))
}

/// Chance that an answer given `size` times wins k draws against the others.
fn chance_to_win(size: usize, others: &[usize], k: usize, draw: Draw) -> f64 {
    let total = size + others.iter().sum::<usize>();
    let mut won = 0.0;
    for count in 1..=k {
        let drawn = chance_of_count(count, k, size, total, draw);
        if drawn == 0.0 {
            continue;
        }
        // [draws left][answers tied]
        let mut states: BTreeMap<(usize, usize), f64> = BTreeMap::from([((k - count, 0), drawn)]);
        let mut population = total - size;
        for &other in others {
            let mut next = BTreeMap::new();
            for (&(left, ties), &chance) in &states {
                for taken in 0..=left.min(count) {
                    let step = chance_of_count(taken, left, other, population, draw);
                    if step > 0.0 {
                        *next.entry((left - taken, ties + usize::from(taken == count))).or_insert(0.0) +=
                            chance * step;
                    }
                }
            }
            states = next;
            population -= other;
        }
        won += states
            .iter()
            .filter(|&(&(left, _), _)| left == 0)
            .map(|(&(_, ties), &chance)| chance / (ties + 1) as f64)
            .sum::<f64>();
    }
    won
}

/// Chance that `count` of `draws` fall on `marked` of `total` samples: hypergeometric without, binomial with
/// replacement.
fn chance_of_count(count: usize, draws: usize, marked: usize, total: usize, draw: Draw) -> f64 {
    if count > draws {
        return 0.0;
    }
    if total == marked || draws == 0 {
        // Nothing else to draw, or nothing drawn.
        return if count == draws && (draws == 0 || draw == Draw::WithReplacement || draws <= marked) {
            1.0
        } else {
            0.0
        };
    }
    match draw {
        Draw::WithoutReplacement => {
            let unmarked = total - marked;
            if count > marked || draws - count > unmarked {
                return 0.0;
            }
            if draws == total {
                return 1.0;
            }
            // C(draws, count) times the chance of one order, factor by factor so that nothing
            // overflows.
            let hits: f64 = (0..count)
                .map(|i| (draws - i) as f64 / (i + 1) as f64 * ((marked - i) as f64 / (total - i) as f64))
                .product();
            let misses: f64 =
                (0..draws - count).map(|i| (unmarked - i) as f64 / (total - count - i) as f64).product();
            hits * misses
        }
        Draw::WithReplacement => {
            let share = marked as f64 / total as f64;
            let hits: f64 = (0..count).map(|i| (draws - i) as f64 / (i + 1) as f64 * share).product();
            hits * (1.0 - share).powf((draws - count) as f64)
        }
    }
}
