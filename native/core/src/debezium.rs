//! Debezium's messages: one a row, with its key, and a tombstone after a delete; or the row itself (`unwrap`).

use crate::changes::{Change, Image, Operation};
use crate::stage::{Message, Stage};
use crate::table::{RecordKey, Table};
use crate::text::{self, put};
use crate::{Fit, Unfit};

/// The constant parts of the messages about a table.
#[derive(Debug, Clone)]
pub struct Debezium {
    /// What is before the payload of a value: its schema; "" without schemas.
    pub value_head: Vec<u8>,
    /// What is after the payload; "" without schemas.
    pub tail: Vec<u8>,
    /// The record's key: the columns of the primary key.
    pub key: RecordKey,
    /// The source block up to its time.
    pub source: Vec<u8>,
    /// Its member `db`, with the comma before it.
    pub source_db: Vec<u8>,
    /// Its member `table`, with the comma before it.
    pub source_table: Vec<u8>,
    /// Whether a tombstone follows each delete that has a key.
    pub tombstones: bool,
    /// Whether deletes have a message with a value.
    pub shows_deletes: bool,
    /// If a message is the row itself, without the envelope: the fields of that which the row gets. Each begins with its
    /// name and colon.
    pub unwrapped: Option<Vec<(Vec<u8>, Added)>>,
}

/// The part of an added field that differs between messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The whole field is constant.
    Nothing,
    /// `op`: c, u, d, or r for a row that a snapshot has read.
    Op,
    /// When the message is made, in units of this many nanoseconds, which is not 0.
    Now(u64),
    /// When the transaction was committed, in the same units.
    Commit(u64),
    /// `source.snapshot`: Debezium's word for the position in the snapshot, or false.
    Snapshot,
    /// `source.server_id`.
    ServerId,
    /// `source.gtid`; null without one.
    Gtid,
    /// `source.file`: the binlog file.
    File,
    /// `source.pos`: where the event begins in the file.
    Pos,
    /// `source.row`: the number of the row in its event, from 0 on.
    Row,
    /// `source.thread`: the session's connection id; null if not known.
    Thread,
}

impl Added {
    fn write(self, change: &Change, row: usize, out: &mut Vec<u8>) {
        match self {
            Added::Nothing => {}
            Added::Op => put!(out, b"\"", op(change), b"\""),
            Added::Now(unit) => text::int(out, change.now_ms * 1_000_000 / unit),
            Added::Commit(unit) => text::int(out, change.commit_us * 1000 / unit),
            Added::Snapshot => put!(out, b"\"", marker(change), b"\""),
            Added::ServerId => text::int(out, change.event.server_id),
            Added::Gtid => text::quote_or_null(out, change.gtid),
            Added::File => text::quote(out, change.file),
            Added::Pos => text::int(out, change.event.offset),
            Added::Row => text::int(out, row),
            Added::Thread => thread(change, out),
        }
    }
}

fn op<'a>(change: &Change<'a>) -> &'a str {
    change.snapshot.map_or(change.operation.names().1, |_| "r")
}

fn marker<'a>(change: &Change<'a>) -> &'a [u8] {
    change.snapshot.map_or(b"false", |of| of.marker)
}

fn thread(change: &Change, out: &mut Vec<u8>) {
    match change.event.thread {
        0 => out.extend_from_slice(b"null"),
        thread => text::int(out, thread),
    }
}

impl Debezium {
    /// Writes the added fields after the columns of a row; `begun`: whether there are any columns.
    fn add_fields(&self, added: &[(Vec<u8>, Added)], change: &Change, row: usize, begun: bool, out: &mut Vec<u8>) {
        let mut comma: &[u8] = if begun { b"," } else { b"" };
        for (begin, rest) in added {
            put!(out, comma, begin);
            rest.write(change, row, out);
            comma = b",";
        }
        if self.shows_deletes {
            let deleted = if change.operation == Operation::Delete { "true" } else { "false" };
            put!(out, comma, b"\"__deleted\":\"", deleted, b"\"");
        }
    }
}

