//! Puts the messages of events into batches, with their ids and headers.

use std::sync::{Arc, MutexGuard, PoisonError};

use crate::batch::{add_header, Batch, Shared};
use crate::canal;
use crate::changes::{Change, Mark, Operation, Snapshot};
use crate::entries::EntryMarks;
use crate::formats::Published;
use crate::stage::Stage;
use crate::text::{self, put};
use crate::{Fit, Unfit};

/// The messages about the begin and end of transactions, and where they go.
#[derive(Debug)]
pub struct Marks {
    /// The slot of all of them.
    pub slot: u32,
    /// The format in which they are printed.
    pub style: MarkStyle,
}

/// How the messages about the begin and end of transactions are printed.
#[derive(Debug)]
pub enum MarkStyle {
    /// Canal's protobuf entries.
    Entries(EntryMarks),
    /// Canal's flat messages.
    Canal {
        /// Exactly Canal's fields: no `_pos`, and whole seconds.
        compat: bool,
        /// The key of all of them; None without keys.
        key: Option<Vec<u8>>,
    },
}

/// Rows of one table since the last call.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counter {
    /// Rows of INSERTs.
    pub inserted: u64,
    /// Rows of UPDATEs.
    pub updated: u64,
    /// Rows of DELETEs.
    pub deleted: u64,
    /// Rows that were read from the table.
    pub snapshot: u64,
    /// Commit time of the last row, in microseconds since 1970.
    pub commit_us: u64,
}

/// Opens the batch of a slot, which is a topic's partition; fails if Python does.
pub trait Opener {
    /// Returns the batch, to which all following messages of the slot are added until it is closed.
    fn open(&mut self, slot: u32) -> Fit<Shared>;
}

/// Where the messages of one destination go. Python decides all else: `slots` only remember what it has opened.
#[derive(Debug)]
pub struct Output {
    slots: Vec<Option<Shared>>,
    counters: Vec<Counter>,
    touched: Vec<usize>,
    server_uuid: Vec<u8>,
    /// The header of every message, encoded.
    epoch: Vec<u8>,
    overhead: u64,
    keyed: bool,
    one_log: bool,
    rows_per_message: usize,
    /// Maximum size of a message in bytes. Larger ones are left to Python.
    pub largest: usize,
    /// Set if the begin and end of transactions are published.
    pub marks: Option<Marks>,
    /// The time that messages contain, in milliseconds since 1970.
    pub now_ms: u64,
    /// Canal's `id` of the last message.
    pub number: u64,
    /// Bytes that went into batches since this was last set to 0, with the overhead of each message.
    pub size: u64,
    /// Messages that went into batches since this was last set to 0.
    pub count: u64,
    stage: Stage,
    base: Vec<u8>,
    id: Vec<u8>,
    digits: Vec<u8>,
    place: Vec<u8>,
    /// How many each message has.
    headers: usize,
}

/// What all messages of an event share, besides its change.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Where its transaction begins.
    pub transaction: u64,
    /// The number of the rows event within it.
    pub ordinal: u64,
}

impl Output {
    /// `overhead`: the bytes that a message counts besides its content. `keyed`: whether messages have keys. `one_log`:
    /// messages of another batch must come after those that exist, so opening one closes the others.
    pub fn new(
        server_uuid: &[u8],
        epoch: i64,
        rows_per_message: usize,
        overhead: u64,
        keyed: bool,
        one_log: bool,
    ) -> Self {
        let (mut header, mut digits) = (Vec::new(), Vec::new());
        text::int(&mut digits, epoch);
        add_header(&mut header, b"headrace-epoch", &digits);
        Self {
            slots: Vec::new(),
            counters: Vec::new(),
            touched: Vec::new(),
            server_uuid: server_uuid.to_vec(),
            epoch: header,
            overhead,
            keyed,
            one_log,
            rows_per_message,
            largest: usize::MAX,
            marks: None,
            now_ms: 0,
            number: 0,
            size: 0,
            count: 0,
            stage: Stage::default(),
            base: Vec::new(),
            id: Vec::new(),
            digits: Vec::new(),
            place: Vec::new(),
            headers: 0,
        }
    }

    /// Adds another topic's partition.
    pub fn add_slot(&mut self) -> u32 {
        self.slots.push(None);
        self.slots.len() as u32 - 1
    }

