//! Follows a dump from event to event: splits packets, checks them, tracks transactions, and makes the messages of
//! rows. It handles the usual events and stops before any other, with the state from which Python continues.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::changes::{Change, Event, Mark, Operation};
use crate::compressed;
use crate::formats::Published;
use crate::output::{Opener, Origin, Output};
use crate::parts::{self, part_rows, PART_BYTES};
use crate::spans::{self, Span};
use crate::text::{self, put};
use crate::{Fit, Unfit};

/// Packet head, status byte and event header.
const HEAD: usize = 24;
/// The header of an event alone.
const INNER_HEAD: usize = 19;
const LARGE: usize = 0xFF_FFFF;
/// Number of events between two checks of the clock, minus one.
const BETWEEN_CLOCKS: u64 = 15;
const QUERY: u8 = 2;
const XID: u8 = 16;
const TABLE_MAP: u8 = 19;
const GTID: u8 = 33;
const ANONYMOUS_GTID: u8 = 34;
const MARIADB_GTID: u8 = 162;
/// Flags of MariaDB's GTID events: a statement without a COMMIT, and the ends of XA transactions.
const MARIADB_UNUSUAL: u8 = 1 | 64 | 128;
/// Maximum bytes of a rows event that is published as a whole, however many rows it has. The rows of other events are
/// published in parts, and one row of a very large event is made in a thread (`headrace/mysql/native_parts.py`).
const SMALL_EVENT: usize = 64 << 10;
const LARGE_EVENT: usize = 4 << 20;
const POS_SHIFT: u32 = 11;
const POS_ROOM: i64 = 1024;
const POS_LIMIT: i64 = i64::MAX - (1 << 40);
/// Commit times whose numbers fit into 63 bits, with a large reserve.
const LATEST: u64 = 1 << 51;
const COMMIT_TIME: u64 = (1 << 55) - 1;

/// Why run() has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The data is used up; the minimum size of the next packet.
    End(usize),
    /// Python must handle the next event.
    Python,
    /// There is more, and other tasks have their turn.
    Enough,
}

/// The server of a transaction, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The number of the server's uuid; see [`Reader::source`].
    pub source: usize,
    /// The number of the transaction, from 1 on.
    pub number: u64,
}

/// The state that Python and native code exchange: the position in the file, and the open transaction. The names are
/// those of `headrace/mysql/events/cursor.py` and `transactions.py`.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The part of offsets above the 32 bits that event headers have.
    pub high: u64,
    /// Where the last event ends that was read.
    pub end: u64,
    /// Where that event begins, or the compressed transaction that contains it; -1 if not known.
    pub start: i64,
    /// The time in its header, in seconds since 1970.
    pub time: u32,
    /// Whether a transaction, or a statement outside of one, is open.
    pub in_group: bool,
    /// Whether it has begun with a BEGIN, or with MariaDB's GTID event.
    pub inside: bool,
    /// Whether it has changed captured tables.
    pub captured_rows: bool,
    /// Where the open transaction begins, or the last one if none is open.
    pub begin: u64,
    /// Rows events of the open transaction that were read.
    pub events_done: u64,
    /// The last number (`_pos`) that was assigned.
    pub last_pos: i64,
    /// `last_pos` after numbers were left free before a transaction; if it is still the same, none was assigned since.
    pub roomed: i64,
    /// `last_pos` before that transaction, and before the numbers that were left free.
    pub tx_last_pos: i64,
    /// Commit time of that transaction, in microseconds since 1970.
    pub commit_us: u64,
    /// Commit time of the last transaction that has ended.
    pub last_commit_us: u64,
    /// Where the last ended transaction begins, if it did here.
    pub last_start: Option<u64>,
    /// The id of the server that executed the transaction.
    pub server_id: u32,
    /// The connection id of its session there; 0 if not known.
    pub thread: u32,
    /// Rows events of the transaction that change only headrace's own tables.
    pub own_events: u64,
    /// The transaction's GTID as text; "" without one.
    pub gtid: Vec<u8>,
    /// The same GTID as numbers; None without one, and for MariaDB's.
    pub key: Option<Key>,
    /// Where the transaction's BEGIN is, once it has come.
    pub begun: Option<Event>,
    /// Whether the begin of the transaction was published.
    pub marked: bool,
}

