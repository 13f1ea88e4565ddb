//! One table schema, in native form: its rows, which of them are published, where they go, and how columns are printed.

use std::ops::Range;

use crate::changes::{Change, Image, Operation};
use crate::conditions::Condition;
use crate::fields::{Binary, Kind, Shape, Style};
use crate::hashes;
use crate::masks::Mask;
use crate::stage::Stage;
use crate::text::put;
use crate::{Fit, Unfit};

/// The slot of a row that is not published.
const NO_SLOT: u32 = u32::MAX;

/// A column that is published.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its number among the fields of a row image.
    pub field: usize,
    /// Where its name is among the table's names.
    pub name: Range<usize>,
    /// How its values are printed.
    pub style: Style,
    /// What is published instead of its values; None for the values.
    pub mask: Option<Mask>,
}

/// Where messages go.
#[derive(Debug, Clone)]
pub enum Route {
    /// All into this slot.
    One(u32),
    /// By the hash of a key, one slot a partition.
    Spread {
        /// What is hashed.
        key: Key,
        /// The slots, by the numbers of the partitions; at least one.
        slots: Vec<u32>,
    },
}

/// What is hashed to find a partition.
#[derive(Debug, Clone)]
pub enum Key {
    /// The text of one field.
    Text(usize),
    /// A JSON list of the texts of several.
    List(Vec<usize>),
    /// The record key of a message.
    Record(RecordKey),
    /// The texts of some fields, each by itself, as in Canal.
    Canal {
        /// The numbers of the fields.
        fields: Vec<usize>,
        /// The hash of the schema's name, or 0, with which the hashes of the texts are combined.
        database: i32,
    },
}

/// A JSON object of some published columns, with what is before and after it.
#[derive(Debug, Clone)]
pub struct RecordKey {
    /// What is before the object.
    pub head: Vec<u8>,
    /// What is after the object.
    pub tail: Vec<u8>,
    /// Numbers among the columns; none without a primary key.
    pub columns: Vec<usize>,
}

/// How the messages of a table are known.
#[derive(Debug, Default)]
pub struct About {
    /// Python's number of the table.
    pub number: u32,
    /// The keys of a row, each with its number.
    pub keys: Vec<(u8, Key)>,
}

/// Which rows are published, by the operation, its effect, and their values.
#[derive(Debug, Default)]
pub struct Selection {
    /// The operations whose rows are not published; rows that a snapshot has read are.
    pub left_out: Vec<Operation>,
    /// Whether updates that change no published column are left out.
    pub skips_unchanged: bool,
    /// What a published row meets.
    pub condition: Option<Condition>,
}

/// One table schema: the layout of its rows, which of them are published, and where they go.
#[derive(Debug)]
pub struct Table {
    pub(crate) kinds: Vec<Kind>,
    shapes: Vec<Shape>,
    pub(crate) columns: Vec<Column>,
    /// The columns' names as JSON, each with its colon: together, so that a row needs few cache lines.
    names: Vec<u8>,
    /// Fields that MariaDB compresses.
    pub(crate) compressed: Vec<usize>,
    /// Fields that are not published, and whose bytes may be invalid.
    unprinted: Vec<usize>,
    route: Route,
    selection: Selection,
    /// Fields that identify the row: those of the primary key, and those that choose the partition.
    pub(crate) identity: Vec<usize>,
    pub(crate) about: Option<About>,
    /// Whether an updated row takes two numbers.
    pub(crate) two_numbers: bool,
    /// The number of its counters.
    pub(crate) counter: usize,
}

