//! Charts as SVG inside a page, which need nothing else.
//!
//! ```text
//! values -> a frame with axes (axis.rs) -> lines (line.rs), stacked columns (stack.rs), cells (heat.rs)
//!                                          named dots (scatter.rs), lying bars (bars.rs),
//!                                          or a sparkline without axes (spark.rs)
//! ```
//! Colours are classes (`c0` to `c7`, `h0` to `h10`, fills `s0` to `s9`), which the style sheet of a page
//! gives a value for light and dark screens and for paper. Nothing is told by colour alone: lines have
//! dashes, layers patterns, and under a chart its numbers stand in a table.

pub mod axis;
pub mod bars;
pub mod heat;
pub mod line;
pub mod scatter;
pub mod spark;
pub mod stack;

/// Number of colours of lines and layers.
pub const NUM_COLOURS: usize = 8;
/// Number of steps between the lowest and the highest value of a scale of colours.
pub const NUM_LEVELS: usize = 11;

/// The step of the scale of colours for a value in a range.
pub fn level(value: f64, (low, high): (f64, f64)) -> usize {
    if high <= low || value.is_nan() {
        return NUM_LEVELS / 2;
    }
    let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
    (share * (NUM_LEVELS - 1) as f64).round() as usize
}
