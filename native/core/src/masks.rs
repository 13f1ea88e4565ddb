//! Masks: columns whose values are not published unchanged (`headrace/rules/masks.py`).

use sha2::{Digest, Sha256};

use crate::compressed;
use crate::fields::{Binary, Kind};
use crate::numbers;
use crate::text;
use crate::Fit;

/// What is published instead of a value. NULL stays NULL.
#[derive(Debug, Clone)]
pub enum Mask {
    /// NULL.
    Null,
    /// This text.
    Fixed(Vec<u8>),
    /// The first characters of a text, or bytes of a binary string.
    Truncate(usize),
    /// The hexadecimal digits of the value's HMAC; boxed, because it is large and rare.
    Hash(Box<Hmac>),
}

/// HMAC-SHA-256 (RFC 2104) of one salt, up to the message.
#[derive(Debug, Clone)]
pub struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    const BLOCK: usize = 64;

    /// Takes the salt, which is HMAC's key.
    pub fn new(salt: &[u8]) -> Self {
        let mut block = [0u8; Self::BLOCK];
        if salt.len() > Self::BLOCK {
            block[..32].copy_from_slice(&Sha256::digest(salt));
        } else {
            block[..salt.len()].copy_from_slice(salt);
        }
        let begun = |pad: u8| Sha256::new_with_prefix(block.map(|byte| byte ^ pad));
        Self { inner: begun(0x36), outer: begun(0x5C) }
    }

    fn of(&self, message: &[u8]) -> [u8; 32] {
        let inner = self.inner.clone().chain_update(message).finalize();
        self.outer.clone().chain_update(inner).finalize().into()
    }
}

/// A masked value: its bytes, and whether they are text in UTF-8 or a binary string.
pub struct Masked {
    pub(crate) bytes: Vec<u8>,
    is_text: bool,
}

impl Masked {
    /// Writes it in quotes for JSON, or plain.
    pub fn print<const JSON: bool>(&self, out: &mut Vec<u8>, binary: Binary) -> Fit<()> {
        if self.is_text {
            text::put_text::<JSON>(out, &self.bytes);
            return Ok(());
        }
        let kind = Kind::Bytes { length: 1, pad: 0 };
        if JSON {
            kind.value(out, &self.bytes, binary)
        } else {
            kind.plain(out, &self.bytes, binary)
        }
    }
}

impl Mask {
    /// Returns whether the published value does not depend on the original.
    pub(crate) fn hides_all(&self) -> bool {
        matches!(self, Mask::Null | Mask::Fixed(_))
    }

    /// Returns what is published instead of a value that is not NULL; None for NULL.
    pub fn apply(&self, kind: &Kind, raw: &[u8]) -> Fit<Option<Masked>> {
        let made = match self {
            Mask::Null => return Ok(None),
            Mask::Fixed(text) => Masked { bytes: text.clone(), is_text: true },
            Mask::Truncate(length) => {
                let Masked { mut bytes, is_text } = original(kind, raw)?;
                let end = if is_text {
                    // The text is valid UTF-8, of which a character begins with no continuation byte.
                    let begins = bytes.iter().enumerate().filter(|(_, byte)| **byte & 0xC0 != 0x80);
                    begins.map(|(at, _)| at).nth(*length).unwrap_or(bytes.len())
                } else {
                    bytes.len().min(*length)
                };
                bytes.truncate(end);
                Masked { bytes, is_text }
            }
            Mask::Hash(hmac) => {
                let mut bytes = Vec::with_capacity(64);
                text::hex(&mut bytes, &hmac.of(&original(kind, raw)?.bytes));
                Masked { bytes, is_text: true }
            }
        };
        Ok(Some(made))
    }
}

/// Returns a value as rows have it in Python: binary strings as they are, everything else as text.
fn original(kind: &Kind, raw: &[u8]) -> Fit<Masked> {
    let mut bytes = Vec::new();
    let is_text = match kind {
        Kind::Compressed { largest, value, .. } => return original(value, &compressed::column(raw, *largest)?),
        Kind::Bytes { pad, .. } => {
            bytes.extend_from_slice(raw);
            bytes.resize(raw.len().max(*pad), 0);
            false
        }
        Kind::Float | Kind::Double => {
            numbers::repr(&mut bytes, kind.number(raw)?)?;
            if bytes.ends_with(b".0") {
                bytes.truncate(bytes.len() - 2);
            }
            true
        }
        _ => {
            kind.plain(&mut bytes, raw, Binary::Base64)?;
            true
        }
    };
    Ok(Masked { bytes, is_text })
}
