//! The parts of a large event.

use headrace_native_core as core;
use headrace_native_core::changes::Event;
use headrace_native_core::output::Origin;
use headrace_native_core::parts::{Facts, Limits, Rest};
use pyo3::prelude::*;

use crate::output::Table;
use crate::{specs, unfit};

/// Some rows of an event, and their messages, which `Output.put` publishes once.
#[pyclass]
pub struct Part {
    pub part: core::parts::Part,
}

#[pymethods]
impl Part {
    #[getter]
    fn rows(&self) -> usize {
        self.part.rows
    }

    /// Returns the bytes of its rows in the event.
    #[getter]
    fn size(&self) -> usize {
        self.part.size
    }
}

/// The rest of an event: where its rows begin, where they end, and whether the event goes on there.
type Range = (usize, usize, bool);
/// Rows per message, milliseconds now
type Making = (usize, u64);
/// The operation, rows of the event before these, their first number, Canal's number of the message before, commit time,
/// GTID
type Change = (String, usize, i64, u64, u64, String);
/// file, where the transaction begins, number of the event in it, offset, length, time, server, session, table
type Place = (String, u64, u64, u64, u64, u32, u32, u32, u64);

#[pymethods]
impl Table {
    /// Makes the next part of an event; without Python's lock, so that a thread can do it. `limits`: maximum bytes of its
    /// rows, and of a message. Returns None if it is larger, or not all of it is there. Raises ValueError for what
    /// Python must handle.
    #[allow(clippy::too_many_arguments)]
    fn part(
        &self,
        py: Python<'_>,
        data: &[u8],
        range: Range,
        limits: (usize, usize),
        making: Making,
        change: Change,
        place: Place,
    ) -> PyResult<Option<Part>> {
        let (at, stop, more) = range;
        let (rows_per_message, now_ms) = making;
        let (operation, first, pos, number, commit_us, gtid) = change;
        let (file, transaction, ordinal, offset, length, time, server_id, thread, table_id) = place;
        let facts = Facts {
            operation: specs::operation(&operation)?,
            first,
            pos,
            number,
            rows_per_message,
            now_ms,
            commit_us,
            gtid: gtid.into_bytes(),
            file: file.into_bytes(),
            event: Event { offset, length, time, server_id, thread },
            table_id,
            origin: Origin { transaction, ordinal },
        };
        let rest = Rest { data: data.get(..stop).ok_or_else(unfit)?, at, more };
        let limits = Limits { rows: limits.0, message: limits.1 };
        let made = py.detach(|| core::parts::Part::make(&self.table, facts, rest, limits));
        Ok(made.map_err(|_| unfit())?.map(|part| Part { part }))
    }
}
