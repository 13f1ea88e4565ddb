//! The packets of a dump as the bytes of a binlog file, and the way back. Python has the same: `Recorder` and
//! `ArchivedPackets`.

use std::collections::HashSet;

const PACKET_HEAD: usize = 5;
const EVENT_HEAD: usize = 19;
const LARGE: usize = 0xFF_FFFF;
const ARTIFICIAL: usize = 0x20;
const QUERY: u8 = 2;
const STOP: u8 = 3;
const ROTATE: u8 = 4;
const FORMAT: u8 = 15;
const TABLE_MAP: u8 = 19;
const HEARTBEAT: u8 = 27;
const GTID: u8 = 33;
const ANONYMOUS_GTID: u8 = 34;
const PREVIOUS_GTIDS: u8 = 35;
const PAYLOAD: u8 = 40;
const HEARTBEAT_V2: u8 = 41;
const GTID_TAGGED: u8 = 42;
const MARIADB_GTID: u8 = 162;
const GTID_LIST: u8 = 163;
const QUERY_COMPRESSED: u8 = 165;

/// Consecutive transactions of one server: its uuid, the first and the last number.
pub type Gtids = ([u8; 16], u64, u64);

/// What events have in common that were read together.
#[derive(Default)]
pub struct Run {
    /// The events, as they are in the file.
    pub raw: Vec<u8>,
    /// Where reading stopped in the packets.
    pub at: usize,
    /// Where it stopped in the file.
    pub end: u64,
    /// Where the last event begins in the file.
    pub last_event: u64,
    /// Commit time of the first transaction, in microseconds since 1970; 0 if none begins.
    pub first_us: u64,
    /// The latest commit time, in the same form.
    pub last_us: u64,
    /// MySQL's GTIDs, in the order of the file.
    pub gtids: Vec<Gtids>,
    /// The last GTID of each of MariaDB's domains: domain, server and number.
    pub domains: Vec<(u32, u32, u64)>,
    /// Schema and table of each TABLE_MAP.
    pub tables: HashSet<(Vec<u8>, Vec<u8>)>,
    /// Whether there are compressed transactions, whose tables are not known.
    pub compressed: bool,
    /// Where the last event ends whose acknowledgement the server requests; 0 for none.
    pub acknowledge: u64,
}

/// Reads packets from `at` on, which continue a file at `end`, until the file's bytes are at least `most`. Stops before
/// the first packet that is incomplete, damaged or unusual: the caller handles it. `extra`: bytes before each event, 2 in
/// a semi-synchronous dump.
pub fn record(data: &[u8], at: usize, end: u64, checksums: bool, extra: usize, most: usize) -> Run {
    let mut run = Run { at, end, ..Run::default() };
    while run.raw.len() < most && run.step(data, checksums, extra).is_some() {}
    run
}

impl Run {
    /// Reads one packet; None if it is left to the caller, and then nothing has changed.
    fn step(&mut self, data: &[u8], checksums: bool, extra: usize) -> Option<()> {
        let packet = data.get(self.at..)?;
        let size = little(packet.get(..3)?);
        let packet = packet.get(..size + 4)?;
        let event = packet.get(PACKET_HEAD + extra..)?;
        let head = event.get(..EVENT_HEAD)?;
        let (kind, length, log_pos) = (head[4], little(&head[9..13]), little(&head[13..17]));
        if size == LARGE || packet[4] != 0 || length != event.len() {
            return None;
        }
        let end = self.end.checked_add(length as u64)?;
        if log_pos == 0 || little(&head[17..19]) & ARTIFICIAL != 0 || end as u32 != log_pos as u32 {
            return None;
        }
        let mut stop = event.len();
        if checksums {
            stop = stop.checked_sub(4)?;
            if stop < EVENT_HEAD || crc32fast::hash(&event[..stop]) as usize != little(&event[stop..]) {
                return None;
            }
        }
        let body = &event[EVENT_HEAD..stop];
        match kind {
            STOP | ROTATE | FORMAT | HEARTBEAT | PREVIOUS_GTIDS | HEARTBEAT_V2 | GTID_TAGGED | GTID_LIST => {
                return None
            }
            TABLE_MAP => self.table(body)?,
            GTID | ANONYMOUS_GTID => self.gtid(event, body)?,
            MARIADB_GTID => self.mariadb(event, body)?,
            QUERY | QUERY_COMPRESSED => self.begins(seconds(event)),
            PAYLOAD => self.compressed = true,
            _ => {}
        }
        self.raw.extend_from_slice(event);
        self.last_event = self.end;
        self.end = end;
        self.at += packet.len();
        if extra > 1 && packet[PACKET_HEAD + 1] != 0 {
            self.acknowledge = end;
        }
        Some(())
    }

    fn begins(&mut self, micros: u64) {
        if self.first_us == 0 {
            self.first_us = micros;
        }
        self.last_us = self.last_us.max(micros);
    }

    fn table(&mut self, body: &[u8]) -> Option<()> {
        let (schema, rest) = name(body.get(8..)?)?;
        let (table, _) = name(rest.get(1..)?)?;
        if std::str::from_utf8(schema).is_err() || std::str::from_utf8(table).is_err() {
            return None;
        }
        let found = (schema.to_vec(), table.to_vec());
        self.tables.insert(found);
        Some(())
    }

