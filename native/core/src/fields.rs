//! Columns: the layout of each in a row image, and how a format prints it.

use std::sync::Arc;

use crate::charsets::Charset;
use crate::decimal::Decimal;
use crate::temporal::{Stored, Zone};
use crate::{addresses, compressed, json, numbers, temporal, text};
use crate::{Fit, Unfit};

/// The size of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Bytes of every value.
    Fixed(usize),
    /// Bytes of the length before the value.
    Var(usize),
}

/// The type of a column.
#[derive(Debug, Clone)]
pub enum Kind {
    /// 1, 2, 3, 4 or 8 bytes, little endian.
    Int {
        /// Bytes of a value.
        size: usize,
        /// Whether it is not UNSIGNED.
        signed: bool,
    },
    /// 4 bytes, little endian.
    Float,
    /// 8 bytes, little endian.
    Double,
    /// One byte: years since 1900, or 0 for the year 0.
    Year,
    /// Groups of digits.
    Decimal(Decimal),
    /// Big endian.
    Bit {
        /// Bytes of a value, 1 to 8.
        size: usize,
    },
    /// The number of the member, from 1 on, little endian; 0 is the empty text.
    Enum {
        /// Bytes of the number, 1 or 2.
        size: usize,
        /// The members, in order.
        labels: Vec<Label>,
    },
    /// A bit a member, the lowest for the first; little endian.
    Set {
        /// Bytes of the bits, 1 to 8.
        size: usize,
        /// The members, in order; at most 64.
        labels: Vec<Label>,
    },
    /// Year, month and day in 3 bytes, little endian.
    Date,
    /// A calendar time, without a time zone.
    Datetime(Stored),
    /// In UTC, and printed in a time zone.
    Timestamp {
        /// Its form in a row image.
        stored: Stored,
        /// The time zone of the text; None is UTC.
        zone: Option<Arc<Zone>>,
    },
    /// A duration or a time of the day, which may be negative.
    Time(Stored),
    /// A text in a character set: CHAR, VARCHAR, TEXT.
    Text {
        /// Bytes of the length before the value.
        length: usize,
        /// The character set of its bytes.
        charset: Arc<Charset>,
    },
    /// A binary string: BINARY, VARBINARY, BLOB, and geometries.
    Bytes {
        /// Bytes of the length before the value.
        length: usize,
        /// The size up to which zeros are added, of BINARY; else 0.
        pad: usize,
    },
    /// MySQL's binary JSON; see [`crate::json`].
    Json {
        /// Bytes of the length before the value.
        length: usize,
    },
    /// Of MariaDB: a text or bytes, compressed.
    Compressed {
        /// Bytes of the length before the value.
        length: usize,
        /// Maximum bytes of the inflated value.
        largest: usize,
        /// The type of the inflated value.
        value: Box<Kind>,
    },
    /// Of MariaDB; 16 bytes, of which zeros at the end may be missing.
    Uuid,
    /// Of MariaDB; 16 bytes, of which zeros at the end may be missing.
    Inet6,
    /// Of MariaDB; 4 bytes, of which zeros at the end may be missing.
    Inet4,
    /// Numbers of 4 bytes, each as a FLOAT.
    Vector {
        /// Bytes of the length before the value.
        length: usize,
    },
}

/// A member of an ENUM or SET, plain and as within a JSON string.
#[derive(Debug, Clone)]
pub struct Label {
    plain: Vec<u8>,
    json: Vec<u8>,
}

impl Label {
    /// Takes the text in UTF-8.
    pub fn new(text: &[u8]) -> Self {
        let mut json = Vec::new();
        text::escape(&mut json, text);
        Self { plain: text.to_vec(), json }
    }

    fn print<const JSON: bool>(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if JSON { &self.json } else { &self.plain });
    }
}

/// How binary strings become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// Base64 with padding.
    Base64,
    /// The same, in the alphabet for URLs.
    Base64Url,
    /// Hexadecimal digits, in lower case.
    Hex,
    /// Each byte as the character of ISO 8859-1.
    Latin1,
}

