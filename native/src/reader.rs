//! Reads a dump in native code.

use std::time::Duration;

use headrace_native_core as core;
use headrace_native_core::batch::Shared;
use headrace_native_core::changes::Event;
use headrace_native_core::reader::{Frame, State, Stop};
use headrace_native_core::{Fit, Unfit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::columns::Batch;
use crate::output::{Output, Table};

/// See `headrace_native_core::reader::Reader`.
#[pyclass]
pub struct Reader {
    reader: core::reader::Reader,
}

/// Asks Python for the batch of a slot; keeps its error.
pub struct Asking<'a, 'py> {
    pub open: &'a Bound<'py, PyAny>,
    pub raised: Option<PyErr>,
}

impl core::output::Opener for Asking<'_, '_> {
    fn open(&mut self, slot: u32) -> Fit<Shared> {
        let opened = self.open.call1((slot,)).and_then(|batch| Ok(batch.extract::<PyRef<'_, Batch>>()?.shared.clone()));
        opened.map_err(|error| {
            self.raised = Some(error);
            Unfit
        })
    }
}

/// An event: offset, length, time, server, session
type Begun = (u64, u64, u32, u32, u32);
/// high, end, in_group, inside, captured_rows, start of the group, events_done, last_pos
type Place = (u64, u64, bool, bool, bool, u64, u64, i64);
/// roomed, last_pos before the group, commit time, that of the last group, server, session, own events, GTID,
/// its source and number, where its BEGIN is and whether that was published
type Group = (i64, i64, u64, u64, u32, u32, u64, String, Option<(String, u64)>, Option<Begun>, bool);
/// start, end, time, in_group, inside, captured_rows, start of the group, events_done, last_pos
type PlaceAfter = (i64, u64, u32, bool, bool, bool, u64, u64, i64);
/// roomed, last_pos before the group, commit time, that of the last group, server, session, where the last group
/// begins (None: as before), BEGIN, published, own events
type GroupAfter = (i64, i64, u64, u64, u32, u32, Option<u64>, Option<Begun>, bool, u64);
/// The GTID, and its source and number.
type GtidAfter = (String, Option<(String, u64)>);
/// at, why (0: the data is used up, 1: Python, 2: enough), the minimum size of the next packet
type Where = (usize, u8, usize);
/// events, transactions, transactions that were executed and whether they are only headrace's own, whether learned()
/// returns any
type Counts = (u64, u64, Vec<(String, u64, u64, bool)>, bool);

#[pymethods]
impl Reader {
    /// `passed`: the numbers of event types that are skipped. `slice`: the seconds that one call may take.
    #[new]
    fn new(passed: &[u8], slice: f64) -> Self {
        Self { reader: core::reader::Reader::new(passed, Duration::from_secs_f64(slice)) }
    }

    /// Makes the rows of the table id here; without a table they are not captured. `at` is Python's number of the
    /// TABLE_MAP, and `until` the offset up to which it may get further ids without Python.
    #[pyo3(signature = (id, body, table, at, until))]
    fn know(&mut self, id: &[u8], body: &[u8], table: Option<PyRef<'_, Table>>, at: u32, until: u64) {
        self.reader.know(id, body, table.map(|table| table.table.clone()), at, until);
    }

    /// Leaves the rows of the table id to Python.
    fn leave(&mut self, id: &[u8], body: &[u8], at: u32, until: u64) {
        self.reader.leave(id, body, at, until);
    }

    /// Passes over the rows of the table id, which is headrace's own, except for events that contain `sought`.
    #[pyo3(signature = (id, body, sought, at, until))]
    fn own(&mut self, id: &[u8], body: &[u8], sought: Option<&[u8]>, at: u32, until: u64) {
        self.reader.own(id, body, sought, at, until);
    }

    /// Forgets the table id, and the TABLE_MAP that had it.
    fn forget(&mut self, id: &[u8]) {
        self.reader.forget(id);
    }

    /// Forgets all table ids.
    fn forget_ids(&mut self) {
        self.reader.forget_ids();
    }

    /// Returns the table ids that TABLE_MAPs got without Python in the last run, of 6 bytes each, and Python's numbers.
    fn learned<'py>(&self, py: Python<'py>) -> (Vec<Bound<'py, PyBytes>>, Vec<u32>) {
        let learned = &self.reader.learned;
        let ids = learned.iter().map(|(id, _)| PyBytes::new(py, &id.to_le_bytes()[..6])).collect();
        (ids, learned.iter().map(|(_, number)| *number).collect())
    }

    /// Forgets all tables.
    fn clear(&mut self) {
        self.reader.clear();
    }

    /// Reads packets of `data` from `at` on; or, if `inner` is where the event begins that contains them, the events of
    /// a compressed transaction. `open` returns the batch of a slot, `most` has the bytes and messages
    /// after which it stops. Returns where it stopped and why, and the state there.
    #[pyo3(signature = (data, at, file, checksums, inner, eager, most, place, group, output, open))]
    #[allow(clippy::too_many_arguments)]
    fn run(
        &mut self,
        data: &[u8],
        at: usize,
        file: &str,
        checksums: bool,
        inner: Option<i64>,
        eager: bool,
        most: (u64, u64),
        place: Place,
        group: Group,
        output: &mut Output,
        open: &Bound<'_, PyAny>,
    ) -> PyResult<(Where, PlaceAfter, GroupAfter, GtidAfter, Counts)> {
        let output = &mut output.output;
        (output.size, output.count) = (0, 0);
        (self.reader.events, self.reader.transactions) = (0, 0);
        self.reader.executed.clear();
        self.reader.learned.clear();
        let key = group
            .8
            .as_ref()
            .map(|(source, number)| core::reader::Key { source: self.reader.source_named(source), number: *number });
        let mut state = State { key, start: inner.unwrap_or(-1), ..before(place, group) };
        let (most_bytes, most_messages) = most;
        let frame =
            Frame { file: file.as_bytes(), checksums, inner: inner.is_some(), eager, most_bytes, most_messages };
        let mut asking = Asking { open, raised: None };
        let (at, stop) = self.reader.run(data, at, &frame, &mut state, output, &mut asking);
        if let Some(error) = asking.raised {
            return Err(error);
        }
        let (why, need) = match stop {
            Stop::End(need) => (0, need),
            Stop::Python => (1, 0),
            Stop::Enough => (2, 0),
        };
        let executed = self.reader.executed.iter();
        let executed =
            executed.map(|&(at, first, last, own)| (self.reader.source(at).to_owned(), first, last, own)).collect();
        let gtid = self.gtid_after(&state);
        let place = (
            state.start,
            state.end,
            state.time,
            state.in_group,
            state.inside,
            state.captured_rows,
            state.begin,
            state.events_done,
            state.last_pos,
        );
        let group = (
            state.roomed,
            state.tx_last_pos,
            state.commit_us,
            state.last_commit_us,
            state.server_id,
            state.thread,
            state.last_start,
            state.begun.map(|of| (of.offset, of.length, of.time, of.server_id, of.thread)),
            state.marked,
            state.own_events,
        );
        let counts = (self.reader.events, self.reader.transactions, executed, !self.reader.learned.is_empty());
        Ok(((at, why, need), place, group, gtid, counts))
    }
}

fn before(place: Place, group: Group) -> State {
    State {
        high: place.0,
        end: place.1,
        start: -1,
        in_group: place.2,
        inside: place.3,
        captured_rows: place.4,
        begin: place.5,
        events_done: place.6,
        last_pos: place.7,
        roomed: group.0,
        tx_last_pos: group.1,
        commit_us: group.2,
        last_commit_us: group.3,
        server_id: group.4,
        thread: group.5,
        own_events: group.6,
        gtid: group.7.into_bytes(),
        begun: group.9.map(|(offset, length, time, server_id, thread)| Event {
            offset,
            length,
            time,
            server_id,
            thread,
        }),
        marked: group.10,
        ..State::default()
    }
}

impl Reader {
    fn gtid_after(&self, state: &State) -> GtidAfter {
        let key = state.key.map(|key| (self.reader.source(key.source).to_owned(), key.number));
        (String::from_utf8_lossy(&state.gtid).into_owned(), key)
    }
}
