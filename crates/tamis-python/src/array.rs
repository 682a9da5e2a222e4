//! Columns of numbers for Python: `array.array`, which has the buffer protocol, so numpy and PyTorch read it
//! without a copy.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A number that an `array.array` holds.
pub(crate) trait Item: Copy {
    /// Its type code.
    const CODE: &'static str;

    /// Appends its bytes in this machine's byte order.
    fn write(self, bytes: &mut Vec<u8>);
}

macro_rules! items {
    ($($type:ty = $code:literal),*) => {$(
        impl Item for $type {
            const CODE: &'static str = $code;

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

items! { f32 = "f", f64 = "d", u64 = "Q", u8 = "B" }

/// Numbers as an `array.array`.
pub(crate) fn array<'py, T: Item>(py: Python<'py>, numbers: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let mut bytes = Vec::with_capacity(size_of_val(numbers));
    for number in numbers {
        number.write(&mut bytes);
    }
    py.import("array")?.getattr("array")?.call1((T::CODE, PyBytes::new(py, &bytes)))
}

/// Offsets as an `array.array`.
pub(crate) fn offsets<'py>(py: Python<'py>, offsets: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let offsets: Vec<u64> = offsets.iter().map(|offset| *offset as u64).collect();
    array(py, &offsets)
}
