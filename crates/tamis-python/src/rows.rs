//! Columns of numbers from Python: anything with the buffer protocol (numpy arrays, `array.array`,
//! memoryviews), tensors, sequences of numbers, and sequences of such rows.

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyMapping, PyString};
use tamis_core::ragged::Ragged;

use crate::error::column_error;

/// A number that a column holds.
pub(crate) trait Cell: Copy + Default {
    /// Converts a number of a buffer to this type; `None` if that is not possible.
    fn of(number: f64) -> Option<Self>;

    /// Converts many numbers. The error is the place and the value of the first that cannot be converted.
    fn all(numbers: impl ExactSizeIterator<Item = f64>) -> Result<Vec<Self>, (usize, f64)> {
        let mut cells = Vec::with_capacity(numbers.len());
        for (place, number) in numbers.enumerate() {
            cells.push(Self::of(number).ok_or((place, number))?);
        }
        Ok(cells)
    }

    /// What a column of this type holds, in words.
    const MEANING: &'static str;

    /// Converts bytes of 0 and 1 to flags; `None` for types that treat them as numbers.
    fn flags(_bytes: &[u8]) -> Option<Vec<Self>> {
        None
    }

    /// The values of a buffer of exactly this type; `None` if it has another.
    fn same(_buffer: &PyUntypedBuffer, _py: Python<'_>) -> Option<PyResult<Vec<Self>>> {
        None
    }
}

fn typed<T: Element>(buffer: &PyUntypedBuffer, py: Python<'_>) -> Option<PyResult<Vec<T>>> {
    let typed: &PyBuffer<T> = buffer.as_typed().ok()?;
    Some(typed.to_vec(py))
}

impl Cell for f64 {
    const MEANING: &'static str = "numbers";

    fn of(number: f64) -> Option<Self> {
        Some(number)
    }

    fn all(numbers: impl ExactSizeIterator<Item = f64>) -> Result<Vec<Self>, (usize, f64)> {
        // In the memory of whole numbers of the same size.
        Ok(numbers.collect())
    }

    fn same(buffer: &PyUntypedBuffer, py: Python<'_>) -> Option<PyResult<Vec<Self>>> {
        typed(buffer, py)
    }
}

impl Cell for f32 {
    const MEANING: &'static str = "numbers";

    fn of(number: f64) -> Option<Self> {
        Some(number as f32)
    }

    fn same(buffer: &PyUntypedBuffer, py: Python<'_>) -> Option<PyResult<Vec<Self>>> {
        typed(buffer, py)
    }
}

impl Cell for bool {
    const MEANING: &'static str = "flags: booleans, or 0 and 1";

    fn of(number: f64) -> Option<Self> {
        // 0 and 1 are exact.
        let is_flag = number.abs().to_bits() == 0 || number.to_bits() == 1.0_f64.to_bits();
        is_flag.then_some(number > 0.0)
    }

    fn flags(bytes: &[u8]) -> Option<Vec<Self>> {
        Some(bytes.iter().map(|byte| *byte != 0).collect())
    }

    fn same(buffer: &PyUntypedBuffer, py: Python<'_>) -> Option<PyResult<Vec<Self>>> {
        let bytes = typed::<u8>(buffer, py)?;
        Some(bytes.and_then(|bytes| {
            if bytes.iter().any(|byte| *byte > 1) {
                return Err(PyBufferError::new_err("not 0 or 1"));
            }
            Ok(bytes.into_iter().map(|byte| byte == 1).collect())
        }))
    }
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Cell for $type {
            const MEANING: &'static str = "whole numbers of 0 or more";

            fn of(number: f64) -> Option<Self> {
                // Above 2^53, a float is not exact.
                let fits = number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number);
                fits.then_some(number as u64).and_then(|number| number.try_into().ok())
            }
        }
    )*};
}

whole_numbers! { u8, u32, usize }

/// Values one after the other, and how they are cut into rows if the object shows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows<T> {
    /// All values \[N\].
    pub(crate) values: Vec<T>,
    /// Length of each row; `None` for an object without rows.
    pub(crate) lengths: Option<Vec<usize>>,
    /// Whether it is a buffer of single precision.
    pub(crate) is_single: bool,
}

/// Reads a column of that name.
pub(crate) fn read<T: Cell>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Rows<T>> {
    nested(object, name, true)
}

/// Whether it is a table of columns (pandas, polars, Arrow). Such an object does not define what a row of
/// values is.
pub(crate) fn is_frame(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    // A lazy frame warns when its columns are read.
    Ok(object.get_type().name()? == "LazyFrame" || object.hasattr("columns")?)
}

