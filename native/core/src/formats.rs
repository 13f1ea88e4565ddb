//! The messages about one table, in its format.

use crate::canal::Canal;
use crate::changes::Change;
use crate::debezium::Debezium;
use crate::entries::Entries;
use crate::maxwell::Maxwell;
use crate::stage::Stage;
use crate::table::Table;
use crate::{Fit, Unfit};

/// A format, with the constant parts of the messages about a table.
#[derive(Debug, Clone)]
pub enum Format {
    /// Canal's flat JSON.
    Canal(Canal),
    /// Debezium's JSON.
    Debezium(Debezium),
    /// Canal's protobuf entries.
    Entries(Entries),
    /// Maxwell's JSON.
    Maxwell(Maxwell),
}

/// A table, and the format of its messages.
#[derive(Debug)]
pub struct Published {
    pub(crate) table: Table,
    format: Format,
}

impl Published {
    /// Takes both. Refuses a format whose columns are not those of the table.
    pub fn new(table: Table, format: Format) -> Fit<Self> {
        let fits = match &format {
            Format::Canal(format) => format.keys.iter().all(|&key| key < table.columns.len()),
            Format::Debezium(format) => format.key.fits(&table.columns),
            Format::Entries(format) => format.fits(&table.columns),
            Format::Maxwell(format) => format.keys.iter().all(|&(key, _)| key < table.columns.len()),
        };
        fits.then_some(Self { table, format }).ok_or(Unfit)
    }

    /// Makes the messages of an event, or refuses all of it.
    pub(crate) fn stage(&self, change: &Change, rows_per_message: usize, number: u64, stage: &mut Stage) -> Fit<()> {
        if !self.table.begin(change, stage)? {
            return Ok(());
        }
        match &self.format {
            Format::Canal(format) => self.table.stage_canal(format, change, rows_per_message, number, stage),
            Format::Debezium(format) => self.table.stage_debezium(format, change, stage),
            Format::Entries(format) => self.table.stage_entries(format, change, rows_per_message, number, stage),
            Format::Maxwell(format) => self.table.stage_maxwell(format, change, stage),
        }
    }
}
