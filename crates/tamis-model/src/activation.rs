//! SwiGLU: `silu(gate) * up` with `silu(x) = x / (1 + e^-x)`.

use crate::simd::lanes::exp;
use crate::simd::multiversion;
use crate::threads::{Parts, Threads};

/// Values per task.
const CHUNK: usize = 16 * 1024;

multiversion! {
    /// `out = silu(gate) * up`.
    fn gate_forward<F>(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp::<F>(-gate)) * up;
        }
    }
}

multiversion! {
    /// Expects the derivative by the output in `d`. Leaves the derivatives by gate and up in `gate` and `up`,
    /// and the output in `d`.
    fn gate_backward<F>(gate: &mut [f32], up: &mut [f32], d: &mut [f32]) {
        for ((gate, up), d) in gate.iter_mut().zip(up.iter_mut()).zip(d.iter_mut()) {
            let sigmoid = 1.0 / (1.0 + exp::<F>(-*gate));
            let silu = *gate * sigmoid;
            let slope = sigmoid * (1.0 + *gate * (1.0 - sigmoid));
            let out = silu * *up;
            *gate = *d * *up * slope;
            *up = *d * silu;
            *d = out;
        }
    }
}

pub(crate) fn forward(threads: &Threads, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let num_tasks = out.len().div_ceil(CHUNK);
    let parts = Parts::chunks(out, CHUNK);
    threads.run(num_tasks, |task| {
        let out = parts.take(task);
        let here = task * CHUNK..task * CHUNK + out.len();
        gate_forward(threads.level(), &gate[here.clone()], &up[here], out);
    });
}

pub(crate) fn backward(threads: &Threads, gate: &mut [f32], up: &mut [f32], d: &mut [f32]) {
    let num_tasks = d.len().div_ceil(CHUNK);
    let (gate, up, d) = (Parts::chunks(gate, CHUNK), Parts::chunks(up, CHUNK), Parts::chunks(d, CHUNK));
    threads
        .run(num_tasks, |task| gate_backward(threads.level(), gate.take(task), up.take(task), d.take(task)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_and_gradient() {
        let threads = Threads::new(2);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let gates: Vec<f32> = (-40..40).map(|i| i as f32 * 0.25).collect();
        let ups: Vec<f32> = (0..80).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut out = vec![0.0; 80];
        forward(&threads, &gates, &ups, &mut out);
        let (mut dgate, mut dup, mut d) = (gates.clone(), ups.clone(), vec![2.0; 80]);
        backward(&threads, &mut dgate, &mut dup, &mut d);
        assert_eq!(d, out.iter().zip(&d).map(|(_, &d)| d).collect::<Vec<_>>());
        for i in 0..80 {
            let (g, u) = (f64::from(gates[i]), f64::from(ups[i]));
            assert!((f64::from(out[i]) - silu(g) * u).abs() < 1e-6);
            assert!((d[i] - out[i]).abs() < 1e-6);
            let slope = (silu(g + 1e-5) - silu(g - 1e-5)) / 2e-5;
            assert!((f64::from(dgate[i]) - 2.0 * u * slope).abs() < 1e-5);
            assert!((f64::from(dup[i]) - 2.0 * silu(g)).abs() < 1e-5);
        }
    }
}
