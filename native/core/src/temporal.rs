//! DATE, DATETIME, TIMESTAMP and TIME as in the binlog.

use crate::text;
use crate::{Fit, Unfit};

/// 838:59:59.
const MOST_MICROS: i64 = ((838 * 60 + 59) * 60 + 59) * 1_000_000;
const POWERS: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];

/// Seconds that are added to a TIME with a fraction, so that it is never negative; and the limit of its size.
const TIME_ZERO: u64 = 839 * 3600;

/// Bytes of values from before MySQL 5.6, by digits of the fraction.
const OLD_DATETIME: [usize; 7] = [8, 6, 6, 7, 7, 7, 8];
const OLD_TIMESTAMP: [usize; 7] = [4, 5, 5, 6, 6, 7, 7];
const OLD_TIME: [usize; 7] = [3, 4, 4, 5, 5, 5, 6];

/// A calendar time, or MySQL's form of an invalid one: month and day may be 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Civil {
    pub year: u32,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    /// In units of 10 ** -(2 * bytes).
    pub fraction: u64,
}

fn big_endian(raw: &[u8]) -> u64 {
    raw.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Returns the bytes of a fraction with this many digits.
fn fraction_size(fsp: usize) -> usize {
    fsp.div_ceil(2)
}

fn fraction_of(raw: &[u8]) -> Fit<u64> {
    let value = big_endian(raw);
    if value >= POWERS[2 * raw.len()] {
        return Err(Unfit);
    }
    Ok(value)
}

/// Writes the point and the first digits of a fraction; nothing without digits.
pub(crate) fn fraction(out: &mut Vec<u8>, value: u64, fsp: usize) {
    if fsp > 0 {
        out.push(b'.');
        let at = out.len();
        text::padded(out, value, 2 * fraction_size(fsp));
        out.truncate(at + fsp);
    }
}

/// Reads DATE: 3 bytes little endian.
pub(crate) fn date(raw: &[u8]) -> Fit<Civil> {
    let v = u32::from(raw[0]) | u32::from(raw[1]) << 8 | u32::from(raw[2]) << 16;
    let made = Civil { year: v >> 9, month: v >> 5 & 15, day: v & 31, ..Civil::default() };
    if made.year > 9999 || made.month > 12 {
        return Err(Unfit);
    }
    Ok(made)
}

/// How a column stores its values.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stored {
    /// Digits after the point.
    pub fsp: usize,
    /// Whether as before MySQL 5.6.
    pub old: bool,
}

impl Stored {
    /// Returns the bytes of a DATETIME.
    pub(crate) fn datetime_size(self) -> usize {
        self.size(OLD_DATETIME, 5)
    }

    /// Returns the bytes of a TIMESTAMP.
    pub(crate) fn timestamp_size(self) -> usize {
        self.size(OLD_TIMESTAMP, 4)
    }

    /// Returns the bytes of a TIME.
    pub(crate) fn time_size(self) -> usize {
        self.size(OLD_TIME, 3)
    }

    fn size(self, old: [usize; 7], whole: usize) -> usize {
        if self.old {
            return old[self.fsp];
        }
        whole + fraction_size(self.fsp)
    }
}

/// Reads DATETIME; since MySQL 5.6 that is 5 bytes big endian, and the fraction.
pub(crate) fn datetime(raw: &[u8], stored: Stored) -> Fit<Civil> {
    if stored.old {
        return old_datetime(raw, stored.fsp);
    }
    let v = big_endian(&raw[..5]).checked_sub(0x80_0000_0000).ok_or(Unfit)?;
    let months = v >> 22;
    let made = Civil {
        year: (months / 13) as u32,
        month: (months % 13) as u32,
        day: (v >> 17 & 31) as u32,
        hour: (v >> 12 & 31) as u32,
        minute: (v >> 6 & 63) as u32,
        second: (v & 63) as u32,
        fraction: fraction_of(&raw[5..])?,
    };
    if made.year > 9999 || made.hour > 23 {
        return Err(Unfit);
    }
    Ok(made)
}

/// A time zone: from which second since 1970 on local time is that of UTC plus how many seconds.
#[derive(Debug)]
pub struct Zone(Vec<(u32, i32)>);

impl Zone {
    /// Takes the changes in order; the first is at 0, and no offset exceeds a day.
    pub fn new(changes: Vec<(u32, i32)>) -> Fit<Self> {
        let ordered = changes.windows(2).all(|two| two[0].0 < two[1].0);
        let close = changes.iter().all(|(_, offset)| offset.abs() <= 86_400);
        if changes.first().map(|first| first.0) != Some(0) || !ordered || !close {
            return Err(Unfit);
        }
        Ok(Self(changes))
    }

