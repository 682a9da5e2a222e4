//! Linear layers: `y = x·Wᵀ + b`, its derivatives by x and by W.

use crate::floats::Floats;
use crate::layout::TensorOrder;
use crate::model::Model;
use crate::panels::{self, flip_slab, pack_slabs};
use crate::product::{ChainStart, Left, Out, ProductShape, Right, Rows, RowsMut, product, product_parallel};
use crate::simd::PANEL;
use crate::threads::{Parts, Threads};
use crate::training::Gradients;

/// Slabs packed per task.
const SLABS: usize = 8;

/// Sizes of a weight `[n][k]`: `n` outputs of `k` inputs.
struct Sizes {
    n: usize,
    k: usize,
}

impl Sizes {
    fn of(model: &Model, weight: usize) -> Self {
        match model.layout().tensors[weight].shape[..] {
            [n, k] => Self { n, k },
            _ => Self { n: 0, k: 0 },
        }
    }
}

/// `out = input·Wᵀ (+ bias)`, or `out += input·Wᵀ`. `input` is `[rows][k]`.
pub(crate) fn forward(
    threads: &Threads,
    model: &Model,
    weight: usize,
    bias: Option<usize>,
    input: &[f32],
    out: RowsMut,
    mut begin: ChainStart,
) {
    let Sizes { n, k } = Sizes::of(model, weight);
    if let Some(bias) = bias {
        // The chain begins at the bias, in training and generation alike.
        let bias = model.weight(bias);
        for row in out.values.chunks_mut(out.stride) {
            match begin {
                ChainStart::Zero => row[..n].copy_from_slice(bias),
                ChainStart::Output => row.iter_mut().zip(bias).for_each(|(out, &bias)| *out += bias),
            }
        }
        begin = ChainStart::Output;
    }
    let shape = ProductShape { m: input.len() / k, n, k };
    let right = Right::panels(model.weight(weight), k);
    product_parallel(threads, shape, &Left::rows(input, k), &right, &mut out.into_out(), begin);
}

/// Weights in the order in which [`backward_input`] reads them.
pub(crate) struct Flipped<'a> {
    /// Result of [`flip_all`], by tensor.
    pub all: Option<&'a [Floats]>,
    /// Buffer for one flipped weight at a time, if none were prepared.
    pub scratch: &'a mut Floats,
}

/// Every matrix as [`backward_input`] reads it, by tensor.
pub(crate) fn flip_all(threads: &Threads, model: &Model, out: &mut Vec<Floats>) {
    out.resize_with(model.layout().tensors.len(), Floats::new);
    for (weight, out) in out.iter_mut().enumerate() {
        // Weights stored in rows (an embedding that is no head, a value head, norms and biases) are not
        // operands of a product.
        if model.layout().tensors[weight].order == TensorOrder::Panels {
            flip(threads, model, weight, out);
        }
    }
}

fn flip(threads: &Threads, model: &Model, weight: usize, out: &mut Floats) {
    let Sizes { n, k } = Sizes::of(model, weight);
    let num_slabs = k.div_ceil(PANEL);
    out.resize(num_slabs * n * PANEL);
    if n > 0 {
        let parts = Parts::chunks(out, n * PANEL);
        let panels = model.weight(weight);
        threads.run(num_slabs, |slab| flip_slab(threads.level(), panels, n, k, slab, parts.take(slab)));
    }
}

thread_local! {
    /// Columns of the derivative that a task multiplies with.
    static COLUMNS: std::cell::RefCell<Floats> = const { std::cell::RefCell::new(Floats::new()) };
}

/// `dx = dy·W` or `dx += dy·W`.
pub(crate) fn backward_input(
    threads: &Threads,
    model: &Model,
    weight: usize,
    dy: Rows,
    dx: &mut [f32],
    flipped: &mut Flipped,
    begin: ChainStart,
) {
    let Sizes { n, k } = Sizes::of(model, weight);
    let rows = dx.len() / k;
    let flipped = if let Some(all) = flipped.all {
        &all[weight]
    } else {
        flip(threads, model, weight, flipped.scratch);
        &*flipped.scratch
    };
    let shape = ProductShape { m: rows, n: k, k: n };
    product_parallel(
        threads,
        shape,
        &Left::rows(dy.values, dy.stride),
        &Right::panels(flipped, n),
        &mut Out::rows(dx, k),
        begin,
    );
}

/// An input `[rows][k]` packed for [`backward_weight`]; one packing serves every weight that read the input.
pub(crate) fn pack_input(threads: &Threads, input: &[f32], k: usize, packed: &mut Floats) {
    let rows = input.len() / k;
    let width = threads.level().tile_rows();
    let num_slabs = k.div_ceil(width);
    packed.resize(num_slabs * rows * width);
    if rows > 0 {
        let parts = Parts::chunks(packed, SLABS * rows * width);
        threads.run(num_slabs.div_ceil(SLABS), |task| {
            pack_slabs(input, task * SLABS, k, k, width, rows, parts.take(task));
        });
    }
}

/// `dW += dyᵀ·x` into panels, for all rows of `dy`; one chain over rows per weight. `packed` is x of
/// [`pack_input`].
pub(crate) fn backward_weight(
    threads: &Threads,
    model: &Model,
    weight: usize,
    packed: &Floats,
    dy: Rows,
    gradients: &mut Gradients,
) {
    let Sizes { n, k } = Sizes::of(model, weight);
    let rows = dy.values.len() / dy.stride;
    let gradient = gradients.of_mut(weight);
    let num_panels = n.div_ceil(PANEL);
    // Several panels per task, so that they share the passes over x.
    let width = (num_panels.div_ceil(4 * threads.num_threads())).clamp(1, 8);
    let parts = Parts::chunks(&mut gradient[..panels::len(n, k)], width * k * PANEL);
    threads.run(num_panels.div_ceil(width), |task| {
        let gradient = parts.take(task);
        let mine = gradient.len() / (k * PANEL);
        COLUMNS.with_borrow_mut(|columns| {
            columns.resize(mine * rows * PANEL);
            pack_slabs(dy.values, task * width, n, dy.stride, PANEL, rows, columns);
            let level = threads.level();
            let shape = ProductShape { m: k, n: mine * PANEL, k: rows };
            let (left, right) = (Left::packed_columns(packed, level, rows), Right::panels(columns, rows));
            product(level, shape, &left, &right, &mut Out::panels(gradient, k), ChainStart::Output);
        });
    });
}

/// `db += sum of rows of dy` in order.
pub(crate) fn backward_bias(dy: &[f32], stride: usize, gradient: &mut [f32]) {
    for row in dy.chunks_exact(stride) {
        for (out, &value) in gradient.iter_mut().zip(row) {
            *out += value;
        }
    }
}
