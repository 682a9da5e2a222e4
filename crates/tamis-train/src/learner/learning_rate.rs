//! Learning-rate schedules: pure functions of the update and the number of updates.
//!
//! `update` counts from 0: the rate of the first optimizer update is `rate(.., 0, ..)`. The factors are those
//! of `transformers.get_scheduler`, read at the same place (`LambdaLR` evaluates them at 0 before the first
//! update), so the first update of a warm-up of one or more updates has rate 0 there and here.

use tamis_config::LrScheduleKind;

/// Peak, warm-up and decay.
///
/// With W warm-up updates, T updates in all, floor ratio m and peak p, the rate of update u is p·f(u):
///
/// - u < W: f = u / W, whatever the decay (as `get_constant_schedule_with_warmup`);
/// - `Constant`: f = 1;
/// - `Linear`: f = m + (1−m)·x with x = max(0, T−u) / max(1, T−W) (as `get_linear_schedule_with_warmup` for m
///   = 0);
/// - `Cosine`: f = m + (1−m)·max(0, ½(1 + cos(π·y))) with y = (u−W) / max(1, T−W) (as
///   `get_cosine_schedule_with_warmup` for m = 0, `get_cosine_with_min_lr_schedule_with_warmup` and verl's
///   `min_lr_ratio` otherwise).
///
/// From u = T on the rate stays at the floor; `transformers`' cosine rises again there, which no run reaches.
///
/// ```
/// use tamis_config::LrScheduleKind;
/// use tamis_train::learner::learning_rate::LearningRate;
/// let decay = LrScheduleKind::Linear;
/// let schedule = LearningRate { peak: 1e-3, warm_up: 2, decay, min_ratio: 0.0 };
/// let rates: Vec<f64> = (0..=6).map(|update| schedule.rate(update, 6)).collect();
/// assert_eq!(rates, [0.0, 0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0.0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// The highest rate, reached at the end of the warm-up.
    pub peak: f64,
    /// Number of updates over which the rate rises from 0.
    pub warm_up: u64,
    /// Form of the decay after the warm-up.
    pub decay: LrScheduleKind,
    /// The floor as a share of the peak, in `0..=1`; without effect for `Constant`.
    pub min_ratio: f64,
}

impl LearningRate {
    /// A rate that never changes.
    pub fn constant(peak: f64) -> Self {
        Self { peak, warm_up: 0, decay: LrScheduleKind::Constant, min_ratio: 0.0 }
    }

    /// Rate of update `update` (from 0) of `num_updates`.
    pub fn rate(&self, update: u64, num_updates: u64) -> f64 {
        self.peak * self.factor(update, num_updates)
    }

    /// The rate as a share of the peak.
    pub fn factor(&self, update: u64, num_updates: u64) -> f64 {
        if update < self.warm_up {
            return update as f64 / self.warm_up as f64;
        }
        let span = num_updates.saturating_sub(self.warm_up).max(1) as f64;
        let share = match self.decay {
            LrScheduleKind::Constant => return 1.0,
            LrScheduleKind::Linear => num_updates.saturating_sub(update) as f64 / span,
            LrScheduleKind::Cosine => {
                let progress = ((update - self.warm_up) as f64 / span).min(1.0);
                (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0)
            }
        };
        self.min_ratio + (1.0 - self.min_ratio) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(decay: LrScheduleKind, warm_up: u64, min_ratio: f64, total: u64) -> Vec<f64> {
        let schedule = LearningRate { peak: 1.0, warm_up, decay, min_ratio };
        (0..=total).map(|update| schedule.factor(update, total)).collect()
    }

    fn assert_close(actual: &[f64], expected: &[f64]) {
        assert_eq!(actual.len(), expected.len());
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() < 1e-12, "{actual:?} {expected:?}");
        }
    }

    #[test]
    fn by_hand() {
        assert_close(&factors(LrScheduleKind::Constant, 0, 0.0, 3), &[1.0; 4]);
        assert_close(&factors(LrScheduleKind::Constant, 2, 0.0, 4), &[0.0, 0.5, 1.0, 1.0, 1.0]);
        assert_close(&factors(LrScheduleKind::Linear, 0, 0.0, 4), &[1.0, 0.75, 0.5, 0.25, 0.0]);
        assert_close(&factors(LrScheduleKind::Linear, 0, 0.2, 4), &[1.0, 0.8, 0.6, 0.4, 0.2]);
        let half = std::f64::consts::FRAC_1_SQRT_2 / 2.0;
        assert_close(&factors(LrScheduleKind::Cosine, 0, 0.0, 4), &[1.0, 0.5 + half, 0.5, 0.5 - half, 0.0]);
        assert_close(&factors(LrScheduleKind::Cosine, 1, 0.1, 3), &[0.0, 1.0, 0.55, 0.1]);
    }

    /// The formulas as `transformers.optimization` writes them (5.23), typed here a second time.
    #[test]
    fn equal_to_transformers() {
        for total in [1_i32, 2, 5, 10, 37] {
            for warm_up in [0, 1, 3, 10, 50] {
                for update in 0..=total {
                    let (u, w, t) = (f64::from(update), f64::from(warm_up), f64::from(total));
                    let warming = u < w;
                    let constant = if warming { u / w.max(1.0) } else { 1.0 };
                    let linear = if warming { u / w.max(1.0) } else { ((t - u) / (t - w).max(1.0)).max(0.0) };
                    let progress = (u - w) / (t - w).max(1.0);
                    let wave = (0.5 * (1.0 + (std::f64::consts::PI * 0.5 * 2.0 * progress).cos())).max(0.0);
                    let cosine = if warming { u / w.max(1.0) } else { wave };
                    let floored = if warming { u / w.max(1.0) } else { (wave * (1.0 - 0.3) + 0.3).max(0.0) };
                    let ours = |decay, min_ratio| {
                        LearningRate { peak: 1.0, warm_up: warm_up as u64, decay, min_ratio }
                            .factor(update as u64, total as u64)
                    };
                    assert_close(
                        &[
                            ours(LrScheduleKind::Constant, 0.0),
                            ours(LrScheduleKind::Linear, 0.0),
                            ours(LrScheduleKind::Cosine, 0.0),
                            ours(LrScheduleKind::Cosine, 0.3),
                        ],
                        &[constant, linear, cosine, floored],
                    );
                }
            }
        }
    }

    #[test]
    fn the_floor_holds_after_the_end() {
        for decay in [LrScheduleKind::Linear, LrScheduleKind::Cosine] {
            let schedule = LearningRate { peak: 2.0, warm_up: 3, decay, min_ratio: 0.25 };
            for update in [10, 11, 1000, u64::MAX] {
                assert!((schedule.rate(update, 10) - 0.5).abs() < 1e-12);
            }
        }
    }
}
