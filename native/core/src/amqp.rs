//! Messages as frames of AMQP 0-9-1: Basic.Publish, the header, the bodies; see `headrace/adapters/rabbitmq/frames.py`.

use crate::batch::Batch;
use crate::{Fit, Unfit};

const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;
const BASIC: u16 = 60;
const CONTENT_TYPE: &[u8] = b"\x10application/json";
const SHORT_LIMIT: usize = 255;
/// Content type, headers, delivery mode and message id; and the time.
const FLAGS: u16 = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7;
const TIMESTAMP: u16 = 1 << 6;

/// What the messages of a batch share.
#[derive(Debug)]
pub struct Publishing<'a> {
    /// The whole frame of Basic.Publish.
    pub publish: &'a [u8],
    /// The header with the partition, as a field of a table.
    pub partition: &'a [u8],
    /// AMQP's delivery mode: 1 transient, 2 persistent.
    pub mode: u8,
    /// Number of the AMQP channel.
    pub channel: u16,
    /// Bytes of a body in one frame.
    pub body_max: usize,
    /// Seconds since 1970; 0 if not known.
    pub when: u64,
}

impl Publishing<'_> {
    /// Writes the frames of one message. Panics after the last message of the batch, as a slice does.
    pub fn write(&self, out: &mut Vec<u8>, batch: &Batch, at: usize) -> Fit<()> {
        out.extend_from_slice(self.publish);
        let body = batch.values.get(at).unwrap_or_default();
        let start = self.begin(out, HEADER);
        out.extend_from_slice(&BASIC.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        out.extend_from_slice(&(FLAGS | if self.when > 0 { TIMESTAMP } else { 0 }).to_be_bytes());
        out.extend_from_slice(CONTENT_TYPE);
        let id = self.table(out, batch, at)?;
        out.push(self.mode);
        short(out, &id[id.len().saturating_sub(SHORT_LIMIT)..])?;
        if self.when > 0 {
            out.extend_from_slice(&self.when.to_be_bytes());
        }
        end(out, start)?;
        for part in body.chunks(self.body_max.max(1)) {
            let start = self.begin(out, BODY);
            out.extend_from_slice(part);
            end(out, start)?;
        }
        Ok(())
    }

    /// Writes the headers but the first, which is the id, and returns that.
    fn table<'a>(&self, out: &mut Vec<u8>, batch: &'a Batch, at: usize) -> Fit<&'a [u8]> {
        let headers = batch.headers.get(at)?;
        let ((_, id), others) = headers.split_first().ok_or(Unfit)?;
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        for (name, value) in others {
            field(out, name, value)?;
        }
        out.extend_from_slice(self.partition);
        if let Some(key) = batch.keys.as_ref().and_then(|keys| keys.get(at)) {
            field(out, b"headrace-key", key)?;
        }
        let size = size(out.len() - start - 4)?;
        out[start..start + 4].copy_from_slice(&size);
        Ok(id)
    }

    fn begin(&self, out: &mut Vec<u8>, kind: u8) -> usize {
        out.push(kind);
        out.extend_from_slice(&self.channel.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.len()
    }
}

/// Ends the frame whose payload begins at `start`.
fn end(out: &mut Vec<u8>, start: usize) -> Fit<()> {
    let size = size(out.len() - start)?;
    out[start - 4..start].copy_from_slice(&size);
    out.push(END);
    Ok(())
}

fn size(size: usize) -> Fit<[u8; 4]> {
    u32::try_from(size).map(u32::to_be_bytes).map_err(|_| Unfit)
}

fn short(out: &mut Vec<u8>, text: &[u8]) -> Fit<()> {
    out.push(u8::try_from(text.len()).map_err(|_| Unfit)?);
    out.extend_from_slice(text);
    Ok(())
}

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Fit<()> {
    short(out, name)?;
    out.push(b'S');
    out.extend_from_slice(&size(value.len())?);
    out.extend_from_slice(value);
    Ok(())
}
