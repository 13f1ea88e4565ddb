//! Python's description of a table: tuples that begin with a name.

use std::sync::{Arc, Mutex, PoisonError};

use headrace_native_core::canal::Canal;
use headrace_native_core::changes::Operation;
use headrace_native_core::charsets::{Charset, Codes};
use headrace_native_core::conditions::{Condition, Exact, Like, Operator, Test};
use headrace_native_core::debezium::{Added, Debezium};
use headrace_native_core::decimal::Decimal;
use headrace_native_core::entries::{Constants, Entries, EntryMarks};
use headrace_native_core::fields::{Binary, Kind, Label, Style};
use headrace_native_core::formats::Format;
use headrace_native_core::hashes;
use headrace_native_core::masks::{Hmac, Mask};
use headrace_native_core::maxwell::{Maxwell, Place};
use headrace_native_core::output::MarkStyle;
use headrace_native_core::table::{About, Column, Key, RecordKey, Route};
use headrace_native_core::temporal::{Stored, Zone};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::unfit;

/// The entries of a description after its name.
struct Spec<'a, 'py>(&'a Bound<'py, PyTuple>);

impl<'py> Spec<'_, 'py> {
    fn get<T>(&self, at: usize) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py>,
        for<'a> <T as FromPyObject<'a, 'py>>::Error: Into<PyErr>,
    {
        self.0.get_item(at)?.extract::<T>().map_err(Into::into)
    }
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("{what} {name} is not known"))
}

const DIGITS: &[usize] = &[0, 1, 2, 3, 4, 5, 6];
const LENGTHS: &[usize] = &[1, 2, 3, 4];

/// Reads the layout of a column in a row image; see `for_native_code` in `headrace/mysql/values/column_types.py`.
pub fn kind(spec: &Bound<'_, PyTuple>) -> PyResult<Kind> {
    let spec = Spec(spec);
    let name: String = spec.get(0)?;
    Ok(match name.as_str() {
        "int" => Kind::Int { size: size_of(spec.get(1)?, &[1, 2, 3, 4, 8])?, signed: spec.get(2)? },
        "float" => Kind::Float,
        "double" => Kind::Double,
        "year" => Kind::Year,
        "decimal" => Kind::Decimal(Decimal::new(spec.get(1)?, spec.get(2)?).map_err(|_| unfit())?),
        "bit" => Kind::Bit { size: size_of(spec.get(1)?, &[1, 2, 3, 4, 5, 6, 7, 8])? },
        "enum" => Kind::Enum { size: size_of(spec.get(1)?, &[1, 2])?, labels: labels(&spec.get::<Vec<String>>(2)?) },
        "set" => Kind::Set { size: size_of(spec.get(1)?, &[1, 2, 3, 4, 5, 6, 7, 8])?, labels: members(spec.get(2)?)? },
        "date" => Kind::Date,
        "datetime" => Kind::Datetime(stored(&spec)?),
        "timestamp" => Kind::Timestamp { stored: stored(&spec)?, zone: zone(spec.get(3)?)? },
        "time" => Kind::Time(stored(&spec)?),
        "text" => Kind::Text { length: size_of(spec.get(1)?, LENGTHS)?, charset: charset(&spec.get(2)?)? },
        "bytes" => Kind::Bytes { length: size_of(spec.get(1)?, LENGTHS)?, pad: spec.get(2)? },
        "compressed" => {
            let value = kind(&spec.get(3)?)?;
            if !matches!(value, Kind::Text { .. } | Kind::Bytes { .. }) {
                return Err(unfit());
            }
            Kind::Compressed { length: size_of(spec.get(1)?, LENGTHS)?, largest: spec.get(2)?, value: Box::new(value) }
        }
        "json" => Kind::Json { length: size_of(spec.get(1)?, LENGTHS)? },
        "uuid" => Kind::Uuid,
        "inet6" => Kind::Inet6,
        "inet4" => Kind::Inet4,
        "vector" => Kind::Vector { length: size_of(spec.get(1)?, LENGTHS)? },
        _ => return Err(unknown("the layout", &name)),
    })
}

fn stored(spec: &Spec<'_, '_>) -> PyResult<Stored> {
    Ok(Stored { fsp: size_of(spec.get(1)?, DIGITS)?, old: spec.get(2)? })
}

fn size_of(size: usize, known: &[usize]) -> PyResult<usize> {
    known.contains(&size).then_some(size).ok_or_else(unfit)
}

fn members(texts: Vec<String>) -> PyResult<Vec<Label>> {
    if texts.len() > 64 {
        return Err(unfit());
    }
    Ok(labels(&texts))
}

