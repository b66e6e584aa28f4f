//! The kernel's counters, accumulated over readings. Input: [`Counters`] of a host. Output: the increase of
//! each interrupt, softirq and CPU since the first reading.

use super::tally::Tally;
use nearpath_model::{
    Counters, CpuId, CpuSet, IfIndex, Irq, IrqNumber, QueueId, SoftnetCpu, Unknown,
};
use std::collections::BTreeMap;

/// Counts by CPU.
pub type ByCpu = Tally<CpuId>;

/// An interrupt of a device.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// The names of its handlers; the last ones known.
    pub name: String,
    /// Its count.
    pub counts: ByCpu,
}

/// Everything counted since the first reading.
#[derive(Debug, Default)]
pub struct Readings {
    /// CPUs whose interrupts were in some reading.
    seen: CpuSet,
    /// CPUs in the last reading.
    pub online: CpuSet,
    /// Interrupts of devices.
    pub irqs: BTreeMap<IrqNumber, Line>,
    /// Those whose number was reassigned to another device.
    pub former: Vec<(IrqNumber, Line)>,
    /// Those of the architecture, with their descriptions.
    pub arch_irqs: BTreeMap<String, (Option<String>, ByCpu)>,
    /// Softirqs by vector.
    pub softirqs: BTreeMap<String, ByCpu>,
    /// `/proc/net/softnet_stat`.
    pub softnet: [ByCpu; SOFTNET.len()],
    /// CPUs that it contained.
    pub softnet_cpus: CpuSet,
    /// The backlog of each CPU: current, and the maximum of all readings.
    pub backlog: BTreeMap<CpuId, (u64, u64)>,
    /// Packets of receive and of transmit queues.
    pub packets: BTreeMap<IfIndex, [Tally<QueueId>; 2]>,
    /// What could not be read, with the reason.
    pub unknown: Vec<Unknown>,
}

/// The fields of a CPU in `/proc/net/softnet_stat`.
pub const SOFTNET: [fn(&SoftnetCpu) -> Option<u64>; 5] = [
    |cpu| Some(cpu.processed),
    |cpu| Some(cpu.dropped),
    |cpu| Some(cpu.time_squeeze),
    |cpu| cpu.received_rps,
    |cpu| cpu.flow_limit,
];

impl Readings {
    /// Starts with a reading.
    pub fn new(first: &Counters) -> Self {
        let mut readings = Self::default();
        for irq in &first.irqs {
            let mut line = Line { name: irq.name.clone(), counts: ByCpu::default() };
            line.counts.first(irq.counts.clone());
            readings.irqs.insert(irq.irq, line);
        }
        for irq in &first.arch_irqs {
            let new = || (irq.description.clone(), ByCpu::default());
            readings
                .arch_irqs
                .entry(irq.name.clone())
                .or_insert_with(new)
                .1
                .first(irq.counts.clone());
        }
        for vector in &first.softirqs {
            readings
                .softirqs
                .entry(vector.vector.clone())
                .or_default()
                .first(vector.counts.clone());
        }
        for (tally, value) in readings.softnet.iter_mut().zip(SOFTNET) {
            tally.first(by_cpu(&first.softnet, value));
        }
        for (index, packets) in &first.queue_packets {
            let [rx, tx] = readings.packets.entry(*index).or_default();
            rx.first(packets.rx.clone());
            tx.first(packets.tx.clone());
        }
        readings.softnet_cpus = first.softnet.iter().map(|cpu| cpu.cpu).collect();
        readings.seen = first.cpus.clone();
        readings.looked_at(first);
        readings
    }

