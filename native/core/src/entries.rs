//! Canal's protobuf entries: a packet a message, each with one entry (`headrace/formats/canal/entries.py`).
//!
//! A protobuf field begins with its length. So the texts of all columns are printed first, and then everything is
//! written once, in order.

use crate::changes::{Change, Event, Image, Mark, Operation};
use crate::fields::{unsigned_int, Kind, Style};
use crate::masks::Mask;
use crate::stage::{Cell, Message, Stage};
use crate::table::{Column, Table};
use crate::{Fit, Unfit};

/// The constant parts of the entries about a table.
#[derive(Debug, Clone)]
pub struct Entries {
    /// The beginning of the entry's header.
    pub header: Vec<u8>,
    /// By the published columns.
    pub cells: Vec<Constants>,
    /// Whether times are those at which the statements began, in whole seconds.
    pub compat: bool,
}

/// The constant parts of a column's values.
#[derive(Debug, Clone)]
pub struct Constants {
    /// The fields of CanalEntry.Column that are before a value.
    pub before: Vec<u8>,
    /// Those after a value, or after NULL.
    pub after: Vec<u8>,
    /// Those before NULL.
    pub before_null: Vec<u8>,
    /// What is before an integer that is no larger than a number.
    pub before_small: Option<(u64, Vec<u8>)>,
}

impl Entries {
    /// Returns whether it is the format of a table with these columns.
    pub(crate) fn fits(&self, columns: &[Column]) -> bool {
        let fixed = |one: &Column| matches!(one.mask, Some(Mask::Fixed(_) | Mask::Truncate(_) | Mask::Hash(_)));
        self.cells.len() == columns.len()
            && columns.iter().all(|one| matches!(one.style, Style::Text(_) | Style::Decimals(_)))
            && columns.iter().zip(&self.cells).all(|(one, cell)| !fixed(one) || cell.before_small.is_none())
    }
}

/// How the begin and end of transactions become entries.
#[derive(Debug, Clone)]
pub struct EntryMarks {
    /// The beginning of the entry's header.
    pub header: Vec<u8>,
    /// The same as in [`Entries`].
    pub compat: bool,
}

impl EntryMarks {
    /// Writes the packet of a mark; its number is that of its batch.
    pub(crate) fn write(&self, out: &mut Vec<u8>, mark: &Mark, batch: u64) {
        let (mut header, mut store, mut digits) = (Vec::new(), Vec::new(), itoa::Buffer::new());
        begin_header(&mut header, &self.header, self.compat, mark.file, &mark.event, mark.commit_us);
        property(&mut header, b"_pos", digits.format(mark.pos).as_bytes());
        end_header(&mut header, mark.gtid);
        let kind = match mark.xid {
            None => {
                if mark.event.thread > 0 {
                    number(&mut store, 0x20, u64::from(mark.event.thread));
                }
                TRANSACTION_BEGIN
            }
            Some(xid) => {
                field(&mut store, 0x12, digits.format(xid).as_bytes());
                TRANSACTION_END
            }
        };
        begin_packet(out, batch, &header, kind, store.len());
        out.extend_from_slice(&store);
    }
}

const BEFORE: u8 = 0x0A;
const AFTER: u8 = 0x12;
const ROW: u8 = 0x62;
const PROPERTY: u8 = 0x62;
const UPDATED: &[u8] = b"\x28\x01";
const NULL: &[u8] = b"\x30\x01";
const NOT_NULL: &[u8] = b"\x30\x00";
const VALUE: u8 = 0x42;
/// CanalEntry.EntryType.
const TRANSACTION_BEGIN: u8 = 1;
const ROW_DATA: u8 = 2;
const TRANSACTION_END: u8 = 3;
/// Version and type of a Packet with messages, and the tag of its body.
const PACKET: &[u8] = b"\x10\x01\x18\x07\x2A";

// -- protobuf ----------------------------------------------------------------------------------------------------

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Returns the bytes of a field with content of this size.
fn field_size(size: usize) -> usize {
    1 + varint_size(size as u64) + size
}

fn field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn number(out: &mut Vec<u8>, tag: u8, value: u64) {
    out.push(tag);
    varint(out, value);
}

// -- packets and headers -----------------------------------------------------------------------------------------