fn labels(texts: &[String]) -> Vec<Label> {
    texts.iter().map(|text| Label::new(text.as_bytes())).collect()
}

/// Reads the changes of a time zone; none for UTC.
fn zone(changes: Vec<(u32, i32)>) -> PyResult<Option<Arc<Zone>>> {
    if changes.is_empty() {
        return Ok(None);
    }
    Zone::new(changes).map(|zone| Some(Arc::new(zone))).map_err(|_| unfit())
}

/// The character sets that this process has read, by name: the tables of one may take half a megabyte.
static CHARSETS: Mutex<Vec<(String, Arc<Charset>)>> = Mutex::new(Vec::new());

/// Reads a character set; see `native_charset` in `headrace/mysql/values/charsets.py`.
fn charset(spec: &Bound<'_, PyTuple>) -> PyResult<Arc<Charset>> {
    let spec = Spec(spec);
    let name: String = spec.get(0)?;
    let mut known = CHARSETS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, charset)) = known.iter().find(|(one, _)| *one == name) {
        return Ok(Arc::clone(charset));
    }
    let kind: String = spec.get(1)?;
    let table = |at: usize| -> PyResult<Vec<char>> { Ok(spec.get::<String>(at)?.chars().collect()) };
    let made = Arc::new(match kind.as_str() {
        "utf-8" => Charset::Utf8,
        "utf-16" => Charset::Utf16 { little: spec.get(2)?, pairs: spec.get(3)? },
        "utf-32" => Charset::Utf32,
        "codes" => Charset::Codes(Codes::new(table(2)?, table(3)?, table(4)?, table(5)?).map_err(|_| unfit())?),
        _ => return Err(unknown("the character set", &kind)),
    });
    known.push((name, Arc::clone(&made)));
    Ok(made)
}

fn binary(name: &str) -> PyResult<Binary> {
    Ok(match name {
        "base64" => Binary::Base64,
        "base64-url-safe" => Binary::Base64Url,
        "hex" => Binary::Hex,
        "latin1" => Binary::Latin1,
        _ => return Err(unknown("the encoding", name)),
    })
}

/// Reads the style in which a format prints a column.
pub fn style(spec: &Bound<'_, PyTuple>) -> PyResult<Style> {
    let spec = Spec(spec);
    let name: String = spec.get(0)?;
    Ok(match name.as_str() {
        "text" => Style::Text(binary(spec.get::<String>(1)?.as_str())?),
        "number" => Style::Number,
        "unscaled" => Style::Unscaled,
        "real" => Style::Real,
        "wrapped" => Style::Wrapped,
        "truth" => Style::Truth,
        "bits" => Style::Bits(spec.get(1)?),
        "days" => Style::Days(spec.get::<String>(1)?.into_bytes()),
        "since" => Style::Time { unit: spec.get(1)?, zero: spec.get::<String>(2)?.into_bytes() },
        "zoned" => Style::Zoned(spec.get::<String>(1)?.into_bytes()),
        "year" => Style::Year,
        "decimals" => Style::Decimals(spec.get::<u8>(1)?.into()),
        "json" => Style::Json,
        "list" => Style::List,
        "geometry" => Style::Geometry { point: false },
        "point" => Style::Geometry { point: true },
        _ => return Err(unknown("the style", &name)),
    })
}

/// A published column: number of the field, name as JSON with its colon, style, mask.
pub type ColumnSpec<'py> = (usize, String, Bound<'py, PyTuple>, Option<Bound<'py, PyTuple>>);

/// Reads published columns, and their names one after another.
pub fn columns(specs: &[ColumnSpec<'_>]) -> PyResult<(Vec<Column>, Vec<u8>)> {
    let mut names = Vec::new();
    let one = |(field, name, style_spec, mask_spec): &ColumnSpec<'_>| {
        let mask = mask_spec.as_ref().map(mask).transpose()?;
        let begin = names.len();
        names.extend_from_slice(name.as_bytes());
        Ok(Column { field: *field, name: begin..names.len(), style: style(style_spec)?, mask })
    };
    let columns = specs.iter().map(one).collect::<PyResult<_>>()?;
    Ok((columns, names))
}