    /// Adds a reading, this many seconds after the last.
    pub fn add(&mut self, now: &Counters, elapsed_s: f64) {
        self.welcome(now);
        let covered = |cpu: &CpuId| now.cpus.contains(*cpu);
        for irq in &now.irqs {
            let line = self.irqs.entry(irq.irq).or_default();
            // While an interface is down, its interrupt has no handler. With a new handler the kernel continues
            // counting; with another device it starts again at zero.
            if !irq.name.is_empty() && line.name != irq.name {
                let before = line.clone();
                line.name.clone_from(&irq.name);
                line.counts.sum.clear();
                if !before.counts.sum.is_empty() {
                    self.former.push((irq.irq, before));
                }
            }
            line.counts.add(&irq.counts, elapsed_s, covered);
        }
        for irq in &now.arch_irqs {
            let new = || (irq.description.clone(), ByCpu::default());
            let (_, tally) = self.arch_irqs.entry(irq.name.clone()).or_insert_with(new);
            tally.add(&irq.counts, elapsed_s, covered);
        }
        // The kernel reports softirqs for all possible CPUs.
        for vector in &now.softirqs {
            let tally = self.softirqs.entry(vector.vector.clone()).or_default();
            tally.add(&vector.counts, elapsed_s, |_| true);
        }
        let listed: CpuSet = now.softnet.iter().map(|cpu| cpu.cpu).collect();
        for (tally, value) in self.softnet.iter_mut().zip(SOFTNET) {
            tally.add(&by_cpu(&now.softnet, value), elapsed_s, |cpu| listed.contains(*cpu));
        }
        for (index, packets) in &now.queue_packets {
            if let Some([rx, tx]) = self.packets.get_mut(index) {
                rx.add(&packets.rx, elapsed_s, |queue| packets.rx.contains_key(queue));
                tx.add(&packets.tx, elapsed_s, |queue| packets.tx.contains_key(queue));
            }
        }
        self.looked_at(now);
    }

    /// Whether a reading has interrupts that are not known yet.
    pub fn differs(&self, now: &Counters) -> bool {
        let known = |irq: &Irq| self.irqs.get(&irq.irq).is_some_and(|line| line.name == irq.name);
        now.irqs.iter().any(|irq| !known(irq))
    }

    /// The earlier counts of CPUs that come online and were never in a reading are unknown: they count from
    /// here.
    fn welcome(&mut self, now: &Counters) {
        let new = now.cpus.difference(&self.seen);
        let of_new = |counts: &BTreeMap<CpuId, u64>| -> Vec<(CpuId, u64)> {
            counts.iter().filter(|(cpu, _)| new.contains(**cpu)).map(|(c, n)| (*c, *n)).collect()
        };
        if !new.is_empty() {
            for irq in &now.irqs {
                if let Some(line) = self.irqs.get_mut(&irq.irq) {
                    line.counts.first(of_new(&irq.counts));
                }
            }
            for irq in &now.arch_irqs {
                if let Some((_, tally)) = self.arch_irqs.get_mut(&irq.name) {
                    tally.first(of_new(&irq.counts));
                }
            }
            self.unknown.push(Unknown {
                subject: format!("cpus {new}"),
                fact: "interrupts".to_owned(),
                reason: "came online during the measurement: counted from the next reading"
                    .to_owned(),
            });
            self.seen = self.seen.union(&now.cpus);
        }
        let listed: CpuSet = now.softnet.iter().map(|cpu| cpu.cpu).collect();
        let new: Vec<&SoftnetCpu> =
            now.softnet.iter().filter(|cpu| !self.softnet_cpus.contains(cpu.cpu)).collect();
        for (tally, value) in self.softnet.iter_mut().zip(SOFTNET) {
            tally.first(new.iter().filter_map(|cpu| Some((cpu.cpu, value(cpu)?))));
        }
        self.softnet_cpus = self.softnet_cpus.union(&listed);
    }

    fn looked_at(&mut self, now: &Counters) {
        self.online = now.cpus.clone();
        for cpu in &now.softnet {
            if let Some(backlog) = cpu.backlog {
                let (last, most) = self.backlog.entry(cpu.cpu).or_default();
                (*last, *most) = (backlog, backlog.max(*most));
            }
        }
        for unknown in &now.unknown {
            if !self.unknown.contains(unknown) {
                self.unknown.push(unknown.clone());
            }
        }
    }
}

