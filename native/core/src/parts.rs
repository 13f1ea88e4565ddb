//! Makes the rows of an event part by part, if it is too large for one piece (`headrace/mysql/native_parts.py`).
//!
//! A part is made without changing anything else, so that a thread can do it. Then `Output::put_part` publishes it.

use std::sync::Arc;

use crate::changes::{Change, Event, Operation};
use crate::compressed;
use crate::fields::Shape;
use crate::formats::Published;
use crate::output::{Opener, Origin, Output};
use crate::spans::{self, Span};
use crate::stage::Stage;
use crate::{Fit, Unfit};

/// A part ends with the row that makes it this large: in bytes, rows, or values. Python's are the same
/// (`headrace/mysql/rows.py`).
pub(crate) const PART_BYTES: usize = 512 << 10;
const PART_ROWS: usize = 5_000;
const PART_VALUES: usize = 100_000;

/// Returns the maximum number of rows of a part; `values` are those of one row.
pub(crate) fn part_rows(values: usize) -> usize {
    PART_ROWS.min((PART_VALUES - 1) / values + 1)
}

/// Sizes of the inflated values of compressed columns, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub total: usize,
    pub largest: usize,
}

/// Returns the sizes of the values of these fields in row images of `width` columns, as the values say; inflating refuses
/// other sizes.
pub(crate) fn sizes(fields: &[usize], width: usize, data: &[u8], spans: &[Span]) -> Sizes {
    let mut sizes = Sizes::default();
    for &field in fields {
        for raw in spans.chunks(width).filter_map(|image| image[field].of(data)) {
            let size = compressed::size_of(raw);
            sizes = Sizes { total: sizes.total + size, largest: sizes.largest.max(size) };
        }
    }
    sizes
}

/// What is known about a part before its rows are read.
#[derive(Debug)]
pub struct Facts {
    /// That of the whole event.
    pub operation: Operation,
    /// Rows of the event that are before it.
    pub first: usize,
    /// The number (`_pos`) of its first row.
    pub pos: i64,
    /// Canal's `id` of the message before it.
    pub number: u64,
    /// Maximum number of rows of a message; 0 is no limit.
    pub rows_per_message: usize,
    /// The time that messages contain, in milliseconds since 1970.
    pub now_ms: u64,
    /// Commit time of the transaction, in microseconds since 1970.
    pub commit_us: u64,
    /// The transaction's GTID as text; "" without one.
    pub gtid: Vec<u8>,
    /// Name of the binlog file.
    pub file: Vec<u8>,
    /// The event that has the rows.
    pub event: Event,
    /// The number of the table in the binlog.
    pub table_id: u64,
    /// The event's place in its transaction.
    pub origin: Origin,
}

/// The rest of an event's rows: `data` from `at` on, as far as it was taken from the event.
#[derive(Debug, Clone, Copy)]
pub struct Rest<'a> {
    /// The bytes, up to the end of the rows or of what was taken.
    pub data: &'a [u8],
    /// Where the next row begins in `data`.
    pub at: usize,
    /// Whether the event has more.
    pub more: bool,
}

/// Maximum sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of the rows that are made at once, with their inflated values.
    pub rows: usize,
    /// Of the value of one message.
    pub message: usize,
}

/// Some rows of an event, and their messages.
#[derive(Debug)]
pub struct Part {
    published: Arc<Published>,
    facts: Facts,
    stage: Stage,
    /// The number of its rows.
    pub rows: usize,
    /// The bytes of its rows in the event.
    pub size: usize,
}

impl Facts {
    fn change<'a>(&'a self, rows: usize, data: &'a [u8], spans: &'a [Span]) -> Change<'a> {
        Change {
            data,
            spans,
            operation: self.operation,
            rows,
            pos: self.pos,
            commit_us: self.commit_us,
            gtid: &self.gtid,
            file: &self.file,
            event: self.event,
            table_id: self.table_id,
            now_ms: self.now_ms,
            snapshot: None,
        }
    }
}

impl Part {
    /// Makes the next part of an event. Returns None if it is larger than `limits.rows`, or than what is in `rest`.
    pub fn make(published: &Arc<Published>, facts: Facts, rest: Rest, limits: Limits) -> Fit<Option<Self>> {
        let mut spans = Vec::new();
        let images = if facts.operation == Operation::Update { 2 } else { 1 };
        let Some((rows, end)) = scan(&mut spans, published.table.shapes(), rest, images)? else { return Ok(None) };
        let inflated = sizes(&published.table.compressed, published.table.shapes().len(), rest.data, &spans).total;
        if end - rest.at + inflated > limits.rows {
            return Ok(None);
        }
        let whole = facts.first == 0 && end == rest.data.len() && !rest.more;
        let mut stage = Stage { first: (!whole).then_some(facts.first), ..Stage::default() };
        let change = facts.change(rows, rest.data, &spans);
        published.stage(&change, facts.rows_per_message, facts.number, &mut stage)?;
        if stage.largest() > limits.message {
            return Err(Unfit);
        }
        Ok(Some(Self { published: Arc::clone(published), facts, stage, rows, size: end - rest.at }))
    }
}

impl Output {
    /// Publishes a part, once. The numbers are as its facts say.
    pub fn put_part(&mut self, part: &mut Part, opener: &mut dyn Opener) -> Fit<()> {
        let change = part.facts.change(part.rows, &[], &[]);
        self.put_stage(&part.published, &change, part.facts.origin, opener, &mut part.stage)
    }
}

/// Finds the columns of the next part. Returns its number of rows and where they end; None if it needs more bytes.
fn scan(spans: &mut Vec<Span>, shapes: &[Shape], rest: Rest, images: usize) -> Fit<Option<(usize, usize)>> {
    let Rest { data, mut at, more } = rest;
    if at >= data.len() || data.len() >= u32::MAX as usize {
        return Err(Unfit);
    }
    let (begin, most, mut rows) = (at, part_rows(images * shapes.len()), 0);
    while at < data.len() {
        for _ in 0..images {
            at = match spans::image(spans, shapes, data, at, data.len()) {
                Ok(end) => end,
                Err(Unfit) if more => return Ok(None),
                Err(Unfit) => return Err(Unfit),
            };
        }
        rows += 1;
        if rows >= most || at - begin >= PART_BYTES {
            return Ok(Some((rows, at)));
        }
    }
    Ok((!more).then_some((rows, at)))
}
