//! A critic's head: one number per scored row, `w·x + b` of the normalised row.

use super::gradients::Gradients;
use super::layer::LayerContext;
use crate::simd::lanes::dot;
use crate::simd::multiversion;
use crate::threads::Parts;

/// Rows per task.
const ROWS: usize = 64;

multiversion! {
    /// `w·x + b` for each row, independent of all other rows.
    fn heights<F>(rows: &[f32], w: &[f32], bias: f32, out: &mut [f32]) {
        for (row, out) in rows.chunks_exact(w.len()).zip(out) {
            *out = dot::<F>(row, w) + bias;
        }
    }
}

multiversion! {
    /// Takes the derivative by each row's value. Sets the derivative by the row, and adds to that by the
    /// weights, row after row.
    fn heights_backward<F>(rows: &[f32], w: &[f32], upstream: &[f32], dx: &mut [f32], dw: &mut [f32]) {
        let width = w.len();
        for ((row, dx), &slope) in rows.chunks_exact(width).zip(dx.chunks_exact_mut(width)).zip(upstream) {
            for ((dx, dw), (&x, &w)) in dx.iter_mut().zip(dw.iter_mut()).zip(row.iter().zip(w)) {
                *dx = slope * w;
                *dw = F::fma(slope, x, *dw);
            }
        }
    }
}

/// Values of a chunk's targets, in the order of its sequences. A target's value is that of the row before it.
pub(super) fn forward(context: &LayerContext, normed: &[f32], out: &mut [f32]) {
    let (weight, bias) = head(context);
    let width = weight.len();
    let mut values = vec![0.0; normed.len() / width];
    {
        let num_tasks = values.len().div_ceil(ROWS);
        let parts = Parts::chunks(&mut values, ROWS);
        context.threads.run(num_tasks, |task| {
            let values = parts.take(task);
            let rows = &normed[task * ROWS * width..][..values.len() * width];
            heights(context.threads.level(), rows, weight, bias, values);
        });
    }
    for (i, &value) in values.iter().enumerate() {
        for target in context.batch.targets_of(i) {
            out[target.flat as usize] = value;
        }
    }
}

/// Sets the derivative by the normalised rows and adds to the gradients of weights and bias.
pub(super) fn backward(
    context: &LayerContext,
    normed: &[f32],
    upstream: &[f32],
    derivative: &mut [f32],
    gradients: &mut Gradients,
) {
    let (batch, layout) = (context.batch, context.model.layout());
    // A row that several sequences share has one value, and gets a derivative from each of them.
    let of_row = |i: usize| -> f32 {
        batch.targets_of(i).iter().map(|target| upstream[batch.first_flat + target.flat as usize]).sum()
    };
    let slopes: Vec<f32> = (0..batch.scored.len()).map(of_row).collect();
    let (weight, _) = head(context);
    let level = context.threads.level();
    heights_backward(level, normed, weight, &slopes, derivative, gradients.of_mut(layout.head));
    if let Some(bias) = layout.head_bias {
        for slope in &slopes {
            gradients.of_mut(bias)[0] += slope;
        }
    }
}

fn head<'a>(context: &LayerContext<'a>) -> (&'a [f32], f32) {
    let (model, layout) = (context.model, context.model.layout());
    (model.weight(layout.head), layout.head_bias.map_or(0.0, |bias| model.weight(bias)[0]))
}
