//! Ragged arrays: rows of different lengths, flat and never padded.

use crate::fault;
use crate::fault::Fault;
use serde::{Deserialize, Serialize};

/// B rows over one flat vector: row i is `values[offsets[i]..offsets[i + 1]]`.
///
/// ```
/// use tamis_core::ragged::Ragged;
/// let lengths = Ragged::from_rows([vec![1, 2], vec![], vec![3]]);
/// assert_eq!(lengths.offsets(), [0, 2, 2, 3]);
/// assert_eq!(lengths.row(2), [3]);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ragged<T> {
    values: Vec<T>,
    offsets: Vec<usize>,
}

/// `Ok` if a column has as many values as expected, otherwise an error with both.
pub(crate) fn check_length(column: &'static str, expected: usize, actual: usize) -> Result<(), Fault> {
    if expected == actual {
        Ok(())
    } else {
        Err(fault!("column `{column}` has {actual} values, expected {expected}"))
    }
}

/// Tokens between the first offset and the last; fails if a trajectory ends before its start.
pub(crate) fn num_tokens(offsets: &[usize]) -> Result<usize, Fault> {
    if let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return Err(fault!("offsets of trajectory {row} go backwards"));
    }
    Ok(match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => last - first,
        _ => 0,
    })
}

impl<T> Default for Ragged<T> {
    fn default() -> Self {
        Self { values: Vec::new(), offsets: vec![0] }
    }
}

impl<T> Ragged<T> {
    /// Copies rows into one flat vector.
    pub fn from_rows<R: AsRef<[T]>>(rows: impl IntoIterator<Item = R>) -> Self
    where
        T: Clone,
    {
        let mut ragged = Self::default();
        for row in rows {
            ragged.push_row(row.as_ref().iter().cloned());
        }
        ragged
    }

    /// Other values with the same row lengths.
    pub(crate) fn cut_alike<U>(&self, values: Vec<U>) -> Ragged<U> {
        debug_assert_eq!(values.len(), self.values.len());
        Ragged { values, offsets: self.offsets.clone() }
    }

    /// Wraps a flat vector cut at the given lengths; fails if they do not sum to its length.
    pub fn from_lengths(values: Vec<T>, lengths: &[usize]) -> Result<Self, Fault> {
        let expected: usize = lengths.iter().sum();
        if expected != values.len() {
            return Err(fault!(
                "expected {expected} values for the given row lengths, got {actual}",
                actual = values.len()
            ));
        }
        let mut offsets = Vec::with_capacity(lengths.len() + 1);
        offsets.push(0);
        let mut end = 0;
        for length in lengths {
            end += length;
            offsets.push(end);
        }
        Ok(Self { values, offsets })
    }

    /// Appends a row.
    pub fn push_row(&mut self, row: impl IntoIterator<Item = T>) {
        self.values.extend(row);
        self.offsets.push(self.values.len());
    }

    /// B.
    pub fn num_rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// N = ΣT.
    pub fn num_values(&self) -> usize {
        self.values.len()
    }

    /// Row i; panics if `i >= num_rows()`, as slices do.
    pub fn row(&self, i: usize) -> &[T] {
        &self.values[self.offsets[i]..self.offsets[i + 1]]
    }

    /// Row i, to change.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.values[self.offsets[i]..self.offsets[i + 1]]
    }

    /// The rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.offsets.windows(2).map(|pair| &self.values[pair[0]..pair[1]])
    }

    /// All values, rows concatenated \[N\].
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Offsets of the rows \[B + 1\].
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_must_sum_to_the_values() {
        assert_eq!(
            Ragged::from_lengths(vec![1, 2, 3], &[2, 2]),
            Err(fault!("expected 4 values for the given row lengths, got 3"))
        );
        let ragged = Ragged::from_lengths(vec![1, 2, 3], &[0, 3]).unwrap();
        assert_eq!(ragged.rows().map(<[_]>::len).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(ragged.num_rows(), 2);
    }
}
