//! Cost of a batch in closed form, by the way in which it is filled.
//!
//! T groups are wanted, a round has G prompts, and the keep rate is k. The number of rounds is more than m
//! with probability P(Bin(mG, k) < T). A stream, and rounds that carry their surplus, generate 1/k groups for
//! each trained one. Rounds that drop their surplus generate (G/T) E\[rounds\].

use tamis_core::schedule::yields::prompts_for;

/// Above this number of rounds, the mean follows from the law of large numbers.
const MOST_ROUNDS: f64 = 2000.0;
/// Standard deviations at which a distribution is cut off.
const CUT: f64 = 9.0;

/// ln n!, by Stirling's series from 16.
fn ln_factorial(n: f64) -> f64 {
    if n < 16.0 {
        return (2..=n as u64).map(|i| (i as f64).ln()).sum();
    }
    let inverse = 1.0 / n;
    n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + inverse / 12.0 - inverse.powi(3) / 360.0
        + inverse.powi(5) / 1260.0
}

/// ln P(Bin(n, k) = i), k in (0, 1).
fn ln_mass(n: usize, k: f64, i: usize) -> f64 {
    let (all, some) = (n as f64, i as f64);
    ln_factorial(all) - ln_factorial(some) - ln_factorial(all - some)
        + some * k.ln()
        + (all - some) * (-k).ln_1p()
}

/// P(Bin(n, k) = i), k in (0, 1).
fn mass(n: usize, k: f64, i: usize) -> f64 {
    ln_mass(n, k, i).exp()
}

/// ln P(Bin(n, k) >= t), also for probabilities that underflow.
///
/// ```
/// use tamis_lab::cost::rounds::ln_at_least;
/// assert!((ln_at_least(2, 0.5, 1) - 0.75_f64.ln()).abs() < 1e-12);
/// // A single term that underflows: 0.001 to the power of 400.
/// assert!((ln_at_least(400, 0.001, 400) - 400.0 * 0.001_f64.ln()).abs() < 1e-6);
/// assert_eq!((ln_at_least(3, 0.2, 0), ln_at_least(3, 0.0, 1)), (0.0, f64::NEG_INFINITY));
/// ```
pub fn ln_at_least(n: usize, k: f64, t: usize) -> f64 {
    if t == 0 {
        return 0.0;
    }
    if t > n || k <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if k >= 1.0 || (t as f64) < n as f64 * k {
        return (-below(n, k, t)).ln_1p();
    }
    // Summed from the largest term, as multiples of it.
    let ratio = k / (1.0 - k);
    let (mut sum, mut term) = (0.0, 1.0);
    for i in t..=n {
        sum += term;
        term *= (n - i) as f64 * ratio / (i + 1) as f64;
        if term < sum * 1e-17 {
            break;
        }
    }
    (ln_mass(n, k, t) + f64::ln(sum)).min(0.0)
}

/// P(Bin(n, k) < t): the probability that n prompts leave a batch of t groups short.
///
/// ```
/// use tamis_lab::cost::rounds::below;
/// assert!((below(2, 0.5, 1) - 0.25).abs() < 1e-12);
/// assert_eq!((below(3, 0.5, 4), below(3, 0.5, 0), below(3, 1.0, 3)), (1.0, 0.0, 0.0));
/// ```
pub fn below(n: usize, k: f64, t: usize) -> f64 {
    if t == 0 {
        return 0.0;
    }
    if t > n {
        return 1.0;
    }
    if k <= 0.0 || k >= 1.0 {
        return f64::from(u8::from(k <= 0.0));
    }
    // Summed from the border away from the mean, so terms fall.
    let ratio = k / (1.0 - k);
    let is_lower = (t as f64) < n as f64 * k;
    let mut sum = 0.0;
    if is_lower {
        let mut term = mass(n, k, t - 1);
        for i in (0..t).rev() {
            sum += term;
            term *= i as f64 / ((n - i + 1) as f64 * ratio);
            if term < sum * 1e-17 {
                break;
            }
        }
        sum.min(1.0)
    } else {
        let mut term = mass(n, k, t);
        for i in t..=n {
            sum += term;
            term *= (n - i) as f64 * ratio / (i + 1) as f64;
            if term < sum * 1e-17 {
                break;
            }
        }
        (1.0 - sum).max(0.0)
    }
}

/// The rounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// Groups wanted, T.
    pub train: usize,
    /// Prompts per round, G.
    pub generated: usize,
    /// Keep rate, k.
    pub keep: f64,
}

impl Rounds {
    /// P(rounds > m).
    pub fn more_than(self, m: u64) -> f64 {
        let prompts = usize::try_from(m).unwrap_or(usize::MAX).saturating_mul(self.generated);
        below(prompts, self.keep, self.train)
    }

    /// E\[rounds\]; `None` if nothing is kept.
    pub fn mean(self) -> Option<f64> {
        let about = self.train as f64 / (self.generated.max(1) as f64 * self.keep);
        if !about.is_finite() || self.generated == 0 {
            return None;
        }
        if about > MOST_ROUNDS {
            return Some(about + 0.5);
        }
        let mut mean = 0.0;
        for m in 0.. {
            let more = self.more_than(m);
            mean += more;
            if more < 1e-12 {
                break;
            }
        }
        Some(mean)
    }

