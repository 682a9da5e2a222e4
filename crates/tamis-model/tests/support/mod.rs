//! Shared by the tests of gradients.

use tamis_core::random::{Key, Purpose};
use tamis_model::{Gradients, Model, Sequence};

/// Tokens, and the index of the first scored one.
pub(crate) fn sequences(rows: &[(Vec<u32>, usize)]) -> Vec<Sequence<'_>> {
    rows.iter().map(|(tokens, start)| Sequence { tokens, start: *start }).collect()
}

/// Every number is within a tolerance relative to the largest one of its tensor.
#[track_caller]
pub(crate) fn assert_near(a: &Gradients, b: &Gradients, tolerance: f32) {
    for ((name, _, a), (_, _, b)) in a.tensors().zip(b.tensors()) {
        let largest = a.iter().fold(1e-3f32, |max, x| max.max(x.abs()));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance * largest), "{name}");
    }
}

/// Compares a gradient with central differences along a random direction in every tensor. The result is one
/// number that every element of the gradient affects.
pub(crate) fn check_slopes(model: &Model, analytic: &Gradients, objective: impl Fn(&Model) -> f64) {
    let architecture = model.config().architecture;
    for (name, shape, gradient) in analytic.tensors() {
        let key = name.bytes().fold(Key::new(2, Purpose::Init), |key, byte| key.with(u64::from(byte)));
        let direction: Vec<f64> = (0..gradient.len() as u64).map(|i| key.normal(i)).collect();
        let slope: f64 = gradient.iter().zip(&direction).map(|(&g, d)| f64::from(g) * d).sum();
        let size = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let step = 1e-3;
        let moved = |sign: f64| {
            let mut moved = model.clone();
            assert!(moved.nudge(name, |i| (sign * step * direction[i]) as f32), "{name}");
            objective(&moved)
        };
        let difference = (moved(1.0) - moved(-1.0)) / (2.0 * step);
        assert!(size > 0.0, "{architecture:?} {name}");
        assert!(
            (slope - difference).abs() <= 0.02 * size.max(0.1),
            "{architecture:?} {name} {shape:?}: {slope} {difference} (norm {size})"
        );
    }
}
