//! Prints FLOAT and DOUBLE as MySQL does, and as Python's `repr` does.

use crate::{Fit, Unfit};

/// A finite number's shortest digits: `0.DIGITS * 10**point`, without zeros at either end ("0" with point 1 for zero).
struct Digits {
    negative: bool,
    digits: [u8; 24],
    len: usize,
    point: i32,
}

fn digits_of(x: f64) -> Fit<Digits> {
    if !x.is_finite() {
        return Err(Unfit);
    }
    let mut made = Digits { negative: x.is_sign_negative(), digits: [b'0'; 24], len: 0, point: 0 };
    if x == 0.0 {
        (made.len, made.point) = (1, 1);
        return Ok(made);
    }
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(x.abs()).as_bytes();
    let (mut seen_point, mut before, mut exponent) = (false, 0i32, 0i32);
    let mut i = 0;
    while i < text.len() {
        match text[i] {
            b'.' => seen_point = true,
            b'e' => {
                let tail = std::str::from_utf8(&text[i + 1..]).map_err(|_| Unfit)?;
                exponent = tail.parse().map_err(|_| Unfit)?;
                break;
            }
            digit => {
                if made.len == 0 && digit == b'0' {
                    before -= i32::from(seen_point);
                } else {
                    *made.digits.get_mut(made.len).ok_or(Unfit)? = digit;
                    made.len += 1;
                    before += i32::from(!seen_point);
                }
            }
        }
        i += 1;
    }
    made.point = before + exponent;
    while made.len > 1 && made.digits[made.len - 1] == b'0' {
        made.len -= 1;
    }
    Ok(made)
}

impl Digits {
    fn digits(&self) -> &[u8] {
        &self.digits[..self.len]
    }

    fn is_whole(&self) -> bool {
        self.len as i32 <= self.point
    }

    fn plain(&self, out: &mut Vec<u8>) {
        let digits = self.digits();
        if self.point <= 0 {
            out.extend_from_slice(b"0.");
            out.resize(out.len() + (-self.point) as usize, b'0');
            out.extend_from_slice(digits);
        } else if self.is_whole() {
            out.extend_from_slice(digits);
            out.resize(out.len() + self.point as usize - digits.len(), b'0');
        } else {
            let (whole, rest) = digits.split_at(self.point as usize);
            out.extend_from_slice(whole);
            out.push(b'.');
            out.extend_from_slice(rest);
        }
    }

    fn mantissa(&self, out: &mut Vec<u8>) {
        let digits = self.digits();
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.push(b'e');
    }
}

/// Does what `headrace_common.numbers.float_text` does: MySQL's text.
pub fn float_text(out: &mut Vec<u8>, x: f64) -> Fit<()> {
    let made = digits_of(x)?;
    if made.negative {
        out.push(b'-');
    }
    let plain = if made.is_whole() { made.point <= 15 } else { made.point >= -14 };
    if plain {
        made.plain(out);
    } else {
        made.mantissa(out);
        crate::text::int(out, made.point - 1);
    }
    Ok(())
}

/// Does the same for a number in a JSON document, which stays a double: with `.0` if it looks whole.
pub fn json_double(out: &mut Vec<u8>, x: f64) -> Fit<()> {
    let at = out.len();
    float_text(out, x)?;
    if !out[at..].iter().any(|&byte| byte == b'.' || byte == b'e') {
        out.extend_from_slice(b".0");
    }
    Ok(())
}

/// Does what Python's `repr` of a float does.
pub fn repr(out: &mut Vec<u8>, x: f64) -> Fit<()> {
    let made = digits_of(x)?;
    if made.negative {
        out.push(b'-');
    }
    let exponent = made.point - 1;
    if (-4..16).contains(&exponent) {
        made.plain(out);
        if made.is_whole() {
            out.extend_from_slice(b".0");
        }
        return Ok(());
    }
    made.mantissa(out);
    out.push(if exponent < 0 { b'-' } else { b'+' });
    crate::text::padded(out, u64::from(exponent.unsigned_abs()), 2);
    Ok(())
}

/// Does what `headrace_common.numbers.float32` does: the shortest decimal number, from six digits on, that is the same
/// FLOAT.
pub fn float32(x: f32) -> Fit<f64> {
    if !x.is_finite() {
        return Err(Unfit);
    }
    for digits in 5..8 {
        let short: f64 = format!("{:.*e}", digits, f64::from(x)).parse().map_err(|_| Unfit)?;
        if (short as f32).to_bits() == x.to_bits() {
            return Ok(short);
        }
    }
    format!("{:.8e}", f64::from(x)).parse().map_err(|_| Unfit)
}

/// Writes a number with this many digits after the point: its shortest digits and zeros, or the exact number rounded, if
/// it has more.
pub(crate) fn fixed(out: &mut Vec<u8>, x: f64, decimals: usize) -> Fit<()> {
    let made = digits_of(x)?;
    let after = made.len as i32 - made.point;
    if x != 0.0 && after > decimals as i32 {
        out.extend_from_slice(format!("{x:.decimals$}").as_bytes());
        return Ok(());
    }
    if made.negative {
        out.push(b'-');
    }
    made.plain(out);
    if decimals > 0 {
        if made.is_whole() {
            out.push(b'.');
        }
        out.resize(out.len() + decimals - after.max(0) as usize, b'0');
    }
    Ok(())
}