    fn gtid(&mut self, event: &[u8], body: &[u8]) -> Option<()> {
        let raw: [u8; 16] = body.get(1..17)?.try_into().ok()?;
        let number = little64(body.get(17..25)?);
        // The 55th bit means that the original commit time follows; the low bits are the immediate one.
        let micros = match body.get(42..49) {
            Some(time) => little64(time) & 0x7F_FFFF_FFFF_FFFF,
            None => seconds(event),
        };
        if number > i64::MAX as u64 {
            return None;
        }
        self.begins(micros);
        if number > 0 {
            match self.gtids.last_mut() {
                Some((source, _, last)) if *source == raw && *last + 1 == number => *last = number,
                _ => self.gtids.push((raw, number, number)),
            }
        }
        Some(())
    }

    fn mariadb(&mut self, event: &[u8], body: &[u8]) -> Option<()> {
        let (number, domain) = (little64(body.get(..8)?), little(body.get(8..12)?) as u32);
        body.get(12)?;
        let server = little(&event[5..9]) as u32;
        self.begins(seconds(event));
        self.domains.retain(|(known, _, _)| *known != domain);
        self.domains.push((domain, server, number));
        Some(())
    }
}

/// Returns the packets of the events in a part of a file that begins at `start`, from `offset` of the file on; None if
/// it does not consist of events, or none begins there.
pub fn packets(data: &[u8], start: u64, offset: u64) -> Option<Vec<u8>> {
    let mut at = if start == 0 { 4 } else { 0 };
    let mut begun = start >= offset;
    let mut made = Vec::with_capacity(data.len() + data.len() / 8);
    while at < data.len() {
        let length = little(data.get(at + 9..at + 13)?);
        if length < EVENT_HEAD {
            return None;
        }
        let event = data.get(at..at.checked_add(length)?)?;
        let place = start + at as u64;
        if place >= offset {
            if !begun && place > offset.max(4) {
                return None;
            }
            begun = true;
            packet(&mut made, event);
        }
        at += length;
    }
    Some(made)
}

/// Writes an event as a packet, or as several from 16 MB on: the last one is not full.
fn packet(made: &mut Vec<u8>, event: &[u8]) {
    let mut left = event;
    let mut status = 1;
    loop {
        let size = (left.len() + status).min(LARGE);
        made.extend_from_slice(&(size as u32).to_le_bytes()[..3]);
        made.resize(made.len() + 1 + status, 0);
        let (now, later) = left.split_at(size - status);
        made.extend_from_slice(now);
        if size < LARGE {
            return;
        }
        (left, status) = (later, 0);
    }
}

/// Returns a name with its length before it, and what follows.
fn name(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = raw.split_first()?;
    (rest.len() >= length as usize).then(|| rest.split_at(length as usize))
}

fn seconds(event: &[u8]) -> u64 {
    little(&event[..4]) as u64 * 1_000_000
}

fn little(raw: &[u8]) -> usize {
    little64(raw) as usize
}

fn little64(raw: &[u8]) -> u64 {
    raw.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(kind: u8, body: &[u8], end: &mut u64) -> Vec<u8> {
        let length = EVENT_HEAD + body.len() + 4;
        *end += length as u64;
        let mut raw = vec![0, 0, 0, 100, kind, 1, 0, 0, 0];
        raw.extend_from_slice(&(length as u32).to_le_bytes());
        raw.extend_from_slice(&(*end as u32).to_le_bytes());
        raw.extend_from_slice(&[0, 0]);
        raw.extend_from_slice(body);
        raw.extend_from_slice(&crc32fast::hash(&raw).to_le_bytes());
        raw
    }

    proptest! {
        #[test]
        fn events_go_into_a_file_and_out_again(sizes in prop::collection::vec(0usize..300, 1..20)) {
            let (mut end, mut file) = (4, Vec::new());
            for size in sizes {
                file.extend(event(30, &vec![7; size], &mut end));
            }
            let made = packets(&file, 4, 4).unwrap();
            let run = record(&made, 0, 4, true, 0, usize::MAX);
            prop_assert_eq!((run.raw, run.at, run.end), (file, made.len(), end));
        }

        #[test]
        fn no_bytes_are_a_panic(data in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..300, end: u64) {
            for checksums in [false, true] {
                for extra in [0, 2] {
                    let run = record(&data, at, end, checksums, extra, 1000);
                    prop_assert!(run.at >= at);
                }
            }
            let _ = packets(&data, end >> 1, at as u64);
        }

        #[test]
        fn damage_is_left_to_the_caller(flip in 0usize..60) {
            let mut end = 4;
            let file = event(30, &[1; 30], &mut end);
            let mut made = packets(&file, 4, 4).unwrap();
            let flip = flip % made.len();
            made[flip] ^= 0x40;
            let run = record(&made, 0, 4, true, 0, 1000);
            // The sequence number of a packet means nothing.
            prop_assert!(run.raw.is_empty() || flip == 3);
        }
    }

    #[test]
    fn large_events_are_split_as_servers_do() {
        for size in [LARGE - 2, LARGE - 1, LARGE, 2 * LARGE - 1, 2 * LARGE] {
            let mut made = Vec::new();
            packet(&mut made, &vec![1; size]);
            let mut found = 0;
            let mut at = 0;
            loop {
                let head = little(&made[at..at + 3]);
                found += head;
                at += 4 + head;
                if head < LARGE {
                    break;
                }
            }
            assert_eq!((found, at), (size + 1, made.len()));
        }
    }
}