    /// The smallest number of rounds that is exceeded with at most this probability; `None` above `most`.
    pub fn exceeded_with(self, probability: f64, most: u64) -> Option<u64> {
        (1..=most).find(|m| self.more_than(*m) <= probability)
    }

    /// (G/T) E\[rounds\]: generated groups per trained one if surplus is dropped.
    pub fn cost(self) -> Option<f64> {
        Some(self.generated as f64 / self.train.max(1) as f64 * self.mean()?)
    }
}

/// Expected rounds, and generated groups per trained one, if each round requests what the batch lacks:
/// `w = (d + z √(d (1 - k))) / k` prompts for d missing groups, rounded up to a multiple of the granularity.
/// Surplus is dropped. `None` if (almost) nothing is kept.
pub fn deficit(train: usize, keep: f64, margin: f64, granularity: usize) -> Option<(f64, f64)> {
    if keep <= 0.0 || train == 0 || train as f64 / keep > 1e7 {
        return None;
    }
    // Probability that a round starts with this many groups missing, from the largest number down.
    let mut lacks = vec![0.0; train + 1];
    lacks[train] = 1.0;
    let (mut rounds, mut generated) = (0.0, 0.0);
    for lack in (1..=train).rev() {
        let mut chance = lacks[lack];
        if chance < 1e-9 {
            continue;
        }
        let wanted = prompts_for(lack, keep, margin).ceil().max(1.0) as usize;
        let prompts = wanted.next_multiple_of(granularity.max(1));
        // A round that keeps nothing is repeated.
        chance /= 1.0 - mass(prompts, keep, 0).min(1.0 - 1e-9);
        rounds += chance;
        generated += chance * prompts as f64;
        let (mean, deviation) = (prompts as f64 * keep, (prompts as f64 * keep * (1.0 - keep)).sqrt());
        let first = (mean - CUT * deviation).floor().max(1.0) as usize;
        for kept in first..lack.min((mean + CUT * deviation).ceil() as usize + 1) {
            lacks[lack - kept] += chance * mass(prompts, keep, kept);
        }
    }
    Some((rounds, generated / train as f64))
}

/// The smallest round that fills a batch by itself with at least this probability, in multiples of a
/// granularity.
pub fn filling_round(train: usize, keep: f64, probability: f64, granularity: usize) -> Option<usize> {
    if keep <= 0.0 || train as f64 / keep > 1e7 {
        return None;
    }
    let first = train.next_multiple_of(granularity.max(1));
    let most = (4.0 * train as f64 / keep) as usize + 64 * granularity.max(1);
    (first..=most)
        .step_by(granularity.max(1))
        .find(|prompts| 1.0 - below(*prompts, keep, train) >= probability)
}

/// The granularity of a batch's rounds: a power of two, about an eighth of the batch.
pub fn granularity(train: usize) -> usize {
    let eighth = (train / 8).max(1);
    1 << eighth.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binomial_by_hand() {
        // (1/2)^5 (1 + 5 + 10).
        assert!((below(5, 0.5, 3) - 0.5).abs() < 1e-12);
        // 0.9^10.
        assert!((below(10, 0.1, 1) - 0.348_678_440_1).abs() < 1e-9);
        assert!((below(40, 0.3, 13) - (0..13).map(|i| mass(40, 0.3, i)).sum::<f64>()).abs() < 1e-12);
        let all: f64 = (0..=5000).map(|i| mass(5000, 0.37, i)).sum();
        assert!((all - 1.0).abs() < 1e-9, "{all}");
    }

    #[test]
    fn keep_rates_at_the_ends() {
        assert_eq!(Rounds { train: 8, generated: 8, keep: 0.0 }.mean(), None);
        assert_eq!(Rounds { train: 8, generated: 8, keep: 1.0 }.mean(), Some(1.0));
        let rare = Rounds { train: 64, generated: 64, keep: 1e-6 }.mean().unwrap();
        assert!((rare / 1e6 - 1.0).abs() < 1e-3, "{rare}");
    }

    #[test]
    fn rounds_of_the_deficit_cost_little_more_than_one_over_k() {
        let (rounds, cost) = deficit(128, 0.466, 1.0, 1).unwrap();
        assert!(cost > 1.0 / 0.466 && cost < 1.1 / 0.466, "{cost}");
        assert!((1.1..1.4).contains(&rounds), "{rounds}");
        // Without a margin half of the first rounds are short.
        let (more, less) = deficit(128, 0.466, 0.0, 1).unwrap();
        assert!(more > rounds && less < cost);
        assert_eq!(deficit(16, 1.0, 1.0, 1), Some((1.0, 1.0)));
        assert_eq!(deficit(16, 0.0, 1.0, 1), None);
    }

    #[test]
    fn rounds_that_fill_a_batch() {
        let round = filling_round(128, 0.466, 0.9, 16).unwrap();
        assert!(
            round.is_multiple_of(16)
                && below(round, 0.466, 128) <= 0.1
                && below(round - 16, 0.466, 128) > 0.1
        );
        assert_eq!(filling_round(64, 1.0, 0.9, 8), Some(64));
        assert_eq!([granularity(1), granularity(64), granularity(100), granularity(512)], [1, 8, 8, 64]);
        let rounds = Rounds { train: 64, generated: 64, keep: 0.5 };
        let limit = rounds.exceeded_with(1e-3, 100).unwrap();
        assert!(rounds.more_than(limit) <= 1e-3 && rounds.more_than(limit - 1) > 1e-3);
    }
}
