//! Canal's flat messages, with or without a key.

use crate::changes::{Change, Mark, Operation};
use crate::stage::{Message, Stage};
use crate::table::Table;
use crate::text::put;
use crate::{Fit, Unfit};

/// The constant parts of Canal's messages about the table.
#[derive(Debug, Clone)]
pub struct Canal {
    /// `database`, up to the value of `es`.
    pub middle: Vec<u8>,
    /// `isDdl` and `mysqlType`, up to the value of `old`; with the comma before them.
    pub types: Vec<u8>,
    /// `pkNames` to `table`, up to the value of `ts`; with the comma before them.
    pub tail: Vec<u8>,
    /// Exactly Canal's fields: no `_pos`, and whole seconds.
    pub compat: bool,
    /// Whether in `old` all rows of a message have the columns that changed in any.
    pub uniform: bool,
    /// The record's key up to its first column; "" without keys.
    pub key_head: Vec<u8>,
    /// The columns of the key, by their numbers among the published ones; none without a primary key.
    pub keys: Vec<usize>,
}

/// Writes the message of a transaction's begin or end, with a number.
pub(crate) fn write_mark(out: &mut Vec<u8>, mark: &Mark, compat: bool, number: u64, now_ms: u64) {
    let ms = mark.commit_us / 1000;
    let ms = if compat { ms / 1000 * 1000 } else { ms };
    put!(out, b"{\"data\":null,\"database\":\"\",\"es\":", ms, b",\"gtid\":\"", mark.gtid, b"\",\"id\":", number);
    put!(out, b",\"isDdl\":false,\"mysqlType\":null,\"old\":null,\"pkNames\":null,\"sql\":\"\",\"sqlType\":null");
    let kind = if mark.xid.is_some() { "TRANSACTIONEND" } else { "TRANSACTIONBEGIN" };
    put!(out, b",\"table\":\"\",\"ts\":", now_ms, b",\"type\":\"", kind, b"\"");
    if !compat {
        put!(out, b",\"_pos\":\"", mark.pos, b"\"");
    }
    out.push(b'}');
}

impl Table {
    pub(crate) fn stage_canal(
        &self,
        format: &Canal,
        change: &Change,
        rows_per_message: usize,
        number: u64,
        stage: &mut Stage,
    ) -> Fit<()> {
        let Stage { head, foot, .. } = stage;
        head.clear();
        put!(head, b"],", &format.middle);
        let ms = change.commit_us / 1000;
        put!(head, if format.compat { ms / 1000 * 1000 } else { ms }, b",\"gtid\":\"", change.gtid, b"\",\"id\":");
        foot.clear();
        put!(foot, &format.tail, change.now_ms, b",\"type\":\"", change.operation.names().0, b"\"");
        if !format.key_head.is_empty() {
            return self.stage_keyed(format, change, number, stage);
        }
        self.stage_values(change, rows_per_message, stage, |slot, pos, stage| {
            self.canal_message(format, change, slot, pos, number, stage)
        })
    }

    /// Makes a message a row with its key, and a tombstone after each delete.
    fn stage_keyed(&self, format: &Canal, change: &Change, number: u64, stage: &mut Stage) -> Fit<()> {
        if change.operation == Operation::Update {
            let fields: Vec<usize> = format.keys.iter().map(|&key| self.columns[key].field).collect();
            self.require_same(change, &fields)?;
        }
        self.stage_rows(change, stage, |row, slot, pos, stage| {
            stage.members.clear();
            stage.members.push(row);
            self.canal_message(format, change, slot, pos, number, stage)?;
            if format.keys.is_empty() {
                return Ok(());
            }
            let start = stage.bytes.len();
            stage.bytes.extend_from_slice(&format.key_head);
            self.key_of(&format.keys, change, self.images(change, row).1, &mut stage.bytes)?;
            stage.bytes.extend_from_slice(b"}}");
            let Some(message) = stage.messages.last_mut() else { return Err(Unfit) };
            message.key = Some((start, stage.bytes.len()));
            let tombstone = Message { value: None, rows: 0, again: true, ..*message };
            if change.operation == Operation::Delete {
                stage.messages.push(tombstone);
            }
            Ok(())
        })
    }

    /// Makes a message of the rows `stage.members`.
    fn canal_message(
        &self,
        format: &Canal,
        change: &Change,
        slot: u32,
        pos: i64,
        number: u64,
        stage: &mut Stage,
    ) -> Fit<()> {
        let Stage { bytes: out, members, scratch, messages, numbered, head, foot, .. } = stage;
        let start = out.len();
        *numbered += 1;
        out.extend_from_slice(b"{\"data\":[");
        for (i, &row) in members.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            self.row(change.data, self.images(change, row).1, out)?;
        }
        put!(out, &*head, number + *numbered, &format.types);
        if change.operation == Operation::Update {
            let uniform = if format.uniform { self.changed(change, members, scratch)? } else { Vec::new() };
            out.push(b'[');
            for (i, &row) in members.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                let (before, after) = self.images(change, row);
                self.old(change.data, before.ok_or(Unfit)?, after, &uniform, out, scratch)?;
            }
            out.push(b']');
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(foot);
        if !format.compat {
            put!(out, b",\"_pos\":\"", pos, b"\"");
        }
        out.push(b'}');
        messages.push(Message {
            slot,
            value: Some((start, out.len())),
            key: None,
            row: members[0],
            rows: members.len(),
            again: false,
            pos,
            about: self.about(change, members, out)?,
        });
        Ok(())
    }
}
