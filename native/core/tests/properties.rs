//! No bytes cause a panic, and a refusal leaves no trace.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use headrace_native_core::batch::{Batch, Shared};
use headrace_native_core::canal::Canal;
use headrace_native_core::changes::{Event, Operation};
use headrace_native_core::charsets::{Charset, Codes, NONE};
use headrace_native_core::conditions::{Condition, Exact, Like, Operator, Test};
use headrace_native_core::debezium::{Added, Debezium};
use headrace_native_core::decimal::Decimal;
use headrace_native_core::entries::{Constants, Entries, EntryMarks};
use headrace_native_core::fields::{Binary, Kind, Label, Shape, Style};
use headrace_native_core::formats::{Format, Published};
use headrace_native_core::json::json_text;
use headrace_native_core::masks::{Hmac, Mask};
use headrace_native_core::maxwell::{Maxwell, Place};
use headrace_native_core::output::{lock, MarkStyle, Marks, Opener, Origin, Output};
use headrace_native_core::parts::{Facts, Limits, Part, Rest};
use headrace_native_core::reader::{Frame, Reader, State, Stop};
use headrace_native_core::selected::{self, pack, Done, Packets, Selected};
use headrace_native_core::spans::image;
use headrace_native_core::table::{Column, Key, RecordKey, Route, Selection, Table};
use headrace_native_core::temporal::{Stored, Zone};
use headrace_native_core::text::escape;
use headrace_native_core::{records, Fit};
use proptest::prelude::*;

const BODY: &[u8] = b"a table";

struct New;

impl Opener for New {
    fn open(&mut self, _: u32) -> Fit<Shared> {
        Ok(Shared::default())
    }
}

/// Made once: its tables take longer than all the rest of an input.
static CODES: LazyLock<Arc<Charset>> = LazyLock::new(|| {
    let single = (0..256).map(|byte| if byte < 0x80 { byte as u8 as char } else { NONE }).collect();
    let table = |with: char| (0..1 << 16).map(|code| if code % 3 == 0 { with } else { NONE }).collect();
    let codes = Codes::new(single, table('\u{4E00}'), table('"'), vec!['\u{20AC}'; 39_420]).unwrap();
    Arc::new(Charset::Codes(codes))
});

fn zone() -> Zone {
    Zone::new(vec![(0, -43_200), (1_000_000_000, 50_400)]).unwrap()
}

fn kinds() -> Vec<(Kind, Style)> {
    let text = || Style::Text(Binary::Base64);
    let labels = || vec![Label::new(b"a"), Label::new(b"b")];
    let zero = || b"0".to_vec();
    vec![
        (Kind::Int { size: 3, signed: true }, Style::Number),
        (Kind::Int { size: 8, signed: false }, Style::Unscaled),
        (Kind::Float, Style::Number),
        (Kind::Double, text()),
        (Kind::Year, Style::Year),
        (Kind::Decimal(Decimal::new(65, 30).unwrap()), Style::Unscaled),
        (Kind::Decimal(Decimal::new(10, 2).unwrap()), text()),
        (Kind::Bit { size: 3 }, Style::Bits(3)),
        (Kind::Enum { size: 1, labels: labels() }, text()),
        (Kind::Set { size: 1, labels: labels() }, text()),
        (Kind::Date, Style::Days(zero())),
        (Kind::Datetime(Stored { fsp: 3, old: false }), Style::Time { unit: 1000, zero: zero() }),
        (Kind::Timestamp { stored: Stored { fsp: 6, old: false }, zone: None }, Style::Zoned(zero())),
        (Kind::Time(Stored { fsp: 1, old: false }), Style::Time { unit: 1, zero: zero() }),
        (Kind::Text { length: 1, charset: Arc::new(Charset::Utf8) }, text()),
        (Kind::Text { length: 1, charset: Arc::clone(&CODES) }, text()),
        (Kind::Text { length: 2, charset: Arc::new(Charset::Utf16 { little: true, pairs: false }) }, text()),
        (Kind::Text { length: 1, charset: Arc::new(Charset::Utf32) }, text()),
        (Kind::Datetime(Stored { fsp: 0, old: true }), Style::Time { unit: 1000, zero: zero() }),
        (Kind::Datetime(Stored { fsp: 5, old: true }), text()),
        (Kind::Timestamp { stored: Stored { fsp: 3, old: true }, zone: None }, Style::Zoned(zero())),
        (Kind::Time(Stored { fsp: 0, old: true }), text()),
        (Kind::Time(Stored { fsp: 6, old: true }), Style::Time { unit: 1, zero: zero() }),
        (Kind::Timestamp { stored: Stored::default(), zone: Some(Arc::new(zone())) }, text()),
        (Kind::Bytes { length: 2, pad: 4 }, Style::Text(Binary::Latin1)),
        (Kind::Compressed { length: 1, largest: 999, value: Box::new(Kind::Bytes { length: 1, pad: 0 }) }, text()),
        (Kind::Json { length: 4 }, text()),
        (Kind::Uuid, text()),
        (Kind::Inet6, text()),
        (Kind::Inet4, text()),
        (Kind::Vector { length: 1 }, text()),
        (Kind::Vector { length: 1 }, Style::Json),
        (Kind::Json { length: 2 }, Style::Json),
        (Kind::Double, Style::Json),
        (Kind::Set { size: 1, labels: labels() }, Style::List),
        (Kind::Bytes { length: 1, pad: 0 }, Style::Geometry { point: true }),
        (Kind::Double, Style::Decimals(2)),
    ]
}

