//! Batches and their columns, which behave like Python lists as far as sinks need it.

use std::sync::{Arc, MutexGuard};

use bytes::BufMut;
use headrace_native_core::batch::{Batch as Messages, Headers, Shared, Values};
use headrace_native_core::entries::entry_in;
use headrace_native_core::output::lock;
use headrace_native_core::{abouts, amqp, records, Unfit};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString, PyTuple};

use crate::unfit;

/// The numbers of a table and an operation, and the keys of the rows, each with its number.
type About<'py> = (u32, u8, Vec<(u8, Bound<'py, PyBytes>)>);

/// Messages of one topic's partition.
#[pyclass(frozen)]
pub struct Batch {
    pub shared: Shared,
}

#[pymethods]
impl Batch {
    /// `abouts`: what each message is about is asked for; see `about`.
    #[new]
    #[pyo3(signature = (abouts = false))]
    fn new(abouts: bool) -> Self {
        let shared = Shared::default();
        lock(&shared).abouts = abouts.then(Values::default);
        Self { shared }
    }

    #[getter]
    fn values(&self) -> Column {
        Column { shared: Arc::clone(&self.shared), keys: false }
    }

    #[getter]
    fn headers(&self) -> HeaderColumn {
        HeaderColumn { shared: Arc::clone(&self.shared) }
    }

    /// Returns the column of keys; it exists from the first call on.
    #[getter]
    fn keys(&self) -> Column {
        lock(&self.shared).keys.get_or_insert_default();
        Column { shared: Arc::clone(&self.shared), keys: true }
    }

    /// Returns native code's counts: rows, bytes that they count, the last commit time in microseconds, and whether its
    /// message is the last one.
    #[getter]
    fn made(&self) -> (u64, u64, u64, bool) {
        let batch = lock(&self.shared);
        (batch.rows, batch.size, batch.commit_us, batch.reported == batch.values.count())
    }

    /// Returns the runs of messages (first, end, bytes) that fit into record batches of this size.
    fn runs(&self, limit: usize) -> PyResult<Vec<(usize, usize, usize)>> {
        let count = lock(&self.shared).values.count();
        Ok(records::runs(&*self.run(0, count)?, limit))
    }

    /// Returns the records of a run of messages.
    fn records<'py>(&self, py: Python<'py>, first: usize, end: usize) -> PyResult<Bound<'py, PyBytes>> {
        let batch = self.run(first, end)?;
        let mut out = Vec::with_capacity(records::size(&batch, first, end));
        records::write(&mut out, &batch, first, end);
        Ok(PyBytes::new(py, &out))
    }

    /// Returns Canal's entries of all messages, as the fields of Messages one after the other, and where each ends, in
    /// eight bytes of this machine. Raises ValueError for a tombstone.
    fn entries<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let values = &lock(&self.shared).values;
        let entry = |at| values.get(at).ok_or(Unfit).and_then(entry_in);
        let (mut size, mut ends) = (0, Vec::with_capacity(8 * values.count()));
        for at in 0..values.count() {
            size += entry(at).map_err(|_| unfit())?.len();
            ends.extend_from_slice(&(size as u64).to_ne_bytes());
        }
        let written = PyBytes::new_with(py, size, |mut out| {
            for at in 0..values.count() {
                out.put_slice(entry(at).map_err(|_| unfit())?);
            }
            Ok(())
        })?;
        Ok((written, PyBytes::new(py, &ends)))
    }

    /// Returns what a message is about: the numbers of table and operation, and the keys of its rows, each with its
    /// number; None if Python has made it, or it is about no row.
    fn about<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Option<About<'py>>> {
        let batch = lock(&self.shared);
        let Some(abouts) = batch.abouts.as_ref().filter(|abouts| at < abouts.count()) else { return Err(beyond()) };
        let Some(raw) = abouts.get(at) else { return Ok(None) };
        let (table, operation, keys) = abouts::read(raw).map_err(|_| unfit())?;
        Ok(Some((table, operation, keys.into_iter().map(|(which, key)| (which, PyBytes::new(py, key))).collect())))
    }

    /// Returns the AMQP frames of a run of messages. `publish`: the frame of the method; `partition`: the field of the
    /// table with the partition; `when`: seconds since 1970, or 0.
    #[allow(clippy::too_many_arguments)]
    fn amqp<'py>(
        &self,
        py: Python<'py>,
        run: (usize, usize),
        publish: &[u8],
        partition: &[u8],
        mode: u8,
        channel: u16,
        body_max: usize,
        when: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let batch = self.run(run.0, run.1)?;
        let publishing = amqp::Publishing { publish, partition, mode, channel, body_max, when };
        let mut out = Vec::new();
        for at in run.0..run.1 {
            publishing.write(&mut out, &batch, at).map_err(|_| unfit())?;
        }
        Ok(PyBytes::new(py, &out))
    }

    /// Returns the record batch of a run of messages; `records` are its records if they are compressed. `state` is the
    /// producer's: id, epoch and the first sequence number.
    fn record_batch<'py>(
        &self,
        py: Python<'py>,
        run: (usize, usize),
        attributes: i16,
        when: i64,
        state: (i64, i16, i32),
        records: Option<&[u8]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ((first, end), (producer_id, producer_epoch, base_sequence)) = (run, state);
        let batch = self.run(first, end)?;
        let head = records::Head { attributes, count: end - first, when, producer_id, producer_epoch, base_sequence };
        let size = records.map_or_else(|| records::size(&batch, first, end), <[u8]>::len);
        PyBytes::new_with(py, records::HEAD + size, |out| {
            records::whole(out, &head, |out| match records {
                Some(records) => out.put_slice(records),
                None => records::write(out, &batch, first, end),
            })
            .map_err(|_| unfit())
        })
    }
}

