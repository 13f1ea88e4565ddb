//! What the binlog says: changes of rows, and the begin and end of transactions.

use crate::spans::Span;

/// What happened to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// INSERT, or a row that a snapshot has read.
    Insert,
    /// UPDATE: a row has two images, before and after.
    Update,
    /// DELETE: a row has the image before.
    Delete,
}

impl Operation {
    /// Returns the names in Canal and in Debezium.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Operation::Insert => ("INSERT", "c"),
            Operation::Update => ("UPDATE", "u"),
            Operation::Delete => ("DELETE", "d"),
        }
    }
}

/// The position of an event, and who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes, with header and checksum.
    pub length: u64,
    /// When its statement began, in seconds since 1970.
    pub time: u32,
    /// The id of the server that executed it; 0 if not known.
    pub server_id: u32,
    /// The connection id of its session there; 0 if not known.
    pub thread: u32,
}

/// The begin or end of a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark<'a> {
    pub event: Event,
    /// The storage engine's number of the transaction, at its end.
    pub xid: Option<u64>,
    pub pos: i64,
    pub commit_us: u64,
    pub gtid: &'a [u8],
    pub file: &'a [u8],
}

/// What rows have that were read from their table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot<'a> {
    /// The ids of their messages, after the server's uuid.
    pub id: &'a [u8],
    pub kind: &'a [u8],
    /// Debezium's word for their position in the snapshot.
    pub marker: &'a [u8],
}

/// One rows event, split into columns, or rows of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'a> {
    pub data: &'a [u8],
    pub spans: &'a [Span],
    pub operation: Operation,
    pub rows: usize,
    pub pos: i64,
    pub commit_us: u64,
    pub gtid: &'a [u8],
    pub file: &'a [u8],
    pub event: Event,
    /// The number of the table in the binlog.
    pub table_id: u64,
    pub now_ms: u64,
    pub snapshot: Option<Snapshot<'a>>,
}

/// The columns of one row.
pub(crate) type Image<'a> = &'a [Span];