fn tests() -> Vec<Test> {
    let like = vec![vec![Some('a'), None], vec![Some('b')], vec![]];
    vec![
        Test::Int(Operator::AtMost, vec![7]),
        Test::Decimal(Operator::In, vec![Exact::new(b"-1.50").unwrap(), Exact::new(b"0").unwrap()]),
        Test::Float(Operator::Unequal, vec![0.5]),
        Test::Text(Operator::More, vec![b"a".to_vec()]),
        Test::Like(Like(like)),
    ]
}

fn table(format: Format, route: Route, counter: usize) -> Arc<Published> {
    let (kinds, styles): (Vec<_>, Vec<_>) = kinds().into_iter().unzip();
    let texts = matches!(format, Format::Entries(_));
    let style_of = |style| if texts { Style::Text(Binary::Latin1) } else { style };
    let column = |(field, style)| Column { field, name: 0..4, style: style_of(style), mask: None };
    let columns = styles.into_iter().enumerate().map(column).collect();
    let table =
        Table::new(kinds, columns, b"\"c\":".to_vec(), route, Selection::default(), vec![0], None, true, counter)
            .unwrap();
    Arc::new(Published::new(table, format).unwrap())
}

fn canal() -> Format {
    Format::Canal(Canal {
        middle: Vec::new(),
        types: Vec::new(),
        tail: Vec::new(),
        compat: false,
        uniform: false,
        key_head: Vec::new(),
        keys: Vec::new(),
    })
}

fn debezium(unwrapped: Option<Vec<(Vec<u8>, Added)>>) -> Format {
    Format::Debezium(Debezium {
        value_head: Vec::new(),
        key: RecordKey { head: Vec::new(), tail: Vec::new(), columns: vec![0] },
        tail: Vec::new(),
        source: Vec::new(),
        source_db: Vec::new(),
        source_table: Vec::new(),
        tombstones: true,
        shows_deletes: unwrapped.is_none(),
        unwrapped,
    })
}

fn unwrapped() -> Vec<(Vec<u8>, Added)> {
    let added = [Added::Op, Added::Now(1), Added::Commit(1000), Added::Gtid, Added::File, Added::Row, Added::Thread];
    added.into_iter().map(|one| (b"\"a\":".to_vec(), one)).collect()
}

fn maxwell() -> Format {
    Format::Maxwell(Maxwell {
        head: Vec::new(),
        places: vec![Place::Position, Place::Gtid, Place::ServerId, Place::ThreadId],
        shows_key: true,
        key_columns: Vec::new(),
        keys: vec![(0, Vec::new())],
    })
}

fn entries() -> Format {
    let (before, after) = (b"\x1A\x01c".to_vec(), b"R\x01t".to_vec());
    let constants = |(kind, _)| Constants {
        before: before.clone(),
        after: after.clone(),
        before_null: Vec::new(),
        before_small: matches!(kind, Kind::Int { .. }).then(|| (99, Vec::new())),
    };
    let cells = kinds().into_iter().map(constants).collect();
    Format::Entries(Entries { header: Vec::new(), cells, compat: true })
}

/// All formats.
fn formats() -> impl Strategy<Value = Format> {
    let wrapped = || Just(debezium(None));
    prop_oneof![Just(canal()), wrapped(), Just(debezium(Some(unwrapped()))), Just(entries()), Just(maxwell())]
}

fn head(count: usize) -> records::Head {
    records::Head { attributes: 0, count, when: 0, producer_id: -1, producer_epoch: -1, base_sequence: -1 }
}

