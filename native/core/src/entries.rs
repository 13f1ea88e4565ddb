//! Canal's protobuf entries: a packet a message, each with one entry of rows (`headrace/formats/canal/entries.py`).
//!
//! A field of protobuf begins with its length. So the texts of all columns are printed first, and then everything is
//! written once, in order.

use crate::fields::Style;
use crate::output::{Message, Stage};
use crate::table::{Change, Column, Image, Operation, Table};
use crate::{Fit, Unfit};

/// What is the same in each entry about a table.
#[derive(Debug, Clone)]
pub struct Entries {
    /// The beginning of the entry's header.
    pub header: Vec<u8>,
    /// Of each column: what is before its value, and after it.
    pub cells: Vec<(Vec<u8>, Vec<u8>)>,
    pub whole_seconds: bool,
}

impl Entries {
    /// Whether it is the format of a table with these columns.
    pub fn fits(&self, columns: &[Column]) -> bool {
        self.cells.len() == columns.len() && columns.iter().all(|one| matches!(one.style, Style::Text(_)))
    }
}

/// A column of one row image.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Where in `Stage::texts` its text is; None for NULL.
    text: Option<(usize, usize)>,
    updated: bool,
    /// Bytes of the message CanalEntry.Column.
    size: usize,
}

const BEFORE: u8 = 0x0A;
const AFTER: u8 = 0x12;
const ROW: u8 = 0x62;
const PROPERTY: u8 = 0x62;
const UPDATED: &[u8] = b"\x28\x01";
const NULL: &[u8] = b"\x30\x01";
const NOT_NULL: &[u8] = b"\x30\x00";
const VALUE: u8 = 0x42;
/// Version and type of a Packet with messages, and the tag of its body.
const PACKET: &[u8] = b"\x10\x01\x18\x07\x2A";