impl Batch {
    /// Returns the messages, if they exist.
    fn run(&self, first: usize, end: usize) -> PyResult<MutexGuard<'_, Messages>> {
        let batch = lock(&self.shared);
        let keys = batch.keys.as_ref().map_or(end, Values::count);
        if first > end || end > batch.values.count() || end > batch.headers.count() || end > keys {
            return Err(beyond());
        }
        Ok(batch)
    }
}

/// Values or keys: a list of bytes and None that only grows.
#[pyclass(frozen, sequence)]
pub struct Column {
    pub shared: Shared,
    pub keys: bool,
}

impl Column {
    fn with<T>(&self, then: impl FnOnce(&mut Values) -> T) -> T {
        let mut batch = lock(&self.shared);
        if self.keys {
            then(batch.keys.get_or_insert_default())
        } else {
            then(&mut batch.values)
        }
    }
}

fn beyond() -> PyErr {
    PyIndexError::new_err("there are not so many messages")
}

fn index(at: isize, len: usize) -> PyResult<usize> {
    let at = if at < 0 { at + len as isize } else { at };
    usize::try_from(at).ok().filter(|at| *at < len).ok_or_else(beyond)
}

#[pymethods]
impl Column {
    /// Returns its batch.
    #[getter]
    fn batch(&self) -> Batch {
        Batch { shared: Arc::clone(&self.shared) }
    }

    fn __len__(&self) -> usize {
        self.with(|values| values.count())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.with(|values| {
            let at = index(at, values.count())?;
            Ok(values.get(at).map(|value| PyBytes::new(py, value)))
        })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let all: Vec<_> = self
            .with(|values| (0..values.count()).map(|i| values.get(i).map(|value| PyBytes::new(py, value))).collect());
        PyList::new(py, all)?.try_iter()
    }

    fn append(&self, value: Option<&[u8]>) {
        self.with(|values| values.push(value));
        if !self.keys {
            if let Some(abouts) = &mut lock(&self.shared).abouts {
                abouts.push(None);
            }
        }
    }

    fn __iadd__(&self, more: &Bound<'_, PyAny>) -> PyResult<()> {
        for value in more.try_iter()? {
            let value = value?;
            self.append(value.extract::<Option<&[u8]>>()?);
        }
        Ok(())
    }

    /// Returns the bytes of each value.
    #[getter]
    fn sizes(&self) -> Vec<usize> {
        self.with(|values| (0..values.count()).map(|at| values.get(at).map_or(0, <[u8]>::len)).collect())
    }

    /// Returns the bytes of all values.
    #[getter]
    fn total(&self) -> usize {
        self.with(|values| values.total())
    }

    /// Returns the bytes of the largest value.
    #[getter]
    fn largest(&self) -> usize {
        self.with(|values| values.largest())
    }
}

/// The headers of each message, as lists of names and values.
#[pyclass(frozen, sequence)]
pub struct HeaderColumn {
    pub shared: Shared,
}

fn add(headers: &mut Headers, own: &Bound<'_, PyAny>) -> PyResult<()> {
    headers.begin(own.len()?);
    for pair in own.try_iter()? {
        let pair = pair?;
        let (name, value) = pair.extract::<(Bound<'_, PyString>, Bound<'_, PyBytes>)>()?;
        headers.add(name.to_str()?.as_bytes(), value.as_bytes());
    }
    headers.end();
    Ok(())
}

fn read<'py>(py: Python<'py>, headers: &Headers, at: usize) -> PyResult<Bound<'py, PyList>> {
    let pairs: Vec<Bound<'py, PyTuple>> = headers
        .get(at)
        .map_err(|_| unfit())?
        .into_iter()
        .map(|(name, value)| {
            let name = PyString::new(py, &String::from_utf8_lossy(name));
            PyTuple::new(py, [name.into_any(), PyBytes::new(py, value).into_any()])
        })
        .collect::<PyResult<_>>()?;
    PyList::new(py, pairs)
}

#[pymethods]
impl HeaderColumn {
    fn __len__(&self) -> usize {
        lock(&self.shared).headers.count()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Bound<'py, PyList>> {
        let batch = lock(&self.shared);
        read(py, &batch.headers, index(at, batch.headers.count())?)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let batch = lock(&self.shared);
        let all: Vec<_> = (0..batch.headers.count()).map(|at| read(py, &batch.headers, at)).collect::<PyResult<_>>()?;
        PyList::new(py, all)?.try_iter()
    }

    fn append(&self, own: &Bound<'_, PyAny>) -> PyResult<()> {
        add(&mut lock(&self.shared).headers, own)
    }

    fn __iadd__(&self, more: &Bound<'_, PyAny>) -> PyResult<()> {
        for own in more.try_iter()? {
            add(&mut lock(&self.shared).headers, &own?)?;
        }
        Ok(())
    }
}
