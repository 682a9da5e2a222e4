//! Ids of groups, one per value: values with the same id form a group. Groups are in the order in which ids
//! first appear.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyString};
use tamis_core::fault::Fault;
use tamis_core::ragged::Ragged;

use crate::error::column_error;
use crate::rows::{as_array, is_frame, library_of};

/// Values cut into groups by their ids.
pub(crate) struct Groups<'py> {
    /// The group of each value \[N\], numbered from 0 in the order in which ids first appear.
    codes: Vec<u32>,
    ids: Ids<'py>,
    /// The start of each group among the values from [`Self::gather`], and their end \[P + 1\].
    offsets: Vec<usize>,
}

/// The id of each group \[P\].
enum Ids<'py> {
    Numbers(Vec<i64>),
    Objects(Vec<Bound<'py, PyAny>>),
}

impl Ids<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Objects(objects) => objects.len(),
        }
    }
}

/// Codes from whole numbers, and the id of each code.
fn codes_of_numbers(numbers: impl ExactSizeIterator<Item = i64> + Clone) -> (Vec<u32>, Vec<i64>) {
    let mut codes = Vec::with_capacity(numbers.len());
    let mut ids = Vec::new();
    let (Some(least), Some(most)) = (numbers.clone().min(), numbers.clone().max()) else {
        return (codes, ids);
    };
    let span = most.abs_diff(least);
    if span < 4 * numbers.len() as u64 + 1024 {
        // Most ids are counters, and then a table is many times faster than a map.
        let mut table = vec![u32::MAX; span as usize + 1];
        for number in numbers {
            let code = &mut table[number.abs_diff(least) as usize];
            if *code == u32::MAX {
                *code = ids.len() as u32;
                ids.push(number);
            }
            codes.push(*code);
        }
        return (codes, ids);
    }
    let mut found = HashMap::new();
    let mut last = None;
    for number in numbers {
        let code = match last {
            // Values of a group are mostly consecutive.
            Some((same, code)) if same == number => code,
            _ => match found.entry(number) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    ids.push(number);
                    *entry.insert(ids.len() as u32 - 1)
                }
            },
        };
        last = Some((number, code));
        codes.push(code);
    }
    (codes, ids)
}

/// Codes from a buffer of whole numbers; `None` for other buffers.
fn codes_of_buffer(buffer: &PyUntypedBuffer, py: Python<'_>) -> PyResult<Option<(Vec<u32>, Vec<i64>)>> {
    fn typed<T: Element + Into<i64>>(
        buffer: &PyUntypedBuffer,
        py: Python<'_>,
    ) -> PyResult<Option<(Vec<u32>, Vec<i64>)>> {
        let Ok(buffer) = buffer.as_typed::<T>() else { return Ok(None) };
        Ok(Some(codes_of_numbers(buffer.to_vec(py)?.iter().map(|number| (*number).into()))))
    }
    for read in
        [typed::<i64>, typed::<i32>, typed::<u32>, typed::<i16>, typed::<u16>, typed::<i8>, typed::<u8>]
    {
        if let Some(found) = read(buffer, py)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Codes from Python objects, by their hashes, and the id of each code.
fn codes_of_objects<'py>(items: &Bound<'py, PyAny>) -> PyResult<(Vec<u32>, Ids<'py>)> {
    let py = items.py();
    let (mut codes, mut ids) = (Vec::new(), Vec::new());
    let found = PyDict::new(py);
    let mut last: Option<(Bound<'py, PyAny>, u32)> = None;
    for (place, item) in items.try_iter()?.enumerate() {
        let item = item?;
        if let Some((_, code)) = last.as_ref().filter(|(same, _)| same.is(&item)) {
            codes.push(*code);
            continue;
        }
        let known = found.get_item(&item).map_err(|_| {
            let message = format!(
                "id {place} of `groups` is {}, which cannot be compared by hash: pass numbers or texts",
                item.repr().map_or_else(|_| "something else".to_owned(), |text| text.to_string())
            );
            column_error(py, &message)
        })?;
        let code = if let Some(code) = known {
            code.extract::<u32>()?
        } else {
            // A missing id is not equal to itself (NaN, NaT), or the comparison fails (pandas' NA).
            if item.is_none() || item.ne(&item).unwrap_or(true) {
                return Err(is_missing(py, place));
            }
            let code = ids.len() as u32;
            found.set_item(&item, code)?;
            ids.push(item.clone());
            code
        };
        codes.push(code);
        last = Some((item, code));
    }
    Ok((codes, Ids::Objects(ids)))
}

/// Codes by pandas' own hash tables: texts, dates and categories in pandas' own form.
fn codes_of_pandas<'py>(ids: &Bound<'py, PyAny>) -> PyResult<(Vec<u32>, Ids<'py>)> {
    let (codes, uniques): (Bound<'py, PyAny>, Bound<'py, PyAny>) =
        ids.call_method0("factorize")?.extract()?;
    let codes = PyBuffer::<i64>::get(&codes.call_method1("astype", ("int64",))?)?.to_vec(ids.py())?;
    if let Some(place) = codes.iter().position(|code| *code < 0) {
        return Err(is_missing(ids.py(), place));
    }
    let objects = uniques.call_method0("tolist")?.try_iter()?.collect::<PyResult<_>>()?;
    Ok((codes.into_iter().map(|code| code as u32).collect(), Ids::Objects(objects)))
}

fn is_missing(py: Python<'_>, place: usize) -> PyErr {
    column_error(py, &format!("id {place} of `groups` is missing: every value needs the id of its group"))
}

/// Ids as an object that yields one Python object per value: arrays and series become lists.
fn items_of<'py>(ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    for method in ["to_list", "tolist"] {
        if ids.hasattr(method)? {
            return ids.call_method0(method);
        }
    }
    Ok(ids.clone())
}

