//! The Python interface of the native code: types only, no decisions.

#![deny(unsafe_code)]

mod archive;
mod columns;
mod output;
mod parts;
mod reader;
mod specs;

use headrace_native_core as core;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// Must equal the number in `headrace/native.py`; the functions of another interface may mean something else.
const INTERFACE: u32 = 16;

/// Returns MySQL's binary JSON as text. Raises ValueError for what Python must handle.
#[pyfunction]
fn json_text<'py>(py: Python<'py>, document: &[u8]) -> PyResult<Bound<'py, PyString>> {
    let mut out = Vec::with_capacity(2 * document.len());
    core::json::json_text(&mut out, document).map_err(|_| unfit())?;
    text_of(py, &out)
}

/// Returns the hash that Kafka's partitioner computes of a key.
#[pyfunction]
fn murmur2(key: &[u8]) -> u32 {
    core::hashes::murmur2(key)
}

/// Returns a number as MySQL prints it (`kind` "mysql"), as in JSON ("json"), or as Python does ("repr"); with `single`
/// as a FLOAT.
#[pyfunction]
fn float_text<'py>(py: Python<'py>, value: f64, kind: &str, single: bool) -> PyResult<Bound<'py, PyString>> {
    let mut out = Vec::new();
    let value = if single { core::numbers::float32(value as f32).map_err(|_| unfit())? } else { value };
    let made = match kind {
        "mysql" => core::numbers::float_text(&mut out, value),
        "json" => core::numbers::json_double(&mut out, value),
        _ => core::numbers::repr(&mut out, value),
    };
    made.map_err(|_| unfit())?;
    text_of(py, &out)
}

/// Returns a value as JSON, by the layout of its column and the style in which a format prints it. Raises ValueError for
/// what Python must handle.
#[pyfunction]
fn cell<'py>(
    py: Python<'py>,
    layout: &Bound<'py, PyTuple>,
    style: &Bound<'py, PyTuple>,
    raw: &[u8],
) -> PyResult<Bound<'py, PyString>> {
    let mut out = Vec::new();
    specs::style(style)?.print(&specs::kind(layout)?, &mut out, raw).map_err(|_| unfit())?;
    text_of(py, &out)
}

fn unfit() -> PyErr {
    pyo3::exceptions::PyValueError::new_err("this is not what native code reads")
}

fn text_of<'py>(py: Python<'py>, raw: &[u8]) -> PyResult<Bound<'py, PyString>> {
    Ok(PyString::new(py, std::str::from_utf8(raw).map_err(|_| unfit())?))
}

#[pymodule]
fn headrace_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<columns::Batch>()?;
    module.add_class::<columns::Column>()?;
    module.add_class::<columns::HeaderColumn>()?;
    module.add_class::<output::Output>()?;
    module.add_class::<output::Table>()?;
    module.add_class::<parts::Part>()?;
    module.add_class::<reader::Reader>()?;
    module.add_function(wrap_pyfunction!(archive::archive_record, module)?)?;
    module.add_function(wrap_pyfunction!(archive::archive_packets, module)?)?;
    module.add_function(wrap_pyfunction!(json_text, module)?)?;
    module.add_function(wrap_pyfunction!(cell, module)?)?;
    module.add_function(wrap_pyfunction!(murmur2, module)?)?;
    module.add_function(wrap_pyfunction!(float_text, module)?)?;
    Ok(())
}
