//! RMSNorm (Zhang and Sennrich 2019): `y = w * x / sqrt(mean(x^2) + eps)`.

use crate::simd::lanes::dot;
use crate::simd::multiversion;
use crate::threads::{Parts, Threads};

/// Rows per task; also the rows of one partial sum of weight gradients, whatever the number of threads.
const ROWS: usize = 64;

multiversion! {
    /// Normalises each row of `x` (rows as long as `w`) into `y`.
    fn rms_norm<F>(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
        let width = w.len();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let r = 1.0 / (dot::<F>(x, x) / width as f32 + eps).sqrt();
            for ((y, &x), &w) in y.iter_mut().zip(x).zip(w) {
                *y = w * (x * r);
            }
        }
    }
}

multiversion! {
    /// Takes `dy`, adds to `dx` (or sets it) and adds to `dw`. With `r = 1 / sqrt(mean(x^2) + eps)`, the
    /// terms are `dx = r * (w dy) - x * r^3 / d * sum(w dy x)` and `dw = sum_rows dy x r`.
    fn rms_norm_backward<F>(x: &[f32], w: &[f32], eps: f32, dy: &[f32], add: bool, dx: &mut [f32], dw: &mut [f32]) {
        let width = w.len();
        let mut weighted = vec![0.0; width];
        for ((x, dy), dx) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let r = 1.0 / (dot::<F>(x, x) / width as f32 + eps).sqrt();
            for (((out, &dy), &w), (&x, dw)) in weighted.iter_mut().zip(dy).zip(w).zip(x.iter().zip(dw.iter_mut())) {
                *out = dy * w;
                *dw = F::fma(dy, x * r, *dw);
            }
            let pull = -r * r * r / width as f32 * dot::<F>(&weighted, x);
            for ((dx, &weighted), &x) in dx.iter_mut().zip(&weighted).zip(x) {
                let value = F::fma(weighted, r, x * pull);
                *dx = if add { *dx + value } else { value };
            }
        }
    }
}

pub(crate) fn forward(threads: &Threads, x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    let width = w.len();
    let num_tasks = (x.len() / width).div_ceil(ROWS);
    let parts = Parts::chunks(y, ROWS * width);
    threads.run(num_tasks, |task| {
        let y = parts.take(task);
        rms_norm(threads.level(), &x[task * ROWS * width..][..y.len()], w, eps, y);
    });
}

/// [`rms_norm_backward`] on the pool, adding to `dx`; weight gradients are summed per 64 rows, then in order.
pub(crate) fn backward(
    threads: &Threads,
    x: &[f32],
    w: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
    dw: &mut [f32],
) {
    let width = w.len();
    let num_tasks = (x.len() / width).div_ceil(ROWS);
    let mut sums = vec![0.0; num_tasks * width];
    {
        let (dx, sums) = (Parts::chunks(dx, ROWS * width), Parts::chunks(&mut sums, width));
        threads.run(num_tasks, |task| {
            let dx = dx.take(task);
            let here = task * ROWS * width..task * ROWS * width + dx.len();
            rms_norm_backward(
                threads.level(),
                &x[here.clone()],
                w,
                eps,
                &dy[here],
                true,
                dx,
                sums.take(task),
            );
        });
    }
    add_rows(&sums, dw);
}

/// Adds each row to `out`, in order.
pub(crate) fn add_rows(rows: &[f32], out: &mut [f32]) {
    for row in rows.chunks_exact(out.len()) {
        for (out, &value) in out.iter_mut().zip(row) {
            *out += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::SimdLevel;

    #[test]
    fn by_hand() {
        // mean square of (3, 4) is 12.5.
        let mut y = [0.0; 2];
        rms_norm(SimdLevel::detect(), &[3.0, 4.0], &[1.0, 2.0], 0.0, &mut y);
        let r = 1.0 / 12.5f32.sqrt();
        assert!((y[0] - 3.0 * r).abs() < 1e-6 && (y[1] - 8.0 * r).abs() < 1e-6, "{y:?}");
    }

    #[test]
    fn gradient_is_the_central_difference() {
        let width = 19;
        let key = tamis_core::random::Key::new(3, tamis_core::random::Purpose::Init);
        let draw =
            |salt: u64, n: usize| (0..n as u64).map(|i| key.with(salt).normal(i) as f32).collect::<Vec<_>>();
        let (x, w, dy) = (draw(1, 2 * width), draw(2, width), draw(3, 2 * width));
        let objective = |x: &[f32], w: &[f32]| {
            let mut y = vec![0.0; x.len()];
            rms_norm(SimdLevel::detect(), x, w, 1e-6, &mut y);
            y.iter().zip(&dy).map(|(&y, &d)| f64::from(y) * f64::from(d)).sum::<f64>()
        };
        let (mut dx, mut dw) = (vec![0.0; 2 * width], vec![0.0; width]);
        backward(&Threads::new(2), &x, &w, 1e-6, &dy, &mut dx, &mut dw);
        let step = 1e-2f32;
        for i in 0..2 * width {
            let (mut up, mut down) = (x.clone(), x.clone());
            up[i] += step;
            down[i] -= step;
            let slope = (objective(&up, &w) - objective(&down, &w)) / (2.0 * f64::from(step));
            assert!((slope - f64::from(dx[i])).abs() < 2e-3, "dx[{i}]: {slope} {}", dx[i]);
        }
        for i in 0..width {
            let (mut up, mut down) = (w.clone(), w.clone());
            up[i] += step;
            down[i] -= step;
            let slope = (objective(&x, &up) - objective(&x, &down)) / (2.0 * f64::from(step));
            assert!((slope - f64::from(dw[i])).abs() < 2e-3, "dw[{i}]: {slope} {}", dw[i]);
        }
    }
}
