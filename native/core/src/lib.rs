//! Binlog bytes to messages, without Python: what `headrace` does a row at a time, done in native code.
//!
//! Everything here may refuse: whatever is unusual, damaged or not known returns [`Unfit`], and Python, which is
//! complete, looks at the same bytes and does the work or raises the error.

#![forbid(unsafe_code)]

pub mod batch;
pub mod canal;
pub mod debezium;
pub mod decimal;
pub mod entries;
pub mod fields;
pub mod hashes;
pub mod json;
pub mod numbers;
pub mod output;
pub mod reader;
pub mod records;
pub mod spans;
pub mod table;
pub mod temporal;
pub mod text;

/// Python has to look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit;

/// What may have to be left to Python.
pub type Fit<T> = Result<T, Unfit>;