/// Whether a buffer holds references to Python objects.
fn holds_objects(buffer: &PyUntypedBuffer) -> bool {
    buffer.format().to_bytes() == b"O"
}

/// The object in a form with a buffer, if it has one: a tensor or a series becomes the array that shares its
/// memory. Types of 16 bits and fewer that only PyTorch has are widened. Everything else is unchanged.
pub(crate) fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if PyUntypedBuffer::get(object).is_ok() {
        return Ok(object.clone());
    }
    if object.hasattr("detach")? {
        // On the CPU and detached from its graph, it shares its memory with numpy.
        let mut tensor = object.call_method0("detach")?.call_method0("cpu")?;
        if tensor.call_method0("is_floating_point")?.extract()?
            && tensor.call_method0("element_size")?.extract::<usize>()? < size_of::<f32>()
        {
            tensor = tensor.call_method0("float")?;
        }
        return tensor.call_method0("numpy");
    }
    if !object.hasattr("__array__")? {
        return Ok(object.clone());
    }
    let array = object.call_method0("__array__")?;
    if library_of(object)? == "pandas"
        && PyUntypedBuffer::get(&array).is_ok_and(|buffer| holds_objects(&buffer))
    {
        // Numbers with missing values among them (`Float64`, `boolean`).
        let missing = PyDict::new(object.py());
        missing.set_item("dtype", "float64")?;
        missing.set_item("na_value", f64::NAN)?;
        return Ok(object.call_method("to_numpy", (), Some(&missing)).unwrap_or(array));
    }
    Ok(array)
}

/// The library of an object's class: `numpy`, `torch`, `pandas`, `polars`, `builtins`, ...
pub(crate) fn library_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let module = object.get_type().module()?.to_string();
    Ok(module.split('.').next().unwrap_or_default().to_owned())
}

/// Reads a column, or one row of it.
fn nested<T: Cell>(object: &Bound<'_, PyAny>, name: &str, may_have_rows: bool) -> PyResult<Rows<T>> {
    let py = object.py();
    if object.is_instance_of::<PyString>() || object.cast::<PyMapping>().is_ok() {
        return Err(not_a_column::<T>(object, name));
    }
    if is_frame(object)? {
        let class = object.get_type().name()?.to_string();
        let message = format!(
            "column `{name}` is a {class}, whose rows may be trajectories or groups: pass one of its columns, or \
             `.to_numpy()` if each of its rows is a group"
        );
        return Err(column_error(py, &message));
    }
    let array = as_array(object)?;
    if let Ok(buffer) = PyUntypedBuffer::get(&array)
        && !holds_objects(&buffer)
    {
        return from_buffer(&array, &buffer, name);
    }
    // Items of any kind: lists, and arrays of objects.
    let object = &array;
    let Ok(items) = object.try_iter() else { return Err(not_a_column::<T>(object, name)) };
    let mut rows = Rows { values: Vec::new(), lengths: None, is_single: false };
    let mut lengths = Vec::new();
    for (place, item) in items.enumerate() {
        let item = item?;
        let number = if is_row(&item)? { None } else { Some(number(&item, name, place)?) };
        match number {
            Some(value) if lengths.is_empty() => rows.values.push(value),
            None if lengths.len() == place => {
                let row = if may_have_rows { Some(nested::<T>(&item, name, false)?) } else { None };
                let Some(row) = row.filter(|row| row.lengths.is_none()) else {
                    return Err(column_error(py, &format!("a row of column `{name}` has rows itself")));
                };
                lengths.push(row.values.len());
                rows.values.extend(row.values);
            }
            _ => {
                return Err(column_error(py, &format!("column `{name}` mixes numbers and rows of numbers")));
            }
        }
    }
    rows.lengths = (!lengths.is_empty()).then_some(lengths);
    Ok(rows)
}

/// Whether an item is a row of values, not a single value.
fn is_row(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    if item.is_none()
        || item.is_instance_of::<PyFloat>()
        || item.is_instance_of::<PyInt>()
        || item.is_instance_of::<PyString>()
    {
        return Ok(false);
    }
    // A number of numpy or PyTorch has dimension 0. PyTorch's also looks like a sequence.
    match item.getattr("ndim") {
        Ok(dimensions) => Ok(dimensions.extract::<usize>()? > 0),
        Err(_) => item.hasattr("__len__"),
    }
}

