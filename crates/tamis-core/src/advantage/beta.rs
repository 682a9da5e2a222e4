//! The Beta distribution's density.

/// Coefficients of Lanczos' approximation for g = 7 and nine terms (Godfrey, 2001); relative error below
/// 1e-14 for arguments above 1/2.
#[expect(clippy::excessive_precision, reason = "as published")]
const LANCZOS: [f64; 9] = [
    0.999_999_999_999_809_93,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_13,
    -176.615_029_162_140_59,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_571_6e-6,
    1.505_632_735_149_311_6e-7,
];

/// ln Γ(x) for x > 0.
fn ln_gamma(x: f64) -> f64 {
    if x < 0.5 {
        // Reflection.
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let shifted = x + 7.5;
    let mut series = LANCZOS[0];
    for (k, coefficient) in LANCZOS.iter().enumerate().skip(1) {
        series += coefficient / (x + k as f64);
    }
    0.5 * std::f64::consts::TAU.ln() + (x + 0.5) * shifted.ln() - shifted + series.ln()
}

/// Density of Beta(alpha, beta) at p, for alpha, beta > 0 and p in `[0, 1]`. At the ends it is 0, finite or
/// infinite according to the exponents.
///
/// `p^(alpha - 1)·(1 - p)^(beta - 1) / B(alpha, beta)`.
pub(super) fn density(p: f64, alpha: f64, beta: f64) -> f64 {
    let exponents = [alpha - 1.0, beta - 1.0];
    if exponents.iter().all(|exponent| *exponent == 0.0) {
        // Uniform, and exactly 1.
        return 1.0;
    }
    // An exponent of 0 makes its factor 1 even if the base is 0.
    let log_factor = |base: f64, exponent: f64| if exponent == 0.0 { 0.0 } else { exponent * base.ln() };
    let log_norm = ln_gamma(alpha) + ln_gamma(beta) - ln_gamma(alpha + beta);
    (log_factor(p, exponents[0]) + log_factor(1.0 - p, exponents[1]) - log_norm).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-13 * b.abs()
    }

    #[test]
    fn closed_forms() {
        // Uniform; 2(1 - p); 6p(1 - p); the semicircle 8/π·√(p(1 - p)); the arcsine 1/(π·√(p(1 - p))).
        for p in [0.01_f64, 0.3, 0.5, 0.75, 0.999] {
            let root = (p * (1.0 - p)).sqrt();
            assert!(close(density(p, 1.0, 1.0), 1.0));
            assert!(close(density(p, 1.0, 2.0), 2.0 * (1.0 - p)));
            assert!(close(density(p, 2.0, 2.0), 6.0 * p * (1.0 - p)));
            assert!(close(density(p, 1.5, 1.5), 8.0 / std::f64::consts::PI * root));
            assert!(close(density(p, 0.5, 0.5), 1.0 / (std::f64::consts::PI * root)));
            // 0.25 exercises the reflection: B(1/4, 3/4) = π·√2.
            let quarter = p.powf(-0.75) * (1.0 - p).powf(-0.25) / (std::f64::consts::PI * 2_f64.sqrt());
            assert!(close(density(p, 0.25, 0.75), quarter));
        }
        assert!(close(density(0.0, 1.0, 3.0), 3.0) && density(0.0, 2.0, 1.0).abs() < f64::MIN_POSITIVE);
        assert!(density(1.0, 2.0, 0.5).is_infinite());
    }
}
