//! Settings and events: converts Python values to JSON and back.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PySequence, PyString};
use serde_json::{Map, Number, Value};

/// Converts a Python value to JSON: None, booleans, numbers, texts, and mappings and sequences of these.
/// Numbers that JSON lacks (infinity, NaN) become texts, which keys for numbers refuse.
pub(crate) fn to_json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    nested_to_json(value, 0)
}

/// Deepest nesting of mappings and sequences. One that contains itself would never end.
const DEEPEST: usize = 32;

fn nested_to_json(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEEPEST {
        return Err(PyValueError::new_err(format!(
            "mappings and sequences are nested more than {DEEPEST} deep"
        )));
    }
    if value.is_none() {
        Ok(Value::Null)
    } else if value.is_instance_of::<PyBool>() {
        Ok(Value::Bool(value.extract()?))
    } else if value.is_instance_of::<PyInt>() {
        Ok(match (value.extract::<u64>(), value.extract::<i64>()) {
            (Ok(number), _) => Value::from(number),
            (_, Ok(number)) => Value::from(number),
            _ => Value::from(value.str()?.to_string()),
        })
    } else if value.is_instance_of::<PyFloat>() {
        let number: f64 = value.extract()?;
        Ok(Number::from_f64(number).map_or_else(|| Value::from(number.to_string()), Value::Number))
    } else if value.is_instance_of::<PyString>() {
        Ok(Value::String(value.extract()?))
    } else if let Ok(mapping) = value.cast::<PyMapping>() {
        let mut object = Map::new();
        for item in mapping.items()?.try_iter()? {
            let (key, inner): (String, Bound<'_, PyAny>) = item?.extract()?;
            object.insert(key, nested_to_json(&inner, depth + 1)?);
        }
        Ok(Value::Object(object))
    } else if let Ok(sequence) = value.cast::<PySequence>() {
        sequence.try_iter()?.map(|item| nested_to_json(&item?, depth + 1)).collect()
    } else if let Ok(index) = value.call_method0("__index__") {
        // numpy's integers.
        nested_to_json(&index, depth + 1)
    } else if let Ok(number) = value.call_method0("__float__") {
        nested_to_json(&number, depth + 1)
    } else {
        let class = value.get_type().name()?.to_string();
        Err(PyTypeError::new_err(format!(
            "expected None, a boolean, a number, a text, a mapping or a sequence, got {class}"
        )))
    }
}

/// Keyword arguments as the keys of a section.
pub(crate) fn keys_of(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Map<String, Value>> {
    match arguments.map(|arguments| to_json(arguments)).transpose()? {
        Some(Value::Object(keys)) => Ok(keys),
        _ => Ok(Map::new()),
    }
}

/// Converts JSON to Python values.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_pyobject(py)?.into_any(),
            (_, Some(number)) => number.into_pyobject(py)?.into_any(),
            _ => PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any(),
        },
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(items) => {
            let items: PyResult<Vec<_>> = items.iter().map(|item| to_python(py, item)).collect();
            PyList::new(py, items?)?.into_any()
        }
        Value::Object(object) => {
            let mapping = PyDict::new(py);
            for (key, inner) in object {
                mapping.set_item(key, to_python(py, inner)?)?;
            }
            mapping.into_any()
        }
    })
}
