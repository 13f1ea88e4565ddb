//! One table schema as a format prints its rows: the small program that Python makes of the layout.

use crate::entries::{Entries, Event};
use crate::fields::{Kind, Shape, Style};
use crate::hashes;
use crate::output::{Message, Stage};
use crate::spans::Span;
use crate::text::{self, put};
use crate::{Fit, Unfit};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Insert,
    Update,
    Delete,
}

impl Operation {
    /// As Canal and as Debezium say it.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Operation::Insert => ("INSERT", "c"),
            Operation::Update => ("UPDATE", "u"),
            Operation::Delete => ("DELETE", "d"),
        }
    }
}

/// A column that is published.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its number among the fields of a row image.
    pub field: usize,
    /// Its name as JSON, with the colon.
    pub name: Vec<u8>,
    pub style: Style,
}

/// What is the same in each of Canal's messages about the table.
#[derive(Debug, Clone)]
pub struct Canal {
    pub middle: Vec<u8>,
    pub types: Vec<u8>,
    pub tail: Vec<u8>,
    /// Exactly Canal's fields: no `_pos`, and whole seconds.
    pub compat: bool,
    /// In `old` all rows of a message have the columns that changed in any.
    pub uniform: bool,
    /// The record's key up to its first column, and its columns, none without a primary key; "" without keys.
    pub key_head: Vec<u8>,
    pub keys: Vec<usize>,
}

/// The same of Debezium's.
#[derive(Debug, Clone)]
pub struct Debezium {
    pub value_head: Vec<u8>,
    pub key_head: Vec<u8>,
    pub tail: Vec<u8>,
    /// The source block up to its time, and its members `db` and `table`, each with the comma before it.
    pub source: Vec<u8>,
    pub source_db: Vec<u8>,
    pub source_table: Vec<u8>,
    pub tombstones: bool,
    /// Numbers among the columns; none without a primary key.
    pub keys: Vec<usize>,
}

#[derive(Debug, Clone)]
pub enum Format {
    Canal(Canal),
    Debezium(Debezium),
    Entries(Entries),
}

/// Where messages go.
#[derive(Debug, Clone)]
pub enum Route {
    One(u32),
    /// By the hash of a key, one slot a partition.
    Spread {
        key: Key,
        slots: Vec<u32>,
    },
}

/// What Kafka's partitioner hashes.
#[derive(Debug, Clone)]
pub enum Key {
    /// The text of one field.
    Text(usize),
    /// A JSON list of the texts of several.
    List(Vec<usize>),
    /// Debezium's record key.
    Record,
}

/// Which changes are published for what they do.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub left_out: Vec<Operation>,
    /// Updates that change no published column are left out.
    pub skips_unchanged: bool,
}

/// One table schema, its format and its route.
#[derive(Debug)]
pub struct Table {
    pub(crate) kinds: Vec<Kind>,
    shapes: Vec<Shape>,
    pub(crate) columns: Vec<Column>,
    /// Fields that nobody publishes, and whose bytes may be none of their type.
    unprinted: Vec<usize>,
    format: Format,
    route: Route,
    selection: Selection,
    /// Fields that say which row it is: those of the primary key, and those that decide on the partition.
    identity: Vec<usize>,
    /// Whether an updated row takes two numbers.
    pub two_numbers: bool,
    /// The number of its counters.
    pub counter: usize,
}

/// One rows event, cut into columns.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
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
}

pub(crate) type Image<'a> = &'a [Span];

