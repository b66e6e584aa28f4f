//! `/proc`: interrupts, counters by CPU, and facts about the kernel.

use super::write::{Writer, cpulist};
use super::{Machine, Nic, Queue};
use std::fmt::Write;

impl Machine {
    pub(super) fn write_proc(&self, w: &mut Writer) {
        w.line("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet");
        w.line("/proc/sys/kernel/osrelease", "6.1.0-test");
        w.line("/proc/sys/kernel/hostname", "testhost");
        w.line("/proc/sys/net/core/rps_sock_flow_entries", 0);
        w.line("/proc/sys/net/core/netdev_budget", 300);
        w.line("/proc/sys/net/core/netdev_max_backlog", 1000);
        w.line("/proc/sys/kernel/numa_balancing", 0);
        w.file("/proc/interrupts", self.interrupts());
        w.file("/proc/softirqs", self.softirqs());
        w.file("/proc/net/softnet_stat", self.softnet_stat());
        w.file("/proc/stat", self.stat());
        let online = self.online();
        for (nic, i, queue, irq) in self.irqs() {
            let dir = format!("/proc/irq/{irq}");
            w.line(&format!("{dir}/smp_affinity_list"), cpulist(&queue.affinity_on(&online)));
            let effective = cpulist(&queue.effective_on(&online, i));
            w.line(&format!("{dir}/effective_affinity_list"), effective);
            w.line(&format!("{dir}/node"), nic.numa_node.unwrap_or(-1));
        }
    }

    fn irqs(&self) -> impl Iterator<Item = (&Nic, usize, &Queue, u32)> {
        self.nics.iter().flat_map(|nic| {
            let queues = nic.queues.iter().enumerate();
            queues.filter_map(move |(i, queue)| Some((nic, i, queue, queue.irq?)))
        })
    }

    /// kernel/irq/proc.c: one column per online CPU.
    fn interrupts(&self) -> String {
        let online = self.online();
        let mut text = " ".repeat(11);
        for cpu in &online {
            let _ = write!(text, "{:<11}", format!("CPU{cpu}"));
        }
        text.push('\n');
        for (nic, i, queue, irq) in self.irqs() {
            let effective = queue.effective_on(&online, i);
            let _ = write!(text, "{irq:>4}: ");
            for cpu in &online {
                let count = match queue.counts.get(cpu) {
                    Some(count) => *count,
                    None if queue.counts.is_empty() && effective.contains(cpu) => 1000,
                    None => 0,
                };
                let _ = write!(text, "{count:>10} ");
            }
            let (name, bus) = (&nic.name, nic.bus.as_deref().unwrap_or("platform"));
            let _ = writeln!(text, " PCI-MSIX-{bus} {i:>3}-edge      {name}-TxRx-{i}");
        }
        let _ = write!(text, " NMI: ");
        for _ in &online {
            let _ = write!(text, "{:>10} ", 0);
        }
        text.push_str("  Non-maskable interrupts\n ERR:          0\n");
        text
    }

    /// fs/proc/softirqs.c: one column per possible CPU.
    fn softirqs(&self) -> String {
        let mut possible: Vec<u32> = self.cpus.keys().chain(&self.possible_only).copied().collect();
        possible.sort_unstable();
        let mut text = " ".repeat(20);
        for cpu in &possible {
            let _ = write!(text, "{:<11}", format!("CPU{cpu}"));
        }
        text.push('\n');
        for vector in ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "SCHED", "RCU"] {
            let _ = write!(text, "{vector:>12}:");
            for cpu in &possible {
                let _ = write!(text, " {:>10}", u64::from(*cpu) + 1);
            }
            text.push('\n');
        }
        text
    }

    /// net/core/net-procfs.c as of 6.4: fifteen columns, the thirteenth is the CPU.
    fn softnet_stat(&self) -> String {
        let mut text = String::new();
        for cpu in self.online() {
            let columns = [1000, 0, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, cpu, 0, 0];
            let columns = columns.map(|column| format!("{column:08x}"));
            let _ = writeln!(text, "{}", columns.join(" "));
        }
        text
    }

    /// fs/proc/stat.c: one line per online CPU after the sum.
    fn stat(&self) -> String {
        let times = "100 1 50 10000 10 0 5 2 0 0";
        let mut text = format!("cpu  {times}\n");
        for cpu in self.online() {
            let _ = writeln!(text, "cpu{cpu} {times}");
        }
        text.push_str("intr 0\nctxt 1\nbtime 1700000000\nprocesses 1\nsoftirq 0 0 0\n");
        text
    }
}