    fn offset(&self, seconds: u32) -> i32 {
        self.0[self.0.partition_point(|change| change.0 <= seconds) - 1].1
    }
}

/// Reads TIMESTAMP as the time of a zone; None for the zero value. Since MySQL 5.6 that is seconds in 4 bytes big endian,
/// and the fraction.
pub(crate) fn timestamp(raw: &[u8], stored: Stored, zone: Option<&Zone>) -> Fit<Option<Civil>> {
    if raw.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let (seconds, fraction) = if stored.old {
        old_timestamp(raw, stored.fsp)?
    } else {
        (big_endian(&raw[..4]) as u32, fraction_of(&raw[4..])?)
    };
    // Counted from a day earlier, because local time may be before 1970.
    let local = (i64::from(seconds) + 86_400 + i64::from(zone.map_or(0, |zone| zone.offset(seconds)))) as u64;
    let (year, month, day) = civil_of((local / 86_400) as u32 + 719_467);
    let rest = (local % 86_400) as u32;
    Ok(Some(Civil { year, month, day, hour: rest / 3600, minute: rest / 60 % 60, second: rest % 60, fraction }))
}

/// Returns year, month and day of a number of days since 0000-03-01.
fn civil_of(days: u32) -> (u32, u32, u32) {
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u32::from(month <= 2), month, day)
}

impl Civil {
    /// Writes `YYYY-MM-DD`.
    pub(crate) fn print_date(&self, out: &mut Vec<u8>) {
        text::pair(out, self.year / 100);
        text::pair(out, self.year % 100);
        out.push(b'-');
        text::pair(out, self.month);
        out.push(b'-');
        text::pair(out, self.day);
    }

    /// Writes `hh:mm:ss` and the fraction.
    fn print_time(&self, out: &mut Vec<u8>, fsp: usize) {
        text::padded(out, u64::from(self.hour), 2);
        out.push(b':');
        text::pair(out, self.minute);
        out.push(b':');
        text::pair(out, self.second);
        fraction(out, self.fraction, fsp);
    }

    /// Writes both.
    pub(crate) fn print(&self, out: &mut Vec<u8>, between: u8, fsp: usize) {
        self.print_date(out);
        out.push(between);
        self.print_time(out, fsp);
    }

    /// Returns the days since 1970-01-01 by the Gregorian rule; None for an invalid day.
    pub(crate) fn days(&self) -> Option<i64> {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let longest = match self.month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 => 28 + u32::from(leap),
            _ => return None,
        };
        if self.day == 0 || self.day > longest {
            return None;
        }
        let year = i64::from(self.year) - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let of_era = year.rem_euclid(400);
        let shifted_month = i64::from((self.month + 9) % 12);
        let of_year = (153 * shifted_month + 2) / 5 + i64::from(self.day) - 1;
        Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
    }

    /// Returns the microseconds since midnight; the fraction has this many digits, and further ones are ignored.
    pub(crate) fn micros_of_day(&self, fsp: usize) -> i64 {
        let seconds = i64::from((self.hour * 60 + self.minute) * 60 + self.second);
        seconds * 1_000_000 + micros(self.fraction, fsp)
    }
}

fn micros(value: u64, fsp: usize) -> i64 {
    if fsp == 0 {
        return 0;
    }
    let digits = 2 * fraction_size(fsp);
    (value / POWERS[digits - fsp] * POWERS[6 - fsp]) as i64
}

/// TIME; since MySQL 5.6 that is 3 bytes big endian around 0x800000, and the fraction; negative as a whole. Hours go up to
/// 838 and beyond.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    negative: bool,
    clock: Civil,
}

pub(crate) fn time(raw: &[u8], stored: Stored) -> Fit<Time> {
    if stored.old {
        let (negative, clock) = old_time(raw, stored.fsp)?;
        return Ok(Time { negative, clock });
    }
    let width = 8 * (raw.len() - 3);
    let value = big_endian(raw) as i64 - (0x80_0000i64 << width);
    let size = value.unsigned_abs();
    let (whole, fraction) = ((size >> width) as u32, size & ((1 << width) - 1));
    if fraction >= POWERS[2 * (raw.len() - 3)] {
        return Err(Unfit);
    }
    let (hour, minute, second) = (whole >> 12, whole >> 6 & 63, whole & 63);
    Ok(Time { negative: value < 0, clock: Civil { hour, minute, second, fraction, ..Civil::default() } })
}

