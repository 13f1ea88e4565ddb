//! The archive's packets and files.

use headrace_native_core::archive;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::unfit;

/// uuid, first and last number
type Gtids<'py> = (Bound<'py, PyBytes>, u64, u64);
/// Where it stopped in the packets and in the file, where the last event begins, and where the last one ends that wants
/// an acknowledgement
type Places = (usize, u64, u64, u64);
/// Commit times of the first transaction and the latest, MySQL's GTIDs, MariaDB's, tables, whether some are not known
type Facts<'py> = (u64, u64, Vec<Gtids<'py>>, Vec<(u32, u32, u64)>, Vec<(String, String)>, bool);

/// Reads packets as the bytes of a file; see `Recorder`. Returns the bytes, the places and the facts.
#[pyfunction]
pub fn archive_record<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    end: u64,
    checksums: bool,
    extra: usize,
    most: usize,
) -> (Bound<'py, PyBytes>, Places, Facts<'py>) {
    let run = archive::record(data, at, end, checksums, extra, most);
    let gtids = run.gtids.iter().map(|(source, first, last)| (PyBytes::new(py, source), *first, *last)).collect();
    let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
    let tables = run.tables.iter().map(|(schema, table)| (text(schema), text(table))).collect();
    let facts = (run.first_us, run.last_us, gtids, run.domains, tables, run.compressed);
    (PyBytes::new(py, &run.raw), (run.at, run.end, run.last_event, run.acknowledge), facts)
}

/// Returns the packets of a part of a file; see `ArchivedPackets`. Raises ValueError for what Python must report.
#[pyfunction]
pub fn archive_packets<'py>(py: Python<'py>, data: &[u8], start: u64, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
    let made = py.detach(|| archive::packets(data, start, offset)).ok_or_else(unfit)?;
    Ok(PyBytes::new(py, &made))
}
