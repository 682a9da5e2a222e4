//! Flags for Python, in the library of the values.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList};

use crate::rows::library_of;

/// Flags in the library of `like`: an array of NumPy, a tensor of PyTorch on the same device, a series of
/// pandas (with the index of `like` if there is one flag per entry of it) or of polars, or a list. For
/// anything else a memoryview, which has the buffer protocol.
pub(crate) fn flags_like<'py>(
    like: &Bound<'py, PyAny>,
    flags: Vec<bool>,
    is_aligned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    let library = library_of(like)?;
    if library == "builtins" && !like.is_instance_of::<pyo3::types::PyMemoryView>() {
        return Ok(PyList::new(py, flags)?.into_any());
    }
    let is_empty = flags.is_empty();
    let bytes: Vec<u8> = flags.into_iter().map(u8::from).collect();
    let view = py.import("builtins")?.getattr("memoryview")?.call1((PyByteArray::new(py, &bytes),))?;
    let view = view.call_method1("cast", ("?",))?;
    let named = |key: &str, value: &Bound<'py, PyAny>| {
        let arguments = PyDict::new(py);
        arguments.set_item(key, value).map(|()| arguments)
    };
    match library.as_str() {
        "torch" => {
            let torch = py.import("torch")?;
            let dtype = named("dtype", &torch.getattr("bool")?)?;
            // PyTorch does not accept an empty buffer.
            let tensor = if is_empty {
                torch.call_method("zeros", (0,), Some(&dtype))?
            } else {
                torch.call_method("frombuffer", (view,), Some(&dtype))?
            };
            tensor.call_method1("to", (like.getattr("device")?,))
        }
        "pandas" => {
            let arguments = named("name", "kept".into_pyobject(py)?.as_any())?;
            if is_aligned {
                arguments.set_item("index", like.getattr("index")?)?;
            }
            let array = py.import("numpy")?.call_method1("asarray", (view,))?;
            py.import("pandas")?.call_method("Series", (array,), Some(&arguments))
        }
        "polars" => {
            let polars = py.import("polars")?;
            let values = match py.import("numpy") {
                Ok(numpy) => numpy.call_method1("asarray", (view,))?,
                Err(_) => view.call_method0("tolist")?,
            };
            let dtype = named("dtype", &polars.getattr("Boolean")?)?;
            polars.call_method("Series", ("kept", values), Some(&dtype))
        }
        _ if like.hasattr("__array__")? => py.import("numpy")?.call_method1("asarray", (view,)),
        _ => Ok(view),
    }
}
