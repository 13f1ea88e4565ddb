//! JSON strings, numbers as digits, and base64, appended to a buffer.

/// Which bytes JSON must escape, as Python's `json` does.
const ESCAPED: [bool; 256] = {
    let mut table = [false; 256];
    let mut i = 0;
    while i < 0x20 {
        table[i] = true;
        i += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};
const HEX: &[u8; 16] = b"0123456789abcdef";
/// 00 to 99.
const PAIRS: &[u8; 200] = b"0001020304050607080910111213141516171819\
2021222324252627282930313233343536373839\
4041424344454647484950515253545556575859\
6061626364656667686970717273747576777879\
8081828384858687888990919293949596979899";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What `put!` writes: bytes unchanged, and integers as digits.
pub(crate) trait Part {
    fn put(self, out: &mut Vec<u8>);
}

impl<T: AsRef<[u8]> + ?Sized> Part for &T {
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_ref());
    }
}

macro_rules! integers {
    ($($of:ty)*) => {$(
        impl Part for $of {
            fn put(self, out: &mut Vec<u8>) {
                int(out, self);
            }
        }
    )*};
}
integers!(u32 u64 usize i64);

/// Writes parts one after the other.
macro_rules! put {
    ($out:expr, $($part:expr),+) => {{
        $(crate::text::Part::put($part, $out);)+
    }};
}
pub(crate) use put;

/// Returns how many of eight bytes come before the first that must be escaped.
fn plain(eight: &[u8; 8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let word = u64::from_le_bytes(*eight);
    let below = |word: u64, byte: u64| word.wrapping_sub(ONES * byte) & !word & ONES << 7;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    // Results above the first may be wrong, because of carries.
    (below(word, 0x20) | is(b'"') | is(b'\\')).trailing_zeros() as usize / 8
}

/// Writes text within a JSON string, without the quotes around it.
pub fn escape(out: &mut Vec<u8>, text: &[u8]) {
    let (mut begin, mut i) = (0, 0);
    loop {
        i += text[i..].first_chunk().map_or(0, plain);
        let Some(&byte) = text.get(i) else { break };
        i += 1;
        if !ESCAPED[byte as usize] {
            continue;
        }
        out.extend_from_slice(&text[begin..i - 1]);
        begin = i;
        let short = match byte {
            b'"' => b'"',
            b'\\' => b'\\',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0C => b'f',
            _ => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[(byte >> 4) as usize]);
                out.push(HEX[(byte & 15) as usize]);
                continue;
            }
        };
        out.push(b'\\');
        out.push(short);
    }
    out.extend_from_slice(&text[begin..]);
}

/// Writes UTF-8, with `JSON` within a JSON string.
pub(crate) fn put_text<const JSON: bool>(out: &mut Vec<u8>, text: &[u8]) {
    if JSON {
        escape(out, text);
    } else {
        out.extend_from_slice(text);
    }
}

/// Writes a JSON string.
pub(crate) fn quote(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    escape(out, text);
    out.push(b'"');
}

/// Writes a JSON string, or null if it would be empty.
pub(crate) fn quote_or_null(out: &mut Vec<u8>, text: &[u8]) {
    if text.is_empty() {
        out.extend_from_slice(b"null");
    } else {
        quote(out, text);
    }
}

/// Writes an integer.
pub(crate) fn int<I: itoa::Integer>(out: &mut Vec<u8>, value: I) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes two digits of a number below 100.
pub(crate) fn pair(out: &mut Vec<u8>, value: u32) {
    let at = (value as usize % 100) * 2;
    out.extend_from_slice(&PAIRS[at..at + 2]);
}

/// Writes a number with at least this many digits.
pub(crate) fn padded(out: &mut Vec<u8>, value: u64, digits: usize) {
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(value).as_bytes();
    for _ in text.len()..digits {
        out.push(b'0');
    }
    out.extend_from_slice(text);
}

/// Writes hexadecimal digits.
pub(crate) fn hex(out: &mut Vec<u8>, raw: &[u8]) {
    for byte in raw {
        out.push(HEX[(byte >> 4) as usize]);
        out.push(HEX[(byte & 15) as usize]);
    }
}

/// Writes base64 with padding, with `url` in the alphabet for URLs.
pub(crate) fn base64(out: &mut Vec<u8>, raw: &[u8], url: bool) {
    let alphabet = if url { BASE64_URL } else { BASE64 };
    for chunk in raw.chunks(3) {
        let word = u32::from(chunk[0]) << 16
            | u32::from(*chunk.get(1).unwrap_or(&0)) << 8
            | u32::from(*chunk.get(2).unwrap_or(&0));
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(alphabet[(word >> (18 - 6 * i)) as usize & 63]);
            } else {
                out.push(b'=');
            }
        }
    }
}

/// Writes bytes as the characters of ISO 8859-1, with `JSON` within a JSON string.
pub(crate) fn latin1<const JSON: bool>(out: &mut Vec<u8>, raw: &[u8]) {
    for &byte in raw {
        if byte < 0x80 && JSON {
            escape(out, &[byte]);
        } else if byte < 0x80 {
            out.push(byte);
        } else {
            out.push(0xC0 | byte >> 6);
            out.push(0x80 | byte & 0x3F);
        }
    }
}