    /// Returns the number of a new table.
    pub fn add_counter(&mut self) -> usize {
        self.counters.push(Counter::default());
        self.counters.len() - 1
    }

    /// Adds nothing more to the open batches.
    pub fn close_batches(&mut self) {
        self.slots.fill(None);
    }

    /// Returns the tables with rows counted since the last call, by their numbers.
    pub fn take_counters(&mut self) -> Vec<(usize, Counter)> {
        let counters = &mut self.counters;
        self.touched.drain(..).map(|at| (at, std::mem::take(&mut counters[at]))).collect()
    }

    /// Makes the messages of an event, after that of its transaction's begin if given. Either all of them are in their
    /// batches afterwards, or nothing was done.
    pub(crate) fn put(
        &mut self,
        published: &Published,
        change: &Change,
        origin: Origin,
        begin: Option<&Mark>,
        opener: &mut dyn Opener,
    ) -> Fit<()> {
        let mut stage = std::mem::take(&mut self.stage);
        let made = self.put_staged(published, change, origin, begin, opener, &mut stage);
        self.stage = stage;
        made
    }

    fn put_staged(
        &mut self,
        published: &Published,
        change: &Change,
        origin: Origin,
        begin: Option<&Mark>,
        opener: &mut dyn Opener,
        stage: &mut Stage,
    ) -> Fit<()> {
        published.stage(change, self.rows_per_message, self.number + u64::from(begin.is_some()), stage)?;
        if stage.largest() > self.largest {
            return Err(Unfit);
        }
        if let Some(begin) = begin {
            self.put_mark(begin, origin.transaction, opener)?;
        }
        self.put_stage(published, change, origin, opener, stage)
    }

    /// Puts messages into their batches that are made already.
    pub(crate) fn put_stage(
        &mut self,
        published: &Published,
        change: &Change,
        origin: Origin,
        opener: &mut dyn Opener,
        stage: &mut Stage,
    ) -> Fit<()> {
        if stage.messages.is_empty() {
            return Ok(());
        }
        for message in &stage.messages {
            self.open(message.slot, opener)?;
        }
        self.name(change.file, change.gtid, origin.transaction);
        if let Some(of) = &change.snapshot {
            self.name_snapshot(of);
        } else {
            put!(&mut self.base, b"#", origin.ordinal);
        }
        let lone = change.rows == 1;
        let mut at = 0;
        while at < stage.messages.len() {
            let slot = stage.messages[at].slot;
            let shared = self.opened(slot);
            let mut batch = lock(&shared);
            while at < stage.messages.len() && stage.messages[at].slot == slot {
                self.put_one(&mut batch, stage, at, lone);
                at += 1;
            }
            batch.commit_us = change.commit_us;
            batch.reported = batch.values.count();
        }
        self.number += stage.numbered;
        let rows = stage.messages.iter().map(|message| message.rows).sum();
        self.count_rows(published.table.counter, change, rows);
        Ok(())
    }

    /// Makes the message of a transaction's begin or end.
    pub(crate) fn put_mark(&mut self, mark: &Mark, transaction: u64, opener: &mut dyn Opener) -> Fit<()> {
        let Some(marks) = &self.marks else { return Err(Unfit) };
        let (slot, mut value, mut key) = (marks.slot, Vec::new(), None);
        match &marks.style {
            MarkStyle::Entries(style) => style.write(&mut value, mark, self.number + 1),
            MarkStyle::Canal { compat, key: own } => {
                canal::write_mark(&mut value, mark, *compat, self.number + 1, self.now_ms);
                key.clone_from(own);
            }
        }
        self.open(slot, opener)?;
        self.number += 1;
        self.name(mark.file, mark.gtid, transaction);
        self.id.clear();
        put!(&mut self.id, &self.base, if mark.xid.is_some() { "#end" } else { "#begin" });
        let shared = self.opened(slot);
        let mut batch = lock(&shared);
        self.add(&mut batch, value.len(), key.as_deref(), mark.pos, None);
        batch.values.push(Some(&value));
        batch.commit_us = mark.commit_us;
        batch.reported = batch.values.count();
        Ok(())
    }

