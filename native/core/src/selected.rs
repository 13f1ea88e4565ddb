//! Rows of a SELECT's result (MySQL's text protocol), made into row images, so that all else is as with rows of the
//! binlog. What the columns are selected as is in `headrace/mysql/snapshot/select.py`.

use std::time::{Duration, Instant};

use crate::changes::{Change, Event, Operation, Snapshot};
use crate::fields::Kind;
use crate::formats::Published;
use crate::output::{Opener, Origin, Output};
use crate::spans::Span;
use crate::temporal;
use crate::text::put;
use crate::{Fit, Unfit};

/// Bytes of a packet's header: its size in three, and its number.
const HEAD: usize = 4;
/// The size of a packet that continues in the next one.
const FULL: usize = 0xFF_FFFF;
/// Maximum bytes of the rows of one change; Python gives larger ones in slices.
const LARGEST: usize = 512 << 10;
const NULL: u8 = 0xFB;

/// Rows as received, each a packet with its header.
#[derive(Debug, Clone, Copy)]
pub struct Packets<'a> {
    /// Bytes of the result.
    pub data: &'a [u8],
    /// Where the first begins.
    pub at: usize,
    /// How many there are.
    pub rows: usize,
    /// The numbers of those that are left out, in order.
    pub left_out: &'a [usize],
}

/// What the changes have that are made of them.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The ids of the changes, up to the number of each.
    pub id: &'a [u8],
    /// The kind of the snapshot, which a header contains.
    pub kind: &'a [u8],
    /// Debezium's word for their position in the snapshot.
    pub marker: &'a [u8],
    /// The number of the last change before.
    pub number: u64,
    /// How many rows make one change.
    pub together: usize,
    /// The binlog file where the stream is.
    pub file: &'a [u8],
    /// Where the stream is in the file.
    pub offset: u64,
    /// The number (`_pos`) of the first row of each change.
    pub pos: i64,
    /// Commit time of each change, in microseconds since 1970.
    pub commit_us: u64,
    /// The bytes of messages after which it stops.
    pub most_bytes: u64,
    /// The number of messages after which it stops.
    pub most_messages: u64,
    /// The time after which it stops.
    pub time: Duration,
}

/// How far it came.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Rows that were read, with those that are left out.
    pub rows: usize,
    /// Changes that were made of them.
    pub changes: u64,
    /// Where the rows end.
    pub end: usize,
    /// Where the last row begins.
    pub last: usize,
}

/// Memory that is reused.
#[derive(Debug, Default)]
pub struct Selected {
    image: Vec<u8>,
    spans: Vec<Span>,
    id: Vec<u8>,
}

impl Selected {
    /// Makes the messages of rows, until they are used up, or a limit is reached, or Python must read the next ones.
    pub fn run(
        &mut self,
        published: &Published,
        packets: Packets,
        facts: &Facts,
        output: &mut Output,
        opener: &mut dyn Opener,
    ) -> Done {
        let deadline = Instant::now() + facts.time;
        let mut done = Done { end: packets.at, last: packets.at, ..Done::default() };
        while done.rows < packets.rows && output.size < facts.most_bytes && output.count < facts.most_messages {
            let rows = facts.together.min(packets.rows - done.rows);
            let Ok(after) = self.change(published, packets, rows, &done, facts, output, opener) else { break };
            done = after;
            if Instant::now() > deadline {
                break;
            }
        }
        done
    }

    /// Makes the messages of one change, or does nothing.
    #[allow(clippy::too_many_arguments)]
    fn change(
        &mut self,
        published: &Published,
        packets: Packets,
        rows: usize,
        done: &Done,
        facts: &Facts,
        output: &mut Output,
        opener: &mut dyn Opener,
    ) -> Fit<Done> {
        self.image.clear();
        self.spans.clear();
        let (mut after, mut kept) = (Done { rows: done.rows + rows, ..*done }, 0);
        for row in done.rows..done.rows + rows {
            (after.last, after.end) = (after.end, end_of(packets.data, after.end)?);
            if packets.left_out.binary_search(&row).is_err() {
                self.row(published.table.kinds(), &packets.data[after.last + HEAD..after.end])?;
                kept += 1;
            }
        }
        if kept == 0 {
            return Ok(after);
        }
        after.changes += 1;
        self.id.clear();
        put!(&mut self.id, facts.id, b"-", facts.number + after.changes);
        let event = Event { offset: facts.offset, length: 0, time: 0, server_id: 0, thread: 0 };
        let change = Change {
            data: &self.image,
            spans: &self.spans,
            operation: Operation::Insert,
            rows: kept,
            pos: facts.pos,
            commit_us: facts.commit_us,
            gtid: b"",
            file: facts.file,
            event,
            table_id: 0,
            now_ms: output.now_ms,
            snapshot: Some(Snapshot { id: &self.id, kind: facts.kind, marker: facts.marker }),
        };
        output.put(published, &change, Origin { transaction: facts.offset, ordinal: 0 }, None, opener)?;
        Ok(after)
    }

