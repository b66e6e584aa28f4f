//! The log of the segment that is still open: a line of JSON that names the segment, then a line for each batch. A line
//! that is cut is not there.

use super::batch::Batch;
use serde::{Deserialize, Serialize};

/// Longest log that is read. The recorder begins a new segment long before.
pub const LOG_MAX: u64 = 256 << 20;
/// The extension of its file; the name is the segment's.
pub const EXTENSION: &str = "log";

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// [`SCHEMA`](super::table::SCHEMA).
    pub schema: u32,
    /// Name of the host.
    pub host: String,
    /// The kernel's boot id.
    pub boot: String,
}

/// A log as it was read.
#[derive(Debug, Default, PartialEq)]
pub struct Log {
    /// Its first line; `None` if it was cut before its end.
    pub head: Option<Head>,
    /// Its batches.
    pub batches: Vec<Batch>,
    /// Bytes of the lines that are whole.
    pub whole: u64,
}

/// Reads what is whole of a log, up to the first line that is not.
pub fn read(bytes: &[u8]) -> Log {
    let mut log = Log::default();
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n") else { break };
        if log.head.is_none() {
            let Ok(head) = serde_json::from_slice(text) else { break };
            log.head = Some(head);
        } else {
            let Ok(batch) = serde_json::from_slice(text) else { break };
            log.batches.push(batch);
        }
        log.whole += line.len() as u64;
    }
    log
}

/// A line.
pub fn line(of: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(of).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::super::batch::Cell;
    use super::super::table::Table;
    use super::*;

    #[test]
    fn a_log_cut_anywhere_has_the_batches_before_the_cut() {
        let head = Head { schema: 1, host: "h".to_owned(), boot: "b".to_owned() };
        let mut bytes = line(&head);
        let mut ends = vec![bytes.len()];
        for n in 0..3u64 {
            let mut batch = Batch { time_us: 5, interval_s: 1.0, ..Batch::default() };
            batch.push(Table::Packets, [Cell::from("started"), Cell::from(n)]);
            bytes.extend(line(&batch));
            ends.push(bytes.len());
        }
        for length in 0..=bytes.len() {
            let log = read(&bytes[..length]);
            let whole = ends.iter().filter(|&&end| end <= length).count();
            assert_eq!(log.head.is_some(), whole > 0);
            assert_eq!(log.batches.len(), whole.saturating_sub(1), "{length}");
        }
    }
}
