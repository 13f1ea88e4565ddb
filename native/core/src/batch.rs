//! Messages of one topic's partition: values, keys and headers in columns, each of them one piece of memory.

use std::sync::{Arc, Mutex};

use bytes::BufMut;

use crate::{Fit, Unfit};

/// A batch that both sides write to: native code and, through its columns, Python.
pub type Shared = Arc<Mutex<Batch>>;

const NULL: u64 = 1 << 63;
/// Bytes of a value above which it is moved rather than copied, if possible.
const LARGE: usize = 1 << 20;

/// A column of byte strings, or none for a message.
#[derive(Debug, Default)]
pub struct Values {
    bytes: Vec<u8>,
    ends: Vec<u64>,
}

impl Values {
    /// Adds the value of the next message.
    pub fn push(&mut self, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.bytes.extend_from_slice(value);
        }
        let null = if value.is_none() { NULL } else { 0 };
        self.ends.push(self.bytes.len() as u64 | null);
    }

    /// Adds a value which is a range of `bytes`. They are of no use afterwards: a large value is moved if it is the first.
    pub(crate) fn take(&mut self, bytes: &mut Vec<u8>, (start, end): (usize, usize)) {
        if !self.bytes.is_empty() || end - start < LARGE {
            return self.push(Some(&bytes[start..end]));
        }
        bytes.truncate(end);
        bytes.drain(..start);
        std::mem::swap(&mut self.bytes, bytes);
        self.ends.push(self.bytes.len() as u64);
    }

    /// Returns the number of messages, with those that have no value.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the value of one message. Panics after the last, as a slice does.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = self.ends[i];
        if end & NULL != 0 {
            return None;
        }
        let start = if i == 0 { 0 } else { self.ends[i - 1] & !NULL };
        Some(&self.bytes[start as usize..end as usize])
    }

    /// Returns the bytes of all values.
    pub fn total(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of the largest value.
    pub fn largest(&self) -> usize {
        (0..self.count()).filter_map(|i| self.get(i)).map(<[u8]>::len).max().unwrap_or(0)
    }
}

/// A column of headers, stored as in Kafka's records: their count, then name and value of each with lengths.
#[derive(Debug, Default)]
pub struct Headers {
    bytes: Vec<u8>,
    ends: Vec<u64>,
}

impl Headers {
    /// Begins the headers of the next message, of which there are `count`.
    pub fn begin(&mut self, count: usize) {
        varint(&mut self.bytes, count as i64);
    }

    /// Adds a header to the message that has begun.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        add_header(&mut self.bytes, name, value);
    }

    /// Adds headers that are already encoded.
    pub(crate) fn add_written(&mut self, written: &[u8]) {
        self.bytes.extend_from_slice(written);
    }

    /// Ends the headers of the message that has begun.
    pub fn end(&mut self) {
        self.ends.push(self.bytes.len() as u64);
    }

    /// Returns the number of messages whose headers have ended.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns one message's encoded headers. Panics after the last, as a slice does.
    pub(crate) fn raw(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start as usize..self.ends[i] as usize]
    }

    /// Returns one message's headers, decoded.
    pub fn get(&self, i: usize) -> Fit<Vec<(&[u8], &[u8])>> {
        let mut raw = self.raw(i);
        let count = take_varint(&mut raw)?;
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            let name = take(&mut raw)?;
            headers.push((name, take(&mut raw)?));
        }
        Ok(headers)
    }
}

/// Writes one encoded header.
pub(crate) fn add_header(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    varint(out, name.len() as i64);
    out.extend_from_slice(name);
    varint(out, value.len() as i64);
    out.extend_from_slice(value);
}

fn take<'a>(raw: &mut &'a [u8]) -> Fit<&'a [u8]> {
    let size = take_varint(raw)?;
    if size > raw.len() {
        return Err(Unfit);
    }
    let (value, rest) = raw.split_at(size);
    *raw = rest;
    Ok(value)
}

/// Writes a number in zigzag groups of seven bits.
pub(crate) fn varint(out: &mut impl BufMut, value: i64) {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn take_varint(raw: &mut &[u8]) -> Fit<usize> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = raw.split_first().ok_or(Unfit)?;
        *raw = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok((value >> 1) as usize);
        }
    }
    Err(Unfit)
}

/// Parallel columns, and counts of what native code has put into them.
#[derive(Debug, Default)]
pub struct Batch {
    /// None is a tombstone.
    pub values: Values,
    /// The headers of each message; the first is its id.
    pub headers: Headers,
    /// None while no message has a key.
    pub keys: Option<Values>,
    /// What each message of native code is about; None if that is not asked for.
    pub abouts: Option<Values>,
    /// Rows of those messages.
    pub rows: u64,
    /// The bytes that they count in a bounded queue.
    pub size: u64,
    /// Commit time of the last of them, in microseconds since 1970.
    pub commit_us: u64,
    /// The number of messages in the batch when that one was added.
    pub reported: usize,
}