fn by_cpu(cpus: &[SoftnetCpu], value: fn(&SoftnetCpu) -> Option<u64>) -> BTreeMap<CpuId, u64> {
    cpus.iter().filter_map(|cpu| Some((cpu.cpu, value(cpu)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        CpuSet::from_list(list).unwrap()
    }

    /// Number, name, and counts by CPU.
    type Row<'a> = (u32, &'a str, &'a [(u32, u64)]);

    fn counters(online: &str, irqs: &[Row<'_>]) -> Counters {
        let irq = |&(irq, name, counts): &Row<'_>| Irq {
            irq: IrqNumber(irq),
            name: name.to_owned(),
            chip: None,
            counts: counts.iter().map(|&(cpu, n)| (CpuId(cpu), n)).collect(),
            affinity: None,
            effective_affinity: None,
            node: None,
        };
        Counters { cpus: cpus(online), irqs: irqs.iter().map(irq).collect(), ..Counters::default() }
    }

    fn sum(readings: &Readings, irq: u32, name: &str) -> Vec<(u32, u64)> {
        let all = readings.irqs.iter().chain(readings.former.iter().map(|(irq, line)| (irq, line)));
        let mut found = all.filter(|(number, line)| number.0 == irq && line.name == name);
        let (_, line) = found.next().unwrap();
        line.counts.sum.iter().map(|(cpu, n)| (cpu.0, *n)).collect()
    }

    #[test]
    fn interrupts_move_vanish_and_appear() {
        let mut r =
            Readings::new(&counters("0-1", &[(7, "eth0-rx-0", &[(0, 10)]), (8, "a", &[(0, 3)])]));
        let next = counters("0-1", &[(7, "eth0-rx-0", &[(0, 12), (1, 5)]), (9, "new", &[(1, 2)])]);
        assert!(r.differs(&next));
        r.add(&next, 1.0);
        assert!(!r.differs(&next));
        assert_eq!(sum(&r, 7, "eth0-rx-0"), [(0, 2), (1, 5)]);
        assert_eq!(sum(&r, 8, "a"), []);
        assert_eq!(sum(&r, 9, "new"), [(1, 2)]);
        // The number is given to another device: its counts are its own.
        r.add(&counters("0-1", &[(7, "eth1-rx-0", &[(0, 4)])]), 1.0);
        assert_eq!(sum(&r, 7, "eth0-rx-0"), [(0, 2), (1, 5)]);
        assert_eq!(sum(&r, 7, "eth1-rx-0"), [(0, 4)]);
    }

    #[test]
    fn an_interface_that_was_down_keeps_its_counts() {
        let mut r = Readings::new(&counters("0", &[(7, "eth0-rx-0", &[(0, 1000)])]));
        r.add(&counters("0", &[(7, "", &[(0, 1001)])]), 1.0);
        r.add(&counters("0", &[(7, "eth0-rx-0", &[(0, 1003)])]), 1.0);
        assert_eq!(sum(&r, 7, "eth0-rx-0"), [(0, 3)]);
        r.add(&counters("0", &[(7, "eth0-TxRx-0", &[(0, 1010)])]), 1.0);
        assert_eq!(sum(&r, 7, "eth0-rx-0"), [(0, 3)]);
        assert_eq!(sum(&r, 7, "eth0-TxRx-0"), [(0, 7)]);
    }

    #[test]
    fn a_cpu_counts_from_when_it_comes_online() {
        let mut r = Readings::new(&counters("0", &[(7, "a", &[(0, 10)])]));
        r.add(&counters("0-1", &[(7, "a", &[(0, 10), (1, 1000)])]), 1.0);
        r.add(&counters("0-1", &[(7, "a", &[(0, 10), (1, 1004)])]), 1.0);
        assert_eq!(sum(&r, 7, "a"), [(1, 4)]);
        assert_eq!((r.unknown.len(), r.unknown[0].subject.as_str()), (1, "cpus 1"));
        assert_eq!(r.online.to_string(), "0-1");
    }

    #[test]
    fn the_longest_backlog_is_kept() {
        let softnet = |backlog, processed| SoftnetCpu {
            cpu: CpuId(0),
            processed,
            dropped: 0,
            time_squeeze: 0,
            received_rps: None,
            flow_limit: None,
            backlog: Some(backlog),
            input_queue: None,
            process_queue: None,
        };
        let of = |softnet| Counters { softnet: vec![softnet], ..counters("0", &[]) };
        let mut r = Readings::new(&of(softnet(2, 0xffff_fff0)));
        r.add(&of(softnet(9, 4)), 1.0);
        r.add(&of(softnet(1, 5)), 1.0);
        assert_eq!(r.backlog[&CpuId(0)], (1, 9));
        assert_eq!(r.softnet[0].sum, [(CpuId(0), 21)].into());
        // A column that the kernel lacks is not 0.
        assert!(r.softnet[3].sum.is_empty());
    }
}