/// Reads a mask; see `Mask.native` in `headrace/rules/masks.py`.
fn mask(spec: &Bound<'_, PyTuple>) -> PyResult<Mask> {
    let spec = Spec(spec);
    let name: String = spec.get(0)?;
    Ok(match name.as_str() {
        "null" => Mask::Null,
        "fixed" => Mask::Fixed(spec.get::<String>(1)?.into_bytes()),
        "truncate" => Mask::Truncate(spec.get(1)?),
        "hash" => Mask::Hash(Box::new(Hmac::new(&spec.get::<Vec<u8>>(1)?))),
        _ => return Err(unknown("the mask", &name)),
    })
}

/// See `_Column.native` in `headrace/formats/canal/entries.py`.
type Cell = (Vec<u8>, Vec<u8>, Vec<u8>, Option<(u64, Vec<u8>)>);

fn constants((before, after, before_null, before_small): Cell) -> Constants {
    Constants { before, after, before_null, before_small }
}

fn place(name: &str) -> PyResult<Place> {
    Ok(match name {
        "position" => Place::Position,
        "gtid" => Place::Gtid,
        "server_id" => Place::ServerId,
        "thread_id" => Place::ThreadId,
        _ => return Err(unknown("the field", name)),
    })
}

/// Reads the fields that a row without an envelope gets, each by its constant begin and the name of the rest.
fn added_fields(specs: Vec<(String, String)>) -> PyResult<Vec<(Vec<u8>, Added)>> {
    specs.into_iter().map(|(begin, name)| Ok((begin.into_bytes(), added(&name)?))).collect()
}

fn added(name: &str) -> PyResult<Added> {
    const MS: u64 = 1_000_000;
    Ok(match name {
        "" => Added::Nothing,
        "op" => Added::Op,
        "ts_ms" => Added::Now(MS),
        "ts_us" => Added::Now(1000),
        "ts_ns" => Added::Now(1),
        "source.ts_ms" => Added::Commit(MS),
        "source.ts_us" => Added::Commit(1000),
        "source.ts_ns" => Added::Commit(1),
        "source.snapshot" => Added::Snapshot,
        "source.server_id" => Added::ServerId,
        "source.gtid" => Added::Gtid,
        "source.file" => Added::File,
        "source.pos" => Added::Pos,
        "source.row" => Added::Row,
        "source.thread" => Added::Thread,
        _ => return Err(unknown("the field", name)),
    })
}

/// Reads a format's description of a table; see `NativeTable` in `headrace/ports/format.py`.
pub fn format(spec: &Bound<'_, PyTuple>) -> PyResult<Format> {
    let spec = Spec(spec);
    let bytes = |at: usize| -> PyResult<Vec<u8>> { Ok(spec.get::<String>(at)?.into_bytes()) };
    let name: String = spec.get(0)?;
    Ok(match name.as_str() {
        "canal" => Format::Canal(Canal {
            middle: bytes(1)?,
            types: bytes(2)?,
            tail: bytes(3)?,
            compat: spec.get(4)?,
            uniform: spec.get(5)?,
            key_head: bytes(6)?,
            keys: spec.get(7)?,
        }),
        "debezium" => Format::Debezium(Debezium {
            value_head: bytes(1)?,
            key: RecordKey { head: bytes(2)?, tail: bytes(3)?, columns: spec.get(8)? },
            tail: bytes(3)?,
            source: bytes(4)?,
            source_db: bytes(5)?,
            source_table: bytes(6)?,
            tombstones: spec.get(7)?,
            shows_deletes: spec.get(9)?,
            unwrapped: spec.get::<Option<_>>(10)?.map(added_fields).transpose()?,
        }),
        "entries" => {
            let cells = spec.get::<Vec<Cell>>(2)?.into_iter().map(constants).collect();
            Format::Entries(Entries { header: spec.get(1)?, cells, compat: spec.get(3)? })
        }
        "maxwell" => {
            let keys = spec.get::<Vec<(usize, String)>>(5)?.into_iter();
            Format::Maxwell(Maxwell {
                head: bytes(1)?,
                places: spec.get::<Vec<String>>(2)?.iter().map(|name| place(name)).collect::<PyResult<_>>()?,
                shows_key: spec.get(3)?,
                key_columns: bytes(4)?,
                keys: keys.map(|(column, name)| (column, name.into_bytes())).collect(),
            })
        }
        _ => return Err(unknown("the format", &name)),
    })
}

/// Reads the style of messages about the begin and end of transactions.
pub fn marks(spec: &Bound<'_, PyTuple>) -> PyResult<MarkStyle> {
    let spec = Spec(spec);
    let name: String = spec.get(0)?;
    Ok(match name.as_str() {
        "entries" => MarkStyle::Entries(EntryMarks { header: spec.get(1)?, compat: spec.get(2)? }),
        "canal" => {
            MarkStyle::Canal { compat: spec.get(1)?, key: spec.get::<Option<String>>(2)?.map(String::into_bytes) }
        }
        _ => return Err(unknown("the style of marks", &name)),
    })
}

