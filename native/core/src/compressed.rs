//! What MariaDB compresses: the rows of events (log_bin_compress), and columns with the attribute COMPRESSED.

use std::borrow::Cow;

use miniz_oxide::inflate::decompress_slice_iter_to_slice;

use crate::{Fit, Unfit};

/// Maximum bytes of a value that Python inflates with its row; the rows of an event with a larger one are published in
/// parts (`headrace/mysql/values/column_types.py`).
pub(crate) const SMALL_VALUE: usize = 8 << 10;

/// How many times as large deflated bytes become at most.
const LARGEST_RATIO: usize = 1032;

/// Returns the inflated size of a column's value, as it says.
pub(crate) fn size_of(raw: &[u8]) -> usize {
    match head(raw) {
        Some((length, _)) => length,
        None => raw.len(),
    }
}

/// Splits a value that is deflated into its inflated size and what follows.
fn head(raw: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = raw.split_first()?;
    let digits = usize::from(first & 7);
    if first >> 4 != 8 || !(1..=4).contains(&digits) {
        return None;
    }
    let (length, packed) = rest.split_at_checked(digits)?;
    Some((big_endian(length), packed))
}

fn big_endian(raw: &[u8]) -> usize {
    raw.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

/// Returns a column's value of at most `largest` bytes. It is stored as nothing, or a first byte and the data. 0: not
/// compressed. 8 in the upper four bits: deflated, the 4th bit for a stream without zlib's header, the low three for the
/// bytes of the size that follows, big endian.
pub(crate) fn column(raw: &[u8], largest: usize) -> Fit<Cow<'_, [u8]>> {
    match raw.split_first() {
        None => return Ok(Cow::Borrowed(raw)),
        Some((0, plain)) => return Ok(Cow::Borrowed(plain)),
        Some(_) => {}
    }
    let (length, packed) = head(raw).ok_or(Unfit)?;
    if length > largest {
        return Err(Unfit);
    }
    let mut value = Vec::new();
    inflate(&mut value, packed, length, raw[0] & 8 == 0)?;
    Ok(Cow::Owned(value))
}

/// Writes the body of an event whose rows, from `first` on, are compressed: a byte with the size of the length, the
/// length big endian, then zlib's bytes. Refuses more than `most` bytes.
pub(crate) fn event(out: &mut Vec<u8>, body: &[u8], first: usize, most: usize) -> Fit<()> {
    let head = *body.get(first).ok_or(Unfit)?;
    let digits = usize::from(head & 7);
    if head & 0x70 != 0 || !(1..=4).contains(&digits) {
        return Err(Unfit);
    }
    let (rows, packed) = body[first + 1..].split_at_checked(digits).ok_or(Unfit)?;
    let length = big_endian(rows);
    if length > most {
        return Err(Unfit);
    }
    out.clear();
    out.extend_from_slice(&body[..first]);
    inflate(out, packed, length, true)
}

/// Adds the `length` bytes that `packed` is inflated to.
fn inflate(out: &mut Vec<u8>, packed: &[u8], length: usize, zlib: bool) -> Fit<()> {
    if length / LARGEST_RATIO > packed.len() {
        return Err(Unfit);
    }
    let start = out.len();
    out.resize(start + length, 0);
    match decompress_slice_iter_to_slice(&mut out[start..], std::iter::once(packed), zlib, false) {
        Ok(written) if written == length => Ok(()),
        _ => Err(Unfit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "aaaa…", 300 times, as MariaDB stores it.
    const DEFLATED: &[u8] = &[0x8A, 0x01, 0x2C, 0x4B, 0x4C, 0x1C, 0x05, 0xC4, 0x02, 0x00];

    #[test]
    fn a_value_is_what_was_deflated_and_no_longer_than_it_says() {
        assert_eq!(column(DEFLATED, 300).unwrap().as_ref(), [b'a'; 300]);
        assert_eq!(column(b"", 0).unwrap().as_ref(), b"");
        assert_eq!(column(b"\0as it is", 0).unwrap().as_ref(), b"as it is");
        assert_eq!(column(DEFLATED, 299), Err(Unfit));
        for (at, byte) in [(0, 0x8B), (0, 0x88), (0, 0x82), (0, 0x9A), (2, 0x2B), (2, 0x2D), (5, 0)] {
            let mut other = DEFLATED.to_vec();
            other[at] = byte;
            assert_eq!(column(&other, 1 << 20), Err(Unfit), "byte {at} as {byte:#x}");
        }
        assert_eq!(column(&DEFLATED[..2], 1 << 20), Err(Unfit));
    }
}
