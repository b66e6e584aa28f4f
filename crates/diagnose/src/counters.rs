//! Counters over the interval, or since boot when there is no earlier host. Counters that went
//! back (a CPU or a NIC that went away and came again) count as none.

use crate::Context;
use nearpath_model::{
    CounterKind, CpuId, CpuTime, Irq, Nic, SoftnetCpu, counter_kind, counter_name,
};
use std::collections::BTreeMap;

/// The sum, at most `u64::MAX`: counters of a stranger's host may be anything.
pub(crate) fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// What part of the whole that is; `None` of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The CPU with the greatest count (the lowest of equals), and its share of all.
pub(crate) fn busiest(counts: &BTreeMap<CpuId, u64>) -> Option<(CpuId, f64)> {
    let (&cpu, &most) = counts.iter().max_by_key(|&(cpu, &n)| (n, std::cmp::Reverse(*cpu)))?;
    Some((cpu, ratio(most, total(counts.values().copied()))?))
}

/// How a CPU spent its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeShares {
    /// In interrupts, hard and soft.
    pub interrupts: f64,
    /// Taken by the hypervisor; `None` if the kernel does not report it.
    pub steal: Option<f64>,
}

impl Context<'_> {
    /// Runs of a softirq by CPU; `None` when they are unknown now or then. CPUs that are not
    /// listed had none.
    pub(crate) fn softirqs(&self, vector: &str) -> Option<BTreeMap<CpuId, u64>> {
        let of = |host: &nearpath_model::Host| {
            host.softirqs.iter().find(|s| s.vector == vector).map(|s| s.counts.clone())
        };
        let mut counts = of(self.host)?;
        if let Some(earlier) = self.earlier {
            for (cpu, then) in of(earlier)? {
                counts.entry(cpu).and_modify(|count| *count = rise32(*count, then));
            }
        }
        Some(counts)
    }

    /// Counts of an interrupt by CPU. CPUs that are not listed had none.
    pub(crate) fn irq_counts(&self, irq: &Irq) -> BTreeMap<CpuId, u64> {
        let then = self.earlier_irq(irq.irq);
        let before = |cpu| then.and_then(|irq| irq.counts.get(cpu)).copied().unwrap_or(0);
        irq.counts.iter().map(|(cpu, n)| (*cpu, rise32(*n, before(cpu)))).collect()
    }

    /// How often an interrupt came.
    pub(crate) fn irq_total(&self, irq: &Irq) -> u64 {
        total(self.irq_counts(irq).into_values())
    }

    /// The counters of `/proc/net/softnet_stat` by CPU (the present backlog is left as it is).
    /// `None` when they are unknown now or then.
    pub(crate) fn softnet(&self) -> Option<Vec<SoftnetCpu>> {
        let now = &self.host.softnet;
        if now.is_empty() {
            return None;
        }
        let Some(earlier) = self.earlier else { return Some(now.clone()) };
        let then: BTreeMap<CpuId, &SoftnetCpu> =
            earlier.softnet.iter().map(|line| (line.cpu, line)).collect();
        if then.is_empty() {
            return None;
        }
        let rise = |now: &SoftnetCpu| {
            let then = then.get(&now.cpu)?;
            let optional = |now: Option<u64>, then: Option<u64>| Some(rise32(now?, then?));
            Some(SoftnetCpu {
                processed: rise32(now.processed, then.processed),
                dropped: rise32(now.dropped, then.dropped),
                time_squeeze: rise32(now.time_squeeze, then.time_squeeze),
                received_rps: optional(now.received_rps, then.received_rps),
                flow_limit: optional(now.flow_limit, then.flow_limit),
                ..now.clone()
            })
        };
        Some(now.iter().filter_map(rise).collect())
    }

    /// A counter of a NIC's `statistics/`.
    pub(crate) fn statistic(&self, nic: &Nic, name: &str) -> Option<u64> {
        let now = *nic.statistics.get(name)?;
        let Some(earlier) = self.earlier else { return Some(now) };
        let then = earlier.nics.iter().find(|n| n.ifindex == nic.ifindex && n.name == nic.name)?;
        Some(now.saturating_sub(*then.statistics.get(name)?))
    }

    /// The driver's own counters of some kinds, by their names without the numbers of queues: `None` when they are
    /// unknown now or then.
    pub(crate) fn driver_counts(
        &self,
        nic: &Nic,
        kinds: &[CounterKind],
    ) -> Option<BTreeMap<String, u64>> {
        let now = nic.driver_counters.as_ref()?;
        let then = match self.earlier {
            None => None,
            Some(earlier) => {
                let same = |n: &&Nic| n.ifindex == nic.ifindex && n.name == nic.name;
                Some(earlier.nics.iter().find(same)?.driver_counters.as_ref()?)
            }
        };
        let mut sums = BTreeMap::new();
        for (name, count) in now {
            if counter_kind(name).is_some_and(|kind| kinds.contains(&kind)) {
                let before = then.and_then(|then| then.get(name)).copied().unwrap_or(0);
                let sum: &mut u64 = sums.entry(counter_name(name)).or_default();
                *sum = sum.saturating_add(count.saturating_sub(before));
            }
        }
        Some(sums)
    }

    /// A counter of the whole host by its name; `None` when it is unknown now or then.
    pub(crate) fn counter(&self, name: &str) -> Option<u64> {
        let now = *self.host.counters.get(name)?;
        let Some(earlier) = self.earlier else { return Some(now) };
        Some(now.saturating_sub(*earlier.counters.get(name)?))
    }

    /// How each CPU spent its time; CPUs without any are left out.
    pub(crate) fn time_shares(&self) -> BTreeMap<CpuId, TimeShares> {
        let then: BTreeMap<CpuId, &CpuTime> = self
            .earlier
            .map(|host| host.cpu_time.iter().map(|time| (time.cpu, time)).collect())
            .unwrap_or_default();
        let shares = |now: &CpuTime| {
            let then = match self.earlier {
                Some(_) => Some(*then.get(&now.cpu)?),
                None => None,
            };
            let rise = |of: fn(&CpuTime) -> u64| of(now).saturating_sub(then.map_or(0, of));
            let steal = rise(|t| t.steal.unwrap_or(0));
            let interrupts = rise(|t| t.irq).saturating_add(rise(|t| t.softirq));
            let rest = [
                rise(|t| t.user),
                rise(|t| t.nice),
                rise(|t| t.system),
                rise(|t| t.idle),
                rise(|t| t.iowait),
            ];
            let all = total(rest.into_iter().chain([interrupts, steal]));
            let steal = now.steal.and_then(|_| ratio(steal, all));
            Some((now.cpu, TimeShares { interrupts: ratio(interrupts, all)?, steal }))
        };
        self.host.cpu_time.iter().filter_map(shares).collect()
    }
}

