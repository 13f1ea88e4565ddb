//! Prints MySQL's binary JSON as text, as CAST(column AS CHAR) does (wire format: MySQL's json_binary.h).
//!
//! Values of types that JSON lacks (a DECIMAL, a DATETIME) are left to Python. The limits are those of
//! `headrace/mysql/values/jsonb.py`: what it refuses is refused here.

use crate::{numbers, text};
use crate::{Fit, Unfit};

const MAX_DEPTH: u32 = 100;
const LITERALS: [&[u8]; 3] = [b"null", b"true", b"false"];
const SMALL_OBJECT: u8 = 0;
const LARGE_OBJECT: u8 = 1;
const SMALL_ARRAY: u8 = 2;
const LARGE_ARRAY: u8 = 3;
const LITERAL: u8 = 4;
const INT16: u8 = 5;
const UINT16: u8 = 6;
const INT32: u8 = 7;
const UINT32: u8 = 8;
const INT64: u8 = 9;
const UINT64: u8 = 10;
const DOUBLE: u8 = 11;
const STRING: u8 = 12;

/// Writes the text of a whole document; an empty value is `null`.
pub fn json_text(out: &mut Vec<u8>, document: &[u8]) -> Fit<()> {
    match document.first() {
        None => out.extend_from_slice(b"null"),
        Some(&kind) if kind <= LARGE_ARRAY => container(out, document, kind, 1, 1)?,
        Some(&kind) => scalar(out, document, kind, 1)?,
    }
    Ok(())
}

fn bytes<const N: usize>(b: &[u8], at: usize) -> Fit<[u8; N]> {
    let end = at.checked_add(N).ok_or(Unfit)?;
    b.get(at..end).and_then(|raw| raw.try_into().ok()).ok_or(Unfit)
}

/// Returns a length in groups of 7 bits, low first, and where it ends.
fn length(b: &[u8], mut at: usize) -> Fit<(usize, usize)> {
    let mut n = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte = *b.get(at).ok_or(Unfit)?;
        at += 1;
        n |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok((n as usize, at));
        }
    }
    Err(Unfit)
}

/// Returns the bytes after a length.
fn counted(b: &[u8], at: usize) -> Fit<&[u8]> {
    let (n, at) = length(b, at)?;
    b.get(at..at.checked_add(n).ok_or(Unfit)?).ok_or(Unfit)
}

fn quote(out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
    std::str::from_utf8(raw).map_err(|_| Unfit)?;
    text::quote(out, raw);
    Ok(())
}

fn scalar(out: &mut Vec<u8>, b: &[u8], kind: u8, at: usize) -> Fit<()> {
    match kind {
        LITERAL => out.extend_from_slice(LITERALS.get(*b.get(at).ok_or(Unfit)? as usize).ok_or(Unfit)?),
        INT16 => text::int(out, i16::from_le_bytes(bytes(b, at)?)),
        UINT16 => text::int(out, u16::from_le_bytes(bytes(b, at)?)),
        INT32 => text::int(out, i32::from_le_bytes(bytes(b, at)?)),
        UINT32 => text::int(out, u32::from_le_bytes(bytes(b, at)?)),
        INT64 => text::int(out, i64::from_le_bytes(bytes(b, at)?)),
        UINT64 => text::int(out, u64::from_le_bytes(bytes(b, at)?)),
        DOUBLE => numbers::json_double(out, f64::from_le_bytes(bytes(b, at)?))?,
        STRING => quote(out, counted(b, at)?)?,
        _ => return Err(Unfit),
    }
    Ok(())
}

/// Counts and offsets have 2 bytes in small containers and 4 in large ones.
#[derive(Clone, Copy)]
struct Width(usize);

impl Width {
    fn number(self, b: &[u8], at: usize) -> Fit<usize> {
        if self.0 == 2 {
            Ok(u16::from_le_bytes(bytes(b, at)?) as usize)
        } else {
            Ok(u32::from_le_bytes(bytes(b, at)?) as usize)
        }
    }
}

/// Writes an object or array: count, size, an entry for each key (offset, 2 bytes of length), an entry for each value
/// (type byte, then the value itself if it is small enough, else its offset), the keys, the values. Offsets count from
/// its first byte.
fn container(out: &mut Vec<u8>, b: &[u8], kind: u8, start: usize, depth: u32) -> Fit<()> {
    let width = Width(if kind == SMALL_OBJECT || kind == SMALL_ARRAY { 2 } else { 4 });
    let object = kind == SMALL_OBJECT || kind == LARGE_OBJECT;
    let count = width.number(b, start)?;
    let head = start + 2 * width.0;
    if object && count == 0 {
        out.extend_from_slice(b"{}");
        return Ok(());
    }
    if depth > MAX_DEPTH {
        return Err(Unfit);
    }
    let values = head + if object { count * (width.0 + 2) } else { 0 };
    if values + count * (width.0 + 1) > b.len() {
        return Err(Unfit);
    }
    if object {
        check_keys(b, start, head, count, width)?;
    }
    out.push(if object { b'{' } else { b'[' });
    let mut room = 8 * b.len() as i64 + 64;
    for i in 0..count {
        if i > 0 {
            out.extend_from_slice(b", ");
        }
        if object {
            let key = key(b, start, head + i * (width.0 + 2), width)?;
            quote(out, key)?;
            out.extend_from_slice(b": ");
        }
        let (at, entry) = (out.len(), values + i * (width.0 + 1));
        room -= member(out, b, start, entry, width, depth)? as i64;
        room -= (out.len() - at) as i64;
        if room < 0 {
            return Err(Unfit);
        }
    }
    out.push(if object { b'}' } else { b']' });
    Ok(())
}

fn key(b: &[u8], start: usize, entry: usize, width: Width) -> Fit<&[u8]> {
    let at = start + width.number(b, entry)?;
    let n = u16::from_le_bytes(bytes(b, entry + width.0)?) as usize;
    b.get(at..at + n).ok_or(Unfit)
}

/// Refuses keys that share bytes, with which a small document could have a large text.
fn check_keys(b: &[u8], start: usize, head: usize, count: usize, width: Width) -> Fit<()> {
    let (mut first, mut last, mut sum) = (usize::MAX, 0, 0);
    for i in 0..count {
        let entry = head + i * (width.0 + 2);
        let at = start + width.number(b, entry)?;
        let n = u16::from_le_bytes(bytes(b, entry + width.0)?) as usize;
        (first, last, sum) = (first.min(at), last.max(at + n), sum + n);
    }
    if sum > last - first || last > b.len() {
        return Err(Unfit);
    }
    Ok(())
}

/// Writes one value; returns how many bytes of the document it used besides its text.
fn member(out: &mut Vec<u8>, b: &[u8], start: usize, entry: usize, width: Width, depth: u32) -> Fit<usize> {
    let kind = b[entry];
    let offset = width.number(b, entry + 1)?;
    match kind {
        SMALL_OBJECT | LARGE_OBJECT | SMALL_ARRAY | LARGE_ARRAY => {
            container(out, b, kind, start + offset, depth + 1)?;
        }
        LITERAL | INT16 | UINT16 => scalar(out, b, kind, entry + 1)?,
        INT32 | UINT32 if width.0 == 4 => scalar(out, b, kind, entry + 1)?,
        STRING => {
            let raw = counted(b, start + offset)?;
            quote(out, raw)?;
            return Ok(raw.len());
        }
        _ => scalar(out, b, kind, start + offset)?,
    }
    Ok(0)
}