/// Writes a packet with one entry, whose number is that of its batch, up to the entry's store value of `store` bytes.
fn begin_packet(out: &mut Vec<u8>, batch: u64, header: &[u8], kind: u8, store: usize) {
    let entry = field_size(header.len()) + 2 + field_size(store);
    let body = 1 + varint_size(batch) + field_size(entry);
    out.reserve(PACKET.len() + varint_size(body as u64) + body);
    out.extend_from_slice(PACKET);
    varint(out, body as u64);
    number(out, 0x08, batch);
    number(out, 0x12, entry as u64);
    field(out, 0x0A, header);
    out.extend_from_slice(&[0x10, kind]);
    number(out, 0x1A, store as u64);
}

/// Returns the entry of a packet that has one, as a field of Messages; Unfit for anything else.
pub fn entry_in(packet: &[u8]) -> Fit<&[u8]> {
    let body = after_varint(packet.strip_prefix(PACKET).ok_or(Unfit)?)?;
    after_varint(body.strip_prefix(&[0x08]).ok_or(Unfit)?)
}

fn after_varint(raw: &[u8]) -> Fit<&[u8]> {
    let last = raw.iter().position(|&byte| byte < 0x80).ok_or(Unfit)?;
    Ok(&raw[last + 1..])
}

/// Writes an entry's header up to the type of event; `begin` is its first part.
fn begin_header(out: &mut Vec<u8>, begin: &[u8], compat: bool, file: &[u8], event: &Event, commit_us: u64) {
    out.extend_from_slice(begin);
    field(out, 0x12, file);
    number(out, 0x18, event.offset);
    number(out, 0x20, u64::from(event.server_id));
    let ms = match event.time {
        time if compat && time > 0 => u64::from(time) * 1000,
        _ if compat => commit_us / 1_000_000 * 1000,
        _ => commit_us / 1000,
    };
    number(out, 0x30, ms);
    number(out, 0x50, event.length);
}

/// Writes a property of a header.
fn property(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    number(out, PROPERTY, (field_size(key.len()) + field_size(value.len())) as u64);
    field(out, 0x0A, key);
    field(out, 0x12, value);
}

fn end_header(out: &mut Vec<u8>, gtid: &[u8]) {
    if !gtid.is_empty() {
        property(out, b"curtGtid", gtid);
        field(out, 0x6A, gtid);
    }
}

// -- rows --------------------------------------------------------------------------------------------------------

impl Operation {
    /// CanalEntry.EventType.
    fn number(self) -> u8 {
        match self {
            Operation::Insert => 1,
            Operation::Update => 2,
            Operation::Delete => 3,
        }
    }

    /// Returns the lists of a row that have columns.
    fn lists(self) -> &'static [u8] {
        match self {
            Operation::Insert => &[AFTER],
            Operation::Update => &[BEFORE, AFTER],
            Operation::Delete => &[BEFORE],
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
        let Stage { head, foot, .. } = stage;
        head.clear();
        begin_header(head, &format.header, format.compat, change.file, &change.event, change.commit_us);
        head.extend_from_slice(&[0x58, change.operation.number()]);
        foot.clear();
        end_header(foot, change.gtid);
        self.stage_values(change, rows_per_message, stage, |slot, pos, stage| {
            self.entry(format, change, (slot, pos), number, stage)
        })
    }