/// What does not change while the data of one file is read.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The name of the file.
    pub file: &'a [u8],
    /// Whether events end in a CRC32.
    pub checksums: bool,
    /// Whether the events are those of a compressed transaction: without packets, positions and checksums.
    pub inner: bool,
    /// Whether to stop as soon as no transaction is open.
    pub eager: bool,
    /// The bytes of messages after which it stops.
    pub most_bytes: u64,
    /// The number of messages after which it stops.
    pub most_messages: u64,
}

#[derive(Debug)]
enum Rows {
    /// They are not captured.
    Dropped,
    /// Python reads them.
    Python,
    /// They are headrace's own, and are counted. Python reads the events that contain these bytes, and compressed
    /// ones.
    Own(Option<Vec<u8>>),
    Made(Arc<Published>),
}

/// A TABLE_MAP that Python has read.
#[derive(Debug)]
struct Known {
    body: Vec<u8>,
    rows: Rows,
    /// Python's number of it.
    number: u32,
    /// Up to which offset of the file it may get further table ids without Python.
    until: u64,
}

/// The tables of one dump, and memory for its rows.
#[derive(Debug, Default)]
pub struct Reader {
    /// By table id.
    tables: HashMap<u64, Arc<Known>>,
    /// By their bytes without the table id, which changes when the server opens the table again.
    bodies: HashMap<Vec<u8>, Arc<Known>>,
    /// Table ids that were given without Python since this was last cleared, with Python's numbers.
    pub learned: Vec<(u64, u32)>,
    sources: Vec<String>,
    /// The bytes of those from GTID events.
    uuids: Vec<([u8; 16], usize)>,
    /// The body of a compressed event.
    inflated: Vec<u8>,
    /// Kinds of events that are skipped.
    passed: Vec<u8>,
    /// The time that one call of run() may take.
    slice: Duration,
    spans: Vec<Span>,
    /// Events that were read since this was last set to 0.
    pub events: u64,
    /// Transactions that have ended since this was last set to 0.
    pub transactions: u64,
    /// Transactions that were executed: source, first and last number, and whether they are only headrace's own.
    pub executed: Vec<(usize, u64, u64, bool)>,
}

/// The content of an event's header.
struct Header {
    kind: u8,
    start: u64,
    length: u64,
    time: u32,
    server_id: u32,
}

impl State {
    /// Returns the next number: above all before, and not below the commit time.
    fn next_pos(&self) -> i64 {
        ((self.commit_us << POS_SHIFT) as i64).max(self.last_pos + 1)
    }

    /// Returns the begin or end of the transaction, which gets the next number.
    fn mark<'a>(&'a self, frame: &Frame<'a>, event: Event, xid: Option<u64>) -> Mark<'a> {
        Mark { event, xid, pos: self.next_pos(), commit_us: self.commit_us, gtid: &self.gtid, file: frame.file }
    }
}

impl Header {
    /// Returns the event as one of the open transaction.
    fn event(&self, state: &State) -> Event {
        let Self { start: offset, length, time, .. } = *self;
        Event { offset, length, time, server_id: state.server_id, thread: state.thread }
    }
}

