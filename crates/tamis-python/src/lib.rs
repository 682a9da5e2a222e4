//! Beside the kernel: `tamis._native`, which is tamis-core for Python. Users import the package's own modules
//! (`python/tamis`), which build on this one. Settings are read by `tamis-config`, so names, defaults, ranges
//! and messages are those of the program's configuration.
//!
//! | module | content |
//! |---|---|
//! | `config` | a whole configuration, from files, overrides or a mapping |
//! | `filter`, `advantage`, `shaping`, `objective`, `correction`, `value_loss`, `machine` | the classes of that name |
//! | `batch` | what the losses have in common: cuts, and the divisors of means |
//! | `rows` | columns of numbers: buffers, arrays, sequences, rows of either |
//! | `kinds` | the list of a class's kinds in its docstring |
//! | `groups` | ids of groups: which values form a group |
//! | `array`, `flags` | columns of numbers and of flags for Python |
//! | `value` | settings and events, between Python values and JSON |
//! | `error` | errors as the exceptions of `tamis.errors` |

mod advantage;
mod array;
mod batch;
mod config;
mod correction;
mod error;
mod filter;
mod flags;
mod groups;
mod kinds;
mod machine;
mod objective;
mod rows;
mod shaping;
mod value;
mod value_loss;

use pyo3::prelude::*;
use tamis_core::catalogue::Family;

/// Filters, advantages, losses and the scheduling machine of tamis, in native code.
#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<config::Config>()?;
    module.add_class::<filter::Filter>()?;
    module.add_class::<filter::Verdict>()?;
    module.add_class::<advantage::Advantage>()?;
    module.add_class::<advantage::Estimate>()?;
    module.add_class::<shaping::Shaping>()?;
    module.add_class::<shaping::Shaped>()?;
    module.add_class::<objective::Objective>()?;
    module.add_class::<batch::Normalisers>()?;
    module.add_class::<objective::Evaluation>()?;
    module.add_class::<correction::Correction>()?;
    module.add_class::<correction::Corrected>()?;
    module.add_class::<value_loss::ValueLoss>()?;
    module.add_class::<value_loss::ValueEvaluation>()?;
    module.add_class::<machine::Machine>()?;
    let py = module.py();
    kinds::describe::<filter::Filter>(py, Family::Filter)?;
    kinds::describe::<advantage::Advantage>(py, Family::Advantage)?;
    kinds::describe::<shaping::Shaping>(py, Family::Shaping)?;
    kinds::describe::<objective::Objective>(py, Family::PolicyLoss)?;
    kinds::describe::<correction::Correction>(py, Family::Correction)
}
