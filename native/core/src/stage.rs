//! The messages of one event while they are made, and the memory for that.

/// One message that is made, and not yet in a batch. Ranges refer to `Stage::bytes`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub slot: u32,
    /// None is a tombstone.
    pub value: Option<(usize, usize)>,
    pub key: Option<(usize, usize)>,
    /// The event's row that it is about, or begins with, and its number of rows.
    pub row: usize,
    pub rows: usize,
    /// Whether it is the second message about its row.
    pub again: bool,
    pub pos: i64,
    /// What it is about, if that is asked for.
    pub about: Option<(usize, usize)>,
}

/// Memory that is reused for each event.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    pub bytes: Vec<u8>,
    pub messages: Vec<Message>,
    /// How many of them have a number of Canal's.
    pub numbered: u64,
    pub members: Vec<usize>,
    /// By row, whether it is not published; empty if all are.
    pub left_out: Vec<bool>,
    pub slots: Vec<u32>,
    pub order: Vec<u32>,
    pub scratch: Vec<u8>,
    /// Texts of an entry's columns, and facts of each column and row before they are written.
    pub texts: Vec<u8>,
    pub cells: Vec<Cell>,
    pub sizes: Vec<usize>,
    /// The parts that all messages of the event share: before and after those of one message.
    pub head: Vec<u8>,
    pub foot: Vec<u8>,
    /// Whether the rows may go to several partitions.
    pub sliced: bool,
    /// The number of the first row in the event, if these are only some of its rows.
    pub first: Option<usize>,
}

impl Stage {
    /// Returns the size of the largest message.
    pub(crate) fn largest(&self) -> usize {
        self.messages.iter().filter_map(|message| message.value).map(|(start, end)| end - start).max().unwrap_or(0)
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.messages.clear();
        self.left_out.clear();
        self.numbered = 0;
    }
}

/// A column of one row image.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cell {
    /// The range of its text in `Stage::texts`; None for NULL.
    pub text: Option<(usize, usize)>,
    /// Whether `Constants::before_small` applies to the integer.
    pub small: bool,
    pub updated: bool,
    /// Bytes of the message CanalEntry.Column.
    pub size: usize,
}
