//! The lines `cpuN` of `/proc/stat` (fs/proc/stat.c): `user nice system idle iowait irq softirq
//! steal guest guest_nice`, in ticks of `USER_HZ`. Kernels before 2.6.11 have no steal.

use crate::cpu_table::{Malformed, cpu_id, number, split_line};
use nearpath_model::CpuTime;

/// Parses `/proc/stat`.
///
/// # Errors
/// A CPU line has fewer than seven numbers, or there is no such line.
pub fn parse_cpu_time(bytes: &[u8]) -> Result<Vec<CpuTime>, Malformed> {
    let mut cpus = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let line;
        (line, rest) = split_line(rest);
        // The CPUs come first; the following line with all interrupts may be long.
        let Some(line) = line.strip_prefix(b"cpu") else { break };
        let mut words = line.split(u8::is_ascii_whitespace);
        let Some(cpu) = words.next().and_then(number).and_then(cpu_id) else { continue };
        let values: Option<Vec<u64>> = words.filter(|w| !w.is_empty()).map(number).collect();
        let Some(&[user, nice, system, idle, iowait, irq, softirq, ref more @ ..]) =
            values.as_deref()
        else {
            return Err(Malformed(format!("cpu{cpu}: fewer than seven numbers")));
        };
        let steal = more.first().copied();
        cpus.push(CpuTime { cpu, user, nice, system, idle, iowait, irq, softirq, steal });
    }
    if cpus.is_empty() {
        return Err(Malformed("no CPU line".into()));
    }
    cpus.sort_by_key(|cpu| cpu.cpu);
    cpus.dedup_by_key(|cpu| cpu.cpu);
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::CpuId;
    use proptest::prelude::*;

    #[test]
    fn times_by_cpu() {
        let text = b"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu3 1 1 1 1 1 1 1\nintr 7\ncpu4 1\n";
        let cpus = parse_cpu_time(text).unwrap();
        assert_eq!(cpus.len(), 2);
        let expected = CpuTime {
            cpu: CpuId(0),
            user: 1,
            nice: 2,
            system: 3,
            idle: 4,
            iowait: 5,
            irq: 6,
            softirq: 7,
            steal: Some(8),
        };
        assert_eq!(cpus[0], expected);
        assert_eq!((cpus[1].cpu, cpus[1].steal), (CpuId(3), None));
    }

    #[test]
    fn malformed_text_is_rejected() {
        for bad in ["", "intr 5", "cpu 1 2 3\n", "cpu0 1 2 3\n", "cpu0 1 2 3 4 5 6 x\n"] {
            assert!(parse_cpu_time(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_cpu_time(&bytes);
            let _ = parse_cpu_time(&[b"cpu0 ", &bytes[..]].concat());
        }
    }
}