    /// Returns a batch that is open.
    fn opened(&self, slot: u32) -> Shared {
        let Some(shared) = &self.slots[slot as usize] else { unreachable!("it was opened") };
        Arc::clone(shared)
    }

    fn open(&mut self, slot: u32, opener: &mut dyn Opener) -> Fit<()> {
        if self.slots.get(slot as usize).is_some_and(Option::is_none) {
            let opened = opener.open(slot)?;
            if self.one_log {
                self.close_batches();
            }
            self.slots[slot as usize] = Some(opened);
        }
        Ok(())
    }

    /// Writes the beginning of the ids, and the header with the transaction's position.
    fn name(&mut self, file: &[u8], gtid: &[u8], transaction: u64) {
        self.digits.clear();
        put!(&mut self.digits, file, b":", transaction);
        self.base.clear();
        if gtid.is_empty() {
            put!(&mut self.base, &self.server_uuid, b"/", &self.digits);
        } else {
            self.base.extend_from_slice(gtid);
        }
        self.place.clear();
        add_header(&mut self.place, b"headrace-position", &self.digits);
        self.place.extend_from_slice(&self.epoch);
        self.headers = 4;
    }

    /// Writes the beginning of the ids of a snapshot's rows, and adds their header.
    fn name_snapshot(&mut self, of: &Snapshot) {
        self.base.clear();
        put!(&mut self.base, &self.server_uuid, b"/", of.id);
        add_header(&mut self.place, b"headrace-snapshot", of.kind);
        self.headers += 1;
    }

    fn put_one(&mut self, batch: &mut Batch, stage: &mut Stage, at: usize, lone: bool) {
        let message = stage.messages[at];
        self.id.clear();
        self.id.extend_from_slice(&self.base);
        if stage.first.is_some() || (!lone && self.is_numbered(stage)) {
            put!(&mut self.id, b".", stage.first.unwrap_or(0) + message.row);
        }
        if message.again {
            self.id.extend_from_slice(b"/1");
        }
        let range = |of: Option<(usize, usize)>| of.map(|(start, end)| &stage.bytes[start..end]);
        let size = message.value.map_or(0, |(start, end)| end - start);
        self.add(batch, size, range(message.key), message.pos, range(message.about));
        match message.value {
            Some(value) if at + 1 == stage.messages.len() => batch.values.take(&mut stage.bytes, value),
            other => batch.values.push(range(other)),
        }
        batch.rows += message.rows as u64;
    }

    /// Adds all of a message but the value of `size` bytes. The id is already written.
    fn add(&mut self, batch: &mut Batch, size: usize, key: Option<&[u8]>, pos: i64, about: Option<&[u8]>) {
        self.digits.clear();
        text::int(&mut self.digits, pos);
        let headers = &mut batch.headers;
        headers.begin(self.headers);
        headers.add(b"headrace-id", &self.id);
        headers.add(b"headrace-pos", &self.digits);
        headers.add_written(&self.place);
        headers.end();
        if self.keyed {
            batch.keys.get_or_insert_default().push(key);
        }
        if let Some(abouts) = &mut batch.abouts {
            abouts.push(about);
        }
        let size = size + key.map_or(0, <[u8]>::len);
        batch.size += size as u64 + self.overhead;
        self.size += size as u64 + self.overhead;
        self.count += 1;
    }

    /// Returns whether the id has the row's number: not if the only message of an unsliced event has all of its rows.
    fn is_numbered(&self, stage: &Stage) -> bool {
        self.keyed || self.rows_per_message != 0 || stage.sliced
    }

    fn count_rows(&mut self, at: usize, change: &Change, rows: usize) {
        let Some(counter) = self.counters.get_mut(at) else { return };
        if counter.inserted + counter.updated + counter.deleted + counter.snapshot == 0 {
            self.touched.push(at);
        }
        let rows = rows as u64;
        match change.operation {
            _ if change.snapshot.is_some() => counter.snapshot += rows,
            Operation::Insert => counter.inserted += rows,
            Operation::Update => counter.updated += rows,
            Operation::Delete => counter.deleted += rows,
        }
        counter.commit_us = change.commit_us;
    }
}

/// Returns a batch to write to. Nothing panics while it is locked, so a poisoned lock still has whole messages.
pub fn lock(shared: &Shared) -> MutexGuard<'_, Batch> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