/// Returns packets with a checksum, from kinds and bodies.
fn packets(events: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 4u32);
    for (kind, body) in events {
        let size = 19 + body.len() as u32 + 4;
        at += size;
        let mut event = vec![0, 0, 0, 0, *kind, 1, 0, 0, 0];
        event.extend_from_slice(&size.to_le_bytes());
        event.extend_from_slice(&at.to_le_bytes());
        event.extend_from_slice(&[0, 0]);
        event.extend_from_slice(body);
        event.extend_from_slice(&crc32fast::hash(&event).to_le_bytes());
        out.extend_from_slice(&(event.len() as u32 + 1).to_le_bytes()[..3]);
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&event);
    }
    out
}

fn destination(format: Format, spread: bool) -> (Output, Arc<Published>) {
    let mut output = Output::new(b"uuid", 1, 0, 400, matches!(format, Format::Debezium(_) | Format::Maxwell(_)), false);
    let slots = vec![output.add_slot(), output.add_slot()];
    let slot_of_marks = slots[1];
    let key = match &format {
        Format::Debezium(format) => Key::Record(format.key.clone()),
        _ => Key::Text(0),
    };
    let route = if spread { Route::Spread { key, slots } } else { Route::One(slots[0]) };
    let counter = output.add_counter();
    if matches!(format, Format::Entries(_)) {
        let style = MarkStyle::Entries(EntryMarks { header: Vec::new(), compat: true });
        output.marks = Some(Marks { slot: slot_of_marks, style });
    }
    (output, table(format, route, counter))
}

fn run(data: &[u8], format: Format, spread: bool, checksums: bool) -> (usize, Stop, State, u64) {
    let (mut output, table) = destination(format, spread);
    let mut reader = Reader::new(&[3], Duration::from_millis(8));
    reader.know(&[7, 0, 0, 0, 0, 0], BODY, Some(table), 0, u64::MAX);
    reader.know(&[8, 0, 0, 0, 0, 0], BODY, None, 1, 0);
    reader.leave(&[9, 0, 0, 0, 0, 0], BODY, 2, 0);
    reader.own(&[10, 0, 0, 0, 0, 0], BODY, Some(b"x"), 3, 0);
    reader.own(&[11, 0, 0, 0, 0, 0], BODY, None, 4, 0);
    let frame =
        Frame { file: b"b.000001", checksums, inner: false, eager: false, most_bytes: 1 << 20, most_messages: 5000 };
    let mut state = State { end: 4, start: -1, roomed: -1, ..State::default() };
    let (at, stop) = reader.run(data, 0, &frame, &mut state, &mut output, &mut New);
    (at, stop, state, output.count)
}

/// Makes messages of rows of a SELECT from a table with one column; returns also how many messages.
fn select(data: &[u8], rows: usize, (kind, style): (Kind, Style)) -> (Done, u64) {
    let mut output = Output::new(b"uuid", 1, 0, 400, false, false);
    let (slot, counter) = (output.add_slot(), output.add_counter());
    let facts = selected::Facts {
        id: b"snapshot",
        kind: b"initial",
        marker: b"true",
        number: 0,
        together: 3,
        file: b"b.000001",
        offset: 4,
        pos: 1,
        commit_us: 1,
        most_bytes: 1 << 20,
        most_messages: 5000,
        time: Duration::from_secs(1),
    };
    let columns = vec![Column { field: 0, name: 0..4, style, mask: None }];
    let table = Table::new(
        vec![kind],
        columns,
        b"\"c\":".to_vec(),
        Route::One(slot),
        Selection::default(),
        vec![0],
        None,
        true,
        counter,
    );
    let table = Published::new(table.unwrap(), canal()).unwrap();
    let done =
        Selected::default().run(&table, Packets { data, at: 0, rows, left_out: &[1] }, &facts, &mut output, &mut New);
    (done, output.count)
}

/// Values as a SELECT gives them, mostly.
fn values_of_a_select() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "-?[0-9]{1,3}".prop_map(String::into_bytes),
        "[0-9]{4}-[01][0-9]-[0-3][0-9]( [0-2][0-9]:[0-5][0-9]:[0-5][0-9])?".prop_map(String::into_bytes),
        "[-0-9:. ]{0,30}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..20),
    ]
}

/// Returns a rows event of the table with that number.
fn rows(table: u8, images: usize, row: &[u8]) -> Vec<u8> {
    let mut body = vec![table, 0, 0, 0, 0, 0, 1, 0, 2, 0, kinds().len() as u8];
    body.resize(body.len() + images * kinds().len().div_ceil(8), 0xFF);
    body.extend_from_slice(row);
    body
}