/// How a format prints a column.
#[derive(Debug, Clone)]
pub enum Style {
    /// A JSON string of what MySQL prints, as in Canal.
    Text(Binary),
    /// A JSON number.
    Number,
    /// A DECIMAL, or a whole number, as base64 of Java's BigInteger.
    Unscaled,
    /// A DECIMAL as a JSON number, converted through a double.
    Real,
    /// An unsigned number that wraps into a signed one.
    Wrapped,
    /// A bit as true or false.
    Truth,
    /// Bits as base64, little endian.
    Bits(usize),
    /// Days since 1970; with the JSON of an invalid date.
    Days(Vec<u8>),
    /// Time in units of this many microseconds, since 1970 or midnight.
    Time {
        /// Microseconds of a unit.
        unit: i64,
        /// The JSON of an invalid date.
        zero: Vec<u8>,
    },
    /// `YYYY-MM-DDThh:mm:ssZ` in quotes; with the JSON of the zero value.
    Zoned(Vec<u8>),
    /// A year as a number.
    Year,
    /// A FLOAT or DOUBLE in a JSON string, with this many digits after the point.
    Decimals(usize),
    /// The text of MySQL, which is JSON.
    Json,
    /// The members of a SET as a JSON list.
    List,
    /// An object with well-known binary and SRID, and for a point with its coordinates before.
    Geometry {
        /// Whether `x` and `y` come before.
        point: bool,
    },
}

impl Kind {
    /// Returns the size that values have in a row image.
    pub fn shape(&self) -> Shape {
        match *self {
            Kind::Int { size, .. } | Kind::Bit { size } | Kind::Enum { size, .. } | Kind::Set { size, .. } => {
                Shape::Fixed(size)
            }
            Kind::Float => Shape::Fixed(4),
            Kind::Double => Shape::Fixed(8),
            Kind::Year => Shape::Fixed(1),
            Kind::Decimal(ref decimal) => Shape::Fixed(decimal.size),
            Kind::Date => Shape::Fixed(3),
            Kind::Datetime(stored) => Shape::Fixed(stored.datetime_size()),
            Kind::Timestamp { stored, .. } => Shape::Fixed(stored.timestamp_size()),
            Kind::Time(stored) => Shape::Fixed(stored.time_size()),
            Kind::Text { length, .. }
            | Kind::Bytes { length, .. }
            | Kind::Compressed { length, .. }
            | Kind::Json { length }
            | Kind::Vector { length } => Shape::Var(length),
            Kind::Uuid | Kind::Inet6 | Kind::Inet4 => Shape::Var(1),
        }
    }

    /// Returns whether any bytes are a valid value.
    pub(crate) fn takes_any(&self) -> bool {
        matches!(self, Kind::Int { .. } | Kind::Bit { .. } | Kind::Bytes { .. } | Kind::Double | Kind::Year)
    }

    /// Returns whether two values are equal, given that their bytes are not. May write to `scratch`.
    pub fn same(&self, a: &[u8], b: &[u8], scratch: &mut Vec<u8>) -> Fit<bool> {
        match *self {
            Kind::Int { .. } | Kind::Bit { .. } => Ok(false),
            Kind::Float => Ok(float(a)? == float(b)?),
            Kind::Double => Ok(double(a)? == double(b)?),
            _ => {
                scratch.clear();
                self.value(scratch, a, Binary::Base64)?;
                let end = scratch.len();
                self.value(scratch, b, Binary::Base64)?;
                Ok(scratch[..end] == scratch[end..])
            }
        }
    }

    /// Returns the value of a FLOAT or DOUBLE, as Python has it.
    pub(crate) fn number(&self, raw: &[u8]) -> Fit<f64> {
        match self {
            Kind::Float => numbers::float32(float(raw)?),
            Kind::Double => double(raw),
            _ => Err(Unfit),
        }
    }