impl Table {
    /// Takes the types of all fields, and the columns that are published, with their names. `identity`: the fields of
    /// the primary key, and those that choose the partition. `two_numbers`: whether an updated row takes two numbers.
    /// `counter`: what `Output::add_counter` has returned. Refuses a table without fields, and parts that do not fit
    /// together.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        kinds: Vec<Kind>,
        columns: Vec<Column>,
        names: Vec<u8>,
        route: Route,
        selection: Selection,
        identity: Vec<usize>,
        about: Option<About>,
        two_numbers: bool,
        counter: usize,
    ) -> Fit<Self> {
        let fields = kinds.len();
        if !columns.iter().all(|one| names.get(one.name.clone()).is_some()) {
            return Err(Unfit);
        }
        // The text of a mask has no form but that of a text.
        let masked =
            |one: &Column| matches!((&one.mask, &one.style), (None, _) | (Some(Mask::Null), _) | (_, Style::Text(_)));
        if !columns.iter().all(masked) {
            return Err(Unfit);
        }
        let known = columns.iter().all(|one| one.field < fields)
            && identity.iter().all(|&field| field < fields)
            && selection.condition.as_ref().is_none_or(|condition| condition.fits(&kinds));
        let hashed = match &route {
            Route::One(_) => true,
            Route::Spread { key, slots } => !slots.is_empty() && key.fits(fields, &columns),
        };
        let named = about.iter().flat_map(|about| &about.keys).all(|(_, key)| key.fits(fields, &columns));
        if fields == 0 || !known || !hashed || !named {
            return Err(Unfit);
        }
        let shapes = kinds.iter().map(Kind::shape).collect();
        let compressed = (0..fields).filter(|&field| matches!(kinds[field], Kind::Compressed { .. })).collect();
        let shown = |one: &Column| one.mask.as_ref().is_none_or(|mask| !mask.hides_all());
        let printed = |field: usize| columns.iter().any(|one| one.field == field && shown(one));
        let unprinted = (0..fields).filter(|&field| !printed(field) && !kinds[field].takes_any()).collect();
        Ok(Self {
            kinds,
            shapes,
            columns,
            names,
            compressed,
            unprinted,
            route,
            selection,
            identity,
            about,
            two_numbers,
            counter,
        })
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(crate) fn shapes(&self) -> &[Shape] {
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

    fn name(&self, column: &Column) -> &[u8] {
        &self.names[column.name.clone()]
    }

    fn selects(&self) -> bool {
        self.selection.skips_unchanged || !self.selection.left_out.is_empty() || self.selection.condition.is_some()
    }

    fn spreads(&self) -> bool {
        matches!(self.route, Route::Spread { .. })
    }

    /// Prepares the stage for the messages of an event; returns whether there are any. Refuses an event that Python must
    /// split. Unpublished values must be readable, too.
    pub(crate) fn begin(&self, change: &Change, stage: &mut Stage) -> Fit<bool> {
        stage.clear();
        stage.sliced = self.spreads() || self.selects();
        self.check_unprinted(change, stage)?;
        let cut = self.selection.skips_unchanged || self.selection.condition.is_some() || self.spreads();
        if cut && change.operation == Operation::Update {
            self.require_same_identity(change)?;
        }
        if self.selects() {
            return self.choose(change, stage);
        }
        Ok(true)
    }

    /// Chooses the rows that are published; returns whether there are any. The values of others must be readable.
    fn choose(&self, change: &Change, stage: &mut Stage) -> Fit<bool> {
        for row in 0..change.rows {
            let chosen = self.is_published(change, row, &mut stage.scratch)?;
            stage.left_out.push(!chosen);
            if !chosen {
                let (before, after) = self.images(change, row);
                for image in [before, Some(after)].into_iter().flatten() {
                    self.check(change.data, image, 0..self.kinds.len(), &mut stage.scratch)?;
                }
            }
        }
        Ok(stage.left_out.contains(&false))
    }

    /// Returns whether a row is published. One that begins or ceases to meet the condition becomes an insertion or a
    /// deletion: left to Python.
    fn is_published(&self, change: &Change, row: usize, scratch: &mut Vec<u8>) -> Fit<bool> {
        let (before, after) = self.images(change, row);
        if let Some(condition) = &self.selection.condition {
            let met = condition.is_met(&self.kinds, change.data, after, scratch)?;
            if let Some(before) = before {
                if condition.is_met(&self.kinds, change.data, before, scratch)? != met {
                    return Err(Unfit);
                }
            }
            if !met {
                return Ok(false);
            }
        }
        if self.selection.left_out.contains(&change.operation) && change.snapshot.is_none() {
            return Ok(false);
        }
        let Some(before) = before.filter(|_| self.selection.skips_unchanged) else { return Ok(true) };
        for column in &self.columns {
            if !self.same(column, change.data, before, after, scratch)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks unpublished columns, which must be readable: otherwise the table is not the expected one.
    fn check_unprinted(&self, change: &Change, stage: &mut Stage) -> Fit<()> {
        for image in change.spans.chunks(self.shapes.len()) {
            self.check(change.data, image, self.unprinted.iter().copied(), &mut stage.scratch)?;
        }
        Ok(())
    }

    fn check(&self, data: &[u8], image: Image, fields: impl Iterator<Item = usize>, scratch: &mut Vec<u8>) -> Fit<()> {
        for field in fields {
            if let Some(raw) = image[field].of(data) {
                scratch.clear();
                self.plain_text(field, raw, scratch)?;
            }
        }
        Ok(())
    }

    /// Refuses a row that moves to another partition, or gets another key, which becomes two messages: left to Python.
    fn require_same_identity(&self, change: &Change) -> Fit<()> {
        self.require_same(change, &self.identity)
    }

    pub(crate) fn require_same(&self, change: &Change, fields: &[usize]) -> Fit<()> {
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
        if let Key::Canal { fields, database } = key {
            let mut hash = *database;
            for &field in fields {
                if let Some(raw) = image[field].of(change.data) {
                    scratch.clear();
                    self.kinds[field].plain(scratch, raw, Binary::Latin1)?;
                    hash ^= hashes::java_hash(std::str::from_utf8(scratch).map_err(|_| Unfit)?);
                }
            }
            return Ok(slots[hashes::canal_partition(hash, slots.len() as u32) as usize]);
        }
        self.key(key, change, image, scratch)?;
        Ok(slots[hashes::partition(scratch, slots.len() as u32) as usize])
    }

    /// Writes the key of a row; see `key_of` in `headrace/pipeline/table_projection.py`.
    pub(crate) fn key(&self, key: &Key, change: &Change, image: Image, out: &mut Vec<u8>) -> Fit<()> {
        match key {
            Key::Text(field) => {
                // NULL is the empty key.
                if let Some(raw) = image[*field].of(change.data) {
                    self.kinds[*field].plain(out, raw, Binary::Latin1)?;
                }
            }
            Key::List(fields) => {
                out.push(b'[');
                for (i, &field) in fields.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    match image[field].of(change.data) {
                        None => out.extend_from_slice(b"null"),
                        Some(raw) => {
                            out.push(b'"');
                            self.kinds[field].value(out, raw, Binary::Latin1)?;
                            out.push(b'"');
                        }
                    }
                }
                out.push(b']');
            }
            Key::Record(key) => self.record_key(key, change, image, out)?,
            Key::Canal { .. } => return Err(Unfit),
        }
        Ok(())
    }

    fn plain_text(&self, field: usize, raw: &[u8], out: &mut Vec<u8>) -> Fit<()> {
        self.kinds[field].value(out, raw, Binary::Base64)
    }

    // -- rows as JSON --------------------------------------------------------------------------------------------

    pub(crate) fn cell(&self, column: &Column, data: &[u8], image: Image, out: &mut Vec<u8>) -> Fit<()> {
        match image[column.field].of(data) {
            None => {
                out.extend_from_slice(b"null");
                Ok(())
            }
            Some(raw) => match &column.mask {
                None => column.style.print(&self.kinds[column.field], out, raw),
                Some(mask) => self.masked_cell(column, mask, raw, out),
            },
        }
    }

    fn masked_cell(&self, column: &Column, mask: &Mask, raw: &[u8], out: &mut Vec<u8>) -> Fit<()> {
        match (mask.apply(&self.kinds[column.field], raw)?, &column.style) {
            (None, _) => out.extend_from_slice(b"null"),
            (Some(value), Style::Text(binary)) => {
                out.push(b'"');
                value.print::<true>(out, *binary)?;
                out.push(b'"');
            }
            _ => return Err(Unfit),
        }
        Ok(())
    }

    pub(crate) fn row(&self, data: &[u8], image: Image, out: &mut Vec<u8>) -> Fit<()> {
        out.push(b'{');
        for (i, column) in self.columns.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.name(column));
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
        let kind = &self.kinds[column.field];
        match (before[column.field].of(data), after[column.field].of(data), &column.mask) {
            (None, None, _) | (_, _, Some(Mask::Null)) | (Some(_), Some(_), Some(Mask::Fixed(_))) => Ok(true),
            (Some(a), Some(b), Some(mask)) => {
                Ok(a == b || mask.apply(kind, a)?.map(|one| one.bytes) == mask.apply(kind, b)?.map(|one| one.bytes))
            }
            (Some(a), Some(b), None) => Ok(a == b || kind.same(a, b, scratch)?),
            _ => Ok(false),
        }
    }

    /// Returns for each column whether it changed in any of some rows.
    pub(crate) fn changed(&self, change: &Change, rows: &[usize], scratch: &mut Vec<u8>) -> Fit<Vec<bool>> {
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

    /// Writes the old values of the columns that changed, or of those in `chosen` if it is not empty.
    pub(crate) fn old(
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
            out.extend_from_slice(self.name(column));
            self.cell(column, data, before, out)?;
        }
        out.push(b'}');
        Ok(())
    }

    // -- messages of rows -----------------------------------------------------------------------------------------

    /// Distributes the rows to messages that have no key: `make` gets each one's slot and number, and its rows as
    /// `stage.members`.
    pub(crate) fn stage_values(
        &self,
        change: &Change,
        rows_per_message: usize,
        stage: &mut Stage,
        make: impl Fn(u32, i64, &mut Stage) -> Fit<()>,
    ) -> Fit<()> {
        if let (Route::One(slot), false) = (&self.route, self.selects()) {
            let each = if rows_per_message == 0 { change.rows } else { rows_per_message };
            let mut first = 0;
            while first < change.rows {
                let end = change.rows.min(first + each);
                stage.members.clear();
                stage.members.extend(first..end);
                make(*slot, change.pos + first as i64, stage)?;
                first = end;
            }
            return Ok(());
        }
        // Rows of a part of an event are numbered by partitions, as in Python.
        if rows_per_message == 1 && !self.selects() && stage.first.is_none() {
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
            // Row i of a part counts as the part's number + i.
            let rows = std::mem::take(&mut stage.members);
            let each = if rows_per_message == 0 { rows.len() } else { rows_per_message };
            for (nth, some) in rows.chunks(each).enumerate() {
                stage.members.clear();
                stage.members.extend_from_slice(some);
                make(slot, pos + (nth * each) as i64, stage)?;
            }
        }
        Ok(())
    }

    /// Makes the messages of a keyed format: `make` gets each row that is published, its slot and its number.
    pub(crate) fn stage_rows(
        &self,
        change: &Change,
        stage: &mut Stage,
        make: impl Fn(usize, u32, i64, &mut Stage) -> Fit<()>,
    ) -> Fit<()> {
        self.group(change, stage)?;
        for group in 0..stage.order.len() {
            let slot = stage.order[group];
            let (mut first, mut nth) = (None, 0);
            for row in 0..change.rows {
                if stage.slots[row] == slot {
                    // Row i of a part counts as the part's number + i.
                    let pos = change.pos + *first.get_or_insert(row as i64) + nth;
                    nth += 1;
                    make(row, slot, pos, stage)?;
                }
            }
        }
        Ok(())
    }

    /// Finds the slot of each row that is published, and the slots in the order in which they first come.
    pub(crate) fn group(&self, change: &Change, stage: &mut Stage) -> Fit<()> {
        stage.slots.clear();
        stage.order.clear();
        for row in 0..change.rows {
            if stage.left_out.get(row) == Some(&true) {
                stage.slots.push(NO_SLOT);
                continue;
            }
            let slot = self.slot_of(change, row, &mut stage.scratch)?;
            stage.slots.push(slot);
            if !stage.order.contains(&slot) {
                stage.order.push(slot);
            }
        }
        Ok(())
    }

    pub(crate) fn key_of(&self, keys: &[usize], change: &Change, image: Image, out: &mut Vec<u8>) -> Fit<()> {
        for (i, &key) in keys.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let column = &self.columns[key];
            out.extend_from_slice(self.name(column));
            self.cell(column, change.data, image, out)?;
        }
        Ok(())
    }

    pub(crate) fn record_key(&self, key: &RecordKey, change: &Change, image: Image, out: &mut Vec<u8>) -> Fit<()> {
        put!(out, &key.head, b"{");
        self.key_of(&key.columns, change, image, out)?;
        put!(out, b"}", &key.tail);
        Ok(())
    }
}

impl Key {
    fn fits(&self, fields: usize, columns: &[Column]) -> bool {
        match self {
            Key::Text(field) => *field < fields,
            Key::List(list) | Key::Canal { fields: list, .. } => list.iter().all(|&field| field < fields),
            Key::Record(key) => key.fits(columns) && !key.columns.is_empty(),
        }
    }
}

impl RecordKey {
    /// Returns whether it is of a table with these columns.
    pub(crate) fn fits(&self, columns: &[Column]) -> bool {
        self.columns.iter().all(|&key| key < columns.len())
    }
}
