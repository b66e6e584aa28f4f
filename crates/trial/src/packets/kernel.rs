//! Kernel counters while packets were sent: CPU time and drops. Input: two readings of the host. Output: their
//! difference.

use nearpath_host::Root;
use nearpath_model::{CpuId, CpuTime, DeviceCounts, Unknown};
use serde::{Deserialize, Serialize};

/// CPU time of one CPU in an interval, by kind, including everything that ran there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCost {
    /// The CPU.
    pub cpu: CpuId,
    /// User space.
    pub user_ns: u64,
    /// System calls and kernel threads.
    pub system_ns: u64,
    /// Hard interrupts.
    pub irq_ns: u64,
    /// Softirqs, including packet processing.
    pub softirq_ns: u64,
}

impl CpuCost {
    /// The total.
    pub fn busy_ns(&self) -> u64 {
        let Self { user_ns, system_ns, irq_ns, softirq_ns, .. } = *self;
        user_ns.saturating_add(system_ns).saturating_add(irq_ns).saturating_add(softirq_ns)
    }
}

/// Drops of an interface in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDrops {
    /// Its name.
    pub name: String,
    /// Received and dropped, or damaged.
    pub rx: u64,
    /// Not sent, because a queue was full or for another reason.
    pub tx: u64,
}

/// Counters of a host's kernel in an interval, for all of its traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// The CPUs with any activity.
    pub cpus: Vec<CpuCost>,
    /// Interfaces of the network namespace that dropped packets.
    pub devices: Vec<DeviceDrops>,
    /// Packets dropped because a CPU's backlog was full (`softnet_stat`), host-wide.
    pub backlog_drops: Option<u64>,
    /// What could not be read, with the reason.
    pub unknown: Vec<Unknown>,
}

/// The counters at one moment.
#[derive(Debug)]
pub(super) struct Reading {
    cpus: Vec<CpuTime>,
    devices: Vec<DeviceCounts>,
    backlog_drops: Option<u64>,
    unknown: Vec<Unknown>,
}

impl Reading {
    /// Reads the current values.
    pub(super) fn take(root: &Root) -> Self {
        let mut unknown = Vec::new();
        let mut note = |fact: &str, reason: String| {
            unknown.push(Unknown { subject: "host".to_owned(), fact: fact.to_owned(), reason });
        };
        let cpus = nearpath_host::read_cpu_time(root);
        if cpus.is_empty() {
            note("CPU time", "not available from /proc/stat".to_owned());
        }
        let devices = nearpath_host::read_device_counts(root).unwrap_or_else(|reason| {
            note("drops of interfaces", reason.to_string());
            Vec::new()
        });
        let backlog_drops = match nearpath_host::read_softnet(root) {
            Ok(cpus) => Some(cpus.iter().map(|cpu| cpu.dropped).sum()),
            Err(reason) => {
                note("drops of the backlog", reason.to_string());
                None
            }
        };
        Self { cpus, devices, backlog_drops, unknown }
    }

    /// The difference since an earlier reading.
    pub(super) fn until(&self, now: &Self) -> Kernel {
        let cpus = now.cpus.iter().filter_map(|now| cost(&self.cpus, now));
        let devices = now.devices.iter().filter_map(|now| dropped(&self.devices, now));
        let backlog = self.backlog_drops.zip(now.backlog_drops);
        Kernel {
            cpus: cpus.filter(|cost| cost.busy_ns() > 0).collect(),
            devices: devices.filter(|drops| drops.rx + drops.tx > 0).collect(),
            backlog_drops: backlog.map(|(then, now)| now.saturating_sub(then)),
            unknown: now.unknown.clone(),
        }
    }
}

fn cost(then: &[CpuTime], now: &CpuTime) -> Option<CpuCost> {
    let then = then.iter().find(|then| then.cpu == now.cpu)?;
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let ns = |of: fn(&CpuTime) -> u64| of(now).saturating_sub(of(then)).saturating_mul(tick_ns);
    Some(CpuCost {
        cpu: now.cpu,
        user_ns: ns(|time| time.user.saturating_add(time.nice)),
        system_ns: ns(|time| time.system),
        irq_ns: ns(|time| time.irq),
        softirq_ns: ns(|time| time.softirq),
    })
}

fn dropped(then: &[DeviceCounts], now: &DeviceCounts) -> Option<DeviceDrops> {
    let then = then.iter().find(|then| then.name == now.name)?;
    let since = |of: fn(&DeviceCounts) -> u64| of(now).saturating_sub(of(then));
    Some(DeviceDrops {
        name: now.name.clone(),
        rx: since(|device| device.rx_dropped.saturating_add(device.rx_errors)),
        tx: since(|device| device.tx_dropped.saturating_add(device.tx_errors)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(cpu: u32, [user, system, softirq]: [u64; 3]) -> CpuTime {
        let (cpu, steal) = (CpuId(cpu), None);
        CpuTime { cpu, user, nice: 0, system, idle: 50, iowait: 0, irq: 0, softirq, steal }
    }

    fn device(name: &str, rx_dropped: u64) -> DeviceCounts {
        DeviceCounts {
            name: name.to_owned(),
            rx_packets: 5,
            rx_errors: 0,
            rx_dropped,
            tx_packets: 5,
            tx_errors: 1,
            tx_dropped: 0,
        }
    }

    #[test]
    fn the_difference_is_reported() {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let then = Reading {
            cpus: vec![time(0, [5, 5, 5]), time(1, [0, 0, 0])],
            devices: vec![device("eth0", 3), device("gone", 0)],
            backlog_drops: Some(7),
            unknown: Vec::new(),
        };
        let now = Reading {
            // CPU 1 was idle, CPU 2 came online in the meantime.
            cpus: vec![time(0, [6, 9, 25]), time(1, [0, 0, 0]), time(2, [9, 9, 9])],
            devices: vec![device("eth0", 8), device("new", 9)],
            backlog_drops: Some(7),
            unknown: Vec::new(),
        };
        let kernel = then.until(&now);
        let [cpu] = kernel.cpus[..] else { panic!("{kernel:?}") };
        assert_eq!((cpu.user_ns, cpu.system_ns), (tick_ns, 4 * tick_ns));
        assert_eq!((cpu.softirq_ns, cpu.busy_ns()), (20 * tick_ns, 25 * tick_ns));
        let name = "eth0".to_owned();
        assert_eq!(kernel.devices, [DeviceDrops { name, rx: 5, tx: 0 }]);
        assert_eq!(kernel.backlog_drops, Some(0));
    }

    #[test]
    fn this_machine_has_counters() {
        let reading = Reading::take(&Root::live());
        assert!(!reading.cpus.is_empty() && !reading.devices.is_empty(), "{reading:?}");
        assert_eq!(reading.unknown, []);
    }
}