    /// Returns a whole number, a year, or a TIME in microseconds.
    pub(crate) fn whole(&self, raw: &[u8]) -> Fit<i128> {
        Ok(match self {
            Kind::Int { signed: true, .. } => signed_int(raw).into(),
            Kind::Int { .. } => unsigned_int(raw).into(),
            Kind::Bit { .. } => raw.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte)).into(),
            Kind::Year if raw[0] == 0 => 0,
            Kind::Year => 1900 + i128::from(raw[0]),
            Kind::Time(stored) => temporal::time(raw, *stored)?.usual_micros(stored.fsp)?.into(),
            _ => return Err(Unfit),
        })
    }

    /// Writes the text of MySQL, without quotes; escaped for a JSON string.
    pub(crate) fn value(&self, out: &mut Vec<u8>, raw: &[u8], binary: Binary) -> Fit<()> {
        self.print::<true>(out, raw, binary)
    }

    /// Writes the text of MySQL, unescaped.
    pub fn plain(&self, out: &mut Vec<u8>, raw: &[u8], binary: Binary) -> Fit<()> {
        self.print::<false>(out, raw, binary)
    }

    fn print<const JSON: bool>(&self, out: &mut Vec<u8>, raw: &[u8], binary: Binary) -> Fit<()> {
        match *self {
            Kind::Int { signed: true, .. } => text::int(out, signed_int(raw)),
            Kind::Int { .. } => text::int(out, unsigned_int(raw)),
            Kind::Float => numbers::float_text(out, numbers::float32(float(raw)?)?)?,
            Kind::Double => numbers::float_text(out, double(raw)?)?,
            Kind::Year if raw[0] == 0 => out.extend_from_slice(b"0000"),
            Kind::Year => text::int(out, 1900 + u32::from(raw[0])),
            Kind::Decimal(ref decimal) => decimal.print(out, raw)?,
            Kind::Bit { .. } => text::int(out, raw.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte))),
            Kind::Enum { ref labels, .. } => {
                let index = unsigned_int(raw) as usize;
                if index > 0 {
                    labels.get(index - 1).ok_or(Unfit)?.print::<JSON>(out);
                }
            }
            Kind::Set { ref labels, .. } => set::<JSON>(out, unsigned_int(raw), labels)?,
            Kind::Date => temporal::date(raw)?.print_date(out),
            Kind::Datetime(stored) => temporal::datetime(raw, stored)?.print(out, b' ', stored.fsp),
            Kind::Timestamp { stored, ref zone } => match temporal::timestamp(raw, stored, zone.as_deref())? {
                Some(value) => value.print(out, b' ', stored.fsp),
                None => {
                    out.extend_from_slice(b"0000-00-00 00:00:00");
                    temporal::fraction(out, 0, stored.fsp);
                }
            },
            Kind::Time(stored) => temporal::time(raw, stored)?.print(out, stored.fsp),
            Kind::Text { ref charset, .. } => charset.print::<JSON>(out, raw)?,
            Kind::Bytes { pad, .. } => {
                if raw.len() < pad {
                    let mut padded = raw.to_vec();
                    padded.resize(pad, 0);
                    bytes::<JSON>(out, &padded, binary);
                } else {
                    bytes::<JSON>(out, raw, binary);
                }
            }
            Kind::Compressed { largest, ref value, .. } => {
                value.print::<JSON>(out, &compressed::column(raw, largest)?, binary)?;
            }
            Kind::Uuid => addresses::uuid(out, raw)?,
            Kind::Inet6 => addresses::inet6(out, raw)?,
            Kind::Inet4 => addresses::inet4(out, raw)?,
            Kind::Vector { .. } => vector(out, raw)?,
            Kind::Json { .. } if !JSON => json::json_text(out, raw)?,
            Kind::Json { .. } => {
                let mut document = Vec::with_capacity(2 * raw.len());
                json::json_text(&mut document, raw)?;
                text::escape(out, &document);
            }
        }
        Ok(())
    }
}

/// Writes a VECTOR as a JSON list, each number as the shortest one that gives the same bytes.
fn vector(out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
    if raw.len() % 4 != 0 {
        return Err(Unfit);
    }
    out.push(b'[');
    for (i, one) in raw.chunks_exact(4).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        let value = float(one)?;
        if value == 0.0 {
            out.extend_from_slice(if value.is_sign_negative() { b"-0.0" } else { b"0" });
        } else {
            numbers::float_text(out, numbers::float32(value)?)?;
        }
    }
    out.push(b']');
    Ok(())
}

fn bytes<const JSON: bool>(out: &mut Vec<u8>, raw: &[u8], binary: Binary) {
    match binary {
        Binary::Base64 => text::base64(out, raw, false),
        Binary::Base64Url => text::base64(out, raw, true),
        Binary::Hex => text::hex(out, raw),
        Binary::Latin1 => text::latin1::<JSON>(out, raw),
    }
}

fn set<const JSON: bool>(out: &mut Vec<u8>, bits: u64, labels: &[Label]) -> Fit<()> {
    for (i, label) in members(bits, labels)?.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        label.print::<JSON>(out);
    }
    Ok(())
}

