//! Reads rows of one table out of a binlog with the crate mysql, and publishes them with librdkafka: a message of JSON a
//! rows event, all columns as texts. The argument is a job as JSON; prints rows a second of real time and microseconds of
//! CPU a row, from the first confirmed rows to the last.

use std::error::Error;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mysql::binlog::events::{EventData, RowsEventData};
use mysql::binlog::row::BinlogRow;
use mysql::binlog::value::BinlogValue;
use mysql::{BinlogRequest, Conn, OptsBuilder, Value};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::ClientContext;
use serde_json::Value as Json;

/// What brokers have confirmed. `begun` is the state at the first confirmation: rows, time, and CPU.
#[derive(Default)]
struct Confirmed {
    rows: AtomicUsize,
    failed: AtomicUsize,
    begun: Mutex<Option<(usize, Instant, Duration)>>,
}

#[derive(Clone)]
struct Counting(Arc<Confirmed>);

impl ClientContext for Counting {}

impl ProducerContext for Counting {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, rows: usize) {
        if result.is_err() {
            self.0.failed.fetch_add(rows, Ordering::SeqCst);
            return;
        }
        let all = self.0.rows.fetch_add(rows, Ordering::SeqCst) + rows;
        let mut begun = self.0.begun.lock().unwrap();
        if begun.is_none() {
            *begun = Some((all, Instant::now(), used()));
        }
    }
}

fn used() -> Duration {
    // SAFETY: getrusage() fills the struct that it is given.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let span = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    span(usage.ru_utime) + span(usage.ru_stime)
}

fn print_text(out: &mut Vec<u8>, text: &str) -> Result<(), Box<dyn Error>> {
    Ok(serde_json::to_writer(out, text)?)
}

fn print_value(out: &mut Vec<u8>, value: BinlogValue<'_>) -> Result<(), Box<dyn Error>> {
    match value {
        BinlogValue::Value(Value::NULL) => out.extend_from_slice(b"null"),
        BinlogValue::Value(Value::Bytes(bytes)) => print_text(out, &String::from_utf8_lossy(&bytes))?,
        BinlogValue::Value(Value::Int(number)) => write!(out, "\"{number}\"")?,
        BinlogValue::Value(Value::UInt(number)) => write!(out, "\"{number}\"")?,
        BinlogValue::Value(Value::Float(number)) => write!(out, "\"{number}\"")?,
        BinlogValue::Value(Value::Double(number)) => write!(out, "\"{number}\"")?,
        BinlogValue::Value(Value::Date(year, month, day, hour, minute, second, micros)) => {
            write!(out, "\"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}\"")?
        }
        BinlogValue::Value(Value::Time(negative, days, hours, minutes, seconds, micros)) => {
            let (sign, hours) = (if negative { "-" } else { "" }, days * 24 + u32::from(hours));
            write!(out, "\"{sign}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}\"")?
        }
        BinlogValue::Jsonb(document) => print_text(out, &Json::try_from(document)?.to_string())?,
        BinlogValue::JsonDiff(_) => return Err("partial updates are not read".into()),
    }
    Ok(())
}

fn print_row(out: &mut Vec<u8>, row: BinlogRow) -> Result<(), Box<dyn Error>> {
    let columns = row.columns();
    let mut separator = b'{';
    for (column, value) in columns.iter().zip(row.unwrap()) {
        out.push(separator);
        print_text(out, &column.name_str())?;
        out.push(b':');
        print_value(out, value)?;
        separator = b',';
    }
    out.push(b'}');
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let job: Json = serde_json::from_str(&std::env::args().nth(1).ok_or("a job is missing")?)?;
    let text = |key: &str| job[key].as_str().unwrap_or_default();
    let (table, wanted) = (text("table"), job["rows"].as_u64().unwrap_or(0) as usize);
    let confirmed = Arc::new(Confirmed::default());
    let producer: ThreadedProducer<Counting> = ClientConfig::new()
        .set("bootstrap.servers", text("kafka"))
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("batch.size", "1000000")
        .set("linger.ms", "5")
        .set("queue.buffering.max.kbytes", "65536")
        .create_with_context(Counting(confirmed.clone()))?;
    let login = OptsBuilder::new()
        .ip_or_hostname(Some(text("host")))
        .tcp_port(job["port"].as_u64().unwrap_or(3306) as u16)
        .user(Some(text("user")))
        .pass(Some(text("password")));
    let request =
        BinlogRequest::new(std::process::id() + 700_000).with_filename(text("file").as_bytes()).with_pos(4u64);
    let mut stream = Conn::new(login)?.get_binlog_stream(request)?;
    let mut sent = 0;
    while sent < wanted {
        let event = stream.next().ok_or("the binlog has ended")??;
        let Some(EventData::RowsEvent(rows)) = event.read_data()? else {
            continue;
        };
        let described = stream.get_tme(rows.table_id()).ok_or("a table is not described")?;
        if described.table_name() != table {
            continue;
        }
        let mut message = Vec::with_capacity(16 << 10);
        let kind = match rows {
            RowsEventData::WriteRowsEvent(_) => "INSERT",
            RowsEventData::DeleteRowsEvent(_) => "DELETE",
            _ => "UPDATE",
        };
        write!(message, "{{\"table\":\"{table}\",\"type\":\"{kind}\",\"data\":")?;
        let (mut olds, mut count) = (Vec::new(), 0);
        for row in rows.rows(described) {
            let (before, after) = row?;
            message.push(if count == 0 { b'[' } else { b',' });
            match (before, after) {
                (Some(before), Some(after)) => {
                    olds.push(if olds.is_empty() { b'[' } else { b',' });
                    print_row(&mut olds, before)?;
                    print_row(&mut message, after)?;
                }
                (Some(only), None) | (None, Some(only)) => print_row(&mut message, only)?,
                (None, None) => return Err("a row without images".into()),
            }
            count += 1;
        }
        message.extend_from_slice(b"],\"old\":");
        olds.extend_from_slice(if olds.is_empty() { b"null}" } else { b"]}" });
        message.extend_from_slice(&olds);
        let topic = text("topic");
        let mut record = BaseRecord::<(), Vec<u8>, usize>::with_opaque_to(topic, count).payload(&message);
        while let Err((error, back)) = producer.send(record) {
            if !matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) {
                return Err(error.into());
            }
            std::thread::sleep(Duration::from_millis(1));
            record = back;
        }
        sent += count;
    }
    producer.flush(Duration::from_secs(60))?;
    if confirmed.failed.load(Ordering::SeqCst) > 0 {
        return Err("messages were refused".into());
    }
    let (first, begun, before) = confirmed.begun.lock().unwrap().ok_or("nothing was confirmed")?;
    let counted = (confirmed.rows.load(Ordering::SeqCst) - first) as f64;
    let (took, cpu) = (begun.elapsed(), used() - before);
    println!(
        "{{\"rows_per_second\": {}, \"cpu_us\": {}}}",
        counted / took.as_secs_f64(),
        cpu.as_micros() as f64 / counted
    );
    Ok(())
}
