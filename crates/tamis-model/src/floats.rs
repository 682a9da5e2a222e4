//! `Floats`: a vector of `f32` aligned to cache lines, so that vector loads never straddle two.
#![expect(
    unsafe_code,
    reason = "a slice of 64-byte lines is viewed as a slice of f32: same bytes, weaker alignment"
)]

use std::ops::{Deref, DerefMut};

/// One cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// A 64-byte aligned `[f32]` that grows and shrinks like a `Vec`.
#[derive(Clone, Default)]
pub(crate) struct Floats {
    lines: Vec<Line>,
    len: usize,
}

impl Floats {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self { lines: Vec::new(), len: 0 }
    }

    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        Self { lines: vec![Line([0.0; LINE]); len.div_ceil(LINE)], len }
    }

    /// Makes the length `len`; memory is kept, and what lies beyond the old length may be stale.
    pub(crate) fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(LINE);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0.0; LINE]));
        }
        self.len = len;
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `lines` holds at least `len` initialised f32 in one allocation (`Line` is `repr(C)` of f32
        // without padding).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl std::fmt::Debug for Floats {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Floats[{}]", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_the_length_is_exact() {
        let mut floats = Floats::zeros(17);
        assert_eq!((floats.len(), floats.as_ptr() as usize % 64), (17, 0));
        floats[16] = 2.0;
        floats.resize(40);
        assert_eq!((floats.len(), floats[16], floats[39]), (40, 2.0, 0.0));
        floats.resize(3);
        assert_eq!(&floats[..], [0.0; 3]);
        floats.resize(17);
        assert_eq!((floats.len(), floats[16]), (17, 2.0));
        assert!(Floats::default().is_empty());
    }
}