impl Time {
    /// Writes `[-]hh:mm:ss` and the fraction.
    pub(crate) fn print(&self, out: &mut Vec<u8>, fsp: usize) {
        if self.negative {
            out.push(b'-');
        }
        self.clock.print_time(out, fsp);
    }

    /// Returns it in microseconds.
    pub(crate) fn micros(&self, fsp: usize) -> i64 {
        self.clock.micros_of_day(fsp) * if self.negative { -1 } else { 1 }
    }

    /// Does the same for a time within MySQL's limits, and refuses others.
    pub(crate) fn usual_micros(&self, fsp: usize) -> Fit<i64> {
        let micros = self.micros(fsp);
        let usual = self.clock.minute < 60 && self.clock.second < 60 && micros.abs() <= MOST_MICROS;
        usual.then_some(micros).ok_or(Unfit)
    }
}

// As MySQL prints them, to what a row image has since MySQL 5.6.

/// Reads `digits` digits.
fn digits(text: &[u8], digits: std::ops::Range<usize>) -> Fit<u32> {
    let one = |value: u32, byte: &u8| byte.is_ascii_digit().then(|| value * 10 + u32::from(byte - b'0')).ok_or(Unfit);
    text.get(digits).ok_or(Unfit)?.iter().try_fold(0, one)
}

fn require(text: &[u8], at: usize, byte: u8) -> Fit<()> {
    (text.get(at) == Some(&byte)).then_some(()).ok_or(Unfit)
}

/// Reads `YYYY-MM-DD`.
fn read_date(text: &[u8]) -> Fit<Civil> {
    require(text, 4, b'-')?;
    require(text, 7, b'-')?;
    let made =
        Civil { year: digits(text, 0..4)?, month: digits(text, 5..7)?, day: digits(text, 8..10)?, ..Civil::default() };
    (made.month <= 12 && made.day <= 31).then_some(made).ok_or(Unfit)
}

/// Reads what `hh` ends at, `:mm:ss` and the fraction: minute, second and fraction.
fn read_rest(text: &[u8], at: usize, fsp: usize) -> Fit<(u32, u32, u64)> {
    require(text, at, b':')?;
    require(text, at + 3, b':')?;
    let (minute, second, end) = (digits(text, at + 1..at + 3)?, digits(text, at + 4..at + 6)?, at + 6);
    let mut fraction = 0;
    if fsp > 0 {
        require(text, end, b'.')?;
        fraction = scaled(digits(text, end + 1..end + 1 + fsp)?.into(), fsp);
    }
    let size = end + fsp + usize::from(fsp > 0);
    (text.len() == size && minute < 60 && second < 60).then_some((minute, second, fraction)).ok_or(Unfit)
}

/// Reads `YYYY-MM-DD hh:mm:ss` and the fraction.
fn read_datetime(text: &[u8], fsp: usize) -> Fit<Civil> {
    let date = read_date(text)?;
    require(text, 10, b' ')?;
    let hour = digits(text, 11..13)?;
    let (minute, second, fraction) = read_rest(text, 13, fsp)?;
    (hour < 24).then_some(Civil { hour, minute, second, fraction, ..date }).ok_or(Unfit)
}

/// Writes the last bytes of a number, big endian.
fn put_last(out: &mut Vec<u8>, value: u64, size: usize) {
    out.extend_from_slice(&value.to_be_bytes()[8 - size..]);
}

/// Writes DATE.
pub(crate) fn pack_date(out: &mut Vec<u8>, text: &[u8]) -> Fit<()> {
    let of = if text.len() == 10 { read_date(text)? } else { return Err(Unfit) };
    out.extend_from_slice(&(of.day | of.month << 5 | of.year << 9).to_le_bytes()[..3]);
    Ok(())
}

/// Writes DATETIME.
pub(crate) fn pack_datetime(out: &mut Vec<u8>, text: &[u8], fsp: usize) -> Fit<()> {
    let of = read_datetime(text, fsp)?;
    let days = u64::from(of.year * 13 + of.month) << 5 | u64::from(of.day);
    let whole = days << 17 | u64::from(of.hour << 12 | of.minute << 6 | of.second);
    put_last(out, whole + 0x80_0000_0000, 5);
    put_last(out, of.fraction, fraction_size(fsp));
    Ok(())
}