impl<'py> Groups<'py> {
    /// Reads the ids of N values.
    pub(crate) fn of(ids: &Bound<'py, PyAny>, num_values: usize) -> PyResult<Self> {
        let py = ids.py();
        if ids.is_instance_of::<PyString>()
            || ids.is_instance_of::<PyInt>()
            || ids.is_instance_of::<PyFloat>()
        {
            let message = format!(
                "`groups` is {}: pass one id per value; the name of a column goes with a frame as `values`",
                ids.repr()?
            );
            return Err(PyTypeError::new_err(message));
        }
        if is_frame(ids)? {
            return Err(PyTypeError::new_err("`groups` is a frame: pass the column with the groups' ids"));
        }
        let array = as_array(ids)?;
        let numbers = match PyUntypedBuffer::get(&array) {
            Ok(buffer) if buffer.dimensions() != 1 => {
                let message = format!("`groups` has {} dimensions; expected 1", buffer.dimensions());
                return Err(column_error(py, &message));
            }
            Ok(buffer) => codes_of_buffer(&buffer, py)?,
            Err(_) => None,
        };
        let (codes, ids) = match numbers {
            Some((codes, numbers)) => (codes, Ids::Numbers(numbers)),
            None if library_of(ids)? == "pandas" => codes_of_pandas(ids)?,
            None => codes_of_objects(&items_of(ids)?)?,
        };
        if codes.len() != num_values {
            let message = format!("`groups` has {} ids for {num_values} values", codes.len());
            return Err(column_error(py, &message));
        }
        let mut offsets = vec![0; ids.len() + 1];
        for code in &codes {
            offsets[*code as usize + 1] += 1;
        }
        for group in 1..offsets.len() {
            offsets[group] += offsets[group - 1];
        }
        Ok(Self { codes, ids, offsets })
    }

    /// Each group's id as a Python object \[P\].
    pub(crate) fn ids(self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        match self.ids {
            Ids::Objects(objects) => Ok(objects),
            Ids::Numbers(numbers) => {
                numbers.into_iter().map(|number| Ok(number.into_pyobject(py)?.into_any())).collect()
            }
        }
    }

    /// The values \[N\] group by group. Within a group they keep their order.
    pub(crate) fn gather(&self, values: Vec<f64>) -> Result<Ragged<f64>, Fault> {
        let lengths: Vec<usize> = self.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        if self.codes.is_sorted() {
            return Ragged::from_lengths(values, &lengths);
        }
        let mut ends = self.offsets.clone();
        let mut gathered = vec![0.0; values.len()];
        for (code, value) in self.codes.iter().zip(values) {
            let end = &mut ends[*code as usize];
            gathered[*end] = value;
            *end += 1;
        }
        Ragged::from_lengths(gathered, &lengths)
    }

    /// Flags of the gathered values \[N\], put back into the original order of the values.
    pub(crate) fn scatter(&self, gathered: &[bool]) -> Vec<bool> {
        let mut ends = self.offsets.clone();
        let next = |code: &u32| {
            let end = &mut ends[*code as usize];
            *end += 1;
            gathered[*end - 1]
        };
        self.codes.iter().map(next).collect()
    }

    /// The flag of each value's group \[N\].
    pub(crate) fn spread(&self, kept: &[bool]) -> Vec<bool> {
        self.codes.iter().map(|code| kept[*code as usize]).collect()
    }
}