    /// Adds the image of a row.
    fn row(&mut self, kinds: &[Kind], mut rest: &[u8]) -> Fit<()> {
        if self.image.len() + rest.len() > LARGEST {
            return Err(Unfit);
        }
        for kind in kinds {
            let Some(value) = next(&mut rest)? else {
                self.spans.push(Span::NULL);
                continue;
            };
            let begin = self.image.len();
            pack(kind, &mut self.image, value)?;
            self.spans.push(Span::new(begin, self.image.len()));
        }
        require(rest.is_empty())
    }
}

/// Returns where the packet ends that begins at `at`.
fn end_of(data: &[u8], at: usize) -> Fit<usize> {
    let size = little_endian(data.get(at..at + HEAD - 1).ok_or(Unfit)?);
    let end = at + HEAD + size;
    require(size != FULL && end <= data.len())?;
    Ok(end)
}

fn little_endian(raw: &[u8]) -> usize {
    raw.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
}

/// Takes the next value with its length; None for NULL.
fn next<'a>(rest: &mut &'a [u8]) -> Fit<Option<&'a [u8]>> {
    let (&first, after) = rest.split_first().ok_or(Unfit)?;
    let (size, after) = match first {
        NULL => {
            *rest = after;
            return Ok(None);
        }
        0xFC | 0xFD => {
            let (size, after) = after.split_at_checked(usize::from(first) - 0xFA).ok_or(Unfit)?;
            (little_endian(size), after)
        }
        0xFE | 0xFF => return Err(Unfit), // a value of 16 MB and more, or the end of an error
        size => (size.into(), after),
    };
    let (value, after) = after.split_at_checked(size).ok_or(Unfit)?;
    *rest = after;
    Ok(Some(value))
}

/// Writes a value as in a row image, without a length before it.
pub fn pack(kind: &Kind, out: &mut Vec<u8>, text: &[u8]) -> Fit<()> {
    match *kind {
        Kind::Int { size, signed: true } => {
            let value: i64 = parsed(text)?;
            let spare = 64 - 8 * size as u32;
            require(value << spare >> spare == value)?;
            out.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        Kind::Int { size, signed: false } | Kind::Enum { size, .. } | Kind::Set { size, .. } => {
            let value: u64 = parsed(text)?;
            require(size == 8 || value >> (8 * size) == 0)?;
            out.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        Kind::Float => {
            let value: f64 = parsed(text)?;
            require(f64::from(value as f32) == value)?;
            out.extend_from_slice(&(value as f32).to_le_bytes());
        }
        Kind::Double => {
            let value: f64 = parsed(text)?;
            require(value.is_finite())?;
            out.extend_from_slice(&value.to_le_bytes());
        }
        Kind::Year => {
            let value: u16 = parsed(text)?;
            // MariaDB shows a YEAR(2) with two digits.
            let year = if text.len() > 2 { value } else { value + if value < 70 { 2000 } else { 1900 } };
            require(year == 0 || (1901..=2155).contains(&year))?;
            out.push(year.saturating_sub(1900) as u8);
        }
        Kind::Decimal(ref decimal) => decimal.pack(out, text)?,
        Kind::Bit { size } => {
            require(text.len() == size)?;
            out.extend_from_slice(text);
        }
        Kind::Date => temporal::pack_date(out, text)?,
        Kind::Datetime(stored) => temporal::pack_datetime(out, text, stored.fsp)?,
        Kind::Timestamp { stored, .. } => temporal::pack_timestamp(out, text, stored.fsp)?,
        Kind::Time(stored) => temporal::pack_time(out, text, stored.fsp)?,
        Kind::Text { .. } | Kind::Bytes { .. } | Kind::Vector { .. } => out.extend_from_slice(text),
        // These come as text.
        Kind::Json { .. } | Kind::Uuid | Kind::Inet6 | Kind::Inet4 | Kind::Compressed { .. } => return Err(Unfit),
    }
    Ok(())
}

fn require(valid: bool) -> Fit<()> {
    valid.then_some(()).ok_or(Unfit)
}

/// Reads a number that begins with a digit or a minus sign.
fn parsed<T: std::str::FromStr>(text: &[u8]) -> Fit<T> {
    require(text.first().is_some_and(|&byte| byte == b'-' || byte.is_ascii_digit()))?;
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Unfit)
}
