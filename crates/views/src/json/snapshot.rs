//! `snapshot --json`: what was saved, and where.

use nearpath_model::SnapshotSummary;
use serde::Serialize;

/// Version of the JSON form of [`Snapshot`].
const SCHEMA: u32 = 1;

/// What `nearpath snapshot` saved.
#[derive(Debug, Serialize)]
pub struct Snapshot<'a> {
    schema: u32,
    file: &'a str,
    files: usize,
    answers: usize,
    refused: usize,
    size_bytes: usize,
}

/// The document of a snapshot that was saved in `file`.
pub fn snapshot<'a>(file: &'a str, summary: &SnapshotSummary) -> Snapshot<'a> {
    let SnapshotSummary { files, answers, refused, bytes: size_bytes } = *summary;
    Snapshot { schema: SCHEMA, file, files, answers, refused, size_bytes }
}
