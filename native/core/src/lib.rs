//! Turns binlog bytes into messages, without Python: the per-row work of `headrace` in native code.
//!
//! Every function may refuse: anything unusual, damaged or unknown returns [`Unfit`], and Python, which is complete,
//! reads the same bytes and does the work or raises the error.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod abouts;
mod addresses;
pub mod amqp;
pub mod archive;
pub mod batch;
pub mod canal;
pub mod changes;
pub mod charsets;
mod compressed;
pub mod conditions;
pub mod debezium;
pub mod decimal;
pub mod entries;
pub mod fields;
pub mod formats;
pub mod hashes;
pub mod json;
pub mod masks;
pub mod maxwell;
pub mod numbers;
pub mod output;
pub mod parts;
pub mod reader;
pub mod records;
pub mod selected;
pub mod spans;
mod stage;
pub mod table;
pub mod temporal;
pub mod text;

/// Python must handle it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit;

/// A result that may have to be left to Python.
pub type Fit<T> = Result<T, Unfit>;
