//! DECIMAL: groups of nine digits in four bytes, big endian, with short groups at both ends.

use crate::text;
use crate::{Fit, Unfit};

/// Bytes of 0 to 9 digits.
const BYTES: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];
const POWERS: [u32; 10] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
const LARGEST: usize = 65;

/// The layout of a DECIMAL(precision, scale).
#[derive(Debug, Clone, Copy)]
pub struct Decimal {
    whole: usize,
    scale: usize,
    /// Bytes in a row image.
    pub(crate) size: usize,
}

impl Decimal {
    /// Returns the layout. Refuses what no server has.
    pub fn new(precision: usize, scale: usize) -> Fit<Self> {
        if precision == 0 || precision > LARGEST || scale > precision {
            return Err(Unfit);
        }
        let whole = precision - scale;
        let size = whole / 9 * 4 + BYTES[whole % 9] + scale / 9 * 4 + BYTES[scale % 9];
        Ok(Self { whole, scale, size })
    }

    /// Writes the number with all digits of its scale.
    pub(crate) fn print(&self, out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
        let mask = self.sign(out, raw)?;
        let (mut at, mut begun) = (0, false);
        let mut lead = |out: &mut Vec<u8>, value: u32, digits: usize| {
            if begun {
                text::padded(out, u64::from(value), digits);
            } else if value != 0 {
                text::int(out, value);
                begun = true;
            }
        };
        let short = self.whole % 9;
        lead(out, group(raw, &mut at, short, mask)?, short);
        for _ in 0..self.whole / 9 {
            lead(out, group(raw, &mut at, 9, mask)?, 9);
        }
        if !begun {
            out.push(b'0');
        }
        if self.scale > 0 {
            out.push(b'.');
            self.fraction(out, raw, at, mask)?;
        }
        Ok(())
    }

    /// Writes the digits without sign, point and leading zeros; returns whether the number is negative.
    pub(crate) fn digits(&self, out: &mut Vec<u8>, raw: &[u8]) -> Fit<bool> {
        let at = out.len();
        self.print(out, raw)?;
        let negative = out[at] == b'-';
        let mut kept = at;
        for i in at..out.len() {
            if out[i].is_ascii_digit() && (kept > at || out[i] != b'0') {
                out[kept] = out[i];
                kept += 1;
            }
        }
        out.truncate(kept);
        Ok(negative)
    }

    /// Writes a number, given as MySQL prints it, as in a row image.
    pub(crate) fn pack(&self, out: &mut Vec<u8>, text: &[u8]) -> Fit<()> {
        let (digits, mask) = text.strip_prefix(b"-").map_or((text, 0), |digits| (digits, 0xFF));
        let (whole, fraction) = match digits.iter().position(|&byte| byte == b'.') {
            Some(point) => (&digits[..point], &digits[point + 1..]),
            None => (digits, &digits[..0]),
        };
        let zeros = whole.iter().take_while(|&&byte| byte == b'0').count();
        if whole.is_empty() || whole.len() - zeros > self.whole || fraction.len() != self.scale {
            return Err(Unfit);
        }
        let (whole, start) = (&whole[zeros..], out.len());
        let missing = self.whole - whole.len();
        let mut digit = (0..missing).map(|_| b'0').chain(whole.iter().copied()).chain(fraction.iter().copied());
        let (first, last) = (self.whole % 9, self.scale % 9);
        let nines = |digits: usize| std::iter::repeat_n(9, digits / 9);
        for size in [first].into_iter().chain(nines(self.whole)).chain(nines(self.scale)).chain([last]) {
            let mut value = 0u32;
            for byte in digit.by_ref().take(size) {
                if !byte.is_ascii_digit() {
                    return Err(Unfit);
                }
                value = value * 10 + u32::from(byte - b'0');
            }
            out.extend(value.to_be_bytes()[4 - BYTES[size]..].iter().map(|byte| byte ^ mask));
        }
        out[start] ^= 0x80;
        Ok(())
    }

    fn sign(&self, out: &mut Vec<u8>, raw: &[u8]) -> Fit<u8> {
        if raw.len() != self.size {
            return Err(Unfit);
        }
        if raw[0] & 0x80 != 0 {
            return Ok(0);
        }
        out.push(b'-');
        Ok(0xFF)
    }

    fn fraction(&self, out: &mut Vec<u8>, raw: &[u8], mut at: usize, mask: u8) -> Fit<()> {
        for _ in 0..self.scale / 9 {
            text::padded(out, u64::from(group(raw, &mut at, 9, mask)?), 9);
        }
        let short = self.scale % 9;
        if short > 0 {
            text::padded(out, u64::from(group(raw, &mut at, short, mask)?), short);
        }
        Ok(())
    }
}

/// Returns the next group; the first bit of all bytes is inverted, and for a negative number also every bit.
fn group(raw: &[u8], at: &mut usize, digits: usize, mask: u8) -> Fit<u32> {
    let mut value = 0u32;
    let mut sign = if *at == 0 { 0x80 } else { 0 };
    for byte in &raw[*at..*at + BYTES[digits]] {
        value = value << 8 | u32::from(byte ^ mask ^ sign);
        sign = 0;
    }
    *at += BYTES[digits];
    if value >= POWERS[digits] {
        return Err(Unfit);
    }
    Ok(value)
}
