//! What a message is about: the table, the operation, and the keys of its rows. Python reads it when a broker refuses
//! the message, and for its tag.

use crate::changes::Change;
use crate::table::{About, Table};
use crate::{Fit, Unfit};

/// A key's number, and its text.
pub type Named<'a> = (u8, &'a [u8]);

impl Table {
    /// Writes what a message of some rows is about, and returns its range; None if nobody asks. An update that changes
    /// the key has the old one too.
    pub(crate) fn about(&self, change: &Change, rows: &[usize], out: &mut Vec<u8>) -> Fit<Option<(usize, usize)>> {
        let Some(about) = &self.about else { return Ok(None) };
        let start = out.len();
        out.extend_from_slice(&about.number.to_le_bytes());
        out.push(change.operation as u8);
        for &row in rows {
            let (before, after) = self.images(change, row);
            let same =
                |field: &usize| before.is_none_or(|one| one[*field].of(change.data) == after[*field].of(change.data));
            if let Some(before) = before.filter(|_| !self.identity.iter().all(same)) {
                self.add_keys(about, change, before, out)?;
            }
            self.add_keys(about, change, after, out)?;
        }
        Ok(Some((start, out.len())))
    }

    fn add_keys(&self, about: &About, change: &Change, image: crate::changes::Image, out: &mut Vec<u8>) -> Fit<()> {
        for (which, key) in &about.keys {
            out.push(*which);
            let at = out.len();
            out.extend_from_slice(&[0; 4]);
            self.key(key, change, image, out)?;
            let size = u32::try_from(out.len() - at - 4).map_err(|_| Unfit)?;
            out[at..at + 4].copy_from_slice(&size.to_le_bytes());
        }
        Ok(())
    }
}

/// Reads what `Table::about` has written: the number of the table, that of the operation, and the keys.
pub fn read(raw: &[u8]) -> Fit<(u32, u8, Vec<Named<'_>>)> {
    let (number, rest) = raw.split_first_chunk().ok_or(Unfit)?;
    let (&operation, mut rest) = rest.split_first().ok_or(Unfit)?;
    let mut keys = Vec::new();
    while let Some((&which, sized)) = rest.split_first() {
        let (size, text) = sized.split_first_chunk().ok_or(Unfit)?;
        let (text, after) = text.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or(Unfit)?;
        keys.push((which, text));
        rest = after;
    }
    Ok((u32::from_le_bytes(*number), operation, keys))
}