impl Table {
    pub(crate) fn stage_debezium(&self, format: &Debezium, change: &Change, stage: &mut Stage) -> Fit<()> {
        if format.unwrapped.is_none() {
            self.source(format, change, stage);
        }
        self.stage_rows(change, stage, |row, slot, pos, stage| self.debezium_row(format, change, row, slot, pos, stage))
    }

    fn debezium_row(
        &self,
        format: &Debezium,
        change: &Change,
        row: usize,
        slot: u32,
        pos: i64,
        stage: &mut Stage,
    ) -> Fit<()> {
        let Stage { bytes: out, head, foot, first, .. } = stage;
        let (before, image) = self.images(change, row);
        let key_start = out.len();
        if !format.key.columns.is_empty() {
            self.record_key(&format.key, change, image, out)?;
        }
        let start = out.len();
        if let Some(before) = before {
            let moved = |&key: &usize| {
                let field = self.columns[key].field;
                before[field].of(change.data) != image[field].of(change.data)
            };
            if format.key.columns.iter().any(moved) {
                return Err(Unfit);
            }
        }
        out.extend_from_slice(&format.value_head);
        let number = first.unwrap_or(0) + row;
        match &format.unwrapped {
            Some(added) => {
                if let Some(before) = before {
                    self.row(change.data, before, out)?; // Python must report what can't be printed
                    out.truncate(start + format.value_head.len());
                }
                self.row(change.data, image, out)?;
                out.pop();
                format.add_fields(added, change, number, !self.columns.is_empty(), out);
                put!(out, b"}", &format.tail);
            }
            None => {
                self.both_images(change, before, image, out)?;
                put!(out, &*head, number, &*foot);
            }
        }
        let key = (start > key_start).then_some((key_start, start));
        let gone = change.operation == Operation::Delete;
        let (shown, tombstone) = (!gone || format.shows_deletes, gone && format.tombstones && key.is_some());
        if !shown && !tombstone {
            return Err(Unfit); // a row without a message counts, too: left to Python
        }
        let (value, about) = (Some((start, out.len())), self.about(change, &[row], out)?);
        let message = Message { slot, value, key, row, rows: 1, again: false, pos, about };
        if shown {
            stage.messages.push(message);
        }
        if tombstone {
            stage.messages.push(Message { value: None, rows: usize::from(!shown), again: shown, ..message });
        }
        Ok(())
    }

    fn both_images(&self, change: &Change, before: Option<Image>, image: Image, out: &mut Vec<u8>) -> Fit<()> {
        out.extend_from_slice(b"{\"before\":");
        match change.operation {
            Operation::Insert => {
                out.extend_from_slice(b"null,\"after\":");
                self.row(change.data, image, out)?;
            }
            Operation::Delete => {
                self.row(change.data, image, out)?;
                out.extend_from_slice(b",\"after\":null");
            }
            Operation::Update => {
                self.row(change.data, before.ok_or(Unfit)?, out)?;
                out.extend_from_slice(b",\"after\":");
                self.row(change.data, image, out)?;
            }
        }
        Ok(())
    }

    /// Writes what comes before the row's number, and after it: the same in all messages of an event.
    fn source(&self, format: &Debezium, change: &Change, stage: &mut Stage) {
        let Stage { head: out, foot, .. } = stage;
        out.clear();
        let us = change.commit_us;
        let marker = marker(change);
        put!(out, b",\"source\":", &format.source, us / 1000, b",\"snapshot\":\"", marker, b"\"", &format.source_db);
        put!(out, b",\"sequence\":null,\"ts_us\":", us, b",\"ts_ns\":", us * 1000, &format.source_table);
        put!(out, b",\"server_id\":", change.event.server_id, b",\"gtid\":");
        text::quote_or_null(out, change.gtid);
        out.extend_from_slice(b",\"file\":");
        text::quote(out, change.file);
        put!(out, b",\"pos\":", change.event.offset, b",\"row\":");
        let out = foot;
        out.clear();
        out.extend_from_slice(b",\"thread\":");
        thread(change, out);
        let ms = change.now_ms;
        put!(out, b",\"query\":null},\"transaction\":null,\"op\":\"", op(change), b"\",\"ts_ms\":", ms);
        put!(out, b",\"ts_us\":", ms, b"000,\"ts_ns\":", ms, b"000000}", &format.tail);
    }
}