/// One value of a sequence; None is NaN.
fn number<T: Cell>(item: &Bound<'_, PyAny>, name: &str, place: usize) -> PyResult<T> {
    let number = if item.is_none() { Ok(f64::NAN) } else { item.extract::<f64>() };
    number.ok().and_then(T::of).ok_or_else(|| {
        let found = item.repr().map_or_else(|_| "something else".to_owned(), |text| text.to_string());
        let message = format!("value {place} of column `{name}` is {found}; expected {}", T::MEANING);
        column_error(item.py(), &message)
    })
}

fn not_a_column<T: Cell>(object: &Bound<'_, PyAny>, name: &str) -> PyErr {
    let class =
        object.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "column `{name}` must hold {}, as an array or a sequence, or rows of such, got {class}",
        T::MEANING
    ))
}

fn from_buffer<T: Cell>(
    object: &Bound<'_, PyAny>,
    buffer: &PyUntypedBuffer,
    name: &str,
) -> PyResult<Rows<T>> {
    let py = object.py();
    let lengths = match buffer.shape() {
        [_] => None,
        [rows, columns] => Some(vec![*columns; *rows]),
        shape => {
            let message = format!("column `{name}` has {} dimensions; expected 1 or 2", shape.len());
            return Err(column_error(py, &message));
        }
    };
    let mut is_single = false;
    let values = if buffer.format().to_bytes() == b"?" {
        // numpy's booleans: bytes of 0 and 1.
        let bytes = py.import("builtins")?.getattr("memoryview")?.call1((object,))?;
        let bytes = if buffer.is_c_contiguous() {
            bytes.call_method1("cast", ("B",))?
        } else {
            bytes.call_method0("tobytes")?
        };
        let bytes = PyBuffer::<u8>::get(&bytes)?.to_vec(py)?;
        match T::flags(&bytes) {
            Some(flags) => flags,
            None => converted(bytes, Into::into, name, py)?,
        }
    } else if let Some(same) = T::same(buffer, py) {
        is_single = buffer.as_typed::<f32>().is_ok();
        same.map_err(|_| column_error(py, &format!("column `{name}` must hold {}", T::MEANING)))?
    } else if let Some(values) = typed::<f64>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<f32>(buffer, py) {
        is_single = true;
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<i64>(buffer, py) {
        converted(values?, |value| value as f64, name, py)?
    } else if let Some(values) = typed::<u64>(buffer, py) {
        converted(values?, |value| value as f64, name, py)?
    } else if let Some(values) = typed::<i32>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<u32>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<i16>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<u16>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<i8>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else if let Some(values) = typed::<u8>(buffer, py) {
        converted(values?, Into::into, name, py)?
    } else {
        let format = buffer.format().to_string_lossy();
        let message = format!("column `{name}` holds elements of format `{format}`; pass float32 or float64");
        return Err(column_error(py, &message));
    };
    Ok(Rows { values, lengths, is_single })
}

fn converted<T: Cell, U>(
    values: Vec<U>,
    wide: impl Fn(U) -> f64,
    name: &str,
    py: Python<'_>,
) -> PyResult<Vec<T>> {
    T::all(values.into_iter().map(wide)).map_err(|(place, value)| {
        let message = format!("value {place} of column `{name}` is {value}; expected {}", T::MEANING);
        column_error(py, &message)
    })
}

/// A column of numbers without rows.
pub(crate) fn flat<T: Cell>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    let rows = read(object, name)?;
    if rows.lengths.is_some() {
        let message = format!("column `{name}` has rows; expected one number after the other");
        return Err(column_error(object.py(), &message));
    }
    Ok(rows.values)
}

/// Lengths of the rows between offsets.
pub(crate) fn lengths_of(offsets: &[usize], name: &str, py: Python<'_>) -> PyResult<Vec<usize>> {
    let first = offsets.first().copied();
    if first != Some(0) || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
        let message = format!("`{name}` must begin at 0 and never go backwards");
        return Err(column_error(py, &message));
    }
    Ok(offsets.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

impl<T> Rows<T> {
    /// Cuts the values by their own rows, otherwise by the given lengths, which came from the argument `by`.
    pub(crate) fn cut(
        self,
        name: &str,
        lengths: Option<&[usize]>,
        by: &str,
        py: Python<'_>,
    ) -> PyResult<Ragged<T>> {
        let own = self.lengths.as_deref();
        let Some(lengths) = own.or(lengths).or(self.values.is_empty().then_some(&[][..])) else {
            let message = format!("column `{name}` has no rows: pass one row each, or `{by}`");
            return Err(column_error(py, &message));
        };
        let lengths = lengths.to_vec();
        Ragged::from_lengths(self.values, &lengths)
            .map_err(|error| column_error(py, &format!("column `{name}`: {error}")))
    }
}
