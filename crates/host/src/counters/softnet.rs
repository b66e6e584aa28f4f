//! `/proc/net/softnet_stat` (net/core/net-procfs.c, `softnet_seq_show`): a line per online CPU, with
//! hexadecimal columns:
//!
//! | columns | since | meaning |
//! |---|---|---|
//! | 0–2 | | processed, dropped, time_squeeze |
//! | 3–8 | | 0 today (formerly fastroute and cpu_collision) |
//! | 9 | 2.6.35 | received_rps |
//! | 10 | 3.11 | flow_limit |
//! | 11, 12 | 5.7 | length of the backlog, the CPU |
//! | 13, 14 | 6.4 | length of input_pkt_queue, of process_queue |
//!
//! Before 5.7 the lines do not have a CPU number: they are then those of the online CPUs, in order.

use crate::cpu_table::{Malformed, cpu_id};
use nearpath_model::{CpuSet, MAX_CPUS, SoftnetCpu};

const CPU: usize = 12;

/// Parses `/proc/net/softnet_stat`; `online` is used if it does not have CPU numbers.
///
/// # Errors
/// A line without the first three columns, a column that is not a number, or lines without CPU numbers that are
/// not as many as the online CPUs.
pub fn parse_softnet(bytes: &[u8], online: &CpuSet) -> Result<Vec<SoftnetCpu>, Malformed> {
    let lines: Vec<Vec<u64>> = bytes
        .split(|&b| b == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .take(MAX_CPUS as usize)
        .map(columns)
        .collect::<Result<_, _>>()?;
    let named = lines.iter().all(|line| line.len() > CPU);
    if !named && lines.len() != online.len() {
        let (lines, cpus) = (lines.len(), online.len());
        return Err(Malformed(format!(
            "{lines} lines without a CPU number, but {cpus} CPUs are online"
        )));
    }
    let mut online = online.iter();
    let mut cpus = Vec::with_capacity(lines.len());
    for line in lines {
        let cpu = if named { line.get(CPU).copied().and_then(cpu_id) } else { online.next() };
        let &[processed, dropped, time_squeeze, ..] = line.as_slice() else {
            return Err(Malformed(format!("a line with only {} columns", line.len())));
        };
        cpus.push(SoftnetCpu {
            cpu: cpu.ok_or_else(|| Malformed("a CPU number that is too large".into()))?,
            processed,
            dropped,
            time_squeeze,
            received_rps: line.get(9).copied(),
            flow_limit: line.get(10).copied(),
            backlog: line.get(11).copied(),
            input_queue: line.get(13).copied(),
            process_queue: line.get(14).copied(),
        });
    }
    cpus.sort_by_key(|cpu| cpu.cpu);
    cpus.dedup_by_key(|cpu| cpu.cpu);
    Ok(cpus)
}

/// The columns of a line; unknown ones at the end are omitted.
fn columns(line: &[u8]) -> Result<Vec<u64>, Malformed> {
    let bad = || Malformed("a column that is not a hexadecimal number".into());
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .take(15)
        .map(|word| {
            let text = str::from_utf8(word).map_err(|_| bad())?;
            u32::from_str_radix(text, 16).map(u64::from).map_err(|_| bad())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::CpuId;
    use proptest::prelude::*;

    fn online(list: &str) -> CpuSet {
        CpuSet::from_list(list).unwrap()
    }

    #[test]
    fn kernel_6_18_names_the_cpu_and_both_queues() {
        let text = include_bytes!("fixtures/softnet_stat-6.18.txt");
        // The index column takes precedence over `online`.
        let cpus = parse_softnet(text, &online("0-1")).unwrap();
        assert_eq!(cpus.iter().map(|c| c.cpu.0).collect::<Vec<_>>(), [0, 2]);
        let expected = SoftnetCpu {
            cpu: CpuId(2),
            processed: 0xc03,
            dropped: 1,
            time_squeeze: 0x1a,
            received_rps: Some(0x20),
            flow_limit: Some(3),
            backlog: Some(7),
            input_queue: Some(5),
            process_queue: Some(2),
        };
        assert_eq!(cpus[1], expected);
    }

    #[test]
    fn kernel_5_10_names_the_cpu() {
        let cpus = parse_softnet(include_bytes!("fixtures/softnet_stat-5.10.txt"), &online("0-1"));
        let cpus = cpus.unwrap();
        assert_eq!(cpus.iter().map(|c| c.cpu.0).collect::<Vec<_>>(), [0, 17]);
        assert_eq!((cpus[1].backlog, cpus[1].input_queue), (Some(4), None));
    }

    #[test]
    fn kernel_4_19_is_counted_over_the_online_cpus() {
        let text = include_bytes!("fixtures/softnet_stat-4.19.txt");
        let cpus = parse_softnet(text, &online("1,3,8")).unwrap();
        assert_eq!(cpus.iter().map(|c| c.cpu.0).collect::<Vec<_>>(), [1, 3, 8]);
        assert_eq!((cpus[2].received_rps, cpus[2].backlog), (Some(0x21), None));
        for wrong in ["", "0-1", "0-3"] {
            let error = parse_softnet(text, &online(wrong)).unwrap_err();
            assert!(error.to_string().contains("3 lines"), "{error}");
        }
    }

    #[test]
    fn malformed_text_is_rejected() {
        for bad in ["1 2", "1 2 x", "1 2 -3", "1 2 1ffffffff", "0 0 0 0 0 0 0 0 0 0 0 0 ffffffff"] {
            assert!(parse_softnet(bad.as_bytes(), &online("0")).is_err(), "{bad}");
        }
        assert_eq!(parse_softnet(b"", &online("")), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_softnet(&bytes, &online("0-3"));
        }

        #[test]
        fn generated_lines_read_back(rows in proptest::collection::btree_map(0u32..9000, any::<[u32; 14]>(), 0..20)) {
            let mut text = String::new();
            for (cpu, values) in &rows {
                let mut columns: Vec<u32> = values.to_vec();
                columns.insert(CPU, *cpu);
                let columns: Vec<_> = columns.iter().map(|v| format!("{v:08x}")).collect();
                text += &(columns.join(" ") + "\n");
            }
            let read = parse_softnet(text.as_bytes(), &CpuSet::new()).unwrap();
            prop_assert_eq!(read.len(), rows.len());
            for (cpu, (number, values)) in read.iter().zip(&rows) {
                prop_assert_eq!(cpu.cpu.0, *number);
                prop_assert_eq!(cpu.processed, u64::from(values[0]));
                prop_assert_eq!(cpu.process_queue, Some(u64::from(values[13])));
            }
        }
    }
}
