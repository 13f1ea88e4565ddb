//! MariaDB's UUID, INET6 and INET4, as it prints them (`headrace/mysql/values/mariadb.py`).

use crate::text;
use crate::{Fit, Unfit};

/// Returns the bytes of a value, with the zeros that a row image leaves out.
fn whole<const SIZE: usize>(raw: &[u8]) -> Fit<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    bytes.get_mut(..raw.len()).ok_or(Unfit)?.copy_from_slice(raw);
    Ok(bytes)
}

/// Writes a UUID.
pub(crate) fn uuid(out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
    for (at, byte) in whole::<16>(raw)?.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        text::hex(out, &[*byte]);
    }
    Ok(())
}

/// Writes an IPv4 address.
pub(crate) fn inet4(out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
    for (at, byte) in whole::<4>(raw)?.iter().enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        text::int(out, u32::from(*byte));
    }
    Ok(())
}

/// Writes an IPv6 address: the longest run of zero groups, the first of equal ones, also a run of one, is `::`; those
/// that contain an IPv4 address end in its dotted form.
pub(crate) fn inet6(out: &mut Vec<u8>, raw: &[u8]) -> Fit<()> {
    let bytes = whole::<16>(raw)?;
    let groups: Vec<u16> = bytes.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]])).collect();
    let run = |from: usize| groups[from..].iter().take_while(|&&group| group == 0).count();
    let (mut start, mut length) = (0, 0);
    for at in 0..groups.len() {
        if run(at) > length {
            (start, length) = (at, run(at));
        }
    }
    if start == 0 && (length == 6 || (length == 5 && groups[5] == 0xFFFF)) {
        out.extend_from_slice(if length == 5 { b"::ffff:" } else { b"::" });
        return inet4(out, &bytes[12..]);
    }
    for (at, group) in groups.iter().enumerate() {
        if (start..start + length).contains(&at) {
            if at == start {
                out.extend_from_slice(b"::");
            }
            continue;
        }
        if at > 0 && at != start + length {
            out.push(b':');
        }
        out.extend_from_slice(format!("{group:x}").as_bytes());
    }
    Ok(())
}