/// Returns the members that a value of a SET has.
fn members(bits: u64, labels: &[Label]) -> Fit<impl Iterator<Item = &Label>> {
    if labels.len() < 64 && bits >> labels.len() != 0 {
        return Err(Unfit);
    }
    Ok(labels.iter().enumerate().filter(move |(i, _)| bits >> i & 1 == 1).map(|(_, label)| label))
}

pub(crate) fn unsigned_int(raw: &[u8]) -> u64 {
    raw.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

fn signed_int(raw: &[u8]) -> i64 {
    let spare = 64 - 8 * raw.len() as u32;
    (unsigned_int(raw) << spare) as i64 >> spare
}

fn float(raw: &[u8]) -> Fit<f32> {
    Ok(f32::from_le_bytes(raw.try_into().map_err(|_| Unfit)?))
}

fn double(raw: &[u8]) -> Fit<f64> {
    Ok(f64::from_le_bytes(raw.try_into().map_err(|_| Unfit)?))
}

impl Style {
    /// Writes a value that is not NULL as the text in a JSON string would be, without escapes. Refuses a style that is
    /// no text.
    pub(crate) fn plain(&self, kind: &Kind, out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
        match (self, kind) {
            (Style::Text(binary), _) => kind.plain(out, raw, *binary),
            (Style::Decimals(decimals), Kind::Float) => numbers::fixed(out, float(raw)?.into(), *decimals),
            (Style::Decimals(decimals), Kind::Double) => numbers::fixed(out, double(raw)?, *decimals),
            _ => Err(Unfit),
        }
    }

    /// Writes a value that is not NULL as JSON.
    pub fn print(&self, kind: &Kind, out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
        match (self, kind) {
            (Style::Text(binary), _) => {
                out.push(b'"');
                kind.value(out, raw, *binary)?;
                out.push(b'"');
            }
            (Style::Number, Kind::Float) => numbers::repr(out, numbers::float32(float(raw)?)?)?,
            (Style::Number, Kind::Double) => numbers::repr(out, double(raw)?)?,
            (Style::Number, Kind::Int { .. }) => kind.value(out, raw, Binary::Base64)?,
            (Style::Unscaled, Kind::Decimal(decimal)) => {
                let mut digits = Vec::with_capacity(70);
                let negative = decimal.digits(&mut digits, raw)?;
                big_integer(out, &digits, negative);
            }
            (Style::Unscaled, Kind::Int { signed: false, .. }) => {
                integer_bytes(out, &unsigned_int(raw).to_be_bytes(), false);
            }
            (Style::Real, Kind::Decimal(decimal)) => {
                let mut digits = Vec::with_capacity(70);
                decimal.print(&mut digits, raw)?;
                let value: f64 = std::str::from_utf8(&digits).ok().and_then(|text| text.parse().ok()).ok_or(Unfit)?;
                numbers::repr(out, value)?;
            }
            (Style::Wrapped, Kind::Int { .. }) => text::int(out, unsigned_int(raw) as i64),
            (Style::Truth, Kind::Bit { .. }) => {
                out.extend_from_slice(if raw.iter().any(|&byte| byte != 0) { b"true" } else { b"false" });
            }
            (Style::Bits(size), Kind::Bit { .. }) => {
                if raw.len() != *size {
                    return Err(Unfit);
                }
                let turned: Vec<u8> = raw.iter().rev().copied().collect();
                out.push(b'"');
                text::base64(out, &turned, false);
                out.push(b'"');
            }
            (Style::Days(zero), Kind::Date) => match temporal::date(raw)?.days() {
                Some(days) => text::int(out, days),
                None => out.extend_from_slice(zero),
            },
            (Style::Time { unit, zero }, Kind::Datetime(stored)) => {
                let value = temporal::datetime(raw, *stored)?;
                match value.days() {
                    Some(days) => {
                        let micros = days * 86_400_000_000 + value.micros_of_day(stored.fsp);
                        text::int(out, micros.div_euclid(*unit));
                    }
                    None => out.extend_from_slice(zero),
                }
            }
            // Milliseconds of a time are truncated towards zero.
            (Style::Time { unit, .. }, Kind::Time(stored)) => {
                text::int(out, temporal::time(raw, *stored)?.micros(stored.fsp) / unit);
            }
            (Style::Zoned(zero), Kind::Timestamp { stored, .. }) => match temporal::timestamp(raw, *stored, None)? {
                Some(value) => {
                    out.push(b'"');
                    value.print(out, b'T', stored.fsp);
                    out.extend_from_slice(b"Z\"");
                }
                None => out.extend_from_slice(zero),
            },
            (Style::Decimals(_), Kind::Float | Kind::Double) => {
                out.push(b'"');
                self.plain(kind, out, raw)?;
                out.push(b'"');
            }
            (
                Style::Json,
                Kind::Vector { .. }
                | Kind::Json { .. }
                | Kind::Text { .. } // a document that was selected
                | Kind::Int { .. }
                | Kind::Bit { .. }
                | Kind::Decimal(_)
                | Kind::Float
                | Kind::Double,
            ) => kind.plain(out, raw, Binary::Base64)?,
            (Style::List, Kind::Set { labels, .. }) => {
                out.push(b'[');
                for (i, label) in members(unsigned_int(raw), labels)?.enumerate() {
                    out.extend_from_slice(if i > 0 { b",\"" } else { b"\"" });
                    label.print::<true>(out);
                    out.push(b'"');
                }
                out.push(b']');
            }
            (Style::Geometry { point }, Kind::Bytes { .. }) => geometry(out, raw, *point)?,
            (Style::Year, Kind::Year) => text::int(out, if raw[0] == 0 { 0 } else { 1900 + u32::from(raw[0]) }),
            _ => return Err(Unfit),
        }
        Ok(())
    }
}

/// Writes base64 of decimal digits as Java's BigInteger writes the number: two's complement, in as few bytes as
/// possible.
fn big_integer(out: &mut Vec<u8>, digits: &[u8], negative: bool) {
    if digits.len() < 20 {
        let value = digits.iter().fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0'));
        return integer_bytes(out, &value.to_be_bytes(), negative);
    }
    let mut bytes = [0u8; 32];
    for &digit in digits {
        let mut carry = u32::from(digit - b'0');
        for byte in bytes.iter_mut().rev() {
            let value = u32::from(*byte) * 10 + carry;
            *byte = value as u8;
            carry = value >> 8;
        }
    }
    integer_bytes(out, &bytes, negative);
}

/// Does the same for a magnitude in big endian.
fn integer_bytes(out: &mut Vec<u8>, size: &[u8], negative: bool) {
    let mut bytes = Vec::with_capacity(size.len() + 1);
    bytes.push(0);
    bytes.extend_from_slice(size);
    let negative = negative && size.iter().any(|&byte| byte != 0);
    if negative {
        let mut carry = true;
        for byte in bytes.iter_mut().rev() {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    let spare = if negative { 0xFF } else { 0 };
    let needed = |at: usize| bytes[at] != spare || (bytes[at + 1] ^ spare) & 0x80 != 0;
    let first = (0..bytes.len() - 1).find(|&at| needed(at)).unwrap_or(bytes.len() - 1);
    out.push(b'"');
    text::base64(out, &bytes[first..], false);
    out.push(b'"');
}

/// Writes MySQL's own form of a geometry, the SRID in 4 bytes little endian and well-known binary, as Debezium does.
fn geometry(out: &mut Vec<u8>, raw: &[u8], point: bool) -> Fit<()> {
    let (srid, wkb) = raw.split_first_chunk::<4>().ok_or(Unfit)?;
    out.push(b'{');
    if point {
        let number = |at: usize| -> Fit<f64> {
            let eight: [u8; 8] = wkb.get(at..at + 8).ok_or(Unfit)?.try_into().map_err(|_| Unfit)?;
            Ok(if wkb[0] == 0 { f64::from_be_bytes(eight) } else { f64::from_le_bytes(eight) })
        };
        for (name, at) in [(&b"\"x\":"[..], 5), (&b"\"y\":"[..], 13)] {
            out.extend_from_slice(name);
            numbers::repr(out, number(at)?)?;
            out.push(b',');
        }
    }
    out.extend_from_slice(b"\"wkb\":\"");
    text::base64(out, wkb, false);
    out.extend_from_slice(b"\",\"srid\":");
    match u32::from_le_bytes(*srid) {
        0 => out.extend_from_slice(b"null"),
        srid => text::int(out, srid),
    }
    out.push(b'}');
    Ok(())
}