    /// Makes an entry of the rows `stage.members`.
    fn entry(
        &self,
        format: &Entries,
        change: &Change,
        (slot, pos): (u32, i64),
        before: u64,
        stage: &mut Stage,
    ) -> Fit<()> {
        self.read_rows(format, change, stage)?;
        let Stage { bytes: out, members, messages, numbered, head, foot, texts, cells, sizes, scratch, .. } = stage;
        *numbered += 1;
        let (header, mut digits) = (scratch, itoa::Buffer::new());
        header.clear();
        header.extend_from_slice(head);
        property(header, b"_pos", digits.format(pos).as_bytes());
        property(header, b"rowsCount", digits.format(members.len()).as_bytes());
        header.extend_from_slice(foot);

        let of_table = if change.table_id > 0 { 1 + varint_size(change.table_id) } else { 0 };
        let store = of_table + 4 + sizes.iter().map(|&size| field_size(size)).sum::<usize>();
        let start = out.len();
        begin_packet(out, before + *numbered, header, ROW_DATA, store);
        if of_table > 0 {
            number(out, 0x08, change.table_id);
        }
        out.extend_from_slice(&[0x10, change.operation.number(), 0x50, 0x00]);
        let mut cells = cells.iter();
        for &size in &*sizes {
            number(out, ROW, size as u64);
            for &list in change.operation.lists() {
                for (constants, cell) in format.cells.iter().zip(&mut cells) {
                    cell.write(out, list, constants, texts);
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
            about: self.about(change, members, out)?,
        });
        Ok(())
    }

    /// Prints the columns of the rows `stage.members`, and computes all sizes.
    fn read_rows(&self, format: &Entries, change: &Change, stage: &mut Stage) -> Fit<()> {
        let Stage { members, texts, cells, sizes, scratch, .. } = stage;
        texts.clear();
        cells.clear();
        sizes.clear();
        for &row in &*members {
            let (before, image) = self.images(change, row);
            let mut size = 0;
            if let Some(before) = before {
                size += self.read_image(format, change, before, false, texts, cells)?;
                let first = cells.len() - self.columns.len();
                for (at, column) in self.columns.iter().enumerate() {
                    // An unchanged value has the same text.
                    let mut cell = cells[first + at];
                    if before[column.field].of(change.data) != image[column.field].of(change.data) {
                        cell = self.read_cell(&format.cells[at], column, change, image, texts)?;
                        cell.updated = !self.same(column, change.data, before, image, scratch)?;
                    }
                    size += cell.note(&format.cells[at], cells);
                }
            } else {
                let updated = change.operation == Operation::Insert;
                size += self.read_image(format, change, image, updated, texts, cells)?;
            }
            sizes.push(size);
        }
        Ok(())
    }

    fn read_image(
        &self,
        format: &Entries,
        change: &Change,
        image: Image,
        updated: bool,
        texts: &mut Vec<u8>,
        cells: &mut Vec<Cell>,
    ) -> Fit<usize> {
        let mut size = 0;
        for (column, constants) in self.columns.iter().zip(&format.cells) {
            let mut cell = self.read_cell(constants, column, change, image, texts)?;
            cell.updated = updated;
            size += cell.note(constants, cells);
        }
        Ok(size)
    }

    /// Prints the value of a column.
    fn read_cell(
        &self,
        constants: &Constants,
        column: &Column,
        change: &Change,
        image: Image,
        texts: &mut Vec<u8>,
    ) -> Fit<Cell> {
        let Some(raw) = image[column.field].of(change.data) else { return Ok(Cell::default()) };
        let (kind, start) = (&self.kinds[column.field], texts.len());
        if let Some(mask) = &column.mask {
            let Some(value) = mask.apply(kind, raw)? else { return Ok(Cell::default()) };
            let Style::Text(binary) = column.style else { return Err(Unfit) };
            value.print::<false>(texts, binary)?;
            // How an integer is described depends on its value.
            return if constants.before_small.is_none() {
                Ok(Cell { text: Some((start, texts.len())), ..Cell::default() })
            } else {
                Err(Unfit)
            };
        }
        column.style.plain(kind, texts, raw)?;
        let small = match (&constants.before_small, kind) {
            (None, _) => false,
            (Some((largest, _)), Kind::Int { .. }) => unsigned_int(raw) <= *largest,
            (Some(_), _) => return Err(Unfit),
        };
        Ok(Cell { text: Some((start, texts.len())), small, ..Cell::default() })
    }
}

impl Cell {
    fn before<'a>(&self, constants: &'a Constants) -> &'a [u8] {
        match (self.text, &constants.before_small) {
            (None, _) => &constants.before_null,
            (Some(_), Some((_, before))) if self.small => before,
            _ => &constants.before,
        }
    }

    /// Adds the cell with its size; returns the bytes of its field in the row.
    fn note(mut self, constants: &Constants, cells: &mut Vec<Cell>) -> usize {
        let value = self.text.map_or(0, |(start, end)| if end > start { field_size(end - start) } else { 0 });
        let updated = if self.updated { UPDATED.len() } else { 0 };
        self.size = self.before(constants).len() + updated + NULL.len() + value + constants.after.len();
        cells.push(self);
        field_size(self.size)
    }

    fn write(&self, out: &mut Vec<u8>, list: u8, constants: &Constants, texts: &[u8]) {
        number(out, list, self.size as u64);
        out.extend_from_slice(self.before(constants));
        if self.updated {
            out.extend_from_slice(UPDATED);
        }
        match self.text {
            None => out.extend_from_slice(NULL),
            Some((start, end)) => {
                out.extend_from_slice(NOT_NULL);
                if end > start {
                    field(out, VALUE, &texts[start..end]);
                }
            }
        }
        out.extend_from_slice(&constants.after);
    }
}
