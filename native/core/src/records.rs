//! Kafka's record batches of the version 2 (magic byte), as its own clients write them.

use bytes::BufMut;

use crate::batch::{varint, Batch};
use crate::{Fit, Unfit};

/// Bytes of a record batch's head.
pub const HEAD: usize = 61;
/// Of a record, which has none.
const ATTRIBUTES: u8 = 0;

fn varint_size(value: i64) -> usize {
    let bits = 64 - ((value << 1 ^ value >> 63) as u64 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn sized(value: Option<&[u8]>) -> usize {
    value.map_or(1, |value| varint_size(value.len() as i64) + value.len())
}

fn body_size(batch: &Batch, i: usize, delta: usize) -> usize {
    let key = batch.keys.as_ref().and_then(|keys| keys.get(i));
    // attributes, no time difference, and the difference of the offset
    1 + 1 + varint_size(delta as i64) + sized(key) + sized(batch.values.get(i)) + batch.headers.raw(i).len()
}

fn record_size(batch: &Batch, i: usize, delta: usize) -> usize {
    let body = body_size(batch, i, delta);
    varint_size(body as i64) + body
}

/// Returns the runs of messages, first and end and their bytes, that fit into record batches of this size; a larger
/// message gets its own.
pub fn runs(batch: &Batch, limit: usize) -> Vec<(usize, usize, usize)> {
    let (mut runs, mut first, mut size) = (Vec::new(), 0, HEAD);
    for i in 0..batch.values.count() {
        let mut more = record_size(batch, i, i - first);
        if i > first && size + more > limit {
            runs.push((first, i, size));
            (first, size) = (i, HEAD);
            more = record_size(batch, i, 0);
        }
        size += more;
    }
    if batch.values.count() > first {
        runs.push((first, batch.values.count(), size));
    }
    runs
}

fn optional(out: &mut impl BufMut, value: Option<&[u8]>) {
    varint(out, value.map_or(-1, |value| value.len() as i64));
    out.put_slice(value.unwrap_or_default());
}

/// Returns the bytes of the records of a run.
pub fn size(batch: &Batch, first: usize, end: usize) -> usize {
    (first..end).map(|i| record_size(batch, i, i - first)).sum()
}

/// Writes the records of a run, without the head of their batch.
pub fn write(out: &mut impl BufMut, batch: &Batch, first: usize, end: usize) {
    for i in first..end {
        varint(out, body_size(batch, i, i - first) as i64);
        out.put_u8(ATTRIBUTES);
        varint(out, 0);
        varint(out, (i - first) as i64);
        optional(out, batch.keys.as_ref().and_then(|keys| keys.get(i)));
        optional(out, batch.values.get(i));
        out.put_slice(batch.headers.raw(i));
    }
}

/// The head of a record batch, without its lengths.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// Kafka's bits, such as the compression of the records.
    pub attributes: i16,
    /// The number of records.
    pub count: usize,
    /// Milliseconds since 1970, of every record.
    pub when: i64,
    /// The id of an idempotent producer; else -1.
    pub producer_id: i64,
    /// The epoch of that id; else -1.
    pub producer_epoch: i16,
    /// The producer's sequence number of the first record; else -1.
    pub base_sequence: i32,
}

/// Makes `out` a whole record batch: the head, and what `write` adds, compressed or not. Fails if that is less than the
/// space. Panics if it is more, as a slice does.
pub fn whole(out: &mut [u8], head: &Head, write: impl FnOnce(&mut &mut [u8])) -> Fit<()> {
    let (size, mut rest) = (out.len() as i32 - 12, &mut *out);
    rest.put_i64(0);
    rest.put_i32(size);
    rest.put_i32(-1);
    rest.put_slice(&[2, 0, 0, 0, 0]);
    rest.put_i16(head.attributes);
    rest.put_i32(head.count as i32 - 1);
    rest.put_i64(head.when);
    rest.put_i64(head.when);
    rest.put_i64(head.producer_id);
    rest.put_i16(head.producer_epoch);
    rest.put_i32(head.base_sequence);
    rest.put_i32(head.count as i32);
    write(&mut rest);
    if !rest.is_empty() {
        return Err(Unfit);
    }
    let crc = crc32c::crc32c(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    Ok(())
}