impl Table {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        kinds: Vec<Kind>,
        columns: Vec<Column>,
        format: Format,
        route: Route,
        selection: Selection,
        identity: Vec<usize>,
        two_numbers: bool,
        counter: usize,
    ) -> Fit<Self> {
        let fields = kinds.len();
        let keys = match &format {
            Format::Debezium(format) => format.keys.as_slice(),
            Format::Canal(format) => format.keys.as_slice(),
            Format::Entries(_) => &[],
        };
        let known = columns.iter().all(|one| one.field < fields)
            && keys.iter().all(|&key| key < columns.len())
            && identity.iter().all(|&field| field < fields)
            && !matches!(&format, Format::Entries(format) if !format.fits(&columns));
        let hashed = match &route {
            Route::One(_) => true,
            Route::Spread { key, slots } => {
                !slots.is_empty()
                    && match key {
                        Key::Text(field) => *field < fields,
                        Key::List(list) => list.iter().all(|&field| field < fields),
                        Key::Record => !keys.is_empty(),
                    }
            }
        };
        if fields == 0 || !known || !hashed {
            return Err(Unfit);
        }
        let shapes = kinds.iter().map(Kind::shape).collect();
        let printed = |field: usize| columns.iter().any(|one| one.field == field);
        let unprinted = (0..fields).filter(|&field| !printed(field) && !kinds[field].takes_any()).collect();
        Ok(Self { kinds, shapes, columns, unprinted, format, route, selection, identity, two_numbers, counter })
    }

    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    pub(crate) fn images<'a>(&self, change: &Change<'a>, row: usize) -> (Option<Image<'a>>, Image<'a>) {
        let width = self.shapes.len();
        if change.operation == Operation::Update {
            let at = 2 * row * width;
            (Some(&change.spans[at..at + width]), &change.spans[at + width..at + 2 * width])
        } else {
            (None, &change.spans[row * width..(row + 1) * width])
        }
    }

    fn selects(&self) -> bool {
        self.selection.skips_unchanged || !self.selection.left_out.is_empty()
    }

    /// Makes the messages of an event, or refuses all of it. Values of what is left out have to be readable, too.
    pub fn stage(&self, change: &Change, rows_per_message: usize, number: u64, stage: &mut Stage) -> Fit<()> {
        stage.clear();
        stage.sliced = matches!(self.route, Route::Spread { .. }) || self.selects();
        self.check_unprinted(change, stage)?;
        let cut = self.selection.skips_unchanged || matches!(self.route, Route::Spread { .. });
        if cut && change.operation == Operation::Update {
            self.require_same_identity(change)?;
        }
        match &self.format {
            Format::Canal(format) => self.stage_canal(format, change, rows_per_message, number, stage),
            Format::Debezium(format) => self.stage_debezium(format, change, stage),
            Format::Entries(format) => self.stage_entries(format, change, rows_per_message, number, stage),
        }?;
        if self.selects() && !self.is_published(change, &mut stage.scratch)? {
            stage.messages.clear();
        }
        Ok(())
    }

    /// Whether all rows are published, or none. An event of which some are is Python's.
    fn is_published(&self, change: &Change, scratch: &mut Vec<u8>) -> Fit<bool> {
        if self.selection.left_out.contains(&change.operation) {
            return Ok(false);
        }
        if !self.selection.skips_unchanged || change.operation != Operation::Update {
            return Ok(true);
        }
        let mut changed = 0;
        for row in 0..change.rows {
            let (before, after) = self.images(change, row);
            let before = before.ok_or(Unfit)?;
            for column in &self.columns {
                if !self.same(column, change.data, before, after, scratch)? {
                    changed += 1;
                    break;
                }
            }
        }
        if changed > 0 && changed < change.rows {
            return Err(Unfit);
        }
        Ok(changed > 0)
    }

    /// What is not published has to be readable all the same: else the table is not the one that it is taken for.
    fn check_unprinted(&self, change: &Change, stage: &mut Stage) -> Fit<()> {
        for image in change.spans.chunks(self.shapes.len()) {
            for &field in &self.unprinted {
                if let Some(raw) = image[field].of(change.data) {
                    stage.scratch.clear();
                    self.plain_text(field, raw, &mut stage.scratch)?;
                }
            }
        }
        Ok(())
    }

    /// A row that moves to another partition, or gets another key, becomes two messages: Python's work.
    fn require_same_identity(&self, change: &Change) -> Fit<()> {
        self.require_same(change, &self.identity)
    }

    fn require_same(&self, change: &Change, fields: &[usize]) -> Fit<()> {
        for row in 0..change.rows {
            let (before, after) = self.images(change, row);
            let before = before.ok_or(Unfit)?;
            if fields.iter().any(|&field| before[field].of(change.data) != after[field].of(change.data)) {
                return Err(Unfit);
            }
        }
        Ok(())
    }

    // -- where it goes -------------------------------------------------------------------------------------------

    fn slot_of(&self, change: &Change, row: usize, scratch: &mut Vec<u8>) -> Fit<u32> {
        let (key, slots) = match &self.route {
            Route::One(slot) => return Ok(*slot),
            Route::Spread { key, slots } => (key, slots),
        };
        let (_, image) = self.images(change, row);
        scratch.clear();
        match key {
            Key::Text(field) => {
                // NULL is the empty key.
                if let Some(raw) = image[*field].of(change.data) {
                    self.key_text(*field, raw, scratch)?;
                }
            }
            Key::List(fields) => {
                scratch.push(b'[');
                for (i, &field) in fields.iter().enumerate() {
                    if i > 0 {
                        scratch.push(b',');
                    }
                    match image[field].of(change.data) {
                        None => scratch.extend_from_slice(b"null"),
                        Some(raw) => {
                            scratch.push(b'"');
                            self.listed_text(field, raw, scratch)?;
                            scratch.push(b'"');
                        }
                    }
                }
                scratch.push(b']');
            }
            Key::Record => match &self.format {
                Format::Debezium(format) => self.record_key(format, change, image, scratch)?,
                Format::Canal(_) | Format::Entries(_) => return Err(Unfit),
            },
        }
        Ok(slots[hashes::partition(scratch, slots.len() as u32) as usize])
    }

    /// The text of a key column as it is, without JSON's escapes.
    fn key_text(&self, field: usize, raw: &[u8], out: &mut Vec<u8>) -> Fit<()> {
        match &self.kinds[field] {
            Kind::Text { characters: None, .. } => {
                std::str::from_utf8(raw).map_err(|_| Unfit)?;
                out.extend_from_slice(raw);
            }
            Kind::Text { characters: Some(characters), .. } => {
                for &byte in raw {
                    let character = &characters[byte as usize];
                    if character.is_empty() {
                        return Err(Unfit);
                    }
                    out.extend_from_slice(character);
                }
            }
            Kind::Int { .. }
            | Kind::Decimal(_)
            | Kind::Date
            | Kind::Datetime { .. }
            | Kind::Timestamp { .. }
            | Kind::Time { .. }
            | Kind::Year
            | Kind::Bit { .. } => self.plain_text(field, raw, out)?,
            _ => return Err(Unfit),
        }
        Ok(())
    }

    fn listed_text(&self, field: usize, raw: &[u8], out: &mut Vec<u8>) -> Fit<()> {
        match &self.kinds[field] {
            Kind::Bytes { .. } | Kind::Float | Kind::Double | Kind::Json { .. } => Err(Unfit),
            _ => self.plain_text(field, raw, out),
        }
    }

    fn plain_text(&self, field: usize, raw: &[u8], out: &mut Vec<u8>) -> Fit<()> {
        self.kinds[field].value(out, raw, crate::fields::Binary::Base64)
    }

    // -- rows as JSON --------------------------------------------------------------------------------------------

    fn cell(&self, column: &Column, data: &[u8], image: Image, out: &mut Vec<u8>) -> Fit<()> {
        match image[column.field].of(data) {
            None => {
                out.extend_from_slice(b"null");
                Ok(())
            }
            Some(raw) => column.style.print(&self.kinds[column.field], out, raw),
        }
    }

    fn row(&self, data: &[u8], image: Image, out: &mut Vec<u8>) -> Fit<()> {
        out.push(b'{');
        for (i, column) in self.columns.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&column.name);
            self.cell(column, data, image, out)?;
        }
        out.push(b'}');
        Ok(())
    }

    pub(crate) fn same(
        &self,
        column: &Column,
        data: &[u8],
        before: Image,
        after: Image,
        scratch: &mut Vec<u8>,
    ) -> Fit<bool> {
        match (before[column.field].of(data), after[column.field].of(data)) {
            (None, None) => Ok(true),
            (Some(a), Some(b)) => Ok(a == b || self.kinds[column.field].same(a, b, scratch)?),
            _ => Ok(false),
        }
    }

    /// Of each column whether it changed in any of some rows.
    fn changed(&self, change: &Change, rows: &[usize], scratch: &mut Vec<u8>) -> Fit<Vec<bool>> {
        let mut changed = vec![false; self.columns.len()];
        for &row in rows {
            let (before, after) = self.images(change, row);
            let before = before.ok_or(Unfit)?;
            for (column, known) in self.columns.iter().zip(&mut changed) {
                *known = *known || !self.same(column, change.data, before, after, scratch)?;
            }
        }
        Ok(changed)
    }

    /// The old values of the columns that changed, or of those that `chosen` names when it is not empty.
    fn old(
        &self,
        data: &[u8],
        before: Image,
        after: Image,
        chosen: &[bool],
        out: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Fit<()> {
        out.push(b'{');
        let mut begun = false;
        for (i, column) in self.columns.iter().enumerate() {
            let wanted = match chosen.get(i) {
                Some(&wanted) => wanted,
                None => !self.same(column, data, before, after, scratch)?,
            };
            if !wanted {
                continue;
            }
            if begun {
                out.push(b',');
            }
            begun = true;
            out.extend_from_slice(&column.name);
            self.cell(column, data, before, out)?;
        }
        out.push(b'}');
        Ok(())
    }

    // -- Canal ---------------------------------------------------------------------------------------------------

    fn stage_canal(
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

    /// Deals the rows out to messages that have no key: `make` gets each one's slot and number, and its rows as
    /// `stage.members`.
    pub(crate) fn stage_values(
        &self,
        change: &Change,
        rows_per_message: usize,
        stage: &mut Stage,
        make: impl Fn(u32, i64, &mut Stage) -> Fit<()>,
    ) -> Fit<()> {
        if let Route::One(slot) = self.route {
            let each = if rows_per_message == 0 { change.rows } else { rows_per_message };
            let mut first = 0;
            while first < change.rows {
                let end = change.rows.min(first + each);
                stage.members.clear();
                stage.members.extend(first..end);
                make(slot, change.pos + first as i64, stage)?;
                first = end;
            }
            return Ok(());
        }
        if rows_per_message == 1 && !self.selects() {
            for row in 0..change.rows {
                let slot = self.slot_of(change, row, &mut stage.scratch)?;
                stage.members.clear();
                stage.members.push(row);
                make(slot, change.pos + row as i64, stage)?;
            }
            return Ok(());
        }
        self.group(change, stage)?;
        for group in 0..stage.order.len() {
            let slot = stage.order[group];
            let of_slot = |&(_, &of): &(usize, &u32)| of == slot;
            stage.members.clear();
            stage.members.extend(stage.slots.iter().enumerate().filter(of_slot).map(|(row, _)| row));
            let pos = change.pos + stage.members[0] as i64;
            if rows_per_message != 1 {
                make(slot, pos, stage)?;
                continue;
            }
            // Row i of a part counts as the part's number + i.
            let rows = std::mem::take(&mut stage.members);
            for (nth, &row) in rows.iter().enumerate() {
                stage.members.clear();
                stage.members.push(row);
                make(slot, pos + nth as i64, stage)?;
            }
        }
        Ok(())
    }

    /// A message a row with its key, and a tombstone behind each delete.
    fn stage_keyed(&self, format: &Canal, change: &Change, number: u64, stage: &mut Stage) -> Fit<()> {
        if change.operation == Operation::Update {
            let fields: Vec<usize> = format.keys.iter().map(|&key| self.columns[key].field).collect();
            self.require_same(change, &fields)?;
        }
        self.group(change, stage)?;
        for group in 0..stage.order.len() {
            let slot = stage.order[group];
            let (mut first, mut nth) = (None, 0);
            for row in 0..change.rows {
                if stage.slots[row] != slot {
                    continue;
                }
                // Row i of a part counts as the part's number + i.
                let pos = change.pos + *first.get_or_insert(row as i64) + nth;
                nth += 1;
                stage.members.clear();
                stage.members.push(row);
                self.canal_message(format, change, slot, pos, number, stage)?;
                if format.keys.is_empty() {
                    continue;
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
            }
        }
        Ok(())
    }

    /// The slot of each row, and the slots in the order in which they first come.
    fn group(&self, change: &Change, stage: &mut Stage) -> Fit<()> {
        stage.slots.clear();
        stage.order.clear();
        for row in 0..change.rows {
            let slot = self.slot_of(change, row, &mut stage.scratch)?;
            stage.slots.push(slot);
            if !stage.order.contains(&slot) {
                stage.order.push(slot);
            }
        }
        Ok(())
    }

    /// A message of the rows `stage.members`.
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
        });
        Ok(())
    }

    // -- Debezium ------------------------------------------------------------------------------------------------

    fn stage_debezium(&self, format: &Debezium, change: &Change, stage: &mut Stage) -> Fit<()> {
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
        let Stage { bytes: out, head, foot, .. } = stage;
        let (before, image) = self.images(change, row);
        let key_start = out.len();
        if !format.keys.is_empty() {
            self.record_key(format, change, image, out)?;
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
                if format.keys.iter().any(moved) {
                    return Err(Unfit);
                }
                self.row(change.data, before, out)?;
                out.extend_from_slice(b",\"after\":");
                self.row(change.data, image, out)?;
            }
        }
        put!(out, &*head, row, &*foot);
        let key = (start > key_start).then_some((key_start, start));
        let message = Message { slot, value: Some((start, out.len())), key, row, rows: 1, again: false, pos };
        stage.messages.push(message);
        if change.operation == Operation::Delete && format.tombstones && key.is_some() {
            stage.messages.push(Message { value: None, rows: 0, again: true, ..message });
        }
        Ok(())
    }

    /// Writes what stands before the row's number, and behind it: the same in all messages of an event.
    fn source(&self, format: &Debezium, change: &Change, stage: &mut Stage) {
        let Stage { head: out, foot, .. } = stage;
        out.clear();
        let us = change.commit_us;
        put!(out, b",\"source\":", &format.source, us / 1000, b",\"snapshot\":\"false\"", &format.source_db);
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
        let (ms, op) = (change.now_ms, change.operation.names().1);
        put!(out, b",\"query\":null},\"transaction\":null,\"op\":\"", op, b"\",\"ts_ms\":", ms);
        put!(out, b",\"ts_us\":", ms, b"000,\"ts_ns\":", ms, b"000000}", &format.tail);
    }

    fn record_key(&self, format: &Debezium, change: &Change, image: Image, out: &mut Vec<u8>) -> Fit<()> {
        put!(out, &format.key_head, b"{");
        self.key_of(&format.keys, change, image, out)?;
        put!(out, b"}", &format.tail);
        Ok(())
    }

    fn key_of(&self, keys: &[usize], change: &Change, image: Image, out: &mut Vec<u8>) -> Fit<()> {
        for (i, &key) in keys.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let column = &self.columns[key];
            out.extend_from_slice(&column.name);
            self.cell(column, change.data, image, out)?;
        }
        Ok(())
    }
}