/// Writes a number as protobuf does.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_size(value: usize) -> usize {
    (64 - (value as u64 | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes of a field with so many bytes in it, with a tag of one byte.
fn field_size(size: usize) -> usize {
    1 + varint_size(size) + size
}

fn field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Writes a property of a header; both texts are short.
fn property(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.push(PROPERTY);
    varint(out, (field_size(key.len()) + field_size(value.len())) as u64);
    field(out, 0x0A, key);
    field(out, 0x12, value);
}

/// The entry of a packet that has one, as a field of Messages; Unfit for anything else.
pub fn entry_in(packet: &[u8]) -> Fit<&[u8]> {
    let body = after_varint(packet.strip_prefix(PACKET).ok_or(Unfit)?)?;
    after_varint(body.strip_prefix(&[0x08]).ok_or(Unfit)?)
}

fn after_varint(raw: &[u8]) -> Fit<&[u8]> {
    let last = raw.iter().position(|&byte| byte < 0x80).ok_or(Unfit)?;
    Ok(&raw[last + 1..])
}

impl Operation {
    /// CanalEntry.EventType.
    fn number(self) -> u8 {
        match self {
            Operation::Insert => 1,
            Operation::Update => 2,
            Operation::Delete => 3,
        }
    }
}

impl Table {
    pub(crate) fn stage_entries(
        &self,
        format: &Entries,
        change: &Change,
        rows_per_message: usize,
        number: u64,
        stage: &mut Stage,
    ) -> Fit<()> {
        let ms = change.commit_us / 1000;
        let Stage { head, foot, .. } = stage;
        head.clear();
        head.extend_from_slice(&format.header);
        field(head, 0x12, change.file);
        head.push(0x18);
        varint(head, change.offset);
        head.push(0x20);
        varint(head, u64::from(change.server_id));
        head.push(0x30);
        varint(head, if format.whole_seconds { ms / 1000 * 1000 } else { ms });
        head.extend_from_slice(&[0x58, change.operation.number()]);
        foot.clear();
        if !change.gtid.is_empty() {
            property(foot, b"curtGtid", change.gtid);
            field(foot, 0x6A, change.gtid);
        }
        self.stage_values(change, rows_per_message, stage, |slot, stage| {
            self.entry(format, change, slot, number, stage)
        })
    }

    /// An entry of the rows `stage.members`.
    fn entry(&self, format: &Entries, change: &Change, slot: u32, number: u64, stage: &mut Stage) -> Fit<()> {
        self.read_rows(format, change, stage)?;
        let Stage { bytes: out, members, messages, numbered, head, foot, texts, cells, sizes, scratch, .. } = stage;
        *numbered += 1;
        let pos = change.pos + members[0] as i64;
        scratch.clear();
        scratch.extend_from_slice(head);
        let mut digits = itoa::Buffer::new();
        property(scratch, b"_pos", digits.format(pos).as_bytes());
        property(scratch, b"rowsCount", digits.format(members.len()).as_bytes());
        scratch.extend_from_slice(foot);

        let store = 4 + sizes.iter().map(|&size| field_size(size)).sum::<usize>();
        let entry = field_size(scratch.len()) + 2 + field_size(store);
        let number = number + *numbered;
        let body = 1 + varint_size(number as usize) + field_size(entry);
        let start = out.len();
        out.reserve(PACKET.len() + varint_size(body) + body);
        out.extend_from_slice(PACKET);
        varint(out, body as u64);
        out.push(0x08);
        varint(out, number);
        out.push(0x12);
        varint(out, entry as u64);
        field(out, 0x0A, scratch);
        out.extend_from_slice(b"\x10\x02\x1A");
        varint(out, store as u64);
        out.extend_from_slice(&[0x10, change.operation.number(), 0x50, 0x00]);
        let lists: &[u8] = match change.operation {
            Operation::Insert => &[AFTER],
            Operation::Update => &[BEFORE, AFTER],
            Operation::Delete => &[BEFORE],
        };
        let mut cells = cells.iter();
        for &size in &*sizes {
            out.push(ROW);
            varint(out, size as u64);
            for &list in lists {
                for (ends, cell) in format.cells.iter().zip(&mut cells) {
                    write_cell(out, list, ends, cell, texts);
                }
            }
        }
        messages.push(Message {
            slot,
            value: Some((start, out.len())),
            key: None,
            row: members[0],
            rows: members.len(),
            again: false,
            pos,
        });
        Ok(())
    }

    /// Prints the columns of the rows `stage.members`, and notes how large everything becomes.
    fn read_rows(&self, format: &Entries, change: &Change, stage: &mut Stage) -> Fit<()> {
        stage.texts.clear();
        stage.cells.clear();
        stage.sizes.clear();
        for at in 0..stage.members.len() {
            let (before, image) = self.images(change, stage.members[at]);
            let size = match before {
                Some(before) => {
                    let first = stage.cells.len();
                    self.read_image(format, change, before, false, stage)?
                        + self.read_changed(format, change, (before, first), image, stage)?
                }
                None => self.read_image(format, change, image, change.operation == Operation::Insert, stage)?,
            };
            stage.sizes.push(size);
        }
        Ok(())
    }

    fn read_image(
        &self,
        format: &Entries,
        change: &Change,
        image: Image,
        updated: bool,
        stage: &mut Stage,
    ) -> Fit<usize> {
        let mut size = 0;
        for at in 0..self.columns.len() {
            let text = self.read_text(at, change, image, &mut stage.texts)?;
            size += push(stage, format, at, text, updated);
        }
        Ok(size)
    }

    /// The image after an update, whose image before it is read: its cells begin at a number. What has not changed has
    /// the same text.
    fn read_changed(
        &self,
        format: &Entries,
        change: &Change,
        (before, first): (Image, usize),
        image: Image,
        stage: &mut Stage,
    ) -> Fit<usize> {
        let mut size = 0;
        for (at, column) in self.columns.iter().enumerate() {
            let same = before[column.field].of(change.data) == image[column.field].of(change.data);
            let text =
                if same { stage.cells[first + at].text } else { self.read_text(at, change, image, &mut stage.texts)? };
            let updated = !same && !self.same(column, change.data, before, image, &mut stage.scratch)?;
            size += push(stage, format, at, text, updated);
        }
        Ok(size)
    }

    /// Prints the value of a column; None for NULL.
    fn read_text(&self, at: usize, change: &Change, image: Image, texts: &mut Vec<u8>) -> Fit<Option<(usize, usize)>> {
        let column = &self.columns[at];
        let Some(raw) = image[column.field].of(change.data) else { return Ok(None) };
        let Style::Text(binary) = column.style else { return Err(Unfit) };
        let start = texts.len();
        self.kinds[column.field].plain(texts, raw, binary)?;
        Ok(Some((start, texts.len())))
    }
}

/// Notes a cell; bytes of its field in the row.
fn push(stage: &mut Stage, format: &Entries, at: usize, text: Option<(usize, usize)>, updated: bool) -> usize {
    let (before, after) = &format.cells[at];
    let value = text.map_or(0, |(start, end)| if end > start { field_size(end - start) } else { 0 });
    let mark = if updated { UPDATED.len() } else { 0 };
    let size = before.len() + mark + NULL.len() + value + after.len();
    stage.cells.push(Cell { text, updated, size });
    field_size(size)
}

fn write_cell(out: &mut Vec<u8>, list: u8, (before, after): &(Vec<u8>, Vec<u8>), cell: &Cell, texts: &[u8]) {
    out.push(list);
    varint(out, cell.size as u64);
    out.extend_from_slice(before);
    if cell.updated {
        out.extend_from_slice(UPDATED);
    }
    match cell.text {
        None => out.extend_from_slice(NULL),
        Some((start, end)) => {
            out.extend_from_slice(NOT_NULL);
            if end > start {
                field(out, VALUE, &texts[start..end]);
            }
        }
    }
    out.extend_from_slice(after);
}
