//! Maxwell's messages: one a row, with its key.

use crate::changes::{Change, Operation};
use crate::stage::{Message, Stage};
use crate::table::Table;
use crate::text::{self, put};
use crate::Fit;

/// The constant parts of the messages about a table.
#[derive(Debug, Clone)]
pub struct Maxwell {
    /// The begin of key and message, with the names of schema and table.
    pub head: Vec<u8>,
    /// The optional fields about the place, in their order.
    pub places: Vec<Place>,
    /// Whether the values of the primary key have a field of their own.
    pub shows_key: bool,
    /// The field with the names of its columns, with the comma before it; "" without.
    pub key_columns: Vec<u8>,
    /// The columns of the primary key, and their fields in the record's key: comma, name and colon.
    pub keys: Vec<(usize, Vec<u8>)>,
}

/// Where a change is in the binlog, and who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `position`: the binlog file, and where the event begins in it.
    Position,
    /// `gtid`; null without one.
    Gtid,
    /// `server_id`: the server that executed it.
    ServerId,
    /// `thread_id`: the session's connection id.
    ThreadId,
}

impl Maxwell {
    fn write_head(&self, change: &Change, out: &mut Vec<u8>) {
        let kind = match change.operation {
            _ if change.snapshot.is_some() => "bootstrap-insert",
            Operation::Insert => "insert",
            Operation::Update => "update",
            Operation::Delete => "delete",
        };
        out.clear();
        put!(out, &self.head, b",\"type\":\"", kind, b"\",\"ts\":", change.commit_us / 1_000_000);
        for place in &self.places {
            match place {
                Place::Position => {
                    out.extend_from_slice(b",\"position\":\"");
                    text::escape(out, change.file);
                    put!(out, b":", change.event.offset, b"\"");
                }
                Place::Gtid => {
                    out.extend_from_slice(b",\"gtid\":");
                    text::quote_or_null(out, change.gtid);
                }
                Place::ServerId => put!(out, b",\"server_id\":", change.event.server_id),
                Place::ThreadId => put!(out, b",\"thread_id\":", change.event.thread),
            }
        }
    }
}

impl Table {
    pub(crate) fn stage_maxwell(&self, format: &Maxwell, change: &Change, stage: &mut Stage) -> Fit<()> {
        format.write_head(change, &mut stage.head);
        self.stage_rows(change, stage, |row, slot, pos, stage| self.maxwell_row(format, change, row, slot, pos, stage))
    }

    fn maxwell_row(
        &self,
        format: &Maxwell,
        change: &Change,
        row: usize,
        slot: u32,
        pos: i64,
        stage: &mut Stage,
    ) -> Fit<()> {
        let Stage { bytes: out, head, scratch, .. } = stage;
        let (before, image) = self.images(change, row);
        let key_start = out.len();
        if !format.keys.is_empty() {
            out.extend_from_slice(&format.head);
            for (column, name) in &format.keys {
                out.extend_from_slice(name);
                self.cell(&self.columns[*column], change.data, image, out)?;
            }
            out.push(b'}');
        }
        let start = out.len();
        out.extend_from_slice(head);
        if format.shows_key {
            out.extend_from_slice(b",\"primary_key\":[");
            for (i, (column, _)) in format.keys.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                self.cell(&self.columns[*column], change.data, image, out)?;
            }
            out.push(b']');
        }
        put!(out, &format.key_columns, b",\"data\":");
        self.row(change.data, image, out)?;
        if let Some(before) = before {
            out.extend_from_slice(b",\"old\":");
            self.old(change.data, before, image, &[], out, scratch)?;
        }
        out.push(b'}');
        let key = (start > key_start).then_some((key_start, start));
        let (value, about) = (Some((start, out.len())), self.about(change, &[row], out)?);
        stage.messages.push(Message { slot, value, key, row, rows: 1, again: false, pos, about });
        Ok(())
    }
}