fn number(raw: &[u8]) -> u64 {
    raw.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

/// Begins a transaction of MariaDB, which has no BEGIN; returns false for what only Python knows.
fn mariadb_gtid(body: &[u8], header: &Header, state: &mut State) -> bool {
    let Some((head, &[flags])) = body.get(..13).map(|head| head.split_at(12)) else { return false };
    let commit_us = u64::from(header.time) * 1_000_000;
    if flags & MARIADB_UNUSUAL != 0 || state.inside || state.last_pos >= POS_LIMIT {
        return false;
    }
    begin(header.start, commit_us, state);
    state.gtid.clear();
    let (sequence, domain) = (number(&head[..8]), number(&head[8..]));
    put!(&mut state.gtid, domain, b"-", header.server_id, b"-", sequence);
    (state.key, state.inside) = (None, true);
    (state.server_id, state.thread) = (header.server_id, 0);
    true
}

/// Returns where the packet ends that begins at `at`.
fn packet_end(data: &[u8], at: usize) -> Result<usize, Stop> {
    let Some(head) = data.get(at..at + HEAD) else {
        let left = &data[at..];
        if left.len() >= 5 && left[4] != 0 {
            return Err(Stop::Python);
        }
        return Err(Stop::End(if left.len() >= 4 { 4 + number(&left[..3]) as usize } else { 4 }));
    };
    let size = number(&head[..3]) as usize;
    if head[4] != 0 || size == LARGE || size < HEAD - 4 {
        return Err(Stop::Python);
    }
    let end = at + 4 + size;
    if end > data.len() {
        return Err(Stop::End(4 + size));
    }
    Ok(end)
}

/// Returns where the event ends that begins at `at`, without a packet.
fn inner_end(data: &[u8], at: usize) -> Result<usize, Stop> {
    let Some(head) = data.get(at..at + INNER_HEAD) else { return Err(Stop::End(INNER_HEAD)) };
    let length = number(&head[9..13]) as usize;
    if length < INNER_HEAD {
        return Err(Stop::Python);
    }
    if at + length > data.len() {
        return Err(Stop::End(length));
    }
    Ok(at + length)
}

/// Returns the header of an event that is a packet, and where its body begins and ends there; None for what Python must
/// read.
fn header(packet: &[u8], frame: &Frame, state: &State) -> Option<(Header, usize, usize)> {
    let (length, log_pos) = (number(&packet[14..18]), number(&packet[18..22]));
    let start = (state.high + log_pos).checked_sub(length)?;
    if log_pos == 0 || start < state.end || length as usize != packet.len() - 5 {
        return None;
    }
    let mut stop = packet.len();
    if frame.checksums {
        stop -= 4;
        if stop < HEAD || u64::from(crc32fast::hash(&packet[5..stop])) != number(&packet[stop..]) {
            return None;
        }
    }
    let (time, server_id) = (number(&packet[5..9]) as u32, number(&packet[10..14]) as u32);
    Some((Header { kind: packet[9], start, length, time, server_id }, HEAD, stop))
}

/// Does the same for an event of a compressed transaction, whose position is that of the enclosing event.
fn inner_header(event: &[u8], state: &State) -> Option<(Header, usize, usize)> {
    let (kind, time) = (event[4], number(&event[..4]) as u32);
    let (length, server_id) = (number(&event[9..13]), number(&event[5..9]) as u32);
    let start = u64::try_from(state.start).ok()?;
    let known = matches!(kind, TABLE_MAP | QUERY | XID | 23..=25 | 30..=32);
    known.then_some((Header { kind, start, length, time, server_id }, INNER_HEAD, event.len()))
}

impl Reader {
    /// Takes the kinds of events that are skipped, and the time that one call of run() may take.
    pub fn new(passed: &[u8], slice: Duration) -> Self {
        Self { passed: passed.to_vec(), slice, ..Self::default() }
    }

    /// Returns the text of a source's uuid.
    pub fn source(&self, at: usize) -> &str {
        &self.sources[at]
    }

    /// Returns the number of a source by its text.
    pub fn source_named(&mut self, name: &str) -> usize {
        self.sources.iter().position(|known| known == name).unwrap_or_else(|| {
            self.sources.push(name.to_owned());
            self.sources.len() - 1
        })
    }

    /// Sets `table` for the rows of the table id; `None` if they are not captured. `at` is Python's number of the
    /// TABLE_MAP, and `until` the offset up to which it may get further ids here.
    pub fn know(&mut self, id: &[u8], body: &[u8], table: Option<Arc<Published>>, at: u32, until: u64) {
        self.insert(id, body, table.map_or(Rows::Dropped, Rows::Made), at, until);
    }

    /// Leaves the rows of the table id to Python.
    pub fn leave(&mut self, id: &[u8], body: &[u8], at: u32, until: u64) {
        self.insert(id, body, Rows::Python, at, until);
    }

    /// Passes over the rows of the table id, which is headrace's own, except for events that contain `sought`.
    pub fn own(&mut self, id: &[u8], body: &[u8], sought: Option<&[u8]>, at: u32, until: u64) {
        self.insert(id, body, Rows::Own(sought.map(<[u8]>::to_vec)), at, until);
    }

    fn insert(&mut self, id: &[u8], body: &[u8], rows: Rows, at: u32, until: u64) {
        let known = Arc::new(Known { body: body.to_vec(), rows, number: at, until });
        self.bodies.insert(body.to_vec(), Arc::clone(&known));
        self.tables.insert(number(id), known);
    }

    /// Forgets the table id, and the TABLE_MAP that had it.
    pub fn forget(&mut self, id: &[u8]) {
        if let Some(known) = self.tables.remove(&number(id)) {
            self.bodies.remove(&known.body);
        }
    }

    /// Forgets all table ids.
    pub fn forget_ids(&mut self) {
        self.tables.clear();
    }

    /// Forgets all tables.
    pub fn clear(&mut self) {
        self.tables.clear();
        self.bodies.clear();
    }

    /// Reads whole packets from `at` on; returns where it stopped, and why. `state` is that of the position.
    pub fn run(
        &mut self,
        data: &[u8],
        mut at: usize,
        frame: &Frame,
        state: &mut State,
        output: &mut Output,
        opener: &mut dyn Opener,
    ) -> (usize, Stop) {
        let (deadline, mut largest) = (Instant::now() + self.slice, 0);
        if data.len() >= u32::MAX as usize {
            return (at, Stop::Python);
        }
        loop {
            let end = match if frame.inner { inner_end(data, at) } else { packet_end(data, at) } {
                Ok(end) => end,
                Err(stop) => return (at, stop),
            };
            let before = output.size;
            let header =
                if frame.inner { inner_header(&data[at..end], state) } else { header(&data[at..end], frame, state) };
            let Some((header, body, stop)) = header else { return (at, Stop::Python) };
            match self.read(&header, data, at + body, at + stop, frame, state, output, opener) {
                Ok(true) => {}
                Ok(false) | Err(Unfit) => return (at, Stop::Python),
            }
            if !frame.inner {
                (state.start, state.end) = (header.start as i64, header.start + header.length);
            }
            state.time = header.time;
            at = end;
            self.events += 1;
            if frame.eager && !state.in_group {
                return (at, Stop::Enough);
            }
            // The next one is assumed to be as large as the largest, because what exceeds the limit becomes a separate
            // piece.
            largest = largest.max(output.size - before);
            if output.size + largest > frame.most_bytes || output.count >= frame.most_messages {
                return (at, Stop::Enough);
            }
            if self.events & BETWEEN_CLOCKS == 0 && Instant::now() > deadline {
                return (at, Stop::Enough);
            }
        }
    }

    /// Reads the body of an event, from `at` to `stop`; returns whether it did, or else Python must. If it refuses an
    /// event it has changed nothing.
    #[allow(clippy::too_many_arguments)]
    fn read(
        &mut self,
        header: &Header,
        data: &[u8],
        at: usize,
        stop: usize,
        frame: &Frame,
        state: &mut State,
        output: &mut Output,
        opener: &mut dyn Opener,
    ) -> Fit<bool> {
        let body = &data[at..stop];
        Ok(match header.kind {
            TABLE_MAP => self.table_map(body, header.start + header.length),
            23..=25 | 30..=32 | 166..=171 => self.rows(header, data, at, stop, frame, state, output, opener)?,
            GTID | ANONYMOUS_GTID => self.gtid(body, header, state)?,
            MARIADB_GTID => mariadb_gtid(body, header, state),
            QUERY => self.query(body, header, state)?,
            XID => self.commit(body, header, frame, state, output, opener)?,
            _ => self.passed.contains(&header.kind),
        })
    }

    /// Reads a TABLE_MAP that Python has read, perhaps with another table id; `end` is where its event ends.
    fn table_map(&mut self, body: &[u8], end: u64) -> bool {
        let Some((id, body)) = body.split_at_checked(6).filter(|(_, body)| !body.is_empty()) else { return false };
        let id = number(id);
        if self.tables.get(&id).is_some_and(|known| known.body == body) {
            return true;
        }
        let Some(known) = self.bodies.get(body).filter(|known| end <= known.until) else { return false };
        self.learned.push((id, known.number));
        self.tables.insert(id, Arc::clone(known));
        true
    }

    // -- transactions --------------------------------------------------------------------------------------------

    fn gtid(&mut self, body: &[u8], header: &Header, state: &mut State) -> Fit<bool> {
        let commit_us = if body.len() >= 49 {
            number(&body[42..49]) & COMMIT_TIME
        } else if body.len() >= 25 {
            u64::from(header.time) * 1_000_000
        } else {
            return Ok(false);
        };
        let gno = number(&body[17..25]);
        if state.inside || commit_us >= LATEST || gno > i64::MAX as u64 || state.last_pos >= POS_LIMIT {
            return Ok(false);
        }
        let key = if gno == 0 { None } else { Some(Key { source: self.source_of(&body[1..17]), number: gno }) };
        begin(header.start, commit_us, state);
        state.gtid.clear();
        if let Some(key) = key {
            state.gtid.extend_from_slice(self.sources[key.source].as_bytes());
            state.gtid.push(b':');
            text::int(&mut state.gtid, key.number);
        }
        state.key = key;
        Ok(true)
    }

    fn source_of(&mut self, raw: &[u8]) -> usize {
        if let Some(&(_, at)) = self.uuids.iter().find(|(known, _)| known == raw) {
            return at;
        }
        let mut digits = Vec::with_capacity(36);
        for (i, part) in [&raw[..4], &raw[4..6], &raw[6..8], &raw[8..10], &raw[10..]].into_iter().enumerate() {
            if i > 0 {
                digits.push(b'-');
            }
            text::hex(&mut digits, part);
        }
        let mut known = [0; 16];
        known.copy_from_slice(raw);
        let at = self.source_named(&String::from_utf8_lossy(&digits));
        self.uuids.push((known, at));
        at
    }

    /// Handles the statement BEGIN; all others are left to Python.
    fn query(&mut self, body: &[u8], header: &Header, state: &mut State) -> Fit<bool> {
        if body.len() < 13 || !body.ends_with(b"\0BEGIN") {
            return Ok(false);
        }
        if !state.in_group {
            let commit_us = u64::from(header.time) * 1_000_000;
            if state.inside || state.last_pos >= POS_LIMIT {
                return Ok(false);
            }
            begin(header.start, commit_us, state);
            state.gtid.clear();
            state.key = None;
        }
        state.server_id = header.server_id;
        state.thread = number(&body[..4]) as u32;
        state.begun = Some(header.event(state));
        state.inside = true;
        Ok(true)
    }

    fn commit(
        &mut self,
        body: &[u8],
        header: &Header,
        frame: &Frame,
        state: &mut State,
        output: &mut Output,
        opener: &mut dyn Opener,
    ) -> Fit<bool> {
        if state.marked {
            let xid = if body.len() == 8 { number(body) } else { 0 };
            let mark = state.mark(frame, header.event(state), Some(xid));
            let pos = mark.pos;
            if pos >= POS_LIMIT {
                return Ok(false);
            }
            output.put_mark(&mark, state.begin, opener)?;
            (state.marked, state.last_pos) = (false, pos);
        }
        if let Some(key) = state.key.take() {
            let own = state.own_events > 0 && state.own_events == state.events_done;
            match self.executed.last_mut() {
                Some((source, _, last, same))
                    if (*source, *same) == (key.source, own) && last.checked_add(1) == Some(key.number) =>
                {
                    *last = key.number
                }
                _ => self.executed.push((key.source, key.number, key.number, own)),
            }
        }
        (state.inside, state.in_group) = (false, false);
        state.last_commit_us = state.commit_us;
        state.last_start = Some(state.begin);
        (state.events_done, state.own_events) = (0, 0);
        self.transactions += 1;
        Ok(true)
    }

    // -- rows ----------------------------------------------------------------------------------------------------

    #[allow(clippy::too_many_arguments)]
    fn rows(
        &mut self,
        header: &Header,
        data: &[u8],
        at: usize,
        stop: usize,
        frame: &Frame,
        state: &mut State,
        output: &mut Output,
        opener: &mut dyn Opener,
    ) -> Fit<bool> {
        let body = &data[at..stop];
        let table_id = number(body.get(..6).ok_or(Unfit)?);
        let table = match self.tables.get(&table_id).map(|known| &known.rows) {
            None | Some(Rows::Python) => return Ok(false),
            Some(Rows::Dropped) => {
                state.events_done += 1;
                return Ok(true);
            }
            Some(Rows::Own(sought)) => {
                let compressed = header.kind >= 166;
                if compressed || sought.as_ref().is_some_and(|sought| contains(body, sought)) {
                    return Ok(false);
                }
                (state.own_events, state.events_done) = (state.own_events + 1, state.events_done + 1);
                return Ok(true);
            }
            Some(Rows::Made(table)) => Arc::clone(table),
        };
        // MariaDB's compressed ones, without extra data and with it, have the kinds of the others plus a number.
        let (kind, compressed) = match header.kind {
            kind @ 166..=168 => (kind - 143, true),
            kind @ 169..=171 => (kind - 139, true),
            kind => (kind, false),
        };
        let (operation, images) = match kind {
            23 | 30 => (Operation::Insert, 1),
            24 | 31 => (Operation::Update, 2),
            _ => (Operation::Delete, 1),
        };
        let width = table.table.shapes().len();
        let first = first_row(body, kind >= 30, width, images)?;
        let mut inflated = std::mem::take(&mut self.inflated);
        let (data, at, stop) = if compressed {
            compressed::event(&mut inflated, body, first, PART_BYTES)?;
            (inflated.as_slice(), 0, inflated.len())
        } else {
            (data, at, stop)
        };
        let body = &data[at..stop];
        let most = match body.len() {
            size if size > LARGE_EVENT => return Ok(false),
            size if size > PART_BYTES => images,
            size if size > SMALL_EVENT => part_rows(images * width) * images,
            _ => usize::MAX,
        };
        self.spans.clear();
        let mut p = at + first;
        while p < stop {
            p = spans::image(&mut self.spans, table.table.shapes(), data, p, stop)?;
            if self.spans.len() / width > most {
                return Ok(false);
            }
        }
        let count = self.spans.len() / width;
        if count == 0 || count % images != 0 {
            return Ok(false);
        }
        if state.commit_us >= LATEST {
            return Ok(false);
        }
        let rows = count / images;
        let sizes = parts::sizes(&table.table.compressed, width, data, &self.spans);
        let many = || rows > part_rows(images * width);
        if sizes.total > PART_BYTES || (sizes.largest > compressed::SMALL_VALUE && many()) {
            return Ok(false);
        }
        let each = if operation == Operation::Update && table.table.two_numbers { 2 } else { 1 };
        let numbers = (rows * each) as i64;
        let event = header.event(state);
        let mut pos = state.next_pos();
        let begin =
            (output.marks.is_some() && !state.marked).then(|| state.mark(frame, state.begun.unwrap_or(event), None));
        pos += i64::from(begin.is_some());
        if pos >= POS_LIMIT {
            return Ok(false);
        }
        let change = Change {
            data,
            spans: &self.spans,
            operation,
            rows,
            pos,
            commit_us: state.commit_us,
            gtid: &state.gtid,
            file: frame.file,
            event,
            table_id,
            now_ms: output.now_ms,
            snapshot: None,
        };
        let origin = Origin { transaction: state.begin, ordinal: state.events_done + 1 };
        output.put(&table, &change, origin, begin.as_ref(), opener)?;
        state.marked |= begin.is_some();
        state.events_done += 1;
        state.captured_rows = true;
        state.last_pos = pos + numbers - 1;
        self.inflated = inflated;
        Ok(true)
    }
}

fn contains(data: &[u8], sought: &[u8]) -> bool {
    // windows() panics for 0 bytes.
    sought.is_empty() || data.windows(sought.len()).any(|part| part == sought)
}

/// Returns where the first row image begins, in an event whose images have all columns.
fn first_row(body: &[u8], extra: bool, columns: usize, images: usize) -> Fit<usize> {
    let mut p = 8;
    if extra {
        p += number(body.get(8..10).ok_or(Unfit)?) as usize;
    }
    let count = match *body.get(p).ok_or(Unfit)? {
        0xFC if columns >= 251 => {
            let raw = body.get(p + 1..p + 3).ok_or(Unfit)?;
            p += 3;
            number(raw) as usize
        }
        small if small < 251 => {
            p += 1;
            small as usize
        }
        _ => return Err(Unfit),
    };
    if count != columns {
        return Err(Unfit);
    }
    for _ in 0..images {
        let width = columns.div_ceil(8);
        let bitmap = body.get(p..p + width).ok_or(Unfit)?;
        let whole = (0..columns).all(|i| bitmap[i / 8] >> (i % 8) & 1 == 1);
        if !whole {
            return Err(Unfit);
        }
        p += width;
    }
    Ok(p)
}

/// Begins a transaction at `start`.
fn begin(start: u64, commit_us: u64, state: &mut State) {
    (state.begin, state.begun) = (start, None);
    state.events_done = 0;
    (state.in_group, state.captured_rows) = (true, false);
    let roomed = state.last_pos == state.roomed;
    state.tx_last_pos = if roomed { state.last_pos - POS_ROOM } else { state.last_pos };
    state.commit_us = commit_us;
    if !roomed {
        state.last_pos += POS_ROOM;
        state.roomed = state.last_pos;
    }
}