/// The rise of a counter that the kernel keeps in 32 bits and that may have wrapped; of greater
/// values the plain difference. Such are those of `/proc/net/softnet_stat` (`%08x`,
/// net/core/net-procfs.c), of `/proc/softirqs` and of `/proc/interrupts` (`unsigned int` in
/// `struct kernel_stat` and `kstat_irqs_cpu`, include/linux/kernel_stat.h).
fn rise32(now: u64, then: u64) -> u64 {
    match (u32::try_from(now), u32::try_from(then)) {
        (Ok(now), Ok(then)) => {
            let rise = now.wrapping_sub(then);
            // More than half of the range in one interval is no wrap but a reset.
            if rise > u32::MAX / 2 { 0 } else { u64::from(rise) }
        }
        _ => now.saturating_sub(then),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_and_reset() {
        assert_eq!(rise32(10, 4), 6);
        assert_eq!(rise32(3, u64::from(u32::MAX)), 4, "wrapped");
        assert_eq!(rise32(3, 100), 0, "reset");
        assert_eq!(rise32(1 << 40, 1), (1 << 40) - 1);
    }

    #[test]
    fn softirqs_and_interrupts_survive_the_wrap() {
        use nearpath_model::{Host, IrqNumber, SoftirqCounts};
        let host = |count: u64| Host {
            softirqs: vec![SoftirqCounts {
                vector: "NET_RX".to_owned(),
                counts: [(CpuId(0), count)].into(),
            }],
            irqs: vec![Irq {
                irq: IrqNumber(40),
                name: "eth0-TxRx-0".to_owned(),
                chip: None,
                counts: [(CpuId(0), count)].into(),
                affinity: None,
                effective_affinity: None,
                node: None,
            }],
            ..Host::default()
        };
        let (earlier, now) = (host(u64::from(u32::MAX) - 9), host(90));
        let context = Context::new(&now, Some(&earlier), None);
        assert_eq!(context.softirqs("NET_RX"), Some([(CpuId(0), 100)].into()));
        assert_eq!(context.irq_total(&now.irqs[0]), 100);
    }

    #[test]
    fn sums_do_not_overflow_and_the_busiest_is_the_lowest_of_equals() {
        assert_eq!(total([u64::MAX, 1]), u64::MAX);
        let counts = BTreeMap::from([(CpuId(2), 5), (CpuId(1), 5), (CpuId(0), 0)]);
        assert_eq!(busiest(&counts), Some((CpuId(1), 0.5)));
        assert_eq!(busiest(&BTreeMap::from([(CpuId(0), 0)])), None);
    }
}