/// Writes TIMESTAMP, given in UTC.
pub(crate) fn pack_timestamp(out: &mut Vec<u8>, text: &[u8], fsp: usize) -> Fit<()> {
    let of = read_datetime(text, fsp)?;
    let seconds = match of.days() {
        Some(days) => {
            let seconds = days * 86_400 + of.micros_of_day(0) / 1_000_000;
            u32::try_from(seconds).ok().filter(|&seconds| seconds > 0).ok_or(Unfit)?
        }
        None if of == Civil::default() => 0,
        None => return Err(Unfit),
    };
    out.extend_from_slice(&seconds.to_be_bytes());
    put_last(out, of.fraction, fraction_size(fsp));
    Ok(())
}

/// Writes TIME.
pub(crate) fn pack_time(out: &mut Vec<u8>, text: &[u8], fsp: usize) -> Fit<()> {
    let (text, negative) = text.strip_prefix(b"-").map_or((text, false), |text| (text, true));
    let colon = text.iter().position(|&byte| byte == b':').filter(|at| (2..=3).contains(at)).ok_or(Unfit)?;
    let hour = digits(text, 0..colon)?;
    let (minute, second, fraction) = read_rest(text, colon, fsp)?;
    let width = 8 * fraction_size(fsp);
    let size = u64::from(hour << 12 | minute << 6 | second) << width | fraction;
    if negative && size == 0 {
        return Err(Unfit); // an image has no such time
    }
    let zero = 0x80_0000 << width;
    put_last(out, if negative { zero - size } else { zero + size }, 3 + fraction_size(fsp));
    Ok(())
}

// As before MySQL 5.6, and in MariaDB with mysql56_temporal_format=OFF; see `headrace/mysql/values/old_temporal.py`.

fn little_endian(raw: &[u8]) -> u64 {
    raw.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Returns a fraction of this many digits in the units of `Civil`.
fn scaled(fraction: u64, fsp: usize) -> u64 {
    fraction * POWERS[fsp % 2]
}

/// Reads DATETIME: the number YYYYMMDDhhmmss, little endian; with a fraction the units since the year 0, as if a year had
/// 13 months and a month 32 days, big endian.
fn old_datetime(raw: &[u8], fsp: usize) -> Fit<Civil> {
    let mut rest = if fsp == 0 { little_endian(raw) } else { big_endian(raw) };
    let mut take = |units: u64| {
        let part = rest % units;
        rest /= units;
        part
    };
    let fraction = scaled(take(POWERS[fsp]), fsp);
    let (of_minute, of_hour, of_day, of_month, of_year) =
        if fsp == 0 { (100, 100, 100, 100, 100) } else { (60, 60, 24, 32, 13) };
    let (second, minute, hour) = (take(of_minute) as u32, take(of_hour) as u32, take(of_day) as u32);
    let (day, month) = (take(of_month) as u32, take(of_year) as u32);
    if rest > 9999 || month > 12 || day > 31 || hour > 23 || minute > 59 || second > 59 {
        return Err(Unfit);
    }
    Ok(Civil { year: rest as u32, month, day, hour, minute, second, fraction })
}

/// Reads TIMESTAMP: seconds since 1970, little endian, or with a fraction big endian and then the fraction. Returns both.
fn old_timestamp(raw: &[u8], fsp: usize) -> Fit<(u32, u64)> {
    if fsp == 0 {
        return Ok((little_endian(raw) as u32, 0));
    }
    let fraction = big_endian(&raw[4..]);
    if fraction >= POWERS[fsp] {
        return Err(Unfit);
    }
    Ok((big_endian(&raw[..4]) as u32, scaled(fraction, fsp)))
}

/// Reads TIME: the number hhmmss, little endian and signed; with a fraction the units since -839 hours, big endian.
/// Returns whether it is negative, and its size.
fn old_time(raw: &[u8], fsp: usize) -> Fit<(bool, Civil)> {
    if fsp == 0 {
        let value = ((little_endian(raw) as i32) << 8) >> 8;
        let size = value.unsigned_abs();
        let (hour, minute, second) = (size / 10_000, size / 100 % 100, size % 100);
        if hour > 838 || minute > 59 || second > 59 {
            return Err(Unfit);
        }
        return Ok((value < 0, Civil { hour, minute, second, ..Civil::default() }));
    }
    let (value, zero) = (big_endian(raw), TIME_ZERO * POWERS[fsp]);
    let size = value.abs_diff(zero);
    let seconds = size / POWERS[fsp];
    if seconds >= TIME_ZERO {
        return Err(Unfit);
    }
    let (hour, minute, second) = ((seconds / 3600) as u32, (seconds / 60 % 60) as u32, (seconds % 60) as u32);
    Ok((value < zero, Civil { hour, minute, second, fraction: scaled(size % POWERS[fsp], fsp), ..Civil::default() }))
}
