//! Where the messages of one destination go.

use std::sync::Arc;
use std::time::Duration;

use headrace_native_core as core;
use headrace_native_core::formats::Published;
use headrace_native_core::output::Marks;
use headrace_native_core::selected::{Facts, Packets, Selected};
use headrace_native_core::table::Selection;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::parts::Part;
use crate::reader::Asking;
use crate::{specs, unfit};

/// One table schema as a format prints its rows.
#[pyclass(frozen)]
pub struct Table {
    pub table: Arc<Published>,
}

/// See `headrace_native_core::output::Output`.
#[pyclass]
pub struct Output {
    pub output: core::output::Output,
    selected: Selected,
}

/// The id of the changes up to their number, the number before the first, the kind of snapshot, Debezium's marker, and
/// how many rows make one change.
type Read = (String, u64, String, String, usize);
/// Where the stream is: file and offset; the number of a change's first row, and its time in microseconds.
type Where = (String, u64, i64, u64);

#[pymethods]
impl Output {
    #[new]
    fn new(
        server_uuid: &str,
        epoch: i64,
        rows_per_message: usize,
        overhead: u64,
        keyed: bool,
        one_log: bool,
        largest: usize,
    ) -> Self {
        let uuid = server_uuid.as_bytes();
        let mut output = core::output::Output::new(uuid, epoch, rows_per_message, overhead, keyed, one_log);
        output.largest = largest;
        Self { output, selected: Selected::default() }
    }

    /// Returns the bytes and messages of the last run.
    #[getter]
    fn made(&self) -> (u64, u64) {
        (self.output.size, self.output.count)
    }

    /// Returns the number of another topic's partition.
    fn add_slot(&mut self) -> u32 {
        self.output.add_slot()
    }

    /// Publishes the begin and end of transactions in this slot; see `Format.native_marks`. Raises ValueError for an
    /// unknown description.
    fn set_marks(&mut self, slot: u32, style: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.output.marks = Some(Marks { slot, style: specs::marks(style)? });
        Ok(())
    }

    /// Returns the number of another table.
    fn add_counter(&mut self) -> usize {
        self.output.add_counter()
    }

    /// Publishes a part, as a run does that makes nothing else. `open` returns the batch of a slot.
    fn put(&mut self, part: &mut Part, open: &Bound<'_, PyAny>) -> PyResult<()> {
        (self.output.size, self.output.count) = (0, 0);
        let mut asking = Asking { open, raised: None };
        let made = self.output.put_part(&mut part.part, &mut asking);
        made.map_err(|_| asking.raised.unwrap_or_else(unfit))
    }

    /// Adds nothing more to the open batches from native code.
    fn close_batches(&mut self) {
        self.output.close_batches();
    }

    /// Returns rows by table since the last call: number, inserted, updated, deleted, read by snapshots, last commit time
    /// in microseconds.
    fn take_counters(&mut self) -> Vec<(usize, u64, u64, u64, u64, u64)> {
        let taken = self.output.take_counters();
        taken.into_iter().map(|(at, of)| (at, of.inserted, of.updated, of.deleted, of.snapshot, of.commit_us)).collect()
    }

    /// Makes the messages of rows of a SELECT's result: of at most `rows` packets from `at` on, without those with the
    /// numbers `left_out`, which are in order, in at most `seconds`. `most` and `open`: see `Reader.run`. Returns how many
    /// rows and changes it has read, where the rows end, and where the last one begins. If it has read none, Python must
    /// read the next row.
    #[pyo3(signature = (table, data, at, rows, left_out, read, place, most, seconds, open))]
    #[allow(clippy::too_many_arguments)]
    fn put_selected(
        &mut self,
        table: PyRef<'_, Table>,
        data: &[u8],
        at: usize,
        rows: usize,
        left_out: Vec<usize>,
        read: Read,
        place: Where,
        most: (u64, u64),
        seconds: f64,
        open: &Bound<'_, PyAny>,
    ) -> PyResult<(usize, u64, usize, usize)> {
        let (id, number, kind, marker, together) = &read;
        let (file, offset, pos, commit_us) = &place;
        (self.output.size, self.output.count) = (0, 0);
        let facts = Facts {
            id: id.as_bytes(),
            kind: kind.as_bytes(),
            marker: marker.as_bytes(),
            number: *number,
            together: *together,
            file: file.as_bytes(),
            offset: *offset,
            pos: *pos,
            commit_us: *commit_us,
            most_bytes: most.0,
            most_messages: most.1,
            time: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        };
        let mut asking = Asking { open, raised: None };
        let packets = Packets { data, at, rows, left_out: &left_out };
        let done = self.selected.run(&table.table, packets, &facts, &mut self.output, &mut asking);
        match asking.raised {
            Some(error) => Err(error),
            None => Ok((done.rows, done.changes, done.end, done.last)),
        }
    }

    /// Returns a table. Raises ValueError for an unknown description.
    #[allow(clippy::too_many_arguments)]
    fn table(
        &self,
        fields: Vec<Bound<'_, PyTuple>>,
        columns: Vec<specs::ColumnSpec<'_>>,
        format: &Bound<'_, PyTuple>,
        route: &Bound<'_, PyTuple>,
        left_out: Vec<String>,
        skips_unchanged: bool,
        condition: Option<Bound<'_, PyTuple>>,
        identity: Vec<usize>,
        about: Option<specs::AboutSpec<'_>>,
        two_numbers: bool,
        counter: usize,
    ) -> PyResult<Table> {
        let kinds = fields.iter().map(specs::kind).collect::<PyResult<Vec<_>>>()?;
        let ((columns, names), format) = (specs::columns(&columns)?, specs::format(format)?);
        let route = specs::route(route, &format)?;
        let condition = condition.as_ref().map(specs::condition).transpose()?;
        let left_out = left_out.iter().map(|name| specs::operation(name)).collect::<PyResult<_>>()?;
        let selection = Selection { left_out, skips_unchanged, condition };
        let about = about.map(|(number, keys)| specs::about(number, &keys, &format)).transpose()?;
        let table =
            core::table::Table::new(kinds, columns, names, route, selection, identity, about, two_numbers, counter)
                .and_then(|table| Published::new(table, format))
                .map_err(|_| unfit())?;
        Ok(Table { table: Arc::new(table) })
    }

    #[getter]
    fn now_ms(&self) -> u64 {
        self.output.now_ms
    }

    #[setter]
    fn set_now_ms(&mut self, value: u64) {
        self.output.now_ms = value;
    }

    #[getter]
    fn number(&self) -> u64 {
        self.output.number
    }

    #[setter]
    fn set_number(&mut self, value: u64) {
        self.output.number = value;
    }
}
