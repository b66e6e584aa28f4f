//! `/proc/softirqs` (fs/proc/softirqs.c): a line per vector, a column per possible CPU.

use crate::cpu_table::{CpuTable, Malformed, printable};
use nearpath_model::SoftirqCounts;

/// The kernel has ten vectors (include/linux/interrupt.h); more lines than this are not read.
const MAX_VECTORS: usize = 64;

/// Parses `/proc/softirqs`.
///
/// # Errors
/// The header lists no CPUs, or a line does not have one count per CPU.
pub fn parse_softirqs(bytes: &[u8]) -> Result<Vec<SoftirqCounts>, Malformed> {
    let mut table = CpuTable::new(bytes)?;
    let cpus = table.cpus().len();
    let mut vectors = Vec::new();
    let mut counts = Vec::new();
    while vectors.len() < MAX_VECTORS
        && let Some(line) = table.next_line(&mut counts)
    {
        let vector = printable(line.label);
        if line.numbers != cpus {
            return Err(Malformed(format!("{vector}: {} counts for {cpus} CPUs", line.numbers)));
        }
        vectors.push(SoftirqCounts { vector, counts: counts.drain(..).collect() });
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::CpuId;
    use proptest::prelude::*;

    #[test]
    fn vectors_by_cpu() {
        let text = include_bytes!("fixtures/softirqs-6.18.txt");
        let vectors = parse_softirqs(text).unwrap();
        assert_eq!(vectors.len(), 10);
        let net_rx = vectors.iter().find(|v| v.vector == "NET_RX").unwrap();
        assert_eq!(net_rx.counts, [(CpuId(0), 1875), (CpuId(1), 2074)].into());
        assert!(vectors[0].vector == "HI" && vectors[0].counts.is_empty());
    }

    #[test]
    fn a_truncated_line_is_reported() {
        let error = parse_softirqs(b" CPU0 CPU1\n NET_RX: 1 2\n NET_TX: 1\n").unwrap_err();
        assert_eq!(error.to_string(), "NET_TX: 1 counts for 2 CPUs");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_softirqs(&bytes);
            let _ = parse_softirqs(&[b"CPU0 CPU1\n", &bytes[..]].concat());
        }
    }
}
