//! Kafka's record batches of the version 2 (magic byte), as its own clients write them.

use crate::batch::Batch;

const HEAD: usize = 61;
/// A record's longest length, attributes, and the differences of time and offset.
const ATTRIBUTES: u8 = 0;

/// Writes a number in zigzag groups of seven bits.
pub fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn varint_size(value: i64) -> usize {
    let bits = 64 - ((value << 1 ^ value >> 63) as u64 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn sized(value: Option<&[u8]>) -> usize {
    value.map_or(1, |value| varint_size(value.len() as i64) + value.len())
}

fn body_size(batch: &Batch, i: usize, delta: usize) -> usize {
    let key = batch.keys.as_ref().and_then(|keys| keys.get(i));
    // attributes, no difference of time, and the difference of the offset
    1 + 1 + varint_size(delta as i64) + sized(key) + sized(batch.values.get(i)) + batch.headers.raw(i).len()
}

/// The runs of messages, first and end and their bytes, that fit into record batches of so many bytes; one that is
/// larger has a record batch of its own.
pub fn runs(batch: &Batch, limit: usize) -> Vec<(usize, usize, usize)> {
    let (mut runs, mut first, mut size) = (Vec::new(), 0, HEAD);
    for i in 0..batch.values.count() {
        let mut body = body_size(batch, i, i - first);
        let mut more = varint_size(body as i64) + body;
        if i > first && size + more > limit {
            runs.push((first, i, size));
            (first, size) = (i, HEAD);
            body = body_size(batch, i, 0);
            more = varint_size(body as i64) + body;
        }
        size += more;
    }
    if batch.values.count() > first {
        runs.push((first, batch.values.count(), size));
    }
    runs
}

fn optional(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => varint(out, -1),
        Some(value) => {
            varint(out, value.len() as i64);
            out.extend_from_slice(value);
        }
    }
}

/// Writes the records of a run, without the head of their batch.
pub fn write(out: &mut Vec<u8>, batch: &Batch, first: usize, end: usize) {
    for i in first..end {
        varint(out, body_size(batch, i, i - first) as i64);
        out.push(ATTRIBUTES);
        varint(out, 0);
        varint(out, (i - first) as i64);
        optional(out, batch.keys.as_ref().and_then(|keys| keys.get(i)));
        optional(out, batch.values.get(i));
        out.extend_from_slice(batch.headers.raw(i));
    }
}

/// What the head of a record batch says besides its lengths.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub attributes: i16,
    pub count: usize,
    /// Milliseconds since 1970, of every record.
    pub when: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
}

/// A whole record batch: the head, and what `write` puts behind it, compressed or not. `size` is about its bytes.
pub fn whole(head: &Head, size: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + size);
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&(-1i32).to_be_bytes());
    out.extend_from_slice(&[2, 0, 0, 0, 0]);
    out.extend_from_slice(&head.attributes.to_be_bytes());
    out.extend_from_slice(&(head.count as i32 - 1).to_be_bytes());
    out.extend_from_slice(&head.when.to_be_bytes());
    out.extend_from_slice(&head.when.to_be_bytes());
    out.extend_from_slice(&head.producer_id.to_be_bytes());
    out.extend_from_slice(&head.producer_epoch.to_be_bytes());
    out.extend_from_slice(&head.base_sequence.to_be_bytes());
    out.extend_from_slice(&(head.count as i32).to_be_bytes());
    write(&mut out);
    let size = out.len() as i32 - 12;
    out[8..12].copy_from_slice(&size.to_be_bytes());
    let crc = crc32c::crc32c(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    out
}
