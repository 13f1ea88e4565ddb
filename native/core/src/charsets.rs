//! Character sets: the texts of row images become UTF-8.

use crate::text;
use crate::{Fit, Unfit};

/// In a table of codes: the code has no character.
pub const NONE: char = '\u{FFFE}';
/// The first byte of EUC's codes of three bytes.
const EUC_THREE: u8 = 0x8F;
/// The index of the first code of four bytes in GB 18030 that is above U+FFFF; from there on both increase by one.
const SUPPLEMENTARY: u32 = 189_000;

/// The character set of a column.
#[derive(Debug)]
pub enum Charset {
    /// UTF-8: utf8mb4 and utf8mb3.
    Utf8,
    /// All others, by tables.
    Codes(Codes),
    /// Two bytes a unit: utf16, utf16le and ucs2.
    Utf16 {
        /// Whether units are little endian.
        little: bool,
        /// Whether a pair of surrogates is a character.
        pairs: bool,
    },
    /// Four bytes a character, big endian.
    Utf32,
}

/// A character set by the characters of its codes, [`NONE`] if it has none.
#[derive(Debug)]
pub struct Codes {
    single: Box<[char]>,
    pairs: Box<[char]>,
    triples: Box<[char]>,
    quads: Box<[char]>,
    /// Whether bytes below 0x80 are ASCII.
    ascii: bool,
}

impl Codes {
    /// Takes the characters by byte; by two bytes, the first being the more significant; by the last two of three bytes
    /// of which the first is 8F; and by the index of GB 18030's codes of four bytes. All but the first may be empty.
    pub fn new(single: Vec<char>, pairs: Vec<char>, triples: Vec<char>, quads: Vec<char>) -> Fit<Self> {
        let fits = |table: &Vec<char>| table.is_empty() || table.len() == 1 << 16;
        if single.len() != 256 || !fits(&pairs) || !fits(&triples) {
            return Err(Unfit);
        }
        let ascii = (0..0x80u8).all(|byte| single[byte as usize] == char::from(byte));
        Ok(Self { single: single.into(), pairs: pairs.into(), triples: triples.into(), quads: quads.into(), ascii })
    }

    /// Returns the character that the bytes begin with, and the bytes of its code.
    fn first(&self, raw: &[u8]) -> Option<(char, usize)> {
        let known = |one: &char| *one != NONE;
        let lead = *raw.first()?;
        if let Some(&one) = Some(&self.single[lead as usize]).filter(|one| known(one)) {
            return Some((one, 1));
        }
        let second = *raw.get(1)?;
        let pair = |first: u8, second: u8| usize::from(first) << 8 | usize::from(second);
        if let Some(&one) = self.pairs.get(pair(lead, second)).filter(|one| known(one)) {
            return Some((one, 2));
        }
        let third = *raw.get(2)?;
        if lead == EUC_THREE && !self.triples.is_empty() {
            return self.triples.get(pair(second, third)).filter(|one| known(one)).map(|&one| (one, 3));
        }
        let index = index_of_four(lead, second, third, *raw.get(3)?)?;
        if self.quads.is_empty() {
            return None;
        }
        let basic = self.quads.get(index as usize).filter(|one| known(one)).copied();
        let above = || char::from_u32(0x1_0000 + index.checked_sub(SUPPLEMENTARY)?);
        basic.or_else(above).map(|one| (one, 4))
    }
}

/// Returns the index of a code of four bytes in GB 18030; None for other bytes.
fn index_of_four(first: u8, second: u8, third: u8, fourth: u8) -> Option<u32> {
    let high = |byte: u8| (0x81..=0xFE).contains(&byte).then(|| u32::from(byte) - 0x81);
    let low = |byte: u8| byte.is_ascii_digit().then(|| u32::from(byte) - 0x30);
    Some(((high(first)? * 10 + low(second)?) * 126 + high(third)?) * 10 + low(fourth)?)
}

impl Charset {
    /// Writes a text as UTF-8, with `JSON` within a JSON string. Refuses codes that have no character.
    pub(crate) fn print<const JSON: bool>(&self, out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
        match self {
            Charset::Utf8 => {
                std::str::from_utf8(raw).map_err(|_| Unfit)?;
                text::put_text::<JSON>(out, raw);
            }
            Charset::Codes(codes) => {
                let mut rest = raw;
                while !rest.is_empty() {
                    let plain = if codes.ascii { rest.iter().take_while(|byte| byte.is_ascii()).count() } else { 0 };
                    text::put_text::<JSON>(out, &rest[..plain]);
                    rest = &rest[plain..];
                    if rest.is_empty() {
                        break;
                    }
                    let (one, length) = codes.first(rest).ok_or(Unfit)?;
                    character::<JSON>(out, one);
                    rest = &rest[length..];
                }
            }
            Charset::Utf16 { little, pairs } => utf16::<JSON>(out, raw, *little, *pairs)?,
            Charset::Utf32 => {
                if raw.len() % 4 != 0 {
                    return Err(Unfit);
                }
                for unit in raw.chunks_exact(4) {
                    let value = unit.iter().fold(0u32, |value, &byte| value << 8 | u32::from(byte));
                    character::<JSON>(out, char::from_u32(value).ok_or(Unfit)?);
                }
            }
        }
        Ok(())
    }
}

fn utf16<const JSON: bool>(out: &mut Vec<u8>, raw: &[u8], little: bool, pairs: bool) -> Fit<()> {
    if raw.len() % 2 != 0 {
        return Err(Unfit);
    }
    let units = raw.chunks_exact(2).map(|unit| {
        let unit = [unit[0], unit[1]];
        if little {
            u16::from_le_bytes(unit)
        } else {
            u16::from_be_bytes(unit)
        }
    });
    for one in char::decode_utf16(units) {
        let one = one.map_err(|_| Unfit)?;
        if !pairs && one > '\u{FFFF}' {
            return Err(Unfit);
        }
        character::<JSON>(out, one);
    }
    Ok(())
}

fn character<const JSON: bool>(out: &mut Vec<u8>, one: char) {
    text::put_text::<JSON>(out, one.encode_utf8(&mut [0; 4]).as_bytes());
}
