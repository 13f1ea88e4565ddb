//! Debezium's messages: one a row, with its key, and a tombstone after a delete.

use crate::changes::{Change, Operation};
use crate::stage::{Message, Stage};
use crate::table::{RecordKey, Table};
use crate::text::{self, put};
use crate::{Fit, Unfit};

/// The constant parts of the messages about a table.
#[derive(Debug, Clone)]
pub struct Debezium {
    pub value_head: Vec<u8>,
    pub key: RecordKey,
    pub tail: Vec<u8>,
    /// The source block up to its time, and its members `db` and `table`, each with the comma before it.
    pub source: Vec<u8>,
    pub source_db: Vec<u8>,
    pub source_table: Vec<u8>,
    pub tombstones: bool,
}

impl Table {
    pub(crate) fn stage_debezium(&self, format: &Debezium, change: &Change, stage: &mut Stage) -> Fit<()> {
        self.group(change, stage)?;
        self.source(format, change, stage);
        for group in 0..stage.order.len() {
            let slot = stage.order[group];
            let mut first = None;
            let mut nth = 0;
            for row in 0..change.rows {
                if stage.slots[row] == slot {
                    // Row i of a part counts as the part's number + i.
                    let pos = change.pos + *first.get_or_insert(row as i64) + nth;
                    nth += 1;
                    self.debezium_row(format, change, row, slot, pos, stage)?;
                }
            }
        }
        Ok(())
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
        put!(out, &format.value_head, b"{\"before\":");
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
                let before = before.ok_or(Unfit)?;
                let moved = |&key: &usize| {
                    let field = self.columns[key].field;
                    before[field].of(change.data) != image[field].of(change.data)
                };
                if format.key.columns.iter().any(moved) {
                    return Err(Unfit);
                }
                self.row(change.data, before, out)?;
                out.extend_from_slice(b",\"after\":");
                self.row(change.data, image, out)?;
            }
        }
        put!(out, &*head, first.unwrap_or(0) + row, &*foot);
        let key = (start > key_start).then_some((key_start, start));
        let (value, about) = (Some((start, out.len())), self.about(change, &[row], out)?);
        let message = Message { slot, value, key, row, rows: 1, again: false, pos, about };
        stage.messages.push(message);
        if change.operation == Operation::Delete && format.tombstones && key.is_some() {
            stage.messages.push(Message { value: None, rows: 0, again: true, ..message });
        }
        Ok(())
    }

    /// Writes what comes before the row's number, and after it: the same in all messages of an event.
    fn source(&self, format: &Debezium, change: &Change, stage: &mut Stage) {
        let Stage { head: out, foot, .. } = stage;
        out.clear();
        let us = change.commit_us;
        let marker = change.snapshot.map_or(&b"false"[..], |of| of.marker);
        put!(out, b",\"source\":", &format.source, us / 1000, b",\"snapshot\":\"", marker, b"\"", &format.source_db);
        put!(out, b",\"sequence\":null,\"ts_us\":", us, b",\"ts_ns\":", us * 1000, &format.source_table);
        put!(out, b",\"server_id\":", change.event.server_id, b",\"gtid\":");
        if change.gtid.is_empty() {
            out.extend_from_slice(b"null");
        } else {
            text::quote(out, change.gtid);
        }
        out.extend_from_slice(b",\"file\":");
        text::quote(out, change.file);
        put!(out, b",\"pos\":", change.event.offset, b",\"row\":");
        let out = foot;
        out.clear();
        out.extend_from_slice(b",\"thread\":");
        if change.event.thread == 0 {
            out.extend_from_slice(b"null");
        } else {
            text::int(out, change.event.thread);
        }
        let (ms, op) = (change.now_ms, change.snapshot.map_or(change.operation.names().1, |_| "r"));
        put!(out, b",\"query\":null},\"transaction\":null,\"op\":\"", op, b"\",\"ts_ms\":", ms);
        put!(out, b",\"ts_us\":", ms, b"000,\"ts_ns\":", ms, b"000000}", &format.tail);
    }
}
