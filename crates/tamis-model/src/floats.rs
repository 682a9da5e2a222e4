//! `Floats`: a vector of `f32` aligned to cache lines, so that vector loads never straddle two.

use std::ops::{Deref, DerefMut};

/// Values of a cache line.
const LINE: usize = 16;

/// Up to so many values (1 MiB), growth doubles the memory.
const DOUBLED: usize = 1 << 18;

/// A 64-byte aligned `[f32]` that grows and shrinks like a `Vec`.
///
/// Large vectors get their zeros from the system, which maps a page when it is first written. An allocation
/// aligned to cache lines would be zeroed at once, so gradients and moments would use memory even when
/// nothing is trained. Therefore the allocation has the usual alignment, and the values begin at its first
/// whole cache line.
#[derive(Default)]
pub(crate) struct Floats {
    values: Vec<f32>,
    /// Number of `values` before the first whole line.
    begin: usize,
    len: usize,
}

impl Floats {
    pub(crate) const fn new() -> Self {
        Self { values: Vec::new(), begin: 0, len: 0 }
    }

    pub(crate) fn zeros(len: usize) -> Self {
        let values = vec![0.0; len + LINE - 1];
        let begin = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE - 1);
        Self { values, begin, len }
    }

    /// The greatest length without more memory.
    pub(crate) fn room(&self) -> usize {
        self.values.len().saturating_sub(LINE - 1)
    }

    /// Sets the length to `len`. All values must then be written: old ones are lost if memory is reallocated,
    /// and stale if not.
    ///
    /// Large buffers get exactly the memory that they need, and the old memory is freed first. So a run uses
    /// no more than the estimate it printed.
    pub(crate) fn resize(&mut self, len: usize) {
        let room = self.room();
        if len > room {
            *self = Self::new();
            *self = Self::zeros(len.max((2 * room).min(DOUBLED)));
        }
        self.len = len;
    }
}

impl Clone for Floats {
    fn clone(&self) -> Self {
        let mut clone = Self::zeros(self.len);
        clone.copy_from_slice(self);
        clone
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[self.begin..self.begin + self.len]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.begin..self.begin + self.len]
    }
}

impl std::fmt::Debug for Floats {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Floats[{}]", self.len)
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and compares what must be exact"
)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn zeros_take_memory_where_they_are_written_to() {
        let resident_kib = || -> usize {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let before = resident_kib();
        let mut floats = Floats::zeros(1 << 28);
        floats[1 << 27] = 1.0;
        // Of 1 GiB. Other tests allocate some meanwhile.
        assert!(resident_kib() < before + (512 << 10), "{before}");
        assert!(floats[1 << 20] == 0.0 && floats[1 << 27] == 1.0);
    }

    #[test]
    fn values_are_aligned_and_the_length_is_exact() {
        let is_aligned = |floats: &Floats| (floats.as_ptr() as usize).is_multiple_of(64);
        let mut floats = Floats::zeros(17);
        assert!(floats.len() == 17 && is_aligned(&floats));
        floats[16] = 2.0;
        floats.resize(3);
        assert_eq!(&floats[..], [0.0; 3]);
        floats.resize(17);
        assert_eq!((floats.len(), floats[16]), (17, 2.0));
        // Small vectors reserve room to grow, large ones do not.
        floats.resize(18);
        assert!(floats.len() == 18 && floats.values.len() == 34 + LINE - 1 && is_aligned(&floats));
        floats.resize(DOUBLED + 5);
        assert!(floats.values.len() == DOUBLED + 5 + LINE - 1 && is_aligned(&floats));
        for _ in 0..4 {
            let clone = floats.clone();
            assert!(clone[..] == floats[..] && is_aligned(&clone));
        }
        assert!(Floats::default().is_empty());
    }
}