/// Reads a condition; see `native_condition` in `headrace/rules/predicates.py`.
pub fn condition(spec: &Bound<'_, PyTuple>) -> PyResult<Condition> {
    let spec = Spec(spec);
    let parts = |at: usize| -> PyResult<Vec<Condition>> {
        spec.get::<Vec<Bound<'_, PyTuple>>>(at)?.iter().map(condition).collect()
    };
    let name: String = spec.get(0)?;
    let test = match name.as_str() {
        "every" => return Ok(Condition::Every(parts(1)?)),
        "any" => return Ok(Condition::Any(parts(1)?)),
        "not" => return Ok(Condition::Not(Box::new(condition(&spec.get(1)?)?))),
        "is null" => return Ok(Condition::IsNull(spec.get(1)?)),
        "like" => Test::Like(Like(spec.get(2)?)),
        _ => {
            let operator = operator(spec.get::<String>(2)?.as_str())?;
            let texts: Vec<String> = spec.get(3)?;
            match name.as_str() {
                "int" => {
                    let whole = |text: &String| text.parse().map_err(|_| unfit());
                    Test::Int(operator, texts.iter().map(whole).collect::<PyResult<_>>()?)
                }
                "decimal" => {
                    let exact = |text: &String| Exact::new(text.as_bytes()).map_err(|_| unfit());
                    Test::Decimal(operator, texts.iter().map(exact).collect::<PyResult<_>>()?)
                }
                "float" => {
                    let double = |text: &String| text.parse().map_err(|_| unfit());
                    Test::Float(operator, texts.iter().map(double).collect::<PyResult<_>>()?)
                }
                "text" => Test::Text(operator, texts.iter().map(|text| text.as_bytes().to_vec()).collect()),
                _ => return Err(unknown("the condition", &name)),
            }
        }
    };
    Ok(Condition::Leaf(spec.get(1)?, test))
}

fn operator(name: &str) -> PyResult<Operator> {
    Ok(match name {
        "==" => Operator::Equal,
        "!=" => Operator::Unequal,
        "<" => Operator::Less,
        "<=" => Operator::AtMost,
        ">" => Operator::More,
        ">=" => Operator::AtLeast,
        "in" => Operator::In,
        _ => return Err(unknown("the operator", name)),
    })
}

/// Reads an operation by Canal's name.
pub fn operation(name: &str) -> PyResult<Operation> {
    Ok(match name {
        "INSERT" => Operation::Insert,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        _ => return Err(unknown("the operation", name)),
    })
}

/// Reads where rows go: ("one", slot), or ("spread", slots, key).
pub fn route(spec: &Bound<'_, PyTuple>, format: &Format) -> PyResult<Route> {
    let spec = Spec(spec);
    if spec.get::<String>(0)? == "one" {
        return Ok(Route::One(spec.get(1)?));
    }
    Ok(Route::Spread { slots: spec.get(1)?, key: key(&spec.get(2)?, format)? })
}

/// Reads a key: ("text", field), ("list", fields), ("record",) or ("canal", fields, the schema's name or None).
fn key(spec: &Bound<'_, PyTuple>, format: &Format) -> PyResult<Key> {
    let spec = Spec(spec);
    let name: String = spec.get(0)?;
    Ok(match name.as_str() {
        "text" => Key::Text(spec.get(1)?),
        "list" => Key::List(spec.get(1)?),
        "record" => match format {
            Format::Debezium(format) => Key::Record(format.key.clone()),
            Format::Canal(_) | Format::Entries(_) | Format::Maxwell(_) => return Err(unfit()),
        },
        "canal" => {
            let database = spec.get::<Option<String>>(2)?.map_or(0, |name| hashes::java_hash(&name));
            Key::Canal { fields: spec.get(1)?, database }
        }
        _ => return Err(unknown("the key", &name)),
    })
}

/// How messages of a table are known: its number, and the keys of a row, each with its number.
pub type AboutSpec<'py> = (u32, Vec<(u8, Bound<'py, PyTuple>)>);

/// Reads that.
pub fn about(number: u32, keys: &[(u8, Bound<'_, PyTuple>)], format: &Format) -> PyResult<About> {
    let keys = keys.iter().map(|(which, spec)| Ok((*which, key(spec, format)?))).collect::<PyResult<_>>()?;
    Ok(About { number, keys })
}