fn events() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let any_bytes = || prop::collection::vec(any::<u8>(), 0..200);
    let one = prop_oneof![
        (any::<u8>(), any_bytes()),
        (Just(33u8), prop::collection::vec(any::<u8>(), 40..60)),
        Just((2u8, b"\x01\0\0\0\0\0\0\0\x04\0\0\0\0shop\0BEGIN".to_vec())),
        (7..12u8).prop_map(|id| (19u8, [&[id, 0, 0, 0, 0, 0], BODY].concat())),
        (30..33u8, 7..12u8, any_bytes())
            .prop_map(|(kind, table, row)| (kind, rows(table, if kind == 31 { 2 } else { 1 }, &row))),
        Just((16u8, vec![0; 8])),
    ];
    prop::collection::vec(one, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn documents(raw in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut out = Vec::new();
        let _ = json_text(&mut out, &raw);
    }

    #[test]
    fn escapes_are_those_of_each_byte(raw in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), 0x1Eu8..0x22, Just(b'\\')], 0..60)) {
        let (mut whole, mut apart) = (Vec::new(), Vec::new());
        escape(&mut whole, &raw);
        for byte in raw {
            escape(&mut apart, &[byte]);
        }
        prop_assert_eq!(whole, apart);
    }

    #[test]
    fn values(raw in prop::collection::vec(any::<u8>(), 30..40)) {
        for (kind, style) in kinds() {
            let size = match kind.shape() {
                Shape::Fixed(size) => size,
                Shape::Var(_) => raw.len(),
            };
            let mut out = Vec::new();
            let _ = style.print(&kind, &mut out, &raw[..size.min(raw.len())]);
            let _ = kind.same(&raw[..size.min(raw.len())], &raw[..size.min(raw.len())], &mut out);
            for mask in [Mask::Null, Mask::Fixed(b"x".to_vec()), Mask::Truncate(3), Mask::Hash(Box::new(Hmac::new(&raw)))] {
                let made = mask.apply(&kind, &raw[..size.min(raw.len())]);
                if let Ok(Some(value)) = made {
                    let _ = value.print::<true>(&mut out, Binary::Base64);
                }
            }
            for test in tests() {
                let condition = Condition::Leaf(0, test);
                let (mut row, mut spans) = (vec![0], Vec::new());
                if let Shape::Var(length) = kind.shape() {
                    row.extend_from_slice(&(size as u32).to_le_bytes()[..length]);
                }
                row.extend_from_slice(&raw[..size.min(raw.len())]);
                let whole = image(&mut spans, &[kind.shape()], &row, 0, row.len()).is_ok();
                if whole && condition.fits(std::slice::from_ref(&kind)) {
                    let _ = condition.is_met(std::slice::from_ref(&kind), &row, &spans, &mut out);
                }
            }
        }
    }

    #[test]
    fn what_is_printed_is_packed_into_the_same_value(raw in prop::collection::vec(any::<u8>(), 30..40)) {
        for (kind, _) in kinds() {
            // These are selected as numbers.
            if matches!(kind, Kind::Enum { .. } | Kind::Set { .. } | Kind::Bit { .. } | Kind::Timestamp { .. }) {
                continue;
            }
            let size = if let Shape::Fixed(size) = kind.shape() { size } else { raw.len() };
            let (mut printed, mut packed, mut again) = (Vec::new(), Vec::new(), Vec::new());
            if kind.plain(&mut printed, &raw[..size], Binary::Latin1).is_err() || pack(&kind, &mut packed, &printed).is_err() {
                continue;
            }
            if !matches!(kind, Kind::Datetime(Stored { old: true, .. }) | Kind::Time(Stored { old: true, .. }) | Kind::Bytes { .. } | Kind::Text { .. } | Kind::Vector { .. }) {
                prop_assert!(kind.plain(&mut again, &packed, Binary::Latin1).is_ok());
                prop_assert_eq!(again, printed);
            }
        }
    }

    #[test]
    fn any_values_as_rows_of_a_select(values in prop::collection::vec(values_of_a_select(), 0..9), cut in 0..300usize) {
        let packet = |value: &Vec<u8>| [&[value.len() as u8 + 1, 0, 0, 0, value.len() as u8], &value[..]].concat();
        let mut data: Vec<u8> = values.iter().flat_map(packet).collect();
        data.truncate(cut);
        for column in kinds() {
            let (done, count) = select(&data, values.len(), column);
            prop_assert!(done.last <= done.end && done.end <= data.len() && done.rows <= values.len());
            prop_assert!(done.changes as usize <= done.rows.div_ceil(3));
            prop_assert_eq!(count, done.changes);
        }
    }

    #[test]
    fn any_bytes_as_a_dump(data in prop::collection::vec(any::<u8>(), 0..500), checksums: bool) {
        let (at, stop, _, count) = run(&data, canal(), false, checksums);
        prop_assert!(at <= data.len());
        prop_assert!(stop != Stop::Enough || count > 0);
    }

    #[test]
    fn any_bytes_as_a_compressed_transaction(data in prop::collection::vec(any::<u8>(), 0..500), start in -1..9i64) {
        let mut output = Output::new(b"uuid", 1, 0, 400, false, false);
        let (mut reader, (most_bytes, most_messages)) = (Reader::new(&[3], Duration::from_millis(8)), (1 << 20, 5000));
        let frame = Frame { file: b"b", checksums: true, inner: true, eager: false, most_bytes, most_messages };
        let mut state = State { end: 4, start, roomed: -1, ..State::default() };
        let (at, _) = reader.run(&data, 0, &frame, &mut state, &mut output, &mut New);
        prop_assert!(at <= data.len());
        prop_assert_eq!((state.start, state.end), (start, 4));
    }

    #[test]
    fn events_in_any_order(events in events(), format in formats(), spread: bool) {
        let data = packets(&events);
        let (at, stop, state, _) = run(&data, format, spread, true);
        prop_assert!(at <= data.len());
        if matches!(stop, Stop::End(_)) {
            prop_assert_eq!(at, data.len());
            prop_assert_eq!(state.end, 4 + events.iter().map(|(_, body)| body.len() as u64 + 23).sum::<u64>());
        }
    }

    #[test]
    fn any_bytes_as_a_part(
        data in prop::collection::vec(prop_oneof![3 => Just(0xFF), 1 => any::<u8>()], 0..300),
        operation in prop::sample::select(vec![Operation::Insert, Operation::Update, Operation::Delete]),
        first in 0..2usize,
        more: bool,
        limit in prop::sample::select(vec![0usize, 20, 1 << 20]),
        format in formats(),
        spread: bool,
    ) {
        let (mut output, table) = destination(format, spread);
        let event = Event { offset: 4, length: 300, time: 1, server_id: 1, thread: 0 };
        let facts = Facts {
            operation,
            first,
            pos: 1,
            number: 0,
            rows_per_message: 0,
            now_ms: 1,
            commit_us: 1,
            gtid: Vec::new(),
            file: b"b.000001".to_vec(),
            event,
            table_id: 7,
            origin: Origin { transaction: 4, ordinal: 1 },
        };
        let limits = Limits { rows: limit, message: 1 << 20 };
        if let Ok(Some(mut part)) = Part::make(&table, facts, Rest { data: &data, at: 0, more }, limits) {
            prop_assert!(part.rows > 0 && !more && part.size == data.len() && part.size <= limit);
            output.put_part(&mut part, &mut New).unwrap();
            prop_assert!(output.count > 0);
        }
    }

    #[test]
    fn headers_are_read_as_they_were_written(pairs in prop::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..5)) {
        let mut batch = Batch::default();
        batch.headers.begin(pairs.len());
        for (name, value) in &pairs {
            batch.headers.add(name, value);
        }
        batch.headers.end();
        let read: Vec<_> = batch.headers.get(0).unwrap().into_iter().map(|(a, b)| (a.to_vec(), b.to_vec())).collect();
        prop_assert_eq!(read, pairs);
    }

    #[test]
    fn runs_hold_every_message_once(sizes in prop::collection::vec(0..2000usize, 0..50), limit in 100..5000usize) {
        let shared = Shared::default();
        let mut batch = lock(&shared);
        for size in &sizes {
            batch.values.push(Some(&vec![b'x'; *size]));
            batch.headers.begin(0);
            batch.headers.end();
        }
        let runs = records::runs(&batch, limit);
        let mut next = 0;
        for (first, end, size) in runs {
            prop_assert_eq!(first, next);
            prop_assert!(size <= limit || end == first + 1);
            let mut out = Vec::new();
            records::write(&mut out, &batch, first, end);
            prop_assert_eq!(out.len() + 61, size);
            prop_assert_eq!(records::size(&batch, first, end), out.len());
            let mut whole = vec![0; size];
            prop_assert!(records::whole(&mut whole, &head(end - first), |room| records::write(room, &batch, first, end)).is_ok());
            prop_assert_eq!(&whole[61..], &out[..]);
            whole.push(0);
            prop_assert!(records::whole(&mut whole, &head(end - first), |room| records::write(room, &batch, first, end)).is_err());
            next = end;
        }
        prop_assert_eq!(next, sizes.len());
    }
}
